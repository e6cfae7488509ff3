#include "plan/optimizer_state.h"

#include "base/bytes.h"
#include "net/layer_kind.h"
#include "plan/runtime_sizes.h"

bool dtp_optimizer_by_tensor(const struct dtp_plan *plan)
{
    return dtp_optimizer_row(plan->optimizer)->shape != DTP_STATE_ALIKE;
}

uint64_t dtp_optimizer_factor_elements(uint64_t rows, uint64_t columns)
{
    return rows + columns;
}

/* ---- tensors of a model ------------------------------------------------------------------------------------------ */

/* As they are registered, which is the order of the step, or first those that are not projected: elements of state, of
 * blocks' matrices, and the most elements of temporaries that stand at once, with those of the tensor before, which
 * have names until the tensor's own take them. */
struct walk {
    const struct dtp_plan *plan;
    enum dtp_optimizer_shape shape;
    bool projects;                       /* of PROJECTED: the second group of parameters is walked */
    uint64_t state[DTP_OPTIMIZER_PARTS]; /* by part (dtp_optimizer_parts) */
    uint64_t matrices, most, products_bytes, narrowest;
    uint64_t kernels;          /* of a loop over tensors */
    uint64_t quotient, update; /* temporaries of the tensor before, or its estimate (Adafactor) */
};

static void stand(struct walk *walk, uint64_t elements)
{
    if (elements > walk->most)
        walk->most = elements;
}

static void pass(struct walk *walk, uint64_t elements)
{
    switch (walk->shape) {
    case DTP_STATE_FACTORS: stand(walk, walk->update + elements); break;
    case DTP_STATE_ROWS: /* its square beside the update of the tensor before; the update and its negative */
        stand(walk, walk->update + elements);
        stand(walk, 2 * elements);
        break;
    case DTP_STATE_PROJECTED: /* a root beside both of the tensor before, then the quotient beside that one's update */
        stand(walk, walk->quotient + walk->update + elements);
        stand(walk, walk->update + 2 * elements);
        break;
    default: break;
    }
    walk->quotient = walk->update = elements;
}

/* State of a matrix. Experts' are one tensor [groups, out, in], of which torch keeps sums over the last two axes
 * (Adafactor's row_shape, col_shape). */
static void keep_matrix(struct walk *walk, uint64_t groups, uint64_t out, uint64_t in)
{
    uint64_t elements = groups * out * in;
    switch (walk->shape) {
    case DTP_STATE_FACTORS: walk->state[0] += dtp_optimizer_factor_elements(groups * out, groups * in); break;
    case DTP_STATE_ROWS: walk->state[0] += elements, walk->state[1] += groups * out; break;
    default: walk->state[2] += 2 * elements; break;
    }
}

static void keep_vectors(struct walk *walk, uint64_t elements)
{
    switch (walk->shape) {
    case DTP_STATE_FACTORS: walk->state[2] += elements; break;
    case DTP_STATE_ROWS: walk->state[0] += elements, walk->state[2] += elements; break;
    default: walk->state[2] += 2 * elements; break;
    }
}

static uint64_t whole_state(const struct walk *walk)
{
    uint64_t elements = 0;
    for (int i = 0; i < DTP_OPTIMIZER_PARTS; i++)
        elements += walk->state[i];
    return elements;
}

static void pass_matrix(struct walk *walk, uint64_t groups, uint64_t out, uint64_t in)
{
    if (walk->projects)
        return;
    keep_matrix(walk, groups, out, in);
    walk->kernels += dtp_optimizer_tensor_kernels(walk->plan);
    pass(walk, groups * out * in);
}

/* The projected gradient and two of its size; then the update at full size and what it becomes when scaled, beside
 * these three. */
static void pass_projected(struct walk *walk, const struct dtp_layer_matrix *matrix)
{
    struct dtp_projection p;
    uint64_t elements = matrix->groups * matrix->out * matrix->in,
             least = matrix->out < matrix->in ? matrix->out : matrix->in;
    if (!walk->narrowest || least < walk->narrowest)
        walk->narrowest = least;
    if (!walk->projects)
        return;
    dtp_projection_of(walk->plan, matrix->out, matrix->in, &p);
    walk->state[0] += 2 * p.moment_elements, walk->state[1] += p.projection_elements;
    walk->matrices += elements;
    walk->kernels += p.kernels + (uint64_t)p.products;
    stand(walk, walk->quotient + walk->update + 2 * p.moment_elements);
    stand(walk, walk->update + 3 * p.moment_elements);
    stand(walk, 3 * p.moment_elements + 2 * elements);
    walk->quotient = p.moment_elements, walk->update = elements;
}

static void pass_orthogonalised(struct walk *walk, const struct dtp_layer_matrix *matrix)
{
    struct dtp_newton_schulz products;
    uint64_t elements = matrix->groups * matrix->out * matrix->in;
    dtp_newton_schulz_of(walk->plan, matrix->out, matrix->in, &products);
    walk->state[0] += elements, walk->matrices += elements;
    if (products.scratch_bytes > walk->products_bytes)
        walk->products_bytes = products.scratch_bytes;
}

