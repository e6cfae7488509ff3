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

/* <directory of the executable>/../share/dtplan; false where the system does not tell. */
static bool beside_executable(char *out, size_t bytes)
{
    char path[4096];
    ssize_t length = readlink("/proc/self/exe", path, sizeof path - 1);
    if (length <= 0)
        return false;
    path[length] = '\0';
    char *slash = strrchr(path, '/');
    if (!slash)
        return false;
    *slash = '\0';
    int wrote = snprintf(out, bytes, "%s/../share/dtplan", path);
    return wrote > 0 && (size_t)wrote < bytes && holds_catalogues(out);
}

enum dtp_status dtp_data_directory(char *out, size_t bytes, struct dtp_faults *faults)
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
    if (beside_executable(out, bytes))
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
