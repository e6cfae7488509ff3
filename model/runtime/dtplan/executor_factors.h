/* What PowerSGD (plan/comm_hook.h) makes of a module of the executor: which matrices are factored and where their
 * factors lie. Lowering and the closed form share it. */
#ifndef DTP_EXECUTOR_FACTORS_H
#define DTP_EXECUTOR_FACTORS_H

#include "net/parameter_layout.h"

/* A matrix M [rows, columns], from `begin` of what is summed on, as P [rows, rank] times Q [rank, columns], both by
 * rows; `lost`, `p` and `q` are elements before it in the buffers that hold those of the module: what was lost of
 * matrices that are factored, their P with what is sent whole behind, their Q. Each begins at a multiple of
 * DTP_PARAMETER_ALIGNMENT. */
struct dtp_executor_factor {
    uint64_t begin, rows, columns, rank, lost, p, q;
};
/* Neighbours that are sent as they are: `elements` from `begin` of what is summed on, at `p`. */
struct dtp_executor_run {
    uint64_t begin, elements, p;
};
struct dtp_executor_factors {
    struct dtp_executor_factor factor[DTP_PARAMETER_COUNT];
    struct dtp_executor_run run[DTP_PARAMETER_COUNT];
    uint32_t count, run_count; /* count 0: nothing is factored, and the module is summed as it is */
    uint64_t lost_elements, p_elements, q_elements;
};
/* Of a module that each rank sums whole its matrices. Of one that ranks share (hybrid_shard, whose copies are summed)
 * their shards, which begin and end anywhere within matrices, elsewhere on each rank, while all run one program: a
 * shard is taken as rows of as many elements as the module's first matrix has columns, and these rows as so many
 * matrices, of equal height but for a row, as come upon a shard when the module's are dealt out. A module whose
 * matrices all have that width and end with shards is factored as under ddp, but for who has which rows. What is left
 * of the last row is sent as it is; vectors are within rows. */
void dtp_executor_factors_of(const struct dtp_parameter_module *layout, uint64_t rank,
                             struct dtp_executor_factors *out);

#endif
