/* What writing a checkpoint's file of one rank takes: bench_checkpoint [folder] [MiB]. The best of some rounds, with
 * the core's own seconds beside those of the clock: on a machine that others use the former say what one core makes.
 * The state is of the host's memory, as behind a copy (exec/checkpoint/host_copy.h). On a folder of a tmpfs it is what
 * the writer can make, on a disk the lesser of both. */
#include "checkpoint/checkpoint.h"

#include "base/clock.h"
#include "base/crc64.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define ROUNDS 7

struct best {
    double wall_s, core_s;
};

static double core_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void keep_best(struct best *best, double wall_begun_s, double core_begun_s)
{
    double wall = dtp_now_s() - wall_begun_s, core = core_s() - core_begun_s;
    best->wall_s = wall < best->wall_s ? wall : best->wall_s;
    best->core_s = core < best->core_s ? core : best->core_s;
}

static void say(const char *what, double bytes, const struct best *best)
{
    printf("%-28s %6.2f GB/s by the clock, %6.2f of a core's own time\n", what, 1e-9 * bytes / best->wall_s,
           1e-9 * bytes / best->core_s);
}

int main(int argc, char **argv)
{
    const char *folder = argc > 1 ? argv[1] : "/dev/shm/dtplan-bench-checkpoint";
    uint64_t bytes = (argc > 2 ? strtoull(argv[2], NULL, 10) : 1024) << 20, sum = 0;
    struct best summed = {1e9, 1e9}, copied = {1e9, 1e9}, wrote = {1e9, 1e9};
    const struct dtp_checkpoint_place place = {.directory = folder, .ranks = 1};
    struct dtp_faults faults = {.count = 0};
    enum dtp_status status = DTP_OK;
    char *state = malloc(bytes), *to = malloc(bytes);
    if (!state || !to)
        return 3;
    for (uint64_t i = 0; i < bytes; i++)
        state[i] = (char)(i * 7 >> 3);
    memset(to, 1, bytes);
    const struct dtp_state_part part = {
        .kind = DTP_STATE_MASTER, .element = DTP_ELEMENT_FP32, .end = bytes / 4, .values = state};
    for (int round = 0; round < ROUNDS && status == DTP_OK; round++) {
        const struct dtp_checkpoint_position position = {.step = (uint64_t)round + 1};
        double wall = dtp_now_s(), core = core_s();
        sum ^= dtp_crc64(0, state, bytes);
        keep_best(&summed, wall, core);
        wall = dtp_now_s(), core = core_s();
        memcpy(to, state, bytes);
        keep_best(&copied, wall, core);
        status = dtp_checkpoint_begin(&place, position.step, &faults);
        wall = dtp_now_s(), core = core_s();
        if (status == DTP_OK)
            status = dtp_checkpoint_write_own(&place, position.step, &part, 1, &faults);
        keep_best(&wrote, wall, core);
        dtp_checkpoint_clean(folder);
    }
    for (size_t i = 0; i < faults.count && status != DTP_OK; i++)
        fprintf(stderr, "%s\n", faults.text[i]);
    say("CRC-64", (double)bytes, &summed);
    say("memcpy", (double)bytes, &copied);
    say("a rank's file, summed", (double)bytes, &wrote);
    printf("sum %016llx, %c\n", (unsigned long long)sum, to[bytes / 2]);
    free(state);
    free(to);
    return status == DTP_OK ? 0 : 3;
}
