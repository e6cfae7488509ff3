/* torchtitan: what several of its settings say together, and what it does where they say nothing. */
#include "import/formats.h"
#include "import/write.h"
#include "plan/rules.h"

#include "base/number.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

static const struct dtp_row rows[] = {
#include "import/torchtitan.def"
};

static const char *const signs[] = {"parallelism.*",
                                    "model.flavor",
                                    "activation_checkpoint.*",
                                    "lr_scheduler.*",
                                    "training.tensor_parallel_degree",
                                    "training.data_parallel_shard_degree",
                                    NULL};

/* models/NAME/__init__.py: the models whose shapes are published ones, whatever folder their weights lie in. */
static const struct flavor {
    const char *name, *flavor, *model;
} flavors[] = {
    {"llama3", "8B", "llama-3-8b"},
    {"llama3", "70B", "llama-3-70b"},
    {"llama3", "405B", "llama-3.1-405b"},
    {"llama2", "7B", "llama-2-7b"},
    {"llama2", "13B", "llama-2-13b"},
    {"llama2", "70B", "llama-2-70b"},
    {"llama3", "8B_varlen", "llama-3-8b"},
    {"qwen3", "0.6B", "qwen3-0.6b"},
    {"qwen3", "1.7B", "qwen3-1.7b"},
    {"qwen3", "4B", "qwen3-4b"},
    {"qwen3", "8B", "qwen3-8b"},
    {"qwen3", "14B", "qwen3-14b"},
    {"qwen3", "32B", "qwen3-32b"},
    {"qwen3", "30B-A3B", "qwen3-30b-a3b"},
    {"qwen3", "235B-A22B", "qwen3-235b-a22b"},
    {"deepseek_v3", "16B", "deepseek-v2-lite"},
    {"deepseek_v3", "236B", "deepseek-v2"},
    {"deepseek_v3", "671B", "deepseek-v3"},
    {"gpt_oss", "20b", "gpt-oss-20b"},
    {"gpt_oss", "120b", "gpt-oss-120b"},
};

static bool is(const char *text, const char *word)
{
    return text && strcmp(text, word) == 0;
}

static enum dtp_status read_count(struct dtp_reading *r, const char *fact, uint64_t otherwise, uint64_t *out)
{
    const char *text = dtp_fact(r, fact);
    *out = otherwise;
    if (!text || is(text, "-1"))
        return DTP_OK;
    return dtp_number_parse_integer(text, false, 1, 1000000000, out)
               ? DTP_OK
               : dtp_refuse_fact(r, fact, "is no whole number from 1 on");
}

static enum dtp_status make_count(struct dtp_reading *r, const char *key, uint64_t value, const char *fact)
{
    char text[32];
    snprintf(text, sizeof text, "%" PRIu64, value);
    return dtp_make_key(r, key, text, fact);
}

static const char *or_else(const char *fact, const char *otherwise)
{
    return fact ? fact : otherwise;
}

/* ---- the model ----------------------------------------------------------------------------------------------------
 */

/* models/llama3/__init__.py: six layers to try the program with. */
static enum dtp_status read_debug_model(struct dtp_reading *r)
{
    static const char *const keys[][2] = {{"name", "debugmodel"}, {"layers", "6"}, {"hidden", "256"},
                                          {"heads", "16"},        {"ffn", "768"},  {"vocab", "2048"}};
    enum dtp_status worst = DTP_OK;
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        worst = dtp_worse(worst, dtp_make_key(r, keys[i][0], keys[i][1], "flavor"));
    return worst;
}

