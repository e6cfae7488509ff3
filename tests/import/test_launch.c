/* What launch writes, read back, is the same plan: thousands of random plans of each program's scope; and what its
 * files cannot say is refused by name. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "import/write.h"
#include "job/job_values.h"
#include "lib/import_fixture.h"
#include "lib/random_draws.h"
#include "lib/random_plans.h"

#include <ctype.h>

#define WRITTEN RANDOM_DRAWS(2000)
#define MOST_DRAWS (10 * WRITTEN)

static struct dtp_faults faults;

#define ONE_OF(...) one_of((const char *const[]){__VA_ARGS__, NULL})
static const char *one_of(const char *const *words)
{
    size_t count = 0;
    while (words[count])
        count++;
    return words[random_below(count)];
}

static void set(struct dtp_scenario *s, const char *key, const char *value)
{
    if (*value)
        assert_int_equal(dtp_scenario_set(s, key, value, "drawn", 1, &faults), DTP_OK);
}

/* What all programs share. Powers of two mostly, so that most of what is drawn exists. */
static void draw_common(struct dtp_scenario *s)
{
    set(s, "gpu", ONE_OF("h100-sxm", "a100-80-sxm", "h200-sxm"));
    set(s, "gpus", ONE_OF("1", "8", "8", "16", "32", "64"));
    set(s, "seq", ONE_OF("1024", "2048", "4096", "8192"));
    set(s, "micro_batch", ONE_OF("1", "2", "3", "4", "8"));
    set(s, "accumulate", ONE_OF("1", "1", "2", "4", "8", "16"));
    set(s, "loss", ONE_OF("eager", "eager", "fused"));
    set(s, "optimizer", ONE_OF("adamw", "adamw", "adamw", "adamw-foreach"));
}

/* FSDP or DDP alone, replicas of shards, a model that tp or cp divides, or a pipeline. */
static void draw_torchtitan(struct dtp_scenario *s)
{
    uint64_t kind = random_below(4);
    const char *strategy = kind == 1 ? "hybrid_shard"
                           : kind    ? "full_shard"
                                     : ONE_OF("full_shard", "shard_grad_op", "ddp");
    set(s, "model", ONE_OF("llama-3-8b", "llama-3-70b", "qwen3-8b", "llama-2-7b"));
    set(s, "strategy", strategy);
    set(s, "gpus", kind == 0 ? ONE_OF("8", "16", "64") : ONE_OF("16", "32"));
    if (kind == 1)
        set(s, "shard_group", "8");
    if (kind == 2 && random_bool())
        set(s, "tp", ONE_OF("2", "4")), set(s, "gathered_logits", ONE_OF("", "", "true"));
    else if (kind == 2)
        set(s, "cp", "2");
    if (kind == 3) {
        set(s, "pp", ONE_OF("2", "4"));
        set(s, "stages", ONE_OF("", "counted"));
        set(s, "schedule", ONE_OF("", "gpipe", "interleaved"));
        set(s, "accumulate", ONE_OF("8", "16"));
    } else if (strcmp(strategy, "ddp") != 0) {
        set(s, "accumulate_sync", "true");
    }
    set(s, "compile", ONE_OF("true", "false"));
    set(s, "checkpointing", ONE_OF("none", "full", "selective", "every-2", "every-3"));
    set(s, "precision", ONE_OF("bf16-mixed", "bf16-mixed", "fp32", "bf16-pure", "fp8-rowwise"));
    set(s, "reduce_dtype", ONE_OF("", "", "fp32"));
    set(s, "offload", kind == 0 ? ONE_OF("none", "none", "params") : "none");
    set(s, "loss", ONE_OF("eager", "eager", "eager", "eager", "fused")); /* which cannot be said */
}

