/* A run of a pipeline: its stages, each predicted beside measured. */
#include "record/run_report.h"

#include "page/grid.h"
#include "program/program_text.h"
#include "record/report.h"
#include "record/simulation_report.h"
#include "text/run_experts_text.h"

#include <inttypes.h>
#include <math.h>

/* Whether tensor parallel ranks divide the stages, and context parallel ones sequences: then what these wait for each
 * other is a column. */
struct shared {
    bool tensor, context;
};

static struct shared shared_by(const struct dtp_stages_report *r)
{
    return (struct shared){r->simulated->job.plan.tp > 1, r->simulated->job.plan.cp > 1};
}

static void put_heads(struct dtp_grid *grid, const struct dtp_unit *memory, const struct dtp_unit *time,
                      struct shared shared)
{
    static const char *const heads[] = {"sends", "tp", "cp", "idle: warm-up", "steady", "drain"};
    dtp_grid_row(grid, DTP_INK_BOLD);
    dtp_grid_cell(grid, "rank");
    dtp_grid_cell(grid, "layers");
    dtp_grid_cell(grid, "%s", "");
    dtp_grid_cell(grid, "arena, %s", memory->name);
    dtp_grid_cell(grid, "sent, %s", memory->name);
    dtp_grid_cell(grid, "busy %%");
    dtp_grid_cell(grid, "computes, %s", time->name);
    for (size_t i = 0; i < sizeof heads / sizeof *heads; i++)
        if ((shared.tensor || i != 1) && (shared.context || i != 2))
            dtp_grid_cell(grid, "%s", heads[i]);
    for (int i = 0; i < DTP_WAIT_COUNT; i++)
        dtp_grid_cell(grid, i ? "%s" : "for %s", dtp_wait_text((enum dtp_wait)i));
    dtp_grid_cell(grid, "queues");
}

static void put_bytes(struct dtp_grid *grid, double bytes, const struct dtp_unit *memory)
{
    char text[32];
    if (isfinite(bytes))
        dtp_grid_cell(grid, "%s", dtp_page_figure(bytes / memory->divisor, text, sizeof text));
    else
        dtp_grid_cell(grid, "-");
}

static void put_times(struct dtp_grid *grid, const struct dtp_pipeline_stages *s, uint32_t index,
                      const struct dtp_unit *time, struct shared shared)
{
    const struct dtp_pipeline_rank *r = &s->ranks[index];
    const double seconds[] = {r->compute_s + r->optimizer_s,
                              r->exposed_transfers_s,
                              r->exposed_tensor_s,
                              r->exposed_context_s,
                              r->warm_up_idle_s,
                              r->steady_idle_s,
                              r->drain_idle_s};
    dtp_grid_cell(grid, "%.1f", 100 * dtp_pipeline_busy_fraction(s, index));
    for (size_t i = 0; i < sizeof seconds / sizeof *seconds; i++)
        if ((shared.tensor || i != 2) && (shared.context || i != 3))
            dtp_grid_cell(grid, "%.3f", seconds[i] / time->divisor);
    for (int i = 0; i < DTP_WAIT_COUNT; i++)
        dtp_grid_cell(grid, "%.3f", r->idle_for_s[i] / time->divisor);
    dtp_grid_cell(grid, "%" PRIu32 ", %" PRIu32, r->forward_queue, r->backward_queue);
}

static double sent(const uint64_t bytes[DTP_COLLECTIVE_COUNT], double steps)
{
    double sum = 0;
    for (int i = 0; i < DTP_COLLECTIVE_COUNT; i++)
        sum += (double)bytes[i];
    return sum / steps;
}

/* Of the first of the stage's ranks. */
static const struct dtp_rank_outcome *outcome_of(const struct dtp_stages_report *r, uint32_t stage)
{
    uint32_t rank = dtp_program_set_rank(&r->simulated->set, stage, 0);
    return r->measured->ranks && rank < r->measured->rank_count ? &r->measured->ranks[rank] : NULL;
}

static void put_stage(struct dtp_grid *grid, const struct dtp_stages_report *r, uint32_t index,
                      const struct dtp_unit *memory, const struct dtp_unit *time)
{
    const struct dtp_pipeline_rank *rank = &r->predicted->ranks[index];
    const struct dtp_simulated_role *role = &r->simulated->roles[index];
    const struct dtp_rank_outcome *outcome = outcome_of(r, index);
    dtp_grid_row(grid, DTP_INK_PLAIN);
    dtp_grid_cell(grid, "%" PRIu32, index);
    dtp_grid_cell(grid, "%s%" PRIu32 "%s", rank->embedding ? "E+" : "", rank->layers, rank->head ? "+head" : "");
    dtp_grid_cell(grid, "predicted");
    put_bytes(grid, (double)role->memory.allocated_peak_bytes, memory);
    put_bytes(grid, sent(role->totals.sent_bytes, 1), memory);
    if (r->comparable)
        put_times(grid, r->predicted, index, time, shared_by(r));
    dtp_grid_row(grid, DTP_INK_PLAIN);
    dtp_grid_cell(grid, "%s", "");
    dtp_grid_cell(grid, "%s", "");
    dtp_grid_cell(grid, "measured");
    put_bytes(grid, outcome ? (double)outcome->device_arena_bytes : (double)NAN, memory);
    put_bytes(grid, outcome && outcome->steps ? sent(outcome->sent_bytes, (double)outcome->steps) : (double)NAN,
              memory);
    if (r->ran)
        put_times(grid, r->ran, index, time, shared_by(r));
}

