/* A program text while it is read: words, numbers and names of the line at hand, and faults that name it. Private to
 * the files that parse texts. */
#ifndef DTP_PROGRAM_TEXT_READER_H
#define DTP_PROGRAM_TEXT_READER_H

#include "program/program_text.h"

#include <math.h>
#include <string.h>

#define WORD_BYTES 80
#define ARRAY_COUNT(array) (sizeof(array) / sizeof *(array))

struct reader {
    const char *name, *at, *end; /* end of the text */
    const char *line_end;
    size_t line;
    char word[WORD_BYTES]; /* last one read */
    struct dtp_program *program;
    uint32_t op_count, buffer_count, group_count; /* lines so far, faulty ones included */
    uint32_t executions, tensor_count;            /* lines of these so far */
    bool begun, ended, line_failed;
    enum dtp_status status;       /* worst so far */
    struct dtp_operand *operands; /* of the operation under way */
    size_t operand_count, operand_capacity;
    dtp_op_id dependencies[DTP_STREAM_COUNT];
    struct dtp_faults *faults;
};

/* ---- words and numbers ----------------------------------------------------------------------------------------- */

static inline void note(struct reader *reader, enum dtp_status status)
{
    reader->status = status > reader->status ? status : reader->status;
    reader->line_failed = true;
}

/* One fault a line: those behind it are mostly its consequences. */
#define REFUSE(reader, ...)                                                                                            \
    do {                                                                                                               \
        if (!(reader)->line_failed)                                                                                    \
            dtp_fault((reader)->faults, DTP_BAD_INPUT, (reader)->name, (reader)->line, __VA_ARGS__);                   \
        note((reader), DTP_BAD_INPUT);                                                                                 \
    } while (0)

static inline void skip_spaces(struct reader *reader)
{
    while (reader->at < reader->line_end && *reader->at == ' ')
        reader->at++;
}

static inline bool at_line_end(struct reader *reader)
{
    skip_spaces(reader);
    return reader->at == reader->line_end;
}

/* The next word of the line to reader->word; false, and a fault that says what was expected, where there is none. */
static inline bool read_word(struct reader *reader, const char *expected)
{
    size_t bytes = 0;
    skip_spaces(reader);
    while (reader->at < reader->line_end && *reader->at != ' ' && bytes < WORD_BYTES - 1) {
        if (*reader->at < 0x20 || *reader->at > 0x7e) {
            REFUSE(reader, "byte 0x%02x, where %s is expected", (unsigned char)*reader->at, expected);
            return false;
        }
        reader->word[bytes++] = *reader->at++;
    }
    reader->word[bytes] = 0;
    if (bytes && bytes < WORD_BYTES - 1)
        return true;
    REFUSE(reader, bytes ? "a word beyond all length, where %s is expected" : "the line ends where %s is expected",
           expected);
    return false;
}

static inline bool expect_word(struct reader *reader, const char *word)
{
    if (!read_word(reader, word))
        return false;
    if (!strcmp(reader->word, word))
        return true;
    REFUSE(reader, "\"%s\", where \"%s\" is expected", reader->word, word);
    return false;
}

/* Whether the line goes on with this word, which is read then. */
static inline bool next_is(struct reader *reader, const char *word)
{
    size_t length = strlen(word);
    if (at_line_end(reader) || strncmp(reader->at, word, length) != 0 || reader->at[length] != ' ')
        return false;
    reader->at += length;
    return true;
}

/* Decimal digits from *text on, at most `maximum`; moves *text behind them. */
static inline bool parse_digits(const char **text, uint64_t maximum, uint64_t *out)
{
    const char *c = *text;
    uint64_t value = 0;
    for (; *c >= '0' && *c <= '9'; c++) {
        uint64_t digit = (uint64_t)(*c - '0');
        if (value > (maximum - digit) / 10)
            return false;
        value = value * 10 + digit;
    }
    bool any = c > *text;
    *text = c;
    *out = value;
    return any;
}