static enum dtp_status read_model(struct dtp_reading *r)
{
    const char *name = or_else(dtp_fact(r, "model_name"), "llama3"), *flavor = dtp_fact(r, "flavor");
    if (!flavor || dtp_is_typed(r, "model") || dtp_is_typed(r, "params"))
        return flavor ? dtp_make_key(r, "model", flavor, "flavor") : DTP_OK;
    if (is(name, "llama3") && is(flavor, "debugmodel"))
        return read_debug_model(r);
    for (size_t i = 0; i < sizeof flavors / sizeof *flavors; i++)
        if (is(name, flavors[i].name) && strcasecmp(flavor, flavors[i].flavor) == 0)
            return dtp_make_key(r, "model", flavors[i].model, "flavor");
    return dtp_refuse_fact(
        r, "flavor",
        "of %.60s is no model that dtplan knows by that name; give --model NAME, one of dtplan catalog models, or "
        "--model config.json",
        name);
}

/* ---- the batch ----------------------------------------------------------------------------------------------------
 */

/* A pipeline cuts the local batch into micro-batches (distributed/pipeline_parallel.py, build_pipeline_schedule). */
static enum dtp_status read_pipeline_batch(struct dtp_reading *r, uint64_t local, const char *batch)
{
    uint64_t size, count;
    enum dtp_status worst = read_count(r, "pipe_batch", 1, &size);
    worst = dtp_worse(worst, read_count(r, "pipe_batches", 0, &count));
    if (count && local % count == 0)
        size = local / count;
    if (worst == DTP_OK && local % size)
        return dtp_refuse_fact(r, "pipe_batch", "does not divide the local batch of %" PRIu64, local);
    worst = dtp_worse(worst, make_count(r, "micro_batch", size, "pipe_batch"));
    if (!dtp_is_said(r, "global_batch"))
        worst = dtp_worse(worst, make_count(r, "accumulate", local / size, batch));
    return worst;
}

static enum dtp_status read_batch(struct dtp_reading *r)
{
    const char *batch = dtp_fact(r, "old_batch") ? "old_batch" : "local_batch";
    uint64_t local, whole, pp;
    enum dtp_status worst = read_count(r, batch, 8, &local);
    worst = dtp_worse(worst, read_count(r, "global_batch", 0, &whole));
    worst = dtp_worse(worst, read_count(r, "pp", 1, &pp));
    if (worst == DTP_OK && whole)
        worst = make_count(r, "global_batch", whole, "global_batch");
    if (pp > 1)
        return dtp_worse(worst, read_pipeline_batch(r, local, batch));
    worst = dtp_worse(worst, make_count(r, "micro_batch", local, batch));
    if (!dtp_fact(r, "seq")) /* job_config.py */
        worst = dtp_worse(worst, dtp_make_key(r, "seq", "2048", NULL));
    return worst;
}

/* ---- over how many GPUs -------------------------------------------------------------------------------------------
 */

/* apply_fsdp since pull request 1094 of July 2025; with tp, cp or pp it is taken anyway. A file with a spelling of
 * before June 2025 is of a root that holds both ends. Of a model or a plan without two ends torchtitan makes none. */
static enum dtp_status read_ends(struct dtp_reading *r)
{
    return dtp_fact(r, "old_batch") ? DTP_OK : dtp_make_key(r, "wrap_ends", "auto", NULL);
}

/* Degrees that are all written out multiply to the GPUs of the job, or torchtitan does not start. */
static bool types_other_gpus(const struct dtp_reading *r, uint64_t product)
{
    const char *typed = dtp_typed(r, "gpus");
    uint64_t gpus;
    return typed && dtp_number_parse_integer(typed, false, 1, UINT32_MAX, &gpus) && gpus != product;
}

struct degrees {
    uint64_t replicas, shard, tp, pp, cp; /* shard: 0 where the file leaves it and the GPUs are not typed */
};

/* GPUs as they are typed, in all or as nodes of so many; 0: they are not. */
static uint64_t typed_gpus(const struct dtp_reading *r)
{
    const char *all = dtp_typed(r, "gpus"), *nodes = dtp_typed(r, "nodes"), *each = dtp_typed(r, "gpus_per_node");
    uint64_t count, of_node;
    if (all)
        return dtp_number_parse_integer(all, false, 1, UINT32_MAX, &count) ? count : 0;
    return nodes && each && dtp_number_parse_integer(nodes, false, 1, UINT16_MAX, &count) &&
                   dtp_number_parse_integer(each, false, 1, UINT16_MAX, &of_node)
               ? count * of_node
               : 0;
}

