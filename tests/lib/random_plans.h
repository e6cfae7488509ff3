/* Random valid jobs for property tests: every draw passes dtp_transformer_check, dtp_cluster_check and
 * dtp_plan_resolve. Deterministic from one seed, which a failing test prints. */
#ifndef TEST_RANDOM_PLANS_H
#define TEST_RANDOM_PLANS_H

#include "runtime/runtimes.h"

#include "lib/hardware.h"

#include <stdio.h>
#include <stdlib.h>

struct random_job {
    struct dtp_transformer transformer;
    struct dtp_cluster cluster;
    struct dtp_plan asked, plan; /* before and after dtp_plan_resolve */
};

static uint64_t random_state;

static inline uint64_t random_seed(void)
{
    const char *text = getenv("DTPLAN_TEST_SEED");
    random_state = text ? strtoull(text, NULL, 10) : 20240611u;
    printf("seed %llu (DTPLAN_TEST_SEED)\n", (unsigned long long)random_state);
    return random_state;
}

/* splitmix64 (Steele et al. 2014) */
static inline uint64_t random_below(uint64_t limit)
{
    uint64_t z = random_state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return (z ^ z >> 31) % limit;
}

static inline bool random_bool(void)
{
    return random_below(2);
}

static inline struct dtp_transformer random_transformer(void)
{
    struct dtp_transformer t = dtp_transformer_default();
    bool gpt = random_bool();
    static const uint64_t widths[] = {32, 64, 80, 96, 128};
    snprintf(t.name, sizeof t.name, "random");
    t.head_dim = widths[random_below(5)];
    t.kv_heads = 1 + random_below(12);
    t.heads = t.kv_heads * (gpt ? 1 : 1 + random_below(8));
    t.hidden = t.heads * t.head_dim;
    t.layers = 1 + random_below(96);
    t.ffn = t.hidden * (2 + random_below(4)) + 8 * random_below(100);
    t.vocab = 1000 + random_below(200000);
    t.norm = gpt ? DTP_LAYER_NORM : DTP_RMS_NORM;
    t.activation = gpt ? DTP_GELU : DTP_SWIGLU;
    t.position = gpt ? (random_bool() ? DTP_POSITION_LEARNED : DTP_POSITION_ALIBI) : DTP_POSITION_ROPE;
    t.positions = t.position == DTP_POSITION_LEARNED ? 1u << 17 : 0;
    t.norm_bias = t.qkv_bias = t.attention_output_bias = t.mlp_bias = gpt && random_bool();
    t.tied_head = random_bool();
    t.final_norm = true;
    return t;
}

static inline struct dtp_cluster random_cluster(void)
{
    static const uint32_t nodes[] = {1, 2, 3, 4, 8, 16, 64, 256};
    uint32_t per_node = 1u << random_below(4), count = nodes[random_below(8)];
    struct dtp_cluster cluster = test_cluster(random_bool() ? test_h200() : test_a100(), per_node * count, per_node);
    cluster.machine.network_bytes_per_s = 1.25e9 * (double)(1u << random_below(9));
    cluster.oversubscription = 1 + (double)random_below(3);
    return cluster;
}

