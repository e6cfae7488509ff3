#include "cost/calibration.h"

#include "base/word_table.h"

#include <math.h>
#include <string.h>

struct dtp_calibration dtp_calibration = {
#define DTP_CONSTANT(name, value, unit, kind, what, source, data, runs) .name = (value),
#define DTP_OTHERWISE(name, value, source)
#include "cost/constants.def"
};

#define OF(source) (1u << DTP_RUNS_OF_##source)
#define OF_NONE 0u
#define OF_ALL ((1u << DTP_RUN_SOURCE_COUNT) - 1)
const struct dtp_calibration_row dtp_calibration_rows[DTP_CONSTANT_COUNT] = {
#define DTP_CONSTANT(name, value, unit, kind, what, source, data, runs)                                                \
    {#name, value, unit, DTP_CONSTANT_##kind, what, source, what "; " source, data, runs, __LINE__},
#define DTP_OTHERWISE(name, value, source)
#include "cost/constants.def"
};

/* ---- what would be believed otherwise ---------------------------------------------------------------------------- */

static const struct {
    double value;
    const char *source;
} otherwise[DTP_CONSTANT_COUNT] = {
#define DTP_CONSTANT(name, value, unit, kind, what, source, data, runs)
#define DTP_OTHERWISE(name, value, source) [DTP_CONSTANT_##name] = {value, source},
#include "cost/constants.def"
};

double dtp_constant_otherwise(enum dtp_constant constant, const char **source)
{
    if (source)
        *source = otherwise[constant].source;
    return otherwise[constant].source ? otherwise[constant].value : (double)NAN;
}

/* ---- words ------------------------------------------------------------------------------------------------------- */

DTP_WORDS_OF_TABLE(dtp_constant_kind_text, dtp_constant_kind, DTP_CONSTANT_KIND_TABLE, DTP_ROW_WORD)
DTP_WORDS_OF_TABLE(dtp_run_source_text, dtp_run_source, DTP_RUN_SOURCE_TABLE, DTP_ROW_WORD)

bool dtp_constant_is_of(enum dtp_constant constant, const char *source)
{
    for (int i = 0; i < DTP_RUN_SOURCE_COUNT; i++) {
        const char *name = dtp_run_source_text((enum dtp_run_source)i);
        if (dtp_calibration_rows[constant].runs >> i & 1 && strncmp(source, name, strlen(name)) == 0)
            return true;
    }
    return false;
}

/* ---- values that are not the shipped ones ------------------------------------------------------------------------ */

static double *const places[DTP_CONSTANT_COUNT] = {
#define DTP_CONSTANT(name, value, unit, kind, what, source, data, runs) &dtp_calibration.name,
#define DTP_OTHERWISE(name, value, source)
#include "cost/constants.def"
};

void dtp_calibration_set(enum dtp_constant constant, double value)
{
    *places[constant] = value;
}

double dtp_calibration_get(enum dtp_constant constant)
{
    return *places[constant];
}

void dtp_calibration_restore(void)
{
    for (int i = 0; i < DTP_CONSTANT_COUNT; i++)
        *places[i] = dtp_calibration_rows[i].value;
}
