/* Megatron-LM: what its flags say together, and what it does without them. */
#include "import/formats.h"
#include "import/write.h"
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

static bool is(const char *text, const char *word)
{
    return text && strcmp(text, word) == 0;
}

static uint64_t count_of(const struct dtp_reading *r, const char *fact, uint64_t otherwise)
{
    uint64_t count;
    const char *text = dtp_fact(r, fact);
    return text && dtp_number_parse_integer(text, false, 1, 1000000000, &count) ? count : otherwise;
}

static enum dtp_status make(struct dtp_reading *r, enum dtp_status worst, const char *key, const char *value,
                            const char *fact)
{
    return dtp_worse(worst, dtp_make_key(r, key, value, fact && dtp_fact(r, fact) ? fact : NULL));
}

static enum dtp_status make_count(struct dtp_reading *r, enum dtp_status worst, const char *key, uint64_t value,
                                  const char *fact)
{
    char text[32];
    snprintf(text, sizeof text, "%" PRIu64, value);
    return make(r, worst, key, text, fact);
}

/* arguments.py: LayerNorm, GELU, learned positions, biases and a tied head unless flags say otherwise. */
static enum dtp_status read_model(struct dtp_reading *r)
{
    const char *norm = dtp_fact(r, "normalization"), *position = dtp_fact(r, "position");
    bool rotary = is(dtp_fact(r, "rotary"), "true"), untied = dtp_fact(r, "untied") != NULL;
    enum dtp_status worst = DTP_OK;
    if (!dtp_fact(r, "layers")) /* a list of flags beside a model that is named */
        return DTP_OK;
    if (!dtp_is_said(r, "vocab"))
        worst = dtp_refuse_fact(r, "layers", "the vocabulary is the tokenizer's; give --vocab N");
    if (!position)
        position = rotary ? "rope" : "learned";
    worst = make(r, worst, "norm", norm ? norm : "layer_norm", "normalization");
    worst = make(r, worst, "activation",
                 dtp_fact(r, "swiglu")         ? "swiglu"
                 : dtp_fact(r, "squared_relu") ? "relu2"
                                               : "gelu",
                 dtp_fact(r, "swiglu") ? "swiglu" : "squared_relu");
    worst = make(r, worst, "position", position, rotary ? "rotary" : "position");
    worst = make(r, worst, "tied_head", untied ? "false" : "true", "untied");
    worst = make(r, worst, "bias", dtp_fact(r, "no_bias") ? "false" : "true", "no_bias");
    if (is(norm, "layer_norm") || !norm) /* which disable_bias_linear leaves alone */
        worst = make(r, worst, "norm_bias", "true", "normalization");
    if (is(position, "learned") && dtp_fact(r, "positions"))
        worst = make(r, worst, "positions", dtp_fact(r, "positions"), "positions");
    if (dtp_fact(r, "grouped"))
        worst = make_count(r, worst, "kv_heads", count_of(r, "groups", 1), "groups");
    if (!dtp_fact(r, "ffn") && dtp_fact(r, "swiglu")) /* int(4 hidden 2/3 / 64) 64 */
        worst = make_count(r, worst, "ffn", 4 * count_of(r, "hidden", 0) * 2 / 3 / 64 * 64, "swiglu");
    return worst;
}

static enum dtp_status read_cluster(struct dtp_reading *r)
{
    uint64_t each = count_of(r, "each", 0), nodes = count_of(r, "nodes", 1);
    if (!each)
        return DTP_OK;
    enum dtp_status worst = make_count(r, DTP_OK, "gpus", each * nodes, "each");
    return nodes > 1 ? make_count(r, worst, "gpus_per_node", each, "each") : worst;
}

