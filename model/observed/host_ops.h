/* Operators that a host computed itself, of PyTorch's profiler where no GPU was: they take the place of kernels. */
#ifndef DTP_HOST_OPS_H
#define DTP_HOST_OPS_H

#include "observed/spans.h"

#include <jansson.h>

/* Adds them, and gloo's collectives, to `spans` as what a device did. False: no memory. Of operators within each other
 * each has the time that those within it leave (of one that host_op_kind.def names it is the whole): so waiting, which
 * no operator of PyTorch's aten does, is nobody's. gloo has no reduce-scatter and sums by an all-reduce in its place;
 * which those are is told by the calls (c10d), whose order is that of gloo's. */
bool dtp_spans_add_host_ops(struct dtp_spans *spans, const json_t *events);

#endif
