/* What is predicted of frozen jobs (frozen_jobs.h) stays what it is: every figure of plan and simulate and the
 * text of the step program, which is what run executes. tests/golden/frozen_jobs.csv has a row a job and a column a
 * figure. Where one moves, the job is named by its flags and the figure with both values, and a table says how many
 * jobs each figure moved of and how far. DTPLAN_UPDATE=1 rewrites the file and prints the same table, for the commit
 * that says why. */
#include "job/scenario_keys.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <cmocka.h>

#include "lib/frozen_figures.h"
#include "lib/random_draws.h"

#define GOLDEN "tests/golden/frozen_jobs.csv"
#define TOLERANCE 1e-6 /* compilers and machines; seven digits are kept */
#define SHOWN_JOBS 5
#define STRIDE (FROZEN_JOBS / RANDOM_DRAWS(FROZEN_JOBS))

struct moved {
    size_t jobs;
    double largest; /* relative; of what has no size, 0 */
};

struct comparison {
    struct moved moved[FROZEN_MAX_FIGURES];
    size_t jobs, redrawn;
};

/* ---- rows of the file -------------------------------------------------------------------------------------------- */

static void write_row(FILE *file, const struct frozen_figures *f, bool header)
{
    for (size_t i = 0; i < f->count; i++)
        fprintf(file, "%s%s", i ? "," : "", header ? f->figure[i].name : f->figure[i].value);
    fputc('\n', file);
}

/* The next cell of a line, which is cut there; NULL behind the last. */
static char *next_cell(char **rest)
{
    char *cell = *rest;
    if (!cell)
        return NULL;
    char *end = cell + strcspn(cell, ",\n");
    *rest = *end == ',' ? end + 1 : NULL;
    *end = '\0';
    return cell;
}

/* ---- one job against its row ------------------------------------------------------------------------------------- */

static bool same(const struct frozen_figure *now, const char *was)
{
    if (strcmp(now->value, was) == 0)
        return true;
    double a = strtod(was, NULL), b = strtod(now->value, NULL);
    return now->real && fabs(a - b) <= TOLERANCE * fabs(a);
}

static void count_move(struct moved *moved, const struct frozen_figure *now, const char *was)
{
    double a = strtod(was, NULL), b = strtod(now->value, NULL), apart = a != 0 ? fabs(b / a - 1) : 1;
    bool digest = strcmp(now->name, "program.text") == 0 || strstr(now->name, "phases");
    moved->jobs++;
    moved->largest = digest ? 0 : fmax(moved->largest, apart);
}

static void show_job(const struct frozen_job *job)
{
    char words[4096];
    print_error("frozen job %u: dtplan plan%s\n", job->number, frozen_words(job, words, sizeof words));
}

/* Compares a row of the file, which is cut at its commas. */
static void compare_row(const struct frozen_job *job, const struct frozen_figures *f, char *row, struct comparison *c)
{
    bool shown = false;
    for (size_t i = 0; i < f->count; i++) {
        const struct frozen_figure *now = &f->figure[i];
        const char *was = next_cell(&row);
        assert_non_null(was);
        if (same(now, was))
            continue;
        count_move(&c->moved[i], now, was);
        if (!shown && c->jobs < SHOWN_JOBS) {
            show_job(job);
            print_error("    %s was %s, is %s\n", now->name, *was ? was : "0", now->value[0] ? now->value : "0");
        }
        c->jobs += !shown;
        shown = true;
        if (i == 0) { /* of another job nothing can be compared */
            c->redrawn++;
            return;
        }
    }
    assert_null(row);
}

static void show_table(const struct comparison *c, const struct frozen_figures *names)
{
    print_error("%zu jobs moved%s\n", c->jobs,
                c->redrawn ? ", the first figure of each job that is another one: words" : "");
    for (size_t i = 0; i < names->count; i++)
        if (c->moved[i].jobs)
            print_error("  %-36s in %4zu jobs, by at most %.2g %%\n", names->figure[i].name, c->moved[i].jobs,
                        100 * c->moved[i].largest);
}

/* ---- tests ------------------------------------------------------------------------------------------------------- */

/* Whether the columns of the file are the figures there are now. */
static bool same_header(const struct frozen_figures *f, char *row)
{
    for (size_t i = 0; i < f->count; i++) {
        const char *was = next_cell(&row);
        if (!was || strcmp(was, f->figure[i].name) != 0) {
            print_error("column %zu of " GOLDEN " is %s, the figure %s\n", i + 1, was ? was : "none",
                        f->figure[i].name);
            return false;
        }
    }
    return row == NULL;
}

/* Compares job by job with the file as far as that has them, and writes what is now where asked to. */
static void compare_jobs(FILE *old, FILE *new, uint32_t stride, struct comparison *c, bool *same_columns)
{
    static struct frozen_figures figures;
    struct frozen_job frozen;
    struct dtp_job job;
    char *row = NULL;
    size_t bytes = 0;
    for (uint32_t number = 0; number < FROZEN_JOBS; number++) {
        bool known = (number || (old && getline(&row, &bytes, old) > 0)) && *same_columns;
        if (number % stride == 0) {
            frozen_draw(number, &frozen);
            frozen_predict(&frozen, &catalog, &job, &figures);
        }
        if (number == 0 && known)
            known = *same_columns = same_header(&figures, row);
        if (number == 0 && new)
            write_row(new, &figures, true);
        known = known && old && getline(&row, &bytes, old) > 0;
        *same_columns = *same_columns && known;
        if (number % stride)
            continue;
        if (known)
            compare_row(&frozen, &figures, row, c);
        if (new)
            write_row(new, &figures, false);
    }
    free(row);
    show_table(c, &figures);
}

