/* Which tensors a block has under a plan: parameters as shards, and the sizes of what its forward makes. */
#include "base/bytes.h"
#include "lower/lowering.h"

#include <string.h>

/* ---- parameters -------------------------------------------------------------------------------------------------- */

struct part_sum {
    struct dtp_lower_module *module;
    uint64_t ranks;
    bool flat; /* ZeRO-3 cuts each tensor by elements, FSDP2 by rows */
    int part;
};

static bool flat_tensors(const struct dtp_lowering *l)
{
    return dtp_plan_shard_cut(l->plan) == DTP_CUT_ELEMENTS;
}

static void add_tensor(const struct part_sum *sum, uint64_t rows, uint64_t width)
{
    uint64_t shard = sum->flat ? dtp_divide_up(rows * width, sum->ranks) : dtp_divide_up(rows, sum->ranks) * width;
    sum->module->elements[sum->part] += rows * width;
    if (rows * width > sum->module->largest[sum->part])
        sum->module->largest[sum->part] = rows * width;
    sum->module->shard[sum->part] += shard;
    sum->module->all_elements += rows * width;
    sum->module->all_shard += shard;
    sum->module->tensors[sum->part]++;
    if (width > 1)
        sum->module->rows[sum->part] += rows, sum->module->columns[sum->part] += width;
}

static void add_vector(const struct part_sum *sum, uint64_t elements, bool present)
{
    if (present)
        add_tensor(sum, elements, 1);
}

static void list_matrices(struct dtp_lowering *l)
{
    for (int part = 0; part < l->matrices; part++) {
        const struct dtp_layer_matrix *matrix = &l->matrix[part];
        uint64_t ranks = matrix->expert ? dtp_plan_expert_shard_ranks(l->cluster, l->plan) : l->plan->shard_group;
        struct part_sum weight = {&l->block, ranks, flat_tensors(l), part};
        struct dtp_layer_cut cut = dtp_layer_matrix_cut(matrix, weight.ranks);
        for (uint64_t i = 0; i < cut.count; i++)
            add_tensor(&weight, cut.rows, cut.width);
        l->block.tensors[part] = matrix->apart ? (uint32_t)cut.count : 1;
        l->block.rows[part] = matrix->groups * matrix->out, l->block.columns[part] = matrix->groups * matrix->in;
        l->block.matrix[part] = true;
        l->block.weight_name[part] = matrix->weight_name;
        l->block.gradient_name[part] = matrix->gradient_name;
    }
}

static void add_norm(const struct part_sum *sum, const struct dtp_transformer *t, bool present)
{
    for (uint64_t left = dtp_transformer_norm_vectors(t); left; left--)
        add_vector(sum, t->hidden, present);
}

static void list_block_vectors(struct dtp_lowering *l)
{
    int part = l->matrices;
    uint64_t vector[DTP_LAYER_VECTORS];
    struct part_sum vectors = {&l->block, l->plan->shard_group, flat_tensors(l), part};
    for (int i = dtp_layer_list_vectors(&l->tensors.kind, vector); i > 0; i--)
        add_tensor(&vectors, vector[i - 1], 1);
    l->block.parts = part + 1;
    l->block.weight_name[part] = "vectors";
    l->block.gradient_name[part] = "vector gradients";
}

/* What lies outside of blocks is on the rank with the first stage, or the last. */
static bool has_embedding(const struct dtp_lowering *l)
{
    bool any = false;
    for (uint32_t i = 0; i < l->role.chunk_count; i++)
        any = any || l->role.chunks[i].embedding;
    return any;
}

static uint64_t ahead_layers(const struct dtp_lowering *l)
{
    uint64_t layers = 0;
    for (uint32_t i = 0; i < l->role.chunk_count; i++)
        layers += l->role.chunks[i].ahead_layers;
    return layers;
}

static bool has_head(const struct dtp_lowering *l)
{
    bool any = false;
    for (uint32_t i = 0; i < l->role.chunk_count; i++)
        any = any || l->role.chunks[i].head;
    return any;
}

static void list_root(struct dtp_lowering *l)
{
    const struct dtp_transformer *t = l->transformer;
    static const char *const weights[] = {"embedding weight", "position weight", "root vectors", "head weight"};
    static const char *const gradients[] = {"embedding gradient", "position gradient", "root vector gradients",
                                            "head gradient"};
    struct part_sum sum = {&l->root, l->plan->shard_group, flat_tensors(l), DTP_ROOT_EMBEDDING};
    uint64_t ahead = ahead_layers(l);
    bool embedding = has_embedding(l) || ahead; /* which reads the following tokens' rows */
    bool head = has_head(l);
    l->root.parts = DTP_ROOT_PARTS;
    if (embedding || (head && t->tied_head))
        add_tensor(&sum, t->vocab, t->hidden);
    sum.part = DTP_ROOT_POSITION;
    if (has_embedding(l) && t->position == DTP_POSITION_LEARNED)
        add_tensor(&sum, t->positions, t->hidden);
    sum.part = DTP_ROOT_VECTORS;
    add_norm(&sum, t, has_embedding(l) && t->embedding_norm);
    add_norm(&sum, t, head && t->final_norm);
    add_vector(&sum, t->vocab, head && t->head_bias);
    for (uint64_t i = 0; i < ahead; i++) { /* with the projections, for who has them keeps all flat */
        add_vector(&sum, dtp_transformer_ahead_elements(t), true);
        for (int norm = 0; norm < DTP_AHEAD_NORMS; norm++)
            add_norm(&sum, t, true);
    }
    sum.part = DTP_ROOT_HEAD;
    if (head && !t->tied_head)
        add_tensor(&sum, t->vocab, t->hidden);
    for (int part = 0; part < DTP_ROOT_PARTS; part++) {
        l->root.weight_name[part] = weights[part];
        l->root.gradient_name[part] = gradients[part];
    }
}

