#include "device/matmul_choices.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define LINE_BYTES 1024
#define MOST_LINES 100000u

#define X(field) +1
enum { KEY_FIELDS = 0 DTP_MATMUL_KEY(X) };
#undef X
/* Columns after the owner's two: key, algorithm, bias apart, time in nanoseconds. */
enum { VALUES = KEY_FIELDS + DTP_MATMUL_ALGORITHM_WORDS + 2 };

static void choice_to_values(const struct dtp_matmul_choice *choice, uint64_t values[VALUES])
{
    size_t at = 0;
#define X(field) values[at++] = choice->key.field;
    DTP_MATMUL_KEY(X)
#undef X
    for (int i = 0; i < DTP_MATMUL_ALGORITHM_WORDS; i++)
        values[at++] = choice->algorithm[i];
    values[at++] = choice->bias_apart;
    values[at] = (uint64_t)(choice->time_s * 1e9 + 0.5);
}

static void choice_from_values(const uint64_t values[VALUES], struct dtp_matmul_choice *choice)
{
    size_t at = 0;
#define X(field) choice->key.field = values[at++];
    DTP_MATMUL_KEY(X)
#undef X
    for (int i = 0; i < DTP_MATMUL_ALGORITHM_WORDS; i++)
        choice->algorithm[i] = values[at++];
    choice->bias_apart = values[at++];
    choice->time_s = (double)values[at] * 1e-9;
}

bool dtp_matmul_key_equal(const struct dtp_matmul_key *a, const struct dtp_matmul_key *b)
{
    bool equal = true;
#define X(field) equal = equal && a->field == b->field;
    DTP_MATMUL_KEY(X)
#undef X
    return equal;
}

/* FNV-1a (Fowler, Noll, Vo): enough to notice a torn or edited line. */
static uint64_t checksum(const char *text, size_t bytes)
{
    uint64_t hash = 14695981039346656037u;
    for (size_t i = 0; i < bytes; i++)
        hash = (hash ^ (unsigned char)text[i]) * 1099511628211u;
    return hash;
}

/* "OWNER m n k ... time checksum\n", numbers in hexadecimal. Returns the line's length, or 0 if it does not fit. */
static size_t format_line(const char *owner, const struct dtp_matmul_choice *choice, char out[LINE_BYTES])
{
    uint64_t values[VALUES];
    choice_to_values(choice, values);
    size_t length = (size_t)snprintf(out, LINE_BYTES, "%s", owner);
    for (int i = 0; i < VALUES && length < LINE_BYTES; i++)
        length += (size_t)snprintf(out + length, LINE_BYTES - length, " %" PRIx64, values[i]);
    if (length >= LINE_BYTES)
        return 0;
    const uint64_t sum = checksum(out, length);
    length += (size_t)snprintf(out + length, LINE_BYTES - length, " %016" PRIx64 "\n", sum);
    return length < LINE_BYTES ? length : 0;
}

static bool parse_hexadecimal(char **at, uint64_t *out)
{
    if (**at != ' ' || !isxdigit((unsigned char)(*at)[1]))
        return false;
    errno = 0;
    *out = strtoull(*at + 1, at, 16);
    return errno == 0;
}

enum line { LINE_OURS, LINE_FOREIGN, LINE_DAMAGED };
static enum line parse_line(char *line, const char *owner, struct dtp_matmul_choice *out)
{
    uint64_t values[VALUES], sum;
    const size_t owner_length = strlen(owner);
    char *last = strrchr(line, ' ');
    if (!last)
        return LINE_DAMAGED;
    char *end = last;
    if (!parse_hexadecimal(&end, &sum) || *end != '\0' || sum != checksum(line, (size_t)(last - line)))
        return LINE_DAMAGED;
    if (strncmp(line, owner, owner_length) != 0 || line[owner_length] != ' ')
        return LINE_FOREIGN;
    char *at = line + owner_length;
    for (int i = 0; i < VALUES; i++)
        if (!parse_hexadecimal(&at, &values[i]))
            return LINE_FOREIGN; /* whole, but of another version of this program: fewer columns */
    if (at != last)
        return LINE_FOREIGN;
    choice_from_values(values, out);
    return LINE_OURS;
}

static bool keep(struct dtp_matmul_choices *choices, const struct dtp_matmul_choice *choice)
{
    for (uint32_t i = 0; i < choices->count; i++) {
        if (dtp_matmul_key_equal(&choices->choices[i].key, &choice->key)) {
            choices->choices[i] = *choice;
            return true;
        }
    }
    if (choices->count == choices->capacity) {
        const uint32_t capacity = choices->capacity ? 2 * choices->capacity : 32;
        struct dtp_matmul_choice *grown = realloc(choices->choices, capacity * sizeof *grown);
        if (!grown)
            return false;
        choices->choices = grown;
        choices->capacity = capacity;
    }
    choices->choices[choices->count++] = *choice;
    return true;
}

