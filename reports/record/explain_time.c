/* Communication and time. Seconds come from the record the closed form fills while it works (time_parts.h). */
#include "record/explain.h"

#include "base/append.h"
#include "closed/activations.h"
#include "closed/block_work.h"
#include "runtime/dtplan/lower_executor.h"
#include "cost/op_cost.h"
#include "closed/sharding.h"
#include "closed/time_parts.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#define ULL(value) ((unsigned long long)(value))

/* ---- communication ---------------------------------------------------------------------------------------------- */

struct wire {
    const struct dtp_job *job;
    const struct dtp_communication *c;
    struct dtp_units u;
    struct dtp_element_bytes b;
    double micro_steps, reductions, psi, padded; /* padded: psi with each parameter's rows rounded up to N */
    double experts;                              /* elements of a rank's shards of what ranks divide; padded has none */
};

static double share(double ranks)
{
    return ranks > 1 ? (ranks - 1) / ranks : 0;
}

/* Shards are padded to whole elements: what that makes, of any job, is below this part. */
#define ROUNDING 0.01

/* Why fewer bytes are sent than the rule says, as far as this plan has such a reason: `out` is empty where it has none.
 */
static void say_reuse(const struct dtp_job *job, char *out, size_t bytes)
{
    const struct dtp_plan *p = &job->plan;
    const struct {
        bool holds;
        const char *words;
    } reasons[] = {
        {p->precision.fp8_all_gather, "matrices of the layers are gathered as fp8, 1 B"},
        {dtp_plan_keeps_root(p), "embedding and head are kept for backward"},
        {p->reshard_after_forward && !dtp_plan_keeps_root(p) && dtp_plan_wraps_ends(p, &job->transformer),
         "the head, a unit with its norm, is kept for backward"},
        {p->deepspeed.zero_quantized_weights, "weights are gathered as int8, 1 B, and scales"},
        {p->deepspeed.zero_hpz_partition_size > 1, "backward gathers from fewer ranks, those of a secondary partition"},
        {dtp_plan_fetches_modules(p), "what persists or is still live is not gathered again"},
    };
    out[0] = '\0';
    for (size_t i = 0; i < sizeof reasons / sizeof *reasons; i++)
        if (reasons[i].holds)
            dtp_append_part(out, bytes, "; ", "%s", reasons[i].words);
}

static void explain_rest(const struct wire *w, enum dtp_collective collective, double rest, double predicted,
                         struct dtp_explanation *e)
{
    char why[240] = "";
    if (collective == DTP_ALL_GATHER && rest < 0)
        say_reuse(w->job, why, sizeof why);
    if (collective == DTP_ALL_REDUCE && rest < 0 && w->job->plan.comm_hook == DTP_COMM_HOOK_POWERSGD)
        snprintf(why, sizeof why, "PowerSGD sends P and Q of rank %" PRIu32 " in place of matrices",
                 w->job->plan.powersgd_rank);
    if (why[0])
        dtp_explain_term(e, "  less", "", rest, "%s", why);
    else if (rest > 0 && w->job->plan.comm_hook == DTP_COMM_HOOK_INT8)
        dtp_explain_term(e, "  more", "", rest, "%s", "ranges go before the bytes, two floats of each rank a bucket");
    else if (rest > 0 && w->job->plan.runtime->fetches_modules)
        dtp_explain_term(e, "  more", "", rest, "%s", "each tensor is padded to equal shards, int8 has scales");
    else if (fabs(rest) <= ROUNDING * predicted)
        dtp_explain_term(e, rest > 0 ? "  more" : "  less", "", rest, "%s", "shards are padded to whole elements");
    /* else it is a gap, which dtp_explain_close shows as one */
}

