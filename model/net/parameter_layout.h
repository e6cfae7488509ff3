/* Where each parameter lies: the one rule that lowering, initialisation, checkpoints and the closed form of our
 * executor share.
 *
 * Parameters are grouped by module, and a module is what is gathered, reduced and updated in one operation: module 0 is
 * the embedding with the position table, 1 .. L are the blocks, L + 1 is the final norm with the head (a head tied to
 * the embedding is the embedding's table and stands in module 0 only). A module is one buffer: weights in the compute
 * dtype, gradients, master and moments each have such a buffer with the same order of elements. So a gathered buffer is
 * the weights and a buffer of weight gradients is what is reduced.
 *
 * Tensors start at multiples of DTP_PARAMETER_ALIGNMENT elements (16 bytes in the narrowest type used), and a module
 * ends where equal shards result that are multiples of DTP_PARAMETER_SHARD_ALIGNMENT (512 bytes, the arena's granule,
 * so that a buffer takes exactly its elements). What lies between tensors and behind the last is padding: zero in
 * weights, gradients and state, so that it adds nothing to a norm and AdamW leaves it zero.
 *
 * So are the rows that the head's matrix (the table it is tied to) and its bias have beyond the vocabulary, up to a
 * multiple of DTP_PARAMETER_ALIGNMENT: tensor cores read and write whole 16 bytes, and logits of an odd vocabulary
 * would make each of the head's matmuls several times as slow. Operations take the matrix with these rows; the loss
 * takes their logits for minus infinity, so that their gradient is exactly zero and they stay what they are.
 * Checkpoints leave them out. */
#ifndef DTP_PARAMETER_LAYOUT_H
#define DTP_PARAMETER_LAYOUT_H

#include "net/layer_kind.h"

#define DTP_PARAMETER_ALIGNMENT 8u
#define DTP_PARAMETER_SHARD_ALIGNMENT 256u

/* X(suffix, name). Weight matrices are [out, in], rows of `in` elements; qkv packs q, k and v, up packs gate and up
 * (gate first) where the activation has a gate. The norms of q and k are one vector of two head widths, where they are
 * wide of all heads' widths, q's first. In place of qkv latent attention has what projects down to latents and up from
 * them, keys and values head by head. A block's tensors that stand behind the head's lie at its end. Adapters are
 * tensors of modules of their own, a block's beside its block: L + 2 .. 2 L + 1. Beside a packed matrix stand the
 * adapters of what is packed, A [their ranks, in] and B [their rows, rank], one behind the other. */
