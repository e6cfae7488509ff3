#include "plan/context.h"

#include "base/bytes.h"
#include "plan/checkpointing.h"
#include "plan/runtime.h"

uint32_t dtp_context_exchanged(const struct dtp_plan *plan, const struct dtp_cluster *cluster)
{
    uint32_t of_node = cluster->gpus_per_node / (plan->tp ? plan->tp : 1);
    switch (plan->cp_comm) {
    case DTP_CP_A2A: return plan->cp;
    case DTP_CP_A2A_P2P: return (uint32_t)dtp_common_divisor(plan->cp, of_node);
    case DTP_CP_P2P:
    case DTP_CP_ALL_GATHER: break;
    }
    return 1;
}

struct dtp_context dtp_plan_context(const struct dtp_plan *plan, const struct dtp_cluster *cluster)
{
    uint32_t cp = plan->cp ? plan->cp : 1, exchanged = cp > 1 ? dtp_context_exchanged(plan, cluster) : 1;
    struct dtp_context context = {.exchanged = exchanged, .ring = cp / exchanged};
    context.gathers = cp > 1 && plan->cp_comm == DTP_CP_ALL_GATHER;
    context.by_pieces = context.gathers && !plan->runtime->walks_gathered;
    /* Of a compiled block the graph of forward and backward is one, in which two gathers of the same keys and values
     * are one (fx_graph_cse), and a partitioner recomputes no collective. torchtitan's op-level policy does. */
    context.keeps = context.gathers && !context.by_pieces && context.ring > 1 && plan->compile &&
                    dtp_plan_checkpoint_rule(plan).keeps != DTP_KEEPS_SECOND_MATMULS;
    context.steps = context.by_pieces ? 2 : context.ring;
    return context;
}

uint32_t dtp_context_chunks(const struct dtp_plan *plan, uint64_t kv_heads)
{
    if (plan->cp < 2 || plan->cp_comm != DTP_CP_A2A || !plan->runtime->keeps_exchanged)
        return 1;
    const uint32_t asked = plan->executor.cp_chunks;
    return asked ? asked : kv_heads / plan->cp % 2 ? 1 : 2;
}

struct dtp_attention_shape dtp_context_step(const struct dtp_context *context, const struct dtp_attention_shape *whole,
                                            uint32_t step)
{
    struct dtp_attention_shape shape = *whole;
    shape.heads /= context->exchanged;
    shape.kv_heads /= context->exchanged;
    if (context->ring == 1)
        return shape;
    uint64_t queries = whole->keys / context->ring;
    shape.queries = shape.keys = queries;
    if (context->by_pieces) {
        shape.queries = queries / 2;
        shape.keys = step == 0 ? queries / 2 : whole->keys;
    } else if (step > 0) {
        shape.keys = queries / 2;
        shape.causal = false;
    }
    return shape;
}

double dtp_context_step_tokens(const struct dtp_context *context, const struct dtp_attention_shape *whole,
                               const struct dtp_attention_shape *step, double tokens)
{
    double ranks = (double)context->ring * context->exchanged, sequences = tokens * ranks / (double)whole->keys;
    return sequences * (double)step->queries;
}
