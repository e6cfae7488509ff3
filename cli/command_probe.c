/* dtplan probe: has dtplan-exec measure this machine and writes what it measured as a machine file. */
#include "cli/command.h"

#include "machine/measured.h"
#include "machine/measured_least.h"
#include "base/number.h"
#include "cli/machine_rows.h"
#include "cli/probe_events.h"
#include "lower/lower.h"
#include "record/measured_report.h"
#include "cli/run_process.h"
#include "runtime/runtimes.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* ---- the line ---------------------------------------------------------------------------------------------------- */

static bool typed(const struct dtp_arguments *a, const char *key)
{
    for (size_t i = 0; i < a->setting_count; i++)
        if (strcmp(a->settings[i].key, key) == 0)
            return true;
    return false;
}

/* How many GPUs a scenario plans for says nothing of this machine: only what was typed does. */
static void forget_counts(const struct dtp_arguments *a, struct dtp_scenario *scenario)
{
    static const char *const counts[] = {"gpus", "gpus_per_node"};
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
        if (!typed(a, counts[i]))
            dtp_scenario_unset(scenario, counts[i]);
}

/* ---- by a framework's own program ------------------------------------------------------------------------------- */

/* The runtime whose kernels are asked for; NULL: the executor's. */
static enum dtp_status find_framework(const struct dtp_context *context, const struct dtp_scenario *scenario,
                                      const struct dtp_runtime **out)
{
    size_t line;
    const char *where = dtp_scenario_place(scenario, "runtime", &line);
    const struct dtp_runtime *runtime = dtp_runtime_find(dtp_scenario_get(scenario, "runtime"));
    *out = runtime && !runtime->executed ? runtime : NULL;
    if (!*out || (*out)->prober)
        return DTP_OK;
    return dtp_fault_about(context->faults, DTP_BAD_INPUT, where, line, "runtime",
                           "is %s, whose kernels no program that ships measures; take torch or leave it out",
                           runtime->name);
}

/* Its program measures shapes of its own on one GPU, and no job's. */
static enum dtp_status check_framework(const struct dtp_context *context, const struct dtp_scenario *scenario)
{
    static const char *const taken[] = {"runtime", "gpu", "machine", "gpus", "gpus_per_node"};
    enum dtp_status worst = DTP_OK;
    size_t key_count, line;
    const struct dtp_scenario_key *keys = dtp_scenario_keys(&key_count);
    const char *gpus = dtp_scenario_get(scenario, "gpus");
    for (size_t i = 0; i < key_count; i++) {
        bool is_taken = false;
        for (size_t k = 0; k < sizeof taken / sizeof *taken; k++)
            is_taken |= strcmp(keys[i].key, taken[k]) == 0;
        if (is_taken || !dtp_scenario_get(scenario, keys[i].key))
            continue;
        const char *where = dtp_scenario_place(scenario, keys[i].key, &line);
        worst = dtp_fault_about(context->faults, DTP_BAD_INPUT, where, line, keys[i].key,
                                "PyTorch's kernels are measured over shapes of their own, not a job's; leave it out");
    }
    if (gpus && strcmp(gpus, "1") != 0)
        worst =
            dtp_fault(context->faults, DTP_BAD_INPUT, NULL, 0,
                      "gpus: PyTorch's kernels are measured on one GPU; take 1, then measure the collectives of all "
                      "with dtplan probe --machine %s",
                      context->arguments->output);
    return worst;
}

/* Nets so narrow that a GPU waits for its host, of the two kinds of layers that are launched most: what a step of
 * theirs takes over the kernels that its program counts is what the host needs for each. */
struct host_net {
    const char *model, *ffn; /* whose layers */
};
static const struct host_net host_nets[] = {{"llama-7b", "704"}, {"gpt-2-xl", "1024"}};
static const char *const host_net_keys[][2] = {
    {"strategy", "ddp"}, {"gpus", "1"},     {"precision", "bf16-mixed"}, {"layers", "24"}, {"hidden", "256"},
    {"heads", "4"},      {"kv_heads", "4"}, {"vocab", "1024"},           {"seq", "64"},    {"micro_batch", "1"}};

