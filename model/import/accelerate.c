/* Accelerate: what several of its settings say together. */
#include "import/formats.h"
#include "import/write.h"
#include "plan/adapters.h"
#include "plan/rules.h"
#include "plan/runtime.h"

#include "base/number.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static const struct dtp_row rows[] = {
#include "import/accelerate.def"
};

static const char *const signs[] = {"distributed_type",
                                    "compute_environment",
                                    "fsdp_config*",
                                    "deepspeed_config*",
                                    "num_machines",
                                    "main_training_function",
                                    NULL};

static bool is(const char *text, const char *word)
{
    return text && strcmp(text, word) == 0;
}

static uint64_t count_of(const struct dtp_reading *r, const char *fact, uint64_t otherwise)
{
    uint64_t count;
    const char *text = dtp_fact(r, fact);
    return text && dtp_number_parse_integer(text, false, 1, 1000000, &count) ? count : otherwise;
}

const char *dtp_accelerate_mixed(const struct dtp_reading *r)
{
    if (is(dtp_fact_of(r, "trainer", "bf16"), "true"))
        return "bf16";
    return is(dtp_fact_of(r, "trainer", "fp16"), "true") ? "fp16" : dtp_fact_of(r, "accelerate", "mixed");
}

bool dtp_accelerate_runs_deepspeed(const struct dtp_reading *r)
{
    return dtp_reads_beside(r, "deepspeed") || is(dtp_fact_of(r, "accelerate", "distributed"), "deepspeed");
}

enum dtp_status dtp_make_kept_root(struct dtp_reading *r, const char *strategy, const char *fact)
{
    return is(strategy, "shard_grad_op") ? DTP_OK : dtp_make_key(r, "keep_root", "true", fact);
}

/* FullyShardedDataParallelPlugin.set_mixed_precision: parameters are gathered and gradients reduced in the recipe's
 * 16-bit format, under FSDP1 and FSDP2 alike, while the sharded parameters are fp32; gradients of adapters are reduced
 * as they are. DDP runs under autocast, of weights as the program loads them: fp32, unless TrainingArguments beside
 * say more (trainer.c). */
static enum dtp_status read_formats(struct dtp_reading *r, bool fsdp)
{
    const char *mixed = dtp_accelerate_mixed(r), *fact = dtp_fact(r, "mixed") ? "mixed" : NULL;
    bool said = dtp_reads_beside(r, "trainer") && !is(mixed, "fp8") && !dtp_accelerate_runs_deepspeed(r);
    enum dtp_status status = DTP_OK;
    if (is(mixed, "fp8") && !dtp_fact(r, "fp8_backend"))
        return dtp_refuse_fact(r, "mixed",
                               "fp8 is modelled by torchao's recipes alone; fp8_config.backend: AO says it");
    if (!said)
        status = dtp_make_key(r, "precision",
                              is(mixed, "bf16")   ? "bf16-mixed"
                              : is(mixed, "fp16") ? "fp16-mixed"
                              : is(mixed, "fp8")  ? "fp8-tensorwise"
                                                  : "fp32",
                              fact);
    if (!fsdp || dtp_trains_adapters(r) || !mixed || is(mixed, "no"))
        return status;
    return dtp_worse(status, dtp_make_key(r, "reduce_dtype", is(mixed, "fp16") ? "fp16" : "bf16", fact));
}

/* FSDP2 has reshard_after_forward in the place of FSDP1's strategies; replicas are an axis of parallelism_config. */
static enum dtp_status read_fsdp(struct dtp_reading *r)
{
    bool second = is(dtp_fact(r, "fsdp_version"), "2");
    const char *sharding = dtp_fact(r, "sharding"), *reshard = dtp_fact(r, "reshard"), *fact = "sharding";
    uint64_t replicas = count_of(r, "replicate", 1), cp = count_of(r, "cp", 1);
    enum dtp_status status = DTP_OK;
    if (!second && reshard && strcmp(reshard, "true") != 0 && strcmp(reshard, "false") != 0) {
        sharding = reshard; /* by its newer name */
        fact = "reshard";
    }
    if (second) {
        sharding = is(reshard, "false") ? "shard_grad_op" : "full_shard";
        fact = "reshard";
    }
    if (replicas > 1) {
        char shard[32];
        snprintf(shard, sizeof shard, "%" PRIu64, count_of(r, "shard", 1) * cp);
        status = dtp_make_key(r, "shard_group", shard, "shard");
        sharding = "hybrid_shard";
        fact = "replicate";
        if (is(reshard, "false"))
            status = dtp_worse(status, dtp_make_key(r, "reshard_after_forward", "false", "reshard"));
    }
    status = dtp_worse(status, dtp_make_key(r, "strategy", sharding ? sharding : "full_shard", fact));
    if (!is(sharding, "ddp"))
        status = dtp_worse(status, dtp_make_key(r, "fsdp1", second ? "false" : "true", "fsdp_version"));
    if (second && !is(reshard, "false") && !is(dtp_fact(r, "offload"), "params"))
        status = dtp_worse(status, dtp_make_kept_root(r, sharding, "fsdp_version"));
    return status;
}

