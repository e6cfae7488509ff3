/* The accuracy that reports/accuracy.md prints is the accuracy that there is: each row of its tables of throughput, of
 * sources that are left out, and the mean of the sources' medians, against the shipped tables of runs as they are
 * predicted now. A model that got worse fails here or shows in the page's diff; what got better is the page's to say
 * (.ci/update-readme). "README" below is that page. */
#include "runs/leave_one_out.h"
#include "sim/simulated.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "lib/shipped_catalog.h"

#define MARGIN_PCT 0.3 /* README rounds to a tenth; the rest is for a library's last digits */
#define MOST_CELLS 12
#define MOST_SOURCES 16
#define MOST_ROWS 512 /* of one source in all tables */

static const char *const tables[] = {"published_runs.csv", "h200_torch_runs.csv", "holdout_torch_runs.csv",
                                     "holdout_published_runs.csv"}; /* no source of the last is left out of a fit */
enum {
    TABLE_COUNT = sizeof tables / sizeof *tables,
    LEFT_OUT_COUNT = TABLE_COUNT - 1,
    CLOSED = 0,
    SIMULATED,
    FIDELITY_COUNT
};
static struct dtp_backtest *backtests[FIDELITY_COUNT][TABLE_COUNT];
static char *readme;

/* ---- once for all ------------------------------------------------------------------------------------------------ */

static char *read_readme(void)
{
    FILE *file = fopen(TEST_SOURCE_DIR "/reports/accuracy.md", "r");
    char *text = NULL;
    size_t room = 0;
    if (file && getdelim(&text, &room, '\0', file) < 0) {
        free(text);
        text = NULL;
    }
    if (file)
        fclose(file);
    return text;
}

/* The simulation of a pipeline takes a second or more, of hundreds of published ones minutes: groups with such rows are
 * held against README by the closed form alone. */
static enum dtp_status simulate_data_parallel(const void *context, const struct dtp_job *job,
                                              struct dtp_prediction *out, struct dtp_faults *faults)
{
    const struct dtp_predictor *simulated = context;
    if (dtp_plan_model_parallel(&job->plan))
        return dtp_fault(faults, DTP_BAD_INPUT, NULL, 0, "not simulated in this test");
    return simulated->predict(simulated->context, job, out, faults);
}

static int set_up(void **state)
{
    struct dtp_faults faults = {0};
    enum dtp_status status = load_catalog(state) == 0 ? DTP_OK : DTP_ENVIRONMENT;
    const struct dtp_predictor simulated = dtp_predictor_simulated();
    struct dtp_predictor predictors[] = {dtp_predictor_closed(), simulated};
    predictors[SIMULATED].context = &simulated;
    predictors[SIMULATED].predict = simulate_data_parallel;
    for (int f = 0; f < FIDELITY_COUNT; f++)
        for (int t = 0; t < TABLE_COUNT && status == DTP_OK; t++) {
            char path[512];
            snprintf(path, sizeof path, "%s/scenarios/%s", TEST_SOURCE_DIR, tables[t]);
            status = dtp_backtest_run_only(path, NULL, &predictors[f], &catalog, &backtests[f][t], &faults);
        }
    readme = read_readme();
    return status == DTP_OK && readme ? 0 : -1;
}

static int tear_down(void **state)
{
    for (int f = 0; f < FIDELITY_COUNT; f++)
        for (int t = 0; t < TABLE_COUNT; t++)
            dtp_backtest_destroy(backtests[f][t]);
    free(readme);
    return drop_catalog(state);
}

/* ---- a table of README ------------------------------------------------------------------------------------------- */

struct printed_row {
    char *cells[MOST_CELLS]; /* without the blanks around */
    size_t count;
};

static char *trimmed(char *text)
{
    text += strspn(text, " ");
    for (char *end = text + strlen(text); end > text && end[-1] == ' ';)
        *--end = '\0';
    return text;
}

/* Rows of the table between the marks of that name, its two lines of head left out; to free: *text. */
static size_t read_table(const char *name, char **text, struct printed_row *rows, size_t room)
{
    char begin[64], end[64];
    snprintf(begin, sizeof begin, "<!-- BEGIN %s -->\n", name);
    snprintf(end, sizeof end, "<!-- END %s -->\n", name);
    const char *first = strstr(readme, begin), *last = strstr(readme, end);
    assert_true(first && last && first < last);
    first += strlen(begin);
    char *rest = *text = strndup(first, (size_t)(last - first));
    size_t lines = 0, count = 0;
    assert_non_null(rest);
    for (char *line; (line = strsep(&rest, "\n")) != NULL && *line;) {
        if (lines++ < 2)
            continue;
        assert_true(count < room && *line == '|');
        struct printed_row *row = &rows[count++];
        row->count = 0;
        line++;
        for (char *cell; (cell = strsep(&line, "|")) != NULL && line;) {
            assert_true(row->count < MOST_CELLS);
            row->cells[row->count++] = trimmed(cell);
        }
    }
    return count;
}

