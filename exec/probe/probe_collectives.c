/* Collectives alone, over sizes and groups. All instances of a group run at the same time, as they do in a step. */
#include "probe/sweep.h"

#include "base/quantile.h"
#include "kernels/element.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define LEAST_SENT_BYTES (UINT64_C(64) << 10)
#define LEAST_SENT_HOST_BYTES (UINT64_C(4) << 10)
#define MOST_SENT_BYTES (UINT64_C(1) << 30)
#define MOST_SENT_HOST_BYTES (UINT64_C(16) << 20)
#define STEP 4 /* from one size to the next */
#define MOST_GROUPS 16
#define MOST_SAMPLES 9
#define LEAST_SAMPLES 3
#define MOST_S 0.6     /* of one size; a slow link gets fewer samples */
#define HOST_SHARE 0.2 /* of the seconds that a host is measured */
#define LEAST_SIZES 3
#define TOO_SLOW_S 0.4                   /* of one collective: larger ones are not tried */
#define TRAIN 4                          /* of collectives across nodes, one behind the other */
#define AHEAD_BYTES (UINT64_C(64) << 20) /* zeroed on the stream first: the host issues the collective meanwhile */

static const struct dtp_sweep_kind kinds[] = {
    {DTP_ALL_GATHER, DTP_CARRIED_PLAIN, DTP_BF16},  {DTP_REDUCE_SCATTER, DTP_CARRIED_PLAIN, DTP_BF16},
    {DTP_ALL_REDUCE, DTP_CARRIED_PLAIN, DTP_BF16},  {DTP_SEND_RECV, DTP_CARRIED_PLAIN, DTP_BF16},
    {DTP_SEND_RECV, DTP_CARRIED_AROUND, DTP_BF16},  {DTP_ALL_TO_ALL, DTP_CARRIED_PLAIN, DTP_BF16},
    {DTP_ALL_TO_ALL, DTP_CARRIED_UNEVEN, DTP_BF16}, {DTP_REDUCE_SCATTER, DTP_CARRIED_PLAIN, DTP_FP32},
    {DTP_ALL_REDUCE, DTP_CARRIED_PLAIN, DTP_FP32}};
enum { HOST_KINDS = sizeof kinds / sizeof *kinds, GPU_KINDS = HOST_KINDS - 2 };

/* ---- groups and sizes -------------------------------------------------------------------------------------------- */

static void add_group(struct dtp_program_group *groups, uint32_t *count, uint32_t ranks, uint32_t stride)
{
    for (uint32_t i = 0; i < *count; i++)
        if (groups[i].ranks == ranks && groups[i].stride == stride)
            return;
    if (ranks > 1 && *count < MOST_GROUPS)
        groups[(*count)++] = (struct dtp_program_group){ranks, stride};
}

/* Neighbours by powers of two, all of them, and the two kinds of hybrid sharding: a node's or half of all, and the
 * ranks that hold the same shard. */
static uint32_t groups_of(const struct dtp_prober *p, struct dtp_program_group groups[MOST_GROUPS])
{
    uint32_t count = 0, half = p->nodes > 1 ? p->ranks / p->nodes : p->ranks / 2;
    for (uint32_t ranks = 2; ranks < p->ranks; ranks *= 2)
        if (p->ranks % ranks == 0)
            add_group(groups, &count, ranks, 1);
    add_group(groups, &count, p->ranks, 1);
    if (half > 0 && p->ranks % half == 0) {
        add_group(groups, &count, half, 1);
        add_group(groups, &count, p->ranks / half, half);
    }
    return count;
}

static uint32_t kind_count(const struct dtp_prober *p)
{
    return p->of->settings->cuda ? GPU_KINDS : HOST_KINDS;
}

static uint64_t most_sent(const struct dtp_prober *p)
{
    return p->of->settings->cuda ? MOST_SENT_BYTES : MOST_SENT_HOST_BYTES;
}

uint64_t dtp_probe_collective_bytes(const struct dtp_prober *p)
{
    return p->ranks > 1 ? 2 * most_sent(p) + AHEAD_BYTES : 0;
}

uint64_t dtp_probe_collective_count(const struct dtp_prober *p)
{
    struct dtp_program_group groups[MOST_GROUPS];
    const uint32_t count = p->ranks > 1 ? groups_of(p, groups) : 0;
    uint64_t sweeps = 0;
    for (uint32_t i = 0; i < count; i++)
        for (uint32_t k = 0; k < kind_count(p); k++)
            sweeps += dtp_sweep_has(&kinds[k], &groups[i]);
    return sweeps;
}

