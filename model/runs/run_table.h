/* Measured training runs: the rows of a run table, split into what was run and what was measured.
 *
 * One CSV row describes a run (model, machine, strategy: struct dtp_run) and what came out of it (tokens/s, step time,
 * memory: struct dtp_run_measured). The two are read by two functions into two structs so that a predictor that is
 * given the first cannot look at the second; tests/runs/test_backtest.c scrambles every measured column and asks for
 * the same predictions to the last bit. Columns go by name, in any order; columns not named here are ignored.
 *
 * Text is borrowed from the table, "" where the column is absent or the field empty; counts are 0 then. */
#ifndef DTP_RUN_TABLE_H
#define DTP_RUN_TABLE_H

#include "closed/closed_form.h"
#include "machine/catalog.h"
#include "job/scenario.h"
#include "base/table.h"

/* X(field, column, needed, words): a table without a needed column is no run table and is refused whole. */
#define DTP_RUN_TEXT_TABLE(X)                                                                                          \
    X(id, "id", true, "of the run, said again in results")                                                             \
    X(source, "source", true, "who measured; errors are given by source")                                              \
    X(model_name, "model_name", true,                                                                                  \
      "a preset (dtplan catalog models) fills the dimensions that are missing; else its family tells norms and "       \
      "biases")                                                                                                        \
    X(framework, "framework", false,                                                                                   \
      "the program that ran and its rules: torchtitan, Megatron, DeepSpeed, ...; default PyTorch")                     \
    X(gpu_key, "gpu_key", true, "GPU (dtplan catalog gpus)")                                                           \
    X(gpu_name, "gpu", false, "GPU as the source names it; one whose power is limited says to how many W")             \
    X(strategy_key, "strategy_key", true, "as --strategy, or single: one data-parallel rank")                          \
    X(offload_key, "offload_key", false, "what is offloaded, joined by +: params, optimizer, gradients; default none") \
    X(param_dtype, "param_dtype", false, "bf16, fp16, fp32 or fp8; default bf16")                                      \
    X(checkpointing, "activation_checkpointing", false, "none, full, selective or every-N; default none")              \
    X(fp8, "fp8", false, "0 or 1")                                                                                     \
    X(flash_attention, "flash_attention", false, "0 or 1")                                                             \
    X(compile, "compile", false, "0 or 1")                                                                             \
    X(schedule, "pp_schedule", false,                                                                                  \
      "of the pipeline: 1f1b, interleaved_1f1b, gpipe, zb1p, zb2p, zbv, dualpipev, ... in any case; default 1f1b")     \
    X(stages, "stages_ranks", false,                                                                                   \
      "what each rank's stages hold, as 0:emb+0-3 2:8-11;1:4-7 3:12-15+head; default layers evenly divided")           \
    X(sequence_parallel, "sequence_parallel", false, "0 or 1; default the framework's")                                \
    X(attention, "attention", false, "mha, gqa, mqa or mla; default what the heads say")                               \
    X(quantised_base, "quantised_base", false,                                                                         \
      "of a frozen base under adapters: none, int4, nf4; empty: nothing is frozen")                                    \
    X(precision_recipe, "precision_recipe", false,                                                                     \
      "bf16, mxfp8, fp8-tensorwise, ...; default what param_dtype and fp8 say")                                        \
    X(links, "interconnect_intra", false, "NVL72 where it says so: NVLink joins a rack, not a node")                   \
    X(network, "interconnect_inter", false, "sockets or EFA where it says so, else NICs")                              \
    X(notes, "notes", false,                                                                                           \
      "what no column holds; lora_targets=q+v: which linears have adapters; machine=KEY: as --machine")

