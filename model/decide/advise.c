#include "decide/advise.h"

#include "base/append.h"
#include "plan/runtime.h"
#include "job/change.h"
#include "decide/solve.h"
#include "job/estimate.h"
#include "job/bound_fit.h"

#include <stdio.h>
#include <string.h>

/* ---- judging ---------------------------------------------------------------------------------------------------- */

struct search {
    const struct dtp_job *job;
    const struct dtp_scenario *scenario; /* that the job is of, and the catalogue; NULL, both: it is of none */
    const struct dtp_catalog *catalog;
    double tokens_per_s;           /* of the plan as it stands */
    double least_gain;             /* changes below it are not worth a word */
    enum dtp_verdict worst;        /* that still counts as fitting */
    enum dtp_verdict worst_of_all; /* where nothing better is found: tight helps a job that is out of memory */
    struct dtp_advice *advice;
};

/* Keeps the best DTP_ADVICE_KEPT, ordered by tokens/s; of equals the first found stays ahead. */
static void keep(struct dtp_advice *advice, const struct dtp_change *change)
{
    size_t place = 0;
    while (place < advice->count && advice->changes[place].gain >= change->gain)
        place++;
    if (place == DTP_ADVICE_KEPT)
        return;
    size_t last = advice->count < DTP_ADVICE_KEPT ? advice->count++ : DTP_ADVICE_KEPT - 1;
    for (size_t i = last; i > place; i--)
        advice->changes[i] = advice->changes[i - 1];
    advice->changes[place] = *change;
}

/* Its time is known already; memory takes thirty times as long, so that it is asked for last, and the bound before. */
static bool worth_keeping(const struct search *search, struct dtp_change *change)
{
    const struct dtp_job *job = &change->variant.job;
    struct dtp_prediction *prediction = &change->variant.prediction;
    struct dtp_bound_fit fit;
    change->gain = prediction->throughput.tokens_per_s / search->tokens_per_s - 1.0;
    if (change->gain < search->least_gain)
        return false;
    dtp_bound_fit_of(&job->transformer, &job->cluster, &job->plan, NULL, &fit);
    return fit.best_verdict <= search->worst &&
           dtp_estimate_memory(&job->transformer, &job->cluster, &job->plan, &prediction->memory, NULL, NULL) ==
               DTP_OK &&
           prediction->memory.verdict <= search->worst;
}

/* Words the change, and makes of it what these words give, typed behind those of the scenario. False where they are
 * refused: a global batch that was given may not allow another micro batch. */
static bool as_typed(const struct search *search, const struct dtp_plan *asked, const char *flags,
                     struct dtp_change *change)
{
    struct dtp_scenario *typed = NULL;
    struct dtp_faults faults = {0};
    struct dtp_job *job = &change->variant.job;
    char whole[sizeof change->flags];
    dtp_change_flags(search->job, asked, flags, whole, sizeof whole);
    if (!search->scenario) {
        snprintf(change->flags, sizeof change->flags, "%s", whole);
        return true;
    }
    dtp_change_words(search->scenario, search->job, asked, whole, change->flags, sizeof change->flags);
    bool good = dtp_scenario_copy(search->scenario, &typed, &faults) == DTP_OK &&
                dtp_change_set(change->flags, typed, &faults) == DTP_OK &&
                dtp_scenario_resolve(typed, search->catalog, job, &faults) == DTP_OK;
    dtp_scenario_destroy(typed);
    good = good && dtp_closed_form(&job->transformer, &job->cluster, &job->plan, &change->variant.prediction) == DTP_OK;
    return good && worth_keeping(search, change);
}

/* Predicts one change and keeps it when it fits and is worth it. Returns whether it was kept for ranking. */
static bool consider_plan(struct search *search, const struct dtp_plan *asked, uint32_t gpus, const char *flags)
{
    struct dtp_change change;
    search->advice->tried_count++;
    if (dtp_variant_time(search->job, asked, gpus, &change.variant, NULL, 0) != DTP_OK ||
        !worth_keeping(search, &change) || !as_typed(search, asked, flags, &change))
        return false;
    dtp_change_batch_note(search->job, &change.variant.job, change.note, sizeof change.note);
    keep(search->advice, &change);
    return true;
}

