#include "cli/run_job.h"
#include "runtime/runtimes.h"

#include "machine/host_machine.h"
#include "base/number.h"
#include "base/table.h"
#include "record/report.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* A plan that nobody runs: what else of it a runner does not know follows from that, so that it is said before anything
 * of the plan is judged. */
static enum dtp_status check_runtime(const struct dtp_scenario *scenario, struct dtp_faults *faults)
{
    size_t line;
    const char *given = dtp_scenario_get(scenario, "runtime"), *where = dtp_scenario_place(scenario, "runtime", &line);
    const struct dtp_runtime *runtime = dtp_runtime_find(given);
    if (!runtime || runtime->executed || runtime->reference)
        return DTP_OK;
    return dtp_fault_about(faults, DTP_BAD_INPUT, where, line, "runtime",
                           "is %s, but only plans of --runtime dtplan and torch are run: by the executor, and by a "
                           "program of PyTorch's: take one of these",
                           runtime->name);
}

/* The executor's, or nobody said. */
static bool is_ours(const struct dtp_scenario *scenario)
{
    const struct dtp_runtime *runtime = dtp_runtime_find(dtp_scenario_get(scenario, "runtime"));
    return !runtime || runtime->executed;
}

enum dtp_status dtp_run_take_defaults(struct dtp_scenario *scenario, struct dtp_faults *faults)
{
    static const char *const defaults[][2] = {{"runtime", "dtplan"}, {"gradient_norm", "true"}};
    enum dtp_status status = DTP_OK;
    for (size_t i = 0; i < sizeof defaults / sizeof *defaults && status == DTP_OK && is_ours(scenario); i++)
        if (!dtp_scenario_get(scenario, defaults[i][0]) && dtp_scenario_reads(scenario, defaults[i][0]))
            status = dtp_scenario_set(scenario, defaults[i][0], defaults[i][1], "default", 0, faults);
    return status;
}

enum dtp_status dtp_run_take_device(struct dtp_scenario *scenario, const struct dtp_passed_flag *flags,
                                    size_t flag_count, struct dtp_faults *faults)
{
    const char *device = NULL;
    for (size_t i = 0; i < flag_count; i++)
        if (strcmp(flags[i].flag, "--device") == 0) /* the last counts */
            device = flags[i].value;
    if (!device || strcmp(device, "host") != 0 || !is_ours(scenario))
        return DTP_OK; /* a framework's own program on cores is still the plan of a GPU, whose times nobody compares */
    dtp_scenario_without_times(scenario);
    if (dtp_scenario_get(scenario, "gpu") || dtp_scenario_get(scenario, "machine"))
        return DTP_OK;
    return dtp_scenario_set(scenario, "gpu", DTP_HOST_KEY, "--device host", 0, faults);
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

/* Of all roles, one behind the other. */
static enum dtp_status fill_spans(const struct dtp_table *table, struct dtp_ran_job *ran, struct dtp_faults *faults)
{
    const struct dtp_simulated *s = &ran->simulated;
    uint32_t roles = s->set.role_count;
    size_t total = 0, first = 0;
    for (uint32_t r = 0; r < roles; r++)
        total += s->roles[r].timeline.op_count;
    double *all = malloc(2 * (total + 1) * sizeof *all);
    ran->spans = calloc(roles, sizeof *ran->spans);
    ran->measured.alone_s = all; /* what release frees */
    if (!all || !ran->spans)
        return dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "out of memory");
    for (size_t i = 0; i < 2 * total; i++)
        all[i] = (double)NAN;
    for (uint32_t r = 0; r < roles; first += 2 * s->roles[r++].timeline.op_count)
        ran->spans[r] = (struct dtp_measured_spans){all + first, all + first + s->roles[r].timeline.op_count};
    for (size_t row = 0; row < dtp_table_row_count(table); row++) {
        uint64_t role, op;
        if (!dtp_number_parse_integer(dtp_table_text(table, row, dtp_table_column(table, "role")), false, 0, roles - 1,
                                      &role) ||
            !dtp_number_parse_integer(dtp_table_text(table, row, dtp_table_column(table, "op")), false, 0,
                                      s->roles[role].timeline.op_count - 1, &op))
            return dtp_fault(faults, DTP_BAD_INPUT, dtp_table_name(table), dtp_table_line(table, row),
                             "no operation of the programs that were predicted");
        double *start_s = all + (ran->spans[role].start_s - all);
        start_s[op] = seconds_of(table, row, "start_s");
        start_s[op + s->roles[role].timeline.op_count] = seconds_of(table, row, "end_s");
    }
    return DTP_OK;
}

