#include "record/explain.h"

#include <math.h>
#include <stdarg.h>
#include <string.h>

void dtp_explain_group(struct dtp_explanation *e, const char *title, const char *words, enum dtp_explain_unit unit,
                       double total)
{
    if (e->group_count == DTP_EXPLAIN_GROUPS)
        return;
    struct dtp_term_group *group = &e->groups[e->group_count++];
    snprintf(group->title, sizeof group->title, "%s", title);
    snprintf(group->words, sizeof group->words, "%s", words);
    group->source[0] = '\0';
    group->unit = unit;
    group->total = total;
    group->first = e->term_count;
    group->count = 0;
}

void dtp_explain_source(struct dtp_explanation *e, const char *source)
{
    struct dtp_term_group *group = &e->groups[e->group_count - 1];
    snprintf(group->source, sizeof group->source, "%s", source);
}

static struct dtp_term *new_term(struct dtp_explanation *e, const char *name, const char *rule, double value)
{
    if (e->term_count == DTP_EXPLAIN_TERMS || e->group_count == 0)
        return NULL;
    struct dtp_term *term = &e->terms[e->term_count++];
    snprintf(term->name, sizeof term->name, "%s", name);
    snprintf(term->rule, sizeof term->rule, "%s", rule);
    term->numbers[0] = '\0';
    term->source = "";
    term->value = value;
    term->gap = false;
    e->groups[e->group_count - 1].count++;
    return term;
}

void dtp_explain_term(struct dtp_explanation *e, const char *name, const char *rule, double value, const char *numbers,
                      ...)
{
    struct dtp_term *term = value != 0 ? new_term(e, name, rule, value) : NULL;
    if (!term)
        return;
    va_list arguments;
    va_start(arguments, numbers);
    vsnprintf(term->numbers, sizeof term->numbers, numbers, arguments);
    va_end(arguments);
}

void dtp_explain_close(struct dtp_explanation *e, const char *name, const char *rule)
{
    const struct dtp_term_group *group = &e->groups[e->group_count - 1];
    double sum = 0;
    for (size_t i = 0; i < group->count; i++)
        sum += e->terms[group->first + i].value;
    double gap = group->total - sum, scale = fmax(fabs(group->total), fabs(sum));
    if (fabs(gap) <= 1e-9 * scale) /* the order of additions */
        return;
    struct dtp_term *term = new_term(e, name, rule, gap);
    if (term)
        term->gap = true;
}

/* ---- parameters and arithmetic ---------------------------------------------------------------------------------- */

#define ULL(value) ((unsigned long long)(value))

void dtp_explain_parameters(const struct dtp_job *job, struct dtp_explanation *e)
{
    const struct dtp_transformer *m = &job->transformer;
    const struct dtp_parameter_count c = dtp_transformer_count(m);
    uint64_t dense = m->layers - c.expert_layers;
    dtp_explain_group(e, "PARAMETERS", "psi", DTP_EXPLAIN_COUNT, (double)c.total);
    dtp_explain_term(e, "embedding", "V h", (double)c.embedding, "%llu x %llu", ULL(m->vocab), ULL(m->hidden));
    dtp_explain_term(e, "norm of the embedding", "h, with bias 2 h", (double)c.embedding_norm, "%llu",
                     ULL(c.embedding_norm));
    dtp_explain_term(e, "positions", "rows h", (double)c.position, "%llu x %llu", ULL(m->positions), ULL(m->hidden));
    dtp_explain_term(e, "matrices of the layers",
                     m->kv_latent                             ? "L (latent attention's + 3 h f)"
                     : dtp_activation_is_gated(m->activation) ? "L (2 h d_q + 2 h d_kv + 3 h f)"
                                                              : "L (2 h d_q + 2 h d_kv + 2 h f)",
                     (double)(dense * c.block_matmul), "%llu x %llu", ULL(dense), ULL(c.block_matmul));
    dtp_explain_term(e, "matrices of layers with experts",
                     m->kv_latent ? "L (latent attention's + h E + E x expert + shared experts)"
                                  : "L (2 h d_q + 2 h d_kv + h E + E x expert + shared experts)",
                     (double)(c.expert_layers * c.expert_block_matmul), "%llu x %llu", ULL(c.expert_layers),
                     ULL(c.expert_block_matmul));
    dtp_explain_term(e, "norms and biases of the layers", "L x vectors", (double)(dense * c.block_vectors),
                     "%llu x %llu", ULL(dense), ULL(c.block_vectors));
    dtp_explain_term(e, "norms and biases of layers with experts", "L x vectors",
                     (double)(c.expert_layers * c.expert_block_vectors), "%llu x %llu", ULL(c.expert_layers),
                     ULL(c.expert_block_vectors));
    dtp_explain_term(e, "final norm", "h, with bias 2 h", (double)c.final_norm, "%llu", ULL(c.final_norm));
    uint64_t bias = m->head_bias ? m->vocab : 0;
    dtp_explain_term(e, "output head", "V h; none when tied", (double)(c.head - bias), "%llu x %llu", ULL(m->vocab),
                     ULL(m->hidden));
    dtp_explain_term(e, "around the layer that predicts further ahead", "2 h h + 3 norms", (double)c.ahead,
                     "%llu of %llu x %llu", ULL(m->ahead_layers), ULL(2 * m->hidden), ULL(m->hidden));
    dtp_explain_term(e, "bias of the output head", "V", (double)bias, "%llu", ULL(bias));
    dtp_explain_close(e, "other", "");
}

