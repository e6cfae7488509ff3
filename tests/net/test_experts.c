/* Parameters of models with experts and latent attention, against what their makers publish. */
#include "net/layer_kind.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "lib/expert_models.h"
#include "lib/said.h"

/* By hand, for DeepSeek-V3 (h 7168, 61 layers of which 3 are dense, vocabulary 129,280):
 *   attention  h 1536 + 1536 (128 192) + h (512 + 64) + 512 (128 (128 + 128)) + (128 128) h, norms 1536 + 512
 *              = 187,107,328; two norms of h more a layer
 *   experts    (256 + 1) 3 h 2048 + 256 h, dense 3 h 18432
 *   the rest   2 V h + h
 * active: 8 + 1 of the experts. The others by the same formula (attention of Mixtral ... 2 h H d + 2 h K d; gpt-oss
 * with biases of q, k, v, output, router and experts, 2 f + h an expert, and a sink a head). */
static void test_counts_are_the_published_ones(void **state)
{
    (void)state;
    static const struct {
        const char *model;
        uint64_t total, active;
    } published[] = {
        {"deepseek-v3", 671026404352, 37552282624},      {"kimi-k2", 1026408209408, 32861477888},
        {"deepseek-v2", 235741434880, 21375800320},      {"deepseek-v2-lite", 15706484224, 2661150208},
        {"mixtral-8x7b", 46702792704, 12879925248},      {"mixtral-8x22b", 140630071296, 39161468928},
        {"qwen3-30b-a3b", 30532122624, 3353032704},      {"qwen3-235b-a22b", 235093634560, 22190763520},
        {"gpt-oss-120b", 116829156672, 5711982912},      {"gpt-oss-20b", 20914757184, 4187440704},
        {"llama-4-maverick", 400711848960, 17184691200}, {"llama-4-scout", 107769861120, 17172894720},
    };
    for (size_t i = 0; i < sizeof published / sizeof *published; i++) {
        struct dtp_transformer t = expert_model(published[i].model);
        struct dtp_faults faults = {0};
        if (dtp_transformer_check(&t, NULL, 0, &faults) != DTP_OK)
            fail_msg("%s: %s", published[i].model, faults.text[0]);
        struct dtp_parameter_count count = dtp_transformer_count(&t);
        if (count.total != published[i].total || count.active != published[i].active)
            fail_msg("%s: %llu in all, %llu active", published[i].model, (unsigned long long)count.total,
                     (unsigned long long)count.active);
        assert_int_equal(count.mtp, 0);
    }
}

/* DeepSeek-V3's module: an expert layer of 11,507,288,064 = 187,107,328 + 2 h + 257 3 h 2048 + 256 h, 2 h h, 3 h. */
static void test_a_module_that_predicts_further(void **state)
{
    (void)state;
    struct dtp_transformer t = expert_model("deepseek-v3");
    uint64_t h = 7168, layer = UINT64_C(187107328) + 2 * h + 257 * 3 * h * 2048 + 256 * h;
    t.mtp_layers = 1;
    struct dtp_parameter_count count = dtp_transformer_count(&t);
    assert_int_equal(count.expert_block, layer);
    assert_int_equal(count.mtp, layer + 2 * h * h + 3 * h);
    assert_int_equal(count.total, 671026404352 + count.mtp);
}

/* Of Maverick's 48 layers every second, the first of them layer 1; of DeepSeek-V3's all but 3. */
static void test_which_layers_have_experts(void **state)
{
    (void)state;
    struct dtp_transformer t = expert_model("llama-4-maverick");
    assert_false(dtp_transformer_layer_has_experts(&t, 0));
    assert_true(dtp_transformer_layer_has_experts(&t, 1));
    assert_int_equal(dtp_transformer_count(&t).expert_layers, 24);
    t = expert_model("deepseek-v3");
    assert_false(dtp_transformer_layer_has_experts(&t, 2));
    assert_true(dtp_transformer_layer_has_experts(&t, 3));
    for (t.dense_layers = 0; t.dense_layers < 9; t.dense_layers++)
        for (t.expert_layer_step = 0; t.expert_layer_step < 5; t.expert_layer_step++) {
            uint64_t counted = 0;
            for (uint64_t layer = 0; layer < 20; layer++) {
                assert_int_equal(dtp_transformer_expert_layers(&t, layer), counted);
                counted += dtp_transformer_layer_has_experts(&t, layer);
            }
        }
}

static void expect_fault(struct dtp_transformer t, const char *part)
{
    struct dtp_faults faults = {0};
    assert_int_equal(dtp_transformer_check(&t, NULL, 0, &faults), DTP_BAD_INPUT);
    assert_said(&faults, part);
}

static void test_check_refuses(void **state)
{
    (void)state;
    const struct dtp_transformer good = expert_model("deepseek-v3");
    struct dtp_transformer t = good;
    t.experts = 0;
    expect_fault(t, "need experts");
    t = good, t.experts_per_token = 257;
    expect_fault(t, "experts_per_token is 257");
    t = good, t.expert_groups = 7;
    expect_fault(t, "do not divide experts");
    t = good, t.groups_per_token = 9;
    expect_fault(t, "groups_per_token is 9");
    t = good, t.dense_layers = 61;
    expect_fault(t, "no layer that has experts");
    t = good, t.kv_latent = 0;
    expect_fault(t, "give kv_latent");
    t = good, t.rope_head_dim = 192;
    expect_fault(t, "rope_head_dim is 192");
    t = good, t.kv_heads = 64;
    expect_fault(t, "latent attention has keys of all");
    t = good, t.expert_ffn = 0;
    expect_fault(t, "expert_ffn is 0");
    t = good, t.experts = 65536, t.expert_ffn = 100000000;
    expect_fault(t, "parameters");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_counts_are_the_published_ones),
        cmocka_unit_test(test_a_module_that_predicts_further),
        cmocka_unit_test(test_which_layers_have_experts),
        cmocka_unit_test(test_check_refuses),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
