/* ROWS.csv: what was predicted, what was measured, how far apart, row by row. */
#include "record/backtest_report.h"

#include "page/output_own.h"

#include <math.h>
#include <string.h>

static void write_text(FILE *file, const char *text)
{
    dtp_table_write_field(file, text);
    fputc(',', file);
}

/* Empty where there is no value. */
static void write_value(FILE *file, bool present, double value)
{
    if (present && isfinite(value))
        fprintf(file, "%.12g", value);
    fputc(',', file);
}

static void write_header(FILE *file)
{
    fputs(DTP_BACKTEST_BEGINS "predicted_tokens_per_s_per_gpu,measured_tokens_per_s_per_gpu,error_pct,baseline_tokens_"
                              "per_s_per_gpu,baseline_error_pct,predicted_step_s,measured_step_s,",
          file);
    for (int kind = 0; kind < DTP_RUN_MEMORY_COUNT; kind++) {
        const char *word = dtp_run_memory_word((enum dtp_run_memory)kind);
        fprintf(file, "predicted_%s_bytes,measured_%s_bytes,%s_error_pct,", word, word, word);
    }
    fputs("predicted_fit,matmul_s,attention_s,memory_bound_s,loss_s,recompute_s,host_launch_s,compute_s,optimizer_s,"
          "communication_s,exposed_communication_s,exposed_offload_s,peak_phase,status,sweep,predicted_rank,measured_"
          "rank,regret,unseen_baseline_error_pct,reason\n",
          file);
}

static void write_memory(FILE *file, const struct dtp_backtest_row *row)
{
    for (int kind = 0; kind < DTP_RUN_MEMORY_COUNT; kind++) {
        double measured = row->measured.memory_bytes[kind];
        write_value(file, row->predicted,
                    dtp_backtest_predicted_memory(&row->forecast.prediction, (enum dtp_run_memory)kind));
        write_value(file, measured > 0, measured);
        write_value(file, true, row->memory_error_pct[kind]);
    }
}

/* Where the predicted time goes: to see which part of a bad prediction is the bad one. */
static void write_parts(FILE *file, const struct dtp_backtest_row *row)
{
    const struct dtp_time *t = &row->forecast.prediction.time;
    const double parts[] = {
        t->matmul_s,         t->attention_s, t->memory_bound_s, t->loss_s,          t->recompute_s,
        t->host_launch_s,    t->compute_s,   t->optimizer_s,    t->communication_s, t->exposed_communication_s,
        t->exposed_offload_s};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        write_value(file, row->predicted, parts[i]);
}

/* The sweep that a row is judged in, and what choosing in it delivers. */
static void write_decision(FILE *file, const struct dtp_backtest *backtest, const struct dtp_backtest_row *row)
{
    char sweep[256] = "";
    const struct dtp_backtest_decision *d = row->decision == SIZE_MAX ? NULL : &backtest->decisions[row->decision];
    if (d)
        dtp_backtest_name_sweep(d, sweep, sizeof sweep);
    write_text(file, sweep);
    write_value(file, true, row->predicted_rank);
    write_value(file, true, row->measured_rank);
    write_value(file, d != NULL, d ? d->of_best : (double)NAN);
}

static void write_row(FILE *file, const struct dtp_backtest *backtest, const struct dtp_backtest_row *row)
{
    const struct dtp_prediction *prediction = &row->forecast.prediction;
    write_text(file, row->run.id);
    write_text(file, row->run.source);
    write_text(file, row->run.gpu_key);
    write_text(file, row->run.strategy_key);
    write_text(file, row->verdict == DTP_BACKTEST_OK ? "ok" : "refused");
    write_value(file, row->predicted, prediction->throughput.tokens_per_s_per_gpu);
    write_value(file, row->measured_tokens_per_s_per_gpu > 0, row->measured_tokens_per_s_per_gpu);
    write_value(file, true, row->error_pct);
    write_value(file, row->baseline_tokens_per_s_per_gpu > 0, row->baseline_tokens_per_s_per_gpu);
    write_value(file, true, row->baseline_error_pct);
    write_value(file, row->predicted, prediction->time.step_s);
    write_value(file, row->measured.step_s > 0, row->measured.step_s);
    write_memory(file, row);
    write_text(file, row->predicted ? dtp_verdict_text(prediction->memory.verdict) : "");
    write_parts(file, row);
    write_text(file, row->predicted ? dtp_phase_key(prediction->memory.peak_phase) : "");
    write_text(file, row->measured.status ? row->measured.status : "");
    write_decision(file, backtest, row);
    write_value(file, true, row->unseen_baseline_error_pct);
    dtp_table_write_field(file, row->reason);
    fputc('\n', file);
}

void dtp_backtest_print_rows(FILE *file, const struct dtp_backtest *backtest, bool header)
{
    if (header)
        write_header(file);
    for (size_t i = 0; i < backtest->row_count; i++)
        write_row(file, backtest, &backtest->rows[i]);
}

enum dtp_status dtp_backtest_write_rows(const char *path, const struct dtp_backtest *backtest,
                                        struct dtp_faults *faults)
{
    struct dtp_output_file output;
    enum dtp_status status = dtp_output_open(path, &output, faults);
    if (status != DTP_OK)
        return status;
    dtp_backtest_print_rows(output.file, backtest, true);
    return dtp_output_close(&output, faults);
}
