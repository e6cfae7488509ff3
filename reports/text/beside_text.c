#include "record/beside_report.h"

#include "page/grid.h"
#include "record/report.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

/* ---- tables ------------------------------------------------------------------------------------------------------ */

static void print_lines(const struct dtp_beside_line *lines, size_t count, double divisor, bool planned,
                        const struct dtp_page *page)
{
    static const char *const header[] = {"", "predicted", "recorded", "difference", "of it, %"};
    struct dtp_grid grid;
    dtp_grid_create(&grid, planned ? "lrrrr" : "lr");
    dtp_grid_row(&grid, DTP_INK_DIM);
    for (int i = 0; i < 5; i++)
        if (planned || i == 0 || i == 2)
            dtp_grid_cell(&grid, "%s", header[i]);
    for (size_t i = 0; i < count; i++) {
        dtp_grid_row(&grid, DTP_INK_PLAIN);
        dtp_grid_cell(&grid, "%s", lines[i].words);
        if (planned)
            dtp_grid_cell(&grid, "%.3f", lines[i].predicted / divisor);
        dtp_grid_cell(&grid, "%.3f", lines[i].measured / divisor);
        if (planned)
            dtp_grid_cell(&grid, "%+.3f", (lines[i].measured - lines[i].predicted) / divisor);
        if (planned && lines[i].predicted > 0)
            dtp_grid_cell(&grid, "%+.1f", 100 * (lines[i].measured / lines[i].predicted - 1));
        else if (planned)
            dtp_grid_cell(&grid, "-");
    }
    dtp_grid_end(&grid, page, 2);
}

static void print_log(const struct dtp_compared *b, const struct dtp_observed_log *l, const struct dtp_page *page)
{
    struct dtp_beside_line lines[3];
    size_t count = 0;
    if (l->step_s > 0)
        lines[count++] = (struct dtp_beside_line){"step, ms", 1e3 * b->plan.step_s, 1e3 * l->step_s};
    if (l->tokens_per_s > 0)
        lines[count++] = (struct dtp_beside_line){"tokens/s of a GPU", b->plan.tokens_per_s_per_gpu, l->tokens_per_s};
    if (l->peak_bytes > 0)
        lines[count++] = (struct dtp_beside_line){"memory, GiB", (double)b->plan.reserved_bytes / 0x1p30,
                                                  (double)l->peak_bytes / 0x1p30};
    print_lines(lines, count, 1, b->plan.known, page);
}

static void print_file(const struct dtp_compared *b, const struct dtp_observed *o, const struct dtp_page *page)
{
    struct dtp_beside_line lines[DTP_BESIDE_MOST_LINES];
    const char *slash = strrchr(o->path, '/');
    size_t count;
    switch (o->what) {
    case DTP_OBSERVED_TIME:
        dtp_page_heading(page, "TIME", "of a step in ms, mean of %" PRIu32 "; %s, %s", o->time.steps,
                         slash ? slash + 1 : o->path, o->tool);
        count = dtp_beside_time_lines(b, &o->time, lines);
        print_lines(lines, count, 1e-3, b->plan.known, page);
        break;
    case DTP_OBSERVED_MEMORY:
        dtp_page_heading(page, "MEMORY", "at its peak in GiB; %s, %s", slash ? slash + 1 : o->path, o->tool);
        count = dtp_beside_memory_lines(b, &o->memory, lines);
        print_lines(lines, count, 0x1p30, b->plan.known, page);
        break;
    case DTP_OBSERVED_LOG:
        dtp_page_heading(page, "LOG", "median of %" PRIu32 " steps; %s, %s", o->log.steps, slash ? slash + 1 : o->path,
                         o->tool);
        print_log(b, &o->log, page);
        break;
    }
}

static void print_causes(const struct dtp_compared *b, const struct dtp_page *page)
{
    dtp_page_heading(page, "LIKELY CAUSES", "each by its own evidence, the one that accounts for most first");
    bool log_alone = true;
    for (size_t i = 0; i < b->count; i++)
        log_alone &= b->observed[i].what == DTP_OBSERVED_LOG;
    if (b->cause_count == 0)
        dtp_page_say(page, 2, 2, "None is seen in these files.");
    if (b->cause_count == 0 && log_alone)
        dtp_page_say(page, 2, 2,
                     "A log says how fast a run is, not why: name a trace of PyTorch's profiler or nsys' database too, "
                     "for memory a history of PyTorch's allocator.");
    for (size_t i = 0; i < b->cause_count; i++) {
        const struct dtp_cause *c = &b->causes[i];
        if (c->seconds > 0)
            dtp_page_say(page, 2, 4, "%s, %.1f ms a step: %s.", dtp_cause_words(c->kind), 1e3 * c->seconds,
                         c->evidence);
        else
            dtp_page_say(page, 2, 4, "%s, %.2f GiB: %s.", dtp_cause_words(c->kind), c->bytes / 0x1p30, c->evidence);
        dtp_page_say(page, 4, 4, "%s", c->remedy);
    }
}

void dtp_beside_text(const struct dtp_compared *b, const struct dtp_page *page)
{
    if (b->plan.known)
        dtp_report_head(b->plan.job, DTP_HEAD_PLAN, page);
    else
        dtp_page_say(page, 0, 0, "No plan was named: with the keys of a job its prediction stands beside.");
    for (size_t i = 0; i < b->count; i++)
        print_file(b, &b->observed[i], page);
    print_causes(b, page);
}
