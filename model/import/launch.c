/* What starts a plan: the framework's files, read back before they are handed out. */
#include "import/write.h"

#include "base/append.h"
#include "import/import.h"
#include "job/job_values.h"
#include "plan/rules.h"
#include "plan/runtime.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The rank of a node is Slurm's or Open MPI's. */
#define ACCELERATE                                                                                                     \
    "accelerate launch --config_file \"$here/accelerate.yaml\" --machine_rank "                                        \
    "\"${SLURM_NODEID:-${OMPI_COMM_WORLD_RANK:-0}}\" --main_process_ip \"$MASTER_ADDR\" --main_process_port "          \
    "\"$MASTER_PORT\" \"${TRAIN:?your training program}\" \"$here/training_arguments.json\""

static const struct dtp_launcher launchers[] = {
    {"torchtitan",
     "torch",
     {"torchtitan.toml", NULL},
     {"torchtitan", NULL},
     {NULL, NULL},
     "torchrun $ranks -m torchtitan.train --job.config_file \"$here/torchtitan.toml\""},
    {"accelerate",
     "torch|deepspeed|peft",
     {"accelerate.yaml", "training_arguments.json"},
     {"accelerate", "trainer"},
     {NULL, NULL},
     ACCELERATE},
    {"deepspeed",
     "deepspeed",
     {"ds_config.json", "training_arguments.json"},
     {"deepspeed", "trainer"},
     {"deepspeed", "ds_config.json"},
     "torchrun $ranks \"${TRAIN:?your training program}\" \"$here/training_arguments.json\""},
    {"megatron",
     "megatron",
     {"flags.txt", NULL},
     {"megatron", NULL},
     {NULL, NULL},
     "xargs -a \"$here/flags.txt\" torchrun $ranks \"${TRAIN:-pretrain_gpt.py}\""},
    {"bridge",
     "megatron",
     {"bridge.yaml", NULL},
     {"bridge", NULL},
     {NULL, NULL},
     "torchrun $ranks \"${TRAIN:?a recipe of Megatron-Bridge that reads a file, as its pretrain_llama3_8b.py does}\" "
     "--config-file \"$here/bridge.yaml\""},
    {"nemo",
     "megatron",
     {"nemo.yaml", NULL},
     {"nemo", NULL},
     {NULL, NULL},
     "torchrun $ranks \"${TRAIN:-megatron_gpt_pretraining.py}\" --config-path=\"$here\" --config-name=nemo"},
    {"nanotron",
     "nanotron",
     {"nanotron.yaml", NULL},
     {"nanotron", NULL},
     {NULL, NULL},
     "torchrun $ranks \"${TRAIN:-run_train.py}\" --config-file \"$here/nanotron.yaml\""},
    {"peft",
     "peft",
     {"accelerate.yaml", "training_arguments.json", "adapter_config.json"},
     {"accelerate", "trainer", "peft"},
     {NULL, NULL},
     ACCELERATE " \"$here/adapter_config.json\""},
    {"torchtune",
     "torch",
     {"torchtune.yaml"},
     {"torchtune"},
     {NULL, NULL},
     "tune run $ranks \"$RECIPE\" --config \"$here/torchtune.yaml\""},
    {"axolotl",
     "torch|peft",
     {"axolotl.yaml"},
     {"axolotl"},
     {NULL, NULL},
     "torchrun $ranks -m axolotl.cli.train \"$here/axolotl.yaml\""},
};

/* Whether the word is one of those with bars between. */
static bool is_among(const char *words, const char *word)
{
    size_t length = strlen(word);
    for (; *words; words += strcspn(words, "|"), words += *words == '|')
        if (strncmp(words, word, length) == 0 && (words[length] == '|' || !words[length]))
            return true;
    return false;
}

