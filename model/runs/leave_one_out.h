/* Leave one source out: what the predictions are worth for data-parallel runs that saw no part of the fit.
 *
 * constants.def says of each constant with which sources' runs it was made. For each source in turn, those that rest on
 * its runs are given up: they are fitted anew to the runs of all other sources (constant_fit.h), beginning with what
 * would be believed without any run; where no run of the others moves with one, it becomes what would be believed; and
 * where nothing would, it is kept, and said to be kept. Then the source's own runs are predicted with these. */
#ifndef DTP_LEAVE_ONE_OUT_H
#define DTP_LEAVE_ONE_OUT_H

#include "cost/calibration.h"
#include "runs/scored_runs.h"

/* Where a constant's value comes from when a source it rests on is left out. */
enum dtp_without { DTP_WITHOUT_FITTED, DTP_WITHOUT_BELIEVED, DTP_WITHOUT_KEPT };
const char *dtp_without_text(enum dtp_without how); /* "fitted", "believed", "kept" */

struct dtp_given_up {
    enum dtp_constant constant;
    enum dtp_without how;
    double value;
    size_t runs; /* of other sources, measured, that move with it */
};

/* One source. */
struct dtp_left_out {
    char source[160];
    size_t run_count;
    struct dtp_error_statistics shipped, left_out; /* of tokens/s */
    struct dtp_error_statistics memory_shipped[DTP_RUN_MEMORY_COUNT], memory_left_out[DTP_RUN_MEMORY_COUNT];
    struct dtp_given_up given_up[DTP_CONSTANT_COUNT]; /* in the order of constants.def */
    size_t given_up_count;
};

struct dtp_leave_one_out {
    const char *fidelity;                         /* the predictor's name */
    double macro_shipped_pct, macro_left_out_pct; /* means over sources of the medians; NaN: no tokens/s */
    struct dtp_left_out *sources;                 /* those with a run scored; in order of appearance */
    size_t source_count;
};

/* Scores the tables at `paths` together. `response` says how predictions answer to constants in fits, which take
 * thousands: the closed form, whatever the predictor. Sets constants and restores them: no other thread may predict.
 * `watch` (may be NULL) is told of sources. Caller destroys *out; NULL on failure. DTP_BAD_INPUT: a table that is no
 * run table, or fewer than two sources can be scored; DTP_NO: stopped. */
enum dtp_status dtp_leave_one_out_run(const char *const *paths, size_t path_count,
                                      const struct dtp_predictor *predictor, const struct dtp_predictor *response,
                                      const struct dtp_catalog *catalog, const struct dtp_watch *watch,
                                      struct dtp_leave_one_out **out, struct dtp_faults *faults);
void dtp_leave_one_out_destroy(struct dtp_leave_one_out *result);

#endif