/* The same of what flags say. */
static bool consider(struct search *search, uint32_t gpus, const char *flags)
{
    struct dtp_plan asked = search->job->asked;
    dtp_change_apply(flags, &asked);
    return consider_plan(search, &asked, gpus, flags);
}

static void consider_table(struct search *search, enum dtp_change_use use)
{
    struct dtp_change_rule rules[DTP_CHANGE_RULES_MAX];
    size_t count = dtp_change_rules(rules);
    for (size_t i = 0; i < count; i++) {
        struct dtp_plan asked = search->job->asked;
        if (rules[i].use != use || !dtp_change_try(&rules[i], &asked))
            continue;
        /* One GPU has nothing to shard: another strategy there is another runtime's overhead, no advice. */
        if (search->job->cluster.gpus > 1 || asked.strategy == search->job->asked.strategy)
            consider_plan(search, &asked, search->job->cluster.gpus, rules[i].flags);
    }
}

/* Another micro batch and accumulation; returns whether it was worth keeping. */
static bool consider_micro_batch(struct search *search, uint32_t micro_batch, uint32_t accumulate, bool sync)
{
    const struct dtp_plan *asked = &search->job->asked;
    char flags[96];
    snprintf(flags, sizeof flags, "--micro-batch %u", micro_batch);
    if (accumulate != asked->accumulate)
        dtp_append(flags, sizeof flags, " --accumulate %u", accumulate);
    if (sync && !asked->accumulate_sync)
        dtp_append(flags, sizeof flags, " --accumulate-sync");
    return consider(search, search->job->cluster.gpus, flags);
}

/* Smaller micro batches keep the tokens per step by accumulating more. Accumulating without reducing keeps whole
 * gradients, which sharded plans may have no room for: then reduce in each micro-step, or take a smaller step. */
static void consider_smaller_batches(struct search *search)
{
    const struct dtp_plan *asked = &search->job->asked;
    uint64_t per_step = (uint64_t)asked->micro_batch * asked->accumulate;
    for (uint32_t micro_batch = asked->micro_batch / 2; micro_batch >= 1; micro_batch /= 2) {
        uint64_t accumulate = per_step / micro_batch;
        if (per_step % micro_batch != 0 || accumulate > UINT32_MAX)
            continue;
        if (!consider_micro_batch(search, micro_batch, (uint32_t)accumulate, asked->accumulate_sync) &&
            !consider_micro_batch(search, micro_batch, (uint32_t)accumulate, true))
            consider_micro_batch(search, micro_batch, asked->accumulate, asked->accumulate_sync);
    }
}

/* Larger ones first use up the accumulation, then enlarge the step. Throughput flattens while memory keeps growing, so
 * of the sizes that fit the smallest within 2 % of the fastest is proposed. */
static void consider_larger_batches(struct search *search)
{
    const struct dtp_plan *asked = &search->job->asked;
    struct dtp_variant variant;
    double best = 0;
    uint32_t sizes[16], size_count = 0;
    double speeds[16];
    for (uint32_t factor = 2; factor <= 64 && asked->micro_batch <= UINT32_MAX / factor; factor *= 2) {
        struct dtp_plan larger = *asked;
        larger.micro_batch = asked->micro_batch * factor;
        larger.accumulate = asked->accumulate % factor == 0 ? asked->accumulate / factor : asked->accumulate;
        search->advice->tried_count++;
        if (dtp_variant_predict(search->job, &larger, search->job->cluster.gpus, &variant, NULL, 0) != DTP_OK ||
            variant.prediction.memory.verdict != DTP_VERDICT_FITS)
            break;
        sizes[size_count] = factor;
        speeds[size_count++] = variant.prediction.throughput.tokens_per_s;
        if (speeds[size_count - 1] > best)
            best = speeds[size_count - 1];
    }
    for (uint32_t i = 0; i < size_count; i++)
        if (speeds[i] >= 0.98 * best) {
            uint32_t accumulate = asked->accumulate % sizes[i] == 0 ? asked->accumulate / sizes[i] : asked->accumulate;
            consider_micro_batch(search, asked->micro_batch * sizes[i], accumulate, asked->accumulate_sync);
            return;
        }
}

