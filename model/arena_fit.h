/* Offsets in one arena for spans of bytes whose lifetimes are known: dynamic storage allocation, which is NP-hard; a
 * heuristic of about linear time whose result is checked against the lower bound by its callers.
 *
 * Time runs once forwards and once backwards, and the smaller arena is kept. A span that begins takes the smallest hole
 * that holds it, at that end of the hole whose neighbour ends at the nearest time: what dies together lies together and
 * leaves one hole. In a training step the saved activations are a stack and the gradients grow while it shrinks; this
 * order packs both without waste. */
#ifndef DTP_ARENA_FIT_H
#define DTP_ARENA_FIT_H

#include "host_arena.h"

#include <stdbool.h>
#include <stdint.h>

struct dtp_fit_span {
    uint32_t first, last; /* both inclusive; spans of one time overlap */
    uint64_t bytes;
    uint64_t offset_bytes; /* set by dtp_arena_fit */
};

/* Sets the offsets: spans that share a time never share a byte. `*extent_bytes` is the end of the highest. Times lie
 * below `time_count`, the sum of all bytes below 2^64. False: no memory. */
bool dtp_arena_fit(struct dtp_fit_span *spans, uint32_t count, uint32_t time_count, uint64_t *extent_bytes);

#endif