static void draw_accelerate(struct dtp_scenario *s)
{
    uint64_t kind = random_below(4);
    const char *strategy = kind == 3 ? "ddp" : kind == 2 ? "hybrid_shard" : ONE_OF("full_shard", "shard_grad_op");
    set(s, "model", ONE_OF("llama-3-8b", "qwen3-0.6b", "gpt-2-xl", "mistral-7b"));
    set(s, "seq", "1024");
    set(s, "strategy", strategy);
    set(s, "gpus", kind == 2 ? ONE_OF("16", "32") : ONE_OF("1", "8", "16", "64"));
    if (kind < 2)
        set(s, "fsdp1", ONE_OF("true", "false"));
    if (kind < 3)
        set(s, "reduce_dtype", ONE_OF("bf16", "bf16", "fp32"));
    if (kind == 2)
        set(s, "shard_group", "8");
    if (kind < 3 && strcmp(strategy, "shard_grad_op") != 0)
        set(s, "keep_root", ONE_OF("true", "true", "")); /* of FSDP2 it cannot be left out */
    set(s, "compile", ONE_OF("true", "false"));
    set(s, "checkpointing", ONE_OF("none", "full", "full", "selective"));
    set(s, "precision",
        kind == 3 ? ONE_OF("bf16-mixed", "bf16-pure", "fp16-mixed", "fp32") : ONE_OF("bf16-mixed", "fp32"));
    set(s, "offload", kind < 2 ? ONE_OF("none", "none", "params") : "none");
    set(s, "attention", ONE_OF("flash", "flash2", "math"));
}

/* Models of Transformers without adapters, as TrainingArguments alone are read. */
static void draw_transformers(struct dtp_scenario *s)
{
    bool sharded = random_bool();
    const char *precision = sharded ? "bf16-mixed" : ONE_OF("bf16-mixed", "bf16-pure", "fp16-mixed", "fp32");
    set(s, "runtime", "peft");
    set(s, "model", ONE_OF("llama-3-8b", "qwen3-0.6b", "gpt-2-xl", "mistral-7b"));
    set(s, "strategy", sharded ? "full_shard" : "ddp");
    set(s, "keep_root", sharded ? "true" : "");
    set(s, "reduce_dtype", sharded ? "bf16" : "");
    set(s, "precision", precision);
    set(s, "autocast", strcmp(precision, "bf16-pure") == 0 ? ONE_OF("true", "false") : "");
}

static void draw_deepspeed(struct dtp_scenario *s)
{
    const char *strategy = ONE_OF("zero1", "zero2", "zero3");
    bool zero3 = strcmp(strategy, "zero3") == 0;
    set(s, "runtime", "deepspeed");
    set(s, "model", ONE_OF("llama-3-8b", "llama-2-7b", "gpt-2-xl", "mistral-7b"));
    set(s, "seq", "1024");
    set(s, "strategy", strategy);
    set(s, "optimizer", "adamw");
    set(s, "checkpointing", ONE_OF("none", "full", "full", "selective-attention"));
    set(s, "precision", ONE_OF("bf16-mixed", "bf16-mixed", "fp16-mixed", "fp32"));
    set(s, "offload", zero3 ? ONE_OF("none", "none", "optimizer", "params", "nvme") : ONE_OF("none", "optimizer"));
    set(s, "reduce_bucket_size", ONE_OF("", "", "2e8", "16777216"));
    if (zero3)
        set(s, "stage3_prefetch_bucket_size", ONE_OF("", "", "", "15099494"));
    set(s, "attention", ONE_OF("flash", "flash2", "math"));
}

