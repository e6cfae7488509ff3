#include "observed/spans.h"

#include "base/grow.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define LEAST_HOST_GAP_S 1e-3 /* shorter ones are Python's between two operators */
/* Of a host that computes itself: the scheduler gives its cores to others meanwhile, for slices of up to 24 ms
 * (sched_latency_ns of Linux on eight cores and more). */
#define LEAST_CORE_GAP_S 25e-3

/* ---- collecting -------------------------------------------------------------------------------------------------- */

bool dtp_is_span(double start_s, double end_s)
{
    return isfinite(start_s) && isfinite(end_s) && end_s >= start_s && fabs(start_s) < 1e15 && fabs(end_s) < 1e15;
}

bool dtp_spans_add_gpu(struct dtp_spans *s, const char *kernel, double start_s, double end_s)
{
    return dtp_spans_add_kind(s, dtp_kernel_kind_of(kernel), start_s, end_s);
}

bool dtp_spans_add_kind(struct dtp_spans *s, struct dtp_kernel_kind kind, double start_s, double end_s)
{
    if (!dtp_is_span(start_s, end_s))
        return true;
    if (!dtp_grow(&s->gpu, s->gpu_count, &s->gpu_room, sizeof *s->gpu))
        return false;
    s->gpu[s->gpu_count++] = (struct dtp_gpu_span){start_s, end_s, (uint8_t)kind.kind, (uint8_t)kind.trait};
    return true;
}

bool dtp_spans_add(struct dtp_spans *s, enum dtp_spans_of of, double start_s, double end_s)
{
    struct dtp_host_span **lists[] = {&s->host, &s->loader, &s->step, &s->optimizer};
    size_t *counts[] = {&s->host_count, &s->loader_count, &s->step_count, &s->optimizer_count};
    size_t *rooms[] = {&s->host_room, &s->loader_room, &s->step_room, &s->optimizer_room};
    if (!dtp_is_span(start_s, end_s))
        return true;
    if (!dtp_grow(lists[of], *counts[of], rooms[of], sizeof **lists[of]))
        return false;
    (*lists[of])[(*counts[of])++] = (struct dtp_host_span){start_s, end_s};
    return true;
}

void dtp_spans_release(struct dtp_spans *s)
{
    free(s->gpu);
    free(s->host);
    free(s->loader);
    free(s->step);
    free(s->optimizer);
}

static int by_start(const void *a, const void *b)
{
    const double *x = a, *y = b; /* both kinds of spans begin with it */
    return *x < *y ? -1 : *x > *y;
}

static void sort(void *list, size_t count, size_t bytes)
{
    if (count > 0)
        qsort(list, count, bytes, by_start);
}

/* ---- unions ------------------------------------------------------------------------------------------------------ */

/* Sorted spans that do not touch; `list` has room for all that are merged into it. */
struct cover {
    struct dtp_host_span *list;
    size_t count;
};

static void cover_add(struct cover *c, double start_s, double end_s)
{
    if (c->count > 0 && start_s <= c->list[c->count - 1].end_s) {
        if (end_s > c->list[c->count - 1].end_s)
            c->list[c->count - 1].end_s = end_s;
    } else
        c->list[c->count++] = (struct dtp_host_span){start_s, end_s};
}

static struct cover cover_of(const struct dtp_host_span *spans, size_t count)
{
    struct cover c = {malloc((count + 1) * sizeof *c.list), 0};
    for (size_t i = 0; c.list && i < count; i++)
        cover_add(&c, spans[i].start_s, spans[i].end_s);
    return c;
}

/* Seconds of [start, end] that it covers. */
static double covered_s(const struct cover *c, double start_s, double end_s)
{
    size_t low = 0, high = c->count;
    double sum = 0;
    while (low < high) { /* the first that ends behind the start */
        size_t middle = low + (high - low) / 2;
        if (c->list[middle].end_s <= start_s)
            low = middle + 1;
        else
            high = middle;
    }
    for (; low < c->count && c->list[low].start_s < end_s; low++)
        sum += fmin(end_s, c->list[low].end_s) - fmax(start_s, c->list[low].start_s);
    return sum;
}

/* ---- steps ------------------------------------------------------------------------------------------------------- */

