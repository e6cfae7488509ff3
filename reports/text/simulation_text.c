#include "record/simulation_report.h"

#include "plan/runtime.h"
#include "sim/critical_path.h"
#include "page/grid.h"
#include "record/report.h"

#include <math.h>
#include <string.h>

#define LABEL_COLUMNS 36
#define BAR_COLUMNS 30
#define NARROWEST_BAR 8
#define BAR_STARTS 54 /* behind label, figure and unit */
#define BAR_WORDS 10  /* what stands behind a bar: "  of 149.5" */
#define SHOWN 5e-4    /* of the step: parts below it are not worth a line */

static const char *const collective_words[DTP_COLLECTIVE_COUNT] = {"all-gather", "reduce-scatter", "all-reduce",
                                                                   "send and receive", "all-to-all"};

void dtp_op_words(const struct dtp_op *op, char *out, size_t bytes)
{
    const char *kind = dtp_op_kind_text(op->kind);
    char layer[24] = "";
    if (op->layer != DTP_NO_LAYER)
        snprintf(layer, sizeof layer, ", layer %u", (unsigned)op->layer);
    bool says_kind = strncmp(op->name, kind, strlen(kind)) == 0; /* "norm 1" of a norm */
    snprintf(out, bytes, "%s%s%s%s", says_kind ? "" : kind, op->name[0] && !says_kind ? " " : "", op->name, layer);
}

const char *dtp_op_class_text(enum dtp_op_class class)
{
    static const char *const texts[] = {
        [DTP_CLASS_NONE] = "none",
        [DTP_CLASS_MATMUL] = "matmul",
        [DTP_CLASS_ATTENTION] = "attention",
        [DTP_CLASS_MEMORY] = "memory",
        [DTP_CLASS_COLLECTIVE] = "collective",
        [DTP_CLASS_UPLOAD] = "upload",
        [DTP_CLASS_DOWNLOAD] = "download",
        [DTP_CLASS_HOST] = "host",
        [DTP_CLASS_STORAGE] = "storage",
    };
    return texts[class];
}

static int digits(struct dtp_unit unit)
{
    return unit.divisor < 1 ? 1 : 3;
}

/* ---- the step ---------------------------------------------------------------------------------------------------- */

static int label_columns(const struct dtp_page *page)
{
    int room = dtp_page_columns(page) - (BAR_STARTS - LABEL_COLUMNS);
    return room < LABEL_COLUMNS ? room : LABEL_COLUMNS;
}

static void print_part(const struct dtp_simulated *s, const struct dtp_page *page, const char *label, double seconds,
                       const char *words)
{
    struct dtp_unit unit = dtp_unit_time(s->timeline.step_s);
    fprintf(page->file, "  %-*s %9.*f %s  ", label_columns(page), label, digits(unit), seconds / unit.divisor,
            unit.name);
    int room = dtp_page_columns(page) - BAR_STARTS - BAR_WORDS;
    int bar = room > BAR_COLUMNS ? BAR_COLUMNS : room < NARROWEST_BAR ? 0 : room;
    int left = dtp_page_bar(page, s->timeline.step_s > 0 ? seconds / s->timeline.step_s : 0, bar);
    fprintf(page->file, "%*s%s\n", words[0] ? left + 2 : 0, "", words);
}

static void print_if_any(const struct dtp_simulated *s, const struct dtp_page *page, const char *label, double seconds,
                         const char *words)
{
    if (seconds > SHOWN * s->timeline.step_s)
        print_part(s, page, label, seconds, words);
}

static void print_slowed(const struct dtp_simulated *s, const struct dtp_page *page)
{
    struct dtp_unit unit = dtp_unit_time(s->timeline.step_s);
    double slowed_s = s->timeline.compute_s - s->kernels_alone_s;
    if (slowed_s <= SHOWN * s->timeline.step_s)
        return;
    dtp_page_print(page, DTP_INK_DIM, "    alone %.*f; slowed by %.*f %s by what runs beside\n", digits(unit),
                   s->kernels_alone_s / unit.divisor, digits(unit), slowed_s / unit.divisor, unit.name);
}

/* What another set of GPUs of the same kind would have made of it. */
static void print_quantiles(const struct dtp_simulated *s, const struct dtp_page *page, struct dtp_unit unit)
{
    const struct dtp_step_quantiles *q = &s->quantiles;
    char jobs[32];
    if (s->samples == 0)
        return;
    fprintf(page->file, "  %-*s %9.*f %s  p95 %.*f, p99 %.*f\n", label_columns(page), "  median of jobs", digits(unit),
            q->p50_s / unit.divisor, unit.name, digits(unit), q->p95_s / unit.divisor, digits(unit),
            q->p99_s / unit.divisor);
    dtp_page_print(page, DTP_INK_DIM, "    %s jobs, speeds of GPUs scattered by %.1f %%: the slowest sets the step\n",
                   dtp_page_grouped(s->samples, jobs, sizeof jobs), 100 * s->deviation);
}

