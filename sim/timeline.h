/* What the spans of a step mean: which time went to what, and which chain of operations set the step's length. */
#ifndef DTP_TIMELINE_H
#define DTP_TIMELINE_H

#include "sim/simulate.h"

/* From span, cause and each operation's starved time fills step_s and everything it is split into, and the critical
 * path. `timeline` needs its arrays and op_count, and step_s where the roles of a set end later; `alone`: of a program
 * that waits for no other, whose idle time is the host's. False: no memory. */
bool dtp_timeline_account(const struct dtp_program *program, const double *starved_s, bool alone,
                          struct dtp_timeline *timeline);

#endif
