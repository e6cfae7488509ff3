/* Random valid jobs for property tests: every draw passes dtp_transformer_check, dtp_cluster_check and
 * dtp_plan_resolve. Deterministic from one seed, which a failing test prints.
 *
 * What is drawn is named before (random_key). For property tests the name means nothing: all draws are of one stream.
 * Frozen jobs (frozen_jobs.h) are drawn name by name, each from a stream of its own, so that a draw that is added or
 * taken away changes no other. */
#ifndef TEST_RANDOM_PLANS_H
#define TEST_RANDOM_PLANS_H

#include "plan/plan_keys.h"
#include "runtime/runtimes.h"

#include "lib/hardware.h"
#include "lib/random_draws.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct random_job {
    struct dtp_transformer transformer;
    struct dtp_cluster cluster;
    struct dtp_plan asked, plan; /* before and after dtp_plan_resolve */
};

static uint64_t random_state;
static bool random_frozen; /* each name has a stream of its own, of the job with this number */
static uint64_t random_job_number;

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

/* FNV-1a (Fowler, Noll, Vo): of a job's number and a name, what their stream begins with. */
static inline uint64_t random_hash(uint64_t number, const char *name)
{
    uint64_t hash = 0xcbf29ce484222325u;
    for (int i = 0; i < 8; i++)
        hash = (hash ^ (number >> 8 * i & 0xff)) * 0x100000001b3u;
    for (; *name; name++)
        hash = (hash ^ (unsigned char)*name) * 0x100000001b3u;
    return hash;
}

/* What follows draws `name`: of a frozen job from that name's own stream. */
static inline void random_key(const char *name)
{
    if (random_frozen)
        random_state = random_hash(random_job_number, name);
}

static inline bool random_bool(void)
{
    return random_below(2);
}

/* What few models have, each in one of eight; draws nothing of the stream that follows. Frozen jobs have rows of their
 * own for it. */
static inline void random_details(struct dtp_transformer *t)
{
    uint64_t kept = random_state;
    if (random_frozen)
        return;
    t->final_norm = random_below(8) != 0;
    t->embedding_norm = random_below(8) == 0;
    t->qk_norm = random_below(8) == 0;
    t->head_bias = random_below(8) == 0;
    t->parallel_block = random_below(8) ? DTP_PARALLEL_NONE : (enum dtp_parallel_block)(1 + random_below(2));
    t->norm_place =
        t->parallel_block || random_below(8) ? DTP_NORMS_BEFORE : (enum dtp_norm_place)(1 + random_below(2));
    t->qk_norm_wide = t->qk_norm && random_below(2);
    t->qk_layer_norm = t->qk_norm && random_below(4) == 0;
    t->qk_norm_weight = t->qk_norm && !t->qk_norm_wide ? (enum dtp_qk_norm_weight)random_below(3) : DTP_QK_NORM_SHARED;
    t->qk_norm_bias = t->qk_layer_norm && t->qk_norm_weight != DTP_QK_NORM_UNWEIGHTED && random_below(2);
    t->sliding_window = random_below(8) ? 0 : 128u << random_below(8);
    t->sliding_window_pattern = t->sliding_window ? random_below(4) : 0;
    t->norm_without_weight = !t->norm_bias && random_below(8) == 0;
    t->norm_unit_offset = t->norm == DTP_RMS_NORM && !t->norm_without_weight && random_below(8) == 0;
    if (t->activation == DTP_SWIGLU && random_below(8) == 0)
        t->activation = DTP_GEGLU;
    if (t->activation == DTP_GELU && random_below(8) == 0)
        t->activation = DTP_RELU2;
    t->qkv_bias = t->qkv_bias || random_below(8) == 0;
    t->attention_output_bias = t->attention_output_bias || random_below(8) == 0;
    t->mlp_bias = t->mlp_bias || random_below(8) == 0;
    t->embedding_scale = random_below(8) == 0;
    t->final_softcap = random_below(8) ? 0 : 30;
    random_state = kept;
}

