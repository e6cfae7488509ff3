/* Rows of tokens that ranks which divide experts send each other: who sends whom how many, and where they lie, by what
 * each rank has said of its rows. On the way back the same rows go the other way. */
#ifndef DTP_EXCHANGE_H
#define DTP_EXCHANGE_H

#include <stdbool.h>
#include <stdint.h>

struct dtp_exchange {
    const int32_t *begins; /* on the host: [ranks, experts + 1], where each rank's rows of each expert begin */
    const void *more;      /* what goes along with each row, `more_bytes` of it, or NULL */
    void *more_result;
    uint32_t ranks, experts; /* `experts` of all ranks, of which each has as many */
    uint32_t row_bytes, more_bytes;
    bool back; /* from the ranks that have the experts to those that sent the rows */
};

/* Where the rows of one expert lie at both ends, `expert` being its number among those of the rank that has it (the
 * receiver, on the way back the sender): rows [from, from + rows) of what `sender` sends to all are rows [to, to +
 * rows) of what `receiver` gets of all. */
struct dtp_exchange_piece {
    uint64_t from, to, rows;
};
struct dtp_exchange_piece dtp_exchange_piece(const struct dtp_exchange *exchange, uint32_t sender, uint32_t receiver,
                                             uint32_t expert);
/* Rows that a rank has of its tokens; that its experts get. */
uint64_t dtp_exchange_made(const struct dtp_exchange *exchange, uint32_t rank);
uint64_t dtp_exchange_received(const struct dtp_exchange *exchange, uint32_t rank);
/* Bytes that a rank sends to others. */
uint64_t dtp_exchange_sent_bytes(const struct dtp_exchange *exchange, uint32_t rank);
/* Whether what ranks have said can be: of each no expert's rows end before they begin, and all are `rows`. */
bool dtp_exchange_holds(const struct dtp_exchange *exchange, uint64_t rows);

#endif
