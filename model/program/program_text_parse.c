/* Reads the text form. Every line is checked by itself, so that all faults are found; the program is built as long as
 * there is none. */
#include "program/program_text_reader.h"
#include "base/grow.h"
#include "program/program_text_words.h"

#include <stddef.h>
#include <stdlib.h>

/* ---- groups and buffers ---------------------------------------------------------------------------------------- */

static void read_group(struct reader *reader)
{
    uint64_t ranks = 0, stride = 0, ctas = 0;
    bool complete = read_index(reader, "group", reader->group_count) && expect_word(reader, "ranks") &&
                    read_whole(reader, "ranks", 1, UINT32_MAX, &ranks) && expect_word(reader, "stride") &&
                    read_whole(reader, "stride", 1, UINT32_MAX, &stride);
    reader->group_count++;
    if (complete && next_is(reader, "ctas"))
        complete = read_whole(reader, "ctas", 1, UINT32_MAX, &ctas);
    if (complete && !at_line_end(reader))
        REFUSE(reader, "the line goes on behind its end");
    if (reader->status == DTP_OK)
        check_added(reader,
                    dtp_program_add_group(reader->program, (struct dtp_program_group){(uint32_t)ranks, (uint32_t)stride,
                                                                                      (uint32_t)ctas}));
}

static bool read_owner(struct reader *reader, enum dtp_owner *out)
{
    if (!read_word(reader, "owner"))
        return false;
    for (int o = 0; o < DTP_OWNER_COUNT; o++)
        if (!strcmp(reader->word, dtp_owner_key((enum dtp_owner)o))) {
            *out = (enum dtp_owner)o;
            return true;
        }
    REFUSE(reader, "unknown owner \"%s\"", reader->word);
    return false;
}

static void read_content(struct reader *reader, uint8_t *out)
{
    enum dtp_content content = DTP_CONTENT_NONE;
    if (read_word(reader, "content") && !dtp_content_parse(reader->word, &content))
        REFUSE(reader, "unknown content \"%s\"", reader->word);
    *out = (uint8_t)content;
}

/* [layer N] [micro N] [dtype D] [content C] [module N] [persistent] to the end of the line. */
static void read_buffer_options(struct reader *reader, struct dtp_buffer *buffer)
{
    static const char *const keys[] = {"layer", "micro", "dtype", "content", "module", "persistent"};
    static const uint64_t most[] = {DTP_NO_LAYER - 1, UINT16_MAX, 0, 0, UINT32_MAX, 0};
    unsigned seen = 0;
    while (!reader->line_failed && !at_line_end(reader)) {
        uint64_t value = 0;
        enum dtp_dtype dtype = DTP_FP32;
        int key;
        if (!read_choice(reader, "key", keys, ARRAY_COUNT(keys), &key))
            return;
        if (seen & 1u << key)
            REFUSE(reader, "%s is given twice", keys[key]);
        seen |= 1u << key;
        if (most[key])
            read_whole(reader, keys[key], 0, most[key], &value);
        switch (key) {
        case 0: buffer->layer = (uint16_t)value; break;
        case 1: buffer->micro_step = (uint16_t)value; break;
        case 2: dtp_text_read_dtype(reader, &dtype), buffer->element = (uint8_t)(dtype + 1); break;
        case 3: read_content(reader, &buffer->content); break;
        case 4: buffer->module = (uint32_t)value; break;
        default: buffer->persistent = true;
        }
    }
}

static void read_buffer(struct reader *reader)
{
    static const char *const spaces[DTP_SPACE_COUNT] = DTP_SPACE_WORDS;
    char name[DTP_PROGRAM_MAX_NAME_BYTES + 1];
    struct dtp_buffer buffer = {.name = name, .layer = DTP_NO_LAYER};
    int space = 0;
    bool complete = read_index(reader, "buffer", reader->buffer_count) && read_name(reader, name) &&
                    expect_word(reader, "bytes") &&
                    read_whole(reader, "bytes", 0, DTP_BUFFER_MAX_BYTES, &buffer.bytes) &&
                    expect_word(reader, "owner") && read_owner(reader, &buffer.owner) && expect_word(reader, "space") &&
                    read_choice(reader, "space", spaces, DTP_SPACE_COUNT, &space) && expect_word(reader, "pool") &&
                    read_stream(reader, "pool", &buffer.pool);
    reader->buffer_count++;
    buffer.space = (enum dtp_space)space;
    if (complete)
        read_buffer_options(reader, &buffer);
    if (reader->status == DTP_OK)
        check_added(reader, dtp_program_add_buffer(reader->program, &buffer).index);
}

