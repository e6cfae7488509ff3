/* Program sets of small pipelines, proved, and what stands in their programs. */
#ifndef TEST_PROVEN_SET_H
#define TEST_PROVEN_SET_H

#include "lower/lower_set.h"
#include "schedule/schedule.h"

#include <string.h>

static inline struct dtp_transformer small_model(uint64_t layers)
{
    struct dtp_transformer t = dtp_transformer_default();
    t.layers = layers, t.hidden = 256, t.ffn = 704, t.vocab = 1024;
    t.heads = t.kv_heads = 4, t.head_dim = 64;
    return t;
}

/* Resolves the plan; the caller releases the set. */
static inline struct dtp_program_set proven_set(const struct dtp_transformer *t, const struct dtp_cluster *cluster,
                                                struct dtp_plan *plan)
{
    static struct dtp_faults faults;
    struct dtp_program_set set;
    memset(&faults, 0, sizeof faults);
    if (dtp_plan_resolve(plan, t, cluster, &faults) != DTP_OK ||
        dtp_lower_set(t, cluster, plan, 0, &set, &faults) != DTP_OK ||
        dtp_program_set_verify(&set, DTP_ISSUE_STREAMS, &faults) != DTP_OK)
        fail_msg("%s, tp %u, pp %u, %u micro-batches, %u chunks: %s", dtp_schedule_row(plan->schedule)->word, plan->tp,
                 plan->pp, plan->accumulate, plan->virtual_stages, faults.text[0]);
    return set;
}

/* Operations of a kind and name; NULL: of any name. */
static inline uint32_t count_ops(const struct dtp_program *program, enum dtp_op_kind kind, const char *name)
{
    uint32_t found = 0;
    for (size_t i = 0; i < dtp_program_op_count(program); i++) {
        const struct dtp_op *op = &dtp_program_ops(program)[i];
        found += op->kind == kind && (!name || strcmp(op->name, name) == 0);
    }
    return found;
}

/* Whatever is made in a step and does not stand for it is let go within it. */
static inline void expect_nothing_left(const struct dtp_program *program)
{
    for (size_t b = 0; b < dtp_program_buffer_count(program); b++) {
        int made = 0, gone = 0;
        for (size_t i = 0; i < dtp_program_op_count(program); i++) {
            const struct dtp_op *op = &dtp_program_ops(program)[i];
            const struct dtp_operand *operand = dtp_program_operands(program, op);
            for (uint32_t k = 0; k < op->operand_count; k++)
                if (operand[k].buffer.index == b) {
                    made += (operand[k].access & DTP_ALLOC) != 0;
                    gone += (operand[k].access & DTP_FREE) != 0;
                }
        }
        if (made != gone || made > 1)
            fail_msg("%s is made %d times, let go %d", dtp_program_buffers(program)[b].name, made, gone);
    }
}

#endif
