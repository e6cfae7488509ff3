/* Jobs that stay the same: number 0, 1, 2, ... is one job for ever, written as a user would type it.
 *
 * They are the random plans of random_plans.h and random_executor_plans.h with every other key of the scenario table on
 * top. Each key is drawn from a stream of its own, hashed from the job's number and the key's name: one that is added,
 * or drawn otherwise, changes the jobs that have it and no others. Most choices are kept where they belong (below: who
 * knows a key), so that most jobs resolve; of every sixteenth job all stay, for refusals are answers too. */
#ifndef TEST_FROZEN_JOBS_H
#define TEST_FROZEN_JOBS_H

#include "base/append.h"
#include "job/scenario_keys.h"

#include "lib/frozen_adapter_draws.h"
#include "lib/frozen_draws.h"
#include "lib/frozen_later_draws.h"
#include "lib/frozen_newest_draws.h"
#include "lib/frozen_populations.h"
#include "lib/random_executor_plans.h"
#include "lib/shipped_catalog.h"

#include <unistd.h>

#define FROZEN_VALUE_BYTES 64

struct frozen_job {
    uint32_t number;
    char value[DTP_KEY_COUNT][FROZEN_VALUE_BYTES]; /* "" where the key is not set */
};

/* Who knows a key, as far as a draw asks. */
enum frozen_who {
    FROZEN_ALL,
    FROZEN_TORCH,
    FROZEN_FSDP,
    FROZEN_FSDP1,
    FROZEN_FSDP2,
    FROZEN_DDP,
    FROZEN_FLEXIBLE_SYNC, /* neither DeepSpeed nor Megatron, whose accumulation is what it is */
    FROZEN_HYBRID,
    FROZEN_GROUPED, /* may shard over fewer GPUs than all */
    FROZEN_DEEPSPEED,
    FROZEN_ZERO3,
    FROZEN_MEGATRON,
    FROZEN_EXECUTOR,
    FROZEN_SCATTERING, /* our executor, on GPUs of one node that share state */
    FROZEN_ALLOCATOR,  /* whoever uses PyTorch's */
    FROZEN_NANOTRON,
    FROZEN_DIVIDED, /* DeepSpeed, drawn later */
    FROZEN_ADAPTED, /* PyTorch's, drawn later: models that are fine-tuned by adapters */
    FROZEN_PEFT,
    FROZEN_ROUTED,  /* Megatron, models with experts */
    FROZEN_HOOKED,  /* our executor, jobs with a communication hook */
    FROZEN_SLOTTED, /* DeepSpeed, models with experts */
    FROZEN_PIPED,   /* from here on a population each (frozen_populations.h) */
    FROZEN_LATENT,
    FROZEN_NARROW,
    FROZEN_CLAMPED,
    FROZEN_ROUTED_IN,
    FROZEN_FILTERED,
    FROZEN_CUT,
    FROZEN_PREPARED,
    FROZEN_WAITING,
    FROZEN_ROOMY,
    FROZEN_LEARNT,
    FROZEN_NEWEST, /* all of these and of those below */
    FROZEN_PROJECTED,
    FROZEN_DELAYED,
    FROZEN_NATIVE,
    FROZEN_KEPT,
    FROZEN_LAYERED,
    FROZEN_HELD,
    FROZEN_ROUNDS,
    FROZEN_SORTED,
    FROZEN_STAGED,
    FROZEN_SPREAD,
    FROZEN_CARRIED,
    FROZEN_GATHERED,
    FROZEN_BRIDGED,
    FROZEN_EXCHANGED, /* draws depend on the place here: what is new stands last */
};

