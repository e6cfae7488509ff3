/* Memory: the record of what the closed form added up (memory_parts.h), the tensors owner by owner. */
#include "record/explain.h"

#include "closed/activations.h"
#include "closed/memory_parts.h"

#include <string.h>

#define ULL(value) ((unsigned long long)(value))

struct part_list {
    const struct dtp_memory_part *parts[DTP_MEMORY_PARTS];
    size_t count;
};

/* Appends " x " and the text of the next factor. */
static void append_factor(char *out, size_t bytes, const char *factor)
{
    size_t used = strlen(out);
    snprintf(out + used, bytes - used, "%s%s", used ? " x " : "", factor);
}

/* One part: its factors in symbols and in numbers. A node has `times` of it. */
static void explain_part(const struct dtp_memory_part *part, const char *owner, uint64_t times,
                         struct dtp_explanation *e)
{
    const struct dtp_memory_term_words *words = &dtp_memory_terms[part->term];
    char name[64], rule[112], numbers[128], number[40];
    double bytes = (double)times * (double)part->bytes;
    snprintf(name, sizeof name, "%s%s%s", owner, *owner ? ": " : "", words->words);
    snprintf(rule, sizeof rule, "%s", times > 1 ? "GPUs" : "");
    *numbers = 0;
    if (times > 1)
        snprintf(numbers, sizeof numbers, "%llu", ULL(times));
    for (int i = 0; i < DTP_MEMORY_FACTORS; i++) {
        if (!*words->factors[i])
            continue;
        snprintf(number, sizeof number, "%llu%s", ULL(part->factors[i]), i + 1 == DTP_MEMORY_FACTORS ? " B" : "");
        append_factor(rule, sizeof rule, words->factors[i]);
        append_factor(numbers, sizeof numbers, number);
    }
    dtp_explain_term(e, name, rule, part->taken ? -bytes : bytes, "%s", numbers);
    e->terms[e->term_count - 1].source = words->source;
}

/* ---- sources ---------------------------------------------------------------------------------------------------- */

/* Length of the project's name in "project: file". */
static size_t project_length(const char *source)
{
    const char *colon = strchr(source, ':');
    return colon ? (size_t)(colon - source) : strlen(source);
}

static bool same_project(const char *a, const char *b)
{
    return project_length(a) == project_length(b) && strncmp(a, b, project_length(a)) == 0;
}

static const char *source_of(const struct part_list *list, size_t i)
{
    return dtp_memory_terms[list->parts[i]->term].source;
}

/* True where no part before number `i` has its source, or none of the same project. */
static bool is_first(const struct part_list *list, size_t i, bool project)
{
    for (size_t before = 0; before < i; before++) {
        const char *a = source_of(list, before), *b = source_of(list, i);
        if (project ? same_project(a, b) : strcmp(a, b) == 0)
            return false;
    }
    return true;
}

/* Every source of the newest group once: "project: file, file; project: file". */
static void explain_sources(const struct part_list *list, struct dtp_explanation *e)
{
    char text[sizeof e->groups[0].source] = "";
    for (size_t i = 0; i < list->count; i++) {
        const char *project = source_of(list, i);
        if (!*project || !is_first(list, i, true))
            continue;
        size_t used = strlen(text);
        snprintf(text + used, sizeof text - used, "%s%s", used ? "; " : "", project);
        for (size_t k = i + 1; k < list->count; k++) {
            const char *source = source_of(list, k);
            used = strlen(text);
            if (same_project(source, project) && source[project_length(source)] && is_first(list, k, false))
                snprintf(text + used, sizeof text - used, ",%s", source + project_length(source) + 1);
        }
    }
    dtp_explain_source(e, text);
}

/* ---- groups ----------------------------------------------------------------------------------------------------- */

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

static void explain_peak(const struct dtp_job *job, const struct dtp_memory *m, const struct dtp_memory_parts *parts,
                         struct dtp_explanation *e)
{
    struct part_list list;
    char words[112];
    list.count = dtp_memory_parts_of(parts, DTP_ACCOUNT_PEAK, list.parts, DTP_MEMORY_PARTS);
    snprintf(words, sizeof words, "allocated on one GPU at the %s", dtp_phase_words(m->peak_phase));
    dtp_explain_group(e, "MEMORY AT THE PEAK", words, DTP_EXPLAIN_BYTES, (double)m->allocated_peak_bytes);
    if (job->plan.runtime->arena)
        dtp_explain_source(e, "dtplan's own executor: buffers placed before the step starts");
    else
        explain_sources(&list, e);
    for (enum dtp_owner owner = 0; owner < DTP_OWNER_COUNT; owner++)
        for (size_t i = 0; i < list.count; i++)
            if (dtp_memory_terms[list.parts[i]->term].owner == owner)
                explain_part(list.parts[i], owner_words(owner), 1, e);
    dtp_explain_close(e, "other", "");
}

