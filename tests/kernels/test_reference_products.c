/* The plain C matmul and attention, and the kernel that makes vectors orthonormal. */
#include "kernels/alibi.h"
#include "lib/kernel_fixture.h"

enum { M = 5, N = 70, K = 3, LD = 80 }; /* N beyond one panel, rows longer than they are used */

struct matmul_case {
    struct dtp_matmul_args args;
    float a[M * LD], b[N * LD], bias[N], result[M * LD], aux[M * LD], start[M * LD], bias_gradient[M];
};

static int run_matmul(void *context)
{
    struct matmul_case *c = context;
    memcpy(c->result, c->start, sizeof c->result); /* where it is the addend too */
    return dtp_reference_matmul(NULL, &c->args, NULL);
}

static void make_case(struct matmul_case *c, bool a_transposed, bool b_transposed)
{
    fill(c->a, COUNT(c->a), 1), fill(c->b, COUNT(c->b), 2), fill(c->bias, N, 3), fill(c->start, COUNT(c->start), 4);
    c->args = (struct dtp_matmul_args){.a = c->a,
                                       .b = c->b,
                                       .result = c->result,
                                       .aux = c->aux,
                                       .m = M,
                                       .n = N,
                                       .k = K,
                                       .lda = LD,
                                       .ldb = LD,
                                       .ldd = LD,
                                       .a_transposed = a_transposed,
                                       .b_transposed = b_transposed};
}

static double product(const struct matmul_case *c, int i, int j)
{
    double sum = 0;
    for (int p = 0; p < K; p++)
        sum += (double)c->a[c->args.a_transposed ? p * LD + i : i * LD + p] *
               (double)c->b[c->args.b_transposed ? j * LD + p : p * LD + j];
    return sum;
}

static void test_matmul(void **state)
{
    (void)state;
    static struct matmul_case c;
    for (int layout = 0; layout < 4; layout++) {
        make_case(&c, layout & 1, layout & 2);
        c.args.bias = c.bias, c.args.addend = c.result;
        assert_int_equal(run_matmul(&c), 0);
        for (int i = 0; i < M; i++) {
            for (int j = 0; j < N; j++)
                assert_close(c.result[i * LD + j], product(&c, i, j) + (double)c.start[i * LD + j] + (double)c.bias[j],
                             1e-6);
            assert_true(c.result[i * LD + N] == c.start[i * LD + N]); /* beyond the row: untouched */
        }
    }
}

static void test_matmul_bias_gradient(void **state)
{
    (void)state;
    static struct matmul_case c;
    make_case(&c, true, false);
    c.args.bias_gradient = c.bias_gradient;
    c.bias_gradient[2] = 100;
    for (int round = 0; round < 2; round++) {
        run_matmul(&c);
        double sum = (double)c.a[2] + (double)c.a[LD + 2] + (double)c.a[2 * LD + 2];
        assert_close(c.bias_gradient[2], (1 + round) * sum, 1e-6);
        c.args.addend = c.result;
    }
}

/* The DGELU epilogue of the next layer's input gradient is the slope of the GELU_AUX one: with b the identity, what it
 * makes of a gradient is the gradient of gelu(x). */
static void test_matmul_gelu(void **state)
{
    (void)state;
    static struct matmul_case c, back;
    enum { D = 3 };
    float cotangent[M * LD] = {0}, slopes[M * LD];
    make_case(&c, false, false);
    c.args.epilogue = DTP_EPILOGUE_GELU_AUX, c.args.n = D;
    for (int i = 0; i < D; i++)
        for (int j = 0; j < D; j++)
            c.b[i * LD + j] = i == j;
    memset(c.start, 0, sizeof c.start);
    run_matmul(&c);
    assert_close(c.aux[LD + 1], c.a[LD + 1], 1e-6);
    for (int i = 0; i < M; i++)
        fill(cotangent + i * LD, D, 10 + (uint32_t)i);
    back = c;
    back.args.a = cotangent, back.args.b = c.b, back.args.aux = c.aux, back.args.result = slopes;
    back.args.epilogue = DTP_EPILOGUE_DGELU;
    assert_int_equal(dtp_reference_matmul(NULL, &back.args, NULL), 0);
    struct slope s = {run_matmul, &c, c.result, cotangent, COUNT(cotangent)};
    for (int i = 0; i < M; i++)
        check_slopes(&s, c.a + i * LD, slopes + i * LD, D);
}

