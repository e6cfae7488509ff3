/* Megatron-Core's layers of experts: in 8 bits, with latent attention, behind dense layers; programs against the closed
 * form over random plans, bytes and casts by hand. */
#include "closed/closed_form.h"
#include "closed/activations.h"
#include "cost/grouped_matmul.h"
#include "lower/lower.h"
#include "net/layer_kind.h"
#include "plan/fp8_casts.h"
#include "plan/graph_modules.h"
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
    if (fabs((totals.matmul_flops + totals.attention_flops) / flops - 1) >= 1e-12) {
        char text[DTP_RECOMPUTE_BYTES];
        dtp_recompute_text(job->plan.megatron.recompute, text);
        fail_msg("recompute %s, latent %d, shared %d, dense %d, fp8 %d, ep %u, overlap %d, capacity %g, padded %d: the "
                 "program computes %.17g, formulas %.17g",
                 text, job->transformer.kv_latent > 0, job->transformer.shared_expert_ffn > 0,
                 (int)job->transformer.dense_layers, job->plan.precision.compute == DTP_FP8, job->plan.ep,
                 job->plan.megatron.shared_overlap, job->plan.megatron.capacity_factor,
                 job->plan.megatron.pad_to_capacity, totals.matmul_flops + totals.attention_flops, flops);
    }
    assert_int_equal(dtp_program_verify(program, &faults), DTP_OK);
    dtp_program_destroy(program);
}

