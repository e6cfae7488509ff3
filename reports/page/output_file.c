#include "page/output_file.h"

#include <errno.h>
#include <libgen.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#define MOST_LINKS 40           /* as the kernel follows */
#define PROC_FILE_SYSTEM 0x9fa0 /* PROC_SUPER_MAGIC of statfs(2) */

/* ---- where a name leads ------------------------------------------------------------------------------------------ */

/* `name` as seen from the folder of `from`. Caller frees. */
static char *beside(const char *from, const char *name)
{
    const char *slash = strrchr(from, '/');
    char *path = NULL;
    int folder = name[0] != '/' && slash ? (int)(slash - from) + 1 : 0;
    return asprintf(&path, "%.*s%s", folder, from, name) < 0 ? NULL : path;
}

/* Links there lead to open files, not to names. */
static bool is_in_proc(const char *path)
{
    char *copy = strdup(path);
    struct statfs about;
    bool is = copy && statfs(dirname(copy), &about) == 0 && about.f_type == PROC_FILE_SYSTEM;
    free(copy);
    return is;
}

char *dtp_output_place(const char *path)
{
    char *at = strdup(path), target[PATH_MAX];
    struct stat about;
    for (int links = 0; at && lstat(at, &about) == 0 && S_ISLNK(about.st_mode); links++) {
        ssize_t bytes = links < MOST_LINKS ? readlink(at, target, sizeof target - 1) : -1;
        int reason = links < MOST_LINKS ? errno : ELOOP;
        bool open_file = bytes >= 0 && is_in_proc(at);
        target[bytes > 0 ? bytes : 0] = '\0';
        char *next = bytes < 0 || open_file ? NULL : beside(at, target);
        free(at);
        at = next;
        errno = open_file ? 0 : bytes < 0 ? reason : errno;
    }
    if (at && stat(at, &about) == 0 && !S_ISREG(about.st_mode)) {
        free(at);
        at = NULL;
        errno = 0;
    }
    return at;
}

bool dtp_output_is_special(const char *path)
{
    char *place = dtp_output_place(path);
    bool special = !place && errno == 0;
    free(place);
    return special;
}

/* ---- writing ----------------------------------------------------------------------------------------------------- */

static enum dtp_status refuse(const char *path, int reason, struct dtp_faults *faults)
{
    return dtp_fault(faults, DTP_ENVIRONMENT, path, 0, "cannot be written: %s", strerror(reason));
}

static void release(struct dtp_output_file *output)
{
    free(output->temporary);
    free(output->place);
    *output = (struct dtp_output_file){0};
}

enum dtp_status dtp_output_open(const char *path, struct dtp_output_file *out, struct dtp_faults *faults)
{
    *out = (struct dtp_output_file){.path = path, .place = dtp_output_place(path)};
    if (out->place && asprintf(&out->temporary, "%s.%ld.tmp", out->place, (long)getpid()) < 0) {
        out->temporary = NULL;
        errno = ENOMEM;
    } else if (out->place) {
        out->file = fopen(out->temporary, "wx");
    } else if (errno == 0) {
        out->file = fopen(path, "w");
    }
    if (out->file)
        return DTP_OK;
    int reason = errno;
    release(out);
    return refuse(path, reason, faults);
}

static void abandon(struct dtp_output_file *output)
{
    fclose(output->file);
    if (output->temporary)
        unlink(output->temporary);
    release(output);
}

enum dtp_status dtp_output_try(const char *path, struct dtp_faults *faults)
{
    struct dtp_output_file output;
    struct stat information;
    if (stat(path, &information) == 0 && S_ISDIR(information.st_mode))
        return refuse(path, EISDIR, faults);
    if (dtp_output_is_special(path)) /* to open a pipe may wait for its reader */
        return DTP_OK;
    enum dtp_status status = dtp_output_open(path, &output, faults);
    if (status == DTP_OK)
        abandon(&output);
    return status;
}

enum dtp_status dtp_output_close(struct dtp_output_file *output, struct dtp_faults *faults)
{
    errno = 0;
    bool failed = fflush(output->file) != 0; /* first: it fails again for the reason that an earlier write had */
    int reason = errno;
    failed = ferror(output->file) || failed;
    failed = fclose(output->file) || failed;
    if (!failed && output->temporary && rename(output->temporary, output->place) != 0) {
        failed = true;
        reason = errno;
    }
    enum dtp_status status = failed ? refuse(output->path, reason ? reason : EIO, faults) : DTP_OK;
    if (failed && output->temporary)
        unlink(output->temporary);
    release(output);
    return status;
}

enum dtp_status dtp_output_end(struct dtp_output_file *output, enum dtp_status written, struct dtp_faults *faults)
{
    if (written == DTP_OK)
        return dtp_output_close(output, faults);
    abandon(output);
    return written;
}
