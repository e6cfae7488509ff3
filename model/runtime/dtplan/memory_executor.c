/* Peak memory of our executor: its one arena, to the byte where the placement finds no holes.
 *
 * Every buffer takes a multiple of the arena's granule, so sizes are rounded tensor by tensor. The instants that can be
 * the peak are the worst one inside a block's forward and backward, with what stands below and above that block, and a
 * few at the ends: the loss, the reduction of the head, the embedding's backward. Inside a block the live tensors of
 * each operation are written down as sets (bits of the table below); which block is worst follows from what lies below
 * it (kept activations, more for later blocks) and above it (gradients, more for earlier ones).
 *
 * Gradients in the last micro-step, N shard ranks, K micro-steps:
 *   rest     N = 1: whole ones rest until the optimizer; of K > 1 micro-steps all of them from the first on
 *   ring     N > 1 with a reduction in every micro-step: the buffer being written and the one being reduced, and shards
 *   added    N = 1 with such reductions: the same two beside the sums
 *   whole    N > 1 with one reduction for several micro-steps: whole ones, which turn to shards one by one */
#include "runtime/dtplan/lower_executor.h"
#include "runtime/dtplan/closed_form_executor.h"

#include "runtime/dtplan/batch_layout.h"

/* Tensors of a block as bits, in the order of forward; those of models with norms of q and k behind the others. */
#define IN UINT32_C(0x001)
#define STATISTICS1 UINT32_C(0x002)
#define NORM1 UINT32_C(0x004)
#define QKV UINT32_C(0x008)
#define CORE UINT32_C(0x010)
#define LSE UINT32_C(0x020)
#define MIDDLE UINT32_C(0x040)
#define STATISTICS2 UINT32_C(0x080)
#define NORM2 UINT32_C(0x100)
#define UP UINT32_C(0x200)
#define PRODUCT UINT32_C(0x400)
#define QK_RAW UINT32_C(0x800)
#define QK_STATISTICS UINT32_C(0x1000)
#define ALL UINT32_C(0x1fff)
#define TENSORS 13

static uint64_t granules(uint64_t bytes)
{
    return dtp_divide_up(bytes, DTP_PLACEMENT_ALIGNMENT) * DTP_PLACEMENT_ALIGNMENT;
}

/* The worst operation of a pass over one block: bytes of its own tensors, and of gradients and workspaces beside. */
struct worst {
    uint64_t saved, work;
};

enum { EMBEDDING, BLOCK, HEAD, MODULES };
enum mode { REST, RING, ADDED, WHOLE };

struct model {
    struct dtp_memory_job *job;
    struct dtp_executor_rules rules;
    struct dtp_parameter_module layout[MODULES];
    uint64_t tensor[TENSORS], residual, workspace[2]; /* workspace: attention forward, backward */
    uint64_t partial, qk_partial;                     /* sums of the norms' backward, of q's and k's norms' */
    uint64_t logits, losses;
    uint64_t whole[MODULES], shard[MODULES], gathered[MODULES]; /* of a module: gradients, their shard, weights */
    uint64_t host_shard[MODULES];
    bool padded[MODULES];
    enum mode mode;
    uint64_t layers, every; /* every: blocks 0, every, 2 every .. are checkpointed; 0: none */
    uint32_t kept[2];       /* of blocks that are not and that are checkpointed */
    uint64_t kept_bytes[2];
    struct worst forward[2], replay[2];
    struct worst before[2][2],
        after[2][2]; /* backward before and after its gradients exist: of the last block, of others */
    uint64_t above; /* what the weight gradients of the block above still read, where they have a stream of their own */
};

/* ---- sizes ------------------------------------------------------------------------------------------------------- */

static uint64_t sum(const struct model *m, uint32_t tensors)
{
    uint64_t bytes = 0;
    for (int i = 0; i < TENSORS; i++)
        bytes += tensors & 1u << i ? m->tensor[i] : 0;
    return bytes;
}

