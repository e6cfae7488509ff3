/* Megatron-LM: what its flags say together, and what it does without them. */
#include "import/formats.h"
#include "import/megatron.h"
#include "plan/checkpointing.h"
#include "plan/rules.h"

#include "base/number.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static const struct dtp_row rows[] = {
#include "import/megatron.def"
};

static const char *const signs[] = {"tensor_model_parallel_size", "num_attention_heads", "micro_batch_size",
                                    "use_distributed_optimizer", NULL};

bool dtp_megatron_is(const char *text, const char *word)
{
    return text && strcmp(text, word) == 0;
}

uint64_t dtp_megatron_count(const struct dtp_reading *r, const char *fact, uint64_t otherwise)
{
    uint64_t count;
    const char *text = dtp_fact(r, fact);
    return text && dtp_number_parse_integer(text, false, 1, 1000000000, &count) ? count : otherwise;
}

enum dtp_status dtp_megatron_make(struct dtp_reading *r, enum dtp_status worst, const char *key, const char *value,
                                  const char *fact)
{
    return dtp_worse(worst, dtp_make_key(r, key, value, fact && dtp_fact(r, fact) ? fact : NULL));
}

enum dtp_status dtp_megatron_make_count(struct dtp_reading *r, enum dtp_status worst, const char *key, uint64_t value,
                                        const char *fact)
{
    char text[32];
    snprintf(text, sizeof text, "%" PRIu64, value);
    return dtp_megatron_make(r, worst, key, text, fact);
}

/* Those of experts are keys of their own: where every layer has them, what is left is attention's. */
static enum dtp_status read_biases(struct dtp_reading *r)
{
    bool has = !dtp_fact(r, "no_bias"), experts = dtp_megatron_count(r, "experts", 0) && !dtp_fact(r, "layer_freq");
    enum dtp_status worst = dtp_megatron_make(r, DTP_OK, "bias", has && !experts ? "true" : "false", "no_bias");
    if (!has || !experts)
        return worst;
    worst = dtp_megatron_make(r, worst, "qkv_bias", "true", NULL);
    return dtp_megatron_make(r, worst, "attention_output_bias", "true", NULL);
}

/* arguments.py: LayerNorm, GELU, learned positions, biases and a tied head unless flags say otherwise. */
static enum dtp_status read_model(struct dtp_reading *r)
{
    const char *norm = dtp_fact(r, "normalization"), *position = dtp_fact(r, "position");
    bool rotary = dtp_megatron_is(dtp_fact(r, "rotary"), "true"), untied = dtp_fact(r, "untied") != NULL;
    enum dtp_status worst = DTP_OK;
    if (!dtp_fact(r, "layers") || !dtp_fact(r, "hidden")) /* a list of flags beside a model that is named */
        return DTP_OK;
    if (!dtp_is_said(r, "vocab"))
        worst = dtp_refuse_fact(r, "layers", "the vocabulary is the tokenizer's; give --vocab N");
    if (!position)
        position = rotary ? "rope" : "learned";
    worst = dtp_megatron_make(r, worst, "norm", norm ? norm : "layer_norm", "normalization");
    worst = dtp_megatron_make(r, worst, "activation",
                              dtp_fact(r, "activation")     ? dtp_fact(r, "activation")
                              : dtp_fact(r, "swiglu")       ? "swiglu"
                              : dtp_fact(r, "squared_relu") ? "relu2"
                                                            : "gelu",
                              dtp_fact(r, "activation") ? "activation"
                              : dtp_fact(r, "swiglu")   ? "swiglu"
                                                        : "squared_relu");
    worst = dtp_megatron_make(r, worst, "position", position, rotary ? "rotary" : "position");
    worst = dtp_megatron_make(r, worst, "tied_head", untied ? "false" : "true", "untied");
    worst = dtp_worse(worst, read_biases(r));
    if (dtp_megatron_is(norm, "layer_norm") || !norm) /* which disable_bias_linear leaves alone */
        worst = dtp_megatron_make(r, worst, "norm_bias", "true", "normalization");
    if (dtp_megatron_is(position, "learned") && dtp_fact(r, "positions"))
        worst = dtp_megatron_make(r, worst, "positions", dtp_fact(r, "positions"), "positions");
    worst = dtp_worse(worst, dtp_megatron_read_heads(r));
    uint64_t wide = 4 * dtp_megatron_count(r, "hidden", 0);
    if (dtp_fact(r, "swiglu")) /* int(4 hidden 2/3 / 64) 64 */
        wide = wide * 2 / 3 / 64 * 64;
    if (!dtp_fact(r, "ffn") && dtp_fact(r, "swiglu"))
        worst = dtp_megatron_make_count(r, worst, "ffn", wide, "swiglu");
    return dtp_worse(worst, dtp_megatron_read_experts(r, dtp_megatron_count(r, "ffn", wide)));
}

