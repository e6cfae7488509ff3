#include "closed/block_places.h"

#include "base/bytes.h"

/* Tensors by their bare names. */
enum {
#define DTP_TENSOR(suffix, ...) suffix = DTP_TENSOR_##suffix,
#include "net/layer_kind.def"
};
#define BIT(tensor) (UINT64_C(1) << (tensor))

struct matrix {
    uint64_t elements, width; /* width: of the input as activations have it */
    uint64_t cast;            /* elements that autocast casts: bias too */
};

struct block {
    const struct dtp_transformer *t;
    const struct dtp_plan *plan;
    struct dtp_layer_tensors made;
    struct dtp_checkpoint_rule rule;
    uint64_t h, f, d_q, d_kv, c, e; /* widths; bytes of the compute dtype and of the residual stream */
    bool autocast, compiled;
    struct matrix matrix[DTP_LAYER_MATRICES]; /* of made.kind */
    uint64_t vectors;                         /* elements of norms and biases */
    bool gated, rope, recasts;
    uint64_t rotary_work; /* beside q and k */
};

/* ---- the block --------------------------------------------------------------------------------------------------- */

/* Pointwise chains of eager RoPE, of a tensor of Z bytes in 16 bits. By fp32 halves: the fp32 copy 2 Z, four half-width
 * products, their sum and difference, the cat 2 Z and the cast, 6 Z at most; the complex form: fp32 copy and product,
 * 5 Z. First for q, then for k beside the new q. */
static uint64_t rotary_work(const struct block *b)
{
    if (!b->rope || b->made.fused)
        return 0;
    uint64_t q = b->c * b->d_q, kv = b->c * b->d_kv, times = b->c == 4 ? 2 : b->plan->rope_fp32 ? 6 : 5;
    uint64_t most = times * q > q + times * kv ? times * q : q + times * kv;
    return most - q - kv;
}

static void list_matrices(struct block *b)
{
    const struct dtp_layer_kind *kind = &b->made.kind;
    for (int i = 0; i < kind->matrices; i++) {
        const struct dtp_layer_matrix *matrix = &kind->matrix[i];
        bool stream = matrix->id != DTP_MATRIX_OUTPUT && matrix->id != DTP_MATRIX_DOWN;
        uint64_t elements = matrix->out * matrix->in;
        b->matrix[i] =
            (struct matrix){elements, stream ? b->h : matrix->in, elements + (matrix->bias ? matrix->out : 0)};
    }
    b->vectors = dtp_layer_vector_elements(kind);
}

static void list_block(const struct dtp_transformer *t, const struct dtp_cluster *cluster, const struct dtp_plan *plan,
                       struct block *b)
{
    *b = (struct block){.t = t, .plan = plan, .rule = dtp_plan_checkpoint_rule(plan)};
    dtp_layer_tensors_of(t, cluster, plan, &b->made);
    b->h = t->hidden / (plan->sequence_shards > 1 ? plan->sequence_shards : 1);
    b->f = t->ffn, b->d_q = b->made.kind.d_q, b->d_kv = b->made.kind.d_kv;
    b->c = dtp_plan_compute_bytes(plan), b->autocast = dtp_plan_autocast(plan), b->e = b->autocast ? 4 : b->c;
    b->compiled = plan->compile, b->gated = b->made.kind.gated, b->rope = b->made.kind.rotary;
    b->rotary_work = rotary_work(b);
    b->recasts = b->autocast && b->rule.calls_modules;
    list_matrices(b);
}

/* ---- forward and replay ------------------------------------------------------------------------------------------ */

struct pass {
    const struct block *b;
    uint64_t alive, held, save;
    bool replay, recasts;
    uint64_t tokens, saved, casts, worst_bytes;
    struct dtp_block_place *worst;
    struct dtp_block_segments *segments; /* NULL: not wanted */
    int segment;
};

static uint64_t sum(const struct block *b, uint64_t set)
{
    uint64_t bytes = 0;
    for (; set; set &= set - 1)
        bytes += b->made.bytes[__builtin_ctzll(set)];
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
    if (p->b->autocast)
        bytes = dtp_bytes_product(p->tokens, bytes) + p->casts * p->b->c;
    if (bytes <= p->worst_bytes)
        return;
    p->worst_bytes = bytes;
    *p->worst = (struct dtp_block_place){.saved = p->saved, .work = work, .casts = p->casts};
}

/* A selective replay makes only what backward lacks. */
static bool wanted(const struct pass *p, int result)
{
    bool attention_only = p->replay && p->b->rule.keeps == DTP_KEEPS_ALL_BUT_CORE;
    return p->b->made.bytes[result] && !(p->alive & BIT(result)) && (!attention_only || p->save & BIT(result));
}

