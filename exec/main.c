/* dtplan-exec: trains what dtplan planned, or with --probe measures what it would train on. `dtplan run` and `dtplan
 * probe` start it; a launcher may as well.
 *
 *   dtplan-exec --data-directory DIR [--catalog FILE]... [SCENARIO.ini]... [--set KEY=VALUE]... [--events FD]
 *               [--FLAG VALUE]...
 *
 * What runs is the program that was predicted, handed over as text (--program). The job is resolved here again from the
 * same words, for batches, shapes and checkpoints, and text and words must agree. Flags are those of settings.h. Events
 * are lines of JSON to the descriptor FD, to standard output without one. */
#include "ranks/launcher.h"
#include "ranks/nodes.h"
#include "lower/lower_set.h"
#include "machine/host_machine.h"
#include "plan/runtime.h"
#include "program/program_text.h"
#include "device/open_device.h"
#include "probe/probe.h"
#include "train/elastic_start.h"
#include "train/train.h"
#include "train/step_log.h"
#include "train/train_events.h"

#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct words {
    const char *directory, *events;
    const char **files, **catalogs, **keys; /* borrowed from argv */
    size_t file_count, catalog_count, key_count;
};

static volatile sig_atomic_t stop_asked;

static void ask_to_stop(int signal_number)
{
    if (signal_number != SIGUSR1)
        stop_asked = DTP_STOP_ENDS;
    else if (stop_asked == DTP_STOP_NOT)
        stop_asked = DTP_STOP_REGROUPS;
}

/* ---- the line ---------------------------------------------------------------------------------------------------- */

/* What stands after the flag at argv[*at]: its value, NULL where there is none. */
static const char *value_of(int argc, char **argv, int *at)
{
    return *at + 1 < argc ? argv[++*at] : NULL;
}

static enum dtp_status take_word(struct words *w, struct dtp_settings *settings, int argc, char **argv, int *at,
                                 struct dtp_faults *faults)
{
    const char *word = argv[*at];
    bool known = true;
    if (strncmp(word, "--", 2) != 0) {
        w->files[w->file_count++] = word;
        return DTP_OK;
    }
    const char *name = word + 2;
    if (strcmp(name, "data-directory") == 0)
        w->directory = value_of(argc, argv, at);
    else if (strcmp(name, "events") == 0)
        w->events = value_of(argc, argv, at);
    else if (strcmp(name, "catalog") == 0)
        known = (w->catalogs[w->catalog_count++] = value_of(argc, argv, at)) != NULL;
    else if (strcmp(name, "set") == 0)
        known = (w->keys[w->key_count++] = value_of(argc, argv, at)) != NULL;
    else {
        const char *value = dtp_settings_takes_value(name) ? value_of(argc, argv, at) : NULL;
        enum dtp_status status = dtp_settings_set(settings, name, value, &known, faults);
        if (status != DTP_OK)
            return status;
    }
    return known ? DTP_OK
                 : dtp_fault(faults, DTP_BAD_INPUT, NULL, 0,
                             "%s: unknown flag, or its value is missing; see dtplan help run", word);
}

static enum dtp_status read_line(struct words *w, struct dtp_settings *settings, int argc, char **argv,
                                 struct dtp_faults *faults)
{
    size_t count = (size_t)argc + 1;
    enum dtp_status worst = DTP_OK;
    w->files = calloc(count, sizeof *w->files);
    w->catalogs = calloc(count, sizeof *w->catalogs);
    w->keys = calloc(count, sizeof *w->keys);
    if (!w->files || !w->catalogs || !w->keys)
        return dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "out of memory");
    for (int i = 1; i < argc; i++)
        worst = dtp_worse(worst, take_word(w, settings, argc, argv, &i, faults));
    worst = dtp_worse(worst, dtp_settings_check(settings, faults));
    if (!w->directory)
        worst = dtp_fault(faults, DTP_BAD_INPUT, NULL, 0,
                          "--data-directory DIR is missing: dtplan-exec is started by dtplan run");
    return worst;
}

