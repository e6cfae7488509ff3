/* The executor as a process: started with the words of the line, heard through a pipe. */
#ifndef DTP_RUN_PROCESS_H
#define DTP_RUN_PROCESS_H

#include "cli/command.h"
#include "record/run_report.h"

/* Starts dtplan-exec (or a framework's own program, by the Python of $DTPLAN_PYTHON or python3), which lies beside this
 * program or in ../libexec, passes on the keys of the scenario and the flags that were typed for it, and calls `hear`
 * with each line of its events until it ends. Its status is returned: what was wrong it has said itself.
 * DTP_ENVIRONMENT where it cannot be started or was killed. Signals that ask this process to stop go on to it, so that
 * the step at hand is finished. */
struct dtp_run_process {
    const struct dtp_context *context;
    const struct dtp_scenario *scenario;
    const char *program;   /* file of the program's text, which is what runs; NULL where it measures */
    const char *op_times;  /* file for times of operations, or NULL */
    bool probe;            /* it measures instead of training */
    bool alone;            /* the program is a set that stands alone: of the keys the cluster's count */
    const char *reference; /* script of the data directory that is started in place of it, NULL: none; with */
    const char *plan;      /* the file of its plan, JSON (NULL: it measures the machine), and */
    uint32_t ranks;        /* so many processes, torchrun's where there are several */
    const char *const *reference_words; /* more of its line, NULL behind the last; NULL: none */
    void (*hear)(void *listener, const char *line);
    void *listener;
};
enum dtp_status dtp_run_process(const struct dtp_run_process *process);
/* Where dtplan-exec is; DTP_ENVIRONMENT where it is not. */
enum dtp_status dtp_run_program(char *out, size_t bytes, struct dtp_faults *faults);
/* Whether such a signal ever came, even when the run was over already or had not begun. */
bool dtp_run_process_told_to_stop(void);

/* run_events.c: what the executor says, line by line, into figures; `job` NULL: of a program that stands alone; with
 * `progress` also into a line on standard error, rewritten in place on a terminal. */
struct dtp_run_listener; /* opaque */
struct dtp_run_listener *dtp_run_listener_create(const struct dtp_job *job, bool progress, struct dtp_run_outcome *out);
void dtp_run_listener_hear(void *listener, const char *line);
/* Fills what only the end shows: medians and means. Frees. */
void dtp_run_listener_finish(struct dtp_run_listener *listener);

#endif
