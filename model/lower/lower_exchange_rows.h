/* Rows of tokens between ranks that have experts (lower_exchange_rows.c). */
#ifndef DTP_LOWER_EXCHANGE_ROWS_H
#define DTP_LOWER_EXCHANGE_ROWS_H

#include "lower/lowering.h"

/* An all-to-all of so many bytes a rank; the draft is begun as one of compute, whose pool its buffers are from. */
void dtp_lower_exchange_rows(struct dtp_lowering *l, struct dtp_draft *draft, uint64_t bytes);
uint64_t dtp_lower_exchanged_bytes(const struct dtp_lowering *l);
/* What the host does around exchanges, each way; nothing but under Megatron, and of what graphs replay whole. */
void dtp_lower_host_around_experts(struct dtp_lowering *l);
/* How many rows go where, which the host waits for. */
void dtp_lower_read_splits(struct dtp_lowering *l);
/* Before and behind experts of which ranks have a part each: DTP_NO_BUFFER where each rank has them whole. */
dtp_buffer_id dtp_lower_gather_expert_rows(struct dtp_lowering *l, dtp_buffer_id rows);
dtp_buffer_id dtp_lower_sum_expert_rows(struct dtp_lowering *l, dtp_buffer_id rows);
void dtp_lower_free_expert_rows(struct dtp_lowering *l, dtp_buffer_id rows);
/* The same of gradients, which are let go: `rows` themselves where each rank has experts whole. */
dtp_buffer_id dtp_lower_gather_gradient_rows(struct dtp_lowering *l, dtp_buffer_id rows);
dtp_buffer_id dtp_lower_sum_gradient_rows(struct dtp_lowering *l, dtp_buffer_id rows);

#endif
