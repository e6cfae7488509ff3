#include "sim/beside/beside.h"

#include <math.h>
#include <string.h>

static enum dtp_observed_kind kind_of_collective(enum dtp_collective collective)
{
    static const enum dtp_observed_kind kinds[DTP_COLLECTIVE_COUNT] = {[DTP_ALL_GATHER] = DTP_OBSERVED_ALL_GATHER,
                                                                       [DTP_REDUCE_SCATTER] =
                                                                           DTP_OBSERVED_REDUCE_SCATTER,
                                                                       [DTP_ALL_REDUCE] = DTP_OBSERVED_ALL_REDUCE,
                                                                       [DTP_SEND_RECV] = DTP_OBSERVED_SEND_RECV,
                                                                       [DTP_ALL_TO_ALL] = DTP_OBSERVED_ALL_TO_ALL};
    return kinds[collective];
}

static void count_op(const struct dtp_op *op, const struct dtp_span *span, bool steps, struct dtp_beside_plan *out)
{
    double seconds = span->end_s - span->start_s;
    enum dtp_op_class class = dtp_op_kind_class(op->kind);
    enum dtp_observed_kind kind = DTP_OBSERVED_ELEMENTWISE;
    switch (class) {
    case DTP_CLASS_MATMUL: kind = DTP_OBSERVED_MATMUL; break;
    case DTP_CLASS_ATTENTION: kind = DTP_OBSERVED_ATTENTION; break;
    case DTP_CLASS_MEMORY: kind = steps ? DTP_OBSERVED_OPTIMIZER : DTP_OBSERVED_ELEMENTWISE; break;
    case DTP_CLASS_COLLECTIVE: kind = kind_of_collective(dtp_op_kind_collective(op->kind)); break;
    case DTP_CLASS_UPLOAD:
    case DTP_CLASS_DOWNLOAD: kind = DTP_OBSERVED_COPY; break;
    default: return;
    }
    out->kind_s[kind] += seconds;
    out->kind_count[kind] += class == DTP_CLASS_COLLECTIVE || op->demand->kernels == 0 ? 1 : op->demand->kernels;
}

static void count_memory(const struct dtp_memory *m, struct dtp_beside_plan *out)
{
    const uint64_t *at = m->phase_bytes[m->peak_phase];
    out->peak_bytes = m->allocated_peak_bytes;
    out->reserved_bytes = m->reserved_peak_bytes;
    out->device_bytes = m->device_peak_bytes;
    out->logits_bytes = at[DTP_OWNER_LOGITS];
    out->part_bytes[DTP_OBSERVED_PART_WEIGHTS] = at[DTP_OWNER_PARAMS];
    out->part_bytes[DTP_OBSERVED_PART_OPTIMIZER_STATE] = at[DTP_OWNER_OPTIMIZER];
    out->part_bytes[DTP_OBSERVED_PART_FORWARD] = at[DTP_OWNER_ACTIVATIONS] + at[DTP_OWNER_LOGITS] +
                                                 at[DTP_OWNER_WEIGHTS] + at[DTP_OWNER_GATHER] + at[DTP_OWNER_WORKSPACE];
    out->part_bytes[DTP_OBSERVED_PART_BACKWARD] = at[DTP_OWNER_GRADS] + at[DTP_OWNER_REDUCE];
}

void dtp_beside_plan_of(const struct dtp_simulated *s, struct dtp_beside_plan *out)
{
    const struct dtp_op *ops = dtp_program_ops(s->program);
    bool steps = false;
    double busy_s = s->timeline.compute_s + s->timeline.exposed_communication_s + s->timeline.exposed_offload_s;
    memset(out, 0, sizeof *out);
    out->known = true;
    out->job = &s->job;
    for (size_t i = 0; i < s->timeline.op_count; i++) {
        if (ops[i].kind == DTP_OP_MARK)
            steps = strcmp(ops[i].name, "step") == 0;
        else
            count_op(&ops[i], &s->timeline.span[i], steps, out);
    }
    for (int c = 0; c < DTP_COLLECTIVE_COUNT; c++)
        out->exposed_s[kind_of_collective((enum dtp_collective)c)] = s->timeline.exposed_by_collective_s[c];
    out->step_s = s->prediction.time.step_s;
    out->idle_s = fmax(0, s->timeline.step_s - busy_s);
    out->tokens_per_s_per_gpu = s->prediction.throughput.tokens_per_s_per_gpu;
    count_memory(&s->prediction.memory, out);
}
