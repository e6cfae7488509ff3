#include "runs/constant_effects.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

bool dtp_figure_moved(double before, double after)
{
    return !(fabs(after - before) <= DTP_CONSTANT_MOVES * fabs(before));
}

bool dtp_step_moved(const struct dtp_prediction *before, const struct dtp_prediction *after)
{
    return dtp_figure_moved(before->time.step_s, after->time.step_s);
}

static bool memory_moved(const struct dtp_prediction *before, const struct dtp_prediction *after)
{
    const struct dtp_memory *a = &before->memory, *b = &after->memory;
    return dtp_figure_moved((double)a->allocated_peak_bytes, (double)b->allocated_peak_bytes) ||
           dtp_figure_moved((double)a->reserved_peak_bytes, (double)b->reserved_peak_bytes) ||
           dtp_figure_moved((double)a->device_peak_bytes, (double)b->device_peak_bytes) ||
           dtp_figure_moved((double)a->after_init_bytes, (double)b->after_init_bytes) ||
           dtp_figure_moved((double)a->host_bytes, (double)b->host_bytes);
}

/* One after the other: what has been predicted is counted and forgotten. */
struct count {
    const struct dtp_scored_runs *runs;
    const struct dtp_predictor *predictor;
    const struct dtp_watch *watch;
    struct dtp_prediction *predictions;
    size_t *which;
    size_t done, all;
};

static enum dtp_status count_moved(struct count *c, const size_t *which, size_t count, struct dtp_constant_effect *out,
                                   struct dtp_faults *faults)
{
    enum dtp_status status =
        dtp_scored_runs_predict(c->runs, which, count, c->predictor, c->watch, c->done, c->all, c->predictions, faults);
    c->done += count;
    *out = (struct dtp_constant_effect){0, 0};
    for (size_t i = 0; i < count && status == DTP_OK; i++) {
        const struct dtp_prediction *before = &c->runs->runs[which ? which[i] : i].shipped;
        out->step_runs += dtp_step_moved(before, &c->predictions[i]);
        out->memory_runs += memory_moved(before, &c->predictions[i]);
    }
    return status;
}

/* The rate of a GPU is in the jobs that run on it. */
static enum dtp_status count_gpu(struct count *c, const struct dtp_gpu *gpu, struct dtp_constant_effect *out,
                                 struct dtp_faults *faults)
{
    size_t count = 0;
    for (size_t i = 0; i < c->runs->count; i++)
        if (strcmp(c->runs->runs[i].job.cluster.gpu.key, gpu->key) == 0)
            c->which[count++] = i;
    for (size_t i = 0; i < count; i++)
        c->runs->runs[c->which[i]].job.cluster.gpu.matmul_fraction = DTP_CONSTANT_TIMES * gpu->matmul_fraction;
    enum dtp_status status = count_moved(c, c->which, count, out, faults);
    for (size_t i = 0; i < count; i++)
        c->runs->runs[c->which[i]].job.cluster.gpu.matmul_fraction = gpu->matmul_fraction;
    return status;
}

enum dtp_status dtp_constant_effects_count(const struct dtp_scored_runs *runs, const struct dtp_predictor *predictor,
                                           const struct dtp_catalog *catalog, const struct dtp_watch *watch,
                                           struct dtp_constant_effects *out, struct dtp_faults *faults)
{
    struct count c = {.runs = runs,
                      .predictor = predictor,
                      .watch = watch,
                      .predictions = malloc((runs->count + 1) * sizeof *c.predictions),
                      .which = malloc((runs->count + 1) * sizeof *c.which),
                      .all = (DTP_CONSTANT_COUNT + 1) * runs->count}; /* each run has one GPU */
    *out = (struct dtp_constant_effects){
        .runs = runs->count, .matmul_fractions = calloc(catalog->gpu_count + 1, sizeof *out->matmul_fractions)};
    enum dtp_status status = c.predictions && c.which && out->matmul_fractions
                                 ? DTP_OK
                                 : dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "out of memory");
    for (int i = 0; i < DTP_CONSTANT_COUNT && status == DTP_OK; i++) {
        enum dtp_constant constant = (enum dtp_constant)i;
        dtp_calibration_set(constant, DTP_CONSTANT_TIMES * dtp_calibration_rows[i].value);
        status = count_moved(&c, NULL, runs->count, &out->constants[i], faults);
        dtp_calibration_restore();
    }
    for (size_t i = 0; i < catalog->gpu_count && status == DTP_OK; i++)
        status = count_gpu(&c, &catalog->gpus[i], &out->matmul_fractions[i], faults);
    free(c.predictions);
    free(c.which);
    return status;
}

void dtp_constant_effects_destroy(struct dtp_constant_effects *effects)
{
    free(effects->matmul_fractions);
    effects->matmul_fractions = NULL;
}
