/* Arguments of what experts compute: where tokens go, their rows there and back, products with each expert's matrix. */
#include "bind/binder.h"

#include "runtime/dtplan/routes_layout.h"

_Static_assert(DTP_EXECUTOR_ROUTE_TURNS == DTP_ROUTES_TURNS, "counters behind where rows of experts begin");
_Static_assert(DTP_EXECUTOR_ROUTER_CHUNKS == DTP_ROUTER_CHUNKS, "chunks of tokens that are counted apart");
_Static_assert(DTP_EXECUTOR_ROUTER_EXPERTS == DTP_ROUTER_EXPERTS, "most experts");
_Static_assert(DTP_EXECUTOR_ROUTER_CHOSEN == DTP_ROUTER_CHOSEN, "most experts of a token");
_Static_assert(DTP_EXECUTOR_ROUTER_GROUPS == DTP_ROUTER_GROUPS, "most groups of experts");

/* How many experts a token goes to; below, how many there are. */
static uint32_t chosen(const struct dtp_binder *b)
{
    return (uint32_t)whole(b->op->demand->k < UINT32_MAX ? b->op->demand->k : UINT32_MAX);
}

static uint32_t experts(const struct dtp_binder *b)
{
    return b->op->kind == DTP_OP_ROUTER || b->op->kind == DTP_OP_ROUTER_BACKWARD ? width(b) : b->op->demand->groups;
}

/* ---- arguments --------------------------------------------------------------------------------------------------- */

static enum dtp_router_kind router_kind(const struct dtp_binder *b)
{
    bool sigmoid = b->op->demand->form == DTP_FORM_SIGMOID || b->op->demand->form == DTP_FORM_SIGMOID_NORMALISED;
    return sigmoid ? DTP_ROUTER_KIND_SIGMOID : DTP_ROUTER_KIND_SOFTMAX;
}

static bool normalises(const struct dtp_binder *b)
{
    return b->op->demand->form == DTP_FORM_SOFTMAX_NORMALISED || b->op->demand->form == DTP_FORM_SIGMOID_NORMALISED;
}

static bool weighs_input(const struct dtp_binder *b)
{
    return b->op->demand->form == DTP_FORM_SWIGLU_WEIGHED;
}

static float router_scale(const struct dtp_binder *b)
{
    return b->op->demand->scale > 0 ? (float)b->op->demand->scale : 1;
}

/* Groups that a token's experts are of; 0: any. */
static uint32_t groups_chosen(const struct dtp_binder *b)
{
    return (uint32_t)whole(b->op->demand->m < UINT32_MAX ? b->op->demand->m : UINT32_MAX);
}

static bool groups_fit(const struct dtp_binder *b)
{
    uint32_t groups = b->op->demand->groups, of = groups_chosen(b);
    return !of || (groups && groups <= DTP_ROUTER_GROUPS && of <= groups && experts(b) % groups == 0 &&
                   of * (experts(b) / groups) >= chosen(b));
}

static void fill_router(struct dtp_binder *b, struct dtp_bound_op *out)
{
    out->kernel = DTP_KERNEL_router;
    out->arguments.router = (struct dtp_router_args){.scores = need(b, DTP_ROLE_INPUT),
                                                     .weights = need(b, DTP_ROLE_STATISTICS),
                                                     .routes = need(b, DTP_ROLE_ROUTES),
                                                     .workspace = need(b, DTP_ROLE_WORKSPACE),
                                                     .tokens = rows(b),
                                                     .experts = experts(b),
                                                     .chosen = chosen(b),
                                                     .groups = b->op->demand->groups,
                                                     .groups_chosen = groups_chosen(b),
                                                     .scale = router_scale(b),
                                                     .kind = router_kind(b),
                                                     .normalise = normalises(b),
                                                     .in_turns = b->binding->job.balanced_experts,
                                                     .element = element_of(b, DTP_ROLE_INPUT)};
}

static void fill_router_backward(struct dtp_binder *b, struct dtp_bound_op *out)
{
    out->kernel = DTP_KERNEL_router_backward;
    out->arguments.router_backward =
        (struct dtp_router_backward_args){.scores = need(b, DTP_ROLE_INPUT),
                                          .gradient = need(b, DTP_ROLE_GRADIENT),
                                          .routes = need(b, DTP_ROLE_ROUTES),
                                          .score_gradient = need(b, DTP_ROLE_INPUT_GRADIENT),
                                          .tokens = rows(b),
                                          .experts = experts(b),
                                          .chosen = chosen(b),
                                          .scale = router_scale(b),
                                          .kind = router_kind(b),
                                          .normalise = normalises(b),
                                          .element = element_of(b, DTP_ROLE_INPUT)};
}

