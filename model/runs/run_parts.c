/* What a row has beyond a dense model of plain attention whose weights are all trained in 16 bits: columns of run
 * tables that say more than the program can predict are refused here, by the name of what is missing. Each subject is a
 * function of its own; once it is modelled, its columns become settings there. */
#include "plan/checkpointing.h"
#include "net/models.h"
#include "plan/graph_modules.h"
#include "plan/runtime_sizes.h"
#include "runs/run_writer.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* ---- what layers are of ---------------------------------------------------------------------------------------- */

static void write_expert_dimensions(struct writer *w, const struct dtp_transformer *shape)
{
    set_count(w, "experts", shape->experts);
    set_count(w, "experts_per_token", shape->experts_per_token);
    set_count(w, "expert_ffn", shape->expert_ffn);
    set_count(w, "shared_expert_ffn", shape->shared_expert_ffn);
    set_switch(w, "shared_expert_gate", shape->shared_expert_gate);
    set_count(w, "dense_layers", shape->dense_layers);
    set_count(w, "expert_layer_step", shape->expert_layer_step);
    set(w, "router", "%s", dtp_router_text(shape->router));
    set_switch(w, "router_norm", shape->router_norm);
    set(w, "router_scale", "%g", shape->router_scale);
    set_switch(w, "router_on_input", shape->router_on_input);
    set_switch(w, "router_bias", shape->router_bias);
    set_switch(w, "expert_bias", shape->expert_bias);
    set_count(w, "expert_groups", shape->expert_groups);
    set_count(w, "groups_per_token", shape->groups_per_token);
}

static void write_latents(struct writer *w, const struct dtp_transformer *shape)
{
    set_count(w, "q_latent", shape->q_latent);
    set_count(w, "kv_latent", shape->kv_latent);
    set_count(w, "rope_head_dim", shape->rope_head_dim);
    set_count(w, "value_head_dim", shape->value_head_dim);
}

/* "pp_layout=LAYOUT" of notes; NULL: they have none. */
static const char *noted_layout(const struct dtp_run *run, size_t *length)
{
    static const char word[] = "pp_layout=";
    const char *note = strstr(run->notes, word);
    *length = note ? strcspn(note + strlen(word), "; ") : 0;
    return note ? note + strlen(word) : NULL;
}

/* Modules that predict further ahead, as notes like "MTP layers=1" count them, else the letters m of their layout:
 * Megatron-Core refuses one that has more or fewer than mtp_num_layers (validate_layer_layout). Where notes have both,
 * resolving compares them. */
static uint64_t layers_ahead(const struct dtp_run *run)
{
    static const char word[] = "MTP layers=";
    const char *note = strstr(run->notes, word);
    if (note)
        return strtoull(note + strlen(word), NULL, 10);
    size_t length;
    const char *layout = noted_layout(run, &length);
    uint64_t count = 0;
    for (size_t i = 0; i < length; i++)
        count += layout[i] != 'm' ? 0 : layout[i + 1] == '*' ? strtoull(layout + i + 2, NULL, 10) : 1;
    return count;
}

void dtp_run_write_kinds(struct writer *w, const struct dtp_transformer *shape)
{
    if (shape->kv_latent)
        write_latents(w, shape);
    if (shape->experts)
        write_expert_dimensions(w, shape);
}

void dtp_run_write_ahead(struct writer *w)
{
    if (layers_ahead(w->run))
        set_count(w, "mtp_layers", layers_ahead(w->run));
}

void dtp_run_write_layout(struct writer *w)
{
    size_t length;
    const char *layout = noted_layout(w->run, &length);
    if (layout)
        set(w, "stages", "%.*s", (int)length, layout);
}

/* ---- experts --------------------------------------------------------------------------------------------------- */

/* What notes of some rows say of experts that is not modelled. A rank's capacity is the size of Megatron-Core's buffers
 * for rows whose number stays on the device (moe_expert_rank_capacity_factor); it drops none of balanced ones. */
