/* Charts of CSV files, drawn by gnuplot as a process of its own.
 *
 * A chart takes a table that a command wrote; chart_data.h picks from it what is drawn. Figure, script and data lie
 * side by side (step.png, step.gp, step.data.csv), so that a user can change either and draw again with one command.
 * The scripts hold no name: files and title reach gnuplot as arguments, never through a shell, and no file name can
 * start with what gnuplot takes for a command ('<', '|', '~'), for all are given with their folder. The figure comes
 * out of gnuplot by its standard output and is sealed (output_own.h), as script and data are. Without gnuplot there are
 * the data, the script and a sentence. */
#ifndef DTP_CHART_H
#define DTP_CHART_H

#include "base/status.h"

#include <stdint.h>
#include <stdio.h>

/* X(enum suffix, name as typed = script reports/chart/NAME.gp, what it shows, where its table comes from). */
#define DTP_CHART_TABLE(X)                                                                                             \
    X(MEMORY, "memory", "device memory over one step, stacked by owner", "dtplan simulate --memory FILE.csv")          \
    X(TIMELINE, "timeline", "when each operation of a step runs, a lane a stream and rank",                            \
      "dtplan simulate --timeline FILE.csv")                                                                           \
    X(SCHEDULE, "schedule", "the passes of a pipeline schedule, a lane a rank, micro-batches numbered",                \
      "dtplan schedule --schedule NAME --passes FILE.csv")                                                             \
    X(STRATEGIES, "strategies", "memory at the peak, plan by plan, with the capacity",                                 \
      "dtplan plan --strategy all --csv")                                                                              \
    X(STEP, "step", "what the time of a step goes into, plan by plan", "dtplan plan --strategy all --csv")             \
    X(MICRO_BATCH, "micro-batch", "device memory against micro batch, with the capacity",                              \
      "dtplan sweep --micro-batch 1..16x2 -o FILE.csv")                                                                \
    X(SCALING, "scaling", "tokens/s and scaling efficiency against GPUs", "dtplan sweep --gpus 8..1024x2 -o FILE.csv") \
    X(PARETO, "pareto", "time against money, with the plans that no other beats", "dtplan search --csv")               \
    X(BACKTEST, "backtest", "predicted against measured tokens/s, with a band of 10 %",                                \
      "dtplan backtest RUNS.csv -o FILE.csv, dtplan validate -o FILE.csv")                                             \
    X(DECISIONS, "decisions", "predicted against measured rank in each sweep, and what the predicted best delivers",   \
      "dtplan backtest RUNS.csv -o FILE.csv")                                                                          \
    X(BANDWIDTH, "bandwidth", "bus bandwidth of collectives against size, measured and fitted",                        \
      "dtplan probe -o FILE.csv, or measurements: collective,gpus,nodes,bytes,time_s,bus_bytes_per_s")                 \
    X(MACHINE_RESIDUALS, "machine-residuals", "how far the fits of a measured machine are off, a point a row",         \
      "dtplan catalog measured MACHINE.csv --csv")
enum dtp_chart {
#define DTP_CHART_ENUM(suffix, name, words, command) DTP_CHART_##suffix,
    DTP_CHART_TABLE(DTP_CHART_ENUM)
#undef DTP_CHART_ENUM
        DTP_CHART_COUNT
};

const char *dtp_chart_name(enum dtp_chart chart);
const char *dtp_chart_words(enum dtp_chart chart);
const char *dtp_chart_command(enum dtp_chart chart);
/* False: there is no such chart. */
bool dtp_chart_parse(const char *name, enum dtp_chart *out);

struct dtp_chart_data; /* chart_data.h */

#define DTP_CHART_COLUMNS 100

/* What is drawn and where to. */
struct dtp_chart_figure {
    enum dtp_chart chart;
    const struct dtp_chart_data *data; /* written beside the figure, with the ending .data.csv; NULL: drawn is `csv` */
    const char *csv;                   /* a plain file that has a name */
    const char *figure; /* ends in .png, .svg, .pdf or .txt; its script is written beside it, with the ending .gp */
    const char *title;
    uint64_t closed_peak_bytes; /* marked in the chart of memory, 0: not */
    int columns;                /* of a figure of text; 0: DTP_CHART_COLUMNS */
};

/* Whether the chart is drawn from its table as it is, and so has no data beside the figure. */
bool dtp_chart_is_whole(enum dtp_chart chart);
/* DTP_BAD_INPUT: gnuplot draws no file of that ending. */
enum dtp_status dtp_chart_check_name(const char *figure, struct dtp_faults *faults);
/* `path` with another ending ("x.csv" and ".png" give "x.png"), always with a folder before it. Caller frees; NULL: no
 * memory. */
char *dtp_chart_beside(const char *path, const char *ending);

/* The files that dtp_chart_draw writes. */
struct dtp_chart_names {
    char *figure, *script, *data; /* `data` NULL: none */
};
/* False: no memory. Caller releases, also then. */
bool dtp_chart_names_make(enum dtp_chart chart, const char *figure, struct dtp_chart_names *out);
void dtp_chart_names_release(struct dtp_chart_names *names);

/* For those who work long before they draw: `said` gets a sentence where there is no gnuplot, else nothing. */
void dtp_chart_foretell(const char *figure, char *said, size_t said_bytes);
/* Writes data and script, then the figure, each whole or not at all, over whatever is there: whether it may,
 * dtp_output_may_replace says. Whoever ends this process ends gnuplot, and leaves no partial figure. `said` gets what
 * was done in one sentence. DTP_ENVIRONMENT: a file cannot be written, or gnuplot failed, with its own words. */
enum dtp_status dtp_chart_draw(const struct dtp_chart_figure *figure, char *said, size_t said_bytes,
                               struct dtp_faults *faults);
/* The same as text of so many columns, nothing left behind; `figure->figure` is not looked at. *drawn is false
 * where there is no gnuplot. */
enum dtp_status dtp_chart_print(const struct dtp_chart_figure *figure, int columns, FILE *out, bool *drawn,
                                struct dtp_faults *faults);

/* Draws the table that `write` makes of `object`, and says so on standard error. DTP_ENVIRONMENT: out of memory, and
 * what dtp_chart_draw refuses. */
typedef void (*dtp_chart_write)(const void *object, FILE *file);
enum dtp_status dtp_chart_draw_written(enum dtp_chart chart, dtp_chart_write write, const void *object,
                                       const char *figure, const char *title, struct dtp_faults *faults);

/* The scripts, put into the program when it is built. */
extern const char *const dtp_chart_scripts[DTP_CHART_COUNT];

#endif
