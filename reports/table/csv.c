/* Plans as CSV: one table of columns, each with the unit in its name and a function that writes the value. */
#include "record/report.h"

#include "machine/measured.h"
#include "base/table.h"

#include <math.h>
#include <string.h>

static void write_text(FILE *file, const char *text)
{
    dtp_table_write_field(file, text);
}

/* Nine digits; an empty field for what does not exist. */
static void write_real(FILE *file, double value)
{
    if (isfinite(value))
        fprintf(file, "%.9g", value);
}

static void write_whole(FILE *file, uint64_t value)
{
    fprintf(file, "%llu", (unsigned long long)value);
}

static void write_checkpointing(FILE *file, const struct dtp_plan *plan)
{
    char text[48];
    dtp_checkpointing_text(plan, text, sizeof text);
    write_text(file, text);
}

static void write_price(FILE *file, const struct dtp_money *money, double usd)
{
    if (money->known)
        write_real(file, usd);
}

/* Of a training of --tokens tokens; empty where none were given, or where it never ends. */
static void write_training(FILE *file, const struct dtp_training_cost *training, double value)
{
    if (training->known && !training->goodput.hopeless)
        write_real(file, value);
}

/* What each owner holds at the instant of the peak: these add up to allocated_peak_bytes, which the largest amounts
 * (params_bytes, ...) need not. */
static void write_peak(FILE *f, const struct dtp_memory *m, enum dtp_owner owner)
{
    write_whole(f, m->phase_bytes[m->peak_phase][owner]);
}

/* X(column, key of the scenario that stands there where the plan is refused ("": none), expression that writes it)
 * The documented columns of `dtplan plan --csv` and of `dtplan sweep`: names never change their meaning; new ones may
 * come. */
/* As --machine takes it. */
static const char *machine_of(const struct dtp_cluster *cluster)
{
    return cluster->measured ? dtp_measured_name(cluster->measured) : cluster->machine.key;
}

