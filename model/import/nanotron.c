/* nanotron: data parallel ranks times the others are the GPUs. */
#include "import/formats.h"

#include "base/number.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static const struct dtp_row rows[] = {
#include "import/nanotron.def"
};

static const char *const signs[] = {"parallelism.tp_mode", "parallelism.pp_engine", "tokens.micro_batch_size", NULL};

static uint64_t degree(const struct dtp_reading *r, const char *fact)
{
    uint64_t count;
    const char *text = dtp_fact(r, fact);
    return text && dtp_number_parse_integer(text, false, 1, 1000000, &count) ? count : text ? 0 : 1;
}

static enum dtp_status read_settings(struct dtp_reading *r)
{
    uint64_t dp = degree(r, "dp"), tp = degree(r, "tp"), pp = degree(r, "pp");
    char gpus[32];
    enum dtp_status worst = dtp_make_key(r, "runtime", "nanotron", NULL);
    if (!dp || !tp || !pp)
        return dtp_refuse_fact(r, !dp ? "dp" : !tp ? "tp" : "pp", "is no whole number from 1 on");
    snprintf(gpus, sizeof gpus, "%" PRIu64, dp * tp * pp);
    worst = dtp_worse(worst, dtp_make_key(r, "gpus", gpus, "dp"));
    if (!dtp_is_said(r, "precision"))
        worst = dtp_worse(worst, dtp_refuse_fact(r, "precision", "model.dtype is missing; give --precision"));
    return worst;
}

const struct dtp_format dtp_format_nanotron = {
    .name = "nanotron",
    .title = "nanotron's configuration",
    .syntaxes = 1u << DTP_SYNTAX_YAML,
    .signs = signs,
    .rows = rows,
    .row_count = sizeof rows / sizeof *rows,
    .silent = "the GPU",
    .read = read_settings,
};
