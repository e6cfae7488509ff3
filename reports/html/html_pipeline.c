/* The ranks of a simulated pipeline: who does what when, drawn, and a row a rank. */
#include "html/html.h"
#include "html/html_report.h"
#include "html/svg.h"
#include "record/simulation_report.h"

#include <string.h>

#define LEFT 80.0
#define RIGHT 836.0
#define LANE 30.0
#define BOX 24.0
#define MOST_DRAWN 6000u /* passes: about half a megabyte */
#define DIGIT 7.0        /* pixels of a number's digit */

/* ---- the drawing ------------------------------------------------------------------------------------------------- */

/* Passes by kind, those of odd chunks lighter: their colours (class "pipeline" of report.css) and numbers on them. */
static const struct {
    const char *words;
    const char *ink;
} looks[DTP_PASS_COUNT][2] = {
    [DTP_PASS_FORWARD] = {{"forward", "w"}, {"forward, odd chunk", "b"}},
    [DTP_PASS_BACKWARD] = {{"gradients of the input", "b"}, {"gradients of the input, odd chunk", "b"}},
    [DTP_PASS_WEIGHT] = {{"gradients of weights", "b"}, {"gradients of weights, odd chunk", "b"}},
    [DTP_PASS_WHOLE_BACKWARD] = {{"backward", "b"}, {"backward, odd chunk", "b"}},
};

static unsigned colour_of(const struct dtp_stage_pass *pass)
{
    return 1 + 2 * (unsigned)pass->kind + pass->chunk % 2;
}

static void draw_legend(const struct dtp_pipeline_stages *s, FILE *file)
{
    bool shown[DTP_PASS_COUNT][2] = {{false}};
    for (size_t i = 0; i < s->pass_count; i++)
        shown[s->passes[i].kind][s->passes[i].chunk % 2] = true;
    fputs("<ul class=\"legend\">", file);
    for (unsigned kind = 0; kind < DTP_PASS_COUNT; kind++)
        for (unsigned odd = 0; odd < 2; odd++)
            if (shown[kind][odd])
                fprintf(file,
                        "<li><svg viewBox=\"0 0 16 12\" class=\"key\" aria-hidden=\"true\"><rect class=\"f%u\" "
                        "width=\"16\" height=\"12\"/></svg>%s</li>",
                        1 + 2 * kind + odd, looks[kind][odd].words);
    fputs("</ul>\n", file);
}

/* A box, with the number of its micro-batch where that has room. */
static void draw_pass(const struct dtp_stage_pass *pass, const struct dtp_svg_axis *axis, FILE *file)
{
    char number[16];
    double from = dtp_svg_place(axis, 1e3 * pass->begin_s), to = dtp_svg_place(axis, 1e3 * pass->end_s);
    double top = 8 + LANE * pass->rank;
    if (to <= from)
        return;
    fprintf(file, "<rect class=\"f%u\" x=\"%.1f\" y=\"%.0f\" width=\"%.1f\" height=\"%.0f\"/>\n", colour_of(pass), from,
            top, to - from, BOX);
    snprintf(number, sizeof number, "%u", pass->micro_batch);
    if (to - from > DIGIT * (double)strlen(number) + 2)
        fprintf(file, "<text class=\"%s\" x=\"%.1f\" y=\"%.0f\" text-anchor=\"middle\">%s</text>\n",
                looks[pass->kind][pass->chunk % 2].ink, (from + to) / 2, top + 17, number);
}

static void draw(const struct dtp_pipeline_stages *s, FILE *file)
{
    double bottom = 8 + LANE * s->rank_count, last_ms = 1e3 * s->last_s;
    struct dtp_svg_axis axis = dtp_svg_axis(0, last_ms, 0, 8, LEFT, RIGHT);
    axis.most = last_ms; /* lanes end where the step ends */
    while (axis.tick_count > 0 && axis.ticks[axis.tick_count - 1] > axis.most)
        axis.tick_count--;
    fputs("<figure class=\"pipeline\">\n", file);
    draw_legend(s, file);
    dtp_svg_begin(file, "Which micro-batch each rank of the pipeline computes when", bottom + 46);
    dtp_svg_x_axis(file, &axis, 8, bottom,
                   "ms of one step; the number is the micro-batch's, between passes a rank idles or sends");
    for (uint32_t rank = 0; rank < s->rank_count; rank++) {
        char name[32];
        snprintf(name, sizeof name, "rank %u", rank);
        dtp_svg_text(file, LEFT - 8, 8 + LANE * rank + 17, "end", name);
    }
    for (size_t i = 0; i < s->pass_count; i++)
        draw_pass(&s->passes[i], &axis, file);
    dtp_svg_end(file);
    fputs("</figure>\n", file);
}

