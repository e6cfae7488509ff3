#include "runs/leave_one_out.h"

#include "cost/calibration.h"
#include "cost/op_cost.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- the closed form at a deviation ------------------------------------------------------------------------------ */

/* Its step is linear in the factor of the slowest rank, which stretches compute and optimizer. */
static enum dtp_status predict_closed_at(const void *context, const struct dtp_job *job, struct dtp_prediction *out,
                                         struct dtp_faults *faults)
{
    struct dtp_predictor formulas = dtp_predictor_closed();
    enum dtp_status status = formulas.predict(formulas.context, job, out, faults);
    if (status != DTP_OK)
        return status;
    double shipped = dtp_slowest_rank_factor(job->cluster.gpus, dtp_calibration.rank_speed_deviation);
    double factor = dtp_slowest_rank_factor(job->cluster.gpus, *(const double *)context);
    double step_s = out->time.step_s + (factor - shipped) * (out->time.compute_s + out->time.optimizer_s);
    out->throughput.tokens_per_s_per_gpu *= out->time.step_s / step_s;
    out->time.step_s = step_s;
    return DTP_OK;
}

static struct dtp_predictor closed_at(const double *deviation)
{
    return (struct dtp_predictor){.name = "closed", .context = deviation, .predict = predict_closed_at};
}

struct dtp_deviating dtp_deviating_closed(void)
{
    return (struct dtp_deviating){"closed", "rank_speed_deviation", dtp_calibration.rank_speed_deviation, closed_at};
}

/* ---- rows as functions of the deviation -------------------------------------------------------------------------- */

/* A step's length bends little with the deviation: exact at these, linear between them. */
#define KNOTS 5
static const double knot[KNOTS] = {0, 0.03, 0.06, 0.09, 0.12};

struct row {
    size_t source;
    double measured_tokens_per_s, seconds_per_token[KNOTS];
};

struct rows {
    struct row *row;
    size_t count, room;
    double *scratch; /* one double a row */
};

static double error_pct(const struct row *row, double deviation)
{
    int i = 0;
    while (i < KNOTS - 2 && deviation > knot[i + 1])
        i++;
    double share = (deviation - knot[i]) / (knot[i + 1] - knot[i]);
    double predicted = row->seconds_per_token[i] + share * (row->seconds_per_token[i + 1] - row->seconds_per_token[i]);
    return 100 * (1 / predicted / row->measured_tokens_per_s - 1);
}

static struct dtp_error_statistics errors_of(const struct rows *rows, size_t source, double deviation)
{
    size_t count = 0;
    for (size_t i = 0; i < rows->count; i++)
        if (rows->row[i].source == source)
            rows->scratch[count++] = error_pct(&rows->row[i], deviation);
    return dtp_error_statistics(rows->scratch, count);
}

/* ---- the fit ----------------------------------------------------------------------------------------------------- */

#define FIT_STEP 0.001

/* Mean over all sources but `left_out` of their median absolute errors. */
static double macro_pct(const struct rows *rows, size_t source_count, size_t left_out, double deviation)
{
    double sum = 0;
    size_t count = 0;
    for (size_t source = 0; source < source_count; source++) {
        if (source == left_out)
            continue;
        sum += errors_of(rows, source, deviation).median_abs_pct;
        count++;
    }
    return count ? sum / (double)count : (double)NAN;
}

/* Medians have kinks and more than one minimum: every deviation is tried. */
static double fit(const struct rows *rows, size_t source_count, size_t left_out)
{
    double best = NAN, least = INFINITY;
    for (int i = 0; i * FIT_STEP <= knot[KNOTS - 1]; i++) {
        double macro = macro_pct(rows, source_count, left_out, i * FIT_STEP);
        if (macro < least) {
            least = macro;
            best = i * FIT_STEP;
        }
    }
    return best;
}

/* ---- reading ----------------------------------------------------------------------------------------------------- */

static size_t find_source(struct dtp_leave_one_out *out, const char *name)
{
    size_t i = 0;
    while (i < out->source_count && strcmp(out->sources[i].source, name) != 0)
        i++;
    if (i == out->source_count)
        snprintf(out->sources[out->source_count++].source, sizeof out->sources[0].source, "%s", name);
    return i;
}

