#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "cost/attention_workspace.h"

static const struct dtp_attention_size gpt2 = {32, 1024, 12, 12, 64, true, false};
static const struct dtp_attention_size llama_8b = {1, 8192, 32, 8, 128, true, false};

static struct dtp_attention_size ordered(struct dtp_attention_size size)
{
    size.deterministic = true;
    return size;
}

static void fused_shapes(void **state)
{
    (void)state;
    assert_true(dtp_attention_is_fused(true, 2048, 128, 0, false));
    assert_true(dtp_attention_is_fused(true, 128, 8, 0, false));
    assert_false(dtp_attention_is_fused(true, 128, 8, 0, true));      /* soft-capped */
    assert_false(dtp_attention_is_fused(false, 2048, 128, 0, false)); /* fp32 */
    assert_false(dtp_attention_is_fused(true, 1000, 128, 0, false));
    assert_false(dtp_attention_is_fused(true, 2048, 132, 0, false));
    assert_false(dtp_attention_is_fused(true, 2048, 136, 0, false));
}

static void own_shapes(void **state)
{
    (void)state;
    assert_true(dtp_attention_is_own_mma(true, 256, 0));
    assert_true(dtp_attention_is_own_mma(true, 192, 128));
    assert_false(dtp_attention_is_own_mma(false, 64, 0));
    assert_false(dtp_attention_is_own_mma(true, 264, 0));
    assert_false(dtp_attention_is_own_mma(true, 100, 0));
    assert_false(dtp_attention_is_own_mma(true, 128, 68));
}

/* A float for each query of each head in backward, where cuDNN computes nothing. */
static void planned_bytes(void **state)
{
    (void)state;
    struct dtp_attention_asked asked = {.size = {2, 1000, 16, 4, 256, true, true}, .halves = true};
    assert_int_equal(dtp_attention_planned_bytes(&asked), 2 * 16 * 1000 * 4);
    asked.size.backward = false;
    assert_int_equal(dtp_attention_planned_bytes(&asked), 0);
    asked.size.backward = true, asked.halves = false;
    assert_int_equal(dtp_attention_planned_bytes(&asked), 0);
    asked = (struct dtp_attention_asked){.size = gpt2, .halves = true};
    assert_int_equal(dtp_attention_planned_bytes(&asked), dtp_attention_workspace_bytes(&gpt2));
    asked.bent = true;
    assert_int_equal(dtp_attention_planned_bytes(&asked), 32 * 12 * 1024 * 4);
}

/* Of a ring: of all queries and half of the keys, and of half of the queries and all keys; each has half of the
 * square's scores. Of sequences that take 24 MiB 42 are within a GiB, so that 53, a prime, go one
 * by one; of 12 MiB all 53 at once. */
static void planned_bytes_of_steps(void **state)
{
    (void)state;
    struct dtp_attention_asked asked = {.size = gpt2, .halves = true, .in_steps = true};
    assert_int_equal(dtp_attention_planned_bytes(&asked), dtp_attention_workspace_bytes(&gpt2));
    asked.size = ordered(gpt2);
    assert_int_equal(dtp_attention_planned_bytes(&asked), dtp_attention_workspace_bytes(&asked.size));
    asked.size.batch = 53;
    struct dtp_attention_size back = asked.size;
    back.first_query = 512, back.key_count = 1024;
    assert_int_equal(dtp_attention_part(&asked.size).batch, 1);
    assert_int_equal(dtp_attention_part(&back).batch, 53);
    assert_true(dtp_attention_workspace_bytes(&back) > dtp_attention_workspace_bytes(&asked.size));
    assert_int_equal(dtp_attention_planned_bytes(&asked), dtp_attention_workspace_bytes(&back));
    asked.size.sequence = 640; /* pieces of 320 tokens are no whole blocks: our kernel computes later steps, in less */
    assert_int_equal(dtp_attention_planned_bytes(&asked), dtp_attention_workspace_bytes(&asked.size));
}

/* What cuDNN 9.19 asked for of a step, built for the description of an H200 without one: gradients of k and v for each
 * query head and key, gradients of scores. */
