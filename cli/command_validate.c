/* dtplan validate: predicts jobs, runs them as `run` does, and judges how far off the predictions were. */
#include "cli/command.h"

#include "base/clock.h"
#include "chart/chart.h"
#include "page/output_file.h"
#include "cli/stop.h"
#include "cli/validate_parts.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Two to warm up, eight that count, one operation by operation alone, one operation by operation as it runs. */
#define DEFAULT_STEPS "12"
#define LEAST_STEPS 3

/* Between runs; while one is made, its process hears of it. */
static bool told_to_stop(void)
{
    return dtp_stop_asked() || dtp_run_process_told_to_stop();
}

/* ---- times of operations ----------------------------------------------------------------------------------------- */

/* NULL where they are not kept. */
static const char *times_path(const struct dtp_validate *v, uint64_t run, char *out, size_t bytes)
{
    if (!v->folder)
        return NULL;
    snprintf(out, bytes, "%s/%04" PRIu64 ".csv", v->folder, run);
    return out;
}

/* A folder of that name may be the user's, with files that are called as ours are. */
static enum dtp_status check_folder(const struct dtp_validate *v)
{
    char path[4096];
    enum dtp_status worst = DTP_OK;
    for (uint64_t run = v->file.rows; run < v->list.count && !v->context->arguments->force && worst == DTP_OK; run++)
        worst = dtp_output_may_replace(times_path(v, run, path, sizeof path), DTP_OUTPUT_OP_TIMES, v->context->faults);
    return worst;
}

/* "validate.csv" keeps them in "validate.ops/0000.csv", ... */
static enum dtp_status make_folder(struct dtp_validate *v, const char *output)
{
    struct dtp_faults *faults = v->context->faults;
    v->folder = dtp_call_files_times(output);
    if (!v->folder)
        return dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "out of memory");
    if (mkdir(v->folder, 0777) == 0)
        return DTP_OK;
    return errno == EEXIST ? check_folder(v)
                           : dtp_fault(faults, DTP_ENVIRONMENT, v->folder, 0, "cannot be made: %s", strerror(errno));
}

/* ---- one run ----------------------------------------------------------------------------------------------------- */

static void take_reason(struct dtp_validation *row, enum dtp_status status, const struct dtp_ran_job *ran,
                        const struct dtp_faults *faults)
{
    row->status = (uint64_t)status;
    if (status == DTP_OK)
        return;
    const char *said = ran->measured.reason[0] ? ran->measured.reason
                       : faults->count > 0
                           ? faults->text[0]
                           : "dtplan-exec ended before its first step; what it said is on standard error";
    snprintf(row->reason, sizeof row->reason, "%s", said);
}

/* The step once more, with as many rows in the fullest rank's experts as the run had: predictions take a router that
 * gives all experts as many, which one does that has learnt to, or is forced. */
static enum dtp_status predict_imbalanced(const struct dtp_simulated *even, struct dtp_validation *row,
                                          struct dtp_faults *faults)
{
    struct dtp_simulation_options options = dtp_simulation_options_default();
    struct dtp_simulated again;
    row->imbalanced_step_s = (double)NAN;
    if (!isfinite(row->expert_imbalance) || !isfinite(row->step_s[DTP_VALIDATION_PREDICTED]))
        return DTP_OK;
    options.expert_load = row->expert_imbalance;
    enum dtp_status status = dtp_simulated_create(&even->job, &options, &again, faults);
    if (status != DTP_OK)
        return status;
    row->imbalanced_step_s = again.prediction.time.step_s;
    dtp_simulated_release(&again);
    return DTP_OK;
}

/* Predicts, runs, compares. What goes wrong is said in the row. */
static void make_run(struct dtp_validate *v, uint64_t run, const struct dtp_context *context,
                     struct dtp_scenario *scenario, struct dtp_validation *row)
{
    struct dtp_ran_job ran;
    char path[4096];
    const struct dtp_run_job job = {context, &v->catalog, scenario, times_path(v, run, path, sizeof path),
                                    isatty(STDERR_FILENO) != 0};
    double started_s = dtp_now_s();
    if (job.op_times)
        unlink(job.op_times); /* of an earlier validation */
    enum dtp_status status = dtp_job_run(&job, &ran);
    if (ran.predicted)
        dtp_validation_plan(&ran.simulated, row);
    if (ran.measured.last_step > ran.measured.first_step)
        dtp_validation_measure(&ran.report, row);
    if (status == DTP_OK && ran.predicted)
        status = predict_imbalanced(&ran.simulated, row, context->faults);
    if (status == DTP_OK && !ran.measured.interrupted && !dtp_run_shares(&ran.measured) &&
        !isfinite(row->step_s[DTP_VALIDATION_MEASURED]))
        status = dtp_fault(context->faults, DTP_BAD_INPUT, NULL, 0,
                           "the run ended before a step that counts; take --steps %d or more", LEAST_STEPS);
    take_reason(row, status, &ran, context->faults);
    row->wall_s = dtp_now_s() - started_s;
    v->stopped = ran.measured.interrupted || (status != DTP_OK && told_to_stop()); /* what a signal ended is no row */
    dtp_ran_job_release(&ran);
}

