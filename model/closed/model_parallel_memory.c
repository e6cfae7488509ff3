/* Memory of a slice among the others: what a stage's micro-batches in flight keep, what ranks send each other. */
#include "closed/activations.h"
#include "closed/model_parallel.h"
#include "closed/sharding.h"
#include "closed/stage_share.h"
#include "base/bytes.h"
#include "cost/calibration.h"
#include "plan/degrees.h"
#include "plan/fp8_casts.h"

#include <math.h>
#include <string.h>

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

/* Less where `bytes` is below 0, at most what is there. */
static void add_signed(struct dtp_memory *m, enum dtp_phase phase, enum dtp_owner owner, double bytes)
{
    if (bytes >= 0) {
        add_bytes(m, phase, owner, (uint64_t)bytes);
        return;
    }
    const uint64_t less = (uint64_t)fmin((double)m->phase_bytes[phase][owner], -bytes);
    m->phase_bytes[phase][owner] -= less;
    m->phase_total_bytes[phase] -= less;
}

static const enum dtp_owner states[] = {DTP_OWNER_PARAMS, DTP_OWNER_GRADS, DTP_OWNER_OPTIMIZER};
#define STATES (sizeof states / sizeof *states)

/* Parameters, gradients, `sums` of these beside DDP's buckets, and optimizer state of a phase become `share` of the
 * slice's. */
static void scale_states(struct dtp_memory *m, enum dtp_phase phase, const struct dtp_stage_share *share, double sums)
{
    for (size_t i = 0; i < STATES; i++)
        add_signed(m, phase, states[i],
                   (dtp_stage_share_of_owner(share, states[i]) - 1) * (double)m->phase_bytes[phase][states[i]]);
    add_signed(m, phase, DTP_OWNER_REDUCE, (share->trained - 1) * sums);
}

/* Of a schedule with several copies of the model each rank holds a stage of each. */
static void add_copies(const struct dtp_plan *plan, struct dtp_memory *m)
{
    uint32_t more = dtp_schedule_row(plan->schedule)->copies - 1;
    for (int phase = 0; phase < DTP_PHASE_COUNT; phase++)
        for (size_t i = 0; i < STATES; i++)
            add_bytes(m, (enum dtp_phase)phase, states[i], more * m->phase_bytes[phase][states[i]]);
}

/* Bytes of a token in a layer: until backward, of layers that are checkpointed and of those between on average; until
 * its weight gradients, behind that of its input; and what the head and its loss keep until both. */
struct kept {
    double slice, first, last; /* of all the slice's layers; a layer of the first rank's, of the one's with the head */
    double layer, waiting, head, head_waiting;
    double loss, held;       /* while a loss is made and behind it, beside the head's */
    double beside, backward; /* what the slice's program lacks of gathered rows: beside all its layers, in backward */
    double of_layer, of_head, of_slice; /* bytes of weights that stay; what the slice has of these at a loss */
    enum dtp_owner stays;               /* what they are: casts or gradients */
};

/* Of the model's layers 0, N, 2N, ... are checkpointed; of so many from `first` on. */
static double mean_kept(const struct dtp_activations *a, uint64_t first, uint64_t layers)
{
    const uint64_t every = a->checkpoint_every > 1 ? a->checkpoint_every : 1, n = layers ? layers : 1;
    const double checkpointed = (double)(dtp_divide_up(first + n, every) - dtp_divide_up(first, every)) / (double)n;
    return checkpointed * (double)a->layer_kept + (1 - checkpointed) * (double)a->layer_all;
}

/* Where every N-th layer is checkpointed and a rank's chunks all begin at the same place among N, the layers of one. */
static uint64_t chunk_layers(const struct dtp_plan *plan, uint64_t every, uint64_t layers)
{
    const uint64_t own = dtp_divide_up(layers, plan->virtual_stages);
    const bool loops = dtp_schedule_row(plan->schedule)->placement == DTP_CHUNKS_LOOP;
    return loops && every > 1 && plan->pp * own % every == 0 ? own : layers;
}

/* Ranks with rows of the stream gather what their matrices read. Who does not gather that again for backward keeps it
 * whole (lower_forward.c, gather_input), a slice's program, which is of one rank, its own rows. */
static void keep_gathered(uint32_t ranks, bool all, struct dtp_layer_tensors *tensors)
{
    uint64_t gathered = 0;
    for (int i = 0; i < tensors->kind.matrices; i++)
        if ((all || tensors->kind.matrix[i].rank) && !tensors->kind.matrix[i].own_rows &&
            dtp_layer_lies_between_matmuls(tensors->input[i]))
            gathered |= UINT64_C(1) << tensors->input[i];
    for (; gathered; gathered &= gathered - 1)
        tensors->bytes[dtp_layer_first(gathered)] *= ranks;
}

