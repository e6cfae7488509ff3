/* Why a change does what it does, in one line of words taken from the two predictions: the parts of the step that moved
 * most, and the owners of memory that did. */
#include "decide/whatif.h"

#include "base/append.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define NEGLIGIBLE_TIME 0.002  /* of the step */
#define NEGLIGIBLE_MEMORY 0.01 /* of the device's peak */
#define WORTH_A_SECOND 0.3     /* of the largest part: then the second largest is said as well */

struct part {
    char words[160];
    double was, is; /* seconds a token, or bytes */
};

/* ---- words ------------------------------------------------------------------------------------------------------- */

static void say_time(const char *name, double was_s, double is_s, char *out, size_t bytes)
{
    double largest = fmax(was_s, is_s), unit = largest >= 1 ? 1 : largest >= 1e-3 ? 1e-3 : 1e-6;
    const char *words = largest >= 1 ? "s" : largest >= 1e-3 ? "ms" : "us";
    snprintf(out, bytes, "%s %.3g -> %.3g %s", name, was_s / unit, is_s / unit, words);
}

/* Where the step's tokens change, seconds of a step say nothing: the change per token does. */
static void say_time_per_token(const char *name, double was_s, double is_s, char *out, size_t bytes)
{
    if (was_s > 0)
        snprintf(out, bytes, "%s %+.0f %% per token", name, 100 * (is_s / was_s - 1));
    else
        snprintf(out, bytes, "%s of %.3g us per token of a GPU", name, is_s * 1e6);
}

static void say_memory(const char *name, double was_bytes, double is_bytes, char *out, size_t bytes)
{
    bool small = fmax(was_bytes, is_bytes) < 0x1p29;
    double unit = small ? 0x1p20 : 0x1p30;
    snprintf(out, bytes, "%s %.3g -> %.3g %s", name, was_bytes / unit, is_bytes / unit, small ? "MiB" : "GiB");
}

/* Tokens of a step for each GPU of the job: where tp, cp or pp change, ranks that share a sequence do. */
static double step_tokens(const struct dtp_variant *variant)
{
    const struct dtp_job *job = &variant->job;
    return (double)dtp_job_batch_sequences(job) * (double)job->plan.sequence / job->cluster.gpus;
}

static double difference(double was, double is)
{
    return fabs(is - was);
}

/* ---- time -------------------------------------------------------------------------------------------------------- */

/* Parts of a step that add up to it. A device that waits for launches has one part: the launches. */
enum time_part {
    LAUNCHES,
    MATMULS,
    RECOMPUTE,
    ATTENTION,
    KERNELS,
    LOSS,
    OPTIMIZER,
    COMMUNICATION,
    OFFLOAD,
    BUBBLE,
    TIME_PARTS
};
static const char *const time_words[TIME_PARTS] = {
    [LAUNCHES] = "waiting for kernel launches",
    [MATMULS] = "matmuls",
    [RECOMPUTE] = "recompute",
    [ATTENTION] = "attention",
    [KERNELS] = "memory-bound kernels",
    [LOSS] = "loss",
    [OPTIMIZER] = "optimizer",
    [COMMUNICATION] = "exposed communication",
    [OFFLOAD] = "host copies and optimizer",
    [BUBBLE] = "pipeline bubble",
};

static void split_time(const struct dtp_time *t, double parts[TIME_PARTS])
{
    memset(parts, 0, TIME_PARTS * sizeof *parts);
    if (t->compute_s <= t->host_launch_s) {
        parts[LAUNCHES] = t->compute_s;
    } else {
        parts[RECOMPUTE] = t->recompute_s;
        parts[ATTENTION] = t->attention_s;
        parts[KERNELS] = t->memory_bound_s;
        parts[LOSS] = t->loss_s;
        parts[MATMULS] = t->compute_s - t->recompute_s - t->attention_s - t->memory_bound_s - t->loss_s;
    }
    parts[OPTIMIZER] = t->optimizer_s;
    parts[COMMUNICATION] = t->exposed_communication_s;
    parts[OFFLOAD] = t->exposed_offload_s;
    parts[BUBBLE] = t->bubble_s;
}

/* " (all-gather 24.5 -> 12.2 GB)": of what moved most, a collective's bytes or the network's. */
static void add_traffic(const struct dtp_variant *from, const struct dtp_variant *to, double scale, char *out,
                        size_t bytes)
{
    static const char *const names[DTP_COLLECTIVE_COUNT] = {"all-gather", "reduce-scatter", "all-reduce", "send-recv",
                                                            "all-to-all"};
    const struct dtp_communication *a = &from->prediction.communication, *b = &to->prediction.communication;
    const char *name = "network";
    double was = (double)a->network_bytes, is = (double)b->network_bytes * scale;
    for (int i = 0; i < DTP_COLLECTIVE_COUNT; i++)
        if (difference((double)a->bytes[i], (double)b->bytes[i] * scale) > difference(was, is)) {
            name = names[i];
            was = (double)a->bytes[i];
            is = (double)b->bytes[i] * scale;
        }
    if (was < 1e-6 * is) /* norms of clipped gradients, a number each */
        was = 0;
    if (difference(was, is) < 0.01 * fmax((double)a->total_bytes, (double)b->total_bytes * scale))
        dtp_append(out, bytes, "%s", a->total_bytes ? " (the same bytes)" : "");
    else if (scale != 1)
        dtp_append(out, bytes, was > 0 ? " (%s %+.0f %%)" : " (%s)", name, 100 * (is / was - 1));
    else
        dtp_append(out, bytes, " (%s %.3g -> %.3g GB)", name, was / 1e9, is / 1e9);
}

