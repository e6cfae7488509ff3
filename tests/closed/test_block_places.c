/* A block's places against tensors counted by hand, and against the sums of activations.h. */
#include "closed/block_places.h"
#include "runtime/runtimes.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "lib/random_plans.h"

static const struct dtp_cluster eight_gpus = {.gpus = 8, .gpus_per_node = 8, .nodes = 1};

/* Llama-3-8B: h 4096, d_q 4096, d_kv 1024, f 14336. */
static struct dtp_transformer llama(void)
{
    struct dtp_transformer t = dtp_transformer_default();
    t.layers = 24, t.hidden = 4096, t.heads = 32, t.kv_heads = 8, t.head_dim = 128, t.ffn = 14336, t.vocab = 128256;
    return t;
}

static struct dtp_plan one_row(void)
{
    struct dtp_plan plan = dtp_plan_default();
    plan.micro_batch = 1, plan.sequence = 2048;
    return plan;
}

/* Everything saved (test_activations.c) is 168072 bytes a token; the last kernel has the down projection 2h and the
 * next block's input 2h beside it. */
static void test_forward(void **state)
{
    (void)state;
    struct dtp_transformer t = llama();
    struct dtp_plan plan = one_row();
    struct dtp_block_places places;
    dtp_block_places_count(&t, &eight_gpus, &plan, &places);
    assert_int_equal(places.forward[0].saved + places.forward[0].work, 168072 + 2 * 2 * 4096);
    /* Checkpointed, the activation is worst: input, an eager function's variables (rotated q and k, v, core's result,
     * residual sum, up, product), gate and silu(gate), and statistics; results of norms went with their last reader. */
    plan.checkpointing = DTP_CHECKPOINT_FULL;
    dtp_block_places_count(&t, &eight_gpus, &plan, &places);
    uint64_t h = 2 * 4096, kv = 2 * 1024, f = 2 * 14336;
    uint64_t statistics = 2 * 4 + 4 * 32;
    assert_int_equal(places.forward[1].saved, h + h + 2 * kv + h + h + 4 * f + statistics);
    assert_int_equal(places.forward[1].work, 0);
}

/* Backward with few tokens: gradients of all matrices but q's, k's and v's stand at the attention core. */
static void test_backward(void **state)
{
    (void)state;
    struct dtp_transformer t = llama();
    struct dtp_plan plan = one_row();
    struct dtp_block_places places;
    dtp_block_places_count(&t, &eight_gpus, &plan, &places);
    uint64_t q = 4096 * 4096, kv = 4096 * 1024, f = UINT64_C(4096) * 14336;
    struct dtp_place_weights bytes = {.tokens = 1 << 20, .finished = 0};
    /* many tokens: gradients of product, silu(gate) and up, the product itself has gone: 3f - f above all */
    const struct dtp_block_place *worst = dtp_block_worst(&places, &bytes);
    assert_int_equal(worst->saved + worst->work, 168072 + 2 * 2 * 14336);
    /* none: all gradients */
    bytes = (struct dtp_place_weights){.finished = 2, .current = {2, 2, 2}};
    worst = dtp_block_worst(&places, &bytes);
    assert_int_equal(worst->finished + worst->current, 3 * f + 2 * q + 2 * kv + 2 * 4096);
    /* handed over at once they never stand together: the down matrix's is one of the largest */
    bytes = (struct dtp_place_weights){.current = {0, 2, 4}};
    worst = dtp_block_worst(&places, &bytes);
    assert_int_equal(worst->current, f);
    assert_int_equal(worst->kind, DTP_PLACE_HANDED);
}

/* Sums of whole sets are those of activations.h, whatever the plan; backward ends with nothing left. */
static void test_sums(void **state)
{
    (void)state;
    random_seed();
    for (int i = 0; i < 3000; i++) {
        struct random_job job;
        struct dtp_activations activations;
        struct dtp_block_places places;
        assert_true(random_job(&job));
        if (job.plan.runtime == &dtp_runtime_dtplan)
            continue;
        dtp_activations_count(&job.transformer, &job.cluster, &job.plan, &activations);
        dtp_block_places_count(&job.transformer, &job.cluster, &job.plan, &places);
        assert_true(places.count <= DTP_BLOCK_PLACES);
        assert_true(places.backward[0].saved == activations.layer_all);
        enum dtp_checkpointing how = job.plan.checkpointing;
        if (how == DTP_CHECKPOINT_NONE || (how == DTP_CHECKPOINT_EVERY_N && job.plan.checkpoint_every > 1))
            assert_true(places.forward[0].saved + places.forward[0].work >= activations.layer_all);
        if (how != DTP_CHECKPOINT_NONE)
            assert_true(places.forward[1].saved + places.forward[1].work >= activations.layer_kept);
        const struct dtp_block_place *last = &places.backward[places.count - 1];
        assert_true(last->saved == 0 && last->work == 0 && last->casts == 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_forward), cmocka_unit_test(test_backward),
                                       cmocka_unit_test(test_sums)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
