#include "cli/doctor.h"

#include "cli/command.h"
#include "cli/run_process.h"
#include "base/append.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define CAPTURED_BYTES (256u << 10) /* of ldconfig -p, some 100 bytes a library */
#define ANSWER_MS 20000             /* a program that says nothing for so long is not waited for */

extern char **environ;

enum look { CATALOGUES, EXECUTOR, CUDA_BUILD, LIBRARY, GPU, PROGRAM, MODULE };

#define ON(command) (1u << DTP_COMMAND_##command)
#define ON_EXECUTION (ON(RUN) | ON(VALIDATE) | ON(PROBE))
#define ON_ALL_COMMANDS (((1u << DTP_COMMAND_COUNT) - 1) & ~ON(HELP) & ~ON(DOCTOR) & ~ON(CHART) & ~ON(SCHEDULE))

static const struct row {
    enum look look;
    struct dtp_need need;
} rows[] = {
#define NEEDED DTP_NEEDED
#define ON_GPUS DTP_NEEDED_ON_GPUS
#define FOR_PART DTP_NEEDED_FOR_PART
#define X(look, name, commands, needed, part, install) {look, {name, commands, needed, part, install, false, ""}},
#include "cli/doctor.def"
#undef X
#undef NEEDED
#undef ON_GPUS
#undef FOR_PART
};
#define ROW_COUNT (sizeof rows / sizeof *rows)

/* ---- other programs ---------------------------------------------------------------------------------------------- */

/* Reads until the end, until `bytes` are full or until nothing came for ANSWER_MS; false: the last. */
static bool read_answer(int descriptor, char *out, size_t bytes)
{
    size_t used = 0;
    struct pollfd wait = {.fd = descriptor, .events = POLLIN};
    bool ends = false, answers = true;
    while (!ends && answers && used + 1 < bytes) {
        answers = poll(&wait, 1, ANSWER_MS) > 0;
        ssize_t got = answers ? read(descriptor, out + used, bytes - 1 - used) : 0;
        ends = got <= 0 && !(got < 0 && errno == EINTR);
        used += got > 0 ? (size_t)got : 0;
    }
    out[used] = '\0';
    return answers;
}

/* Runs a program, found on PATH unless it has a '/', and keeps what it says on both its outputs. True: it ended with
 * status 0. */
