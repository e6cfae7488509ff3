/* Every computation a step program asks for, as a struct of arguments and a function.
 *
 * There are two tables of these functions: the CUDA one (kernels of this folder, cuBLASLt and cuDNN; asynchronous on a
 * stream, no allocation, no synchronisation, safe inside graph capture) and the host's (plain C in double, and the
 * BLAS), which is what the first is tested against. The interpreter fills the arguments of an operation once, when it
 * binds the program to an arena; pointers are of the table's memory.
 *
 * Shapes are row-major, [rows, width]. Activations, weights and gradients have an element type each; sums, statistics,
 * log-sum-exp and losses are float. Arithmetic inside a CUDA kernel is fp32. Pointers to activations and weights are
 * 16-byte aligned; widths may be odd (kernels then take a slower path, or say below that they do not). `accumulate`
 * adds to what the result holds, otherwise it is overwritten. All sums run in an order that depends on shapes only, so
 * a step repeats bit for bit.
 *
 * Functions return 0, or a code of the library that dtp_cuda_error_text names. CUDA's refuse ("invalid argument") norms
 * of rows longer than 4096 vectors of 16 bytes, or 4096 elements where they hold no whole vectors, norms of heads of
 * more than 256 such vectors or elements (wide: of more than 2048), attention with heads of more than 256 elements,
 * sinks of more than 8192 heads, fp16 weights without a master, grouped matmuls in 16 bits whose widths are no
 * multiples of 8, and elementwise work of 2^32 vectors and more. */
#ifndef DTP_KERNELS_H
#define DTP_KERNELS_H

#include <stdbool.h>
#include <stdint.h>

#ifdef __CUDACC__
#define DTP_ON_DEVICE __host__ __device__
#else
#define DTP_ON_DEVICE
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* Kernels compute in the first three. E4M3 and E5M2 are operands of matmuls, and what casts make and activations store.
 * INT8 is no number but a code: a place in a table of moments (adamw8), in runs on their way (pack8), or two of nf4. */
enum dtp_element {
    DTP_ELEMENT_FP32,
    DTP_ELEMENT_BF16,
    DTP_ELEMENT_FP16,
    DTP_ELEMENT_E4M3,
    DTP_ELEMENT_E5M2,
    DTP_ELEMENT_INT8
};

/* Numbers that change from step to step. One lies in device memory: the first six are written by a copy before the
 * step, the others by kernels during it, and read back a step late. */
struct dtp_step_scalars {
    float learning_rate;
    float correction1, correction2; /* 1 - beta^t of both moments: Kingma & Ba 2015, algorithm 1 */
    uint32_t step, seed;            /* of stochastic rounding */
    float loss_scale;               /* factor of the loss' gradient, which the optimizer takes out again; 0: none */
    float loss_sum;                 /* over the step's tokens on this rank */
    float gradient_norm, clip_scale;
    uint32_t skip; /* 1: loss or norm was not finite and the optimizer left everything as it was */
};

/* result[i] = scale * table[tokens[i] - first_token] + positions[i mod sequence]; of a part of the vocabulary, `vocab`
 * tokens from first_token on: rows of other tokens are 0, so that the parts' results add up to the whole's. */
struct dtp_embedding_args {
    const int32_t *tokens;
    const void *table, *positions; /* [vocab, width]; [sequence, width] or NULL */
    void *result;                  /* [rows, width] */
    uint64_t rows;
    uint32_t width, vocab, sequence;
    float scale;
    enum dtp_element element, result_element; /* of the tables; of the result */
    uint32_t first_token;
};

/* table_gradient[t] += scale * the sum of the gradient rows whose token is t, in the order of `order`; rows no token
 * names stay as they are. `order` lists rows by token, `starts[u]` tells where those of the u-th distinct token begin
 * (starts[*distinct] = rows); both are made on the host for each micro-batch. Of a part of the vocabulary tokens
 * outside of it are left out, and t counts from first_token; positions take all rows. */