static void refuse_ways(struct writer *w)
{
    static const char *const words[] = {"capacity factor", "ScatterMoE", "scattermoe", "Megatron-FSDP"};
    static const char of_rank[] = "rank ";
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        const char *note = strstr(w->run->notes, words[i]);
        bool rank = note && note - w->run->notes >= (ptrdiff_t)strlen(of_rank) &&
                    memcmp(note - strlen(of_rank), of_rank, strlen(of_rank)) == 0;
        if (note && !rank)
            REFUSE(w, "experts with '%s', as notes say, are not modelled", words[i]);
    }
    if (strstr(w->run->notes, "real dropless"))
        UNSTATED(w, "how many tokens the fullest rank receives under real routing, as notes have it, is not stated");
}

/* Exchanges that run beside another micro-batch. */
static bool overlaps_exchanges(const struct dtp_run *run)
{
    static const char *const words[] = {"overlap on", "A2A overlap", "EP overlap", "all-to-all overlap"};
    for (size_t i = 0; i < sizeof words / sizeof *words && !strstr(run->notes, "overlap off"); i++)
        if (strstr(run->notes, words[i]))
            return true;
    return false;
}

/* Parts that run again, as notes name them behind "recompute": "recompute=layernorm+moe_act", "recompute norm, act",
 * "recompute_modules=[moe_act]", "recompute selective(mlp moe_act)". */
static uint32_t recomputed_parts(const struct dtp_run *run)
{
    static const struct {
        const char *word;
        enum dtp_recompute part;
    } words[] = {{"core_attn", DTP_RECOMPUTE_CORE_ATTN},
                 {"moe_act", DTP_RECOMPUTE_MOE_ACT},
                 {"act", DTP_RECOMPUTE_MOE_ACT},
                 {"layernorm", DTP_RECOMPUTE_LAYERNORM},
                 {"norm", DTP_RECOMPUTE_LAYERNORM},
                 {"mla_up_proj", DTP_RECOMPUTE_MLA_UP_PROJ},
                 {"mlp", DTP_RECOMPUTE_MLP},
                 {"moe", DTP_RECOMPUTE_MOE},
                 {"shared_experts", DTP_RECOMPUTE_SHARED_EXPERTS}};
    static const char letters[] = "abcdefghijklmnopqrstuvwxyz_", letters_or_end[] = "abcdefghijklmnopqrstuvwxyz_;";
    const char *note = strstr(run->notes, "recompute");
    uint32_t set = 0;
    for (; note && *note && *note != ';'; note += strcspn(note, letters_or_end)) {
        size_t length = strspn(note, letters), i = 0;
        while (i < sizeof words / sizeof *words &&
               (strlen(words[i].word) != length || memcmp(words[i].word, note, length) != 0))
            i++;
        set |= i < sizeof words / sizeof *words ? 1u << words[i].part : 0;
        note += length;
    }
    return set;
}

/* What CUDA graphs replay, as notes have it: "cuda_graph=IMPLEMENTATION:MODULES", modules joined by '+', the whole
 * iteration as either; "CUDA graphs attn+router+preprocess", without "moe_"; "partial graphs (attn, moe_router)", and
 * without a list those of Megatron-LM's recipes of that name, whose cuda_graph_scope is attn, moe_router,
 * moe_preprocess (examples/moe_recipes, ..._partial_cg.yaml). */
static uint32_t noted_graphs(const struct dtp_run *run)
{
    static const struct {
        const char *word;
        enum dtp_graph_module module;
    } words[] = {{"attn", DTP_GRAPH_ATTN},
                 {"mlp", DTP_GRAPH_MLP},
                 {"moe_router", DTP_GRAPH_MOE_ROUTER},
                 {"router", DTP_GRAPH_MOE_ROUTER},
                 {"moe_preprocess", DTP_GRAPH_MOE_PREPROCESS},
                 {"preprocess", DTP_GRAPH_MOE_PREPROCESS},
                 {"full_iteration", DTP_GRAPH_FULL_ITERATION}};
    static const char *const keys[] = {"cuda_graph=", "CUDA graphs ", "partial graphs ("};
    const uint32_t routing = 1u << DTP_GRAPH_MOE_ROUTER | 1u << DTP_GRAPH_MOE_PREPROCESS;
    const bool listed = strstr(run->notes, keys[2]);
    uint32_t set = strstr(run->notes, "router/preprocess graphs") ? routing : 0;
    if (!listed && (strstr(run->notes, "partial graphs") || strstr(run->notes, "partial CUDA graphs")))
        set |= routing | 1u << DTP_GRAPH_ATTN;
    for (size_t k = 0; k < sizeof keys / sizeof *keys; k++) {
        const char *note = strstr(run->notes, keys[k]);
        for (note = note ? note + strlen(keys[k]) : ""; *note && *note != ';'; note += strspn(note, "+:,() ")) {
            size_t length = strcspn(note, "+:,(); ");
            for (size_t i = 0; i < sizeof words / sizeof *words; i++)
                if (strlen(words[i].word) == length && memcmp(words[i].word, note, length) == 0)
                    set |= 1u << words[i].module;
            note += length;
        }
    }
    if (strstr(run->notes, "full-iteration graph"))
        set |= 1u << DTP_GRAPH_FULL_ITERATION;
    return set >> DTP_GRAPH_FULL_ITERATION & 1 ? 1u << DTP_GRAPH_FULL_ITERATION : set;
}

