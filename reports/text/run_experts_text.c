/* Rows of tokens that experts got, layer by layer: of the fullest rank and expert how many times the mean, and where
 * there are few, of each. */
#include "text/run_experts_text.h"

#include "page/grid.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

#define LISTED 16 /* more stand in the JSON alone */

double dtp_run_fullest(const uint64_t *rows, uint32_t experts, uint32_t each)
{
    uint64_t all = 0, most = 0;
    for (uint32_t first = 0; first < experts; first += each) {
        uint64_t sum = 0;
        for (uint32_t e = first; e < first + each && e < experts; e++)
            sum += rows[e];
        all += sum;
        most = sum > most ? sum : most;
    }
    return all ? (double)most * experts / each / (double)all : 0;
}

double dtp_run_expert_imbalance(const struct dtp_run_outcome *m, uint32_t ranks)
{
    double sum = 0;
    uint32_t layers = 0;
    for (uint32_t layer = 0; m->expert_rows && ranks && m->experts >= ranks && layer < m->expert_layers; layer++) {
        double fullest = dtp_run_fullest(m->expert_rows + (size_t)layer * m->experts, m->experts, m->experts / ranks);
        sum += fullest, layers += fullest > 0;
    }
    return layers ? sum / layers : (double)NAN;
}

void dtp_run_experts_text(const struct dtp_run_outcome *m, uint32_t ranks, const struct dtp_page *page)
{
    struct dtp_grid grid;
    if (!m->expert_rows || !ranks || m->experts < ranks)
        return;
    const bool listed = m->experts <= LISTED;
    dtp_page_heading(page, "EXPERTS", "rows of tokens in all steps%s, and the fullest over the mean",
                     listed ? " of each" : "");
    dtp_grid_create(&grid, "rrrl");
    dtp_grid_row(&grid, DTP_INK_DIM);
    dtp_grid_cell(&grid, "layer");
    dtp_grid_cell(&grid, "rank");
    dtp_grid_cell(&grid, "expert");
    dtp_grid_cell(&grid, "%s", listed ? "rows of experts 0, 1, ..." : "");
    for (uint32_t layer = 0; layer < m->expert_layers; layer++) {
        const uint64_t *rows = m->expert_rows + (size_t)layer * m->experts;
        char list[24 * LISTED] = "";
        size_t length = 0;
        if (dtp_run_fullest(rows, m->experts, 1) <= 0) /* a layer without experts */
            continue;
        for (uint32_t e = 0; e < m->experts && listed; e++)
            length += (size_t)snprintf(list + length, sizeof list - length, "%s%" PRIu64, e ? " " : "", rows[e]);
        dtp_grid_row(&grid, DTP_INK_PLAIN);
        dtp_grid_cell(&grid, "%u", layer);
        dtp_grid_cell(&grid, "%.2f", dtp_run_fullest(rows, m->experts, m->experts / ranks));
        dtp_grid_cell(&grid, "%.2f", dtp_run_fullest(rows, m->experts, 1));
        dtp_grid_cell(&grid, "%s", list);
    }
    dtp_grid_end(&grid, page, 2);
}
