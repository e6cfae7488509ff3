/* What a runtime does in the closed form: its parts of memory, traffic and time. One set for each runtime; NULL: what
 * stands here for all of them, or nothing. */
#ifndef DTP_CLOSED_FORM_HOOKS_H
#define DTP_CLOSED_FORM_HOOKS_H

#include "closed/closed_form_counted.h"
#include "closed/closed_form_timing.h"
#include "closed/memory_instant.h"
#include "closed/traffic.h"

/* Launches of a block's forward and backward, those of RoPE and of bias gradients besides; of embedding, head and loss.
 */
struct dtp_kernel_counts {
    double forward, rotary_forward, backward, rotary_backward, biases_backward, root;
};

struct dtp_closed_form_hooks {
    /* ---- memory ---- */
    bool own_blocks; /* blocks are weighed by the runtime itself: block_places.h is not asked */
    /* Fills counts->own, when all else is counted. */
    void (*count)(const struct dtp_transformer *transformer, const struct dtp_cluster *cluster,
                  const struct dtp_plan *plan, struct dtp_counts *counts);
    /* All instants of the step, each by dtp_memory_consider. */
    void (*memory)(struct dtp_memory_job *job);
    /* Of a plan that offloads: what stands on host and NVMe, and of what stays on the GPU. `shard`: elements of a
     * rank's. */
    void (*offload_state)(const struct dtp_transformer *transformer, const struct dtp_units *units,
                          const struct dtp_plan *plan, const struct dtp_element_bytes *bytes, uint64_t shard,
                          struct dtp_state_bytes *out);
    /* Segments of the caching allocator beside the compute stream's pool: those of other streams, and what stands in
     * the place of tensors that were laid anew. */
    uint64_t (*other_pools)(const struct dtp_memory_job *job, struct dtp_part_chain *chain);
    uint64_t (*made_anew)(const struct dtp_memory_job *job, struct dtp_part_chain *chain);
    /* NCCL's bytes of several ranks, in place of one library and a communicator for each group. */
    uint64_t (*nccl)(const struct dtp_memory_job *job, struct dtp_part_chain *chain);
    /* Communicators beside those of the world, of shard and replicate groups and of a group that is resharded to. */
    uint32_t (*more_communicators)(const struct dtp_plan *plan, const struct dtp_cluster *cluster);

    /* ---- communication ---- */
    void (*traffic)(struct dtp_traffic *traffic);
    /* Neighbours that share a second copy of the parameters after their first gather; 1: none do. */
    uint32_t (*second_copy_ranks)(const struct dtp_plan *plan);
    bool exchanges_by_node; /* all-to-alls are within nodes, then between them; else over the shard group */

    /* ---- time ---- */
    const struct dtp_kernel_counts *kernels; /* NULL: PyTorch's */
    /* The step's work as the runtime counts it; NULL: by block_work.h. */
    void (*work)(const struct dtp_transformer *transformer, const struct dtp_cluster *cluster,
                 const struct dtp_plan *plan, struct dtp_step_work *out);
    /* Bytes that the device moves besides for each element that is gathered, and that is reduced: casts to what goes
     * over the wire and back. */
    void (*add_wire_casts)(const struct dtp_timing *timing, double *per_gather, double *per_reduce);
    /* Seconds of collectives that no window hides, and of offload that a step waits for (not of NVMe's). */
    double (*exposed_s)(struct dtp_timing *timing, const struct dtp_time *time, const struct dtp_windows *window);
    double (*exposed_offload_s)(const struct dtp_timing *timing, const struct dtp_communication *communication,
                                const struct dtp_windows *window, const struct dtp_time *time, double bytes_per_s,
                                double adam_s);
    /* Whether copies to the host stand in the way of what runs on the GPU; sums of gradients go up again with them. */
    bool (*copies_block)(const struct dtp_plan *plan);
    bool sums_go_up;

    /* ---- the whole ---- */
    /* A plan with tensor or pipeline parallelism, instead of all the above. */
    void (*slices)(const struct dtp_transformer *transformer, const struct dtp_cluster *cluster,
                   const struct dtp_plan *plan, struct dtp_prediction *out);
};

#endif
