/* Microseconds that the exact live bytes of a step and its time take on one core, from miniatures and by lowering and
 * simulating the whole step: LLaMA-7B (32 layers) on 8 GPUs. Best of several rounds, as other processes only ever add
 * time. build/bench_miniature; with `grid` as its argument the exact bytes alone, of each runtime and strategy with 1,
 * 4 and 16 micro-steps, without and with full checkpointing, the layers that were lowered (32: all) beside them; `grid
 * NAME`: of those whose row has that word. */
#include "base/clock.h"
#include "base/host_arena.h"
#include "lower/lower.h"
#include "lower/miniature.h"
#include "runtime/runtimes.h"
#include "sim/miniature_time.h"

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "lib/hardware.h"

#define ROUNDS 300
#define LAYERS 32

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
        double start_s = dtp_now_s();
        status = dtp_miniature_time_of(&job, &miniature, faults);
        if (status != DTP_OK && status != DTP_NO)
            stop(faults);
        double between_s = dtp_now_s();
        step_s = whole_step_s(&job, faults);
        double end_s = dtp_now_s();
        miniature_s = fmin(miniature_s, between_s - start_s);
        whole_s = fmin(whole_s, end_s - between_s);
    }
    printf("%34s time %s %8.1f us, whole step %6.1f us", "", status == DTP_OK ? "from miniatures" : "not from them  ",
           1e6 * miniature_s, 1e6 * whole_s);
    if (status == DTP_OK)
        printf(", %+.4f %%", 100 * (miniature.sums.step_s / step_s - 1));
    printf("\n");
}

static struct dtp_transformer llama_7b(void)
{
    struct dtp_transformer transformer = dtp_transformer_default();
    transformer.layers = LAYERS, transformer.hidden = 4096, transformer.ffn = 11008, transformer.vocab = 32000;
    transformer.heads = transformer.kv_heads = 32, transformer.head_dim = 128;
    return transformer;
}

static void measure(const char *name, struct dtp_plan plan)
{
    static struct dtp_faults faults;
    struct dtp_transformer transformer = llama_7b();
    struct dtp_cluster cluster = test_cluster(test_h200(), 8, 8);
    if (dtp_plan_resolve(&plan, &transformer, &cluster, &faults) != DTP_OK)
        stop(&faults);
    struct dtp_miniature miniature;
    double miniature_s = INFINITY, whole_s = INFINITY;
    uint64_t whole_bytes = 0;
    for (int i = 0; i < ROUNDS; i++) {
        double start_s = dtp_now_s();
        if (dtp_miniature_of(&transformer, &cluster, &plan, 0, &miniature, &faults) != DTP_OK)
            stop(&faults);
        double between_s = dtp_now_s();
        whole_bytes = whole(&transformer, &cluster, &plan, &faults);
        double end_s = dtp_now_s();
        miniature_s = fmin(miniature_s, between_s - start_s);
        whole_s = fmin(whole_s, end_s - between_s);
    }
    printf("%-34s miniature of %2d layers %6.1f us, whole step %6.1f us, %+.4f %%\n", name, (int)miniature.layers,
           1e6 * miniature_s, 1e6 * whole_s,
           100 * ((double)miniature.live.phase_total_bytes[miniature.live.peak_phase] / (double)whole_bytes - 1));
    measure_time(&transformer, &cluster, &plan, &faults);
}

/* ---- the grid ---------------------------------------------------------------------------------------------------- */

struct row {
    const char *name;
    const struct dtp_runtime *runtime;
    enum dtp_strategy strategy;
    bool compile, fsdp1, lora, sync;
    enum dtp_offload offload;
};

