/* Where training tokens come from: a file, or a Markov chain whose entropy is known.
 *
 * A source is a function from a sample's number to sequence + 1 tokens, the last of which is only a target. Which
 * sample a rank reads in which micro-step follows from arithmetic alone (batches.h), so a run that is resumed, or cut
 * among other ranks, reads the same samples. Sources are read-only once open and may be read by any thread.
 *
 * File: uint16 or uint32 tokens (little endian), with or without llm.c's header of 1024 bytes, or any file as bytes,
 * memory-mapped. Cut into samples that follow each other without overlap, but for the shared target; what is left at
 * the end is not used. An epoch reads each sample once, in an order that depends on (seed, epoch): a Feistel network on
 * the samples' numbers (Luby & Rackoff 1988), walked until it falls below their count (Black & Rogaway 2002).
 *
 * Markov: `states` tokens spread over the vocabulary, each with DTP_MARKOV_FANOUT successors of random weights. Samples
 * begin in the stationary distribution, so no predictor's mean loss is below the chain's entropy rate, and one that
 * knows the chain reaches it: sum_i pi_i sum_j -p_ij ln p_ij (Shannon 1948). */
#ifndef DTP_TOKEN_SOURCE_H
#define DTP_TOKEN_SOURCE_H

#include "base/status.h"

#include <signal.h>
#include <stdint.h>

struct dtp_token_source; /* opaque */

/* X(suffix, spelling). AUTO: llm.c's header says; else a name that ends in .bin or .u16 is uint16, .u32 uint32, all
 * others bytes. */
#define DTP_TOKEN_TYPE_TABLE(X)                                                                                        \
    X(AUTO, "auto")                                                                                                    \
    X(UINT16, "uint16")                                                                                                \
    X(UINT32, "uint32")                                                                                                \
    X(BYTES, "bytes")
enum dtp_token_type {
#define X(suffix, text) DTP_TOKENS_##suffix,
    DTP_TOKEN_TYPE_TABLE(X)
#undef X
};
bool dtp_token_type_parse(const char *text, enum dtp_token_type *out);

struct dtp_token_shape {
    uint64_t vocab, sequence, seed;
};

/* Caller closes *out. DTP_BAD_INPUT: no plain file, a container (data_format.h) unless its bytes are asked for, shorter
 * than one sample, a header that does not fit the file, bytes for a vocabulary below 256. */
enum dtp_status dtp_token_source_open(const char *path, enum dtp_token_type type, const struct dtp_token_shape *shape,
                                      struct dtp_token_source **out, struct dtp_faults *faults);
#define DTP_MARKOV_STATES 256u /* or the vocabulary, where that is smaller */
#define DTP_MARKOV_FANOUT 4u
/* Caller closes *out. DTP_ENVIRONMENT: no memory. */
enum dtp_status dtp_token_source_markov(const struct dtp_token_shape *shape, struct dtp_token_source **out,
                                        struct dtp_faults *faults);
void dtp_token_source_close(struct dtp_token_source *source);

/* Writes the sequence + 1 tokens of sample `number`. DTP_BAD_INPUT: a token beyond the vocabulary, with its place. */
enum dtp_status dtp_token_source_read(const struct dtp_token_source *source, uint64_t number, int32_t *out,
                                      struct dtp_faults *faults);

/* The samples that a run will read, [begin, end), of which this call looks at one of `parts` equal parts. */
struct dtp_token_range {
    uint64_t begin, end;
    uint32_t part, parts;
};
/* Looks for a token beyond the vocabulary before any is trained on: its place in the file, UINT64_MAX: the
 * part holds none. Where the run reads an eighth of the file or more, all of it is looked at. Ends early
 * where *stop is set (NULL: never). */
uint64_t dtp_token_source_search(const struct dtp_token_source *source, const struct dtp_token_range *range,
                                 const volatile sig_atomic_t *stop);
/* DTP_BAD_INPUT with value, place and file for such a place; DTP_OK for UINT64_MAX. */
enum dtp_status dtp_token_source_refuse(const struct dtp_token_source *source, uint64_t place,
                                        struct dtp_faults *faults);

/* Nats per token of a Markov source; NAN where unknown. */
double dtp_token_source_entropy(const struct dtp_token_source *source);
/* Samples of an epoch; 0: endless. */
uint64_t dtp_token_source_samples(const struct dtp_token_source *source);
/* "tokens.bin: 1,003,854 tokens (uint16)"; borrowed. */
const char *dtp_token_source_words(const struct dtp_token_source *source);

/* The permutation of an epoch: a bijection of [0, count), count > 0. */
uint64_t dtp_permuted(uint64_t index, uint64_t count, uint64_t seed, uint64_t epoch);

#endif
