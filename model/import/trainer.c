/* TrainingArguments: what several of its settings say together. The trainer wraps the model by Accelerate. */
#include "import/formats.h"
#include "import/write.h"
#include "plan/runtime.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static const struct dtp_row rows[] = {
#include "import/trainer.def"
};

static const char *const signs[] = {"per_device_train_batch_size", "lr_scheduler_type", "num_train_epochs",
                                    "gradient_checkpointing",      "output_dir",        NULL};

static bool is(const char *text, const char *word)
{
    return text && strcmp(text, word) == 0;
}

/* FSDP as Accelerate has it: the reduction in the recipe's 16-bit format, version 2 unless the file says 1
 * (fsdp_config.get("version", 2) of training_args.py). */
static enum dtp_status read_fsdp(struct dtp_reading *r, const char *fsdp)
{
    bool offload = is(fsdp, "offload"), first = is(dtp_fact(r, "fsdp_version"), "1");
    enum dtp_status worst = dtp_make_key(r, "strategy", offload ? "full_shard" : fsdp, "fsdp");
    worst = dtp_worse(worst, dtp_make_key(r, "fsdp1", first ? "true" : "false", first ? "fsdp_version" : "fsdp"));
    if (!first && !offload)
        worst = dtp_worse(worst, dtp_make_kept_root(r, fsdp, NULL));
    if (offload)
        worst = dtp_worse(worst, dtp_make_key(r, "offload", "params", "fsdp"));
    const char *mixed = dtp_accelerate_mixed(r);
    bool reduces = (is(mixed, "bf16") || is(mixed, "fp16")) && !dtp_trains_adapters(r); /* theirs as they are */
    return reduces ? dtp_worse(worst, dtp_make_key(r, "reduce_dtype", mixed, dtp_fact(r, mixed) ? mixed : NULL))
                   : worst;
}

/* Trainer takes a word, '=' and a value between commas, and ends at anything else (trainer_optimizer.py). */
static bool is_arguments(const char *list)
{
    for (size_t at = 0;; at++) {
        size_t whole = strcspn(list + at, ","), name = strcspn(list + at, "=,");
        if (name == whole || list[at + name + 1 + strcspn(list + at + name + 1, "=,")] == '=')
            return false;
        at += whole;
        if (!list[at])
            return true;
    }
}

/* Of "rank=64, scale=0.25" the last text behind a word and '=', of `length` bytes, without spaces around it, which
 * Trainer drops; NULL: it is not among them. */
static const char *argument(const char *list, const char *word, size_t *length)
{
    const char *found = NULL;
    for (size_t at = 0; list && list[at];) {
        at += strspn(list + at, ", ");
        size_t whole = strcspn(list + at, ","), name = strcspn(list + at, "=, ");
        size_t equals = name + strspn(list + at + name, " ");
        if (name == strlen(word) && strncmp(list + at, word, name) == 0 && list[at + equals] == '=') {
            found = list + at + equals + 1;
            found += strspn(found, " ");
            *length = strcspn(found, ",");
            while (*length && found[*length - 1] == ' ')
                --*length;
        }
        at += whole;
    }
    return found;
}

/* The names, as patterns or not, of a block's parts and of its linears: both parts, or all seven linears, are its
 * matrices, which is what a plan projects. Any other linear, the head under "all-linear" too, would be one more. */
static bool names_block(const char *list)
{
    static const char *const names[] = {"attn",   "self_attn", "mlp",       "q_proj",  "k_proj",
                                        "v_proj", "o_proj",    "gate_proj", "up_proj", "down_proj"};
    const unsigned attention = 1u << 0 | 1u << 1, mlp = 1u << 2, linears = 0x7fu << 3;
    unsigned set = 0;
    for (size_t at = strspn(list, ", "); list[at]; at += strspn(list + at, ", ")) {
        size_t length = strcspn(list + at, ", "), front = strspn(list + at, ".*"), i = 0;
        const char *name = list + at + front;
        size_t own = strcspn(name, ".*, ");
        while (i < sizeof names / sizeof *names && (strlen(names[i]) != own || strncmp(names[i], name, own) != 0))
            i++;
        if (i == sizeof names / sizeof *names)
            return false;
        set |= 1u << i;
        at += length;
    }
    return ((set & attention) && (set & mlp)) || (set & linears) == linears;
}

/* GaLore and APOLLO project the gradients of linears that are named, by optim_args (trainer_optimizer.py, trainer.py):
 * rank 128, of GaLore the shorter side (proj_type std), of APOLLO at random, each channel scaled by itself. */
