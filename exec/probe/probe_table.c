/* Which step programs are measured. Widths of four models that span what one GPU trains, micro-batches of 2k to 64k
 * tokens, since a matmul's rate depends on how its tiles fill the SMs; sequences, head widths and grouped heads at one
 * size each, where only attention sees them; many experts and few; precisions, accumulation and attention's atomics
 * where kernels differ. Two layers are enough: all ask for the same, and a second one lets the end of the first be seen
 * in a running step. */
#include "probe/prober.h"
#include "runtime/runtimes.h"

#include "machine/host_machine.h"
#include "device/open_device.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define MOST_MICRO_BATCHES 6
#define MOST_STEPS 96
#define LAYERS 2
#define MOST_DEFAULT_RANKS 4 /* of a host */
#define USER_MICRO_STEPS 2   /* the second adds to gradients, and so do all after it */

struct line {
    const char *words; /* keys, besides those of every program */
    uint32_t micro_batches[MOST_MICRO_BATCHES];
    uint32_t layers; /* 0: LAYERS */
    int way;
};

#define GPT_2 "model=gpt-2 vocab=50304" /* as others pad it; 50257 runs as 50264 here */
#define LLAMA_1B "hidden=2048 heads=16 ffn=5504 vocab=32000"
#define LLAMA_1B_NARROW_HEADS "hidden=2048 heads=32 ffn=5504 vocab=32000"
#define LLAMA_7B "hidden=4096 heads=32 ffn=11008 vocab=32000"
#define LLAMA_13B "hidden=5120 heads=40 ffn=13824 vocab=32000"
#define MANY_EXPERTS "hidden=2048 heads=16 ffn=1024 vocab=32000 experts=64 experts_per_token=8 expert_ffn=1024"
#define FEW_EXPERTS "hidden=4096 heads=32 kv_heads=8 ffn=7168 vocab=32000 experts=8 experts_per_token=2 expert_ffn=7168"
#define LLAMA_GROUPED "hidden=4096 heads=32 kv_heads=4 ffn=14336 vocab=32000"

static const struct line gpu_lines[] = {
    {GPT_2 " seq=1024", {4}, 0, DTP_PROBE_ALONE},
    {GPT_2 " seq=1024", {4}, 12, DTP_PROBE_DEEP}, /* after its like of two layers */
    {LLAMA_7B " seq=2048", {1, 2, 4, 8}, 0, DTP_PROBE_ALONE},
    {LLAMA_1B " seq=2048", {1, 2, 4, 8, 16}, 0, DTP_PROBE_ALONE},
    {GPT_2 " seq=1024", {2, 8, 16, 32, 64}, 0, DTP_PROBE_ALONE},
    {"model=gpt-2 seq=1024", {4, 32}, 0, DTP_PROBE_ALONE},
    {LLAMA_13B " seq=2048", {1, 2, 4}, 0, DTP_PROBE_ALONE},
    {LLAMA_7B " seq=1024", {8}, 0, DTP_PROBE_ALONE},
    {LLAMA_7B " seq=4096", {2}, 0, DTP_PROBE_ALONE},
    {LLAMA_7B " seq=8192", {1}, 0, DTP_PROBE_ALONE},
    {LLAMA_1B_NARROW_HEADS " seq=2048", {4}, 0, DTP_PROBE_ALONE},
    {LLAMA_1B_NARROW_HEADS " seq=4096", {2}, 0, DTP_PROBE_ALONE},
    {LLAMA_GROUPED " seq=2048", {4}, 0, DTP_PROBE_ALONE},
    {MANY_EXPERTS " seq=4096", {1, 2, 4}, 0, DTP_PROBE_ALONE},
    {MANY_EXPERTS " seq=4096 accumulate=2", {2}, 0, DTP_PROBE_ALONE},
    {FEW_EXPERTS " seq=2048", {1, 2, 4}, 0, DTP_PROBE_ALONE},
    {LLAMA_13B " seq=2048 atomic_attention=true", {2}, 0, DTP_PROBE_ALONE},
    {LLAMA_7B " seq=4096 atomic_attention=true", {2}, 0, DTP_PROBE_ALONE},
    {LLAMA_7B " seq=8192 atomic_attention=true", {1}, 0, DTP_PROBE_ALONE},
    {LLAMA_7B " seq=2048 accumulate=2 atomic_attention=true", {4}, 0, DTP_PROBE_ALONE},
    {LLAMA_1B " seq=2048 accumulate=2 atomic_attention=true", {2, 4}, 0, DTP_PROBE_ALONE},
    {LLAMA_7B " seq=2048 precision=bf16-pure atomic_attention=true", {1, 4}, 0, DTP_PROBE_ALONE},
    {LLAMA_1B " seq=2048 precision=bf16-pure atomic_attention=true", {4}, 0, DTP_PROBE_ALONE},
    {GPT_2 " seq=1024 gelu_epilogue=true atomic_attention=true", {16}, 0, DTP_PROBE_ALONE},
    {GPT_2 " seq=1024 gelu_epilogue=true atomic_attention=true accumulate=2", {32}, 0, DTP_PROBE_ALONE},
    {"model=gpt-2 seq=1024 precision=fp32", {4}, 0, DTP_PROBE_ALONE},
    {LLAMA_7B " seq=2048 strategy=full_shard", {4}, 4, DTP_PROBE_TOGETHER},
    {LLAMA_7B " seq=2048 strategy=ddp", {4}, 4, DTP_PROBE_TOGETHER},
    {LLAMA_1B " seq=2048 strategy=full_shard", {4}, 4, DTP_PROBE_TOGETHER},
    {LLAMA_1B " seq=2048 strategy=hybrid_shard", {4}, 4, DTP_PROBE_TOGETHER},
};

