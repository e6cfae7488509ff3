/* Megatron-LM's flags of experts, latent attention, 8 bits and recomputed modules: what it does where a flag is silent,
 * which layers have experts, and what is refused by the flag that would help. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "lib/import_fixture.h"

#include "plan/checkpointing.h"

static struct imported_file file;

/* A model of experts as its flags say it, for what is tried behind. */
#define DENSE                                                                                                          \
    "--num-layers 8 --hidden-size 1024 --num-attention-heads 8 --ffn-hidden-size 2048 --seq-length 2048 --vocab-size " \
    "32000 --swiglu --normalization RMSNorm --disable-bias-linear --untie-embeddings-and-output-weights "              \
    "--position-embedding-type rope --attention-dropout 0 --hidden-dropout 0 --micro-batch-size 1 "                    \
    "--use-distributed-optimizer "
#define PERMUTED "--num-experts 8 --moe-permute-fusion "
#define EXPERTS PERMUTED "--moe-grouped-gemm "
#define TYPED "gpu=h100-sxm gpus=8"

static void read_flags(const char *flags)
{
    drop_imported(&file);
    if (import_text(&file, flags, TYPED) != DTP_OK)
        fail_msg("%s: %s", flags, file.faults.text[0]);
}

static void experts_by_default(void **state)
{
    (void)state;
    const struct dtp_transformer *t = &file.job.transformer;
    read_flags(DENSE EXPERTS "--bf16");
    assert_int_equal(t->experts, 8);
    assert_int_equal(t->experts_per_token, 2); /* moe_router_topk */
    assert_int_equal(t->expert_ffn, 2048);     /* moe_ffn_hidden_size is ffn_hidden_size */
    assert_int_equal(t->shared_expert_ffn, 0);
    assert_int_equal(t->router, DTP_ROUTER_SOFTMAX);
    assert_int_equal(t->dense_layers, 0);
    assert_int_equal(file.job.plan.ep, 1);
    assert_false(file.job.plan.megatron.flex_dispatcher);
    assert_false(file.job.plan.megatron.unfused_permute);
    assert_false(file.job.plan.megatron.fp8_head);
    read_flags(DENSE "--bf16 --num-experts 8 --moe-grouped-gemm");
    assert_true(file.job.plan.megatron.unfused_permute); /* without --moe-permute-fusion */
    read_flags(DENSE EXPERTS "--bf16 --expert-model-parallel-size 4 --moe-token-dispatcher-type flex "
                             "--overlap-moe-expert-parallel-comm --moe-flex-dispatcher-backend hybridep");
    assert_int_equal(file.job.plan.ep, 4);
    assert_true(file.job.plan.megatron.flex_dispatcher);
    assert_true(file.job.plan.megatron.expert_overlap);
    read_flags(DENSE "--bf16 --no-rope-fusion");
    assert_true(file.job.plan.megatron.unfused_rope);
    read_flags(DENSE EXPERTS "--bf16 --moe-expert-capacity-factor 1.25 --moe-pad-expert-input-to-capacity");
    assert_true(file.job.plan.megatron.capacity_factor == 1.25 && file.job.plan.megatron.pad_to_capacity);
    read_flags(DENSE EXPERTS "--bf16 --tensor-model-parallel-size 2 --sequence-parallel "
                             "--expert-model-parallel-size 4 --moe-token-dispatcher-type alltoall");
    assert_int_equal(file.job.plan.megatron.etp, 2); /* as tp */
    read_flags(DENSE EXPERTS "--bf16 --mtp-num-layers 1 --mtp-loss-scaling-factor 0.1");
    assert_int_equal(t->mtp_layers, 1);
    assert_int_equal(dtp_transformer_told(t).layers, 8);
    read_flags(DENSE "--bf16 --fp8-format e4m3 --fp8-recipe blockwise --first-last-layers-bf16 "
                     "--num-layers-at-end-in-bf16 2");
    assert_int_equal(file.job.plan.megatron.bf16_first, 1); /* as without the flag */
    assert_int_equal(file.job.plan.megatron.bf16_last, 2);
}

/* Fused by Megatron-Core itself, which is the default, or by Transformer Engine. */
static void losses(void **state)
{
    (void)state;
    read_flags(DENSE "--bf16");
    assert_int_equal(file.job.plan.loss, DTP_LOSS_EAGER);
    read_flags(DENSE "--bf16 --cross-entropy-loss-fusion");
    assert_int_equal(file.job.plan.loss, DTP_LOSS_NATIVE);
    read_flags(DENSE "--bf16 --cross-entropy-loss-fusion --cross-entropy-fusion-impl native");
    assert_int_equal(file.job.plan.loss, DTP_LOSS_NATIVE);
    read_flags(DENSE "--bf16 --cross-entropy-loss-fusion --cross-entropy-fusion-impl te");
    assert_int_equal(file.job.plan.loss, DTP_LOSS_FUSED);
}

