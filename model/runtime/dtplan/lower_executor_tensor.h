/* Collectives of tensor parallel ranks and what stands around them. Without such ranks nobody calls these but the first
 * and the last. Unless it is said otherwise the next compute operation waits for them. */
#ifndef DTP_LOWER_EXECUTOR_TENSOR_H
#define DTP_LOWER_EXECUTOR_TENSOR_H

#include "runtime/dtplan/lower_executor_state.h"

void dtp_executor_tensor_make(struct dtp_executor *x);

/* The rows of all ranks, [T, h], of this rank's; fresh. `beside`: the caller awaits it. */
dtp_buffer_id dtp_executor_gather_rows(struct dtp_executor *x, const char *name, dtp_buffer_id rows);
struct dtp_executor_moved dtp_executor_gather_beside(struct dtp_executor *x, const char *name, dtp_buffer_id rows);

/* The same chunk by chunk (rules.tensor_chunks), the last operation of each in `by`, which has room for
 * DTP_EXECUTOR_TENSOR_CHUNKS of them; the caller awaits each. */
dtp_buffer_id dtp_executor_gather_chunks(struct dtp_executor *x, const char *name, dtp_buffer_id rows, dtp_op_id *by);
/* The draft's last operand becomes the chunk of a tensor of so many bytes, where rows come in several. */
void dtp_executor_cut(const struct dtp_executor *x, struct dtp_draft *draft, uint32_t chunk, uint64_t bytes);

/* A draft whose result, added to it by the caller in role RESULT, gets this rank's rows of a chunk of the sum of
 * `terms` [T, h]; its end, which the caller awaits; and behind that of the last chunk, whose terms go. */
void dtp_executor_begin_sum(struct dtp_executor *x, struct dtp_draft *draft, const char *name, dtp_buffer_id terms,
                            uint32_t chunk);
dtp_op_id dtp_executor_end_sum(struct dtp_executor *x, struct dtp_draft *draft, uint32_t chunk);
void dtp_executor_scattered(struct dtp_executor *x, dtp_op_id by, dtp_buffer_id terms);
/* All of the sum into a fresh buffer. */
dtp_buffer_id dtp_executor_scatter_sum(struct dtp_executor *x, const char *name, dtp_buffer_id terms,
                                       const char *result, enum dtp_owner owner);
/* The same of what adapters beside a matrix make of rows, `width` columns of them. */
dtp_buffer_id dtp_executor_scatter_low(struct dtp_executor *x, dtp_buffer_id terms, uint64_t width);
/* total += values, both this rank's rows; `access` of the values besides that they are read. */
void dtp_executor_add_rows(struct dtp_executor *x, const char *name, dtp_buffer_id values, uint32_t access,
                           dtp_buffer_id total);

/* Backward of a projection that gathers its input. The gradient of that becomes *made, to which it is added where
 * another projection has made it. In one piece, behind the weight's gradient; `access` of the result's gradient: */
void dtp_executor_gathered_input_gradient(struct dtp_executor *x, uint64_t layer, int op, dtp_buffer_id gradient,
                                          uint32_t access, dtp_buffer_id *made);
/* With the weight's gradient, collectives beside the products (plan.tp_overlap); the result's gradient goes. */
void dtp_executor_overlapped_backward(struct dtp_executor *x, uint64_t layer, int op, dtp_buffer_id gradient,
                                      dtp_buffer_id input, uint32_t input_frees, dtp_buffer_id *made);

/* Backward of a projection whose result was a sum: the gradient of that, of which this rank has `rows`, is gathered by
 * chunks, each beside the product that makes the input's gradient of the one before, which is fresh in *made. `aux`: as
 * input_gradient of lower_executor_backward.c has it. Returns the gathered gradient, for the weight's. */
dtp_buffer_id dtp_executor_gradient_by_chunks(struct dtp_executor *x, uint64_t layer, int op, dtp_buffer_id rows,
                                              dtp_buffer_id aux, dtp_buffer_id *made);

/* [rows, 3] floats of each rank, side by side by ranks; fresh, and those of this rank go. */
dtp_buffer_id dtp_executor_gather_parts(struct dtp_executor *x, dtp_buffer_id parts, uint64_t rows);
/* What each rank made of its rows or heads alone, of gradients of weights that all of them have whole: becomes their
 * sum, on all of them. */
void dtp_executor_sum_replicated(struct dtp_executor *x, struct dtp_executor_module *module);

#endif
