/* Inside of the import: what a format is, and what its own code is handed.
 *
 * A format is a table (NAME.def), of which the same rows read and write, and, where several of its settings make one of
 * ours, a few lines of code. A row is one of
 *
 *   KEY(path, key, values, words)    the setting is our key of that name
 *   FACT(path, fact, values, words)  it is one of the facts that the format's code makes keys of
 *   ONLY(path, values, words)        it is modelled as one of `values` (bars between) alone; `words`: why not otherwise
 *   UNLESS(path, key, values, words) ONLY, but where the line says that key of ours; `words` end in "give --KEY"
 *   ASIDE(path, words)               it changes neither memory nor time; `words`: what it is about
 *
 * `path` is that of an entry (entries.h); with '*' at its end all that begin so. The first row that suits counts, so
 * that rows of several spellings stand in the order in which they are preferred: the first of a name is written.
 * `values` of KEY and FACT: "theirs=ours|theirs=ours", both read and, the first of ours, written; "" as they stand.
 * Theirs that stands there is refused if it is none of these. Numbers are equal by value. */
#ifndef DTP_IMPORT_FORMAT_H
#define DTP_IMPORT_FORMAT_H

#include "import/entries.h"
#include "job/scenario.h"

enum dtp_row_kind { DTP_ROW_KEY, DTP_ROW_FACT, DTP_ROW_ONLY, DTP_ROW_ASIDE };

struct dtp_row {
    enum dtp_row_kind kind;
    const char *path, *name, *values, *words;
    const char *instead; /* of ONLY: a key that says as much and, typed, comes before the setting; NULL: none */
};

/* In a format's own file, around its table. */
#define KEY(path, key, values, words) {DTP_ROW_KEY, path, #key, values, words, NULL},
#define FACT(path, fact, values, words) {DTP_ROW_FACT, path, #fact, values, words, NULL},
#define ONLY(path, values, words) {DTP_ROW_ONLY, path, NULL, values, words, NULL},
#define UNLESS(path, key, values, words) {DTP_ROW_ONLY, path, NULL, values, words, #key},
#define ASIDE(path, words) {DTP_ROW_ASIDE, path, NULL, NULL, words, NULL},

enum dtp_syntax { DTP_SYNTAX_JSON, DTP_SYNTAX_YAML, DTP_SYNTAX_TOML, DTP_SYNTAX_FLAGS };
const char *dtp_syntax_text(enum dtp_syntax syntax);

struct dtp_reading; /* below */
struct dtp_writing; /* write.h */

struct dtp_format {
    const char *name;  /* "deepspeed" */
    const char *title; /* "DeepSpeed's configuration" */
    unsigned syntaxes; /* bit 1 << enum dtp_syntax of each it comes in */
    /* Paths, as in rows, by one of which a file is known to be of this format; NULL behind the last. */
    const char *const *signs;
    const struct dtp_row *rows;
    size_t row_count;
    /* Beginnings of paths that say the same: {"model_config.", "model."}; NULL behind the last. */
    const char *const (*prefixes)[2];
    bool has_auto; /* "auto" stands for what another program fills in */
    /* Of these it is made of the model's hidden width h: factor h^power; NULL behind the last. */
    const struct dtp_width_rule {
        const char *key;
        double factor;
        int power;
    } * by_width;
    const char *silent; /* what such files leave to the program that reads them, and what is taken for it */
    enum dtp_status (*read)(struct dtp_reading *reading);
    void (*write)(struct dtp_writing *writing); /* the other way; NULL: such files are read alone */
    bool writes_yaml;                           /* of YAML and JSON: which is written */
};

/* All formats, in the order in which they are tried. */
const struct dtp_format *const *dtp_formats(size_t *count);
/* The first row that suits, or NULL. */
const struct dtp_row *dtp_format_row(const struct dtp_format *format, const char *path);
bool dtp_path_suits(const char *pattern, const char *path);

/* ---- values (row_values.c) --------------------------------------------------------------------------------------- */

/* Ours of theirs by a row's `values`, in `out`; false where it is none of them. */
bool dtp_row_ours(const struct dtp_row *row, const char *theirs, char *out, size_t bytes);
/* Theirs of ours. */
bool dtp_row_theirs(const struct dtp_row *row, const char *ours, char *out, size_t bytes);
/* Whether an ONLY row's values hold this one. */
bool dtp_row_allows(const struct dtp_row *row, const char *theirs);
/* The values of theirs as people read them: "0, 1, 2 or 3". */
const char *dtp_row_choices(const struct dtp_row *row, char *out, size_t bytes);

