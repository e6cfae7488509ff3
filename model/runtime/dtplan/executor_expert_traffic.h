/* The operators around experts' matmuls, beside executor_block.h's others, and what they move through HBM.
 *
 * Where ranks divide the experts, rows lie by experts, which is by ranks, and go to each rank's experts one by one, so
 * that they come in the order of its experts and nobody puts them in another; results go back the same way, as do
 * gradients of both. Of all that there is room for (plan.executor.expert_room) only the rows that came are worked on.
 */
#ifndef DTP_EXECUTOR_EXPERT_TRAFFIC_H
#define DTP_EXECUTOR_EXPERT_TRAFFIC_H

#include "runtime/dtplan/executor_block.h"

struct dtp_executor_traffic dtp_executor_expert_forward_traffic(const struct dtp_executor_block *block,
                                                                const struct dtp_executor_operator *op);
struct dtp_executor_traffic dtp_executor_expert_backward_traffic(const struct dtp_executor_block *block,
                                                                 const struct dtp_executor_operator *op);

void dtp_executor_add_router(struct dtp_executor_block *block);
void dtp_executor_add_permute(struct dtp_executor_block *block, const struct dtp_layer_operator *from);
void dtp_executor_add_unpermute(struct dtp_executor_block *block, const struct dtp_layer_operator *from);

/* Rows of tokens that the rank's experts have room for: those of its tokens where it has all experts, else as the plan
 * says, and no more than can come. */
uint64_t dtp_executor_room_of(const struct dtp_executor_block *block, const struct dtp_plan *plan);
/* Whether a tensor has a row for each of these. And its bytes. */
bool dtp_executor_is_received(int tensor);
uint64_t dtp_executor_received_bytes(const struct dtp_executor_block *block, int tensor);

/* Where rows of experts are divided: bytes of what a rank tells the others of where its rows begin, of all that it
 * hears, and that a rank sends to the experts on average, with what they are multiplied by (`weighed`), or back. */
uint64_t dtp_executor_starts_bytes(const struct dtp_executor_block *block);
uint64_t dtp_executor_heard_bytes(const struct dtp_executor_block *block);
uint64_t dtp_executor_sent_bytes(const struct dtp_executor_block *block, bool weighed);

#endif