struct dtp_embedding_backward_args {
    const void *gradient; /* [rows, width] */
    const int32_t *tokens, *order, *starts, *distinct;
    void *table_gradient, *positions_gradient; /* the latter [sequence, width] or NULL */
    uint64_t rows;
    uint32_t width, vocab, sequence;
    float scale;
    enum dtp_element element, gradient_element; /* of `gradient`; of the tables' gradients */
    bool accumulate_positions;
    uint32_t first_token;
};

/* Wherever there is an `amax` that is not NULL, it is raised to the largest magnitude of what is written, as rounded;
 * that of numbers which are none counts as nothing. Who makes an fp8 matmul's operand so spares a pass over it. */

/* mean NULL: RMSNorm, result = x * rsqrt(mean(x^2) + epsilon) * (weight_offset + weight); else LayerNorm with bias (may
 * be NULL). An addend [rows, width] that is not NULL is added to that: the residual stream, to what a branch returned.
 * x_row: elements from one row of x to the next, where the norm is over the first `width` of them alone (a latent
 * beside the keys' part that rope turns); 0: width. Backward's residual_gradient and addend lie as x does. */
struct dtp_norm_args {
    const void *x, *weight, *bias, *addend;
    void *result;
    float *inverse_deviation, *mean; /* [rows] each, written */
    float *amax;                     /* of the result */
    uint64_t rows;
    uint32_t width, x_row;
    float epsilon, weight_offset;
    enum dtp_element element, weight_element;
};

/* residual_gradient (+)= the gradient of x; weight and bias gradients by way of partial sums in `workspace`. Of a
 * frozen weight there is no gradient: weight_gradient, bias_gradient and workspace are NULL, of qk_norm_backward too.
 */
#define DTP_PARTIAL_SUM_ROWS 264u /* workspace: 2 * DTP_PARTIAL_SUM_ROWS * width floats */
struct dtp_norm_backward_args {
    const void *gradient, *x, *weight; /* gradient of the norm's result */
    const float *inverse_deviation, *mean;
    void *residual_gradient;               /* [rows, width] */
    const void *addend;                    /* what is added to, of the same shape; NULL: residual_gradient itself */
    void *weight_gradient, *bias_gradient; /* the latter may be NULL */
    float *workspace;
    float *amax; /* of the residual's gradient */
    uint64_t rows;
    uint32_t width, x_row;
    float weight_offset;
    enum dtp_element element, weight_element, gradient_element; /* activations; weight; weight_gradient */
    bool add_to_residual;                                       /* false: residual_gradient is overwritten */
    bool accumulate;                                            /* weight and bias gradients */
};

/* RoPE in place on q and k of a packed qkv [rows, (heads + 2 kv_heads) * head_dim]; a the first half of a head, b the
 * second: (a, b) -> (a cos - b sin, a sin + b cos). `inverse` is the transposed rotation, its gradient. */
struct dtp_rotary_args {
    void *qkv;
    const float *cosines, *sines; /* [sequence, head_dim / 2] */
    uint64_t rows;
    uint32_t sequence, heads, kv_heads, head_dim;
    enum dtp_element element;
    bool inverse;
};

/* RMSNorm in place of each head of q and of k in a packed qkv (as rotary's): x * rsqrt(mean(x^2) + epsilon) *
 * (weight_offset + weight). `raw` receives q and k as they were, which backward reads. `wide`: all heads of q are
 * normed as one vector, all of k as another. */
