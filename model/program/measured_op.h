/* Which row of a measured machine file an operation's time stands in. */
#ifndef DTP_MEASURED_OP_H
#define DTP_MEASURED_OP_H

#include "machine/machine.h"
#include "machine/measured_row.h"
#include "program/program.h"

/* The pass of a matmul, told by the role of its result, in programs without roles by its name. */
enum dtp_measured_matmul dtp_measured_matmul_of_op(const struct dtp_program *program, const struct dtp_op *op);

/* Whether an operation goes by the GPU's power limit (op_cost.h, dtp_matmul_speedup): matmuls and fused attention. */
bool dtp_op_at_power_limit(const struct dtp_program *program, const struct dtp_gpu *gpu, const struct dtp_op *op);
/* What it draws of a matmul's power: 1 of matmuls, less of fused attention and of products of odd rows, 0 of all
 * else. */
double dtp_op_power(const struct dtp_program *program, const struct dtp_gpu *gpu, const struct dtp_op *op);

/* In which way an operation's collective is carried. */
enum dtp_carried dtp_op_carried(const struct dtp_program *program, const struct dtp_op *op);

/* The row, without results, that an operation's time stands in; false for one that no row times (marks, storage). */
bool dtp_measured_row_of_op(const struct dtp_program *program, const struct dtp_op *op,
                            const struct dtp_cluster *cluster, struct dtp_measured_row *out);

#endif
