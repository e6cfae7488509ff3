/* The simulated step as one JSON object, schema dtplan.simulation/1. Keys end in their unit. */
#include "record/simulation_report.h"

#include "sim/critical_path.h"
#include "page/json_value.h"
#include "record/report.h"

/* As plan has it: by what operations take alone, exposed is what the step takes beyond. Of a pipeline means of ranks.
 */
static json_t *time_object(const struct dtp_simulated *s)
{
    const struct dtp_time *t = &s->prediction.time;
    json_t *object = json_object(), *alone = json_object();
    json_object_set_new(object, "step_s", dtp_json_real(s->timeline.step_s));
    json_object_set_new(object, "compute_s", dtp_json_real(t->compute_s));
    json_object_set_new(object, "compute_alone_s", dtp_json_real(s->kernels_alone_s));
    json_object_set_new(object, "optimizer_s", dtp_json_real(t->optimizer_s));
    json_object_set_new(object, "exposed_communication_s", dtp_json_real(t->exposed_communication_s));
    json_object_set_new(object, "exposed_offload_s", dtp_json_real(t->exposed_offload_s));
    json_object_set_new(object, "bubble_s", dtp_json_real(t->bubble_s));
    json_object_set_new(object, "communication_s", dtp_json_real(s->timeline.communication_s));
    for (int i = 0; i < DTP_COLLECTIVE_COUNT; i++) {
        char key[64];
        snprintf(key, sizeof key, "%s_s", dtp_collective_text((enum dtp_collective)i));
        json_object_set_new(alone, key, dtp_json_real(s->timeline.communication_by_collective_s[i]));
    }
    if (s->samples) {
        json_t *jobs = json_object();
        json_object_set_new(jobs, "samples_count", dtp_json_whole(s->samples));
        json_object_set_new(jobs, "rank_deviation", dtp_json_real(s->deviation));
        json_object_set_new(jobs, "mean_s", dtp_json_real(s->quantiles.mean_s));
        json_object_set_new(jobs, "p50_s", dtp_json_real(s->quantiles.p50_s));
        json_object_set_new(jobs, "p95_s", dtp_json_real(s->quantiles.p95_s));
        json_object_set_new(jobs, "p99_s", dtp_json_real(s->quantiles.p99_s));
        json_object_set_new(object, "step_of_jobs", jobs);
    }
    json_object_set_new(object, "running_by_collective", alone);
    return object;
}

/* Where the step's time went (sim/simulate.h), as kernels ran beside others: they add up to step_s. */
static json_t *step_parts_object(const struct dtp_simulated *s)
{
    const struct dtp_timeline *t = &s->timeline;
    json_t *object = json_object(), *waited = json_object();
    json_object_set_new(object, "busy_s", dtp_json_real(t->compute_s));
    json_object_set_new(object, "optimizer_s", dtp_json_real(t->optimizer_s));
    json_object_set_new(object, "waiting_communication_s", dtp_json_real(t->exposed_communication_s));
    json_object_set_new(object, "waiting_offload_s", dtp_json_real(t->exposed_offload_s));
    json_object_set_new(object, "host_bound_s", dtp_json_real(t->host_bound_s));
    json_object_set_new(object, "bubble_s", dtp_json_real(t->bubble_s));
    for (int i = 0; i < DTP_COLLECTIVE_COUNT; i++) {
        char key[64];
        snprintf(key, sizeof key, "%s_s", dtp_collective_text((enum dtp_collective)i));
        json_object_set_new(waited, key, dtp_json_real(t->exposed_by_collective_s[i]));
    }
    json_object_set_new(object, "waiting_by_collective", waited);
    return object;
}

