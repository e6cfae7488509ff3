#include "html/svg_axis.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* 1, 2 or 5 times a power of ten, at least `value`. */
static double round_up(double value)
{
    double power = pow(10, floor(log10(value))), digit = value / power;
    return power * (digit <= 1.0001 ? 1 : digit <= 2.0001 ? 2 : digit <= 5.0001 ? 5 : 10);
}

static void add_tick(struct dtp_svg_axis *axis, double value)
{
    double slack = axis->log ? 1e-9 * value : 1e-9 * (axis->most - axis->least);
    if (axis->tick_count < DTP_SVG_MAX_TICKS && value >= axis->least - slack && value <= axis->most + slack)
        axis->ticks[axis->tick_count++] = value;
}

static void add_linear_ticks(struct dtp_svg_axis *axis, int wanted)
{
    double step = round_up((axis->most - axis->least) / wanted);
    axis->least = floor(axis->least / step + 1e-9) * step;
    axis->most = ceil(axis->most / step - 1e-9) * step;
    for (int i = 0; i <= (int)((axis->most - axis->least) / step + 0.5); i++)
        add_tick(axis, axis->least + i * step);
}

/* Powers of the base; where these are few, of ten also their double and fivefold, where many, every n-th. */
static void add_log_ticks(struct dtp_svg_axis *axis, int base, int wanted)
{
    int first = (int)floor(log(axis->least) / log(base)), last = (int)ceil(log(axis->most) / log(base));
    int every = (last - first) / wanted + 1;
    bool between = base == 10 && last - first <= 3;
    for (int i = first; i <= last; i += every) {
        add_tick(axis, pow(base, i));
        if (between) {
            add_tick(axis, 2 * pow(base, i));
            add_tick(axis, 5 * pow(base, i));
        }
    }
}

struct dtp_svg_axis dtp_svg_axis(double least, double most, int base, int wanted, double from, double to)
{
    struct dtp_svg_axis axis = {.least = least, .most = most, .from = from, .to = to, .log = base > 0};
    if (!(most > least)) { /* one value: in the middle */
        axis.least = base ? least / 2 : fmin(0, least);
        axis.most = base ? least * 2 : least > 0 ? 2 * least : 1;
    }
    if (base)
        add_log_ticks(&axis, base, wanted);
    else
        add_linear_ticks(&axis, wanted);
    return axis;
}

double dtp_svg_place(const struct dtp_svg_axis *axis, double value)
{
    double fraction = axis->log ? log(value / axis->least) / log(axis->most / axis->least)
                                : (value - axis->least) / (axis->most - axis->least);
    return axis->from + fraction * (axis->to - axis->from);
}

/* Whole numbers of few digits are counts, and 1024 GPUs are not 1.02k of them. */
char *dtp_svg_number(double value, char *out, size_t bytes)
{
    static const char *const prefixes[] = {"", "k", "M", "G", "T", "P"};
    double scaled = value, power = 1;
    size_t i = 0;
    while (fabs(scaled) >= 999.5 && i + 1 < sizeof prefixes / sizeof *prefixes) {
        scaled /= 1000;
        power *= 1000;
        i++;
    }
    snprintf(out, bytes, "%.3g", scaled);
    if (value == rint(value) && fabs(value) < 1e6 && strtod(out, NULL) * power != value)
        snprintf(out, bytes, "%.0f", value);
    else
        snprintf(out, bytes, "%.3g%s", scaled, prefixes[i]);
    return out;
}
