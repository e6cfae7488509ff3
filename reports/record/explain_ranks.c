/* Jobs whose ranks divide layers, sequences or the model itself: explained from the simulation of their programs,
 * memory by the rank that takes most of it, time by the one that computes longest. */
#include "record/explain.h"

#include "base/append.h"
#include "closed/memory_parts.h"
#include "closed/sharding.h"
#include "job/estimate.h"
#include "plan/degrees.h"
#include "plan/slice.h"
#include "schedule/schedule_time.h"
#include "sim/op_time.h"

#include <stdlib.h>
#include <string.h>

#define ULL(value) ((unsigned long long)(value))

struct ranked {
    const struct dtp_simulated *simulated;
    const struct dtp_pipeline_stages *stages; /* of no rank where there is no pipeline */
    struct dtp_job slice;                     /* a rank's share: its layers' width, its data parallel neighbours */
    uint32_t worst, slowest;                  /* rank with most memory, and with most to compute */
    struct dtp_explanation *e;
    struct dtp_faults *faults;
};

static const struct dtp_plan *plan_of(const struct ranked *r)
{
    return &r->simulated->job.plan;
}

/* "rank 2 of 4: 8 layers and the head", or "every rank". */
static void rank_words(const struct ranked *r, uint32_t rank, const char *why, char *out, size_t bytes)
{
    const struct dtp_pipeline_rank *p = &r->stages->ranks[rank];
    if (!r->stages->rank_count)
        snprintf(out, bytes, "every rank");
    else
        snprintf(out, bytes, "rank %u of %u, %s: %s%u layer%s%s", rank, r->stages->rank_count, why,
                 p->embedding ? "embedding and " : "", p->layers, dtp_plural(p->layers),
                 p->head ? " and the head" : "");
}

/* ---- what a rank holds ------------------------------------------------------------------------------------------- */

static void explain_parameters(const struct ranked *r)
{
    const struct dtp_transformer *t = &r->simulated->job.transformer;
    struct dtp_transformer slice = dtp_plan_slice(t, plan_of(r)), own = dtp_plan_own_experts(&slice, plan_of(r));
    struct dtp_parameter_count c = dtp_transformer_count(t->experts ? &own : &slice);
    bool all = !r->stages->rank_count;
    const struct dtp_pipeline_rank *rank = all ? NULL : &r->stages->ranks[r->worst];
    uint64_t layers = all ? t->layers : (uint64_t)rank->layers + rank->mtp_layers;
    const uint64_t with = all ? c.expert_layers : rank->expert_layers, dense = layers - with;
    const uint64_t matrices = with * c.expert_block_matmul, vectors = with * c.expert_block_vectors;
    uint64_t ahead = all || rank->mtp_layers ? c.ahead : 0;
    uint64_t first = all || rank->embedding || ahead ? c.embedding + c.embedding_norm + c.position : 0;
    uint64_t last = all || rank->head ? c.final_norm + (t->tied_head && !first ? c.embedding : c.head) : 0;
    char words[112];
    rank_words(r, r->worst, "with most memory", words, sizeof words);
    dtp_explain_group(r->e, "PARAMETERS OF A RANK", words, DTP_EXPLAIN_COUNT,
                      (double)(dense * (c.block_matmul + c.block_vectors) + matrices + vectors + first + last + ahead));
    dtp_explain_source(r->e, "tensor parallel ranks divide heads, the MLP's width and the vocabulary (Shoeybi et al. "
                             "2019), a pipeline's ranks the layers");
    dtp_explain_term(r->e, "matrices of its layers", "layers x P / tp", (double)(dense * c.block_matmul), "%llu x %llu",
                     ULL(dense), ULL(c.block_matmul));
    dtp_explain_term(r->e, "matrices of its layers with experts",
                     "attention's and shared experts' / tp, h E, experts / ep", (double)matrices, "%llu x %llu",
                     ULL(with), ULL(c.expert_block_matmul));
    dtp_explain_term(r->e, "norms and biases of its layers", "layers x vectors; norms are whole on every rank",
                     (double)(dense * c.block_vectors), "%llu x %llu", ULL(dense), ULL(c.block_vectors));
    dtp_explain_term(r->e, "norms and biases of its layers with experts", "layers x vectors", (double)vectors,
                     "%llu x %llu", ULL(with), ULL(c.expert_block_vectors));
    dtp_explain_term(r->e, "embedding", "V h / tp, with positions and norm", (double)first, "%llu", ULL(first));
    dtp_explain_term(r->e, "final norm and output head", "h + V h / tp; a tied head is a copy", (double)last, "%llu",
                     ULL(last));
    dtp_explain_term(r->e, "around the layer that predicts further ahead", "2 h h + 3 norms", (double)ahead, "%llu",
                     ULL(ahead));
}

