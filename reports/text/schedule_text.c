/* Pipeline schedules for people. */
#include "record/schedule_report.h"

#include "base/append.h"
#include "page/grid.h"
#include "schedule/schedule_print.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MOST_PICTURE_LINES 80
#define MOST_RANK_ROWS 64

static const char *figure(double value, char out[32])
{
    if (fabs(value) < 1e-9) /* what rounding leaves of nothing */
        value = 0;
    if (!isfinite(value) || fabs(value) >= 1e4)
        return isfinite(value) ? dtp_page_figure(value, out, 32) : strcpy(out, "-");
    snprintf(out, 32, "%.4g", value);
    return out;
}

static double percent(double part, double whole)
{
    return whole > 0 ? 100 * part / whole : 0;
}

static void cell(struct dtp_grid *grid, double value)
{
    char text[32];
    dtp_grid_cell(grid, "%s", figure(value, text));
}

static enum dtp_status print_grid(struct dtp_grid *grid, const struct dtp_page *page, struct dtp_faults *faults)
{
    bool failed = grid->failed;
    if (!failed)
        dtp_grid_print(grid, page, 2);
    dtp_grid_destroy(grid);
    return failed ? dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "out of memory") : DTP_OK;
}

static void print_question(const struct dtp_schedule_question *q, const struct dtp_page *page)
{
    char f[32], b[32], w[32], s[32];
    dtp_page_say(page, 0, 0,
                 "%" PRIu32 " rank%s in a pipeline, %" PRIu32
                 " micro-batch%s a step; on a rank%s each takes F %s, B %s, W %s, a transfer %s%s",
                 q->ranks, q->ranks > 1 ? "s" : "", q->micro_batches, q->micro_batches > 1 ? "es" : "",
                 q->layers ? " with an even share of the layers" : "", figure(q->forward_s, f),
                 figure(q->backward_s, b), figure(q->weight_s, w), figure(q->send_s, s),
                 q->send == DTP_SEND_BUFFERED     ? ""
                 : q->send == DTP_SEND_RENDEZVOUS ? "; a transfer begins when its receiver has come to it"
                                                  : "; a rank waits until what it sends is taken");
}

/* ---- several -------------------------------------------------------------------------------------------------------
 */

/* The least and most of a rank. */
struct range {
    double least, most;
};

static struct range kept_range(const struct dtp_schedule_case *c)
{
    struct range r = {INFINITY, 0};
    for (uint32_t i = 0; i < c->schedule.shape.ranks; i++) {
        double kept = c->timing.ranks[i].peak_kept;
        r = (struct range){fmin(r.least, kept), fmax(r.most, kept)};
    }
    return r;
}

static void range_cell(struct dtp_grid *grid, struct range r)
{
    char least[32], most[32];
    if (r.least == r.most)
        dtp_grid_cell(grid, "%s", figure(r.most, most));
    else
        dtp_grid_cell(grid, "%s to %s", figure(r.least, least), figure(r.most, most));
}

static void add_case(struct dtp_grid *grid, const struct dtp_schedule_case *c, bool best)
{
    const struct dtp_schedule_row *row = dtp_schedule_row(c->kind);
    uint32_t forward = 0, backward = 0;
    for (uint32_t i = 0; i < c->schedule.shape.ranks; i++) {
        const struct dtp_rank_timing *r = &c->timing.ranks[i];
        forward = r->forward_queue > forward ? r->forward_queue : forward;
        backward = r->backward_queue > backward ? r->backward_queue : backward;
    }
    dtp_grid_row(grid, best ? DTP_INK_GREEN : DTP_INK_PLAIN);
    dtp_grid_cell(grid, "%s", row->word);
    cell(grid, c->timing.makespan_s);
    cell(grid, c->timing.bubble_s);
    dtp_grid_cell(grid, "%.1f", percent(c->timing.bubble_s, c->timing.makespan_s));
    cell(grid, c->timing.span_bubble_s);
    range_cell(grid, kept_range(c));
    dtp_grid_cell(grid, "%" PRIu32, row->copies);
    dtp_grid_cell(grid, "%" PRIu32 ", %" PRIu32, forward, backward);
}

