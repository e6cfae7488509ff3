#include "sim/pipeline_stages.h"

#include "plan/degrees.h"
#include "sim/op_time.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The view while it is made. */
struct making {
    const struct dtp_simulated *simulated;
    struct dtp_schedule schedule;
    struct dtp_stages stages;
    struct dtp_pipeline_stages *out;
    struct dtp_faults *faults;
};

/* ---- passes ------------------------------------------------------------------------------------------------------ */

static bool is_backward(const struct dtp_pass *pass)
{
    return pass->kind != DTP_PASS_FORWARD;
}

/* Whether the mark begins the rank's next pass: a backward behind its loss has two. */
static bool begins_pass(const struct dtp_op *op, const struct dtp_op *mark_before)
{
    bool after_loss = mark_before && strcmp(mark_before->name, "loss") == 0;
    return strcmp(op->name, "forward") == 0 || strcmp(op->name, "loss") == 0 ||
           (strcmp(op->name, "backward") == 0 && !after_loss);
}

static void extend(struct dtp_stage_pass *pass, const struct dtp_span *span, bool first)
{
    if (first || span->start_s < pass->begin_s)
        pass->begin_s = span->start_s;
    if (first || span->end_s > pass->end_s)
        pass->end_s = span->end_s;
}

/* False: the program has other passes than the list of its rank. */
static bool time_passes(const struct making *m, uint32_t rank)
{
    const struct dtp_program *program = m->simulated->set.roles[rank].program;
    const struct dtp_span *span = m->simulated->roles[rank].timeline.span;
    const struct dtp_op *ops = dtp_program_ops(program), *mark = NULL;
    uint32_t first = m->schedule.first[rank], count = m->schedule.first[rank + 1] - first, next = 0;
    bool empty = true;
    for (uint32_t i = 0; i < dtp_program_op_count(program); i++) {
        if (ops[i].kind == DTP_OP_MARK) {
            if (strcmp(ops[i].name, "step") == 0)
                break;
            if (begins_pass(&ops[i], mark)) {
                if (next == count || is_backward(&m->schedule.passes[first + next]) != (ops[i].name[0] != 'f'))
                    return false;
                struct dtp_stage_pass *pass = &m->out->passes[first + next++];
                pass->begin_s = pass->end_s = span[i].end_s;
                empty = true;
            }
            mark = &ops[i];
        } else if (next && ops[i].stream == DTP_STREAM_COMPUTE && dtp_op_is_kernel(&ops[i])) {
            extend(&m->out->passes[first + next - 1], &span[i], empty);
            empty = false;
        }
    }
    return next == count;
}

static void name_passes(const struct making *m, uint32_t rank)
{
    for (uint32_t i = m->schedule.first[rank]; i < m->schedule.first[rank + 1]; i++) {
        const struct dtp_pass *pass = &m->schedule.passes[i];
        m->out->passes[i] = (struct dtp_stage_pass){.rank = rank,
                                                    .stage = dtp_schedule_stage(&m->schedule, rank, pass->chunk),
                                                    .chunk = pass->chunk,
                                                    .micro_batch = pass->micro_batch,
                                                    .kind = (enum dtp_pass_kind)pass->kind};
    }
}

/* ---- idle -------------------------------------------------------------------------------------------------------- */

/* An operation in time. */
struct busy {
    double start_s, end_s;
    bool for_host;      /* it waited for the host to issue it: until then the host is late, and the rank not idle */
    enum dtp_wait wait; /* what the rank waits for until it starts */
};

static int compare_starts(const void *left, const void *right)
{
    const struct busy *a = left, *b = right;
    if (a->start_s != b->start_s)
        return a->start_s > b->start_s ? 1 : -1;
    if (a->for_host != b->for_host)
        return (int)b->for_host - (int)a->for_host;
    return (int)a->wait - (int)b->wait; /* a transfer before what waits for it */
}

static double overlap_s(double begin_s, double end_s, double from_s, double to_s)
{
    double begin = begin_s > from_s ? begin_s : from_s, end = end_s < to_s ? end_s : to_s;
    return end > begin ? end - begin : 0;
}

/* Where a rank's idle time changes its name. */
struct borders {
    double backward_s; /* its first backward begins */
    double forward_s;  /* its last forward ends */
    double passes_s;   /* its last pass ends */
};

