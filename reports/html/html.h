/* Parts of an HTML page: text that is only text, sections, tables that sort and filter. One page is one file: style and
 * script stand in it, nothing is loaded. Writing errors are left on the FILE. */
#ifndef DTP_HTML_H
#define DTP_HTML_H

#include "chart/chart_data.h"

#include <stdbool.h>
#include <stdio.h>

/* Writes `text` with & < > " ' as references; control characters and what is no UTF-8 as U+FFFD. */
void dtp_html_text(FILE *file, const char *text);
/* Of `format`, tags stay; its arguments %s are escaped, %% is %. Nothing but %s is known. */
void dtp_html_format(FILE *file, const char *format, ...);

void dtp_html_begin(FILE *file, const char *title);
void dtp_html_end(FILE *file);
/* <section> with a heading; `id` is what links lead to. */
void dtp_html_section(FILE *file, const char *id, const char *heading);
void dtp_html_section_end(FILE *file);

/* A table. Each of `columns` is a heading, with '>' in front where figures stand right. `filter`: with a field that
 * hides the rows without what is typed. */
void dtp_html_table(FILE *file, const char *id, const char *caption, const char *const *columns, size_t count,
                    bool filter);
void dtp_html_table_end(FILE *file);
void dtp_html_row(FILE *file);
/* Cells; the first of a row is its heading. A figure sorts by `value`; NAN: by nothing, last. */
void dtp_html_head_cell(FILE *file, const char *text);
void dtp_html_cell(FILE *file, const char *text);
void dtp_html_word_cell(FILE *file, const char *text); /* among figures */
void dtp_html_figure_cell(FILE *file, double value, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* The data of a chart as a table behind "figures". */
void dtp_html_chart_figures(FILE *file, const char *id, const struct dtp_chart_data *data);

/* Style and script, put into the program when it is built. */
extern const char *const dtp_html_style, *const dtp_html_script;

#endif