/* Bytes sent, their operations and FLOPs of programs are those of the formulas. */
static void test_random_plans(void **state)
{
    (void)state;
    random_seed();
    int narrow = 0, latent = 0, mixed = 0, divided = 0, parts = 0, fused = 0;
    for (int checked = 0; checked < 200;) {
        struct random_job job = {.cluster = random_cluster(), .transformer = random_mixed_model(1 + random_below(8))};
        job.transformer.expert_layer_step = 0;
        static const enum dtp_fp8_recipe recipes[] = {DTP_FP8_CURRENT, DTP_FP8_DELAYED};
        job.asked = asked();
        job.asked.strategy = random_bool() ? DTP_DDP : DTP_ZERO1;
        job.asked.checkpointing = random_below(3)
                                      ? (random_bool() ? DTP_CHECKPOINT_NONE : DTP_CHECKPOINT_SELECTIVE_ATTENTION)
                                      : DTP_CHECKPOINT_FULL;
        if (job.asked.checkpointing == DTP_CHECKPOINT_NONE && random_bool())
            job.asked.megatron.recompute = 1 + (uint32_t)random_below((1u << DTP_RECOMPUTE_COUNT) - 1);
        job.asked.accumulate = 1 + (uint32_t)random_below(3);
        job.asked.ep = 1u << random_below(4);
        job.asked.megatron.flex_dispatcher = job.asked.ep > 1 && random_bool();
        job.asked.megatron.expert_overlap = job.asked.ep > 1 && random_bool();
        job.asked.megatron.unfused_permute = !job.asked.megatron.flex_dispatcher && random_bool();
        job.asked.megatron.unfused_rope = job.transformer.position == DTP_POSITION_ROPE && random_bool();
        job.asked.megatron.capacity_factor = random_bool() ? 0 : 1.25;
        job.asked.megatron.pad_to_capacity =
            job.asked.megatron.capacity_factor > 0 && !job.asked.megatron.flex_dispatcher && random_bool();
        job.asked.megatron.shared_overlap = job.transformer.shared_expert_ffn > 0 && job.asked.ep > 1 &&
                                            !job.asked.megatron.flex_dispatcher && !job.asked.megatron.expert_overlap &&
                                            random_bool();
        bool whole_rows = job.asked.ep > 1 && !job.asked.megatron.flex_dispatcher && !job.asked.megatron.expert_overlap;
        job.asked.megatron.etp = whole_rows && random_bool() ? 2 : 1;
        if (random_bool()) {
            assert_true(dtp_precision_recipe("fp8-current", &job.asked.precision));
            job.asked.precision.fp8_recipe = recipes[random_below(2)];
        } else if (random_bool()) {
            assert_true(dtp_precision_recipe("mxfp8", &job.asked.precision));
            job.cluster.gpu.architecture = DTP_GPU_BLACKWELL;
            job.asked.megatron.graphs = random_bool() ? 1u << DTP_GRAPH_FULL_ITERATION : 0;
            job.asked.megatron.fp8_attention = random_bool();
            job.asked.megatron.fp8_head = !job.transformer.tied_head && random_bool();
        }
        job.asked.megatron.fp8_param_gather =
            job.asked.precision.compute == DTP_FP8 && job.asked.strategy == DTP_ZERO1 && random_bool();
        job.asked.megatron.precision_aware = job.asked.strategy == DTP_ZERO1 && random_bool();
        job.plan = job.asked;
        if (dtp_plan_resolve(&job.plan, &job.transformer, &job.cluster, NULL) != DTP_OK)
            continue;
        check(&job);
        checked++;
        narrow += job.plan.precision.compute == DTP_FP8, latent += job.transformer.kv_latent > 0;
        parts += job.plan.megatron.recompute != 0, fused += dtp_plan_fuses_experts(&job.plan, &job.cluster);
        mixed += !dtp_transformer_is_uniform(&job.transformer), divided += job.plan.ep > 1;
    }
    assert_true(narrow > 15 && latent > 15 && mixed > 15 && divided > 15 && parts > 10 && fused > 5);
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

/* Bytes of a token that a layer keeps with these parts run again, bf16. */
static uint64_t kept_with(const char *modules, enum dtp_layer_mlp mlp)
{
    struct dtp_cluster cluster = test_cluster(test_h200(), 8, 8);
    struct dtp_transformer t = model(), slice;
    struct dtp_plan plan = asked();
    struct dtp_layer_tensors tensors;
    assert_true(dtp_recompute_parse(modules, &plan.megatron.recompute));
    resolve(&plan, &t, &cluster);
    slice = dtp_plan_slice(&t, &plan);
    dtp_layer_tensors_of(&slice, mlp, &cluster, &plan, &tensors);
    return dtp_layer_tensors_bytes(&tensors, tensors.kept);
}

/* What each part gives back, of the tensors counted above: rows' products; both norms, of which that of attention is a
 * kernel of its own with latents alone; normed latents, q, k and v; the router's, rows, their gates and products and
 * shared experts'; those alone; a dense MLP's norm, gate and up, product. */
static void test_recomputed_parts(void **state)
{
    (void)state;
    static const struct {
        const char *modules;
        uint64_t experts, dense;
    } parts[] = {{"moe_act", 2 * 384, 0},
                 {"layernorm", 512 + 512, 512},
                 {"mla_up_proj", 2 * (128 + 96) + 2 * 384 + 256, 2 * (128 + 96) + 2 * 384 + 256},
                 {"moe", 8 * 4 + 64 + 2 * 512 + 2 * 768 + 2 * 384 + 1280 + 640, 0},
                 {"shared_experts", 1280 + 640, 0},
                 {"mlp", 0, 512 + 2 * 2 * 768 + 2 * 768},
                 {"core_attn", 16, 16},
                 {"layernorm, moe_act", 1024 + 2 * 384, 512}};
    uint64_t all[] = {kept_with("none", DTP_LAYER_DENSE), kept_with("none", DTP_LAYER_EXPERTS)};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        assert_int_equal(all[DTP_LAYER_EXPERTS] - kept_with(parts[i].modules, DTP_LAYER_EXPERTS), parts[i].experts);
        assert_int_equal(all[DTP_LAYER_DENSE] - kept_with(parts[i].modules, DTP_LAYER_DENSE), parts[i].dense);
    }
}

static double again(const char *modules)
{
    struct dtp_cluster cluster = test_cluster(test_h200(), 1, 1);
    struct dtp_transformer t = model();
    struct dtp_plan plan = asked();
    struct dtp_program *program;
    struct dtp_program_totals totals;
    assert_true(dtp_recompute_parse(modules, &plan.megatron.recompute));
    resolve(&plan, &t, &cluster);
    assert_int_equal(dtp_lower(&t, &cluster, &plan, 0, &program, &faults), DTP_OK);
    dtp_program_sum(program, &totals);
    assert_int_equal(dtp_program_verify(program, &faults), DTP_OK);
    dtp_program_destroy(program);
    return totals.recompute_flops / 256; /* of a token */
}

