/* Stages of pipelines that are run: for every schedule, over ranks, micro-batches, chunks and kinds of blocks, their
 * programs are proved together for devices that do one operation after the other, and are together the program of one
 * rank, or of the ranks that divide experts: each module's state lies on one stage (two of dualpipe), and all FLOPs are
 * there once. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "lib/run_fixture.h"
#include "lower/lower_set.h"
#include "runtime/dtplan/lower_executor.h"
#include "runtime/runtimes.h"
#include "schedule/schedule.h"

#include <math.h>

static struct dtp_faults faults;

/* False: the schedule has rules against so many ranks, micro-batches or chunks. */
static bool resolve(const char *words, struct dtp_job *out)
{
    static struct dtp_catalog catalog;
    static bool read;
    struct dtp_scenario *scenario;
    char copy[2048], *save = NULL;
    if (!read)
        catalog = fixture_catalog();
    read = true;
    memset(&faults, 0, sizeof faults);
    snprintf(copy, sizeof copy, "runtime=dtplan strategy=ddp gradient_norm=true gpu=h100-sxm %s", words);
    assert_int_equal(dtp_scenario_create(&scenario, &faults), DTP_OK);
    for (char *word = strtok_r(copy, " ", &save); word; word = strtok_r(NULL, " ", &save)) {
        char *value = strchr(word, '=');
        *value++ = '\0';
        dtp_scenario_set(scenario, word, value, "test", 0, &faults);
    }
    bool resolved = dtp_scenario_resolve(scenario, &catalog, out, &faults) == DTP_OK;
    dtp_scenario_destroy(scenario);
    return resolved;
}

static double matmul_flops(const struct dtp_program *program)
{
    struct dtp_program_totals totals;
    dtp_program_sum(program, &totals);
    return totals.matmul_flops + totals.attention_flops;
}

/* Roles that hold weights of a module. */
static uint32_t holders(const struct dtp_program_set *set, uint32_t module)
{
    uint32_t count = 0;
    for (uint32_t r = 0; r < set->role_count; r++) {
        const struct dtp_buffer *buffers = dtp_program_buffers(set->roles[r].program);
        for (size_t i = 0; i < dtp_program_buffer_count(set->roles[r].program); i++)
            count += buffers[i].content == DTP_CONTENT_WEIGHTS && buffers[i].module == module;
    }
    return count;
}

static void check(const char *words, const struct dtp_job *job)
{
    struct dtp_program_set set, one;
    struct dtp_plan whole = job->plan;
    struct dtp_cluster single = job->cluster;
    double flops = 0;
    if (dtp_lower_set(&job->transformer, &job->cluster, &job->plan, 0, &set, &faults) != DTP_OK ||
        dtp_program_set_verify(&set, DTP_ISSUE_IN_LINE, &faults) != DTP_OK)
        fail_msg("%s: %s", words, faults.text[0]);
    for (uint32_t r = 0; r < set.role_count; r++) {
        struct dtp_executor_arena arena;
        if (job->plan.accumulate == 2) {
            assert_int_equal(dtp_executor_arena_make(set.roles[r].program, &arena, &faults), DTP_OK);
            dtp_executor_arena_release(&arena);
        }
        flops += matmul_flops(set.roles[r].program);
    }
    uint32_t copies = dtp_schedule_row(job->plan.schedule)->copies;
    uint64_t modules = (job->plan.ep > 1 ? 2 : 1) * job->transformer.layers + 1; /* experts behind the others */
    for (uint32_t module = 1; module <= modules; module++)
        if (holders(&set, module) != copies)
            fail_msg("%s: module %u lies on %u stages", words, module, holders(&set, module));
    whole.pp = 1;
    single.gpus = single.gpus_per_node = job->plan.ep;
    if (dtp_lower_set(&job->transformer, &single, &whole, 0, &one, &faults) != DTP_OK)
        fail_msg("%s: %s", words, faults.text[0]);
    if (fabs(flops - matmul_flops(one.roles[0].program)) > 1e-9 * flops)
        fail_msg("%s: %g FLOPs of stages, %g of one rank", words, flops, matmul_flops(one.roles[0].program));
    dtp_program_set_release(&one);
    dtp_program_set_release(&set);
}

static void test_stages_are_proved(void **state)
{
    static const char *const models[] = {
        "",
        "tied_head=true ",
        "parallel_block=one_norm norm=layer_norm activation=gelu ",
        "norm_place=after ",
        "experts=4 experts_per_token=2 expert_ffn=24 shared_expert_ffn=16 dense_layers=3 ",
        "experts=4 experts_per_token=2 expert_ffn=24 ep=2 "};
    static const uint32_t micro_batches[] = {2, 8, 12}, chunks[] = {1, 2, 3};
    static struct dtp_job job;
    uint32_t checked[DTP_SCHEDULE_COUNT] = {0};
    (void)state;
    for (int kind = 0; kind < DTP_SCHEDULE_COUNT; kind++)
        for (uint32_t pp = 2; pp <= 6; pp += 2)
            for (size_t m = 0; m < sizeof micro_batches / sizeof *micro_batches; m++)
                for (size_t v = 0; v < sizeof chunks / sizeof *chunks; v++) {
                    const struct dtp_schedule_row *row = dtp_schedule_row((enum dtp_schedule_kind)kind);
                    const char *model = models[(pp + m + v + (uint32_t)kind) % (sizeof models / sizeof *models)];
                    char words[400];
                    if (row->chunks && v > 0)
                        continue;
                    snprintf(words, sizeof words,
                             "%slayers=12 hidden=16 heads=2 ffn=24 vocab=40 seq=8 micro_batch=1 gpus=%u pp=%u "
                             "schedule=%s accumulate=%u delay_wgrad=%zu%s",
                             model, strstr(model, "ep=2") ? 2 * pp : pp, pp, row->word, micro_batches[m],
                             row->backward == DTP_BACKWARD_SPLIT ? 0 : (m + v + pp / 2) % 3,
                             v == 0   ? ""
                             : v == 1 ? " virtual_stages=2"
                                      : " virtual_stages=2 checkpointing=full");
                    if (!resolve(words, &job))
                        continue;
                    check(words, &job);
                    checked[kind]++;
                }
    for (int kind = 0; kind < DTP_SCHEDULE_COUNT; kind++)
        if (dtp_runtime_find("dtplan")->schedules & 1u << kind && checked[kind] < 4)
            fail_msg("%s was tried %u times", dtp_schedule_row((enum dtp_schedule_kind)kind)->word, checked[kind]);
}

