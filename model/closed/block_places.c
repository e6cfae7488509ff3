#include "closed/block_places.h"

#include "closed/activation_shape.h"

/* Tensors of a block, in the order in which forward makes them, as bits of a set. */
enum {
    INPUT,
    NORM1,
    STATISTICS1,
    WIDE1, /* under eager autocast norms run in fp32 and each linear casts what it reads */
    QKV,   /* as one, or */
    Q_RAW, /* apart, before rotation */
    K_RAW,
    V,
    Q,
    K,
    QK_STATISTICS,
    CORE,
    CORE_STATE,
    CORE_COPY, /* heads side by side */
    ATTENTION, /* result of the output matmul */
    MIDDLE,    /* residual sum */
    NORM2,
    STATISTICS2,
    WIDE2,
    GATE,
    UP,
    SILU,
    PRODUCT,
    DOWN,
    TENSORS
};
#define BIT(tensor) (UINT32_C(1) << (tensor))

struct matrix {
    uint64_t elements, width; /* width: of the input as activations have it */
    uint64_t cast;            /* elements that autocast casts: bias too */
};

enum { QKV_MATRICES = 3, OUTPUT = QKV_MATRICES, GATE_MATRIX, UP_MATRIX, DOWN_MATRIX, MATRICES };

struct block {
    struct dtp_activation_shape s;
    uint64_t bytes[TENSORS]; /* a token; 0: there is none */
    uint32_t saved, kept, locals;
    struct matrix matrix[MATRICES]; /* elements 0: there is none */
    uint64_t vectors;               /* elements of norms and biases */
    bool gated, rope, fused, recasts;
    uint64_t rotary_work; /* beside q and k */
};

/* ---- tensors ----------------------------------------------------------------------------------------------------- */

static void tensor(struct block *b, int which, uint64_t bytes, bool saved)
{
    b->bytes[which] = bytes;
    if (saved && bytes)
        b->saved |= BIT(which);
}

static void list_attention(struct block *b)
{
    const struct dtp_activation_shape *s = &b->s;
    uint64_t q = s->c * s->d_q, kv = s->c * s->d_kv;
    bool fused = s->plan->fused_qkv, norms = s->t->qk_norm, made_new = b->rope || norms;
    bool copied = b->rope && s->plan->rope_fp32 && s->plan->runtime->copies_heads;
    tensor(b, QKV, fused ? q + 2 * kv : 0, true);
    tensor(b, Q_RAW, fused ? 0 : q, !made_new || norms);
    tensor(b, K_RAW, fused ? 0 : kv, !made_new || norms);
    tensor(b, V, fused ? 0 : kv, true);
    tensor(b, Q, made_new ? q : 0, true);
    tensor(b, K, made_new ? kv : 0, true);
    tensor(b, QK_STATISTICS, norms ? 4 * (s->t->heads + s->t->kv_heads) : 0, true);
    tensor(b, CORE, q, true);
    tensor(b, CORE_STATE, dtp_core_state_bytes(s), true);
    tensor(b, CORE_COPY, s->input < s->c ? s->input * s->d_q : copied ? q : 0, true);
    if (!b->rope || b->fused)
        return;
    /* Pointwise chains of eager RoPE, of a tensor of Z bytes in 16 bits. By fp32 halves: the fp32 copy 2 Z, four
     * half-width products, their sum and difference, the cat 2 Z and the cast, 6 Z at most; the complex form: fp32 copy
     * and product, 5 Z. First for q, then for k beside the new q. */
    uint64_t times = s->c == 4 ? 2 : s->plan->rope_fp32 ? 6 : 5;
    uint64_t most = times * q > q + times * kv ? times * q : q + times * kv;
    b->rotary_work = most - q - kv;
}

static void list_rest(struct block *b)
{
    const struct dtp_activation_shape *s = &b->s;
    uint64_t statistics = dtp_norm_statistics_bytes(s->t), wide = s->autocast && !b->fused ? 4 * s->h : 0;
    uint64_t f = s->c * s->f;
    bool added_again = s->compiled && !s->cut, apart = b->gated && !s->plan->fused_gate_up;
    bool keeps_fp8 = s->input < s->c;
    tensor(b, INPUT, s->e * s->h, true);
    tensor(b, NORM1, s->input * s->h, true);
    tensor(b, NORM2, s->input * s->h, true);
    tensor(b, STATISTICS1, statistics, true);
    tensor(b, STATISTICS2, statistics, true);
    tensor(b, WIDE1, wide, false);
    tensor(b, WIDE2, wide, false);
    tensor(b, ATTENTION, s->c * s->h, added_again);
    tensor(b, MIDDLE, added_again ? 0 : s->e * s->h, true);
    tensor(b, GATE, apart ? f : 0, true);
    tensor(b, UP, b->gated && !apart ? 2 * f : f, s->t->activation != DTP_RELU || keeps_fp8);
    tensor(b, SILU, b->gated && !s->compiled ? f : 0, true);
    tensor(b, PRODUCT, s->input * s->f, true);
    tensor(b, DOWN, s->c * s->h, false);
}