/* Norms' results and the MLP's product, which our executor makes again (DTP_CHECKPOINT_SELECTIVE_MATMUL of plan.h). */
#define MADE_AGAIN (DTP_TENSOR_BIT(NORM1) | DTP_TENSOR_BIT(NORM2) | DTP_TENSOR_BIT(PRODUCT))

/* Of a logit, while a loss is made, beyond the slice's, which is no stage's and of one rank (activations.c,
 * count_loss): who holds its passes still has the logits, c. Of loss_parallel (lower_parallel_loss.c) the gradient,
 * eager, is one more tensor in fp32; compiled, the forward is the most, c + 4 + 4 for 2 c. */
static double beside_loss(const struct dtp_plan *plan, bool holds, double c)
{
    const bool fused = dtp_plan_loss(plan) == DTP_LOSS_FUSED, parallel = dtp_plan_loss_over_dtensors(plan);
    if (parallel && fused)
        return 8 - c;
    return (holds && !fused ? c : 0) + (parallel && c < 4 && dtp_plan_loss(plan) == DTP_LOSS_EAGER ? 4 : 0);
}

/* Bytes of a layer's weights that were gathered in fp8, by columns, which each micro-batch keeps of its own. */
static double narrow_columns(const struct dtp_slice *s, const struct dtp_layer_tensors *tensors)
{
    struct dtp_fp8_casts casts;
    double bytes = 0;
    dtp_fp8_casts_of(&s->plan, &s->cluster.gpu, &casts);
    for (int i = 0; i < tensors->kind.matrices; i++) {
        const struct dtp_layer_matrix *m = &tensors->kind.matrix[i];
        if (dtp_fp8_keeps_matrix(&casts, m->id) && !m->wide)
            bytes += (double)dtp_fp8_bytes(s->plan.precision.fp8_recipe, m->groups * m->out * m->in);
    }
    return bytes;
}

/* Bytes of a layer's packed matrices as matmuls read them, where these stay so until backward: each micro-batch has its
 * own. */
static double unpacked_bytes(const struct dtp_slice *s, const struct dtp_layer_tensors *tensors)
{
    double elements = 0;
    if (s->plan.adapters.base == DTP_BASE_NONE || !dtp_base_stays_unpacked(&s->plan))
        return 0;
    for (int i = 0; i < tensors->kind.matrices; i++)
        elements += (double)(tensors->kind.matrix[i].groups * tensors->kind.matrix[i].out * tensors->kind.matrix[i].in);
    return dtp_plan_compute_bytes(&s->plan) * elements;
}

/* Tensors of a token. What a compiled layer casts of weights under autocast it keeps for its backward, so that each
 * micro-batch has its own (lower_weights.c, dtp_lower_cast_of); a replay makes them anew. So it does with columns of
 * weights gathered in fp8 (fp8_casts.h), but keeps none of a layer that is checkpointed in any way. */
static struct dtp_activations activations_of(const struct dtp_slice *s, const struct dtp_layer_tensors *tensors,
                                             double layer_cast)
{
    struct dtp_activations a;
    dtp_activations_of(&s->transformer, &s->plan, tensors, &a);
    if (s->plan.runtime->arena && s->plan.checkpointing == DTP_CHECKPOINT_SELECTIVE_MATMUL)
        a.layer_kept = dtp_layer_tensors_bytes(tensors, tensors->saved & ~MADE_AGAIN);
    const struct dtp_checkpoint_rule rule = dtp_plan_checkpoint_rule(&s->plan);
    const double tokens = (double)dtp_plan_tokens(&s->plan);
    const uint64_t unpacked = (uint64_t)(unpacked_bytes(s, tensors) / tokens);
    const bool stays = !rule.every || rule.keeps == DTP_KEEPS_PACKED_MATMULS || tensors->kept == tensors->saved;
    a.layer_all += unpacked, a.layer_kept += stays ? unpacked : 0;
    if (s->plan.compile) {
        const uint64_t own = (uint64_t)(layer_cast / tokens), narrow = (uint64_t)(narrow_columns(s, tensors) / tokens);
        a.layer_all += own + narrow, a.layer_kept += (rule.calls_modules ? 0 : own) + (rule.every ? 0 : narrow);
    }
    return a;
}

