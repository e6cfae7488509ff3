/* A digest of texts and numbers (FNV-1a, 64 bits): two of them differ where what went in differs. It tells sweeps
 * apart, it protects from nobody. */
#ifndef DTP_DIGEST_H
#define DTP_DIGEST_H

#include "machine/catalog.h"

#include <stdint.h>

#define DTP_DIGEST_START UINT64_C(0xcbf29ce484222325)

/* The end of the text counts: "ab", "c" is not "a", "bc". NULL is no text, and not "". */
uint64_t dtp_digest_text(uint64_t digest, const char *text);
/* As they lie in memory, their count not among them. */
uint64_t dtp_digest_bytes(uint64_t digest, const void *bytes, size_t count);
/* Everything of the catalogues that predictions and prices come from, and the constants of calibration.h. */
uint64_t dtp_digest_catalog(uint64_t digest, const struct dtp_catalog *catalog);

#endif
