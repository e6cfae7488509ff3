/* Attention of context parallel ranks: what a step has depends on the rank that runs the program. */
#include "bind/binder.h"

#include <inttypes.h>

/* Each rank has two pieces of a sequence, the i-th from the front and the i-th from the back. Step s has the keys of
 * the rank s places before this one, around the ring. If that rank's number is smaller, its front piece lies before
 * both pieces of this rank, whose queries all see it, and its back piece behind them. If it is larger, both of its
 * pieces lie before the back piece of this rank, whose queries see them, and behind the front one. */
struct dtp_context_step_place dtp_bind_context_step(const struct dtp_binder *b)
{
    const uint32_t index = dtp_bind_context_place(&b->binding->job).index, half = sequence(b) / 2;
    const bool before = width(b) <= index;
    return (struct dtp_context_step_place){before ? 0 : half, before ? half : sequence(b)};
}

/* Elements of a row of keys and values. */
static uint64_t keys_width(const struct dtp_binder *b)
{
    return packed_width(b) - query_width(b);
}

static bool in_ring(const struct dtp_binder *b)
{
    const struct dtp_context_place place = dtp_bind_context_place(&b->binding->job);
    return place.ranks > 1 && place.pieces == 2 && heads(b)->queries % 2 == 0;
}

/* ---- tokens exchanged for heads ---------------------------------------------------------------------------------- */

/* Heads of a row of what is copied, of queries and of keys: of results, of queries alone. */
static uint32_t queries_of(const struct dtp_binder *b)
{
    return heads(b)->heads;
}
static uint32_t keys_of(const struct dtp_binder *b)
{
    return width(b) == DTP_EXECUTOR_RESULT ? 0 : heads(b)->kv_heads;
}
static uint32_t chunks_of(const struct dtp_binder *b)
{
    return norm_row(b);
}

static void laid_out_heads(struct dtp_binder *b, struct dtp_bound_op *out)
{
    const bool back = b->op->kind == DTP_OP_COPY_OUT;
    const float *cosines = maybe(b, DTP_ROLE_TABLES);
    out->kernel = DTP_KERNEL_lay_out_heads;
    out->arguments.lay_out_heads = (struct dtp_lay_out_heads_args){
        .rows = need(b, back ? DTP_ROLE_RESULT : DTP_ROLE_INPUT),
        .laid_out = need(b, back ? DTP_ROLE_INPUT : DTP_ROLE_RESULT),
        .cosines = cosines,
        .sines = cosines ? cosines + (uint64_t)sequence(b) * (heads(b)->head_dim / 2) : NULL,
        .batch = (uint32_t)(rows(b) / heads(b)->queries),
        .sequence = sequence(b),
        .heads = queries_of(b),
        .kv_heads = keys_of(b),
        .head_dim = heads(b)->head_dim,
        .ranks = dtp_bind_context_place(&b->binding->job).ranks,
        .chunks = chunks_of(b),
        .element = element_of(b, DTP_ROLE_INPUT),
        .back = back};
}

static bool exchanges(const struct dtp_binder *b)
{
    const struct dtp_context_place place = dtp_bind_context_place(&b->binding->job);
    return place.ranks > 1 && place.pieces == 1;
}

static void has_elements(struct dtp_binder *b, enum dtp_role role, enum dtp_role like, uint64_t count);

static void has_room(struct dtp_binder *b, enum dtp_role role, uint64_t count, uint64_t element_bytes);

static void room_of_exchange(struct dtp_binder *b)
{
    const uint64_t parts = (uint64_t)dtp_bind_context_place(&b->binding->job).ranks * chunks_of(b);
    const uint64_t all = (queries_of(b) + 2 * (uint64_t)keys_of(b)) * heads(b)->head_dim;
    if (width(b) > DTP_EXECUTOR_RESULT || !parts || parts > UINT32_MAX || queries_of(b) % parts || keys_of(b) % parts ||
        heads(b)->head_dim % 2) {
        b->missing |= 1u << DTP_ROLE_RESULT;
        return;
    }
    has_elements(b, DTP_ROLE_INPUT, DTP_ROLE_INPUT, rows(b) * all);
    has_elements(b, DTP_ROLE_RESULT, DTP_ROLE_INPUT, rows(b) * all);
    has_room(b, DTP_ROLE_TABLES, (uint64_t)sequence(b) * heads(b)->head_dim, 4);
}