static inline struct dtp_transformer random_transformer(void)
{
    struct dtp_transformer t = dtp_transformer_default();
    random_key("gpt");
    bool gpt = random_bool();
    static const uint64_t widths[] = {32, 64, 80, 96, 128};
    snprintf(t.name, sizeof t.name, "random");
    random_key("head_dim");
    t.head_dim = widths[random_below(5)];
    random_key("kv_heads");
    t.kv_heads = 1 + random_below(12);
    t.heads = t.kv_heads * (gpt ? 1 : 1 + random_below(8));
    t.hidden = t.heads * t.head_dim;
    random_key("layers");
    t.layers = 1 + random_below(96);
    random_key("ffn");
    t.ffn = t.hidden * (2 + random_below(4)) + 8 * random_below(100);
    random_key("vocab");
    t.vocab = 1000 + random_below(200000);
    t.norm = gpt ? DTP_LAYER_NORM : DTP_RMS_NORM;
    t.activation = gpt ? DTP_GELU : DTP_SWIGLU;
    random_key("position");
    t.position = gpt ? (random_bool() ? DTP_POSITION_LEARNED : DTP_POSITION_ALIBI) : DTP_POSITION_ROPE;
    t.positions = t.position == DTP_POSITION_LEARNED ? 1u << 17 : 0;
    random_key("bias");
    t.norm_bias = t.qkv_bias = t.attention_output_bias = t.mlp_bias = gpt && random_bool();
    random_key("tied_head");
    t.tied_head = random_bool();
    t.final_norm = true;
    random_details(&t);
    return t;
}

static inline struct dtp_cluster random_cluster(void)
{
    static const uint32_t nodes[] = {1, 2, 3, 4, 8, 16, 64, 256};
    random_key("gpus_per_node");
    uint32_t per_node = 1u << random_below(4);
    random_key("nodes");
    uint32_t count = nodes[random_below(8)];
    random_key("gpu");
    struct dtp_cluster cluster = test_cluster(random_bool() ? test_h200() : test_a100(), per_node * count, per_node);
    random_key("network_gbit_per_s");
    cluster.machine.network_bytes_per_s = 1.25e9 * (double)(1u << random_below(9));
    random_key("oversubscription");
    cluster.oversubscription = 1 + (double)random_below(3);
    return cluster;
}

static inline void random_deepspeed_sizes(struct dtp_plan *plan)
{
    static const uint64_t elements[] = {0, 1000000, 50000000, 300000000, 1000000000, 5000000000};
    plan->deepspeed.reduce_bucket_size = 1 + elements[random_below(6)];
    plan->deepspeed.stage3_max_live_parameters = elements[random_below(6)];
    plan->deepspeed.stage3_max_reuse_distance = elements[random_below(6)];
    plan->deepspeed.stage3_prefetch_bucket_size = elements[random_below(6)];
    plan->deepspeed.stage3_param_persistence_threshold = elements[random_below(4)];
}

/* What one runtime alone knows; its draws change nothing that is drawn behind them. */
static inline void random_runtime_choices(const struct dtp_cluster *cluster, struct dtp_plan *plan)
{
    uint64_t kept = random_state;
    random_key("fsdp2");
    if (plan->runtime == &dtp_runtime_torch && !plan->fsdp1 && random_below(3) == 0) {
        plan->prefetch_depth = plan->prefetch ? 1 + (uint32_t)random_below(4) : 1;
        plan->reshard_group = plan->reshard_after_forward && random_bool() ? 2u << random_below(3) : 0;
    }
    if (dtp_plan_is_fsdp(plan) && !random_frozen) {
        plan->limit_all_gathers = !plan->fsdp1 || random_bool();
        plan->keep_root = !plan->fsdp1 && random_below(4) == 0;
    }
    if (plan->runtime->cp_comms && !random_frozen && random_below(4) == 0) {
        plan->cp = 2u << random_below(3);
        plan->cp_comm = (enum dtp_cp_comm)random_below(4);
        if (plan->cp_comm == DTP_CP_A2A && plan->runtime == &dtp_runtime_dtplan)
            plan->executor.cp_chunks = (uint32_t)random_below(3);
    }
    random_key("divided");
    if (plan->runtime == &dtp_runtime_deepspeed && !random_frozen && random_below(4) == 0) {
        plan->deepspeed.megatron_layers = random_bool();
        plan->deepspeed.bf16_optimizer =
            plan->strategy == DTP_ZERO1 && !plan->deepspeed.overlap_comm && plan->offload == DTP_OFFLOAD_NONE;
    }
    random_key("dropout");
    bool drops = plan->runtime == &dtp_runtime_megatron || plan->deepspeed.megatron_layers;
    if (drops && !random_frozen && random_below(3) == 0)
        plan->dropout = 0.1;
    random_key("zeropp");
    if (plan->runtime == &dtp_runtime_deepspeed && plan->strategy == DTP_ZERO3 &&
        plan->offload <= DTP_OFFLOAD_OPTIMIZER && random_bool()) {
        plan->deepspeed.zero_hpz_partition_size = 1u << random_below(4);
        plan->deepspeed.zero_quantized_weights = random_bool(),
        plan->deepspeed.zero_quantized_gradients = random_bool();
    }
    random_key("wrap_ends");
    if (dtp_plan_is_fsdp(plan) && !random_frozen)
        plan->wrap_ends = !plan->fsdp1 && !plan->keep_root && random_below(3) == 0;
    random_key("reduce_engine");
    bool scatters = cluster->gpus > 1 && cluster->nodes == 1 && plan->strategy != DTP_DDP && plan->shard_group != 1;
    if (plan->runtime == &dtp_runtime_dtplan && scatters && random_bool())
        plan->executor.reduce_engine = DTP_ENGINE_COPY;
    random_key("comm_hook");
    if (plan->runtime == &dtp_runtime_torch && plan->strategy == DTP_DDP && !random_frozen && random_below(3) == 0) {
        plan->comm_hook = (enum dtp_comm_hook)(1 + random_below(4));
        plan->powersgd_rank = 1u << random_below(4);
    }
    random_key("projection_rank");
    if (plan->runtime == &dtp_runtime_torch && plan->strategy == DTP_DDP && !random_frozen && random_below(4) == 0) {
        static const enum dtp_optimizer of_shapes[] = {DTP_ADAFACTOR, DTP_MUON, DTP_ADAM_MINI, DTP_GALORE, DTP_APOLLO};
        plan->optimizer = of_shapes[random_below(sizeof of_shapes / sizeof *of_shapes)];
        plan->projection_rank = 1u << random_below(8);
    }
    random_key("clip_norm");
    if (plan->runtime->clips_by_key && !random_frozen)
        plan->clip_norm = random_below(3) == 0;
    random_key("update_in_backward");
    bool once = plan->accumulate == 1 || (!plan->accumulate_sync && plan->strategy != DTP_ZERO2);
    if (plan->runtime == &dtp_runtime_dtplan && scatters && once && plan->offload == DTP_OFFLOAD_NONE)
        plan->executor.update_in_backward = random_bool();
    random_state = kept;
}