#define COLUMN_TABLE(X)                                                                                                \
    /* -- what is trained, on what ----------------------------------------------------------------------------- */    \
    X("model", "model", write_text(f, r->job.transformer.name))                                                        \
    X("params_count", "params", write_whole(f, dtp_transformer_count(&r->job.transformer).total))                      \
    X("seq_tokens", "seq", write_whole(f, r->job.plan.sequence))                                                       \
    X("gpu", "gpu", write_text(f, r->job.cluster.gpu.key))                                                             \
    X("machine", "machine", write_text(f, machine_of(&r->job.cluster)))                                                \
    X("gpus_count", "gpus", write_whole(f, r->job.cluster.gpus))                                                       \
    X("gpus_per_node_count", "gpus_per_node", write_whole(f, r->job.cluster.gpus_per_node))                            \
    X("nodes_count", "", write_whole(f, r->job.cluster.nodes))                                                         \
    X("network_bytes_per_s", "", write_real(f, r->job.cluster.machine.network_bytes_per_s))                            \
    X("oversubscription", "oversubscription", write_real(f, r->job.cluster.oversubscription))                          \
    X("leaf_nodes_count", "leaf_nodes", write_whole(f, r->job.cluster.leaf_nodes))                                     \
    /* -- the plan --------------------------------------------------------------------------------------------- */    \
    X("runtime", "runtime", write_text(f, dtp_runtime_text(r->job.plan.runtime)))                                      \
    X("compile", "compile", write_whole(f, r->job.plan.compile))                                                       \
    X("compile_loss", "compile_loss", write_whole(f, r->job.plan.compile_loss))                                        \
    X("fsdp1", "fsdp1", write_whole(f, r->job.plan.fsdp1))                                                             \
    X("expandable_segments", "expandable_segments", write_whole(f, r->job.plan.expandable_segments))                   \
    X("limit_all_gathers", "limit_all_gathers", write_whole(f, r->job.plan.limit_all_gathers))                         \
    X("shard_group_gpus_count", "shard_group", write_whole(f, r->job.plan.shard_group))                                \
    X("tp_count", "tp", write_whole(f, r->job.plan.tp))                                                                \
    X("pp_count", "pp", write_whole(f, r->job.plan.pp))                                                                \
    X("cp_count", "cp", write_whole(f, r->job.plan.cp))                                                                \
    X("micro_batch_sequences", "micro_batch", write_whole(f, r->job.plan.micro_batch))                                 \
    X("accumulate_count", "accumulate", write_whole(f, r->job.plan.accumulate))                                        \
    X("accumulate_sync", "accumulate_sync", write_whole(f, r->job.plan.accumulate_sync))                               \
    X("global_batch_sequences", "global_batch", write_whole(f, dtp_job_batch_sequences(&r->job)))                      \
    X("global_batch_tokens", "", write_whole(f, dtp_job_batch_sequences(&r->job) * r->job.plan.sequence))              \
    X("checkpointing", "checkpointing", write_checkpointing(f, &r->job.plan))                                          \
    X("offload", "offload", write_text(f, dtp_offload_text(r->job.plan.offload)))                                      \
    X("precision", "precision", write_text(f, dtp_precision_name(&r->job.plan.precision)))                             \
    X("param_dtype", "param_dtype", write_text(f, dtp_dtype_text(r->job.plan.precision.params)))                       \
    X("compute_dtype", "compute_dtype", write_text(f, dtp_dtype_text(r->job.plan.precision.compute)))                  \
    X("reduce_dtype", "reduce_dtype", write_text(f, dtp_dtype_text(r->job.plan.precision.reduce)))                     \
    X("master_dtype", "master_dtype", write_text(f, dtp_dtype_text(r->job.plan.precision.master)))                     \
    X("moment_dtype", "moment_dtype", write_text(f, dtp_dtype_text(r->job.plan.precision.moments)))                    \
    X("fp8_all_gather", "fp8_all_gather", write_whole(f, r->job.plan.precision.fp8_all_gather))                        \
    X("attention", "attention", write_text(f, dtp_attention_text(r->job.plan.attention)))                              \
    X("loss", "loss", write_text(f, dtp_loss_text(r->job.plan.loss)))                                                  \
    X("optimizer", "optimizer", write_text(f, dtp_optimizer_text(r->job.plan.optimizer)))                              \
    X("wrap_layers_count", "wrap_layers", write_whole(f, r->job.plan.wrap_layers))                                     \
    X("reshard_after_forward", "reshard_after_forward",                                                                \
      write_whole(f, r->job.plan.reshard_group ? r->job.plan.reshard_group : r->job.plan.reshard_after_forward))       \
    X("keep_root", "keep_root", write_whole(f, r->job.plan.keep_root))                                                 \
    X("prefetch", "prefetch", write_whole(f, r->job.plan.prefetch))                                                    \
    X("ddp_bucket_bytes", "", write_whole(f, r->job.plan.ddp_bucket_bytes))                                            \
    X("ddp_bucket_view", "ddp_bucket_view", write_whole(f, r->job.plan.ddp_bucket_view))                               \
    X("deepspeed_overlap", "deepspeed_overlap", write_whole(f, r->job.plan.deepspeed_overlap))                         \
    X("fused_qkv", "fused_qkv", write_whole(f, r->job.plan.fused_qkv))                                                 \
    X("fused_gate_up", "fused_gate_up", write_whole(f, r->job.plan.fused_gate_up))                                     \
    X("fidelity", "", write_text(f, r->simulated ? "simulated" : "closed"))                                            \
    /* -- memory: of the fullest GPU; host and NVMe of a node --------------------------------------------------- */   \
    X("verdict", "", write_text(f, dtp_verdict_text(r->prediction.memory.verdict)))                                    \
    X("params_bytes", "", write_whole(f, r->prediction.memory.params_bytes))                                           \
    X("grads_bytes", "", write_whole(f, r->prediction.memory.grads_bytes))                                             \
    X("optimizer_bytes", "", write_whole(f, r->prediction.memory.optimizer_bytes))                                     \
    X("activations_bytes", "", write_whole(f, r->prediction.memory.activations_bytes))                                 \
    X("temporary_bytes", "", write_whole(f, r->prediction.memory.temporary_bytes))                                     \
    X("allocated_peak_bytes", "", write_whole(f, r->prediction.memory.allocated_peak_bytes))                           \
    X("reserved_peak_bytes", "", write_whole(f, r->prediction.memory.reserved_peak_bytes))                             \
    X("device_peak_bytes", "", write_whole(f, r->prediction.memory.device_peak_bytes))                                 \
    X("capacity_bytes", "", write_whole(f, r->prediction.memory.capacity_bytes))                                       \
    X("host_bytes", "", write_whole(f, r->prediction.memory.host_bytes))                                               \
    X("nvme_bytes", "", write_whole(f, r->prediction.memory.nvme_bytes))                                               \
    X("peak_params_bytes", "", write_peak(f, &r->prediction.memory, DTP_OWNER_PARAMS))                                 \
    X("peak_grads_bytes", "", write_peak(f, &r->prediction.memory, DTP_OWNER_GRADS))                                   \
    X("peak_optimizer_bytes", "", write_peak(f, &r->prediction.memory, DTP_OWNER_OPTIMIZER))                           \
    X("peak_activations_bytes", "", write_peak(f, &r->prediction.memory, DTP_OWNER_ACTIVATIONS))                       \
    X("peak_logits_bytes", "", write_peak(f, &r->prediction.memory, DTP_OWNER_LOGITS))                                 \
    X("peak_compute_weights_bytes", "", write_peak(f, &r->prediction.memory, DTP_OWNER_WEIGHTS))                       \
    X("peak_gather_bytes", "", write_peak(f, &r->prediction.memory, DTP_OWNER_GATHER))                                 \
    X("peak_reduce_bytes", "", write_peak(f, &r->prediction.memory, DTP_OWNER_REDUCE))                                 \
    X("peak_workspace_bytes", "", write_peak(f, &r->prediction.memory, DTP_OWNER_WORKSPACE))                           \
    X("context_bytes", "", write_whole(f, r->prediction.memory.context_bytes))                                         \
    X("nccl_bytes", "", write_whole(f, r->prediction.memory.nccl_bytes))                                               \
    /* -- communication: each GPU sends, per optimizer step ------------------------------------------------------ */  \
    X("all_gather_bytes", "", write_whole(f, r->prediction.communication.bytes[DTP_ALL_GATHER]))                       \
    X("reduce_scatter_bytes", "", write_whole(f, r->prediction.communication.bytes[DTP_REDUCE_SCATTER]))               \
    X("all_reduce_bytes", "", write_whole(f, r->prediction.communication.bytes[DTP_ALL_REDUCE]))                       \
    X("send_recv_bytes", "", write_whole(f, r->prediction.communication.bytes[DTP_SEND_RECV]))                         \
    X("all_to_all_bytes", "", write_whole(f, r->prediction.communication.bytes[DTP_ALL_TO_ALL]))                       \
    X("sent_bytes", "", write_whole(f, r->prediction.communication.total_bytes))                                       \
    X("sent_network_bytes", "", write_whole(f, r->prediction.communication.network_bytes))                             \
    X("host_to_device_bytes", "", write_whole(f, r->prediction.communication.host_to_device_bytes))                    \
    X("device_to_host_bytes", "", write_whole(f, r->prediction.communication.device_to_host_bytes))                    \
    /* -- time of an optimizer step ------------------------------------------------------------------------------- */ \
    X("step_s", "", write_real(f, r->prediction.time.step_s))                                                          \
    X("step_perfect_overlap_s", "", write_real(f, r->prediction.time.step_perfect_overlap_s))                          \
    X("step_no_overlap_s", "", write_real(f, r->prediction.time.step_no_overlap_s))                                    \
    X("compute_s", "", write_real(f, r->prediction.time.compute_s))                                                    \
    X("optimizer_s", "", write_real(f, r->prediction.time.optimizer_s))                                                \
    X("communication_s", "", write_real(f, r->prediction.time.communication_s))                                        \
    X("exposed_communication_s", "", write_real(f, r->prediction.time.exposed_communication_s))                        \
    X("exposed_offload_s", "", write_real(f, r->prediction.time.exposed_offload_s))                                    \
    X("bubble_s", "", write_real(f, r->prediction.time.bubble_s))                                                      \
    X("matmul_s", "", write_real(f, r->prediction.time.matmul_s))                                                      \
    X("attention_s", "", write_real(f, r->prediction.time.attention_s))                                                \
    X("memory_bound_s", "", write_real(f, r->prediction.time.memory_bound_s))                                          \
    X("loss_s", "", write_real(f, r->prediction.time.loss_s))                                                          \
    X("recompute_s", "", write_real(f, r->prediction.time.recompute_s))                                                \
    /* -- what it delivers ---------------------------------------------------------------------------------------- */ \
    X("tokens_per_s", "", write_real(f, r->prediction.throughput.tokens_per_s))                                        \
    X("tokens_per_s_per_gpu", "", write_real(f, r->prediction.throughput.tokens_per_s_per_gpu))                        \
    X("flops_per_s_per_gpu", "", write_real(f, r->prediction.throughput.flops_per_s_per_gpu))                          \
    X("mfu_fraction", "", write_real(f, r->prediction.throughput.mfu))                                                 \
    X("hfu_fraction", "", write_real(f, r->prediction.throughput.hfu))                                                 \
    X("scaling_efficiency_fraction", "", write_real(f, r->scaling.efficiency))                                         \
    X("scaling_reference_gpus_count", "", write_whole(f, r->scaling.reference_gpus))                                   \
    X("strong_scaling_efficiency_fraction", "", write_real(f, r->scaling.strong_efficiency))                           \
    X("strong_scaling_reference_gpus_count", "", write_whole(f, r->scaling.strong_reference_gpus))                     \
    /* -- money -----------------------------------------------------------------------------------------------------  \
     */                                                                                                                \
    X("job_usd_per_hour", "", write_price(f, &r->money, r->money.job_hour_usd[DTP_PRICE_TYPICAL]))                     \
    X("usd_per_billion_tokens", "", write_price(f, &r->money, r->money.billion_tokens_usd[DTP_PRICE_TYPICAL]))         \
    X("usd_per_million_tokens_low", "", write_price(f, &r->money, r->money.billion_tokens_usd[DTP_PRICE_LOW] / 1000))  \
    X("usd_per_million_tokens", "", write_price(f, &r->money, r->money.billion_tokens_usd[DTP_PRICE_TYPICAL] / 1000))  \
    X("usd_per_million_tokens_high", "",                                                                               \
      write_price(f, &r->money, r->money.billion_tokens_usd[DTP_PRICE_HIGH] / 1000))                                   \
    X("training_s", "", write_training(f, &r->training, r->training.goodput.expected_s))                               \
    X("training_usd", "", write_training(f, &r->training, r->money.known ? r->training.usd[DTP_PRICE_TYPICAL] : NAN))  \
    X("training_gpu_energy_j", "", write_training(f, &r->training, r->training.gpu_energy_j))                          \
    X("goodput_fraction", "", write_training(f, &r->training, r->training.goodput.fraction))

