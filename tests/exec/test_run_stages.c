/* Pipelines on the host device: whatever the schedule, ranks with a stage each learn what one rank with the whole model
 * learns, and hold and send what their programs say.
 *
 * After the steps all state is compared, element by element, through checkpoints, which any layout reads: moments are
 * sums of gradients, so that these are compared too. Order and number of additions are those of one rank, so nothing
 * differs by a bit, but where gradients of two copies are added up: of dualpipe's directions, and of a tied embedding.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "lib/rank_fixture.h"
#include "lib/remove_all.h"
#include "schedule/schedule.h"

#define STEPS 50
#define MODEL "layers=8 hidden=16 heads=2 ffn=24 vocab=40 seq=8 micro_batch=1 accumulate=8 clip_norm=0.5 "
#define TIED                                                                                                           \
    "layers=4 hidden=16 heads=2 ffn=32 vocab=40 seq=8 positions=8 norm=layer_norm activation=gelu position=learned "   \
    "bias=true tied_head=true micro_batch=1 accumulate=8 "
#define LEARNING "--steps 50 --lr 1e-2 --checkpoint '%s'"
#define DIFFERS_BY 1e-6 /* a loss at most */

/* Where sums were made in another order: Adam divides by roots of second moments, and small ones make more of it. */
#define APART 1e-3

static struct dtp_faults faults;

static const char *folder(const char *name)
{
    static char path[4][3000];
    static int next;
    char *out = path[next++ % 4];
    snprintf(out, 3000, "%s/tests/stages_%s", TEST_BINARY_DIR, name);
    return out;
}

static void train(const char *words, const char *name, struct run_result *out)
{
    char flags[3200];
    remove_all(folder(name));
    snprintf(flags, sizeof flags, LEARNING, folder(name));
    rank_run(words, flags, out);
    if (out->status != DTP_OK)
        fail_msg("%s ended with %d", words, (int)out->status);
    assert_int_equal(out->steps, STEPS);
}

/* ---- state ------------------------------------------------------------------------------------------------------- */