/* The net in the words of the program that trains it, as probe_torch.py's --host-net takes them. */
static enum dtp_status say_host_net(const struct dtp_catalog *catalog, const struct dtp_runtime *framework,
                                    const struct host_net *net, char *out, size_t bytes, struct dtp_faults *faults)
{
    struct dtp_scenario *scenario;
    struct dtp_program *program = NULL;
    struct dtp_job job;
    enum dtp_status status = dtp_scenario_create(&scenario, faults);
    if (status == DTP_OK)
        status = dtp_scenario_set(scenario, "runtime", framework->name, NULL, 0, faults);
    if (status == DTP_OK)
        status = dtp_scenario_set(scenario, "model", net->model, NULL, 0, faults);
    if (status == DTP_OK)
        status = dtp_scenario_set(scenario, "ffn", net->ffn, NULL, 0, faults);
    for (size_t i = 0; i < sizeof host_net_keys / sizeof *host_net_keys && status == DTP_OK; i++)
        status = dtp_scenario_set(scenario, host_net_keys[i][0], host_net_keys[i][1], NULL, 0, faults);
    if (status == DTP_OK)
        status = dtp_scenario_resolve(scenario, catalog, &job, faults);
    if (status == DTP_OK)
        status = dtp_lower(&job.transformer, &job.cluster, &job.plan, 0, &program, faults);
    if (status == DTP_OK) {
        const struct dtp_transformer *t = &job.transformer;
        struct dtp_program_totals totals;
        dtp_program_sum(program, &totals);
        snprintf(out, bytes,
                 "gated=%d,layers=%" PRIu64 ",hidden=%" PRIu64 ",heads=%" PRIu64 ",kv_heads=%" PRIu64 ",ffn=%" PRIu64
                 ",vocab=%" PRIu64 ",sequence=%" PRIu64 ",micro_batch=%" PRIu32 ",kernels=%" PRIu64,
                 dtp_activation_is_gated(t->activation), t->layers, t->hidden, t->heads, t->kv_heads, t->ffn, t->vocab,
                 job.plan.sequence, job.plan.micro_batch, totals.kernels);
    }
    dtp_program_destroy(program);
    dtp_scenario_destroy(scenario);
    return status;
}

/* What its program cannot know: two rates of the catalogue's and nets to time the host by. */
struct framework_words {
    char headroom[32], power[32], net[sizeof host_nets / sizeof *host_nets][256];
    const char *word[5 + 2 * sizeof host_nets / sizeof *host_nets];
};

static enum dtp_status say_framework_words(const struct dtp_context *context, const struct dtp_catalog *catalog,
                                           const struct dtp_runtime *framework, struct framework_words *out)
{
    size_t count = 0;
    enum dtp_status status = DTP_OK;
    snprintf(out->headroom, sizeof out->headroom, "%g", dtp_calibration.matmul_power_headroom);
    snprintf(out->power, sizeof out->power, "%g", dtp_calibration.attention_power);
    out->word[count++] = "--power-headroom";
    out->word[count++] = out->headroom;
    out->word[count++] = "--attention-power";
    out->word[count++] = out->power;
    for (size_t i = 0; i < sizeof host_nets / sizeof *host_nets && status == DTP_OK; i++) {
        status = say_host_net(catalog, framework, &host_nets[i], out->net[i], sizeof out->net[i], context->faults);
        out->word[count++] = "--host-net";
        out->word[count++] = out->net[i];
    }
    out->word[count] = NULL;
    return status;
}

/* The catalogue's rows that the file refines, which dtplan-exec finds by itself. */
static enum dtp_status add_keys(const struct dtp_context *context, const struct dtp_catalog *catalog,
                                const struct dtp_scenario *scenario, const struct dtp_runtime *framework,
                                struct dtp_probe_heard *heard)
{
    const char *given = dtp_scenario_get(scenario, "gpu"), *name = dtp_probe_heard_text(heard, "gpu");
    const char *memory = dtp_probe_heard_text(heard, "gpu_memory_bytes"),
               *place = dtp_scenario_get(scenario, "machine");
    uint64_t bytes = 0;
    if (!heard->gpu)
        return dtp_fault(
            context->faults, DTP_BAD_INPUT, NULL, 0,
            "--device host: %s only shows on cores that it works; what it takes there is no machine's, and "
            "dtplan probe --device host measures one",
            framework->prober);
    if (!name || !memory || !dtp_number_parse_integer(memory, false, 1, UINT64_MAX, &bytes))
        return dtp_fault(context->faults, DTP_ENVIRONMENT, NULL, 0, "%s did not say which GPU it measured",
                         framework->prober);
    const struct dtp_gpu *gpu =
        given ? dtp_catalog_gpu(catalog, given, NULL, 0, context->faults) : dtp_catalog_gpu_named(catalog, name, bytes);
    if (!gpu)
        return given ? DTP_BAD_INPUT
                     : dtp_fault(context->faults, DTP_BAD_INPUT, NULL, 0,
                                 "--gpu KEY is needed: %s is no GPU that the catalogue has a row of; name the one to "
                                 "refine (dtplan catalog gpus), or add a row with --catalog",
                                 name);
    const struct dtp_machine *machine = place && !dtp_machine_is_file(place)
                                            ? dtp_catalog_machine(catalog, place, NULL, 0, context->faults)
                                            : dtp_catalog_default_machine(catalog, gpu);
    if (!machine)
        return DTP_BAD_INPUT;
    bool kept = dtp_probe_heard_about(heard, "gpu_key", gpu->key) &&
                dtp_probe_heard_about(heard, "machine_key", machine->key) &&
                dtp_probe_heard_about(heard, "gpus", "1") && dtp_probe_heard_about(heard, "gpus_per_node", "1") &&
                dtp_probe_heard_about(heard, "runtime", framework->name);
    return kept ? DTP_OK : dtp_fault(context->faults, DTP_ENVIRONMENT, NULL, 0, "out of memory");
}

