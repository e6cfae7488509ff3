/* What checks and benchmarks of the GPU share: a device buffer filled with normal numbers, and its copy on the host. */
#ifndef DTP_TESTS_GPU_MEMORY_H
#define DTP_TESTS_GPU_MEMORY_H

#include "kernels/element.h"

#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>

#define CUDA(call)                                                                                                     \
    do {                                                                                                               \
        cudaError_t error_ = (call);                                                                                   \
        if (error_ != cudaSuccess) {                                                                                   \
            fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #call, cudaGetErrorString(error_));                 \
            exit(3);                                                                                                   \
        }                                                                                                              \
    } while (0)

/* Normal numbers of the given deviation, on the device; 0xFF everywhere (NaN) where it is negative. */
static inline void *device_buffer(uint64_t count, enum dtp_element element, uint32_t tensor, float deviation)
{
    void *memory = NULL;
    CUDA(cudaMalloc(&memory, count * dtp_element_bytes(element)));
    if (deviation < 0) {
        CUDA(cudaMemset(memory, 0xFF, count * dtp_element_bytes(element)));
        return memory;
    }
    const struct dtp_initialise_args arguments = {
        .values = memory, .count = count, .seed = 7, .tensor = tensor, .deviation = deviation, .element = element};
    CUDA((cudaError_t)dtp_cuda_initialise(NULL, &arguments, NULL));
    CUDA(cudaDeviceSynchronize());
    return memory;
}

static inline void *host_copy(const void *device, uint64_t bytes)
{
    void *copy = malloc(bytes);
    if (!copy)
        exit(3);
    CUDA(cudaMemcpy(copy, device, bytes, cudaMemcpyDeviceToHost));
    return copy;
}

#endif