static void pass_block_matrix(struct walk *walk, const struct dtp_layer_matrix *matrix)
{
    if (walk->shape == DTP_STATE_MATRICES)
        pass_orthogonalised(walk, matrix);
    else if (walk->shape == DTP_STATE_PROJECTED)
        pass_projected(walk, matrix);
    else
        pass_matrix(walk, matrix->groups, matrix->out, matrix->in);
}

static void pass_vectors(struct walk *walk, uint64_t count, uint64_t elements)
{
    if (walk->projects || !count)
        return;
    keep_vectors(walk, count * elements);
    walk->kernels += count * dtp_optimizer_tensor_kernels(walk->plan);
    pass(walk, elements);
}

/* What stands between two layers is less than between the largest two of one. */
static void pass_layers(struct walk *walk, const struct dtp_transformer *t, const struct dtp_plan *plan,
                        enum dtp_layer_mlp mlp, uint64_t count)
{
    struct dtp_layer_kind kind;
    const struct walk before = *walk;
    uint64_t vectors[DTP_LAYER_VECTORS];
    if (!count)
        return;
    dtp_layer_kind_of(t, mlp, plan->fused_qkv, plan->fused_gate_up, &kind);
    for (int i = 0; i < kind.matrices; i++)
        pass_block_matrix(walk, &kind.matrix[i]);
    for (int i = dtp_layer_list_vectors(&kind, vectors); i > 0; i--)
        pass_vectors(walk, 1, vectors[i - 1]);
    for (int i = 0; i < DTP_OPTIMIZER_PARTS; i++)
        walk->state[i] = before.state[i] + count * (walk->state[i] - before.state[i]);
    walk->matrices = before.matrices + count * (walk->matrices - before.matrices);
    walk->kernels = before.kernels + count * (walk->kernels - before.kernels);
}

static void pass_model(struct walk *walk, const struct dtp_transformer *t, const struct dtp_plan *plan)
{
    uint64_t experts = t->experts ? dtp_transformer_expert_layers(t, t->layers) : 0;
    uint64_t norm = dtp_transformer_norm_vectors(t);
    pass_matrix(walk, 1, t->vocab, t->hidden);
    if (t->position == DTP_POSITION_LEARNED)
        pass_matrix(walk, 1, t->positions, t->hidden);
    pass_vectors(walk, t->embedding_norm ? norm : 0, t->hidden);
    pass_layers(walk, t, plan, DTP_LAYER_DENSE, t->layers - experts);
    pass_layers(walk, t, plan, DTP_LAYER_EXPERTS, experts);
    pass_vectors(walk, t->final_norm ? norm : 0, t->hidden);
    if (!t->tied_head)
        pass_matrix(walk, 1, t->vocab, t->hidden);
    pass_vectors(walk, t->head_bias ? 1 : 0, t->vocab);
}

static struct walk walk_model(const struct dtp_transformer *t, const struct dtp_plan *plan)
{
    struct walk walk = {.plan = plan, .shape = dtp_optimizer_row(plan->optimizer)->shape};
    pass_model(&walk, t, plan);
    if (walk.shape == DTP_STATE_PROJECTED) {
        walk.projects = true;
        pass_model(&walk, t, plan);
    }
    return walk;
}

/* ---- of a plan --------------------------------------------------------------------------------------------------- */

uint64_t dtp_optimizer_whole_bytes(const struct dtp_transformer *transformer, const struct dtp_plan *plan,
                                   const struct dtp_element_bytes *bytes, uint64_t elements)
{
    uint64_t alike = dtp_optimizer_bytes(bytes, elements);
    if (!dtp_optimizer_by_tensor(plan))
        return alike;
    struct walk walk = walk_model(transformer, plan);
    return alike + dtp_bytes_product(dtp_dtype_bytes(plan->precision.moments), whole_state(&walk));
}

void dtp_optimizer_parts(const struct dtp_transformer *transformer, const struct dtp_plan *plan,
                         struct dtp_optimizer_part out[DTP_OPTIMIZER_PARTS])
{
    static const struct dtp_optimizer_part words[][DTP_OPTIMIZER_PARTS] = {
        [DTP_STATE_FACTORS] = {{"sums over rows and columns", "m + n of matrices [m, n], summed"},
                               {NULL},
                               {"second moments of vectors", "elements of vectors"}},
        [DTP_STATE_MATRICES] = {{"momentum of blocks' matrices", "elements of these"},
                                {NULL},
                                {"AdamW's moments of the rest", "2 x elements of all other tensors"}},
        [DTP_STATE_PROJECTED] = {{"moments of projected gradients", "2 m r of blocks' matrices [m, n], n <= m, summed"},
                                 {"projections", "n r of the same, summed"},
                                 {"moments of the rest", "2 x elements of all other tensors"}},
        [DTP_STATE_ROWS] = {{"first moments", "elements of all tensors"},
                            {"second moments of matrices", "rows of matrices"},
                            {"second moments of vectors", "elements of vectors"}}};
    const struct walk walk = walk_model(transformer, plan);
    for (int i = 0; i < DTP_OPTIMIZER_PARTS; i++) {
        out[i] = dtp_optimizer_by_tensor(plan) ? words[walk.shape][i] : (struct dtp_optimizer_part){NULL};
        out[i].elements = walk.state[i];
    }
}

