/* The host device: plain C and the BLAS, everything done as it is issued, but for transfers between the stages of a
 * pipeline, whose streams are lanes (ranks/lane.h). Its events are readings of the clock. */
#include "device/device.h"

#include "device/host_matmul.h"
#include "kernels/element.h"
#include "ranks/lane.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define PAGE_BYTES 4096u

struct host_device {
    struct dtp_device device;
    struct dtp_host_matmul matmul;
    struct dtp_lane *lanes[DTP_STREAM_COUNT]; /* of streams that carry transfers, once they were asked for */
    pthread_mutex_t lock;                     /* of all events */
    pthread_cond_t reached;
};

/* How often it was recorded, and how often a stream has come to that. */
struct host_event {
    struct timespec when;
    uint64_t recorded, reached;
    struct dtp_lane *lane; /* where it was recorded last; NULL: in line */
};

static struct host_device *own(struct dtp_device *device)
{
    return (struct host_device *)device;
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

static enum dtp_status memory(struct dtp_device *device, struct dtp_device_memory *out, struct dtp_faults *faults)
{
    (void)device;
    long page = sysconf(_SC_PAGESIZE), pages = sysconf(_SC_PHYS_PAGES), available = sysconf(_SC_AVPHYS_PAGES);
    if (page <= 0 || pages <= 0 || available <= 0)
        return dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "the system does not say how much memory it has");
    out->total_bytes = (uint64_t)pages * (uint64_t)page;
    out->free_bytes = (uint64_t)available * (uint64_t)page;
    return DTP_OK;
}

static enum dtp_status allocate(struct dtp_device *device, uint64_t bytes, void **out, struct dtp_faults *faults)
{
    struct dtp_device_memory machine;
    *out = NULL;
    enum dtp_status status = memory(device, &machine, faults);
    if (status != DTP_OK)
        return status;
    if (bytes > machine.total_bytes)
        return dtp_fault(
            faults, DTP_NO, NULL, 0,
            "the host device is asked for %.2f GiB, this machine has %.2f GiB; take a smaller model, batch or sequence",
            (double)bytes / 0x1p30, (double)machine.total_bytes / 0x1p30);
    if (posix_memalign(out, PAGE_BYTES, bytes ? bytes : PAGE_BYTES) != 0)
        return dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "out of memory: %" PRIu64 " bytes for an arena", bytes);
    return DTP_OK;
}

static void release(struct dtp_device *device, void *arena)
{
    (void)device;
    free(arena);
}

static int copy(struct dtp_device *device, void *to, const void *from, uint64_t bytes, void *stream)
{
    (void)device;
    (void)stream;
    memmove(to, from, bytes);
    return 0;
}

/* ---- order ------------------------------------------------------------------------------------------------------- */

/* NULL, in line, also where there is no thread for a lane: dtp_program_set_verify says whether that can go on. */
static void *stream_of(struct dtp_device *device, enum dtp_stream stream)
{
    struct host_device *host = own(device);
    if (dtp_stream_transfers(stream) && !host->lanes[stream])
        dtp_lane_create(&host->lanes[stream], NULL);
    return host->lanes[stream];
}

static enum dtp_status event_create(struct dtp_device *device, bool timed, void **out, struct dtp_faults *faults)
{
    (void)device;
    (void)timed;
    *out = calloc(1, sizeof(struct host_event));
    return *out ? DTP_OK : dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "out of memory");
}

static void event_destroy(struct dtp_device *device, void *event)
{
    (void)device;
    free(event);
}

/* A stream's place in the count of an event. */
struct ticket {
    struct host_device *host;
    struct host_event *event;
    uint64_t number;
};

static int reach(void *argument)
{
    const struct ticket *ticket = argument;
    struct timespec now;
    int code = clock_gettime(CLOCK_MONOTONIC, &now);
    pthread_mutex_lock(&ticket->host->lock);
    ticket->event->when = now;
    ticket->event->reached = ticket->number;
    pthread_cond_broadcast(&ticket->host->reached);
    pthread_mutex_unlock(&ticket->host->lock);
    return code;
}

