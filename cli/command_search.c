/* dtplan search: which GPUs, how many and which plan train so many tokens, by when and for how much. */
#include "cli/command.h"

#include "base/append.h"
#include "base/number.h"
#include "cli/progress.h"
#include "cli/stop.h"
#include "record/search_report.h"
#include "runtime/runtimes.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define DEFAULT_MAX_GPUS 1024u
#define SIMULATED 24u /* candidates */
/* Tokens that ranks of context parallelism keep at least, where nobody gives cp: NeMo's recipe of Llama 3 70B has 8,192
 * on two ranks, Llama 3 405B (table 4 of its paper) 131,072 on 16. Of shorter ones each rank's kernels are small. */
#define CONTEXT_RANK_TOKENS 4096u

static const struct {
    const char *key, *values;
} defaults[] = {
#define DEFAULT_AXIS(key, values) {key, values},
    DTP_SEARCH_AXES(DEFAULT_AXIS)
#undef DEFAULT_AXIS
};
#define DEFAULT_COUNT (sizeof defaults / sizeof *defaults)

static bool is_default_axis(const char *key)
{
    for (size_t i = 0; i < DEFAULT_COUNT; i++)
        if (strcmp(defaults[i].key, key) == 0)
            return true;
    return false;
}

/* The last value typed for a key, else that of the scenario files, else NULL. */
static const char *given(const struct dtp_arguments *a, const struct dtp_scenario *base, const char *key)
{
    for (size_t left = a->setting_count; left > 0; left--)
        if (strcmp(a->settings[left - 1].key, key) == 0)
            return a->settings[left - 1].value;
    return dtp_scenario_get(base, key);
}

/* Which axis of the mesh a key sizes or cuts; 0: none. */
static unsigned axis_of(const char *key)
{
    return strcmp(key, "tp") == 0                                         ? DTP_AXES(TP)
           : strcmp(key, "cp") == 0                                       ? DTP_AXES(CP)
           : strcmp(key, "pp") == 0 || strcmp(key, "virtual_stages") == 0 ? DTP_AXES(PP)
                                                                          : 0;
}

static bool is_one_kind_of_gpu(const struct dtp_arguments *a, const struct dtp_scenario *base)
{
    const char *gpu = given(a, base, "gpu");
    return given(a, base, "machine") || (gpu && strcmp(gpu, "any") != 0 && strcmp(gpu, "all") != 0);
}

/* Of a list of strategies those that the runtime has, and its own word where none of them shards all. */
static const char *strategies_of(const struct dtp_runtime *runtime, const char *list, char *out, size_t bytes)
{
    char word[32];
    out[0] = '\0';
    for (const char *next = list; *next; next += strspn(next, ",")) {
        enum dtp_strategy strategy;
        int length = (int)strcspn(next, ",");
        snprintf(word, sizeof word, "%.*s", length, next);
        if (dtp_strategy_parse(word, &strategy) && runtime->strategies & 1u << strategy)
            dtp_append_part(out, bytes, ",", "%s", word);
        next += length;
    }
    if (runtime->strategies & 1u << DTP_ZERO3 && !(runtime->strategies & 1u << DTP_FULL_SHARD))
        dtp_append(out, bytes, ",zero3");
    return out;
}

/* Whether the model that is named has experts; one that is given as a list, or none, counts as without. */
static bool has_experts(const struct dtp_arguments *a, const struct dtp_scenario *base,
                        const struct dtp_catalog *catalog)
{
    const char *experts = given(a, base, "experts"), *model = given(a, base, "model");
    if (experts || !model)
        return experts && strcmp(experts, "0") != 0;
    const struct dtp_hf_config *config = dtp_catalog_config(catalog, model);
    const struct dtp_transformer *preset =
        config ? &config->transformer : dtp_catalog_model(catalog, model, NULL, 0, NULL);
    return preset && preset->experts;
}

/* Of numbers of ranks those that leave each as many tokens; all of them where the sequence is a list. */
static const char *ranks_of_sequence(const char *seq, const char *list, char *out, size_t bytes)
{
    uint64_t tokens = dtp_plan_default().sequence;
    if (seq && !dtp_number_parse_integer(seq, true, 1, UINT32_MAX, &tokens))
        return list;
    snprintf(out, bytes, "1");
    for (const char *next = strchr(list, ','); next; next = strchr(next + 1, ',')) {
        uint64_t ranks = strtoull(next + 1, NULL, 10);
        if (tokens >= ranks * CONTEXT_RANK_TOKENS)
            dtp_append(out, bytes, ",%" PRIu64, ranks);
    }
    return out;
}

