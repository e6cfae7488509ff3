/* Training by a program set: what its roles have in common, and what each did in a step. */
#include "train/trainer.h"

#include "runtime/dtplan/lower_executor.h"

#include <math.h>
#include <stdlib.h>

/* ---- batches ----------------------------------------------------------------------------------------------------- */

/* What is said by one role or by several alike. */
static bool agree(uint64_t *known, uint64_t said)
{
    bool same = !*known || !said || *known == said;
    *known = said ? said : *known;
    return same;
}

struct said {
    uint64_t vocab, sequence, rows, micro_steps, ranks;
    double tokens;
};

static bool take_role(struct said *said, const struct dtp_executor_map *map, uint32_t ranks)
{
    uint64_t tokens = (uint64_t)said->tokens;
    bool same = agree(&said->vocab, map->vocab) && agree(&said->sequence, map->sequence) &&
                agree(&said->rows, map->rows) && agree(&said->micro_steps, map->micro_steps) &&
                agree(&said->ranks, map->micro_steps ? ranks : 0) && agree(&tokens, (uint64_t)map->step_tokens);
    said->tokens = (double)tokens;
    return same;
}

enum dtp_status dtp_train_shape(struct dtp_trainer *t)
{
    uint32_t roles = t->set ? t->set->role_count : 1;
    struct said said = {0};
    bool same = true;
    for (uint32_t r = 0; r < roles; r++) {
        struct dtp_executor_map map;
        enum dtp_status status = dtp_executor_find(t->set ? t->set->roles[r].program : t->program, &map, t->faults);
        if (status != DTP_OK)
            return status;
        same = take_role(&said, &map, t->set ? t->set->roles[r].ranks : t->ranks) && same;
        dtp_executor_map_release(&map);
    }
    if (!same || !said.vocab || !said.sequence || !said.rows || !said.micro_steps || !(said.tokens > 0))
        return dtp_fault(t->faults, DTP_BAD_INPUT, t->settings->program, 0,
                         "is no step of training: its roles must agree in the tokens of a batch, of a sequence, of the "
                         "vocabulary and of the step, and one must take batches and one compute a loss");
    uint32_t rank = t->of->ranks.rank;
    if (t->set)
        rank = dtp_program_set_place(t->set, rank);
    t->step_tokens = said.tokens;
    t->batch = (struct dtp_batch_job){.vocab = said.vocab,
                                      .sequence = said.sequence,
                                      .micro_batch = (uint32_t)(said.rows / said.sequence),
                                      .accumulate = (uint32_t)said.micro_steps,
                                      .rank = rank,
                                      .ranks = (uint32_t)said.ranks};
    return DTP_OK;
}

/* ---- what each did ----------------------------------------------------------------------------------------------- */

static int by_start(const void *left, const void *right)
{
    const double *a = left, *b = right;
    return (a[0] > b[0]) - (a[0] < b[0]);
}

/* Seconds in which at least one kernel ran, and when the last operation ended. DTP_ENVIRONMENT: no memory. */
static enum dtp_status measure(const struct dtp_trainer *t, struct dtp_role_times *out)
{
    size_t count = 0;
    double(*span)[2] = malloc((t->binding.op_count + 1) * sizeof *span), until_s = 0;
    *out = (struct dtp_role_times){0, 0};
    if (!span)
        return dtp_fault(t->faults, DTP_ENVIRONMENT, NULL, 0, "out of memory");
    for (size_t i = 0; i < t->binding.op_count; i++) {
        out->step_s = fmax(out->step_s, t->times.end_s[i]);
        if (t->binding.ops[i].kind != DTP_BOUND_COMPUTE || !(t->times.end_s[i] > t->times.start_s[i]))
            continue;
        span[count][0] = t->times.start_s[i];
        span[count++][1] = t->times.end_s[i];
    }
    qsort(span, count, sizeof *span, by_start);
    for (size_t i = 0; i < count; i++) {
        out->busy_s += fmax(0, span[i][1] - fmax(until_s, span[i][0]));
        until_s = fmax(until_s, span[i][1]);
    }
    free(span);
    return DTP_OK;
}

enum dtp_status dtp_train_say_roles(struct dtp_trainer *t)
{
    struct dtp_role_times mine, *all = calloc(t->ranks, sizeof *all),
                                *roles = calloc(t->set->role_count, sizeof *roles);
    enum dtp_status status = measure(t, &mine);
    if (!all || !roles)
        status = dtp_fault(t->faults, DTP_ENVIRONMENT, NULL, 0, "out of memory");
    if (status == DTP_OK)
        status = dtp_world_exchange(&t->world, &mine, sizeof mine, all, t->faults);
    for (uint32_t r = 0; r < t->set->role_count && status == DTP_OK; r++) {
        const struct dtp_program_role *role = &t->set->roles[r];
        for (uint32_t i = 0; i < role->ranks; i++) {
            const struct dtp_role_times *of_rank = &all[dtp_program_set_rank(t->set, r, i)];
            roles[r].busy_s += of_rank->busy_s / role->ranks;
            roles[r].step_s += of_rank->step_s / role->ranks;
        }
    }
    if (status == DTP_OK)
        dtp_event_roles(t->events, roles, t->set->role_count);
    free(all);
    free(roles);
    return status;
}