static void draw_megatron(struct dtp_scenario *s)
{
    const char *pp = ONE_OF("1", "1", "2", "4");
    bool stages = pp[0] != '1';
    set(s, "runtime", "megatron");
    set(s, "model", ONE_OF("llama-3-8b", "llama-2-7b", "gpt-3-6.7b", "qwen3-8b", "qwen2.5-7b", "llama-3-70b"));
    set(s, "seq", "2048");
    set(s, "gpus", ONE_OF("16", "32", "64"));
    set(s, "strategy", ONE_OF("ddp", "zero1", "zero1"));
    set(s, "optimizer", "adamw");
    set(s, "tp", ONE_OF("1", "2", "4"));
    set(s, "pp", pp);
    set(s, "cp", ONE_OF("1", "1", "1", "2"));
    if (stages) {
        set(s, "accumulate", ONE_OF("8", "16"));
        set(s, "virtual_stages", ONE_OF("", "", "2"));
        set(s, "stages", ONE_OF("", "", "", "counted"));
    }
    set(s, "sequence_parallel", ONE_OF("true", "true", "false"));
    set(s, "unfused_rope", ONE_OF("", "", "true"));
    set(s, "megatron_overlap", ONE_OF("true", "false"));
    set(s, "dropout", ONE_OF("", "", "0.1"));
    set(s, "checkpointing", ONE_OF("none", "full", "selective-attention"));
    set(s, "precision",
        ONE_OF("bf16-mixed", "bf16-mixed", "fp16-mixed", "fp8-delayed", "fp8-current", "fp8-blockwise"));
    set(s, "reduce_dtype", ONE_OF("", "", "fp32"));
    if (random_below(8) == 0)
        set(s, "recompute_modules", ONE_OF("core_attn", "layernorm", "mlp", "core_attn+layernorm+mlp"));
}

/* Experts over ranks, beside stages, tensor and context parallel ranks; latent attention, layers without experts. */
static void draw_megatron_experts(struct dtp_scenario *s)
{
    const char *pp = ONE_OF("1", "1", "2", "4"), *ep = ONE_OF("1", "2", "4", "8", "8");
    const char *model = ONE_OF("mixtral-8x7b", "qwen3-30b-a3b", "deepseek-v2-lite", "moonlight-16b-a3b", "deepseek-v3",
                               "qwen1.5-moe-a2.7b");
    bool latent = strncmp(model, "deep", 4) == 0 || strncmp(model, "moon", 4) == 0;
    set(s, "runtime", "megatron");
    set(s, "model", model);
    set(s, "seq", "4096");
    set(s, "gpu", ONE_OF("h100-sxm", "h200-sxm", "b200-sxm"));
    set(s, "gpus", ONE_OF("16", "32", "64"));
    set(s, "strategy", ONE_OF("ddp", "zero1", "zero1"));
    set(s, "optimizer", "adamw");
    set(s, "ep", ep);
    set(s, "pp", pp);
    if (pp[0] != '1')
        set(s, "accumulate", ONE_OF("8", "16"));
    if (!latent && ep[0] != '1')
        set(s, "tp", ONE_OF("1", "2", "4"));
    if (!latent)
        set(s, "cp", ONE_OF("1", "1", "2"));
    if (ep[0] != '1') {
        set(s, "flex_dispatcher", ONE_OF("true", "false"));
        set(s, "expert_overlap", ONE_OF("true", "false", "false"));
        set(s, "shared_expert_overlap", ONE_OF("true", "false", "false"));
    }
    const char *capacity = ONE_OF("", "", "1.25", "2");
    set(s, "capacity_factor", capacity);
    set(s, "pad_to_capacity", capacity[0] ? ONE_OF("true", "false") : "");
    set(s, "unfused_permute", ONE_OF("true", "false", "false"));
    set(s, "unfused_rope", ONE_OF("true", "false", "false"));
    if (random_bool())
        set(s, "recompute_modules", ONE_OF("moe_act", "moe_act+layernorm", "moe", "core_attn", "mlp+shared_experts"));
    else
        set(s, "checkpointing", ONE_OF("none", "full", "selective-attention"));
    if (random_below(8) == 0 && pp[0] == '1')
        set(s, "expert_layer_step", "2");
    const char *precision =
        ONE_OF("bf16-mixed", "bf16-mixed", "fp8-delayed", "fp8-current", "fp8-blockwise", "mxfp8", "nvfp4");
    set(s, "precision", precision);
    if (strcmp(precision, "mxfp8") == 0)
        set(s, "fp8_head", ONE_OF("true", "false"));
    set(s, "reduce_dtype", ONE_OF("", "", "fp32"));
    bool casts = strcmp(precision, "mxfp8") == 0 || strncmp(precision, "fp8", 3) == 0;
    if (random_below(3) > 0)
        return;
    set(s, "strategy", "zero1");
    set(s, "fp8_param_gather", casts ? ONE_OF("true", "false") : "");
    set(s, "precision_aware_optimizer", "true");
    set(s, "moment_dtype", ONE_OF("fp32", "bf16"));
}