/* Matmuls of each that run again: none of activations and norms; q and kv up, 2 (128 x 192 + 96 (128 + 128)) a layer of
 * 3; in the two layers with experts the router, three matrices of 2 experts and of shared ones; in the one without, its
 * MLP. */
static void test_recomputed_flops(void **state)
{
    (void)state;
    double shared = 2.0 * 2 * 3 * 256 * 320, experts = 2.0 * 2 * (256 * 8 + 2 * 3 * 256 * 192) + shared;
    assert_true(again("moe_act+layernorm") < 1);
    assert_true(fabs(again("mla_up_proj") - 3.0 * 2 * (128 * 192 + 96 * 256)) < 1);
    assert_true(fabs(again("moe") - experts) < 1);
    assert_true(fabs(again("shared_experts") - shared) < 1);
    assert_true(fabs(again("mlp") - 2.0 * 3 * 256 * 768) < 1);
}

/* Bytes and launches of rows to experts and back, of a token of one rank. */
static double permuting(bool unfused, uint32_t *kernels)
{
    struct dtp_cluster cluster = test_cluster(test_h200(), 1, 1);
    struct dtp_transformer t = model();
    struct dtp_plan plan = asked();
    struct dtp_program *program;
    double bytes = 0;
    plan.megatron.unfused_permute = unfused;
    resolve(&plan, &t, &cluster);
    assert_int_equal(dtp_lower(&t, &cluster, &plan, 0, &program, &faults), DTP_OK);
    const struct dtp_op *op = dtp_program_ops(program);
    *kernels = 0;
    for (uint32_t i = 0; i < dtp_program_op_count(program); i++)
        if (op[i].kind == DTP_OP_PERMUTE || op[i].kind == DTP_OP_PERMUTE_BACKWARD || op[i].kind == DTP_OP_UNPERMUTE ||
            op[i].kind == DTP_OP_UNPERMUTE_BACKWARD)
            bytes += op[i].demand->bytes, *kernels += op[i].demand->kernels;
    assert_int_equal(dtp_program_verify(program, &faults), DTP_OK);
    dtp_program_destroy(program);
    return bytes / 256 / 2; /* two layers have experts */
}

/* A row of 256 is 512 bytes, of which a token has 2. Fused, each of four kernels moves 3 rows. Unfused: a map of 8
 * experts turned 16, sorted with places 4 x 72, weights turned 64, places cut, divided and taken by 2 x 48; rows taken
 * by index 4; zeros and a sum by index 5; backward takes 4 and sums 5. */
static void test_unfused_permute(void **state)
{
    (void)state;
    uint32_t one, several;
    double more = permuting(true, &several) - permuting(false, &one);
    assert_true(fabs(more - (16 + 4 * 72 + 64 + 96 + 512 * (4 + 5 + 4 + 5 - 4 * 3))) < 1e-9);
    assert_int_equal(several - one, 2 * (10 + 1 + 1)); /* the sort, and zeros of each sum */
}

/* Bytes of a token and kernels of what turns queries and keys, forward and backward. */
static double turning(bool unfused, bool latents, uint32_t kernels[2])
{
    struct dtp_cluster cluster = test_cluster(test_h200(), 1, 1);
    struct dtp_transformer t = model();
    struct dtp_plan plan = asked();
    struct dtp_program *program;
    double bytes = 0;
    if (!latents)
        t.rope_head_dim = t.value_head_dim = t.kv_latent = t.q_latent = 0;
    plan.megatron.unfused_rope = unfused;
    resolve(&plan, &t, &cluster);
    assert_int_equal(dtp_lower(&t, &cluster, &plan, 0, &program, &faults), DTP_OK);
    kernels[0] = kernels[1] = 0;
    for (uint32_t i = 0; i < dtp_program_op_count(program); i++) {
        const struct dtp_op *op = &dtp_program_ops(program)[i];
        if (op->kind != DTP_OP_ROTARY && op->kind != DTP_OP_ROTARY_BACKWARD)
            continue;
        bytes += op->demand->bytes, kernels[op->kind == DTP_OP_ROTARY_BACKWARD] += op->demand->kernels;
        assert_int_equal(op->demand->issue, unfused ? DTP_ISSUE_LOOPED : DTP_ISSUE_APART);
    }
    assert_int_equal(dtp_program_verify(program, &faults), DTP_OK);
    dtp_program_destroy(program);
    return bytes / 256 / 3;
}

