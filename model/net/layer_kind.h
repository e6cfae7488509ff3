/* Kinds of layers: what a block of a net consists of, read off the table layer_kind.def.
 *
 * A kind is widths and choices, its weights (matrices and the vectors of norms and biases), the tensors that its
 * forward makes and the operators between them. What counts parameters, shards, saves or lowers a block walks these
 * lists, and so does what counts the bytes of an eager or compiled one (closed/block_work.c); what our own runtime
 * fuses is its rule on top (runtime/dtplan/executor_block.h). How a runtime stores the projections, as one matrix or
 * apart, is part of the question: q, k and v packed are another matrix with another result. All values are plain
 * numbers; nothing fails. */
#ifndef DTP_LAYER_KIND_H
#define DTP_LAYER_KIND_H

#include "net/transformer.h"

enum dtp_layer_tensor {
#define DTP_TENSOR(suffix, name, width, element, part) DTP_TENSOR_##suffix,
#include "net/layer_kind.def"
    DTP_TENSOR_COUNT
};
_Static_assert(DTP_TENSOR_COUNT <= 64, "sets of tensors are bits of 64");
#define DTP_TENSOR_BIT(suffix) (UINT64_C(1) << DTP_TENSOR_##suffix)
#define DTP_LAYER_STREAM (DTP_TENSOR_BIT(INPUT) | DTP_TENSOR_BIT(INPUT2)) /* the residual stream, sum by sum */
const char *dtp_layer_tensor_text(enum dtp_layer_tensor tensor);

/* Bytes of an element: of the residual stream, of results in the compute dtype, of what a matmul keeps as its input for
 * the weight gradient, 4, and 1: PyTorch keeps a bool of what dropout let through. */
enum dtp_layer_element {
    DTP_LAYER_ELEMENT_STREAM,
    DTP_LAYER_ELEMENT_COMPUTE,
    DTP_LAYER_ELEMENT_KEPT_INPUT,
    DTP_LAYER_ELEMENT_FP32,
    DTP_LAYER_ELEMENT_MASK,
    DTP_LAYER_ELEMENT_COUNT
};
enum dtp_layer_part { DTP_PART_RESIDUAL, DTP_PART_NORMS, DTP_PART_ATTENTION, DTP_PART_MLP, DTP_PART_COUNT };

enum dtp_layer_matrix_id {
#define DTP_MATRIX(suffix, ...) DTP_MATRIX_##suffix,
#include "net/layer_kind.def"
    DTP_MATRIX_COUNT
};
#define DTP_LAYER_MATRICES                                                                                             \
    13 /* most of one kind: latent attention's five, router, experts' and shared ones' three, gate */

enum dtp_layer_vector {
#define DTP_VECTOR(suffix, ...) DTP_VECTOR_##suffix,
#include "net/layer_kind.def"
    DTP_VECTOR_COUNT
};

/* A weight matrix [out, in]. The names are of the matrix, of its gradient and its input's as operations, and of its
 * weight as a tensor: static. */
struct dtp_layer_matrix {
    const char *name, *gradient_name, *input_gradient_name, *weight_name;
    uint64_t out, in;
    uint64_t groups;     /* so many of them, one of each expert that the rank has: [groups, out, in]; others 1 */
    bool expert;         /* of experts, be it one */
    bool apart;          /* of the runtime: each expert's is a parameter of its own */
    bool bias;           /* [groups, out] */
    bool own_rows;       /* it reads the rank's rows of the stream, where tensor parallel ranks have some each: experts,
                            routers */
    bool wide;           /* a router's: in 16 bits under every recipe of fewer */
    bool frozen;         /* of the plan: its weight and bias are not trained (plan/adapters.h) */
    uint64_t rank;       /* of the plan: of the adapter beside it; 0: there is none */
    uint64_t a_rows;     /* rows of its A that a rank has: the adapter's rank, or where ranks divide that a part */
    uint64_t b_rows;     /* and of its B: `out`, or where ranks have rows of the matrix' input each a part */
    bool folded;         /* of the plan: W + B A is made whole and multiplies rows in place of W (lower_folded.c) */
    uint64_t magnitudes; /* of the plan: elements that DoRA trains beside that, one an output; or 0 */
    enum dtp_layer_matrix_id id;
    enum dtp_layer_tensor result; /* the projection that makes it says what it reads */
};

/* Layers of one model differ in their MLP: one, or experts. */
enum dtp_layer_mlp { DTP_LAYER_DENSE, DTP_LAYER_EXPERTS };
#define DTP_LAYER_MLPS 2
/* The kind of all layers of a model that is uniform; formulas that know one kind refuse others before. */
static inline enum dtp_layer_mlp dtp_layer_mlp_of(const struct dtp_transformer *transformer)
{
    bool any = transformer->experts && dtp_transformer_expert_layers(transformer, transformer->layers);
    return any ? DTP_LAYER_EXPERTS : DTP_LAYER_DENSE;
}

