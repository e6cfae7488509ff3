#include "probe/prober.h"

#include "base/grow.h"
#include "base/quantile.h"
#include "train/train_events.h"

#include <jansson.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

/* ---- samples ----------------------------------------------------------------------------------------------------- */

static struct dtp_probe_samples *find(const struct dtp_probe_rows *rows, const struct dtp_measured_row *row)
{
    for (size_t i = 0; i < rows->count; i++)
        if (dtp_measured_row_same(&rows->all[i].row, row))
            return &rows->all[i];
    return NULL;
}

static struct dtp_probe_samples *find_or_make(struct dtp_probe_rows *rows, const struct dtp_measured_row *row)
{
    struct dtp_probe_samples *samples = find(rows, row);
    if (samples)
        return samples;
    if (!dtp_grow(&rows->all, rows->count, &rows->room, sizeof *rows->all))
        return NULL;
    samples = &rows->all[rows->count++];
    *samples = (struct dtp_probe_samples){.row = *row};
    return samples;
}

enum dtp_status dtp_probe_rows_add(struct dtp_probe_rows *rows, const struct dtp_measured_row *row, double seconds,
                                   struct dtp_faults *faults)
{
    struct dtp_probe_samples *samples = find_or_make(rows, row);
    if (!samples || !dtp_grow(&samples->seconds, samples->count, &samples->room, sizeof *samples->seconds))
        return dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "out of memory");
    samples->seconds[samples->count++] = seconds;
    return DTP_OK;
}

void dtp_probe_rows_say(const struct dtp_probe_rows *rows, FILE *events)
{
    for (size_t i = 0; i < rows->count; i++) {
        struct dtp_probe_samples *s = &rows->all[i];
        struct dtp_measured_row row = s->row;
        row.number[DTP_MEASURED_samples] = (double)s->count;
        if (row.measurement == DTP_MEASUREMENT_CONTENTION) {
            row.number[DTP_MEASURED_value] = dtp_quantile(s->seconds, s->count, 0.5);
        } else {
            row.number[DTP_MEASURED_seconds] = dtp_quantile(s->seconds, s->count, 0.5);
            row.number[DTP_MEASURED_low_s] = dtp_quantile(s->seconds, s->count, 0.25);
            row.number[DTP_MEASURED_high_s] = dtp_quantile(s->seconds, s->count, 0.75);
        }
        dtp_probe_say_row(events, &row);
    }
}

void dtp_probe_rows_release(struct dtp_probe_rows *rows)
{
    for (size_t i = 0; i < rows->count; i++)
        free(rows->all[i].seconds);
    free(rows->all);
    *rows = (struct dtp_probe_rows){0};
}

/* ---- events ------------------------------------------------------------------------------------------------------ */

void dtp_probe_say_row(FILE *events, const struct dtp_measured_row *row)
{
    static const char *const columns[] = {
#define AS_COLUMN(field, column) column,
        DTP_MEASURED_NUMBER_TABLE(AS_COLUMN)
#undef AS_COLUMN
    };
    if (!events)
        return;
    json_t *event = json_pack("{s:s,s:s,s:s}", "event", "row", "measurement", dtp_measurement_text(row->measurement),
                              "what", row->what);
    if (row->dtype != DTP_DTYPE_COUNT)
        json_object_set_new(event, "dtype", json_string(dtp_dtype_text(row->dtype)));
    if (row->text[0])
        json_object_set_new(event, "text", json_string(row->text));
    for (int i = 0; i < DTP_MEASURED_COLUMN_COUNT; i++)
        if (isfinite(row->number[i]))
            json_object_set_new(event, columns[i], json_real(row->number[i]));
    dtp_event_say(events, event);
}

void dtp_probe_say_pace(FILE *events, double loop_s, double least_s)
{
    if (events)
        dtp_event_say(events, json_pack("{s:s,s:f,s:f}", "event", "pace", "loop_s", loop_s, "least_s", least_s));
}

void dtp_probe_say_about(FILE *events, const char *key, const char *format, ...)
{
    struct dtp_measured_row row = dtp_measured_row_of(DTP_MEASUREMENT_ABOUT, key);
    va_list values;
    va_start(values, format);
    vsnprintf(row.text, sizeof row.text, format, values);
    va_end(values);
    if (row.text[0])
        dtp_probe_say_row(events, &row);
}

void dtp_probe_say_start(FILE *events, const struct dtp_device *device, uint32_t ranks, uint32_t nodes)
{
    if (events)
        dtp_event_say(events, json_pack("{s:s,s:s,s:s,s:b,s:I,s:I}", "event", "start", "device", device->name,
                                        "libraries", device->libraries, "gpu", (int)device->asynchronous, "ranks",
                                        (json_int_t)ranks, "nodes", (json_int_t)nodes));
}

void dtp_probe_say_progress(FILE *events, uint64_t done, uint64_t count, const char *words)
{
    if (events)
        dtp_event_say(events, json_pack("{s:s,s:I,s:I,s:s}", "event", "progress", "done", (json_int_t)done, "count",
                                        (json_int_t)count, "words", words));
}

void dtp_probe_say_warning(FILE *events, const char *words)
{
    if (events)
        dtp_event_say(events, json_pack("{s:s,s:s}", "event", "warning", "words", words));
}

void dtp_probe_say_end(FILE *events, bool interrupted)
{
    if (events)
        dtp_event_say(events, json_pack("{s:s,s:b}", "event", "end", "interrupted", (int)interrupted));
}
