/* The scan. Chunks of combinations that differ in the last axes only go to threads, which compute times and bounds of
 * memory; each thread queues the fastest of every group that may be kept for itself, and these are merged: by time,
 * then by the combination's number, so that the number of threads does not show. Then every group's queues are gone
 * through in that order, and memory estimated, until the group has what is kept of it. */
#include "sim/search_scan.h"

#include "base/parallel.h"
#include "job/bound_fit.h"
#include "cost/cluster_cost.h"
#include "job/estimate.h"
#include "plan/degrees.h"
#include "sim/search_queue.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHUNK_TARGET 48
#define AGAIN_ROOM 4096 /* places of a queue that is filled again */

/* What a group's plans are kept for. Memory as the bound tells it says for which of them a plan is a candidate. */
enum aim {
    AIM_FITS,  /* the fastest that fit */
    AIM_ROOMY, /* the fastest of these that leaves room */
    AIM_TIGHT, /* where none fits, the fastest that is tight: here what surely does not fit */
    AIMS
};
static const uint32_t queue_room[AIMS] = {[AIM_FITS] = 48, [AIM_ROOMY] = 16, [AIM_TIGHT] = 16};

struct queues { /* of a group */
    struct dtp_search_queue of[AIMS];
};

/* What a scan of one group again looks for: what comes after a place that was looked at. */
struct refill {
    struct dtp_search_queue *queue; /* NULL: none is under way */
    struct dtp_scan_place after;
    enum aim aim;
};

struct worker {
    struct dtp_scenario *scenario;
    struct queues *queues; /* of every group */
    struct refill refill;
    struct dtp_scan_place *places, *again; /* of its queues; of one that is filled again, NULL before */
    struct dtp_scan scan;                  /* without groups */
    struct dtp_faults faults;
    struct dtp_variant variant;
    struct dtp_job_layers layers; /* of the last combination that was judged */
    struct dtp_resolved_base *base;
};

struct scanner {
    const struct dtp_search_question *question;
    bool limits;
    bool group_axis;    /* shard_group was given: hybrid_shard does not choose */
    bool sync_axis;     /* accumulate_sync was given */
    bool layout_stands; /* in a group: whether its layout exists follows from what its combinations share */
    size_t group_axes, last_axis_count;
    uint64_t count, group_items; /* combinations; of a group */
    uint32_t chunk_items;
    size_t kept; /* of a group's fastest that fit */
    struct dtp_scan_group *groups;
    struct worker *workers;
};

/* ---- the bound --------------------------------------------------------------------------------------------------- */

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

/* ---- what may be kept -------------------------------------------------------------------------------------------- */

/* Whether a plan may be kept for that aim, as far as the bound of its memory tells. */
static bool may_serve(const struct dtp_bound_fit *fit, enum aim aim)
{
    const struct dtp_memory *m = &fit->memory;
    double device_bytes = (double)(fit->least_bytes + m->context_bytes + m->nccl_bytes);
    bool may_fit = fit->best_verdict == DTP_VERDICT_FITS;
    return aim == AIM_FITS    ? may_fit
           : aim == AIM_ROOMY ? may_fit && device_bytes <= (1 - DTP_SCAN_ROOMY) * (double)m->capacity_bytes
                              : fit->best_verdict == DTP_VERDICT_TIGHT;
}

/* Into the queues of its group; or, where a group is gone through again, into the one that ran out. */
static void offer(struct worker *w, size_t group, const struct dtp_scan_place *place, const struct dtp_bound_fit *fit)
{
    const struct refill *refill = &w->refill;
    if (refill->queue) {
        if (dtp_search_is_before(&refill->after, place) && may_serve(fit, refill->aim))
            dtp_search_queue_push(refill->queue, place);
        return;
    }
    for (int aim = 0; aim < AIMS; aim++)
        if (may_serve(fit, (enum aim)aim))
            dtp_search_queue_push(&w->queues[group].of[aim], place);
}

static void keep_nearest(struct dtp_scan *scan, const struct dtp_scan_place *place, double bytes)
{
    bool nearer = bytes < scan->nearest_bytes;
    if (nearer || (bytes <= scan->nearest_bytes && dtp_search_is_before(place, &scan->nearest.place))) {
        scan->nearest = (struct dtp_scan_entry){.place = *place};
        scan->nearest_bytes = bytes;
    }
}