/* A token has 4 heads of 48: 192 elements of queries, as many of keys. Fused, they are read and written, backward with
 * values; by operators read or written 12 and 14 times, two bytes each, and backward put together as before. Of latents
 * 4 x 16 of queries turn and 16 of keys, 14 and 21 times more; the keys' are no longer spread by the kernel that turns
 * them, 2 x (64 - 16) bytes. */
static void test_unfused_rope(void **state)
{
    (void)state;
    uint32_t one[2], several[2];
    double more = turning(true, false, several) - turning(false, false, one);
    assert_true(fabs(more - 2 * (12 + 14 - 2) * 2.0 * 192) < 1e-9);
    assert_true(one[0] == 3 && one[1] == 3 && several[0] == 3 * 2 * 12 && several[1] == 3 * 2 * 7);
    more = turning(true, true, several) - turning(false, true, one);
    assert_true(fabs(more - 2 * ((14 + 21) * (64.0 + 16) + 64 - 16)) < 1e-9);
    assert_true(several[0] - one[0] == 3 * 2 * 13 && several[1] - one[1] == 3 * 2 * 12);
}

static struct dtp_program_totals with_capacity(double factor, bool pads, uint32_t ep, double imbalance)
{
    struct dtp_cluster cluster = test_cluster(test_h200(), ep, ep);
    struct dtp_transformer t = model();
    struct dtp_plan plan = asked();
    struct dtp_program *program;
    struct dtp_program_totals totals;
    plan.ep = ep, plan.expert_imbalance = imbalance;
    plan.megatron.capacity_factor = factor, plan.megatron.pad_to_capacity = pads;
    resolve(&plan, &t, &cluster);
    assert_int_equal(dtp_lower(&t, &cluster, &plan, 0, &program, &faults), DTP_OK);
    dtp_program_sum(program, &totals);
    assert_int_equal(dtp_program_verify(program, &faults), DTP_OK);
    uint32_t waits = 0;
    for (uint32_t i = 0; i < dtp_program_op_count(program); i++)
        waits += dtp_program_ops(program)[i].kind == DTP_OP_HOST_WAIT;
    assert_int_equal(waits, ep > 1 && !pads ? 2 : 0); /* a layer with experts, once */
    dtp_program_destroy(program);
    return totals;
}

/* A capacity of 1.5 that rows are filled up to: half as many rows more of a token's 2, 512 bytes as they came, gate and
 * up side by side 768, their product 384; matmuls of 3 x 256 x 192 of each, forward and twice backward, 256 tokens, two
 * layers. Of 4 ranks each sends 3 of 4 rows there and back, twice; numbers of rows, 8 experts of 8 bytes, are sent
 * where rows are not filled up. The fullest rank of twice the mean receives no more than that capacity. */
