/* What stands around experts' matmuls, in plain C: values by hand, gradients against finite differences, products of
 * each expert's rows against one matmul each. */
#include "lib/kernel_fixture.h"

#include <stdlib.h>
#include <string.h>

enum { TOKENS = 7, EXPERTS = 5, CHOSEN = 2, ROWS = TOKENS * CHOSEN, WIDTH = 6 };

static float scores[TOKENS * EXPERTS], weights[ROWS];
static int32_t routes[DTP_ROUTES_INTS(ROWS, EXPERTS)];

static struct dtp_router_args router_of(enum dtp_router_kind kind, bool normalise)
{
    return (struct dtp_router_args){.scores = scores,
                                    .weights = weights,
                                    .routes = routes,
                                    .tokens = TOKENS,
                                    .experts = EXPERTS,
                                    .chosen = CHOSEN,
                                    .scale = 1.5f,
                                    .kind = kind,
                                    .normalise = normalise,
                                    .element = DTP_ELEMENT_FP32};
}

/* Scores far enough apart that a finite difference changes no choice. */
static void spread_scores(void)
{
    for (int t = 0; t < TOKENS; t++)
        for (int e = 0; e < EXPERTS; e++)
            scores[t * EXPERTS + e] = 0.3f * (float)((e * 3 + t * 2) % EXPERTS) + 0.01f * (float)t;
}

/* Three tokens, three experts, two each. Scores ln 1, ln 2, ln 5: affinities 1/8, 2/8, 5/8; equal scores go to lower
 * numbers: 0 and 1. */
static void test_choices(void **state)
{
    (void)state;
    const float score[9] = {0, logf(2), logf(5), 1, 1, 1, 3, NAN, 2};
    float weight[6];
    int32_t all[DTP_ROUTES_INTS(6, 3)];
    struct dtp_router_args a = {.scores = score,
                                .weights = weight,
                                .routes = all,
                                .tokens = 3,
                                .experts = 3,
                                .chosen = 2,
                                .scale = 4,
                                .element = DTP_ELEMENT_FP32};
    struct dtp_routes r = dtp_routes_at(all, 6);
    assert_int_equal(dtp_reference_router(NULL, &a, NULL), 0);
    const int32_t expert[6] = {2, 1, 0, 1, 0, 2}, starts[4] = {0, 2, 4, 6};
    const int32_t order[6] = {2, 4, 1, 3, 0, 5}, place[6] = {4, 2, 0, 3, 1, 5};
    assert_memory_equal(r.expert, expert, sizeof expert);
    assert_memory_equal(r.starts, starts, sizeof starts);
    assert_memory_equal(r.order, order, sizeof order);
    assert_memory_equal(r.place, place, sizeof place);
    assert_close(weight[0], 4 * 5 / 8.0, 1e-6);
    assert_close(weight[1], 4 * 2 / 8.0, 1e-6);
    a.normalise = true;
    assert_int_equal(dtp_reference_router(NULL, &a, NULL), 0);
    assert_close(weight[0], 4 * 5 / 7.0, 1e-6);
    assert_close(weight[1], 4 * 2 / 7.0, 1e-6);
    a.kind = DTP_ROUTER_KIND_SIGMOID, a.normalise = false; /* of ln 5: 5 / 6 */
    assert_int_equal(dtp_reference_router(NULL, &a, NULL), 0);
    assert_close(weight[0], 4 * 5 / 6.0, 1e-6);
    /* in turns: the same affinities of experts that all get as many tokens */
    const int32_t turns[6] = {0, 1, 1, 2, 2, 0}, even[4] = {0, 2, 4, 6};
    a.in_turns = true;
    assert_int_equal(dtp_reference_router(NULL, &a, NULL), 0);
    assert_memory_equal(r.expert, turns, sizeof turns);
    assert_memory_equal(r.starts, even, sizeof even);
    assert_close(weight[0], 4 / 2.0, 1e-6);
    assert_close(weight[1], 4 * 2 / 3.0, 1e-6);
    a.in_turns = false;
    /* sigmoids that are all 0 have no sum to divide by: weights and gradients are 0, and no NaN */
    const float none[9] = {-1000, -1000, -1000, -1000, -1000, -1000, -1000, -1000, -1000};
    const float cotangent[6] = {1, -2, 3, 1, 1, 1};
    float gradient[9];
    a.scores = none, a.normalise = true;
    assert_int_equal(dtp_reference_router(NULL, &a, NULL), 0);
    struct dtp_router_backward_args back = {.scores = none,
                                            .gradient = cotangent,
                                            .routes = all,
                                            .score_gradient = gradient,
                                            .tokens = 3,
                                            .experts = 3,
                                            .chosen = 2,
                                            .scale = 4,
                                            .kind = DTP_ROUTER_KIND_SIGMOID,
                                            .normalise = true,
                                            .element = DTP_ELEMENT_FP32};
    assert_int_equal(dtp_reference_router_backward(NULL, &back, NULL), 0);
    for (int i = 0; i < 6; i++)
        assert_true(weight[i] == 0);
    for (int i = 0; i < 9; i++)
        assert_true(gradient[i] == 0);
}

