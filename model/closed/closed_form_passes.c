/* Memory-bound kernels of a micro-step: their bytes, and seconds by what bounds them. */
#include "closed/closed_form_timing.h"

#include "cost/calibration.h"
#include "plan/rules.h"

double dtp_timing_passes_s(const struct dtp_timing *c, const struct dtp_block_work *block, bool backward)
{
    const struct dtp_passes *passes = &block->passes;
    double bytes = backward ? block->backward_bytes_per_token : block->forward_bytes_per_token;
    return (bytes - passes->bytes[backward]) * c->tokens / c->eager_bytes_per_s +
           passes->bytes[backward] * c->tokens / c->pass_bytes_per_s +
           passes->elements[backward] * c->tokens / c->passes.elements_per_s +
           passes->kernels[backward] * c->passes.start_s +
           (backward ? passes->column_sums * c->passes.column_sum_s : 0);
}

double dtp_timing_loss_s(const struct dtp_timing *c, double bytes)
{
    if (dtp_plan_softmax_in_place(c->plan))
        return bytes / c->streaming_bytes_per_s;
    if (c->own) {
        double capped = c->transformer->final_softcap > 0 ? dtp_calibration.native_soft_cap : 1;
        return bytes / (dtp_calibration.native_loss * capped * c->eager_bytes_per_s);
    }
    if (!dtp_loss_passes(c->plan))
        return bytes / c->eager_bytes_per_s;
    return bytes / c->pass_bytes_per_s +
           dtp_loss_elements(c->transformer, c->plan) * c->tokens / c->passes.elements_per_s;
}

double dtp_timing_memory_s(const struct dtp_timing *c, bool backward)
{
    double bytes = c->layers * c->tokens * (backward ? c->context.backward : c->context.forward), seconds = 0;
    if (c->own)
        return (backward ? c->own->backward_bytes : c->own->forward_bytes) / c->eager_bytes_per_s;
    EACH_KIND(c, block)
    seconds += block->layers * dtp_timing_passes_s(c, block, backward);
    return seconds + bytes / c->eager_bytes_per_s;
}

double dtp_timing_memory_bytes(const struct dtp_timing *c, bool backward)
{
    double bytes = c->layers * (backward ? c->context.backward : c->context.forward);
    if (c->own)
        return backward ? c->own->backward_bytes : c->own->forward_bytes;
    EACH_KIND(c, block)
    bytes += block->layers * (backward ? block->backward_bytes_per_token : block->forward_bytes_per_token);
    return bytes * c->tokens;
}

static double layers_weights(const struct dtp_timing *c)
{
    double elements = 0;
    EACH_KIND(c, block)
    for (int i = 0; i < block->matmul_count; i++)
        elements += block->layers * block->matmul[i].copies * block->matmul[i].n * block->matmul[i].k;
    return elements;
}

static bool casts(const struct dtp_timing *c)
{
    return dtp_plan_autocast(c->plan) && !dtp_plan_adapts(c->plan);
}

double dtp_timing_cast_bytes(const struct dtp_timing *c)
{
    double w = dtp_plan_compute_bytes(c->plan), total = (double)c->count.total;
    double cast = dtp_plan_casts_weights(c->plan) ? total : total - layers_weights(c);
    return casts(c) ? cast * (4 + w) + total * (w + 4 + (c->plan->accumulate > 1 ? 12 : 0)) : 0;
}

/* Kernels take elements of gradients, which become wider, one at a time. */
double dtp_timing_casts_s(const struct dtp_timing *c, double bytes_per_s)
{
    if (!casts(c) || !dtp_plan_passes(c->plan) || c->own)
        return dtp_timing_cast_bytes(c) / bytes_per_s;
    return dtp_timing_cast_bytes(c) / c->pass_bytes_per_s + (double)c->count.total / c->passes.elements_per_s;
}

/* Of a token's h elements, that such a module moves: norms of both sides read and write, what is laid side by side is
 * copied; backward of each reads two and writes one, as does the sum with the model's gradient. */
#define AHEAD_FORWARD_ROWS 8
#define AHEAD_BACKWARD_ROWS 9

double dtp_timing_ahead_s(const struct dtp_timing *c, bool backward)
{
    double rows = backward ? AHEAD_BACKWARD_ROWS : AHEAD_FORWARD_ROWS;
    double row = (double)(c->transformer->ahead_layers * c->transformer->hidden * dtp_plan_compute_bytes(c->plan));
    double shards = c->plan->sequence_shards > 1 ? (double)c->plan->sequence_shards : 1;
    /* the projection's result, gathered by columns, is put together, and its gradient cut */
    double columns = shards > 1 ? backward ? 2 / shards : 2 : 0;
    return (rows / shards + columns) * row * c->tokens / c->eager_bytes_per_s;
}
