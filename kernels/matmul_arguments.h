/* Arguments of a matmul: a part of kernels.h, which alone includes it, behind the element types. */
#ifndef DTP_MATMUL_ARGUMENTS_H
#define DTP_MATMUL_ARGUMENTS_H

/* result[m, n] = scale a b + addend_scale addend (NULL: nothing) + bias[n] (or NULL). a is stored [m, k], or [k, m]
 * where a_transposed; b [k, n], or [n, k] where b_transposed; leading dimensions count elements of a stored row. A
 * linear layer forward: b_transposed with b = weight [out, in]; its input gradient: neither; its weight gradient [out,
 * in]: a_transposed with a = gradient [rows, out] and b = input [rows, in]. The addend may be the result (accumulation)
 * or another matrix (residual). GELU_AUX: aux (as result) receives the product with bias, result its tanh GELU; DGELU:
 * result = product * gelu'(aux). bias_gradient, with a_transposed only: sum over k of a, [m], element of the result;
 * overwritten, or added to where addend is the result. Of fp8, a is E4M3 or E5M2 and b E4M3, a plain and b transposed,
 * as tensor cores have it; operands are multiplied by their scales, *a_scale and *b_scale or those of their rows and
 * blocks (scaling.h; both of E4M3 then), a bias has the result's element, and there are neither gradients of biases nor
 * epilogues. */
enum dtp_epilogue { DTP_EPILOGUE_NONE, DTP_EPILOGUE_GELU_AUX, DTP_EPILOGUE_DGELU };
struct dtp_matmul_args {
    const void *a, *b, *addend, *bias;
    void *result, *aux, *bias_gradient;
    const float *a_scale, *b_scale; /* of fp8; else NULL */
    enum dtp_scaling a_scaling, b_scaling;
    bool fast; /* sums of fp8 products may be kept in fewer bits than fp32's */
    void *workspace;
    uint64_t workspace_bytes;
    uint64_t m, n, k;
    uint64_t lda, ldb, ldd;                   /* the addend has ldd */
    enum dtp_element element, result_element; /* of a, b, bias, aux; of result, addend and bias_gradient */
    bool a_transposed, b_transposed;
    enum dtp_epilogue epilogue;
    uint32_t sms;       /* that it may count on; 0: all. For whoever chooses algorithms */
    float scale;        /* 0: 1; others without a bias alone */
    float addend_scale; /* the same; others where the addend is not the result, of operands that are not fp8 */
    bool alike;         /* every rank makes the same bits of it: the algorithm is not chosen by time */
};
static inline float dtp_matmul_scale(const struct dtp_matmul_args *arguments)
{
    return arguments->scale > 0 || arguments->scale < 0 ? arguments->scale : 1.0f;
}

#endif
