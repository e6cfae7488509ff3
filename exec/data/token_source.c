#include "data/token_source.h"

#include "data/data_format.h"
#include "data/markov.h"
#include "kernels/random.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

struct dtp_token_source {
    struct dtp_token_shape shape;
    struct dtp_markov *markov; /* or a file: */
    char *path;
    void *map;
    uint64_t map_bytes, header_bytes, tokens, samples;
    enum dtp_token_type type;
    char words[256];
};

static const char *const type_words[] = {
#define X(suffix, text) text,
    DTP_TOKEN_TYPE_TABLE(X)
#undef X
};

bool dtp_token_type_parse(const char *text, enum dtp_token_type *out)
{
    for (size_t i = 0; i < sizeof type_words / sizeof type_words[0]; i++)
        if (strcasecmp(text, type_words[i]) == 0) {
            *out = (enum dtp_token_type)i;
            return true;
        }
    return false;
}

static uint64_t token_bytes(enum dtp_token_type type)
{
    return type == DTP_TOKENS_UINT32 ? 4 : type == DTP_TOKENS_UINT16 ? 2 : 1;
}

/* ---- opening a file ---------------------------------------------------------------------------------------------- */

/* llm.c's header: 256 little-endian int32: magic, version, count of tokens. Version 1 is GPT-2's uint16, version 7
 * LLaMA 3's uint32, which has a magic of its own (llm.c: dataloader.h, dev/data/data_common.py). */
#define LLMC_HEADER_BYTES 1024u
#define LLMC_MAGIC_UINT16 20240520u
#define LLMC_MAGIC_UINT32 20240801u

static uint32_t header_word(const struct dtp_token_source *s, size_t i)
{
    const uint8_t *b = (const uint8_t *)s->map + 4 * i;
    return (uint32_t)b[0] | (uint32_t)b[1] << 8 | (uint32_t)b[2] << 16 | (uint32_t)b[3] << 24;
}

static bool ends_in(const char *path, const char *ending)
{
    size_t length = strlen(path), tail = strlen(ending);
    return length >= tail && strcasecmp(path + length - tail, ending) == 0;
}

/* Whoever says "bytes" means those of the container. */
static enum dtp_status check_format(const struct dtp_token_source *s, enum dtp_token_type asked,
                                    struct dtp_faults *faults)
{
    const struct dtp_data_format *format = asked == DTP_TOKENS_BYTES ? NULL : dtp_data_format_of(s->map, s->map_bytes);
    return format ? dtp_fault(faults, DTP_BAD_INPUT, s->path, 0, "is %s, no raw tokens or text; %s", format->name,
                              format->advice)
                  : DTP_OK;
}

static enum dtp_status find_type(struct dtp_token_source *s, enum dtp_token_type asked, struct dtp_faults *faults)
{
    uint32_t magic = s->map_bytes >= LLMC_HEADER_BYTES ? header_word(s, 0) : 0;
    bool headed = asked != DTP_TOKENS_BYTES && (magic == LLMC_MAGIC_UINT16 || magic == LLMC_MAGIC_UINT32);
    enum dtp_token_type said = magic == LLMC_MAGIC_UINT32 ? DTP_TOKENS_UINT32 : DTP_TOKENS_UINT16;
    s->type = asked;
    if (headed && asked != DTP_TOKENS_AUTO && asked != said)
        return dtp_fault(faults, DTP_BAD_INPUT, s->path, 0, "its header says %s, not %s; leave --data-type out",
                         type_words[said], type_words[asked]);
    if (asked == DTP_TOKENS_AUTO)
        s->type = headed || ends_in(s->path, ".bin") || ends_in(s->path, ".u16") ? said
                  : ends_in(s->path, ".u32")                                     ? DTP_TOKENS_UINT32
                                                                                 : DTP_TOKENS_BYTES;
    s->header_bytes = headed ? LLMC_HEADER_BYTES : 0;
    s->tokens = (s->map_bytes - s->header_bytes) / token_bytes(s->type);
    if (headed && header_word(s, 2) > s->tokens)
        return dtp_fault(faults, DTP_BAD_INPUT, s->path, 0,
                         "its header says %" PRIu32 " tokens, it holds %" PRIu64 ": cut short; make it again",
                         header_word(s, 2), s->tokens);
    if (headed)
        s->tokens = header_word(s, 2);
    else if ((s->map_bytes - s->header_bytes) % token_bytes(s->type))
        return dtp_fault(faults, DTP_BAD_INPUT, s->path, 0,
                         "%" PRIu64 " bytes are no whole number of %s tokens; name another --data-type", s->map_bytes,
                         type_words[s->type]);
    return DTP_OK;
}

