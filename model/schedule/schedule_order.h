/* What each pass of a schedule waits for, and the proof that the schedule can run.
 *
 * A pass waits for the one before it on its rank and for what another rank sends: a forward for the activation of the
 * stage before, a backward for the gradient of the stage after. How sends work is a choice:
 *
 *   buffered    the sender goes on at once; what was sent waits at the receiver, in a queue
 *   rendezvous  the sender goes on at once, but a transfer begins only when the receiver is done with the pass before
 *               the one that needs it; what one rank sends to another arrives in the order in which it was sent,
 *               activations and gradients apart, and so must be taken in that order
 *   blocking    the sender waits too: a rank sends what its last pass made and receives what its next one needs in one
 *               batch and goes on when both are done. Only some schedules run so; the others need asynchronous sends
 *
 * A schedule is legal when each micro-batch goes through each chunk once each way, W after its B, and when no ranks
 * wait for each other in a circle. Passes in the order found here run one after the other without looking back, which
 * is what makes timing (schedule_time.h) a single sweep. */
#ifndef DTP_SCHEDULE_ORDER_H
#define DTP_SCHEDULE_ORDER_H

#include "base/host_arena.h"
#include "schedule/schedule.h"

/* X(suffix, word) */
#define DTP_SEND_TABLE(X)                                                                                              \
    X(BUFFERED, "buffered")                                                                                            \
    X(RENDEZVOUS, "rendezvous")                                                                                        \
    X(BLOCKING, "blocking")
enum dtp_send {
#define DTP_SEND_ENUM(suffix, word) DTP_SEND_##suffix,
    DTP_SEND_TABLE(DTP_SEND_ENUM)
#undef DTP_SEND_ENUM
        DTP_SEND_COUNT
};
/* False: there is no such way to send. */
bool dtp_send_parse(const char *word, enum dtp_send *out);

#define DTP_NO_PASS UINT32_MAX

/* Of one pass; numbers are those of passes in dtp_schedule. */
struct dtp_pass_link {
    uint32_t from;  /* the pass of another rank whose result it waits for; DTP_NO_PASS: of none */
    uint32_t to;    /* the pass of another rank that waits for its result */
    uint32_t stage; /* of its chunk */
    uint32_t rank;
};

struct dtp_schedule_order {
    enum dtp_send send;
    uint32_t count;              /* of passes */
    struct dtp_pass_link *links; /* per pass */
    uint32_t *order; /* all passes, each behind what it waits for; of a pair the first, the second right behind */
};

/* Proves the schedule and links its passes, in linear time. What *out has is taken from the arena. DTP_BAD_INPUT: it is
 * not legal; what is wrong is said with rank, micro-batch and chunk. */
enum dtp_status dtp_schedule_order_make(const struct dtp_schedule *schedule, enum dtp_send send,
                                        struct dtp_host_arena *arena, struct dtp_schedule_order *out,
                                        struct dtp_faults *faults);

/* Only the proof. */
enum dtp_status dtp_schedule_verify(const struct dtp_schedule *schedule, enum dtp_send send, struct dtp_faults *faults);

#endif
