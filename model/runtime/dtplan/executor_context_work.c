#include "runtime/dtplan/executor_context_work.h"

static double rows_of(const struct dtp_executor_block *b, uint64_t width)
{
    return (double)b->tokens * (double)width * (double)b->element_bytes;
}

static double queries(const struct dtp_executor_block *block)
{
    return rows_of(block, block->kind.d_q);
}

static double keys(const struct dtp_executor_block *block)
{
    return rows_of(block, 2 * block->kind.d_kv);
}

/* What a step behind the first has of these on average. */
static double of_step(double bytes)
{
    return 3 * bytes / 4;
}

double dtp_executor_context_copied_bytes(const struct dtp_executor_block *block)
{
    return 2 * keys(block);
}

double dtp_executor_context_returned_bytes(const struct dtp_executor_block *block)
{
    return 3 * keys(block);
}

/* Each step's is read, the sum written. */
double dtp_executor_context_merged_bytes(const struct dtp_executor_block *block)
{
    double one = queries(block) + (double)dtp_executor_tensor_bytes(block, DTP_TENSOR_CORE_STATE);
    return 2 * one + (block->ring - 1) * of_step(one);
}

/* Read, and read and written where it is added; the first sum is written whole. */
double dtp_executor_context_added_bytes(const struct dtp_executor_block *block, uint32_t step)
{
    double added = 3 * of_step(queries(block));
    return added + (step > 1 ? 3 * of_step(keys(block)) : of_step(keys(block)) + keys(block));
}

double dtp_executor_tables_bytes(const struct dtp_executor_block *block)
{
    return 4 * (double)(block->kind.head_dim * block->sequence);
}

double dtp_executor_exchange_copied_bytes(const struct dtp_executor_block *block, enum dtp_executor_part part,
                                          bool turned)
{
    const double rows = queries(block) + (part == DTP_EXECUTOR_PACKED ? keys(block) : 0);
    return 2 * rows + (turned ? dtp_executor_tables_bytes(block) : 0);
}

/* Copies around all-to-alls of so many results and packed rows; that these are turned is the rotary's to count. */
static struct dtp_executor_traffic exchanges(const struct dtp_executor_block *block, uint32_t results, uint32_t packed)
{
    return (struct dtp_executor_traffic){
        results * dtp_executor_exchange_copied_bytes(block, DTP_EXECUTOR_RESULT, false) +
            packed * dtp_executor_exchange_copied_bytes(block, DTP_EXECUTOR_PACKED, false),
        results + packed};
}

struct dtp_executor_traffic dtp_executor_context_inputs_traffic(const struct dtp_executor_block *block)
{
    return block->exchanged > 1 ? exchanges(block, 0, 1) : (struct dtp_executor_traffic){0, 0};
}

/* Side by side, a core a step, the merge; or copies around exchanges, a core a chunk. */
struct dtp_executor_traffic dtp_executor_context_forward_traffic(const struct dtp_executor_block *block)
{
    if (block->exchanged > 1) {
        struct dtp_executor_traffic moved = exchanges(block, 1, 1);
        moved.kernels += block->chunks;
        return moved;
    }
    return (struct dtp_executor_traffic){
        dtp_executor_context_copied_bytes(block) + dtp_executor_context_merged_bytes(block), block->ring + 2};
}

/* Side by side, a core a step, what each but the first adds, what comes home. */
struct dtp_executor_traffic dtp_executor_context_backward_traffic(const struct dtp_executor_block *block)
{
    if (block->exchanged > 1) {
        struct dtp_executor_traffic moved = exchanges(block, 2, 1);
        moved.kernels += block->chunks * DTP_EXECUTOR_ATTENTION_BACKWARD_LAUNCHES;
        return moved;
    }
    double bytes = dtp_executor_context_copied_bytes(block) + dtp_executor_context_returned_bytes(block);
    for (uint32_t step = 1; step < block->ring; step++)
        bytes += dtp_executor_context_added_bytes(block, step);
    return (struct dtp_executor_traffic){bytes, 1 + (DTP_EXECUTOR_ATTENTION_BACKWARD_LAUNCHES + 1) * block->ring};
}
