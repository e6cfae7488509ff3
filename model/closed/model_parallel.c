/* Traffic and time of a slice among the others; the slice itself: model_parallel_slice.c. */
#include "closed/model_parallel.h"

#include "closed/adapted_work.h"
#include "closed/pipeline_time.h"
#include "closed/stage_launches.h"
#include "closed/activations.h"
#include "closed/closed_form_timing.h"
#include "base/bytes.h"
#include "plan/degrees.h"
#include "plan/runtime_sizes.h"
#include "cost/calibration.h"
#include "cost/cluster_cost.h"
#include "cost/collective_choice.h"
#include "cost/op_cost.h"
#include "closed/sharding.h"
#include "closed/tensor_calls.h"
#include "closed/time_parts.h"
#include "plan/slice.h"

#include <math.h>
#include <string.h>

/* ---- time -------------------------------------------------------------------------------------------------------- */

/* Of one micro-step: seconds of computing and of communication that nothing hides, of a slice. */
struct stages {
    double compute_s;                                    /* of all that the slice has */
    double tensor_s, boundary_s, gathered_s;             /* of one stage, all of it */
    double tensor_exposed_s;                             /* what matmuls do not hide of it, or lose to it */
    uint64_t tensor_bytes, tensor_count, boundary_bytes; /* sent by one GPU */
    uint64_t gathered_bytes, gathered_count;             /* by tensor parallel ranks, of what came from other stages */
    double layer_s, head_s;                              /* computing: of one layer; of head and loss */
    double idle_s; /* of computing, what the GPU idles for the host's calls on DTensors */
    struct dtp_tensor_calls calls;
    uint64_t joined_bytes, joined_count; /* of a step: gradients of a table that two stages have */
    double joined_s;
    struct dtp_tensor_exchanges besides; /* of a micro-step: what adapters or experts exchange, and its seconds */
    double besides_s[DTP_COLLECTIVE_COUNT];
    struct dtp_tensor_traffic own;                      /* as the runtime counts it; all 0: as above */
    double own_gathers_s, own_sums_s, own_reductions_s; /* of it: in a micro-step, in a step */
};

struct job {
    const struct dtp_transformer *transformer;
    const struct dtp_cluster *cluster;
    const struct dtp_plan *plan;
    struct dtp_slice slice;
    struct dtp_time_parts parts;
    double micro_steps;
    uint64_t stream_bytes; /* B: of the residual stream of a micro-step, in the compute dtype */
};

static struct dtp_group tensor_group(const struct job *j)
{
    struct dtp_stretch tensor = dtp_plan_group(j->plan, j->cluster, DTP_AXES(TP));
    return dtp_group_of(j->cluster, tensor.size, tensor.stride);
}

/* Of what is sent by tensor parallel ranks, what no matmul hides: with tp_overlap the last piece of each sum, and sums
 * are half of all. */
static double exposed_share(const struct dtp_plan *plan)
{
    return plan->tp_overlap && !plan->launch_blocking ? 1 / (2 * dtp_calibration.tp_overlap_pieces) : 1;
}

/* Seconds that `count` collectives beside products of `window_s` in all spare a micro-step: what is hidden, less what
 * the products lose meanwhile. On a host nothing runs beside anything. */
static double spared_s(const struct job *j, enum dtp_collective collective, uint64_t count, double one_s, double sent,
                       double window_s)
{
    struct dtp_group group = tensor_group(j);
    const struct dtp_execution execution = dtp_plan_execution(j->plan);
    double beside_s = fmin((double)count * one_s, window_s);
    if (!count || dtp_cluster_is_host(j->cluster) || one_s <= 0)
        return 0;
    return fmax(0, beside_s - dtp_collective_taken_s(j->cluster, &group, &execution, collective, beside_s,
                                                     sent * beside_s / one_s));
}

