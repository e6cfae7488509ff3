/* The plain C kernels around attention that context parallel ranks share: its steps, on all ranks of a ring one after
 * the other, against attention over whole sequences. */
#include "lib/kernel_fixture.h"

#include <string.h>

enum { BATCH = 2, RING = 3, PIECE = 2, OWN = 2 * PIECE, WHOLE = RING * OWN, HEADS = 4, KV_HEADS = 2, DIM = 3 };
enum { Q = HEADS * DIM, KV = 2 * KV_HEADS * DIM, PACKED = Q + KV };
#define CAP 0.9f

/* What one rank has, and what passes by it. */
struct rank {
    float qkv[BATCH * OWN * PACKED], keys[BATCH * OWN * KV], gradient[BATCH * OWN * Q];
    float parts[RING][BATCH * OWN * Q], sums[RING][BATCH * OWN * HEADS];
    float result[BATCH * OWN * Q], log_sum_exp[BATCH * OWN * HEADS];
    float qkv_gradient[BATCH * OWN * PACKED], around[BATCH * OWN * KV];
};

/* Rank r has the r-th piece from the front and the r-th from the back. */
static uint32_t position(uint32_t rank, uint32_t token)
{
    return token < PIECE ? rank * PIECE + token : (2 * RING - 1 - rank) * PIECE + token - PIECE;
}

/* Rows of a rank out of those of whole sequences, or back. */
static void take(float *own, float *whole, uint32_t rank, uint32_t width, bool back)
{
    for (uint32_t b = 0; b < BATCH; b++)
        for (uint32_t i = 0; i < OWN; i++) {
            float *mine = own + (b * OWN + i) * width, *its = whole + (b * WHOLE + position(rank, i)) * width;
            memcpy(back ? its : mine, back ? mine : its, width * sizeof *own);
        }
}

static struct dtp_attention_args step_of(struct rank *ranks, uint32_t rank, uint32_t step)
{
    const uint32_t from = (rank + RING - step) % RING;
    struct rank *own = &ranks[rank];
    return (struct dtp_attention_args){.qkv = own->qkv,
                                       .keys = step ? ranks[from].keys : NULL,
                                       .result = own->parts[step],
                                       .log_sum_exp = own->sums[step],
                                       .batch = BATCH,
                                       .sequence = OWN,
                                       .heads = HEADS,
                                       .kv_heads = KV_HEADS,
                                       .head_dim = DIM,
                                       .first_query = from < rank ? 0 : PIECE,
                                       .key_count = from < rank ? PIECE : OWN,
                                       .scale = 0.7f,
                                       .softcap = CAP,
                                       .element = DTP_ELEMENT_FP32};
}

static void run_forward(struct rank *ranks, uint32_t rank)
{
    struct rank *own = &ranks[rank];
    for (uint32_t step = 0; step < RING; step++) {
        const struct dtp_attention_args a = step_of(ranks, rank, step);
        assert_int_equal(dtp_reference_attention(NULL, &a, NULL), 0);
    }
    const struct dtp_merge_attention_args merge = {.parts = own->parts,
                                                   .part_log_sum_exp = own->sums[0],
                                                   .result = own->result,
                                                   .log_sum_exp = own->log_sum_exp,
                                                   .steps = RING,
                                                   .whole = rank + 1,
                                                   .batch = BATCH,
                                                   .sequence = OWN,
                                                   .heads = HEADS,
                                                   .head_dim = DIM,
                                                   .element = DTP_ELEMENT_FP32};
    assert_int_equal(dtp_reference_merge_attention(NULL, &merge, NULL), 0);
}

/* Terms of a step for the keys of rank `from` go to what is added up for these. */
static void run_backward(struct rank *ranks, uint32_t rank, uint32_t step)
{
    const struct dtp_attention_args a = step_of(ranks, rank, step);
    float queries[BATCH * OWN * Q], keys[BATCH * OWN * KV];
    struct rank *own = &ranks[rank];
    const struct dtp_attention_backward_args back = {.qkv = own->qkv,
                                                     .keys = a.keys,
                                                     .result = own->result,
                                                     .gradient = own->gradient,
                                                     .log_sum_exp = own->log_sum_exp,
                                                     .qkv_gradient = step ? NULL : own->qkv_gradient,
                                                     .query_gradient = queries,
                                                     .keys_gradient = keys,
                                                     .batch = BATCH,
                                                     .sequence = OWN,
                                                     .heads = HEADS,
                                                     .kv_heads = KV_HEADS,
                                                     .head_dim = DIM,
                                                     .first_query = a.first_query,
                                                     .key_count = a.key_count,
                                                     .scale = a.scale,
                                                     .softcap = CAP,
                                                     .element = DTP_ELEMENT_FP32};
    assert_int_equal(dtp_reference_attention_backward(NULL, &back, NULL), 0);
    const struct dtp_merge_gradients_args merge = {.query_gradient = queries,
                                                   .keys_gradient = keys,
                                                   .qkv_gradient = own->qkv_gradient,
                                                   .sum = ranks[(rank + RING - step) % RING].around,
                                                   .batch = BATCH,
                                                   .sequence = OWN,
                                                   .heads = HEADS,
                                                   .kv_heads = KV_HEADS,
                                                   .head_dim = DIM,
                                                   .first_query = a.first_query,
                                                   .key_count = a.key_count,
                                                   .element = DTP_ELEMENT_FP32,
                                                   .accumulate = step > 1};
    if (step)
        assert_int_equal(dtp_reference_merge_gradients(NULL, &merge, NULL), 0);
}