/* Tensors of the rank's program, then what the allocator and the driver add. */
static enum dtp_status explain_memory(const struct ranked *r)
{
    const struct dtp_memory *m = &r->simulated->roles[r->worst].memory;
    struct dtp_memory_parts parts = {0};
    struct dtp_memory tensors;
    char words[112];
    enum dtp_status status = dtp_simulated_role_memory(r->simulated, r->worst, &tensors, &parts, r->faults);
    if (status == DTP_OK)
        status = dtp_explain_peak(&r->slice, &tensors, r->simulated->set.roles[r->worst].program, r->e, r->faults);
    if (status != DTP_OK)
        return status;
    dtp_explain_layer(&r->slice, r->e);
    rank_words(r, r->worst, "with most", words, sizeof words);
    dtp_explain_group(r->e, "DEVICE MEMORY", words, DTP_EXPLAIN_BYTES, (double)m->device_peak_bytes);
    dtp_explain_term(r->e, "tensors, as above", "", (double)tensors.allocated_peak_bytes, "%llu B",
                     ULL(tensors.allocated_peak_bytes));
    dtp_explain_term(r->e, "the allocator's segments beyond them", "what comes and goes, in its order",
                     (double)m->reserved_peak_bytes - (double)tensors.allocated_peak_bytes, "%llu B - %llu B",
                     ULL(m->reserved_peak_bytes), ULL(tensors.allocated_peak_bytes));
    dtp_explain_list(&parts.driver, 1, r->e);
    return DTP_OK;
}

/* Where the ranks of a pipeline differ: the one with most is named above. */
static void explain_ranks(const struct ranked *r)
{
    double total = 0;
    if (!r->stages->rank_count)
        return;
    for (uint32_t i = 0; i < r->stages->rank_count; i++)
        total += (double)r->stages->ranks[i].memory.device_peak_bytes;
    dtp_explain_group(r->e, "DEVICE MEMORY BY RANK", "of one GPU of each rank of the pipeline, added up",
                      DTP_EXPLAIN_BYTES, total);
    for (uint32_t i = 0; i < r->stages->rank_count; i++) {
        const struct dtp_pipeline_rank *rank = &r->stages->ranks[i];
        const uint64_t *peak = rank->memory.phase_bytes[rank->memory.peak_phase];
        char name[64], words[112];
        snprintf(name, sizeof name, "rank %u%s", i, i == r->worst ? ", the worst" : "");
        snprintf(words, sizeof words, "%u layer%s%s%s, %u forward%s in flight, at its peak in: %s", rank->layers,
                 dtp_plural(rank->layers), rank->embedding ? ", embedding" : "", rank->head ? ", head" : "",
                 rank->in_flight, dtp_plural(rank->in_flight), dtp_phase_words(rank->memory.peak_phase));
        dtp_explain_term(r->e, name, words, (double)rank->memory.device_peak_bytes, "; activations %.4g GiB",
                         (double)peak[DTP_OWNER_ACTIVATIONS] / 0x1p30);
    }
    dtp_explain_close(r->e, "ranks that are not listed", "");
}