struct dtp_layer_kind {
    uint64_t hidden, ffn, heads, kv_heads, head_dim, d_q, d_kv; /* ffn: of all that a token goes through, k x expert */
    uint64_t experts, experts_per_token;                        /* 0 and 1 where there are none */
    uint64_t own_experts; /* of these, those that the rank has: all, or a part of them that ranks divide */
    bool exchanged;       /* a part of them: rows of tokens go to the ranks that have their experts, and back */
    bool sinks_inside;    /* of the runtime: its attention kernel has them */
    bool joins_sinks;     /* of the runtime: they are joined with the kernel's log-sum-exp (lower_sinks.c) */
    bool weighs_rows;     /* of the runtime: what they return is weighed before it is put back by tokens */
    bool calls_experts;   /* of the runtime: experts are called one after the other, each with its tokens' rows */
    bool stacks_rows;     /* of the runtime: AutoEP's (lower_experts.c) */
    bool sorts_rows;      /* of the plan: Transformers' grouped matmuls (lower_sorted_experts.c) */
    bool routes_all;      /* of the plan: tensor parallel ranks have whole routers and latents (dtp_plan_routes_all) */
    bool pads_rows;       /* of the plan: rows are copied to fill experts' up, and back (indices_padding_wrapper) */
    bool slots_rows;      /* of the runtime: called experts have as many rows each, slots (lower_slotted_experts.c) */
    uint64_t mlp_width;   /* of one MLP: the model's, or an expert's */
    uint64_t shared_ffn;
    uint64_t d_core;                             /* what the output matrix reads: heads times the width of a value */
    uint64_t q_latent, kv_latent, rope_head_dim; /* of latent attention, else 0 */
    uint64_t d_v;                                /* values as attention reads them: of all heads */
    bool chains_norms;        /* of the plan: norms before are chains on a copy in fp32 (plan/norm_chain.h) */
    uint64_t norm_statistics; /* numbers a norm keeps of a token: RMSNorm its scale, LayerNorm mean and scale */
    bool packs_qkv, packs_up; /* q, k and v are one matrix; gate and up are one */
    bool packs_shared;        /* those of shared experts are one */
    bool gated, rotary, qk_norm;
    enum dtp_parallel_block parallel;
    bool norms_before, norms_after, qk_norm_wide, qk_norm_bias;
    bool norm_weights; /* of norms but those of q and k */
    enum dtp_qk_norm_weight qk_norm_weight;
    uint64_t qk_norm_statistics; /* as norm_statistics */
    bool pads_values; /* of the runtime's kernels: values of latent attention are padded to the width of keys */
    bool own_values;  /* they are a tensor of their own, not a view of what was projected: padded, or the runtime's */
    /* Of the runtime, under autocast: results of experts are multiplied by their weights in 16 bits, where rows are put
     * back in order. */
    bool narrows_sums;
    uint64_t qk_copied; /* fp32 numbers that norms of q and k keep of a token beside their statistics */
    bool narrows;       /* of the runtime: matmuls read a cast of the residual stream, where no norm stands between */
    bool activates_in_place; /* of the plan: gate and up make one kernel's result, whose backward overwrites them */
    bool clamps;             /* the activation clamps gate and up: eagerly seven operations */
    bool dropout;            /* of the runtime: what branches return goes through dropout on its way to the stream */
    bool squares;     /* the activation is a square of ReLU: eagerly two operations, the second of the first's result */
    bool from_result; /* the activation's derivative reads its result, not its input: ReLU */
    /* Of the plan: GELU is a chain of operators (plan/gelu_chain.h), in fp32 on a copy; linears cast a norm's fp32
     * result, each for itself, beside a stream in 16 bits. */
    bool chains_gelu, widens_gelu, casts_norms;
    bool norm_bias, qkv_bias, output_bias, mlp_bias;
    bool router_bias, shared_gate, sinks;
    bool adapted;     /* of the plan: matrices are frozen, and so are norms and biases */
    uint32_t vectors; /* norms that exist, bits by enum dtp_layer_vector */
    int matrices;
    struct dtp_layer_matrix matrix[DTP_LAYER_MATRICES]; /* so many of them; behind these it holds nothing */
};
/* Rows are put in an order of their own for experts: by these, behind an exchange by ranks, or filled up. */
static inline bool dtp_layer_reorders(const struct dtp_layer_kind *kind)
{
    return kind->exchanged || kind->pads_rows;
}
/* Norms that see a rank's rows or heads, of tensor parallel ranks: not those of latents that each has whole. */
static inline uint32_t dtp_layer_spread_vectors(const struct dtp_layer_kind *kind)
{
    const uint32_t latents = UINT32_C(1) << DTP_VECTOR_Q_LATENT | UINT32_C(1) << DTP_VECTOR_KV_LATENT;
    return kind->vectors & ~(kind->routes_all ? latents : 0);
}
/* Rows of all experts lie in one tensor, by experts, and are put back by tokens unweighed. */
static inline bool dtp_layer_orders_rows(const struct dtp_layer_kind *kind)
{
    return kind->experts && !kind->weighs_rows && !kind->calls_experts;
}
/* Numbers in fp32 that their results put back by tokens are worth. */
static inline uint64_t dtp_layer_wide_results(const struct dtp_layer_kind *kind)
{
    const uint64_t all = kind->experts_per_token * kind->hidden;
    return dtp_layer_orders_rows(kind) && !kind->sorts_rows ? all / (kind->narrows_sums ? 2 : 1) : 0;
}
/* Numbers in fp32 that norms of queries and keys keep of a token, the heads among them where they are widened. */
static inline uint64_t dtp_layer_qk_norm_kept(const struct dtp_layer_kind *kind)
{
    const uint64_t norms = kind->qk_norm_wide ? 2 : kind->heads + kind->kv_heads;
    return kind->qk_norm_statistics * norms + kind->qk_copied;
}
/* Whether the activation that makes `products` is one kernel where others are eager: AutoEP's, of its experts; Liger's,
 * of others. */
