/* The lines that say what is planned: the model, the cluster, the plan. */
#include "record/report.h"

#include "job/scenario_keys.h"
#include "machine/measured.h"
#include "plan/rules.h"

#include "base/append.h"
#include "base/number.h"

#include <string.h>

static void print_label(const struct dtp_page *page, const char *label)
{
    dtp_page_print(page, DTP_INK_BOLD, "%-9s", label);
}

/* What was chosen by a rule and not by the user. */
static void print_note(const struct dtp_page *page, const char *note)
{
    if (!note[0])
        return;
    fprintf(page->file, "%9s", "");
    dtp_page_ink(page, DTP_INK_DIM);
    dtp_page_wrap(page, 9, 9, note);
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
    case DTP_GELU:
    case DTP_GELU_NEW: return "GELU";
    case DTP_RELU: return "ReLU";
    case DTP_SWIGLU: return "SwiGLU";
    case DTP_GEGLU: return "GEGLU";
    case DTP_RELU2: return "squared ReLU";
    case DTP_SWIGLU_CLAMPED: return "clamped SwiGLU";
    }
    return "";
}

/* ", latents of 1536 for q and 512 for k, v, 256 experts of 2048 and one of 2048 for all, 8 a token, in 58 layers". */
static void describe_experts(const struct dtp_transformer *m, char *out, size_t bytes)
{
    const struct dtp_parameter_count count = dtp_transformer_count(m);
    const uint64_t experts = dtp_transformer_expert_layers(m, m->layers);
    char active[32], latents[112] = "", q[40] = "", shared[48] = "", layers[32] = "";
    if (m->q_latent)
        snprintf(q, sizeof q, "%llu for q and ", (unsigned long long)m->q_latent);
    if (m->kv_latent)
        snprintf(latents, sizeof latents, ", latents of %s%llu for k, v", q, (unsigned long long)m->kv_latent);
    if (m->shared_expert_ffn)
        snprintf(shared, sizeof shared, " and one of %llu for all", (unsigned long long)m->shared_expert_ffn);
    if (experts < m->layers)
        snprintf(layers, sizeof layers, " in %llu layer%s", (unsigned long long)experts, dtp_plural(experts));
    if (!m->experts)
        snprintf(out, bytes, "%s", latents);
    else
        snprintf(out, bytes, "%s, %llu expert%s of %llu%s, %llu a token%s: %s parameters active", latents,
                 (unsigned long long)m->experts, dtp_plural(m->experts), (unsigned long long)m->expert_ffn, shared,
                 (unsigned long long)m->experts_per_token, layers,
                 dtp_page_grouped(count.active, active, sizeof active));
}

/* What few models have: ", QK-norm, window of 4096 tokens in all layers but one in 2". */
static void describe_details(const struct dtp_transformer *m, char *out, size_t bytes)
{
    static const char *const blocks[] = {[DTP_PARALLEL_NONE] = "",
                                         [DTP_PARALLEL_ONE_NORM] = ", attention and MLP side by side behind one norm",
                                         [DTP_PARALLEL_TWO_NORMS] =
                                             ", attention and MLP side by side behind two norms"};
    static const char *const places[] = {[DTP_NORMS_BEFORE] = "",
                                         [DTP_NORMS_AFTER] = ", norms behind attention and MLP",
                                         [DTP_NORMS_BOTH] = ", norms before and behind attention and MLP"};
    char window[120] = "", every[40] = "", caps[120] = "", experts[400];
    describe_experts(m, experts, sizeof experts);
    if (m->sliding_window_pattern > 1)
        snprintf(every, sizeof every, " but one in %llu", (unsigned long long)m->sliding_window_pattern);
    if (m->sliding_window)
        snprintf(window, sizeof window, ", %s of %llu tokens in all layers%s",
                 m->chunked_attention ? "attention in chunks" : "window", (unsigned long long)m->sliding_window, every);
    if (m->attention_softcap > 0 && m->final_softcap > 0)
        snprintf(caps, sizeof caps, ", soft caps %g of scores and %g of logits", m->attention_softcap,
                 m->final_softcap);
    else if (m->attention_softcap > 0)
        snprintf(caps, sizeof caps, ", soft cap %g of scores", m->attention_softcap);
    else if (m->final_softcap > 0)
        snprintf(caps, sizeof caps, ", soft cap %g of logits", m->final_softcap);
    snprintf(out, bytes, "%s%s%s%s%s%s%s%s", experts, blocks[m->parallel_block], places[m->norm_place],
             m->qk_norm_wide    ? ", QK-norm over all heads"
             : m->qk_layer_norm ? ", QK-LayerNorm"
             : m->qk_norm       ? ", QK-norm"
                                : "",
             m->norm_unit_offset      ? ", norms with a unit offset"
             : m->norm_without_weight ? ", norms without weights"
                                      : "",
             m->embedding_scale ? ", scaled embedding" : "", window, caps);
}