static void size_tensors(struct model *m)
{
    const struct dtp_transformer *t = m->job->transformer;
    const struct dtp_executor_rules *r = &m->rules;
    uint64_t c = m->job->bytes.compute, h = c * t->hidden, q = c * t->heads * t->head_dim;
    uint64_t input = dtp_plan_keeps_fp8(m->job->plan) ? 1 : c; /* of matmuls that keep their operand as fp8 */
    const uint64_t row[TENSORS] = {h,
                                   r->statistics_bytes,
                                   input * t->hidden,
                                   q + 2 * c * t->kv_heads * t->head_dim,
                                   q,
                                   4 * t->heads,
                                   h,
                                   r->statistics_bytes,
                                   input * t->hidden,
                                   c * r->up_width,
                                   input * t->ffn,
                                   t->qk_norm ? q + c * t->kv_heads * t->head_dim : 0,
                                   t->qk_norm ? 4 * (t->heads + t->kv_heads) : 0};
    for (int i = 0; i < TENSORS; i++)
        m->tensor[i] = granules(dtp_bytes_product(r->tokens, row[i]));
    m->residual = m->tensor[0];
    m->workspace[0] = granules(r->attention_workspace_bytes);
    m->workspace[1] = granules(r->attention_backward_workspace_bytes);
    m->partial = granules(2 * 4 * DTP_EXECUTOR_PARTIAL_ROWS * t->hidden);
    m->qk_partial = t->qk_norm ? granules(4 * DTP_EXECUTOR_PARTIAL_ROWS * 2 * t->head_dim) : 0;
    m->logits = granules(dtp_bytes_product(r->chunk_tokens, r->vocab_stride * c));
    m->losses = granules(dtp_bytes_product(r->tokens, 4));
    /* an optimizer on the host takes a block's gradients at its end, so that it waits for them there */
    m->above = m->job->plan->executor.gradient_stream && !r->host_optimizer ? m->tensor[2] + m->tensor[3] : 0;
}

static void size_modules(struct model *m)
{
    const struct dtp_transformer *t = m->job->transformer;
    const uint64_t module[MODULES] = {0, 1, t->layers + 1};
    for (int i = 0; i < MODULES; i++) {
        struct dtp_parameter_module *layout = &m->layout[i];
        dtp_parameter_module(t, m->rules.shard_ranks, module[i], layout);
        struct dtp_gradient_dtypes dtype = dtp_executor_gradient_dtypes(t, &m->rules, module[i]);
        m->whole[i] = dtp_bytes_product(layout->elements, dtp_dtype_bytes(dtype.whole));
        m->shard[i] = dtp_bytes_product(layout->shard_elements, dtp_dtype_bytes(dtype.shard));
        m->host_shard[i] = m->shard[i];
        m->gathered[i] = m->rules.sharded ? dtp_bytes_product(layout->elements, m->job->bytes.compute) : 0;
        m->padded[i] = layout->elements > layout->extent_elements;
    }
    if (m->rules.streams_gradients) /* through two shards that rest, to the host or into the optimizer */
        m->shard[BLOCK] = 0;
    bool several = m->rules.reduces_always && m->rules.replicas > 1;
    m->mode = m->rules.shard_ranks == 1                                  ? (several ? ADDED : REST)
              : m->job->plan->accumulate == 1 || m->rules.reduces_always ? RING
                                                                         : WHOLE;
}

/* ---- one block --------------------------------------------------------------------------------------------------- */

static void consider(struct worst *worst, uint64_t saved, uint64_t work)
{
    if (saved + work > worst->saved + worst->work)
        *worst = (struct worst){saved, work};
}

/* Live tensors of each forward operation; what is kept stands from where it is made. */
static struct worst worst_forward(const struct model *m, uint32_t kept, bool replay)
{
    bool epilogue = m->job->plan->executor.gelu_epilogue;
    const struct {
        uint32_t live, made;
        uint64_t work;
    } ops[] = {{IN | STATISTICS1 | NORM1, IN | STATISTICS1 | NORM1, 0},
               {IN | NORM1 | QKV, QKV, 0},
               {IN | QKV | QK_RAW | QK_STATISTICS, QK_RAW | QK_STATISTICS, 0},
               {IN | QKV | CORE | LSE, CORE | LSE, m->workspace[0]},
               {IN | CORE | MIDDLE, MIDDLE, 0},
               {IN | MIDDLE | STATISTICS2 | NORM2, STATISTICS2 | NORM2, 0},
               {IN | MIDDLE | NORM2 | UP | (epilogue ? PRODUCT : 0), UP | (epilogue ? PRODUCT : 0), 0},
               {IN | MIDDLE | PRODUCT | (epilogue ? 0 : UP), PRODUCT, 0},
               {IN | MIDDLE | PRODUCT, 0, replay ? 0 : m->residual}};
    uint32_t made = 0;
    struct worst worst = {0, 0};
    for (size_t i = 0; i < sizeof ops / sizeof *ops - (replay ? 1 : 0); i++) {
        made |= ops[i].made;
        /* the result of the last operation is the next block's input: saved, but not of this block */
        consider(&worst, sum(m, ops[i].live | (kept & made)) + ops[i].work, 0);
    }
    return worst;
}