static void make(struct pass *p, uint64_t set)
{
    set &= ~p->alive;
    p->saved += sum(p->b, set);
    p->alive |= set;
}

static void drop(struct pass *p, uint64_t set)
{
    set &= p->alive & ~p->held;
    p->saved -= sum(p->b, set);
    p->alive &= ~set;
}

/* One kernel: what it makes, what it is the last to read, and its workspace. */
static void kernel(struct pass *p, int result, uint64_t makes, uint64_t drops, uint64_t work)
{
    if (!wanted(p, result))
        return;
    make(p, makes | BIT(result));
    consider(p, work);
    drop(p, drops);
}

/* Under autocast the weight is cast before it is read, whether or not the matmul itself is replayed; a compiler drops
 * the cast of a block that makes it again. */
static void linear(struct pass *p, int index, int result, uint64_t drops)
{
    const struct matrix *matrix = &p->b->matrix[index];
    if (p->segments)
        p->segments->entry[p->segment / 2] = (struct dtp_block_place){.saved = p->saved};
    p->segment++;
    consider(p, 0);
    if (wanted(p, result) || (p->replay && p->recasts)) {
        p->casts += p->b->autocast && (p->recasts || !p->replay) ? matrix->cast : 0;
        consider(p, 0);
        kernel(p, result, 0, drops, 0);
        if (p->recasts && p->b->compiled && !p->replay)
            p->casts -= matrix->cast;
    }
    p->segment++;
    consider(p, 0);
}

/* Statistics that a sum makes for the norms of its branches, in one pass. */
static uint64_t fused_statistics(const struct dtp_layer_tensors *made, const struct dtp_layer_operator *sum)
{
    uint64_t set = 0;
    for (uint64_t left = sum ? dtp_layer_branches(sum) : 0; left; left &= left - 1) {
        const struct dtp_layer_operator *norm = dtp_layer_tensors_fused_norm(made, dtp_layer_first(left));
        set |= norm ? norm->statistics : 0;
    }
    return set;
}

/* What a sum reads of its branches: a norm that runs in its pass is none of them, but the norm's input. */
static uint64_t branch_tensors(const struct dtp_layer_tensors *made, const struct dtp_layer_operator *sum)
{
    uint64_t set = 0;
    for (uint64_t left = dtp_layer_branches(sum); left; left &= left - 1) {
        const struct dtp_layer_operator *norm = dtp_layer_tensors_fused_norm(made, dtp_layer_first(left));
        set |= norm ? norm->reads : BIT(dtp_layer_first(left));
    }
    return set;
}

static void norm_after(struct pass *p, const struct dtp_layer_operator *op)
{
    uint64_t wide = dtp_layer_wide_of(dtp_layer_first(op->reads));
    enum dtp_layer_tensor result = dtp_layer_first(op->makes), statistics = dtp_layer_first(op->statistics);
    kernel(p, wanted(p, (int)result) ? (int)result : (int)statistics, op->makes | op->statistics | wide, op->reads, 0);
}

static void norm(struct pass *p, const struct dtp_layer_operator *op)
{
    const struct dtp_layer_tensors *made = &p->b->made;
    enum dtp_layer_tensor input = dtp_layer_first(op->reads), result = dtp_layer_first(op->makes);
    const struct dtp_layer_operator *added = made->fused ? dtp_layer_tensors_sum(made, input) : NULL;
    kernel(p, (int)result,
           op->statistics | dtp_layer_wide_of(result) | (added ? op->reads : 0) | fused_statistics(made, added),
           added && made->bytes[input] ? branch_tensors(made, added) : 0, 0);
}

static void projection(struct pass *p, const struct dtp_layer_operator *op)
{
    const struct dtp_layer_tensors *made = &p->b->made;
    for (int i = 0; i < made->kind.matrices; i++) {
        if (!(op->makes & BIT(made->kind.matrix[i].result)))
            continue;
        uint64_t read = BIT(made->input[i]) | dtp_layer_wide_of(made->input[i]);
        linear(p, i, (int)made->kind.matrix[i].result, dtp_layer_tensors_last_reader(made, i) ? read : 0);
    }
}

static void attention(struct pass *p, const struct dtp_layer_operator *op)
{
    const struct block *b = p->b;
    bool math = b->plan->attention == DTP_ATTENTION_MATH;
    uint64_t scores = math ? dtp_plan_score_bytes(b->plan) * b->t->heads * b->plan->sequence : 0;
    kernel(p, wanted(p, CORE) ? CORE : CORE_STATE, BIT(CORE) | BIT(CORE_STATE), op->reads, scores);
    kernel(p, CORE_COPY, 0, BIT(CORE), 0);
}