static enum dtp_status read_parallel(struct dtp_reading *r)
{
    uint64_t tp = count_of(r, "tp", 1), pp = count_of(r, "pp", 1), chunk = count_of(r, "chunk_layers", 0),
             layers = count_of(r, "layers", 0);
    bool reduce = dtp_fact(r, "overlap_reduce") != NULL, gather = dtp_fact(r, "overlap_gather") != NULL,
         sharded = dtp_fact(r, "sharded") != NULL;
    enum dtp_status worst = make(r, DTP_OK, "strategy", sharded ? "zero1" : "ddp", "sharded");
    if (sharded && reduce != gather)
        return dtp_refuse_fact(r, reduce ? "overlap_reduce" : "overlap_gather",
                               "one of overlap_grad_reduce and overlap_param_gather is not modelled; both or none");
    worst = make(r, worst, "megatron_overlap", reduce ? "true" : "false", "overlap_reduce");
    if (tp > 1)
        worst = make(r, worst, "sequence_parallel", dtp_fact(r, "sequence") ? "true" : "false", "sequence");
    if (chunk && layers % (pp * chunk))
        return dtp_refuse_fact(r, "chunk_layers", "does not divide %" PRIu64 " layers on %" PRIu64 " ranks", layers,
                               pp);
    if (chunk)
        worst = make_count(r, worst, "virtual_stages", layers / pp / chunk, "chunk_layers");
    return worst;
}

/* Gradients are summed and reduced in fp32 beside bf16 unless grad_reduce_in_bf16 says otherwise (arguments.py), beside
 * fp16 in fp16 unless accumulate_allreduce_grads_in_fp32 does. */
static enum dtp_status read_formats(struct dtp_reading *r)
{
    bool bf16 = dtp_fact(r, "bf16") != NULL, fp16 = dtp_fact(r, "fp16") != NULL;
    enum dtp_status worst = make(r, DTP_OK, "precision",
                                 bf16   ? "bf16-mixed"
                                 : fp16 ? "fp16-mixed"
                                        : "fp32",
                                 bf16 ? "bf16" : "fp16");
    if (bf16)
        return make(r, worst, "reduce_dtype", dtp_fact(r, "reduce_bf16") ? "bf16" : "fp32", "reduce_bf16");
    if (fp16)
        return make(r, worst, "reduce_dtype", dtp_fact(r, "reduce_fp32") ? "fp32" : "fp16", "reduce_fp32");
    return worst;
}

