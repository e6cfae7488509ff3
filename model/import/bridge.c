/* Megatron-Bridge: a container of Megatron's settings, whole, or as much of it as is put over a recipe. What a recipe
 * would say and the file does not is the model that is named beside it and what recipes of language models share:
 * bf16_mixed, a distributed optimizer that overlaps, a fused loss, no dropout (src/megatron/bridge/recipes). */
#include "import/formats.h"
#include "import/megatron.h"
#include "plan/adapters.h"
#include "plan/graph_modules.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct dtp_row rows[] = {
#include "import/bridge.def"
};

static const char *const signs[] = {"ddp.*",
                                    "train.global_batch_size",
                                    "train.train_iters",
                                    "model.tensor_model_parallel_size",
                                    "perf_matrix*",
                                    "mixed_precision*",
                                    NULL};

static const char *const prefixes[][2] = {{"ConfigContainer.", ""},
                                          {"model_config.", "model."},
                                          {"train_config.", "train."},
                                          {"optimizer_config.", "optimizer."},
                                          {"scheduler_config.", "scheduler."},
                                          {"checkpoint_config.", "checkpoint."},
                                          {"logger_config.", "logger."},
                                          {"dataset_config.", "dataset."},
                                          {"rng_config.", "rng."},
                                          {"ddp_config.", "ddp."},
                                          {"profiling_config.", "profiling."},
                                          {"comm_overlap_config.", "comm_overlap."},
                                          {"tokenizer_config.", "tokenizer."},
                                          {"dist_config.", "dist."},
                                          {NULL, NULL}};

/* ---- the model ----------------------------------------------------------------------------------------------------
 */

/* gpt-oss: gates that are clamped, of which the linear part has 1 added (gpt_oss_provider.py). A file that gates and
 * names no function leaves it to its provider, which has silu (all but Gemma's, whose files name theirs). */
static enum dtp_status read_activation(struct dtp_reading *r)
{
    const char *function = dtp_fact(r, "activation_function");
    bool gated = dtp_fact(r, "gated") != NULL, silu = !function || dtp_megatron_is(function, "silu"),
         quick = dtp_megatron_is(function, "quick_gelu"), clamped = dtp_fact(r, "clamp") != NULL;
    const char *name = gated && silu && !clamped                                    ? "swiglu"
                       : gated && quick && clamped && dtp_fact(r, "gate_offset")    ? "swiglu_clamped"
                       : !gated && (!function || dtp_megatron_is(function, "gelu")) ? "gelu"
                                                                                    : NULL;
    if (!name)
        return dtp_refuse_fact(r, function ? "activation_function" : "gated",
                               "not modelled as an activation: silu with gated_linear_unit, gelu without, or gpt-oss' "
                               "clamped gates are");
    return dtp_megatron_make(r, DTP_OK, "activation", name, function ? "activation_function" : "gated");
}

/* "127,0" is a window of 128 tokens, that of the token itself among them. */
static enum dtp_status read_window(struct dtp_reading *r)
{
    const char *window = dtp_fact(r, "window"), *step = dtp_fact(r, "window_step");
    char *end;
    enum dtp_status worst = DTP_OK;
    if (!window)
        return DTP_OK;
    unsigned long long back = strtoull(window, &end, 10);
    if (end == window || strcmp(end, ",0") != 0 || back > 100000000)
        return dtp_refuse_fact(r, "window", "is no window of so many tokens back, [N, 0]");
    worst = dtp_megatron_make_count(r, worst, "sliding_window", back + 1, "window");
    return step ? dtp_megatron_make(r, worst, "sliding_window_pattern", step, "window_step") : worst;
}

/* Bridge has none at either end unless it says so (mixed_precision.py), where Megatron's flags have one. */
static enum dtp_status check_ends(struct dtp_reading *r)
{
    if (dtp_fact(r, "ends_bf16") && !(dtp_fact(r, "first_bf16") && dtp_fact(r, "last_bf16")))
        return dtp_refuse_fact(r, "ends_bf16", "needs num_layers_at_start_in_bf16 and num_layers_at_end_in_bf16");
    return DTP_OK;
}

