#include "cli/set_job.h"

#include "cli/run_job.h"
#include "page/output_own.h"
#include "program/placement.h"
#include "record/run_report.h"
#include "sim/trace.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

struct set_job {
    const struct dtp_context *context;
    struct dtp_catalog catalog;
    struct dtp_scenario *scenario;
    struct dtp_cluster cluster;
    struct dtp_program_set set;
    struct dtp_timeline *timelines;
    uint64_t *arena_bytes;
    bool timed; /* the timelines stand */
    struct dtp_run_outcome measured;
};

static void release(struct set_job *job)
{
    for (uint32_t r = 0; job->timed && r < job->set.role_count; r++)
        dtp_timeline_release(&job->timelines[r]);
    free(job->timelines);
    free(job->arena_bytes);
    free(job->measured.roles);
    free(job->measured.ranks);
    free(job->measured.expert_rows);
    dtp_program_set_release(&job->set);
    dtp_scenario_destroy(job->scenario);
    dtp_catalog_destroy(&job->catalog);
}

/* ---- what is asked ----------------------------------------------------------------------------------------------- */

/* A model's and a plan's keys are what the program says itself. */
static enum dtp_status check_keys(const struct set_job *job)
{
    enum dtp_status status = DTP_OK;
    size_t count;
    const struct dtp_scenario_key *keys = dtp_scenario_keys(&count);
    for (size_t i = 0; i < count; i++) {
        size_t line = 0;
        if (!dtp_scenario_get(job->scenario, keys[i].key) || strcmp(keys[i].section, "cluster") == 0)
            continue;
        const char *where = dtp_scenario_place(job->scenario, keys[i].key, &line);
        status = dtp_fault_about(job->context->faults, DTP_BAD_INPUT, where, line,
                                 dtp_scenario_word(job->scenario, keys[i].key),
                                 "is what the program of --program-file says itself; leave it out");
    }
    return status;
}

static enum dtp_status choose_gpus(struct set_job *job)
{
    char ranks[16];
    if (dtp_scenario_get(job->scenario, "gpus") || dtp_scenario_get(job->scenario, "nodes"))
        return DTP_OK;
    snprintf(ranks, sizeof ranks, "%" PRIu32, dtp_program_set_ranks(&job->set));
    return dtp_scenario_set(job->scenario, "gpus", ranks, "--program-file", 0, job->context->faults);
}

static enum dtp_status resolve(struct set_job *job)
{
    const struct dtp_arguments *a = job->context->arguments;
    struct dtp_faults *faults = job->context->faults;
    enum dtp_status status = dtp_context_catalog(job->context, &job->catalog);
    if (status == DTP_OK)
        status = dtp_context_scenario(job->context, &job->catalog, &job->scenario);
    if (status == DTP_OK)
        status = dtp_run_take_device(job->scenario, a->passed, a->passed_count, faults);
    if (status == DTP_OK)
        status = check_keys(job);
    if (status == DTP_OK)
        status = dtp_program_set_read_file(a->program_file, &job->set, faults);
    if (status == DTP_OK)
        status = choose_gpus(job);
    if (status == DTP_OK)
        status = dtp_scenario_resolve_cluster(job->scenario, &job->catalog, &job->cluster, faults);
    if (status == DTP_OK && job->cluster.gpus != dtp_program_set_ranks(&job->set))
        status = dtp_fault(faults, DTP_BAD_INPUT, a->program_file, 0,
                           "has %" PRIu32 " ranks, and the cluster %" PRIu32 " GPUs; leave --gpus out",
                           dtp_program_set_ranks(&job->set), job->cluster.gpus);
    return status;
}

/* ---- the prediction ---------------------------------------------------------------------------------------------- */

static enum dtp_status place(struct set_job *job)
{
    enum dtp_status status = DTP_OK;
    for (uint32_t r = 0; r < job->set.role_count && status == DTP_OK; r++) {
        struct dtp_placement placement;
        status = dtp_program_place_tight(job->set.roles[r].program, &placement, job->context->faults);
        job->arena_bytes[r] = status == DTP_OK ? placement.arena_bytes : 0;
        if (status == DTP_OK)
            dtp_placement_release(&placement);
    }
    return status;
}

static enum dtp_status predict(struct set_job *job)
{
    struct dtp_simulation_options options = dtp_simulation_options_default();
    struct dtp_faults *faults = job->context->faults;
    enum dtp_issue_order order = dtp_cluster_is_host(&job->cluster) ? DTP_ISSUE_IN_LINE : DTP_ISSUE_STREAMS;
    options.compute_factor = job->context->arguments->straggler;
    job->timelines = calloc(job->set.role_count, sizeof *job->timelines);
    job->arena_bytes = calloc(job->set.role_count, sizeof *job->arena_bytes);
    if (!job->timelines || !job->arena_bytes)
        return dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "out of memory");
    if (!dtp_cluster_has_times(&job->cluster)) {
        enum dtp_status status = dtp_program_set_verify(&job->set, order, faults);
        return status == DTP_OK ? place(job) : status;
    }
    enum dtp_status status = dtp_simulate_set(&job->set, &job->cluster, &options, job->timelines, faults);
    job->timed = status == DTP_OK;
    return status == DTP_OK ? place(job) : status;
}