static enum dtp_status print_comparison(const struct dtp_schedule_report *report, const struct dtp_page *page,
                                        struct dtp_faults *faults)
{
    static const char *const words[] = {"schedule", "step", "bubble", "%", "own span", "kept", "copies", "queues"};
    struct dtp_grid grid;
    double best_s = INFINITY;
    bool refused = false;
    for (size_t i = 0; i < report->question.kind_count; i++)
        if (!report->cases[i].refused[0])
            best_s = fmin(best_s, report->cases[i].timing.makespan_s);
    fputc('\n', page->file);
    dtp_grid_create(&grid, "lrrrrrrr");
    dtp_grid_texts(&grid, DTP_INK_BOLD, words, sizeof words / sizeof *words);
    for (size_t i = 0; i < report->question.kind_count; i++) {
        const struct dtp_schedule_case *c = &report->cases[i];
        refused = refused || c->refused[0];
        if (!c->refused[0])
            add_case(&grid, c, c->timing.makespan_s <= best_s * (1 + 1e-9));
    }
    enum dtp_status status = print_grid(&grid, page, faults);
    if (refused)
        dtp_page_heading(page, "REFUSED", "");
    for (size_t i = 0; i < report->question.kind_count; i++)
        if (report->cases[i].refused[0]) {
            dtp_page_say(page, 2, 4, "%s", report->cases[i].refused);
        }
    fputc('\n', page->file);
    dtp_page_wrap(
        page, 0, 0,
        "step: until the last rank is done. bubble: what the busiest rank idles of it; own span: of its own time from "
        "first to last pass, which is what counts where the optimizer validates its step afterwards and no rank waits "
        "at the end. kept: micro-batches of a rank's layers between forward and backward, of the rank with least to "
        "that with most. copies: of the parameters. queues: most that waits at a rank, activations and gradients.");
    return status;
}

/* ---- one -----------------------------------------------------------------------------------------------------------
 */

static void add_stages(struct dtp_grid *grid, const struct dtp_schedule *schedule, uint32_t rank)
{
    char text[64] = "";
    uint32_t chunks = schedule->shape.chunks;
    for (uint32_t chunk = 0; chunk < chunks; chunk++) {
        if (chunk == 3 && chunks > 4) {
            dtp_append(text, sizeof text, " ... %" PRIu32, dtp_schedule_stage(schedule, rank, chunks - 1));
            break;
        }
        dtp_append_part(text, sizeof text, " ", "%" PRIu32, dtp_schedule_stage(schedule, rank, chunk));
    }
    dtp_grid_cell(grid, "%s", text);
}

static enum dtp_status print_ranks(const struct dtp_schedule_case *c, const struct dtp_page *page,
                                   struct dtp_faults *faults)
{
    static const char *const words[] = {"rank",  "stages", "busy %", "warm-up", "steady",
                                        "drain", "kept",   "W late", "queues"};
    uint32_t ranks = c->schedule.shape.ranks;
    struct dtp_grid grid;
    fputc('\n', page->file);
    dtp_grid_create(&grid, "rrrrrrrrr");
    dtp_grid_texts(&grid, DTP_INK_BOLD, words, sizeof words / sizeof *words);
    for (uint32_t i = 0; i < ranks; i++) {
        const struct dtp_rank_timing *r = &c->timing.ranks[i];
        if (ranks > MOST_RANK_ROWS && i >= MOST_RANK_ROWS / 2 && i < ranks - MOST_RANK_ROWS / 2)
            continue;
        dtp_grid_row(&grid, DTP_INK_PLAIN);
        dtp_grid_cell(&grid, "%" PRIu32, i);
        add_stages(&grid, &c->schedule, i);
        dtp_grid_cell(&grid, "%.1f", percent(r->busy_s, c->timing.makespan_s));
        cell(&grid, r->warm_up_idle_s);
        cell(&grid, r->steady_idle_s);
        cell(&grid, r->drain_idle_s);
        cell(&grid, r->peak_kept);
        dtp_grid_cell(&grid, "%" PRIu32, r->peak_weights);
        dtp_grid_cell(&grid, "%" PRIu32 ", %" PRIu32, r->forward_queue, r->backward_queue);
    }
    enum dtp_status status = print_grid(&grid, page, faults);
    if (ranks > MOST_RANK_ROWS)
        fprintf(page->file, "  the first and last %d of %" PRIu32 " ranks; --csv has all\n", MOST_RANK_ROWS / 2, ranks);
    return status;
}

