/* Copies between pinned host memory and the device: up, down, both at once; one rank alone and all of a machine. */
#include "probe/prober.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#define LEAST_BYTES (UINT64_C(1) << 20)
#define LEAST_HOST_BYTES (UINT64_C(4) << 10)
#define MOST_BYTES (UINT64_C(1) << 30)
#define MOST_HOST_BYTES (UINT64_C(4) << 20)
#define STEP 4
#define MOST_SAMPLES 7
#define LEAST_SAMPLES 3
#define MOST_S 0.3

static const char *const ways[] = {"upload", "download", "both"};
enum { UPLOAD, DOWNLOAD, BOTH, WAYS };

struct copies {
    struct dtp_prober *p;
    void *begin, *end, *fork, *join; /* events; the last two are not timed */
    int way;
    bool everyone; /* all ranks of the machine copy; else its first */
    uint64_t bytes;
};

static uint64_t most_bytes(const struct dtp_prober *p)
{
    return p->of->settings->cuda ? MOST_BYTES : MOST_HOST_BYTES;
}

/* Copies up read the first half of host memory, copies down that run beside them write the second. */
uint64_t dtp_probe_copy_bytes(const struct dtp_prober *p)
{
    return most_bytes(p);
}

uint64_t dtp_probe_copy_count(const struct dtp_prober *p)
{
    return (dtp_probe_both_ways_of_sharing(p) ? 2 : 1) * WAYS;
}

/* ---- one copy ---------------------------------------------------------------------------------------------------- */

static int copy_up(const struct copies *c, void *stream)
{
    return c->p->device->verbs->copy(c->p->device, c->p->device_base, c->p->host_base, c->bytes, stream);
}

/* Copies down over what was copied up where only one way is measured, beside it where both go at once. */
static int copy_down(const struct copies *c, void *stream)
{
    bool apart = c->way == BOTH;
    return c->p->device->verbs->copy(c->p->device, c->p->host_base + (apart ? c->p->host_bytes / 2 : 0),
                                     c->p->device_base + (apart ? c->p->device_bytes / 2 : 0), c->bytes, stream);
}

static int issue(const struct copies *c)
{
    const struct dtp_device_verbs *verbs = c->p->device->verbs;
    struct dtp_device *device = c->p->device;
    void *up = verbs->stream(device, DTP_STREAM_UPLOAD), *down = verbs->stream(device, DTP_STREAM_DOWNLOAD);
    int code = verbs->record(device, c->begin, up);
    if (!code && c->way != UPLOAD)
        code = verbs->record(device, c->fork, up);
    if (!code && c->way != UPLOAD)
        code = verbs->wait(device, down, c->fork);
    if (!code && c->way != DOWNLOAD)
        code = copy_up(c, up);
    if (!code && c->way != UPLOAD)
        code = copy_down(c, down);
    if (!code && c->way != UPLOAD)
        code = verbs->record(device, c->join, down);
    if (!code && c->way != UPLOAD)
        code = verbs->wait(device, up, c->join);
    return code ? code : verbs->record(device, c->end, up);
}

static enum dtp_status run_once(void *of, double *out)
{
    const struct copies *c = of;
    const struct dtp_device_verbs *verbs = c->p->device->verbs;
    bool takes_part = c->everyone || c->p->of->ranks.local_rank == 0;
    enum dtp_status status = dtp_prober_barrier(c->p);
    *out = (double)NAN;
    if (!takes_part || status != DTP_OK)
        return status;
    int code = issue(c);
    code = code ? code : verbs->synchronise(c->p->device);
    code = code ? code : verbs->elapsed(c->p->device, c->begin, c->end, out);
    return code ? dtp_prober_device_failed(c->p, code, "a copy could not be timed") : DTP_OK;
}

/* ---- is it right? ------------------------------------------------------------------------------------------------ */

