#include "cli/loss_beside.h"

#include "base/status.h"
#include "runs/run_files.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { STEP, LOSS, NORM, RATE, SECONDS, TOKENS_PER_S, COLUMNS };
#define LAST_LOSSES 10 /* as run_events.c has them */
/* Sums over ranks and half precisions part in the first step already, and by less than this. */
#define FIRST_LOSS_APART 2e-3
#define RATE_APART 1e-6
#define TOKENS_APART 0.02 /* a quotient of printed figures */

/* The first columns of a row. */
static bool read_row(const char *line, double row[COLUMNS])
{
    for (int i = 0; i < COLUMNS; i++) {
        char *end;
        row[i] = strtod(line, &end);
        if ((end == line && i != NORM) || *end != ',') /* a norm that was not asked for is empty */
            return false;
        line = end + 1;
    }
    return true;
}

static FILE *open_log(const char *path, struct dtp_faults *faults)
{
    char line[512];
    FILE *file = fopen(path, "r");
    if (!file) {
        dtp_fault(faults, DTP_BAD_INPUT, path, 0, "cannot be read: %s", strerror(errno));
        return NULL;
    }
    if (fgets(line, sizeof line, file) && strncmp(line, DTP_STEP_LOG_BEGINS, strlen(DTP_STEP_LOG_BEGINS)) == 0)
        return file;
    fclose(file);
    dtp_fault(faults, DTP_BAD_INPUT, path, 1, "is no log of dtplan run --log FILE.csv");
    return NULL;
}

enum dtp_status dtp_loss_beside_check(const char *path, struct dtp_faults *faults)
{
    FILE *file = path ? open_log(path, faults) : NULL;
    if (file)
        fclose(file);
    return !path || file ? DTP_OK : DTP_BAD_INPUT;
}

struct other {
    double first_loss, sum, rate, tokens;
    uint64_t count;
};

static bool apart(double a, double b, double most)
{
    return !(fabs(a - b) <= most * fabs(b));
}

static enum dtp_status judge(const char *path, const struct other *o, const struct dtp_run_outcome *m,
                             struct dtp_faults *faults)
{
    uint64_t asked = m->last_step - m->first_step < LAST_LOSSES ? m->last_step - m->first_step : LAST_LOSSES;
    if (o->count < asked || isnan(o->first_loss))
        return dtp_fault(faults, DTP_BAD_INPUT, path, 0,
                         "--loss-beside: has not all of step %" PRIu64 " and the last %" PRIu64 " up to step %" PRIu64,
                         m->first_step + 1, asked, m->last_step);
    if (apart(o->tokens, (double)m->tokens_per_step, TOKENS_APART))
        return dtp_fault(faults, DTP_BAD_INPUT, path, 0,
                         "--loss-beside: is of steps of %.0f tokens, this run's have %" PRIu64
                         "; compare runs of the same batch",
                         o->tokens, m->tokens_per_step);
    if (apart(o->rate, m->last_rate, RATE_APART))
        return dtp_fault(faults, DTP_BAD_INPUT, path, 0,
                         "--loss-beside: step %" PRIu64 " had a learning rate of %g, of this run %g; compare runs of "
                         "the same --lr, --min-lr, --warmup and --steps",
                         m->last_step, o->rate, m->last_rate);
    if (apart(o->first_loss, m->first_loss, FIRST_LOSS_APART))
        return dtp_fault(faults, DTP_BAD_INPUT, path, 0,
                         "--loss-beside: the loss of step %" PRIu64 " is %.4f there and %.4f here; compare runs of the "
                         "same model, --data and --seed",
                         m->first_step + 1, o->first_loss, m->first_loss);
    return DTP_OK;
}

enum dtp_status dtp_loss_beside_read(const char *path, struct dtp_run_report *report, struct dtp_faults *faults)
{
    const struct dtp_run_outcome *m = report->measured;
    struct other o = {.first_loss = (double)NAN};
    double row[COLUMNS];
    char line[512];
    FILE *file = open_log(path, faults);
    if (!file)
        return DTP_BAD_INPUT;
    while (fgets(line, sizeof line, file) && read_row(line, row)) {
        double last = (double)m->last_step, step = row[STEP];
        if (step > (double)m->first_step && step < (double)m->first_step + 1.5)
            o.first_loss = row[LOSS], o.tokens = row[SECONDS] * row[TOKENS_PER_S];
        if (step > (double)m->first_step && step > last - LAST_LOSSES && step <= last)
            o.sum += row[LOSS], o.count++, o.rate = row[RATE];
    }
    fclose(file);
    enum dtp_status status = judge(path, &o, m, faults);
    if (status == DTP_OK)
        report->beside = (struct dtp_loss_beside){path, o.sum / (double)o.count};
    return status;
}
