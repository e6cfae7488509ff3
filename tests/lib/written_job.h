/* What is written of a job before anything is predicted of it, as a row of CSV or as JSON. Notes are left out: they are
 * words about the job. */
#ifndef TEST_WRITTEN_JOB_H
#define TEST_WRITTEN_JOB_H

#include "record/report.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The caller frees the text. */
static inline char *written_job(const struct dtp_job *job, bool json)
{
    static struct dtp_report report;
    static struct dtp_faults faults;
    struct dtp_comparison_row row = {.strategy = "", .report = &report};
    char *text = NULL;
    size_t bytes;
    FILE *file = open_memstream(&text, &bytes);
    assert_non_null(file);
    memset(&report, 0, sizeof report);
    report.job = *job;
    report.job.cluster_note[0] = report.job.plan_note[0] = report.job.shape_note[0] = report.job.model_note[0] = '\0';
    snprintf(row.strategy, sizeof row.strategy, "%s", dtp_strategy_text(job->plan.strategy));
    if (json)
        assert_int_equal(dtp_report_plan_json(&report, file, &faults), DTP_OK);
    else
        dtp_report_csv_row(&row, file);
    fclose(file);
    return text;
}

static inline bool written_differ(const struct dtp_job *one, const struct dtp_job *other, bool json)
{
    char *first = written_job(one, json), *second = written_job(other, json);
    bool differ = strcmp(first, second) != 0;
    free(first);
    free(second);
    return differ;
}

#endif
