/* How fast this core runs just now.
 *
 * Cores of a shared machine give what their neighbours leave: on a rented machine of 16, one idle otherwise, a loop
 * that fits into the innermost cache took 0.19 ms at best, 0.23 to 0.38 in the medians of 21 spans of 20 s, and 1.4 at
 * worst. So whoever times something on a core times such a loop beside it. What both took longer than elsewhere is the
 * core's; times over the loop's time are the program's, and can be compared. */
#ifndef DTP_PACE_H
#define DTP_PACE_H

/* Mean seconds of the loop over the next `seconds`; it runs twice at least. */
double dtp_pace_loop_s(double seconds);

#endif