/* ---- what it sends ----------------------------------------------------------------------------------------------- */

/* Operations that send for one purpose. */
struct traffic {
    enum dtp_op_kind kind;
    const char *among; /* "tensor parallel", ...; of transfers what is sent */
    uint32_t ranks;
    uint64_t count;
    double sent_bytes, alone_s;
};
#define MOST_TRAFFIC 32

static bool is_group(const struct ranked *r, const struct dtp_program_group *group, unsigned axes)
{
    struct dtp_stretch along = dtp_plan_group(plan_of(r), &r->simulated->job.cluster, axes);
    return group->ranks == along.size && group->ranks > 1 && group->stride == along.stride;
}

static const char *among(const struct ranked *r, const struct dtp_program *program, const struct dtp_op *op)
{
    if (dtp_op_kind_is_transfer(op->kind))
        return op->name;
    const struct dtp_program_group *group = &dtp_program_groups(program)[op->group];
    return is_group(r, group, DTP_AXES(TP))   ? "tensor parallel"
           : is_group(r, group, DTP_AXES(CP)) ? "context parallel"
                                              : "data parallel";
}

/* Receives are the sends of others. */
static size_t sum_traffic(const struct ranked *r, uint32_t rank, struct traffic *out)
{
    const struct dtp_program *program = r->simulated->set.roles[rank].program;
    const struct dtp_op *ops = dtp_program_ops(program);
    size_t count = 0, k;
    for (size_t i = 0; i < dtp_program_op_count(program); i++) {
        const struct dtp_op *op = &ops[i];
        if (dtp_op_kind_class(op->kind) != DTP_CLASS_COLLECTIVE || op->kind == DTP_OP_RECV)
            continue;
        const char *purpose = among(r, program, op);
        for (k = 0; k < count && (out[k].kind != op->kind || strcmp(out[k].among, purpose) != 0);)
            k++;
        if (k == MOST_TRAFFIC)
            continue; /* shows as a gap */
        if (k == count) {
            uint32_t ranks = op->kind == DTP_OP_SEND ? 2 : dtp_program_groups(program)[op->group].ranks;
            out[count++] = (struct traffic){op->kind, purpose, ranks, 0, 0, 0};
        }
        out[k].count++;
        out[k].sent_bytes += op->demand->sent_bytes;
        out[k].alone_s += r->simulated->roles[rank].alone_s[i];
    }
    return count;
}

static void traffic_name(const struct traffic *t, char *out, size_t bytes)
{
    if (t->kind == DTP_OP_SEND)
        snprintf(out, bytes, "sends to other stages: %s", t->among);
    else
        snprintf(out, bytes, "%s, %s", dtp_collective_text(dtp_op_kind_collective(t->kind)), t->among);
}

