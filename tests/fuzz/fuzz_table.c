/* libFuzzer target: any bytes are a table or are refused; a table written out and read again is the same table.
 *
 *   cmake --preset fuzz && cmake --build --preset fuzz --target fuzz_table
 *   build-fuzz/tests/fuzz_table -max_total_time=600 -max_len=4096 tests/corpus/table */
#include "base/table.h"

#include "fuzz_fixture.h"

#include <stdlib.h>
#include <string.h>

static void write_row(FILE *file, const struct dtp_table *table, size_t row, bool header)
{
    size_t columns = dtp_table_column_count(table);
    for (size_t i = 0; i < columns; i++) {
        const char *text = header ? dtp_table_column_name(table, i) : dtp_table_text(table, row, (long)i);
        fputs(i ? "," : "", file);
        if (columns == 1 && !*text)
            fputs("\"\"", file);
        else
            dtp_table_write_field(file, text);
    }
    fputc('\n', file);
}

static void expect_same(const struct dtp_table *left, const struct dtp_table *right)
{
    expect(dtp_table_row_count(left) == dtp_table_row_count(right));
    expect(dtp_table_column_count(left) == dtp_table_column_count(right));
    for (size_t c = 0; c < dtp_table_column_count(left); c++) {
        expect(!strcmp(dtp_table_column_name(left, c), dtp_table_column_name(right, c)));
        expect(dtp_table_column(left, dtp_table_column_name(left, c)) == (long)c);
        for (size_t r = 0; r < dtp_table_row_count(left); r++)
            expect(!strcmp(dtp_table_text(left, r, (long)c), dtp_table_text(right, r, (long)c)));
    }
}

static void expect_round_trip(const struct dtp_table *table)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *file = open_memstream(&text, &bytes);
    expect(file != NULL);
    write_row(file, table, 0, true);
    for (size_t r = 0; r < dtp_table_row_count(table); r++)
        write_row(file, table, r, false);
    fclose(file);
    struct dtp_table *again = NULL;
    expect(dtp_table_parse("again", text, bytes, &again, NULL) == DTP_OK);
    expect_same(table, again);
    dtp_table_destroy(again);
    free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static struct dtp_faults faults;
    forget_faults(&faults);
    struct dtp_table *table = NULL;
    enum dtp_status status = dtp_table_parse("fuzz.csv", (const char *)data, bytes, &table, &faults);
    expect((status == DTP_OK) == (table != NULL));
    expect_faults(status, &faults);
    size_t last_line = 0;
    for (size_t r = 0; table && r < dtp_table_row_count(table); r++) {
        expect(dtp_table_line(table, r) > last_line);
        last_line = dtp_table_line(table, r);
    }
    if (table)
        expect_round_trip(table);
    dtp_table_destroy(table);
    return 0;
}
