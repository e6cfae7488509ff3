/* "Did you mean ...": the known names nearest to a name nobody knows.
 *
 * Distance is Levenshtein's over letters and digits (case, '-', '_', ' ' and '.' do not count); a known name that
 * contains the unknown one, as "h100-sxm" contains "h100", is near however long it is. */
#ifndef DTP_NEAREST_H
#define DTP_NEAREST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define DTP_NEAREST_KEPT 3
#define DTP_NEAREST_NAME_BYTES 64 /* of a name that is compared; the rest of a longer one is ignored */

struct dtp_nearest {
    char wanted[DTP_NEAREST_NAME_BYTES];
    uint64_t letters;                    /* of it, a bit each */
    const char *names[DTP_NEAREST_KEPT]; /* nearest first, equal ones in the order offered */
    size_t distances[DTP_NEAREST_KEPT];
    size_t count;
};

void dtp_nearest_begin(struct dtp_nearest *nearest, const char *wanted);
/* Offers one known name; the pointer must stay valid until dtp_nearest_text. */
void dtp_nearest_offer(struct dtp_nearest *nearest, const char *name);
/* Writes "did you mean 'a', 'b' or 'c'?", or "" when nothing offered is near, and returns `out`. */
char *dtp_nearest_text(const struct dtp_nearest *nearest, char *out, size_t bytes);

/* True when two names are the same but for case, '-', '_' and ' '. */
bool dtp_names_equal(const char *left, const char *right);

#endif
