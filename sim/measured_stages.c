#include "sim/measured_stages.h"

#include "sim/timeline.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static bool take_arrays(struct dtp_timeline *t, size_t count)
{
    t->op_count = count;
    t->span = dtp_host_arena_take_zeroed(&t->memory, count + 1, sizeof *t->span);
    t->cause = dtp_host_arena_take(&t->memory, count + 1, sizeof *t->cause);
    t->issue_s = dtp_host_arena_take_zeroed(&t->memory, count + 1, sizeof *t->issue_s);
    return t->span && t->cause && t->issue_s;
}

/* What takes no time happens when the operation before it on its stream ends. */
static void take_spans(const struct dtp_program *program, const struct dtp_measured_spans *from, struct dtp_timeline *t)
{
    const struct dtp_op *ops = dtp_program_ops(program);
    double last_s[DTP_STREAM_COUNT] = {0};
    for (size_t i = 0; i < t->op_count; i++) {
        double *last = &last_s[ops[i].stream];
        bool timed = isfinite(from->start_s[i]) && from->end_s[i] >= from->start_s[i];
        t->cause[i] = DTP_CAUSE_NONE;
        t->span[i] = timed ? (struct dtp_span){from->start_s[i], from->end_s[i]} : (struct dtp_span){*last, *last};
        *last = t->span[i].end_s;
    }
}

static void meet(struct dtp_simulated *s, uint32_t *const *partner)
{
    for (uint32_t r = 0; r < s->set.role_count; r++) {
        const struct dtp_op *ops = dtp_program_ops(s->set.roles[r].program);
        for (size_t i = 0; i < s->roles[r].timeline.op_count; i++) {
            if (partner[r][i] == DTP_NO_INDEX)
                continue;
            struct dtp_span *mine = &s->roles[r].timeline.span[i];
            const struct dtp_span *theirs = &s->roles[ops[i].peer].timeline.span[partner[r][i]];
            mine->start_s = fmin(fmax(mine->start_s, theirs->start_s), mine->end_s);
        }
    }
}

/* All ranks' steps end with the last one's. */
static bool account(struct dtp_simulated *s)
{
    double step_s = 0;
    bool done = true;
    for (uint32_t r = 0; r < s->set.role_count; r++)
        for (size_t i = 0; i < s->roles[r].timeline.op_count; i++)
            step_s = fmax(step_s, s->roles[r].timeline.span[i].end_s);
    for (uint32_t r = 0; r < s->set.role_count && done; r++) {
        struct dtp_timeline *t = &s->roles[r].timeline;
        double *starved_s = calloc(t->op_count + 1, sizeof *starved_s);
        for (size_t i = 0; i < t->op_count; i++)
            t->issue_s[i] = t->span[i].start_s;
        t->step_s = step_s;
        done = starved_s && dtp_timeline_account(s->set.roles[r].program, starved_s, false, t);
        free(starved_s);
    }
    return done;
}

enum dtp_status dtp_simulated_as_measured(const struct dtp_simulated *simulated, const struct dtp_measured_spans *spans,
                                          struct dtp_simulated *out, struct dtp_faults *faults)
{
    struct dtp_host_arena arena = {0};
    uint32_t **partner, count = simulated->set.role_count;
    *out = *simulated;
    out->roles = calloc(count, sizeof *out->roles);
    bool memory = out->roles != NULL;
    for (uint32_t r = 0; memory && r < count; r++) {
        struct dtp_simulated_role *role = &out->roles[r];
        *role = simulated->roles[r];
        role->timeline = (struct dtp_timeline){.op_count = 0};
        memory = take_arrays(&role->timeline, simulated->roles[r].timeline.op_count);
        if (memory)
            take_spans(simulated->set.roles[r].program, &spans[r], &role->timeline);
    }
    enum dtp_status status = memory ? dtp_program_set_match(&simulated->set, &arena, &partner, faults)
                                    : dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "out of memory");
    if (status == DTP_OK) {
        meet(out, partner);
        status = account(out) ? DTP_OK : dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "out of memory");
    }
    dtp_host_arena_release(&arena);
    if (status != DTP_OK)
        dtp_simulated_measured_release(out);
    else
        out->timeline = out->roles[out->worst].timeline;
    return status;
}

void dtp_simulated_measured_release(struct dtp_simulated *measured)
{
    for (uint32_t r = 0; measured->roles && r < measured->set.role_count; r++)
        dtp_timeline_release(&measured->roles[r].timeline);
    free(measured->roles);
    memset(measured, 0, sizeof *measured);
}