static void say_before(const struct dtp_validate *v, uint64_t run, const struct dtp_validation *row)
{
    fprintf(stderr, "run %" PRIu64 " of %" PRIu64 ": %s\n", run + 1, v->list.count, row->run);
}

static void say_after(const struct dtp_validate *v, uint64_t run, const struct dtp_validation *row)
{
    double error = dtp_validation_step_error(row), elapsed_s = dtp_now_s() - v->started_s;
    double left_s = elapsed_s * (double)(v->list.count - run - 1) / (double)(run + 1 - v->resumed);
    if (row->status != DTP_OK)
        fprintf(stderr, "  failed: %s", row->reason);
    else if (row->ranks_a_gpu > 1)
        fprintf(stderr, "  GPUs shared by %" PRIu64 " ranks: times mean nothing", row->ranks_a_gpu);
    else
        fprintf(stderr, "  step %.2f ms", 1e3 * row->step_s[DTP_VALIDATION_MEASURED]);
    if (row->status == DTP_OK && isfinite(row->undisturbed_step_s))
        fprintf(stderr, ", %.2f on undisturbed cores", 1e3 * row->undisturbed_step_s);
    if (row->status == DTP_OK && isfinite(error))
        fprintf(stderr, ", predicted %+.1f %%", 100 * error);
    fprintf(stderr, "; %.1f s, %.0f s left\n", row->wall_s, left_s);
}

static enum dtp_status append(struct dtp_validate *v, uint64_t run)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *file = v->file_open ? open_memstream(&text, &bytes) : NULL;
    if (!v->file_open)
        return DTP_OK;
    if (file)
        dtp_validation_write_row(&v->file, run, &v->rows[run], file);
    enum dtp_status status = file && fclose(file) == 0
                                 ? dtp_row_file_append(&v->file, text, bytes, 1, v->context->faults)
                                 : dtp_fault(v->context->faults, DTP_ENVIRONMENT, NULL, 0, "out of memory");
    free(text);
    return status;
}

static enum dtp_status one_run(struct dtp_validate *v, uint64_t run)
{
    static char steps_flag[] = "--steps", steps[] = DEFAULT_STEPS;
    struct dtp_validation *row = &v->rows[run];
    const struct dtp_validate_group *group;
    struct dtp_scenario *scenario = NULL;
    struct dtp_faults own = {0};
    memset(row, 0, sizeof *row);
    row->expert_imbalance = row->imbalanced_step_s = (double)NAN;
    enum dtp_status status =
        dtp_validate_list_scenario(&v->list, run, &scenario, &group, row->run, sizeof row->run, v->context->faults);
    struct dtp_arguments arguments = *v->context->arguments;
    arguments.passed = calloc(group->passed_count + 1, sizeof *arguments.passed);
    if (status == DTP_OK && !arguments.passed)
        status = dtp_fault(v->context->faults, DTP_ENVIRONMENT, NULL, 0, "out of memory");
    if (status == DTP_OK) {
        struct dtp_context context = *v->context;
        arguments.passed[0] = (struct dtp_passed_flag){steps_flag, steps};
        memcpy(arguments.passed + 1, group->passed, group->passed_count * sizeof *group->passed);
        arguments.passed_count = group->passed_count + 1;
        context.arguments = &arguments;
        context.faults = &own;
        say_before(v, run, row);
        make_run(v, run, &context, scenario, row);
        if (!v->stopped) {
            dtp_validation_judge(row, &v->bounds);
            say_after(v, run, row);
            status = append(v, run);
            v->done++;
        }
    }
    free(arguments.passed);
    dtp_scenario_destroy(scenario);
    return status;
}

/* ---- runs that were made before ---------------------------------------------------------------------------------- */

