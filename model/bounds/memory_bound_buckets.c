/* DeepSpeed's buckets of gradients, which count elements: where in backward each is full. */
#include "bounds/memory_bound.h"

struct buckets {
    struct dtp_bound *b;
    dtp_bound_close *close;
    const void *own;
    struct dtp_bound_closing now;
    uint64_t bucket;
};

/* A gradient of so many elements has been made; what was there before is reduced where both do not fit. */
static void made(struct buckets *w, uint64_t elements, uint64_t bytes)
{
    if (!elements)
        return;
    w->now.next = elements, w->now.bytes = bytes;
    w->now.whole = elements + (w->now.filled > w->bucket ? w->now.filled : 0);
    if (w->now.filled && w->now.filled + elements > w->bucket) {
        w->close(w->b, &w->now, w->own);
        w->now.filled = w->now.tensors = 0;
    }
    w->now.done += elements, w->now.filled += elements, w->now.tensors++;
}

/* A block's, from its last matrix on; as one where it closes none. */
static void block(struct buckets *w, uint64_t below)
{
    const struct dtp_bound *b = w->b;
    uint64_t beside = dtp_bound_saved(b, below) + dtp_bound_tokens(b, b->activations.gradient),
             rest = b->trained->layer;
    w->now.below = below;
    if (w->now.filled + rest <= w->bucket) {
        w->now.done += rest, w->now.filled += rest, w->now.tensors++;
        return;
    }
    for (int i = b->matrices - 1; i >= 0; i--) {
        made(w, b->matrix[i].trained, beside + dtp_bound_tokens(b, b->matrix[i].token_bytes));
        rest -= smaller(rest, b->matrix[i].trained);
    }
    made(w, rest, beside);
}

void dtp_bound_buckets(struct dtp_bound *b, dtp_bound_close *close, const void *own)
{
    const struct dtp_units *t = b->trained;
    struct buckets w = {.b = b, .close = close, .own = own, .bucket = b->plan->deepspeed.reduce_bucket_size};
    uint64_t stream = dtp_bound_tokens(b, b->activations.gradient), kept = dtp_bound_saved(b, b->layers) + stream;
    w.now.below = b->layers;
    made(&w, t->head, kept);
    made(&w, t->total - b->layers * t->layer - t->embedding - t->position - t->head, kept);
    for (uint64_t below = b->layers; below-- > 0;)
        block(&w, below);
    made(&w, t->position, stream);
    made(&w, t->embedding, 0);
    w.now.next = 0, w.now.whole = w.now.filled > w.bucket ? w.now.filled : 0;
    close(b, &w.now, own);
}
