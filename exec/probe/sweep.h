/* A collective over sizes (probe_collectives.c), and what of it moves rows from rank to rank without adding them up
 * (probe_moves.c). */
#ifndef DTP_PROBE_SWEEP_H
#define DTP_PROBE_SWEEP_H

#include "probe/prober.h"

/* A GPU's link does not ask what the bytes are; a processor that adds them up does. */
struct dtp_sweep_kind {
    enum dtp_collective collective;
    enum dtp_carried carried;
    enum dtp_dtype dtype;
};

struct dtp_sweep {
    struct dtp_prober *p;
    const struct dtp_program_group *group;
    uint32_t group_index;
    const struct dtp_sweep_kind *kind;
    uint64_t whole_bytes; /* what is gathered, scattered, reduced; what each rank sends around, or has for all others */
    int32_t *begins;      /* of an all_to_all: [ranks, ranks + 1], where each rank's rows for each other begin */
    bool filled;          /* what moves leaves its input as it was, and is filled once */
    void *events[2];
};

/* Whether it is one that only moves: send_recv of pairs of neighbours, around a ring, all_to_all even and not. */
static inline bool dtp_sweep_moves(const struct dtp_sweep_kind *kind)
{
    return kind->collective == DTP_SEND_RECV || kind->collective == DTP_ALL_TO_ALL;
}
/* Whether the group has it: a plain send_recv is of two ranks. */
static inline bool dtp_sweep_has(const struct dtp_sweep_kind *kind, const struct dtp_program_group *group)
{
    return kind->collective != DTP_SEND_RECV || kind->carried != DTP_CARRIED_PLAIN || group->ranks == 2;
}

/* ---- of those that move ---- */

/* A whole of which a rank sends, or where they are uneven the fullest gets, about that much. */
uint64_t dtp_move_whole_of(const struct dtp_sweep_kind *kind, uint64_t bytes, uint32_t ranks);
/* What that is exactly, as the row says it. */
uint64_t dtp_move_sent_bytes(const struct dtp_sweep *s);
/* Device memory that it takes, from the prober's base on: what is sent, then what comes. */
uint64_t dtp_move_room_bytes(const struct dtp_sweep *s);
/* Fills s->begins for this size. */
void dtp_move_prepare(struct dtp_sweep *s);
/* Random numbers of this rank. A code of the device. */
int dtp_move_fill(const struct dtp_sweep *s);
struct dtp_collective_args dtp_move_arguments(const struct dtp_sweep *s);
/* Elements of what came from the group's member `index`: *count from *at in the result, which were its own from *from
 * on; 0 of whom none came. */
void dtp_move_received(const struct dtp_sweep *s, uint32_t index, uint64_t *at, uint64_t *from, uint64_t *count);

#endif
