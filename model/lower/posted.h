/* When the ranks of a pipeline post their receives, where one stream takes all that a rank sends and receives. */
#ifndef DTP_POSTED_H
#define DTP_POSTED_H

#include "base/host_arena.h"
#include "schedule/schedule.h"

/* Both as passes of the rank: what is received is that one's, and it is posted when so many are behind. */
struct dtp_posted_receive {
    uint32_t pass, behind;
};

struct dtp_posted {
    struct dtp_posted_receive
        *receive;    /* of rank r from schedule->first[r] on, in the order in which they are posted */
    uint32_t *count; /* of each rank */
};

/* What *out has is taken from the arena. DTP_ENVIRONMENT: no memory. */
enum dtp_status dtp_posted_make(const struct dtp_schedule *schedule, struct dtp_host_arena *arena,
                                struct dtp_posted *out, struct dtp_faults *faults);

/* How far a rank has received. */
struct dtp_received {
    uint32_t posted; /* of the pipeline's list */
    struct dtp_received_way {
        uint32_t pass;  /* the next that may take something, of all passes of the rank */
        uint32_t place; /* of that one among those of its way */
        uint32_t begun; /* passes of this way that were received for in their turn */
    } way[2];           /* without such a list: of forwards and of backwards */
};

#endif
