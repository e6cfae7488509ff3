/* libFuzzer target: any rows below the columns of prices are prices or are refused; what a job costs at them is an
 * amount.
 *
 *   cmake --preset fuzz && cmake --build --preset fuzz
 *   build-fuzz/tests/fuzz_prices -max_total_time=600 -max_len=512 CORPUS_FOLDER tests/corpus/prices */
#include "machine/catalog_rows.h"
#include "decide/money.h"

#include "fuzz_fixture.h"
#include "lib/scenario_fixture.h"

#include <math.h>

#define COLUMNS "gpu_key,low_usd_per_gpu_hour,typical_usd_per_gpu_hour,high_usd_per_gpu_hour,date,kind,source\n"

static void expect_money(const struct dtp_price *price)
{
    struct dtp_job job = {.cluster = {.gpus = 1000000, .gpus_per_node = 8}};
    const struct dtp_throughput throughput = {.tokens_per_s = 1e-3};
    struct dtp_money money;
    dtp_money_of(&job, &throughput, price, &money);
    expect(money.known && !money.given && memchr(money.date, 0, sizeof money.date));
    for (int i = 0; i < DTP_PRICE_LEVEL_COUNT; i++) {
        expect(isfinite(money.gpu_hour_usd[i]) && money.gpu_hour_usd[i] > 0);
        expect(isfinite(money.job_hour_usd[i]) && money.job_hour_usd[i] >= money.gpu_hour_usd[i]);
        expect(isfinite(money.billion_tokens_usd[i]) && money.billion_tokens_usd[i] > 0);
        expect(i == 0 || money.job_hour_usd[i] >= money.job_hour_usd[i - 1]);
    }
}

static void expect_prices(const struct dtp_catalog *catalog)
{
    for (size_t i = 0; i < catalog->price_count; i++) {
        const struct dtp_price *price = &catalog->prices[i];
        expect(dtp_catalog_gpu(catalog, price->gpu_key, NULL, 0, NULL) != NULL);
        expect(dtp_catalog_price(catalog, price->gpu_key) == price);
        expect(*price->source && !price->source[dtp_printable_length(price->source)]);
        expect_money(price);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static struct dtp_faults faults;
    struct dtp_catalog catalog = fixture_catalog();
    struct dtp_table *table = NULL;
    char *text = malloc(sizeof COLUMNS + bytes);
    expect(text != NULL);
    memcpy(text, COLUMNS, sizeof COLUMNS - 1);
    memcpy(text + sizeof COLUMNS - 1, data, bytes);
    forget_faults(&faults);
    enum dtp_status status = dtp_table_parse("prices.csv", text, sizeof COLUMNS - 1 + bytes, &table, &faults);
    if (status == DTP_OK)
        status = dtp_catalog_add_table(table, true, &catalog, &faults);
    expect_faults(status, &faults);
    if (status == DTP_OK)
        expect_prices(&catalog);
    free(catalog.prices); /* all else of it is the fixture's */
    free(catalog.provenance);
    dtp_table_destroy(table);
    free(text);
    return 0;
}
