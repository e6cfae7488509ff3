/* The ranks of a pipeline beside each other: what they hold, what they do, why they idle. */
#include "record/report.h"
#include "record/simulation_report.h"

#include "page/grid.h"

#include <string.h>

#define MOST_ROWS 16 /* of more ranks only some are shown */
#define ROWS_OF_END 4

static uint64_t owned_bytes(const struct dtp_memory *m, enum dtp_owner owner)
{
    return m->phase_bytes[m->peak_phase][owner];
}

static uint64_t state_bytes(const struct dtp_memory *m)
{
    return owned_bytes(m, DTP_OWNER_PARAMS) + owned_bytes(m, DTP_OWNER_GRADS) + owned_bytes(m, DTP_OWNER_OPTIMIZER);
}

static const char *const wait_words[DTP_WAIT_COUNT] = {[DTP_WAIT_ACTIVATIONS] = "for activations",
                                                       [DTP_WAIT_GRADIENTS] = "gradients",
                                                       [DTP_WAIT_RECEIVER] = "receiver",
                                                       [DTP_WAIT_STEP_END] = "step's end"};

static void put_time(struct dtp_grid *grid, double seconds, const struct dtp_unit *time)
{
    dtp_grid_cell(grid, "%.*f", time->divisor < 1 ? 1 : 3, seconds / time->divisor);
}

static void put_heads(struct dtp_grid *grid, const struct dtp_unit *memory, const struct dtp_unit *time)
{
    static const char *const bytes[] = {"state", "activations", "device"};
    static const char *const seconds[] = {"computes", "optimizer",     "sends",  "tp and cp",
                                          "dp",       "idle: warm-up", "steady", "drain"};
    dtp_grid_row(grid, DTP_INK_BOLD);
    dtp_grid_cell(grid, "rank");
    dtp_grid_cell(grid, "layers");
    dtp_grid_cell(grid, "in flight");
    for (size_t i = 0; i < sizeof bytes / sizeof *bytes; i++)
        dtp_grid_cell(grid, i ? "%s" : "%s, %s", bytes[i], memory->name);
    dtp_grid_cell(grid, "busy %%");
    for (size_t i = 0; i < sizeof seconds / sizeof *seconds; i++)
        dtp_grid_cell(grid, i ? "%s" : "%s, %s", seconds[i], time->name);
    for (int i = 0; i < DTP_WAIT_COUNT; i++)
        dtp_grid_cell(grid, "%s", wait_words[i]);
    dtp_grid_cell(grid, "queues");
}

void dtp_simulation_rank_seconds(const struct dtp_pipeline_rank *r, double out[DTP_RANK_SECONDS])
{
    const double seconds[DTP_RANK_SECONDS] = {r->compute_s,
                                              r->optimizer_s,
                                              r->exposed_transfers_s,
                                              r->exposed_tensor_s + r->exposed_context_s,
                                              r->exposed_collectives_s,
                                              r->warm_up_idle_s,
                                              r->steady_idle_s,
                                              r->drain_idle_s};
    memcpy(out, seconds, sizeof seconds);
}

static void put_rank(struct dtp_grid *grid, const struct dtp_pipeline_stages *s, uint32_t index,
                     const struct dtp_unit *memory, const struct dtp_unit *time)
{
    const struct dtp_pipeline_rank *r = &s->ranks[index];
    const uint64_t bytes[] = {state_bytes(&r->memory), owned_bytes(&r->memory, DTP_OWNER_ACTIVATIONS),
                              r->memory.device_peak_bytes};
    double seconds[DTP_RANK_SECONDS];
    dtp_simulation_rank_seconds(r, seconds);
    bool worst = index == s->worst;
    dtp_grid_row(grid, worst ? DTP_INK_BOLD : DTP_INK_PLAIN);
    dtp_grid_cell(grid, "%u%s", index, worst ? " *" : "");
    dtp_grid_cell(grid, "%s%u%s%s", r->embedding ? "E+" : "", r->layers, r->mtp_layers ? "+MTP" : "",
                  r->head ? "+head" : "");
    dtp_grid_cell(grid, "%u", r->in_flight);
    for (size_t i = 0; i < sizeof bytes / sizeof *bytes; i++)
        dtp_grid_cell(grid, "%.2f", (double)bytes[i] / memory->divisor);
    dtp_grid_cell(grid, "%.1f", 100 * dtp_pipeline_busy_fraction(s, index));
    for (size_t i = 0; i < sizeof seconds / sizeof *seconds; i++)
        put_time(grid, seconds[i], time);
    for (int i = 0; i < DTP_WAIT_COUNT; i++)
        put_time(grid, r->idle_for_s[i], time);
    dtp_grid_cell(grid, "%u, %u", r->forward_queue, r->backward_queue);
}

static bool is_shown(const struct dtp_pipeline_stages *s, uint32_t index)
{
    bool end = index < ROWS_OF_END || index + ROWS_OF_END >= s->rank_count;
    return s->rank_count <= MOST_ROWS || end || (index + 1 >= s->worst && index <= s->worst + 1);
}

static double bubble_share(const struct dtp_pipeline_stages *s)
{
    double idle_s = 0;
    for (uint32_t i = 0; i < s->rank_count; i++)
        idle_s += dtp_pipeline_idle_s(&s->ranks[i]);
    return s->step_s > 0 ? idle_s / s->step_s / s->rank_count : 0;
}

void dtp_pipeline_text(const struct dtp_pipeline_stages *s, const struct dtp_page *page)
{
    if (!s->rank_count)
        return;
    struct dtp_unit memory = dtp_unit_memory(s->ranks[s->worst].memory.device_peak_bytes);
    struct dtp_unit time = dtp_unit_time(s->step_s);
    struct dtp_grid grid;
    dtp_page_heading(page, "PIPELINE", "%s, %u ranks: each in one row; * takes most memory",
                     dtp_schedule_row(s->schedule)->word, s->rank_count);
    dtp_grid_create(&grid, "llrrrrrrrrrrrrrrrrr");
    put_heads(&grid, &memory, &time);
    for (uint32_t i = 0; i < s->rank_count; i++)
        if (is_shown(s, i))
            put_rank(&grid, s, i, &memory, &time);
    dtp_grid_end(&grid, page, 2);
    const char *rest =
        s->rank_count > MOST_ROWS ? " Ranks that are not shown are like their neighbours; --json has all." : "";
    dtp_page_say(page, 2, 2,
                 "ranks idle %.1f %% of the step: before their first backward (warm-up), behind their last forward "
                 "(drain), between (steady); the same by what they wait for: activations or gradients of another rank, "
                 "a receiver that does not take them yet, what all do at the step's end. In flight: forwards that wait "
                 "for their backward, of one chunk each. Queues: most activations and gradients that other ranks had "
                 "made and that waited. State: parameters, gradients, optimizer.%s%s",
                 100 * bubble_share(s),
                 s->last_s > s->step_s
                     ? " A rank begins its next step when it is through with this one: the last of these steps "
                       "begins later than the first."
                     : "",
                 rest);
}
