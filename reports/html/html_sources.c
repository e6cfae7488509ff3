/* What the page on one job rests on: measured runs, figures of the catalogue, fitted constants. */
#include "html/html.h"
#include "html/html_report.h"

#include "cost/calibration.h"

#include <math.h>
#include <string.h>

/* ---- how far off it is ------------------------------------------------------------------------------------------- */

static void like_runs_sentence(const struct dtp_html_job *job, FILE *file)
{
    const struct dtp_like_runs *l = job->like_runs;
    if (!l || l->count == 0)
        return;
    fprintf(file,
            "<p>Of %zu measured runs %s, the median prediction of tokens/s was %.1f %% off; 80 of 100 runs reached "
            "between %.2f and %.2f times their prediction. Constants of the model were fitted on part of these runs: a "
            "new job may be further off.</p>\n",
            l->count, dtp_likeness_words(l->likeness), l->median_abs_pct, l->low_ratio, l->high_ratio);
}

static void source_row(const struct dtp_backtest_group *group, FILE *file)
{
    if (group->throughput.count == 0)
        return;
    dtp_html_row(file);
    dtp_html_head_cell(file, group->name);
    dtp_html_figure_cell(file, (double)group->scored, "%zu", group->scored);
    dtp_html_figure_cell(file, (double)group->rows, "%zu", group->rows);
    dtp_html_figure_cell(file, group->throughput.median_abs_pct, "%.1f", group->throughput.median_abs_pct);
    dtp_html_figure_cell(file, group->throughput.mean_abs_pct, "%.1f", group->throughput.mean_abs_pct);
    dtp_html_figure_cell(file, group->throughput.max_abs_pct, "%.0f", group->throughput.max_abs_pct);
    dtp_html_figure_cell(file, group->throughput.median_pct, "%+.1f", group->throughput.median_pct);
    dtp_html_figure_cell(file, group->baseline.median_abs_pct, "%.1f", group->baseline.median_abs_pct);
}

void dtp_html_accuracy(const struct dtp_html_job *job, FILE *file)
{
    static const char *const names[] = {"Source", ">Scored",  ">Of runs", ">Median",
                                        ">Mean",  ">Largest", ">Bias",    ">Constant MFU"};
    dtp_html_section(file, "accuracy", "How far off predictions are");
    like_runs_sentence(job, file);
    dtp_html_chart(DTP_CHART_BACKTEST, job->runs, "accuracy-figures", file);
    dtp_html_table(
        file, "accuracy-table",
        "Error of tokens/s in %, by source; the last column is one constant MFU per GPU, fitted to these very runs",
        names, 8, false);
    for (size_t i = 0; i < job->backtest_count; i++)
        for (size_t k = 0; k < job->backtests[i]->source_count; k++)
            source_row(&job->backtests[i]->sources[k], file);
    dtp_html_table_end(file);
    dtp_html_section_end(file);
}

/* ---- assumptions ------------------------------------------------------------------------------------------------- */

static void catalogue_table(const struct dtp_html_job *job, FILE *file)
{
    static const char *const names[] = {"Figure", "Of", ">Value", "Unit", "Kind", "Source"};
    const struct dtp_cluster *c = &job->report->job.cluster;
    dtp_html_table(file, "catalogue-table", "Figures of the GPU and the machine", names, 6, true);
    for (size_t i = 0; i < job->catalog->provenance_count; i++) {
        const struct dtp_provenance *p = &job->catalog->provenance[i];
        if (strcmp(p->key, c->gpu.key) != 0 && strcmp(p->key, c->machine.key) != 0)
            continue;
        dtp_html_row(file);
        dtp_html_head_cell(file, p->quantity);
        dtp_html_cell(file, p->key);
        if (strcmp(p->unit, "text") == 0)
            dtp_html_word_cell(file, p->text);
        else
            dtp_html_figure_cell(file, p->value, "%s", p->text);
        dtp_html_cell(file, p->unit);
        dtp_html_cell(file, p->kind);
        dtp_html_cell(file, p->source);
    }
    dtp_html_table_end(file);
}

static void price_sentence(const struct dtp_html_job *job, FILE *file)
{
    const struct dtp_price *price = dtp_catalog_price(job->catalog, job->report->job.cluster.gpu.key);
    if (job->report->money.given)
        fprintf(file, "<p>Price: $%.2f a GPU-hour, as given.</p>\n",
                job->report->money.gpu_hour_usd[DTP_PRICE_TYPICAL]);
    else if (price)
        dtp_html_format(file, "<p>Price of %s (%s): %s.</p>\n", price->date, price->kind, price->source);
}

static void constants_table(FILE *file)
{
    static const char *const names[] = {"Constant", ">Value", "Unit", "What it is and what it was fitted on"};
    fputs("<details><summary>Constants that were fitted to measurements</summary>\n", file);
    dtp_html_table(file, "constants-table", "Constants fitted to or read off measurements", names, 4, true);
    for (size_t i = 0; i < DTP_CONSTANT_COUNT; i++) {
        const struct dtp_calibration_row *row = &dtp_calibration_rows[i];
        dtp_html_row(file);
        dtp_html_head_cell(file, row->name);
        dtp_html_figure_cell(file, row->value, "%.4g", row->value);
        dtp_html_cell(file, row->unit);
        dtp_html_cell(file, row->words);
    }
    dtp_html_table_end(file);
    fputs("</details>\n", file);
}

void dtp_html_assumptions(const struct dtp_html_job *job, FILE *file)
{
    dtp_html_section(file, "assumptions", "Assumptions and their sources");
    catalogue_table(job, file);
    price_sentence(job, file);
    constants_table(file);
    dtp_html_section_end(file);
}