/* What cores train in a minute: widths of 64 to 512, batches of 32 to 1024 tokens, vocabularies from bytes' to that of
 * LLaMA, in both formats. Strategies add kernels of their own. */
#define TINY "hidden=64 heads=4 ffn=192 vocab=256"
#define SMALL "hidden=256 heads=4 ffn=704 vocab=1024"
#define MIDDLE "hidden=512 heads=8 ffn=1408 vocab=4096"
#define STORIES "hidden=288 heads=6 ffn=768 vocab=32000"
#define EXPERTS " experts=8 experts_per_token=2 expert_ffn=128"
#define MORE_SHARDED 3     /* the last of them */
#define FIRST_HOST_STEPS 8 /* programs of them that say something of every kernel; those after them say it better */
static const struct line host_lines[] = {
    {TINY " seq=32 precision=fp32", {1, 8}, 0, DTP_PROBE_ALONE},
    {TINY " seq=32", {1, 8}, 0, DTP_PROBE_ALONE},
    {TINY " kv_heads=2 seq=64 accumulate=2 precision=fp32", {1}, 0, DTP_PROBE_ALONE},
    {TINY " kv_heads=2 seq=64 accumulate=2", {1}, 0, DTP_PROBE_ALONE},
    {TINY " norm=layer_norm activation=gelu position=learned seq=64 precision=fp32", {1}, 0, DTP_PROBE_ALONE},
    {TINY " norm=layer_norm activation=gelu position=learned seq=64", {1}, 0, DTP_PROBE_ALONE},
    {SMALL " seq=128 precision=fp32", {1, 4}, 0, DTP_PROBE_ALONE},
    {SMALL " seq=128", {1, 4}, 0, DTP_PROBE_ALONE},
    {SMALL " seq=64 accumulate=2 precision=fp32", {1}, 0, DTP_PROBE_ALONE},
    {SMALL " seq=64 accumulate=2", {1}, 0, DTP_PROBE_ALONE},
    {MIDDLE " seq=128 precision=fp32", {1}, 0, DTP_PROBE_ALONE},
    {MIDDLE " seq=128", {1}, 0, DTP_PROBE_ALONE},
    {STORIES " seq=256", {1}, 0, DTP_PROBE_ALONE},
    {TINY EXPERTS " seq=64 accumulate=2 precision=fp32", {1}, 0, DTP_PROBE_ALONE},
    {TINY EXPERTS " seq=64 accumulate=2", {1}, 0, DTP_PROBE_ALONE},
    {SMALL EXPERTS " seq=128 precision=fp32", {1}, 0, DTP_PROBE_ALONE},
    {SMALL EXPERTS " seq=128", {1}, 0, DTP_PROBE_ALONE},
    {SMALL " norm=layer_norm activation=gelu position=learned seq=128 precision=fp32", {1}, 0, DTP_PROBE_ALONE},
    {SMALL " norm=layer_norm activation=gelu position=learned seq=128", {1}, 0, DTP_PROBE_ALONE},
    {TINY " seq=32 accumulate=2 precision=fp32 strategy=full_shard", {4}, 0, DTP_PROBE_TOGETHER},
    {TINY " seq=32 accumulate=2 strategy=full_shard", {4}, 0, DTP_PROBE_TOGETHER},
    {TINY " seq=32 accumulate=2 precision=fp32 strategy=ddp", {4}, 0, DTP_PROBE_TOGETHER},
    {TINY " seq=32 accumulate=2 strategy=ddp", {4}, 0, DTP_PROBE_TOGETHER},
    {SMALL " seq=64 accumulate=2 strategy=full_shard", {1}, 0, DTP_PROBE_TOGETHER},
};