static inline bool frozen_knows(enum frozen_who who, const struct dtp_draft *d)
{
    const struct dtp_plan *p = &d->plan;
    bool executor = p->runtime == &dtp_runtime_dtplan, fsdp = dtp_plan_is_fsdp(p);
    switch (who) {
    case FROZEN_ALL: return true;
    case FROZEN_TORCH: return p->runtime == &dtp_runtime_torch;
    case FROZEN_FSDP: return fsdp;
    case FROZEN_FSDP1: return fsdp && p->fsdp1;
    case FROZEN_FSDP2: return fsdp && !p->fsdp1;
    case FROZEN_DDP: return p->runtime == &dtp_runtime_torch && p->strategy == DTP_DDP;
    case FROZEN_FLEXIBLE_SYNC: return p->runtime == &dtp_runtime_torch || executor;
    case FROZEN_HYBRID: return p->strategy == DTP_HYBRID_SHARD;
    case FROZEN_GROUPED:
        return (fsdp || executor) && p->strategy != DTP_DDP && p->shard_group > 1 && p->shard_group < d->gpus;
    case FROZEN_DEEPSPEED: return p->runtime == &dtp_runtime_deepspeed;
    case FROZEN_ZERO3: return p->runtime == &dtp_runtime_deepspeed && p->strategy == DTP_ZERO3;
    case FROZEN_MEGATRON: return p->runtime == &dtp_runtime_megatron;
    case FROZEN_EXECUTOR: return executor;
    case FROZEN_SCATTERING:
        return executor && p->strategy != DTP_DDP && d->gpus > 1 && d->gpus <= d->gpus_per_node && p->shard_group != 1;
    case FROZEN_ALLOCATOR: return !executor;
    case FROZEN_NANOTRON: return p->runtime == &dtp_runtime_nanotron;
    case FROZEN_PEFT: return p->runtime == &dtp_runtime_peft;
    case FROZEN_ROUTED: return p->runtime == &dtp_runtime_megatron && d->transformer.experts;
    case FROZEN_HOOKED: return executor && frozen_population(random_job_number) == FROZEN_OF_HOOKED;
    case FROZEN_SLOTTED: return p->runtime == &dtp_runtime_deepspeed && d->transformer.experts;
    case FROZEN_DIVIDED: return p->runtime == &dtp_runtime_deepspeed;
    case FROZEN_ADAPTED: return p->runtime == &dtp_runtime_torch && p->strategy != DTP_HYBRID_SHARD;
    case FROZEN_PIPED:
    case FROZEN_LATENT:
    case FROZEN_NARROW:
    case FROZEN_CLAMPED:
    case FROZEN_ROUTED_IN:
    case FROZEN_FILTERED:
    case FROZEN_CUT:
    case FROZEN_PREPARED:
    case FROZEN_WAITING:
    case FROZEN_ROOMY:
    case FROZEN_LEARNT: return (int)frozen_population(random_job_number) - FROZEN_OF_PIPED == (int)who - FROZEN_PIPED;
    case FROZEN_PROJECTED: return frozen_population(random_job_number) == FROZEN_OF_PROJECTED;
    case FROZEN_DELAYED: return frozen_population(random_job_number) == FROZEN_OF_DELAYED;
    case FROZEN_NATIVE: return frozen_population(random_job_number) == FROZEN_OF_NATIVE;
    case FROZEN_KEPT: return frozen_population(random_job_number) == FROZEN_OF_KEPT;
    case FROZEN_LAYERED: return frozen_population(random_job_number) == FROZEN_OF_LAYERED;
    case FROZEN_HELD: return frozen_population(random_job_number) == FROZEN_OF_HELD;
    case FROZEN_ROUNDS: return frozen_population(random_job_number) == FROZEN_OF_ROUNDS;
    case FROZEN_SORTED: return frozen_population(random_job_number) == FROZEN_OF_SORTED;
    case FROZEN_STAGED: return frozen_population(random_job_number) == FROZEN_OF_STAGED;
    case FROZEN_SPREAD: return frozen_population(random_job_number) == FROZEN_OF_SPREAD;
    case FROZEN_CARRIED: return frozen_population(random_job_number) == FROZEN_OF_CARRIED;
    case FROZEN_GATHERED: return frozen_population(random_job_number) == FROZEN_OF_GATHERED;
    case FROZEN_EXCHANGED: return frozen_population(random_job_number) == FROZEN_OF_EXCHANGED;
    case FROZEN_BRIDGED: return frozen_population(random_job_number) == FROZEN_OF_BRIDGED;
    case FROZEN_NEWEST: return frozen_population(random_job_number) >= FROZEN_OF_PIPED;
    }
    return false;
}

/* Keys that random plans draw without asking who knows them, beside those whose rows name their only reader. */
static const struct {
    enum dtp_key key;
    enum frozen_who who;
} frozen_owners[] = {
    {DTP_KEY_shard_group, FROZEN_GROUPED},
    {DTP_KEY_accumulate_sync, FROZEN_FLEXIBLE_SYNC},
    {DTP_KEY_wrap_layers, FROZEN_FSDP},
    {DTP_KEY_reshard_after_forward, FROZEN_FSDP2},
    {DTP_KEY_prefetch_depth, FROZEN_EXECUTOR},
    {DTP_KEY_ddp_bucket_view, FROZEN_DDP},
    {DTP_KEY_gather_engine, FROZEN_SCATTERING},
    {DTP_KEY_reduce_engine, FROZEN_SCATTERING},
    {DTP_KEY_update_in_backward, FROZEN_SCATTERING},
};

