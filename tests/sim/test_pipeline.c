/* Pipelines simulated as a set: the bubble of equal stages is what the schedule's exact timer says. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "lib/hardware.h"
#include "lib/llama_7b.h"
#include "schedule/schedule_time.h"
#include "sim/simulated.h"

static struct dtp_faults faults;

/* Stages of equal cost: next to no vocabulary, four layers a stage. */
static struct dtp_job job_of(uint32_t ranks, uint32_t micro_batches, uint32_t chunks)
{
    struct dtp_job job = {.transformer = llama_7b(), .cluster = test_cluster(test_h200(), ranks, ranks)};
    job.transformer.layers = 4 * ranks * chunks, job.transformer.vocab = 16;
    job.plan = dtp_plan_default();
    job.plan.runtime = dtp_runtime_find("megatron");
    job.plan.strategy = DTP_DDP;
    job.plan.pp = ranks, job.plan.accumulate = micro_batches, job.plan.virtual_stages = chunks;
    job.plan.sequence = 8192, job.plan.micro_batch = 2;
    return job;
}

static struct dtp_simulated simulated(struct dtp_job *job)
{
    struct dtp_simulation_options options = dtp_simulation_options_default();
    struct dtp_simulated s;
    options.infinite_bandwidth = true, options.power_headroom = false, options.compute_factor = 1;
    faults = (struct dtp_faults){0};
    if (dtp_plan_resolve(&job->plan, &job->transformer, &job->cluster, &faults) != DTP_OK ||
        dtp_simulated_create(job, &options, &s, &faults) != DTP_OK)
        fail_msg("%s", faults.text[0]);
    return s;
}

/* Of a rank's forwards and backwards. */
static double bubble_share(const struct dtp_simulated *s)
{
    double bubble_s = 0, compute_s = 0;
    for (uint32_t r = 0; r < s->set.role_count; r++) {
        bubble_s += s->roles[r].timeline.bubble_s;
        compute_s += s->roles[r].timeline.compute_s;
    }
    return bubble_s / compute_s;
}

static void test_bubbles_of_equal_stages(void **state)
{
    static const uint32_t rows[][3] = {{2, 2, 1}, {2, 8, 1}, {4, 4, 1}, {4, 12, 1}, {4, 8, 2}, {2, 4, 3}};
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct dtp_job job = job_of(rows[i][0], rows[i][1], rows[i][2]);
        struct dtp_simulated s = simulated(&job);
        double expected = (rows[i][0] - 1.0) / rows[i][1] / rows[i][2], is = bubble_share(&s);
        if (fabs(is / expected - 1) > 0.01)
            fail_msg("pp %u, %u micro-batches, %u chunks: bubble %.4f of the work, not %.4f", rows[i][0], rows[i][1],
                     rows[i][2], is, expected);
        dtp_simulated_release(&s);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_bubbles_of_equal_stages)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
