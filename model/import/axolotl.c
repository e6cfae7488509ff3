/* axolotl: what several of its settings say together. It trains by Transformers' trainer. */
#include "import/formats.h"
#include "import/write.h"
#include "plan/rules.h"
#include "plan/runtime.h"

#include "base/number.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static const struct dtp_row rows[] = {
#include "import/axolotl.def"
};

static const char *const signs[] = {"base_model", NULL};

static bool is(const char *text, const char *word)
{
    return text && strcmp(text, word) == 0;
}

/* FSDP as Accelerate has it. */
static enum dtp_status read_fsdp(struct dtp_reading *r, bool bf16)
{
    bool second = is(dtp_fact(r, "fsdp_version"), "2");
    const char *fact = dtp_fact(r, "reshard") ? "reshard" : dtp_fact(r, "sharding") ? "sharding" : NULL;
    enum dtp_status worst = dtp_make_key(r, "runtime", dtp_adapter_fact(r) ? "peft" : "torch", NULL);
    worst = dtp_worse(worst, dtp_make_key(r, "strategy", fact ? dtp_fact(r, fact) : "full_shard", fact));
    worst = dtp_worse(worst, dtp_make_key(r, "fsdp1", second ? "false" : "true", second ? "fsdp_version" : NULL));
    return bf16 ? dtp_worse(worst, dtp_make_key(r, "reduce_dtype", "bf16", "bf16")) : worst;
}

/* Ranks that share a copy, times those that divide it otherwise, are all of them: replicas are refused. */
static enum dtp_status read_ranks(struct dtp_reading *r)
{
    static const char *const degrees[] = {"shard", "tp", "cp"};
    uint64_t gpus = 1, degree;
    char text[32];
    for (size_t i = 0; i < sizeof degrees / sizeof *degrees; i++) {
        const char *value = dtp_fact(r, degrees[i]);
        if (value && !dtp_number_parse_integer(value, false, 1, 1000000, &degree))
            return dtp_refuse_fact(r, degrees[i], "is no whole number from 1 on");
        gpus *= value ? degree : 1;
    }
    snprintf(text, sizeof text, "%" PRIu64, gpus);
    return dtp_make_key(r, "gpus", text, "shard");
}

static enum dtp_status read_settings(struct dtp_reading *r)
{
    const char *bf16 = dtp_fact(r, "bf16"), *attention = dtp_fact(r, "attention"), *optim = dtp_fact(r, "optim");
    bool fp16 = is(dtp_fact(r, "fp16"), "true"), half = is(bf16, "true"), deepspeed = dtp_fact(r, "file") != NULL;
    bool fsdp = is(dtp_fact(r, "fsdp"), "full_shard") || dtp_fact(r, "fsdp_version") || dtp_fact(r, "reshard");
    enum dtp_status worst = dtp_make_model(r, "model");
    if (is(bf16, "full"))
        return dtp_refuse_fact(r, "bf16",
                               "a model in bf16 alone is read by --precision bf16-pure; write true, or that");
    if (deepspeed)
        worst = dtp_worse(worst, dtp_need_file(r, "file", "deepspeed"));
    else if (fsdp)
        worst = dtp_worse(worst, read_fsdp(r, half));
    else
        worst = dtp_worse(worst, dtp_make_key(r, "strategy", "ddp", NULL));
    worst = dtp_worse(worst, dtp_make_key(r, "precision",
                                          half   ? "bf16-mixed"
                                          : fp16 ? "fp16-mixed"
                                                 : "fp32",
                                          half   ? "bf16"
                                          : fp16 ? "fp16"
                                                 : NULL));
    if (dtp_fact(r, "shard"))
        worst = dtp_worse(worst, read_ranks(r));
    /* its loader always asks for packed scales (loaders/model.py, bnb_4bit_use_double_quant) */
    worst = dtp_worse(worst, dtp_make_adapters(r, &(struct dtp_adapter_defaults){.nested = true, .linear = true}));
    if (attention)
        worst = dtp_worse(worst, dtp_make_key(r, "attention", attention, "attention"));
    if (!deepspeed) /* whose engine clips by its own file; else it is Trainer's default */
        worst = dtp_worse(worst, dtp_make_clipping(r, "max_norm", "1"));
    return dtp_worse(worst,
                     dtp_make_key(r, "optimizer", deepspeed || !optim ? "adamw" : optim, optim ? "optim" : NULL));
}

/* ---- the other way ------------------------------------------------------------------------------------------------
 */

static void write_fsdp(struct dtp_writing *w, const struct dtp_plan *plan)
{
    bool second = !plan->fsdp1;
    dtp_say(w, "fsdp_version", second ? "2" : "1");
    if (!second)
        dtp_say(w, "fsdp", "full_shard");
    dtp_say(w, second ? "reshard" : "sharding", plan->strategy == DTP_SHARD_GRAD_OP ? "shard_grad_op" : "full_shard");
    dtp_say_key(w, "wrap_layers");
    dtp_say_key(w, "offload");
    if (plan->tp * plan->cp > 1) {
        dtp_say_key(w, "tp");
        dtp_say_key(w, "cp");
        dtp_say_count(w, "shard", dtp_written_job(w)->cluster.gpus / plan->tp / plan->cp);
    }
}

/* base_model is dtplan's word: the user's folder or name on the hub takes its place. */
static void write_settings(struct dtp_writing *w)
{
    const struct dtp_job *job = dtp_written_job(w);
    const struct dtp_plan *plan = &job->plan;
    dtp_say(w, "model", job->transformer.name);
    dtp_say_key(w, "seq");
    dtp_say_path(w, "pad_to_sequence_len", "true", false);
    dtp_say_key(w, "micro_batch");
    dtp_say_key(w, "accumulate");
    dtp_say(w, "bf16", plan->precision.compute == DTP_BF16 ? "true" : "false");
    dtp_say(w, "fp16", plan->precision.compute == DTP_FP16 ? "true" : "false");
    dtp_say_key(w, "checkpointing");
    dtp_say_key(w, "compile");
    dtp_say(w, "optim", dtp_written_value(w, "optimizer"));
    dtp_say(w, "max_norm", dtp_written_value(w, "clip_norm"));
    dtp_say(w, "attention", dtp_attention_text(plan->attention));
    if (dtp_plan_is_fsdp(plan))
        write_fsdp(w, plan);
    if (plan->adapters.rank) {
        dtp_say(w, "adapter", plan->adapters.base == DTP_BASE_NF4_DOUBLE ? "qlora" : "lora");
        dtp_write_adapters(w);
        dtp_write_base(w, "bnb_config_kwargs.bnb_4bit_quant_storage");
    }
    dtp_say_path(w, "output_dir", "out", false);
    dtp_say_path(w, "num_epochs", "1", false);
    dtp_say_path(w, "learning_rate", "0.0002", false);
}

const struct dtp_format dtp_format_axolotl = {
    .name = "axolotl",
    .title = "axolotl's configuration",
    .syntaxes = 1u << DTP_SYNTAX_YAML,
    .signs = signs,
    .rows = rows,
    .row_count = sizeof rows / sizeof *rows,
    .silent = "the GPUs; sequences are counted at their full length",
    .read = read_settings,
    .write = write_settings,
    .writes_yaml = true,
};