static enum dtp_status read_projection(struct dtp_reading *r, const char *optim, enum dtp_status worst)
{
    static const struct {
        const char *word, *only;
    } fixed[] = {{"proj_type", "std"}, {"proj", "random"}, {"scale_type", "channel"}};
    const char *list = dtp_fact(r, "optim_args"), *modules = dtp_fact(r, "projected");
    size_t length = 0;
    if (!is(optim, "galore") && !is(optim, "apollo"))
        return modules ? dtp_refuse_fact(r, "projected", "is of optimizers that project, which optim names none of")
                       : worst;
    if (!modules)
        return dtp_refuse_fact(r, "optim", "takes optim_target_modules; give [attn, mlp]");
    if (!names_block(modules))
        return dtp_refuse_fact(r, "projected", "are other linears than all of a block's; give [attn, mlp]");
    if (list && *list && !is_arguments(list))
        return dtp_refuse_fact(r, "optim_args", "is no list of NAME=VALUE between commas; write rank=128, say");
    for (size_t i = 0; i < sizeof fixed / sizeof *fixed; i++) {
        const char *given = argument(list, fixed[i].word, &length);
        if (given && (strlen(fixed[i].only) != length || strncmp(given, fixed[i].only, length) != 0))
            return dtp_refuse_fact(r, "optim_args", "names a projection that is not modelled; leave out %s",
                                   fixed[i].word);
    }
    const char *given = argument(list, "rank", &length);
    char rank[24];
    if (given && length >= sizeof rank)
        return dtp_refuse_fact(r, "optim_args", "has no rank that is a number");
    snprintf(rank, sizeof rank, "%.*s", given ? (int)length : 3, given ? given : "128");
    return dtp_worse(worst, dtp_make_key(r, "projection_rank", rank, given ? "optim_args" : "optim"));
}

static bool compiles(const struct dtp_reading *r)
{
    return is(dtp_fact(r, "torch_compile"), "true") || is(dtp_fact_of(r, "accelerate", "dynamo"), "true");
}

/* Trainer runs the models of Transformers' modeling files; what torch.compile makes of their layers is near to what it
 * makes of any. */
static enum dtp_status read_layers(struct dtp_reading *r)
{
    if (dtp_accelerate_runs_deepspeed(r)) /* with adapters it has no others */
        return dtp_trains_adapters(r) ? DTP_OK : dtp_make_key(r, "transformers_layers", "true", NULL);
    return compiles(r) ? DTP_OK : dtp_make_key(r, "runtime", "peft", NULL);
}

/* Kernels of Liger for norms, gated activations and the loss (integrations/liger.py); torch.compile has its own of
 * these but the loss. */
static enum dtp_status read_liger(struct dtp_reading *r, bool layers)
{
    const bool liger = is(dtp_fact(r, "liger"), "true");
    if (!dtp_fact(r, "liger"))
        return DTP_OK;
    enum dtp_status status = dtp_make_key(r, "loss", liger ? "fused" : "eager", "liger");
    if (!layers || !liger)
        return status;
    status = dtp_worse(status, dtp_make_key(r, "fast_kernels", "true", "liger"));
    return dtp_worse(status, dtp_make_key(r, "fused_activation", "true", "liger"));
}

/* Whether Trainer's own loop steps, and not an engine's, around layers that no compiler has made others of. */
static bool runs_layers(const struct dtp_reading *r)
{
    const char *runtime = dtp_typed(r, "runtime");
    return !compiles(r) && !dtp_accelerate_runs_deepspeed(r) && (!runtime || is(runtime, "peft"));
}

static enum dtp_status read_loop(struct dtp_reading *r)
{
    const bool layers = runs_layers(r);
    enum dtp_status worst = read_liger(r, layers);
    if (layers && is(dtp_fact(r, "filter"), "false"))
        worst = dtp_worse(worst, dtp_make_key(r, "unread_loss", "true", "filter"));
    return worst;
}

/* Precision, and why there is none of that pair. */
struct recipe {
    const char *precision, *refusal; /* one of them */
};

