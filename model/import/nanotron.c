/* nanotron: data parallel ranks times the others are the GPUs. */
#include "import/formats.h"
#include "import/write.h"
#include "plan/rules.h"

#include "base/number.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static const struct dtp_row rows[] = {
#include "import/nanotron.def"
};

static const char *const signs[] = {"parallelism.tp_mode", "parallelism.pp_engine", "tokens.micro_batch_size", NULL};

static uint64_t degree(const struct dtp_reading *r, const char *fact)
{
    uint64_t count;
    const char *text = dtp_fact(r, fact);
    return text && dtp_number_parse_integer(text, false, 1, 1000000, &count) ? count : text ? 0 : 1;
}

static enum dtp_status read_settings(struct dtp_reading *r)
{
    uint64_t dp = degree(r, "dp"), tp = degree(r, "tp"), pp = degree(r, "pp");
    char gpus[32];
    enum dtp_status worst = dtp_make_key(r, "runtime", "nanotron", NULL);
    if (!dp || !tp || !pp)
        return dtp_refuse_fact(r, !dp ? "dp" : !tp ? "tp" : "pp", "is no whole number from 1 on");
    snprintf(gpus, sizeof gpus, "%" PRIu64, dp * tp * pp);
    worst = dtp_worse(worst, dtp_make_key(r, "gpus", gpus, "dp"));
    if (!dtp_is_said(r, "precision"))
        worst = dtp_worse(worst, dtp_refuse_fact(r, "precision", "model.dtype is missing; give --precision"));
    return worst;
}

/* ---- the other way ------------------------------------------------------------------------------------------------
 */

/* What nanotron wants of every file and no plan says; the data are the user's. */
static const char *const wanted[][2] = {{"general.project", "dtplan"},
                                        {"general.run", "plan"},
                                        {"general.seed", "42"},
                                        {"model.make_vocab_size_divisible_by", "1"},
                                        {"model.model_config.hidden_act", "silu"},
                                        {"model.model_config.is_llama_config", "true"},
                                        {"model.init_method.std", "0.02"},
                                        {"tokens.train_steps", "100"},
                                        {"optimizer.accumulate_grad_in_fp32", "true"},
                                        {"optimizer.clip_grad", "1"},
                                        {"optimizer.weight_decay", "0.1"},
                                        {"optimizer.optimizer_factory.name", "adamW"},
                                        {"optimizer.optimizer_factory.torch_adam_is_fused", "true"},
                                        {"optimizer.optimizer_factory.adam_beta1", "0.9"},
                                        {"optimizer.optimizer_factory.adam_beta2", "0.95"},
                                        {"optimizer.optimizer_factory.adam_eps", "1.0e-08"},
                                        {"optimizer.learning_rate_scheduler.learning_rate", "0.0003"},
                                        {"parallelism.tp_linear_async_communication", "true"},
                                        {"parallelism.expert_parallel_size", "1"},
                                        {"checkpoints.checkpoints_path", "checkpoints"},
                                        {"checkpoints.checkpoint_interval", "1000"}};

static void write_settings(struct dtp_writing *w)
{
    static const char *const keys[] = {"layers",
                                       "hidden",
                                       "heads",
                                       "kv_heads",
                                       "ffn",
                                       "vocab",
                                       "tied_head",
                                       "norm_eps",
                                       "tp",
                                       "pp",
                                       "sequence_parallel",
                                       "checkpointing",
                                       "seq",
                                       "micro_batch",
                                       "accumulate",
                                       "strategy",
                                       "ddp_bucket_mib"};
    const struct dtp_job *job = dtp_written_job(w);
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++)
        dtp_say_path(w, wanted[i][0], wanted[i][1], false);
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        dtp_say_key(w, keys[i]);
    dtp_say(w, "schedule", job->plan.schedule == DTP_SCHEDULE_GPIPE ? "gpipe" : "1f1b");
    dtp_say(w, "precision", job->plan.precision.compute == DTP_BF16 ? "bf16-mixed" : "");
    dtp_say_count(w, "dp", job->cluster.gpus / job->plan.tp / job->plan.pp);
    dtp_say_count(w, "positions", job->plan.sequence);
}

const struct dtp_format dtp_format_nanotron = {
    .name = "nanotron",
    .title = "nanotron's configuration",
    .syntaxes = 1u << DTP_SYNTAX_YAML,
    .signs = signs,
    .rows = rows,
    .row_count = sizeof rows / sizeof *rows,
    .silent = "the GPU",
    .read = read_settings,
    .write = write_settings,
    .writes_yaml = true,
};
