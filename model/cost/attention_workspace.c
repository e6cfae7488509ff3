#include "cost/attention_workspace.h"

#include "plan/context.h"
#include "plan/rules.h"

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

uint32_t dtp_attention_queries(const struct dtp_attention_size *size)
{
    return size->sequence - size->first_query;
}

uint32_t dtp_attention_keys(const struct dtp_attention_size *size)
{
    return size->key_count ? size->key_count : size->sequence;
}

struct dtp_attention_part dtp_attention_part(const struct dtp_attention_size *size)
{
    struct dtp_attention_part part = {size->batch, size->heads, size->kv_heads};
    if (!size->backward || !size->deterministic || size->kv_heads == 0)
        return part;
    const uint64_t head_bytes = 2 * (uint64_t)dtp_attention_queries(size) * dtp_attention_keys(size);
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

/* Engine's bytes: read off cuDNN 9.14 on an H200 for 8 causal squares, exact for all (tests/gpu/bench_device); of steps
 * of a ring read off plans that cuDNN 9.19 makes for the description of an H200, 9 shapes in bf16 and fp16. */
struct dtp_attention_workspace dtp_attention_workspace(const struct dtp_attention_size *size)
{
    const struct dtp_attention_part part = dtp_attention_part(size);
    const uint64_t heads = (uint64_t)part.batch * part.heads, keys = dtp_attention_keys(size);
    const uint64_t rows = heads * dtp_attention_queries(size);
    struct dtp_attention_workspace workspace = {.engine_bytes = 256};
    if (!size->backward)
        return workspace;
    workspace.statistics_bytes = size->first_query ? aligned(rows * sizeof(float)) : 0;
    workspace.row_sums_bytes = aligned(rows * sizeof(float));
    if (size->deterministic)
        workspace.engine_bytes += 2 * rows * keys;
    else
        workspace.query_sum_bytes = aligned(rows * size->head_dim * sizeof(float));
    if (size->heads != size->kv_heads)
        workspace.engine_bytes += 2 * 2 * heads * keys * size->head_dim;
    return workspace;
}

uint64_t dtp_attention_workspace_bytes(const struct dtp_attention_size *size)
{
    const struct dtp_attention_workspace workspace = dtp_attention_workspace(size);
    return workspace.statistics_bytes + workspace.row_sums_bytes + workspace.query_sum_bytes + workspace.engine_bytes;
}

/* A float for each query of each head. */
static uint64_t own_bytes(const struct dtp_attention_asked *asked)
{
    const struct dtp_attention_size *size = &asked->size;
    if (!size->backward || !dtp_attention_is_own_mma(asked->halves, size->head_dim, asked->value_dim))
        return 0;
    return (uint64_t)size->batch * size->heads * size->sequence * sizeof(float);
}

static uint64_t larger(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

static uint64_t of_later_steps(const struct dtp_attention_size *square)
{
    struct dtp_attention_size front = *square, back = *square;
    front.key_count = square->sequence / 2;
    back.first_query = square->sequence / 2, back.key_count = square->sequence;
    return larger(dtp_attention_workspace_bytes(&front), dtp_attention_workspace_bytes(&back));
}

static bool is_fused(const struct dtp_attention_asked *asked, uint32_t length)
{
    return dtp_attention_is_fused(asked->halves, length, asked->size.head_dim, asked->value_dim, asked->bent);
}

uint64_t dtp_attention_planned_bytes(const struct dtp_attention_asked *asked)
{
    const struct dtp_attention_size *size = &asked->size;
    const bool square = is_fused(asked, size->sequence), later = asked->in_steps && is_fused(asked, size->sequence / 2);
    const bool all = square && (later || !asked->in_steps);
    uint64_t bytes = all ? 0 : own_bytes(asked);
    if (square)
        bytes = larger(bytes, dtp_attention_workspace_bytes(size));
    return later ? larger(bytes, of_later_steps(size)) : bytes;
}

struct dtp_attention_asked dtp_attention_asked_of(const struct dtp_transformer *t, const struct dtp_plan *plan,
                                                  bool backward)
{
    const uint32_t cp = plan->cp ? plan->cp : 1, ranks = plan->cp_comm == DTP_CP_A2A ? cp : 1, steps = cp / ranks,
                   heads = ranks * dtp_context_chunks(plan, t->kv_heads);
    return (struct dtp_attention_asked){.size = {.batch = (uint32_t)plan->micro_batch,
                                                 .sequence = (uint32_t)(plan->sequence / steps),
                                                 .heads = (uint32_t)(t->heads / heads),
                                                 .kv_heads = (uint32_t)(t->kv_heads / heads),
                                                 .head_dim = (uint32_t)t->head_dim,
                                                 .backward = backward,
                                                 .deterministic = !plan->executor.atomic_attention},
                                        .value_dim = (uint32_t)t->value_head_dim,
                                        .halves = dtp_plan_compute_bytes(plan) == 2,
                                        .bent = t->attention_softcap > 0 || t->position == DTP_POSITION_ALIBI,
                                        .in_steps = steps > 1};
}
