/* What a runtime does in the closed form: its parts of traffic, time and memory beside the program. One set for each
 * runtime; NULL: what stands here for all of them, or nothing. */
#ifndef DTP_CLOSED_FORM_HOOKS_H
#define DTP_CLOSED_FORM_HOOKS_H

#include "closed/closed_form.h"
#include "closed/closed_form_timing.h"
#include "closed/memory_parts.h"
#include "closed/sharding.h"
#include "plan/comm_hook.h"

/* Inside of the closed form of communication: what runtimes add up there.
 *
 * Notation: psi parameters, N shard ranks, R replicas, K micro-steps, w bytes on the wire of gathered weights, r of
 * reduced gradients. Recomputation gathers nothing again: weights are gathered once for backward anyway. */
struct dtp_traffic {
    const struct dtp_transformer *transformer;
    const struct dtp_cluster *cluster;
    const struct dtp_plan *plan;
    struct dtp_units units;
    struct dtp_element_bytes bytes;
    uint64_t reductions; /* micro-steps that reduce gradients: K, or 1 with no_sync */
    struct dtp_communication *out;
};

/* One kind of collective over a group: `sent` bytes from each GPU in `count` operations; `stride`: ranks apart in rank
 * order (1: neighbours). A group of one rank sends nothing. */
void dtp_traffic_add(struct dtp_traffic *traffic, enum dtp_collective collective, uint64_t sent, uint64_t count,
                     uint64_t ranks, uint64_t stride);
/* What a ring sends of a tensor of `bytes` bytes over `ranks`: the shards of all others, bytes padded to whole ones. */
uint64_t dtp_traffic_ring(uint64_t bytes, uint64_t ranks);

/* What context parallel ranks send for attention, forward and backward; nothing without them. */
void dtp_context_traffic(struct dtp_traffic *traffic);
/* Seconds of that in the step, added to `time` kind by kind; returned what no core of attention hides. */
double dtp_context_add_time(const struct dtp_timing *timing, const struct dtp_communication *communication,
                            struct dtp_time *time);
struct dtp_context_moved dtp_context_moved_of(const struct dtp_transformer *transformer,
                                              const struct dtp_cluster *cluster, const struct dtp_plan *plan);

/* The GPUs with the same slice of the model, and the tensor parallel ranks beside each, who divide experts too. */
struct dtp_cluster dtp_expert_cluster(const struct dtp_cluster *cluster, const struct dtp_plan *plan);
/* Layers of experts whose forward runs again with the rows' exchanges. */
uint64_t dtp_expert_layers_again(const struct dtp_transformer *transformer, const struct dtp_plan *plan);
/* Rows that ranks which divide experts send each other, forward and backward; nothing without them. */
void dtp_expert_traffic_add(struct dtp_traffic *traffic, enum dtp_collective collective, const struct dtp_scales *sent,
                            uint64_t ranks, uint64_t stride);
void dtp_expert_traffic(struct dtp_traffic *traffic);
/* Seconds of that in the step and of these weights' collectives, added to `time` kind by kind; returned what nothing
 * hides: of the rows' exchanges, which stand between layers, and of the weights'; and what the
 * gathers of these take, hidden or not. */
struct dtp_expert_exposed {
    double rows_s, weights_s, gathers_s;
};
struct dtp_expert_exposed dtp_expert_add_time(const struct dtp_timing *timing,
                                              const struct dtp_communication *communication, struct dtp_time *time);

/* Buckets that PyTorch's DDP makes of gradients of `element_bytes` an element; under PowerSGD what it makes of them,
 * and how many buckets have matrices that are factored, and something that is sent whole. */
struct dtp_ddp_bucket_count {
    uint64_t count, factored_buckets, whole_buckets;
    uint64_t first_elements, largest_elements, last_elements; /* of the first, of those between, of the last */
    struct dtp_factored factored;
};
struct dtp_ddp_bucket_count dtp_traffic_ddp_buckets(const struct dtp_traffic *traffic, uint64_t element_bytes);
/* What PowerSGD makes of them, whatever the buckets: no layer is walked, for they are all alike. */
struct dtp_factored dtp_traffic_factored(const struct dtp_traffic *traffic);

/* Inside of memory.h: what stands beside a step program, reckoned by formulas and by hooks of the runtime. */
struct dtp_beside {
    const struct dtp_transformer *transformer;
    const struct dtp_cluster *cluster;
    const struct dtp_plan *plan;
    const struct dtp_live_bytes *live;
    struct dtp_units units;
    struct dtp_element_bytes bytes;
};

/* NCCL's kernels and the buffers of every communicator the strategy opens; its library alone. Each adds what it returns
 * to the list, part by part. */
uint64_t dtp_nccl_bytes(const struct dtp_beside *beside, struct dtp_memory_list *list);
uint64_t dtp_nccl_library_bytes(struct dtp_memory_list *list);

/* One rank's part of a plan with tensor or pipeline parallelism. */
struct dtp_slice {
    struct dtp_transformer transformer;
    struct dtp_cluster cluster;
    struct dtp_plan plan;
};

/* What tensor parallel ranks send: in a micro-step so many gathers and so many scattered sums of all rows of the
 * stream, gathers of what the loss needs, `small_bytes` in all, and sums of what adapters need; in a step sums of
 * gradients and of squares. */
