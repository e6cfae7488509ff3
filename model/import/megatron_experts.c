/* Megatron-LM's flags of experts and latent attention. */
#include "import/megatron.h"

#include "net/transformer.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What a pattern of layers may be as long as; no model has more. */
#define MOST_LAYERS 1024

/* ---- heads --------------------------------------------------------------------------------------------------------
 */

/* arguments.py, _add_mla_args: widths where no flag says them. Norms of latents are there with qk_layernorm alone
 * (get_gpt_layer_with_transformer_engine_spec of gpt_layer_specs.py). */
static enum dtp_status read_latents(struct dtp_reading *r)
{
    uint64_t rope = dtp_megatron_count(r, "rope_dim", 64), key = dtp_megatron_count(r, "key_dim", 128);
    enum dtp_status worst = DTP_OK;
    if (!dtp_fact(r, "qk_layernorm"))
        worst = dtp_refuse_fact(r, "latent", "without norms of the latents is not modelled; give --qk-layernorm");
    worst = dtp_megatron_make_count(r, worst, "kv_latent", dtp_megatron_count(r, "kv_rank", 32), "kv_rank");
    if (dtp_fact(r, "q_rank"))
        worst = dtp_megatron_make_count(r, worst, "q_latent", dtp_megatron_count(r, "q_rank", 0), "q_rank");
    worst = dtp_megatron_make_count(r, worst, "head_dim", key + rope, "key_dim");
    worst = dtp_megatron_make_count(r, worst, "rope_head_dim", rope, "rope_dim");
    return dtp_megatron_make_count(r, worst, "value_head_dim", dtp_megatron_count(r, "value_dim", 128), "value_dim");
}

enum dtp_status dtp_megatron_read_heads(struct dtp_reading *r)
{
    enum dtp_status worst = DTP_OK;
    if (dtp_fact(r, "latent")) /* all heads have keys and values then, whatever groups are said */
        return read_latents(r);
    if (dtp_fact(r, "channels"))
        worst = dtp_megatron_make(r, worst, "head_dim", dtp_fact(r, "channels"), "channels");
    if (dtp_fact(r, "grouped"))
        worst = dtp_megatron_make_count(r, worst, "kv_heads", dtp_megatron_count(r, "groups", 1), "groups");
    if (dtp_fact(r, "qk_layernorm"))
        worst = dtp_megatron_make(r, worst, "qk_norm", "true", "qk_layernorm");
    return worst;
}

void dtp_megatron_write_heads(struct dtp_writing *w)
{
    const struct dtp_transformer *t = &dtp_written_job(w)->transformer;
    dtp_megatron_say_if(w, "qk_layernorm", t->qk_norm || t->kv_latent);
    if (!t->kv_latent) {
        dtp_say_count(w, "channels", t->head_dim);
        dtp_megatron_say_if(w, "grouped", t->kv_heads != t->heads);
        if (t->kv_heads != t->heads)
            dtp_say_count(w, "groups", t->kv_heads);
        return;
    }
    dtp_say(w, "latent", "true");
    if (t->q_latent)
        dtp_say_count(w, "q_rank", t->q_latent);
    dtp_say_count(w, "kv_rank", t->kv_latent);
    dtp_say_count(w, "key_dim", t->head_dim - t->rope_head_dim);
    dtp_say_count(w, "rope_dim", t->rope_head_dim);
    dtp_say_count(w, "value_dim", t->value_head_dim);
}

/* ---- which layers have experts ------------------------------------------------------------------------------------
 */

/* What Python makes of "([0]*1+[1]*26)", "[0]+[1,1]*13" or "'([0]*3+[1]*58)'", a layer a number (eval_pattern of
 * arguments.py). False where it is written otherwise. */
static bool expand_pattern(const char *text, bool has[MOST_LAYERS], uint64_t *count)
{
    *count = 0;
    text += strspn(text, "'\"( ");
    while (*text == '[') {
        uint64_t begin = *count, times = 1;
        for (text++; *text == '0' || *text == '1'; text += strspn(text, ", ")) {
            if (*count == MOST_LAYERS)
                return false;
            has[(*count)++] = *text++ == '1';
        }
        if (*text++ != ']')
            return false;
        uint64_t length = *count - begin;
        if (*text == '*')
            times = strtoull(text + 1, (char **)&text, 10);
        if (times > MOST_LAYERS || begin + length * times > MOST_LAYERS)
            return false;
        for (*count = begin; *count < begin + length * times; (*count)++)
            if (*count >= begin + length)
                has[*count] = has[*count - length];
        text += strspn(text, " ");
        if (*text != '+')
            break;
        text++;
        text += strspn(text, " ");
    }
    text += strspn(text, ")'\" ");
    return !*text && *count;
}

static bool suits(const struct dtp_transformer *t, const bool *has)
{
    for (uint64_t i = 0; i < t->layers; i++)
        if (dtp_transformer_layer_has_experts(t, i) != has[i])
            return false;
    return true;
}

