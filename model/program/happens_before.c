#include "program/happens_before.h"

static void join_dependencies(const struct dtp_program *program, const struct dtp_op *op, uint32_t left_out,
                              const struct dtp_clock *clocks, struct dtp_clock *clock)
{
    const dtp_op_id *dependencies = dtp_program_dependencies(program, op);
    for (uint32_t i = 0; i < op->dependency_count; i++)
        if (i != left_out)
            dtp_clock_join(clock, &clocks[dependencies[i].index]);
}

struct dtp_clock *dtp_happens_before(const struct dtp_program *program, size_t op_count, uint32_t left_out,
                                     struct dtp_host_arena *arena)
{
    const struct dtp_op *ops = dtp_program_ops(program);
    struct dtp_clock *clocks = dtp_host_arena_take(arena, op_count, sizeof *clocks);
    /* Last collective of each group, 1 + index. */
    uint32_t *last = dtp_host_arena_take_zeroed(arena, dtp_program_group_count(program), sizeof *last);
    if (!clocks || !last)
        return NULL;
    struct dtp_clock ends[DTP_STREAM_COUNT] = {0}; /* what the next operation of a stream starts after */
    for (size_t i = 0; i < op_count; i++) {
        const struct dtp_op *op = &ops[i];
        struct dtp_clock *clock = &ends[op->stream];
        if (op->dependency_count)
            join_dependencies(program, op, i + 1 == op_count ? left_out : DTP_NO_INDEX, clocks, clock);
        if (op->group != DTP_NO_INDEX) {
            if (last[op->group])
                dtp_clock_join(clock, &clocks[last[op->group] - 1]);
            last[op->group] = (uint32_t)i + 1;
        }
        clock->at[op->stream] = (uint32_t)i + 1;
        clocks[i] = *clock;
        for (int s = 0; s < DTP_STREAM_COUNT && op->kind == DTP_OP_HOST_WAIT; s++)
            dtp_clock_join(&ends[s], &clocks[i]);
    }
    return clocks;
}
