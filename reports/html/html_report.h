/* One self-contained HTML page on a planned job, or on the rows of a sweep: the decision first, then what it rests on.
 *
 * Charts are inline SVG of our own, so that the page is complete without gnuplot. The page loads nothing. */
#ifndef DTP_HTML_REPORT_H
#define DTP_HTML_REPORT_H

#include "runs/backtest.h"
#include "chart/chart_data.h"
#include "chart/like_runs.h"
#include "record/report.h"
#include "sim/simulated.h"
#include "base/table.h"
#include "decide/whatif.h"

/* What a page on one job is made of: closed forms, whose error on measured runs is known of hundreds, and one simulated
 * step; all borrowed, NULL: the page goes without. */
struct dtp_html_job {
    const struct dtp_report *report;
    const struct dtp_catalog *catalog;
    /* Tables with the columns of `dtplan plan --csv`: the plan alone, and around it all strategies, micro batches, and
     * numbers of GPUs. */
    const struct dtp_table *plan, *strategies, *micro_batches, *gpus;
    const struct dtp_simulated *simulated; /* one step of the plan, NULL: `not_simulated` says why */
    const char *not_simulated;
    const struct dtp_pipeline_stages *stages; /* of the same simulation */
    const struct dtp_whatif *whatif;
    const struct dtp_backtest *const *backtests;
    size_t backtest_count;
    const struct dtp_table *runs; /* the rows of these backtests, as `dtplan backtest -o` writes them */
    const struct dtp_like_runs *like_runs;
    const char *flags; /* of the job, as a shell takes them: "--params 7e9 --gpus 8" */
    const char *version;
};
void dtp_html_job(const struct dtp_html_job *job, FILE *file);

/* A page on the table of `dtplan sweep`, `dtplan search --csv` or `dtplan plan --csv`. DTP_BAD_INPUT: it is none, or
 * all its rows were refused. */
enum dtp_status dtp_html_sweep(const struct dtp_table *sweep, const char *version, FILE *file,
                               struct dtp_faults *faults);

/* ---- shared by the pages ----------------------------------------------------------------------------------------- */

/* The chart of a table, with its figures; nothing, and why, where the table has none to show. */
void dtp_html_chart(enum dtp_chart chart, const struct dtp_table *table, const char *id, FILE *file);
/* The same of data that were read. */
void dtp_html_chart_data(const struct dtp_chart_data *data, const char *id, FILE *file);
/* Sections of the page on a job. */
void dtp_html_decision(const struct dtp_html_job *job, FILE *file);
void dtp_html_breakdowns(const struct dtp_html_job *job, FILE *file);
/* Nothing where the job was not simulated or has no pipeline. */
void dtp_html_pipeline(const struct dtp_html_job *job, FILE *file);
bool dtp_html_has_pipeline(const struct dtp_html_job *job);
void dtp_html_accuracy(const struct dtp_html_job *job, FILE *file);
void dtp_html_assumptions(const struct dtp_html_job *job, FILE *file);

#endif
