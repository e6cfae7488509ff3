#include "net/transformer.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "lib/said.h"

static struct dtp_transformer llama(uint64_t layers, uint64_t hidden, uint64_t heads, uint64_t kv_heads, uint64_t ffn,
                                    uint64_t vocab)
{
    struct dtp_transformer t = dtp_transformer_default();
    t.layers = layers;
    t.hidden = hidden;
    t.heads = heads;
    t.kv_heads = kv_heads;
    t.head_dim = heads ? hidden / heads : 0;
    t.ffn = ffn;
    t.vocab = vocab;
    return t;
}

static struct dtp_transformer gpt2(uint64_t layers, uint64_t hidden, uint64_t heads)
{
    struct dtp_transformer t = llama(layers, hidden, heads, heads, 4 * hidden, 50257);
    t.norm = DTP_LAYER_NORM;
    t.activation = DTP_GELU;
    t.position = DTP_POSITION_LEARNED;
    t.positions = t.max_sequence = 1024;
    t.norm_bias = t.qkv_bias = t.attention_output_bias = t.mlp_bias = t.tied_head = true;
    return t;
}

static uint64_t count(struct dtp_transformer t)
{
    struct dtp_faults faults = {0};
    assert_int_equal(dtp_transformer_check(&t, NULL, 0, &faults), DTP_OK);
    return dtp_transformer_count(&t).total;
}

/* Published totals, without a catalogue in between. */
static void test_counts_are_the_published_ones(void **state)
{
    (void)state;
    assert_int_equal(count(llama(32, 4096, 32, 32, 11008, 32000)), 6738415616);      /* LLaMA-1/2 7B */
    assert_int_equal(count(llama(40, 5120, 40, 40, 13824, 32000)), 13015864320);     /* LLaMA-1/2 13B */
    assert_int_equal(count(llama(80, 8192, 64, 64, 22016, 32000)), 65285660672);     /* LLaMA-1 65B */
    assert_int_equal(count(llama(80, 8192, 64, 8, 28672, 32000)), 68976648192);      /* Llama-2 70B */
    assert_int_equal(count(llama(32, 4096, 32, 8, 14336, 128256)), 8030261248);      /* Llama-3 8B */
    assert_int_equal(count(llama(80, 8192, 64, 8, 28672, 128256)), 70553706496);     /* Llama-3 70B */
    assert_int_equal(count(llama(126, 16384, 128, 8, 53248, 128256)), 405853388800); /* Llama-3.1 405B */
    assert_int_equal(count(llama(32, 4096, 32, 8, 14336, 32000)), 7241732096);       /* Mistral 7B */
    assert_int_equal(count(gpt2(12, 768, 12)), 124439808);
    assert_int_equal(count(gpt2(48, 1600, 25)), 1557611200);
}

/* h = 2, one head of width 2, f = 3, V = 5, 7 positions, everything with a bias, by hand:
 * embedding 10, positions 14, embedding norm 4; block: q k v o 4*4 = 16, up + down 12, norms 8, biases 6 + 2 + 5;
 * final norm 4, head 10 + 5. */
static void test_every_part_by_hand(void **state)
{
    (void)state;
    struct dtp_transformer t = gpt2(2, 2, 1);
    t.ffn = 3;
    t.vocab = 5;
    t.positions = t.max_sequence = 7;
    t.tied_head = false;
    t.head_bias = t.embedding_norm = true;
    struct dtp_parameter_count c = dtp_transformer_count(&t);
    assert_int_equal(c.embedding, 10);
    assert_int_equal(c.position, 14);
    assert_int_equal(c.embedding_norm, 4);
    assert_int_equal(c.block_matmul, 28);
    assert_int_equal(c.block_vectors, 21);
    assert_int_equal(c.block, 49);
    assert_int_equal(c.final_norm, 4);
    assert_int_equal(c.head, 15);
    assert_int_equal(c.total, 10 + 14 + 4 + 2 * 49 + 4 + 15);
    assert_int_equal(c.matmul, 2 * 28 + 10);
    t.tied_head = true;
    assert_int_equal(dtp_transformer_count(&t).head, 5);
    assert_int_equal(dtp_transformer_count(&t).matmul, 2 * 28 + 10);
}

/* 2 layers, h = 4, 2 heads over 1 kv head of width 2, SwiGLU f = 6, V = 8: block 4*(4 + 2 + 2 + 4) + 3*24 = 120,
 * 6 * (2 * 120 + 32) + 6 * 2 * 4 * s. */
