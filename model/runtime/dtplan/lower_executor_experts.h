/* Experts as the executor's lowering drafts them: products of rows by experts, rows there and back, and where ranks
 * divide experts the rows' way to these. */
#ifndef DTP_LOWER_EXECUTOR_EXPERTS_H
#define DTP_LOWER_EXECUTOR_EXPERTS_H

#include "runtime/dtplan/lower_executor_state.h"

/* lower_executor_experts.c: shape of a product with experts' matrices, which reads where rows go (role ROUTES). */
void dtp_executor_grouped(struct dtp_executor *x, struct dtp_draft *draft, const struct dtp_executor_operator *op,
                          enum dtp_product product);
/* Shape of what stands around them, `width` columns wide. */
void dtp_executor_routed(struct dtp_executor *x, struct dtp_draft *draft, uint64_t width);
/* The same of an activation of experts' rows: those that there is room for where they came from other ranks. */
void dtp_executor_worked(struct dtp_executor *x, struct dtp_draft *draft, uint64_t width);
/* Backward of what stands around them; `gradient` is the stream's. What forward kept goes, but for routes, which the
 * router's backward reads last, with `routes_access`. */
void dtp_executor_unpermute_backward(struct dtp_executor *x, uint64_t layer, const struct dtp_executor_operator *op,
                                     dtp_buffer_id gradient);
void dtp_executor_permute_backward(struct dtp_executor *x, uint64_t layer, const struct dtp_executor_operator *op);
void dtp_executor_router_backward(struct dtp_executor *x, uint64_t layer, const struct dtp_executor_operator *op,
                                  uint32_t routes_access);

/* lower_executor_exchange_rows.c, where ranks divide experts. Before rows are put by ranks: each hears where the
 * others' rows of each expert begin. Then the host has heard it too, and what is returned says where the rows that come
 * are. */
void dtp_executor_experts_make(struct dtp_executor *x);
void dtp_executor_hear_starts(struct dtp_executor *x, uint64_t layer);
dtp_buffer_id dtp_executor_place_received(struct dtp_executor *x, uint64_t layer);
/* A draft of rows' way to the ranks of their experts, or `back`, whose operands are the caller's: INPUT, RESULT, and
 * where what they are multiplied by goes along (`weighed`) SAVED and STATISTICS. And its end, for which compute waits.
 */
void dtp_executor_begin_exchange(struct dtp_executor *x, struct dtp_draft *draft, uint64_t layer, const char *name,
                                 bool back);
void dtp_executor_end_exchange(struct dtp_executor *x, struct dtp_draft *draft, bool weighed);
void dtp_executor_exchange_backward_rows(struct dtp_executor *x, uint64_t layer,
                                         const struct dtp_executor_operator *op);

#endif