/* Backward of a block whose tensors `has` stand, beside the residual's gradient. */
static void worst_backward(struct model *m, bool last, int kind, uint32_t has)
{
    struct worst *before = &m->before[last][kind], *after = &m->after[last][kind];
    uint64_t residual = m->residual, norm = residual; /* the gradient of a norm's result is as wide */
    uint64_t inner = granules(dtp_bytes_product(m->rules.tokens, m->job->bytes.compute * m->job->transformer->ffn));
    uint32_t attention = has & (IN | STATISTICS1 | NORM1 | QKV | CORE | LSE | QK_RAW | QK_STATISTICS);
    bool again = !(has & PRODUCT), epilogue = m->job->plan->executor.gelu_epilogue && !again;
    if (again) { /* input gradient, activation with the product over it, weight gradient */
        consider(before, sum(m, has), residual + inner);
        consider(after, sum(m, has), residual + inner);
    } else { /* weight gradient, input gradient, activation */
        consider(after, sum(m, has), residual);
        consider(after, sum(m, has & ~PRODUCT), residual + inner);
    }
    has &= ~PRODUCT;
    uint64_t gradient = epilogue ? inner : 0; /* of up, a tensor of its own */
    has &= epilogue ? ~UP : ALL;
    consider(after, sum(m, has | NORM2), residual + gradient);
    consider(after, sum(m, has & ~NORM2), residual + gradient + norm);
    consider(after, sum(m, has & ~(NORM2 | UP)), residual + norm + m->partial);
    if (!(attention & CORE))
        consider(after, sum(m, attention | CORE | LSE), residual + m->workspace[0]);
    attention |= CORE | LSE;
    consider(after, sum(m, attention), residual + m->tensor[4] + m->tensor[3] + m->workspace[1]);
    attention &= ~(QKV | CORE | LSE);
    consider(after, sum(m, attention), residual + m->tensor[3] + m->qk_partial);
    attention &= ~(QK_RAW | QK_STATISTICS);
    consider(after, sum(m, attention | NORM1), residual + m->tensor[3]);
    consider(after, sum(m, attention & ~NORM1), residual + m->tensor[3] + norm);
    consider(after, sum(m, attention & ~NORM1), residual + norm + m->partial);
}

/* The same where weight gradients have a stream of their own: what they read stays until the norm's backward that waits
 * for them, of down's until the second norm's, of up's and the output's until the first norm's, of qkv's until the
 * second norm's in the block below. */
static void worst_backward_apart(struct model *m, bool last, int kind, uint32_t has)
{
    struct worst *before = &m->before[last][kind], *after = &m->after[last][kind];
    uint64_t residual = m->residual, norm = residual, work = residual + (last ? 0 : m->above);
    uint64_t inner = granules(dtp_bytes_product(m->rules.tokens, m->job->bytes.compute * m->job->transformer->ffn));
    bool again = !(has & PRODUCT), epilogue = m->job->plan->executor.gelu_epilogue && !again;
    if (again)
        consider(before, sum(m, has), work + inner);
    consider(after, sum(m, has), work + inner);
    work += again || epilogue ? inner : 0; /* the product made again; the gradient of up, a tensor of its own */
    has = (has & (epilogue ? ~UP : ALL)) | NORM2;
    consider(after, sum(m, has), work + norm);
    has &= ~PRODUCT;
    work = residual + (epilogue ? inner : 0);
    consider(after, sum(m, has), work + norm + m->partial);
    has &= ~(MIDDLE | STATISTICS2);
    if (!(has & CORE))
        consider(after, sum(m, has | CORE | LSE), work + m->workspace[0]);
    has |= CORE | LSE;
    consider(after, sum(m, has), work + m->tensor[4] + m->tensor[3] + m->workspace[1]);
    has &= ~(QKV | LSE);
    consider(after, sum(m, has), work + m->tensor[3] + m->qk_partial);
    has = (has & ~(QK_RAW | QK_STATISTICS)) | NORM1;
    consider(after, sum(m, has), work + m->tensor[3] + norm);
    consider(after, sum(m, IN | STATISTICS1 | NORM1), residual + m->tensor[3] + norm + m->partial);
}

