/* Status codes and the collector of faults.
 *
 * Every function that can fail returns an enum dtp_status; what went wrong, where, and what to do about it goes
 * to a struct dtp_faults passed last, so that a file with five mistakes is reported with five messages in one go. Any
 * of them may return DTP_ENVIRONMENT for want of memory, and what the functions return that it calls; headers name what
 * else there is.
 * The values of enum dtp_status are the exit statuses of the program (see "Exit status" in dtplan.1). */
#ifndef DTP_STATUS_H
#define DTP_STATUS_H

#include <stdbool.h>
#include <stddef.h>

/* X(name, exit status, meaning) */
#define DTP_STATUS_TABLE(X)                                                                                            \
    X(OK, 0, "done")                                                                                                   \
    X(NO, 1, "the answer is no: it does not fit, or validation is outside its bound")                                  \
    X(BAD_INPUT, 2, "usage or bad input")                                                                              \
    X(ENVIRONMENT, 3, "environment: no GPU, missing library, I/O, out of memory")

enum dtp_status {
#define DTP_STATUS_ENUM(name, value, text) DTP_##name = value,
    DTP_STATUS_TABLE(DTP_STATUS_ENUM)
#undef DTP_STATUS_ENUM
};

/* Meaning of a status as a static string. */
const char *dtp_status_text(enum dtp_status status);
/* Of several statuses the one to exit with. */
static inline enum dtp_status dtp_worse(enum dtp_status a, enum dtp_status b)
{
    return a > b ? a : b;
}

#define DTP_FAULT_TEXT_BYTES 512
#define DTP_FAULTS_KEPT 32

/* Faults in the order they were found. Beyond DTP_FAULTS_KEPT only the count grows. Zero-initialise to start. */
struct dtp_faults {
    enum dtp_status status; /* worst seen: ENVIRONMENT > BAD_INPUT > NO > OK */
    size_t count;
    char text[DTP_FAULTS_KEPT][DTP_FAULT_TEXT_BYTES]; /* "FILE:LINE: what is wrong; what to do" */
};

/* Length of the UTF-8 sequence at `text` when it is well-formed (no surrogates, nothing overlong) and no control
 * character (C0, DEL, and C1, which terminals obey too) nor one that turns or breaks the line (bidirectional marks);
 * else 0. What is kept and printed later consists of these. */
size_t dtp_printable_bytes(const char *text);
/* Bytes of `text` before the first that is not of such a character; strlen(text) where all are. */
size_t dtp_printable_length(const char *text);
/* Puts '?' for each byte that is not: of texts that come from elsewhere, or were cut within a character. */
void dtp_make_printable(char *text);

/* Records one fault and returns `status`, so that callers can write `return dtp_fault(...)`. `file` may be NULL (no
 * place), `line` 0 (whole file). Control bytes of the arguments are printed as '?', long texts are cut with "...". */
enum dtp_status dtp_fault(struct dtp_faults *faults, enum dtp_status status, const char *file, size_t line,
                          const char *format, ...) __attribute__((format(printf, 5, 6)));

/* The same about a named key, with "KEY: " before the words unless `file` is a flag ("--micro-batch"), which says it.
 */
enum dtp_status dtp_fault_about(struct dtp_faults *faults, enum dtp_status status, const char *file, size_t line,
                                const char *key, const char *format, ...) __attribute__((format(printf, 6, 7)));

#endif