/* Of a whole model; of a part over a recipe only what a key says by itself. */
static enum dtp_status read_model(struct dtp_reading *r)
{
    static const char *const shaped[] = {"topk",     "expert_width", "latent",        "q_rank",
                                         "kv_rank",  "key_dim",      "rope_dim",      "value_dim",
                                         "channels", "query_groups", "normalization", "activation_function",
                                         "untied",   "no_bias",      "window"};
    enum dtp_status worst = DTP_OK;
    if (!dtp_fact(r, "hidden")) {
        for (size_t i = 0; i < sizeof shaped / sizeof *shaped; i++)
            if (dtp_fact(r, shaped[i]))
                worst = dtp_refuse_fact(r, shaped[i],
                                        "changes a model whose width only the recipe says; write the "
                                        "model out or give --model config.json without it");
        if (dtp_fact(r, "layer_freq") && !dtp_fact(r, "layers"))
            worst = dtp_refuse_fact(r, "layer_freq", "needs num_layers");
        else
            worst = dtp_worse(worst, dtp_megatron_read_layers(r));
        return worst;
    }
    worst = dtp_worse(read_activation(r), read_window(r));
    if (dtp_fact(r, "query_groups") && !dtp_fact(r, "latent"))
        worst = dtp_megatron_make(r, worst, "kv_heads", dtp_fact(r, "query_groups"), "query_groups");
    if (dtp_fact(r, "zero_centered"))
        worst = dtp_megatron_make(r, worst, "norm_unit_offset", "true", "zero_centered");
    if (dtp_fact(r, "softmax_type"))
        worst = dtp_megatron_make(r, worst, "attention_sinks", "true", "softmax_type");
    if (dtp_fact(r, "experts") && dtp_fact(r, "score"))
        worst = dtp_megatron_make(r, worst, "router", dtp_fact(r, "score"), "score");
    return worst;
}

/* Exchanges on as many SMs as the libraries' own defaults, which their rates were measured with. */
static enum dtp_status check_exchange(struct dtp_reading *r)
{
    bool flex = dtp_megatron_is(dtp_fact(r, "dispatcher"), "flex"),
         hybrid = dtp_megatron_is(dtp_fact(r, "flex_backend"), "hybridep");
    const char *fact = hybrid ? "hybridep_sms" : "deepep_sms", *sms = dtp_fact(r, fact);
    if (flex && sms && strcmp(sms, hybrid ? "16" : "20") != 0)
        return dtp_refuse_fact(r, fact, "not modelled: exchanges on more or fewer SMs; only with %s",
                               hybrid ? "16" : "20");
    return DTP_OK;
}

/* ---- the plan -----------------------------------------------------------------------------------------------------
 */

/* comm_overlap.py: what it does not say of the distributed optimizer is overlapped. */
static enum dtp_status read_overlap(struct dtp_reading *r)
{
    const char *reduce = dtp_fact(r, "plan_reduce"), *gather = dtp_fact(r, "plan_gather");
    bool whole = dtp_fact(r, "hidden") != NULL, planned = reduce || gather || dtp_fact(r, "plans_overlap"),
         sharded = dtp_fact(r, "sharded") || dtp_fact(r, "sharded_too") ||
                   !(dtp_says_fact(r, "sharded") || dtp_says_fact(r, "sharded_too")),
         otherwise = planned || !whole;
    bool reduces = reduce                                           ? dtp_megatron_is(reduce, "true")
                   : !planned && dtp_says_fact(r, "overlap_reduce") ? dtp_fact(r, "overlap_reduce") != NULL
                                                                    : otherwise,
         gathers = gather                                           ? dtp_megatron_is(gather, "true")
                   : !planned && dtp_says_fact(r, "overlap_gather") ? dtp_fact(r, "overlap_gather") != NULL
                                                                    : otherwise;
    enum dtp_status worst = dtp_megatron_make(r, DTP_OK, "strategy", sharded ? "zero1" : "ddp",
                                              dtp_fact(r, "sharded") ? "sharded" : "sharded_too");
    return dtp_worse(worst, dtp_megatron_read_overlap(r, sharded, reduces, sharded && gathers));
}

