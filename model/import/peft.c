/* peft's adapter_config.json: adapters alone. Strategy, precision and batches are those of what stands beside it. */
#include "import/formats.h"
#include "import/write.h"

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

/* The model is the user's: base_model_name_or_path is a folder or a name on the hub. */
static void write_settings(struct dtp_writing *w)
{
    if (!dtp_written_job(w)->plan.adapters.rank) {
        dtp_refuse_writing(w, "is of adapters, and the plan has none; give --lora N, or --to accelerate");
        return;
    }
    dtp_say(w, "adapter", "lora");
    dtp_say_path(w, "task_type", "CAUSAL_LM", false);
    dtp_say_path(w, "bias", "none", false);
    dtp_write_adapters(w);
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
    .write = write_settings,
};