enum dtp_status dtp_validate_load(const struct dtp_validate *v, uint64_t run, const struct dtp_validation *row,
                                  struct dtp_ran_job *out)
{
    const struct dtp_validate_group *group;
    struct dtp_simulation_options options = dtp_simulation_options_default();
    struct dtp_scenario *scenario = NULL;
    struct dtp_job job;
    char path[4096], words[sizeof row->run];
    struct dtp_faults *faults = v->context->faults;
    memset(out, 0, sizeof *out);
    out->report = (struct dtp_run_report){.simulated = &out->simulated, .measured = &out->measured};
    enum dtp_status status = dtp_validate_list_scenario(&v->list, run, &scenario, &group, words, sizeof words, faults);
    if (status == DTP_OK)
        status = dtp_scenario_resolve(scenario, &v->catalog, &job, faults);
    if (status == DTP_OK)
        status = dtp_simulated_create(&job, &options, &out->simulated, faults);
    dtp_scenario_destroy(scenario);
    out->predicted = status == DTP_OK;
    dtp_validation_outcome(row, &out->measured);
    if (status == DTP_OK && v->folder && row->tokens_per_step > 0)
        status = dtp_ran_job_read_times(out, times_path(v, run, path, sizeof path), faults);
    return status;
}

/* Predicts it anew, so that all rows of a report are of one and the same model. */
static enum dtp_status predict_again(struct dtp_validate *v, uint64_t run)
{
    struct dtp_validation *row = &v->rows[run];
    struct dtp_ran_job ran;
    enum dtp_status status = dtp_validate_load(v, run, row, &ran);
    if (ran.predicted) {
        dtp_validation_plan(&ran.simulated, row);
        if (ran.measured.tokens_per_step > 0)
            dtp_validation_measure(&ran.report, row);
        if (status == DTP_OK)
            status = predict_imbalanced(&ran.simulated, row, v->context->faults);
    }
    dtp_ran_job_release(&ran);
    return status;
}

static enum dtp_status resume(struct dtp_validate *v)
{
    struct dtp_validation *rows;
    size_t count;
    enum dtp_status status = dtp_validation_read(v->context->arguments->output, &rows, &count, v->context->faults);
    if (status != DTP_OK)
        return status;
    v->done = v->resumed = v->file.rows;
    memcpy(v->rows, rows, v->done * sizeof *rows);
    free(rows);
    for (uint64_t i = 0; i < v->done && status == DTP_OK; i++)
        if (v->rows[i].status == DTP_OK)
            status = predict_again(v, i);
    for (uint64_t i = 0; i < v->done; i++)
        dtp_validation_judge(&v->rows[i], &v->bounds);
    return status;
}

/* ---- files ------------------------------------------------------------------------------------------------------- */

static enum dtp_status open_file(struct dtp_validate *v)
{
    const struct dtp_arguments *a = v->context->arguments;
    struct dtp_faults *faults = v->context->faults;
    if (!a->output)
        return a->resume
                   ? dtp_fault(faults, DTP_BAD_INPUT, NULL, 0, "--resume: of which file? give it with -o FILE.csv")
                   : DTP_OK;
    char *header = dtp_validation_header();
    if (!header)
        return dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "out of memory");
    const struct dtp_row_file_kind kind = {DTP_VALIDATION_SCHEMA, header, dtp_validate_list_digest(&v->list),
                                           dtp_validate_list_digest_as_typed(&v->list), !a->resume};
    enum dtp_status status = a->resume ? dtp_validation_widen(a->output, faults) : DTP_OK;
    if (status == DTP_OK)
        status = dtp_row_file_open(a->output, &kind, v->list.count, &v->file, faults);
    free(header);
    v->file_open = status == DTP_OK;
    if (status == DTP_OK && v->file.plain)
        status = make_folder(v, a->output);
    return status == DTP_OK && v->file.rows > 0 ? resume(v) : status;
}

/* `compared`: only runs whose times are compared. */
static void write_rows(const struct dtp_validate *v, bool compared, FILE *out)
{
    char *header = dtp_validation_header();
    if (header)
        fputs(header, out);
    for (uint64_t i = 0; i < v->done && header; i++)
        if (!compared || v->rows[i].compared)
            dtp_validation_write_row(&v->file, i, &v->rows[i], out);
    free(header);
}

static void write_compared(const void *validate, FILE *out)
{
    write_rows(validate, true, out);
}

/* Predictions of rows that were there may be others now. */
static enum dtp_status rewrite(const struct dtp_validate *v)
{
    struct dtp_output_file output;
    if (!v->file_open || !v->file.plain || v->resumed == 0)
        return DTP_OK;
    enum dtp_status status = dtp_output_open(v->file.path, &output, v->context->faults);
    if (status != DTP_OK)
        return status;
    write_rows(v, false, output.file);
    return dtp_output_close(&output, v->context->faults);
}

