/* Casts to fp8, bit for bit, and the amax that they go by. */
#include "gpu/kernel_tests.h"

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

void test_quantizes(void)
{
    const uint64_t shapes[][2] = {{16, 16}, {128, 128}, {144, 272}, {16, 4096}, {1040, 688}, {2048, 2048}};
    for (size_t i = 0; i < COUNT(shapes) - small; i++)
        for (int k = 0; k < 6; k++)
            test_quantize(shapes[i][0], shapes[i][1], k % 2 ? DTP_ELEMENT_E5M2 : DTP_ELEMENT_E4M3, k / 2 != 1,
                          k / 2 != 0, k == 5 ? 1e-9 : 3);
    test_quantize(32, 48, DTP_ELEMENT_E4M3, true, true, 0); /* zeros: the scale is that of the least amax */
}