static int await(void *argument)
{
    const struct ticket *ticket = argument;
    pthread_mutex_lock(&ticket->host->lock);
    while (ticket->event->reached < ticket->number)
        pthread_cond_wait(&ticket->host->reached, &ticket->host->lock);
    pthread_mutex_unlock(&ticket->host->lock);
    return 0;
}

static int record(struct dtp_device *device, void *event, void *stream)
{
    struct host_event *e = event;
    if (!stream && !e->lane) /* nobody else looks at it */
        return clock_gettime(CLOCK_MONOTONIC, &e->when);
    struct ticket ticket = {own(device), e, ++e->recorded};
    e->lane = stream;
    return stream ? dtp_lane_call(stream, reach, &ticket, sizeof ticket) : reach(&ticket);
}

/* Where the event's lane has failed, what waits for it must not go on. */
static int finish(struct dtp_device *device, void *event)
{
    struct host_event *e = event;
    struct ticket ticket = {own(device), e, e->recorded};
    if (!e->lane)
        return 0;
    await(&ticket);
    return dtp_lane_code(e->lane) ? DTP_HOST_LANE_FAILED : 0;
}

static int wait_for(struct dtp_device *device, void *stream, void *event)
{
    struct host_event *e = event;
    struct ticket ticket = {own(device), e, e->recorded};
    if (!stream)
        return finish(device, event);
    return e->lane && e->lane != stream ? dtp_lane_call(stream, await, &ticket, sizeof ticket) : 0;
}

static int elapsed(struct dtp_device *device, void *from, void *to, double *out_s)
{
    const struct host_event *begin = from, *end = to;
    (void)device;
    *out_s = (double)(end->when.tv_sec - begin->when.tv_sec) + 1e-9 * (double)(end->when.tv_nsec - begin->when.tv_nsec);
    return 0;
}

static int synchronise(struct dtp_device *device)
{
    struct host_device *host = own(device);
    int code = 0;
    for (int s = 0; s < DTP_STREAM_COUNT; s++)
        if (host->lanes[s] && dtp_lane_drain(host->lanes[s]))
            code = DTP_HOST_LANE_FAILED;
    return code;
}

struct marking {
    uint32_t *slot, value;
};

static int set_mark(void *argument)
{
    const struct marking *marking = argument;
    *(volatile uint32_t *)marking->slot = marking->value;
    return 0;
}

static int mark(struct dtp_device *device, uint32_t *slot, uint32_t value, void *stream)
{
    struct marking marking = {slot, value};
    (void)device;
    return stream ? dtp_lane_call(stream, set_mark, &marking, sizeof marking) : set_mark(&marking);
}

static int host_call(struct dtp_device *device, void (*call)(void *argument), void *argument, void *stream)
{
    (void)device;
    (void)stream;
    call(argument);
    return 0;
}

/* ---- capture ----------------------------------------------------------------------------------------------------- */

static enum dtp_status no_capture(struct dtp_faults *faults)
{
    return dtp_fault(faults, DTP_BAD_INPUT, NULL, 0,
                     "the host device has no graphs to capture a step into; run with --no-cuda-graph");
}

static enum dtp_status capture_begin(struct dtp_device *device, struct dtp_faults *faults)
{
    (void)device;
    return no_capture(faults);
}

static enum dtp_status capture_end(struct dtp_device *device, void **out_graph, struct dtp_faults *faults)
{
    (void)device;
    *out_graph = NULL;
    return no_capture(faults);
}

static int launch(struct dtp_device *device, void *graph)
{
    (void)device;
    (void)graph;
    return DTP_HOST_UNPREPARED;
}

static void graph_destroy(struct dtp_device *device, void *graph)
{
    (void)device;
    (void)graph;
}

/* ---- computing --------------------------------------------------------------------------------------------------- */

static int matmul(void *self, const struct dtp_matmul_args *arguments, void *stream)
{
    (void)stream;
    return dtp_host_matmul(&own(self)->matmul, arguments);
}

