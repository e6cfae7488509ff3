/* A plan as a framework's own configuration: the other way through the same tables.
 *
 * What was written is read back at once. A key of the plan that comes back otherwise is one that the format cannot say,
 * and is refused by name; what is handed out gives the same plan again. */
#ifndef DTP_IMPORT_WRITE_H
#define DTP_IMPORT_WRITE_H

#include "import/format.h"

struct dtp_writing; /* while a format writes */

/* ---- for a format's own code ------------------------------------------------------------------------------------- */

const struct dtp_job *dtp_written_job(const struct dtp_writing *writing);
/* Ours of a key of the job, as it would be typed. Borrowed until the next call. */
const char *dtp_written_value(struct dtp_writing *writing, const char *key);
/* The setting of that name (of a KEY or FACT row) is ours; what no row of it can say is left out, and comes back
 * otherwise. */
void dtp_say(struct dtp_writing *writing, const char *name, const char *ours);
void dtp_say_count(struct dtp_writing *writing, const char *name, uint64_t ours);
/* The key as the job has it. */
void dtp_say_key(struct dtp_writing *writing, const char *key);
/* A setting of another row, which the program that reads it wants; `list`: values with commas between. */
void dtp_say_path(struct dtp_writing *writing, const char *path, const char *theirs, bool list);
/* The job is none of this format. */
void dtp_refuse_writing(struct dtp_writing *writing, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Adapters of peft, as axolotl, TRL and adapter_config.json name them: facts lora_r, lora_alpha, lora_dropout and
 * lora_targets; and of how what is frozen is kept in_4bit, in_8bit and nested (lora.c). `storage`: the setting of the
 * dtype that 4 bits are kept as. */
void dtp_write_adapters(struct dtp_writing *writing);
void dtp_write_base(struct dtp_writing *writing, const char *storage);

/* bf16, fp16 or fp8, by which Accelerate and Trainer run the plan under autocast or FSDP's and DeepSpeed's policies; no
 * (accelerate.c). */
const char *dtp_written_mixed(const struct dtp_plan *plan);

/* ---- for whoever wants files ------------------------------------------------------------------------------------- */

/* The configuration of the job, with a setting more where `more` has one (path and value), a text that the caller
 * frees. DTP_BAD_INPUT: the job is none of the format's. */
enum dtp_status dtp_format_write(const struct dtp_format *format, const struct dtp_job *job, const char *const more[2],
                                 char **text, struct dtp_faults *faults);
const struct dtp_format *dtp_format_of(const char *name);

/* A file of a launch. */
struct dtp_launch_file {
    const char *name;
    char *text; /* the caller frees it */
};

#define DTP_LAUNCH_CONFIGS_MOST 3
#define DTP_LAUNCH_FILES_MOST (DTP_LAUNCH_CONFIGS_MOST + 1) /* and the script */

struct dtp_launcher {
    const char *name, *runtimes;
    const char *files[DTP_LAUNCH_CONFIGS_MOST], *formats[DTP_LAUNCH_CONFIGS_MOST]; /* NULL behind the last */
    const char *names[2]; /* a setting of the second file that names the first, and the name; or NULL */
    const char *command;  /* one line of a shell script: $here is its folder, $TRAIN the user's program */
};
/* That of the name; NULL: of the plan's runtime. A fault where there is none. */
const struct dtp_launcher *dtp_launcher_of(const char *name, const struct dtp_job *job, struct dtp_faults *faults);

/* Writes the files of a launch and reads them back: `scenario` is what made `job`. `typed` gets the flags that have to
 * stand beside --from. Caller frees the texts, also after a failure. */
enum dtp_status dtp_launch_write(const struct dtp_launcher *launcher, const struct dtp_scenario *scenario,
                                 const struct dtp_catalog *catalog, const struct dtp_job *job,
                                 struct dtp_launch_file files[DTP_LAUNCH_FILES_MOST], size_t *count, char *typed,
                                 size_t typed_bytes, struct dtp_faults *faults);

#endif
