/* Named-column CSV tables (libcsv), read whole into one arena and checked while they are read.
 *
 * Refused with file and line: no header, a duplicate or empty column name, a row with more or fewer fields than the
 * header, an embedded NUL, a quote inside an unquoted field, an unterminated quote, a carriage return without a line
 * feed, more than DTP_TABLE_MAX_COLUMNS columns, fields beyond DTP_TABLE_MAX_FIELD_BYTES, tables beyond
 * DTP_TABLE_MAX_BYTES. All faults of a table are reported at once, except that a bad header ends the reading.
 *
 * Accepted: LF and CRLF line ends, a missing one at the end, a UTF-8 byte order mark. Lines whose first byte is '#'
 * (outside quotes) are comments, blank lines are skipped, spaces and tabs around a field are dropped. Fields may hold
 * any other byte, line ends inside quotes included: who wants names must check them. */
#ifndef DTP_TABLE_H
#define DTP_TABLE_H

#include "base/status.h"

#include <stdint.h>
#include <stdio.h>

#define DTP_TABLE_MAX_COLUMNS 4096
#define DTP_TABLE_MAX_FIELD_BYTES 65536
#define DTP_TABLE_MAX_BYTES (512u << 20)

struct dtp_table; /* opaque */

/* Caller destroys *out. On failure *out is NULL. `name` stands for the source in messages and is copied. A file that
 * cannot be opened or read is DTP_BAD_INPUT: somebody named it. DTP_ENVIRONMENT: out of memory. Linear time; a table
 * takes the size of its text and 4 bytes a field. */
enum dtp_status dtp_table_read(const char *path, struct dtp_table **out, struct dtp_faults *faults);
enum dtp_status dtp_table_parse(const char *name, const char *text, size_t bytes, struct dtp_table **out,
                                struct dtp_faults *faults);
void dtp_table_destroy(struct dtp_table *table);

const char *dtp_table_name(const struct dtp_table *table);
size_t dtp_table_row_count(const struct dtp_table *table);
size_t dtp_table_column_count(const struct dtp_table *table);
const char *dtp_table_column_name(const struct dtp_table *table, size_t column);
/* Index of a column, or -1. */
long dtp_table_column(const struct dtp_table *table, const char *name);
/* Borrowed text of a field, "" where the column is -1 or the field empty. Valid until destroy. */
const char *dtp_table_text(const struct dtp_table *table, size_t row, long column);
/* Line of the file a row starts on (1-based). */
size_t dtp_table_line(const struct dtp_table *table, size_t row);

/* Writes one field, quoted where RFC 4180 or this reader needs it. In a table of one column write "" as two quotes
 * yourself: an empty line is no row. */
void dtp_table_write_field(FILE *file, const char *text);

#endif
