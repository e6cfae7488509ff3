/* Context parallelism in the closed form: what the ranks that share a sequence send each other for attention, and how
 * much of it stands beside no core. Notation: c ranks, of which x exchange heads and r = c/x are a ring; Q, K, V bytes
 * of a rank's queries, keys, values in the compute dtype, W those of K and V in fp32. Of a layer and micro-step:
 *
 *              forward                                  backward
 *   ring       r-1 shifts of K+V                        r-1 of K+V and as many of their gradients, in r shifts; or
 *                                                       each by itself, the last of them beside nothing
 *   gathered   all-gathers of c K and of c V            the same, and their gradients' reduce-scatters
 *   walked     an all-gather of c (K+V), or c-1 shifts  the same but where it is kept, and c shifts of W
 *   exchange   all-to-alls of Q, K, V and the result    of the result's gradient, and of those of Q, K and V; where
 *                                                       they are kept exchanged, of the result itself too, and one
 *                                                       for all three of each chunk of heads and sequence
 *
 * A layer that runs again in backward sends again what forward sent. A model that turns no queries hands over q, k and
 * v as the one tensor that their matmul made. */
#include "closed/closed_form_hooks.h"

#include "base/bytes.h"
#include "closed/adapted_work.h"
#include "cost/cluster_cost.h"
#include "cost/collective_choice.h"
#include "plan/checkpointing.h"
#include "plan/context.h"

#include <math.h>

/* What one pass over one layer sends. */
struct pass {
    struct dtp_scales of[DTP_COLLECTIVE_COUNT];
};
struct job {
    const struct dtp_plan *plan;
    struct dtp_context context;
    uint64_t q, kv, wide; /* bytes */
    uint32_t pieces;      /* all-to-alls of an exchange that goes by chunks of heads and by sequences; 0: it does not */
    bool apart;           /* queries, keys and values are tensors of their own */
};

static struct job job_of(const struct dtp_transformer *t, const struct dtp_cluster *cluster,
                         const struct dtp_plan *plan)
{
    uint64_t tokens = dtp_plan_tokens(plan), element = dtp_plan_compute_bytes(plan);
    uint64_t keys = dtp_bytes_product(tokens, 2 * t->kv_heads * t->head_dim);
    return (struct job){
        .plan = plan,
        .context = dtp_plan_context(plan, cluster),
        .q = dtp_bytes_product(tokens, t->heads * t->head_dim * element),
        .kv = dtp_bytes_product(keys, element),
        .wide = dtp_bytes_product(keys, 4),
        .pieces = plan->runtime->keeps_exchanged ? dtp_context_chunks(plan, t->kv_heads) * plan->micro_batch : 0,
        .apart = t->position == DTP_POSITION_ROPE || t->qk_norm || !plan->fused_qkv};
}

static bool walks(const struct job *job)
{
    return job->plan->runtime->walks_gathered;
}

static bool sums_apart(const struct job *job)
{
    return job->plan->runtime->sums_apart;
}

/* `bytes` in `count` operations together. */
static void add(struct pass *pass, enum dtp_collective collective, uint64_t bytes, uint64_t count)
{
    pass->of[collective].bytes += bytes;
    pass->of[collective].count += count;
}

static void add_exchange(const struct job *job, struct pass *pass, bool inputs)
{
    uint64_t x = job->context.exchanged;
    uint64_t q = dtp_traffic_ring(job->q, x), k = dtp_traffic_ring(job->kv / 2, x);
    if (x < 2)
        return;
    if (job->pieces) {
        add(pass, DTP_ALL_TO_ALL, q + (inputs ? 2 * k : 0), job->pieces);
        return;
    }
    if (inputs && !job->apart) {
        add(pass, DTP_ALL_TO_ALL, dtp_traffic_ring(job->q + job->kv, x), 1);
        return;
    }
    add(pass, DTP_ALL_TO_ALL, q, 1);
    if (inputs)
        add(pass, DTP_ALL_TO_ALL, 2 * k, 2);
}

