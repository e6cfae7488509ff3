#include "sim/beside/trace_refit.h"

#include "cost/cluster_cost.h"
#include "program/measured_op.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

const char *dtp_trace_part_words(enum dtp_trace_part part)
{
    static const char *const words[] = {
#define X(suffix, text) [DTP_TRACE_PART_##suffix] = text,
        DTP_TRACE_PART_TABLE(X)
#undef X
    };
    return words[part];
}

struct refit {
    const struct dtp_simulated *simulated;
    const struct dtp_execution *execution;
    const struct dtp_op *ops;
    double gap_s;
    struct dtp_trace_refit *out;
    size_t room;
    double pass_bytes[DTP_MEASURED_PASS_COUNT], pass_s[DTP_MEASURED_PASS_COUNT];
};

/* ---- parts ------------------------------------------------------------------------------------------------------- */

static enum dtp_trace_part part_of_collective(enum dtp_collective collective)
{
    switch (collective) {
    case DTP_ALL_GATHER: return DTP_TRACE_PART_ALL_GATHER;
    case DTP_REDUCE_SCATTER: return DTP_TRACE_PART_REDUCE_SCATTER;
    case DTP_SEND_RECV: return DTP_TRACE_PART_SEND_RECV;
    case DTP_ALL_TO_ALL: return DTP_TRACE_PART_ALL_TO_ALL;
    case DTP_ALL_REDUCE:
    case DTP_COLLECTIVE_COUNT: break;
    }
    return DTP_TRACE_PART_ALL_REDUCE;
}

/* DTP_TRACE_PART_COUNT for operations that no time of a trace is of. */
static enum dtp_trace_part part_of(const struct dtp_op *op, bool steps)
{
    switch (dtp_op_kind_class(op->kind)) {
    case DTP_CLASS_MATMUL: return DTP_TRACE_PART_MATMUL;
    case DTP_CLASS_ATTENTION: return op->kind == DTP_OP_ATTENTION ? DTP_TRACE_PART_FORWARD : DTP_TRACE_PART_BACKWARD;
    case DTP_CLASS_MEMORY: return steps ? DTP_TRACE_PART_OPTIMIZER : DTP_TRACE_PART_KERNELS;
    case DTP_CLASS_COLLECTIVE: return part_of_collective(dtp_op_kind_collective(op->kind));
    default: return DTP_TRACE_PART_COUNT;
    }
}

static void take_measured(const struct dtp_observed_time *t, struct dtp_trace_fit *part)
{
    double attention_s = t->kind_s[DTP_OBSERVED_ATTENTION];
    part[DTP_TRACE_PART_MATMUL].measured_s = t->kind_s[DTP_OBSERVED_MATMUL];
    part[DTP_TRACE_PART_FORWARD].measured_s = t->attention_forward_s;
    part[DTP_TRACE_PART_BACKWARD].measured_s = t->attention_backwards > 0 ? attention_s - t->attention_forward_s : 0;
    part[DTP_TRACE_PART_KERNELS].measured_s = t->kind_s[DTP_OBSERVED_ELEMENTWISE];
    part[DTP_TRACE_PART_OPTIMIZER].measured_s = t->kind_s[DTP_OBSERVED_OPTIMIZER];
    for (int kind = DTP_OBSERVED_ALL_GATHER; kind <= DTP_OBSERVED_ALL_TO_ALL; kind++)
        part[DTP_TRACE_PART_ALL_GATHER + kind - DTP_OBSERVED_ALL_GATHER].measured_s = t->kind_s[kind];
}

/* Of an operation alone, without gaps between its kernels, which no kernel's time has. */
static double kernel_s(const struct refit *r, size_t i)
{
    const struct dtp_op *op = &r->ops[i];
    bool collective = dtp_op_kind_class(op->kind) == DTP_CLASS_COLLECTIVE;
    return fmax(0, r->simulated->alone_s[i] - (collective ? 0 : op->demand->kernels * r->gap_s));
}

static double factor_of(const struct refit *r, enum dtp_trace_part part)
{
    const struct dtp_trace_fit *fit = &r->out->part[part];
    return fit->predicted_s > 0 && fit->measured_s > 0 ? fit->measured_s / fit->predicted_s : (double)NAN;
}

/* ---- rows -------------------------------------------------------------------------------------------------------- */

static bool add_row(struct refit *r, const struct dtp_measured_row *row, double seconds)
{
    struct dtp_measured_rows *rows = &r->out->rows;
    for (size_t i = 0; i < rows->count; i++)
        if (dtp_measured_row_same(&rows->row[i], row)) {
            double *samples = &rows->row[i].number[DTP_MEASURED_samples],
                   *mean = &rows->row[i].number[DTP_MEASURED_seconds];
            *samples += 1;
            *mean += (seconds - *mean) / *samples;
            return true;
        }
    if (rows->count == r->room) {
        size_t room = 2 * r->room + 64;
        struct dtp_measured_row *grown = realloc(rows->row, room * sizeof *grown);
        size_t *lines = grown ? realloc(rows->line, room * sizeof *lines) : NULL;
        rows->row = grown ? grown : rows->row;
        rows->line = lines ? lines : rows->line;
        if (!grown || !lines)
            return false;
        r->room = room;
    }
    rows->row[rows->count] = *row;
    rows->row[rows->count].number[DTP_MEASURED_seconds] = seconds;
    rows->row[rows->count].number[DTP_MEASURED_samples] = 1;
    rows->line[rows->count] = rows->count + 1;
    rows->count++;
    return true;
}