/* Tokens that no text has, so that the head's matmuls run at full speed. */
static void consider_vocabulary(struct search *search)
{
    struct dtp_job padded;
    struct dtp_advice found = {0}, *kept = search->advice;
    char flags[48], note[96];
    const struct dtp_job *job = search->job;
    if (!dtp_change_vocabulary(job, &padded, flags, sizeof flags, note, sizeof note))
        return;
    search->job = &padded, search->advice = &found;
    consider_plan(search, &job->asked, job->cluster.gpus, flags);
    search->job = job, search->advice = kept;
    kept->tried_count += found.tried_count;
    if (!found.count)
        return;
    snprintf(found.changes[0].note, sizeof found.changes[0].note, "%s", note);
    keep(kept, &found.changes[0]);
}

/* Fewer gradient exchanges and optimizer steps for each token. */
static void consider_accumulation(struct search *search)
{
    uint32_t accumulate = search->job->asked.accumulate;
    char flags[48];
    if (accumulate > UINT32_MAX / 4)
        return;
    snprintf(flags, sizeof flags, "--accumulate %u", accumulate * 4);
    consider(search, search->job->cluster.gpus, flags);
}

/* The least a step can be: whole gradients kept over micro-steps would cost more than they save. */
#define ONE_SEQUENCE "--micro-batch 1 --accumulate 1"

/* One change and the smallest micro batch. */
static void consider_small_batch_with(struct search *search, const struct dtp_change_rule *rule)
{
    struct dtp_plan asked = search->job->asked;
    char flags[96];
    if (rule->use != DTP_CHANGE_ADVISED || !dtp_change_try(rule, &asked) || !dtp_change_apply(ONE_SEQUENCE, &asked))
        return;
    snprintf(flags, sizeof flags, "%s " ONE_SEQUENCE, rule->flags);
    consider_plan(search, &asked, search->job->cluster.gpus, flags);
}

/* Where no single change fits: two at once. They are few, so all pairs are tried; two values of one key are none. */
static void consider_pairs(struct search *search)
{
    struct dtp_change_rule rules[DTP_CHANGE_RULES_MAX];
    size_t count = dtp_change_rules(rules);
    for (size_t i = 0; i < count; i++)
        consider_small_batch_with(search, &rules[i]);
    for (size_t i = 0; i < count; i++)
        for (size_t j = i + 1; j < count; j++) {
            struct dtp_plan asked = search->job->asked;
            char flags[2 * sizeof rules[0].flags];
            bool advised = rules[i].use == DTP_CHANGE_ADVISED && rules[j].use == DTP_CHANGE_ADVISED;
            if (!advised || rules[i].key == rules[j].key || !dtp_change_try(&rules[i], &asked) ||
                !dtp_change_try(&rules[j], &asked))
                continue;
            snprintf(flags, sizeof flags, "%s %s", rules[i].flags, rules[j].flags);
            consider_plan(search, &asked, search->job->cluster.gpus, flags);
        }
}

/* What saves most memory without changing the numerics, one step after the other. */
#define SAVING_STEPS 4
static bool save_memory(size_t step, struct dtp_plan *asked, char *flags, size_t bytes)
{
    char strategy[48];
    snprintf(strategy, sizeof strategy, "--strategy %s", dtp_strategy_text(asked->runtime->shards_all));
    const char *const steps[SAVING_STEPS] = {strategy, "--checkpointing full", ONE_SEQUENCE, "--attention flash"};
    if (!dtp_change_apply(steps[step], asked))
        return false;
    dtp_append(flags, bytes, " %s", steps[step]);
    return true;
}