static double number_of(const char *cell)
{
    char *end;
    double number = strtod(cell, &end);
    if (end == cell || *end)
        fail_msg("'%s' in a table of README is no number", cell);
    return number;
}

static void expect_as_printed(const char *what, int fidelity, double now_pct, const char *cell)
{
    print_message("%-40.40s %-10s README %s %%, now %.2f %%\n", what, fidelity == CLOSED ? "closed" : "simulated", cell,
                  now_pct);
    if (!(now_pct <= number_of(cell) + MARGIN_PCT))
        fail_msg("%s: the median error is %.2f %%, where README says %s %%", what, now_pct, cell);
}

/* ---- throughput -------------------------------------------------------------------------------------------------- */

static bool ends_in(const char *text, const char *end)
{
    size_t length = strlen(text), tail = strlen(end);
    return length >= tail && strcmp(text + length - tail, end) == 0;
}

/* Whether any scored row of a source (SIZE_MAX: of any) has tensor or pipeline parallelism. */
static bool has_slices(const struct dtp_backtest *b, size_t source)
{
    for (size_t i = 0; i < b->row_count; i++)
        if (b->rows[i].verdict == DTP_BACKTEST_OK && (source == SIZE_MAX || b->rows[i].source_group == source) &&
            !dtp_run_is_data_parallel(&b->rows[i].run))
            return true;
    return false;
}

/* A row begins with "source:" and may end in a number format; one of a whole table names its file. */
static void find_group(const char *words, int fidelity, size_t *scored, double *median_pct, bool *sliced)
{
    for (int t = 0; t < TABLE_COUNT; t++) {
        const char *at = strstr(words, tables[t]);
        if (at && at > words && at[-1] == '`') {
            *scored = backtests[fidelity][t]->scored;
            *median_pct = backtests[fidelity][t]->throughput.median_abs_pct;
            *sliced = has_slices(backtests[CLOSED][t], SIZE_MAX);
            return;
        }
    }
    const struct dtp_backtest *b = backtests[fidelity][0];
    char source[64], typed[80] = "?";
    size_t length = strcspn(words, ":");
    snprintf(source, sizeof source, "/%.*s", (int)length, words);
    if (ends_in(words, " bf16") || ends_in(words, " fp8"))
        snprintf(typed, sizeof typed, "%s, %s", source, strrchr(words, ' ') + 1);
    for (size_t i = 0; i < b->source_count + b->dtype_count; i++) {
        const struct dtp_backtest_group *group = i < b->source_count ? &b->sources[i] : &b->dtypes[i - b->source_count];
        if (ends_in(group->name, *typed == '?' ? source : typed)) {
            *scored = group->scored;
            *median_pct = group->throughput.median_abs_pct;
            *sliced = has_slices(backtests[CLOSED][0], b->rows[group->first_row].source_group);
            return;
        }
    }
    fail_msg("README has a row '%s', which is no source", words);
}

/* "16, 8 of 27": by formulas and by simulation; "35 of 35" is both. */
static void expect_scored(const char *words, const char *cell, const size_t scored[FIDELITY_COUNT], bool sliced)
{
    unsigned long closed, simulated;
    int read = sscanf(cell, "%lu, %lu of", &closed, &simulated);
    assert_true(read >= 1);
    if (read == 1)
        simulated = closed;
    if (scored[CLOSED] < closed || (!sliced && scored[SIMULATED] < simulated))
        fail_msg("%s: %zu and %zu rows are scored, where README says %s", words, scored[CLOSED], scored[SIMULATED],
                 cell);
}

static void test_throughput(void **state)
{
    static const size_t median_cell[] = {2, 5};
    struct printed_row rows[32];
    char *text;
    (void)state;
    size_t count = read_table("throughput", &text, rows, 32);
    assert_true(count >= 10);
    for (size_t i = 0; i < count; i++) {
        size_t scored[FIDELITY_COUNT];
        bool sliced = false;
        assert_int_equal(rows[i].count, 10);
        for (int f = 0; f < FIDELITY_COUNT; f++) {
            double median_pct = 0;
            find_group(rows[i].cells[0], f, &scored[f], &median_pct, &sliced);
            if (f == CLOSED || !sliced)
                expect_as_printed(rows[i].cells[0], f, median_pct, rows[i].cells[median_cell[f]]);
        }
        expect_scored(rows[i].cells[0], rows[i].cells[1], scored, sliced);
    }
    free(text);
}