static enum dtp_status read_cluster(struct dtp_reading *r)
{
    uint64_t each = dtp_megatron_count(r, "each", 0), nodes = dtp_megatron_count(r, "nodes", 1);
    if (!each)
        return DTP_OK;
    enum dtp_status worst = dtp_megatron_make_count(r, DTP_OK, "gpus", each * nodes, "each");
    return nodes > 1 ? dtp_megatron_make_count(r, worst, "gpus_per_node", each, "each") : worst;
}

enum dtp_status dtp_megatron_read_overlap(struct dtp_reading *r, bool sharded, bool reduce, bool gather)
{
    enum dtp_status worst = DTP_OK;
    if (sharded && reduce != gather && !dtp_is_said(r, "megatron_overlap"))
        worst = dtp_refuse_fact(r, reduce ? "overlap_reduce" : "overlap_gather",
                                "one of overlap_grad_reduce and overlap_param_gather is not modelled; both or none");
    return dtp_megatron_make(r, worst, "megatron_overlap", reduce ? "true" : "false",
                             dtp_fact(r, "overlap_reduce") ? "overlap_reduce" : "overlap_gather");
}

static enum dtp_status read_parallel(struct dtp_reading *r)
{
    uint64_t tp = dtp_megatron_count(r, "tp", 1), pp = dtp_megatron_count(r, "pp", 1),
             chunk = dtp_megatron_count(r, "chunk_layers", 0), layers = dtp_megatron_count(r, "layers", 0);
    bool reduce = dtp_fact(r, "overlap_reduce") != NULL, gather = dtp_fact(r, "overlap_gather") != NULL,
         sharded = dtp_fact(r, "sharded") != NULL;
    enum dtp_status worst = dtp_megatron_make(r, DTP_OK, "strategy", sharded ? "zero1" : "ddp", "sharded");
    worst = dtp_worse(worst, dtp_megatron_read_overlap(r, sharded, reduce, gather));
    if (tp > 1)
        worst =
            dtp_megatron_make(r, worst, "sequence_parallel", dtp_fact(r, "sequence") ? "true" : "false", "sequence");
    if (chunk && layers % (pp * chunk))
        return dtp_refuse_fact(r, "chunk_layers", "does not divide %" PRIu64 " layers on %" PRIu64 " ranks", layers,
                               pp);
    if (chunk)
        worst = dtp_megatron_make_count(r, worst, "virtual_stages", layers / pp / chunk, "chunk_layers");
    return worst;
}

/* Layers that stay in bf16: one at either end where no flag says otherwise (transformer_config.py). */
static enum dtp_status read_wide_layers(struct dtp_reading *r, enum dtp_status worst)
{
    if (!dtp_fact(r, "ends_bf16"))
        return worst;
    worst = dtp_megatron_make_count(r, worst, "bf16_first_layers", dtp_megatron_count(r, "first_bf16", 1), "ends_bf16");
    return dtp_megatron_make_count(r, worst, "bf16_last_layers", dtp_megatron_count(r, "last_bf16", 1), "ends_bf16");
}

/* Matmuls in 8 or 4 bits beside bf16: the recipe is delayed where no flag says otherwise (arguments.py,
 * _add_transformer_engine_args), and which of its formats gradients have changes no byte. */