static enum dtp_status draw(const struct dtp_validate *v)
{
    const char *figure = v->context->arguments->chart;
    bool any = false;
    for (uint64_t i = 0; i < v->done; i++)
        any |= v->rows[i].compared != 0;
    if (figure && any)
        return dtp_chart_draw_written(DTP_CHART_BACKTEST, write_compared, v, figure,
                                      "Predicted against measured tokens/s", v->context->faults);
    if (figure)
        fprintf(stderr, "%s: not drawn, no run's time is compared\n", figure);
    return DTP_OK;
}

/* ---- the command ------------------------------------------------------------------------------------------------- */

static enum dtp_status say_stopped(const struct dtp_validate *v)
{
    return dtp_fault(v->context->faults, DTP_ENVIRONMENT, NULL, 0, "stopped after %" PRIu64 " of %" PRIu64 " runs%s",
                     v->done, v->list.count, v->file_open ? "; --resume goes on from there" : "");
}

static enum dtp_status report(const struct dtp_validate *v)
{
    const struct dtp_context *context = v->context;
    struct dtp_refit_report refit = {.count = 0};
    bool refits = context->arguments->refit && !v->stopped;
    enum dtp_status status = refits ? dtp_validate_refit(v, &refit) : DTP_OK, said = DTP_OK;
    refits = refits && status == DTP_OK;
    if (context->arguments->json)
        said = dtp_validation_json(v->rows, v->done, &v->bounds, refits ? &refit : NULL, context->out, context->faults);
    else
        dtp_validation_text(v->rows, v->done, &v->bounds, &context->page);
    if (refits && !context->arguments->json)
        dtp_refit_text(&refit, &context->page);
    free(refit.results);
    free(refit.written);
    status = dtp_worse(status, said);
    for (uint64_t i = 0; i < v->done; i++) {
        enum dtp_status run = v->rows[i].status       ? (enum dtp_status)v->rows[i].status
                              : v->rows[i].outside[0] ? DTP_NO
                                                      : DTP_OK;
        status = dtp_worse(status, run);
    }
    return v->stopped ? say_stopped(v) : status;
}

static enum dtp_status validate(struct dtp_validate *v)
{
    v->rows = calloc(v->list.count, sizeof *v->rows);
    if (!v->rows)
        return dtp_fault(v->context->faults, DTP_ENVIRONMENT, NULL, 0, "out of memory");
    enum dtp_status status = open_file(v), said;
    v->started_s = dtp_now_s();
    dtp_stop_listen(false);
    for (uint64_t run = v->done; run < v->list.count && status == DTP_OK && !v->stopped; run++) {
        status = one_run(v, run);
        v->stopped = v->stopped || (told_to_stop() && run + 1 < v->list.count);
    }
    if (status == DTP_OK)
        status = rewrite(v);
    if (v->done == 0)
        return v->stopped && status == DTP_OK ? say_stopped(v) : status;
    said = report(v);
    if (said != DTP_ENVIRONMENT && status == DTP_OK)
        status = draw(v);
    return dtp_worse(said, status);
}

static void warn_of_chart(const struct dtp_context *context)
{
    const char *figure = context->arguments->chart;
    char said[DTP_FAULT_TEXT_BYTES] = "";
    if (figure)
        dtp_chart_foretell(figure, said, sizeof said);
    if (said[0])
        fprintf(stderr, "dtplan: warning: %s\n", said);
}

enum dtp_status dtp_command_validate(const struct dtp_context *context)
{
    struct dtp_validate v = {.context = context, .bounds = dtp_validation_bounds_default()};
    if (context->arguments->tolerance > 0)
        v.bounds.step_fraction = context->arguments->tolerance;
    warn_of_chart(context);
    enum dtp_status status = dtp_context_catalog(context, &v.catalog);
    if (status != DTP_OK)
        return status;
    status = dtp_validate_list_read(context, &v.catalog, &v.list);
    if (status == DTP_OK)
        status = validate(&v);
    if (v.file_open) {
        enum dtp_status closed = dtp_row_file_close(&v.file, context->faults);
        status = dtp_worse(status, closed);
    }
    dtp_validate_list_destroy(&v.list);
    dtp_catalog_destroy(&v.catalog);
    free(v.folder);
    free(v.rows);
    return status;
}
