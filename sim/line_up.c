#include "sim/line_up.h"

/* A program's operations by place: those of micro-step k and layer l are op[first[k * (layers + 1) + l]] and on, what
 * belongs to no layer behind a micro-step's last. */
struct places {
    const struct dtp_op *ops;
    uint32_t *first, *op, micro_steps, layers;
};

static uint32_t place_of(const struct places *places, const struct dtp_op *op)
{
    return op->micro_step * (places->layers + 1) + (op->layer == DTP_NO_LAYER ? places->layers : op->layer);
}

/* Sorted by counting: first[] is shifted by one place while the operations go where they belong. */
static bool sort(const struct dtp_line_up_side *side, struct dtp_host_arena *arena, struct places *out)
{
    uint32_t count = (uint32_t)dtp_program_op_count(side->program), last = 0;
    *out = (struct places){.ops = dtp_program_ops(side->program), .layers = (uint32_t)side->layers};
    for (uint32_t i = 0; i < count; i++)
        last = out->ops[i].micro_step > last ? out->ops[i].micro_step : last;
    out->micro_steps = last + 1;
    uint32_t places = out->micro_steps * (out->layers + 1);
    out->first = dtp_host_arena_take_zeroed(arena, places + 2, sizeof *out->first);
    out->op = dtp_host_arena_take(arena, count, sizeof *out->op);
    if (!out->first || !out->op)
        return false;
    for (uint32_t i = 0; i < count; i++)
        out->first[place_of(out, &out->ops[i]) + 2]++;
    for (uint32_t p = 2; p < places + 2; p++)
        out->first[p] += out->first[p - 1];
    for (uint32_t i = 0; i < count; i++)
        out->op[out->first[place_of(out, &out->ops[i]) + 1]++] = i;
    return true;
}

static bool alike(const struct dtp_op *a, const struct dtp_op *b)
{
    return a->kind == b->kind && a->stream == b->stream && a->group == b->group &&
           a->dependency_count == b->dependency_count && a->demand->kernels == b->demand->kernels &&
           (a->layer == DTP_NO_LAYER || a->demand->sent_bytes == b->demand->sent_bytes);
}

/* The operations of one place. */
static bool line_up_place(const struct places *small, uint32_t from, const struct places *large, uint32_t to,
                          bool no_layer, uint32_t *out)
{
    uint32_t count = small->first[from + 1] - small->first[from], there = large->first[to + 1] - large->first[to];
    const uint32_t *op = &small->op[small->first[from]], *other = &large->op[large->first[to]];
    if (there < count || (there > count && !no_layer))
        return false;
    uint32_t front = count / 2, more = there - count;
    for (uint32_t i = front; i < front + more; i++)
        if (dtp_op_kind_class(large->ops[other[i]].kind) == DTP_CLASS_COLLECTIVE)
            return false;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t same = other[i < front ? i : i + more];
        if (!alike(&small->ops[op[i]], &large->ops[same]))
            return false;
        out[op[i]] = same;
    }
    return true;
}

/* Which of `there` operations the `index`-th of `count` is, those that are more standing in the middle. */
static uint32_t counted_from_its_end(uint32_t index, uint32_t count, uint32_t there)
{
    return index < count / 2 ? index : index + there - count;
}

enum dtp_status dtp_line_up(const struct dtp_line_up_side *small, const struct dtp_line_up_side *large,
                            struct dtp_host_arena *arena, uint32_t **out)
{
    struct places a, b;
    *out = dtp_host_arena_take(arena, dtp_program_op_count(small->program), sizeof **out);
    if (!*out || !sort(small, arena, &a) || !sort(large, arena, &b))
        return DTP_ENVIRONMENT;
    if (b.layers < a.layers || b.micro_steps < a.micro_steps)
        return DTP_NO;
    for (uint32_t k = 0; k < a.micro_steps; k++)
        for (uint32_t l = 0; l <= a.layers; l++) {
            uint32_t from = k * (a.layers + 1) + l;
            uint32_t to = counted_from_its_end(k, a.micro_steps, b.micro_steps) * (b.layers + 1) +
                          counted_from_its_end(l, a.layers, b.layers);
            if (!line_up_place(&a, from, &b, to, l == a.layers, *out))
                return DTP_NO;
        }
    return DTP_OK;
}