/* As the runtime counts them. */
static void add_own_tensor(const struct job *j, struct stages *s)
{
    struct dtp_group group = tensor_group(j);
    struct dtp_tensor_traffic *own = &s->own;
    const struct dtp_execution execution = dtp_plan_execution(j->plan);
    struct dtp_collective_cost gather =
        dtp_collective_cost_chosen(j->cluster, &group, &execution, DTP_ALL_GATHER, DTP_CARRIED_PLAIN);
    struct dtp_collective_cost scatter = dtp_collective_cost(j->cluster, &group, DTP_REDUCE_SCATTER);
    struct dtp_collective_cost reduce = dtp_collective_cost(j->cluster, &group, DTP_ALL_REDUCE);
    j->plan->runtime->closed->tensor_traffic(&j->slice, own);
    double sent = (double)j->stream_bytes * (j->plan->tp - 1) / j->plan->tp / fmax(1, (double)own->chunks);
    s->own_gathers_s = (double)own->gathers * dtp_collective_time(&gather, sent);
    if (own->small_gathers)
        s->own_gathers_s += (double)own->small_gathers *
                            dtp_collective_time(&gather, (double)own->small_bytes / (double)own->small_gathers);
    s->own_sums_s = (double)own->sums * dtp_collective_time(&scatter, sent);
    if (own->small_sums)
        s->own_sums_s += (double)own->small_sums *
                         dtp_collective_time(&scatter, (double)own->small_sum_bytes / (double)own->small_sums);
    if (own->reductions)
        s->own_reductions_s = (double)own->reductions *
                              dtp_collective_time(&reduce, (double)own->reduced_bytes / (double)own->reductions);
    double gather_s = dtp_collective_time(&gather, sent), scatter_s = dtp_collective_time(&scatter, sent);
    double forward_s = j->parts.matmul_forward_s / j->parts.matmul_speedup / j->micro_steps;
    double backward_s = j->parts.matmul_backward_s / j->parts.matmul_speedup / j->micro_steps;
    double gather_window_s = forward_s * own->gather_shares[0] + backward_s * own->gather_shares[1];
    double sum_window_s = forward_s * own->sum_shares[0] + backward_s * own->sum_shares[1];
    s->tensor_s = s->own_gathers_s + s->own_sums_s;
    s->tensor_exposed_s = s->tensor_s -
                          spared_s(j, DTP_ALL_GATHER, own->gathers_beside, gather_s, sent, gather_window_s) -
                          spared_s(j, DTP_REDUCE_SCATTER, own->sums_beside, scatter_s, sent, sum_window_s);
}

/* What tensor parallel ranks do once: seconds, bytes that one sends, pairs of a gather and a sum (or all-reduces). */
struct exchanged {
    double s, bytes;
    uint64_t count;
};

/* Of the stream, in so many bytes an element. */
static struct exchanged stream_exchanged(const struct job *j, unsigned element)
{
    struct dtp_group group = tensor_group(j);
    const double wider = (double)element / (double)dtp_plan_compute_bytes(j->plan);
    double sent = wider * (double)j->stream_bytes * (j->plan->tp - 1) / j->plan->tp;
    struct dtp_collective_cost gather = dtp_collective_cost(j->cluster, &group, DTP_ALL_GATHER);
    struct dtp_collective_cost scatter = dtp_collective_cost(j->cluster, &group, DTP_REDUCE_SCATTER);
    struct dtp_collective_cost reduce = dtp_collective_cost(j->cluster, &group, DTP_ALL_REDUCE);
    double s = j->plan->sequence_parallel ? dtp_collective_time(&gather, sent) + dtp_collective_time(&scatter, sent)
                                          : dtp_collective_time(&reduce, 2 * sent);
    return (struct exchanged){s, 2 * sent, 1};
}

/* Latent attention gathers what it projects up: the latent of queries (or the stream), that of keys and values and the
 * keys' part that all heads share; its result is summed as any. Backward is the same the other way. So a pass has
 * two pairs. */
static struct exchanged attention_exchanged(const struct job *j, const struct exchanged *stream)
{
    const struct dtp_transformer *t = j->transformer;
    if (!t->kv_latent)
        return *stream;
    if (dtp_plan_routes_all(j->plan)) /* dtp_routed_exchanges_of */
        return (struct exchanged){0, 0, 0};
    struct dtp_group group = tensor_group(j);
    struct dtp_collective_cost gather = dtp_collective_cost(j->cluster, &group, DTP_ALL_GATHER);
    struct dtp_collective_cost scatter = dtp_collective_cost(j->cluster, &group, DTP_REDUCE_SCATTER);
    const uint64_t widths[] = {t->q_latent ? t->q_latent : t->hidden, t->kv_latent, t->rope_head_dim};
    double sent = stream->bytes / 2;
    struct exchanged out = {dtp_collective_time(&scatter, sent), sent, 2};
    for (size_t i = 0; i < sizeof widths / sizeof *widths; i++) {
        double part = sent * (double)widths[i] / (double)t->hidden;
        out.s += dtp_collective_time(&gather, part), out.bytes += part;
    }
    return out;
}

/* Around a module that predicts further ahead, of the stage that has it: what its projection reads, twice as wide as
 * the stream, is gathered forward and again backward, where its gradient is summed; its result and that one's gradient
 * are gathered: 2 x 2 + 2 + 2 streams. Its rows of the embedding and its head are ends like the model's. Counted are
 * pairs, as of layers, where what backward gathers again is in none: two ends, the input, the result. */
