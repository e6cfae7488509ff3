/* Kernels of the step: sums and the norm of gradients, AdamW, casts and other element by element work. */
#include "gpu/kernel_tests.h"

#include <math.h>

void test_sums(void)
{
    const uint64_t sizes[] = {1, 7, 1000, 32768, 1 << 20};
    for (size_t i = 0; i < COUNT(sizes) - small; i++) {
        uint64_t n = sizes[i];
        case_begin("sum %llu", (unsigned long long)n);
        struct tensor *values = input("values", DTP_ELEMENT_FP32, n, 1),
                      *total = updated(input("total", DTP_ELEMENT_FP32, 1, 1), 2, EPSILON);
        struct dtp_sum_args a[SIDES];
        for (int s = 0; s < SIDES; s++)
            a[s] =
                (struct dtp_sum_args){.values = values->at[s], .total = total->at[s], .count = n, .accumulate = i % 2};
        VERIFY(sum, a);

        case_begin("square_sum and clip_scale %llu", (unsigned long long)n);
        enum dtp_element element = i % 2 ? halves : DTP_ELEMENT_FP32;
        struct dtp_step_scalars begin = {.loss_sum = 3, .loss_scale = i % 2 ? 4096.0f : 0.0f};
        struct tensor *x = input("values", element, n, 1),
                      *partial = result("partial", DTP_ELEMENT_FP32, DTP_SQUARE_SUM_PARTIALS, 1, INFINITY);
        struct tensor *scalars = updated(bytes_of("scalars", &begin, sizeof begin), 32, 0);
        struct dtp_square_sum_args q[SIDES];
        struct dtp_clip_scale_args c[SIDES];
        for (int s = 0; s < SIDES; s++) {
            q[s] = (struct dtp_square_sum_args){
                .values = x->at[s], .partial = partial->at[s], .count = n, .element = element};
            c[s] = (struct dtp_clip_scale_args){
                .partials = partial->at[s], .count = DTP_SQUARE_SUM_PARTIALS, .clip = 0.7f, .scalars = scalars->at[s]};
        }
        int status = dtp_reference_square_sum(NULL, &q[HOST], NULL) || dtp_reference_clip_scale(NULL, &c[HOST], NULL);
        for (int round = 0; round < 2;
             round++) { /* the two cut a tensor differently: their partials differ, the norm not */
            restore_device();
            status = status ? status : dtp_cuda_square_sum(NULL, &q[DEVICE], NULL);
            status = status ? status : dtp_cuda_clip_scale(NULL, &c[DEVICE], NULL);
            keep_round(round);
        }
        compare(status);
    }
}