/* ---- keys -------------------------------------------------------------------------------------------------------- */

/* "KEY=VALUE ..." of the table, or one of the line, whose value may hold blanks. */
static enum dtp_status set_key(struct dtp_scenario *scenario, const char *text, size_t length,
                               struct dtp_faults *faults)
{
    char key[64], value[4096];
    size_t name = strcspn(text, "=");
    if (name >= sizeof key || name >= length || length - name > sizeof value)
        return dtp_fault(faults, DTP_BAD_INPUT, NULL, 0, "--set: '%.*s' is no KEY=VALUE", (int)length, text);
    snprintf(key, sizeof key, "%.*s", (int)name, text);
    snprintf(value, sizeof value, "%.*s", (int)(length - name - 1), text + name + 1);
    return dtp_scenario_set(scenario, key, value, "probe", 0, faults);
}

static enum dtp_status set_words(struct dtp_scenario *scenario, const char *words, struct dtp_faults *faults)
{
    enum dtp_status status = DTP_OK;
    for (size_t length; *words && status == DTP_OK; words += length + (words[length] == ' ')) {
        length = strcspn(words, " ");
        status = set_key(scenario, words, length, faults);
    }
    return status;
}

/* Whether a key that was typed is about the machine, and so holds for every program. */
static bool of_machine(const char *text)
{
    size_t count, length = strcspn(text, "=");
    const struct dtp_scenario_key *keys = dtp_scenario_keys(&count);
    for (size_t i = 0; i < count; i++)
        if (strlen(keys[i].key) == length && strncmp(keys[i].key, text, length) == 0)
            return strcmp(keys[i].section, "cluster") == 0;
    return false;
}

static bool is_count(const char *text)
{
    return strncmp(text, "gpus=", strlen("gpus=")) == 0 ||
           strncmp(text, "gpus_per_node=", strlen("gpus_per_node=")) == 0;
}

static enum dtp_status set_typed(const struct dtp_probe_job *of, bool machine, struct dtp_scenario *scenario,
                                 struct dtp_faults *faults)
{
    enum dtp_status status = DTP_OK;
    for (size_t i = 0; i < of->key_count && status == DTP_OK; i++)
        if (of_machine(of->keys[i]) == machine && !is_count(of->keys[i]))
            status = set_key(scenario, of->keys[i], strlen(of->keys[i]), faults);
    return status;
}

/* 0: the key was not typed. */
static uint32_t count_typed(const struct dtp_probe_job *job, const char *key)
{
    size_t length = strlen(key);
    for (size_t i = 0; i < job->key_count; i++)
        if (strncmp(job->keys[i], key, length) == 0 && job->keys[i][length] == '=')
            return (uint32_t)strtoul(job->keys[i] + length + 1, NULL, 10);
    return 0;
}

enum dtp_status dtp_probe_cluster(const struct dtp_probe_job *job, uint32_t gpus, struct dtp_cluster *out,
                                  struct dtp_faults *faults)
{
    uint32_t per_node = count_typed(job, "gpus_per_node"), here = job->ranks.world > 1 ? job->ranks.local_world : gpus;
    bool pretends = job->settings->pretend_nodes;
    *out = (struct dtp_cluster){.gpus = gpus, .gpus_per_node = gpus, .nodes = 1, .network = DTP_NETWORK_SOCKETS};
    if (pretends && (per_node > gpus || (per_node && gpus % per_node)))
        return dtp_fault(faults, DTP_BAD_INPUT, NULL, 0, "--gpus-per-node: %" PRIu32 " GPUs make no nodes of %" PRIu32,
                         gpus, per_node);
    if (!pretends && per_node && per_node < here)
        return dtp_fault(faults, DTP_BAD_INPUT, NULL, 0,
                         "--gpus-per-node: %" PRIu32 " ranks on one machine are measured as one node, not as nodes of "
                         "%" PRIu32 "; leave it out%s",
                         here, per_node, job->settings->cuda ? ", or add --pretend-nodes" : "");
    if (pretends && !job->settings->cuda)
        return dtp_fault(faults, DTP_BAD_INPUT, NULL, 0,
                         "--pretend-nodes: ranks of a host meet in its memory, whatever nodes are pretended of them; "
                         "probe without it");
    if (pretends && per_node)
        out->gpus_per_node = per_node, out->nodes = gpus / per_node;
    return DTP_OK;
}

