/* Runs beside their predictions: one row a run, in CSV, JSON and text. Schema dtplan.validate/1.
 *
 * A row is flat, and one table of fields serves the CSV file, the reader that goes on with it, and JSON: names never
 * differ. Memory is of the first rank, communication what a rank sends in one step, times are medians of a step. What a
 * run did not say is 0 among whole numbers and NAN (an empty field) among others. */
#ifndef DTP_VALIDATION_H
#define DTP_VALIDATION_H

#include "page/page.h"
#include "page/row_file.h"
#include "record/run_report.h"
#include "runs/refit.h"

#include <jansson.h>

#define DTP_VALIDATION_SCHEMA "dtplan.validate/1"

enum dtp_validation_side { DTP_VALIDATION_PREDICTED, DTP_VALIDATION_MEASURED, DTP_VALIDATION_SIDE_COUNT };

struct dtp_validation {
    char run[512];  /* the words that make it: "a.ini gpus=2 strategy=ddp" */
    char name[128]; /* for people: "llama-7b full_shard 4x2048 on 4 GPUs; checkpointing full" */
    char model[96], gpu[32], device[128];
    char strategy[24], checkpointing[48], offload[16], precision[32];
    char libraries[256], data[256];
    char program[DTP_PROGRAM_DIGEST_BYTES]; /* digest of the text that ran; "": a row of before there was one */
    uint64_t gpus, nodes, shard_group, micro_batch, sequence, accumulate;
    uint64_t status;   /* enum dtp_status that the run ended with; not OK: the figures below may be missing */
    char reason[512];  /* why */
    char outside[256]; /* what is beyond its bound, "": nothing; dtp_validation_judge */
    uint64_t compared; /* 1: its times can be compared with the prediction's */
    uint64_t
        ranks_a_gpu; /* beyond 1 they shared one, and no time means anything; 0: a row of before there was sharing */
    uint64_t
        ep; /* ranks that divide experts, whose exchanges are known on average alone; 0: a row of before it was told */
    uint64_t on_gpu, timed_steps, tokens_per_step, operations;
    double wall_s; /* of the whole run, start and end of the executor included */
    double step_s[DTP_VALIDATION_SIDE_COUNT], tokens_per_s[DTP_VALIDATION_SIDE_COUNT];
    double tokens_per_s_per_gpu[DTP_VALIDATION_SIDE_COUNT];
    double undisturbed_step_s; /* measured, as on cores that nothing else disturbs: pace.h; NAN: it did not say */
    double alone_step_s, in_place_step_s; /* the step simulated with measured times: compare.h */
    double expert_imbalance;  /* measured, of sums over all steps; NAN: no ranks divided experts, or none said it */
    double imbalanced_step_s; /* predicted where the fullest rank's experts have so many rows; NAN: not known */
    double first_loss, last_loss;
    uint64_t arena_bytes[DTP_VALIDATION_SIDE_COUNT], device_bytes[DTP_VALIDATION_SIDE_COUNT];
    uint64_t gpu_memory_bytes, host_arena_bytes;
    char runtime[16]; /* "": of a row of before there were several that run */
    /* Of a run by the framework's own program: its allocator's peaks; it has no arena. */
    uint64_t allocated_bytes[DTP_VALIDATION_SIDE_COUNT], reserved_bytes[DTP_VALIDATION_SIDE_COUNT];
    uint64_t host_to_device_bytes[DTP_VALIDATION_SIDE_COUNT], device_to_host_bytes[DTP_VALIDATION_SIDE_COUNT];
    uint64_t owner_bytes[DTP_OWNER_COUNT][DTP_VALIDATION_SIDE_COUNT];
    uint64_t sent_bytes[DTP_COLLECTIVE_COUNT][DTP_VALIDATION_SIDE_COUNT];
    double class_s[DTP_CLASS_STORAGE + 1][3]; /* predicted, alone, in place; sums over a step */
};

/* How far off a run may be. Bytes of the arena, sent by collectives and copied must be equal, where the executor ran.
 */
