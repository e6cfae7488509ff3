/* Memory of a slice among the others: what a stage's micro-batches in flight keep, what ranks send each other. */
#include "closed/activations.h"
#include "closed/model_parallel.h"
#include "closed/sharding.h"
#include "base/bytes.h"
#include "cost/calibration.h"
#include "plan/degrees.h"

#include <math.h>

/* Activations of micro-steps that wait for their backward on a rank, in units of one stage's. */
static double in_flight(const struct dtp_plan *plan)
{
    struct dtp_schedule_shape shape = dtp_plan_schedule(plan);
    return dtp_schedule_kept(&shape);
}

static void add_bytes(struct dtp_memory *m, enum dtp_phase phase, enum dtp_owner owner, uint64_t bytes)
{
    m->phase_bytes[phase][owner] += bytes;
    m->phase_total_bytes[phase] += bytes;
}

/* Of a schedule with several copies of the model each rank holds a stage of each. */
static void add_copies(const struct dtp_plan *plan, struct dtp_memory *m)
{
    static const enum dtp_owner held[] = {DTP_OWNER_PARAMS, DTP_OWNER_GRADS, DTP_OWNER_OPTIMIZER};
    uint32_t more = dtp_schedule_row(plan->schedule)->copies - 1;
    for (int phase = 0; phase < DTP_PHASE_COUNT; phase++)
        for (size_t i = 0; i < sizeof held / sizeof *held; i++)
            add_bytes(m, (enum dtp_phase)phase, held[i], more * m->phase_bytes[phase][held[i]]);
}

/* Bytes of a token that the first stage's layers in bf16 keep beyond others'. */
static double wider_layers(const struct dtp_slice *s, uint64_t kept)
{
    const struct dtp_plan wide = dtp_plan_of_wide_layers(&s->plan);
    uint64_t layers = dtp_plan_wide_layers(&s->plan, &s->transformer, 0, s->transformer.layers);
    struct dtp_activations activations;
    if (!layers)
        return 0;
    dtp_activations_count(&s->transformer, &s->cluster, &wide, &activations);
    return (double)layers * ((double)activations.layer_kept - (double)kept);
}

/* Bytes of a token that micro-batches keep in the pass whose weight gradients wait (plan.executor.delay_wgrad): what
 * these read, of one pass, beside the other micro-batches in flight. The first rank does not wait unless it holds a
 * later chunk, so by 1F1B the second one does, which has one fewer in flight. */
static double kept_beside_waiting(const struct dtp_slice *s, const struct dtp_plan *plan, double kept)
{
    struct dtp_layer_tensors tensors;
    const double chunk = (double)s->transformer.layers / plan->virtual_stages,
                 waiting = fmin(plan->executor.delay_wgrad, chunk);
    if (!plan->executor.delay_wgrad)
        return 0;
    const double under_way =
        plan->schedule == DTP_SCHEDULE_1F1B ? fmin(plan->accumulate, plan->pp - 1.0) : in_flight(plan);
    dtp_layer_tensors_of(&s->transformer, dtp_layer_mlp_of(&s->transformer), &s->cluster, &s->plan, &tensors);
    return (under_way * (double)s->transformer.layers - chunk) * kept +
           waiting * (double)dtp_activations_for_weights(&s->plan, &tensors);
}

/* The slice's memory is the last stage's. The first one's peak is the backward of its last layer with the activations
 * of all micro-steps in flight; the slice's late backward has those of one layer. */
static void fill_memory(const struct dtp_plan *plan, const struct dtp_slice *s, uint64_t stream_bytes,
                        struct dtp_memory *m)
{
    struct dtp_activations activations;
    dtp_activations_count(&s->transformer, &s->cluster, &s->plan, &activations);
    uint64_t before = m->allocated_peak_bytes, tokens = dtp_plan_tokens(plan);
    if (plan->pp > 1) {
        double layers = in_flight(plan) * (double)s->transformer.layers - 1;
        uint64_t rows = dtp_divide_up(stream_bytes, dtp_plan_scatters_sends(plan) ? plan->tp : 1);
        uint64_t held = plan->runtime->copies_passes ? (uint64_t)in_flight(plan) * rows : 0;
        double wider = in_flight(plan) * wider_layers(s, activations.layer_kept);
        double kept = fmax(layers * (double)activations.layer_kept + wider,
                           kept_beside_waiting(s, plan, (double)activations.layer_kept));
        add_bytes(m, DTP_PHASE_LATE_BACKWARD, DTP_OWNER_ACTIVATIONS, held + dtp_bytes_product((uint64_t)kept, tokens));
        add_copies(plan, m);
    }
    for (int phase = 0; phase < DTP_PHASE_STEP; phase++) { /* a matmul's gathered input; what stages exchange */
        uint64_t gathered = s->plan.sequence_shards > 1 ? stream_bytes : 0;
        uint64_t exchanged = plan->pp > 1 ? 2 * dtp_divide_up(stream_bytes, s->plan.sequence_shards) : 0;
        add_bytes(m, (enum dtp_phase)phase, DTP_OWNER_WORKSPACE, gathered + exchanged);
    }
    for (int phase = 0; phase < DTP_PHASE_COUNT; phase++)
        if (m->phase_total_bytes[phase] > m->phase_total_bytes[m->peak_phase])
            m->peak_phase = (enum dtp_phase)phase;
    const uint64_t *peak = m->phase_bytes[m->peak_phase];
    m->allocated_peak_bytes = m->phase_total_bytes[m->peak_phase];
    for (int phase = 0; phase < DTP_PHASE_COUNT; phase++)
        if (m->phase_bytes[phase][DTP_OWNER_ACTIVATIONS] > m->activations_bytes)
            m->activations_bytes = m->phase_bytes[phase][DTP_OWNER_ACTIVATIONS];
    m->temporary_bytes = m->allocated_peak_bytes - peak[DTP_OWNER_PARAMS] - peak[DTP_OWNER_GRADS] -
                         peak[DTP_OWNER_OPTIMIZER] - peak[DTP_OWNER_ACTIVATIONS];
    uint64_t more = m->allocated_peak_bytes - before;
    bool owned = plan->expandable_segments || plan->runtime->arena;
    double pieces = owned ? 0 : dtp_calibration.torch_fragmentation; /* as closed/memory.c */
    uint64_t around = (uint64_t)((double)more * pieces);
    m->reserved_peak_bytes += more + around;
    m->device_peak_bytes += more + around;
    dtp_memory_judge(m);
}

void dtp_stages_memory_of_slice(const struct dtp_transformer *transformer, const struct dtp_cluster *cluster,
                                const struct dtp_plan *plan, struct dtp_memory *memory)
{
    struct dtp_slice slice;
    dtp_slice_of(transformer, cluster, plan, &slice);
    fill_memory(plan, &slice,
                dtp_bytes_product(dtp_plan_tokens(plan), transformer->hidden * dtp_plan_compute_bytes(plan)), memory);
}
