/* Which of the asked numbers of GPUs a search tries. */
#include "sim/search.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static struct dtp_axis *axis_of(struct dtp_axes *axes, const char *key)
{
    for (size_t i = 0; i < axes->count; i++)
        if (strcmp(axes->axes[i].key, key) == 0)
            return &axes->axes[i];
    return NULL;
}

/* Whether every GPU that is searched comes in such a number: part of a node, or whole nodes. */
static bool is_rented(const struct dtp_axis *gpu, const char *gpus, const struct dtp_catalog *catalog,
                      struct dtp_scenario *scratch, struct dtp_faults *faults)
{
    struct dtp_cluster cluster;
    size_t kinds = gpu ? gpu->count : 1;
    bool all = dtp_scenario_set(scratch, "gpus", gpus, "search", 0, faults) == DTP_OK;
    for (size_t i = 0; i < kinds && all; i++) {
        all = !gpu || dtp_scenario_set(scratch, "gpu", gpu->values[i], "search", 0, faults) == DTP_OK;
        all = all && dtp_scenario_cluster(scratch, catalog, &cluster);
    }
    return all;
}

static enum dtp_status keep_rented(const struct dtp_search_question *question, const struct dtp_axis *gpu,
                                   struct dtp_axis *gpus, struct dtp_faults *faults)
{
    struct dtp_scenario *scratch = NULL;
    size_t kept = 0;
    enum dtp_status status = dtp_scenario_copy(question->base, &scratch, faults);
    /* What stands before the counts, as --machine and --gpus-per-node do: its first value stands for all. */
    for (size_t i = 0; i < question->axes->count && status == DTP_OK; i++) {
        const struct dtp_axis *axis = &question->axes->axes[i];
        status = dtp_scenario_set(scratch, axis->key, axis->values[0], axis->where, 0, faults);
    }
    for (size_t i = 0; i < gpus->count && status == DTP_OK; i++)
        if (is_rented(gpu, gpus->values[i], question->catalog, scratch, faults))
            gpus->values[kept++] = gpus->values[i];
    dtp_scenario_destroy(scratch);
    if (kept > 0)
        gpus->count = kept; /* else they have no number in common, or the scan says why none is possible */
    return status;
}

/* Of sorted counts `room`, the ends among them, as even in their ratios as they come. */
static void keep_spread(struct dtp_axis *gpus, size_t room)
{
    size_t kept = 0, next = 0;
    double first = strtod(gpus->values[0], NULL), last = strtod(gpus->values[gpus->count - 1], NULL);
    for (size_t i = 0; i < room && next < gpus->count; i++) {
        double wanted = room > 1 ? first * pow(last / first, (double)i / (double)(room - 1)) : last;
        size_t nearest = next;
        for (size_t k = next; k < gpus->count; k++)
            if (fabs(log(strtod(gpus->values[k], NULL) / wanted)) <
                fabs(log(strtod(gpus->values[nearest], NULL) / wanted)))
                nearest = k;
        gpus->values[kept++] = gpus->values[nearest];
        next = nearest + 1;
    }
    gpus->count = kept;
}

static int by_number(const void *left, const void *right)
{
    double a = strtod(*(const char *const *)left, NULL), b = strtod(*(const char *const *)right, NULL);
    return (a > b) - (a < b);
}

enum dtp_status dtp_search_thin(const struct dtp_search_question *question, struct dtp_axes *axes,
                                struct dtp_search_thinned *out, struct dtp_faults *faults)
{
    struct dtp_axis *gpus = axis_of(axes, "gpus");
    double others = 1;
    *out = (struct dtp_search_thinned){0};
    for (size_t i = 0; i < axes->count; i++)
        others *= &axes->axes[i] == gpus ? 1 : (double)axes->axes[i].count;
    if (!gpus || others * (double)gpus->count <= DTP_AXES_MAX_COMBINATIONS)
        return DTP_OK;
    out->asked = gpus->count;
    qsort(gpus->values, gpus->count, sizeof *gpus->values, by_number);
    enum dtp_status status = keep_rented(question, axis_of(axes, "gpu"), gpus, faults);
    out->rented = gpus->count;
    size_t room = (size_t)(DTP_AXES_MAX_COMBINATIONS / others);
    if (status == DTP_OK && room > 0 && gpus->count > room) /* without room the other keys are too many, and said so */
        keep_spread(gpus, room);
    out->tried = gpus->count;
    return status;
}