enum dtp_status dtp_probe_ranks(const struct dtp_probe_job *job, uint32_t *out, struct dtp_faults *faults)
{
    *out = count_typed(job, "gpus");
    if (*out > DTP_HOST_MOST_RANKS && !job->settings->cuda)
        return dtp_fault(faults, DTP_BAD_INPUT, NULL, 0, "--gpus: %" PRIu32 " ranks, the host device has at most %d",
                         *out, DTP_HOST_MOST_RANKS);
    if (*out)
        return DTP_OK;
    if (job->ranks.world > 1) {
        *out = job->ranks.world;
        return DTP_OK;
    }
    *out = dtp_host_cores() < MOST_DEFAULT_RANKS ? dtp_host_cores() : MOST_DEFAULT_RANKS;
    return job->settings->cuda ? dtp_open_device_count(job->settings, out, faults) : DTP_OK;
}

uint32_t dtp_probe_pass_count(const struct dtp_settings *settings, uint32_t ranks)
{
    uint32_t count = 1;
    for (uint32_t n = 1; n < ranks && !settings->cuda; n *= 2)
        count++;
    return count;
}

uint32_t dtp_probe_pass_ranks(const struct dtp_settings *settings, uint32_t ranks, uint32_t pass)
{
    return pass + 1 < dtp_probe_pass_count(settings, ranks) ? UINT32_C(1) << pass : ranks;
}

/* ---- jobs -------------------------------------------------------------------------------------------------------- */

/* Sets how many GPUs a program is for and its strategy, after its words, so that they cannot say otherwise. */
static enum dtp_status set_place(const struct dtp_prober *p, bool together, struct dtp_scenario *scenario)
{
    char text[96];
    uint32_t local = p->of->ranks.local_world ? p->of->ranks.local_world : p->ranks;
    snprintf(text, sizeof text, "runtime=dtplan gpus=%" PRIu32 " gpus_per_node=%" PRIu32, together ? p->ranks : 1,
             together ? local : 1);
    return set_words(scenario, text, p->faults);
}

static enum dtp_status resolve(const struct dtp_prober *p, const char *words, bool typed, bool together,
                               struct dtp_job *out)
{
    struct dtp_scenario *scenario;
    enum dtp_status status = dtp_scenario_create(&scenario, p->faults);
    if (status == DTP_OK)
        dtp_scenario_without_times(scenario);
    if (status == DTP_OK)
        status = set_words(scenario, words, p->faults);
    if (status == DTP_OK && p->gpu_key[0])
        status = dtp_scenario_set(scenario, "gpu", p->gpu_key, "probe", 0, p->faults);
    if (status == DTP_OK)
        status = set_typed(p->of, true, scenario, p->faults);
    if (status == DTP_OK && typed)
        status = set_typed(p->of, false, scenario, p->faults);
    if (status == DTP_OK)
        status = set_place(p, together, scenario);
    if (status == DTP_OK)
        status = dtp_scenario_resolve(scenario, p->of->catalog, out, p->faults);
    dtp_scenario_destroy(scenario);
    return status;
}

/* Makes the job shallower and its micro-steps fewer, with what that changes of the plan; all else stays as resolved. */
static enum dtp_status cut(const struct dtp_prober *p, uint32_t layers, uint32_t most_micro_steps, struct dtp_job *job)
{
    job->transformer.layers = layers;
    job->plan = job->asked;
    job->plan.executor.cuda_graph = false;
    job->plan.executor.collective_ctas = 0; /* collectives are measured as the library carries them by itself */
    job->plan.executor.symmetric_windows = false;
    job->plan.executor.gather_engine = job->plan.executor.reduce_engine = DTP_ENGINE_SM;
    if (job->plan.accumulate > most_micro_steps)
        job->plan.accumulate = most_micro_steps;
    return dtp_plan_resolve(&job->plan, &job->transformer, &job->cluster, p->faults);
}

