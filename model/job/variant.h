/* A variant: the same job with one choice changed, resolved by the same rules and predicted anew.
 *
 * Solvers, the advisor and the scaling reference all ask "what if": they change job->asked or the number of GPUs and
 * call dtp_variant_predict, which takes some 0.1 ms for 32 layers (job/estimate.h). Where a simulation may stand in
 * for the estimate, a predictor says which of them predicts. */
#ifndef DTP_VARIANT_H
#define DTP_VARIANT_H

#include "job/estimate.h"
#include "job/scenario.h"

struct dtp_variant {
    struct dtp_job job;
    struct dtp_prediction prediction;
};

/* Who predicts a resolved job: the estimate, or a simulation of its step program. */
struct dtp_predictor {
    const char *name; /* "closed", "simulated" */
    const void *context;
    const char *machine; /* of measured runs: those on its GPU by this machine file, which the catalogue has; or NULL */
    enum dtp_status (*predict)(const void *context, const struct dtp_job *job, struct dtp_prediction *out,
                               struct dtp_faults *faults);
    /* The same of a job that `predict` does not refuse, from what constants do not move of it (dtp_estimate_base_of),
     * in a tenth of the time or less; NULL: this predictor has no such thing. */
    enum dtp_status (*predict_from)(const struct dtp_estimate_base *base, const struct dtp_job *job,
                                    struct dtp_prediction *out);
};
/* A predictor's name as --fidelity calls it, for pages: files keep the names that programs read. */
const char *dtp_predictor_flag(const char *name);
/* Refuses what only a simulation can tell. */
struct dtp_predictor dtp_predictor_closed(void);

/* Resolves `asked` on `gpus` GPUs of the same kind of node. DTP_BAD_INPUT when the combination is refused; `reason`
 * (may be NULL) then gets the first fault. `out` is only valid after DTP_OK. */
enum dtp_status dtp_variant_resolve(const struct dtp_job *job, const struct dtp_plan *asked, uint32_t gpus,
                                    struct dtp_job *out, char *reason, size_t reason_bytes);

/* The same, estimated. */
enum dtp_status dtp_variant_predict(const struct dtp_job *job, const struct dtp_plan *asked, uint32_t gpus,
                                    struct dtp_variant *out, char *reason, size_t reason_bytes);

/* The same without memory, which is left zeroed: traffic, time and throughput, in a few microseconds. */
enum dtp_status dtp_variant_time(const struct dtp_job *job, const struct dtp_plan *asked, uint32_t gpus,
                                 struct dtp_variant *out, char *reason, size_t reason_bytes);
/* Whether a resolved job runs at all, tight or not: by the bound of its memory where that leaves no doubt
 * (job/bound_fit.h), else by its estimate. */
enum dtp_status dtp_job_runs(const struct dtp_job *job, bool *runs, struct dtp_faults *faults);

#endif