/* What of a part a machine file has rows of: of attention one kernel, of kernels some passes. */
static bool add_op(struct refit *r, size_t i, enum dtp_trace_part part, double factor)
{
    const struct dtp_op *op = &r->ops[i];
    struct dtp_measured_row row;
    enum dtp_measured_pass pass;
    double seconds = kernel_s(r, i) * factor;
    if (!(seconds > 0))
        return true;
    if (dtp_op_kind_class(op->kind) == DTP_CLASS_MEMORY) {
        if (!dtp_memory_kernel_pass((enum dtp_memory_kernel)op->demand->memory_kernel, &pass))
            return true;
        r->pass_bytes[pass] += op->demand->bytes;
        r->pass_s[pass] += seconds;
        r->out->part[part].rows++;
        return true;
    }
    if (!dtp_measured_row_of_op(r->simulated->program, op, &r->simulated->job.cluster, &row))
        return true;
    if (row.measurement == DTP_MEASUREMENT_MATMUL && op->demand->groups)
        seconds /= op->demand->groups;
    size_t before = r->out->rows.count;
    bool kept = add_row(r, &row, seconds);
    r->out->part[part].rows += r->out->rows.count - before;
    return kept;
}

static bool add_passes(struct refit *r)
{
    bool kept = true;
    for (int pass = 0; pass < DTP_MEASURED_PASS_COUNT && kept; pass++) {
        struct dtp_measured_row row =
            dtp_measured_row_of(DTP_MEASUREMENT_KERNEL, dtp_measured_pass_text((enum dtp_measured_pass)pass));
        row.number[DTP_MEASURED_bytes] = r->pass_bytes[pass];
        if (r->pass_s[pass] > 0 && r->pass_bytes[pass] > 0)
            kept = add_row(r, &row, r->pass_s[pass]);
    }
    return kept;
}

static enum dtp_status check(const struct refit *r, const struct dtp_observed_time *time, struct dtp_faults *faults)
{
    if (time->on_host)
        return dtp_fault(faults, DTP_BAD_INPUT, NULL, 0,
                         "--output: the trace is of a host's operators, which are none of the kernels that a machine "
                         "file has; dtplan probe --device host measures cores");
    if (r->execution->own_kernels)
        return dtp_fault(
            faults, DTP_BAD_INPUT, NULL, 0,
            "--output: a trace of the executor's own run is no framework's; dtplan validate --refit fits a "
            "machine file to its runs");
    for (size_t i = 0; i < r->simulated->timeline.op_count; i++)
        if (r->ops[i].kind == DTP_OP_GROUPED_MATMUL)
            return dtp_fault(faults, DTP_BAD_INPUT, NULL, 0,
                             "--output: matmuls of experts are of no one shape, so that a trace's sum says nothing of "
                             "them; fit a plan without experts");
    return DTP_OK;
}

/* Each operation with its part: the first walk adds up what is predicted, the second makes rows. */
static bool walk(struct refit *r, bool rows)
{
    bool steps = false, kept = true;
    for (size_t i = 0; i < r->simulated->timeline.op_count && kept; i++) {
        if (r->ops[i].kind == DTP_OP_MARK) {
            steps = strcmp(r->ops[i].name, "step") == 0;
            continue;
        }
        enum dtp_trace_part part = part_of(&r->ops[i], steps);
        double factor = part < DTP_TRACE_PART_COUNT && rows ? factor_of(r, part) : (double)NAN;
        if (part < DTP_TRACE_PART_COUNT && !rows)
            r->out->part[part].predicted_s += kernel_s(r, i);
        if (isfinite(factor))
            kept = add_op(r, i, part, factor);
    }
    return kept;
}

enum dtp_status dtp_trace_refit_make(const struct dtp_simulated *simulated, const struct dtp_observed_time *time,
                                     struct dtp_trace_refit *out, struct dtp_faults *faults)
{
    struct refit r = {.simulated = simulated,
                      .execution = dtp_program_execution(simulated->program),
                      .ops = dtp_program_ops(simulated->program),
                      .out = out};
    *out = (struct dtp_trace_refit){.rows = {.count = 0}};
    r.gap_s = dtp_cluster_kernel_gap_s(&simulated->job.cluster, r.execution);
    if (r.execution->launch_blocking)
        r.gap_s += dtp_cluster_kernel_launch_s(&simulated->job.cluster, r.execution);
    enum dtp_status status = check(&r, time, faults);
    if (status != DTP_OK)
        return status;
    take_measured(time, out->part);
    walk(&r, false);
    if (!walk(&r, true) || !add_passes(&r)) {
        dtp_measured_rows_release(&out->rows);
        return dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "out of memory");
    }
    if (out->rows.count == 0)
        return dtp_fault(faults, DTP_BAD_INPUT, NULL, 0,
                         "--output: the trace has no kernel of what the plan does; is it of a GPU?");
    return DTP_OK;
}