/* ---- operations ------------------------------------------------------------------------------------------------ */

static bool next_is_item(struct reader *reader)
{
    skip_spaces(reader);
    return reader->at < reader->line_end && (*reader->at == '+' || (*reader->at >= '0' && *reader->at <= '9'));
}

static bool keep_operand(struct reader *reader, struct dtp_operand operand)
{
    if (!dtp_grow(&reader->operands, reader->operand_count, &reader->operand_capacity, sizeof *reader->operands)) {
        dtp_fault(reader->faults, DTP_ENVIRONMENT, reader->name, reader->line, "no memory for operands");
        note(reader, DTP_ENVIRONMENT);
        return false;
    }
    reader->operands[reader->operand_count++] = operand;
    return true;
}

/* +3, 2-, 2~, +7-, 2@4096-:weight, 2@0+512:bias_gradient, 2%:input. */
static bool parse_operand(const char *text, uint32_t access, struct dtp_operand *out)
{
    uint64_t index = 0, offset_bytes = 0, bytes = 0;
    enum dtp_role role = DTP_ROLE_NONE;
    uint32_t alloc = *text == '+' ? DTP_ALLOC : 0;
    text += alloc ? 1 : 0;
    bool good = parse_digits(&text, DTP_NO_INDEX - 1, &index);
    bool shard = *text == '%';
    text += shard ? 1 : 0;
    if (*text == '@') {
        text++;
        good = parse_digits(&text, DTP_BUFFER_MAX_BYTES, &offset_bytes) && good;
        bool said = *text == '+';
        text += said ? 1 : 0;
        good =
            (!said || (parse_digits(&text, DTP_BUFFER_MAX_BYTES, &bytes) && bytes)) && (offset_bytes || said) && good;
    }
    uint32_t release = *text == '-' ? DTP_FREE : *text == '~' ? DTP_FREE | DTP_DEFER : 0;
    text += release ? 1 : 0;
    if (*text == ':') {
        good = text[1] && dtp_role_parse(text + 1, &role) && good;
        text = "";
    }
    *out = dtp_operand_of((dtp_buffer_id){(uint32_t)index}, access | alloc | release);
    out->role = (uint8_t)role;
    out->shard = shard;
    out->offset_bytes = offset_bytes;
    out->bytes = bytes;
    return good && !*text;
}

/* Those behind a verb. */
static void read_operands(struct reader *reader, uint32_t access)
{
    if (!next_is_item(reader))
        REFUSE(reader, "the number of a buffer is expected");
    while (!reader->line_failed && next_is_item(reader)) {
        struct dtp_operand operand;
        if (!read_word(reader, "a buffer"))
            return;
        if (!parse_operand(reader->word, access, &operand) || operand.buffer.index >= reader->buffer_count) {
            REFUSE(reader, "\"%s\" is no buffer of the lines above, with a known role", reader->word);
            return;
        }
        if (!keep_operand(reader, operand))
            return;
    }
}

/* `count` dependencies; more than there are other streams are never written. */
static void read_dependencies(struct reader *reader, uint32_t *count)
{
    uint64_t index = 0;
    if (!next_is_item(reader))
        REFUSE(reader, "the number of an operation is expected");
    while (!reader->line_failed && next_is_item(reader)) {
        if (!read_whole(reader, "after", 0, DTP_NO_INDEX - 1, &index))
            return;
        if (index >= reader->op_count)
            REFUSE(reader, "it would wait for operation %s, which does not stand before it", reader->word);
        else if (*count == DTP_STREAM_COUNT - 1)
            REFUSE(reader, "it waits for more than %d operations; one of each other stream is enough",
                   DTP_STREAM_COUNT - 1);
        else
            reader->dependencies[(*count)++].index = (uint32_t)index;
    }
}

struct op_line {
    struct dtp_new_op op;
    char name[DTP_PROGRAM_MAX_NAME_BYTES + 1];
    uint32_t dependency_count;
};

