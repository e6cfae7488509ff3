#include "job/change.h"
#include "runtime/runtimes.h"

#include "closed/activations.h"
#include "cost/op_cost.h"
#include "closed/sharding.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static const char *const keys[] = {
#define QUESTION_KEY(suffix, key, words, none) key,
    DTP_QUESTION_TABLE(QUESTION_KEY)};
static const char *const question_words[] = {
#define QUESTION_WORDS(suffix, key, words, none) words,
    DTP_QUESTION_TABLE(QUESTION_WORDS)};
static const char *const question_none[] = {
#define QUESTION_NONE(suffix, key, words, none) none,
    DTP_QUESTION_TABLE(QUESTION_NONE)};

const char *dtp_question_key(enum dtp_question question)
{
    return keys[question];
}

const char *dtp_question_words(enum dtp_question question)
{
    return question_words[question];
}

const char *dtp_question_none(enum dtp_question question, const struct dtp_plan *plan)
{
    bool fsdp = dtp_plan_is_fsdp(plan);
    if (question == DTP_QUESTION_LIMIT_ALL_GATHERS && fsdp && !plan->fsdp1)
        return "only FSDP1 limits all-gathers; FSDP2 frees gathered weights in the order of the host, so there is "
               "nothing to limit";
    if (question == DTP_QUESTION_BUCKET_SIZE && dtp_plan_shards_params(plan))
        return "gradients leave unit by unit, not in buckets: --wrap-layers is the size of a unit";
    return question_none[question];
}

/* ---- changes ---------------------------------------------------------------------------------------------------- */

bool dtp_change_strategy(struct dtp_plan *plan, enum dtp_strategy strategy)
{
    bool synonym = plan->runtime->fsdp; /* zero3 is another word for full_shard */
    if (plan->strategy == strategy || (synonym && strategy == DTP_ZERO3) ||
        (synonym && plan->strategy == DTP_ZERO3 && strategy == DTP_FULL_SHARD))
        return false;
    plan->strategy = strategy;
    /* As dtp_plan_resolve has it follow the strategy. */
    plan->reshard_after_forward = strategy == DTP_FULL_SHARD || strategy == DTP_ZERO3 || strategy == DTP_HYBRID_SHARD;
    if (!dtp_plan_is_fsdp(plan) && !plan->runtime->own_prefetch)
        plan->prefetch_depth = 1;
    if (!dtp_plan_is_fsdp(plan) || !plan->reshard_after_forward)
        plan->reshard_group = 0;
    if (strategy != DTP_ZERO3) {
        plan->deepspeed.zero_hpz_partition_size = 1;
        plan->deepspeed.zero_quantized_weights = plan->deepspeed.zero_quantized_gradients = false;
    }
    return true;
}

static bool set_checkpointing(struct dtp_plan *plan, enum dtp_checkpointing checkpointing)
{
    if (plan->checkpointing == checkpointing)
        return false;
    plan->checkpointing = checkpointing;
    return true;
}