struct dtp_qk_norm_args {
    void *qkv;
    const void *weight; /* [2, head_dim]: of q, of k; wide: [heads * head_dim], [kv_heads * head_dim]; NULL: of 1 */
    void *raw;          /* [rows, heads + kv_heads, head_dim] */
    float *inverse_deviation; /* [rows, heads + kv_heads], written; wide: [rows, 2] */
    uint64_t rows;
    uint32_t heads, kv_heads, head_dim;
    float epsilon, weight_offset;
    enum dtp_element element, weight_element;
    bool wide;
};
/* The gradients of q and k in a packed gradient become, in place, those of what was normed. */
struct dtp_qk_norm_backward_args {
    void *qkv_gradient;
    const void *raw, *weight;
    const float *inverse_deviation;
    void *weight_gradient; /* as the weight */
    float *workspace;      /* DTP_PARTIAL_SUM_ROWS floats for each element of the weight */
    uint64_t rows;
    uint32_t heads, kv_heads, head_dim;
    float weight_offset;
    enum dtp_element element, weight_element, gradient_element; /* activations; weight; weight_gradient */
    bool accumulate, wide;
};

/* swiglu: `up` is [rows, 2 width], gate first, result = silu(gate) * up; geglu: gelu(gate) * up; gelu (tanh form) and
 * relu: [rows, width]. swiglu_clamped, gated too: gate = min(gate, LIMIT), up within LIMIT of 0, result = gate *
 * sigmoid(ALPHA gate) * (up + 1); no gradient where one is clamped (gpt-oss: swiglu_alpha and swiglu_limit of
 * Transformers' modeling_gpt_oss.py). */
enum dtp_activation_kind {
    DTP_ACTIVATION_SWIGLU,
    DTP_ACTIVATION_GELU,
    DTP_ACTIVATION_RELU,
    DTP_ACTIVATION_GEGLU,
    DTP_ACTIVATION_SWIGLU_CLAMPED
};
#define DTP_SWIGLU_CLAMPED_ALPHA 1.702f
#define DTP_SWIGLU_CLAMPED_LIMIT 7.0f
struct dtp_activation_args {
    const void *up;
    void *result; /* [rows, width] */
    void *stored; /* not NULL: `up` once more, as E4M3 without a scale */
    float *amax;  /* of the result */
    uint64_t rows;
    uint32_t width;
    enum dtp_activation_kind kind;
    enum dtp_element element;
    bool up_is_stored; /* `up` is what was stored */
};
struct dtp_activation_backward_args {
    const void *gradient, *up; /* gradient of the result */
    void *up_gradient;         /* shaped as `up`; may be `up` itself */
    void *result;              /* not NULL: forward's result is made again; may be `gradient` itself */
    float *amax;               /* of up_gradient */
    uint64_t rows;
    uint32_t width;
    enum dtp_activation_kind kind;
    enum dtp_element element;
    bool up_is_stored; /* as above; the gradient then lies elsewhere */
};

/* bias_gradient[j] (+)= sum of column j; workspace as norm_backward's. */
struct dtp_bias_backward_args {
    const void *gradient; /* [rows, width] */
    void *bias_gradient;
    float *workspace;
    uint64_t rows;
    uint32_t width;
    enum dtp_element element, gradient_element;
    bool accumulate;
};

/* Cross entropy and its gradient in one pass over logits [rows, stride], `vocab` of each row used: row_loss[i] =
 * logsumexp - logit[target]; the logits become (softmax - onehot) * scale, the padding 0. softcap c > 0: the loss is
 * that of c tanh(logit / c). A negative target counts for nothing: loss and gradient 0. Of a part of the vocabulary,
 * `vocab` tokens from first_token on, `parts` has what all parts say of each row, [part_count, rows]: then logsumexp
 * and the target's logit are of all of them. On CUDA a stride is a multiple of 16 bytes, as parameter_layout.h pads
 * rows. */
struct dtp_loss_args {
    void *logits;
    const int32_t *targets;
    float *row_loss;
    uint64_t rows;
    uint32_t vocab, stride;
    float scale, softcap;
    const struct dtp_step_scalars *scalars; /* whose loss_scale the gradient is multiplied by; NULL: by nothing */
    enum dtp_element element;
    const struct dtp_loss_part *parts; /* or NULL: these are all logits */
    uint32_t part_count, first_token;
};
/* What one part of the vocabulary says of a row: the largest logit, the sum of exp(logit - largest), and the target's
 * logit, 0 where another part has it. */