/* These combinations of element types stand for the precisions and what is between them. */
static void test_adamw(uint64_t count, uint64_t first, int mode)
{
    const struct {
        const char *name;
        enum dtp_element gradient, weight, moment;
        bool master, stochastic;
    } modes[] = {
        {"fp32", DTP_ELEMENT_FP32, DTP_ELEMENT_FP32, DTP_ELEMENT_FP32, false, false},
        {"bf16-mixed", DTP_ELEMENT_FP32, DTP_ELEMENT_BF16, DTP_ELEMENT_FP32, true, false},
        {"bf16-mixed, bf16 gradient", DTP_ELEMENT_BF16, DTP_ELEMENT_BF16, DTP_ELEMENT_FP32, true, false},
        {"bf16-pure", DTP_ELEMENT_BF16, DTP_ELEMENT_BF16, DTP_ELEMENT_BF16, false, false},
        {"bf16-pure stochastic", DTP_ELEMENT_BF16, DTP_ELEMENT_BF16, DTP_ELEMENT_BF16, false, true},
        {"bf16 moments, master", DTP_ELEMENT_FP32, DTP_ELEMENT_BF16, DTP_ELEMENT_BF16, true, true},
        {"fp16-mixed", DTP_ELEMENT_FP32, DTP_ELEMENT_FP16, DTP_ELEMENT_FP32, true, false},
        {"fp16-mixed, fp16 gradient", DTP_ELEMENT_FP16, DTP_ELEMENT_FP16, DTP_ELEMENT_FP32, true, false},
    };
    if ((size_t)mode >= COUNT(modes))
        return;
    case_begin("adamw %s %llu from %llu", modes[mode].name, (unsigned long long)count, (unsigned long long)first);
    struct dtp_step_scalars of_step = {.learning_rate = 1e-2f,
                                       .correction1 = 0.271f,
                                       .correction2 = 0.1426f,
                                       .step = 3,
                                       .seed = 11,
                                       .clip_scale = 0.6f};
    struct tensor *gradient = input("gradient", modes[mode].gradient, count, 1),
                  *scalars = bytes_of("scalars", &of_step, sizeof of_step);
    struct tensor *weights =
        updated(input("weights", modes[mode].weight, count, 1), ulps_of(modes[mode].weight), 4 * EPSILON);
    struct tensor *master =
        modes[mode].master ? updated(input("master", DTP_ELEMENT_FP32, count, 1), 4, 4 * EPSILON) : NULL;
    struct tensor *moment1 =
        updated(input("moment1", modes[mode].moment, count, 1), ulps_of(modes[mode].moment), 2 * EPSILON);
    struct tensor *moment2 = input("moment2", modes[mode].moment, count, 1);
    for (uint64_t i = 0; i < count; i++) { /* squares have no sign */
        dtp_store(moment2->start, moment2->element, i, fabs(dtp_load(moment2->start, moment2->element, i)) + 0.01);
        dtp_store(moment2->at[HOST], moment2->element, i, dtp_load(moment2->start, moment2->element, i));
    }
    updated(moment2, ulps_of(modes[mode].moment), 2 * EPSILON);
    struct dtp_adamw_args a[SIDES];
    for (int s = 0; s < SIDES; s++)
        a[s] = (struct dtp_adamw_args){.gradient = gradient->at[s],
                                       .weights = weights->at[s],
                                       .master = master ? master->at[s] : NULL,
                                       .moment1 = moment1->at[s],
                                       .moment2 = moment2->at[s],
                                       .count = count,
                                       .first_element = first,
                                       .beta1 = 0.9f,
                                       .beta2 = 0.95f,
                                       .epsilon = 1e-8f,
                                       .decay = 0.1f,
                                       .range_count = 3,
                                       .range_begin = {0, count / 3, count - count / 5},
                                       .range_end = {count / 4, count / 2, count},
                                       .scalars = scalars->at[s],
                                       .gradient_element = modes[mode].gradient,
                                       .weight_element = modes[mode].weight,
                                       .moment_element = modes[mode].moment,
                                       .stochastic_rounding = modes[mode].stochastic};
    VERIFY(adamw, a);
}

