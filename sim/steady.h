/* Micro-batches of a pipeline go one like the other: once each role does the same one micro-batch later as it did, a
 * time T ago, that is what it does until it comes to operations that do not repeat. The event loop is moved there at
 * once.
 *
 * Which operations repeat is known before (periods.h). What happens next follows from the state of all roles: which
 * operations are done, which of a stream is the last, for streams do one after the other; which run, what is left of
 * them and at which speed; which transfers wait for their other end. Where that is, but for rounding, what it was one
 * period of operations ago, and the host was ahead of all that began since and does not need longer for a period than
 * the devices do, each later period begins and ends each operation by T later than the one before. Spans come from the
 * recorded period and a multiple of T, so they differ from what the loop finds by rounding alone. */
#ifndef DTP_STEADY_H
#define DTP_STEADY_H

#include <stdbool.h>

struct clock;
struct engine;

/* Takes clock->steady from malloc where all roles have periods. False: no memory. */
bool dtp_steady_begin(struct clock *clock);
/* The role is through with its mark. */
void dtp_steady_reach(struct engine *role);
/* Where nothing is due at this time: true where the clock and all roles were moved on; each is touched then. */
bool dtp_steady_jump(struct clock *clock);

#endif
