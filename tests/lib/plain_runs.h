/* Rows of run tables made by hand, and what they are as jobs. */
#ifndef PLAIN_RUNS_H
#define PLAIN_RUNS_H

#include "runs/run_table.h"

#include <string.h>

#include "lib/shipped_catalog.h"

/* Llama-2-7B under torchtitan on one node. */
static inline struct dtp_run plain_run(void)
{
    return (struct dtp_run){.id = "x",
                            .source = "s",
                            .model_name = "Llama-2-7B",
                            .framework = "torchtitan (FSDP2)",
                            .gpu_key = "h100-sxm",
                            .gpu_name = "",
                            .strategy_key = "full_shard",
                            .offload_key = "none",
                            .param_dtype = "bf16",
                            .checkpointing = "none",
                            .fp8 = "0",
                            .flash_attention = "",
                            .compile = "",
                            .schedule = "",
                            .sequence_parallel = "",
                            .stages = "",
                            .attention = "",
                            .quantised_base = "",
                            .precision_recipe = "",
                            .links = "",
                            .network = "",
                            .notes = "",
                            .params = 6738415616,
                            .layers = 32,
                            .hidden = 4096,
                            .heads = 32,
                            .kv_heads = 32,
                            .ffn = 11008,
                            .vocab = 32000,
                            .sequence = 2048,
                            .gpus = 8,
                            .micro_batch = 2};
}

static inline struct dtp_job job_of(const struct dtp_run *run)
{
    struct dtp_faults faults = {0};
    struct dtp_job job = {0};
    if (dtp_run_job(run, &catalog, &job, &faults))
        fail_msg("%s", faults.text[0]);
    return job;
}

static inline void assert_refused(const struct dtp_run *run, const char *reason)
{
    struct dtp_faults faults = {0};
    struct dtp_job job;
    assert_int_equal(dtp_run_job(run, &catalog, &job, &faults), DTP_BAD_INPUT);
    if (!strstr(faults.text[0], reason))
        fail_msg("'%s' does not say '%s'", faults.text[0], reason);
}

static inline struct dtp_run shaped(const char *name, uint64_t params, uint64_t layers, uint64_t hidden, uint64_t heads,
                                    uint64_t kv_heads, uint64_t ffn, uint64_t vocab, uint64_t sequence)
{
    struct dtp_run run = plain_run();
    run.model_name = name;
    run.params = params;
    run.layers = layers;
    run.hidden = hidden;
    run.heads = heads;
    run.kv_heads = kv_heads;
    run.ffn = ffn;
    run.vocab = vocab;
    run.sequence = sequence;
    return run;
}

/* GPT-3 175B as Megatron-Core has it: 4 x 2 GPUs of tensors and stages, 4 data-parallel ranks. */
static inline struct dtp_run sliced_run(void)
{
    struct dtp_run run = shaped("GPT-175B", 0, 96, 12288, 96, 96, 49152, 51200, 2048);
    run.framework = "NeMo/Megatron-Core";
    run.strategy_key = "ddp";
    run.checkpointing = "full";
    run.gpus = 64;
    run.tp = 4;
    run.pp = 4;
    run.dp = 4;
    run.micro_batch = 1;
    run.global_batch = 64;
    return run;
}

#endif