/* ParallelDims: what the others leave of the GPUs is shared (-1). */
static enum dtp_status read_degrees(struct dtp_reading *r, struct degrees *d)
{
    const uint64_t gpus = typed_gpus(r);
    enum dtp_status worst = read_count(r, "replicate", 1, &d->replicas);
    worst = dtp_worse(worst, read_count(r, "shard", 0, &d->shard));
    worst = dtp_worse(worst, read_count(r, "tp", 1, &d->tp));
    worst = dtp_worse(worst, read_count(r, "pp", 1, &d->pp));
    worst = dtp_worse(worst, read_count(r, "cp", 1, &d->cp));
    if (worst == DTP_OK && !d->shard && gpus && gpus == d->replicas * d->tp * d->pp * d->cp)
        d->shard = 1;
    else if (worst == DTP_OK && !d->shard && !gpus && dtp_is_said(r, "nodes") && (d->tp > 1 || d->pp > 1))
        return dtp_refuse_fact(r, d->tp > 1 ? "tp" : "pp",
                               "needs the number of GPUs: without any left to share parameters torchtitan trains in "
                               "fp32; give --gpus in place of --nodes, or --gpus-per-node besides, or write "
                               "data_parallel_shard_degree out");
    return worst;
}

/* fsdp_enabled: over dp_shard and cp together. Where nobody shares, autocast surrounds the forward (ParallelDims,
 * maybe_enable_amp), and beside tp or pp nothing does: those train in fp32, whatever mixed_precision_param says. */
static bool shares(const struct degrees *d)
{
    return d->shard != 1 || d->cp > 1;
}

static enum dtp_status read_strategy(struct dtp_reading *r, const struct degrees *d)
{
    const char *leftover = dtp_fact(r, "shard");
    enum dtp_status worst = DTP_OK;
    const uint64_t replicas = d->replicas, shard = d->shard, tp = d->tp, pp = d->pp, cp = d->cp;
    if (shard && !dtp_is_said(r, "gpus") && !dtp_is_said(r, "nodes"))
        worst = make_count(r, "gpus", replicas * shard * tp * pp * cp, "shard");
    bool ddp = !shares(d);
    if (replicas > 1 && !ddp && !shard)
        return dtp_refuse_fact(r, "replicate",
                               "beside data_parallel_shard_degree %s it does not say how many GPUs share a copy; "
                               "write the degree out",
                               leftover ? leftover : "-1");
    if (replicas > 1 && !ddp)
        worst = dtp_worse(worst, make_count(r, "shard_group", shard * cp, "shard"));
    const char *reshard = dtp_fact(r, "reshard");
    bool kept = is(reshard, "false") && pp == 1 && replicas == 1 && !ddp;
    bool asks = replicas > 1 || (pp > 1 && !is(reshard, "false")); /* of a pipeline false is what is done anyway */
    if (reshard && !is(reshard, "default") && asks && !ddp)
        worst = dtp_worse(worst, dtp_make_key(r, "reshard_after_forward", reshard, "reshard"));
    worst = dtp_worse(worst, dtp_make_key(r, "strategy",
                                          ddp            ? "ddp"
                                          : replicas > 1 ? "hybrid_shard"
                                          : kept         ? "shard_grad_op"
                                                         : "full_shard",
                                          ddp || replicas > 1 ? "replicate" : "shard"));
    if (!ddp && tp == 1 && pp == 1 && cp == 1)
        worst = dtp_worse(worst, read_ends(r));
    if (tp > 1 && is(dtp_fact(r, "gathered"), "true"))
        worst = dtp_worse(worst, dtp_make_key(r, "gathered_logits", "true", "gathered"));
    if (shard && types_other_gpus(r, replicas * shard * tp * pp * cp))
        worst = dtp_worse(worst, dtp_drop_fact(r, replicas > 1 ? "replicate" : "shard", "gpus"));
    bool accumulates = dtp_is_said(r, "accumulate") || dtp_is_said(r, "global_batch") || dtp_fact(r, "global_batch");
    if (!ddp && pp == 1 && accumulates) /* train.py: FSDP2 reduces in every micro-step */
        worst = dtp_worse(worst, dtp_make_key(r, "accumulate_sync", "true", NULL));
    return worst;
}

