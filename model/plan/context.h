/* How context parallel ranks share the attention of a sequence: each has s/c of its tokens.
 *
 * A rank's queries need the keys and values of all tokens before them. Either these go around a ring, of whose steps
 * each is an attention core of its own; or they are gathered; or ranks exchange tokens for heads, so that each attends
 * to the whole sequence with a c-th of the heads (Ulysses); or both, an exchange among `exchanged` ranks of a node and
 * a ring across (Megatron-Core's cp_comm_type, Transformer Engine's context_parallel.py). PyTorch gathers and then
 * walks through what it gathered as a ring does (torch.distributed.tensor.experimental).
 *
 * Under the causal mask late tokens see more than early ones. So a sequence is cut into 2c pieces of which rank i has
 * the i-th from the front and the i-th from the back (zigzag). In a ring of r ranks each then has the same work: the
 * diagonal with its own T tokens, and r - 1 blocks of half as many keys as queries, or half as many queries as keys:
 * 2 T T + (r - 1) 4 T T/2 = 2 T r T FLOPs a channel, what causal attention over s = r T costs its T tokens.
 *
 * Pure functions of numbers. A plan is resolved. */
#ifndef DTP_CONTEXT_H
#define DTP_CONTEXT_H

#include "machine/machine.h"
#include "plan/plan.h"

/* Ranks of those that share a sequence that exchange tokens for heads; 1: none do. All of them (a2a), or as many as lie
 * in one node beside each other and divide all (a2a+p2p): 12 ranks on nodes of 8 are a ring of 3 groups of 4. */
uint32_t dtp_context_exchanged(const struct dtp_plan *plan, const struct dtp_cluster *cluster);

struct dtp_context {
    uint32_t exchanged; /* ranks that exchange tokens for heads; 1: none do */
    uint32_t ring;      /* ranks, or groups of exchanged ones, among which keys and values go around */
    uint32_t steps;     /* attention cores of a rank and layer, one behind the other */
    bool gathers;       /* keys and values are gathered before the first */
    bool keeps;         /* what was gathered stands until backward has walked through it */
    bool by_pieces;     /* a step is one of the rank's two pieces, with all keys before its end */
};
/* Of a plan with cp 1: one step, and nobody exchanges or gathers. */
struct dtp_context dtp_plan_context(const struct dtp_plan *plan, const struct dtp_cluster *cluster);

/* Parts of a rank's heads that ranks exchange one after the other, each beside another's attention, where they exchange
 * heads alone; `kv_heads`: of a tensor parallel rank. Unless the plan says how many two, where heads allow: a second
 * one hides half of what is sent, a third hides a sixth. */
#define DTP_CONTEXT_MOST_CHUNKS 64
uint32_t dtp_context_chunks(const struct dtp_plan *plan, uint64_t kv_heads);

/* The core of step `step`, where `whole` is the layer's: of the ranks of a ring the last, which has the whole of its
 * queries in each step; of those that gather the first, whose two pieces are the first and the last of the sequence. */
struct dtp_attention_shape dtp_context_step(const struct dtp_context *context, const struct dtp_attention_shape *whole,
                                            uint32_t step);
/* Queries of that core, of all sequences: of `tokens` on the rank. */
double dtp_context_step_tokens(const struct dtp_context *context, const struct dtp_attention_shape *whole,
                               const struct dtp_attention_shape *step, double tokens);

#endif
