#include "cli/probe_events.h"

#include "base/grow.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

struct dtp_probe_heard dtp_probe_heard_start(void)
{
    return (struct dtp_probe_heard){.progress = dtp_progress_start("measurements", 0)};
}

bool dtp_probe_heard_keep(struct dtp_probe_heard *h, const struct dtp_measured_row *row)
{
    if (!dtp_grow(&h->rows, h->count, &h->room, sizeof *h->rows))
        return false;
    h->rows[h->count++] = *row;
    return true;
}

static const char *text_of(const json_t *event, const char *key)
{
    const char *text = json_string_value(json_object_get(event, key));
    return text ? text : "";
}

static bool read_row(const json_t *event, struct dtp_measured_row *out)
{
    static const char *const columns[] = {
#define AS_COLUMN(field, column) column,
        DTP_MEASURED_NUMBER_TABLE(AS_COLUMN)
#undef AS_COLUMN
    };
    enum dtp_measurement measurement;
    const char *dtype = text_of(event, "dtype");
    if (!dtp_measurement_parse(text_of(event, "measurement"), &measurement))
        return false;
    *out = dtp_measured_row_of(measurement, text_of(event, "what"));
    if (strcmp(out->what, text_of(event, "what")) != 0 || /* cut: none of ours */
        dtp_measured_row_set_text(out, text_of(event, "text"), NULL, 0, NULL) != DTP_OK)
        return false;
    for (int i = 0; i < DTP_MEASURED_COLUMN_COUNT; i++) {
        const json_t *value = json_object_get(event, columns[i]);
        if (json_is_number(value))
            out->number[i] = json_number_value(value);
    }
    return !*dtype || dtp_dtype_parse(dtype, &out->dtype);
}

static void hear_progress(struct dtp_probe_heard *h, const json_t *event)
{
    json_int_t done = json_integer_value(json_object_get(event, "done"));
    json_int_t count = json_integer_value(json_object_get(event, "count"));
    if (done >= 0 && count > 0 && done <= count)
        dtp_progress_draw(&h->progress, (uint64_t)done, (uint64_t)count);
}

static void hear_warning(const struct dtp_probe_heard *h, const json_t *event)
{
    dtp_progress_end(&h->progress);
    struct dtp_faults warning = {0};
    dtp_fault(&warning, DTP_OK, NULL, 0, "warning: %s", text_of(event, "words"));
    fprintf(stderr, "dtplan: %s\n", warning.text[0]);
}

/* What an operation of a step program takes, which is said by the loop beside it. */
static bool is_paced(const struct dtp_measured_row *row)
{
    return dtp_measurement_is_matmul(row->measurement) || row->measurement == DTP_MEASUREMENT_ATTENTION ||
           row->measurement == DTP_MEASUREMENT_KERNEL || row->measurement == DTP_MEASUREMENT_STEP;
}

static void scale_paced(struct dtp_probe_heard *h, double factor)
{
    static const int seconds[] = {DTP_MEASURED_seconds, DTP_MEASURED_low_s, DTP_MEASURED_high_s};
    for (; h->paced < h->count; h->paced++)
        for (size_t k = 0; k < 3 && is_paced(&h->rows[h->paced]); k++)
            h->rows[h->paced].number[seconds[k]] *= factor;
}

static bool hear_pace(struct dtp_probe_heard *h, const json_t *event)
{
    double loop_s = json_number_value(json_object_get(event, "loop_s"));
    double least_s = json_number_value(json_object_get(event, "least_s"));
    if (!(loop_s > 0 && least_s > 0))
        return false;
    scale_paced(h, 1 / loop_s);
    h->loop_s = h->loop_s > 0 ? fmin(h->loop_s, least_s) : least_s;
    return true;
}

bool dtp_probe_heard_join(struct dtp_probe_heard *h)
{
    struct dtp_measured_row row = dtp_measured_row_of(DTP_MEASUREMENT_STEP, DTP_MEASURED_PACE);
    if (!(h->loop_s > 0))
        return true;
    h->paced = 0;
    scale_paced(h, h->loop_s);
    for (int column = DTP_MEASURED_seconds; column <= DTP_MEASURED_high_s; column++)
        row.number[column] = h->loop_s;
    row.number[DTP_MEASURED_samples] = 1;
    return dtp_probe_heard_keep(h, &row);
}

void dtp_probe_hear(void *heard, const char *line)
{
    struct dtp_probe_heard *h = heard;
    struct dtp_measured_row row;
    json_t *event = json_loads(line, 0, NULL);
    const char *kind = text_of(event, "event");
    if (strcmp(kind, "row") == 0)
        h->damaged |= !read_row(event, &row) || !dtp_probe_heard_keep(h, &row);
    else if (strcmp(kind, "progress") == 0)
        hear_progress(h, event);
    else if (strcmp(kind, "pace") == 0)
        h->damaged |= !hear_pace(h, event);
    else if (strcmp(kind, "warning") == 0)
        hear_warning(h, event);
    else if (strcmp(kind, "start") == 0) {
        h->started = true;
        h->gpu = json_is_true(json_object_get(event, "gpu"));
    } else if (strcmp(kind, "end") == 0)
        h->ended = !json_is_true(json_object_get(event, "interrupted"));
    else
        h->damaged |= strcmp(kind, "fault") != 0; /* it says that on standard error itself */
    json_decref(event);
}

bool dtp_probe_heard_about(struct dtp_probe_heard *h, const char *key, const char *value)
{
    struct dtp_measured_row row = dtp_measured_row_of(DTP_MEASUREMENT_ABOUT, key);
    snprintf(row.text, sizeof row.text, "%s", value);
    dtp_make_printable(row.text);
    return dtp_probe_heard_keep(h, &row);
}

const char *dtp_probe_heard_text(const struct dtp_probe_heard *h, const char *key)
{
    for (size_t i = 0; i < h->count; i++)
        if (h->rows[i].measurement == DTP_MEASUREMENT_ABOUT && strcmp(h->rows[i].what, key) == 0)
            return h->rows[i].text;
    return NULL;
}

void dtp_probe_heard_release(struct dtp_probe_heard *h)
{
    free(h->rows);
    h->rows = NULL;
}
