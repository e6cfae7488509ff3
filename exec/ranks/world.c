#include "ranks/world.h"

#include "base/append.h"
#include "base/crc64.h"
#include "program/program_text.h"

#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define ABORT_S 5 /* that NCCL may take to end what is in flight */

/* ---- failure ----------------------------------------------------------------------------------------------------- */

/* The operations that are issued in order, `told.op` the last of them; of the collectives among them the first that has
 * not ended is where this rank stands. */
static struct dtp_control_place first_not_ended(void *context, struct dtp_control_place told)
{
    struct dtp_world *world = context;
    pthread_mutex_lock(&world->watch); /* while `ended` is there, so is the program */
    const struct dtp_op *ops = world->ended ? dtp_program_ops(world->program) : NULL;
    size_t count = world->ended ? dtp_program_op_count(world->program) : 0;
    for (uint32_t i = 0; i < told.op && i < count; i++)
        if (dtp_op_kind_class(ops[i].kind) == DTP_CLASS_COLLECTIVE && world->ended[ops[i].stream] <= i)
            told.op = i;
    pthread_mutex_unlock(&world->watch);
    return told;
}

/* Says where a rank is, by its own role's program, which may be another than this rank's. */
static void words_of(const struct dtp_world *world, uint32_t rank, struct dtp_control_place place, char *out,
                     size_t bytes)
{
    char layer[32] = "";
    const struct dtp_program *program =
        world->set ? world->set->roles[dtp_program_set_role_of(world->set, rank)].program : world->program;
    if (!program || place.step == 0 || place.op >= dtp_program_op_count(program)) {
        snprintf(out, bytes, "before the first step");
        return;
    }
    const struct dtp_op *op = &dtp_program_ops(program)[place.op];
    if (op->layer != DTP_NO_LAYER)
        snprintf(layer, sizeof layer, " of layer %u", (unsigned)op->layer);
    snprintf(out, bytes, "in step %" PRIu64 ", at %s \"%s\"%s", place.step, dtp_op_kind_text(op->kind), op->name,
             layer);
    if (world->set && world->set->role_count > 1)
        dtp_append(out, bytes, " of micro-batch %u on %s", (unsigned)op->micro_step,
                   world->set->roles[dtp_program_set_role_of(world->set, rank)].name);
}

static volatile sig_atomic_t failed_with; /* of the failure that ends this process; it has one world */

static void leave_at_once(int signal)
{
    (void)signal;
    _exit(failed_with);
}

/* The others write nothing more once they have ended, which takes them as long as it takes this rank. */
static void clean_checkpoints(const struct dtp_world *world)
{
    const struct timespec pause = {.tv_nsec = 300000000};
    for (int i = 0; i < 3; i++) {
        world->clean(world->checkpoints);
        nanosleep(&pause, NULL);
    }
    world->clean(world->checkpoints);
}

/* Runs on control's thread, while this rank may hang in a collective: nothing else of it can be trusted to return, the
 * end of NCCL's communicator included. */
static void fail_together(void *context, const struct dtp_control_failure *failure)
{
    struct dtp_world *world = context;
    char there[256], here[256], words[1024];
    words_of(world, failure->rank, failure->place, there, sizeof there);
    words_of(world, world->ranks.rank, dtp_control_where(world->control), here, sizeof here);
    bool elsewhere = failure->rank != world->ranks.rank && strcmp(there, here) != 0;
    snprintf(words, sizeof words, "dtplan: rank %" PRIu32 ": rank %" PRIu32 " %s %s%s%s\n", world->ranks.rank,
             failure->rank, failure->words, there, elsewhere ? "; this rank was " : "", elsewhere ? here : "");
    fputs(words, stderr); /* in one piece, beside other ranks' */
    dtp_board_accuse(world->board, world->ranks.rank, failure->rank, failure->how);
    failed_with = (sig_atomic_t)failure->status;
    signal(SIGALRM, leave_at_once);
    alarm(ABORT_S);
    if (world->communicator)
        world->communicator->verbs->abort(world->communicator);
    if (world->ranks.rank == (failure->rank == 0 ? 1 : 0) && world->checkpoints)
        clean_checkpoints(world);
    _exit((int)failure->status);
}

/* ---- life -------------------------------------------------------------------------------------------------------- */

/* `hash` is the same on all ranks, or they do not meet. */
static enum dtp_status join(const struct dtp_ranks *ranks, const struct dtp_program *program,
                            const struct dtp_program_set *set, uint64_t hash, struct dtp_world *out,
                            struct dtp_faults *faults)
{
    *out = (struct dtp_world){.ranks = *ranks, .program = program, .set = set, .board = dtp_board_find()};
    if (ranks->world <= 1)
        return DTP_OK;
    pthread_mutex_init(&out->watch, NULL);
    struct dtp_control_options options = {
        .on_failure = fail_together, .where = first_not_ended, .context = out, .hash = hash};
    return dtp_control_join(ranks, &options, &out->control, faults);
}