static inline bool dtp_layer_activates_in_one(const struct dtp_layer_kind *kind, uint64_t products)
{
    return (kind->activates_in_place || (kind->experts && kind->stacks_rows)) && products & DTP_TENSOR_BIT(PRODUCT);
}
/* Rows in slots that came from other ranks are no one expert's tensor: each matrix that reads them copies its own. */
static inline uint64_t dtp_layer_slot_copies(const struct dtp_layer_kind *kind)
{
    return kind->slots_rows && kind->exchanged && kind->gated ? 2 : 1;
}
/* Tensors of which each expert that is called has its own part. */
static inline uint64_t dtp_layer_called_tensors(const struct dtp_layer_kind *kind)
{
    if (kind->experts && kind->slots_rows) /* its rows and what it returns are parts of one of all */
        return DTP_TENSOR_BIT(GATE) | DTP_TENSOR_BIT(UP) | DTP_TENSOR_BIT(SILU) | DTP_TENSOR_BIT(PRODUCT);
    return kind->experts && kind->calls_experts
               ? DTP_TENSOR_BIT(PERMUTED) | DTP_TENSOR_BIT(GATE) | DTP_TENSOR_BIT(UP) | DTP_TENSOR_BIT(SILU) |
                     DTP_TENSOR_BIT(PRODUCT) | DTP_TENSOR_BIT(EXPERT_DOWN)
               : 0;
}
/* So many of these stand one after the other, where nothing keeps them: 1 where there is but one of each. */
static inline uint64_t dtp_layer_calls(const struct dtp_layer_kind *kind)
{
    return kind->experts && kind->calls_experts ? kind->own_experts : 1;
}
/* Of the model's layers that have such an MLP. packs_up says nothing where there is no gate, nor of experts, whose gate
 * and up are apart; packs_qkv nothing of latent attention. */
void dtp_layer_kind_of(const struct dtp_transformer *transformer, enum dtp_layer_mlp mlp, bool packs_qkv, bool packs_up,
                       struct dtp_layer_kind *out);

/* Sums over the kind's matrices in one pass: elements; of all that a recipe of fewer than 16 bits takes; of biases; of
 * attention's but the output's, groups left out. */
struct dtp_layer_sums {
    uint64_t matrices, narrow, biases, attention_inputs;
};
struct dtp_layer_sums dtp_layer_sums_of(const struct dtp_layer_kind *kind);
/* Elements of the kind's matrices, biases left out; of those, the ones that multiply a token; of biases and norms. */
uint64_t dtp_layer_matrix_elements(const struct dtp_layer_kind *kind);
uint64_t dtp_layer_active_elements(const struct dtp_layer_kind *kind);
/* Of all that a recipe of fewer than 16 bits takes. */
uint64_t dtp_layer_narrow_elements(const struct dtp_layer_kind *kind);
uint64_t dtp_layer_vector_elements(const struct dtp_layer_kind *kind);
uint64_t dtp_layer_bias_elements(const struct dtp_layer_kind *kind);
/* Of the norms of q and k. */
uint64_t dtp_layer_qk_norm_elements(const struct dtp_layer_kind *kind);
uint64_t dtp_layer_expert_bias_elements(const struct dtp_layer_kind *kind); /* of one expert */

