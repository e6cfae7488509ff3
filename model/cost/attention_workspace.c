#include "cost/attention_workspace.h"

bool dtp_attention_is_fused(bool halves, uint32_t sequence, uint32_t head_dim, uint32_t value_dim, bool bent)
{
    bool equal = !value_dim || value_dim == head_dim;
    return halves && !bent && equal && sequence % 128 == 0 && head_dim % 8 == 0 && head_dim <= 128;
}

bool dtp_attention_is_own_mma(bool halves, uint32_t head_dim, uint32_t value_dim)
{
    const uint32_t most = 256;
    return halves && head_dim % 8 == 0 && value_dim % 8 == 0 && head_dim <= most && value_dim <= most;
}

/* Largest divisor of `count` of which `each_bytes` times it stays within the bound; at least 1. */
static uint32_t most_at_a_time(uint32_t count, uint64_t each_bytes)
{
    uint32_t most = count;
    while (most > 1 && (count % most != 0 || most * each_bytes > DTP_ORDERED_SCORES_BYTES))
        most--;
    return most;
}

struct dtp_attention_part dtp_attention_part(const struct dtp_attention_size *size)
{
    struct dtp_attention_part part = {size->batch, size->heads, size->kv_heads};
    if (!size->backward || !size->deterministic || size->kv_heads == 0)
        return part;
    const uint64_t head_bytes = 2 * (uint64_t)size->sequence * size->sequence;
    const uint32_t group = size->heads / size->kv_heads;
    part.batch = most_at_a_time(size->batch, size->heads * head_bytes);
    if (part.batch == 1) {
        part.kv_heads = most_at_a_time(size->kv_heads, group * head_bytes);
        part.heads = group * part.kv_heads;
    }
    return part;
}

static uint64_t aligned(uint64_t bytes)
{
    return (bytes + DTP_WORKSPACE_ALIGNMENT - 1) / DTP_WORKSPACE_ALIGNMENT * DTP_WORKSPACE_ALIGNMENT;
}

/* Engine's bytes: read off cuDNN 9.14 on an H200 for 8 shapes, exact for all (tests/gpu/bench_device). */
struct dtp_attention_workspace dtp_attention_workspace(const struct dtp_attention_size *size)
{
    const struct dtp_attention_part part = dtp_attention_part(size);
    const uint64_t rows = (uint64_t)part.batch * part.heads * size->sequence;
    struct dtp_attention_workspace workspace = {.engine_bytes = 256};
    if (!size->backward)
        return workspace;
    workspace.row_sums_bytes = aligned(rows * sizeof(float));
    if (size->deterministic)
        workspace.engine_bytes += 2 * rows * size->sequence;
    else
        workspace.query_sum_bytes = aligned(rows * size->head_dim * sizeof(float));
    if (size->heads != size->kv_heads)
        workspace.engine_bytes += 2 * 2 * rows * size->head_dim;
    return workspace;
}

uint64_t dtp_attention_workspace_bytes(const struct dtp_attention_size *size)
{
    const struct dtp_attention_workspace workspace = dtp_attention_workspace(size);
    return workspace.row_sums_bytes + workspace.query_sum_bytes + workspace.engine_bytes;
}

/* A float for each query of each head. */
static uint64_t own_bytes(const struct dtp_attention_asked *asked)
{
    const struct dtp_attention_size *size = &asked->size;
    if (!size->backward || !dtp_attention_is_own_mma(asked->halves, size->head_dim, asked->value_dim))
        return 0;
    return (uint64_t)size->batch * size->heads * size->sequence * sizeof(float);
}

uint64_t dtp_attention_planned_bytes(const struct dtp_attention_asked *asked)
{
    const struct dtp_attention_size *size = &asked->size;
    const bool fused =
        dtp_attention_is_fused(asked->halves, size->sequence, size->head_dim, asked->value_dim, asked->bent);
    const uint64_t of_cudnn = fused ? dtp_attention_workspace_bytes(size) : 0;
    const uint64_t own = !fused || asked->in_steps ? own_bytes(asked) : 0;
    return own > of_cudnn ? own : of_cudnn;
}
