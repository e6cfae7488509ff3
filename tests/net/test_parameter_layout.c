#include "net/parameter_layout.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "lib/random_plans.h"

/* GPT-2 124M over 3 ranks. Block: norm 1 768 + 768, qkv 2304 x 768 + 2304, output 768^2 + 768, norm 2, up 3072 x 768 +
 * 3072, down 768 x 3072 + 768 = 7,087,872 elements, of which a third is 2,362,624. */
static struct dtp_transformer gpt2(void)
{
    struct dtp_transformer t = dtp_transformer_default();
    t.layers = 12, t.hidden = 768, t.heads = t.kv_heads = 12, t.head_dim = 64, t.ffn = 3072, t.vocab = 50257;
    t.positions = 1024, t.position = DTP_POSITION_LEARNED, t.norm = DTP_LAYER_NORM, t.activation = DTP_GELU;
    t.norm_bias = t.qkv_bias = t.attention_output_bias = t.mlp_bias = t.tied_head = t.final_norm = true;
    return t;
}

static void test_gpt2(void **state)
{
    (void)state;
    struct dtp_transformer t = gpt2();
    struct dtp_parameter_module m;
    assert_int_equal(dtp_parameter_module_count(&t), 14);
    dtp_parameter_module(&t, 3, 1, &m);
    assert_int_equal(m.used_elements, 7087872);
    assert_int_equal(m.shard_elements, 2362624); /* 9229 times 256 */
    assert_int_equal(m.elements, 7087872);
    assert_int_equal(m.tensor[DTP_PARAMETER_QKV].offset_elements, 2 * 768);
    assert_int_equal(m.tensor[DTP_PARAMETER_QKV].rows, 2304);
    assert_true(m.tensor[DTP_PARAMETER_QKV].decays && !m.tensor[DTP_PARAMETER_NORM1].decays);
    assert_true(m.tensor[DTP_PARAMETER_NORM1].mean == 1 && m.tensor[DTP_PARAMETER_NORM1].deviation == 0);
    assert_near(m.tensor[DTP_PARAMETER_DOWN].deviation, 0.02 / 4.898979486, 1e-9); /* sqrt(24) */
    assert_true(m.tensor[DTP_PARAMETER_UP].deviation == 0.02);
    dtp_parameter_module(&t, 1, 0, &m);
    assert_int_equal(m.used_elements, 50257 * 768 + 1024 * 768);
    assert_int_equal(dtp_parameter_head_rows(&t), 50264); /* tied: the table is the head's matrix */
    assert_int_equal(m.tensor[DTP_PARAMETER_EMBEDDING].extent_elements, 50264 * 768);
    assert_int_equal(m.tensor[DTP_PARAMETER_POSITION].offset_elements, 50264 * 768);
    assert_int_equal(m.tensor[DTP_PARAMETER_POSITION].saved_offset_elements, 50257 * 768);
    dtp_parameter_module(&t, 1, 13, &m);
    assert_int_equal(m.used_elements, 2 * 768); /* tied: the final norm alone */
    assert_false(m.tensor[DTP_PARAMETER_HEAD].exists);
}

/* Tensors are disjoint, in order and aligned; shards are equal and aligned; nothing is lost. */
static void test_random_models(void **state)
{
    (void)state;
    random_seed();
    for (int i = 0; i < 2000; i++) {
        struct dtp_transformer t = random_transformer();
        uint64_t ranks = 1 + random_below(9), total = 0;
        bool runs = !t.parallel_block && t.norm_place == DTP_NORMS_BEFORE && !t.qk_norm_wide;
        if (dtp_transformer_check(&t, NULL, 0, NULL) != DTP_OK || !runs) /* what our executor refuses has no layout */
            continue;
        for (uint64_t module = 0; module < dtp_parameter_module_count(&t); module++) {
            struct dtp_parameter_module m;
            uint64_t end = 0;
            dtp_parameter_module(&t, ranks, module, &m);
            for (int p = 0; p < DTP_PARAMETER_COUNT; p++) {
                if (!m.tensor[p].exists)
                    continue;
                assert_true(m.tensor[p].offset_elements >= end && m.tensor[p].offset_elements < end + 8);
                assert_int_equal(m.tensor[p].offset_elements % DTP_PARAMETER_ALIGNMENT, 0);
                uint64_t elements = m.tensor[p].rows * m.tensor[p].columns, saved = m.tensor[p].saved_offset_elements;
                assert_true(m.tensor[p].extent_elements >= elements && saved % DTP_PARAMETER_ALIGNMENT == 0);
                end = m.tensor[p].offset_elements + m.tensor[p].extent_elements;
            }
            assert_true(m.elements >= end && m.elements < end + ranks * DTP_PARAMETER_SHARD_ALIGNMENT);
            assert_int_equal(m.shard_elements * ranks, m.elements);
            assert_int_equal(m.shard_elements % DTP_PARAMETER_SHARD_ALIGNMENT, 0);
            total += m.used_elements;
        }
        assert_int_equal(total, dtp_transformer_count(&t).total);
    }
}

static void test_keys_differ(void **state)
{
    (void)state;
    assert_int_not_equal(dtp_parameter_key(0, DTP_PARAMETER_HEAD_BIAS), dtp_parameter_key(1, DTP_PARAMETER_EMBEDDING));
    assert_true(dtp_parameter_element_key(1, 0) > dtp_parameter_element_key(0, UINT64_C(1) << 45));
    for (int i = 0; i < DTP_PARAMETER_COUNT; i++)
        assert_true(strlen(dtp_parameter_text((enum dtp_parameter)i)) > 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_gpt2), cmocka_unit_test(test_random_models),
                                       cmocka_unit_test(test_keys_differ)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
