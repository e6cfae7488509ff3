#include "snapshot/peers.h"

#include "base/crc64.h"
#include "ranks/sockets.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#define TALK_S 10.0            /* that either end may be silent in the middle of a request */
#define WAIT_S 60.0            /* that an answer may take, while others are served before */
#define PIECE_BYTES (1u << 20) /* that a server holds of what it passes on */
#define GET_BYTES (64u << 20)  /* of one request, so that others get their turn */

enum wish { WISH_GET, WISH_PUT };
struct request {
    uint64_t secret;
    uint32_t wish, rank, copy, turn;
    uint64_t offset, bytes;         /* of GET */
    uint64_t keep_step, keep_world; /* of PUT */
};
struct answer {
    uint64_t secret, status; /* enum dtp_status */
};

struct dtp_peer_server {
    int listener, wake; /* wake: eventfd that ends the thread's wait */
    struct dtp_peer own;
    pthread_t thread;
    bool serving;
    atomic_bool leaving, trusted;
    uint64_t secret, identity;
    char folder[DTP_SNAPSHOT_PATH_BYTES];
    unsigned char *piece;
};

/* ---- the server -------------------------------------------------------------------------------------------------- */

/* What follows a PUT: the head, then as many bytes as it says. Kept are only bytes with the sums of the head. */
static enum dtp_status take_copy(struct dtp_peer_server *s, int socket, const struct request *request)
{
    struct dtp_snapshot_head head;
    struct dtp_snapshot_file file;
    struct dtp_faults unheard = {0}; /* the sender says that its copy was not taken */
    const struct dtp_snapshot_name name = {
        request->rank, true,
        dtp_snapshot_turn(s->folder, request->rank, true, request->keep_step, (uint32_t)request->keep_world)};
    if (!dtp_socket_receive(socket, &head, sizeof head) || !dtp_snapshot_sealed(&head) ||
        head.identity != s->identity || head.rank != request->rank)
        return DTP_BAD_INPUT;
    enum dtp_status status = dtp_snapshot_create(s->folder, &name, &file, &unheard);
    uint64_t lengths[] = {head.block_count * sizeof(struct dtp_snapshot_block), head.data_bytes};
    uint64_t wanted[] = {head.blocks_crc, head.data_crc};
    for (int i = 0; i < 2 && status == DTP_OK; i++) {
        uint64_t crc = 0;
        for (uint64_t left = lengths[i]; left > 0 && status == DTP_OK;) {
            uint64_t now = left < PIECE_BYTES ? left : PIECE_BYTES;
            if (!dtp_socket_receive(socket, s->piece, now)) {
                status = DTP_ENVIRONMENT;
                break;
            }
            crc = dtp_crc64(crc, s->piece, now);
            status = dtp_snapshot_append(&file, s->piece, now, &unheard);
            left -= now;
        }
        if (status == DTP_OK && crc != wanted[i])
            status = DTP_ENVIRONMENT;
    }
    if (status == DTP_OK)
        status = dtp_snapshot_finish(&file, &head, &unheard);
    dtp_snapshot_close(&file);
    return status;
}

static void give(struct dtp_peer_server *s, int socket, const struct request *request)
{
    const struct dtp_snapshot_name name = {request->rank, request->copy != 0, request->turn};
    uint64_t offset = request->offset;
    for (uint64_t left = request->bytes; left > 0;) {
        uint64_t now = left < PIECE_BYTES ? left : PIECE_BYTES;
        if (!dtp_snapshot_read(s->folder, &name, offset, s->piece, now) || !dtp_socket_send(socket, s->piece, now))
            return; /* a short answer is one that failed */
        offset += now;
        left -= now;
    }
}

static void answer_one(struct dtp_peer_server *s, int socket)
{
    struct request request;
    struct answer answer = {s->secret, DTP_OK};
    dtp_socket_set_timeout(socket, TALK_S);
    if (!dtp_socket_receive(socket, &request, sizeof request) || request.secret != s->secret)
        return;
    if (request.wish == WISH_PUT) {
        answer.status = (uint64_t)take_copy(s, socket, &request);
        dtp_socket_send(socket, &answer, sizeof answer);
    } else if (request.wish == WISH_GET && request.bytes <= GET_BYTES) {
        give(s, socket, &request);
    }
}

static void *serve(void *server)
{
    struct dtp_peer_server *s = server;
    while (!atomic_load(&s->leaving)) {
        struct pollfd wait[] = {{.fd = s->wake, .events = POLLIN},
                                {.fd = atomic_load(&s->trusted) ? s->listener : -1, .events = POLLIN}};
        if (poll(wait, 2, -1) <= 0)
            continue;
        if (wait[0].revents) {
            eventfd_t ignored;
            eventfd_read(s->wake, &ignored);
        }
        int socket = wait[1].revents ? accept4(s->listener, NULL, NULL, SOCK_CLOEXEC) : -1;
        if (socket < 0)
            continue;
        answer_one(s, socket);
        close(socket);
    }
    return NULL;
}