#define DTP_PARAMETER_TABLE(X)                                                                                         \
    X(EMBEDDING, "embedding")                                                                                          \
    X(POSITION, "position")                                                                                            \
    X(NORM1, "norm 1")                                                                                                 \
    X(NORM1_BIAS, "norm 1 bias")                                                                                       \
    X(QKV, "qkv")                                                                                                      \
    X(QKV_BIAS, "qkv bias")                                                                                            \
    X(OUTPUT, "output")                                                                                                \
    X(OUTPUT_BIAS, "output bias")                                                                                      \
    X(NORM2, "norm 2")                                                                                                 \
    X(NORM2_BIAS, "norm 2 bias")                                                                                       \
    X(UP, "up")                                                                                                        \
    X(UP_BIAS, "up bias")                                                                                              \
    X(DOWN, "down")                                                                                                    \
    X(DOWN_BIAS, "down bias")                                                                                          \
    X(FINAL_NORM, "final norm")                                                                                        \
    X(FINAL_NORM_BIAS, "final norm bias")                                                                              \
    X(HEAD, "head")                                                                                                    \
    X(HEAD_BIAS, "head bias")                                                                                          \
    X(QK_NORM, "q and k norms")                                                                                        \
    X(POST_NORM1, "norm after attention")                                                                              \
    X(POST_NORM1_BIAS, "norm after attention bias")                                                                    \
    X(POST_NORM2, "norm after MLP")                                                                                    \
    X(POST_NORM2_BIAS, "norm after MLP bias")                                                                          \
    X(Q_LATENT_NORM, "q latent norm")                                                                                  \
    X(Q_LATENT_NORM_BIAS, "q latent norm bias")                                                                        \
    X(KV_LATENT_NORM, "kv latent norm")                                                                                \
    X(KV_LATENT_NORM_BIAS, "kv latent norm bias")                                                                      \
    X(Q_DOWN, "q down")                                                                                                \
    X(Q_DOWN_BIAS, "q down bias")                                                                                      \
    X(Q, "queries")                                                                                                    \
    X(Q_BIAS, "q bias")                                                                                                \
    X(KV_DOWN, "kv down")                                                                                              \
    X(KV_DOWN_BIAS, "kv down bias")                                                                                    \
    X(KV, "kv")                                                                                                        \
    X(KV_BIAS, "kv bias")                                                                                              \
    X(ROUTER, "router")                                                                                                \
    X(ROUTER_BIAS, "router bias")                                                                                      \
    X(SHARED_UP, "shared up")                                                                                          \
    X(SHARED_UP_BIAS, "shared up bias")                                                                                \
    X(SHARED_DOWN, "shared down")                                                                                      \
    X(SHARED_DOWN_BIAS, "shared down bias")                                                                            \
    X(SHARED_WEIGHT, "shared expert gate")                                                                             \
    X(SHARED_WEIGHT_BIAS, "shared expert gate bias")                                                                   \
    X(EMBEDDING_NORM, "embedding norm")                                                                                \
    X(EMBEDDING_NORM_BIAS, "embedding norm bias")                                                                      \
    X(SINKS, "attention sinks")                                                                                        \
    X(QKV_ADAPTER_A, "qkv adapter A")                                                                                  \
    X(QKV_ADAPTER_B, "qkv adapter B")                                                                                  \
    X(OUTPUT_ADAPTER_A, "output adapter A")                                                                            \
    X(OUTPUT_ADAPTER_B, "output adapter B")                                                                            \
    X(UP_ADAPTER_A, "up adapter A")                                                                                    \
    X(UP_ADAPTER_B, "up adapter B")                                                                                    \
    X(DOWN_ADAPTER_A, "down adapter A")                                                                                \
    X(DOWN_ADAPTER_B, "down adapter B")
enum dtp_parameter {
#define DTP_PARAMETER_ENUM(suffix, text) DTP_PARAMETER_##suffix,
    DTP_PARAMETER_TABLE(DTP_PARAMETER_ENUM)
#undef DTP_PARAMETER_ENUM
        DTP_PARAMETER_COUNT
};
const char *dtp_parameter_text(enum dtp_parameter parameter);
/* A block as modules have it: q, k and v are one matrix, gate and up another, of experts [experts, 2 width, hidden] one
 * expert behind the other. Of a model whose layers have experts, or of those of its layers that have none. */
void dtp_parameter_block_kind(const struct dtp_transformer *transformer, bool experts, struct dtp_layer_kind *out);
/* Of a block's matrix with projections packed; its bias is the parameter after it. */
enum dtp_parameter dtp_parameter_of_matrix(enum dtp_layer_matrix_id matrix);

/* How tensor parallel ranks divide a tensor (Shoeybi et al. 2019): not at all, by rows of it, or by columns. What is
 * packed of several tensors is divided part by part: of q, k and v, of gate and up each rank has its heads or columns.
 * Rank i has the i-th `rows` (columns) of each part, of the last rank those that there are: a vocabulary that its ranks
 * do not divide ends inside of a slice. */