static struct exchanged ahead_exchanged(const struct job *j, const struct exchanged *stream)
{
    struct dtp_group group = tensor_group(j);
    struct dtp_collective_cost gather = dtp_collective_cost(j->cluster, &group, DTP_ALL_GATHER);
    struct dtp_collective_cost scatter = dtp_collective_cost(j->cluster, &group, DTP_REDUCE_SCATTER);
    double sent = stream->bytes / 2, modules = (double)j->slice.transformer.ahead_layers;
    double once_s = 2 * dtp_collective_time(&gather, sent) + 2 * dtp_collective_time(&gather, 2 * sent) +
                    dtp_collective_time(&scatter, 2 * sent) + 2 * stream->s;
    return (struct exchanged){modules * once_s, modules * ((2 * 2 + 2 + 2) * sent + 2 * stream->bytes),
                              (2 + 1 + 1) * j->slice.transformer.ahead_layers};
}

/* Nothing hides what adapters and experts exchange. */
static void add_besides(const struct job *j, struct stages *s)
{
    struct dtp_group group = tensor_group(j);
    const bool whole = j->transformer->experts || j->transformer->kv_latent,
               routes = whole && dtp_plan_routes_all(j->plan);
    if (!dtp_plan_divides_adapters(j->plan) && !routes)
        return;
    s->besides = routes ? dtp_routed_exchanges_of(&j->slice.transformer, &j->slice.plan)
                        : dtp_adapter_exchanges_of(&j->slice.transformer, &j->slice.plan);
    for (int i = 0; i < DTP_COLLECTIVE_COUNT; i++) {
        const struct dtp_collective_cost cost = dtp_collective_cost(j->cluster, &group, (enum dtp_collective)i);
        const double count = (double)s->besides.count[i];
        s->besides_s[i] = count > 0 ? count * dtp_collective_time(&cost, (double)s->besides.bytes[i] / count) : 0;
        s->tensor_exposed_s += s->besides_s[i];
    }
}

/* Two pairs (or all-reduces) a layer forward and two backward; full recomputation repeats the forward ones. The
 * embedding and the head add one each at the ends. */
static void add_tensor(const struct job *j, struct stages *s)
{
    const struct dtp_plan *plan = j->plan;
    if (plan->tp < 2)
        return;
    if (plan->runtime->closed->tensor_traffic) {
        add_own_tensor(j, s);
        return;
    }
    struct exchanged stream = stream_exchanged(j, dtp_plan_compute_bytes(plan)),
                     attention = attention_exchanged(j, &stream);
    const struct dtp_transformer *t = &j->slice.transformer;
    bool divides_mlp = !t->experts || (t->shared_expert_ffn && !dtp_plan_routes_all(plan)); /* else attention's alone */
    uint64_t passes = plan->checkpointing == DTP_CHECKPOINT_FULL ? 3 : 2, mlp = divides_mlp ? passes : 0;
    const uint64_t layers = t->layers, others = layers - dtp_transformer_expert_layers(t, layers);
    const uint64_t dense = dtp_plan_routes_all(plan) && !divides_mlp ? passes * others : 0;
    const uint64_t ends = !dtp_plan_divides_vocab(plan) ? 0 : plan->pp > 1 ? 1 : 2;
    double share = exposed_share(plan), layer_s = (double)passes * attention.s + (double)mlp * stream.s;
    const struct exchanged ahead = ahead_exchanged(j, &stream);
    s->tensor_count = (passes * attention.count + mlp) * layers + dense + ends + ahead.count;
    const struct exchanged table = stream_exchanged(j, dtp_plan_stream_bytes(plan)); /* of the ends the embedding's */
    const double tables = ends ? 1 : 0, heads = (double)ends - tables;
    s->tensor_s = layer_s * (double)layers + stream.s * ((double)dense + heads) + table.s * tables + ahead.s;
    s->tensor_bytes = passes * layers * (uint64_t)attention.bytes + (mlp * layers + dense) * (uint64_t)stream.bytes +
                      (uint64_t)(table.bytes * tables + stream.bytes * heads + ahead.bytes);
    if (plan->gathered_logits) {
        const double sent = (double)j->stream_bytes / (double)j->transformer->hidden *
                            (double)j->slice.transformer.vocab * (plan->tp - 1);
        struct dtp_group group = tensor_group(j);
        struct dtp_collective_cost gather = dtp_collective_cost(j->cluster, &group, DTP_ALL_GATHER);
        s->tensor_count++, s->tensor_bytes += (uint64_t)sent, s->tensor_s += dtp_collective_time(&gather, sent);
    }
    s->tensor_exposed_s = share * s->tensor_s;
    add_besides(j, s);
}

