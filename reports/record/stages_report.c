/* What the ranks of a pipeline took and sent, held against their programs. */
#include "record/run_report.h"

static bool said(const struct dtp_stages_report *r)
{
    return r->measured->ranks && r->measured->rank_count == dtp_program_set_ranks(&r->simulated->set);
}

static const struct dtp_simulated_role *role_of(const struct dtp_stages_report *r, uint32_t rank)
{
    return &r->simulated->roles[dtp_program_set_role_of(&r->simulated->set, rank)];
}

uint32_t dtp_stages_arenas_off(const struct dtp_stages_report *r)
{
    uint32_t off = 0;
    if (!said(r))
        return UINT32_MAX;
    for (uint32_t i = 0; i < r->measured->rank_count; i++)
        off += r->measured->ranks[i].device_arena_bytes != role_of(r, i)->memory.allocated_peak_bytes;
    return off;
}

uint32_t dtp_stages_sent_off(const struct dtp_stages_report *r, enum dtp_collective collective)
{
    uint32_t off = 0;
    if (!said(r))
        return UINT32_MAX;
    if (dtp_run_expects(r->simulated->job.plan.ep, collective))
        return 0;
    for (uint32_t i = 0; i < r->measured->rank_count; i++) {
        const struct dtp_rank_outcome *rank = &r->measured->ranks[i];
        off += rank->sent_bytes[collective] != rank->steps * role_of(r, i)->totals.sent_bytes[collective];
    }
    return off;
}
