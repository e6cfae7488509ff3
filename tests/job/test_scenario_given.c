/* Keys that were given and that rules make something else of (scenario_given.c): refused, for what was asked is not
 * what would be predicted. */
#include "plan/rules.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "lib/job_of_settings.h"

static struct dtp_faults faults;
static struct dtp_job job;

static void assert_given(const char *settings)
{
    if (job_of_settings(settings, &job, &faults) != DTP_OK)
        fail_msg("%s: %s", settings, faults.text[0]);
}

static void assert_refused(const char *settings, const char *words)
{
    assert_int_equal(job_of_settings(settings, &job, &faults), DTP_BAD_INPUT);
    for (size_t i = 0; i < faults.count && i < DTP_FAULTS_KEPT; i++)
        if (strstr(faults.text[i], words))
            return;
    fail_msg("%s: no fault '%s'; first of %zu: %s", settings, words, faults.count, faults.text[0]);
}

/* Figures would be those of another format than asked. */
static void a_format_that_follows_from_others_is_refused(void **state)
{
    (void)state;
    assert_refused("model=llama-2-7b gpus=8 strategy=ddp lora=8 param_dtype=fp32", "follows from precision: bf16");
    assert_refused("model=llama-2-7b gpus=8 strategy=ddp lora=8 master_dtype=fp32", "not chosen with adapters");
    assert_refused("model=llama-2-7b gpus=8 strategy=ddp lora=8 lora_dtype=fp16", "choose that");
    assert_refused("model=llama-2-7b gpus=8 strategy=ddp lora=8 moment_dtype=fp32", "choose those");
    assert_given("model=llama-2-7b gpus=8 strategy=ddp lora=8 reduce_dtype=fp32");
    assert_non_null(strstr(job.plan_note, "reduce_dtype fp32 changes nothing here"));
    assert_given("model=llama-2-7b gpus=8 strategy=ddp lora=8 param_dtype=bf16 reduce_dtype=bf16");
    assert_given("model=llama-2-7b gpus=8 strategy=ddp lora=8 precision=fp32 param_dtype=fp32");
    assert_refused("model=llama-2-7b gpus=8 optimizer=adam8bit moment_dtype=fp32", "a format of their own");
    assert_refused("model=llama-2-7b gpus=8 strategy=zero1 runtime=megatron param_dtype=fp32",
                   "is bf16 with precision bf16-mixed under runtime megatron");
}

static void one_chunk_of_a_schedule_with_more_is_refused(void **state)
{
    (void)state;
    assert_refused("model=llama-2-7b gpus=8 pp=4 accumulate=8 schedule=looped-bfs virtual_stages=1",
                   "with one it is schedule gpipe");
    assert_refused("model=llama-2-7b gpus=8 pp=4 accumulate=8 schedule=zb-v virtual_stages=1", "has 2 chunks a rank");
    assert_refused("model=llama-2-7b gpus=8 pp=2 accumulate=8 stages=Et*8|t*8|t*8|t*8L virtual_stages=1",
                   "interleaved takes 2 chunks");
    assert_given("model=llama-2-7b gpus=8 pp=4 accumulate=8 schedule=looped-bfs");
    assert_int_equal(job.plan.virtual_stages, 2);
    assert_given("model=llama-2-7b gpus=8 pp=4 accumulate=8 schedule=gpipe virtual_stages=1");
    assert_given("model=llama-2-7b gpus=8 virtual_stages=1");
}

/* Models that are divided have their ends wrapped: the plan says so, and another wish is refused. */
static void ends_of_divided_models(void **state)
{
    (void)state;
    assert_refused("model=llama-2-7b gpus=8 tp=2 wrap_ends=false", "is always true with tp, pp or cp above 1");
    assert_refused("model=llama-2-7b gpus=8 pp=2 accumulate=2 wrap_ends=false", "is always true");
    assert_given("model=llama-2-7b gpus=8 tp=2");
    assert_true(job.plan.wrap_ends);
    assert_given("model=llama-2-7b gpus=8 tp=2 keep_root=true wrap_ends=false");
    assert_false(job.plan.wrap_ends);
    assert_given("model=llama-2-7b gpus=8 wrap_ends=false");
    assert_false(job.plan.wrap_ends);
    assert_given("model=llama-2-7b gpus=8 tp=2 strategy=ddp gpus=2");
    assert_false(job.plan.wrap_ends);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_format_that_follows_from_others_is_refused),
        cmocka_unit_test(one_chunk_of_a_schedule_with_more_is_refused),
        cmocka_unit_test(ends_of_divided_models),
    };
    return cmocka_run_group_tests(tests, load_catalog, drop_catalog);
}