static bool shares_node(const struct job *j, uint32_t apart)
{
    return apart < j->cluster->gpus_per_node;
}

/* A stage boundary is crossed forward with activations and backward with their gradients, once for each chunk, as wide
 * as the stream: fp32 under autocast. */
static void add_boundary(const struct job *j, struct stages *s)
{
    const struct dtp_plan *plan = j->plan;
    if (plan->pp < 2)
        return;
    bool part = plan->sequence_parallel || dtp_plan_scatters_sends(plan);
    uint64_t bytes = dtp_divide_up(j->stream_bytes / dtp_plan_compute_bytes(plan) * dtp_plan_stream_bytes(plan),
                                   part ? plan->tp : 1);
    uint64_t crossings = 2 * (uint64_t)plan->virtual_stages;
    if (dtp_plan_scatters_sends(plan)) {
        struct dtp_group group = tensor_group(j);
        struct dtp_collective_cost gather = dtp_collective_cost(j->cluster, &group, DTP_ALL_GATHER);
        double sent = (double)j->stream_bytes * (plan->tp - 1) / plan->tp;
        s->gathered_count = crossings + (plan->runtime->copies_passes ? 1 : 0); /* its result again, for backward */
        s->gathered_bytes = s->gathered_count * (uint64_t)sent;
        s->gathered_s = dtp_collective_time(&gather, sent) * (double)s->gathered_count;
    }
    s->boundary_bytes = crossings * bytes;
}

/* First and last stage have a copy each of a table that is embedding and head, or that a module which predicts further
 * ahead reads, and send each other its gradients at a step's end, in pieces (lower_joined.c). Nothing hides that. */
static void add_joined(const struct job *j, struct stages *s)
{
    const struct dtp_transformer *t = &j->slice.transformer;
    const struct dtp_closed_form_hooks *hooks = j->plan->runtime->closed;
    struct dtp_element_bytes bytes;
    if (!j->plan->head_rank || dtp_plan_adapts(j->plan) ||
        !(j->slice.plan.pipeline_two_tables || j->transformer->ahead_layers))
        return;
    dtp_element_bytes_count(j->plan, &bytes);
    s->joined_bytes = hooks->table_gradient_bytes
                          ? hooks->table_gradient_bytes(&j->slice)
                          : dtp_bytes_product(dtp_bytes_product(t->vocab, t->hidden), bytes.grads);
    s->joined_count = dtp_divide_up(s->joined_bytes, DTP_JOINED_PIECE_BYTES);
    s->joined_s = (double)s->joined_count *
                  dtp_stage_transfer_s(j->cluster, j->plan, 0, j->plan->head_rank, s->joined_bytes / s->joined_count);
}

/* Where the GPU idles for the host's calls, what is exchanged between matmuls hides in that. */
static void hide_in_calls(struct stages *s)
{
    s->tensor_exposed_s -= fmin(s->idle_s, s->tensor_exposed_s);
}

/* From the slice's own prediction, which has head and loss. */
static struct stages stages_of(const struct job *j, const struct dtp_time *slice)
{
    const struct dtp_tensor_calls calls = dtp_tensor_calls_of(&j->slice.transformer, j->cluster, j->plan);
    double whole_s = slice->compute_s / j->micro_steps, layers = (double)j->slice.transformer.layers;
    double ends_s = (j->parts.matmul_head_s / j->parts.matmul_speedup + j->parts.loss_s) / j->micro_steps;
    double host_s = slice->host_launch_s / j->micro_steps + layers * calls.layer_s + calls.ends_s;
    double idle_s = calls.layer_s > 0 ? fmax(0, host_s - whole_s) : 0;
    whole_s += idle_s;
    if (idle_s > 0)
        ends_s = fmax(ends_s, calls.ends_s);
    struct stages s = {.compute_s = whole_s,
                       .layer_s = (whole_s - ends_s) / layers,
                       .head_s = ends_s,
                       .idle_s = idle_s,
                       .calls = calls};
    add_tensor(j, &s);
    add_boundary(j, &s);
    add_joined(j, &s);
    return s;
}

/* What the passes of a layer take of it: F is a third of the matmuls, W another, and attention has no W (Qi et al.
 * 2024, table 1). Frozen matrices have none, and adapters' gradients of weights are made with those of inputs. */
static struct dtp_part_cost passes_of_layer(const struct dtp_plan *plan, const struct dtp_time_parts *p, double layer_s)
{
    double forward = p->matmul_forward_s + p->attention_forward_s + p->memory_forward_s;
    double weight = dtp_plan_adapts(plan) ? 0 : p->matmul_backward_s / 2;
    double backward = p->matmul_backward_s - weight + p->attention_backward_s + p->memory_backward_s +
                      p->matmul_recompute_s + p->recompute_other_s;
    double scale = layer_s / (forward + backward + weight);
    return (struct dtp_part_cost){
        .forward_s = forward * scale, .backward_s = backward * scale, .weight_s = weight * scale};
}

