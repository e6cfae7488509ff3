#include "observed/observed.h"

#include "observed/host_ops.h"
#include "observed/spans.h"

#include <jansson.h>
#include <math.h>
#include <string.h>

/* Complete events (ph X) have ts and dur in microseconds (the trace event format; Kineto's output_json.cpp). */
static bool add_event(struct dtp_spans *spans, const json_t *event)
{
    const char *phase = json_string_value(json_object_get(event, "ph"));
    const char *category = json_string_value(json_object_get(event, "cat"));
    const char *name = json_string_value(json_object_get(event, "name"));
    if (!phase || strcmp(phase, "X") != 0 || !category || !name)
        return true;
    double start_s = 1e-6 * json_number_value(json_object_get(event, "ts"));
    double end_s = start_s + 1e-6 * json_number_value(json_object_get(event, "dur"));
    if (strcmp(category, "kernel") == 0 || strcmp(category, "gpu_memcpy") == 0 || strcmp(category, "gpu_memset") == 0)
        return dtp_spans_add_gpu(spans, name, start_s, end_s);
    if (strcmp(category, "gpu_user_annotation") == 0)
        return strncmp(name, "Optimizer.step", 14) != 0 || dtp_spans_add(spans, DTP_SPANS_OPTIMIZER, start_s, end_s);
    bool annotation = strcmp(category, "user_annotation") == 0;
    if (annotation && strncmp(name, "ProfilerStep", 12) == 0)
        return dtp_spans_add(spans, DTP_SPANS_STEP, start_s, end_s);
    if (annotation && spans->on_host && strncmp(name, "Optimizer.step", 14) == 0)
        return dtp_spans_add(spans, DTP_SPANS_OPTIMIZER, start_s, end_s);
    if (strncmp(name, "enumerate(DataLoader)", 21) == 0)
        return dtp_spans_add(spans, DTP_SPANS_LOADER, start_s, end_s);
    if (strcmp(category, "cpu_op") == 0 || strncmp(category, "cuda_", 5) == 0)
        return dtp_spans_add(spans, DTP_SPANS_HOST, start_s, end_s);
    return true; /* Python's own functions and annotations may span anything */
}

static bool has_kernels(const json_t *events)
{
    const json_t *event;
    size_t i;
    json_array_foreach(events, i, event)
    {
        const char *category = json_string_value(json_object_get(event, "cat"));
        if (category && strcmp(category, "kernel") == 0)
            return true;
    }
    return false;
}

enum dtp_status dtp_read_kineto(const char *path, const char *text, size_t bytes, struct dtp_observed *out,
                                struct dtp_faults *faults)
{
    json_error_t error;
    struct dtp_spans spans = {0};
    json_t *trace = json_loadb(text, bytes, 0, &error), *events, *event;
    size_t i;
    if (!trace)
        return dtp_fault(faults, DTP_BAD_INPUT, path, error.line > 0 ? (size_t)error.line : 0,
                         "is no JSON of a profiler: %s", error.text);
    events = json_is_array(trace) ? trace : json_object_get(trace, "traceEvents");
    enum dtp_status status = json_is_array(events)
                                 ? DTP_OK
                                 : dtp_fault(faults, DTP_BAD_INPUT, path, 1,
                                             "has no traceEvents; prof.export_chrome_trace(FILE) of PyTorch's profiler "
                                             "writes them");
    spans.on_host = status == DTP_OK && !has_kernels(events);
    json_array_foreach(events, i, event)
    {
        if (status == DTP_OK && !add_event(&spans, event))
            status = dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "out of memory");
    }
    if (status == DTP_OK && spans.on_host && !dtp_spans_add_host_ops(&spans, events))
        status = dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "out of memory");
    json_decref(trace);
    out->tool = spans.on_host ? "PyTorch's profiler: operators of a host" : "PyTorch's profiler";
    out->what = DTP_OBSERVED_TIME;
    if (status == DTP_OK)
        status = dtp_spans_sum(&spans, path, &out->time, faults);
    dtp_spans_release(&spans);
    return status;
}
