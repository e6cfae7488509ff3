#include "record/run_report.h"

#include "decide/elastic.h"
#include "page/json_value.h"
#include "plan/runtime.h"
#include "record/simulation_report.h"

#include <math.h>

/* Of cores that nobody measured there is no time, and null says so. */
static json_t *predicted_s(const struct dtp_run_report *r, double seconds)
{
    bool known = dtp_cluster_has_times(&r->simulated->job.cluster) && !dtp_run_shares(r->measured);
    return dtp_json_real(known ? seconds : (double)NAN);
}

/* Of a run by the framework's own program; null of the executor's. */
static json_t *reference_json(const struct dtp_run_report *r)
{
    const struct dtp_memory *m = &r->simulated->prediction.memory;
    const struct dtp_reference_bytes *b = &r->measured->reference;
    const struct {
        const char *name;
        uint64_t predicted_bytes, measured_bytes;
    } rows[] = {{"parameters", m->params_bytes, b->parameters},
                {"gradients", m->grads_bytes, b->gradients},
                {"optimizer", m->optimizer_bytes, b->optimizer},
                {"after_init", m->after_init_bytes, b->after_init},
                {"allocated_peak", m->allocated_peak_bytes, b->allocated},
                {"reserved_peak", m->reserved_peak_bytes, b->reserved}};
    if (r->simulated->job.plan.runtime->executed)
        return json_null();
    json_t *list = json_object();
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        json_object_set_new(list, rows[i].name,
                            json_pack("{s:o,s:o}", "predicted_bytes", dtp_json_whole(rows[i].predicted_bytes),
                                      "measured_bytes",
                                      rows[i].measured_bytes ? dtp_json_whole(rows[i].measured_bytes) : json_null()));
    return list;
}

static json_t *memory_json(const struct dtp_run_report *r)
{
    const struct dtp_memory *m = &r->simulated->prediction.memory;
    json_t *owners = json_object();
    for (int i = 0; i < DTP_OWNER_COUNT; i++)
        json_object_set_new(owners, dtp_owner_key((enum dtp_owner)i),
                            json_pack("{s:o,s:o}", "predicted_bytes", dtp_json_whole(m->phase_bytes[m->peak_phase][i]),
                                      "measured_bytes", dtp_json_whole(r->measured->owner_bytes[i])));
    return json_pack("{s:o,s:o,s:{s:o,s:o},s:{s:o,s:o},s:o,s:o}", "reference", reference_json(r), "owners", owners,
                     "arena", "predicted_bytes", dtp_json_whole(r->simulated->placement.arena_bytes), "measured_bytes",
                     dtp_json_whole(r->measured->device_arena_bytes), "device", "predicted_bytes",
                     dtp_json_whole(m->device_peak_bytes), "measured_bytes",
                     r->measured->used_bytes ? dtp_json_whole(r->measured->used_bytes) : json_null(),
                     "host_arena_bytes", dtp_json_whole(r->measured->host_arena_bytes), "predicted_host_arena_bytes",
                     m->host_bytes ? dtp_json_whole(m->host_bytes / r->simulated->job.cluster.gpus_per_node)
                                   : json_null());
}

/* In a step. */
static void put_bytes(json_t *list, const struct dtp_run_report *r, const char *name, uint64_t predicted_bytes,
                      uint64_t measured_bytes)
{
    uint64_t steps = r->measured->last_step - r->measured->first_step;
    json_object_set_new(list, name,
                        json_pack("{s:o,s:o}", "predicted_bytes", dtp_json_whole(predicted_bytes), "measured_bytes",
                                  dtp_json_whole(steps ? measured_bytes / steps : 0)));
}