/* How the model is cut, as a layout text. */
static enum dtp_status print_layout(const struct dtp_schedule_case *c, const struct dtp_page *page,
                                    struct dtp_faults *faults)
{
    uint32_t least = UINT32_MAX, most = 0;
    if (!c->stages.count)
        return DTP_OK;
    for (uint32_t i = 0; i < c->stages.count; i++) {
        uint32_t layers = c->stages.parts[i].layers;
        least = layers < least ? layers : least;
        most = layers > most ? layers : most;
    }
    char *layout = dtp_stages_text(&c->stages);
    if (!layout)
        return dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "out of memory");
    dtp_page_say(page, 0, 2, "stages of %" PRIu32 " to %" PRIu32 " layers: %.400s%s", least, most, layout,
                 strlen(layout) > 400 ? " ..." : "");
    free(layout);
    return DTP_OK;
}

static enum dtp_status print_one(const struct dtp_schedule_case *c, const struct dtp_page *page,
                                 struct dtp_faults *faults)
{
    const struct dtp_schedule_row *row = dtp_schedule_row(c->kind);
    const struct dtp_schedule_timing *t = &c->timing;
    char step[32], bubble[32], span[32], formula[32];
    dtp_page_say(page, 0, 2, "%s: %s (%s)", row->word, row->words, row->source);
    dtp_page_say(page, 0, 2, "step %s, bubble %s (%.1f %%)%s%s%s%s; of its own span a rank idles %s",
                 figure(t->makespan_s, step), figure(t->bubble_s, bubble), percent(t->bubble_s, t->makespan_s),
                 isfinite(c->formula_s) ? ", by formula " : "", isfinite(c->formula_s) ? row->bubble : "",
                 isfinite(c->formula_s) ? " = " : "", isfinite(c->formula_s) ? figure(c->formula_s, formula) : "",
                 figure(t->span_bubble_s, span));
    enum dtp_status status = print_layout(c, page, faults);
    if (status == DTP_OK)
        status = print_ranks(c, page, faults);
    int columns = dtp_page_columns(page) - 2;
    fputc('\n', page->file);
    if (status != DTP_OK)
        return status;
    if (dtp_schedule_print_lines(&c->schedule, t, columns) > MOST_PICTURE_LINES) {
        dtp_page_wrap(page, 0, 0, "Its picture is too long for a page of text; --chart FIGURE.png draws it.");
        return DTP_OK;
    }
    if (!dtp_schedule_print(&c->schedule, t, columns, page->file))
        return dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "out of memory");
    fputc('\n', page->file);
    dtp_page_wrap(page, 0, 0,
                  "F forward, B backward (of the input alone where W stands by itself), W gradients of weights, F1&B0 "
                  "a pair that runs interleaved; f, b, w of odd chunks. Warm-up: idle before the first backward; "
                  "drain: after the last forward. kept: micro-batches of a rank's layers between forward and backward; "
                  "W late: chunks' micro-batches between B and W. queues: most that waits, activations and gradients.");
    return DTP_OK;
}

enum dtp_status dtp_schedule_report_text(const struct dtp_schedule_report *report, const struct dtp_page *page,
                                         struct dtp_faults *faults)
{
    print_question(&report->question, page);
    return report->question.kind_count == 1 ? print_one(&report->cases[0], page, faults)
                                            : print_comparison(report, page, faults);
}
