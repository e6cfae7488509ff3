/* Kernels of experts: who goes where, rows there and back, activations weighed, products of each expert's rows. */
#include "gpu/kernel_tests.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct mixture {
    uint64_t tokens;
    uint32_t experts, chosen;
    uint32_t groups, groups_chosen;
};

static uint64_t rows_of(const struct mixture *m)
{
    return m->tokens * m->chosen;
}

static const char *text_of(const struct mixture *m)
{
    static char text[96];
    snprintf(text, sizeof text, "%llu of %u, %u each of %u of %u groups", (unsigned long long)m->tokens, m->experts,
             m->chosen, m->groups_chosen, m->groups);
    return text;
}

/* Routes that a router makes of random scores: the second of each three tokens prefers the first expert, so that
 * experts differ in rows, and some have none. */
static struct tensor *routes_of(const struct mixture *m)
{
    uint64_t scores = m->tokens * m->experts, bytes = 4 * DTP_ROUTES_INTS(rows_of(m), m->experts);
    float *score = malloc(scores * sizeof *score), *weights = malloc(rows_of(m) * sizeof *weights);
    void *routes = malloc(bytes);
    fill_random(score, DTP_ELEMENT_FP32, scores, 1);
    for (uint64_t t = 1; t < m->tokens; t += 3)
        score[t * m->experts] += 4;
    for (uint64_t t = 0; t < m->tokens && m->experts > 4; t++)
        score[t * m->experts + 3] = -100; /* nobody's, where there are others */
    struct dtp_router_args a = {.scores = score,
                                .weights = weights,
                                .routes = routes,
                                .tokens = m->tokens,
                                .experts = m->experts,
                                .chosen = m->chosen,
                                .scale = 1,
                                .element = DTP_ELEMENT_FP32};
    dtp_reference_router(NULL, &a, NULL);
    struct tensor *made = bytes_of("routes", routes, bytes);
    free(score), free(weights), free(routes);
    return made;
}

static void test_router(const struct mixture *m, enum dtp_element element, enum dtp_router_kind kind, bool normalise,
                        bool in_turns)
{
    uint64_t scores = m->tokens * m->experts, rows = rows_of(m), bytes = 4 * DTP_ROUTES_INTS(rows, m->experts);
    void *zeros = calloc(1, bytes + 4 * DTP_ROUTER_CHUNKS * m->experts);
    case_begin("router %s %s%s%s %s", kind ? "sigmoid" : "softmax", named(element), normalise ? " /" : "",
               in_turns ? " in turns" : "", text_of(m));
    struct tensor *score = input("scores", element, scores, 2);
    struct tensor *weights = result("weights", DTP_ELEMENT_FP32, rows, 16, 16 * EPSILON);
    struct tensor *routes = updated(bytes_of("routes", zeros, bytes), 0, 0);
    struct tensor *counts = /* written as the device likes, within its bounds */
        updated(bytes_of("counts", zeros, 4 * DTP_ROUTER_CHUNKS * m->experts), 0, INFINITY);
    struct dtp_router_args a[SIDES];
    for (int s = 0; s < SIDES; s++)
        a[s] = (struct dtp_router_args){.scores = score->at[s],
                                        .weights = weights->at[s],
                                        .routes = routes->at[s],
                                        .workspace = counts->at[s],
                                        .tokens = m->tokens,
                                        .experts = m->experts,
                                        .chosen = m->chosen,
                                        .groups = m->groups,
                                        .groups_chosen = m->groups_chosen,
                                        .scale = 2.5f,
                                        .kind = kind,
                                        .normalise = normalise,
                                        .in_turns = in_turns,
                                        .element = element};
    VERIFY(router, a);

    case_begin("router_backward %s %s%s %s", kind ? "sigmoid" : "softmax", named(element), normalise ? " /" : "",
               text_of(m));
    score = input("scores", element, scores, 2), routes = routes_of(m);
    struct tensor *gradient = input("gradient", DTP_ELEMENT_FP32, rows, 1);
    struct tensor *made = result("score gradient", element, scores, ulps_of(element), 512 * EPSILON);
    struct dtp_router_backward_args back[SIDES];
    for (int s = 0; s < SIDES; s++)
        back[s] = (struct dtp_router_backward_args){.scores = score->at[s],
                                                    .gradient = gradient->at[s],
                                                    .routes = routes->at[s],
                                                    .score_gradient = made->at[s],
                                                    .tokens = m->tokens,
                                                    .experts = m->experts,
                                                    .chosen = m->chosen,
                                                    .scale = 1,
                                                    .kind = kind,
                                                    .normalise = normalise,
                                                    .element = element};
    VERIFY(router_backward, back);
    free(zeros);
}