static enum dtp_status read_parallel(struct dtp_reading *r)
{
    uint64_t tp = dtp_megatron_count(r, "tp", 1), cp = dtp_megatron_count(r, "cp", 1);
    bool embedding = dtp_fact(r, "counts_embedding") != NULL, loss = dtp_fact(r, "counts_loss") != NULL;
    const char *overlap = dtp_fact(r, "plan_tp") ? "plan_tp" : "own_tp",
               *experts = dtp_fact(r, "plan_experts") ? "plan_experts" : "own_experts";
    enum dtp_status worst = read_overlap(r);
    if (dtp_fact(r, overlap) && tp > 1 && dtp_fact(r, "sequence")) /* otherwise it is switched off: comm_overlap.py */
        worst = dtp_megatron_make(r, worst, "tp_overlap", "true", overlap);
    if (dtp_fact(r, experts))
        worst = dtp_megatron_make(r, worst, "expert_overlap", "true", experts);
    if (dtp_fact(r, "context_exchange") && cp > 1)
        worst = dtp_megatron_make(r, worst, "cp_comm", dtp_fact(r, "context_exchange"), "context_exchange");
    if (embedding != loss && !dtp_is_typed(r, "stages"))
        return dtp_refuse_fact(r, embedding ? "counts_embedding" : "counts_loss",
                               "not modelled: stages that count one of embedding and loss alone; give --stages");
    return embedding ? dtp_megatron_make(r, worst, "stages", "counted", "counts_embedding") : worst;
}

/* transformer_engine's graphs are of parts, in a list; local ones of all that is computed (transformer_config.py). */
static enum dtp_status read_graphs(struct dtp_reading *r)
{
    const char *kind = dtp_fact(r, "graph_kind"), *scope = dtp_fact(r, "graph_scope");
    char modules[128];
    if (!kind || dtp_megatron_is(kind, "none"))
        return DTP_OK;
    if (dtp_megatron_is(kind, "whole") != dtp_megatron_is(scope, "full_iteration") || !scope)
        return dtp_refuse_fact(r, "graph_kind",
                               "not modelled: local graphs but of full_iteration, and those of "
                               "transformer_engine without a list of parts in cuda_graph_scope");
    snprintf(modules, sizeof modules, "%s", scope);
    for (char *c = modules; *c; c++)
        *c = *c == ',' ? '+' : *c;
    return dtp_make_key(r, "cuda_graph_modules", modules, "graph_scope");
}

/* mixed_precision.py: gradients are summed in fp32 unless grad_reduce_in_fp32 says otherwise, under fp16_mixed in fp16.
 */
static enum dtp_status read_formats(struct dtp_reading *r)
{
    const char *recipe = dtp_fact(r, "precision_recipe"), *wide = dtp_fact(r, "reduce_wide");
    bool stated = dtp_fact(r, "bf16") || dtp_fact(r, "fp16"),
         fp16 = recipe ? dtp_megatron_is(recipe, "fp16-mixed") : dtp_fact(r, "fp16") != NULL;
    const char *sums = wide             ? (dtp_megatron_is(wide, "true") ? "fp32"
                                           : fp16                        ? "fp16"
                                                                         : "bf16")
                       : fp16 && recipe ? "fp16"
                                        : "fp32";
    enum dtp_status worst = DTP_OK;
    if (recipe || !stated)
        worst = dtp_megatron_make(r, worst, "precision", recipe ? recipe : "bf16-mixed", "precision_recipe");
    return dtp_megatron_make(r, worst, "reduce_dtype", sums, "reduce_wide");
}

/* ---- adapters ---------------------------------------------------------------------------------------------------- */

/* Linears of Megatron-Core and what we call the projections that each is. */
static const struct {
    const char *theirs, *ours;
    uint32_t targets;
} linears[] = {{"linear_qkv", "q+k+v", DTP_TARGETS_QKV},
               {"linear_proj", "o", 1u << DTP_TARGET_OUTPUT},
               {"linear_fc1", "gate+up", DTP_TARGETS_UP},
               {"linear_fc2", "down", 1u << DTP_TARGET_DOWN}};

/* A linear of a list as ours; of fc1 without gates up alone. */
static const char *target_of(const struct dtp_reading *r, const char *word, size_t length, uint32_t *found)
{
    const bool plain = dtp_fact(r, "hidden") && !dtp_fact(r, "gated");
    for (size_t i = 0; i < sizeof linears / sizeof *linears; i++)
        if (strlen(linears[i].theirs) == length && !strncmp(word, linears[i].theirs, length)) {
            *found |= linears[i].targets;
            return linears[i].targets == DTP_TARGETS_UP && plain ? "up" : linears[i].ours;
        }
    return NULL;
}

