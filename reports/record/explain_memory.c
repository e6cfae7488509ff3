/* Memory: the buffers that live where the step program is at its fullest, and the record of what stands beside a
 * program (memory_parts.h). */
#include "record/explain.h"

#include "base/append.h"
#include "closed/activations.h"
#include "closed/memory_parts.h"
#include "closed/sharding.h"
#include "job/estimate.h"
#include "lower/miniature.h"
#include "plan/optimizer_state.h"
#include "program/live_buffers.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define ULL(value) ((unsigned long long)(value))

/* ---- the peak ---------------------------------------------------------------------------------------------------- */

static const char *owner_words(enum dtp_owner owner)
{
    switch (owner) {
    case DTP_OWNER_PARAMS: return "parameters";
    case DTP_OWNER_OPTIMIZER: return "optimizer state";
    case DTP_OWNER_GRADS: return "gradients";
    case DTP_OWNER_ACTIVATIONS: return "activations";
    case DTP_OWNER_LOGITS: return "logits and loss";
    case DTP_OWNER_WEIGHTS: return "weights";
    case DTP_OWNER_GATHER: return "all-gather";
    case DTP_OWNER_REDUCE: return "reduction";
    case DTP_OWNER_WORKSPACE: return "workspace";
    case DTP_OWNER_COUNT: break;
    }
    return "";
}

/* What the rows of the peak are worded with. */
struct peak {
    const struct dtp_job *job;
    struct dtp_units units;
    struct dtp_element_bytes bytes;
    struct dtp_state_bytes state;
    uint64_t tokens;
};

/* Frozen weights as they are kept, and what is trained beside them; shards of both stay one term. */
static bool explain_frozen(const struct peak *p, struct dtp_explanation *e)
{
    struct dtp_trained_count count;
    dtp_plan_trained(&p->job->transformer, &p->job->plan, &count);
    if (dtp_plan_shards_params(&p->job->plan))
        return false;
    dtp_explain_term(e, "parameters: frozen", "weights as base keeps them", (double)count.frozen_bytes,
                     "%llu of %llu B", ULL(count.frozen), ULL(count.frozen_bytes));
    dtp_explain_term(e, "parameters: trained", "adapters x bytes", (double)(count.trained * p->bytes.grads),
                     "%llu x %llu B", ULL(count.trained), ULL(p->bytes.grads));
    return true;
}

/* State that follows from the shape of each tensor, by part. */
static void explain_parts(const struct peak *p, struct dtp_explanation *e)
{
    const struct dtp_plan *plan = &p->job->plan;
    const uint64_t each = dtp_dtype_bytes(plan->precision.moments);
    struct dtp_optimizer_part parts[DTP_OPTIMIZER_PARTS];
    char name[64], rule[96], rank[32] = "";
    if (dtp_optimizer_row(plan->optimizer)->shape == DTP_STATE_PROJECTED)
        snprintf(rank, sizeof rank, "; r = %u", plan->projection_rank);
    dtp_optimizer_parts(&p->job->transformer, plan, parts);
    for (int i = 0; i < DTP_OPTIMIZER_PARTS; i++) {
        if (!parts[i].name)
            continue;
        snprintf(name, sizeof name, "optimizer state: %s", parts[i].name);
        snprintf(rule, sizeof rule, "%s, x moment bytes", parts[i].rule);
        dtp_explain_term(e, name, rule, (double)(parts[i].elements * each), "%llu x %llu B%s", ULL(parts[i].elements),
                         ULL(each), i < 2 ? rank : "");
    }
}

/* State at rest by elements, where it is just that: parameters; of the optimizer, moments and master copy, and where
 * moments are in blocks, a scale of each in fp32. */