static void test_rows(const struct mixture *m, uint32_t width, enum dtp_element element, int shared)
{
    uint64_t all = m->tokens * width, rows = rows_of(m) * width;
    case_begin("permute %s %s by %u", named(element), text_of(m), width);
    struct tensor *x = input("x", element, all, 1), *routes = routes_of(m), *y = result("rows", element, rows, 0, 0);
    struct tensor *weights = input("weights", DTP_ELEMENT_FP32, rows_of(m), 1);
    struct tensor *row_weights = result("weights of rows", DTP_ELEMENT_FP32, rows_of(m), 0, 0);
    struct dtp_permute_args a[SIDES];
    for (int s = 0; s < SIDES; s++)
        a[s] = (struct dtp_permute_args){.values = x->at[s],
                                         .routes = routes->at[s],
                                         .rows = y->at[s],
                                         .tokens = m->tokens,
                                         .width = width,
                                         .chosen = m->chosen,
                                         .element = element,
                                         .weights = weights->at[s],
                                         .row_weights = row_weights->at[s]};
    VERIFY(permute, a);

    case_begin("unpermute %s %s by %u, %d more", named(element), text_of(m), width, shared);
    y = input("rows", element, rows, 1), routes = routes_of(m);
    struct tensor *addend = input("addend", element, all, 1), *more = input("shared", element, all, 1);
    struct tensor *score = input("score", element, m->tokens, 1);
    struct tensor *sum = result("sum", element, all, ulps_of(element), 8 * m->chosen * EPSILON);
    row_weights = input("gradients of weights of rows", DTP_ELEMENT_FP32, rows_of(m), 1);
    weights = result("gradients of weights", DTP_ELEMENT_FP32, rows_of(m), 0, 0);
    struct dtp_unpermute_args b[SIDES];
    for (int s = 0; s < SIDES; s++)
        b[s] = (struct dtp_unpermute_args){.rows = y->at[s],
                                           .addend = shared ? addend->at[s] : NULL,
                                           .shared = shared > 1 ? more->at[s] : NULL,
                                           .shared_score = shared > 2 ? score->at[s] : NULL,
                                           .routes = routes->at[s],
                                           .result = sum->at[s],
                                           .tokens = m->tokens,
                                           .width = width,
                                           .chosen = m->chosen,
                                           .element = element,
                                           .row_weights = row_weights->at[s],
                                           .weights = weights->at[s]};
    VERIFY(unpermute, b);

    case_begin("shared_gate_backward %s %llu by %u", named(element), (unsigned long long)m->tokens, width);
    struct tensor *gradient = input("gradient", element, all, 1);
    more = input("shared", element, all, 1), score = input("score", element, m->tokens, 1);
    struct tensor *of_shared = result("shared gradient", element, all, ulps_of(element), 8 * EPSILON);
    struct tensor *of_score =
        result("score gradient", element, m->tokens, ulps_of(element), 4 * EPSILON * (double)width);
    struct dtp_shared_gate_backward_args c[SIDES];
    for (int s = 0; s < SIDES; s++)
        c[s] = (struct dtp_shared_gate_backward_args){.gradient = gradient->at[s],
                                                      .shared = more->at[s],
                                                      .shared_score = score->at[s],
                                                      .shared_gradient = of_shared->at[s],
                                                      .score_gradient = of_score->at[s],
                                                      .tokens = m->tokens,
                                                      .width = width,
                                                      .element = element};
    VERIFY(shared_gate_backward, c);
}

/* Of rows that came from several ranks: each has other numbers of them, of one expert none. */
static void test_received(uint32_t ranks, uint32_t experts)
{
    const uint32_t own = experts / ranks;
    const uint64_t count = (uint64_t)ranks * (experts + 1);
    int32_t *begins = calloc(count, sizeof *begins);
    uint64_t rows = 40;
    for (uint64_t i = 0; i < count; i++)
        begins[i] = i % (experts + 1) ? begins[i - 1] + (int32_t)((i * 7919) % 5) * (i % (experts + 1) != 2) : 0;
    for (uint32_t rank = 0; rank < ranks; rank++)
        rows += (uint64_t)begins[(uint64_t)rank * (experts + 1) + experts];
    case_begin("received of %u ranks, %u experts", ranks, experts);
    struct tensor *said = bytes_of("begins", begins, 4 * count);
    uint64_t bytes = 4 * DTP_ROUTES_INTS(rows, own);
    void *zeros = calloc(1, bytes);
    struct tensor *routes = updated(bytes_of("routes", zeros, bytes), 0, 0);
    struct dtp_received_args a[SIDES];
    for (int s = 0; s < SIDES; s++)
        a[s] = (struct dtp_received_args){.begins = said->at[s],
                                          .routes = routes->at[s],
                                          .rows = rows,
                                          .ranks = ranks,
                                          .experts = experts,
                                          .own = own,
                                          .first = (ranks - 1) * own};
    VERIFY(received, a);
    free(begins), free(zeros);
}