/* ---- the job ----------------------------------------------------------------------------------------------------- */

static enum dtp_status set_key(struct dtp_scenario *scenario, const char *text, struct dtp_faults *faults)
{
    char key[64];
    size_t length = strcspn(text, "=");
    if (length == 0 || length >= sizeof key || text[length] != '=')
        return dtp_fault(faults, DTP_BAD_INPUT, NULL, 0, "--set: '%s' is no KEY=VALUE", text);
    memcpy(key, text, length);
    key[length] = '\0';
    return dtp_scenario_set(scenario, key, text + length + 1, "command line", 0, faults);
}

/* A machine file is read as dtplan does, so that the job is the same; its times are of no use here, and go with the
 * catalogue. Caller destroys *out, also after a failure. */
static enum dtp_status read_scenario(const struct words *w, bool alone, struct dtp_catalog *catalog,
                                     struct dtp_job *job, struct dtp_scenario **out, struct dtp_faults *faults)
{
    struct dtp_scenario *scenario = NULL;
    enum dtp_status status = dtp_scenario_create(&scenario, faults);
    if (status == DTP_OK)
        dtp_scenario_without_times(scenario); /* dtplan predicts them, or says that it cannot */
    for (size_t i = 0; i < w->file_count && status == DTP_OK; i++)
        status = dtp_scenario_read(scenario, w->files[i], faults);
    for (size_t i = 0; i < w->key_count && status == DTP_OK; i++)
        status = set_key(scenario, w->keys[i], faults);
    if (status == DTP_OK && dtp_scenario_get(scenario, "machine"))
        status = dtp_catalog_measure(catalog, dtp_scenario_get(scenario, "machine"), faults);
    if (status == DTP_OK)
        status = alone ? dtp_scenario_resolve_cluster(scenario, catalog, &job->cluster, faults)
                       : dtp_scenario_resolve(scenario, catalog, job, faults);
    job->cluster.measured = NULL;
    *out = scenario;
    return status;
}

static enum dtp_status read_catalog(const struct words *w, struct dtp_catalog *out, struct dtp_faults *faults)
{
    enum dtp_status status = dtp_catalog_load(w->directory, out, faults);
    if (status != DTP_OK)
        return status;
    for (size_t i = 0; i < w->catalog_count && status == DTP_OK; i++)
        status = dtp_catalog_add(w->catalogs[i], out, faults);
    if (status != DTP_OK)
        dtp_catalog_destroy(out);
    return status;
}

/* For dtplan doctor, which learns from it too whether the libraries are there that this program is linked to. */
static int say_what_it_is_built_with(void)
{
#if DTP_WITH_CUDA
    puts("host, cuda with cuBLASLt, cuDNN and NCCL");
#else
    puts("host");
#endif
    return fflush(stdout) == 0 ? DTP_OK : DTP_ENVIRONMENT;
}

/* ---- main -------------------------------------------------------------------------------------------------------- */

static FILE *open_events(const char *descriptor)
{
    return descriptor ? fdopen(atoi(descriptor), "w") : stdout;
}

/* Where algorithms timed on this machine's GPUs are kept, unless a file is named. */
static const char *default_choices(char *out, size_t bytes)
{
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    int wrote = cache && *cache ? snprintf(out, bytes, "%s/dtplan/matmul_choices.txt", cache)
                : home && *home ? snprintf(out, bytes, "%s/.cache/dtplan/matmul_choices.txt", home)
                                : -1;
    return wrote > 0 && (size_t)wrote < bytes ? out : NULL;
}

