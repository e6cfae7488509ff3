/* libFuzzer target: any lines are a list of runs for `dtplan validate`, or are refused with the line's number; every
 * run of what is a list has its scenario and its words. The first byte says whether the command line has flags too.
 *
 *   cmake --preset fuzz && cmake --build --preset fuzz
 *   build-fuzz/tests/fuzz_validate_list -max_total_time=600 -max_len=512 CORPUS_FOLDER tests/corpus/validate_list */
#include "cli/validate_list.h"

#include "fuzz_fixture.h"
#include "lib/scenario_fixture.h"

static char path[PATH_MAX];

static void clean(void)
{
    unlink(path);
    rmdir(fuzz_folder_path);
}

static void expect_run(const struct dtp_validate_list *list, uint64_t run)
{
    static struct dtp_faults faults;
    struct dtp_scenario *scenario = NULL;
    const struct dtp_validate_group *group;
    char words[512];
    forget_faults(&faults);
    enum dtp_status status = dtp_validate_list_scenario(list, run, &scenario, &group, words, sizeof words, &faults);
    expect_faults(status, &faults);
    expect(group->first <= run && run - group->first < group->count && group->line > 0);
    expect(memchr(words, 0, sizeof words) != NULL);
    expect((status == DTP_OK) <= (dtp_scenario_get(scenario, "runtime") != NULL));
    dtp_scenario_destroy(scenario);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static struct dtp_faults faults;
    struct dtp_catalog catalog = fixture_catalog();
    struct dtp_arguments arguments;
    struct dtp_validate_list list;
    /* Files that a line names are opened; the fuzzer has no business in others than its own. */
    if (bytes < 1 || memchr(data, '/', bytes))
        return 0;
    if (!*path)
        snprintf(path, sizeof path, "%s/runs.scenarios", fuzz_folder(clean));
    fuzz_write(path, data + 1, bytes - 1);
    char *argv[] = {(char[]){"dtplan"}, (char[]){"validate"}, path, (char[]){"--gpus=2,4"}, (char[]){"--steps=5"}};
    forget_faults(&faults);
    expect(dtp_arguments_read(data[0] % 2 ? 5 : 3, argv, &arguments, &faults) == DTP_OK);
    struct dtp_call_files *files = dtp_call_files_create();
    expect(files != NULL);
    const struct dtp_context context = {.arguments = &arguments, .faults = &faults, .files = files};
    enum dtp_status status = dtp_validate_list_read(&context, &catalog, &list);
    expect_faults(status, &faults);
    if (status == DTP_OK) {
        expect(list.count > 0 && list.count <= DTP_VALIDATE_MAX_RUNS);
        expect(dtp_validate_list_digest(&list) == dtp_validate_list_digest(&list));
        expect_run(&list, 0);
        expect_run(&list, list.count / 2);
        expect_run(&list, list.count - 1);
    }
    free(catalog.measured); /* all else of it is the fixture's */
    dtp_validate_list_destroy(&list);
    dtp_call_files_destroy(files);
    dtp_arguments_destroy(&arguments);
    return 0;
}
