/* Context parallel ranks on the host device: ranks with two pieces of each sequence learn what one rank with all of it
 * learns, alone and together with every other way to divide a job, and hold and send what their programs say. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#define LAYOUT_FOLDER "context"
/* As test_run_tensor.c says. */
#define LEARNING_RATE "1e-3"
#include "lib/layout_fixture.h"

#define MODEL "layers=2 hidden=16 heads=4 kv_heads=2 head_dim=8 ffn=32 vocab=41 seq=16 micro_batch=2 clip_norm=0.5 "

static void test_learns_as_one_rank(void **state)
{
    struct run_result one;
    (void)state;
    train(MODEL "accumulate=2 gpus=1", "one", &one);
    assert_true(one.loss[STEPS - 1] < one.loss[0]);
    learns_as_one(MODEL, "accumulate=2 gpus=2 cp=2", &one, "one", false);
    learns_as_one(MODEL, "accumulate=2 gpus=4 cp=4 checkpointing=full", &one, "one", false);
    learns_as_one(MODEL, "accumulate=2 gpus=8 cp=8 checkpointing=selective loss_chunk=3", &one, "one", false);
    remove_all(folder("one"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_learns_as_one_rank)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