static bool ask(char *const *words, char *out, size_t bytes)
{
    posix_spawn_file_actions_t actions;
    int ends[2], status = 0;
    pid_t child = 0;
    out[0] = '\0';
    if (pipe2(ends, O_CLOEXEC) != 0 || posix_spawn_file_actions_init(&actions) != 0)
        return false;
    posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
    posix_spawn_file_actions_adddup2(&actions, ends[1], STDERR_FILENO);
    bool started = posix_spawnp(&child, words[0], &actions, NULL, words, environ) == 0;
    posix_spawn_file_actions_destroy(&actions);
    close(ends[1]);
    bool answers = started && read_answer(ends[0], out, bytes);
    close(ends[0]);
    if (started && !answers)
        kill(child, SIGKILL);
    while (started && waitpid(child, &status, 0) < 0 && errno == EINTR)
        ;
    return answers && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

/* The file that a folder of `folders`, with colons between, has of that name. */
static bool find_in(const char *folders, const char *name, int mode, char *out, size_t bytes)
{
    for (const char *at = folders; at && *at; at += strspn(at, ":")) {
        int length = (int)strcspn(at, ":");
        int wrote = snprintf(out, bytes, "%.*s/%s", length, at, name);
        if (length && wrote > 0 && (size_t)wrote < bytes && access(out, mode) == 0)
            return true;
        at += length;
    }
    out[0] = '\0';
    return false;
}

/* ---- looking ------------------------------------------------------------------------------------------------------
 */

struct search {
    char executor[4200], built_with[1024], *libraries; /* what ldconfig -p prints; NULL or "": it was not asked */
    bool executor_starts;
};

static void first_line(const char *text, char *out, size_t bytes)
{
    snprintf(out, bytes, "%.*s", (int)strcspn(text, "\n"), text);
    dtp_make_printable(out);
}

static void look_for_catalogues(struct dtp_need *need)
{
    static const char *const unset = "not found";
    char directory[4096];
    struct dtp_catalog catalog;
    struct dtp_faults *own = calloc(1, sizeof *own);
    need->found = own && dtp_data_directory(directory, sizeof directory, own) == DTP_OK &&
                  dtp_catalog_load(directory, &catalog, own) == DTP_OK;
    if (need->found)
        dtp_catalog_destroy(&catalog);
    snprintf(need->where, sizeof need->where, "%.255s",
             need->found         ? directory
             : own && own->count ? own->text[0]
                                 : unset);
    free(own);
}

/* Of a library that is missing the loader says which; that is the one line to show. */
static void look_for_executor(struct search *s, struct dtp_need *need)
{
    char *const words[] = {s->executor, "--built-with", NULL};
    need->found = dtp_run_program(s->executor, sizeof s->executor, NULL) == DTP_OK;
    s->executor_starts = need->found && ask(words, s->built_with, sizeof s->built_with);
    if (need->found && !s->executor_starts)
        first_line(s->built_with[0] ? s->built_with : "does not start", need->where, sizeof need->where);
    else
        snprintf(need->where, sizeof need->where, "%.255s", need->found ? s->executor : "not found");
    need->found = s->executor_starts;
}

static void look_for_cuda(const struct search *s, struct dtp_need *need)
{
    need->found = s->executor_starts && strstr(s->built_with, "cuda");
    first_line(need->found          ? s->built_with
               : s->executor_starts ? "this build has none: nvcc, cuBLAS, cuDNN or NCCL was not found, or not wanted"
                                    : "dtplan-exec does not start",
               need->where, sizeof need->where);
}

/* As the loader looks: LD_LIBRARY_PATH, then its cache. */
static bool look_for_library(const struct search *s, const char *name, char *out, size_t bytes)
{
    char line[128];
    if (find_in(getenv("LD_LIBRARY_PATH"), name, R_OK, out, bytes))
        return true;
    snprintf(line, sizeof line, "\t%s (", name);
    const char *found = s->libraries ? strstr(s->libraries, line) : NULL;
    const char *path = found ? strstr(found, "=> ") : NULL;
    if (path)
        first_line(path + 3, out, bytes);
    return path != NULL;
}

static void look_for_libraries(const struct search *s, struct dtp_need *need)
{
    char name[80];
    for (const char *at = need->name; *at && !need->found; at += strspn(at, "|")) {
        snprintf(name, sizeof name, "%.*s", (int)strcspn(at, "|"), at);
        need->found = look_for_library(s, name, need->where, sizeof need->where);
        at += strcspn(at, "|");
    }
}

static void look_for_module(struct dtp_need *need)
{
    char code[256], answer[512];
    snprintf(code, sizeof code, "import importlib.metadata as m; print(m.version('%s'))", need->name);
    char *const words[] = {"python3", "-c", code, NULL};
    need->found = ask(words, answer, sizeof answer);
    if (need->found)
        first_line(answer, need->where, sizeof need->where);
}

static void look(struct search *s, enum look what, struct dtp_need *need)
{
    switch (what) {
    case CATALOGUES: look_for_catalogues(need); break;
    case EXECUTOR: look_for_executor(s, need); break;
    case CUDA_BUILD: look_for_cuda(s, need); break;
    case LIBRARY: look_for_libraries(s, need); break;
    case GPU: need->found = find_in("/dev", "nvidia0", R_OK, need->where, sizeof need->where); break;
    case PROGRAM: need->found = find_in(getenv("PATH"), need->name, X_OK, need->where, sizeof need->where); break;
    case MODULE: look_for_module(need); break;
    }
}

struct dtp_need *dtp_doctor_look(size_t *count)
{
    char *const cached[] = {"ldconfig", "-p", NULL}, *const elsewhere[] = {"/sbin/ldconfig", "-p", NULL};
    struct dtp_need *needs = calloc(ROW_COUNT, sizeof *needs);
    struct search *s = calloc(1, sizeof *s);
    if (needs && s && (s->libraries = malloc(CAPTURED_BYTES)) && !ask(cached, s->libraries, CAPTURED_BYTES))
        (void)ask(elsewhere, s->libraries, CAPTURED_BYTES); /* PATH of people need not have /sbin */
    for (size_t i = 0; i < ROW_COUNT && needs && s; i++) {
        needs[i] = rows[i].need;
        look(s, rows[i].look, &needs[i]);
    }
    if (s)
        free(s->libraries);
    else
        free(needs), needs = NULL;
    free(s);
    *count = needs ? ROW_COUNT : 0;
    return needs;
}

const char *dtp_doctor_commands_text(unsigned commands, char *out, size_t bytes)
{
    out[0] = '\0';
    if (commands == ON_ALL_COMMANDS)
        dtp_append(out, bytes, "all");
    for (int i = 0; i < DTP_COMMAND_COUNT && commands != ON_ALL_COMMANDS; i++)
        if (commands & 1u << i)
            dtp_append_part(out, bytes, ", ", "%s", dtp_command_text((enum dtp_command)i));
    if (!commands)
        dtp_append(out, bytes, "tests");
    return out;
}