/* An eager autocast region is around all passes of a stage, whose casts stay (lower_weights.c, dtp_lower_casts_stay);
 * the slice's go with the backward of their layer, and with its forward where that is replayed. Where weight gradients
 * are a pass of their own, FSDP2 takes them with the chunk's next backward alone (runtime/torch/README.md); of a single
 * micro-batch there is none, and a gradient is no sum yet beside which another could stand. */
static void count_stays(const struct dtp_slice *s, double layer_bytes, struct kept *out)
{
    const struct dtp_checkpoint_rule rule = dtp_plan_checkpoint_rule(&s->plan);
    const uint64_t layers = s->transformer.layers;
    const bool casts = dtp_plan_casts_weights(&s->plan),
               splits = dtp_schedule_row(s->plan.schedule)->backward == DTP_BACKWARD_SPLIT;
    if (casts ? s->plan.compile : !splits || !dtp_plan_is_fsdp(&s->plan) || s->plan.accumulate == 1)
        return;
    out->of_layer = layer_bytes;
    out->of_head = (double)(dtp_plan_compute_bytes(&s->plan) * s->transformer.vocab * s->transformer.hidden);
    out->of_slice =
        casts ? layer_bytes * (double)(layers - (rule.calls_modules ? dtp_checkpointed_layers(&rule, layers) : 0)) : 0;
    out->stays = casts ? DTP_OWNER_WEIGHTS : DTP_OWNER_REDUCE;
}

/* Our executor makes logits in its backward, a chunked loss chunk by chunk. Who holds its passes has the loss with the
 * forward, whose log-softmax in fp32 stands beside the logits, and leaves the head's weight gradient too. */
static struct kept kept_of(const struct dtp_slice *s, const struct dtp_plan *plan, uint64_t layers)
{
    const bool holds = plan->pp > 1 && s->plan.runtime->holds_passes, parallel = dtp_plan_loss_over_dtensors(plan),
               wide = dtp_plan_loss(&s->plan) == DTP_LOSS_EAGER || parallel; /* compiled ones fuse it otherwise */
    const bool logits = s->plan.loss != DTP_LOSS_NATIVE && dtp_plan_loss(&s->plan) != DTP_LOSS_CHUNKED;
    struct dtp_layer_tensors tensors;
    struct dtp_units units = {0};
    if (holds)
        dtp_units_count(&s->transformer, &s->cluster, &s->plan, &units);
    const double layer_bytes = (double)(dtp_plan_compute_bytes(plan) * units.layer_cast),
                 layer_cast = dtp_plan_casts_weights(&s->plan) ? layer_bytes : 0;
    dtp_layer_tensors_of(&s->transformer, dtp_layer_mlp_of(&s->transformer), &s->cluster, &s->plan, &tensors);
    const struct dtp_activations own = activations_of(s, &tensors, layer_cast);
    struct dtp_activations a = own;
    const uint32_t shards = s->plan.sequence_shards;
    const bool again = plan->runtime->gathers_again;
    if (shards > 1 && (!again || dtp_plan_divides_adapters(plan))) {
        keep_gathered(shards, !again, &tensors); /* of adapters what they read */
        a = activations_of(s, &tensors, layer_cast);
        a.head += again ? 0 : dtp_plan_compute_bytes(plan) * (s->transformer.hidden - s->transformer.hidden / shards);
    }
    const double layers_of_slice = (double)s->transformer.layers,
                 slice = layers_of_slice * mean_kept(&a, 0, s->transformer.layers);
    struct kept out = {
        .slice = slice,
        .beside = slice - layers_of_slice * mean_kept(&own, 0, s->transformer.layers) + (double)(a.head - own.head),
        .backward = (double)(a.layer_all - own.layer_all),
        .layer = mean_kept(&a, 1, chunk_layers(plan, a.checkpoint_every, plan->most_layers)), /* fewest checkpointed */
        .first = mean_kept(&a, 0, chunk_layers(plan, a.checkpoint_every, plan->first_layers)),
        .last = mean_kept(&a, layers - plan->head_layers, plan->head_layers),
        .waiting = (double)dtp_activations_for_weights(&s->plan, &tensors),
        .head = (double)a.head + (logits ? (double)a.logits_gradient : 0) +
                (holds && wide ? (double)(4 * s->transformer.vocab) : 0),
        .loss = (double)s->transformer.vocab * beside_loss(&s->plan, holds, (double)dtp_plan_compute_bytes(plan)),
        .held = holds ? (double)a.logits_gradient : 0,
        .head_waiting = holds && !dtp_plan_adapts(plan) ? (double)(a.head + a.logits_gradient) : 0};
    if (holds)
        count_stays(s, layer_bytes, &out);
    return out;
}

