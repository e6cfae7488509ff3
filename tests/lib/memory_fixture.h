/* Memory of LLaMA-7B as every command estimates it, on GPUs of 80 GB. */
#ifndef TEST_MEMORY_FIXTURE_H
#define TEST_MEMORY_FIXTURE_H

#include "job/estimate.h"

#include "lib/llama_7b.h"

#include <string.h>

static const struct dtp_cluster eight_gpus = {
    .gpus = 8, .gpus_per_node = 8, .nodes = 1, .gpu = {.memory_bytes = 80000000000, .architecture = DTP_GPU_HOPPER}};
static const struct dtp_cluster one_gpu = {
    .gpus = 1, .gpus_per_node = 1, .nodes = 1, .gpu = {.memory_bytes = 80000000000, .architecture = DTP_GPU_HOPPER}};

static inline struct dtp_memory estimate(const struct dtp_transformer *t, const struct dtp_plan *asked,
                                         const struct dtp_cluster *gpus)
{
    static struct dtp_faults faults;
    struct dtp_plan plan = *asked;
    struct dtp_cluster cluster = *gpus;
    struct dtp_memory memory;
    memset(&faults, 0, sizeof faults);
    cluster.oversubscription = 1;
    cluster.machine.nvme_bytes = gpus->machine.nvme_bytes ? gpus->machine.nvme_bytes : UINT64_C(30) << 40;
    cluster.machine.nvme_read_bytes_per_s = cluster.machine.nvme_write_bytes_per_s = 20e9;
    for (int i = 0; i < DTP_DTYPE_COUNT; i++)
        cluster.gpu.peak_flops_per_s[i] = 1e15;
    if (dtp_plan_resolve(&plan, t, &cluster, &faults) != DTP_OK ||
        dtp_estimate_memory(t, &cluster, &plan, &memory, NULL, &faults) != DTP_OK)
        fail_msg("%s", faults.text[0]);
    assert_false(memory.bound);
    return memory;
}

static inline struct dtp_memory predict(const struct dtp_plan *plan, const struct dtp_cluster *cluster)
{
    struct dtp_transformer t = llama_7b();
    struct dtp_memory memory = estimate(&t, plan, cluster);
    for (int phase = 0; phase < DTP_PHASE_COUNT; phase++) {
        uint64_t sum = 0;
        for (int owner = 0; owner < DTP_OWNER_COUNT; owner++)
            sum += memory.phase_bytes[phase][owner];
        assert_int_equal(sum, memory.phase_total_bytes[phase]);
        assert_true(memory.phase_total_bytes[phase] <= memory.allocated_peak_bytes);
    }
    assert_true(memory.reserved_peak_bytes >= memory.allocated_peak_bytes);
    return memory;
}

static inline uint64_t states(const struct dtp_memory *m)
{
    return m->params_bytes + m->grads_bytes + m->optimizer_bytes;
}

static inline struct dtp_cluster two_gpus(void)
{
    struct dtp_cluster two = eight_gpus;
    two.gpus = two.gpus_per_node = 2, two.oversubscription = 1;
    for (int i = 0; i < DTP_DTYPE_COUNT; i++)
        two.gpu.peak_flops_per_s[i] = 1e15;
    return two;
}

/* What a sequence of 2048 tokens more takes for each of them. */
static inline double bytes_of_a_token(const struct dtp_transformer *t, struct dtp_plan plan)
{
    struct dtp_cluster cluster = one_gpu;
    cluster.gpu.memory_bytes = UINT64_C(400) << 30;
    plan.micro_batch = 2;
    double few = (double)estimate(t, &plan, &cluster).allocated_peak_bytes;
    plan.micro_batch = 4;
    return ((double)estimate(t, &plan, &cluster).allocated_peak_bytes - few) / (2 * 2048);
}

#endif