static uint64_t sent_bytes(const struct dtp_sweep *s)
{
    uint64_t ring = s->whole_bytes / s->group->ranks * (s->group->ranks - 1);
    if (dtp_sweep_moves(s->kind))
        return dtp_move_sent_bytes(s);
    return s->kind->collective == DTP_ALL_REDUCE ? 2 * ring : ring;
}

/* A whole of which a rank sends about that much: equal parts of whole pages. */
static uint64_t whole_of(const struct dtp_sweep_kind *kind, uint64_t bytes, uint32_t ranks)
{
    if (dtp_sweep_moves(kind))
        return dtp_move_whole_of(kind, bytes, ranks);
    uint64_t part = bytes / (ranks - 1) / (kind->collective == DTP_ALL_REDUCE ? 2 : 1);
    return (part > 4096 ? part / 4096 * 4096 : 4096) * ranks;
}

/* ---- one collective ---------------------------------------------------------------------------------------------- */

static uint64_t element_bytes(const struct dtp_sweep *s)
{
    return dtp_element_bytes(dtp_bind_element(s->kind->dtype));
}

static struct dtp_group_place place_of(const struct dtp_sweep *s)
{
    return dtp_group_place(s->group, s->p->of->ranks.rank);
}

/* The collective works in place: this rank's part of what is gathered or scattered lies where it belongs in the whole.
 */
static struct dtp_collective_args arguments_of(const struct dtp_sweep *s)
{
    struct dtp_group_place place = place_of(s);
    char *base = s->p->device_base, *part = base + s->whole_bytes / place.ranks * place.index;
    if (dtp_sweep_moves(s->kind))
        return dtp_move_arguments(s);
    return (struct dtp_collective_args){.collective = s->kind->collective,
                                        .group = s->group_index,
                                        .input = s->kind->collective == DTP_ALL_GATHER ? part : base,
                                        .result = s->kind->collective == DTP_REDUCE_SCATTER ? part : base,
                                        .bytes = s->whole_bytes,
                                        .element = dtp_bind_element(s->kind->dtype)};
}

/* Random numbers that other ranks can tell: of a gather the elements' own, of a sum those of the rank. */
static int fill(const struct dtp_sweep *s)
{
    struct dtp_group_place place = place_of(s);
    uint64_t count = s->whole_bytes / element_bytes(s), part = count / place.ranks;
    char *base = s->p->device_base;
    if (dtp_sweep_moves(s->kind))
        return dtp_move_fill(s);
    if (s->kind->collective == DTP_ALL_GATHER)
        return dtp_prober_fill(s->p, base + part * place.index * element_bytes(s), part, part * place.index,
                               place.first, dtp_bind_element(s->kind->dtype));
    return dtp_prober_fill(s->p, base, count, 0, 1 + s->p->of->ranks.rank, dtp_bind_element(s->kind->dtype));
}

static int issue(const struct dtp_sweep *s)
{
    struct dtp_collective_args arguments = arguments_of(s);
    struct dtp_communicator *communicator = s->p->world.communicator;
    void *stream = s->p->device->verbs->stream(s->p->device, DTP_STREAM_GATHER);
    return communicator->verbs->collective(communicator, &arguments, stream);
}

static const char *text_of(const struct dtp_sweep *s)
{
    return dtp_measured_collective_text(s->kind->collective, s->kind->carried);
}

static enum dtp_status collective_failed(const struct dtp_sweep *s, int code)
{
    struct dtp_communicator *communicator = s->p->world.communicator;
    return dtp_fault(s->p->faults, DTP_ENVIRONMENT, NULL, 0, "%s of %" PRIu64 " bytes over %" PRIu32 " ranks: %s",
                     text_of(s), s->whole_bytes, s->group->ranks, communicator->verbs->error_text(communicator, code));
}

/* ---- is it right? ------------------------------------------------------------------------------------------------ */

#define WINDOW 1024 /* elements looked at in a rank's part */

/* What a run of `count` elements of a result must be: those from `first` on of the tensor that a rank had, or the sum
 * of all ranks'. */
struct wanted {
    uint64_t first;
    size_t count;
    uint32_t tensor;
    bool sum;
};