static void write_graphs(struct writer *w)
{
    char modules[DTP_GRAPHS_BYTES];
    uint32_t set = noted_graphs(w->run);
    if (strstr(w->run->notes, "attention CUDA graphs")) /* captured, it is counted; replayed, what it keeps is not */
        REFUSE(w, "what the allocator counts of attention without a fused kernel in CUDA graphs is not modelled");
    if (!set || strcmp(w->framework->runtime, "megatron") != 0)
        return;
    dtp_graphs_text(set, modules);
    set_text(w, "cuda_graph_modules", modules);
}

/* Megatron-Bridge's, by default: experts take as many rows as the mean, and are filled up to that, which goes with
 * all-to-alls alone (training/utils/moe_token_drop.py). */
static bool drops_tokens(const struct dtp_run *run)
{
    return strstr(run->notes, "token-drop MoE");
}

static bool is_flex(const struct dtp_run *run)
{
    return !drops_tokens(run) && (strcasestr(run->notes, "DeepEP") || strcasestr(run->notes, "HybridEP"));
}

/* The model's dimensions are the shape's (run_shape.c); here how ranks divide its experts. Which runtimes have experts
 * says resolving. */
static void write_experts(struct writer *w)
{
    const struct dtp_run *run = w->run;
    if (run->experts && (!run->top_k || !run->expert_ffn))
        UNSTATED(w, "n_experts %" PRIu64 " without top_k or moe_ffn_hidden: what a token passes is not stated",
                 run->experts);
    if (run->experts) {
        refuse_ways(w);
        if (run->ep > 1)
            set_count(w, "ep", run->ep);
        if (run->etp > 1)
            set_count(w, "etp", run->etp);
        if (run->ep > 1 && is_flex(run))
            set_switch(w, "flex_dispatcher", true);
        if (strcmp(w->framework->runtime, "megatron") == 0 && strstr(run->notes, "no fused permutation"))
            set_switch(w, "unfused_permute", true);
        if (strcmp(w->framework->runtime, "megatron") == 0 && strstr(run->notes, "fp8 attention"))
            set_switch(w, "fp8_attention", true);
        if (strcmp(w->framework->runtime, "megatron") == 0 && strstr(run->notes, "fp8 head"))
            set_switch(w, "fp8_head", true);
        if (strcmp(w->framework->runtime, "megatron") == 0 && drops_tokens(run)) {
            set_count(w, "capacity_factor", 1);
            set_switch(w, "pad_to_capacity", true);
        }
        if (run->ep > 1 && overlaps_exchanges(run))
            set_switch(w, "expert_overlap", true);
        char parts[DTP_RECOMPUTE_BYTES];
        dtp_recompute_text(recomputed_parts(run), parts);
        set_text(w, "recompute_modules", parts);
    } else if (run->ep > 1 || run->etp > 1)
        UNSTATED(w, "ep %" PRIu64 " or etp %" PRIu64 " without n_experts: which layers have experts is not stated",
                 run->ep, run->etp);
}

/* ---- attention ------------------------------------------------------------------------------------------------- */

/* Megatron's flag, as notes have it of rows that set it, and of those whose code is older than the fusion. */
static const char rope_by_operators[] = "no-rope-fusion";
/* Megatron-Core fuses latent attention's RoPE where that is YaRN's alone (MLATransformerConfig, transformer_config.py);
 * of the models with latents this one's is another (config.json of moonshotai/Moonlight-16B-A3B). */
