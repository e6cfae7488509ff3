/* dtplan run: predicts a job, has it run by dtplan-exec, and says both side by side. */
#include "command.h"

#include "number.h"
#include "output_file.h"
#include "run_process.h"
#include "simulation_report.h"
#include "table.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- the job ----------------------------------------------------------------------------------------------------- */

/* What `run` means where nothing was typed: our executor, and the gradient norm in its log, without which an update
 * made of a loss that is no number cannot be left out. */
static const struct dtp_typed_key run_defaults[] = {{"--runtime", "runtime", "dtplan"},
                                                    {"--gradient-norm", "gradient_norm", "true"}};
enum { DEFAULT_COUNT = sizeof run_defaults / sizeof run_defaults[0] };

static size_t take_defaults(struct dtp_scenario *scenario, struct dtp_typed_key out[DEFAULT_COUNT],
                            struct dtp_faults *faults)
{
    size_t count = 0;
    for (size_t i = 0; i < DEFAULT_COUNT; i++) {
        if (dtp_scenario_get(scenario, run_defaults[i].key))
            continue;
        dtp_scenario_set(scenario, run_defaults[i].key, run_defaults[i].value, "default", 0, faults);
        out[count++] = run_defaults[i];
    }
    return count;
}

/* ---- times of operations ----------------------------------------------------------------------------------------- */

static double seconds_of(const struct dtp_table *table, size_t row, const char *column)
{
    double value;
    const char *text = dtp_table_text(table, row, dtp_table_column(table, column));
    return *text && dtp_number_parse(text, &value) ? value : (double)NAN;
}

static enum dtp_status fill_times(const struct dtp_table *table, size_t op_count, struct dtp_run_outcome *m,
                                  struct dtp_faults *faults)
{
    double *all = malloc(3 * op_count * sizeof *all);
    if (!all)
        return dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "out of memory");
    for (size_t i = 0; i < 3 * op_count; i++)
        all[i] = (double)NAN;
    m->alone_s = all;
    m->start_s = all + op_count;
    m->end_s = all + 2 * op_count;
    for (size_t row = 0; row < dtp_table_row_count(table); row++) {
        uint64_t op;
        if (!dtp_number_parse_integer(dtp_table_text(table, row, dtp_table_column(table, "op")), false, 0, op_count - 1,
                                      &op))
            return dtp_fault(faults, DTP_BAD_INPUT, dtp_table_name(table), dtp_table_line(table, row),
                             "no operation of the program that was predicted");
        m->alone_s[op] = seconds_of(table, row, "alone_s");
        m->start_s[op] = seconds_of(table, row, "start_s");
        m->end_s[op] = seconds_of(table, row, "end_s");
    }
    return DTP_OK;
}

/* Nothing where the run ended before its operations were timed. */
static enum dtp_status read_times(const char *path, size_t op_count, struct dtp_run_outcome *m,
                                  struct dtp_faults *faults)
{
    struct dtp_table *table;
    FILE *file = fopen(path, "r");
    bool empty = !file || fgetc(file) == EOF;
    if (file)
        fclose(file);
    if (empty)
        return DTP_OK;
    enum dtp_status status = dtp_table_read(path, &table, faults);
    if (status == DTP_OK)
        status = fill_times(table, op_count, m, faults);
    dtp_table_destroy(table);
    return status;
}

/* The simulated step with the spans that were measured, for the writers of traces. What takes no time happens when the
 * operation before it ends. */
static struct dtp_simulated as_measured(const struct dtp_simulated *simulated, const struct dtp_run_outcome *m)
{
    struct dtp_simulated s = *simulated;
    double last = 0;
    for (size_t i = 0; i < s.timeline.op_count; i++) {
        bool timed = isfinite(m->start_s[i]) && isfinite(m->end_s[i]);
        s.timeline.span[i] = timed ? (struct dtp_span){m->start_s[i], m->end_s[i]} : (struct dtp_span){last, last};
        s.timeline.issue_s[i] = s.timeline.span[i].start_s;
        last = s.timeline.span[i].end_s;
        s.timeline.step_s = last > s.timeline.step_s ? last : s.timeline.step_s;
    }
    return s;
}

static enum dtp_status write_one(const struct dtp_simulated *s, bool json, const char *path, struct dtp_faults *faults)
{
    struct dtp_output_file output;
    enum dtp_status status = path ? dtp_output_open(path, &output, faults) : DTP_OK;
    if (!path || status != DTP_OK)
        return status;
    if (json)
        status = dtp_simulation_write_trace(s, output.file, faults);
    else
        dtp_simulation_write_timeline(s, output.file);
    if (status == DTP_OK)
        return dtp_output_close(&output, faults);
    dtp_output_abandon(&output);
    return status;
}

/* ---- the report -------------------------------------------------------------------------------------------------- */