static void list_matrices(struct block *b)
{
    const struct dtp_activation_shape *s = &b->s;
    const struct dtp_transformer *t = s->t;
    uint64_t h = t->hidden, up = b->gated && s->plan->fused_gate_up ? 2 * s->f : s->f, made = 0, all = 0;
    bool fused = s->plan->fused_qkv, apart = b->gated && !s->plan->fused_gate_up;
    const struct {
        uint64_t out, in, width;
        bool bias;
    } shape[MATRICES] = {{fused ? s->d_q + 2 * s->d_kv : s->d_q, h, s->h, t->qkv_bias},
                         {fused ? 0 : s->d_kv, h, s->h, t->qkv_bias},
                         {fused ? 0 : s->d_kv, h, s->h, t->qkv_bias},
                         {h, s->d_q, s->d_q, t->attention_output_bias},
                         {apart ? s->f : 0, h, s->h, t->mlp_bias},
                         {up, h, s->h, t->mlp_bias},
                         {h, s->f, s->f, t->mlp_bias}};
    for (int i = 0; i < MATRICES; i++) {
        uint64_t elements = shape[i].out * shape[i].in;
        b->matrix[i] = (struct matrix){elements, shape[i].width, elements + (shape[i].bias ? shape[i].out : 0)};
        made += elements;
        all += b->matrix[i].cast;
    }
    b->vectors = all - made + (t->norm_bias ? 4 : 2) * h + (t->qk_norm ? 2 * t->head_dim : 0);
}

/* torchtitan's policy: every second matmul's result, counted from the first, and the core's. */
static uint32_t selective_matmul(const struct block *b)
{
    static const int result[MATRICES] = {Q_RAW, K_RAW, V, ATTENTION, GATE, UP, DOWN};
    uint32_t kept = BIT(INPUT);
    int number = 0;
    for (int i = 0; i < MATRICES; i++) {
        if (!b->matrix[i].elements)
            continue;
        bool drops = b->s.compiled && i == DOWN_MATRIX;
        if (number++ % 2 == 0 && !drops)
            kept |= BIT(i == 0 && b->s.plan->fused_qkv ? QKV : result[i]);
    }
    return kept | (b->s.plan->attention == DTP_ATTENTION_MATH ? 0 : BIT(CORE) | BIT(CORE_STATE));
}

static uint32_t kept_tensors(const struct block *b)
{
    switch (b->s.plan->checkpointing) {
    case DTP_CHECKPOINT_NONE: break;
    case DTP_CHECKPOINT_FULL:
    case DTP_CHECKPOINT_EVERY_N: return BIT(INPUT);
    case DTP_CHECKPOINT_SELECTIVE_ATTENTION: return b->saved & ~BIT(CORE_STATE);
    case DTP_CHECKPOINT_SELECTIVE_MATMUL: return selective_matmul(b);
    }
    return b->saved;
}

static void list_block(struct block *b)
{
    b->gated = b->s.t->activation == DTP_SWIGLU, b->rope = b->s.t->position == DTP_POSITION_ROPE;
    b->fused = b->s.compiled || b->s.plan->runtime->fused_kernels;
    list_rest(b);
    list_attention(b);
    list_matrices(b);
    b->kept = kept_tensors(b);
    /* selective attention leaves the linears outside of what is replayed */
    b->recasts = b->s.autocast && b->s.plan->checkpointing != DTP_CHECKPOINT_NONE &&
                 b->s.plan->checkpointing != DTP_CHECKPOINT_SELECTIVE_ATTENTION;
    /* Variables of a Python function live until it returns. */
    if (!b->fused)
        b->locals = BIT(QKV) | BIT(V) | BIT(Q) | BIT(K) | BIT(CORE) | BIT(MIDDLE) | BIT(UP) | BIT(PRODUCT);
}

