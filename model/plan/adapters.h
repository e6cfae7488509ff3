/* Adapters on frozen weights: LoRA (Hu et al. 2021, arXiv:2106.09685), with a base that may be kept in fewer bits
 * (QLoRA, Dettmers et al. 2023, arXiv:2305.14314).
 *
 * Beside a frozen matrix W [out, in] stand A [rank, in] and B [out, rank]; the linear's result is x W^T + s (x A^T)
 * B^T. A and B alone are trained: W has no gradient and no optimizer state, and its matmuls are forward and input
 * gradient. DoRA (Liu et al. 2024, arXiv:2402.09353) trains a magnitude of each output besides (lower_magnitudes.c). A
 * plan with rank 0 trains all weights, and nothing here changes it. */
#ifndef DTP_ADAPTERS_H
#define DTP_ADAPTERS_H

#include "base/dtype.h"
#include "net/layer_kind.h"

/* How matrices of frozen layers are kept: as the recipe's parameters, or packed.
 *   nf4         4 bits, and an fp32 maximum for each 64 (bitsandbytes without double quantisation): 4.5 bits
 *   nf4-double  these maxima in 8 bits, with an fp32 one of 256 of them: 4.127 bits
 *   int8        8 bits, an fp32 scale for each row
 *   fp8         8 bits, an fp32 scale for each matrix
 *   int4        GPTQ: 4 bits; for each 128 of a column a 16-bit scale and a 4-bit zero, and 4 bytes an input that say
 *               which group it is of */
enum dtp_base {
    DTP_BASE_NONE,
    DTP_BASE_NF4,
    DTP_BASE_NF4_DOUBLE,
    DTP_BASE_INT8,
    DTP_BASE_FP8,
    DTP_BASE_INT4,
    DTP_BASE_COUNT
};
const char *dtp_base_text(enum dtp_base base);
bool dtp_base_parse(const char *text, enum dtp_base *out);

/* Which linears have an adapter: bits of these. */
#define DTP_ADAPTER_TARGET_TABLE(X)                                                                                    \
    X(Q, "q")                                                                                                          \
    X(K, "k")                                                                                                          \
    X(V, "v")                                                                                                          \
    X(OUTPUT, "o")                                                                                                     \
    X(GATE, "gate")                                                                                                    \
    X(UP, "up")                                                                                                        \
    X(DOWN, "down")
enum dtp_adapter_target {
#define DTP_ADAPTER_TARGET_ENUM(suffix, text) DTP_TARGET_##suffix,
    DTP_ADAPTER_TARGET_TABLE(DTP_ADAPTER_TARGET_ENUM)
#undef DTP_ADAPTER_TARGET_ENUM
        DTP_TARGET_COUNT
};
#define DTP_TARGETS_ALL ((1u << DTP_TARGET_COUNT) - 1)
#define DTP_TARGETS_QKV (1u << DTP_TARGET_Q | 1u << DTP_TARGET_K | 1u << DTP_TARGET_V) /* read attention's norm */
#define DTP_TARGETS_UP (1u << DTP_TARGET_GATE | 1u << DTP_TARGET_UP)                   /* read the MLP's */
#define DTP_TARGETS_MLP (DTP_TARGETS_UP | 1u << DTP_TARGET_DOWN)
#define DTP_TARGETS_ATTENTION (DTP_TARGETS_QKV | 1u << DTP_TARGET_OUTPUT)
/* "all", "attention", or as "q+v", for commas are between the values of a sweep, but are read as well. False for a word
 * that is none of them. */
#define DTP_TARGETS_BYTES 40
/* Of parameters: none, gate_up, down, or both in any order, with + or a comma between. */
const char *dtp_parameters_text(uint32_t parameters);
bool dtp_parameters_parse(const char *text, uint32_t *out);
void dtp_targets_text(uint32_t targets, char out[DTP_TARGETS_BYTES]);
bool dtp_targets_parse(const char *text, uint32_t *out);

#define DTP_MOST_LORA_ALPHA 1e6

