#include "html/html.h"

#include <math.h>
#include <stdarg.h>
#include <string.h>

void dtp_html_text(FILE *file, const char *text)
{
    while (*text) {
        size_t bytes = dtp_printable_bytes(text);
        switch (*text) {
        case '&': fputs("&amp;", file); break;
        case '<': fputs("&lt;", file); break;
        case '>': fputs("&gt;", file); break;
        case '"': fputs("&quot;", file); break;
        case '\'': fputs("&#39;", file); break;
        case '\n': fputc('\n', file); break;
        default:
            if (bytes)
                fwrite(text, 1, bytes, file);
            else
                fputs("\xef\xbf\xbd", file);
        }
        text += bytes ? bytes : 1;
    }
}

void dtp_html_format(FILE *file, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    for (; *format; format++)
        if (format[0] == '%' && format[1] == 's') {
            dtp_html_text(file, va_arg(arguments, const char *));
            format++;
        } else if (format[0] == '%' && format[1] == '%') {
            fputc('%', file);
            format++;
        } else {
            fputc(*format, file);
        }
    va_end(arguments);
}

/* ---- page -------------------------------------------------------------------------------------------------------- */

void dtp_html_begin(FILE *file, const char *title)
{
    fputs("<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
          "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
          "<meta name=\"color-scheme\" content=\"light dark\">\n"
          "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; "
          "script-src 'unsafe-inline'\">\n",
          file);
    dtp_html_format(file, "<title>%s</title>\n<style>\n", title);
    fputs(dtp_html_style, file);
    fputs("</style>\n</head>\n<body>\n<main>\n", file);
}

void dtp_html_end(FILE *file)
{
    fputs("</main>\n<script>\n", file);
    fputs(dtp_html_script, file);
    fputs("</script>\n</body>\n</html>\n", file);
}

void dtp_html_section(FILE *file, const char *id, const char *heading)
{
    dtp_html_format(file, "<section id=\"%s\" aria-labelledby=\"%s-h\">\n<h2 id=\"%s-h\">%s</h2>\n", id, id, id,
                    heading);
}

void dtp_html_section_end(FILE *file)
{
    fputs("</section>\n", file);
}

/* ---- tables ------------------------------------------------------------------------------------------------------ */

void dtp_html_table(FILE *file, const char *id, const char *caption, const char *const *columns, size_t count,
                    bool filter)
{
    if (filter)
        dtp_html_format(file,
                        "<p class=\"filter\"><label for=\"%s-f\">Only rows with</label> "
                        "<input type=\"search\" id=\"%s-f\" data-table=\"%s\" aria-controls=\"%s\"> "
                        "<output for=\"%s-f\" aria-live=\"polite\"></output></p>\n",
                        id, id, id, id, id);
    dtp_html_format(file,
                    "<div class=\"scroll\" role=\"region\" aria-label=\"%s\" tabindex=\"0\">\n"
                    "<table id=\"%s\">\n<caption>%s</caption>\n<thead><tr>",
                    caption, id, caption);
    for (size_t i = 0; i < count; i++) {
        bool right = columns[i][0] == '>';
        dtp_html_format(file,
                        "<th scope=\"col\" aria-sort=\"none\" class=\"%s\"><button type=\"button\">%s</button></th>",
                        right ? "n" : "t", columns[i] + right);
    }
    fputs("</tr></thead>\n<tbody>\n", file);
}

void dtp_html_table_end(FILE *file)
{
    fputs("</tbody>\n</table>\n</div>\n", file);
}

void dtp_html_row(FILE *file)
{
    fputs("\n<tr>", file); /* its end tag may be left out */
}

void dtp_html_head_cell(FILE *file, const char *text)
{
    dtp_html_format(file, "<th scope=\"row\">%s</th>", text);
}

void dtp_html_cell(FILE *file, const char *text)
{
    dtp_html_format(file, "<td>%s</td>", text);
}

void dtp_html_word_cell(FILE *file, const char *text)
{
    dtp_html_format(file, "<td class=\"n\">%s</td>", text);
}

void dtp_html_figure_cell(FILE *file, double value, const char *format, ...)
{
    char text[128];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    if (isfinite(value))
        fprintf(file, "<td class=\"n\" data-v=\"%.9g\">", value);
    else
        fputs("<td class=\"n\">", file);
    dtp_html_text(file, isfinite(value) ? text : "\u2013");
    fputs("</td>", file);
}

void dtp_html_chart_figures(FILE *file, const char *id, const struct dtp_chart_data *data)
{
    char names[DTP_CHART_MAX_COLUMNS + 1][64];
    const char *columns[DTP_CHART_MAX_COLUMNS + 1];
    for (size_t i = 0; i <= data->column_count; i++) {
        snprintf(names[i], sizeof names[i], "%s%s", i ? ">" : "", i ? data->columns[i - 1] : data->label_column);
        columns[i] = names[i];
    }
    fputs("<details><summary>The figures behind it</summary>\n", file);
    dtp_html_table(file, id, "Figures of the chart, in the units of their names", columns, data->column_count + 1,
                   false);
    for (size_t row = 0; row < data->row_count; row++) {
        dtp_html_row(file);
        dtp_html_head_cell(file, data->rows[row].label);
        for (size_t i = 0; i < data->column_count; i++) {
            double value = data->rows[row].value[i];
            dtp_html_figure_cell(file, value, value == rint(value) ? "%.0f" : "%.4g", value);
        }
    }
    dtp_html_table_end(file);
    fputs("</details>\n", file);
}
