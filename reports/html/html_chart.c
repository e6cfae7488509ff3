/* Charts of a page: data from a table, drawing, figures. */
#include "html/html.h"
#include "html/html_report.h"
#include "html/svg_chart.h"

#include <math.h>
#include <string.h>

static void draw_bars(const struct dtp_chart_data *data, FILE *file)
{
    struct dtp_svg_bars memory = {"Memory at the peak, by owner", dtp_chart_memory_parts, "capacity",
                                  "GiB on the fullest GPU", 0x1p30};
    struct dtp_svg_bars step = {"What the time of a step goes into", dtp_chart_step_parts, NULL,
                                "ms of one optimizer step", 1e-3};
    double longest = 0;
    for (size_t i = 0; i < data->row_count; i++)
        longest = fmax(longest, data->rows[i].value[0]);
    if (longest > 10 && data->chart == DTP_CHART_STEP) {
        step.unit = "s of one optimizer step";
        step.divisor = 1;
    }
    dtp_svg_bars(data, data->chart == DTP_CHART_STEP ? &step : &memory, file);
}

static void draw_scaling(const struct dtp_chart_data *data, FILE *file)
{
    struct dtp_svg_lines rate = {.title = "Tokens per second against GPUs",
                                 .x_words = "GPUs",
                                 .y_words = "tokens/s of the whole job; dotted: proportional to GPUs",
                                 .y = 1,
                                 .y_divisor = 1,
                                 .x_log2 = true,
                                 .y_log = true,
                                 .thin = 3,
                                 .level = NAN,
                                 .joined = -1};
    struct dtp_svg_lines efficiency = {.title = "Scaling efficiency against GPUs",
                                       .x_words = "GPUs",
                                       .y_words = "scaling efficiency, %",
                                       .y = 2,
                                       .y_divisor = 0.01,
                                       .x_log2 = true,
                                       .thin = -1,
                                       .level = 100,
                                       .level_words = "ideal",
                                       .joined = -1};
    dtp_svg_lines(data, &rate, file);
    dtp_svg_lines(data, &efficiency, file);
}

static void draw_micro_batch(const struct dtp_chart_data *data, FILE *file)
{
    char words[64];
    double capacity = data->rows[0].value[2];
    snprintf(words, sizeof words, "capacity %.1f GiB", capacity / 0x1p30);
    for (size_t i = 0; i < data->row_count; i++)
        if (data->rows[i].value[2] != capacity)
            capacity = NAN; /* cards of several sizes: no one line */
    struct dtp_svg_lines style = {.title = "Device memory against micro batch",
                                  .x_words = "micro batch, sequences",
                                  .y_words = "device memory at the peak, GiB",
                                  .y = 1,
                                  .y_divisor = 0x1p30,
                                  .x_log2 = true,
                                  .thin = -1,
                                  .level = capacity / 0x1p30,
                                  .level_words = words,
                                  .joined = -1};
    dtp_svg_lines(data, &style, file);
}

static void draw_points(const struct dtp_chart_data *data, FILE *file)
{
    bool training = strcmp(data->columns[0], "training_days") == 0;
    struct dtp_svg_lines backtest = {.title = "Predicted against measured tokens/s, band of 10 %",
                                     .x_words = "measured tokens/s per GPU",
                                     .y_words = "predicted tokens/s per GPU; grey: within 10 %",
                                     .y = 1,
                                     .y_divisor = 1,
                                     .x_log = true,
                                     .y_log = true,
                                     .points = true,
                                     .thin = -1,
                                     .level = NAN,
                                     .band_fraction = 0.1,
                                     .joined = -1};
    struct dtp_svg_lines pareto = {
        .title = "Time against money; the line joins the plans that no other beats in both",
        .x_words = training ? "days of the training, failures included" : "days for 10^12 tokens",
        .y_words = training ? "US dollars for the training; the line joins what no plan beats in both"
                            : "US dollars for 10^12 tokens; the line joins what no plan beats in both",
        .y = 1,
        .y_divisor = 1,
        .x_log = true,
        .y_log = true,
        .points = true,
        .thin = -1,
        .level = NAN,
        .joined = 2};
    dtp_svg_lines(data, data->chart == DTP_CHART_PARETO ? &pareto : &backtest, file);
}

static void draw(const struct dtp_chart_data *data, FILE *file)
{
    switch (data->chart) {
    case DTP_CHART_STRATEGIES:
    case DTP_CHART_STEP: draw_bars(data, file); break;
    case DTP_CHART_SCALING: draw_scaling(data, file); break;
    case DTP_CHART_MICRO_BATCH: draw_micro_batch(data, file); break;
    case DTP_CHART_PARETO:
    case DTP_CHART_BACKTEST: draw_points(data, file); break;
    case DTP_CHART_MEMORY:
    case DTP_CHART_TIMELINE:
    case DTP_CHART_SCHEDULE:
    case DTP_CHART_BANDWIDTH:
    case DTP_CHART_DECISIONS:
    case DTP_CHART_MACHINE_RESIDUALS:
    case DTP_CHART_COUNT: break; /* on no page */
    }
}

void dtp_html_chart_data(const struct dtp_chart_data *data, const char *id, FILE *file)
{
    fprintf(file, "<figure class=\"%s\">\n", dtp_chart_name(data->chart));
    draw(data, file);
    if (data->row_count <= 64)
        dtp_html_chart_figures(file, id, data);
    fputs("</figure>\n", file);
}

void dtp_html_chart(enum dtp_chart chart, const struct dtp_table *table, const char *id, FILE *file)
{
    struct dtp_faults why = {0};
    struct dtp_chart_data data;
    if (!table)
        return;
    if (dtp_chart_data_read(chart, table, NULL, 0, &data, &why) != DTP_OK) {
        dtp_html_format(file, "<p class=\"soft\">Not drawn: %s.</p>\n", why.text[0]);
        return;
    }
    dtp_html_chart_data(&data, id, file);
    dtp_chart_data_destroy(&data);
}
