/* Elastic runs of dtplan-exec on the host device, watched through their events, and what tests do to their ranks. */
#ifndef DTP_ELASTIC_FIXTURE_H
#define DTP_ELASTIC_FIXTURE_H

#include "base/clock.h"
#include "lib/remove_all.h"

#include <dirent.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/filter.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define ELASTIC_RANKS 4

struct elastic_run {
    pid_t pid; /* of the launcher; 0: it has ended */
    int status;
    char folder[2048], memory[2100]; /* of its files; of its snapshots */
};

/* What ranks run on: cores, unless GPUs are asked for ("--device cuda --share-gpu"). */
static inline const char *elastic_device(void)
{
    const char *given = getenv("DTPLAN_TEST_DEVICE");
    return given ? given : "--device host --threads 1";
}

static inline void elastic_redirect(const struct elastic_run *run, const char *name, int descriptor)
{
    char path[2200];
    snprintf(path, sizeof path, "%s/%s", run->folder, name);
    int file = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0666);
    if (file < 0 || dup2(file, descriptor) < 0)
        _exit(99);
    close(file);
}

/* Adds the words of a line, separated by spaces, to argv; "FOLDER/..." is within the run's folder, whose own path may
 * have spaces. Both strings stay, and line is cut. */
static inline int elastic_add_words(const struct elastic_run *run, char *line, char *argv[], int argc, int most)
{
    for (char *word = strtok(line, " "); word && argc < most; word = strtok(NULL, " ")) {
        char *path = NULL;
        if (strncmp(word, "FOLDER", strlen("FOLDER")) == 0 &&
            asprintf(&path, "%s%s", run->folder, word + strlen("FOLDER")) < 0)
            _exit(97);
        argv[argc++] = path ? path : word;
    }
    return argc;
}

/* `words`: more of the line, as elastic_add_words takes them. */
static inline void elastic_become(const struct elastic_run *run, const char *words)
{
    static const char *const model =
        "--set runtime=dtplan --set precision=fp32 --set gpus=4 --set strategy=full_shard --set layers=2 --set "
        "hidden=32 "
        "--set heads=2 --set ffn=64 --set vocab=64 --set seq=8 --set accumulate=3 --set gradient_norm=true";
    enum { MOST_WORDS = 127 };
    static char line[8192], program[] = TEST_PROGRAMS "/dtplan-exec", data[] = TEST_SOURCE_DIR "/scenarios";
    char *argv[MOST_WORDS + 1] = {program, "--data-directory", data};
    int argc = 3;
    elastic_redirect(run, "out", STDOUT_FILENO);
    elastic_redirect(run, "err", STDERR_FILENO);
    bool elastic = strstr(words, "--elastic") != NULL;
    snprintf(line, sizeof line, "%s %s %s %s", elastic_device(), elastic ? "--snapshots FOLDER/memory" : "", model,
             words);
    argv[elastic_add_words(run, line, argv, argc, MOST_WORDS)] = NULL;
    alarm(900); /* no test may leave a process: ranks end with their launcher */
    execv(argv[0], argv);
    _exit(98);
}

/* Files of an earlier run of that name go, its snapshots if they are `fresh`. */
static inline void elastic_start(struct elastic_run *run, const char *name, const char *words, bool fresh)
{
    *run = (struct elastic_run){.pid = 0};
    snprintf(run->folder, sizeof run->folder, "%s/tests/elastic_%s", TEST_BINARY_DIR, name);
    snprintf(run->memory, sizeof run->memory, "%s/memory", run->folder);
    if (fresh)
        remove_all(run->folder);
    mkdir(run->folder, 0777);
    fflush(NULL);
    run->pid = fork();
    if (run->pid == 0)
        elastic_become(run, words);
}

static inline size_t elastic_read(const struct elastic_run *run, const char *name, char *out, size_t bytes)
{
    char path[2200];
    snprintf(path, sizeof path, "%s/%s", run->folder, name);
    FILE *file = fopen(path, "r");
    size_t got = file ? fread(out, 1, bytes - 1, file) : 0;
    out[got] = '\0';
    if (file)
        fclose(file);
    return got;
}