static enum dtp_status compare(const struct dtp_simulated *simulated, const struct dtp_run_outcome *m,
                               struct dtp_run_report *report, struct dtp_faults *faults)
{
    size_t count = simulated->timeline.op_count;
    double *in_place_s = malloc((count + 1) * sizeof *in_place_s);
    if (!in_place_s)
        return dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "out of memory");
    for (size_t i = 0; i < count; i++)
        in_place_s[i] = m->end_s[i] - m->start_s[i];
    dtp_compare_classes(simulated, m->alone_s, in_place_s, report->classes);
    dtp_compare_phases(simulated, in_place_s, report->phases);
    enum dtp_status status = DTP_OK;
    report->split_known = m->gpu && m->step_s > 0;
    if (report->split_known)
        status = dtp_compare_split(simulated, m->alone_s, in_place_s, m->step_s, &report->split, faults);
    free(in_place_s);
    return status;
}

static enum dtp_status say(const struct dtp_context *context, const struct dtp_simulated *simulated,
                           const struct dtp_run_outcome *m)
{
    const struct dtp_arguments *a = context->arguments;
    struct dtp_run_report report = {.simulated = simulated, .measured = m};
    enum dtp_status status = m->alone_s ? compare(simulated, m, &report, context->faults) : DTP_OK;
    if (status == DTP_OK && a->json)
        status = dtp_run_json(&report, context->out, context->faults);
    else if (status == DTP_OK)
        dtp_run_text(&report, &context->page);
    if (status != DTP_OK || !m->alone_s)
        return status;
    struct dtp_simulated measured = as_measured(simulated, m); /* the prediction's spans are gone after this */
    status = write_one(&measured, true, a->trace, context->faults);
    return status == DTP_OK ? write_one(&measured, false, a->timeline, context->faults) : status;
}

/* ---- the run ----------------------------------------------------------------------------------------------------- */

static enum dtp_status run_and_say(const struct dtp_context *context, const struct dtp_simulated *simulated,
                                   struct dtp_run_process *process, const char *times)
{
    struct dtp_run_outcome measured;
    struct dtp_run_listener *listener = dtp_run_listener_create(&simulated->job, true, &measured);
    if (!listener)
        return dtp_fault(context->faults, DTP_ENVIRONMENT, NULL, 0, "out of memory");
    process->op_times = times;
    process->hear = dtp_run_listener_hear;
    process->listener = listener;
    enum dtp_status ran = dtp_run_process(process), status = DTP_OK;
    dtp_run_listener_finish(listener);
    if (measured.last_step > measured.first_step) {
        status = read_times(times, simulated->timeline.op_count, &measured, context->faults);
        if (status == DTP_OK)
            status = say(context, simulated, &measured);
    }
    free(measured.alone_s);
    return ran > status ? ran : status;
}

static enum dtp_status with_times_file(const struct dtp_context *context, const struct dtp_simulated *simulated,
                                       struct dtp_run_process *process)
{
    const char *folder = getenv("TMPDIR");
    char path[4096];
    snprintf(path, sizeof path, "%s/dtplan-run-XXXXXX", folder && *folder ? folder : "/tmp");
    int file = mkstemp(path);
    if (file < 0)
        return dtp_fault(context->faults, DTP_ENVIRONMENT, path, 0,
                         "cannot be made; set TMPDIR to a folder to write to");
    close(file);
    enum dtp_status status = run_and_say(context, simulated, process, path);
    unlink(path);
    return status;
}

static enum dtp_status predict_and_run(const struct dtp_context *context, const struct dtp_job *job,
                                       struct dtp_run_process *process)
{
    struct dtp_simulation_options options = dtp_simulation_options_default();
    struct dtp_simulated simulated;
    enum dtp_status status = dtp_simulated_create(job, &options, &simulated, context->faults);
    if (status != DTP_OK)
        return status;
    status = with_times_file(context, &simulated, process);
    dtp_simulated_release(&simulated);
    return status;
}

enum dtp_status dtp_command_run(const struct dtp_context *context)
{
    struct dtp_typed_key defaults[DEFAULT_COUNT];
    struct dtp_run_process process = {.context = context, .defaults = defaults};
    struct dtp_catalog catalog;
    struct dtp_scenario *scenario = NULL;
    struct dtp_job job;
    enum dtp_status status = dtp_context_catalog(context, &catalog);
    if (status != DTP_OK)
        return status;
    status = dtp_context_scenario(context, &catalog, &scenario);
    if (status == DTP_OK) {
        process.default_count = take_defaults(scenario, defaults, context->faults);
        status = dtp_scenario_resolve(scenario, &catalog, &job, context->faults);
    }
    dtp_scenario_destroy(scenario);
    dtp_catalog_destroy(&catalog);
    return status == DTP_OK ? predict_and_run(context, &job, &process) : status;
}