/* Where ranks do not divide experts it is read for a mesh alone: tensor parallel ranks then cut each (apply_moe_ep_tp).
 * Without FSDP ranks there is no mesh to wrap experts in, and torchtitan ends. */
static enum dtp_status read_experts(struct dtp_reading *r, const struct degrees *d)
{
    uint64_t ep, etp;
    enum dtp_status worst = read_count(r, "ep", 1, &ep);
    worst = dtp_worse(worst, read_count(r, "expert_tp", 1, &etp));
    if (worst != DTP_OK || ep < 2)
        return worst;
    if (!shares(d))
        return dtp_refuse_fact(r, "ep",
                               "beside data_parallel_shard_degree and context_parallel_degree 1 torchtitan "
                               "has no mesh for FSDP, and ends (get_mesh of distributed/parallel_dims.py)");
    return etp > 1 ? make_count(r, "etp", etp, "expert_tp") : DTP_OK;
}

/* pipeline_llm: embedding and head count as a layer each, unless it is told otherwise. */
static enum dtp_status read_pipeline(struct dtp_reading *r)
{
    const char *first = or_else(dtp_fact(r, "first_less"), "1"), *last = or_else(dtp_fact(r, "last_less"), "1");
    uint64_t pp;
    enum dtp_status worst = read_count(r, "pp", 1, &pp);
    if (pp <= 1 || worst != DTP_OK)
        return worst;
    if (!is(first, last) && !dtp_is_typed(r, "stages"))
        return dtp_refuse_fact(r, "first_less",
                               "beside another pipeline_parallel_last_stage_less_layers is not modelled; "
                               "give --stages");
    worst =
        dtp_make_key(r, "stages", is(first, "1") ? "counted" : "even", dtp_fact(r, "first_less") ? "first_less" : NULL);
    return dtp_worse(worst, dtp_make_key(r, "schedule", or_else(dtp_fact(r, "schedule"), "1f1b"), "schedule"));
}

/* ---- formats, kernels, memory -------------------------------------------------------------------------------------
 */

/* A name of filter_fqns that is a part of modules' names (module_filter_fn): of the head, of what has no fp8 anyway, or
 * of linears of all layers, bits by enum dtp_adapter_target. */
static const struct {
    const char *part;
    bool head;
    uint32_t linears;
} filters[] = {{"output", true, 0},
               {"lm_head", true, 0},
               {"router.gate", false, 0},
               {"attention.wq", false, 1u << DTP_TARGET_Q},
               {"attention.wk", false, 1u << DTP_TARGET_K},
               {"attention.wv", false, 1u << DTP_TARGET_V},
               {"attention.wo", false, 1u << DTP_TARGET_OUTPUT},
               {"wq", false, 1u << DTP_TARGET_Q},
               {"wk", false, 1u << DTP_TARGET_K},
               {"wv", false, 1u << DTP_TARGET_V},
               {"wo", false, 1u << DTP_TARGET_OUTPUT},
               {"attention", false, DTP_TARGETS_ATTENTION},
               {"feed_forward.w1", false, 1u << DTP_TARGET_GATE},
               {"feed_forward.w2", false, 1u << DTP_TARGET_DOWN},
               {"feed_forward.w3", false, 1u << DTP_TARGET_UP},
               {"w1", false, 1u << DTP_TARGET_GATE},
               {"w2", false, 1u << DTP_TARGET_DOWN},
               {"w3", false, 1u << DTP_TARGET_UP},
               {"feed_forward", false, DTP_TARGETS_MLP}};
