/* Charts of areas as text: stacked bars, memory over time, lanes of operations. Each cell of such a chart is a letter,
 * of what fills most of it, so that a dozen owners are told apart without colour and gnuplot is not needed. */
#ifndef DTP_CHART_TEXT_H
#define DTP_CHART_TEXT_H

#include "chart/chart_data.h"
#include "page/page.h"

/* Whether this chart is one of areas. Of the others, gnuplot draws points and lines as text. */
bool dtp_chart_is_area(enum dtp_chart chart);
/* Draws `data` (STRATEGIES, STEP, TIMELINE), or `table` as it is (MEMORY), within the columns of the page.
 * DTP_BAD_INPUT: it holds nothing that has a size. DTP_ENVIRONMENT: no memory. */
enum dtp_status dtp_chart_text(enum dtp_chart chart, const char *title, const struct dtp_chart_data *data,
                               const struct dtp_table *table, const struct dtp_page *page, struct dtp_faults *faults);

#endif