/* One collective as times x bytes x elements x (n-1)/n, and what the prediction has beyond it. */
static void explain_collective(const struct wire *w, enum dtp_collective collective, const char *name, const char *rule,
                               double times, double bytes, double elements, double ranks, struct dtp_explanation *e)
{
    double predicted = (double)(w->c->bytes[collective] - w->c->experts[collective].bytes);
    if (collective == DTP_ALL_REDUCE && dtp_plan_shards_params(&w->job->plan))
        predicted -= (double)dtp_plan_norm_bytes(&w->job->plan, w->u.ranks);
    double formula = times * bytes * elements * share(ranks);
    if (predicted == 0)
        return;
    dtp_explain_term(e, name, rule, formula, "%g x %.4g B x %.0f x %.0f/%.0f", times, bytes, elements, ranks - 1,
                     ranks);
    double rest = predicted - formula;
    if (fabs(rest) > 1e-9 * predicted)
        explain_rest(w, collective, rest, predicted, e);
}

static void explain_reduction(const struct wire *w, double elements, double ranks, struct dtp_explanation *e)
{
    explain_collective(w, DTP_REDUCE_SCATTER, "reduce-scatter of gradients", "reductions x bytes x psi x (N-1)/N",
                       w->reductions, (double)w->b.reduce, elements, ranks, e);
}

/* What ranks that divide experts send for them. */
static void explain_experts(const struct wire *w, struct dtp_explanation *e)
{
    const struct dtp_plan *p = &w->job->plan;
    const struct dtp_transformer *t = &w->job->transformer;
    const struct dtp_scales *sent = w->c->experts;
    const char *weights = "of the rank's experts, among those that have the same ones";
    unsigned same = (unsigned)w->u.expert_ranks;
    if (sent[DTP_ALL_GATHER].bytes)
        dtp_explain_term(e, "all-gather of experts", weights, (double)sent[DTP_ALL_GATHER].bytes,
                         "in %" PRIu64 " operations among %u GPUs", sent[DTP_ALL_GATHER].count, same);
    if (sent[DTP_REDUCE_SCATTER].bytes)
        dtp_explain_term(e, "reduce-scatter of their gradients", weights, (double)sent[DTP_REDUCE_SCATTER].bytes,
                         "in %" PRIu64 " operations among %u GPUs", sent[DTP_REDUCE_SCATTER].count, same);
    if (sent[DTP_ALL_TO_ALL].bytes)
        dtp_explain_term(e, "all-to-all of tokens, of the fullest rank", "4 L x imbalance x T k h x bytes x (ep-1)/ep",
                         (double)sent[DTP_ALL_TO_ALL].bytes,
                         "replays and counts of rows with them: imbalance %g, k = %" PRIu64 ", h = %" PRIu64
                         ", ep = %u",
                         dtp_plan_crossed_rows(p), t->experts_per_token, t->hidden, p->ep);
}

static void explain_sharded(const struct wire *w, struct dtp_explanation *e)
{
    const struct dtp_plan *p = &w->job->plan;
    double ranks = (double)w->u.ranks, again = !p->reshard_after_forward ? 0 : 1;
    if (p->reshard_group) /* so that both gathers together make the factor */
        again = (1 - 1.0 / p->reshard_group) / (1 - 1 / ranks);
    explain_collective(w, DTP_ALL_GATHER, "all-gather of weights",
                       p->reshard_group           ? "K x bytes x psi x ((N-1)/N + (n-1)/n)"
                       : p->reshard_after_forward ? "2 K x bytes x psi x (N-1)/N"
                                                  : "K x bytes x psi x (N-1)/N",
                       w->micro_steps * (1 + again), (double)w->b.compute, w->padded, ranks, e);
    bool as_int4 = w->c->bytes[DTP_ALL_TO_ALL] > w->c->experts[DTP_ALL_TO_ALL].bytes;
    if (as_int4)
        dtp_explain_term(e, "reduce-scatter of vectors", "", (double)w->c->bytes[DTP_REDUCE_SCATTER],
                         "what has one dimension");
    else
        explain_reduction(w, w->padded, ranks, e);
    if (as_int4)
        dtp_explain_term(e, "all-to-all of gradients as int4",
                         "reductions x (psi / 2 x (g-1)/g + psi / 2 g x (m-1)/m), and scales",
                         (double)w->c->bytes[DTP_ALL_TO_ALL], "g = %u GPUs of a node, m = %u nodes",
                         w->job->cluster.gpus_per_node, w->job->cluster.nodes);
    explain_collective(w, DTP_ALL_REDUCE, "all-reduce between replicas", "reductions x 2 bytes x psi / N x (R-1)/R",
                       w->reductions, 2 * (double)w->b.reduce, w->padded / ranks + w->experts, (double)w->u.replicas,
                       e);
    if (dtp_plan_norm_bytes(p, w->u.ranks))
        dtp_explain_term(e, "all-reduce of the gradients' norm", "2 bytes x (N-1)/N",
                         (double)dtp_plan_norm_bytes(p, w->u.ranks), "%.0f GPUs", ranks);
    explain_experts(w, e);
}