/* Blocks of 256 share a scale. A moment that lies halfway between two places may go to either. */
static void test_adamw8(uint64_t blocks, int mode, bool plain)
{
    const enum dtp_element of_gradient = mode ? halves : DTP_ELEMENT_FP32, of_weight = mode ? halves : DTP_ELEMENT_FP32;
    const uint64_t count = 256 * blocks;
    case_begin("%s %s %llu", plain ? "sgd" : "adamw8", named(of_weight), (unsigned long long)count);
    struct dtp_step_scalars of_step = {.learning_rate = 1e-2f,
                                       .correction1 = 0.271f,
                                       .correction2 = 0.1426f,
                                       .step = 3,
                                       .seed = 11,
                                       .clip_scale = 0.6f};
    struct tensor *gradient = input("gradient", of_gradient, count, 1),
                  *scalars = bytes_of("scalars", &of_step, sizeof of_step);
    struct tensor *weights = updated(input("weights", of_weight, count, 1), ulps_of(of_weight), 8 * EPSILON);
    struct tensor *master = mode ? updated(input("master", DTP_ELEMENT_FP32, count, 1), 4, 8 * EPSILON) : NULL;
    struct tensor *moment1 = updated(input("moment1", DTP_ELEMENT_INT8, count, 1), 0, 1),
                  *moment2 = updated(input("moment2", DTP_ELEMENT_INT8, count, 1), 0, 1);
    struct tensor *scale1 = updated(input("scale1", DTP_ELEMENT_FP32, blocks, 0), 4, EPSILON),
                  *scale2 = updated(input("scale2", DTP_ELEMENT_FP32, blocks, 0), 4, EPSILON);
    for (uint64_t i = 0; i < count; i++) {
        ((uint8_t *)moment1->start)[i] = ((uint8_t *)moment1->at[HOST])[i] = (uint8_t)random_below(256);
        ((uint8_t *)moment2->start)[i] = ((uint8_t *)moment2->at[HOST])[i] = (uint8_t)random_below(256);
    }
    for (uint64_t i = 0; i < blocks; i++) {
        ((float *)scale1->start)[i] = ((float *)scale1->at[HOST])[i] = 0.5f;
        ((float *)scale2->start)[i] = ((float *)scale2->at[HOST])[i] = 0.3f;
    }
    struct dtp_adamw_args a[SIDES];
    for (int s = 0; s < SIDES; s++)
        a[s] = (struct dtp_adamw_args){.gradient = gradient->at[s],
                                       .weights = weights->at[s],
                                       .master = master ? master->at[s] : NULL,
                                       .moment1 = plain ? NULL : moment1->at[s],
                                       .moment2 = plain ? NULL : moment2->at[s],
                                       .scale1 = scale1->at[s],
                                       .scale2 = scale2->at[s],
                                       .count = count,
                                       .beta1 = 0.9f,
                                       .beta2 = 0.95f,
                                       .epsilon = 1e-8f,
                                       .decay = 0.1f,
                                       .range_count = 1,
                                       .range_begin = {0},
                                       .range_end = {count / 3},
                                       .scalars = scalars->at[s],
                                       .gradient_element = of_gradient,
                                       .weight_element = of_weight,
                                       .moment_element = DTP_ELEMENT_INT8};
    if (plain)
        VERIFY(sgd, a);
    else
        VERIFY(adamw8, a);
}

static void test_sgd_momentum(uint64_t count, int mode)
{
    const enum dtp_element element = mode ? halves : DTP_ELEMENT_FP32;
    case_begin("sgd with momentum %s %llu", named(element), (unsigned long long)count);
    struct dtp_step_scalars of_step = {.learning_rate = 1e-2f, .step = 3, .seed = 11, .clip_scale = 0.6f};
    struct tensor *scalars = bytes_of("scalars", &of_step, sizeof of_step),
                  *gradient = input("gradient", element, count, 1);
    struct tensor *weights = updated(input("weights", element, count, 1), ulps_of(element), 8 * EPSILON),
                  *momentum = updated(input("momentum", element, count, 1), ulps_of(element), 8 * EPSILON);
    struct dtp_adamw_args a[SIDES];
    for (int s = 0; s < SIDES; s++)
        a[s] = (struct dtp_adamw_args){.gradient = gradient->at[s],
                                       .weights = weights->at[s],
                                       .moment1 = momentum->at[s],
                                       .count = count,
                                       .beta1 = 0.9f,
                                       .decay = 0.1f,
                                       .range_count = 1,
                                       .range_begin = {0},
                                       .range_end = {count / 3},
                                       .scalars = scalars->at[s],
                                       .gradient_element = element,
                                       .weight_element = element,
                                       .moment_element = element};
    VERIFY(sgd, a);
}

