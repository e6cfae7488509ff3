/* What the benchmarks of kernels share: tensors from one pool, and a line for each kernel (bench_kernels.c). */
#ifndef DTP_TEST_GPU_BENCH_KERNELS_H
#define DTP_TEST_GPU_BENCH_KERNELS_H

#include "gpu/tensors.h"

#include <cuda_runtime.h>

enum { TIMES = 20, WARM_UPS = 3 };

extern uint64_t bench_pool_used;
extern cudaEvent_t bench_begin, bench_end;
extern const char *bench_wanted;

/* Ends the program with the library's words where the code is a fault's. */
void bench_need(int code);
/* Random elements from the pool, until the line that uses them is printed. */
void *bench_take(uint64_t count, enum dtp_element element);
double bench_median(double *seconds);
void bench_report(const char *name, double bytes, double flops, double seconds);

/* bench_heads.c */
void bench_heads(void);

#define TIME(seconds, call)                                                                                            \
    double seconds##_of[TIMES], seconds = 0;                                                                           \
    for (int i = -WARM_UPS; i < TIMES; i++) {                                                                          \
        float milliseconds;                                                                                            \
        bench_need(cudaEventRecord(bench_begin, NULL));                                                                \
        bench_need(call);                                                                                              \
        bench_need(cudaEventRecord(bench_end, NULL));                                                                  \
        bench_need(cudaEventSynchronize(bench_end));                                                                   \
        bench_need(cudaEventElapsedTime(&milliseconds, bench_begin, bench_end));                                       \
        if (i >= 0)                                                                                                    \
            seconds##_of[i] = (double)milliseconds / 1e3;                                                              \
    }                                                                                                                  \
    seconds = bench_median(seconds##_of)

#define BENCH(kernel, arguments, bytes, flops, ...)                                                                    \
    do {                                                                                                               \
        char label[120];                                                                                               \
        snprintf(label, sizeof label, __VA_ARGS__);                                                                    \
        if (strstr(label, bench_wanted)) {                                                                             \
            TIME(seconds, dtp_cuda_##kernel(NULL, &(arguments), NULL));                                                \
            bench_report(label, (double)(bytes), flops, seconds);                                                      \
        }                                                                                                              \
        bench_pool_used = 0;                                                                                           \
    } while (0)

#endif
