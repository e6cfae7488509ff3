/* Pipeline schedules beside each other: what each would take, idle and keep with equal stages of given costs. */
#ifndef DTP_SCHEDULE_REPORT_H
#define DTP_SCHEDULE_REPORT_H

#include "page/page.h"
#include "schedule/stages.h"

/* X(suffix, word, words): how layers are cut into stages. */
#define DTP_CUT_TABLE(X)                                                                                               \
    X(EVEN, "even", "as many layers in each")                                                                          \
    X(COUNTED, "counted", "the same, embedding and head in the place of a layer each, as Megatron-LM")                 \
    X(COST, "cost", "by what has been given out of the whole cost, as nanotron")                                       \
    X(BEST, "best", "the slowest stage as fast as can be")                                                             \
    X(STEP, "step", "and from there the step as short as moves of single layers make it")
enum dtp_cut {
#define DTP_CUT_ENUM(suffix, word, words) DTP_CUT_##suffix,
    DTP_CUT_TABLE(DTP_CUT_ENUM)
#undef DTP_CUT_ENUM
        DTP_CUT_LAYOUT /* by a Megatron layout text */
};

/* What is asked, in any unit of time. */
struct dtp_schedule_question {
    uint32_t ranks, micro_batches, chunks, group; /* as in dtp_schedule_shape; chunks and group of interleaved alone */
    double forward_s, backward_s, weight_s;       /* of one micro-batch on one rank */
    double send_s;                                /* of a transfer between two ranks */
    double kept_for_weights; /* of what F keeps, the share that stays for W; what is searched is searched by it */
    double pair_fraction;    /* what a pair takes over its two passes */
    enum dtp_send send;
    const enum dtp_schedule_kind *kinds;
    size_t kind_count;
    uint32_t layers; /* of the model, which the times above are an even share of; 0: stages are equal */
    enum dtp_cut cut;
    const char *layout;                   /* of DTP_CUT_LAYOUT */
    double embedding_layers, head_layers; /* what they cost, in layers */
};

/* One schedule of the answer. */
struct dtp_schedule_case {
    enum dtp_schedule_kind kind;
    char refused[DTP_FAULT_TEXT_BYTES]; /* why it is not possible; "": what follows is there */
    struct dtp_schedule schedule;
    struct dtp_schedule_timer *timer;
    struct dtp_schedule_timing timing;
    struct dtp_stages stages; /* where the question has layers */
    double formula_s;         /* the bubble by its formula; NaN: none for such costs */
};

struct dtp_schedule_report {
    struct dtp_schedule_question question;
    struct dtp_schedule_case *cases; /* one each kind */
};

/* A single schedule that is not possible is DTP_BAD_INPUT; of several the reason stands in its case, and
 * DTP_BAD_INPUT is that none is possible. Caller destroys, also after a failure. */
enum dtp_status dtp_schedule_report_make(const struct dtp_schedule_question *question, struct dtp_schedule_report *out,
                                         struct dtp_faults *faults);
void dtp_schedule_report_destroy(struct dtp_schedule_report *report);

/* Of one schedule a row a rank and its picture, where that is not too long; of several a row a schedule. */
enum dtp_status dtp_schedule_report_text(const struct dtp_schedule_report *report, const struct dtp_page *page,
                                         struct dtp_faults *faults);
/* A row a schedule and rank. */
void dtp_schedule_report_csv(const struct dtp_schedule_report *report, FILE *file);
/* A row a pass: when it runs, where. Begins with DTP_SCHEDULE_PASSES_BEGINS (page/output_own.h). */
void dtp_schedule_report_passes(const struct dtp_schedule_report *report, FILE *file);

#endif
