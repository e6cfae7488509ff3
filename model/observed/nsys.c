#include "observed/observed.h"

#include "base/number.h"
#include "observed/spans.h"

#include <stdlib.h>
#include <string.h>

/* Columns that are read: "Start (ns),Duration (ns),...,Name", the name last and quoted where it holds commas. */
static bool add_line(struct dtp_spans *spans, char *line, bool *read)
{
    char *duration = strchr(line, ','), *rest = duration ? strchr(duration + 1, ',') : NULL;
    double start_ns, duration_ns;
    if (!rest)
        return true;
    *duration = *rest = '\0';
    if (!dtp_number_parse(line, &start_ns) || !dtp_number_parse(duration + 1, &duration_ns))
        return true;
    char *quote = strchr(rest + 1, '"'), *comma = strrchr(rest + 1, ',');
    const char *name = quote ? quote + 1 : comma ? comma + 1 : rest + 1;
    *read = true;
    return dtp_spans_add_gpu(spans, name, 1e-9 * start_ns, 1e-9 * (start_ns + duration_ns));
}

enum dtp_status dtp_read_nsys(const char *path, const char *text, struct dtp_observed *out, struct dtp_faults *faults)
{
    struct dtp_spans spans = {0};
    char *copy = strdup(text), *rest = copy, *line;
    enum dtp_status status = copy ? DTP_OK : dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "out of memory");
    for (size_t number = 1; status == DTP_OK && (line = strsep(&rest, "\n")) != NULL; number++) {
        bool read = false;
        if (number == 1 || !*line)
            continue;
        if (!add_line(&spans, line, &read))
            status = dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "out of memory");
        else if (!read)
            status = dtp_fault(faults, DTP_BAD_INPUT, path, number, "no start and duration in nanoseconds");
    }
    free(copy);
    out->tool = "nsys";
    out->what = DTP_OBSERVED_TIME;
    if (status == DTP_OK)
        status = dtp_spans_sum(&spans, path, &out->time, faults);
    dtp_spans_release(&spans);
    return status;
}
