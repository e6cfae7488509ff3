/* Kernels of embedding and head: rows of tokens gathered and their gradients scattered, the loss of a row of logits. */
#include "gpu/kernel_tests.h"

#include <math.h>
#include <stdlib.h>

/* Rows sorted by token, as the host prepares them: `order`, `starts` and the number of distinct ones. */
static int32_t sort_tokens(const int32_t *tokens, int32_t rows, int32_t vocab, int32_t *order, int32_t *starts)
{
    int32_t distinct = 0, at = 0;
    for (int32_t token = 0; token < vocab; token++) {
        int32_t begin = at;
        for (int32_t i = 0; i < rows; i++)
            if (tokens[i] == token)
                order[at++] = i;
        if (at > begin)
            starts[distinct++] = begin;
    }
    starts[distinct] = rows;
    return distinct;
}

static void test_embedding(int32_t rows, uint32_t sequence, uint32_t width, int32_t vocab, enum dtp_element element,
                           bool positions)
{
    enum dtp_element of_gradient = positions ? DTP_ELEMENT_FP32 : element;
    int32_t *tokens = malloc((size_t)rows * 4), *order = malloc((size_t)rows * 4),
            *starts = calloc((size_t)rows + 1, 4);
    for (int32_t i = 0; i < rows; i++) /* the lower ones more often: long and short lists of rows */
        tokens[i] = (int32_t)random_below(1 + random_below((uint32_t)vocab));
    int32_t distinct = sort_tokens(tokens, rows, vocab, order, starts);

    case_begin("embedding %s %d x %u of %d%s", named(element), rows, width, vocab, positions ? ", positions" : "");
    struct tensor *ids = integers("tokens", tokens, (uint64_t)rows),
                  *table = input("table", element, (uint64_t)vocab * width, 1);
    struct tensor *position = input("positions", element, (uint64_t)sequence * width, 1);
    struct tensor *y = result("result", element, (uint64_t)rows * width, ulps_of(element), 0);
    struct dtp_embedding_args a[SIDES];
    for (int s = 0; s < SIDES; s++)
        a[s] = (struct dtp_embedding_args){.tokens = ids->at[s],
                                           .table = table->at[s],
                                           .positions = positions ? position->at[s] : NULL,
                                           .result = y->at[s],
                                           .rows = (uint64_t)rows,
                                           .width = width,
                                           .vocab = (uint32_t)vocab,
                                           .sequence = sequence,
                                           .scale = width % 2 ? 3 : 1,
                                           .element = element,
                                           .result_element = element};
    VERIFY(embedding, a);

    case_begin("embedding_backward %s %d x %u of %d%s", named(element), rows, width, vocab,
               positions ? ", positions" : "");
    double sum_error = 16 * EPSILON * sqrt((double)rows), ulps = ulps_of(of_gradient);
    ids = integers("tokens", tokens, (uint64_t)rows);
    struct tensor *by_token = integers("order", order, (uint64_t)rows),
                  *begins = integers("starts", starts, (uint64_t)distinct + 1);
    struct tensor *count = integers("distinct", &distinct, 1),
                  *gradient = input("gradient", element, (uint64_t)rows * width, 1);
    struct tensor *of_table =
        updated(input("table gradient", of_gradient, (uint64_t)vocab * width, 1), ulps, sum_error);
    struct tensor *of_position =
        !positions  ? NULL
        : width % 2 ? updated(input("positions gradient", of_gradient, (uint64_t)sequence * width, 1), ulps, sum_error)
                    : result("positions gradient", of_gradient, (uint64_t)sequence * width, ulps, sum_error);
    struct dtp_embedding_backward_args back[SIDES];
    for (int s = 0; s < SIDES; s++)
        back[s] = (struct dtp_embedding_backward_args){.gradient = gradient->at[s],
                                                       .tokens = ids->at[s],
                                                       .order = by_token->at[s],
                                                       .starts = begins->at[s],
                                                       .distinct = count->at[s],
                                                       .table_gradient = of_table->at[s],
                                                       .positions_gradient = positions ? of_position->at[s] : NULL,
                                                       .rows = (uint64_t)rows,
                                                       .width = width,
                                                       .vocab = (uint32_t)vocab,
                                                       .sequence = sequence,
                                                       .scale = width % 2 ? 3 : 1,
                                                       .element = element,
                                                       .gradient_element = of_gradient,
                                                       .accumulate_positions = width % 2};
    VERIFY(embedding_backward, back);
    free(tokens), free(order), free(starts);
}

void test_embeddings(void)
{
    for (int k = 0; k < 4; k++) {
        enum dtp_element element = k & 1 ? halves : DTP_ELEMENT_FP32;
        test_embedding(1, 1, 16, 5, element, k & 2);
        test_embedding(66, 33, 768, 50257 >> 4, element, k & 2);
        test_embedding(510, 255, 80, 7, element, k & 2); /* each token many times */
        test_embedding(99, 33, 129, 300, element, k & 2);
    }
}

static void test_loss(uint64_t rows, uint32_t vocab, uint32_t stride, enum dtp_element element)
{
    case_begin("loss %s %llu x %u in %u", named(element), (unsigned long long)rows, vocab, stride);
    int32_t *aims = malloc(rows * 4);
    for (uint64_t i = 0; i < rows; i++)
        aims[i] = i % 5 == 4 ? -1 : (int32_t)random_below(vocab);
    aims[0] = (int32_t)vocab - 1;
    /* Gradients are up to `scale`; their error that of exp, 2^-22, and of its argument. */
    struct tensor *logits = updated(input("logits", element, rows * stride, 4),
                                    ulps_of(element) + (element == DTP_ELEMENT_FP32) * 60, 4 * EPSILON);
    struct tensor *targets = integers("targets", aims, rows),
                  *row_loss = result("row loss", DTP_ELEMENT_FP32, rows, 4, 64 * EPSILON);
    struct dtp_loss_args a[SIDES];
    for (int s = 0; s < SIDES; s++)
        a[s] = (struct dtp_loss_args){.logits = logits->at[s],
                                      .targets = targets->at[s],
                                      .row_loss = row_loss->at[s],
                                      .rows = rows,
                                      .vocab = vocab,
                                      .stride = stride,
                                      .scale = 0.5f,
                                      .softcap = rows % 2 ? 3 : 0,
                                      .element = element};
    VERIFY(loss, a);
    free(aims);
}

void test_losses(void)
{
    for (int k = 0; k < 2; k++) {
        enum dtp_element element = k ? halves : DTP_ELEMENT_FP32;
        test_loss(1, 5, 8, element);
        test_loss(7, 50, 56, element);
        test_loss(small ? 3 : 300, 1000, 1024, element);
        test_loss(small ? 2 : 600, 32000, 32000, element);
        test_loss(small ? 2 : 300, 50257, 50304, element);
        test_loss(small ? 1 : 9, 50257, 50264, element);
        if (!small)
            test_loss(270, 128256, 128256, element);
        test_loss(small ? 1 : 140, 200019, 200064, element); /* longer than shared memory */
    }
}
