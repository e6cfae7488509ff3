/* The lines that say what is planned: the model, the cluster, the plan. */
#include "report.h"

#include "number.h"

#include <string.h>

static void print_label(const struct dtp_page *page, const char *label)
{
    dtp_page_ink(page, DTP_INK_BOLD);
    fprintf(page->file, "%-9s", label);
    dtp_page_ink(page, DTP_INK_PLAIN);
}

static const char *position_words(enum dtp_position position)
{
    switch (position) {
    case DTP_POSITION_LEARNED: return "learned positions";
    case DTP_POSITION_ROPE: return "RoPE";
    case DTP_POSITION_ALIBI: return "ALiBi";
    case DTP_POSITION_NONE: return "no positions";
    }
    return "";
}

static const char *activation_words(enum dtp_activation activation)
{
    switch (activation) {
    case DTP_GELU: return "GELU";
    case DTP_RELU: return "ReLU";
    case DTP_SWIGLU: return "SwiGLU";
    }
    return "";
}

static void print_model(const struct dtp_job *job, const struct dtp_page *page)
{
    const struct dtp_transformer *m = &job->transformer;
    char line[400], count[32], kv[48] = "";
    if (m->kv_heads != m->heads)
        snprintf(kv, sizeof kv, " (%llu for k, v)", (unsigned long long)m->kv_heads);
    print_label(page, "model");
    snprintf(line, sizeof line,
             "%s: %s parameters; %llu layers, hidden %llu, %llu heads of %llu%s, ffn %llu, vocab %llu; %s, %s, %s, %s head",
             m->name[0] ? m->name : "custom",
             dtp_page_grouped(dtp_transformer_count(m).total, count, sizeof count), (unsigned long long)m->layers,
             (unsigned long long)m->hidden, (unsigned long long)m->heads, (unsigned long long)m->head_dim, kv,
             (unsigned long long)m->ffn, (unsigned long long)m->vocab, m->norm == DTP_RMS_NORM ? "RMSNorm" : "LayerNorm",
             activation_words(m->activation), position_words(m->position), m->tied_head ? "tied" : "untied");
    dtp_page_wrap(page, 9, 9, line);
    if (job->shape_note[0]) {
        fprintf(page->file, "%9s", "");
        dtp_page_ink(page, DTP_INK_DIM);
        dtp_page_wrap(page, 9, 9, job->shape_note);
        dtp_page_ink(page, DTP_INK_PLAIN);
    }
}

static const char *link_words(enum dtp_link link)
{
    switch (link) {
    case DTP_LINK_NONE: return "no link";
    case DTP_LINK_NVLINK: return "NVLink";
    case DTP_LINK_PCIE: return "PCIe";
    case DTP_LINK_XGMI: return "xGMI";
    }
    return "";
}

static void print_cluster(const struct dtp_job *job, const struct dtp_page *page)
{
    const struct dtp_cluster *c = &job->cluster;
    const struct dtp_machine *machine = &c->machine;
    enum dtp_link link = machine->link != DTP_LINK_NONE ? machine->link : c->gpu.link;
    double link_rate = machine->gpu_peer_bytes_per_s > 0 ? machine->gpu_peer_bytes_per_s : c->gpu.link_bytes_per_s;
    if (link == DTP_LINK_NONE || !(link_rate > 0)) { /* no link of its own: peers talk over the host link */
        link = DTP_LINK_PCIE;
        link_rate = c->gpu.pcie_bytes_per_s;
    }
    char line[400];
    int used = snprintf(line, sizeof line, "%u %s %s, %u %s (%s)", c->gpus, dtp_page_times(page), c->gpu.name, c->nodes,
                        c->nodes == 1 ? "node" : "nodes", machine->name);
    if (c->gpus_per_node > 1 && used > 0 && (size_t)used < sizeof line)
        used += snprintf(line + used, sizeof line - (size_t)used, "; %s %.0f GB/s each way per GPU", link_words(link),
                         link_rate / 1e9);
    if (c->nodes > 1 && used > 0 && (size_t)used < sizeof line)
        snprintf(line + used, sizeof line - (size_t)used, "; network %.0f Gb/s per node (%.1f GB/s per GPU)%s",
                 machine->network_bytes_per_s * 8e-9, machine->network_bytes_per_s / c->gpus_per_node / 1e9,
                 c->oversubscription > 1 ? ", oversubscribed" : "");
    print_label(page, "cluster");
    dtp_page_wrap(page, 9, 9, line);
}

void dtp_report_runtime_words(const struct dtp_plan *plan, char *out, size_t bytes)
{
    const char *how = dtp_runtime_text(plan->runtime), *what = "";
    if (plan->runtime == DTP_RUNTIME_TORCH) {
        bool fsdp = plan->strategy != DTP_DDP && plan->strategy != DTP_ZERO1;
        what = fsdp ? (plan->fsdp1 ? " FSDP1" : " FSDP2") : plan->strategy == DTP_DDP ? " DDP" : " ZeroRedundancyOptimizer";
    }
    snprintf(out, bytes, "%s%s%s", how, what,
             plan->runtime != DTP_RUNTIME_TORCH ? "" : plan->compile ? " compiled" : " eager");
}

void dtp_report_plan_words(const struct dtp_job *job, const struct dtp_page *page, char *out, size_t bytes)
{
    const struct dtp_plan *p = &job->plan;
    char runtime[64], checkpointing[48], group[64] = "", tokens[32];
    dtp_report_runtime_words(p, runtime, sizeof runtime);
    dtp_checkpointing_text(p, checkpointing, sizeof checkpointing);
    if (p->strategy != DTP_DDP && job->cluster.gpus > 1)
        snprintf(group, sizeof group, " over %u%s", p->shard_group, p->shard_group < job->cluster.gpus ? " GPUs of each replica" : " GPUs");
    uint64_t step_tokens = (uint64_t)p->micro_batch * p->accumulate * p->sequence * job->cluster.gpus;
    snprintf(out, bytes,
             "%s%s, %s, %s; %s attention, %s loss, %s, checkpointing %s, offload %s; micro batch %u %s %llu tokens %s "
             "accumulate %u: %s tokens a step",
             dtp_strategy_text(p->strategy), group, runtime, dtp_precision_name(&p->precision),
             dtp_attention_text(p->attention), dtp_loss_text(p->loss), dtp_optimizer_text(p->optimizer), checkpointing,
             dtp_offload_text(p->offload), p->micro_batch, dtp_page_times(page), (unsigned long long)p->sequence,
             dtp_page_times(page), p->accumulate, dtp_page_grouped(step_tokens, tokens, sizeof tokens));
}

void dtp_report_head(const struct dtp_job *job, const struct dtp_page *page)
{
    char words[512];
    print_model(job, page);
    print_cluster(job, page);
    print_label(page, "plan");
    dtp_report_plan_words(job, page, words, sizeof words);
    dtp_page_wrap(page, 9, 9, words);
}
