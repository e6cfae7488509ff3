/* Numbers as people write them: 7e9, 7B, 2k, 1.3b, 40GiB, 400Gb/s. Never NaN, infinity or trailing text. */
#ifndef DTP_NUMBER_H
#define DTP_NUMBER_H

#include "status.h"

#include <stdint.h>

/* A finite decimal number, optionally followed by k, M, G/B, T (powers of 1000). False when `text` is anything else. */
bool dtp_number_parse(const char *text, double *out);
/* A whole number in [minimum, maximum]; "2k" counts as 2000, except that `binary` makes k 1024 ("--seq 8k" is 8192). */
bool dtp_number_parse_integer(const char *text, bool binary, uint64_t minimum, uint64_t maximum, uint64_t *out);
/* Bytes: a number with B, kB, MB, GB, TB (1000) or KiB, MiB, GiB, TiB (1024). */
bool dtp_number_parse_bytes(const char *text, uint64_t *out);

/* Printing. Each writes at most `bytes` bytes into `out` and returns it. "6.74 B", "12.5 GiB", "300 GB/s", "61.3 ms". */
char *dtp_number_format_count(double value, char *out, size_t bytes);
char *dtp_number_format_memory(uint64_t value_bytes, char *out, size_t bytes);
char *dtp_number_format_rate(double value_bytes_per_s, char *out, size_t bytes);
char *dtp_number_format_time(double value_s, char *out, size_t bytes);

#endif
