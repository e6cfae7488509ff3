/* libFuzzer target: any table is a measured machine or is refused, and what is taken answers every question with an
 * amount of time, or with none.
 *
 *   cmake --preset fuzz && cmake --build --preset fuzz --target fuzz_measured
 *   build-fuzz/tests/fuzz_measured -max_total_time=600 -max_len=4096 tests/corpus/measured */
#include "cost/collective_cost.h"
#include "machine/measured.h"

#include "fuzz_fixture.h"
#include "lib/hardware.h"

#include <stdlib.h>

static void expect_time(double seconds)
{
    expect(isnan(seconds) || (isfinite(seconds) && seconds > 0));
}

static void ask(const struct dtp_measured *measured)
{
    static const double sizes[] = {1, 4096, 1e9, 1e13};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        for (int pass = 0; pass < DTP_MEASURED_MATMUL_COUNT; pass++)
            expect_time(dtp_measured_matmul_s(measured, (enum dtp_measured_matmul)pass, DTP_BF16, 512, 4096,
                                              sizes[i] < 1e6 ? sizes[i] : 1e6));
        struct dtp_measured_row row = dtp_measured_row_of(DTP_MEASUREMENT_KERNEL, "norm");
        row.number[DTP_MEASURED_bytes] = sizes[i];
        expect_time(dtp_measured_s(measured, &row));
        struct dtp_cluster cluster = test_cluster(test_h200(), 16, 8);
        struct dtp_group world = dtp_group_consecutive(&cluster, 16), node = dtp_group_consecutive(&cluster, 8);
        cluster.measured = measured;
        for (int c = 0; c < DTP_COLLECTIVE_COUNT; c++) {
            struct dtp_collective_cost cost = dtp_collective_cost(&cluster, &world, (enum dtp_collective)c);
            expect_time(dtp_collective_time(&cost, sizes[i]));
            cost = dtp_collective_cost(&cluster, &node, (enum dtp_collective)c);
            expect_time(dtp_collective_time(&cost, sizes[i]));
        }
    }
    for (size_t i = 0; i < dtp_measured_quality_count(measured); i++) {
        struct dtp_measured_quality quality;
        expect(dtp_measured_quality(measured, i, &quality));
        expect(memchr(quality.what, 0, sizeof quality.what) != NULL);
    }
    for (size_t i = 0; i < dtp_measured_all(measured)->count; i++)
        expect_time(dtp_measured_fit_s(measured, i));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct dtp_table *table = NULL;
    struct dtp_measured_rows rows;
    struct dtp_measured *measured = NULL;
    struct dtp_gpu gpu = test_h200();
    static struct dtp_faults faults;
    forget_faults(&faults);
    enum dtp_status status = dtp_table_parse("fuzz", (const char *)data, bytes, &table, &faults);
    if (status == DTP_OK)
        status = dtp_measured_rows_of(table, &rows, &faults);
    if (status == DTP_OK)
        status = dtp_measured_create("fuzz", &rows, &gpu, &measured, &faults);
    expect((status == DTP_OK) == (measured != NULL));
    expect_faults(status, &faults);
    if (measured)
        ask(measured);
    dtp_measured_destroy(measured);
    dtp_table_destroy(table);
    return 0;
}
