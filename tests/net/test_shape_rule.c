#include "net/models.h"
#include "net/transformer.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

static struct dtp_transformer shape_of(double parameters)
{
    struct dtp_transformer t;
    struct dtp_faults faults = {0};
    if (dtp_transformer_from_parameters(parameters, &t, &faults) != DTP_OK)
        fail_msg("N = %g: %s", parameters, faults.text[0]);
    return t;
}

static double count(struct dtp_transformer t)
{
    return (double)dtp_transformer_count(&t).total;
}

/* Field by field, for padding may differ. */
static bool same_shape(const struct dtp_transformer *a, const struct dtp_transformer *b)
{
    return a->layers == b->layers && a->hidden == b->hidden && a->heads == b->heads && a->kv_heads == b->kv_heads &&
           a->head_dim == b->head_dim && a->ffn == b->ffn && a->vocab == b->vocab && a->norm == b->norm &&
           a->activation == b->activation && a->position == b->position && a->tied_head == b->tied_head &&
           dtp_transformer_count(a).total == dtp_transformer_count(b).total;
}

static void test_patterns_are_the_catalogue_rows(void **state)
{
    (void)state;
    struct dtp_table *table = NULL;
    struct dtp_faults faults = {0};
    assert_int_equal(dtp_table_read(TEST_SOURCE_DIR "/scenarios/models.csv", &table, &faults), DTP_OK);
    struct dtp_transformer pattern, row;
    double last = 0;
    size_t i = 0;
    for (; dtp_transformer_pattern(i, &pattern); i++) {
        size_t r = 0;
        while (r < dtp_table_row_count(table) &&
               strcmp(dtp_table_text(table, r, dtp_table_column(table, "key")), pattern.name))
            r++;
        assert_true(r < dtp_table_row_count(table));
        assert_int_equal(dtp_transformer_from_row(table, r, &row, &faults), DTP_OK);
        assert_true(same_shape(&row, &pattern));
        assert_true(count(pattern) > last);
        last = count(pattern);
    }
    assert_int_equal(i, 12);
    dtp_table_destroy(table);
}

/* What people ask for first. */
static void test_known_numbers(void **state)
{
    (void)state;
    struct dtp_transformer t = shape_of(7e9);
    assert_string_equal(t.name, "llama-like 7.0B");
    assert_int_equal(t.hidden, 4096);
    assert_int_equal(t.heads, 32);
    assert_int_equal(t.kv_heads, 32);
    assert_int_equal(t.vocab, 32000);
    assert_int_equal(t.layers, 33);
    assert_true(fabs(count(t) / 7e9 - 1) < 0.002);
    t = shape_of(13e9); /* 0.1 % off: Llama 2 13B itself */
    assert_string_equal(t.name, "llama-2-13b");
    assert_int_equal(count(t), 13015864320);
    assert_string_equal(shape_of(8e9).name, "llama-3-8b");
    assert_string_equal(shape_of(70e9).name, "llama-3-70b");
    assert_string_equal(shape_of(125e6).name, "llama-like 125M");
    assert_string_equal(shape_of(1e12).name, "llama-like 1.0T");
}

/* 2,000 values, log-uniform from 1e5 to 9e14 (xorshift64, seed printed). */
static void test_every_count_is_reached_within_two_percent(void **state)
{
    (void)state;
    uint64_t seed = 20240607, bits = seed;
    double worst = 0, worst_parameters = 0;
    for (int i = 0; i < 2000; i++) {
        bits ^= bits << 13, bits ^= bits >> 7, bits ^= bits << 17;
        double parameters = pow(10, 5.0 + 9.954 * (double)(bits >> 11) * 0x1p-53);
        struct dtp_transformer t = shape_of(parameters), again = shape_of(parameters);
        struct dtp_faults faults = {0};
        assert_int_equal(dtp_transformer_check(&t, NULL, 0, &faults), DTP_OK);
        assert_true(same_shape(&t, &again));
        assert_int_equal(t.heads * t.head_dim, t.hidden);
        assert_int_equal(t.max_sequence, 0);
        double error = fabs(count(t) / parameters - 1);
        if (error > worst)
            worst = error, worst_parameters = parameters;
    }
    print_message("seed %llu: worst error %.3f %% at %g\n", (unsigned long long)seed, 100 * worst, worst_parameters);
    assert_true(worst <= 0.02);
}

/* From 1e8 on, where people plan, the proportions stay those of real models. */
static void test_shapes_look_like_models(void **state)
{
    (void)state;
    for (double parameters = 1e8; parameters < 2e12; parameters *= 1.013) {
        struct dtp_transformer t = shape_of(parameters), pattern;
        dtp_transformer_pattern(dtp_transformer_nearest_pattern(parameters), &pattern);
        double depth = (double)t.hidden / (double)t.layers, depth0 = (double)pattern.hidden / (double)pattern.layers;
        double width = (double)t.ffn / (double)t.hidden, width0 = (double)pattern.ffn / (double)pattern.hidden;
        if (!(depth > depth0 / 2 && depth < depth0 * 2 && fabs(width / width0 - 1) < 0.12 && t.heads % 4 == 0))
            fail_msg("N = %g gives L %d h %d heads %d ffn %d", parameters, (int)t.layers, (int)t.hidden, (int)t.heads,
                     (int)t.ffn);
    }
}

static void test_impossible_counts_are_refused(void **state)
{
    (void)state;
    static const double bad[] = {0, -7e9, 1, 1000, 1.1e15, 1e300};
    struct dtp_transformer t;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct dtp_faults faults = {0};
        assert_int_equal(dtp_transformer_from_parameters(bad[i], &t, &faults), DTP_BAD_INPUT);
        assert_int_equal(faults.count, 1);
    }
    struct dtp_faults faults = {0};
    assert_int_equal(dtp_transformer_from_parameters((double)NAN, &t, &faults), DTP_BAD_INPUT);
    assert_int_equal(dtp_transformer_from_parameters((double)INFINITY, &t, &faults), DTP_BAD_INPUT);
    assert_int_equal(dtp_transformer_from_parameters(1000, &t, &faults), DTP_BAD_INPUT);
    assert_non_null(strstr(faults.text[2], "the nearest has "));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_patterns_are_the_catalogue_rows), cmocka_unit_test(test_known_numbers),
        cmocka_unit_test(test_every_count_is_reached_within_two_percent),
        cmocka_unit_test(test_shapes_look_like_models), cmocka_unit_test(test_impossible_counts_are_refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