static enum dtp_status read_narrow(struct dtp_reading *r, bool bf16)
{
    bool fp4 = dtp_fact(r, "fp4") != NULL;
    const char *fact = fp4 ? "fp4_recipe" : "fp8_recipe", *recipe = dtp_fact(r, fact);
    if (!bf16)
        return dtp_refuse_fact(r, fp4 ? "fp4" : "fp8", "is modelled beside bf16 alone; give --bf16");
    enum dtp_status worst = dtp_megatron_make(r, DTP_OK, "precision",
                                              recipe ? recipe
                                              : fp4  ? "nvfp4"
                                                     : "fp8-delayed",
                                              recipe ? fact
                                              : fp4  ? "fp4"
                                                     : "fp8");
    if (dtp_fact(r, "narrow_attention"))
        worst = dtp_megatron_make(r, worst, "fp8_attention", "true", "narrow_attention");
    if (dtp_fact(r, "narrow_head"))
        worst = dtp_megatron_make(r, worst, "fp8_head", "true", "narrow_head");
    return read_wide_layers(r, worst);
}

/* Weights that are casts alone, and what the optimizer keeps: moments in fp32 unless it is precision-aware
 * (optimizer_config.py, __post_init__). */
static enum dtp_status read_kept(struct dtp_reading *r, enum dtp_status worst)
{
    const char *first = dtp_fact(r, "first_moment"), *second = dtp_fact(r, "second_moment");
    bool aware = dtp_fact(r, "precision_aware") != NULL, narrow = first && dtp_megatron_is(first, "bf16");
    if (dtp_fact(r, "fp8") && dtp_fact(r, "fp8_weights"))
        worst = dtp_megatron_make(r, worst, "fp8_param_gather", "true", "fp8_weights");
    if (aware)
        worst = dtp_megatron_make(r, worst, "precision_aware_optimizer", "true", "precision_aware");
    if (narrow != (second && dtp_megatron_is(second, "bf16")))
        return dtp_refuse_fact(r, narrow ? "first_moment" : "second_moment", "differs from the other moment's format");
    if (narrow && !aware)
        return dtp_refuse_fact(r, "first_moment", "is not fp32, which takes a precision-aware optimizer");
    return narrow ? dtp_megatron_make(r, worst, "moment_dtype", "bf16", "first_moment") : worst;
}

/* Gradients are summed and reduced in fp32 beside bf16 unless grad_reduce_in_bf16 says otherwise (arguments.py), beside
 * fp16 in fp16 unless accumulate_allreduce_grads_in_fp32 does. */
static enum dtp_status read_formats(struct dtp_reading *r)
{
    bool bf16 = dtp_fact(r, "bf16") != NULL, fp16 = dtp_fact(r, "fp16") != NULL;
    enum dtp_status worst = DTP_OK;
    if (dtp_fact(r, "fp8") || dtp_fact(r, "fp4"))
        worst = read_narrow(r, bf16);
    else
        worst = dtp_megatron_make(r, worst, "precision",
                                  bf16   ? "bf16-mixed"
                                  : fp16 ? "fp16-mixed"
                                         : "fp32",
                                  bf16 ? "bf16" : "fp16");
    worst = read_kept(r, worst);
    if (bf16)
        return dtp_megatron_make(r, worst, "reduce_dtype", dtp_fact(r, "reduce_bf16") ? "bf16" : "fp32", "reduce_bf16");
    if (fp16)
        return dtp_megatron_make(r, worst, "reduce_dtype", dtp_fact(r, "reduce_fp32") ? "fp32" : "fp16", "reduce_fp32");
    return worst;
}

/* Attention's core alone unless recompute_modules names others (transformer_config.py, __post_init__); an older flag
 * adds layers of experts. */
static enum dtp_status read_selective(struct dtp_reading *r, const char *fact)
{
    const char *modules = dtp_fact(r, "modules");
    char text[256];
    if (fact && !modules && !dtp_fact(r, "recompute_experts"))
        return dtp_megatron_make(r, DTP_OK, "checkpointing", "selective-attention", fact);
    snprintf(text, sizeof text, "%s%s", fact ? (modules ? modules : "core_attn") : "",
             dtp_fact(r, "recompute_experts") ? (fact ? ",moe" : "moe") : "");
    enum dtp_status worst = dtp_make_key(r, "checkpointing", "none", NULL);
    if (!text[0])
        return worst;
    return dtp_megatron_make(r, worst, "recompute_modules", text, modules ? "modules" : "recompute_experts");
}

