/* How good the fits of a machine file are. */
#include "machine/measured_parts.h"

#include <math.h>
#include <stdlib.h>

#define MOST_LEFT_OUT 512 /* rows of a fit, evenly spread: each takes a fit of all the others */

static const char *const matmul_words[][2] = {
#define AS_WORDS(suffix, words, unit) {words, unit},
    DTP_MEASURED_MATMUL_PARAMETERS(AS_WORDS)};
static const char *const attention_words[][2] = {DTP_MEASURED_ATTENTION_PARAMETERS(AS_WORDS)
#undef AS_WORDS
};
static const char *const curve_words[][2] = {{"latency", "s"}, {"rate", "B/s"}};

size_t dtp_measured_quality_count(const struct dtp_measured *measured)
{
    return measured->part_count;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double off(double log_ratio)
{
    return fabs(expm1(log_ratio));
}

/* Sorts. */
static double median(double *values, size_t count)
{
    qsort(values, count, sizeof *values, by_value);
    return count % 2 ? values[count / 2] : (values[count / 2 - 1] + values[count / 2]) / 2;
}

static void name_part(const struct dtp_measured_row *row, struct dtp_measured_quality *out)
{
    const double *x = row->number;
    int at = snprintf(out->what, sizeof out->what, "%s%s%s", dtp_measurement_text(row->measurement),
                      dtp_measurement_is_matmul(row->measurement) ? "" : " ",
                      dtp_measurement_is_matmul(row->measurement) ? "" : row->what);
    char *end = out->what + at;
    size_t room = sizeof out->what - (size_t)at;
    unsigned alignment = DTP_ALIGNED_BYTES;
    if (dtp_measurement_is_matmul(row->measurement))
        alignment = dtp_measured_matmul_alignment(row);
    if (row->dtype != DTP_DTYPE_COUNT && alignment < DTP_ALIGNED_BYTES)
        snprintf(end, room, " %s, aligned to %u bytes", dtp_dtype_text(row->dtype), alignment);
    else if (row->dtype != DTP_DTYPE_COUNT)
        snprintf(end, room, " %s", dtp_dtype_text(row->dtype));
    else if (row->measurement == DTP_MEASUREMENT_COLLECTIVE)
        snprintf(end, room, ", %g ranks, stride %g, nodes %g", x[DTP_MEASURED_ranks], x[DTP_MEASURED_stride],
                 x[DTP_MEASURED_nodes]);
    else if (isfinite(x[DTP_MEASURED_ranks]))
        snprintf(end, room, ", %g at once", x[DTP_MEASURED_ranks]);
}

static void parameters_of(const struct dtp_measured_part *part, struct dtp_measured_quality *out)
{
    bool shape = part->shape.count > 0, attention = part->shape.attention;
    const struct dtp_log_fit *fit = shape ? &part->shape.fit : &part->curve.fit;
    const char *const(*words)[2] = !shape ? curve_words : attention ? attention_words : matmul_words;
    out->parameter_count = !shape ? 2 : attention ? 4 : 6;
    for (int i = 0; i < out->parameter_count; i++) {
        bool inverse = !shape && i == 1; /* seconds per byte, shown as a rate */
        double sign = inverse ? -1 : 1, half = fit->half_width[i];
        out->parameter[i] =
            (struct dtp_measured_parameter){words[i][0], words[i][1], exp(sign * fit->parameter[i]),
                                            exp(sign * fit->parameter[i] - half), exp(sign * fit->parameter[i] + half)};
    }
    out->r2 = fit->r2;
}

/* What the curve says of point i where it is not one of its points. Beyond its ends all points speak, by their fit;
 * between them the two neighbours and their slopes, which follow from one more on each side. */
#define NEIGHBOURS 3
static bool curve_without(const struct dtp_measured_curve *curve, size_t without, double *out_log_s)
{
    bool inside = without > 0 && without + 1 < curve->count;
    size_t first = inside && without > NEIGHBOURS ? without - NEIGHBOURS : 0, count = 0;
    size_t end = inside && curve->count - without > NEIGHBOURS ? without + NEIGHBOURS + 1 : curve->count;
    double *bytes = malloc(2 * (end - first) * sizeof *bytes), *seconds = bytes + (end - first);
    if (!bytes)
        return false;
    for (size_t i = first; i < end; i++)
        if (i != without) {
            bytes[count] = exp(curve->log_bytes[i]);
            seconds[count++] = exp(curve->log_s[i]);
        }
    struct dtp_measured_curve left;
    bool made = dtp_measured_curve_make(bytes, seconds, count, &left, NULL) == DTP_OK;
    *out_log_s = made ? log(dtp_measured_curve_s(&left, exp(curve->log_bytes[without]))) : 0;
    dtp_measured_curve_release(&left);
    free(bytes);
    return made;
}

static bool residuals_of(const struct dtp_measured_part *part, struct dtp_measured_quality *out)
{
    bool shape = part->shape.count > 0, memory = true;
    size_t count = shape ? part->shape.count : part->curve.count;
    const double *residual = shape ? part->shape.residual : part->curve.residual;
    double *values = malloc(count * sizeof *values);
    if (!values)
        return false;
    for (size_t i = 0; i < count; i++)
        values[i] = off(-residual[i]); /* fitted / measured: of the measured time, as machine-residuals draws it */
    out->median_residual = median(values, count);
    out->largest_residual = values[count - 1];
    size_t every = 1 + count / MOST_LEFT_OUT, left_out = 0;
    for (size_t i = 0; i < count && count > 1 && memory; i += every) {
        double log_s = 0;
        if (shape)
            log_s = log(dtp_measured_shape_s(&part->shape, &part->shape.shape[i], i));
        else
            memory = curve_without(&part->curve, i, &log_s);
        values[left_out++] = off(log_s - (shape ? part->shape.log_s : part->curve.log_s)[i]);
    }
    out->left_out_residual = count > 1 ? median(values, left_out) : (double)NAN;
    free(values);
    return memory;
}

bool dtp_measured_quality(const struct dtp_measured *measured, size_t index, struct dtp_measured_quality *out)
{
    const struct dtp_measured_part *part = &measured->part[index];
    *out = (struct dtp_measured_quality){.rows = part->count};
    name_part(part->rows[0], out);
    parameters_of(part, out);
    return residuals_of(part, out);
}

double dtp_measured_fit_s(const struct dtp_measured *measured, size_t index)
{
    const struct dtp_measured_row *row = &measured->rows.row[index];
    for (size_t i = 0; i < measured->part_count; i++) {
        const struct dtp_measured_part *part = &measured->part[i];
        for (size_t j = 0; j < part->count; j++) {
            if (part->rows[j] != row)
                continue;
            if (!part->shape.count)
                return dtp_measured_curve_fit_s(&part->curve, row->number[DTP_MEASURED_bytes]);
            struct dtp_measured_shape shape = dtp_measured_shape_of(row);
            return dtp_measured_shape_fit_s(&part->shape, &shape);
        }
    }
    return (double)NAN;
}
