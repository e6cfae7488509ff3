#include "base/nearest.h"

#include <stdio.h>
#include <string.h>

static char lower(char c)
{
    return c >= 'A' && c <= 'Z' ? (char)(c - 'A' + 'a') : c;
}

static bool is_filler(char c)
{
    return c == '-' || c == '_' || c == ' ';
}

bool dtp_names_equal(const char *left, const char *right)
{
    for (;; left++, right++) {
        while (is_filler(*left))
            left++;
        while (is_filler(*right))
            right++;
        if (lower(*left) != lower(*right))
            return false;
        if (!*left)
            return true;
    }
}

/* Returns the set of its letters, a bit each; some share one. */
static uint64_t reduce(const char *name, char out[DTP_NEAREST_NAME_BYTES])
{
    uint64_t letters = 0;
    size_t used = 0;
    for (; *name && used < DTP_NEAREST_NAME_BYTES - 1; name++)
        if (!is_filler(*name) && *name != '.') {
            out[used++] = lower(*name);
            letters |= UINT64_C(1) << (out[used - 1] & 63);
        }
    out[used] = 0;
    return letters;
}

static size_t count_of(uint64_t letters)
{
    size_t count = 0;
    for (; letters; letters &= letters - 1)
        count++;
    return count;
}

static size_t least(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* Levenshtein 1966, one row at a time (Wagner and Fischer 1974). */
static size_t edit_distance(const char *left, const char *right)
{
    size_t row[DTP_NEAREST_NAME_BYTES];
    size_t width = strlen(right);
    for (size_t j = 0; j <= width; j++)
        row[j] = j;
    for (size_t i = 0; left[i]; i++) {
        size_t diagonal = row[0];
        row[0] = i + 1;
        for (size_t j = 1; j <= width; j++) {
            size_t replaced = diagonal + (left[i] != right[j - 1]);
            diagonal = row[j];
            row[j] = least(replaced, least(row[j], row[j - 1]) + 1);
        }
    }
    return row[width];
}

void dtp_nearest_begin(struct dtp_nearest *nearest, const char *wanted)
{
    *nearest = (struct dtp_nearest){0};
    nearest->letters = reduce(wanted, nearest->wanted);
}

void dtp_nearest_offer(struct dtp_nearest *nearest, const char *name)
{
    char known[DTP_NEAREST_NAME_BYTES];
    uint64_t letters = reduce(name, known);
    size_t length = strlen(nearest->wanted), most = least(1 + length / 3, 4);
    /* A letter that the known name does not have takes an edit of its own: most names are far by that alone. */
    if (length == 0 || count_of(nearest->letters & ~letters) > most)
        return;
    size_t distance = edit_distance(nearest->wanted, known);
    if (length >= 2 && strstr(known, nearest->wanted))
        distance = least(distance, 1);
    if (distance > most)
        return;
    size_t at = nearest->count;
    while (at > 0 && nearest->distances[at - 1] > distance)
        at--;
    if (at == DTP_NEAREST_KEPT)
        return;
    if (nearest->count < DTP_NEAREST_KEPT)
        nearest->count++;
    for (size_t i = nearest->count - 1; i > at; i--) {
        nearest->names[i] = nearest->names[i - 1];
        nearest->distances[i] = nearest->distances[i - 1];
    }
    nearest->names[at] = name;
    nearest->distances[at] = distance;
}

char *dtp_nearest_text(const struct dtp_nearest *nearest, char *out, size_t bytes)
{
    const char *const *n = nearest->names;
    size_t count = nearest->count;
    while (count && nearest->distances[count - 1] > nearest->distances[0] + 1)
        count--; /* beside a good match the others are noise */
    switch (count) {
    case 0: snprintf(out, bytes, "%s", ""); break;
    case 1: snprintf(out, bytes, "did you mean '%s'?", n[0]); break;
    case 2: snprintf(out, bytes, "did you mean '%s' or '%s'?", n[0], n[1]); break;
    default: snprintf(out, bytes, "did you mean '%s', '%s' or '%s'?", n[0], n[1], n[2]); break;
    }
    return out;
}