/* A part of the plan. */
struct dtp_adapter_choice {
    uint32_t rank; /* 0: all weights are trained */
    uint32_t targets;
    uint32_t parameters;  /* of experts that are one tensor of each matrix, which have one: bits of DTP_TARGET_UP, gate
                             and up side by side, and DTP_TARGET_DOWN (target_parameters of peft) */
    enum dtp_dtype dtype; /* of adapters at rest, with their gradients: fp32, or a 16-bit one, resolved to that of the
                             computation */
    enum dtp_base base;
    double dropout;      /* of what A reads */
    double alpha;        /* B A x is multiplied by alpha / rank; 0: by 1 */
    bool dora;           /* a magnitude of each output is trained as well */
    bool gptq_operators; /* int4 is unpacked by operators, once for forward and backward */
    bool prepare_kbit;   /* norms and biases are fp32, and so is what reads them (dtp_plan_widens_norms) */
    bool fp32_ends;      /* embedding and head are, too: nobody makes them bf16 again */
    bool train_ends;     /* embedding and head are trained as well (modules_to_save of peft) */
};

struct dtp_plan;
struct dtp_cluster;
struct dtp_resolver;
/* fp32 adapters beside a computation in 16 bits, under a runtime whose linears cast what an adapter reads. Without
 * autocast they compute in fp32: each linear casts, multiplies in fp32 (off the tensor cores: PyTorch allows no TF32 in
 * matmuls unless asked), adds up in fp32 and casts the sum back; beside a packed matrix (peft's bnb.py, gptq.py:
 * requires_conversion) it casts what B made back and scales and adds that. */
bool dtp_plan_casts_to_adapters(const struct dtp_plan *plan);
bool dtp_plan_widens_adapters(const struct dtp_plan *plan);
/* The same adapters under autocast: their products are in 16 bits, of casts of a cast (lower_recast_adapters.c). */
bool dtp_plan_recasts_adapters(const struct dtp_plan *plan);
/* What adapters compute in, and bytes of an element of that. */
enum dtp_dtype dtp_plan_adapter_dtype(const struct dtp_plan *plan);
unsigned dtp_plan_adapter_bytes(const struct dtp_plan *plan);
/* prepare_model_for_kbit_training makes what is not packed fp32, and TRL embedding and head bf16 again: a norm's result
 * is fp32, of which bitsandbytes' linears read a cast and return one, so that q, k, v, all of an MLP and the residual
 * stream behind the first sum are fp32; attention reads casts, and its result and its projection's are in 16 bits. */
bool dtp_plan_widens_norms(const struct dtp_plan *plan);
/* Embedding and head stay fp32: so is all of the residual stream, and autocast casts the head's weight, which is frozen
 * and so not cached, in every micro-step; its matmul keeps that for backward. */
bool dtp_plan_widens_ends(const struct dtp_plan *plan);
/* Bytes of an element of the residual stream, and of what matrices return that read a norm's result. */
unsigned dtp_plan_stream_bytes(const struct dtp_plan *plan);
unsigned dtp_plan_result_bytes(const struct dtp_plan *plan);
/* The result of a packed matrix is copied before the adapter's is added to it. */
bool dtp_plan_defends_results(const struct dtp_plan *plan);
/* Which matrices of the kind are frozen, and the ranks beside them. */
/* Linears that bf16_linears names are in 16 bits (dtp_layer_matrix.wide). */
void dtp_plan_widen_kind(const struct dtp_plan *plan, struct dtp_layer_kind *kind);
void dtp_plan_adapt_kind(const struct dtp_plan *plan, struct dtp_layer_kind *kind);
/* Tensor parallel ranks have parts of A and B each (dtp_layer_matrix.a_rows, b_rows). */
bool dtp_plan_divides_adapters(const struct dtp_plan *plan);
/* Elements of a matrix's A and B, and of its magnitudes; of experts each has its own. */
static inline uint64_t dtp_adapter_elements(const struct dtp_layer_matrix *matrix)
{
    return matrix->groups * (matrix->a_rows * matrix->in + matrix->b_rows * matrix->rank) + matrix->magnitudes;
}
/* Of these, the ones that multiply a token. */
static inline uint64_t dtp_adapter_active_elements(const struct dtp_layer_kind *kind,
                                                   const struct dtp_layer_matrix *matrix)
{
    return (matrix->expert ? kind->experts_per_token : 1) *
           (matrix->a_rows * matrix->in + matrix->b_rows * matrix->rank);
}

/* Bytes of `rows` rows of a matrix that are `width` wide, packed by `base`; of `element_bytes` each by none. */
uint64_t dtp_base_bytes(enum dtp_base base, uint64_t rows, uint64_t width, uint64_t element_bytes);
/* bitsandbytes' scales are no parameters but an attribute of them (Params4bit.quant_state), which FSDP neither shards
 * nor moves: each rank keeps all of them on its GPU, and 4 bits of a weight alone are sharded and gathered. */