/* What the search takes for a key nobody gave: the table's, or what depends on others. NULL: no axis at all. */
static const char *default_values(const struct dtp_arguments *a, const struct dtp_scenario *base,
                                  const struct dtp_catalog *catalog, size_t index, char *out, size_t bytes)
{
    const char *key = defaults[index].key;
    const char *word = given(a, base, "runtime");
    const struct dtp_runtime *runtime = word ? dtp_runtime_find(word) : NULL; /* NULL of several, too */
    unsigned axis = axis_of(key);
    uint32_t most = a->max_gpus ? a->max_gpus : DEFAULT_MAX_GPUS;
    if (strcmp(key, "gpus") == 0 && given(a, base, "nodes"))
        return NULL;
    if (strcmp(key, "gpus") == 0) {
        snprintf(out, bytes, most > 1 ? "1..%" PRIu32 "x2" : "1", most);
        return out;
    }
    if (strcmp(key, "gpu") == 0 && given(a, base, "machine"))
        return NULL;
    if (strcmp(key, "accumulate") == 0)
        return given(a, base, "global_batch") || given(a, base, "global_batch_tokens") ? NULL : "1,2,4,8";
    if (axis && !(runtime && runtime->splits & axis && is_one_kind_of_gpu(a, base)))
        return NULL;
    if (strcmp(key, "cp") == 0)
        return ranks_of_sequence(given(a, base, "seq"), defaults[index].values, out, bytes);
    if (strcmp(key, "ep") == 0 &&
        !(runtime && runtime->expert_parallel && is_one_kind_of_gpu(a, base) && has_experts(a, base, catalog)))
        return NULL;
    if (strcmp(key, "compile") == 0 && runtime && !runtime->compiles)
        return NULL;
    if (strcmp(key, "strategy") == 0 && runtime)
        return strategies_of(runtime, defaults[index].values, out, bytes);
    return defaults[index].values;
}

/* First the keys that no default stands for, then the defaults in their order, each with the value given for it. */
static enum dtp_status read_axes(const struct dtp_context *context, const struct dtp_catalog *catalog,
                                 const struct dtp_scenario *base, struct dtp_axes *axes)
{
    const struct dtp_arguments *a = context->arguments;
    enum dtp_status worst = DTP_OK;
    char text[128];
    for (size_t i = 0; i < a->setting_count; i++)
        if (!is_default_axis(a->settings[i].key))
            worst = dtp_worse(worst, dtp_axes_add(axes, catalog, a->settings[i].key, a->settings[i].value,
                                                  "command line", context->faults));
    for (size_t i = 0; i < DEFAULT_COUNT; i++) {
        const char *values = given(a, base, defaults[i].key);
        if (!values)
            values = default_values(a, base, catalog, i, text, sizeof text);
        worst = dtp_worse(worst,
                          values ? dtp_axes_add(axes, catalog, defaults[i].key, values, "command line", context->faults)
                                 : DTP_OK);
    }
    return worst;
}

/* Takes the GPU of that name out of the axis; a name that the axis does not hold takes nothing. */
static enum dtp_status exclude(struct dtp_axis *gpu, const struct dtp_catalog *catalog, const char *name,
                               struct dtp_faults *faults)
{
    const struct dtp_gpu *out = dtp_catalog_gpu(catalog, name, "--exclude-gpu", 0, faults);
    size_t kept = 0;
    for (size_t i = 0; i < gpu->count && out; i++)
        if (dtp_catalog_gpu(catalog, gpu->values[i], NULL, 0, NULL) != out)
            gpu->values[kept++] = gpu->values[i];
    if (out)
        gpu->count = kept;
    return out ? DTP_OK : DTP_BAD_INPUT;
}

static enum dtp_status exclude_gpus(const struct dtp_context *context, struct dtp_axes *axes,
                                    const struct dtp_catalog *catalog)
{
    const char *names = context->arguments->exclude_gpus;
    struct dtp_axis *gpu = NULL;
    for (size_t i = 0; i < axes->count; i++)
        gpu = strcmp(axes->axes[i].key, "gpu") == 0 ? &axes->axes[i] : gpu;
    if (!names)
        return DTP_OK;
    if (!gpu)
        return dtp_fault(context->faults, DTP_BAD_INPUT, NULL, 0,
                         "--exclude-gpu: the machine says which GPU it is; leave one of them out");
    char *copy = strdup(names), *rest = copy;
    enum dtp_status worst = copy ? DTP_OK : dtp_fault(context->faults, DTP_ENVIRONMENT, NULL, 0, "out of memory");
    for (char *name; (name = strsep(&rest, ","));) {
        worst = dtp_worse(worst, exclude(gpu, catalog, name, context->faults));
    }
    free(copy);
    if (worst == DTP_OK && gpu->count == 0)
        worst = dtp_fault(context->faults, DTP_BAD_INPUT, NULL, 0, "--exclude-gpu: no GPU is left; name fewer");
    return worst;
}

struct watched {
    struct dtp_progress progress;
    uint64_t done, count; /* combinations */
};

static bool watch(void *context, uint64_t done, uint64_t count)
{
    struct watched *watched = context;
    watched->done = done, watched->count = count;
    dtp_progress_draw(&watched->progress, done, count);
    return !dtp_stop_asked();
}

