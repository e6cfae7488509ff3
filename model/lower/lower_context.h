/* Attention of context parallel ranks, as the files of lowering share it: lower_context_parallel.c forward,
 * lower_context_backward.c backward. */
#ifndef DTP_LOWER_CONTEXT_H
#define DTP_LOWER_CONTEXT_H

#include "lower/block_backward.h"
#include "lower/block_forward.h"

/* Queries, keys and values as an attention core reads them; or parts of them. */
struct dtp_context_inputs {
    dtp_buffer_id buffer[8];
    int count;
};

/* Their groups. Without context parallel ranks nothing here makes an operation. */
void dtp_lower_context_make(struct dtp_lowering *l);
/* Of `bytes` of tokens with all heads those of all tokens with some heads, or back; awaited by compute. `kept_bytes`
 * stay of what came: fewer where it is saved in a narrower format. */
dtp_buffer_id dtp_lower_context_exchange(struct dtp_lowering *l, dtp_buffer_id buffer, const char *name,
                                         enum dtp_owner owner, uint32_t access, uint64_t bytes, uint64_t kept_bytes);
/* All steps of a layer's attention, but for the end of the last operation: the draft is left for whoever lets go of the
 * inputs, and forward makes the result in it. */
void dtp_lower_context_forward(struct dtp_lowering *l, struct dtp_draft *draft,
                               const struct dtp_context_inputs *inputs);
/* Of a pass: what the core reads, exchanged first where ranks exchange tokens for heads, for that is what is saved; its
 * result goes back to ranks with their own tokens and all heads. */
struct dtp_context_inputs dtp_forward_context_inputs(const struct pass *pass);
void dtp_forward_context_result(const struct pass *pass);
/* `inputs` are saved tensors, the result's and its gradient among them. What is behind the draft's end follows in
 * dtp_lower_context_gradients. */
void dtp_lower_context_backward(struct dtp_block_backward *b, struct dtp_draft *draft,
                                const struct dtp_context_inputs *inputs);
void dtp_lower_context_gradients(struct dtp_block_backward *b);

/* ---- between the two files --------------------------------------------------------------------------------------- */

/* Bytes of the rank's queries, of its keys and values; of so many of the compute dtype in fp32. */
uint64_t dtp_context_q_bytes(const struct dtp_lowering *l);
uint64_t dtp_context_kv_bytes(const struct dtp_lowering *l);
uint64_t dtp_context_wide(const struct dtp_lowering *l, uint64_t bytes);
/* A part of a buffer, of which other streams use others meanwhile. */
void dtp_context_part(struct dtp_draft *draft, enum dtp_role role, dtp_buffer_id buffer, uint32_t access,
                      uint64_t offset_bytes, uint64_t bytes);
void dtp_context_use(struct dtp_draft *draft, const struct dtp_context_inputs *inputs);
/* Bytes and launches of kernels that merge: eager where the runtime's are. */
void dtp_context_moves(const struct dtp_lowering *l, struct dtp_draft *draft, double bytes, uint32_t kernels);
/* The draft becomes a collective of the ring, or of the ranks that exchange, behind what compute is about to wait for.
 */
dtp_op_id dtp_context_issue(struct dtp_lowering *l, struct dtp_draft *draft, uint64_t sent_bytes);
/* Begins the core of a step. */
void dtp_context_core(const struct dtp_lowering *l, struct dtp_draft *draft, enum dtp_op_kind kind, uint32_t step);
/* Keys and values as one tensor, at the beginning of one of `bytes`. */
dtp_buffer_id dtp_context_side_by_side(struct dtp_lowering *l, const struct dtp_context_inputs *inputs, uint64_t bytes);
/* `bytes` of each rank from all of the ring; compute does not wait for it yet. */
dtp_buffer_id dtp_context_gather(struct dtp_lowering *l, const char *name, const struct dtp_context_inputs *inputs,
                                 uint64_t bytes, dtp_op_id *gathered);
/* All keys, and all values, in the order of the sequence. */
void dtp_context_gather_ordered(struct dtp_lowering *l, const struct dtp_context_inputs *inputs, dtp_buffer_id all[2]);

/* Keys and values on their way, where they are walked through. */
struct dtp_context_walk {
    dtp_buffer_id at_hand, next; /* DTP_NO_BUFFER: the rank's own; nothing is on its way */
    dtp_buffer_id sent, spent[2];
    dtp_op_id received; /* when the next are there */
};
#define DTP_CONTEXT_WALK                                                                                               \
    ((struct dtp_context_walk){DTP_NO_BUFFER, DTP_NO_BUFFER, DTP_NO_BUFFER, {DTP_NO_BUFFER, DTP_NO_BUFFER}, DTP_NO_OP})
/* Before the core of a step. */
void dtp_context_walk(struct dtp_lowering *l, struct dtp_context_walk *walk, const struct dtp_context_inputs *inputs,
                      uint32_t step);
/* The core reads what is at hand, and lets go of what was before. */
void dtp_context_walked(struct dtp_draft *draft, struct dtp_context_walk *walk);

#endif