static void print_step(const struct dtp_simulated *s, const struct dtp_page *page)
{
    const struct dtp_timeline *t = &s->timeline;
    struct dtp_unit unit = dtp_unit_time(t->step_s);
    char label[64], words[96];
    dtp_page_heading(page, "STEP TIME", "where each instant of the simulated step went%s",
                     s->set.role_count > 1 ? ", of the rank marked *" : "");
    print_part(s, page, "forward and backward", t->compute_s, "");
    print_slowed(s, page);
    print_if_any(s, page, "optimizer", t->optimizer_s, "");
    for (int i = 0; i < DTP_COLLECTIVE_COUNT; i++) {
        snprintf(label, sizeof label, "exposed %s", collective_words[i]);
        snprintf(words, sizeof words, "of %.*f", digits(unit), t->communication_by_collective_s[i] / unit.divisor);
        if (t->communication_by_collective_s[i] > 0)
            print_part(s, page, label, t->exposed_by_collective_s[i], words);
    }
    print_if_any(s, page, "exposed host copies and optimizer", t->exposed_offload_s, "");
    print_if_any(s, page, "waiting for the host's launches", t->host_bound_s, "");
    print_if_any(s, page, "pipeline bubble", t->bubble_s, "");
    double closed_s = s->closed.time.step_s;
    fprintf(page->file, "  %-*s %9.*f %s", label_columns(page), "= step", digits(unit), t->step_s / unit.divisor,
            unit.name);
    fprintf(page->file, "  closed form %.*f (%+.1f %%)\n", digits(unit), closed_s / unit.divisor,
            t->step_s > 0 ? 100 * (closed_s / t->step_s - 1) : 0);
    print_quantiles(s, page, unit);
}

static void print_throughput(const struct dtp_simulated *s, const struct dtp_page *page)
{
    const struct dtp_throughput *t = &s->prediction.throughput;
    char all[32], each[32];
    dtp_page_heading(page, "THROUGHPUT", "");
    fprintf(page->file, "  %s tokens/s, %s per GPU; MFU %.1f %%, HFU %.1f %%\n",
            dtp_page_grouped((uint64_t)llround(t->tokens_per_s), all, sizeof all),
            dtp_page_grouped((uint64_t)llround(t->tokens_per_s_per_gpu), each, sizeof each), 100 * t->mfu,
            100 * t->hfu);
}

/* ---- streams ----------------------------------------------------------------------------------------------------- */

static void print_streams(const struct dtp_simulated *s, const struct dtp_page *page)
{
    const struct dtp_op *ops = dtp_program_ops(s->program);
    size_t counts[DTP_STREAM_COUNT] = {0};
    double busy_s[DTP_STREAM_COUNT] = {0};
    struct dtp_unit unit = dtp_unit_time(s->timeline.step_s);
    struct dtp_grid grid;
    for (size_t i = 0; i < s->timeline.op_count; i++) {
        bool event = dtp_op_kind_class(ops[i].kind) == DTP_CLASS_NONE;
        counts[ops[i].stream] += !event;
        busy_s[ops[i].stream] += event ? 0 : s->timeline.span[i].end_s - s->timeline.span[i].start_s;
    }
    dtp_page_heading(page, "STREAMS", "each a queue; what they do overlaps");
    dtp_grid_create(&grid, "lrrr");
    dtp_grid_row(&grid, DTP_INK_BOLD);
    dtp_grid_cell(&grid, "stream");
    dtp_grid_cell(&grid, "operations");
    dtp_grid_cell(&grid, "busy, %s", unit.name);
    dtp_grid_cell(&grid, "of the step");
    for (int i = 0; i < DTP_STREAM_COUNT; i++) {
        if (counts[i] == 0)
            continue;
        dtp_grid_row(&grid, DTP_INK_PLAIN);
        dtp_grid_cell(&grid, "%s", dtp_stream_text((enum dtp_stream)i));
        dtp_grid_cell(&grid, "%zu", counts[i]);
        dtp_grid_cell(&grid, "%.*f", digits(unit), busy_s[i] / unit.divisor);
        dtp_grid_cell(&grid, "%.1f %%", s->timeline.step_s > 0 ? 100 * busy_s[i] / s->timeline.step_s : 0);
    }
    dtp_grid_end(&grid, page, 2);
}

/* ---- the critical path ------------------------------------------------------------------------------------------- */

static void add_path_row(const struct dtp_path_row *row, struct dtp_unit unit, struct dtp_grid *grid)
{
    const double parts[] = {row->seconds, row->kernels_s, row->collectives_s, row->copies_s, row->host_s};
    char layers[64] = "embedding, head, root";
    if (strcmp(row->phase, "loss") == 0)
        snprintf(layers, sizeof layers, "loss");
    if (row->of_layers)
        snprintf(layers, sizeof layers, "layers %u to %u", (unsigned)row->first_layer, (unsigned)row->last_layer);
    dtp_grid_row(grid, DTP_INK_PLAIN);
    dtp_grid_cell(grid, "%s", row->phase);
    dtp_grid_cell(grid, "%s", layers);
    dtp_grid_cell(grid, "%u", (unsigned)row->micro_steps);
    dtp_grid_cell(grid, "%zu", row->op_count);
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        dtp_grid_cell(grid, "%.*f", digits(unit), parts[i] / unit.divisor);
}