static json_t *communication_json(const struct dtp_run_report *r)
{
    const struct dtp_program_totals *totals = &r->simulated->totals;
    json_t *list = json_object();
    for (int i = 0; i < DTP_COLLECTIVE_COUNT; i++) {
        const char *name = dtp_collective_text((enum dtp_collective)i);
        put_bytes(list, r, name, dtp_run_sent_bytes(r, (enum dtp_collective)i), r->measured->sent_bytes[i]);
        if (dtp_run_expects(r->simulated->job.plan.ep, (enum dtp_collective)i))
            json_object_set_new(json_object_get(list, name), "expected", json_true());
    }
    put_bytes(list, r, "host_to_device", totals->host_to_device_bytes, r->measured->host_to_device_bytes);
    put_bytes(list, r, "device_to_host", totals->device_to_host_bytes, r->measured->device_to_host_bytes);
    return list;
}

/* Sums over the operations of each kind. */
static json_t *operations_json(const struct dtp_run_report *r)
{
    json_t *list = json_object();
    for (int i = DTP_CLASS_MATMUL; i <= DTP_CLASS_STORAGE && r->measured->alone_s; i++) {
        const struct dtp_class_times *t = &r->classes[i];
        if (t->count > 0)
            json_object_set_new(list, dtp_op_class_text((enum dtp_op_class)i),
                                json_pack("{s:o,s:o,s:o,s:o}", "count", dtp_json_whole(t->count), "predicted_alone_s",
                                          predicted_s(r, t->predicted_s), "measured_alone_s", dtp_json_real(t->alone_s),
                                          "measured_in_step_s", dtp_json_real(t->in_place_s)));
    }
    return list;
}