/* Bytes of a token that the first stage's layers in bf16 keep beyond others'. */
static double wider_layers(const struct dtp_slice *s, double kept)
{
    const struct dtp_plan wide = dtp_plan_of_wide_layers(&s->plan);
    uint64_t layers = dtp_plan_wide_layers(&s->plan, &s->transformer, 0, s->transformer.layers);
    struct dtp_activations activations;
    if (!layers)
        return 0;
    dtp_activations_count(&s->transformer, &s->cluster, &wide, &activations);
    return (double)layers * ((double)activations.layer_kept - kept);
}

/* Bytes of a token that micro-batches keep in the pass whose weight gradients wait (plan.executor.delay_wgrad): what
 * these read, of one pass, beside the other micro-batches in flight. The first rank does not wait unless it holds a
 * later chunk, so by 1F1B the second one does, which has one fewer in flight. */
static double kept_beside_waiting(const struct dtp_slice *s, const struct dtp_plan *plan, const struct kept *kept)
{
    const double chunk = (double)s->transformer.layers / plan->virtual_stages,
                 waiting = fmin(plan->executor.delay_wgrad, chunk);
    if (!plan->executor.delay_wgrad)
        return 0;
    const double under_way =
        plan->schedule == DTP_SCHEDULE_1F1B ? fmin(plan->accumulate, plan->pp - 1.0) : in_flight(plan);
    return (under_way * (double)s->transformer.layers - chunk) * kept->layer + waiting * kept->waiting;
}

/* The same where the schedule lets weight gradients wait; a layer's the slice's own backward has. */
static double kept_until_weights(const struct dtp_plan *plan, double layers, const struct kept *kept)
{
    const struct dtp_schedule_shape shape = dtp_plan_schedule(plan);
    const struct dtp_schedule_waiting wait = dtp_schedule_waiting(&shape);
    const double heads = plan->head_rank ? wait.weights * plan->virtual_stages : 0;
    if (!(wait.weights > 0))
        return 0;
    return wait.forwards * layers * kept->layer + (wait.weights * layers - 1) * kept->waiting +
           heads * kept->head_waiting;
}

/* On the rank before the last, which may have more layers: there one micro-batch and more is under way forward for each
 * that waits less. */
static double kept_until_weights_before(const struct dtp_plan *plan, const struct kept *kept)
{
    struct dtp_plan fewer = *plan;
    fewer.pp -= plan->pp > 2;
    const struct dtp_schedule_shape shape = dtp_plan_schedule(plan);
    const double layers = plan->most_layers, until = kept_until_weights(&fewer, layers, kept);
    const struct dtp_schedule_shape before = dtp_plan_schedule(&fewer);
    const double less = dtp_schedule_waiting(&shape).weights - dtp_schedule_waiting(&before).weights;
    return until > 0 ? until + less * layers * kept->layer : 0;
}

/* Layers of all micro-batches that stand on the rank with the head at a loss: of its last stage, where a rank has
 * several, those whose losses are made, of the others the rest. */
static double layers_beside_loss(const struct dtp_plan *plan, const struct dtp_schedule_waiting *wait)
{
    const double chunks = plan->virtual_stages, last = fmin(plan->last_layers, plan->head_layers);
    return chunks > 1 && dtp_schedule_row(plan->schedule)->placement != DTP_CHUNKS_TWO_WAY
               ? last * wait->losses +
                     (plan->head_layers - last) * (wait->head_forwards * chunks - wait->losses) / (chunks - 1)
               : wait->head_forwards * plan->head_layers;
}

/* Of a token on the rank with the head, at a loss: of all micro-batches that stand there, less the layers that the
 * slice has of one. */
static double kept_beside_loss(const struct dtp_plan *plan, const struct kept *kept)
{
    const struct dtp_schedule_shape shape = dtp_plan_schedule(plan);
    const struct dtp_schedule_waiting wait = dtp_schedule_waiting(&shape);
    const double layers = plan->head_layers;
    const bool loops = dtp_schedule_row(plan->schedule)->placement == DTP_CHUNKS_LOOP;
    const double waiting = loops ? wait.heads / plan->virtual_stages : 0;
    return layers_beside_loss(plan, &wait) * kept->last - kept->slice + (wait.losses - 1) * kept->head +
           waiting * layers * kept->waiting + wait.heads * kept->head_waiting;
}

