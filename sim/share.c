#include "share.h"

#include <assert.h>
#include <math.h>
#include <stdbool.h>

/* Progressive filling: a water level rises; an operation runs at level * weight / (its largest contended use), at most at
 * full speed, until a resource it uses is full. Each round stops at least one operation, so there are at most `count`. */
struct filling {
    const struct dtp_usage *const *usage;
    size_t count;
    double *speed;
    bool moving[DTP_SHARE_MAX];
    double dominant[DTP_SHARE_MAX]; /* largest use of a contended resource / weight: the level of full speed */
};

/* Marks what cannot give everyone full speed; false where nothing is contended. */
static bool find_contended(const struct filling *f, bool *contended)
{
    bool any = false;
    for (int r = 0; r < DTP_RESOURCE_COUNT; r++) {
        double wanted = 0;
        for (size_t i = 0; i < f->count; i++)
            wanted += f->usage[i]->of[r];
        contended[r] = wanted > 1;
        any = any || contended[r];
    }
    return any;
}

static size_t start_moving(struct filling *f, const bool *contended)
{
    size_t moving = 0;
    for (size_t i = 0; i < f->count; i++) {
        f->dominant[i] = 0;
        for (int r = 0; r < DTP_RESOURCE_COUNT; r++)
            if (contended[r])
                f->dominant[i] = fmax(f->dominant[i], f->usage[i]->of[r]);
        f->dominant[i] /= f->usage[i]->weight > 0 ? f->usage[i]->weight : 1;
        f->moving[i] = f->dominant[i] > 0;
        moving += f->moving[i];
    }
    return moving;
}

/* Level at which a resource is full: what stopped operations hold, plus level * sum(use/dominant) of moving ones. */
static double full_level(const struct filling *f, int resource)
{
    double held = 0, slope = 0;
    for (size_t i = 0; i < f->count; i++)
        if (f->moving[i])
            slope += f->usage[i]->of[resource] / f->dominant[i];
        else
            held += f->usage[i]->of[resource] * f->speed[i];
    return slope > 0 ? fmax(0, 1 - held) / slope : INFINITY;
}

/* Raises the level to where something stops; returns how many operations did. */
static size_t raise(struct filling *f, const bool *contended)
{
    double level = INFINITY, full[DTP_RESOURCE_COUNT];
    for (size_t i = 0; i < f->count; i++)
        if (f->moving[i])
            level = fmin(level, f->dominant[i]);
    for (int r = 0; r < DTP_RESOURCE_COUNT; r++) {
        full[r] = contended[r] ? full_level(f, r) : INFINITY;
        level = fmin(level, full[r]);
    }
    size_t stopped = 0;
    for (size_t i = 0; i < f->count; i++) {
        if (!f->moving[i])
            continue;
        bool stops = f->dominant[i] <= level;
        for (int r = 0; r < DTP_RESOURCE_COUNT; r++)
            stops = stops || (full[r] <= level && f->usage[i]->of[r] > 0);
        if (stops) {
            f->speed[i] = fmin(1, level / f->dominant[i]);
            f->moving[i] = false;
            stopped++;
        }
    }
    return stopped;
}

void dtp_share(const struct dtp_usage *const *usage, size_t count, double *speed)
{
    assert(count <= DTP_SHARE_MAX);
    struct filling f = {.usage = usage, .count = count, .speed = speed};
    bool contended[DTP_RESOURCE_COUNT];
    for (size_t i = 0; i < count; i++)
        speed[i] = 1;
    if (!find_contended(&f, contended))
        return;
    size_t moving = start_moving(&f, contended);
    while (moving) {
        size_t stopped = raise(&f, contended);
        assert(stopped);
        moving -= stopped;
    }
}