static const char plain_latent_rope[] = "Moonlight";

static void write_attention(struct writer *w)
{
    static const char *const known[] = {"", "mha", "gqa", "mqa", "mla"};
    const char *word = w->run->attention;
    size_t i = 0;
    while (i < sizeof known / sizeof *known && strcasecmp(word, known[i]) != 0)
        i++;
    if (i == sizeof known / sizeof *known)
        REFUSE(w, "attention '%.20s' is unknown; known: mha, gqa, mqa, mla", word);
    bool plain_latents = strcasecmp(word, "mla") == 0 && strstr(w->run->model_name, plain_latent_rope);
    if (strcmp(w->framework->runtime, "megatron") == 0 && (plain_latents || strstr(w->run->notes, rope_by_operators)))
        set_switch(w, "unfused_rope", true);
}

/* ---- adapters -------------------------------------------------------------------------------------------------- */

/* Words of notes for the linears that have adapters, the longer ones first; q, k and v packed are as good as three of
 * the same rank in what is kept. */
static const struct {
    const char *words, *targets;
} target_notes[] = {{"all seven linears", "all"},
                    {"c_attn,c_proj,w1,w2", "all"},
                    {"q_proj k_proj v_proj o_proj", "attention"},
                    {"on q,k,v,o", "attention"},
                    {"all-linear", "all"}};

/* The words "lora_targets=q+v", of any linears, before the table. False: there is neither. */
static bool noted_targets(const char *notes, char out[DTP_TARGETS_BYTES])
{
    static const char word[] = "lora_targets=";
    const char *at = strstr(notes, word);
    if (at) {
        snprintf(out, DTP_TARGETS_BYTES, "%.*s", (int)strcspn(at + strlen(word), "; "), at + strlen(word));
        return true;
    }
    for (size_t i = 0; i < sizeof target_notes / sizeof *target_notes; i++)
        if (strstr(notes, target_notes[i].words))
            return snprintf(out, DTP_TARGETS_BYTES, "%s", target_notes[i].targets), true;
    return false;
}

/* Where notes do not say that adapters are in 16 bits, peft makes them fp32 beside a 16-bit base, under autocast or not
 * (autocast_adapter_dtype of get_peft_model, true by default); others' recipe may say that all is in 16 bits. */
static bool narrow_adapters(const struct writer *w)
{
    const struct dtp_run *run = w->run;
    const char *strategy = run->strategy_key; /* DeepSpeed casts the whole model */
    if (strstr(run->notes, "adapters stored in fp32"))
        return false;
    return w->framework->narrow_adapters || strstr(run->notes, "adapters stored in bf16") ||
           (strstr(run->precision_recipe, "pure") && strcmp(w->framework->runtime, "peft") != 0) ||
           strcmp(strategy, "zero2") == 0 || strcmp(strategy, "zero3") == 0;
}

static void write_trainer_sizes(struct writer *w)
{
    uint64_t hidden = w->run->hidden;
    set_count(w, "reduce_bucket_size", DTP_TRAINER_REDUCE_BUCKET * hidden * hidden);
    set_count(w, "stage3_prefetch_bucket_size", (uint64_t)(DTP_TRAINER_PREFETCH * (double)(hidden * hidden)));
    set_count(w, "stage3_param_persistence_threshold", DTP_TRAINER_PERSISTENCE * hidden);
}

void dtp_run_write_engine(struct writer *w)
{
    const struct dtp_run_framework *framework = w->framework;
    if (framework->single) { /* Transformers of 2023 and 2024 */
        set_switch(w, "transformers_layers", true);
        set_switch(w, "shifted_logits", true);
    }
    if (framework->deepspeed_overlap) /* ZeRO-3 has no say in it */
        set_switch(w, "deepspeed_overlap", true);
    if (framework->reduce_bucket && strcmp(w->run->strategy_key, "zero3") == 0) /* all "auto" in its config */
        write_trainer_sizes(w);
    else if (framework->reduce_bucket)
        set_count(w, "reduce_bucket_size", framework->reduce_bucket);
}

/* What recipes say where a row does not: Megatron-Bridge's for Llama 3 70B in all releases with LoRA summaries
 * (llama3_70b_peft_config: dim 16; scripts/performance, llama3_70b_lora_config_*: linear_qkv), NeMo's of 2024 for Llama
 * 2 (NeMo-Framework-Launcher's conf/peft/llama: adapter_dim 32; LoraPEFTConfig of NeMo's peft_config.py:
 * attention_qkv). */