static void explain_replicated(const struct wire *w, struct dtp_explanation *e)
{
    double gpus = (double)w->job->cluster.gpus;
    if (w->job->plan.comm_hook == DTP_COMM_HOOK_INT8)
        return explain_collective(w, DTP_ALL_GATHER, "all-gather of gradients in bytes",
                                  "reductions x n psi x 1 B x (n-1)/n", w->reductions, 1, gpus * w->psi, gpus, e);
    explain_collective(w, DTP_ALL_REDUCE, "all-reduce of gradients", "reductions x 2 bytes x psi x (n-1)/n",
                       w->reductions, 2 * (double)w->b.reduce, w->psi, gpus, e);
    explain_reduction(w, w->psi, gpus, e);
    explain_collective(w, DTP_ALL_GATHER, "all-gather of updated weights", "bytes x psi x (n-1)/n", 1,
                       (double)w->b.params, w->psi, gpus, e);
}

/* What a ring sends of so many bytes: the shards of all others, padded to whole bytes. */
static double ring(double bytes, double ranks)
{
    return ranks > 1 ? ceil(bytes / ranks) * (ranks - 1) : 0;
}

/* Our executor gathers and reduces whole modules: embedding, a block, head. Gradients may have a dtype of their own in
 * each. What one collective of every module sends, in bytes. */
struct executor_wire {
    struct dtp_executor_rules rules;
    double ranks, replicas, passes, blocks, ends; /* blocks that are gathered; elements of these all, of the ends */
    double gathered_blocks, gathered_ends, reduced, replicated;
};

static struct executor_wire executor_wire(const struct wire *w)
{
    const struct dtp_transformer *t = &w->job->transformer;
    struct dtp_parameter_alike alike[DTP_PARAMETER_KINDS];
    const int kinds = dtp_parameter_alike_modules(t, alike);
    struct executor_wire x = {.blocks = 0};
    dtp_executor_rules(t, &w->job->cluster, &w->job->plan, &x.rules);
    x.ranks = (double)x.rules.shard_ranks;
    x.replicas = (double)x.rules.replicas;
    for (int i = 0; i < kinds; i++) {
        struct dtp_parameter_module layout;
        dtp_parameter_module(t, x.rules.shard_ranks, alike[i].module, &layout);
        struct dtp_gradient_dtypes dtype = dtp_executor_gradient_dtypes(t, &x.rules, alike[i].module);
        double count = (double)alike[i].count, elements = (double)layout.elements;
        double sent = ring(elements * (double)w->b.compute, x.ranks);
        if (alike[i].module >= 1 && alike[i].module <= t->layers) {
            double gathers = (double)dtp_executor_block_gathers(t, &x.rules, w->job->plan.accumulate, &alike[i]);
            x.passes += gathers, x.blocks += gathers * elements, x.gathered_blocks += gathers * sent;
        } else {
            x.ends += elements, x.gathered_ends += sent;
        }
        x.reduced += count * ring(elements * (double)dtp_dtype_bytes(dtype.whole), x.ranks);
        x.replicated +=
            count * 2 * ring((double)layout.shard_elements * (double)dtp_dtype_bytes(dtype.shard), x.replicas);
    }
    return x;
}

