/* What stands around experts' matmuls: who goes where, rows there and back, activations weighed. */
#include "kernels/activate.h"
#include "kernels/element.h"

#include <math.h>
#include <string.h>

/* A score that is no number is the least. */
static double score_of(const void *scores, enum dtp_element element, uint64_t i)
{
    double score = dtp_load(scores, element, i);
    return isnan(score) ? -INFINITY : score;
}

/* The largest of a token's scores, of experts in `groups`, that come behind (`last`, `expert`) in their order: less, or
 * as large with a higher number. */
static int32_t next_largest(const struct dtp_router_args *a, uint64_t token, uint32_t groups, double last,
                            int32_t expert)
{
    int32_t found = -1;
    double largest = 0;
    for (uint32_t e = 0; e < a->experts; e++) {
        if (a->groups_chosen && !(groups >> e / (a->experts / a->groups) & 1))
            continue;
        double score = score_of(a->scores, a->element, token * a->experts + e);
        bool behind = expert < 0 || score < last || (score <= last && (int32_t)e > expert);
        if (behind && (found < 0 || score > largest))
            found = (int32_t)e, largest = score;
    }
    return found;
}

/* p[e]: affinity to expert e of the token whose scores begin at `first`. */
static void affinities(const void *scores, enum dtp_element element, uint64_t first, uint32_t experts,
                       enum dtp_router_kind kind, double *p)
{
    double largest = -INFINITY, sum = 0;
    for (uint32_t e = 0; e < experts; e++)
        p[e] = dtp_load(scores, element, first + e), largest = fmax(largest, p[e]);
    for (uint32_t e = 0; e < experts; e++)
        sum += exp(p[e] - largest);
    for (uint32_t e = 0; e < experts; e++)
        p[e] = kind == DTP_ROUTER_KIND_SIGMOID ? dtp_sigmoid(p[e]) : exp(p[e] - largest) / sum;
}

/* How good a group of experts is for a token; in float, as the sums of GPUs are. */
static float group_score(const struct dtp_router_args *a, uint64_t token, uint32_t group)
{
    const uint32_t each = a->experts / a->groups;
    float first = -INFINITY, second = -INFINITY;
    for (uint64_t e = token * a->experts + group * each, end = e + each; e < end; e++) {
        const float score = (float)score_of(a->scores, a->element, e);
        second = fmaxf(second, fminf(first, score)), first = fmaxf(first, score);
    }
    return a->kind == DTP_ROUTER_KIND_SOFTMAX ? first
                                              : (float)(dtp_sigmoid((double)first) + dtp_sigmoid((double)second));
}

/* The groups that a token's experts may be of, a bit each. */
static uint32_t choose_groups(const struct dtp_router_args *a, uint64_t token)
{
    float score[DTP_ROUTER_GROUPS];
    uint32_t chosen = 0;
    for (uint32_t g = 0; g < a->groups && a->groups_chosen; g++)
        score[g] = group_score(a, token, g);
    for (uint32_t i = 0; i < a->groups_chosen; i++) {
        uint32_t best = a->groups;
        for (uint32_t g = 0; g < a->groups; g++)
            if (!(chosen >> g & 1) && (best == a->groups || score[g] > score[best]))
                best = g;
        chosen |= 1u << best;
    }
    return chosen;
}

static void choose(const struct dtp_router_args *a, uint64_t token, int32_t *expert)
{
    const uint32_t groups = choose_groups(a, token);
    double sum = (double)DTP_ROUTER_LEAST_SUM, last = 0, p[DTP_ROUTER_EXPERTS];
    affinities(a->scores, a->element, token * a->experts, a->experts, a->kind, p);
    for (uint32_t j = 0; j < a->chosen; j++) {
        expert[j] = a->in_turns ? (int32_t)((a->experts / a->chosen * j + token) % a->experts)
                                : next_largest(a, token, groups, last, j ? expert[j - 1] : -1);
        last = score_of(a->scores, a->element, token * a->experts + (uint32_t)expert[j]);
        sum += p[expert[j]];
    }
    for (uint32_t j = 0; j < a->chosen; j++)
        a->weights[token * a->chosen + j] = (float)((double)a->scale * p[expert[j]] / (a->normalise ? sum : 1));
}