static uint32_t kept_tensors(const struct dtp_plan *plan)
{
    switch (dtp_plan_checkpoint_rule(plan).keeps) {
    case DTP_KEEPS_ALL: break;
    case DTP_KEEPS_INPUT: return IN;
    case DTP_KEEPS_ALL_BUT_CORE: return ALL & ~(CORE | LSE);
    case DTP_KEEPS_SECOND_MATMULS: return ALL & ~(NORM1 | NORM2 | PRODUCT);
    }
    return ALL;
}

static void weigh_blocks(struct model *m)
{
    const struct dtp_plan *plan = m->job->plan;
    m->layers = m->job->transformer->layers;
    m->every = dtp_plan_checkpoint_rule(plan).every;
    m->kept[0] = ALL;
    m->kept[1] = kept_tensors(plan);
    m->kept_bytes[0] = sum(m, m->kept[0]), m->kept_bytes[1] = sum(m, m->kept[1]);
    for (int kind = m->every == 1; kind < (m->every ? 2 : 1); kind++) { /* those that there are */
        bool replays = m->kept[kind] == IN;
        uint32_t has = replays ? ALL : m->kept[kind];
        m->forward[kind] = worst_forward(m, m->kept[kind], false);
        if (replays)
            m->replay[kind] = worst_forward(m, ALL, true);
        (plan->executor.gradient_stream ? worst_backward_apart : worst_backward)(m, false, kind, has);
        if (plan->executor.gradient_stream)
            worst_backward_apart(m, true, kind, has);
        else /* which block it is makes no difference */
            m->before[true][kind] = m->before[false][kind], m->after[true][kind] = m->after[false][kind];
    }
}

/* ---- instants ---------------------------------------------------------------------------------------------------- */

/* What stands at an instant beyond what rests: numbers of things, so that one can be told from another by its sum alone
 * and only the largest of a phase is written down. */
struct point {
    uint64_t layers[2]; /* blocks whose kept tensors stand, by kind */
    struct worst block;
    uint64_t head;                            /* final norm, its input and statistics */
    uint64_t logits;                          /* with the losses */
    uint64_t gathered;                        /* embedding and head */
    uint64_t whole[MODULES], shards[MODULES]; /* gradients that rest until the optimizer */
    uint64_t moving;                          /* whole gradients that do not */
};

static uint64_t total(const struct model *m, const struct point *p)
{
    uint64_t bytes = p->layers[0] * m->kept_bytes[0] + p->layers[1] * m->kept_bytes[1] + p->block.saved +
                     p->block.work + p->head + p->logits + p->gathered + p->moving;
    for (int i = 0; i < MODULES; i++)
        bytes += p->whole[i] * m->whole[i] + p->shards[i] * m->shard[i];
    return bytes;
}