static const struct {
    enum dtp_key key;
    enum frozen_who who;
    uint32_t one_in;
    const char *values;
} frozen_draws[] = {
#define FROZEN_DRAW(key, who, one_in, values) {DTP_KEY_##key, FROZEN_##who, one_in, values},
    FROZEN_DRAWS(FROZEN_DRAW) FROZEN_ADAPTER_DRAWS(FROZEN_DRAW) FROZEN_LATER_DRAWS(FROZEN_DRAW)
        FROZEN_NEWEST_DRAWS(FROZEN_DRAW)
#undef FROZEN_DRAW
};

static inline void frozen_set(struct frozen_job *job, enum dtp_key key, const char *value, size_t bytes)
{
    snprintf(job->value[key], FROZEN_VALUE_BYTES, "%.*s", (int)bytes, value);
}

/* One of several values with bars between. */
static inline void frozen_pick(struct frozen_job *job, enum dtp_key key, const char *values)
{
    uint64_t count = 1;
    for (const char *at = values; (at = strchr(at, '|')); at++)
        count++;
    for (uint64_t skip = random_below(count); skip; skip--)
        values = strchr(values, '|') + 1;
    frozen_set(job, key, values, strcspn(values, "|"));
}

/* The value of a key in the draft, unless it is the default. */
static inline void frozen_write(struct frozen_job *job, enum dtp_key key, const struct dtp_draft *draft)
{
    struct dtp_draft standard = dtp_draft_default();
    standard.transformer = dtp_transformer_default();
    struct dtp_job_value now, before;
    char digits[FROZEN_VALUE_BYTES];
    dtp_key_value(key, draft, &now);
    dtp_key_value(key, &standard, &before);
    if (now.kind == before.kind && now.kind == DTP_VALUE_WORD && strcmp(now.word, before.word) == 0)
        return;
    if (now.kind == before.kind && now.kind != DTP_VALUE_WORD && now.whole == before.whole &&
        !(now.real < before.real || now.real > before.real))
        return;
    switch (now.kind) {
    case DTP_VALUE_WHOLE: snprintf(digits, sizeof digits, "%llu", (unsigned long long)now.whole); break;
    case DTP_VALUE_REAL: snprintf(digits, sizeof digits, "%.10g", now.real); break;
    case DTP_VALUE_SWITCH: snprintf(digits, sizeof digits, "%s", now.whole ? "true" : "false"); break;
    case DTP_VALUE_WORD: snprintf(digits, sizeof digits, "%s", now.word); break;
    }
    frozen_set(job, key, digits, strlen(digits));
}

/* A random plan as a draft. Blocks repeat: a few show what many do, and a job in sixteen has many. */
static inline struct dtp_draft frozen_draft(void)
{
    struct dtp_draft draft = dtp_draft_default();
    struct dtp_cluster cluster = random_cluster();
    enum frozen_of of = frozen_population(random_job_number);
    const struct frozen_population *population = &frozen_populations[of];
    random_key("executor");
    bool executor = random_below(4) == 0; /* nanotron's and peft's models too, since they came */
    if (of >= FROZEN_OF_ROUTED)
        executor = population->runtime == &dtp_runtime_dtplan;
    draft.transformer = executor ? random_executor_transformer() : random_transformer();
    draft.plan = executor ? random_executor_plan(&cluster, &draft.transformer) : random_plan(&cluster);
    random_key("torch"); /* what most people ask for */
    if (!executor && random_bool())
        draft.plan.runtime = &dtp_runtime_torch;
    if (population->runtime)
        draft.plan.runtime = population->runtime;
    if (draft.plan.loss == DTP_LOSS_NATIVE) /* of which a population has jobs; the others stay as they were */
        draft.plan.loss = DTP_LOSS_CHUNKED;
    draft.plan.precision = dtp_plan_default().precision; /* frozen_draws has its recipes */
    random_key("shallow");
    if (random_below(16))
        draft.transformer.layers = 2 + draft.transformer.layers % 5;
    random_key("even sizes"); /* fp8 takes multiples of 16 */
    if (random_bool())
        draft.transformer.vocab = draft.transformer.vocab / 128 * 128, draft.transformer.ffn &= ~UINT64_C(15);
    if (population->experts) {
        random_key("experts");
        draft.transformer.experts = UINT64_C(8) << random_below(3), draft.transformer.experts_per_token = 2;
        draft.transformer.expert_ffn = UINT64_C(256) << random_below(3);
        draft.transformer.router_norm = random_bool();
    }
    draft.gpus = cluster.gpus;
    draft.gpus_per_node = cluster.gpus_per_node;
    draft.network_gbit_per_s = cluster.machine.network_bytes_per_s * 8e-9;
    draft.oversubscription = cluster.oversubscription;
    return draft;
}

