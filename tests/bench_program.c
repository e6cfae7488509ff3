/* Building, proving and placing a step of 20,000 operations on one core; the best of some rounds, each with fresh
 * memory. */
#include "placement.h"
#include "verify.h"

#include "step_program.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define ROUNDS 20

static double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

struct times {
    double build_s, verify_s, place_s, total_s;
};

static void keep_least(double *least, double value)
{
    *least = value < *least ? value : *least;
}

/* False: the program is refused. */
static bool one_round(uint32_t layers, uint16_t micro_steps, struct times *best, bool print)
{
    double start = now_s();
    struct dtp_program *program = step_program(layers, micro_steps, 17);
    double built = now_s();
    struct dtp_faults faults = {0};
    if (!program || dtp_program_verify(program, &faults) != DTP_OK) {
        fprintf(stderr, "%s\n", faults.text[0]);
        return false;
    }
    double verified = now_s();
    struct dtp_placement placement;
    if (dtp_program_place(program, &placement, NULL) != DTP_OK)
        return false;
    double placed = now_s();
    keep_least(&best->build_s, built - start);
    keep_least(&best->verify_s, verified - built);
    keep_least(&best->place_s, placed - verified);
    keep_least(&best->total_s, placed - start);
    if (print)
        printf("%zu operations, %zu buffers: arena %.4f of the live peak\n", dtp_program_op_count(program),
               dtp_program_buffer_count(program), (double)placement.arena_bytes / (double)placement.live_peak_bytes);
    dtp_placement_release(&placement);
    dtp_program_destroy(program);
    return true;
}

int main(int count, char **arguments)
{
    uint32_t layers = count > 1 ? (uint32_t)atoi(arguments[1]) : 32;
    uint16_t micro_steps = count > 2 ? (uint16_t)atoi(arguments[2]) : 16;
    struct times best = {INFINITY, INFINITY, INFINITY, INFINITY};
    for (int round = 0; round < ROUNDS; round++)
        if (!one_round(layers, micro_steps, &best, !round))
            return 1;
    printf("build %.3f ms, verify %.3f ms, place %.3f ms, together %.3f ms\n", best.build_s * 1e3, best.verify_s * 1e3,
           best.place_s * 1e3, best.total_s * 1e3);
    return 0;
}
