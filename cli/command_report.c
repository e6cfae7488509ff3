/* dtplan report SCENARIO.ini|SWEEP.csv [--KEY VALUE ...] [-o PAGE.html]: one HTML page to decide by. */
#include "cli/command.h"

#include "record/backtest_report.h"
#include "html/html_report.h"
#include "job/estimate.h"
#include "page/shell_word.h"

#include <stdlib.h>
#include <string.h>

#define MOST_ROWS 24 /* of one table around the plan */

/* ---- the commands of the page ------------------------------------------------------------------------------------ */

static bool is_switch(const char *key)
{
    size_t count;
    const struct dtp_scenario_key *keys = dtp_scenario_keys(&count);
    for (size_t i = 0; i < count; i++)
        if (strcmp(keys[i].key, key) == 0)
            return keys[i].value == NULL;
    return false;
}

static void write_setting(const struct dtp_typed_key *s, FILE *file)
{
    bool on_or_off = is_switch(s->key) && (strcmp(s->value, "true") == 0 || strcmp(s->value, "false") == 0);
    fputs(on_or_off && s->value[0] == 'f' ? " --no-" : " --", file);
    for (const char *c = s->key; *c; c++)
        fputc(*c == '_' ? '-' : *c, file);
    if (on_or_off)
        return;
    fputc(is_switch(s->key) ? '=' : ' ', file);
    dtp_shell_word(file, s->value);
}

/* Scenario files, keys and catalogues of the line, to be typed again. Caller frees; NULL: no memory. */
static char *flags_of(const struct dtp_arguments *a)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *file = open_memstream(&text, &bytes);
    if (!file)
        return NULL;
    for (size_t i = 0; i < a->word_count; i++) {
        fputs(i ? " " : "", file);
        dtp_shell_word(file, a->words[i]);
    }
    for (size_t i = 0; i < a->from_count; i++) {
        fputs(" --from ", file);
        dtp_shell_word(file, a->froms[i]);
    }
    for (size_t i = 0; i < a->setting_count; i++)
        write_setting(&a->settings[i], file);
    for (size_t i = 0; i < a->catalog_count; i++) {
        fputs(" --catalog ", file);
        dtp_shell_word(file, a->catalogs[i]);
    }
    if (fclose(file) != 0) {
        free(text);
        return NULL;
    }
    memmove(text, text + (text[0] == ' '), bytes + 1 - (text[0] == ' '));
    return text;
}

/* ---- tables around the plan -------------------------------------------------------------------------------------- */

struct material {
    const struct dtp_context *context;
    struct dtp_catalog catalog;
    struct dtp_scenario *scenario;
    struct dtp_report report;
    struct dtp_whatif whatif;
    struct dtp_simulated simulated;
    struct dtp_pipeline_stages stages; /* of it */
    struct dtp_faults not_simulated;
    struct dtp_table *tables[4]; /* the plan, strategies, micro batches, GPUs */
    struct dtp_backtest *backtests[3];
    size_t backtest_count;
    struct dtp_table *runs;
    struct dtp_like_runs like_runs;
    char *flags;
};

/* A text that was written becomes a table; takes `file`, which writes into *text. */
static enum dtp_status parse_written(FILE *file, char **text, size_t *bytes, const char *name, struct dtp_table **out,
                                     struct dtp_faults *faults)
{
    enum dtp_status status = fclose(file) == 0 ? dtp_table_parse(name, *text, *bytes, out, faults)
                                               : dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "out of memory");
    free(*text);
    return status;
}

/* One CSV row: the plan with one key changed, by formulas, which compare many; or, with no key, the plan itself, by
 * what `dtplan plan` goes by. What is refused is left out: these tables show what could be chosen. */