static int expect(const struct dtp_sweep *s, const struct wanted *wanted, float *out)
{
    struct dtp_group_place place = place_of(s);
    float one[WINDOW];
    memset(out, 0, WINDOW * sizeof *out);
    for (uint32_t r = 0; r < (wanted->sum ? place.ranks : 1); r++) {
        struct dtp_initialise_args a = {.values = one,
                                        .count = wanted->count,
                                        .first_element = wanted->first,
                                        .seed = 1,
                                        .tensor = wanted->tensor + (wanted->sum ? r * place.stride : 0),
                                        .deviation = 1,
                                        .element = DTP_ELEMENT_FP32};
        int code = dtp_reference_initialise(NULL, &a, NULL);
        if (code)
            return code;
        for (size_t i = 0; i < wanted->count; i++)
            out[i] += one[i];
    }
    return 0;
}

/* bf16 has 8 bits: each of `ranks` terms and each partial sum of the ring is rounded once, by 2^-9 of what is at most
 * some five deviations a term. */
static bool near(const struct dtp_sweep *s, float wanted, float got)
{
    const bool sum = s->kind->collective == DTP_REDUCE_SCATTER || s->kind->collective == DTP_ALL_REDUCE;
    return fabsf(wanted - got) <= 0x1p-8f * 5 * (float)s->group->ranks * (sum ? 2 : 1);
}

/* `at`: where the run lies, an element from the base on. */
static enum dtp_status check_window(const struct dtp_sweep *s, uint64_t at, const struct wanted *of)
{
    struct dtp_prober *p = s->p;
    const struct dtp_device_verbs *verbs = p->device->verbs;
    float wanted[WINDOW];
    int code = verbs->copy(p->device, p->host_base, p->device_base + at * element_bytes(s),
                           of->count * element_bytes(s), verbs->stream(p->device, DTP_STREAM_GATHER));
    code = code ? code : verbs->synchronise(p->device);
    if (code)
        return dtp_prober_device_failed(p, code, "a collective's result could not be read");
    if (expect(s, of, wanted))
        return dtp_fault(p->faults, DTP_ENVIRONMENT, NULL, 0, "out of memory");
    for (size_t i = 0; i < of->count; i++) {
        float got = (float)dtp_load(p->host_base, dtp_bind_element(s->kind->dtype), i);
        if (!near(s, wanted[i], got))
            return dtp_fault(
                p->faults, DTP_NO, NULL, 0,
                "%s of %" PRIu64 " bytes over %" PRIu32 " ranks %" PRIu32 " apart gave %g for element %" PRIu64
                ", not %g: nothing that this machine's collectives return can be trusted",
                text_of(s), s->whole_bytes, s->group->ranks, s->group->stride, (double)got, at + i, (double)wanted[i]);
    }
    return DTP_OK;
}

/* The end of what came from each rank. */
static enum dtp_status check_moved(const struct dtp_sweep *s)
{
    const struct dtp_group_place place = place_of(s);
    const uint64_t result = s->whole_bytes / element_bytes(s);
    enum dtp_status status = DTP_OK;
    for (uint32_t r = 0; r < place.ranks && status == DTP_OK; r++) {
        uint64_t at, from, count;
        dtp_move_received(s, r, &at, &from, &count);
        const uint64_t window = count < WINDOW ? count : WINDOW, skipped = count - window;
        const struct wanted of = {from + skipped, window, 1 + place.first + r * place.stride, false};
        if (count)
            status = check_window(s, result + at + skipped, &of);
    }
    return status;
}

/* A window at the end of every part that this rank received; of a scattered sum there is only its own. */
static enum dtp_status check(const struct dtp_sweep *s)
{
    struct dtp_group_place place = place_of(s);
    uint64_t part = s->whole_bytes / element_bytes(s) / place.ranks;
    const bool gather = s->kind->collective == DTP_ALL_GATHER;
    enum dtp_status status = DTP_OK;
    if (dtp_sweep_moves(s->kind))
        return check_moved(s);
    for (uint32_t r = 0; r < place.ranks && status == DTP_OK; r++) {
        const uint64_t first = part * (r + 1) - WINDOW;
        const struct wanted of = {first, WINDOW, gather ? place.first : 1 + place.first, !gather};
        if (s->kind->collective != DTP_REDUCE_SCATTER || r == place.index)
            status = check_window(s, first, &of);
    }
    return status;
}

/* ---- one size ---------------------------------------------------------------------------------------------------- */

/* Bytes of device memory that the sweep takes at this size, from the prober's base on. */
static uint64_t room_of(const struct dtp_sweep *s)
{
    return dtp_sweep_moves(s->kind) ? dtp_move_room_bytes(s) : s->whole_bytes;
}