static enum dtp_status map_file(struct dtp_token_source *s, struct dtp_faults *faults)
{
    struct stat about;
    int file = open(s->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (file < 0 || fstat(file, &about) != 0) {
        enum dtp_status status =
            dtp_fault(faults, errno == ENOENT ? DTP_BAD_INPUT : DTP_ENVIRONMENT, s->path, 0, "%s", strerror(errno));
        if (file >= 0)
            close(file);
        return status;
    }
    enum dtp_status status = DTP_OK;
    if (!S_ISREG(about.st_mode))
        status =
            dtp_fault(faults, DTP_BAD_INPUT, s->path, 0, "not a plain file; tokens are read from one at random places");
    else if (about.st_size == 0)
        status = dtp_fault(faults, DTP_BAD_INPUT, s->path, 0, "empty; a file of tokens or of text is needed");
    if (status == DTP_OK) {
        s->map_bytes = (uint64_t)about.st_size;
        s->map = mmap(NULL, s->map_bytes, PROT_READ, MAP_SHARED, file, 0);
        if (s->map == MAP_FAILED) {
            s->map = NULL;
            status = dtp_fault(faults, DTP_ENVIRONMENT, s->path, 0, "cannot be mapped: %s", strerror(errno));
        }
    }
    close(file);
    return status;
}

static enum dtp_status check_file(struct dtp_token_source *s, struct dtp_faults *faults)
{
    if (s->tokens <= s->shape.sequence)
        return dtp_fault(faults, DTP_BAD_INPUT, s->path, 0,
                         "%" PRIu64 " tokens are less than one sample of %" PRIu64
                         " and its last target; take a longer file or a smaller --seq",
                         s->tokens, s->shape.sequence);
    if (s->type == DTP_TOKENS_BYTES && s->shape.vocab < 256)
        return dtp_fault(faults, DTP_BAD_INPUT, s->path, 0,
                         "a text's bytes are 256 tokens, the model's vocabulary has %" PRIu64
                         "; take --vocab 256 or more",
                         s->shape.vocab);
    s->samples = (s->tokens - 1) / s->shape.sequence;
    snprintf(s->words, sizeof s->words, "%.150s: %" PRIu64 " tokens (%s), %" PRIu64 " samples an epoch", s->path,
             s->tokens, type_words[s->type], s->samples);
    dtp_make_printable(s->words); /* a path may hold any byte, and be cut within a character */
    return DTP_OK;
}

static enum dtp_status make(const struct dtp_token_shape *shape, struct dtp_token_source **out,
                            struct dtp_faults *faults)
{
    *out = calloc(1, sizeof **out);
    if (!*out)
        return dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "out of memory");
    (*out)->shape = *shape;
    if (shape->vocab < 2 || shape->vocab > INT32_MAX)
        return dtp_fault(faults, DTP_BAD_INPUT, NULL, 0, "a vocabulary of %" PRIu64 " cannot be trained on",
                         shape->vocab);
    return DTP_OK;
}

enum dtp_status dtp_token_source_open(const char *path, enum dtp_token_type type, const struct dtp_token_shape *shape,
                                      struct dtp_token_source **out, struct dtp_faults *faults)
{
    enum dtp_status status = make(shape, out, faults);
    struct dtp_token_source *s = *out;
    if (status == DTP_OK && !(s->path = strdup(path)))
        status = dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "out of memory");
    if (status == DTP_OK)
        status = map_file(s, faults);
    if (status == DTP_OK)
        status = check_format(s, type, faults);
    if (status == DTP_OK)
        status = find_type(s, type, faults);
    if (status == DTP_OK)
        status = check_file(s, faults);
    if (status != DTP_OK) {
        dtp_token_source_close(s);
        *out = NULL;
    }
    return status;
}

