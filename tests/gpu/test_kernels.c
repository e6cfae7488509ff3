/* Every CUDA kernel against the plain C one.   test_kernels [--small] [--seed N] | --bench [PART OF A NAME]
 *
 * The cases stand in attention_kernels.c, block_kernels.c, context_kernels.c, expert_kernels.c,
 * quantize_kernels.c, root_kernels.c and update_kernels.c, what is allowed in kernel_tests.h. */
#include "gpu/kernel_tests.h"

#include <cuda_runtime.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

bool small;
enum dtp_element halves = DTP_ELEMENT_BF16;

int main(int count, char **arguments)
{
    int devices = 0;
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
        printf("skipped: no CUDA device (%s)\n", cudaGetErrorString(cudaGetLastError()));
        return 77;
    }
    random_state = (uint64_t)time(NULL);
    for (int i = 1; i < count; i++)
        if (strcmp(arguments[i], "--bench") == 0)
            return bench(i + 1 < count ? arguments[i + 1] : "");
        else if (strcmp(arguments[i], "--small") == 0)
            small = true;
        else if (strcmp(arguments[i], "--seed") == 0 && i + 1 < count)
            random_state = strtoull(arguments[++i], NULL, 10);
        else
            return fprintf(stderr, "usage: test_kernels [--small] [--seed N] | --bench [PART]\n"), 2;
    printf("seed %llu\n", (unsigned long long)random_state);
    void (*const tests[])(void) = {test_norms,      test_rotaries, test_qk_norms, test_activations, test_embeddings,
                                   test_losses,     test_sums,     test_biases,   test_optimizer,   test_elementwises,
                                   test_attentions, test_contexts, test_experts};
    for (size_t i = 0; i < COUNT(tests); i++)
        tests[i]();
    test_quantizes();
    test_mma_attentions();
    halves = DTP_ELEMENT_FP16;
    test_mma_attentions();
    for (size_t i = 0; i < COUNT(tests); i++)
        tests[i]();
    case_begin("end");
    printf("%d of %d results are right\n", compared - failures, compared);
    return failures > 0;
}
