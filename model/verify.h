/* Proofs about a sealed program: what the executor may rely on. */
#ifndef DTP_VERIFY_H
#define DTP_VERIFY_H

#include "program.h"

/* Refuses, all faults at once (op, buffer, reason): use of a buffer before it is allocated or after it is freed in issue order; two
 * operations of different streams that touch a buffer, one writing, with no path of dependencies between them (a
 * race); a free or a reuse of memory another stream may still read; collectives of one group whose order is not fixed;
 * reads of bytes nobody wrote; a buffer allocated twice or never freed. Linear in operations times streams (vector
 * clocks over DTP_STREAM_COUNT streams). */
enum dtp_status dtp_program_verify(const struct dtp_program *program, struct dtp_faults *faults);

/* True when dependency `index` of `op` is implied by the others and the streams' order, so that deleting it changes
 * nothing. */
bool dtp_program_dependency_redundant(const struct dtp_program *program, const struct dtp_op *op, uint32_t index);

#endif