/* Takes away what only others know. */
static inline void frozen_keep_owned(struct frozen_job *job, const struct dtp_draft *draft)
{
    for (size_t i = 0; i < sizeof frozen_owners / sizeof *frozen_owners; i++)
        if (!frozen_knows(frozen_owners[i].who, draft))
            job->value[frozen_owners[i].key][0] = '\0';
}

static inline bool frozen_is(const struct frozen_job *job, enum dtp_key key, const char *value)
{
    return strcmp(job->value[key], value) == 0;
}

#include "lib/frozen_adapters.h"

/* fp8 takes a GPU that has it and sizes that are multiples of 16. */
static inline bool frozen_takes_fp8(const struct frozen_job *job)
{
    bool odd = strtoull(job->value[DTP_KEY_ffn], NULL, 10) % 16 || strtoull(job->value[DTP_KEY_vocab], NULL, 10) % 16;
    return !odd && strncmp(job->value[DTP_KEY_gpu], "a100", 4) != 0;
}

/* The same of populations that came later; jobs before them stay refused by what stands there. */
static inline void frozen_keep_newest(struct frozen_job *job)
{
    bool delayed = frozen_is(job, DTP_KEY_precision, "fp8-delayed"), mx = frozen_is(job, DTP_KEY_precision, "mxfp8");
    bool shared = job->value[DTP_KEY_shared_expert_ffn][0], parts = job->value[DTP_KEY_recompute_modules][0];
    bool exchanged = job->value[DTP_KEY_cp][0] && frozen_is(job, DTP_KEY_cp_comm, "a2a");
    const struct {
        bool meaningless;
        enum dtp_key key;
    } rows[] = {
        {!mx, DTP_KEY_fp8_attention},
        {!mx, DTP_KEY_fp8_head},
        {delayed, DTP_KEY_bf16_first_layers},
        {delayed, DTP_KEY_bf16_last_layers},
        {!job->value[DTP_KEY_expert_groups][0], DTP_KEY_groups_per_token},
        {!shared, DTP_KEY_shared_expert_gate},
        {!shared, DTP_KEY_shared_expert_overlap},
        {!job->value[DTP_KEY_tp][0], DTP_KEY_tp_chunks},
        {!exchanged, DTP_KEY_cp_chunks},
        {!job->value[DTP_KEY_pp][0] || strncmp(job->value[DTP_KEY_schedule], "zb", 2) == 0, DTP_KEY_delay_wgrad},
        {parts, DTP_KEY_checkpointing},
        {!job->value[DTP_KEY_capacity_factor][0], DTP_KEY_pad_to_capacity},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (rows[i].meaningless && frozen_population(job->number) >= FROZEN_OF_PIPED)
            job->value[rows[i].key][0] = '\0';
}

/* Takes away formats that follow from the recipe: of a frozen base, of runtimes that own the master. */
static inline void frozen_keep_formats(struct frozen_job *job)
{
    const bool adapted = job->value[DTP_KEY_lora][0];
    const bool owned = frozen_is(job, DTP_KEY_runtime, "megatron") || frozen_is(job, DTP_KEY_runtime, "nanotron");
    if (frozen_is(job, DTP_KEY_precision, "fp32"))
        return;
    if ((adapted || owned) && frozen_is(job, DTP_KEY_param_dtype, "fp32"))
        job->value[DTP_KEY_param_dtype][0] = '\0';
    if (adapted)
        job->value[DTP_KEY_master_dtype][0] = '\0';
}

/* Takes away what other keys leave no meaning. */
static inline void frozen_keep_meaningful(struct frozen_job *job)
{
    static const enum dtp_key degrees[] = {DTP_KEY_tp, DTP_KEY_pp, DTP_KEY_cp};
    for (size_t i = 0; i < sizeof degrees / sizeof *degrees; i++)
        if (frozen_is(job, degrees[i], "1")) /* what belongs to more goes with them */
            job->value[degrees[i]][0] = '\0';
    bool zero_bubble = job->value[DTP_KEY_pp][0] && strncmp(job->value[DTP_KEY_schedule], "zb", 2) == 0;
    const struct {
        bool meaningless;
        enum dtp_key key;
    } rows[] = {
        {!job->value[DTP_KEY_experts][0], DTP_KEY_etp},
        {frozen_is(job, DTP_KEY_autoep, "true"), DTP_KEY_capacity_factor},
        {frozen_is(job, DTP_KEY_autoep, "true"), DTP_KEY_drop_tokens},
        {frozen_is(job, DTP_KEY_autoep, "true"), DTP_KEY_transformers_layers},
        {!frozen_is(job, DTP_KEY_position, "learned"), DTP_KEY_positions},
        {!job->value[DTP_KEY_sliding_window][0], DTP_KEY_sliding_window_pattern},
        {frozen_is(job, DTP_KEY_norm, "layer_norm"), DTP_KEY_norm_unit_offset},
        {!frozen_is(job, DTP_KEY_norm, "layer_norm"), DTP_KEY_norm_bias},
        {!frozen_is(job, DTP_KEY_qk_norm, "true"), DTP_KEY_qk_norm_wide},
        {!frozen_is(job, DTP_KEY_qk_norm, "true"), DTP_KEY_qk_layer_norm},
        {!frozen_is(job, DTP_KEY_qk_norm, "true") || frozen_is(job, DTP_KEY_qk_norm_wide, "true"),
         DTP_KEY_qk_norm_weight},
        {!frozen_is(job, DTP_KEY_qk_norm, "true") || !frozen_is(job, DTP_KEY_qk_layer_norm, "true") ||
             frozen_is(job, DTP_KEY_qk_norm_weight, "none"),
         DTP_KEY_qk_norm_bias},
        {frozen_is(job, DTP_KEY_norm_unit_offset, "true"), DTP_KEY_norm_without_weight},
        {frozen_is(job, DTP_KEY_norm, "layer_norm"), DTP_KEY_norm_without_weight},
        {!frozen_is(job, DTP_KEY_activation, "gelu"), DTP_KEY_gelu_epilogue},
        {!frozen_is(job, DTP_KEY_fsdp1, "true"), DTP_KEY_limit_all_gathers},
        {!job->value[DTP_KEY_tp][0], DTP_KEY_tp_overlap},
        {!job->value[DTP_KEY_pp][0] || zero_bubble, DTP_KEY_virtual_stages},
        {!job->value[DTP_KEY_pp][0], DTP_KEY_schedule},
        {!job->value[DTP_KEY_pp][0], DTP_KEY_stages},
        {!zero_bubble, DTP_KEY_post_validation},
        {frozen_is(job, DTP_KEY_qk_norm, "true") ||
             (job->value[DTP_KEY_position][0] && !frozen_is(job, DTP_KEY_position, "rope")),
         DTP_KEY_fused_qkv_rope},
        {frozen_is(job, DTP_KEY_fused_qkv_rope, "true") ||
             (job->value[DTP_KEY_position][0] && !frozen_is(job, DTP_KEY_position, "rope")),
         DTP_KEY_unfused_rope},
        {zero_bubble, DTP_KEY_tied_head},
        {zero_bubble, DTP_KEY_megatron_overlap},
        {zero_bubble, DTP_KEY_microbatch_group},
        {!job->value[DTP_KEY_pp][0] ||
             (!job->value[DTP_KEY_virtual_stages][0] && !frozen_is(job, DTP_KEY_schedule, "interleaved")),
         DTP_KEY_microbatch_group},
        {!job->value[DTP_KEY_pp][0] && !job->value[DTP_KEY_tp][0], DTP_KEY_layout_order},
        {!job->value[DTP_KEY_cp][0], DTP_KEY_cp_comm},
        {!job->value[DTP_KEY_cp][0], DTP_KEY_seq_parallel_communication_data_type},
        {job->value[DTP_KEY_cp][0] && frozen_is(job, DTP_KEY_runtime, "deepspeed") &&
             frozen_is(job, DTP_KEY_checkpointing, "selective"),
         DTP_KEY_checkpointing},
        {!frozen_is(job, DTP_KEY_strategy, "zero1") || !frozen_is(job, DTP_KEY_offload, "none") ||
             frozen_is(job, DTP_KEY_deepspeed_overlap, "true"),
         DTP_KEY_bf16_optimizer},
        {strncmp(job->value[DTP_KEY_precision], "fp8", 3) == 0 && !frozen_takes_fp8(job), DTP_KEY_precision},
        {frozen_is(job, DTP_KEY_precision, "fp32"), DTP_KEY_reduce_dtype},
        {frozen_is(job, DTP_KEY_precision, "fp16-mixed"), DTP_KEY_reduce_dtype},
        {!frozen_is(job, DTP_KEY_precision, "fp8-tensorwise") ||
             (job->value[DTP_KEY_fp8_recipe][0] && !frozen_is(job, DTP_KEY_fp8_recipe, "tensorwise")),
         DTP_KEY_fp8_all_gather},
        {job->value[DTP_KEY_offload][0] && !frozen_is(job, DTP_KEY_offload, "none") &&
             strncmp(job->value[DTP_KEY_optimizer], "adamw", 5) != 0,
         DTP_KEY_optimizer},
        {strncmp(job->value[DTP_KEY_precision], "fp8", 3) != 0 || frozen_is(job, DTP_KEY_fsdp1, "true"),
         DTP_KEY_fp8_recipe},
        {frozen_is(job, DTP_KEY_precision, "fp8-rowwise"), DTP_KEY_fsdp1},
        {frozen_is(job, DTP_KEY_prefetch, "false"), DTP_KEY_prefetch_depth},
        {frozen_is(job, DTP_KEY_update_in_backward, "true"), DTP_KEY_clip_norm},
        {frozen_is(job, DTP_KEY_update_in_backward, "true"), DTP_KEY_gradient_norm},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (rows[i].meaningless)
            job->value[rows[i].key][0] = '\0';
    if (strpbrk(job->value[DTP_KEY_optimizer], "48")) /* adam4bit, adam-fp8: a format of their own */
        job->value[DTP_KEY_moment_dtype][0] = '\0';
    frozen_keep_formats(job);
    frozen_keep_adapted(job);
    frozen_keep_newest(job);
}

/* Strategies first, for they decide who knows the rest. */
static inline void frozen_draw_keys(struct frozen_job *job, bool strategies, bool wild, struct dtp_draft *draft)
{
    char why[DTP_FAULT_TEXT_BYTES];
    for (size_t i = 0; i < sizeof frozen_draws / sizeof *frozen_draws; i++) {
        enum dtp_key key = frozen_draws[i].key;
        bool later = frozen_draws[i].who >= FROZEN_NANOTRON; /* whose rows leave all other jobs as they are */
        if (wild && frozen_came_later(key))
            continue;
        if ((key == DTP_KEY_strategy) != strategies || ((!wild || later) && !frozen_knows(frozen_draws[i].who, draft)))
            continue;
        random_key(dtp_key_name(key));
        random_state ^= frozen_draws[i].who; /* a key may have a row for each of several */
        if (random_below(frozen_draws[i].one_in) == 0)
            frozen_pick(job, key, frozen_draws[i].values);
        if (job->value[key][0] && strategies)
            dtp_key_apply(key, job->value[key], draft, why, sizeof why);
    }
}

/* clang-format off */ /* keys that random plans and clusters draw, beside those above */
#define FROZEN_NAMED_KEYS(X) \
    X(model) X(params) X(layers) X(hidden) X(heads) X(kv_heads) X(head_dim) X(ffn) X(vocab) X(tied_head) \
    X(machine) X(gpus) X(nodes) X(gpus_per_node) X(network_gbit_per_s) X(oversubscription) X(runtime) X(compile) \
    X(fsdp1) X(shard_group) X(micro_batch) X(global_batch) X(global_batch_tokens) X(accumulate_sync) X(seq) \
    X(attention) X(wrap_layers) X(ddp_bucket_view) X(deepspeed_overlap) X(reduce_bucket_size) \
    X(stage3_max_live_parameters) X(stage3_max_reuse_distance) X(stage3_prefetch_bucket_size) \
    X(stage3_param_persistence_threshold) X(prefetch) X(fused_qkv) X(fused_gate_up) X(rope_fp32) X(clip_norm) \
    X(loss_chunk) X(gelu_epilogue) X(gradient_stream) X(gather_engine) X(reduce_engine) \
    X(experts) X(expert_ffn) X(activation_fp8_input_store)
/* clang-format on */
#define FROZEN_KEY(key) DTP_KEY_##key,
static const enum dtp_key frozen_named_keys[] = {FROZEN_NAMED_KEYS(FROZEN_KEY)};

static inline bool frozen_is_named(enum dtp_key key)
{
    for (size_t i = 0; i < sizeof frozen_named_keys / sizeof *frozen_named_keys; i++)
        if (frozen_named_keys[i] == key)
            return true;
    for (size_t i = 0; i < sizeof frozen_draws / sizeof *frozen_draws; i++)
        if (frozen_draws[i].key == key)
            return true;
    return false;
}

/* A value of the key that is not its default: one of its words, the other position of a switch, a small number. */
static inline void frozen_pick_from_row(struct frozen_job *job, enum dtp_key key)
{
    static const char *const numbers = "1|2|4|8|64|1h|2GB|bf16|fp32";
    size_t count;
    const char *words = dtp_scenario_keys(&count)[key].value, *values = words && strchr(words, '|') ? words : numbers;
    struct dtp_draft standard = dtp_draft_default(), draft = standard;
    char why[DTP_FAULT_TEXT_BYTES];
    for (int attempt = 0; attempt < 32; attempt++) {
        frozen_pick(job, key, words ? values : "true|false");
        if (dtp_key_apply(key, job->value[key], &draft, why, sizeof why) && !dtp_key_same(key, &draft, &standard))
            return;
    }
    job->value[key][0] = '\0';
}

/* Keys that no table here names are drawn from their rows, in one job of six that reads them: a key that is new needs
 * nothing here. */
static inline void frozen_draw_rows(struct frozen_job *job, bool wild, const struct dtp_draft *draft)
{
    for (int i = 0; i < DTP_KEY_COUNT; i++) {
        enum dtp_key key = (enum dtp_key)i;
        if (frozen_is_named(key) || !(wild || dtp_key_reader_reads(dtp_key_reader(key), &draft->plan)))
            continue;
        random_key(dtp_key_name(key));
        if (random_below(6) == 0)
            frozen_pick_from_row(job, key);
    }
}

/* The model otherwise than by its shape: a preset, a count, a file that says what no key does. */
static inline void frozen_draw_model(struct frozen_job *job)
{
    static const char *const presets = "llama-7b|gpt-2|qwen3-0.6b|stories-15m|smollm-135m|qwen2.5-0.5b|tinyllama-1.1b";
    static const char *const files = "tests/fixtures/hf/opt-no-final-norm.json|tests/fixtures/hf/mistral-7b.json|"
                                     "tests/fixtures/hf/bloom-560m.json";
    random_key("model");
    uint64_t drawn = random_below(32);
    for (int key = 0; key < DTP_KEY_COUNT && drawn < 3; key++)
        if (strcmp(dtp_key_section((enum dtp_key)key), "model") == 0)
            job->value[key][0] = '\0';
    if (drawn < 2)
        frozen_pick(job, DTP_KEY_model, presets);
    else if (drawn == 2)
        frozen_pick(job, DTP_KEY_params, "125M|1.3e9|7e9|40M");
    else if (drawn < 7)
        frozen_pick(job, DTP_KEY_model, files);
}

static inline void frozen_draw_cluster(struct frozen_job *job, const struct dtp_draft *draft)
{
    random_key("machine");
    if (random_below(16) == 0) {
        frozen_pick(job, DTP_KEY_machine, "dgx-h100|pcie-box|gb200-nvl72|hgx-h100-4|tests/data/synthetic_machine.csv");
        if (strcmp(job->value[DTP_KEY_machine], "pcie-box") != 0)
            job->value[DTP_KEY_gpu][0] = job->value[DTP_KEY_network_gbit_per_s][0] = '\0';
        job->value[DTP_KEY_gpus_per_node][0] = '\0';
    }
    random_key("by nodes");
    if (random_below(8) == 0) {
        snprintf(job->value[DTP_KEY_nodes], FROZEN_VALUE_BYTES, "%u", draft->gpus / draft->gpus_per_node);
        job->value[DTP_KEY_gpus][0] = '\0';
    }
    random_key("own network");
    if (random_bool())
        job->value[DTP_KEY_network_gbit_per_s][0] = '\0';
}

/* The batch of all GPUs instead of the micro-steps of one. */
static inline void frozen_draw_batch(struct frozen_job *job, const struct dtp_draft *draft)
{
    const struct dtp_plan *p = &draft->plan;
    uint64_t sequences = (uint64_t)p->micro_batch * p->accumulate * draft->gpus;
    random_key("global_batch");
    uint64_t drawn = random_below(24);
    if (drawn > 1)
        return;
    job->value[DTP_KEY_accumulate][0] = '\0';
    enum dtp_key key = drawn ? DTP_KEY_global_batch_tokens : DTP_KEY_global_batch;
    snprintf(job->value[key], FROZEN_VALUE_BYTES, "%llu",
             (unsigned long long)(drawn ? sequences * p->sequence : sequences));
}

static inline void frozen_draw(uint32_t number, struct frozen_job *job)
{
    memset(job, 0, sizeof *job);
    job->number = number;
    random_frozen = true, random_job_number = number;
    struct dtp_draft draft = frozen_draft();
    bool wild = number % 16 == 15 && frozen_population(number) < FROZEN_OF_PIPED;
    frozen_draw_keys(job, true, wild, &draft);
    if (!frozen_knows(FROZEN_FSDP, &draft))
        draft.plan.fsdp1 = false;
    if (!wild)
        dtp_plan_drop_unread(&draft.plan);
    for (int key = 0; key < DTP_KEY_COUNT; key++)
        if (key != DTP_KEY_params && key != DTP_KEY_global_batch && key != DTP_KEY_global_batch_tokens &&
            key != DTP_KEY_bias)
            frozen_write(job, (enum dtp_key)key, &draft);
    if (!wild)
        frozen_keep_owned(job, &draft);
    frozen_draw_keys(job, false, wild, &draft);
    frozen_draw_rows(job, wild, &draft);
    if (!wild)
        frozen_keep_meaningful(job);
    frozen_draw_model(job);
    frozen_draw_cluster(job, &draft);
    frozen_draw_batch(job, &draft);
    random_frozen = false;
}

/* The job as flags, to be typed in the project's folder. Returns `out`. */
static inline const char *frozen_words(const struct frozen_job *job, char *out, size_t bytes)
{
    *out = '\0';
    for (int key = 0; key < DTP_KEY_COUNT; key++) {
        if (!job->value[key][0])
            continue;
        char *flag = out + strlen(out);
        dtp_append(out, bytes, " --%s", dtp_key_name((enum dtp_key)key));
        for (; *flag; flag++)
            *flag = *flag == '_' ? '-' : *flag;
        dtp_append(out, bytes, "=%s", job->value[key]);
    }
    return out;
}

static inline enum dtp_status frozen_set_keys(const struct frozen_job *frozen, struct dtp_scenario *scenario,
                                              struct dtp_faults *faults)
{
    enum dtp_status status = DTP_OK;
    for (int key = 0; key < DTP_KEY_COUNT && status == DTP_OK; key++)
        if (frozen->value[key][0])
            status =
                dtp_scenario_set(scenario, dtp_key_name((enum dtp_key)key), frozen->value[key], "frozen", 0, faults);
    return status;
}

/* DTP_OK, or what the scenario's keys or their rules refuse. */
static inline enum dtp_status frozen_resolve(const struct frozen_job *frozen, const struct dtp_catalog *catalogue,
                                             struct dtp_job *job, struct dtp_faults *faults)
{
    struct dtp_scenario *scenario;
    enum dtp_status status = dtp_scenario_create(&scenario, faults);
    if (status == DTP_OK)
        status = frozen_set_keys(frozen, scenario, faults);
    if (status == DTP_OK)
        status = dtp_scenario_resolve(scenario, catalogue, job, faults);
    dtp_scenario_destroy(scenario);
    return status;
}

/* Fixture of a group of tests: the shipped catalogue, in the folder that the files of frozen jobs are named from. */
static inline int enter_frozen_jobs(void **state)
{
    static struct dtp_faults faults;
    if (chdir(TEST_SOURCE_DIR) != 0 || load_catalog(state) != 0)
        return -1;
    return dtp_catalog_measure(&catalog, "tests/data/synthetic_machine.csv", &faults) == DTP_OK ? 0 : -1;
}

#endif