/* ---- forward and replay ------------------------------------------------------------------------------------------ */

struct pass {
    const struct block *b;
    uint32_t alive, held, save;
    bool replay, recasts;
    uint64_t tokens, saved, casts, worst_bytes;
    struct dtp_block_place *worst;
    struct dtp_block_segments *segments; /* NULL: not wanted */
    int segment;
};

static uint64_t sum(const struct block *b, uint32_t set)
{
    uint64_t bytes = 0;
    for (; set; set &= set - 1)
        bytes += b->bytes[__builtin_ctz(set)];
    return bytes;
}

static void consider(struct pass *p, uint64_t work)
{
    if (p->segments) {
        struct dtp_block_place *place = &p->segments->of[p->segment];
        if (p->saved + work >= place->saved + place->work)
            *place = (struct dtp_block_place){.saved = p->saved, .work = work};
    }
    uint64_t bytes = p->saved + work; /* a token's, which is enough where nothing else differs */
    if (p->b->s.autocast)
        bytes = dtp_bytes_product(p->tokens, bytes) + p->casts * p->b->s.c;
    if (bytes <= p->worst_bytes)
        return;
    p->worst_bytes = bytes;
    *p->worst = (struct dtp_block_place){.saved = p->saved, .work = work, .casts = p->casts};
}

/* A selective replay makes only what backward lacks. */
static bool wanted(const struct pass *p, int result)
{
    bool attention_only = p->replay && p->b->s.plan->checkpointing == DTP_CHECKPOINT_SELECTIVE_ATTENTION;
    return p->b->bytes[result] && !(p->alive & BIT(result)) && (!attention_only || p->save & BIT(result));
}

static void make(struct pass *p, uint32_t set)
{
    set &= ~p->alive;
    p->saved += sum(p->b, set);
    p->alive |= set;
}

static void drop(struct pass *p, uint32_t set)
{
    set &= p->alive & ~p->held;
    p->saved -= sum(p->b, set);
    p->alive &= ~set;
}

/* One kernel: what it makes, what it is the last to read, and its workspace. */
static void kernel(struct pass *p, int result, uint32_t makes, uint32_t drops, uint64_t work)
{
    if (!wanted(p, result))
        return;
    make(p, makes | BIT(result));
    consider(p, work);
    drop(p, drops);
}

/* Under autocast the weight is cast before it is read, whether or not the matmul itself is replayed; a compiler drops
 * the cast of a block that makes it again. */
static void linear(struct pass *p, int index, int result, uint32_t drops)
{
    const struct matrix *matrix = &p->b->matrix[index];
    if (!matrix->elements)
        return;
    if (p->segments)
        p->segments->entry[p->segment / 2] = (struct dtp_block_place){.saved = p->saved};
    p->segment++;
    consider(p, 0);
    if (wanted(p, result) || (p->replay && p->recasts)) {
        p->casts += p->b->s.autocast && (p->recasts || !p->replay) ? matrix->cast : 0;
        consider(p, 0);
        kernel(p, result, 0, drops, 0);
        if (p->recasts && p->b->s.compiled && !p->replay)
            p->casts -= matrix->cast;
    }
    p->segment++;
    consider(p, 0);
}

static void attention(struct pass *p)
{
    const struct block *b = p->b;
    bool fused = b->s.plan->fused_qkv, math = b->s.plan->attention == DTP_ATTENTION_MATH;
    uint32_t raw = BIT(Q_RAW) | BIT(K_RAW);
    linear(p, 0, fused ? QKV : Q_RAW, fused ? BIT(NORM1) | BIT(WIDE1) : 0);
    linear(p, 1, K_RAW, 0);
    linear(p, 2, V, BIT(NORM1) | BIT(WIDE1));
    kernel(p, Q, BIT(K) | BIT(QK_STATISTICS), raw, b->rotary_work);
    uint64_t scores = math ? dtp_plan_score_bytes(b->s.plan) * b->s.t->heads * b->s.plan->sequence : 0;
    uint32_t inputs = BIT(QKV) | BIT(V) | BIT(Q) | BIT(K) | (b->bytes[Q] ? 0 : raw);
    kernel(p, wanted(p, CORE) ? CORE : CORE_STATE, BIT(CORE) | BIT(CORE_STATE), inputs, scores);
    kernel(p, CORE_COPY, 0, BIT(CORE), 0);
    linear(p, OUTPUT, ATTENTION, BIT(b->bytes[CORE_COPY] ? CORE_COPY : CORE));
}