static void test_capacity(void **state)
{
    (void)state;
    struct dtp_cluster cluster = test_cluster(test_h200(), 8, 8);
    struct dtp_transformer t = model(), slice;
    struct dtp_plan plan = asked();
    struct dtp_layer_tensors tensors, padded;
    resolve(&plan, &t, &cluster);
    slice = dtp_plan_slice(&t, &plan);
    dtp_layer_tensors_of(&slice, DTP_LAYER_EXPERTS, &cluster, &plan, &tensors);
    plan.megatron.capacity_factor = 1.5, plan.megatron.pad_to_capacity = true;
    dtp_layer_tensors_of(&slice, DTP_LAYER_EXPERTS, &cluster, &plan, &padded);
    assert_int_equal(dtp_layer_tensors_bytes(&padded, padded.saved) - dtp_layer_tensors_bytes(&tensors, tensors.saved),
                     512 + 768 + 384);
    double flops = with_capacity(1.5, true, 1, 1).matmul_flops - with_capacity(0, false, 1, 1).matmul_flops;
    assert_true(fabs(flops / (2.0 * 256 * 3 * 3 * 256 * 192 * 2) - 1) < 1e-12);
    uint64_t rows = 256 * 2 * 512 / 4 * 3, numbers = 64 / 4 * 3;
    struct dtp_program_totals none = with_capacity(0, false, 4, 1), filled = with_capacity(1.5, true, 4, 1),
                              fullest = with_capacity(0, false, 4, 2), cut = with_capacity(1.5, false, 4, 2);
    assert_int_equal(none.sent_bytes[DTP_ALL_TO_ALL], 2 * (4 * rows + numbers));
    assert_int_equal(filled.sent_bytes[DTP_ALL_TO_ALL], 2 * (4 * rows * 3 / 2));
    assert_int_equal(filled.count[DTP_ALL_TO_ALL], 2 * 4);
    assert_int_equal(fullest.sent_bytes[DTP_ALL_TO_ALL], 2 * (4 * rows * 2 + numbers));
    assert_int_equal(cut.sent_bytes[DTP_ALL_TO_ALL], 2 * (4 * rows * 3 / 2 + numbers));
    assert_true(fabs(cut.matmul_flops / filled.matmul_flops - 1) < 1e-12);
}

/* Of each exchange of rows the work that stands behind it and does not wait for it: to experts first projection and
 * activation, back the second, forward and backward, in two layers. */
static void test_shared_overlap(void **state)
{
    (void)state;
    struct dtp_cluster cluster = test_cluster(test_h200(), 8, 8);
    struct dtp_transformer t = model();
    struct dtp_plan plan = asked();
    struct dtp_program *program;
    struct dtp_program_totals totals, plain;
    plan.ep = 4;
    resolve(&plan, &t, &cluster);
    assert_int_equal(dtp_lower(&t, &cluster, &plan, 0, &program, &faults), DTP_OK);
    dtp_program_sum(program, &plain);
    dtp_program_destroy(program);
    plan.megatron.shared_overlap = true;
    resolve(&plan, &t, &cluster);
    assert_int_equal(dtp_lower(&t, &cluster, &plan, 0, &program, &faults), DTP_OK);
    dtp_program_sum(program, &totals);
    assert_int_equal(dtp_program_verify(program, &faults), DTP_OK);
    assert_true(fabs(totals.matmul_flops / plain.matmul_flops - 1) < 1e-12);
    assert_int_equal(totals.sent_bytes[DTP_ALL_TO_ALL], plain.sent_bytes[DTP_ALL_TO_ALL]);
    const struct dtp_op *op = dtp_program_ops(program);
    uint32_t matmuls[2] = {0, 0};
    for (uint32_t i = 0; i + 1 < dtp_program_op_count(program); i++)
        if (op[i].kind == DTP_OP_ALL_TO_ALL && strcmp(op[i].name, "splits") != 0) {
            uint32_t k = i + 1; /* up to what lets go of rows that were sent */
            for (; op[k].kind != DTP_OP_FREE; k++)
                matmuls[strcmp(op[i].name, "combine") == 0] += dtp_op_kind_class(op[k].kind) == DTP_CLASS_MATMUL;
        }
    assert_int_equal(matmuls[0], 2 * (2 + 4)); /* of gate and up; two of each in backward */
    assert_int_equal(matmuls[1], 2 * (1 + 2));
    dtp_program_destroy(program);
    plan.megatron.expert_overlap = true;
    memset(&faults, 0, sizeof faults);
    assert_int_equal(dtp_plan_resolve(&plan, &t, &cluster, &faults), DTP_BAD_INPUT);
    assert_non_null(strstr(faults.text[0], "shared_expert_overlap: is not with expert_overlap"));
}

/* Of three micro-steps the first forward and the last backward stand alone. In each of two layers with experts a
 * forward exchanges three times (how many rows, there, back), a backward twice: 2 x (2 x 3 + 2 x 2) of 2 x 3 x 5 run
 * beside. */