static const char *const op_keys[] = {"buffers",
                                      "reads",
                                      "writes",
                                      "updates",
                                      "layer",
                                      "micro",
                                      "group",
                                      "after",
                                      "kernels",
                                      "dtype",
                                      "kernel",
                                      "name",
                                      "recompute",
                                      "peer",
                                      "tag",
                                      "groups",
                                      "causal",
                                      "softcap",
                                      "wide",
                                      "atomic",
                                      "dropout",
                                      "alibi",
                                      "narrow",
                                      "form",
                                      "issue",
#define X(field, most) #field,
                                      DTP_ATTENTION_TABLE(X)
#undef X
#define X(field) #field,
                                          DTP_DEMAND_TABLE(X)
#undef X
};
enum {
    KEY_LAYER = 4,
    KEY_MICRO,
    KEY_GROUP,
    KEY_AFTER,
    KEY_KERNELS,
    KEY_DTYPE,
    KEY_KERNEL,
    KEY_NAME,
    KEY_RECOMPUTE,
    KEY_PEER,
    KEY_TAG,
    KEY_GROUPS,
    KEY_CAUSAL,
    KEY_SOFTCAP,
    KEY_WIDE,
    KEY_ATOMIC,
    KEY_DROPOUT,
    KEY_ALIBI,
    KEY_NARROW,
    KEY_FORM,
    KEY_ISSUE,
#define X(field, most) KEY_ATTENTION_##field,
    DTP_ATTENTION_TABLE(X)
#undef X
        KEY_DEMAND
};
static const size_t demand_offsets[] = {
#define X(field) offsetof(struct dtp_demand, field),
    DTP_DEMAND_TABLE(X)
#undef X
};

