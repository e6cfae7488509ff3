#include "runs/leave_one_out.h"

#include "runs/constant_effects.h"
#include "runs/constant_fit.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

const char *dtp_without_text(enum dtp_without how)
{
    static const char *const texts[] = {"fitted", "believed", "kept"};
    return texts[how];
}

/* ---- who moves what ---------------------------------------------------------------------------------------------- */

#define MOVES_STEP 1u
#define MOVES_MEMORY 2u /* of a kind that was measured of the run */

struct study {
    const struct dtp_scored_runs *runs;
    const struct dtp_predictor *predictor, *response;
    struct dtp_prediction *before; /* the response's, with the shipped constants */
    struct dtp_prediction *now;
    unsigned char *moves; /* [constant][run]: MOVES_...; of constants that were made with runs */
    size_t *own;          /* runs of one source */
    double *errors_pct;
};

/* Simulations have a deviation between ranks of their own; the other kind of prediction does not read it. */
static bool is_read(const struct study *s, enum dtp_constant constant)
{
    bool simulated = strcmp(s->predictor->name, "simulated") == 0;
    return constant != (simulated ? DTP_CONSTANT_rank_speed_deviation : DTP_CONSTANT_simulated_rank_deviation);
}

static unsigned char *moves_of(const struct study *s, enum dtp_constant constant)
{
    return s->moves + (size_t)constant * s->runs->count;
}

static bool measured_memory_moved(const struct dtp_scored_run *run, const struct dtp_prediction *before,
                                  const struct dtp_prediction *now)
{
    for (int k = 0; k < DTP_RUN_MEMORY_COUNT; k++) {
        enum dtp_run_memory kind = (enum dtp_run_memory)k;
        if (run->measured_bytes[k] > 0 &&
            dtp_figure_moved(dtp_backtest_predicted_memory(before, kind), dtp_backtest_predicted_memory(now, kind)))
            return true;
    }
    return false;
}

static enum dtp_status find_moves(struct study *s, struct dtp_faults *faults)
{
    size_t count = s->runs->count;
    enum dtp_status status = dtp_scored_runs_predict(s->runs, NULL, count, s->response, NULL, 0, 0, s->before, faults);
    for (int c = 0; c < DTP_CONSTANT_COUNT && status == DTP_OK; c++) {
        enum dtp_constant constant = (enum dtp_constant)c;
        if (!dtp_calibration_rows[c].runs || !is_read(s, constant))
            continue;
        dtp_constant_take(constant, DTP_CONSTANT_TIMES * dtp_calibration_rows[c].value);
        status = dtp_scored_runs_predict(s->runs, NULL, count, s->response, NULL, 0, 0, s->now, faults);
        for (size_t i = 0; i < count; i++)
            moves_of(s, constant)[i] =
                (unsigned char)((dtp_step_moved(&s->before[i], &s->now[i]) ? MOVES_STEP : 0) |
                                (measured_memory_moved(&s->runs->runs[i], &s->before[i], &s->now[i]) ? MOVES_MEMORY
                                                                                                     : 0));
        dtp_calibration_restore();
    }
    return status;
}

/* What a constant can be fitted to: tokens/s where it moves any step time, else memory. */
static enum dtp_fit_target target_of(const struct study *s, enum dtp_constant constant)
{
    for (size_t i = 0; i < s->runs->count; i++)
        if (moves_of(s, constant)[i] & MOVES_STEP)
            return DTP_FIT_THROUGHPUT;
    return DTP_FIT_MEMORY;
}

/* Runs of other sources that tell something of it. */
static size_t count_telling(const struct study *s, enum dtp_constant constant, size_t left_out)
{
    bool throughput = target_of(s, constant) == DTP_FIT_THROUGHPUT;
    size_t count = 0;
    for (size_t i = 0; i < s->runs->count; i++) {
        const struct dtp_scored_run *run = &s->runs->runs[i];
        bool measured = !throughput || run->measured_tokens_per_s_per_gpu > 0;
        count += run->source != left_out && measured &&
                 (moves_of(s, constant)[i] & (throughput ? MOVES_STEP : MOVES_MEMORY));
    }
    return count;
}

/* ---- one source -------------------------------------------------------------------------------------------------- */