const struct dtp_launcher *dtp_launcher_of(const char *name, const struct dtp_job *job, struct dtp_faults *faults)
{
    char all[128] = "";
    const char *runtime = job->plan.runtime->name;
    for (size_t i = 0; i < sizeof launchers / sizeof *launchers; i++) {
        const struct dtp_launcher *l = &launchers[i];
        bool of_runtime = is_among(l->runtimes, runtime);
        bool whole = strcmp(runtime, "peft") == 0 && !job->plan.adapters.rank; /* which of peft's files one is of */
        bool first = of_runtime && (strcmp(l->name, "accelerate") == 0) == whole;
        if (name ? strcmp(l->name, name) == 0 : first) {
            if (of_runtime)
                return l;
            dtp_fault(faults, DTP_BAD_INPUT, NULL, 0, "--to %s: starts runtime %s, and the plan's is %s", name,
                      l->runtimes, runtime);
            return NULL;
        }
        dtp_append_part(all, sizeof all, ", ", "%s", l->name);
    }
    if (name)
        dtp_fault(faults, DTP_BAD_INPUT, NULL, 0, "--to %s: is none of %s", name, all);
    else
        dtp_fault(faults, DTP_BAD_INPUT, NULL, 0, "runtime %s %s; launch writes for %s", runtime,
                  strcmp(runtime, "dtplan") == 0 ? "is started by dtplan run" : "is started by programs of its users",
                  all);
    return NULL;
}

/* ---- the script ---------------------------------------------------------------------------------------------------
 */

static bool is_for(const struct dtp_launcher *launcher, const char *name)
{
    return strcmp(launcher->name, name) == 0;
}

static bool is_of_megatron(const struct dtp_launcher *launcher)
{
    return strcmp(launcher->runtimes, "megatron") == 0;
}

#define ALLOCATOR "PYTORCH_CUDA_ALLOC_CONF"

/* What a program reads beside its files, and what mpirun hands on of it. */
static void write_settings(const struct dtp_launcher *launcher, const struct dtp_job *job, FILE *out)
{
    if (is_of_megatron(launcher))
        fputs("export CUDA_DEVICE_MAX_CONNECTIONS=1\n", out);
    if (job->plan.expandable_segments)
        fputs("export " ALLOCATOR "=expandable_segments:True\n", out);
    if (is_for(launcher, "torchtune"))
        fprintf(out, "export RECIPE=%s_finetune_distributed\n", job->plan.adapters.rank ? "lora" : "full");
    if (is_for(launcher, "axolotl"))
        fputs("# base_model of axolotl.yaml is dtplan\'s name: write your folder or the hub\'s name there.\n", out);
}

static const char *exported(const struct dtp_launcher *launcher)
{
    return is_of_megatron(launcher)        ? " -x CUDA_DEVICE_MAX_CONNECTIONS"
           : is_for(launcher, "torchtune") ? " -x RECIPE"
                                           : "";
}

static char *script_of(const struct dtp_launcher *launcher, const struct dtp_job *job)
{
    char *text = NULL;
    size_t bytes;
    FILE *out = open_memstream(&text, &bytes);
    uint32_t each = job->cluster.gpus_per_node, nodes = job->cluster.nodes;
    if (!out)
        return NULL;
    fprintf(out,
            "#!/usr/bin/env bash\n# Starts the plan on %" PRIu32 " GPUs: %" PRIu32 " of each of %" PRIu32 " node%s.\n"
            "set -euo pipefail\nhere=$(cd -- \"$(dirname -- \"${BASH_SOURCE[0]}\")\" && pwd)\nexport MASTER_ADDR="
            "${MASTER_ADDR:-localhost} MASTER_PORT=${MASTER_PORT:-29500} here\n",
            job->cluster.gpus, each, nodes, dtp_plural(nodes));
    if (launcher->names[0]) /* by a name without a folder */
        fputs("[[ -z ${TRAIN:-} ]] || TRAIN=$(realpath -- \"$TRAIN\")\nexport TRAIN\ncd -- \"$here\"\n", out);
    write_settings(launcher, job, out);
    if (nodes == 1)
        fprintf(out, "ranks=\"--standalone --nnodes=1 --nproc-per-node=%" PRIu32 "\"\nexec %s\n", each,
                launcher->command);
    else
        fprintf(out,
                "export ranks=\"--nnodes=%" PRIu32 " --nproc-per-node=%" PRIu32
                " --rdzv-backend=c10d --rdzv-endpoint=$MASTER_ADDR:$MASTER_PORT\"\n"
                "# MASTER_ADDR is the first node. Slurm starts a process on each of its nodes; with BY=mpirun Open MPI "
                "does, "
                "on\n# those of HOSTFILE. Without either start what stands between the quotes on every node.\n"
                "start='%s'\ncase ${BY:-srun} in\n"
                "srun) exec srun --nodes=%" PRIu32 " --ntasks-per-node=1 bash -c \"$start\" ;;\n"
                "mpirun) exec mpirun -np %" PRIu32
                " --map-by ppr:1:node ${HOSTFILE:+--hostfile \"$HOSTFILE\"} -x MASTER_ADDR "
                "-x MASTER_PORT \\\n    -x here -x ranks%s%s ${TRAIN:+-x TRAIN} bash -c \"$start\" ;;\n"
                "*) echo \"BY=$BY is neither srun nor mpirun\" >&2 && exit 2 ;;\nesac\n",
                nodes, each, launcher->command, nodes, nodes, exported(launcher),
                job->plan.expandable_segments ? " -x " ALLOCATOR : "");
    return fclose(out) == 0 ? text : NULL;
}

