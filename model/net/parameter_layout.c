#include "net/parameter_layout.h"

#include "base/bytes.h"
#include "base/word_table.h"

#include <math.h>
#include <string.h>

DTP_TEXT_AND_PARSE(parameter, DTP_PARAMETER_TABLE, 0)
DTP_TEXT_AND_PARSE(parameter_way, DTP_PARAMETER_CUT_TABLE, 0)

uint64_t dtp_parameter_module_count(const struct dtp_transformer *transformer)
{
    return transformer->layers + 2;
}

static uint64_t align(uint64_t elements)
{
    return dtp_round_up(elements, DTP_PARAMETER_ALIGNMENT);
}

uint64_t dtp_parameter_head_rows(const struct dtp_transformer *transformer)
{
    return align(transformer->vocab);
}

/* Tensors are added in the order of enum dtp_parameter. */
static void add(struct dtp_parameter_module *module, enum dtp_parameter which, uint64_t rows, uint64_t columns,
                double mean, double deviation)
{
    uint64_t offset = align(module->elements), left_out = module->extent_elements - module->used_elements;
    module->tensor[which] = (struct dtp_parameter_tensor){.rows = rows,
                                                          .columns = columns,
                                                          .offset_elements = offset,
                                                          .extent_elements = rows * columns,
                                                          .saved_offset_elements = offset - left_out,
                                                          .decays = rows > 1,
                                                          .mean = mean,
                                                          .deviation = deviation,
                                                          .exists = true};
    module->used_elements += rows * columns;
    module->extent_elements += rows * columns;
    module->elements = offset + rows * columns;
}

/* The tensor added last is the head's matrix or bias. */
static void pad_head(struct dtp_parameter_module *module, const struct dtp_transformer *t, enum dtp_parameter which)
{
    struct dtp_parameter_tensor *tensor = &module->tensor[which];
    if (!tensor->exists)
        return;
    uint64_t padding = (dtp_parameter_head_rows(t) - t->vocab) * (tensor->rows > 1 ? tensor->columns : 1);
    tensor->extent_elements += padding;
    module->extent_elements += padding;
    module->elements += padding;
}

static void add_matrix(struct dtp_parameter_module *module, enum dtp_parameter which, uint64_t rows, uint64_t columns)
{
    add(module, which, rows, columns, 0, 0.02);
}

/* Biases and norms. */
static void add_vector(struct dtp_parameter_module *module, enum dtp_parameter which, bool present, uint64_t elements,
                       double mean)
{
    if (present)
        add(module, which, 1, elements, mean, 0);
}

/* What norms multiply by begins at 1. */
static double norm_start(const struct dtp_transformer *t)
{
    return t->norm_unit_offset ? 0 : 1;
}

enum dtp_parameter dtp_parameter_of_matrix(enum dtp_layer_matrix_id matrix)
{
    static const enum dtp_parameter weights[DTP_MATRIX_COUNT] = {[DTP_MATRIX_QKV] = DTP_PARAMETER_QKV,
                                                                 [DTP_MATRIX_Q_A] = DTP_PARAMETER_Q_DOWN,
                                                                 [DTP_MATRIX_Q] = DTP_PARAMETER_Q,
                                                                 [DTP_MATRIX_KV_A] = DTP_PARAMETER_KV_DOWN,
                                                                 [DTP_MATRIX_KV_B] = DTP_PARAMETER_KV,
                                                                 [DTP_MATRIX_OUTPUT] = DTP_PARAMETER_OUTPUT,
                                                                 [DTP_MATRIX_UP] = DTP_PARAMETER_UP,
                                                                 [DTP_MATRIX_DOWN] = DTP_PARAMETER_DOWN,
                                                                 [DTP_MATRIX_ROUTER] = DTP_PARAMETER_ROUTER,
                                                                 [DTP_MATRIX_SHARED_UP] = DTP_PARAMETER_SHARED_UP,
                                                                 [DTP_MATRIX_SHARED_DOWN] = DTP_PARAMETER_SHARED_DOWN,
                                                                 [DTP_MATRIX_SHARED_WEIGHT] =
                                                                     DTP_PARAMETER_SHARED_WEIGHT};
    return weights[matrix];
}

