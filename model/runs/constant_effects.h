/* What each constant of the model is worth: how many measured runs' predictions move with it.
 *
 * A constant is made a tenth larger, every run is predicted again, and those are counted whose step time or memory then
 * differs by more than a thousandth. Nothing is said by hand: one that moves no run is either of no use or was never
 * tested by a run. */
#ifndef DTP_CONSTANT_EFFECTS_H
#define DTP_CONSTANT_EFFECTS_H

#include "cost/calibration.h"
#include "runs/scored_runs.h"

#define DTP_CONSTANT_TIMES 1.1   /* what it is made */
#define DTP_CONSTANT_MOVES 0.001 /* of a prediction, beyond which it counts as moved */

struct dtp_constant_effect {
    size_t step_runs, memory_runs;
};

struct dtp_constant_effects {
    struct dtp_constant_effect constants[DTP_CONSTANT_COUNT];
    struct dtp_constant_effect *matmul_fractions; /* of the catalogue's GPUs */
    size_t runs;                                  /* that were predicted each time */
};

/* Whether one prediction of a run differs from another, by one of its figures, or its step time. */
bool dtp_figure_moved(double before, double after);
bool dtp_step_moved(const struct dtp_prediction *before, const struct dtp_prediction *after);

/* Sets constants and restores them: no other thread may predict. `watch` may be NULL. Caller destroys *out, also after
 * a failure. DTP_NO: stopped. */
enum dtp_status dtp_constant_effects_count(const struct dtp_scored_runs *runs, const struct dtp_predictor *predictor,
                                           const struct dtp_catalog *catalog, const struct dtp_watch *watch,
                                           struct dtp_constant_effects *out, struct dtp_faults *faults);
void dtp_constant_effects_destroy(struct dtp_constant_effects *effects);

#endif