bool dtp_plan_keeps_scales(const struct dtp_plan *plan);
/* Of dtp_base_bytes what is sharded, of `rows` rows, and what each rank keeps whole. */
uint64_t dtp_plan_base_shard_bytes(const struct dtp_plan *plan, uint64_t rows, uint64_t width, uint64_t element_bytes);
uint64_t dtp_plan_scale_bytes(const struct dtp_plan *plan, uint64_t rows, uint64_t width);
/* What DoRA's operators beside an adapter's own move (lower_magnitudes.c): bytes of an element of the identity [in,
 * in], of the matrix and of its result, how many of these kernels take one at a time, what stands beside their results,
 * and how many kernels they are. Of fp32 adapters under autocast (dtp_plan_recasts_adapters) x, W and B A are made
 * fp32. */
struct dtp_magnitude_passes {
    uint64_t identity, casts, norm, norm_workspace;
    uint64_t product; /* of W and B A as the norm reads them, where they were cast; else of B A */
    uint64_t terms, terms_workspace, sum, added; /* forward, of the result; sum: what is added to it */
    uint64_t back, back_wanted, back_workspace;  /* backward, and more where the linear's gradient is wanted */
    uint32_t identity_kernels, cast_kernels, norm_kernels, terms_kernels, added_kernels, back_kernels,
        back_wanted_kernels;
    double norm_elements, terms_elements, added_elements, back_elements, back_wanted_elements;
};
struct dtp_magnitude_passes dtp_plan_magnitude_passes(const struct dtp_plan *plan);

/* bitsandbytes' MatMul8bitLt (autograd/_functions.py) holds the input of every matrix in int8, as it came, until the
 * graph goes, though its backward reads no more of it than the shape: ctx.tensors = (CAt, subA, A). */
bool dtp_plan_holds_inputs(const struct dtp_plan *plan);
/* What an eager kernel list makes of packed weights [rows, width] when it unpacks them to 16 bits: bytes of memory that
 * it moves, its kernels, and what it holds beside the result (adapters.c counts them). */
struct dtp_unpacking {
    double bytes;
    uint32_t kernels;
    uint64_t workspace_bytes;
    bool compares; /* it finds each element by comparisons, which hold SMs up */
};
/* Unpacked once, and kept until backward has read them: a compiler has both in a graph, and of a matmul of PyTorch's
 * autograd keeps what it read. */
bool dtp_base_stays_unpacked(const struct dtp_plan *plan);
struct dtp_unpacking dtp_base_unpacking(const struct dtp_plan *plan, uint64_t rows, uint64_t width);

/* Elements of embedding and head, where they are trained beside adapters; 0: they are not. */
uint64_t dtp_plan_trained_ends(const struct dtp_transformer *transformer, const struct dtp_plan *plan);
/* Bytes of gradients of so many trained elements of a model that is whole: adapters, embedding and head in its dtype.
 */
uint64_t dtp_plan_gradients_bytes(const struct dtp_transformer *transformer, const struct dtp_plan *plan,
                                  uint64_t trained);
/* Parameters of the whole model: adapters and what else is trained; frozen ones, and the bytes that all ranks together
 * would store of these once. */
struct dtp_trained_count {
    uint64_t adapters, trained, frozen, frozen_bytes;
    uint64_t active_adapters; /* that multiply a token */
};
void dtp_plan_trained(const struct dtp_transformer *transformer, const struct dtp_plan *plan,
                      struct dtp_trained_count *out);
/* FLOPs of a token's step that its model needs: 6 for each weight that is trained and multiplies it, 4 for a frozen
 * one, which has no gradient (so count NVIDIA's fine-tuning recipes too: dgxc-benchmarking, llama3.1 finetuning), and
 * those of attention. Without adapters dtp_transformer_model_flops_per_token. */
double dtp_plan_model_flops_per_token(const struct dtp_transformer *transformer, const struct dtp_plan *plan);

/* On one GPU there is nothing to shard, and nobody wraps a model of frozen weights to gather them from itself, nor one
 * whose optimizer takes whole tensors: where a strategy was left open it is ddp there. */
bool dtp_plan_picks_ddp(const struct dtp_plan *plan, const struct dtp_cluster *cluster);
/* In resolving: what follows from adapters, and what is refused beside them. */
void dtp_plan_derive_adapters(struct dtp_resolver *resolver);
void dtp_plan_check_adapters(struct dtp_resolver *resolver);

#endif
