#include "solve.h"

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

static bool fits_at(const struct dtp_job *job, struct dtp_solution *solution, uint64_t value)
{
    struct dtp_variant variant;
    return predict_at(job, solution, value, &variant, NULL, 0) == DTP_OK &&
           variant.prediction.memory.verdict == DTP_VERDICT_FITS;
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

/* Largest index that fits, 0 if index 1 does not. `limit` bounds the doubling. */
static uint64_t largest_index(const struct dtp_job *job, struct dtp_solution *solution, uint64_t limit)
{
    enum dtp_solve_goal goal = solution->goal;
    uint64_t low = 0, high = 1;
    for (int round = 0; round < 8; round++) {
        while (high <= limit && fits_at(job, solution, value_of(goal, high))) {
            low = high;
            high *= 2;
        }
        while (high - low > 1) {
            uint64_t middle = low + (high - low) / 2;
            if (middle <= limit && fits_at(job, solution, value_of(goal, middle)))
                low = middle;
            else
                high = middle;
        }
        /* Verify: something well above may fit where the next index did not (rounding, a rule that switches). */
        uint64_t probes[] = {low + 2, low + 3, low + low / 8 + 1, low + low / 2 + 1};
        high = 0;
        for (size_t i = 0; i < sizeof probes / sizeof *probes && low > 0; i++)
            if (probes[i] > low + 1 && probes[i] <= limit && fits_at(job, solution, value_of(goal, probes[i])))
                high = probes[i];
        if (high == 0)
            return low;
    }
    return low;
}

static enum dtp_status solve_largest(const struct dtp_job *job, struct dtp_solution *solution)
{
    const uint64_t limit = UINT64_C(1) << 24;
    uint64_t index = largest_index(job, solution, limit);
    solution->found = index > 0;
    keep(job, solution, value_of(solution->goal, solution->found ? index : 1),
         solution->found ? value_of(solution->goal, index + 1) : 0);
    return solution->found ? DTP_OK : DTP_NO;
}

/* GPU counts as people rent them: the divisors of a node, then whole nodes. Index 0, 1, ...; 0 after the last. */
static uint64_t rented_count(uint32_t node_gpus, uint64_t index)
{
    for (uint32_t gpus = 1; gpus < node_gpus; gpus++)
        if (node_gpus % gpus == 0 && index-- == 0)
            return gpus;
    uint64_t count = (index + 1) * node_gpus;
    return count <= DTP_SOLVE_MAX_GPUS ? count : 0;
}

/* Counts inside one node are few: scan them. Whole nodes: double, then bisect between the last misfit and first fit. */
static enum dtp_status solve_min_gpus(const struct dtp_job *job, struct dtp_solution *solution)
{
    uint64_t index = 0, last_misfit = 0, step = 1;
    while (rented_count(job->node_gpus, index) && !fits_at(job, solution, rented_count(job->node_gpus, index))) {
        last_misfit = index;
        if (rented_count(job->node_gpus, index) >= job->node_gpus)
            step *= 2;
        index += step;
    }
    if (!rented_count(job->node_gpus, index)) {
        keep(job, solution, rented_count(job->node_gpus, last_misfit), 0);
        return DTP_NO;
    }
    while (index > last_misfit + 1) {
        uint64_t middle = last_misfit + (index - last_misfit) / 2;
        if (fits_at(job, solution, rented_count(job->node_gpus, middle)))
            index = middle;
        else
            last_misfit = middle;
    }
    solution->found = true;
    keep(job, solution, rented_count(job->node_gpus, index), index > 0 ? rented_count(job->node_gpus, index - 1) : 0);
    return DTP_OK;
}

enum dtp_status dtp_solve(const struct dtp_job *job, enum dtp_solve_goal goal, struct dtp_solution *out)
{
    memset(out, 0, sizeof *out);
    out->goal = goal;
    return goal == DTP_SOLVE_MIN_GPUS ? solve_min_gpus(job, out) : solve_largest(job, out);
}
