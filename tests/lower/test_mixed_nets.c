/* Models whose layers are not all alike, counted by hand: which layer computes what, what it takes, what is replayed.
 */
#include "closed/activations.h"
#include "closed/block_work.h"
#include "closed/sharding.h"
#include "lower/lower.h"
#include "lower/miniature.h"
#include "runtime/runtimes.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "lib/hardware.h"

#define TOKENS 256

/* Five layers of which 1 and 3 have experts: behind one dense layer every second one. Weights of a layer that multiply
 * a token: attention 2 x 256 x 256 + 2 x 256 x 128 = 196,608; MLP 3 x 256 x 1024 = 786,432; router 8 x 256 = 2,048 and
 * two experts of 3 x 256 x 192 = 147,456. */
#define ATTENTION 196608.0
#define MLP 786432.0
#define EXPERTS (2048.0 + 2 * 147456.0)

static struct dtp_transformer mixed(void)
{
    struct dtp_transformer t = dtp_transformer_default();
    t.layers = 5, t.hidden = 256, t.heads = 4, t.kv_heads = 2, t.head_dim = 64, t.ffn = 1024, t.vocab = 1000;
    t.experts = 8, t.experts_per_token = 2, t.expert_ffn = 192, t.dense_layers = 1, t.expert_layer_step = 2;
    return t;
}

static struct dtp_plan plan_of(const struct dtp_transformer *t, const struct dtp_cluster *cluster,
                               enum dtp_checkpointing checkpointing)
{
    static struct dtp_faults faults;
    struct dtp_plan plan = dtp_plan_default();
    plan.strategy = DTP_DDP, plan.sequence = 128, plan.micro_batch = 2;
    plan.checkpointing = checkpointing, plan.checkpoint_every = 2;
    memset(&faults, 0, sizeof faults);
    if (dtp_plan_resolve(&plan, t, cluster, &faults) != DTP_OK)
        fail_msg("%s", faults.text[0]);
    return plan;
}

static double matmul_flops(const struct dtp_program *program, uint16_t layer)
{
    double flops = 0;
    for (size_t i = 0; i < dtp_program_op_count(program); i++) {
        const struct dtp_op *op = &dtp_program_ops(program)[i];
        flops += dtp_op_kind_class(op->kind) == DTP_CLASS_MATMUL && op->layer == layer ? op->demand->flops : 0;
    }
    return flops;
}

/* Forward 2 for every weight that a token meets, backward 4; layers 0, 2 and 4 twice forward where every second one is
 * checkpointed, all of an MLP but its last matmul. */
static void test_flops_of_each_layer(void **state)
{
    (void)state;
    struct dtp_transformer t = mixed();
    struct dtp_cluster cluster = test_cluster(test_h200(), 1, 8);
    for (int again = 0; again < 2; again++) {
        struct dtp_plan plan = plan_of(&t, &cluster, again ? DTP_CHECKPOINT_EVERY_N : DTP_CHECKPOINT_NONE);
        struct dtp_program *program;
        assert_int_equal(dtp_lower(&t, &cluster, &plan, 0, &program, NULL), DTP_OK);
        double dense = 6 * (ATTENTION + MLP) + again * 2 * (ATTENTION + MLP * 2 / 3);
        const double weights[] = {dense, 6 * (ATTENTION + EXPERTS), dense, 6 * (ATTENTION + EXPERTS), dense};
        for (uint16_t layer = 0; layer < 5; layer++)
            if (matmul_flops(program, layer) != TOKENS * weights[layer])
                fail_msg("layer %d: %.0f FLOPs, not %.0f", layer, matmul_flops(program, layer),
                         TOKENS * weights[layer]);
        dtp_program_destroy(program);
    }
}

/* 6 for each of these weights and the head's 256,000, and 6 L d_q s of attention. */
static void test_model_flops(void **state)
{
    (void)state;
    struct dtp_transformer t = mixed();
    double weights = 5 * ATTENTION + 3 * MLP + 2 * EXPERTS + 256000;
    assert_true(dtp_transformer_model_flops_per_token(&t, 128) == 6 * weights + 6 * 5 * 256 * 128);
}

/* Of the formulas: three blocks and two, of which the three run again. */
static void test_blocks_by_kind(void **state)
{
    (void)state;
    struct dtp_transformer t = mixed();
    struct dtp_cluster cluster = test_cluster(test_h200(), 1, 8);
    struct dtp_plan plan = plan_of(&t, &cluster, DTP_CHECKPOINT_EVERY_N);
    struct dtp_block_work dense = dtp_block_work(&t, DTP_LAYER_DENSE, &cluster, &plan);
    struct dtp_block_work experts = dtp_block_work(&t, DTP_LAYER_EXPERTS, &cluster, &plan);
    assert_true(dense.layers == 3 && dense.layers_again == 3);
    assert_true(experts.layers == 2 && experts.layers_again == 0);
    assert_int_equal(dense.matmul_count, 7);
    assert_int_equal(experts.matmul_count, 8); /* with the router's */
}