static json_t *phases_json(const struct dtp_run_report *r)
{
    json_t *phases = json_object();
    for (int i = 0; i < DTP_COMPARE_PHASE_COUNT && r->measured->alone_s; i++)
        json_object_set_new(phases, dtp_compare_phase_words((enum dtp_compare_phase)i),
                            json_pack("{s:o,s:o}", "predicted_s", predicted_s(r, r->phases[i].predicted_s),
                                      "measured_s", dtp_json_real(r->phases[i].in_place_s)));
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

/* Rows of tokens that each expert of each layer got in all steps. */
static json_t *experts_json(const struct dtp_run_outcome *m)
{
    json_t *layers = json_array();
    for (uint32_t layer = 0; layer < m->expert_layers; layer++) {
        json_t *rows = json_array();
        for (uint32_t e = 0; e < m->experts; e++)
            json_array_append_new(rows, dtp_json_whole(m->expert_rows[(size_t)layer * m->experts + e]));
        json_array_append_new(layers, rows);
    }
    return layers;
}

static json_t *failures_json(const struct dtp_elastic_outcome *e)
{
    json_t *list = json_array();
    double step_s = dtp_elastic_step_s(e);
    for (uint32_t i = 0; i < e->failures && i < DTP_ELASTIC_FAILURES_TOLD; i++) {
        const struct dtp_elastic_failure *f = &e->failure[i];
        json_array_append_new(
            list,
            json_pack("{s:s,s:s,s:o,s:o,s:o,s:o,s:o,s:o}", "why", f->why, "noticed_by", dtp_rank_loss_words(f->how),
                      "steps_again", dtp_json_whole(f->steps_again), "noticed_s", dtp_json_real(f->noticed_s),
                      "expected_noticed_s", dtp_json_real(dtp_rank_loss_noticed_s(f->how, step_s)), "ended_s",
                      dtp_json_real(f->ended_s), "expected_ended_s",
                      dtp_json_real(dtp_rank_loss_ended_s(f->how, step_s)), "rejoin_s", dtp_json_real(f->rejoin_s)));
    }
    return list;
}

static json_t *elastic_json(const struct dtp_elastic_outcome *e)
{
    return json_pack("{s:o,s:o,s:o,s:o,s:o,s:o,s:o,s:o,s:o,s:o,s:o,s:o,s:o,s:o}", "generations",
                     dtp_json_whole(e->generations), "ranks", dtp_json_whole(e->ranks), "failures",
                     dtp_json_whole(e->failures), "snapshots", dtp_json_whole(e->snapshots), "steps_again",
                     dtp_json_whole(e->again), "wall_s", dtp_json_real(e->wall_s), "again_s", dtp_json_real(e->again_s),
                     "down_s", dtp_json_real(e->down_s), "snapshot_stall_s", dtp_json_real(e->stall_s), "goodput",
                     dtp_json_real(dtp_elastic_goodput(e)), "expected_goodput", dtp_json_real(dtp_elastic_expected(e)),
                     "expected_steps_again", dtp_json_real(dtp_elastic_expected_steps(e)), "expected_rejoin_s",
                     dtp_json_real(e->first_start_s), "each_failure", failures_json(e));
}

static json_t *kept_json(const struct dtp_run_report *r, const struct dtp_kept *kept, bool beside)
{
    return json_pack("{s:o,s:o,s:o,s:o,s:o,s:o}", "count", dtp_json_whole(kept->count), "predicted_stall_s",
                     dtp_json_real(dtp_run_stall_s(r, kept, beside)), "measured_stall_s",
                     dtp_json_real(dtp_kept_mean_s(kept)), "longest_stall_s", dtp_json_real(kept->longest_s),
                     "predicted_host_bytes",
                     beside ? dtp_json_real(dtp_state_copy_bytes(&r->simulated->job)) : json_integer(0), "host_bytes",
                     dtp_json_whole(kept->host_bytes));
}

enum dtp_status dtp_run_json(const struct dtp_run_report *r, FILE *file, struct dtp_faults *faults)
{
    const struct dtp_run_outcome *m = r->measured;
    const struct dtp_prediction *p = &r->simulated->prediction;
    json_t *run = json_pack(
        "{s:s,s:o,s:o,s:o,s:o,s:b,s:o,s:b,s:o,s:o,s:o,s:o,s:o,s:o,s:o}", "schema", "dtplan.run/1", "model",
        dtp_json_text(r->simulated->job.transformer.name), "program", dtp_json_text(m->program), "device",
        dtp_json_text(m->device), "data", dtp_json_text(m->data), "gpu", (int)m->gpu, "ranks_a_gpu",
        dtp_json_whole(m->ranks_a_gpu), "interrupted", (int)m->interrupted, "first_step", dtp_json_whole(m->first_step),
        "last_step", dtp_json_whole(m->last_step), "skipped_steps", dtp_json_whole(m->skipped_steps), "memory",
        memory_json(r), "communication", communication_json(r), "error_split", split_json(r), "loss",
        json_pack("{s:o,s:o,s:o}", "first", dtp_json_real(m->first_loss), "last", dtp_json_real(m->last_loss),
                  "entropy", dtp_json_real(m->entropy)));
    json_t *time =
        json_pack("{s:o,s:o,s:o,s:o,s:o,s:o,s:o}", "phases", phases_json(r), "operations", operations_json(r),
                  "predicted_step_s", predicted_s(r, p->time.step_s), "measured_step_s", dtp_json_real(m->step_s),
                  "undisturbed_step_s", dtp_json_real(m->undisturbed_s > 0 ? m->undisturbed_s : (double)NAN),
                  "timed_steps", dtp_json_whole(m->timed_steps), "tokens_per_s",
                  dtp_json_real(m->step_s > 0 ? (double)m->tokens_per_step / m->step_s : (double)NAN));
    if (!run || !time || json_object_set(run, "time", time) != 0) {
        json_decref(run);
        json_decref(time);
        return dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "out of memory while writing JSON");
    }
    json_decref(time);
    if (m->checkpoints.count > 0)
        json_object_set_new(run, "checkpoints", kept_json(r, &m->checkpoints, false));
    if (m->beside.count > 0)
        json_object_set_new(run, "async_checkpoints", kept_json(r, &m->beside, true));
    if (m->snapshots.count > 0)
        json_object_set_new(run, "snapshots", kept_json(r, &m->snapshots, true));
    if (m->elastic.known)
        json_object_set_new(run, "elastic", elastic_json(&m->elastic));
    if (r->beside.path)
        json_object_set_new(
            run, "loss_beside",
            json_pack("{s:o,s:o}", "log", dtp_json_text(r->beside.path), "last", dtp_json_real(r->beside.last_loss)));
    if (m->expert_rows)
        json_object_set_new(run, "experts", experts_json(m));
    return dtp_json_dump(run, file, faults);
}