/* ---- steps of a ring --------------------------------------------------------------------------------------------- */

/* Keys and values out of packed rows, or added to theirs. */
void dtp_bind_copied_columns(struct dtp_binder *b, struct dtp_bound_op *out)
{
    if (exchanges(b)) {
        laid_out_heads(b, out);
        return;
    }
    const bool adds = b->op->kind == DTP_OP_COPY_OUT;
    const enum dtp_element element = element_of(b, DTP_ROLE_INPUT);
    const uint64_t packed = packed_width(b), keys = keys_width(b),
                   skipped = query_width(b) * dtp_element_bytes(element);
    const char *from = need(b, DTP_ROLE_INPUT);
    char *to = need(b, DTP_ROLE_RESULT);
    out->kernel = DTP_KERNEL_columns;
    if (!from || !to)
        return;
    out->arguments.columns = (struct dtp_columns_args){.from = adds ? from : from + skipped,
                                                       .to = adds ? to + skipped : to,
                                                       .width = keys,
                                                       .count = {rows(b), 1, 1},
                                                       .from_step = {adds ? keys : packed, 0, 0},
                                                       .to_step = {adds ? packed : keys, 0, 0},
                                                       .element = element,
                                                       .accumulate = adds};
}

static void merge_gradients(struct dtp_binder *b, struct dtp_bound_op *out)
{
    const struct dtp_context_step_place step = dtp_bind_context_step(b);
    out->kernel = DTP_KERNEL_merge_gradients;
    out->arguments.merge_gradients = (struct dtp_merge_gradients_args){.query_gradient = need(b, DTP_ROLE_GRADIENT),
                                                                       .keys_gradient = need(b, DTP_ROLE_KEYS),
                                                                       .qkv_gradient = need(b, DTP_ROLE_INPUT_GRADIENT),
                                                                       .sum = need(b, DTP_ROLE_RESULT),
                                                                       .batch = (uint32_t)(rows(b) / heads(b)->queries),
                                                                       .sequence = sequence(b),
                                                                       .heads = heads(b)->heads,
                                                                       .kv_heads = heads(b)->kv_heads,
                                                                       .head_dim = heads(b)->head_dim,
                                                                       .first_query = step.first_query,
                                                                       .key_count = step.key_count,
                                                                       .element = element_of(b, DTP_ROLE_GRADIENT),
                                                                       .accumulate = updates(b, DTP_ROLE_RESULT)};
}

void dtp_bind_merge(struct dtp_binder *b, struct dtp_bound_op *out)
{
    if (operand(b, DTP_ROLE_INPUT_GRADIENT)) {
        merge_gradients(b, out);
        return;
    }
    const struct dtp_context_place place = dtp_bind_context_place(&b->binding->job);
    out->kernel = DTP_KERNEL_merge_attention;
    out->arguments.merge_attention = (struct dtp_merge_attention_args){.parts = need(b, DTP_ROLE_INPUT),
                                                                       .part_log_sum_exp = need(b, DTP_ROLE_SAVED),
                                                                       .result = need(b, DTP_ROLE_RESULT),
                                                                       .log_sum_exp = need(b, DTP_ROLE_STATISTICS),
                                                                       .steps = place.ranks,
                                                                       .whole = place.index + 1,
                                                                       .batch = (uint32_t)(rows(b) / heads(b)->queries),
                                                                       .sequence = sequence(b),
                                                                       .heads = heads(b)->heads,
                                                                       .head_dim = heads(b)->head_dim,
                                                                       .element = element_of(b, DTP_ROLE_INPUT)};
}

