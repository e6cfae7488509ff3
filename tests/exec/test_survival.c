/* Runs that lose a rank, or never get all of them, on the host device: whatever happens to one rank, every other ends
 * by itself within 30 s, with an error, and says which rank it was; nothing is left half written. Ranks are started as
 * a launcher starts them, one by one. All cases run at the same time, for most of their time is waiting. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/clock.h"
#include "lib/run_fixture.h"

#include "lib/free_port.h"
#include "lib/remove_all.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define RANKS 3
#define MOST_S 30.0      /* until the last rank has ended */
#define BUSY_S 120.0     /* the same on a machine that has more to do than cores for it; also until a step is made */
#define OP_WORDS ", at " /* of the message: in step N, at OPERATION "name" of layer L */

enum happening {
    KILLED,
    KILLED_FIRST,
    STAGE_KILLED,
    STOPPED,
    ABSENT,
    CANNOT_BEGIN,
    WRONG_WORLD,
    PORT_TAKEN,
    HAPPENINGS
};

static const struct expectation {
    const char *name;
    uint32_t victim;   /* whom it happens to */
    bool runs;         /* a step must have been made first */
    const char *words; /* that each other rank says */
    bool place;        /* and where it was then */
} expected[HAPPENINGS] = {
    [KILLED] = {"killed", 1, true, "rank 1 ended without a word, last heard of ", true},
    [KILLED_FIRST] = {"killed_first", 0, true, "rank 0 ended without a word, last heard of ", true},
    [STAGE_KILLED] = {"stage_killed", 1, true, "rank 1 ended without a word, last heard of ", true},
    [STOPPED] = {"stopped", 2, true, "rank 2 has been silent for 10 s, last heard of in step ", true},
    [ABSENT] = {"absent", 1, false, "", false},
    [CANNOT_BEGIN] = {"cannot_begin", 2, false, "could not go on with rank 2, ", false},
    [WRONG_WORLD] = {"wrong_world", 1, false, "", false},
    [PORT_TAKEN] = {"port_taken", 0, false, "port ", false},
};

struct job {
    pid_t pid[RANKS]; /* 0: ended */
    int status[RANKS];
    uint16_t port;
    int stranger; /* who has taken the port; -1: nobody */
    double since_s, ended_s[RANKS];
    char folder[3000];
};
static struct job jobs[HAPPENINGS];

/* ---- starting ---------------------------------------------------------------------------------------------------- */

static void set_number(const char *name, uint32_t value)
{
    char text[16];
    snprintf(text, sizeof text, "%u", value);
    setenv(name, text, 1);
}

static void send_to_file(const struct job *job, const char *kind, uint32_t rank, int descriptor)
{
    char path[3100];
    snprintf(path, sizeof path, "%s/%s%u", job->folder, kind, rank);
    int file = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0666);
    if (file < 0 || dup2(file, descriptor) < 0)
        _exit(99);
    close(file);
}

static void become_rank(enum happening what, const struct job *job, uint32_t rank)
{
    bool victim = rank == expected[what].victim;
    char checkpoints[3100];
    snprintf(checkpoints, sizeof checkpoints, "%s/saved", job->folder);
    set_number("RANK", rank);
    set_number("LOCAL_RANK", rank);
    set_number("WORLD_SIZE", what == WRONG_WORLD && victim ? RANKS + 1 : RANKS);
    set_number("LOCAL_WORLD_SIZE", RANKS);
    set_number("MASTER_PORT", job->port);
    setenv("MASTER_ADDR", "127.0.0.1", 1);
    send_to_file(job, "out", rank, STDOUT_FILENO);
    send_to_file(job, "err", rank, STDERR_FILENO);
    if (what == ABSENT && victim)
        _exit(1);
    alarm((unsigned)(3 * BUSY_S)); /* no test may leave a process */
    execl(TEST_PROGRAMS "/dtplan-exec", "dtplan-exec", "--data-directory", TEST_SOURCE_DIR "/scenarios", "--device",
          "host", "--threads", "1", "--steps", "1000000", "--checkpoint", checkpoints, "--checkpoint-every", "1",
          "--set", "runtime=dtplan", "--set", "precision=fp32", "--set", "gpus=3", "--set",
          what == STAGE_KILLED ? "pp=3" : "pp=1", "--set", what == STAGE_KILLED ? "accumulate=3" : "accumulate=1",
          "--set", what == STAGE_KILLED ? "schedule=zb-h1" : "vocab=64", "--set", "strategy=full_shard", "--set",
          "layers=6", "--set", "hidden=32", "--set", "heads=2", "--set", "ffn=64", "--set", "vocab=64", "--set",
          "seq=16", what == CANNOT_BEGIN && victim ? "--data" : "--seed",
          what == CANNOT_BEGIN && victim ? "/no/such/tokens" : "1", (char *)NULL);
    _exit(98);
}

static void take_port(struct job *job)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    address.sin_port = htons(job->port);
    job->stranger = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(job->stranger, (struct sockaddr *)&address, sizeof address), 0);
    assert_int_equal(listen(job->stranger, 8), 0);
}

static void start(enum happening what)
{
    struct job *job = &jobs[what];
    *job = (struct job){.port = free_port(), .stranger = -1, .since_s = dtp_now_s()};
    snprintf(job->folder, sizeof job->folder, "%s/tests/survival_%s", TEST_BINARY_DIR, expected[what].name);
    mkdir(job->folder, 0777);
    if (what == PORT_TAKEN)
        take_port(job);
    fflush(NULL);
    for (uint32_t rank = 0; rank < RANKS; rank++)
        if ((job->pid[rank] = fork()) == 0)
            become_rank(what, job, rank);
}

