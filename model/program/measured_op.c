#include "program/measured_op.h"

#include "cost/calibration.h"
#include "cost/cluster_cost.h"
#include "cost/op_cost.h"
#include "machine/group.h"

#include <string.h>

static bool ends_with(const char *text, const char *end)
{
    size_t length = strlen(text), tail = strlen(end);
    return length >= tail && strcmp(text + length - tail, end) == 0;
}

enum dtp_measured_matmul dtp_measured_matmul_of_op(const struct dtp_program *program, const struct dtp_op *op)
{
    const struct dtp_operand *operands = dtp_program_operands(program, op);
    bool weight = ends_with(op->name, "weight gradient"), input = ends_with(op->name, "input gradient");
    bool sum = op->demand->bytes > 0, gelu = false;
    for (uint32_t i = 0; i < op->operand_count; i++) {
        weight |= operands[i].role == DTP_ROLE_WEIGHT_GRADIENT;
        sum |= operands[i].role == DTP_ROLE_WEIGHT_GRADIENT && (operands[i].access & DTP_UPDATE) == DTP_UPDATE;
        input |= operands[i].role == DTP_ROLE_INPUT_GRADIENT;
        gelu |= operands[i].role == DTP_ROLE_AUX;
    }
    if (weight)
        return sum ? DTP_MEASURED_MATMUL_WEIGHT_GRADIENT_SUM : DTP_MEASURED_MATMUL_WEIGHT_GRADIENT;
    if (input)
        return gelu ? DTP_MEASURED_MATMUL_INPUT_GRADIENT_GELU : DTP_MEASURED_MATMUL_INPUT_GRADIENT;
    return gelu ? DTP_MEASURED_MATMUL_FORWARD_GELU : DTP_MEASURED_MATMUL_FORWARD;
}

bool dtp_op_at_power_limit(const struct dtp_program *program, const struct dtp_gpu *gpu, const struct dtp_op *op)
{
    const enum dtp_op_class class = dtp_op_kind_class(op->kind);
    return class == DTP_CLASS_MATMUL ||
           (class == DTP_CLASS_ATTENTION &&
            dtp_attention_at_power_limit(gpu, &op->demand->attention, dtp_program_execution(program)));
}

double dtp_op_power(const struct dtp_program *program, const struct dtp_gpu *gpu, const struct dtp_op *op)
{
    const struct dtp_demand *d = op->demand;
    if (!dtp_op_at_power_limit(program, gpu, op))
        return 0;
    if (dtp_op_kind_class(op->kind) == DTP_CLASS_ATTENTION)
        return dtp_calibration.attention_power;
    bool of_weights = dtp_measured_matmul_of_weights(dtp_measured_matmul_of_op(program, op));
    return dtp_matmul_has_odd_rows(d->dtype, of_weights, d->m, d->n, d->k) ? dtp_calibration.attention_power : 1;
}

/* Rows of experts say where they go: whoever only simulates their exchange leaves roles empty, and has as many each. */
enum dtp_carried dtp_op_carried(const struct dtp_program *program, const struct dtp_op *op)
{
    const struct dtp_operand *operands = dtp_program_operands(program, op);
    if (op->kind == DTP_OP_SHIFT)
        return DTP_CARRIED_AROUND;
    for (uint32_t i = 0; i < op->operand_count && op->kind == DTP_OP_ALL_TO_ALL; i++)
        if (operands[i].role == DTP_ROLE_ROUTES)
            return DTP_CARRIED_UNEVEN;
    return DTP_CARRIED_PLAIN;
}

static void set(struct dtp_measured_row *row, enum dtp_measured_column column, double value)
{
    row->number[column] = value;
}

static void set_group(struct dtp_measured_row *row, const struct dtp_program_group *group,
                      const struct dtp_cluster *cluster)
{
    struct dtp_group placed = dtp_group_of(cluster, group->ranks, group->stride);
    set(row, DTP_MEASURED_ranks, group->ranks);
    set(row, DTP_MEASURED_stride, group->stride);
    set(row, DTP_MEASURED_nodes, placed.nodes);
}

