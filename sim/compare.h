/* Predicted against measured: what of a wrong step time is the fault of which part.
 *
 * The same program is simulated with three sets of costs: those predicted, those measured with every operation alone,
 * and those measured in the step. The first and second differ by what the cost model says wrong about operations; the
 * second, in which the simulator lets operations slow each other down, and the third, in which they really did, by what
 * it says wrong about contention; the third and the step that was measured by what happens between operations:
 * launches, waiting, the order of things. Errors that cancel in the sum show in the parts. */
#ifndef DTP_COMPARE_H
#define DTP_COMPARE_H

#include "sim/simulated.h"

struct dtp_error_split {
    double predicted_s, alone_s, in_place_s; /* steps simulated with each set of costs */
    double measured_s;
};

/* Arrays are seconds per operation of the program; NAN where none were measured: those take what is predicted. */
enum dtp_status dtp_compare_split(const struct dtp_simulated *simulated, const double *alone_s,
                                  const double *in_place_s, double measured_s, struct dtp_error_split *out,
                                  struct dtp_faults *faults);

/* Sums over operations of one class on the device: their predicted time alone, measured alone, measured in the step. */
struct dtp_class_times {
    double predicted_s, alone_s, in_place_s;
    uint32_t count;
};
void dtp_compare_classes(const struct dtp_simulated *simulated, const double *alone_s, const double *in_place_s,
                         struct dtp_class_times out[DTP_CLASS_STORAGE + 1]);

/* The same of the compute stream, by the marks of the program: X(mark, words). */
#define DTP_COMPARE_PHASE_TABLE(X)                                                                                     \
    X(FORWARD, "forward", "forward")                                                                                   \
    X(LOSS, "loss", "head and loss")                                                                                   \
    X(BACKWARD, "backward", "backward")                                                                                \
    X(STEP, "step", "gradient norm and optimizer")
enum dtp_compare_phase {
#define DTP_COMPARE_PHASE_ENUM(suffix, mark, words) DTP_COMPARE_##suffix,
    DTP_COMPARE_PHASE_TABLE(DTP_COMPARE_PHASE_ENUM)
#undef DTP_COMPARE_PHASE_ENUM
        DTP_COMPARE_PHASE_COUNT
};
struct dtp_phase_times {
    double predicted_s, in_place_s;
};
void dtp_compare_phases(const struct dtp_simulated *simulated, const double *in_place_s,
                        struct dtp_phase_times out[DTP_COMPARE_PHASE_COUNT]);
const char *dtp_compare_phase_words(enum dtp_compare_phase phase);

#endif