static inline bool elastic_ended(struct elastic_run *run)
{
    if (run->pid && waitpid(run->pid, &run->status, WNOHANG) == run->pid)
        run->pid = 0;
    return run->pid == 0;
}

/* ---- events ------------------------------------------------------------------------------------------------------ */

/* What the events so far say. */
struct elastic_account {
    uint64_t step;             /* that ended last */
    uint32_t generations;      /* whose ranks have begun */
    uint32_t ranks;            /* of the last */
    uint64_t lost_most;        /* steps that a generation had to do again, at most */
    uint64_t lost;             /* in all */
    uint64_t snapshot;         /* the last that was whole */
    uint64_t how;              /* the first lost rank was noticed: enum dtp_rank_loss */
    double noticed_s, ended_s; /* after the last step of its generation: by a rank, all of them */
    double step_s;             /* of the step before */
    double loss;               /* mean of the last ten steps */
    bool stepping, ended;      /* the last generation has ended a step; the run is done */
    char from[16];             /* what the last generation went on from */
};

static inline uint64_t elastic_number(const char *line, const char *key)
{
    const char *at = strstr(line, key);
    return at ? strtoull(at + strlen(key), NULL, 10) : 0;
}

static inline double elastic_real(const char *line, const char *key)
{
    const char *at = strstr(line, key);
    return at ? strtod(at + strlen(key), NULL) : 0;
}

static inline struct elastic_account elastic_account(const struct elastic_run *run)
{
    static char text[16 << 20];
    struct elastic_account a = {.step = 0};
    double losses[10] = {0};
    elastic_read(run, "out", text, sizeof text);
    for (char *line = text, *end; (end = strchr(line, '\n')); line = end + 1) {
        *end = '\0';
        if (strstr(line, "\"event\":\"generation\"") && elastic_number(line, "\"number\":") == 1) {
            a.how = elastic_number(line, "\"how\":");
            a.noticed_s = elastic_real(line, "\"noticed_s\":");
            a.ended_s = elastic_real(line, "\"ended_s\":");
        } else if (strstr(line, "\"event\":\"start\"")) {
            uint64_t first = elastic_number(line, "\"first_step\":"), lost = a.step > first ? a.step - first : 0;
            a.lost_most = lost > a.lost_most ? lost : a.lost_most;
            a.lost += lost;
            a.generations++;
            a.stepping = false;
        } else if (strstr(line, "\"event\":\"begin\"")) {
            a.ranks = (uint32_t)elastic_number(line, "\"ranks\":");
            sscanf(strstr(line, "\"from\":\"") + 8, "%15[a-z]", a.from);
        } else if (strstr(line, "\"event\":\"snapshot\"")) {
            a.snapshot = elastic_number(line, "\"step\":");
        } else if (strstr(line, "\"event\":\"step\"")) {
            a.step = elastic_number(line, "\"step\":");
            a.step_s = a.generations == 1 ? elastic_real(line, "\"step_s\":") : a.step_s;
            losses[a.step % 10] = strtod(strstr(line, "\"loss\":") + 7, NULL);
            a.stepping = true;
        } else if (strstr(line, "\"event\":\"end\"")) {
            a.ended = !strstr(line, "\"interrupted\":true");
        }
    }
    for (int i = 0; i < 10; i++)
        a.loss += losses[i] / 10;
    return a;
}

/* ---- ranks ------------------------------------------------------------------------------------------------------- */

static inline bool elastic_has_variable(pid_t pid, const char *variable)
{
    char path[64], text[1 << 15];
    snprintf(path, sizeof path, "/proc/%ld/environ", (long)pid);
    FILE *file = fopen(path, "r");
    size_t bytes = file ? fread(text, 1, sizeof text - 1, file) : 0;
    if (file)
        fclose(file);
    text[bytes] = '\0';
    for (size_t at = 0; at < bytes; at += strlen(text + at) + 1)
        if (strcmp(text + at, variable) == 0)
            return true;
    return false;
}

