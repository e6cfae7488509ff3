#include "record/beside_report.h"

size_t dtp_beside_time_lines(const struct dtp_compared *b, const struct dtp_observed_time *t,
                             struct dtp_beside_line out[DTP_BESIDE_MOST_LINES])
{
    static const char *const exposed_words[DTP_OBSERVED_KIND_COUNT] = {
        [DTP_OBSERVED_ALL_GATHER] = "all_gather, nothing computes beside",
        [DTP_OBSERVED_REDUCE_SCATTER] = "reduce_scatter, nothing computes beside",
        [DTP_OBSERVED_ALL_REDUCE] = "all_reduce, nothing computes beside",
        [DTP_OBSERVED_SEND_RECV] = "send_recv, nothing computes beside",
        [DTP_OBSERVED_ALL_TO_ALL] = "all_to_all, nothing computes beside"};
    size_t count = 0;
    for (int k = 0; k < DTP_OBSERVED_KIND_COUNT; k++) {
        if (t->kind_s[k] > 0 || b->plan.kind_s[k] > 0)
            out[count++] = (struct dtp_beside_line){dtp_observed_kind_words((enum dtp_observed_kind)k),
                                                    b->plan.kind_s[k], t->kind_s[k]};
        if (exposed_words[k] && (t->exposed_s[k] > 0 || b->plan.exposed_s[k] > 0))
            out[count++] = (struct dtp_beside_line){exposed_words[k], b->plan.exposed_s[k], t->exposed_s[k]};
    }
    out[count++] = (struct dtp_beside_line){"idle", b->plan.idle_s, t->idle_s};
    out[count++] = (struct dtp_beside_line){"= step", b->plan.step_s, t->step_s};
    return count;
}

size_t dtp_beside_memory_lines(const struct dtp_compared *b, const struct dtp_observed_memory *m,
                               struct dtp_beside_line out[DTP_BESIDE_MOST_LINES])
{
    size_t count = 0;
    for (int p = 0; p < DTP_OBSERVED_PART_COUNT; p++)
        if (m->part_bytes[p] > 0 || b->plan.part_bytes[p] > 0)
            out[count++] = (struct dtp_beside_line){dtp_observed_part_words((enum dtp_observed_part)p),
                                                    (double)b->plan.part_bytes[p], (double)m->part_bytes[p]};
    out[count++] = (struct dtp_beside_line){"= tensors at the peak", (double)b->plan.peak_bytes, (double)m->peak_bytes};
    out[count++] =
        (struct dtp_beside_line){"segments, at the end", (double)b->plan.reserved_bytes, (double)m->reserved_bytes};
    return count;
}
