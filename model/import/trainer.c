/* TrainingArguments: what several of its settings say together. The trainer wraps the model by Accelerate. */
#include "import/formats.h"
#include "import/write.h"
#include "plan/runtime.h"

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

/* FSDP as Accelerate has it: the reduction in the recipe's 16-bit format. */
static enum dtp_status read_fsdp(struct dtp_reading *r, const char *fsdp, bool bf16)
{
    bool offload = is(fsdp, "offload"), second = is(dtp_fact(r, "fsdp_version"), "2");
    enum dtp_status worst = dtp_make_key(r, "runtime", dtp_adapter_fact(r) ? "peft" : "torch", "fsdp");
    worst = dtp_worse(worst, dtp_make_key(r, "strategy", offload ? "full_shard" : fsdp, "fsdp"));
    worst = dtp_worse(worst, dtp_make_key(r, "fsdp1", second ? "false" : "true", second ? "fsdp_version" : "fsdp"));
    if (offload)
        worst = dtp_worse(worst, dtp_make_key(r, "offload", "params", "fsdp"));
    return bf16 ? dtp_worse(worst, dtp_make_key(r, "reduce_dtype", "bf16", "bf16")) : worst;
}

static enum dtp_status read_settings(struct dtp_reading *r)
{
    bool bf16 = is(dtp_fact(r, "bf16"), "true"), fp16 = is(dtp_fact(r, "fp16"), "true");
    const char *fsdp = dtp_fact(r, "fsdp"), *optim = dtp_fact(r, "optim");
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
        worst = dtp_worse(worst, dtp_make_key(r, "precision",
                                              bf16   ? "bf16-mixed"
                                              : fp16 ? "fp16-mixed"
                                                     : "fp32",
                                              bf16   ? "bf16"
                                              : fp16 ? "fp16"
                                                     : NULL));
    if (!dtp_is_said(r, "micro_batch")) /* training_args.py */
        worst = dtp_worse(worst, dtp_make_key(r, "micro_batch", "8", NULL));
    /* trl/trainer/model_config.py: lora_r 16, lora_alpha 32, lora_dropout 0.05, use_bnb_nested_quant false */
    worst = dtp_worse(worst, dtp_make_adapters(r, &(struct dtp_adapter_defaults){"16", "32", "0.05", false, false}));
    bool deepspeed = dtp_reads_beside(r, "deepspeed");
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
    dtp_say_key(w, "attention");
    dtp_say_key(w, "loss");
    dtp_say(w, "optim", dtp_written_value(w, "optimizer"));
    if (!deepspeed)
        dtp_say_key(w, "compile");
    dtp_write_base(w);
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
