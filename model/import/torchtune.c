/* torchtune: what several of its settings say together. */
#include "import/formats.h"

#include <string.h>

static const struct dtp_row rows[] = {
#include "import/torchtune.def"
};

static const char *const signs[] = {"model._component_", NULL};

/* Builders of torchtune/models whose shapes are published ones. */
static const struct builder {
    const char *name, *model;
} builders[] = {
    {"torchtune.models.llama2.llama2_7b", "llama-2-7b"},
    {"torchtune.models.llama2.llama2_13b", "llama-2-13b"},
    {"torchtune.models.llama2.llama2_70b", "llama-2-70b"},
    {"torchtune.models.llama3.llama3_8b", "llama-3-8b"},
    {"torchtune.models.llama3.llama3_70b", "llama-3-70b"},
    {"torchtune.models.llama3_1.llama3_1_8b", "llama-3.1-8b"},
    {"torchtune.models.llama3_1.llama3_1_70b", "llama-3.1-70b"},
    {"torchtune.models.llama3_1.llama3_1_405b", "llama-3.1-405b"},
    {"torchtune.models.llama3_2.llama3_2_1b", "llama-3.2-1b"},
    {"torchtune.models.llama3_2.llama3_2_3b", "llama-3.2-3b"},
    {"torchtune.models.llama3_3.llama3_3_70b", "llama-3.3-70b"},
    {"torchtune.models.mistral.mistral_7b", "mistral-7b"},
    {"torchtune.models.qwen2_5.qwen2_5_0_5b", "qwen2.5-0.5b"},
    {"torchtune.models.qwen2_5.qwen2_5_7b_base", "qwen2.5-7b"},
    {"torchtune.models.qwen3.qwen3_8b_instruct", "qwen3-8b"},
    {"torchtune.models.phi3.phi3_mini", "phi-3-mini"},
};

static bool is(const char *text, const char *word)
{
    return text && strcmp(text, word) == 0;
}

static enum dtp_status read_model(struct dtp_reading *r)
{
    const char *name = dtp_fact(r, "component");
    if (!name || dtp_is_typed(r, "model"))
        return name ? dtp_make_key(r, "model", name, "component") : DTP_OK;
    if (strstr(name, "lora"))
        return dtp_refuse_fact(r, "component", "adapters are not read from torchtune's files");
    for (size_t i = 0; i < sizeof builders / sizeof *builders; i++)
        if (strcmp(builders[i].name, name) == 0)
            return dtp_make_key(r, "model", builders[i].model, "component");
    return dtp_refuse_fact(r, "component", "is no model that dtplan knows by that name; give --model config.json");
}

/* FSDP2 of a model that is stored in `dtype`, as are its gradients and its optimizer's state (shard_model). */
static enum dtp_status read_settings(struct dtp_reading *r)
{
    const char *dtype = dtp_fact(r, "dtype"), *optimizer = dtp_fact(r, "optimizer"), *reshard = dtp_fact(r, "reshard");
    enum dtp_status worst = dtp_make_key(r, "runtime", "torch", NULL);
    worst = dtp_worse(worst, read_model(r));
    worst = dtp_worse(worst, dtp_make_key(r, "strategy", reshard ? reshard : "full_shard", reshard ? "reshard" : NULL));
    worst = dtp_worse(worst, dtp_make_key(r, "precision", dtype ? dtype : "bf16-pure", "dtype"));
    if (!is(dtype, "fp32"))
        worst = dtp_worse(worst, dtp_make_key(r, "reduce_dtype", "bf16", "dtype"));
    if (is(optimizer, "adamw") && !is(dtp_fact(r, "fused"), "true"))
        optimizer = "adamw-foreach";
    return optimizer ? dtp_worse(worst, dtp_make_key(r, "optimizer", optimizer, "optimizer")) : worst;
}

const struct dtp_format dtp_format_torchtune = {
    .name = "torchtune",
    .title = "torchtune's configuration",
    .syntaxes = 1u << DTP_SYNTAX_YAML,
    .signs = signs,
    .rows = rows,
    .row_count = sizeof rows / sizeof *rows,
    .silent = "the GPUs; sequences are counted at their full length",
    .read = read_settings,
};
