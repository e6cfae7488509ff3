/* libcsv does the quoting rules; this file adds what it does not do. In strict mode libcsv still accepts an embedded
 * NUL, an unterminated quote at the end of input unless asked, rows of any length, fields of any size and bare
 * carriage returns, and it knows neither lines, comments nor a byte order mark. Input is therefore fed to it line by
 * line, each line checked first: that gives the line of every fault, and it lets one bad row be dropped and the rest
 * still be checked. Time is linear in the input: every byte is seen a fixed number of times. */
#include "base/table.h"

#include "base/append.h"
#include "base/input_file.h"

#include <csv.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

/* libcsv grows its buffer by a fixed step; a large step keeps long fields linear. */
#define FIELD_BUFFER_STEP_BYTES 16384
/* libcsv is stopped to look at the size of an open field at least this often. */
#define FEED_BYTES 65536

/* One malloc holds it all. cells[0 .. columns) are the offsets of the column names in `text`, then row after row. */
struct dtp_table {
    size_t row_count, column_count;
    char *name;
    uint32_t *lines; /* of each row */
    uint32_t *cells;
    char *text;
};

struct reader {
    struct dtp_table *table;
    struct dtp_faults *faults;
    struct csv_parser parser;
    size_t line, row_line;        /* being read | where the open row began */
    size_t field_count;           /* fields of the open row so far, also those not kept */
    size_t cells_used, text_used; /* of finished rows */
    size_t row_text_used;         /* text of the open row */
    enum dtp_status status;       /* worst so far; the table is only given out when it is DTP_OK */
    bool have_header, stopped;    /* stopped: what follows would make no sense */
};

static void __attribute__((format(printf, 3, 4))) refuse(struct reader *reader, size_t line, const char *format, ...)
{
    char text[256];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    dtp_fault(reader->faults, DTP_BAD_INPUT, reader->table->name, line, "%s", text);
    if (reader->status == DTP_OK)
        reader->status = DTP_BAD_INPUT;
}

/* ---- arena ------------------------------------------------------------------------------------------------------ */

/* Upper bounds from the text itself: a cell ends at a comma, a line feed or the end of input, a row at one of the
 * latter two, and a cell's text with its final NUL is no longer than the input it came from with that end. */
static struct dtp_table *create_table(const char *name, const char *text, size_t bytes)
{
    size_t lines = 1, commas = 0;
    for (size_t i = 0; i < bytes; i++) {
        lines += text[i] == '\n';
        commas += text[i] == ',';
    }
    size_t name_bytes = strlen(name) + 1;
    size_t cell_bytes = (commas + lines) * sizeof(uint32_t), line_bytes = lines * sizeof(uint32_t);
    struct dtp_table *table = malloc(sizeof *table + cell_bytes + line_bytes + bytes + 1 + name_bytes);
    if (!table)
        return NULL;
    table->row_count = table->column_count = 0;
    table->cells = (uint32_t *)(table + 1);
    table->lines = table->cells + commas + lines;
    table->text = (char *)(table->lines + lines);
    table->name = table->text + bytes + 1;
    memcpy(table->name, name, name_bytes);
    return table;
}

void dtp_table_destroy(struct dtp_table *table)
{
    free(table);
}

/* ---- rows ------------------------------------------------------------------------------------------------------- */

static int is_space(unsigned char c)
{
    return c == ' ' || c == '\t' || c == '\r'; /* a carriage return is only ever fed before a line feed */
}

static int is_line_end(unsigned char c)
{
    return c == '\n';
}

static void take_field(void *field, size_t bytes, void *data)
{
    struct reader *reader = data;
    struct dtp_table *table = reader->table;
    size_t index = reader->field_count++;
    if (index >= (reader->have_header ? table->column_count : DTP_TABLE_MAX_COLUMNS))
        return; /* counted for the message, not kept */
    if (bytes > DTP_TABLE_MAX_FIELD_BYTES) {
        refuse(reader, reader->line, "field %zu is longer than %d bytes", index + 1, DTP_TABLE_MAX_FIELD_BYTES);
        return;
    }
    table->cells[reader->cells_used + index] = (uint32_t)reader->row_text_used;
    if (bytes)
        memcpy(table->text + reader->row_text_used, field, bytes);
    table->text[reader->row_text_used + bytes] = 0;
    reader->row_text_used += bytes + 1;
}

static int compare_names(const void *left, const void *right)
{
    return strcmp(*(const char *const *)left, *(const char *const *)right);
}

