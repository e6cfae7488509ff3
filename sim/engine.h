/* The event loop: given how long each operation takes alone, when does it run beside the others?
 *
 * An operation starts when the host has issued its first kernel, the one before it on its stream and in its
 * communicator is done, and its dependencies are done. All of these come earlier in the list, so there is always one
 * that can start. At most one operation per stream runs; whenever that set changes, speeds are shared anew (share.h).
 *
 * Several roles of a program set run beside each other on one clock, each on a GPU and a host of its own. A transfer
 * starts when both its ends can, and ends when the slower end does. */
#ifndef DTP_ENGINE_H
#define DTP_ENGINE_H

#include "base/host_arena.h"
#include "sim/op_time.h"
#include "sim/simulate.h"

/* Operations that repeat: each of [first, end) is like the one `length` before it, and is waited for likewise
 * (steady.h). length 0: none do. */
struct dtp_engine_period {
    uint32_t first, end, length;
};

/* Arrays of one entry per operation. */
struct dtp_engine_job {
    const struct dtp_program *program;
    const struct dtp_op_rates *rates;
    const double *seconds; /* alone */
    bool contention;
    double begin_s;          /* its host begins to issue */
    struct dtp_span *span;   /* out */
    uint32_t *cause;         /* out: operation, DTP_CAUSE_HOST or DTP_CAUSE_NONE */
    double *issue_s;         /* out: when the host had issued its first kernel */
    double *starved_s;       /* out: part of the span in which it waits for its later kernels to be launched */
    const uint32_t *partner; /* of transfers: the operation at the other end (program_set.h); NULL: a role alone */
    struct dtp_engine_period period;
    size_t *repeated_count; /* out: operations whose times are those of others one period or several before */
};

/* Of an operation, what is asked again and again. */
struct dtp_engine_op {
    uint32_t kernels, alike; /* alike: an operation that uses the same in the same time (dtp_op_seconds_all) */
    uint16_t peer;
    uint8_t stream;
    bool waits : 1;    /* it stops the host */
    bool computes : 1; /* it is a kernel that computes */
    bool tensor : 1;
    bool grouped : 1; /* a matmul of experts */
    bool plain : 1;   /* dtp_op_is_plain: what issues others otherwise */
    bool collective : 1;
    uint8_t issue : 2; /* enum dtp_issue */
    uint8_t calls : 3; /* the host's own work, which launches nothing: 1 + enum dtp_host_call; or 0 */
};

/* Host seconds of each of its kernels. */
static inline double dtp_engine_launch_s(const struct dtp_op_rates *rates, const struct dtp_engine_op *op)
{
    double one_s = op->calls        ? rates->call_s[op->calls - 1]
                   : op->collective ? rates->collective_launch_s
                   : op->plain      ? rates->plain_launch_s
                                    : rates->launch_s;
    return dtp_op_issued_s(rates, op->issue, op->kernels, one_s);
}

/* What does not change between passes over the same program: who waits for whom. Lies in `arena`. `one_by_one`: every
 * operation also waits for the one before it in the list, whatever streams they are on; so cores of a host do, and a
 * host that waits for every kernel (launch_blocking). */
struct dtp_engine_graph {
    struct dtp_engine_op *ops; /* per operation */
    uint32_t *predecessors;    /* per operation: how many must be done */
    uint32_t *first_edge;      /* per operation, and one behind the last: its first edge to a successor */
    uint32_t *successor;       /* per edge; those of an operation one behind the other, the last in the list first */
};
/* False: no memory. */
bool dtp_engine_link(const struct dtp_program *program, bool one_by_one, struct dtp_host_arena *arena,
                     struct dtp_engine_graph *out);

/* Runs `count` roles, in the order of their set, which dtp_program_set_verify accepts; `graph` and `pending`
 * (scratch of one entry per operation) are of each. False: no memory. */
bool dtp_engine_run(const struct dtp_engine_job *job, const struct dtp_engine_graph *graph, uint32_t *const *pending,
                    uint32_t count);

#endif
