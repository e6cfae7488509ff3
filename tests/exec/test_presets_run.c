/* Which shipped models our executor runs, and why not the others: tests/golden/presets_run.txt has a line for each,
 * which is rewritten under DTPLAN_UPDATE=1. Those that run do so here, for three steps on the host's cores, cut to the
 * layers that hold each kind of theirs and to narrow rows: what kinds of operators they have stays. */
#include "lower/lower.h"
#include "plan/plan.h"
#include "runtime/dtplan/lower_executor.h"
#include "runtime/runtimes.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <cmocka.h>

#include "lib/hardware.h"
#include "lib/run_fixture.h"
#include "lib/shipped_catalog.h"

#define LISTED TEST_SOURCE_DIR "/tests/golden/presets_run.txt"

/* The first reasons of a plan on one GPU; "runs": none. */
static void write_line(FILE *file, const struct dtp_transformer *t)
{
    struct dtp_cluster cluster = test_cluster(test_h200(), 1, 1);
    struct dtp_plan plan = dtp_plan_default();
    struct dtp_faults faults = {0};
    plan.runtime = &dtp_runtime_dtplan;
    plan.strategy = DTP_DDP, plan.sequence = 128;
    enum dtp_status status = dtp_plan_resolve(&plan, t, &cluster, &faults);
    if (status == DTP_OK)
        status = dtp_executor_check(t, &cluster, &plan, &faults);
    fprintf(file, "%s:", t->name);
    if (status == DTP_OK)
        fprintf(file, " runs");
    for (size_t i = 0; i < faults.count; i++)
        fprintf(file, "%s %s", i ? ";" : "", faults.text[i]);
    fprintf(file, "\n");
}

static void test_which_run_is_listed(void **state)
{
    (void)state;
    char *text = NULL, *listed;
    size_t bytes;
    FILE *file = open_memstream(&text, &bytes);
    assert_non_null(file);
    for (size_t i = 0; i < catalog.model_count; i++)
        write_line(file, &catalog.models[i]);
    fclose(file);
    if (getenv("DTPLAN_UPDATE")) {
        file = fopen(LISTED, "w");
        assert_non_null(file);
        assert_int_equal(fwrite(text, 1, bytes, file), bytes);
        fclose(file);
    }
    file = fopen(LISTED, "r");
    assert_non_null(file);
    listed = calloc(bytes + 2, 1);
    assert_non_null(listed);
    size_t read = fread(listed, 1, bytes + 1, file);
    fclose(file);
    if (read != bytes || memcmp(listed, text, bytes))
        fail_msg("%s is behind what the executor runs: DTPLAN_UPDATE=1 ./test.sh -R presets_run", LISTED);
    free(listed);
    free(text);
}

/* Two periods of layers at most, rows of a few dozen numbers, as many heads of k and v for one of q as it has. */
static struct dtp_transformer cut(const struct dtp_transformer *of)
{
    struct dtp_transformer t = *of;
    uint64_t period = t.sliding_window_pattern > 2 ? t.sliding_window_pattern : 2;
    uint64_t shared = t.heads / t.kv_heads > 4 ? 4 : t.heads / t.kv_heads;
    t.layers = t.layers < period ? t.layers : period;
    t.kv_heads = t.kv_heads > 2 ? 2 : t.kv_heads;
    t.heads = t.kv_heads * shared;
    t.head_dim = t.head_dim > 16 ? 16 : t.head_dim;
    if (t.kv_latent) { /* keys of 16 and 8 that rope turns, values narrower than both */
        t.head_dim = 24, t.rope_head_dim = 8, t.value_head_dim = 16;
        t.kv_latent = 24, t.q_latent = t.q_latent ? 32 : 0;
    }
    t.hidden = of->hidden == of->heads * of->head_dim ? t.heads * t.head_dim : 48;
    t.ffn = 72, t.vocab = 131;
    t.dense_layers = t.dense_layers > 1 ? 1 : t.dense_layers;
    t.experts = t.experts > 12 ? 12 : t.experts; /* of which a token goes to as many as it does, up to four */
    t.experts_per_token = t.experts_per_token > 4 ? 4 : t.experts_per_token;
    if (t.expert_groups) /* of 3 experts each */
        t.expert_groups = 4, t.groups_per_token = 2;
    t.expert_ffn = t.experts ? 24 : 0;
    t.shared_expert_ffn = t.shared_expert_ffn ? 40 : 0;
    t.positions = t.positions ? 64 : 0;
    t.sliding_window = !t.sliding_window ? 0 : t.chunked_attention ? 16 : 24;
    return t;
}

static void test_those_that_run_do(void **state)
{
    (void)state;
    struct dtp_settings settings = run_settings(3, 1e-3);
    int ran = 0;
    for (size_t i = 0; i < catalog.model_count; i++) {
        static struct dtp_job job;
        struct dtp_faults faults = {0};
        struct run_result result = {0};
        char *events = NULL;
        size_t bytes;
        run_job("layers=2 hidden=16 heads=2 head_dim=8 ffn=40 vocab=50 seq=64 micro_batch=1 precision=fp32", &job);
        job.transformer = cut(&catalog.models[i]);
        if (dtp_plan_resolve(&job.plan, &catalog.models[i], &job.cluster, NULL) != DTP_OK ||
            dtp_executor_check(&catalog.models[i], &job.cluster, &job.plan, NULL) != DTP_OK)
            continue;
        FILE *file = open_memstream(&events, &bytes);
        assert_non_null(file);
        struct dtp_train_job train = {.job = &job, .settings = &settings, .events = file};
        result.status = dtp_train(&train, &faults);
        fclose(file);
        run_read(events, &result);
        free(events);
        if (result.status != DTP_OK || result.steps != 3)
            fail_msg("%s: %s", catalog.models[i].name, faults.count ? faults.text[0] : "fewer steps than asked for");
        for (size_t step = 0; step < 3; step++)
            if (!(result.loss[step] > 2 && result.loss[step] < 12 && result.gradient_norm[step] > 0))
                fail_msg("%s, step %zu: loss %g, norm %g", catalog.models[i].name, step + 1, result.loss[step],
                         result.gradient_norm[step]);
        ran++;
    }
    print_message("%d of %zu shipped models run\n", ran, catalog.model_count);
    assert_true(ran > 100);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_which_run_is_listed),
                                       cmocka_unit_test(test_those_that_run_do)};
    return cmocka_run_group_tests(tests, load_catalog, drop_catalog);
}