static bool explain_state(const struct peak *p, const struct dtp_live_kind *kind, struct dtp_explanation *e)
{
    const struct dtp_plan *plan = &p->job->plan;
    bool params = kind->owner == DTP_OWNER_PARAMS && kind->bytes == p->state.params;
    bool optimizer = kind->owner == DTP_OWNER_OPTIMIZER && kind->bytes == p->state.optimizer;
    if (!kind->persistent || (!params && !optimizer))
        return false;
    if (params && dtp_plan_adapts(plan))
        return explain_frozen(p, e);
    if (params && plan->megatron.fp8_param_gather)
        return false; /* of two kinds */
    bool shards = params ? dtp_plan_shards_params(plan) : dtp_plan_shards_optimizer(plan);
    uint64_t elements = params ? p->state.params_elements : p->state.optimizer_elements;
    const struct {
        const char *name, *whole, *shard;
        uint64_t bytes;
    } rows[] = {
        {"parameters: at rest", "psi x parameter bytes", "padded psi / N x parameter bytes", p->bytes.params},
        {"optimizer state: moments", "psi x moment bytes", "padded psi / N x moment bytes", p->bytes.moments},
        {"optimizer state: master copy", "psi x master bytes", "padded psi / N x master bytes", p->bytes.master}};
    const int first = params ? 0 : dtp_optimizer_by_tensor(plan) ? 2 : 1;
    if (first == 2)
        explain_parts(p, e);
    for (int i = first; i < (params ? 1 : 3); i++)
        dtp_explain_term(e, rows[i].name, shards ? rows[i].shard : rows[i].whole, (double)(elements * rows[i].bytes),
                         "%llu x %llu B", ULL(elements), ULL(rows[i].bytes));
    if (optimizer && p->bytes.block_elements) /* what is left: each shard's last block may be less than full */
        dtp_explain_term(e, "optimizer state: scales of blocks", "moments / elements of a block x 4 B",
                         (double)(kind->bytes - elements * p->bytes.optimizer), "blocks of %llu elements",
                         ULL(p->bytes.block_elements));
    return true;
}

/* Activations and their gradients as bytes of a token. */
static void explain_kind(const struct peak *p, const struct dtp_live_kind *kind, struct dtp_explanation *e)
{
    char name[64];
    bool per_token = !kind->persistent &&
                     (kind->owner == DTP_OWNER_ACTIVATIONS || kind->owner == DTP_OWNER_LOGITS ||
                      kind->owner == DTP_OWNER_WORKSPACE) &&
                     kind->most_bytes % p->tokens == 0;
    const char *many = !kind->in_layers                           ? "buffers"
                       : kind->count > p->job->transformer.layers ? "layers and micro-batches"
                                                                  : "layers";
    snprintf(name, sizeof name, "%s: %s", owner_words(kind->owner), kind->name);
    char rule[64];
    if (kind->least_bytes != kind->most_bytes) {
        dtp_explain_term(e, name, "buffers of several sizes", (double)kind->bytes, "%llu of %llu to %llu B",
                         ULL(kind->count), ULL(kind->least_bytes), ULL(kind->most_bytes));
    } else if (kind->count == 1 && !per_token) {
        dtp_explain_term(e, name, "bytes", (double)kind->bytes, "%llu B", ULL(kind->bytes));
    } else if (!per_token) {
        snprintf(rule, sizeof rule, "%s x bytes of one", many);
        dtp_explain_term(e, name, rule, (double)kind->bytes, "%llu x %llu B", ULL(kind->count), ULL(kind->most_bytes));
    } else if (kind->count == 1) {
        dtp_explain_term(e, name, "T x bytes of a token", (double)kind->bytes, "%llu x %llu B", ULL(p->tokens),
                         ULL(kind->most_bytes / p->tokens));
    } else {
        snprintf(rule, sizeof rule, "%s x T x bytes of a token", many);
        dtp_explain_term(e, name, rule, (double)kind->bytes, "%llu x %llu x %llu B", ULL(kind->count), ULL(p->tokens),
                         ULL(kind->most_bytes / p->tokens));
    }
}

/* Of the whole program, which is the estimate's to the byte but where shares of ranks are rounded otherwise from layer
 * to layer (miniature.h): the rest has a row of its own. */
static void explain_buffers(const struct dtp_job *job, const struct dtp_memory *m, const struct dtp_live_buffers *live,
                            struct dtp_explanation *e)
{
    struct peak p = {.job = job, .tokens = dtp_plan_tokens(&job->plan)};
    char words[112];
    dtp_units_count(&job->transformer, &job->cluster, &job->plan, &p.units);
    dtp_element_bytes_count(&job->plan, &p.bytes);
    dtp_state_bytes_count(&job->transformer, &job->cluster, &p.units, &job->plan, &p.bytes, NULL, &p.state);
    snprintf(words, sizeof words, "allocated on one GPU at the %s", dtp_phase_words(m->peak_phase));
    dtp_explain_group(e, "MEMORY AT THE PEAK", words, DTP_EXPLAIN_BYTES, (double)m->allocated_peak_bytes);
    dtp_explain_source(e, "the buffers of this plan's step program that live at its fullest instant; dtplan explain "
                          "--program lists its operations");
    for (size_t i = 0; i < live->count; i++)
        if (!explain_state(&p, &live->kind[i], e))
            explain_kind(&p, &live->kind[i], e);
    double rest = (double)m->allocated_peak_bytes - (double)live->total_bytes;
    if (fabs(rest) <= 1e-3 * (double)live->total_bytes)
        dtp_explain_term(e, "rounding of shares, from layer to layer", "", rest, "%.0f B", rest);
    dtp_explain_close(e, "other", "");
}

