/* libdtplan as programs call it: the program's own answers, from many threads at once, and a message for whatever is
 * wrong. DTPLAN_TEST_CALLS (default 2000) is how often it is called to see that nothing is left behind; 10^6 take some
 * ten minutes on one core under asan. */
#include "cli/library/dtplan.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <locale.h>
#include <malloc.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define THREADS 6
#define KEPT_BYTES (64 << 10) /* of what malloc still holds after many calls: room of the C library's own */

/* dtplan_plan and its like. */
#define ASK(name) enum dtplan_status (*name)(const struct dtplan *, const char *, const char *const *, char **, char **)

static struct dtplan *open_library(void)
{
    struct dtplan *d;
    char *messages;
    assert_int_equal(dtplan_create(TEST_SOURCE_DIR "/scenarios", NULL, &d, &messages), DTPLAN_OK);
    assert_null(messages);
    return d;
}

/* What the program prints. */
static char *program_says(const char *words)
{
    char line[1024], *text = NULL;
    size_t bytes = 0;
    snprintf(line, sizeof line, "DTPLAN_DATA='%s/scenarios' '%s/dtplan' %s 2>/dev/null", TEST_SOURCE_DIR,
             TEST_BINARY_DIR, words);
    FILE *from = popen(line, "r"), *into = open_memstream(&text, &bytes);
    assert_true(from && into);
    for (int c; (c = getc(from)) != EOF;)
        putc(c, into);
    pclose(from);
    fclose(into);
    return text;
}

static void is_answered(const struct dtplan *d, ASK(question), const char *const *settings, enum dtplan_status expected,
                        const char *words)
{
    char *answer, *messages, *said = program_says(words);
    assert_int_equal(question(d, NULL, settings, &answer, &messages), expected);
    assert_non_null(answer);
    assert_string_equal(answer, said);
    dtplan_free(answer);
    dtplan_free(messages);
    free(said);
}

static void test_answers_are_the_programs(void **state)
{
    struct dtplan *d = *state;
    const char *const job[] = {"model=llama-7b", "gpus=8", "gpu=h100-sxm", "strategy=full_shard", "compile", NULL};
    const char *const all[] = {"params=7B", "gpus=8", "strategy=all", "fidelity=bounds", NULL};
    const char *const too_large[] = {"params=70B", "gpus=2", "no_compile", NULL};
    const char *const fewest[] = {"params=13B", "min_gpus", NULL};
    const char *const list[] = {"model=gpt2", "gpus=8..32x2", "strategy=ddp,full_shard,zero3", "gpu=a10", NULL};
    const char *const tokens[] = {"params=1B", "gpus=2,4", "gpu=a10", "tokens=200M", "strategy=full_shard,ddp", NULL};
#define JOB "--model llama-7b --gpus 8 --gpu h100-sxm --strategy full_shard --compile"
    is_answered(d, dtplan_plan, job, DTPLAN_OK, "plan " JOB " --json");
    is_answered(d, dtplan_simulate, job, DTPLAN_OK, "simulate " JOB " --json");
    is_answered(d, dtplan_explain, job, DTPLAN_OK, "explain " JOB " --json");
    is_answered(d, dtplan_whatif, job, DTPLAN_OK, "whatif " JOB " --json");
    is_answered(d, dtplan_plan, all, DTPLAN_OK, "plan --params 7B --gpus 8 --strategy all --fidelity bounds --json");
    is_answered(d, dtplan_plan, too_large, DTPLAN_NO, "plan --params 70B --gpus 2 --json");
    is_answered(d, dtplan_plan, fewest, DTPLAN_OK, "plan --params 13B --min-gpus --json");
    is_answered(d, dtplan_sweep, list, DTPLAN_OK,
                "sweep --model gpt2 --gpus 8..32x2 --strategy ddp,full_shard,zero3 --gpu a10");
    is_answered(d, dtplan_search, tokens, DTPLAN_OK,
                "search --params 1B --gpus 2,4 --gpu a10 --tokens 200M --strategy full_shard,ddp --json");
    char *answer, *messages, *said = program_says("backtest '" TEST_SOURCE_DIR "/tests/data/runs.csv' --json");
    const char *const tables[] = {TEST_SOURCE_DIR "/tests/data/runs.csv", NULL};
    assert_int_equal(dtplan_backtest(d, tables, NULL, &answer, &messages), DTPLAN_OK);
    assert_string_equal(answer, said);
    dtplan_free(answer);
    dtplan_free(messages);
    free(said);
}