/* Of a micro-batch, what one of the model's layers without experts takes beyond one with: by one more in the slice. */
static struct dtp_stage_time first_of(const struct job *j)
{
    const double m = j->micro_steps;
    struct dtp_transformer other = j->slice.transformer;
    struct dtp_communication with;
    struct dtp_time_parts dense;
    if (!other.experts || (!j->transformer->dense_layers && dtp_transformer_kind_period(j->transformer) == 1))
        return (struct dtp_stage_time){0};
    other.dense_layers++;
    dtp_closed_form_communication(&other, &j->slice.cluster, &j->slice.plan, &with);
    dtp_closed_form_time_parts(&other, &j->slice.cluster, &j->slice.plan, &with, &dense);
    return (struct dtp_stage_time){(dense.device_s - j->parts.device_s) / m, (dense.host_s - j->parts.host_s) / m,
                                   (dense.exchanged_s - j->parts.exchanged_s) / m};
}

/* What stages consist of. Layers are what a slice of twice as many has more of, those with experts where there are any;
 * ends what it has once, and the slice's layers without experts. */
static struct dtp_pipeline_parts parts_of(const struct job *j, const struct stages *s,
                                          const struct dtp_communication *communication)
{
    const struct dtp_execution execution = dtp_plan_execution(j->plan);
    const struct dtp_time_parts *once = &j->parts;
    const double m = j->micro_steps, layers = (double)j->slice.transformer.layers;
    double collectives = s->calls.layer_s > 0
                             ? 0 /* which has them */
                             : (double)(s->tensor_count * (j->plan->sequence_parallel ? 2 : 1) + s->own.gathers +
                                        s->own.small_gathers + s->own.sums + s->own.small_sums);
    for (int i = 0; i < DTP_COLLECTIVE_COUNT; i++) /* of context parallel ranks */
        collectives += (double)communication->context[i].count / m;
    const double collectives_s = collectives * dtp_cluster_collective_launch_s(j->cluster, &execution);
    const struct dtp_block_work block =
        dtp_block_work(&j->slice.transformer, DTP_LAYER_DENSE, &j->slice.cluster, &j->slice.plan);
    const double hooks_s = dtp_root_hooks_s(&j->slice.plan);
    struct dtp_transformer other = j->slice.transformer;
    struct dtp_time_parts twice;
    const struct dtp_stage_time first = first_of(j);
    const double without = (double)other.dense_layers;
    other.layers *= 2;
    dtp_closed_form_time_parts(&other, &j->slice.cluster, &j->slice.plan, communication, &twice);
    const struct dtp_parameter_count count = dtp_transformer_count(&j->slice.transformer);
    const double share = (double)count.layers / (double)count.total;
    const bool shards = dtp_plan_shards_params(j->plan);
    const double ends_s = fmax(0, (2 * once->host_s - twice.host_s) / m - without * first.launched_s),
                 table_s = fmin(block.table_kernels * once->launch_s, ends_s);
    struct dtp_pipeline_parts out = {
        .transformer = j->transformer,
        .cluster = j->cluster,
        .plan = j->plan,
        .shares = passes_of_layer(j->plan, once, 1),
        .layer = {.device_s = (twice.device_s - once->device_s) / (m * layers),
                  .launched_s =
                      (twice.host_s - once->host_s) / (m * layers) + s->calls.layer_s + collectives_s / layers,
                  .exchanged_s = (s->tensor_exposed_s + once->exchanged_s / m - without * first.exchanged_s) / layers},
        .first = first,
        .ends = {.device_s = fmax(0, (2 * once->device_s - twice.device_s) / m - without * first.device_s),
                 .launched_s = ends_s - table_s + hooks_s + s->calls.ends_s - s->calls.table_s},
        .table = {.launched_s = table_s + hooks_s + s->calls.table_s},
        .gathered_s = s->gathered_s / j->plan->virtual_stages,
        .layer_gather_s = shards ? once->gathered_s * share / layers : 0,
        .experts_gather_s = shards ? once->experts_gathered_s / fmax(1, layers - without) : 0,
        .sent_bytes = s->boundary_bytes / (2 * (uint64_t)j->plan->virtual_stages)};
    return out;
}

