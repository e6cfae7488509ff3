/* peft's adapter_config.json: adapters alone. Strategy, precision and batches are those of what stands beside it. */
#include "import/formats.h"

static const struct dtp_row rows[] = {
#include "import/peft.def"
};

static const char *const signs[] = {"peft_type", NULL};

/* LoraConfig's own numbers where a file is silent: rank 8, alpha 8, no dropout; of peft's list for LLaMA's family
 * (TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING) q and v. */
static enum dtp_status read_settings(struct dtp_reading *r)
{
    enum dtp_status worst = dtp_make_model(r, "model");
    return dtp_worse(worst, dtp_make_adapters(r, &(struct dtp_adapter_defaults){
                                                     .rank = "8", .alpha = "8", .dropout = "0", .alone = true}));
}

const struct dtp_format dtp_format_peft = {
    .name = "peft",
    .title = "peft's adapter_config.json",
    .syntaxes = 1u << DTP_SYNTAX_JSON,
    .signs = signs,
    .rows = rows,
    .row_count = sizeof rows / sizeof *rows,
    .silent = "strategy, precision and batches; the GPUs",
    .read = read_settings,
};
