/* Choices of a plan that only our executor has (runtime dtplan), as rows: what refuses them elsewhere, says them and
 * writes them for programs reads one table. The default of each is 0. */
#ifndef DTP_EXECUTOR_CHOICES_H
#define DTP_EXECUTOR_CHOICES_H

#include "plan/plan.h"

/* X(field of struct dtp_executor_plan and key, what its value is). */
#define DTP_EXECUTOR_CHOICE_TABLE(X)                                                                                   \
    X(clip_norm, NUMBER)                                                                                               \
    X(gradient_norm, SWITCH)                                                                                           \
    X(loss_chunk, WHOLE)                                                                                               \
    X(gelu_epilogue, SWITCH)                                                                                           \
    X(stochastic_rounding, SWITCH)                                                                                     \
    X(gradient_stream, SWITCH)                                                                                         \
    X(update_in_backward, SWITCH)                                                                                      \
    X(cuda_graph, SWITCH)                                                                                              \
    X(atomic_attention, SWITCH)                                                                                        \
    X(matmul_sms, WHOLE)                                                                                               \
    X(collective_ctas, WHOLE)                                                                                          \
    X(symmetric_windows, SWITCH)                                                                                       \
    X(gather_engine, ENGINE)                                                                                           \
    X(reduce_engine, ENGINE)

enum dtp_executor_choice_key {
#define DTP_EXECUTOR_CHOICE_ENUM(field, kind) DTP_EXECUTOR_CHOICE_##field,
    DTP_EXECUTOR_CHOICE_TABLE(DTP_EXECUTOR_CHOICE_ENUM)
#undef DTP_EXECUTOR_CHOICE_ENUM
        DTP_EXECUTOR_CHOICE_COUNT
};

enum dtp_choice_kind { DTP_CHOICE_SWITCH, DTP_CHOICE_WHOLE, DTP_CHOICE_NUMBER, DTP_CHOICE_ENGINE };

struct dtp_executor_choice {
    const char *key;
    enum dtp_choice_kind kind;
    double value; /* of an engine its number in the enum; 0: the default */
};

/* All of them in the order of the table. */
void dtp_executor_choices(const struct dtp_plan *plan, struct dtp_executor_choice out[DTP_EXECUTOR_CHOICE_COUNT]);
/* The word of an engine; NULL of the others. */
const char *dtp_executor_choice_word(const struct dtp_executor_choice *choice);

#endif
