/* torchtune: what several of its settings say together. */
#include "import/formats.h"
#include "import/write.h"

#include "plan/adapters.h"

#include <stdio.h>
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

/* What a builder of adapters is called before the model's name (models/llama3_1/_model_builders.py): qlora_ is lora_
 * with quantize_base. */
static const char *without_adapters(const char *name, char *room, size_t bytes)
{
    static const char *const prefixes[] = {"qlora_", "lora_"};
    const char *last = strrchr(name, '.') ? strrchr(name, '.') + 1 : name;
    for (size_t i = 0; i < sizeof prefixes / sizeof *prefixes; i++)
        if (strncmp(last, prefixes[i], strlen(prefixes[i])) == 0) {
            snprintf(room, bytes, "%.*s%s", (int)(last - name), name, last + strlen(prefixes[i]));
            return room;
        }
    return name;
}

static bool has_adapters(const struct dtp_reading *r)
{
    const char *name = dtp_fact(r, "component");
    return name && strstr(name, "lora_");
}

static enum dtp_status read_model(struct dtp_reading *r)
{
    const char *name = dtp_fact(r, "component");
    char room[256];
    if (!name || dtp_is_typed(r, "model"))
        return name ? dtp_make_key(r, "model", name, "component") : DTP_OK;
    const char *plain = without_adapters(name, room, sizeof room);
    for (size_t i = 0; i < sizeof builders / sizeof *builders; i++)
        if (strcmp(builders[i].name, plain) == 0)
            return dtp_make_key(r, "model", builders[i].model, "component");
    return dtp_refuse_fact(r, "component", "is no model that dtplan knows by that name; give --model config.json");
}

/* "q_proj,output_proj" and the MLP's switch as lora_targets has them. */
static enum dtp_status make_targets(struct dtp_reading *r)
{
    static const char *const words[][2] = {{"q_proj", "q"}, {"k_proj", "k"}, {"v_proj", "v"}, {"output_proj", "o"}};
    const char *rest = dtp_fact(r, "lora_attention");
    char targets[64] = "";
    while (rest && *rest) {
        size_t length = strcspn(rest, ","), i = 0;
        while (i < 4 && (strlen(words[i][0]) != length || strncmp(rest, words[i][0], length) != 0))
            i++;
        if (i == 4)
            return dtp_refuse_fact(r, "lora_attention",
                                   "names a module that is none of q_proj, k_proj, v_proj, output_proj");
        if (!strstr(targets, words[i][1])) /* a list may say one twice */
            snprintf(targets + strlen(targets), sizeof targets - strlen(targets), "%s%s", *targets ? "+" : "",
                     words[i][1]);
        rest += length + (rest[length] == ',');
    }
    if (is(dtp_fact(r, "lora_mlp"), "true"))
        snprintf(targets + strlen(targets), sizeof targets - strlen(targets), "%sgate+up+down", *targets ? "+" : "");
    return *targets
               ? dtp_make_key(r, "lora_targets", targets, dtp_fact(r, "lora_attention") ? "lora_attention" : "lora_mlp")
               : dtp_refuse_fact(r, "component", "has no module with an adapter; write model.lora_attn_modules");
}

/* Rank 8, alpha 16 and no dropout where a file is silent (lora_llama3_1_8b and its like). Adapters are in the model's
 * dtype; NF4's scales are packed (torchao's to_nf4). */
static enum dtp_status read_adapters(struct dtp_reading *r)
{
    static const char *const keys[][3] = {
        {"lora", "lora_r", "8"}, {"lora_alpha", "lora_alpha", "16"}, {"lora_dropout", "lora_dropout", NULL}};
    enum dtp_status worst = make_targets(r);
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        const char *said = dtp_fact(r, keys[i][1]), *value = said ? said : keys[i][2];
        if (value)
            worst = dtp_worse(worst, dtp_make_key(r, keys[i][0], value, said ? keys[i][1] : NULL));
    }
    if (is(dtp_fact(r, "dora"), "true"))
        worst = dtp_worse(worst, dtp_make_key(r, "dora", "true", "dora"));
    bool packed = strstr(dtp_fact(r, "component"), "qlora_") || is(dtp_fact(r, "quantized"), "true");
    return packed ? dtp_worse(worst, dtp_make_key(r, "base", "nf4", "component")) : worst;
}