/* What was asked for where nothing came of it. */
static void write_asked(const struct dtp_comparison_row *row, const char *key, FILE *f)
{
    char asked[4096];
    if (row->scenario && *key && dtp_scenario_plain(row->scenario, key, asked, sizeof asked))
        write_text(f, asked);
}

void dtp_report_csv_row(const struct dtp_comparison_row *row, FILE *f)
{
    const struct dtp_report *r = row->report;
    write_text(f, row->strategy);
    fputc(',', f);
    write_text(f, row->refused ? row->reason : "");
#define WRITE_COLUMN(name, key, expression)                                                                            \
    fputc(',', f);                                                                                                     \
    if (row->refused)                                                                                                  \
        write_asked(row, key, f);                                                                                      \
    else                                                                                                               \
        expression;
    COLUMN_TABLE(WRITE_COLUMN)
#undef WRITE_COLUMN
    fputc('\n', f);
}

void dtp_report_csv_header(FILE *file)
{
    fputs("strategy,refused_because", file);
#define WRITE_NAME(name, key, expression) fputs("," name, file);
    COLUMN_TABLE(WRITE_NAME)
#undef WRITE_NAME
    fputc('\n', file);
}

void dtp_report_csv(const struct dtp_comparison_row *rows, size_t count, FILE *file)
{
    dtp_report_csv_header(file);
    for (size_t i = 0; i < count; i++)
        dtp_report_csv_row(&rows[i], file);
}