/* All that INPUT has, as much as RESULT has room for. */
enum dtp_status dtp_bind_shift(struct dtp_binder *b, struct dtp_bound_op *out)
{
    const struct dtp_operand *input = operand(b, DTP_ROLE_INPUT), *result = operand(b, DTP_ROLE_RESULT);
    struct dtp_collective_args g = {.collective = DTP_SEND_RECV,
                                    .group = b->op->group,
                                    .input = need(b, DTP_ROLE_INPUT),
                                    .result = need(b, DTP_ROLE_RESULT),
                                    .element = element_of(b, DTP_ROLE_INPUT),
                                    .shifts = true};
    if (!b->binding->job.world)
        return dtp_fault(b->faults, DTP_BAD_INPUT, NULL, 0, "shift \"%s\" in a run of one rank", b->op->name);
    if (!input || !result)
        return DTP_OK;
    g.bytes = operand_bytes(b, input);
    if (operand_bytes(b, result) != g.bytes || input->buffer.index == result->buffer.index)
        return dtp_fault(b->faults, DTP_BAD_INPUT, NULL, 0,
                         "shift \"%s\" sends %" PRIu64 " bytes and has room for %" PRIu64
                         ", which must be as much and elsewhere",
                         b->op->name, g.bytes, operand_bytes(b, result));
    out->kind = DTP_BOUND_COLLECTIVE;
    out->arguments.collective = g;
    return DTP_OK;
}

/* Bytes of `rows` of so many elements in the format of that operand. */
static void has_room(struct dtp_binder *b, enum dtp_role role, uint64_t count, uint64_t element_bytes)
{
    const struct dtp_operand *o = operand(b, role);
    if (o && count && element_bytes > operand_bytes(b, o) / count)
        b->missing |= 1u << role;
}

static void has_elements(struct dtp_binder *b, enum dtp_role role, enum dtp_role like, uint64_t count)
{
    const enum dtp_element element = element_of(b, role);
    if (operand(b, role) && element != element_of(b, like))
        b->missing |= 1u << role;
    has_room(b, role, count, dtp_element_bytes(element));
}

void dtp_bind_room_of_context(struct dtp_binder *b)
{
    const uint64_t tokens = heads(b)->queries, steps = dtp_bind_context_place(&b->binding->job).ranks;
    const bool whole = tokens > 0 && tokens <= INT32_MAX && rows(b) <= INT32_MAX && rows(b) % tokens == 0;
    if (exchanges(b) && whole && heads(b)->kv_heads && query_width(b) && b->op->kind != DTP_OP_MERGE) {
        room_of_exchange(b);
        return;
    }
    if (!in_ring(b) || !whole || !heads(b)->kv_heads || heads(b)->heads % heads(b)->kv_heads || !query_width(b) ||
        packed_width(b) > INT32_MAX) {
        b->missing |= 1u << DTP_ROLE_RESULT;
        return;
    }
    const uint64_t q = rows(b) * query_width(b), kv = rows(b) * keys_width(b), packed = rows(b) * packed_width(b);
    switch (b->op->kind) {
    case DTP_OP_COPY_IN:
        has_elements(b, DTP_ROLE_INPUT, DTP_ROLE_INPUT, packed);
        has_elements(b, DTP_ROLE_RESULT, DTP_ROLE_INPUT, kv);
        break;
    case DTP_OP_COPY_OUT:
        has_elements(b, DTP_ROLE_INPUT, DTP_ROLE_INPUT, kv);
        has_elements(b, DTP_ROLE_RESULT, DTP_ROLE_INPUT, packed);
        break;
    default: /* DTP_OP_MERGE */
        has_elements(b, DTP_ROLE_GRADIENT, DTP_ROLE_GRADIENT, q);
        has_elements(b, DTP_ROLE_KEYS, DTP_ROLE_GRADIENT, kv);
        has_elements(b, DTP_ROLE_INPUT_GRADIENT, DTP_ROLE_GRADIENT, packed);
        if (operand(b, DTP_ROLE_INPUT_GRADIENT)) {
            has_elements(b, DTP_ROLE_RESULT, DTP_ROLE_GRADIENT, kv);
            break;
        }
        has_elements(b, DTP_ROLE_INPUT, DTP_ROLE_INPUT, steps * q);
        has_elements(b, DTP_ROLE_RESULT, DTP_ROLE_INPUT, q);
        has_room(b, DTP_ROLE_SAVED, steps * rows(b) * heads(b)->heads, 4);
        has_room(b, DTP_ROLE_STATISTICS, rows(b) * heads(b)->heads, 4);
        break;
    }
}
