/* A step program of the probe, from its job to its spans: what train.c does, without data, logs and checkpoints. */
#include "probe/prober.h"

#include "base/clock.h"
#include "runtime/dtplan/batch_layout.h"
#include "train/batches.h"
#include "lower/lower.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define SEED 1
/* So small that a thousand updates learn nothing: gradients stay those of random weights, and so does the power that
 * multiplying them draws. */
#define LEARNING_RATE 1e-8f

/* ---- from a job -------------------------------------------------------------------------------------------------- */

static enum dtp_status lower(const struct dtp_job *job, struct dtp_program **program, struct dtp_executor_arena *arena,
                             struct dtp_faults *faults)
{
    enum dtp_status status = dtp_lower(&job->transformer, &job->cluster, &job->plan, 0, program, faults);
    return status == DTP_OK ? dtp_executor_arena_make(*program, arena, faults) : status;
}

enum dtp_status dtp_probe_program_bytes(const struct dtp_job *job, uint64_t *device_bytes, uint64_t *host_bytes,
                                        struct dtp_faults *faults)
{
    struct dtp_program *program = NULL;
    struct dtp_executor_arena arena = {0};
    enum dtp_status status = lower(job, &program, &arena, faults);
    *device_bytes = arena.device_bytes;
    *host_bytes = arena.host_bytes;
    dtp_executor_arena_release(&arena);
    dtp_program_destroy(program);
    return status;
}

static enum dtp_status bind(struct dtp_prober *p, bool together, struct dtp_probe_program *out)
{
    struct dtp_bind_job job = {.program = out->program,
                               .arena = &out->arena,
                               .device = p->device,
                               .device_base = p->device_base,
                               .host_base = p->host_base,
                               .world = together ? &p->world : NULL,
                               .optimizer = {0.9f, 0.95f, 1e-8f, 0.1f, 0.9f},
                               .rank = together ? p->of->ranks.rank : 0};
    enum dtp_status status = dtp_bind(&job, &out->binding, p->faults);
    return status == DTP_OK ? dtp_run_create(&out->binding, false, &out->run, p->faults) : status;
}

/* The same batch every step: other tokens take no other time. */
static enum dtp_status write_inputs(struct dtp_prober *p, struct dtp_probe_program *out)
{
    const struct dtp_plan *plan = &out->job.plan;
    struct dtp_token_shape shape = {out->job.transformer.vocab, plan->sequence, SEED};
    struct dtp_token_source *source = NULL;
    struct dtp_batches *batches = NULL;
    const void *ready;
    enum dtp_status status = dtp_token_source_markov(&shape, &source, p->faults);
    struct dtp_batch_job job = {.source = source,
                                .vocab = out->job.transformer.vocab,
                                .sequence = plan->sequence,
                                .micro_batch = plan->micro_batch,
                                .accumulate = plan->accumulate,
                                .rank = out->binding.job.rank,
                                .ranks = out->job.cluster.gpus};
    if (status == DTP_OK)
        status = dtp_batches_start(&job, p->device, &batches, p->faults);
    if (status == DTP_OK)
        status = dtp_batches_take(batches, &ready, p->faults);
    uint64_t bytes = dtp_batch_layout_of(out->binding.map.rows).bytes;
    for (uint32_t m = 0; m < plan->accumulate && status == DTP_OK; m++)
        memcpy(dtp_run_host_batch(out->run, m), (const char *)ready + m * bytes, bytes);
    dtp_batches_stop(batches);
    dtp_token_source_close(source);
    if (status == DTP_OK)
        *dtp_run_host_scalars(out->run) = (struct dtp_step_scalars){
            .learning_rate = LEARNING_RATE, .correction1 = 0.1f, .correction2 = 0.05f, .seed = SEED, .clip_scale = 1};
    return status;
}

/* The first step alone tells: the same batch again and again is soon learnt by heart.
 *
 * Cross entropy of a model whose weights are random. A norm makes rows of h elements of mean square 1, so that logits
 * are normal with variance h deviation^2 (0.02: parameter_layout.h), and the mean of their log-sum-exp is ln V and half
 * of that variance above the mean logit, which is that of a target drawn at random. */
#define HEAD_DEVIATION 0.02
#define LOSS_TOLERANCE 0.2

static enum dtp_status check_first_step(struct dtp_prober *p, struct dtp_probe_program *program)
{
    const struct dtp_job *job = &program->job;
    double step_s, host_s;
    enum dtp_status status = dtp_probe_program_step(p, program, DTP_RUN_PLAIN, &step_s, &host_s);
    if (status != DTP_OK)
        return status;
    double tokens = (double)program->binding.map.rows * program->binding.map.micro_steps;
    double loss = (double)dtp_run_host_results(program->run)->loss_sum / tokens;
    double variance = (double)job->transformer.hidden * HEAD_DEVIATION * HEAD_DEVIATION;
    double expected = log((double)job->transformer.vocab) + variance / 2;
    if (fabs(loss - expected) <= LOSS_TOLERANCE * expected)
        return DTP_OK;
    return dtp_fault(p->faults, DTP_NO, NULL, 0,
                     "the loss of a step with random weights is %g, not near %.3f: this device computes wrong results, "
                     "and its times say nothing",
                     loss, expected);
}

