#include "record/validation.h"

#include "page/json_value.h"

static json_t *field_json(const struct dtp_validation *v, const struct dtp_validation_field *field)
{
    const char *at = (const char *)v + field->offset;
    switch (field->kind) {
    case DTP_VALIDATION_TEXT: return dtp_json_text(at);
    case DTP_VALIDATION_WHOLE: return dtp_json_whole(*(const uint64_t *)(const void *)at);
    case DTP_VALIDATION_REAL: break;
    }
    return dtp_json_real(*(const double *)(const void *)at);
}

static json_t *run_json(const struct dtp_validation *v)
{
    struct dtp_validation_field fields[DTP_VALIDATION_MAX_FIELDS];
    size_t count = dtp_validation_fields(fields);
    json_t *run = json_object();
    for (size_t i = 0; i < count; i++)
        json_object_set_new(run, fields[i].name, field_json(v, &fields[i]));
    json_object_set_new(run, "step_error_fraction", dtp_json_real(dtp_validation_step_error(v)));
    return run;
}

enum dtp_status dtp_validation_json(const struct dtp_validation *rows, size_t count,
                                    const struct dtp_validation_bounds *bounds, const struct dtp_refit_report *refit,
                                    FILE *file, struct dtp_faults *faults)
{
    json_t *runs = json_array();
    for (size_t i = 0; i < count; i++)
        json_array_append_new(runs, run_json(&rows[i]));
    json_t *all = json_pack("{s:s,s:o,s:o,s:o,s:o,s:o}", "schema", DTP_VALIDATION_SCHEMA, "step_tolerance_fraction",
                            dtp_json_real(bounds->step_fraction), "device_tolerance_fraction",
                            dtp_json_real(bounds->device_fraction), "reference_tolerance_fraction",
                            dtp_json_real(bounds->reference_fraction), "runs", runs, "refit",
                            refit ? dtp_refit_json(refit) : json_null());
    return dtp_json_dump(all, file, faults);
}
