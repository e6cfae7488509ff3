#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "lib/golden.h"
#include "lib/schedule_fixture.h"

#include "schedule/schedule_print.h"

static void print(FILE *file, struct dtp_schedule_shape shape, const char *words, const double costs[4], int columns)
{
    struct timed t;
    timed_make(&t, shape, DTP_SEND_BUFFERED);
    timed_run(&t, costs[0], costs[1], costs[2], costs[3]);
    fprintf(file, "%s, %u micro-batches, F B W %g %g %g%s: bubble %.4g of %.4g\n", dtp_schedule_row(shape.kind)->word,
            shape.micro_batches, costs[0], costs[1], costs[2], words, t.timing.bubble_s, t.timing.makespan_s);
    long before = ftell(file);
    assert_true(dtp_schedule_print(&t.schedule, &t.timing, columns, file));
    assert_true(ftell(file) > before);
    fputc('\n', file);
    timed_release(&t);
}

/* Each schedule as its paper draws it, for people to look at. */
static void test_pictures(void **state)
{
    (void)state;
    static const double even[4] = {1, 1, 1, 0}, uneven[4] = {1, 1.2, 0.6, 0.2};
    char *text = NULL;
    size_t bytes = 0;
    FILE *file = open_memstream(&text, &bytes);
    assert_non_null(file);
    for (int kind = 0; kind < DTP_SCHEDULE_COUNT; kind++)
        print(file, (struct dtp_schedule_shape){(enum dtp_schedule_kind)kind, 4, 8, 0, 0}, "", even, 200);
    print(file, (struct dtp_schedule_shape){DTP_SCHEDULE_DUALPIPE, 8, 20, 0, 0}, "", even, 120);
    print(file, (struct dtp_schedule_shape){DTP_SCHEDULE_1F1B, 4, 8, 0, 0}, " sends 0.2", uneven, 120);
    fclose(file);
    golden_compare("schedules.txt", text);
    free(text);
}

/* Every pass is in the picture once, and no line is wider than it may be. */
static void test_every_pass_is_drawn(void **state)
{
    (void)state;
    for (int kind = 0; kind < DTP_SCHEDULE_COUNT; kind++)
        for (int columns = 40; columns <= 400; columns *= 3) {
            static const double even[4] = {1, 1, 1, 0};
            struct timed t;
            char *text = NULL;
            size_t bytes = 0, letters = 0, lines = 0;
            timed_make(&t, (struct dtp_schedule_shape){(enum dtp_schedule_kind)kind, 4, 12, 0, 0}, DTP_SEND_BUFFERED);
            timed_run(&t, even[0], even[1], even[2], even[3]);
            FILE *file = open_memstream(&text, &bytes);
            assert_non_null(file);
            assert_true(dtp_schedule_print(&t.schedule, &t.timing, columns, file));
            fclose(file);
            for (const char *line = text; *line; line += strcspn(line, "\n") + 1, lines++)
                assert_true(strcspn(line, "\n") <= (size_t)columns);
            for (const char *c = text; *c; c++)
                letters += strchr("FBWbw", *c) != NULL || (*c == 'f' && strncmp(c, "from", 4) != 0);
            assert_int_equal(letters, dtp_schedule_pass_count(&t.schedule));
            assert_int_equal(lines, dtp_schedule_print_lines(&t.schedule, &t.timing, columns));
            free(text);
            timed_release(&t);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_pictures), cmocka_unit_test(test_every_pass_is_drawn)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
