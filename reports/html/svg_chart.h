/* Charts as inline SVG, for pages that must be complete without gnuplot.
 *
 * They show the same data as the gnuplot scripts (chart_data.h). Colours and text come from the page's style sheet by
 * class (f1..f12 areas, l1..l8 lines, p1..p8 points, ax axes, gr grid), so that a dark page has light axes. A legend is
 * an HTML list before the drawing, a table of the figures may follow it (html.h): nothing is told by colour alone. */
#ifndef DTP_SVG_CHART_H
#define DTP_SVG_CHART_H

#include "chart/chart_data.h"

#include <stdio.h>

/* One stacked bar a row. data->columns[0] is the mark to compare with (the capacity), shown where `mark` names it. */
struct dtp_svg_bars {
    const char *title;                  /* what a reader who cannot see it is told */
    const struct dtp_chart_part *parts; /* of data->columns[1..] */
    const char *mark;                   /* "capacity", NULL: column 0 is not drawn */
    const char *unit;                   /* "GiB" */
    double divisor;                     /* of values, gives the unit */
};
void dtp_svg_bars(const struct dtp_chart_data *data, const struct dtp_svg_bars *style, FILE *file);

/* Lines or points: x is column 0, y the column `y`, a colour and mark each series. */
struct dtp_svg_lines {
    const char *title, *x_words, *y_words;
    size_t y;
    double y_divisor;
    bool x_log2, x_log, y_log; /* x_log, y_log: where the range is wide enough to show more so */
    bool points;               /* no lines */
    long thin;                 /* column of a thin grey line beside each series (the ideal), -1: none */
    double level;              /* a horizontal line there, NAN: none */
    const char *level_words;
    double band_fraction; /* y = x within so much, 0: none */
    long joined;          /* of points: a line through the rows where this column is above 0, -1: none */
};
void dtp_svg_lines(const struct dtp_chart_data *data, const struct dtp_svg_lines *style, FILE *file);

#endif