static bool make_room(struct rows *rows, struct dtp_leave_one_out *out, const struct dtp_backtest *backtest)
{
    size_t room = rows->room + backtest->row_count, sources = out->source_count + backtest->source_count;
    struct row *row = realloc(rows->row, room * sizeof *row);
    rows->row = row ? row : rows->row;
    double *scratch = realloc(rows->scratch, room * sizeof *scratch);
    rows->scratch = scratch ? scratch : rows->scratch;
    struct dtp_left_out *left_out = realloc(out->sources, sources * sizeof *left_out);
    out->sources = left_out ? left_out : out->sources;
    rows->room = room;
    return row && scratch && left_out;
}

/* Rows scored at the first knot are scored at all: what is refused does not depend on the deviation. */
static void take_knot(struct rows *rows, struct dtp_leave_one_out *out, const struct dtp_backtest *backtest,
                      size_t first, int k)
{
    size_t at = first;
    for (size_t i = 0; i < backtest->row_count; i++) {
        const struct dtp_backtest_row *row = &backtest->rows[i];
        if (isnan(row->error_pct))
            continue;
        struct row *kept = &rows->row[at++];
        if (k == 0)
            *kept = (struct row){.source = find_source(out, backtest->sources[row->source_group].name),
                                 .measured_tokens_per_s = row->measured_tokens_per_s_per_gpu};
        kept->seconds_per_token[k] = 1 / row->forecast.prediction.throughput.tokens_per_s_per_gpu;
    }
    rows->count = at;
}

static enum dtp_status read_table(const char *path, const struct dtp_deviating *predictor,
                                  const struct dtp_catalog *catalog, struct rows *rows, struct dtp_leave_one_out *out,
                                  struct dtp_faults *faults)
{
    size_t first = rows->count;
    for (int k = 0; k < KNOTS; k++) {
        struct dtp_predictor at = predictor->at(&knot[k]);
        struct dtp_backtest *backtest;
        enum dtp_status status = dtp_backtest_run_only(path, NULL, &at, catalog, &backtest, faults);
        if (status == DTP_OK && k == 0 && !make_room(rows, out, backtest))
            status = dtp_fault(faults, DTP_ENVIRONMENT, path, 0, "out of memory");
        if (status == DTP_OK)
            take_knot(rows, out, backtest, first, k);
        dtp_backtest_destroy(backtest);
        if (status != DTP_OK)
            return status;
    }
    return DTP_OK;
}

/* ---- the whole --------------------------------------------------------------------------------------------------- */

static void leave_each_out(const struct rows *rows, struct dtp_leave_one_out *out)
{
    double refitted = 0, shipped = 0, sources = (double)out->source_count;
    out->fitted = fit(rows, out->source_count, SIZE_MAX);
    for (size_t i = 0; i < out->source_count; i++) {
        struct dtp_left_out *source = &out->sources[i];
        source->deviation = fit(rows, out->source_count, i);
        source->shipped = errors_of(rows, i, out->predictor.shipped);
        source->refitted = errors_of(rows, i, source->deviation);
        refitted += source->refitted.median_abs_pct;
        shipped += source->shipped.median_abs_pct;
    }
    out->macro_refitted_pct = refitted / sources;
    out->macro_shipped_pct = shipped / sources;
}

enum dtp_status dtp_leave_one_out_run(const char *const *paths, size_t path_count,
                                      const struct dtp_deviating *predictor, const struct dtp_catalog *catalog,
                                      struct dtp_leave_one_out **out, struct dtp_faults *faults)
{
    struct rows rows = {0};
    *out = NULL;
    struct dtp_leave_one_out *result = calloc(1, sizeof *result);
    enum dtp_status status = result ? DTP_OK : dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "out of memory");
    if (result)
        result->predictor = *predictor;
    for (size_t i = 0; i < path_count && status == DTP_OK; i++)
        status = read_table(paths[i], predictor, catalog, &rows, result, faults);
    if (status == DTP_OK && result->source_count < 2)
        status = dtp_fault(faults, DTP_BAD_INPUT, path_count ? paths[0] : NULL, 0,
                           "leaving one source out takes runs of at least two that can be scored; name more tables");
    if (status == DTP_OK) {
        leave_each_out(&rows, result);
        *out = result;
    } else {
        dtp_leave_one_out_destroy(result);
    }
    free(rows.row);
    free(rows.scratch);
    return status;
}

void dtp_leave_one_out_destroy(struct dtp_leave_one_out *result)
{
    if (!result)
        return;
    free(result->sources);
    free(result);
}