/* Copies each token's row to the rows of its experts. */
static void fill_permute(struct dtp_binder *b, enum dtp_role from, enum dtp_role to, struct dtp_bound_op *out)
{
    out->kernel = DTP_KERNEL_permute;
    out->arguments.permute =
        (struct dtp_permute_args){.values = need(b, from),
                                  .routes = need(b, DTP_ROLE_ROUTES),
                                  .rows = need(b, to),
                                  .tokens = rows(b),
                                  .width = width(b),
                                  .chosen = chosen(b),
                                  .element = element_of(b, from),
                                  .weights = operand(b, DTP_ROLE_AUX) ? need(b, DTP_ROLE_STATISTICS) : NULL,
                                  .row_weights = maybe(b, DTP_ROLE_AUX)};
}

/* The way back: adds up the rows of a token's experts. */
static void fill_unpermute(struct dtp_binder *b, enum dtp_role from, enum dtp_role to, struct dtp_bound_op *out)
{
    void *result = need(b, to);
    const bool weighed = operand(b, DTP_ROLE_STATISTICS_GRADIENT);
    out->kernel = DTP_KERNEL_unpermute;
    out->arguments.unpermute =
        (struct dtp_unpermute_args){.rows = need(b, from),
                                    .addend = updates(b, to) ? result : maybe(b, DTP_ROLE_ADDEND),
                                    .shared = maybe(b, DTP_ROLE_SAVED),
                                    .shared_score = maybe(b, DTP_ROLE_AUX),
                                    .routes = need(b, DTP_ROLE_ROUTES),
                                    .result = result,
                                    .tokens = rows(b),
                                    .width = width(b),
                                    .chosen = chosen(b),
                                    .element = element_of(b, from),
                                    .row_weights = weighed ? need(b, DTP_ROLE_STATISTICS) : NULL,
                                    .weights = maybe(b, DTP_ROLE_STATISTICS_GRADIENT)};
}

static void fill_shared_gate(struct dtp_binder *b, struct dtp_bound_op *out)
{
    out->kernel = DTP_KERNEL_shared_gate_backward;
    out->arguments.shared_gate_backward =
        (struct dtp_shared_gate_backward_args){.gradient = need(b, DTP_ROLE_GRADIENT),
                                               .shared = need(b, DTP_ROLE_SAVED),
                                               .shared_score = need(b, DTP_ROLE_AUX),
                                               .shared_gradient = need(b, DTP_ROLE_RESULT),
                                               .score_gradient = need(b, DTP_ROLE_INPUT_GRADIENT),
                                               .tokens = rows(b),
                                               .width = width(b),
                                               .element = element_of(b, DTP_ROLE_GRADIENT)};
}

static void fill_activation(struct dtp_binder *b, struct dtp_bound_op *out)
{
    out->kernel = DTP_KERNEL_expert_activation;
    out->arguments.expert_activation = (struct dtp_expert_activation_args){.up = need(b, DTP_ROLE_INPUT),
                                                                           .weights = need(b, DTP_ROLE_STATISTICS),
                                                                           .routes = need(b, DTP_ROLE_ROUTES),
                                                                           .result = need(b, DTP_ROLE_RESULT),
                                                                           .tokens = rows(b),
                                                                           .width = width(b),
                                                                           .chosen = chosen(b),
                                                                           .kind = activation_kind(b),
                                                                           .element = element_of(b, DTP_ROLE_INPUT),
                                                                           .experts = experts(b),
                                                                           .weighs_input = weighs_input(b)};
}

static void fill_activation_backward(struct dtp_binder *b, struct dtp_bound_op *out)
{
    void *up = need(b, DTP_ROLE_INPUT);
    out->kernel = DTP_KERNEL_expert_activation_backward;
    out->arguments.expert_activation_backward =
        (struct dtp_expert_activation_backward_args){.gradient = need(b, DTP_ROLE_GRADIENT),
                                                     .up = up,
                                                     .weights = need(b, DTP_ROLE_STATISTICS),
                                                     .routes = need(b, DTP_ROLE_ROUTES),
                                                     .up_gradient = up,
                                                     .weight_gradient = need(b, DTP_ROLE_STATISTICS_GRADIENT),
                                                     .tokens = rows(b),
                                                     .width = width(b),
                                                     .chosen = chosen(b),
                                                     .kind = activation_kind(b),
                                                     .element = element_of(b, DTP_ROLE_INPUT),
                                                     .experts = experts(b),
                                                     .weighs_input = weighs_input(b),
                                                     .accumulate = updates(b, DTP_ROLE_STATISTICS_GRADIENT)};
}

