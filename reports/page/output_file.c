#include "page/output_file.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

bool dtp_output_is_special(const char *path)
{
    struct stat information;
    return lstat(path, &information) == 0 && !S_ISREG(information.st_mode);
}

static enum dtp_status refuse(const char *path, int reason, struct dtp_faults *faults)
{
    return dtp_fault(faults, DTP_ENVIRONMENT, path, 0, "cannot be written: %s", strerror(reason));
}

enum dtp_status dtp_output_open(const char *path, struct dtp_output_file *out, struct dtp_faults *faults)
{
    *out = (struct dtp_output_file){.path = path};
    if (dtp_output_is_special(path)) {
        out->file = fopen(path, "w");
    } else if (asprintf(&out->temporary, "%s.%ld.tmp", path, (long)getpid()) < 0) {
        out->temporary = NULL;
        errno = ENOMEM;
    } else {
        out->file = fopen(out->temporary, "wx");
    }
    if (out->file)
        return DTP_OK;
    int reason = errno;
    free(out->temporary);
    *out = (struct dtp_output_file){0};
    return refuse(path, reason, faults);
}

enum dtp_status dtp_output_try(const char *path, struct dtp_faults *faults)
{
    struct dtp_output_file output;
    struct stat information;
    if (path && stat(path, &information) == 0 && S_ISDIR(information.st_mode))
        return refuse(path, EISDIR, faults);
    if (!path || dtp_output_is_special(path)) /* to open a pipe may wait for its reader */
        return DTP_OK;
    enum dtp_status status = dtp_output_open(path, &output, faults);
    if (status == DTP_OK)
        dtp_output_abandon(&output);
    return status;
}

enum dtp_status dtp_output_keep(const char *path, struct dtp_faults *faults)
{
    struct stat information;
    if (stat(path, &information) != 0 || !S_ISREG(information.st_mode) || information.st_size == 0)
        return DTP_OK;
    return dtp_fault(faults, DTP_BAD_INPUT, path, 0, "is there already; --force replaces it");
}

enum dtp_status dtp_output_close(struct dtp_output_file *output, struct dtp_faults *faults)
{
    errno = 0;
    bool failed = fflush(output->file) != 0; /* first: it fails again for the reason that an earlier write had */
    int reason = errno;
    failed = ferror(output->file) || failed;
    failed = fclose(output->file) || failed;
    if (!failed && output->temporary && rename(output->temporary, output->path) != 0) {
        failed = true;
        reason = errno;
    }
    enum dtp_status status = failed ? refuse(output->path, reason ? reason : EIO, faults) : DTP_OK;
    if (failed && output->temporary)
        unlink(output->temporary);
    free(output->temporary);
    *output = (struct dtp_output_file){0};
    return status;
}

void dtp_output_abandon(struct dtp_output_file *output)
{
    if (!output->file)
        return;
    fclose(output->file);
    if (output->temporary)
        unlink(output->temporary);
    free(output->temporary);
    *output = (struct dtp_output_file){0};
}