/* ---- what is said ------------------------------------------------------------------------------------------------ */

static struct dtp_roles_report report_of(const struct set_job *job, const struct dtp_run_outcome *measured)
{
    return (struct dtp_roles_report){.name = job->context->arguments->program_file,
                                     .set = &job->set,
                                     .cluster = &job->cluster,
                                     .timelines =
                                         job->timed && !(measured && dtp_run_shares(measured)) ? job->timelines : NULL,
                                     .arena_bytes = job->arena_bytes,
                                     .measured = measured};
}

static enum dtp_status write_one(const struct set_job *job, bool json, const char *path)
{
    struct dtp_output_file output;
    struct dtp_faults *faults = job->context->faults;
    const struct dtp_roles_report report = report_of(job, NULL);
    if (path && !job->timed)
        return dtp_fault(faults, DTP_BAD_INPUT, NULL, 0,
                         "%s: no time is known of these cores; measure them with dtplan probe --device host, and give "
                         "the file to --machine",
                         path);
    enum dtp_status status = path ? dtp_output_open(path, &output, faults) : DTP_OK;
    if (!path || status != DTP_OK)
        return status;
    if (json)
        status = dtp_trace_write_set_json(&job->set, job->timelines, output.file, faults);
    else
        dtp_roles_write_timeline(&report, output.file);
    return json ? dtp_output_end_sealed(&output, DTP_OUTPUT_TRACE, status, faults)
                : dtp_output_end(&output, status, faults);
}

static enum dtp_status say(const struct set_job *job, const struct dtp_run_outcome *measured)
{
    const struct dtp_context *context = job->context;
    const struct dtp_roles_report report = report_of(job, measured);
    if (context->arguments->json)
        return dtp_roles_json(&report, context->out, context->faults);
    dtp_roles_text(&report, &context->page);
    return DTP_OK;
}

/* Options of a job that a set has no use for. */
static enum dtp_status check_options(const struct dtp_context *context, bool runs)
{
    const struct dtp_arguments *a = context->arguments;
    const char *flag = a->write_program           ? "--write-program"
                       : a->memory                ? "--memory"
                       : a->charts                ? "--charts"
                       : a->chart                 ? "--chart"
                       : !runs && a->passed_count ? a->passed[0].flag
                       : a->rank_deviation > 0    ? "--rank-deviation"
                       : runs && a->trace         ? "--trace"
                       : runs && a->timeline      ? "--timeline"
                                                  : NULL;
    return flag ? dtp_fault(context->faults, DTP_BAD_INPUT, NULL, 0,
                            "%s: not of a program file; simulate --program-file has --trace, --timeline and --json",
                            flag)
                : DTP_OK;
}

enum dtp_status dtp_set_simulate(const struct dtp_context *context)
{
    struct set_job job = {.context = context};
    const struct dtp_arguments *a = context->arguments;
    enum dtp_status status = check_options(context, false);
    if (status == DTP_OK)
        status = resolve(&job);
    if (status == DTP_OK)
        status = predict(&job);
    if (status == DTP_OK)
        status = write_one(&job, true, a->trace);
    if (status == DTP_OK)
        status = write_one(&job, false, a->timeline);
    if (status == DTP_OK)
        status = say(&job, NULL);
    release(&job);
    return status;
}

/* ---- the run ----------------------------------------------------------------------------------------------------- */

static enum dtp_status execute(struct set_job *job)
{
    struct dtp_run_process process = {.context = job->context,
                                      .scenario = job->scenario,
                                      .program = job->context->arguments->program_file,
                                      .alone = true,
                                      .hear = dtp_run_listener_hear};
    process.listener = dtp_run_listener_create(NULL, true, &job->measured);
    if (!process.listener)
        return dtp_fault(job->context->faults, DTP_ENVIRONMENT, NULL, 0, "out of memory");
    enum dtp_status status = dtp_run_process(&process);
    dtp_run_listener_finish(process.listener);
    return status;
}

enum dtp_status dtp_set_run(const struct dtp_context *context)
{
    struct set_job job = {.context = context};
    enum dtp_status status = check_options(context, true), said = DTP_OK;
    if (status == DTP_OK)
        status = resolve(&job);
    if (status == DTP_OK)
        status = predict(&job);
    if (status == DTP_OK)
        status = execute(&job);
    if (job.measured.last_step > job.measured.first_step)
        said = say(&job, &job.measured);
    if (status == DTP_OK && job.measured.interrupted)
        status = dtp_fault(context->faults, DTP_ENVIRONMENT, NULL, 0, "stopped by a signal after step %" PRIu64,
                           job.measured.last_step);
    release(&job);
    return dtp_worse(status, said);
}