/* ---- reading back -------------------------------------------------------------------------------------------------
 */

static bool says_model(const struct dtp_scenario *scenario)
{
    size_t count;
    const struct dtp_scenario_key *keys = dtp_scenario_keys(&count);
    for (size_t i = 0; i < count; i++)
        if (strcmp(keys[i].section, "model") == 0 && dtp_scenario_get(scenario, keys[i].key))
            return true;
    return false;
}

static bool says_true(const struct dtp_scenario *scenario, const char *key)
{
    const char *value = dtp_scenario_get(scenario, key);
    return value && strcmp(value, "true") == 0;
}

/* Flags that have to stand beside the files: of the cluster and of money, of a model that the files do not say, the
 * length of sequences if they do not, how the ends of the model are wrapped, which is a matter of torchtitan's version,
 * how the installed Transformers calls experts, what launch.sh tells the allocator (and torchtitan's run_train.sh, for
 * which its file is read), whose layers it is where the user's program is not Trainer, and that nothing is clipped by
 * programs that always do. */
static enum dtp_status add_typed(const struct dtp_scenario *from, struct dtp_scenario *to, const struct dtp_job *job,
                                 char *typed, size_t bytes, struct dtp_faults *faults)
{
    enum dtp_status worst = DTP_OK;
    size_t count;
    const struct dtp_scenario_key *keys = dtp_scenario_keys(&count);
    bool model = says_model(to);
    for (size_t i = 0; i < count && worst == DTP_OK; i++) {
        const char *section = keys[i].section, *value = dtp_scenario_get(from, keys[i].key);
        char sequence[32];
        bool seq = strcmp(keys[i].key, "seq") == 0;
        snprintf(sequence, sizeof sequence, "%" PRIu64, job->plan.sequence);
        value = seq ? sequence : value;
        bool ends = strcmp(keys[i].key, "wrap_ends") == 0 && dtp_scenario_get(to, keys[i].key) &&
                    !job->plan.wrap_ends && dtp_plan_has_ends(&job->plan, &job->transformer);
        value = ends ? "false" : value;
        bool layers = strcmp(keys[i].key, "transformers_layers") == 0 && dtp_scenario_get(to, keys[i].key) &&
                      !job->plan.deepspeed.transformers_layers;
        value = layers ? "false" : value;
        bool segments = strcmp(keys[i].key, "expandable_segments") == 0 &&
                        job->plan.expandable_segments != says_true(to, keys[i].key);
        value = segments ? job->plan.expandable_segments ? "true" : "false" : value;
        bool clips = strcmp(keys[i].key, "clip_norm") == 0 && dtp_scenario_get(to, keys[i].key) &&
                     job->plan.runtime->clips_by_key && !(job->plan.clip_norm > 0);
        value = clips ? "0" : value;
        bool runtime = strcmp(keys[i].key, "runtime") == 0 && dtp_scenario_get(to, keys[i].key) &&
                       strcmp(dtp_scenario_get(to, keys[i].key), job->plan.runtime->name) != 0;
        value = runtime ? job->plan.runtime->name : value;
        bool installed = strcmp(keys[i].key, "grouped_experts") == 0;
        bool nodes = strcmp(keys[i].key, "nodes") == 0 && dtp_scenario_get(to, "gpus");
        bool known = dtp_scenario_get(to, keys[i].key) || (strcmp(section, "plan") == 0 && !seq && !installed);
        bool told = ends || layers || runtime || segments || clips;
        if (!value || (known && !told) || (strcmp(section, "model") == 0 && model) || nodes)
            continue;
        worst = dtp_scenario_set(to, keys[i].key, value, "command line", 0, faults);
        size_t used = strlen(typed);
        if (keys[i].value)
            dtp_append(typed, bytes, " --%s %s", keys[i].key, value);
        else
            dtp_append(typed, bytes, " --%s=%s", keys[i].key, value);
        for (char *c = typed + used + 1; *c && *c != ' ' && *c != '='; c++)
            *c = *c == '_' ? '-' : *c;
    }
    return worst;
}