static json_t *memory_object(const struct dtp_simulated *s)
{
    const struct dtp_memory *m = &s->prediction.memory;
    json_t *object = json_object(), *owners = json_object();
    for (int i = 0; i < DTP_OWNER_COUNT; i++) {
        char key[64];
        snprintf(key, sizeof key, "%s_bytes", dtp_owner_key((enum dtp_owner)i));
        json_object_set_new(owners, key, dtp_json_whole(s->placement.live_peak_owner_bytes[i]));
    }
    json_object_set_new(object, "peak_by_owner", owners);
    json_object_set_new(object, "live_peak_bytes", dtp_json_whole(s->placement.live_peak_bytes));
    json_object_set_new(object, "live_peak_op", dtp_json_whole(s->placement.live_peak_op));
    json_object_set_new(object, "arena_bytes", dtp_json_whole(s->placement.arena_bytes));
    json_object_set_new(object, "allocated_peak_bytes", dtp_json_whole(m->allocated_peak_bytes));
    json_object_set_new(object, "reserved_peak_bytes", dtp_json_whole(m->reserved_peak_bytes));
    json_object_set_new(object, "device_peak_bytes", dtp_json_whole(m->device_peak_bytes));
    json_object_set_new(object, "capacity_bytes", dtp_json_whole(m->capacity_bytes));
    json_object_set_new(object, "verdict", json_string(dtp_verdict_text(m->verdict)));
    return object;
}

static json_t *path_array(const struct dtp_simulated *s)
{
    struct dtp_path_row rows[DTP_PATH_MAX_ROWS];
    size_t count = dtp_critical_path(s->program, &s->timeline, rows);
    json_t *array = json_array();
    for (size_t i = 0; i < count; i++) {
        json_t *object = json_object();
        json_object_set_new(object, "phase", dtp_json_text(rows[i].phase));
        json_object_set_new(object, "first_layer",
                            rows[i].of_layers ? dtp_json_whole(rows[i].first_layer) : json_null());
        json_object_set_new(object, "last_layer", rows[i].of_layers ? dtp_json_whole(rows[i].last_layer) : json_null());
        json_object_set_new(object, "micro_steps_count", dtp_json_whole(rows[i].micro_steps));
        json_object_set_new(object, "ops_count", dtp_json_whole(rows[i].op_count));
        json_object_set_new(object, "time_s", dtp_json_real(rows[i].seconds));
        json_object_set_new(object, "kernels_s", dtp_json_real(rows[i].kernels_s));
        json_object_set_new(object, "collectives_s", dtp_json_real(rows[i].collectives_s));
        json_object_set_new(object, "copies_s", dtp_json_real(rows[i].copies_s));
        json_object_set_new(object, "host_s", dtp_json_real(rows[i].host_s));
        json_array_append_new(array, object);
    }
    return array;
}

static json_t *throughput_object(const struct dtp_throughput *t)
{
    json_t *object = json_object();
    json_object_set_new(object, "tokens_per_s", dtp_json_real(t->tokens_per_s));
    json_object_set_new(object, "tokens_per_s_per_gpu", dtp_json_real(t->tokens_per_s_per_gpu));
    json_object_set_new(object, "mfu", dtp_json_real(t->mfu));
    json_object_set_new(object, "hfu", dtp_json_real(t->hfu));
    return object;
}

static json_t *closed_object(const struct dtp_prediction *p)
{
    json_t *object = json_object();
    json_object_set_new(object, "step_s", dtp_json_real(p->time.step_s));
    json_object_set_new(object, "tokens_per_s", dtp_json_real(p->throughput.tokens_per_s));
    json_object_set_new(object, "allocated_peak_bytes", dtp_json_whole(p->memory.allocated_peak_bytes));
    json_object_set_new(object, "reserved_peak_bytes", dtp_json_whole(p->memory.reserved_peak_bytes));
    json_object_set_new(object, "device_peak_bytes", dtp_json_whole(p->memory.device_peak_bytes));
    return object;
}

enum dtp_status dtp_simulation_json(const struct dtp_simulated *s, const struct dtp_pipeline_stages *stages, FILE *file,
                                    struct dtp_faults *faults)
{
    json_t *object = json_object();
    json_object_set_new(object, "schema", json_string("dtplan.simulation/1"));
    json_object_set_new(object, "ops_count", dtp_json_whole(s->timeline.op_count));
    json_object_set_new(object, "buffers_count", dtp_json_whole(dtp_program_buffer_count(s->program)));
    json_object_set_new(object, "time", time_object(s));
    json_object_set_new(object, "step_parts", step_parts_object(s));
    json_object_set_new(object, "stages", dtp_pipeline_json(stages));
    json_object_set_new(object, "throughput", throughput_object(&s->prediction.throughput));
    json_object_set_new(object, "memory", memory_object(s));
    json_object_set_new(object, "critical_path", path_array(s));
    json_object_set_new(object, "closed_form", closed_object(&s->closed));
    return dtp_json_dump(object, file, faults);
}
