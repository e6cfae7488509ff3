/* NeMo 1: Megatron's settings in yaml, with defaults of its own (megatron_base_model.py and megatron_gpt_model.py of
 * nemo/collections/nlp/models/language_modeling). */
#include "import/formats.h"
#include "import/megatron.h"

#include <string.h>

static const struct dtp_row rows[] = {
#include "import/nemo.def"
};

static const char *const signs[] = {"model.encoder_seq_length", "model.megatron_amp_O2",
                                    "model.activations_checkpoint_granularity", "model.mcore_gpt", NULL};

static enum dtp_status check_activation(struct dtp_reading *r)
{
    const char *activation = dtp_fact(r, "activation");
    bool unfused = dtp_megatron_is(dtp_fact(r, "fused_activation"), "false"),
         has_fusion = !activation || !dtp_megatron_is(activation, "relu2");
    if (unfused && has_fusion) /* mcore's mlp.py has fused kernels of GELU and SwiGLU alone */
        return dtp_refuse_fact(r, "fused_activation",
                               "an activation in several kernels is not modelled; leave it out or say true");
    return DTP_OK;
}

/* Both formats of masters: with O2 the model is in 16 bits beside fp32 masters, without it it is in fp32 under autocast
 * (megatron_base_model.py, setup_optimizer_param_groups and configure_optimizers). */
static enum dtp_status read_formats(struct dtp_reading *r)
{
    const char *number = dtp_fact(r, "number_format"), *narrow = dtp_fact(r, "eight_bits"),
               *sync = dtp_fact(r, "sync_dtype");
    bool bf16 = dtp_megatron_is(number, "bf16"), fp16 = dtp_megatron_is(number, "fp16");
    enum dtp_status worst = DTP_OK;
    if (!number && !dtp_is_said(r, "precision"))
        return dtp_refuse_fact(r, "number_format", "trainer.precision is missing; give --precision");
    if ((bf16 || fp16) && !dtp_megatron_is(dtp_fact(r, "masters"), "true"))
        worst = dtp_refuse_fact(r, dtp_fact(r, "masters") ? "masters" : "number_format",
                                "a model in fp32 that autocast narrows is not modelled; give megatron_amp_O2: true");
    if (narrow && !bf16)
        worst = dtp_worse(worst, dtp_refuse_fact(r, "eight_bits", "is modelled beside bf16 alone"));
    worst = dtp_megatron_make(r, worst, "precision",
                              narrow ? narrow
                              : bf16 ? "bf16-mixed"
                              : fp16 ? "fp16-mixed"
                                     : "fp32",
                              narrow ? "eight_bits" : "number_format");
    if (bf16 || fp16)
        worst = dtp_megatron_make(r, worst, "reduce_dtype", sync ? sync : "fp32", "sync_dtype");
    return worst;
}

/* Transformer Engine takes a flash kernel by itself; without it use_flash_attention does. */
static enum dtp_status read_kernels(struct dtp_reading *r)
{
    bool engine = dtp_megatron_is(dtp_fact(r, "engine"), "true"),
         flash = dtp_megatron_is(dtp_fact(r, "flash_attention"), "true");
    return dtp_make_key(r, "attention", engine || flash ? "flash" : "math", engine ? "engine" : "flash_attention");
}

static enum dtp_status read_settings(struct dtp_reading *r)
{
    enum dtp_status worst = check_activation(r);
    worst = dtp_worse(worst, read_formats(r));
    worst = dtp_worse(worst, read_kernels(r));
    /* distributed_fused_adam overlaps sums unless overlap_grad_sync says otherwise (megatron_gpt_model.py). */
    if (dtp_megatron_is(dtp_fact(r, "sharded"), "apex") && !dtp_says_fact(r, "overlap_reduce"))
        worst = dtp_worse(worst, dtp_megatron_read_overlap(r, true, true, dtp_fact(r, "overlap_gather") != NULL));
    return dtp_worse(worst, dtp_megatron_read(r));
}

/* ---- the other way ------------------------------------------------------------------------------------------------
 */

static void write_numbers(struct dtp_writing *w)
{
    const struct dtp_precision *p = &dtp_written_job(w)->plan.precision;
    bool narrow = p->compute == DTP_FP8, half = narrow || p->compute == DTP_BF16 || p->compute == DTP_FP16;
    dtp_say(w, "number_format", p->compute == DTP_FP16 ? "fp16" : half ? "bf16" : "fp32");
    dtp_megatron_say_if(w, "masters", half);
    if (narrow)
        dtp_say(w, "eight_bits", dtp_written_value(w, "precision"));
    dtp_say(w, "sync_dtype", dtp_written_value(w, "reduce_dtype"));
}

/* mcore's optimizer where it is sharded: it overlaps what its switches say. */
static void write_settings(struct dtp_writing *w)
{
    const struct dtp_job *job = dtp_written_job(w);
    bool flash = job->plan.attention == DTP_ATTENTION_FLASH;
    dtp_megatron_write(w);
    dtp_say_key(w, "kv_heads");
    dtp_say_key(w, "head_dim");
    if (job->transformer.qk_norm)
        dtp_say_key(w, "qk_norm");
    dtp_say(w, "activation", dtp_written_value(w, "activation"));
    dtp_say_count(w, "each", job->cluster.gpus_per_node);
    dtp_say_count(w, "nodes", job->cluster.nodes);
    dtp_say(w, "sharded", job->plan.strategy == DTP_ZERO1 ? "core" : "");
    write_numbers(w);
    dtp_say(w, "engine", flash ? "true" : "false");
    dtp_say(w, "flash_attention", flash ? "true" : "false");
    dtp_say_path(w, "model.mcore_gpt", "true", false);
}

const struct dtp_format dtp_format_nemo = {
    .name = "nemo",
    .title = "NeMo's configuration",
    .syntaxes = 1u << DTP_SYNTAX_YAML,
    .signs = signs,
    .rows = rows,
    .row_count = sizeof rows / sizeof *rows,
    .silent = "the GPU",
    .read = read_settings,
    .write = write_settings,
    .writes_yaml = true,
};