static enum dtp_status read_targets(struct dtp_reading *r)
{
    const char *list = dtp_fact(r, "lora_targets");
    char text[80] = "";
    uint32_t found = 0;
    for (const char *at = list ? list : ""; *at; at += *at == ',') {
        const size_t length = strcspn(at, ","), used = strlen(text);
        const uint32_t before = found;
        const char *ours = target_of(r, at, length, &found);
        if (!ours)
            return dtp_refuse_fact(r, "lora_targets",
                                   "names other modules than linear_qkv, linear_proj, linear_fc1 and linear_fc2, whose "
                                   "adapters alone are modelled");
        if (found != before)
            snprintf(text + used, sizeof text - used, "%s%s", used ? "+" : "", ours);
        at += length;
    }
    if (list && !found)
        return dtp_refuse_fact(r, "lora_targets", "names no linear, so that nothing would be trained");
    return dtp_make_key(r, "lora_targets", found == DTP_TARGETS_ALL || !found ? "all" : text,
                        list ? "lora_targets" : NULL);
}

/* LoRA of peft/lora.py, by its defaults; recipes have it as cfg.peft. */
static enum dtp_status read_adapters(struct dtp_reading *r)
{
    static const char *const facts[] = {"adapter", "lora_r", "lora_alpha", "lora_dropout", "lora_targets"};
    const char *rank = dtp_fact(r, "lora_r"), *alpha = dtp_fact(r, "lora_alpha");
    bool any = false;
    for (size_t i = 0; i < sizeof facts / sizeof *facts; i++)
        any |= dtp_fact(r, facts[i]) != NULL;
    if (!any)
        return DTP_OK;
    enum dtp_status worst = dtp_make_key(r, "lora", rank ? rank : "32", rank ? "lora_r" : NULL);
    worst = dtp_worse(worst, dtp_make_key(r, "lora_alpha", alpha ? alpha : "32", alpha ? "lora_alpha" : NULL));
    if (dtp_fact(r, "lora_dropout"))
        worst = dtp_worse(worst, dtp_make_key(r, "lora_dropout", dtp_fact(r, "lora_dropout"), "lora_dropout"));
    return dtp_worse(worst, read_targets(r));
}

static enum dtp_status read_settings(struct dtp_reading *r)
{
    bool whole = dtp_fact(r, "hidden") != NULL;
    const char *loss = dtp_fact(r, "loss_fusion"), *sequence = dtp_fact(r, "model_sequence");
    /* Fused is the default of its GPTModelProvider (models/gpt_provider.py). */
    if (!loss || strcmp(loss, "eager") != 0)
        loss = dtp_megatron_fused_loss(dtp_fact(r, "loss_kernel"));
    enum dtp_status worst = read_model(r);
    worst = dtp_worse(worst, check_exchange(r));
    worst = dtp_worse(worst, check_ends(r));
    worst = dtp_worse(worst, read_parallel(r));
    worst = dtp_worse(worst, read_graphs(r));
    worst = dtp_worse(worst, read_formats(r));
    worst = dtp_worse(worst, read_adapters(r));
    worst = dtp_megatron_make(r, worst, "loss", loss, "loss_fusion");
    if (sequence && !dtp_fact(r, "seq"))
        worst = dtp_megatron_make(r, worst, "seq", sequence, "model_sequence");
    if (!whole && !dtp_fact(r, "attention_dropout") && !dtp_fact(r, "hidden_dropout"))
        worst = dtp_megatron_make(r, worst, "dropout", "0", NULL);
    return dtp_worse(worst, dtp_megatron_read(r));
}

/* ---- the other way ------------------------------------------------------------------------------------------------
 */

#define CLAMP "7.0" /* gpt-oss' (gpt_oss_provider.py) */

static void write_activation(struct dtp_writing *w)
{
    enum dtp_activation activation = dtp_written_job(w)->transformer.activation;
    bool clamped = activation == DTP_SWIGLU_CLAMPED, gated = clamped || activation == DTP_SWIGLU;
    if (!gated && !dtp_activation_is_gelu(activation)) {
        dtp_refuse_writing(w, "activation = %s: has none but gelu, swiglu and swiglu_clamped",
                           dtp_written_value(w, "activation"));
        return;
    }
    dtp_say_path(w, "model.gated_linear_unit", gated ? "true" : "false", false);
    dtp_say(w, "activation_function", clamped ? "quick_gelu" : gated ? "silu" : "gelu");
    if (clamped) {
        dtp_say(w, "clamp", CLAMP);
        dtp_say(w, "gate_offset", "1");
    }
}

