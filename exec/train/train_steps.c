/* The steps of a run. The next one is begun before what the last one left is looked at, so that the device need not
 * wait for the host: sums over ranks, the log and events are made while it computes. */
#include "device/pace.h"
#include "base/clock.h"
#include "train/loss_scale.h"
#include "train/trainer.h"

#include "runtime/dtplan/batch_layout.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- before a step ----------------------------------------------------------------------------------------------- */

/* The last two steps, where times are asked for: one alone, one together. */
static enum dtp_run_mode mode_of(const struct dtp_trainer *t)
{
    uint64_t left = t->settings->steps - t->position.step;
    if ((!t->settings->op_times && !t->set) || left > 2)
        return DTP_RUN_PLAIN;
    return left == 2 ? DTP_RUN_ISOLATED : DTP_RUN_MEASURED;
}

static enum dtp_status write_inputs(struct dtp_trainer *t)
{
    const struct dtp_settings *s = t->settings;
    const void *batches = NULL;
    enum dtp_status status = t->batches ? dtp_batches_take(t->batches, &batches, t->faults) : DTP_OK;
    uint64_t bytes = dtp_batch_layout_of(t->batch.micro_batch * (t->batch.sequence / t->batch.context.ranks)).bytes;
    if (status != DTP_OK)
        return status;
    for (uint32_t m = 0; m < t->binding.map.micro_steps; m++)
        memcpy(dtp_run_host_batch(t->run, m), (const char *)batches + m * bytes, bytes);
    struct dtp_step_scalars *scalars = dtp_run_host_scalars(t->run);
    if (!scalars)
        return DTP_OK;
    uint64_t updates = t->position.step - t->position.skipped + 1;
    *scalars = (struct dtp_step_scalars){.learning_rate = (float)dtp_settings_learning_rate(s, t->position.step),
                                         .correction1 = (float)(1 - pow(s->beta1, (double)updates)),
                                         .correction2 = (float)(1 - pow(s->beta2, (double)updates)),
                                         .step = (uint32_t)t->position.step,
                                         .seed = (uint32_t)s->seed,
                                         .loss_scale = (float)t->position.loss_scale,
                                         .clip_scale = 1};
    return DTP_OK;
}

/* PyTorch's start_powerSGD_iter: so many steps of the run go before, a resumed one's of earlier processes too. */
static void begin_factors(struct dtp_trainer *t)
{
    if (t->job && t->position.step >= t->job->plan.powersgd_start_step && dtp_binding_begin_factors(&t->binding))
        dtp_run_rebound(t->run);
}

static enum dtp_status begin_step(struct dtp_trainer *t)
{
    enum dtp_status status = write_inputs(t);
    begin_factors(t);
    t->mode = mode_of(t);
    dtp_world_step(&t->world, t->position.step + 1);
    dtp_world_deadline(&t->world, dtp_step_deadline_s(t->last_step_s));
    if (t->mode == DTP_RUN_MEASURED)
        t->begun_s = dtp_now_s();
    return status == DTP_OK ? dtp_run_begin(t->run, t->mode, t->faults) : status;
}

/* ---- after it ---------------------------------------------------------------------------------------------------- */

static enum dtp_status read_times(struct dtp_trainer *t, enum dtp_run_mode mode)
{
    enum dtp_status status = DTP_OK;
    for (size_t i = 0; i < t->binding.op_count && mode != DTP_RUN_PLAIN && status == DTP_OK; i++) {
        double start, end;
        status = dtp_run_span(t->run, i, &start, &end, t->faults);
        if (status == DTP_OK && mode == DTP_RUN_ISOLATED) {
            t->times.alone_s[i] = end - start;
        } else if (status == DTP_OK) {
            t->steps_measured = true;
            t->times.start_s[i] = start;
            t->times.end_s[i] = end;
        }
    }
    return status;
}

/* What the log says of the step that ended last, but for its loss. */
static struct dtp_step_record record_of(const struct dtp_trainer *t, double seconds)
{
    double tokens = t->step_tokens;
    struct dtp_step_record r = {.step = t->position.step + 1,
                                .gradient_norm = t->binding.map.gradient_norm ? (double)t->results.gradient_norm : NAN,
                                .learning_rate = dtp_settings_learning_rate(t->settings, t->position.step),
                                .seconds = seconds,
                                .tokens_per_s = tokens / seconds,
                                .skipped = t->results.skip != 0};
    return r;
}

/* Share of a step's time that is spent behind it on timing the loop of pace.h; with 0.04 that time scatters a quarter
 * more. */