static void to_product(struct pass *p)
{
    const struct block *b = p->b;
    uint32_t wide2 = BIT(NORM2) | BIT(WIDE2);
    bool summed = b->bytes[MIDDLE], silu_goes = b->gated && !b->s.compiled && !p->replay;
    kernel(p, NORM1, BIT(STATISTICS1) | BIT(WIDE1), 0, 0);
    attention(p);
    if (!b->fused)
        kernel(p, MIDDLE, 0, BIT(ATTENTION), 0);
    kernel(p, NORM2, BIT(STATISTICS2) | BIT(WIDE2) | BIT(MIDDLE), b->fused && summed ? BIT(ATTENTION) : 0, 0);
    linear(p, GATE_MATRIX, GATE, 0);
    linear(p, UP_MATRIX, UP, wide2);
    kernel(p, wanted(p, PRODUCT) ? PRODUCT : SILU, BIT(SILU) | BIT(PRODUCT),
           BIT(GATE) | BIT(UP) | (silu_goes ? BIT(SILU) : 0), 0);
}

static void weigh_forward(const struct block *b, uint64_t tokens, bool checkpointed, struct dtp_block_place *worst,
                          struct dtp_block_segments *segments)
{
    uint32_t save = checkpointed ? b->kept : b->saved;
    struct pass p = {.b = b,
                     .alive = BIT(INPUT),
                     .held = save | b->locals,
                     .save = save,
                     .recasts = checkpointed && b->recasts,
                     .tokens = tokens,
                     .saved = b->bytes[INPUT],
                     .worst = worst,
                     .segments = segments};
    *worst = (struct dtp_block_place){.saved = p.saved};
    to_product(&p);
    linear(&p, DOWN_MATRIX, DOWN, BIT(PRODUCT));
    consider(&p, b->bytes[INPUT]); /* of the next block */
}

/* Without the last matmul where the runtime stops at the last saved tensor (torch.utils.checkpoint, early_stop). */
static void weigh_replay(const struct block *b, uint64_t tokens, struct dtp_block_place *worst,
                         struct dtp_block_segments *segments)
{
    struct pass p = {.b = b,
                     .alive = b->kept,
                     .held = b->saved,
                     .save = b->saved,
                     .replay = true,
                     .recasts = b->recasts,
                     .tokens = tokens,
                     .saved = sum(b, b->kept),
                     .worst = worst,
                     .segments = segments};
    bool selective = b->s.plan->checkpointing == DTP_CHECKPOINT_SELECTIVE_MATMUL;
    int matrices = 0;
    for (int i = 0; i < MATRICES; i++)
        matrices += b->matrix[i].elements != 0;
    bool last = b->s.plan->checkpointing != DTP_CHECKPOINT_SELECTIVE_ATTENTION &&
                (selective ? matrices % 2 == 0 : !b->s.plan->runtime->stops_replay);
    *worst = (struct dtp_block_place){.saved = p.saved};
    to_product(&p);
    if (last)
        linear(&p, DOWN_MATRIX, DOWN, BIT(PRODUCT));
}

/* ---- backward ---------------------------------------------------------------------------------------------------- */

struct backward {
    const struct block *b;
    struct dtp_block_places *out;
    uint32_t alive;
    uint64_t saved, work, casts, finished, before;
};

static void note(struct backward *w, uint64_t work, uint64_t current, enum dtp_place_kind kind)
{
    w->out->backward[w->out->count++] = (struct dtp_block_place){.saved = w->saved,
                                                                 .work = w->work + work,
                                                                 .casts = w->casts,
                                                                 .finished = w->finished,
                                                                 .before = w->before,
                                                                 .current = current,
                                                                 .kind = kind};
}

static void consume(struct backward *w, uint32_t set)
{
    set &= w->alive;
    w->saved -= sum(w->b, set);
    w->alive &= ~set;
}

/* Weight gradient, input gradient, then whoever waits for the weight's takes it. A compiler drops the input with the
 * first, autograd with the node. `output`: of its result's gradient, which goes with the second. */