static void value_text(const struct dtp_job_value *v, char *out, size_t bytes)
{
    if (v->kind == DTP_VALUE_WORD)
        snprintf(out, bytes, "%s", v->word);
    else if (v->kind == DTP_VALUE_REAL)
        snprintf(out, bytes, "%.17g", v->real);
    else if (v->kind == DTP_VALUE_SWITCH)
        snprintf(out, bytes, "%s", v->whole ? "true" : "false");
    else
        snprintf(out, bytes, "%" PRIu64, v->whole);
}

/* Their values are compared by others: dimensions, dtypes. */
static bool is_word_for_others(const char *key)
{
    return strcmp(key, "name") == 0 || strcmp(key, "model") == 0 || strcmp(key, "precision") == 0;
}

static void flag_of(const char *key, char *out, size_t bytes)
{
    snprintf(out, bytes, "--%s", key);
    for (char *c = out; *c; c++)
        *c = *c == '_' ? '-' : *c;
}

/* The plan as programs that train say it: they scale adapters by alpha over the rank, so that 1, which no alpha is
 * here, is an alpha as large as the rank. */
static void say_as_programs(struct dtp_job *job)
{
    if (job->plan.adapters.rank && !(job->plan.adapters.alpha > 0))
        job->plan.adapters.alpha = job->plan.adapters.rank;
}

/* Two jobs key by key. */
struct compared {
    struct dtp_job_value *mine, *theirs; /* DTP_JOB_VALUES_MAX each */
    bool *differs;                       /* so that somebody reads it */
    size_t count, differing;
};

static bool begin_comparing(struct compared *c)
{
    c->mine = calloc(2 * DTP_JOB_VALUES_MAX, sizeof *c->mine);
    c->theirs = c->mine ? c->mine + DTP_JOB_VALUES_MAX : NULL;
    c->differs = calloc(DTP_JOB_VALUES_MAX, sizeof *c->differs);
    return c->mine && c->differs;
}

static void end_comparing(struct compared *c)
{
    free(c->mine);
    free(c->differs);
}

/* Names of models are words for the same shapes. */
static void compare_jobs(struct compared *c, const struct dtp_scenario *scenario, const struct dtp_job *wanted,
                         const struct dtp_scenario *again, const struct dtp_job *got)
{
    char mine[512], theirs[512];
    c->count = dtp_job_values(wanted, c->mine);
    c->differing = 0;
    dtp_job_values(got, c->theirs);
    for (size_t i = 0; i < c->count; i++) {
        const char *key = c->mine[i].key->key;
        value_text(&c->mine[i], mine, sizeof mine);
        value_text(&c->theirs[i], theirs, sizeof theirs);
        bool idle = strcmp(key, "accumulate_sync") == 0 && wanted->plan.accumulate == 1 && got->plan.accumulate == 1;
        c->differs[i] = strcmp(mine, theirs) != 0 && !idle && !is_word_for_others(key) &&
                        (dtp_scenario_reads(scenario, key) || dtp_scenario_reads(again, key));
        c->differing += c->differs[i];
    }
}

/* Whether the job would be that of the files if it said their value of this key: others that differ follow from it. */
static bool explains_all(const struct compared *c, size_t key, const struct dtp_scenario *scenario,
                         const struct dtp_catalog *catalog, const struct dtp_scenario *again, const struct dtp_job *got)
{
    struct dtp_scenario *other = NULL;
    struct dtp_job *job = calloc(1, sizeof *job);
    struct compared result = {0};
    char theirs[512];
    value_text(&c->theirs[key], theirs, sizeof theirs);
    bool explains = job && begin_comparing(&result) && dtp_scenario_copy(scenario, &other, NULL) == DTP_OK &&
                    dtp_scenario_set(other, c->theirs[key].key->key, theirs, "launch", 0, NULL) == DTP_OK &&
                    dtp_scenario_resolve(other, catalog, job, NULL) == DTP_OK;
    if (explains) {
        say_as_programs(job);
        compare_jobs(&result, other, job, again, got);
        explains = result.differing == 0;
    }
    end_comparing(&result);
    dtp_scenario_destroy(other);
    free(job);
    return explains;
}