/* A dense layer has 983,040 weights, one of experts 196,608 + 2,048 + 8 x 147,456 = 1,378,304; 512 of norms each. */
static void test_units(void **state)
{
    (void)state;
    struct dtp_transformer t = mixed();
    struct dtp_cluster cluster = test_cluster(test_h200(), 1, 8);
    struct dtp_plan plan = plan_of(&t, &cluster, DTP_CHECKPOINT_NONE);
    struct dtp_units units;
    dtp_units_count(&t, &cluster, &plan, &units);
    assert_int_equal(units.total, 3 * 983040 + 2 * 1378304 + 5 * 512 + 2 * 256000 + 256);
    assert_int_equal(units.total, dtp_transformer_count(&t).total);
    assert_int_equal(units.largest_layer, 1378304 + 512);
    assert_int_equal(units.layer, (3 * 983040 + 2 * 1378304) / 5 + 512);
}

/* The first layers, and where every second one has experts an even number more. */
static void test_miniatures_keep_both_ends(void **state)
{
    (void)state;
    struct dtp_transformer t = mixed();
    struct dtp_cluster cluster = test_cluster(test_h200(), 1, 8);
    t.layers = 61, t.dense_layers = 3;
    struct dtp_plan plan = plan_of(&t, &cluster, DTP_CHECKPOINT_NONE);
    struct dtp_miniature_size size = dtp_miniature_size_of(&t, &plan, 1);
    assert_int_equal(size.period, 2);
    assert_int_equal(size.layers, 9); /* 3 and three periods, as odd as 61 */
    struct dtp_miniature miniature;
    assert_int_equal(dtp_miniature_of(&t, &cluster, &plan, 0, &miniature, NULL), DTP_OK);
    assert_true(miniature.layers > 0 && miniature.layers < 61);
}

/* Of four layers three cut a sequence of 16,384 into two chunks, 6 d_q 8192 FLOPs a token, and one sees all of it; at
 * 8192 all are alike. */
static void test_chunks(void **state)
{
    (void)state;
    struct dtp_transformer t = mixed();
    struct dtp_cluster cluster = test_cluster(test_h200(), 1, 8);
    t.layers = 4, t.sliding_window = 8192, t.sliding_window_pattern = 4, t.chunked_attention = true;
    double weights = (double)dtp_transformer_count(&t).matmul;
    assert_true(dtp_transformer_model_flops_per_token(&t, 16384) == 6 * weights + 6 * 256.0 * (3 * 8192 + 16384));
    assert_true(dtp_transformer_model_flops_per_token(&t, 8192) == 6 * weights + 6 * 256.0 * 4 * 8192);
    struct dtp_attention_shape chunk = dtp_transformer_attention(&t, 0, 16384);
    assert_true(chunk.queries == 8192 && chunk.keys == 8192 && chunk.window == 0);
    assert_int_equal(dtp_transformer_attention(&t, 3, 16384).keys, 16384);
    struct dtp_plan plan = dtp_plan_default();
    static struct dtp_faults faults;
    plan.strategy = DTP_DDP, plan.sequence = 12000;
    assert_int_equal(dtp_plan_resolve(&plan, &t, &cluster, &faults), DTP_BAD_INPUT);
    assert_non_null(strstr(faults.text[0], "no multiple of chunks of 8192"));
}

/* What is asked of a model all of whose layers are alike. */
static void test_alike(void **state)
{
    (void)state;
    struct dtp_transformer t = mixed();
    struct dtp_transformer dense = dtp_transformer_all_alike(&t, false), experts = dtp_transformer_all_alike(&t, true);
    assert_false(dtp_transformer_is_uniform(&t));
    assert_true(dtp_transformer_is_uniform(&dense) && dtp_transformer_is_uniform(&experts));
    assert_int_equal(dtp_transformer_expert_layers(&dense, 5), 0);
    assert_int_equal(dtp_transformer_expert_layers(&experts, 5), 5);
    t.dense_layers = 5; /* no layer is left for them */
    assert_true(dtp_transformer_is_uniform(&t));
    assert_int_equal(dtp_layer_mlp_of(&t), DTP_LAYER_DENSE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_flops_of_each_layer),
                                       cmocka_unit_test(test_model_flops),
                                       cmocka_unit_test(test_blocks_by_kind),
                                       cmocka_unit_test(test_units),
                                       cmocka_unit_test(test_alike),
                                       cmocka_unit_test(test_chunks),
                                       cmocka_unit_test(test_miniatures_keep_both_ends)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