static uint64_t *count_of(struct dtp_search_counts *counts, enum dtp_verdict verdict)
{
    return verdict == DTP_VERDICT_FITS    ? &counts->fits
           : verdict == DTP_VERDICT_TIGHT ? &counts->tight
                                          : &counts->out_of_memory;
}

/* ---- one combination --------------------------------------------------------------------------------------------- */

enum fate {
    FATE_PREDICTED,
    FATE_REFUSED,
    FATE_NO_LAYOUT,
    FATE_TOO_LARGE,
    FATE_PRUNED,
    FATE_TOO_MANY_NODES,
    FATE_NO_MEMORY
};

/* Time of a combination that is resolved, and the bound of its memory. */
static enum fate judge(struct worker *w, size_t group, struct dtp_scan_place place)
{
    const struct dtp_job *job = &w->variant.job;
    struct dtp_prediction *p = &w->variant.prediction;
    struct dtp_bound_fit fit;
    const struct dtp_memory *bound = &fit.memory;
    dtp_bound_fit_of(&job->transformer, &job->cluster, &job->plan, &w->layers, &fit);
    w->scan.counts.predicted++;
    ++*count_of(&w->scan.counts, bound->verdict);
    place.missing_bytes = (float)((double)bound->device_peak_bytes - (double)bound->capacity_bytes);
    place.bound_verdict = bound->verdict;
    if (fit.best_verdict == DTP_VERDICT_OOM) {
        keep_nearest(&w->scan, &place, (double)place.missing_bytes);
        return FATE_TOO_LARGE;
    }
    if (dtp_closed_form(&job->transformer, &job->cluster, &job->plan, p) != DTP_OK)
        return FATE_NO_MEMORY;
    place.work_s = dtp_training_work_s(job, &p->throughput, dtp_training_plain_step_s(job));
    if (isfinite(place.work_s))
        offer(w, group, &place, &fit);
    return FATE_PREDICTED;
}

static enum fate predict_one(const struct scanner *s, struct worker *w, uint64_t combination,
                             struct dtp_search_choice choice)
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
        return s->layout_stands && w->variant.job.plan.runtime &&
                       !dtp_plan_layout_exists(&w->variant.job.plan, &w->variant.job.transformer,
                                               &w->variant.job.cluster)
                   ? FATE_NO_LAYOUT
                   : FATE_REFUSED;
    }
    struct dtp_job *job = &w->variant.job;
    if (s->question->max_nodes && job->cluster.nodes > s->question->max_nodes)
        return FATE_TOO_MANY_NODES;
    if (s->limits && beyond_limits(s, job))
        return FATE_PRUNED;
    return judge(w, (size_t)(combination / s->group_items),
                 (struct dtp_scan_place){.combination = combination, .choice = choice});
}

/* Whether gradients stay whole from one micro-step to the next, though the plan divides them. */
static bool keeps_whole_gradients(const struct dtp_plan *plan)
{
    return plan->accumulate > 1 && plan->runtime->strategies & 1u << DTP_FULL_SHARD && dtp_plan_shards_grads(plan) &&
           dtp_plan_reductions(plan) == 1;
}

/* A combination with the group that is set; with whole gradients, or, where these surely do not fit, without. */
static enum fate predict(const struct scanner *s, struct worker *w, uint64_t combination, uint32_t shard_group)
{
    struct dtp_search_choice choice = {.shard_group = shard_group}, always = {.reduce_always = true};
    enum fate fate = predict_one(s, w, combination, choice);
    if (fate != FATE_TOO_LARGE || s->sync_axis || !keeps_whole_gradients(&w->variant.job.plan))
        return fate;
    if (dtp_search_choose(&always, w->scenario, &w->faults) == DTP_OK) {
        choice.reduce_always = true;
        enum fate again = predict_one(s, w, combination, choice);
        fate = again == FATE_REFUSED ? fate : again;
    }
    dtp_search_take_back(&always, w->scenario);
    return fate;
}

