#include "page/row_file.h"

#include "page/output_file.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#define MAX_ROW_BYTES 16384u /* of a row that is there already: far beyond any of ours */

void dtp_row_file_write_prefix(const struct dtp_row_file *file, uint64_t row, FILE *out)
{
    fprintf(out, "%s,%016" PRIx64 ",%" PRIu64 ",", file->schema, file->digest, row);
}

static enum dtp_status refuse(const struct dtp_row_file *file, const char *what, int reason, struct dtp_faults *faults)
{
    return dtp_fault(faults, DTP_ENVIRONMENT, file->path ? file->path : "standard output", 0, "%s: %s", what,
                     strerror(reason));
}

static bool write_all(int descriptor, const char *text, size_t bytes)
{
    while (bytes > 0) {
        ssize_t wrote = write(descriptor, text, bytes);
        if (wrote < 0 && errno == EINTR)
            continue;
        if (wrote <= 0)
            return false;
        text += wrote;
        bytes -= (size_t)wrote;
    }
    return true;
}

enum dtp_status dtp_row_file_append(struct dtp_row_file *file, const char *text, size_t bytes, uint64_t rows,
                                    struct dtp_faults *faults)
{
    errno = 0;
    bool written =
        file->stream ? fwrite(text, 1, bytes, file->stream) == bytes : write_all(file->descriptor, text, bytes);
    if (!written) {
        int reason = errno ? errno : EIO;
        if (file->plain && ftruncate(file->descriptor, file->whole_bytes) != 0)
            return refuse(file, "cannot be written nor cut back to whole rows", reason, faults);
        return refuse(file,
                      file->plain ? "cannot be written; what is there is whole, and the same command goes on from it"
                                  : "cannot be written; the rows are not complete",
                      reason, faults);
    }
    file->rows += rows;
    file->whole_bytes += (int64_t)bytes;
    return DTP_OK;
}

/* ---- what is there already --------------------------------------------------------------------------------------- */

static enum dtp_status refuse_content(const struct dtp_row_file *file, size_t line, const char *what,
                                      struct dtp_faults *faults)
{
    return dtp_fault(faults, DTP_BAD_INPUT, file->path, line, "%s; give another file with -o, or remove this one",
                     what);
}

/* Whether the file ends within `line`, of `bytes` bytes, and all that stands there begins as ours does: only then is it
 * left over from a write that was cut off, and may go. A byte 0 would hide what comes after it from strlen. */
static bool is_cut_off(const struct dtp_row_file *file, FILE *in, const char *line, size_t bytes, const char *ours)
{
    size_t known = strlen(ours) < bytes ? strlen(ours) : bytes;
    bool ends = feof(in) && (bytes == 0 || line[bytes - 1] != '\n');
    return ends && ftello(in) == file->whole_bytes + (int64_t)bytes && strncmp(line, ours, known) == 0;
}

/* What the row begins with that comes next, of this digest. */
static void write_prefix(const struct dtp_row_file *file, uint64_t digest, char *out, size_t bytes)
{
    snprintf(out, bytes, "%s,%016" PRIx64 ",%" PRIu64 ",", file->schema, digest, file->rows);
}

