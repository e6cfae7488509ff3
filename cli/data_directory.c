#include "cli/command.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static bool holds_catalogues(const char *directory)
{
    char path[4200];
    int length = snprintf(path, sizeof path, "%s/gpus.csv", directory);
    return length > 0 && (size_t)length < sizeof path && access(path, R_OK) == 0;
}

/* share/dtplan of the tree that a program in bin or a library in lib or lib/x86_64-linux-gnu was installed in. */
static bool beside(const char *file, char *out, size_t bytes)
{
    static const char *const ways[] = {"../share/dtplan", "../../share/dtplan"};
    const char *slash = strrchr(file, '/');
    for (size_t i = 0; i < sizeof ways / sizeof *ways && slash; i++) {
        int wrote = snprintf(out, bytes, "%.*s/%s", (int)(slash - file), file, ways[i]);
        if (wrote > 0 && (size_t)wrote < bytes && holds_catalogues(out))
            return true;
    }
    return false;
}

enum dtp_status dtp_data_directory(char *out, size_t bytes, struct dtp_faults *faults)
{
    char path[4096] = "";
    ssize_t length = readlink("/proc/self/exe", path, sizeof path - 1);
    path[length > 0 ? length : 0] = '\0';
    return dtp_data_directory_of(path, out, bytes, faults);
}

enum dtp_status dtp_data_directory_of(const char *file, char *out, size_t bytes, struct dtp_faults *faults)
{
    const char *given = getenv("DTPLAN_DATA");
    if (given && *given) { /* the user's word is final: no silent fallback to other data */
        if (strlen(given) < bytes && holds_catalogues(given)) {
            snprintf(out, bytes, "%s", given);
            return DTP_OK;
        }
        return dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0,
                         "DTPLAN_DATA is '%s', but there is no readable gpus.csv in it; unset it or correct it", given);
    }
    if (beside(file, out, bytes))
        return DTP_OK;
    /* A build in a checkout means the checkout's catalogues, even where an older release is installed. */
    const char *const built_in[] = {DTPLAN_SOURCE_DATA_DIR, DTPLAN_INSTALL_DATA_DIR};
    for (size_t i = 0; i < sizeof built_in / sizeof *built_in; i++)
        if (holds_catalogues(built_in[i])) {
            snprintf(out, bytes, "%s", built_in[i]);
            return DTP_OK;
        }
    return dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0,
                     "the catalogues (gpus.csv, ...) are neither in ../share/dtplan beside the program nor in %s; set "
                     "DTPLAN_DATA to their directory",
                     DTPLAN_INSTALL_DATA_DIR);
}