/* Beside it gpt-oss, whose windows, sinks and clamped gates its files say, CUDA graphs, attention in 8 bits. */
static void draw_bridge_experts(struct dtp_scenario *s)
{
    draw_megatron_experts(s);
    if (random_below(3) == 0) {
        set(s, "model", ONE_OF("gpt-oss-20b", "gpt-oss-120b"));
        set(s, "tp", "1");
        set(s, "cp", "1");
    }
    if (random_below(4) == 0)
        set(s, "cuda_graph_modules", ONE_OF("attn", "attn+moe_router", "moe_router"));
    if (random_below(4) == 0) {
        set(s, "gpu", "b200-sxm");
        set(s, "cp", "1");
        set(s, "precision", "mxfp8");
        set(s, "fp8_attention", "true");
        set(s, "strategy", "zero1");
        set(s, "fp8_param_gather", ONE_OF("true", "false"));
    }
}

/* fp8 by the scales of earlier steps alone, and experts that a softmax chooses. */
static void draw_nemo(struct dtp_scenario *s)
{
    draw_megatron(s);
    set(s, "recompute_modules", "");
    bool experts = random_below(4) == 0;
    set(s, "model", experts ? "mixtral-8x7b" : ONE_OF("llama-3-8b", "llama-2-7b", "gpt-3-6.7b", "qwen3-8b"));
    const char *precision = ONE_OF("bf16-mixed", "bf16-mixed", "fp16-mixed", "fp8-delayed");
    set(s, "precision", precision); /* a loss that is fused is Megatron-Core's, which wants logits in bf16 */
    set(s, "loss", strcmp(precision, "fp16-mixed") == 0 ? "eager" : ONE_OF("eager", "eager", "native"));
    set(s, "reduce_dtype", ONE_OF("", "", "fp32", "bf16"));
    set(s, "checkpointing", ONE_OF("none", "full", "selective-attention"));
    set(s, "stages", "");
    if (!experts)
        return;
    set(s, "ep", ONE_OF("2", "4", "8"));
    set(s, "megatron_overlap", "false");
    set(s, "sequence_parallel", "true");
}

static void draw_nanotron(struct dtp_scenario *s)
{
    const char *pp = ONE_OF("1", "1", "2");
    set(s, "runtime", "nanotron");
    set(s, "model", ONE_OF("llama-3-8b", "llama-3.2-1b", "llama-2-7b", "smollm2-1.7b"));
    set(s, "gpus", ONE_OF("8", "16", "32"));
    set(s, "strategy", ONE_OF("ddp", "zero1"));
    set(s, "optimizer", "adamw");
    set(s, "loss", "eager");
    set(s, "tp", ONE_OF("1", "2", "4"));
    set(s, "pp", pp);
    if (pp[0] != '1')
        set(s, "schedule", ONE_OF("", "gpipe"));
    set(s, "sequence_parallel", ONE_OF("", "", "false"));
    set(s, "checkpointing", ONE_OF("none", "full"));
    set(s, "ddp_bucket_mib", ONE_OF("", "", "50"));
}