static bool is_weight_gradient(const struct dtp_op *op)
{
    return op->kind == DTP_OP_MATMUL && op->layer != DTP_NO_LAYER && strstr(op->name, "weight gradient");
}

/* Of the second of two stages, of four layers with four matrices each: behind a micro-batch's gradient that it sends
 * stand the weight gradients of as many layers as are asked for, from its first on, and before it all others. */
static void test_weights_wait_for_what_is_sent(void **state)
{
    static const struct {
        const char *asked;
        uint32_t behind;
    } rows[] = {{"0", 0}, {"1", 1}, {"3", 3}, {"9", 4}};
    static struct dtp_job job;
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct dtp_program_set set;
        uint32_t sent = 0, behind[4] = {0}, before[4] = {0};
        char words[300];
        snprintf(words, sizeof words,
                 "layers=8 hidden=16 heads=2 ffn=24 vocab=40 seq=8 micro_batch=1 gpus=2 pp=2 accumulate=3 "
                 "delay_wgrad=%s",
                 rows[i].asked);
        assert_true(resolve(words, &job));
        assert_int_equal(dtp_lower_set(&job.transformer, &job.cluster, &job.plan, 0, &set, &faults), DTP_OK);
        const struct dtp_program *stage = set.roles[1].program;
        const struct dtp_op *ops = dtp_program_ops(stage);
        for (size_t k = 0; k < dtp_program_op_count(stage); k++) {
            sent += ops[k].kind == DTP_OP_SEND && strcmp(ops[k].name, "gradients") == 0;
            if (is_weight_gradient(&ops[k]))
                (sent > ops[k].micro_step ? behind : before)[ops[k].layer]++;
        }
        assert_int_equal(sent, 3);
        for (uint32_t layer = 0; layer < 4; layer++) {
            assert_int_equal(behind[layer], layer < rows[i].behind ? 3 * 4 : 0);
            assert_int_equal(before[layer], layer < rows[i].behind ? 0 : 3 * 4);
        }
        dtp_program_set_release(&set);
    }
    assert_false(resolve("layers=8 hidden=16 heads=2 ffn=24 vocab=40 seq=8 micro_batch=1 gpus=2 delay_wgrad=1", &job));
    assert_non_null(strstr(faults.text[0], "delay_wgrad: is of stages"));
    for (int kind = 0; kind < DTP_SCHEDULE_COUNT; kind++) {
        const struct dtp_schedule_row *row = dtp_schedule_row((enum dtp_schedule_kind)kind);
        char words[300];
        snprintf(words, sizeof words,
                 "layers=8 hidden=16 heads=2 ffn=24 vocab=40 seq=8 micro_batch=1 gpus=2 pp=2 accumulate=4 schedule=%s "
                 "delay_wgrad=1%s",
                 row->word, row->chunks ? "" : " virtual_stages=2");
        if (!(dtp_runtime_find("dtplan")->schedules & 1u << kind))
            continue;
        assert_int_equal(resolve(words, &job), row->backward != DTP_BACKWARD_SPLIT);
        if (row->backward == DTP_BACKWARD_SPLIT)
            assert_non_null(strstr(faults.text[0], "the schedule splits backward itself; leave it out"));
    }
}

/* Refused by name, and why. */
static void test_what_no_stage_runs_is_refused(void **state)
{
    static const struct {
        const char *words, *key;
    } rows[] = {{"strategy=full_shard", "strategy: "},
                {"strategy=zero2", "accumulate: "},
                {"strategy=zero1 gather_engine=copy", "gather_engine: "},
                {"strategy=zero1 symmetric_windows=true", "symmetric_windows: "},
                {"gradient_stream=true", "gradient_stream: "},
                {"cuda_graph=true", "cuda_graph: "},
                {"strategy=zero1 offload=optimizer", "offload: "}};
    static struct dtp_job job;
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char words[400];
        snprintf(words, sizeof words,
                 "layers=4 hidden=16 heads=2 ffn=24 vocab=40 seq=8 micro_batch=1 gpus=4 pp=2 accumulate=4 %s",
                 rows[i].words);
        assert_false(resolve(words, &job));
        bool named = false;
        for (size_t k = 0; k < faults.count && k < DTP_FAULTS_KEPT; k++)
            named |= strstr(faults.text[k], rows[i].key) != NULL;
        if (!named)
            fail_msg("%s: %s", words, faults.text[0]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_stages_are_proved),
                                       cmocka_unit_test(test_weights_wait_for_what_is_sent),
                                       cmocka_unit_test(test_what_no_stage_runs_is_refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
