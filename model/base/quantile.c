#include "base/quantile.h"

#include <gsl/gsl_sort.h>
#include <gsl/gsl_statistics_double.h>

double dtp_quantile(double *values, size_t count, double share)
{
    gsl_sort(values, 1, count);
    return gsl_stats_quantile_from_sorted_data(values, 1, count, share);
}

double dtp_median(double *values, size_t stride, size_t count)
{
    gsl_sort(values, stride, count);
    return gsl_stats_median_from_sorted_data(values, stride, count);
}