static enum dtp_status add_row(struct material *m, const char *key, const char *value, FILE *file)
{
    static struct dtp_faults own; /* 16 KiB */
    struct dtp_scenario *changed;
    struct dtp_job job;
    struct dtp_report *report = malloc(sizeof *report);
    enum dtp_status status = report ? dtp_scenario_copy(m->scenario, &changed, m->context->faults)
                                    : dtp_fault(m->context->faults, DTP_ENVIRONMENT, NULL, 0, "out of memory");
    if (status != DTP_OK) {
        free(report);
        return status;
    }
    memset(&own, 0, sizeof own);
    memset(report, 0, sizeof *report);
    status = key ? dtp_scenario_set(changed, key, value, "command line", 0, &own) : DTP_OK;
    if (status == DTP_OK)
        status = dtp_scenario_resolve(changed, &m->catalog, &job, &own);
    if (status == DTP_OK)
        status = dtp_report_predict(&job, &m->catalog, key ? DTP_FIDELITY_CLOSED : DTP_FIDELITY_BEST, report, &own);
    if (status == DTP_OK) {
        struct dtp_comparison_row row = {.report = report};
        snprintf(row.strategy, sizeof row.strategy, "%s", dtp_strategy_text(job.plan.strategy));
        dtp_report_csv_row(&row, file);
    }
    dtp_scenario_destroy(changed);
    free(report);
    return status == DTP_ENVIRONMENT ? dtp_fault(m->context->faults, status, NULL, 0, "%s", own.text[0]) : DTP_OK;
}

static enum dtp_status make_table(struct material *m, const char *key, char values[][24], size_t count,
                                  struct dtp_table **out)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *file = open_memstream(&text, &bytes);
    if (!file)
        return dtp_fault(m->context->faults, DTP_ENVIRONMENT, NULL, 0, "out of memory");
    enum dtp_status status = DTP_OK;
    dtp_report_csv_header(file);
    for (size_t i = 0; i < count && status == DTP_OK; i++)
        status = add_row(m, key, values[i], file);
    enum dtp_status parsed = parse_written(file, &text, &bytes, key ? key : "plan", out, m->context->faults);
    return status != DTP_OK ? status : parsed;
}

/* `own` and powers of two up to `most`, in order. */
static size_t powers_and(uint64_t own, uint64_t most, char values[][24])
{
    size_t count = 0;
    bool named = false;
    for (uint64_t power = 1; power <= most && count + 2 < MOST_ROWS; power *= 2) {
        if (!named && own < power)
            snprintf(values[count++], sizeof values[0], "%llu", (unsigned long long)own);
        named = named || own <= power;
        snprintf(values[count++], sizeof values[0], "%llu", (unsigned long long)power);
    }
    if (!named)
        snprintf(values[count++], sizeof values[0], "%llu", (unsigned long long)own);
    return count;
}

static enum dtp_status make_tables(struct material *m)
{
    char values[MOST_ROWS][24];
    const struct dtp_job *job = &m->report.job;
    enum dtp_status status = make_table(m, NULL, values, 1, &m->tables[0]);
    for (int i = 0; i < DTP_STRATEGY_COUNT; i++)
        snprintf(values[i], sizeof values[0], "%s", dtp_strategy_text((enum dtp_strategy)i));
    if (status == DTP_OK)
        status = make_table(m, "strategy", values, DTP_STRATEGY_COUNT, &m->tables[1]);
    size_t count =
        powers_and(job->plan.micro_batch,
                   4 * (uint64_t)job->plan.micro_batch > 16 ? 4 * (uint64_t)job->plan.micro_batch : 16, values);
    if (status == DTP_OK)
        status = make_table(m, "micro_batch", values, count, &m->tables[2]);
    count = powers_and(job->cluster.gpus, 16 * (uint64_t)job->cluster.gpus, values);
    if (status == DTP_OK)
        status = make_table(m, "gpus", values, count, &m->tables[3]);
    return status;
}

/* ---- our own error ----------------------------------------------------------------------------------------------- */