/* A scenario's text is what a file would be; settings stand above it, and a fault of it names its line. */
static void test_scenario_is_text(void **state)
{
    struct dtplan *d = *state;
    const char *text = "[model]\nparams = 7e9\n[cluster]\ngpus = 4\n[plan]\nstrategy = full_shard\n";
    const char *const settings[] = {"gpus=8", NULL};
    char *answer, *messages, *said = program_says("plan --params 7e9 --gpus 8 --strategy full_shard --json");
    assert_int_equal(dtplan_plan(d, text, settings, &answer, &messages), DTPLAN_OK);
    assert_string_equal(answer, said);
    dtplan_free(answer);
    free(said);
    assert_int_equal(dtplan_plan(d, "[model]\nparams = 7e9\nlairs = 3\n", NULL, &answer, &messages), DTPLAN_BAD_INPUT);
    assert_null(answer);
    assert_non_null(strstr(messages, "scenario:3: "));
    dtplan_free(messages);
}

static void is_refused(const struct dtplan *d, ASK(question), const char *const *settings, const char *words)
{
    char *answer = (char *)1, *messages = (char *)1;
    assert_int_equal(question(d, NULL, settings, &answer, &messages), DTPLAN_BAD_INPUT);
    assert_null(answer);
    assert_non_null(messages);
    if (!strstr(messages, words))
        fail_msg("'%s' is not in '%s'", words, messages);
    dtplan_free(messages);
}