struct dtp_loss_part {
    float largest, sum, target;
};
struct dtp_loss_parts_args {
    const void *logits;
    const int32_t *targets;
    struct dtp_loss_part *part; /* [rows] */
    uint64_t rows;
    uint32_t vocab, stride, first_token;
    float softcap;
    enum dtp_element element;
};
/* *total (+)= sum of values */
struct dtp_sum_args {
    const float *values;
    float *total;
    uint64_t count;
    bool accumulate;
};

/* partial[0 .. DTP_SQUARE_SUM_PARTIALS), all written, add up to the sum of squares. clip_scale adds up those of all
 * modules and sets gradient_norm, clip_scale = min(1, clip / norm) (1 where clip is 0) and skip. Under a loss scale
 * gradients are that many times what they are: the norm is that without, and clip_scale has the scale's inverse in it.
 */
#define DTP_SQUARE_SUM_PARTIALS 512u
#define DTP_SQUARE_SUM_RANGES 16u
struct dtp_square_sum_args {
    const void *values;
    float *partial;
    uint64_t count;
    enum dtp_element element;
    uint32_t skip_count; /* ranges of elements, in order, that another rank counts */
    uint64_t skip_begin[DTP_SQUARE_SUM_RANGES], skip_end[DTP_SQUARE_SUM_RANGES];
};
struct dtp_clip_scale_args {
    const float *partials;
    uint64_t count;
    float clip;
    struct dtp_step_scalars *scalars;
};

/* AdamW (Loshchilov & Hutter 2019: decoupled decay) on `count` elements. master NULL: the weights themselves are
 * updated, rounded to nearest, or stochastically by the counter RNG keyed by (seed, step, first_element + i); bf16
 * moments are rounded as the weights are: to nearest, beta2 = 0.999 would never shrink one (half a step of bf16 is
 * 1/512 of it). With a master, weights are its nearest. Decay applies inside the ranges, which count from this call's
 * first element.
 *
 * adamw8: moments are places in the tables of dynamic_map.h, signed and unsigned, times a scale for each block of
 * DTP_MOMENT_BLOCK, the largest of its magnitudes (Dettmers et al. 2022), counted from that of 0, so that memory of
 * zeros is moments of 0 whatever the scale; `count` is whole blocks. The step is taken with the new moments before they
 * are rounded (torchao's AdamW8bit, optim/adam.py). sgd: weights -= rate * (gradient + decay * weight), as
 * torch.optim.SGD; with a moment1, that is first added to beta1 times it, which is the step. Moment2 is NULL. A factor
 * above 0 stands for clip_scale: the gradient is a step that was made of clipped ones (Muon). */
#define DTP_DECAY_RANGES 16u
#define DTP_MOMENT_BLOCK 256u /* neighbours that share a scale of adamw8 */
struct dtp_adamw_args {
    const void *gradient;
    void *weights;
    float *master; /* or NULL */
    void *moment1, *moment2;
    float *scale1, *scale2;        /* of adamw8's blocks */
    uint64_t count, first_element; /* the latter in the model's own numbering, so that shards round alike */
    float beta1, beta2, epsilon, decay, factor;
    uint32_t range_count;
    uint64_t range_begin[DTP_DECAY_RANGES], range_end[DTP_DECAY_RANGES];
    const struct dtp_step_scalars *scalars;
    enum dtp_element gradient_element, weight_element, moment_element;
    bool stochastic_rounding;
};

/* Muon's passes over a matrix of `count` elements, around products of it (torch/optim/_muon.py). muon_momentum:
 * momentum
 * += (1 - factor) (gradient - momentum), the gradient times clip_scale; `result`, in bf16, is the gradient and the
 * momentum mixed once more (Nesterov), `partial` [DTP_SQUARE_SUM_PARTIALS] adds up to its squares. muon_unit: values,
 * in bf16, are divided by their norm, which is rounded to bf16 as torch has it, or by epsilon. Both leave a step alone
 * that is skipped. */
