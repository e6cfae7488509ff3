/* Proofs about a sealed program: what the executor may rely on. */
#ifndef DTP_VERIFY_H
#define DTP_VERIFY_H

#include "program/program.h"

/* Refuses with DTP_BAD_INPUT, all faults at once, each with operation, buffer and reason:
 *   - use of a buffer before it is allocated or after it is freed in issue order; a buffer allocated or freed twice, or
 *     never freed; reads of bytes nobody wrote;
 *   - a race: two operations that touch the same bytes of a buffer (buffer_parts.h), one of them writing, of which none
 *     certainly is done before the other starts (happens_before.h says what certainly is);
 *   - a free while an operation may still use the buffer that neither the stream that frees nor that of the pool has
 *     waited for (DTP_DEFER: the allocator waits);
 *   - reuse: the first write to a buffer while an operation may still use a buffer that its pool got back before. Which
 *     bytes the allocator hands out is not known, so each must be safe, as in PyTorch's allocator;
 *   - an operation on a stream that cannot run it; a collective or copy that sends more bytes than its operands hold.
 * Between two steps all streams wait for all others. Collectives of a group run in issue order, which is the same on
 * all ranks of a program. Linear in operations and operands times streams, but for sorting where operands begin and
 * end. */
enum dtp_status dtp_program_verify(const struct dtp_program *program, struct dtp_faults *faults);

/* Whether dependency `index` of `op` is implied by the others and the order of streams and groups, so that deleting it
 * changes nothing. Linear in the operations before `op`; fails where memory runs out. */
enum dtp_status dtp_program_dependency_redundant(const struct dtp_program *program, const struct dtp_op *op,
                                                 uint32_t index, bool *redundant, struct dtp_faults *faults);

#endif