enum dtp_status dtp_world_join(const struct dtp_ranks *ranks, const struct dtp_program *program, struct dtp_world *out,
                               struct dtp_faults *faults)
{
    uint64_t hash = 0;
    enum dtp_status status = program && ranks->world > 1 ? dtp_program_digest(program, &hash, faults) : DTP_OK;
    return status == DTP_OK ? join(ranks, program, NULL, hash, out, faults) : status;
}

enum dtp_status dtp_world_join_set(const struct dtp_ranks *ranks, const struct dtp_program_set *set,
                                   struct dtp_world *out, struct dtp_faults *faults)
{
    uint64_t hash;
    uint32_t needed = set->role_count ? dtp_program_set_ranks(set) : 0;
    if (ranks->world != needed)
        return dtp_fault(faults, DTP_BAD_INPUT, NULL, 0, "the program set has %u ranks, %u were started", needed,
                         ranks->world);
    /* In line on GPUs too: the first send or receive of a pair connects it, which holds up the host, unless it is on a
     * stream of transfers, whose pairs are connected before (dtp_binding_prove). */
    enum dtp_status status = dtp_program_set_verify(set, DTP_ISSUE_IN_LINE, faults);
    status = status == DTP_OK ? dtp_program_set_digest(set, &hash, faults) : status;
    if (status != DTP_OK)
        return status;
    uint32_t role = dtp_program_set_role_of(set, ranks->rank);
    return join(ranks, set->roles[role].program, set, hash, out, faults);
}

/* Groups of the collectives that copy engines carry, a bit each; lowering gives each of these kinds a group of its own.
 */
static uint32_t copy_groups(const struct dtp_program *program, uint32_t collectives)
{
    const struct dtp_op *ops = dtp_program_ops(program);
    uint32_t groups = 0;
    for (size_t i = 0; i < dtp_program_op_count(program); i++)
        if (dtp_op_kind_class(ops[i].kind) == DTP_CLASS_COLLECTIVE &&
            collectives & 1u << dtp_op_kind_collective(ops[i].kind) && ops[i].group < 32)
            groups |= 1u << ops[i].group;
    return groups;
}

/* Groups whose ranks exchange what nobody reduces: rows of experts, heads for tokens, blocks around a ring, rows of
 * tensor parallel ranks. */
static uint32_t exchange_groups(const struct dtp_program *program)
{
    const struct dtp_op *ops = dtp_program_ops(program);
    uint32_t groups = 0;
    for (size_t i = 0; i < dtp_program_op_count(program); i++)
        if ((ops[i].kind == DTP_OP_ALL_TO_ALL || ops[i].kind == DTP_OP_SHIFT || dtp_op_gathers_rows(&ops[i])) &&
            ops[i].group < 32)
            groups |= 1u << ops[i].group;
    return groups;
}

enum dtp_status dtp_world_connect_groups(struct dtp_world *world, const struct dtp_program_group *groups,
                                         uint32_t count, bool cuda, struct dtp_faults *faults)
{
    if (world->ranks.world <= 1)
        return DTP_OK;
    struct dtp_communicator_options options = {.ranks = &world->ranks,
                                               .control = world->control,
                                               .groups = groups,
                                               .group_count = count,
                                               .choice = world->choice};
    options.exchange_groups = world->program ? exchange_groups(world->program) : UINT32_MAX;
    if (world->program)
        options.copy_groups = copy_groups(world->program, world->choice.copies);
#if DTP_WITH_CUDA
    if (cuda)
        return dtp_communicator_nccl_create(&options, &world->communicator, faults);
#endif
    (void)cuda;
    return dtp_communicator_host_create(&options, &world->communicator, faults);
}

enum dtp_status dtp_world_connect(struct dtp_world *world, bool cuda, struct dtp_faults *faults)
{
    return dtp_world_connect_groups(world, dtp_program_groups(world->program),
                                    (uint32_t)dtp_program_group_count(world->program), cuda, faults);
}

void dtp_world_disconnect(struct dtp_world *world, bool failed)
{
    struct dtp_communicator *communicator = world->communicator;
    world->communicator = NULL;
    if (communicator && failed)
        communicator->verbs->abort(communicator);
    if (communicator)
        communicator->verbs->destroy(communicator);
}

void dtp_world_leave(struct dtp_world *world)
{
    dtp_world_disconnect(world, false);
    if (world->control)
        dtp_control_leave(world->control);
    world->control = NULL;
}

/* ---- between steps ----------------------------------------------------------------------------------------------- */

enum dtp_status dtp_world_exchange(struct dtp_world *world, const void *mine, uint32_t bytes, void *all,
                                   struct dtp_faults *faults)
{
    if (!world->control) {
        memcpy(all, mine, bytes);
        return DTP_OK;
    }
    return dtp_control_exchange(world->control, mine, bytes, all, faults);
}

/* What a rank tells of itself where all decide whether to go on. */
struct word {
    uint64_t said, status; /* a sum of its faults, 0: none; enum dtp_status */
};

