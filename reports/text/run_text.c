#include "record/run_report.h"

#include "closed/closed_form.h"
#include "page/grid.h"
#include "machine/measured.h"
#include "plan/runtime.h"
#include "record/report.h"
#include "record/simulation_report.h"
#include "text/run_experts_text.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

static const char *const header[] = {"", "predicted", "measured", "ratio"};

static void put_header(struct dtp_grid *grid)
{
    dtp_grid_texts(grid, DTP_INK_DIM, header, 4);
}

static void put_ratio(struct dtp_grid *grid, double predicted, double measured)
{
    if (measured > 0 && predicted > 0)
        dtp_grid_cell(grid, "%.3f", predicted / measured);
    else
        dtp_grid_cell(grid, "%s", "");
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

static void put_bytes(struct dtp_grid *grid, struct dtp_unit unit, const char *words, uint64_t predicted,
                      uint64_t measured)
{
    if (predicted == 0 && measured == 0)
        return;
    dtp_grid_row(grid, DTP_INK_PLAIN);
    dtp_grid_cell(grid, "%s", words);
    dtp_grid_cell(grid, "%.3f", (double)predicted / unit.divisor);
    if (measured > 0)
        dtp_grid_cell(grid, "%.3f", (double)measured / unit.divisor);
    else
        dtp_grid_cell(grid, "%s", "-");
    put_ratio(grid, (double)predicted, (double)measured);
}

static void print_memory(const struct dtp_run_report *r, const struct dtp_page *page)
{
    const struct dtp_memory *m = &r->simulated->prediction.memory;
    struct dtp_unit unit = dtp_unit_memory(r->measured->device_arena_bytes);
    struct dtp_grid grid;
    dtp_page_heading(page, "MEMORY", "of each %s, in %s", r->measured->gpu ? "GPU" : "rank", unit.name);
    dtp_grid_create(&grid, "lrrr");
    put_header(&grid);
    for (int owner = 0; owner < DTP_OWNER_COUNT; owner++)
        put_bytes(&grid, unit, dtp_owner_words((enum dtp_owner)owner), m->phase_bytes[m->peak_phase][owner],
                  r->measured->owner_bytes[owner]);
    put_bytes(&grid, unit, "= peak of what is alive", m->allocated_peak_bytes, 0);
    put_bytes(&grid, unit, "arena", r->simulated->placement.arena_bytes, r->measured->device_arena_bytes);
    if (r->measured->gpu && !dtp_run_shares(r->measured))
        put_bytes(&grid, unit, "device, what the driver says", m->device_peak_bytes, r->measured->used_bytes);
    if (r->simulated->job.plan.offload != DTP_OFFLOAD_NONE)
        put_bytes(&grid, unit, "host arena", m->host_bytes / r->simulated->job.cluster.gpus_per_node,
                  r->measured->host_arena_bytes);
    dtp_grid_end(&grid, page, 2);
}

/* What PyTorch's allocator said, of a run by the framework's own program; on cores there is no such allocator. */
static void print_reference_memory(const struct dtp_run_report *r, const struct dtp_page *page)
{
    const struct dtp_memory *m = &r->simulated->prediction.memory;
    const struct dtp_reference_bytes *b = &r->measured->reference;
    struct dtp_unit unit = dtp_unit_memory(m->allocated_peak_bytes);
    struct dtp_grid grid;
    dtp_page_heading(page, "MEMORY", "of each %s, in %s", r->measured->gpu ? "GPU" : "rank", unit.name);
    dtp_grid_create(&grid, "lrrr");
    put_header(&grid);
    put_bytes(&grid, unit, dtp_owner_words(DTP_OWNER_PARAMS), m->params_bytes, b->parameters);
    put_bytes(&grid, unit, dtp_owner_words(DTP_OWNER_GRADS), m->grads_bytes, b->gradients);
    put_bytes(&grid, unit, dtp_owner_words(DTP_OWNER_OPTIMIZER), m->optimizer_bytes, b->optimizer);
    put_bytes(&grid, unit, "allocated before the first step", m->after_init_bytes, b->after_init);
    put_bytes(&grid, unit, "allocated, peak", m->allocated_peak_bytes, b->allocated);
    put_bytes(&grid, unit, "reserved, peak", m->reserved_peak_bytes, b->reserved);
    put_bytes(&grid, unit, "device, what the driver says", m->device_peak_bytes, r->measured->used_bytes);
    dtp_grid_end(&grid, page, 2);
    if (!r->measured->gpu)
        dtp_page_say(
            page, 2, 2,
            "It ran on cores, where PyTorch's allocator keeps no count: neither peaks nor times are compared.");
}

/* ---- time -------------------------------------------------------------------------------------------------------- */

static void put_figures(struct dtp_grid *grid, double divisor, int digits, const char *words, double predicted,
                        double measured)
{
    dtp_grid_row(grid, DTP_INK_PLAIN);
    dtp_grid_cell(grid, "%s", words);
    dtp_grid_cell(grid, "%.*f", digits, predicted / divisor);
    dtp_grid_cell(grid, "%.*f", digits, measured / divisor);
    put_ratio(grid, predicted, measured);
}

static void print_classes(const struct dtp_run_report *r, const struct dtp_page *page)
{
    bool comparable = dtp_run_report_comparable(r);
    struct dtp_unit unit = dtp_unit_time(r->measured->step_s);
    struct dtp_grid grid;
    dtp_page_heading(page, "OPERATIONS", "operations by kind, sums over a step in %s", unit.name);
    dtp_grid_create(&grid, "lrrrr");
    dtp_grid_row(&grid, DTP_INK_DIM);
    dtp_grid_cell(&grid, "%s", "");
    dtp_grid_cell(&grid, "%s", "count");
    dtp_grid_cell(&grid, "%s", comparable ? "predicted alone" : "");
    dtp_grid_cell(&grid, "%s", "measured alone");
    dtp_grid_cell(&grid, "%s", "in the step");
    for (int class = DTP_CLASS_MATMUL; class <= DTP_CLASS_STORAGE; class ++) {
        const struct dtp_class_times *t = &r->classes[class];
        if (t->count == 0)
            continue;
        dtp_grid_row(&grid, DTP_INK_PLAIN);
        dtp_grid_cell(&grid, "%s", dtp_op_class_text((enum dtp_op_class) class));
        dtp_grid_cell(&grid, "%" PRIu32, t->count);
        if (comparable)
            dtp_grid_cell(&grid, "%.3f", t->predicted_s / unit.divisor);
        else
            dtp_grid_cell(&grid, "%s", "");
        dtp_grid_cell(&grid, "%.3f", t->alone_s / unit.divisor);
        dtp_grid_cell(&grid, "%.3f", t->in_place_s / unit.divisor);
    }
    dtp_grid_end(&grid, page, 2);
}

static void print_phases(const struct dtp_run_report *r, const struct dtp_page *page)
{
    struct dtp_unit unit = dtp_unit_time(r->measured->step_s);
    struct dtp_grid grid;
    dtp_page_heading(page, "PHASES", "compute stream, in %s", unit.name);
    bool comparable = dtp_run_report_comparable(r);
    dtp_grid_create(&grid, comparable ? "lrrr" : "lr");
    if (comparable)
        put_header(&grid);
    for (int i = 0; i < DTP_COMPARE_PHASE_COUNT; i++) {
        const struct dtp_phase_times *t = &r->phases[i];
        const char *phase = dtp_compare_phase_words((enum dtp_compare_phase)i);
        if (comparable) {
            put_figures(&grid, unit.divisor, 3, phase, t->predicted_s, t->in_place_s);
            continue;
        }
        dtp_grid_row(&grid, DTP_INK_PLAIN);
        dtp_grid_cell(&grid, "%s", phase);
        dtp_grid_cell(&grid, "%.3f", t->in_place_s / unit.divisor);
    }
    dtp_grid_end(&grid, page, 2);
}

/* What ranks that divide the model, or share sequences, wait for each other. */
static void print_exposed(const struct dtp_run_report *r, const char *heading, enum dtp_stream stream,
                          double measured_s, const struct dtp_page *page)
{
    struct dtp_unit unit = dtp_unit_time(r->measured->step_s);
    struct dtp_grid grid;
    double predicted_s = r->simulated->timeline.exposed_by_stream_s[stream];
    dtp_page_heading(page, heading, "collectives that nothing hides, in %s", unit.name);
    if (!dtp_run_report_comparable(r)) {
        fprintf(page->file, "  exposed in a step, measured %.3f\n", measured_s / unit.divisor);
        return;
    }
    dtp_grid_create(&grid, "lrrr");
    put_header(&grid);
    put_figures(&grid, unit.divisor, 3, "exposed in a step", predicted_s, measured_s);
    dtp_grid_end(&grid, page, 2);
}

static void print_error(const struct dtp_page *page, const char *words, double seconds, double measured_s,
                        const char *why)
{
    fprintf(page->file, "  %-26s %+8.2f %%  %s\n", words, 100 * seconds / measured_s, why);
}

static void print_split(const struct dtp_run_report *r, const struct dtp_page *page)
{
    const struct dtp_error_split *s = &r->split;
    double measured_s = s->measured_s;
    dtp_page_heading(page, "ERROR SPLIT", "parts of predicted minus measured, in percent of the measured step");
    print_error(page, "cost model", s->predicted_s - s->alone_s, measured_s, "operations alone take another time");
    print_error(page, "contention", s->alone_s - s->in_place_s, measured_s, "they slow each other down otherwise");
    print_error(page, "structure and host", s->in_place_s - measured_s, measured_s, "launches, gaps, waiting");
    print_error(page, "= step time", s->predicted_s - measured_s, measured_s, "");
}

static void print_step(const struct dtp_run_report *r, const struct dtp_page *page)
{
    const struct dtp_run_outcome *m = r->measured;
    const struct dtp_prediction *p = &r->simulated->prediction;
    const struct dtp_job *job = &r->simulated->job;
    char words[80];
    double tokens_per_s = (double)m->tokens_per_step / m->step_s;
    if (!(m->step_s > 0))
        return;
    dtp_page_heading(page, "STEP TIME", "median of %" PRIu64 " steps", m->timed_steps);
    if (!dtp_run_report_comparable(r)) {
        struct dtp_unit unit = dtp_unit_time(m->step_s);
        fprintf(page->file, "  measured %.3f %s, %.0f tokens/s", m->step_s / unit.divisor, unit.name, tokens_per_s);
        if (dtp_run_shares(m))
            fputs(", which mean nothing: GPUs are shared", page->file);
        else if (dtp_cluster_has_times(&job->cluster))
            fprintf(page->file, " (the prediction is of %s)", job->cluster.gpu.name);
        fputc('\n', page->file);
        return;
    }
    struct dtp_grid grid;
    struct dtp_unit unit = dtp_unit_time(m->step_s);
    double flops = dtp_plan_model_flops_per_token(&job->transformer, &job->plan);
    double peak = job->cluster.gpu.peak_flops_per_s[job->plan.precision.compute] * job->cluster.gpus;
    snprintf(words, sizeof words, "step, %s", unit.name);
    dtp_grid_create(&grid, "lrrr");
    put_header(&grid);
    put_figures(&grid, unit.divisor, 3, words, p->time.step_s, m->step_s);
    if (m->undisturbed_s > 0)
        put_figures(&grid, unit.divisor, 3, "on undisturbed cores", p->time.step_s, m->undisturbed_s);
    put_figures(&grid, 1, 0, "tokens/s", p->throughput.tokens_per_s, tokens_per_s);
    if (peak > 0 && m->gpu) /* cores have no peak that is known */
        put_figures(&grid, 0.01, 1, "MFU, %", p->throughput.mfu, flops * tokens_per_s / peak);
    dtp_grid_end(&grid, page, 2);
}

/* ---- communication and loss -------------------------------------------------------------------------------------- */

uint64_t dtp_run_sent_bytes(const struct dtp_run_report *r, enum dtp_collective collective)
{
    const struct dtp_job *job = &r->simulated->job;
    const struct dtp_run_outcome *m = r->measured;
    uint64_t bytes = r->simulated->totals.sent_bytes[collective], steps = m->last_step - m->first_step;
    uint64_t before = job->plan.powersgd_start_step > m->first_step ? job->plan.powersgd_start_step - m->first_step : 0;
    if (before == 0 || steps == 0)
        return bytes;
    before = before < steps ? before : steps;
    struct dtp_plan plain = job->plan;
    struct dtp_communication c = {0};
    plain.comm_hook = DTP_COMM_HOOK_NONE;
    dtp_closed_form_communication(&job->transformer, &job->cluster, &plain, &c);
    return (c.bytes[collective] * before + bytes * (steps - before)) / steps;
}

static void print_communication(const struct dtp_run_report *r, const struct dtp_page *page)
{
    const struct dtp_program_totals *c = &r->simulated->totals;
    uint64_t steps = r->measured->last_step - r->measured->first_step;
    uint64_t total_bytes = 0;
    struct dtp_grid grid;
    bool copies = r->simulated->job.plan.offload != DTP_OFFLOAD_NONE; /* else batches and scalars */
    for (int i = 0; i < DTP_COLLECTIVE_COUNT; i++)
        total_bytes += c->sent_bytes[i];
    total_bytes += copies ? c->host_to_device_bytes + c->device_to_host_bytes : 0;
    if (total_bytes == 0 || steps == 0)
        return;
    struct dtp_unit unit = dtp_unit_traffic(total_bytes);
    dtp_page_heading(page, "COMMUNICATION", "sent%s by a rank in a step, in %s, counted at the calls",
                     copies ? " and copied" : "", unit.name);
    dtp_grid_create(&grid, "lrrr");
    put_header(&grid);
    for (int i = 0; i < DTP_COLLECTIVE_COUNT; i++) {
        char name[40];
        bool expected = dtp_run_expects(r->simulated->job.plan.ep, (enum dtp_collective)i);
        snprintf(name, sizeof name, "%s%s", dtp_collective_text((enum dtp_collective)i),
                 expected ? ", expected" : ""); /* as where each expert gets as many rows */
        put_bytes(&grid, unit, name, dtp_run_sent_bytes(r, (enum dtp_collective)i), r->measured->sent_bytes[i] / steps);
    }
    if (copies) {
        put_bytes(&grid, unit, "to the device", c->host_to_device_bytes, r->measured->host_to_device_bytes / steps);
        put_bytes(&grid, unit, "to the host", c->device_to_host_bytes, r->measured->device_to_host_bytes / steps);
    }
    dtp_grid_end(&grid, page, 2);
}

static void print_learning(const struct dtp_run_report *r, const struct dtp_page *page)
{
    const struct dtp_run_outcome *m = r->measured;
    char skipped[64] = "";
    dtp_page_heading(page, "LOSS", "nats per token");
    fprintf(page->file, "  data %s\n", m->data);
    if (m->skipped_steps > 0)
        snprintf(skipped, sizeof skipped, ", %" PRIu64 " updates left out", m->skipped_steps);
    fprintf(page->file, "  step %" PRIu64 ": %.4f   last ten of %" PRIu64 ": %.4f%s%s\n", m->first_step + 1,
            m->first_loss, m->last_step, m->last_loss, skipped, m->interrupted ? ", interrupted" : "");
    if (isfinite(m->entropy))
        fprintf(page->file, "  entropy of the data %.4f: the loss is %.1f %% %s it\n", m->entropy,
                100 * fabs(m->last_loss / m->entropy - 1), m->last_loss < m->entropy ? "below" : "above");
    dtp_run_say_beside(&r->beside, m->last_loss, page);
}

void dtp_run_text(const struct dtp_run_report *report, const struct dtp_page *page)
{
    const struct dtp_run_outcome *m = report->measured;
    dtp_report_head(&report->simulated->job, DTP_HEAD_PLAN, page);
    fprintf(page->file, "device   %s; %s\n", m->device, m->libraries);
    dtp_run_say_sharing(m, page);
    if (m->collectives[0])
        fprintf(page->file, "         %s\n", m->collectives);
    const struct dtp_runtime *runtime = report->simulated->job.plan.runtime;
    if (runtime->executed) {
        fprintf(page->file, "program  %s: %" PRIu64 " operations, handed over as text\n", m->program, m->operations);
        print_memory(report, page);
        print_communication(report, page);
        dtp_run_experts_text(m, report->simulated->job.plan.ep, page);
    } else {
        fprintf(page->file, "program  %s, which read the plan as JSON\n", runtime->reference);
        print_reference_memory(report, page);
    }
    print_step(report, page);
    if (m->alone_s) {
        print_phases(report, page);
        if (report->simulated->job.plan.tp > 1)
            print_exposed(report, "TENSOR PARALLEL", DTP_STREAM_TENSOR, report->exposed_tensor_s, page);
        if (report->simulated->job.plan.cp > 1)
            print_exposed(report, "CONTEXT PARALLEL", DTP_STREAM_CONTEXT, report->exposed_context_s, page);
        print_classes(report, page);
    }
    if (report->split_known)
        print_split(report, page);
    print_learning(report, page);
    dtp_run_stalls_text(report, page);
    dtp_elastic_text(&m->elastic, page);
}

bool dtp_run_report_comparable(const struct dtp_run_report *report)
{
    const struct dtp_cluster *c = &report->simulated->job.cluster;
    return report->measured->gpu != dtp_cluster_is_host(c) && dtp_cluster_has_times(c) &&
           !dtp_run_shares(report->measured);
}

bool dtp_run_shares(const struct dtp_run_outcome *outcome)
{
    return outcome->ranks_a_gpu > 1;
}

void dtp_run_say_beside(const struct dtp_loss_beside *beside, double last_loss, const struct dtp_page *page)
{
    if (beside->path)
        fprintf(page->file, "  beside %s: %.4f there, here %+.4f, %+.2f %%\n", beside->path, beside->last_loss,
                last_loss - beside->last_loss, 100 * (last_loss / beside->last_loss - 1));
}

void dtp_run_say_sharing(const struct dtp_run_outcome *outcome, const struct dtp_page *page)
{
    if (dtp_run_shares(outcome))
        dtp_page_say(page, 9, 9,
                     "GPUs are shared, by %" PRIu64 " ranks each: losses and bytes are the plan's, times mean nothing "
                     "and are not compared, and the driver cannot tell whose memory is used",
                     outcome->ranks_a_gpu);
}