static void fill_bias(struct dtp_binder *b, struct dtp_bound_op *out)
{
    out->kernel = DTP_KERNEL_expert_bias;
    out->arguments.expert_bias = (struct dtp_expert_bias_args){.rows = need(b, DTP_ROLE_RESULT),
                                                               .bias = need(b, DTP_ROLE_BIAS),
                                                               .routes = need(b, DTP_ROLE_ROUTES),
                                                               .weights = maybe(b, DTP_ROLE_STATISTICS),
                                                               .tokens = rows(b),
                                                               .width = width(b),
                                                               .chosen = chosen(b),
                                                               .experts = experts(b),
                                                               .element = element_of(b, DTP_ROLE_RESULT),
                                                               .bias_element = element_of(b, DTP_ROLE_BIAS)};
}

static void fill_bias_backward(struct dtp_binder *b, struct dtp_bound_op *out)
{
    const bool weighed = operand(b, DTP_ROLE_STATISTICS);
    out->kernel = DTP_KERNEL_expert_bias_backward;
    out->arguments.expert_bias_backward = (struct dtp_expert_bias_backward_args){
        .gradient = need(b, DTP_ROLE_GRADIENT),
        .bias = weighed ? need(b, DTP_ROLE_BIAS) : NULL,
        .routes = need(b, DTP_ROLE_ROUTES),
        .weights = maybe(b, DTP_ROLE_STATISTICS),
        .weight_gradient = weighed ? need(b, DTP_ROLE_STATISTICS_GRADIENT) : NULL,
        .bias_gradient = need(b, DTP_ROLE_BIAS_GRADIENT),
        .tokens = rows(b),
        .width = width(b),
        .chosen = chosen(b),
        .experts = experts(b),
        .element = element_of(b, DTP_ROLE_GRADIENT),
        .bias_element = element_of(b, DTP_ROLE_BIAS),
        .gradient_element = element_of(b, DTP_ROLE_BIAS_GRADIENT),
        .accumulate = updates(b, DTP_ROLE_BIAS_GRADIENT)};
}

/* Which of the three products it is, and where its operands are. */
struct grouped {
    enum dtp_grouped_product product;
    enum dtp_role a, b, result;
    uint64_t out, in;
};

static struct grouped grouped_of(const struct dtp_binder *b)
{
    uint64_t m = whole(b->op->demand->m), n = whole(b->op->demand->n), k = whole(b->op->demand->k);
    if (operand(b, DTP_ROLE_WEIGHT_GRADIENT))
        return (struct grouped){
            DTP_GROUPED_WEIGHT_GRADIENT, DTP_ROLE_GRADIENT, DTP_ROLE_INPUT, DTP_ROLE_WEIGHT_GRADIENT, m, n};
    if (operand(b, DTP_ROLE_INPUT_GRADIENT))
        return (struct grouped){
            DTP_GROUPED_INPUT_GRADIENT, DTP_ROLE_GRADIENT, DTP_ROLE_WEIGHT, DTP_ROLE_INPUT_GRADIENT, k, n};
    return (struct grouped){DTP_GROUPED_FORWARD, DTP_ROLE_INPUT, DTP_ROLE_WEIGHT, DTP_ROLE_RESULT, n, k};
}

static void fill_grouped(struct dtp_binder *b, struct dtp_bound_op *out)
{
    struct grouped g = grouped_of(b);
    out->kernel = DTP_KERNEL_grouped_matmul;
    out->arguments.grouped_matmul = (struct dtp_grouped_matmul_args){.a = need(b, g.a),
                                                                     .b = need(b, g.b),
                                                                     .routes = need(b, DTP_ROLE_ROUTES),
                                                                     .result = need(b, g.result),
                                                                     .rows = rows(b),
                                                                     .out = g.out,
                                                                     .in = g.in,
                                                                     .experts = experts(b),
                                                                     .product = g.product,
                                                                     .element = element_of(b, g.a),
                                                                     .result_element = element_of(b, g.result),
                                                                     .accumulate = updates(b, g.result)};
}

