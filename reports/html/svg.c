#include "html/svg.h"

#include "html/html.h"

void dtp_svg_begin(FILE *file, const char *title, double height)
{
    dtp_html_format(file, "<div class=\"scroll\" role=\"region\" aria-label=\"%s\" tabindex=\"0\">\n", title);
    fprintf(file, "<svg viewBox=\"0 0 %d %.0f\" role=\"img\" aria-label=\"", DTP_SVG_WIDTH, height);
    dtp_html_text(file, title);
    fputs("\">\n", file);
}

void dtp_svg_end(FILE *file)
{
    fputs("</svg></div>\n", file);
}

void dtp_svg_text(FILE *file, double x, double y, const char *anchor, const char *text)
{
    fprintf(file, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\">", x, y, anchor);
    dtp_html_text(file, text);
    fputs("</text>\n", file);
}

void dtp_svg_line(FILE *file, const char *class, double x1, double y1, double x2, double y2)
{
    fprintf(file, "<line class=\"%s\" x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\"/>\n", class, x1, y1, x2, y2);
}

void dtp_svg_x_axis(FILE *file, const struct dtp_svg_axis *axis, double top, double bottom, const char *words)
{
    char number[32];
    for (size_t i = 0; i < axis->tick_count; i++) {
        double x = dtp_svg_place(axis, axis->ticks[i]);
        dtp_svg_line(file, "gr", x, top, x, bottom);
        dtp_svg_text(file, x, bottom + 18, "middle", dtp_svg_number(axis->ticks[i], number, sizeof number));
    }
    dtp_svg_line(file, "ax", axis->from, bottom, axis->to, bottom);
    dtp_svg_text(file, (axis->from + axis->to) / 2, bottom + 38, "middle", words);
}

void dtp_svg_y_axis(FILE *file, const struct dtp_svg_axis *axis, double left, double right, const char *words)
{
    char number[32];
    for (size_t i = 0; i < axis->tick_count; i++) {
        double y = dtp_svg_place(axis, axis->ticks[i]);
        dtp_svg_line(file, "gr", left, y, right, y);
        dtp_svg_text(file, left - 8, y + 4, "end", dtp_svg_number(axis->ticks[i], number, sizeof number));
    }
    dtp_svg_line(file, "ax", left, axis->from, left, axis->to);
    dtp_svg_text(file, 4, axis->to - 14, "start", words);
}
