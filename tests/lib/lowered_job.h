/* Jobs of tests resolved, lowered and verified, with the fault's words where that fails, and programs beside what
 * formulas and miniatures say of them. After cmocka.h. */
#ifndef DTP_LOWERED_JOB_H
#define DTP_LOWERED_JOB_H

#include "closed/closed_form.h"
#include "lib/live_bytes.h"
#include "lower/lower.h"
#include "lower/miniature.h"
#include "program/verify.h"
#include "runtime/runtimes.h"

#include <math.h>

static inline void resolve_plan(struct dtp_plan *plan, const struct dtp_transformer *t,
                                const struct dtp_cluster *cluster)
{
    struct dtp_faults faults = {0};
    if (dtp_plan_resolve(plan, t, cluster, &faults) != DTP_OK)
        fail_msg("%s", faults.text[0]);
}

/* Of a resolved plan; the caller destroys it. */
static inline struct dtp_program *lowered_job(const struct dtp_transformer *t, const struct dtp_cluster *cluster,
                                              const struct dtp_plan *plan)
{
    struct dtp_faults faults = {0};
    struct dtp_program *program;
    if (dtp_lower(t, cluster, plan, 0, &program, &faults) != DTP_OK || dtp_program_verify(program, &faults) != DTP_OK)
        fail_msg("%s", faults.text[0]);
    return program;
}

/* Of a plan that is resolved first. */
static inline struct dtp_program *lowered_plan(const struct dtp_transformer *t, const struct dtp_cluster *cluster,
                                               struct dtp_plan *plan)
{
    resolve_plan(plan, t, cluster);
    return lowered_job(t, cluster, plan);
}

/* Operations of that kind, and bytes that they move. */
static inline size_t count_of(const struct dtp_program *program, enum dtp_op_kind kind)
{
    size_t count = 0;
    for (size_t i = 0; i < dtp_program_op_count(program); i++)
        count += dtp_program_ops(program)[i].kind == kind;
    return count;
}
static inline double moved_by(const struct dtp_program *program, enum dtp_op_kind kind)
{
    double bytes = 0;
    for (size_t i = 0; i < dtp_program_op_count(program); i++)
        bytes += dtp_program_ops(program)[i].kind == kind ? dtp_program_ops(program)[i].demand->bytes : 0;
    return bytes;
}

/* What it sends and multiplies is what formulas count, and the peak of its live bytes a miniature's, whose layers are
 * returned; 0: there is none. */
static inline uint64_t assert_told(const struct dtp_program *program, const struct dtp_transformer *t,
                                   const struct dtp_cluster *cluster, const struct dtp_plan *plan)
{
    struct dtp_program_totals totals;
    struct dtp_communication closed;
    struct dtp_live_bytes whole;
    struct dtp_miniature miniature;
    dtp_program_sum(program, &totals);
    dtp_closed_form_communication(t, cluster, plan, &closed);
    for (int i = 0; i < DTP_COLLECTIVE_COUNT; i++)
        assert_true(totals.sent_bytes[i] == closed.bytes[i] && totals.count[i] == closed.count[i]);
    double flops = dtp_closed_form_hardware_flops(t, cluster, plan);
    assert_true(fabs((totals.matmul_flops + totals.attention_flops) / flops - 1) < 1e-12);
    live_bytes_of(program, t->layers, &whole);
    assert_int_equal(dtp_miniature_of(t, cluster, plan, 0, &miniature, NULL), DTP_OK);
    double peak = (double)whole.phase_total_bytes[whole.peak_phase];
    assert_true(fabs((double)miniature.live.phase_total_bytes[miniature.live.peak_phase] / peak - 1) < 1e-3);
    return miniature.layers;
}

#endif