enum dtp_status dtp_token_source_markov(const struct dtp_token_shape *shape, struct dtp_token_source **out,
                                        struct dtp_faults *faults)
{
    enum dtp_status status = make(shape, out, faults);
    if (status == DTP_OK)
        status = dtp_markov_create(shape, &(*out)->markov, faults);
    if (status != DTP_OK) {
        dtp_token_source_close(*out);
        *out = NULL;
        return status;
    }
    snprintf((*out)->words, sizeof(*out)->words, "Markov chain of %" PRIu32 " states: entropy %.4f nats per token",
             dtp_markov_states((*out)->markov), dtp_markov_entropy((*out)->markov));
    return DTP_OK;
}

void dtp_token_source_close(struct dtp_token_source *s)
{
    if (!s)
        return;
    if (s->map)
        munmap(s->map, s->map_bytes);
    dtp_markov_destroy(s->markov);
    free(s->path);
    free(s);
}

/* ---- reading ----------------------------------------------------------------------------------------------------- */

/* Four rounds of a Feistel network on 2 * half bits, at least as many as `count` needs. The round takes two bits of the
 * epoch's place: of 2^62 epochs nobody reaches the end. */
static uint64_t feistel(uint64_t value, unsigned half, uint64_t seed, uint64_t epoch)
{
    uint64_t mask = ((uint64_t)1 << half) - 1, left = value >> half, right = value & mask;
    for (uint64_t round = 0; round < 4; round++) {
        struct dtp_philox mixed = dtp_philox(seed, right, (epoch & UINT64_MAX >> 2) << 2 | round);
        uint64_t next = left ^ (((uint64_t)mixed.word[0] << 32 | mixed.word[1]) & mask);
        left = right;
        right = next;
    }
    return left << half | right;
}

uint64_t dtp_permuted(uint64_t index, uint64_t count, uint64_t seed, uint64_t epoch)
{
    unsigned half = 1;
    while (half < 32 && ((uint64_t)1 << (2 * half)) < count)
        half++;
    do /* the network permutes its own domain, so a walk from below `count` comes back there; 4 steps at most on average
        */
        index = feistel(index, half, seed, epoch);
    while (index >= count);
    return index;
}

static uint32_t token_at(const struct dtp_token_source *s, uint64_t i)
{
    const uint8_t *b = (const uint8_t *)s->map + s->header_bytes + i * token_bytes(s->type);
    switch (s->type) {
    case DTP_TOKENS_UINT32: return (uint32_t)b[0] | (uint32_t)b[1] << 8 | (uint32_t)b[2] << 16 | (uint32_t)b[3] << 24;
    case DTP_TOKENS_UINT16: return (uint32_t)b[0] | (uint32_t)b[1] << 8;
    case DTP_TOKENS_AUTO:
    case DTP_TOKENS_BYTES: break;
    }
    return b[0];
}

static uint64_t sample_of(const struct dtp_token_source *s, uint64_t number)
{
    return dtp_permuted(number % s->samples, s->samples, s->shape.seed, number / s->samples);
}

static enum dtp_status refuse_token(const struct dtp_token_source *s, uint64_t place, struct dtp_faults *faults)
{
    return dtp_fault(faults, DTP_BAD_INPUT, s->path, 0,
                     "token %" PRIu64 " of the file is %" PRIu32 ", beyond the model's vocabulary of %" PRIu64
                     "; take the tokenizer's vocabulary, or another --data-type than %s",
                     place, token_at(s, place), s->shape.vocab, type_words[s->type]);
}

enum dtp_status dtp_token_source_read(const struct dtp_token_source *s, uint64_t number, int32_t *out,
                                      struct dtp_faults *faults)
{
    uint64_t count = s->shape.sequence + 1;
    if (s->markov) {
        dtp_markov_sample(s->markov, number, count, out);
        return DTP_OK;
    }
    uint64_t first = sample_of(s, number) * s->shape.sequence;
    for (uint64_t i = 0; i < count; i++) {
        uint32_t token = token_at(s, first + i);
        if (token >= s->shape.vocab)
            return refuse_token(s, first + i, faults);
        out[i] = (int32_t)token;
    }
    return DTP_OK;
}