static int run_attention(void *arguments)
{
    return dtp_reference_attention(NULL, arguments, NULL);
}

/* Four query heads on two key heads: the gradient of a key collects its group's. */
static void check_attention_gradient(uint32_t window, float softcap, bool alibi)
{
    enum { B = 2, S = 4, H = 4, KV = 2, D = 2, PACKED = B * S * (H + 2 * KV) * D, OUT = B * S * H * D };
    float qkv[PACKED], result[OUT], lse[B * H * S], gradient[OUT], qkv_gradient[PACKED];
    fill(qkv, PACKED, 1), fill(gradient, OUT, 2);
    struct dtp_attention_args a = {.qkv = qkv,
                                   .result = result,
                                   .log_sum_exp = lse,
                                   .batch = B,
                                   .sequence = S,
                                   .heads = H,
                                   .kv_heads = KV,
                                   .head_dim = D,
                                   .window = window,
                                   .scale = 0.7f,
                                   .softcap = softcap,
                                   .alibi = alibi};
    assert_int_equal(run_attention(&a), 0);
    struct dtp_attention_backward_args back = {.qkv = qkv,
                                               .result = result,
                                               .gradient = gradient,
                                               .log_sum_exp = lse,
                                               .qkv_gradient = qkv_gradient,
                                               .batch = B,
                                               .sequence = S,
                                               .heads = H,
                                               .kv_heads = KV,
                                               .head_dim = D,
                                               .window = window,
                                               .scale = 0.7f,
                                               .softcap = softcap,
                                               .alibi = alibi};
    assert_int_equal(dtp_reference_attention_backward(NULL, &back, NULL), 0);
    struct slope s = {run_attention, &a, result, gradient, OUT};
    check_slopes(&s, qkv, qkv_gradient, PACKED);
}

static void test_attention_gradient(void **state)
{
    (void)state;
    check_attention_gradient(0, 0, false);
    check_attention_gradient(2, 0, false);
    check_attention_gradient(4, 0, false); /* all of the sequence */
    check_attention_gradient(0, 0.8f, false);
    check_attention_gradient(2, 0.8f, false);
    check_attention_gradient(0, 0, true);
    check_attention_gradient(2, 0.8f, true);
}

/* The first token sees itself alone: its result is its value, its log-sum-exp its own score. The second of two with
 * equal keys sees the mean of both values. */
static void test_attention_by_hand(void **state)
{
    (void)state;
    float qkv[2][3][2] = {{{1, 2}, {3, 4}, {5, 6}}, {{1, 1}, {3, 4}, {7, 10}}}, result[2][2], lse[2];
    struct dtp_attention_args a = {.qkv = qkv,
                                   .result = result,
                                   .log_sum_exp = lse,
                                   .batch = 1,
                                   .sequence = 2,
                                   .heads = 1,
                                   .kv_heads = 1,
                                   .head_dim = 2,
                                   .scale = 0.5f};
    run_attention(&a);
    assert_close(result[0][0], 5, 1e-6);
    assert_close(lse[0], 0.5 * (1 * 3 + 2 * 4), 1e-6);
    assert_close(result[1][1], 8, 1e-6);
    assert_close(lse[1], 0.5 * 7 + log(2), 1e-6);
    a.alibi = true; /* one head: the first key, one token back, has 2^-8 less; the second's weight is e^(2^-8) of it */
    run_attention(&a);
    assert_close(lse[1], 0.5 * 7 + log(1 + exp(-1.0 / 256)), 1e-6);
    assert_close(result[1][1], 6 + 4 / (1 + exp(-1.0 / 256)), 1e-6);
    a.alibi = false;
    a.window = 1; /* each sees itself alone */
    run_attention(&a);
    assert_close(result[1][1], 10, 1e-6);
    assert_close(lse[1], 0.5 * 7, 1e-6);
    a.softcap = 2;
    run_attention(&a);
    assert_close(lse[1], 2 * tanh(0.5 * 7 / 2), 1e-6);
}

/* Eight heads: 1/2, 1/4, ... 1/256. Six: those of four, 2^-2 to 2^-8, then the first and third of eight, 2^-1 and 2^-3.
 */
static void test_slopes_of_alibi(void **state)
{
    static const float six[] = {1 / 4.0f, 1 / 16.0f, 1 / 64.0f, 1 / 256.0f, 1 / 2.0f, 1 / 8.0f};
    (void)state;
    for (uint32_t head = 0; head < 8; head++)
        assert_close(dtp_alibi_slope(head, 8), ldexp(1, -1 - (int)head), 1e-7);
    for (uint32_t head = 0; head < 6; head++)
        assert_close(dtp_alibi_slope(head, 6), six[head], 1e-7);
    assert_close(dtp_alibi_slope(0, 1), 1 / 256.0, 1e-7);
}