static enum dtp_status read_checkpointing(struct dtp_reading *r)
{
    const char *granularity = dtp_fact(r, "granularity"), *method = dtp_fact(r, "method");
    uint64_t count = dtp_megatron_count(r, "recomputed", 1),
             layers = dtp_megatron_count(r, "layers", 0) / dtp_megatron_count(r, "pp", 1);
    bool older = !granularity && dtp_fact(r, "recompute");
    if (older)
        granularity = "selective";
    if (!granularity || dtp_megatron_is(granularity, "selective"))
        return read_selective(r, older ? "recompute" : granularity ? "granularity" : NULL);
    if ((dtp_megatron_is(method, "uniform") && count != 1) || (dtp_megatron_is(method, "block") && count < layers))
        return dtp_refuse_fact(r, "recomputed", "recomputing %s is not modelled: each layer for itself (uniform, 1) is",
                               dtp_megatron_is(method, "block") ? "some layers of a stage" : "several layers at once");
    return dtp_megatron_make(r, DTP_OK, "checkpointing", "full", "granularity");
}

/* Both 0.1 where no flag says otherwise (arguments.py, _add_regularization_args). */
static enum dtp_status read_dropout(struct dtp_reading *r)
{
    const char *attention = dtp_fact(r, "attention_dropout"), *hidden = dtp_fact(r, "hidden_dropout");
    double one = 0.1, other = 0.1;
    if ((attention && !dtp_number_parse(attention, &one)) || (hidden && !dtp_number_parse(hidden, &other)))
        return dtp_refuse_fact(r, attention ? "attention_dropout" : "hidden_dropout", "is no number");
    if (one != other)
        return dtp_refuse_fact(r, attention ? "attention_dropout" : "hidden_dropout",
                               "and %s %g: one of them alone is not modelled",
                               attention ? "hidden_dropout" : "attention_dropout", attention ? other : one);
    return dtp_make_key(r, "dropout", attention ? attention : "0.1", attention ? "attention_dropout" : NULL);
}

const char *dtp_megatron_fused_loss(const char *kernel)
{
    return kernel && strcmp(kernel, "te") == 0 ? "fused" : "native";
}

static enum dtp_status read_loss(struct dtp_reading *r)
{
    const char *kernel = dtp_fact(r, "loss_kernel"), *own = dtp_fact(r, "own_fused_loss");
    return dtp_megatron_make(r, DTP_OK, "loss", own ? dtp_megatron_fused_loss(kernel) : "eager", "own_fused_loss");
}

/* arguments.py: positions that are learnt have none to fuse. Of a model that is named elsewhere, RoPE's is meant. */
static bool turns_by_operators(struct dtp_reading *r)
{
    const char *position = dtp_fact(r, "position");
    bool learnt =
        dtp_fact(r, "layers") && !dtp_megatron_is(dtp_fact(r, "rotary"), "true") && !dtp_megatron_is(position, "rope");
    return dtp_fact(r, "unfused_rope") && !learnt;
}

enum dtp_status dtp_megatron_read(struct dtp_reading *r)
{
    const char *backend = dtp_fact(r, "backend"), *optimizer = dtp_fact(r, "optimizer");
    enum dtp_status worst = dtp_make_key(r, "runtime", "megatron", NULL);
    worst = dtp_worse(worst, read_model(r));
    worst = dtp_worse(worst, read_cluster(r));
    worst = dtp_worse(worst, read_parallel(r));
    worst = dtp_worse(worst, read_formats(r));
    worst = dtp_worse(worst, read_checkpointing(r));
    worst = dtp_worse(worst, read_dropout(r));
    worst = dtp_megatron_make(r, worst, "attention", backend ? backend : "flash", backend ? "backend" : "flash");
    worst = dtp_worse(worst, read_loss(r));
    if (turns_by_operators(r))
        worst = dtp_megatron_make(r, worst, "unfused_rope", "true", "unfused_rope");
    worst = dtp_megatron_make(r, worst, "optimizer", optimizer ? optimizer : "adamw", "optimizer");
    worst = dtp_megatron_make(r, worst, "fused_qkv", "true", NULL); /* linear_qkv and linear_fc1 are one matmul each */
    return dtp_megatron_make(r, worst, "fused_gate_up", "true", NULL);
}