static void linear_back(struct backward *w, int index, uint32_t input, uint64_t output)
{
    const struct matrix *matrix = &w->b->matrix[index];
    uint64_t width = w->b->s.c * matrix->width;
    note(w, 0, matrix->elements, DTP_PLACE_GRADIENT);
    if (w->b->s.compiled)
        consume(w, input);
    note(w, width, matrix->elements, DTP_PLACE_GRADIENT);
    w->work += width - output;
    consume(w, input);
    w->casts -= w->b->s.autocast ? matrix->cast : 0;
    note(w, 0, matrix->elements, DTP_PLACE_HANDED);
    w->finished += matrix->elements;
    w->before = matrix->elements;
}

/* The residual stream is wider than what matmuls read: its gradient is cast for the linear that ends the branch. */
static uint64_t narrow(struct backward *w)
{
    uint64_t bytes = w->b->s.e != w->b->s.c ? w->b->s.c * w->b->s.h : 0;
    w->work += bytes;
    return bytes;
}

/* The gradient of the norm's result, widened, becomes that of its input, which is added to the residual's. */
static void norm_back(struct backward *w, uint32_t inputs)
{
    const struct dtp_activation_shape *s = &w->b->s;
    uint64_t gradient = s->c * s->h;
    if (s->e != s->c && !w->b->fused) {
        note(w, s->e * s->h, 0, DTP_PLACE_PLAIN);
        w->work += s->e * s->h - gradient;
        gradient = s->e * s->h;
    }
    note(w, s->e * s->h, 0, DTP_PLACE_PLAIN);
    w->work -= gradient;
    consume(w, inputs);
}

/* From the product's gradient to that of up, and of gate beside it. */
static void activation_back(struct backward *w)
{
    const struct block *b = w->b;
    uint64_t f = b->s.c * b->s.f, apart = b->bytes[GATE];
    if (b->gated && !b->s.compiled) {
        note(w, 2 * f, 0, DTP_PLACE_PLAIN);
        consume(w, BIT(SILU) | (apart ? BIT(UP) : 0));
        w->work += f; /* of silu and of up, for the product's */
        note(w, apart ? f : 2 * f, 0, DTP_PLACE_PLAIN);
        consume(w, BIT(GATE) | BIT(UP));
        return;
    }
    bool in_place = b->s.compiled && !b->gated;
    uint64_t made = in_place ? 0 : apart + b->bytes[UP];
    note(w, made, 0, DTP_PLACE_PLAIN);
    w->work += in_place ? 0 : made - f;
    consume(w, BIT(GATE) | BIT(UP) | BIT(PRODUCT)); /* ReLU reads its result */
}

static void mlp_back(struct backward *w)
{
    const struct block *b = w->b;
    uint64_t narrowed = narrow(w), f = b->s.c * b->s.f;
    linear_back(w, DOWN_MATRIX, b->s.t->activation == DTP_RELU ? 0 : BIT(PRODUCT), narrowed);
    activation_back(w);
    if (b->bytes[GATE]) {
        linear_back(w, GATE_MATRIX, 0, f);
        linear_back(w, UP_MATRIX, BIT(NORM2), f);
        w->work -= b->s.c * b->s.h; /* two gradients of the norm's result are added up */
    } else {
        linear_back(w, UP_MATRIX, BIT(NORM2), b->gated ? 2 * f : f);
    }
    norm_back(w,
              b->bytes[MIDDLE] ? BIT(MIDDLE) | BIT(ATTENTION) | BIT(STATISTICS2) : BIT(ATTENTION) | BIT(STATISTICS2));
}

static void core_back(struct backward *w)
{
    const struct block *b = w->b;
    const struct dtp_activation_shape *s = &b->s;
    uint64_t q = s->c * s->d_q, all = q + 2 * s->c * s->d_kv;
    bool math = s->plan->attention == DTP_ATTENTION_MATH, normed = s->t->qk_norm;
    /* gradients of probabilities and scores; or dq summed in fp32 */
    uint64_t sums = math ? 2 * dtp_plan_score_bytes(s->plan) * s->t->heads * s->plan->sequence : 4 * s->d_q;
    uint32_t raw = BIT(Q_RAW) | BIT(K_RAW);
    note(w, all + sums, 0, DTP_PLACE_PLAIN);
    w->work += all - q;
    consume(w, BIT(Q) | BIT(K) | BIT(V) | BIT(CORE_STATE) | BIT(CORE) | (normed ? 0 : BIT(QKV) | raw));
    if (!b->rope && !normed)
        return;
    note(w, b->fused || !b->rope ? 0 : (s->c == 4 ? 2 : 5) * q, 0, DTP_PLACE_PLAIN);
    consume(w, BIT(QK_STATISTICS) | BIT(QKV) | raw);
}