/* Whole models and adapters over FSDP2. */
static void draw_torchtune(struct dtp_scenario *s)
{
    bool adapters = random_bool();
    set(s, "model", ONE_OF("llama-3.1-8b", "llama-3.2-1b", "llama-2-7b", "qwen2.5-7b", "mistral-7b"));
    set(s, "strategy", ONE_OF("full_shard", "full_shard", "shard_grad_op"));
    set(s, "precision", ONE_OF("bf16-pure", "bf16-pure", "bf16-pure", "fp32"));
    set(s, "reduce_dtype", ONE_OF("", "bf16"));
    set(s, "checkpointing", ONE_OF("none", "full", "full"));
    set(s, "compile", ONE_OF("true", "false")), set(s, "activation_offload", ONE_OF("", "", "true"));
    set(s, "loss", ONE_OF("chunked", "chunked", "eager"));
    if (!adapters) {
        set(s, "offload", ONE_OF("none", "none", "params"));
        set(s, "tp", ONE_OF("1", "1", "1", "2"));
        return;
    }
    set(s, "lora", ONE_OF("8", "16", "64"));
    set(s, "lora_targets", ONE_OF("q+v", "attention", "all", "q+v+o", "attention", "gate+up+down"));
    set(s, "lora_alpha", ONE_OF("16", "32", "128"));
    set(s, "lora_dropout", ONE_OF("", "0.05"));
    set(s, "base", ONE_OF("", "", "nf4"));
}

static void draw_adapters(struct dtp_scenario *s)
{
    set(s, "runtime", "peft");
    set(s, "lora", ONE_OF("8", "16", "64"));
    set(s, "lora_targets", ONE_OF("q+v", "attention", "all", "k+down"));
    set(s, "lora_alpha", ONE_OF("16", "32"));
    set(s, "lora_dropout", ONE_OF("", "0.05", "0.1"));
    set(s, "lora_dtype", ONE_OF("fp32", "fp32", "fp32", "bf16"));
}

static void draw_peft(struct dtp_scenario *s)
{
    bool sharded = random_below(3) == 0;
    set(s, "model", ONE_OF("llama-3-8b", "qwen2.5-7b", "mistral-7b", "llama-2-7b"));
    draw_adapters(s);
    set(s, "strategy", sharded ? "full_shard" : "ddp");
    if (sharded)
        set(s, "fsdp1", "true");
    set(s, "gpus", ONE_OF("1", "1", "8", "16"));
    set(s, "checkpointing", sharded ? "full" : ONE_OF("none", "full", "full"));
    set(s, "reduce_dtype", sharded ? "bf16" : "");
    set(s, "precision", ONE_OF("bf16-mixed", "bf16-mixed", "fp32"));
    set(s, "attention", ONE_OF("flash", "flash2"));
    set(s, "base", sharded ? "" : ONE_OF("", "nf4", "nf4-double", "int8", "int4"));
}

static void draw_axolotl(struct dtp_scenario *s)
{
    bool sharded = random_below(3) == 0, adapters = random_bool();
    set(s, "model", ONE_OF("llama-3-8b", "qwen2.5-7b", "mistral-7b", "llama-2-7b"));
    if (adapters)
        draw_adapters(s);
    set(s, "strategy", sharded ? ONE_OF("full_shard", "full_shard", "shard_grad_op") : "ddp");
    if (sharded)
        set(s, "fsdp1", adapters ? "true" : ONE_OF("true", "false"));
    set(s, "gpus", ONE_OF("1", "1", "8", "16"));
    set(s, "checkpointing", sharded && adapters ? "full" : ONE_OF("none", "full", "full"));
    set(s, "reduce_dtype", sharded ? "bf16" : "");
    set(s, "precision", ONE_OF("bf16-mixed", "bf16-mixed", "fp32"));
    set(s, "attention", ONE_OF("flash", "flash2"));
    set(s, "loss", "eager");
    set(s, "optimizer", adapters || sharded ? "adamw" : ONE_OF("adamw", "adamw-foreach", "adam8bit"));
    set(s, "compile", adapters ? "" : ONE_OF("true", "false"));
    if (adapters && !sharded)
        set(s, "base", ONE_OF("", "nf4", "nf4-double", "int8"));
}