/* FSDP2 of a model that is stored in `dtype`, as are its gradients and its optimizer's state (shard_model). */
static enum dtp_status read_settings(struct dtp_reading *r)
{
    const char *dtype = dtp_fact(r, "dtype"), *optimizer = dtp_fact(r, "optimizer"), *reshard = dtp_fact(r, "reshard");
    enum dtp_status worst = dtp_make_key(r, "runtime", "torch", NULL);
    worst = dtp_worse(worst, read_model(r));
    if (has_adapters(r))
        worst = dtp_worse(worst, read_adapters(r));
    if (is(dtp_fact(r, "carries"), "true"))
        worst = dtp_worse(worst, is(dtp_fact(r, "streams"), "false")
                                     ? dtp_refuse_fact(r, "streams",
                                                       "has copies between the kernels, which is not modelled of "
                                                       "torchtune's checkpoints; leave it out")
                                     : dtp_make_key(r, "activation_offload", "true", "carries"));
    worst = dtp_worse(worst, dtp_make_key(r, "strategy", reshard ? reshard : "full_shard", reshard ? "reshard" : NULL));
    worst = dtp_worse(worst, dtp_make_key(r, "precision", dtype ? dtype : "bf16-pure", "dtype"));
    if (!is(dtype, "fp32"))
        worst = dtp_worse(worst, dtp_make_key(r, "reduce_dtype", "bf16", "dtype"));
    if (is(optimizer, "adamw") && !is(dtp_fact(r, "fused"), "true"))
        optimizer = "adamw-foreach";
    worst = dtp_worse(worst, dtp_make_clipping(r, "max_norm", NULL));
    return optimizer ? dtp_worse(worst, dtp_make_key(r, "optimizer", optimizer, "optimizer")) : worst;
}

/* ---- the other way ------------------------------------------------------------------------------------------------
 */

/* The builder of the model, of its adapters where there are some. */
static void write_model(struct dtp_writing *w)
{
    const struct dtp_job *job = dtp_written_job(w);
    const struct dtp_adapter_choice *adapters = &job->plan.adapters;
    char name[128];
    for (size_t i = 0; i < sizeof builders / sizeof *builders; i++)
        if (strcmp(builders[i].model, job->transformer.name) == 0) {
            const char *last = strrchr(builders[i].name, '.') + 1;
            snprintf(name, sizeof name, "%.*s%s%s", (int)(last - builders[i].name), builders[i].name,
                     !adapters->rank                   ? ""
                     : adapters->base == DTP_BASE_NONE ? "lora_"
                                                       : "qlora_",
                     last);
            dtp_say(w, "component", name);
            return;
        }
    dtp_refuse_writing(w, "has no builder of %.60s; it has those of llama, mistral, qwen2.5, qwen3 and phi3",
                       job->transformer.name);
}

static void write_adapters(struct dtp_writing *w)
{
    static const char *const modules[][2] = {{"q", "q_proj"}, {"k", "k_proj"}, {"v", "v_proj"}, {"o", "output_proj"}};
    const uint32_t targets = dtp_written_job(w)->plan.adapters.targets;
    char list[64] = "", text[DTP_TARGETS_BYTES];
    static const enum dtp_adapter_target order[] = {DTP_TARGET_Q, DTP_TARGET_K, DTP_TARGET_V, DTP_TARGET_OUTPUT};
    for (size_t i = 0; i < sizeof order / sizeof *order; i++)
        if (targets & 1u << order[i])
            snprintf(list + strlen(list), sizeof list - strlen(list), "%s%s", *list ? "," : "", modules[i][1]);
    if (*list)
        dtp_say(w, "lora_attention", list);
    dtp_say(w, "lora_mlp", (targets & DTP_TARGETS_MLP) == DTP_TARGETS_MLP ? "true" : "false");
    snprintf(text, sizeof text, "%s", dtp_written_value(w, "lora"));
    dtp_say(w, "lora_r", text);
    dtp_say_key(w, "lora_alpha");
    dtp_say_key(w, "lora_dropout");
    if (dtp_written_job(w)->plan.adapters.dora)
        dtp_say(w, "dora", "true");
}

static void write_settings(struct dtp_writing *w)
{
    static const char *const keys[] = {"seq",     "micro_batch", "accumulate", "checkpointing",
                                       "compile", "loss",        "offload"};
    const struct dtp_plan *plan = &dtp_written_job(w)->plan;
    write_model(w);
    if (plan->adapters.rank)
        write_adapters(w);
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        dtp_say_key(w, keys[i]);
    dtp_say(w, "dtype", plan->precision.params == DTP_BF16 ? "bf16-pure" : "fp32");
    dtp_say(w, "optimizer", plan->optimizer == DTP_ADAMW_FOREACH ? "adamw" : dtp_optimizer_text(plan->optimizer));
    dtp_say(w, "fused", plan->optimizer == DTP_ADAMW_FOREACH ? "false" : "true");
    dtp_say(w, "reshard", dtp_strategy_text(plan->strategy));
    if (plan->activation_offload)
        dtp_say(w, "carries", "true");
    if (plan->clip_norm > 0)
        dtp_say(w, "max_norm", dtp_written_value(w, "clip_norm"));
    if (plan->tp > 1)
        dtp_say_key(w, "tp");
    if (plan->cp > 1)
        dtp_say_key(w, "cp");
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
    .write = write_settings,
    .writes_yaml = true,
};