#define DTP_MUON_EPSILON 1e-7
struct dtp_muon_momentum_args {
    const void *gradient;
    void *momentum, *result;
    float *partial;
    uint64_t count;
    float factor;
    const struct dtp_step_scalars *scalars;
    enum dtp_element gradient_element, momentum_element;
};
struct dtp_muon_unit_args {
    void *values;
    const float *partial;
    uint64_t count;
    const struct dtp_step_scalars *scalars;
};

struct dtp_cast_args {
    const void *values;
    void *result;
    uint64_t count;
    enum dtp_element element, result_element;
};
/* total[i] += values[i] */
struct dtp_add_args {
    const void *values;
    void *total;
    uint64_t count;
    enum dtp_element element, total_element;
};
/* total[i] = parts[0][i] + parts[1][i] + ..., in that order, then the total before where it accumulates; rounded once,
 * to the totals' type. parts is [part_count, count]. */
struct dtp_sum_parts_args {
    const void *parts;
    void *total;
    uint64_t count;
    uint32_t part_count;
    enum dtp_element element, total_element;
    bool accumulate;
};
/* Numbers in 8 bits, as PyTorch's quantization_perchannel_hook sends them (torch/distributed/algorithms/
 * ddp_comm_hooks/quantization_hooks.py): each DTP_PACK8_RUN neighbours have codes of their own, 256 steps from the
 * least of them, or 0, to the largest, or 0. A part has two floats a run, these, and a byte a number behind; it is
 * `part_bytes` long. A number that is not finite makes all of its run so, whoever unpacks it. sum: total[i] = what part
 * 0 says, part 1, ..., added up as floats in that order, so that all ranks have the same. */
#define DTP_PACK8_RUN 512u
struct dtp_pack8_args {
    const void *values;
    void *part;
    uint64_t count;
    enum dtp_element element;
};
struct dtp_sum_packed8_args {
    const void *parts; /* [part_count] of part_bytes */
    void *total;
    uint64_t count, part_bytes;
    uint32_t part_count;
    enum dtp_element element; /* of the total */
};
/* fp8. *amax is raised to the largest magnitude of `values`. quantize: with s = (largest number of result_element) /
 * max(*amax, 1e-12), as torchao's tensorwise scaling has it (amax_to_scale in float8_utils.py), result and transposed,
 * of which one may be NULL, are fp8(values * s), and *scale becomes 1 / s, which a matmul multiplies by. Delayed, s is
 * scale[1], which is only read, and *amax, where there is one, is raised. Rows and columns are multiples of 16.
 * from_history: of each of `count` tensors, whose last DTP_AMAX_HISTORY largest magnitudes are `history`, the newest
 * first: scale[0] and scale[1], DTP_AMAX_SCALE floats apart, become 1 / s and s, of the largest that is finite (1 where
 * there is none above 0); the newest becomes the last of the others, the oldest of which goes, and 0 takes its place.
 * The first `wide` are E4M3, the others E5M2. */
struct dtp_amax_args {
    const void *values;
    float *amax;
    uint64_t count;
    enum dtp_element element;
};
#define DTP_FP8_MULTIPLE 16u
struct dtp_quantize_args {
    const void *values; /* [rows, columns] */
    float *amax;        /* delayed: may be NULL */
    float *scale;
    void *result, *transposed; /* [rows, columns]; [columns, rows] */
    uint64_t rows, columns;
    enum dtp_element element, result_element;
    bool delayed;
};
#define DTP_AMAX_HISTORY 1024u
#define DTP_AMAX_SCALE 4u
struct dtp_from_history_args {
    float *history; /* [count, DTP_AMAX_HISTORY] */
    float *scale;
    uint64_t count, wide;
};
#include "kernels/scaling.h"