/* Sorting keeps the search for equal names at n log n for the widest header. */
static void check_duplicate_names(struct reader *reader)
{
    const struct dtp_table *table = reader->table;
    const char *names[DTP_TABLE_MAX_COLUMNS];
    for (size_t i = 0; i < table->column_count; i++)
        names[i] = table->text + table->cells[i];
    qsort(names, table->column_count, sizeof *names, compare_names);
    for (size_t i = 1; i < table->column_count; i++)
        if (*names[i] && !strcmp(names[i - 1], names[i]))
            refuse(reader, reader->row_line, "column '%.64s' appears more than once in the header", names[i]);
}

static void take_header(struct reader *reader)
{
    struct dtp_table *table = reader->table;
    reader->have_header = true;
    if (reader->field_count > DTP_TABLE_MAX_COLUMNS) {
        refuse(reader, reader->row_line, "the header has %zu columns; at most %d are read", reader->field_count,
               DTP_TABLE_MAX_COLUMNS);
        reader->stopped = true;
        return;
    }
    table->column_count = reader->field_count;
    for (size_t i = 0; i < table->column_count; i++)
        if (!table->text[table->cells[i]])
            refuse(reader, reader->row_line, "column %zu of the header has no name", i + 1);
    const char *only = table->column_count == 1 ? table->text + table->cells[0] : "", *other = strpbrk(only, ";\t");
    if (other)
        refuse(reader, reader->row_line, "columns stand between %s; save the table with commas between them",
               *other == ';' ? "semicolons" : "tabs");
    check_duplicate_names(reader);
    reader->stopped = reader->status != DTP_OK;
}

static void begin_row(struct reader *reader)
{
    reader->field_count = 0;
    reader->row_text_used = reader->text_used;
}

static void take_row(int terminator, void *data)
{
    (void)terminator;
    struct reader *reader = data;
    struct dtp_table *table = reader->table;
    if (!reader->have_header)
        take_header(reader);
    else if (reader->field_count == table->column_count)
        table->lines[table->row_count++] = (uint32_t)reader->row_line;
    else {
        refuse(reader, reader->row_line, "the row has %zu field%s, the header %zu column%s", reader->field_count,
               dtp_plural(reader->field_count), table->column_count, dtp_plural(table->column_count));
        begin_row(reader);
        return;
    }
    reader->cells_used += table->column_count;
    reader->text_used = reader->row_text_used;
    begin_row(reader);
}

/* ---- lines ------------------------------------------------------------------------------------------------------ */

static void reset_parser(struct reader *reader)
{
    csv_free(&reader->parser);
    csv_init(&reader->parser, CSV_STRICT | CSV_STRICT_FINI);
    csv_set_space_func(&reader->parser, is_space);
    csv_set_term_func(&reader->parser, is_line_end);
    csv_set_blk_size(&reader->parser, FIELD_BUFFER_STEP_BYTES);
}

/* Drops the open row; reading goes on with the next line. */
static void drop_row(struct reader *reader)
{
    if (csv_error(&reader->parser) == CSV_EPARSE) {
        refuse(reader, reader->line,
               "a quote inside a field (the row begins on line %zu); write the field in quotes and the quote twice",
               reader->row_line);
        reader->stopped = !reader->have_header;
    } else {
        reader->status = dtp_fault(reader->faults, DTP_ENVIRONMENT, reader->table->name, reader->line, "out of memory");
        reader->stopped = true;
    }
    reset_parser(reader);
    begin_row(reader);
}

static void feed(struct reader *reader, const char *text, size_t bytes)
{
    for (size_t done = 0; done < bytes && !reader->stopped;) {
        size_t step = bytes - done < FEED_BYTES ? bytes - done : FEED_BYTES;
        if (csv_parse(&reader->parser, text + done, step, take_field, take_row, reader) != step) {
            drop_row(reader);
            return;
        }
        done += step;
        if (reader->parser.entry_pos > DTP_TABLE_MAX_FIELD_BYTES) {
            refuse(reader, reader->row_line, "a field is longer than %d bytes; is a closing quote missing?",
                   DTP_TABLE_MAX_FIELD_BYTES);
            reader->stopped = true;
        }
    }
}

static void read_line(struct reader *reader, const char *text, size_t bytes)
{
    /* After a whole line libcsv is inside a field only if that field is quoted. */
    bool between_rows = !reader->parser.quoted;
    if (between_rows) {
        reader->row_line = reader->line;
        if (text[0] == '#')
            return;
    }
    if (memchr(text, 0, bytes))
        refuse(reader, reader->line, "a NUL byte; the file is not a text file in UTF-8");
    for (const char *cr = text; (cr = memchr(cr, '\r', bytes - (size_t)(cr - text))); cr++)
        if (cr + 1 == text + bytes || cr[1] != '\n') {
            refuse(reader, reader->line, "a carriage return without a line feed; save with LF or CRLF line ends");
            break;
        }
    feed(reader, text, bytes);
}

