#include "base/table.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <cmocka.h>

static struct dtp_faults faults; /* 16 KiB: static, cleared by parse() */

static struct dtp_table *parse_bytes(const char *text, size_t bytes)
{
    struct dtp_table *table = NULL;
    memset(&faults, 0, sizeof faults);
    enum dtp_status status = dtp_table_parse("t.csv", text, bytes, &table, &faults);
    assert_int_equal(status, faults.status);
    assert_true((status == DTP_OK) == (table != NULL));
    return table;
}

static struct dtp_table *parse(const char *text)
{
    return parse_bytes(text, strlen(text));
}

/* The whole list of faults, so that a test sees one too many as well. */
static void assert_refused_bytes(const char *text, size_t bytes, size_t count, const char *const *expected)
{
    struct dtp_table *table = parse_bytes(text, bytes);
    assert_null(table);
    assert_int_equal(faults.status, DTP_BAD_INPUT);
    for (size_t i = 0; i < count && i < faults.count; i++)
        assert_string_equal(faults.text[i], expected[i]);
    assert_int_equal(faults.count, count);
}

static void assert_refused(const char *text, const char *expected)
{
    assert_refused_bytes(text, strlen(text), 1, &expected);
}

static void assert_cell(const struct dtp_table *table, size_t row, const char *column, const char *expected)
{
    assert_string_equal(dtp_table_text(table, row, dtp_table_column(table, column)), expected);
}

static void test_plain(void **state)
{
    (void)state;
    struct dtp_table *table =
        parse("# comment, with \"quote\nkey,value\n\na,1\n# more\n b c\t, 2 \n\"x,\"\"y\"\"\",\" 3 \"\n");
    assert_non_null(table);
    assert_string_equal(dtp_table_name(table), "t.csv");
    assert_int_equal(dtp_table_row_count(table), 3);
    assert_int_equal(dtp_table_column_count(table), 2);
    assert_string_equal(dtp_table_column_name(table, 1), "value");
    assert_int_equal(dtp_table_column(table, "missing"), -1);
    assert_string_equal(dtp_table_text(table, 0, -1), "");
    assert_cell(table, 0, "key", "a");
    assert_cell(table, 1, "key", "b c");
    assert_cell(table, 1, "value", "2");
    assert_cell(table, 2, "key", "x,\"y\"");
    assert_cell(table, 2, "value", " 3 ");
    assert_int_equal(dtp_table_line(table, 0), 4);
    assert_int_equal(dtp_table_line(table, 1), 6);
    assert_int_equal(dtp_table_line(table, 2), 7);
    dtp_table_destroy(table);
    dtp_table_destroy(NULL);
}

static void test_line_ends_and_byte_order_mark(void **state)
{
    (void)state;
    struct dtp_table *table = parse("\xef\xbb\xbfkey,value\r\na,1\r\n\r\n\"b\",\"2\"");
    assert_non_null(table);
    assert_int_equal(dtp_table_row_count(table), 2);
    assert_int_equal(dtp_table_column(table, "key"), 0);
    assert_cell(table, 0, "value", "1");
    assert_cell(table, 1, "value", "2");
    assert_int_equal(dtp_table_line(table, 1), 4);
    dtp_table_destroy(table);

    table = parse("a,b\n1,");
    assert_non_null(table);
    assert_cell(table, 0, "b", "");
    dtp_table_destroy(table);
}

static void test_lines_after_a_field_of_several_lines(void **state)
{
    (void)state;
    struct dtp_table *table = parse("a,b\n\"one\n#two\r\n\nfour\",x\n5,6\n");
    assert_non_null(table);
    assert_cell(table, 0, "a", "one\n#two\r\n\nfour");
    assert_int_equal(dtp_table_line(table, 0), 2);
    assert_int_equal(dtp_table_line(table, 1), 6);
    dtp_table_destroy(table);
}

static void test_header_only(void **state)
{
    (void)state;
    struct dtp_table *table = parse("a,b");
    assert_non_null(table);
    assert_int_equal(dtp_table_row_count(table), 0);
    dtp_table_destroy(table);
}

static void test_empty(void **state)
{
    (void)state;
    const char *message = "t.csv: the table is empty; its first line must name the columns";
    assert_refused("", message);
    assert_refused("\n\r\n  \t\n", message);
    assert_refused("# only a comment", message);
    assert_refused("\xef\xbb\xbf", message);
}