/* Random numbers down, a sample of them kept, all up again; the sample wiped here and read back. */
static enum dtp_status check(struct copies *c)
{
    enum { SAMPLE = 4096 };
    struct dtp_prober *p = c->p;
    const struct dtp_device_verbs *verbs = p->device->verbs;
    unsigned char kept[SAMPLE];
    uint64_t bytes = most_bytes(p) < p->device_bytes ? most_bytes(p) : p->device_bytes;
    char *sample = p->host_base + bytes - SAMPLE;
    void *stream = verbs->stream(p->device, DTP_STREAM_UPLOAD);
    int code = dtp_prober_fill(p, p->device_base, bytes / 4, 0, 7 + p->of->ranks.rank, DTP_ELEMENT_FP32);
    code = code ? code : verbs->synchronise(p->device);
    for (int round = 0; round < 2 && !code; round++) {
        code = verbs->copy(p->device, p->host_base, p->device_base, bytes, stream);
        code = code ? code : verbs->synchronise(p->device);
        if (round == 0 && !code) {
            memcpy(kept, sample, SAMPLE);
            code = verbs->copy(p->device, p->device_base, p->host_base, bytes, stream);
            code = code ? code : verbs->synchronise(p->device);
            memset(sample, 0, SAMPLE);
        }
    }
    if (code)
        return dtp_prober_device_failed(p, code, "copies between host and device");
    if (memcmp(kept, sample, SAMPLE) != 0)
        return dtp_fault(p->faults, DTP_NO, NULL, 0,
                         "%" PRIu64 " bytes came back from the device changed: its copies cannot be trusted", bytes);
    return DTP_OK;
}

/* ---- sizes ------------------------------------------------------------------------------------------------------- */

static struct dtp_measured_row row_of(const struct copies *c)
{
    struct dtp_measured_row row = dtp_measured_row_of(DTP_MEASUREMENT_COPY, ways[c->way]);
    uint32_t local = c->p->ranks / c->p->nodes;
    row.number[DTP_MEASURED_bytes] = (double)c->bytes;
    row.number[DTP_MEASURED_ranks] = c->everyone ? local : 1;
    return row;
}

static enum dtp_status measure_size(struct copies *c)
{
    const struct dtp_measured_row row = row_of(c);
    double samples[MOST_SAMPLES], first = 0;
    uint32_t count;
    enum dtp_status status = run_once(c, &first);
    double fit = MOST_S / (first > 0 ? first : 1e-9);
    count = fit < LEAST_SAMPLES ? LEAST_SAMPLES : fit > MOST_SAMPLES ? MOST_SAMPLES : (uint32_t)fit;
    if (status == DTP_OK && c->p->world.control)
        status = dtp_control_broadcast(c->p->world.control, &count, sizeof count, c->p->faults);
    if (status == DTP_OK)
        status = dtp_prober_sample(c->p, &row, count, run_once, c, samples);
    return status == DTP_OK ? dtp_prober_add(c->p, &row, samples, count) : status;
}

static enum dtp_status measure_sizes(struct copies *c)
{
    uint64_t most = most_bytes(c->p) / (c->way == BOTH ? 2 : 1);
    enum dtp_status status = DTP_OK;
    for (c->bytes = c->p->of->settings->cuda ? LEAST_BYTES : LEAST_HOST_BYTES; c->bytes <= most && status == DTP_OK;
         c->bytes *= STEP)
        if (c->bytes <= c->p->device_bytes / 2)
            status = measure_size(c);
    return status;
}

static enum dtp_status measure_ways(struct copies *c)
{
    char words[64];
    enum dtp_status status = DTP_OK;
    for (int everyone = dtp_probe_both_ways_of_sharing(c->p) ? 0 : c->p->ranks > 1;
         everyone < (c->p->ranks > 1 ? 2 : 1); everyone++)
        for (c->way = UPLOAD; c->way < WAYS && status == DTP_OK; c->way++) {
            c->everyone = everyone;
            snprintf(words, sizeof words, "%s, %s", ways[c->way], everyone ? "all at once" : "one rank alone");
            if (!dtp_prober_next(c->p, words, &status))
                return status;
            status = measure_sizes(c);
        }
    return status;
}

enum dtp_status dtp_probe_copies(struct dtp_prober *p)
{
    struct copies c = {.p = p};
    const struct dtp_device_verbs *verbs = p->device->verbs;
    void **const events[] = {&c.begin, &c.end, &c.fork, &c.join};
    enum dtp_status status = DTP_OK;
    for (int i = 0; i < 4 && status == DTP_OK; i++)
        status = verbs->event_create(p->device, i < 2, events[i], p->faults);
    if (status == DTP_OK)
        status = check(&c);
    if (status == DTP_OK)
        status = measure_ways(&c);
    for (int i = 0; i < 4; i++)
        if (*events[i])
            verbs->event_destroy(p->device, *events[i]);
    return status;
}