int dtp_reference_router(void *self, const struct dtp_router_args *a, void *stream)
{
    (void)self, (void)stream;
    uint64_t rows = a->tokens * a->chosen;
    struct dtp_routes routes = dtp_routes_at(a->routes, rows);
    int32_t at = 0;
    for (uint64_t t = 0; t < a->tokens; t++)
        choose(a, t, routes.expert + t * a->chosen);
    for (uint32_t e = 0; e < a->experts; e++) {
        routes.starts[e] = at;
        for (uint64_t i = 0; i < rows; i++)
            if (routes.expert[i] == (int32_t)e) {
                routes.order[at] = (int32_t)i;
                routes.place[i] = at++;
            }
    }
    routes.starts[a->experts] = at;
    memset(routes.starts + a->experts + 1, 0, DTP_ROUTES_TURNS * sizeof *routes.starts);
    return 0;
}

/* With affinities p of all and weights scale p_j / S of the chosen: dL/dp_j = scale (g_j - sum of g w / scale) / S,
 * where they are not divided scale g_j; then through the softmax or each sigmoid. */
int dtp_reference_router_backward(void *self, const struct dtp_router_backward_args *a, void *stream)
{
    (void)self, (void)stream;
    const int32_t *expert = a->routes;
    double of_chosen[DTP_ROUTER_EXPERTS], p[DTP_ROUTER_EXPERTS];
    for (uint64_t t = 0; t < a->tokens; t++) {
        const int32_t *mine = expert + t * a->chosen;
        double sum = (double)DTP_ROUTER_LEAST_SUM, mean = 0, inner = 0;
        affinities(a->scores, a->element, t * a->experts, a->experts, a->kind, p);
        memset(of_chosen, 0, sizeof of_chosen);
        for (uint32_t j = 0; j < a->chosen; j++)
            sum += p[mine[j]];
        for (uint32_t j = 0; j < a->chosen; j++)
            mean += (double)a->gradient[t * a->chosen + j] * p[mine[j]] / sum;
        for (uint32_t j = 0; j < a->chosen; j++) {
            double g = (double)a->gradient[t * a->chosen + j];
            of_chosen[mine[j]] = (double)a->scale * (a->normalise ? (g - mean) / sum : g);
            inner += of_chosen[mine[j]] * p[mine[j]];
        }
        for (uint32_t e = 0; e < a->experts; e++)
            dtp_store(a->score_gradient, a->element, t * a->experts + e,
                      a->kind == DTP_ROUTER_KIND_SIGMOID ? of_chosen[e] * p[e] * (1 - p[e])
                                                         : p[e] * (of_chosen[e] - inner));
    }
    return 0;
}

int dtp_reference_received(void *self, const struct dtp_received_args *a, void *stream)
{
    (void)self, (void)stream;
    struct dtp_routes routes = dtp_routes_at(a->routes, a->rows);
    for (uint64_t r = 0; r < a->rows; r++)
        routes.order[r] = (int32_t)r;
    for (uint32_t e = 0; e <= a->own; e++) {
        routes.starts[e] = 0;
        for (uint32_t rank = 0; rank < a->ranks; rank++) {
            const int32_t *begins = a->begins + (uint64_t)rank * (a->experts + 1) + a->first;
            routes.starts[e] += begins[e] - begins[0];
        }
    }
    memset(routes.starts + a->own + 1, 0, DTP_ROUTES_TURNS * sizeof *routes.starts);
    return 0;
}

int dtp_reference_push_rows(void *self, const struct dtp_push_rows_args *a, void *stream)
{
    (void)self, (void)stream;
    for (uint32_t i = 0; i < a->pieces; i++) {
        const struct dtp_push_piece *p = &a->piece[i];
        const uint64_t rows = (i + 1 < a->pieces ? a->piece[i + 1].before : a->count) - p->before;
        memcpy((char *)a->result[p->target] + p->to * (uint64_t)a->row_bytes,
               (const char *)a->rows + p->from * (uint64_t)a->row_bytes, rows * a->row_bytes);
        if (a->more)
            memcpy(a->more_result[p->target] + p->to, a->more + p->from, rows * sizeof(float));
    }
    return 0;
}

int dtp_reference_permute(void *self, const struct dtp_permute_args *a, void *stream)
{
    (void)self, (void)stream;
    uint64_t rows = a->tokens * a->chosen, bytes = a->width * dtp_element_bytes(a->element);
    const int32_t *order = dtp_routes_at((void *)(uintptr_t)a->routes, rows).order;
    for (uint64_t r = 0; r < rows; r++)
        memcpy((char *)a->rows + r * bytes, (const char *)a->values + (uint32_t)order[r] / a->chosen * bytes, bytes);
    for (uint64_t r = 0; r < rows && a->weights; r++)
        a->row_weights[r] = a->weights[order[r]];
    return 0;
}