/* (3, 4, 0), (3, 4, 5): the first over 5; of the second (0, 0, 5) is left, over 5. The third is the sum of both and
 * gives way to what is neither: (4, -3, 0) / 5 with either sign. As columns of a matrix the same. One that is not
 * finite does not hide, and neither does what comes behind it. */
static void test_orthogonalize(void **state)
{
    static const float rows[] = {3, 4, 0, 3, 4, 5, 6, 8, 5}, expected[] = {0.6f, 0.8f, 0, 0, 0, 1, 0.8f, -0.6f, 0};
    (void)state;
    for (int columns = 0; columns < 2; columns++) {
        float values[9];
        for (int i = 0; i < 9; i++)
            values[columns ? i % 3 * 3 + i / 3 : i] = rows[i];
        struct dtp_orthogonalize_args a = {values, 3, columns ? 3 : 1, columns ? 1 : 3, 3};
        assert_int_equal(dtp_reference_orthogonalize(NULL, &a, NULL), 0);
        float sign = values[columns ? 2 : 6] < 0 ? -1.0f : 1.0f;
        for (int i = 0; i < 9; i++) {
            float value = values[columns ? i % 3 * 3 + i / 3 : i];
            assert_true(fabsf(value - (i < 6 ? 1.0f : sign) * expected[i]) < 1e-6f);
        }
        values[0] = INFINITY;
        assert_int_equal(dtp_reference_orthogonalize(NULL, &a, NULL), 0);
        assert_true(isnan(values[0]) && isnan(values[8]));
    }
}

/* From -1 to 4 the step is 5 / 255 and 0 has code 51: 1 is 51 steps above, 102; 0.03 a step and a half, which is 2. A
 * run of zeros alone has step 1, code 0. What is not finite makes its own run so, no other. */
static void test_eight_bits(void **state)
{
    (void)state;
    enum { COUNT = DTP_PACK8_RUN + 3, PART = 8 * 2 + DTP_PACK8_RUN + 128 };
    static float values[COUNT], total[COUNT];
    static _Alignas(16) uint8_t parts[2 * PART];
    struct dtp_pack8_args pack = {.values = values, .part = parts, .count = COUNT};
    struct dtp_sum_packed8_args sum = {
        .parts = parts, .total = total, .count = COUNT, .part_bytes = PART, .part_count = 2};
    values[0] = -1, values[1] = 4, values[2] = 1, values[3] = 0.03f;
    assert_int_equal(dtp_reference_pack8(NULL, &pack, NULL), 0);
    const float *ends = (const float *)parts;
    const uint8_t *codes = parts + 8 * 2;
    assert_true(ends[0] == -1 && ends[1] == 4 && ends[2] == 0 && ends[3] == 0);
    assert_true(codes[0] == 0 && codes[1] == 255 && codes[2] == 102 && codes[3] == 53 && codes[4] == 51);
    assert_int_equal(codes[DTP_PACK8_RUN], 0);
    memcpy(parts + PART, parts, PART);
    assert_int_equal(dtp_reference_sum_packed8(NULL, &sum, NULL), 0);
    assert_true(fabsf(total[2] - 2) < 1e-6f && fabsf(total[3] - 4 * 5 / 255.0f) < 1e-6f && total[4] == 0 &&
                total[COUNT - 1] == 0);
    for (int infinite = 0; infinite < 2; infinite++) {
        values[DTP_PACK8_RUN] = infinite ? INFINITY : NAN;
        assert_int_equal(dtp_reference_pack8(NULL, &pack, NULL), 0);
        assert_int_equal(dtp_reference_sum_packed8(NULL, &sum, NULL), 0);
        assert_true(isfinite(total[DTP_PACK8_RUN - 1]) && !isfinite(total[DTP_PACK8_RUN]));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_orthogonalize),
        cmocka_unit_test(test_eight_bits),
        cmocka_unit_test(test_matmul),
        cmocka_unit_test(test_matmul_bias_gradient),
        cmocka_unit_test(test_matmul_gelu),
        cmocka_unit_test(test_attention_gradient),
        cmocka_unit_test(test_attention_by_hand),
        cmocka_unit_test(test_slopes_of_alibi),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