/* The three passes of Muon, without products between them. Sums of squares are cut alike on both sides. */
static void test_muon(uint64_t count, int mode)
{
    const enum dtp_element element = mode ? halves : DTP_ELEMENT_FP32;
    case_begin("muon %s %llu", named(element), (unsigned long long)count);
    struct dtp_step_scalars of_step = {.learning_rate = 1e-2f, .step = 3, .seed = 11, .clip_scale = 0.6f};
    struct tensor *scalars = bytes_of("scalars", &of_step, sizeof of_step),
                  *gradient = input("gradient", element, count, 1);
    struct tensor *momentum = updated(input("momentum", element, count, 1), ulps_of(element), 8 * EPSILON);
    struct tensor *update = result("update", DTP_ELEMENT_BF16, count, 2, 1e-6),
                  *partial = result("partial", DTP_ELEMENT_FP32, DTP_SQUARE_SUM_PARTIALS, 2e4, 1e-2);
    struct tensor *weights = updated(input("weights", element, count, 1), ulps_of(element), 1e-3);
    struct dtp_muon_momentum_args m[SIDES];
    struct dtp_muon_unit_args u[SIDES];
    struct dtp_adamw_args a[SIDES];
    for (int s = 0; s < SIDES; s++) {
        m[s] = (struct dtp_muon_momentum_args){.gradient = gradient->at[s],
                                               .momentum = momentum->at[s],
                                               .result = update->at[s],
                                               .partial = partial->at[s],
                                               .count = count,
                                               .factor = 0.95f,
                                               .scalars = scalars->at[s],
                                               .gradient_element = element,
                                               .momentum_element = element};
        u[s] = (struct dtp_muon_unit_args){
            .values = update->at[s], .partial = partial->at[s], .count = count, .scalars = scalars->at[s]};
        a[s] = (struct dtp_adamw_args){.gradient = update->at[s],
                                       .weights = weights->at[s],
                                       .count = count,
                                       .decay = 0.1f,
                                       .factor = 3,
                                       .range_count = 1,
                                       .range_begin = {0},
                                       .range_end = {count},
                                       .scalars = scalars->at[s],
                                       .gradient_element = DTP_ELEMENT_BF16,
                                       .weight_element = element};
    }
    int status = dtp_reference_muon_momentum(NULL, &m[HOST], NULL) || dtp_reference_muon_unit(NULL, &u[HOST], NULL) ||
                 dtp_reference_sgd(NULL, &a[HOST], NULL);
    for (int round = 0; round < 2; round++) {
        restore_device();
        status = status ? status : dtp_cuda_muon_momentum(NULL, &m[DEVICE], NULL);
        status = status ? status : dtp_cuda_muon_unit(NULL, &u[DEVICE], NULL);
        status = status ? status : dtp_cuda_sgd(NULL, &a[DEVICE], NULL);
        keep_round(round);
    }
    compare(status);
}

static void test_skipped_step(void)
{
    case_begin("adamw skipped");
    struct dtp_step_scalars of_step = {.correction1 = 1, .correction2 = 1, .skip = 1, .clip_scale = NAN};
    struct tensor *scalars = bytes_of("scalars", &of_step, sizeof of_step);
    struct tensor *state[4];
    for (int i = 0; i < 4; i++)
        state[i] = updated(input("state", DTP_ELEMENT_FP32, 1000, 1), 0, 0);
    struct dtp_adamw_args a[SIDES];
    for (int s = 0; s < SIDES; s++)
        a[s] = (struct dtp_adamw_args){.gradient = state[0]->at[s],
                                       .weights = state[1]->at[s],
                                       .moment1 = state[2]->at[s],
                                       .moment2 = state[3]->at[s],
                                       .count = 1000,
                                       .scalars = scalars->at[s]};
    VERIFY(adamw, a);
}