static void write_down(struct model *m, enum dtp_phase phase, const struct point *p)
{
    static const enum dtp_memory_term whole[MODULES] = {DTP_TERM_OUR_EMBEDDING_GRADS, DTP_TERM_OUR_LAYER_GRADS,
                                                        DTP_TERM_OUR_HEAD_GRADS};
    static const enum dtp_memory_term shards[MODULES] = {DTP_TERM_OUR_EMBEDDING_SHARD, DTP_TERM_OUR_LAYER_SHARDS,
                                                         DTP_TERM_OUR_HEAD_SHARD};
    struct dtp_instant instant = m->job->at_rest;
    dtp_instant_add(&instant, DTP_TERM_OUR_LAYERS, p->layers[0], 1, m->kept_bytes[0]);
    dtp_instant_add(&instant, DTP_TERM_OUR_CHECKPOINTED, p->layers[1], 1, m->kept_bytes[1]);
    dtp_instant_add(&instant, DTP_TERM_OUR_BLOCK, 1, 1, p->block.saved);
    dtp_instant_add(&instant, DTP_TERM_OUR_FINAL_NORM, 1, 1, p->head);
    dtp_instant_add(&instant, DTP_TERM_OUR_LOGITS, 1, 1, p->logits);
    dtp_instant_add(&instant, DTP_TERM_OUR_EDGES, 1, 1, p->gathered);
    for (int i = 0; i < MODULES; i++) {
        dtp_instant_add(&instant, whole[i], p->whole[i], 1, m->whole[i]);
        dtp_instant_add(&instant, shards[i], p->shards[i], 1, m->shard[i]);
    }
    dtp_instant_add(&instant, DTP_TERM_OUR_MOVING, 1, 1, p->moving);
    dtp_instant_add(&instant, DTP_TERM_OUR_WORK, 1, 1, p->block.work);
    dtp_memory_consider(m->job, phase, &instant);
}

struct best {
    struct point point;
    uint64_t total;
};

static void keep(const struct model *m, struct best *best, const struct point *p)
{
    uint64_t bytes = total(m, p);
    if (bytes > best->total)
        *best = (struct best){*p, bytes};
}

static bool several(const struct model *m)
{
    return m->job->plan->accumulate > 1;
}

/* Gradients at a micro-step's begin: of the micro-steps before. */
static struct point at_begin(const struct model *m)
{
    struct point p = {.head = 0};
    const uint64_t count[MODULES] = {1, m->layers, 1};
    for (int i = 0; i < MODULES && several(m); i++)
        *(m->mode == RING ? &p.shards[i] : &p.whole[i]) = count[i];
    return p;
}

/* Gradients when head and blocks above `layer` are through and that of block `layer` is `made`; `moved` buffers are
 * still being reduced, the module before first. layers: none of the blocks is. */
static struct point in_backward(const struct model *m, uint64_t layer, bool made, uint64_t moved)
{
    struct point p = at_begin(m);
    uint64_t done = layer < m->layers ? m->layers - 1 - layer : 0;
    bool tied = m->job->transformer->tied_head, ring = m->mode == RING || m->mode == ADDED;
    uint64_t before = done ? m->whole[BLOCK] : m->whole[HEAD], second = done > 1 ? m->whole[BLOCK] : m->whole[HEAD];
    if (m->mode == REST && !several(m)) {
        p.whole[HEAD] = 1;
        p.whole[BLOCK] = done + made;
        p.whole[EMBEDDING] = tied;
        return p;
    }
    if (ring) {
        p.moving = (made ? m->whole[BLOCK] : 0) + (tied ? m->whole[EMBEDDING] : 0);
        p.moving += (moved > 0 ? before : 0) + (moved > 1 && done ? second : 0);
    }
    if (m->mode == RING && !several(m)) {
        p.shards[HEAD] = 1;
        p.shards[BLOCK] = done;
    }
    if (m->mode == WHOLE) {
        p.whole[HEAD] = moved > done ? 1 : 0;
        p.whole[BLOCK] -= done > moved ? done - moved : 0;
        p.shards[HEAD] = 1;
        p.shards[BLOCK] = done;
    }
    return p;
}

/* Kept tensors of the blocks below `layer`. */
static void add_below(const struct model *m, struct point *p, uint64_t layer)
{
    uint64_t checkpointed = m->every ? dtp_divide_up(layer, m->every) : 0;
    p->layers[0] += layer - checkpointed;
    p->layers[1] += checkpointed;
}

static int kind_of(const struct model *m, uint64_t layer)
{
    return m->every && layer % m->every == 0;
}

/* The next block that can be the worst. Between the first and the last few blocks (groups of them, where every
 * so-manieth is checkpointed) what stands changes by the same amount from one to the next, so none in between is worse
 * than both ends. */
static uint64_t next_worst(const struct model *m, uint64_t layer)
{
    uint64_t edge = 2 + (m->every > 1 ? m->every : 0);
    bool skips = layer == edge && m->layers > 2 * edge + 2;
    return skips ? m->layers - 1 - edge : layer + 1;
}