/* Whole numbers from 1 up. */
#define DTP_RUN_COUNT_TABLE(X)                                                                                         \
    X(params, "params", false, "parameters; a shape more than 2 % off is refused")                                     \
    X(layers, "n_layers", false, "layers")                                                                             \
    X(hidden, "hidden", false, "hidden width")                                                                         \
    X(heads, "n_heads", false, "attention heads")                                                                      \
    X(kv_heads, "n_kv_heads", false, "key/value heads")                                                                \
    X(ffn, "ffn_hidden", false, "inner width of the MLP")                                                              \
    X(vocab, "vocab", false, "vocabulary; default that of the family's only tokenizer, padded as Megatron does")       \
    X(sequence, "seq_len", true, "tokens per sequence")                                                                \
    X(gpus, "gpus", true, "GPUs in all")                                                                               \
    X(gpus_per_node, "gpus_per_node", false, "GPUs per node; default the machine's")                                   \
    X(tp, "tp", false, "tensor parallel GPUs")                                                                         \
    X(pp, "pp", false, "ranks of the pipeline")                                                                        \
    X(cp, "cp", false, "context parallel GPUs")                                                                        \
    X(virtual_stages, "vpp", false, "chunks of the model on each rank of the pipeline; default 1")                     \
    X(dp, "dp", false, "data-parallel ranks: gpus / (tp pp cp)")                                                       \
    X(micro_batch, "micro_batch_per_gpu", true, "sequences per data-parallel rank and micro-step")                     \
    X(accumulate, "grad_accum", false, "micro-steps per optimizer step; default what global_batch says, else 1")       \
    X(global_batch, "global_batch", false, "sequences per optimizer step over all GPUs")                               \
    X(shard_group, "shard_group", false, "GPUs that share one copy; default all")

/* Whole numbers from 0 up, where 0 says none as an empty field does. */
#define DTP_RUN_PART_TABLE(X)                                                                                          \
    X(ep, "ep", "GPUs that share a layer's experts; default 1")                                                        \
    X(etp, "etp", "tensor parallel GPUs of an expert; default 1")                                                      \
    X(experts, "n_experts", "routed experts of a layer; default none: a dense model")                                  \
    X(top_k, "top_k", "experts that a token is routed to")                                                             \
    X(expert_ffn, "moe_ffn_hidden", "inner width of an expert")                                                        \
    X(shared_experts, "n_shared_experts", "experts that every token passes")                                           \
    X(first_dense_layers, "moe_first_dense_layers", "layers before the first with experts")                            \
    X(lora_rank, "lora_rank", "rank of LoRA's adapters; default none: all weights are trained")

struct dtp_run {
    size_t line; /* of the table's file */
#define DTP_RUN_TEXT_FIELD(field, column, needed, words) const char *field;
    DTP_RUN_TEXT_TABLE(DTP_RUN_TEXT_FIELD)
#undef DTP_RUN_TEXT_FIELD
#define DTP_RUN_COUNT_FIELD(field, column, needed, words) uint64_t field;
    DTP_RUN_COUNT_TABLE(DTP_RUN_COUNT_FIELD)
#undef DTP_RUN_COUNT_FIELD
#define DTP_RUN_PART_FIELD(field, column, words) uint64_t field;
    DTP_RUN_PART_TABLE(DTP_RUN_PART_FIELD)
#undef DTP_RUN_PART_FIELD
    bool *unstated;      /* set where a row is refused for what it does not state; NULL: nobody asks */
    const char *machine; /* no column: a measured machine file of the catalogue, for runs on its GPU; or NULL */
    double node_network_gbit_per_s; /* column inter_gbit_per_s_per_node; 0 = not stated */
};

/* It is refused for what it does not state: no complete row. */
static inline void dtp_run_lacks(const struct dtp_run *run)
{
    if (run->unstated)
        *run->unstated = true;
}

/* Whether each of its GPUs trains the whole model. */
static inline bool dtp_run_is_data_parallel(const struct dtp_run *run)
{
    return run->tp <= 1 && run->pp <= 1 && run->cp <= 1;
}

/* Kinds of memory figure, each with the prediction it is compared with.
 * X(enum suffix, mem_kind word, byte column or NULL) */
#define DTP_RUN_MEMORY_TABLE(X)                                                                                        \
    X(ALLOCATED, "allocated", "peak_allocated_bytes")                                                                  \
    X(RESERVED, "reserved", "peak_reserved_bytes")                                                                     \
    X(NVIDIA_SMI, "nvidia-smi", NULL)                                                                                  \
    X(DEVICE, "device", "device_used_bytes")                                                                           \
    X(AFTER_INIT, "after_init", "after_init_allocated_bytes")                                                          \
    X(STAGES, "stages", NULL)     /* allocated, of the rank that is furthest off */                                    \
    X(UNSTATED, "unstated", NULL) /* mem_kind is empty: held against what is allocated, apart from all others */       \
    X(UNLOGGED, "unlogged", NULL) /* nor does the program log memory: against the driver's figure, apart as well */
enum dtp_run_memory {
#define DTP_RUN_MEMORY_ENUM(suffix, word, column) DTP_RUN_##suffix,
    DTP_RUN_MEMORY_TABLE(DTP_RUN_MEMORY_ENUM)
#undef DTP_RUN_MEMORY_ENUM
        DTP_RUN_MEMORY_COUNT
};
const char *dtp_run_memory_word(enum dtp_run_memory kind);

