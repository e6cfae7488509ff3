/* The scan. Chunks of combinations that differ in the last axes only go to threads; each thread keeps the best of every
 * group for itself, and these are merged: by time, then by the combination's number, so that the number of threads does
 * not show. */
#include "sim/search_scan.h"

#include "base/parallel.h"
#include "bounds/bound_fit.h"
#include "cost/cluster_cost.h"
#include "job/estimate.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHUNK_TARGET 48

struct worker {
    struct dtp_scenario *scenario;
    struct dtp_scan scan;
    struct dtp_faults faults;
    struct dtp_variant variant;
    struct dtp_resolved_base *base;
};

struct scanner {
    const struct dtp_search_question *question;
    bool limits;
    bool group_axis; /* shard_group was given: hybrid_shard does not choose */
    size_t group_axes, last_axis_count;
    uint64_t group_items; /* combinations of a group */
    struct worker *workers;
};

/* ---- the bound
 * ------------------------------------------------------------------------------------------------------- */

/* 6 FLOPs per matmul weight and token, at the most that matmuls reach. */
double dtp_search_bound_s(const struct dtp_job *job, double tokens)
{
    double flops = 6 * (double)dtp_transformer_count(&job->transformer).matmul * tokens;
    double rate = dtp_cluster_most_matmul_flops_per_s(&job->cluster, job->plan.precision.compute);
    return flops / (rate * job->cluster.gpus);
}

static bool beyond_limits(const struct scanner *s, const struct dtp_job *job)
{
    const struct dtp_training *t = &job->training;
    double least_s = dtp_search_bound_s(job, t->tokens);
    struct dtp_throughput none = {0};
    struct dtp_money money;
    if (t->deadline_s > 0 && least_s > t->deadline_s)
        return true;
    dtp_money_of(job, &none, dtp_catalog_price(s->question->catalog, job->cluster.gpu.key), &money);
    return t->budget_usd > 0 && money.job_hour_usd[DTP_PRICE_TYPICAL] * least_s / 3600 > t->budget_usd;
}

/* ---- what is kept
 * ------------------------------------------------------------------------------------------------------ */

static bool better(const struct dtp_scan_entry *a, const struct dtp_scan_entry *b)
{
    if (a->work_s != b->work_s)
        return a->work_s < b->work_s;
    return a->combination != b->combination ? a->combination < b->combination : a->shard_group < b->shard_group;
}

static void keep_fit(struct dtp_scan_group *group, struct dtp_scan_entry entry)
{
    for (size_t i = 0; i < DTP_SCAN_KEPT; i++)
        if (better(&entry, &group->fits[i])) {
            struct dtp_scan_entry moved = group->fits[i];
            group->fits[i] = entry;
            entry = moved;
        }
}

static void keep_one(struct dtp_scan_entry *kept, const struct dtp_scan_entry *entry)
{
    if (better(entry, kept))
        *kept = *entry;
}

static struct dtp_scan_group empty_group(void)
{
    struct dtp_scan_group group;
    struct dtp_scan_entry none = {.work_s = INFINITY};
    group.roomy = group.tight = none;
    for (size_t i = 0; i < DTP_SCAN_KEPT; i++)
        group.fits[i] = none;
    return group;
}

/* Whether the group would take a plan of this speed if it fitted. What is tight counts only where nothing fits; what
 * has no room by its bound is taken for roomy only where a bound is seldom as far off. */
#define BOUND_SELDOM_ABOVE 0.1
static bool is_wanted(const struct dtp_scan_group *group, const struct dtp_scan_entry *entry,
                      const struct dtp_memory *bound)
{
    double bytes = (double)bound->device_peak_bytes / (1 + BOUND_SELDOM_ABOVE);
    bool room = bytes <= (1 - DTP_SCAN_ROOMY) * (double)bound->capacity_bytes;
    return better(entry, &group->fits[DTP_SCAN_KEPT - 1]) || (room && better(entry, &group->roomy)) ||
           (isinf(group->fits[0].work_s) && better(entry, &group->tight));
}

