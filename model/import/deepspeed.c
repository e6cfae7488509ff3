/* DeepSpeed: what several of its settings say together. */
#include "import/formats.h"
#include "import/write.h"

#include "plan/runtime_sizes.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static const struct dtp_row rows[] = {
#include "import/deepspeed.def"
};

static const char *const signs[] = {
    "zero_optimization*", "train_micro_batch_size_per_gpu", "train_batch_size", "bf16.enabled", "fp16.enabled", NULL};

static const struct dtp_width_rule by_width[] = {{"reduce_bucket_size", DTP_TRAINER_REDUCE_BUCKET, 2},
                                                 {"stage3_prefetch_bucket_size", DTP_TRAINER_PREFETCH, 2},
                                                 {"stage3_param_persistence_threshold", DTP_TRAINER_PERSISTENCE, 1},
                                                 {NULL, 0, 0}};

static bool is(const char *text, const char *word)
{
    return text && strcmp(text, word) == 0;
}

static enum dtp_status read_formats(struct dtp_reading *r)
{
    bool bf16 = is(dtp_fact(r, "bf16"), "true"), fp16 = is(dtp_fact(r, "fp16"), "true");
    bool open = dtp_fact_is_auto(r, "bf16") || dtp_fact_is_auto(r, "fp16");
    if (bf16 && fp16)
        return dtp_refuse_fact(r, "fp16", "bf16 is enabled as well; DeepSpeed takes one of them");
    if (!bf16 && !fp16 && open) {
        dtp_need_key(r, dtp_fact_is_auto(r, "bf16") ? "bf16" : "fp16", "precision");
        return DTP_OK;
    }
    return dtp_make_key(r, "precision",
                        bf16   ? "bf16-mixed"
                        : fp16 ? "fp16-mixed"
                               : "fp32",
                        bf16   ? "bf16"
                        : fp16 ? "fp16"
                               : NULL);
}

/* Parameters go to the host with the optimizer, or not at all (zero/config.py: stage 3 with both). */
static enum dtp_status read_offload(struct dtp_reading *r)
{
    const char *optimizer = dtp_fact(r, "offload_optimizer"), *params = dtp_fact(r, "offload_param");
    bool any_params = params && !is(params, "none"), any = optimizer && !is(optimizer, "none");
    if (any_params && !any)
        return dtp_refuse_fact(r, "offload_param",
                               "parameters alone on the host are not modelled; offload_optimizer too");
    if (is(optimizer, "nvme") && is(params, "cpu"))
        return dtp_refuse_fact(r, "offload_optimizer",
                               "NVMe for the optimizer and memory for parameters is not modelled");
    if (is(optimizer, "cpu") && is(params, "nvme"))
        return dtp_refuse_fact(r, "offload_param", "NVMe for parameters and memory for the optimizer is not modelled");
    if (is(optimizer, "nvme") && !any_params)
        return dtp_refuse_fact(r, "offload_optimizer",
                               "NVMe for the optimizer alone is not modelled; offload_param too");
    if (!any)
        return DTP_OK;
    return dtp_make_key(r, "offload",
                        is(optimizer, "nvme") ? "nvme"
                        : any_params          ? "params"
                                              : "optimizer",
                        any_params ? "offload_param" : "offload_optimizer");
}

/* micro batch x accumulation x ranks: with two of them DeepSpeed works out the third (config.py,
 * _set_batch_related_parameters), and so does a plan. */
static enum dtp_status read_batch(struct dtp_reading *r)
{
    const char *whole = dtp_fact(r, "train_batch");
    if (!whole)
        return DTP_OK;
    if (!dtp_is_said(r, "micro_batch"))
        return dtp_refuse_fact(r, "train_batch",
                               "without train_micro_batch_size_per_gpu it does not say what one GPU takes at a time; "
                               "give --micro-batch N");
    if (dtp_is_typed(r, "micro_batch") && dtp_is_said(r, "accumulate"))
        return dtp_drop_fact(r, "train_batch", "micro_batch");
    return dtp_make_key(r, "global_batch", whole, "train_batch");
}