/* ---- the file ---------------------------------------------------------------------------------------------------- */

static enum dtp_status add_about(struct dtp_probe_heard *heard, struct dtp_faults *faults)
{
    char date[32], seconds[32];
    time_t now = time(NULL);
    struct tm utc;
    gmtime_r(&now, &utc);
    strftime(date, sizeof date, "%Y-%m-%d", &utc);
    snprintf(seconds, sizeof seconds, "%.0f", dtp_progress_elapsed_s(&heard->progress));
    bool kept = dtp_probe_heard_about(heard, "date", date) && dtp_probe_heard_about(heard, "dtplan", DTPLAN_VERSION) &&
                dtp_probe_heard_about(heard, "probe_seconds", seconds);
    return kept ? DTP_OK : dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "out of memory");
}

/* What a GPU does by itself, and what its host does for it: the same wherever its ranks are. */
static bool is_of_node(enum dtp_measurement measurement)
{
    switch (measurement) {
    case DTP_MEASUREMENT_MATMUL:
    case DTP_MEASUREMENT_GROUPED_MATMUL:
    case DTP_MEASUREMENT_ATTENTION:
    case DTP_MEASUREMENT_KERNEL:
    case DTP_MEASUREMENT_STEP:
    case DTP_MEASUREMENT_COPY:
    case DTP_MEASUREMENT_HOST_ADAM: return true;
    default: return false;
    }
}

static bool was_heard(const struct dtp_probe_heard *heard, enum dtp_measurement measurement)
{
    for (size_t i = 0; i < heard->count; i++)
        if (heard->rows[i].measurement == measurement)
            return true;
    return false;
}

/* Of the machine file that the line names, what was not measured again: all that a GPU does by itself; copies and
 * updates of the host, which ranks share, only where nodes are pretended. */
static enum dtp_status add_known(struct dtp_probe_heard *heard, const struct dtp_catalog *catalog,
                                 const struct dtp_scenario *scenario, struct dtp_faults *faults)
{
    const char *name = dtp_scenario_get(scenario, "machine");
    const struct dtp_measured_machine *machine = name ? dtp_catalog_measured(catalog, name) : NULL;
    const struct dtp_measured_rows *rows = machine ? dtp_measured_all(machine->times) : NULL;
    bool kept = !rows || dtp_probe_heard_about(heard, "kernels_of", name), heard_of[DTP_MEASUREMENT_COUNT];
    for (int i = 0; i < DTP_MEASUREMENT_COUNT; i++)
        heard_of[i] = was_heard(heard, (enum dtp_measurement)i);
    for (size_t i = 0; rows && i < rows->count && kept; i++)
        if (is_of_node(rows->row[i].measurement) && !heard_of[rows->row[i].measurement])
            kept = dtp_probe_heard_keep(heard, &rows->row[i]);
    return kept ? DTP_OK : dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "out of memory");
}

static uint32_t count_of(const struct dtp_probe_heard *heard, const char *key)
{
    const char *text = dtp_probe_heard_text(heard, key);
    uint64_t value = 1;
    return text && dtp_number_parse_integer(text, false, 1, UINT32_MAX, &value) ? (uint32_t)value : 1;
}

/* The catalogue's rows that the file refines. */
static enum dtp_status find_cluster(const struct dtp_probe_heard *heard, const struct dtp_catalog *catalog,
                                    struct dtp_cluster *out, struct dtp_faults *faults)
{
    const char *gpu_key = dtp_probe_heard_text(heard, "gpu_key"),
               *machine_key = dtp_probe_heard_text(heard, "machine_key");
    const struct dtp_gpu *gpu = dtp_catalog_gpu(catalog, gpu_key ? gpu_key : "", NULL, 0, faults);
    const struct dtp_machine *machine =
        gpu && machine_key ? dtp_catalog_machine(catalog, machine_key, NULL, 0, faults) : NULL;
    if (!gpu || !machine)
        return DTP_BAD_INPUT;
    *out =
        (struct dtp_cluster){.gpu = *gpu, .machine = *machine, .gpus = count_of(heard, "gpus"), .oversubscription = 1};
    out->gpus_per_node = count_of(heard, "gpus_per_node");
    out->nodes = out->gpus / out->gpus_per_node;
    return DTP_OK;
}