/* The parts of one account in the newest group. */
static void explain_account(const struct dtp_memory_parts *parts, enum dtp_memory_account account, uint64_t times,
                            struct dtp_explanation *e)
{
    struct part_list list;
    list.count = dtp_memory_parts_of(parts, account, list.parts, DTP_MEMORY_PARTS);
    explain_sources(&list, e);
    for (size_t i = 0; i < list.count; i++)
        explain_part(list.parts[i], "", times, e);
    dtp_explain_close(e, "other", "");
}

static void explain_layer(const struct dtp_job *job, struct dtp_explanation *e)
{
    const struct dtp_transformer *m = &job->transformer;
    struct dtp_activations activations;
    if (job->plan.runtime->arena) /* its peak is written down tensor by tensor already */
        return;
    const struct dtp_activations *a = &activations;
    dtp_activations_count(m, &job->cluster, &job->plan, &activations);
    dtp_explain_group(e, "SAVED FOR BACKWARD", "bytes of one token in one layer, nothing recomputed", DTP_EXPLAIN_BYTES,
                      (double)a->layer_all);
    dtp_explain_source(e, "what autograd keeps: PyTorch tools/autograd/derivatives.yaml; Korthikanti et al. 2022");
    dtp_explain_term(e, "residual stream", "x and x + attention",
                     (double)(a->layer_all - a->layer_norms - a->layer_attention - a->layer_mlp), "; h = %llu",
                     ULL(m->hidden));
    dtp_explain_term(e, "norms", "2 results and their statistics", (double)a->layer_norms, "; h = %llu",
                     ULL(m->hidden));
    dtp_explain_term(e, "attention", "q, k, v, result, statistics of the softmax", (double)a->layer_attention,
                     "; d_q = %llu, d_kv = %llu", ULL(m->heads * m->head_dim), ULL(m->kv_heads * m->head_dim));
    dtp_explain_term(e, "MLP", "inputs of the activation and of the last matmul", (double)a->layer_mlp, "; f = %llu",
                     ULL(m->ffn));
    dtp_explain_close(e, "other", "");
}

static void explain_device(const struct dtp_memory *m, const struct dtp_memory_parts *parts, struct dtp_explanation *e)
{
    dtp_explain_group(e, "RESERVED MEMORY", "the allocator's segments", DTP_EXPLAIN_BYTES,
                      (double)m->reserved_peak_bytes);
    explain_account(parts, DTP_ACCOUNT_RESERVED, 1, e);
    dtp_explain_group(e, "DEVICE MEMORY", "what the driver reports as used", DTP_EXPLAIN_BYTES,
                      (double)m->device_peak_bytes);
    dtp_explain_term(e, "reserved", "the allocator's segments, as above", (double)m->reserved_peak_bytes, "%llu B",
                     ULL(m->reserved_peak_bytes));
    explain_account(parts, DTP_ACCOUNT_DRIVER, 1, e);
    if (m->host_bytes > 0) {
        dtp_explain_group(e, "HOST MEMORY", "of a node", DTP_EXPLAIN_BYTES, (double)m->host_bytes);
        explain_account(parts, DTP_ACCOUNT_HOST, parts->node_gpus, e);
    }
    if (m->nvme_bytes > 0) {
        dtp_explain_group(e, "NVME", "of a node", DTP_EXPLAIN_BYTES, (double)m->nvme_bytes);
        explain_account(parts, DTP_ACCOUNT_NVME, parts->node_gpus, e);
    }
}

void dtp_explain_memory(const struct dtp_job *job, const struct dtp_prediction *prediction, struct dtp_explanation *e)
{
    struct dtp_memory_parts parts;
    struct dtp_memory memory;
    dtp_closed_form_memory_parts(&job->transformer, &job->cluster, &job->plan, &memory, &parts);
    explain_peak(job, &prediction->memory, &parts, e);
    explain_layer(job, e);
    explain_device(&prediction->memory, &parts, e);
}
