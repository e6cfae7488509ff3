/* A run that somebody recorded, beside the plan it was meant to be: where memory and time went, what differs most, and
 * the likely cause.
 *
 * A cause is named by its own evidence in the record, never by a difference alone: kernels of math attention, matmuls
 * in fp32, an optimizer without a fused kernel, a compiled plan without a compiler's kernels, as many attention kernels
 * forward as backward under checkpointing, reductions in every micro-step, all-gathers beside which nothing computes, a
 * rank that computes longer than the others, a host that does nothing while its GPU waits, tensors of one place that
 * are never freed. Causes are ordered by the seconds or bytes that they account for. */
#ifndef DTP_BESIDE_H
#define DTP_BESIDE_H

#include "observed/observed.h"
#include "sim/simulated.h"

/* X(suffix, words) */
#define DTP_CAUSE_TABLE(X)                                                                                             \
    X(ATTENTION_KERNEL, "another attention kernel")                                                                    \
    X(LEAK, "tensors that are never freed")                                                                            \
    X(WIDE_LOGITS, "logits in fp32")                                                                                   \
    X(NO_PREFETCH, "weights are not gathered ahead")                                                                   \
    X(SLOW_RANK, "a slow rank")                                                                                        \
    X(OPTIMIZER_NOT_FUSED, "the optimizer is not fused")                                                               \
    X(NO_CHECKPOINTING, "activations are not checkpointed")                                                            \
    X(CHECKPOINTING, "activations are checkpointed")                                                                   \
    X(WIDE_MATMULS, "matmuls in fp32")                                                                                 \
    X(SYNC_EVERY_MICRO_STEP, "gradients are reduced in every micro-step")                                              \
    X(INPUT_STALL, "the GPU waits for its input")                                                                      \
    X(HOST_BOUND, "the host launches too slowly")                                                                      \
    X(WAITING_COLLECTIVES, "collectives wait")                                                                         \
    X(NOT_COMPILED, "the model is not compiled")
enum dtp_cause_kind {
#define DTP_CAUSE_ENUM(suffix, words) DTP_CAUSE_##suffix,
    DTP_CAUSE_TABLE(DTP_CAUSE_ENUM)
#undef DTP_CAUSE_ENUM
        DTP_CAUSE_KIND_COUNT
};
const char *dtp_cause_words(enum dtp_cause_kind kind);

struct dtp_cause {
    enum dtp_cause_kind kind;
    double seconds, bytes; /* of a step, or of the peak, that it accounts for; the other is 0 */
    char evidence[320];    /* a sentence */
    char remedy[200];
};

/* What the plan says in the words of records. */
struct dtp_beside_plan {
    bool known;
    const struct dtp_job *job; /* borrowed */
    double step_s, kind_s[DTP_OBSERVED_KIND_COUNT], kind_count[DTP_OBSERVED_KIND_COUNT],
        exposed_s[DTP_OBSERVED_KIND_COUNT], idle_s;
    uint64_t peak_bytes, reserved_bytes, device_bytes, part_bytes[DTP_OBSERVED_PART_COUNT], logits_bytes;
    double tokens_per_s_per_gpu;
};
void dtp_beside_plan_of(const struct dtp_simulated *simulated, struct dtp_beside_plan *out);

#define DTP_BESIDE_MOST_CAUSES 32
struct dtp_compared {
    struct dtp_beside_plan plan;
    const struct dtp_observed *observed; /* borrowed */
    size_t count;
    struct dtp_cause causes[DTP_BESIDE_MOST_CAUSES]; /* the largest first */
    size_t cause_count;
};
/* `plan.known` false: causes are those that records tell by themselves. */
void dtp_beside_judge(struct dtp_compared *beside);

#endif
