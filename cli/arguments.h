/* The command line as data: which command, which of its options, which keys of the scenario table.
 *
 * A flag is either an option of the front end (--json, listed in options.def) or a key of the scenario table
 * (--micro-batch 4, --micro-batch=4, --compile, --no-compile). Nothing is resolved here. */
#ifndef DTP_ARGUMENTS_H
#define DTP_ARGUMENTS_H

#include "page/output_own.h"
#include "decide/solve.h"
#include "base/status.h"

#include <stdint.h>

/* X(suffix, name as typed, dtp_command_... of command.h), in the order of --help. */
#define DTP_COMMAND_TABLE(X)                                                                                           \
    X(PLAN, "plan", plan)                                                                                              \
    X(EXPLAIN, "explain", explain)                                                                                     \
    X(SIMULATE, "simulate", simulate)                                                                                  \
    X(WHATIF, "whatif", whatif)                                                                                        \
    X(SWEEP, "sweep", sweep)                                                                                           \
    X(SEARCH, "search", search)                                                                                        \
    X(BACKTEST, "backtest", backtest)                                                                                  \
    X(CHART, "chart", chart)                                                                                           \
    X(REPORT, "report", report)                                                                                        \
    X(LAUNCH, "launch", launch)                                                                                        \
    X(RUN, "run", run)                                                                                                 \
    X(VALIDATE, "validate", validate)                                                                                  \
    X(COMPARE, "compare", compare)                                                                                     \
    X(PROBE, "probe", probe)                                                                                           \
    X(CATALOG, "catalog", catalog)                                                                                     \
    X(DOCTOR, "doctor", doctor)                                                                                        \
    X(SCHEDULE, "schedule", schedule)                                                                                  \
    X(HELP, "help", help)
enum dtp_command {
#define DTP_COMMAND_ENUM(suffix, name, function) DTP_COMMAND_##suffix,
    DTP_COMMAND_TABLE(DTP_COMMAND_ENUM)
#undef DTP_COMMAND_ENUM
        DTP_COMMAND_COUNT
};
const char *dtp_command_text(enum dtp_command command);

/* What an option's value is to the call. */
enum dtp_file_role { DTP_FILE_NONE, DTP_FILE_READ, DTP_FILE_WRITTEN };

/* An option of the front end, a row of options.def. */
struct dtp_option {
    const char *flag;  /* "--json" */
    const char *value; /* "FILE", or NULL for a switch */
    unsigned commands; /* bit 1 << enum dtp_command for each command that takes it */
    const char *words;
    enum dtp_file_role role;   /* of its value */
    enum dtp_output_kind kind; /* of what is written; of --output the command's */
    size_t stored;             /* where in struct dtp_arguments; 0: not as it was typed */
};
const struct dtp_option *dtp_options(size_t *count);

/* One key of the scenario table as it was typed; texts point into argv or to constants. */
struct dtp_typed_key {
    const char *flag, *key, *value; /* the key's own name, whatever other word the flag is */
    const char *word;               /* what was typed for it: the key, or another word */
};

/* A flag of `run` and `validate` that dtplan-exec reads, or of `schedule`, which reads its own; value NULL: a switch.
 */
struct dtp_passed_flag {
    const char *flag, *value;
};

/* A file that an option named; `flag` as the table has it. */
struct dtp_typed_file {
    const char *flag, *path;
    enum dtp_file_role role;
    enum dtp_output_kind kind;
};

struct dtp_arguments {
    enum dtp_command command;
    bool command_named; /* false: plan by default */
    bool help, version, json, csv;
    bool program;              /* explain --program */
    const char *write_program; /* simulate --write-program, or NULL */
    const char *program_file;  /* simulate, run --program-file, or NULL */
    bool simulated;            /* --fidelity simulated */
    bool closed;               /* --fidelity closed */
    uint32_t max_gpus;         /* of a search; 0: not given */
    uint32_t max_nodes;        /* likewise */
    const char *exclude_gpus;  /* search --exclude-gpu LIST, or NULL */
    bool no_advice;            /* plan --no-advice */
    bool charts;               /* simulate --charts */
    bool leave_one_out;        /* backtest --leave-one-out */
    const char *machine;       /* backtest --machine FILE.csv, or NULL; elsewhere a key of the job */
    bool solves;               /* one of --max-micro-batch, --max-seq, --min-gpus was given: goal */
    enum dtp_solve_goal goal;
    uint64_t samples, seed;                /* simulate: jobs of the step's quantiles, and their seed */
    double rank_deviation, straggler;      /* simulate: 0 = not given */
    const char *output;                    /* -o FILE, or NULL: none, or standard output asked for by "-" */
    bool resume, force;                    /* validate --resume; --force of all that write files */
    double tolerance;                      /* validate: a fraction; 0: not given */
    const char *chart, *refit;             /* a figure; of validate, a machine file; or NULL */
    const char *loss_beside;               /* run: another one's log, or NULL */
    const char *only;                      /* --only PREFIX, or NULL */
    const char *notes;                     /* --notes TEXT, or NULL */
    const char *trace, *timeline, *memory; /* files of simulate, or NULL */
    const char *snapshot;                  /* file of run, or NULL */
    const char **catalogs;                 /* --catalog FILE ... */
    size_t catalog_count;
    const char *to;     /* launch --to NAME, or NULL */
    const char **froms; /* --from FILE ... */
    size_t from_count;
    const char **wheres; /* --where COLUMN=VALUE ... */
    size_t where_count;
    const char **words; /* what is neither flag nor value */
    size_t word_count;
    struct dtp_typed_key *settings;
    size_t setting_count;
    struct dtp_passed_flag *passed;
    size_t passed_count;
    struct dtp_typed_file *files; /* of options; words and keys may name more: call_files.h knows them all */
    size_t file_count;
};

/* All faults of the line at once. Destroy also after a failure. */
enum dtp_status dtp_arguments_read(int argc, char **argv, struct dtp_arguments *out, struct dtp_faults *faults);
void dtp_arguments_destroy(struct dtp_arguments *arguments);
/* Whether it takes a job: scenario files and --KEY VALUE. */
bool dtp_command_takes_job(enum dtp_command command);
/* A sweep, a search, a validation: a key may have several values (axes.h). */
bool dtp_command_takes_lists(enum dtp_command command);
/* The command of that name; false when there is none. */
bool dtp_command_parse(const char *text, enum dtp_command *out);
/* Fault "unknown command" with the nearest names. */
enum dtp_status dtp_command_unknown(const char *text, struct dtp_faults *faults);

/* ---- flags as words, for arguments.c (arguments_words.c) --------------------------------------------------------- */

/* "--micro-batch" without its leading hyphens and any "=value", as a key: "micro_batch". */
void dtp_key_of_flag(const char *flag, char *key, size_t bytes);
/* Names the flags of the command that resemble the typed one. */
void dtp_fault_unknown_flag(const char *flag, enum dtp_command command, struct dtp_faults *faults);

/* A value that is no such number is a fault. */
void dtp_argument_most(uint32_t *out, const char *flag, const char *value, struct dtp_faults *faults);
void dtp_argument_whole(uint64_t *out, const char *flag, const char *value, uint64_t minimum, uint64_t maximum,
                        struct dtp_faults *faults);
void dtp_argument_factor(double *out, const char *flag, const char *value, double minimum, double maximum,
                         struct dtp_faults *faults);
void dtp_argument_tolerance(struct dtp_arguments *a, const char *value, struct dtp_faults *faults);

#endif