void dtp_parameter_block_kind(const struct dtp_transformer *transformer, bool experts, struct dtp_layer_kind *out)
{
    struct dtp_transformer packed = *transformer;
    packed.experts_packed = packed.shared_packed = true;
    dtp_layer_kind_of(&packed, experts ? DTP_LAYER_EXPERTS : DTP_LAYER_DENSE, true, true, out);
}

/* Those that write into the residual stream start smaller. A matrix is one also where it has one row. */
static void add_block_matrix(const struct dtp_transformer *t, const struct dtp_layer_matrix *matrix,
                             struct dtp_parameter_module *out)
{
    enum dtp_parameter weight = dtp_parameter_of_matrix(matrix->id);
    bool residual =
        weight == DTP_PARAMETER_OUTPUT || weight == DTP_PARAMETER_DOWN || weight == DTP_PARAMETER_SHARED_DOWN;
    add(out, weight, matrix->groups * matrix->out, matrix->in, 0, residual ? 0.02 / sqrt(2 * (double)t->layers) : 0.02);
    out->tensor[weight].decays = true;
    add_vector(out, weight + 1, matrix->bias, matrix->groups * matrix->out, 0);
}

static void add_norm(const struct dtp_transformer *t, enum dtp_parameter weight, struct dtp_parameter_module *out)
{
    add_vector(out, weight, true, t->hidden, norm_start(t));
    add_vector(out, weight + 1, t->norm_bias, t->hidden, 0);
}

/* The matrices of latents and those around experts stand behind the others, in the order of enum dtp_parameter. */
static bool stands_behind(const struct dtp_layer_matrix *matrix)
{
    return dtp_parameter_of_matrix(matrix->id) >= DTP_PARAMETER_Q_DOWN;
}

static void add_block(const struct dtp_transformer *t, bool experts, struct dtp_parameter_module *out)
{
    struct dtp_layer_kind block;
    dtp_parameter_block_kind(t, experts, &block);
    for (int i = 0; i < block.matrices; i++) {
        if (stands_behind(&block.matrix[i]))
            continue;
        bool first = block.matrix[i].id == (block.kv_latent ? DTP_MATRIX_OUTPUT : DTP_MATRIX_QKV);
        if (first && block.vectors & UINT32_C(1) << DTP_VECTOR_NORM1)
            add_norm(t, DTP_PARAMETER_NORM1, out);
        if (block.matrix[i].id == DTP_MATRIX_UP && block.vectors & UINT32_C(1) << DTP_VECTOR_NORM2)
            add_norm(t, DTP_PARAMETER_NORM2, out);
        add_block_matrix(t, &block.matrix[i], out);
    }
    add_vector(out, DTP_PARAMETER_QK_NORM, dtp_layer_qk_norm_elements(&block) > 0, dtp_layer_qk_norm_elements(&block),
               norm_start(t));
    if (block.norms_after && block.norm_weights) {
        add_norm(t, DTP_PARAMETER_POST_NORM1, out);
        add_norm(t, DTP_PARAMETER_POST_NORM2, out);
    }
    add_vector(out, DTP_PARAMETER_Q_LATENT_NORM, block.q_latent > 0, block.q_latent, 1);
    add_vector(out, DTP_PARAMETER_KV_LATENT_NORM, block.kv_latent > 0, block.kv_latent, 1);
    for (int i = 0; i < block.matrices; i++)
        if (stands_behind(&block.matrix[i]))
            add_block_matrix(t, &block.matrix[i], out);
    add_vector(out, DTP_PARAMETER_SINKS, block.sinks, block.heads, 0);
}

int dtp_parameter_alike_modules(const struct dtp_transformer *transformer,
                                struct dtp_parameter_alike out[DTP_PARAMETER_KINDS])
{
    const struct dtp_transformer *t = transformer;
    uint64_t experts = t->experts ? dtp_transformer_expert_layers(t, t->layers) : 0, other = 0;
    bool first = experts && dtp_transformer_layer_has_experts(t, 0);
    uint64_t like_first = first ? experts : t->layers - experts;
    int count = 0;
    out[count++] = (struct dtp_parameter_alike){0, 1};
    out[count++] = (struct dtp_parameter_alike){1, like_first};
    while (other < t->layers && like_first < t->layers && dtp_transformer_layer_has_experts(t, other) == first)
        other++;
    if (like_first < t->layers)
        out[count++] = (struct dtp_parameter_alike){other + 1, t->layers - like_first};
    out[count++] = (struct dtp_parameter_alike){t->layers + 1, 1};
    return count;
}