/* Fields of keys that one runtime alone reads and that are drawn by name, here or in frozen_jobs.h. Any other is drawn
 * from its row: a key that is new needs nothing here. */
static const char random_named_fields[] =
    " activation_offload autocast compile compile_loss fast_kernels grouped_experts shifted_logits narrow_logits "
    "unread_loss fused_activation "
    "hold_logits "
    "transformers_layers "
    "fsdp1 "
    "gathered_logits "
    "checkpoint_within "
    "limit_all_gathers "
    "keep_root wrap_ends "
    "ddp_bucket_view comm_hook powersgd_rank projection_rank "
    "overlap_comm "
    "reduce_bucket_size stage3_max_live_parameters stage3_max_reuse_distance "
    "stage3_prefetch_bucket_size stage3_param_persistence_threshold zero_hpz_partition_size "
    "zero_quantized_weights zero_quantized_gradients pipeline sequence_dtype megatron_layers autoep drop_tokens "
    "bf16_linears "
    "bf16_optimizer "
    "overlap "
    "bf16_first bf16_last fp8_attention fp8_head fp8_param_gather precision_aware "
    "flex_dispatcher unfused_permute unfused_rope capacity_factor pad_to_capacity shared_overlap expert_overlap "
    "recompute graphs "
    "clip_norm gradient_norm loss_chunk "
    "gelu_epilogue activation_fp8_input_store stochastic_rounding gradient_stream delay_wgrad update_in_backward "
    "cuda_graph "
    "atomic_attention matmul_sms collective_ctas symmetric_windows gather_engine reduce_engine cp_chunks tp_chunks ";

/* Draws whether to draw: of every key that is not named, in one plan of four. */
static inline bool random_chooses(const char *field)
{
    char word[96];
    snprintf(word, sizeof word, " %s ", field);
    if (strstr(random_named_fields, word))
        return false;
    random_key(field);
    return random_below(4) == 0;
}

static inline void random_switch(bool *field)
{
    *field = !*field;
}
static inline void random_number(double *field)
{
    *field = 1 + (double)random_below(8);
}
static inline void random_whole64(uint64_t *field)
{
    *field = 1 + random_below(8);
}
/* Of enums too: each has a second value. */
static inline void random_whole32(uint32_t *field)
{
    *field = *field == 1 ? 2 : 1;
}