/* One kind of state of one module, from a checkpoint of any layout. Caller frees. */
static float *read_state(const char *name, const char *model, const struct dtp_transformer *t, uint32_t module,
                         enum dtp_state_kind kind, uint64_t *count)
{
    struct dtp_parameter_module layout;
    struct dtp_checkpoint_position position;
    struct dtp_device *device;
    dtp_parameter_module(t, 1, module, &layout);
    *count = 0;
    for (int i = 0; i < DTP_PARAMETER_COUNT; i++) {
        const struct dtp_parameter_tensor *tensor = &layout.tensor[i];
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
static void read_identity(const char *name, char *out, size_t bytes)
{
    char line[3200];
    snprintf(line, sizeof line, "sed -n 's/.*\"model\": *\"\\([^\"]*\\)\".*/\\1/p' '%s'/step-00000050/manifest.json",
             folder(name));
    FILE *pipe = popen(line, "r");
    assert_non_null(pipe);
    assert_non_null(fgets(out, (int)bytes, pipe));
    out[strcspn(out, "\n")] = '\0';
    pclose(pipe);
}

/* Largest difference of any element, relative to the largest of its module. */
static double state_apart(const char *a, const char *b, const struct dtp_transformer *t)
{
    static const enum dtp_state_kind kinds[] = {DTP_STATE_WEIGHTS, DTP_STATE_MOMENT1, DTP_STATE_MOMENT2};
    char model[512];
    double apart = 0;
    read_identity(a, model, sizeof model);
    for (uint32_t module = 0; module < dtp_parameter_module_count(t); module++)
        for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
            uint64_t count, same;
            float *x = read_state(a, model, t, module, kinds[k], &count);
            float *y = read_state(b, model, t, module, kinds[k], &same);
            double largest = 0, differs = 0;
            assert_int_equal(count, same);
            for (uint64_t i = 0; i < count; i++) {
                largest = fmax(largest, fabs((double)x[i]));
                differs = fmax(differs, fabs((double)x[i] - (double)y[i]));
            }
            assert_true(count == 0 || largest > 0);
            apart = fmax(apart, count ? differs / largest : 0);
            free(x);
            free(y);
        }
    return apart;
}

/* ---- runs -------------------------------------------------------------------------------------------------------- */

static void learns_as_one(const char *model, const char *words, const struct run_result *one, const char *one_name,
                          bool to_the_bit)
{
    static struct dtp_job job;
    struct run_result stages;
    char all[1200];
    snprintf(all, sizeof all, "%s%s", model, words);
    run_job(model, &job);
    train(all, "run", &stages);
    double apart = state_apart(one_name, "run", &job.transformer);
    for (size_t i = 0; i < STEPS; i++) {
        bool same = stages.loss[i] == one->loss[i] && stages.gradient_norm[i] == one->gradient_norm[i];
        if (to_the_bit ? !same : fabs(stages.loss[i] - one->loss[i]) > DIFFERS_BY)
            fail_msg("%s: step %zu: loss %.9g of one rank, %.9g of stages; norm %.9g and %.9g", words, i + 1,
                     one->loss[i], stages.loss[i], one->gradient_norm[i], stages.gradient_norm[i]);
    }
    if (to_the_bit ? apart > 0 : apart > APART)
        fail_msg("%s: state differs by %g of its largest element", words, apart);
    remove_all(folder("run"));
}

static void test_every_schedule_learns_as_one_rank(void **state)
{
    struct run_result one;
    (void)state;
    train(MODEL "gpus=1", "one", &one);
    assert_true(one.loss[STEPS - 1] < one.loss[0]);
    for (int kind = 0; kind < DTP_SCHEDULE_COUNT; kind++) {
        const struct dtp_schedule_row *row = dtp_schedule_row((enum dtp_schedule_kind)kind);
        char words[128];
        snprintf(words, sizeof words, "gpus=4 pp=4 schedule=%s", row->word);
        learns_as_one(MODEL, words, &one, "one", row->copies == 1);
    }
    learns_as_one(MODEL, "gpus=2 pp=2 schedule=1f1b", &one, "one", true);
    learns_as_one(MODEL, "gpus=2 pp=2 schedule=zb-v", &one, "one", true);
    learns_as_one(MODEL, "gpus=2 pp=2 schedule=interleaved virtual_stages=4 checkpointing=full", &one, "one", true);
    learns_as_one(MODEL, "gpus=8 pp=8 schedule=zb-h2", &one, "one", true);
    learns_as_one(MODEL, "gpus=3 pp=3 schedule=zb-h1 stages='Ett|tttt|ttL'", &one, "one", true);
    remove_all(folder("one"));
}

/* The table and the head are one matrix, of which the first and the last stage have a copy each; sums are made in
 * another order then. */
static void test_tied_embeddings(void **state)
{
    struct run_result one;
    (void)state;
    train(TIED "gpus=1", "one", &one);
    learns_as_one(TIED, "gpus=2 pp=2 schedule=zb-h1", &one, "one", false);
    learns_as_one(TIED, "gpus=2 pp=2 schedule=v-half", &one, "one", true);
    remove_all(folder("one"));
}

/* Batches are shared out as among ranks without stages; sums over them end in the order of ranks. */
static void test_beside_data_parallel_ranks(void **state)
{
    struct run_result two;
    (void)state;
    train(MODEL "gpus=2 strategy=zero1", "one", &two);
    learns_as_one(MODEL, "gpus=4 pp=2 schedule=zb-h1 strategy=zero1", &two, "one", true);
    learns_as_one(MODEL, "gpus=4 pp=2 schedule=1f1b strategy=ddp", &two, "one", false);
    remove_all(folder("one"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_every_schedule_learns_as_one_rank),
                                       cmocka_unit_test(test_tied_embeddings),
                                       cmocka_unit_test(test_beside_data_parallel_ranks)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
