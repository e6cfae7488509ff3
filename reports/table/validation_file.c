/* Rows of a validation as CSV, written and read by one table of fields. */
#include "record/validation.h"

#include "base/number.h"
#include "page/output_file.h"
#include "record/simulation_report.h"
#include "base/table.h"

#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- fields ------------------------------------------------------------------------------------------------------ */

/* X(kind, member, name) */
#define SINGLE_TABLE(X)                                                                                                \
    X(TEXT, run, "run")                                                                                                \
    X(TEXT, name, "name")                                                                                              \
    X(WHOLE, status, "status")                                                                                         \
    X(TEXT, model, "model")                                                                                            \
    X(TEXT, gpu, "gpu")                                                                                                \
    X(WHOLE, gpus, "gpus_count")                                                                                       \
    X(WHOLE, nodes, "nodes_count")                                                                                     \
    X(TEXT, strategy, "strategy")                                                                                      \
    X(WHOLE, shard_group, "shard_group_gpus_count")                                                                    \
    X(WHOLE, micro_batch, "micro_batch_sequences")                                                                     \
    X(WHOLE, sequence, "seq_tokens")                                                                                   \
    X(WHOLE, accumulate, "accumulate_count")                                                                           \
    X(TEXT, checkpointing, "checkpointing")                                                                            \
    X(TEXT, offload, "offload")                                                                                        \
    X(TEXT, precision, "precision")                                                                                    \
    X(WHOLE, on_gpu, "on_gpu")                                                                                         \
    X(WHOLE, compared, "compared")                                                                                     \
    X(WHOLE, timed_steps, "timed_steps_count")                                                                         \
    X(WHOLE, tokens_per_step, "tokens_per_step_count")                                                                 \
    X(WHOLE, operations, "operations_count")                                                                           \
    X(REAL, alone_step_s, "step_with_costs_alone_s")                                                                   \
    X(REAL, in_place_step_s, "step_with_costs_in_place_s")                                                             \
    X(REAL, wall_s, "wall_s")                                                                                          \
    X(REAL, first_loss, "first_loss")                                                                                  \
    X(REAL, last_loss, "last_loss")                                                                                    \
    X(WHOLE, gpu_memory_bytes, "gpu_memory_bytes")                                                                     \
    X(WHOLE, host_arena_bytes, "host_arena_bytes")
/* Rows of before 0.2 lack what stands from here on, and stay readable. */
#define FIRST_LATER_COLUMN "program"
/* Words of any kind, commas among them: behind the figures, so that simple tools find those. */
#define LAST_TABLE(X)                                                                                                  \
    X(TEXT, outside, "outside")                                                                                        \
    X(TEXT, reason, "reason")                                                                                          \
    X(TEXT, device, "device")                                                                                          \
    X(TEXT, libraries, "libraries")                                                                                    \
    X(TEXT, data, "data")                                                                                              \
    X(TEXT, program, FIRST_LATER_COLUMN)                                                                               \
    X(REAL, undisturbed_step_s, "undisturbed_step_s")                                                                  \
    X(TEXT, runtime, "runtime")
/* Of a framework's own program. */
#define LAST_PAIR_TABLE(X)                                                                                             \
    X(WHOLE, allocated_bytes, "allocated_bytes")                                                                       \
    X(WHOLE, reserved_bytes, "reserved_bytes")
/* Of ranks that share GPUs. */
#define LAST_SINGLE_TABLE(X)                                                                                           \
    X(WHOLE, ranks_a_gpu, "ranks_a_gpu_count")                                                                         \
    X(WHOLE, ep, "ep_count")                                                                                           \
    X(REAL, expert_imbalance, "measured_expert_imbalance")                                                             \
    X(REAL, imbalanced_step_s, "predicted_imbalanced_step_s")
#define PAIR_TABLE(X)                                                                                                  \
    X(REAL, step_s, "step_s")                                                                                          \
    X(REAL, tokens_per_s, "tokens_per_s")                                                                              \
    X(REAL, tokens_per_s_per_gpu, "tokens_per_s_per_gpu")                                                              \
    X(WHOLE, arena_bytes, "arena_bytes")                                                                               \
    X(WHOLE, device_bytes, "device_bytes")                                                                             \
    X(WHOLE, host_to_device_bytes, "host_to_device_bytes")                                                             \
    X(WHOLE, device_to_host_bytes, "device_to_host_bytes")

static const char *const sides[DTP_VALIDATION_SIDE_COUNT] = {"predicted", "measured"};

struct fields {
    struct dtp_validation_field *list;
    size_t count;
};

static void add(struct fields *f, enum dtp_validation_kind kind, size_t offset, size_t bytes, const char *name)
{
    assert(f->count < DTP_VALIDATION_MAX_FIELDS);
    struct dtp_validation_field *field = &f->list[f->count++];
    *field = (struct dtp_validation_field){.kind = kind, .offset = offset, .bytes = bytes};
    snprintf(field->name, sizeof field->name, "%s", name);
}

