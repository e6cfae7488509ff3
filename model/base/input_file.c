#include "base/input_file.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FIRST_BYTES ((size_t)1 << 16)

static bool is_standard(const char *path)
{
    return strcmp(path, "-") == 0;
}

const char *dtp_input_name(const char *path)
{
    return is_standard(path) ? "standard input" : path;
}

static enum dtp_status read_all(FILE *file, const char *name, size_t most, const char *folder, char **out,
                                size_t *bytes, struct dtp_faults *faults)
{
    size_t room = 0, used = 0;
    do { /* of a standard input that has ended, too, which is an empty text */
        if (used + 1 >= room) {
            room = room ? 2 * room : FIRST_BYTES;
            char *wider = realloc(*out, room);
            if (!wider)
                return dtp_fault(faults, DTP_ENVIRONMENT, name, 0, "out of memory");
            *out = wider;
        }
        used += fread(*out + used, 1, room - 1 - used, file);
    } while (!feof(file) && !ferror(file) && used <= most);
    if (ferror(file) && errno == EISDIR)
        return dtp_fault(faults, DTP_BAD_INPUT, name, 0, "is a folder%s", folder);
    if (ferror(file))
        return dtp_fault(faults, DTP_BAD_INPUT, name, 0, "cannot read: %s", strerror(errno));
    (*out)[used] = '\0';
    *bytes = used;
    return DTP_OK;
}

enum dtp_status dtp_input_read(const char *path, size_t most, const char *folder, char **out, size_t *bytes,
                               struct dtp_faults *faults)
{
    const char *name = dtp_input_name(path);
    FILE *file = is_standard(path) ? stdin : fopen(path, "rb");
    *out = NULL;
    if (!file)
        return dtp_fault(faults, DTP_BAD_INPUT, name, 0, "cannot open: %s", strerror(errno));
    enum dtp_status status = read_all(file, name, most, folder, out, bytes, faults);
    if (file != stdin)
        fclose(file);
    if (status != DTP_OK) {
        free(*out);
        *out = NULL;
    }
    return status;
}
