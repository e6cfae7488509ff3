/* DeepSpeed's buckets of gradients, which count elements: where in backward each is full. */
#include "bounds/memory_bound.h"

#define PARTS 9
/* Of the blocks in which buckets close so many of the first and last are looked at. */
#define FIRST_BLOCKS 16
#define LAST_BLOCKS 4

struct buckets {
    struct dtp_bound *b;
    dtp_bound_close *close;
    const void *own;
    struct dtp_bound_closing now;
    uint64_t bucket;
};

static void begin(struct buckets *w)
{
    w->now.filled = w->now.oversized = 0;
    w->now.tensors = 0;
}

/* A gradient of so many elements has been made; what was there before is reduced where both do not fit. */
static void made(struct buckets *w, uint64_t elements)
{
    if (!elements)
        return;
    w->now.elements = elements;
    if (w->now.filled && w->now.filled + elements > w->bucket) {
        w->close(w->b, &w->now, w->own);
        begin(w);
    }
    w->now.done += elements;
    w->now.filled += elements;
    w->now.tensors++;
    w->now.oversized = elements > w->bucket ? elements : 0;
}

struct parts {
    uint64_t elements[PARTS], token_bytes[PARTS];
    int count;
};

static void add(struct parts *parts, uint64_t count, uint64_t elements, uint64_t token_bytes)
{
    for (uint64_t i = 0; i < count; i++) {
        parts->elements[parts->count] = elements;
        parts->token_bytes[parts->count++] = token_bytes;
    }
}

/* A block's gradients in the order of backward, with the bytes of a token that stand by then beside the stream's. */
static struct parts parts_of(const struct dtp_bound *b)
{
    const struct dtp_transformer *t = b->transformer;
    const struct dtp_activations *a = &b->activations;
    uint64_t h = t->hidden, q = t->heads * t->head_dim, kv = t->kv_heads * t->head_dim, c = b->bytes.compute;
    uint64_t norm = a->layer_norms / 2, gated = dtp_activation_is_gated(t->activation) ? 1 : 0;
    uint64_t attention = a->layer_input + norm + a->layer_attention, of_qkv = a->layer_input + norm + c * (q + kv + kv);
    bool one = gated && b->plan->fused_gate_up;
    struct parts parts = {.count = 0};
    if (dtp_plan_adapts(b->plan)) { /* few: they are made as one */
        add(&parts, 1, b->trained.layer, a->layer_all);
        return parts;
    }
    add(&parts, 1, h * t->ffn, a->layer_all);
    add(&parts, gated && !one ? 2 : 1, (one ? 2 : 1) * h * t->ffn, a->layer_all - a->layer_mlp + c * (t->ffn + h));
    add(&parts, 1, q * h, attention + c * q);
    add(&parts, b->plan->fused_qkv ? 0 : 1, h * q, of_qkv + c * h);
    add(&parts, b->plan->fused_qkv ? 1 : 2, h * (b->plan->fused_qkv ? q + 2 * kv : kv), of_qkv);
    add(&parts, 1, b->units.layer - b->units.layer_matmul, 0);
    return parts;
}

static void block(struct buckets *w, const struct parts *parts, uint64_t below)
{
    uint64_t beside = dtp_bound_saved(w->b, below) + dtp_bound_tokens(w->b, w->b->activations.gradient);
    w->now.below = below;
    for (int i = 0; i < parts->count; i++) {
        w->now.bytes = beside + dtp_bound_tokens(w->b, parts->token_bytes[i]);
        made(w, parts->elements[i]);
    }
}

/* So many blocks' gradients, none of which closes a bucket. */
static void skip(struct buckets *w, uint64_t blocks)
{
    w->now.done += blocks * w->b->trained.layer;
    w->now.filled += blocks * w->b->trained.layer;
    w->now.tensors += blocks;
}

static void blocks(struct buckets *w)
{
    const struct dtp_bound *b = w->b;
    struct parts parts = parts_of(b);
    uint64_t walked = 0;
    for (uint64_t left = b->layers; left;) {
        uint64_t room = w->bucket > w->now.filled ? (w->bucket - w->now.filled) / b->trained.layer : 0;
        if (room) {
            room = smaller(room, left);
            skip(w, room);
            left -= room;
            w->now.oversized = 0;
        } else if (walked++ == FIRST_BLOCKS && left > LAST_BLOCKS) { /* as if buckets were always filled to the brim */
            skip(w, left - LAST_BLOCKS);
            w->now.filled %= w->bucket;
            left = LAST_BLOCKS;
        } else {
            block(w, &parts, --left);
        }
    }
}

void dtp_bound_buckets(struct dtp_bound *b, dtp_bound_close *close, const void *own)
{
    const struct dtp_units *u = &b->trained;
    struct buckets w = {.b = b, .close = close, .own = own, .bucket = b->plan->deepspeed.reduce_bucket_size};
    uint64_t stream = dtp_bound_tokens(b, b->activations.gradient);
    w.now.below = b->layers;
    w.now.bytes = dtp_bound_saved(b, b->layers) + stream;
    made(&w, u->head);
    made(&w, u->total - b->layers * u->layer - u->embedding - u->position - u->head);
    blocks(&w);
    w.now.below = 0;
    w.now.bytes = stream;
    made(&w, u->position);
    w.now.bytes = 0;
    made(&w, u->embedding);
    w.now.elements = 0;
    close(b, &w.now, own);
}
