/* Megatron-Core's layers of experts: in 8 bits, with latent attention, behind dense layers; programs against the closed
 * form over random plans, bytes and casts by hand. */
#include "closed/closed_form.h"
#include "closed/activations.h"
#include "cost/op_cost.h"
#include "lower/lower.h"
#include "net/layer_kind.h"
#include "plan/fp8_casts.h"
#include "plan/layer_tensors.h"
#include "plan/slice.h"
#include "program/verify.h"
#include "runtime/runtimes.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "lib/random_mixed.h"

static struct dtp_faults faults;

static struct dtp_plan asked(void)
{
    struct dtp_plan plan = dtp_plan_default();
    plan.runtime = &dtp_runtime_megatron, plan.strategy = DTP_ZERO1;
    plan.sequence = 128, plan.micro_batch = 2;
    return plan;
}

static void resolve(struct dtp_plan *plan, const struct dtp_transformer *t, const struct dtp_cluster *cluster)
{
    memset(&faults, 0, sizeof faults);
    if (dtp_plan_resolve(plan, t, cluster, &faults) != DTP_OK)
        fail_msg("%s", faults.text[0]);
}

/* A layer of experts as DeepSeek has them. */
static struct dtp_transformer model(void)
{
    struct dtp_transformer t = dtp_transformer_default();
    t.layers = 3, t.hidden = 256, t.heads = t.kv_heads = 4, t.head_dim = 48, t.vocab = 1000, t.ffn = 768;
    t.rope_head_dim = 16, t.value_head_dim = 32, t.kv_latent = 96, t.q_latent = 128;
    t.experts = 8, t.experts_per_token = 2, t.expert_ffn = 192, t.shared_expert_ffn = 320;
    t.dense_layers = 1;
    return t;
}

static void check(const struct random_job *job)
{
    struct dtp_program *program;
    struct dtp_program_totals totals;
    struct dtp_communication closed;
    assert_int_equal(dtp_lower(&job->transformer, &job->cluster, &job->plan, 0, &program, &faults), DTP_OK);
    dtp_program_sum(program, &totals);
    dtp_closed_form_communication(&job->transformer, &job->cluster, &job->plan, &closed);
    for (int i = 0; i < DTP_COLLECTIVE_COUNT; i++) {
        assert_true(totals.sent_bytes[i] == closed.bytes[i]);
        assert_true(totals.count[i] == closed.count[i]);
    }
    double flops = dtp_closed_form_hardware_flops(&job->transformer, &job->cluster, &job->plan);
    assert_true(fabs((totals.matmul_flops + totals.attention_flops) / flops - 1) < 1e-12);
    assert_int_equal(dtp_program_verify(program, &faults), DTP_OK);
    dtp_program_destroy(program);
}

/* Bytes sent, their operations and FLOPs of programs are those of the formulas. */
static void test_random_plans(void **state)
{
    (void)state;
    random_seed();
    int narrow = 0, latent = 0, mixed = 0, divided = 0;
    for (int checked = 0; checked < 200;) {
        struct random_job job = {.cluster = random_cluster(), .transformer = random_mixed_model(1 + random_below(8))};
        job.transformer.expert_layer_step = 0;
        static const enum dtp_fp8_recipe recipes[] = {DTP_FP8_CURRENT, DTP_FP8_DELAYED};
        job.asked = asked();
        job.asked.strategy = random_bool() ? DTP_DDP : DTP_ZERO1;
        job.asked.checkpointing = random_below(3)
                                      ? (random_bool() ? DTP_CHECKPOINT_NONE : DTP_CHECKPOINT_SELECTIVE_ATTENTION)
                                      : DTP_CHECKPOINT_FULL;
        job.asked.accumulate = 1 + (uint32_t)random_below(3);
        job.asked.ep = 1u << random_below(4);
        job.asked.megatron.flex_dispatcher = job.asked.ep > 1 && random_bool();
        if (random_bool()) {
            assert_true(dtp_precision_recipe("fp8-current", &job.asked.precision));
            job.asked.precision.fp8_recipe = recipes[random_below(2)];
        }
        job.plan = job.asked;
        if (dtp_plan_resolve(&job.plan, &job.transformer, &job.cluster, NULL) != DTP_OK)
            continue;
        check(&job);
        checked++;
        narrow += job.plan.precision.compute == DTP_FP8, latent += job.transformer.kv_latent > 0;
        mixed += !dtp_transformer_is_uniform(&job.transformer), divided += job.plan.ep > 1;
    }
    assert_true(narrow > 15 && latent > 15 && mixed > 15 && divided > 15);
}

/* What a token keeps in a layer with experts, bf16: block input 512, its scale 4, norm 1 512; latents 128 and 96 + 16
 * of 2 bytes each, their scales 4 + 4, normed ones 2 (128 + 96); q and k 4 x 48 x 2 each, v 4 x 32 x 2, the result as
 * much, its log-sum-exp 16; residual 512, its scale 4, norm 2 512; the router's weights 8 x 4, three whole numbers, the
 * weight and what it was for each of 2 experts, 64; rows 2 x 512, gate and up side by side 2 x 768, their product 2 x
 * 384; shared gate and up 1280, product 640. What was projected up of kv is not kept: keys and values are tensors of
 * their own. */
