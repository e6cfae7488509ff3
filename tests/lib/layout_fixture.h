/* Runs of one model in two layouts of ranks on the host device, compared: losses, gradient norms, and all state,
 * element by element, through checkpoints, which any layout reads; moments are sums of gradients, so that these are
 * compared too. LAYOUT_FOLDER names the folders of the test that includes this, with its process, so that two runs of
 * it do not meet; STEPS says how many a run makes. */
#ifndef TEST_LAYOUT_FIXTURE_H
#define TEST_LAYOUT_FIXTURE_H

#include "lib/random_draws.h"
#include "lib/rank_fixture.h"
#include "lib/remove_all.h"
#include "runtime/dtplan/executor_adapters.h"

#ifndef LEARNING_RATE
#define LEARNING_RATE "1e-2"
#endif
#define LEARNING "--steps %d --lr " LEARNING_RATE " --checkpoint '%s'"
#define DIFFERS_BY 1e-6 /* a loss at most */

/* Where sums were made in another order: Adam divides by roots of second moments, and small ones make more of it. */
#define APART 1e-3

static struct dtp_faults faults;

static inline const char *folder(const char *name)
{
    static char path[4][3000];
    static int next;
    char *out = path[next++ % 4];
    snprintf(out, 3000, "%s/tests/" LAYOUT_FOLDER "_%d_%s", TEST_BINARY_DIR, (int)getpid(), name);
    return out;
}

static inline void train_for(const char *words, const char *name, int steps, struct run_result *out)
{
    char flags[3200];
    remove_all(folder(name));
    snprintf(flags, sizeof flags, LEARNING, steps, folder(name));
    rank_run(words, flags, out);
    if (out->status != DTP_OK)
        fail_msg("%s ended with %d", words, (int)out->status);
    assert_int_equal(out->steps, steps);
}

static inline void train(const char *words, const char *name, struct run_result *out)
{
    train_for(words, name, STEPS, out);
}

/* ---- state ------------------------------------------------------------------------------------------------------- */

/* One kind of state of one module, from a checkpoint of any layout. Caller frees. */
static inline float *read_state(const char *name, const char *model, const struct dtp_parameter_module *layout,
                                uint32_t module, enum dtp_state_kind kind, uint64_t *count)
{
    struct dtp_checkpoint_position position;
    struct dtp_device *device;
    *count = 0;
    for (int i = 0; i < DTP_PARAMETER_COUNT; i++) {
        const struct dtp_parameter_tensor *tensor = &layout->tensor[i];
        uint64_t end = tensor->saved_offset_elements + tensor->rows * tensor->columns;
        *count = tensor->exists && end > *count ? end : *count;
    }
    float *values = calloc(*count + 1, sizeof *values);
    struct dtp_state_part part = {module, kind, DTP_ELEMENT_FP32, 0, *count, values};
    assert_int_equal(dtp_device_host_create(&(struct dtp_device_options){.threads = 1}, &device, &faults), DTP_OK);
    if (*count && dtp_checkpoint_read(folder(name), false, device, &(struct dtp_checkpoint_identity){model, "", 1},
                                      &position, &part, 1, &faults) != DTP_OK)
        fail_msg("%s: %s", name, faults.text[0]);
    device->verbs->destroy(device);
    return values;
}

/* The identity that a checkpoint's manifest has. */
static inline void read_identity(const char *name, char *out, size_t bytes)
{
    char line[3200];
    snprintf(line, sizeof line, "sed -n 's/.*\"model\": *\"\\([^\"]*\\)\".*/\\1/p' '%s'/step-%08d/manifest.json",
             folder(name), STEPS);
    FILE *pipe = popen(line, "r");
    assert_non_null(pipe);
    assert_non_null(fgets(out, (int)bytes, pipe));
    out[strcspn(out, "\n")] = '\0';
    pclose(pipe);
}

/* Largest difference of any element of a module's state of that kind, relative to the largest. */
static inline double kind_apart(const char *a, const char *b, const char *model,
                                const struct dtp_parameter_module *layout, uint32_t module, enum dtp_state_kind kind)
{
    uint64_t count, same;
    float *x = read_state(a, model, layout, module, kind, &count);
    float *y = read_state(b, model, layout, module, kind, &same);
    double largest = 0, differs = 0;
    assert_int_equal(count, same);
    for (uint64_t i = 0; i < count; i++) {
        largest = fmax(largest, fabs((double)x[i]));
        differs = fmax(differs, fabs((double)x[i] - (double)y[i]));
    }
    assert_true(count == 0 || largest > 0);
    free(x);
    free(y);
    return count ? differs / largest : 0;
}

/* Of any module. Beside adapters all others are frozen, and packed ones are the same seed's. */
static inline double state_apart(const char *a, const char *b, const struct dtp_job *job)
{
    static const enum dtp_state_kind kinds[] = {DTP_STATE_WEIGHTS, DTP_STATE_MOMENT1, DTP_STATE_MOMENT2};
    const struct dtp_transformer *t = &job->transformer;
    const bool adapts = dtp_plan_adapts(&job->plan), packed = job->plan.adapters.base != DTP_BASE_NONE;
    const uint32_t modules = (uint32_t)dtp_parameter_module_count(t), adapters = adapts ? (uint32_t)t->layers : 0;
    char model[512];
    double apart = 0;
    read_identity(a, model, sizeof model);
    for (uint32_t module = 0; module < modules + adapters; module++) {
        struct dtp_parameter_module layout;
        if (module < modules && packed)
            continue;
        if (module < modules)
            dtp_parameter_module(t, 1, module, &layout);
        else
            dtp_executor_adapter_module(t, &job->plan, 1, &layout);
        for (size_t k = 0; k < (module < modules && adapts ? 1 : sizeof kinds / sizeof *kinds); k++)
            apart = fmax(apart, kind_apart(a, b, model, &layout, module, kinds[k]));
    }
    return apart;
}