#define STRATEGY_CANDIDATE(suffix, text)                                                                               \
    static bool use_##suffix(struct dtp_plan *plan)                                                                    \
    {                                                                                                                  \
        return dtp_change_strategy(plan, DTP_##suffix);                                                                \
    }
DTP_STRATEGY_TABLE(STRATEGY_CANDIDATE)

static bool keep_activations(struct dtp_plan *plan)
{
    return set_checkpointing(plan, DTP_CHECKPOINT_NONE);
}
static bool recompute_all(struct dtp_plan *plan)
{
    return set_checkpointing(plan, DTP_CHECKPOINT_FULL);
}
static bool recompute_some(struct dtp_plan *plan)
{
    return set_checkpointing(plan, DTP_CHECKPOINT_SELECTIVE_MATMUL);
}

static bool compile(struct dtp_plan *plan)
{
    bool changed = plan->runtime->compiles && !plan->compile;
    plan->compile = true;
    return changed;
}

static bool flash(struct dtp_plan *plan)
{
    bool changed = plan->attention != DTP_ATTENTION_FLASH;
    plan->attention = DTP_ATTENTION_FLASH;
    return changed;
}

static bool fuse_loss(struct dtp_plan *plan)
{
    bool changed = plan->loss == DTP_LOSS_EAGER;
    plan->loss = DTP_LOSS_FUSED;
    return changed;
}

static bool chunk_loss(struct dtp_plan *plan)
{
    bool changed = plan->loss != DTP_LOSS_CHUNKED;
    plan->loss = DTP_LOSS_CHUNKED;
    return changed;
}

static bool fuse_optimizer(struct dtp_plan *plan)
{
    bool changed = plan->optimizer == DTP_ADAMW_FOREACH;
    plan->optimizer = DTP_ADAMW_FUSED;
    return changed;
}

static bool offload_optimizer(struct dtp_plan *plan)
{
    bool changed = plan->offload == DTP_OFFLOAD_NONE;
    plan->offload = DTP_OFFLOAD_OPTIMIZER;
    return changed;
}

static bool offload_params(struct dtp_plan *plan)
{
    bool changed = plan->offload == DTP_OFFLOAD_NONE || plan->offload == DTP_OFFLOAD_OPTIMIZER;
    plan->offload = DTP_OFFLOAD_PARAMS;
    return changed;
}

static bool stop_offload(struct dtp_plan *plan)
{
    bool changed = plan->offload != DTP_OFFLOAD_NONE;
    plan->offload = DTP_OFFLOAD_NONE;
    return changed;
}

static bool prefetch(struct dtp_plan *plan)
{
    bool changed = !plan->prefetch;
    plan->prefetch = true;
    return changed;
}

static bool no_sync(struct dtp_plan *plan)
{
    bool changed = plan->accumulate > 1 && plan->accumulate_sync;
    plan->accumulate_sync = false;
    return changed;
}

static bool sync_each(struct dtp_plan *plan)
{
    bool changed = plan->accumulate > 1 && !plan->accumulate_sync;
    plan->accumulate_sync = true;
    return changed;
}

/* Half the width of the matmuls and of what is saved for backward; tensor cores instead of fp32 units. */
static bool mix_precision(struct dtp_plan *plan)
{
    return plan->precision.compute == DTP_FP32 && dtp_precision_recipe("bf16-mixed", &plan->precision);
}

static bool small_moments(struct dtp_plan *plan)
{
    bool changed = plan->optimizer == DTP_ADAMW_FUSED || plan->optimizer == DTP_ADAMW_FOREACH;
    plan->optimizer = DTP_ADAM8BIT;
    return changed;
}

static bool small_state(struct dtp_plan *plan)
{
    struct dtp_precision before = plan->precision;
    return before.compute == DTP_BF16 && before.moments == DTP_FP32 &&
           dtp_precision_recipe("bf16-pure", &plan->precision);
}

static bool no_compile(struct dtp_plan *plan)
{
    bool changed = plan->compile;
    plan->compile = false;
    return changed;
}

static bool math_attention(struct dtp_plan *plan)
{
    bool changed = plan->attention != DTP_ATTENTION_MATH;
    plan->attention = DTP_ATTENTION_MATH;
    return changed;
}

static bool flash2(struct dtp_plan *plan)
{
    bool changed = plan->attention != DTP_ATTENTION_FLASH2;
    plan->attention = DTP_ATTENTION_FLASH2;
    return changed;
}

static bool foreach_optimizer(struct dtp_plan *plan)
{
    bool changed = plan->optimizer == DTP_ADAMW_FUSED && plan->runtime->foreach_optimizer;
    plan->optimizer = DTP_ADAMW_FOREACH;
    return changed;
}

static bool no_prefetch(struct dtp_plan *plan)
{
    bool changed = plan->prefetch && dtp_plan_shards_params(plan);
    plan->prefetch = false;
    plan->prefetch_depth = 1;
    return changed;
}

static bool prefetch_depth(struct dtp_plan *plan, uint32_t depth)
{
    bool changed = dtp_plan_is_fsdp(plan) && !plan->fsdp1 && plan->prefetch && plan->prefetch_depth != depth;
    plan->prefetch_depth = depth;
    return changed;
}
static bool depth_1(struct dtp_plan *plan)
{
    return prefetch_depth(plan, 1);
}
static bool depth_2(struct dtp_plan *plan)
{
    return prefetch_depth(plan, 2);
}
static bool depth_4(struct dtp_plan *plan)
{
    return prefetch_depth(plan, 4);
}

static bool reduce_in(struct dtp_plan *plan, enum dtp_dtype dtype)
{
    bool changed = plan->precision.reduce != dtype;
    plan->precision.reduce = dtype;
    return changed;
}
static bool reduce_bf16(struct dtp_plan *plan)
{
    return reduce_in(plan, DTP_BF16);
}
static bool reduce_fp32(struct dtp_plan *plan)
{
    return reduce_in(plan, DTP_FP32);
}

static bool hybrid_reshard(struct dtp_plan *plan, bool to)
{
    bool changed = plan->strategy == DTP_HYBRID_SHARD && plan->reshard_after_forward != to;
    plan->reshard_after_forward = to;
    return changed;
}
static bool reshards(struct dtp_plan *plan)
{
    bool within_a_group = plan->reshard_group;
    plan->reshard_group = 0;
    return hybrid_reshard(plan, true) || within_a_group;
}
static bool hybrid_keeps(struct dtp_plan *plan)
{
    plan->reshard_group = 0;
    return hybrid_reshard(plan, false);
}

static bool keep_root(struct dtp_plan *plan)
{
    bool changed = dtp_plan_is_fsdp(plan) && !plan->keep_root && plan->reshard_after_forward;
    plan->keep_root = true;
    return changed;
}

static bool fsdp1(struct dtp_plan *plan)
{
    bool changed = dtp_plan_is_fsdp(plan) && !plan->fsdp1;
    plan->fsdp1 = true;
    plan->reshard_group = 0;
    plan->prefetch_depth = 1;
    return changed;
}

static bool fsdp2(struct dtp_plan *plan)
{
    bool changed = plan->fsdp1;
    plan->fsdp1 = false;
    plan->limit_all_gathers = true;
    return changed;
}

static bool limit(struct dtp_plan *plan, bool to)
{
    bool changed = plan->fsdp1 && plan->limit_all_gathers != to;
    plan->limit_all_gathers = to;
    return changed;
}
static bool limits(struct dtp_plan *plan)
{
    return limit(plan, true);
}
static bool limits_not(struct dtp_plan *plan)
{
    return limit(plan, false);
}

static bool bucket_mib(struct dtp_plan *plan, uint64_t mib)
{
    bool changed = plan->strategy == DTP_DDP && plan->ddp_bucket_bytes != mib << 20;
    plan->ddp_bucket_bytes = mib << 20;
    return changed;
}
static bool bucket_25(struct dtp_plan *plan)
{
    return bucket_mib(plan, 25);
}
static bool bucket_100(struct dtp_plan *plan)
{
    return bucket_mib(plan, 100);
}
static bool bucket_500(struct dtp_plan *plan)
{
    return bucket_mib(plan, 500);
}

static bool bucket_view(struct dtp_plan *plan)
{
    bool changed = plan->runtime->ddp && plan->strategy == DTP_DDP && !plan->ddp_bucket_view;
    plan->ddp_bucket_view = true;
    return changed;
}

static bool overlap(struct dtp_plan *plan)
{
    bool changed = plan->runtime->overlap_comm && !plan->deepspeed.overlap_comm;
    plan->deepspeed.overlap_comm = true;
    return changed;
}

static bool int8_weights(struct dtp_plan *plan)
{
    bool changed = dtp_plan_fetches_modules(plan) && !plan->deepspeed.zero_quantized_weights;
    plan->deepspeed.zero_quantized_weights = true;
    return changed;
}

static bool int4_gradients(struct dtp_plan *plan)
{
    bool changed = dtp_plan_fetches_modules(plan) && !plan->deepspeed.zero_quantized_gradients;
    plan->deepspeed.zero_quantized_gradients = true;
    return changed;
}

/* ---- the table --------------------------------------------------------------------------------------------------- */

#define ADVISED DTP_CHANGE_ADVISED
#define LAST DTP_CHANGE_ADVISED_LAST
#define SHOWN DTP_CHANGE_SHOWN
#define Q(suffix) DTP_QUESTION_##suffix

/* The advisor keeps the first of equals: the order of what it proposes counts. */
static const struct dtp_change_rule rules[] = {
#define STRATEGY_ROW(suffix, text)                                                                                     \
    {"--strategy " text, DTP_##suffix == DTP_HYBRID_SHARD ? Q(HYBRID_SHARD) : Q(STRATEGY), ADVISED, false,             \
     use_##suffix},
    DTP_STRATEGY_TABLE(STRATEGY_ROW)
#undef STRATEGY_ROW
        {"--checkpointing none", Q(CHECKPOINTING), ADVISED, false, keep_activations},
    {"--checkpointing selective", Q(CHECKPOINTING), ADVISED, false, recompute_some},
    {"--checkpointing full", Q(CHECKPOINTING), ADVISED, false, recompute_all},
    {"--compile", Q(COMPILE), ADVISED, false, compile},
    {"--no-compile", Q(COMPILE), SHOWN, false, no_compile},
    {"--attention flash", Q(ATTENTION), ADVISED, false, flash},
    {"--attention flash2", Q(ATTENTION), SHOWN, false, flash2},
    {"--attention math", Q(ATTENTION), SHOWN, false, math_attention},
    {"--loss fused", Q(LOSS), ADVISED, false, fuse_loss},
    {"--loss chunked", Q(LOSS), ADVISED, false, chunk_loss},
    {"--optimizer adamw", Q(OPTIMIZER), ADVISED, false, fuse_optimizer},
    {"--optimizer adamw-foreach", Q(OPTIMIZER), SHOWN, false, foreach_optimizer},
    {"--offload none", Q(OPTIMIZER_OFFLOAD), ADVISED, false, stop_offload},
    {"--offload optimizer", Q(OPTIMIZER_OFFLOAD), ADVISED, false, offload_optimizer},
    {"--offload params", Q(OPTIMIZER_OFFLOAD), ADVISED, false, offload_params},
    {"--prefetch", Q(PREFETCH), ADVISED, false, prefetch},
    {"--no-prefetch", Q(PREFETCH), SHOWN, false, no_prefetch},
    {"--prefetch-depth 1", Q(PREFETCH), SHOWN, false, depth_1},
    {"--prefetch-depth 2", Q(PREFETCH), SHOWN, false, depth_2},
    {"--prefetch-depth 4", Q(PREFETCH), SHOWN, false, depth_4},
    {"--no-accumulate-sync", Q(ACCUMULATE_SYNC), ADVISED, false, no_sync},
    {"--accumulate-sync", Q(ACCUMULATE_SYNC), ADVISED, false, sync_each},
    {"--deepspeed-overlap", Q(PREFETCH), SHOWN, false, overlap},
    {"--reshard-after-forward", Q(RESHARD), SHOWN, false, reshards},
    {"--no-reshard-after-forward", Q(RESHARD), SHOWN, false, hybrid_keeps},
    {"--keep-root", Q(RESHARD), SHOWN, false, keep_root},
    {"--fsdp1", Q(STRATEGY), SHOWN, false, fsdp1},
    {"--no-fsdp1", Q(STRATEGY), SHOWN, false, fsdp2},
    {"--limit-all-gathers", Q(LIMIT_ALL_GATHERS), SHOWN, false, limits},
    {"--no-limit-all-gathers", Q(LIMIT_ALL_GATHERS), SHOWN, false, limits_not},
    {"--ddp-bucket-mib 25", Q(BUCKET_SIZE), SHOWN, false, bucket_25},
    {"--ddp-bucket-mib 100", Q(BUCKET_SIZE), SHOWN, false, bucket_100},
    {"--ddp-bucket-mib 500", Q(BUCKET_SIZE), SHOWN, false, bucket_500},
    {"--ddp-bucket-view", Q(BUCKET_SIZE), SHOWN, false, bucket_view},
    {"--zero-quantized-weights", Q(PRECISION), SHOWN, true, int8_weights},
    {"--zero-quantized-gradients", Q(REDUCE_DTYPE), SHOWN, true, int4_gradients},
    {"--reduce-dtype bf16", Q(REDUCE_DTYPE), SHOWN, true, reduce_bf16},
    {"--reduce-dtype fp32", Q(REDUCE_DTYPE), SHOWN, true, reduce_fp32},
    {"--precision bf16-mixed", Q(PRECISION), ADVISED, true, mix_precision},
    {"--optimizer adam8bit", Q(OPTIMIZER), LAST, true, small_moments},
    {"--precision bf16-pure", Q(PRECISION), LAST, true, small_state},
};

const struct dtp_change_rule *dtp_change_rules(size_t *count)
{
    *count = sizeof rules / sizeof *rules;
    return rules;
}

bool dtp_change_apply(const char *flags, struct dtp_plan *plan)
{
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++)
        if (strcmp(rules[i].flags, flags) == 0)
            return rules[i].apply(plan);
    return false;
}

/* A multiple of 64 elements is one of 16 bytes in every format, and of the tiles that matmuls are cut into. */
#define VOCABULARY_MULTIPLE 64u
bool dtp_change_vocabulary(const struct dtp_job *job, struct dtp_job *out, char *flags, size_t bytes, char *note,
                           size_t note_bytes)
{
    uint64_t vocab = job->transformer.vocab, columns = dtp_plan_head_columns(&job->plan, vocab);
    enum dtp_dtype dtype = job->plan.precision.compute == DTP_FP8 ? DTP_BF16 : job->plan.precision.compute;
    if (dtp_dtype_bytes(dtype) > 2 || dtp_row_alignment_bytes(dtype, (double)columns) == DTP_ALIGNED_BYTES)
        return false;
    *out = *job;
    out->transformer.vocab = dtp_divide_up(vocab, VOCABULARY_MULTIPLE) * VOCABULARY_MULTIPLE;
    snprintf(flags, bytes, "--vocab %" PRIu64, out->transformer.vocab);
    snprintf(note, note_bytes, "%" PRIu64 " tokens that no text has", out->transformer.vocab - vocab);
    return true;
}

void dtp_change_flags(const struct dtp_job *job, const struct dtp_plan *asked, const char *flags, char *out,
                      size_t bytes)
{
    bool brings_runtime = asked->strategy != job->asked.strategy && asked->runtime != dtp_runtimes[0];
    snprintf(out, bytes, "%s%s%s", flags, brings_runtime ? " --runtime " : "",
             brings_runtime ? asked->runtime->name : "");
}

void dtp_change_gpus_flags(const struct dtp_job *job, uint32_t gpus, char *out, size_t bytes)
{
    char nodes[32] = "";
    if (job->by_nodes)
        snprintf(nodes, sizeof nodes, "--nodes %u ", gpus < job->node_gpus ? 1 : gpus / job->node_gpus);
    snprintf(out, bytes, "%s--gpus %u", nodes, gpus);
}

void dtp_change_batch_note(const struct dtp_plan *from, const struct dtp_plan *to, char *out, size_t bytes)
{
    double before = (double)from->micro_batch * from->accumulate;
    double after = (double)to->micro_batch * to->accumulate;
    out[0] = '\0';
    if (after > before)
        snprintf(out, bytes, "tokens per step x %g", after / before);
    else if (after < before)
        snprintf(out, bytes, "tokens per step / %g", before / after);
}