static void latents_by_default(void **state)
{
    (void)state;
    const struct dtp_transformer *t = &file.job.transformer;
    read_flags(DENSE "--bf16 --multi-latent-attention --qk-layernorm --kv-channels 16 --num-query-groups 4");
    assert_int_equal(t->kv_latent, 32);
    assert_int_equal(t->q_latent, 0);
    assert_int_equal(t->head_dim, 192); /* 128 + 64 */
    assert_int_equal(t->rope_head_dim, 64);
    assert_int_equal(t->value_head_dim, 128);
    assert_int_equal(t->kv_heads, 8);
    assert_false(t->qk_norm);
}

/* Of 8 layers. */
static void patterns_of_layers(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        uint64_t dense, step;
    } cases[] = {{"1", 0, 0},           {"'([0]*3+[1]*5)'", 3, 0}, {"[0]+[1]*7", 1, 0}, {"'[0, 0,1,1]+[1]*4'", 2, 0},
                 {"'([0,1]*4)'", 0, 2}, {"'[0,0,0,1]*2'", 0, 4}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char flags[1024];
        snprintf(flags, sizeof flags, DENSE EXPERTS "--bf16 --moe-layer-freq %s", cases[i].text);
        read_flags(flags);
        assert_int_equal(file.job.transformer.dense_layers, cases[i].dense);
        assert_int_equal(file.job.transformer.expert_layer_step, cases[i].step);
    }
}

static void recipes_of_8_bits(void **state)
{
    (void)state;
    static const struct {
        const char *flags;
        enum dtp_fp8_recipe recipe;
    } cases[] = {{"--fp8-format hybrid", DTP_FP8_DELAYED},
                 {"--fp8-format e4m3 --fp8-recipe tensorwise", DTP_FP8_CURRENT},
                 {"--fp8-format e4m3 --fp8-recipe blockwise", DTP_FP8_BLOCKWISE}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char flags[1024];
        snprintf(flags, sizeof flags, DENSE "--bf16 --grad-reduce-in-bf16 %s", cases[i].flags);
        read_flags(flags);
        assert_int_equal(file.job.plan.precision.compute, DTP_FP8);
        assert_int_equal(file.job.plan.precision.fp8_recipe, cases[i].recipe);
        assert_int_equal(file.job.plan.precision.reduce, DTP_BF16);
        assert_int_equal(file.job.plan.precision.params, DTP_BF16);
    }
    read_flags(DENSE "--bf16 --fp8-recipe blockwise"); /* without a format it is off */
    assert_int_equal(file.job.plan.precision.compute, DTP_BF16);
}

static void modules_run_again(void **state)
{
    (void)state;
    static const struct {
        const char *flags;
        enum dtp_checkpointing checkpointing;
        uint32_t set;
    } cases[] = {
        {"", DTP_CHECKPOINT_NONE, 0},
        {"--recompute-modules moe_act", DTP_CHECKPOINT_NONE, 0}, /* of a granularity that nobody says */
        {"--recompute-activations", DTP_CHECKPOINT_SELECTIVE_ATTENTION, 0},
        {"--recompute-granularity selective", DTP_CHECKPOINT_SELECTIVE_ATTENTION, 0},
        {"--recompute-granularity selective --recompute-modules moe_act layernorm", DTP_CHECKPOINT_NONE,
         1u << DTP_RECOMPUTE_MOE_ACT | 1u << DTP_RECOMPUTE_LAYERNORM},
        {"--moe-layer-recompute", DTP_CHECKPOINT_NONE, 1u << DTP_RECOMPUTE_MOE},
        {"--recompute-granularity selective --moe-layer-recompute", DTP_CHECKPOINT_NONE,
         1u << DTP_RECOMPUTE_MOE | 1u << DTP_RECOMPUTE_CORE_ATTN},
        {"--recompute-granularity full --recompute-method uniform --recompute-modules mlp", DTP_CHECKPOINT_FULL, 0}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char flags[1024];
        snprintf(flags, sizeof flags, DENSE EXPERTS "--bf16 %s", cases[i].flags);
        read_flags(flags);
        assert_int_equal(file.job.plan.checkpointing, cases[i].checkpointing);
        assert_int_equal(file.job.plan.megatron.recompute, cases[i].set);
    }
}