void test_optimizer(void)
{
    for (int mode = 0; mode < 2; mode++) {
        for (int plain = 0; plain < 2; plain++) {
            test_adamw8(1, mode, plain);
            test_adamw8(small ? 40 : 9000, mode, plain);
        }
    }
    for (int mode = 0; mode < 2; mode++) {
        test_sgd_momentum(1003, mode);
        test_muon(64, mode);
        test_muon(small ? 96 * 688 : 4096 * 1000, mode);
    }
    for (int mode = 0; mode < 8; mode++) {
        test_adamw(1, 0, mode);
        test_adamw(4099, 0, mode);
        test_adamw(4096, 24, mode);
        test_adamw(1003, 5, mode); /* a shard that begins anywhere */
    }
    test_skipped_step();
}

/* Sums of up to nine numbers in fp32, each rounded once. */
static void test_sum_parts(uint64_t count, uint32_t part_count, enum dtp_element element, enum dtp_element of_total,
                           bool accumulate)
{
    case_begin("sum_parts %s to %s %u of %llu%s", named(element), named(of_total), part_count,
               (unsigned long long)count, accumulate ? " +" : "");
    struct tensor *parts = input("parts", element, part_count * count, 1);
    struct tensor *total = accumulate ? updated(input("total", of_total, count, 1), ulps_of(of_total), 64 * EPSILON)
                                      : result("total", of_total, count, ulps_of(of_total), 64 * EPSILON);
    struct dtp_sum_parts_args a[SIDES];
    for (int s = 0; s < SIDES; s++)
        a[s] = (struct dtp_sum_parts_args){.parts = parts->at[s],
                                           .total = total->at[s],
                                           .count = count,
                                           .part_count = part_count,
                                           .element = element,
                                           .total_element = of_total,
                                           .accumulate = accumulate};
    VERIFY(sum_parts, a);
}

/* Rows or columns of a factor; numbers that are drawn are never nearly dependent, and sums are double on both sides. */
static void test_orthogonalize(uint64_t length, uint32_t vectors, bool by_columns)
{
    case_begin("orthogonalize %u %s of %llu", vectors, by_columns ? "columns" : "rows", (unsigned long long)length);
    struct tensor *values = updated(input("values", DTP_ELEMENT_FP32, length * vectors, 1), 16, 64 * EPSILON);
    struct dtp_orthogonalize_args a[SIDES];
    for (int s = 0; s < SIDES; s++)
        a[s] = (struct dtp_orthogonalize_args){.values = (float *)values->at[s],
                                               .length = length,
                                               .element_stride = by_columns ? vectors : 1,
                                               .vector_stride = by_columns ? 1 : length,
                                               .vectors = vectors};
    VERIFY(orthogonalize, a);
}

/* Columns of a part: runs of its width, whole rows apart; the same numbers as in the whole tensor. */
static void test_initialise_part(uint64_t rows, uint64_t run, uint64_t stride, enum dtp_element element)
{
    case_begin("initialise %s %llu rows of %llu of %llu", named(element), (unsigned long long)rows,
               (unsigned long long)run, (unsigned long long)stride);
    uint64_t first = stride - run;
    struct tensor *part = result("part", element, rows * run, 1, 0),
                  *whole = result("whole", element, rows * stride, 1, 0);
    struct dtp_initialise_args a[SIDES], b[SIDES];
    for (int s = 0; s < SIDES; s++) {
        a[s] = (struct dtp_initialise_args){.values = part->at[s],
                                            .count = rows * run,
                                            .first_element = 5 + first,
                                            .seed = 3,
                                            .tensor = 9,
                                            .deviation = 0.02f,
                                            .element = element,
                                            .run = run,
                                            .stride = stride};
        b[s] = a[s];
        b[s].values = whole->at[s];
        b[s].count = rows * stride;
        b[s].first_element = 5;
        b[s].run = b[s].stride = 0;
    }
    int status = dtp_reference_initialise(NULL, &a[HOST], NULL) || dtp_reference_initialise(NULL, &b[HOST], NULL);
    for (int round = 0; round < 2; round++) {
        restore_device();
        status = status ? status : dtp_cuda_initialise(NULL, &a[DEVICE], NULL);
        status = status ? status : dtp_cuda_initialise(NULL, &b[DEVICE], NULL);
        keep_round(round);
    }
    compare(status);
    size_t size = element == DTP_ELEMENT_FP32 ? 4 : 2;
    for (uint64_t row = 0; row < rows; row++) {
        const char *of_part = (const char *)part->of_round[1] + row * run * size;
        const char *of_whole = (const char *)whole->of_round[1] + (row * stride + first) * size;
        if (memcmp(of_part, of_whole, run * size) != 0) {
            printf("row %llu of the part is not that of the whole\n", (unsigned long long)row);
            failures++;
            return;
        }
    }
}

