#include "html/svg_chart.h"

#include "html/html.h"
#include "html/svg.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define CHARACTER 7.0 /* of the 13-pixel text, on the wide side */

/* ---- bars -------------------------------------------------------------------------------------------------------- */

#define BAR_STEP 34.0
#define BAR_THICK 22.0

static bool part_is_shown(const struct dtp_chart_data *data, size_t part)
{
    for (size_t row = 0; row < data->row_count; row++)
        if (data->rows[row].value[part] > 0)
            return true;
    return false;
}

static void bars_legend(const struct dtp_chart_data *data, const struct dtp_svg_bars *style, FILE *file)
{
    fputs("<ul class=\"legend\">", file);
    for (size_t part = 1; part < data->column_count; part++)
        if (part_is_shown(data, part)) {
            fprintf(file,
                    "<li><svg viewBox=\"0 0 16 12\" class=\"key\" aria-hidden=\"true\"><rect class=\"f%zu\" "
                    "width=\"16\" height=\"12\"/></svg>",
                    part);
            dtp_html_format(file, "%s</li>", style->parts[part - 1].words);
        }
    if (style->mark)
        dtp_html_format(file,
                        "<li><svg viewBox=\"0 0 16 12\" class=\"key\" aria-hidden=\"true\"><line class=\"mk\" x1=\"8\" "
                        "y1=\"0\" x2=\"8\" y2=\"12\"/></svg>%s</li>",
                        style->mark);
    fputs("</ul>\n", file);
}

static void draw_bar(const struct dtp_chart_row *row, size_t parts, const struct dtp_svg_bars *style,
                     const struct dtp_svg_axis *axis, double y, FILE *file)
{
    double sum = 0;
    char number[48];
    for (size_t part = 1; part < parts; part++) {
        if (!(row->value[part] > 0))
            continue;
        double from = dtp_svg_place(axis, sum / style->divisor);
        sum += row->value[part];
        fprintf(file, "<rect class=\"f%zu\" x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.0f\"><title>", part, from,
                y - BAR_THICK / 2, dtp_svg_place(axis, sum / style->divisor) - from, BAR_THICK);
        dtp_html_text(file, style->parts[part - 1].words);
        fprintf(file, ": %.4g ", row->value[part] / style->divisor);
        dtp_html_format(file, "%s</title></rect>\n", style->unit);
    }
    if (style->mark) {
        double x = dtp_svg_place(axis, row->value[0] / style->divisor);
        dtp_svg_line(file, "mk", x, y - BAR_STEP / 2, x, y + BAR_STEP / 2);
    }
    snprintf(number, sizeof number, "%.4g", sum / style->divisor);
    dtp_svg_text(file, dtp_svg_place(axis, sum / style->divisor) + 6, y + 4, "start", number);
}

void dtp_svg_bars(const struct dtp_chart_data *data, const struct dtp_svg_bars *style, FILE *file)
{
    double widest = 0, label = 0;
    for (size_t row = 0; row < data->row_count; row++) {
        double sum = 0;
        for (size_t part = 1; part < data->column_count; part++)
            sum += data->rows[row].value[part] > 0 ? data->rows[row].value[part] : 0;
        widest = fmax(widest, fmax(sum, style->mark ? data->rows[row].value[0] : 0));
        label = fmax(label, (double)strlen(data->rows[row].label) * CHARACTER);
    }
    double left = fmin(label, 320) + 16, bottom = 10 + BAR_STEP * (double)data->row_count;
    struct dtp_svg_axis axis = dtp_svg_axis(0, widest / style->divisor, 0, 8, left, DTP_SVG_WIDTH - 60);
    bars_legend(data, style, file);
    dtp_svg_begin(file, style->title, bottom + 48);
    dtp_svg_x_axis(file, &axis, 10, bottom, style->unit);
    for (size_t row = 0; row < data->row_count; row++) {
        double y = 10 + BAR_STEP * ((double)row + 0.5);
        dtp_svg_text(file, left - 8, y + 4, "end", data->rows[row].label);
        draw_bar(&data->rows[row], data->column_count, style, &axis, y, file);
    }
    dtp_svg_end(file);
}

/* ---- lines and points -------------------------------------------------------------------------------------------- */