/* " (+26 % FLOPs)": what the hardware multiplies per FLOP of the model. */
static void add_flops(const struct dtp_variant *from, const struct dtp_variant *to, char *out, size_t bytes)
{
    const struct dtp_throughput *a = &from->prediction.throughput, *b = &to->prediction.throughput;
    if (a->mfu > 0 && b->mfu > 0 && a->hfu > 0)
        dtp_append(out, bytes, " (%+.0f %% FLOPs)", 100 * (b->hfu / b->mfu / (a->hfu / a->mfu) - 1));
}

static void name_time(enum time_part which, const struct dtp_variant *from, const struct dtp_variant *to, double was_s,
                      double is_s, struct part *out)
{
    double scale = step_tokens(from) / step_tokens(to);
    *out = (struct part){.was = was_s, .is = is_s * scale};
    if (scale == 1)
        say_time(time_words[which], was_s, is_s, out->words, sizeof out->words);
    else
        say_time_per_token(time_words[which], was_s / step_tokens(from), is_s / step_tokens(to), out->words,
                           sizeof out->words);
    if (which == COMMUNICATION)
        add_traffic(from, to, scale, out->words, sizeof out->words);
    if (which == RECOMPUTE)
        add_flops(from, to, out->words, sizeof out->words);
}

static size_t list_time(const struct dtp_variant *from, const struct dtp_variant *to, struct part *out)
{
    double was[TIME_PARTS], is[TIME_PARTS], scale = step_tokens(from) / step_tokens(to);
    size_t count = 0;
    split_time(&from->prediction.time, was);
    split_time(&to->prediction.time, is);
    /* Kernels on one side, launches on the other: compare their sums. */
    if ((was[LAUNCHES] > 0) != (is[LAUNCHES] > 0)) {
        for (int i = MATMULS; i <= LOSS; i++) {
            was[LAUNCHES] += was[i];
            is[LAUNCHES] += is[i];
            was[i] = is[i] = 0;
        }
    }
    for (int i = 0; i < TIME_PARTS; i++)
        if (difference(was[i], is[i] * scale) > NEGLIGIBLE_TIME * from->prediction.time.step_s)
            name_time((enum time_part)i, from, to, was[i], is[i], &out[count++]);
    return count;
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

/* What an owner holds at the peak; where the peaks lie in different phases, at its own largest. */
static double owner_bytes(const struct dtp_memory *m, int owner, bool same_phase)
{
    uint64_t most = m->phase_bytes[m->peak_phase][owner];
    for (int phase = 0; phase < DTP_PHASE_COUNT && !same_phase; phase++)
        if (m->phase_bytes[phase][owner] > most)
            most = m->phase_bytes[phase][owner];
    return (double)most;
}

static void list_if_large(const char *name, double was, double is, double negligible, struct part *parts, size_t *count)
{
    if (difference(was, is) <= negligible)
        return;
    parts[*count] = (struct part){.was = was, .is = is};
    say_memory(name, was, is, parts[*count].words, sizeof parts[*count].words);
    ++*count;
}

static size_t list_memory(const struct dtp_variant *from, const struct dtp_variant *to, struct part *out)
{
    const struct dtp_memory *a = &from->prediction.memory, *b = &to->prediction.memory;
    double negligible = NEGLIGIBLE_MEMORY * (double)a->device_peak_bytes;
    bool same_phase = a->peak_phase == b->peak_phase;
    size_t count = 0;
    for (int i = 0; i < DTP_OWNER_COUNT; i++)
        list_if_large(dtp_owner_words((enum dtp_owner)i), owner_bytes(a, i, same_phase), owner_bytes(b, i, same_phase),
                      negligible, out, &count);
    list_if_large("allocator's cache", (double)a->reserved_peak_bytes - (double)a->allocated_peak_bytes,
                  (double)b->reserved_peak_bytes - (double)b->allocated_peak_bytes, negligible, out, &count);
    list_if_large("NCCL", (double)a->nccl_bytes, (double)b->nccl_bytes, negligible, out, &count);
    return count;
}

/* ---- the line ---------------------------------------------------------------------------------------------------- */

static size_t largest(const struct part *parts, size_t count, size_t except)
{
    size_t best = count;
    for (size_t i = 0; i < count; i++)
        if (i != except &&
            (best == count || difference(parts[i].was, parts[i].is) > difference(parts[best].was, parts[best].is)))
            best = i;
    return best;
}

static void add_largest(const struct part *parts, size_t count, char *out, size_t bytes)
{
    size_t first = largest(parts, count, count);
    if (first == count)
        return;
    dtp_append_part(out, bytes, "; ", "%s", parts[first].words);
    size_t second = largest(parts, count, first);
    if (second < count && difference(parts[second].was, parts[second].is) >
                              WORTH_A_SECOND * difference(parts[first].was, parts[first].is))
        dtp_append_part(out, bytes, "; ", "%s", parts[second].words);
}

void dtp_whatif_why(const struct dtp_variant *from, const struct dtp_variant *to, char *out, size_t bytes)
{
    struct part parts[TIME_PARTS + DTP_OWNER_COUNT + 2];
    out[0] = '\0';
    add_largest(parts, list_time(from, to, parts), out, bytes);
    add_largest(parts, list_memory(from, to, parts), out, bytes);
    enum dtp_phase was = from->prediction.memory.peak_phase, is = to->prediction.memory.peak_phase;
    if (was != is) {
        snprintf(parts[0].words, sizeof parts[0].words, "memory now peaks in: %s", dtp_phase_words(is));
        dtp_append_part(out, bytes, "; ", "%s", parts[0].words);
    }
    if (!out[0])
        snprintf(out, bytes, "nothing that counts: time within %g %%, memory within %g %%", 100 * NEGLIGIBLE_TIME,
                 100 * NEGLIGIBLE_MEMORY);
}