/* Gives up what rests on the source's runs; constants that are believed are set, those to be fitted begin there. */
static void give_up(const struct study *s, size_t source, struct dtp_left_out *out)
{
    for (int c = 0; c < DTP_CONSTANT_COUNT; c++) {
        enum dtp_constant constant = (enum dtp_constant)c;
        if (!dtp_constant_is_of(constant, out->source) || !is_read(s, constant))
            continue;
        struct dtp_given_up *g = &out->given_up[out->given_up_count++];
        double believed = dtp_constant_otherwise(constant, NULL);
        *g = (struct dtp_given_up){.constant = constant,
                                   .value = isnan(believed) ? dtp_calibration_rows[c].value : believed,
                                   .runs = count_telling(s, constant, source)};
        g->how = g->runs > 0 ? DTP_WITHOUT_FITTED : isnan(believed) ? DTP_WITHOUT_KEPT : DTP_WITHOUT_BELIEVED;
        dtp_constant_take(constant, g->value);
    }
}

static enum dtp_status fit_anew(const struct study *s, size_t source, enum dtp_fit_target target,
                                struct dtp_left_out *out, struct dtp_faults *faults)
{
    enum dtp_constant constants[DTP_CONSTANT_COUNT];
    double values[DTP_CONSTANT_COUNT];
    struct dtp_constant_fit fit = {.runs = s->runs,
                                   .left_out = source,
                                   .target = target,
                                   .response = s->response,
                                   .before = s->before,
                                   .constants = constants};
    for (size_t i = 0; i < out->given_up_count; i++) {
        const struct dtp_given_up *g = &out->given_up[i];
        if (g->how != DTP_WITHOUT_FITTED || target_of(s, g->constant) != target)
            continue;
        constants[fit.count] = g->constant;
        values[fit.count++] = g->value;
    }
    enum dtp_status status = dtp_constants_fit(&fit, values, faults);
    for (size_t i = 0, k = 0; i < out->given_up_count && k < fit.count; i++)
        if (out->given_up[i].constant == constants[k])
            out->given_up[i].value = values[k++];
    return status;
}

/* Of the source's runs as they were read (`now` NULL) or as they are predicted now. */
static struct dtp_error_statistics throughput_errors(const struct study *s, size_t count,
                                                     const struct dtp_prediction *now)
{
    for (size_t i = 0; i < count; i++) {
        const struct dtp_scored_run *run = &s->runs->runs[s->own[i]];
        const struct dtp_prediction *p = now ? &now[i] : &run->shipped;
        double measured = run->measured_tokens_per_s_per_gpu;
        s->errors_pct[i] = measured > 0 ? 100 * (p->throughput.tokens_per_s_per_gpu / measured - 1) : (double)NAN;
    }
    return dtp_error_statistics(s->errors_pct, count);
}

static struct dtp_error_statistics memory_errors(const struct study *s, size_t count, const struct dtp_prediction *now,
                                                 enum dtp_run_memory kind)
{
    for (size_t i = 0; i < count; i++) {
        const struct dtp_scored_run *run = &s->runs->runs[s->own[i]];
        double predicted = dtp_backtest_predicted_memory(now ? &now[i] : &run->shipped, kind);
        double measured = run->measured_bytes[kind];
        s->errors_pct[i] = measured > 0 ? 100 * (predicted / measured - 1) : (double)NAN;
    }
    return dtp_error_statistics(s->errors_pct, count);
}

static enum dtp_status score(const struct study *s, size_t source, struct dtp_left_out *out, struct dtp_faults *faults)
{
    size_t count = 0;
    for (size_t i = 0; i < s->runs->count; i++)
        if (s->runs->runs[i].source == source)
            s->own[count++] = i;
    enum dtp_status status = dtp_scored_runs_predict(s->runs, s->own, count, s->predictor, NULL, 0, 0, s->now, faults);
    if (status != DTP_OK)
        return status;
    out->run_count = count;
    out->shipped = throughput_errors(s, count, NULL);
    out->left_out = throughput_errors(s, count, s->now);
    for (int k = 0; k < DTP_RUN_MEMORY_COUNT; k++) {
        out->memory_shipped[k] = memory_errors(s, count, NULL, (enum dtp_run_memory)k);
        out->memory_left_out[k] = memory_errors(s, count, s->now, (enum dtp_run_memory)k);
    }
    return DTP_OK;
}