/* Runs of rows of other lengths, some of none, to three ranks, the last one's first. */
static void test_push_rows(uint32_t pieces, uint32_t width, enum dtp_element element, bool weighed)
{
    struct dtp_push_rows_args a[SIDES] = {
        {.pieces = pieces, .row_bytes = width * (uint32_t)dtp_element_bytes(element)}};
    uint32_t ends[] = {0, 0, 0};
    for (uint32_t i = 0; i < pieces; i++) {
        const uint32_t rows = i * 7919 % 23, target = 2 - i * 3 / pieces;
        a[0].piece[i] = (struct dtp_push_piece){a[0].count, ends[target], a[0].count, target};
        a[0].count += rows, ends[target] += rows;
    }
    case_begin("push_rows %s %u pieces by %u%s", named(element), pieces, width, weighed ? ", weighed" : "");
    struct tensor *x = input("rows", element, (uint64_t)a[0].count * width, 1);
    struct tensor *weights = input("weights", DTP_ELEMENT_FP32, a[0].count, 1);
    a[1] = a[0];
    for (uint32_t target = 0; target < COUNT(ends); target++) {
        struct tensor *y = result("pushed", element, (uint64_t)ends[target] * width, 0, 0);
        struct tensor *of_weights = weighed ? result("weights pushed", DTP_ELEMENT_FP32, ends[target], 0, 0) : NULL;
        for (int s = 0; s < SIDES; s++) {
            a[s].rows = x->at[s], a[s].result[target] = y->at[s];
            a[s].more = weighed ? weights->at[s] : NULL;
            a[s].more_result[target] = weighed ? of_weights->at[s] : NULL;
        }
    }
    VERIFY(push_rows, a);
}

static void test_activation(const struct mixture *m, uint32_t width, enum dtp_element element,
                            enum dtp_activation_kind kind, bool weighs_input)
{
    uint64_t rows = rows_of(m), all = rows * width;
    const char *name = weighs_input                    ? "weighed swiglu"
                       : kind == DTP_ACTIVATION_SWIGLU ? "swiglu"
                       : kind == DTP_ACTIVATION_GEGLU  ? "geglu"
                                                       : "clamped";
    case_begin("expert_activation %s %s %s by %u", name, named(element), text_of(m), width);
    struct tensor *up = input("up", element, 2 * all, 1), *weights = input("weights", DTP_ELEMENT_FP32, rows, 1);
    struct tensor *routes = routes_of(m), *y = result("result", element, all, ulps_of(element), 32 * EPSILON);
    struct dtp_expert_activation_args a[SIDES];
    for (int s = 0; s < SIDES; s++)
        a[s] = (struct dtp_expert_activation_args){.up = up->at[s],
                                                   .weights = weights->at[s],
                                                   .routes = routes->at[s],
                                                   .result = y->at[s],
                                                   .tokens = m->tokens,
                                                   .width = width,
                                                   .chosen = m->chosen,
                                                   .kind = kind,
                                                   .element = element,
                                                   .weighs_input = weighs_input};
    VERIFY(expert_activation, a);

    case_begin("expert_activation_backward %s %s %s by %u", name, named(element), text_of(m), width);
    struct tensor *gradient = input("gradient", element, all, 1);
    /* the slope of a GELU is off by more than that of a SiLU: block_kernels.c; weights of the input, of up to 4 in a
     * normal draw, multiply what comes of it */
    const double of_slope = (kind == DTP_ACTIVATION_GEGLU ? 12 : 1) * (weighs_input ? 4 : 1) * 64 * EPSILON;
    up = updated(input("up", element, 2 * all, 1), ulps_of(element), of_slope);
    weights = input("weights", DTP_ELEMENT_FP32, rows, 1), routes = routes_of(m);
    struct tensor *of_weight = result("weight gradient", DTP_ELEMENT_FP32, rows, 4, 8 * EPSILON * (double)width);
    struct dtp_expert_activation_backward_args b[SIDES];
    for (int s = 0; s < SIDES; s++)
        b[s] = (struct dtp_expert_activation_backward_args){.gradient = gradient->at[s],
                                                            .up = up->at[s],
                                                            .weights = weights->at[s],
                                                            .routes = routes->at[s],
                                                            .up_gradient = up->at[s],
                                                            .weight_gradient = of_weight->at[s],
                                                            .tokens = m->tokens,
                                                            .width = width,
                                                            .chosen = m->chosen,
                                                            .kind = kind,
                                                            .element = element,
                                                            .weighs_input = weighs_input};
    VERIFY(expert_activation_backward, b);
}