uint64_t dtp_lower_largest_tensor(const struct dtp_lowering *l)
{
    uint64_t largest = 0;
    for (int part = 0; part < DTP_MAX_PARTS; part++) {
        for (int mlp = 0; mlp < DTP_LAYER_MLPS; mlp++)
            largest = l->kind[mlp].block.largest[part] > largest ? l->kind[mlp].block.largest[part] : largest;
        largest = l->root.largest[part] > largest ? l->root.largest[part] : largest;
    }
    return largest;
}

/* ---- the whole --------------------------------------------------------------------------------------------------- */

/* As it stands in `l`. */
static void keep_kind(struct dtp_lowering *l)
{
    struct dtp_lower_kind *kind = l->wide ? &l->wide_kind[l->mlp] : &l->kind[l->mlp];
    kind->tensors = l->tensors;
    kind->block = l->block;
    memcpy(kind->tensor_bytes, l->tensor_bytes, sizeof kind->tensor_bytes);
}

void dtp_lower_take_kind(struct dtp_lowering *l, enum dtp_layer_mlp mlp)
{
    const struct dtp_lower_kind *kind = l->wide ? &l->wide_kind[mlp] : &l->kind[mlp];
    l->mlp = mlp;
    l->tensors = kind->tensors;
    l->block = kind->block;
    memcpy(l->tensor_bytes, kind->tensor_bytes, sizeof l->tensor_bytes);
    l->matrix = l->tensors.kind.matrix, l->matrices = l->tensors.kind.matrices;
}

void dtp_lower_take_width(struct dtp_lowering *l, bool wide)
{
    l->wide = wide;
    l->plan = wide ? &l->wide_plan : l->narrow_plan;
    l->casts = wide ? (struct dtp_fp8_casts){.kept = false} : l->narrow_casts;
    dtp_lower_take_kind(l, l->mlp);
}

static void make_kind(struct dtp_lowering *l, enum dtp_layer_mlp mlp)
{
    l->mlp = mlp;
    l->block = (struct dtp_lower_module){.parts = 0};
    dtp_layer_tensors_of(l->transformer, mlp, l->cluster, l->plan, &l->tensors);
    l->matrix = l->tensors.kind.matrix, l->matrices = l->tensors.kind.matrices;
    for (int tensor = 0; tensor < DTP_TENSOR_COUNT; tensor++)
        l->tensor_bytes[tensor] = dtp_bytes_product(l->tokens, l->tensors.bytes[tensor]);
    list_matrices(l);
    list_block_vectors(l);
    dtp_lower_list_adapters(l);
    if (l->plan->fsdp1 && !l->adapts) /* one flat parameter, cut into equal shards across tensors */
        l->block.all_shard = dtp_divide_up(l->block.all_elements, l->plan->shard_group);
    dtp_lower_count_bytes(l, &l->block);
    keep_kind(l);
}

/* Both kinds, though a model may have layers of one alone. */
void dtp_lower_tensors(struct dtp_lowering *l)
{
    const bool widths = l->plan->megatron.bf16_first || l->plan->megatron.bf16_last;
    for (int wide = widths; wide >= 0; wide--) {
        l->wide = wide, l->plan = wide ? &l->wide_plan : l->narrow_plan;
        if (l->transformer->experts)
            make_kind(l, DTP_LAYER_EXPERTS);
        make_kind(l, DTP_LAYER_DENSE);
    }
    list_root(l);
    if (l->plan->fsdp1 && !l->adapts)
        l->root.all_shard = dtp_divide_up(l->root.all_elements, l->plan->shard_group);
    dtp_lower_count_bytes(l, &l->root);
    dtp_lower_take_kind(l, dtp_lower_mlp(l, 0));
}

uint64_t dtp_lower_all_elements(const struct dtp_lowering *l)
{
    uint64_t elements = l->root.trained_elements;
    for (uint64_t layer = 0; layer < l->transformer->layers; layer++)
        elements += dtp_lower_module_at(l, layer)->trained_elements;
    return elements;
}

uint64_t dtp_lower_all_shard(const struct dtp_lowering *l)
{
    uint64_t elements = l->root.trained_shard;
    for (uint64_t layer = 0; layer < l->transformer->layers; layer++)
        elements += dtp_lower_module_at(l, layer)->trained_shard;
    return elements;
}