/* Keys and values to all who need them. */
static void add_keys(const struct job *job, struct pass *pass, bool with_gradients)
{
    uint64_t r = job->context.ring;
    if (job->context.by_pieces)
        add(pass, DTP_ALL_GATHER, 2 * dtp_traffic_ring(dtp_bytes_product(job->kv / 2, r), r), 2);
    else if (job->context.gathers)
        add(pass, DTP_ALL_GATHER, dtp_traffic_ring(dtp_bytes_product(job->kv, r), r), 1);
    else if (!with_gradients)
        add(pass, DTP_SEND_RECV, dtp_bytes_product(job->kv, r - 1), r - 1);
    else
        add(pass, DTP_SEND_RECV, dtp_bytes_product(2 * job->kv, r - 1), sums_apart(job) ? 2 * (r - 1) : r);
}

/* The core alone: made again, of inputs that were kept exchanged or are exchanged once more. */
static struct pass forward_of(const struct job *job, bool core_alone)
{
    struct pass pass = {0};
    bool kept = job->plan->runtime->keeps_exchanged;
    if (!core_alone || !kept)
        add_exchange(job, &pass, true);
    if (!core_alone || kept)
        add_exchange(job, &pass, false);
    if (job->context.ring > 1)
        add_keys(job, &pass, false);
    return pass;
}

static struct pass backward_of(const struct job *job)
{
    struct pass pass = {0};
    uint64_t r = job->context.ring;
    struct job apart = *job;
    apart.apart = true; /* gradients are made one by one */
    add_exchange(job, &pass, false);
    if (job->plan->runtime->keeps_exchanged) /* the result, beside its gradient */
        add_exchange(job, &pass, false);
    add_exchange(&apart, &pass, true);
    if (r < 2)
        return pass;
    if (!job->context.keeps)
        add_keys(job, &pass, !walks(job));
    if (walks(job))
        add(&pass, DTP_SEND_RECV, dtp_bytes_product(job->wide, r), r);
    if (job->context.by_pieces)
        add(&pass, DTP_REDUCE_SCATTER, 2 * dtp_traffic_ring(dtp_bytes_product(job->kv / 2, r), r), 2);
    return pass;
}

/* Layers whose attention runs, runs again, and has a backward. */
struct layers {
    uint64_t forward, again, backward;
    bool core_alone; /* it is the core alone that runs again */
};

/* Below the first adapter of a whole model's first layer nothing wants gradients, and where these are of the attention,
 * nobody runs its core again: an adapter that reads its result keeps that instead. Of a whole layer that runs again our
 * executor replays no branch without adapters beside another. */
static void leave_out_first(const struct dtp_traffic *of, struct layers *layers)
{
    const struct dtp_plan *plan = of->plan;
    const bool first = !plan->pipeline_ranks && dtp_plan_adapts(plan) &&
                       dtp_adapted_work_of(of->transformer, of->cluster, plan).unneeded_attention;
    const bool read = plan->runtime->arena && plan->adapters.targets & 1u << DTP_TARGET_OUTPUT,
               branch = plan->runtime->arena && of->transformer->parallel_block;
    if (!first)
        return;
    layers->backward--;
    if (layers->again && (layers->core_alone || (branch && !read)))
        layers->again--;
}

static struct layers layers_of(const struct dtp_traffic *of)
{
    const struct dtp_plan *plan = of->plan;
    const struct dtp_checkpoint_rule rule = dtp_plan_checkpoint_rule(plan);
    const uint64_t all = of->transformer->layers;
    const bool parts = rule.keeps == DTP_KEEPS_PARTS, core = dtp_plan_recomputes(plan, DTP_RECOMPUTE_CORE_ATTN),
               none = rule.keeps == DTP_KEEPS_SECOND_MATMULS || (parts && !core);
    struct layers layers = {.forward = all,
                            .again = none ? 0 : dtp_checkpointed_layers(&rule, all),
                            .backward = all,
                            .core_alone = rule.keeps == DTP_KEEPS_ALL_BUT_CORE || parts};
    leave_out_first(of, &layers);
    return layers;
}