static void print_path(const struct dtp_simulated *s, const struct dtp_page *page)
{
    static const char *const names[] = {"phase", "of", "times", "ops", "", "kernels", "collectives", "copies", "host"};
    struct dtp_path_row rows[DTP_PATH_MAX_ROWS];
    size_t count = dtp_critical_path(s->program, &s->timeline, rows);
    struct dtp_unit unit = dtp_unit_time(s->timeline.step_s);
    struct dtp_grid grid;
    dtp_page_heading(page, "CRITICAL PATH", "the chain of operations that sets the length of the step");
    dtp_grid_create(&grid, "llrrrrrrr");
    dtp_grid_row(&grid, DTP_INK_BOLD);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        dtp_grid_cell(&grid, "%s", names[i][0] ? names[i] : unit.name);
    for (size_t i = 0; i < count; i++)
        add_path_row(&rows[i], unit, &grid);
    dtp_grid_end(&grid, page, 2);
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

static void add_memory_row(struct dtp_grid *grid, const char *label, uint64_t program, uint64_t closed,
                           struct dtp_unit unit, enum dtp_ink ink)
{
    dtp_grid_row(grid, ink);
    dtp_grid_cell(grid, "%s", label);
    dtp_grid_cell(grid, "%.2f", (double)program / unit.divisor);
    dtp_grid_cell(grid, "%.2f", (double)closed / unit.divisor);
    dtp_grid_cell(grid, "%+.2f", ((double)program - (double)closed) / unit.divisor);
}

static void print_owners(const struct dtp_simulated *s, const struct dtp_page *page, struct dtp_unit unit)
{
    const struct dtp_memory *m = &s->prediction.memory, *c = &s->closed.memory;
    struct dtp_grid grid;
    dtp_grid_create(&grid, "lrrr");
    dtp_grid_row(&grid, DTP_INK_BOLD);
    dtp_grid_cell(&grid, "%s", unit.name);
    dtp_grid_cell(&grid, "program");
    dtp_grid_cell(&grid, "closed form");
    dtp_grid_cell(&grid, "difference");
    for (int i = 0; i < DTP_OWNER_COUNT; i++) {
        uint64_t program = s->placement.live_peak_owner_bytes[i], closed = c->phase_bytes[c->peak_phase][i];
        if (program || closed)
            add_memory_row(&grid, dtp_owner_words((enum dtp_owner)i), program, closed, unit, DTP_INK_PLAIN);
    }
    add_memory_row(&grid, "= tensors", s->placement.live_peak_bytes, c->allocated_peak_bytes, unit, DTP_INK_BOLD);
    add_memory_row(&grid, s->job.plan.runtime->arena ? "  allocated" : "  allocated, as the allocator rounds",
                   m->allocated_peak_bytes, c->allocated_peak_bytes, unit, DTP_INK_PLAIN);
    add_memory_row(&grid, "  reserved", m->reserved_peak_bytes, c->reserved_peak_bytes, unit, DTP_INK_PLAIN);
    add_memory_row(&grid, "  device", m->device_peak_bytes, c->device_peak_bytes, unit, DTP_INK_PLAIN);
    dtp_grid_end(&grid, page, 2);
}

static void print_memory(const struct dtp_simulated *s, const struct dtp_page *page)
{
    const struct dtp_memory *m = &s->prediction.memory;
    char words[160];
    dtp_page_heading(page, "MEMORY", "of each GPU at the program's peak (1 GiB = 2^30 bytes)");
    print_owners(s, page, dtp_unit_memory(m->device_peak_bytes));
    if (s->timeline.op_count == 0)
        return;
    dtp_op_words(&dtp_program_ops(s->program)[s->placement.live_peak_op], words, sizeof words);
    const char *verdict = m->verdict == DTP_VERDICT_FITS    ? "it fits"
                          : m->verdict == DTP_VERDICT_TIGHT ? "it is tight"
                                                            : "OUT OF MEMORY";
    dtp_page_say(page, 2, 2,
                 "the peak is at %s (operation %u), the closed form's in: %s; %s: the GPU has %.2f GiB. In one arena "
                 "without fragments the step would take %.2f GiB.",
                 words, (unsigned)s->placement.live_peak_op, dtp_phase_words(s->closed.memory.peak_phase), verdict,
                 (double)m->capacity_bytes / 0x1p30, (double)s->placement.arena_bytes / 0x1p30);
}

void dtp_simulation_text(const struct dtp_simulated *s, const struct dtp_pipeline_stages *stages,
                         const struct dtp_page *page)
{
    dtp_report_head(&s->job, DTP_HEAD_PLAN, page);
    print_step(s, page);
    dtp_pipeline_text(stages, page);
    print_throughput(s, page);
    print_streams(s, page);
    print_path(s, page);
    print_memory(s, page);
}
