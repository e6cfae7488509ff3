/* Transfers between neighbours, around a ring and from all ranks to all, as step programs have them: with the same
 * arguments to the same communicator. */
#include "probe/sweep.h"

#include "kernels/element.h"

#define PAGE_BYTES UINT64_C(4096)
#define ROW_BYTES UINT64_C(1024) /* of an all_to_all; what it sends is a row or more to each rank */

static struct dtp_group_place place_of(const struct dtp_sweep *s)
{
    return dtp_group_place(s->group, s->p->of->ranks.rank);
}

static uint64_t element_bytes(const struct dtp_sweep *s)
{
    return dtp_element_bytes(dtp_bind_element(s->kind->dtype));
}

static bool to_all(const struct dtp_sweep *s)
{
    return s->kind->collective == DTP_ALL_TO_ALL;
}

/* How many of `rows` go to the rank of that index: all ranks get as many, or the first twice as many as each other;
 * what does not divide goes to the first. */
static uint64_t rows_for(const struct dtp_sweep_kind *kind, uint64_t rows, uint32_t ranks, uint32_t index)
{
    uint64_t each = rows / (kind->carried == DTP_CARRIED_UNEVEN ? ranks + 1 : ranks);
    return index ? each : rows - (ranks - 1) * each;
}

uint64_t dtp_move_whole_of(const struct dtp_sweep_kind *kind, uint64_t bytes, uint32_t ranks)
{
    if (kind->collective == DTP_SEND_RECV)
        return bytes > PAGE_BYTES ? bytes / PAGE_BYTES * PAGE_BYTES : PAGE_BYTES;
    const uint64_t parts = kind->carried == DTP_CARRIED_UNEVEN ? ranks + 1 : ranks;
    const uint64_t sent = kind->carried == DTP_CARRIED_UNEVEN ? 2 * (ranks - 1) : ranks - 1; /* of them */
    const uint64_t part = bytes / sent;
    return (part > ROW_BYTES ? part / ROW_BYTES * ROW_BYTES : ROW_BYTES) * parts;
}

uint64_t dtp_move_sent_bytes(const struct dtp_sweep *s)
{
    const uint32_t others = s->group->ranks - 1;
    const uint64_t rows = s->whole_bytes / ROW_BYTES;
    if (!to_all(s))
        return s->whole_bytes;
    return others * ROW_BYTES *
           rows_for(s->kind, rows, s->group->ranks, s->kind->carried == DTP_CARRIED_UNEVEN ? 0 : others);
}

/* The fullest gets less than two wholes. */
uint64_t dtp_move_room_bytes(const struct dtp_sweep *s)
{
    return (s->kind->carried == DTP_CARRIED_UNEVEN ? 3 : 2) * s->whole_bytes;
}

void dtp_move_prepare(struct dtp_sweep *s)
{
    const uint32_t ranks = s->group->ranks;
    for (uint32_t r = 0; r < ranks && to_all(s); r++) {
        int32_t *begins = s->begins + r * (ranks + 1);
        begins[0] = 0;
        for (uint32_t i = 0; i < ranks; i++)
            begins[i + 1] = begins[i] + (int32_t)rows_for(s->kind, s->whole_bytes / ROW_BYTES, ranks, i);
    }
}

int dtp_move_fill(const struct dtp_sweep *s)
{
    return dtp_prober_fill(s->p, s->p->device_base, s->whole_bytes / element_bytes(s), 0, 1 + s->p->of->ranks.rank,
                           dtp_bind_element(s->kind->dtype));
}

static struct dtp_exchange exchange_of(const struct dtp_sweep *s)
{
    return (struct dtp_exchange){
        .begins = s->begins, .ranks = s->group->ranks, .experts = s->group->ranks, .row_bytes = (uint32_t)ROW_BYTES};
}

/* Rows of experts are our executor's alone; other rows are also read of runtimes whose transfers are NCCL's. */
struct dtp_collective_args dtp_move_arguments(const struct dtp_sweep *s)
{
    const struct dtp_group_place place = place_of(s);
    char *base = s->p->device_base;
    struct dtp_collective_args args = {.collective = s->kind->collective,
                                       .group = s->group_index,
                                       .input = base,
                                       .result = base + s->whole_bytes,
                                       .bytes = s->whole_bytes,
                                       .element = dtp_bind_element(s->kind->dtype),
                                       .by_library = s->kind->carried != DTP_CARRIED_UNEVEN};
    if (to_all(s))
        args.exchange = exchange_of(s);
    else if (s->kind->carried == DTP_CARRIED_AROUND)
        args.shifts = true;
    else
        args.receives = place.index == 1, args.peer = place.first + (1 - place.index) * place.stride;
    return args;
}

void dtp_move_received(const struct dtp_sweep *s, uint32_t index, uint64_t *at, uint64_t *from, uint64_t *count)
{
    const struct dtp_group_place place = place_of(s);
    *at = *from = 0, *count = s->whole_bytes / element_bytes(s);
    if (to_all(s)) {
        const struct dtp_exchange x = exchange_of(s);
        const struct dtp_exchange_piece piece = dtp_exchange_piece(&x, index, place.index, 0);
        const uint64_t row = ROW_BYTES / element_bytes(s);
        *at = piece.to * row, *from = piece.from * row, *count = piece.rows * row;
    } else if (s->kind->carried == DTP_CARRIED_AROUND ? (index + 1) % place.ranks != place.index
                                                      : !(place.index == 1 && index == 0)) {
        *count = 0;
    }
}
