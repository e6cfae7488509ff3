/* How large may the micro batch of a model be on so many GPUs, and what does each cost? From the installed library:
 *
 *   cc plan.c $(pkg-config --cflags --libs dtplan) -o plan && ./plan llama-2-7b 8
 */
#include <dtplan.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The figure behind a name that occurs once in the answer. Programs take a JSON library; this one shows what is there.
 */
static double figure(const char *json, const char *name)
{
    char quoted[80];
    snprintf(quoted, sizeof quoted, "\"%s\": ", name);
    const char *found = strstr(json, quoted);
    return found ? strtod(found + strlen(quoted), NULL) : 0;
}

int main(int argc, char **argv)
{
    struct dtplan *dtplan;
    char *answer, *messages, model[100], gpus[100], batch[40];
    if (argc != 3) {
        fprintf(stderr, "usage: plan MODEL GPUS\n");
        return DTPLAN_BAD_INPUT;
    }
    enum dtplan_status status = dtplan_create(NULL, NULL, &dtplan, &messages);
    if (status != DTPLAN_OK) {
        fprintf(stderr, "plan: %s\n", messages ? messages : "out of memory");
        dtplan_free(messages);
        return (int)status;
    }
    snprintf(model, sizeof model, "model=%s", argv[1]);
    snprintf(gpus, sizeof gpus, "gpus=%s", argv[2]);
    for (int sequences = 1; status == DTPLAN_OK; sequences *= 2) {
        const char *const settings[] = {model, gpus, "strategy=full_shard", "no_advice", "fidelity=bounds", "seq=2048",
                                        batch, NULL};
        snprintf(batch, sizeof batch, "micro_batch=%d", sequences);
        status = dtplan_plan(dtplan, NULL, settings, &answer, &messages);
        if (answer)
            printf("%3d sequences: %5.1f GiB, %8.0f tokens/s%s\n", sequences,
                   figure(answer, "device_peak_bytes") / 1073741824, figure(answer, "tokens_per_s"),
                   status == DTPLAN_NO ? ", does not fit" : "");
        else
            fprintf(stderr, "plan: %s\n", messages ? messages : "out of memory");
        dtplan_free(answer);
        dtplan_free(messages);
    }
    dtplan_destroy(dtplan);
    return status == DTPLAN_NO ? DTPLAN_OK : (int)status;
}
