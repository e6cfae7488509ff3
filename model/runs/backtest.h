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
 * The baseline is one constant MFU for each GPU type and peak of its dtype: tokens/s = MFU * peak / model FLOPs a
 * token. It is made as hard to beat as it gets: fitted in-sample, on the very rows it is scored on; with attention
 * counted full (12 L d_q s, PaLM), under which MFU varies less with the sequence than with the causal half; and by the
 * median MFU, whose median error on published_runs.csv is 7.4 % against 8.7 % by the mean (mean errors 13.6 and 13.5
 * %). Beside it stands the same fitted without the source that it is scored on: what a constant MFU is worth for unseen
 * runs.
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
    uint64_t nodes;
    double step_tokens_per_gpu, peak_flops_per_s;
    double full_attention_flops_per_token; /* model FLOPs with attention counted full: the baseline's convention */
    struct dtp_prediction prediction;
};

struct dtp_backtest_row {
    const struct dtp_table *table; /* where it stands */
    struct dtp_run run;            /* its text is borrowed from that table */
    struct dtp_run_measured measured;
    size_t source_group, dtype_group;     /* index into sources, dtypes; SIZE_MAX = in none */
    size_t decision;                      /* index into decisions; SIZE_MAX = in none that is judged */
    double predicted_rank, measured_rank; /* in its sweep, 1 = fastest, equals share the mean; NaN = in none */
    bool predicted;                       /* `forecast` holds; a refused row may have one (nothing measured) */
    struct dtp_backtest_forecast forecast;
    double measured_tokens_per_s_per_gpu;          /* 0 = not measured; from the step time where only that is given */
    double baseline_tokens_per_s_per_gpu;          /* 0 = none */
    double error_pct, baseline_error_pct;          /* of tokens/s; NaN = none */
    double unseen_baseline_error_pct;              /* by the MFU of other sources' rows; NaN = no other has any */
    double memory_error_pct[DTP_RUN_MEMORY_COUNT]; /* NaN = none */
    enum dtp_backtest_verdict verdict;
    bool unstated;          /* refused, and it does not state all that a job needs */
    char reason[512];       /* of a refusal; several are joined by "; " */
    char first_reason[200]; /* the first of them: what refusals are counted by */
};

/* One publication, or one publication's rows of one matmul dtype. */
struct dtp_backtest_group {
    char name[160];
    size_t rows, scored, first_row;
    struct dtp_error_statistics throughput, baseline, unseen_baseline, memory[DTP_RUN_MEMORY_COUNT];
    struct dtp_error_statistics beside_unseen; /* throughput of the rows that the unseen baseline predicts */
};

/* A sweep: rows of one publication, model, kind of GPU, sequence length and number of nodes, which somebody could have
 * chosen among. Judged by what was measured of the configuration that predictions would have chosen: the fastest of
 * those predicted not to be out of memory; where several are predicted equally fast, the mean of them. One that died
 * for want of memory delivers nothing, and so does choosing nothing because all are predicted to. */
struct dtp_backtest_decision {
    size_t source;               /* index into sources */
    const char *model, *gpu_key; /* borrowed */
    uint64_t sequence, nodes;
    size_t configurations;   /* different ones whose tokens/s were measured; fewer than three are not judged */
    double rank_correlation; /* Spearman's, of predicted and measured tokens/s; NaN: one of them is the same for all */
    double of_best;          /* tokens/s of the chosen over the best measured, 0 to 1: 1 = nothing lost */
    size_t chosen, best;     /* rows; SIZE_MAX: nothing is chosen. Of several chosen the first */
};

/* Over the sweeps that are judged; NaN where there are none (or none has a rank correlation). */
struct dtp_backtest_choices {
    double median_rank_correlation, least_rank_correlation, mean_of_best, least_of_best;
    /* Pairs of runs of one sweep that differ in one setting and in speed: all, ordered right, predicted alike. */
    size_t pairs, pairs_right, pairs_alike;
};

