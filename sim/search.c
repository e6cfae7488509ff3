#include "sim/search.h"

#include "base/parallel.h"
#include "job/estimate.h"
#include "sim/search_scan.h"
#include "sim/simulated.h"
#include "sim/miniature_time.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What one simulation, and all of them, may take, in layers times micro-steps, of which each is some 55 operations. */
#define MAX_LAYER_STEPS 8000.0
#define MAX_ALL_LAYER_STEPS 60000.0
/* Of pipelines, whose time does not follow from shorter steps; and of all of them once it is known who comes first. */
#define MAX_PIPELINE_LAYER_STEPS 16000.0
#define MAX_FURTHER_LAYER_STEPS 120000.0
/* What comes first in the end is to be simulated, too: formulas are often below simulations, so that what was not
 * simulated comes up. So many are looked at, in so many further rounds at most. */
#define SETTLED 6u
#define FURTHER_ROUNDS 4

/* ---- candidates -------------------------------------------------------------------------------------------------- */

enum dtp_status dtp_search_choose(const struct dtp_search_choice *choice, struct dtp_scenario *scenario,
                                  struct dtp_faults *faults)
{
    char text[16];
    enum dtp_status status = DTP_OK;
    snprintf(text, sizeof text, "%" PRIu32, choice->shard_group);
    if (choice->shard_group)
        status = dtp_scenario_set(scenario, "shard_group", text, "search", 0, faults);
    if (choice->reduce_always && status == DTP_OK)
        status = dtp_scenario_set(scenario, "accumulate_sync", "true", "search", 0, faults);
    return status;
}

void dtp_search_take_back(const struct dtp_search_choice *choice, struct dtp_scenario *scenario)
{
    if (choice->shard_group)
        dtp_scenario_unset(scenario, "shard_group");
    if (choice->reduce_always)
        dtp_scenario_unset(scenario, "accumulate_sync");
}

enum dtp_status dtp_search_apply(const struct dtp_search_question *question, const struct dtp_candidate *candidate,
                                 struct dtp_scenario *scenario, struct dtp_faults *faults)
{
    enum dtp_status status = dtp_axes_apply(question->axes, candidate->combination, false, scenario, faults);
    return status == DTP_OK ? dtp_search_choose(&candidate->choice, scenario, faults) : status;
}

bool dtp_search_has_limits(const struct dtp_job *job)
{
    return job->training.deadline_s > 0 || job->training.budget_usd > 0;
}

/* Figures that follow from the prediction. */
static void judge(const struct dtp_search_question *question, struct dtp_candidate *c)
{
    const struct dtp_job *job = &c->variant.job;
    const struct dtp_memory *m = &c->variant.prediction.memory;
    dtp_money_of(job, &c->variant.prediction.throughput, dtp_catalog_price(question->catalog, job->cluster.gpu.key),
                 &c->money);
    dtp_training_cost_of(job, &c->variant.prediction.throughput, dtp_training_plain_step_s(job), &c->money, false,
                         &c->cost);
    c->usual_format = question->precision_pinned || strcmp(dtp_precision_name(&job->plan.precision), "bf16-mixed") == 0;
    c->headroom = 1 - (double)m->device_peak_bytes / (double)m->capacity_bytes;
    c->valid = !c->cost.late && !c->cost.over_budget && !c->cost.goodput.hopeless;
    c->fits = m->verdict == DTP_VERDICT_FITS;
    c->patient = dtp_search_has_limits(job) || c->cost.goodput.expected_s <= DTP_SEARCH_PATIENCE_S;
}

/* What the scan has kept, resolved and predicted anew but for memory that is known. */
static enum dtp_status predict_again(const struct dtp_search_question *question, const struct dtp_scan_entry *entry,
                                     struct dtp_candidate *c, struct dtp_faults *faults)
{
    struct dtp_scenario *scenario = NULL;
    *c = (struct dtp_candidate){.combination = entry->place.combination, .choice = entry->place.choice};
    enum dtp_status status = dtp_scenario_copy(question->base, &scenario, faults);
    if (status == DTP_OK)
        status = dtp_search_apply(question, c, scenario, faults);
    if (status == DTP_OK)
        status = dtp_scenario_resolve(scenario, question->catalog, &c->variant.job, faults);
    bool batch_free = status == DTP_OK && !dtp_scenario_get(scenario, "global_batch") &&
                      !dtp_scenario_get(scenario, "global_batch_tokens");
    dtp_scenario_destroy(scenario);
    if (status != DTP_OK)
        return status;
    struct dtp_job *job = &c->variant.job;
    c->batch_free = batch_free;
    status = dtp_estimate_time(&job->transformer, &job->cluster, &job->plan, &c->variant.prediction, faults);
    c->variant.prediction.memory = entry->memory;
    c->closed_step_s = c->variant.prediction.time.step_s;
    return entry->estimated || status != DTP_OK ? status
                                                : dtp_estimate_memory(&job->transformer, &job->cluster, &job->plan,
                                                                      &c->variant.prediction.memory, NULL, faults);
}