#define FILTERS (sizeof filters / sizeof *filters)

static size_t find_filter(const char *name, size_t length)
{
    size_t i = 0;
    while (i < FILTERS && (strlen(filters[i].part) != length || strncmp(name, filters[i].part, length) != 0))
        i++;
    return i;
}

/* Names with commas between, the head's among them. */
static enum dtp_status read_filter(struct dtp_reading *r, uint32_t *linears)
{
    const char *names = or_else(dtp_fact(r, "filter"), "");
    bool head = false;
    for (*linears = 0; *names;) {
        size_t length = strcspn(names, ","), found = find_filter(names, length);
        if (found == FILTERS)
            return dtp_refuse_fact(r, "filter",
                                   "names other modules than output and linears of all layers, as attention.wk or w2; "
                                   "auto_filter_small_kn and single layers are not modelled");
        head |= filters[found].head;
        *linears |= filters[found].linears;
        names += length + (names[length] ? 1 : 0);
    }
    return head ? DTP_OK
                : dtp_refuse_fact(r, "filter",
                                  "fp8 in the head is not modelled; filter_fqns = [\"output\"] leaves it out");
}

static enum dtp_status read_fp8(struct dtp_reading *r, bool narrow)
{
    char words[DTP_TARGETS_BYTES];
    uint32_t linears;
    enum dtp_status filtered = read_filter(r, &linears);
    const char *recipe = or_else(dtp_fact(r, "recipe"), "tensorwise"), *gather = dtp_fact(r, "gather");
    if (filtered != DTP_OK)
        return filtered;
    enum dtp_status worst =
        dtp_make_key(r, "precision", is(recipe, "rowwise") ? "fp8-rowwise" : "fp8-tensorwise", "recipe");
    if (is(recipe, "tensorwise"))
        worst = dtp_worse(worst, dtp_make_key(r, "fp8_all_gather", or_else(gather, "false"), "gather"));
    if (narrow) { /* moments as the parameters are */
        worst = dtp_worse(worst, dtp_make_key(r, "param_dtype", "bf16", "dtype"));
        worst = dtp_worse(worst, dtp_make_key(r, "moment_dtype", "bf16", "dtype"));
    }
    if (!linears)
        return worst;
    dtp_targets_text(linears, words);
    return dtp_worse(worst, dtp_make_key(r, "bf16_linears", words, "filter"));
}

/* Without FSDP mixed_precision_param is autocast's, or nobody's (shares). SDPBackend.MATH is all that
 * ScaledDotProductAttention of models/attention.py lets fp32 have. */
static enum dtp_status read_formats_apart(struct dtp_reading *r, const struct degrees *d, bool narrow, bool mixed)
{
    const bool alone = d->tp == 1 && d->pp == 1, bf16 = mixed && alone;
    enum dtp_status worst = dtp_make_key(r, "precision",
                                         narrow ? "bf16-pure"
                                         : bf16 ? "bf16-mixed"
                                                : "fp32",
                                         narrow          ? "dtype"
                                         : mixed == bf16 ? "mixed"
                                         : d->tp > 1     ? "tp"
                                                         : "pp");
    return narrow || bf16 ? worst : dtp_worse(worst, dtp_make_key(r, "attention", "math", "mixed"));
}