/* ---- each source, and all of them alike -------------------------------------------------------------------------- */

struct source {
    const char *name;
    double errors_pct[MOST_ROWS];
    size_t count;
};

/* Of data-parallel runs, which are those that leaving out is about. */
static size_t collect(int fidelity, struct source *sources)
{
    size_t count = 0;
    for (int t = 0; t < LEFT_OUT_COUNT; t++) {
        const struct dtp_backtest *b = backtests[fidelity][t];
        for (size_t i = 0; i < b->row_count; i++) {
            if (b->rows[i].verdict != DTP_BACKTEST_OK || isnan(b->rows[i].error_pct) ||
                !dtp_run_is_data_parallel(&b->rows[i].run))
                continue;
            const char *name = b->sources[b->rows[i].source_group].name;
            size_t at = 0;
            while (at < count && strcmp(sources[at].name, name) != 0)
                at++;
            assert_true(at < MOST_SOURCES && (at == count || sources[at].count < MOST_ROWS));
            if (at == count)
                sources[count++] = (struct source){.name = name};
            sources[at].errors_pct[sources[at].count++] = b->rows[i].error_pct;
        }
    }
    return count;
}

static void test_sources_and_their_mean(void **state)
{
    static const size_t shipped_cell[] = {4, 7};
    static struct source sources[MOST_SOURCES];
    struct printed_row rows[32];
    char *text;
    (void)state;
    size_t printed = read_table("left_out", &text, rows, 32);
    for (int f = 0; f < FIDELITY_COUNT; f++) {
        size_t count = collect(f, sources), found = 0;
        double sum_pct = 0;
        for (size_t i = 0; i < count; i++) {
            double median_pct = dtp_error_statistics(sources[i].errors_pct, sources[i].count).median_abs_pct;
            sum_pct += median_pct;
            for (size_t k = 0; k + 1 < printed; k++)
                if (strncmp(sources[i].name, rows[k].cells[0], strlen(rows[k].cells[0])) == 0) {
                    expect_as_printed(rows[k].cells[0], f, median_pct, rows[k].cells[shipped_cell[f]]);
                    found++;
                }
        }
        assert_int_equal(found, printed - 1); /* the last is their mean */
        assert_int_equal(found, count);
        expect_as_printed(rows[printed - 1].cells[0], f, sum_pct / (double)count,
                          rows[printed - 1].cells[shipped_cell[f]]);
    }
    free(text);
}

/* By the closed form; simulations take the same fits. A fit with kinks settles a little differently elsewhere. */
static void test_sources_left_out(void **state)
{
    static const size_t count_cell = 2, median_cell = 3;
    struct printed_row rows[32];
    char *text, paths[LEFT_OUT_COUNT][512];
    const char *named[LEFT_OUT_COUNT];
    struct dtp_faults faults = {0};
    struct dtp_leave_one_out *now;
    struct dtp_predictor closed = dtp_predictor_closed();
    (void)state;
    for (int t = 0; t < LEFT_OUT_COUNT; t++) {
        snprintf(paths[t], sizeof paths[t], "%s/scenarios/%s", TEST_SOURCE_DIR, tables[t]);
        named[t] = paths[t];
    }
    size_t printed = read_table("left_out", &text, rows, 32);
    assert_int_equal(dtp_leave_one_out_run(named, LEFT_OUT_COUNT, &closed, &closed, &catalog, NULL, &now, &faults),
                     DTP_OK);
    assert_int_equal(now->source_count, printed - 1);
    for (size_t i = 0; i < now->source_count; i++) {
        assert_string_equal(now->sources[i].source, rows[i].cells[0]);
        assert_true((double)now->sources[i].given_up_count == number_of(rows[i].cells[count_cell]));
        expect_as_printed(now->sources[i].source, CLOSED, now->sources[i].left_out.median_abs_pct,
                          rows[i].cells[median_cell]);
    }
    expect_as_printed("mean of the medians, left out", CLOSED, now->macro_left_out_pct,
                      rows[printed - 1].cells[median_cell]);
    dtp_leave_one_out_destroy(now);
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_throughput),
        cmocka_unit_test(test_sources_and_their_mean),
        cmocka_unit_test(test_sources_left_out),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