int dtp_reference_unpermute(void *self, const struct dtp_unpermute_args *a, void *stream)
{
    (void)self, (void)stream;
    const int32_t *place = dtp_routes_at((void *)(uintptr_t)a->routes, a->tokens * a->chosen).place;
    for (uint64_t t = 0; t < a->tokens; t++) {
        double gate = a->shared_score ? dtp_sigmoid(dtp_load(a->shared_score, a->element, t)) : 1;
        for (uint32_t i = 0; i < a->width; i++) {
            double sum = a->addend ? dtp_load(a->addend, a->element, t * a->width + i) : 0;
            for (uint32_t j = 0; j < a->chosen; j++)
                sum += dtp_load(a->rows, a->element, (uint64_t)place[t * a->chosen + j] * a->width + i);
            sum += a->shared ? gate * dtp_load(a->shared, a->element, t * a->width + i) : 0;
            dtp_store(a->result, a->element, t * a->width + i, sum);
        }
    }
    for (uint64_t i = 0; i < a->tokens * a->chosen && a->row_weights; i++)
        a->weights[i] = a->row_weights[place[i]];
    return 0;
}

int dtp_reference_shared_gate_backward(void *self, const struct dtp_shared_gate_backward_args *a, void *stream)
{
    (void)self, (void)stream;
    for (uint64_t t = 0; t < a->tokens; t++) {
        double gate = dtp_sigmoid(dtp_load(a->shared_score, a->element, t)), sum = 0;
        for (uint64_t i = t * a->width; i < (t + 1) * a->width; i++) {
            double gradient = dtp_load(a->gradient, a->element, i);
            sum += gradient * dtp_load(a->shared, a->element, i);
            dtp_store(a->shared_gradient, a->element, i, gate * gradient);
        }
        dtp_store(a->score_gradient, a->element, t, sum * gate * (1 - gate));
    }
    return 0;
}

/* How many of the rows that there is room for are there. */
static uint64_t rows_there(const void *routes, uint64_t rows, uint32_t experts)
{
    return experts ? (uint64_t)dtp_routes_at((void *)(uintptr_t)routes, rows).starts[experts] : rows;
}

int dtp_reference_expert_activation(void *self, const struct dtp_expert_activation_args *a, void *stream)
{
    (void)self, (void)stream;
    uint64_t rows = a->tokens * a->chosen, there = rows_there(a->routes, rows, a->experts);
    const int32_t *order = dtp_routes_at((void *)(uintptr_t)a->routes, rows).order;
    for (uint64_t r = 0; r < there; r++) {
        const double weight = (double)a->weights[order[r]], before = a->weighs_input ? weight : 1;
        for (uint32_t i = 0; i < a->width; i++) {
            double gate = before * dtp_load(a->up, a->element, 2 * r * a->width + i);
            double up = dtp_load(a->up, a->element, (2 * r + 1) * a->width + i);
            dtp_store(a->result, a->element, r * a->width + i,
                      weight * dtp_activate(a->kind, gate).value * dtp_gated(a->kind, up).value);
        }
    }
    return 0;
}

int dtp_reference_expert_activation_backward(void *self, const struct dtp_expert_activation_backward_args *a,
                                             void *stream)
{
    (void)self, (void)stream;
    uint64_t rows = a->tokens * a->chosen, there = rows_there(a->routes, rows, a->experts);
    const int32_t *order = dtp_routes_at((void *)(uintptr_t)a->routes, rows).order;
    for (uint64_t r = 0; r < there; r++) {
        double weight = (double)a->weights[order[r]], before = a->weighs_input ? weight : 1, sum = 0;
        for (uint32_t i = 0; i < a->width; i++) {
            uint64_t at = 2 * r * a->width + i;
            double gradient = dtp_load(a->gradient, a->element, r * a->width + i);
            double unweighed = dtp_load(a->up, a->element, at);
            struct dtp_activated up = dtp_gated(a->kind, dtp_load(a->up, a->element, at + a->width));
            struct dtp_activated gate = dtp_activate(a->kind, before * unweighed);
            sum += gradient * up.value * (gate.value + (a->weighs_input ? weight * unweighed * gate.slope : 0));
            dtp_store(a->up_gradient, a->element, at, weight * before * gradient * up.value * gate.slope);
            dtp_store(a->up_gradient, a->element, at + a->width, weight * gradient * gate.value * up.slope);
        }
        a->weight_gradient[order[r]] = (float)(sum + (a->accumulate ? (double)a->weight_gradient[order[r]] : 0));
    }
    return 0;
}

