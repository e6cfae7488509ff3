/* Ranks meet: rank 0 listens, the others come, and all hear whether the run may begin. */
#include "ranks/control_parts.h"

#include "base/append.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define ANSWER_S 2.0 /* how long rank 0's answer may be on its way */
static const char magic[8] = "dtplan/1";

/* What a rank says first on each connection, and rank 0's answer on the one for turns. */
struct hello {
    char magic[8];
    uint32_t line, rank, world;
    uint64_t hash;
};
struct answer {
    uint32_t status;
    char words[DTP_FAULT_TEXT_BYTES];
};

static struct addrinfo *resolve(const struct dtp_ranks *ranks, bool listens, struct dtp_faults *faults)
{
    char port[8];
    struct addrinfo hints = {.ai_family = AF_INET, .ai_socktype = SOCK_STREAM}, *found = NULL;
    bool local = strcmp(ranks->host, "127.0.0.1") == 0 || strcmp(ranks->host, "localhost") == 0;
    snprintf(port, sizeof port, "%u", ranks->port);
    hints.ai_flags = listens && !local ? AI_PASSIVE : 0;
    int error = getaddrinfo(listens && !local ? NULL : ranks->host, port, &hints, &found);
    if (error == 0)
        return found;
    dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "MASTER_ADDR: no address of '%s' (%s)", ranks->host,
              gai_strerror(error));
    return NULL;
}

/* ---- rank 0 waits for all others --------------------------------------------------------------------------------- */

static int listen_for_ranks(const struct dtp_ranks *ranks, struct dtp_faults *faults)
{
    struct addrinfo *address = resolve(ranks, true, faults);
    if (!address)
        return -1;
    int one = 1, listener = socket(address->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (listener >= 0)
        setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (listener < 0 || bind(listener, address->ai_addr, address->ai_addrlen) != 0 ||
        listen(listener, SOMAXCONN) != 0) {
        dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "port %u: %s; set MASTER_PORT to another one for all ranks",
                  ranks->port, strerror(errno));
        if (listener >= 0)
            close(listener);
        listener = -1;
    }
    freeaddrinfo(address);
    return listener;
}

/* NULL: it belongs to the run. */
static const char *objection(const struct dtp_control *c, const struct hello *hello, char *words, size_t bytes)
{
    if (hello->world != c->ranks.world)
        snprintf(words, bytes, "rank %u was started for %u ranks, rank 0 for %u", hello->rank, hello->world,
                 c->ranks.world);
    else if (hello->rank == 0 || hello->rank >= c->ranks.world)
        snprintf(words, bytes, "a second process calls itself rank %u of %u", hello->rank, hello->world);
    else if (c->peer[hello->rank].socket[hello->line] >= 0)
        snprintf(words, bytes, "two processes call themselves rank %u", hello->rank);
    else if (hello->hash != c->options.hash)
        snprintf(words, bytes, "rank %u has another plan, settings or version than rank 0", hello->rank);
    else
        return NULL;
    return words;
}

static void answer_all(const struct dtp_control *c, const struct answer *answer)
{
    for (uint32_t i = 1; i < c->peer_count; i++)
        if (c->peer[i].socket[LINE_TURNS] >= 0)
            dtp_socket_send(c->peer[i].socket[LINE_TURNS], answer, sizeof *answer);
}

/* One that comes: true when it belongs to the run; strangers are hung up on. */
static bool admit(struct dtp_control *c, int socket, struct answer *answer)
{
    struct hello hello;
    dtp_socket_set_timeout(socket, 2);
    if (!dtp_socket_receive(socket, &hello, sizeof hello) || memcmp(hello.magic, magic, sizeof magic) != 0 ||
        hello.line >= LINE_COUNT) {
        close(socket);
        return false;
    }
    if (objection(c, &hello, answer->words, sizeof answer->words)) {
        answer->status = DTP_BAD_INPUT;
        if (hello.line == LINE_TURNS)
            dtp_socket_send(socket, answer, sizeof *answer);
        close(socket);
        return false;
    }
    c->peer[hello.rank].socket[hello.line] = socket;
    dtp_socket_set_timeout(socket, DTP_CONTROL_TURN_TIMEOUT_S);
    return true;
}

