/* Adapters of peft in files of axolotl, TRL and its own, both ways. */
#include "import/write.h"

#include "base/number.h"
#include "plan/adapters.h"
#include "plan/rules.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static bool is(const struct dtp_reading *r, const char *fact, const char *word)
{
    const char *text = dtp_fact(r, fact);
    return text && strcmp(text, word) == 0;
}

bool dtp_adapter_fact(const struct dtp_reading *r)
{
    return is(r, "adapter", "lora") || is(r, "adapter", "qlora");
}

bool dtp_trains_adapters(const struct dtp_reading *r)
{
    const char *adapter = dtp_fact_of(r, "trainer", "adapter");
    bool trainer = adapter && strcmp(adapter, "none") != 0;
    return dtp_adapter_fact(r) || trainer || dtp_reads_beside(r, "peft") || dtp_is_said(r, "lora");
}

/* A key by its fact, or by what the program takes without one. */
static enum dtp_status make(struct dtp_reading *r, const char *key, const char *fact, const char *otherwise)
{
    const char *value = dtp_fact(r, fact);
    if (!value && !otherwise)
        return DTP_OK;
    return dtp_make_key(r, key, value ? value : otherwise, value ? fact : NULL);
}

/* bitsandbytes' 4 bits (nf4 is what both formats take), its 8 bits. */
static enum dtp_status make_base(struct dtp_reading *r, const struct dtp_adapter_defaults *defaults)
{
    bool nested = dtp_fact(r, "nested") ? is(r, "nested", "true") : defaults->nested;
    if (is(r, "in_4bit", "true") || is(r, "adapter", "qlora"))
        return dtp_make_key(r, "base", nested ? "nf4-double" : "nf4", dtp_fact(r, "in_4bit") ? "in_4bit" : "adapter");
    return is(r, "in_8bit", "true") ? dtp_make_key(r, "base", "int8", "in_8bit") : DTP_OK;
}

/* Alpha 0 multiplies adapters by nothing (0 of ours is no factor): they would learn nothing. */
static enum dtp_status check_alpha(struct dtp_reading *r)
{
    double alpha;
    const char *said = dtp_fact(r, "lora_alpha");
    if (said && dtp_number_parse(said, &alpha) && alpha == 0)
        return dtp_refuse_fact(r, "lora_alpha", "multiplies adapters by 0, so that they learn nothing; write the rank");
    return DTP_OK;
}

/* rsLoRA (Kalajdzievski 2023, arXiv:2312.03732) scales by alpha / sqrt(r), where ours is alpha / r. */
static enum dtp_status make_alpha(struct dtp_reading *r, const struct dtp_adapter_defaults *defaults)
{
    const char *alpha = dtp_fact(r, "lora_alpha"), *rank = dtp_fact(r, "lora_r");
    double scale = 0, root;
    char text[32];
    enum dtp_status status = check_alpha(r);
    if (status != DTP_OK)
        return status;
    alpha = alpha ? alpha : defaults->alpha, rank = rank ? rank : defaults->rank;
    bool sound = alpha && dtp_number_parse(alpha, &scale) && scale >= 0 && scale <= DTP_MOST_LORA_ALPHA;
    if (!is(r, "rslora", "true") || (alpha && !sound)) /* what is no alpha is refused as it stands */
        return make(r, "lora_alpha", "lora_alpha", defaults->alpha);
    if (!alpha)
        return dtp_refuse_fact(r, "rslora", "scales by lora_alpha, which the file does not say; write it");
    if (!dtp_number_parse(rank, &root) || root < 1) /* refused where the rank is made */
        return DTP_OK;
    if (scale * sqrt(root) > DTP_MOST_LORA_ALPHA)
        return dtp_refuse_fact(r, "lora_alpha", "times the root of the rank is above %.0f; write less",
                               DTP_MOST_LORA_ALPHA);
    snprintf(text, sizeof text, "%.9g", scale * sqrt(root));
    return dtp_make_key(r, "lora_alpha", text, "rslora");
}

#define SAVED_ENDS "embed_tokens,lm_head"