/* Of each kind of kernel a rank of a pipeline has as much of the slice's as of all of them. */
static void fill_compute(const struct job *j, const struct dtp_pipeline_time *p, struct dtp_time *t)
{
    double *parts[] = {&t->matmul_s, &t->attention_s, &t->memory_bound_s, &t->loss_s, &t->recompute_s};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        *parts[i] *= p->mean.device_s / j->parts.device_s;
    t->host_launch_s = p->mean.launched_s;
    t->launch_wait_s = p->launch_wait_s;
    t->compute_s = p->mean.device_s + p->launch_wait_s;
}

/* What a step's communication takes, of which so much of what goes between layers and stages is exposed. */
static void fill_exchanges(const struct job *j, const struct stages *s, double exposed_s, struct dtp_time *t)
{
    const double m = j->micro_steps;
    t->exposed_communication_s += exposed_s + s->joined_s;
    t->communication_s += m * (s->tensor_s + s->boundary_s + s->gathered_s) + s->joined_s;
    t->collective_s[DTP_SEND_RECV] += m * s->boundary_s + s->joined_s;
    t->collective_s[DTP_ALL_GATHER] += m * s->gathered_s;
    for (int i = 0; i < DTP_COLLECTIVE_COUNT; i++) {
        t->collective_s[i] += m * s->besides_s[i];
        t->communication_s += m * s->besides_s[i];
    }
    if (j->plan->tp > 1 && j->plan->runtime->closed->tensor_traffic) {
        t->collective_s[DTP_ALL_GATHER] += m * s->own_gathers_s;
        t->collective_s[DTP_REDUCE_SCATTER] += m * s->own_sums_s;
        t->collective_s[DTP_ALL_REDUCE] += s->own_reductions_s;
        t->communication_s += s->own_reductions_s;
        t->exposed_communication_s += s->own_reductions_s;
    } else if (j->plan->sequence_parallel) {
        t->collective_s[DTP_ALL_GATHER] += m * s->tensor_s / 2;
        t->collective_s[DTP_REDUCE_SCATTER] += m * s->tensor_s / 2;
    } else {
        t->collective_s[DTP_ALL_REDUCE] += m * s->tensor_s;
    }
}

/* Of what sums of a slice's gradients take, a layer's part and that of the tables. */
static void share_sums(const struct job *j, double sums_s, struct dtp_pipeline_parts *out)
{
    const struct dtp_parameter_count count = dtp_transformer_count(&j->slice.transformer);
    const double share = (double)count.layers / (double)count.total;
    out->last_layer_s = sums_s * share / (double)j->slice.transformer.layers;
    out->last_table_s = sums_s * (1 - share);
}

/* Calls on DTensors that the host is behind with are those of the optimizer too. */
static enum dtp_status fill_time(const struct job *j, struct stages *s, const struct dtp_communication *communication,
                                 struct dtp_time *t)
{
    const struct dtp_closed_form_hooks *hooks = j->plan->runtime->closed;
    const double m = j->micro_steps;
    struct dtp_pipeline_time p = {.computing_s = m * s->compute_s};
    enum dtp_status status = DTP_OK;
    if (j->plan->pp > 1) {
        struct dtp_pipeline_parts parts = parts_of(j, s, communication);
        const double sums_s = fmax(0, j->parts.not_hidden_s - j->parts.exchanged_s + j->parts.contention_s);
        const bool before = hooks->sums_before_sending && hooks->sums_before_sending(j->plan);
        if (before)
            share_sums(j, sums_s, &parts);
        status = dtp_pipeline_time_of(&parts, &p);
        p.exchange_s += before ? sums_s : 0;
        t->exposed_communication_s = before ? 0 : sums_s;
        s->boundary_s = p.sent_s / m;
        fill_compute(j, &p, t);
    } else {
        hide_in_calls(s);
        p.passes_s = p.computing_s + m * s->tensor_exposed_s;
        p.exchange_s = m * s->tensor_exposed_s;
        t->launch_wait_s += m * s->idle_s;
        t->host_launch_s += m * s->idle_s;
        t->compute_s = p.computing_s;
        t->exposed_communication_s = fmax(0, t->exposed_communication_s - m * s->idle_s);
    }
    if (s->calls.layer_s > 0 && t->launch_wait_s > 0)
        t->optimizer_s = fmax(t->optimizer_s, ((double)j->slice.transformer.layers + 2) * s->calls.step_s);
    const double waiting_s = fmax(0, p.passes_s - p.computing_s), own_s = fmin(waiting_s, p.exchange_s + p.sent_s);
    t->bubble_s = j->plan->pp > 1 ? fmax(0, p.passes_s - t->compute_s - own_s) : 0;
    fill_exchanges(j, s, own_s, t);
    const struct dtp_execution execution = dtp_plan_execution(j->plan);
    const double slowest = dtp_slowest_rank_factor(j->cluster->gpus, dtp_rank_deviation(&execution));
    const double device_s = p.computing_s + t->optimizer_s, data_s = t->exposed_communication_s - own_s;
    t->step_s = slowest * device_s + waiting_s + data_s;
    t->step_perfect_overlap_s = fmax(device_s, t->communication_s);
    t->step_no_overlap_s = t->step_s + fmax(0, t->communication_s - t->exposed_communication_s);
    return status;
}

