/* Single changes of a plan: words, set behind those of a job and resolved again. Which values of a key are worth a try
 * stands in its row; the advisor proposes the best of them, `dtplan whatif` shows them all. Each belongs to one of the
 * questions people ask when they tune a job. */
#ifndef DTP_CHANGE_H
#define DTP_CHANGE_H

#include "job/scenario_keys.h"

/* X(suffix, key, words, what to say where no change of it exists for a plan)
 * The first fourteen are the tuning questions of FSDP; the others are what else a user may change. */
#define DTP_QUESTION_TABLE(X)                                                                                          \
    X(WRAPPING, "wrapping", "wrapping", "nothing is gathered unit by unit without sharded parameters")                 \
    X(BATCH, "batch", "batch", "no other size of the micro batch is possible")                                         \
    X(SHARD_DEGREE, "shard_degree", "shard degree", "no other group of GPUs can share the state")                      \
    X(OPTIMIZER_OFFLOAD, "optimizer_offload", "offload", "nothing can be offloaded")                                   \
    X(CHECKPOINTING, "checkpointing", "checkpoint policy", "no other policy")                                          \
    X(REDUCE_DTYPE, "reduce_dtype", "reduce dtype", "gradients can be reduced in one dtype only")                      \
    X(HYBRID_SHARD, "hybrid_shard", "hybrid shard", "there is nothing to replicate between")                           \
    X(RESHARD, "reshard_after_forward", "reshard after forward", "there are no gathered weights to free")              \
    X(PREFETCH, "prefetch", "prefetch", "there is nothing to gather ahead")                                            \
    X(LIMIT_ALL_GATHERS, "limit_all_gathers", "limit_all_gathers", "only FSDP1 limits all-gathers")                    \
    X(ACCUMULATE_SYNC, "accumulate_sync", "accumulation sync",                                                         \
      "each micro-step is followed by an optimizer step; it takes --accumulate 2 or more")                             \
    X(COMPILE, "compile", "compile", "only runtime torch compiles")                                                    \
    X(BUCKET_SIZE, "bucket_size", "bucket size", "only DDP's buckets have a size to choose")                           \
    X(ATTENTION, "attention", "attention kernel", "no other kernel")                                                   \
    X(STRATEGY, "strategy", "strategy", "no other strategy")                                                           \
    X(LOSS, "loss", "loss", "no other loss")                                                                           \
    X(OPTIMIZER, "optimizer", "optimizer", "no other optimizer")                                                       \
    X(COMM_HOOK, "comm_hook", "compressed gradients",                                                                  \
      "only ddp takes a communication hook, of dtplan hybrid_shard too")                                               \
    X(PRECISION, "precision", "precision", "no other precision")                                                       \
    X(PARALLELISM, "parallelism", "parallelism",                                                                       \
      "no other degree of tensor, context or pipeline parallelism goes with this runtime, model and cluster")          \
    X(PIPELINE, "pipeline", "pipeline", "there is no pipeline to schedule; it takes --pp 2 or more")                   \
    X(ADAPTERS, "adapters", "adapters", "all weights are trained; it takes --lora 16, say")                            \
    X(SEQUENCE, "sequence", "sequence length", "no other length with as many tokens is possible")                      \
    X(RUNTIME, "runtime", "runtime", "on one GPU there is nothing that another framework divides otherwise")           \
    X(GPUS, "gpus", "GPUs", "no other number")                                                                         \
    X(VOCAB, "vocab", "vocabulary", "rows of the logits begin at multiples of 16 bytes")
enum dtp_question {
#define DTP_QUESTION_ENUM(suffix, key, words, none) DTP_QUESTION_##suffix,
    DTP_QUESTION_TABLE(DTP_QUESTION_ENUM)
#undef DTP_QUESTION_ENUM
        DTP_QUESTION_COUNT
};
#define DTP_QUESTION_FSDP_COUNT 14 /* WRAPPING to ATTENTION */
const char *dtp_question_key(enum dtp_question question);
const char *dtp_question_words(enum dtp_question question);
/* Why a plan offers no change of this question. */
const char *dtp_question_none(enum dtp_question question, const struct dtp_plan *plan);