static uint64_t tied_weights(const struct model *m)
{
    return m->job->transformer->tied_head ? m->gathered[EMBEDDING] : 0;
}

/* The last reductions of a micro-step, which the next one's first block hides. */
static uint64_t leftover(const struct model *m)
{
    return m->mode == REST ? 0 : m->whole[BLOCK] + m->whole[EMBEDDING];
}

/* Whether a micro-step begins beside them. Where sums are whole the first micro-step's gradients are the sums, which
 * stay: only what is added to them goes, so that the third micro-step is the first one to hide it. */
static bool begins_beside_leftover(const struct model *m)
{
    return m->rules.reduces_always && m->job->plan->accumulate > (m->mode == ADDED ? 2 : 1);
}

static void forward(struct model *m)
{
    struct best best = {.total = 0};
    bool left = begins_beside_leftover(m);
    for (uint64_t layer = 0; layer < m->layers; layer = next_worst(m, layer)) {
        struct point p = at_begin(m);
        add_below(m, &p, layer);
        p.block = m->forward[kind_of(m, layer)];
        p.gathered = tied_weights(m) + (layer + 1 == m->layers && m->job->plan->prefetch ? m->gathered[HEAD] : 0);
        p.moving = left && layer == 0 ? leftover(m) : 0;
        keep(m, &best, &p);
    }
    struct point p = at_begin(m);
    p.block.saved = m->residual;
    p.gathered = m->gathered[EMBEDDING];
    p.moving = left ? leftover(m) : 0;
    keep(m, &best, &p);
    write_down(m, DTP_PHASE_FORWARD_END, &best.point);
}

/* A chunk's weight gradient of the head, the final norm's backward, and the reduction of the head's module. */
static void loss(struct model *m)
{
    const struct dtp_transformer *t = m->job->transformer;
    struct best best = {.total = 0};
    uint64_t norm = 2 * m->residual + m->tensor[1];
    bool head_late =
        t->tied_head && !m->padded[HEAD] && !t->head_bias; /* its gradients begin with the norm's backward */
    bool ring = m->mode == RING || m->mode == ADDED;
    struct point p = in_backward(m, m->layers, false, 0);
    if (m->mode != WHOLE)
        p.shards[HEAD] = several(m) && m->mode == RING ? 1 : 0;
    add_below(m, &p, m->layers);
    p.gathered = tied_weights(m) + m->gathered[HEAD];
    struct point chunk = p, backward = p, reduced = p;
    if (m->mode == WHOLE)
        chunk.whole[HEAD] = backward.whole[HEAD] = reduced.whole[HEAD] = 1,
        chunk.shards[HEAD] = backward.shards[HEAD] = 0;
    chunk.head = backward.head = norm;
    chunk.logits = m->logits + m->losses;
    backward.block.work = m->residual + m->partial;
    if (m->mode == REST && !several(m))
        chunk.whole[HEAD] = head_late ? 0 : 1;
    if (ring) {
        chunk.moving += head_late ? 0 : m->whole[HEAD];
        backward.moving += m->whole[HEAD];
        reduced.moving += m->whole[HEAD];
    }
    keep(m, &best, &chunk);
    keep(m, &best, &backward);
    reduced.block.work = m->residual;
    if (m->mode == RING || m->mode == WHOLE) {
        reduced.shards[HEAD] = 1;
        keep(m, &best, &reduced);
    }
    write_down(m, DTP_PHASE_LOSS, &best.point);
}

/* Whole gradients in a micro-step before the one that reduces them: the second and later ones begin with all of them.
 */
static struct point before_reduction(const struct model *m, uint64_t layer, bool made)
{
    struct point p = at_begin(m);
    if (m->job->plan->accumulate == 2) {
        p.whole[BLOCK] = m->layers - 1 - layer + made;
        p.whole[EMBEDDING] = m->job->transformer->tied_head;
    }
    return p;
}

/* Where the block above still holds something, the worst block need not be the last, and what it stands beside need not
 * be most in the last micro-step. */
