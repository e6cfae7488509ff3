/* The third column of a format's table: theirs and ours. */
#include "import/format.h"

#include "base/append.h"
#include "base/number.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

/* The next "theirs=ours" or "value" of a list with bars between. */
struct pair {
    const char *theirs, *ours;
    size_t theirs_bytes, ours_bytes;
};

static bool next_pair(const char **at, struct pair *out)
{
    size_t length = strcspn(*at, "|");
    if (!**at)
        return false;
    const char *equals = memchr(*at, '=', length);
    out->theirs = *at;
    out->theirs_bytes = equals ? (size_t)(equals - *at) : length;
    out->ours = equals ? equals + 1 : *at;
    out->ours_bytes = equals ? length - out->theirs_bytes - 1 : length;
    *at += length + ((*at)[length] == '|');
    return true;
}

/* As words without regard to case, or as numbers. */
static bool same(const char *known, size_t length, const char *typed)
{
    char text[128];
    double left, right;
    if (strlen(typed) == length && strncasecmp(known, typed, length) == 0)
        return true;
    if (length >= sizeof text)
        return false;
    snprintf(text, sizeof text, "%.*s", (int)length, known);
    return dtp_number_parse(text, &left) && dtp_number_parse(typed, &right) && left == right;
}

bool dtp_row_ours(const struct dtp_row *row, const char *theirs, char *out, size_t bytes)
{
    const char *at = row->values;
    struct pair pair;
    if (!*at)
        return (size_t)snprintf(out, bytes, "%s", theirs) < bytes;
    while (next_pair(&at, &pair))
        if (same(pair.theirs, pair.theirs_bytes, theirs))
            return (size_t)snprintf(out, bytes, "%.*s", (int)pair.ours_bytes, pair.ours) < bytes;
    return false;
}

bool dtp_row_theirs(const struct dtp_row *row, const char *ours, char *out, size_t bytes)
{
    const char *at = row->values;
    struct pair pair;
    if (!*at)
        return (size_t)snprintf(out, bytes, "%s", ours) < bytes;
    while (next_pair(&at, &pair))
        if (same(pair.ours, pair.ours_bytes, ours))
            return (size_t)snprintf(out, bytes, "%.*s", (int)pair.theirs_bytes, pair.theirs) < bytes;
    return false;
}

bool dtp_row_allows(const struct dtp_row *row, const char *theirs)
{
    const char *at = row->values;
    struct pair pair;
    while (next_pair(&at, &pair))
        if (same(pair.theirs, pair.theirs_bytes, theirs))
            return true;
    return !*row->values && !*theirs;
}

const char *dtp_row_choices(const struct dtp_row *row, char *out, size_t bytes)
{
    const char *at = row->values;
    struct pair pair;
    out[0] = '\0';
    while (next_pair(&at, &pair))
        dtp_append_part(out, bytes, *at ? ", " : " or ", "%.*s", (int)pair.theirs_bytes, pair.theirs);
    return out;
}