/* ---- what happens ------------------------------------------------------------------------------------------------ */

static size_t read_file(const struct job *job, const char *kind, uint32_t rank, char *out, size_t bytes)
{
    char path[3100];
    snprintf(path, sizeof path, "%s/%s%u", job->folder, kind, rank);
    FILE *file = fopen(path, "r");
    size_t got = file ? fread(out, 1, bytes - 1, file) : 0;
    out[got] = '\0';
    if (file)
        fclose(file);
    return got;
}

static void wait_for_steps(const struct job *job)
{
    static char events[1 << 20];
    double end_s = dtp_now_s() + BUSY_S;
    do {
        assert_true(dtp_now_s() < end_s);
        usleep(50000);
        read_file(job, "out", 0, events, sizeof events);
    } while (!strstr(events, "\"event\":\"checkpoint\""));
    usleep(1200000); /* two beats: where each is has been told */
}

static void strike(enum happening what)
{
    struct job *job = &jobs[what];
    if (!expected[what].runs)
        return;
    wait_for_steps(job);
    job->since_s = dtp_now_s();
    assert_int_equal(kill(job->pid[expected[what].victim], what == STOPPED ? SIGSTOP : SIGKILL), 0);
}

static bool reap(struct job *job, uint32_t rank)
{
    if (job->pid[rank] && waitpid(job->pid[rank], &job->status[rank], WNOHANG) == job->pid[rank]) {
        job->pid[rank] = 0;
        job->ended_s[rank] = dtp_now_s();
    }
    return job->pid[rank] == 0;
}

static double most_s(void)
{
    double load = 0;
    bool busy = getloadavg(&load, 1) == 1 && load > (double)sysconf(_SC_NPROCESSORS_ONLN);
    return busy ? BUSY_S : MOST_S;
}

static void wait_for_the_others(enum happening what)
{
    struct job *job = &jobs[what];
    bool all = false;
    while (!all) {
        all = true;
        for (uint32_t rank = 0; rank < RANKS; rank++)
            all = (reap(job, rank) || (what == STOPPED && rank == expected[what].victim)) && all;
        if (dtp_now_s() - job->since_s > MOST_S && dtp_now_s() - job->since_s > most_s())
            fail_msg("%s: ranks that have not ended after %.0f s", expected[what].name, dtp_now_s() - job->since_s);
        usleep(20000);
    }
    if (what == STOPPED)
        kill(job->pid[expected[what].victim], SIGKILL);
}

/* ---- what is left ------------------------------------------------------------------------------------------------ */

static void check_words(enum happening what)
{
    static char said[1 << 16];
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        if (rank == expected[what].victim)
            continue;
        int status = jobs[what].status[rank];
        read_file(&jobs[what], "err", rank, said, sizeof said);
        if (!WIFEXITED(status) || (WEXITSTATUS(status) != DTP_ENVIRONMENT && WEXITSTATUS(status) != DTP_BAD_INPUT))
            fail_msg("%s: rank %u ended with %d: %s", expected[what].name, rank, status, said);
        if (!strstr(said, "dtplan: ") || (expected[what].words[0] && !strstr(said, expected[what].words)) ||
            (expected[what].place && !strstr(said, OP_WORDS)))
            fail_msg("%s: rank %u says: %s", expected[what].name, rank, said);
        if (what == STAGE_KILLED && (!strstr(said, " of micro-batch ") || !strstr(said, " on pipeline rank 1")))
            fail_msg("%s: rank %u does not say which micro-batch and stage: %s", expected[what].name, rank, said);
    }
}

static void check_checkpoints(enum happening what)
{
    char path[3100];
    snprintf(path, sizeof path, "%s/saved", jobs[what].folder);
    DIR *folder = opendir(path);
    size_t whole = 0;
    for (const struct dirent *entry; folder && (entry = readdir(folder));) {
        if (strstr(entry->d_name, ".partial"))
            fail_msg("%s: %s is left", expected[what].name, entry->d_name);
        whole += strncmp(entry->d_name, "step-", 5) == 0;
    }
    if (folder)
        closedir(folder);
    assert_true(whole > 0 || !expected[what].runs);
}

static void test_whatever_happens_to_a_rank(void **state)
{
    (void)state;
    for (int what = 0; what < HAPPENINGS; what++)
        start((enum happening)what);
    for (int what = 0; what < HAPPENINGS; what++)
        strike((enum happening)what);
    for (int what = 0; what < HAPPENINGS; what++)
        wait_for_the_others((enum happening)what);
    for (int what = 0; what < HAPPENINGS; what++) {
        check_words((enum happening)what);
        check_checkpoints((enum happening)what);
    }
}

static int clean(void **state)
{
    (void)state;
    for (int what = 0; what < HAPPENINGS; what++) {
        for (uint32_t rank = 0; rank < RANKS; rank++)
            if (jobs[what].pid[rank] > 0 && kill(jobs[what].pid[rank], SIGKILL) == 0)
                waitpid(jobs[what].pid[rank], NULL, 0);
        if (jobs[what].stranger > 0)
            close(jobs[what].stranger);
        remove_all(jobs[what].folder);
    }
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test_teardown(test_whatever_happens_to_a_rank, clean)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