static void explain_traffic(const struct ranked *r)
{
    struct traffic traffic[MOST_TRAFFIC];
    double bytes = 0, seconds = 0;
    size_t count = sum_traffic(r, r->slowest, traffic);
    struct dtp_program_totals totals;
    char name[64], words[112];
    dtp_program_sum(r->simulated->set.roles[r->slowest].program, &totals);
    for (int i = 0; i < DTP_COLLECTIVE_COUNT; i++)
        bytes += (double)totals.sent_bytes[i];
    for (size_t i = 0; i < count; i++)
        seconds += traffic[i].alone_s;
    if (count == 0)
        return;
    rank_words(r, r->slowest, "which computes longest", words, sizeof words);
    dtp_explain_group(r->e, "COMMUNICATION", words, DTP_EXPLAIN_TRAFFIC, bytes);
    dtp_explain_source(r->e, "bytes that a GPU sends in a step; ring accounting: all-gather and reduce-scatter send "
                             "B(n-1)/n, all-reduce twice that");
    for (size_t i = 0; i < count; i++) {
        traffic_name(&traffic[i], name, sizeof name);
        dtp_explain_term(r->e, name, traffic[i].kind == DTP_OP_SEND ? "passes x bytes" : "operations x bytes sent",
                         traffic[i].sent_bytes, "%llu x %.4g MB, %u ranks", ULL(traffic[i].count),
                         traffic[i].sent_bytes / (double)traffic[i].count / 1e6, traffic[i].ranks);
    }
    dtp_explain_close(r->e, "other", "");
    dtp_explain_group(r->e, "COLLECTIVES AND SENDS", "seconds of a step as if nothing overlapped", DTP_EXPLAIN_SECONDS,
                      seconds);
    dtp_explain_source(
        r->e, "latencies: NCCL src/graph/tuning.cc, of sends send_latency_s; bandwidths measured (see constants)");
    for (size_t i = 0; i < count; i++) {
        traffic_name(&traffic[i], name, sizeof name);
        dtp_explain_term(r->e, name, "operations x (latency + bytes / bus rate)", traffic[i].alone_s,
                         "%llu x %.3g ms: %.0f GB/s", ULL(traffic[i].count),
                         traffic[i].alone_s / (double)traffic[i].count * 1e3,
                         traffic[i].sent_bytes / traffic[i].alone_s / 1e9);
    }
}

/* ---- what it computes -------------------------------------------------------------------------------------------- */

enum { FORWARD, BACKWARD, AGAIN, DIRECTIONS };
struct kernels {
    double alone_s, flops, bytes;
    uint64_t count;
};

/* Kernels of the passes by class and direction; the optimizer's are none of them. */
static void sum_kernels(const struct ranked *r, struct kernels sums[][DIRECTIONS])
{
    const struct dtp_program *program = r->simulated->set.roles[r->slowest].program;
    const struct dtp_op *ops = dtp_program_ops(program);
    int direction = FORWARD;
    for (size_t i = 0; i < dtp_program_op_count(program); i++) {
        if (ops[i].kind == DTP_OP_MARK)
            direction = strcmp(ops[i].name, "forward") == 0 || strcmp(ops[i].name, "loss") == 0 ? FORWARD : BACKWARD;
        if (!dtp_op_is_kernel(&ops[i]) || dtp_op_kind_updates(ops[i].kind))
            continue;
        struct kernels *k = &sums[dtp_op_kind_class(ops[i].kind)][ops[i].demand->recompute ? AGAIN : direction];
        k->alone_s += r->simulated->roles[r->slowest].alone_s[i];
        k->flops += ops[i].demand->flops;
        k->bytes += ops[i].demand->bytes;
        k->count += ops[i].demand->kernels;
    }
}

static void explain_compute(const struct ranked *r)
{
    static const char *const names[] = {[DTP_CLASS_MATMUL] = "matmuls",
                                        [DTP_CLASS_ATTENTION] = "attention",
                                        [DTP_CLASS_MEMORY] = "memory-bound kernels"};
    static const char *const ways[] = {[FORWARD] = "forward", [BACKWARD] = "backward", [AGAIN] = "recomputed"};
    const struct dtp_timeline *t = &r->simulated->roles[r->slowest].timeline;
    struct kernels sums[DTP_CLASS_MEMORY + 1][DIRECTIONS] = {{{0}}};
    char name[64], words[112];
    double alone_s = 0;
    sum_kernels(r, sums);
    rank_words(r, r->slowest, "which computes longest", words, sizeof words);
    dtp_explain_group(r->e, "FORWARD AND BACKWARD", words, DTP_EXPLAIN_SECONDS, t->compute_s);
    dtp_explain_source(r->e, plan_of(r)->launch_blocking
                                 ? "seconds in which its kernels run, each with its launch, which begins when the one "
                                   "before has ended (launch_blocking); dtplan explain --program lists them, with what "
                                   "each takes alone"
                                 : "seconds in which its kernels run; dtplan explain --program lists them, with what "
                                   "each takes alone");
    for (int class = DTP_CLASS_MATMUL; class <= DTP_CLASS_MEMORY; class ++)
        for (int way = 0; way < DIRECTIONS; way++) {
            const struct kernels *k = &sums[class][way];
            bool computes = class != DTP_CLASS_MEMORY;
            double amount = computes ? k->flops : k->bytes;
            snprintf(name, sizeof name, "%s, %s", names[class], ways[way]);
            dtp_explain_term(r->e, name, computes ? "FLOPs / rate of their shapes" : "bytes / rate", k->alone_s,
                             "%.4g %s at %.0f %s, %llu kernels", computes ? amount : amount / 1e9,
                             computes ? "FLOP" : "GB", amount / k->alone_s / (computes ? 1e12 : 1e9),
                             computes ? "TFLOP/s" : "GB/s", ULL(k->count));
            alone_s += k->alone_s;
        }
    double rest = t->compute_s - alone_s;
    dtp_explain_term(r->e, rest > 0 ? "slowed by what runs beside" : "side by side, or waiting for launches",
                     rest > 0 ? "collectives take SMs and memory" : "", rest, "%s", "");
}