static enum dtp_status read_deepspeed(struct dtp_reading *r)
{
    enum dtp_status status = dtp_make_key(r, "runtime", "deepspeed", "distributed");
    const char *stage = dtp_fact(r, "stage"), *optimizer = dtp_fact(r, "offload_optimizer"),
               *params = dtp_fact(r, "offload_param");
    if (dtp_fact(r, "file"))
        return dtp_worse(status, dtp_need_file(r, "file", "deepspeed"));
    if (!stage && !dtp_is_said(r, "strategy"))
        return dtp_refuse_fact(r, "distributed",
                               "no deepspeed_config.zero_stage stands beside it; give --strategy zero3");
    if (stage)
        status = dtp_worse(status, dtp_make_key(r, "strategy", stage, "stage"));
    bool nvme = is(optimizer, "nvme") || is(params, "nvme");
    if (nvme && dtp_is_typed(r, "offload"))
        return dtp_worse(status,
                         dtp_drop_fact(r, is(optimizer, "nvme") ? "offload_optimizer" : "offload_param", "offload"));
    if (nvme)
        return dtp_refuse_fact(r, is(optimizer, "nvme") ? "offload_optimizer" : "offload_param",
                               "give --offload nvme: all state on NVMe is what is modelled");
    if (is(params, "cpu") && !is(optimizer, "cpu"))
        return dtp_refuse_fact(r, "offload_param", "parameters alone on the host are not modelled");
    if (is(optimizer, "cpu"))
        status = dtp_worse(status, dtp_make_key(r, "offload", is(params, "cpu") ? "params" : "optimizer",
                                                is(params, "cpu") ? "offload_param" : "offload_optimizer"));
    return status;
}

/* Processes are those of all machines. */
static enum dtp_status read_cluster(struct dtp_reading *r)
{
    uint64_t machines = count_of(r, "machines", 1), gpus = count_of(r, "gpus", 0);
    char each[32];
    if (machines < 2 || !gpus)
        return DTP_OK;
    if (gpus % machines)
        return dtp_refuse_fact(r, "machines", "do not divide the %" PRIu64 " processes", gpus);
    snprintf(each, sizeof each, "%" PRIu64, gpus / machines);
    return dtp_make_key(r, "gpus_per_node", each, "machines");
}

static enum dtp_status read_settings(struct dtp_reading *r)
{
    const char *distributed = dtp_fact(r, "distributed");
    bool deepspeed = is(distributed, "deepspeed"), fsdp = is(distributed, "fsdp");
    enum dtp_status status;
    if (!distributed)
        return dtp_refuse_fact(r, "mixed",
                               "distributed_type is missing: it says whether this is DDP, FSDP or DeepSpeed");
    if (deepspeed) {
        status = read_deepspeed(r);
        if (dtp_fact(r, "file") && !dtp_fact(r, "mixed")) /* the other file's */
            return dtp_worse(status, read_cluster(r));
    } else {
        bool layers = dtp_reads_beside(r, "trainer") || dtp_reads_beside(r, "peft"); /* Transformers', as those say */
        status = layers ? DTP_OK : dtp_make_key(r, "runtime", "torch", "distributed");
        status = dtp_worse(status, fsdp ? read_fsdp(r) : dtp_make_key(r, "strategy", "ddp", "distributed"));
        if (dtp_fact(r, "dynamo"))
            status = dtp_worse(status, dtp_make_key(r, "compile", dtp_fact(r, "dynamo"), "dynamo"));
    }
    status = dtp_worse(status, read_formats(r, fsdp));
    return dtp_worse(status, read_cluster(r));
}

