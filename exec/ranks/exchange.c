#include "ranks/exchange.h"

static const int32_t *begins_of(const struct dtp_exchange *x, uint32_t rank)
{
    return x->begins + (uint64_t)rank * (x->experts + 1);
}

static uint32_t own(const struct dtp_exchange *x)
{
    return x->experts / x->ranks;
}

/* Rows of experts [first, last) that the ranks before `rank` have. */
static uint64_t rows_before(const struct dtp_exchange *x, uint32_t rank, uint32_t first, uint32_t last)
{
    uint64_t rows = 0;
    for (uint32_t r = 0; r < rank; r++)
        rows += (uint64_t)(begins_of(x, r)[last] - begins_of(x, r)[first]);
    return rows;
}

/* First of the rows that `owner` gets of rank `of` for its `expert`: they lie by experts, then by the ranks that sent
 * them. */
static uint64_t place_received(const struct dtp_exchange *x, uint32_t owner, uint32_t of, uint32_t expert)
{
    uint32_t first = owner * own(x);
    return rows_before(x, x->ranks, first, first + expert) + rows_before(x, of, first + expert, first + expert + 1);
}

struct dtp_exchange_piece dtp_exchange_piece(const struct dtp_exchange *x, uint32_t sender, uint32_t receiver,
                                             uint32_t expert)
{
    uint32_t owner = x->back ? sender : receiver, of = x->back ? receiver : sender;
    const int32_t *begins = begins_of(x, of) + owner * own(x) + expert;
    uint64_t made = (uint64_t)begins[0], received = place_received(x, owner, of, expert);
    return (struct dtp_exchange_piece){x->back ? received : made, x->back ? made : received,
                                       (uint64_t)(begins[1] - begins[0])};
}

uint64_t dtp_exchange_made(const struct dtp_exchange *x, uint32_t rank)
{
    return (uint64_t)begins_of(x, rank)[x->experts];
}

uint64_t dtp_exchange_received(const struct dtp_exchange *x, uint32_t rank)
{
    return rows_before(x, x->ranks, rank * own(x), (rank + 1) * own(x));
}

uint64_t dtp_exchange_sent_bytes(const struct dtp_exchange *x, uint32_t rank)
{
    uint64_t rows = 0;
    for (uint32_t peer = 0; peer < x->ranks; peer++) {
        uint32_t owner = x->back ? rank : peer, of = x->back ? peer : rank;
        const int32_t *begins = begins_of(x, of) + owner * own(x);
        rows += peer == rank ? 0 : (uint64_t)(begins[own(x)] - begins[0]);
    }
    return rows * (x->row_bytes + (x->more ? x->more_bytes : 0));
}

bool dtp_exchange_holds(const struct dtp_exchange *x, uint64_t rows)
{
    bool holds = true;
    for (uint32_t rank = 0; rank < x->ranks; rank++) {
        const int32_t *begins = begins_of(x, rank);
        holds = holds && begins[0] == 0 && (uint64_t)begins[x->experts] == rows;
        for (uint32_t e = 0; e < x->experts; e++)
            holds = holds && begins[e] <= begins[e + 1];
    }
    return holds;
}
