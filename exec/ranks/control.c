#include "ranks/control_parts.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define DEFAULT_JOIN_TIMEOUT_S 20.0 /* with what follows, less than the 30 s in which all must have ended */

/* ---- coming and going -------------------------------------------------------------------------------------------- */

static void release(struct dtp_control *c)
{
    for (uint32_t i = 0; i < c->peer_count; i++)
        for (int line = 0; line < LINE_COUNT; line++)
            if (c->peer[i].socket[line] >= 0)
                close(c->peer[i].socket[line]);
    if (c->wake >= 0)
        close(c->wake);
    pthread_mutex_destroy(&c->give_up);
    free(c->peer);
    free(c);
}

static struct dtp_control *create(const struct dtp_ranks *ranks, const struct dtp_control_options *options)
{
    struct dtp_control *c = calloc(1, sizeof *c);
    if (!c)
        return NULL;
    c->ranks = *ranks;
    c->options = *options;
    if (!(c->options.join_timeout_s > 0))
        c->options.join_timeout_s = DEFAULT_JOIN_TIMEOUT_S;
    if (!(c->options.silence_s > 0))
        c->options.silence_s = DTP_SILENCE_S;
    c->peer_count = ranks->world == 1 ? 0 : ranks->rank == 0 ? ranks->world : 1;
    c->peer = calloc(c->peer_count + 1, sizeof *c->peer);
    if (!c->peer) {
        free(c);
        return NULL;
    }
    for (uint32_t i = 0; i < c->peer_count; i++)
        c->peer[i].socket[LINE_TURNS] = c->peer[i].socket[LINE_HEART] = -1;
    c->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    pthread_mutex_init(&c->give_up, NULL);
    return c;
}

enum dtp_status dtp_control_join(const struct dtp_ranks *ranks, const struct dtp_control_options *options,
                                 struct dtp_control **out, struct dtp_faults *faults)
{
    *out = NULL;
    struct dtp_control *c = create(ranks, options);
    if (!c)
        return dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "no memory for %u ranks", ranks->world);
    enum dtp_status status = DTP_OK;
    if (ranks->world > 1)
        status = dtp_control_meet(c, faults);
    for (uint32_t i = 0; i < c->peer_count; i++)
        c->peer[i].heard_s = dtp_now_s();
    if (status == DTP_OK && c->wake < 0)
        status = dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "no eventfd: %s", strerror(errno));
    if (status == DTP_OK && ranks->world > 1 && pthread_create(&c->thread, NULL, dtp_control_heart, c) != 0)
        status = dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "no thread for heartbeats");
    if (status != DTP_OK) {
        release(c);
        return status;
    }
    c->beating = ranks->world > 1;
    *out = c;
    return DTP_OK;
}

void dtp_control_leave(struct dtp_control *c)
{
    if (!c)
        return;
    if (c->beating) {
        atomic_store(&c->leaving, true);
        eventfd_write(c->wake, 1);
        pthread_join(c->thread, NULL);
        if (!atomic_load(&c->failed))
            dtp_control_say_goodbye(c);
    }
    release(c);
}

void dtp_control_address(const struct dtp_control *c, char *out, size_t bytes)
{
    struct sockaddr_in own = {.sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof own;
    for (uint32_t i = 0; i < c->peer_count; i++) /* of rank 0, as the last of the others came to it */
        if (c->peer[i].socket[LINE_TURNS] >= 0)
            getsockname(c->peer[i].socket[LINE_TURNS], (struct sockaddr *)&own, &length);
    inet_ntop(AF_INET, &own.sin_addr, out, (socklen_t)bytes);
}

void dtp_control_at(struct dtp_control *c, struct dtp_control_place place)
{
    atomic_store_explicit(&c->step, place.step, memory_order_relaxed);
    atomic_store_explicit(&c->op, place.op, memory_order_relaxed);
}

void dtp_control_deadline(struct dtp_control *c, double seconds)
{
    atomic_store(&c->deadline_s, seconds > 0 ? dtp_now_s() + seconds : 0);
}

void dtp_control_give_up(struct dtp_control *c, enum dtp_status status, const char *words)
{
    const struct timespec pause = {.tv_nsec = 20000000};
    if (!c->beating)
        return;
    pthread_mutex_lock(&c->give_up);
    snprintf(c->words, sizeof c->words, "gave up, %s;", words);
    c->status = status;
    pthread_mutex_unlock(&c->give_up);
    while (!atomic_load(&c->failed)) /* the thread tells it within a beat */
        nanosleep(&pause, NULL);
}

/* ---- said in turn ------------------------------------------------------------------------------------------------ */

/* The heart sees the same end of a rank, and knows more: who failed and where. It is given the time to say so, for who
 * leaves first ends it. */
#define HEART_TELLS_S 2.0
static enum dtp_status lost(struct dtp_control *c, uint32_t peer, struct dtp_faults *faults)
{
    const struct timespec pause = {.tv_nsec = 20000000};
    double until_s = dtp_now_s() + HEART_TELLS_S;
    while (c->beating && !atomic_load(&c->failed) && dtp_now_s() < until_s)
        nanosleep(&pause, NULL);
    return dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "rank %u: rank %u does not answer", c->ranks.rank, peer);
}

enum dtp_status dtp_control_broadcast(struct dtp_control *c, void *data, uint32_t bytes, struct dtp_faults *faults)
{
    if (c->ranks.world > 1 && c->ranks.rank != 0)
        return dtp_socket_receive(c->peer[0].socket[LINE_TURNS], data, bytes) ? DTP_OK : lost(c, 0, faults);
    for (uint32_t i = 1; i < c->peer_count; i++)
        if (!dtp_socket_send(c->peer[i].socket[LINE_TURNS], data, bytes))
            return lost(c, i, faults);
    return DTP_OK;
}

enum dtp_status dtp_control_gather(struct dtp_control *c, const void *data, uint32_t bytes, void *all,
                                   struct dtp_faults *faults)
{
    if (c->ranks.world > 1 && c->ranks.rank != 0)
        return dtp_socket_send(c->peer[0].socket[LINE_TURNS], data, bytes) ? DTP_OK : lost(c, 0, faults);
    memcpy(all, data, bytes);
    for (uint32_t i = 1; i < c->peer_count; i++)
        if (!dtp_socket_receive(c->peer[i].socket[LINE_TURNS], (char *)all + (size_t)i * bytes, bytes))
            return lost(c, i, faults);
    return DTP_OK;
}

enum dtp_status dtp_control_exchange(struct dtp_control *c, const void *data, uint32_t bytes, void *all,
                                     struct dtp_faults *faults)
{
    enum dtp_status status = dtp_control_gather(c, data, bytes, all, faults);
    return status == DTP_OK ? dtp_control_broadcast(c, all, bytes * c->ranks.world, faults) : status;
}

enum dtp_status dtp_control_barrier(struct dtp_control *c, struct dtp_faults *faults)
{
    uint8_t here_now = 1, *all = c->ranks.rank == 0 ? malloc(c->ranks.world) : NULL;
    if (c->ranks.rank == 0 && !all)
        return dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "no memory for %u ranks", c->ranks.world);
    enum dtp_status status = dtp_control_gather(c, &here_now, 1, all, faults);
    free(all);
    return status == DTP_OK ? dtp_control_broadcast(c, &here_now, 1, faults) : status;
}
