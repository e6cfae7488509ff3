/* State and temporaries of optimizers whose bytes are not a number for each parameter but follow from the shape of each
 * tensor: Adafactor's sums over rows and columns, Muon's momentum of matrices beside AdamW's moments of all else,
 * GaLore's and APOLLO's moments of projected gradients, Adam-mini's one moment and a number a row (optimizer.def:
 * FACTORS, MATRICES, PROJECTED, ROWS). */
#ifndef DTP_OPTIMIZER_STATE_H
#define DTP_OPTIMIZER_STATE_H

#include "plan/rules.h"

/* True where state is counted tensor by tensor. */
bool dtp_optimizer_by_tensor(const struct dtp_plan *plan);

/* Elements of its state beside a matrix, or several equal ones together, of so many rows and columns; a vector's are
 * its own. */
uint64_t dtp_optimizer_factor_elements(uint64_t rows, uint64_t columns);

/* Bytes of all state of a rank that holds the whole model: `elements` parameters. */
uint64_t dtp_optimizer_whole_bytes(const struct dtp_transformer *transformer, const struct dtp_plan *plan,
                                   const struct dtp_element_bytes *bytes, uint64_t elements);

/* The same state, without a master copy, by what it is derived from; r is key projection_rank. */
#define DTP_OPTIMIZER_PARTS 3
struct dtp_optimizer_part {
    const char *name, *rule; /* NULL: there is no such part */
    uint64_t elements;       /* in the format of moments */
};
void dtp_optimizer_parts(const struct dtp_transformer *transformer, const struct dtp_plan *plan,
                         struct dtp_optimizer_part out[DTP_OPTIMIZER_PARTS]);

/* What a step on the device makes and gives back, of a rank that updates `elements` parameters: foreach AdamW's list of
 * square roots; Adafactor's estimates of two tensors; Muon's products; quotients and updates of GaLore, APOLLO and
 * Adam-mini. */
uint64_t dtp_optimizer_scratch_bytes(const struct dtp_transformer *transformer, const struct dtp_plan *plan,
                                     uint64_t elements);

/* Newton-Schulz iterations of a matrix: with n its lesser and m its greater side, X [n, m] in bf16, each step forms X
 * X^T, its square and their product with X. */
struct dtp_newton_schulz {
    double n, m, flops; /* flops: of all steps */
    double bytes;       /* that all steps move beside operands and results of matmuls */
    uint64_t scratch_bytes;
};
void dtp_newton_schulz_of(const struct dtp_plan *plan, uint64_t rows, uint64_t columns, struct dtp_newton_schulz *out);

/* A block's matrix under GaLore or APOLLO: with n its lesser and m its greater side and r the rank, one product of the
 * gradient and its projection, of 2 n m r FLOPs, gives [m, r]; GaLore's second one goes back to [m, n]. */
struct dtp_projection {
    uint64_t moment_elements;     /* m r, of each of two moments */
    uint64_t projection_elements; /* n r */
    int products;
    double m, n, rank; /* the first product is [m, n] x [n, r], the second [m, r] x [r, n] */
    double bytes;      /* that the step moves beside these */
    uint32_t kernels;  /* beside these */
};
void dtp_projection_of(const struct dtp_plan *plan, uint64_t rows, uint64_t columns, struct dtp_projection *out);

/* Kernels by which the step goes over a tensor that it treats as AdamW or Adam-mini would, one operation after the
 * other; 0 where it is one kernel over many. */
uint32_t dtp_optimizer_tensor_kernels(const struct dtp_plan *plan);

/* Kernels of a whole step of such a loop, products with them; else 0. */
uint64_t dtp_optimizer_loop_kernels(const struct dtp_transformer *transformer, const struct dtp_plan *plan);

/* The lesser side of the narrowest matrix of a block, which a projection's rank must not exceed. */
uint64_t dtp_optimizer_narrowest(const struct dtp_transformer *transformer, const struct dtp_plan *plan);

/* Elements of blocks' matrices, where the plan's optimizer treats them apart; else 0. */
uint64_t dtp_optimizer_matrix_elements(const struct dtp_transformer *transformer, const struct dtp_plan *plan);

#endif
