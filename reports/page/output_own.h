/* Which files dtplan wrote itself: only those may be replaced without a word.
 *
 * A file shows it by its content, never by its name. What people look at or are invited to change (figures, their
 * scripts and data, pages, step programs, traces) ends in a seal, a remark in the file's own language with the digest
 * of all that stands before it: a file that was changed since is the user's. Tables are for other programs, which a
 * remark would disturb, for CSV knows none; those are known by their header and by lines that all have its columns:
 * what was added to them is seen, a figure written over is not. What a machine was measured to be is never replaced
 * unasked, whoever wrote it. */
#ifndef DTP_OUTPUT_OWN_H
#define DTP_OUTPUT_OWN_H

#include "page/output_file.h"

#define DTP_TIMELINE_BEGINS "op,stream,kind,class,name,"
#define DTP_SCHEDULE_PASSES_BEGINS "schedule,rank,stage,chunk,micro_batch,pass,"
#define DTP_RANKS_BEGINS "rank,worst,chunks_count,"
#define DTP_MEMORY_BEGINS "time_s,op,"
#define DTP_BACKTEST_BEGINS "id,source,gpu_key,strategy_key,verdict,"

/* X(suffix, how it begins, words). A beginning: a table, of which a last line without its end of line is a run's that
 * was killed. Without: sealed ones end in a seal, others never are dtplan's own. */
#define DTP_OUTPUT_TABLE(X)                                                                                            \
    X(TRACE, NULL, "trace")                                                                                            \
    X(TIMELINE, DTP_TIMELINE_BEGINS, "timeline")                                                                       \
    X(SCHEDULE, DTP_SCHEDULE_PASSES_BEGINS, "table of passes")                                                         \
    X(RANKS, DTP_RANKS_BEGINS, "table of ranks")                                                                       \
    X(MEMORY, DTP_MEMORY_BEGINS, "table of memory")                                                                    \
    X(BACKTEST, DTP_BACKTEST_BEGINS, "table of scored runs")                                                           \
    X(PROGRAM, NULL, "step program")                                                                                   \
    X(STEP_LOG, DTP_STEP_LOG_BEGINS, "log of a run")                                                                   \
    X(OP_TIMES, DTP_OP_TIMES_BEGINS, "table of operations' times")                                                     \
    X(MACHINE, NULL, "machine file")                                                                                   \
    X(PAGE, NULL, "page")                                                                                              \
    X(FIGURE, NULL, "figure")                                                                                          \
    X(SCRIPT, NULL, "script")                                                                                          \
    X(CHART_DATA, NULL, "data")                                                                                        \
    X(ROWS, NULL, "table")                                                                                             \
    X(CHOICES, NULL, "file of matmul algorithms")                                                                      \
    X(FOLDER, NULL, "folder")                                                                                          \
    X(SNAPSHOT, NULL, "history of memory")
enum dtp_output_kind {
#define X(suffix, begins, words) DTP_OUTPUT_##suffix,
    DTP_OUTPUT_TABLE(X)
#undef X
        DTP_OUTPUT_KIND_COUNT
};

/* Whether what stands there, if anything, may be replaced: nothing is lost where it is missing, empty, no plain file,
 * or dtplan's own. DTP_BAD_INPUT with what to do where not. ROWS, CHOICES and FOLDER are added to, never replaced:
 * whoever opens them judges. */
enum dtp_status dtp_output_may_replace(const char *path, enum dtp_output_kind kind, struct dtp_faults *faults);

/* As dtp_output_end, of what was written as TRACE or PROGRAM, with its seal; a pipe gets none. */
enum dtp_status dtp_output_end_sealed(struct dtp_output_file *output, enum dtp_output_kind kind,
                                      enum dtp_status written, struct dtp_faults *faults);
/* Writes the whole file, `text` and its seal. PAGE, SCRIPT, CHART_DATA, or FIGURE, whose ending says its language:
 * .png, .svg, .pdf or .txt. */
enum dtp_status dtp_output_write_sealed(const char *path, enum dtp_output_kind kind, const char *text, size_t bytes,
                                        struct dtp_faults *faults);
/* The same of a page that goes to standard output. */
void dtp_output_print_page(FILE *file, const char *text, size_t bytes);

#endif
