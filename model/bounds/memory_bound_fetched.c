/* DeepSpeed's ZeRO-3: weights that are fetched tensor by tensor (closed/fetched.h) beside activations, as each is used;
 * gradients go by buckets. */
#include "bounds/memory_bound.h"

#include "closed/reduced_bucket.h"

struct fetching {
    struct dtp_bound *b;
    struct dtp_fetched weights;
    struct dtp_reduced_bucket bucket;
    uint64_t standing, waiting, held; /* bytes; a tied head's gradient; what a reentrant replay holds */
    /* Bytes beside weights and what is below a layer, by tensor of it, as it is used. Its gradient: elements, bytes
     * beside it; of weights behind its use, in layers replayed or not. */
    uint64_t forward[DTP_FETCHED_PARTS], backward[DTP_FETCHED_PARTS];
    uint64_t made[DTP_FETCHED_PARTS], beside[DTP_FETCHED_PARTS], behind[2][DTP_FETCHED_PARTS];
};

/* A gradient is made beside so many bytes of activations. A bucket is laid out by rank beside itself, under ZeRO++ a
 * tensor. To the host slices go in fp32, tensor by tensor, to NVMe a bucket's at once. */
static void made(struct fetching *f, uint64_t elements, uint64_t bytes)
{
    struct dtp_bound *b = f->b;
    struct dtp_reduced_bucket *w = &f->bucket;
    const struct dtp_units *t = b->trained;
    const uint64_t g = b->bytes.grads, filled = w->filled, slices = dtp_divide_up(filled, t->ranks),
                   most = smaller(filled, larger(larger(t->largest, t->embedding), t->position));
    if (!elements && bytes) /* none; without any, behind the last */
        return;
    const bool by_tensor = b->plan->deepspeed.zero_quantized_gradients && b->cluster->nodes > 1;
    uint64_t laid = b->bytes.reduce * (by_tensor ? most : filled);
    if (b->plan->offload != DTP_OFFLOAD_NONE)
        laid += 4 * (b->plan->offload == DTP_OFFLOAD_NVME && g < 4 ? slices
                                                                   : smaller(slices, dtp_divide_up(most, t->ranks)));
    const bool closes = dtp_bucket_closes(w, elements);
    if (closes)
        dtp_bound_keep(b, f->standing + f->weights.now + (bytes ? f->waiting : 0) + bytes + g * w->whole + laid);
    dtp_bucket_take(w, elements, closes);
}

/* With a gradient that waits. */
static uint64_t standing(const struct fetching *f)
{
    return f->standing + f->waiting + f->b->bytes.grads * dtp_bucket_waits(&f->bucket);
}

/* Activations of a block in backward are those of its stages. */
static void measure(struct fetching *f)
{
    const struct dtp_bound *b = f->b;
    const struct dtp_activations *a = &b->activations;
    const int n = b->matrices[0];
    const uint64_t stream = dtp_bound_tokens(b, a->gradient);
    f->made[n] = b->trained->layer;
    for (int i = 0; i < 2 * n; i++) {
        const struct dtp_fetched_matrix *m = &b->matrix[0][i % n];
        const int part = i < n ? i : i + 1, s = m->stage;
        const uint64_t inner = stream + dtp_bound_tokens(b, b->stage[s].token_bytes);
        f->forward[part] = i % n == n - 1 ? dtp_bound_forward(b) : dtp_bound_tokens(b, a->layer_all);
        f->backward[part] = inner + b->bytes.grads * m->trained;
        f->made[part] = i < n ? m->trained : 0, f->beside[part] = inner;
        f->made[n] -= smaller(f->made[n], f->made[part]);
    }
    f->forward[n] = dtp_bound_tokens(b, a->layer_input);
    f->backward[n] = f->beside[n] = stream;
}

/* Returns bytes of weights. */
static uint64_t use(struct fetching *f, int visit, int index, uint64_t beside)
{
    const uint64_t used = dtp_fetched_use(&f->weights, (enum dtp_fetched_visit)visit, index);
    dtp_bound_keep(f->b, standing(f) + larger(used, f->weights.copied) + beside);
    return used;
}

static uint64_t pass(struct fetching *f, int visit, uint64_t saved)
{
    const struct dtp_fetched_order *o = &f->weights.order[visit];
    uint64_t used = 0;
    for (int i = 0; i < o->count; i++)
        used = use(f, visit, i, saved + f->forward[o->part[i]]);
    return used;
}

/* Of a block that is passed over its buckets alone. */
static void backward(struct fetching *f, uint64_t below, bool over)
{
    const struct dtp_fetched_order *o = &f->weights.order[DTP_FETCHED_BACKWARD];
    const uint64_t saved = dtp_bound_saved(f->b, below), whole = f->b->trained->layer, beside = saved + f->held;
    const bool replayed = dtp_fetched_replayed(&f->weights, below);
    if (over && f->bucket.filled + whole <= f->bucket.room) {
        dtp_bucket_take(&f->bucket, whole, false);
        return;
    }
    if (replayed && !over)
        pass(f, DTP_FETCHED_REPLAY, beside);
    for (int i = 0; i < o->count; i++) {
        const int part = o->part[i];
        uint64_t *behind = &f->behind[replayed][part];
        if (!over) {
            use(f, DTP_FETCHED_BACKWARD, i, beside + f->backward[part]);
            *behind = f->weights.now;
        }
        f->weights.now = *behind;
        made(f, f->made[part], saved + f->beside[part]);
    }
}