/* AutoEP, off unless it is enabled, with as many ranks as experts are divided among. */
static enum dtp_status read_experts(struct dtp_reading *r)
{
    const char *ranks = dtp_fact(r, "autoep_size");
    if (!is(dtp_fact(r, "autoep"), "true"))
        return DTP_OK;
    enum dtp_status worst = dtp_make_key(r, "autoep", "true", "autoep");
    return dtp_worse(worst, dtp_make_key(r, "ep", ranks ? ranks : "1", ranks ? "autoep_size" : NULL));
}

static enum dtp_status read_settings(struct dtp_reading *r)
{
    enum dtp_status worst = dtp_make_key(r, "runtime", "deepspeed", NULL);
    if (!dtp_is_said(r, "strategy"))
        worst = dtp_refuse_fact(r, "train_batch",
                                "without zero_optimization.stage DeepSpeed shards nothing (stage 0), which is not "
                                "modelled; give --strategy zero1, zero2 or zero3, or --runtime torch --strategy ddp");
    worst = dtp_worse(worst, read_formats(r));
    worst = dtp_worse(worst, read_offload(r));
    worst = dtp_worse(worst, read_batch(r));
    worst = dtp_worse(worst, read_experts(r));
    const char *optimizer = dtp_fact(r, "optimizer");
    if (optimizer)
        worst = dtp_worse(worst, dtp_make_key(r, "optimizer", optimizer, "optimizer"));
    return worst;
}

/* ---- the other way ------------------------------------------------------------------------------------------------
 */

static void write_offload(struct dtp_writing *w)
{
    const enum dtp_offload offload = dtp_written_job(w)->plan.offload;
    const char *place = offload == DTP_OFFLOAD_NVME ? "nvme" : "cpu";
    if (offload == DTP_OFFLOAD_NONE)
        return;
    dtp_say(w, "offload_optimizer", place);
    dtp_say_path(w, "zero_optimization.offload_optimizer.pin_memory", "true", false);
    if (offload == DTP_OFFLOAD_OPTIMIZER)
        return;
    dtp_say(w, "offload_param", place);
    dtp_say_path(w, "zero_optimization.offload_param.pin_memory", "true", false);
}

static void write_settings(struct dtp_writing *w)
{
    static const char *const keys[] = {"micro_batch", "accumulate", "strategy", "deepspeed_overlap",
                                       "reduce_bucket_size"},
                             *const of_zero3[] = {"stage3_max_live_parameters",  "stage3_max_reuse_distance",
                                                  "stage3_prefetch_bucket_size", "stage3_param_persistence_threshold",
                                                  "zero_hpz_partition_size",     "zero_quantized_weights",
                                                  "zero_quantized_gradients"};
    const struct dtp_plan *plan = &dtp_written_job(w)->plan;
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        dtp_say_key(w, keys[i]);
    for (size_t i = 0; plan->strategy == DTP_ZERO3 && i < sizeof of_zero3 / sizeof *of_zero3; i++)
        dtp_say_key(w, of_zero3[i]);
    if (plan->deepspeed.bf16_optimizer)
        dtp_say_key(w, "bf16_optimizer");
    if (plan->tp > 1)
        dtp_say_key(w, "tp");
    if (plan->deepspeed.autoep) {
        char ranks[24];
        snprintf(ranks, sizeof ranks, "%" PRIu32, plan->ep);
        dtp_say(w, "autoep", "true");
        dtp_say(w, "autoep_size", ranks);
    }
    write_offload(w);
    dtp_say(w, "bf16", plan->precision.compute == DTP_BF16 ? "true" : "false");
    dtp_say(w, "fp16", plan->precision.compute == DTP_FP16 ? "true" : "false");
    if (plan->optimizer == DTP_ADAMW_FUSED)
        dtp_say(w, "optimizer", "adamw");
    dtp_say_path(w, "gradient_clipping", "1", false);
}

const struct dtp_format dtp_format_deepspeed = {
    .name = "deepspeed",
    .title = "DeepSpeed's configuration",
    .syntaxes = 1u << DTP_SYNTAX_JSON | 1u << DTP_SYNTAX_YAML,
    .signs = signs,
    .rows = rows,
    .row_count = sizeof rows / sizeof *rows,
    .has_auto = true,
    .by_width = by_width,
    .silent = "checkpointing, attention, loss and the length of sequences are the training script's",
    .read = read_settings,
    .write = write_settings,
};