static enum dtp_status leave_out(const struct study *s, size_t source, struct dtp_left_out *out,
                                 struct dtp_faults *faults)
{
    *out = (struct dtp_left_out){.given_up_count = 0};
    snprintf(out->source, sizeof out->source, "%s", s->runs->sources[source].name);
    give_up(s, source, out);
    enum dtp_status status = fit_anew(s, source, DTP_FIT_THROUGHPUT, out, faults);
    if (status == DTP_OK)
        status = fit_anew(s, source, DTP_FIT_MEMORY, out, faults);
    if (status == DTP_OK)
        status = score(s, source, out, faults);
    dtp_calibration_restore();
    return status;
}

/* ---- the whole --------------------------------------------------------------------------------------------------- */

static enum dtp_status leave_each_out(const struct study *s, const struct dtp_watch *watch,
                                      struct dtp_leave_one_out *out, struct dtp_faults *faults)
{
    double shipped = 0, left_out = 0, scored = 0;
    enum dtp_status status = DTP_OK;
    for (size_t i = 0; i < s->runs->source_count && status == DTP_OK; i++) {
        if (watch && watch->told && !watch->told(watch->context, i, s->runs->source_count))
            return DTP_NO;
        struct dtp_left_out *source = &out->sources[out->source_count++];
        status = leave_out(s, i, source, faults);
        if (source->shipped.count == 0)
            continue;
        shipped += source->shipped.median_abs_pct;
        left_out += source->left_out.median_abs_pct;
        scored++;
    }
    out->macro_shipped_pct = scored > 0 ? shipped / scored : (double)NAN;
    out->macro_left_out_pct = scored > 0 ? left_out / scored : (double)NAN;
    return status;
}

static enum dtp_status run(const struct dtp_scored_runs *runs, const struct dtp_predictor *predictor,
                           const struct dtp_predictor *response, const struct dtp_watch *watch,
                           struct dtp_leave_one_out *out, struct dtp_faults *faults)
{
    struct study s = {.runs = runs,
                      .predictor = predictor,
                      .response = response,
                      .before = malloc(runs->count * sizeof *s.before),
                      .now = malloc(runs->count * sizeof *s.now),
                      .moves = calloc(runs->count, DTP_CONSTANT_COUNT),
                      .own = malloc(runs->count * sizeof *s.own),
                      .errors_pct = malloc(runs->count * sizeof *s.errors_pct)};
    out->fidelity = predictor->name;
    out->sources = calloc(runs->source_count, sizeof *out->sources);
    enum dtp_status status = s.before && s.now && s.moves && s.own && s.errors_pct && out->sources
                                 ? DTP_OK
                                 : dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "out of memory");
    if (status == DTP_OK)
        status = find_moves(&s, faults);
    if (status == DTP_OK)
        status = leave_each_out(&s, watch, out, faults);
    free(s.before);
    free(s.now);
    free(s.moves);
    free(s.own);
    free(s.errors_pct);
    return status;
}

enum dtp_status dtp_leave_one_out_run(const char *const *paths, size_t path_count,
                                      const struct dtp_predictor *predictor, const struct dtp_predictor *response,
                                      const struct dtp_catalog *catalog, const struct dtp_watch *watch,
                                      struct dtp_leave_one_out **out, struct dtp_faults *faults)
{
    struct dtp_scored_runs runs;
    *out = NULL;
    enum dtp_status status = dtp_scored_runs_read(paths, path_count, predictor, catalog, &runs, faults);
    if (status == DTP_OK && runs.source_count < 2)
        status = dtp_fault(faults, DTP_BAD_INPUT, path_count ? paths[0] : NULL, 0,
                           "leaving one source out takes runs of at least two that can be scored; name more tables");
    struct dtp_leave_one_out *result = status == DTP_OK ? calloc(1, sizeof *result) : NULL;
    if (status == DTP_OK && !result)
        status = dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "out of memory");
    if (status == DTP_OK)
        status = dtp_scored_runs_prepare(&runs, response, faults);
    if (status == DTP_OK)
        status = run(&runs, predictor, response, watch, result, faults);
    if (status == DTP_OK)
        *out = result;
    else
        dtp_leave_one_out_destroy(result);
    dtp_scored_runs_destroy(&runs);
    return status;
}

void dtp_leave_one_out_destroy(struct dtp_leave_one_out *result)
{
    if (!result)
        return;
    free(result->sources);
    free(result);
}