static bool listen_at(struct dtp_peer_server *s, const char *address)
{
    struct sockaddr_in own = {.sin_family = AF_INET};
    socklen_t bytes = sizeof own;
    if (inet_pton(AF_INET, address, &own.sin_addr) != 1)
        own.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    s->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    bool there = s->listener >= 0 && bind(s->listener, (struct sockaddr *)&own, sizeof own) == 0 &&
                 listen(s->listener, SOMAXCONN) == 0 && getsockname(s->listener, (struct sockaddr *)&own, &bytes) == 0;
    s->own = (struct dtp_peer){own.sin_addr.s_addr, own.sin_port};
    return there;
}

enum dtp_status dtp_peer_serve(const char *address, const char *folder, struct dtp_peer_server **out,
                               struct dtp_faults *faults)
{
    struct dtp_peer_server *s = calloc(1, sizeof *s);
    *out = s;
    if (s)
        s->piece = malloc(PIECE_BYTES);
    if (!s || !s->piece) {
        free(s);
        *out = NULL;
        return dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "out of memory");
    }
    strncpy(s->folder, folder, sizeof s->folder - 1);
    s->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    s->serving = listen_at(s, address) && s->wake >= 0 && pthread_create(&s->thread, NULL, serve, s) == 0;
    if (s->serving)
        return DTP_OK;
    enum dtp_status status =
        dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "snapshots cannot be served at %s: %s", address, strerror(errno));
    dtp_peer_stop(s);
    *out = NULL;
    return status;
}

struct dtp_peer dtp_peer_own(const struct dtp_peer_server *s)
{
    return s->own;
}

void dtp_peer_trust(struct dtp_peer_server *s, uint64_t secret, uint64_t identity)
{
    s->secret = secret;
    s->identity = identity;
    atomic_store(&s->trusted, true);
    eventfd_write(s->wake, 1);
}

void dtp_peer_stop(struct dtp_peer_server *s)
{
    if (!s)
        return;
    atomic_store(&s->leaving, true);
    if (s->serving) {
        eventfd_write(s->wake, 1);
        pthread_join(s->thread, NULL);
    }
    if (s->listener >= 0)
        close(s->listener);
    if (s->wake >= 0)
        close(s->wake);
    free(s->piece);
    free(s);
}

/* ---- who asks ---------------------------------------------------------------------------------------------------- */

static int reach(const struct dtp_peer *peer)
{
    struct sockaddr_in address = {
        .sin_family = AF_INET, .sin_addr.s_addr = peer->address, .sin_port = (in_port_t)peer->port};
    int s = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (s < 0)
        return -1;
    dtp_socket_set_timeout(s, TALK_S); /* of connecting too: socket(7), SO_SNDTIMEO */
    if (connect(s, (struct sockaddr *)&address, sizeof address) == 0)
        return s;
    close(s);
    return -1;
}

static enum dtp_status lost(const struct dtp_peer *peer, const char *what, struct dtp_faults *faults)
{
    char text[INET_ADDRSTRLEN] = "";
    inet_ntop(AF_INET, &peer->address, text, sizeof text);
    return dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "the rank at %s port %u %s", text,
                     (unsigned)ntohs((in_port_t)peer->port), what);
}

enum dtp_status dtp_peer_put(const struct dtp_peer *peer, uint64_t secret, const struct dtp_peer_copy *copy,
                             struct dtp_faults *faults)
{
    const struct dtp_snapshot_head *head = copy->head;
    const struct request request = {.secret = secret,
                                    .wish = WISH_PUT,
                                    .rank = head->rank,
                                    .keep_step = copy->keep_step,
                                    .keep_world = copy->keep_world};
    struct answer answer = {0};
    int s = reach(peer);
    bool sent = s >= 0 && dtp_socket_send(s, &request, sizeof request) && dtp_socket_send(s, head, sizeof *head) &&
                dtp_socket_send(s, copy->blocks, head->block_count * sizeof *copy->blocks) &&
                dtp_socket_send(s, copy->data, head->data_bytes);
    bool heard = sent && dtp_socket_receive(s, &answer, sizeof answer) && answer.secret == secret;
    if (s >= 0)
        close(s);
    if (!heard)
        return lost(peer, "does not take its neighbour's snapshot", faults);
    return answer.status == DTP_OK ? DTP_OK
                                   : lost(peer, "could not keep its neighbour's snapshot; is its memory full?", faults);
}

enum dtp_status dtp_peer_get(const struct dtp_peer *peer, uint64_t secret, const struct dtp_snapshot_name *name,
                             uint64_t offset, void *out, uint64_t bytes, struct dtp_faults *faults)
{
    char *to = out;
    while (bytes > 0) {
        uint64_t now = bytes < GET_BYTES ? bytes : GET_BYTES;
        const struct request request = {secret, WISH_GET, name->rank, name->copy, name->turn, offset, now, 0, 0};
        int s = reach(peer);
        if (s >= 0)
            dtp_socket_set_timeout(s, WAIT_S);
        bool got = s >= 0 && dtp_socket_send(s, &request, sizeof request) && dtp_socket_receive(s, to, now);
        if (s >= 0)
            close(s);
        if (!got)
            return lost(peer, "does not give the snapshot that it holds", faults);
        to += now;
        offset += now;
        bytes -= now;
    }
    return DTP_OK;
}
