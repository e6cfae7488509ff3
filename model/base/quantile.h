/* Order statistics of a few values, between the two nearest where none stands there (GSL). */
#ifndef DTP_QUANTILE_H
#define DTP_QUANTILE_H

#include <stddef.h>

/* Sorts `values`. `share` 0: the least, 1: the largest. */
double dtp_quantile(double *values, size_t count, double share);
/* Of every `stride`-th of the values, which it sorts; the others stay. */
double dtp_median(double *values, size_t stride, size_t count);

#endif