static enum dtp_status add_candidate(const struct dtp_search_question *question, const struct dtp_scan_entry *entry,
                                     struct dtp_search *out, struct dtp_faults *faults)
{
    struct dtp_candidate *c = &out->candidates[out->count];
    enum dtp_status status = isinf(entry->place.work_s) ? DTP_OK : predict_again(question, entry, c, faults);
    if (status != DTP_OK || isinf(entry->place.work_s))
        return status;
    judge(question, c);
    out->count++;
    return DTP_OK;
}

static bool same_choice(const struct dtp_search_choice *a, const struct dtp_search_choice *b)
{
    return a->shard_group == b->shard_group && a->reduce_always == b->reduce_always;
}

/* A group's fastest; what is tight only where nothing else fits; the roomy one where it is none of the fastest. */
static enum dtp_status add_group(const struct dtp_search_question *question, const struct dtp_scan_group *group,
                                 struct dtp_search *out, struct dtp_faults *faults)
{
    bool roomy_is_there = false, none = group->fit_count == 0;
    enum dtp_status status = none ? add_candidate(question, &group->tight, out, faults) : DTP_OK;
    for (size_t i = 0; i < DTP_SCAN_KEPT && status == DTP_OK; i++) {
        status = add_candidate(question, &group->fits[i], out, faults);
        roomy_is_there = roomy_is_there || (group->fits[i].place.combination == group->roomy.place.combination &&
                                            same_choice(&group->fits[i].place.choice, &group->roomy.place.choice));
    }
    if (status == DTP_OK && !roomy_is_there)
        status = add_candidate(question, &group->roomy, out, faults);
    return status;
}

/* ---- the objective ----------------------------------------------------------------------------------------------- */

static double usd_of(const struct dtp_candidate *c)
{
    return c->money.known ? c->cost.usd[DTP_PRICE_TYPICAL] : 0;
}

static int by(double a, double b)
{
    return (a > b) - (a < b);
}

/* What counts before any figure, most first: within the limits; with a margin of memory; within DTP_SEARCH_PATIENCE_S
 * where no limit asks for anything; in the usual number format. */
static int class_of(const struct dtp_candidate *c)
{
    return 8 * c->valid + 4 * c->fits + 2 * c->patient + c->usual_format;
}

/* Below 0: `a` is the better one. */
static int compare(bool fastest, const struct dtp_candidate *a, const struct dtp_candidate *b)
{
    int order = class_of(b) - class_of(a);
    if (!order)
        order = fastest ? by(a->cost.goodput.expected_s, b->cost.goodput.expected_s) : by(usd_of(a), usd_of(b));
    if (!order)
        order = fastest ? by(usd_of(a), usd_of(b)) : by(a->cost.goodput.expected_s, b->cost.goodput.expected_s);
    if (!order)
        order = by((double)a->combination, (double)b->combination);
    return order ? order : by(a->choice.shard_group, b->choice.shard_group);
}

static int compare_for_qsort(const void *left, const void *right, void *fastest)
{
    return compare(*(const bool *)fastest, left, right);
}

/* With a budget alone it is time that is wanted for it; else money. */
static bool wants_fastest(const struct dtp_search *search)
{
    const struct dtp_training *t = &search->candidates[0].variant.job.training;
    return search->count && t->budget_usd > 0 && !(t->deadline_s > 0);
}

static double risk_class(const struct dtp_candidate *c)
{
    return floor(c->headroom / DTP_SEARCH_RISK_STEP);
}

static bool dominates(const struct dtp_candidate *a, const struct dtp_candidate *b)
{
    double time = b->cost.goodput.expected_s - a->cost.goodput.expected_s, usd = usd_of(b) - usd_of(a);
    double risk = risk_class(a) - risk_class(b);
    return time >= 0 && usd >= 0 && risk >= 0 && (time > 0 || usd > 0 || risk > 0);
}