/* Of a plan without a step program: what the bound is made of. */
static void explain_bound(const struct dtp_memory *m, struct dtp_explanation *e)
{
    const uint64_t *peak = m->phase_bytes[m->peak_phase];
    dtp_explain_group(e, "MEMORY AT THE PEAK", "a bound: this plan has no step program", DTP_EXPLAIN_BYTES,
                      (double)m->allocated_peak_bytes);
    dtp_explain_source(e, "state at rest, what forward keeps, and beside these the worst stage of a block, a unit's "
                          "gathered weights and gradients");
    for (enum dtp_owner owner = 0; owner < DTP_OWNER_COUNT; owner++)
        dtp_explain_term(e, owner_words(owner), "", (double)peak[owner], "%llu B", ULL(peak[owner]));
    dtp_explain_close(e, "other", "");
}

/* ---- beside the program ------------------------------------------------------------------------------------------ */

/* One part: its factors in symbols and in numbers. A node has `times` of it. */
static void explain_part(const struct dtp_memory_part *part, uint64_t times, struct dtp_explanation *e)
{
    const struct dtp_memory_term_words *words = &dtp_memory_terms[part->term];
    char rule[112], numbers[128];
    snprintf(rule, sizeof rule, "%s", times > 1 ? "GPUs" : "");
    *numbers = 0;
    if (times > 1)
        snprintf(numbers, sizeof numbers, "%llu", ULL(times));
    for (int i = 0; i < DTP_MEMORY_FACTORS; i++) {
        if (!*words->factors[i])
            continue;
        dtp_append_part(rule, sizeof rule, " x ", "%s", words->factors[i]);
        dtp_append_part(numbers, sizeof numbers, " x ", "%llu%s", ULL(part->factors[i]),
                        i + 1 == DTP_MEMORY_FACTORS ? " B" : "");
    }
    dtp_explain_term(e, words->words, rule, (double)times * (double)part->bytes, "%s", numbers);
    e->terms[e->term_count - 1].source = words->source;
}

/* Every source of the newest group once. */
static void explain_sources(const struct dtp_memory_list *list, struct dtp_explanation *e)
{
    char text[sizeof e->groups[0].source] = "";
    for (size_t i = 0; i < list->count; i++) {
        const char *source = dtp_memory_terms[list->part[i].term].source;
        if (*source && !strstr(text, source))
            dtp_append_part(text, sizeof text, "; ", "%s", source);
    }
    dtp_explain_source(e, text);
}

/* The parts of one sum in the newest group. */
void dtp_explain_list(const struct dtp_memory_list *list, uint64_t times, struct dtp_explanation *e)
{
    explain_sources(list, e);
    for (size_t i = 0; i < list->count; i++)
        explain_part(&list->part[i], times, e);
    dtp_explain_close(e, "other", "");
}

/* Of one of the layers of `m`, which are all alike. */
static void explain_layer_of(const struct dtp_job *job, const struct dtp_transformer *m, const char *what,
                             struct dtp_explanation *e)
{
    struct dtp_activations activations;
    const struct dtp_activations *a = &activations;
    dtp_activations_count(m, &job->cluster, &job->plan, &activations);
    dtp_explain_group(e, "SAVED FOR BACKWARD", what, DTP_EXPLAIN_BYTES, (double)a->layer_all);
    dtp_explain_source(e, "what autograd keeps: PyTorch tools/autograd/derivatives.yaml; Korthikanti et al. 2022");
    dtp_explain_term(e, "residual stream", "x and x + attention",
                     (double)(a->layer_all - a->layer_norms - a->layer_attention - a->layer_mlp), "; h = %llu",
                     ULL(m->hidden));
    dtp_explain_term(e, "norms", "2 results and their statistics", (double)a->layer_norms, "; h = %llu",
                     ULL(m->hidden));
    dtp_explain_term(e, "attention", "q, k, v, result, statistics of the softmax", (double)a->layer_attention,
                     "; d_q = %llu, d_kv = %llu", ULL(m->heads * m->head_dim), ULL(m->kv_heads * m->head_dim));
    dtp_explain_term(e, "MLP", "inputs of the activation and of the last matmul", (double)a->layer_mlp, "; f = %llu",
                     ULL(m->experts ? m->experts_per_token * m->expert_ffn : m->ffn));
    dtp_explain_close(e, "other", "");
}

