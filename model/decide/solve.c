#include "decide/solve.h"

#include <stdio.h>
#include <string.h>

/* The search runs over an index 1, 2, 3, ...; the goal turns an index into a value. For the maxima index i fits while
 * the job does; the answer is the largest. */
static uint64_t value_of(enum dtp_solve_goal goal, uint64_t index)
{
    return goal == DTP_SOLVE_MAX_SEQUENCE ? index * DTP_SOLVE_SEQUENCE_STEP : index;
}

static enum dtp_status predict_at(const struct dtp_job *job, struct dtp_solution *solution, uint64_t value,
                                  struct dtp_variant *out, char *reason, size_t reason_bytes)
{
    struct dtp_plan asked = job->asked;
    uint32_t gpus = job->cluster.gpus;
    if (solution->goal == DTP_SOLVE_MAX_MICRO_BATCH)
        asked.micro_batch = (uint32_t)value;
    else if (solution->goal == DTP_SOLVE_MAX_SEQUENCE)
        asked.sequence = value;
    else
        gpus = (uint32_t)value;
    solution->predictions_count++;
    return dtp_variant_predict(job, &asked, gpus, out, reason, reason_bytes);
}

/* One search: for which verdicts a value counts as fitting. */
struct search {
    const struct dtp_job *job;
    struct dtp_solution *solution;
    enum dtp_verdict worst;
};

static bool fits_at(const struct search *search, uint64_t value)
{
    struct dtp_variant variant;
    return predict_at(search->job, search->solution, value, &variant, NULL, 0) == DTP_OK &&
           variant.prediction.memory.verdict <= search->worst;
}

/* Keeps the job at `value`, and what happens at the neighbour `next` (0: there is none). */
static void keep(const struct dtp_job *job, struct dtp_solution *solution, uint64_t value, uint64_t next)
{
    struct dtp_variant variant;
    solution->value = value;
    solution->variant_valid = predict_at(job, solution, value, &solution->variant, solution->next_reason,
                                         sizeof solution->next_reason) == DTP_OK;
    solution->next_value = next;
    if (next == 0)
        return;
    if (predict_at(job, solution, next, &variant, solution->next_reason, sizeof solution->next_reason) != DTP_OK)
        return;
    solution->next_verdict = variant.prediction.memory.verdict;
    solution->next_device_bytes = variant.prediction.memory.device_peak_bytes;
}

/* Most doublings end long before: no job has 16 million sequences or 2 billion tokens in a micro-step. */
#define MAX_INDEX (UINT64_C(1) << 24)

/* Doubles from `low`, which fits (or is 0), and bisects. */
static uint64_t climb(const struct search *search, uint64_t low, uint64_t high)
{
    enum dtp_solve_goal goal = search->solution->goal;
    while (high <= MAX_INDEX && fits_at(search, value_of(goal, high))) {
        low = high;
        high *= 2;
    }
    while (high - low > 1) {
        uint64_t middle = low + (high - low) / 2;
        if (middle <= MAX_INDEX && fits_at(search, value_of(goal, middle)))
            low = middle;
        else
            high = middle;
    }
    return low;
}

/* Largest index that fits, 0 if index 1 does not. What climbing found is verified: something above may fit where the
 * next index did not (allocators round, rules switch), and then the climb goes on from there. */
static uint64_t largest_index(const struct search *search)
{
    uint64_t low = climb(search, 0, 1);
    for (int round = 0; round < 8 && low > 0; round++) {
        const uint64_t probes[] = {low + 2, low + 3, low + low / 8 + 1, low + low / 2 + 1};
        uint64_t above = 0;
        for (size_t i = 0; i < sizeof probes / sizeof *probes; i++)
            if (probes[i] <= MAX_INDEX && fits_at(search, value_of(search->solution->goal, probes[i])))
                above = probes[i];
        if (above == 0)
            return low;
        low = climb(search, above, above + 1);
    }
    return low;
}

/* The answer among indices counted from 1, 0 for none: the one with the margin before the tight one. */
static uint64_t answer_of(struct dtp_solution *solution, uint64_t fitting, uint64_t tight)
{
    solution->tight = fitting == 0 && tight > 0;
    solution->found = fitting > 0 || tight > 0;
    return fitting > 0 ? fitting : tight;
}

static enum dtp_status solve_largest(const struct dtp_job *job, struct dtp_solution *solution)
{
    struct search search = {job, solution, DTP_VERDICT_FITS};
    uint64_t fitting = largest_index(&search);
    search.worst = DTP_VERDICT_TIGHT;
    uint64_t tight = largest_index(&search);
    uint64_t index = answer_of(solution, fitting, tight);
    solution->tight_value = tight > index ? value_of(solution->goal, tight) : 0;
    keep(job, solution, value_of(solution->goal, solution->found ? index : 1),
         solution->found ? value_of(solution->goal, index + 1) : 0);
    return solution->found ? DTP_OK : DTP_NO;
}

/* GPU counts as people rent them: the divisors of a node, then whole nodes. Index 0, 1, ...; 0 after the last. */
static uint64_t rented_count(uint32_t node_gpus, uint64_t index)
{
    for (uint32_t gpus = 1; gpus < node_gpus; gpus++) {
        if (node_gpus % gpus != 0)
            continue;
        if (index == 0)
            return gpus;
        index--;
    }
    uint64_t count = (index + 1) * node_gpus;
    return count <= DTP_SOLVE_MAX_GPUS ? count : 0;
}

/* Index of the fewest that fit, counted from 1; 0 when none does. Counts inside one node are few and are scanned; of
 * whole nodes, doubling brackets and bisection finds the step between the last misfit and the first fit. */
static uint64_t smallest_index(const struct search *search)
{
    uint32_t node_gpus = search->job->node_gpus;
    uint64_t index = 0, last_misfit = 0, step = 1;
    while (rented_count(node_gpus, index) && !fits_at(search, rented_count(node_gpus, index))) {
        last_misfit = index;
        if (rented_count(node_gpus, index) >= node_gpus)
            step *= 2;
        index += step;
    }
    if (!rented_count(node_gpus, index))
        return 0;
    while (index > last_misfit + 1) {
        uint64_t middle = last_misfit + (index - last_misfit) / 2;
        if (fits_at(search, rented_count(node_gpus, middle)))
            index = middle;
        else
            last_misfit = middle;
    }
    return index + 1;
}

static enum dtp_status solve_min_gpus(const struct dtp_job *job, struct dtp_solution *solution)
{
    struct search search = {job, solution, DTP_VERDICT_FITS};
    uint64_t fitting = smallest_index(&search);
    search.worst = DTP_VERDICT_TIGHT;
    uint64_t tight = smallest_index(&search);
    uint64_t index = answer_of(solution, fitting, tight);
    solution->tight_value = tight < index ? rented_count(job->node_gpus, tight - 1) : 0;
    if (solution->found)
        keep(job, solution, rented_count(job->node_gpus, index - 1),
             index > 1 ? rented_count(job->node_gpus, index - 2) : 0);
    else
        keep(job, solution, job->cluster.gpus, 0);
    return solution->found ? DTP_OK : DTP_NO;
}

enum dtp_status dtp_solve(const struct dtp_job *job, enum dtp_solve_goal goal, struct dtp_solution *out)
{
    memset(out, 0, sizeof *out);
    out->goal = goal;
    return goal == DTP_SOLVE_MIN_GPUS ? solve_min_gpus(job, out) : solve_largest(job, out);
}