#define DTP_PARAMETER_CUT_TABLE(X) X(WHOLE, "whole") X(ROWS, "rows") X(COLUMNS, "columns")
enum dtp_parameter_way {
#define DTP_PARAMETER_CUT_ENUM(suffix, text) DTP_PARAMETER_CUT_##suffix,
    DTP_PARAMETER_CUT_TABLE(DTP_PARAMETER_CUT_ENUM)
#undef DTP_PARAMETER_CUT_ENUM
        DTP_PARAMETER_CUT_COUNT
};
const char *dtp_parameter_way_text(enum dtp_parameter_way way);
bool dtp_parameter_way_parse(const char *text, enum dtp_parameter_way *out);
enum dtp_parameter_way dtp_parameter_cut_way_of(enum dtp_parameter parameter);
#define DTP_PARAMETER_PARTS 3u
struct dtp_parameter_cut {
    enum dtp_parameter_way way;
    uint32_t parts;                       /* 1 to DTP_PARAMETER_PARTS; 0: nothing is said, one rank has all */
    uint64_t first_part;                  /* rows or columns of the first; the others have as many each */
    uint64_t whole_rows, whole_columns;   /* of the model's tensor */
    uint64_t whole_saved_offset_elements; /* saved_offset_elements of it */
};

struct dtp_parameter_tensor {
    uint64_t rows, columns;         /* rows 1: a vector */
    uint64_t offset_elements;       /* in the module */
    uint64_t extent_elements;       /* there: rows * columns, and the head's with their padding */
    uint64_t saved_offset_elements; /* in the module as checkpoints hold it, without the head's padding */
    bool decays;                    /* weight decay: matrices and tables do, vectors do not */
    double mean, deviation;         /* of the normal numbers it starts as; deviation 0: `mean` everywhere */
    bool exists;
    struct dtp_parameter_cut cut; /* of tensor parallel ranks' slices, which rows and columns are of */
};

/* Where elements of a rank's slice stand in the model: `count` runs of `run` elements, one behind the other from
 * `offset_elements` of the slice's module on, in the model's module as checkpoints hold it `stride` apart from
 * `saved_offset_elements` on. Of one run the stride says nothing. */
struct dtp_parameter_piece {
    uint64_t offset_elements, saved_offset_elements, run, stride, count;
};
/* The pieces of a tensor on rank `index` of those that divide it; returns how many, none where the rank has only
 * padding of it. */
uint32_t dtp_parameter_pieces(const struct dtp_parameter_tensor *tensor, uint32_t index,
                              struct dtp_parameter_piece out[DTP_PARAMETER_PARTS]);
struct dtp_parameter_module {
    struct dtp_parameter_tensor tensor[DTP_PARAMETER_COUNT]; /* by enum dtp_parameter, which is their order in memory */
    uint64_t used_elements;   /* of the tensors: the model's parameter count is the sum over modules */
    uint64_t extent_elements; /* of the tensors with the head's padding: what operations write gradients of */
    uint64_t elements;        /* with padding: a multiple of shard_group shards; 0 for a module without tensors */
    uint64_t shard_elements;  /* elements / shard_group, a multiple of DTP_PARAMETER_SHARD_ALIGNMENT */
};

/* Fills shard_elements, and elements from where the last tensor ends, for `shard_group` equal shards. */
void dtp_parameter_shard(struct dtp_parameter_module *module, uint64_t shard_group);
bool dtp_parameter_parse(const char *text, enum dtp_parameter *out);

/* Vectors that follow each other in a module, between its matrices, as one run: its elements [begin, begin + elements)
 * of the module, with what lies between them; `place` is where it stands among all runs, one behind the other. False:
 * there is none from *next on. */
struct dtp_parameter_run {
    uint64_t begin, elements, place;
};
bool dtp_parameter_next_vectors(const struct dtp_parameter_module *module, int *next, struct dtp_parameter_run *run);
/* Of all runs, to a multiple of DTP_PARAMETER_SHARD_ALIGNMENT. */
uint64_t dtp_parameter_vector_elements(const struct dtp_parameter_module *module);

/* L + 2. */
uint64_t dtp_parameter_module_count(const struct dtp_transformer *transformer);
/* Modules that are alike, by the first of them: embedding, the blocks of each kind of layer, head. Returns how many. */
#define DTP_PARAMETER_KINDS (2 + DTP_LAYER_MLPS)
struct dtp_parameter_alike {
    uint64_t module, count;
};
int dtp_parameter_alike_modules(const struct dtp_transformer *transformer,
                                struct dtp_parameter_alike out[DTP_PARAMETER_KINDS]);
