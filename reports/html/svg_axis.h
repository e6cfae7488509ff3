/* Axes of SVG charts: from a range of values to places, with ticks at round values. Internal to svg_chart.c. */
#ifndef DTP_SVG_AXIS_H
#define DTP_SVG_AXIS_H

#include <stdbool.h>
#include <stddef.h>

#define DTP_SVG_MAX_TICKS 40

struct dtp_svg_axis {
    double least, most; /* of the range shown */
    double from, to;    /* places of these in the drawing */
    bool log;
    size_t tick_count;
    double ticks[DTP_SVG_MAX_TICKS];
};

/* Shows [least, most] in about `wanted` ticks; a linear range is widened to round values. base: 0 linear, 2 or 10. */
struct dtp_svg_axis dtp_svg_axis(double least, double most, int base, int wanted, double from, double to);
double dtp_svg_place(const struct dtp_svg_axis *axis, double value);
/* "1.5k", "20M", "0.5": at most three digits, with a prefix of 1000. Returns `out`. */
char *dtp_svg_number(double value, char *out, size_t bytes);

#endif
