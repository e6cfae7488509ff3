#include "sim/measured_time.h"

#include "program/measured_op.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* A program has some ten thousand operations of some fifty shapes: each shape is asked for once. */
#define SLOTS 1024 /* a power of two */

struct slot {
    struct dtp_measured_row row;
    double seconds;
    bool used;
};

static size_t slot_of(const struct dtp_measured_row *row)
{
    uint64_t hash = (uint64_t)row->measurement * 31 + (uint64_t)row->dtype;
    for (const char *c = row->what; *c; c++)
        hash = hash * 31 + (unsigned char)*c;
    for (int i = 0; i <= DTP_MEASURED_nodes; i++)
        hash = (hash ^ (isnan(row->number[i]) ? 7 : (uint64_t)row->number[i])) * UINT64_C(0x9e3779b97f4a7c15);
    return (size_t)(hash >> 32) & (SLOTS - 1);
}

static double seconds_of(struct slot *slots, const struct dtp_measured *measured, const struct dtp_measured_row *row)
{
    struct slot *slot = &slots[slot_of(row)];
    if (slot->used && dtp_measured_row_same(&slot->row, row))
        return slot->seconds;
    *slot = (struct slot){*row, dtp_measured_s(measured, row), true};
    return slot->seconds;
}

/* Whether a row counts for this program, which depends on whose kernels were measured (cluster_cost.h). */
static bool counts(const struct dtp_measured_row *row, const struct dtp_op *op, const struct dtp_cluster *cluster,
                   const struct dtp_execution *execution)
{
    switch (row->measurement) {
    case DTP_MEASUREMENT_MATMUL:
    case DTP_MEASUREMENT_COPY: return true;
    case DTP_MEASUREMENT_ATTENTION: return op->demand->attention.kernel == DTP_ATTENTION_FLASH;
    case DTP_MEASUREMENT_GROUPED_MATMUL: /* a library's are not ours */
        return execution->own_kernels != dtp_measured_of_framework(cluster->measured);
    case DTP_MEASUREMENT_KERNEL:
    case DTP_MEASUREMENT_HOST_ADAM: return execution->own_kernels;
    case DTP_MEASUREMENT_COLLECTIVE: return dtp_cluster_is_host(cluster); /* else collective_cost.h knows more */
    case DTP_MEASUREMENT_ABOUT:
    case DTP_MEASUREMENT_STEP:
    case DTP_MEASUREMENT_CONTENTION:
    case DTP_MEASUREMENT_COUNT: break;
    }
    return false;
}

/* An operation may stand for several equal matmuls, and moves bytes besides where it adds to a sum that its pass was
 * not measured with. */
static double matmul_s(double one_s, const struct dtp_op *op, const struct dtp_measured_row *row,
                       const struct dtp_cluster *cluster, const struct dtp_execution *execution)
{
    const struct dtp_demand *d = op->demand;
    enum dtp_measured_matmul sums = DTP_MEASURED_MATMUL_WEIGHT_GRADIENT_SUM;
    bool in_pass = d->bytes <= 0 || (strcmp(row->what, dtp_measured_matmul_text(sums)) == 0 &&
                                     dtp_measured_knows_pass(cluster->measured, sums, row->dtype));
    return (d->groups ? d->groups : 1) * one_s +
           (in_pass ? 0 : d->bytes / dtp_cluster_memory_kernel_bytes_per_s(cluster, execution, DTP_KERNEL_FUSED));
}

double *dtp_measured_op_seconds(const struct dtp_program *program, const struct dtp_cluster *cluster)
{
    const struct dtp_execution *execution = dtp_program_execution(program);
    size_t count = dtp_program_op_count(program);
    const struct dtp_op *ops = dtp_program_ops(program);
    double *seconds = malloc((count + 1) * sizeof *seconds);
    struct slot *slots = calloc(SLOTS, sizeof *slots);
    for (size_t i = 0; i < count && seconds && slots; i++) {
        struct dtp_measured_row row;
        seconds[i] = (double)NAN;
        if (!dtp_measured_row_of_op(program, &ops[i], cluster, &row) || !counts(&row, &ops[i], cluster, execution))
            continue;
        if (dtp_measurement_is_matmul(row.measurement) &&
            !(ops[i].demand->m > 0 && ops[i].demand->n > 0 && ops[i].demand->k > 0))
            continue;
        double one_s = seconds_of(slots, cluster->measured, &row);
        seconds[i] =
            row.measurement == DTP_MEASUREMENT_MATMUL ? matmul_s(one_s, &ops[i], &row, cluster, execution) : one_s;
    }
    if (!slots) {
        free(seconds);
        seconds = NULL;
    }
    free(slots);
    return seconds;
}
