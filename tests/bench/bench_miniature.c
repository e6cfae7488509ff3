/* Microseconds that the exact live bytes of a step and its time take on one core, from miniatures and by lowering and
 * simulating the whole step: LLaMA-7B (32 layers) on 8 GPUs. Best of several rounds, as other processes only ever add
 * time. build/bench_miniature */
#include "base/host_arena.h"
#include "lower/lower.h"
#include "lower/miniature.h"
#include "runtime/runtimes.h"
#include "sim/miniature_time.h"

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "lib/hardware.h"

#define ROUNDS 300

static double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void stop(const struct dtp_faults *faults)
{
    fprintf(stderr, "%s\n", faults->text[0]);
    exit(1);
}

static uint64_t whole(const struct dtp_transformer *transformer, const struct dtp_cluster *cluster,
                      const struct dtp_plan *plan, struct dtp_faults *faults)
{
    struct dtp_program *program;
    struct dtp_live_runs runs = {.run = NULL};
    struct dtp_live_bytes live;
    if (dtp_lower(transformer, cluster, plan, 0, &program, faults) != DTP_OK ||
        dtp_live_runs_of(program, &runs, faults) != DTP_OK)
        stop(faults);
    dtp_live_bytes_sum(&runs, transformer->layers, &live);
    dtp_live_runs_release(&runs);
    dtp_program_destroy(program);
    return live.phase_total_bytes[live.peak_phase];
}

static double whole_step_s(const struct dtp_job *job, struct dtp_faults *faults)
{
    struct dtp_simulation_options options = dtp_simulation_options_default();
    struct dtp_program *program;
    struct dtp_timeline timeline;
    options.replay_allocator = false;
    if (dtp_lower(&job->transformer, &job->cluster, &job->plan, 0, &program, faults) != DTP_OK ||
        dtp_simulate(program, &job->cluster, &options, &timeline, faults) != DTP_OK)
        stop(faults);
    double step_s = timeline.step_s;
    dtp_timeline_release(&timeline);
    dtp_program_destroy(program);
    return step_s;
}

static void measure_time(const struct dtp_transformer *transformer, const struct dtp_cluster *cluster,
                         const struct dtp_plan *plan, struct dtp_faults *faults)
{
    struct dtp_job job = {.transformer = *transformer, .cluster = *cluster, .plan = *plan};
    struct dtp_miniature_time miniature;
    double miniature_s = INFINITY, whole_s = INFINITY, step_s = 0;
    enum dtp_status status = DTP_OK;
    for (int i = 0; i < ROUNDS; i++) {
        double start_s = now_s();
        status = dtp_miniature_time_of(&job, &miniature, faults);
        if (status != DTP_OK && status != DTP_NO)
            stop(faults);
        double between_s = now_s();
        step_s = whole_step_s(&job, faults);
        double end_s = now_s();
        miniature_s = fmin(miniature_s, between_s - start_s);
        whole_s = fmin(whole_s, end_s - between_s);
    }
    printf("%34s time %s %8.1f us, whole step %6.1f us", "", status == DTP_OK ? "from miniatures" : "not from them  ",
           1e6 * miniature_s, 1e6 * whole_s);
    if (status == DTP_OK)
        printf(", %+.4f %%", 100 * (miniature.sums.step_s / step_s - 1));
    printf("\n");
}

static void measure(const char *name, struct dtp_plan plan)
{
    static struct dtp_faults faults;
    struct dtp_transformer transformer = dtp_transformer_default(); /* LLaMA-7B */
    transformer.layers = 32, transformer.hidden = 4096, transformer.ffn = 11008, transformer.vocab = 32000;
    transformer.heads = transformer.kv_heads = 32, transformer.head_dim = 128;
    struct dtp_cluster cluster = test_cluster(test_h200(), 8, 8);
    if (dtp_plan_resolve(&plan, &transformer, &cluster, &faults) != DTP_OK)
        stop(&faults);
    struct dtp_miniature miniature;
    double miniature_s = INFINITY, whole_s = INFINITY;
    uint64_t whole_bytes = 0;
    for (int i = 0; i < ROUNDS; i++) {
        double start_s = now_s();
        if (dtp_miniature_of(&transformer, &cluster, &plan, 0, &miniature, &faults) != DTP_OK)
            stop(&faults);
        double between_s = now_s();
        whole_bytes = whole(&transformer, &cluster, &plan, &faults);
        double end_s = now_s();
        miniature_s = fmin(miniature_s, between_s - start_s);
        whole_s = fmin(whole_s, end_s - between_s);
    }
    printf("%-34s miniature of %2d layers %6.1f us, whole step %6.1f us, %+.4f %%\n", name, (int)miniature.layers,
           1e6 * miniature_s, 1e6 * whole_s,
           100 * ((double)miniature.live.phase_total_bytes[miniature.live.peak_phase] / (double)whole_bytes - 1));
    measure_time(&transformer, &cluster, &plan, &faults);
}

int main(void)
{
    dtp_host_memory_keep();
    struct dtp_plan plan = dtp_plan_default();
    plan.strategy = DTP_FULL_SHARD;
    plan.sequence = 2048;
    measure("FSDP2", plan);
    plan.compile = true;
    measure("FSDP2, compiled", plan);
    plan.accumulate = 16;
    measure("FSDP2, compiled, 16 micro-steps", plan);
    plan.compile = false;
    plan.accumulate = 1;
    plan.runtime = &dtp_runtime_dtplan;
    measure("dtplan", plan);
    plan.runtime = &dtp_runtime_torch;
    plan.strategy = DTP_DDP;
    measure("DDP", plan);
    plan.runtime = &dtp_runtime_deepspeed;
    plan.strategy = DTP_ZERO3;
    measure("DeepSpeed ZeRO-3", plan);
    return 0;
}
