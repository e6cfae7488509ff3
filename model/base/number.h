/* Numbers as people write them: 7e9, 7B, 2k, 1.3b, 40GiB. Never NaN, infinity, hexadecimal or trailing text, and the
 * same in every locale: a decimal comma is never read or written. */
#ifndef DTP_NUMBER_H
#define DTP_NUMBER_H

#include "base/status.h"

#include <stdint.h>

/* A finite decimal number, optionally followed by k, M, G/B, T (powers of 1000, upper or lower case). False when `text`
 * is anything else. */
bool dtp_number_parse(const char *text, double *out);
/* A whole number in [minimum, maximum], exact; "2k" counts as 2000, except that `binary` makes k 1024, M 1024^2 ...
 * ("--seq 8k" is 8192). "1.5k" and "7e9" are whole, "1.5" is not. */
bool dtp_number_parse_integer(const char *text, bool binary, uint64_t minimum, uint64_t maximum, uint64_t *out);
/* Bytes: a number with B, kB, MB, GB, TB (1000) or KiB, MiB, GiB, TiB (1024); plain numbers are bytes. Fractions of a
 * byte are rounded down. "Gb" is refused, for it means bits. */
bool dtp_number_parse_bytes(const char *text, uint64_t *out);

/* Seconds of a time above 0 with its unit: s, min, h, d or w ("90s", "15min", "1.5d"). A number alone is refused. */
bool dtp_number_parse_duration(const char *text, double *out_s);

/* Printing with three significant digits (whole numbers keep all of theirs). Each writes at most `bytes` bytes into
 * `out` and returns it; NaN prints as "-". "6.74 B", "12.5 GiB", "300 GB/s", "61.3 ms". DTP_NUMBER_TEXT_BYTES are
 * always enough. */
#define DTP_NUMBER_TEXT_BYTES 32
char *dtp_number_format_count(double value, char *out, size_t bytes);
/* Powers of 1024: B, KiB, MiB, GiB, and TiB from 10000 GiB on. */
char *dtp_number_format_memory(uint64_t value_bytes, char *out, size_t bytes);
/* Powers of 1000: B/s ... TB/s. */
char *dtp_number_format_rate(double value_bytes_per_s, char *out, size_t bytes);
/* "45 s", "12.3 min", "7.25 h", "23.4 days". */
char *dtp_number_format_duration(double value_s, char *out, size_t bytes);

#endif