struct dtp_tensor_traffic {
    uint64_t gathers, sums, small_gathers, small_bytes, small_sums, small_sum_bytes;
    uint64_t reductions, reduced_bytes;
    /* In which each gather and each sum of the stream's rows comes: as many collectives. 0: one. */
    uint64_t chunks;
    /* With tp_overlap: gathers and sums among those of a micro-step that have a product beside them, and the shares of
     * the FLOPs of all products of the blocks' forward and backward that are beside each. */
    uint64_t gathers_beside, sums_beside;
    double gather_shares[2], sum_shares[2];
};

struct dtp_closed_form_hooks {
    /* ---- memory beside the program ---- */
    /* Of a plan that offloads: what stands on host and NVMe, and of what stays on the GPU. `shard`: elements of a
     * rank's. */
    void (*offload_state)(const struct dtp_transformer *transformer, const struct dtp_units *units,
                          const struct dtp_plan *plan, const struct dtp_element_bytes *bytes, uint64_t shard,
                          struct dtp_state_bytes *out);
    /* Of what stands on the GPU, what is made with the runtime's engine and not by the first step, beside parameters,
     * gradients that are known to be (memory.c) and workspaces. */
    uint64_t (*first_bytes)(const struct dtp_beside *beside);
    /* Segments of the caching allocator beyond the tensors of each pool and fragments. `made_anew` gets bytes of
     * tensors among them that were laid anew after the first step, 0 before the call. */
    uint64_t (*own_segments)(const struct dtp_beside *beside, struct dtp_memory_list *list, uint64_t *made_anew);
    /* NCCL's bytes of several ranks, in place of one library and a communicator for each group. */
    uint64_t (*nccl)(const struct dtp_beside *beside, struct dtp_memory_list *list);
    /* Communicators beside those of the world, of shard and replicate groups and of a group that is resharded to. */
    uint32_t (*more_communicators)(const struct dtp_plan *plan, const struct dtp_cluster *cluster);

    /* ---- communication ---- */
    void (*traffic)(struct dtp_traffic *traffic);
    /* Neighbours that share a second copy of the parameters after their first gather; 1: none do. */
    uint32_t (*second_copy_ranks)(const struct dtp_plan *plan);
    bool exchanges_by_node; /* all-to-alls are within nodes, then between them; else over the shard group */

    /* ---- time ---- */
    /* The step's work as the runtime counts it; NULL: by block_work.h. */
    void (*work)(const struct dtp_transformer *transformer, const struct dtp_cluster *cluster,
                 const struct dtp_plan *plan, struct dtp_step_work *out);
    /* Changes bytes that the device moves for each element that is gathered, 2 w, and that is reduced: casts to what
     * goes over the wire and back. */
    void (*add_wire_casts)(const struct dtp_timing *timing, double *per_gather, double *per_reduce);
    /* Bytes that the device moves for each element of gradients in a micro-step, which reduces or not, beside what made
     * them; 0: as the rules of the plan say. */
    double (*gradient_bytes)(const struct dtp_plan *plan, bool reduces);
    /* Seconds of the optimizer's step beside the update itself and its collectives. */
    double (*beside_update_s)(const struct dtp_timing *timing);
    /* Seconds of collectives that no window hides, and of offload that a step waits for (not of NVMe's). */
    double (*exposed_s)(struct dtp_timing *timing, const struct dtp_time *time, const struct dtp_windows *window);
    double (*exposed_offload_s)(const struct dtp_timing *timing, const struct dtp_communication *communication,
                                const struct dtp_windows *window, const struct dtp_time *time, double bytes_per_s,
                                double adam_s);
    /* Whether copies to the host stand in the way of what runs on the GPU; sums of gradients go up again with them. */
    bool (*copies_block)(const struct dtp_plan *plan);
    bool sums_go_up;

    /* ---- tensor and pipeline parallelism ---- */
    /* One rank's slice as a data-parallel job of its own; NULL: the runtime has no such plans. */
    void (*slice)(const struct dtp_transformer *transformer, const struct dtp_cluster *cluster,
                  const struct dtp_plan *plan, struct dtp_slice *out);
    /* Of a slice, what its rank sends to those that have the others; NULL: as Megatron-LM's (model_parallel.h). */
    void (*tensor_traffic)(const struct dtp_slice *slice, struct dtp_tensor_traffic *out);
    /* Gradients of the table that a pipeline's first and last stage have both, as they send them each other; NULL: of
     * its rows alone, of all of them. */
    uint64_t (*table_gradient_bytes)(const struct dtp_slice *slice);
    /* Whether a stage's last backward waits for the sums of its gradients before it sends. NULL: none does. */
    bool (*sums_before_sending)(const struct dtp_plan *plan);
    /* What the slice's prediction becomes among all the others: traffic, time and throughput; memory. DTP_ENVIRONMENT:
     * no memory for a pipeline's passes. */
    enum dtp_status (*add_stages)(const struct dtp_transformer *transformer, const struct dtp_cluster *cluster,
                                  const struct dtp_plan *plan, struct dtp_prediction *prediction);
    void (*add_stages_memory)(const struct dtp_transformer *transformer, const struct dtp_cluster *cluster,
                              const struct dtp_plan *plan, struct dtp_memory *memory);
};

#endif
