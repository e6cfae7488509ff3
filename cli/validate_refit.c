/* dtplan validate --refit: a machine file corrected by the runs, judged on runs it was not fitted to. */
#include "cli/validate_parts.h"

#include "cli/machine_rows.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

struct refit {
    struct dtp_refit *said;
    struct dtp_ran_job *ran; /* those that are compared */
    size_t count;
    const struct dtp_measured *base;
    struct dtp_refit_report *report;
};

static enum dtp_status load_runs(const struct dtp_validate *v, struct refit *r)
{
    enum dtp_status status = DTP_OK;
    for (uint64_t i = 0; i < v->done && status == DTP_OK; i++) {
        const struct dtp_validation *row = &v->rows[i];
        struct dtp_ran_job *ran = &r->ran[r->count];
        if (row->status != DTP_OK || !row->compared)
            continue;
        status = dtp_validate_load(v, i, row, ran);
        if (status != DTP_OK || !ran->timed) {
            dtp_ran_job_release(ran);
            continue;
        }
        /* `ran` stays where it is: its report points into it */
        const struct dtp_refit_run one = {
            &ran->simulated.job,   ran->simulated.program, ran->measured.alone_s,
            ran->measured.start_s, ran->measured.end_s,    ran->report.split.measured_s - ran->report.split.in_place_s};
        r->report->results[r->count++] = (struct dtp_refit_result){.run = row};
        r->base = ran->simulated.job.cluster.measured;
        status = dtp_refit_add(r->said, &one, v->context->faults);
    }
    if (status == DTP_OK && (r->count < 2 || !r->base))
        status = dtp_fault(v->context->faults, DTP_BAD_INPUT, NULL, 0,
                           "--refit: %zu runs have comparable steps and times of operations; it takes two or more",
                           r->count);
    return status;
}

static enum dtp_status judge(const struct dtp_validate *v, struct refit *r)
{
    struct dtp_faults *faults = v->context->faults;
    struct dtp_measured_rows rows;
    enum dtp_status status = DTP_OK;
    for (size_t i = 0; i < r->count && status == DTP_OK; i++) {
        struct dtp_refit_result *result = &r->report->results[i];
        const struct dtp_job *job = &r->ran[i].simulated.job;
        status = dtp_refit_make(r->said, r->base, i, &rows, NULL, faults);
        if (status == DTP_OK)
            status = dtp_machine_rows_step(job, r->report->written, &rows, &result->left_out_s, faults);
        if (status == DTP_OK)
            status = dtp_refit_make(r->said, r->base, DTP_REFIT_ALL, &rows, &r->report->factors, faults);
        if (status == DTP_OK)
            status = dtp_machine_rows_step(job, r->report->written, &rows, &result->all_s, faults);
    }
    return status;
}

enum dtp_status dtp_validate_refit(const struct dtp_validate *v, struct dtp_refit_report *out)
{
    struct dtp_faults *faults = v->context->faults;
    struct refit r = {.said = dtp_refit_create(), .ran = calloc(v->done + 1, sizeof *r.ran), .report = out};
    struct dtp_measured_rows rows = {.count = 0};
    *out = (struct dtp_refit_report){.machine = v->context->arguments->refit,
                                     .written = dtp_call_files_refit(v->context->arguments->refit),
                                     .results = calloc(v->done + 1, sizeof *out->results)};
    enum dtp_status status = r.said && r.ran && out->written && out->results
                                 ? load_runs(v, &r)
                                 : dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "out of memory");
    out->count = r.count;
    if (status == DTP_OK)
        status = judge(v, &r);
    if (status == DTP_OK)
        status = dtp_refit_make(r.said, r.base, DTP_REFIT_ALL, &rows, NULL, faults);
    if (status == DTP_OK) {
        char remark[4400];
        snprintf(remark, sizeof remark, "%s, corrected by %zu runs (dtplan validate --refit)", out->machine,
                 out->count);
        status = dtp_machine_rows_write(out->written, remark, rows.row, rows.count, faults);
    }
    dtp_measured_rows_release(&rows);
    for (size_t i = 0; i < r.count; i++)
        dtp_ran_job_release(&r.ran[i]);
    free(r.ran);
    dtp_refit_destroy(r.said);
    return status;
}