/* ---- all of a run's tokens before its first step ----------------------------------------------------------------- */

/* Looked at in one go: small enough for the nearest cache. */
#define BLOCK_TOKENS 4096u
/* Between two looks at whether the run is to stop. */
#define CHUNK_TOKENS (UINT64_C(1) << 24)

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "tokens are compared as they lie in the file");

/* Loops that compilers make vectors of: 16 or 32 bytes at once, no branch. */
static uint32_t largest_uint16(const uint8_t *bytes, uint64_t count)
{
    uint16_t most = 0, token;
    for (uint64_t i = 0; i < count; i++) {
        memcpy(&token, bytes + 2 * i, sizeof token);
        most = token > most ? token : most;
    }
    return most;
}

static uint32_t largest_uint32(const uint8_t *bytes, uint64_t count)
{
    uint32_t most = 0, token;
    for (uint64_t i = 0; i < count; i++) {
        memcpy(&token, bytes + 4 * i, sizeof token);
        most = token > most ? token : most;
    }
    return most;
}

/* Place of the first token of [begin, end) beyond the vocabulary; UINT64_MAX: none. */
static uint64_t first_beyond(const struct dtp_token_source *s, uint64_t begin, uint64_t end)
{
    const uint8_t *tokens = (const uint8_t *)s->map + s->header_bytes;
    for (uint64_t at = begin; at < end; at += BLOCK_TOKENS) {
        uint64_t count = end - at < BLOCK_TOKENS ? end - at : BLOCK_TOKENS;
        uint32_t most = s->type == DTP_TOKENS_UINT32 ? largest_uint32(tokens + 4 * at, count)
                                                     : largest_uint16(tokens + 2 * at, count);
        for (uint64_t i = 0; most >= s->shape.vocab && i < count; i++)
            if (token_at(s, at + i) >= s->shape.vocab)
                return at + i;
    }
    return UINT64_MAX;
}

static bool can_be_beyond(const struct dtp_token_source *s)
{
    return !s->markov && s->type != DTP_TOKENS_BYTES && (s->type == DTP_TOKENS_UINT32 || s->shape.vocab <= UINT16_MAX);
}

/* Where a run reads less than this share of the file, its samples are looked at one by one, else all of the file from
 * its beginning to its end, which disks like better. */
#define FEW_SAMPLES 8u

uint64_t dtp_token_source_search(const struct dtp_token_source *s, const struct dtp_token_range *range,
                                 const volatile sig_atomic_t *stop)
{
    uint64_t found = UINT64_MAX, length = s->shape.sequence, samples = range->end - range->begin;
    if (!can_be_beyond(s))
        return UINT64_MAX;
    bool all = samples >= s->samples / FEW_SAMPLES;
    uint64_t count = all ? s->samples : samples, share = count / range->parts, begin = share * range->part;
    uint64_t end = range->part + 1 == range->parts ? count : begin + share,
             stride = all ? CHUNK_TOKENS / length + 1 : 1;
    for (uint64_t i = begin; i < end && found == UINT64_MAX && !(stop && *stop); i += stride) {
        uint64_t taken = end - i < stride ? end - i : stride, first = all ? i : sample_of(s, range->begin + i);
        found = first_beyond(s, first * length, (first + taken) * length + 1);
    }
    return found;
}

enum dtp_status dtp_token_source_refuse(const struct dtp_token_source *s, uint64_t place, struct dtp_faults *faults)
{
    return place == UINT64_MAX ? DTP_OK : refuse_token(s, place, faults);
}

double dtp_token_source_entropy(const struct dtp_token_source *s)
{
    return s->markov ? dtp_markov_entropy(s->markov) : (double)NAN;
}

uint64_t dtp_token_source_samples(const struct dtp_token_source *s)
{
    return s->samples;
}

const char *dtp_token_source_words(const struct dtp_token_source *s)
{
    return s->words;
}