static const struct scope {
    const char *name;
    void (*draw)(struct dtp_scenario *s);
} scopes[] = {{"torchtitan", draw_torchtitan},
              {"accelerate", draw_accelerate},
              {"accelerate", draw_deepspeed},
              {"accelerate", draw_transformers},
              {"deepspeed", draw_deepspeed},
              {"megatron", draw_megatron},
              {"megatron", draw_megatron_experts},
              {"bridge", draw_megatron},
              {"bridge", draw_bridge_experts},
              {"nemo", draw_nemo},
              {"nanotron", draw_nanotron},
              {"torchtune", draw_torchtune},
              {"peft", draw_peft},
              {"axolotl", draw_axolotl}};

/* " --gpu-name h100 --compile=true": each as a key. */
static void type(struct dtp_scenario *s, const char *flags)
{
    char text[2048], *rest = text;
    snprintf(text, sizeof text, "%s", flags);
    for (char *word; (word = strtok_r(rest, " ", &rest)) != NULL;) {
        char *equals = strchr(word, '=');
        if (equals)
            *equals = '\0';
        set(s, word + 2, equals ? equals + 1 : strtok_r(rest, " ", &rest));
    }
}

/* The job of what was written and of the flags beside it, whose every key is that of the job that was asked for. */
static void expect_same(const struct dtp_launcher *launcher, const struct dtp_launch_file *files, const char *typed,
                        const struct dtp_job *wanted)
{
    static struct dtp_job got;
    static struct dtp_job_value a[DTP_JOB_VALUES_MAX], b[DTP_JOB_VALUES_MAX];
    struct dtp_scenario *again;
    struct dtp_import *import = dtp_import_create();
    assert_int_equal(dtp_scenario_create(&again, &faults), DTP_OK);
    for (size_t i = 0; i < DTP_LAUNCH_CONFIGS_MOST && launcher->files[i]; i++)
        assert_int_equal(dtp_import_parse(import, files[i].name, files[i].text, strlen(files[i].text), &faults),
                         DTP_OK);
    assert_int_equal(dtp_import_apply(import, again, NULL, &faults), DTP_OK);
    type(again, typed);
    if (dtp_scenario_resolve(again, &catalog, &got, &faults) != DTP_OK)
        fail_msg("%s", faults.text[0]);
    assert_int_equal(got.transformer.layers, wanted->transformer.layers);
    assert_int_equal(dtp_transformer_count(&got.transformer).total, dtp_transformer_count(&wanted->transformer).total);
    assert_int_equal(got.cluster.gpus, wanted->cluster.gpus);
    assert_string_equal(got.cluster.gpu.key, wanted->cluster.gpu.key);
    size_t count = dtp_job_values(wanted, a);
    dtp_job_values(&got, b);
    for (size_t i = 0; i < count; i++) {
        bool word = strcmp(a[i].key->key, "model") == 0 || strcmp(a[i].key->key, "name") == 0;
        bool idle = strcmp(a[i].key->key, "accumulate_sync") == 0 && wanted->plan.accumulate == 1;
        if (strcmp(a[i].key->section, "plan") != 0 || word || idle)
            continue;
        bool same = a[i].whole == b[i].whole && a[i].real == b[i].real &&
                    (a[i].kind != DTP_VALUE_WORD || strcmp(a[i].word, b[i].word) == 0);
        if (!same && dtp_scenario_reads(again, a[i].key->key))
            fail_msg("%s: %s of\n%s%s", launcher->name, a[i].key->key, files[0].text, typed);
    }
    dtp_import_destroy(import);
    dtp_scenario_destroy(again);
}

/* A refusal says a key and what the files have in its place, or the setting that is not there. */
static void expect_named(const char *text)
{
    if (!strstr(text, "cannot say it, there it is") && !strstr(text, "has no flavor of") && !strstr(text, ": "))
        fail_msg("%s", text);
}