/* Filled anew each time where it adds up, so that sums stay numbers. All ranks are there when it begins. Seconds of
 * each of `count`. */
static enum dtp_status run_train(struct dtp_sweep *s, int count, double *out)
{
    struct dtp_prober *p = s->p;
    const struct dtp_device_verbs *verbs = p->device->verbs;
    void *stream = verbs->stream(p->device, DTP_STREAM_GATHER);
    int code = s->filled ? 0 : fill(s);
    s->filled = dtp_sweep_moves(s->kind);
    code = code ? code : verbs->synchronise(p->device);
    if (code)
        return dtp_prober_device_failed(p, code, "random numbers for a collective");
    enum dtp_status status = dtp_prober_barrier(p);
    if (status != DTP_OK)
        return status;
    const uint64_t used = room_of(s);
    uint64_t rest = p->device_bytes - used;
    if (!p->device->asynchronous) /* which would have done it by then */
        rest = 0;
    struct dtp_zero_args ahead = {p->device_base + used, rest < AHEAD_BYTES ? rest : AHEAD_BYTES};
    code = ahead.bytes > 0 ? p->device->kernels.zero(p->device->kernels.self, &ahead, stream) : 0;
    code = code ? code : verbs->record(p->device, s->events[0], stream);
    int failed = 0;
    for (int i = 0; i < count && !code && !failed; i++)
        failed = issue(s);
    code = code ? code : verbs->record(p->device, s->events[1], stream);
    if (failed)
        return collective_failed(s, failed);
    code = code ? code : verbs->synchronise(p->device);
    code = code ? code : verbs->elapsed(p->device, s->events[0], s->events[1], out);
    if (code)
        return dtp_prober_device_failed(p, code, "a collective could not be timed");
    *out /= count;
    return DTP_OK;
}

static uint32_t nodes_of(const struct dtp_sweep *s)
{
    uint32_t per_node = s->p->ranks / s->p->nodes, span = s->group->ranks * s->group->stride;
    return s->group->stride >= per_node ? s->group->ranks : (span + per_node - 1) / per_node;
}

static int train_of(const struct dtp_sweep *s)
{
    return nodes_of(s) > 1 && s->p->device->asynchronous ? TRAIN : 1;
}

/* Across nodes a step's collectives follow each other without a pause, and so they are timed: threads that serve
 * sockets wake up for one that comes alone, and are still at work on the one before in a row. Two rings of pairs over
 * loopback took 11.4 ms for 105 MB alone and 18.5 in a row (LLaMA-1.3B hybrid_shard, 4 H200 as 2 nodes). */
static enum dtp_status run_once(void *of, double *out)
{
    struct dtp_sweep *s = of;
    return run_train(s, train_of(s), out);
}

/* Rank 0's clock decides for all of them how often. */
static enum dtp_status samples_for(const struct dtp_sweep *s, double seconds, uint32_t *out)
{
    double fit = MOST_S / train_of(s) / (seconds > 0 ? seconds : 1e-9);
    *out = fit < LEAST_SAMPLES ? LEAST_SAMPLES : fit > MOST_SAMPLES ? MOST_SAMPLES : (uint32_t)fit;
    return dtp_control_broadcast(s->p->world.control, out, sizeof *out, s->p->faults);
}

static struct dtp_measured_row row_of(const struct dtp_sweep *s)
{
    struct dtp_measured_row row = dtp_measured_row_of(DTP_MEASUREMENT_COLLECTIVE, text_of(s));
    row.number[DTP_MEASURED_bytes] = (double)sent_bytes(s);
    row.number[DTP_MEASURED_ranks] = s->group->ranks;
    row.number[DTP_MEASURED_stride] = s->group->stride;
    row.number[DTP_MEASURED_nodes] = nodes_of(s);
    if (!s->p->of->settings->cuda)
        dtp_measured_row_of_host(&row, s->kind->dtype, s->p->ranks);
    return row;
}

/* A rank that comes late makes the others wait: the collective's own time is the least that any of them saw. */
static enum dtp_status add_samples(const struct dtp_sweep *s, const struct dtp_measured_row *row, double *mine,
                                   uint32_t count, double *median)
{
    struct dtp_prober *p = s->p;
    enum dtp_status status = dtp_prober_least(p, mine, count);
    for (uint32_t i = 0; i < count && p->first_rank && status == DTP_OK; i++)
        status = dtp_prober_keep(p, row, mine[i]);
    *median = dtp_median(mine, 1, count);
    return status;
}