static void test_overlapped_exchanges(void **state)
{
    (void)state;
    struct dtp_cluster cluster = test_cluster(test_h200(), 8, 8);
    struct dtp_transformer t = model();
    struct dtp_plan plan = asked();
    struct dtp_program *program;
    uint32_t all = 0, beside = 0;
    plan.ep = 4, plan.accumulate = 3, plan.megatron.expert_overlap = true;
    resolve(&plan, &t, &cluster);
    assert_int_equal(dtp_lower(&t, &cluster, &plan, 0, &program, &faults), DTP_OK);
    const struct dtp_buffer *buffers = dtp_program_buffers(program);
    for (size_t i = 0; i < dtp_program_op_count(program); i++) {
        const struct dtp_op *op = &dtp_program_ops(program)[i];
        const struct dtp_operand *operands = dtp_program_operands(program, op);
        if (op->kind != DTP_OP_ALL_TO_ALL)
            continue;
        all++;
        beside += strcmp(buffers[operands[0].buffer.index].name, "rows under way") == 0;
    }
    assert_int_equal(all, 2 * 3 * 5);
    assert_int_equal(beside, 2 * (2 * 3 + 2 * 2));
    dtp_program_destroy(program);
}

static void test_refused(void **state)
{
    (void)state;
    struct dtp_cluster cluster = test_cluster(test_h200(), 8, 8);
    struct dtp_transformer t = model();
    struct dtp_plan plan = asked();
    uint32_t set = 0;
    char text[DTP_RECOMPUTE_BYTES];
    assert_false(dtp_recompute_parse("moe_act+dropout", &set));
    assert_true(dtp_recompute_parse("moe+mlp", &set));
    dtp_recompute_text(set, text);
    assert_string_equal(text, "mlp+moe");
    plan.megatron.recompute = set, plan.checkpointing = DTP_CHECKPOINT_FULL;
    memset(&faults, 0, sizeof faults);
    assert_int_equal(dtp_plan_resolve(&plan, &t, &cluster, &faults), DTP_BAD_INPUT);
    assert_non_null(strstr(faults.text[0], "recompute_modules: says itself what runs again"));
    plan.checkpointing = DTP_CHECKPOINT_NONE, plan.megatron.recompute = 1u << DTP_RECOMPUTE_MLA_UP_PROJ;
    t.kv_latent = t.q_latent = t.rope_head_dim = t.value_head_dim = 0;
    memset(&faults, 0, sizeof faults);
    assert_int_equal(dtp_plan_resolve(&plan, &t, &cluster, &faults), DTP_BAD_INPUT);
    assert_non_null(strstr(faults.text[0], "mla_up_proj is latent attention's"));
    plan.megatron.recompute = 0, plan.megatron.pad_to_capacity = true;
    memset(&faults, 0, sizeof faults);
    assert_int_equal(dtp_plan_resolve(&plan, &t, &cluster, &faults), DTP_BAD_INPUT);
    assert_non_null(strstr(faults.text[0], "pad_to_capacity: fills rows up to a capacity, of which none is set"));
    plan.ep = 4, plan.megatron.capacity_factor = 2, plan.megatron.flex_dispatcher = true;
    memset(&faults, 0, sizeof faults);
    assert_int_equal(dtp_plan_resolve(&plan, &t, &cluster, &faults), DTP_BAD_INPUT);
    assert_non_null(strstr(faults.text[0], "pad_to_capacity: is not with flex dispatchers"));
    plan.megatron.pad_to_capacity = false, plan.megatron.unfused_permute = true;
    memset(&faults, 0, sizeof faults);
    assert_int_equal(dtp_plan_resolve(&plan, &t, &cluster, &faults), DTP_BAD_INPUT);
    assert_non_null(strstr(faults.text[0], "unfused_permute: with flex_dispatcher is not modelled"));
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
        cmocka_unit_test(test_recomputed_parts),
        cmocka_unit_test(test_recomputed_flops),
        cmocka_unit_test(test_unfused_permute),
        cmocka_unit_test(test_capacity),
        cmocka_unit_test(test_unfused_rope),
        cmocka_unit_test(test_shared_overlap),
        cmocka_unit_test(test_overlapped_exchanges),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_casts),
        cmocka_unit_test(test_grouped_price),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
