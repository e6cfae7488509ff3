/* What training stood still for to keep its state: predicted beside measured. */
#include "record/run_report.h"

#include "decide/elastic.h"
#include "page/grid.h"

#include <inttypes.h>
#include <math.h>

double dtp_run_stall_s(const struct dtp_run_report *r, const struct dtp_kept *kept, bool beside)
{
    const struct dtp_job *job = &r->simulated->job;
    double stall_s = 0;
    if (kept->count > 0 && r->measured->gpu && dtp_run_report_comparable(r))
        stall_s = beside ? dtp_state_copy_s(job) : dtp_goodput_inputs_of(job, 1).checkpoint_s;
    return stall_s > 0 ? stall_s : (double)NAN;
}

double dtp_kept_mean_s(const struct dtp_kept *kept)
{
    return kept->count > 0 ? kept->stall_s / (double)kept->count : (double)NAN;
}

static void put_row(struct dtp_grid *grid, const char *words, const struct dtp_kept *kept, double predicted_s)
{
    double mean_s = dtp_kept_mean_s(kept);
    if (kept->count == 0)
        return;
    dtp_grid_row(grid, DTP_INK_PLAIN);
    dtp_grid_cell(grid, "%" PRIu64 " %s", kept->count, words);
    if (isfinite(predicted_s))
        dtp_grid_cell(grid, "%.1f", 1e3 * predicted_s);
    else
        dtp_grid_cell(grid, "-");
    dtp_grid_cell(grid, "%.1f", 1e3 * mean_s);
    if (isfinite(predicted_s) && mean_s > 0)
        dtp_grid_cell(grid, "%.3f", predicted_s / mean_s);
    else
        dtp_grid_cell(grid, "");
    dtp_grid_cell(grid, "%.1f", 1e3 * kept->longest_s);
}

void dtp_run_stalls_text(const struct dtp_run_report *r, const struct dtp_page *page)
{
    static const char *const header[] = {"", "predicted", "measured", "ratio", "longest"};
    const struct dtp_run_outcome *m = r->measured;
    struct dtp_grid grid;
    if (m->checkpoints.count + m->beside.count + m->snapshots.count == 0)
        return;
    dtp_page_heading(page, "STALLS", "training stood still to keep its state, ms each");
    dtp_grid_create(&grid, "lrrrr");
    dtp_grid_texts(&grid, DTP_INK_DIM, header, 5);
    put_row(&grid, "x checkpoint, written", &m->checkpoints, dtp_run_stall_s(r, &m->checkpoints, false));
    put_row(&grid, "x checkpoint, copied", &m->beside, dtp_run_stall_s(r, &m->beside, true));
    put_row(&grid, "x snapshot, copied", &m->snapshots, dtp_run_stall_s(r, &m->snapshots, true));
    dtp_grid_end(&grid, page, 2);
    int copies = (m->beside.host_bytes > 0) + (m->snapshots.host_bytes > 0);
    if (copies > 0)
        dtp_page_say(page, 2, 2,
                     "Each rank copied to %.3f GiB of its host's memory, taken before the first step; predicted %.3f.",
                     (double)(m->beside.host_bytes + m->snapshots.host_bytes) / 0x1p30,
                     copies * dtp_state_copy_bytes(&r->simulated->job) / 0x1p30);
}
