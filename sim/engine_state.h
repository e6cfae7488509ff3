/* What the event loop (engine.c) knows at a time, of each role and of all; steady.c moves it on by many periods. */
#ifndef DTP_ENGINE_STATE_H
#define DTP_ENGINE_STATE_H

#include "sim/engine.h"

struct dtp_steady;

struct running {
    uint32_t op;
    double end_s;                  /* if speeds stay as they are */
    double speed, since_s, left_s; /* left_s: seconds at full speed left at since_s */
    double seconds;                /* alone */
    struct dtp_usage usage;        /* once it has run beside another */
    bool usage_known;
};

/* Kept of the operations met last: what those that are alike (dtp_op_seconds_all) use when they take so many seconds.
 */
#define USAGES_KNOWN 64u
struct known_usage {
    double seconds; /* 0: none yet, for what takes none uses nothing */
    uint32_t alike;
    struct dtp_usage usage;
};

struct engine {
    const struct dtp_engine_job *job;
    const struct dtp_engine_graph *graph;
    const struct dtp_engine_op *ops;
    uint32_t count, done, *pending;
    struct running running[DTP_STREAM_COUNT];
    size_t running_count;
    uint32_t arrived[DTP_STREAM_COUNT]; /* transfers that were launched and wait for their other end */
    size_t arrived_count;
    uint32_t waiting[DTP_STREAM_COUNT]; /* per stream: operation whose predecessors are done, which has not started */
    uint32_t waiting_streams;           /* a bit for each that has one */
    bool changed;                       /* the set of running operations, since speeds were shared */
    /* The host thread runs ahead of the device until a HOST_WAIT stops it. */
    uint32_t next_issue;
    double host_s;
    bool host_blocked;
    struct known_usage known[USAGES_KNOWN];
    struct clock *clock; /* of all roles of the set */
    bool touched;        /* something in it happened now */
    /* For steady.h. */
    uint32_t last_done[DTP_STREAM_COUNT]; /* per stream, which does one after the other; DTP_NO_INDEX: none yet */
    uint32_t finished_count;              /* transfers through at this end alone */
    uint32_t mark;                        /* operation at whose end the state is looked at; DTP_NO_INDEX: none */
};

/* Roles in which something happens are few at any time; the others keep the time of their next event. Those times are
 * the leaves of a tree in which each node has the earlier one of its two children: node 1 is the root, of node n the
 * children are 2n and 2n + 1, and role r is leaf `leaves` + r. */
struct clock {
    double now_s, *next_s;
    struct engine *roles, **touched;
    uint32_t role_count, touched_count, leaves; /* leaves: a power of 2; those beyond the roles never come */
    struct dtp_steady *steady;                  /* NULL: nothing repeats */
};

static inline void touch(struct engine *e)
{
    if (e->touched)
        return;
    e->touched = true;
    e->clock->touched[e->clock->touched_count++] = e;
}

/* What stands in `pending` of a transfer that waits for its other end, to start or to end. */
#define ARRIVED UINT32_MAX
#define FINISHED (UINT32_MAX - 1)

#endif