static void explain_whole(const struct dtp_transformer *m, const struct dtp_parameter_count *counted, double tokens,
                          struct dtp_explanation *e)
{
    const struct dtp_parameter_count c = *counted;
    dtp_explain_term(e, "matmuls of the layers",
                     c.expert_layers ? "6 x weights a token meets x tokens" : "6 x weights x tokens",
                     6.0 * (double)c.layers_matmul * tokens, "6 x %.5g x %.0f", (double)c.layers_matmul, tokens);
    dtp_explain_term(e, "output head", "6 V h x tokens", 6.0 * (double)(m->vocab * m->hidden) * tokens,
                     "6 x %llu x %llu x %.0f", ULL(m->vocab), ULL(m->hidden), tokens);
    dtp_explain_term(e, "head and projection of what predicts further ahead", "6 (V h + 2 h h) x tokens",
                     6.0 * (double)(m->ahead_layers * (m->vocab + 2 * m->hidden) * m->hidden) * tokens,
                     "%llu x 6 x %llu x %llu x %.0f", ULL(m->ahead_layers), ULL(m->vocab + 2 * m->hidden),
                     ULL(m->hidden), tokens);
}

/* A frozen weight takes 2 forward and 2 for the gradient of what it reads, a trained one 2 more. */
static void explain_adapted(const struct dtp_job *job, double tokens, struct dtp_explanation *e)
{
    const struct dtp_transformer *m = &job->transformer;
    const struct dtp_parameter_count c = dtp_transformer_count(m);
    struct dtp_trained_count count;
    int head = job->plan.adapters.train_ends ? 6 : 4;
    dtp_plan_trained(m, &job->plan, &count);
    dtp_explain_term(e, "frozen matmuls of the layers", "4 x weights x tokens", 4.0 * (double)c.layers_matmul * tokens,
                     "4 x %.5g x %.0f", (double)c.layers_matmul, tokens);
    dtp_explain_term(e, "adapters", "6 x weights x tokens", 6.0 * (double)count.active_adapters * tokens,
                     "6 x %llu x %.0f", ULL(count.active_adapters), tokens);
    dtp_explain_term(e, "output head", "4 V h x tokens, 6 where it is trained",
                     head * (double)(m->vocab * m->hidden) * tokens, "%d x %llu x %llu x %.0f", head, ULL(m->vocab),
                     ULL(m->hidden), tokens);
}

void dtp_explain_arithmetic(const struct dtp_job *job, struct dtp_explanation *e)
{
    const struct dtp_transformer *m = &job->transformer;
    const struct dtp_parameter_count c = dtp_transformer_count(m);
    const struct dtp_plan *p = &job->plan;
    double parts = (double)p->tp * p->cp * p->pp; /* ranks that share these tokens' work */
    double tokens = (double)p->micro_batch * (double)p->accumulate * (double)p->sequence / parts;
    double width = dtp_transformer_core_width(m), s = dtp_transformer_attention_length(m, p->sequence);
    bool windowed = dtp_transformer_layer_window(m, 0, p->sequence) > 0 && !m->chunked_attention;
    dtp_explain_group(e, "MODEL FLOPS",
                      parts > 1 ? "of an average GPU per step: 2 and 4 per weight and token; tokens over tp cp pp"
                                : "of one GPU per step: forward 2 and backward 4 per weight and token",
                      DTP_EXPLAIN_FLOPS, tokens * dtp_plan_model_flops_per_token(m, p));
    dtp_explain_source(e, "Megatron-LM num_floating_point_operations, torchtitan: causal attention half, no recompute");
    if (dtp_plan_adapts(p))
        explain_adapted(job, tokens, e);
    else
        explain_whole(m, &c, tokens, e);
    dtp_explain_term(e, "attention, causal half",
                     m->kv_latent           ? "3 L (keys + values of all heads) s x tokens"
                     : m->chunked_attention ? "6 L d_q a x tokens; a: the mean of chunks and whole sequences"
                     : windowed             ? "6 L d_q a x tokens; window w: a = 2 w - w^2 / s"
                                            : "6 L d_q s x tokens",
                     6.0 * (double)m->layers * width * s * tokens, "6 x %llu x %.0f x %.6g x %.0f", ULL(m->layers),
                     width, s, tokens);
    dtp_explain_close(e, "other", "");
}

enum dtp_status dtp_explain(const struct dtp_job *job, const struct dtp_prediction *prediction,
                            struct dtp_explanation *out, struct dtp_faults *faults)
{
    out->term_count = 0;
    out->group_count = 0;
    dtp_explain_parameters(job, out);
    enum dtp_status status = dtp_explain_memory(job, prediction, out, faults);
    if (status != DTP_OK)
        return status;
    dtp_explain_communication(job, prediction, out);
    dtp_explain_arithmetic(job, out);
    dtp_explain_time(job, prediction, out);
    return DTP_OK;
}