static struct borders borders_of(const struct making *m, uint32_t index)
{
    struct borders b = {.backward_s = m->simulated->roles[index].timeline.step_s};
    for (uint32_t i = m->schedule.first[index]; i < m->schedule.first[index + 1]; i++) {
        const struct dtp_stage_pass *pass = &m->out->passes[i];
        bool forward = pass->kind == DTP_PASS_FORWARD;
        if (forward && pass->end_s > b.forward_s)
            b.forward_s = pass->end_s;
        if (!forward && pass->begin_s < b.backward_s)
            b.backward_s = pass->begin_s;
        b.passes_s = pass->end_s > b.passes_s ? pass->end_s : b.passes_s;
    }
    return b;
}

/* An interval in which nothing runs, by when it is and what ends it. */
static void add_idle(struct dtp_pipeline_rank *rank, double begin_s, const struct busy *next, const struct borders *b)
{
    double end_s = next->start_s, late_s = b->backward_s > b->forward_s ? b->backward_s : b->forward_s;
    rank->warm_up_idle_s += overlap_s(begin_s, end_s, 0, b->backward_s);
    rank->steady_idle_s += overlap_s(begin_s, end_s, b->backward_s, b->forward_s);
    rank->drain_idle_s += overlap_s(begin_s, end_s, late_s, end_s);
    rank->idle_for_s[begin_s < b->passes_s ? next->wait : DTP_WAIT_STEP_END] += end_s - begin_s;
}

/* What a rank waits for before an operation: of its own it waits for nothing that does not run. */
static enum dtp_wait wait_of(const struct dtp_op *op)
{
    if (op->kind == DTP_OP_SEND)
        return DTP_WAIT_RECEIVER;
    if (op->kind != DTP_OP_RECV)
        return DTP_WAIT_STEP_END;
    return op->stream == DTP_STREAM_RECEIVE ? DTP_WAIT_ACTIVATIONS : DTP_WAIT_GRADIENTS;
}

/* What lies between spans. False: no memory. */
static bool sum_idle(const struct making *m, uint32_t index)
{
    const struct dtp_timeline *t = &m->simulated->roles[index].timeline;
    const struct dtp_op *ops = dtp_program_ops(m->simulated->set.roles[index].program);
    const struct borders borders = borders_of(m, index);
    double now_s = 0;
    size_t count = 0;
    struct busy *busy = malloc((t->op_count + 1) * sizeof *busy);
    if (!busy)
        return false;
    size_t last[DTP_STREAM_COUNT]; /* of each stream in `busy` */
    memset(last, 0xff, sizeof last);
    for (size_t i = 0; i < t->op_count; i++) {
        const struct dtp_span *span = &t->span[i];
        struct busy *before = last[ops[i].stream] < count ? &busy[last[ops[i].stream]] : NULL;
        if (dtp_op_kind_class(ops[i].kind) == DTP_CLASS_NONE ||
            (span->end_s <= span->start_s && !dtp_op_kind_is_transfer(ops[i].kind)))
            continue;
        if (before && before->end_s == span->start_s && before->start_s < span->start_s) {
            before->end_s = span->end_s; /* a stream that goes on leaves nothing idle between */
            continue;
        }
        last[ops[i].stream] = count;
        busy[count++] = (struct busy){span->start_s, span->end_s, t->cause[i] == DTP_CAUSE_HOST, wait_of(&ops[i])};
    }
    qsort(busy, count, sizeof *busy, compare_starts);
    busy[count++] = (struct busy){t->step_s, t->step_s, false, DTP_WAIT_STEP_END};
    for (size_t i = 0; i < count; i++) {
        if (busy[i].start_s > now_s && !busy[i].for_host)
            add_idle(&m->out->ranks[index], now_s, &busy[i], &borders);
        now_s = busy[i].end_s > now_s ? busy[i].end_s : now_s;
    }
    free(busy);
    return true;
}

/* ---- queues ------------------------------------------------------------------------------------------------------ */

/* When the passes of all ranks end that hand something on, by stage and micro-batch: activations, and gradients. */
struct made {
    double *end_s[2]; /* [is backward][stage x micro-batches + micro-batch] */
    uint32_t stages, micro_batches;
};

static double *made_at(const struct made *made, bool backward, uint32_t stage, uint32_t micro_batch)
{
    return &made->end_s[backward][(size_t)stage * made->micro_batches + micro_batch];
}

/* What a rank's queue does at an instant. */
struct queued {
    double time_s;
    int change;
};

/* What arrives at the instant at which it is taken never waits. */
static int compare_queued(const void *left, const void *right)
{
    const struct queued *a = left, *b = right;
    if (a->time_s != b->time_s)
        return a->time_s > b->time_s ? 1 : -1;
    return a->change - b->change;
}