static void explain_executor(const struct wire *w, struct dtp_explanation *e)
{
    struct executor_wire x = executor_wire(w);
    const struct dtp_executor_rules *r = &x.rules;
    const uint64_t steps = w->job->plan.accumulate;
    double edges = r->sharded ? (double)steps : 1, reductions = r->reduces_always ? (double)steps : 1;
    dtp_explain_term(e, "all-gather of weights", "bytes x (P x passes + embedding and head x K) x (N-1)/N",
                     x.gathered_blocks + x.gathered_ends * edges, "%llu B x (%.0f x %.0f + %.0f x %.0f) x %.0f/%.0f",
                     ULL(w->b.compute), x.blocks / x.passes, x.passes, x.ends, edges, x.ranks - 1, x.ranks);
    dtp_explain_term(e, r->exchanges ? "all-to-all of gradients" : "reduce-scatter of gradients",
                     "reductions x bytes of all gradients x (N-1)/N", reductions * x.reduced, "%.0f x %.0f B sent",
                     reductions, x.reduced);
    double sums = r->shard_ranks == 1 ? reductions : 1;
    dtp_explain_term(e, "all-reduce between replicas", "sums x 2 bytes of the shards x (R-1)/R", sums * x.replicated,
                     "%.0f x %.0f B sent", sums, x.replicated);
    double squares = 4.0 * DTP_EXECUTOR_SQUARE_SUM_PARTIALS * (double)dtp_parameter_module_count(&w->job->transformer);
    if (r->gradient_norm)
        dtp_explain_term(e, "all-reduce of square sums", "2 bytes x (N-1)/N", 2 * ring(squares, x.ranks),
                         "2 x %.0f B x %.0f/%.0f", squares, x.ranks - 1, x.ranks);
}

/* What ranks that share a sequence send for its attention (closed/context_parallel.c has the amounts one by one). */
static void explain_attention(const struct wire *w, struct dtp_explanation *e)
{
    static const char *const words[DTP_COLLECTIVE_COUNT][2] = {
        [DTP_ALL_GATHER] = {"all-gather of keys and values", "forward and backward, of all c ranks"},
        [DTP_REDUCE_SCATTER] = {"reduce-scatter of their gradients", "backward, to all c ranks"},
        [DTP_SEND_RECV] = {"keys, values, gradients in a ring", "forward, and twice as much or in fp32 backward"},
        [DTP_ALL_TO_ALL] = {"all-to-all of tokens for heads", "of q, k, v and the result, forward and backward"}};
    for (int i = 0; i < DTP_COLLECTIVE_COUNT; i++) {
        const struct dtp_scales *sent = &w->c->context[i];
        if (sent->count)
            dtp_explain_term(e, words[i][0], words[i][1], (double)sent->bytes, "%llu x %.4g MB", ULL(sent->count),
                             (double)sent->bytes / (double)sent->count / 1e6);
    }
}

