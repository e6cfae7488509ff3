/* The ranks of a pipeline as JSON. Keys end in their unit. */
#include "record/report.h"

#include "page/json_value.h"

static json_t *memory_object(const struct dtp_memory *m)
{
    json_t *object = json_object(), *owners = json_object();
    for (int i = 0; i < DTP_OWNER_COUNT; i++) {
        char key[64];
        snprintf(key, sizeof key, "%s_bytes", dtp_owner_key((enum dtp_owner)i));
        json_object_set_new(owners, key, dtp_json_whole(m->phase_bytes[m->peak_phase][i]));
    }
    json_object_set_new(object, "peak_by_owner", owners);
    json_object_set_new(object, "allocated_peak_bytes", dtp_json_whole(m->allocated_peak_bytes));
    json_object_set_new(object, "reserved_peak_bytes", dtp_json_whole(m->reserved_peak_bytes));
    json_object_set_new(object, "device_peak_bytes", dtp_json_whole(m->device_peak_bytes));
    json_object_set_new(object, "verdict", json_string(dtp_verdict_text(m->verdict)));
    return object;
}

static json_t *time_object(const struct dtp_pipeline_rank *r)
{
    const struct {
        const char *key;
        double seconds;
    } fields[] = {{"compute_s", r->compute_s},
                  {"optimizer_s", r->optimizer_s},
                  {"exposed_transfers_s", r->exposed_transfers_s},
                  {"exposed_collectives_s", r->exposed_collectives_s},
                  {"exposed_offload_s", r->exposed_offload_s},
                  {"host_bound_s", r->host_bound_s},
                  {"warm_up_idle_s", r->warm_up_idle_s},
                  {"steady_idle_s", r->steady_idle_s},
                  {"drain_idle_s", r->drain_idle_s}};
    json_t *object = json_object();
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        json_object_set_new(object, fields[i].key, dtp_json_real(fields[i].seconds));
    return object;
}

json_t *dtp_pipeline_json(const struct dtp_pipeline_stages *s)
{
    json_t *array = json_array();
    for (uint32_t i = 0; i < s->rank_count; i++) {
        const struct dtp_pipeline_rank *r = &s->ranks[i];
        json_t *object = json_object();
        json_object_set_new(object, "rank", dtp_json_whole(i));
        json_object_set_new(object, "worst", json_boolean(i == s->worst));
        json_object_set_new(object, "chunks_count", dtp_json_whole(r->chunks));
        json_object_set_new(object, "layers_count", dtp_json_whole(r->layers));
        json_object_set_new(object, "embedding", json_boolean(r->embedding));
        json_object_set_new(object, "head", json_boolean(r->head));
        json_object_set_new(object, "forwards_count", dtp_json_whole(r->forwards));
        json_object_set_new(object, "in_flight_count", dtp_json_whole(r->in_flight));
        json_object_set_new(object, "memory", memory_object(&r->memory));
        json_object_set_new(object, "time", time_object(r));
        json_array_append_new(array, object);
    }
    return array;
}