/* Nothing is printed of part of a search: what it left out may be the best. */
static enum dtp_status say_stopped(const struct watched *watched, struct dtp_faults *faults)
{
    char done[32], count[32];
    dtp_page_grouped(watched->done, done, sizeof done);
    dtp_page_grouped(watched->count, count, sizeof count);
    if (watched->done < watched->count)
        return dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0,
                         "stopped after %s of %s combinations, of which none is recommended before all are compared; "
                         "give --gpu, --gpus or others of their keys for fewer",
                         done, count);
    return dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0,
                     "stopped while the best of %s combinations were compared and simulated; --fidelity bounds "
                     "simulates none",
                     count);
}

/* Of numbers of GPUs that were given, those up to --max-gpus: the default's end there anyway. */
static enum dtp_status keep_most_gpus(const struct dtp_context *context, const struct dtp_scenario *base,
                                      struct dtp_axes *axes)
{
    const struct dtp_arguments *a = context->arguments;
    struct dtp_axis *gpus = NULL;
    size_t kept = 0;
    if (!a->max_gpus)
        return DTP_OK;
    for (size_t i = 0; i < axes->count; i++)
        gpus = strcmp(axes->axes[i].key, "gpus") == 0 ? &axes->axes[i] : gpus;
    for (size_t i = 0; gpus && i < gpus->count; i++) {
        uint64_t count = 0;
        if (!dtp_number_parse_integer(gpus->values[i], false, 1, UINT32_MAX, &count) || count <= a->max_gpus)
            gpus->values[kept++] = gpus->values[i];
    }
    if (gpus)
        gpus->count = kept;
    if (kept)
        return DTP_OK;
    return dtp_fault(context->faults, DTP_BAD_INPUT, NULL, 0,
                     "--max-gpus: is %" PRIu32 ", and %s; leave one of them out", a->max_gpus,
                     given(a, base, "gpus") ? "--gpus names more alone" : "--nodes says how many there are");
}

static enum dtp_status print(const struct dtp_context *context, const struct dtp_search_question *question,
                             const struct dtp_search *search)
{
    if (context->arguments->json)
        return dtp_search_json(question, search, context->out, context->faults);
    if (context->arguments->csv)
        return dtp_search_csv(question, search, context->out, context->faults);
    dtp_search_text(question, search, &context->page);
    return DTP_OK;
}

static enum dtp_status run_search(const struct dtp_context *context, const struct dtp_catalog *catalog,
                                  const struct dtp_scenario *base, struct dtp_axes *axes)
{
    struct watched watched = {.progress = dtp_context_progress(context, "combinations", 0)};
    struct dtp_search_question question = {.base = base,
                                           .axes = axes,
                                           .catalog = catalog,
                                           .precision_pinned = given(context->arguments, base, "precision") != NULL,
                                           .simulate_count = context->arguments->closed ? 0 : SIMULATED,
                                           .max_nodes = context->arguments->max_nodes,
                                           .watch_context = &watched,
                                           .watch = watch};
    struct dtp_search search;
    if (!context->catalogues) /* of a program that calls us signals are its own */
        dtp_stop_listen(true);
    enum dtp_status status = dtp_search_thin(&question, axes, &question.thinned, context->faults);
    if (status == DTP_OK)
        status = dtp_search(&question, &search, context->faults);
    dtp_progress_end(&watched.progress);
    if (status == DTP_ENVIRONMENT && context->faults->count == 0)
        return say_stopped(&watched, context->faults);
    if (status != DTP_OK && status != DTP_NO)
        return status;
    enum dtp_status printed = print(context, &question, &search);
    dtp_search_release(&search);
    return dtp_worse(printed, status);
}

enum dtp_status dtp_command_search(const struct dtp_context *context)
{
    struct dtp_catalog catalog;
    struct dtp_scenario *base = NULL;
    struct dtp_axes axes = {0};
    enum dtp_status status = dtp_context_catalog(context, &catalog);
    if (status != DTP_OK)
        return status;
    status = dtp_context_files(context, &catalog, &base);
    if (status == DTP_OK)
        status = read_axes(context, &catalog, base, &axes);
    if (status == DTP_OK)
        status = dtp_context_has_model(&catalog, base, &axes, NULL, 0, context->faults);
    if (status == DTP_OK)
        status = exclude_gpus(context, &axes, &catalog);
    if (status == DTP_OK)
        status = keep_most_gpus(context, base, &axes);
    if (status == DTP_OK && !given(context->arguments, base, "tokens"))
        status = dtp_fault(context->faults, DTP_BAD_INPUT, NULL, 0,
                           "search needs to know how long the training is; give --tokens, as in --tokens 2T");
    if (status == DTP_OK)
        status = run_search(context, &catalog, base, &axes);
    dtp_axes_release(&axes);
    dtp_scenario_destroy(base);
    dtp_catalog_destroy(&catalog);
    return status;
}
