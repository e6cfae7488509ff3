/* What one operation of a program costs when it runs alone, and what it uses of the machine while it does.
 *
 * The same cost functions as the closed form's (op_cost.h, collective_cost.h), prepared once per job so that an
 * operation costs some ten nanoseconds to price. */
#ifndef DTP_OP_TIME_H
#define DTP_OP_TIME_H

#include "cost/collective_choice.h"
#include "sim/measured_time.h"
#include "program/program_set.h"
#include "sim/share.h"

enum dtp_host_call { DTP_HOST_GROUP, DTP_HOST_HOOK, DTP_HOST_EXCHANGE, DTP_HOST_COMPILED, DTP_HOST_CALLS };

struct dtp_op_rates {
    const struct dtp_cluster *cluster;     /* borrowed, like the program's groups */
    const struct dtp_execution *execution; /* the program's */
    double memory_kernel_bytes_per_s[DTP_MEMORY_KERNEL_COUNT];
    struct dtp_pass_rates passes; /* of DTP_KERNEL_PASS, beside their bytes */
    double copy_bytes_per_s, host_optimizer_bytes_per_s, storage_read_bytes_per_s, storage_write_bytes_per_s;
    double host_memory_bytes_per_s; /* one GPU's share of the node's; 0 unknown */
    double matmul_share;            /* of the SMs */
    double accumulated_bytes_per_s; /* of sums that matmuls add to */
    double gap_s, launch_s;         /* device and host time per kernel */
    double plain_launch_s;          /* the same of what is plain (dtp_op_is_plain) */
    double collective_launch_s;     /* the same of collectives */
    double loop_launch_s;           /* the same of a library's loop (DTP_ISSUE_LOOPED) */
    double call_s[DTP_HOST_CALLS];  /* host time of what launches nothing */
    struct dtp_group_rates {
        struct dtp_collective_cost cost[DTP_COLLECTIVE_COUNT];
        struct dtp_collective_cost carried[DTP_CARRIED_COUNT]; /* of the collective that goes so; none of the plain */
        double link_s_per_byte[DTP_COLLECTIVE_COUNT];          /* where nothing but links limits it */
        double link_use, network_use;                          /* at the bus rate */
        struct dtp_collective_load load[DTP_COLLECTIVE_COUNT], carried_load[DTP_CARRIED_COUNT];
    } * group;
    size_t group_count;
    struct dtp_group_rates *peer;      /* of transfers with each role of a set; NULL: as of their group */
    const struct dtp_program *program; /* borrowed */
    const struct dtp_op *ops;          /* its */
    double *measured_s;                /* one per operation, NAN: by formula; NULL: the machine was not measured */
    bool kernels_alike;                /* what collectives cost kernels was measured of all kinds of them together */
    double copy_duplex;                /* a copy's time while the other direction works too / alone */
};

/* Caller frees with dtp_op_rates_release, but after a failure, which is want of memory. Inputs are borrowed until then.
 */
enum dtp_status dtp_op_rates_prepare(const struct dtp_program *program, const struct dtp_cluster *cluster,
                                     struct dtp_op_rates *out, struct dtp_faults *faults);
/* The program is `role`'s of a set: transfers cost what lies between its ranks and the peer's. False: no memory. */
bool dtp_op_rates_place(struct dtp_op_rates *rates, const struct dtp_program_set *set, uint32_t role);
void dtp_op_rates_release(struct dtp_op_rates *rates);

/* Seconds alone on its stream, gaps between its kernels included; 0 for events. */
double dtp_op_seconds(const struct dtp_op_rates *rates, const struct dtp_op *op);
/* Whether it takes in proportion to the rows of tokens that come to the rank's experts: products, activations and
 * exchanges of these, of programs of our executor. */
bool dtp_op_has_expert_rows(const struct dtp_op *op);
/* Of a matmul, or attention, that takes `seconds`: what a thread block needs for its tile, of 128 x 256 elements or 128
 * queries of a head, as libraries' kernels for Hopper have them; 0 of others. */
double dtp_op_tile_s(const struct dtp_op_rates *rates, const struct dtp_op *op, double seconds);

/* The same of each operation of the program; alike[i] (NULL: not asked): the number of one that costs and uses the same
 * as i, whose own it is where none is known. */
void dtp_op_seconds_all(const struct dtp_op_rates *rates, double *out, uint32_t *alike);