/* A number N: layers 0, N, 2 N, ... have experts. */
static bool expand_frequency(const char *text, bool has[MOST_LAYERS], uint64_t layers)
{
    char *end;
    uint64_t every = strtoull(text, &end, 10);
    if (*end || !every)
        return false;
    for (uint64_t i = 0; i < layers; i++)
        has[i] = i % every == 0;
    return true;
}

enum dtp_status dtp_megatron_read_layers(struct dtp_reading *r)
{
    const char *text = dtp_fact(r, "layer_freq");
    char list[2 * MOST_LAYERS + 8];
    bool has[MOST_LAYERS] = {false};
    struct dtp_transformer t = {.layers = dtp_megatron_count(r, "layers", 0), .experts = 1};
    uint64_t count = t.layers, first = 0;
    if (!text)
        return DTP_OK;
    if (strchr(text, ',') && !strchr(text, '[')) { /* a list of yaml */
        snprintf(list, sizeof list, "[%.*s]", 2 * MOST_LAYERS, text);
        text = list;
    }
    if (t.layers > MOST_LAYERS || (!expand_frequency(text, has, t.layers) && !expand_pattern(text, has, &count)))
        return dtp_refuse_fact(r, "layer_freq", "is neither a number nor lists of 0 and 1 such as ([0]*1+[1]*26)");
    if (count != t.layers)
        return dtp_refuse_fact(r, "layer_freq", "is of %" PRIu64 " layers, and there are %" PRIu64, count, t.layers);
    while (first < t.layers && !has[first])
        first++;
    t.dense_layers = first;
    if (suits(&t, has))
        return first ? dtp_megatron_make_count(r, DTP_OK, "dense_layers", first, "layer_freq") : DTP_OK;
    t.dense_layers = 0;
    t.expert_layer_step = first + 1;
    if (suits(&t, has))
        return dtp_megatron_make_count(r, DTP_OK, "expert_layer_step", first + 1, "layer_freq");
    return dtp_refuse_fact(r, "layer_freq",
                           "not modelled: layers without experts that are neither the first ones nor "
                           "those between every N-th");
}

static void write_layers(struct dtp_writing *w)
{
    const struct dtp_transformer told = dtp_transformer_told(&dtp_written_job(w)->transformer), *t = &told;
    char text[2 * MOST_LAYERS + 8] = "([", *end = text + 2;
    if (t->layers > MOST_LAYERS) {
        dtp_refuse_writing(w, "a pattern of more than %d layers", MOST_LAYERS);
        return;
    }
    if (t->expert_layer_step < 2) {
        if (t->dense_layers)
            snprintf(text, sizeof text, "([0]*%" PRIu64 "+[1]*%" PRIu64 ")", t->dense_layers,
                     t->layers - t->dense_layers);
        else
            return;
    } else {
        for (uint64_t i = 0; i < t->layers; i++)
            end += sprintf(end, "%s%d", i ? "," : "", dtp_transformer_layer_has_experts(t, i));
        strcpy(end, "])");
    }
    dtp_say(w, "layer_freq", text);
}

/* ---- experts ------------------------------------------------------------------------------------------------------
 */

/* Kernels that Megatron has without a flag, and that are not modelled. */
static enum dtp_status check_kernels(struct dtp_reading *r, enum dtp_status worst, bool several)
{
    if (several && !dtp_fact(r, "grouped_matmuls"))
        worst = dtp_worse(worst, dtp_refuse_fact(r, "experts",
                                                 "one matmul after the other, as without a flag, is not "
                                                 "modelled; give --moe-grouped-gemm"));
    if (!dtp_fact(r, "fused_permute"))
        worst = dtp_megatron_make(r, worst, "unfused_permute", "true", NULL);
    if ((dtp_fact(r, "fp8") || dtp_fact(r, "fp4")) && several && !dtp_fact(r, "padded"))
        worst = dtp_worse(worst, dtp_refuse_fact(r, "experts",
                                                 "rows that are filled up by a copy, as 8 bits need, are not modelled; "
                                                 "give --moe-router-padding-for-fp8"));
    return worst;
}

/* arguments.py: experts are cut as the rest of a layer unless expert_tensor_parallel_size says otherwise, and rows are
 * gathered by all ranks unless the dispatcher is another one. */