static void test_bias(const struct mixture *m, uint32_t width, enum dtp_element element, bool weighed)
{
    const uint64_t rows = rows_of(m), all = rows * width, biases = (uint64_t)m->experts * width;
    case_begin("expert_bias %s %s by %u%s", named(element), text_of(m), width, weighed ? ", weighed" : "");
    struct tensor *x = updated(input("rows", element, all, 1), ulps_of(element), 8 * EPSILON);
    struct tensor *bias = input("bias", element, biases, 1), *routes = routes_of(m);
    struct tensor *weights = input("weights", DTP_ELEMENT_FP32, rows, 1);
    struct dtp_expert_bias_args a[SIDES];
    for (int s = 0; s < SIDES; s++)
        a[s] = (struct dtp_expert_bias_args){.rows = x->at[s],
                                             .bias = bias->at[s],
                                             .routes = routes->at[s],
                                             .weights = weighed ? weights->at[s] : NULL,
                                             .tokens = m->tokens,
                                             .width = width,
                                             .chosen = m->chosen,
                                             .experts = m->experts,
                                             .element = element,
                                             .bias_element = element};
    VERIFY(expert_bias, a);

    case_begin("expert_bias_backward %s %s by %u%s", named(element), text_of(m), width, weighed ? ", weighed" : "");
    const enum dtp_element summed = weighed ? DTP_ELEMENT_FP32 : element; /* and added to what is there */
    const double error = 16 * EPSILON * (double)rows;
    struct tensor *gradient = input("gradient", element, all, 1);
    bias = input("bias", element, biases, 1), routes = routes_of(m),
    weights = input("weights", DTP_ELEMENT_FP32, rows, 1);
    struct tensor *of_weight =
        weighed ? result("weight gradient", DTP_ELEMENT_FP32, rows, 4, 8 * EPSILON * width) : NULL;
    struct tensor *of_bias = weighed ? updated(input("bias gradient", summed, biases, 1), ulps_of(summed), error)
                                     : result("bias gradient", summed, biases, ulps_of(summed), error);
    struct dtp_expert_bias_backward_args b[SIDES];
    for (int s = 0; s < SIDES; s++)
        b[s] = (struct dtp_expert_bias_backward_args){.gradient = gradient->at[s],
                                                      .bias = weighed ? bias->at[s] : NULL,
                                                      .routes = routes->at[s],
                                                      .weights = weighed ? weights->at[s] : NULL,
                                                      .weight_gradient = weighed ? of_weight->at[s] : NULL,
                                                      .bias_gradient = of_bias->at[s],
                                                      .tokens = m->tokens,
                                                      .width = width,
                                                      .chosen = m->chosen,
                                                      .experts = m->experts,
                                                      .element = element,
                                                      .bias_element = element,
                                                      .gradient_element = summed,
                                                      .accumulate = weighed};
    VERIFY(expert_bias_backward, b);
}

/* Sums of `depth` products of numbers about 1 grow to some 4 sqrt(depth), and each of their additions is off by half a
 * last digit of that, on either side in its own order: of a million sums the worst by some 4 EPSILON depth / 2 each. */
static void test_product(const struct mixture *m, uint64_t out, uint64_t in, enum dtp_element element,
                         enum dtp_grouped_product product, bool accumulate)
{
    static const char *const names[] = {"forward", "input gradient", "weight gradient"};
    uint64_t rows = rows_of(m), matrices = m->experts * out * in;
    bool weights = product == DTP_GROUPED_WEIGHT_GRADIENT, forward = product == DTP_GROUPED_FORWARD;
    enum dtp_element made = accumulate ? DTP_ELEMENT_FP32 : element;
    uint64_t count = weights ? matrices : rows * (forward ? out : in), depth = weights ? rows : forward ? in : out;
    case_begin("grouped_matmul %s%s %s %s, %llu x %llu", names[product], accumulate ? " +" : "", named(element),
               text_of(m), (unsigned long long)out, (unsigned long long)in);
    struct tensor *a = input("a", element, rows * (forward ? in : out), 1);
    struct tensor *b = input("b", element, weights ? rows * in : matrices, 1), *routes = routes_of(m);
    double off = 4 * EPSILON * (double)depth + 16 * EPSILON;
    struct tensor *y = accumulate ? updated(input("result", made, count, 1), ulps_of(made), off)
                                  : result("result", made, count, ulps_of(made), off);
    struct dtp_grouped_matmul_args g[SIDES];
    for (int s = 0; s < SIDES; s++)
        g[s] = (struct dtp_grouped_matmul_args){.a = a->at[s],
                                                .b = b->at[s],
                                                .routes = routes->at[s],
                                                .result = y->at[s],
                                                .rows = rows,
                                                .out = out,
                                                .in = in,
                                                .experts = m->experts,
                                                .product = product,
                                                .element = element,
                                                .result_element = made,
                                                .accumulate = accumulate};
    VERIFY(grouped_matmul, g);
}

