/* Traffic and time of a slice among the others; the slice itself: model_parallel_slice.c. */
#include "closed/model_parallel.h"

#include "closed/activations.h"
#include "closed/closed_form_timing.h"
#include "base/bytes.h"
#include "plan/degrees.h"
#include "plan/runtime_sizes.h"
#include "cost/calibration.h"
#include "cost/collective_choice.h"
#include "cost/op_cost.h"
#include "closed/sharding.h"
#include "closed/tensor_calls.h"
#include "closed/time_parts.h"
#include "plan/slice.h"

#include <math.h>
#include <string.h>

/* ---- time -------------------------------------------------------------------------------------------------------- */

/* Of one micro-step: the stages' seconds of computing and of communication that nothing hides. */
struct stages {
    double slowest_s, sum_s;                 /* computing: of the slowest stage; of all stages */
    double alike_s;                          /* of the slowest, were all its layers the slice's */
    double wait_slowest_s, wait_sum_s;       /* communication between matmuls and stages, exposed */
    double tensor_s, boundary_s, gathered_s; /* of one stage, all of it */
    double send_s, both_sends_s;             /* of a transfer between stages; to both of a rank's neighbours */
    double tensor_exposed_s;                 /* what matmuls do not hide of it, or lose to it */
    uint64_t tensor_bytes, tensor_count, boundary_bytes; /* sent by one GPU */
    uint64_t gathered_bytes, gathered_count;             /* by tensor parallel ranks, of what came from other stages */
    double layer_s, head_s;                              /* computing: of one layer; of head and loss */
    double idle_s;                       /* of computing, what the GPU idles for the host's calls on DTensors */
    double launch_s;                     /* of a pipeline's rank, in a step: what its host takes to launch kernels */
    double piped_s;                      /* of a slice's step: waits for launches that are in launch_s alone */
    double step_calls_s;                 /* of the optimizer, in a step: what such calls take */
    uint64_t joined_bytes, joined_count; /* of a step: gradients of a table that two stages have */
    double joined_s;
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
    bool searches;         /* what is asked for are times that orders of passes are searched by: searched_send_s */
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
    s->wait_slowest_s += s->tensor_exposed_s;
    s->wait_sum_s += s->tensor_exposed_s * (double)j->transformer->layers / (double)j->slice.transformer.layers;
}

/* What tensor parallel ranks do once: seconds, bytes that one sends, pairs of a gather and a sum (or all-reduces). */
struct exchanged {
    double s, bytes;
    uint64_t count;
};

/* Of the stream. */
static struct exchanged stream_exchanged(const struct job *j)
{
    struct dtp_group group = tensor_group(j);
    double sent = (double)j->stream_bytes * (j->plan->tp - 1) / j->plan->tp;
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
    struct exchanged stream = stream_exchanged(j), attention = attention_exchanged(j, &stream);
    bool divides_mlp = !j->transformer->experts || j->transformer->shared_expert_ffn; /* else attention's alone */
    uint64_t passes = plan->checkpointing == DTP_CHECKPOINT_FULL ? 3 : 2, mlp = divides_mlp ? passes : 0;
    uint64_t layers = j->slice.transformer.layers, all_ends = dtp_plan_divides_vocab(plan) ? 2 : 0;
    uint64_t ends = plan->pp > 1 ? all_ends / 2 : all_ends;
    double share = exposed_share(plan), layer_s = (double)passes * attention.s + (double)mlp * stream.s;
    const struct exchanged ahead = ahead_exchanged(j, &stream);
    s->tensor_count = (passes * attention.count + mlp) * layers + ends + ahead.count;
    s->tensor_s = layer_s * (double)layers + stream.s * (double)ends + ahead.s;
    s->tensor_bytes = passes * layers * (uint64_t)attention.bytes + (mlp * layers + ends) * (uint64_t)stream.bytes +
                      (uint64_t)ahead.bytes;
    s->tensor_exposed_s = share * s->tensor_s;
    s->wait_slowest_s += s->tensor_exposed_s;
    s->wait_sum_s += share * (layer_s * (double)j->transformer->layers + (double)all_ends * stream.s + ahead.s);
}

/* Stages are so many ranks apart, in one node where those fit: dp*tp by default. */
static uint32_t stages_apart(const struct job *j)
{
    return (uint32_t)dtp_plan_group(j->plan, j->cluster, DTP_AXES(PP)).stride;
}

