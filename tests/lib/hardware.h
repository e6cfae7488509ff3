/* GPUs and clusters written out by hand, so that tests of formulas do not move when a catalogue figure is refined. */
#ifndef TEST_HARDWARE_H
#define TEST_HARDWARE_H

#include "machine/machine.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static inline struct dtp_gpu test_h200(void)
{
    struct dtp_gpu gpu = {.key = "h200-sxm",
                          .name = "H200",
                          .architecture = DTP_GPU_HOPPER,
                          .matmul_fraction = 0.69,
                          .memory_bytes = 150120000000u,
                          .memory_bytes_per_s = 4.8e12,
                          .link = DTP_LINK_NVLINK,
                          .link_bytes_per_s = 450e9,
                          .pcie_bytes_per_s = 64e9,
                          .sm_count = 132,
                          .power_w = 700};
    gpu.peak_flops_per_s[DTP_FP32] = 66.9e12;
    gpu.peak_flops_per_s[DTP_TF32] = 494.7e12;
    gpu.peak_flops_per_s[DTP_BF16] = gpu.peak_flops_per_s[DTP_FP16] = 989.4e12;
    gpu.peak_flops_per_s[DTP_FP8] = gpu.peak_flops_per_s[DTP_INT8] = 1978.9e12;
    return gpu;
}

static inline struct dtp_gpu test_a100(void)
{
    struct dtp_gpu gpu = {.key = "a100-80-sxm",
                          .name = "A100 80GB",
                          .architecture = DTP_GPU_AMPERE,
                          .matmul_fraction = 0.85,
                          .memory_bytes = 85000000000u,
                          .memory_bytes_per_s = 2.039e12,
                          .link = DTP_LINK_NVLINK,
                          .link_bytes_per_s = 300e9,
                          .pcie_bytes_per_s = 32e9,
                          .sm_count = 108,
                          .power_w = 400};
    gpu.peak_flops_per_s[DTP_FP32] = 19.5e12;
    gpu.peak_flops_per_s[DTP_TF32] = 156e12;
    gpu.peak_flops_per_s[DTP_BF16] = gpu.peak_flops_per_s[DTP_FP16] = 312e12;
    return gpu;
}

static inline struct dtp_cluster test_cluster(struct dtp_gpu gpu, uint32_t gpus, uint32_t gpus_per_node)
{
    struct dtp_cluster cluster = {
        .gpu = gpu, .gpus = gpus, .gpus_per_node = gpus < gpus_per_node ? gpus : gpus_per_node, .oversubscription = 1};
    cluster.nodes = cluster.gpus / cluster.gpus_per_node;
    cluster.machine = (struct dtp_machine){.key = "test",
                                           .gpus = gpus_per_node,
                                           .network_bytes_per_s = 400e9,
                                           .nics = 8,
                                           .host_memory_bytes = (uint64_t)1 << 41,
                                           .host_memory_bytes_per_s = 400e9,
                                           .host_cores = 96,
                                           .nvme_bytes = 15360000000000u,
                                           .nvme_read_bytes_per_s = 25e9,
                                           .nvme_write_bytes_per_s = 12e9};
    return cluster;
}

#define assert_near(actual, expected, relative)                                                                        \
    do {                                                                                                               \
        double near_actual = (actual), near_expected = (expected);                                                     \
        if (!(fabs(near_actual - near_expected) <= (relative)*fabs(near_expected))) {                                  \
            print_error("%s:%d: %s is %.9g, expected %.9g within %g\n", __FILE__, __LINE__, #actual, near_actual,      \
                        near_expected, (double)(relative));                                                            \
            fail();                                                                                                    \
        }                                                                                                              \
    } while (0)

#endif
