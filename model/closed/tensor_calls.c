#include "closed/tensor_calls.h"

#include "closed/block_work.h"
#include "cost/cluster_cost.h"
#include "net/layer_kind.h"
#include "plan/checkpointing.h"
#include "plan/rules.h"

#include <math.h>

/* Of torchtitan's Llama, whatever the model. Embedding and the gather of its gradient, final norm, head, their rows'
 * sums, and the loss over parts of the vocabulary, with three sums: compiled one call forward and two backward, else
 * four each. Of all the ones that move rows or vectors are no kernels of a slice: two gathers, two scattered sums, the
 * loss' three, the norm's gradient. */
enum { ENDS = 26, ENDS_COMPILED = 21, ENDS_COLLECTIVES = 8 };
/* Of these the embedding's: a call forward and three backward; its rows' sum, the gather of their gradient. */
enum { TABLE = 6, TABLE_COLLECTIVES = 2 };
/* Fused AdamW of a group of tensors: a kernel, and two around it. */
enum { OPTIMIZER_CALLS = 3 };

/* Matrices that ranks divide as DTensors; a layer's norms. */
static double matrices_of(const struct dtp_transformer *t, const struct dtp_plan *plan)
{
    struct dtp_layer_kind kind;
    double matrices = 0;
    dtp_layer_kind_of(t, dtp_layer_mlp_of(t), plan->fused_qkv, plan->fused_gate_up, &kind);
    for (int i = 0; i < kind.matrices; i++)
        matrices += kind.matrix[i].expert ? 0 : 1;
    return matrices;
}

/* Of a layer, on average: replays, and matrices that one runs again. Where results of every second are kept, so many
 * fewer (layer_tensors.c, second_matmuls); the last one and the sum behind it nobody needs. */
struct replay {
    double share, matrices;
};

static struct replay replay_of(const struct dtp_plan *plan, double matrices)
{
    const struct dtp_checkpoint_rule rule = dtp_plan_checkpoint_rule(plan);
    if (!rule.every || !rule.calls_modules)
        return (struct replay){0, 0};
    return (struct replay){1 / (double)rule.every,
                           rule.keeps == DTP_KEEPS_SECOND_MATMULS ? floor(matrices / 2) : matrices - 1};
}

struct dtp_tensor_calls dtp_tensor_calls_of(const struct dtp_transformer *transformer,
                                            const struct dtp_cluster *cluster, const struct dtp_plan *plan)
{
    const struct dtp_execution execution = dtp_plan_execution(plan);
    struct dtp_execution plain = execution;
    if (execution.issuer != DTP_ISSUER_DTENSOR && execution.issuer != DTP_ISSUER_DTENSOR_COMPILED)
        return (struct dtp_tensor_calls){0};
    plain.issuer = DTP_ISSUER_PYTORCH;
    const double launch_s = dtp_cluster_kernel_launch_s(cluster, &execution),
                 kernel_s = dtp_cluster_kernel_launch_s(cluster, &plain);
    const double matrices = matrices_of(transformer, plan), norms = 2 /* Llama's */,
                 moves = plan->sequence_parallel ? 4 : 2;
    const double norm_back = plan->compile ? 2 : 3;
    const double forward = norms + matrices * (plan->compile ? 1 : 3) + moves;
    const double sums = plan->sequence_parallel ? norms : 0; /* of norms' gradients, by other tokens on each rank */
    const double backward = norms * norm_back + 1 + 2 * matrices + moves + sums;
    const struct replay replay = replay_of(plan, matrices);
    const double again = replay.share * (norms + replay.matrices * (plan->compile ? 1 : 3) + moves - 1);
    const double kernels =
        norms + matrices + replay.share * (norms + replay.matrices) + norms * norm_back + 2 * matrices;
    const double ends = plan->compile ? ENDS_COMPILED : ENDS;
    struct dtp_plan slice = *plan; /* whose layers are no DTensors, so that it counts what these calls contain */
    slice.tp = 1;
    const bool experts = transformer->experts > 0;
    const double counted_s =
        dtp_block_calls_s(transformer, &slice, experts) - dtp_block_calls_s(transformer, plan, experts);
    return (struct dtp_tensor_calls){.layer_s =
                                         (forward + again + backward) * launch_s - kernels * kernel_s - counted_s,
                                     .ends_s = ends * launch_s - (ends - ENDS_COLLECTIVES) * kernel_s,
                                     .table_s = TABLE * launch_s - (TABLE - TABLE_COLLECTIVES) * kernel_s,
                                     .step_s = OPTIMIZER_CALLS * launch_s};
}
