/* What became of an elastic run's time: goodput as it was beside what was to be expected. */
#include "record/run_report.h"

#include "base/append.h"
#include "page/grid.h"

#include <inttypes.h>
#include <math.h>

double dtp_elastic_goodput(const struct dtp_elastic_outcome *e)
{
    return e->wall_s > 0 ? e->useful_s / e->wall_s : 0;
}

/* W / (W + copies + n (tau / 2 + R)): goodput.h with failures that are known and not drawn. */
double dtp_elastic_expected(const struct dtp_elastic_outcome *e)
{
    double between_s = e->snapshots > 0 ? e->useful_s / (double)e->snapshots : e->useful_s;
    double wall_s = e->useful_s + e->stall_s + e->failures * (between_s / 2 + e->first_start_s);
    return wall_s > 0 ? e->useful_s / wall_s : 0;
}

double dtp_elastic_expected_steps(const struct dtp_elastic_outcome *e)
{
    return e->snapshots > 0 ? (double)e->steps / (double)e->snapshots / 2 : (double)e->steps / 2;
}

double dtp_elastic_step_s(const struct dtp_elastic_outcome *e)
{
    return e->steps > 0 ? e->useful_s / (double)e->steps : 0;
}

static void cell_seconds(struct dtp_grid *grid, double seconds)
{
    if (isfinite(seconds))
        dtp_grid_cell(grid, "%.1f s", seconds);
    else
        dtp_grid_cell(grid, "-");
}

static void failures_text(const struct dtp_elastic_outcome *e, const struct dtp_page *page)
{
    struct dtp_grid grid;
    double step_s = dtp_elastic_step_s(e);
    if (!e->failures)
        return;
    dtp_grid_create(&grid, "lrrrrl");
    dtp_grid_row(&grid, DTP_INK_DIM);
    dtp_grid_cell(&grid, "failure");
    dtp_grid_cell(&grid, "steps again");
    dtp_grid_cell(&grid, "noticed");
    dtp_grid_cell(&grid, "ranks ended");
    dtp_grid_cell(&grid, "a step again");
    dtp_grid_cell(&grid, "who was lost");
    for (uint32_t i = 0; i < e->failures && i < DTP_ELASTIC_FAILURES_TOLD; i++) {
        const struct dtp_elastic_failure *f = &e->failure[i];
        dtp_grid_row(&grid, DTP_INK_PLAIN);
        dtp_grid_cell(&grid, "%" PRIu32, i + 1);
        dtp_grid_cell(&grid, "%" PRIu64, f->steps_again);
        cell_seconds(&grid, f->noticed_s);
        cell_seconds(&grid, f->ended_s);
        cell_seconds(&grid, f->rejoin_s);
        dtp_grid_cell(&grid, "%s", f->why);
        dtp_grid_row(&grid, DTP_INK_DIM);
        dtp_grid_cell(&grid, "predicted");
        dtp_grid_cell(&grid, "%.1f", dtp_elastic_expected_steps(e));
        cell_seconds(&grid, dtp_rank_loss_noticed_s(f->how, step_s));
        cell_seconds(&grid, dtp_rank_loss_ended_s(f->how, step_s));
        cell_seconds(&grid, e->first_start_s);
        dtp_grid_cell(&grid, "noticed by %s", dtp_rank_loss_words(f->how));
    }
    dtp_grid_end(&grid, page, 2);
}

void dtp_elastic_text(const struct dtp_elastic_outcome *e, const struct dtp_page *page)
{
    if (!e->known)
        return;
    dtp_page_heading(page, "ELASTIC", "%" PRIu32 " generation%s of ranks, the last of %" PRIu32, e->generations,
                     dtp_plural(e->generations), e->ranks);
    fprintf(page->file,
            "  lost ranks %" PRIu32 " time%s; %" PRIu64 " step%s done again in %.1f s, %.1f s until steps again\n",
            e->failures, dtp_plural(e->failures), e->again, dtp_plural(e->again), e->again_s, e->down_s);
    fprintf(page->file, "  %" PRIu64 " snapshots, for which training stood %.2f %% of its time\n", e->snapshots,
            e->wall_s > 0 ? 100 * e->stall_s / e->wall_s : 0);
    fprintf(page->file, "  goodput predicted %.1f %%, measured %.1f %%\n", 100 * dtp_elastic_expected(e),
            100 * dtp_elastic_goodput(e));
    failures_text(e, page);
}
