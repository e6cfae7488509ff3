#include "checkpoint/saver.h"

#include "base/clock.h"

static void *write_own(void *argument)
{
    struct dtp_saver *s = argument;
    s->status = dtp_checkpoint_write_own(&s->place, s->position.step, s->copy.parts, s->copy.count, &s->fault);
    atomic_store(&s->state, s->status == DTP_OK ? DTP_SAVER_WRITTEN : DTP_SAVER_BAD);
    return NULL;
}

static void *give_name(void *argument)
{
    struct dtp_saver *s = argument;
    s->status = dtp_checkpoint_end(&s->place, &s->identity, &s->position, s->whole, &s->fault);
    atomic_store(&s->state, DTP_SAVER_NAMED);
    return NULL;
}

enum dtp_status dtp_saver_prepare(struct dtp_saver *s, struct dtp_device *device, const struct dtp_state_part *own,
                                  size_t count, struct dtp_faults *faults)
{
    return dtp_host_copy_make(device, own, count, &s->copy, faults);
}

enum dtp_status dtp_saver_begin(struct dtp_saver *s, const struct dtp_checkpoint_position *position,
                                const struct dtp_state_part *own, double *stall_s, struct dtp_faults *faults)
{
    double begun_s = dtp_now_s();
    s->position = *position;
    s->fault = (struct dtp_faults){.count = 0};
    enum dtp_status status = dtp_host_copy_take(&s->copy, own, faults);
    if (s->place.agree) /* a rank without a copy keeps the others from beginning */
        status = s->place.agree(s->place.context, status);
    if (status == DTP_OK)
        status = dtp_checkpoint_begin(&s->place, position->step, faults);
    if (status == DTP_OK) {
        atomic_store(&s->state, DTP_SAVER_WRITING);
        s->joinable = pthread_create(&s->thread, NULL, write_own, s) == 0;
        if (!s->joinable) /* as if the disk were full: all hear of it behind the next step */
            atomic_store(&s->state, DTP_SAVER_BAD);
    }
    *stall_s = dtp_now_s() - begun_s;
    return status;
}

enum dtp_saver_state dtp_saver_state(const struct dtp_saver *s)
{
    return (enum dtp_saver_state)atomic_load(&s->state);
}

void dtp_saver_wait(struct dtp_saver *s)
{
    if (s->joinable)
        pthread_join(s->thread, NULL);
    s->joinable = false;
}

void dtp_saver_all_wrote(struct dtp_saver *s, bool whole)
{
    dtp_saver_wait(s);
    s->whole = whole;
    atomic_store(&s->state, s->place.rank == 0 ? DTP_SAVER_NAMING : DTP_SAVER_IDLE);
    if (s->place.rank == 0)
        s->joinable = pthread_create(&s->thread, NULL, give_name, s) == 0;
    if (s->place.rank == 0 && !s->joinable)
        give_name(s);
}

enum dtp_status dtp_saver_join(struct dtp_saver *s, struct dtp_faults *faults)
{
    dtp_saver_wait(s);
    if (dtp_saver_state(s) == DTP_SAVER_NAMED)
        atomic_store(&s->state, DTP_SAVER_IDLE);
    for (size_t i = 0; i < s->fault.count && i < DTP_FAULTS_KEPT; i++)
        dtp_fault(faults, s->fault.status, NULL, 0, "%s", s->fault.text[i]);
    s->fault = (struct dtp_faults){.count = 0};
    enum dtp_status status = s->status;
    s->status = DTP_OK;
    return status;
}

void dtp_saver_release(struct dtp_saver *s)
{
    dtp_saver_wait(s);
    if (s->copy.parts)
        dtp_host_copy_release(&s->copy);
}