static void read_attention(struct reader *reader, int key, struct dtp_attention_shape *out)
{
    uint64_t value = 0;
    switch (key) {
#define X(field, most)                                                                                                 \
    case KEY_ATTENTION_##field:                                                                                        \
        if (read_whole(reader, #field, 0, most, &value))                                                               \
            out->field = (__typeof__(out->field))value;                                                                \
        break;
        DTP_ATTENTION_TABLE(X)
#undef X
    default: break;
    }
}

static void read_form(struct reader *reader, uint8_t *out)
{
    enum dtp_form form = DTP_FORM_NONE;
    if (read_word(reader, "form") && !dtp_form_parse(reader->word, &form))
        REFUSE(reader, "unknown form \"%s\"", reader->word);
    *out = (uint8_t)form;
}

static void read_issue(struct reader *reader, uint8_t *out)
{
    enum dtp_issue issue = DTP_ISSUE_APART;
    if (read_word(reader, "issue") && !dtp_issue_parse(reader->word, &issue))
        REFUSE(reader, "unknown issue \"%s\"", reader->word);
    *out = (uint8_t)issue;
}

static void read_op_key(struct reader *reader, int key, struct op_line *line)
{
    static const char *const memory_kernels[] = DTP_MEMORY_KERNEL_WORDS;
    static const char *const attention_kernels[DTP_ATTENTION_COUNT] = DTP_ATTENTION_KERNEL_WORDS;
    struct dtp_new_op *op = &line->op;
    uint64_t value = 0;
    int choice = 0;
    switch (key) {
    case KEY_LAYER:
        if (read_whole(reader, "layer", 0, DTP_NO_LAYER - 1, &value))
            op->layer = (uint16_t)value;
        break;
    case KEY_MICRO:
        if (read_whole(reader, "micro", 0, UINT16_MAX, &value))
            op->micro_step = (uint16_t)value;
        break;
    case KEY_GROUP:
        if (read_whole(reader, "group", 0, DTP_NO_INDEX - 1, &value))
            op->group = (uint32_t)value;
        break;
    case KEY_PEER:
        if (read_whole(reader, "peer", 0, UINT16_MAX, &value))
            op->peer = (uint16_t)value;
        break;
    case KEY_TAG:
        if (read_whole(reader, "tag", 0, UINT32_MAX, &value))
            op->tag = (uint32_t)value;
        break;
    case KEY_KERNELS:
        if (read_whole(reader, "kernels", 0, UINT32_MAX, &value))
            op->demand.kernels = (uint32_t)value;
        break;
    case KEY_KERNEL:
        if (dtp_op_kind_class(op->kind) == DTP_CLASS_ATTENTION) {
            if (read_choice(reader, "kernel", attention_kernels, DTP_ATTENTION_COUNT, &choice))
                op->demand.attention.kernel = (uint8_t)choice;
        } else if (read_choice(reader, "kernel", memory_kernels, ARRAY_COUNT(memory_kernels), &choice))
            op->demand.memory_kernel = (uint8_t)choice;
        break;
    case KEY_AFTER: read_dependencies(reader, &line->dependency_count); break;
    case KEY_DTYPE: dtp_text_read_dtype(reader, &op->demand.dtype); break;
    case KEY_NAME: read_name(reader, line->name); break;
    case KEY_RECOMPUTE: op->demand.recompute = 1; break;
    case KEY_CAUSAL: op->demand.attention.causal = true; break;
    case KEY_WIDE: op->demand.attention.wide = true; break;
    case KEY_ATOMIC: op->demand.attention.atomic = true; break;
    case KEY_DROPOUT: op->demand.attention.dropout = true; break;
    case KEY_ALIBI: op->demand.attention.alibi = true; break;
    case KEY_NARROW: op->demand.attention.narrow = true; break;
    case KEY_FORM: read_form(reader, &op->demand.form); break;
    case KEY_ISSUE: read_issue(reader, &op->demand.issue); break;
    case KEY_SOFTCAP: read_number(reader, "softcap", &op->demand.attention.softcap); break;
    case KEY_GROUPS:
        if (read_whole(reader, "groups", 0, UINT32_MAX, &value))
            op->demand.groups = (uint32_t)value;
        break;
    default:
        if (key < KEY_LAYER)
            read_operands(reader, (uint32_t)key); /* the verbs are in the order of DTP_READ and DTP_WRITE as bits */
        else if (key < KEY_DEMAND)
            read_attention(reader, key, &op->demand.attention);
        else
            read_number(reader, op_keys[key],
                        (double *)(void *)((char *)&op->demand + demand_offsets[key - KEY_DEMAND]));
    }
}

static void add_op(struct reader *reader, const struct op_line *line)
{
    dtp_op_id id = dtp_program_add_op(reader->program, &line->op, reader->operands, reader->operand_count);
    check_added(reader, id.index);
    for (uint32_t i = 0; reader->status == DTP_OK && i < line->dependency_count; i++)
        dtp_program_depend(reader->program, id, reader->dependencies[i]);
}

static bool read_kind(struct reader *reader, enum dtp_op_kind *out)
{
    if (!read_word(reader, "a kind of operation"))
        return false;
    if (dtp_op_kind_parse(reader->word, out))
        return true;
    REFUSE(reader, "unknown kind of operation \"%s\"", reader->word);
    return false;
}

static void check_group(struct reader *reader, const struct dtp_new_op *op)
{
    bool collective = dtp_op_kind_class(op->kind) == DTP_CLASS_COLLECTIVE;
    if (collective && op->group >= reader->group_count)
        REFUSE(reader, "a collective needs a group of the lines above");
    else if (!collective && op->group != DTP_NO_INDEX)
        REFUSE(reader, "only collectives have a group");
}

static void read_op(struct reader *reader)
{
    struct op_line line = {.op = {.layer = DTP_NO_LAYER, .group = DTP_NO_INDEX}};
    _Static_assert(sizeof op_keys / sizeof *op_keys <= 64, "a bit of `seen` each");
    uint64_t seen = 0;
    reader->operand_count = 0;
    bool complete = read_index(reader, "op", reader->op_count) && read_kind(reader, &line.op.kind) &&
                    read_stream(reader, "stream", &line.op.stream);
    while (complete && !reader->line_failed && !at_line_end(reader)) {
        int key;
        if (!read_choice(reader, "key", op_keys, ARRAY_COUNT(op_keys), &key))
            break;
        if (key >= KEY_LAYER && (seen & UINT64_C(1) << key))
            REFUSE(reader, "%s is given twice", op_keys[key]);
        seen |= UINT64_C(1) << key;
        read_op_key(reader, key, &line);
    }
    if (!reader->line_failed)
        check_group(reader, &line.op);
    if (!reader->line_failed && dtp_op_kind_is_transfer(line.op.kind) &&
        (~seen & (UINT64_C(1) << KEY_PEER | UINT64_C(1) << KEY_TAG)))
        REFUSE(reader, "a %s needs a peer and a tag", dtp_op_kind_text(line.op.kind));
    line.op.name = line.name;
    if (reader->status == DTP_OK)
        add_op(reader, &line);
    reader->op_count++;
}

/* ---- the whole ------------------------------------------------------------------------------------------------- */

static void read_end(struct reader *reader)
{
    uint64_t ops = 0, buffers = 0, groups = 0, tensors = 0;
    if (!expect_word(reader, "ops") || !read_whole(reader, "ops", 0, DTP_NO_INDEX, &ops) ||
        !expect_word(reader, "buffers") || !read_whole(reader, "buffers", 0, DTP_NO_INDEX, &buffers) ||
        !expect_word(reader, "groups") || !read_whole(reader, "groups", 0, DTP_NO_INDEX, &groups))
        return;
    if (!at_line_end(reader) &&
        (!expect_word(reader, "tensors") || !read_whole(reader, "tensors", 1, DTP_NO_INDEX, &tensors)))
        return;
    if (!at_line_end(reader))
        REFUSE(reader, "the line goes on behind its end");
    else if (ops != reader->op_count || buffers != reader->buffer_count || groups != reader->group_count)
        REFUSE(reader, "there are %u ops, %u buffers and %u groups above: lines are missing or too many",
               reader->op_count, reader->buffer_count, reader->group_count);
    else if (tensors != reader->tensor_count)
        REFUSE(reader, "there are %u tensors above: lines are missing or too many", reader->tensor_count);
}

static void read_line(struct reader *reader)
{
    static const char *const things[] = {"op", "buffer", "group", "end", "execution", "tensor"};
    int thing = 0;
    if (reader->ended) {
        REFUSE(reader, "the program goes on behind its end");
        return;
    }
    if (!reader->begun) {
        reader->begun = true;
        if (expect_word(reader, "program") && expect_word(reader, "1") && !at_line_end(reader))
            REFUSE(reader, "the line goes on behind its end");
        return;
    }
    if (!read_choice(reader, "line", things, ARRAY_COUNT(things), &thing))
        return;
    switch (thing) {
    case 0: read_op(reader); break;
    case 1: read_buffer(reader); break;
    case 2: read_group(reader); break;
    case 4: dtp_text_read_execution(reader); break;
    case 5: dtp_text_read_tensor(reader); break;
    default: reader->ended = true; read_end(reader);
    }
}

static void read_lines(struct reader *reader)
{
    while (reader->at < reader->end) {
        const char *feed = memchr(reader->at, '\n', (size_t)(reader->end - reader->at));
        const char *next = feed ? feed + 1 : reader->end;
        reader->line_end = feed ? feed : reader->end;
        reader->line++;
        reader->line_failed = false;
        if (!at_line_end(reader) && *reader->at != '#')
            read_line(reader);
        reader->at = next;
    }
    reader->line_failed = false;
    if (!reader->ended)
        REFUSE(reader, "the program has no line \"end ...\": the text was cut off");
}

enum dtp_status dtp_program_parse_text(const char *name, const char *text, size_t bytes, struct dtp_program **out,
                                       struct dtp_faults *faults)
{
    return dtp_program_parse_lines(&(struct dtp_text_lines){name, text, bytes, 0}, out, faults);
}

enum dtp_status dtp_program_parse_lines(const struct dtp_text_lines *lines, struct dtp_program **out,
                                        struct dtp_faults *faults)
{
    struct reader reader = {.name = lines->name,
                            .at = lines->text,
                            .end = lines->text + lines->bytes,
                            .line = lines->before,
                            .faults = faults};
    *out = NULL;
    reader.status = dtp_program_create(0, &reader.program, faults);
    if (reader.status != DTP_OK)
        return reader.status;
    read_lines(&reader);
    free(reader.operands);
    if (reader.status == DTP_OK)
        reader.status = dtp_program_seal(reader.program, faults);
    if (reader.status == DTP_OK)
        *out = reader.program;
    else
        dtp_program_destroy(reader.program);
    return reader.status;
}