void dtp_parameter_module(const struct dtp_transformer *transformer, uint64_t shard_group, uint64_t module,
                          struct dtp_parameter_module *out)
{
    const struct dtp_transformer *t = transformer;
    *out = (struct dtp_parameter_module){.elements = 0};
    if (module == 0) {
        add_matrix(out, DTP_PARAMETER_EMBEDDING, t->vocab, t->hidden);
        if (t->tied_head)
            pad_head(out, t, DTP_PARAMETER_EMBEDDING);
        if (t->position == DTP_POSITION_LEARNED)
            add_matrix(out, DTP_PARAMETER_POSITION, t->positions, t->hidden);
        if (t->embedding_norm && !t->norm_without_weight)
            add_norm(t, DTP_PARAMETER_EMBEDDING_NORM, out);
    } else if (module <= t->layers) {
        add_block(t, t->experts && dtp_transformer_layer_has_experts(t, module - 1), out);
    } else {
        add_vector(out, DTP_PARAMETER_FINAL_NORM, t->final_norm && !t->norm_without_weight, t->hidden, norm_start(t));
        add_vector(out, DTP_PARAMETER_FINAL_NORM_BIAS, t->final_norm && t->norm_bias, t->hidden, 0);
        if (!t->tied_head)
            add_matrix(out, DTP_PARAMETER_HEAD, t->vocab, t->hidden);
        pad_head(out, t, DTP_PARAMETER_HEAD);
        add_vector(out, DTP_PARAMETER_HEAD_BIAS, t->head_bias, t->vocab, 0);
        pad_head(out, t, DTP_PARAMETER_HEAD_BIAS);
    }
    dtp_parameter_shard(out, shard_group);
}

/* ---- slices of tensor parallel ranks ----------------------------------------------------------------------------- */

/* Projections that read the stream make a rank's heads and columns of the MLP, those behind them read these; tables are
 * divided by tokens. Norms are whole, for each rank sees all of a row; so are biases of what is a sum over the ranks.
 */
enum dtp_parameter_way dtp_parameter_cut_way_of(enum dtp_parameter which)
{
    switch (which) {
    case DTP_PARAMETER_EMBEDDING:
    case DTP_PARAMETER_HEAD:
    case DTP_PARAMETER_QKV:
    case DTP_PARAMETER_SHARED_UP:
    case DTP_PARAMETER_UP:
    case DTP_PARAMETER_QKV_ADAPTER_B:
    case DTP_PARAMETER_UP_ADAPTER_B: return DTP_PARAMETER_CUT_ROWS;
    case DTP_PARAMETER_OUTPUT_ADAPTER_A:
    case DTP_PARAMETER_DOWN_ADAPTER_A:
    case DTP_PARAMETER_OUTPUT:
    case DTP_PARAMETER_SHARED_DOWN:
    case DTP_PARAMETER_DOWN:
    case DTP_PARAMETER_QKV_BIAS:
    case DTP_PARAMETER_UP_BIAS:
    case DTP_PARAMETER_HEAD_BIAS: return DTP_PARAMETER_CUT_COLUMNS;
    default: return DTP_PARAMETER_CUT_WHOLE;
    }
}

bool dtp_parameter_cut_fits(const struct dtp_parameter_tensor *tensor)
{
    const struct dtp_parameter_cut *cut = &tensor->cut;
    const uint64_t most = UINT64_C(1) << 48;
    bool rows = cut->way == DTP_PARAMETER_CUT_ROWS;
    uint64_t mine = rows ? tensor->rows : tensor->columns, all = rows ? cut->whole_rows : cut->whole_columns;
    if (!cut->parts)
        return cut->way == DTP_PARAMETER_CUT_WHOLE;
    if (!cut->whole_rows || !cut->whole_columns || cut->whole_rows > most / cut->whole_columns ||
        cut->whole_saved_offset_elements > most || cut->parts > DTP_PARAMETER_PARTS)
        return false;
    if (rows ? tensor->columns != cut->whole_columns : tensor->rows != cut->whole_rows)
        return false;
    if (cut->way == DTP_PARAMETER_CUT_WHOLE)
        return tensor->columns == cut->whole_columns && cut->parts == 1;
    if (cut->parts == 1)
        return mine <= all;
    return (rows || tensor->rows == 1) && all % mine == 0 && cut->first_part && cut->first_part < mine &&
           (mine - cut->first_part) % (cut->parts - 1) == 0;
}

