/* The advisor: of the single changes a user could make to a plan, the one that helps most.
 *
 * Every candidate is one flag of the command line (two where a smaller micro batch is made up for by accumulation),
 * predicted like any plan. A plan out of memory is advised the change with which it fits at the highest tokens/s;
 * a plan that fits, the change with the largest gain of tokens/s that still fits. Changes that alter the numerics
 * (8-bit Adam, other precisions) are only proposed where nothing else makes the plan fit, fp32 compute excepted. */
#ifndef DTP_ADVISE_H
#define DTP_ADVISE_H

#include "job/variant.h"

enum dtp_advice_kind {
    DTP_ADVICE_NONE,      /* the plan fits, and no change gains DTP_ADVICE_MIN_GAIN; or it is tight, as is all else */
    DTP_ADVICE_FASTER,    /* fits now; changes[0] is faster */
    DTP_ADVICE_MAKES_FIT, /* oom or tight now; changes[0] fits, from oom perhaps only tightly (see its verdict) */
    DTP_ADVICE_MORE_GPUS, /* no change on these GPUs makes it fit; changes[0] is more GPUs */
    DTP_ADVICE_HOPELESS   /* nothing tried makes it fit */
};

#define DTP_ADVICE_KEPT 3
#define DTP_ADVICE_MIN_GAIN 0.01 /* of tokens/s; below it a change is noise */

struct dtp_change {
    char flags[256]; /* as typed: "--micro-batch 4 --accumulate 2" */
    char note[96];   /* what else it changes, "" if nothing: "tokens per step x 4" */
    double gain;     /* tokens/s of the variant over the plan's, minus 1; can be negative where the plan is oom */
    struct dtp_variant variant;
};

struct dtp_advice {
    enum dtp_advice_kind kind;
    size_t count; /* of changes[], best first */
    struct dtp_change changes[DTP_ADVICE_KEPT];
    unsigned tried_count;
};

/* `scenario` is what the job was resolved from, against `catalog`: each change is then what its flags give, typed
 * behind the scenario's words, and what they are refused for is not proposed. NULL, both: of a job that nobody typed,
 * or one that a solver found. */
void dtp_advise(const struct dtp_job *job, const struct dtp_prediction *prediction, const struct dtp_scenario *scenario,
                const struct dtp_catalog *catalog, struct dtp_advice *out);

#endif