static const struct recipe_adapters {
    const char *framework, *model;
    uint64_t rank;
    const char *targets;
} recipe_adapters[] = {{"Megatron-Bridge", "Llama-3-70B", 16, "q+k+v"}, {"NeMo", "Llama-2", 32, "q+k+v"}};

static const struct recipe_adapters *recipe_of(const struct writer *w)
{
    const struct dtp_run *run = w->run;
    for (size_t i = 0; i < sizeof recipe_adapters / sizeof *recipe_adapters; i++)
        if (strcmp(w->framework->word, recipe_adapters[i].framework) == 0 &&
            strstr(run->model_name, recipe_adapters[i].model) == run->model_name)
            return &recipe_adapters[i];
    return NULL;
}

/* A row that says how its frozen base is kept has adapters, whether it states their rank or not. */
static void write_adapters(struct writer *w)
{
    const struct dtp_run *run = w->run;
    const char *base = run->quantised_base;
    char targets[DTP_TARGETS_BYTES];
    if (w->framework->narrow_logits)
        set_switch(w, "narrow_logits", true);
    else if (w->framework->shifted_logits && strcmp(w->framework->runtime, "peft") == 0)
        set_switch(w, "shifted_logits", true);
    if (!run->lora_rank && !*base)
        return;
    const struct recipe_adapters *recipe = run->lora_rank ? NULL : recipe_of(w);
    if (recipe) {
        set_count(w, "lora", recipe->rank);
        set_text(w, "lora_targets", recipe->targets);
        return;
    }
    if (!run->lora_rank) {
        UNSTATED(w, "lora_rank is not stated (quantised_base %.20s): how many weights are trained is unknown", base);
        return;
    }
    if (!noted_targets(run->notes, targets)) {
        UNSTATED(w,
                 "which linears have adapters (lora_rank %" PRIu64 ") is not stated in notes; write lora_targets=all "
                 "there, or q+v and the like, as --lora-targets",
                 run->lora_rank);
        return;
    }
    set_count(w, "lora", run->lora_rank);
    if (w->framework->gptq_operators)
        set_switch(w, "gptq_operators", true);
    if (strstr(run->notes, "embedding and output layer trained"))
        set_switch(w, "train_ends", true);
    set_text(w, "lora_targets", targets);
    const char *runtime = w->framework->runtime;
    if (!narrow_adapters(w) && strcmp(runtime, "deepspeed") != 0 && strcmp(runtime, "megatron") != 0)
        set_text(w, "lora_dtype", "fp32");
    /* fms-acceleration's plugin packs scales of bitsandbytes' 4 bits (framework_plugin_bnb.py) */
    if (*base)
        set_text(w, "base", strstr(run->notes, "peft-bnb") ? "nf4-double" : base);
    if (strstr(run->notes, "prepare_model_for_kbit_training"))
        set_switch(w, "prepare_kbit", true);
}

/* ---- recipes of precision -------------------------------------------------------------------------------------- */

/* Words of the column, and the precision that each is; NULL: what param_dtype, fp8 and the word "pure" say, of fp8 what
 * the framework does where its row does not tell. */
static const struct {
    const char *word, *precision;
} recipes[] = {{"", NULL},
               {"bf16", NULL},
               {"fp16", NULL},
               {"bf16 pure", NULL},
               {"bf16-pure", NULL},
               {"bf16-mixed", NULL},
               {"fp16-mixed", NULL},
               {"bf16 autocast", NULL},
               {"fp16 autocast", NULL},
               {"fp8 (per-tensor)", NULL},
               {"fp8 (per-tensor; scaling not stated)", NULL},
               {"fp8-tensorwise", "fp8-tensorwise"},
               {"fp8-current-tensorwise", "fp8-current"}, /* Transformer Engine's name of a scale of this step */
               {"fp8-delayed", "fp8-delayed"},
               {"fp8-blockwise", "fp8-blockwise"},
               {"fp8-rowwise", "fp8-rowwise"},
               {"fp8-rowwise_with_gw_hp", "fp8-rowwise-gw-hp"},
               {"mxfp8", "mxfp8"},
               {"mxfp8 (cublas)", "mxfp8"},
               {"mxfp8 (cublas, rceil)", "mxfp8"}, /* how scales are rounded costs nothing */
               {"nvfp4", "nvfp4"}};

