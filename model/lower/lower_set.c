#include "lower/lower_set.h"

#include "lower/lowering.h"
#include "plan/degrees.h"
#include "plan/slice.h"
#include "schedule/schedule_order.h"

#include <stdio.h>
#include <stdlib.h>

struct set_job {
    const struct dtp_transformer *transformer;
    const struct dtp_cluster *cluster;
    const struct dtp_plan *plan;
    uint32_t op_limit;
    struct dtp_faults *faults;
    struct dtp_schedule schedule;
    struct dtp_stages stages;
    struct dtp_lower_chunk *chunks; /* of all ranks, one behind the other */
    struct dtp_host_arena arena;
    struct dtp_posted posted;
};

/* Where a rank waits until what it sends is taken: 1F1B of Megatron-Core (schedules.py, send_forward_recv_backward:
 * both, then on) and of torch.distributed.pipelining (Schedule1F1B: one batch of sends and receives, waited for). What
 * interleaves chunks or splits backward sends beside its passes, and could not run otherwise. */
static bool blocks(const struct set_job *job)
{
    return job->schedule.shape.kind == DTP_SCHEDULE_1F1B && !job->plan->runtime->sends_beside;
}

/* What does not block goes through one stream in the order in which it is posted. */
static bool posts(const struct set_job *job)
{
    return job->plan->runtime->holds_passes && !blocks(job);
}

static enum dtp_status make_schedule(struct set_job *job)
{
    struct dtp_schedule_shape shape = dtp_plan_schedule(job->plan);
    enum dtp_status status = dtp_schedule_create(&shape, &job->schedule, job->faults);
    if (status == DTP_OK)
        status =
            dtp_schedule_verify(&job->schedule, blocks(job) ? DTP_SEND_BLOCKING : DTP_SEND_RENDEZVOUS, job->faults);
    return status == DTP_OK ? dtp_plan_stages(job->plan, job->transformer, &job->stages, job->faults) : status;
}

static enum dtp_status make_chunks(struct set_job *job)
{
    const struct dtp_schedule_shape *shape = &job->schedule.shape;
    job->chunks = malloc((size_t)shape->ranks * shape->chunks * sizeof *job->chunks);
    if (!job->chunks)
        return dtp_fault(job->faults, DTP_ENVIRONMENT, NULL, 0, "no memory to lower the step");
    for (uint32_t rank = 0; rank < shape->ranks; rank++) {
        uint64_t layers = 0;
        for (uint32_t chunk = 0; chunk < shape->chunks; chunk++) {
            const struct dtp_stage_parts *part = &job->stages.parts[dtp_schedule_stage(&job->schedule, rank, chunk)];
            job->chunks[rank * shape->chunks + chunk] =
                (struct dtp_lower_chunk){.first = layers,
                                         .layers = part->layers + part->mtp_layers,
                                         .ahead_layers = part->mtp_layers,
                                         .first_of_model = part->first_layer,
                                         .embedding = part->embedding,
                                         .head = part->head};
            layers += part->layers + part->mtp_layers;
        }
    }
    return DTP_OK;
}

static enum dtp_status add_role(const struct set_job *job, uint32_t rank, struct dtp_program_set *out)
{
    const struct dtp_schedule_shape *shape = &job->schedule.shape;
    uint32_t first = job->schedule.first[rank];
    struct dtp_lower_pipeline pipeline = {&job->schedule, job->chunks, blocks(job), posts(job) ? &job->posted : NULL};
    struct dtp_lower_role role = {.chunks = job->chunks + (size_t)rank * shape->chunks,
                                  .chunk_count = shape->chunks,
                                  .passes = job->schedule.passes + first,
                                  .pass_count = job->schedule.first[rank + 1] - first,
                                  .pipeline = &pipeline,
                                  .rank = rank};
    struct dtp_program *program;
    char name[32];
    snprintf(name, sizeof name, "pipeline rank %u", rank);
    enum dtp_status status =
        dtp_lower_role_program(job->transformer, job->cluster, job->plan, &role, job->op_limit, &program, job->faults);
    if (status != DTP_OK)
        return status;
    return dtp_program_set_add(out, name, job->cluster->gpus / shape->ranks, program, job->faults);
}

static enum dtp_status lower_pipeline(struct set_job *job, struct dtp_program_set *out)
{
    enum dtp_status status = make_schedule(job);
    if (status == DTP_OK)
        status = make_chunks(job);
    if (status == DTP_OK && posts(job))
        status = dtp_posted_make(&job->schedule, &job->arena, &job->posted, job->faults);
    for (uint32_t rank = 0; status == DTP_OK && rank < job->schedule.shape.ranks; rank++)
        status = add_role(job, rank, out);
    uint32_t run = dtp_plan_group(job->plan, job->cluster, DTP_AXES(PP)).stride; /* ranks between two stages */
    if (status == DTP_OK && run < job->cluster->gpus / job->schedule.shape.ranks)
        status = dtp_program_set_take_turns(out, run, job->faults);
    out->apart = job->plan->post_validation;
    dtp_schedule_destroy(&job->schedule);
    dtp_stages_destroy(&job->stages);
    free(job->chunks);
    dtp_host_arena_release(&job->arena);
    return status;
}

static enum dtp_status lower_one(const struct set_job *job, struct dtp_program_set *out)
{
    struct dtp_program *program;
    enum dtp_status status = dtp_lower(job->transformer, job->cluster, job->plan, job->op_limit, &program, job->faults);
    return status == DTP_OK ? dtp_program_set_add(out, "every rank", job->cluster->gpus, program, job->faults) : status;
}

enum dtp_status dtp_lower_set(const struct dtp_transformer *transformer, const struct dtp_cluster *cluster,
                              const struct dtp_plan *plan, uint32_t op_limit, struct dtp_program_set *out,
                              struct dtp_faults *faults)
{
    struct set_job job = {transformer, cluster, plan, op_limit, faults, .chunks = NULL};
    *out = (struct dtp_program_set){NULL, 0};
    enum dtp_status status = dtp_lower_check(transformer, cluster, plan, op_limit, faults);
    if (status == DTP_OK)
        status = plan->pp > 1 ? lower_pipeline(&job, out) : lower_one(&job, out);
    if (status != DTP_OK)
        dtp_program_set_release(out);
    return status;
}
