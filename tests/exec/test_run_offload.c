/* Optimizer or parameters in host memory, on several ranks of the host device: every strategy, accumulation and
 * checkpointing learns what one device with all of it learns, to 1e-6 of the loss over 50 steps in fp32. A few
 * combinations stand for all; DTPLAN_TEST_ALL=1 in the environment tries them all (minutes). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "lib/rank_fixture.h"

#define FLAGS "--steps 50 --lr 1e-3"

static struct run_result alone, together;

static const char *const strategies[] = {"gpus=2 strategy=zero1",         "gpus=2 strategy=zero2",
                                         "gpus=2 strategy=zero3",         "gpus=4 strategy=full_shard",
                                         "gpus=2 strategy=shard_grad_op", "gpus=4 strategy=hybrid_shard shard_group=2",
                                         "gpus=1 strategy=full_shard"};
static const char *const offloads[] = {"offload=optimizer", "offload=params"};
static const char *const accumulations[] = {"accumulate=1", "accumulate=2 accumulate_sync=true",
                                            "accumulate=2 accumulate_sync=false"};
static const char *const checkpoints[] = {"checkpointing=none", "checkpointing=full", "checkpointing=selective"};
static const char *const norms[] = {"gradient_norm=true", "gradient_norm=false", "clip_norm=1000"};
enum { STRATEGIES = 7, OFFLOADS = 2, ACCUMULATIONS = 3, CHECKPOINTS = 3, NORMS = 3 };

/* Every value of every column, and what is most unlike each other beside each other. */
static const unsigned char chosen[][5] = {{0, 0, 0, 0, 0}, {1, 0, 1, 1, 1}, {2, 1, 2, 2, 0}, {3, 1, 0, 1, 1},
                                          {4, 0, 2, 0, 2}, {5, 1, 1, 0, 2}, {5, 0, 0, 2, 1}, {6, 0, 1, 1, 1}};

/* zero1 and zero2 leave all parameters to every rank. */
static bool can_be(const unsigned char *at)
{
    return at[1] == 0 || at[0] > 1;
}

static void words_of(const unsigned char *at, char *out, size_t bytes)
{
    unsigned ranks = (unsigned)atoi(strategies[at[0]] + strlen("gpus=")), steps = at[2] ? 2 : 1;
    snprintf(out, bytes, RUN_LLAMA "%s micro_batch=%u %s %s %s %s", strategies[at[0]], 8 / ranks / steps,
             offloads[at[1]], accumulations[at[2]], checkpoints[at[3]], norms[at[4]]);
}

static void compare(const unsigned char *at)
{
    char words[1024];
    words_of(at, words, sizeof words);
    rank_run(words, can_be(at) ? FLAGS : FLAGS " 2>/dev/null", &together);
    if (!can_be(at)) {
        if (together.status != DTP_BAD_INPUT)
            fail_msg("%s: status %d, should be refused", words, (int)together.status);
        return;
    }
    if (together.status != DTP_OK || together.steps != 50)
        fail_msg("%s: status %d after %zu steps", words, (int)together.status, together.steps);
    if (!(run_apart(&together, &alone) < 1e-6))
        fail_msg("%s: losses %g apart", words, run_apart(&together, &alone));
}

static void test_offload_learns_the_same(void **state)
{
    unsigned char at[5];
    (void)state;
    rank_run(RUN_LLAMA "gpus=1 strategy=ddp micro_batch=8", FLAGS, &alone);
    assert_int_equal(alone.status, DTP_OK);
    assert_true(alone.loss[49] < alone.loss[0]);
    if (!getenv("DTPLAN_TEST_ALL")) {
        for (size_t i = 0; i < sizeof chosen / sizeof chosen[0]; i++)
            compare(chosen[i]);
        return;
    }
    for (at[0] = 0; at[0] < STRATEGIES; at[0]++)
        for (at[1] = 0; at[1] < OFFLOADS; at[1]++)
            for (at[2] = 0; at[2] < ACCUMULATIONS; at[2]++)
                for (at[3] = 0; at[3] < CHECKPOINTS; at[3]++)
                    for (at[4] = 0; at[4] < NORMS; at[4]++)
                        compare(at);
}

/* Weights of 16 bits that are their own master: rounded on the host as they would be on the device, up to ties that
 * fall otherwise in fp32. */
static void test_pure_offload_learns_as_without(void **state)
{
    static const char *const words[] = {"gpus=2 strategy=zero1 offload=optimizer",
                                        "gpus=2 strategy=zero3 offload=optimizer",
                                        "gpus=2 strategy=zero3 offload=params"};
    char line[1024];
    (void)state;
    rank_run(RUN_LLAMA "gpus=2 strategy=zero1 micro_batch=4 precision=bf16-pure", FLAGS, &alone);
    assert_int_equal(alone.status, DTP_OK);
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        snprintf(line, sizeof line, RUN_LLAMA "%s micro_batch=4 precision=bf16-pure", words[i]);
        rank_run(line, FLAGS, &together);
        if (together.status != DTP_OK)
            fail_msg("%s: status %d", words[i], (int)together.status);
        if (!(run_apart(&together, &alone) < 2e-3))
            fail_msg("%s: losses %g apart", words[i], run_apart(&together, &alone));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_offload_learns_the_same),
                                       cmocka_unit_test(test_pure_offload_learns_as_without)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