static void name_the_bad(const struct dtp_world *world, const struct word *all, enum dtp_status worst,
                         struct dtp_faults *faults)
{
    char words[128] = "";
    size_t bad = 0;
    for (uint32_t i = 0; i < world->ranks.world; i++)
        if (all[i].status != DTP_OK && bad++ < 8)
            dtp_append(words, sizeof words, " %" PRIu32, i);
    dtp_fault(faults, worst, NULL, 0,
              "rank %" PRIu32 ": could not go on with rank%s%s, which failed before the first step", world->ranks.rank,
              bad > 1 ? "s" : "", words);
}

static size_t kept(const struct dtp_faults *faults)
{
    return faults->count < DTP_FAULTS_KEPT ? faults->count : DTP_FAULTS_KEPT;
}

static uint64_t sum_of(const struct dtp_faults *faults)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < kept(faults); i++)
        sum = dtp_crc64(sum, faults->text[i], strlen(faults->text[i]));
    return sum;
}

static bool all_say_the_same(const struct dtp_world *world, const struct word *all)
{
    for (uint32_t i = 0; i < world->ranks.world; i++)
        if (all[i].status == DTP_OK || all[i].said == 0 || all[i].said != all[0].said)
            return false;
    return true;
}

/* The words of all ranks, in their order; *worst gets the worst status among them. Caller frees; NULL: they could not
 * be heard, *worst says so. */
static struct word *hear_all(struct dtp_world *world, enum dtp_status mine, enum dtp_status *worst,
                             struct dtp_faults *faults)
{
    struct word own = {sum_of(faults), (uint64_t)mine};
    struct word *all = calloc(world->ranks.world, sizeof *all);
    *worst = all ? dtp_world_exchange(world, &own, sizeof own, all, faults)
                 : dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "out of memory");
    if (*worst != DTP_OK) {
        free(all);
        return NULL;
    }
    for (uint32_t i = 0; i < world->ranks.world; i++)
        if (all[i].status > (uint64_t)*worst)
            *worst = all[i].status < DTP_ENVIRONMENT ? (enum dtp_status)all[i].status : DTP_ENVIRONMENT;
    return all;
}

enum dtp_status dtp_world_agree(struct dtp_world *world, enum dtp_status mine, struct dtp_faults *faults)
{
    enum dtp_status worst = mine;
    if (world->control)
        free(hear_all(world, mine, &worst, faults));
    return worst > mine ? worst : mine;
}

enum dtp_status dtp_world_begin_together(struct dtp_world *world, enum dtp_status mine, struct dtp_faults *faults)
{
    enum dtp_status worst = mine;
    if (!world->control)
        return mine;
    struct word *all = hear_all(world, mine, &worst, faults);
    world->parted = all && worst != DTP_OK;
    if (world->parted && mine == DTP_OK)
        name_the_bad(world, all, worst, faults);
    else if (world->parted && world->ranks.rank != 0 && all_say_the_same(world, all))
        *faults = (struct dtp_faults){.count = 0};
    free(all);
    return worst > mine ? worst : mine;
}

void dtp_world_give_up(struct dtp_world *world, enum dtp_status status, const struct dtp_faults *faults)
{
    if (world->control && !world->parted && faults->count > 0)
        dtp_control_give_up(world->control, status, faults->text[kept(faults) - 1]);
}

enum dtp_status dtp_world_sum(struct dtp_world *world, struct dtp_world_sums *sums, struct dtp_faults *faults)
{
    if (!world->control)
        return DTP_OK;
    struct dtp_world_sums *all = calloc(world->ranks.world, sizeof *all);
    if (!all)
        return dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "out of memory");
    enum dtp_status status = dtp_world_exchange(world, sums, sizeof *sums, all, faults);
    *sums = (struct dtp_world_sums){0};
    for (uint32_t i = 0; i < world->ranks.world && status == DTP_OK; i++) {
        sums->loss_sum += all[i].loss_sum;
        sums->loop_s += all[i].loop_s / world->ranks.world;
        sums->stops += all[i].stops;
        sums->regroups += all[i].regroups;
        sums->snapshots_busy += all[i].snapshots_busy;
        sums->snapshots_bad += all[i].snapshots_bad;
        sums->saves_busy += all[i].saves_busy;
        sums->saves_bad += all[i].saves_bad;
    }
    free(all);
    return status;
}

void dtp_world_watch(struct dtp_world *world, const volatile uint32_t *ended)
{
    if (!world->control)
        return;
    pthread_mutex_lock(&world->watch);
    world->ended = ended;
    pthread_mutex_unlock(&world->watch);
}

void dtp_world_step(struct dtp_world *world, uint64_t step)
{
    world->step = step;
    dtp_world_at(world, 0);
}

void dtp_world_at(struct dtp_world *world, uint32_t op)
{
    if (world->control)
        dtp_control_at(world->control, (struct dtp_control_place){world->step, op});
}

void dtp_world_deadline(struct dtp_world *world, double seconds)
{
    if (world->control)
        dtp_control_deadline(world->control, seconds);
}