/* The most of one way that waits for a rank. `room` holds two for each of its passes. */
static uint32_t longest_queue(const struct making *m, const struct made *made, uint32_t rank, bool backward,
                              struct queued *room)
{
    size_t count = 0;
    int now = 0, most = 0;
    for (uint32_t i = m->schedule.first[rank]; i < m->schedule.first[rank + 1]; i++) {
        const struct dtp_stage_pass *pass = &m->out->passes[i];
        uint32_t line = dtp_schedule_line(&m->schedule, pass->micro_batch);
        uint32_t from = backward ? pass->stage + 1 : pass->stage - 1; /* wraps at the first: beyond all */
        if (pass->kind == DTP_PASS_WEIGHT || is_backward(&m->schedule.passes[i]) != backward || from >= made->stages ||
            dtp_schedule_place(&m->schedule, line, from).rank == rank)
            continue;
        double made_s = *made_at(made, backward, from, pass->micro_batch);
        if (made_s >= pass->begin_s)
            continue;
        room[count++] = (struct queued){made_s, 1};
        room[count++] = (struct queued){pass->begin_s, -1};
    }
    qsort(room, count, sizeof *room, compare_queued);
    for (size_t i = 0; i < count; i++) {
        now += room[i].change;
        most = now > most ? now : most;
    }
    return (uint32_t)most;
}

static enum dtp_status count_queues(const struct making *m)
{
    struct made made = {.stages = m->schedule.stages, .micro_batches = m->schedule.shape.micro_batches};
    size_t each = (size_t)made.stages * made.micro_batches;
    double *times = calloc(2 * each, sizeof *times);
    struct queued *room = malloc((2 * m->out->pass_count + 1) * sizeof *room);
    if (times && room) {
        made.end_s[0] = times;
        made.end_s[1] = times + each;
        for (size_t i = 0; i < m->out->pass_count; i++) {
            const struct dtp_stage_pass *pass = &m->out->passes[i];
            if (pass->kind != DTP_PASS_WEIGHT)
                *made_at(&made, pass->kind != DTP_PASS_FORWARD, pass->stage, pass->micro_batch) = pass->end_s;
        }
        for (uint32_t rank = 0; rank < m->out->rank_count; rank++) {
            m->out->ranks[rank].forward_queue = longest_queue(m, &made, rank, false, room);
            m->out->ranks[rank].backward_queue = longest_queue(m, &made, rank, true, room);
        }
    }
    enum dtp_status status = times && room ? DTP_OK : dtp_fault(m->faults, DTP_ENVIRONMENT, NULL, 0, "out of memory");
    free(times);
    free(room);
    return status;
}

/* ---- a rank ------------------------------------------------------------------------------------------------------ */

static void count_passes(const struct making *m, uint32_t index, struct dtp_pipeline_rank *rank)
{
    const struct dtp_transformer *transformer = &m->simulated->job.transformer;
    uint32_t now = 0;
    for (uint32_t i = m->schedule.first[index]; i < m->schedule.first[index + 1]; i++) {
        enum dtp_pass_kind kind = (enum dtp_pass_kind)m->schedule.passes[i].kind;
        rank->forwards += kind == DTP_PASS_FORWARD;
        now += kind == DTP_PASS_FORWARD;
        rank->in_flight = now > rank->in_flight ? now : rank->in_flight;
        now -= kind == DTP_PASS_WHOLE_BACKWARD || kind == DTP_PASS_WEIGHT;
    }
    rank->chunks = m->schedule.shape.chunks;
    for (uint32_t chunk = 0; chunk < rank->chunks; chunk++) {
        const struct dtp_stage_parts *part = &m->stages.parts[dtp_schedule_stage(&m->schedule, index, chunk)];
        rank->layers += part->layers;
        rank->mtp_layers += part->mtp_layers;
        const uint32_t end = part->first_layer + part->layers + part->mtp_layers;
        rank->expert_layers += (uint32_t)(dtp_transformer_expert_layers(transformer, end) -
                                          dtp_transformer_expert_layers(transformer, part->first_layer));
        rank->embedding = rank->embedding || part->embedding;
        rank->head = rank->head || part->head;
    }
}

