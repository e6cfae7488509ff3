#include "sim/compare.h"

#include "base/word_table.h"

#include <math.h>
#include <string.h>

static enum dtp_status step_with(const struct dtp_simulated *s, const struct dtp_simulation_options *options,
                                 double *out, struct dtp_faults *faults)
{
    struct dtp_timeline timeline;
    const struct dtp_job *job = &s->job;
    enum dtp_status status = dtp_simulate(s->program, &job->cluster, options, &timeline, faults);
    if (status != DTP_OK)
        return status;
    *out = timeline.step_s;
    dtp_timeline_release(&timeline);
    return DTP_OK;
}

enum dtp_status dtp_compare_split(const struct dtp_simulated *simulated, const double *alone_s,
                                  const double *in_place_s, double measured_s, struct dtp_error_split *out,
                                  struct dtp_faults *faults)
{
    struct dtp_simulation_options options = dtp_simulation_options_default();
    *out = (struct dtp_error_split){.predicted_s = simulated->timeline.step_s, .measured_s = measured_s};
    /* What was measured holds this GPU's speed and power limit already, and in the step the contention too. */
    options.replay_allocator = options.power_headroom = false;
    options.compute_factor = 1;
    options.op_s = alone_s;
    enum dtp_status status = step_with(simulated, &options, &out->alone_s, faults);
    if (status != DTP_OK)
        return status;
    options.op_s = in_place_s;
    options.contention = false;
    return step_with(simulated, &options, &out->in_place_s, faults);
}

void dtp_compare_classes(const struct dtp_simulated *simulated, const double *alone_s, const double *in_place_s,
                         struct dtp_class_times out[DTP_CLASS_STORAGE + 1])
{
    const struct dtp_op *ops = dtp_program_ops(simulated->program);
    memset(out, 0, (DTP_CLASS_STORAGE + 1) * sizeof *out);
    for (size_t i = 0; i < simulated->timeline.op_count; i++) {
        struct dtp_class_times *class = &out[dtp_op_kind_class(ops[i].kind)];
        if (!isfinite(alone_s[i]) || !isfinite(in_place_s[i]))
            continue;
        class->predicted_s += simulated->alone_s[i];
        class->alone_s += alone_s[i];
        class->in_place_s += in_place_s[i];
        class->count++;
    }
}

/* ---- phases ------------------------------------------------------------------------------------------------------ */

static const char *const phase_marks[] = {DTP_COMPARE_PHASE_TABLE(DTP_ROW_WORD)};
DTP_WORDS_OF_TABLE(dtp_compare_phase_words, dtp_compare_phase, DTP_COMPARE_PHASE_TABLE, DTP_ROW_SECOND)

void dtp_compare_phases(const struct dtp_simulated *simulated, const double *in_place_s,
                        struct dtp_phase_times out[DTP_COMPARE_PHASE_COUNT])
{
    const struct dtp_op *ops = dtp_program_ops(simulated->program);
    int phase = DTP_COMPARE_STEP; /* what stands before the first mark: weights gathered, batches brought */
    memset(out, 0, DTP_COMPARE_PHASE_COUNT * sizeof *out);
    for (size_t i = 0; i < simulated->timeline.op_count; i++) {
        const struct dtp_span *span = &simulated->timeline.span[i];
        for (int p = 0; p < DTP_COMPARE_PHASE_COUNT && ops[i].kind == DTP_OP_MARK; p++)
            phase = strcmp(ops[i].name, phase_marks[p]) == 0 ? p : phase;
        if (ops[i].stream != DTP_STREAM_COMPUTE || !isfinite(in_place_s[i]))
            continue;
        out[phase].predicted_s += span->end_s - span->start_s;
        out[phase].in_place_s += in_place_s[i];
    }
}
