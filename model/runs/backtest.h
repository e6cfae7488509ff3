/* Backtest: the predictor scored on measured runs, beside the simplest predictor there is.
 *
 * Every row of a run table (run_table.h) is turned into a job from its configuration columns alone, predicted by the
 * closed form or by simulation, and only then compared with what was measured. A row whose configuration is not
 * modelled, not stated or contradictory is refused with the reason, and so is one that the predictor refuses: nothing
 * falls back from one kind of prediction to the other. rows = scored + refused. A row whose status says that it did not
 * run has nothing measured and is scored by its memory verdict, if it died for want of memory, else by nothing.
 *
 * Errors are signed, 100 * (predicted / measured - 1); the statistics are over their absolute values. "macro" is the
 * mean over sources of each source's median: 184 rows of one publication count as one.
 *
 * The baseline is one constant MFU for each GPU type and matmul dtype: tokens/s = MFU * peak / model FLOPs a token. It
 * is made as hard to beat as it gets: fitted in-sample, on the very rows it is scored on; with attention counted full
 * (12 L d_q s, PaLM), under which MFU varies less with the sequence than with the causal half; and by the median MFU,
 * whose median error on published_runs.csv is 7.4 % against 8.7 % by the mean (mean errors 13.6 and 13.5 %).
 *
 * A source is a publication: of "github:owner/repo path ..." and "arXiv:number ..." what precedes the first space, of
 * other texts what precedes the first ',' or '['. */
#ifndef DTP_BACKTEST_H
#define DTP_BACKTEST_H

#include "closed/closed_form.h"
#include "runs/run_table.h"
#include "job/variant.h"

enum dtp_backtest_verdict { DTP_BACKTEST_OK, DTP_BACKTEST_REFUSED };

/* Empty: count 0 and all values NaN. */
struct dtp_error_statistics {
    size_t count;
    double median_abs_pct, mean_abs_pct, max_abs_pct;
    double median_pct; /* signed: above 0 = predictions too high */
};

/* All that follows from what was run, without a look at what was measured. */
struct dtp_backtest_forecast {
    char gpu_key[32];            /* the catalogue's */
    bool by_machine_file;        /* of the predictor */
    enum dtp_dtype matmul_dtype; /* what an MFU of this row refers to */
    double step_tokens_per_gpu, peak_flops_per_s;
    double full_attention_flops_per_token; /* model FLOPs with attention counted full: the baseline's convention */
    struct dtp_prediction prediction;
};

struct dtp_backtest_row {
    struct dtp_run run; /* its text is borrowed from the backtest's table */
    struct dtp_run_measured measured;
    size_t source_group, dtype_group; /* index into sources, dtypes; SIZE_MAX = in none */
    bool predicted;                   /* `forecast` holds; a refused row may have one (nothing measured) */
    struct dtp_backtest_forecast forecast;
    double measured_tokens_per_s_per_gpu;          /* 0 = not measured; from the step time where only that is given */
    double baseline_tokens_per_s_per_gpu;          /* 0 = none */
    double error_pct, baseline_error_pct;          /* of tokens/s; NaN = none */
    double memory_error_pct[DTP_RUN_MEMORY_COUNT]; /* NaN = none */
    enum dtp_backtest_verdict verdict;
    char reason[512];       /* of a refusal; several are joined by "; " */
    char first_reason[200]; /* the first of them: what refusals are counted by */
};

/* One publication, or one publication's rows of one matmul dtype. */
struct dtp_backtest_group {
    char name[160];
    size_t rows, scored, first_row;
    struct dtp_error_statistics throughput, baseline, memory[DTP_RUN_MEMORY_COUNT];
};

struct dtp_backtest_refusal {
    const char *reason; /* borrowed from a row */
    size_t rows;
};

struct dtp_backtest {
    const char *fidelity; /* the predictor's name */
    const char *machine;  /* its machine file, borrowed; or NULL */
    size_t by_machine;    /* scored rows that were predicted by it */
    struct dtp_table *table;
    struct dtp_backtest_row *rows;
    size_t row_count, scored, refused;
    struct dtp_error_statistics throughput, baseline, memory[DTP_RUN_MEMORY_COUNT];
    double macro_median_abs_pct, baseline_macro_median_abs_pct; /* NaN when nothing was scored */
    /* Of the scored rows, by how they ended and enum dtp_verdict: oom of one that ran is a false alarm, fits or tight
     * of one that died for want of memory a miss. Ends of other kinds say nothing of memory. */
    size_t fit_count[DTP_RUN_END_COUNT][3];
    struct dtp_backtest_group *sources; /* in order of appearance */
    size_t source_count;
    struct dtp_backtest_group *dtypes; /* "source, dtype" for sources with rows of more than one dtype */
    size_t dtype_count;
    struct dtp_backtest_refusal *refusals; /* most frequent first */
    size_t refusal_count;
};

/* Scores the table at `path` by the closed form. Caller destroys *out; NULL on failure. A table that is no run table or
 * has no rows is DTP_BAD_INPUT; refused rows are none of the faults. Takes about 10 us a row. */
enum dtp_status dtp_backtest_run(const char *path, const struct dtp_catalog *catalog, struct dtp_backtest **out,
                                 struct dtp_faults *faults);
/* The same by any predictor, on the rows whose id or source starts with `only` (NULL: all). None of them is
 * DTP_BAD_INPUT, and so is a machine file that no row is predicted by. */
enum dtp_status dtp_backtest_run_only(const char *path, const char *only, const struct dtp_predictor *predictor,
                                      const struct dtp_catalog *catalog, struct dtp_backtest **out,
                                      struct dtp_faults *faults);
void dtp_backtest_destroy(struct dtp_backtest *backtest);

/* What a prediction says for one kind of memory figure. */
double dtp_backtest_predicted_memory(const struct dtp_prediction *prediction, enum dtp_run_memory kind);
/* From configuration to forecast. The only way into the predictor, and no measured value fits through it. */
enum dtp_status dtp_backtest_predict(const struct dtp_run *run, const struct dtp_predictor *predictor,
                                     const struct dtp_catalog *catalog, struct dtp_backtest_forecast *out,
                                     struct dtp_faults *faults);
/* Median (GSL), mean and maximum of `errors_pct`, NaNs left out; reorders the array. */
struct dtp_error_statistics dtp_error_statistics(double *errors_pct, size_t count);

#endif
