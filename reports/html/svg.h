/* Strokes of an inline SVG drawing: frame, text, lines, axes. Internal to the drawings. */
#ifndef DTP_SVG_H
#define DTP_SVG_H

#include "html/svg_axis.h"

#include <stdio.h>

#define DTP_SVG_WIDTH 860

/* A drawing of that height in a frame that scrolls where it is too wide; `title` is what a reader is told who cannot
 * see it. */
void dtp_svg_begin(FILE *file, const char *title, double height);
void dtp_svg_end(FILE *file);
/* anchor: "start", "middle" or "end". */
void dtp_svg_text(FILE *file, double x, double y, const char *anchor, const char *text);
void dtp_svg_line(FILE *file, const char *class, double x1, double y1, double x2, double y2);
/* Ticks, their values and grid lines of the axis below (from `top` to `bottom`) or at the left. */
void dtp_svg_x_axis(FILE *file, const struct dtp_svg_axis *axis, double top, double bottom, const char *words);
void dtp_svg_y_axis(FILE *file, const struct dtp_svg_axis *axis, double left, double right, const char *words);

#endif
