/* How long the LLaMA 405B step of 16,384 GPUs takes to predict on one core: 16 stages, 64 micro-steps to 512, lowered,
 * simulated as a set, and all of it as `dtplan plan` asks for it. build/bench_pipeline */
#include "base/clock.h"
#include "base/host_arena.h"
#include "machine/catalog.h"
#include "runtime/runtimes.h"
#include "sim/simulated.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>

#define RUNS 5 /* the best of them, as other processes only ever add time */

static double least(double a, double b)
{
    return a < b ? a : b;
}

static void stop(const struct dtp_faults *faults)
{
    fprintf(stderr, "%s\n", faults->text[0]);
    exit(1);
}

static struct dtp_job job_of(const struct dtp_catalog *catalog, uint32_t accumulate, struct dtp_faults *faults)
{
    const struct dtp_gpu *gpu = dtp_catalog_gpu(catalog, "h100-sxm", NULL, 0, faults);
    const struct dtp_transformer *model = dtp_catalog_model(catalog, "llama-3.1-405b", NULL, 0, faults);
    if (!gpu || !model)
        stop(faults);
    struct dtp_job job = {.transformer = *model};
    job.cluster =
        (struct dtp_cluster){.gpu = *gpu, .gpus = 16384, .gpus_per_node = 8, .nodes = 16384 / 8, .oversubscription = 1};
    job.cluster.machine = *dtp_catalog_default_machine(catalog, gpu);
    job.plan = dtp_plan_default();
    job.plan.runtime = dtp_runtime_find("megatron");
    job.plan.strategy = DTP_ZERO1;
    job.plan.tp = 8, job.plan.pp = 16, job.plan.accumulate = accumulate, job.plan.sequence = 8192;
    if (dtp_plan_resolve(&job.plan, &job.transformer, &job.cluster, faults) != DTP_OK)
        stop(faults);
    return job;
}

static void measure(const struct dtp_catalog *catalog, uint32_t accumulate)
{
    static struct dtp_faults faults;
    struct dtp_job job = job_of(catalog, accumulate, &faults);
    struct dtp_simulation_options options = dtp_simulation_options_default();
    options.replay_allocator = false;
    double lower_s = 1e9, simulate_s = 1e9, all_s = 1e9;
    size_t ops = 0;
    for (int i = 0; i < RUNS; i++) {
        struct dtp_program_set set;
        struct dtp_timeline timelines[64];
        struct dtp_simulated simulated;
        double start_s = dtp_now_s();
        if (dtp_lower_set(&job.transformer, &job.cluster, &job.plan, 0, &set, &faults) != DTP_OK)
            stop(&faults);
        double lowered_s = dtp_now_s();
        if (dtp_simulate_proved_set(&set, &job.cluster, &options, timelines, &faults) != DTP_OK)
            stop(&faults);
        double simulated_s = dtp_now_s();
        ops = 0;
        for (uint32_t r = 0; r < set.role_count; r++) {
            ops += dtp_program_op_count(set.roles[r].program);
            dtp_timeline_release(&timelines[r]);
        }
        dtp_program_set_release(&set);
        double begin_s = dtp_now_s();
        options.replay_allocator = true;
        if (dtp_simulated_create(&job, &options, &simulated, &faults) != DTP_OK)
            stop(&faults);
        options.replay_allocator = false;
        all_s = least(all_s, dtp_now_s() - begin_s);
        dtp_simulated_release(&simulated);
        lower_s = least(lower_s, lowered_s - start_s);
        simulate_s = least(simulate_s, simulated_s - lowered_s);
    }
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    printf(
        "%u micro-steps: %zu operations, lowered %.0f ms, simulated %.0f ms; a prediction %.0f ms, at most %ld MiB\n",
        accumulate, ops, 1e3 * lower_s, 1e3 * simulate_s, 1e3 * all_s, usage.ru_maxrss / 1024);
}

int main(void)
{
    static struct dtp_faults faults;
    static struct dtp_catalog catalog;
    dtp_host_memory_keep();
    if (dtp_catalog_load(TEST_SOURCE_DIR "/scenarios", &catalog, &faults) != DTP_OK)
        stop(&faults);
    for (uint32_t accumulate = 64; accumulate <= 512; accumulate *= 2)
        measure(&catalog, accumulate);
    dtp_catalog_destroy(&catalog);
    return 0;
}