static void run(struct pass *p, int index)
{
    const struct block *b = p->b;
    const struct dtp_layer_operator *op = &b->made.op[index];
    bool silu_goes = b->gated && !b->compiled && !p->replay;
    bool eager_sum = !b->made.fused && __builtin_popcountll(dtp_layer_branches(op)) > 1; /* two at a time */
    switch (op->kind) {
    case DTP_LAYER_OP_NORM:
        if (op->reads & DTP_LAYER_STREAM)
            norm(p, op);
        else if (!b->made.fused)
            norm_after(p, op);
        break;
    case DTP_LAYER_OP_CAST: kernel(p, (int)dtp_layer_first(op->makes), 0, 0, 0); break;
    case DTP_LAYER_OP_PROJECTION: projection(p, op); break;
    case DTP_LAYER_OP_ROTARY: kernel(p, Q, BIT(K) | BIT(QK_STATISTICS), op->reads & ~BIT(QKV), b->rotary_work); break;
    case DTP_LAYER_OP_ATTENTION: attention(p, op); break;
    case DTP_LAYER_OP_ACTIVATION:
        kernel(p, wanted(p, PRODUCT) ? PRODUCT : SILU, BIT(SILU) | BIT(PRODUCT),
               op->reads | (silu_goes ? BIT(SILU) : 0), 0);
        break;
    case DTP_LAYER_OP_RESIDUAL:
        if (op->makes && !dtp_layer_tensors_sum_in_norm(&b->made, index))
            kernel(p, (int)dtp_layer_first(op->makes), fused_statistics(&b->made, op), branch_tensors(&b->made, op), 0);
        if (!op->makes && !p->replay)
            make(p, fused_statistics(&b->made, op));
        if (!op->makes && !p->replay)
            consider(p, b->made.bytes[INPUT] + (eager_sum ? b->c * b->h : 0)); /* of the next block */
        break;
    }
}

static void weigh_forward(const struct block *b, uint64_t tokens, bool checkpointed, struct dtp_block_place *worst,
                          struct dtp_block_segments *segments)
{
    uint64_t save = checkpointed ? b->made.kept : b->made.saved;
    struct pass p = {.b = b,
                     .alive = BIT(INPUT),
                     .held = save | b->made.locals,
                     .save = save,
                     .recasts = checkpointed && b->recasts,
                     .tokens = tokens,
                     .saved = b->made.bytes[INPUT],
                     .worst = worst,
                     .segments = segments};
    *worst = (struct dtp_block_place){.saved = p.saved};
    for (int index = 0; index < b->made.operators; index++)
        run(&p, index);
}

/* Without the last matmul where the runtime stops at the last saved tensor (torch.utils.checkpoint, early_stop). */
static void weigh_replay(const struct block *b, uint64_t tokens, struct dtp_block_place *worst,
                         struct dtp_block_segments *segments)
{
    struct pass p = {.b = b,
                     .alive = b->made.kept,
                     .held = b->made.saved,
                     .save = b->made.saved,
                     .replay = true,
                     .recasts = b->recasts,
                     .tokens = tokens,
                     .saved = sum(b, b->made.kept),
                     .worst = worst,
                     .segments = segments};
    bool selective = b->rule.keeps == DTP_KEEPS_SECOND_MATMULS;
    bool last = b->rule.calls_modules && (selective ? b->made.kind.matrices % 2 == 0 : !b->plan->runtime->stops_replay);
    int end = last ? b->made.operators : dtp_layer_tensors_saved_end(&b->made);
    *worst = (struct dtp_block_place){.saved = p.saved};
    for (int index = 0; index < end; index++)
        run(&p, index);
}

/* ---- backward ---------------------------------------------------------------------------------------------------- */

