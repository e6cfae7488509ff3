/* The constants of the model, as the code reads them: dtp_calibration.NAME for each row of constants.def.
 *
 * constants.def says of each what it is, where it comes from and what it was fitted on; `dtplan catalog constants`
 * prints that, `dtplan explain` the values. Rates of a particular GPU do not belong here but in scenarios/gpus.csv.
 *
 * The values stand in one table that can be written, so that a backtest can ask what a constant is worth: it sets one,
 * predicts, and restores it. Whoever does so is the only thread. */
#ifndef DTP_CALIBRATION_H
#define DTP_CALIBRATION_H

#include <stdbool.h>
#include <stddef.h>

struct dtp_calibration {
#define DTP_CONSTANT(name, value, unit, kind, what, source, data, runs) double name;
#define DTP_OTHERWISE(name, value, source)
#include "cost/constants.def"
};

/* Read only, outside calibration.c: dtp_calibration_set writes. */
extern struct dtp_calibration dtp_calibration;

enum dtp_constant {
#define DTP_CONSTANT(name, value, unit, kind, what, source, data, runs) DTP_CONSTANT_##name,
#define DTP_OTHERWISE(name, value, source)
#include "cost/constants.def"
    DTP_CONSTANT_COUNT
};

/* Where a value comes from; constants.def says what each of them means. */
#define DTP_CONSTANT_KIND_TABLE(X)                                                                                     \
    X(FITTED, "fitted")                                                                                                \
    X(MEASURED, "measured")                                                                                            \
    X(PUBLISHED, "published")                                                                                          \
    X(LIBRARY, "library")                                                                                              \
    X(RECALLED, "recalled")                                                                                            \
    X(ASSUMED, "assumed")
enum dtp_constant_kind {
#define DTP_CONSTANT_KIND(kind, words) DTP_CONSTANT_##kind,
    DTP_CONSTANT_KIND_TABLE(DTP_CONSTANT_KIND)
#undef DTP_CONSTANT_KIND
};
const char *dtp_constant_kind_text(enum dtp_constant_kind kind);

/* Sources of the shipped run tables, by how their names in the column `source` begin. */
#define DTP_RUN_SOURCE_TABLE(X)                                                                                        \
    X(LLM_FOUNDRY, "github:mosaicml/llm-foundry")                                                                      \
    X(TORCHTITAN, "github:pytorch/torchtitan")                                                                         \
    X(INTERNEVO, "github:InternLM/InternEvo")                                                                          \
    X(FMS_FSDP, "github:foundation-model-stack/fms-fsdp")                                                              \
    X(VTRAIN, "github:VIA-Research/vTrain")                                                                            \
    X(BIGSCIENCE, "github:bigscience-workshop/bigscience")                                                             \
    X(LLMQ, "github:IST-DASLab/llmq")                                                                                  \
    X(MEGATRON_LM, "github:NVIDIA/Megatron-LM")                                                                        \
    X(NANOTRON, "github:gkarfakis19/Rapid-LLM")                                                                        \
    X(OWN_TORCH, "measured with PyTorch")
enum dtp_run_source {
#define DTP_RUN_SOURCE(source, name) DTP_RUNS_OF_##source,
    DTP_RUN_SOURCE_TABLE(DTP_RUN_SOURCE)
#undef DTP_RUN_SOURCE
        DTP_RUN_SOURCE_COUNT
};
const char *dtp_run_source_text(enum dtp_run_source source);

/* One row of constants.def. */
struct dtp_calibration_row {
    const char *name;
    double value; /* as shipped, whatever dtp_calibration_set says */
    const char *unit;
    enum dtp_constant_kind kind;
    const char *what, *source;
    const char *words; /* both in one */
    const char *data;  /* "" where none are kept */
    unsigned runs;     /* a bit for each enum dtp_run_source */
    int line;          /* of constants.def */
};
extern const struct dtp_calibration_row dtp_calibration_rows[DTP_CONSTANT_COUNT];

#define DTP_CONSTANTS_FILE "model/cost/constants.def"

/* Whether a constant was made with runs of that source of a run table; false for sources that are not shipped. */
bool dtp_constant_is_of(enum dtp_constant constant, const char *source);

/* What would be believed of a constant without the runs it was made with, and why (`source` may be NULL); NaN and NULL
 * where nothing would. */
double dtp_constant_otherwise(enum dtp_constant constant, const char **source);

/* From now on, for all predictions. No other thread may predict meanwhile. */
void dtp_calibration_set(enum dtp_constant constant, double value);
double dtp_calibration_get(enum dtp_constant constant);
/* All as shipped. */
void dtp_calibration_restore(void);

#endif
