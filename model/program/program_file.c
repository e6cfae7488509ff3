/* Program texts in files, and what tells one text from another. */
#include "program/program_text.h"

#include "base/crc64.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum dtp_status dtp_program_digest(const struct dtp_program *program, uint64_t *out, struct dtp_faults *faults)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *file = open_memstream(&text, &bytes);
    bool written = file && dtp_program_write_text(program, file) == DTP_OK;
    if (file)
        written = fclose(file) == 0 && written;
    *out = written ? dtp_crc64(0, text, bytes) : 0;
    free(text);
    return written ? DTP_OK : dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "out of memory while summing up the program");
}

enum dtp_status dtp_program_write_file(const struct dtp_program *program, const char *path, struct dtp_faults *faults)
{
    FILE *file = fopen(path, "w");
    bool written = file && dtp_program_write_text(program, file) == DTP_OK;
    if (file)
        written = fclose(file) == 0 && written;
    return written
               ? DTP_OK
               : dtp_fault(faults, DTP_ENVIRONMENT, path, 0, "the program could not be written: %s", strerror(errno));
}

#define MOST_BYTES (UINT64_C(1) << 30) /* of a text; one of four million operations has some 600 MB */

/* Everything from where `file` stands to its end; NULL: it cannot be read, is too long (EFBIG), there is no memory. */
static char *read_all(FILE *file, size_t *bytes)
{
    char part[65536], *text = NULL;
    FILE *whole = open_memstream(&text, bytes);
    bool good = whole != NULL;
    uint64_t all = 0;
    for (size_t got; good && all <= MOST_BYTES && (got = fread(part, 1, sizeof part, file)) > 0; all += got)
        good = fwrite(part, 1, got, whole) == got;
    int why = errno;
    if (whole)
        good = fclose(whole) == 0 && good;
    if (good && all <= MOST_BYTES && !ferror(file))
        return text;
    free(text);
    errno = all > MOST_BYTES ? EFBIG : why;
    return NULL;
}

enum dtp_status dtp_program_read_bytes(const char *path, char **text, size_t *bytes, struct dtp_faults *faults)
{
    FILE *file = fopen(path, "r");
    *text = file ? read_all(file, bytes) : NULL;
    enum dtp_status failed = errno == ENOMEM ? DTP_ENVIRONMENT : DTP_BAD_INPUT;
    enum dtp_status status =
        *text ? DTP_OK : dtp_fault(faults, failed, path, 0, "the program cannot be read: %s", strerror(errno));
    if (file)
        fclose(file);
    return status;
}

enum dtp_status dtp_program_read_file(const char *path, struct dtp_program **out, struct dtp_faults *faults)
{
    size_t bytes = 0;
    char *text;
    *out = NULL;
    enum dtp_status status = dtp_program_read_bytes(path, &text, &bytes, faults);
    if (status == DTP_OK)
        status = dtp_program_parse_text(path, text, bytes, out, faults);
    free(text);
    return status;
}
