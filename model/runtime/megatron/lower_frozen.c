#include "runtime/megatron/lower_frozen.h"

static uint64_t adapters_bytes(const struct dtp_lowering *l)
{
    return l->bytes.params * dtp_lower_all_elements(l);
}

uint64_t dtp_megatron_frozen_bytes(const struct dtp_lowering *l)
{
    uint64_t bytes = l->root.all_bytes;
    for (uint64_t layer = 0; layer < l->transformer->layers; layer++)
        bytes += dtp_lower_module_at(l, layer)->all_bytes;
    return bytes - adapters_bytes(l);
}

dtp_buffer_id dtp_megatron_make_adapters(struct dtp_lowering *l)
{
    dtp_buffer_id adapters =
        dtp_lower_buffer(l, "adapters", DTP_OWNER_PARAMS, DTP_STREAM_COMPUTE, adapters_bytes(l), true);
    for (uint64_t layer = 0; layer < l->transformer->layers; layer++)
        for (int part = l->matrices + 1; part < l->block.parts; part++)
            l->state[layer].whole[part] = adapters;
    return adapters;
}