static void engine_bytes_of_steps(void **state)
{
    (void)state;
    struct dtp_attention_size front = llama_8b, back = llama_8b;
    front.key_count = 4096;
    back.first_query = 4096, back.key_count = 8192;
    assert_int_equal(dtp_attention_workspace(&front).engine_bytes, 67109120);
    assert_int_equal(dtp_attention_workspace(&back).engine_bytes, 134217984);
    const struct dtp_attention_size ordered_front = ordered(front), ordered_back = ordered(back);
    assert_int_equal(dtp_attention_workspace(&ordered_front).engine_bytes, 1107296512);
    assert_int_equal(dtp_attention_workspace(&ordered_back).engine_bytes, 1140850944);
    assert_int_equal(dtp_attention_workspace(&front).statistics_bytes, 0);
    assert_int_equal(dtp_attention_workspace(&back).statistics_bytes, 32 * 4096 * 4);
    assert_int_equal(dtp_attention_workspace(&back).row_sums_bytes, 32 * 4096 * 4);
    assert_int_equal(dtp_attention_workspace(&back).query_sum_bytes, 32ull * 4096 * 128 * 4);
    back.backward = false;
    assert_int_equal(dtp_attention_workspace_bytes(&back), 256);
}

/* What cuDNN 9.14 asked for on an H200: its own part of the workspace, less its 256 bytes. */
static void engine_bytes_as_measured(void **state)
{
    (void)state;
    struct dtp_attention_size forward = gpt2;
    forward.backward = false;
    assert_int_equal(dtp_attention_workspace_bytes(&forward), 256);
    assert_int_equal(dtp_attention_workspace(&gpt2).engine_bytes, 256);
    assert_int_equal(dtp_attention_workspace(&llama_8b).engine_bytes, 134217728 + 256);
    const struct dtp_attention_size tiny = {2, 256, 4, 2, 64, true, true};
    assert_int_equal(dtp_attention_workspace(&tiny).engine_bytes, 1573120);
    const struct dtp_attention_size llama_7b = {1, 2048, 32, 32, 128, true, true};
    assert_int_equal(dtp_attention_workspace(&llama_7b).engine_bytes, 268435712);
}

static void own_bytes(void **state)
{
    (void)state;
    /* 32 x 12 x 1024 rows of 4 bytes, and 64 times that */
    assert_int_equal(dtp_attention_workspace(&gpt2).row_sums_bytes, 1572864);
    assert_int_equal(dtp_attention_workspace(&gpt2).query_sum_bytes, 100663296);
    assert_int_equal(dtp_attention_workspace_bytes(&gpt2), 1572864 + 100663296 + 256);
    const struct dtp_attention_size size = ordered(gpt2);
    assert_int_equal(dtp_attention_workspace(&size).query_sum_bytes, 0);
}

/* The scores' gradient of one GPT-2 sequence takes 2 x 12 x 1024^2 = 25.2 MB: 42 stay within a GiB, 32 divide 64. */
static void parts_of_the_batch(void **state)
{
    (void)state;
    struct dtp_attention_size size = ordered(gpt2);
    assert_int_equal(dtp_attention_part(&size).batch, 32);
    size.batch = 64;
    const struct dtp_attention_part part = dtp_attention_part(&size);
    assert_int_equal(part.batch, 32);
    assert_int_equal(part.heads, 12);
    assert_int_equal(dtp_attention_workspace(&size).engine_bytes, 805306368 + 256);
    size.deterministic = false;
    assert_int_equal(dtp_attention_part(&size).batch, 64);
}

/* One head of 8192 positions takes 2^27 bytes, a group of four 2^29: two groups are just a GiB. Of 32768 positions a
 * group takes 8 GiB: more than the bound, but less cannot be done. */
static void parts_of_the_heads(void **state)
{
    (void)state;
    struct dtp_attention_size size = ordered(llama_8b);
    struct dtp_attention_part part = dtp_attention_part(&size);
    assert_int_equal(part.batch, 1);
    assert_int_equal(part.kv_heads, 2);
    assert_int_equal(part.heads, 8);
    size.sequence = 32768;
    part = dtp_attention_part(&size);
    assert_int_equal(part.kv_heads, 1);
    assert_int_equal(part.heads, 4);
    size.batch = 6, size.sequence = 4096, size.heads = size.kv_heads = 12; /* 2^25 bytes a head */
    part = dtp_attention_part(&size);
    assert_int_equal(part.batch, 2);
    assert_int_equal(part.heads, 12);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fused_shapes),
        cmocka_unit_test(own_shapes),
        cmocka_unit_test(planned_bytes),
        cmocka_unit_test(planned_bytes_of_steps),
        cmocka_unit_test(engine_bytes_of_steps),
        cmocka_unit_test(engine_bytes_as_measured),
        cmocka_unit_test(own_bytes),
        cmocka_unit_test(parts_of_the_batch),
        cmocka_unit_test(parts_of_the_heads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