static inline pid_t elastic_parent(pid_t pid)
{
    char path[64], text[512] = "";
    long parent = 0;
    snprintf(path, sizeof path, "/proc/%ld/stat", (long)pid);
    FILE *file = fopen(path, "r");
    const char *name = file && fgets(text, sizeof text, file) ? strrchr(text, ')') : NULL;
    if (!name || sscanf(name, ") %*c %ld", &parent) != 1)
        parent = 0;
    if (file)
        fclose(file);
    return (pid_t)parent;
}

/* 0: there is none now. */
static inline pid_t elastic_rank(const struct elastic_run *run, uint32_t rank)
{
    char variable[32];
    pid_t found = 0;
    DIR *processes = opendir("/proc");
    snprintf(variable, sizeof variable, "RANK=%u", rank);
    for (const struct dirent *entry; processes && (entry = readdir(processes));) {
        pid_t pid = (pid_t)atol(entry->d_name);
        if (pid > 0 && elastic_parent(pid) == run->pid && elastic_has_variable(pid, variable))
            found = pid;
    }
    if (processes)
        closedir(processes);
    return found;
}

/* Which slot it runs in. */
static inline uint32_t elastic_slot(pid_t pid)
{
    char variable[32];
    for (uint32_t slot = 0; slot < 64; slot++) {
        snprintf(variable, sizeof variable, "DTPLAN_SLOT=%u", slot);
        if (elastic_has_variable(pid, variable))
            return slot;
    }
    return UINT32_MAX;
}

/* A stranger's hand on the sockets of a process, by its descriptors (pidfd_getfd(2)): they are shut, as a router that
 * goes down resets connections, or a filter drops all that arrives, as a pulled cable does; or those that are connected
 * are only counted. Returns how many. */
enum elastic_hand { ELASTIC_COUNT, ELASTIC_SHUT, ELASTIC_DROP };
static inline bool elastic_touch(int socket, enum elastic_hand hand)
{
    struct sock_filter nothing = BPF_STMT(BPF_RET | BPF_K, 0);
    struct sock_fprog filter = {1, &nothing};
    struct sockaddr_storage peer;
    socklen_t bytes = sizeof peer;
    switch (hand) {
    case ELASTIC_COUNT: return getpeername(socket, (struct sockaddr *)&peer, &bytes) == 0;
    case ELASTIC_SHUT: return shutdown(socket, SHUT_RDWR) == 0;
    case ELASTIC_DROP: return setsockopt(socket, SOL_SOCKET, SO_ATTACH_FILTER, &filter, sizeof filter) == 0;
    }
    return false;
}

static inline int elastic_sockets(pid_t pid, enum elastic_hand hand)
{
    char path[32], link[300], name[64];
    int process = (int)syscall(SYS_pidfd_open, pid, 0), count = 0;
    snprintf(path, sizeof path, "/proc/%ld/fd", (long)pid);
    DIR *files = opendir(path);
    for (const struct dirent *entry; files && process >= 0 && (entry = readdir(files));) {
        snprintf(link, sizeof link, "%s/%s", path, entry->d_name);
        ssize_t length = readlink(link, name, sizeof name - 1);
        name[length > 0 ? length : 0] = '\0';
        if (strncmp(name, "socket:", 7) != 0)
            continue;
        int copy = (int)syscall(SYS_pidfd_getfd, process, atoi(entry->d_name), 0);
        count += copy >= 0 && elastic_touch(copy, hand);
        if (copy >= 0)
            close(copy);
    }
    if (files)
        closedir(files);
    if (process >= 0)
        close(process);
    return count;
}

/* From now on no file of this rank grows beyond so many bytes, as on a disk or in a memory that is full. */
static inline bool elastic_fill(pid_t pid, uint64_t bytes)
{
    const struct rlimit limit = {bytes, bytes};
    return prlimit(pid, RLIMIT_FSIZE, &limit, NULL) == 0;
}

/* The memory of a slot is gone with its machine. */
static inline void elastic_forget(const struct elastic_run *run, uint32_t slot)
{
    char path[2200];
    snprintf(path, sizeof path, "%s/slot-%u", run->memory, slot);
    remove_all(path);
}

#endif
