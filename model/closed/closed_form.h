/* The closed form: memory, communication and step time of a plan from formulas in N, L, B, T and ranks.
 *
 * It never walks a step program, so that it can check one. A call allocates nothing, reads no file and no global, and
 * takes a few microseconds. Notation of the comments: psi parameters, P parameters of one sharding unit, N shard ranks,
 * R replicas, K micro-steps, T tokens per micro-step per GPU, w bytes of the compute dtype, r of the reduce dtype.
 *
 * The inputs must have passed dtp_transformer_check, dtp_cluster_check and dtp_plan_resolve. */
#ifndef DTP_CLOSED_FORM_H
#define DTP_CLOSED_FORM_H

#include "base/words.h"
#include "machine/machine.h"
#include "plan/plan.h"
#include "net/transformer.h"

/* ---- memory ---------------------------------------------------------------------------------------------------- */

/* Whether a plan fits, judged in one place (dtp_memory_judge) by the device figure, what nvidia-smi would show:
 *   fits   DTP_MARGIN_PERCENT of the GPU stay free
 *   tight  it runs, without that margin: the device figure leaves less, or exceeds the GPU only by segments of the
 *          caching allocator, which gives them back before it fails (slowly: it synchronises), because the tensors with
 *          context and NCCL fit
 *   oom    tensors, context and NCCL alone exceed the GPU
 *
 * What is offloaded is judged likewise, by the node's host memory and NVMe; the worst of the three counts. A tight plan
 * ranks behind every plan that fits, and is no failure: exit status 0. */
#define DTP_MARGIN_PERCENT 5u
enum dtp_verdict { DTP_VERDICT_FITS, DTP_VERDICT_TIGHT, DTP_VERDICT_OOM };
/* What is short where a plan does not fit: the reason of its verdict. */
enum dtp_shortage {
    DTP_SHORT_OF_NOTHING,
    DTP_SHORT_OF_MARGIN,  /* tight: the device figure is below the capacity, with less than the margin */
    DTP_SHORT_OF_CACHE,   /* tight: the device figure is above the capacity, tensors, context and NCCL are not */
    DTP_SHORT_OF_TENSORS, /* oom */
    DTP_SHORT_OF_HOST,    /* tight or oom, as are those of NVMe */
    DTP_SHORT_OF_NVME
};

/* Bytes on one GPU (the one with most), host and NVMe bytes per node. */
struct dtp_memory {
    uint64_t phase_bytes[DTP_PHASE_COUNT][DTP_OWNER_COUNT];
    uint64_t phase_total_bytes[DTP_PHASE_COUNT];
    enum dtp_phase peak_phase;
    /* Largest resident amount of each, whatever the phase: what "the gradients take" means. */
    uint64_t params_bytes, grads_bytes, optimizer_bytes, activations_bytes;
    uint64_t temporary_bytes;      /* at the peak: everything that is none of the four above */
    uint64_t after_init_bytes;     /* allocated before the first step (no optimizer state, no gradients) */
    uint64_t allocated_peak_bytes; /* tensors: the largest phase total */
    uint64_t reserved_peak_bytes;  /* the caching allocator's segments */
    uint64_t device_peak_bytes;    /* plus CUDA context and NCCL: what the driver reports as used */
    uint64_t context_bytes, nccl_bytes;
    uint64_t capacity_bytes;
    uint64_t host_bytes, nvme_bytes; /* per node; pinned host buffers as the runtime's allocator rounds them */
    uint64_t host_capacity_bytes, nvme_capacity_bytes; /* of a node; 0: not stated, and not judged */
    enum dtp_verdict verdict;                          /* the worst of GPU, host and NVMe */
    enum dtp_shortage shortage;                        /* and why */
};

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
    uint64_t host_to_device_bytes, device_to_host_bytes;
    uint64_t total_bytes;               /* sum over collectives; host copies are not in it */
    uint64_t link_bytes, network_bytes; /* of total: over the node's own links | over the network, per GPU */
};

/* ---- time ------------------------------------------------------------------------------------------------------ */

struct dtp_time {
    double matmul_s, attention_s, memory_bound_s, loss_s, recompute_s; /* device time of a step (K micro-steps) */
    double host_launch_s; /* time the CPU needs to issue the step; > device time: launch bound */
    double compute_s;     /* forward + backward on the device, including launch gaps */
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

struct dtp_prediction {
    struct dtp_memory memory;
    struct dtp_communication communication;
    struct dtp_time time;
    struct dtp_throughput throughput;
};

void dtp_closed_form_memory(const struct dtp_transformer *transformer, const struct dtp_cluster *cluster,
                            const struct dtp_plan *plan, struct dtp_memory *out);
void dtp_closed_form_communication(const struct dtp_transformer *transformer, const struct dtp_cluster *cluster,
                                   const struct dtp_plan *plan, struct dtp_communication *out);
void dtp_closed_form_time(const struct dtp_transformer *transformer, const struct dtp_cluster *cluster,
                          const struct dtp_plan *plan, const struct dtp_communication *communication,
                          struct dtp_time *out, struct dtp_throughput *throughput);
/* FLOPs that a GPU's matmuls and attention do in a step: the model's, what flash attention's backward forms again, and
 * what checkpointing replays. What HFU counts. */
double dtp_closed_form_hardware_flops(const struct dtp_transformer *transformer, const struct dtp_cluster *cluster,
                                      const struct dtp_plan *plan);
/* All three. */
void dtp_closed_form(const struct dtp_transformer *transformer, const struct dtp_cluster *cluster,
                     const struct dtp_plan *plan, struct dtp_prediction *out);

/* Sets verdict and shortage from the peaks of tensors and device, context, NCCL and the capacities. */
void dtp_memory_judge(struct dtp_memory *memory);

const char *dtp_verdict_text(enum dtp_verdict verdict);
const char *dtp_shortage_text(enum dtp_shortage shortage); /* "margin", "allocator_cache", ...; "" for nothing */
/* "0.31 GiB to spare, fragmentation may tip it over": how much is left or missing, and of what. */
void dtp_memory_words(const struct dtp_memory *memory, char *out, size_t bytes);

#endif
