/* Layers that stay in bf16 at both ends of a model whose others run in 8 bits, as Megatron-Core's
 * first_last_layers_bf16 has them: what they keep and cast by hand; programs against formulas over random plans. */
#include "closed/closed_form.h"
#include "lower/lower.h"
#include "lower/lower_set.h"
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

static struct dtp_program *lowered(const struct dtp_transformer *t, const struct dtp_cluster *cluster,
                                   struct dtp_plan *plan)
{
    resolve_plan(plan, t, cluster);
    return lowered_job(t, cluster, plan);
}

/* Operations of a kind at a layer, and of matmuls those in 8 bits. */
static int count_ops(const struct dtp_program *program, enum dtp_op_kind kind, uint64_t layer, bool narrow)
{
    int count = 0;
    for (size_t i = 0; i < dtp_program_op_count(program); i++) {
        const struct dtp_op *op = &dtp_program_ops(program)[i];
        bool of_kind = op->kind == kind && op->layer == layer;
        count += of_kind && (!narrow || op->demand->dtype == DTP_FP8);
    }
    return count;
}

/* Layers 0, 1 and 5 cast nothing and multiply in bf16; the others' four linears have three products each in 8 bits. */
static void test_which(void **state)
{
    (void)state;
    struct dtp_cluster cluster = test_cluster(test_h200(), 8, 8);
    struct dtp_transformer t = small_model(6);
    struct dtp_plan plan = megatron_plan("fp8-current", DTP_DDP);
    plan.megatron.bf16_first = 2, plan.megatron.bf16_last = 1;
    struct dtp_program *program = lowered(&t, &cluster, &plan);
    for (uint64_t layer = 0; layer < t.layers; layer++) {
        bool wide = layer < 2 || layer == 5;
        assert_int_equal(dtp_plan_layer_is_wide(&plan, &t, layer), wide);
        assert_int_equal(count_ops(program, DTP_OP_MATMUL, layer, false), 12);
        assert_int_equal(count_ops(program, DTP_OP_MATMUL, layer, true), wide ? 0 : 12);
        assert_int_equal(count_ops(program, DTP_OP_QUANTIZE, layer, false) > 0, !wide);
    }
    assert_int_equal(dtp_plan_wide_layers(&plan, &t, 0, t.layers), 3);
    assert_int_equal(dtp_program_verify(program, &faults), DTP_OK);
    dtp_program_destroy(program);
}

/* Of a token a layer in 8 bits keeps casts of what its four linears read, 1 byte each: two norms 64, attention's result
 * 64 beside the one that attention itself keeps, the product 256 = 448. In bf16 norms are 128 each, the product 512,
 * and attention's own result is what the linear reads: 768, 320 more. Casts of weights stand for three layers, not six.
 */
static void test_kept(void **state)
{
    (void)state;
    struct dtp_cluster cluster = test_cluster(test_h200(), 1, 1);
    struct dtp_transformer t = small_model(6);
    struct dtp_live_bytes live[2];
    uint64_t standing[2] = {0, 0};
    for (int i = 0; i < 2; i++) {
        struct dtp_plan plan = megatron_plan("fp8-current", DTP_DDP);
        plan.megatron.bf16_first = i ? 2 : 0, plan.megatron.bf16_last = i ? 1 : 0;
        struct dtp_program *program = lowered(&t, &cluster, &plan);
        live_bytes_of(program, t.layers, &live[i]);
        for (size_t k = 0; k < dtp_program_buffer_count(program); k++) {
            const struct dtp_buffer *b = &dtp_program_buffers(program)[k];
            standing[i] += strcmp(b->name, "fp8 weights") == 0 ? b->bytes : 0;
        }
        dtp_program_destroy(program);
    }
    uint64_t more = live[1].phase_bytes[DTP_PHASE_LOSS][DTP_OWNER_ACTIVATIONS] -
                    live[0].phase_bytes[DTP_PHASE_LOSS][DTP_OWNER_ACTIVATIONS];
    assert_int_equal(more, 3 * 256 * 320);
    assert_int_equal(standing[1] * 2, standing[0]);
    assert_true(standing[0] >= 6 * 65536);
}