static enum dtp_status read_lines(FILE *file, struct dtp_matmul_choices *out, struct dtp_faults *faults)
{
    char line[LINE_BYTES];
    uint32_t number = 0;
    for (; number < MOST_LINES && fgets(line, sizeof line, file); number++) {
        struct dtp_matmul_choice choice;
        const size_t length = strlen(line);
        const bool whole = length > 0 && line[length - 1] == '\n';
        if (whole)
            line[length - 1] = '\0';
        const enum line kind = whole ? parse_line(line, out->owner, &choice) : LINE_DAMAGED;
        if (kind == LINE_DAMAGED)
            out->damaged++;
        if (kind == LINE_OURS && !keep(out, &choice))
            return dtp_fault(faults, DTP_ENVIRONMENT, out->path, 0, "no memory for the choices of matmul algorithms");
    }
    if (ferror(file))
        return dtp_fault(faults, DTP_ENVIRONMENT, out->path, 0, "cannot be read: %s", strerror(errno));
    /* Choices are added to the file, and a user's own must not grow lines that he did not ask for. */
    if (number > 0 && out->damaged == number)
        return dtp_fault(faults, DTP_BAD_INPUT, out->path, 0,
                         "is no file of matmul algorithms, for none of its lines is one; name another file");
    return DTP_OK;
}

enum dtp_status dtp_matmul_choices_load(const char *path, const char *gpu, uint64_t version,
                                        struct dtp_matmul_choices *out, struct dtp_faults *faults)
{
    *out = (struct dtp_matmul_choices){.path = path};
    snprintf(out->owner, sizeof out->owner, "%.120s %" PRIu64, gpu, version);
    for (char *at = out->owner; *at && at < out->owner + strlen(gpu); at++)
        if (!isgraph((unsigned char)*at))
            *at = '_';
    if (!path)
        return DTP_OK;
    FILE *file = fopen(path, "r");
    if (!file && errno == ENOENT)
        return DTP_OK;
    if (!file)
        return dtp_fault(faults, DTP_ENVIRONMENT, path, 0, "cannot be read: %s; name another file of matmul algorithms",
                         strerror(errno));
    enum dtp_status status = read_lines(file, out, faults);
    fclose(file);
    if (status != DTP_OK)
        dtp_matmul_choices_free(out);
    return status;
}

void dtp_matmul_choices_free(struct dtp_matmul_choices *choices)
{
    free(choices->choices);
    *choices = (struct dtp_matmul_choices){0};
}

const struct dtp_matmul_choice *dtp_matmul_choices_find(const struct dtp_matmul_choices *choices,
                                                        const struct dtp_matmul_key *key)
{
    for (uint32_t i = 0; i < choices->count; i++)
        if (dtp_matmul_key_equal(&choices->choices[i].key, key))
            return &choices->choices[i];
    return NULL;
}

/* Makes the folders above the file where they do not exist. */
static int open_to_append(const char *path)
{
    const int flags = O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC;
    const int file = open(path, flags, 0644);
    char folder[PATH_MAX];
    if (file >= 0 || errno != ENOENT || strlen(path) >= sizeof folder)
        return file;
    strcpy(folder, path);
    for (char *at = strchr(folder + 1, '/'); at; at = strchr(at + 1, '/')) {
        *at = '\0';
        if (mkdir(folder, 0755) != 0 && errno != EEXIST)
            return -1;
        *at = '/';
    }
    return open(path, flags, 0644);
}

enum dtp_status dtp_matmul_choices_add(struct dtp_matmul_choices *choices, const struct dtp_matmul_choice *choice,
                                       struct dtp_faults *faults)
{
    char line[LINE_BYTES];
    const size_t length = format_line(choices->owner, choice, line);
    if (!length || !keep(choices, choice))
        return dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "no memory for the choices of matmul algorithms");
    if (!choices->path)
        return DTP_OK;
    const int file = open_to_append(choices->path);
    if (file < 0)
        return dtp_fault(faults, DTP_ENVIRONMENT, choices->path, 0,
                         "cannot be written: %s; name another file of matmul algorithms", strerror(errno));
    const ssize_t written = write(file, line, length);
    if (close(file) != 0 || written != (ssize_t)length)
        return dtp_fault(faults, DTP_ENVIRONMENT, choices->path, 0, "was not written whole: %s", strerror(errno));
    return DTP_OK;
}