int dtp_reference_expert_bias(void *self, const struct dtp_expert_bias_args *a, void *stream)
{
    (void)self, (void)stream;
    const struct dtp_routes routes = dtp_routes_at((void *)(uintptr_t)a->routes, a->tokens * a->chosen);
    for (uint64_t r = 0; r < a->tokens * a->chosen; r++) {
        const int32_t whose = routes.order[r];
        const double weight = a->weights ? (double)a->weights[whose] : 1;
        for (uint64_t i = 0; i < a->width; i++)
            dtp_store(a->rows, a->element, r * a->width + i,
                      dtp_load(a->rows, a->element, r * a->width + i) +
                          weight * dtp_load(a->bias, a->bias_element, (uint64_t)routes.expert[whose] * a->width + i));
    }
    return 0;
}

int dtp_reference_expert_bias_backward(void *self, const struct dtp_expert_bias_backward_args *a, void *stream)
{
    (void)self, (void)stream;
    const struct dtp_routes routes = dtp_routes_at((void *)(uintptr_t)a->routes, a->tokens * a->chosen);
    for (uint64_t e = 0; e < a->experts; e++)
        for (uint64_t i = 0; i < a->width; i++) {
            double sum = 0;
            for (int32_t r = routes.starts[e]; r < routes.starts[e + 1]; r++)
                sum += (a->weights ? (double)a->weights[routes.order[r]] : 1) *
                       dtp_load(a->gradient, a->element, (uint64_t)r * a->width + i);
            dtp_accumulate(a->bias_gradient, a->gradient_element, e * a->width + i, sum, a->accumulate);
        }
    for (uint64_t r = 0; r < a->tokens * a->chosen && a->weight_gradient; r++) {
        const int32_t whose = routes.order[r];
        double sum = 0;
        for (uint64_t i = 0; i < a->width; i++)
            sum += dtp_load(a->gradient, a->element, r * a->width + i) *
                   dtp_load(a->bias, a->bias_element, (uint64_t)routes.expert[whose] * a->width + i);
        a->weight_gradient[whose] = (float)sum;
    }
    return 0;
}

struct dtp_matmul_args dtp_grouped_matmul_of(const struct dtp_grouped_matmul_args *a, uint32_t expert)
{
    const int32_t *starts = dtp_routes_at((void *)(uintptr_t)a->routes, a->rows).starts;
    return dtp_grouped_matmul_of_rows(a, expert, (uint64_t)starts[expert],
                                      (uint64_t)(starts[expert + 1] - starts[expert]));
}

struct dtp_matmul_args dtp_grouped_matmul_of_rows(const struct dtp_grouped_matmul_args *a, uint32_t expert,
                                                  uint64_t begin, uint64_t count)
{
    uint64_t bytes = dtp_element_bytes(a->element), matrix = expert * a->out * a->in;
    uint64_t result_bytes = dtp_element_bytes(a->result_element);
    bool forward = a->product == DTP_GROUPED_FORWARD, weights = a->product == DTP_GROUPED_WEIGHT_GRADIENT;
    struct dtp_matmul_args one = {.element = a->element, .result_element = a->result_element};
    uint64_t a_width = forward ? a->in : a->out, result_width = forward ? a->out : a->in;
    one.a = (const char *)a->a + begin * a_width * bytes;
    one.b = (const char *)a->b + (weights ? begin * a->in : matrix) * bytes;
    one.result = (char *)a->result + (weights ? matrix : begin * result_width) * result_bytes;
    one.m = weights ? a->out : count, one.n = result_width, one.k = weights ? count : a_width;
    one.a_transposed = weights, one.b_transposed = forward;
    one.lda = a_width, one.ldb = a->in, one.ldd = result_width;
    one.addend = a->accumulate ? one.result : NULL;
    return one;
}

int dtp_reference_grouped_matmul(void *self, const struct dtp_grouped_matmul_args *a, void *stream)
{
    int status = 0;
    for (uint32_t e = 0; e < a->experts && !status; e++) {
        struct dtp_matmul_args one = dtp_grouped_matmul_of(a, e);
        if (one.m) /* without rows a gradient is zeros */
            status = dtp_reference_matmul(self, &one, stream);
    }
    return status;
}