static enum dtp_status read_checkpointing(struct dtp_reading *r)
{
    const char *granularity = dtp_fact(r, "granularity"), *method = dtp_fact(r, "method");
    uint64_t count = count_of(r, "recomputed", 1), layers = count_of(r, "layers", 0) / count_of(r, "pp", 1);
    if (!granularity)
        granularity = dtp_fact(r, "recompute");
    if (!granularity)
        return dtp_make_key(r, "checkpointing", "none", NULL);
    if (is(granularity, "selective"))
        return make(r, DTP_OK, "checkpointing", "selective-attention",
                    dtp_fact(r, "granularity") ? "granularity" : "recompute");
    if ((is(method, "uniform") && count != 1) || (is(method, "block") && count < layers))
        return dtp_refuse_fact(r, "recomputed", "recomputing %s is not modelled: each layer for itself (uniform, 1) is",
                               is(method, "block") ? "some layers of a stage" : "several layers at once");
    return make(r, DTP_OK, "checkpointing", "full", "granularity");
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

static enum dtp_status read_settings(struct dtp_reading *r)
{
    const char *backend = dtp_fact(r, "backend"), *optimizer = dtp_fact(r, "optimizer");
    enum dtp_status worst = dtp_make_key(r, "runtime", "megatron", NULL);
    worst = dtp_worse(worst, read_model(r));
    worst = dtp_worse(worst, read_cluster(r));
    worst = dtp_worse(worst, read_parallel(r));
    worst = dtp_worse(worst, read_formats(r));
    worst = dtp_worse(worst, read_checkpointing(r));
    worst = dtp_worse(worst, read_dropout(r));
    worst = make(r, worst, "attention", backend ? backend : "flash", backend ? "backend" : "flash");
    worst = make(r, worst, "loss", dtp_fact(r, "fused_loss") ? "fused" : "eager", "fused_loss");
    worst = make(r, worst, "optimizer", optimizer ? optimizer : "adamw", "optimizer");
    worst = make(r, worst, "fused_qkv", "true", NULL); /* linear_qkv and linear_fc1 are one matmul each */
    return make(r, worst, "fused_gate_up", "true", NULL);
}

/* ---- the other way ------------------------------------------------------------------------------------------------
 */

/* A switch that is off is not there. */
static void say_if(struct dtp_writing *w, const char *name, bool on)
{
    if (on)
        dtp_say(w, name, "true");
}

static void write_model(struct dtp_writing *w)
{
    static const char *const keys[] = {"layers", "hidden", "heads", "head_dim", "ffn", "vocab", "norm_eps", "seq"};
    const struct dtp_transformer *t = &dtp_written_job(w)->transformer;
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        dtp_say_key(w, keys[i]);
    if (t->kv_heads != t->heads) {
        dtp_say(w, "grouped", "true");
        dtp_say_count(w, "groups", t->kv_heads);
    }
    dtp_say(w, "normalization", dtp_written_value(w, "norm"));
    say_if(w, "swiglu", t->activation == DTP_SWIGLU);
    dtp_say(w, "position", dtp_written_value(w, "position"));
    dtp_say_count(w, "positions", t->positions ? t->positions : dtp_written_job(w)->plan.sequence);
    say_if(w, "untied", !t->tied_head);
    say_if(w, "no_bias", !t->mlp_bias && !t->attention_output_bias);
    say_if(w, "qkv_bias", t->qkv_bias && !t->mlp_bias);
    say_if(w, "qk_norm", t->qk_norm);
    say_if(w, "norm_unit_offset", t->norm_unit_offset);
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
    say_if(w, "sequence", plan->tp > 1 && plan->sequence_parallel);
    if (plan->pp > 1 && plan->virtual_stages > 1)
        dtp_say_key(w, "virtual_stages");
    if (plan->pp > 1 && plan->stages.cut == DTP_STAGE_CUT_LAYOUT)
        dtp_say_key(w, "stages");
    say_if(w, "sharded", plan->strategy == DTP_ZERO1);
    say_if(w, "overlap_reduce", plan->megatron.overlap);
    say_if(w, "overlap_gather", plan->megatron.overlap && plan->strategy == DTP_ZERO1);
    say_if(w, "tp_overlap", plan->tp_overlap);
}

static void write_settings(struct dtp_writing *w)
{
    const struct dtp_job *job = dtp_written_job(w);
    const struct dtp_plan *plan = &job->plan;
    const struct dtp_precision *p = &plan->precision;
    write_model(w);
    write_parallel(w);
    dtp_say_key(w, "micro_batch");
    dtp_say_count(w, "global_batch", dtp_job_batch_sequences(job));
    say_if(w, "bf16", p->compute == DTP_BF16);
    say_if(w, "fp16", p->compute == DTP_FP16);
    say_if(w, "reduce_bf16", p->compute == DTP_BF16 && p->reduce == DTP_BF16);
    say_if(w, "reduce_fp32", p->compute == DTP_FP16 && p->reduce == DTP_FP32);
    if (plan->checkpointing == DTP_CHECKPOINT_FULL) {
        dtp_say(w, "granularity", "full");
        dtp_say(w, "method", "uniform");
        dtp_say_count(w, "recomputed", 1);
    } else if (plan->checkpointing != DTP_CHECKPOINT_NONE) {
        dtp_say(w, "granularity", "selective");
    }
    dtp_say(w, "backend", dtp_attention_text(plan->attention));
    say_if(w, "fused_loss", plan->loss == DTP_LOSS_FUSED);
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
    .read = read_settings,
    .write = write_settings,
};