static struct dtp_measured_row matmul_row(const struct dtp_program *program, const struct dtp_op *op)
{
    const struct dtp_demand *d = op->demand;
    const enum dtp_measured_matmul pass = dtp_measured_matmul_of_op(program, op);
    return op->kind == DTP_OP_GROUPED_MATMUL ? dtp_measured_row_of_grouped(pass, d->dtype, d->groups, d->m, d->n, d->k)
                                             : dtp_measured_row_of_matmul(pass, d->dtype, d->m, d->n, d->k);
}

static bool row_of_op(const struct dtp_program *program, const struct dtp_op *op, const struct dtp_cluster *cluster,
                      struct dtp_measured_row *out)
{
    if (op->kind == DTP_OP_NEWTON_SCHULZ || op->kind == DTP_OP_PROJECTION) /* timed one by one (op_time.c) */
        return false;
    switch (dtp_op_kind_class(op->kind)) {
    case DTP_CLASS_MATMUL:
        *out = matmul_row(program, op); /* its rows tell of tiles (measured_matmul.c), which narrow ones do not fill */
        return dtp_cluster_is_host(cluster) || op->kind == DTP_OP_GROUPED_MATMUL ||
               !dtp_matmul_is_narrow(op->demand->dtype, op->demand->m, op->demand->n, op->demand->k);
    case DTP_CLASS_ATTENTION:
        return dtp_attention_measured_row(cluster, &op->demand->attention, dtp_program_execution(program),
                                          op->demand->tokens, op->kind == DTP_OP_ATTENTION_BACKWARD, out);
    case DTP_CLASS_MEMORY:
        *out = dtp_measured_row_of(DTP_MEASUREMENT_KERNEL, dtp_op_kind_text(op->kind));
        set(out, DTP_MEASURED_bytes, op->demand->bytes);
        return op->demand->bytes > 0;
    case DTP_CLASS_COLLECTIVE:
        *out = dtp_measured_row_of(
            DTP_MEASUREMENT_COLLECTIVE,
            dtp_measured_collective_text(dtp_op_kind_collective(op->kind), dtp_op_carried(program, op)));
        set(out, DTP_MEASURED_bytes, op->demand->sent_bytes);
        set_group(out, &dtp_program_groups(program)[op->group], cluster);
        return op->demand->sent_bytes > 0;
    case DTP_CLASS_UPLOAD:
    case DTP_CLASS_DOWNLOAD:
        *out = dtp_measured_row_of(DTP_MEASUREMENT_COPY, op->kind == DTP_OP_UPLOAD ? "upload" : "download");
        set(out, DTP_MEASURED_bytes, op->demand->sent_bytes);
        set(out, DTP_MEASURED_ranks, dtp_cluster_ranks_at_once(cluster));
        return op->demand->sent_bytes > 0;
    case DTP_CLASS_HOST:
        *out = dtp_measured_row_of(DTP_MEASUREMENT_HOST_ADAM, DTP_MEASURED_HOST_ADAM);
        set(out, DTP_MEASURED_bytes, op->demand->bytes);
        set(out, DTP_MEASURED_ranks, dtp_cluster_ranks_at_once(cluster));
        return op->demand->bytes > 0;
    case DTP_CLASS_NONE:
    case DTP_CLASS_STORAGE: break;
    }
    return false;
}

bool dtp_measured_row_of_op(const struct dtp_program *program, const struct dtp_op *op,
                            const struct dtp_cluster *cluster, struct dtp_measured_row *out)
{
    bool is = row_of_op(program, op, cluster, out);
    const struct dtp_execution *p = dtp_program_execution(program);
    if (is && dtp_cluster_is_host(cluster))
        dtp_measured_row_of_host(out, out->measurement == DTP_MEASUREMENT_COLLECTIVE ? p->reduce : p->compute,
                                 cluster->gpus);
    return is;
}
