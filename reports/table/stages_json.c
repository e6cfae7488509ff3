/* A run of a pipeline's stages as JSON, schema dtplan.stages/1. */
#include "record/run_report.h"

#include "page/json_value.h"
#include "program/program_text.h"
#include "record/report.h"

static json_t *sent_object(const uint64_t bytes[DTP_COLLECTIVE_COUNT])
{
    json_t *object = json_object();
    for (int c = 0; c < DTP_COLLECTIVE_COUNT; c++)
        if (bytes[c])
            json_object_set_new(object, dtp_collective_text((enum dtp_collective)c), dtp_json_whole(bytes[c]));
    return object;
}

static json_t *rank_object(const struct dtp_stages_report *r, uint32_t rank)
{
    uint32_t index = dtp_program_set_role_of(&r->simulated->set, rank);
    const struct dtp_simulated_role *role = &r->simulated->roles[index];
    json_t *object = json_object();
    json_object_set_new(object, "stage", dtp_json_whole(index));
    json_object_set_new(object, "predicted_arena_bytes", dtp_json_whole(role->memory.allocated_peak_bytes));
    json_object_set_new(object, "predicted_sent_bytes", sent_object(role->totals.sent_bytes));
    if (!r->measured->ranks || rank >= r->measured->rank_count)
        return object;
    const struct dtp_rank_outcome *m = &r->measured->ranks[rank];
    json_object_set_new(object, "measured_arena_bytes", dtp_json_whole(m->device_arena_bytes));
    json_object_set_new(object, "measured_device_bytes", dtp_json_whole(m->used_bytes));
    json_object_set_new(object, "steps", dtp_json_whole(m->steps));
    json_object_set_new(object, "sent_bytes_in_all_steps", sent_object(m->sent_bytes));
    return object;
}

static bool all_exact(const struct dtp_stages_report *r)
{
    bool exact = dtp_stages_arenas_off(r) == 0;
    for (int c = 0; c < DTP_COLLECTIVE_COUNT; c++)
        exact = exact && dtp_stages_sent_off(r, (enum dtp_collective)c) == 0;
    return exact;
}

enum dtp_status dtp_stages_run_json(const struct dtp_stages_report *r, FILE *file, struct dtp_faults *faults)
{
    char digest[DTP_PROGRAM_DIGEST_BYTES];
    uint64_t sum = 0;
    json_t *root = json_object(), *ranks = json_array();
    dtp_program_set_digest(&r->simulated->set, &sum, NULL);
    snprintf(digest, sizeof digest, DTP_PROGRAM_DIGEST_FORMAT, sum);
    json_object_set_new(root, "schema", json_string("dtplan.stages/1"));
    json_object_set_new(root, "program", json_string(digest));
    json_object_set_new(root, "schedule", json_string(dtp_schedule_row(r->predicted->schedule)->word));
    for (uint32_t i = 0; i < dtp_program_set_ranks(&r->simulated->set); i++)
        json_array_append_new(ranks, rank_object(r, i));
    json_object_set_new(root, "ranks", ranks);
    json_object_set_new(root, "bytes_as_predicted", json_boolean(all_exact(r)));
    json_object_set_new(root, "predicted", dtp_pipeline_json(r->predicted));
    json_object_set_new(root, "measured", r->ran ? dtp_pipeline_json(r->ran) : json_null());
    json_object_set_new(root, "times_comparable", json_boolean(r->comparable));
    json_object_set_new(root, "ranks_a_gpu", dtp_json_whole(r->measured->ranks_a_gpu));
    json_object_set_new(root, "measured_step_s",
                        r->measured->timed_steps ? dtp_json_real(r->measured->step_s) : json_null());
    json_object_set_new(root, "steps", dtp_json_whole(r->measured->last_step - r->measured->first_step));
    json_object_set_new(root, "first_loss", dtp_json_real(r->measured->first_loss));
    json_object_set_new(root, "last_loss", dtp_json_real(r->measured->last_loss));
    if (r->beside->path)
        json_object_set_new(
            root, "loss_beside",
            json_pack("{s:o,s:o}", "log", dtp_json_text(r->beside->path), "last", dtp_json_real(r->beside->last_loss)));
    if (r->measured->expert_rows)
        json_object_set_new(root, "experts", dtp_run_experts_json(r->measured));
    bool written = json_dumpf(root, file, JSON_INDENT(2)) == 0 && fputc('\n', file) != EOF;
    json_decref(root);
    return written ? DTP_OK : dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "the JSON could not be written");
}
