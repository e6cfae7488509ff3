#include "runtime/deepspeed/deepspeed_parts.h"

#include "base/bytes.h"
#include "net/layer_kind.h"

static void add_matrix(struct dtp_deepspeed_part *part, uint64_t ranks, bool present, uint64_t rows, uint64_t columns)
{
    if (!present)
        return;
    *part = (struct dtp_deepspeed_part){rows * columns, rows * columns, dtp_divide_up(rows * columns, ranks), 1,
                                        rows,           columns};
}

static void add(struct dtp_deepspeed_part *part, uint64_t ranks, uint64_t count, uint64_t elements)
{
    part->elements += count * elements;
    part->shard += count * dtp_divide_up(elements, ranks);
    part->tensors += count;
    if (count && elements > part->largest)
        part->largest = elements;
}

static void list_block(const struct dtp_transformer *t, const struct dtp_plan *plan, uint64_t ranks,
                       struct dtp_deepspeed_parts *out)
{
    struct dtp_layer_kind block;
    uint64_t vectors[DTP_LAYER_VECTORS];
    dtp_layer_kind_of(t, DTP_LAYER_DENSE, plan->fused_qkv, plan->fused_gate_up, &block);
    dtp_plan_adapt_kind(plan, &block);
    out->matrices = block.matrices;
    for (int i = 0; i < block.matrices; i++) {
        add_matrix(&out->block[i], ranks, true, block.matrix[i].out, block.matrix[i].in);
        if (block.matrix[i].id == DTP_MATRIX_OUTPUT)
            out->inputs = i;
    }
    for (int i = dtp_layer_list_vectors(&block, vectors); i > 0; i--)
        add(&out->block[out->matrices], ranks, 1, vectors[i - 1]);
    for (int i = 0, part = out->matrices + 1; i < block.matrices; i++)
        if (block.matrix[i].rank) {
            add(&out->block[part], ranks, 1, block.matrix[i].rank * block.matrix[i].in);
            add(&out->block[part], ranks, 1, block.matrix[i].out * block.matrix[i].rank);
            out->adapter[i] = part++;
        }
}

void dtp_deepspeed_list_parts(const struct dtp_transformer *t, const struct dtp_plan *plan, uint64_t ranks,
                              struct dtp_deepspeed_parts *out)
{
    uint64_t norm = dtp_transformer_norm_vectors(t);
    *out = (struct dtp_deepspeed_parts){0};
    list_block(t, plan, ranks, out);
    add_matrix(&out->root[DTP_ZERO3_EMBEDDING], ranks, true, t->vocab, t->hidden);
    add_matrix(&out->root[DTP_ZERO3_HEAD], ranks, !t->tied_head, t->vocab, t->hidden);
    add_matrix(&out->root[DTP_ZERO3_POSITION], ranks, t->position == DTP_POSITION_LEARNED, t->positions, t->hidden);
    add(&out->root[DTP_ZERO3_VECTORS], ranks, (t->embedding_norm ? norm : 0) + (t->final_norm ? norm : 0), t->hidden);
    add(&out->root[DTP_ZERO3_VECTORS], ranks, t->head_bias, t->vocab);
}

int dtp_deepspeed_backward_order(const struct dtp_deepspeed_parts *parts, int order[DTP_ZERO3_PARTS])
{
    int count = 0, down = parts->matrices - 1;
    order[count++] = down;
    for (int i = parts->inputs + 1; i < down; i++)
        order[count++] = i;
    order[count++] = parts->inputs;
    for (int i = 0; i < parts->inputs; i++)
        order[count++] = i;
    order[count++] = parts->matrices;
    return count;
}