#define PACE_SHARE 0.12
#define PACED_STEPS 200 /* beside which it is; their median says what a run of any length needs */

/* Waits for the step and takes over what it left, so that the next may overwrite it. Its time is the host's, from the
 * end of the step before: what throughput is made of. */
static enum dtp_status finish_step(struct dtp_trainer *t, struct dtp_step_record *record)
{
    double device_s;
    enum dtp_status status = dtp_run_finish(t->run, &device_s, t->faults);
    double end_s = dtp_now_s();
    dtp_world_deadline(&t->world, 0);
    if (status == DTP_OK)
        status = read_times(t, t->mode);
    if (status != DTP_OK)
        return status;
    const struct dtp_step_scalars *results = dtp_run_host_results(t->run);
    t->results = results ? *results : (struct dtp_step_scalars){0};
    *record = record_of(t, end_s - t->last_end_s);
    /* Not in elastic runs, all of whose time is accounted for, nor where memory is poisoned, as no time is asked there.
     */
    bool paced = !t->device->asynchronous && t->paced < PACED_STEPS && !t->settings->elastic && !t->settings->poison;
    record->loop_s = paced ? dtp_pace_loop_s(PACE_SHARE * record->seconds) : (double)NAN;
    t->paced += paced;
    t->last_end_s = paced ? dtp_now_s() : end_s;
    t->last_step_s = record->seconds;
    t->position.step++;
    t->steps_run++;
    t->position.skipped += record->skipped;
    record->overflowed = dtp_loss_scale_step(t->settings, record->skipped, &t->position);
    t->position.samples += dtp_batch_step_samples(&t->batch);
    return DTP_OK;
}

/* DTP_NO ends the run. */
static enum dtp_status judge(struct dtp_trainer *t, const struct dtp_step_record *r)
{
    bool finite =
        isfinite(r->loss) && (isnan(r->gradient_norm) ? !t->binding.map.gradient_norm : isfinite(r->gradient_norm));
    if (finite && !r->skipped)
        return DTP_OK;
    if (!r->skipped)
        return dtp_fault(t->faults, DTP_NO, NULL, 0,
                         "step %" PRIu64 ": the loss is %g, and the optimizer has used its gradients; resume from a "
                         "checkpoint with --gradient-norm, which leaves such updates out",
                         r->step, r->loss);
    if (r->overflowed) { /* part of how the scale is found: the next step has another */
        if (t->first_rank)
            fprintf(stderr,
                    "dtplan: step %" PRIu64 ": fp16 overflowed; the update was left out, the loss scale is halved\n",
                    r->step);
        return DTP_OK;
    }
    if (!t->settings->skip_not_finite)
        return dtp_fault(t->faults, DTP_NO, NULL, 0,
                         "step %" PRIu64 ": the loss is %g, the gradients' norm %g; the update was left out and the "
                         "run stopped (--not-finite skip goes on)",
                         r->step, r->loss, r->gradient_norm);
    if (t->first_rank)
        fprintf(stderr, "dtplan: step %" PRIu64 ": the loss is %g, the gradients' norm %g; the update was left out\n",
                r->step, r->loss, r->gradient_norm);
    return DTP_OK;
}

static void remember_unwritten(struct dtp_trainer *t, enum dtp_status status)
{
    t->unwritten = status > t->unwritten ? status : t->unwritten;
}

/* Tells the launcher that starts ranks again how far the run has come, and that this generation makes steps. */
static void tell_launcher(struct dtp_board *board, uint64_t step)
{
    const char *generation = getenv("DTPLAN_GENERATION");
    if (step > atomic_load(&board->furthest))
        atomic_store(&board->furthest, step);
    atomic_store(&board->stepped_s, dtp_now_s());
    atomic_store(&board->stepping, 1 + (unsigned)(generation ? atoi(generation) : 0));
}

static void say_step(struct dtp_trainer *t, const struct dtp_step_record *r, enum dtp_run_mode mode)
{
    uint64_t tokens = (uint64_t)t->step_tokens;
    struct dtp_device_memory memory;
    dtp_event_step(t->events, r, tokens, mode);
    if (t->log && t->unwritten == DTP_OK)
        remember_unwritten(t, dtp_step_log_write(t->log, r, t->faults));
    bool first = !t->reported;
    t->reported = true;
    if (t->first_rank && t->world.board)
        tell_launcher(t->world.board, r->step);
    /* What the driver says of a GPU that others use too is none of this rank's. */
    bool alone = t->device->asynchronous && t->ranks_a_gpu == 1;
    if (first && alone && t->device->verbs->memory(t->device, &memory, t->faults) == DTP_OK) {
        t->used_bytes = memory.total_bytes - memory.free_bytes;
        dtp_event_memory(t->events, &memory);
    }
}

