/* What the casts around fp8 and fp4 matmuls move, by the recipe (base/fp8_recipe.def) and by whose code makes them.
 *
 * torchao, compiled   What made an operand also has its largest elements at hand, so the pass for these is its own; the
 *                     cast reads 2 bytes and writes 1. Backward has them again: operands are made anew of what their
 *                     makers keep, other than for products in 16 bits, and casts that matmuls want by columns are
 *                     written so. A scale by columns is sought anew, in kernels that walk down columns. Of weights that
 *                     FSDP2 gathered in fp8 the copy by columns is as large as what it is made of; the compiler keeps
 *                     the MLP's for backward, beyond the release of what was gathered, and makes those of attention
 *                     again: so says the graph of PyTorch 2.11 with torchao 0.17, printed on a CPU, and one run on four
 *                     H200 had the 4.3 GB more that this is.
 * torchao, eager      abs, max, cast to fp32, product with the scale, clamp and cast to fp8 are kernels of their own:
 *                     4 + 2 + 6 + 8 + 8 + 5 bytes of a bf16 element (float8_scaling_utils.py,
 * float8_training_tensor.py, float8_utils.py), and again for each product that reads it (float8_linear.py); a matmul
 * that wants the other layout copies what it is given (float8_ops.py, preprocess_addmm): 2 more. Transformer Engine One
 * kernel reads 2 bytes and writes rows and columns, where backward multiplies the other way round: all formats on
 * Hopper, those of blocks everywhere. Delayed scaling is in the kernel before (LayerNormLinear), so that rows cost
 * nothing; others seek the largest in a pass of their own, but for blocks. Casts of weights are kept over the step
 * (is_first_microbatch). this project        As delayed scaling is. */
#ifndef DTP_FP8_CASTS_H
#define DTP_FP8_CASTS_H

#include "net/layer_kind.h"
#include "plan/rules.h"

/* How a cast's kernel goes over a tensor, which is how fast it is: along rows; along rows and writing columns side by
 * side; down columns, whose largest element it seeks first; in tiles that the copy engine of an SM brings and takes, so
 * that it is as fast as a stream (Transformer Engine's). That is what its own benchmark says
 * (docs/examples/gemm_profiling: with casts less without, 24 layers' linears of 4096 and 16384 over 15,872
 * tokens): 5.3, 5.0 and 4.7 TB/s of this file's bytes on B300 by current scaling, MXFP8 and NVFP4, 4.0 on H200 by
 * current scaling, where streams are counted with 5.0 and 3.4. */
enum dtp_fp8_walk {
    DTP_FP8_ALONG_ROWS,
    DTP_FP8_TRANSPOSING,
    DTP_FP8_DOWN_COLUMNS,
    DTP_FP8_STREAMING,
    DTP_FP8_WALK_COUNT
};
struct dtp_fp8_cast {
    double bytes;          /* through HBM, of an element */
    double gathered_bytes; /* where it is cast before tensor parallel ranks gather it: of an element of all they have */
    uint32_t kernels;
    enum dtp_fp8_walk walk;
};
/* Of a linear. ROWS and COLUMNS of its result's gradient: for its input's gradient, for its weight's. */
enum dtp_fp8_operand {
    DTP_FP8_INPUT,
    DTP_FP8_WEIGHT,
    DTP_FP8_INPUT_AGAIN,
    DTP_FP8_WEIGHT_AGAIN,
    DTP_FP8_GRADIENT_ROWS,
    DTP_FP8_GRADIENT_COLUMNS,
    DTP_FP8_OPERAND_COUNT
};
struct dtp_fp8_casts {
    struct dtp_fp8_cast of[DTP_FP8_OPERAND_COUNT];
    bool weights_once;       /* a step, not a micro-step */
    bool makes_inputs_again; /* backward keeps no input that a pointwise kernel made */
    bool kept;               /* inputs stay for backward as casts, and weights over the step */
    bool keeps_columns;      /* what is gathered in fp8 is kept by columns for backward: of the MLP's matrices */
    uint64_t scratch_bytes;  /* of an element while it is cast */
};
/* All 0 without a recipe. */
void dtp_fp8_casts_of(const struct dtp_plan *plan, const struct dtp_gpu *gpu, struct dtp_fp8_casts *out);

/* Whether forward copies this matrix by columns and backward keeps the copy, see keeps_columns. */
static inline bool dtp_fp8_keeps_matrix(const struct dtp_fp8_casts *casts, enum dtp_layer_matrix_id matrix)
{
    return casts->keeps_columns && (matrix == DTP_MATRIX_GATE || matrix == DTP_MATRIX_UP || matrix == DTP_MATRIX_DOWN);
}

/* Bytes that casts of a linear [tokens, in] x [in, out] move, by how their kernels walk: in a micro-step that casts
 * weights once in `accumulate`. `gathered` of tensor parallel ranks' rows; DTP_FP8_OPERAND_COUNT: none is. */
struct dtp_fp8_traffic {
    double bytes[DTP_FP8_WALK_COUNT];
};
struct dtp_fp8_traffic dtp_fp8_traffic_of(const struct dtp_fp8_casts *casts, double tokens, double out, double in,
                                          double accumulate, enum dtp_fp8_operand gathered);

/* Bytes of a token that casts of attention's inputs, and backward of its result's gradient, move in a layer
 * (Transformer Engine's mxfp8_quantize_fast_path: queries, keys and values both ways, which backward reads in place of
 * what 16 bits keep, and the gradient, beside which it has the result and the gradient in 16 bits). */
struct dtp_fp8_core {
    double forward, backward;
};
struct dtp_fp8_core dtp_fp8_core_bytes(const struct dtp_fp8_casts *casts, const struct dtp_plan *plan,
                                       const struct dtp_transformer *transformer);
/* Bytes of an element of a layer's matrices that a gather of casts (fp8_param_gather) saves beside one of 16 bits.
 * Casts whose scales are of blocks of 32 lie in memory as no gather may cut them: such weights are gathered in 16 bits,
 * in the place of the gradients, and each rank casts all (Megatron-Core, distributed/param_and_grad_buffer.py,
 * reuse_grad_buf_for_mxfp8_param_ag; _post_param_sync). */
uint64_t dtp_fp8_gather_saves(const struct dtp_plan *plan);
/* What is gathered of so many elements, dtp_plan_gathers_casts. */
uint64_t dtp_fp8_wire_bytes(const struct dtp_plan *plan, uint64_t elements);
/* Bytes of the casts of weights that stand over the step, or are the parameters (fp8_param_gather), of so many
 * elements: rows, and columns where they differ. */
uint64_t dtp_fp8_standing_bytes(const struct dtp_plan *plan, const struct dtp_gpu *gpu, uint64_t elements);

#endif