static void move_keys(float *packed, float *keys, bool back)
{
    const struct dtp_columns_args columns = {.from = back ? keys : packed + Q,
                                             .to = back ? packed + Q : keys,
                                             .width = KV,
                                             .count = {BATCH, 1, OWN},
                                             .from_step = {OWN * (back ? KV : PACKED), 0, back ? KV : PACKED},
                                             .to_step = {OWN * (back ? PACKED : KV), 0, back ? PACKED : KV},
                                             .element = DTP_ELEMENT_FP32,
                                             .accumulate = back};
    assert_int_equal(dtp_reference_columns(NULL, &columns, NULL), 0);
}

static void compare(const float *made, const float *expected, size_t count, const char *what)
{
    for (size_t i = 0; i < count; i++)
        check_close((double)made[i], (double)expected[i], 2e-6, what, __FILE__, __LINE__);
}

static void test_steps_are_the_whole(void **state)
{
    static float qkv[BATCH * WHOLE * PACKED], gradient[BATCH * WHOLE * Q], result[BATCH * WHOLE * Q],
        log_sum_exp[BATCH * WHOLE * HEADS], qkv_gradient[BATCH * WHOLE * PACKED];
    static float made[BATCH * WHOLE * Q], made_gradient[BATCH * WHOLE * PACKED];
    static struct rank ranks[RING];
    (void)state;
    fill(qkv, COUNT(qkv), 1);
    fill(gradient, COUNT(gradient), 2);
    struct dtp_attention_args a = step_of(ranks, 0, 0);
    a.qkv = qkv, a.result = result, a.log_sum_exp = log_sum_exp, a.sequence = WHOLE;
    assert_int_equal(dtp_reference_attention(NULL, &a, NULL), 0);
    const struct dtp_attention_backward_args back = {.qkv = qkv,
                                                     .result = result,
                                                     .gradient = gradient,
                                                     .log_sum_exp = log_sum_exp,
                                                     .qkv_gradient = qkv_gradient,
                                                     .batch = BATCH,
                                                     .sequence = WHOLE,
                                                     .heads = HEADS,
                                                     .kv_heads = KV_HEADS,
                                                     .head_dim = DIM,
                                                     .scale = a.scale,
                                                     .softcap = CAP,
                                                     .element = DTP_ELEMENT_FP32};
    assert_int_equal(dtp_reference_attention_backward(NULL, &back, NULL), 0);
    for (uint32_t r = 0; r < RING; r++) {
        take(ranks[r].qkv, qkv, r, PACKED, false);
        take(ranks[r].gradient, gradient, r, Q, false);
        move_keys(ranks[r].qkv, ranks[r].keys, false);
        fill(ranks[r].around, COUNT(ranks[r].around), 3); /* the first sum overwrites it, whole */
    }
    for (uint32_t r = 0; r < RING; r++)
        run_forward(ranks, r);
    for (uint32_t step = 0; step < RING; step++)
        for (uint32_t r = 0; r < RING; r++)
            run_backward(ranks, r, step);
    for (uint32_t r = 0; r < RING; r++) {
        move_keys(ranks[r].qkv_gradient, ranks[r].around, true);
        take(ranks[r].result, made, r, Q, true);
        take(ranks[r].qkv_gradient, made_gradient, r, PACKED, true);
    }
    compare(made, result, COUNT(result), "result");
    compare(made_gradient, qkv_gradient, COUNT(qkv_gradient), "gradient");
}

/* Two queries of one head, of which the second is in both steps: log-sum-exps 0 and log 3 are weights 1/4 and 3/4,
 * their own sum log 4. */
static void test_merge_by_hand(void **state)
{
    const float parts[2][2] = {{5, 8}, {-1, 4}}, sums[2][2] = {{1, 0}, {logf(3), -1}}; /* the last of each: none's */
    float result[2], log_sum_exp[2];
    (void)state;
    const struct dtp_merge_attention_args merge = {.parts = parts,
                                                   .part_log_sum_exp = sums[0],
                                                   .result = result,
                                                   .log_sum_exp = log_sum_exp,
                                                   .steps = 2,
                                                   .whole = 1,
                                                   .batch = 1,
                                                   .sequence = 2,
                                                   .heads = 1,
                                                   .head_dim = 1,
                                                   .element = DTP_ELEMENT_FP32};
    assert_int_equal(dtp_reference_merge_attention(NULL, &merge, NULL), 0);
    assert_close(result[0], 5, 1e-7);
    assert_close(log_sum_exp[0], 1, 1e-7);
    assert_close(result[1], 8 / 4.0 + 3 * 4 / 4.0, 1e-6);
    assert_close(log_sum_exp[1], log(4), 1e-6);
}