/* Embedding and head together are what train_ends is; a list may say a module twice. */
static enum dtp_status make_ends(struct dtp_reading *r)
{
    const char *saved = dtp_fact(r, "saved_modules");
    bool embedding = false, head = false, other = false;
    if (!saved || !*saved)
        return DTP_OK;
    for (const char *at = saved; *at; at += strcspn(at, ","), at += *at == ',') {
        size_t length = strcspn(at, ",");
        bool first = length == strlen("embed_tokens") && strncmp(at, "embed_tokens", length) == 0;
        bool last = length == strlen("lm_head") && strncmp(at, "lm_head", length) == 0;
        embedding = embedding || first;
        head = head || last;
        other = other || !(first || last);
    }
    if (embedding && head && !other)
        return dtp_make_key(r, "train_ends", "true", "saved_modules");
    return dtp_refuse_fact(r, "saved_modules",
                           "trains other modules whole than embed_tokens and lm_head together, which alone is modelled "
                           "beside adapters");
}

static bool names(const char *list, const char *module)
{
    for (const char *at = list ? list : ""; *at; at += strcspn(at, ","), at += *at == ',') {
        size_t length = strcspn(at, ",");
        if (length == strlen(module) && strncmp(at, module, length) == 0)
            return true;
    }
    return false;
}

/* Modeling files with qkv_proj have gate_up_proj too (modeling_phi3.py) where the list names none of it apart. */
static enum dtp_status make_fused(struct dtp_reading *r)
{
    const char *list = dtp_fact(r, "lora_targets");
    bool qkv = names(list, "qkv_proj"), up = names(list, "gate_up_proj");
    bool apart_qkv = names(list, "q_proj") || names(list, "k_proj") || names(list, "v_proj");
    bool apart_up = names(list, "gate_proj") || names(list, "up_proj");
    enum dtp_status worst = DTP_OK;
    if ((qkv || (up && !apart_qkv)) && !dtp_is_said(r, "fused_qkv"))
        worst = dtp_worse(worst, dtp_make_key(r, "fused_qkv", "true", "lora_targets"));
    if ((up || (qkv && !apart_up)) && !dtp_is_said(r, "fused_gate_up"))
        worst = dtp_worse(worst, dtp_make_key(r, "fused_gate_up", "true", "lora_targets"));
    return worst;
}

/* Names end in experts.gate_up_proj or experts.down_proj; one that begins with a layer's number is of that layer. */
static enum dtp_status make_parameters(struct dtp_reading *r)
{
    static const char *const names[] = {"gate_up_proj", "down_proj"};
    static const uint32_t targets[] = {1u << DTP_TARGET_UP, 1u << DTP_TARGET_DOWN};
    const char *list = dtp_fact(r, "parameters");
    uint32_t found = 0;
    for (const char *at = list ? list : ""; *at; at += *at == ',') {
        size_t length = strcspn(at, ","), known = 2;
        for (size_t i = 0; i < 2; i++) {
            size_t tail = strlen(names[i]);
            bool ends = length >= tail && !strncmp(at + length - tail, names[i], tail);
            known = ends && (length == tail || at[length - tail - 1] == '.') ? i : known;
        }
        if (known == 2)
            return dtp_refuse_fact(r, "parameters",
                                   "names others than experts' gate_up_proj and down_proj, which alone are modelled");
        if (strcspn(at, "0123456789") < length)
            return dtp_refuse_fact(r, "parameters", "names those of some layers, which is not modelled; name all");
        found |= targets[known];
        at += length;
    }
    if (!found)
        return DTP_OK;
    enum dtp_status worst = dtp_make_key(r, "lora_parameters", dtp_parameters_text(found), "parameters");
    if (!dtp_is_said(r, "grouped_experts"))
        worst = dtp_worse(worst, dtp_make_key(r, "grouped_experts", "true", "parameters"));
    return worst;
}