void dtp_bind_expert(struct dtp_binder *b, struct dtp_bound_op *out)
{
    out->kind = DTP_BOUND_COMPUTE;
    switch (b->op->kind) {
    case DTP_OP_GROUPED_MATMUL: fill_grouped(b, out); break;
    case DTP_OP_ROUTER:
        if (dtp_bind_receives(b))
            dtp_bind_received(b, out);
        else
            fill_router(b, out);
        break;
    case DTP_OP_ROUTER_BACKWARD: fill_router_backward(b, out); break;
    case DTP_OP_EXPERT_BIAS: fill_bias(b, out); break;
    case DTP_OP_EXPERT_BIAS_BACKWARD: fill_bias_backward(b, out); break;
    case DTP_OP_PERMUTE: fill_permute(b, DTP_ROLE_INPUT, DTP_ROLE_RESULT, out); break;
    case DTP_OP_PERMUTE_BACKWARD: fill_unpermute(b, DTP_ROLE_GRADIENT, DTP_ROLE_INPUT_GRADIENT, out); break;
    case DTP_OP_UNPERMUTE: fill_unpermute(b, DTP_ROLE_INPUT, DTP_ROLE_RESULT, out); break;
    case DTP_OP_UNPERMUTE_BACKWARD:
        if (operand(b, DTP_ROLE_AUX))
            fill_shared_gate(b, out);
        else
            fill_permute(b, DTP_ROLE_GRADIENT, DTP_ROLE_INPUT_GRADIENT, out);
        break;
    case DTP_OP_ACTIVATION: fill_activation(b, out); break;
    default: fill_activation_backward(b, out); break;
    }
}

/* ---- room -------------------------------------------------------------------------------------------------------- */

/* The buffer of routes is that of `all` rows among the experts, to the byte: its parts lie one behind the other. */
static void routes_room(struct dtp_binder *b, uint64_t all)
{
    const struct dtp_operand *routes = operand(b, DTP_ROLE_ROUTES);
    dtp_bind_demand(b, DTP_ROLE_ROUTES,
                    !routes || (all <= INT32_MAX / 2 && experts(b) >= 1 && experts(b) <= DTP_ROUTER_EXPERTS &&
                                buffer_of(b, routes)->bytes == dtp_routes_bytes(all, experts(b))));
}

static void grouped_room(struct dtp_binder *b)
{
    struct grouped g = grouped_of(b);
    bool weights = g.product == DTP_GROUPED_WEIGHT_GRADIENT, forward = g.product == DTP_GROUPED_FORWARD;
    dtp_bind_demand(b, g.result,
                    g.out && g.in && rows(b) && g.out <= INT32_MAX && g.in <= INT32_MAX && !operand(b, DTP_ROLE_BIAS) &&
                        !operand(b, DTP_ROLE_BIAS_GRADIENT) && !operand(b, DTP_ROLE_AUX) &&
                        !operand(b, DTP_ROLE_ADDEND));
    routes_room(b, rows(b));
    dtp_bind_room_of(b, g.a, rows(b), forward ? g.in : g.out);
    dtp_bind_room_of(b, g.b, weights ? rows(b) : experts(b) * g.out, g.in);
    dtp_bind_room_of(b, g.result, weights ? experts(b) * g.out : rows(b), forward ? g.out : g.in);
    dtp_bind_alike(b, g.a, g.b);
}

static void bias_room(struct dtp_binder *b)
{
    const enum dtp_role of = b->op->kind == DTP_OP_EXPERT_BIAS ? DTP_ROLE_RESULT : DTP_ROLE_GRADIENT;
    const uint64_t all = rows(b) * chosen(b);
    dtp_bind_demand(b, of,
                    width(b) && rows(b) <= INT32_MAX / 2 && chosen(b) >= 1 && chosen(b) <= DTP_ROUTER_CHOSEN &&
                        chosen(b) <= experts(b));
    routes_room(b, all);
    dtp_bind_room_of(b, of, all, width(b));
    dtp_bind_room_of(b, DTP_ROLE_BIAS, experts(b), width(b));
    dtp_bind_room_of(b, DTP_ROLE_BIAS_GRADIENT, experts(b), width(b));
    dtp_bind_room_of(b, DTP_ROLE_STATISTICS, all, 1);
    dtp_bind_room_of(b, DTP_ROLE_STATISTICS_GRADIENT, all, 1);
}