static const struct row rows[] = {
    {.name = "torch FSDP2", .runtime = &dtp_runtime_torch, .strategy = DTP_FULL_SHARD},
    {.name = "torch FSDP2, compiled", .runtime = &dtp_runtime_torch, .strategy = DTP_FULL_SHARD, .compile = true},
    {.name = "torch FSDP2, sync", .runtime = &dtp_runtime_torch, .strategy = DTP_FULL_SHARD, .sync = true},
    {.name = "torch FSDP1", .runtime = &dtp_runtime_torch, .strategy = DTP_FULL_SHARD, .fsdp1 = true},
    {.name = "torch DDP", .runtime = &dtp_runtime_torch, .strategy = DTP_DDP},
    {.name = "torch DDP, compiled", .runtime = &dtp_runtime_torch, .strategy = DTP_DDP, .compile = true},
    {.name = "torch zero1", .runtime = &dtp_runtime_torch, .strategy = DTP_ZERO1},
    {.name = "peft full_shard", .runtime = &dtp_runtime_peft, .strategy = DTP_FULL_SHARD, .lora = true},
    {.name = "peft DDP", .runtime = &dtp_runtime_peft, .strategy = DTP_DDP, .lora = true},
    {.name = "megatron ddp", .runtime = &dtp_runtime_megatron, .strategy = DTP_DDP},
    {.name = "megatron zero1", .runtime = &dtp_runtime_megatron, .strategy = DTP_ZERO1},
    {.name = "megatron zero2", .runtime = &dtp_runtime_megatron, .strategy = DTP_ZERO2},
    {.name = "nanotron ddp", .runtime = &dtp_runtime_nanotron, .strategy = DTP_DDP},
    {.name = "nanotron zero1", .runtime = &dtp_runtime_nanotron, .strategy = DTP_ZERO1},
    {.name = "deepspeed zero1", .runtime = &dtp_runtime_deepspeed, .strategy = DTP_ZERO1},
    {.name = "deepspeed zero2", .runtime = &dtp_runtime_deepspeed, .strategy = DTP_ZERO2},
    {.name = "deepspeed zero3", .runtime = &dtp_runtime_deepspeed, .strategy = DTP_ZERO3},
    {.name = "deepspeed zero3, lora", .runtime = &dtp_runtime_deepspeed, .strategy = DTP_ZERO3, .lora = true},
    {.name = "deepspeed zero3, offload",
     .runtime = &dtp_runtime_deepspeed,
     .strategy = DTP_ZERO3,
     .offload = DTP_OFFLOAD_PARAMS},
    {.name = "dtplan ddp", .runtime = &dtp_runtime_dtplan, .strategy = DTP_DDP},
    {.name = "dtplan shard_grad_op", .runtime = &dtp_runtime_dtplan, .strategy = DTP_SHARD_GRAD_OP},
    {.name = "dtplan full_shard, sync", .runtime = &dtp_runtime_dtplan, .strategy = DTP_FULL_SHARD, .sync = true},
    {.name = "dtplan full_shard", .runtime = &dtp_runtime_dtplan, .strategy = DTP_FULL_SHARD},
};

/* Whether the plan exists. */
static bool plan_of(const struct row *row, uint32_t micro_steps, enum dtp_checkpointing checkpointing,
                    const struct dtp_transformer *transformer, const struct dtp_cluster *cluster, struct dtp_plan *out)
{
    struct dtp_faults faults = {0};
    *out = dtp_plan_default();
    out->runtime = row->runtime, out->strategy = row->strategy, out->offload = row->offload;
    out->sequence = 2048, out->accumulate = micro_steps, out->checkpointing = checkpointing;
    out->compile = row->compile, out->fsdp1 = row->fsdp1;
    out->adapters.rank = row->lora ? 16 : 0;
    out->accumulate_sync = row->sync;
    return dtp_plan_resolve(out, transformer, cluster, &faults) == DTP_OK;
}

/* The best of all rounds: nothing where the plan does not exist. */
static void measure_cell(const struct row *row, uint32_t micro_steps, enum dtp_checkpointing checkpointing)
{
    struct dtp_transformer transformer = llama_7b();
    struct dtp_cluster cluster = test_cluster(test_h200(), 8, 8);
    struct dtp_plan plan;
    struct dtp_faults faults = {0};
    struct dtp_miniature miniature;
    double best_s = INFINITY;
    if (!plan_of(row, micro_steps, checkpointing, &transformer, &cluster, &plan)) {
        printf(" %13s", "-");
        return;
    }
    for (int i = 0; i < ROUNDS; i++) {
        double start_s = dtp_now_s();
        if (dtp_miniature_of(&transformer, &cluster, &plan, 0, &miniature, &faults) != DTP_OK)
            stop(&faults);
        best_s = fmin(best_s, dtp_now_s() - start_s);
    }
    printf(" %8.1f (%2d)", 1e6 * best_s, miniature.layers ? (int)miniature.layers : LAYERS);
}

static void measure_grid(const char *word)
{
    static const enum dtp_checkpointing kinds[] = {DTP_CHECKPOINT_NONE, DTP_CHECKPOINT_FULL};
    static const uint32_t micro_steps[] = {1, 4, 16};
    printf("us (layers)                none, micro-steps 1           4            16"
           "   full              1           4            16\n");
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        if (!strstr(rows[i].name, word))
            continue;
        printf("%-26s", rows[i].name);
        for (int kind = 0; kind < 2; kind++)
            for (int m = 0; m < 3; m++)
                measure_cell(&rows[i], micro_steps[m], kinds[kind]);
        printf("\n");
    }
}

int main(int argument_count, char **argument)
{
    dtp_host_memory_keep();
    if (argument_count > 1 && !strcmp(argument[1], "grid")) {
        measure_grid(argument_count > 2 ? argument[2] : "");
        return 0;
    }
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