static void keep_estimated(const struct dtp_memory *m, struct dtp_scan_group *group, const struct dtp_scan_entry *entry)
{
    double headroom = 1 - (double)m->device_peak_bytes / (double)m->capacity_bytes;
    if (m->verdict == DTP_VERDICT_FITS) {
        keep_fit(group, *entry);
        if (headroom >= DTP_SCAN_ROOMY)
            keep_one(&group->roomy, entry);
    } else if (m->verdict == DTP_VERDICT_TIGHT) {
        keep_one(&group->tight, entry);
    }
}

/* Whether a plan leaves so much of its GPU free, whatever of the bound's tolerance its program takes. */
static bool leaves(const struct dtp_memory *bound, double headroom)
{
    double device_bytes = (double)bound->reserved_peak_bytes / (1 - DTP_BOUND_MOST_BELOW) +
                          (double)(bound->context_bytes + bound->nccl_bytes);
    return device_bytes <= (1 - headroom) * (double)bound->capacity_bytes;
}

static void keep_nearest(struct dtp_scan *scan, const struct dtp_scan_entry *entry, double bytes)
{
    bool nearer = bytes < scan->nearest_bytes;
    if (nearer || (bytes <= scan->nearest_bytes && entry->combination < scan->nearest.combination)) {
        scan->nearest = *entry;
        scan->nearest_bytes = bytes;
    }
}

static void count(const struct dtp_memory *m, struct dtp_search_counts *counts)
{
    uint64_t *verdict = m->verdict == DTP_VERDICT_FITS    ? &counts->fits
                        : m->verdict == DTP_VERDICT_TIGHT ? &counts->tight
                                                          : &counts->out_of_memory;
    ++*verdict;
}

/* ---- one combination
 * ---------------------------------------------------------------------------------------------------- */

enum fate { FATE_PREDICTED, FATE_REFUSED, FATE_TOO_LARGE, FATE_PRUNED, FATE_TOO_MANY_NODES, FATE_NO_MEMORY };

/* Of a combination that is resolved: its time, and of memory as much as is needed. */
static enum fate judge(struct worker *w, struct dtp_scan_group *group, struct dtp_scan_entry entry)
{
    const struct dtp_job *job = &w->variant.job;
    struct dtp_prediction *p = &w->variant.prediction;
    struct dtp_bound_fit fit;
    const struct dtp_memory *bound = &fit.memory;
    dtp_closed_form(&job->transformer, &job->cluster, &job->plan, p);
    dtp_bound_fit_of(&job->transformer, &job->cluster, &job->plan, &fit);
    w->scan.counts.predicted++;
    count(bound, &w->scan.counts);
    entry.work_s = dtp_training_work_s(job, &p->throughput);
    double missing_bytes = (double)bound->device_peak_bytes - (double)bound->capacity_bytes;
    if (fit.surely_oom)
        keep_nearest(&w->scan, &entry, missing_bytes);
    if (fit.surely_oom || !is_wanted(group, &entry, bound))
        return fit.surely_oom ? FATE_TOO_LARGE : FATE_PREDICTED;
    if (bound->verdict == DTP_VERDICT_FITS && leaves(bound, DTP_SCAN_ROOMY)) {
        keep_fit(group, entry);
        keep_one(&group->roomy, &entry);
        return FATE_PREDICTED;
    }
    if (dtp_estimate_memory(&job->transformer, &job->cluster, &job->plan, &p->memory, NULL, &w->faults) != DTP_OK)
        return w->faults.status == DTP_ENVIRONMENT ? FATE_NO_MEMORY : FATE_REFUSED;
    entry.memory = p->memory;
    entry.estimated = true;
    keep_estimated(&p->memory, group, &entry);
    if (p->memory.verdict == DTP_VERDICT_OOM)
        keep_nearest(&w->scan, &entry, missing_bytes);
    return p->memory.allocated_peak_bytes > p->memory.capacity_bytes ? FATE_TOO_LARGE : FATE_PREDICTED;
}