/* Heads of two sequences of 3 tokens, 8 and 4 heads of 2: two ranks, two chunks of each. */
enum { LAID_BATCH = 2, LAID_TOKENS = 3, LAID_HEADS = 8, LAID_KEYS = 4, LAID_DIM = 2, LAID_RANKS = 2, LAID_CHUNKS = 2 };
#define LAID_ALL (LAID_HEADS + 2 * LAID_KEYS)
#define LAID_COUNT (LAID_BATCH * LAID_TOKENS * LAID_ALL * LAID_DIM)

/* Counted by hand: of rank 1's second chunk the heads are 6 and 7, its key head 3, its value head 3. */
static void test_heads_by_ranks(void **state)
{
    static const uint32_t row[4] = {6, 7, LAID_HEADS + 3, LAID_HEADS + LAID_KEYS + 3};
    float rows[LAID_COUNT], laid_out[LAID_COUNT], again[LAID_COUNT];
    (void)state;
    fill(rows, LAID_COUNT, 3);
    struct dtp_lay_out_heads_args a = {.rows = rows,
                                       .laid_out = laid_out,
                                       .batch = LAID_BATCH,
                                       .sequence = LAID_TOKENS,
                                       .heads = LAID_HEADS,
                                       .kv_heads = LAID_KEYS,
                                       .head_dim = LAID_DIM,
                                       .ranks = LAID_RANKS,
                                       .chunks = LAID_CHUNKS,
                                       .element = DTP_ELEMENT_FP32};
    assert_int_equal(dtp_reference_lay_out_heads(NULL, &a, NULL), 0);
    /* chunk 1, sequence 1, rank 1 is the last block of 3 tokens x 4 heads x 2 */
    const float *block = laid_out + LAID_COUNT - LAID_TOKENS * 4 * LAID_DIM;
    for (int token = 0; token < LAID_TOKENS; token++)
        for (int head = 0; head < 4; head++)
            for (int d = 0; d < LAID_DIM; d++)
                assert_true(block[(token * 4 + head) * LAID_DIM + d] ==
                            rows[((LAID_TOKENS + token) * LAID_ALL + (int)row[head]) * LAID_DIM + d]);
    a.rows = again, a.back = true;
    assert_int_equal(dtp_reference_lay_out_heads(NULL, &a, NULL), 0);
    assert_memory_equal(again, rows, sizeof rows);
}

/* What is turned on the way is what rotary turns in place, and is turned back. */
static void test_heads_are_turned(void **state)
{
    float rows[LAID_COUNT], turned[LAID_COUNT], apart[LAID_COUNT], together[LAID_COUNT], cosines[LAID_TOKENS],
        sines[LAID_TOKENS];
    (void)state;
    fill(rows, LAID_COUNT, 4);
    memcpy(turned, rows, sizeof rows);
    for (int i = 0; i < LAID_TOKENS; i++)
        cosines[i] = cosf((float)i), sines[i] = sinf((float)i);
    const struct dtp_rotary_args rotary = {.qkv = turned,
                                           .cosines = cosines,
                                           .sines = sines,
                                           .rows = LAID_BATCH * LAID_TOKENS,
                                           .sequence = LAID_TOKENS,
                                           .heads = LAID_HEADS,
                                           .kv_heads = LAID_KEYS,
                                           .head_dim = LAID_DIM,
                                           .element = DTP_ELEMENT_FP32};
    assert_int_equal(dtp_reference_rotary(NULL, &rotary, NULL), 0);
    struct dtp_lay_out_heads_args a = {.rows = turned,
                                       .laid_out = apart,
                                       .batch = LAID_BATCH,
                                       .sequence = LAID_TOKENS,
                                       .heads = LAID_HEADS,
                                       .kv_heads = LAID_KEYS,
                                       .head_dim = LAID_DIM,
                                       .ranks = LAID_RANKS,
                                       .chunks = 1,
                                       .element = DTP_ELEMENT_FP32};
    assert_int_equal(dtp_reference_lay_out_heads(NULL, &a, NULL), 0);
    a.rows = rows, a.laid_out = together, a.cosines = cosines, a.sines = sines;
    assert_int_equal(dtp_reference_lay_out_heads(NULL, &a, NULL), 0);
    assert_memory_equal(together, apart, sizeof apart);
    a.rows = turned, a.back = true;
    assert_int_equal(dtp_reference_lay_out_heads(NULL, &a, NULL), 0);
    compare(turned, rows, LAID_COUNT, "turned back");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_steps_are_the_whole), cmocka_unit_test(test_merge_by_hand),
                                       cmocka_unit_test(test_heads_by_ranks), cmocka_unit_test(test_heads_are_turned)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