/* The vectors one by one, biases first: returns how many, elements of each in `out`. */
#define DTP_LAYER_VECTORS (DTP_LAYER_MATRICES + 2 * DTP_VECTOR_COUNT)
int dtp_layer_list_vectors(const struct dtp_layer_kind *kind, uint64_t out[DTP_LAYER_VECTORS]);

/* How FSDP2 cuts a matrix over so many ranks: by its first axis, of experts by whole ones, or where there are more
 * ranks than experts by rows of each (torchtitan's parallelize.py shards dimension 1 then). `count` tensors of `rows`,
 * each `width` wide. */
struct dtp_layer_cut {
    uint64_t count, rows, width;
};
static inline struct dtp_layer_cut dtp_layer_matrix_cut(const struct dtp_layer_matrix *matrix, uint64_t ranks)
{
    if (matrix->expert && !matrix->apart && ranks <= matrix->groups)
        return (struct dtp_layer_cut){1, matrix->groups, matrix->out * matrix->in};
    return (struct dtp_layer_cut){matrix->groups, matrix->out, matrix->in};
}

/* The table's columns of one tensor. */
uint64_t dtp_layer_tensor_width(const struct dtp_layer_kind *kind, enum dtp_layer_tensor tensor);
/* The same of all, also of those that no operator of the kind makes. */
void dtp_layer_tensor_widths(const struct dtp_layer_kind *kind, uint64_t out[DTP_TENSOR_COUNT]);
extern const uint8_t dtp_layer_elements[DTP_TENSOR_COUNT], dtp_layer_parts[DTP_TENSOR_COUNT];
static inline enum dtp_layer_element dtp_layer_tensor_element(enum dtp_layer_tensor tensor)
{
    return (enum dtp_layer_element)dtp_layer_elements[tensor];
}
static inline enum dtp_layer_part dtp_layer_tensor_part(enum dtp_layer_tensor tensor)
{
    return (enum dtp_layer_part)dtp_layer_parts[tensor];
}

/* As a set, where autocast runs norms wide: the fp32 result that the norm before a matmul casts, given its result; the
 * fp32 cast that a norm behind one reads, given its input. Empty for other tensors. */
uint64_t dtp_layer_wide_of(enum dtp_layer_tensor tensor);

enum dtp_layer_operator_kind {
    DTP_LAYER_OP_NORM,
    DTP_LAYER_OP_PROJECTION, /* one or more matrices that read the same tensor */
    DTP_LAYER_OP_ROTARY,     /* position into q and k, and their norms where the model has them */
    DTP_LAYER_OP_ATTENTION,
    DTP_LAYER_OP_ACTIVATION,
    DTP_LAYER_OP_ROUTER,    /* each token's experts and their weights, of its scores; tokens in the order of experts */
    DTP_LAYER_OP_PERMUTE,   /* rows of tokens to their experts */
    DTP_LAYER_OP_UNPERMUTE, /* and back, weighed and added up; with what shared experts add */
    DTP_LAYER_OP_LATENT_NORM,  /* of a latent */
    DTP_LAYER_OP_LATENT_HEADS, /* queries and keys of latent attention, of their parts with rope and without */
    DTP_LAYER_OP_CAST,         /* of the residual stream into what matmuls read, where no norm does it */
    DTP_LAYER_OP_RESIDUAL      /* makes INPUT2; the last nothing here, for its sum is the next block's input */
};
enum dtp_layer_need { DTP_NEEDS_INPUT = 1, DTP_NEEDS_RESULT = 2, DTP_NEEDS_STATISTICS = 4 };

/* Sets are bits by enum dtp_layer_tensor. */
struct dtp_layer_operator {
    enum dtp_layer_operator_kind kind;
    const char *name;
    uint64_t reads, makes, statistics;
    uint32_t needs;
};
/* The tensors of an MLP's activation, told by what it makes: of the layer's own MLP or experts, or of the shared ones.
 */
struct dtp_layer_activation {
    enum dtp_layer_tensor gate, up, silu, product;
};
static inline struct dtp_layer_activation dtp_layer_activation(uint64_t makes)
{
    return makes & DTP_TENSOR_BIT(SHARED_PRODUCT)
               ? (struct dtp_layer_activation){DTP_TENSOR_SHARED_GATE, DTP_TENSOR_SHARED_UP, DTP_TENSOR_SHARED_SILU,
                                               DTP_TENSOR_SHARED_PRODUCT}
               : (struct dtp_layer_activation){DTP_TENSOR_GATE, DTP_TENSOR_UP, DTP_TENSOR_SILU, DTP_TENSOR_PRODUCT};
}

#define DTP_LAYER_OPERATORS 36
int dtp_layer_operators(const struct dtp_layer_kind *kind, struct dtp_layer_operator out[DTP_LAYER_OPERATORS]);

#endif