static void keep_block(struct model *m, struct best *best, uint64_t layer, const struct worst *worst, bool made,
                       uint64_t moved)
{
    if (!worst->saved)
        return;
    struct point points[] = {in_backward(m, layer, made, moved), before_reduction(m, layer, made)};
    for (int i = 0; i < (m->mode == WHOLE && m->above ? 2 : 1); i++) {
        add_below(m, &points[i], layer);
        points[i].block = *worst;
        keep(m, best, &points[i]);
    }
}

/* Its reduction, when its shard is there already and its gradients still are. */
static void keep_reduction(const struct model *m, struct best *best, uint64_t layer)
{
    struct point p = in_backward(m, layer, true, 1);
    add_below(m, &p, layer);
    p.shards[BLOCK] += m->mode == WHOLE || !several(m);
    p.block.work = m->residual + m->above;
    keep(m, best, &p);
}

/* Early: the upper half of the blocks. */
static void blocks_backward(struct model *m)
{
    struct best best[2] = {{.total = 0}, {.total = 0}};
    for (uint64_t layer = 0; layer < m->layers; layer = next_worst(m, layer)) {
        struct best *phase = &best[layer >= m->layers / 2];
        int kind = kind_of(m, layer);
        bool last = layer + 1 == m->layers;
        struct worst replay = m->replay[kind];
        replay.work += m->residual + (last ? 0 : m->above);
        if (m->replay[kind].saved)
            keep_block(m, phase, layer, &replay, false, 2);
        keep_block(m, phase, layer, &m->before[last][kind], m->padded[BLOCK], 1);
        keep_block(m, phase, layer, &m->after[last][kind], true, 1);
        if (m->mode == RING || m->mode == WHOLE)
            keep_reduction(m, phase, layer);
    }
    write_down(m, DTP_PHASE_EARLY_BACKWARD, &best[1].point);
    write_down(m, DTP_PHASE_LATE_BACKWARD, &best[0].point);
}

/* The embedding's gradients beside the first block's on their way, then all that the optimizer reads. */
static void ends(struct model *m)
{
    struct point embedding = in_backward(m, 0, false, 0), step;
    bool ring = m->mode == RING || m->mode == ADDED;
    if (ring) {
        embedding.moving = leftover(m);
        embedding.shards[BLOCK] = m->mode == RING ? m->layers : 0;
    } else if (m->mode == WHOLE) {
        embedding.whole[BLOCK] = embedding.whole[EMBEDDING] = 1, embedding.whole[HEAD] = 0;
        embedding.shards[BLOCK] = m->layers;
    } else {
        embedding.whole[BLOCK] = m->layers, embedding.whole[EMBEDDING] = 1;
    }
    step = embedding;
    embedding.block.work = m->residual;
    write_down(m, DTP_PHASE_LATE_BACKWARD, &embedding);
    step.shards[EMBEDDING] = m->mode == RING || m->mode == WHOLE;
    write_down(m, DTP_PHASE_STEP, &step);
}

/* ---- at rest ----------------------------------------------------------------------------------------------------- */

static uint64_t per_module(const struct model *m, bool shard)
{
    uint64_t elements = 0;
    const uint64_t count[MODULES] = {1, m->layers, 1};
    for (int i = 0; i < MODULES; i++)
        elements += count[i] * (shard ? m->layout[i].shard_elements : m->layout[i].elements);
    return elements;
}

static uint64_t largest_shard(const struct model *m)
{
    uint64_t largest = 0;
    for (int i = 0; i < MODULES; i++)
        largest = m->layout[i].shard_elements > largest ? m->layout[i].shard_elements : largest;
    return largest;
}

/* Batches, scalars, RoPE's tables and the norm's partial sums. */
static uint64_t standing_bytes(const struct model *m)
{
    const struct dtp_transformer *t = m->job->transformer;
    uint64_t batches = several(m) ? 2 : 1, modules = dtp_parameter_module_count(t);
    uint64_t tables = t->position == DTP_POSITION_ROPE ? 4 * t->head_dim * m->job->plan->sequence : 0;
    uint64_t partials = m->rules.gradient_norm ? 4 * DTP_EXECUTOR_SQUARE_SUM_PARTIALS * modules : 0;
    return batches * granules(dtp_batch_layout_of(m->rules.tokens).bytes) + granules(DTP_EXECUTOR_SCALARS_BYTES) +
           granules(tables) + granules(partials);
}

