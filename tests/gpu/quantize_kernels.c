/* Casts to fp8, bit for bit, and the amax that they go by. */
#include "gpu/kernel_tests.h"

#include <math.h>
#include <stdlib.h>

static void test_quantize(uint64_t rows, uint64_t columns, enum dtp_element to, bool by_rows, bool by_columns,
                          double deviation)
{
    uint64_t all = rows * columns;
    case_begin("amax and quantize %s %llu x %llu%s%s", named(to), (unsigned long long)rows, (unsigned long long)columns,
               by_rows ? " rows" : "", by_columns ? " columns" : "");
    const float nothing = 0;
    struct tensor *x = input("values", DTP_ELEMENT_BF16, all, deviation);
    struct tensor *amax = updated(bytes_of("amax", &nothing, sizeof nothing), 0, 0);
    struct tensor *scale = result("scale", DTP_ELEMENT_FP32, 1, 0, 0);
    struct tensor *narrow = by_rows ? result("rows", to, all, 0, 0) : NULL;
    struct tensor *transposed = by_columns ? result("columns", to, all, 0, 0) : NULL;
    struct dtp_amax_args first[SIDES];
    struct dtp_quantize_args then[SIDES];
    for (int s = 0; s < SIDES; s++) {
        first[s] =
            (struct dtp_amax_args){.values = x->at[s], .amax = amax->at[s], .count = all, .element = DTP_ELEMENT_BF16};
        then[s] = (struct dtp_quantize_args){.values = x->at[s],
                                             .amax = amax->at[s],
                                             .scale = scale->at[s],
                                             .result = narrow ? narrow->at[s] : NULL,
                                             .transposed = transposed ? transposed->at[s] : NULL,
                                             .rows = rows,
                                             .columns = columns,
                                             .element = DTP_ELEMENT_BF16,
                                             .result_element = to};
    }
    int status = dtp_reference_amax(NULL, &first[HOST], NULL) || dtp_reference_quantize(NULL, &then[HOST], NULL);
    for (int round = 0; round < 2; round++) {
        restore_device();
        status = status ? status : dtp_cuda_amax(NULL, &first[DEVICE], NULL);
        status = status ? status : dtp_cuda_quantize(NULL, &then[DEVICE], NULL);
        keep_round(round);
    }
    compare(status);
}

/* Scales of earlier steps' amaxes, and a cast by the last of them, which raises an amax that is below, or none. The
 * second tensor's history is all 0, the third's has infinity in it. */
static void test_delayed(uint64_t count, bool raises)
{
    const uint64_t rows = 144, columns = 272, all = rows * columns, amaxes = count * DTP_AMAX_HISTORY;
    case_begin("scales of earlier steps %llu%s", (unsigned long long)count, raises ? ", raised" : "");
    float *history = calloc(amaxes, sizeof *history), *scales = calloc(count * DTP_AMAX_SCALE, sizeof *scales);
    for (uint64_t i = 0; i < amaxes; i++)
        history[i] = i / DTP_AMAX_HISTORY == 1 ? 0 : (float)random_below(1u << 20) / 65536;
    history[amaxes - 5] = INFINITY;
    struct tensor *x = input("values", DTP_ELEMENT_BF16, all, 3);
    struct tensor *kept = updated(bytes_of("history", history, amaxes * sizeof *history), 0, 0);
    struct tensor *scale = updated(bytes_of("scales", scales, count * DTP_AMAX_SCALE * sizeof *scales), 0, 0);
    struct tensor *narrow = result("rows", DTP_ELEMENT_E4M3, all, 0, 0);
    struct tensor *transposed = result("columns", DTP_ELEMENT_E4M3, all, 0, 0);
    struct dtp_from_history_args first[SIDES];
    struct dtp_quantize_args then[SIDES];
    for (int s = 0; s < SIDES; s++) {
        float *last = (float *)scale->at[s] + (count - 1) * DTP_AMAX_SCALE;
        first[s] = (struct dtp_from_history_args){
            .history = kept->at[s], .scale = scale->at[s], .count = count, .wide = count - 1};
        then[s] = (struct dtp_quantize_args){.values = x->at[s],
                                             .amax = raises ? kept->at[s] : NULL,
                                             .scale = last,
                                             .result = narrow->at[s],
                                             .transposed = transposed->at[s],
                                             .rows = rows,
                                             .columns = columns,
                                             .element = DTP_ELEMENT_BF16,
                                             .result_element = DTP_ELEMENT_E4M3,
                                             .delayed = true};
    }
    int status =
        dtp_reference_from_history(NULL, &first[HOST], NULL) || dtp_reference_quantize(NULL, &then[HOST], NULL);
    for (int round = 0; round < 2; round++) {
        restore_device();
        status = status ? status : dtp_cuda_from_history(NULL, &first[DEVICE], NULL);
        status = status ? status : dtp_cuda_quantize(NULL, &then[DEVICE], NULL);
        keep_round(round);
    }
    compare(status);
    free(history);
    free(scales);
}