/* As a timeline of the step that was measured tells it, by the same rule as of the one that was simulated. */
static enum dtp_status measure_exposed(struct dtp_ran_job *ran, struct dtp_faults *faults)
{
    const struct dtp_measured_spans spans = {ran->measured.start_s, ran->measured.end_s};
    struct dtp_simulated measured;
    if (ran->simulated.job.plan.tp < 2 && ran->simulated.job.plan.cp < 2)
        return DTP_OK;
    enum dtp_status status = dtp_simulated_as_measured(&ran->simulated, &spans, &measured, faults);
    if (status != DTP_OK)
        return status;
    ran->report.exposed_tensor_s = measured.timeline.exposed_by_stream_s[DTP_STREAM_TENSOR];
    ran->report.exposed_context_s = measured.timeline.exposed_by_stream_s[DTP_STREAM_CONTEXT];
    dtp_simulated_measured_release(&measured);
    return DTP_OK;
}

static enum dtp_status compare(struct dtp_ran_job *ran, struct dtp_faults *faults)
{
    const struct dtp_simulated *simulated = &ran->simulated;
    const struct dtp_run_outcome *m = &ran->measured;
    struct dtp_run_report *report = &ran->report;
    size_t count = simulated->timeline.op_count;
    double *in_place_s = malloc((count + 1) * sizeof *in_place_s);
    if (!in_place_s)
        return dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "out of memory");
    for (size_t i = 0; i < count; i++)
        in_place_s[i] = m->end_s[i] - m->start_s[i];
    dtp_compare_classes(simulated, m->alone_s, in_place_s, report->classes);
    dtp_compare_phases(simulated, in_place_s, report->phases);
    enum dtp_status status = measure_exposed(ran, faults);
    report->split_known = status == DTP_OK && dtp_run_report_comparable(report) && m->step_s > 0;
    if (report->split_known)
        status = dtp_compare_split(simulated, m->alone_s, in_place_s, m->step_s, &report->split, faults);
    free(in_place_s);
    return status;
}

enum dtp_status dtp_ran_job_read_times(struct dtp_ran_job *ran, const char *path, struct dtp_faults *faults)
{
    struct dtp_table *table;
    FILE *file = fopen(path, "r");
    bool empty = !file || fgetc(file) == EOF;
    if (file)
        fclose(file);
    if (empty)
        return DTP_OK;
    enum dtp_status status = dtp_table_read(path, &table, faults);
    bool stages = ran->simulated.set.role_count > 1;
    if (status == DTP_OK)
        status = stages ? fill_spans(table, ran, faults)
                        : fill_times(table, ran->simulated.timeline.op_count, &ran->measured, faults);
    if (status == DTP_OK && !stages)
        status = compare(ran, faults);
    dtp_table_destroy(table);
    ran->timed = status == DTP_OK;
    return status;
}

/* ---- the run ----------------------------------------------------------------------------------------------------- */

static enum dtp_status execute(const struct dtp_run_job *run, struct dtp_ran_job *out, const char *program,
                               const char *times)
{
    struct dtp_faults *faults = run->context->faults;
    struct dtp_run_process process = {
        .context = run->context, .scenario = run->scenario, .program = program, .op_times = times};
    process.hear = dtp_run_listener_hear;
    process.listener = dtp_run_listener_create(&out->simulated.job, run->progress, &out->measured);
    if (!process.listener)
        return dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "out of memory");
    enum dtp_status ran = dtp_run_process(&process), status = DTP_OK;
    dtp_run_listener_finish(process.listener);
    if (out->measured.last_step > out->measured.first_step)
        status = dtp_ran_job_read_times(out, times, faults);
    return dtp_worse(ran, status);
}

/* A file in memory that has no name but this process's and its children's descriptor: it goes with the last of them,
 * however they end. Descriptors below 10 are the child's for events and the like. */
struct memory_file {
    int descriptor;
    char path[32]; /* that a child opens it by */
};

static enum dtp_status make_memory_file(const char *name, struct memory_file *out, struct dtp_faults *faults)
{
    int made = memfd_create(name, 0);
    out->descriptor = made < 0 ? -1 : fcntl(made, F_DUPFD, 10);
    if (made >= 0)
        close(made);
    if (out->descriptor < 0)
        return dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "no file in memory can be made for the executor: %s",
                         strerror(errno));
    snprintf(out->path, sizeof out->path, "/dev/fd/%d", out->descriptor);
    return DTP_OK;
}

static enum dtp_status with_times_file(const struct dtp_run_job *run, struct dtp_ran_job *out, const char *program)
{
    struct memory_file times;
    if (run->op_times)
        return execute(run, out, program, run->op_times);
    enum dtp_status status = make_memory_file("times of operations", &times, run->context->faults);
    if (status != DTP_OK)
        return status;
    status = execute(run, out, program, times.path);
    close(times.descriptor);
    return status;
}