struct dtp_validation_bounds {
    double step_fraction;      /* |predicted / measured - 1| of a step; default 0.1 */
    double device_fraction;    /* of the device's memory; default 0.02 */
    double reference_fraction; /* of a framework's own program: of the peak of its tensors, and of the device's memory;
                                  default 0.01 */
};
struct dtp_validation_bounds dtp_validation_bounds_default(void);

/* What is known before a job has run: its words, shape and what is predicted; and after. */
void dtp_validation_plan(const struct dtp_simulated *simulated, struct dtp_validation *out);
void dtp_validation_measure(const struct dtp_run_report *report, struct dtp_validation *out);
/* Back to what the executor said, for a comparison with another prediction; times of operations aside. */
void dtp_validation_outcome(const struct dtp_validation *v, struct dtp_run_outcome *out);

/* Of a framework's own program, which has no arena and counts no bytes that it sends. */
bool dtp_validation_of_reference(const struct dtp_validation *v);
/* predicted / measured - 1 of the step, of a host as undisturbed cores make it, which is how they were probed; NAN
 * where they are not compared. */
double dtp_validation_step_error(const struct dtp_validation *v);
/* The same of the step predicted with the rows that the run's experts got; NAN where it is not known. */
double dtp_validation_imbalanced_error(const struct dtp_validation *v);
/* Fills `outside`; true where the run was made and nothing is. */
bool dtp_validation_judge(struct dtp_validation *v, const struct dtp_validation_bounds *bounds);

/* ---- the file ---------------------------------------------------------------------------------------------------- */

/* Columns: schema, validation (16 hexadecimal digits that stand for the runs), row, then the fields. Caller frees;
 * NULL: no memory. */
char *dtp_validation_header(void);
void dtp_validation_write_row(const struct dtp_row_file *file, uint64_t row, const struct dtp_validation *v, FILE *out);
/* Gives the plain file the columns that rows of earlier versions lack, empty, so that it can be gone on with; a file
 * that has them, or is none of ours, stays as it is. */
enum dtp_status dtp_validation_widen(const char *path, struct dtp_faults *faults);
/* The rows of a file. DTP_BAD_INPUT: a column is missing, or a field is no number. Caller frees *out. */
enum dtp_status dtp_validation_read(const char *path, struct dtp_validation **out, size_t *count,
                                    struct dtp_faults *faults);

/* The fields of a row as a table; private to the files of table/ that write and read rows. */
enum dtp_validation_kind { DTP_VALIDATION_TEXT, DTP_VALIDATION_WHOLE, DTP_VALIDATION_REAL };

struct dtp_validation_field {
    char name[64];
    enum dtp_validation_kind kind;
    size_t offset, bytes; /* in struct dtp_validation; bytes of a text */
};
#define DTP_VALIDATION_MAX_FIELDS 128

/* Writes them to `out`, in the order of columns; returns their number. */
size_t dtp_validation_fields(struct dtp_validation_field out[DTP_VALIDATION_MAX_FIELDS]);

/* ---- a refit ------------------------------------------------------------------------------------------------------
 */

/* What runs correct of a machine file, and whether that helps on runs it was not fitted to. */
struct dtp_refit_result {
    const struct dtp_validation *run;
    double left_out_s; /* its step predicted by what the other runs correct */
    double all_s;      /* by what all runs correct, it among them */
};
struct dtp_refit_report {
    const char *machine; /* file; borrowed */
    char *written;       /* file */
    struct dtp_refit_factors factors;
    struct dtp_refit_result *results;
    size_t count;
};

/* ---- reports ----------------------------------------------------------------------------------------------------- */

void dtp_validation_text(const struct dtp_validation *rows, size_t count, const struct dtp_validation_bounds *bounds,
                         const struct dtp_page *page);
/* `refit` may be NULL. */
enum dtp_status dtp_validation_json(const struct dtp_validation *rows, size_t count,
                                    const struct dtp_validation_bounds *bounds, const struct dtp_refit_report *refit,
                                    FILE *file, struct dtp_faults *faults);

void dtp_refit_text(const struct dtp_refit_report *report, const struct dtp_page *page);
/* NULL: no memory. */
json_t *dtp_refit_json(const struct dtp_refit_report *report);

#endif
