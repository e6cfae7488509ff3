/* Kernels of embedding and head: rows of tokens gathered and their gradients scattered, the loss of a row of logits;
 * whole, and of the part of a vocabulary that one tensor parallel rank has. */
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

/* A rank has `count` tokens from `first` on. */
struct part {
    uint32_t first, count;
};

/* The table is a part's; tokens are of the whole vocabulary. */
static void test_embedding(int32_t rows, uint32_t sequence, uint32_t width, int32_t vocab, struct part part,
                           enum dtp_element element, bool positions)
{
    enum dtp_element of_gradient = positions ? DTP_ELEMENT_FP32 : element;
    int32_t *tokens = malloc((size_t)rows * 4), *order = malloc((size_t)rows * 4),
            *starts = calloc((size_t)rows + 1, 4);
    for (int32_t i = 0; i < rows; i++) /* the lower ones more often: long and short lists of rows */
        tokens[i] = (int32_t)random_below(1 + random_below((uint32_t)vocab));
    int32_t distinct = sort_tokens(tokens, rows, vocab, order, starts);

    case_begin("embedding %s %d x %u of %u from %u%s", named(element), rows, width, part.count, part.first,
               positions ? ", positions" : "");
    struct tensor *ids = integers("tokens", tokens, (uint64_t)rows),
                  *table = input("table", element, (uint64_t)part.count * width, 1);
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
                                           .vocab = part.count,
                                           .sequence = sequence,
                                           .scale = width % 2 ? 3 : 1,
                                           .element = element,
                                           .result_element = element,
                                           .first_token = part.first};
    VERIFY(embedding, a);

    case_begin("embedding_backward %s %d x %u of %u from %u%s", named(element), rows, width, part.count, part.first,
               positions ? ", positions" : "");
    double sum_error = 16 * EPSILON * sqrt((double)rows), ulps = ulps_of(of_gradient);
    ids = integers("tokens", tokens, (uint64_t)rows);
    struct tensor *by_token = integers("order", order, (uint64_t)rows),
                  *begins = integers("starts", starts, (uint64_t)distinct + 1);
    struct tensor *count = integers("distinct", &distinct, 1),
                  *gradient = input("gradient", element, (uint64_t)rows * width, 1);
    struct tensor *of_table =
        updated(input("table gradient", of_gradient, (uint64_t)part.count * width, 1), ulps, sum_error);
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
                                                       .vocab = part.count,
                                                       .sequence = sequence,
                                                       .scale = width % 2 ? 3 : 1,
                                                       .element = element,
                                                       .gradient_element = of_gradient,
                                                       .accumulate_positions = width % 2,
                                                       .first_token = part.first};
    VERIFY(embedding_backward, back);
    free(tokens), free(order), free(starts);
}

void test_embeddings(void)
{
    for (int k = 0; k < 4; k++) {
        enum dtp_element element = k & 1 ? halves : DTP_ELEMENT_FP32;
        test_embedding(1, 1, 16, 5, (struct part){0, 5}, element, k & 2);
        test_embedding(66, 33, 768, 50257 >> 4, (struct part){0, 50257 >> 4}, element, k & 2);
        test_embedding(510, 255, 80, 7, (struct part){0, 7}, element, k & 2); /* each token many times */
        test_embedding(99, 33, 129, 300, (struct part){0, 300}, element, k & 2);
        test_embedding(66, 33, 768, 50257 >> 4, (struct part){0, 50257 >> 5}, element, k & 2);
        test_embedding(510, 255, 80, 8, (struct part){2, 2}, element, k & 2);
        test_embedding(99, 33, 129, 300, (struct part){225, 75}, element, k & 2);   /* the last of four */
        test_embedding(33, 33, 64, 300, (struct part){100000, 75}, element, k & 2); /* of which no token is */
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

/* Each part says of each row what the loss needs of it; what one says is compared, and what all said is read when the
 * gradients of one part are made. */
static void test_loss_in_parts(uint64_t rows, uint32_t vocab, uint32_t part_count, uint32_t at,
                               enum dtp_element element)
{
    uint32_t width = vocab / part_count, stride = (width + 7) / 8 * 8;
    float softcap = rows % 2 ? 3 : 0;
    int32_t *aims = malloc(rows * 4);
    struct dtp_loss_part *said = calloc(rows * part_count, sizeof *said);
    void *own = malloc(rows * stride * 4);
    for (uint64_t i = 0; i < rows; i++)
        aims[i] = i % 5 == 4 ? -1 : (int32_t)random_below(vocab);
    aims[0] = (int32_t)(at * width);
    case_begin("loss_parts %s %llu x %u of %u parts", named(element), (unsigned long long)rows, width, part_count);
    struct tensor *logits = input("logits", element, rows * stride, 4), *targets = integers("targets", aims, rows);
    struct tensor *part = result("part", DTP_ELEMENT_FP32, 3 * rows, 64, 64 * EPSILON);
    struct dtp_loss_parts_args a[SIDES];
    for (int s = 0; s < SIDES; s++)
        a[s] = (struct dtp_loss_parts_args){.logits = logits->at[s],
                                            .targets = targets->at[s],
                                            .part = part->at[s],
                                            .rows = rows,
                                            .vocab = width,
                                            .stride = stride,
                                            .first_token = at * width,
                                            .softcap = softcap,
                                            .element = element};
    VERIFY(loss_parts, a);
    for (uint32_t p = 0; p < part_count; p++) {
        struct dtp_loss_parts_args other = a[HOST];
        other.part = said + p * rows;
        other.first_token = p * width;
        other.logits = own;
        fill_random(own, element, rows * stride, 4);
        dtp_reference_loss_parts(NULL, &other, NULL);
    }
    case_begin("loss %s %llu x %u of %u parts", named(element), (unsigned long long)rows, width, part_count);
    logits = updated(input("logits", element, rows * stride, 4), ulps_of(element) + (element == DTP_ELEMENT_FP32) * 60,
                     4 * EPSILON);
    targets = integers("targets", aims, rows);
    struct tensor *parts = bytes_of("parts", said, rows * part_count * sizeof *said),
                  *row_loss = result("row loss", DTP_ELEMENT_FP32, rows, 4, 64 * EPSILON);
    struct dtp_loss_args b[SIDES];
    for (int s = 0; s < SIDES; s++)
        b[s] = (struct dtp_loss_args){.logits = logits->at[s],
                                      .targets = targets->at[s],
                                      .row_loss = row_loss->at[s],
                                      .rows = rows,
                                      .vocab = width,
                                      .stride = stride,
                                      .scale = 0.5f,
                                      .softcap = softcap,
                                      .element = element,
                                      .parts = parts->at[s],
                                      .part_count = part_count,
                                      .first_token = at * width};
    VERIFY(loss, b);
    free(aims), free(said), free(own);
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
        test_loss_in_parts(6, 64, 2, 1, element);
        test_loss_in_parts(7, 52, 4, 0, element); /* 13 tokens of rows of 16 */
        test_loss_in_parts(small ? 3 : 300, 32000, 4, 3, element);
        test_loss_in_parts(small ? 2 : 301, 50264, 2, 1, element);
        test_loss_in_parts(small ? 1 : 140, 400128, 2, 0, element);
    }
}