/* Of a pipeline all its stages. */
static enum dtp_status write_program(const struct dtp_simulated *simulated, const char *path, struct dtp_faults *faults)
{
    if (simulated->set.role_count == 1)
        return dtp_program_write_file(simulated->program, path, faults);
    FILE *file = fopen(path, "w");
    if (!file)
        return dtp_fault(faults, DTP_ENVIRONMENT, path, 0, "cannot be written: %s", strerror(errno));
    enum dtp_status status = dtp_program_set_write_text(&simulated->set, file);
    return fclose(file) == 0 && status == DTP_OK
               ? DTP_OK
               : dtp_fault(faults, DTP_ENVIRONMENT, path, 0, "cannot be written: %s", strerror(errno));
}

/* The text that was predicted is what runs. Each rank proves it again (dtp_world_join_set, dtp_executor_arena_make);
 * what cannot run is said here, before there are any. */
static enum dtp_status with_program_file(const struct dtp_run_job *run, struct dtp_ran_job *out)
{
    struct dtp_faults *faults = run->context->faults;
    struct memory_file program;
    enum dtp_status status = dtp_simulated_prove(&out->simulated, faults);
    if (status == DTP_OK)
        status = make_memory_file("step program", &program, faults);
    if (status != DTP_OK)
        return status;
    struct dtp_faults nameless = {0}; /* the file's name says nothing to whoever reads of it */
    status = write_program(&out->simulated, program.path, &nameless);
    if (status != DTP_OK)
        dtp_fault(faults, status, NULL, 0, "the step program could not be handed to the executor in memory: %s",
                  strerror(errno));
    if (status == DTP_OK)
        status = with_times_file(run, out, program.path);
    close(program.descriptor);
    return status;
}

/* ---- by the framework's own program ------------------------------------------------------------------------------ */

/* All that it knows of the plan: what dtplan plan --json prints. */
static enum dtp_status write_plan(const struct dtp_run_job *run, const struct dtp_job *job, const char *path)
{
    struct dtp_faults *faults = run->context->faults;
    struct dtp_report *report = calloc(1, sizeof *report);
    FILE *file = fopen(path, "w");
    enum dtp_status status = report && file ? dtp_report_predict(job, run->catalog, DTP_FIDELITY_CLOSED, report, faults)
                                            : dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0,
                                                        "the plan cannot be handed over: %s", strerror(errno));
    if (status == DTP_OK)
        status = dtp_report_plan_json(report, file, faults);
    if (file && fclose(file) != 0 && status == DTP_OK)
        status = dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "the plan cannot be handed over: %s", strerror(errno));
    free(report);
    return status;
}

static enum dtp_status run_reference(const struct dtp_run_job *run, struct dtp_ran_job *out)
{
    struct dtp_faults *faults = run->context->faults;
    const struct dtp_job *job = &out->simulated.job;
    struct memory_file plan;
    char path[64]; /* that grandchildren open it by too */
    enum dtp_status status = make_memory_file("plan", &plan, faults);
    if (status != DTP_OK)
        return status;
    snprintf(path, sizeof path, "/proc/%ld/fd/%d", (long)getpid(), plan.descriptor);
    status = write_plan(run, job, path);
    struct dtp_run_process process = {
        .context = run->context, .scenario = run->scenario, .hear = dtp_run_listener_hear};
    process.reference = job->plan.runtime->reference;
    process.plan = path;
    process.ranks = job->cluster.gpus;
    process.listener =
        status == DTP_OK ? dtp_run_listener_create(&out->simulated.job, run->progress, &out->measured) : NULL;
    if (status == DTP_OK && !process.listener)
        status = dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "out of memory");
    if (status == DTP_OK) {
        status = dtp_run_process(&process);
        dtp_run_listener_finish(process.listener);
    }
    close(plan.descriptor);
    return status;
}

enum dtp_status dtp_job_run(const struct dtp_run_job *run, struct dtp_ran_job *out)
{
    struct dtp_simulation_options options = dtp_simulation_options_default();
    struct dtp_faults *faults = run->context->faults;
    struct dtp_job job;
    memset(out, 0, sizeof *out);
    out->report = (struct dtp_run_report){.simulated = &out->simulated, .measured = &out->measured};
    enum dtp_status status = check_runtime(run->scenario, faults);
    if (status == DTP_OK)
        status = dtp_scenario_resolve(run->scenario, run->catalog, &job, faults);
    if (status == DTP_OK)
        status = dtp_simulated_create(&job, &options, &out->simulated, faults);
    out->predicted = status == DTP_OK;
    if (status != DTP_OK)
        return status;
    return job.plan.runtime->executed ? with_program_file(run, out) : run_reference(run, out);
}

void dtp_ran_job_release(struct dtp_ran_job *ran)
{
    free(ran->measured.alone_s);
    free(ran->measured.roles);
    free(ran->measured.ranks);
    free(ran->measured.expert_rows);
    free(ran->spans);
    if (ran->predicted)
        dtp_simulated_release(&ran->simulated);
}
