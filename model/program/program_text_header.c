/* Reads the lines of a program's text that stand before its operations and buffers: what all of them have in common. */
#include "program/program_text_reader.h"
#include "program/program_text_words.h"

void dtp_text_read_dtype(struct reader *reader, enum dtp_dtype *out)
{
    if (read_word(reader, "dtype") && !dtp_dtype_parse(reader->word, out))
        REFUSE(reader, "unknown dtype \"%s\"", reader->word);
}

/* ---- execution ------------------------------------------------------------------------------------------------- */

static void read_copies(struct reader *reader, uint32_t *copied)
{
    static const char *const collectives[] = {
#define X(suffix, text) text,
        DTP_COLLECTIVE_TABLE(X)
#undef X
    };
    int choice;
    if (read_choice(reader, "collective", collectives, ARRAY_COUNT(collectives), &choice))
        *copied |= 1u << choice;
}

static const char *const execution_keys[] = {"issuer",
                                             "allocator",
                                             "compute",
                                             "reduce",
                                             "copies",
                                             "clip_norm",
                                             "fp8_recipe",
#define X(field) #field,
                                             DTP_EXECUTION_FLAGS(X) DTP_EXECUTION_NUMBERS(X)
#undef X
};
enum {
    EXECUTION_ISSUER,
    EXECUTION_ALLOCATOR,
    EXECUTION_COMPUTE,
    EXECUTION_REDUCE,
    EXECUTION_COPIES,
    EXECUTION_CLIP_NORM,
    EXECUTION_FP8_RECIPE,
#define X(field) EXECUTION_##field,
    DTP_EXECUTION_FLAGS(X) DTP_EXECUTION_NUMBERS(X)
#undef X
};