/* ---- the other way ------------------------------------------------------------------------------------------------
 */

void dtp_megatron_say_if(struct dtp_writing *w, const char *name, bool on)
{
    if (on)
        dtp_say(w, name, "true");
}

static void write_model(struct dtp_writing *w)
{
    static const char *const keys[] = {"layers", "hidden", "heads", "ffn", "vocab", "norm_eps", "seq"};
    const struct dtp_transformer *t = &dtp_written_job(w)->transformer;
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        dtp_say_key(w, keys[i]);
    dtp_megatron_write_heads(w);
    dtp_megatron_write_experts(w);
    if (t->mtp_layers)
        dtp_say_key(w, "mtp_layers");
    dtp_say(w, "normalization", dtp_written_value(w, "norm"));
    dtp_megatron_say_if(w, "swiglu", t->activation == DTP_SWIGLU);
    dtp_say(w, "position", dtp_written_value(w, "position"));
    dtp_say_count(w, "positions", t->positions ? t->positions : dtp_written_job(w)->plan.sequence);
    dtp_megatron_say_if(w, "unfused_rope", dtp_written_job(w)->plan.megatron.unfused_rope);
    dtp_megatron_say_if(w, "untied", !t->tied_head);
    bool biases = t->mlp_bias || t->attention_output_bias;
    dtp_megatron_say_if(w, "no_bias", !biases);
    dtp_megatron_say_if(w, "qkv_bias", t->qkv_bias && !biases);
    dtp_megatron_say_if(w, "norm_unit_offset", t->norm_unit_offset);
    char dropout[40];
    snprintf(dropout, sizeof dropout, "%.15g", dtp_written_job(w)->plan.dropout);
    dtp_say(w, "attention_dropout", dropout);
    dtp_say(w, "hidden_dropout", dropout);
}

static void write_parallel(struct dtp_writing *w)
{
    const struct dtp_plan *plan = &dtp_written_job(w)->plan;
    dtp_say_key(w, "tp");
    dtp_say_key(w, "pp");
    dtp_say_key(w, "cp");
    if (plan->cp > 1)
        dtp_say_key(w, "cp_comm");
    dtp_megatron_say_if(w, "sequence", plan->tp > 1 && plan->sequence_parallel);
    if (plan->pp > 1 && plan->virtual_stages > 1)
        dtp_say_key(w, "virtual_stages");
    if (plan->pp > 1 && plan->stages.cut == DTP_STAGE_CUT_LAYOUT)
        dtp_say_key(w, "stages");
    dtp_megatron_say_if(w, "sharded", plan->strategy == DTP_ZERO1);
    dtp_megatron_say_if(w, "overlap_reduce", plan->megatron.overlap);
    dtp_megatron_say_if(w, "overlap_gather", plan->megatron.overlap && plan->strategy == DTP_ZERO1);
    dtp_megatron_say_if(w, "tp_overlap", plan->tp_overlap);
    if (plan->pp > 1 && plan->virtual_stages > 1 && plan->microbatch_group)
        dtp_say_key(w, "microbatch_group");
}

/* Gradients are e5m2 where a recipe has them so (base/fp8_recipe.def). */
static void write_narrow(struct dtp_writing *w)
{
    enum dtp_fp8_recipe recipe = dtp_written_job(w)->plan.precision.fp8_recipe;
    bool fp4 = recipe == DTP_FP8_NVFP4, scaled = recipe == DTP_FP8_DELAYED || recipe == DTP_FP8_CURRENT;
    dtp_say(w, fp4 ? "fp4" : "fp8", fp4 ? "e2m1" : scaled ? "hybrid" : "e4m3");
    dtp_say(w, fp4 ? "fp4_recipe" : "fp8_recipe", dtp_written_value(w, "precision"));
    const struct dtp_megatron_plan *plan = &dtp_written_job(w)->plan.megatron;
    dtp_megatron_say_if(w, "narrow_attention", plan->fp8_attention);
    dtp_megatron_say_if(w, "narrow_head", plan->fp8_head);
    if (!plan->bf16_first && !plan->bf16_last)
        return;
    dtp_say(w, "ends_bf16", "true");
    dtp_say_count(w, "first_bf16", plan->bf16_first);
    dtp_say_count(w, "last_bf16", plan->bf16_last);
}