/* Each key that came back otherwise, or the one that the others follow from. */
static enum dtp_status compare(const struct dtp_launcher *launcher, const struct dtp_scenario *scenario,
                               const struct dtp_catalog *catalog, const struct dtp_job *wanted,
                               const struct dtp_scenario *again, const struct dtp_job *got, struct dtp_faults *faults)
{
    struct compared c = {0};
    enum dtp_status status = DTP_OK;
    char mine[512], theirs[512], flag[64];
    if (!begin_comparing(&c)) {
        end_comparing(&c);
        return dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "out of memory");
    }
    compare_jobs(&c, scenario, wanted, again, got);
    size_t cause = c.count;
    for (size_t i = 0; i < c.count && c.differing > 1 && cause == c.count; i++)
        if (c.differs[i] && explains_all(&c, i, scenario, catalog, again, got))
            cause = i;
    for (size_t i = 0; i < c.count; i++) {
        if (!c.differs[i] || (cause < c.count && i != cause))
            continue;
        value_text(&c.mine[i], mine, sizeof mine);
        value_text(&c.theirs[i], theirs, sizeof theirs);
        flag_of(c.mine[i].key->key, flag, sizeof flag);
        status = dtp_fault(faults, DTP_BAD_INPUT, NULL, 0,
                           "%s = %s: what %s reads cannot say it, there it is %s; give %s%c%s, or --to another program",
                           c.mine[i].key->key, mine, launcher->name, theirs, flag,
                           c.mine[i].kind == DTP_VALUE_SWITCH ? '=' : ' ', theirs);
    }
    end_comparing(&c);
    return status;
}

static enum dtp_status read_back(const struct dtp_launcher *launcher, const struct dtp_scenario *scenario,
                                 const struct dtp_catalog *catalog, const struct dtp_job *job,
                                 const struct dtp_launch_file *files, char *typed, size_t bytes,
                                 struct dtp_faults *faults)
{
    struct dtp_import *import = dtp_import_create();
    struct dtp_scenario *again = NULL;
    struct dtp_job *got = calloc(1, sizeof *got);
    enum dtp_status status = import && got ? dtp_scenario_create(&again, faults)
                                           : dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "out of memory");
    for (size_t i = 0; i < DTP_LAUNCH_CONFIGS_MOST && launcher->files[i] && status == DTP_OK; i++)
        status = dtp_import_parse(import, files[i].name, files[i].text, strlen(files[i].text), faults);
    if (status == DTP_OK)
        status = dtp_import_apply(import, again, NULL, faults);
    if (status == DTP_OK)
        status = add_typed(scenario, again, job, typed, bytes, faults);
    if (status == DTP_OK)
        status = dtp_scenario_resolve(again, catalog, got, faults);
    if (status == DTP_OK)
        status = compare(launcher, scenario, catalog, job, again, got, faults);
    dtp_scenario_destroy(again);
    dtp_import_destroy(import);
    free(got);
    return status;
}

enum dtp_status dtp_launch_write(const struct dtp_launcher *launcher, const struct dtp_scenario *scenario,
                                 const struct dtp_catalog *catalog, const struct dtp_job *planned,
                                 struct dtp_launch_file files[DTP_LAUNCH_FILES_MOST], size_t *count, char *typed,
                                 size_t typed_bytes, struct dtp_faults *faults)
{
    struct dtp_job *job = malloc(sizeof *job);
    enum dtp_status status = job ? DTP_OK : dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "out of memory");
    *count = 0;
    typed[0] = '\0';
    if (job) {
        *job = *planned;
        say_as_programs(job);
    }
    for (size_t i = 0; i < DTP_LAUNCH_CONFIGS_MOST && launcher->files[i] && status == DTP_OK; i++) {
        struct dtp_launch_file *file = &files[(*count)++];
        *file = (struct dtp_launch_file){launcher->files[i], NULL};
        status = dtp_format_write(dtp_format_of(launcher->formats[i]), job, i == 1 ? launcher->names : NULL,
                                  &file->text, faults);
    }
    if (status == DTP_OK)
        status = read_back(launcher, scenario, catalog, job, files, typed, typed_bytes, faults);
    if (status == DTP_OK) {
        files[*count] = (struct dtp_launch_file){"launch.sh", script_of(launcher, job)};
        if (!files[(*count)++].text)
            status = dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "out of memory");
    }
    free(job);
    return status;
}