static void fill_throughput(const struct job *j, const struct dtp_time *time, struct dtp_throughput *t)
{
    double hardware = t->mfu > 0 ? t->hfu / t->mfu : 1, gpus = j->cluster->gpus;
    double tokens = (double)dtp_plan_tokens(j->plan) * j->micro_steps * j->slice.cluster.gpus;
    t->tokens_per_s = tokens / time->step_s;
    t->tokens_per_s_per_gpu = t->tokens_per_s / gpus;
    t->flops_per_s_per_gpu =
        t->tokens_per_s_per_gpu * dtp_transformer_model_flops_per_token(j->transformer, j->plan->sequence);
    t->mfu = t->flops_per_s_per_gpu / j->cluster->gpu.peak_flops_per_s[j->plan->precision.compute];
    t->hfu = t->mfu * hardware;
}

/* ---- communication ----------------------------------------------------------------------------------------------- */

static void fill_communication(const struct job *j, const struct stages *s, struct dtp_communication *c)
{
    uint64_t m = j->plan->accumulate, tensor = dtp_bytes_product(m, s->tensor_bytes);
    uint64_t boundary = dtp_bytes_product(m, s->boundary_bytes), gathered = dtp_bytes_product(m, s->gathered_bytes);
    const uint32_t apart = dtp_stages_apart(j->cluster, j->plan);
    const bool inside = shares_node(j, apart), near = tensor_group(j).nodes == 1,
               ends_inside = shares_node(j, apart * j->plan->head_rank);
    if (j->plan->tp > 1 && j->plan->runtime->closed->tensor_traffic) {
        uint64_t rows = dtp_bytes_product(dtp_divide_up(j->stream_bytes, j->plan->tp), j->plan->tp - 1) /
                        (s->own.chunks ? s->own.chunks : 1);
        uint64_t gathers = dtp_bytes_product(m, dtp_bytes_product(s->own.gathers, rows) + s->own.small_bytes);
        uint64_t sums = dtp_bytes_product(m, dtp_bytes_product(s->own.sums, rows) + s->own.small_sum_bytes);
        c->bytes[DTP_ALL_GATHER] += gathers;
        c->bytes[DTP_REDUCE_SCATTER] += sums;
        c->bytes[DTP_ALL_REDUCE] += s->own.reduced_bytes;
        c->count[DTP_ALL_GATHER] += m * (s->own.gathers + s->own.small_gathers);
        c->count[DTP_REDUCE_SCATTER] += m * (s->own.sums + s->own.small_sums);
        c->count[DTP_ALL_REDUCE] += s->own.reductions;
        tensor = gathers + sums + s->own.reduced_bytes;
    } else if (j->plan->sequence_parallel) {
        c->bytes[DTP_ALL_GATHER] += tensor / 2;
        c->bytes[DTP_REDUCE_SCATTER] += tensor - tensor / 2;
        c->count[DTP_ALL_GATHER] += m * s->tensor_count;
        c->count[DTP_REDUCE_SCATTER] += m * s->tensor_count;
    } else {
        c->bytes[DTP_ALL_REDUCE] += tensor;
        c->count[DTP_ALL_REDUCE] += m * s->tensor_count;
    }
    for (int i = 0; i < DTP_COLLECTIVE_COUNT; i++) {
        const uint64_t bytes = dtp_bytes_product(m, s->besides.bytes[i]);
        c->bytes[i] += bytes;
        c->count[i] += m * s->besides.count[i];
        tensor += bytes;
    }
    const uint64_t norm = dtp_plan_norm_bytes(j->plan, j->plan->tp);
    c->bytes[DTP_ALL_REDUCE] += norm;
    c->count[DTP_ALL_REDUCE] += norm > 0;
    tensor += norm;
    c->bytes[DTP_SEND_RECV] += boundary + s->joined_bytes;
    c->count[DTP_SEND_RECV] += (boundary ? m * 2 * j->plan->virtual_stages : 0) + s->joined_count;
    c->bytes[DTP_ALL_GATHER] += gathered;
    c->count[DTP_ALL_GATHER] += m * s->gathered_count;
    c->total_bytes += tensor + gathered + boundary + s->joined_bytes;
    c->link_bytes += (near ? tensor + gathered : 0) + (inside ? boundary : 0) + (ends_inside ? s->joined_bytes : 0);
    c->network_bytes += (near ? 0 : tensor + gathered) + (inside ? 0 : boundary) + (ends_inside ? 0 : s->joined_bytes);
}