/* Said once here, not by each rank for itself, and before any is started. */
static enum dtp_status check_gpus(const struct dtp_settings *settings, uint32_t gpus, struct dtp_faults *faults)
{
    uint32_t there = gpus;
    if (!settings->cuda && gpus > DTP_HOST_MOST_RANKS)
        return dtp_fault(faults, DTP_BAD_INPUT, NULL, 0,
                         "%" PRIu32 " ranks are asked for, the host device has at most %d; take fewer --gpus", gpus,
                         DTP_HOST_MOST_RANKS);
    enum dtp_status status = settings->cuda ? dtp_open_device_count(settings, &there, faults) : DTP_OK;
    if (status != DTP_OK || (gpus <= there) != settings->share_gpu)
        return status;
    if (settings->share_gpu)
        return dtp_fault(faults, DTP_BAD_INPUT, NULL, 0,
                         "--share-gpu: each of %" PRIu32 " ranks has a GPU of its own here, of %" PRIu32
                         "; leave it out",
                         gpus, there);
    return dtp_fault(faults, DTP_BAD_INPUT, NULL, 0,
                     "%" PRIu32 " GPUs are asked for, this machine shows %" PRIu32
                     "; take fewer --gpus, or start ranks on several machines by torchrun or srun; --share-gpu tries "
                     "the plan without its times",
                     gpus, there);
}

/* *here: one rank's work is to be done in this process. Several are this program once more for each, unless a launcher
 * has done that already. */
static enum dtp_status share_out(char **argv, uint32_t gpus, const struct dtp_train_job *one, bool *here,
                                 struct dtp_faults *faults)
{
    const struct dtp_ranks *ranks = &one->ranks;
    *here = ranks->world == gpus;
    if (*here && one->settings->share_gpu)
        return check_gpus(one->settings, gpus, faults);
    if (!*here && ranks->world == 1) {
        enum dtp_status status = check_gpus(one->settings, gpus, faults);
        return status == DTP_OK ? dtp_launch(argv, gpus, faults) : status;
    }
    return *here ? DTP_OK
                 : dtp_fault(faults, DTP_BAD_INPUT, NULL, 0,
                             "%s started %" PRIu32 " ranks, the plan has %" PRIu32 " GPUs; ask for as many",
                             ranks->launcher, ranks->world, gpus);
}

static enum dtp_status read_set(const struct dtp_settings *settings, uint32_t gpus, struct dtp_program_set *set,
                                struct dtp_faults *faults)
{
    enum dtp_status status = dtp_program_set_read_file(settings->program, set, faults);
    if (status == DTP_OK && dtp_program_set_ranks(set) != gpus)
        status = dtp_fault(faults, DTP_BAD_INPUT, settings->program, 0,
                           "has %" PRIu32 " ranks, and --gpus is %" PRIu32 "; leave that out",
                           dtp_program_set_ranks(set), gpus);
    return status;
}

/* A pipeline's stages by the words, which have to be those of the text that dtplan predicted. */
static enum dtp_status lower_stages(const struct dtp_settings *settings, const struct dtp_job *job,
                                    struct dtp_program_set *set, struct dtp_faults *faults)
{
    struct dtp_program_set text;
    uint64_t theirs = 0, ours = 0;
    if (!job->plan.runtime->executed)
        return dtp_fault(faults, DTP_BAD_INPUT, NULL, 0,
                         "the executor runs plans of --runtime dtplan; those of %s are only predicted",
                         job->plan.runtime->name);
    enum dtp_status status = dtp_lower_set(&job->transformer, &job->cluster, &job->plan, 0, set, faults);
    if (status != DTP_OK || !settings->program)
        return status;
    status = dtp_program_set_read_file(settings->program, &text, faults);
    if (status != DTP_OK)
        return status;
    status = dtp_program_set_digest(&text, &theirs, faults);
    if (status == DTP_OK)
        status = dtp_program_set_digest(set, &ours, faults);
    dtp_program_set_release(set);
    *set = text;
    return status == DTP_OK && theirs != ours ? dtp_fault(faults, DTP_BAD_INPUT, settings->program, 0,
                                                          "is program set " DTP_PROGRAM_DIGEST_FORMAT
                                                          ", but the words beside it make " DTP_PROGRAM_DIGEST_FORMAT
                                                          "; predict and run with dtplan and dtplan-exec of one build",
                                                          theirs, ours)
                                              : status;
}

/* An elastic run: in a rank the job becomes that of as many ranks as were started; without a launcher ranks are, and
 * *here stays false. */
