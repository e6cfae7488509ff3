/* The whole page on one job. */
#include "html/html.h"
#include "html/html_report.h"

#include <math.h>
#include <string.h>

static void contents(const struct dtp_html_job *job, FILE *file)
{
    static const char *const links[][2] = {
        {"decision", "Decision"},
        {"plan", "Plan"},
        {"memory", "Memory"},
        {"step", "Step"},
        {"simulated", "Simulated"},
        {"pipeline", "Pipeline"},
        {"communication", "Communication"},
        {"alternatives", "Alternatives"},
        {"changes", "Changes"},
        {"accuracy", "Accuracy"},
        {"assumptions", "Assumptions"},
        {"reproduce", "Reproduce"},
    };
    fputs("<nav aria-label=\"Contents\"><ul>", file);
    for (size_t i = 0; i < sizeof links / sizeof *links; i++)
        if (dtp_html_has_pipeline(job) || strcmp(links[i][0], "pipeline") != 0)
            dtp_html_format(file, "<li><a href=\"#%s\">%s</a></li>", links[i][0], links[i][1]);
    fputs("</ul></nav>\n", file);
}

static void alternatives(const struct dtp_html_job *job, FILE *file)
{
    dtp_html_section(file, "alternatives", "Alternatives");
    fputs("<h3>Strategies</h3>\n", file);
    dtp_html_chart(DTP_CHART_STRATEGIES, job->strategies, "strategies-figures", file);
    dtp_html_chart(DTP_CHART_STEP, job->strategies, "strategies-step-figures", file);
    fputs("<h3>Micro batch</h3>\n", file);
    dtp_html_chart(DTP_CHART_MICRO_BATCH, job->micro_batches, "micro-batch-figures", file);
    fputs("<h3>GPUs</h3>\n<p>The batch of each GPU stays, so that the global batch grows with the GPUs (weak scaling). "
          "Numbers of GPUs that the plan cannot have or that do not hold it are left out.</p>\n",
          file);
    dtp_html_chart(DTP_CHART_SCALING, job->gpus, "scaling-figures", file);
    dtp_html_section_end(file);
}

static void change_row(const struct dtp_whatif_row *row, FILE *file)
{
    const struct dtp_memory *m = &row->variant.prediction.memory;
    dtp_html_row(file);
    dtp_html_head_cell(file, row->flags);
    dtp_html_figure_cell(file, 100 * row->gain, "%+.1f", 100 * row->gain);
    dtp_html_figure_cell(file, row->device_delta_bytes, "%+.2f", row->device_delta_bytes / 0x1p30);
    dtp_html_figure_cell(file, row->step_delta_s, "%+.1f", 1e3 * row->step_delta_s);
    dtp_html_cell(file, dtp_verdict_text(m->verdict));
    dtp_html_cell(file, row->numerics ? "yes" : "no");
    dtp_html_cell(file, row->why);
}

static void changes(const struct dtp_html_job *job, FILE *file)
{
    static const char *const names[] = {"Change",  ">Tokens/s, %",    ">Device, GiB", ">Step, ms",
                                        "Verdict", "Numerics change", "Why"};
    if (!job->whatif)
        return;
    dtp_html_section(file, "changes", "Every single change");
    dtp_html_table(file, "changes-table", "Single changes of the plan, best first; differences from the plan as it is",
                   names, 7, true);
    for (size_t i = 0; i < job->whatif->count; i++)
        change_row(&job->whatif->rows[i], file);
    dtp_html_table_end(file);
    dtp_html_section_end(file);
}

static void reproduce(const struct dtp_html_job *job, FILE *file)
{
    dtp_html_section(file, "reproduce", "Reproduce");
    dtp_html_format(file,
                    "<p>dtplan %s</p>\n<pre>dtplan plan %s\ndtplan explain %s\ndtplan simulate %s\ndtplan whatif %s\n"
                    "dtplan report %s -o report.html</pre>\n",
                    job->version, job->flags, job->flags, job->flags, job->flags, job->flags);
    dtp_html_section_end(file);
}

void dtp_html_job(const struct dtp_html_job *job, FILE *file)
{
    const struct dtp_job *j = &job->report->job;
    char title[300];
    snprintf(title, sizeof title, "%s on %u \u00d7 %s: %s",
             j->transformer.name[0] ? j->transformer.name : "custom model", j->cluster.gpus, j->cluster.gpu.name,
             dtp_strategy_text(j->plan.strategy));
    dtp_html_begin(file, title);
    dtp_html_format(file, "<header><h1>%s</h1></header>\n", title);
    contents(job, file);
    dtp_html_decision(job, file);
    dtp_html_breakdowns(job, file);
    alternatives(job, file);
    changes(job, file);
    dtp_html_accuracy(job, file);
    dtp_html_assumptions(job, file);
    reproduce(job, file);
    dtp_html_end(file);
}