static void refusals_say_what_helps(void **state)
{
    (void)state;
    static const char *const cases[][2] = {
        {DENSE PERMUTED "--bf16", "give --moe-grouped-gemm"},
        {DENSE EXPERTS "--bf16 --fp8-format e4m3", "give --moe-router-padding-for-fp8"},
        {DENSE EXPERTS "--bf16 --expert-model-parallel-size 8", "give --moe-token-dispatcher-type alltoall or flex"},
        {DENSE EXPERTS "--bf16 --expert-model-parallel-size 8 --moe-token-dispatcher-type allgather",
         "moe_token_dispatcher_type = allgather"},
        {DENSE EXPERTS "--bf16 --tensor-model-parallel-size 2 --sequence-parallel "
                       "--moe-token-dispatcher-type alltoall",
         "each cut over 2 ranks is not modelled without expert parallelism; give --expert-tensor-parallel-size 1"},
        {DENSE EXPERTS "--bf16 --expert-tensor-parallel-size 4", "expert_tensor_parallel_size = 4"},
        {DENSE EXPERTS "--bf16 --moe-layer-freq 2", "layers without experts that are neither"},
        {DENSE EXPERTS "--bf16 --moe-layer-freq '([0]*3+[1]*6)'", "is of 9 layers, and there are 8"},
        {DENSE EXPERTS "--bf16 --moe-layer-freq '([2]*8)'", "is neither a number nor lists"},
        {DENSE EXPERTS "--bf16 --moe-layer-freq '[1]*99999999999999999999'", "is neither a number nor lists"},
        {DENSE EXPERTS "--bf16 --moe-layer-freq '[1]*-8'", "is neither a number nor lists"},
        {DENSE EXPERTS "--bf16 --moe-layer-freq '[1'", "is neither a number nor lists"},
        {DENSE EXPERTS "--bf16 --moe-layer-freq '[0]*4[1]*4'", "is neither a number nor lists"},
        {DENSE EXPERTS "--bf16 --moe-layer-freq '[1]*'", "is neither a number nor lists"},
        {DENSE "--bf16 --multi-latent-attention", "give --qk-layernorm"},
        {DENSE "--fp16 --fp8-format hybrid", "give --bf16"},
        {DENSE "--bf16 --recompute-granularity selective --recompute-modules lunch", "recompute_modules"},
        {DENSE "--bf16 --mtp-num-layers 2", "more than one is not modelled"},
        {DENSE "--bf16 --moe-new-flag 3", "is no setting of flags of Megatron-LM that dtplan knows"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        bool said = false;
        drop_imported(&file);
        assert_int_equal(import_text(&file, cases[i][0], TYPED), DTP_BAD_INPUT);
        for (size_t k = 0; k < file.faults.count && k < DTP_FAULTS_KEPT; k++)
            said |= strstr(file.faults.text[k], cases[i][1]) != NULL;
        if (!said)
            fail_msg("%s: %s", cases[i][1], file.faults.text[0]);
    }
}

/* Files of published models have as many parameters as the catalogue's rows, which come of the models' own files. */
static void published_models(void **state)
{
    (void)state;
    static const char *const cases[][2] = {{"mixtral_8x7b.sh", "mixtral-8x7b"},
                                           {"qwen3_30b_a3b.sh", "qwen3-30b-a3b"},
                                           {"deepseek_v2_lite.sh", "deepseek-v2-lite"},
                                           {"deepseek_v3_256.txt", "deepseek-v3"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char path[512], typed[64];
        drop_imported(&file);
        begin_import(&file);
        snprintf(path, sizeof path, CONFIGS "megatron/%s", cases[i][0]);
        assert_int_equal(dtp_import_read(file.import, path, &file.faults), DTP_OK);
        assert_int_equal(finish_import(&file, "gpu=h100-sxm", NULL), DTP_OK);
        struct dtp_parameter_count got = dtp_transformer_count(&file.job.transformer);
        drop_imported(&file);
        begin_import(&file);
        snprintf(typed, sizeof typed, "model=%s gpu=h100-sxm gpus=8", cases[i][1]);
        set_typed(&file, typed);
        assert_int_equal(dtp_scenario_resolve(file.scenario, &catalog, &file.job, &file.faults), DTP_OK);
        assert_int_equal(got.total, dtp_transformer_count(&file.job.transformer).total);
    }
}

static int drop_all(void **state)
{
    drop_imported(&file);
    return drop_catalog(state);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(experts_by_default),      cmocka_unit_test(losses),
        cmocka_unit_test(latents_by_default),      cmocka_unit_test(patterns_of_layers),
        cmocka_unit_test(recipes_of_8_bits),       cmocka_unit_test(modules_run_again),
        cmocka_unit_test(refusals_say_what_helps), cmocka_unit_test(published_models),
    };
    return cmocka_run_group_tests(tests, load_catalog, drop_all);
}
