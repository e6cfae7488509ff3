/* What a run keeps of its state: checkpoints on a disk, at once or beside training, and snapshots in memory; and what
 * it goes on from. All of it happens between two steps, where the state stands still, and on all ranks alike: whether
 * something is due follows from the step, whether the last one is done from what all have said behind the step. */
#include "train/trainer.h"

#include "base/clock.h"
#include "base/crc64.h"
#include "train/elastic_start.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static enum dtp_status agree(void *trainer, enum dtp_status mine)
{
    struct dtp_trainer *t = trainer;
    return dtp_world_agree(&t->world, mine, t->faults);
}

static void remember_unwritten(struct dtp_trainer *t, enum dtp_status status)
{
    t->unwritten = status > t->unwritten ? status : t->unwritten;
}

/* Remarks come when they are made, not with the end of the run. */
static void say_now(const struct dtp_faults *remarks)
{
    for (size_t i = 0; i < remarks->count && i < DTP_FAULTS_KEPT; i++)
        fprintf(stderr, "dtplan: %s\n", remarks->text[i]);
}

/* ---- checkpoints ------------------------------------------------------------------------------------------------- */

static void save_now(struct dtp_trainer *t)
{
    double begun_s = dtp_now_s();
    const struct dtp_checkpoint_place place = {t->settings->checkpoint, t->of->ranks.rank, t->ranks, agree, t};
    struct dtp_checkpoint_identity identity = dtp_train_identity(t);
    enum dtp_status status = dtp_checkpoint_write(&place, t->device, &identity, &t->position, t->binding.own,
                                                  t->binding.own_count, t->faults);
    remember_unwritten(t, status);
    if (status == DTP_OK)
        dtp_event_checkpoint(t->events, t->position.step, t->settings->checkpoint, dtp_now_s() - begun_s, false);
}

static void saved(struct dtp_trainer *t)
{
    enum dtp_status status = dtp_saver_join(&t->saver, t->faults);
    remember_unwritten(t, status);
    if (status == DTP_OK)
        dtp_event_checkpoint(t->events, t->saver.position.step, t->settings->checkpoint, t->save_stall_s, true);
}

/* Waits for the end of a checkpoint that is being written; all ranks call it together. */
static void end_saving(struct dtp_trainer *t)
{
    if (!t->saving)
        return;
    dtp_saver_wait(&t->saver);
    if (!t->naming) {
        bool bad = dtp_saver_state(&t->saver) == DTP_SAVER_BAD;
        dtp_saver_all_wrote(&t->saver, agree(t, bad ? DTP_ENVIRONMENT : DTP_OK) == DTP_OK);
    }
    saved(t);
    t->saving = t->naming = false;
}

static void save_beside(struct dtp_trainer *t)
{
    double begun_s = dtp_now_s(), stall_s;
    end_saving(t); /* where a disk is slower than that: training waits for it */
    t->saver.place = (struct dtp_checkpoint_place){t->settings->checkpoint, t->of->ranks.rank, t->ranks, agree, t};
    t->saver.identity = dtp_train_identity(t);
    enum dtp_status status = dtp_saver_begin(&t->saver, &t->position, t->binding.own, &stall_s, t->faults);
    remember_unwritten(t, status);
    t->saving = status == DTP_OK;
    t->save_stall_s = dtp_now_s() - begun_s;
}

/* ---- snapshots --------------------------------------------------------------------------------------------------- */

static void settle_snapshot(struct dtp_trainer *t, bool whole)
{
    struct dtp_faults remarks = {0};
    dtp_snapshots_settle(t->snapshots, whole, &remarks);
    say_now(&remarks);
    if (whole)
        dtp_event_snapshot(t->events, t->snapshot_step, t->snapshot_stall_s);
    t->snapping = false;
}

static void end_snapshot(struct dtp_trainer *t)
{
    if (!t->snapping)
        return;
    dtp_snapshots_wait(t->snapshots);
    bool mine = dtp_snapshots_state(t->snapshots) == DTP_SNAPSHOT_WRITTEN;
    struct dtp_faults unsaid = {0}; /* settling says why */
    settle_snapshot(t, dtp_world_agree(&t->world, mine ? DTP_OK : DTP_NO, &unsaid) == DTP_OK);
}

static void begin_snapshot(struct dtp_trainer *t)
{
    dtp_snapshots_begin(t->snapshots, &t->position, t->binding.own, &t->snapshot_stall_s);
    t->snapshot_step = t->position.step;
    t->snapping = true;
}

