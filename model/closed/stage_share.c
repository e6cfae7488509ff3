#include "closed/stage_share.h"

/* Frozen weights and adapters at rest. */
static double adapted_bytes(const struct dtp_slice *s, uint64_t layers)
{
    const unsigned each =
        dtp_dtype_bytes(s->plan.runtime->stores_compute_dtype ? s->plan.precision.compute : s->plan.adapters.dtype);
    struct dtp_transformer t = s->transformer;
    struct dtp_trained_count count;
    t.layers = layers;
    dtp_plan_trained(&t, &s->plan, &count);
    return (double)(count.frozen_bytes + each * count.trained);
}

struct dtp_stage_share dtp_stage_share_of(const struct dtp_slice *s, double layers, double tables, bool positions)
{
    const struct dtp_parameter_count count = dtp_transformer_count(&s->transformer);
    const uint64_t of_slice = s->transformer.layers;
    const bool adapts = dtp_plan_adapts(&s->plan);
    const double element = adapts ? (double)dtp_dtype_bytes(s->plan.precision.params) : 1,
                 all = adapts ? adapted_bytes(s, of_slice) : (double)count.total,
                 layer = adapts ? adapted_bytes(s, of_slice + 1) - all : (double)count.layers / (double)of_slice,
                 table = element * (double)(s->transformer.vocab * s->transformer.hidden),
                 own = s->transformer.tied_head ? 1 : 2;
    const double position = positions || s->plan.runtime->copies_passes ? 0 : element * (double)count.position,
                 share = 1 + ((layers - (double)of_slice) * layer + (tables - own) * table - position) / all;
    return (struct dtp_stage_share){share, adapts ? layers / (double)of_slice : share};
}