static void name_the_missing(const struct dtp_control *c, double waited_s, struct answer *answer)
{
    uint32_t missing = 0;
    snprintf(answer->words, sizeof answer->words, "after %.0f s these ranks of %u have not come:", waited_s,
             c->ranks.world);
    for (uint32_t i = 1; i < c->ranks.world; i++)
        if (c->peer[i].socket[LINE_HEART] < 0 && missing++ < 8)
            dtp_append(answer->words, sizeof answer->words, " %u", i);
    if (missing > 8)
        dtp_append(answer->words, sizeof answer->words, " and %u more", missing - 8);
    answer->status = DTP_ENVIRONMENT;
}

static enum dtp_status wait_for_all(struct dtp_control *c, int listener, struct dtp_faults *faults)
{
    struct answer answer = {.status = DTP_OK};
    double timeout_s = c->options.join_timeout_s, end_s = dtp_now_s() + timeout_s;
    uint32_t open = 0;
    while (answer.status == DTP_OK && open < LINE_COUNT * (c->ranks.world - 1)) {
        struct pollfd wait = {.fd = listener, .events = POLLIN};
        double left_s = end_s - dtp_now_s();
        int ready = left_s > 0 ? poll(&wait, 1, (int)(1e3 * left_s) + 1) : 0;
        int socket = ready > 0 ? accept4(listener, NULL, NULL, SOCK_CLOEXEC) : -1;
        if (socket >= 0)
            open += admit(c, socket, &answer);
        else if (ready == 0)
            name_the_missing(c, timeout_s, &answer);
    }
    answer_all(c, &answer);
    if (answer.status != DTP_OK)
        return dtp_fault(faults, (enum dtp_status)answer.status, NULL, 0, "%s", answer.words);
    return DTP_OK;
}

static enum dtp_status gather_ranks(struct dtp_control *c, struct dtp_faults *faults)
{
    int listener = listen_for_ranks(&c->ranks, faults);
    if (listener < 0)
        return DTP_ENVIRONMENT;
    enum dtp_status status = wait_for_all(c, listener, faults);
    close(listener);
    return status;
}

/* ---- the others come to rank 0 ----------------------------------------------------------------------------------- */

/* Tries until rank 0 listens: ranks start in any order. */
static int connect_until(const struct addrinfo *address, double end_s)
{
    const struct timespec pause = {.tv_nsec = 50000000};
    do {
        int s = socket(address->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (s < 0)
            return -1;
        if (connect(s, address->ai_addr, address->ai_addrlen) == 0)
            return s;
        close(s);
        nanosleep(&pause, NULL);
    } while (dtp_now_s() < end_s);
    return -1;
}

static enum dtp_status come_to_rank_0(struct dtp_control *c, struct dtp_faults *faults)
{
    struct addrinfo *address = resolve(&c->ranks, false, faults);
    if (!address)
        return DTP_ENVIRONMENT;
    struct hello hello = {.rank = c->ranks.rank, .world = c->ranks.world, .hash = c->options.hash};
    struct answer answer;
    double timeout_s = c->options.join_timeout_s, end_s = dtp_now_s() + timeout_s;
    bool open = true;
    memcpy(hello.magic, magic, sizeof magic);
    for (int line = 0; open && line < LINE_COUNT; line++)
        open = (c->peer[0].socket[line] = connect_until(address, end_s)) >= 0;
    for (uint32_t line = 0; open && line < LINE_COUNT; line++) {
        hello.line = line;
        /* Rank 0 answers when the last has come, or not; hung up on: the answer says why. */
        dtp_socket_set_timeout(c->peer[0].socket[line], timeout_s + ANSWER_S);
        dtp_socket_send(c->peer[0].socket[line], &hello, sizeof hello);
    }
    freeaddrinfo(address);
    if (!open || !dtp_socket_receive(c->peer[0].socket[LINE_TURNS], &answer, sizeof answer))
        return dtp_fault(
            faults, DTP_ENVIRONMENT, NULL, 0,
            "rank %u: no answer from rank 0 at %s port %u within %.0f s; did it start, and can its port be reached?",
            c->ranks.rank, c->ranks.host, c->ranks.port, timeout_s);
    answer.words[sizeof answer.words - 1] = '\0';
    if (answer.status != DTP_OK)
        return dtp_fault(faults, answer.status == DTP_BAD_INPUT ? DTP_BAD_INPUT : DTP_ENVIRONMENT, NULL, 0, "%s",
                         answer.words);
    dtp_socket_set_timeout(c->peer[0].socket[LINE_TURNS], DTP_CONTROL_TURN_TIMEOUT_S);
    return DTP_OK;
}

enum dtp_status dtp_control_meet(struct dtp_control *c, struct dtp_faults *faults)
{
    return c->ranks.rank == 0 ? gather_ranks(c, faults) : come_to_rank_0(c, faults);
}