/* ---- behind each step -------------------------------------------------------------------------------------------- */

static bool divides(uint64_t every, uint64_t step)
{
    return every > 0 && step % every == 0;
}

bool dtp_keep_due(const struct dtp_trainer *t)
{
    const struct dtp_settings *s = t->settings;
    return divides(s->checkpoint_every, t->position.step) ||
           (t->snapshots && divides(s->snapshot_every, t->position.step));
}

void dtp_keep_tell(const struct dtp_trainer *t, struct dtp_world_sums *sums)
{
    enum dtp_snapshot_state snapshot = t->snapping ? dtp_snapshots_state(t->snapshots) : DTP_SNAPSHOT_NONE;
    enum dtp_saver_state save = t->saving ? dtp_saver_state(&t->saver) : DTP_SAVER_IDLE;
    sums->snapshots_busy = snapshot == DTP_SNAPSHOT_WRITING;
    sums->snapshots_bad = snapshot == DTP_SNAPSHOT_FAILED;
    sums->saves_busy = save == DTP_SAVER_WRITING || save == DTP_SAVER_NAMING;
    sums->saves_bad = save == DTP_SAVER_BAD;
}

void dtp_keep_hear(struct dtp_trainer *t, const struct dtp_world_sums *sums)
{
    if (t->snapping && !(sums->snapshots_busy > 0))
        settle_snapshot(t, !(sums->snapshots_bad > 0));
    if (!t->saving || sums->saves_busy > 0)
        return;
    /* All have written, and rank 0 gives it its name; or it has, and all are done. */
    if (!t->naming)
        dtp_saver_all_wrote(&t->saver, !(sums->saves_bad > 0));
    else
        saved(t);
    t->naming = !t->naming;
    t->saving = t->naming;
}

void dtp_keep_step(struct dtp_trainer *t)
{
    const struct dtp_settings *s = t->settings;
    if (divides(s->checkpoint_every, t->position.step) && s->async_checkpoints)
        save_beside(t);
    else if (divides(s->checkpoint_every, t->position.step))
        save_now(t);
    /* One that takes longer than the steps between two is waited for, or more than two snapshots' worth could be lost.
     */
    if (t->snapshots && divides(s->snapshot_every, t->position.step)) {
        double begun_s = dtp_now_s();
        end_snapshot(t);
        double waited_s = dtp_now_s() - begun_s;
        begin_snapshot(t);
        t->snapshot_stall_s += waited_s;
    }
    t->last_end_s = dtp_now_s();
}

void dtp_keep_end(struct dtp_trainer *t, bool regroups)
{
    end_saving(t);
    if (t->snapshots)
        end_snapshot(t);
    if (t->snapshots && t->position.step < t->settings->steps) { /* whoever goes on loses nothing */
        begin_snapshot(t);
        end_snapshot(t);
    }
    if (t->settings->checkpoint && !regroups)
        save_now(t);
}

/* ---- before the first step --------------------------------------------------------------------------------------- */

static uint64_t identity_of(const struct dtp_trainer *t)
{
    struct dtp_checkpoint_identity identity = dtp_train_identity(t);
    uint64_t numbers[] = {identity.seed, dtp_batch_step_samples(&t->batch)};
    uint64_t crc = dtp_crc64(0, identity.model, strlen(identity.model));
    crc = dtp_crc64(crc, identity.data, strlen(identity.data));
    return dtp_crc64(crc, numbers, sizeof numbers);
}

static bool restarted(const struct dtp_trainer *t)
{
    return t->settings->elastic && dtp_elastic_restarted(t->settings, &t->of->ranks);
}

static bool first_generation(void)
{
    const char *generation = getenv("DTPLAN_GENERATION");
    return !generation || atoi(generation) == 0;
}

/* What another run left is taken away before ranks meet: by the rank whose memory it is, or the first of its machine.
 */
enum dtp_status dtp_keep_prepare(struct dtp_trainer *t)
{
    const struct dtp_settings *s = t->settings;
    if (s->elastic && !dtp_elastic_folder(s, &t->of->ranks, t->memory, sizeof t->memory))
        return dtp_fault(t->faults, DTP_BAD_INPUT, NULL, 0, "--snapshots: too long a name");
    if (s->elastic && !restarted(t) && (getenv("DTPLAN_SLOT") || t->of->ranks.local_rank == 0))
        dtp_snapshot_forget(t->memory, 0);
    return s->checkpoint ? dtp_checkpoint_prepare(s->checkpoint, s->resume || restarted(t), t->first_rank, t->faults)
                         : DTP_OK;
}