static void take_parts(const struct dtp_transformer *t, enum dtp_parameter which, struct dtp_parameter_cut *cut)
{
    if (which == DTP_PARAMETER_QKV || which == DTP_PARAMETER_QKV_BIAS) {
        cut->parts = 3;
        cut->first_part = t->heads * t->head_dim;
    } else if ((which == DTP_PARAMETER_UP || which == DTP_PARAMETER_UP_BIAS) &&
               dtp_activation_is_gated(t->activation)) {
        cut->parts = 2;
        cut->first_part = t->ffn;
    } else if (which == DTP_PARAMETER_SHARED_UP && dtp_activation_is_gated(t->activation)) {
        cut->parts = 2;
        cut->first_part = t->shared_expert_ffn;
    }
}

void dtp_parameter_cut_module(const struct dtp_transformer *whole, uint32_t ranks, uint64_t module,
                              struct dtp_parameter_module *slice)
{
    struct dtp_parameter_module model;
    if (ranks < 2)
        return;
    dtp_parameter_module(whole, 1, module, &model);
    for (int i = 0; i < DTP_PARAMETER_COUNT; i++) {
        struct dtp_parameter_tensor *tensor = &slice->tensor[i];
        const struct dtp_parameter_tensor *of = &model.tensor[i];
        if (!tensor->exists)
            continue;
        struct dtp_parameter_cut cut = {.way = dtp_parameter_cut_way_of((enum dtp_parameter)i),
                                        .parts = 1,
                                        .whole_rows = of->rows,
                                        .whole_columns = of->columns,
                                        .whole_saved_offset_elements = of->saved_offset_elements};
        cut.first_part = cut.way == DTP_PARAMETER_CUT_ROWS ? of->rows : of->columns;
        take_parts(whole, (enum dtp_parameter)i, &cut);
        cut.first_part = dtp_divide_up(cut.first_part, cut.way == DTP_PARAMETER_CUT_WHOLE ? 1 : ranks);
        tensor->cut = cut;
        tensor->decays = of->decays;
    }
}

uint64_t dtp_parameter_vocab_slice(uint64_t vocab, uint32_t ranks, uint32_t index, uint64_t *first)
{
    uint64_t each = dtp_divide_up(vocab, ranks ? ranks : 1), begin = each * index;
    *first = begin < vocab ? begin : vocab;
    return vocab - *first < each ? vocab - *first : each;
}

/* Part by part: `mine` of the slice's rows or columns, of which the model has `all` in that part. */
struct cut_part {
    uint64_t mine, all;
};

static struct cut_part part_of(const struct dtp_parameter_cut *cut, uint64_t mine, uint64_t all, uint32_t part)
{
    uint64_t others = cut->parts > 1 ? (mine - cut->first_part) / (cut->parts - 1) : 0;
    if (cut->parts == 1)
        return (struct cut_part){mine, all};
    uint64_t ranks = all / mine;
    return part == 0 ? (struct cut_part){cut->first_part, cut->first_part * ranks}
                     : (struct cut_part){others, others * ranks};
}