static struct dtp_scales times(const struct pass *pass, int collective, uint64_t n)
{
    return (struct dtp_scales){dtp_bytes_product(pass->of[collective].bytes, n), pass->of[collective].count * n};
}

void dtp_context_traffic(struct dtp_traffic *traffic)
{
    const struct dtp_plan *plan = traffic->plan;
    struct job job = job_of(traffic->transformer, traffic->cluster, plan);
    if (plan->cp < 2)
        return;
    const struct layers layers = layers_of(traffic);
    struct pass forward = forward_of(&job, false), repeated = forward_of(&job, layers.core_alone),
                back = backward_of(&job);
    for (int i = 0; i < DTP_COLLECTIVE_COUNT; i++) {
        struct dtp_scales parts[] = {times(&forward, i, layers.forward), times(&repeated, i, layers.again),
                                     times(&back, i, layers.backward)};
        uint64_t ranks = i == DTP_ALL_TO_ALL ? job.context.exchanged : job.context.ring;
        uint64_t stride = (i == DTP_ALL_TO_ALL ? 1 : job.context.exchanged) * plan->tp;
        struct dtp_scales *sum = &traffic->out->context[i];
        for (size_t p = 0; p < sizeof parts / sizeof *parts; p++) {
            sum->bytes += dtp_bytes_product(parts[p].bytes, plan->accumulate);
            sum->count += parts[p].count * plan->accumulate;
        }
        dtp_traffic_add(traffic, (enum dtp_collective)i, sum->bytes, sum->count, ranks, stride);
    }
}

/* ---- time -------------------------------------------------------------------------------------------------------- */

static double seconds_of(const struct dtp_timing *c, const struct dtp_context *context, enum dtp_collective collective,
                         const struct dtp_scales *sent)
{
    uint32_t exchanged = context->exchanged, tp = c->plan->tp;
    struct dtp_group group = collective == DTP_ALL_TO_ALL ? dtp_group_of(c->cluster, exchanged, tp)
                                                          : dtp_group_of(c->cluster, context->ring, exchanged * tp);
    if (!sent->count)
        return 0;
    struct dtp_collective_cost cost =
        dtp_collective_cost_chosen(c->cluster, &group, &c->execution, collective,
                                   collective == DTP_SEND_RECV ? DTP_CARRIED_AROUND : DTP_CARRIED_PLAIN);
    return (double)sent->count * dtp_collective_time(&cost, (double)sent->bytes / (double)sent->count);
}

/* Seconds of shifts, one of which takes shift_s, beside cores of core_s each, where gradients go around by themselves:
 * keys and values for the next core beside each but the last, gradients of the one before beside each from the third
 * on, and the last gradients beside none. */
static double exposed_apart_s(uint32_t ring, double shift_s, double core_s)
{
    double exposed_s = shift_s;
    for (uint32_t step = 0; step < ring; step++)
        exposed_s += fmax(0, ((step + 1 < ring) + (step > 1)) * shift_s - core_s);
    return exposed_s;
}