static struct job job_of(const struct dtp_transformer *transformer, const struct dtp_cluster *cluster,
                         const struct dtp_plan *plan)
{
    struct job j = {.transformer = transformer, .cluster = cluster, .plan = plan, .micro_steps = plan->accumulate};
    dtp_slice_of(transformer, cluster, plan, &j.slice);
    j.stream_bytes = dtp_bytes_product(dtp_plan_tokens(plan), transformer->hidden * dtp_plan_compute_bytes(plan));
    return j;
}

enum dtp_status dtp_stages_of_slice(const struct dtp_transformer *transformer, const struct dtp_cluster *cluster,
                                    const struct dtp_plan *plan, struct dtp_prediction *out)
{
    struct job j = job_of(transformer, cluster, plan);
    if (plan->pp > 1)
        j.slice.plan.megatron.bf16_first = 0; /* as dtp_closed_form */
    dtp_closed_form_time_parts(&j.slice.transformer, &j.slice.cluster, &j.slice.plan, &out->communication, &j.parts);
    struct stages stages = stages_of(&j, &out->time);
    enum dtp_status status = fill_time(&j, &stages, &out->communication, &out->time);
    fill_throughput(&j, &out->time, &out->throughput);
    fill_communication(&j, &stages, &out->communication);
    return status;
}

/* Bytes of a micro-batch in one layer. */
static void fill_kept(const struct job *j, struct dtp_part_cost *layer)
{
    const struct dtp_slice *s = &j->slice;
    struct dtp_layer_tensors tensors;
    dtp_layer_tensors_of(&s->transformer, dtp_layer_mlp_of(&s->transformer), &s->cluster, &s->plan, &tensors);
    double tokens = (double)dtp_plan_tokens(j->plan);
    layer->kept = (double)dtp_layer_tensors_bytes(&tensors, tensors.kept) * tokens;
    layer->kept_for_weight = (double)dtp_activations_for_weights(&s->plan, &tensors) * tokens;
}

/* What orders of passes and cuts into stages are searched by, all of a model's transfers alike: the price that steps
 * went by before transfer_s, which has a transfer's place and more ranks at once. Orders once searched stay so, for
 * what one takes is told by its program, with the transfers' own places. */
static double searched_send_s(const struct job *j, uint64_t bytes)
{
    const struct dtp_cluster *c = j->cluster;
    const struct dtp_group pair = dtp_group_of(c, 2, dtp_stages_apart(c, j->plan));
    const struct dtp_collective_cost sends = dtp_collective_cost(c, &pair, DTP_SEND_RECV);
    const double rate = shares_node(j, dtp_stages_apart(c, j->plan))
                            ? dtp_cluster_link_bytes_per_s(c) * dtp_calibration.ring_link_fraction
                            : dtp_cluster_network_bytes_per_s(c) / c->gpus_per_node * dtp_network_fraction(c, 2);
    return sends.measured ? dtp_collective_time(&sends, (double)bytes)
                          : (double)bytes / rate + dtp_calibration.send_latency_s;
}

/* What tensor parallel ranks exchange stands in the layers, half of it forward. */
void dtp_part_costs_of_slice(const struct dtp_transformer *transformer, const struct dtp_cluster *cluster,
                             const struct dtp_plan *plan, struct dtp_part_cost *layer, struct dtp_part_cost *head,
                             double *send_s)
{
    struct dtp_plan even = *plan;
    struct dtp_prediction slice;
    even.stages.cut = DTP_STAGE_CUT_EVEN;
    struct job j = job_of(transformer, cluster, &even);
    j.slice.plan.megatron.bf16_first = 0; /* all layers are taken for alike */
    dtp_closed_form(&j.slice.transformer, &j.slice.cluster, &j.slice.plan, &slice);
    dtp_closed_form_time_parts(&j.slice.transformer, &j.slice.cluster, &j.slice.plan, &slice.communication, &j.parts);
    struct stages s = stages_of(&j, &slice.time);
    hide_in_calls(&s);
    double exchanged_s = s.tensor_exposed_s / (double)j.slice.transformer.layers;
    *layer = passes_of_layer(plan, &j.parts, s.layer_s);
    layer->forward_s += exchanged_s / 2, layer->backward_s += exchanged_s / 2;
    fill_kept(&j, layer);
    *head = dtp_passes_of_head(plan, s.head_s);
    *send_s = searched_send_s(&j, s.boundary_bytes / (2 * (uint64_t)plan->virtual_stages));
}