/* A mark of each series, as a path around (0,0). */
static const char *const marks[DTP_CHART_MAX_SERIES] = {
    "M-4 0a4 4 0 1 0 8 0a4 4 0 1 0-8 0",
    "M-4-4h8v8h-8z",
    "M0-5L5 4H-5z",
    "M0-6L5 0L0 6L-5 0z",
    "M0 5L5-4H-5z",
    "M-4-4L4 4M4-4L-4 4",
    "M-5 0H5M0-5V5",
    "M-5-2h10v4h-10z",
};

static void lines_legend(const struct dtp_chart_data *data, const struct dtp_svg_lines *style, FILE *file)
{
    bool named[DTP_CHART_MAX_SERIES] = {false};
    fputs("<ul class=\"legend\">", file);
    for (size_t row = 0; row < data->row_count; row++) {
        size_t k = data->rows[row].series;
        if (named[k])
            continue;
        named[k] = true;
        fputs("<li><svg viewBox=\"0 0 32 12\" class=\"key wide\" aria-hidden=\"true\">", file);
        if (!style->points)
            fprintf(file, "<line class=\"l%zu\" x1=\"0\" y1=\"6\" x2=\"32\" y2=\"6\"/>", k + 1);
        fprintf(file, "<path class=\"p%zu\" d=\"%s\" transform=\"translate(16 6)\"/></svg>", k + 1, marks[k]);
        dtp_html_format(file, "%s</li>", data->rows[row].label);
    }
    fputs("</ul>\n", file);
}

/* Least and largest of a column, and of `other` where that is one. */
static void range_of(const struct dtp_chart_data *data, size_t column, long other, double *least, double *most)
{
    *least = INFINITY;
    *most = -INFINITY;
    for (size_t row = 0; row < data->row_count; row++) {
        const double *v = data->rows[row].value;
        *least = fmin(*least, other >= 0 ? fmin(v[column], v[other]) : v[column]);
        *most = fmax(*most, other >= 0 ? fmax(v[column], v[other]) : v[column]);
    }
}

struct plane {
    const struct dtp_chart_data *data;
    const struct dtp_svg_lines *style;
    struct dtp_svg_axis x, y;
    FILE *file;
};

static double x_of(const struct plane *p, const struct dtp_chart_row *row)
{
    return dtp_svg_place(&p->x, row->value[0]);
}

static double y_of(const struct plane *p, const struct dtp_chart_row *row, size_t column)
{
    return dtp_svg_place(&p->y, row->value[column] / p->style->y_divisor);
}

/* A line through the rows of one series, or, with `joined`, through those where that column is above 0. */
static void draw_line(const struct plane *p, size_t series, size_t column, long joined, const char *class)
{
    bool begun = false;
    for (size_t i = 0; i < p->data->row_count; i++) {
        const struct dtp_chart_row *row = &p->data->rows[i];
        if (isnan(row->value[column]) || (joined >= 0 ? !(row->value[joined] > 0) : row->series != series))
            continue;
        if (!begun)
            fprintf(p->file, "<path class=\"%s\" d=\"", class);
        fprintf(p->file, "%c%.1f %.1f", begun ? 'L' : 'M', x_of(p, row), y_of(p, row, column));
        begun = true;
    }
    if (begun)
        fputs("\"/>\n", p->file);
}

/* Places that points are on, in cells of a few pixels for each series: of ten thousand points most would lie on others.
 */
#define CELL 3
#define CELLS_X (DTP_SVG_WIDTH / CELL + 1)
#define CELLS_Y (400 / CELL + 1)

static void draw_points(const struct plane *p)
{
    char x[32], y[32];
    bool *taken = calloc((size_t)DTP_CHART_MAX_SERIES * CELLS_X * CELLS_Y, sizeof *taken);
    for (size_t i = 0; taken && i < p->data->row_count; i++) {
        const struct dtp_chart_row *row = &p->data->rows[i];
        if (isnan(row->value[p->style->y]))
            continue;
        size_t column = (size_t)fmax(0, x_of(p, row) / CELL), line = (size_t)fmax(0, y_of(p, row, p->style->y) / CELL);
        bool *cell = &taken[(row->series * CELLS_Y + (line < CELLS_Y ? line : CELLS_Y - 1)) * CELLS_X +
                            (column < CELLS_X ? column : CELLS_X - 1)];
        if (*cell)
            continue;
        *cell = true;
        fprintf(p->file, "<path class=\"p%zu\" d=\"%s\" transform=\"translate(%.1f %.1f)\"><title>", row->series + 1,
                marks[row->series], x_of(p, row), y_of(p, row, p->style->y));
        dtp_svg_number(row->value[0], x, sizeof x);
        dtp_svg_number(row->value[p->style->y] / p->style->y_divisor, y, sizeof y);
        dtp_html_format(p->file, "%s: %s, %s</title></path>\n", row->label, x, y);
    }
    free(taken);
}