/* Reads the rows that are there; sets rows, whole_bytes, and the digest that they have. */
static enum dtp_status read_rows(struct dtp_row_file *file, FILE *in, const struct dtp_row_file_kind *kind,
                                 uint64_t most, struct dtp_faults *faults)
{
    const char *header = kind->header;
    char line[MAX_ROW_BYTES], prefix[96];
    if (!fgets(line, sizeof line, in))
        return DTP_OK;
    size_t bytes = strlen(line);
    if (is_cut_off(file, in, line, bytes, header))
        return DTP_OK;
    if (strcmp(line, header) != 0)
        return refuse_content(file, 1, "has not the columns that this version writes", faults);
    file->whole_bytes = (int64_t)bytes;
    while (fgets(line, sizeof line, in)) {
        bytes = strlen(line);
        write_prefix(file, kind->earlier, prefix, sizeof prefix);
        if (file->rows == 0 && kind->earlier && strncmp(line, prefix, strlen(prefix)) == 0)
            file->digest = kind->earlier;
        write_prefix(file, file->digest, prefix, sizeof prefix);
        if (is_cut_off(file, in, line, bytes, prefix))
            return DTP_OK;
        if (file->anew)
            return refuse_content(file, 2, "holds rows already, which would be lost; go on from them with --resume",
                                  faults);
        if (bytes == 0 || line[bytes - 1] != '\n' || strncmp(line, prefix, strlen(prefix)) != 0)
            return refuse_content(file, (size_t)file->rows + 2,
                                  "is a row of another command: its words, its catalogues or the program differ",
                                  faults);
        if (++file->rows > most)
            return refuse_content(file, (size_t)file->rows + 1, "is one row more than there can be", faults);
        file->whole_bytes += (int64_t)bytes;
    }
    return DTP_OK;
}

static enum dtp_status resume(struct dtp_row_file *file, const struct dtp_row_file_kind *kind, uint64_t most,
                              struct dtp_faults *faults)
{
    int copy = dup(file->descriptor);
    FILE *in = copy >= 0 ? fdopen(copy, "r") : NULL;
    if (!in) {
        int reason = errno;
        if (copy >= 0)
            close(copy);
        return refuse(file, "cannot be read", reason, faults);
    }
    enum dtp_status status = read_rows(file, in, kind, most, faults);
    if (status == DTP_OK && ferror(in))
        status = refuse(file, "cannot be read", errno ? errno : EIO, faults);
    fclose(in);
    if (status == DTP_OK && (ftruncate(file->descriptor, file->whole_bytes) != 0 ||
                             lseek(file->descriptor, file->whole_bytes, SEEK_SET) < 0))
        status = refuse(file, "cannot be cut to whole rows", errno, faults);
    return status;
}

enum dtp_status dtp_row_file_open(const char *path, const struct dtp_row_file_kind *kind, uint64_t rows,
                                  struct dtp_row_file *out, struct dtp_faults *faults)
{
    *out = (struct dtp_row_file){
        .path = path, .descriptor = STDOUT_FILENO, .anew = kind->anew, .schema = kind->schema, .digest = kind->digest};
    out->plain = path && !dtp_output_is_special(path);
    if (path)
        out->descriptor = open(path, (out->plain ? O_RDWR | O_CREAT : O_WRONLY) | O_CLOEXEC, 0666);
    if (out->descriptor < 0)
        return refuse(out, "cannot be written", errno, faults);
    enum dtp_status status = DTP_OK;
    if (out->plain && flock(out->descriptor, LOCK_EX | LOCK_NB) != 0)
        status = dtp_fault(faults, DTP_ENVIRONMENT, path, 0, "another process is writing it; wait for that one");
    if (status == DTP_OK && out->plain)
        status = resume(out, kind, rows, faults);
    if (status == DTP_OK && out->whole_bytes == 0)
        status = dtp_row_file_append(out, kind->header, strlen(kind->header), 0, faults);
    if (status != DTP_OK && path)
        close(out->descriptor);
    return status;
}

enum dtp_status dtp_row_file_to(FILE *stream, const struct dtp_row_file_kind *kind, struct dtp_row_file *out,
                                struct dtp_faults *faults)
{
    *out = (struct dtp_row_file){.stream = stream, .descriptor = -1, .schema = kind->schema, .digest = kind->digest};
    return dtp_row_file_append(out, kind->header, strlen(kind->header), 0, faults);
}

enum dtp_status dtp_row_file_close(struct dtp_row_file *file, struct dtp_faults *faults)
{
    if (file->path && close(file->descriptor) != 0)
        return refuse(file, "cannot be written", errno, faults);
    return DTP_OK;
}
