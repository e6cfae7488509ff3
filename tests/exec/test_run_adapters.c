/* Adapters on frozen weights, whole and in 4 bits, on ranks of the host device that divide the model or its sequences:
 * these learn what one rank with all of it learns, and hold and send what their programs say.
 *
 * After the steps adapters and their moments, sums of gradients, are compared element by element through checkpoints,
 * and weights that nobody trains. Stages differ by no bit but where two copies' gradients are added up.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "lib/random_draws.h"

#define STEPS RANDOM_DRAWS(50)
#define LEARNING_RATE "1e-3" /* B begins at 0, so that A's first gradients are little but rounding */
#define LAYOUT_FOLDER "adapters"
#include "lib/layout_fixture.h"
#include "runtime/runtimes.h"
#include "schedule/schedule.h"

#define MODEL "layers=8 hidden=32 heads=2 kv_heads=1 ffn=64 vocab=40 seq=8 micro_batch=1 accumulate=8 clip_norm=0.05 "

#define CONTEXT                                                                                                        \
    "layers=4 hidden=32 heads=4 kv_heads=4 ffn=64 vocab=40 seq=32 micro_batch=1 accumulate=4 clip_norm=0.05 "          \
    "strategy=ddp "

static const char *const adapters[] = {"lora=8 lora_alpha=16 ", "lora=8 base=nf4 checkpointing=full ",
                                       "lora=8 lora_targets=q+v checkpointing=every-2 "};

static void train_words(const char *model, const char *words, const char *name, struct run_result *out)
{
    char all[600];
    snprintf(all, sizeof all, "%s%s", model, words);
    train(all, name, out);
}

/* Only the stage with the model's first block ends its backward there.
 * Of dualpipe each rank has two copies of its layers' adapters. Layers lie on stages however they may, an embedding by
 * itself with none. */
static void test_stages(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof adapters / sizeof *adapters; i++) {
        char model[400];
        struct run_result one, two;
        snprintf(model, sizeof model, MODEL "%s", adapters[i]);
        train_words(model, "gpus=1", "one", &one);
        assert_true(one.loss[STEPS - 1] < one.loss[0]);
        for (int kind = 0; kind < DTP_SCHEDULE_COUNT; kind++) {
            const struct dtp_schedule_row *row = dtp_schedule_row((enum dtp_schedule_kind)kind);
            char words[128];
            if (!(dtp_runtime_find("dtplan")->schedules & 1u << kind))
                continue;
            snprintf(words, sizeof words, "gpus=2 pp=2 schedule=%s", row->word);
            learns_as_one(model, words, &one, "one", row->copies == 1);
        }
        learns_as_one(model, "gpus=4 pp=4 schedule=1f1b", &one, "one", true);
        learns_as_one(model, "gpus=4 pp=4 schedule=1f1b stages='E|ttt|ttt|ttL'", &one, "one", true);
        learns_as_one(model, "gpus=4 pp=4 schedule=1f1b stages='Ettt|ttt|tt|L'", &one, "one", true);
        train_words(model, "gpus=2 strategy=ddp accumulate=4", "two", &two);
        learns_as_one(model, "gpus=4 pp=2 strategy=ddp accumulate=4", &two, "two", false);
    }
    remove_all(folder("one"));
    remove_all(folder("two"));
}

/* What ranks of one layout wrote goes on in any other; packed weights are the seed's. */
static void test_checkpoints(void **state)
{
    static const char *const layouts[] = {"gpus=1",
                                          "gpus=4 pp=4 schedule=zb-v",
                                          "gpus=2 pp=2 schedule=interleaved",
                                          "gpus=2 strategy=ddp accumulate=4",
                                          "gpus=2 cp=2 strategy=ddp",
                                          "gpus=1"};
    (void)state;
    for (size_t i = 0; i < 2; i++) {
        char model[400];
        snprintf(model, sizeof model, MODEL "%s", adapters[i]);
        goes_on_in_any(model, "gpus=1", layouts, sizeof layouts / sizeof *layouts);
    }
}

/* Ranks that share sequences have each other's keys and values, or heads; adapters of theirs are replicas. */
static void test_sequences(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof adapters / sizeof *adapters; i++) {
        char model[400];
        struct run_result one;
        snprintf(model, sizeof model, CONTEXT "%s", adapters[i]);
        train_words(model, "gpus=1", "one", &one);
        learns_as_one(model, "gpus=2 cp=2", &one, "one", false);
        learns_as_one(model, "gpus=2 cp=2 cp_comm=a2a", &one, "one", false);
        learns_as_one(model, "gpus=4 cp=4 cp_comm=a2a", &one, "one", false);
        learns_as_one(model, "gpus=4 cp=4", &one, "one", false);
        learns_as_one(model, "gpus=4 cp=2 pp=2 schedule=zb-v", &one, "one", false);
    }
    remove_all(folder("one"));
}

/* Ranks that divide matrices divide one half of each adapter. */
static void test_matrices(void **state)
{
    static const char *const choices[] = {"lora=8 lora_alpha=16 ",
                                          "lora=8 lora_targets=q+v checkpointing=every-2 ",
                                          "lora=8 lora_targets=k+o+down checkpointing=full ",
                                          "lora=16 lora_targets=up checkpointing=selective-attention ",
                                          "lora=8 lora_targets=o+up parallel_block=one_norm ",
                                          "lora=8 norm_place=after qk_norm=true "};
    (void)state;
    for (size_t i = 0; i < sizeof choices / sizeof *choices; i++) {
        char model[400];
        struct run_result one;
        snprintf(model, sizeof model, CONTEXT "%s", choices[i]);
        train_words(model, "gpus=1", "one", &one);
        learns_as_one(model, "gpus=2 tp=2", &one, "one", false);
        learns_as_one(model, "gpus=4 tp=4", &one, "one", false);
        learns_as_one(model, "gpus=4 tp=2 pp=2 schedule=1f1b", &one, "one", false);
        learns_as_one(model, "gpus=4 tp=2 accumulate=2", &one, "one", false);
        learns_as_one(model, "gpus=4 tp=2 cp=2", &one, "one", false);
    }
    remove_all(folder("one"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_stages), cmocka_unit_test(test_checkpoints),
                                       cmocka_unit_test(test_sequences), cmocka_unit_test(test_matrices)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