static enum dtp_status share_out_elastic(char **argv, struct dtp_scenario *scenario, const struct dtp_catalog *catalog,
                                         struct dtp_job *job, struct dtp_train_job *one, bool *here,
                                         struct dtp_faults *faults)
{
    static struct dtp_settings settings; /* as for these ranks */
    const struct dtp_ranks *ranks = &one->ranks;
    *here = ranks->launcher[0] != '\0';
    if (!*here) {
        const struct dtp_elastic_start start = {argv, one->settings, scenario, catalog, job, one->events};
        enum dtp_status status = check_gpus(one->settings, job->cluster.gpus, faults);
        return status == DTP_OK ? dtp_elastic_launch(&start, faults) : status;
    }
    if (ranks->world < one->settings->elastic_min || ranks->world > one->settings->elastic_max)
        return dtp_fault(faults, DTP_BAD_INPUT, NULL, 0,
                         "%s started %" PRIu32 " ranks, --elastic says %s; give both the same limits", ranks->launcher,
                         ranks->world, one->settings->elastic);
    settings = *one->settings;
    if (ranks->world != job->cluster.gpus)
        settings.program = settings.op_times = NULL; /* both are of the number of ranks that the line was made for */
    one->settings = &settings;
    return dtp_elastic_job(scenario, catalog, ranks->world, job, faults);
}

static enum dtp_status check_momentum(const struct dtp_settings *settings, const struct dtp_plan *plan,
                                      struct dtp_faults *faults)
{
    if (!settings->names_momentum || plan->optimizer == DTP_MOMENTUM || plan->optimizer == DTP_MUON)
        return DTP_OK;
    return dtp_fault(faults, DTP_BAD_INPUT, NULL, 0,
                     "--momentum: is of optimizers momentum and muon; leave it out, or name one of them");
}

static enum dtp_status train_job(char **argv, struct dtp_scenario *scenario, struct dtp_job *job,
                                 struct dtp_train_job *one, const struct dtp_catalog *catalog,
                                 struct dtp_faults *faults)
{
    static struct dtp_program_set set;
    struct dtp_nodes nodes = {&job->cluster, one->settings->pretend_nodes, one->settings->cuda,
                              one->settings->share_gpu};
    bool here = false, alone = one->settings->alone, stages = !alone && job->plan.pp > 1;
    enum dtp_status status = alone ? DTP_OK : check_momentum(one->settings, &job->plan, faults);
    if (status != DTP_OK)
        return status;
    if (alone)
        status = read_set(one->settings, job->cluster.gpus, &set, faults);
    if (stages)
        status = lower_stages(one->settings, job, &set, faults);
    if (one->ranks.rank == 0 && status == DTP_OK && one->settings->log) /* before any rank is started */
        status = dtp_step_log_check(one->settings->log, faults);
    if (status == DTP_OK && one->ranks.world == 1 && !one->ranks.launcher[0] && job->cluster.gpus > 1)
        status = dtp_nodes_check_launch(&nodes, faults);
    if (status == DTP_OK && one->settings->elastic)
        status = share_out_elastic(argv, scenario, catalog, job, one, &here, faults);
    else if (status == DTP_OK)
        status = share_out(argv, job->cluster.gpus, one, &here, faults);
    if (here && status == DTP_OK)
        status = dtp_nodes_check_rank(&nodes, &one->ranks, faults);
    if (!here || status != DTP_OK)
        return status;
    dtp_nodes_environment(&nodes, &one->ranks, setenv);
    one->job = alone ? NULL : job;
    one->set = alone || stages ? &set : NULL;
    status = dtp_train(one, faults);
    dtp_program_set_release(&set);
    return status;
}

static enum dtp_status train(char **argv, const struct words *words, struct dtp_train_job *one,
                             struct dtp_catalog *catalog, struct dtp_faults *faults)
{
    static struct dtp_job job;
    struct dtp_scenario *scenario = NULL;
    enum dtp_status status = read_scenario(words, one->settings->alone, catalog, &job, &scenario, faults);
    if (status == DTP_OK)
        status = train_job(argv, scenario, &job, one, catalog, faults);
    dtp_scenario_destroy(scenario);
    return status;
}

