#include "observed/observed.h"

#include "base/quantile.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define WARM_UP_STEPS 2
#define MOST_STEPS 100000u

/* torchtitan (components/metrics.py): "step:  10  loss: 7.9  ...  memory: 34.05GiB(35.84%)  tps: 6,231  tflops: ..."
 * Megatron-LM (training.py, training_log): " iteration 10/ 100 | ... | elapsed time per iteration (ms): 712.3 | ..." */
static const char *const titan_marks[] = {"tps: ", "memory: "};
static const char megatron_mark[] = "elapsed time per iteration (ms): ";

/* Colours are left out, digits may be parted by commas. */
static bool number_behind(const char *line, const char *mark, double *out)
{
    const char *at = strstr(line, mark);
    char digits[40];
    size_t count = 0;
    if (!at)
        return false;
    at += strlen(mark);
    for (; *at == ' ' || *at == '\033'; at++)
        if (*at == '\033') {
            while (*at && *at != 'm')
                at++;
            if (!*at)
                return false;
        }
    for (; ((*at >= '0' && *at <= '9') || *at == '.' || *at == ',') && count + 1 < sizeof digits; at++)
        if (*at != ',')
            digits[count++] = *at;
    digits[count] = '\0';
    char *end;
    *out = strtod(digits, &end);
    return count > 0 && !*end && isfinite(*out);
}

bool dtp_is_train_log(const char *text)
{
    return strstr(text, megatron_mark) || (strstr(text, titan_marks[0]) && strstr(text, titan_marks[1]));
}

struct lines {
    double step_s[MOST_STEPS], tokens_per_s[MOST_STEPS];
    size_t step_count, tokens_count;
    double peak_bytes;
};

static void take_line(struct lines *l, const char *line)
{
    double value;
    if (number_behind(line, megatron_mark, &value) && value > 0 && l->step_count < MOST_STEPS)
        l->step_s[l->step_count++] = 1e-3 * value;
    if (strstr(line, titan_marks[1]) && number_behind(line, titan_marks[0], &value) && value > 0 &&
        l->tokens_count < MOST_STEPS)
        l->tokens_per_s[l->tokens_count++] = value;
    if (strstr(line, titan_marks[0]) && number_behind(line, titan_marks[1], &value) && value < 1e6)
        l->peak_bytes = fmax(l->peak_bytes, value * 0x1p30);
    if (number_behind(line, "max allocated: ", &value) && value < 1e9) /* Megatron's report_memory, in MiB */
        l->peak_bytes = fmax(l->peak_bytes, value * 0x1p20);
}

static double median_behind_warm_up(double *values, size_t count)
{
    size_t first = count > WARM_UP_STEPS ? WARM_UP_STEPS : 0;
    return count > first ? dtp_median(values + first, 1, count - first) : 0;
}

enum dtp_status dtp_read_train_log(const char *path, const char *text, struct dtp_observed *out,
                                   struct dtp_faults *faults)
{
    char *copy = strdup(text), *rest = copy, *line;
    struct lines *l = calloc(1, sizeof *l);
    enum dtp_status status = copy && l ? DTP_OK : dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "out of memory");
    while (status == DTP_OK && (line = strsep(&rest, "\n")) != NULL)
        take_line(l, line);
    if (status == DTP_OK && l->step_count + l->tokens_count == 0)
        status = dtp_fault(faults, DTP_BAD_INPUT, path, 0, "has no step of torchtitan or Megatron-LM");
    if (status == DTP_OK) {
        out->tool = l->step_count ? "a log of Megatron-LM" : "a log of torchtitan";
        out->what = DTP_OBSERVED_LOG;
        out->log = (struct dtp_observed_log){.steps = (uint32_t)(l->step_count ? l->step_count : l->tokens_count),
                                             .step_s = median_behind_warm_up(l->step_s, l->step_count),
                                             .tokens_per_s = median_behind_warm_up(l->tokens_per_s, l->tokens_count),
                                             .peak_bytes = (uint64_t)l->peak_bytes};
    }
    free(copy);
    free(l);
    return status;
}
