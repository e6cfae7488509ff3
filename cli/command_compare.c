/* dtplan compare FILE ... [SCENARIO.ini] [--KEY VALUE ...]: what other tools recorded of a run, beside its plan. */
#include "cli/command.h"
#include "cli/compare_refit.h"

#include "record/beside_report.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static bool is_scenario(const char *word)
{
    size_t length = strlen(word);
    return strcmp(word, "-") == 0 || (length > 4 && strcmp(word + length - 4, ".ini") == 0);
}

struct compare {
    const struct dtp_context *context;
    struct dtp_compared *beside;
    struct dtp_observed *observed;
};

static enum dtp_status say(const struct compare *c)
{
    dtp_beside_judge(c->beside);
    if (c->context->arguments->json)
        return dtp_beside_json(c->beside, c->context->out, c->context->faults);
    dtp_beside_text(c->beside, &c->context->page);
    return DTP_OK;
}

/* The earlier word of the same file, by whatever path; NULL: there is none, or it cannot be looked at, which reading it
 * says. */
static const char *named_before(const struct dtp_arguments *a, size_t word)
{
    struct stat this, other;
    if (stat(a->words[word], &this) != 0)
        return NULL;
    for (size_t i = 0; i < word; i++)
        if (!is_scenario(a->words[i]) && stat(a->words[i], &other) == 0 && this.st_dev == other.st_dev &&
            this.st_ino == other.st_ino)
            return a->words[i];
    return NULL;
}

/* The words that are scenarios are the job's, the others are records. */
static enum dtp_status read_records(struct compare *c, const char **scenarios, size_t *scenario_count)
{
    const struct dtp_arguments *a = c->context->arguments;
    enum dtp_status worst = DTP_OK;
    for (size_t i = 0; i < a->word_count; i++) {
        if (is_scenario(a->words[i])) {
            scenarios[(*scenario_count)++] = a->words[i];
            continue;
        }
        const char *before = named_before(a, i);
        if (before)
            return dtp_fault(c->context->faults, DTP_BAD_INPUT, a->words[i], 0,
                             "compare: is the file %s, which is named already; one record counts once", before);
        enum dtp_status status = dtp_observed_read(a->words[i], &c->observed[c->beside->count], c->context->faults);
        c->beside->count += status == DTP_OK;
        worst = dtp_worse(worst, status);
    }
    if (worst == DTP_OK && c->beside->count == 0)
        return dtp_fault(
            c->context->faults, DTP_BAD_INPUT, NULL, 0,
            "compare: no record of a run is named; write dtplan compare FILE, a history of memory, a trace or a "
            "log");
    return worst;
}

static enum dtp_status judge_job(struct compare *c, const struct dtp_context *context)
{
    struct dtp_simulation_options options = dtp_simulation_options_default();
    struct dtp_catalog catalog;
    struct dtp_scenario *scenario = NULL;
    struct dtp_simulated *simulated = calloc(1, sizeof *simulated);
    struct dtp_job *job = calloc(1, sizeof *job);
    enum dtp_status status = simulated && job ? dtp_context_catalog(context, &catalog)
                                              : dtp_fault(context->faults, DTP_ENVIRONMENT, NULL, 0, "out of memory");
    bool predicted = false;
    if (status == DTP_OK) {
        status = dtp_context_scenario(context, &catalog, &scenario);
        if (status == DTP_OK)
            status = dtp_scenario_resolve(scenario, &catalog, job, context->faults);
        if (status == DTP_OK)
            status = dtp_simulated_create(job, &options, simulated, context->faults);
        predicted = status == DTP_OK;
        if (predicted)
            dtp_beside_plan_of(simulated, &c->beside->plan);
        if (predicted)
            status = say(c);
        if (status == DTP_OK && context->arguments->output)
            status = dtp_compare_refit(context, c->beside, simulated);
        if (predicted)
            dtp_simulated_release(simulated);
        dtp_scenario_destroy(scenario);
        dtp_catalog_destroy(&catalog);
    }
    free(job);
    free(simulated);
    return status;
}

enum dtp_status dtp_command_compare(const struct dtp_context *context)
{
    struct dtp_arguments arguments = *context->arguments;
    struct compare c = {context, calloc(1, sizeof *c.beside), calloc(arguments.word_count + 1, sizeof *c.observed)};
    const char **scenarios = calloc(arguments.word_count + 1, sizeof *scenarios);
    size_t scenario_count = 0;
    enum dtp_status status = c.beside && c.observed && scenarios
                                 ? read_records(&c, scenarios, &scenario_count)
                                 : dtp_fault(context->faults, DTP_ENVIRONMENT, NULL, 0, "out of memory");
    if (status == DTP_OK) {
        struct dtp_context jobs = *context;
        c.beside->observed = c.observed;
        arguments.words = scenarios;
        arguments.word_count = scenario_count;
        jobs.arguments = &arguments;
        bool planned = scenario_count + arguments.setting_count + arguments.from_count > 0;
        if (arguments.output && !planned)
            status = dtp_fault(context->faults, DTP_BAD_INPUT, NULL, 0,
                               "--output: a machine file is fitted to what a plan does; add the keys of the run's");
        else
            status = planned ? judge_job(&c, &jobs) : say(&c);
    }
    free(scenarios);
    free(c.observed);
    free(c.beside);
    return status;
}