enum dtp_status dtp_probe_program_open(struct dtp_prober *p, const struct dtp_job *job, bool together,
                                       struct dtp_probe_program *out)
{
    *out = (struct dtp_probe_program){.job = *job};
    enum dtp_status status = lower(&out->job, &out->program, &out->arena, p->faults);
    p->world.program = together ? out->program : NULL;
    if (status == DTP_OK && together)
        status = dtp_world_connect(&p->world, p->of->settings->cuda, p->faults);
    if (status == DTP_OK)
        status = bind(p, together, out);
    if (status == DTP_OK)
        status = dtp_run_initialise(out->run, SEED, p->faults);
    if (status == DTP_OK)
        status = write_inputs(p, out);
    return status == DTP_OK ? check_first_step(p, out) : status;
}

void dtp_probe_program_close(struct dtp_prober *p, struct dtp_probe_program *program)
{
    dtp_run_destroy(program->run);
    if (program->binding.ops)
        dtp_binding_release(&program->binding);
    dtp_world_disconnect(&p->world, false);
    p->world.program = NULL;
    dtp_executor_arena_release(&program->arena);
    dtp_program_destroy(program->program);
    *program = (struct dtp_probe_program){.program = NULL};
}

/* ---- walking ----------------------------------------------------------------------------------------------------- */

enum dtp_status dtp_probe_program_step(struct dtp_prober *p, struct dtp_probe_program *program, enum dtp_run_mode mode,
                                       double *step_s, double *host_s)
{
    double begin_s = dtp_now_s();
    enum dtp_status status = dtp_run_begin(program->run, mode, p->faults);
    *host_s = dtp_now_s() - begin_s;
    return status == DTP_OK ? dtp_run_finish(program->run, step_s, p->faults) : status;
}

/* A GPU's power is limited in the mean of some hundred milliseconds. From rest it multiplies at its highest clock, an
 * H200 at 1.98 GHz where it goes on at 1.43 to 1.56 (reports/h200/README.md, "At the power limit"), and what is
 * measured by then holds for no training. A host has no such limit. */
#define FIRST_STEPS 2
#define MOST_WARM_UP_STEPS 2000

enum dtp_status dtp_probe_program_warm_up(struct dtp_prober *p, struct dtp_probe_program *program, double load_s,
                                          double *step_s)
{
    double host_s;
    uint32_t steps = p->device->asynchronous ? FIRST_STEPS : 1; /* a host's first was that which was checked */
    enum dtp_status status = DTP_OK;
    for (uint32_t i = 0; i < steps && status == DTP_OK; i++) {
        status = dtp_probe_program_step(p, program, DTP_RUN_PLAIN, step_s, &host_s);
        if (i + 1 != FIRST_STEPS || status != DTP_OK || !p->device->asynchronous)
            continue;
        double least_s = *step_s; /* steps that share collectives are as many on every rank */
        status = dtp_prober_least(p, &least_s, 1);
        steps += (uint32_t)fmin(MOST_WARM_UP_STEPS, load_s / least_s);
    }
    return status;
}

#define PACE_SHARE 0.04 /* of a step's time, as a run's */

enum dtp_status dtp_probe_program_spans(struct dtp_prober *p, struct dtp_probe_program *program, uint32_t steps,
                                        double **out)
{
    size_t ops = program->binding.op_count;
    double *spans = malloc((steps * ops + 1) * 2 * sizeof *spans), step_s, host_s;
    enum dtp_status status = DTP_OK;
    *out = spans;
    if (!spans)
        return dtp_fault(p->faults, DTP_ENVIRONMENT, NULL, 0, "out of memory");
    for (uint32_t s = 0; s < steps && status == DTP_OK; s++) {
        status = dtp_probe_program_step(p, program, DTP_RUN_MEASURED, &step_s, &host_s);
        for (size_t i = 0; i < ops && status == DTP_OK; i++) {
            double *span = &spans[(s * ops + i) * 2];
            status = dtp_run_span(program->run, i, &span[0], &span[1], p->faults);
        }
        double slowed = dtp_prober_slowed(p, PACE_SHARE * step_s);
        for (size_t i = 0; i < 2 * ops && status == DTP_OK; i++)
            spans[s * ops * 2 + i] /= slowed;
    }
    return status;
}