static enum fate predict(const struct scanner *s, struct worker *w, uint64_t combination, uint32_t shard_group)
{
    bool first = combination < w->scan.refusal_at; /* whose words are kept */
    w->faults.status = DTP_OK;
    w->faults.count = 0;
    if (dtp_scenario_resolve_again(w->scenario, s->question->catalog, w->base, &w->variant.job,
                                   first ? &w->faults : NULL) != DTP_OK) {
        w->scan.counts.refused++;
        if (first && w->faults.count) {
            w->scan.refusal_at = combination;
            snprintf(w->scan.refusal, sizeof w->scan.refusal, "%s", w->faults.text[0]);
        }
        return FATE_REFUSED;
    }
    struct dtp_job *job = &w->variant.job;
    if (s->question->max_nodes && job->cluster.nodes > s->question->max_nodes)
        return FATE_TOO_MANY_NODES;
    if (s->limits && beyond_limits(s, job))
        return FATE_PRUNED;
    return judge(w, &w->scan.groups[combination / s->group_items],
                 (struct dtp_scan_entry){.combination = combination, .shard_group = shard_group});
}

/* hybrid_shard over groups of 2, 4, 8, ... GPUs; the others have no group to choose. The last fate speaks for all:
 * memory per GPU shrinks as groups grow. */
static enum fate predict_groups(const struct scanner *s, struct worker *w, uint64_t combination)
{
    const char *strategy = dtp_scenario_get(w->scenario, "strategy"), *gpus = dtp_scenario_get(w->scenario, "gpus");
    enum dtp_strategy parsed = DTP_FULL_SHARD;
    if (s->group_axis || !strategy || !gpus || !dtp_strategy_parse(strategy, &parsed) || parsed != DTP_HYBRID_SHARD)
        return predict(s, w, combination, 0);
    enum fate fate = FATE_REFUSED;
    uint32_t most = (uint32_t)strtoul(gpus, NULL, 10);
    for (uint32_t group = 2;
         group < most && fate != FATE_PRUNED && fate != FATE_TOO_MANY_NODES && fate != FATE_NO_MEMORY; group *= 2) {
        char text[16];
        snprintf(text, sizeof text, "%u", group);
        if (dtp_scenario_set(w->scenario, "shard_group", text, "search", 0, &w->faults) == DTP_OK)
            fate = predict(s, w, combination, group);
    }
    dtp_scenario_unset(w->scenario, "shard_group");
    return fate;
}

/* A chunk: whole runs of the last axis, the micro-batches. */
static enum dtp_status work(void *context, unsigned thread, uint64_t first, uint64_t count)
{
    struct scanner *s = context;
    struct worker *w = &s->workers[thread];
    const struct dtp_axes *axes = s->question->axes;
    uint64_t last = s->last_axis_count;
    for (uint64_t i = first; i < first + count; i++) {
        enum dtp_status status = dtp_axes_apply(axes, i, i > first, w->scenario, &w->faults);
        if (status != DTP_OK)
            return status;
        enum fate fate = predict_groups(s, w, i);
        if (fate == FATE_NO_MEMORY)
            return DTP_ENVIRONMENT;
        uint64_t left_in_run = last - 1 - i % last;
        if (fate == FATE_PRUNED || fate == FATE_TOO_MANY_NODES) { /* so is the rest of the chunk: the same GPUs */
            uint64_t *ruled_out = fate == FATE_PRUNED ? &w->scan.counts.pruned_time : &w->scan.counts.too_many_nodes;
            *ruled_out += first + count - i;
            break;
        }
        if (fate == FATE_TOO_LARGE && left_in_run > 0) {
            w->scan.counts.pruned_memory += left_in_run;
            i += left_in_run;
            if (i + 1 < first + count && dtp_axes_apply(axes, i, false, w->scenario, &w->faults) != DTP_OK)
                return DTP_ENVIRONMENT;
        }
    }
    return DTP_OK;
}

static bool watch(void *context, uint64_t done, uint64_t count)
{
    const struct dtp_search_question *question = ((const struct scanner *)context)->question;
    return !question->watch || question->watch(question->watch_context, done, count);
}

/* ---- the scan
 * ------------------------------------------------------------------------------------------------------------ */

static void merge(struct dtp_scan *into, const struct dtp_scan *from)
{
    uint64_t *total = &into->counts.combinations;
    const uint64_t *part = &from->counts.combinations;
    for (size_t i = 0; i < sizeof into->counts / sizeof *total; i++)
        total[i] += part[i];
    for (size_t g = 0; g < into->group_count; g++) {
        for (size_t i = 0; i < DTP_SCAN_KEPT; i++)
            keep_fit(&into->groups[g], from->groups[g].fits[i]);
        keep_one(&into->groups[g].roomy, &from->groups[g].roomy);
        keep_one(&into->groups[g].tight, &from->groups[g].tight);
    }
    keep_nearest(into, &from->nearest, from->nearest_bytes);
    if (from->refusal_at < into->refusal_at) {
        into->refusal_at = from->refusal_at;
        memcpy(into->refusal, from->refusal, sizeof into->refusal);
    }
}