/* Expert by expert. */
static int grouped_matmul(void *self, const struct dtp_grouped_matmul_args *arguments, void *stream)
{
    int code = 0;
    (void)stream;
    for (uint32_t e = 0; e < arguments->experts && !code; e++) {
        struct dtp_matmul_args one = dtp_grouped_matmul_of(arguments, e);
        if (one.m)
            code = dtp_host_matmul(&own(self)->matmul, &one);
    }
    return code;
}

/* One expert may get all rows. */
static enum dtp_status prepare_grouped(struct host_device *host, const struct dtp_grouped_matmul_args *arguments,
                                       struct dtp_faults *faults)
{
    struct dtp_matmul_args all = dtp_grouped_matmul_of_rows(arguments, 0, 0, arguments->rows);
    return dtp_host_matmul_prepare(&host->matmul, &all, faults);
}

static enum dtp_status prepare(struct dtp_device *device, enum dtp_kernel kernel, const void *arguments,
                               struct dtp_faults *faults)
{
    if (kernel == DTP_KERNEL_grouped_matmul)
        return prepare_grouped(own(device), arguments, faults);
    return kernel == DTP_KERNEL_matmul ? dtp_host_matmul_prepare(&own(device)->matmul, arguments, faults) : DTP_OK;
}

static const char *error_text(struct dtp_device *device, int code)
{
    (void)device;
    switch (code) {
    case DTP_HOST_UNPREPARED: return "the host device was asked for what it was not prepared for";
    case DTP_HOST_LANE_FAILED: return "a transfer to or from another stage failed: its rank gave up";
    case DTP_REFERENCE_NO_MEMORY: return "out of memory inside a computation of the host device";
    default: return "a computation of the host device failed";
    }
}

static void destroy(struct dtp_device *device)
{
    if (!device)
        return;
    for (int s = 0; s < DTP_STREAM_COUNT; s++)
        dtp_lane_destroy(own(device)->lanes[s]);
    pthread_cond_destroy(&own(device)->reached);
    pthread_mutex_destroy(&own(device)->lock);
    dtp_host_matmul_release(&own(device)->matmul);
    free(device);
}

static const struct dtp_device_verbs verbs = {.destroy = destroy,
                                              .memory = memory,
                                              .allocate = allocate,
                                              .release = release,
                                              .allocate_host = allocate,
                                              .release_host = release,
                                              .copy = copy,
                                              .stream = stream_of,
                                              .event_create = event_create,
                                              .event_destroy = event_destroy,
                                              .record = record,
                                              .wait = wait_for,
                                              .finish = finish,
                                              .elapsed = elapsed,
                                              .synchronise = synchronise,
                                              .mark = mark,
                                              .host_call = host_call,
                                              .capture_begin = capture_begin,
                                              .capture_end = capture_end,
                                              .launch = launch,
                                              .graph_destroy = graph_destroy,
                                              .prepare = prepare,
                                              .error_text = error_text};

enum dtp_status dtp_device_host_create(const struct dtp_device_options *options, struct dtp_device **out,
                                       struct dtp_faults *faults)
{
    *out = NULL;
    if (options->matmul_sms)
        return dtp_fault(faults, DTP_BAD_INPUT, NULL, 0,
                         "--matmul-sms is a choice of GPUs; leave it out with --device host");
    struct host_device *host = calloc(1, sizeof *host);
    if (!host)
        return dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "out of memory");
    host->device.verbs = &verbs;
    pthread_mutex_init(&host->lock, NULL);
    pthread_cond_init(&host->reached, NULL);
#define X(name, args) host->device.kernels.name = dtp_reference_##name;
    DTP_KERNEL_TABLE(X)
#undef X
    host->device.kernels.self = host;
    host->device.kernels.matmul = matmul;
    host->device.kernels.grouped_matmul = grouped_matmul;
    uint32_t threads = dtp_host_matmul_threads(options->threads);
    snprintf(host->device.name, sizeof host->device.name, "host (%" PRIu32 " thread%s)", threads,
             threads == 1 ? "" : "s");
    snprintf(host->device.libraries, sizeof host->device.libraries, "%s", dtp_host_matmul_library());
    *out = &host->device;
    return DTP_OK;
}
