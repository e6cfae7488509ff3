/* A schedule drawn as text: a lane a rank, time to the right, passes as letter and number of their micro-batch.
 *
 *   rank 0  F0F1F2F3            B0--F4B1--F5B2--...
 *   rank 1    F0F1F2        B0--F3B1--F4B2--...
 *
 * F is forward, B backward (of the input alone where W stands by itself), W the gradients of weights; of odd chunks f,
 * b and w. F4&B2 is a pair. The shortest pass takes as many characters as its label, longer ones are filled up by
 * hyphens; what is idle stays blank. Where time is longer than a line, lanes go on below. */
#ifndef DTP_SCHEDULE_PRINT_H
#define DTP_SCHEDULE_PRINT_H

#include "schedule/schedule_time.h"

#include <stdio.h>

/* Lines of text that printing takes, to judge whether a reader wants it. */
size_t dtp_schedule_print_lines(const struct dtp_schedule *schedule, const struct dtp_schedule_timing *timing,
                                int columns);
/* `timing` as the timer of this schedule gave it. No line is longer than `columns`, at least 40. False: no memory. */
bool dtp_schedule_print(const struct dtp_schedule *schedule, const struct dtp_schedule_timing *timing, int columns,
                        FILE *file);

#endif