void dtp_explain_layer(const struct dtp_job *job, struct dtp_explanation *e)
{
    const struct dtp_transformer *m = &job->transformer;
    struct dtp_transformer dense = dtp_transformer_all_alike(m, false), experts = dtp_transformer_all_alike(m, true);
    if (job->plan.runtime->arena) /* its peak is written down tensor by tensor already */
        return;
    if (dtp_transformer_is_uniform(m)) {
        explain_layer_of(job, m, "bytes of one token in one layer, nothing recomputed", e);
        return;
    }
    explain_layer_of(job, &dense, "bytes of one token in a layer without experts, nothing recomputed", e);
    explain_layer_of(job, &experts, "bytes of one token in a layer with experts, nothing recomputed", e);
}

static void explain_device(const struct dtp_memory *m, const struct dtp_memory_parts *parts, struct dtp_explanation *e)
{
    dtp_explain_group(e, "RESERVED MEMORY", "the allocator's segments", DTP_EXPLAIN_BYTES,
                      (double)m->reserved_peak_bytes);
    dtp_explain_list(&parts->reserved, 1, e);
    dtp_explain_group(e, "DEVICE MEMORY", "what the driver reports as used", DTP_EXPLAIN_BYTES,
                      (double)m->device_peak_bytes);
    dtp_explain_term(e, "reserved", "the allocator's segments, as above", (double)m->reserved_peak_bytes, "%llu B",
                     ULL(m->reserved_peak_bytes));
    dtp_explain_list(&parts->driver, 1, e);
    if (m->host_bytes > 0) {
        dtp_explain_group(e, "HOST MEMORY", "of a node", DTP_EXPLAIN_BYTES, (double)m->host_bytes);
        dtp_explain_list(&parts->host, parts->node_gpus, e);
    }
    if (m->nvme_bytes > 0) {
        dtp_explain_group(e, "NVME", "of a node", DTP_EXPLAIN_BYTES, (double)m->nvme_bytes);
        dtp_explain_list(&parts->nvme, parts->node_gpus, e);
    }
}

enum dtp_status dtp_explain_peak(const struct dtp_job *job, const struct dtp_memory *memory,
                                 const struct dtp_program *program, struct dtp_explanation *e,
                                 struct dtp_faults *faults)
{
    struct dtp_live_buffers live;
    enum dtp_status status = dtp_live_buffers_of(program, &live, faults);
    if (status == DTP_OK) {
        explain_buffers(job, memory, &live, e);
        free(live.kind);
    }
    return status;
}

static enum dtp_status explain_program(const struct dtp_job *job, const struct dtp_memory *memory,
                                       struct dtp_explanation *e, struct dtp_faults *faults)
{
    struct dtp_program *program;
    enum dtp_status status = dtp_miniature_whole(&job->transformer, &job->cluster, &job->plan, &program, faults);
    if (status != DTP_OK)
        return status;
    status = dtp_explain_peak(job, memory, program, e, faults);
    dtp_program_destroy(program);
    return status;
}

enum dtp_status dtp_explain_memory(const struct dtp_job *job, const struct dtp_prediction *prediction,
                                   struct dtp_explanation *e, struct dtp_faults *faults)
{
    struct dtp_memory_parts parts;
    struct dtp_memory memory;
    enum dtp_status status = dtp_estimate_memory(&job->transformer, &job->cluster, &job->plan, &memory, &parts, faults);
    if (status == DTP_OK && memory.bound)
        explain_bound(&prediction->memory, e);
    else if (status == DTP_OK)
        status = explain_program(job, &prediction->memory, e, faults);
    if (status != DTP_OK)
        return status;
    dtp_explain_layer(job, e);
    explain_device(&prediction->memory, &parts, e);
    return DTP_OK;
}