static void test_bad_headers(void **state)
{
    (void)state;
    assert_refused("a,,b\n1,2\n", "t.csv:1: column 2 of the header has no name");
    assert_refused("a;b\n1;2\n", "t.csv:1: columns stand between semicolons; save the table with commas between them");
    assert_refused("a\tb\n1\t2\n", "t.csv:1: columns stand between tabs; save the table with commas between them");
    assert_refused("#\na,b,a\n1\n", "t.csv:2: column 'a' appears more than once in the header");
    assert_refused("a,b\"\n1\n",
                   "t.csv:1: a quote inside a field (the row begins on line 1); write the field in quotes and the "
                   "quote twice");
    assert_refused("a,\"b", "t.csv:1: a quote opened in this row is never closed; is the file cut short?");
    assert_refused("\xff\xfe"
                   "a,b",
                   "t.csv:1: the file is in UTF-16; save it as UTF-8");
}

static void test_all_faults_at_once(void **state)
{
    (void)state;
    const char text[] = "a,b\n1\nok,ok\n1,2,3\nx\0y,2\nx\"y,2\n\"x\"y,2\n\"x\" \"y\",2\np\rq,1\nok,\"cut";
    const char *const expected[] = {
        "t.csv:2: the row has 1 field, the header 2 columns",
        "t.csv:4: the row has 3 fields, the header 2 columns",
        "t.csv:5: a NUL byte; the file is not a text file in UTF-8",
        "t.csv:6: a quote inside a field (the row begins on line 6); write the field in quotes and the quote twice",
        "t.csv:7: a quote inside a field (the row begins on line 7); write the field in quotes and the quote twice",
        "t.csv:8: a quote inside a field (the row begins on line 8); write the field in quotes and the quote twice",
        "t.csv:9: a carriage return without a line feed; save with LF or CRLF line ends",
        "t.csv:10: a quote opened in this row is never closed; is the file cut short?",
    };
    assert_refused_bytes(text, sizeof text - 1, sizeof expected / sizeof *expected, expected);
}

static char *repeat(const char *unit, size_t count, const char *before, const char *after, size_t *bytes)
{
    size_t unit_bytes = strlen(unit), before_bytes = strlen(before), after_bytes = strlen(after);
    char *text = malloc(before_bytes + count * unit_bytes + after_bytes + 1);
    assert_non_null(text);
    memcpy(text, before, before_bytes);
    for (size_t i = 0; i < count; i++)
        memcpy(text + before_bytes + i * unit_bytes, unit, unit_bytes);
    memcpy(text + before_bytes + count * unit_bytes, after, after_bytes + 1);
    *bytes = before_bytes + count * unit_bytes + after_bytes;
    return text;
}

static void test_wide_rows(void **state)
{
    (void)state;
    size_t bytes;
    char *text = repeat("x,", 99999, "", "x\n1\n", &bytes);
    const char *header[] = {"t.csv:1: the header has 100000 columns; at most 4096 are read"};
    assert_refused_bytes(text, bytes, 1, header);
    free(text);

    text = repeat("x,", 99999, "a,b\n", "x\n1,2\n", &bytes);
    const char *row[] = {"t.csv:2: the row has 100000 fields, the header 2 columns"};
    assert_refused_bytes(text, bytes, 1, row);
    free(text);
}

static void test_field_sizes(void **state)
{
    (void)state;
    size_t bytes;
    char *text = repeat("x", DTP_TABLE_MAX_FIELD_BYTES, "a,b\n", ",2\n", &bytes);
    struct dtp_table *table = parse_bytes(text, bytes);
    assert_non_null(table);
    assert_int_equal(strlen(dtp_table_text(table, 0, 0)), DTP_TABLE_MAX_FIELD_BYTES);
    dtp_table_destroy(table);
    free(text);

    text = repeat("x", DTP_TABLE_MAX_FIELD_BYTES + 1, "a,b\n", ",2\n", &bytes);
    assert_null(parse_bytes(text, bytes));
    assert_int_equal(faults.count, 1);
    free(text);

    text = repeat("x\n", 1000000, "a,b\n1,\"", "", &bytes); /* an unterminated quote does not swallow the file */
    const char *unclosed[] = {"t.csv:2: a field is longer than 65536 bytes; is a closing quote missing?"};
    assert_refused_bytes(text, bytes, 1, unclosed);
    free(text);
}

static double seconds_to_parse(const char *unit, size_t count, const char *before)
{
    size_t bytes;
    char *text = repeat(unit, count, before, "\n", &bytes);
    clock_t begin = clock();
    dtp_table_destroy(parse_bytes(text, bytes));
    double seconds = (double)(clock() - begin) / CLOCKS_PER_SEC;
    free(text);
    return seconds;
}

/* Shapes that make a careless reader quadratic: 8 times the input may take 8 times as long; 40 leaves room for a busy
 * machine, and a quadratic reader would need 64. */