/* ---- the table --------------------------------------------------------------------------------------------------- */

static void rank_row(const struct dtp_pipeline_stages *s, uint32_t index, FILE *file)
{
    const struct dtp_pipeline_rank *r = &s->ranks[index];
    const struct dtp_memory *m = &r->memory;
    const double gib[] = {(double)m->phase_bytes[m->peak_phase][DTP_OWNER_ACTIVATIONS], (double)m->device_peak_bytes};
    double seconds[DTP_RANK_SECONDS];
    dtp_simulation_rank_seconds(r, seconds);
    char text[64];
    dtp_html_row(file);
    snprintf(text, sizeof text, "%u%s", index, index == s->worst ? ", most memory" : "");
    dtp_html_head_cell(file, text);
    snprintf(text, sizeof text, "%s%u%s", r->embedding ? "embedding + " : "", r->layers, r->head ? " + head" : "");
    dtp_html_word_cell(file, text);
    dtp_html_figure_cell(file, r->in_flight, "%u", r->in_flight);
    for (size_t i = 0; i < sizeof gib / sizeof *gib; i++)
        dtp_html_figure_cell(file, gib[i], "%.2f", gib[i] / 0x1p30);
    dtp_html_word_cell(file, dtp_verdict_text(m->verdict));
    dtp_html_figure_cell(file, dtp_pipeline_busy_fraction(s, index), "%.1f",
                         100 * dtp_pipeline_busy_fraction(s, index));
    for (size_t i = 0; i < sizeof seconds / sizeof *seconds; i++)
        dtp_html_figure_cell(file, seconds[i], "%.1f", 1e3 * seconds[i]);
    for (int i = 0; i < DTP_WAIT_COUNT; i++)
        dtp_html_figure_cell(file, r->idle_for_s[i], "%.1f", 1e3 * r->idle_for_s[i]);
    dtp_html_figure_cell(file, r->forward_queue, "%u", r->forward_queue);
    dtp_html_figure_cell(file, r->backward_queue, "%u", r->backward_queue);
}

static void table(const struct dtp_pipeline_stages *s, FILE *file)
{
    static const char *const names[] = {"Rank",
                                        "Layers",
                                        ">In flight",
                                        ">Activations, GiB",
                                        ">Device, GiB",
                                        "Verdict",
                                        ">Busy, %",
                                        ">Computes, ms",
                                        ">Optimizer, ms",
                                        ">Sends, ms",
                                        ">Tensor and context parallel, ms",
                                        ">Data parallel, ms",
                                        ">Idle in warm-up, ms",
                                        ">Steady, ms",
                                        ">In drain, ms",
                                        ">For activations, ms",
                                        ">For gradients, ms",
                                        ">For a receiver, ms",
                                        ">For the step\u2019s end, ms",
                                        ">Activations queued",
                                        ">Gradients queued"};
    dtp_html_table(file, "pipeline-table",
                   "A row a rank: what it holds at its peak, what nothing hides of sends and collectives, its idle "
                   "time by when it is and once more by what it waits for",
                   names, sizeof names / sizeof *names, false);
    for (uint32_t i = 0; i < s->rank_count; i++)
        rank_row(s, i, file);
    dtp_html_table_end(file);
}

bool dtp_html_has_pipeline(const struct dtp_html_job *job)
{
    return job->stages && job->stages->rank_count;
}

void dtp_html_pipeline(const struct dtp_html_job *job, FILE *file)
{
    const struct dtp_pipeline_stages *s = job->stages;
    double idle_s = 0;
    if (!dtp_html_has_pipeline(job))
        return;
    for (uint32_t i = 0; i < s->rank_count; i++)
        idle_s += dtp_pipeline_idle_s(&s->ranks[i]) / s->rank_count;
    dtp_html_section(file, "pipeline", "The pipeline");
    fprintf(file, "<p>%u ranks under schedule %s: %s. They idle %.1f %% of the step.</p>\n", s->rank_count,
            dtp_schedule_row(s->schedule)->word, dtp_schedule_row(s->schedule)->words, 100 * idle_s / s->step_s);
    if (s->pass_count <= MOST_DRAWN)
        draw(s, file);
    else
        fprintf(file,
                "<p class=\"soft\">Not drawn: %zu passes are more than %u; dtplan simulate --chart draws them.</p>\n",
                s->pass_count, MOST_DRAWN);
    table(s, file);
    dtp_html_section_end(file);
}
