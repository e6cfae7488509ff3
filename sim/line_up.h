/* Which operation of a larger step program is which of a smaller one, where the larger has more layers or micro-steps
 * of the same net.
 *
 * Operations are found by their place: the micro-step, the layer, and the how-manieth of those. The first half of the
 * smaller program's layers are the first of the larger one's, the others its last, and so with micro-steps; what the
 * larger one has more stands between. That operations at the same place do the same is compared. Of what belongs to no
 * layer the larger program may have more too, but no collectives: an optimizer's lists of tensors grow with the net,
 * buckets of gradients end elsewhere in it. */
#ifndef DTP_LINE_UP_H
#define DTP_LINE_UP_H

#include "base/host_arena.h"
#include "program/program.h"

struct dtp_line_up_side {
    const struct dtp_program *program;
    uint64_t layers;
};

/* (*out)[operation of `small`] is the operation of `large`; from `arena`. DTP_NO: they do not line up; DTP_ENVIRONMENT:
 * no memory, without a fault. In time linear in operations. */
enum dtp_status dtp_line_up(const struct dtp_line_up_side *small, const struct dtp_line_up_side *large,
                            struct dtp_host_arena *arena, uint32_t **out);

#endif