/* Eight experts in four groups of two, a token's three of two groups. Softmax: groups are as good as their best, 5 and
 * 4 of groups 0 and 2; sigmoid: as the sum of their two, where group 1 with 3 and 3 is better than group 0 with 5 and
 * -9, and group 3, with as much as group 1, is not: it comes later. */
static void test_groups(void **state)
{
    (void)state;
    const float score[8] = {5, -9, 3, 3, 4, 3.5f, 3, 3};
    const int32_t by_largest[3] = {0, 4, 5}, by_sum[3] = {4, 5, 2};
    float weight[3];
    int32_t all[DTP_ROUTES_INTS(3, 8)];
    struct dtp_router_args a = {.scores = score,
                                .weights = weight,
                                .routes = all,
                                .tokens = 1,
                                .experts = 8,
                                .chosen = 3,
                                .groups = 4,
                                .groups_chosen = 2,
                                .scale = 1,
                                .element = DTP_ELEMENT_FP32};
    assert_int_equal(dtp_reference_router(NULL, &a, NULL), 0);
    assert_memory_equal(dtp_routes_at(all, 3).expert, by_largest, sizeof by_largest);
    a.kind = DTP_ROUTER_KIND_SIGMOID;
    assert_int_equal(dtp_reference_router(NULL, &a, NULL), 0);
    assert_memory_equal(dtp_routes_at(all, 3).expert, by_sum, sizeof by_sum);
    assert_close(weight[2], 1 / (1 + exp(-3)), 1e-6); /* affinities are of all, whichever groups are chosen */
}

static int run_router(void *context)
{
    return dtp_reference_router(NULL, context, NULL);
}

static void test_router_gradient(void **state)
{
    (void)state;
    float cotangent[ROWS], gradient[TOKENS * EXPERTS];
    fill(cotangent, ROWS, 1);
    for (int k = 0; k < 4; k++) {
        struct dtp_router_args a = router_of(k & 1 ? DTP_ROUTER_KIND_SIGMOID : DTP_ROUTER_KIND_SOFTMAX, k & 2);
        spread_scores();
        assert_int_equal(run_router(&a), 0);
        struct dtp_router_backward_args back = {.scores = scores,
                                                .gradient = cotangent,
                                                .routes = routes,
                                                .score_gradient = gradient,
                                                .tokens = TOKENS,
                                                .experts = EXPERTS,
                                                .chosen = CHOSEN,
                                                .scale = a.scale,
                                                .kind = a.kind,
                                                .normalise = a.normalise,
                                                .element = DTP_ELEMENT_FP32};
        assert_int_equal(dtp_reference_router_backward(NULL, &back, NULL), 0);
        check_slopes(&(struct slope){run_router, &a, weights, cotangent, ROWS}, scores, gradient, TOKENS * EXPERTS);
    }
}

static void route(void)
{
    struct dtp_router_args a = router_of(DTP_ROUTER_KIND_SOFTMAX, false);
    spread_scores();
    assert_int_equal(run_router(&a), 0);
}

/* Rows to experts and back: each token's is there k times. */
static void test_rows(void **state)
{
    (void)state;
    float x[TOKENS * WIDTH], rows[ROWS * WIDTH], sum[TOKENS * WIDTH], score[TOKENS];
    route();
    fill(x, TOKENS * WIDTH, 2);
    fill(score, TOKENS, 3);
    struct dtp_permute_args to = {x, routes, rows, TOKENS, WIDTH, CHOSEN, DTP_ELEMENT_FP32, NULL, NULL};
    struct dtp_unpermute_args from = {.rows = rows,
                                      .addend = x,
                                      .shared = x,
                                      .shared_score = score,
                                      .routes = routes,
                                      .result = sum,
                                      .tokens = TOKENS,
                                      .width = WIDTH,
                                      .chosen = CHOSEN,
                                      .element = DTP_ELEMENT_FP32};
    assert_int_equal(dtp_reference_permute(NULL, &to, NULL), 0);
    assert_int_equal(dtp_reference_unpermute(NULL, &from, NULL), 0);
    for (int i = 0; i < TOKENS * WIDTH; i++)
        assert_close(sum[i], (CHOSEN + 1 + 1 / (1 + exp(-(double)score[i / WIDTH]))) * (double)x[i], 1e-6);
}