/* The rest of a chunk fares the same: the same GPUs, and where that is what counts the same layout. */
static bool ends_chunk(enum fate fate)
{
    return fate == FATE_PRUNED || fate == FATE_TOO_MANY_NODES || fate == FATE_NO_LAYOUT;
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
    for (uint32_t group = 2; group < most && !ends_chunk(fate); group *= 2) {
        if (dtp_search_choose(&(struct dtp_search_choice){.shard_group = group}, w->scenario, &w->faults) == DTP_OK)
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
        uint64_t left_in_run = last - 1 - i % last;
        if (fate == FATE_NO_MEMORY)
            return dtp_fault(&w->faults, DTP_ENVIRONMENT, NULL, 0, "no memory for the passes of a pipeline");
        if (ends_chunk(fate)) {
            struct dtp_search_counts *n = &w->scan.counts;
            *(fate == FATE_PRUNED           ? &n->pruned_time
              : fate == FATE_TOO_MANY_NODES ? &n->too_many_nodes
                                            : &n->refused) += first + count - i - (fate == FATE_NO_LAYOUT);
            break;
        }
        /* Tensors grow with the micro-batch; but of a given batch larger ones leave fewer micro-steps, at last one. */
        if (fate == FATE_TOO_LARGE && left_in_run > 0 && !keeps_whole_gradients(&w->variant.job.plan)) {
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

/* ---- a group's plans --------------------------------------------------------------------------------------------- */

/* The memory of a place by its step program. DTP_NO: it has none. */
static enum dtp_status estimate(const struct scanner *s, struct worker *w, const struct dtp_scan_place *place,
                                struct dtp_scan_entry *out)
{
    const struct dtp_job *job = &w->variant.job;
    *out = (struct dtp_scan_entry){.place = *place, .estimated = true};
    w->faults.status = DTP_OK;
    w->faults.count = 0;
    enum dtp_status status = dtp_axes_apply(s->question->axes, place->combination, false, w->scenario, &w->faults);
    if (status == DTP_OK)
        status = dtp_search_choose(&place->choice, w->scenario, &w->faults);
    if (status == DTP_OK)
        status = dtp_scenario_resolve_again(w->scenario, s->question->catalog, w->base, &w->variant.job, &w->faults);
    if (status == DTP_OK)
        status = dtp_estimate_memory(&job->transformer, &job->cluster, &job->plan, &out->memory, NULL, &w->faults);
    dtp_search_take_back(&place->choice, w->scenario);
    return status == DTP_OK || status == DTP_ENVIRONMENT ? status : DTP_NO;
}

/* Places of one aim come in order of time: the first is the fastest. */
static void keep(struct worker *w, const struct dtp_scan_entry *entry, size_t kept, struct dtp_scan_group *group)
{
    const struct dtp_memory *m = &entry->memory;
    double headroom = 1 - (double)m->device_peak_bytes / (double)m->capacity_bytes;
    --*count_of(&w->scan.counts, entry->place.bound_verdict);
    ++*count_of(&w->scan.counts, m->verdict);
    w->scan.counts.estimated++;
    if (m->verdict == DTP_VERDICT_FITS && group->fit_count < kept)
        group->fits[group->fit_count++] = *entry;
    if (m->verdict == DTP_VERDICT_FITS && headroom >= DTP_SCAN_ROOMY && isinf(group->roomy.place.work_s))
        group->roomy = *entry;
    if (m->verdict == DTP_VERDICT_TIGHT && dtp_search_is_before(&entry->place, &group->tight.place))
        group->tight = *entry;
    if (m->verdict == DTP_VERDICT_OOM)
        keep_nearest(&w->scan, &entry->place, (double)entry->place.missing_bytes);
}

/* A queue that ran out although places were pushed off it: the group is scanned again for what comes after. The counts
 * have it already. */
static enum dtp_status refill(struct scanner *s, struct worker *w, uint64_t group, enum aim aim,
                              const struct dtp_scan_place *after, struct dtp_search_queue *queue)
{
    struct dtp_scan counted = w->scan;
    uint64_t first = group * s->group_items, end = first + s->group_items;
    enum dtp_status status = DTP_OK;
    counted.counts.scanned_again++;
    uint32_t room = s->question->queue_places ? s->question->queue_places : AGAIN_ROOM;
    if (!w->again)
        w->again = malloc(room * sizeof *w->again);
    if (!w->again)
        return DTP_ENVIRONMENT;
    *queue = (struct dtp_search_queue){.places = w->again, .room = room};
    w->refill = (struct refill){.queue = queue, .after = *after, .aim = aim};
    for (uint64_t i = first; i < end && status == DTP_OK; i += s->chunk_items)
        status = work(s, (unsigned)(w - s->workers), i, s->chunk_items);
    w->refill.queue = NULL;
    w->scan = counted;
    return status;
}

/* Whether no place from `next` on can change what the group has for this aim. */
static bool has_all(const struct dtp_scan_group *group, size_t kept, enum aim aim, const struct dtp_scan_place *next)
{
    return aim == AIM_FITS    ? group->fit_count == kept
           : aim == AIM_ROOMY ? isfinite(group->roomy.place.work_s)
                              : group->fit_count || !dtp_search_is_before(next, &group->tight.place);
}

/* Goes through a queue until the group has what it is for. `last` is the last place that was looked at. */
static enum dtp_status go_through(struct scanner *s, struct worker *w, size_t index, enum aim aim,
                                  struct dtp_scan_place *last, struct dtp_scan_group *group)
{
    struct dtp_search_queue queue = s->workers[0].queues[index].of[aim];
    struct dtp_scan_entry entry;
    for (;;) {
        for (uint32_t i = 0; i < queue.count; i++) {
            if (!dtp_search_is_before(last, &queue.places[i]))
                continue;
            if (has_all(group, s->kept, aim, &queue.places[i]))
                return DTP_OK;
            *last = queue.places[i];
            enum dtp_status status = estimate(s, w, last, &entry);
            if (status == DTP_ENVIRONMENT)
                return status;
            if (status == DTP_OK)
                keep(w, &entry, s->kept, group);
        }
        if (has_all(group, s->kept, aim, last) || !queue.overflown)
            return DTP_OK;
        enum dtp_status status = refill(s, w, index, aim, last, &queue);
        if (status != DTP_OK)
            return status;
    }
}

static enum dtp_status settle(void *context, unsigned thread, uint64_t first, uint64_t count)
{
    struct scanner *s = context;
    enum dtp_status status = DTP_OK;
    for (uint64_t i = first; i < first + count && status == DTP_OK; i++) {
        struct dtp_scan_place last = {.work_s = -INFINITY},
                              last_tight = last; /* what is roomy has been one that fits */
        for (int aim = 0; aim < AIMS && status == DTP_OK; aim++)
            status = go_through(s, &s->workers[thread], (size_t)i, (enum aim)aim,
                                aim == AIM_TIGHT ? &last_tight : &last, &s->groups[i]);
    }
    return status;
}

static bool watch_settle(void *context, uint64_t done, uint64_t count)
{
    const struct scanner *s = context;
    (void)done;
    (void)count;
    return watch(context, s->count, s->count);
}

/* ---- the scan ---------------------------------------------------------------------------------------------------- */

static void merge(struct dtp_scan *into, const struct dtp_scan *from)
{
    uint64_t *total = &into->counts.combinations;
    const uint64_t *part = &from->counts.combinations;
    for (size_t i = 0; i < sizeof into->counts / sizeof *total; i++)
        total[i] += part[i];
    keep_nearest(into, &from->nearest.place, from->nearest_bytes);
    if (from->refusal_at < into->refusal_at) {
        into->refusal_at = from->refusal_at;
        memcpy(into->refusal, from->refusal, sizeof into->refusal);
    }
}

/* All threads' queues in the first's. */
static void merge_queues(struct scanner *s, unsigned threads, size_t groups)
{
    for (unsigned t = 1; t < threads; t++)
        for (size_t g = 0; g < groups; g++)
            for (int aim = 0; aim < AIMS; aim++)
                dtp_search_queue_merge(&s->workers[0].queues[g].of[aim], &s->workers[t].queues[g].of[aim]);
}

static bool prepare_groups(size_t groups, struct dtp_scan *out)
{
    const struct dtp_scan_entry none = {.place.work_s = INFINITY};
    out->group_count = groups;
    out->groups = calloc(groups, sizeof *out->groups);
    for (size_t i = 0; i < groups && out->groups; i++) {
        out->groups[i].roomy = out->groups[i].tight = none;
        for (size_t k = 0; k < DTP_SCAN_KEPT; k++)
            out->groups[i].fits[k] = none;
    }
    return out->groups != NULL;
}

static bool prepare_queues(const struct scanner *s, size_t groups, struct worker *w)
{
    uint32_t room[AIMS];
    size_t all = 0;
    for (int aim = 0; aim < AIMS; aim++) {
        room[aim] = s->question->queue_places ? s->question->queue_places : queue_room[aim];
        all += room[aim];
    }
    w->queues = calloc(groups, sizeof *w->queues);
    w->places = calloc(groups * all, sizeof *w->places);
    struct dtp_scan_place *next = w->places;
    for (size_t i = 0; i < groups && w->queues && w->places; i++)
        for (int aim = 0; aim < AIMS; aim++) {
            w->queues[i].of[aim] = (struct dtp_search_queue){.places = next, .room = room[aim]};
            next += room[aim];
        }
    return w->queues && w->places;
}

/* Whether a key leaves it as it is that a layout exists: dtp_plan_layout_exists does not read what it sets. */
static bool leaves_layout(const char *key)
{
    static const char *const keys[] = {"virtual_stages", "strategy",   "offload",    "checkpointing",
                                       "compile",        "accumulate", "micro_batch"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (strcmp(key, keys[i]) == 0)
            return true;
    return false;
}

/* Axes up to and with precision make a group. */
static void measure_axes(struct scanner *s)
{
    const struct dtp_axes *axes = s->question->axes;
    s->group_items = 1;
    s->last_axis_count = axes->axes[axes->count - 1].count;
    for (size_t i = 0; i < axes->count; i++) {
        s->group_axis = s->group_axis || strcmp(axes->axes[i].key, "shard_group") == 0;
        s->sync_axis = s->sync_axis || strcmp(axes->axes[i].key, "accumulate_sync") == 0;
        if (strcmp(axes->axes[i].key, "precision") == 0)
            s->group_axes = i + 1;
    }
    s->layout_stands = true;
    for (size_t i = s->group_axes; i < axes->count; i++)
        s->layout_stands = s->layout_stands && leaves_layout(axes->axes[i].key);
    s->group_axis = s->group_axis || dtp_scenario_get(s->question->base, "shard_group");
    s->sync_axis = s->sync_axis || dtp_scenario_get(s->question->base, "accumulate_sync");
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
        s->workers[i].scan = (struct dtp_scan){.nearest_bytes = INFINITY, .refusal_at = UINT64_MAX};
        if (!prepare_queues(s, groups, &s->workers[i]))
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
        free(s->workers[i].queues);
        free(s->workers[i].places);
        free(s->workers[i].again);
    }
    free(s->workers);
}

static enum dtp_status run(struct scanner *s, unsigned threads, struct dtp_scan *out, struct dtp_faults *faults)
{
    struct dtp_parallel scan = {.count = s->count,
                                .chunk_items = s->chunk_items,
                                .threads = threads,
                                .context = s,
                                .work = work,
                                .watch = watch};
    struct dtp_parallel groups = {.count = out->group_count,
                                  .chunk_items = 1,
                                  .threads = threads,
                                  .context = s,
                                  .work = settle,
                                  .watch = watch_settle};
    s->groups = out->groups;
    enum dtp_status status = dtp_parallel_run(&scan, NULL, faults);
    if (status == DTP_OK) {
        merge_queues(s, threads, out->group_count);
        status = dtp_parallel_run(&groups, NULL, faults);
    }
    for (unsigned i = 0; i < threads && status == DTP_OK; i++)
        merge(out, &s->workers[i].scan);
    return status;
}

/* The fastest by the estimate may all turn out tight once an allocator has replayed them; then others are wanted. */
static size_t kept_of(size_t groups)
{
    const size_t least = 4, all = 256, each = groups ? all / groups : all;
    return each < least ? least : each > DTP_SCAN_KEPT ? DTP_SCAN_KEPT : each;
}

enum dtp_status dtp_scan_run(const struct dtp_search_question *question, bool limits, struct dtp_scan *out,
                             struct dtp_faults *faults)
{
    struct scanner s = {.question = question, .limits = limits};
    *out = (struct dtp_scan){.nearest_bytes = INFINITY, .refusal_at = UINT64_MAX};
    enum dtp_status status = dtp_axes_count(question->axes, &s.count, faults);
    if (status != DTP_OK)
        return status;
    measure_axes(&s);
    s.chunk_items = chunk_items(&s);
    size_t groups = (size_t)(s.count / s.group_items);
    s.kept = kept_of(groups);
    unsigned threads = question->threads ? question->threads : dtp_parallel_threads();
    status = start_workers(&s, threads, groups, faults);
    if (status == DTP_OK && !prepare_groups(groups, out))
        status = dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "out of memory");
    if (status == DTP_OK)
        status = run(&s, threads, out, faults);
    struct dtp_search_counts *n = &out->counts;
    n->combinations = n->refused + n->too_many_nodes + n->pruned_time + n->pruned_memory + n->predicted;
    end_workers(&s, threads);
    if (status != DTP_OK) {
        free(out->groups);
        out->groups = NULL;
    }
    return status;
}