/* As zero1 and ddp are with one data-parallel rank. */
static bool equals(const struct dtp_candidate *a, const struct dtp_candidate *b)
{
    return a->cost.goodput.expected_s == b->cost.goodput.expected_s && usd_of(a) == usd_of(b) &&
           a->headroom == b->headroom && a->variant.job.cluster.gpus == b->variant.job.cluster.gpus;
}

/* Of the best class there is, which the order puts first; of equal ones the first. */
static void mark_front(struct dtp_search *search)
{
    const struct dtp_candidate *first = search->candidates;
    size_t class = 0;
    while (class < search->count && class_of(&first[class]) == class_of(&first[0]))
        class ++;
    for (size_t i = 0; i < search->count; i++) {
        search->candidates[i].front = i < class;
        for (size_t k = 0; k < class && search->candidates[i].front; k++)
            search->candidates[i].front = !dominates(&first[k], &first[i]) && !(k < i && equals(&first[k], &first[i]));
    }
}

static void order(struct dtp_search *search)
{
    bool fastest = wants_fastest(search);
    if (search->count)
        qsort_r(search->candidates, search->count, sizeof *search->candidates, compare_for_qsort, &fastest);
    mark_front(search);
}

/* ---- simulation -------------------------------------------------------------------------------------------------- */

struct simulation_run {
    const struct dtp_search_question *question;
    struct dtp_candidate **chosen;
    uint64_t combinations; /* of the whole search: all are behind a simulation */
};

static enum dtp_status simulate_one(void *context, unsigned thread, uint64_t first, uint64_t count)
{
    struct simulation_run *run = context;
    (void)thread;
    for (uint64_t i = first; i < first + count; i++) {
        struct dtp_candidate *c = run->chosen[i];
        struct dtp_prediction prediction;
        bool whole = !c->reason[0];
        struct dtp_predictor predictor = whole ? dtp_predictor_simulated() : dtp_predictor_miniature();
        struct dtp_faults *faults = calloc(1, sizeof *faults);
        if (!faults)
            return DTP_ENVIRONMENT;
        enum dtp_status status = predictor.predict(predictor.context, &c->variant.job, &prediction, faults);
        c->simulated = whole && status == DTP_OK;
        c->estimated = !whole && status == DTP_OK;
        if (status == DTP_OK)
            c->variant.prediction = prediction;
        else if (whole)
            snprintf(c->reason, sizeof c->reason, "%.159s", faults->count ? faults->text[0] : dtp_status_text(status));
        free(faults);
        if (status == DTP_ENVIRONMENT)
            return status;
        judge(run->question, c);
    }
    return DTP_OK;
}

/* What was chosen so far. */
struct simulation_choice {
    struct dtp_candidate **chosen; /* of this round */
    size_t count, whole, estimated, most;
    double all, room; /* layers times micro-steps: of all so far, of as many as there may be */
};

static void choose(struct simulation_choice *choice, struct dtp_candidate *c)
{
    double size = (double)c->variant.job.transformer.layers * c->variant.job.plan.accumulate;
    bool pipeline = c->variant.job.plan.pp > 1;
    bool too_large = size > (pipeline ? MAX_PIPELINE_LAYER_STEPS : MAX_LAYER_STEPS);
    if (c->simulated || c->estimated || c->reason[0] || choice->whole == choice->most ||
        (pipeline && !too_large && choice->all + size > choice->room))
        return;
    if (too_large || choice->all + size > choice->room) {
        snprintf(c->reason, sizeof c->reason, "%" PRIu32 " micro-steps are too many to simulate in a search",
                 c->variant.job.plan.accumulate);
        if (choice->estimated == choice->most)
            return;
        choice->estimated++;
    } else {
        choice->whole++;
        choice->all += size;
    }
    choice->chosen[choice->count++] = c;
}

/* The first of the order and the front, as many as time allows; which they are follows from their sizes, not from a
 * clock. What has a reason not to be simulated whole is to be estimated, as many at most. */
static void choose_first(struct dtp_search *search, struct simulation_choice *choice)
{
    for (size_t i = 0; i < search->count && i < choice->most / 2; i++)
        choose(choice, &search->candidates[i]);
    for (size_t i = choice->most / 2; i < search->count; i++)
        if (search->candidates[i].front)
            choose(choice, &search->candidates[i]);
}

