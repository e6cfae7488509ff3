#include "net/parameter_layout.h"

#include "base/bytes.h"
#include "base/word_table.h"

#include <math.h>
#include <string.h>

DTP_TEXT_AND_PARSE(parameter, DTP_PARAMETER_TABLE, 0)

uint64_t dtp_parameter_module_count(const struct dtp_transformer *transformer)
{
    return transformer->layers + 2;
}

static uint64_t round_up(uint64_t elements, uint64_t multiple)
{
    return dtp_divide_up(elements, multiple) * multiple;
}

static uint64_t align(uint64_t elements)
{
    return round_up(elements, DTP_PARAMETER_ALIGNMENT);
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
                                                                 [DTP_MATRIX_OUTPUT] = DTP_PARAMETER_OUTPUT,
                                                                 [DTP_MATRIX_UP] = DTP_PARAMETER_UP,
                                                                 [DTP_MATRIX_DOWN] = DTP_PARAMETER_DOWN};
    return weights[matrix];
}

/* Those that write into the residual stream start smaller. */
static void add_block_matrix(const struct dtp_transformer *t, const struct dtp_layer_matrix *matrix,
                             struct dtp_parameter_module *out)
{
    enum dtp_parameter weight = dtp_parameter_of_matrix(matrix->id);
    bool residual = weight == DTP_PARAMETER_OUTPUT || weight == DTP_PARAMETER_DOWN;
    add(out, weight, matrix->out, matrix->in, 0, residual ? 0.02 / sqrt(2 * (double)t->layers) : 0.02);
    add_vector(out, weight + 1, matrix->bias, matrix->out, 0);
}

static void add_norm(const struct dtp_transformer *t, enum dtp_parameter weight, struct dtp_parameter_module *out)
{
    add_vector(out, weight, true, t->hidden, norm_start(t));
    add_vector(out, weight + 1, t->norm_bias, t->hidden, 0);
}

static void add_block(const struct dtp_transformer *t, struct dtp_parameter_module *out)
{
    struct dtp_layer_kind block;
    dtp_layer_kind_of(t, DTP_LAYER_DENSE, true, true, &block);
    for (int i = 0; i < block.matrices; i++) {
        if (block.matrix[i].id == DTP_MATRIX_QKV && block.vectors & UINT32_C(1) << DTP_VECTOR_NORM1)
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
    } else if (module <= t->layers) {
        add_block(t, out);
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

void dtp_parameter_shard(struct dtp_parameter_module *module, uint64_t shard_group)
{
    module->shard_elements = round_up(dtp_divide_up(module->elements, shard_group), DTP_PARAMETER_SHARD_ALIGNMENT);
    module->elements = module->shard_elements * shard_group;
}

uint32_t dtp_parameter_key(uint64_t module, enum dtp_parameter parameter)
{
    _Static_assert(DTP_PARAMETER_HEAD_BIAS + 1 == DTP_PARAMETERS_DRAWN, "keys of random numbers");
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