/* Sums over ranks, the log, the verdict. *stop: a signal asked one of the ranks to. */
static enum dtp_status look_at(struct dtp_trainer *t, struct dtp_step_record *record, enum dtp_run_mode mode,
                               bool *stop)
{
    double tokens = t->step_tokens;
    int told = t->of->stop ? *t->of->stop : 0;
    struct dtp_world_sums sums = {.loss_sum = (double)record->loss,
                                  .loop_s = record->loop_s,
                                  .stops = told == DTP_STOP_ENDS,
                                  .regroups = told == DTP_STOP_REGROUPS};
    dtp_keep_tell(t, &sums);
    enum dtp_status status = dtp_world_sum(&t->world, &sums, t->faults);
    if (status != DTP_OK)
        return status;
    record->loss = sums.loss_sum / t->loss_copies / tokens;
    record->loop_s = sums.loop_s;
    *stop = sums.stops > 0 || sums.regroups > 0;
    t->regroups = sums.regroups > 0 && !(sums.stops > 0);
    dtp_keep_hear(t, &sums);
    say_step(t, record, mode);
    return judge(t, record);
}

/* ---- the run ----------------------------------------------------------------------------------------------------- */

/* Whether the next step must not begin before the last one has been looked at: its state is to be saved, or nothing may
 * follow it. The norm is the same number on all ranks, so they decide alike. */
static bool must_look_first(const struct dtp_trainer *t, const struct dtp_step_record *r)
{
    const struct dtp_settings *s = t->settings;
    bool ends =
        t->binding.map.gradient_norm && !isfinite(t->results.gradient_norm) && !s->skip_not_finite && !r->overflowed;
    return dtp_keep_due(t) || ends || t->position.step == s->steps;
}

/* The step that was begun, to its end; begins the next where *stop is not set. */
static enum dtp_status next_step(struct dtp_trainer *t, bool *begun, bool *stop)
{
    const struct dtp_settings *s = t->settings;
    enum dtp_run_mode mode = t->mode;
    struct dtp_step_record record;
    enum dtp_status status = finish_step(t, &record);
    *begun = false;
    if (status != DTP_OK)
        return status;
    bool wait = must_look_first(t, &record) || *stop, ended = *stop;
    record.loss = (double)t->results.loss_sum;
    if (!wait) {
        status = begin_step(t);
        *begun = status == DTP_OK;
        if (!*begun) /* the others may be in the step that this rank cannot begin: nobody would answer it */
            return status;
    }
    enum dtp_status looked = look_at(t, &record, mode, stop);
    status = dtp_worse(status, looked);
    *stop = *stop || ended;
    if (status == DTP_OK && wait && !*stop && t->position.step < s->steps) {
        dtp_keep_step(t);
        status = begin_step(t);
        *begun = status == DTP_OK;
    }
    return status;
}

enum dtp_status dtp_train_steps(struct dtp_trainer *t)
{
    const struct dtp_settings *s = t->settings;
    bool stop = false, begun = false;
    struct dtp_step_record record;
    t->last_end_s = dtp_now_s();
    enum dtp_status status = begin_step(t);
    begun = status == DTP_OK;
    while (status == DTP_OK && begun)
        status = next_step(t, &begun, &stop);
    if (begun) /* another step was refused while this one ran */
        finish_step(t, &record);
    if (status == DTP_OK)
        dtp_keep_end(t, t->regroups);
    if (status == DTP_OK && s->op_times && !stop && t->first_rank && !t->set)
        remember_unwritten(t, dtp_op_times_write(s->op_times, &t->binding, &t->times, t->faults));
    if (status == DTP_OK && t->set && !stop && t->steps_measured)
        status = dtp_train_say_roles(t);
    if (status == DTP_OK && t->set && !stop && t->steps_measured && s->op_times)
        status = dtp_train_write_spans(t);
    if (status == DTP_OK && t->set)
        status = dtp_train_say_ranks(t);
    if (status == DTP_OK && !t->regroups)
        status = dtp_train_say_experts(t);
    struct dtp_board *board = t->first_rank && status == DTP_OK ? t->world.board : NULL;
    if (board)
        atomic_store(t->regroups ? &board->regrouped : &board->finished, true);
    if (t->regroups)
        return status;
    struct dtp_copied_bytes copied = dtp_run_copied(t->run);
    dtp_event_end(t->events, t->position.step, t->world.communicator, &copied, stop);
    return status;
}