/* Of the table's gradient rows of other ranks, which this one makes as well: in so many bytes each. A slice whose head
 * is no copy of the table makes them too. */
static double others_rows_bytes(const struct dtp_slice *s, const struct dtp_plan *plan, bool tied, uint64_t bytes)
{
    if (dtp_plan_adapts(plan)) /* frozen */
        return 0;
    const double ranks = (double)dtp_plan_table_gradient_ranks(plan, tied) -
                         (double)dtp_plan_table_gradient_ranks(&s->plan, s->transformer.tied_head);
    return fmax(0, ranks) * (double)(s->transformer.vocab * s->transformer.hidden * bytes);
}

/* Of stages that hold as many layers as any, without the model's ends, the first has by 1F1B one micro-batch fewer in
 * flight than the model's first: what that one sends ahead is a chunk's time there and one back. */
static double in_flight_behind(const struct dtp_plan *plan)
{
    struct dtp_plan fewer = *plan;
    bool falls = dtp_schedule_row(plan->schedule)->placement == DTP_CHUNKS_LOOP && plan->schedule != DTP_SCHEDULE_GPIPE;
    fewer.pp -= falls && plan->pp > 2;
    return in_flight(&fewer);
}

/* Of a token, of n micro-batches in flight with so many layers each, beside one layer in its backward and `gradients`
 * of the others. Where these are made only now: at the first micro-batch's last layer there are none, at its first
 * layer its activations are gone. A rank of the model's ends alone has no layers and keeps nothing of them. */
static double kept_of_flights(double n, double layers, double kept, double gradients)
{
    if (layers <= 0)
        return 0;
    return fmax((n * layers - 1) * kept - gradients * (layers - 1) / layers, (n - 1) * layers * kept);
}

/* What ranks differ in: parameters, of the slice's, with layers and tables; rows of the stream that they hold of each
 * micro-batch; bytes of weights that stay; other ranks' rows of the table's gradient, as they are summed and as an
 * embedding's backward makes them; bytes of gradients that come with a first backward, per token; of these what stands
 * beside DDP's buckets, the slice's. */
struct ranks {
    bool vee, loops, splits, fills; /* fills: there are more micro-batches than are ever in flight */
    struct dtp_stage_share first, middle, head;
    double all_rows, first_rows, head_rows;
    double stays, first_stays, head_stays, loss_stays, table, made, gradients, sums;
};

/* Who holds its passes receives each micro-batch's rows and their gradients into memory of their own; a backward of
 * inputs alone leaves the gradient that it sends as well (lower_transfers.c, holds_gradient). The model's first chunk
 * receives no rows and sends no gradient, its last receives no gradient; a V's first rank has both. */
static void count_rows(const struct dtp_plan *plan, struct ranks *r)
{
    if (!plan->runtime->holds_passes)
        return;
    r->all_rows = (r->splits ? 3 : 2) * (double)plan->virtual_stages;
    r->head_rows = r->all_rows - (r->vee ? 3 : 1);
    r->first_rows = r->all_rows - (r->vee ? 3 : r->splits ? 2 : 1);
}

/* The first stage, whose backward is whole, leaves no gradients of weights. */
static void share_stays(const struct dtp_plan *plan, const struct kept *kept, struct ranks *r)
{
    const bool gradients = kept->stays == DTP_OWNER_REDUCE;
    const double chunks = plan->virtual_stages;
    r->stays = (plan->most_layers - 1.0) * kept->of_layer;
    r->first_stays = fmax(0, plan->first_layers * (gradients ? 1 - 1 / chunks : 1) - 1) * kept->of_layer +
                     (r->vee ? kept->of_head : 0);
    r->head_stays = (plan->head_layers - 1.0) * kept->of_layer + kept->of_head;
    if (!gradients)
        r->loss_stays = plan->head_layers * kept->of_layer - kept->of_slice;
    else if (r->fills)
        r->loss_stays = plan->head_layers / (r->vee ? chunks : 1) * kept->of_layer + kept->of_head;
}