static bool shares_node(const struct job *j, uint32_t apart)
{
    return apart < j->cluster->gpus_per_node;
}

/* Of a transfer, from each rank of a stage to one of another at once. */
static double transfer_s(const struct job *j, uint32_t from, uint32_t to, uint64_t bytes)
{
    const struct dtp_group pair = dtp_group_pair(j->cluster, from, to, stages_apart(j));
    const struct dtp_collective_cost sends = dtp_collective_cost(j->cluster, &pair, DTP_SEND_RECV);
    return dtp_collective_time(&sends, (double)bytes);
}

/* Between neighbouring stages, of which some share a node where these lie on several: the mean, and of the two that one
 * rank has, at the most. */
static double boundary_s(const struct job *j, uint64_t bytes, double *both_s)
{
    const uint32_t apart = stages_apart(j), node = j->cluster->gpus_per_node, pp = j->plan->pp;
    uint32_t near = 0, near_rank = 0, far_rank = 0;
    for (uint32_t i = 0; i + 1 < pp; i++)
        if (i * apart / node == (i + 1) * apart / node)
            near++, near_rank = i * apart;
        else
            far_rank = i * apart;
    const double far = pp - 1 - near, near_s = near > 0 ? transfer_s(j, near_rank, near_rank + apart, bytes) : 0,
                 far_s = far > 0 ? transfer_s(j, far_rank, far_rank + apart, bytes) : 0;
    const bool lone = near > 0 && far > 0; /* both neighbours of a rank are far only where no two share a node */
    *both_s = pp == 2 || lone ? near_s + far_s : 2 * (near_s + far_s);
    return (near * near_s + far * far_s) / (pp - 1);
}

/* A stage boundary is crossed forward with activations and backward with their gradients, once for each chunk. */
static void add_boundary(const struct job *j, struct stages *s)
{
    const struct dtp_plan *plan = j->plan;
    if (plan->pp < 2)
        return;
    bool part = plan->sequence_parallel || dtp_plan_scatters_sends(plan);
    uint64_t bytes = dtp_divide_up(j->stream_bytes, part ? plan->tp : 1);
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
    s->send_s = boundary_s(j, bytes, &s->both_sends_s);
    s->boundary_s = (double)crossings * s->send_s;
    s->wait_slowest_s += s->gathered_s;
    s->wait_sum_s += s->gathered_s * plan->pp;
}

/* First and last stage have a copy each of a table that is embedding and head, or that a module which predicts further
 * ahead reads, and send each other its gradients at a step's end, in pieces (lower_joined.c). Nothing hides that. */
static void add_joined(const struct job *j, struct stages *s)
{
    const struct dtp_transformer *t = &j->slice.transformer;
    const struct dtp_closed_form_hooks *hooks = j->plan->runtime->closed;
    struct dtp_element_bytes bytes;
    if (!j->plan->head_rank || !(j->slice.plan.pipeline_two_tables || j->transformer->ahead_layers))
        return;
    dtp_element_bytes_count(j->plan, &bytes);
    s->joined_bytes = hooks->table_gradient_bytes
                          ? hooks->table_gradient_bytes(&j->slice)
                          : dtp_bytes_product(dtp_bytes_product(t->vocab, t->hidden), bytes.grads);
    s->joined_count = dtp_divide_up(s->joined_bytes, DTP_JOINED_PIECE_BYTES);
    uint32_t apart = stages_apart(j) * j->plan->head_rank;
    s->joined_s = (double)s->joined_count * transfer_s(j, 0, apart, s->joined_bytes / s->joined_count);
}

/* What the model's first layers without experts take beyond as many with experts, exchanges too, in a micro-step; below
 * 0: less. By a slice that has one: where it waits for launches, these hide exchanges, so that both count as one. */
static double dense_layers_s(const struct job *j, const struct dtp_time *slice)
{
    struct dtp_slice one = j->slice;
    struct dtp_prediction with;
    if (j->plan->pp < 2 || !j->transformer->experts || !j->transformer->dense_layers)
        return 0;
    one.transformer.dense_layers = 1;
    dtp_closed_form(&one.transformer, &one.cluster, &one.plan, &with);
    double more_s = with.time.compute_s + with.time.exposed_communication_s - slice->compute_s;
    return (double)j->transformer->dense_layers * (more_s - slice->exposed_communication_s) / j->micro_steps;
}