uint64_t dtp_optimizer_scratch_bytes(const struct dtp_transformer *transformer, const struct dtp_plan *plan,
                                     uint64_t elements)
{
    uint64_t element_bytes = dtp_dtype_bytes(plan->precision.moments);
    if (plan->offload != DTP_OFFLOAD_NONE)
        return 0;
    if (plan->optimizer == DTP_ADAMW_FOREACH) {
        uint64_t ends = dtp_plan_mixes_ends(plan) ? dtp_plan_trained_ends(transformer, plan) : 0;
        return element_bytes * (elements - ends) + dtp_dtype_bytes(plan->precision.params) * ends;
    }
    if (!dtp_optimizer_by_tensor(plan))
        return 0;
    struct walk walk = walk_model(transformer, plan);
    return walk.shape == DTP_STATE_MATRICES ? walk.products_bytes : element_bytes * walk.most;
}

/* Of each product added to a scaled tensor torch first copies that tensor into the result (addmm out of place): X, X
 * X^T. At its most there stand the momentum's look ahead in the gradients' dtype, X before and behind a step, X X^T and
 * the polynomial of it. */
void dtp_newton_schulz_of(const struct dtp_plan *plan, uint64_t rows, uint64_t columns, struct dtp_newton_schulz *out)
{
    const uint64_t steps = DTP_NEWTON_SCHULZ_STEPS, narrow = dtp_dtype_bytes(DTP_BF16);
    uint64_t n = rows < columns ? rows : columns, m = rows < columns ? columns : rows;
    uint64_t square = n * n, all = n * m;
    out->n = (double)n, out->m = (double)m;
    out->flops = (double)steps * (2 * 2 * (double)square * out->m + 2 * (double)square * out->n);
    out->bytes = (double)steps * 2 * (double)narrow * ((double)square + (double)all);
    out->scratch_bytes = (dtp_dtype_bytes(plan->precision.moments) + 2 * narrow) * all + 2 * narrow * square;
}

uint64_t dtp_optimizer_matrix_elements(const struct dtp_transformer *transformer, const struct dtp_plan *plan)
{
    enum dtp_optimizer_shape shape = dtp_optimizer_row(plan->optimizer)->shape;
    bool apart = shape == DTP_STATE_MATRICES || shape == DTP_STATE_PROJECTED;
    return apart ? walk_model(transformer, plan).matrices : 0;
}

uint64_t dtp_optimizer_loop_kernels(const struct dtp_transformer *transformer, const struct dtp_plan *plan)
{
    return dtp_optimizer_tensor_kernels(plan) ? walk_model(transformer, plan).kernels : 0;
}

uint64_t dtp_optimizer_narrowest(const struct dtp_transformer *transformer, const struct dtp_plan *plan)
{
    return walk_model(transformer, plan).narrowest;
}

/* Of the projected gradient: first moment times beta and plus the gradient (2, 3), second times beta and plus the
 * square (2, 3), its root (2) plus epsilon (2), the quotient (3): 17 passes by 7 kernels. GaLore then scales what it
 * projected back and adds it to the parameters (2, 3 of the matrix). APOLLO takes norms of the quotient and of the
 * projected gradient by channel (1, 1), divides them, scales the gradient (2), limits by how much its norm grew (1,
 * which the host reads; 2), scales (2), and adds (3): of the matrix 10, with some nine kernels over a number or one a
 * channel. */
void dtp_projection_of(const struct dtp_plan *plan, uint64_t rows, uint64_t columns, struct dtp_projection *out)
{
    const bool back = plan->optimizer == DTP_GALORE;
    const uint64_t n = rows < columns ? rows : columns, m = rows < columns ? columns : rows, r = plan->projection_rank;
    const double element = dtp_dtype_bytes(plan->precision.moments), all = (double)(n * m), low = (double)(m * r);
    *out = (struct dtp_projection){.moment_elements = m * r,
                                   .projection_elements = n * r,
                                   .products = back ? 2 : 1,
                                   .m = (double)m,
                                   .n = (double)n,
                                   .rank = (double)r,
                                   .bytes = element * (back ? 17 * low + 5 * all : 19 * low + 10 * all),
                                   .kernels = 7 + (back ? 2 : 2 + 9 + 5)};
}

/* AdamW's seven above, and the addition; Adam-mini's seven over the tensor and some nine over a number a row. */
uint32_t dtp_optimizer_tensor_kernels(const struct dtp_plan *plan)
{
    switch (dtp_optimizer_row(plan->optimizer)->shape) {
    case DTP_STATE_PROJECTED: return 7 + 1;
    case DTP_STATE_ROWS: return 7 + 9;
    default: return 0;
    }
}