/* A machine file that is probed further: only what it tells of the GPU's row is used here. */
static enum dtp_status read_machine(const struct words *words, struct dtp_catalog *catalog,
                                    const struct dtp_measured_machine **known, struct dtp_faults *faults)
{
    enum dtp_status status = DTP_OK;
    for (size_t i = 0; i < words->key_count && status == DTP_OK; i++)
        if (strncmp(words->keys[i], "machine=", strlen("machine=")) == 0) {
            const char *name = words->keys[i] + strlen("machine=");
            status = dtp_catalog_measure(catalog, name, faults);
            *known = dtp_catalog_measured(catalog, name);
        }
    return status;
}

/* Ranks of a pass learn which it is by the environment, as they learn which of the ranks they are. */
#define PASS_VARIABLE "DTPLAN_PROBE_PASS"

/* One pass after the other, each by as many ranks as it takes. */
static enum dtp_status run_passes(char **argv, const struct dtp_train_job *one, uint32_t ranks, uint32_t passes,
                                  struct dtp_faults *faults)
{
    enum dtp_status status = DTP_OK;
    for (uint32_t i = 0; i < passes && status == DTP_OK && !stop_asked; i++) {
        char text[16];
        snprintf(text, sizeof text, "%" PRIu32, i);
        setenv(PASS_VARIABLE, text, 1);
        status = dtp_launch(argv, dtp_probe_pass_ranks(one->settings, ranks, i), faults);
    }
    return status == DTP_OK && stop_asked ? DTP_ENVIRONMENT : status;
}

/* *ranks: of the pass, from all that are asked for. False: it is for others to be made. */
static enum dtp_status take_pass(char **argv, const struct dtp_train_job *one, struct dtp_probe_pass *pass,
                                 uint32_t *ranks, bool *launched, struct dtp_faults *faults)
{
    const char *text = getenv(PASS_VARIABLE);
    uint32_t count = dtp_probe_pass_count(one->settings, *ranks);
    bool first = !text && one->ranks.world == 1 && count > 1, one_of = text && one->ranks.launcher[0];
    *launched = first;
    *pass = (struct dtp_probe_pass){0, 1};
    if (first)
        return run_passes(argv, one, *ranks, count, faults);
    if (one_of) {
        *pass = (struct dtp_probe_pass){(uint32_t)strtoul(text, NULL, 10), count};
        *ranks = dtp_probe_pass_ranks(one->settings, *ranks, pass->index);
    }
    return DTP_OK;
}

static enum dtp_status probe(char **argv, const struct words *words, const struct dtp_train_job *one,
                             struct dtp_catalog *catalog, struct dtp_faults *faults)
{
    struct dtp_probe_job job = {.catalog = catalog,
                                .settings = one->settings,
                                .keys = words->keys,
                                .key_count = words->key_count,
                                .ranks = one->ranks,
                                .events = one->events,
                                .stop = one->stop};
    struct dtp_cluster cluster;
    struct dtp_nodes nodes = {&cluster, one->settings->pretend_nodes, one->settings->cuda, false};
    uint32_t gpus = 0;
    bool here = false, launched = false;
    enum dtp_status status = read_machine(words, catalog, &job.known, faults);
    if (status == DTP_OK)
        status = dtp_probe_ranks(&job, &gpus, faults);
    if (status == DTP_OK)
        status = dtp_probe_cluster(&job, gpus, &cluster, faults);
    if (status == DTP_OK)
        status = take_pass(argv, one, &job.pass, &gpus, &launched, faults);
    if (launched)
        return status;
    if (status == DTP_OK && nodes.pretend)
        status = dtp_nodes_check_rank(&nodes, &one->ranks, faults);
    if (status == DTP_OK)
        status = share_out(argv, gpus, one, &here, faults);
    if (!here || status != DTP_OK)
        return status;
    if (nodes.pretend) {
        dtp_nodes_environment(&nodes, &one->ranks, setenv);
        job.ranks.local_world = cluster.gpus_per_node;
    }
    return dtp_probe(&job, faults);
}