static enum dtp_status make_rank(const struct making *m, uint32_t index)
{
    struct dtp_pipeline_rank *rank = &m->out->ranks[index];
    const struct dtp_timeline *t = &m->simulated->roles[index].timeline;
    name_passes(m, index);
    if (!time_passes(m, index))
        return dtp_fault(m->faults, DTP_BAD_INPUT, NULL, 0, "the program of %s has other passes than its schedule",
                         m->simulated->set.roles[index].name);
    count_passes(m, index, rank);
    rank->compute_s = t->compute_s;
    rank->optimizer_s = t->optimizer_s;
    rank->host_bound_s = t->host_bound_s;
    rank->exposed_offload_s = t->exposed_offload_s;
    rank->exposed_transfers_s = dtp_timeline_exposed_transfers_s(t);
    rank->exposed_tensor_s = t->exposed_by_stream_s[DTP_STREAM_TENSOR];
    rank->exposed_context_s = t->exposed_by_stream_s[DTP_STREAM_CONTEXT];
    rank->exposed_collectives_s =
        t->exposed_communication_s - rank->exposed_transfers_s - rank->exposed_tensor_s - rank->exposed_context_s;
    if (rank->exposed_collectives_s < 0) /* sums of many intervals, rounded */
        rank->exposed_collectives_s = 0;
    rank->memory = m->simulated->roles[index].memory;
    return sum_idle(m, index) ? DTP_OK : dtp_fault(m->faults, DTP_ENVIRONMENT, NULL, 0, "out of memory");
}

/* Moves the passes of each rank from its own clock to that of all. */
static void line_up(const struct making *m)
{
    for (uint32_t rank = 0; rank < m->out->rank_count; rank++) {
        double begin_s = m->simulated->roles[rank].timeline.begin_s;
        m->out->last_s = fmax(m->out->last_s, begin_s + m->out->step_s);
        for (uint32_t i = m->schedule.first[rank]; i < m->schedule.first[rank + 1]; i++) {
            m->out->passes[i].begin_s += begin_s;
            m->out->passes[i].end_s += begin_s;
        }
    }
}

static enum dtp_status make(struct making *m)
{
    const struct dtp_simulated *s = m->simulated;
    struct dtp_schedule_shape shape = dtp_plan_schedule(&s->job.plan);
    enum dtp_status status = dtp_schedule_create(&shape, &m->schedule, m->faults);
    if (status == DTP_OK)
        status = dtp_plan_stages(&s->job.plan, &s->job.transformer, &m->stages, m->faults);
    if (status != DTP_OK)
        return status;
    m->out->rank_count = s->set.role_count;
    m->out->worst = s->worst;
    m->out->schedule = shape.kind;
    m->out->step_s = s->timeline.step_s;
    m->out->pass_count = dtp_schedule_pass_count(&m->schedule);
    m->out->ranks = calloc(m->out->rank_count, sizeof *m->out->ranks);
    m->out->passes = calloc(m->out->pass_count + 1, sizeof *m->out->passes);
    if (!m->out->ranks || !m->out->passes)
        return dtp_fault(m->faults, DTP_ENVIRONMENT, NULL, 0, "out of memory");
    for (uint32_t rank = 0; rank < m->out->rank_count && status == DTP_OK; rank++)
        status = make_rank(m, rank);
    line_up(m);
    return status == DTP_OK ? count_queues(m) : status;
}

const char *dtp_wait_text(enum dtp_wait wait)
{
    static const char *const words[] = {
#define WAIT_WORD(suffix, word) word,
        DTP_WAIT_TABLE(WAIT_WORD)
#undef WAIT_WORD
    };
    return words[wait];
}

double dtp_pipeline_busy_fraction(const struct dtp_pipeline_stages *stages, uint32_t rank)
{
    const struct dtp_pipeline_rank *r = &stages->ranks[rank];
    return stages->step_s > 0 ? (r->compute_s + r->optimizer_s) / stages->step_s : 0;
}

double dtp_pipeline_idle_s(const struct dtp_pipeline_rank *rank)
{
    return rank->warm_up_idle_s + rank->steady_idle_s + rank->drain_idle_s;
}

enum dtp_status dtp_pipeline_stages_of(const struct dtp_simulated *simulated, struct dtp_pipeline_stages *out,
                                       struct dtp_faults *faults)
{
    struct making m = {.simulated = simulated, .out = out, .faults = faults};
    *out = (struct dtp_pipeline_stages){0};
    if (simulated->set.role_count < 2)
        return DTP_OK;
    enum dtp_status status = make(&m);
    dtp_schedule_destroy(&m.schedule);
    dtp_stages_destroy(&m.stages);
    if (status != DTP_OK)
        dtp_pipeline_stages_release(out);
    return status;
}

void dtp_pipeline_stages_release(struct dtp_pipeline_stages *stages)
{
    free(stages->ranks);
    free(stages->passes);
    *stages = (struct dtp_pipeline_stages){0};
}