/* Where the GPU idles for the host's calls, what is exchanged between matmuls hides in that, of all stages alike. */
static void hide_in_calls(const struct job *j, struct stages *s)
{
    double hidden_s = fmin(s->idle_s, s->tensor_exposed_s);
    s->tensor_exposed_s -= hidden_s;
    s->wait_slowest_s -= hidden_s;
    s->wait_sum_s -= hidden_s * (double)j->transformer->layers / (double)j->slice.transformer.layers;
}

/* From the slice's own prediction, in which every stage has the head. Where the layers do not divide, the last stage,
 * which has the head, takes fewer. The first stage has the first layers, which may take longer than others. */
static struct stages stages_of(const struct job *j, const struct dtp_time *slice)
{
    const struct dtp_tensor_calls calls = dtp_tensor_calls_of(&j->slice.transformer, j->cluster, j->plan);
    /* Where kernels wait for launches, a pipeline's first micro-batch finds them launched (launched_s); by 1F1B hosts
     * wait for what their ranks receive, and so they do where Python calls pass by pass. */
    const bool ahead =
        j->plan->pp > 1 && j->plan->schedule != DTP_SCHEDULE_1F1B && !j->searches && !j->plan->runtime->holds_passes;
    double piped_s = ahead ? slice->launch_wait_s : 0;
    double whole_s = (slice->compute_s - piped_s) / j->micro_steps, of_stage = (double)j->slice.transformer.layers;
    double ends_s = (j->parts.matmul_head_s / j->parts.matmul_speedup + j->parts.loss_s) / j->micro_steps;
    double host_s = slice->host_launch_s / j->micro_steps + of_stage * calls.layer_s + calls.ends_s;
    double idle_s = calls.layer_s > 0 ? fmax(0, host_s - whole_s) : 0;
    whole_s += idle_s;
    if (idle_s > 0)
        ends_s = fmax(ends_s, calls.ends_s);
    double layer_s = (whole_s - ends_s) / of_stage, layers = (double)j->transformer->layers;
    double last_s = (j->plan->pp > 1 ? (double)j->plan->head_layers : layers) * layer_s + ends_s;
    double dense_s = dense_layers_s(j, slice), alike_s = j->plan->pp > 1 ? fmax(of_stage * layer_s, last_s) : whole_s;
    double first_s = of_stage * layer_s + dense_s * fmin(1, of_stage / fmax(1, (double)j->transformer->dense_layers));
    struct stages s = {.slowest_s = fmax(alike_s, first_s),
                       .alike_s = alike_s,
                       .sum_s = layers * layer_s + dense_s + ends_s,
                       .layer_s = layer_s,
                       .head_s = ends_s,
                       .idle_s = idle_s,
                       .launch_s = ahead && !(idle_s > 0) ? slice->host_launch_s : 0,
                       .piped_s = piped_s,
                       .step_calls_s = idle_s > 0 ? (of_stage + 2) * calls.step_s : 0};
    add_tensor(j, &s);
    hide_in_calls(j, &s);
    add_boundary(j, &s);
    add_joined(j, &s);
    return s;
}

/* What the passes of a layer take of it: F is a third of the matmuls, W another, and attention has no W (Qi et al.
 * 2024, table 1). */
static struct dtp_part_cost passes_of_layer(const struct dtp_time_parts *p, double layer_s)
{
    double forward = p->matmul_forward_s + p->attention_forward_s + p->memory_forward_s;
    double weight = p->matmul_backward_s / 2;
    double backward =
        weight + p->attention_backward_s + p->memory_backward_s + p->matmul_recompute_s + p->recompute_other_s;
    double scale = layer_s / (forward + backward + weight);
    return (struct dtp_part_cost){
        .forward_s = forward * scale, .backward_s = backward * scale, .weight_s = weight * scale};
}

/* Of the drain, in which each stage waits for the gradient of the one behind it, what that one leaves until it has sent
 * this (plan.executor.delay_wgrad). */
static double delayed_s(const struct job *j, const struct stages *s)
{
    const struct dtp_plan *plan = j->plan;
    double layers = fmin(plan->executor.delay_wgrad, (double)(j->slice.transformer.layers / plan->virtual_stages));
    return layers > 0 ? (plan->pp - 1) * layers * passes_of_layer(&j->parts, s->layer_s).weight_s : 0;
}

