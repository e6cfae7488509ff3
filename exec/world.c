#include "world.h"

#include "crc64.h"
#include "program_text.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- the same program -------------------------------------------------------------------------------------------- */

static enum dtp_status program_hash(const struct dtp_program *program, uint64_t *out, struct dtp_faults *faults)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *file = open_memstream(&text, &bytes);
    bool written = file && dtp_program_write_text(program, file) == DTP_OK;
    if (file)
        written = fclose(file) == 0 && written;
    if (written)
        *out = dtp_crc64(0, text, bytes);
    free(text);
    return written ? DTP_OK : dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "out of memory while summing up the program");
}

/* ---- failure ----------------------------------------------------------------------------------------------------- */

/* Runs on control's thread, while this rank may hang in a collective: nothing else of it can be trusted to return. */
static void fail_together(void *context, const struct dtp_control_failure *failure)
{
    const struct dtp_world *world = context;
    const struct dtp_op *op = NULL;
    if (world->program && failure->place.op < dtp_program_op_count(world->program))
        op = &dtp_program_ops(world->program)[failure->place.op];
    char layer[32] = "";
    if (op && op->layer != DTP_NO_LAYER)
        snprintf(layer, sizeof layer, " of layer %u", (unsigned)op->layer);
    fprintf(stderr, "dtplan: rank %" PRIu32 ": rank %" PRIu32 " %s, in step %" PRIu64 ", at %s \"%s\"%s\n",
            world->ranks.rank, failure->rank, failure->words, failure->place.step + 1,
            op ? dtp_op_kind_text(op->kind) : "no operation", op ? op->name : "", layer);
    if (world->communicator)
        world->communicator->verbs->abort(world->communicator);
    _exit(DTP_ENVIRONMENT);
}

/* ---- life -------------------------------------------------------------------------------------------------------- */

enum dtp_status dtp_world_join(const struct dtp_ranks *ranks, const struct dtp_program *program, struct dtp_world *out,
                               struct dtp_faults *faults)
{
    *out = (struct dtp_world){.ranks = *ranks, .program = program};
    if (ranks->world <= 1)
        return DTP_OK;
    struct dtp_control_options options = {.on_failure = fail_together, .context = out};
    enum dtp_status status = program ? program_hash(program, &options.hash, faults) : DTP_OK;
    return status == DTP_OK ? dtp_control_join(ranks, &options, &out->control, faults) : status;
}

/* Of the program's gathers; lowering gives them one of their own where copy engines do them. */
static uint32_t gather_group(const struct dtp_program *program)
{
    const struct dtp_op *ops = dtp_program_ops(program);
    for (size_t i = 0; i < dtp_program_op_count(program); i++)
        if (ops[i].kind == DTP_OP_ALL_GATHER)
            return ops[i].group;
    return DTP_NO_INDEX;
}

enum dtp_status dtp_world_connect_groups(struct dtp_world *world, const struct dtp_program_group *groups, uint32_t count,
                                         bool cuda, struct dtp_faults *faults)
{
    if (world->ranks.world <= 1)
        return DTP_OK;
    struct dtp_communicator_options options = {.ranks = &world->ranks,
                                               .control = world->control,
                                               .groups = groups,
                                               .group_count = count,
                                               .choice = world->choice,
                                               .gather_group =
                                                   world->program ? gather_group(world->program) : DTP_NO_INDEX};
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

/* Every rank's `bytes` to all, in the order of ranks. */
static enum dtp_status exchange(struct dtp_world *world, const void *mine, uint32_t bytes, void *all,
                                struct dtp_faults *faults)
{
    enum dtp_status status = dtp_control_gather(world->control, mine, bytes, all, faults);
    return status == DTP_OK ? dtp_control_broadcast(world->control, all, bytes * world->ranks.world, faults) : status;
}

enum dtp_status dtp_world_agree(struct dtp_world *world, enum dtp_status mine)
{
    uint32_t own = (uint32_t)mine, *all;
    if (!world->control || !(all = calloc(world->ranks.world, sizeof *all)))
        return world->control ? DTP_ENVIRONMENT : mine;
    enum dtp_status worst = exchange(world, &own, sizeof own, all, NULL);
    for (uint32_t i = 0; i < world->ranks.world && worst != DTP_ENVIRONMENT; i++)
        worst = all[i] > (uint32_t)worst ? (enum dtp_status)all[i] : worst;
    free(all);
    return worst > mine ? worst : mine;
}

enum dtp_status dtp_world_sum(struct dtp_world *world, struct dtp_world_sums *sums, struct dtp_faults *faults)
{
    if (!world->control)
        return DTP_OK;
    struct dtp_world_sums *all = calloc(world->ranks.world, sizeof *all);
    if (!all)
        return dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "out of memory");
    enum dtp_status status = exchange(world, sums, sizeof *sums, all, faults);
    *sums = (struct dtp_world_sums){0, 0};
    for (uint32_t i = 0; i < world->ranks.world && status == DTP_OK; i++) {
        sums->loss_sum += all[i].loss_sum;
        sums->stops += all[i].stops;
    }
    free(all);
    return status;
}

void dtp_world_at(struct dtp_world *world, uint64_t step, uint32_t op)
{
    if (world->control)
        dtp_control_at(world->control, (struct dtp_control_place){step, op});
}

void dtp_world_deadline(struct dtp_world *world, double seconds)
{
    if (world->control)
        dtp_control_deadline(world->control, seconds);
}