static struct ranks ranks_of(const struct dtp_transformer *whole, const struct dtp_plan *plan,
                             const struct dtp_slice *s, const struct kept *kept, const struct dtp_memory *m)
{
    const bool tied = whole->tied_head, buckets = dtp_plan_has_ddp_buckets(&s->plan, &s->cluster);
    const struct dtp_schedule_row *row = dtp_schedule_row(plan->schedule);
    struct ranks r = {.vee = row->placement == DTP_CHUNKS_VEE,
                      .loops = row->placement == DTP_CHUNKS_LOOP,
                      .splits = row->backward == DTP_BACKWARD_SPLIT,
                      .fills = plan->accumulate > in_flight(plan)};
    const double tables = r.vee && !tied ? 2 : 1;
    r.first = dtp_stage_share_of(s, plan->first_layers, tables, true);
    r.head = dtp_stage_share_of(s, plan->head_layers, tables, !r.loops);
    if (plan->pp > 2 || r.vee)
        r.middle = dtp_stage_share_of(s, plan->most_layers, 0, false);
    r.table = others_rows_bytes(s, plan, tied, dtp_dtype_bytes(plan->precision.reduce));
    r.made = others_rows_bytes(s, plan, tied,
                               dtp_plan_autocast(plan) ? dtp_dtype_bytes(plan->precision.params)
                                                       : dtp_plan_compute_bytes(plan));
    const uint64_t *late = m->phase_bytes[DTP_PHASE_LATE_BACKWARD];
    const double all = (double)late[DTP_OWNER_GRADS];
    if (plan->runtime->holds_passes) {
        r.sums = buckets ? fmin(all, (double)late[DTP_OWNER_REDUCE]) : 0; /* beside what the last layer makes */
        r.gradients = (buckets ? r.sums : all) / (double)dtp_plan_tokens(plan);
    }
    count_rows(plan, &r);
    share_stays(plan, kept, &r);
    return r;
}

/* A rank in its last backward: its parameters, of the slice's, and what it keeps besides, in bytes of a token, in rows
 * of the stream for each micro-batch, and in bytes: of table gradients, of weights that stay. */
struct late {
    struct dtp_stage_share share;
    double kept, rows, bytes, stays;
};

/* The one with the most; `params`, `trained` and `row_bytes` are bytes of the slice's parameters, of gradients and
 * state of what is trained, and of a row of each micro-batch. */
static struct late fullest_late(const struct dtp_plan *plan, const struct dtp_slice *s, const struct kept *kept,
                                const struct ranks *r, double params, double trained, double row_bytes)
{
    const struct dtp_stage_share none = {0, 0};
    const double chunks = plan->virtual_stages, tokens = (double)dtp_plan_tokens(plan), flights = in_flight(plan),
                 behind = in_flight_behind(plan), first = plan->first_layers * kept->first,
                 wider = flights * wider_layers(s, kept->layer), table = r->fills ? r->table : 0;
    const struct late list[] = {
        /* the first, all its micro-batches in flight */
        {r->first,
         kept_of_flights(flights, plan->first_layers, kept->first, r->fills ? 0 : r->first.trained * r->gradients) +
             wider,
         r->first_rows, table, r->first_stays},
        /* at the embedding of the first and of the next: beside what it makes of the table, the sum of earlier ones,
         * FSDP2's own at once */
        {r->first, (flights - 1) * first + wider, r->first_rows, r->made + (dtp_plan_is_fsdp(plan) ? r->table : 0),
         r->first_stays},
        {plan->accumulate > 1 ? r->first : none, (flights - (r->fills ? 1 : 2)) * first + wider, r->first_rows,
         r->made + r->table, r->first_stays},
        /* the one behind it, of the most layers, without an end of the model */
        {r->middle,
         kept_of_flights(behind, plan->most_layers, kept->layer,
                         plan->accumulate > behind ? 0 : r->middle.trained * r->gradients),
         r->all_rows, 0, r->stays},
        /* the first behind a B, whose chunk waits for its W */
        {r->splits ? r->first : none,
         (flights - 1 / chunks) * first + (plan->first_layers / chunks - 1) * kept->waiting, r->first_rows, table,
         r->first_stays},
        /* any, with weight gradients of some layers put off */
        {dtp_stage_share_larger(r->first, dtp_stage_share_larger(r->middle, r->head)),
         kept_beside_waiting(s, plan, kept), 0},
        /* the one before the last, or any of a V's, where the most weight gradients wait for their W */
        {r->middle,
         r->loops ? kept_until_weights_before(plan, kept) : kept_until_weights(plan, plan->most_layers, kept),
         r->all_rows, 0, r->stays},
        /* the one with the head, likewise; at the end of its backward, all its gradients made */
        {r->loops ? r->head : none, kept_until_weights(plan, plan->head_layers, kept), r->head_rows, 0, r->head_stays},
        {r->loops ? r->head : none, 0, r->head_rows, 0, r->head_stays}};
    size_t most_at = 0;
    double most_bytes = -INFINITY;
    for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
        double bytes = list[i].share.params * params + list[i].share.trained * trained + list[i].kept * tokens +
                       list[i].rows * row_bytes + list[i].bytes + list[i].stays;
        if (list[i].share.params > 0 && bytes > most_bytes)
            most_at = i, most_bytes = bytes;
    }
    return list[most_at];
}

