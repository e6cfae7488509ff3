/* Inside of control: what meeting, heartbeats and turns share. */
#ifndef DTP_CONTROL_PARTS_H
#define DTP_CONTROL_PARTS_H

#include "base/clock.h"
#include "ranks/control.h"
#include "ranks/sockets.h"

#include <pthread.h>
#include <stdatomic.h>

#define DTP_CONTROL_TURN_TIMEOUT_S 600 /* of what is said in turn, while heartbeats watch the peers */

enum line { LINE_TURNS, LINE_HEART, LINE_COUNT };

struct peer {
    int socket[LINE_COUNT]; /* -1: none */
    double heard_s;
    bool gone; /* said goodbye */
    bool told; /* its place, once at least */
    struct dtp_control_place place;
};

struct dtp_control {
    struct dtp_ranks ranks;
    struct dtp_control_options options;
    uint32_t peer_count; /* rank 0: world, its own unused; others: 1, rank 0 */
    struct peer *peer;
    pthread_t thread;
    bool beating;
    int wake;        /* eventfd: ends the wait of the heart, so that leaving does not last a beat */
    bool told_stuck; /* the heart's: rank 0 knows that this rank missed its deadline */
    atomic_bool leaving;
    atomic_bool failed; /* the heart's: all who can be told have been */
    _Atomic uint64_t step;
    _Atomic uint32_t op;
    _Atomic double deadline_s; /* on the monotonic clock; 0: none */
    pthread_mutex_t give_up;   /* of `words` and `status` */
    enum dtp_status status;
    char words[sizeof((struct dtp_control_failure *)0)->words];
};

/* control_join.c: connections of both kinds between rank 0 and all others. */
enum dtp_status dtp_control_meet(struct dtp_control *control, struct dtp_faults *faults);
/* control_heart.c: the thread, and its last word. */
void *dtp_control_heart(void *control);
void dtp_control_say_goodbye(struct dtp_control *control);

#endif