static void name_step(struct dtp_probe_step *step)
{
    const struct dtp_job *job = &step->job;
    snprintf(step->words, sizeof step->words, "%s, width %" PRIu64 ", %" PRIu32 " x %" PRIu64 " tokens",
             step->way == DTP_PROBE_TOGETHER ? dtp_strategy_text(job->plan.strategy)
                                             : dtp_precision_name(&job->plan.precision),
             job->transformer.hidden, job->plan.micro_batch, job->plan.sequence);
}

/* hybrid_shard of half of the ranks, or of those of a node, where that leaves groups of two or more either way. */
static bool hybrid_group(const struct dtp_prober *p, char *out, size_t bytes)
{
    uint32_t group = p->nodes > 1 ? p->ranks / p->nodes : p->ranks / 2;
    snprintf(out, bytes, " shard_group=%" PRIu32, group);
    return group > 1 && p->ranks > group && p->ranks % group == 0;
}

static enum dtp_status add_line(const struct dtp_prober *p, const struct line *line, struct dtp_probe_step *steps,
                                size_t *count)
{
    bool together = line->way == DTP_PROBE_TOGETHER, hybrid = strstr(line->words, "hybrid_shard") != NULL;
    char words[256], group[40] = "";
    enum dtp_status status = DTP_OK;
    if ((together && p->ranks < 2) || (hybrid && !hybrid_group(p, group, sizeof group)))
        return DTP_OK;
    for (int i = 0; i < MOST_MICRO_BATCHES && line->micro_batches[i] && status == DTP_OK; i++) {
        struct dtp_probe_step *step = &steps[(*count)++];
        snprintf(words, sizeof words, "layers=%d strategy=ddp gradient_norm=true %s%s micro_batch=%" PRIu32, LAYERS,
                 line->words, group, line->micro_batches[i]);
        step->way = (unsigned)line->way;
        status = resolve(p, words, false, together, &step->job);
        if (status == DTP_OK)
            status = cut(p, line->layers ? line->layers : LAYERS, USER_MICRO_STEPS, &step->job);
        name_step(step);
    }
    return status;
}

/* The job that the line describes: its shapes on one GPU, and its collectives where there are as many as it needs. */
static enum dtp_status add_typed(const struct dtp_prober *p, struct dtp_probe_step *steps, size_t *count)
{
    bool described = false;
    enum dtp_status status = DTP_OK;
    for (size_t i = 0; i < p->of->key_count; i++)
        described |= !of_machine(p->of->keys[i]);
    for (int together = 0; described && together < 2 && status == DTP_OK; together++) {
        struct dtp_probe_step *step = &steps[*count];
        if (together && p->ranks < 2)
            break;
        step->way = together ? DTP_PROBE_TOGETHER : DTP_PROBE_ALONE;
        status = resolve(p, together ? "" : "strategy=ddp", true, together, &step->job);
        if (status == DTP_OK)
            status = cut(p, LAYERS * (together ? 2 : 1), USER_MICRO_STEPS, &step->job);
        name_step(step);
        *count += 1;
    }
    return status;
}

enum dtp_status dtp_probe_table(struct dtp_prober *p, struct dtp_probe_step **out, size_t *count)
{
    bool cuda = p->of->settings->cuda;
    const struct line *lines = cuda ? gpu_lines : host_lines;
    size_t line_count = cuda ? sizeof gpu_lines / sizeof *gpu_lines : sizeof host_lines / sizeof *host_lines;
    enum dtp_status status = DTP_OK;
    *count = 0;
    *out = calloc(MOST_STEPS, sizeof **out);
    if (!*out)
        return dtp_fault(p->faults, DTP_ENVIRONMENT, NULL, 0, "out of memory");
    for (size_t i = 0; i < line_count && status == DTP_OK; i++)
        status = add_line(p, &lines[i], *out, count);
    for (size_t i = FIRST_HOST_STEPS; i < *count; i++) /* two that shard are always measured */
        (*out)[i].may_wait = !cuda && ((*out)[i].way == DTP_PROBE_ALONE || i + MORE_SHARDED >= *count);
    return status == DTP_OK ? add_typed(p, *out, count) : status;
}