static bool prepare(size_t groups, struct dtp_scan *out)
{
    *out = (struct dtp_scan){.group_count = groups, .nearest_bytes = INFINITY, .refusal_at = UINT64_MAX};
    out->groups = malloc(groups * sizeof *out->groups);
    for (size_t i = 0; i < groups && out->groups; i++)
        out->groups[i] = empty_group();
    return out->groups != NULL;
}

/* Axes up to and with precision make a group. */
static void measure_axes(struct scanner *s)
{
    const struct dtp_axes *axes = s->question->axes;
    s->group_items = 1;
    s->last_axis_count = axes->axes[axes->count - 1].count;
    for (size_t i = 0; i < axes->count; i++) {
        s->group_axis = s->group_axis || strcmp(axes->axes[i].key, "shard_group") == 0;
        if (strcmp(axes->axes[i].key, "precision") == 0)
            s->group_axes = i + 1;
    }
    s->group_axis = s->group_axis || dtp_scenario_get(s->question->base, "shard_group");
    for (size_t i = s->group_axes; i < axes->count; i++)
        s->group_items *= axes->axes[i].count;
}

/* Runs of the last axes, as many as come near the target, that never cross a group. */
static uint32_t chunk_items(const struct scanner *s)
{
    const struct dtp_axes *axes = s->question->axes;
    uint64_t items = 1;
    for (size_t end = axes->count; end > s->group_axes && items < CHUNK_TARGET; end--)
        items *= axes->axes[end - 1].count;
    return (uint32_t)items;
}

static enum dtp_status start_workers(struct scanner *s, unsigned threads, size_t groups, struct dtp_faults *faults)
{
    enum dtp_status status = DTP_OK;
    s->workers = calloc(threads, sizeof *s->workers);
    if (!s->workers)
        return dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "out of memory");
    for (unsigned i = 0; i < threads && status == DTP_OK; i++) {
        if (!prepare(groups, &s->workers[i].scan))
            status = dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "out of memory");
        else
            status = dtp_scenario_copy(s->question->base, &s->workers[i].scenario, faults);
        if (status == DTP_OK)
            status = dtp_resolved_base_create(&s->workers[i].base, faults);
    }
    return status;
}

static void end_workers(struct scanner *s, unsigned threads)
{
    for (unsigned i = 0; i < threads && s->workers; i++) {
        dtp_scenario_destroy(s->workers[i].scenario);
        dtp_resolved_base_destroy(s->workers[i].base);
        free(s->workers[i].scan.groups);
    }
    free(s->workers);
}

enum dtp_status dtp_scan_run(const struct dtp_search_question *question, bool limits, struct dtp_scan *out,
                             struct dtp_faults *faults)
{
    struct scanner s = {.question = question, .limits = limits};
    uint64_t count;
    *out = (struct dtp_scan){0};
    enum dtp_status status = dtp_axes_count(question->axes, &count, faults);
    if (status != DTP_OK)
        return status;
    measure_axes(&s);
    size_t groups = (size_t)(count / s.group_items);
    unsigned threads = question->threads ? question->threads : dtp_parallel_threads();
    struct dtp_parallel job = {.count = count,
                               .chunk_items = chunk_items(&s),
                               .threads = threads,
                               .context = &s,
                               .work = work,
                               .watch = watch};
    status = start_workers(&s, threads, groups, faults);
    if (status == DTP_OK && !prepare(groups, out))
        status = dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "out of memory");
    if (status == DTP_OK)
        status = dtp_parallel_run(&job, NULL, faults);
    for (unsigned i = 0; i < threads && status == DTP_OK; i++)
        merge(out, &s.workers[i].scan);
    struct dtp_search_counts *n = &out->counts;
    n->combinations = n->refused + n->too_many_nodes + n->pruned_time + n->pruned_memory + n->predicted;
    end_workers(&s, threads);
    if (status != DTP_OK) {
        free(out->groups);
        out->groups = NULL;
    }
    return status;
}
