#include "cli/run_process.h"
#include "base/grow.h"
#include "cli/stages_run.h"
#include "cost/calibration.h"

#include <errno.h>
#include <inttypes.h>
#include <libgen.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define EVENTS_DESCRIPTOR 3

extern char **environ;
static volatile sig_atomic_t child, told_to_stop;

static void pass_on(int signal_number)
{
    told_to_stop = 1;
    if (child > 0)
        kill((pid_t)child, signal_number);
}

/* ---- where it is ------------------------------------------------------------------------------------------------- */

enum dtp_status dtp_run_program(char *out, size_t bytes, struct dtp_faults *faults)
{
    static const char *const places[] = {"dtplan-exec", "../libexec/dtplan-exec"};
    char self[4096];
    ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
    self[length > 0 ? length : 0] = '\0';
    const char *folder = dirname(self);
    for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
        int wrote = snprintf(out, bytes, "%s/%s", folder, places[i]);
        if (wrote > 0 && (size_t)wrote < bytes && access(out, X_OK) == 0)
            return DTP_OK;
    }
    return dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0,
                     "dtplan-exec is neither beside dtplan in %s nor in ../libexec; build or install all of dtplan",
                     folder);
}

/* ---- its line ---------------------------------------------------------------------------------------------------- */

struct line {
    char **words;
    size_t count, room;
    bool failed;
};

static void add(struct line *line, const char *word)
{
    bool room = dtp_grow(&line->words, line->count + 1, &line->room, sizeof *line->words); /* NULL behind the last */
    line->failed |= !room;
    if (!room)
        return;
    line->words[line->count] = strdup(word);
    line->failed |= !line->words[line->count++];
    line->words[line->count] = NULL;
}

static void add_two(struct line *line, const char *flag, const char *value)
{
    add(line, flag);
    add(line, value);
}

static void add_key(struct line *line, const char *key, const char *value)
{
    size_t bytes = strlen(key) + strlen(value) + 2;
    char *text = malloc(bytes);
    line->failed |= !text;
    if (!text)
        return;
    snprintf(text, bytes, "%s=%s", key, value);
    add_two(line, "--set", text);
    free(text);
}

/* The keys of the scenario, whether a file or the command line set them: what is resolved there is what was here. */
static enum dtp_status write_line(const struct dtp_run_process *p, const char *program, struct line *line)
{
    const struct dtp_arguments *a = p->context->arguments;
    char directory[4096], descriptor[16];
    size_t key_count;
    const struct dtp_scenario_key *keys = dtp_scenario_keys(&key_count);
    enum dtp_status status = dtp_data_directory(directory, sizeof directory, p->context->faults);
    if (status != DTP_OK)
        return status;
    add(line, program);
    add_two(line, "--data-directory", directory);
    for (size_t i = 0; i < a->catalog_count; i++)
        add_two(line, "--catalog", a->catalogs[i]);
    for (size_t i = 0; i < key_count; i++) {
        const char *value = dtp_scenario_get(p->scenario, keys[i].key);
        if (value)
            add_key(line, keys[i].key, value);
    }
    for (size_t i = 0; i < a->passed_count; i++) {
        if (dtp_stages_flag(a->passed[i].flag))
            continue;
        add(line, a->passed[i].flag);
        if (a->passed[i].value)
            add(line, a->passed[i].value);
    }
    if (p->program)
        add_two(line, "--program", p->program);
    if (p->op_times)
        add_two(line, "--op-times", p->op_times);
    if (p->probe)
        add(line, "--probe");
    if (p->alone)
        add(line, "--program-alone");
    snprintf(descriptor, sizeof descriptor, "%d", EVENTS_DESCRIPTOR);
    add_two(line, "--events", descriptor);
    return line->failed ? dtp_fault(p->context->faults, DTP_ENVIRONMENT, NULL, 0, "out of memory") : DTP_OK;
}

/* Of the executor's flags those that a framework's own program has; of its prober's there are two. */
static enum dtp_status add_reference_flags(const struct dtp_run_process *p, struct line *line)
{
    static const char *const of_runs[] = {"--steps", "--seed", "--lr", "--device", "--log", NULL};
    static const char *const of_probes[] = {"--device", NULL};
    const char *const *known = p->probe ? of_probes : of_runs;
    const struct dtp_arguments *a = p->context->arguments;
    enum dtp_status worst = DTP_OK;
    for (size_t i = 0; i < a->passed_count; i++) {
        bool is_known = false;
        for (size_t k = 0; known[k]; k++)
            is_known |= strcmp(known[k], a->passed[i].flag) == 0;
        if (is_known)
            add_two(line, a->passed[i].flag, a->passed[i].value);
        else
            worst = dtp_fault(p->context->faults, DTP_BAD_INPUT, NULL, 0, "%s: is of dtplan's own executor; %s",
                              a->passed[i].flag,
                              p->probe ? "a probe by PyTorch's program has --device"
                                       : "a run by PyTorch's program has --steps, --seed, --lr, --device, --log, "
                                         "--trace and --snapshot");
    }
    if (a->trace)
        add_two(line, "--trace", a->trace);
    if (a->snapshot)
        add_two(line, "--snapshot", a->snapshot);
    return worst;
}