/* ---- the step ---------------------------------------------------------------------------------------------------- */

/* All that the rank does and waits for; each instant counts once (sim/simulate.h). */
static void explain_step(const struct ranked *r)
{
    static const char *const waits[DTP_WAIT_COUNT] = {[DTP_WAIT_ACTIVATIONS] =
                                                          "activations that another rank has not made",
                                                      [DTP_WAIT_GRADIENTS] = "gradients that another rank has not made",
                                                      [DTP_WAIT_RECEIVER] = "a rank that does not take what is sent",
                                                      [DTP_WAIT_STEP_END] = "other ranks, behind its own last pass"};
    static const char *const names[DTP_WAIT_COUNT] = {[DTP_WAIT_ACTIVATIONS] = "idle for activations",
                                                      [DTP_WAIT_GRADIENTS] = "idle for gradients",
                                                      [DTP_WAIT_RECEIVER] = "idle for a receiver",
                                                      [DTP_WAIT_STEP_END] = "idle for the end of the step"};
    const struct dtp_timeline *t = &r->simulated->roles[r->slowest].timeline;
    double transfers_s = dtp_timeline_exposed_transfers_s(t);
    double tensor_s = t->exposed_by_stream_s[DTP_STREAM_TENSOR];
    double context_s = t->exposed_by_stream_s[DTP_STREAM_CONTEXT];
    char words[112];
    rank_words(r, r->slowest, "which computes longest", words, sizeof words);
    dtp_explain_group(r->e, "STEP", words, DTP_EXPLAIN_SECONDS, t->step_s);
    dtp_explain_term(r->e, "forward and backward", "as above", t->compute_s, "%s", "");
    dtp_explain_term(r->e, "optimizer", "bytes / rate", t->optimizer_s, "%s", "");
    const bool beside = r->simulated->job.plan.tp_overlap;
    dtp_explain_term(r->e, "exposed between layers",
                     beside ? "collectives of tensor parallel ranks that no matmul hides (tp_overlap)"
                            : "collectives of tensor parallel ranks that nothing hides",
                     tensor_s, "%s", "");
    dtp_explain_term(r->e, "exposed in attention", "exchanges of context parallel ranks that nothing hides", context_s,
                     "%s", "");
    dtp_explain_term(r->e, "exposed sends between stages", "transfers that nothing hides", transfers_s, "%s", "");
    dtp_explain_term(r->e, "exposed otherwise", "gradients and parameters of data parallel ranks",
                     t->exposed_communication_s - tensor_s - context_s - transfers_s, "%s", "");
    dtp_explain_term(r->e, "offload", "copies and the optimizer of the host", t->exposed_offload_s, "%s", "");
    dtp_explain_term(r->e, "waiting for the host to launch", "", t->host_bound_s, "%s", "");
    for (int i = 0; i < DTP_WAIT_COUNT && r->stages->rank_count; i++)
        dtp_explain_term(r->e, names[i], waits[i], r->stages->ranks[r->slowest].idle_for_s[i], "%s", "");
    dtp_explain_close(r->e, "other", "");
}

