/* The ranks of a pipeline as JSON, and the same values as CSV. Keys end in their unit. */
#include "record/report.h"

#include "base/table.h"
#include "page/json_value.h"
#include "page/output_own.h"
#include "record/simulation_report.h"

#include <string.h>

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

static json_t *time_object(const struct dtp_pipeline_stages *s, uint32_t rank)
{
    const struct dtp_pipeline_rank *r = &s->ranks[rank];
    const struct {
        const char *key;
        double value;
    } fields[] = {{"busy_fraction", dtp_pipeline_busy_fraction(s, rank)},
                  {"compute_s", r->compute_s},
                  {"optimizer_s", r->optimizer_s},
                  {"exposed_transfers_s", r->exposed_transfers_s},
                  {"exposed_tensor_s", r->exposed_tensor_s},
                  {"exposed_context_s", r->exposed_context_s},
                  {"exposed_collectives_s", r->exposed_collectives_s},
                  {"exposed_offload_s", r->exposed_offload_s},
                  {"host_bound_s", r->host_bound_s},
                  {"warm_up_idle_s", r->warm_up_idle_s},
                  {"steady_idle_s", r->steady_idle_s},
                  {"drain_idle_s", r->drain_idle_s}};
    json_t *object = json_object();
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        json_object_set_new(object, fields[i].key, dtp_json_real(fields[i].value));
    for (int i = 0; i < DTP_WAIT_COUNT; i++) {
        char key[64];
        snprintf(key, sizeof key, "idle_for_%s_s", dtp_wait_text((enum dtp_wait)i));
        json_object_set_new(object, key, dtp_json_real(r->idle_for_s[i]));
    }
    return object;
}

static json_t *rank_object(const struct dtp_pipeline_stages *s, uint32_t rank)
{
    const struct dtp_pipeline_rank *r = &s->ranks[rank];
    json_t *object = json_object();
    json_object_set_new(object, "rank", dtp_json_whole(rank));
    json_object_set_new(object, "worst", json_boolean(rank == s->worst));
    json_object_set_new(object, "chunks_count", dtp_json_whole(r->chunks));
    json_object_set_new(object, "layers_count", dtp_json_whole(r->layers));
    json_object_set_new(object, "mtp_layers_count", dtp_json_whole(r->mtp_layers));
    json_object_set_new(object, "embedding", json_boolean(r->embedding));
    json_object_set_new(object, "head", json_boolean(r->head));
    json_object_set_new(object, "forwards_count", dtp_json_whole(r->forwards));
    json_object_set_new(object, "in_flight_count", dtp_json_whole(r->in_flight));
    json_object_set_new(object, "forward_queue_count", dtp_json_whole(r->forward_queue));
    json_object_set_new(object, "backward_queue_count", dtp_json_whole(r->backward_queue));
    json_object_set_new(object, "memory", memory_object(&r->memory));
    json_object_set_new(object, "time", time_object(s, rank));
    return object;
}

json_t *dtp_pipeline_json(const struct dtp_pipeline_stages *s)
{
    json_t *array = json_array();
    for (uint32_t i = 0; i < s->rank_count; i++)
        json_array_append_new(array, rank_object(s, i));
    return array;
}

/* ---- CSV --------------------------------------------------------------------------------------------------------- */

/* The leaves of a rank's object, in the order in which they were set: their keys, or their values. Returns how many. */
static size_t write_leaves(json_t *object, bool keys, FILE *file)
{
    const char *key;
    json_t *value;
    size_t count = 0;
    json_object_foreach(object, key, value)
    {
        if (json_is_object(value)) {
            count += write_leaves(value, keys, file);
            continue;
        }
        count++;
        fputs(strcmp(key, "rank") == 0 ? "" : ",", file); /* the first one */
        if (keys)
            fputs(key, file);
        else if (json_is_string(value))
            dtp_table_write_field(file, json_string_value(value));
        else if (json_is_integer(value))
            fprintf(file, "%" JSON_INTEGER_FORMAT, json_integer_value(value));
        else if (json_is_boolean(value))
            fputs(json_is_true(value) ? "true" : "false", file);
        else
            fprintf(file, "%.9f", json_number_value(value));
    }
    return count;
}

enum dtp_status dtp_simulation_write_ranks(const struct dtp_pipeline_stages *s, FILE *file, struct dtp_faults *faults)
{
    size_t columns = 0, written = 0;
    for (uint32_t i = 0; i < s->rank_count && written == columns; i++) {
        json_t *object = rank_object(s, i);
        if (i == 0) {
            columns = write_leaves(object, true, file);
            fputc('\n', file);
        }
        written = write_leaves(object, false, file);
        fputc('\n', file);
        json_decref(object);
    }
    /* without memory, fields are missing */
    return columns && written == columns ? DTP_OK : dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "out of memory");
}