void dtp_explain_communication(const struct dtp_job *job, const struct dtp_prediction *prediction,
                               struct dtp_explanation *e)
{
    struct dtp_communication of_state = prediction->communication;
    for (int i = 0; i < DTP_COLLECTIVE_COUNT; i++)
        of_state.bytes[i] -= of_state.context[i].bytes;
    struct wire w = {
        .job = job, .c = &of_state, .micro_steps = job->plan.accumulate, .reductions = dtp_plan_reductions(&job->plan)};
    if (w.c->total_bytes == 0)
        return;
    dtp_units_count(&job->transformer, &job->cluster, &job->plan, &w.u);
    dtp_element_bytes_count(&job->plan, &w.b);
    w.psi = (double)w.u.total;
    w.experts = (double)(w.u.expert_layers * w.u.expert_shard);
    w.padded = (double)(w.u.total_shard * w.u.ranks) - w.experts * (double)w.u.ranks;
    dtp_explain_group(e, "COMMUNICATION", "bytes each GPU sends per step", DTP_EXPLAIN_TRAFFIC,
                      (double)w.c->total_bytes);
    dtp_explain_source(e, "ring accounting: all-gather and reduce-scatter send B(n-1)/n, all-reduce twice that");
    if (job->plan.runtime->executed)
        explain_executor(&w, e);
    else if (dtp_plan_shards_params(&job->plan))
        explain_sharded(&w, e);
    else
        explain_replicated(&w, e);
    explain_attention(&w, e);
    dtp_explain_close(e, "other", "");
}

static void explain_alone(const struct dtp_job *job, const struct dtp_prediction *prediction, struct dtp_explanation *e)
{
    const struct dtp_communication *c = &prediction->communication;
    const struct dtp_time *t = &prediction->time;
    if (t->communication_s <= 0)
        return;
    (void)job;
    dtp_explain_group(e, "COLLECTIVES", "seconds of a step as if nothing overlapped", DTP_EXPLAIN_SECONDS,
                      t->communication_s);
    dtp_explain_source(e, "latencies: NCCL src/graph/tuning.cc; bandwidths measured (see constants)");
    for (int i = 0; i < DTP_COLLECTIVE_COUNT; i++) {
        if (c->count[i] == 0 || t->collective_s[i] <= 0)
            continue;
        double each = t->collective_s[i] / (double)c->count[i];
        dtp_explain_term(e, dtp_collective_text((enum dtp_collective)i), "operations x (latency + bytes / bus rate)",
                         t->collective_s[i], "%llu x %.3g ms for %.4g MB each: %.0f GB/s", ULL(c->count[i]), each * 1e3,
                         (double)c->bytes[i] / (double)c->count[i] / 1e6,
                         (double)c->bytes[i] / t->collective_s[i] / 1e9);
    }
    dtp_explain_close(e, "other", "");
}

/* ---- compute ---------------------------------------------------------------------------------------------------- */

/* FLOPs of one forward pass of the layers' matmuls over all tokens of a step. */
static double forward_flops(const struct dtp_job *job, double tokens)
{
    double weights = 0;
    for (int kind = 0; kind < DTP_LAYER_MLPS; kind++) {
        struct dtp_block_work work =
            dtp_block_work(&job->transformer, (enum dtp_layer_mlp)kind, &job->cluster, &job->plan);
        for (int i = 0; i < work.matmul_count; i++)
            weights += work.layers * work.matmul[i].n * work.matmul[i].k * work.matmul[i].copies * work.matmul[i].rows;
    }
    return 2 * tokens * weights;
}

static void explain_matmul(struct dtp_explanation *e, const char *name, const char *rule, double flops, double seconds)
{
    if (seconds <= 0)
        return;
    dtp_explain_term(e, name, rule, seconds, "%.4g FLOP at %.0f TFLOP/s", flops, flops / seconds / 1e12);
}

/* Kernels of several rates: the rate is that of all their bytes together. */
static void explain_moved(struct dtp_explanation *e, const char *name, const char *rule, double bytes, double seconds)
{
    if (seconds <= 0)
        return;
    dtp_explain_term(e, name, rule, seconds, "%.4g GB at %.0f GB/s", bytes / 1e9, bytes / seconds / 1e9);
}