static void test_linear_time(void **state)
{
    (void)state;
    const struct {
        const char *unit, *before;
    } shapes[] = {{"1,2\n", "a,b\n"}, {"\n", "a\n"}, {",", "a\n"}, {"\"\"\n", "a\n"}, {"#\n", "a\n"},
                  {"\r", "a\n"},      {"\"", "a\n"}, {" ", "a\n"}, {"\"\n", "a\n"}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        double small = seconds_to_parse(shapes[i].unit, 1u << 17, shapes[i].before);
        double large = seconds_to_parse(shapes[i].unit, 1u << 20, shapes[i].before);
        assert_true(large < 0.2 + 40 * small);
    }
}

/* Cut anywhere, a file is either a table or refused: it never reads beyond its end (run under ASan). */
static void test_every_prefix(void **state)
{
    (void)state;
    const char text[] = "\xef\xbb\xbf# c\r\na,\"b\",c\r\n1,\"2\n\"\"x\"\"\",3\r\n\"\",,\"\"\r\n";
    for (size_t bytes = 0; bytes < sizeof text; bytes++) {
        char *copy = malloc(bytes ? bytes : 1);
        memcpy(copy, text, bytes);
        dtp_table_destroy(parse_bytes(copy, bytes));
        free(copy);
    }
}

static void test_faults_may_be_ignored(void **state)
{
    (void)state;
    struct dtp_table *table = NULL;
    assert_int_equal(dtp_table_parse("t.csv", "a\n1,2\n", 6, &table, NULL), DTP_BAD_INPUT);
    assert_null(table);
}

static void test_files(void **state)
{
    (void)state;
    struct dtp_table *table = NULL;
    memset(&faults, 0, sizeof faults);
    assert_int_equal(dtp_table_read("/nonexistent/t.csv", &table, &faults), DTP_BAD_INPUT);
    assert_string_equal(faults.text[0], "/nonexistent/t.csv: cannot open: No such file or directory");
    assert_int_equal(dtp_table_read("/", &table, &faults), DTP_BAD_INPUT);
    assert_string_equal(faults.text[1], "/: is a folder");
    assert_null(table);

    char path[] = "/tmp/dtp_table_XXXXXX";
    int descriptor = mkstemp(path);
    FILE *file = fdopen(descriptor, "w");
    fputs("a,b\n", file);
    for (int i = 0; i < 100000; i++)
        fprintf(file, "%d,\n", i);
    fclose(file);
    assert_int_equal(dtp_table_read(path, &table, &faults), DTP_OK);
    assert_int_equal(dtp_table_row_count(table), 100000);
    assert_cell(table, 99999, "a", "99999");
    dtp_table_destroy(table);
    unlink(path);
}

static void test_written_fields_are_read_back(void **state)
{
    (void)state;
    const char *const fields[] = {"plain",    "",      "a,b",           "say \"x\"",      "two\nlines",
                                  "cr\r\nlf", " lead", "trail ",        "#not a comment", "\t",
                                  "\"",       "a'b;c", "\xef\xbb\xbfx", "\xff\xfe"};
    const size_t count = sizeof fields / sizeof *fields;
    char *text = NULL;
    size_t bytes = 0;
    FILE *file = open_memstream(&text, &bytes);
    fputs("x,y\n", file);
    for (size_t i = 0; i < count; i++) {
        dtp_table_write_field(file, fields[i]);
        fputs(",", file);
        dtp_table_write_field(file, fields[count - 1 - i]);
        fputs("\n", file);
    }
    fclose(file);
    assert_non_null(strstr(text, "plain,"));
    assert_non_null(strstr(text, "\"say \"\"x\"\"\","));
    struct dtp_table *table = parse_bytes(text, bytes);
    assert_non_null(table);
    assert_int_equal(dtp_table_row_count(table), count);
    for (size_t i = 0; i < count; i++) {
        assert_cell(table, i, "x", fields[i]);
        assert_cell(table, i, "y", fields[count - 1 - i]);
    }
    dtp_table_destroy(table);
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plain),
        cmocka_unit_test(test_line_ends_and_byte_order_mark),
        cmocka_unit_test(test_lines_after_a_field_of_several_lines),
        cmocka_unit_test(test_header_only),
        cmocka_unit_test(test_empty),
        cmocka_unit_test(test_bad_headers),
        cmocka_unit_test(test_all_faults_at_once),
        cmocka_unit_test(test_wide_rows),
        cmocka_unit_test(test_field_sizes),
        cmocka_unit_test(test_linear_time),
        cmocka_unit_test(test_every_prefix),
        cmocka_unit_test(test_faults_may_be_ignored),
        cmocka_unit_test(test_files),
        cmocka_unit_test(test_written_fields_are_read_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
