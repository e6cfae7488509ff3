/* Several strategies in one table, the best marked, the refused ones below with the reason. */
#include "record/report.h"

#include "page/grid.h"

#include <math.h>
#include <string.h>

static bool better(const struct dtp_prediction *a, const struct dtp_prediction *b)
{
    if (a->memory.verdict != b->memory.verdict)
        return a->memory.verdict < b->memory.verdict;
    return a->throughput.tokens_per_s >=
           b->throughput.tokens_per_s; /* of zero3 and full_shard under torch, the latter */
}

long dtp_comparison_best(const struct dtp_comparison_row *rows, size_t count)
{
    long best = -1;
    for (size_t i = 0; i < count; i++) {
        if (rows[i].refused || rows[i].report->prediction.memory.verdict == DTP_VERDICT_OOM)
            continue;
        if (best < 0 || better(&rows[i].report->prediction, &rows[best].report->prediction))
            best = (long)i;
    }
    return best;
}

static void add_header(struct dtp_grid *grid, const char *solved)
{
    const char *const names[2][11] = {
        {"", "strategy", solved, "device", "", "sent", "step", "tokens/s", "MFU", "scaling", "USD per"},
        {"", "", "", "GiB", "verdict", "GB/GPU", "s", "per GPU", "%", "%", "10^9 tok."},
    };
    for (int line = 0; line < 2; line++)
        dtp_grid_texts(grid, DTP_INK_BOLD, names[line], 11);
}

static void add_row(struct dtp_grid *grid, const struct dtp_comparison_row *row, bool best, const struct dtp_page *page)
{
    const struct dtp_report *r = row->report;
    const struct dtp_memory *m = &r->prediction.memory;
    char number[32];
    dtp_grid_row(grid, best ? DTP_INK_GREEN : m->verdict == DTP_VERDICT_OOM ? DTP_INK_DIM : DTP_INK_PLAIN);
    dtp_grid_cell(grid, "%s", best ? (page->utf8 ? "▶" : ">") : "");
    dtp_grid_cell(grid, "%s", row->strategy);
    if (r->solved && r->solution.found)
        dtp_grid_cell(grid, "%llu", (unsigned long long)r->solution.value);
    else
        dtp_grid_cell(grid, "%s", r->solved ? "none" : "");
    dtp_grid_cell(grid, "%.1f", (double)m->device_peak_bytes / 0x1p30);
    dtp_grid_cell(grid, "%s", dtp_verdict_text(m->verdict));
    dtp_grid_cell(grid, "%.2f", (double)r->prediction.communication.total_bytes / 1e9);
    dtp_grid_cell(grid, "%.4g", r->prediction.time.step_s);
    dtp_grid_cell(
        grid, "%s",
        dtp_page_grouped((uint64_t)llround(r->prediction.throughput.tokens_per_s_per_gpu), number, sizeof number));
    dtp_grid_cell(grid, "%.1f", 100 * r->prediction.throughput.mfu);
    dtp_grid_cell(grid, "%.1f", 100 * r->scaling.efficiency);
    dtp_grid_cell(
        grid, "%s",
        r->money.known ? dtp_page_figure(r->money.billion_tokens_usd[DTP_PRICE_TYPICAL], number, sizeof number) : "-");
}

static void print_best(const struct dtp_comparison_row *rows, size_t count, long best, const struct dtp_page *page)
{
    size_t refused = 0;
    char line[400];
    for (size_t i = 0; i < count; i++)
        refused += rows[i].refused;
    fputc('\n', page->file);
    if (best >= 0) {
        const struct dtp_report *r = rows[best].report;
        snprintf(line, sizeof line, "best: %s, the highest tokens/s of those that fit%s.", rows[best].strategy,
                 r->prediction.memory.verdict == DTP_VERDICT_TIGHT ? ", though it is tight: none leaves a margin" : "");
    } else if (refused == count) {
        snprintf(line, sizeof line, "none of these strategies is possible here.");
    } else {
        snprintf(line, sizeof line, "none fits: look at one of them alone to see the change that would help.");
    }
    dtp_page_wrap(page, 0, 2, line);
    for (size_t i = 0; i < count; i++) {
        const char *note = rows[i].refused ? rows[i].reason : rows[i].report->job.plan_note;
        if (!note[0])
            continue;
        dtp_page_say(page, 0, 2, "%s: %s%.300s", rows[i].strategy, rows[i].refused ? "refused: " : "", note);
    }
}

/* The first line of a plan report without what differs between the rows. */
static const struct dtp_report *first_report(const struct dtp_comparison_row *rows, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (!rows[i].refused)
            return rows[i].report;
    return NULL;
}

void dtp_report_compare_text(const struct dtp_comparison_row *rows, size_t count, const struct dtp_page *page)
{
    static const char *const solved_names[] = {[DTP_SOLVE_MAX_MICRO_BATCH] = "micro batch",
                                               [DTP_SOLVE_MAX_SEQUENCE] = "sequence",
                                               [DTP_SOLVE_MIN_GPUS] = "GPUs"};
    const struct dtp_report *first = first_report(rows, count);
    long best = dtp_comparison_best(rows, count);
    struct dtp_grid grid;
    if (first) {
        dtp_report_head(&first->job, DTP_HEAD_COMPARISON, page);
        dtp_page_heading(page, "STRATEGIES", "per GPU and optimizer step; the other choices as above");
        dtp_grid_create(&grid, "llrrlrrrrrr");
        add_header(&grid, first->solved ? solved_names[first->solution.goal] : "");
        for (size_t i = 0; i < count; i++)
            if (!rows[i].refused)
                add_row(&grid, &rows[i], (long)i == best, page);
        dtp_grid_end(&grid, page, 2);
    }
    print_best(rows, count, best, page);
}