/* Of whoever measured them, PyTorch's program too: rows below the least that the GPU, or these cores, can take become
 * no part of the file. */
static void drop_impossible(struct dtp_probe_heard *heard, const struct dtp_gpu *gpu)
{
    size_t kept = 0;
    char first[192] = "";
    for (size_t i = 0; i < heard->count; i++) {
        const struct dtp_measured_row row = heard->rows[i];
        if (!(row.number[DTP_MEASURED_seconds] < dtp_measured_least_s(&row, gpu)))
            heard->rows[kept++] = row;
        else if (kept == i)
            dtp_measured_too_fast(&row, gpu, first, sizeof first);
    }
    if (kept < heard->count)
        fprintf(stderr, "dtplan: warning: %zu of %zu rows: " DTP_MEASURED_LEFT_OUT "\n", heard->count - kept,
                heard->count, ": first ", first);
    heard->count = kept;
}

/* What is written is what can be read again: each row by the reader's own rules. */
static enum dtp_status check_rows(struct dtp_probe_heard *heard, const struct dtp_catalog *catalog,
                                  struct dtp_cluster *cluster, struct dtp_faults *faults)
{
    if (!heard->ended || heard->damaged || heard->count == 0)
        return dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "not all that was measured was said");
    enum dtp_status worst = find_cluster(heard, catalog, cluster, faults);
    if (worst == DTP_OK)
        drop_impossible(heard, &cluster->gpu);
    for (size_t i = 0; i < heard->count; i++)
        worst = dtp_worse(worst, dtp_measured_row_check(&heard->rows[i], "what was measured", i + 1, faults));
    return worst == DTP_OK ? DTP_OK : DTP_ENVIRONMENT;
}

/* ---- the report -------------------------------------------------------------------------------------------------- */

static void report(const struct dtp_context *context, const struct dtp_probe_heard *heard,
                   const struct dtp_cluster *cluster, const char *path)
{
    struct dtp_probe_report report = {.rows = heard->rows,
                                      .count = heard->count,
                                      .cluster = cluster,
                                      .gpu = heard->gpu,
                                      .seconds = dtp_progress_elapsed_s(&heard->progress),
                                      .path = path};
    dtp_probe_text(&report, &context->page);
}

/* ---- all of it --------------------------------------------------------------------------------------------------- */

static enum dtp_status probe(const struct dtp_context *context, const struct dtp_catalog *catalog,
                             struct dtp_scenario *scenario)
{
    forget_counts(context->arguments, scenario);
    const char *path = context->arguments->output;
    struct dtp_probe_heard heard = dtp_probe_heard_start();
    struct dtp_run_process process = {
        .context = context, .scenario = scenario, .probe = true, .hear = dtp_probe_hear, .listener = &heard};
    const struct dtp_runtime *framework = NULL;
    enum dtp_status status = find_framework(context, scenario, &framework);
    if (status == DTP_OK && framework)
        status = check_framework(context, scenario);
    struct framework_words words;
    if (status == DTP_OK && framework) {
        status = say_framework_words(context, catalog, framework, &words);
        process.reference = framework->prober;
        process.reference_words = words.word;
    }
    if (status == DTP_OK)
        status = dtp_run_process(&process);
    dtp_progress_end(&heard.progress);
    if (status == DTP_OK && !heard.started) { /* one of several that a launcher started: the first writes */
        dtp_probe_heard_release(&heard);
        return DTP_OK;
    }
    if (status == DTP_OK && !dtp_probe_heard_join(&heard))
        status = dtp_fault(context->faults, DTP_ENVIRONMENT, NULL, 0, "out of memory");
    if (status == DTP_OK && framework)
        status = add_keys(context, catalog, scenario, framework, &heard);
    if (status == DTP_OK)
        status = add_about(&heard, context->faults);
    if (status == DTP_OK)
        status = add_known(&heard, catalog, scenario, context->faults);
    struct dtp_cluster cluster;
    if (status == DTP_OK)
        status = check_rows(&heard, catalog, &cluster, context->faults);
    if (status == DTP_OK)
        status = dtp_machine_rows_write(path, NULL, heard.rows, heard.count, context->faults);
    if (status == DTP_OK)
        report(context, &heard, &cluster, path);
    else if (heard.started)
        fprintf(stderr, "dtplan: %s was not written\n", path);
    dtp_probe_heard_release(&heard);
    return status;
}

enum dtp_status dtp_command_probe(const struct dtp_context *context)
{
    return dtp_context_with_scenario(context, probe);
}