static void test_flops_by_hand(void **state)
{
    (void)state;
    struct dtp_transformer t = llama(2, 4, 2, 1, 6, 8);
    assert_true(dtp_transformer_model_flops_per_token(&t, 10) == 6 * (2 * 120 + 32) + 480);
    /* A window of 4 over 10 tokens leaves 4 * 10 - 4 * 4 / 2 = 32 of the triangle's 50 pairs: 6.4 of 10 tokens. */
    t.sliding_window = 4;
    assert_true(dtp_transformer_attention_length(&t, 10) == 6.4);
    assert_true(dtp_transformer_attention_length(&t, 4) == 4);
    /* Every second layer sees all: of three, layer 1. */
    t.sliding_window_pattern = 2;
    uint64_t layers = t.layers;
    t.layers = 3;
    assert_int_equal(dtp_transformer_layer_window(&t, 0, 10), 4);
    assert_int_equal(dtp_transformer_layer_window(&t, 1, 10), 0);
    assert_int_equal(dtp_transformer_layer_window(&t, 2, 4), 0); /* cuts nothing */
    assert_true(dtp_transformer_layer_attention_length(&t, 1, 10) == 10);
    assert_true(fabs(dtp_transformer_attention_length(&t, 10) - (2 * 6.4 + 10) / 3) < 1e-12);
    t.layers = layers, t.sliding_window_pattern = 0;
    assert_true(dtp_transformer_model_flops_per_token(&t, 10) == 6 * (2 * 120 + 32) + 6 * 2 * 4 * 6.4);
    t.qk_norm = true;
    assert_int_equal(dtp_transformer_count(&t).block_vectors, 2 * 4 + 2 * 2);
}

static void test_check_reports_every_fault(void **state)
{
    (void)state;
    struct dtp_transformer t = dtp_transformer_default();
    struct dtp_faults faults = {0};
    assert_int_equal(dtp_transformer_check(&t, "shape.ini", 4, &faults), DTP_BAD_INPUT);
    assert_int_equal(faults.count, 7);
    assert_string_equal(faults.text[0], "shape.ini:4: layers is 0; a transformer needs at least 1");
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
    expect_fault(llama(32, 4096, 32, 5, 11008, 32000), "kv_heads 5 do not divide heads 32");
    expect_fault(llama(100001, 4096, 32, 32, 11008, 32000), "layers is 100001");
    expect_fault(llama(32, UINT64_MAX, 1, 1, UINT64_MAX, UINT64_MAX), "hidden is 18446744073709551615");
    expect_fault(llama(100000, 100000000, 1, 1, 100000000, 100000000), "parameters");
    expect_fault(llama(1, 3, 1, 1, 1, 1), "must be even");
    struct dtp_transformer t = llama(32, 4096, 1u << 20, 1u << 20, 11008, 32000);
    t.head_dim = UINT64_MAX / 2;
    expect_fault(t, "heads x head_dim");
    t = llama(32, 4096, 32, 32, 11008, 32000);
    t.norm_bias = true;
    expect_fault(t, "norm_bias");
    t = llama(32, 4096, 32, 32, 11008, 32000);
    t.positions = 2048;
    expect_fault(t, "leave it 0");
    t = gpt2(12, 768, 12);
    t.max_sequence = 2048;
    expect_fault(t, "longer than the position table");
    t = gpt2(12, 768, 12);
    t.norm = (enum dtp_norm)7;
    t.activation = (enum dtp_activation) - 1;
    t.position = (enum dtp_position)9;
    expect_fault(t, "norm 7");
    expect_fault(t, "activation -1");
    expect_fault(t, "position 9");
}

/* The largest shapes that pass must not have wrapped: the exact count agrees with a count in long double. */
static void test_limit_is_below_overflow(void **state)
{
    (void)state;
    struct dtp_transformer t = llama(1, 18000000, 1, 1, 1, 1);
    t.head_dim = 2;
    for (; t.ffn < 18000000; t.ffn += 9999) {
        struct dtp_faults faults = {0};
        long double expected = 1.8e7L * (8 + 3 * (long double)t.ffn + 2 + 2 + 1);
        bool passes = dtp_transformer_check(&t, NULL, 0, &faults) == DTP_OK;
        assert_int_equal(passes, expected <= 1e15L);
        assert_true((long double)dtp_transformer_count(&t).total == expected);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_counts_are_the_published_ones),
                                       cmocka_unit_test(test_every_part_by_hand),
                                       cmocka_unit_test(test_flops_by_hand),
                                       cmocka_unit_test(test_check_reports_every_fault),
                                       cmocka_unit_test(test_check_refuses),
                                       cmocka_unit_test(test_limit_is_below_overflow)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
