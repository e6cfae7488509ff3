/* Plans per second through libdtplan, the catalogues read before: different ones, by estimates without and with advice
 * and by simulation, of one thread and of two; by the clock, and of a core's time, which others do not disturb. */
#include "cli/library/dtplan.h"
#include "base/clock.h"

#include <pthread.h>
#include <stdio.h>
#include <time.h>

struct run {
    const struct dtplan *dtplan;
    const char *fidelity, *advice; /* settings; advice NULL: with it */
    unsigned plans;
    unsigned first;
};

static void *plan_all(void *argument)
{
    const struct run *run = argument;
    for (unsigned i = run->first; i < run->first + run->plans; i++) {
        char batch[40], gpus[40], sequence[40], *answer, *messages;
        snprintf(batch, sizeof batch, "micro_batch=%u", 1 + i % 16);
        snprintf(gpus, sizeof gpus, "gpus=%u", 8 * (1 + i % 7));
        snprintf(sequence, sizeof sequence, "seq=%u", 1024 * (1 + i % 5));
        const char *const settings[] = {"model=llama-7b",      "gpu=h100-sxm", batch,       gpus, sequence,
                                        "strategy=full_shard", run->fidelity,  run->advice, NULL};
        if (dtplan_plan(run->dtplan, NULL, settings, &answer, &messages) > DTPLAN_NO)
            printf("%s\n", messages);
        dtplan_free(answer);
        dtplan_free(messages);
    }
    return NULL;
}

static void measure(const struct dtplan *dtplan, const char *words, const char *fidelity, const char *advice,
                    unsigned plans, unsigned threads)
{
    pthread_t ids[2];
    struct run runs[2];
    double start_s = dtp_now_s();
    clock_t start = clock();
    for (unsigned i = 0; i < threads; i++) {
        runs[i] = (struct run){dtplan, fidelity, advice, plans, i * plans};
        if (pthread_create(&ids[i], NULL, plan_all, &runs[i]) != 0)
            return;
    }
    for (unsigned i = 0; i < threads; i++)
        pthread_join(ids[i], NULL);
    double plans_in_all = (double)threads * plans;
    printf("%-26s %u thread%s %6.0f plans a second, %6.0f in a second of a core\n", words, threads,
           threads > 1 ? "s" : " ", plans_in_all / (dtp_now_s() - start_s),
           plans_in_all * CLOCKS_PER_SEC / (double)(clock() - start));
}

int main(void)
{
    struct dtplan *dtplan;
    char *messages;
    if (dtplan_create(TEST_SOURCE_DIR "/scenarios", NULL, &dtplan, &messages) != DTPLAN_OK)
        return 1;
    for (unsigned threads = 1; threads <= 2; threads++) {
        measure(dtplan, "estimated, without advice", "fidelity=bounds", "no_advice", 2000, threads);
        measure(dtplan, "estimated, with advice", "fidelity=bounds", NULL, 1000, threads);
        measure(dtplan, "simulated, with advice", "fidelity=simulated", NULL, 200, threads);
    }
    dtplan_destroy(dtplan);
    return 0;
}