static inline bool read_whole(struct reader *reader, const char *key, uint64_t minimum, uint64_t maximum, uint64_t *out)
{
    const char *text = reader->word;
    if (!read_word(reader, key))
        return false;
    if (parse_digits(&text, maximum, out) && !*text && *out >= minimum)
        return true;
    REFUSE(reader, "%s is \"%s\"; a whole number from %llu to %llu is needed", key, reader->word,
           (unsigned long long)minimum, (unsigned long long)maximum);
    return false;
}

/* 8192 or 3p-2. */
static inline bool read_number(struct reader *reader, const char *key, double *out)
{
    const char *text = reader->word;
    uint64_t mantissa, power = 0;
    if (!read_word(reader, key))
        return false;
    bool whole = parse_digits(&text, UINT64_C(1) << 53, &mantissa);
    bool scaled = whole && *text == 'p', negative = scaled && text[1] == '-';
    if (scaled) {
        text += negative ? 2 : 1;
        whole = parse_digits(&text, 1200, &power);
    }
    if (!whole || *text) {
        REFUSE(reader, "%s is \"%s\"; a whole number up to 2^53 is needed, or MpE for M * 2^E", key, reader->word);
        return false;
    }
    *out = ldexp((double)mantissa, negative ? -(int)power : (int)power);
    return true;
}

/* "text" in quotes. The program keeps its own copy. */
static inline bool read_name(struct reader *reader, char name[DTP_PROGRAM_MAX_NAME_BYTES + 1])
{
    size_t bytes = 0;
    skip_spaces(reader);
    bool open = reader->at < reader->line_end && *reader->at == '"';
    for (reader->at += open; open && reader->at < reader->line_end && *reader->at != '"'; reader->at++) {
        if (*reader->at < 0x20 || *reader->at > 0x7e || bytes == DTP_PROGRAM_MAX_NAME_BYTES)
            break;
        name[bytes++] = *reader->at;
    }
    name[bytes] = 0;
    bool closed = open && reader->at < reader->line_end && *reader->at == '"';
    reader->at += closed;
    if (closed && (reader->at == reader->line_end || *reader->at == ' '))
        return true;
    REFUSE(reader, "a name in quotes is needed, of at most %d printable characters", DTP_PROGRAM_MAX_NAME_BYTES);
    return false;
}

/* A word of a list to its place in it. */
static inline bool read_choice(struct reader *reader, const char *key, const char *const *words, int count, int *out)
{
    if (!read_word(reader, key))
        return false;
    for (*out = 0; *out < count; ++*out)
        if (!strcmp(words[*out], reader->word))
            return true;
    REFUSE(reader, "unknown %s \"%s\"", key, reader->word);
    return false;
}

static inline bool read_stream(struct reader *reader, const char *key, enum dtp_stream *out)
{
    if (!read_word(reader, key))
        return false;
    if (dtp_stream_parse(reader->word, out))
        return true;
    REFUSE(reader, "unknown %s \"%s\"", key, reader->word);
    return false;
}

/* Things are numbered in order: a line that was lost or doubled shows. */
static inline bool read_index(struct reader *reader, const char *thing, uint32_t expected)
{
    uint64_t index;
    if (!read_whole(reader, thing, 0, DTP_NO_INDEX, &index))
        return false;
    if (index == expected)
        return true;
    REFUSE(reader, "%s %s stands where %s %u is expected", thing, reader->word, thing, expected);
    return false;
}

/* The first fault of the program under construction becomes one of this line. */
static inline void check_added(struct reader *reader, uint32_t index)
{
    if (index != DTP_NO_INDEX)
        return;
    struct dtp_faults reason = {0};
    enum dtp_status status = dtp_program_seal(reader->program, &reason);
    dtp_fault(reader->faults, status, reader->name, reader->line, "%s", reason.text[0]);
    note(reader, status);
}

/* program_text_header.c: what follows behind the words `dtype`, `execution` and `tensor`. */
void dtp_text_read_dtype(struct reader *reader, enum dtp_dtype *out);
void dtp_text_read_execution(struct reader *reader);
void dtp_text_read_tensor(struct reader *reader);

#endif