uint32_t dtp_parameter_pieces(const struct dtp_parameter_tensor *tensor, uint32_t index,
                              struct dtp_parameter_piece out[DTP_PARAMETER_PARTS])
{
    const struct dtp_parameter_cut *cut = &tensor->cut;
    uint64_t elements = tensor->rows * tensor->columns, here = 0, there = 0;
    uint32_t count = 0;
    if (!cut->parts || cut->way == DTP_PARAMETER_CUT_WHOLE) {
        out[0] = (struct dtp_parameter_piece){.offset_elements = tensor->offset_elements,
                                              .saved_offset_elements = cut->parts ? cut->whole_saved_offset_elements
                                                                                  : tensor->saved_offset_elements,
                                              .run = elements,
                                              .stride = elements,
                                              .count = 1};
        return 1;
    }
    bool rows = cut->way == DTP_PARAMETER_CUT_ROWS;
    uint64_t inner = rows ? tensor->columns : 1, outer = rows ? 1 : tensor->rows;
    for (uint32_t p = 0; p < cut->parts; p++) {
        struct cut_part part =
            part_of(cut, rows ? tensor->rows : tensor->columns, rows ? cut->whole_rows : cut->whole_columns, p);
        uint64_t begin = part.mine * index, left = begin < part.all ? part.all - begin : 0;
        uint64_t taken = left < part.mine ? left : part.mine;
        if (taken)
            out[count++] = (struct dtp_parameter_piece){.offset_elements = tensor->offset_elements + here * inner,
                                                        .saved_offset_elements =
                                                            cut->whole_saved_offset_elements + (there + begin) * inner,
                                                        .run = taken * inner,
                                                        .stride = (rows ? cut->whole_rows : cut->whole_columns) * inner,
                                                        .count = outer};
        here += part.mine, there += part.all;
    }
    return count;
}

static bool is_packed(enum dtp_parameter which)
{
    return which == DTP_PARAMETER_QKV || which == DTP_PARAMETER_OUTPUT || which == DTP_PARAMETER_UP ||
           which == DTP_PARAMETER_DOWN;
}

void dtp_parameter_split_packed(const struct dtp_parameter_module *block, uint64_t shard_group,
                                struct dtp_parameter_module *vectors, struct dtp_parameter_module *matrices)
{
    struct dtp_parameter_module whole = *block;
    *vectors = *matrices = (struct dtp_parameter_module){.elements = 0};
    for (int i = 0; i < DTP_PARAMETER_COUNT; i++) {
        const struct dtp_parameter_tensor *t = &whole.tensor[i];
        bool packed = is_packed((enum dtp_parameter)i);
        if (t->exists)
            add(packed ? matrices : vectors, (enum dtp_parameter)i, t->rows, packed ? t->columns / 2 : t->columns,
                t->mean, t->deviation);
    }
    dtp_parameter_shard(vectors, shard_group);
    dtp_parameter_shard(matrices, shard_group);
}

void dtp_parameter_split_experts(const struct dtp_transformer *whole, const struct dtp_transformer *slice,
                                 uint64_t shard_group, uint64_t expert_shard_group, struct dtp_parameter_module *rest,
                                 struct dtp_parameter_module *experts)
{
    struct dtp_parameter_module model, own;
    const struct dtp_transformer whole_alike = dtp_transformer_all_alike(whole, true),
                                 slice_alike = dtp_transformer_all_alike(slice, true);
    dtp_parameter_module(&whole_alike, 1, 1, &model);
    dtp_parameter_module(&slice_alike, 1, 1, &own);
    *rest = *experts = (struct dtp_parameter_module){.elements = 0};
    for (int i = 0; i < DTP_PARAMETER_COUNT; i++) {
        const struct dtp_parameter_tensor *t = &own.tensor[i], *of = &model.tensor[i];
        bool divided = i == DTP_PARAMETER_UP || i == DTP_PARAMETER_DOWN;
        if (!t->exists)
            continue;
        struct dtp_parameter_module *to = divided ? experts : rest;
        add(to, (enum dtp_parameter)i, t->rows, t->columns, of->mean, of->deviation);
        to->tensor[i].decays = of->decays;
        to->tensor[i].cut =
            (struct dtp_parameter_cut){.way = divided ? DTP_PARAMETER_CUT_ROWS : DTP_PARAMETER_CUT_WHOLE,
                                       .parts = 1,
                                       .first_part = t->rows,
                                       .whole_rows = of->rows,
                                       .whole_columns = of->columns,
                                       .whole_saved_offset_elements = of->saved_offset_elements};
    }
    dtp_parameter_shard(rest, shard_group);
    dtp_parameter_shard(experts, expert_shard_group);
}