static void read_execution_key(struct reader *reader, int key, struct dtp_execution *out)
{
    static const char *const issuers[] = {
#define X(suffix, text) text,
        DTP_ISSUER_TABLE(X)
#undef X
    };
    static const char *const allocators[] = {
#define X(suffix, text) text,
        DTP_ALLOCATOR_TABLE(X)
#undef X
    };
    int choice = 0;
    uint64_t value = 0;
    switch (key) {
    case EXECUTION_ISSUER:
        if (read_choice(reader, "issuer", issuers, DTP_ISSUER_COUNT, &choice))
            out->issuer = (enum dtp_issuer)choice;
        break;
    case EXECUTION_ALLOCATOR:
        if (read_choice(reader, "allocator", allocators, DTP_ALLOCATOR_COUNT, &choice))
            out->allocator = (enum dtp_allocator)choice;
        break;
    case EXECUTION_COMPUTE: dtp_text_read_dtype(reader, &out->compute); break;
    case EXECUTION_REDUCE: dtp_text_read_dtype(reader, &out->reduce); break;
    case EXECUTION_COPIES: read_copies(reader, &out->copied); break;
    case EXECUTION_FP8_RECIPE:
        if (read_word(reader, "fp8_recipe") && !dtp_fp8_recipe_parse(reader->word, &out->fp8_recipe))
            REFUSE(reader, "unknown fp8_recipe \"%s\"", reader->word);
        break;
    case EXECUTION_CLIP_NORM: read_number(reader, "clip_norm", &out->clip_norm); break;
#define X(field)                                                                                                       \
    case EXECUTION_##field: out->field = true; break;
        DTP_EXECUTION_FLAGS(X)
#undef X
#define X(field)                                                                                                       \
    case EXECUTION_##field:                                                                                            \
        if (read_whole(reader, #field, 1, UINT32_MAX, &value))                                                         \
            out->field = (uint32_t)value;                                                                              \
        break;
        DTP_EXECUTION_NUMBERS(X)
#undef X
    }
}

void dtp_text_read_execution(struct reader *reader)
{
    struct dtp_execution execution = {0};
    unsigned seen = 0;
    if (reader->executions++ || reader->op_count || reader->buffer_count || reader->group_count || reader->tensor_count)
        REFUSE(reader, "the line \"execution\" stands once, before all others");
    while (!reader->line_failed && !at_line_end(reader)) {
        int key;
        if (!read_choice(reader, "key", execution_keys, ARRAY_COUNT(execution_keys), &key))
            return;
        if (key != EXECUTION_COPIES && (seen & 1u << key))
            REFUSE(reader, "%s is given twice", execution_keys[key]);
        seen |= 1u << key;
        read_execution_key(reader, key, &execution);
    }
    if (reader->status == DTP_OK)
        dtp_program_set_execution(reader->program, &execution);
}

/* ---- tensors --------------------------------------------------------------------------------------------------- */

static const char *const tensor_keys[] = {"module", "modules",    "rows",          "columns",    "offset", "extent",
                                          "saved",  "decays",     "mean",          "deviation",  "cut",    "parts",
                                          "first",  "whole_rows", "whole_columns", "whole_saved"};
enum {
    TENSOR_MODULE,
    TENSOR_MODULES,
    TENSOR_ROWS,
    TENSOR_COLUMNS,
    TENSOR_OFFSET,
    TENSOR_EXTENT,
    TENSOR_SAVED,
    TENSOR_DECAYS,
    TENSOR_MEAN,
    TENSOR_DEVIATION,
    TENSOR_CUT,
    TENSOR_PARTS,
    TENSOR_FIRST,
    TENSOR_WHOLE_ROWS,
    TENSOR_WHOLE_COLUMNS,
    TENSOR_WHOLE_SAVED
};

static void read_tensor_key(struct reader *reader, int key, struct dtp_program_tensor *out)
{
    uint64_t *const wholes[] = {[TENSOR_ROWS] = &out->at.rows,
                                [TENSOR_COLUMNS] = &out->at.columns,
                                [TENSOR_OFFSET] = &out->at.offset_elements,
                                [TENSOR_EXTENT] = &out->at.extent_elements,
                                [TENSOR_SAVED] = &out->at.saved_offset_elements,
                                [TENSOR_FIRST] = &out->at.cut.first_part,
                                [TENSOR_WHOLE_ROWS] = &out->at.cut.whole_rows,
                                [TENSOR_WHOLE_COLUMNS] = &out->at.cut.whole_columns,
                                [TENSOR_WHOLE_SAVED] = &out->at.cut.whole_saved_offset_elements};
    uint64_t value = 0;
    switch (key) {
    case TENSOR_MODULE:
    case TENSOR_MODULES:
        if (read_whole(reader, tensor_keys[key], 0, DTP_PROGRAM_MAX_MODULES, &value))
            *(key == TENSOR_MODULE ? &out->first_module : &out->modules) = (uint32_t)value;
        break;
    case TENSOR_CUT:
        if (read_word(reader, "cut") && !dtp_parameter_way_parse(reader->word, &out->at.cut.way))
            REFUSE(reader, "unknown cut \"%s\"", reader->word);
        break;
    case TENSOR_PARTS:
        if (read_whole(reader, "parts", 1, DTP_PARAMETER_PARTS, &value))
            out->at.cut.parts = (uint32_t)value;
        break;
    case TENSOR_DECAYS: out->at.decays = true; break;
    case TENSOR_MEAN: read_number(reader, "mean", &out->at.mean); break;
    case TENSOR_DEVIATION: read_number(reader, "deviation", &out->at.deviation); break;
    default: read_whole(reader, tensor_keys[key], 0, DTP_BUFFER_MAX_BYTES, wholes[key]);
    }
}

void dtp_text_read_tensor(struct reader *reader)
{
    char name[DTP_PROGRAM_MAX_NAME_BYTES + 1];
    struct dtp_program_tensor tensor = {.modules = 1};
    unsigned seen = 0;
    bool complete = read_index(reader, "tensor", reader->tensor_count) && read_name(reader, name);
    reader->tensor_count++;
    if (complete && !dtp_parameter_parse(name, &tensor.parameter))
        REFUSE(reader, "unknown parameter \"%s\"", name);
    while (!reader->line_failed && !at_line_end(reader)) {
        int key;
        if (!read_choice(reader, "key", tensor_keys, ARRAY_COUNT(tensor_keys), &key))
            return;
        if (seen & 1u << key)
            REFUSE(reader, "%s is given twice", tensor_keys[key]);
        seen |= 1u << key;
        read_tensor_key(reader, key, &tensor);
    }
    if (reader->line_failed)
        return;
    if (!(seen & 1u << TENSOR_EXTENT) && tensor.at.rows <= DTP_BUFFER_MAX_BYTES / (tensor.at.columns + 1))
        tensor.at.extent_elements = tensor.at.rows * tensor.at.columns;
    if (!(seen & 1u << TENSOR_SAVED))
        tensor.at.saved_offset_elements = tensor.at.offset_elements;
    if (reader->status == DTP_OK)
        check_added(reader, dtp_program_add_tensor(reader->program, &tensor) ? 0 : DTP_NO_INDEX);
}