/* Of one pass over one layer: each shift runs beside a core, what is gathered to be walked through beside the first. */
static double exposed_of(const struct dtp_timing *c, const struct job *job, const struct pass *pass, double core_s,
                         bool backward)
{
    double exposed_s = 0;
    for (int i = 0; i < DTP_COLLECTIVE_COUNT; i++) {
        double s = seconds_of(c, &job->context, (enum dtp_collective)i, &pass->of[i]);
        if (i == DTP_ALL_TO_ALL &&
            job->pieces) { /* chunks beside cores of others; backward's beside weight gradients */
            double chunks = job->pieces / job->plan->micro_batch;
            exposed_s += backward ? fmax(0, s - core_s) : s - fmin((1 - 1 / chunks) * s, core_s);
            continue;
        }
        double beside = i == DTP_SEND_RECV                               ? (double)pass->of[i].count
                        : i == DTP_ALL_GATHER && !job->context.by_pieces ? 1
                                                                         : 0;
        if (i == DTP_SEND_RECV && backward && sums_apart(job) && job->context.ring > 1)
            exposed_s += exposed_apart_s(job->context.ring, s / beside, core_s);
        else
            exposed_s += fmax(0, s - beside * core_s);
    }
    return exposed_s;
}

double dtp_context_add_time(const struct dtp_timing *c, const struct dtp_communication *communication,
                            struct dtp_time *time)
{
    struct job job = job_of(c->transformer, c->cluster, c->plan);
    if (c->plan->cp < 2)
        return 0;
    const struct dtp_traffic of = {.transformer = c->transformer, .cluster = c->cluster, .plan = c->plan};
    const struct layers layers = layers_of(&of);
    const double micro_steps = c->plan->accumulate;
    struct dtp_attention_time core = dtp_cluster_attention_time(c->cluster, c->transformer, c->plan, c->tokens);
    struct pass forward = forward_of(&job, false), repeated = forward_of(&job, layers.core_alone),
                back = backward_of(&job);
    double steps = job.context.steps;
    double exposed_s = (double)layers.forward * exposed_of(c, &job, &forward, core.forward_s / steps, false) +
                       (double)layers.again * exposed_of(c, &job, &repeated, core.forward_s / steps, false) +
                       (double)layers.backward * exposed_of(c, &job, &back, core.backward_s / steps, true);
    for (int i = 0; i < DTP_COLLECTIVE_COUNT; i++) {
        double s = seconds_of(c, &job.context, (enum dtp_collective)i, &communication->context[i]);
        time->collective_s[i] += s;
        time->communication_s += s;
    }
    return micro_steps * exposed_s;
}

/* The kernels that lower_context_parallel.c and lower_context_backward.c list, in bytes an element of queries (q) and
 * of keys and values (k), e of the compute dtype. */
struct dtp_context_moved dtp_context_moved_of(const struct dtp_transformer *t, const struct dtp_cluster *cluster,
                                              const struct dtp_plan *plan)
{
    struct dtp_context context = dtp_plan_context(plan, cluster);
    double e = dtp_plan_compute_bytes(plan), q = (double)(t->heads * t->head_dim), r = context.ring;
    double k = 2 * (double)(t->kv_heads * t->head_dim);
    struct dtp_context_moved moved = {0, 0};
    if (plan->cp < 2)
        return moved;
    if (context.exchanged > 1) {
        moved.forward += 4 * e * (2 * q + k);
        moved.backward += 4 * e * (2 * q + k);
    }
    if (r < 2)
        return moved;
    if (context.by_pieces) {
        moved.forward += 2 * e * r * k;
        moved.backward += 2 * e * r * k + e * r * k + 2 * e * q + 3 * e * (2 * r + 1) * k / 2;
    } else if (plan->runtime->walks_gathered) {
        double halves = (r + 1) / 2; /* keys of all steps, in those of one rank */
        moved.forward += 2 * e * k * (r - 1) + q * (2 * (e + 4) + (r - 1) * (e + 4 + 32));
        moved.backward += (context.keeps ? 0 : 2 * e * k * (r - 1)) + 4 * (q + k) + (e + 8) * (r * q + halves * k) +
                          4 * k * (4 * r - 2) + (e + 4) * (q + k);
    } else {
        moved.forward += 2 * e * k + e * q * (2 + 3 * (r - 1));
        moved.backward += 2 * e * k + e * q * (2 + 3 * (r - 1)) + e * k * (2 + 3 * (r - 1) / 2);
    }
    return moved;
}