void dtp_parameter_adapter_module(const struct dtp_parameter_adapter adapters[DTP_PARAMETER_ADAPTERS], uint64_t rank,
                                  uint64_t shard_group, struct dtp_parameter_module *out)
{
    *out = (struct dtp_parameter_module){.elements = 0};
    for (int i = 0; i < DTP_PARAMETER_ADAPTERS; i++) {
        enum dtp_parameter a = (enum dtp_parameter)(DTP_PARAMETER_QKV_ADAPTER_A + 2 * i);
        if (!adapters[i].low)
            continue;
        add(out, a, adapters[i].low, adapters[i].in, 0, 1 / sqrt(3 * (double)adapters[i].in));
        add(out, a + 1, adapters[i].out, rank, 0, 0);
        out->tensor[a].decays = out->tensor[a + 1].decays = true; /* matrices, also where they have one row */
    }
    dtp_parameter_shard(out, shard_group);
}

/* Tensors of a module in their order: the next vector, then all up to the matrix behind it. */
bool dtp_parameter_next_vectors(const struct dtp_parameter_module *module, int *next, struct dtp_parameter_run *run)
{
    bool found = false;
    uint64_t place = *next ? run->place + run->elements : 0;
    for (; *next < DTP_PARAMETER_COUNT; ++*next) {
        const struct dtp_parameter_tensor *t = &module->tensor[*next];
        if (!t->exists || (!found && t->rows > 1))
            continue;
        if (t->rows > 1)
            break;
        run->begin = found ? run->begin : t->offset_elements;
        run->elements = t->offset_elements + t->extent_elements - run->begin;
        found = true;
    }
    run->elements = found ? dtp_round_up(run->elements, DTP_PARAMETER_ALIGNMENT) : 0;
    run->place = place;
    return found;
}

uint64_t dtp_parameter_vector_elements(const struct dtp_parameter_module *module)
{
    struct dtp_parameter_run run = {.elements = 0};
    for (int next = 0; dtp_parameter_next_vectors(module, &next, &run);)
        continue;
    return dtp_round_up(run.place, DTP_PARAMETER_SHARD_ALIGNMENT);
}

void dtp_parameter_shard(struct dtp_parameter_module *module, uint64_t shard_group)
{
    module->shard_elements = dtp_round_up(dtp_divide_up(module->elements, shard_group), DTP_PARAMETER_SHARD_ALIGNMENT);
    module->elements = module->shard_elements * shard_group;
}

uint32_t dtp_parameter_key(uint64_t module, enum dtp_parameter parameter)
{
    _Static_assert(DTP_PARAMETER_HEAD_BIAS + 1 == DTP_PARAMETERS_DRAWN, "keys of random numbers");
    switch (parameter) {
    case DTP_PARAMETER_ROUTER: parameter = DTP_PARAMETER_HEAD; break;
    case DTP_PARAMETER_SHARED_UP: parameter = DTP_PARAMETER_EMBEDDING; break;
    case DTP_PARAMETER_SHARED_DOWN: parameter = DTP_PARAMETER_POSITION; break;
    case DTP_PARAMETER_SHARED_WEIGHT: parameter = DTP_PARAMETER_FINAL_NORM; break;
    case DTP_PARAMETER_Q_DOWN: parameter = DTP_PARAMETER_QKV_BIAS; break;
    case DTP_PARAMETER_Q: parameter = DTP_PARAMETER_QKV; break;
    case DTP_PARAMETER_KV_DOWN: parameter = DTP_PARAMETER_FINAL_NORM_BIAS; break;
    case DTP_PARAMETER_KV: parameter = DTP_PARAMETER_HEAD_BIAS; break;
    default: break;
    }
    if (parameter >= DTP_PARAMETER_QKV_ADAPTER_A)
        return (uint32_t)(module * DTP_PARAMETERS_DRAWN + (uint64_t)(parameter - DTP_PARAMETER_QKV_ADAPTER_A));
    if ((unsigned)parameter >= DTP_PARAMETERS_DRAWN)
        return UINT32_MAX;
    return (uint32_t)(module * DTP_PARAMETERS_DRAWN + (uint64_t)parameter);
}

/* dtp_transformer_check lets 2^17 modules of 2^46 elements through. */
uint64_t dtp_parameter_element_key(uint64_t module, uint64_t offset_elements)
{
    return (module << 46) + offset_elements;
}