/* ---- runs -------------------------------------------------------------------------------------------------------- */

/* A row of a list that draw_row() tries. */
static inline void learns_as_one(const char *model, const char *words, const struct run_result *one,
                                 const char *one_name, bool to_the_bit)
{
    static struct dtp_job job;
    struct run_result stages;
    char all[1200];
    if (!draw_row())
        return;
    snprintf(all, sizeof all, "%s%s", model, words);
    run_job(model, &job);
    train(all, "run", &stages);
    double apart = state_apart(one_name, "run", &job);
    for (size_t i = 0; i < STEPS; i++) {
        bool same = stages.loss[i] == one->loss[i] && stages.gradient_norm[i] == one->gradient_norm[i];
        if (to_the_bit ? !same : fabs(stages.loss[i] - one->loss[i]) > DIFFERS_BY)
            fail_msg("%s: step %zu: loss %.9g of one rank, %.9g of several; norm %.9g and %.9g", words, i + 1,
                     one->loss[i], stages.loss[i], one->gradient_norm[i], stages.gradient_norm[i]);
    }
    if (to_the_bit ? apart > 0 : apart > APART)
        fail_msg("%s: state differs by %g of its largest element", words, apart);
    remove_all(folder("run"));
}

/* What ranks of one layout wrote goes on in the next, two steps each. `first` is one rank's. */
static inline void goes_on_in_any(const char *model, const char *first, const char *const *layouts, size_t count)
{
    struct run_result whole, part;
    char words[400], flags[3200];
    snprintf(words, sizeof words, "%s%s", model, first);
    snprintf(flags, sizeof flags, "--steps %zu --lr 1e-3 --min-lr 1e-3", 2 * count);
    rank_run(words, flags, &whole);
    assert_int_equal(whole.status, DTP_OK);
    remove_all(folder("run"));
    for (size_t i = 0; i < count; i++) {
        snprintf(words, sizeof words, "%s%s", model, layouts[i]);
        snprintf(flags, sizeof flags, "--steps %zu --lr 1e-3 --min-lr 1e-3 --checkpoint '%s' %s", 2 * (i + 1),
                 folder("run"), i ? "--resume" : "");
        rank_run(words, flags, &part);
        assert_int_equal(part.status, DTP_OK);
        for (size_t k = 0; k < 2; k++)
            if (fabs(part.loss[k] - whole.loss[2 * i + k]) > DIFFERS_BY)
                fail_msg("%s: step %zu: loss %.9g, %.9g of one rank", layouts[i], 2 * i + k + 1, part.loss[k],
                         whole.loss[2 * i + k]);
    }
    remove_all(folder("run"));
}

/* ---- what runs say ----------------------------------------------------------------------------------------------- */

/* All that a shell's line says, and the status that it ends with. */
static inline int said_by(const char *line, char *said, size_t bytes)
{
    FILE *pipe = popen(line, "r");
    assert_non_null(pipe);
    said[fread(said, 1, bytes - 1, pipe)] = '\0';
    return WEXITSTATUS(pclose(pipe));
}

/* What is not run: the key that is named, and words of the reason. */
struct refused_layout {
    const char *words, *key, *says;
};

static inline void are_refused(const char *model, const struct refused_layout *refused, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        char line[4096], said[4096], words[600];
        snprintf(words, sizeof words, "%s%s", model, refused[i].words);
        rank_command_line(words, "--steps 1 2>&1", line, sizeof line);
        assert_int_equal(said_by(line, said, sizeof said), DTP_BAD_INPUT);
        if (!strstr(said, refused[i].key) || !strstr(said, refused[i].says))
            fail_msg("%s: \"%s\" says nothing of %s and \"%s\"", refused[i].words, said, refused[i].key,
                     refused[i].says);
    }
}

static inline int times_said(const char *text, const char *words)
{
    int count = 0;
    for (; (text = strstr(text, words)); text += strlen(words))
        count++;
    return count;
}

/* The report of four steps of a small model. */
static inline void run_report(const char *words, char *said, size_t bytes)
{
    char line[1600];
    snprintf(line, sizeof line,
             "'" TEST_PROGRAMS
             "/dtplan' run --runtime dtplan --device host --threads 1 --steps 4 --layers 2 --hidden 64 --heads 4 --ffn "
             "64 --vocab 101 --precision fp32 --clip-norm 1 %s 2>&1",
             words);
    if (said_by(line, said, bytes) != 0)
        fail_msg("%s: %s", words, said);
}

/* So many kinds of transfers, and the arena, are what was predicted. Ends `said` behind them. */
static inline void sent_as_predicted(char *said, int kinds)
{
    char *sent = strstr(said, "COMMUNICATION"), *arena = strstr(said, "  arena ");
    assert_true(sent && arena);
    *strstr(sent, "STEP TIME") = '\0';
    assert_int_equal(times_said(sent, " 1.000"), kinds);
    *strchr(arena + 1, '\n') = '\0';
    assert_int_equal(times_said(arena, " 1.000"), 1);
}

#endif