/* One process is plain Python's, several are torchrun's. */
static enum dtp_status write_reference_line(const struct dtp_run_process *p, struct line *line)
{
    const char *given = getenv("DTPLAN_PYTHON");
    char directory[4096], script[4200], ranks[16];
    enum dtp_status status = dtp_data_directory(directory, sizeof directory, p->context->faults);
    if (status != DTP_OK)
        return status;
    snprintf(script, sizeof script, "%s/%s", directory, p->reference);
    if (access(script, R_OK) != 0)
        return dtp_fault(p->context->faults, DTP_ENVIRONMENT, script, 0, "cannot be read: %s; install all of dtplan",
                         strerror(errno));
    add(line, given && *given ? given : "python3");
    if (p->ranks > 1) {
        snprintf(ranks, sizeof ranks, "%" PRIu32, p->ranks);
        add_two(line, "-m", "torch.distributed.run");
        add(line, "--standalone");
        add_two(line, "--nproc-per-node", ranks);
    }
    add(line, script);
    if (p->plan)
        add_two(line, "--plan", p->plan);
    for (size_t i = 0; p->reference_words && p->reference_words[i]; i++)
        add(line, p->reference_words[i]);
    status = add_reference_flags(p, line);
    return line->failed ? dtp_fault(p->context->faults, DTP_ENVIRONMENT, NULL, 0, "out of memory") : status;
}

static void release_line(struct line *line)
{
    for (size_t i = 0; i < line->count; i++)
        free(line->words[i]);
    free(line->words);
}

/* ---- running ----------------------------------------------------------------------------------------------------- */

/* Events go to descriptor 3 of the child; its standard output is for nobody, ours is for the report. */
static enum dtp_status spawn(const struct dtp_run_process *p, char *const *words, int *events)
{
    int ends[2];
    pid_t pid;
    posix_spawn_file_actions_t actions;
    if (pipe(ends) != 0)
        return dtp_fault(p->context->faults, DTP_ENVIRONMENT, NULL, 0, "no pipe: %s", strerror(errno));
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addclose(&actions, ends[0]);
    posix_spawn_file_actions_adddup2(&actions, ends[1], EVENTS_DESCRIPTOR);
    if (ends[1] != EVENTS_DESCRIPTOR)
        posix_spawn_file_actions_addclose(&actions, ends[1]);
    posix_spawn_file_actions_adddup2(&actions, STDERR_FILENO, STDOUT_FILENO);
    int failed = posix_spawnp(&pid, words[0], &actions, NULL, words, environ); /* a name alone is looked for in $PATH */
    posix_spawn_file_actions_destroy(&actions);
    close(ends[1]);
    if (failed) {
        close(ends[0]);
        return dtp_fault(p->context->faults, DTP_ENVIRONMENT, words[0], 0, "cannot be started: %s%s", strerror(failed),
                         p->reference ? "; install Python with PyTorch, or name an interpreter in DTPLAN_PYTHON" : "");
    }
    child = (sig_atomic_t)pid;
    *events = ends[0];
    return DTP_OK;
}

static void listen_to(const struct dtp_run_process *p, int events)
{
    char *line = NULL;
    size_t room = 0;
    FILE *file = fdopen(events, "r");
    while (file && getline(&line, &room, file) > 0)
        p->hear(p->listener, line);
    free(line);
    if (file)
        fclose(file);
    else
        close(events);
}

static bool is_elastic(const struct dtp_run_process *p)
{
    const struct dtp_arguments *a = p->context->arguments;
    bool elastic = false;
    for (size_t i = 0; i < a->passed_count; i++)
        elastic = elastic || strcmp(a->passed[i].flag, "--elastic") == 0;
    return elastic;
}

static enum dtp_status await(const struct dtp_run_process *p)
{
    const char *who = p->reference ? p->reference : "dtplan-exec";
    int status;
    while (waitpid((pid_t)child, &status, 0) < 0)
        if (errno != EINTR)
            return dtp_fault(p->context->faults, DTP_ENVIRONMENT, NULL, 0, "%s: %s", who, strerror(errno));
    child = 0;
    if (WIFSIGNALED(status))
        return dtp_fault(p->context->faults, DTP_ENVIRONMENT, NULL, 0, "%s was killed by signal %d (%s)%s", who,
                         WTERMSIG(status), strsignal(WTERMSIG(status)),
                         is_elastic(p) ? "; the same line with --resume goes on from the last snapshot in memory" : "");
    int code = WEXITSTATUS(status);
    if (p->reference && code == 1) /* Python's own, or torchrun's of any rank that fails */
        return dtp_fault(p->context->faults, DTP_ENVIRONMENT, NULL, 0, "%s failed; what went wrong stands above", who);
    return code <= DTP_ENVIRONMENT
               ? (enum dtp_status)code
               : dtp_fault(p->context->faults, DTP_ENVIRONMENT, NULL, 0, "%s ended with %d", who, code);
}

bool dtp_run_process_told_to_stop(void)
{
    return told_to_stop;
}

enum dtp_status dtp_run_process(const struct dtp_run_process *process)
{
    struct sigaction action = {.sa_handler = pass_on, .sa_flags = SA_RESTART}, before[2];
    struct line line = {0};
    char program[8192];
    int events = -1;
    enum dtp_status status = process->reference ? write_reference_line(process, &line)
                                                : dtp_run_program(program, sizeof program, process->context->faults);
    if (status == DTP_OK && !process->reference)
        status = write_line(process, program, &line);
    sigaction(SIGINT, &action, &before[0]);
    sigaction(SIGTERM, &action, &before[1]);
    if (status == DTP_OK)
        status = spawn(process, line.words, &events);
    if (status == DTP_OK) {
        listen_to(process, events);
        status = await(process);
    }
    sigaction(SIGINT, &before[0], NULL);
    sigaction(SIGTERM, &before[1], NULL);
    release_line(&line);
    return status;
}