/* Where the column is empty, in the notes: Megatron-Bridge's summaries, torchtitan's. Of two the first, whose figures
 * the row has. */
static const struct {
    const char *words, *precision;
} noted_recipes[] = {{"precision=MXFP8", "mxfp8"},
                     {"precision=FP8-CS", "fp8-current"},
                     {"rowwise", "fp8-rowwise"},
                     {"tensorwise", "fp8-tensorwise"}};

/* What the column may say behind torchao's recipes, in this order; param_dtype and fp8_all_gather are made of them. Of
 * these recipes one alone gathers in 8 bits. */
static const char tensorwise[] = "fp8-tensorwise", bf16_state[] = " bf16 state",
                  narrow_gather[] = ", float8 all-gather", wide_gather[] = ", bfloat16 all-gather";

static const char *behind(const char *column, const char *word)
{
    return strncmp(column, word, strlen(word)) == 0 ? column + strlen(word) : NULL;
}

static bool is_recipe(const char *column, const char *word)
{
    const char *rest = behind(column, word), *next;
    const bool scales_tensors = strcmp(word, tensorwise) == 0, torchao = scales_tensors || behind(word, "fp8-rowwise");
    if (!rest || !*rest || !torchao)
        return rest && !*rest;
    rest = (next = behind(rest, bf16_state)) ? next : rest;
    rest = scales_tensors && (next = behind(rest, narrow_gather)) ? next : rest;
    rest = (next = behind(rest, wide_gather)) ? next : rest;
    return !*rest;
}

const char *dtp_run_fp8_precision(const struct writer *w)
{
    for (size_t i = 0; i < sizeof recipes / sizeof *recipes; i++)
        if (recipes[i].precision && is_recipe(w->run->precision_recipe, recipes[i].word))
            return recipes[i].precision;
    for (size_t i = 0; i < sizeof noted_recipes / sizeof *noted_recipes; i++)
        if (strstr(w->run->notes, noted_recipes[i].words))
            return noted_recipes[i].precision;
    return w->framework->fp8 ? w->framework->fp8 : "fp8-tensorwise";
}

/* Models whose recipes in Megatron-Bridge have a precision-aware optimizer with moments in bf16 in all precisions
 * (src/megatron/bridge/recipes: deepseek, moonlight, olmoe), and those that Muon trains, whose optimizer has neither
 * that nor weights in 8 bits (kimi_k2.py; scripts/performance/configs/kimi). */
static const char *const narrow_moments[] = {"DeepSeek-V3", "Moonlight", "OLMoE"};
static const char muon_model[] = "Kimi";

static bool among(const char *words, const char *word)
{
    const size_t bytes = strlen(word);
    for (const char *at = words; at; at = strchr(at, ' ')) {
        at += strspn(at, " ");
        if (strcspn(at, " ") == bytes && strncmp(at, word, bytes) == 0)
            return true;
    }
    return false;
}

void dtp_run_write_distributed(struct writer *w, bool fp8)
{
    const struct dtp_run *run = w->run;
    const struct dtp_run_framework *framework = w->framework;
    const bool bridge = strstr(framework->word, "Bridge");
    const char *precision = fp8 ? dtp_run_fp8_precision(w) : "bf16-mixed";
    /* Megatron-LM's examples/moe_recipes have fp8_param_gather where they have a precision-aware optimizer, which notes
     * say, and neither elsewhere */
    const bool told = strstr(run->source, "moe_recipes"), noted = strstr(run->notes, "precision-aware optimizer");
    bool aware = noted || (!told && among(framework->aware_precisions, precision)),
         gathers = told ? noted && fp8 : among(framework->fp8_weights, precision),
         narrow = aware && framework->bf16_moments;
    if (run->lora_rank || *run->quantised_base || (bridge && strstr(run->model_name, muon_model)))
        return;
    for (size_t i = 0; bridge && !told && i < sizeof narrow_moments / sizeof *narrow_moments; i++)
        if (strstr(run->model_name, narrow_moments[i]))
            aware = narrow = true;
    if (gathers)
        set_switch(w, "fp8_param_gather", true);
    if (aware)
        set_switch(w, "precision_aware_optimizer", true);
    if (narrow || (aware && (strstr(run->notes, "bf16 moments") || strstr(run->notes, "BF16 optimizer moments"))))
        set_text(w, "moment_dtype", "bf16");
}