/* ---- the other way ------------------------------------------------------------------------------------------------
 */

static void write_fsdp(struct dtp_writing *w, const struct dtp_plan *plan)
{
    bool second = !plan->fsdp1, gathered = plan->strategy == DTP_SHARD_GRAD_OP;
    dtp_say(w, "fsdp_version", second ? "2" : "1");
    if (second)
        dtp_say(w, "reshard", gathered || !plan->reshard_after_forward ? "false" : "true");
    else
        dtp_say(w, "sharding", dtp_strategy_text(plan->strategy));
    dtp_say_key(w, "wrap_layers");
    dtp_say_key(w, "offload");
    dtp_say_key(w, "checkpointing");
    if (!second)
        dtp_say_key(w, "prefetch");
    dtp_say_path(w, "fsdp_config.fsdp_state_dict_type", "SHARDED_STATE_DICT", false);
    bool hybrid = second && plan->strategy == DTP_HYBRID_SHARD;
    if (!hybrid && plan->tp * plan->cp == 1)
        return;
    uint32_t ranks = dtp_written_job(w)->cluster.gpus / plan->tp / plan->cp, shard = plan->shard_group / plan->cp;
    dtp_say_key(w, "tp");
    dtp_say_key(w, "cp");
    dtp_say_count(w, "replicate", hybrid && shard ? ranks / shard : 1);
    dtp_say_count(w, "shard", hybrid ? shard : ranks);
}

static void write_deepspeed(struct dtp_writing *w, const struct dtp_plan *plan)
{
    dtp_say(w, "stage", dtp_strategy_text(plan->strategy));
    dtp_say_key(w, "accumulate");
    dtp_say(w, "offload_optimizer", plan->offload == DTP_OFFLOAD_NONE ? "none" : "cpu");
    dtp_say(w, "offload_param", plan->offload == DTP_OFFLOAD_PARAMS ? "cpu" : "none");
    dtp_say_path(w, "deepspeed_config.zero3_init_flag", plan->strategy == DTP_ZERO3 ? "true" : "false", false);
}

const char *dtp_written_mixed(const struct dtp_plan *plan)
{
    const struct dtp_precision *of = &plan->precision;
    bool whole = !plan->adapters.rank && !plan->autocast && dtp_dtype_bytes(of->params) == dtp_dtype_bytes(of->compute);
    bool pure = strcmp(plan->runtime->name, "deepspeed") != 0 && (whole || dtp_plan_widens_adapters(plan));
    if (of->compute == DTP_FP8)
        return "fp8";
    return pure ? "no" : of->compute == DTP_BF16 ? "bf16" : of->compute == DTP_FP16 ? "fp16" : "no";
}

static void write_settings(struct dtp_writing *w)
{
    const struct dtp_job *job = dtp_written_job(w);
    const struct dtp_plan *plan = &job->plan;
    bool deepspeed = strcmp(plan->runtime->name, "deepspeed") == 0, fsdp = dtp_plan_is_fsdp(plan);
    dtp_say_path(w, "compute_environment", "LOCAL_MACHINE", false);
    dtp_say(w, "distributed", deepspeed ? "deepspeed" : fsdp ? "fsdp" : job->cluster.gpus > 1 ? "ddp" : "single");
    dtp_say(w, "mixed", dtp_written_mixed(plan));
    dtp_say_count(w, "machines", job->cluster.nodes);
    dtp_say_key(w, "gpus");
    dtp_say_path(w, "rdzv_backend", "static", false);
    dtp_say_path(w, "main_training_function", "main", false);
    if (plan->precision.compute == DTP_FP8) {
        dtp_say(w, "fp8_backend", "torchao");
        dtp_say_key(w, "fp8_all_gather");
    }
    if (deepspeed)
        write_deepspeed(w, plan);
    else if (fsdp)
        write_fsdp(w, plan);
    if (plan->compile)
        dtp_say(w, "dynamo", "true");
}

const struct dtp_format dtp_format_accelerate = {
    .name = "accelerate",
    .title = "Accelerate's configuration",
    .syntaxes = 1u << DTP_SYNTAX_YAML | 1u << DTP_SYNTAX_JSON,
    .signs = signs,
    .rows = rows,
    .row_count = sizeof rows / sizeof *rows,
    .silent = "batch, length of sequences, optimizer, attention and loss are the training script's",
    .read = read_settings,
    .write = write_settings,
    .writes_yaml = true,
};
