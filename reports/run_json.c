#include "run_report.h"

#include "json_value.h"

#include <math.h>

static json_t *memory_json(const struct dtp_run_report *r)
{
    const struct dtp_memory *m = &r->simulated->prediction.memory;
    json_t *owners = json_object();
    for (int i = 0; i < DTP_OWNER_COUNT; i++)
        json_object_set_new(owners, dtp_owner_key((enum dtp_owner)i),
                            json_pack("{s:o,s:o}", "predicted_bytes", dtp_json_whole(m->phase_bytes[m->peak_phase][i]),
                                      "measured_bytes", dtp_json_whole(r->measured->owner_bytes[i])));
    return json_pack("{s:o,s:{s:o,s:o},s:{s:o,s:o},s:o}", "owners", owners, "arena", "predicted_bytes",
                     dtp_json_whole(r->simulated->placement.arena_bytes), "measured_bytes",
                     dtp_json_whole(r->measured->device_arena_bytes), "device", "predicted_bytes",
                     dtp_json_whole(m->device_peak_bytes), "measured_bytes",
                     r->measured->used_bytes ? dtp_json_whole(r->measured->used_bytes) : json_null(),
                     "host_arena_bytes", dtp_json_whole(r->measured->host_arena_bytes));
}

static json_t *communication_json(const struct dtp_run_report *r)
{
    json_t *list = json_object();
    uint64_t steps = r->measured->last_step - r->measured->first_step;
    for (int i = 0; i < DTP_COLLECTIVE_COUNT; i++)
        json_object_set_new(list, dtp_collective_text((enum dtp_collective)i),
                            json_pack("{s:o,s:o}", "predicted_bytes",
                                      dtp_json_whole(r->simulated->totals.sent_bytes[i]), "measured_bytes",
                                      dtp_json_whole(steps ? r->measured->sent_bytes[i] / steps : 0)));
    return list;
}

static json_t *phases_json(const struct dtp_run_report *r)
{
    json_t *phases = json_object();
    for (int i = 0; i < DTP_COMPARE_PHASE_COUNT && r->measured->alone_s; i++)
        json_object_set_new(phases, dtp_compare_phase_words((enum dtp_compare_phase)i),
                            json_pack("{s:o,s:o}", "predicted_s", dtp_json_real(r->phases[i].predicted_s), "measured_s",
                                      dtp_json_real(r->phases[i].in_place_s)));
    return phases;
}

static json_t *split_json(const struct dtp_run_report *r)
{
    const struct dtp_error_split *s = &r->split;
    if (!r->split_known)
        return json_null();
    return json_pack("{s:o,s:o,s:o,s:o}", "predicted_s", dtp_json_real(s->predicted_s), "with_costs_alone_s",
                     dtp_json_real(s->alone_s), "with_costs_in_place_s", dtp_json_real(s->in_place_s), "measured_s",
                     dtp_json_real(s->measured_s));
}

enum dtp_status dtp_run_json(const struct dtp_run_report *r, FILE *file, struct dtp_faults *faults)
{
    const struct dtp_run_outcome *m = r->measured;
    const struct dtp_prediction *p = &r->simulated->prediction;
    json_t *run = json_pack("{s:s,s:o,s:o,s:o,s:b,s:b,s:o,s:o,s:o,s:o,s:o,s:o,s:o}", "schema", "dtplan.run/1", "model",
                            dtp_json_text(r->simulated->job.transformer.name), "device", dtp_json_text(m->device),
                            "data", dtp_json_text(m->data), "gpu", (int)m->gpu, "interrupted", (int)m->interrupted,
                            "first_step", dtp_json_whole(m->first_step), "last_step", dtp_json_whole(m->last_step),
                            "skipped_steps", dtp_json_whole(m->skipped_steps), "memory", memory_json(r),
                            "communication", communication_json(r), "error_split", split_json(r), "loss",
                            json_pack("{s:o,s:o,s:o}", "first", dtp_json_real(m->first_loss), "last",
                                      dtp_json_real(m->last_loss), "entropy", dtp_json_real(m->entropy)));
    json_t *time =
        json_pack("{s:o,s:o,s:o,s:o,s:o}", "phases", phases_json(r), "predicted_step_s", dtp_json_real(p->time.step_s),
                  "measured_step_s", dtp_json_real(m->step_s), "timed_steps", dtp_json_whole(m->timed_steps),
                  "tokens_per_s", dtp_json_real(m->step_s > 0 ? (double)m->tokens_per_step / m->step_s : (double)NAN));
    if (!run || !time || json_object_set(run, "time", time) != 0) {
        json_decref(run);
        json_decref(time);
        return dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "out of memory while writing JSON");
    }
    json_decref(time);
    return dtp_json_dump(run, file, faults);
}