static bool write_one(const struct scope *scope)
{
    static struct dtp_job job;
    struct dtp_launch_file files[DTP_LAUNCH_FILES_MOST] = {{NULL, NULL}};
    char typed[2048];
    size_t count = 0;
    struct dtp_scenario *s;
    faults.count = 0;
    faults.status = DTP_OK;
    assert_int_equal(dtp_scenario_create(&s, &faults), DTP_OK);
    draw_common(s);
    scope->draw(s);
    bool written = false;
    if (dtp_scenario_resolve(s, &catalog, &job, &faults) == DTP_OK) {
        const struct dtp_launcher *launcher = dtp_launcher_of(scope->name, &job, &faults);
        assert_non_null(launcher);
        written = dtp_launch_write(launcher, s, &catalog, &job, files, &count, typed, sizeof typed, &faults) == DTP_OK;
        if (written)
            expect_same(launcher, files, typed, &job);
        else
            expect_named(faults.text[0]);
        for (size_t i = 0; i < count; i++)
            free(files[i].text);
    }
    dtp_scenario_destroy(s);
    return written;
}

static void random_plans_come_back(void **state)
{
    (void)state;
    random_seed();
    for (size_t i = 0; i < sizeof scopes / sizeof *scopes; i++) {
        uint32_t written = 0, draws = 0;
        for (; written < WRITTEN && draws < MOST_DRAWS; draws++)
            written += write_one(&scopes[i]);
        print_message("%s: %u of %u draws written and read back\n", scopes[i].name, written, draws);
        assert_int_equal(written, WRITTEN);
    }
}

/* One plan's files, or why there are none. */
struct launched {
    struct imported_file plan;
    struct dtp_launch_file files[DTP_LAUNCH_FILES_MOST];
    size_t count;
    enum dtp_status status;
};

static void launch(const char *program, const char *settings, struct launched *out)
{
    static struct dtp_job job;
    char typed[2048];
    memset(out->files, 0, sizeof out->files);
    out->count = 0;
    begin_import(&out->plan);
    set_typed(&out->plan, settings);
    assert_int_equal(dtp_scenario_resolve(out->plan.scenario, &catalog, &job, &out->plan.faults), DTP_OK);
    out->status = dtp_launch_write(dtp_launcher_of(program, &job, &out->plan.faults), out->plan.scenario, &catalog,
                                   &job, out->files, &out->count, typed, sizeof typed, &out->plan.faults);
}

static void drop_launched(struct launched *launched)
{
    for (size_t i = 0; i < launched->count; i++)
        free(launched->files[i].text);
    drop_imported(&launched->plan);
}

/* Programs scale adapters by alpha over the rank: a plan without an alpha, whose scale is 1, writes the rank, for 0
 * would train nothing. */