static void write_kept(struct dtp_writing *w)
{
    const struct dtp_plan *plan = &dtp_written_job(w)->plan;
    dtp_megatron_say_if(w, "fp8_weights", plan->megatron.fp8_param_gather);
    dtp_megatron_say_if(w, "reused_buffer",
                        plan->megatron.fp8_param_gather && plan->precision.fp8_recipe == DTP_FP8_MXFP8);
    dtp_megatron_say_if(w, "precision_aware", plan->megatron.precision_aware);
    if (!plan->megatron.precision_aware || plan->precision.moments != DTP_BF16)
        return;
    dtp_say(w, "first_moment", "bf16");
    dtp_say(w, "second_moment", "bf16");
}

static void write_checkpointing(struct dtp_writing *w)
{
    const struct dtp_plan *plan = &dtp_written_job(w)->plan;
    if (plan->checkpointing == DTP_CHECKPOINT_FULL) {
        dtp_say(w, "granularity", "full");
        dtp_say(w, "method", "uniform");
        dtp_say_count(w, "recomputed", 1);
    } else if (plan->megatron.recompute || plan->checkpointing != DTP_CHECKPOINT_NONE) {
        dtp_say(w, "granularity", "selective");
    }
    if (plan->megatron.recompute) {
        char modules[DTP_RECOMPUTE_BYTES];
        snprintf(modules, sizeof modules, "%s", dtp_written_value(w, "recompute_modules"));
        for (char *c = modules; *c; c++)
            *c = *c == '+' ? ',' : *c;
        dtp_say(w, "modules", modules);
    }
}

void dtp_megatron_write(struct dtp_writing *w)
{
    const struct dtp_job *job = dtp_written_job(w);
    const struct dtp_plan *plan = &job->plan;
    const struct dtp_precision *p = &plan->precision;
    write_model(w);
    write_parallel(w);
    dtp_say_key(w, "micro_batch");
    dtp_say_count(w, "global_batch", dtp_job_batch_sequences(job));
    bool narrow = p->compute == DTP_FP8;
    dtp_megatron_say_if(w, "bf16", p->compute == DTP_BF16 || narrow);
    if (narrow)
        write_narrow(w);
    write_kept(w);
    dtp_megatron_say_if(w, "fp16", p->compute == DTP_FP16);
    dtp_megatron_say_if(w, "reduce_bf16", (p->compute == DTP_BF16 || narrow) && p->reduce == DTP_BF16);
    dtp_megatron_say_if(w, "reduce_fp32", p->compute == DTP_FP16 && p->reduce == DTP_FP32);
    write_checkpointing(w);
    dtp_say(w, "backend", dtp_attention_text(plan->attention));
    bool native = plan->loss == DTP_LOSS_NATIVE;
    dtp_megatron_say_if(w, "own_fused_loss", plan->loss == DTP_LOSS_FUSED || native);
    if (plan->loss == DTP_LOSS_FUSED || native)
        dtp_say(w, "loss_kernel", native ? "native" : "te");
    dtp_say(w, "optimizer", dtp_optimizer_text(plan->optimizer));
}

const struct dtp_format dtp_format_megatron = {
    .name = "megatron",
    .title = "flags of Megatron-LM",
    .syntaxes = 1u << DTP_SYNTAX_FLAGS,
    .signs = signs,
    .rows = rows,
    .row_count = sizeof rows / sizeof *rows,
    .silent = "the GPU, and without torchrun's flags their number",
    .read = dtp_megatron_read,
    .write = dtp_megatron_write,
};