/* What stands at a loss where not all gradients do, which the slice's program has; DDP's buckets do, not the sums
 * beside them, and of a single micro-batch there are none. Where all losses come before the first backward, of
 * gradients and all micro-batches the more of two instants (model_parallel.h). Of interleaved chunks the rank with the
 * head has behind the first losses, as many as come round together, the gradients of its last stage alone. */
static void add_first_gradients(const struct dtp_plan *plan, const struct dtp_slice *s, const struct kept *kept,
                                const struct ranks *r, enum dtp_phase phase, struct dtp_memory *m)
{
    const struct dtp_schedule_shape shape = dtp_plan_schedule(plan);
    const bool before = dtp_schedule_waiting(&shape).losses >= plan->accumulate,
               round = r->loops && plan->virtual_stages > 1 && plan->accumulate <= dtp_schedule_group(&shape);
    const bool buckets = dtp_plan_has_ddp_buckets(&s->plan, &s->cluster);
    if (!(r->gradients > 0) || !(before || round) || (buckets && plan->accumulate == 1))
        return;
    const double last = fmin(plan->last_layers, plan->head_layers),
                 share = dtp_stage_share_of(s, last, 1, !r->loops).trained / r->head.trained,
                 gradients = buckets ? r->head.trained * r->sums : (double)m->phase_bytes[phase][DTP_OWNER_GRADS],
                 one = before ? (last * kept->last + kept->head) * (double)dtp_plan_tokens(plan) : 0;
    const bool later = !before || (phase != DTP_PHASE_FORWARD_END && share * gradients > one);
    add_signed(m, phase, buckets ? DTP_OWNER_REDUCE : DTP_OWNER_GRADS, (later ? share - 1 : -1) * gradients);
    add_signed(m, phase, DTP_OWNER_ACTIVATIONS, later ? -one : 0);
}

/* The slice's memory is the last stage's with as many layers as any rank has. The first one's peak is the backward of
 * its last layer with the activations of all micro-steps in flight; the slice's late backward has those of one layer.
 * Ranks with an end of the model may have fewer layers, of which each rank's own are taken. */
static void add_ranks(const struct dtp_transformer *whole, const struct dtp_plan *plan, const struct dtp_slice *s,
                      const struct kept *kept, uint64_t held, uint64_t row_bytes, struct dtp_memory *m)
{
    const struct ranks r = ranks_of(whole, plan, s, kept, m);
    const uint64_t *late = m->phase_bytes[DTP_PHASE_LATE_BACKWARD];
    const double params = (double)late[DTP_OWNER_PARAMS],
                 trained = (double)(late[DTP_OWNER_GRADS] + late[DTP_OWNER_OPTIMIZER]) + r.sums;
    const double rows = (double)row_bytes * plan->accumulate, tokens = (double)dtp_plan_tokens(plan);
    const struct late most = fullest_late(plan, s, kept, &r, params, trained, rows);
    scale_states(m, DTP_PHASE_LATE_BACKWARD, &most.share, r.sums);
    add_signed(m, DTP_PHASE_LATE_BACKWARD, DTP_OWNER_GRADS, most.bytes);
    add_signed(m, DTP_PHASE_LATE_BACKWARD, kept->stays, most.stays);
    add_signed(m, DTP_PHASE_LATE_BACKWARD, DTP_OWNER_ACTIVATIONS, (double)held + most.kept * tokens + most.rows * rows);
    const double beside = kept_beside_loss(plan, kept) * tokens + r.head_rows * rows;
    for (enum dtp_phase phase = DTP_PHASE_FORWARD_END; phase <= DTP_PHASE_EARLY_BACKWARD; phase++) {
        const bool casts = kept->stays == DTP_OWNER_WEIGHTS; /* the head's, which the slice lets go behind its loss */
        scale_states(m, phase, &r.head, r.sums);
        add_signed(m, phase, DTP_OWNER_ACTIVATIONS, beside);
        add_signed(m, phase, DTP_OWNER_GRADS, r.vee && r.fills ? r.table : 0);
        add_first_gradients(plan, s, kept, &r, phase, m);
        add_signed(m, phase, kept->stays,
                   r.loss_stays + (casts && phase == DTP_PHASE_EARLY_BACKWARD ? kept->of_head : 0));
    }
    const struct dtp_stage_share fullest = dtp_stage_share_larger(r.first, dtp_stage_share_larger(r.middle, r.head));
    uint64_t *const of_states[] = {&m->params_bytes, &m->grads_bytes, &m->optimizer_bytes};
    for (size_t i = 0; i < STATES; i++)
        *of_states[i] = (uint64_t)(dtp_stage_share_of_owner(&fullest, states[i]) * (double)*of_states[i]);
    scale_states(m, DTP_PHASE_STEP, &fullest, r.sums);
    add_copies(plan, m);
}