static void attention_back(struct backward *w)
{
    const struct block *b = w->b;
    uint64_t q = b->s.c * b->s.d_q, kv = b->s.c * b->s.d_kv, h = b->s.c * b->s.h, narrowed = narrow(w);
    linear_back(w, OUTPUT, BIT(CORE_COPY), narrowed); /* the core's backward still reads its own result */
    core_back(w);
    if (b->s.plan->fused_qkv) {
        note(w, q + 2 * kv, 0, DTP_PLACE_PLAIN); /* as one tensor */
        linear_back(w, 0, BIT(NORM1), q + 2 * kv);
    } else {
        linear_back(w, 0, 0, q);
        linear_back(w, 1, 0, kv);
        w->work -= h;
        linear_back(w, 2, BIT(NORM1), kv);
        w->work -= h;
    }
    norm_back(w, BIT(INPUT) | BIT(STATISTICS1));
}

static void weigh_backward(const struct block *b, struct dtp_block_places *out)
{
    struct backward w = {.b = b, .out = out, .alive = b->saved, .saved = sum(b, b->saved)};
    for (int i = 0; i < MATRICES && b->s.autocast; i++)
        w.casts += b->matrix[i].cast;
    out->count = 0;
    mlp_back(&w);
    attention_back(&w);
    note(&w, 0, b->vectors, DTP_PLACE_GRADIENT);
    note(&w, 0, b->vectors, DTP_PLACE_HANDED);
}

static void cut_backward(const struct dtp_block_places *places, struct dtp_block_segments *out)
{
    int matrix = -1, part = 2;
    for (int i = 0; i < places->count; i++) {
        const struct dtp_block_place *place = &places->backward[i];
        matrix += place->kind == DTP_PLACE_GRADIENT && part != 0;
        if (place->kind == DTP_PLACE_GRADIENT && part != 0)
            out->entry[matrix] = *place;
        part = place->kind == DTP_PLACE_GRADIENT ? 0 : place->kind == DTP_PLACE_HANDED ? 1 : 2;
        struct dtp_block_place *worst = &out->of[3 * matrix + part];
        if (place->saved + place->work >= worst->saved + worst->work)
            *worst = *place;
    }
}

void dtp_block_places_count(const struct dtp_transformer *transformer, const struct dtp_cluster *cluster,
                            const struct dtp_plan *plan, struct dtp_block_places *out)
{
    struct block b = {.s = dtp_activation_shape_of(transformer, cluster, plan)};
    uint64_t tokens = dtp_bytes_product(plan->micro_batch, plan->sequence);
    bool apart = dtp_plan_fetches_modules(plan);
    struct dtp_block_segments *segments = apart ? out->segments : NULL;
    list_block(&b);
    for (int i = 0; i < DTP_SEGMENTS_PASSES && apart; i++)
        segments[i] = (struct dtp_block_segments){.of[0].saved = 0};
    bool checkpoints = plan->checkpointing != DTP_CHECKPOINT_NONE;
    bool all = checkpoints && (plan->checkpointing != DTP_CHECKPOINT_EVERY_N || plan->checkpoint_every == 1);
    if (!all)
        weigh_forward(&b, tokens, false, &out->forward[0], segments);
    if (checkpoints) {
        weigh_forward(&b, tokens, true, &out->forward[1], apart ? &segments[DTP_SEGMENTS_CHECKPOINTED] : NULL);
        weigh_replay(&b, tokens, &out->replay, apart ? &segments[DTP_SEGMENTS_REPLAY] : NULL);
    }
    weigh_backward(&b, out);
    if (apart)
        cut_backward(out, &segments[DTP_SEGMENTS_BACKWARD]);
}

const struct dtp_block_place *dtp_block_worst(const struct dtp_block_places *places,
                                              const struct dtp_place_weights *weights)
{
    const struct dtp_block_place *worst = &places->backward[0];
    int64_t most = INT64_MIN;
    for (int i = 0; i < places->count; i++) {
        const struct dtp_block_place *place = &places->backward[i];
        int64_t bytes =
            (int64_t)(dtp_bytes_product(weights->tokens, place->saved + place->work) + place->casts * weights->casts) +
            (int64_t)place->finished * weights->finished + (int64_t)place->current * weights->current[place->kind] +
            (int64_t)dtp_place_lingering(place, weights);
        if (bytes > most)
            most = bytes, worst = place;
    }
    return worst;
}
