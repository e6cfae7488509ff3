/* Plans as CSV: one table of columns, each with the unit in its name and a function that writes the value. */
#include "report.h"

#include "table.h"

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

/* What each owner holds at the instant of the peak: these add up to allocated_peak_bytes, which the largest amounts
 * (params_bytes, ...) need not. */
static void write_peak(FILE *f, const struct dtp_memory *m, enum dtp_owner owner)
{
    write_whole(f, m->phase_bytes[m->peak_phase][owner]);
}

/* X(column, expression that writes it; r is the report, f the file) */
#define COLUMN_TABLE(X)                                                                                                \
    X("model", write_text(f, r->job.transformer.name))                                                                 \
    X("params_count", write_whole(f, dtp_transformer_count(&r->job.transformer).total))                                \
    X("seq_tokens", write_whole(f, r->job.plan.sequence))                                                              \
    X("gpu", write_text(f, r->job.cluster.gpu.key))                                                                    \
    X("gpus_count", write_whole(f, r->job.cluster.gpus))                                                               \
    X("nodes_count", write_whole(f, r->job.cluster.nodes))                                                             \
    X("runtime", write_text(f, dtp_runtime_text(r->job.plan.runtime)))                                                 \
    X("compile", write_whole(f, r->job.plan.compile))                                                                  \
    X("precision", write_text(f, dtp_precision_name(&r->job.plan.precision)))                                          \
    X("micro_batch_sequences", write_whole(f, r->job.plan.micro_batch))                                                \
    X("accumulate_count", write_whole(f, r->job.plan.accumulate))                                                      \
    X("checkpointing", write_checkpointing(f, &r->job.plan))                                                           \
    X("offload", write_text(f, dtp_offload_text(r->job.plan.offload)))                                                 \
    X("verdict", write_text(f, dtp_verdict_text(r->prediction.memory.verdict)))                                        \
    X("params_bytes", write_whole(f, r->prediction.memory.params_bytes))                                               \
    X("grads_bytes", write_whole(f, r->prediction.memory.grads_bytes))                                                 \
    X("optimizer_bytes", write_whole(f, r->prediction.memory.optimizer_bytes))                                         \
    X("activations_bytes", write_whole(f, r->prediction.memory.activations_bytes))                                     \
    X("temporary_bytes", write_whole(f, r->prediction.memory.temporary_bytes))                                         \
    X("allocated_peak_bytes", write_whole(f, r->prediction.memory.allocated_peak_bytes))                               \
    X("reserved_peak_bytes", write_whole(f, r->prediction.memory.reserved_peak_bytes))                                 \
    X("device_peak_bytes", write_whole(f, r->prediction.memory.device_peak_bytes))                                     \
    X("capacity_bytes", write_whole(f, r->prediction.memory.capacity_bytes))                                           \
    X("host_bytes", write_whole(f, r->prediction.memory.host_bytes))                                                   \
    X("nvme_bytes", write_whole(f, r->prediction.memory.nvme_bytes))                                                   \
    X("sent_bytes", write_whole(f, r->prediction.communication.total_bytes))                                           \
    X("sent_network_bytes", write_whole(f, r->prediction.communication.network_bytes))                                 \
    X("step_s", write_real(f, r->prediction.time.step_s))                                                              \
    X("step_perfect_overlap_s", write_real(f, r->prediction.time.step_perfect_overlap_s))                              \
    X("step_no_overlap_s", write_real(f, r->prediction.time.step_no_overlap_s))                                        \
    X("compute_s", write_real(f, r->prediction.time.compute_s))                                                        \
    X("optimizer_s", write_real(f, r->prediction.time.optimizer_s))                                                    \
    X("exposed_communication_s", write_real(f, r->prediction.time.exposed_communication_s))                            \
    X("exposed_offload_s", write_real(f, r->prediction.time.exposed_offload_s))                                        \
    X("tokens_per_s", write_real(f, r->prediction.throughput.tokens_per_s))                                            \
    X("tokens_per_s_per_gpu", write_real(f, r->prediction.throughput.tokens_per_s_per_gpu))                            \
    X("flops_per_s_per_gpu", write_real(f, r->prediction.throughput.flops_per_s_per_gpu))                              \
    X("mfu_fraction", write_real(f, r->prediction.throughput.mfu))                                                     \
    X("hfu_fraction", write_real(f, r->prediction.throughput.hfu))                                                     \
    X("scaling_efficiency_fraction", write_real(f, r->scaling.efficiency))                                             \
    X("scaling_reference_gpus_count", write_whole(f, r->scaling.reference_gpus))                                       \
    X("job_usd_per_hour", write_price(f, &r->money, r->money.job_hour_usd[DTP_PRICE_TYPICAL]))                         \
    X("usd_per_billion_tokens", write_price(f, &r->money, r->money.billion_tokens_usd[DTP_PRICE_TYPICAL])) \
    X("peak_params_bytes", write_peak(f, &r->prediction.memory, DTP_OWNER_PARAMS))                                     \
    X("peak_grads_bytes", write_peak(f, &r->prediction.memory, DTP_OWNER_GRADS))                                       \
    X("peak_optimizer_bytes", write_peak(f, &r->prediction.memory, DTP_OWNER_OPTIMIZER))                               \
    X("peak_activations_bytes", write_peak(f, &r->prediction.memory, DTP_OWNER_ACTIVATIONS))                           \
    X("peak_logits_bytes", write_peak(f, &r->prediction.memory, DTP_OWNER_LOGITS))                                     \
    X("peak_compute_weights_bytes", write_peak(f, &r->prediction.memory, DTP_OWNER_WEIGHTS))                           \
    X("peak_gather_bytes", write_peak(f, &r->prediction.memory, DTP_OWNER_GATHER))                                     \
    X("peak_reduce_bytes", write_peak(f, &r->prediction.memory, DTP_OWNER_REDUCE))                                     \
    X("peak_workspace_bytes", write_peak(f, &r->prediction.memory, DTP_OWNER_WORKSPACE))                               \
    X("context_bytes", write_whole(f, r->prediction.memory.context_bytes))                                             \
    X("nccl_bytes", write_whole(f, r->prediction.memory.nccl_bytes))                                                   \
    X("matmul_s", write_real(f, r->prediction.time.matmul_s))                                                          \
    X("attention_s", write_real(f, r->prediction.time.attention_s))                                                    \
    X("memory_bound_s", write_real(f, r->prediction.time.memory_bound_s))                                              \
    X("loss_s", write_real(f, r->prediction.time.loss_s))                                                              \
    X("bubble_s", write_real(f, r->prediction.time.bubble_s))                                                          \
    X("fidelity", write_text(f, r->simulated ? "simulated" : "closed"))

static void write_row(const struct dtp_comparison_row *row, FILE *f)
{
    const struct dtp_report *r = row->report;
    write_text(f, row->strategy);
    fputc(',', f);
    write_text(f, row->refused ? row->reason : "");
#define WRITE_COLUMN(name, expression)                                                                                 \
    fputc(',', f);                                                                                                     \
    if (!row->refused)                                                                                                 \
        expression;
    COLUMN_TABLE(WRITE_COLUMN)
#undef WRITE_COLUMN
    fputc('\n', f);
}

void dtp_report_csv(const struct dtp_comparison_row *rows, size_t count, FILE *file)
{
    fputs("strategy,refused_because", file);
#define WRITE_NAME(name, expression) fputs("," name, file);
    COLUMN_TABLE(WRITE_NAME)
#undef WRITE_NAME
    fputc('\n', file);
    for (size_t i = 0; i < count; i++)
        write_row(&rows[i], file);
}