/* ---- the bubble -------------------------------------------------------------------------------------------------- */

/* What a pass of each stage took, on average over the micro-batches. */
static void measure_stages(const struct dtp_pipeline_stages *s, struct dtp_stage_cost *costs, uint32_t *counts)
{
    for (size_t i = 0; i < s->pass_count; i++) {
        const struct dtp_stage_pass *pass = &s->passes[i];
        struct dtp_stage_cost *cost = &costs[pass->stage];
        double seconds = pass->end_s - pass->begin_s;
        counts[pass->stage] += pass->kind == DTP_PASS_FORWARD;
        *(pass->kind == DTP_PASS_FORWARD  ? &cost->forward_s
          : pass->kind == DTP_PASS_WEIGHT ? &cost->weight_s
                                          : &cost->backward_s) += seconds;
    }
}

/* Idle time of an average rank, by the schedule alone. `apart`: none waits for the others before its next step. */
static double idle_of(struct dtp_schedule_timer *timer, const struct dtp_stage_cost *stages, uint32_t ranks, bool apart)
{
    struct dtp_schedule_costs costs = {stages, 1};
    struct dtp_schedule_timing timing;
    double busy_s = 0;
    dtp_schedule_timer_run(timer, &costs, &timing);
    for (uint32_t i = 0; i < ranks; i++)
        busy_s += timing.ranks[i].busy_s;
    return (apart ? dtp_schedule_timer_period(timer, &costs) : timing.makespan_s) - busy_s / ranks;
}

/* By what a schedule was searched: formulas, before anything was simulated. Others: "". */
static void found_text(const struct dtp_schedule *schedule, char *out, size_t bytes)
{
    const struct dtp_pass_times *t = &schedule->shape.times;
    out[0] = '\0';
    if (dtp_schedule_limit(&schedule->shape))
        snprintf(out, bytes,
                 "; found for F %.4g, B %.4g, W %.4g, sends %.3g ms by formulas, W keeping %.0f %% of what F does",
                 1e3 * t->forward_s, 1e3 * t->backward_s, 1e3 * t->weight_s, 1e3 * t->send_s, 1e2 * (1 - t->freed));
}

static void say_bubble(const struct ranked *r, const struct dtp_schedule *schedule, struct dtp_schedule_timer *timer,
                       struct dtp_stage_cost *costs, struct dtp_stage_cost *equal)
{
    const struct dtp_schedule_row *row = dtp_schedule_row(schedule->shape.kind);
    struct dtp_stage_cost mean = {0};
    uint32_t ranks = r->stages->rank_count, stages = schedule->stages;
    char found[160];
    double idle_s = 0, chunks = row->placement == DTP_CHUNKS_TWO_WAY ? 1 : schedule->shape.chunks;
    for (uint32_t i = 0; i < ranks; i++)
        idle_s += dtp_pipeline_idle_s(&r->stages->ranks[i]) / ranks;
    for (uint32_t i = 0; i < stages; i++) {
        mean.forward_s += costs[i].forward_s / stages;
        mean.backward_s += costs[i].backward_s / stages;
        mean.weight_s += costs[i].weight_s / stages;
    }
    found_text(schedule, found, sizeof found);
    for (uint32_t i = 0; i < stages; i++)
        equal[i] = mean;
    bool apart = plan_of(r)->post_validation;
    double even_s = idle_of(timer, equal, ranks, apart), uneven_s = idle_of(timer, costs, ranks, apart);
    dtp_explain_group(r->e, "PIPELINE BUBBLE", "what an average rank idles in a step", DTP_EXPLAIN_SECONDS, idle_s);
    dtp_explain_source(r->e, row->source);
    dtp_explain_term(r->e, "fill and drain of equal stages",
                     apart ? "what consecutive steps leave, for none waits for the norm of all" : row->bubble, even_s,
                     "p = %u, m = %u; F %.4g, B%s %.4g%s ms%s", ranks, schedule->shape.micro_batches,
                     1e3 * chunks * mean.forward_s, mean.weight_s > 0 ? ", W" : "+W", 1e3 * chunks * mean.backward_s,
                     mean.weight_s > 0 ? " and W apart" : "", found);
    dtp_explain_term(r->e, "stages that are not equal", "the schedule with what each takes, less that",
                     uneven_s - even_s, "%.4g - %.4g ms", 1e3 * uneven_s, 1e3 * even_s);
    dtp_explain_term(r->e, "beyond the schedule", "sends between stages, launches, the end of a step",
                     idle_s - uneven_s, "%.4g - %.4g ms", 1e3 * idle_s, 1e3 * uneven_s);
}