/* FLOPs and bytes sent are those of the formulas, and of a plan without; miniatures' bytes those of the whole. */
static void test_random_plans(void **state)
{
    (void)state;
    random_seed();
    static const char *const recipes[] = {"fp8-current", "fp8-blockwise"};
    int deep = 0, experts = 0;
    for (int checked = 0; checked < 100;) {
        struct random_job job = {.cluster = test_cluster(test_h200(), 8, 8),
                                 .transformer = random_mixed_model(2 + random_below(40))};
        struct dtp_transformer *t = &job.transformer;
        t->expert_layer_step = 0, t->mtp_layers = t->activation == DTP_SWIGLU_CLAMPED ? 0 : random_below(2);
        if (random_bool())
            *t = dtp_transformer_all_alike(t, false), t->activation = DTP_SWIGLU;
        *t = dtp_transformer_trained(t);
        job.plan = megatron_plan(recipes[random_below(2)], DTP_DDP);
        job.plan.strategy = random_bool() ? DTP_DDP : DTP_ZERO1;
        job.plan.accumulate = 1 + (uint32_t)random_below(4);
        job.plan.ep = t->experts ? 1u << random_below(3) : 1;
        job.plan.megatron.bf16_first = (uint32_t)random_below(4),
        job.plan.megatron.bf16_last = (uint32_t)random_below(3);
        if (dtp_plan_resolve(&job.plan, t, &job.cluster, NULL) != DTP_OK)
            continue;
        struct dtp_program *program = lowered_job(t, &job.cluster, &job.plan);
        deep += assert_told(program, t, &job.cluster, &job.plan) > 0;
        dtp_program_destroy(program);
        checked++, experts += t->experts > 0;
    }
    assert_true(deep > 5 && experts > 15);
}

/* Counted over the model: of four stages the first and the last have one such layer each. */
static void test_stages(void **state)
{
    (void)state;
    struct dtp_cluster cluster = test_cluster(test_h200(), 8, 8);
    struct dtp_transformer t = small_model(6);
    struct dtp_plan plan = megatron_plan("fp8-current", DTP_DDP);
    struct dtp_program_set set;
    t.layers = 8, plan.pp = 4, plan.accumulate = 4, plan.megatron.bf16_first = plan.megatron.bf16_last = 1;
    memset(&faults, 0, sizeof faults);
    if (dtp_plan_resolve(&plan, &t, &cluster, &faults) != DTP_OK ||
        dtp_lower_set(&t, &cluster, &plan, 0, &set, &faults) != DTP_OK ||
        dtp_program_set_verify(&set, DTP_ISSUE_STREAMS, &faults) != DTP_OK)
        fail_msg("%s", faults.text[0]);
    for (uint32_t rank = 0; rank < 4; rank++)
        for (uint64_t layer = 0; layer < 2; layer++) {
            bool wide = (rank == 0 && layer == 0) || (rank == 3 && layer == 1);
            assert_int_equal(count_ops(set.roles[rank].program, DTP_OP_MATMUL, layer, true), wide ? 0 : 4 * 12);
        }
    dtp_program_set_release(&set);
}

static void test_refused(void **state)
{
    (void)state;
    static const struct {
        const char *precision;
        uint32_t first, last;
        const char *words;
    } rows[] = {{"bf16-mixed", 1, 0, "of recipes of fewer than 16 bits"},
                {"fp8-delayed", 1, 1, "delayed scaling"},
                {"fp8-current", 3, 3, "leave none of 6 layers"}};
    struct dtp_cluster cluster = test_cluster(test_h200(), 8, 8);
    struct dtp_transformer t = small_model(6);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct dtp_plan plan = megatron_plan(rows[i].precision, DTP_DDP);
        plan.megatron.bf16_first = rows[i].first, plan.megatron.bf16_last = rows[i].last;
        memset(&faults, 0, sizeof faults);
        assert_int_equal(dtp_plan_resolve(&plan, &t, &cluster, &faults), DTP_BAD_INPUT);
        if (!strstr(faults.text[0], rows[i].words))
            fail_msg("%s: %s", rows[i].words, faults.text[0]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_which), cmocka_unit_test(test_kept),
                                       cmocka_unit_test(test_random_plans), cmocka_unit_test(test_stages),
                                       cmocka_unit_test(test_refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