static enum dtp_status score_runs(struct material *m)
{
    static const char *const names[] = {"published_runs.csv", "h200_torch_runs.csv", "holdout_torch_runs.csv"};
    struct dtp_predictor closed = dtp_predictor_closed();
    struct dtp_faults *faults = m->context->faults;
    char directory[4096], path[4200], *text = NULL;
    size_t bytes = 0;
    enum dtp_status status = dtp_data_directory(directory, sizeof directory, faults);
    FILE *file = status == DTP_OK ? open_memstream(&text, &bytes) : NULL;
    if (!file)
        return status != DTP_OK ? status : dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "out of memory");
    for (size_t i = 0; i < 3 && status == DTP_OK; i++) {
        snprintf(path, sizeof path, "%s/%s", directory, names[i]);
        status = dtp_backtest_run_only(path, NULL, &closed, &m->catalog, &m->backtests[i], faults);
        if (status != DTP_OK)
            break;
        dtp_backtest_print_rows(file, m->backtests[i], i == 0);
        m->backtest_count++;
    }
    enum dtp_status parsed = parse_written(file, &text, &bytes, "runs", &m->runs, faults);
    if (status == DTP_OK && parsed == DTP_OK)
        status = dtp_like_runs(&m->report.job, (const struct dtp_backtest *const *)m->backtests, m->backtest_count,
                               &m->like_runs, faults);
    return status != DTP_OK ? status : parsed;
}

/* ---- pages ------------------------------------------------------------------------------------------------------- */

/* A job that has no step program is predicted all the same: the page says why it has none. */
static enum dtp_status simulate(struct material *m, const struct dtp_job *job)
{
    struct dtp_simulation_options options = dtp_simulation_options_default();
    enum dtp_status status = dtp_simulated_create(job, &options, &m->simulated, &m->not_simulated);
    if (status == DTP_ENVIRONMENT)
        return dtp_fault(m->context->faults, status, NULL, 0, "%s", m->not_simulated.text[0]);
    return status == DTP_OK ? dtp_pipeline_stages_of(&m->simulated, &m->stages, m->context->faults) : DTP_OK;
}

static enum dtp_status gather(struct material *m)
{
    struct dtp_job job;
    struct dtp_faults *faults = m->context->faults;
    struct dtp_predictor predictor = dtp_predictor_closed();
    enum dtp_status status = dtp_context_scenario(m->context, &m->catalog, &m->scenario);
    if (status == DTP_OK)
        status = dtp_scenario_resolve(m->scenario, &m->catalog, &job, faults);
    if (status == DTP_OK)
        status = dtp_report_predict(&job, &m->catalog, DTP_FIDELITY_BEST, &m->report, faults);
    if (status == DTP_OK) {
        struct dtp_prediction estimate; /* the advisor goes by it */
        status = dtp_estimate(&job.transformer, &job.cluster, &job.plan, &estimate, faults);
        if (status != DTP_OK)
            return status;
        dtp_advise(&job, &estimate, m->scenario, &m->catalog, &m->report.advice);
        dtp_training_cost_of(&job, &m->report.prediction.throughput, m->report.plain_step_s, &m->report.money, true,
                             &m->report.training);
        status = dtp_whatif(m->scenario, &m->catalog, &predictor, NULL, &m->whatif, faults);
    }
    if (status == DTP_OK)
        status = simulate(m, &job);
    if (status == DTP_OK)
        status = make_tables(m);
    if (status == DTP_OK)
        status = score_runs(m);
    m->flags = flags_of(m->context->arguments);
    return status == DTP_OK && !m->flags ? dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "out of memory") : status;
}

static void write_job(const struct material *m, FILE *file)
{
    struct dtp_html_job page = {.report = &m->report,
                                .catalog = &m->catalog,
                                .plan = m->tables[0],
                                .strategies = m->tables[1],
                                .micro_batches = m->tables[2],
                                .gpus = m->tables[3],
                                .simulated = m->simulated.program ? &m->simulated : NULL,
                                .stages = &m->stages,
                                .not_simulated = m->not_simulated.text[0],
                                .whatif = &m->whatif,
                                .backtests = (const struct dtp_backtest *const *)m->backtests,
                                .backtest_count = m->backtest_count,
                                .runs = m->runs,
                                .like_runs = &m->like_runs,
                                .flags = m->flags,
                                .version = DTPLAN_VERSION};
    dtp_html_job(&page, file);
}