enum dtp_status dtp_make_adapters(struct dtp_reading *r, const struct dtp_adapter_defaults *defaults)
{
    if (!dtp_adapter_fact(r) && defaults->alone)
        return DTP_OK;
    if (!dtp_adapter_fact(r)) {
        const char *bits = is(r, "in_4bit", "true") ? "in_4bit" : is(r, "in_8bit", "true") ? "in_8bit" : NULL;
        if (bits && dtp_reads_beside(r, "peft"))
            return make_base(r, defaults);
        return bits ? dtp_refuse_fact(r, bits, "is a frozen base without adapters, which nothing trains") : DTP_OK;
    }
    if (!dtp_fact(r, "lora_r") && !defaults->rank)
        return dtp_refuse_fact(r, "adapter", "has no rank; write lora_r");
    enum dtp_status worst = make(r, "lora", "lora_r", defaults->rank);
    const bool engine = dtp_accelerate_runs_deepspeed(r); /* which casts the whole model, adapters too */
    if (!dtp_is_said(r, "runtime") && !engine)
        worst = dtp_worse(worst, dtp_make_key(r, "runtime", "peft", "adapter"));
    if (defaults->linear && is(r, "lora_linear", "true"))
        worst = dtp_worse(worst, dtp_make_key(r, "lora_targets", "all", "lora_linear"));
    else
        worst = dtp_worse(worst, make(r, "lora_targets", "lora_targets", "q+v")); /* peft's of LLaMA's family */
    worst = dtp_worse(worst, make_fused(r));
    worst = dtp_worse(worst, make_alpha(r, defaults));
    worst = dtp_worse(worst, make_ends(r));
    worst = dtp_worse(worst, make_parameters(r));
    worst = dtp_worse(worst, make(r, "lora_dropout", "lora_dropout", defaults->dropout));
    if (is(r, "dora", "true"))
        worst = dtp_worse(worst, dtp_make_key(r, "dora", "true", "dora"));
    if (!engine)
        worst = dtp_worse(worst, dtp_make_key(r, "lora_dtype", "fp32", NULL)); /* autocast_adapter_dtype */
    return defaults->alone ? worst : dtp_worse(worst, make_base(r, defaults));
}

/* ---- the other way ------------------------------------------------------------------------------------------------
 */

/* Transformers' names: "q_proj,v_proj", "qkv_proj". */
static void say_targets(struct dtp_writing *w)
{
    char list[128] = "", one[DTP_TARGETS_BYTES];
    const struct dtp_plan *plan = &dtp_written_job(w)->plan;
    uint32_t targets = plan->adapters.targets;
    if (plan->fused_qkv && targets & DTP_TARGETS_QKV)
        snprintf(list, sizeof list, "qkv_proj"), targets &= ~DTP_TARGETS_QKV;
    if (plan->fused_gate_up && targets & DTP_TARGETS_UP)
        snprintf(list + strlen(list), sizeof list - strlen(list), "%sgate_up_proj", *list ? "," : ""),
            targets &= ~DTP_TARGETS_UP;
    for (int i = 0; i < DTP_TARGET_COUNT; i++)
        if (targets & 1u << i) {
            dtp_targets_text(1u << i, one);
            snprintf(list + strlen(list), sizeof list - strlen(list), "%s%s_proj", *list ? "," : "", one);
        }
    dtp_say(w, "lora_targets", list);
}

void dtp_write_adapters(struct dtp_writing *w)
{
    static const char *const facts[][2] = {
        {"lora_r", "lora"}, {"lora_alpha", "lora_alpha"}, {"lora_dropout", "lora_dropout"}};
    char text[64];
    for (size_t i = 0; i < sizeof facts / sizeof *facts; i++) {
        snprintf(text, sizeof text, "%s", dtp_written_value(w, facts[i][1]));
        dtp_say(w, facts[i][0], text);
    }
    say_targets(w);
    uint32_t parameters = dtp_written_job(w)->plan.adapters.parameters;
    if (parameters)
        dtp_say(w, "parameters",
                !(parameters & 1u << DTP_TARGET_DOWN) ? "mlp.experts.gate_up_proj"
                : !(parameters & 1u << DTP_TARGET_UP) ? "mlp.experts.down_proj"
                                                      : "mlp.experts.gate_up_proj,mlp.experts.down_proj");
    if (dtp_written_job(w)->plan.adapters.train_ends)
        dtp_say(w, "saved_modules", SAVED_ENDS);
    if (dtp_written_job(w)->plan.adapters.dora)
        dtp_say(w, "dora", "true");
}

void dtp_write_base(struct dtp_writing *w, const char *storage)
{
    const struct dtp_plan *plan = &dtp_written_job(w)->plan;
    enum dtp_base base = plan->adapters.base;
    bool bits4 = base == DTP_BASE_NF4 || base == DTP_BASE_NF4_DOUBLE;
    if (bits4) {
        dtp_say(w, "in_4bit", "true");
        dtp_say(w, "nested", base == DTP_BASE_NF4_DOUBLE ? "true" : "false");
        if (dtp_plan_is_fsdp(plan)) /* which flattens weights of one floating-point dtype; their bytes are the same */
            dtp_say_path(w, storage, plan->precision.params == DTP_FP16 ? "float16" : "bfloat16", false);
    }
    if (base == DTP_BASE_INT8)
        dtp_say(w, "in_8bit", "true");
}