struct backward {
    const struct block *b;
    struct dtp_block_places *out;
    int index; /* of the operator at hand, from the last */
    uint64_t alive;
    uint64_t saved, work, casts, finished, before;
    uint64_t gradient[DTP_TENSOR_COUNT]; /* bytes a token that stand of each tensor's */
    uint64_t branches;                   /* results that still wait for the gradient of their sum */
    uint64_t of_sum;                     /* bytes a token of that; 0: the residual stream's is it */
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

static void consume(struct backward *w, uint64_t set)
{
    set &= w->alive;
    w->saved -= sum(w->b, set);
    w->alive &= ~set;
}

/* Weight gradient, input gradient, then whoever waits for the weight's takes it. A compiler drops the input with the
 * first, autograd with the node. `output`: of its result's gradient, which goes with the second. */
static void linear_back(struct backward *w, int index, uint64_t input, uint64_t output)
{
    const struct matrix *matrix = &w->b->matrix[index];
    uint64_t width = w->b->c * matrix->width;
    note(w, 0, matrix->elements, DTP_PLACE_GRADIENT);
    if (w->b->compiled)
        consume(w, input);
    note(w, width, matrix->elements, DTP_PLACE_GRADIENT);
    w->work += width - output;
    consume(w, input);
    w->casts -= w->b->autocast ? matrix->cast : 0;
    note(w, 0, matrix->elements, DTP_PLACE_HANDED);
    w->finished += matrix->elements;
    w->before = matrix->elements;
}

static bool needed_later(const struct backward *w, enum dtp_layer_tensor tensor)
{
    return dtp_layer_tensors_needed_before(&w->b->made, w->index, tensor);
}

static void projection_back(struct backward *w, const struct dtp_layer_operator *op)
{
    const struct block *b = w->b;
    const struct dtp_layer_kind *kind = &b->made.kind;
    enum dtp_layer_tensor input = dtp_layer_first(op->reads);
    uint64_t left = op->makes;
    if (op->makes & BIT(QKV))
        note(w, b->made.bytes[QKV], 0, DTP_PLACE_PLAIN); /* as one tensor */
    for (int i = 0; i < kind->matrices; i++) {
        enum dtp_layer_tensor result = kind->matrix[i].result;
        if (!(op->makes & BIT(result)))
            continue;
        left &= ~BIT(result);
        bool ends = w->branches == BIT(result); /* the last branch lets go of the sum's */
        uint64_t output = w->branches & BIT(result) ? (ends ? w->of_sum : 0) : w->gradient[result];
        w->branches &= ~BIT(result);
        linear_back(w, i, left || needed_later(w, input) ? 0 : BIT(input), output);
        if (w->gradient[input]) /* two gradients of one tensor are added up */
            w->work -= b->c * b->matrix[i].width;
        w->gradient[input] = b->c * b->matrix[i].width;
    }
}

/* The residual stream is wider than what matmuls read: its gradient is cast for the linear that ends the branch. */
static void branch_back(struct backward *w, const struct dtp_layer_operator *op)
{
    if (w->b->made.kind.norms_after) /* whose backward reads it as it is */
        return;
    w->of_sum = w->b->e != w->b->c ? w->b->c * w->b->h : 0;
    w->work += w->of_sum;
    w->branches = dtp_layer_branches(op);
}

/* The gradient of the norm's result, widened, becomes that of its input, which is added to the residual's. */
static void norm_back(struct backward *w, const struct dtp_layer_operator *op)
{
    const struct block *s = w->b;
    uint64_t gradient = s->c * s->h;
    bool stands = w->branches && !w->of_sum; /* the other branch still reads the residual's: the sum is a new tensor */
    if (s->e != s->c && !w->b->made.fused) {
        note(w, s->e * s->h, 0, DTP_PLACE_PLAIN);
        w->work += s->e * s->h - gradient;
        gradient = s->e * s->h;
    }
    w->of_sum = stands ? s->e * s->h : w->of_sum;
    w->work += stands ? w->of_sum : 0;
    note(w, s->e * s->h, 0, DTP_PLACE_PLAIN);
    w->work -= gradient;
    const struct dtp_layer_operator *added = dtp_layer_tensors_sum(&s->made, dtp_layer_first(op->reads));
    consume(w, op->reads | op->statistics | (added ? dtp_layer_branches(added) : 0));
}

static void norm_after_back(struct backward *w, const struct dtp_layer_operator *op)
{
    enum dtp_layer_tensor input = dtp_layer_first(op->reads);
    uint64_t wide = dtp_layer_wide_of(input), gradient = w->b->c * w->b->h;
    note(w, gradient + sum(w->b, wide), 0, DTP_PLACE_PLAIN);
    w->work += gradient;
    w->gradient[input] = gradient;
    consume(w, op->reads | op->statistics | wide);
}

/* The gradient of what matmuls read of the stream, widened, is added to the stream's. */
static void add_to_stream(struct backward *w)
{
    const struct block *b = w->b;
    uint64_t gradient = b->c * b->h;
    if (b->e != b->c && !b->made.fused) {
        note(w, b->e * b->h, 0, DTP_PLACE_PLAIN);
        w->work += b->e * b->h - gradient;
        gradient = b->e * b->h;
    }
    note(w, 0, 0, DTP_PLACE_PLAIN);
    w->work -= gradient;
}

/* From the product's gradient to that of up, and of gate beside it. */
static void activation_back(struct backward *w)
{
    const struct block *b = w->b;
    uint64_t f = b->c * b->f, apart = b->made.bytes[GATE];
    w->gradient[GATE] = apart, w->gradient[UP] = b->made.bytes[UP];
    if (b->gated && !b->compiled) {
        note(w, 2 * f, 0, DTP_PLACE_PLAIN);
        consume(w, BIT(SILU) | (apart ? BIT(UP) : 0));
        w->work += f; /* of silu and of up, for the product's */
        note(w, apart ? f : 2 * f, 0, DTP_PLACE_PLAIN);
        consume(w, BIT(GATE) | BIT(UP));
        return;
    }
    bool in_place = b->compiled && !b->gated;
    uint64_t made = in_place ? 0 : apart + b->made.bytes[UP];
    note(w, made, 0, DTP_PLACE_PLAIN);
    w->work += in_place ? 0 : made - f;
    consume(w, BIT(GATE) | BIT(UP) | BIT(PRODUCT)); /* ReLU reads its result */
}

static void core_back(struct backward *w)
{
    const struct block *b = w->b;
    uint64_t q = b->c * b->d_q, kv = b->c * b->d_kv, all = q + 2 * kv;
    bool math = b->plan->attention == DTP_ATTENTION_MATH, normed = b->t->qk_norm;
    /* gradients of probabilities and scores; or dq summed in fp32 */
    uint64_t sums = math ? 2 * dtp_plan_score_bytes(b->plan) * b->t->heads * b->plan->sequence : 4 * b->d_q;
    note(w, all + sums, 0, DTP_PLACE_PLAIN);
    w->work += all - q;
    w->gradient[Q_RAW] = q, w->gradient[K_RAW] = w->gradient[V] = kv, w->gradient[QKV] = all;
    consume(w,
            BIT(Q) | BIT(K) | BIT(V) | BIT(CORE_STATE) | BIT(CORE) | (normed ? 0 : BIT(QKV) | BIT(Q_RAW) | BIT(K_RAW)));
}

static void rotary_back(struct backward *w)
{
    const struct block *b = w->b;
    uint64_t q = b->c * b->d_q;
    note(w, b->made.fused || !b->rope ? 0 : (b->c == 4 ? 2 : 5) * q, 0, DTP_PLACE_PLAIN);
    consume(w, BIT(QK_STATISTICS) | BIT(QKV) | BIT(Q_RAW) | BIT(K_RAW));
}

static void run_back(struct backward *w)
{
    const struct dtp_layer_operator *op = &w->b->made.op[w->index];
    switch (op->kind) {
    case DTP_LAYER_OP_NORM:
        if (op->reads & DTP_LAYER_STREAM)
            norm_back(w, op);
        else
            norm_after_back(w, op);
        break;
    case DTP_LAYER_OP_CAST: add_to_stream(w); break;
    case DTP_LAYER_OP_PROJECTION:
        projection_back(w, op);
        if (op->reads & DTP_LAYER_STREAM)
            add_to_stream(w);
        break;
    case DTP_LAYER_OP_ROTARY: rotary_back(w); break;
    case DTP_LAYER_OP_ATTENTION: core_back(w); break;
    case DTP_LAYER_OP_ACTIVATION: activation_back(w); break;
    case DTP_LAYER_OP_RESIDUAL: branch_back(w, op); break;
    }
}

static void weigh_backward(const struct block *b, struct dtp_block_places *out)
{
    struct backward w = {.b = b, .out = out, .alive = b->made.saved, .saved = sum(b, b->made.saved)};
    for (int i = 0; i < b->made.kind.matrices && b->autocast; i++)
        w.casts += b->matrix[i].cast;
    out->count = 0;
    for (w.index = b->made.operators - 1; w.index >= 0; w.index--)
        run_back(&w);
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
        /* What stands before the first matrix, a norm behind the MLP, is its segment's too. */
        struct dtp_block_place *worst = &out->of[matrix < 0 ? 0 : 3 * matrix + part];
        if (place->saved + place->work >= worst->saved + worst->work)
            *worst = *place;
    }
}

void dtp_block_places_count(const struct dtp_transformer *transformer, const struct dtp_cluster *cluster,
                            const struct dtp_plan *plan, struct dtp_block_places *out)
{
    struct block b;
    uint64_t tokens = dtp_bytes_product(plan->micro_batch, plan->sequence);
    bool apart = dtp_plan_fetches_modules(plan);
    struct dtp_block_segments *segments = apart ? out->segments : NULL;
    list_block(transformer, cluster, plan, &b);
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