/* Stored in fp32 or bf16, gathered and computed in mixed_precision_param, reduced in fp32. */
static enum dtp_status read_formats(struct dtp_reading *r, const struct degrees *d)
{
    const char *stored = or_else(dtp_fact(r, "dtype"), "fp32"), *mixed = or_else(dtp_fact(r, "mixed"), "bf16");
    bool fp8 = is(dtp_fact(r, "converters"), "fp8") || is(dtp_fact(r, "old_fp8"), "true");
    if (fp8 && !is(mixed, "bf16"))
        return dtp_refuse_fact(r, "mixed", "fp8 is modelled beside bf16 for the rest; set it to bfloat16");
    if (fp8 && !shares(d) && (d->tp > 1 || d->pp > 1))
        return dtp_refuse_fact(r, d->tp > 1 ? "tp" : "pp",
                               "with fp8 and without FSDP leaves all but matmuls in fp32, which is not modelled; let "
                               "GPUs share (data_parallel_shard_degree)");
    if (!fp8 && !shares(d))
        return read_formats_apart(r, d, is(stored, "bf16"), is(mixed, "bf16"));
    enum dtp_status reduces = DTP_OK;
    if (shares(d))
        reduces = dtp_make_key(r, "reduce_dtype", or_else(dtp_fact(r, "reduce"), "fp32"),
                               dtp_fact(r, "reduce") ? "reduce" : NULL);
    if (fp8)
        return dtp_worse(reduces, read_fp8(r, is(stored, "bf16")));
    if (is(stored, "bf16") && is(mixed, "fp32"))
        return dtp_refuse_fact(r, "mixed", "computing in fp32 with parameters stored in bf16 is not modelled");
    enum dtp_status worst = dtp_make_key(r, "precision",
                                         is(stored, "bf16")  ? "bf16-pure"
                                         : is(mixed, "bf16") ? "bf16-mixed"
                                                             : "fp32",
                                         is(stored, "bf16") ? "dtype" : "mixed");
    return dtp_worse(worst, reduces);
}

/* job_config.py: selective, every second layer, unless it is told otherwise. It counts the layers of each rank from 1
 * on (_layer_sac_count of distributed/activation_checkpoint.py), where a plan counts the model's from 0: of a stage of
 * an odd number of layers one more may be checkpointed here. */
static enum dtp_status read_checkpointing(struct dtp_reading *r)
{
    const char *mode = or_else(dtp_fact(r, "checkpoint"), "selective"), *option = or_else(dtp_fact(r, "option"), "2");
    char every[32];
    uint64_t step;
    if (!is(mode, "selective"))
        return dtp_make_key(r, "checkpointing", mode, "checkpoint");
    if (is(option, "op"))
        return dtp_make_key(r, "checkpointing", "selective", "option");
    if (!dtp_number_parse_integer(option, false, 1, 100000, &step))
        return dtp_refuse_fact(r, "option", "is neither op nor every how many layers");
    snprintf(every, sizeof every, "every-%" PRIu64, step);
    return dtp_make_key(r, "checkpointing", step == 1 ? "full" : every,
                        dtp_fact(r, "option") ? "option" : "checkpoint");
}

static enum dtp_status read_compile(struct dtp_reading *r)
{
    const char *parts = or_else(dtp_fact(r, "components"), "both");
    bool on = is(dtp_fact(r, "compile"), "true"), model = on && (is(parts, "both") || is(parts, "model"));
    if (on && is(parts, "loss")) /* which keeps logits and their gradient in 16 bits, as one kernel that makes both */
        return dtp_worse(dtp_make_key(r, "compile", "false", "components"),
                         dtp_make_key(r, "loss", "fused", "components"));
    enum dtp_status worst = dtp_make_key(r, "compile", model ? "true" : "false", "compile");
    if (model)
        worst = dtp_worse(worst, dtp_make_key(r, "compile_loss", is(parts, "both") ? "true" : "false", "components"));
    return worst;
}