/* How a run ended, by the column `status`: empty, ok, ran, done, success or completed; oom or out of memory; any other
 * word (timeout, died, ...), which says nothing of memory. */
enum dtp_run_end { DTP_RUN_RAN, DTP_RUN_OOM, DTP_RUN_FAILED, DTP_RUN_END_COUNT };

/* What came out; 0 = not measured. */
struct dtp_run_measured {
    const char *status; /* as the table says it; "" = nothing */
    enum dtp_run_end end;
    double tokens_per_s_per_gpu, step_s;
    double memory_bytes[DTP_RUN_MEMORY_COUNT];
    /* allocated, of a stage's ranks the largest and the smallest */
    double stage_bytes[DTP_PREDICTED_STAGES], least_stage_bytes[DTP_PREDICTED_STAGES];
};

enum {
#define DTP_RUN_TEXT_ENUM(field, column, needed, words) DTP_RUN_TEXT_##field,
    DTP_RUN_TEXT_TABLE(DTP_RUN_TEXT_ENUM)
#undef DTP_RUN_TEXT_ENUM
        DTP_RUN_TEXT_COUNT
};
enum {
#define DTP_RUN_COUNT_ENUM(field, column, needed, words) DTP_RUN_COUNT_##field,
    DTP_RUN_COUNT_TABLE(DTP_RUN_COUNT_ENUM)
#undef DTP_RUN_COUNT_ENUM
        DTP_RUN_COUNT_COUNT
};
enum {
#define DTP_RUN_PART_ENUM(field, column, words) DTP_RUN_PART_##field,
    DTP_RUN_PART_TABLE(DTP_RUN_PART_ENUM)
#undef DTP_RUN_PART_ENUM
        DTP_RUN_PART_COUNT
};
/* The columns that are read, each with what stands in it; for help. Those with `measured` are what was measured. */
struct dtp_run_column {
    const char *name;
    bool needed, measured;
    const char *words;
};
const struct dtp_run_column *dtp_run_table_columns(size_t *count);

/* Where each column stands; -1 = absent. */
struct dtp_run_columns {
    long text[DTP_RUN_TEXT_COUNT], count[DTP_RUN_COUNT_COUNT], part[DTP_RUN_PART_COUNT], network;
    long status, tokens_per_s_per_gpu, step_time, peak_mem, mem_kind, memory[DTP_RUN_MEMORY_COUNT];
    long rank_memory, rank_coordinates, stale;
};

/* Reports every missing needed column at once, and a table without any measured column. */
enum dtp_status dtp_run_columns_find(const struct dtp_table *table, struct dtp_run_columns *out,
                                     struct dtp_faults *faults);
/* What was run. Faults (one per bad field) carry no place: they become the reason a row is refused for. */
enum dtp_status dtp_run_read(const struct dtp_table *table, size_t row, const struct dtp_run_columns *columns,
                             struct dtp_run *out, struct dtp_faults *faults);
/* What was measured, without what the column of stale bytes says was there before. Where both a byte column and
 * peak_mem_gib give one kind, the bytes win (they are not rounded). A speed measured of a run that its status says died
 * for want of memory is a contradiction, and refused. */
enum dtp_status dtp_run_read_measured(const struct dtp_table *table, size_t row, const struct dtp_run_columns *columns,
                                      struct dtp_run_measured *out, struct dtp_faults *faults);

/* Fills the dimensions a row leaves empty from the preset that its model_name is; no other name changes anything. A
 * dimension that is stated and is not the preset's refuses the row. */
enum dtp_status dtp_run_fill_preset(struct dtp_run *run, const struct dtp_catalog *catalog,
                                    const struct dtp_transformer **preset, struct dtp_faults *faults);

/* The shape of a row's model: its dimensions with the norms, biases, activation ... of the family its name belongs to
 * (run_shape.c), checked against the `params` column to 2 %. */
enum dtp_status dtp_run_shape(const struct dtp_run *run, struct dtp_transformer *out, struct dtp_faults *faults);

/* Writes the row as settings of a scenario, by the rules of run_settings.c, and resolves them; refuses by name what is
 * not modelled. The catalogue tells which machine suits the row's GPUs and nodes. */
enum dtp_status dtp_run_job(const struct dtp_run *run, const struct dtp_catalog *catalog, struct dtp_job *job,
                            struct dtp_faults *faults);

#endif