/* "predicted_NAME" and "measured_NAME", of two members of 8 bytes one after the other. */
static void add_pair(struct fields *f, enum dtp_validation_kind kind, size_t offset, const char *name)
{
    for (int side = 0; side < DTP_VALIDATION_SIDE_COUNT; side++) {
        char text[64];
        snprintf(text, sizeof text, "%s_%.48s", sides[side], name);
        add(f, kind, offset + (size_t)side * sizeof(uint64_t), 0, text);
    }
}

size_t dtp_validation_fields(struct dtp_validation_field out[DTP_VALIDATION_MAX_FIELDS])
{
    static const char *const costs[] = {"predicted", "alone", "in_place"};
    struct fields f = {out, 0};
    char name[64];
#define AT(member) offsetof(struct dtp_validation, member)
#define SIZE(member) sizeof((struct dtp_validation *)0)->member
#define ADD(kind, member, text) add(&f, DTP_VALIDATION_##kind, AT(member), SIZE(member), text);
    SINGLE_TABLE(ADD)
#undef ADD
#define ADD(kind, member, text) add_pair(&f, DTP_VALIDATION_##kind, AT(member), text);
    PAIR_TABLE(ADD)
#undef ADD
    for (int i = 0; i < DTP_OWNER_COUNT; i++) {
        snprintf(name, sizeof name, "%s_bytes", dtp_owner_key((enum dtp_owner)i));
        add_pair(&f, DTP_VALIDATION_WHOLE, AT(owner_bytes[i]), name);
    }
    for (int i = 0; i < DTP_COLLECTIVE_COUNT; i++) {
        snprintf(name, sizeof name, "%s_sent_bytes", dtp_collective_text((enum dtp_collective)i));
        add_pair(&f, DTP_VALIDATION_WHOLE, AT(sent_bytes[i]), name);
    }
    for (int class = DTP_CLASS_MATMUL; class <= DTP_CLASS_STORAGE; class ++)
        for (int i = 0; i < 3; i++) {
            snprintf(name, sizeof name, "%s_%s_s", dtp_op_class_text((enum dtp_op_class) class), costs[i]);
            add(&f, DTP_VALIDATION_REAL, AT(class_s[class][i]), 0, name);
        }
#define ADD(kind, member, text) add(&f, DTP_VALIDATION_##kind, AT(member), SIZE(member), text);
    LAST_TABLE(ADD)
#undef ADD
#define ADD(kind, member, text) add_pair(&f, DTP_VALIDATION_##kind, AT(member), text);
    LAST_PAIR_TABLE(ADD)
#undef ADD
#define ADD(kind, member, text) add(&f, DTP_VALIDATION_##kind, AT(member), SIZE(member), text);
    LAST_SINGLE_TABLE(ADD)
#undef ADD
#undef SIZE
#undef AT
    return f.count;
}

/* ---- writing ----------------------------------------------------------------------------------------------------- */

char *dtp_validation_header(void)
{
    struct dtp_validation_field fields[DTP_VALIDATION_MAX_FIELDS];
    size_t count = dtp_validation_fields(fields), bytes = 0;
    char *text = NULL;
    FILE *file = open_memstream(&text, &bytes);
    if (!file)
        return NULL;
    fputs("schema,validation,row,", file);
    for (size_t i = 0; i < count; i++)
        fprintf(file, "%s%c", fields[i].name, i + 1 < count ? ',' : '\n');
    if (fclose(file) != 0) {
        free(text);
        return NULL;
    }
    return text;
}

/* On one line, whatever a message holds. */
static void write_text(FILE *out, const char *text)
{
    char line[1024];
    snprintf(line, sizeof line, "%s", text);
    for (char *c = line; *c; c++)
        *c = *c == '\n' || *c == '\r' ? ' ' : *c;
    dtp_table_write_field(out, line);
}

void dtp_validation_write_row(const struct dtp_row_file *file, uint64_t row, const struct dtp_validation *v, FILE *out)
{
    struct dtp_validation_field fields[DTP_VALIDATION_MAX_FIELDS];
    size_t count = dtp_validation_fields(fields);
    dtp_row_file_write_prefix(file, row, out);
    for (size_t i = 0; i < count; i++) {
        const char *at = (const char *)v + fields[i].offset;
        if (fields[i].kind == DTP_VALIDATION_TEXT)
            write_text(out, at);
        else if (fields[i].kind == DTP_VALIDATION_WHOLE)
            fprintf(out, "%" PRIu64, *(const uint64_t *)(const void *)at);
        else if (isfinite(*(const double *)(const void *)at))
            fprintf(out, "%.9g", *(const double *)(const void *)at);
        fputc(i + 1 < count ? ',' : '\n', out);
    }
}