static void read_lines(struct reader *reader, const char *text, size_t bytes)
{
    for (const char *end = text + bytes; text < end && !reader->stopped;) {
        const char *feed_at = memchr(text, '\n', (size_t)(end - text));
        const char *next = feed_at ? feed_at + 1 : end;
        reader->line++;
        read_line(reader, text, (size_t)(next - text));
        text = next;
    }
    if (reader->stopped)
        return;
    if (csv_fini(&reader->parser, take_field, take_row, reader))
        refuse(reader, reader->row_line, "a quote opened in this row is never closed; is the file cut short?");
    else if (!reader->have_header && reader->status == DTP_OK)
        refuse(reader, 0, "the table is empty; its first line must name the columns");
}

enum dtp_status dtp_table_parse(const char *name, const char *text, size_t bytes, struct dtp_table **out,
                                struct dtp_faults *faults)
{
    *out = NULL;
    if (bytes > DTP_TABLE_MAX_BYTES)
        return dtp_fault(faults, DTP_BAD_INPUT, name, 0, "the table is larger than 512 MiB");
    if (bytes >= 2 && (!memcmp(text, "\xff\xfe", 2) || !memcmp(text, "\xfe\xff", 2)))
        return dtp_fault(faults, DTP_BAD_INPUT, name, 1, "the file is in UTF-16; save it as UTF-8");
    if (bytes >= 3 && !memcmp(text, "\xef\xbb\xbf", 3)) { /* the byte order mark that spreadsheets write */
        text += 3;
        bytes -= 3;
    }
    struct reader reader = {.table = create_table(name, text, bytes), .faults = faults};
    if (!reader.table)
        return dtp_fault(faults, DTP_ENVIRONMENT, name, 0, "out of memory");
    reset_parser(&reader);
    read_lines(&reader, text, bytes);
    csv_free(&reader.parser);
    if (reader.status == DTP_OK)
        *out = reader.table;
    else
        dtp_table_destroy(reader.table);
    return reader.status;
}

/* ---- files ------------------------------------------------------------------------------------------------------ */

enum dtp_status dtp_table_read(const char *path, struct dtp_table **out, struct dtp_faults *faults)
{
    char *text;
    size_t bytes;
    *out = NULL;
    enum dtp_status status = dtp_input_read(path, DTP_TABLE_MAX_BYTES, "", &text, &bytes, faults);
    if (status == DTP_OK)
        status = dtp_table_parse(dtp_input_name(path), text, bytes, out, faults);
    free(text);
    return status;
}

/* ---- access ----------------------------------------------------------------------------------------------------- */

const char *dtp_table_name(const struct dtp_table *table)
{
    return table->name;
}

size_t dtp_table_row_count(const struct dtp_table *table)
{
    return table->row_count;
}

size_t dtp_table_column_count(const struct dtp_table *table)
{
    return table->column_count;
}

const char *dtp_table_column_name(const struct dtp_table *table, size_t column)
{
    return table->text + table->cells[column];
}

long dtp_table_column(const struct dtp_table *table, const char *name)
{
    for (size_t i = 0; i < table->column_count; i++) { /* asked for every field of a catalogue */
        const char *column = dtp_table_column_name(table, i);
        if (*column == *name && !strcmp(column, name))
            return (long)i;
    }
    return -1;
}

const char *dtp_table_text(const struct dtp_table *table, size_t row, long column)
{
    if (column < 0)
        return "";
    return table->text + table->cells[(row + 1) * table->column_count + (size_t)column];
}

size_t dtp_table_line(const struct dtp_table *table, size_t row)
{
    return table->lines[row];
}

void dtp_table_write_field(FILE *file, const char *text)
{
    size_t bytes = strlen(text);
    /* Beyond RFC 4180: our reader trims spaces, takes a leading '#' for a comment and, at the start of a file, the
     * bytes EF, FE and FF for a byte order mark. */
    bool special = bytes && (strchr(" \t#\xef\xfe\xff", text[0]) || strchr(" \t", text[bytes - 1]));
    if (!special && !strpbrk(text, ",\"\r\n")) {
        fputs(text, file);
        return;
    }
    csv_fwrite(file, text, bytes);
}