/* Casts with scales of rows or blocks: bytes, scales and the maxima behind them, bit for bit. Rows' scales are not
 * there before, and of squares what is padding stays as it was. */
static void test_scaled(enum dtp_scaling scaling, uint64_t rows, uint64_t columns, bool by_rows, bool by_columns,
                        double deviation)
{
    static const char *const scalings[] = {"whole", "rows", "alike", "runs", "squares"};
    const uint64_t all = rows * columns, blocks = DTP_SCALED_RUN - 1;
    const uint64_t most = (rows + blocks) * (columns + 4 * blocks + 4) / DTP_SCALED_RUN + rows + columns;
    case_begin("quantize scales of %s %llu x %llu%s%s", scalings[scaling], (unsigned long long)rows,
               (unsigned long long)columns, by_rows ? " rows" : "", by_columns ? " columns" : "");
    float *nothing = calloc(most, sizeof *nothing);
    struct tensor *x = input("values", DTP_ELEMENT_BF16, all, deviation);
    struct tensor *narrow = by_rows ? result("rows", DTP_ELEMENT_E4M3, all, 0, 0) : NULL;
    struct tensor *transposed = by_columns ? result("columns", DTP_ELEMENT_E4M3, all, 0, 0) : NULL;
    struct tensor *scales = updated(bytes_of("scales of rows", nothing, most * sizeof *nothing), 0, 0);
    struct tensor *others = updated(bytes_of("scales of columns", nothing, most * sizeof *nothing), 0, 0);
    float *maxima[SIDES][2] = {{NULL, NULL}, {NULL, NULL}};
    struct tensor *scratch[2] = {
        /* written as the device likes, within their bounds */
        updated(bytes_of("maxima of rows", nothing, rows * sizeof *nothing), 0, INFINITY),
        updated(bytes_of("maxima of columns", nothing, columns * sizeof *nothing), 0, INFINITY)};
    maxima[DEVICE][0] = scratch[0]->at[DEVICE], maxima[DEVICE][1] = scratch[1]->at[DEVICE];
    struct dtp_scaled_quantize_args then[SIDES];
    for (int s = 0; s < SIDES; s++)
        then[s] = (struct dtp_scaled_quantize_args){.values = x->at[s],
                                                    .result = narrow ? narrow->at[s] : NULL,
                                                    .transposed = transposed ? transposed->at[s] : NULL,
                                                    .result_scales = scales->at[s],
                                                    .transposed_scales = others->at[s],
                                                    .result_maxima = maxima[s][0],
                                                    .transposed_maxima = maxima[s][1],
                                                    .rows = rows,
                                                    .columns = columns,
                                                    .element = DTP_ELEMENT_BF16,
                                                    .scaling = scaling};
    int status = dtp_reference_scaled_quantize(NULL, &then[HOST], NULL);
    for (int round = 0; round < 2; round++) {
        restore_device();
        status = status ? status : dtp_cuda_scaled_quantize(NULL, &then[DEVICE], NULL);
        keep_round(round);
    }
    compare(status);
    free(nothing);
}

static void test_all_scaled(uint64_t rows, uint64_t columns, double deviation)
{
    for (int s = DTP_SCALED_ROWS; s <= DTP_SCALED_SQUARES; s++)
        for (int k = s == DTP_SCALED_ALIKE ? 2 : 0; k < 3; k++)
            test_scaled((enum dtp_scaling)s, rows, columns, k != 2, k != 0, deviation);
}

