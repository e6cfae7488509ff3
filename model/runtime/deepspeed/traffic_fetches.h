/* What ZeRO-3's fetches (zero3_fetch.h) gather in a step, and what ZeRO++ exchanges of gradients (zeropp.h). Elements;
 * "shard" is what one rank sends to each other one, padding included. Allocates nothing; linear in layers. */
#ifndef DTP_TRAFFIC_FETCHES_H
#define DTP_TRAFFIC_FETCHES_H

#include "machine/machine.h"
#include "runtime/deepspeed/deepspeed_parts.h"

struct dtp_zero3_gathers {
    uint64_t count, shard, scale_bytes; /* scales: of a shard, where it is sent as int8 */
};
struct dtp_zero3_counts {
    struct dtp_zero3_gathers all, second;          /* over all ranks; of a second copy, within a node */
    uint64_t persistent_shard, persistent_modules; /* never given back, gathered once a step */
};
void dtp_zero3_count(const struct dtp_transformer *transformer, const struct dtp_plan *plan, uint64_t ranks,
                     struct dtp_zero3_counts *out);

/* Bytes each rank sends, scales among them, and collectives, half of them of scales, of one reduction of all gradients
 * in int4; elements of the shards that are reduce-scattered instead. */
struct dtp_zeropp_counts {
    uint64_t node_bytes, node_scale_bytes, node_count, between_bytes, between_scale_bytes, between_count;
    uint64_t scattered_shard, scattered_count;
};
void dtp_zeropp_count(const struct dtp_transformer *transformer, const struct dtp_cluster *cluster,
                      const struct dtp_plan *plan, struct dtp_zeropp_counts *out);

#endif