static enum dtp_status measure_size(struct dtp_sweep *s, double *median)
{
    const struct dtp_measured_row row = row_of(s);
    double samples[MOST_SAMPLES], first;
    uint32_t count = 0;
    enum dtp_status status = run_train(s, 1, &first);
    if (status == DTP_OK)
        status = check(s);
    if (status == DTP_OK)
        status = run_once(s, &first);
    if (status == DTP_OK)
        status = samples_for(s, first, &count);
    if (status == DTP_OK)
        status = dtp_prober_sample(s->p, &row, count, run_once, s, samples);
    return status == DTP_OK ? add_samples(s, &row, samples, count, median) : status;
}

/* How long one kind of collective may be measured on a host: an even part of the seconds that there are, but three
 * sizes whatever they take. By the quickest rank's times, which all ranks know. */
static double most_of_kind_s(const struct dtp_sweep *s)
{
    const struct dtp_settings *settings = s->p->of->settings;
    return settings->cuda ? INFINITY
                          : HOST_SHARE * (double)settings->seconds / (double)dtp_probe_collective_count(s->p);
}

static enum dtp_status measure_sizes(struct dtp_sweep *s)
{
    enum dtp_status status = DTP_OK;
    double median = 0, spent_s = 0;
    uint64_t least = s->p->of->settings->cuda ? LEAST_SENT_BYTES : LEAST_SENT_HOST_BYTES, sizes = 0;
    for (uint64_t bytes = least; bytes <= most_sent(s->p) && status == DTP_OK; bytes *= STEP) {
        s->whole_bytes = whole_of(s->kind, bytes, s->group->ranks);
        dtp_move_prepare(s);
        s->filled = false;
        if (room_of(s) > s->p->device_bytes || median > TOO_SLOW_S ||
            (sizes++ >= LEAST_SIZES && spent_s > most_of_kind_s(s)))
            break;
        status = measure_size(s, &median);
        spent_s += 2 * LEAST_SAMPLES * median; /* filled and checked besides */
    }
    return status;
}

/* ---- all of them ------------------------------------------------------------------------------------------------- */

static enum dtp_status measure_group(struct dtp_sweep *s)
{
    enum dtp_status status = DTP_OK;
    char words[96];
    for (uint32_t k = 0; k < kind_count(s->p) && status == DTP_OK; k++) {
        s->kind = &kinds[k];
        if (!dtp_sweep_has(s->kind, s->group))
            continue;
        snprintf(words, sizeof words, "%s over %" PRIu32 " ranks %" PRIu32 " apart", text_of(s), s->group->ranks,
                 s->group->stride);
        if (!dtp_prober_next(s->p, words, &status))
            break;
        status = measure_sizes(s);
    }
    return status;
}

static enum dtp_status measure_groups(struct dtp_prober *p, const struct dtp_program_group *groups, uint32_t count)
{
    struct dtp_sweep s = {.p = p, .begins = malloc((uint64_t)p->ranks * (p->ranks + 1) * sizeof *s.begins)};
    const struct dtp_device_verbs *verbs = p->device->verbs;
    enum dtp_status status = s.begins ? DTP_OK : dtp_fault(p->faults, DTP_ENVIRONMENT, NULL, 0, "out of memory");
    for (int i = 0; i < 2 && status == DTP_OK; i++)
        status = verbs->event_create(p->device, true, &s.events[i], p->faults);
    for (uint32_t i = 0; i < count && status == DTP_OK && !p->stop; i++) {
        s.group_index = i;
        s.group = &groups[i];
        status = measure_group(&s);
    }
    for (int i = 0; i < 2; i++)
        if (s.events[i])
            verbs->event_destroy(p->device, s.events[i]);
    free(s.begins);
    return status;
}

enum dtp_status dtp_probe_collectives(struct dtp_prober *p)
{
    struct dtp_program_group groups[MOST_GROUPS];
    uint32_t count = p->ranks > 1 ? groups_of(p, groups) : 0;
    if (count == 0)
        return DTP_OK;
    enum dtp_status status = dtp_world_connect_groups(&p->world, groups, count, p->of->settings->cuda, p->faults);
    if (status == DTP_OK)
        dtp_probe_say_about(p->events, "communicator", "%s%s%s", p->world.communicator->name,
                            p->world.communicator->ways[0] ? ", " : "", p->world.communicator->ways);
    if (status == DTP_OK)
        status = measure_groups(p, groups, count);
    dtp_world_disconnect(&p->world, false);
    return status;
}
