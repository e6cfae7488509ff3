/* Axes: the values that keys of the scenario table take in a sweep or a search, and their cross product.
 *
 * A value text is a comma list of items. An item is one value of the key; or, for keys that are numbers, a range:
 *   A..B      A, A+1, ... up to B          A..B+S    A, A+S, ...          A..BxF    A, A*F, A*F*F, ...
 * with ends written as the key's own values are (8k is 8192 for seq); or `all`, for keys with a list of choices (those
 * that are words: every-N has no end) and for gpu, machine and model (the catalogue). The last axis varies fastest. */
#ifndef DTP_AXES_H
#define DTP_AXES_H

#include "base/host_arena.h"
#include "job/scenario.h"

#include <stdint.h>

#define DTP_AXES_MAX_VALUES 100000u
#define DTP_AXES_MAX_COMBINATIONS 20000000u

struct dtp_axis {
    const char *key;   /* "micro_batch" */
    const char *where; /* "command line"; for messages */
    size_t count;
    const char **values; /* as the scenario reads them: "8", "full_shard" */
};

/* Zero-initialise to start, release at the end. */
struct dtp_axes {
    struct dtp_host_arena memory;
    size_t count;
    struct dtp_axis axes[224]; /* one a key */
    const struct dtp_catalog *catalog;
};

/* Adds an axis, or replaces that of the same key. Every value is checked as dtp_scenario_set would, and names against
 * the catalogue. Ranges are counted before anything is taken: DTP_BAD_INPUT for more than DTP_AXES_MAX_VALUES values,
 * a value twice, a range that goes down or is of a key without numbers. `catalog` is borrowed. */
enum dtp_status dtp_axes_add(struct dtp_axes *axes, const struct dtp_catalog *catalog, const char *key,
                             const char *text, const char *where, struct dtp_faults *faults);
void dtp_axes_release(struct dtp_axes *axes);

/* Number of combinations; DTP_BAD_INPUT beyond DTP_AXES_MAX_COMBINATIONS, with the counts of the axes. */
enum dtp_status dtp_axes_count(const struct dtp_axes *axes, uint64_t *out, struct dtp_faults *faults);
/* Index of the value that `axis` has in a combination. */
size_t dtp_axes_value(const struct dtp_axes *axes, size_t axis, uint64_t combination);
/* Sets the keys of a combination over what the scenario holds. `changed_only`: those that differ from the combination
 * before it. */
enum dtp_status dtp_axes_apply(const struct dtp_axes *axes, uint64_t combination, bool changed_only,
                               struct dtp_scenario *scenario, struct dtp_faults *faults);

#endif
