#include "train/step_log.h"

#include "program/program_text.h"
#include "train/event_file.h"
#include "runs/run_files.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define HEADER DTP_STEP_LOG_BEGINS "step_s,tokens_per_s,skipped,program\n"

struct dtp_step_log {
    char *path;
    int file;
    off_t bytes; /* of whole lines or records */
    uint64_t program;
    bool events; /* TensorBoard's */
};

static enum dtp_status failed(const struct dtp_step_log *log, struct dtp_faults *faults)
{
    return dtp_fault(faults, DTP_ENVIRONMENT, log->path, 0, "the log could not be written: %s; its whole %s stay",
                     strerror(errno), log->events ? "records" : "lines");
}

static enum dtp_status append(struct dtp_step_log *log, const void *line, size_t length, struct dtp_faults *faults)
{
    ssize_t wrote = write(log->file, line, length); /* at the end: a pipe has no other place */
    if (wrote == (ssize_t)length) {
        log->bytes += (off_t)length;
        return DTP_OK;
    }
    if (wrote >= 0)
        errno = ENOSPC;
    enum dtp_status status = failed(log, faults);
    (void)!ftruncate(log->file, log->bytes); /* nothing more can be done about a partial line */
    return status;
}

/* Finds the end of the last row that stays: they are in order of their steps. */
static enum dtp_status keep_rows(struct dtp_step_log *log, uint64_t last, struct dtp_faults *faults)
{
    char line[512];
    FILE *file = fopen(log->path, "r");
    if (!file)
        return failed(log, faults);
    bool headed = fgets(line, sizeof line, file) && strcmp(line, HEADER) == 0;
    log->bytes = headed ? (off_t)strlen(HEADER) : 0;
    while (headed && fgets(line, sizeof line, file)) {
        uint64_t step;
        if (!strchr(line, '\n') || sscanf(line, "%" SCNu64 ",", &step) != 1 || step > last)
            break;
        log->bytes += (off_t)strlen(line);
    }
    fclose(file);
    if (!headed)
        return dtp_fault(
            faults, DTP_BAD_INPUT, log->path, 0,
            "does not begin as a log of this version does, so --resume cannot go on with it; name another --log");
    return ftruncate(log->file, log->bytes) == 0 ? DTP_OK : failed(log, faults);
}

/* The same of records. */
static enum dtp_status keep_records(struct dtp_step_log *log, uint64_t last, struct dtp_faults *faults)
{
    unsigned char record[DTP_EVENT_BYTES];
    FILE *file = fopen(log->path, "r");
    size_t bytes = 0, taken;
    uint64_t step;
    if (!file)
        return failed(log, faults);
    log->bytes = 0;
    do {
        size_t got = fread(record, 1, sizeof record, file);
        taken = dtp_event_file_read(record, got, &step);
        bytes = taken && step <= last ? taken : 0;
        log->bytes += (off_t)bytes;
    } while (bytes && fseeko(file, log->bytes, SEEK_SET) == 0);
    fclose(file);
    if (!log->bytes)
        return dtp_fault(faults, DTP_BAD_INPUT, log->path, 0,
                         "does not begin as an event file of TensorBoard does, so --resume cannot go on with it; name "
                         "another --log");
    return ftruncate(log->file, log->bytes) == 0 ? DTP_OK : failed(log, faults);
}

