/* Spans of a GPU and its host, added up into the time of a step. */
#ifndef DTP_SPANS_H
#define DTP_SPANS_H

#include "observed/kernel_kind.h"
#include "observed/observed.h"

struct dtp_gpu_span {
    double start_s, end_s;
    uint8_t kind, trait; /* enum dtp_observed_kind, enum dtp_kernel_trait */
};
struct dtp_host_span {
    double start_s, end_s;
};

struct dtp_spans {
    struct dtp_gpu_span *gpu;
    size_t gpu_count, gpu_room;
    struct dtp_host_span *host, *loader, *step, *optimizer; /* steps in order; the optimizer's on the GPU's clock */
    size_t host_count, host_room, loader_count, loader_room, step_count, step_room, optimizer_count, optimizer_room;
    bool on_host; /* `gpu` is what the host computed itself */
};

bool dtp_is_span(double start_s, double end_s);
/* False: no memory. What is no span of time, or ends before it starts, is left out. */
bool dtp_spans_add_gpu(struct dtp_spans *spans, const char *kernel, double start_s, double end_s);
bool dtp_spans_add_kind(struct dtp_spans *spans, struct dtp_kernel_kind kind, double start_s, double end_s);
enum dtp_spans_of { DTP_SPANS_HOST, DTP_SPANS_LOADER, DTP_SPANS_STEP, DTP_SPANS_OPTIMIZER };
bool dtp_spans_add(struct dtp_spans *spans, enum dtp_spans_of of, double start_s, double end_s);
/* Sorts them. Where no steps were said, a step is what lies between the ends of two bursts of the optimizer's kernels.
 * DTP_BAD_INPUT: there is no kernel, or no step. */
enum dtp_status dtp_spans_sum(struct dtp_spans *spans, const char *path, struct dtp_observed_time *out,
                              struct dtp_faults *faults);
void dtp_spans_release(struct dtp_spans *spans);

#endif
