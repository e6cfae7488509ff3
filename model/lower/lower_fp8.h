/* Casts around fp8 matmuls, as operations of a block (lower_fp8.c). */
#ifndef DTP_LOWER_FP8_H
#define DTP_LOWER_FP8_H

#include "base/bytes.h"
#include "lower/lowering.h"

/* Casts what a matrix of the block multiplies, `source`, where the recipe casts it at all; returns the cast, which its
 * only reader frees, or none where it is kept otherwise. */
dtp_buffer_id dtp_lower_fp8_cast(struct dtp_lowering *l, enum dtp_fp8_operand operand,
                                 const struct dtp_layer_matrix *matrix, dtp_buffer_id source);

/* Forward's copy of a gathered fp8 matrix by columns, where backward keeps it (dtp_fp8_keeps_matrix); and backward's
 * operand: that, or its own cast. */
void dtp_lower_fp8_keep(struct dtp_lowering *l, struct dtp_flight_module *module, int index, dtp_buffer_id weight);
dtp_buffer_id dtp_lower_fp8_weight_again(struct dtp_lowering *l, struct dtp_flight_module *module, int index,
                                         dtp_buffer_id weight);

/* The same for attention's core, forward or backward, and of the head over `tokens` rows, of which `source` is what is
 * cast: nothing where these stay in 16 bits. Forward's casts of the core are kept in place of what they are made of;
 * other casts of activations are there until they are read. */
void dtp_lower_fp8_core(struct dtp_lowering *l, bool backward);
void dtp_lower_fp8_head(struct dtp_lowering *l, enum dtp_fp8_operand operand, uint64_t tokens, dtp_buffer_id source);

/* Elements of the rank's layers' matrices that matmuls read in fewer than 16 bits. */
uint64_t dtp_lower_narrow_elements(const struct dtp_lowering *l);

#endif