/* Where a rank's passes wait until what they send is taken, 1F1B's do each time: a micro-batch sends there and back, on
 * ranks between two others at both sides. */
static double blocked_s(const struct job *j, const struct stages *s)
{
    const struct dtp_plan *plan = j->plan;
    if (plan->schedule != DTP_SCHEDULE_1F1B || plan->runtime->sends_beside)
        return 0;
    return s->both_sends_s;
}

/* All hosts launch at once, so that what a rank's takes is waited for once, and behind the last of it the gradient of
 * the last micro-batch passes the other ranks, whose kernels are launched by then. */
static double launched_s(const struct stages *s, double backward_s, double pp)
{
    return s->launch_s > 0 ? s->launch_s + (pp - 1) * backward_s : 0;
}

/* Of a step's passes, where stages take so long of a micro-batch, and transfers `sends` times as long as they do. */
static double pipeline_s(const struct job *j, const struct stages *s, double slowest_s, double sum_s, double sends)
{
    if (j->plan->pp < 2)
        return j->micro_steps * slowest_s;
    struct dtp_schedule_shape shape = dtp_plan_schedule(j->plan);
    const struct dtp_part_cost part = passes_of_layer(&j->parts, sum_s / j->plan->pp);
    const struct dtp_stage_cost mean = {.forward_s = part.forward_s,
                                        .backward_s = part.backward_s,
                                        .weight_s = part.weight_s,
                                        .send_s = sends * s->send_s};
    const double more_s = sends * blocked_s(j, s);
    shape.chunks = j->plan->virtual_stages;
    /* Python walks the graph for B and for W, and takes what splitting saves (split_group_s of constants.def) */
    if (j->plan->runtime->holds_passes && dtp_schedule_row(shape.kind)->backward != DTP_BACKWARD_WHOLE)
        shape.kind = DTP_SCHEDULE_INTERLEAVED;
    const bool whole = dtp_schedule_row(shape.kind)->backward == DTP_BACKWARD_WHOLE;
    const double weight_s = whole ? mean.weight_s : 0;
    const struct dtp_stage_cost at_once = {mean.forward_s, mean.backward_s, mean.weight_s, 0, 0, 0, 0};
    double blocked = more_s > 0 ? dtp_schedule_step_s(&shape, &at_once, slowest_s) +
                                      2 * (j->plan->pp - 1) * mean.send_s + (j->micro_steps - 1) * more_s
                                : 0;
    return fmax(fmax(dtp_schedule_step_s(&shape, &mean, slowest_s), blocked),
                launched_s(s, (mean.backward_s + weight_s) / shape.chunks + mean.send_s, j->plan->pp));
}

