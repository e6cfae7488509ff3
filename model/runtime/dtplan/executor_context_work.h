/* Bytes and launches of attention in steps (lower_executor_context.c): one source for programs and formulas. What steps
 * have differs from rank to rank, but the program is one: bytes are means over the ranks of a ring, of whose steps
 * behind the first half have all queries and half of the keys, the other half the reverse. */
#ifndef DTP_EXECUTOR_CONTEXT_WORK_H
#define DTP_EXECUTOR_CONTEXT_WORK_H

#include "runtime/dtplan/executor_block.h"

/* Keys and values put side by side; added to their places in packed rows. */
double dtp_executor_context_copied_bytes(const struct dtp_executor_block *block);
double dtp_executor_context_returned_bytes(const struct dtp_executor_block *block);
/* Results of all steps merged. */
double dtp_executor_context_merged_bytes(const struct dtp_executor_block *block);
/* Terms of step `step`, 1 and up, added. */
double dtp_executor_context_added_bytes(const struct dtp_executor_block *block, uint32_t step);

/* Cosines and sines of the rank's positions. */
double dtp_executor_tables_bytes(const struct dtp_executor_block *block);

/* Of tokens exchanged for heads: a copy before or behind all-to-alls; and those around queries, keys and values, which
 * are forward's but where attention is made again of what was kept exchanged. */
double dtp_executor_exchange_copied_bytes(const struct dtp_executor_block *block, enum dtp_executor_part part,
                                          bool turned);
struct dtp_executor_traffic dtp_executor_context_inputs_traffic(const struct dtp_executor_block *block);

/* All of attention, forward and backward. */
struct dtp_executor_traffic dtp_executor_context_forward_traffic(const struct dtp_executor_block *block);
struct dtp_executor_traffic dtp_executor_context_backward_traffic(const struct dtp_executor_block *block);

#endif
