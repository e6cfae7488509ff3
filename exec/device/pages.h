/* Large pieces of host memory, all of whose pages exist and lie near the cores of the calling thread. */
#ifndef DTP_PAGES_H
#define DTP_PAGES_H

#include "base/status.h"

#include <stdint.h>

/* Zeroed, in huge pages where the system has them, which spares AdamW's five streams most of their misses in the TLB;
 * touched by as many threads as the calling one may use cores. `bytes` > 0. DTP_ENVIRONMENT: the system has not so
 * much. */
enum dtp_status dtp_pages_take(uint64_t bytes, void **out, struct dtp_faults *faults);
void dtp_pages_release(void *memory, uint64_t bytes);

#endif