/* NF4 there and back. */
static void test_pack4(enum dtp_element element, uint64_t count, double deviation)
{
    case_begin("pack4 and unpack4 %s %llu", named(element), (unsigned long long)count);
    struct tensor *x = input("values", element, count, deviation);
    struct tensor *codes = result("codes", DTP_ELEMENT_INT8, count / 2, 0, 0);
    struct tensor *largest = result("largest", DTP_ELEMENT_FP32, count / DTP_NF4_BLOCK, 0, 0);
    struct tensor *back = result("values again", element, count, 0, 0);
    struct dtp_pack4_args pack[SIDES];
    struct dtp_unpack4_args unpack[SIDES];
    for (int s = 0; s < SIDES; s++) {
        pack[s] = (struct dtp_pack4_args){
            .values = x->at[s], .codes = codes->at[s], .largest = largest->at[s], .count = count, .element = element};
        unpack[s] = (struct dtp_unpack4_args){.codes = codes->at[s],
                                              .largest = largest->at[s],
                                              .result = back->at[s],
                                              .count = count,
                                              .element = element};
    }
    int status = dtp_reference_pack4(NULL, &pack[HOST], NULL) || dtp_reference_unpack4(NULL, &unpack[HOST], NULL);
    for (int round = 0; round < 2; round++) {
        restore_device();
        status = status ? status : dtp_cuda_pack4(NULL, &pack[DEVICE], NULL);
        status = status ? status : dtp_cuda_unpack4(NULL, &unpack[DEVICE], NULL);
        keep_round(round);
    }
    compare(status);
}

/* Two ranks' gradients in 8 bits, and their sum. */
static void test_pack8(enum dtp_element element, uint64_t count, double deviation)
{
    case_begin("pack8 and sum_packed8 %s %llu", named(element), (unsigned long long)count);
    const uint64_t part_bytes = (8 * ((count + DTP_PACK8_RUN - 1) / DTP_PACK8_RUN) + count + 127) / 128 * 128;
    struct tensor *x[2] = {input("values", element, count, deviation), input("others", element, count, deviation)};
    struct tensor *parts = result("parts", DTP_ELEMENT_INT8, 2 * part_bytes, 0, 0);
    struct tensor *total = result("total", element, count, 0, 0);
    struct dtp_pack8_args pack[SIDES][2];
    struct dtp_sum_packed8_args sum[SIDES];
    for (int s = 0; s < SIDES; s++) {
        for (int r = 0; r < 2; r++)
            pack[s][r] = (struct dtp_pack8_args){.values = x[r]->at[s],
                                                 .part = (char *)parts->at[s] + (uint64_t)r * part_bytes,
                                                 .count = count,
                                                 .element = element};
        sum[s] = (struct dtp_sum_packed8_args){.parts = parts->at[s],
                                               .total = total->at[s],
                                               .count = count,
                                               .part_bytes = part_bytes,
                                               .part_count = 2,
                                               .element = element};
    }
    int status = dtp_reference_pack8(NULL, &pack[HOST][0], NULL) || dtp_reference_pack8(NULL, &pack[HOST][1], NULL) ||
                 dtp_reference_sum_packed8(NULL, &sum[HOST], NULL);
    for (int round = 0; round < 2; round++) {
        restore_device();
        for (int r = 0; r < 2; r++)
            status = status ? status : dtp_cuda_pack8(NULL, &pack[DEVICE][r], NULL);
        status = status ? status : dtp_cuda_sum_packed8(NULL, &sum[DEVICE], NULL);
        keep_round(round);
    }
    compare(status);
}

void test_quantizes(void)
{
    const uint64_t odd[] = {8, 511, 512, 4096 * 688 + 24};
    for (size_t i = 0; i < COUNT(odd) - small; i++) {
        test_pack8(DTP_ELEMENT_FP32, odd[i], i == 1 ? 1e-9 : 3);
        test_pack8(DTP_ELEMENT_BF16, odd[i], i == 2 ? 0 : 0.02);
    }
    const uint64_t shapes[][2] = {{16, 16}, {128, 128}, {144, 272}, {16, 4096}, {1040, 688}, {2048, 2048}};
    for (size_t i = 0; i < COUNT(shapes) - small; i++)
        for (int k = 0; k < 6; k++)
            test_quantize(shapes[i][0], shapes[i][1], k % 2 ? DTP_ELEMENT_E5M2 : DTP_ELEMENT_E4M3, k / 2 != 1,
                          k / 2 != 0, k == 5 ? 1e-9 : 3);
    for (size_t i = 0; i < COUNT(shapes) - small; i++)
        test_all_scaled(shapes[i][0], shapes[i][1], i % 2 ? 3 : 1e-9);
    test_all_scaled(272, 144, 0);
    for (uint64_t count = 1; count < 13; count += 4)
        test_delayed(count, count > 1);
    const uint64_t counts[] = {64, 192, 64 * 1023, 4096 * 688};
    for (size_t i = 0; i < COUNT(counts) - small; i++) {
        test_pack4(DTP_ELEMENT_BF16, counts[i], 0.02);
        test_pack4(DTP_ELEMENT_FP32, counts[i], i == 1 ? 0 : 3);
    }
    test_quantize(32, 48, DTP_ELEMENT_E4M3, true, true, 0); /* zeros: the scale is that of the least amax */
}