/* The memory proof: what the replay of the allocator, or the arena's placement, does not fit is no candidate. */
static void drop_misfits(struct dtp_search *search)
{
    size_t kept = 0;
    for (size_t i = 0; i < search->count; i++) {
        bool misfit = search->candidates[i].variant.prediction.memory.verdict == DTP_VERDICT_OOM;
        search->counts.dropped += misfit;
        if (!misfit)
            search->candidates[kept++] = search->candidates[i];
    }
    search->count = kept;
}

static bool watch(void *context, uint64_t done, uint64_t count)
{
    const struct simulation_run *run = context;
    const struct dtp_search_question *question = run->question;
    (void)done;
    (void)count;
    return !question->watch || question->watch(question->watch_context, run->combinations, run->combinations);
}

static enum dtp_status simulate_chosen(const struct dtp_search_question *question, struct dtp_search *search,
                                       const struct simulation_choice *choice, struct dtp_faults *faults)
{
    struct simulation_run run = {question, choice->chosen, search->counts.combinations};
    struct dtp_parallel job = {.count = choice->count,
                               .chunk_items = 1,
                               .threads = question->threads,
                               .context = &run,
                               .work = simulate_one,
                               .watch = watch};
    enum dtp_status status = dtp_parallel_run(&job, NULL, faults);
    for (size_t i = 0; i < job.count; i++)
        search->counts.simulated += choice->chosen[i]->simulated;
    if (status == DTP_OK) {
        drop_misfits(search);
        order(search);
    } else if (status != DTP_NO && faults->count == 0) {
        dtp_fault(faults, status, NULL, 0, "out of memory");
    }
    return status;
}

static enum dtp_status simulate(const struct dtp_search_question *question, struct dtp_search *search,
                                struct dtp_faults *faults)
{
    struct dtp_candidate **chosen = calloc(2 * (size_t)question->simulate_count + 1, sizeof *chosen);
    if (!chosen)
        return dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "out of memory");
    struct simulation_choice choice = {.chosen = chosen, .most = question->simulate_count, .room = MAX_ALL_LAYER_STEPS};
    enum dtp_status status = DTP_OK;
    for (int round = 0; round <= FURTHER_ROUNDS && status == DTP_OK; round++) {
        choice.count = 0;
        if (round == 0) {
            choose_first(search, &choice);
        } else if (round == 1) {
            choice.most += choice.most / 2;
            choice.room = MAX_FURTHER_LAYER_STEPS;
        }
        for (size_t i = 0; i < search->count && i < SETTLED && round > 0; i++)
            choose(&choice, &search->candidates[i]);
        if (!choice.count)
            break;
        status = simulate_chosen(question, search, &choice, faults);
    }
    free(chosen);
    return status;
}

/* ---- the answer -------------------------------------------------------------------------------------------------- */

/* Another GPU, another number of them, another strategy, group or division of the model: who differs in a detail only
 * is no rival. */
static bool differs(const struct dtp_candidate *a, const struct dtp_candidate *b)
{
    const struct dtp_job *x = &a->variant.job, *y = &b->variant.job;
    return strcmp(x->cluster.gpu.key, y->cluster.gpu.key) != 0 || x->cluster.gpus != y->cluster.gpus ||
           x->plan.strategy != y->plan.strategy || x->plan.shard_group != y->plan.shard_group ||
           x->plan.offload != y->plan.offload || x->plan.runtime != y->plan.runtime || x->plan.tp != y->plan.tp ||
           x->plan.pp != y->plan.pp || x->plan.cp != y->plan.cp || x->plan.ep != y->plan.ep;
}

/* The first that is no detail of the best, and the first in another format if it beats the best. */
static void recommend(struct dtp_search *search)
{
    struct dtp_candidate *best = search->candidates;
    search->recommended = search->count && best->valid ? 0 : -1;
    if (search->recommended == 0) /* of one candidate there is time for the Monte Carlo */
        dtp_training_cost_of(&best->variant.job, &best->variant.prediction.throughput,
                             dtp_training_plain_step_s(&best->variant.job), &best->money, true, &best->cost);
    for (size_t i = 1; i < search->count && search->recommended == 0; i++) {
        const struct dtp_candidate *c = &search->candidates[i];
        if (search->runner_up < 0 && class_of(c) == class_of(best) && differs(c, best))
            search->runner_up = (long)i;
        if (search->other_format < 0 && c->valid && c->fits >= best->fits && c->usual_format != best->usual_format &&
            (wants_fastest(search) ? c->cost.goodput.expected_s < best->cost.goodput.expected_s
                                   : usd_of(c) < usd_of(best)))
            search->other_format = (long)i;
    }
}

