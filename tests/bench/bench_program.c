/* Lowering (or building by hand), proving and placing whole steps on one core; the best of some rounds, each in memory
 * that the ones before have used, as the programs of a search are. LLaMA-7B, full_shard over 8 GPUs, sequences of 2048:
 * one micro-step and sixteen. */
#include "base/clock.h"
#include "base/host_arena.h"
#include "runtime/runtimes.h"
#include "lower/lower.h"
#include "program/placement.h"
#include "program/verify.h"

#include <stdint.h>
#include <stdio.h>

#include "lib/hardware.h"
#include "lib/step_program.h"

#define ROUNDS 20

static struct dtp_transformer llama_7b(void)
{
    struct dtp_transformer t = dtp_transformer_default();
    snprintf(t.name, sizeof t.name, "llama-7b");
    t.layers = 32;
    t.heads = t.kv_heads = 32;
    t.head_dim = 128;
    t.hidden = 4096;
    t.ffn = 11008;
    t.vocab = 32000;
    t.final_norm = true;
    return t;
}

/* Whole steps of LLaMA-7B; `micro_steps` 0: the hand-made step of tests/lib/step_program.h. */
static enum dtp_status make(uint32_t micro_steps, struct dtp_program **out, struct dtp_faults *faults)
{
    if (!micro_steps)
        return step_program_make(32, 16, 17, out, faults);
    struct dtp_transformer transformer = llama_7b();
    struct dtp_cluster cluster = test_cluster(test_h200(), 8, 8);
    struct dtp_plan plan = dtp_plan_default();
    plan.strategy = DTP_FULL_SHARD;
    plan.micro_batch = 1;
    plan.sequence = 2048;
    plan.accumulate = micro_steps;
    enum dtp_status status = dtp_plan_resolve(&plan, &transformer, &cluster, faults);
    return status != DTP_OK ? status : dtp_lower(&transformer, &cluster, &plan, 0, out, faults);
}

struct times {
    double build_s, verify_s, place_s, total_s;
};

static void keep_least(double *least, double value)
{
    *least = value < *least ? value : *least;
}

static enum dtp_status one_round(uint32_t micro_steps, struct times *best, bool print, struct dtp_faults *faults)
{
    struct dtp_program *program;
    struct dtp_placement placement = {0};
    double start = dtp_now_s();
    enum dtp_status status = make(micro_steps, &program, faults);
    if (status != DTP_OK)
        return status;
    double built = dtp_now_s();
    status = dtp_program_verify(program, faults);
    double verified = dtp_now_s();
    if (status == DTP_OK)
        status = dtp_program_place(program, &placement, faults);
    double placed = dtp_now_s();
    keep_least(&best->build_s, built - start);
    keep_least(&best->verify_s, verified - built);
    keep_least(&best->place_s, placed - verified);
    keep_least(&best->total_s, placed - start);
    if (print && status == DTP_OK)
        printf("%6zu operations, %6zu buffers, arena %.3f of the live peak: ", dtp_program_op_count(program),
               dtp_program_buffer_count(program), (double)placement.arena_bytes / (double)placement.live_peak_bytes);
    dtp_placement_release(&placement);
    dtp_program_destroy(program);
    return status;
}

int main(void)
{
    dtp_host_memory_keep();
    static const uint32_t micro_steps[] = {1, 16, 0};
    static const char *const names[] = {"LLaMA-7B, 1 micro-step", "LLaMA-7B, 16 micro-steps", "by hand"};
    static struct dtp_faults faults;
    for (int i = 0; i < 3; i++) {
        struct times best = {INFINITY, INFINITY, INFINITY, INFINITY};
        printf("%-25s", names[i]);
        for (int round = 0; round < ROUNDS; round++)
            if (one_round(micro_steps[i], &best, !round, &faults) != DTP_OK) {
                printf("%s\n", faults.text[0]);
                return 1;
            }
        printf("build %.2f ms, verify %.2f ms, place %.2f ms, together %.2f ms\n", best.build_s * 1e3,
               best.verify_s * 1e3, best.place_s * 1e3, best.total_s * 1e3);
    }
    return 0;
}