/* ---- files of earlier versions ----------------------------------------------------------------------------------- */

/* Columns were only ever added behind the others. How many `line` lacks of `header`; 0: none, or it is no such line. */
static size_t missing_columns(const char *line, ssize_t bytes, const char *header)
{
    size_t known = bytes > 0 && line[bytes - 1] == '\n' ? (size_t)bytes - 1 : 0, missing = 0;
    if (known == 0 || known >= strlen(header) || strncmp(line, header, known) != 0 || header[known] != ',')
        return 0;
    for (const char *c = header + known; *c; c++)
        missing += *c == ',';
    return missing;
}

/* The rows of `in` behind its first line; one that a full disk cut off stays cut off. */
static void write_wider(FILE *in, const char *header, size_t missing, FILE *out)
{
    char *line = NULL;
    size_t room = 0;
    ssize_t bytes;
    fputs(header, out);
    while ((bytes = getline(&line, &room, in)) > 0) {
        bool whole = line[bytes - 1] == '\n';
        fwrite(line, 1, (size_t)bytes - whole, out);
        for (size_t i = 0; i < missing && whole; i++)
            fputc(',', out);
        if (whole)
            fputc('\n', out);
    }
    free(line);
}

enum dtp_status dtp_validation_widen(const char *path, struct dtp_faults *faults)
{
    char *line = NULL, *header = dtp_validation_header();
    size_t room = 0;
    struct dtp_output_file output;
    enum dtp_status status = DTP_OK;
    FILE *in = dtp_output_is_special(path) ? NULL : fopen(path, "r");
    ssize_t bytes = in && header ? getline(&line, &room, in) : 0;
    size_t missing = missing_columns(line, bytes, header);
    if (missing > 0)
        status = dtp_output_open(path, &output, faults);
    if (missing > 0 && status == DTP_OK) {
        write_wider(in, header, missing, output.file);
        status = dtp_output_close(&output, faults);
    }
    if (in)
        fclose(in);
    free(line);
    free(header);
    return status;
}

/* ---- reading ----------------------------------------------------------------------------------------------------- */

/* `later`: rows of before there was such a field are empty there, or were widened. */
static bool take(const struct dtp_validation_field *field, bool later, const char *text, struct dtp_validation *v)
{
    char *at = (char *)v + field->offset;
    if (field->kind == DTP_VALIDATION_TEXT) {
        snprintf(at, field->bytes, "%s", text);
        return true;
    }
    if (field->kind == DTP_VALIDATION_WHOLE && later && !*text)
        return true;
    if (field->kind == DTP_VALIDATION_WHOLE)
        return dtp_number_parse_integer(text, false, 0, UINT64_MAX, (uint64_t *)(void *)at);
    *(double *)(void *)at = (double)NAN;
    return !*text || dtp_number_parse(text, (double *)(void *)at);
}

static enum dtp_status fill(const struct dtp_table *table, struct dtp_validation *rows, struct dtp_faults *faults)
{
    struct dtp_validation_field fields[DTP_VALIDATION_MAX_FIELDS];
    size_t count = dtp_validation_fields(fields);
    enum dtp_status status = DTP_OK;
    bool later = false;
    for (size_t i = 0; i < count; i++) {
        long column = dtp_table_column(table, fields[i].name);
        later |= strcmp(fields[i].name, FIRST_LATER_COLUMN) == 0;
        if (column < 0 && !later)
            status = dtp_fault(faults, DTP_BAD_INPUT, dtp_table_name(table), 1, "has no column '%s'", fields[i].name);
        for (size_t row = 0; (column >= 0 || later) && row < dtp_table_row_count(table); row++)
            if (!take(&fields[i], later, column < 0 ? "" : dtp_table_text(table, row, column), &rows[row]))
                status = dtp_fault(faults, DTP_BAD_INPUT, dtp_table_name(table), dtp_table_line(table, row),
                                   "%s: '%s' is no number", fields[i].name, dtp_table_text(table, row, column));
    }
    return status;
}

enum dtp_status dtp_validation_read(const char *path, struct dtp_validation **out, size_t *count,
                                    struct dtp_faults *faults)
{
    struct dtp_table *table;
    *out = NULL;
    *count = 0;
    enum dtp_status status = dtp_table_read(path, &table, faults);
    if (status != DTP_OK)
        return status;
    size_t rows = dtp_table_row_count(table);
    *out = calloc(rows + 1, sizeof **out);
    status = *out ? fill(table, *out, faults) : dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "out of memory");
    dtp_table_destroy(table);
    if (status == DTP_OK) {
        *count = rows;
        return status;
    }
    free(*out);
    *out = NULL;
    return status;
}
