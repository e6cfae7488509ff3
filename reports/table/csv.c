/* Plans as CSV: one table of columns, each with the unit in its name and a function that writes the value. */
#include "record/report.h"

#include "plan/runtime.h"
#include "job/scenario_keys.h"
#include "base/table.h"

#include <math.h>
#include <string.h>

static void write_text(FILE *file, const char *text)
{
    dtp_table_write_field(file, text);
}

/* A sweep has some 100 numbers a row, most of them whole: printf takes a third of its time for them. */
static void write_whole(FILE *file, uint64_t value)
{
    char digits[20], *first = digits + sizeof digits;
    do
        *--first = (char)('0' + value % 10);
    while (value /= 10);
    fwrite(first, 1, (size_t)(digits + sizeof digits - first), file);
}

/* Nine digits; an empty field for what does not exist. */
static void write_real(FILE *file, double value)
{
    if (value >= 1 && value < 1e9 && value == (double)(uint64_t)value)
        write_whole(file, (uint64_t)value);
    else if (value == 0 && !signbit(value))
        fputc('0', file);
    else if (isfinite(value))
        fprintf(file, "%.9g", value);
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

/* K(column, key of the scenario whose value it has), P(column, expression that writes it).
 * The documented columns of `dtplan plan --csv` and of `dtplan sweep`: names never change their meaning; new ones may
 * come. What was asked for a key stands in its column where the plan is refused. Only keys that stand before figures,
 * or whose column has another unit than its row says, are named here: every other gets a column by its row, at the end,
 * so that plans that differ differ in a column. */
#define COLUMN_TABLE(K, P)                                                                                             \
    /* -- what is trained, on what ----------------------------------------------------------------------------- */    \
    K("model", model)                                                                                                  \
    K("params_count", params)                                                                                          \
    K("seq_tokens", seq)                                                                                               \
    K("gpu", gpu)                                                                                                      \
    K("machine", machine)                                                                                              \
    K("gpus_count", gpus)                                                                                              \
    K("gpus_per_node_count", gpus_per_node)                                                                            \
    K("nodes_count", nodes)                                                                                            \
    P("network_bytes_per_s", write_real(f, r->job.cluster.machine.network_bytes_per_s))                                \
    K("oversubscription", oversubscription)                                                                            \
    K("leaf_nodes_count", leaf_nodes)                                                                                  \
    /* -- the plan --------------------------------------------------------------------------------------------- */    \
    K("runtime", runtime)                                                                                              \
    K("compile", compile)                                                                                              \
    K("compile_loss", compile_loss)                                                                                    \
    K("fsdp1", fsdp1)                                                                                                  \
    K("expandable_segments", expandable_segments)                                                                      \
    K("limit_all_gathers", limit_all_gathers)                                                                          \
    K("shard_group_gpus_count", shard_group)                                                                           \
    K("tp_count", tp)                                                                                                  \
    K("pp_count", pp)                                                                                                  \
    K("cp_count", cp)                                                                                                  \
    K("ep_count", ep)                                                                                                  \
    K("flex_dispatcher", flex_dispatcher)                                                                              \
    K("expert_imbalance", expert_imbalance)                                                                            \
    K("micro_batch_sequences", micro_batch)                                                                            \
    K("accumulate_count", accumulate)                                                                                  \
    K("accumulate_sync", accumulate_sync)                                                                              \
    K("global_batch_sequences", global_batch)                                                                          \
    K("global_batch_tokens", global_batch_tokens)                                                                      \
    K("checkpointing", checkpointing)                                                                                  \
    K("offload", offload)                                                                                              \
    K("precision", precision)                                                                                          \
    K("param_dtype", param_dtype)                                                                                      \
    K("compute_dtype", compute_dtype)                                                                                  \
    K("reduce_dtype", reduce_dtype)                                                                                    \
    K("master_dtype", master_dtype)                                                                                    \
    K("moment_dtype", moment_dtype)                                                                                    \
    K("fp8_all_gather", fp8_all_gather)                                                                                \
    K("attention", attention)                                                                                          \
    K("loss", loss)                                                                                                    \
    K("optimizer", optimizer)                                                                                          \
    K("wrap_layers_count", wrap_layers)                                                                                \
    K("reshard_after_forward", reshard_after_forward)                                                                  \
    K("keep_root", keep_root)                                                                                          \
    K("wrap_ends", wrap_ends)                                                                                          \
    K("prefetch", prefetch)                                                                                            \
    P("ddp_bucket_bytes", write_whole(f, r->job.plan.ddp_bucket_bytes))                                                \
    K("ddp_bucket_view", ddp_bucket_view)                                                                              \
    K("process_group", process_group)                                                                                  \
    K("deepspeed_overlap", deepspeed_overlap)                                                                          \
    K("fused_qkv", fused_qkv)                                                                                          \
    K("fused_gate_up", fused_gate_up)                                                                                  \
    P("fidelity", write_text(f, r->simulated ? "simulated" : "closed"))                                                \
    /* -- memory: of the fullest GPU; host and NVMe of a node --------------------------------------------------- */   \
    P("verdict", write_text(f, dtp_verdict_text(r->prediction.memory.verdict)))                                        \
    P("params_bytes", write_whole(f, r->prediction.memory.params_bytes))                                               \
    P("grads_bytes", write_whole(f, r->prediction.memory.grads_bytes))                                                 \
    P("optimizer_bytes", write_whole(f, r->prediction.memory.optimizer_bytes))                                         \
    P("activations_bytes", write_whole(f, r->prediction.memory.activations_bytes))                                     \
    P("temporary_bytes", write_whole(f, r->prediction.memory.temporary_bytes))                                         \
    P("allocated_peak_bytes", write_whole(f, r->prediction.memory.allocated_peak_bytes))                               \
    P("reserved_peak_bytes", write_whole(f, r->prediction.memory.reserved_peak_bytes))                                 \
    P("device_peak_bytes", write_whole(f, r->prediction.memory.device_peak_bytes))                                     \
    P("capacity_bytes", write_whole(f, r->prediction.memory.capacity_bytes))                                           \
    P("host_bytes", write_whole(f, r->prediction.memory.host_bytes))                                                   \
    P("nvme_bytes", write_whole(f, r->prediction.memory.nvme_bytes))                                                   \
    P("peak_params_bytes", write_peak(f, &r->prediction.memory, DTP_OWNER_PARAMS))                                     \
    P("peak_grads_bytes", write_peak(f, &r->prediction.memory, DTP_OWNER_GRADS))                                       \
    P("peak_optimizer_bytes", write_peak(f, &r->prediction.memory, DTP_OWNER_OPTIMIZER))                               \
    P("peak_activations_bytes", write_peak(f, &r->prediction.memory, DTP_OWNER_ACTIVATIONS))                           \
    P("peak_logits_bytes", write_peak(f, &r->prediction.memory, DTP_OWNER_LOGITS))                                     \
    P("peak_compute_weights_bytes", write_peak(f, &r->prediction.memory, DTP_OWNER_WEIGHTS))                           \
    P("peak_gather_bytes", write_peak(f, &r->prediction.memory, DTP_OWNER_GATHER))                                     \
    P("peak_reduce_bytes", write_peak(f, &r->prediction.memory, DTP_OWNER_REDUCE))                                     \
    P("peak_workspace_bytes", write_peak(f, &r->prediction.memory, DTP_OWNER_WORKSPACE))                               \
    P("context_bytes", write_whole(f, r->prediction.memory.context_bytes))                                             \
    P("nccl_bytes", write_whole(f, r->prediction.memory.nccl_bytes))                                                   \
    /* -- communication: each GPU sends, per optimizer step ------------------------------------------------------ */  \
    P("all_gather_bytes", write_whole(f, r->prediction.communication.bytes[DTP_ALL_GATHER]))                           \
    P("reduce_scatter_bytes", write_whole(f, r->prediction.communication.bytes[DTP_REDUCE_SCATTER]))                   \
    P("all_reduce_bytes", write_whole(f, r->prediction.communication.bytes[DTP_ALL_REDUCE]))                           \
    P("send_recv_bytes", write_whole(f, r->prediction.communication.bytes[DTP_SEND_RECV]))                             \
    P("all_to_all_bytes", write_whole(f, r->prediction.communication.bytes[DTP_ALL_TO_ALL]))                           \
    P("sent_bytes", write_whole(f, r->prediction.communication.total_bytes))                                           \
    P("sent_network_bytes", write_whole(f, r->prediction.communication.network_bytes))                                 \
    P("host_to_device_bytes", write_whole(f, r->prediction.communication.host_to_device_bytes))                        \
    P("device_to_host_bytes", write_whole(f, r->prediction.communication.device_to_host_bytes))                        \
    /* -- time of an optimizer step ------------------------------------------------------------------------------- */ \
    P("step_s", write_real(f, r->prediction.time.step_s))                                                              \
    P("step_perfect_overlap_s", write_real(f, r->prediction.time.step_perfect_overlap_s))                              \
    P("step_no_overlap_s", write_real(f, r->prediction.time.step_no_overlap_s))                                        \
    P("compute_s", write_real(f, r->prediction.time.compute_s))                                                        \
    P("optimizer_s", write_real(f, r->prediction.time.optimizer_s))                                                    \
    P("communication_s", write_real(f, r->prediction.time.communication_s))                                            \
    P("exposed_communication_s", write_real(f, r->prediction.time.exposed_communication_s))                            \
    P("exposed_offload_s", write_real(f, r->prediction.time.exposed_offload_s))                                        \
    P("bubble_s", write_real(f, r->prediction.time.bubble_s))                                                          \
    P("matmul_s", write_real(f, r->prediction.time.matmul_s))                                                          \
    P("attention_s", write_real(f, r->prediction.time.attention_s))                                                    \
    P("memory_bound_s", write_real(f, r->prediction.time.memory_bound_s))                                              \
    P("loss_s", write_real(f, r->prediction.time.loss_s))                                                              \
    P("recompute_s", write_real(f, r->prediction.time.recompute_s))                                                    \
    /* -- what it delivers ---------------------------------------------------------------------------------------- */ \
    P("tokens_per_s", write_real(f, r->prediction.throughput.tokens_per_s))                                            \
    P("tokens_per_s_per_gpu", write_real(f, r->prediction.throughput.tokens_per_s_per_gpu))                            \
    P("flops_per_s_per_gpu", write_real(f, r->prediction.throughput.flops_per_s_per_gpu))                              \
    P("mfu_fraction", write_real(f, r->prediction.throughput.mfu))                                                     \
    P("hfu_fraction", write_real(f, r->prediction.throughput.hfu))                                                     \
    P("scaling_efficiency_fraction", write_real(f, r->scaling.efficiency))                                             \
    P("scaling_reference_gpus_count", write_whole(f, r->scaling.reference_gpus))                                       \
    P("strong_scaling_efficiency_fraction", write_real(f, r->scaling.strong_efficiency))                               \
    P("strong_scaling_reference_gpus_count", write_whole(f, r->scaling.strong_reference_gpus))                         \
    /* -- money -----------------------------------------------------------------------------------------------------  \
     */                                                                                                                \
    P("job_usd_per_hour", write_price(f, &r->money, r->money.job_hour_usd[DTP_PRICE_TYPICAL]))                         \
    P("usd_per_billion_tokens", write_price(f, &r->money, r->money.billion_tokens_usd[DTP_PRICE_TYPICAL]))             \
    P("usd_per_million_tokens_low", write_price(f, &r->money, r->money.billion_tokens_usd[DTP_PRICE_LOW] / 1000))      \
    P("usd_per_million_tokens", write_price(f, &r->money, r->money.billion_tokens_usd[DTP_PRICE_TYPICAL] / 1000))      \
    P("usd_per_million_tokens_high", write_price(f, &r->money, r->money.billion_tokens_usd[DTP_PRICE_HIGH] / 1000))    \
    P("training_s", write_training(f, &r->training, r->training.goodput.expected_s))                                   \
    P("training_usd", write_training(f, &r->training, r->money.known ? r->training.usd[DTP_PRICE_TYPICAL] : NAN))      \
    P("training_gpu_energy_j", write_training(f, &r->training, r->training.gpu_energy_j))                              \
    P("goodput_fraction", write_training(f, &r->training, r->training.goodput.fraction))

/* What was asked for where nothing came of it. */
static void write_asked(const struct dtp_comparison_row *row, enum dtp_key key, FILE *f)
{
    char asked[4096];
    if (row->scenario && dtp_scenario_plain(row->scenario, dtp_key_name(key), asked, sizeof asked))
        write_text(f, asked);
}

/* ---- keys without a column of their own -------------------------------------------------------------------------- */

/* The strategy stands first in every row; a name changes no prediction. */
static const bool has_column[DTP_KEY_COUNT] = {[DTP_KEY_strategy] = true,
                                               [DTP_KEY_name] = true,
#define KEY_COLUMN(name, key) [DTP_KEY_##key] = true,
#define PLAIN_COLUMN(name, expression)
                                               COLUMN_TABLE(KEY_COLUMN, PLAIN_COLUMN)
#undef KEY_COLUMN
#undef PLAIN_COLUMN
};

static void write_value(const struct dtp_job_value *value, FILE *f)
{
    if (value->missing)
        return;
    switch (value->kind) {
    case DTP_VALUE_WHOLE:
    case DTP_VALUE_SWITCH: write_whole(f, value->whole); break;
    case DTP_VALUE_REAL: write_real(f, value->real); break;
    case DTP_VALUE_WORD: write_text(f, value->word); break;
    }
}

/* What a key is; where the plan is refused, what was asked. */
static void write_key(const struct dtp_comparison_row *row, const struct dtp_job_value *values, enum dtp_key key,
                      FILE *f)
{
    fputc(',', f);
    if (row->refused)
        write_asked(row, key, f);
    else
        write_value(&values[key], f);
}

static void write_other_names(FILE *file)
{
    size_t count;
    const struct dtp_scenario_key *keys = dtp_scenario_keys(&count);
    char name[96];
    for (size_t i = 0; i < count; i++)
        if (!has_column[i])
            fprintf(file, ",%s", dtp_job_value_name(&keys[i], true, name, sizeof name));
}

void dtp_report_csv_row(const struct dtp_comparison_row *row, FILE *f)
{
    const struct dtp_report *r = row->report;
    struct dtp_job_value values[DTP_JOB_VALUES_MAX];
    if (!row->refused)
        dtp_job_values(&r->job, values);
    write_text(f, row->strategy);
    fputc(',', f);
    write_text(f, row->refused ? row->reason : "");
#define WRITE_COLUMN(name, expression)                                                                                 \
    fputc(',', f);                                                                                                     \
    if (!row->refused) {                                                                                               \
        expression;                                                                                                    \
    }
#define WRITE_KEY_COLUMN(name, key) write_key(row, values, DTP_KEY_##key, f);
    COLUMN_TABLE(WRITE_KEY_COLUMN, WRITE_COLUMN)
#undef WRITE_KEY_COLUMN
#undef WRITE_COLUMN
    for (int key = 0; key < DTP_KEY_COUNT; key++)
        if (!has_column[key])
            write_key(row, values, (enum dtp_key)key, f);
    fputc('\n', f);
}

void dtp_report_csv_header(FILE *file)
{
    fputs("strategy,refused_because", file);
#define WRITE_NAME(name, expression) fputs("," name, file);
#define WRITE_KEY_NAME(name, key) WRITE_NAME(name, )
    COLUMN_TABLE(WRITE_KEY_NAME, WRITE_NAME)
#undef WRITE_KEY_NAME
#undef WRITE_NAME
    write_other_names(file);
    fputc('\n', file);
}

void dtp_report_csv(const struct dtp_comparison_row *rows, size_t count, FILE *file)
{
    dtp_report_csv_header(file);
    for (size_t i = 0; i < count; i++)
        dtp_report_csv_row(&rows[i], file);
}
