/* libFuzzer target: any lines are events of dtplan-exec, as `run` hears them or, with another first byte, as `probe`
 * does. What is shown of them is printable, what is measured are amounts, and what `probe` keeps is what a machine file
 * may hold or is refused.
 *
 *   cmake --preset fuzz && cmake --build --preset fuzz
 *   build-fuzz/tests/fuzz_events -close_fd_mask=2 -max_total_time=600 -max_len=2048 CORPUS_FOLDER tests/corpus/events
 */
#include "cli/probe_events.h"
#include "cli/run_process.h"

#include "fuzz_fixture.h"
#include "lib/scenario_fixture.h"

#include <math.h>

static const struct dtp_job *any_job(void)
{
    static struct dtp_job job;
    static bool made;
    struct dtp_catalog catalog = fixture_catalog();
    struct dtp_scenario *scenario;
    if (made)
        return &job;
    expect(dtp_scenario_create(&scenario, NULL) == DTP_OK);
    expect(dtp_scenario_set(scenario, "model", "gpt2-124m", NULL, 0, NULL) == DTP_OK);
    expect(dtp_scenario_set(scenario, "gpu", "h100-sxm", NULL, 0, NULL) == DTP_OK);
    expect(dtp_scenario_set(scenario, "gpus", "8", NULL, 0, NULL) == DTP_OK);
    expect(dtp_scenario_resolve(scenario, &catalog, &job, NULL) == DTP_OK);
    dtp_scenario_destroy(scenario);
    made = true;
    return &job;
}

static void hear_all(char *lines, void (*hear)(void *listener, const char *line), void *listener)
{
    for (char *line; (line = strsep(&lines, "\n")) != NULL;)
        hear(listener, line);
}

static void expect_printable(const char *text, size_t room)
{
    expect(memchr(text, 0, room) != NULL && !text[dtp_printable_length(text)]);
}

static void hear_run(char *lines)
{
    struct dtp_run_outcome out;
    struct dtp_run_listener *listener = dtp_run_listener_create(any_job(), true, &out);
    expect(listener != NULL);
    hear_all(lines, dtp_run_listener_hear, listener);
    dtp_run_listener_finish(listener);
    expect_printable(out.device, sizeof out.device);
    expect_printable(out.libraries, sizeof out.libraries);
    expect_printable(out.data, sizeof out.data);
    expect_printable(out.collectives, sizeof out.collectives);
    expect_printable(out.reason, sizeof out.reason);
    expect(isfinite(out.step_s) && out.step_s >= 0 && (out.step_s > 0) == (out.timed_steps > 0));
    expect(!isinf(out.first_loss) && !isinf(out.entropy));
}

static void hear_probe(char *lines)
{
    static struct dtp_faults faults;
    struct dtp_probe_heard heard = dtp_probe_heard_start();
    hear_all(lines, dtp_probe_hear, &heard);
    for (size_t i = 0; i < heard.count; i++) {
        const struct dtp_measured_row *row = &heard.rows[i];
        expect_printable(row->text, sizeof row->text);
        expect(memchr(row->what, 0, sizeof row->what) != NULL);
        forget_faults(&faults);
        enum dtp_status status = dtp_measured_row_check(row, "events", i + 1, &faults);
        expect_faults(status, &faults);
        for (int k = 0; k < DTP_MEASURED_COLUMN_COUNT && status == DTP_OK; k++)
            expect(isnan(row->number[k]) || (isfinite(row->number[k]) && row->number[k] >= 0));
    }
    dtp_probe_heard_release(&heard);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    if (bytes < 1)
        return 0;
    char *lines = malloc(bytes);
    expect(lines != NULL);
    memcpy(lines, data + 1, bytes - 1);
    lines[bytes - 1] = '\0';
    if (data[0] % 2)
        hear_run(lines);
    else
        hear_probe(lines);
    free(lines);
    return 0;
}