static void fill_time(const struct job *j, const struct stages *s, struct dtp_time *t)
{
    double m = j->micro_steps, pp = j->plan->pp;
    t->launch_wait_s += m * s->idle_s - s->piped_s;
    t->host_launch_s += m * s->idle_s;
    /* What of a step hides in waits for launches, of a pipeline's is over before the last backward. */
    if (s->launch_s > 0)
        t->exposed_communication_s = fmax(t->exposed_communication_s, j->parts.not_hidden_s + j->parts.contention_s);
    t->exposed_communication_s = fmax(0, t->exposed_communication_s - m * s->idle_s);
    t->optimizer_s = fmax(t->optimizer_s, s->step_calls_s);
    const double passes_s = pipeline_s(j, s, s->slowest_s, s->sum_s, 0), computing_s = passes_s - delayed_s(j, s);
    double waiting_s = m * s->wait_slowest_s;
    if (pp >= 2)
        waiting_s = pipeline_s(j, s, s->slowest_s + s->wait_slowest_s, s->sum_s + s->wait_sum_s, 1) - passes_s;
    double own_s = m * s->sum_s / pp; /* of an average stage */
    double own_wait_s = fmin(waiting_s, m * (s->wait_sum_s / pp + s->boundary_s));
    struct dtp_execution execution = dtp_plan_execution(j->plan);
    double slowest = dtp_slowest_rank_factor(j->cluster->gpus, dtp_rank_deviation(&execution));
    double share = s->sum_s / (pp * s->alike_s); /* of the slice's parts */
    double *parts[] = {&t->matmul_s, &t->attention_s, &t->memory_bound_s,
                       &t->loss_s,   &t->recompute_s, &t->launch_wait_s};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        *parts[i] *= share;
    t->compute_s = own_s;
    t->bubble_s = fmax(0, computing_s - own_s + waiting_s - own_wait_s); /* of one stage none, but for rounding */
    t->exposed_communication_s += own_wait_s;
    t->communication_s += m * (s->tensor_s + s->boundary_s + s->gathered_s);
    t->exposed_communication_s += s->joined_s;
    t->communication_s += s->joined_s;
    t->collective_s[DTP_SEND_RECV] += m * s->boundary_s + s->joined_s;
    t->collective_s[DTP_ALL_GATHER] += m * s->gathered_s;
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
    double device_s = computing_s + t->optimizer_s, data_s = t->exposed_communication_s - own_wait_s;
    t->step_s = slowest * device_s + waiting_s + data_s;
    t->step_perfect_overlap_s = fmax(device_s, t->communication_s);
    t->step_no_overlap_s = t->step_s + fmax(0, t->communication_s - t->exposed_communication_s);
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
    const uint32_t apart = stages_apart(j);
    const bool inside = shares_node(j, apart), near = tensor_group(j).nodes == 1,
               ends_inside = shares_node(j, apart * j->plan->head_rank);
    if (j->plan->tp > 1 && j->plan->runtime->closed->tensor_traffic) {
        uint64_t rows = dtp_bytes_product(dtp_divide_up(j->stream_bytes, j->plan->tp), j->plan->tp - 1) /
                        (s->own.chunks ? s->own.chunks : 1);
        uint64_t gathers = dtp_bytes_product(m, dtp_bytes_product(s->own.gathers, rows) + s->own.small_bytes);
        uint64_t sums = dtp_bytes_product(m, dtp_bytes_product(s->own.sums, rows));
        c->bytes[DTP_ALL_GATHER] += gathers;
        c->bytes[DTP_REDUCE_SCATTER] += sums;
        c->bytes[DTP_ALL_REDUCE] += s->own.reduced_bytes;
        c->count[DTP_ALL_GATHER] += m * (s->own.gathers + s->own.small_gathers);
        c->count[DTP_REDUCE_SCATTER] += m * s->own.sums;
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

void dtp_stages_of_slice(const struct dtp_transformer *transformer, const struct dtp_cluster *cluster,
                         const struct dtp_plan *plan, struct dtp_prediction *out)
{
    struct job j = job_of(transformer, cluster, plan);
    if (plan->pp > 1)
        j.slice.plan.megatron.bf16_first = 0; /* as dtp_closed_form */
    dtp_closed_form_time_parts(&j.slice.transformer, &j.slice.cluster, &j.slice.plan, &out->communication, &j.parts);
    struct stages stages = stages_of(&j, &out->time);
    fill_time(&j, &stages, &out->time);
    fill_throughput(&j, &out->time, &out->throughput);
    fill_communication(&j, &stages, &out->communication);
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
    const uint32_t apart = stages_apart(j);
    const struct dtp_group pair = dtp_group_of(c, 2, apart);
    const struct dtp_collective_cost sends = dtp_collective_cost(c, &pair, DTP_SEND_RECV);
    const double rate = shares_node(j, apart)
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
    j.searches = true;
    j.slice.plan.megatron.bf16_first = 0; /* all layers are taken for alike */
    dtp_closed_form(&j.slice.transformer, &j.slice.cluster, &j.slice.plan, &slice);
    dtp_closed_form_time_parts(&j.slice.transformer, &j.slice.cluster, &j.slice.plan, &slice.communication, &j.parts);
    struct stages s = stages_of(&j, &slice.time);
    double exchanged_s = s.tensor_exposed_s / (double)j.slice.transformer.layers;
    *layer = passes_of_layer(&j.parts, s.layer_s);
    layer->forward_s += exchanged_s / 2;
    layer->backward_s += exchanged_s / 2;
    fill_kept(&j, layer);
    *head = (struct dtp_part_cost){.forward_s = s.head_s / 3, .backward_s = s.head_s / 3, .weight_s = s.head_s / 3};
    *send_s = searched_send_s(&j, s.boundary_bytes / (2 * (uint64_t)plan->virtual_stages));
}