static void print_model(const struct dtp_job *job, const struct dtp_page *page)
{
    const struct dtp_transformer told = dtp_transformer_told(&job->transformer), *m = &told;
    char line[1800], count[32], kv[48] = "", details[1000], ahead[96] = "";
    describe_details(m, details, sizeof details);
    if (m->mtp_layers)
        snprintf(ahead, sizeof ahead, "; %llu layer%s more to predict a token further ahead",
                 (unsigned long long)m->mtp_layers, dtp_plural(m->mtp_layers));
    if (m->kv_heads != m->heads)
        snprintf(kv, sizeof kv, " (%llu for k, v)", (unsigned long long)m->kv_heads);
    print_label(page, "model");
    snprintf(
        line, sizeof line,
        "%s: %s parameters; %llu layer%s, hidden %llu, %llu head%s of %llu%s, ffn %llu, vocab %llu; %s, %s, %s, %s "
        "head%s%s",
        m->name[0] ? m->name : "custom", dtp_page_grouped(dtp_transformer_count(m).total, count, sizeof count),
        (unsigned long long)m->layers, dtp_plural(m->layers), (unsigned long long)m->hidden,
        (unsigned long long)m->heads, dtp_plural(m->heads), (unsigned long long)m->head_dim, kv,
        (unsigned long long)m->ffn, (unsigned long long)m->vocab, m->norm == DTP_RMS_NORM ? "RMSNorm" : "LayerNorm",
        activation_words(m->activation), position_words(m->position), m->tied_head ? "tied" : "untied", details, ahead);
    dtp_page_wrap(page, 9, 9, line);
    print_note(page, job->shape_note);
    print_note(page, job->model_note);
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

/* Where the times come from: "; machine.csv, measured 2026-11-21 on 4 x NVIDIA H200". */
static void describe_measured(const struct dtp_cluster *c, const struct dtp_page *page, char *out, size_t bytes)
{
    if (!c->measured)
        return;
    const char *path = dtp_measured_name(c->measured), *slash = strrchr(path, '/');
    const char *date = dtp_measured_about(c->measured, "date"), *gpu = dtp_measured_about(c->measured, "gpu");
    uint32_t gpus = dtp_measured_count(c->measured, "gpus");
    snprintf(out, bytes, "; times of %.100s, measured%s%.40s on %u %s %.100s", slash ? slash + 1 : path,
             date ? " " : "", date ? date : "", gpus ? gpus : 1, dtp_page_times(page), gpu ? gpu : c->gpu.name);
}

const char *const dtp_report_no_times = "no time is predicted, for nobody measured these cores: dtplan probe --device "
                                        "host -o here.csv does in a minute, and --machine here.csv takes it from there";

static void print_cluster(const struct dtp_job *job, const struct dtp_page *page)
{
    const struct dtp_cluster *c = &job->cluster;
    char line[1000], link[80] = "", network[120] = "", measured[400] = "";
    if (c->gpus_per_node > 1)
        snprintf(link, sizeof link, "; %s %.0f GB/s each way per GPU", link_words(dtp_cluster_link(c)),
                 dtp_cluster_link_bytes_per_s(c) / 1e9);
    if (c->nodes > 1)
        snprintf(network, sizeof network, "; network %.0f Gb/s per node (%.1f GB/s per GPU)%s%s",
                 c->machine.network_bytes_per_s * 8e-9, dtp_cluster_network_bytes_per_s(c) / c->gpus_per_node / 1e9,
                 c->network == DTP_NETWORK_SOCKETS ? " on sockets"
                 : c->network == DTP_NETWORK_EFA   ? " of EFA"
                 : c->network == DTP_NETWORK_OPA   ? " of Omni-Path"
                                                   : "",
                 c->oversubscription > 1 ? ", oversubscribed" : "");
    describe_measured(c, page, measured, sizeof measured);
    if (dtp_cluster_is_host(c))
        snprintf(line, sizeof line, "%u %s %s, %u %s (%s)%s", c->gpus, dtp_page_times(page), c->gpu.name, c->nodes,
                 c->nodes == 1 ? "node" : "pretended nodes", c->machine.name, measured);
    else
        snprintf(line, sizeof line, "%u %s %s, %u %s (%s)%s%s%s", c->gpus, dtp_page_times(page), c->gpu.name, c->nodes,
                 c->nodes == 1 ? "node" : "nodes", c->machine.name, link, network, measured);
    print_label(page, "cluster");
    dtp_page_wrap(page, 9, 9, line);
    print_note(page, job->cluster_note);
    if (!dtp_cluster_has_times(c))
        print_note(page, dtp_report_no_times);
}

void dtp_report_runtime_words(const struct dtp_plan *plan, char *out, size_t bytes)
{
    if (plan->runtime->words)
        plan->runtime->words(plan, out, bytes);
    else
        snprintf(out, bytes, "%s", plan->runtime->name);
}

/* "full_shard over 8 GPUs, torch FSDP2 eager, ". */
static void strategy_words(const struct dtp_job *job, char *out, size_t bytes)
{
    const struct dtp_plan *p = &job->plan;
    char runtime[64], group[64] = "", tensor[64] = "", context[64] = "", experts[80] = "", chunks[32] = "",
                      stages[256] = "";
    dtp_report_runtime_words(p, runtime, sizeof runtime);
    if (p->strategy != DTP_DDP && job->cluster.gpus > 1)
        snprintf(group, sizeof group, " over %u GPUs%s", p->shard_group,
                 p->shard_group < dtp_plan_data_ranks(p, &job->cluster) ? " of each replica" : "");
    if (p->tp > 1)
        snprintf(tensor, sizeof tensor, "tensor parallel %u%s, ", p->tp,
                 p->sequence_parallel ? " with sequence parallel" : "");
    if (p->cp > 1)
        snprintf(context, sizeof context, "context parallel %u (%s), ", p->cp, dtp_cp_comm_text(p->cp_comm));
    if (p->ep > 1)
        snprintf(experts, sizeof experts, "experts divided among %u GPUs, ", p->ep);
    if (p->megatron.etp > 1)
        snprintf(experts, sizeof experts, "experts divided among %u GPUs and each among %u, ", p->ep, p->megatron.etp);
    if (p->pp > 1 && p->virtual_stages > 1)
        snprintf(chunks, sizeof chunks, ", %u chunks each", p->virtual_stages);
    if (p->pp > 1)
        snprintf(stages, sizeof stages, "pipeline of %u ranks (%s%s%s%s), ", p->pp, dtp_schedule_row(p->schedule)->word,
                 chunks, p->stages.cut == DTP_STAGE_CUT_EVEN ? "" : ", stages ",
                 p->stages.cut == DTP_STAGE_CUT_EVEN ? "" : dtp_stage_choice_text(&p->stages));
    snprintf(out, bytes, "%s%s%s%s%s%s, %s, ", tensor, context, experts, stages, dtp_strategy_text(p->strategy), group,
             runtime);
}

/* ", gather_engine copy": a key and its value, of a switch the key alone. */
static size_t choice_words(enum dtp_key key, const struct dtp_draft *draft, char *out, size_t bytes)
{
    struct dtp_job_value value;
    char text[32] = "";
    dtp_key_value(key, draft, &value);
    switch (value.kind) {
    case DTP_VALUE_WORD: snprintf(text, sizeof text, " %s", value.word); break;
    case DTP_VALUE_WHOLE: snprintf(text, sizeof text, " %llu", (unsigned long long)value.whole); break;
    case DTP_VALUE_REAL: snprintf(text, sizeof text, " %.15g", value.real); break;
    case DTP_VALUE_SWITCH: snprintf(text, sizeof text, "%s", value.whole ? "" : " false"); break;
    }
    return (size_t)snprintf(out, bytes, ", %s%s", dtp_key_name(key), text);
}

/* What the executor alone reads, clip_norm, and what moves activations and logits, where they are not the default. */
static void executor_words(const struct dtp_plan *plan, char *out, size_t bytes)
{
    const struct dtp_draft draft = {.plan = *plan}, standard = {.plan = dtp_plan_unchosen()};
    size_t used = 0;
    out[0] = '\0';
    for (int key = 0; key < DTP_KEY_COUNT && used < bytes; key++) {
        enum dtp_key_reader reader = dtp_key_reader((enum dtp_key)key);
        const bool moves = key == DTP_KEY_activation_offload || key == DTP_KEY_gathered_logits;
        if ((moves || reader == DTP_READER_EXECUTOR || reader == DTP_READER_EXECUTOR_NORM ||
             reader == DTP_READER_CLIPPED) &&
            !dtp_key_same((enum dtp_key)key, &draft, &standard))
            used += choice_words((enum dtp_key)key, &draft, out + used, bytes - used);
    }
}

/* "math attention", "math attention, dropout 0.1". */
static void attention_words(const struct dtp_plan *plan, char *out, size_t bytes)
{
    int used = snprintf(out, bytes, "%s attention", dtp_attention_text(plan->attention));
    if (plan->dropout > 0)
        snprintf(out + used, bytes - (size_t)used, ", dropout %g", plan->dropout);
}

static void print_plan(const struct dtp_job *job, enum dtp_head head, const struct dtp_page *page)
{
    const struct dtp_plan *p = &job->plan;
    const char *times = dtp_page_times(page);
    char line[2200], strategy[1024] = "", checkpointing[48], attention[64], executor[600], tokens[32];
    uint32_t ranks = dtp_plan_data_ranks(p, &job->cluster);
    const char *what = dtp_plan_model_parallel(p) || p->cp > 1 ? "data-parallel rank" : "GPU";
    if (head == DTP_HEAD_PLAN)
        strategy_words(job, strategy, sizeof strategy);
    dtp_checkpointing_text(p, checkpointing, sizeof checkpointing);
    attention_words(p, attention, sizeof attention);
    executor_words(p, executor, sizeof executor);
    uint64_t step_tokens = dtp_job_batch_sequences(job) * p->sequence;
    snprintf(line, sizeof line,
             "%s%s; %s, %s cross entropy, %s, checkpointing %s, offload %s%s; micro batch %u %s %llu tokens "
             "%s accumulate %u %s %u %s%s = %s tokens a step",
             strategy, dtp_precision_name(&p->precision), attention, dtp_loss_text(p->loss),
             dtp_optimizer_text(p->optimizer), checkpointing, dtp_offload_text(p->offload), executor, p->micro_batch,
             times, (unsigned long long)p->sequence, times, p->accumulate, times, ranks, what, dtp_plural(ranks),
             dtp_page_grouped(step_tokens, tokens, sizeof tokens));
    print_label(page, "plan");
    dtp_page_wrap(page, 9, 9, line);
    if (head == DTP_HEAD_PLAN)
        print_note(page, job->plan_note);
}

/* What is trained and what is frozen, where adapters are. */
static void print_trained(const struct dtp_job *job, const struct dtp_page *page)
{
    const struct dtp_adapter_choice *a = &job->plan.adapters;
    char line[600], targets[DTP_TARGETS_BYTES], trained[32], frozen[32];
    struct dtp_trained_count count;
    if (!a->rank)
        return;
    dtp_plan_trained(&job->transformer, &job->plan, &count);
    dtp_targets_text(a->targets, targets);
    bool packed = a->base != DTP_BASE_NONE;
    const char *params = dtp_dtype_text(job->plan.precision.params), *rest = packed ? ", the rest in " : "";
    if (dtp_plan_widens_ends(&job->plan))
        params = dtp_dtype_text(DTP_FP32);
    else if (dtp_plan_widens_norms(&job->plan))
        rest = ", norms and biases in fp32, the rest in ";
    snprintf(
        line, sizeof line,
        "%s parameters, %.2g %% of all: adapters (LoRA) of rank %u on %s%s, in %s%s; %s are frozen, %.2f GiB: %s%s%s%s",
        dtp_page_grouped(count.trained, trained, sizeof trained),
        100 * (double)count.trained / (double)(count.trained + count.frozen), a->rank,
        a->targets == DTP_TARGETS_ALL ? "all linears of the layers" : targets,
        a->targets == DTP_TARGETS_ATTENTION ? "'s linears"
        : a->targets == DTP_TARGETS_ALL && job->transformer.experts && !dtp_plan_calls_experts(&job->plan)
            ? (a->parameters ? ", experts' parameters beside" : ", of which experts are none")
            : "",
        dtp_dtype_text(a->dtype), a->train_ends ? ", with embedding and head" : "",
        dtp_page_grouped(count.frozen, frozen, sizeof frozen), (double)count.frozen_bytes / (double)(1 << 30),
        packed ? "the layers' matrices in " : "in ", packed ? dtp_base_text(a->base) : params, rest,
        packed ? params : "");
    print_label(page, "trains");
    dtp_page_wrap(page, 9, 9, line);
}

void dtp_report_head(const struct dtp_job *job, enum dtp_head head, const struct dtp_page *page)
{
    print_model(job, page);
    print_cluster(job, page);
    print_plan(job, head, page);
    print_trained(job, page);
}