static enum dtp_status start(char **argv, const struct words *words, const struct dtp_settings *settings, FILE *events,
                             struct dtp_faults *faults)
{
    struct dtp_train_job one = {.settings = settings, .events = events, .stop = &stop_asked};
    struct dtp_catalog catalog;
    enum dtp_status status = dtp_ranks_read(getenv, &one.ranks, faults);
    if (status == DTP_OK)
        status = read_catalog(words, &catalog, faults);
    if (status != DTP_OK)
        return status;
    status = settings->probe ? probe(argv, words, &one, &catalog, faults) : train(argv, words, &one, &catalog, faults);
    dtp_catalog_destroy(&catalog);
    return status;
}

static void catch_signals(void)
{
    struct sigaction action = {.sa_handler = ask_to_stop, .sa_flags = SA_RESTART};
    signal(SIGXFSZ, SIG_IGN); /* a write beyond the limit fails instead, and says of which file */
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGUSR1, &action, NULL); /* of generations.h */
    sigaction(SIGPIPE, &action, NULL); /* nobody listens any more: end in good order, with a checkpoint if asked */
    sigset_t held;                     /* by who started this rank (launcher.c) */
    sigemptyset(&held);
    sigaddset(&held, SIGINT);
    sigaddset(&held, SIGTERM);
    sigaddset(&held, SIGUSR1);
    sigprocmask(SIG_UNBLOCK, &held, NULL);
}

/* Whoever calls this program by itself, as a launcher's line does, reads here what it takes. */
static void print_help(void)
{
    fputs("usage: dtplan-exec --data-directory DIR [--catalog FILE]... [SCENARIO.ini]...\n"
          "                   [--set KEY=VALUE]... [--events FD] [--FLAG [VALUE]]...\n\n"
          "Runs one rank of a training, or all of them on this machine, or measures it (--probe).\n"
          "`dtplan run`, `dtplan validate` and `dtplan probe` start it; torchrun, srun and mpirun\n"
          "may as well, once for each rank, with the words that `dtplan run` would be given.\n\n"
          "  --data-directory DIR  the catalogues\n"
          "  --catalog FILE        rows added to them\n"
          "  --set KEY=VALUE       a key of the job, as in a scenario file: --set gpus=2\n"
          "  --events FD           descriptor that lines of JSON go to; default standard output\n"
          "  --built-with          say which devices it has, and end\n"
          "  --help                print this help (also -h)\n\n"
          "Flags, of which dtplan help run and dtplan help probe say more:\n",
          stdout);
    dtp_settings_print(stdout);
}

int main(int argc, char **argv)
{
    if (argc == 2 && (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0)) {
        print_help();
        return fflush(stdout) == 0 ? DTP_OK : DTP_ENVIRONMENT;
    }
    if (argc == 2 && strcmp(argv[1], "--built-with") == 0)
        return say_what_it_is_built_with();
    static struct dtp_faults faults;
    struct words words = {0};
    struct dtp_settings settings = dtp_settings_default();
    catch_signals();
    enum dtp_status status = read_line(&words, &settings, argc, argv, &faults);
    char choices[4096];
    if (!settings.choices)
        settings.choices = default_choices(choices, sizeof choices);
    FILE *events = status == DTP_OK ? open_events(words.events) : NULL;
    if (status == DTP_OK && !events)
        status = dtp_fault(&faults, DTP_BAD_INPUT, NULL, 0, "--events: %s is no open descriptor", words.events);
    if (status == DTP_OK)
        status = start(argv, &words, &settings, events, &faults);
    for (size_t i = 0; i < faults.count && i < DTP_FAULTS_KEPT; i++) {
        fprintf(stderr, "dtplan: %s\n", faults.text[i]);
        dtp_event_fault(events, faults.text[i]);
    }
    free(words.files);
    free(words.catalogs);
    free(words.keys);
    return (int)status;
}
