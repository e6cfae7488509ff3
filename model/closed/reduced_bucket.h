/* DeepSpeed's bucket of gradients, which counts elements: reduced before one that does not fit beside what is in it. */
#ifndef DTP_REDUCED_BUCKET_H
#define DTP_REDUCED_BUCKET_H

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

/* Behind that: it goes into the bucket, which is empty where it `closed`. */
static inline void dtp_bucket_take(struct dtp_reduced_bucket *b, uint64_t elements, bool closed)
{
    b->filled = (closed ? 0 : b->filled) + elements, b->tensors = (closed ? 0 : b->tensors) + 1;
    b->done += elements;
}

#endif