static int run_unpermute(void *context)
{
    return dtp_reference_unpermute(NULL, context, NULL);
}

static void test_shared_gate_gradient(void **state)
{
    (void)state;
    float rows[ROWS * WIDTH], shared[TOKENS * WIDTH], score[TOKENS], sum[TOKENS * WIDTH], cotangent[TOKENS * WIDTH];
    float of_shared[TOKENS * WIDTH], of_score[TOKENS];
    route();
    fill(rows, ROWS * WIDTH, 4), fill(shared, TOKENS * WIDTH, 5), fill(score, TOKENS, 6);
    fill(cotangent, TOKENS * WIDTH, 7);
    struct dtp_unpermute_args a = {.rows = rows,
                                   .shared = shared,
                                   .shared_score = score,
                                   .routes = routes,
                                   .result = sum,
                                   .tokens = TOKENS,
                                   .width = WIDTH,
                                   .chosen = CHOSEN,
                                   .element = DTP_ELEMENT_FP32};
    struct dtp_shared_gate_backward_args back = {cotangent, shared, score, of_shared,
                                                 of_score,  TOKENS, WIDTH, DTP_ELEMENT_FP32};
    struct slope slope = {run_unpermute, &a, sum, cotangent, TOKENS * WIDTH};
    assert_int_equal(dtp_reference_shared_gate_backward(NULL, &back, NULL), 0);
    check_slopes(&slope, shared, of_shared, TOKENS * WIDTH);
    check_slopes(&slope, score, of_score, TOKENS);
}

static int run_activation(void *context)
{
    return dtp_reference_expert_activation(NULL, context, NULL);
}

static void test_activation_gradient(void **state)
{
    (void)state;
    float up[2 * ROWS * WIDTH], result[ROWS * WIDTH], cotangent[ROWS * WIDTH], of_up[2 * ROWS * WIDTH], of_weight[ROWS];
    route();
    fill(up, 2 * ROWS * WIDTH, 8), fill(cotangent, ROWS * WIDTH, 9), fill(weights, ROWS, 10);
    /* the first is weighed before and behind */
    const enum dtp_activation_kind kinds[] = {DTP_ACTIVATION_SWIGLU, DTP_ACTIVATION_SWIGLU, DTP_ACTIVATION_GEGLU,
                                              DTP_ACTIVATION_SWIGLU_CLAMPED};
    up[0] = 9, up[1] = 1, up[WIDTH + 2] = 8, up[WIDTH + 3] = -8; /* what is clamped has no gradient */
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        const enum dtp_activation_kind kind = kinds[k];
        struct dtp_expert_activation_args a = {up,    weights, routes, result,          TOKENS,
                                               WIDTH, CHOSEN,  kind,   DTP_ELEMENT_FP32};
        struct dtp_expert_activation_backward_args back = {
            cotangent, up, weights, routes, of_up, of_weight, TOKENS, WIDTH, CHOSEN, kind, DTP_ELEMENT_FP32};
        a.weighs_input = back.weighs_input = k == 0;
        struct slope slope = {run_activation, &a, result, cotangent, ROWS * WIDTH};
        assert_int_equal(dtp_reference_expert_activation_backward(NULL, &back, NULL), 0);
        check_slopes(&slope, up, of_up, 2 * ROWS * WIDTH);
        check_slopes(&slope, weights, of_weight, ROWS);
        assert_true(kind != DTP_ACTIVATION_SWIGLU_CLAMPED ||
                    (fabsf(of_up[0]) + fabsf(of_up[WIDTH + 2]) + fabsf(of_up[WIDTH + 3]) <= 0 && fabsf(of_up[1]) > 0));
        back.accumulate = true;
        const float once = of_weight[3];
        assert_int_equal(dtp_reference_expert_activation_backward(NULL, &back, NULL), 0);
        assert_close(of_weight[3], 2 * once, 1e-6);
    }
}

/* Biases are added onto what is there: `plain` again before each. */
struct biased {
    struct dtp_expert_bias_args args;
    float plain[ROWS * WIDTH], rows[ROWS * WIDTH];
};

