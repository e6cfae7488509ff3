/* The work of a step of our executor in closed form: FLOPs, bytes through HBM and launches, from shapes, without
 * walking a program: what a block moves is the sum over its operators (executor_block.h), all else is counted here by
 * tensor, so that one checks the other. */
#ifndef DTP_EXECUTOR_WORK_H
#define DTP_EXECUTOR_WORK_H

#include "closed/closed_form_hooks.h"
#include "closed/step_work.h"
#include "plan/checkpointing.h"
#include "runtime/dtplan/executor_block.h"
#include "runtime/dtplan/lower_executor.h"

void dtp_executor_work(const struct dtp_transformer *transformer, const struct dtp_cluster *cluster,
                       const struct dtp_plan *plan, struct dtp_step_work *out);
/* Operators of a block, as bits, that a checkpointed one runs once more: those that make what backward reads of what is
 * kept. */
uint32_t dtp_executor_operators_again(const struct dtp_executor_block *block, enum dtp_checkpoint_keeps keeps);
/* Takes off what all layers of a kind are counted with and some leave out (executor_straight_work.c). */
void dtp_executor_leave_out_turns(const struct dtp_transformer *transformer, const struct dtp_plan *plan,
                                  struct dtp_step_work *out);
/* What tensor parallel ranks send, of one's slice. */
void dtp_executor_tensor_traffic(const struct dtp_slice *slice, struct dtp_tensor_traffic *out);
/* executor_tensor_overlap.c: what of it runs beside products of blocks of each kind, of so many layers. */
struct dtp_executor_kinds {
    const struct dtp_executor_block *block[DTP_LAYER_MLPS];
    uint64_t layers[DTP_LAYER_MLPS];
    int count;
};
void dtp_executor_tensor_overlap(const struct dtp_executor_kinds *kinds, const struct dtp_plan *plan,
                                 struct dtp_tensor_traffic *out);

/* Of a micro-step, where ranks divide experts: how often each hears where the others' rows begin, bytes that a rank
 * sends of that and that come to the host; exchanges of rows, bytes that a rank sends in all of them on average. */
struct dtp_row_traffic {
    uint64_t heard, starts_bytes, heard_bytes;
    uint64_t exchanges, exchanged_bytes;
};
void dtp_executor_row_traffic(const struct dtp_transformer *transformer, const struct dtp_cluster *cluster,
                              const struct dtp_plan *plan, struct dtp_row_traffic *out);

#endif
