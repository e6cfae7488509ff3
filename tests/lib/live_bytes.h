/* The live bytes of a whole step program, operation by operation: what bounds and miniatures are held against. */
#ifndef TEST_LIVE_BYTES_H
#define TEST_LIVE_BYTES_H

#include "program/live_runs.h"

static inline void live_bytes_of(const struct dtp_program *program, uint64_t layers, struct dtp_live_bytes *live)
{
    struct dtp_live_runs runs = {.run = NULL};
    assert_int_equal(dtp_live_runs_of(program, &runs, NULL), DTP_OK);
    dtp_live_bytes_sum(&runs, layers, live);
    dtp_live_runs_release(&runs);
}

#endif
