#include "ranks/lane.h"

#include <assert.h>
#include <pthread.h>
#include <stdalign.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

struct call {
    int (*call)(void *argument);
    alignas(max_align_t) unsigned char argument[DTP_LANE_ARGUMENT_BYTES];
};

struct dtp_lane {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct call *calls;        /* a ring */
    size_t room, first, count; /* the first one may be running */
    bool ends;
    int code;
};

static void run_first(struct dtp_lane *lane)
{
    struct call call = lane->calls[lane->first];
    pthread_mutex_unlock(&lane->lock);
    int code = call.call(call.argument);
    pthread_mutex_lock(&lane->lock);
    lane->code = lane->code ? lane->code : code;
    lane->first = (lane->first + 1) % lane->room;
    lane->count--;
    pthread_cond_broadcast(&lane->changed);
}

static void *run(void *argument)
{
    struct dtp_lane *lane = argument;
    pthread_mutex_lock(&lane->lock);
    while (lane->count || !lane->ends)
        if (lane->count)
            run_first(lane);
        else
            pthread_cond_wait(&lane->changed, &lane->lock);
    pthread_mutex_unlock(&lane->lock);
    return NULL;
}

enum dtp_status dtp_lane_create(struct dtp_lane **out, struct dtp_faults *faults)
{
    struct dtp_lane *lane = calloc(1, sizeof *lane);
    *out = NULL;
    if (!lane)
        return dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "out of memory");
    pthread_mutex_init(&lane->lock, NULL);
    pthread_cond_init(&lane->changed, NULL);
    if (pthread_create(&lane->thread, NULL, run, lane) != 0) {
        pthread_cond_destroy(&lane->changed);
        pthread_mutex_destroy(&lane->lock);
        free(lane);
        return dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "no thread can be started for the transfers of a rank");
    }
    *out = lane;
    return DTP_OK;
}

void dtp_lane_destroy(struct dtp_lane *lane)
{
    if (!lane)
        return;
    pthread_mutex_lock(&lane->lock);
    lane->ends = true;
    pthread_cond_broadcast(&lane->changed);
    pthread_mutex_unlock(&lane->lock);
    pthread_join(lane->thread, NULL);
    pthread_cond_destroy(&lane->changed);
    pthread_mutex_destroy(&lane->lock);
    free(lane->calls);
    free(lane);
}

/* Twice the room, the ring laid straight. */
static bool grow(struct dtp_lane *lane)
{
    size_t room = lane->room ? 2 * lane->room : 64;
    struct call *calls = malloc(room * sizeof *calls);
    if (!calls)
        return false;
    for (size_t i = 0; i < lane->count; i++)
        calls[i] = lane->calls[(lane->first + i) % lane->room];
    free(lane->calls);
    lane->calls = calls;
    lane->room = room;
    lane->first = 0;
    return true;
}

int dtp_lane_call(struct dtp_lane *lane, int (*call)(void *argument), const void *argument, size_t bytes)
{
    int code = 0;
    assert(bytes <= DTP_LANE_ARGUMENT_BYTES);
    pthread_mutex_lock(&lane->lock);
    if (lane->count == lane->room && !grow(lane))
        code = DTP_LANE_NO_MEMORY;
    if (!code) {
        struct call *next = &lane->calls[(lane->first + lane->count++) % lane->room];
        next->call = call;
        memcpy(next->argument, argument, bytes);
        pthread_cond_broadcast(&lane->changed);
    }
    pthread_mutex_unlock(&lane->lock);
    return code;
}

int dtp_lane_drain(struct dtp_lane *lane)
{
    pthread_mutex_lock(&lane->lock);
    while (lane->count)
        pthread_cond_wait(&lane->changed, &lane->lock);
    int code = lane->code;
    pthread_mutex_unlock(&lane->lock);
    return code;
}

int dtp_lane_code(struct dtp_lane *lane)
{
    pthread_mutex_lock(&lane->lock);
    int code = lane->code;
    pthread_mutex_unlock(&lane->lock);
    return code;
}
