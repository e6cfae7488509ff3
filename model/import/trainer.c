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
static enum dtp_status read_fsdp(struct dtp_reading *r, const char *fsdp, bool bf16)
{
    bool offload = is(fsdp, "offload"), first = is(dtp_fact(r, "fsdp_version"), "1");
    enum dtp_status worst = dtp_make_key(r, "strategy", offload ? "full_shard" : fsdp, "fsdp");
    worst = dtp_worse(worst, dtp_make_key(r, "fsdp1", first ? "true" : "false", first ? "fsdp_version" : "fsdp"));
    if (!first && !offload) /* what Accelerate prepares keeps its root gathered (reports/h200/library_runs.md) */
        worst = dtp_worse(worst, dtp_make_key(r, "keep_root", "true", NULL));
    if (offload)
        worst = dtp_worse(worst, dtp_make_key(r, "offload", "params", "fsdp"));
    return bf16 ? dtp_worse(worst, dtp_make_key(r, "reduce_dtype", "bf16", "bf16")) : worst;
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

/* By this file, by peft's beside it, or by the line. */
static bool trains_adapters(const struct dtp_reading *r)
{
    return dtp_adapter_fact(r) || dtp_reads_beside(r, "peft") || dtp_is_said(r, "lora");
}

/* Trainer runs the models of Transformers' modeling files; what torch.compile makes of their layers is near to what it
 * makes of any. */
static enum dtp_status read_layers(struct dtp_reading *r)
{
    if (dtp_reads_beside(r, "deepspeed")) /* with adapters it has no others */
        return trains_adapters(r) ? DTP_OK : dtp_make_key(r, "transformers_layers", "true", NULL);
    return is(dtp_fact(r, "compiled"), "true") ? DTP_OK : dtp_make_key(r, "runtime", "peft", NULL);
}

/* from_pretrained of Transformers 5 keeps the format of the checkpoint (dtype "auto"), which is bf16 of nearly all, and
 * autocast has nothing to cast then; Accelerate's FSDP makes trained parameters fp32 under bf16
 * (accelerate/utils/fsdp_utils.py), and DeepSpeed keeps a copy that is. What adapters compute in goes by autocast. */
static const char *precision_of(const struct dtp_reading *r, bool sharded)
{
    const char *weights = dtp_fact(r, "weights");
    bool bf16 = is(dtp_fact(r, "bf16"), "true"), wide = is(weights, "fp32");
    bool adapters = trains_adapters(r);
    bool told = dtp_reads_beside(r, "deepspeed") || dtp_reads_beside(r, "accelerate");
    if (is(dtp_fact(r, "fp16"), "true"))
        return "fp16-mixed";
    if (bf16)
        return sharded || wide || adapters || told ? "bf16-mixed" : "bf16-pure";
    return wide ? "fp32" : is(weights, "fp16") ? "fp16-pure" : "bf16-pure";
}

static enum dtp_status read_settings(struct dtp_reading *r)
{
    bool bf16 = is(dtp_fact(r, "bf16"), "true"), fp16 = is(dtp_fact(r, "fp16"), "true");
    const char *fsdp = dtp_fact(r, "fsdp"), *optim = dtp_fact(r, "optim");
    bool narrow = is(precision_of(r, fsdp && !is(fsdp, "none")), "bf16-pure");
    enum dtp_status worst = dtp_make_model(r, "model");
    if (bf16 && fp16)
        return dtp_refuse_fact(r, "fp16", "bf16 is true as well");
    if (dtp_fact(r, "file"))
        worst = dtp_worse(worst, dtp_need_file(r, "file", "deepspeed"));
    if (fsdp && !is(fsdp, "none"))
        worst = dtp_worse(worst, read_fsdp(r, fsdp, bf16));
    else if (!dtp_reads_beside(r, "deepspeed") && !dtp_reads_beside(r, "accelerate") && !dtp_is_said(r, "strategy"))
        worst = dtp_worse(worst, dtp_make_key(r, "strategy", "ddp", NULL));
    /* Without a word for it the file beside it may say it. */
    if (bf16 || fp16 || !dtp_reads_beside(r, "accelerate"))
        worst = dtp_worse(worst, dtp_make_key(r, "precision", precision_of(r, fsdp && !is(fsdp, "none")),
                                              dtp_fact(r, "weights") ? "weights"
                                              : bf16                 ? "bf16"
                                              : fp16                 ? "fp16"
                                                                     : NULL));
    worst = dtp_worse(worst, read_layers(r));
    if (narrow && bf16 && !is(dtp_fact(r, "compiled"), "true"))
        worst = dtp_worse(worst, dtp_make_key(r, "autocast", "true", "bf16"));
    if (dtp_fact(r, "compiled"))
        worst = dtp_worse(worst, dtp_make_key(r, "compile", dtp_fact(r, "compiled"), "compiled"));
    if (!dtp_is_said(r, "micro_batch")) /* training_args.py */
        worst = dtp_worse(worst, dtp_make_key(r, "micro_batch", "8", NULL));
    /* trl/trainer/model_config.py: lora_r 16, lora_alpha 32, lora_dropout 0.05, use_bnb_nested_quant false */
    worst = dtp_worse(worst, dtp_make_adapters(r, &(struct dtp_adapter_defaults){"16", "32", "0.05", false, false}));
    bool deepspeed = dtp_reads_beside(r, "deepspeed");
    worst = read_projection(r, optim, worst);
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
    dtp_say(w, "bf16", job->plan.precision.compute == DTP_BF16 ? "true" : "false");
    dtp_say(w, "fp16", job->plan.precision.compute == DTP_FP16 ? "true" : "false");
    dtp_say_key(w, "checkpointing");
    if (job->transformer.attention_sinks) /* which sdpa has not (_supports_sdpa of modeling_gpt_oss.py) */
        dtp_say_path(w, "attn_implementation", "flex_attention", false);
    else
        dtp_say_key(w, "attention");
    dtp_say_key(w, "loss");
    dtp_say(w, "optim", dtp_written_value(w, "optimizer"));
    if (job->plan.optimizer == DTP_GALORE || job->plan.optimizer == DTP_APOLLO) {
        char arguments[40];
        snprintf(arguments, sizeof arguments, "rank=%" PRIu32, job->plan.projection_rank);
        dtp_say(w, "projected", "attn,mlp");
        dtp_say(w, "optim_args", arguments);
    }
    if (!deepspeed)
        dtp_say_key(w, "compile");
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
