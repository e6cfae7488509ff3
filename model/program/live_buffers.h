/* The buffers that live at the fullest instant of a step, and how many there are of each kind. */
#ifndef DTP_LIVE_BUFFERS_H
#define DTP_LIVE_BUFFERS_H

#include "program/program.h"

/* Buffers of one name and owner. */
struct dtp_live_kind {
    const char *name; /* the program's */
    enum dtp_owner owner;
    bool persistent, in_layers;       /* all of them: alive before and after the step; of a layer, not of the root */
    uint64_t count, bytes;            /* of all together */
    uint64_t least_bytes, most_bytes; /* of one */
};

struct dtp_live_buffers {
    struct dtp_live_kind *kind; /* by owner, those of an owner in the order they were made; to be freed */
    size_t count;
    uint64_t total_bytes;
};

/* Of a sealed program, on the device; of several instants that are as full the first. The caller frees out->kind, and
 * not after a failure. */
enum dtp_status dtp_live_buffers_of(const struct dtp_program *program, struct dtp_live_buffers *out,
                                    struct dtp_faults *faults);

#endif
