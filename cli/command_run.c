/* dtplan run: predicts a job, has it run by dtplan-exec, and says both side by side. */
#include "cli/command.h"

#include "cli/loss_beside.h"
#include "cli/run_job.h"
#include "cli/set_job.h"
#include "cli/stages_run.h"
#include "cli/step_tables.h"
#include "runtime/runtimes.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

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

static enum dtp_status say(const struct dtp_context *context, const struct dtp_ran_job *ran)
{
    const struct dtp_arguments *a = context->arguments;
    enum dtp_status status = DTP_OK;
    if (ran->simulated.set.role_count > 1)
        return dtp_stages_say(context, ran);
    if (a->json)
        status = dtp_run_json(&ran->report, context->out, context->faults);
    else
        dtp_run_text(&ran->report, &context->page);
    if (status == DTP_OK && ran->simulated.job.plan.runtime->executed && !ran->timed && (a->trace || a->timeline))
        fprintf(stderr,
                "dtplan: warning: %s is not written: operations are timed in the last two steps, before which this run "
                "was stopped\n",
                a->trace ? a->trace : a->timeline);
    if (status != DTP_OK || !ran->timed)
        return status;
    struct dtp_simulated measured = as_measured(&ran->simulated, &ran->measured); /* the spans predicted end here */
    return dtp_step_tables_write(context, &measured, NULL);
}

/* A script must not take a run that was cut short for one that is done. */
static enum dtp_status say_stopped(const struct dtp_context *context, uint64_t last_step)
{
    bool kept = false;
    for (size_t i = 0; i < context->arguments->file_count; i++)
        kept |= strcmp(context->arguments->files[i].flag, "--checkpoint") == 0;
    return dtp_fault(context->faults, DTP_ENVIRONMENT, NULL, 0, "stopped by a signal after step %" PRIu64 "%s",
                     last_step,
                     kept ? "; the same line with --resume goes on from there"
                          : "; with --checkpoint DIR it leaves what --resume goes on from");
}

/* Files that only one of both who run plans can write. */
static enum dtp_status check_files(const struct dtp_arguments *a, const struct dtp_scenario *scenario,
                                   struct dtp_faults *faults)
{
    const struct dtp_runtime *runtime = dtp_runtime_find(dtp_scenario_get(scenario, "runtime"));
    bool executed = !runtime || runtime->executed;
    if (executed && a->snapshot)
        return dtp_fault(faults, DTP_BAD_INPUT, NULL, 0,
                         "--snapshot: PyTorch writes it, of --runtime torch; the executor's memory is one arena, which "
                         "dtplan simulate --memory FILE.csv shows");
    if (!executed && (a->timeline || a->chart))
        return dtp_fault(faults, DTP_BAD_INPUT, NULL, 0,
                         "%s: the executor times operations, PyTorch's program does not; it has --trace and --snapshot",
                         a->timeline ? "--timeline" : "--chart");
    return DTP_OK;
}

static enum dtp_status run(const struct dtp_context *context, const struct dtp_catalog *catalog,
                           struct dtp_scenario *scenario)
{
    const struct dtp_arguments *a = context->arguments;
    const struct dtp_run_job job = {context, catalog, scenario, NULL, true};
    struct dtp_ran_job ran;
    enum dtp_status status = dtp_run_take_defaults(scenario, context->faults), said = DTP_OK;
    if (status == DTP_OK)
        status = check_files(a, scenario, context->faults);
    if (status == DTP_OK)
        status = dtp_loss_beside_check(a->loss_beside, context->faults);
    if (status == DTP_OK)
        status = dtp_run_take_device(scenario, a->passed, a->passed_count, context->faults);
    if (status != DTP_OK)
        return status;
    status = dtp_job_run(&job, &ran);
    if (ran.measured.last_step > ran.measured.first_step) {
        enum dtp_status beside = status == DTP_OK && a->loss_beside
                                     ? dtp_loss_beside_read(a->loss_beside, &ran.report, context->faults)
                                     : DTP_OK;
        said = dtp_worse(beside, say(context, &ran));
    }
    if (status == DTP_OK && ran.measured.interrupted)
        status = say_stopped(context, ran.measured.last_step);
    dtp_ran_job_release(&ran);
    return dtp_worse(status, said);
}

enum dtp_status dtp_command_run(const struct dtp_context *context)
{
    return context->arguments->program_file ? dtp_set_run(context) : dtp_context_with_scenario(context, run);
}