/* Of some rows by experts in every product, in both widths of elements; then of enough that an expert has several tiles
 * in each direction, none of which its rows or widths fill. Last, weights' gradients of 360 tiles of 128 x 256, more
 * than an H200 has multiprocessors: blocks take some in turn, and leave the counters in the routes as they were. */
static void test_products(void)
{
    static const uint64_t shapes[][2] = {{8, 8}, {40, 136}, {128, 256}, {200, 72}, {264, 520}, {648, 192}};
    static const struct mixture few[] = {{150, 8, 2, 0, 0}, {513, 16, 1, 0, 0}},
                                many[] = {{1100, 8, 2, 0, 0}, {700, 3, 1, 0, 0}};
    for (size_t i = 0; i < COUNT(shapes); i++)
        for (int k = 0; k < 6; k++) {
            const struct mixture *m = i < 4 ? &few[i % 2] : &many[i % 2];
            const enum dtp_element element = k & 1 ? halves : DTP_ELEMENT_FP32;
            test_product(m, shapes[i][0], shapes[i][1], element, (enum dtp_grouped_product)(k / 2), false);
            if (k / 2 == DTP_GROUPED_WEIGHT_GRADIENT)
                test_product(m, shapes[i][0], shapes[i][1], element, DTP_GROUPED_WEIGHT_GRADIENT, true);
        }
    for (int accumulate = 0; accumulate < 2; accumulate++)
        test_product(&many[0], 1032, 1032, halves, DTP_GROUPED_WEIGHT_GRADIENT, accumulate);
}

void test_experts(void)
{
    static const struct mixture mixtures[] = {
        {1, 8, 2, 0, 0},        {300, 64, 8, 0, 0}, {257, 60, 4, 0, 0}, {1000, 128, 8, 0, 0}, {64, 384, 8, 0, 0},
        {33, 1024, 32, 0, 0},   {5, 1, 1, 0, 0},    {513, 16, 1, 0, 0}, {257, 256, 8, 8, 4},  {100, 160, 6, 8, 3},
        {33, 1024, 32, 32, 32}, {65, 60, 4, 6, 5},  {7, 12, 2, 12, 2}};
    for (size_t i = 0; i < COUNT(mixtures); i++)
        for (int k = 0; k < 16; k++)
            test_router(&mixtures[i], k & 1 ? halves : DTP_ELEMENT_FP32,
                        k & 2 ? DTP_ROUTER_KIND_SIGMOID : DTP_ROUTER_KIND_SOFTMAX, k & 4, k & 8);
    test_received(2, 8);
    test_received(4, 64);
    test_received(8, 1024);
    test_push_rows(24, 64, halves, true);
    test_push_rows(DTP_PUSH_PIECES, 2048, halves, true);
    test_push_rows(5, 37, halves, false);
    test_push_rows(9, 100, DTP_ELEMENT_FP32, false);
    static const uint32_t widths[] = {8, 128, 1416, 33};
    for (size_t i = 0; i < COUNT(widths); i++)
        for (int k = 0; k < 8; k++) {
            const struct mixture *m = &mixtures[1 + i % 2];
            test_rows(m, widths[i], k & 1 ? halves : DTP_ELEMENT_FP32, k / 2);
            test_activation(m, widths[i], k & 1 ? halves : DTP_ELEMENT_FP32,
                            k / 2 == 1   ? DTP_ACTIVATION_GEGLU
                            : k / 2 == 2 ? DTP_ACTIVATION_SWIGLU_CLAMPED
                                         : DTP_ACTIVATION_SWIGLU,
                            k / 2 == 3);
            if (k < 4)
                test_bias(m, widths[i], k & 1 ? halves : DTP_ELEMENT_FP32, k & 2);
        }
    test_products();
}