/* At least none. */
static uint64_t changed(uint64_t bytes, double by)
{
    const uint64_t less = by < 0 ? (uint64_t)-by : 0;
    return by < 0 ? bytes - (less < bytes ? less : bytes) : bytes + (uint64_t)by;
}

/* Of what a matmul reads of all rows; stages send each other rows as wide as the stream, fp32 under autocast. */
static void fill_memory(const struct dtp_transformer *whole, const struct dtp_plan *plan, const struct dtp_slice *s,
                        uint64_t read_bytes, uint64_t stream_bytes, struct dtp_memory *m)
{
    uint64_t before = m->allocated_peak_bytes;
    const struct kept kept = kept_of(s, plan, whole->layers);
    const double tokens = (double)dtp_plan_tokens(plan);
    if (!m->phase_bytes[DTP_PHASE_LATE_BACKWARD][DTP_OWNER_PARAMS]) { /* of a single layer, whose backward is all */
        memcpy(m->phase_bytes[DTP_PHASE_LATE_BACKWARD], m->phase_bytes[DTP_PHASE_EARLY_BACKWARD],
               sizeof *m->phase_bytes);
        m->phase_total_bytes[DTP_PHASE_LATE_BACKWARD] = m->phase_total_bytes[DTP_PHASE_EARLY_BACKWARD];
    }
    for (int phase = DTP_PHASE_FORWARD_END; phase <= DTP_PHASE_EARLY_BACKWARD; phase++)
        add_bytes(m, (enum dtp_phase)phase, DTP_OWNER_ACTIVATIONS, (uint64_t)(kept.beside * tokens));
    add_bytes(m, DTP_PHASE_LOSS, DTP_OWNER_LOGITS, (uint64_t)(kept.loss * tokens));
    add_bytes(m, DTP_PHASE_EARLY_BACKWARD, DTP_OWNER_LOGITS, /* a bound has the loss there */
              (uint64_t)((m->bound ? fmax(kept.loss, kept.held) : kept.held) * tokens));
    add_bytes(m, DTP_PHASE_LATE_BACKWARD, DTP_OWNER_ACTIVATIONS, (uint64_t)(kept.backward * tokens));
    if (plan->pp > 1) {
        uint64_t rows = dtp_divide_up(stream_bytes, dtp_plan_scatters_sends(plan) ? plan->tp : 1);
        add_ranks(whole, plan, s, &kept, plan->runtime->copies_passes ? (uint64_t)in_flight(plan) * rows : 0,
                  dtp_divide_up(stream_bytes, s->plan.sequence_shards), m);
    }
    for (int phase = 0; phase < DTP_PHASE_STEP; phase++) { /* a matmul's gathered input; what stages exchange */
        uint64_t gathered = s->plan.sequence_shards > 1 ? read_bytes : 0;
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
    double more = (double)m->allocated_peak_bytes - (double)before;
    bool owned = plan->expandable_segments || plan->runtime->arena;
    double pieces = owned ? 0 : dtp_calibration.torch_fragmentation; /* as closed/memory.c */
    const double reserved = more + fmax(0, more) * pieces;           /* of less than the slice's peak its pieces stay */
    m->reserved_peak_bytes = changed(m->reserved_peak_bytes, reserved);
    m->device_peak_bytes = changed(m->device_peak_bytes, reserved);
    dtp_memory_judge(m);
}

void dtp_stages_memory_of_slice(const struct dtp_transformer *transformer, const struct dtp_cluster *cluster,
                                const struct dtp_plan *plan, struct dtp_memory *memory)
{
    const uint64_t elements = dtp_bytes_product(dtp_plan_tokens(plan), transformer->hidden);
    struct dtp_slice slice;
    dtp_slice_of(transformer, cluster, plan, &slice);
    fill_memory(transformer, plan, &slice, dtp_bytes_product(elements, dtp_plan_compute_bytes(plan)),
                dtp_bytes_product(elements, dtp_plan_stream_bytes(plan)), memory);
}