static enum dtp_status read_settings(struct dtp_reading *r)
{
    const char *implementation = or_else(dtp_fact(r, "implementation"), "fused");
    enum dtp_status worst = dtp_make_key(r, "runtime", "torch", NULL);
    if (!is(dtp_typed(r, "runtime"), "dtplan")) /* run_train.sh: PYTORCH_ALLOC_CONF */
        worst = dtp_worse(worst, dtp_make_key(r, "expandable_segments", "true", NULL));
    worst = dtp_worse(worst, read_model(r));
    struct degrees d;
    const enum dtp_status degrees = read_degrees(r, &d);
    worst = dtp_worse(worst, degrees == DTP_OK ? read_strategy(r, &d) : degrees);
    worst = dtp_worse(worst, degrees == DTP_OK ? read_experts(r, &d) : DTP_OK);
    worst = dtp_worse(worst, read_batch(r));
    worst = dtp_worse(worst, read_pipeline(r));
    worst = dtp_worse(worst, degrees == DTP_OK ? read_formats(r, &d) : degrees);
    worst = dtp_worse(worst, read_checkpointing(r));
    worst = dtp_worse(worst, read_compile(r));
    worst = dtp_worse(worst, dtp_make_clipping(r, "max_norm", "1"));
    return dtp_worse(worst, dtp_make_key(r, "optimizer", is(implementation, "fused") ? "adamw" : "adamw-foreach",
                                         dtp_fact(r, "implementation") ? "implementation" : "optimizer"));
}

/* ---- the other way ------------------------------------------------------------------------------------------------
 */

static void write_model(struct dtp_writing *w)
{
    const char *name = dtp_written_job(w)->transformer.name;
    for (size_t i = 0; i < sizeof flavors / sizeof *flavors; i++)
        if (strcmp(flavors[i].model, name) == 0) {
            dtp_say(w, "model_name", flavors[i].name);
            dtp_say(w, "flavor", flavors[i].flavor);
            return;
        }
    dtp_refuse_writing(w, "has no flavor of %.60s; it has those of llama3, qwen3, deepseek_v3 and gpt_oss", name);
}

static void write_degrees(struct dtp_writing *w)
{
    const struct dtp_job *job = dtp_written_job(w);
    const struct dtp_plan *plan = &job->plan;
    uint32_t ranks = job->cluster.gpus / plan->tp / plan->pp / plan->cp;
    bool ddp = plan->strategy == DTP_DDP, hybrid = plan->strategy == DTP_HYBRID_SHARD;
    uint32_t shard = ddp ? 1 : hybrid ? plan->shard_group / plan->cp : ranks;
    dtp_say_count(w, "replicate", shard ? ranks / shard : 1);
    dtp_say_count(w, "shard", shard);
    dtp_say_key(w, "tp");
    dtp_say_key(w, "pp");
    dtp_say_key(w, "cp");
    if (plan->ep > 1 && plan->megatron.etp > 1)
        dtp_say_count(w, "expert_tp", plan->megatron.etp);
    if (plan->tp_overlap)
        dtp_say_key(w, "tp_overlap");
    if (plan->gathered_logits)
        dtp_say(w, "gathered", "true");
    if (plan->cp > 1)
        dtp_say_key(w, "cp_comm");
    if (dtp_plan_is_fsdp(plan))
        dtp_say(w, "reshard", plan->reshard_after_forward && plan->strategy != DTP_SHARD_GRAD_OP ? "true" : "false");
    if (plan->pp <= 1)
        return;
    dtp_say(w, "schedule", dtp_written_value(w, "schedule"));
    dtp_say(w, "first_less", plan->stages.cut == DTP_STAGE_CUT_COUNTED ? "1" : "0");
    dtp_say(w, "last_less", plan->stages.cut == DTP_STAGE_CUT_COUNTED ? "1" : "0");
}