static void test_saved_bytes(void **state)
{
    (void)state;
    struct dtp_cluster cluster = test_cluster(test_h200(), 8, 8);
    struct dtp_transformer t = model(), slice;
    struct dtp_plan plan = asked();
    struct dtp_layer_tensors tensors;
    resolve(&plan, &t, &cluster);
    slice = dtp_plan_slice(&t, &plan);
    dtp_layer_tensors_of(&slice, DTP_LAYER_EXPERTS, &cluster, &plan, &tensors);
    uint64_t attention = 2 * (128 + 112) + 4 + 4 + 2 * (128 + 96) + 2 * 384 + 2 * 256 + 16;
    uint64_t experts = 8 * 4 + 64 + 2 * 512 + 2 * 768 + 2 * 384 + 1280 + 640;
    assert_int_equal(dtp_layer_tensors_bytes(&tensors, tensors.saved),
                     (512 + 4 + 512) + attention + (512 + 4 + 512) + experts);

    /* In 8 bits of a scale a tensor: norm 1 is cast for both matrices to latents, 2 x 256, normed latents 224; the
     * result is cast for the output matrix, 128, beside what attention keeps of it; norm 2 stays for the router, with
     * shared experts' cast 256; rows 512, products 2 x 192 and 320. */
    assert_true(dtp_precision_recipe("fp8-current", &plan.precision));
    resolve(&plan, &t, &cluster);
    dtp_layer_tensors_of(&slice, DTP_LAYER_EXPERTS, &cluster, &plan, &tensors);
    attention = 2 * (128 + 112) + 4 + 4 + (128 + 96) + 2 * 384 + 2 * 256 + 128 + 16;
    experts = 8 * 4 + 64 + 512 + 2 * 768 + 2 * 192 + 1280 + 320;
    assert_int_equal(dtp_layer_tensors_bytes(&tensors, tensors.saved),
                     (512 + 4 + 512) + attention + (512 + 4 + 512 + 256) + experts);
}

static uint32_t casts_of(const struct dtp_program *program, const char *name, double *bytes)
{
    uint32_t count = 0;
    *bytes = 0;
    for (size_t i = 0; i < dtp_program_op_count(program); i++) {
        const struct dtp_op *op = &dtp_program_ops(program)[i];
        if (op->kind != DTP_OP_QUANTIZE || strcmp(op->name, name) != 0)
            continue;
        count++;
        *bytes += op->demand->bytes;
    }
    return count;
}

/* A scale a tensor of this step, on Hopper: 2 bytes read for the largest element, 2 for the cast, rows and columns of a
 * byte written, 6 in all. Of the experts' down matrices a micro-step casts 512 rows of 192, then their gradients, 512
 * of 256, and once a step 8 matrices of 256 x 192. The router's matmuls stay in 16 bits. */
static void test_casts(void **state)
{
    (void)state;
    struct dtp_cluster cluster = test_cluster(test_h200(), 1, 1);
    struct dtp_transformer t = model();
    struct dtp_plan plan = asked();
    struct dtp_program *program;
    double bytes;
    t.layers = 2, t.dense_layers = 1;
    assert_true(dtp_precision_recipe("fp8-current", &plan.precision));
    plan.accumulate = 2;
    resolve(&plan, &t, &cluster);
    assert_int_equal(dtp_lower(&t, &cluster, &plan, 0, &program, &faults), DTP_OK);
    double experts = 6.0 * (2 * (512 * 192 + 512 * 256) + 8 * 256 * 192);
    double dense = 6.0 * (2 * (256 * 768 + 256 * 256) + 256 * 768);
    assert_int_equal(casts_of(program, "down", &bytes), 2 * (2 * 2 + 1));
    assert_true(fabs(bytes - experts - dense) < 1);
    assert_int_equal(casts_of(program, "router", &bytes), 0);
    for (size_t i = 0; i < dtp_program_op_count(program); i++) {
        const struct dtp_op *op = &dtp_program_ops(program)[i];
        if (op->kind == DTP_OP_MATMUL && strcmp(op->name, "router") == 0)
            assert_int_equal(op->demand->dtype, DTP_BF16);
        if (op->kind == DTP_OP_GROUPED_MATMUL)
            assert_int_equal(op->demand->dtype, DTP_FP8);
    }
    dtp_program_destroy(program);
}

/* Fewer bits multiply faster, block scales no faster than a scale a tensor, each expert's matrix is read once. */
static void test_grouped_price(void **state)
{
    (void)state;
    struct dtp_gpu gpu = test_h200();
    double wide = dtp_grouped_matmul_s(&gpu, DTP_BF16, DTP_FP8_NONE, DTP_PRODUCT_FORWARD, 8, 4096, 2048, 7168);
    double tensor = dtp_grouped_matmul_s(&gpu, DTP_FP8, DTP_FP8_CURRENT, DTP_PRODUCT_FORWARD, 8, 4096, 2048, 7168);
    double block = dtp_grouped_matmul_s(&gpu, DTP_FP8, DTP_FP8_BLOCKWISE, DTP_PRODUCT_FORWARD, 8, 4096, 2048, 7168);
    assert_true(tensor < wide && tensor > wide / 2.2 && block >= tensor && block < wide);
    /* of one row each: the matrices' 8 x 2048 x 7168 bytes */
    double few = dtp_grouped_matmul_s(&gpu, DTP_FP8, DTP_FP8_CURRENT, DTP_PRODUCT_FORWARD, 8, 1, 2048, 7168);
    assert_true(few > 8.0 * 2048 * 7168 / gpu.memory_bytes_per_s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_plans),
        cmocka_unit_test(test_saved_bytes),
        cmocka_unit_test(test_casts),
        cmocka_unit_test(test_grouped_price),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
