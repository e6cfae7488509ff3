#include "closed/sharding.h"

void dtp_units_trained(const struct dtp_units *units, const struct dtp_plan *plan, struct dtp_units *out)
{
    const uint64_t layers = units->layers, ends = units->trained - layers * units->layer_trained,
                   ends_shard = dtp_divide_up(ends, units->ranks);
    *out = *units;
    out->total_shard = units->trained_shard;
    out->layer_shard =
        (units->trained_shard - (ends_shard < units->trained_shard ? ends_shard : units->trained_shard)) / layers;
    out->largest_layer_shard = out->layer_shard;
    out->total = plan->fsdp1 ? out->total_shard * units->ranks : units->trained; /* whose buffers are of equal shards */
    out->layer = out->largest_layer = plan->fsdp1 ? out->layer_shard * units->ranks : units->layer_trained;
    out->root = units->root_trained, out->root_shard = units->count ? ends_shard : units->trained_shard;
    out->largest = out->layer, out->down = 0;
    if (!ends)
        out->embedding = out->head = out->position = out->head_end = out->head_end_shard = 0;
}