static void test_bad_input_is_told(void **state)
{
    struct dtplan *d = *state;
    char *longest = malloc(1 << 20);
    assert_non_null(longest);
    memset(longest, 'x', 1 << 20);
    longest[(1 << 20) - 1] = '\0';
    const struct {
        ASK(question);
        const char *settings[4], *words;
    } cases[] = {
        {dtplan_plan, {"micro_bach=4"}, "did you mean '--micro-batch'"},
        {dtplan_plan, {"params=7B", "gpus=0"}, "gpus"},
        {dtplan_plan, {"params=7B", "gpus=8", "strategy=full"}, "strategy"},
        {dtplan_plan, {"model=lama-7b"}, "llama-7b"},
        {dtplan_plan, {""}, "no setting"},
        {dtplan_plan, {"-h", "--help"}, "no setting"},
        {dtplan_plan, {"gpus"}, "a value is missing"},
        {dtplan_plan, {"gpus="}, "gpus"},
        {dtplan_plan, {"gpus=\xff\x01"}, "gpus"},
        {dtplan_plan, {longest}, "--xxxx"},
        {dtplan_plan, {"params=7B", "compile=maybe"}, "compile"},
        {dtplan_plan, {"params=7B", "min_gpus", "max_seq"}, "one thing"},
        {dtplan_plan, {"params=7B", "machine=/no/such/machine.csv"}, "/no/such/machine.csv"},
        {dtplan_plan, {"help"}, "no settings of the library"},
        {dtplan_plan, {"json", "csv"}, "choose one"},
        {dtplan_plan, {"csv"}, "json"},
        {dtplan_simulate, {"params=7B", "gpus=8", "trace=trace.json"}, "writes a file"},
        {dtplan_simulate, {"params=7B", "gpus=8", "samples=0"}, "samples"},
        {dtplan_sweep, {"params=7B", "gpus=8", "output=/tmp/sweep.csv"}, "writes a file"},
        {dtplan_sweep, {"params=7B", "gpus=8..1"}, "gpus"},
        {dtplan_search, {"params=7B", "gpus=8"}, "tokens"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        is_refused(d, cases[i].question, cases[i].settings, cases[i].words);
    free(longest);
    char *answer, *messages;
    const char *const rows[] = {"output=rows.csv", NULL}, *const leave[] = {"leave_one_out", NULL},
                      *const tables[] = {TEST_SOURCE_DIR "/tests/data/runs.csv", NULL};
    assert_int_equal(dtplan_backtest(d, tables, rows, &answer, &messages), DTPLAN_BAD_INPUT);
    dtplan_free(messages);
    assert_int_equal(dtplan_backtest(d, tables, leave, &answer, &messages), DTPLAN_BAD_INPUT);
    assert_non_null(strstr(messages, "whole process"));
    dtplan_free(messages);
    assert_int_equal(dtplan_backtest(d, NULL, NULL, &answer, &messages), DTPLAN_BAD_INPUT);
    dtplan_free(messages);
    assert_true(access("trace.json", F_OK) != 0 && access("rows.csv", F_OK) != 0);
}

static void test_catalogues_are_read_once(void **state)
{
    (void)state;
    struct dtplan *d = (struct dtplan *)1;
    char *answer, *messages;
    assert_int_equal(dtplan_create("/no/such/folder", NULL, &d, &messages), DTPLAN_BAD_INPUT);
    assert_null(d);
    assert_non_null(strstr(messages, "/no/such/folder/gpus.csv"));
    dtplan_free(messages);
    char path[] = "/tmp/dtplan-library-XXXXXX";
    int descriptor = mkstemp(path);
    FILE *file = fdopen(descriptor, "w");
    assert_non_null(file);
    fputs("alias,key\nours,h100-sxm\n", file);
    fclose(file);
    const char *const catalogs[] = {path, NULL}, *const settings[] = {"params=7B", "gpus=8", "gpu=ours", NULL};
    assert_int_equal(dtplan_create(TEST_SOURCE_DIR "/scenarios", catalogs, &d, &messages), DTPLAN_OK);
    unlink(path);
    assert_int_equal(dtplan_plan(d, NULL, settings, &answer, &messages), DTPLAN_OK);
    assert_non_null(strstr(answer, "\"gpu\": \"h100-sxm\""));
    dtplan_free(answer);
    dtplan_free(messages);
    dtplan_destroy(d);
    dtplan_destroy(NULL);
    dtplan_free(NULL);
}

/* ---- at once ------------------------------------------------------------------------------------------------------
 */

/* Of several kinds, one with a file of a machine, whose times are fitted, and one of two plans in one answer. */
static const char *const questions[][6] = {
    {"model=llama-7b", "gpus=8", "strategy=full_shard", "fidelity=bounds", "no_advice"},
    {"params=13B", "gpus=16", "strategy=all", "fidelity=bounds"},
    {"model=gpt2", "gpus=2", "strategy=ddp", "fidelity=simulated"},
    {"params=1B", "gpus=8", "micro_bach=4"},
    {"model=llama-2-7b", "gpus=4", "strategy=full_shard",
     "machine=" TEST_SOURCE_DIR "/tests/data/synthetic_machine.csv", "fidelity=bounds"},
    {"model=llama-7b", "gpus=8", "min_gpus"},
};
#define QUESTIONS (sizeof questions / sizeof *questions)

struct thread {
    pthread_t id;
    const struct dtplan *d;
    unsigned first, rounds;
    const char *const *expected;
    bool differs;
};

static char *answer_of(const struct dtplan *d, unsigned question)
{
    char *answer, *messages;
    dtplan_plan(d, NULL, questions[question], &answer, &messages);
    if (answer)
        dtplan_free(messages);
    return answer ? answer : messages;
}

static void *ask_all(void *argument)
{
    struct thread *t = argument;
    for (unsigned i = 0; i < t->rounds * QUESTIONS; i++) {
        unsigned question = (t->first + i) % QUESTIONS;
        char *answer = answer_of(t->d, question);
        t->differs |= !answer || strcmp(answer, t->expected[question]) != 0;
        dtplan_free(answer);
    }
    return NULL;
}

static void test_threads_ask_at_once(void **state)
{
    const struct dtplan *d = *state;
    const char *expected[QUESTIONS];
    struct thread threads[THREADS];
    for (unsigned i = 0; i < QUESTIONS; i++)
        assert_non_null(expected[i] = answer_of(d, i));
    for (unsigned i = 0; i < THREADS; i++) {
        threads[i] = (struct thread){.d = d, .first = i, .rounds = 5, .expected = expected};
        assert_int_equal(pthread_create(&threads[i].id, NULL, ask_all, &threads[i]), 0);
    }
    for (unsigned i = 0; i < THREADS; i++) {
        pthread_join(threads[i].id, NULL);
        assert_false(threads[i].differs);
    }
    for (unsigned i = 0; i < QUESTIONS; i++)
        dtplan_free((char *)(uintptr_t)expected[i]);
}

/* ---- what a call leaves ------------------------------------------------------------------------------------------ */

static size_t held_bytes(void)
{
#if defined __SANITIZE_ADDRESS__
    return 0; /* the sanitizer says at the end what was left */
#else
    return mallinfo2().uordblks;
#endif
}

static void test_nothing_is_left_behind(void **state)
{
    const struct dtplan *d = *state;
    const char *asked = getenv("DTPLAN_TEST_CALLS");
    unsigned long calls = asked ? strtoul(asked, NULL, 10) : 2000;
    size_t before = 0;
    for (unsigned long i = 0; i < calls; i++) {
        if (i == calls / 2)
            before = held_bytes();
        dtplan_free(answer_of(d, i % 100 ? 0 : (unsigned)(i / 100 % QUESTIONS)));
    }
    size_t after = held_bytes();
    print_message("%lu calls; held %zu bytes after half of them, %zu in the end\n", calls, before, after);
    assert_true(after <= before + KEPT_BYTES);
}

/* Sets a locale whose decimal sign is a comma, made here where the machine has none. False: it cannot be made. */
static bool take_comma(void)
{
    char folder[] = "/tmp/dtplan-locale-XXXXXX", line[200];
    if (setlocale(LC_ALL, "de_DE.UTF-8"))
        return true;
    if (!mkdtemp(folder))
        return false;
    snprintf(line, sizeof line, "localedef -i de_DE -f UTF-8 %s/de_DE.UTF-8 >%s/log 2>&1", folder, folder);
    setenv("LOCPATH", folder, 1);
    bool made = system(line) == 0 && setlocale(LC_ALL, "de_DE.UTF-8");
    snprintf(line, sizeof line, "rm -r %s", folder);
    return system(line) == 0 && made;
}

/* Numbers are read and written with a decimal point though the program's locale has a comma, on all threads of a sweep;
 * and the caller's thread keeps its own. */
static void test_locales_keep_their_comma(void **state)
{
    const struct dtplan *d = *state;
    const char *const list[] = {"params=1.5B", "gpus=8,16", "strategy=ddp,full_shard", NULL};
    char *plan, *rows, *answer, *messages;
    assert_int_equal(dtplan_plan(d, NULL, questions[0], &plan, &messages), DTPLAN_OK);
    dtplan_free(messages);
    assert_int_equal(dtplan_sweep(d, NULL, list, &rows, &messages), DTPLAN_OK);
    dtplan_free(messages);
    bool comma = take_comma();
    if (comma) {
        char number[16];
        snprintf(number, sizeof number, "%.1f", 0.5);
        assert_string_equal(number, "0,5");
        dtplan_plan(d, NULL, questions[0], &answer, &messages);
        assert_string_equal(answer, plan);
        dtplan_free(answer);
        dtplan_free(messages);
        dtplan_sweep(d, NULL, list, &answer, &messages);
        assert_string_equal(answer, rows);
        dtplan_free(answer);
        dtplan_free(messages);
        snprintf(number, sizeof number, "%.1f", 0.5);
        assert_string_equal(number, "0,5");
        setlocale(LC_ALL, "C");
    }
    dtplan_free(plan);
    dtplan_free(rows);
    if (!comma) {
        print_message("no locale with a decimal comma on this machine\n");
        skip();
    }
}

static int open_state(void **state)
{
    *state = open_library();
    return 0;
}

static int close_state(void **state)
{
    dtplan_destroy(*state);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_answers_are_the_programs), cmocka_unit_test(test_scenario_is_text),
        cmocka_unit_test(test_bad_input_is_told),        cmocka_unit_test(test_catalogues_are_read_once),
        cmocka_unit_test(test_threads_ask_at_once),      cmocka_unit_test(test_nothing_is_left_behind),
        cmocka_unit_test(test_locales_keep_their_comma),
    };
    return cmocka_run_group_tests(tests, open_state, close_state);
}