/* Gaps between kernels that the device idles in: those of grouped matmuls in a loop are on several streams (Transformer
 * Engine's four, multi_stream.cpp), where one begins in the other's tail. */
static inline double dtp_op_gaps(bool grouped, uint32_t kernels)
{
    return grouped && kernels ? 1 : kernels;
}
/* Host seconds of each kernel of what is issued so, whose first takes one_s; of those of a loop on average, of which
 * all but the first are plain launches. */
static inline double dtp_op_issued_s(const struct dtp_op_rates *rates, uint8_t issue, uint32_t kernels, double one_s)
{
    switch (issue) {
    case DTP_ISSUE_LOOPED: return kernels ? (one_s + (kernels - 1) * rates->loop_launch_s) / kernels : 0;
    case DTP_ISSUE_REPLAYED: return 0;
    default: return one_s;
    }
}
/* What the device idles in before kernels that compute: gaps, of which launch_s each is the host's where that waits for
 * one before it launches the next (launch_blocking), and none begins in another's tail then. */
static inline double dtp_op_idle_s(const struct dtp_op_rates *rates, bool grouped, uint32_t kernels, double launch_s)
{
    return rates->execution->launch_blocking ? kernels * (rates->gap_s + launch_s)
                                             : dtp_op_gaps(grouped, kernels) * rates->gap_s;
}
/* The same in a step, of what takes `alone_s` at the sustained rate: kernels are those of the slowest rank, `factor`
 * times as long, and tensor cores run `speedup` times as fast by what power allows. */
double dtp_op_in_step_s(const struct dtp_op_rates *rates, const struct dtp_op *op, double alone_s, double factor,
                        double speedup);
/* The same of a kernel that computes, with `gaps_s` between its launches; `tensor`: on tensor cores at the power limit.
 */
static inline double dtp_kernel_in_step_s(bool tensor, double gaps_s, double alone_s, double factor, double speedup)
{
    if (tensor)
        alone_s = (alone_s - gaps_s > 0 ? alone_s - gaps_s : 0) / speedup + gaps_s;
    return alone_s * factor;
}

/* What the speed-up of what is at the power limit follows from (dtp_matmul_speedup): tensor cores and all else that
 * computes, gaps between kernels as else; `alone_s` is of each of the program's operations. */
struct dtp_kernel_sums {
    double matmul_s, lighter_s, other_s; /* attention that does not speed up is in other_s */
};
struct dtp_kernel_sums dtp_op_sum_kernels(const struct dtp_op_rates *rates, const double *alone_s);
/* That speed-up, where besides tensor cores the step takes other_s. */
double dtp_kernel_speedup(const struct dtp_cluster *cluster, const struct dtp_kernel_sums *sums, double other_s);

/* What it uses at the speed at which it takes `seconds` > 0. */
struct dtp_usage dtp_op_usage(const struct dtp_op_rates *rates, const struct dtp_op *op, double seconds);

/* What a transfer that has been launched uses until its other end comes: its thread blocks' SMs; none up to Ampere. */
struct dtp_usage dtp_op_waiting_usage(const struct dtp_op_rates *rates, const struct dtp_op *op);

/* What a kernel's speed is beside transfers that hold `share` of the SMs throughout, / what it is where they take turns
 * for them: a matmul's goes by waves of tiles (op_cost.h), of those SMs that it is made for; others': 1. */
double dtp_op_waves_beside_waiting(const struct dtp_op_rates *rates, const struct dtp_op *op, double share);

/* A collective's speed beside kernels, of its speed alone; 1 for other operations. */
double dtp_op_speed_beside_kernels(const struct dtp_op_rates *rates, const struct dtp_op *op);

/* What works on tensors of the rank alone where others are DTensors, in torchtitan's plan: all between matmuls, norms
 * and loss, whose results are made local. */
bool dtp_op_is_plain(const struct dtp_op *op);
/* 1 + enum dtp_host_call; 0: it is none. */
uint8_t dtp_op_host_call(const struct dtp_op *op);
/* True for kernels that compute: matmul, attention, memory-bound. */
static inline bool dtp_op_is_kernel(const struct dtp_op *op)
{
    enum dtp_op_class class = dtp_op_kind_class(op->kind);
    return class == DTP_CLASS_MATMUL || class == DTP_CLASS_ATTENTION || class == DTP_CLASS_MEMORY;
}

#endif