/* When the advisor may propose a change. Those that alter the numerics are proposed where nothing else makes a plan
 * fit; others only answer a question, for they rarely help. */
enum dtp_change_use { DTP_CHANGE_ADVISED, DTP_CHANGE_ADVISED_LAST, DTP_CHANGE_SHOWN };

/* One value of one key that is worth a try: an entry of `tried` in the key's row (plan/plan_keys.def). */
struct dtp_change_rule {
    enum dtp_key key;
    char flags[64]; /* as typed: "--checkpointing full", "--no-compile" */
    enum dtp_question question;
    enum dtp_change_use use;
    bool numerics;    /* it changes what is computed, not only how fast and where */
    const char *from; /* values of the key, bars between, that it is tried on; NULL: any other */
};
#define DTP_CHANGE_RULES_MAX 150 /* change.c does not compile where rows have more */
/* All of them in the order of keys and values; returns how many. */
size_t dtp_change_rules(struct dtp_change_rule out[DTP_CHANGE_RULES_MAX]);
/* Makes the change in a plan as it was asked for; false where it is not tried on that plan or would change nothing. */
bool dtp_change_try(const struct dtp_change_rule *rule, struct dtp_plan *asked);

/* Sets what flags say of the plan, in a plan as it was asked for, and gives keys their defaults that nobody reads
 * any more. False where that changes nothing; keys of the model and the cluster are no change of a plan. */
bool dtp_change_apply(const char *flags, struct dtp_plan *asked);
/* The same of one key and value. */
bool dtp_change_set_key(enum dtp_key key, const char *value, struct dtp_plan *asked);

/* The same model with a vocabulary whose logits begin at multiples of 16 bytes, in `out`; the flag that says so and
 * what it adds. False where the head's matmuls lose nothing as they are. */
bool dtp_change_vocabulary(const struct dtp_job *job, struct dtp_job *out, char *flags, size_t bytes, char *note,
                           size_t note_bytes);

/* Whether all keys of the plan have the same values in both. */
bool dtp_change_is_none(const struct dtp_plan *one, const struct dtp_plan *other);

/* The flags that turn job->asked into `asked`: `flags`, and the runtime where a strategy would bring its own. */
void dtp_change_flags(const struct dtp_job *job, const struct dtp_plan *asked, const char *flags, char *out,
                      size_t bytes);
/* `flags` as they are typed behind the words of `scenario`, of which `job` is made: by the words that were used for a
 * key there, and with the flags of other keys that were given and that turn `job->asked` into `asked` (a depth of
 * prefetching goes where a strategy has none). */
void dtp_change_words(const struct dtp_scenario *scenario, const struct dtp_job *job, const struct dtp_plan *asked,
                      const char *flags, char *out, size_t bytes);
/* Appends " --key value" to flags, " --key" or " --no-key" of a switch; `word` is the key or another word for it. */
void dtp_change_add_flag(enum dtp_key key, const char *word, const char *value, char *out, size_t bytes);
/* Sets what such flags say, "--compile --micro-batch 4 --no-prefetch", over what the scenario says. */
enum dtp_status dtp_change_set(const char *flags, struct dtp_scenario *scenario, struct dtp_faults *faults);
/* The flags that give the job another number of GPUs, beside the nodes where it was given those. */
void dtp_change_gpus_flags(const struct dtp_job *job, uint32_t gpus, char *out, size_t bytes);
/* "tokens per step x 4", of all ranks together, "" where they stay. Both are resolved. */
void dtp_change_batch_note(const struct dtp_job *from, const struct dtp_job *to, char *out, size_t bytes);

#endif