enum dtp_status dtp_keep_open(struct dtp_trainer *t)
{
    if (!t->settings->elastic)
        return DTP_OK;
    const struct dtp_cluster *cluster = &t->job->cluster;
    const struct dtp_snapshot_options options = {.world = &t->world,
                                                 .device = t->device,
                                                 .folder = t->memory,
                                                 .identity = identity_of(t),
                                                 .neighbour = t->ranks == 1        ? 0
                                                              : cluster->nodes > 1 ? cluster->gpus_per_node
                                                                                   : 1};
    return dtp_snapshots_open(&options, &t->snapshots, t->faults);
}

enum dtp_status dtp_keep_take_memory(struct dtp_trainer *t)
{
    const struct dtp_settings *s = t->settings;
    enum dtp_status status = DTP_OK;
    if (s->async_checkpoints && s->checkpoint_every > 0)
        status = dtp_saver_prepare(&t->saver, t->device, t->binding.own, t->binding.own_count, t->faults);
    if (status == DTP_OK && t->snapshots)
        status = dtp_snapshots_prepare(t->snapshots, t->binding.own, t->binding.own_count, t->faults);
    return status;
}

/* Rank 0's word on the newest checkpoint, 0: there is none. */
static enum dtp_status newest_checkpoint(struct dtp_trainer *t, uint64_t *newest)
{
    uint64_t mine = 0, *all = calloc(t->ranks, sizeof *all);
    if (t->settings->checkpoint && dtp_checkpoint_list(t->settings->checkpoint, &mine, 1) == 0)
        mine = 0;
    enum dtp_status status = all ? dtp_world_exchange(&t->world, &mine, sizeof mine, all, t->faults)
                                 : dtp_fault(t->faults, DTP_ENVIRONMENT, NULL, 0, "out of memory");
    *newest = status == DTP_OK ? all[0] : 0;
    free(all);
    return status;
}

static enum dtp_status read_checkpoint(struct dtp_trainer *t, bool previous)
{
    struct dtp_checkpoint_identity identity = dtp_train_identity(t);
    return dtp_checkpoint_read(t->settings->checkpoint, previous, t->device, &identity, &t->position, t->binding.parts,
                               t->binding.part_count, t->faults);
}

/* The newest of snapshots and checkpoints, the first where both are of one step. */
static enum dtp_status go_on(struct dtp_trainer *t)
{
    bool first = first_generation(), found = false;
    uint64_t newest;
    struct dtp_faults remarks = {0};
    enum dtp_status status = newest_checkpoint(t, &newest);
    bool previous = t->settings->resume_previous && first; /* what the user asked for, once */
    if (status == DTP_OK && !previous)
        status = dtp_snapshots_restore(t->snapshots, t->binding.parts, t->binding.part_count, newest, &t->position,
                                       &found, &remarks);
    if (status == DTP_OK)
        say_now(&remarks);
    for (size_t i = 0; i < remarks.count && i < DTP_FAULTS_KEPT && status != DTP_OK; i++)
        dtp_fault(t->faults, status, NULL, 0, "%s", remarks.text[i]);
    t->from = found ? "snapshot" : newest > 0 ? "checkpoint" : "start";
    if (status != DTP_OK || found)
        return status;
    if (newest > 0)
        return read_checkpoint(t, previous);
    if (first && t->settings->resume)
        return dtp_fault(t->faults, DTP_BAD_INPUT, NULL, 0,
                         "--resume: there is neither a whole snapshot in %s nor a checkpoint; leave it out", t->memory);
    if (!first && t->first_rank)
        fprintf(stderr, "dtplan: no snapshot is whole and there is no checkpoint: training begins again with step 1\n");
    return DTP_OK;
}

enum dtp_status dtp_keep_resume(struct dtp_trainer *t)
{
    t->from = t->settings->resume ? "checkpoint" : "start";
    if (restarted(t))
        return go_on(t);
    return t->settings->resume ? read_checkpoint(t, t->settings->resume_previous) : DTP_OK;
}

void dtp_keep_close(struct dtp_trainer *t, bool failed)
{
    dtp_saver_release(&t->saver);
    dtp_snapshots_close(t->snapshots, !failed && t->position.step >= t->settings->steps);
}
