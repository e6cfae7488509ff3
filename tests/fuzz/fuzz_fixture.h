/* What fuzz targets share: the check that stops a fuzzer, faults that agree with the status, and a folder in memory for
 * parsers that read files by name. */
#ifndef FUZZ_FIXTURE_H
#define FUZZ_FIXTURE_H

#include "base/status.h"

#include <fcntl.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static inline void expect(bool holds)
{
    if (!holds)
        abort();
}

/* Not zeroed whole: the texts are 16 KiB, and an input takes microseconds. */
static inline void forget_faults(struct dtp_faults *faults)
{
    faults->status = DTP_OK;
    faults->count = 0;
}

/* What fails says why, what succeeds says nothing, and each message is a text. */
static inline void expect_faults(enum dtp_status status, const struct dtp_faults *faults)
{
    expect((status == DTP_OK) == (faults->count == 0));
    expect(status == faults->status);
    for (size_t i = 0; i < faults->count && i < DTP_FAULTS_KEPT; i++)
        expect(memchr(faults->text[i], 0, DTP_FAULT_TEXT_BYTES) != NULL);
}

static char fuzz_folder_path[PATH_MAX - NAME_MAX];

/* A folder of this process alone, in memory where the system has such a place: a disk would be what is fuzzed. What the
 * target leaves in it is a few small files, overwritten by each input; `clean` removes them at exit. */
static inline const char *fuzz_folder(void (*clean)(void))
{
    const char *chosen = getenv("TMPDIR"), *memory = access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp";
    if (!fuzz_folder_path[0]) {
        snprintf(fuzz_folder_path, sizeof fuzz_folder_path, "%s/dtplan-fuzz-XXXXXX",
                 chosen && *chosen ? chosen : memory);
        expect(mkdtemp(fuzz_folder_path) != NULL);
        expect(atexit(clean) == 0);
    }
    return fuzz_folder_path;
}

static inline void fuzz_write(const char *path, const void *data, size_t bytes)
{
    int file = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    expect(file >= 0 && write(file, data, bytes) == (ssize_t)bytes && close(file) == 0);
}

/* The file's first bytes, at most `room`; returns how many it has. */
static inline size_t fuzz_read(const char *path, void *out, size_t room)
{
    struct stat about;
    int file = open(path, O_RDONLY | O_CLOEXEC);
    expect(file >= 0 && fstat(file, &about) == 0 && read(file, out, room) >= 0 && close(file) == 0);
    return (size_t)about.st_size;
}

#endif
