#include "program/kept_once.h"

#include <stdlib.h>
#include <string.h>

void dtp_kept_once_release(struct dtp_kept_once *once)
{
    free(once->places);
    dtp_host_arena_release(&once->memory);
}

/* NULL: no memory. */
static inline struct dtp_kept_places *places_of(struct dtp_kept_once *once)
{
    if (!once->places)
        once->places = calloc(1, sizeof *once->places);
    return once->places;
}

bool dtp_name_is_plain(const char *name)
{
    size_t bytes = 0;
    for (; name[bytes]; bytes++)
        if (name[bytes] < 0x20 || name[bytes] > 0x7e || name[bytes] == '"')
            return false;
    return bytes <= DTP_PROGRAM_MAX_NAME_BYTES;
}

static const char *keep_spelling(struct dtp_kept_once *once, const char *name)
{
    uint32_t hash = 2166136261u; /* FNV-1a */
    for (const char *c = name; *c; c++)
        hash = (hash ^ (unsigned char)*c) * 16777619u;
    const char **slot = &once->places->by_spelling[(hash ^ hash >> 16) % DTP_KEPT_SLOTS];
    if (*slot && !strcmp(*slot, name))
        return *slot;
    size_t bytes = strlen(name) + 1;
    char *copy = dtp_name_is_plain(name) ? dtp_host_arena_take(&once->memory, bytes, 1) : NULL;
    return copy ? (*slot = memcpy(copy, name, bytes)) : NULL;
}

const char *dtp_keep_name(struct dtp_kept_once *once, const char *name)
{
    if (!name || !*name)
        return "";
    struct dtp_kept_places *places = places_of(once);
    if (!places)
        return NULL;
    struct dtp_known_name *known = &places->by_pointer[((uintptr_t)name ^ (uintptr_t)name >> 9) % DTP_KEPT_SLOTS];
    if (known->source == name && !strcmp(known->copy, name))
        return known->copy;
    const char *copy = keep_spelling(once, name);
    if (copy)
        *known = (struct dtp_known_name){name, copy};
    return copy;
}

/* What tells most demands apart makes the hash, in two halves that are computed side by side. Of a double its upper
 * half says most, which products would move out. */
static size_t slot_of(const struct dtp_demand *d)
{
    const double left[] = {d->m, d->n, d->k, d->flops}, right[] = {d->bytes, d->sent_bytes, d->tokens, d->kernels};
    uint64_t a = d->recompute, b = d->memory_kernel, x, y;
    for (int i = 0; i < 4; i++) {
        memcpy(&x, &left[i], sizeof x);
        memcpy(&y, &right[i], sizeof y);
        a = (a ^ x ^ x >> 32) * UINT64_C(0x9e3779b97f4a7c15);
        b = (b ^ y ^ y >> 32) * UINT64_C(0xc2b2ae3d27d4eb4f);
    }
    return ((a ^ b) >> 48) % DTP_KEPT_SLOTS;
}

const struct dtp_demand *dtp_known_demand(const struct dtp_kept_once *once, const struct dtp_demand *demand)
{
    const struct dtp_demand *known = once->places ? once->places->demands[slot_of(demand)] : NULL;
    return known && !memcmp(known, demand, sizeof *known) ? known : NULL;
}

const struct dtp_demand *dtp_keep_demand(struct dtp_kept_once *once, const struct dtp_demand *demand)
{
    struct dtp_kept_places *places = places_of(once);
    struct dtp_demand *copy = places ? dtp_host_arena_take(&once->memory, 1, sizeof *copy) : NULL;
    if (!copy)
        return NULL;
    *copy = *demand;
    return places->demands[slot_of(demand)] = copy;
}
