/* How long lowering, simulating and replaying the allocator take on one core: LLaMA-7B with 16 micro-steps, a plain
 * step, and the same on 16,384 GPUs. build/bench_simulate */
#include "base/clock.h"
#include "sim/caching_allocator.h"
#include "runtime/runtimes.h"
#include "machine/catalog.h"
#include "base/host_arena.h"
#include "lower/lower.h"
#include "sim/simulate.h"

#include <stdio.h>
#include <stdlib.h>

static void stop(const struct dtp_faults *faults)
{
    fprintf(stderr, "%s\n", faults->text[0]);
    exit(1);
}

/* Best of several runs, as other processes only ever add time. */
#define RUNS 20

static void measure(const char *name, const struct dtp_catalog *catalog, uint32_t gpus, uint32_t accumulate)
{
    static struct dtp_faults faults;
    const struct dtp_gpu *gpu = dtp_catalog_gpu(catalog, "h100-sxm", NULL, 0, &faults);
    const struct dtp_transformer *model = dtp_catalog_model(catalog, "llama-7b", NULL, 0, &faults);
    if (!gpu || !model)
        stop(&faults);
    struct dtp_cluster cluster = {
        .gpu = *gpu, .gpus = gpus, .gpus_per_node = 8, .nodes = gpus / 8, .oversubscription = 1};
    cluster.machine = *dtp_catalog_default_machine(catalog, gpu);
    struct dtp_plan plan = dtp_plan_default();
    plan.accumulate = accumulate;
    if (dtp_plan_resolve(&plan, model, &cluster, &faults) != DTP_OK)
        stop(&faults);
    struct dtp_simulation_options options = dtp_simulation_options_default();
    options.replay_allocator = false;
    double lower_s = 1e9, simulate_s = 1e9, replay_s = 1e9;
    size_t ops = 0;
    uint32_t steps = 0;
    for (int i = 0; i < RUNS; i++) {
        struct dtp_program *program;
        struct dtp_timeline timeline;
        struct dtp_allocator_replay replay;
        double start_s = dtp_now_s();
        if (dtp_lower(model, &cluster, &plan, 0, &program, &faults) != DTP_OK)
            stop(&faults);
        double lowered_s = dtp_now_s();
        if (dtp_simulate(program, &cluster, &options, &timeline, &faults) != DTP_OK)
            stop(&faults);
        double simulated_s = dtp_now_s();
        if (dtp_allocator_replay(program, &timeline, false, 0, &replay, &faults) != DTP_OK)
            stop(&faults);
        double end_s = dtp_now_s();
        lower_s = lowered_s - start_s < lower_s ? lowered_s - start_s : lower_s;
        simulate_s = simulated_s - lowered_s < simulate_s ? simulated_s - lowered_s : simulate_s;
        replay_s = end_s - simulated_s < replay_s ? end_s - simulated_s : replay_s;
        ops = dtp_program_op_count(program);
        steps = replay.steps;
        dtp_timeline_release(&timeline);
        dtp_program_destroy(program);
    }
    printf("%-34s %6zu ops: lower %6.2f ms, simulate %6.2f ms (%.1f M ops/s), allocator %6.2f ms (%u steps)\n", name,
           ops, 1e3 * lower_s, 1e3 * simulate_s, 1e-6 * (double)ops / simulate_s, 1e3 * replay_s, steps);
}

int main(void)
{
    dtp_host_memory_keep();
    static struct dtp_faults faults;
    static struct dtp_catalog catalog;
    if (dtp_catalog_load(TEST_SOURCE_DIR "/scenarios", &catalog, &faults) != DTP_OK)
        stop(&faults);
    measure("llama-7b, 8 GPUs", &catalog, 8, 1);
    measure("llama-7b, 16384 GPUs", &catalog, 16384, 1);
    measure("llama-7b, 8 GPUs, 16 micro-steps", &catalog, 8, 16);
    dtp_catalog_destroy(&catalog);
    return 0;
}
