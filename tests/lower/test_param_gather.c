/* Megatron-Core's weights that are casts alone (fp8_param_gather), and what its precision-aware optimizer keeps: bytes
 * by hand; programs against formulas over random plans. */
#include "closed/closed_form.h"
#include "lower/lower.h"
#include "plan/rules.h"
#include "program/verify.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "lib/lowered_job.h"
#include "lib/megatron_narrow.h"
#include "lib/random_mixed.h"

static struct dtp_faults faults;

/* Matrices of a layer: q, k, v and o 64 x 64 each, three of the MLP 64 x 256 = 65,536. Norms: two of 64 a layer and one
 * of 64 behind all. Embedding and head: 64 x 1,024 each. */
#define LAYERS 6u
#define NARROW (LAYERS * 65536u)
#define WIDE (LAYERS * 128u + 64u + 2 * 65536u)

static struct dtp_program *lowered(const struct dtp_cluster *cluster, struct dtp_plan *plan)
{
    struct dtp_transformer t = small_model(LAYERS);
    resolve_plan(plan, &t, cluster);
    struct dtp_program *program = lowered_job(&t, cluster, plan);
    assert_int_equal(dtp_program_verify(program, &faults), DTP_OK);
    return program;
}

static uint64_t bytes_of(const struct dtp_program *program, const char *name)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < dtp_program_buffer_count(program); i++) {
        const struct dtp_buffer *b = &dtp_program_buffers(program)[i];
        bytes += strcmp(b->name, name) == 0 ? b->bytes : 0;
    }
    return bytes;
}

/* In 16 bits stays what is no matrix of a layer. Casts of a tensor's scale on Hopper are rows and columns, 1 byte each,
 * on Blackwell rows; of MXFP8 rows and columns, 33/32 of a byte each. On the wire rows of 1 byte, but of MXFP8 16 bits.
 */
static void test_kept_and_sent(void **state)
{
    (void)state;
    static const struct {
        const char *precision;
        bool blackwell;
        uint64_t casts, wire; /* of an element: of 32, bytes */
    } rows[] = {{"fp8-current", false, 64, 1},
                {"fp8-current", true, 32, 1},
                {"fp8-delayed", false, 64, 1},
                {"mxfp8", true, 66, 2}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct dtp_cluster cluster = test_cluster(test_h200(), 8, 8);
        if (rows[i].blackwell)
            cluster.gpu.architecture = DTP_GPU_BLACKWELL;
        for (int gathers = 0; gathers < 2; gathers++)
            for (int overlap = 0; overlap < 2; overlap++) {
                struct dtp_plan plan = megatron_plan(rows[i].precision, DTP_ZERO1);
                plan.megatron.fp8_param_gather = gathers, plan.megatron.overlap = overlap;
                struct dtp_program *program = lowered(&cluster, &plan);
                uint64_t casts = NARROW / 32 * rows[i].casts;
                assert_int_equal(bytes_of(program, "params"), 2 * WIDE + (gathers ? casts : 2 * NARROW));
                assert_int_equal(bytes_of(program, "fp8 weights"), gathers ? 0 : casts);
                uint64_t wire = 2 * WIDE + (gathers ? rows[i].wire : 2) * NARROW;
                assert_true(moved_by(program, DTP_OP_ALL_GATHER) == (double)wire);
                dtp_program_destroy(program);
            }
    }
}

/* Weights that came as casts are not cast again: on Hopper columns are made of rows, 1 byte read and 1 written, where a
 * pass for the largest, a read and two casts were 2 + 2 + 2. */
static void test_cast(void **state)
{
    (void)state;
    struct dtp_cluster cluster = test_cluster(test_h200(), 8, 8);
    double bytes[2];
    for (int gathers = 0; gathers < 2; gathers++) {
        struct dtp_plan plan = megatron_plan("fp8-current", DTP_ZERO1);
        plan.megatron.fp8_param_gather = gathers;
        struct dtp_program *program = lowered(&cluster, &plan);
        bytes[gathers] = moved_by(program, DTP_OP_QUANTIZE);
        dtp_program_destroy(program);
    }
    assert_true(bytes[0] - bytes[1] == 4.0 * NARROW);
}

/* Of each of 8 ranks' elements: master and two moments of 4 bytes; a precision-aware optimizer keeps beside bf16
 * weights 2 bytes of the master, beside MXFP8 ones all of it; moments of 2 bytes each where they are bf16. */
