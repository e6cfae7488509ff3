/* Fair sharing of the machine's resources among operations that run at the same time.
 *
 * Each operation would use a fraction of every resource at its full speed. Where the sum exceeds one, speeds are
 * lowered so that the shares are max-min fair: nobody's share can grow without taking from one that has no more. With
 * several resources the share that counts is an operation's largest one of what is contended (dominant resource
 * fairness, Ghodsi et al., NSDI 2011); with one resource this is the classical max-min rule. So a collective that needs
 * a tenth of the SMs gets it, and the matmul beside it the other nine tenths. Weights make it the weighted rule: of two
 * that want all, the one of weight 3 gets three quarters. */
#ifndef DTP_SHARE_H
#define DTP_SHARE_H

#include <stddef.h>

enum dtp_resource {
    DTP_RESOURCE_SM,
    DTP_RESOURCE_HBM,
    DTP_RESOURCE_LINK_OUT,
    DTP_RESOURCE_LINK_IN,
    DTP_RESOURCE_NETWORK,
    DTP_RESOURCE_PCIE_UP,
    DTP_RESOURCE_PCIE_DOWN,
    DTP_RESOURCE_HOST_MEMORY,
    DTP_RESOURCE_STORAGE,
    DTP_RESOURCE_COUNT
};

/* Fractions of each resource that an operation uses at full speed; above 1: it cannot reach full speed even alone. */
struct dtp_usage {
    double weight; /* 0 means 1 */
    double of[DTP_RESOURCE_COUNT];
};

/* Most operations that run at once: no fewer than there are streams, each of which runs one. */
#define DTP_SHARE_MAX 24

/* Speeds in (0, 1] of `count` <= DTP_SHARE_MAX operations. Depends on nothing but the arguments, nor on their order. */
void dtp_share(const struct dtp_usage *const *usage, size_t count, double *speed);

#endif
