/* What the router says of where tokens go, one buffer of whole numbers of 4 bytes: kernels/kernels.h, struct
 * dtp_routes. And the scratch that it counts in. */
#ifndef DTP_ROUTES_LAYOUT_H
#define DTP_ROUTES_LAYOUT_H

#include <stdint.h>

/* What kernels/kernels.h asks for; exec/ asserts that they agree. */
#define DTP_EXECUTOR_ROUTE_TURNS 2u /* counters of the turns that weights' gradients take */
#define DTP_EXECUTOR_ROUTER_CHUNKS 128u
#define DTP_EXECUTOR_ROUTER_EXPERTS 1024u
#define DTP_EXECUTOR_ROUTER_CHOSEN 32u
#define DTP_EXECUTOR_ROUTER_GROUPS 32u

/* Of so many rows by experts: three numbers of each, where experts begin, the counters. */
static inline uint64_t dtp_routes_bytes(uint64_t rows, uint64_t experts)
{
    return 4 * (3 * rows + experts + 1 + DTP_EXECUTOR_ROUTE_TURNS);
}

#endif