static void adapters_without_alpha_are_scaled_by_one(void **state)
{
    (void)state;
    static const char *const cases[][2] = {
        {"axolotl", "model=llama-3-8b gpu=h100-sxm gpus=1 strategy=ddp runtime=peft lora=16 lora_dtype=fp32 "
                    "precision=bf16-mixed"},
        {"torchtune", "model=llama-3-8b gpu=h100-sxm gpus=2 strategy=full_shard lora=16 precision=bf16-pure"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct launched launched;
        launch(cases[i][0], cases[i][1], &launched);
        if (launched.status != DTP_OK)
            fail_msg("%s", launched.plan.faults.text[0]);
        assert_non_null(strstr(launched.files[0].text, "lora_alpha: 16"));
        drop_launched(&launched);
    }
}

/* 4 bits are kept as FSDP flattens them, and modules that are trained whole are named. */
static void what_peft_asks_beside(void **state)
{
    (void)state;
#define PEFT "model=llama-2-7b gpu=rtx-4090 runtime=peft lora=8 lora_dtype=fp32 precision=bf16-mixed "
    static const char *const cases[][3] = {
        {PEFT "gpus=2 fsdp1=true base=nf4-double checkpointing=full", "1", "\"bnb_4bit_quant_storage\": \"bfloat16\""},
        {PEFT "gpus=1 train_ends=true", "2", "\"modules_to_save\": [\n    \"embed_tokens\",\n    \"lm_head\"\n  ]"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct launched launched;
        launch("peft", cases[i][0], &launched);
        if (launched.status != DTP_OK)
            fail_msg("%s", launched.plan.faults.text[0]);
        assert_non_null(strstr(launched.files[*cases[i][1] - '0'].text, cases[i][2]));
        drop_launched(&launched);
    }
}

/* TrainingArguments alone, FSDP2 with adapters: by Accelerate without --to. */
static void trainer_jobs_are_started(void **state)
{
    (void)state;
#define TRAINED "model=llama-3-8b gpu=h200-sxm gpus=8 runtime=peft "
    static const char *const cases[] = {
        TRAINED "strategy=ddp precision=bf16-pure autocast=true",
        TRAINED "strategy=full_shard precision=bf16-mixed keep_root=true lora=8 lora_dtype=fp32"};
    for (size_t i = 0; i < 2; i++) {
        struct launched launched;
        launch(NULL, cases[i], &launched);
        assert_int_equal(launched.status, DTP_OK);
        drop_launched(&launched);
    }
}

/* What follows from another key is not said beside it. */
static void causes_are_named_alone(void **state)
{
    (void)state;
    struct launched launched;
    launch("peft",
           "model=llama-2-7b gpu=rtx-4090 runtime=peft lora=8 gpus=2 fsdp1=true base=nf4-double checkpointing=full",
           &launched);
    assert_int_equal(launched.status, DTP_BAD_INPUT);
    assert_int_equal(launched.plan.faults.count, 1);
    assert_non_null(strstr(launched.plan.faults.text[0], "lora_dtype = bf16: what peft reads cannot say it"));
    drop_launched(&launched);
}

/* Of one plan each: the key that its files cannot say. */
static void what_cannot_be_said_is_named(void **state)
{
    (void)state;
    static const char *const cases[][3] = {
        {"nemo", "model=llama-3-8b gpu=h100-sxm gpus=8 runtime=megatron strategy=zero1 loss=fused",
         "loss = fused: what nemo reads cannot say it, there it is native"},
        {"torchtitan", "model=llama-3-8b gpu=h100-sxm gpus=8 loss=chunked", "loss = chunked: what torchtitan reads"},
        {"torchtitan", "model=llama-2-7b layers=4 gpu=h100-sxm gpus=8", "has no flavor of llama-2-7b (changed)"},
        {"accelerate", "model=llama-2-7b gpu=h100-sxm gpus=8",
         "reduce_dtype = fp32: what accelerate reads cannot say it, "
         "there it is bf16; give --reduce-dtype bf16"},
        {"peft", "model=llama-2-7b gpu=h100-sxm gpus=1 strategy=ddp runtime=peft", "the plan has none; give --lora N"},
        {"peft", "model=llama-2-7b gpu=h100-sxm gpus=1 strategy=ddp runtime=peft lora=8 base=int4",
         "base = int4: what peft reads cannot say it"},
        {"torchtune", "model=gpt-2 gpu=h100-sxm gpus=8", "has no builder of gpt-2"},
        {"megatron", "model=llama-2-7b gpu=h100-sxm gpus=8 runtime=megatron strategy=zero1 rope_fp32=true",
         "rope_fp32 = true: what megatron reads cannot say it"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct launched launched;
        launch(cases[i][0], cases[i][1], &launched);
        assert_int_equal(launched.status, DTP_BAD_INPUT);
        bool named = false;
        for (size_t k = 0; k < launched.plan.faults.count; k++)
            named |= strstr(launched.plan.faults.text[k], cases[i][2]) != NULL;
        if (!named)
            fail_msg("%s", launched.plan.faults.text[0]);
        drop_launched(&launched);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_plans_come_back),   cmocka_unit_test(adapters_without_alpha_are_scaled_by_one),
        cmocka_unit_test(what_peft_asks_beside),    cmocka_unit_test(causes_are_named_alone),
        cmocka_unit_test(trainer_jobs_are_started), cmocka_unit_test(what_cannot_be_said_is_named),
    };
    return cmocka_run_group_tests(tests, load_catalog, drop_catalog);
}