/* NF4 (nf4.h): pack4 makes codes of `values` and the largest magnitude of each DTP_NF4_BLOCK of them, unpack4 numbers
 * of both. `count` is whole blocks, `codes` half as many bytes. */
#define DTP_NF4_BLOCK 64u
struct dtp_pack4_args {
    const void *values;
    uint8_t *codes;
    float *largest;
    uint64_t count;
    enum dtp_element element;
};
struct dtp_unpack4_args {
    const uint8_t *codes;
    const float *largest;
    void *result;
    uint64_t count;
    enum dtp_element element;
};
struct dtp_zero_args {
    void *values;
    uint64_t bytes;
};
/* Normal numbers by Philox4x32-10 and Box-Muller, keyed by (seed, tensor, first_element + i); deviation 0: `mean`. Of a
 * part of a tensor's columns elements are runs of `run`, which stand `stride` apart in it. */
struct dtp_initialise_args {
    void *values;
    uint64_t count, first_element, seed;
    uint32_t tensor;
    float mean, deviation;
    enum dtp_element element;
    uint64_t run, stride; /* run 0: one behind the other */
};

#include "kernels/attention_arguments.h"

/* `vectors` of `length` fp32 elements each become orthonormal, in their order (modified Gram-Schmidt, twice: Giraud et
 * al. 2005). One that the others span, but for rounding (below DTP_ORTHOGONALIZE_LEAST of what it was), gives way to
 * numbers that are drawn by its place, so that a factor keeps its rank; one with elements that are not finite stays so.
 * vectors <= length, at most DTP_ORTHOGONALIZE_VECTORS. */
#define DTP_ORTHOGONALIZE_VECTORS 1024u
#define DTP_ORTHOGONALIZE_LEAST 1e-5
struct dtp_orthogonalize_args {
    float *values;
    uint64_t length, element_stride, vector_stride; /* in elements */
    uint32_t vectors;
};

#include "kernels/matmul_arguments.h"
static inline float dtp_matmul_addend_scale(const struct dtp_matmul_args *arguments)
{
    return arguments->addend_scale > 0 || arguments->addend_scale < 0 ? arguments->addend_scale : 1.0f;
}

#include "kernels/experts.h"

