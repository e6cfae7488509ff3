/* A small catalogue in memory for tests and the fuzzer of scenarios: figures are round, the shapes are real. */
#ifndef SCENARIO_FIXTURE_H
#define SCENARIO_FIXTURE_H

#include "machine/catalog.h"

#include <stdio.h>

static struct dtp_gpu fixture_gpus[2];
static struct dtp_machine fixture_machines[4];
static struct dtp_transformer fixture_models[2];

static void fixture_gpu(struct dtp_gpu *gpu, const char *key, bool modern)
{
    *gpu = (struct dtp_gpu){.architecture = modern ? DTP_GPU_HOPPER : DTP_GPU_VOLTA,
                            .matmul_fraction = 0.8,
                            .memory_bytes = 80000000000u,
                            .memory_bytes_per_s = 3e12,
                            .link = DTP_LINK_NVLINK,
                            .link_bytes_per_s = 450e9,
                            .pcie_bytes_per_s = 64e9,
                            .sm_count = 132,
                            .power_w = 700};
    snprintf(gpu->key, sizeof gpu->key, "%s", key);
    snprintf(gpu->name, sizeof gpu->name, "NVIDIA %s", key);
    gpu->peak_flops_per_s[DTP_FP32] = 60e12;
    gpu->peak_flops_per_s[DTP_FP16] = 900e12;
    if (modern) {
        gpu->peak_flops_per_s[DTP_TF32] = 450e12;
        gpu->peak_flops_per_s[DTP_BF16] = 900e12;
        gpu->peak_flops_per_s[DTP_FP8] = 1800e12;
    }
}

static void fixture_machine(struct dtp_machine *machine, const char *key, const char *gpu_key, uint32_t gpus,
                            double network_bytes_per_s)
{
    *machine = (struct dtp_machine){.gpus = gpus,
                                    .network_bytes_per_s = network_bytes_per_s,
                                    .nics = network_bytes_per_s > 0 ? gpus : 0,
                                    .host_memory_bytes = 2000000000000u,
                                    .host_memory_bytes_per_s = 300e9,
                                    .host_cores = 96};
    if (gpu_key[0]) {
        machine->nvme_bytes = 30000000000000u;
        machine->nvme_read_bytes_per_s = 50e9;
        machine->nvme_write_bytes_per_s = 20e9;
    }
    snprintf(machine->key, sizeof machine->key, "%s", key);
    snprintf(machine->gpu_key, sizeof machine->gpu_key, "%s", gpu_key);
}

/* Caller never destroys it: nothing is allocated. */
static struct dtp_catalog fixture_catalog(void)
{
    fixture_gpu(&fixture_gpus[0], "h100-sxm", true);
    fixture_gpu(&fixture_gpus[1], "v100-sxm", false);
    fixture_machine(&fixture_machines[0], "dgx-h100", "h100-sxm", 8, 400e9);
    fixture_machine(&fixture_machines[1], "dgx-v100", "v100-sxm", 4, 50e9);
    fixture_machine(&fixture_machines[2], "box", "", 2, 0);
    fixture_machine(&fixture_machines[3], "rack", "h100-sxm", 72, 3.6e12);
    struct dtp_transformer *llama = &fixture_models[0], *gpt = &fixture_models[1];
    *llama = dtp_transformer_default(); /* 6738415616 parameters */
    snprintf(llama->name, sizeof llama->name, "llama-2-7b");
    llama->layers = llama->heads = llama->kv_heads = 32;
    llama->hidden = llama->max_sequence = 4096;
    llama->head_dim = 128;
    llama->ffn = 11008;
    llama->vocab = 32000;
    *gpt = (struct dtp_transformer){
        .layers = 12, .hidden = 768, .heads = 12, .kv_heads = 12, .head_dim = 64}; /* 124439808 */
    snprintf(gpt->name, sizeof gpt->name, "gpt2-124m");
    gpt->ffn = 3072;
    gpt->vocab = 50257;
    gpt->positions = gpt->max_sequence = 1024;
    gpt->norm = DTP_LAYER_NORM;
    gpt->norm_epsilon = DTP_NORM_EPSILON;
    gpt->activation = DTP_GELU;
    gpt->position = DTP_POSITION_LEARNED;
    gpt->norm_bias = gpt->qkv_bias = gpt->attention_output_bias = gpt->mlp_bias = true;
    gpt->tied_head = gpt->final_norm = true;
    return (struct dtp_catalog){.gpus = fixture_gpus,
                                .gpu_count = 2,
                                .machines = fixture_machines,
                                .machine_count = 4,
                                .models = fixture_models,
                                .model_count = 2};
}

#endif
