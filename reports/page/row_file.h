/* A CSV file to which rows are added as they are made, and which goes on where it was cut off.
 *
 * Its first three columns are the schema, a digest of the command that makes the rows (16 hexadecimal digits) and the
 * number of the row, 0, 1, 2, ...: rows of one file have one and the same schema and digest, and rows of another
 * command never go under it. Rows are whole lines (no field holds a line end) and are appended by one write; what a
 * full disk left of a row is cut off again. One process at a time writes a file. */
#ifndef DTP_ROW_FILE_H
#define DTP_ROW_FILE_H

#include "base/status.h"

#include <stdint.h>
#include <stdio.h>

struct dtp_row_file {
    const char *path; /* borrowed; NULL: standard output, or `stream` */
    FILE *stream;     /* what takes the rows of a program's call; else NULL */
    int descriptor;
    bool plain;          /* a file that can be cut, not a pipe or a device */
    bool anew;           /* as of its kind */
    uint64_t rows;       /* whole rows in it */
    int64_t whole_bytes; /* of the plain file up to the last whole row */
    const char *schema;
    uint64_t digest;
};

struct dtp_row_file_kind {
    const char *schema, *header; /* borrowed; the header is a whole line. The schema as long as the file is open */
    uint64_t digest;
    uint64_t earlier; /* by which rows of the same command may go as well, and then go on; 0: by none */
    bool anew;        /* no row may be there: it took a run on GPUs, and a slip of -o must not cost it */
};

/* Opens and, of a file with rows of the same command, counts them and cuts off a last one that is not whole; of an
 * empty or new one writes the header. `path` NULL: standard output. DTP_BAD_INPUT: the file holds something else,
 * rows that are not to be gone on from, or more than `rows`. DTP_ENVIRONMENT: it cannot be written, or another process
 * writes it. */
enum dtp_status dtp_row_file_open(const char *path, const struct dtp_row_file_kind *kind, uint64_t rows,
                                  struct dtp_row_file *out, struct dtp_faults *faults);
/* The same into a stream of the caller's, which may be memory. */
enum dtp_status dtp_row_file_to(FILE *stream, const struct dtp_row_file_kind *kind, struct dtp_row_file *out,
                                struct dtp_faults *faults);
/* "schema,digest,row,": what each row begins with. */
void dtp_row_file_write_prefix(const struct dtp_row_file *file, uint64_t row, FILE *out);
/* Appends `rows` whole rows. */
enum dtp_status dtp_row_file_append(struct dtp_row_file *file, const char *text, size_t bytes, uint64_t rows,
                                    struct dtp_faults *faults);
enum dtp_status dtp_row_file_close(struct dtp_row_file *file, struct dtp_faults *faults);

#endif