static void write_net(struct dtp_writing *w)
{
    const struct dtp_transformer *t = &dtp_written_job(w)->transformer;
    char window[40];
    write_activation(w);
    if (!t->kv_latent)
        dtp_say_count(w, "query_groups", t->kv_heads);
    dtp_megatron_say_if(w, "zero_centered", t->norm_unit_offset);
    dtp_megatron_say_if(w, "softmax_type", t->attention_sinks);
    if (t->sliding_window) { /* the token itself is one of them */
        snprintf(window, sizeof window, "%" PRIu64 ",0", t->sliding_window - 1);
        dtp_say(w, "window", window);
        if (t->sliding_window_pattern)
            dtp_say_count(w, "window_step", t->sliding_window_pattern);
    }
    if (t->experts)
        dtp_say(w, "score", dtp_written_value(w, "router"));
}

/* What a recipe would have otherwise is said, off as well as on. */
static void write_overlaps(struct dtp_writing *w)
{
    const struct dtp_plan *plan = &dtp_written_job(w)->plan;
    bool sharded = plan->strategy == DTP_ZERO1;
    dtp_say_path(w, "ddp.use_distributed_optimizer", sharded ? "true" : "false", false);
    dtp_say_path(w, "ddp.overlap_grad_reduce", plan->megatron.overlap ? "true" : "false", false);
    dtp_say_path(w, "ddp.overlap_param_gather", plan->megatron.overlap && sharded ? "true" : "false", false);
    dtp_megatron_say_if(w, "own_tp", plan->tp_overlap);
    dtp_megatron_say_if(w, "own_experts", plan->megatron.expert_overlap);
    if (plan->cp > 1)
        dtp_say(w, "context_exchange", dtp_written_value(w, "cp_comm"));
    if (plan->pp > 1 && plan->stages.cut == DTP_STAGE_CUT_COUNTED) {
        dtp_say(w, "counts_embedding", "true");
        dtp_say(w, "counts_loss", "true");
    }
}

/* Parts in Transformer Engine's graphs, a whole step in a local one. */
static void write_graphs(struct dtp_writing *w)
{
    const struct dtp_plan *plan = &dtp_written_job(w)->plan;
    char modules[DTP_GRAPHS_BYTES];
    if (!plan->megatron.graphs)
        return;
    dtp_graphs_text(plan->megatron.graphs, modules);
    for (char *c = modules; *c; c++)
        *c = *c == '+' ? ',' : *c;
    dtp_say(w, "graph_kind", plan->megatron.graphs == 1u << DTP_GRAPH_FULL_ITERATION ? "whole" : "modules");
    dtp_say(w, "graph_scope", modules);
}

/* No alpha of ours is no factor, which alpha = dim is. */
static void write_adapters(struct dtp_writing *w)
{
    const struct dtp_adapter_choice *a = &dtp_written_job(w)->plan.adapters;
    char targets[80] = "";
    if (!a->rank)
        return;
    for (size_t i = 0; i < sizeof linears / sizeof *linears; i++) {
        const size_t used = strlen(targets);
        if (a->targets & linears[i].targets)
            snprintf(targets + used, sizeof targets - used, "%s%s", used ? "," : "", linears[i].theirs);
    }
    dtp_say(w, "adapter", "lora");
    dtp_say_count(w, "lora_r", a->rank);
    if (a->alpha > 0)
        dtp_say(w, "lora_alpha", dtp_written_value(w, "lora_alpha"));
    else
        dtp_say_count(w, "lora_alpha", a->rank);
    dtp_say(w, "lora_dropout", dtp_written_value(w, "lora_dropout"));
    dtp_say(w, "lora_targets", targets);
}

static void write_settings(struct dtp_writing *w)
{
    const struct dtp_plan *plan = &dtp_written_job(w)->plan;
    dtp_megatron_write(w);
    write_net(w);
    write_overlaps(w);
    write_graphs(w);
    write_adapters(w);
    dtp_say(w, "reduce_wide", plan->precision.reduce == DTP_FP32 ? "true" : "false");
    dtp_say(w, "loss_fusion", plan->loss == DTP_LOSS_FUSED || plan->loss == DTP_LOSS_NATIVE ? "fused" : "eager");
    dtp_say_count(w, "model_sequence", plan->sequence);
}

const struct dtp_format dtp_format_bridge = {
    .name = "bridge",
    .title = "Megatron-Bridge's configuration",
    .syntaxes = 1u << DTP_SYNTAX_YAML,
    .signs = signs,
    .rows = rows,
    .row_count = sizeof rows / sizeof *rows,
    .prefixes = prefixes,
    .silent = "the GPUs and, over a recipe, the model",
    .read = read_settings,
    .write = write_settings,
    .writes_yaml = true,
};
