#include "device/settings.h"

#include "base/number.h"

#include <inttypes.h>
#include <math.h>
#include <stddef.h>
#include <string.h>

struct setting {
    const char *flag;
    enum { WHOLE, NUMBER, TEXT, SWITCH } kind;
    size_t offset;
    uint64_t least, most;
    double minimum, maximum;
};

static const struct setting table[] = {
#define AS_WHOLE(field, flag, minimum, maximum, value)                                                                 \
    {flag, WHOLE, offsetof(struct dtp_settings, field), minimum, maximum, 0, 0},
#define AS_NUMBER(field, flag, minimum, maximum, value)                                                                \
    {flag, NUMBER, offsetof(struct dtp_settings, field), 0, 0, minimum, maximum},
#define AS_TEXT(field, flag) {flag, TEXT, offsetof(struct dtp_settings, field), 0, 0, 0, 0},
#define AS_SWITCH(field, flag) {flag, SWITCH, offsetof(struct dtp_settings, field), 0, 0, 0, 0},
    DTP_SETTINGS_TABLE(AS_WHOLE, AS_NUMBER, AS_TEXT, AS_SWITCH)};
enum { COUNT = sizeof table / sizeof table[0] };

struct dtp_settings dtp_settings_default(void)
{
    return (struct dtp_settings){
#define WITH_VALUE(field, flag, minimum, maximum, value) .field = value,
#define WITHOUT(field, flag)
        DTP_SETTINGS_TABLE(WITH_VALUE, WITH_VALUE, WITHOUT, WITHOUT)};
}

static const struct setting *find(const char *name)
{
    for (int i = 0; i < COUNT; i++)
        if (strcmp(table[i].flag, name) == 0)
            return &table[i];
    return NULL;
}

bool dtp_settings_takes_value(const char *name)
{
    const struct setting *s = find(name);
    return s && s->kind != SWITCH;
}

enum dtp_status dtp_settings_set(struct dtp_settings *settings, const char *name, const char *value, bool *known,
                                 struct dtp_faults *faults)
{
    const struct setting *s = find(name);
    *known = s != NULL;
    if (!s)
        return DTP_OK;
    void *field = (char *)settings + s->offset;
    if (s->kind == SWITCH) {
        *(bool *)field = true;
        return DTP_OK;
    }
    if (!value)
        return dtp_fault(faults, DTP_BAD_INPUT, NULL, 0, "--%s: a value is missing; write --%s VALUE", name, name);
    if (s->kind == TEXT)
        *(const char **)field = value;
    else if (s->kind == WHOLE && !dtp_number_parse_integer(value, false, s->least, s->most, field))
        return dtp_fault(faults, DTP_BAD_INPUT, NULL, 0, "--%s: '%s' is no whole number from %" PRIu64 " to %" PRIu64,
                         name, value, s->least, s->most);
    else if (s->kind == NUMBER) {
        double number;
        if (!dtp_number_parse(value, &number) || number < s->minimum || number > s->maximum)
            return dtp_fault(faults, DTP_BAD_INPUT, NULL, 0, "--%s: '%s' is no number from %g to %g", name, value,
                             s->minimum, s->maximum);
        *(double *)field = number;
        settings->names_momentum |= field == &settings->momentum;
    }
    return DTP_OK;
}

#define LEAST_LOSS_SCALE 1e-6
#define LARGEST_LOSS_SCALE 1e12

/* "2:4", or "4": as many at all times. */
static enum dtp_status check_elastic(struct dtp_settings *s, struct dtp_faults *faults)
{
    enum dtp_status status = DTP_OK;
    char least[32] = "";
    const char *most = s->elastic ? strchr(s->elastic, ':') : NULL;
    size_t length = most ? (size_t)(most - s->elastic) : 0;
    if (most && length < sizeof least)
        memcpy(least, s->elastic, length);
    if (s->elastic &&
        (!dtp_number_parse_integer(most ? least : s->elastic, false, 1, UINT16_MAX, &s->elastic_min) ||
         !dtp_number_parse_integer(most ? most + 1 : s->elastic, false, s->elastic_min, UINT16_MAX, &s->elastic_max)))
        status = dtp_fault(faults, DTP_BAD_INPUT, NULL, 0,
                           "--elastic: '%s' is not MIN:MAX, the fewest and most ranks, as in 2:4", s->elastic);
    if (s->on_loss && strcmp(s->on_loss, "wait") != 0 && strcmp(s->on_loss, "shrink") != 0)
        status = dtp_fault(faults, DTP_BAD_INPUT, NULL, 0, "--on-loss: '%s' is neither shrink nor wait", s->on_loss);
    s->waits = s->on_loss && strcmp(s->on_loss, "wait") == 0;
    const bool every = s->snapshot_every != UINT64_MAX, returns = s->return_after != UINT64_MAX;
    const char *alone = s->on_loss     ? "on-loss"
                        : s->snapshots ? "snapshots"
                        : every        ? "snapshot-every"
                        : returns      ? "return-after"
                                       : NULL;
    if (alone && !s->elastic)
        status = dtp_fault(faults, DTP_BAD_INPUT, NULL, 0, "--%s needs --elastic MIN:MAX", alone);
    if (s->elastic && !every)
        s->snapshot_every = DTP_SETTINGS_SNAPSHOT_EVERY;
    if (s->elastic && !returns)
        s->return_after = DTP_SETTINGS_RETURN_AFTER;
    if (s->async_checkpoints && !s->checkpoint)
        status = dtp_fault(faults, DTP_BAD_INPUT, NULL, 0, "--async-checkpoints needs --checkpoint DIR");
    if (s->elastic && s->alone)
        status = dtp_fault(faults, DTP_BAD_INPUT, NULL, 0,
                           "--elastic: a program that stands alone is of as many ranks as it has");
    return status;
}

