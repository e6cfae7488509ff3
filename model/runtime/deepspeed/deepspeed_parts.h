/* DeepSpeed's parameters one by one, as the closed form counts them: matrices, and all vectors of a module as one. */
#ifndef DTP_DEEPSPEED_PARTS_H
#define DTP_DEEPSPEED_PARTS_H

#include "plan/plan.h"
#include "net/transformer.h"
#include "runtime/deepspeed/zero3_fetch.h"

/* Elements: of all tensors, of the largest, of one rank's shares of them; of a matrix also its sides. */
struct dtp_deepspeed_part {
    uint64_t elements, largest, shard, tensors, rows, columns;
};

/* Block: matrices in the order forward uses them (`inputs` that read the first norm, output, the rest up to down), then
 * vectors, then adapters. Root: enum dtp_zero3_root; a tied head has no elements. */
struct dtp_deepspeed_parts {
    int matrices, inputs;
    int adapter[DTP_ZERO3_PARTS]; /* the part with a matrix' A and B; 0: it has none */
    struct dtp_deepspeed_part block[DTP_ZERO3_PARTS], root[DTP_ZERO3_ROOT_PARTS];
};
void dtp_deepspeed_list_parts(const struct dtp_transformer *transformer, const struct dtp_plan *plan, uint64_t ranks,
                              struct dtp_deepspeed_parts *out);

/* Parts of a block in the order in which their gradients are made: down; gate, up; output; q, k, v; vectors. Returns
 * their number. */
int dtp_deepspeed_backward_order(const struct dtp_deepspeed_parts *parts, int order[DTP_ZERO3_PARTS]);

#endif