static enum dtp_status explain_bubble(const struct ranked *r)
{
    struct dtp_schedule_shape shape = dtp_plan_schedule(plan_of(r));
    struct dtp_schedule schedule;
    struct dtp_schedule_timer *timer = NULL;
    if (!r->stages->rank_count)
        return DTP_OK;
    enum dtp_status status = dtp_schedule_create(&shape, &schedule, r->faults);
    if (status != DTP_OK)
        return status;
    struct dtp_stage_cost *costs = calloc(2 * (size_t)schedule.stages, sizeof *costs);
    uint32_t *counts = calloc(schedule.stages, sizeof *counts);
    if (!costs || !counts)
        status = dtp_fault(r->faults, DTP_ENVIRONMENT, NULL, 0, "out of memory");
    if (status == DTP_OK)
        status = dtp_schedule_timer_create(&schedule, DTP_SEND_BUFFERED, &timer, r->faults);
    if (status == DTP_OK) {
        measure_stages(r->stages, costs, counts);
        for (uint32_t i = 0; i < schedule.stages; i++) {
            costs[i].forward_s /= counts[i];
            costs[i].backward_s /= counts[i];
            costs[i].weight_s /= counts[i];
        }
        say_bubble(r, &schedule, timer, costs, costs + schedule.stages);
    }
    dtp_schedule_timer_destroy(timer);
    dtp_schedule_destroy(&schedule);
    free(costs);
    free(counts);
    return status;
}

/* ---- all of it --------------------------------------------------------------------------------------------------- */

enum dtp_status dtp_explain_simulated(const struct dtp_simulated *simulated, const struct dtp_pipeline_stages *stages,
                                      struct dtp_explanation *out, struct dtp_faults *faults)
{
    const struct dtp_job *job = &simulated->job;
    struct ranked r = {.simulated = simulated, .stages = stages, .worst = simulated->worst, .e = out, .faults = faults};
    struct dtp_slice slice;
    dtp_estimate_slice(&job->transformer, &job->cluster, &job->plan, &slice);
    r.slice = *job;
    r.slice.transformer = slice.transformer;
    r.slice.cluster = slice.cluster;
    r.slice.plan = slice.plan;
    for (uint32_t i = 1; i < simulated->set.role_count; i++)
        if (simulated->roles[i].timeline.compute_s > simulated->roles[r.slowest].timeline.compute_s)
            r.slowest = i;
    out->term_count = out->group_count = 0;
    dtp_explain_parameters(job, out);
    explain_parameters(&r);
    enum dtp_status status = explain_memory(&r);
    if (status != DTP_OK)
        return status;
    explain_ranks(&r);
    explain_traffic(&r);
    dtp_explain_arithmetic(job, out);
    explain_compute(&r);
    explain_step(&r);
    return explain_bubble(&r);
}
