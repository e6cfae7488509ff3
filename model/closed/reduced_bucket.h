/* DeepSpeed's bucket of gradients, which counts elements: reduced before one that does not fit beside what is in it. */
#ifndef DTP_REDUCED_BUCKET_H
#define DTP_REDUCED_BUCKET_H

#include "base/bytes.h"
#include "base/pick.h"
#include "closed/fetched.h"
#include "closed/sharding.h"

#include <stdbool.h>
#include <stdint.h>

struct dtp_reduced_bucket {
    uint64_t room;            /* elements that it holds: reduce_bucket_size */
    uint64_t done;            /* elements of gradients that were made, those in it included */
    uint64_t filled, tensors; /* in it, or one that is larger by itself */
    uint64_t next, whole;     /* of the gradient that is made; with one that waits and is larger than a bucket */
};

/* Elements of a gradient that waits to be reduced, larger than the bucket. */
static inline uint64_t dtp_bucket_waits(const struct dtp_reduced_bucket *b)
{
    return b->filled > b->room ? b->filled : 0;
}

/* A gradient of so many elements has been made, or behind the last one 0. True: what is in the bucket is reduced. */
static inline bool dtp_bucket_closes(struct dtp_reduced_bucket *b, uint64_t elements)
{
    b->next = elements, b->whole = elements + dtp_bucket_waits(b);
    return b->filled && (!elements || b->filled + elements > b->room);
}

/* What is in it is all of one rank's part of the `total`, of which the last come first. */
static inline bool dtp_bucket_in_one_part(const struct dtp_reduced_bucket *b, uint64_t total, uint64_t part)
{
    return b->filled && (total - b->done) / part == (total - b->done + b->filled - 1) / part;
}

/* Elements that a rank with such a part keeps: of all parameters that have a slice in it, each whole, from the end that
 * is reduced first; `trained`: of a layer, whose norms are its last. */
static inline uint64_t dtp_bucket_kept(const struct dtp_units *t, uint64_t trained,
                                       const struct dtp_fetched_matrix *matrix, int matrices, uint64_t part,
                                       bool from_first)
{
    const uint64_t layers = trained ? (t->total - t->embedding - t->position - t->head) / trained : 0,
                   tables = t->embedding + t->position;
    uint64_t sum = from_first ? tables : t->total - tables - layers * trained, whole = 0, norms = trained;
    if (sum < part && trained)
        whole = smaller(layers, (part - sum) / trained);
    sum += whole * trained;
    for (int i = 0; i < matrices; i++)
        norms -= smaller(norms, matrix[i].trained);
    if (!from_first && whole < layers && sum < part)
        sum += norms;
    for (int i = 0; i < matrices && whole < layers && sum < part; i++)
        sum += matrix[from_first ? i : matrices - 1 - i].trained;
    return larger(sum, part);
}

/* Behind that: it goes into the bucket, which is empty where it `closed`. */
static inline void dtp_bucket_take(struct dtp_reduced_bucket *b, uint64_t elements, bool closed)
{
    b->filled = (closed ? 0 : b->filled) + elements, b->tensors = (closed ? 0 : b->tensors) + 1;
    b->done += elements;
}

#endif