static enum dtp_status collect(const struct dtp_search_question *question, bool limits, struct dtp_search *out,
                               struct dtp_scan *scan, struct dtp_faults *faults)
{
    enum dtp_status status = dtp_scan_run(question, limits, scan, faults);
    if (status != DTP_OK)
        return status;
    out->counts = scan->counts;
    out->count = 0;
    free(out->candidates);
    out->candidates = calloc(scan->group_count * (DTP_SCAN_KEPT + 2) + 1, sizeof *out->candidates);
    if (!out->candidates)
        status = dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "out of memory");
    for (size_t i = 0; i < scan->group_count && status == DTP_OK; i++)
        status = add_group(question, &scan->groups[i], out, faults);
    free(scan->groups);
    scan->groups = NULL;
    if (status == DTP_OK)
        order(out);
    return status;
}

static void least(double value, double *out)
{
    if (value > 0 && (*out == 0 || value < *out))
        *out = value;
}

/* Bytes that the nearest of those that do not fit lacks. */
static enum dtp_status find_missing(const struct dtp_search_question *question, const struct dtp_scan *scan,
                                    double *bytes, struct dtp_faults *faults)
{
    struct dtp_candidate nearest;
    *bytes = 0;
    if (isinf(scan->nearest_bytes))
        return DTP_OK;
    enum dtp_status status = predict_again(question, &scan->nearest, &nearest, faults);
    const struct dtp_memory *m = &nearest.variant.prediction.memory;
    if (status == DTP_OK && m->device_peak_bytes > m->capacity_bytes)
        *bytes = (double)(m->device_peak_bytes - m->capacity_bytes);
    return status;
}

/* Which limit would have to move, and how far: from all that fits, whatever its time and money. */
static void relax(const struct dtp_search *search, const struct dtp_scan *scan, double missing_bytes,
                  struct dtp_search_relax *out)
{
    bool any_margin = false; /* then a tight plan moves no limit */
    for (size_t i = 0; i < search->count; i++)
        any_margin = any_margin || search->candidates[i].fits;
    *out = (struct dtp_search_relax){.any_fits = search->count > 0, .missing_bytes = missing_bytes};
    if (scan->counts.predicted == 0)
        memcpy(out->refusal, scan->refusal, sizeof out->refusal);
    for (size_t i = 0; i < search->count; i++) {
        const struct dtp_candidate *c = &search->candidates[i];
        double time_s = c->cost.goodput.expected_s, usd = usd_of(c);
        if (c->cost.goodput.hopeless || !c->usual_format || c->fits != any_margin)
            continue;
        out->any_ends = true;
        least(time_s, &out->free_deadline_s);
        least(usd, &out->free_budget_usd);
        if (!c->cost.over_budget)
            least(time_s, &out->deadline_s);
        if (!c->cost.late)
            least(usd, &out->budget_usd);
    }
}

enum dtp_status dtp_search(const struct dtp_search_question *question, struct dtp_search *out,
                           struct dtp_faults *faults)
{
    struct dtp_scan scan = {0};
    *out = (struct dtp_search){.recommended = -1, .runner_up = -1, .other_format = -1};
    enum dtp_status status = collect(question, true, out, &scan, faults);
    if (status == DTP_OK)
        status = simulate(question, out, faults);
    if (status == DTP_OK)
        recommend(out);
    if (status == DTP_OK && out->recommended < 0) {
        struct dtp_search_counts first = out->counts;
        status = collect(question, false, out, &scan, faults); /* again, without the limits */
        double missing_bytes = 0;
        if (status == DTP_OK)
            status = find_missing(question, &scan, &missing_bytes, faults);
        if (status == DTP_OK)
            relax(out, &scan, missing_bytes, &out->relax);
        out->counts = first;
    }
    if (status != DTP_OK) {
        dtp_search_release(out);
        return status == DTP_NO ? DTP_ENVIRONMENT : status; /* no answer: the watch ended it */
    }
    return out->recommended < 0 ? DTP_NO : DTP_OK;
}

void dtp_search_release(struct dtp_search *search)
{
    free(search->candidates);
    *search = (struct dtp_search){.recommended = -1, .runner_up = -1, .other_format = -1};
}