/* torchao gathers in bf16 unless told to; rows that do not say so are taken for key fp8_all_gather's default, which is
 * a gather in 8 bits. */
static void write_recipe(struct writer *w)
{
    bool wide = strstr(w->run->precision_recipe, wide_gather) || strstr(w->run->notes, "all-gather in bf16");
    if (wide && strcmp(dtp_run_fp8_precision(w), tensorwise) == 0)
        set_switch(w, "fp8_all_gather", false);
    for (size_t i = 0; i < sizeof recipes / sizeof *recipes; i++)
        if (is_recipe(w->run->precision_recipe, recipes[i].word)) {
            if (strcmp(w->run->fp8, strstr(recipes[i].word, "16") ? "1" : "0") == 0 && *recipes[i].word)
                REFUSE(w, "precision_recipe '%.60s' contradicts fp8 %s; empty one of them", w->run->precision_recipe,
                       w->run->fp8);
            return;
        }
    REFUSE(w, "precision_recipe '%.60s' is not modelled; those of key precision are", w->run->precision_recipe);
}

/* ---- the GPU's power ------------------------------------------------------------------------------------------- */

/* Figure in front of the first W of the clause: "power limited to 700 W", "power limited, 700W"; 0: none. */
static double noted_watts(const char *clause)
{
    for (const char *c = clause; *c && *c != ';'; c++) {
        char *end = NULL;
        double figure = *c >= '0' && *c <= '9' ? strtod(c, &end) : 0;
        if (end && end[strspn(end, " ")] == 'W')
            return figure;
        if (end)
            c = end - 1;
    }
    return 0;
}

/* A part held below its power is another machine than the catalogue's: how fast it computes says how far. */
void dtp_run_write_power(struct writer *w, const struct dtp_gpu *gpu)
{
    static const char *const words[] = {"power limited", "power-limited"};
    const char *const texts[] = {w->run->gpu_name, w->run->notes};
    const char *noted = NULL;
    double watts = 0;
    for (size_t i = 0; i < 4; i++) {
        const char *clause = strcasestr(texts[i / 2], words[i % 2]);
        noted = noted ? noted : clause;
        watts = clause && watts <= 0 ? noted_watts(clause) : watts;
    }
    if (noted && watts <= 0)
        UNSTATED(w, "'power limited' without watts: to how much the GPU's power was held is not stated");
    else if (noted && gpu && watts != gpu->power_w)
        REFUSE(w, "the GPU was power limited to %g W, and %s has %g W", watts, gpu->key, gpu->power_w);
}

/* ---- hooks of DDP ---------------------------------------------------------------------------------------------- */

/* "comm hook powersgd rank 4", "comm hook fp16_compress_hook". */
static void write_hooks(struct writer *w)
{
    static const char *const words[] = {"fp16", "bf16", "powersgd"};
    const char *note = strstr(w->run->notes, "comm hook ");
    if (!note)
        return;
    note += strlen("comm hook ");
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        size_t length = strlen(words[i]);
        if (strncasecmp(note, words[i], length) != 0)
            continue;
        set(w, "comm_hook", "%s", words[i]);
        if (strncasecmp(note + length, " rank ", strlen(" rank ")) == 0)
            set_count(w, "powersgd_rank", strtoull(note + length + strlen(" rank "), NULL, 10));
        return;
    }
    REFUSE(w, "DDP's communication hook '%.*s' is not modelled; fp16, bf16, powersgd and plain all-reduce are",
           (int)strcspn(note, " ;,"), note);
}

/* ---- the row --------------------------------------------------------------------------------------------------- */

bool dtp_run_write_parts(struct writer *w)
{
    static void (*const parts[])(struct writer *) = {write_experts,  write_graphs, write_attention,
                                                     write_adapters, write_recipe, write_hooks};
    enum dtp_status before = w->status;
    w->status = DTP_OK;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        parts[i](w);
    bool modelled = w->status == DTP_OK;
    w->status = w->status > before ? w->status : before;
    return modelled;
}
