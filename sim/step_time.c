#include "sim/step_time.h"

#include "sim/op_time.h"

#include <math.h>

static void add_kernel(const struct dtp_op *op, double alone_s, struct dtp_step_sums *sums)
{
    enum dtp_op_class class = dtp_op_kind_class(op->kind);
    sums->kernels_s += alone_s;
    if (op->demand->recompute)
        sums->recompute_s += alone_s;
    if (class == DTP_CLASS_MATMUL)
        sums->matmul_s += alone_s;
    else if (op->demand->recompute)
        return;
    else if (class == DTP_CLASS_ATTENTION)
        sums->attention_s += alone_s;
    else if (op->kind == DTP_OP_LOSS || op->kind == DTP_OP_LOSS_PARTS || op->kind == DTP_OP_LOSS_BACKWARD)
        sums->loss_s += alone_s;
    else
        sums->memory_bound_s += alone_s;
}

void dtp_step_sums_of(const struct dtp_program *program, const struct dtp_timeline *timeline, const double *alone_s,
                      struct dtp_step_sums *out)
{
    const struct dtp_op *ops = dtp_program_ops(program);
    *out = (struct dtp_step_sums){.step_s = timeline->step_s,
                                  .compute_s = timeline->compute_s,
                                  .optimizer_s = timeline->optimizer_s,
                                  .exposed_communication_s = timeline->exposed_communication_s,
                                  .exposed_offload_s = timeline->exposed_offload_s,
                                  .host_bound_s = timeline->host_bound_s,
                                  .bubble_s = timeline->bubble_s};
    for (size_t i = 0; i < timeline->op_count; i++) {
        if (dtp_op_kind_class(ops[i].kind) == DTP_CLASS_COLLECTIVE)
            out->collective_s[dtp_op_kind_collective(ops[i].kind)] += alone_s[i];
        if (ops[i].stream == DTP_STREAM_COMPUTE && dtp_op_is_kernel(&ops[i]) && !dtp_op_kind_updates(ops[i].kind))
            add_kernel(&ops[i], alone_s[i], out);
    }
}

/* Throughput is inverse to the step's time; what is computed in it stays. */
static void scale_throughput(double ratio, struct dtp_throughput *t)
{
    t->tokens_per_s *= ratio;
    t->tokens_per_s_per_gpu *= ratio;
    t->flops_per_s_per_gpu *= ratio;
    t->mfu *= ratio;
    t->hfu *= ratio;
}

/* As in the closed form, what kernels lose beside collectives counts as exposed communication. */
void dtp_step_time_of(const struct dtp_step_sums *sums, struct dtp_time *t, struct dtp_throughput *throughput)
{
    scale_throughput(sums->step_s > 0 ? t->step_s / sums->step_s : 0, throughput);
    t->matmul_s = sums->matmul_s;
    t->attention_s = sums->attention_s;
    t->memory_bound_s = sums->memory_bound_s;
    t->loss_s = sums->loss_s;
    t->recompute_s = sums->recompute_s;
    t->communication_s = 0;
    for (int i = 0; i < DTP_COLLECTIVE_COUNT; i++) {
        t->collective_s[i] = sums->collective_s[i];
        t->communication_s += t->collective_s[i];
    }
    double hidden_s = fmax(0, t->communication_s - sums->exposed_communication_s);
    double slowed_s = fmin(hidden_s, fmax(0, sums->compute_s - sums->kernels_s));
    t->exposed_communication_s = sums->exposed_communication_s + slowed_s;
    t->compute_s = sums->compute_s - slowed_s + sums->host_bound_s;
    t->launch_wait_s = sums->host_bound_s;
    t->beside_s = fmax(0, sums->compute_s - slowed_s - sums->kernels_s);
    t->optimizer_s = sums->optimizer_s;
    t->exposed_offload_s = sums->exposed_offload_s;
    t->bubble_s = sums->bubble_s;
    t->step_s = sums->step_s;
    double device_s = t->compute_s + t->optimizer_s;
    t->step_perfect_overlap_s = fmin(t->step_s, fmax(device_s, fmax(t->communication_s, t->exposed_offload_s)));
    t->step_no_overlap_s = fmax(t->step_s, device_s + t->communication_s + t->offload_s);
}
