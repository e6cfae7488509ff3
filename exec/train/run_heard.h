/* What ranks that divide experts have heard of each other's rows: whether all have room, and how many each expert got.
 */
#ifndef DTP_RUN_HEARD_H
#define DTP_RUN_HEARD_H

#include "train/run.h"

struct dtp_heard {
    struct dtp_expert_rows got;
    uint32_t *model_layer; /* of each layer of the rank */
};
#define DTP_HEARD_NO_ROOM (-3) /* of rows that experts get */

/* Counts for all experts of the model, of whose layers a stage has some. Released by the caller also after a fault. */
enum dtp_status dtp_heard_make(const struct dtp_binding *binding, struct dtp_heard *out, struct dtp_faults *faults);
void dtp_heard_release(struct dtp_heard *heard);
/* Operation i, for which the host has waited: adds what it says. 0, or DTP_HEARD_NO_ROOM; then the fault says who has
 * too little. */
int dtp_heard_count(struct dtp_heard *heard, const struct dtp_binding *binding, size_t i);
enum dtp_status dtp_heard_no_room(const struct dtp_heard *heard, const struct dtp_binding *binding, size_t i,
                                  struct dtp_faults *faults);

#endif
