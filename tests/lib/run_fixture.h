/* Whole runs on the host device inside a test: a job from words, its losses back. */
#ifndef TEST_RUN_FIXTURE_H
#define TEST_RUN_FIXTURE_H

#include "lib/scenario_fixture.h"
#include "checkpoint/checkpoint.h"
#include "train/train.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define RUN_STEPS 400

struct run_result {
    enum dtp_status status;
    size_t steps;
    double loss[RUN_STEPS], gradient_norm[RUN_STEPS], entropy;
    bool skipped[RUN_STEPS];
    char said[DTP_FAULT_TEXT_BYTES]; /* the first fault */
};

/* Words of the form key=value, on top of a plan that the executor runs. */
static void run_job(const char *words, struct dtp_job *job)
{
    static struct dtp_faults faults;
    struct dtp_catalog catalog = fixture_catalog();
    struct dtp_scenario *scenario;
    char copy[2048], *save = NULL;
    memset(&faults, 0, sizeof faults);
    snprintf(copy, sizeof copy, "runtime=dtplan strategy=ddp gradient_norm=true %s", words);
    assert_int_equal(dtp_scenario_create(&scenario, &faults), DTP_OK);
    for (char *word = strtok_r(copy, " ", &save); word; word = strtok_r(NULL, " ", &save)) {
        char *value = strchr(word, '=');
        *value++ = '\0';
        dtp_scenario_set(scenario, word, value, "test", 0, &faults);
    }
    if (faults.status != DTP_OK || dtp_scenario_resolve(scenario, &catalog, job, &faults) != DTP_OK)
        fail_msg("%s: %s", words, faults.text[0]);
    dtp_scenario_destroy(scenario);
}

/* The number after "key": in a line of JSON; NAN where it is null. */
static inline double run_number(const char *line, const char *key)
{
    char quoted[64];
    snprintf(quoted, sizeof quoted, "\"%s\":", key);
    const char *at = strstr(line, quoted);
    return at && strncmp(at + strlen(quoted), "null", 4) != 0 ? strtod(at + strlen(quoted), NULL) : (double)NAN;
}

static inline void run_read(char *events, struct run_result *out)
{
    char *save = NULL;
    for (char *line = strtok_r(events, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
        if (strstr(line, "\"event\":\"start\""))
            out->entropy = run_number(line, "entropy");
        if (!strstr(line, "\"event\":\"step\"") || out->steps == RUN_STEPS)
            continue;
        out->loss[out->steps] = run_number(line, "loss");
        out->gradient_norm[out->steps] = run_number(line, "gradient_norm");
        out->skipped[out->steps++] = strstr(line, "\"skipped\":true") != NULL;
    }
}

/* Every byte that nobody wrote is poison. */
static inline void run_train(const char *words, const struct dtp_settings *settings, struct run_result *out)
{
    static struct dtp_faults faults;
    static struct dtp_job job;
    char *events = NULL;
    size_t bytes;
    run_job(words, &job);
    memset(&faults, 0, sizeof faults);
    memset(out, 0, sizeof *out);
    FILE *file = open_memstream(&events, &bytes);
    assert_non_null(file);
    struct dtp_train_job train = {.job = &job, .settings = settings, .events = file};
    out->status = dtp_train(&train, &faults);
    fclose(file);
    snprintf(out->said, sizeof out->said, "%s", faults.count ? faults.text[0] : "");
    run_read(events, out);
    free(events);
}

static inline struct dtp_settings run_settings(uint64_t steps, double learning_rate)
{
    struct dtp_settings settings = dtp_settings_default();
    settings.device = "host";
    settings.cuda = false;
    settings.steps = steps;
    settings.threads = 1;
    settings.poison = true;
    settings.learning_rate = learning_rate;
    return settings;
}

/* Losses of a run that must succeed. */
static inline void run_well(const char *words, const struct dtp_settings *settings, struct run_result *out)
{
    run_train(words, settings, out);
    if (out->status != DTP_OK)
        fail_msg("%s: %s", words, out->said);
    assert_int_equal(out->steps, settings->steps);
}

/* Largest relative difference of two loss curves. */
static inline double run_apart(const struct run_result *a, const struct run_result *b)
{
    double apart = 0;
    assert_int_equal(a->steps, b->steps);
    for (size_t i = 0; i < a->steps; i++)
        apart = fmax(apart, fabs(a->loss[i] - b->loss[i]) / fabs(b->loss[i]));
    return apart;
}

static inline void run_same(const struct run_result *a, const struct run_result *b, const char *what)
{
    assert_int_equal(a->steps, b->steps);
    for (size_t i = 0; i < a->steps; i++)
        if (a->loss[i] != b->loss[i] || a->gradient_norm[i] != b->gradient_norm[i])
            fail_msg("%s: step %zu: loss %.9g and %.9g, norm %.9g and %.9g", what, i + 1, a->loss[i], b->loss[i],
                     a->gradient_norm[i], b->gradient_norm[i]);
}

#define RUN_LLAMA "layers=2 hidden=32 heads=4 kv_heads=2 ffn=88 vocab=50 seq=16 "
#define RUN_LATENT                                                                                                     \
    "layers=2 hidden=32 heads=4 head_dim=24 kv_latent=16 rope_head_dim=8 value_head_dim=16 ffn=88 vocab=50 seq=16 "
#define RUN_GPT2                                                                                                       \
    "layers=2 hidden=32 heads=4 ffn=128 vocab=50 seq=16 positions=16 norm=layer_norm activation=gelu "                 \
    "position=learned "                                                                                                \
    "bias=true tied_head=true "

#endif
