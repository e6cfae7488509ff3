#include "page/json_value.h"

#include <math.h>
#include <stdlib.h>

json_t *dtp_json_real(double value)
{
    return isfinite(value) ? json_real(value) : json_null();
}

json_t *dtp_json_whole(uint64_t value)
{
    return json_integer(value <= INT64_MAX ? (json_int_t)value : (json_int_t)INT64_MAX);
}

json_t *dtp_json_text(const char *text)
{
    json_t *value = text && *text ? json_string(text) : NULL; /* json_string refuses invalid UTF-8 */
    return value ? value : json_null();
}

static enum dtp_status dump(json_t *value, size_t precision, FILE *file, struct dtp_faults *faults)
{
    char *text = value ? json_dumps(value, JSON_INDENT(2) | precision) : NULL;
    json_decref(value);
    if (!text)
        return dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "out of memory while writing JSON");
    fprintf(file, "%s\n", text);
    free(text);
    return DTP_OK;
}

enum dtp_status dtp_json_dump(json_t *value, FILE *file, struct dtp_faults *faults)
{
    return dump(value, JSON_REAL_PRECISION(12), file, faults);
}

enum dtp_status dtp_json_dump_exact(json_t *value, FILE *file, struct dtp_faults *faults)
{
    return dump(value, JSON_REAL_PRECISION(15), file, faults);
}
