/* Kernels by their names. */
#ifndef DTP_KERNEL_KIND_H
#define DTP_KERNEL_KIND_H

#include "observed/observed.h"

enum dtp_kernel_trait {
    DTP_TRAIT_PLAIN,
    DTP_TRAIT_WIDE,
    DTP_TRAIT_FORWARD,
    DTP_TRAIT_FORWARD_2,
    DTP_TRAIT_BACKWARD,
    DTP_TRAIT_SOFTMAX,
    DTP_TRAIT_FUSED,
    DTP_TRAIT_COMPILED
};
struct dtp_kernel_kind {
    enum dtp_observed_kind kind;
    enum dtp_kernel_trait trait;
};
/* What no row knows is elementwise. */
struct dtp_kernel_kind dtp_kernel_kind_of(const char *name);

#endif