/* Kernels of the optimizer, then others: a burst of it ends a step. */
static bool find_steps(struct dtp_spans *s)
{
    double begin_s = NAN;
    bool ok = true;
    for (size_t i = 0; i < s->gpu_count && ok; i++) {
        bool last = s->gpu[i].kind == DTP_OBSERVED_OPTIMIZER &&
                    (i + 1 == s->gpu_count || s->gpu[i + 1].kind == DTP_OBSERVED_MATMUL ||
                     s->gpu[i + 1].kind == DTP_OBSERVED_ELEMENTWISE || s->gpu[i + 1].kind == DTP_OBSERVED_ALL_GATHER);
        if (!last)
            continue;
        if (isfinite(begin_s) && s->gpu[i].end_s - begin_s > 10 * LEAST_HOST_GAP_S)
            ok = dtp_spans_add(s, DTP_SPANS_STEP, begin_s, s->gpu[i].end_s);
        if (!isfinite(begin_s) || s->gpu[i].end_s - begin_s > 10 * LEAST_HOST_GAP_S)
            begin_s = s->gpu[i].end_s;
    }
    return ok;
}

/* Whatever an optimizer launches is its own: eager ones are made of kernels that others use too. */
static void mark_optimizer(struct dtp_spans *s)
{
    size_t at = 0;
    for (size_t i = 0; i < s->gpu_count; i++) {
        while (at < s->optimizer_count && s->optimizer[at].end_s <= s->gpu[i].start_s)
            at++;
        if (at < s->optimizer_count && s->gpu[i].start_s >= s->optimizer[at].start_s &&
            !dtp_observed_is_collective(s->gpu[i].kind))
            s->gpu[i].kind = DTP_OBSERVED_OPTIMIZER;
    }
}

/* ---- sums -------------------------------------------------------------------------------------------------------- */

static void count_span(const struct dtp_gpu_span *g, struct dtp_observed_time *t)
{
    double seconds = g->end_s - g->start_s;
    t->kind_s[g->kind] += seconds;
    t->kind_count[g->kind]++;
    t->matmuls += g->kind == DTP_OBSERVED_MATMUL;
    t->wide_matmuls += g->trait == DTP_TRAIT_WIDE && g->kind == DTP_OBSERVED_MATMUL;
    t->wide_matmul_s += g->trait == DTP_TRAIT_WIDE && g->kind == DTP_OBSERVED_MATMUL ? seconds : 0;
    bool flash2 = g->trait == DTP_TRAIT_FORWARD_2, forward = flash2 || g->trait == DTP_TRAIT_FORWARD;
    t->attention_forwards += forward;
    t->flash2_forwards += flash2;
    t->attention_forward_s += forward ? seconds : 0;
    t->attention_backwards += g->trait == DTP_TRAIT_BACKWARD;
    t->softmaxes += g->trait == DTP_TRAIT_SOFTMAX && g->kind != DTP_OBSERVED_OPTIMIZER;
    t->fused_optimizers += g->trait == DTP_TRAIT_FUSED;
    t->compiled += g->trait == DTP_TRAIT_COMPILED;
}

static void count_gaps(const struct dtp_spans *s, const struct cover *busy, double begin_s, double end_s,
                       struct dtp_observed_time *t)
{
    struct cover host = cover_of(s->host, s->host_count), loader = cover_of(s->loader, s->loader_count);
    double from = begin_s, least_s = s->on_host ? LEAST_CORE_GAP_S : LEAST_HOST_GAP_S;
    t->host_known = s->host_count > 0;
    /* Gaps of the host, each as far as nothing runs on the GPU. */
    for (size_t i = 0; host.list && t->host_known && i <= host.count; i++) {
        double to = i < host.count ? fmin(host.list[i].start_s, end_s) : end_s;
        double idle = to > from ? to - from - covered_s(busy, from, to) : 0;
        if (idle >= least_s)
            t->host_gap_s += idle;
        if (i < host.count && host.list[i].end_s > from)
            from = host.list[i].end_s;
    }
    for (size_t i = 0; loader.list && i < loader.count; i++) {
        double start = fmax(loader.list[i].start_s, begin_s), stop = fmin(loader.list[i].end_s, end_s);
        if (stop > start)
            t->loader_s += stop - start - covered_s(busy, start, stop);
    }
    free(host.list);
    free(loader.list);
}

