/* The closed form: communication and step time of a plan from formulas in N, L, B, T and ranks. Memory is that of its
 * step program (memory.h, job/estimate.h).
 *
 * It never walks a step program, so that it can check one. A call reads no file and no global, takes a few microseconds
 * and allocates nothing; of a pipeline it walks the schedule's passes with what stages take (pipeline_time.h), which
 * takes from a tenth of a millisecond to some milliseconds with ranks and chunks, most where an order is searched.
 * Notation of the comments: psi parameters, P parameters of one sharding unit, N shard ranks, R replicas, K
 * micro-steps, T tokens per micro-step per GPU, w bytes of the compute dtype, r of the reduce dtype.
 *
 * The inputs must have passed dtp_transformer_check, dtp_cluster_check and dtp_plan_resolve. */
#ifndef DTP_CLOSED_FORM_H
#define DTP_CLOSED_FORM_H

#include "base/words.h"
#include "closed/memory.h"
#include "machine/machine.h"
#include "net/transformer.h"
#include "plan/plan.h"

/* ---- communication --------------------------------------------------------------------------------------------- */

/* Bytes each GPU sends per optimizer step (ring accounting: B(n-1)/n for all-gather and reduce-scatter of B bytes over
 * n ranks, twice that for all-reduce). */
struct dtp_communication {
    uint64_t bytes[DTP_COLLECTIVE_COUNT];
    uint64_t count[DTP_COLLECTIVE_COUNT];
    uint64_t narrow_gather_bytes, narrow_gather_count; /* of all_gather: within the group that a plan reshards to, or
                                                          keeps a second copy in */
    uint64_t narrow_exchange_bytes, narrow_exchange_count; /* of all_to_all: within a node */
    /* Of these, ZeRO++'s scales, collectives of their own and thousands of times smaller than those of the values:
     * gathered in the shard group, in the narrow one; exchanged between nodes, within one. */
    struct dtp_scales {
        uint64_t bytes, count;
    } gather_scales, narrow_gather_scales, exchange_scales, narrow_exchange_scales;
    struct dtp_scales experts[DTP_COLLECTIVE_COUNT]; /* of these, of weights and rows of experts that ranks divide */
    struct dtp_scales expert_rows; /* and, of all-gathers and as many reduce-scatters, rows for parts of one expert */
    struct dtp_scales context[DTP_COLLECTIVE_COUNT]; /* of these, what context parallel ranks send for attention */
    uint64_t host_to_device_bytes, device_to_host_bytes;
    uint64_t total_bytes;               /* sum over collectives; host copies are not in it */
    uint64_t link_bytes, network_bytes; /* of total: over the node's own links | over the network, per GPU */
};

/* ---- time ------------------------------------------------------------------------------------------------------ */

struct dtp_time {
    double matmul_s, attention_s, memory_bound_s, loss_s, recompute_s; /* device time of a step (K micro-steps) */
    double host_launch_s; /* time the CPU needs to issue the step; > device time: launch bound */
    double compute_s;     /* forward + backward on the device, including launch gaps */
    double launch_wait_s; /* of compute_s: the device idles, for the host has not issued the next kernel yet */
    double beside_s;      /* of compute_s: other streams' kernels alone, and what they slow; formulas do not tell it */
    double optimizer_s;
    double communication_s; /* all collectives, as if nothing overlapped */
    double offload_s;       /* all host copies, as if nothing overlapped */
    double exposed_communication_s, exposed_offload_s, bubble_s;
    double step_s;                                    /* best estimate */
    double step_perfect_overlap_s, step_no_overlap_s; /* the bound pair around it */
    double collective_s[DTP_COLLECTIVE_COUNT];
};

struct dtp_throughput {
    double tokens_per_s, tokens_per_s_per_gpu, flops_per_s_per_gpu, mfu, hfu;
};

#define DTP_PREDICTED_STAGES 16 /* of a pipeline, from the first on */
struct dtp_prediction {
    struct dtp_memory memory;
    uint64_t stage_allocated_bytes[DTP_PREDICTED_STAGES]; /* peaks of each stage; 0: not known, or there are no more */
    struct dtp_communication communication;
    struct dtp_time time;
    struct dtp_throughput throughput;
};

void dtp_closed_form_communication(const struct dtp_transformer *transformer, const struct dtp_cluster *cluster,
                                   const struct dtp_plan *plan, struct dtp_communication *out);
void dtp_closed_form_time(const struct dtp_transformer *transformer, const struct dtp_cluster *cluster,
                          const struct dtp_plan *plan, const struct dtp_communication *communication,
                          struct dtp_time *out, struct dtp_throughput *throughput);
/* FLOPs that a GPU's matmuls and attention do in a step: the model's, what flash attention's backward forms again, and
 * what checkpointing replays. What HFU counts. */
double dtp_closed_form_hardware_flops(const struct dtp_transformer *transformer, const struct dtp_cluster *cluster,
                                      const struct dtp_plan *plan);
/* Both, with throughput; memory is left as it is. DTP_ENVIRONMENT, of a plan with a pipeline alone: no memory for the
 * passes of its schedule. */
enum dtp_status dtp_closed_form(const struct dtp_transformer *transformer, const struct dtp_cluster *cluster,
                                const struct dtp_plan *plan, struct dtp_prediction *out);

#endif