static void write_batch(struct dtp_writing *w)
{
    const struct dtp_job *job = dtp_written_job(w);
    const struct dtp_plan *plan = &job->plan;
    dtp_say_key(w, "seq");
    dtp_say_count(w, "local_batch", plan->pp > 1 ? (uint64_t)plan->micro_batch * plan->accumulate : plan->micro_batch);
    if (plan->pp > 1)
        dtp_say_count(w, "pipe_batch", plan->micro_batch);
    else if (plan->accumulate > 1)
        dtp_say_count(w, "global_batch", dtp_job_batch_sequences(job));
}

static void write_checkpointing(struct dtp_writing *w)
{
    const struct dtp_plan *plan = &dtp_written_job(w)->plan;
    bool every = plan->checkpointing == DTP_CHECKPOINT_EVERY_N,
         op = plan->checkpointing == DTP_CHECKPOINT_SELECTIVE_MATMUL;
    dtp_say(w, "checkpoint", every || op ? "selective" : dtp_written_value(w, "checkpointing"));
    if (op)
        dtp_say(w, "option", "op");
    else if (every)
        dtp_say_count(w, "option", plan->checkpoint_every);
}

static void write_filter(struct dtp_writing *w)
{
    static const char *const names[DTP_TARGET_COUNT] = {
        [DTP_TARGET_Q] = "attention.wq",       [DTP_TARGET_K] = "attention.wk",
        [DTP_TARGET_V] = "attention.wv",       [DTP_TARGET_OUTPUT] = "attention.wo",
        [DTP_TARGET_GATE] = "feed_forward.w1", [DTP_TARGET_UP] = "feed_forward.w3",
        [DTP_TARGET_DOWN] = "feed_forward.w2"};
    char list[160] = "output";
    for (int i = 0; i < DTP_TARGET_COUNT; i++)
        if (dtp_written_job(w)->plan.bf16_linears & 1u << i)
            snprintf(list + strlen(list), sizeof list - strlen(list), ",%s", names[i]);
    dtp_say(w, "filter", list);
}

static void write_formats(struct dtp_writing *w)
{
    const struct dtp_precision *p = &dtp_written_job(w)->plan.precision;
    dtp_say(w, "dtype", p->params == DTP_BF16 ? "bf16" : "fp32");
    dtp_say(w, "mixed", p->compute == DTP_FP32 ? "fp32" : "bf16");
    dtp_say(w, "reduce", p->reduce == DTP_BF16 ? "bf16" : "fp32");
    if (p->compute != DTP_FP8)
        return;
    dtp_say(w, "converters", "fp8");
    dtp_say(w, "recipe", strcmp(dtp_written_value(w, "precision"), "fp8-rowwise") == 0 ? "rowwise" : "tensorwise");
    write_filter(w);
    dtp_say(w, "gather", p->fp8_all_gather ? "true" : "false");
}

static void write_settings(struct dtp_writing *w)
{
    const struct dtp_plan *plan = &dtp_written_job(w)->plan;
    dtp_say_path(w, "job.description", "a plan of dtplan", false);
    write_model(w);
    dtp_say(w, "optimizer", "adamw");
    dtp_say(w, "implementation", plan->optimizer == DTP_ADAMW_FOREACH ? "foreach" : "fused");
    write_batch(w);
    dtp_say_key(w, "offload");
    write_formats(w);
    write_degrees(w);
    write_checkpointing(w);
    if (plan->clip_norm > 0) /* 0 would make zeros of all gradients there */
        dtp_say(w, "max_norm", dtp_written_value(w, "clip_norm"));
    dtp_say(w, "compile", plan->compile ? "true" : "false");
    if (plan->compile)
        dtp_say(w, "components", plan->compile_loss ? "both" : "model");
}

const struct dtp_format dtp_format_torchtitan = {
    .name = "torchtitan",
    .title = "torchtitan's configuration",
    .syntaxes = 1u << DTP_SYNTAX_TOML,
    .signs = signs,
    .rows = rows,
    .row_count = sizeof rows / sizeof *rows,
    .silent = "the GPU, and where data_parallel_shard_degree is -1 their number",
    .read = read_settings,
    .write = write_settings,
};