static void put_stages(const struct dtp_stages_report *r, const struct dtp_page *page)
{
    const struct dtp_simulated *s = r->simulated;
    struct dtp_unit memory = dtp_unit_memory(s->roles[s->worst].memory.allocated_peak_bytes);
    struct dtp_unit time = dtp_unit_time(r->ran ? r->ran->step_s : r->predicted->step_s);
    struct dtp_grid grid;
    dtp_page_heading(page, "STAGES", "%s, %" PRIu32 " stages of ranks: what each takes, sends and waits for in a step",
                     dtp_schedule_row(r->predicted->schedule)->word, r->predicted->rank_count);
    const struct shared shared = shared_by(r);
    char alignment[] = "lllrrrrrrrrrrrrrrr";
    alignment[sizeof alignment - 3 + shared.tensor + shared.context] = '\0';
    dtp_grid_create(&grid, alignment);
    put_heads(&grid, &memory, &time, shared);
    for (uint32_t i = 0; i < r->predicted->rank_count; i++)
        put_stage(&grid, r, i, &memory, &time);
    dtp_grid_end(&grid, page, 2);
    dtp_page_say(
        page, 2, 2,
        "busy: with a kernel. sends: transfers that nothing hides. %s%sIdle before the first backward (warm-up), "
        "behind the last forward (drain), between (steady), and by what is waited for. queues: most activations "
        "and gradients that had been made and waited. Of the last step, in which each operation is timed.%s",
        shared.tensor ? "tp: collectives of tensor parallel ranks that nothing hides. " : "",
        shared.context ? "cp: the same of context parallel ranks. " : "",
        r->comparable ? ""
        : dtp_run_shares(r->measured)
            ? " No time is predicted: those of shared GPUs mean nothing."
            : " No time is predicted: these cores were not measured; dtplan probe --device host "
              "does it.");
}

/* ---- what must be equal ------------------------------------------------------------------------------------------ */

static void put_exact(const char *what, uint32_t off, uint32_t ranks, const struct dtp_page *page)
{
    if (off == UINT32_MAX)
        fprintf(page->file, "  %-22s ranks did not say\n", what);
    else if (off)
        fprintf(page->file, "  %-22s NOT as predicted on %" PRIu32 " of %" PRIu32 " ranks: a mistake of dtplan\n", what,
                off, ranks);
    else
        fprintf(page->file, "  %-22s as predicted, to the byte, on all %" PRIu32 " ranks\n", what, ranks);
}

static void put_exact_all(const struct dtp_stages_report *r, const struct dtp_page *page)
{
    uint32_t ranks = dtp_program_set_ranks(&r->simulated->set);
    dtp_page_heading(page, "BYTES", "of arenas and of what ranks send in a step");
    put_exact("arenas", dtp_stages_arenas_off(r), ranks, page);
    for (int c = 0; c < DTP_COLLECTIVE_COUNT; c++) {
        uint64_t predicted = 0;
        char what[64];
        for (uint32_t i = 0; i < r->simulated->set.role_count; i++)
            predicted += r->simulated->roles[i].totals.sent_bytes[c];
        uint32_t off = dtp_stages_sent_off(r, (enum dtp_collective)c);
        snprintf(what, sizeof what, "%s", dtp_collective_text((enum dtp_collective)c));
        if (predicted && dtp_run_expects(r->simulated->job.plan.ep, (enum dtp_collective)c))
            fprintf(page->file, "  %-22s expected: a router says how many rows go where\n", what);
        else if (predicted || (off && off != UINT32_MAX))
            put_exact(what, off, ranks, page);
    }
}

/* ---- all of it --------------------------------------------------------------------------------------------------- */

static void put_step(const struct dtp_stages_report *r, const struct dtp_page *page)
{
    char figure[32];
    struct dtp_unit unit = dtp_unit_time(r->measured->step_s > 0 ? r->measured->step_s : r->predicted->step_s);
    fputs("\nSTEP TIME ", page->file);
    if (r->comparable)
        fprintf(page->file, " predicted %s %s,",
                dtp_page_figure(r->predicted->step_s / unit.divisor, figure, sizeof figure), unit.name);
    if (r->measured->timed_steps)
        fprintf(page->file, " measured %s %s, the median of %" PRIu64 " steps",
                dtp_page_figure(r->measured->step_s / unit.divisor, figure, sizeof figure), unit.name,
                r->measured->timed_steps);
    else
        fputs(" not measured: too few steps", page->file);
    fprintf(page->file, "\nLOSS       from %.4f to %.4f in %" PRIu64 " steps of %" PRIu64 " tokens\n",
            r->measured->first_loss, r->measured->last_loss, r->measured->last_step - r->measured->first_step,
            r->measured->tokens_per_step);
    dtp_run_say_beside(r->beside, r->measured->last_loss, page);
}

void dtp_stages_run_text(const struct dtp_stages_report *r, const struct dtp_page *page)
{
    const struct dtp_job *job = &r->simulated->job;
    uint64_t digest = 0;
    dtp_program_set_digest(&r->simulated->set, &digest, NULL);
    fprintf(page->file, "run      %s on %" PRIu32 " ranks; %s\n", job->transformer.name, job->cluster.gpus,
            r->measured->device);
    fprintf(page->file, "program  " DTP_PROGRAM_DIGEST_FORMAT ", %" PRIu32 " roles: what was predicted is what ran\n",
            digest, r->simulated->set.role_count);
    dtp_run_say_sharing(r->measured, page);
    put_stages(r, page);
    dtp_run_experts_text(r->measured, r->simulated->job.plan.ep, page);
    put_exact_all(r, page);
    put_step(r, page);
}