static void test_elementwise(uint64_t count, enum dtp_element from, enum dtp_element to)
{
    case_begin("cast %s to %s %llu", named(from), named(to), (unsigned long long)count);
    struct tensor *values = input("values", from, count, 1), *cast = result("result", to, count, 0.01, 0);
    struct dtp_cast_args a[SIDES];
    for (int s = 0; s < SIDES; s++)
        a[s] = (struct dtp_cast_args){
            .values = values->at[s], .result = cast->at[s], .count = count, .element = from, .result_element = to};
    VERIFY(cast, a);

    case_begin("add %s to %s %llu", named(from), named(to), (unsigned long long)count);
    values = input("values", from, count, 1);
    struct tensor *total = updated(input("total", to, count, 1), 1, 0);
    struct dtp_add_args b[SIDES];
    for (int s = 0; s < SIDES; s++)
        b[s] = (struct dtp_add_args){
            .values = values->at[s], .total = total->at[s], .count = count, .element = from, .total_element = to};
    VERIFY(add, b);

    for (uint32_t part_count = 1; part_count <= 9; part_count += 4)
        test_sum_parts(count, part_count, from, to, part_count != 5);

    case_begin("initialise %s %llu", named(to), (unsigned long long)count);
    struct tensor *fresh = result("values", to, count, 1, 0);
    struct dtp_initialise_args c[SIDES];
    for (int s = 0; s < SIDES; s++)
        c[s] = (struct dtp_initialise_args){.values = fresh->at[s],
                                            .count = count,
                                            .first_element = 13,
                                            .seed = 3,
                                            .tensor = 9,
                                            .mean = from == to ? 1 : 0,
                                            .deviation = from == to ? 0 : 0.02f,
                                            .element = to};
    VERIFY(initialise, c);

    case_begin("zero %llu", (unsigned long long)count);
    struct tensor *zeros = result("values", to, count, 0, 0);
    struct dtp_zero_args d[SIDES];
    for (int s = 0; s < SIDES; s++)
        d[s] = (struct dtp_zero_args){.values = zeros->at[s], .bytes = zeros->bytes};
    VERIFY(zero, d);
}

void test_elementwises(void)
{
    const uint32_t vectors[] = {1, 2, 4, 32};
    for (size_t i = 0; i < COUNT(vectors) - small; i++)
        for (uint64_t length = 33; length < 50000; length = length * 37 + 5)
            test_orthogonalize(length, vectors[i], (length + i) % 2);
    const uint64_t counts[] = {1, 7, 4096, 100003};
    for (int k = 0; k < 2; k++) {
        test_initialise_part(1, 1, 2, k ? halves : DTP_ELEMENT_FP32);
        test_initialise_part(7, 3, 9, k ? halves : DTP_ELEMENT_FP32);
        test_initialise_part(33, 1024, 4096, k ? halves : DTP_ELEMENT_FP32);
    }
    for (size_t i = 0; i < COUNT(counts) - small; i++)
        for (int k = 0; k < 4; k++)
            test_elementwise(counts[i], k & 1 ? halves : DTP_ELEMENT_FP32, k & 2 ? halves : DTP_ELEMENT_FP32);
}