static void test_optimizer(void **state)
{
    (void)state;
    static const struct {
        const char *precision;
        bool aware, narrow;
        uint64_t bytes;
    } rows[] = {{"bf16-mixed", false, false, 12}, {"bf16-mixed", true, false, 10}, {"bf16-mixed", true, true, 6},
                {"fp8-delayed", true, true, 6},   {"mxfp8", true, false, 12},      {"mxfp8", true, true, 8}};
    struct dtp_cluster cluster = test_cluster(test_h200(), 8, 8);
    cluster.gpu.architecture = DTP_GPU_BLACKWELL;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct dtp_plan plan = megatron_plan(rows[i].precision, DTP_ZERO1);
        plan.megatron.precision_aware = rows[i].aware;
        if (rows[i].narrow)
            plan.precision.moments = DTP_BF16;
        struct dtp_program *program = lowered(&cluster, &plan);
        assert_int_equal(bytes_of(program, "optimizer state"), rows[i].bytes * (WIDE + NARROW) / 8);
        dtp_program_destroy(program);
    }
}

/* FLOPs and bytes sent are those of the formulas; miniatures' bytes those of the whole. */
static void test_random_plans(void **state)
{
    (void)state;
    random_seed();
    static const char *const recipes[] = {"fp8-current", "fp8-blockwise", "fp8-delayed", "mxfp8"};
    int deep = 0, experts = 0;
    for (int checked = 0; checked < 100;) {
        struct random_job job = {.cluster = test_cluster(test_h200(), 8, 8),
                                 .transformer = random_mixed_model(2 + random_below(40))};
        struct dtp_transformer *t = &job.transformer;
        t->expert_layer_step = 0, t->mtp_layers = t->activation == DTP_SWIGLU_CLAMPED ? 0 : random_below(2);
        if (random_bool())
            *t = dtp_transformer_all_alike(t, false), t->activation = DTP_SWIGLU;
        *t = dtp_transformer_trained(t);
        uint64_t recipe = random_below(4);
        job.plan = megatron_plan(recipes[recipe], DTP_ZERO1);
        if (recipe == 3)
            job.cluster.gpu.architecture = DTP_GPU_BLACKWELL;
        job.plan.accumulate = 1 + (uint32_t)random_below(4);
        job.plan.ep = t->experts ? 1u << random_below(3) : 1;
        job.plan.megatron.overlap = random_bool();
        job.plan.megatron.fp8_param_gather = true;
        job.plan.megatron.precision_aware = random_bool();
        if (job.plan.megatron.precision_aware && random_bool())
            job.plan.precision.moments = DTP_BF16;
        if (dtp_plan_resolve(&job.plan, t, &job.cluster, NULL) != DTP_OK)
            continue;
        struct dtp_program *program = lowered_job(t, &job.cluster, &job.plan);
        assert_int_equal(dtp_program_verify(program, &faults), DTP_OK);
        deep += assert_told(program, t, &job.cluster, &job.plan) > 0;
        dtp_program_destroy(program);
        checked++, experts += t->experts > 0;
    }
    assert_true(deep > 5 && experts > 15);
}

static void assert_refused(struct dtp_plan plan, const struct dtp_transformer *t, const char *words)
{
    struct dtp_cluster cluster = test_cluster(test_h200(), 8, 8);
    memset(&faults, 0, sizeof faults);
    assert_int_equal(dtp_plan_resolve(&plan, t, &cluster, &faults), DTP_BAD_INPUT);
    if (!strstr(faults.text[0], words))
        fail_msg("%s: %s", words, faults.text[0]);
}

static void test_refused(void **state)
{
    (void)state;
    struct dtp_transformer t = small_model(LAYERS);
    struct dtp_plan plan = megatron_plan("bf16-mixed", DTP_ZERO1);
    plan.megatron.fp8_param_gather = true;
    assert_refused(plan, &t, "fp8_param_gather: is of recipes of 8 bits");
    plan = megatron_plan("fp8-current", DTP_ZERO1), plan.megatron.fp8_param_gather = true, plan.strategy = DTP_DDP;
    assert_refused(plan, &t, "fp8_param_gather: is of the distributed optimizer");
    plan.strategy = DTP_ZERO1, plan.megatron.bf16_last = 1;
    assert_refused(plan, &t, "leave out bf16_last_layers");
    plan = megatron_plan("bf16-mixed", DTP_ZERO1), plan.megatron.precision_aware = true, plan.strategy = DTP_DDP;
    assert_refused(plan, &t, "precision_aware_optimizer: is of the distributed optimizer");
    plan.strategy = DTP_ZERO1, plan.optimizer = DTP_SGD;
    assert_refused(plan, &t, "precision_aware_optimizer: is Adam's");
    plan = megatron_plan("bf16-mixed", DTP_ZERO1), plan.precision.moments = DTP_BF16;
    assert_refused(plan, &t, "moment_dtype: runtime megatron keeps moments in fp32");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_kept_and_sent), cmocka_unit_test(test_cast),
                                       cmocka_unit_test(test_optimizer), cmocka_unit_test(test_random_plans),
                                       cmocka_unit_test(test_refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