/* Blocks of a kind are alike, so any of them gives the same. Matrices start with deviation 0.02, those that write into
 * the residual stream (output, down) with 0.02 / sqrt(2 L) (Radford et al. 2019), norms with 1 (those that add 1 to it,
 * with 0), biases with 0. */
void dtp_parameter_module(const struct dtp_transformer *transformer, uint64_t shard_group, uint64_t module,
                          struct dtp_parameter_module *out);
/* Says of each tensor of a slice's module how the model's, made of `whole`, was divided over `ranks`. */
void dtp_parameter_cut_module(const struct dtp_transformer *whole, uint32_t ranks, uint64_t module,
                              struct dtp_parameter_module *slice);
/* Whether a tensor's shape is one that its cut may have; a text may say anything. */
bool dtp_parameter_cut_fits(const struct dtp_parameter_tensor *tensor);
/* Tokens of the vocabulary that rank `index` of `ranks` has: [*first, *first + returned). */
uint64_t dtp_parameter_vocab_slice(uint64_t vocab, uint32_t ranks, uint32_t index, uint64_t *first);
/* The adapters of one block, of rank `rank`, in the order of the table: beside each matrix `low` columns of x A^T and
 * `out` rows of B; low 0: it has none. A starts as PEFT's (reset_lora_parameters in tuners/lora/layer.py:
 * kaiming_uniform_ with a = sqrt(5), of which this has the variance), B with zeros. */
#define DTP_PARAMETER_ADAPTERS 4
struct dtp_parameter_adapter {
    uint64_t in, low, out;
};
void dtp_parameter_adapter_module(const struct dtp_parameter_adapter adapters[DTP_PARAMETER_ADAPTERS], uint64_t rank,
                                  uint64_t shard_group, struct dtp_parameter_module *out);
/* A block whose matrices are packed to 4 bits is two modules: its vectors, in its place, and its matrices, of the
 * model's modules 2 L + 2 .. 3 L + 1, whose elements are bytes of two numbers each. A scale of fp32 stands for each
 * DTP_PARAMETER_PACKED_BLOCK of them, the same 64 numbers that kernels/kernels.h says. */
#define DTP_PARAMETER_PACKED_BLOCK 32u
/* Of a block whose experts ranks divide: what each has whole, in its place, and its experts' matrices, in the model's
 * modules L + 2 .. 2 L + 1, of which those of layers without experts are empty. `slice` is the model as one of the
 * ranks has it (dtp_plan_own_experts); tensors say where the model's block has them, as which checkpoints hold both. */
void dtp_parameter_split_experts(const struct dtp_transformer *whole, const struct dtp_transformer *slice,
                                 uint64_t shard_group, uint64_t expert_shard_group, struct dtp_parameter_module *rest,
                                 struct dtp_parameter_module *experts);
void dtp_parameter_split_packed(const struct dtp_parameter_module *block, uint64_t shard_group,
                                struct dtp_parameter_module *vectors, struct dtp_parameter_module *matrices);
/* Rows of the head's matrix as operations take it, columns of the logits: the vocabulary with its padding. */
uint64_t dtp_parameter_head_rows(const struct dtp_transformer *transformer);

/* Keys of random numbers that no shard group changes: of a tensor (initialisation), and of element `offset_elements` of
 * a module (stochastic rounding). A seed draws the same model as ever: the first DTP_PARAMETERS_DRAWN have keys of
 * their own in every module; what the table has beyond them starts as a constant, draws nothing and shares one, but for
 * adapters, which have the keys of the first in modules that have none of these, and for the matrices around experts,
 * which have those of the model's ends, as two of latent attention's matrices have; the other two
 * have those of qkv, which such a block has not. */
#define DTP_PARAMETERS_DRAWN 18u
uint32_t dtp_parameter_key(uint64_t module, enum dtp_parameter parameter);
uint64_t dtp_parameter_element_key(uint64_t module, uint64_t offset_elements);

#endif
