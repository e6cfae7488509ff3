#include "ranks/launcher.h"

#include "base/clock.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

struct children {
    const struct dtp_launch *of;
    pid_t *pid; /* 0: ended */
    uint32_t count, running;
    bool told_to_end, killed, signalled;
    double failed_s; /* when the first ended badly; 0: none has */
};

/* One that was free a moment ago; the ranks say so if it is not any more. */
static uint16_t free_port(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t bytes = sizeof address;
    int s = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    bool got = s >= 0 && bind(s, (struct sockaddr *)&address, bytes) == 0 &&
               getsockname(s, (struct sockaddr *)&address, &bytes) == 0;
    if (s >= 0)
        close(s);
    return got ? ntohs(address.sin_port) : 0;
}

static void set_number(const char *name, uint32_t value)
{
    char text[16];
    snprintf(text, sizeof text, "%u", value);
    setenv(name, text, 1);
}

/* In the child; returns only where the program could not be started. */
static void become_rank(const struct dtp_launch *launch, uint32_t rank, pid_t parent, const sigset_t *mask)
{
    char *const *argv = launch->argv;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) /* it ended before that */
        _exit(DTP_ENVIRONMENT);
    sigset_t held = *mask; /* until it catches them, for by default a rank that just begins would die of them */
    sigaddset(&held, SIGINT);
    sigaddset(&held, SIGTERM);
    sigaddset(&held, SIGUSR1);
    sigprocmask(SIG_SETMASK, &held, NULL);
    set_number("RANK", rank);
    set_number("LOCAL_RANK", rank);
    if (launch->tell)
        launch->tell(launch->context, rank);
    int nowhere = rank ? open("/dev/null", O_WRONLY) : -1;
    if (nowhere >= 0)
        dup2(nowhere, STDOUT_FILENO);
    execv(argv[0], argv);
    fprintf(stderr, "dtplan-exec: %s: %s\n", argv[0], strerror(errno));
    _exit(DTP_ENVIRONMENT);
}

static void send_to_all(const struct children *c, int signal)
{
    for (uint32_t i = 0; i < c->count; i++)
        if (c->pid[i])
            kill(c->pid[i], signal);
}

static enum dtp_status reap(struct children *c, struct dtp_faults *faults)
{
    enum dtp_status worst = DTP_OK;
    int status;
    pid_t pid;
    while ((pid = waitpid(-1, &status, WNOHANG)) > 0) {
        uint32_t rank = 0;
        while (rank < c->count && c->pid[rank] != pid)
            rank++;
        if (rank == c->count)
            continue;
        c->pid[rank] = 0;
        c->running--;
        int code = WIFEXITED(status) ? WEXITSTATUS(status) : DTP_ENVIRONMENT;
        enum dtp_status its = code <= DTP_ENVIRONMENT ? (enum dtp_status)code : DTP_ENVIRONMENT;
        worst = dtp_worse(worst, its);
        if (c->of->ends)
            c->of->ends[rank] =
                (struct dtp_rank_end){its, WIFSIGNALED(status) && !c->killed ? WTERMSIG(status) : 0, c->killed};
        if (WIFSIGNALED(status) && !c->told_to_end)
            dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "rank %u was ended by signal %d (%s)", rank, WTERMSIG(status),
                      strsignal(WTERMSIG(status)));
        c->signalled = c->signalled || (WIFSIGNALED(status) && !c->told_to_end);
        if ((code != 0 || WIFSIGNALED(status)) && c->failed_s == 0)
            c->failed_s = dtp_now_s();
    }
    return worst;
}

static void end_the_rest(struct children *c, struct dtp_faults *faults)
{
    double since_s = c->failed_s > 0 ? dtp_now_s() - c->failed_s : 0;
    double grace_s = c->of->grace_s > 0 ? c->of->grace_s : c->signalled ? DTP_LAUNCH_KILLED_S : DTP_LAUNCH_GRACE_S;
    if (since_s > grace_s && !c->told_to_end) {
        dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0,
                  "%u ranks had not ended %.0f s after the first failed and were killed", c->running, grace_s);
        c->told_to_end = true;
        send_to_all(c, SIGTERM);
        send_to_all(c, SIGCONT); /* a stopped one must wake to die */
    }
    if (since_s > grace_s + 2 && !c->killed) {
        c->killed = true;
        send_to_all(c, SIGKILL);
    }
}

static enum dtp_status wait_for_all(struct children *c, const sigset_t *watched, struct dtp_faults *faults)
{
    const struct timespec tick = {.tv_nsec = 200000000};
    enum dtp_status worst = DTP_OK;
    while (c->running > 0) {
        int signal = sigtimedwait(watched, NULL, &tick);
        if (signal == SIGINT || signal == SIGTERM)
            send_to_all(c, signal);
        if ((signal == SIGINT || signal == SIGTERM) && c->of->stopped)
            *c->of->stopped = true;
        int asked = c->of->tick ? c->of->tick(c->of->context) : 0;
        if (asked)
            send_to_all(c, asked);
        worst = dtp_worse(worst, reap(c, faults));
        end_the_rest(c, faults);
    }
    return worst;
}

static enum dtp_status start_all(struct children *c, const sigset_t *mask, struct dtp_faults *faults)
{
    pid_t parent = getpid();
    fflush(NULL);
    for (uint32_t rank = 0; rank < c->count; rank++) {
        pid_t pid = fork();
        if (pid == 0)
            become_rank(c->of, rank, parent, mask);
        if (pid < 0) {
            send_to_all(c, SIGKILL);
            return dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "rank %u: cannot be started (%s)", rank,
                             strerror(errno));
        }
        c->pid[rank] = pid;
        c->running++;
    }
    return DTP_OK;
}

enum dtp_status dtp_launch(char *const argv[], uint32_t ranks, struct dtp_faults *faults)
{
    const struct dtp_launch launch = {.argv = argv, .ranks = ranks};
    return dtp_launch_ranks(&launch, faults);
}

enum dtp_status dtp_launch_ranks(const struct dtp_launch *launch, struct dtp_faults *faults)
{
    sigset_t watched, before;
    uint16_t port = free_port();
    uint32_t ranks = launch->ranks;
    struct children c = {.of = launch, .pid = calloc(ranks, sizeof *c.pid), .count = ranks};
    if (!c.pid || port == 0) {
        free(c.pid);
        return dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "%s to start %u ranks with",
                         port ? "no memory" : "no free port on the loopback device", ranks);
    }
    set_number("WORLD_SIZE", ranks);
    set_number("LOCAL_WORLD_SIZE", ranks);
    set_number("MASTER_PORT", port);
    setenv("MASTER_ADDR", "127.0.0.1", 1);
    unsetenv("TORCHELASTIC_USE_AGENT_STORE");
    sigemptyset(&watched);
    sigaddset(&watched, SIGCHLD);
    sigaddset(&watched, SIGINT);
    sigaddset(&watched, SIGTERM);
    sigprocmask(SIG_BLOCK, &watched, &before);
    enum dtp_status status = start_all(&c, &before, faults);
    status = dtp_worse(status, wait_for_all(&c, &watched, faults));
    sigprocmask(SIG_SETMASK, &before, NULL);
    free(c.pid);
    return status;
}
