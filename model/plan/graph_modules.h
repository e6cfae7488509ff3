/* What of a step Megatron-Core's CUDA graphs replay, and what follows from it (cuda_graph_modules and cuda_graph_impl
 * of transformer_config.py, cuda_graphs.py). A graph takes launches from the host, one replay is a call of its own.
 * Shapes in it are fixed, so that of a layer of experts whose rows are as many as routing says only the router and what
 * counts rows can be captured, unless these numbers never come to the host: passes of a whole step in one graph have
 * each expert's rows in a buffer of fixed size, of which copies are kept for backward (moe_paged_stash), products of
 * all experts in one kernel that reads their numbers on the device, and in 8 and 4 bits by blocks on Blackwell
 * activations and casts within these kernels (Transformer Engine's ops/fused/grouped_mlp.py; Megatron-Bridge's recipes
 * of full_iteration set use_transformer_engine_op_fuser). */
#ifndef DTP_GRAPH_MODULES_H
#define DTP_GRAPH_MODULES_H

#include "plan/plan.h"

/* X(suffix, word) */
#define DTP_GRAPH_TABLE(X)                                                                                             \
    X(ATTN, "attn")                     /* TransformerLayer._forward_attention */                                      \
    X(MLP, "mlp")                       /* _forward_mlp of a layer without experts */                                  \
    X(MOE_ROUTER, "moe_router")         /* of one with: the norm, the router, shared experts */                        \
    X(MOE_PREPROCESS, "moe_preprocess") /* and what says which rows go where */                                        \
    X(FULL_ITERATION, "full_iteration")
enum dtp_graph_module {
#define DTP_GRAPH_ENUM(suffix, word) DTP_GRAPH_##suffix,
    DTP_GRAPH_TABLE(DTP_GRAPH_ENUM)
#undef DTP_GRAPH_ENUM
        DTP_GRAPH_COUNT
};
#define DTP_GRAPHS_BYTES 64
void dtp_graphs_text(uint32_t set, char out[DTP_GRAPHS_BYTES]);
bool dtp_graphs_parse(const char *text, uint32_t *out);

/* Whether a graph replays the module's kernels. */
static inline bool dtp_plan_replays(const struct dtp_plan *plan, enum dtp_graph_module module)
{
    return plan->megatron.graphs & (1u << module | 1u << DTP_GRAPH_FULL_ITERATION);
}
/* Whether all passes are one graph. */
static inline bool dtp_plan_replays_all(const struct dtp_plan *plan)
{
    return plan->megatron.graphs >> DTP_GRAPH_FULL_ITERATION & 1;
}
/* Whether experts' activations and their casts run within the matmuls around them. */
bool dtp_plan_fuses_experts(const struct dtp_plan *plan, const struct dtp_cluster *cluster);
/* Kernels of a product, or of a cast, of so many experts: Transformer Engine's GroupedLinear calls cuBLAS once for each
 * (multi_stream_cublas_gemm of cublaslt_gemm.cu), and casts rows and matrices one by one (multi_tensor_quantize_impl of
 * cast.cpp) but those of a scale of earlier steps (nvte_multi_cast_transpose) and NVFP4's, which have kernels of all.
 */
uint32_t dtp_plan_expert_products(const struct dtp_plan *plan, uint64_t experts);
uint32_t dtp_plan_expert_casts(const struct dtp_plan *plan, uint64_t experts);

#endif
