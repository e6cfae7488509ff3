#include "sim/share.h"

#include <assert.h>
#include <stdbool.h>

/* Progressive filling: a water level rises; an operation runs at level * weight / (its largest contended use), at most
 * at full speed, until a resource it uses is full. Each round stops at least one operation, so there are at most
 * `count`. */
struct filling {
    const struct dtp_usage *const *usage;
    size_t count;
    double *speed;
    int contended[DTP_RESOURCE_COUNT], contended_count; /* what cannot give everyone full speed */
    bool moving[DTP_SHARE_MAX];
    double dominant[DTP_SHARE_MAX]; /* largest use of a contended resource / weight: the level of full speed */
};

static double least(double a, double b)
{
    return a < b ? a : b;
}

static double most(double a, double b)
{
    return a > b ? a : b;
}

static void find_contended(struct filling *f)
{
    double wanted[DTP_RESOURCE_COUNT] = {0};
    for (size_t i = 0; i < f->count; i++)
        for (int r = 0; r < DTP_RESOURCE_COUNT; r++)
            wanted[r] += f->usage[i]->of[r];
    for (int r = 0; r < DTP_RESOURCE_COUNT; r++)
        if (wanted[r] > 1)
            f->contended[f->contended_count++] = r;
}

static size_t start_moving(struct filling *f)
{
    size_t moving = 0;
    for (size_t i = 0; i < f->count; i++) {
        f->dominant[i] = 0;
        for (int c = 0; c < f->contended_count; c++)
            f->dominant[i] = most(f->dominant[i], f->usage[i]->of[f->contended[c]]);
        f->dominant[i] /= f->usage[i]->weight > 0 ? f->usage[i]->weight : 1;
        f->moving[i] = f->dominant[i] > 0;
        moving += f->moving[i];
    }
    return moving;
}

/* Level at which a resource is full: what stopped operations hold, plus level * sum(use/dominant) of moving ones. A
 * level that nothing reaches where no moving one uses it. */
static double full_level(const struct filling *f, int resource)
{
    double held = 0, slope = 0;
    for (size_t i = 0; i < f->count; i++)
        if (f->moving[i])
            slope += f->usage[i]->of[resource] / f->dominant[i];
        else
            held += f->usage[i]->of[resource] * f->speed[i];
    return slope > 0 ? most(0, 1 - held) / slope : 1e300;
}

/* Raises the level to where something stops; returns how many operations did. */
static size_t raise(struct filling *f)
{
    double level = 1e300, full[DTP_RESOURCE_COUNT];
    for (size_t i = 0; i < f->count; i++)
        if (f->moving[i])
            level = least(level, f->dominant[i]);
    for (int c = 0; c < f->contended_count; c++) {
        full[c] = full_level(f, f->contended[c]);
        level = least(level, full[c]);
    }
    size_t stopped = 0;
    for (size_t i = 0; i < f->count; i++) {
        if (!f->moving[i])
            continue;
        bool stops = f->dominant[i] <= level;
        for (int c = 0; c < f->contended_count; c++)
            stops = stops || (full[c] <= level && f->usage[i]->of[f->contended[c]] > 0);
        if (stops) {
            f->speed[i] = least(1, level / f->dominant[i]);
            f->moving[i] = false;
            stopped++;
        }
    }
    return stopped;
}

void dtp_share(const struct dtp_usage *const *usage, size_t count, double *speed)
{
    assert(count <= DTP_SHARE_MAX);
    struct filling f;
    f.usage = usage;
    f.count = count;
    f.speed = speed;
    f.contended_count = 0;
    for (size_t i = 0; i < count; i++)
        speed[i] = 1;
    find_contended(&f);
    if (!f.contended_count)
        return;
    for (size_t moving = start_moving(&f); moving;) {
        size_t stopped = raise(&f);
        assert(stopped);
        moving -= stopped;
    }
}