/* y = x and what lies within the fraction of it, on equal logarithmic axes; cut off at the frame. */
static void draw_band(const struct plane *p)
{
    double fraction = p->style->band_fraction, least = p->x.least, most = p->x.most;
    fprintf(p->file, "<path class=\"band\" d=\"M%.1f %.1fL%.1f %.1fL%.1f %.1fL%.1f %.1fL%.1f %.1fL%.1f %.1fz\"/>\n",
            dtp_svg_place(&p->x, least), dtp_svg_place(&p->y, least), dtp_svg_place(&p->x, least),
            dtp_svg_place(&p->y, least * (1 + fraction)), dtp_svg_place(&p->x, most / (1 + fraction)),
            dtp_svg_place(&p->y, most), dtp_svg_place(&p->x, most), dtp_svg_place(&p->y, most),
            dtp_svg_place(&p->x, most), dtp_svg_place(&p->y, most * (1 - fraction)),
            dtp_svg_place(&p->x, least / (1 - fraction)), dtp_svg_place(&p->y, least));
    dtp_svg_line(p->file, "thin", p->x.from, p->y.from, p->x.to, p->y.to);
}

static void draw_level(const struct plane *p)
{
    if (isnan(p->style->level))
        return;
    double y = dtp_svg_place(&p->y, p->style->level);
    dtp_svg_line(p->file, "mk", p->x.from, y, p->x.to, y);
    dtp_svg_text(p->file, p->x.to, y - 6, "end", p->style->level_words);
}

#define WIDE 6 /* from here on a logarithmic axis has ticks enough */

static struct plane make_plane(const struct dtp_chart_data *data, const struct dtp_svg_lines *style, FILE *file)
{
    struct plane p = {.data = data, .style = style, .file = file};
    double least, most, y_least, y_most;
    range_of(data, 0, -1, &least, &most);
    range_of(data, style->y, style->thin, &y_least, &y_most);
    y_least /= style->y_divisor;
    y_most /= style->y_divisor;
    if (!isnan(style->level))
        y_most = fmax(y_most, style->level);
    if (style->band_fraction > 0) { /* one range for both */
        least = y_least = fmin(least, y_least) * 0.8;
        most = y_most = fmax(most, y_most) * 1.25;
    }
    bool x_log = style->x_log && most > WIDE * least, y_log = style->y_log && y_most > WIDE * y_least;
    bool zero = !style->y_log && !style->points;
    p.x = dtp_svg_axis(least, most, style->x_log2 ? 2 : x_log ? 10 : 0, 8, 62, DTP_SVG_WIDTH - 24);
    p.y = dtp_svg_axis(zero ? 0 : y_least, y_most, y_log ? 10 : 0, 6, 320, 34);
    return p;
}

void dtp_svg_lines(const struct dtp_chart_data *data, const struct dtp_svg_lines *style, FILE *file)
{
    struct plane p = make_plane(data, style, file);
    char class[24];
    lines_legend(data, style, file);
    dtp_svg_begin(file, style->title, 370);
    dtp_svg_x_axis(file, &p.x, 34, 320, style->x_words);
    dtp_svg_y_axis(file, &p.y, p.x.from, p.x.to, style->y_words);
    if (style->band_fraction > 0)
        draw_band(&p);
    for (size_t series = 0; series < data->series_count && style->thin >= 0; series++)
        draw_line(&p, series, (size_t)style->thin, -1, "thin");
    draw_level(&p);
    for (size_t series = 0; series < data->series_count && !style->points; series++) {
        snprintf(class, sizeof class, "l%zu", series + 1);
        draw_line(&p, series, style->y, -1, class);
    }
    if (style->joined >= 0)
        draw_line(&p, 0, style->y, style->joined, "front");
    draw_points(&p);
    dtp_svg_end(file);
}