static void per_step(struct dtp_observed_time *t)
{
    double *sums[] = {&t->idle_s,
                      &t->host_gap_s,
                      &t->loader_s,
                      &t->wide_matmul_s,
                      &t->wide_matmuls,
                      &t->matmuls,
                      &t->attention_forwards,
                      &t->attention_forward_s,
                      &t->attention_backwards,
                      &t->softmaxes,
                      &t->fused_optimizers,
                      &t->compiled,
                      &t->flash2_forwards,
                      &t->step_s};
    for (size_t i = 0; i < sizeof sums / sizeof *sums; i++)
        *sums[i] /= t->steps;
    for (int k = 0; k < DTP_OBSERVED_KIND_COUNT; k++) {
        t->kind_s[k] /= t->steps;
        t->kind_count[k] /= t->steps;
        t->exposed_s[k] /= t->steps;
    }
}

static enum dtp_status add_up(struct dtp_spans *s, struct dtp_observed_time *t, struct dtp_faults *faults)
{
    double begin_s = s->step[0].start_s, end_s = s->step[s->step_count - 1].end_s;
    struct cover busy = {malloc((s->gpu_count + 1) * sizeof *busy.list), 0};
    struct cover compute = {malloc((s->gpu_count + 1) * sizeof *compute.list), 0};
    if (!busy.list || !compute.list) {
        free(busy.list);
        free(compute.list);
        return dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "out of memory");
    }
    for (size_t i = 0; i < s->gpu_count; i++) {
        const struct dtp_gpu_span *g = &s->gpu[i];
        if (g->start_s < begin_s || g->end_s > end_s)
            continue;
        count_span(g, t);
        cover_add(&busy, g->start_s, g->end_s);
        if (!dtp_observed_is_collective(g->kind) && g->kind != DTP_OBSERVED_COPY)
            cover_add(&compute, g->start_s, g->end_s);
    }
    for (size_t i = 0; i < s->gpu_count; i++) {
        const struct dtp_gpu_span *g = &s->gpu[i];
        if (g->start_s >= begin_s && g->end_s <= end_s &&
            (dtp_observed_is_collective(g->kind) || g->kind == DTP_OBSERVED_COPY))
            t->exposed_s[g->kind] += g->end_s - g->start_s - covered_s(&compute, g->start_s, g->end_s);
    }
    t->steps = (uint32_t)s->step_count;
    t->on_host = s->on_host;
    t->step_s = end_s - begin_s;
    t->idle_s = end_s - begin_s - covered_s(&busy, begin_s, end_s);
    count_gaps(s, &busy, begin_s, end_s, t);
    per_step(t);
    free(busy.list);
    free(compute.list);
    return DTP_OK;
}

enum dtp_status dtp_spans_sum(struct dtp_spans *s, const char *path, struct dtp_observed_time *out,
                              struct dtp_faults *faults)
{
    *out = (struct dtp_observed_time){0};
    if (s->gpu_count == 0)
        return dtp_fault(faults, DTP_BAD_INPUT, path, 0,
                         "has no kernels of a GPU, nor operators of cores; record with ProfilerActivity.CUDA, on cores "
                         "with ProfilerActivity.CPU, among the profiler's activities");
    sort(s->gpu, s->gpu_count, sizeof *s->gpu);
    sort(s->host, s->host_count, sizeof *s->host);
    sort(s->loader, s->loader_count, sizeof *s->loader);
    sort(s->optimizer, s->optimizer_count, sizeof *s->optimizer);
    mark_optimizer(s);
    if (s->step_count == 0 && !find_steps(s))
        return dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "out of memory");
    sort(s->step, s->step_count, sizeof *s->step);
    if (s->step_count == 0 || !(s->step[s->step_count - 1].end_s > s->step[0].start_s))
        return dtp_fault(
            faults, DTP_BAD_INPUT, path, 0,
            "says no steps; give PyTorch's profiler a schedule and call its step(), or record two optimizer "
            "steps or more");
    return add_up(s, out, faults);
}
