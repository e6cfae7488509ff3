/* A job predicted, run by dtplan-exec and compared: what `run` reports and `validate` judges. */
#ifndef DTP_RUN_JOB_H
#define DTP_RUN_JOB_H

#include "cli/run_process.h"
#include "sim/measured_stages.h"

struct dtp_run_job {
    const struct dtp_context *context; /* faults and the flags that the executor reads */
    const struct dtp_catalog *catalog;
    struct dtp_scenario *scenario; /* dtp_run_take_defaults was called on it */
    const char *op_times;          /* file that keeps the times of operations; NULL: one in memory */
    bool progress;                 /* steps on standard error */
};

/* Release with dtp_ran_job_release, also after a failure. */
struct dtp_ran_job {
    bool predicted; /* `simulated` stands */
    bool timed;     /* steps and their operations were measured */
    struct dtp_simulated simulated;
    struct dtp_run_outcome measured;
    struct dtp_measured_spans *spans; /* of a pipeline's stages, one a role; NULL: were not measured */
    struct dtp_run_report report;     /* points to the two above; comparisons are made where it was timed */
};

/* Sets what the executor means where a key was not typed: runtime dtplan, and the gradient norm in its log, without
 * which an update made of a loss that is no number cannot be left out; not with update_in_backward, which leaves no
 * such update out. A scenario of another runtime stays as it is: dtp_job_run refuses it by that alone. */
enum dtp_status dtp_run_take_defaults(struct dtp_scenario *scenario, struct dtp_faults *faults);

/* Of the flags that the executor reads: on the host device a job is one of the cores of this machine, unless a GPU or a
 * machine file was named. */
enum dtp_status dtp_run_take_device(struct dtp_scenario *scenario, const struct dtp_passed_flag *flags,
                                    size_t flag_count, struct dtp_faults *faults);

/* Worst of prediction, run and comparison. What the executor refused it has said on standard error; its first fault is
 * measured.reason too. */
enum dtp_status dtp_job_run(const struct dtp_run_job *run, struct dtp_ran_job *out);
void dtp_ran_job_release(struct dtp_ran_job *ran);

/* Times of operations from a file of --op-times into measured.alone_s, start_s, end_s, and from them the comparison.
 * Nothing where there is no such file or it is empty. */
enum dtp_status dtp_ran_job_read_times(struct dtp_ran_job *ran, const char *path, struct dtp_faults *faults);

#endif
