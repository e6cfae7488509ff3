/* Texts that grow in a place of fixed size: what does not fit is cut off. */
#ifndef DTP_APPEND_H
#define DTP_APPEND_H

#include <stddef.h>
#include <stdint.h>

/* Adds to the text that `out`, of `bytes` bytes, holds. */
void dtp_append(char *out, size_t bytes, const char *format, ...) __attribute__((format(printf, 3, 4)));
/* The same of one more part of a list: `separator` first, unless it is the first part. */
void dtp_append_part(char *out, size_t bytes, const char *separator, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
/* "s" behind a noun that there is another number of than one. */
static inline const char *dtp_plural(uint64_t count)
{
    return count == 1 ? "" : "s";
}

#endif
