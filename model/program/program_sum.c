/* What a program adds up to. */
#include "program/program.h"

static void add_to_totals(const struct dtp_op *op, struct dtp_program_totals *out)
{
    const struct dtp_demand *demand = op->demand;
    enum dtp_op_class class = dtp_op_kind_class(op->kind);
    out->kernels += class == DTP_CLASS_NONE ? 0 : demand->kernels;
    if (class == DTP_CLASS_MATMUL)
        *(dtp_op_kind_updates(op->kind) ? &out->optimizer_flops : &out->matmul_flops) += demand->flops;
    out->attention_flops += class == DTP_CLASS_ATTENTION ? demand->flops : 0;
    out->recompute_flops += demand->recompute ? demand->flops : 0;
    out->memory_bytes += class == DTP_CLASS_MEMORY ? demand->bytes : 0;
    if (class == DTP_CLASS_COLLECTIVE && op->kind != DTP_OP_RECV) { /* what a rank sends, of which another receives */
        out->sent_bytes[dtp_op_kind_collective(op->kind)] += (uint64_t)demand->sent_bytes;
        out->count[dtp_op_kind_collective(op->kind)]++;
    }
    out->host_to_device_bytes += class == DTP_CLASS_UPLOAD ? (uint64_t)demand->sent_bytes : 0;
    out->device_to_host_bytes += class == DTP_CLASS_DOWNLOAD ? (uint64_t)demand->sent_bytes : 0;
}

void dtp_program_sum(const struct dtp_program *program, struct dtp_program_totals *out)
{
    const struct dtp_op *ops = dtp_program_ops(program);
    *out = (struct dtp_program_totals){0};
    for (size_t i = 0; i < dtp_program_op_count(program); i++)
        add_to_totals(&ops[i], out);
}