/* Frozen matrices have no gradient; adapters have both of theirs. */
static void explain_adapted(const struct dtp_job *job, const struct dtp_time_parts *t, double tokens,
                            struct dtp_explanation *e)
{
    struct dtp_trained_count count;
    dtp_plan_trained(&job->transformer, &job->plan, &count);
    double forward = forward_flops(job, tokens), up = t->matmul_speedup > 0 ? t->matmul_speedup : 1;
    double adapters = 2 * tokens * (double)count.active_adapters;
    double head =
        (job->plan.adapters.train_ends ? 6 : 4) * tokens * (double)(job->transformer.vocab * job->transformer.hidden);
    explain_matmul(e, "matmuls, forward", "2 x (frozen + adapters) x tokens / rate of their shapes", forward + adapters,
                   t->matmul_forward_s / up);
    explain_matmul(e, "matmuls, backward", "(2 x frozen + 4 x adapters) x tokens / rate of their shapes",
                   forward + 2 * adapters, t->matmul_backward_s / up);
    explain_matmul(e, "output head", "4 V h x tokens / rate, 6 where it is trained", head, t->matmul_head_s / up);
    if (t->matmul_recompute_s > 0)
        dtp_explain_term(e, "matmuls, recomputed", "forward again, as far as checkpointing asks",
                         t->matmul_recompute_s / up, "; %.3g of the forward",
                         t->matmul_recompute_s / t->matmul_forward_s);
}

static void explain_matmuls(const struct dtp_job *job, const struct dtp_time_parts *t, double tokens,
                            struct dtp_explanation *e)
{
    double forward = forward_flops(job, tokens), up = t->matmul_speedup > 0 ? t->matmul_speedup : 1;
    const struct dtp_transformer *m = &job->transformer;
    double head = 6 * tokens * (double)(m->vocab * m->hidden);
    double ahead = 6 * tokens * (double)(m->ahead_layers * (m->vocab + 2 * m->hidden) * m->hidden);
    if (dtp_plan_adapts(&job->plan)) {
        explain_adapted(job, t, tokens, e);
        return;
    }
    explain_matmul(e, "matmuls, forward", "2 x weights x tokens / rate of their shapes", forward,
                   t->matmul_forward_s / up);
    explain_matmul(e, "matmuls, backward", "4 x weights x tokens / rate of their shapes", 2 * forward,
                   t->matmul_backward_s / up);
    explain_matmul(e, ahead > 0 ? "output head, two losses and a projection" : "output head",
                   ahead > 0 ? "6 (2 V h + 2 h h) x tokens / rate" : "6 V h x tokens / rate", head + ahead,
                   t->matmul_head_s / up);
    if (t->matmul_recompute_s > 0)
        dtp_explain_term(e, "matmuls, recomputed", "forward again, as far as checkpointing asks",
                         t->matmul_recompute_s / up, "; %.3g of the forward",
                         t->matmul_recompute_s / t->matmul_forward_s);
}