/* X(name, arguments). `self` is the table's own state: handles, plan caches. */
#define DTP_KERNEL_TABLE(X)                                                                                            \
    X(embedding, dtp_embedding_args)                                                                                   \
    X(embedding_backward, dtp_embedding_backward_args)                                                                 \
    X(norm, dtp_norm_args)                                                                                             \
    X(norm_backward, dtp_norm_backward_args)                                                                           \
    X(rotary, dtp_rotary_args)                                                                                         \
    X(latent_heads, dtp_latent_heads_args)                                                                             \
    X(latent_heads_backward, dtp_latent_heads_backward_args)                                                           \
    X(qk_norm, dtp_qk_norm_args)                                                                                       \
    X(qk_norm_backward, dtp_qk_norm_backward_args)                                                                     \
    X(activation, dtp_activation_args)                                                                                 \
    X(activation_backward, dtp_activation_backward_args)                                                               \
    X(bias_backward, dtp_bias_backward_args)                                                                           \
    X(loss, dtp_loss_args)                                                                                             \
    X(loss_parts, dtp_loss_parts_args)                                                                                 \
    X(sum, dtp_sum_args)                                                                                               \
    X(square_sum, dtp_square_sum_args)                                                                                 \
    X(clip_scale, dtp_clip_scale_args)                                                                                 \
    X(adamw, dtp_adamw_args)                                                                                           \
    X(adamw8, dtp_adamw_args)                                                                                          \
    X(sgd, dtp_adamw_args)                                                                                             \
    X(muon_momentum, dtp_muon_momentum_args)                                                                           \
    X(muon_unit, dtp_muon_unit_args)                                                                                   \
    X(cast, dtp_cast_args)                                                                                             \
    X(add, dtp_add_args)                                                                                               \
    X(orthogonalize, dtp_orthogonalize_args)                                                                           \
    X(sum_parts, dtp_sum_parts_args)                                                                                   \
    X(pack8, dtp_pack8_args)                                                                                           \
    X(sum_packed8, dtp_sum_packed8_args)                                                                               \
    X(amax, dtp_amax_args)                                                                                             \
    X(quantize, dtp_quantize_args)                                                                                     \
    X(scaled_quantize, dtp_scaled_quantize_args)                                                                       \
    X(from_history, dtp_from_history_args)                                                                             \
    X(pack4, dtp_pack4_args)                                                                                           \
    X(unpack4, dtp_unpack4_args)                                                                                       \
    X(zero, dtp_zero_args)                                                                                             \
    X(initialise, dtp_initialise_args)                                                                                 \
    X(attention, dtp_attention_args)                                                                                   \
    X(attention_backward, dtp_attention_backward_args)                                                                 \
    X(sinks, dtp_sinks_args)                                                                                           \
    X(sinks_backward, dtp_sinks_backward_args)                                                                         \
    X(merge_attention, dtp_merge_attention_args)                                                                       \
    X(merge_gradients, dtp_merge_gradients_args)                                                                       \
    X(columns, dtp_columns_args)                                                                                       \
    X(lay_out_heads, dtp_lay_out_heads_args)                                                                           \
    X(router, dtp_router_args)                                                                                         \
    X(router_backward, dtp_router_backward_args)                                                                       \
    X(received, dtp_received_args)                                                                                     \
    X(push_rows, dtp_push_rows_args)                                                                                   \
    X(permute, dtp_permute_args)                                                                                       \
    X(unpermute, dtp_unpermute_args)                                                                                   \
    X(shared_gate_backward, dtp_shared_gate_backward_args)                                                             \
    X(expert_activation, dtp_expert_activation_args)                                                                   \
    X(expert_activation_backward, dtp_expert_activation_backward_args)                                                 \
    X(expert_bias, dtp_expert_bias_args)                                                                               \
    X(expert_bias_backward, dtp_expert_bias_backward_args)                                                             \
    X(grouped_matmul, dtp_grouped_matmul_args)                                                                         \
    X(matmul, dtp_matmul_args)
struct dtp_kernels {
    void *self;
#define X(name, args) int (*name)(void *self, const struct args *arguments, void *stream);
    DTP_KERNEL_TABLE(X)
#undef X
};

/* The reference: double inside, any element type; loops for matmul, which the host device replaces by OpenBLAS. Some
 * take scratch memory from the heap: their only failure is that there is none. `stream` is ignored: done when they
 * return.
 */
enum { DTP_REFERENCE_NO_MEMORY = 1 };
#define X(name, args) int dtp_reference_##name(void *self, const struct args *arguments, void *stream);
DTP_KERNEL_TABLE(X)
#undef X

/* Our kernels on CUDA, `stream` a cudaStream_t. All of the table but matmul (cuBLASLt, in exec/); attention here is the
 * slow and clear one, oracle of the others. */
#define X(name, args) int dtp_cuda_##name(void *self, const struct args *arguments, void *stream);
DTP_KERNEL_TABLE(X)
#undef X
/* The same attention by tensor cores: elements of 16 bits, heads of up to 256 of them in whole 16 bytes, at least
 * compute capability 8.0. Weights and slopes of scores are rounded to the element. Backward's workspace has a float for
 * each query of each head. */
int dtp_cuda_attention_mma(void *self, const struct dtp_attention_args *arguments, void *stream);
int dtp_cuda_attention_mma_backward(void *self, const struct dtp_attention_backward_args *arguments, void *stream);
const char *dtp_cuda_error_text(int code);

#ifdef __cplusplus
}
#endif
#endif