/* ---- what a format's own code may do (reading.c) ----------------------------------------------------------------- */

/* The fact of that name as ours says it, or NULL where the file does not say it or says what is done anyway ("false=").
 * `fact` is one of the format's or, where several share code, of another's. */
const char *dtp_fact(const struct dtp_reading *reading, const char *fact);
/* The same of the file of that format, be it this one, read already or not yet; NULL where there is none. */
const char *dtp_fact_of(const struct dtp_reading *reading, const char *format, const char *fact);
/* Whether the file has a setting of that fact, whatever it says. */
bool dtp_says_fact(const struct dtp_reading *reading, const char *fact);
/* Whether the file says auto for it. */
bool dtp_fact_is_auto(const struct dtp_reading *reading, const char *fact);
/* Our key, made of a fact: faults about it name the fact's line. `fact` NULL: it follows from the format itself. */
enum dtp_status dtp_make_key(struct dtp_reading *reading, const char *key, const char *value, const char *fact);
/* The model that a fact names as Hugging Face's hub does ("meta-llama/Llama-2-7b-hf"), or the folder that holds it. */
enum dtp_status dtp_make_model(struct dtp_reading *reading, const char *fact);
/* clip_norm of a fact, or of `standard` (NULL: none) where the file does not say it; nothing where the line has a
 * runtime that clips by rules of its own. */
enum dtp_status dtp_make_clipping(struct dtp_reading *reading, const char *fact, const char *standard);
/* Whether something that comes before the file says the key: the line, a scenario, a file behind it. */
bool dtp_is_said(const struct dtp_reading *reading, const char *key);
/* What the line says of the key; NULL: nothing. And whether it does. */
const char *dtp_typed(const struct dtp_reading *reading, const char *key);
bool dtp_is_typed(const struct dtp_reading *reading, const char *key);
/* The fact gives way to what the line says of that key. */
enum dtp_status dtp_drop_fact(struct dtp_reading *reading, const char *fact, const char *key);
/* A fault about the fact's entry; where the file does not hold it, about the file. */
enum dtp_status dtp_refuse_fact(struct dtp_reading *reading, const char *fact, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* "auto" of a fact is somebody else's, who then must say this key. */
void dtp_need_key(struct dtp_reading *reading, const char *fact, const char *key);
/* Whether one of the files that are read is of that format. */
bool dtp_reads_beside(const struct dtp_reading *reading, const char *format);
/* A file that the fact names has to be read too, as one of that format. */
enum dtp_status dtp_need_file(struct dtp_reading *reading, const char *fact, const char *format);

/* Adapters of peft, as axolotl and TRL name them: facts adapter (lora, qlora, none), lora_r, lora_alpha, lora_dropout,
 * lora_targets, in_4bit, in_8bit, nested (lora.c). What a format takes where its file says nothing; NULL: it
 * takes none. Nothing is made where the file has no adapter; bits of a base without one are refused. */
struct dtp_adapter_defaults {
    const char *rank, *alpha, *dropout;
    bool nested; /* scales of 4 bits are packed */
    bool linear; /* the format has fact lora_linear */
    bool alone;  /* the format is of adapters alone, and says nothing of how what is frozen is kept */
};
enum dtp_status dtp_make_adapters(struct dtp_reading *reading, const struct dtp_adapter_defaults *defaults);
/* Whether the file has adapters. */
bool dtp_adapter_fact(const struct dtp_reading *reading);
/* Whether any has: this file, TrainingArguments or peft's beside it, what comes before them. */
bool dtp_trains_adapters(const struct dtp_reading *reading);

/* What Accelerate does, by its own file or by TrainingArguments, whose program runs by it (accelerate.c). Autocast:
 * bf16, fp16, fp8, no or NULL; TrainingArguments come first, which say it to Accelerate by its variable
 * (training_args.py). */
const char *dtp_accelerate_mixed(const struct dtp_reading *reading);
bool dtp_accelerate_runs_deepspeed(const struct dtp_reading *reading);
/* FSDP2 of that strategy keeps its root gathered (reports/h200/library_runs.md), where it frees any weights. */
enum dtp_status dtp_make_kept_root(struct dtp_reading *reading, const char *strategy, const char *fact);

#endif