static int run_bias(void *context)
{
    struct biased *b = context;
    memcpy(b->rows, b->plain, sizeof b->rows);
    return dtp_reference_expert_bias(NULL, &b->args, NULL);
}

static void test_bias_gradient(void **state)
{
    (void)state;
    float bias[EXPERTS * WIDTH], cotangent[ROWS * WIDTH], of_bias[EXPERTS * WIDTH], of_weight[ROWS];
    struct biased b = {.args = {.bias = bias,
                                .routes = routes,
                                .weights = weights,
                                .tokens = TOKENS,
                                .width = WIDTH,
                                .chosen = CHOSEN,
                                .experts = EXPERTS}};
    route();
    fill(b.plain, ROWS * WIDTH, 1), fill(bias, EXPERTS * WIDTH, 2), fill(cotangent, ROWS * WIDTH, 3);
    fill(weights, ROWS, 4);
    b.args.rows = b.rows;
    struct dtp_expert_bias_backward_args back = {.gradient = cotangent,
                                                 .bias = bias,
                                                 .routes = routes,
                                                 .weights = weights,
                                                 .weight_gradient = of_weight,
                                                 .bias_gradient = of_bias,
                                                 .tokens = TOKENS,
                                                 .width = WIDTH,
                                                 .chosen = CHOSEN,
                                                 .experts = EXPERTS};
    struct slope slope = {run_bias, &b, b.rows, cotangent, ROWS * WIDTH};
    assert_int_equal(dtp_reference_expert_bias_backward(NULL, &back, NULL), 0);
    check_slopes(&slope, bias, of_bias, EXPERTS * WIDTH);
    check_slopes(&slope, weights, of_weight, ROWS);
    const struct dtp_routes r = dtp_routes_at(routes, ROWS);
    b.args.weights = NULL; /* the first row of all is of expert 0, where it has any */
    assert_int_equal(run_bias(&b), 0);
    assert_close(b.rows[0], b.plain[0] + bias[r.expert[r.order[0]] * WIDTH], 1e-6);
}

/* Sinks work in place, on the result and its log-sum-exps. */
struct sunk {
    struct dtp_sinks_args args;
    float plain[2 * 3 * 2 * 4], plain_sums[2 * 3 * 2], result[2 * 3 * 2 * 4], sums[2 * 3 * 2];
};

static int run_sinks(void *context)
{
    struct sunk *s = context;
    memcpy(s->result, s->plain, sizeof s->result);
    memcpy(s->sums, s->plain_sums, sizeof s->sums);
    return dtp_reference_sinks(NULL, &s->args, NULL);
}

/* A sink of as much as all keys' scores leaves half of the result. */
static void test_sinks_gradient(void **state)
{
    (void)state;
    float sinks[2], cotangent[48], gradient[2];
    struct sunk s = {.args = {.sinks = sinks, .batch = 2, .sequence = 3, .heads = 2, .head_dim = 4}};
    s.args.result = s.result, s.args.log_sum_exp = s.sums;
    fill(s.plain, 48, 1), fill(s.plain_sums, 12, 2), fill(cotangent, 48, 3), fill(sinks, 2, 4);
    sinks[1] = s.plain_sums[(1 * 2 + 1) * 3 + 2]; /* of the second sequence's head 1, its last token */
    assert_int_equal(run_sinks(&s), 0);
    for (int i = 44; i < 48; i++)
        assert_close(s.result[i], s.plain[i] / 2, 1e-6);
    assert_close(s.sums[11], s.plain_sums[11] + logf(2), 1e-6);
    struct dtp_sinks_backward_args back = {.result = s.result,
                                           .gradient = cotangent,
                                           .log_sum_exp = s.sums,
                                           .sinks = sinks,
                                           .sinks_gradient = gradient,
                                           .batch = 2,
                                           .sequence = 3,
                                           .heads = 2,
                                           .head_dim = 4};
    assert_int_equal(dtp_reference_sinks_backward(NULL, &back, NULL), 0);
    check_slopes(&(struct slope){run_sinks, &s, s.result, cotangent, 48}, sinks, gradient, 2);
}

/* An expert's rows by its own matrix, of the first expert by hand; without rows a gradient is zeros, or what was there.
 */