void dtp_bind_expert_room(struct dtp_binder *b)
{
    static const enum dtp_role by_tokens[] = {DTP_ROLE_ADDEND, DTP_ROLE_SAVED};
    uint64_t tokens = rows(b), columns = width(b), all = tokens * chosen(b), one = 1;
    enum dtp_op_kind kind = b->op->kind;
    if (kind == DTP_OP_GROUPED_MATMUL) {
        grouped_room(b);
        return;
    }
    if (kind == DTP_OP_EXPERT_BIAS || kind == DTP_OP_EXPERT_BIAS_BACKWARD) {
        bias_room(b);
        return;
    }
    if (dtp_bind_receives(b)) {
        dtp_bind_received_room(b);
        return;
    }
    bool sums = kind == DTP_OP_UNPERMUTE || kind == DTP_OP_PERMUTE_BACKWARD, by_experts = kind == DTP_OP_PERMUTE;
    bool shared = kind == DTP_OP_UNPERMUTE_BACKWARD && operand(b, DTP_ROLE_AUX);
    bool routes = kind == DTP_OP_ROUTER || kind == DTP_OP_ROUTER_BACKWARD;
    bool activates = kind == DTP_OP_ACTIVATION || kind == DTP_OP_ACTIVATION_BACKWARD;
    dtp_bind_demand(b, DTP_ROLE_INPUT,
                    columns && tokens <= INT32_MAX / 2 && chosen(b) >= 1 && chosen(b) <= DTP_ROUTER_CHOSEN &&
                        chosen(b) <= experts(b) && (!activates || is_gated(b)) &&
                        (kind != DTP_OP_ROUTER || groups_fit(b)) &&
                        (!routes || (b->op->demand->form >= DTP_FORM_SOFTMAX &&
                                     b->op->demand->form <= DTP_FORM_SIGMOID_NORMALISED)));
    routes_room(b, all);
    uint64_t input = activates || kind == DTP_OP_UNPERMUTE ? all : tokens;
    dtp_bind_room_of(b, DTP_ROLE_INPUT, input, activates ? 2 * columns : columns);
    dtp_bind_room_of(b, DTP_ROLE_GRADIENT, routes || sums || activates ? all : tokens, routes ? one : columns);
    dtp_bind_room_of(b, DTP_ROLE_RESULT, by_experts || activates ? all : tokens, columns);
    dtp_bind_room_of(b, DTP_ROLE_INPUT_GRADIENT, sums || routes || shared ? tokens : all, shared ? one : columns);
    dtp_bind_room_of(b, DTP_ROLE_AUX, by_experts ? all : tokens, 1); /* of rows by ranks their weights, in fp32 */
    dtp_bind_demand(b, DTP_ROLE_AUX,
                    !by_experts || !operand(b, DTP_ROLE_AUX) || element_of(b, DTP_ROLE_AUX) == DTP_ELEMENT_FP32);
    for (size_t i = 0; i < sizeof by_tokens / sizeof *by_tokens; i++)
        dtp_bind_room_of(b, by_tokens[i], tokens, columns);
    dtp_bind_room_of(b, DTP_ROLE_STATISTICS, all, 1);
    dtp_bind_room_of(b, DTP_ROLE_STATISTICS_GRADIENT, all, 1);
    const struct dtp_operand *counts = operand(b, DTP_ROLE_WORKSPACE);
    dtp_bind_demand(b, DTP_ROLE_WORKSPACE, !counts || operand_bytes(b, counts) / (4 * DTP_ROUTER_CHUNKS) >= experts(b));
    static const enum dtp_role others[] = {DTP_ROLE_RESULT, DTP_ROLE_INPUT_GRADIENT, DTP_ROLE_ADDEND, DTP_ROLE_SAVED,
                                           DTP_ROLE_AUX};
    enum dtp_role first = operand(b, DTP_ROLE_INPUT) ? DTP_ROLE_INPUT : DTP_ROLE_GRADIENT;
    for (size_t i = 0; i < sizeof others / sizeof *others - by_experts; i++)
        dtp_bind_alike(b, first, others[i]);
    if (activates)
        dtp_bind_alike(b, DTP_ROLE_INPUT, DTP_ROLE_GRADIENT);
}