static void release(struct material *m)
{
    for (size_t i = 0; i < 4; i++)
        dtp_table_destroy(m->tables[i]);
    for (size_t i = 0; i < m->backtest_count; i++)
        dtp_backtest_destroy(m->backtests[i]);
    dtp_table_destroy(m->runs);
    dtp_pipeline_stages_release(&m->stages);
    dtp_simulated_release(&m->simulated);
    dtp_scenario_destroy(m->scenario);
    dtp_catalog_destroy(&m->catalog);
    free(m->flags);
    free(m);
}

static enum dtp_status report_job(const struct dtp_context *context, FILE *file)
{
    struct material *m = calloc(1, sizeof *m);
    if (!m)
        return dtp_fault(context->faults, DTP_ENVIRONMENT, NULL, 0, "out of memory");
    m->context = context;
    enum dtp_status status = dtp_context_catalog(context, &m->catalog);
    if (status == DTP_OK)
        status = gather(m);
    if (status == DTP_OK)
        write_job(m, file);
    const struct dtp_training_cost *training = &m->report.training;
    if (status == DTP_OK &&
        (m->report.prediction.memory.verdict == DTP_VERDICT_OOM || training->late || training->over_budget))
        status = DTP_NO;
    release(m);
    return status;
}

static enum dtp_status report_sweep(const struct dtp_context *context, FILE *file)
{
    struct dtp_table *table = NULL;
    if (context->arguments->word_count != 1 || context->arguments->setting_count || context->arguments->catalog_count)
        return dtp_fault(context->faults, DTP_BAD_INPUT, context->arguments->words[0], 0,
                         "a table is reported as it is: give it alone, without keys, scenarios or catalogues");
    enum dtp_status status = dtp_table_read(context->arguments->words[0], &table, context->faults);
    if (status == DTP_OK)
        status = dtp_html_sweep(table, DTPLAN_VERSION, file, context->faults);
    dtp_table_destroy(table);
    return status;
}

static bool is_table(const char *word)
{
    size_t length = strlen(word);
    return length > 4 && strcmp(word + length - 4, ".csv") == 0;
}

/* A page of HTML under a figure's name, or a table's, opens in no program that people start by it. */
static enum dtp_status check_name(const char *path, struct dtp_faults *faults)
{
    static const char *const others[] = {".csv", ".json", ".pdf", ".png", ".svg", ".txt"};
    size_t length = path ? strlen(path) : 0;
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        size_t ending = strlen(others[i]);
        if (length > ending && strcmp(path + length - ending, others[i]) == 0)
            return dtp_fault(faults, DTP_BAD_INPUT, path, 0,
                             "--output: a report is a page of HTML; give it a name that ends in .html");
    }
    return DTP_OK;
}

enum dtp_status dtp_command_report(const struct dtp_context *context)
{
    const struct dtp_arguments *a = context->arguments;
    if (check_name(a->output, context->faults) != DTP_OK)
        return DTP_BAD_INPUT;
    char *text = NULL;
    size_t bytes = 0;
    FILE *page = open_memstream(&text, &bytes);
    enum dtp_status written = DTP_OK;
    if (!page)
        return dtp_fault(context->faults, DTP_ENVIRONMENT, NULL, 0, "out of memory");
    bool of_table = a->word_count > 0 && is_table(a->words[0]);
    enum dtp_status status = of_table ? report_sweep(context, page) : report_job(context, page);
    if (fclose(page) != 0)
        written = dtp_fault(context->faults, DTP_ENVIRONMENT, NULL, 0, "out of memory");
    else if (status <= DTP_NO && a->output)
        written = dtp_output_write_sealed(a->output, DTP_OUTPUT_PAGE, text, bytes, context->faults);
    else if (status <= DTP_NO)
        dtp_output_print_page(context->out, text, bytes);
    free(text);
    if (status <= DTP_NO && written == DTP_OK && a->output)
        fprintf(context->page.file, "%s: written\n", a->output);
    return dtp_worse(written, status);
}