static enum dtp_status check_exchange(struct dtp_reading *r, enum dtp_status worst)
{
    uint64_t tp = dtp_megatron_count(r, "tp", 1), ep = dtp_megatron_count(r, "ep", 1),
             expert_tp = dtp_megatron_count(r, "expert_tp", tp);
    const char *dispatcher = dtp_fact(r, "dispatcher");
    if (expert_tp != 1 && ep < 2)
        worst = dtp_worse(worst, dtp_refuse_fact(r, dtp_fact(r, "expert_tp") ? "expert_tp" : "experts",
                                                 "each cut over %" PRIu64 " ranks is not modelled without expert "
                                                 "parallelism; give --expert-tensor-parallel-size 1",
                                                 expert_tp));
    else if (expert_tp != 1)
        worst = dtp_megatron_make_count(r, worst, "etp", expert_tp, dtp_fact(r, "expert_tp") ? "expert_tp" : NULL);
    if ((ep > 1 || tp > 1) && (!dispatcher || strcmp(dispatcher, "allgather") == 0))
        worst =
            dtp_worse(worst, dtp_refuse_fact(r, dispatcher ? "dispatcher" : "experts",
                                             "rows that all ranks gather, Megatron's default, are not modelled; give "
                                             "--moe-token-dispatcher-type alltoall or flex"));
    if (dispatcher && strcmp(dispatcher, "flex") == 0)
        worst = dtp_megatron_make(r, worst, "flex_dispatcher", "true", "dispatcher");
    return worst;
}

/* moe_utils.py, topk_routing_with_score_function: a softmax of the chosen experts' scores, whose sum is 1, unless it is
 * taken before the choice; sigmoids are divided by their sum where there are several. */
static bool divides(bool sigmoid, bool pre_softmax, uint64_t chosen)
{
    return sigmoid ? chosen > 1 : !pre_softmax;
}

static bool has_sigmoids(const struct dtp_reading *r)
{
    return dtp_megatron_is(dtp_fact(r, "score"), "sigmoid") || dtp_megatron_is(dtp_fact(r, "router"), "sigmoid");
}

static enum dtp_status read_router(struct dtp_reading *r, uint64_t chosen)
{
    bool norm = divides(has_sigmoids(r), dtp_fact(r, "pre_softmax") != NULL, chosen);
    return dtp_megatron_make(r, DTP_OK, "router_norm", norm ? "true" : "false", "pre_softmax");
}

enum dtp_status dtp_megatron_read_experts(struct dtp_reading *r, uint64_t ffn)
{
    uint64_t experts = dtp_megatron_count(r, "experts", 0);
    if (!experts)
        return DTP_OK;
    enum dtp_status worst = dtp_megatron_read_layers(r);
    worst = dtp_megatron_make_count(r, worst, "experts_per_token", dtp_megatron_count(r, "topk", 2), "topk");
    worst = dtp_megatron_make_count(r, worst, "expert_ffn", dtp_megatron_count(r, "expert_width", ffn), "expert_width");
    worst = dtp_worse(worst, read_router(r, dtp_megatron_count(r, "topk", 2)));
    if (!dtp_fact(r, "no_bias")) { /* router.py of core 0.14: with add_bias_linear the router has one too */
        worst = dtp_megatron_make(r, worst, "expert_bias", "true", NULL);
        worst = dtp_megatron_make(r, worst, "router_bias", "true", NULL);
    }
    worst = check_kernels(r, worst, experts > dtp_megatron_count(r, "ep", 1));
    return check_exchange(r, worst);
}

void dtp_megatron_write_experts(struct dtp_writing *w)
{
    const struct dtp_transformer *t = &dtp_written_job(w)->transformer;
    const struct dtp_plan *plan = &dtp_written_job(w)->plan;
    if (!t->experts)
        return;
    dtp_say_key(w, "experts");
    dtp_say_count(w, "topk", t->experts_per_token);
    dtp_say_count(w, "expert_width", t->expert_ffn);
    if (t->shared_expert_ffn)
        dtp_say_key(w, "shared_expert_ffn");
    dtp_megatron_say_if(w, "shared_expert_gate", t->shared_expert_gate);
    write_layers(w);
    dtp_say_key(w, "router");
    dtp_megatron_say_if(w, "pre_softmax", t->router == DTP_ROUTER_SOFTMAX && !t->router_norm);
    if (t->router_scale > 0)
        dtp_say_key(w, "router_scale");
    if (t->expert_groups)
        dtp_say_key(w, "expert_groups");
    if (t->groups_per_token)
        dtp_say_key(w, "groups_per_token");
    dtp_say(w, "grouped_matmuls", "true");
    dtp_megatron_say_if(w, "fused_permute", !plan->megatron.unfused_permute);
    dtp_megatron_say_if(w, "padded", plan->precision.compute == DTP_FP8);
    dtp_say(w, "dispatcher", plan->megatron.flex_dispatcher ? "flex" : "alltoall");
    dtp_megatron_say_if(w, "expert_overlap", plan->megatron.expert_overlap);
    dtp_megatron_say_if(w, "shared_expert_overlap", plan->megatron.shared_overlap);
    if (plan->megatron.capacity_factor > 0)
        dtp_say_key(w, "capacity_factor");
    dtp_megatron_say_if(w, "pad_to_capacity", plan->megatron.pad_to_capacity);
    dtp_say_key(w, "ep");
    dtp_say_count(w, "expert_tp", plan->megatron.etp);
}