#define RANDOM_FIELD(place, field)                                                                                     \
    if (random_chooses(#field))                                                                                        \
        _Generic(&(place)->field, bool *                                                                               \
                 : random_switch, double *                                                                             \
                 : random_number, uint64_t *                                                                           \
                 : random_whole64, default                                                                             \
                 : random_whole32)((void *)&(place)->field);

/* What rows of keys with one reader declare; who does not read them has their defaults, as the rows say. DeepSpeed's
 * are drawn above for every plan, so that what is drawn behind them does not depend on the runtime; frozen jobs take
 * away what nobody reads by themselves. The draws change nothing that is drawn behind them. */
static inline void random_own_fields(struct dtp_plan *plan)
{
    uint64_t kept = random_state;
    struct dtp_plan read;
#define DTP_TORCH_FIELD(type, field, standard) RANDOM_FIELD(plan, field)
#define DTP_DEEPSPEED_FIELD(type, field, standard) RANDOM_FIELD(&plan->deepspeed, field)
#define DTP_MEGATRON_FIELD(type, field, standard) RANDOM_FIELD(&plan->megatron, field)
#define DTP_EXECUTOR_FIELD(type, field, standard) RANDOM_FIELD(&plan->executor, field)
#include "plan/plan_keys.def"
    random_state = kept;
    if (random_frozen)
        return;
    read = *plan;
    dtp_plan_drop_unread(&read);
    plan->deepspeed = read.deepspeed, plan->megatron = read.megatron, plan->executor = read.executor;
    plan->megatron.etp = 1; /* of experts, which these models have not */
}

/* Of frozen jobs none waits. It changes no other draw. */
static inline void random_launches(struct dtp_plan *plan)
{
    uint64_t kept = random_state;
    random_key("launch_blocking");
    plan->launch_blocking = !random_frozen && !plan->runtime->executed && random_below(7) == 0;
    random_state = kept;
}

/* It changes no other draw. */
static inline void random_held_logits(struct dtp_plan *plan)
{
    uint64_t kept = random_state;
    bool divided = plan->tp > 1 || plan->pp > 1 || plan->cp > 1;
    random_key("hold_logits");
    plan->hold_logits = plan->runtime == &dtp_runtime_torch && !divided && plan->loss == DTP_LOSS_EAGER &&
                        !plan->compile && random_below(4) == 0;
    random_state = kept;
}

/* It changes no other draw. */
static inline void random_carried(const struct dtp_transformer *t, struct dtp_plan *plan)
{
    uint64_t kept = random_state;
    bool peft = plan->runtime == &dtp_runtime_peft, torch = plan->runtime == &dtp_runtime_torch && !plan->fsdp1,
         whole = plan->tp == 1 && plan->pp == 1 && plan->cp == 1, norms = t->norm == DTP_RMS_NORM && t->final_norm;
    random_key("activation_offload");
    plan->activation_offload = plan->checkpointing == DTP_CHECKPOINT_FULL && whole && !plan->compile &&
                               plan->offload == DTP_OFFLOAD_NONE && !plan->adapters.prepare_kbit &&
                               (peft || (torch && norms && !plan->norm_chain && !t->embedding_norm)) &&
                               !random_frozen && random_below(3) == 0;
    random_state = kept;
}

/* Of the list's first so many a plan draws its runtime; those behind take the place of one in 64 jobs (below), so
 * that a runtime that is new changes no other job. */
#define RANDOM_RUNTIMES 4u

static inline struct dtp_plan random_plan(const struct dtp_cluster *cluster)
{
    static const char *const recipes[] = {"fp32",       "bf16-mixed",     "bf16",       "bf16-pure",
                                          "fp16-mixed", "fp8-tensorwise", "fp8-rowwise"};
    struct dtp_plan plan = dtp_plan_default();
    random_key("strategy");
    plan.strategy = (enum dtp_strategy)random_below(DTP_STRATEGY_COUNT);
    random_key("runtime");
    plan.runtime = dtp_runtimes[random_below(RANDOM_RUNTIMES)];
    random_key("compile");
    plan.compile = random_bool();
    random_key("fsdp1");
    plan.fsdp1 = random_below(4) == 0;
    random_key("micro_batch");
    plan.micro_batch = 1 + (uint32_t)random_below(16);
    random_key("accumulate");
    plan.accumulate = random_bool() ? 1 : 1 + (uint32_t)random_below(8);
    random_key("accumulate_sync");
    plan.accumulate_sync = random_below(4) == 0;
    random_key("seq");
    plan.sequence = 128u << random_below(8);
    random_key("checkpointing");
    plan.checkpointing = (enum dtp_checkpointing)random_below(5);
    plan.checkpoint_every = plan.checkpointing == DTP_CHECKPOINT_EVERY_N ? 1 + (uint32_t)random_below(3) : 0;
    random_key("offload");
    plan.offload = random_below(4) ? DTP_OFFLOAD_NONE : (enum dtp_offload)random_below(4);
    random_key("precision");
    dtp_precision_recipe(recipes[random_below(7)], &plan.precision);
    random_key("attention");
    plan.attention = (enum dtp_attention)random_below(4);
    random_key("loss");
    plan.loss = (enum dtp_loss)random_below(3);
    if (plan.loss == DTP_LOSS_CHUNKED && plan.runtime == &dtp_runtime_megatron)
        plan.loss = DTP_LOSS_NATIVE; /* chunks are refused there */
    random_key("optimizer");
    plan.optimizer = (enum dtp_optimizer)random_below(4);
    random_key("wrap_layers");
    plan.wrap_layers = random_bool() ? 1 : (uint32_t)random_below(3);
    random_key("ddp_bucket_view");
    plan.ddp_bucket_view = random_bool();
    random_key("deepspeed_overlap");
    plan.deepspeed.overlap_comm = random_bool();
    random_key("prefetch");
    plan.prefetch = random_below(4) != 0;
    random_key("fused");
    plan.fused_qkv = random_bool(), plan.fused_gate_up = random_bool(), plan.rope_fp32 = random_bool();
    /* Groups smaller than the cluster go by other names than hybrid_shard as well; under ddp they are refused. */
    random_key("shard_group");
    if (plan.strategy == DTP_HYBRID_SHARD || (plan.strategy != DTP_DDP && random_below(4) == 0))
        plan.shard_group = 1u << random_below(4);
    random_key("reduce_bucket_size");
    if (plan.runtime == &dtp_runtime_deepspeed && random_bool())
        random_deepspeed_sizes(&plan);
    random_runtime_choices(cluster, &plan);
    random_held_logits(&plan);
    random_own_fields(&plan);
    random_launches(&plan);
    return plan;
}

/* Place of the job's runtime in dtp_runtimes. */
static inline unsigned random_job_runtime(const struct random_job *job)
{
    unsigned runtime = 0;
    while (dtp_runtimes[runtime] != job->plan.runtime)
        runtime++;
    return runtime;
}

/* One job in 64 is nanotron's, of those that are valid one in eight, for what it has not is mostly taken back: by
 * chance next to none would be. The draws change nothing that is drawn behind them. */
static inline void random_nanotron(struct random_job *job)
{
    uint64_t kept = random_state;
    random_key("nanotron");
    if (random_below(64) == 0) {
        struct dtp_plan plan = dtp_plan_default();
        plan.runtime = &dtp_runtime_nanotron;
        plan.strategy = random_bool() ? DTP_DDP : DTP_ZERO1;
        plan.attention = random_bool() ? DTP_ATTENTION_FLASH : DTP_ATTENTION_FLASH2;
        plan.checkpointing = random_below(3) ? DTP_CHECKPOINT_NONE : DTP_CHECKPOINT_FULL;
        plan.micro_batch = job->plan.micro_batch, plan.sequence = job->plan.sequence;
        plan.accumulate = job->plan.accumulate;
        plan.ddp_bucket_bytes = random_below(3) ? plan.ddp_bucket_bytes : UINT64_C(1) << (20 + random_below(8));
        job->plan = plan;
        if (random_below(8))
            job->transformer.position = DTP_POSITION_ROPE, job->transformer.positions = 0;
        if (random_below(8)) {
            job->transformer.parallel_block = DTP_PARALLEL_NONE, job->transformer.norm_place = DTP_NORMS_BEFORE;
            job->transformer.qk_norm = job->transformer.qk_norm_wide = job->transformer.embedding_norm = false;
            job->transformer.attention_softcap = job->transformer.final_softcap = 0;
        }
    }
    random_state = kept;
}

/* Draws until a job is valid; gives up (false) after many refusals, which a test should treat as a failure. */
static inline bool random_job(struct random_job *job)
{
    for (int attempt = 0; attempt < 1000; attempt++) {
        job->transformer = random_transformer();
        job->cluster = random_cluster();
        job->plan = random_plan(&job->cluster);
        random_nanotron(job);
        random_carried(&job->transformer, &job->plan);
        job->asked = job->plan;
        if (dtp_transformer_check(&job->transformer, NULL, 0, NULL) == DTP_OK &&
            dtp_cluster_check(&job->cluster, NULL) == DTP_OK &&
            dtp_plan_resolve(&job->plan, &job->transformer, &job->cluster, NULL) == DTP_OK)
            return true;
    }
    return false;
}

#endif