static inline struct dtp_plan random_plan(const struct dtp_cluster *cluster)
{
    static const char *const recipes[] = {"fp32",       "bf16-mixed",     "bf16",       "bf16-pure",
                                          "fp16-mixed", "fp8-tensorwise", "fp8-rowwise"};
    struct dtp_plan plan = dtp_plan_default();
    plan.strategy = (enum dtp_strategy)random_below(DTP_STRATEGY_COUNT);
    plan.runtime = dtp_runtimes[random_below(DTP_RUNTIMES)];
    plan.compile = random_bool();
    plan.fsdp1 = random_below(4) == 0;
    plan.micro_batch = 1 + (uint32_t)random_below(16);
    plan.accumulate = random_bool() ? 1 : 1 + (uint32_t)random_below(8);
    plan.accumulate_sync = random_below(4) == 0;
    plan.sequence = 128u << random_below(8);
    plan.checkpointing = (enum dtp_checkpointing)random_below(5);
    plan.checkpoint_every = plan.checkpointing == DTP_CHECKPOINT_EVERY_N ? 1 + (uint32_t)random_below(3) : 0;
    plan.offload = random_below(4) ? DTP_OFFLOAD_NONE : (enum dtp_offload)random_below(4);
    dtp_precision_recipe(recipes[random_below(7)], &plan.precision);
    plan.attention = (enum dtp_attention)random_below(4);
    plan.loss = (enum dtp_loss)random_below(3);
    plan.optimizer = (enum dtp_optimizer)random_below(4);
    plan.wrap_layers = random_bool() ? 1 : (uint32_t)random_below(3);
    plan.ddp_bucket_view = random_bool();
    plan.deepspeed_overlap = random_bool();
    plan.prefetch = random_below(4) != 0;
    plan.fused_qkv = random_bool(), plan.fused_gate_up = random_bool(), plan.rope_fp32 = random_bool();
    /* Groups smaller than the cluster go by other names than hybrid_shard as well; under ddp they are refused. */
    if (plan.strategy == DTP_HYBRID_SHARD || (plan.strategy != DTP_DDP && random_below(4) == 0))
        plan.shard_group = 1u << random_below(4);
    if (plan.runtime == &dtp_runtime_deepspeed && random_bool()) {
        static const uint64_t elements[] = {0, 1000000, 50000000, 300000000, 1000000000, 5000000000};
        plan.reduce_bucket_size = 1 + elements[random_below(6)];
        plan.stage3_max_live_parameters = elements[random_below(6)];
        plan.stage3_max_reuse_distance = elements[random_below(6)];
        plan.stage3_prefetch_bucket_size = elements[random_below(6)];
        plan.stage3_param_persistence_threshold = elements[random_below(4)];
    }
    uint64_t kept = random_state; /* what is drawn here changes nothing that follows */
    if (plan.runtime == &dtp_runtime_torch && !plan.fsdp1 && random_below(3) == 0) {
        plan.prefetch_depth = plan.prefetch ? 1 + (uint32_t)random_below(4) : 1;
        plan.reshard_group = plan.reshard_after_forward && random_bool() ? 2u << random_below(3) : 0;
    }
    if (plan.runtime == &dtp_runtime_deepspeed && plan.strategy == DTP_ZERO3 && plan.offload <= DTP_OFFLOAD_OPTIMIZER &&
        random_bool()) {
        plan.zero_hpz_partition_size = 1u << random_below(4);
        plan.zero_quantized_weights = random_bool(), plan.zero_quantized_gradients = random_bool();
    }
    bool scatters = cluster->gpus > 1 && cluster->nodes == 1 && plan.strategy != DTP_DDP && plan.shard_group != 1;
    if (plan.runtime == &dtp_runtime_dtplan && scatters && random_bool())
        plan.reduce_engine = DTP_ENGINE_COPY;
    bool once = plan.accumulate == 1 || (!plan.accumulate_sync && plan.strategy != DTP_ZERO2);
    if (plan.runtime == &dtp_runtime_dtplan && scatters && once && plan.offload == DTP_OFFLOAD_NONE)
        plan.update_in_backward = random_bool();
    random_state = kept;
    return plan;
}

/* Draws until a job is valid; gives up (false) after many refusals, which a test should treat as a failure. */
static inline bool random_job(struct random_job *job)
{
    for (int attempt = 0; attempt < 1000; attempt++) {
        job->transformer = random_transformer();
        job->cluster = random_cluster();
        job->plan = job->asked = random_plan(&job->cluster);
        if (dtp_transformer_check(&job->transformer, NULL, 0, NULL) == DTP_OK &&
            dtp_cluster_check(&job->cluster, NULL) == DTP_OK &&
            dtp_plan_resolve(&job->plan, &job->transformer, &job->cluster, NULL) == DTP_OK)
            return true;
    }
    return false;
}

#endif