static void test_predictions_stay(void **state)
{
    (void)state;
    bool update = getenv("DTPLAN_UPDATE") != NULL, same_columns = true;
    static struct comparison comparison;
    FILE *old = fopen(GOLDEN, "r"), *new = update ? fopen(GOLDEN ".new", "w") : NULL;
    assert_true(!update || new);
    compare_jobs(old, new, update ? 1 : STRIDE, &comparison, &same_columns);
    if (old)
        fclose(old);
    if (update) {
        assert_int_equal(fclose(new), 0);
        assert_int_equal(rename(GOLDEN ".new", GOLDEN), 0);
    } else if (comparison.jobs || !same_columns) {
        fail_msg(GOLDEN " differs; DTPLAN_UPDATE=1 rewrites it");
    }
}

/* Words that no job has that resolves: what says nothing is chosen or is chosen unasked, and what is always refused. */
static const char undrawn_words[] = " strategy=all runtime=torch recompute_modules=none cuda_graph_modules=none "
                                    "cuda_graph_modules=mlp cuda_graph_modules=moe_preprocess checkpointing=every-N "
                                    "bf16_linears=none fp8_recipe=none optimizer=paged-adam8bit "
                                    "lora_dtype=bf16 lora_dtype=fp16 base=none "
                                    "comm_hook=none gather_engine=sm reduce_engine=sm qk_norm_weight=shared "
                                    "rails=none ";

/* The end of a word of several with bars or signs between. */
static size_t word_bytes(const char *word)
{
    return strcspn(word, "|+");
}

/* Which of the key's words, a bit each in their order, stand in `value`. */
static uint64_t words_of(enum dtp_key key, const char *value)
{
    size_t count;
    const char *word = dtp_scenario_keys(&count)[key].value;
    uint64_t found = 0;
    for (uint64_t bit = 1; word && strchr(dtp_scenario_keys(&count)[key].value, '|') && bit; bit <<= 1) {
        size_t bytes = strcspn(word, "|");
        for (const char *at = value; *at; at += word_bytes(at) + (at[word_bytes(at)] != '\0'))
            found |= (word_bytes(at) == bytes && strncmp(at, word, bytes) == 0) ||
                             (strncmp(value, word, bytes) == 0 && value[bytes] == '\0')
                         ? bit
                         : 0;
        if (!word[bytes])
            break;
        word += bytes + 1;
    }
    return found;
}

/* Says which words of the key no job has; those in capitals stand for others. */
static uint32_t missing_words(enum dtp_key key, uint64_t found)
{
    size_t count;
    uint32_t missing = 0;
    char named[128];
    const char *word = dtp_scenario_keys(&count)[key].value;
    for (uint64_t bit = 1; word && strchr(dtp_scenario_keys(&count)[key].value, '|'); bit <<= 1) {
        size_t bytes = strcspn(word, "|");
        snprintf(named, sizeof named, " %s=%.*s ", dtp_key_name(key), (int)bytes, word);
        if (!(found & bit) && !(*word >= 'A' && *word <= 'Z') && !strstr(undrawn_words, named)) {
            print_error("%.*s is in no job that resolves\n", (int)strlen(named) - 2, named + 1);
            missing++;
        }
        if (!word[bytes])
            break;
        word += bytes + 1;
    }
    return missing;
}

/* A key that no job has is frozen by nothing; one that only refused jobs have, hardly. */
static void test_every_key_is_drawn(void **state)
{
    (void)state;
    static uint32_t resolved[DTP_KEY_COUNT];
    static uint64_t words[DTP_KEY_COUNT];
    static struct dtp_faults faults;
    uint32_t jobs[DTP_RUNTIMES] = {0}, all = 0, missing = 0;
    struct frozen_job frozen;
    struct dtp_job job;
    for (uint32_t number = 0; number < FROZEN_JOBS; number++) {
        memset(&faults, 0, sizeof faults);
        frozen_draw(number, &frozen);
        if (frozen_resolve(&frozen, &catalog, &job, &faults) != DTP_OK)
            continue;
        all++;
        for (int i = 0; i < DTP_RUNTIMES; i++)
            jobs[i] += job.plan.runtime == dtp_runtimes[i];
        for (int key = 0; key < DTP_KEY_COUNT; key++) {
            resolved[key] += frozen.value[key][0] != '\0';
            words[key] |= words_of((enum dtp_key)key, frozen.value[key]);
        }
    }
    for (int key = 0; key < DTP_KEY_COUNT; key++)
        if (resolved[key] < 3 && ++missing)
            print_error("%s is set in %u jobs that resolve\n", dtp_key_name((enum dtp_key)key), resolved[key]);
    for (int key = 0; key < DTP_KEY_COUNT; key++)
        missing += missing_words((enum dtp_key)key, words[key]);
    print_message("%u of %u jobs resolve\n", all, FROZEN_JOBS);
    assert_int_equal(missing, 0);
    for (int i = 0; i < DTP_RUNTIMES; i++) {
        print_message("%u of them under %s\n", jobs[i], dtp_runtimes[i]->name);
        assert_true(jobs[i] >= 100);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_predictions_stay),
        cmocka_unit_test(test_every_key_is_drawn),
    };
    return cmocka_run_group_tests(tests, enter_frozen_jobs, drop_catalog);
}
