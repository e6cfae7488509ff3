/* Training by a program set: what its roles have in common, and what each did in a step. */
#include "train/trainer.h"

#include "runtime/dtplan/lower_executor.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- batches ----------------------------------------------------------------------------------------------------- */

/* Whether what a role says (0: nothing) is what those before it said; *known becomes it. */
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
    t->loss_copies = 1;
    for (uint32_t r = 0; r < roles; r++) {
        struct dtp_executor_map map;
        enum dtp_status status = dtp_executor_find(t->set ? t->set->roles[r].program : t->program, &map, t->faults);
        if (status != DTP_OK)
            return status;
        const struct dtp_program *program = t->set ? t->set->roles[r].program : t->program;
        uint32_t copies = dtp_program_execution(program)->tensor_ranks,
                 ranks = t->set ? t->set->roles[r].ranks : t->ranks;
        t->loss_copies = map.step_tokens > 0 && copies ? copies : t->loss_copies;
        same = take_role(&said, &map, copies ? ranks / copies : ranks) && same;
        dtp_executor_map_release(&map);
    }
    if (!same || !said.vocab || !said.sequence || !said.rows || !said.micro_steps || !(said.tokens > 0))
        return dtp_fault(t->faults, DTP_BAD_INPUT, t->settings->program, 0,
                         "is no step of training: its roles must agree in the tokens of a batch, of a sequence, of the "
                         "vocabulary and of the step, and one must take batches and one compute a loss");
    const struct dtp_bind_job job = {.program = t->program, .set = t->set, .rank = t->of->ranks.rank};
    const struct dtp_context_place context = dtp_bind_context_place(&job);
    t->step_tokens = said.tokens;
    t->batch = (struct dtp_batch_job){.vocab = said.vocab,
                                      .sequence = said.sequence * context.ranks,
                                      .micro_batch = (uint32_t)(said.rows / said.sequence),
                                      .accumulate = (uint32_t)said.micro_steps,
                                      .rank = dtp_bind_data_rank(&job) / context.ranks,
                                      .ranks = (uint32_t)said.ranks / context.ranks,
                                      .context = context};
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

/* ---- what each took and sent ------------------------------------------------------------------------------------- */

enum dtp_status dtp_train_say_ranks(struct dtp_trainer *t)
{
    const struct dtp_communicator *communicator = t->world.communicator;
    const struct dtp_copied_bytes copied = dtp_run_copied(t->run);
    struct dtp_rank_account mine = {.role = dtp_program_set_role_of(t->set, t->of->ranks.rank),
                                    .device_arena_bytes = t->arena.device_bytes,
                                    .used_bytes = t->used_bytes,
                                    .steps = t->steps_run,
                                    .host_to_device_bytes = copied.host_to_device,
                                    .device_to_host_bytes = copied.device_to_host};
    struct dtp_rank_account *all = calloc(t->ranks, sizeof *all);
    if (communicator)
        memcpy(mine.sent_bytes, communicator->sent_bytes, sizeof mine.sent_bytes);
    enum dtp_status status = all ? dtp_world_exchange(&t->world, &mine, sizeof mine, all, t->faults)
                                 : dtp_fault(t->faults, DTP_ENVIRONMENT, NULL, 0, "out of memory");
    if (status == DTP_OK)
        dtp_event_ranks(t->events, all, t->ranks);
    free(all);
    return status;
}

/* ---- when each operation ran ------------------------------------------------------------------------------------- */

/* What a rank tells: when its step was issued, by the clock of its machine, then three times of each operation. */
static size_t spans_length(const struct dtp_trainer *t)
{
    size_t most = 0;
    for (uint32_t r = 0; r < t->set->role_count; r++) {
        size_t count = dtp_program_op_count(t->set->roles[r].program);
        most = count > most ? count : most;
    }
    return 1 + 3 * most;
}

static void tell_spans(const struct dtp_trainer *t, double *mine)
{
    size_t count = t->binding.op_count;
    mine[0] = t->begun_s;
    memcpy(mine + 1, t->times.alone_s, count * sizeof *mine);
    memcpy(mine + 1 + count, t->times.start_s, count * sizeof *mine);
    memcpy(mine + 1 + 2 * count, t->times.end_s, count * sizeof *mine);
}

/* Ranks of one machine have one clock; those of another are taken to begin when its first one does. */
static enum dtp_status write_spans(const struct dtp_trainer *t, double *all, size_t length)
{
    struct dtp_role_spans *roles = calloc(t->set->role_count, sizeof *roles);
    double first_s = INFINITY;
    if (!roles)
        return dtp_fault(t->faults, DTP_ENVIRONMENT, NULL, 0, "out of memory");
    for (uint32_t rank = 0; rank < t->ranks; rank++)
        first_s = fmin(first_s, all[rank * length]);
    for (uint32_t r = 0; r < t->set->role_count; r++) {
        double *of = &all[dtp_program_set_rank(t->set, r, 0) * length];
        size_t count = dtp_program_op_count(t->set->roles[r].program);
        for (size_t i = 0; i < 2 * count; i++)
            of[1 + count + i] += of[0] - first_s;
        roles[r] = (struct dtp_role_spans){of + 1, of + 1 + count, of + 1 + 2 * count, count};
    }
    enum dtp_status status = dtp_role_spans_write(t->settings->op_times, roles, t->set->role_count, t->faults);
    free(roles);
    return status;
}

enum dtp_status dtp_train_write_spans(struct dtp_trainer *t)
{
    size_t length = spans_length(t), bytes = length * sizeof(double);
    double *mine = calloc(length, sizeof *mine), *all = calloc(length * t->ranks, sizeof *all);
    enum dtp_status status = mine && all && bytes * t->ranks <= UINT32_MAX
                                 ? DTP_OK
                                 : dtp_fault(t->faults, DTP_ENVIRONMENT, NULL, 0, "no memory for all ranks' times");
    if (status == DTP_OK) {
        tell_spans(t, mine);
        status = dtp_world_exchange(&t->world, mine, (uint32_t)bytes, all, t->faults);
    }
    if (status == DTP_OK && t->first_rank && write_spans(t, all, length) != DTP_OK)
        t->unwritten = DTP_ENVIRONMENT;
    free(mine);
    free(all);
    return status;
}