/* The smallest count that fits as it is; where none does, with what saves memory. */
static void consider_more_gpus(struct search *search)
{
    struct dtp_solution solution;
    struct dtp_job job = *search->job;
    char changed[96] = "", flags[128];
    for (size_t step = 0;; step++) {
        enum dtp_status status = dtp_solve(&job, DTP_SOLVE_MIN_GPUS, &solution);
        search->advice->tried_count += solution.predictions_count;
        if (status == DTP_OK && !solution.tight)
            break;
        while (step < SAVING_STEPS && !save_memory(step, &job.asked, changed, sizeof changed))
            step++;
        if (step >= SAVING_STEPS)
            break;
    }
    /* The allocator's cache may outgrow any number of GPUs where one layer is large: then tight must do. */
    search->worst = solution.tight ? search->worst_of_all : DTP_VERDICT_FITS;
    if (!solution.found)
        return;
    /* With all the changes it may fit on fewer than there are: then the changes alone are the advice. As it is it fits
     * on fewer where a hook of DDP gathers what all ranks send: then these are. */
    const bool more = solution.value > search->job->cluster.gpus;
    if (!more)
        search->advice->kind = DTP_ADVICE_MAKES_FIT;
    if (!more && changed[0]) {
        consider_plan(search, &job.asked, search->job->cluster.gpus, changed + 1);
        return;
    }
    dtp_change_gpus_flags(search->job, (uint32_t)solution.value, flags, sizeof flags);
    dtp_append(flags, sizeof flags, "%s", changed);
    consider_plan(search, &job.asked, (uint32_t)solution.value, flags);
}

static void advise_faster(struct search *search)
{
    search->least_gain = DTP_ADVICE_MIN_GAIN;
    consider_table(search, DTP_CHANGE_ADVISED);
    consider_vocabulary(search);
    consider_larger_batches(search);
    consider_accumulation(search);
    search->advice->kind = search->advice->count ? DTP_ADVICE_FASTER : DTP_ADVICE_NONE;
}

static void consider_harmless(struct search *search)
{
    consider_table(search, DTP_CHANGE_ADVISED);
    consider_smaller_batches(search);
    if (search->advice->count == 0)
        consider_pairs(search);
}

/* Cheapest first: what changes nothing but time; then two changes; then the numerics; then the same without a margin,
 * which costs no more; then money. */
static void advise_fitting(struct search *search)
{
    struct dtp_advice *advice = search->advice;
    search->least_gain = -1.0;
    advice->kind = DTP_ADVICE_MAKES_FIT;
    consider_harmless(search);
    if (advice->count == 0)
        consider_table(search, DTP_CHANGE_ADVISED_LAST);
    search->worst = search->worst_of_all;
    if (advice->count == 0 && search->worst != DTP_VERDICT_FITS)
        consider_harmless(search);
    if (advice->count > 0)
        return;
    advice->kind = DTP_ADVICE_MORE_GPUS;
    consider_more_gpus(search);
    if (advice->count == 0)
        advice->kind = search->worst_of_all == DTP_VERDICT_TIGHT ? DTP_ADVICE_HOPELESS : DTP_ADVICE_NONE;
}

void dtp_advise(const struct dtp_job *job, const struct dtp_prediction *prediction, const struct dtp_scenario *scenario,
                const struct dtp_catalog *catalog, struct dtp_advice *out)
{
    struct search search = {.job = job,
                            .scenario = scenario,
                            .catalog = catalog,
                            .tokens_per_s = prediction->throughput.tokens_per_s,
                            .worst = DTP_VERDICT_FITS,
                            .worst_of_all = DTP_VERDICT_FITS,
                            .advice = out};
    if (prediction->memory.verdict == DTP_VERDICT_OOM)
        search.worst_of_all = DTP_VERDICT_TIGHT;
    memset(out, 0, sizeof *out);
    if (!(search.tokens_per_s > 0))
        return;
    if (prediction->memory.verdict == DTP_VERDICT_FITS)
        advise_faster(&search);
    else
        advise_fitting(&search);
}