static void test_products(void **state)
{
    (void)state;
    enum { OUT = 3, IN = 4 };
    float x[ROWS * IN], w[EXPERTS * OUT * IN], y[ROWS * OUT], dx[ROWS * IN], dw[EXPERTS * OUT * IN];
    struct dtp_routes r = dtp_routes_at(routes, ROWS);
    route();
    r.starts[1] = r.starts[2]; /* the second expert has none: its rows are the first one's */
    fill(x, ROWS * IN, 11), fill(w, EXPERTS * OUT * IN, 12), fill(y, ROWS * OUT, 13);
    memset(dw, 0x7f, sizeof dw);
    struct dtp_grouped_matmul_args back = {.a = y,
                                           .b = x,
                                           .routes = routes,
                                           .result = dw,
                                           .rows = ROWS,
                                           .out = OUT,
                                           .in = IN,
                                           .experts = EXPERTS,
                                           .product = DTP_GROUPED_WEIGHT_GRADIENT};
    assert_int_equal(dtp_reference_grouped_matmul(NULL, &back, NULL), 0);
    for (int i = 0; i < OUT * IN; i++) {
        double sum = 0;
        for (int32_t row = 0; row < r.starts[1]; row++)
            sum += (double)y[row * OUT + i / IN] * (double)x[row * IN + i % IN];
        assert_close(dw[i], sum, 1e-6);
        assert_true(dw[OUT * IN + i] == 0);
    }
    const float once = dw[0];
    back.accumulate = true;
    assert_int_equal(dtp_reference_grouped_matmul(NULL, &back, NULL), 0);
    assert_close(dw[0], 2 * (double)once, 1e-6);
    assert_true(dw[OUT * IN] == 0);
    struct dtp_grouped_matmul_args input = back;
    input.a = y, input.b = w, input.result = dx, input.product = DTP_GROUPED_INPUT_GRADIENT, input.accumulate = false;
    assert_int_equal(dtp_reference_grouped_matmul(NULL, &input, NULL), 0);
    struct dtp_grouped_matmul_args forward = input;
    forward.a = x, forward.result = y, forward.product = DTP_GROUPED_FORWARD;
    float before[ROWS * OUT];
    memcpy(before, y, sizeof y);
    assert_int_equal(dtp_reference_grouped_matmul(NULL, &forward, NULL), 0);
    double through = 0, back_through = 0; /* y . (x W^T) = x . (y W) */
    for (int i = 0; i < ROWS * OUT; i++)
        through += (double)before[i] * (double)y[i];
    for (int i = 0; i < ROWS * IN; i++)
        back_through += (double)x[i] * (double)dx[i];
    assert_close(through, back_through, 1e-5);
}

/* Three rows here and two of rank 1: rows 3, 4 go to its 0, 1, row 0 to its 2; rows 1, 2 become rows 1, 2 here.
 * Weights go along. */
static void test_pushes(void **state)
{
    (void)state;
    const float rows[] = {0, 0.5f, 1, 1.5f, 2, 2.5f, 3, 3.5f, 4, 4.5f}, weight[] = {10, 11, 12, 13, 14};
    float here[6] = {9, 9, 9, 9, 9, 9}, there[6], here_weight[3] = {9, 9, 9}, there_weight[3];
    const struct dtp_push_rows_args a = {.rows = rows,
                                         .more = weight,
                                         .result = {here, there},
                                         .more_result = {here_weight, there_weight},
                                         .piece = {{3, 0, 0, 1}, {0, 2, 2, 1}, {1, 1, 3, 0}},
                                         .pieces = 3,
                                         .count = 5,
                                         .row_bytes = 2 * sizeof(float)};
    assert_int_equal(dtp_reference_push_rows(NULL, &a, NULL), 0);
    assert_memory_equal(there, ((float[]){3, 3.5f, 4, 4.5f, 0, 0.5f}), sizeof there);
    assert_memory_equal(there_weight, ((float[]){13, 14, 10}), sizeof there_weight);
    assert_memory_equal(here, ((float[]){9, 9, 1, 1.5f, 2, 2.5f}), sizeof here);
    assert_memory_equal(here_weight, ((float[]){9, 11, 12}), sizeof here_weight);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_choices),
                                       cmocka_unit_test(test_groups),
                                       cmocka_unit_test(test_router_gradient),
                                       cmocka_unit_test(test_rows),
                                       cmocka_unit_test(test_pushes),
                                       cmocka_unit_test(test_shared_gate_gradient),
                                       cmocka_unit_test(test_activation_gradient),
                                       cmocka_unit_test(test_bias_gradient),
                                       cmocka_unit_test(test_sinks_gradient),
                                       cmocka_unit_test(test_products)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