static enum dtp_status check_words(struct dtp_settings *s, struct dtp_faults *faults)
{
    enum dtp_status status = DTP_OK;
    if (s->device && strcmp(s->device, "host") != 0 && strcmp(s->device, "cuda") != 0)
        status = dtp_fault(faults, DTP_BAD_INPUT, NULL, 0, "--device: '%s' is neither cuda nor host", s->device);
    s->cuda = !s->device || strcmp(s->device, "cuda") == 0;
    if (s->data_type && !dtp_token_type_parse(s->data_type, &s->token_type))
        status = dtp_fault(faults, DTP_BAD_INPUT, NULL, 0, "--data-type: '%s' is none of auto, uint16, uint32, bytes",
                           s->data_type);
    if (s->not_finite && strcmp(s->not_finite, "skip") != 0 && strcmp(s->not_finite, "stop") != 0)
        status =
            dtp_fault(faults, DTP_BAD_INPUT, NULL, 0, "--not-finite: '%s' is neither skip nor stop", s->not_finite);
    s->skip_not_finite = s->not_finite && strcmp(s->not_finite, "skip") == 0;
    bool fixed = s->loss_scale && strcmp(s->loss_scale, "dynamic") != 0;
    if (fixed && (!dtp_number_parse(s->loss_scale, &s->fixed_loss_scale) ||
                  !(s->fixed_loss_scale >= LEAST_LOSS_SCALE && s->fixed_loss_scale <= LARGEST_LOSS_SCALE)))
        status = dtp_fault(faults, DTP_BAD_INPUT, NULL, 0,
                           "--loss-scale: '%s' is neither dynamic nor a number from %g to %g", s->loss_scale,
                           LEAST_LOSS_SCALE, LARGEST_LOSS_SCALE);
    return status;
}

void dtp_settings_print(FILE *file)
{
#define PRINT_WHOLE(field, flag, minimum, maximum, value) fprintf(file, "  --%s N\n", flag);
#define PRINT_NUMBER(field, flag, minimum, maximum, value) fprintf(file, "  --%s X\n", flag);
#define PRINT_TEXT(field, flag) fprintf(file, "  --%s TEXT\n", flag);
#define PRINT_SWITCH(field, flag) fprintf(file, "  --%s\n", flag);
    DTP_SETTINGS_TABLE(PRINT_WHOLE, PRINT_NUMBER, PRINT_TEXT, PRINT_SWITCH)
#undef PRINT_WHOLE
#undef PRINT_NUMBER
#undef PRINT_TEXT
#undef PRINT_SWITCH
}

static enum dtp_status check_share(const struct dtp_settings *s, struct dtp_faults *faults)
{
    if (s->share_gpu && !s->cuda)
        return dtp_fault(faults, DTP_BAD_INPUT, NULL, 0,
                         "--share-gpu: ranks of the host device share its cores anyway; leave it out");
    if (s->share_gpu && s->probe)
        return dtp_fault(faults, DTP_BAD_INPUT, NULL, 0,
                         "--share-gpu: what ranks that share a GPU take says nothing of GPUs; probe as many as there "
                         "are");
    return DTP_OK;
}

enum dtp_status dtp_settings_check(struct dtp_settings *s, struct dtp_faults *faults)
{
    enum dtp_status status = dtp_worse(check_words(s, faults), check_elastic(s, faults));
    status = dtp_worse(status, check_share(s, faults));
    s->resume = s->resume || s->resume_previous;
    if (s->warmup > s->steps)
        status =
            dtp_fault(faults, DTP_BAD_INPUT, NULL, 0,
                      "--warmup: %" PRIu64 " steps of warm-up in a run of %" PRIu64 "; take fewer, or more --steps",
                      s->warmup, s->steps);
    if (s->min_learning_rate > s->learning_rate)
        status = dtp_fault(faults, DTP_BAD_INPUT, NULL, 0, "--min-lr: %g is above --lr %g", s->min_learning_rate,
                           s->learning_rate);
    if (((s->resume && !s->elastic) || s->resume_previous || s->checkpoint_every > 0) && !s->checkpoint)
        status = dtp_fault(faults, DTP_BAD_INPUT, NULL, 0, "--%s needs --checkpoint DIR",
                           s->resume ? "resume" : "checkpoint-every");
    if (s->alone && (!s->program || s->checkpoint || s->op_times))
        status = dtp_fault(faults, DTP_BAD_INPUT, NULL, 0,
                           s->program ? "--checkpoint: a program that stands alone keeps none; its model has no words"
                                      : "--program-alone needs --program FILE");
    if (s->data_type && !s->data)
        status = dtp_fault(faults, DTP_BAD_INPUT, NULL, 0, "--data-type needs --data FILE");
    return status;
}

double dtp_settings_learning_rate(const struct dtp_settings *s, uint64_t step)
{
    const double pi = 3.14159265358979323846;
    if (step < s->warmup)
        return s->learning_rate * (double)(step + 1) / (double)s->warmup;
    uint64_t rest = s->steps - s->warmup;
    double done = rest > 0 ? (double)(step - s->warmup) / (double)rest : 0;
    return s->min_learning_rate + (s->learning_rate - s->min_learning_rate) * (1 + cos(pi * fmin(done, 1))) / 2;
}