static void rest(struct model *m)
{
    struct dtp_instant *instant = &m->job->at_rest;
    uint64_t own = per_module(m, true);
    bool shards = m->rules.shard_ranks > 1;
    if (!m->rules.host_params)
        dtp_instant_add(instant, m->rules.sharded ? DTP_TERM_PARAMS_SHARD : DTP_TERM_PARAMS, 1,
                        per_module(m, m->rules.sharded), m->job->bytes.compute);
    else if (shards)
        dtp_instant_add(instant, DTP_TERM_OUR_STAGING, 2, largest_shard(m), m->job->bytes.compute);
    if (!m->rules.host_optimizer) {
        dtp_instant_add(instant, shards ? DTP_TERM_MOMENTS_SHARD : DTP_TERM_MOMENTS, 1, own, m->job->bytes.moments);
        dtp_instant_add(instant, shards ? DTP_TERM_MASTER_SHARD : DTP_TERM_MASTER, 1, own, m->job->bytes.master);
    }
    if (m->rules.sharded)
        dtp_instant_add(instant, DTP_TERM_GATHERED_LAYERS, m->rules.ring, m->layout[BLOCK].elements,
                        m->job->bytes.compute);
    if (m->rules.streams_gradients)
        dtp_instant_add(instant, DTP_TERM_OUR_LAYER_SHARDS, m->layers < 2 ? m->layers : 2, 1, m->host_shard[BLOCK]);
    if (m->rules.exchanges)
        dtp_instant_add(instant, DTP_TERM_OUR_EXCHANGED, 1, largest_shard(m) * m->rules.shard_ranks,
                        dtp_dtype_bytes(m->job->plan->precision.reduce));
    else if (shards && m->rules.reduces_always)
        dtp_instant_add(instant, DTP_TERM_OUR_SCATTERED, 1, largest_shard(m),
                        dtp_dtype_bytes(m->job->plan->precision.reduce));
    dtp_instant_add(instant, DTP_TERM_CUBLAS, m->job->plan->executor.gradient_stream ? 2 : 1, 1,
                    DTP_EXECUTOR_MATMUL_WORKSPACE_BYTES);
    dtp_instant_add(instant, DTP_TERM_OUR_STANDING, 1, 1, standing_bytes(m));
}

/* The pinned arena, where state is offloaded: that, the gradients it is updated with, the weights that go up, batches.
 */
static void host(struct model *m)
{
    struct dtp_state_bytes *state = &m->job->state;
    const struct dtp_plan *plan = m->job->plan;
    uint64_t own = per_module(m, true),
             grads = m->host_shard[EMBEDDING] + m->layers * m->host_shard[BLOCK] + m->host_shard[HEAD];
    if (plan->offload == DTP_OFFLOAD_NONE || plan->offload == DTP_OFFLOAD_NVME)
        return;
    state->host_chain = (struct dtp_part_chain){.record = m->job->record};
    state->host =
        dtp_memory_part(&state->host_chain, DTP_TERM_HOST_MASTER, 1, own, m->job->bytes.master) +
        dtp_memory_part(&state->host_chain, DTP_TERM_HOST_MOMENTS, 1, own, m->job->bytes.moments) +
        dtp_memory_part(&state->host_chain, DTP_TERM_HOST_PARAMS, 1, own, m->job->bytes.compute) +
        dtp_memory_part(&state->host_chain, DTP_TERM_OUR_HOST_GRADS, 1, 1, grads) +
        dtp_memory_part(&state->host_chain, DTP_TERM_OUR_HOST_BATCHES, plan->accumulate, 1,
                        granules(dtp_batch_layout_of(m->rules.tokens).bytes)) +
        dtp_memory_part(&state->host_chain, DTP_TERM_OUR_HOST_SCALARS, 2, 1, granules(DTP_EXECUTOR_SCALARS_BYTES));
}

void dtp_memory_executor(struct dtp_memory_job *job)
{
    struct model m = {.job = job};
    dtp_executor_rules(job->transformer, job->cluster, job->plan, &m.rules);
    size_tensors(&m);
    size_modules(&m);
    weigh_blocks(&m);
    rest(&m);
    host(&m);
    forward(&m);
    loss(&m);
    blocks_backward(&m);
    ends(&m);
}