static double wall_s(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* A file that another program began is nobody's to replace. */
static enum dtp_status check_own(const char *path, struct dtp_faults *faults)
{
    unsigned char record[DTP_EVENT_BYTES];
    FILE *file = fopen(path, "r");
    size_t got = file ? fread(record, 1, sizeof record, file) : 0;
    if (file)
        fclose(file);
    if (!got || dtp_event_file_own(record, got))
        return DTP_OK;
    return dtp_fault(faults, DTP_BAD_INPUT, path, 0,
                     "is there and no event file that dtplan began; name another --log");
}

static enum dtp_status begin_file(struct dtp_step_log *log, struct dtp_faults *faults)
{
    unsigned char record[DTP_EVENT_BYTES];
    if (!log->events)
        return append(log, HEADER, strlen(HEADER), faults);
    return append(log, record, dtp_event_file_begin(record, wall_s()), faults);
}

enum dtp_status dtp_step_log_check(const char *path, struct dtp_faults *faults)
{
    struct stat about;
    bool there = stat(path, &about) == 0, can = there && !S_ISDIR(about.st_mode) && access(path, W_OK) == 0;
    if (there && S_ISDIR(about.st_mode))
        errno = EISDIR;
    if (!there && errno == ENOENT) {
        const char *slash = strrchr(path, '/');
        char *folder = slash ? strndup(path, slash > path ? (size_t)(slash - path) : 1) : strdup(".");
        can = folder && access(folder, W_OK | X_OK) == 0;
        free(folder);
    }
    return can ? DTP_OK
               : dtp_fault(faults, DTP_ENVIRONMENT, path, 0, "the log cannot be opened: %s; nothing was run",
                           strerror(errno));
}

enum dtp_status dtp_step_log_open(const char *path, uint64_t first_step, uint64_t program, struct dtp_step_log **out,
                                  struct dtp_faults *faults)
{
    struct dtp_step_log *log = calloc(1, sizeof *log);
    struct stat about;
    *out = NULL;
    if (log) {
        log->path = strdup(path);
        log->program = program;
        log->events = dtp_step_log_is_events(path);
    }
    if (!log || !log->path) {
        free(log);
        return dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "out of memory");
    }
    bool goes_on = first_step > 0 && stat(path, &about) == 0 && about.st_size > 0;
    enum dtp_status status = log->events ? check_own(path, faults) : DTP_OK;
    log->file =
        status == DTP_OK ? open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | (goes_on ? 0 : O_TRUNC), 0666) : -1;
    if (status == DTP_OK && log->file < 0)
        status = failed(log, faults);
    if (status == DTP_OK)
        status = !goes_on      ? begin_file(log, faults)
                 : log->events ? keep_records(log, first_step, faults)
                               : keep_rows(log, first_step, faults);
    if (status != DTP_OK)
        dtp_step_log_close(log);
    else
        *out = log;
    return status;
}

static enum dtp_status write_event(struct dtp_step_log *log, const struct dtp_step_record *r, struct dtp_faults *faults)
{
    unsigned char record[DTP_EVENT_BYTES];
    const struct dtp_event_value values[] = {{"loss", (float)r->loss},
                                             {"learning_rate", (float)r->learning_rate},
                                             {"step_s", (float)r->seconds},
                                             {"tokens_per_s", (float)r->tokens_per_s},
                                             {"skipped", r->skipped ? 1.0f : 0.0f},
                                             {"gradient_norm", (float)r->gradient_norm}};
    size_t count = sizeof values / sizeof *values - (isnan(r->gradient_norm) ? 1 : 0); /* it was not computed */
    return append(log, record, dtp_event_file_step(record, wall_s(), r->step, values, count), faults);
}

enum dtp_status dtp_step_log_write(struct dtp_step_log *log, const struct dtp_step_record *r, struct dtp_faults *faults)
{
    char line[512], norm[32] = "";
    if (log->events)
        return write_event(log, r, faults);
    if (!isnan(r->gradient_norm))
        snprintf(norm, sizeof norm, "%.9g", r->gradient_norm);
    snprintf(line, sizeof line, "%" PRIu64 ",%.9g,%s,%.9g,%.6f,%.1f,%d," DTP_PROGRAM_DIGEST_FORMAT "\n", r->step,
             r->loss, norm, r->learning_rate, r->seconds, r->tokens_per_s, r->skipped, log->program);
    return append(log, line, strlen(line), faults);
}

void dtp_step_log_close(struct dtp_step_log *log)
{
    if (!log)
        return;
    if (log->file >= 0)
        close(log->file);
    free(log->path);
    free(log);
}