/* Reasons that differ in figures and quoted names alone are one: those are N and '...' then. */
struct dtp_backtest_refusal {
    char reason[200];
    const char *same; /* what all its rows say to the letter, borrowed from one; or NULL */
    size_t rows;
    char ids[400];      /* of its rows: "mm-003, mm-011 to mm-013"; cut off with "..." */
    size_t first, last; /* rows of the run of neighbours that `ids` ends with */
};

struct dtp_backtest {
    const char *fidelity; /* the predictor's name */
    const char *machine;  /* its machine file, borrowed; or NULL */
    size_t by_machine;    /* scored rows that were predicted by it */
    struct dtp_table **tables;
    size_t table_count;
    struct dtp_backtest_row *rows; /* in the order of the tables */
    size_t row_count, scored, refused;
    size_t unstated; /* of the refused: rows that do not state all that a job needs, and so are not complete */
    struct dtp_error_statistics throughput, baseline, unseen_baseline, memory[DTP_RUN_MEMORY_COUNT];
    double macro_median_abs_pct, baseline_macro_median_abs_pct; /* NaN when nothing was scored */
    /* Of the scored rows, by how they ended and enum dtp_verdict: oom of one that ran is a false alarm, fits or tight
     * of one that died for want of memory a miss. Ends of other kinds say nothing of memory. */
    size_t fit_count[DTP_RUN_END_COUNT][3];
    struct dtp_backtest_group *sources; /* in order of appearance */
    size_t source_count;
    struct dtp_backtest_group *dtypes; /* "source, dtype" for sources with rows of more than one dtype */
    size_t dtype_count;
    struct dtp_backtest_decision *decisions; /* sweeps that are judged, by source, model, GPU, sequence and nodes */
    size_t decision_count;
    struct dtp_backtest_choices choices;
    struct dtp_backtest_refusal *refusals; /* most frequent first */
    size_t refusal_count;
};

/* Who is asked for and told of what takes long; both may be NULL. */
struct dtp_watch {
    void *context;
    bool (*told)(void *context, size_t done, size_t count); /* false: stop; called a few times a second */
};

/* What is scored: rows of these tables together, as if they were one. */
struct dtp_backtest_request {
    const char *const *paths;
    size_t path_count;
    const char *only;  /* rows whose id or source starts so; NULL: all */
    const char *noted; /* rows whose notes hold this text, such as q=A; NULL: all */
    const struct dtp_predictor *predictor;
    const struct dtp_watch *watch; /* told of rows; NULL: nobody */
};

/* Scores on all cores; by the closed form that takes about 10 us a row. Caller destroys *out; NULL on failure. A table
 * that is no run table or has no rows is DTP_BAD_INPUT, and so are no row that is wanted and a machine file that no row
 * is predicted by; refused rows are none of the faults. DTP_NO: stopped. */
enum dtp_status dtp_backtest_score(const struct dtp_backtest_request *request, const struct dtp_catalog *catalog,
                                   struct dtp_backtest **out, struct dtp_faults *faults);
/* All rows of one table, by the closed form. */
enum dtp_status dtp_backtest_run(const char *path, const struct dtp_catalog *catalog, struct dtp_backtest **out,
                                 struct dtp_faults *faults);
/* Rows of one table by any predictor. */
enum dtp_status dtp_backtest_run_only(const char *path, const char *only, const struct dtp_predictor *predictor,
                                      const struct dtp_catalog *catalog, struct dtp_backtest **out,
                                      struct dtp_faults *faults);
void dtp_backtest_destroy(struct dtp_backtest *backtest);

/* "llama-2-7b 2 nodes h100-sxm s4096" */
void dtp_backtest_name_sweep(const struct dtp_backtest_decision *sweep, char *out, size_t bytes);
/* What a prediction says for one kind of memory figure. */
double dtp_backtest_predicted_memory(const struct dtp_prediction *prediction, enum dtp_run_memory kind);
/* Median (GSL), mean and maximum of `errors_pct`, NaNs left out; reorders the array. */
struct dtp_error_statistics dtp_error_statistics(double *errors_pct, size_t count);

#endif