static struct recipe of_adapters(const struct dtp_reading *r, const char *mixed, const char *weights)
{
    bool packed = is(dtp_fact(r, "in_4bit"), "true") || is(dtp_fact(r, "in_8bit"), "true");
    if (is(mixed, "fp16") && (packed || is(weights, "fp16")))
        return (struct recipe){"fp16-mixed", NULL};
    if (is(mixed, "fp16"))
        return (struct recipe){NULL, "a base in another format beside adapters under fp16's autocast, which casts each "
                                     "matrix, is not modelled; write dtype float16"};
    if (is(mixed, "bf16"))
        return is(weights, "bf16") ? (struct recipe){"bf16-mixed", NULL}
                                   : (struct recipe){NULL, "a base in another format beside adapters under bf16's "
                                                           "autocast, which casts each matrix, is not modelled; write "
                                                           "dtype bfloat16"};
    return (struct recipe){is(weights, "fp32") ? "fp32" : "bf16-pure",
                           is(weights, "fp16") ? "adapters of fp16 weights without autocast are not modelled; write "
                                                 "fp16 true, or dtype bfloat16"
                                               : NULL};
}

/* from_pretrained of Transformers 5 keeps the format of the checkpoint (dtype "auto"), which is bf16 of nearly all,
 * whoever launches, and autocast has nothing to cast then; Accelerate's FSDP makes trained parameters fp32 under
 * autocast (accelerate/utils/fsdp_utils.py), and DeepSpeed keeps a copy that is. Of fp16 gradients are scaled by
 * PyTorch's GradScaler, which takes fp32 ones ("Attempting to unscale FP16 gradients"). */
static struct recipe recipe_of(const struct dtp_reading *r, const char *mixed, const char *weights, bool sharded)
{
    bool wide = is(weights, "fp32"), half = is(weights, "fp16"), keeps = sharded || dtp_accelerate_runs_deepspeed(r);
    if (dtp_trains_adapters(r) && !dtp_accelerate_runs_deepspeed(r)) /* whose engine casts the base, too */
        return of_adapters(r, mixed, weights);
    if (is(mixed, "bf16") && half && !keeps)
        return (struct recipe){NULL, "fp16 weights under bf16's autocast are not modelled; write dtype bfloat16"};
    if (is(mixed, "bf16"))
        return (struct recipe){keeps || wide ? "bf16-mixed" : "bf16-pure", NULL};
    if (is(mixed, "fp16") && !keeps && !wide)
        return (struct recipe){NULL, "fp16's GradScaler takes fp32 weights, and those of most checkpoints are in 16 "
                                     "bits; write dtype float32, or bf16 in its place"};
    if (is(mixed, "fp16"))
        return (struct recipe){"fp16-mixed", NULL};
    return (struct recipe){wide ? "fp32" : "bf16-pure",
                           half ? "fp16 weights without autocast are not modelled; write dtype bfloat16" : NULL};
}

/* DeepSpeed's file, or Accelerate's of DeepSpeed, says it itself where this one says nothing. */
static bool engine_says(const struct dtp_reading *r)
{
    return is(dtp_fact_of(r, "accelerate", "distributed"), "deepspeed") ||
           is(dtp_fact_of(r, "deepspeed", "bf16"), "true") || is(dtp_fact_of(r, "deepspeed", "fp16"), "true");
}

static enum dtp_status read_precision(struct dtp_reading *r, bool sharded)
{
    const char *mixed = dtp_accelerate_mixed(r), *said = dtp_fact(r, "dtype");
    const char *weights = !said || is(said, "auto") ? "bf16" : said, *fact = said ? "dtype" : NULL;
    if (!fact && dtp_fact(r, "bf16") && is(mixed, "bf16"))
        fact = "bf16";
    if (!fact && dtp_fact(r, "fp16") && is(mixed, "fp16"))
        fact = "fp16";
    if (is(mixed, "fp8") || ((!mixed || is(mixed, "no")) && engine_says(r))) /* said there */
        return DTP_OK;
    struct recipe recipe =
        recipe_of(r, mixed, weights, sharded || is(dtp_fact_of(r, "accelerate", "distributed"), "fsdp"));
    if (dtp_is_typed(r, "precision"))
        return dtp_make_key(r, "precision", dtp_typed(r, "precision"), fact);
    if (recipe.refusal)
        return dtp_refuse_fact(r, fact ? fact : "dtype", "%s", recipe.refusal);
    enum dtp_status status = dtp_make_key(r, "precision", recipe.precision, fact);
    if (is(mixed, "bf16") && is(recipe.precision, "bf16-pure") && runs_layers(r))
        status = dtp_worse(status, dtp_make_key(r, "autocast", "true", dtp_fact(r, "bf16") ? "bf16" : NULL));
    return status;
}