static void start(struct fetching *f, struct dtp_bound *b)
{
    const struct dtp_plan *plan = b->plan;
    const uint64_t every = b->activations.checkpoint_every,
                   held = every && dtp_plan_layers(plan)->holds_replayed ? b->activations.layer_input : 0;
    f->b = b, f->waiting = 0, f->held = dtp_bound_tokens(b, held);
    f->standing = b->bytes.reduce * plan->deepspeed.reduce_bucket_size +
                  (plan->offload == DTP_OFFLOAD_NONE ? b->bytes.grads * b->trained->total_shard : 0);
    f->bucket = (struct dtp_reduced_bucket){.room = plan->deepspeed.reduce_bucket_size};
    dtp_fetched_start(&f->weights, plan, b->units, b->matrix[0], b->matrices[0],
                      plan->checkpointing == DTP_CHECKPOINT_SELECTIVE_ATTENTION ? 0 : every);
    measure(f);
}

static struct dtp_bound_beside forward(struct fetching *f)
{
    struct dtp_bound *b = f->b;
    const struct dtp_activations *a = &b->activations;
    const uint64_t stream = dtp_bound_tokens(b, a->gradient), kept = dtp_bound_saved(b, b->layers);
    struct dtp_bound_beside beside = {.head_gradient = b->bytes.compute * b->trained->embedding};
    const bool chunked = dtp_plan_loss(b->plan) == DTP_LOSS_CHUNKED;
    use(f, DTP_FETCHED_FIRST, 0, stream);
    const uint64_t head = kept + dtp_bound_tokens(b, a->head);
    use(f, DTP_FETCHED_FIRST, 1, stream);
    for (uint64_t l = 0; l < b->layers;) {
        beside.forward = f->standing + pass(f, DTP_FETCHED_FORWARD, dtp_bound_saved(b, l++));
        l += l < b->layers ? dtp_fetched_pass_over(&f->weights, l, false) : 0;
    }
    use(f, DTP_FETCHED_LAST, 0, kept);
    beside.logits = f->standing + use(f, DTP_FETCHED_LAST, 1, head);
    beside.loss = chunked ? beside.logits : f->standing + f->weights.now;
    const uint64_t back = head + dtp_bound_tokens(b, a->logits_gradient) + (chunked ? beside.head_gradient : 0);
    beside.head = f->standing + use(f, DTP_FETCHED_LAST_BACK, 0, back);
    return beside;
}

void dtp_bound_fetched(struct dtp_bound *b)
{
    const struct dtp_units *t = b->trained;
    const struct dtp_activations *a = &b->activations;
    const uint64_t c = b->bytes.compute, g = b->bytes.grads, stream = dtp_bound_tokens(b, a->gradient),
                   shard = b->plan->offload == DTP_OFFLOAD_NONE ? g * t->total_shard : 0,
                   saved = dtp_bound_saved(b, b->layers), kept = saved + stream;
    struct fetching f;
    start(&f, b);
    struct dtp_bound_beside beside = forward(&f);
    made(&f, t->head, kept);
    f.waiting = b->units->head ? 0 : g * t->embedding;
    use(&f, DTP_FETCHED_LAST_BACK, 1, kept);
    made(&f, t->total - b->layers * t->layer - t->embedding - t->position - t->head, kept);
    for (uint64_t below = b->layers; below-- > 0;) {
        backward(&f, below, false);
        uint64_t over = below ? dtp_fetched_pass_over(&f.weights, below - 1, true) : 0, now = f.weights.now;
        for (; over > 0; over--)
            backward(&f, --below, true);
        f.weights.now = now;
    }
    /* positions wait for the embedding's use: where that persists, for the end of backward */
    const uint64_t before = f.weights.now;
    dtp_bound_keep(b, standing(&f) + before + g * t->position + stream);
    made(&f, t->position, stream);
    use(&f, DTP_FETCHED_FIRST_BACK, 0, stream);
    use(&f, DTP_FETCHED_FIRST_BACK, 1, stream);
    beside.ends =
        standing(&f) + g * t->embedding + (f.weights.order[DTP_FETCHED_FIRST_BACK].size[1] ? f.weights.now : before);
    made(&f, t->embedding, 0);
    made(&f, 0, 0);
    dtp_bound_steps(b, &beside);
    const uint64_t persistent = c * f.weights.persistent,
                   seconds = f.weights.second ? c * f.weights.others / f.weights.second : 0;
    dtp_bound_hold(b, shard + persistent + saved + dtp_bound_tokens(b, a->head + a->loss));
    dtp_bound_keep(b,
                   f.standing + persistent + seconds + (g < 4 && shard ? 4 * smaller(t->total_shard, 1000000000) : 0));
}