static void explain_compute(const struct dtp_job *job, const struct dtp_prediction *prediction,
                            const struct dtp_time_parts *t, double tokens, struct dtp_explanation *e)
{
    const struct dtp_transformer *m = &job->transformer;
    const struct dtp_attention_shape shape = dtp_plan_attention(m, &job->cluster, &job->plan, 0);
    double width = dtp_attention_forward_width(&shape), back = dtp_attention_backward_width(&shape) / width;
    double core = 2 * dtp_transformer_attention_length(m, job->plan.sequence) * (double)m->heads * width *
                  (double)m->layers * tokens;
    double idle = prediction->time.compute_s - t->device_s;
    dtp_explain_group(e, "FORWARD AND BACKWARD", "seconds of a step on one GPU", DTP_EXPLAIN_SECONDS,
                      prediction->time.compute_s);
    explain_matmuls(job, t, tokens, e);
    explain_matmul(e, "attention, forward", "2 L d_q s x tokens / rate", core, t->attention_forward_s);
    explain_matmul(e, "attention, backward", "5 L d_q s x tokens / rate", back * core, t->attention_backward_s);
    explain_moved(e, "memory-bound kernels, forward", "bytes of pointwise kernels and norms / rate",
                  t->block_forward_bytes, t->memory_forward_s);
    explain_moved(e, "memory-bound kernels, backward", "bytes of pointwise kernels and norms / rate",
                  t->block_backward_bytes, t->memory_backward_s);
    explain_moved(e, "logits and cross entropy", "bytes / rate", t->loss_bytes, t->loss_s);
    explain_moved(e, "casts and copies of weights, gradients", "bytes / rate", t->weights_bytes, t->weights_s);
    dtp_explain_term(e, "fp8 scaling and casts", "bytes / rate", t->fp8_s, "%.4g GB",
                     t->fp8_s * t->block_bytes_per_s / 1e9);
    dtp_explain_term(e, "recomputed attention and pointwise", "forward again", t->recompute_other_s, "%s", "");
    dtp_explain_term(e, "gaps between kernels", "kernels x gap", t->gaps_s, "%.0f x %.2g us", t->kernels_count,
                     t->kernels_count > 0 ? t->gaps_s / t->kernels_count * 1e6 : 0);
    if (idle > 0)
        dtp_explain_term(e, "waiting for the host to launch", "kernels x launch time - device time", idle,
                         "%.0f x %.3g us - %.4g ms", t->kernels_count, t->launch_s * 1e6, t->device_s * 1e3);
    dtp_explain_close(e, "other", "");
}

/* ---- the step --------------------------------------------------------------------------------------------------- */

static void explain_step(const struct dtp_prediction *prediction, const struct dtp_time_parts *t,
                         struct dtp_explanation *e)
{
    const struct dtp_time *time = &prediction->time;
    double exposed = t->not_hidden_s + t->contention_s, device = time->compute_s + time->optimizer_s;
    dtp_explain_group(e, "STEP", "seconds, best estimate", DTP_EXPLAIN_SECONDS, time->step_s);
    dtp_explain_term(e, "forward and backward", "as above", time->compute_s, "%s", "");
    explain_moved(e, "optimizer", "bytes per parameter x psi / N / rate", t->optimizer_bytes, time->optimizer_s);
    dtp_explain_term(e, "communication nothing can hide", "collectives - what fits behind compute", t->not_hidden_s,
                     "; of %.4g ms, windows per micro-step: forward %.4g, backward %.4g ms",
                     time->communication_s * 1e3, t->forward_window_s * 1e3, t->backward_window_s * 1e3);
    dtp_explain_term(e, "compute slowed by hidden collectives", "SMs and memory they take", t->contention_s,
                     "; %.4g ms hidden", (time->communication_s - t->not_hidden_s) * 1e3);
    dtp_explain_term(e, "hidden in waits for the host", "a device that idles hides communication",
                     time->exposed_communication_s - exposed, "%s", "");
    dtp_explain_term(e, "offload", "host copies, host optimizer and NVMe not hidden", time->exposed_offload_s,
                     "; copies %.4g + %.4g, Adam %.4g, NVMe %.4g ms", t->host_to_device_s * 1e3,
                     t->device_to_host_s * 1e3, t->host_adam_s * 1e3, t->nvme_s * 1e3);
    dtp_explain_term(e, "waiting for the slowest rank", "device time x (expected maximum of n ranks - 1)",
                     device * (t->slowest_rank - 1), "%.4g ms x %.4f", device * 1e3, t->slowest_rank - 1);
    dtp_explain_close(e, "other", "");
}

void dtp_explain_time(const struct dtp_job *job, const struct dtp_prediction *prediction, struct dtp_explanation *e)
{
    struct dtp_time_parts parts;
    double tokens = (double)job->plan.accumulate * (double)dtp_plan_tokens(&job->plan);
    dtp_closed_form_time_parts(&job->transformer, &job->cluster, &job->plan, &prediction->communication, &parts);
    explain_alone(job, prediction, e);
    explain_compute(job, prediction, &parts, tokens, e);
    explain_step(prediction, &parts, e);
}
