/* What if: every single change of a plan, predicted and ranked, with the reason of what it does.
 *
 * The rules are those of the advisor (change.h) and the sizes that have no table: micro batch, accumulation, layers per
 * unit, GPUs per shard group, number of GPUs. A change is words set over the scenario's, which is then resolved anew:
 * what is offered is what these words give, typed behind the others. What resolving refuses is listed with the refusal.
 */
#ifndef DTP_WHATIF_H
#define DTP_WHATIF_H

#include "job/change.h"
#include "job/variant.h"

struct dtp_whatif_row {
    enum dtp_question question;
    char flags[256]; /* as typed, and with them what else was given and does not go with the change */
    bool numerics;   /* it changes what is computed */
    bool refused;    /* then `why` is the refusal and nothing below is set */
    char why[DTP_FAULT_TEXT_BYTES];
    const char *predictor; /* who predicted it, and the plan beside it */
    double device_delta_bytes, step_delta_s, tokens_per_s_delta;
    double gain; /* tokens/s over the plan's, minus 1 */
    struct dtp_variant variant;
};

#define DTP_WHATIF_MAX_ROWS 128
struct dtp_whatif {
    struct dtp_variant base;
    const char *predictor;       /* who predicted it */
    size_t count, refused_count; /* rows[0..count) best first: those that fit, tight ones, those out of memory, each by
                                    tokens/s; after them the refused ones by question */
    struct dtp_whatif_row rows[DTP_WHATIF_MAX_ROWS];
};

/* About 300 KiB: the caller allocates. `predictor` predicts the plan and its changes, on all cores. Where it refuses a
 * change (or the plan, and then all), `otherwise` does (NULL: then it is refused), and the plan it is compared with
 * too: a gain is never the difference between two ways to predict. Fails where neither predicts the plan as it stands.
 */
enum dtp_status dtp_whatif(const struct dtp_scenario *scenario, const struct dtp_catalog *catalog,
                           const struct dtp_predictor *predictor, const struct dtp_predictor *otherwise,
                           struct dtp_whatif *out, struct dtp_faults *faults);

/* Whether any change of the question was predicted; where none was, why. `out` gets at most `bytes` bytes. */
bool dtp_whatif_answers(const struct dtp_whatif *whatif, enum dtp_question question, char *out, size_t bytes);

/* The largest changes of time (per token, where the step's tokens change) and of memory from `from` to `to` in words.
 */
void dtp_whatif_why(const struct dtp_variant *from, const struct dtp_variant *to, char *out, size_t bytes);

#endif