static enum dtp_status read_settings(struct dtp_reading *r)
{
    bool bf16 = is(dtp_fact(r, "bf16"), "true"), fp16 = is(dtp_fact(r, "fp16"), "true");
    const char *fsdp = dtp_fact(r, "fsdp"), *optim = dtp_fact(r, "optim");
    bool deepspeed = dtp_accelerate_runs_deepspeed(r), sharded = fsdp && !is(fsdp, "none");
    enum dtp_status worst = dtp_make_model(r, "model");
    if (bf16 && fp16)
        return dtp_refuse_fact(r, "fp16", "bf16 is true as well");
    if (dtp_fact(r, "file"))
        worst = dtp_worse(worst, dtp_need_file(r, "file", "deepspeed"));
    if (sharded)
        worst = dtp_worse(worst, read_fsdp(r, fsdp));
    else if (!deepspeed && !dtp_reads_beside(r, "accelerate") && !dtp_is_said(r, "strategy"))
        worst = dtp_worse(worst, dtp_make_key(r, "strategy", "ddp", NULL));
    worst = dtp_worse(worst, read_precision(r, sharded));
    worst = dtp_worse(worst, read_layers(r));
    worst = dtp_worse(worst, read_loop(r));
    if (dtp_fact(r, "torch_compile"))
        worst = dtp_worse(worst, dtp_make_key(r, "compile", dtp_fact(r, "torch_compile"), "torch_compile"));
    if (!dtp_is_said(r, "micro_batch")) /* training_args.py */
        worst = dtp_worse(worst, dtp_make_key(r, "micro_batch", "8", NULL));
    /* trl/trainer/model_config.py: lora_r 16, lora_alpha 32, lora_dropout 0.05, use_bnb_nested_quant false */
    worst = dtp_worse(worst, dtp_make_adapters(r, &(struct dtp_adapter_defaults){"16", "32", "0.05", false, false}));
    worst = read_projection(r, optim, worst);
    if (!deepspeed)                                                      /* whose engine clips by its own file */
        worst = dtp_worse(worst, dtp_make_clipping(r, "max_norm", "1")); /* training_args.py */
    return dtp_worse(worst,
                     dtp_make_key(r, "optimizer", deepspeed || !optim ? "adamw" : optim, optim ? "optim" : NULL));
}

/* Beside a file of DeepSpeed or Accelerate, which says what is sharded. */
static void write_settings(struct dtp_writing *w)
{
    const struct dtp_job *job = dtp_written_job(w);
    bool deepspeed = strcmp(job->plan.runtime->name, "deepspeed") == 0;
    dtp_say_path(w, "output_dir", "out", false);
    dtp_say_key(w, "micro_batch");
    dtp_say_key(w, "accumulate");
    dtp_say(w, "bf16", strcmp(dtp_written_mixed(&job->plan), "bf16") == 0 ? "true" : "false");
    dtp_say(w, "fp16", strcmp(dtp_written_mixed(&job->plan), "fp16") == 0 ? "true" : "false");
    if (!deepspeed)
        dtp_say(w, "dtype", dtp_dtype_text(job->plan.precision.params));
    dtp_say_key(w, "checkpointing");
    if (job->transformer.attention_sinks) /* which sdpa has not (_supports_sdpa of modeling_gpt_oss.py) */
        dtp_say_path(w, "attn_implementation", "flex_attention", false);
    else
        dtp_say_key(w, "attention");
    if (job->plan.loss == DTP_LOSS_EAGER || job->plan.loss == DTP_LOSS_FUSED)
        dtp_say(w, "liger", job->plan.loss == DTP_LOSS_FUSED ? "true" : "false");
    if (job->plan.unread_loss)
        dtp_say(w, "filter", "false");
    dtp_say(w, "optim", dtp_written_value(w, "optimizer"));
    if (job->plan.optimizer == DTP_GALORE || job->plan.optimizer == DTP_APOLLO) {
        char arguments[40];
        snprintf(arguments, sizeof arguments, "rank=%" PRIu32, job->plan.projection_rank);
        dtp_say(w, "projected", "attn,mlp");
        dtp_say(w, "optim_args", arguments);
    }
    if (!deepspeed) {
        dtp_say_key(w, "compile");
        dtp_say(w, "max_norm", dtp_written_value(w, "clip_norm"));
    }
    dtp_write_base(w, "bnb_4bit_quant_storage");
}

const struct dtp_format dtp_format_trainer = {
    .name = "trainer",
    .title = "TrainingArguments of Transformers",
    .syntaxes = 1u << DTP_SYNTAX_JSON | 1u << DTP_SYNTAX_YAML,
    .signs = signs,
    .rows = rows,
    .row_count = sizeof rows / sizeof *rows,
    .silent = "the model, the length of sequences and the GPUs, unless the script's own arguments stand in it",
    .read = read_settings,
    .write = write_settings,
};
