/* What the tests of kernels share, and the tests that main in test_kernels.c runs, by file.
 *
 * What is allowed: the device computes in fp32 what the reference computes in double, and both round their result to
 * the element. A result in bf16 may then fall on two neighbours: 1 unit in the last place (2^-8 of the value or less).
 * A result in fp32 is off by a few units of 2^-24 of the largest thing that was added on the way: `absolute` names it,
 * times the depth of the sum (a tree over a row: some 8 levels and the terms a thread adds itself). */
#ifndef DTP_TEST_GPU_KERNEL_TESTS_H
#define DTP_TEST_GPU_KERNEL_TESTS_H

#include "gpu/tensors.h"

#define COUNT(array) (sizeof(array) / sizeof *(array))
#define EPSILON 5.960464477539063e-8 /* 2^-24 */

extern bool small;              /* sizes that a sanitizer gets through; main sets it */
extern enum dtp_element halves; /* elements of 16 bits: bf16, then fp16 */

static inline const char *named(enum dtp_element element)
{
    static const char *const names[] = {"fp32", "bf16", "fp16", "e4m3", "e5m2"};
    return names[element];
}

static inline double ulps_of(enum dtp_element element)
{
    return element == DTP_ELEMENT_FP32 ? 4 : 1;
}

/* block_kernels.c */
void test_norms(void);
void test_rotaries(void);
void test_qk_norms(void);
void test_activations(void);
void test_biases(void);
void test_attentions(void);

/* attention_kernels.c */
void test_mma_attentions(void);

/* expert_kernels.c */
void test_experts(void);

/* root_kernels.c */
void test_embeddings(void);
void test_losses(void);

/* update_kernels.c */
void test_sums(void);
void test_optimizer(void);
void test_elementwises(void);

/* context_kernels.c */
void test_contexts(void);

/* quantize_kernels.c */
void test_quantizes(void);

#endif
