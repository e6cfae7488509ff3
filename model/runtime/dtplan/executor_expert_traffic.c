#include "runtime/dtplan/executor_expert_traffic.h"

#include "base/bytes.h"
#include "runtime/dtplan/routes_layout.h"

#include <math.h>

#define T(suffix) DTP_TENSOR_##suffix
#define BIT(tensor) DTP_EXECUTOR_BIT(tensor)

/* ---- the list ---------------------------------------------------------------------------------------------------- */

/* Experts of each token, their weights and where rows go. */
void dtp_executor_add_router(struct dtp_executor_block *b)
{
    struct dtp_executor_operator *op =
        dtp_executor_add_operator(b, DTP_OP_ROUTER, "router", T(ROUTER_SCORES), T(ROUTER_WEIGHTS));
    op->saved = T(ROUTES);
    op->needs = BIT(op->input) | BIT(op->saved);
}

static int input_of(const struct dtp_layer_operator *from)
{
    int tensor = 0;
    while (!(from->reads & BIT(tensor)))
        tensor++;
    return tensor;
}

void dtp_executor_add_permute(struct dtp_executor_block *b, const struct dtp_layer_operator *from)
{
    const bool exchanged = b->kind.exchanged;
    struct dtp_executor_operator *op =
        dtp_executor_add_operator(b, DTP_OP_PERMUTE, exchanged ? "rows by ranks" : "rows by experts", input_of(from),
                                  exchanged ? T(SENT) : T(PERMUTED));
    op->reads = op->needs = BIT(T(ROUTES));
    if (!exchanged)
        return;
    op->reads |= BIT(T(ROUTER_WEIGHTS));
    op->aux = DTP_EXECUTOR_SENT_WEIGHTS;
    op = dtp_executor_add_operator(b, DTP_OP_ALL_TO_ALL, "dispatch", T(SENT), T(PERMUTED));
    op->reads = BIT(DTP_EXECUTOR_SENT_WEIGHTS) | BIT(T(ROUTES));
    op->statistics = DTP_EXECUTOR_RECEIVED_WEIGHTS;
    op->saved = T(PLACES);
    op->needs = BIT(op->saved); /* which goes with it */
}

/* What shared experts return is read again where their weight has a gradient. */
void dtp_executor_add_unpermute(struct dtp_executor_block *b, const struct dtp_layer_operator *from)
{
    int results = T(EXPERT_DOWN);
    if (b->kind.exchanged)
        results = dtp_executor_add_operator(b, DTP_OP_ALL_TO_ALL, "combine", results, T(RETURNED))->result;
    struct dtp_executor_operator *op =
        dtp_executor_add_operator(b, DTP_OP_UNPERMUTE, "rows by tokens", results, T(DOWN));
    uint64_t shared = from->reads & (BIT(T(SHARED_DOWN)) | BIT(T(SHARED_WEIGHT)));
    op->reads = BIT(T(ROUTES)) | shared;
    op->needs = BIT(T(ROUTES)) | (b->kind.shared_gate ? shared : 0);
}

/* ---- rows that come ---------------------------------------------------------------------------------------------- */

/* Of each token at most as many as it has experts, or the rank. */
uint64_t dtp_executor_room_of(const struct dtp_executor_block *b, const struct dtp_plan *plan)
{
    const struct dtp_layer_kind *k = &b->kind;
    uint64_t rows = dtp_executor_expert_rows(b);
    if (!k->exchanged)
        return rows;
    uint64_t each = k->own_experts < k->experts_per_token ? k->own_experts : k->experts_per_token;
    uint64_t most = dtp_bytes_product(b->stream_tokens * each, k->experts / k->own_experts);
    double room = ceil((double)rows * (plan->executor.expert_room > 0 ? plan->executor.expert_room : plan->ep));
    return room < (double)most ? (uint64_t)room : most;
}

bool dtp_executor_is_received(int tensor)
{
    return tensor == T(PERMUTED) || tensor == T(UP) || tensor == T(PRODUCT) || tensor == T(EXPERT_DOWN) ||
           tensor == T(PLACES) || tensor == DTP_EXECUTOR_RECEIVED_WEIGHTS;
}

uint64_t dtp_executor_received_bytes(const struct dtp_executor_block *b, int tensor)
{
    const struct dtp_layer_kind *k = &b->kind;
    if (tensor == T(PLACES))
        return dtp_routes_bytes(b->expert_room, k->own_experts);
    if (tensor == DTP_EXECUTOR_RECEIVED_WEIGHTS)
        return dtp_bytes_product(b->expert_room, 4);
    uint64_t width = dtp_layer_tensor_width(k, (enum dtp_layer_tensor)tensor) / k->experts_per_token;
    return dtp_bytes_product(b->expert_room, width * b->element_bytes);
}

uint64_t dtp_executor_starts_bytes(const struct dtp_executor_block *b)
{
    return 4 * (b->kind.experts + 1);
}

uint64_t dtp_executor_heard_bytes(const struct dtp_executor_block *b)
{
    return b->kind.experts / b->kind.own_experts * dtp_executor_starts_bytes(b);
}

/* All but those of its own experts, where each expert gets as many. */
uint64_t dtp_executor_sent_bytes(const struct dtp_executor_block *b, bool weighed)
{
    const struct dtp_layer_kind *k = &b->kind;
    uint64_t row = k->hidden * b->element_bytes + (weighed ? 4 : 0), ranks = k->experts / k->own_experts;
    uint64_t bytes = dtp_bytes_product(dtp_executor_expert_rows(b), row);
    return dtp_bytes_product(dtp_divide_up(bytes, ranks), ranks - 1);
}

/* ---- bytes through HBM ------------------------------------------------------------------------------------------- */

/* Routes of rows that came: where each rank's begin are read, where each expert's begin and which row each is written.
 */
static double places_bytes(const struct dtp_executor_block *b)
{
    return (double)dtp_executor_heard_bytes(b) + 8 * (double)dtp_executor_expert_rows(b) +
           4 * (double)(b->kind.own_experts + 1);
}

static double rows_of(const struct dtp_executor_block *b, uint64_t width)
{
    return (double)b->stream_tokens * (double)width * (double)b->element_bytes;
}

/* R rows by experts of T tokens of the rank's own, E scores each. The router reads scores, writes weights and which
 * experts, then counts these chunk by chunk and places rows: read twice more, place and order written. Whole rows of h
 * are read and written: to experts one by one, back as a sum, with the stream and what shared experts return. */
struct dtp_executor_traffic dtp_executor_expert_forward_traffic(const struct dtp_executor_block *b,
                                                                const struct dtp_executor_operator *op)
{
    const struct dtp_layer_kind *k = &b->kind;
    double rows = (double)dtp_executor_expert_rows(b), by_experts = rows * (double)(k->hidden * b->element_bytes);
    double shared = op->reads & DTP_EXECUTOR_BIT(DTP_TENSOR_SHARED_DOWN) ? 1 : 0,
           score = op->reads & DTP_EXECUTOR_BIT(DTP_TENSOR_SHARED_WEIGHT) ? 1 : 0;
    switch (op->kind) {
    case DTP_OP_ROUTER: return (struct dtp_executor_traffic){rows_of(b, k->experts) + 4 * rows * (2 + 2 + 2), 3};
    case DTP_OP_PERMUTE: /* with their weights, where these go along */
        return (struct dtp_executor_traffic){2 * by_experts + (k->exchanged ? 12 : 4) * rows, 1};
    case DTP_OP_ALL_TO_ALL:
        return op->saved == T(PLACES) ? (struct dtp_executor_traffic){places_bytes(b), 1}
                                      : (struct dtp_executor_traffic){0, 0};
    default:
        return (struct dtp_executor_traffic){
            by_experts + 4 * rows + rows_of(b, k->hidden) * (1 + (op->addend != DTP_EXECUTOR_NONE ? 1 : 0) + shared) +
                score * rows_of(b, 1),
            1};
    }
}

/* The gradient of scores of those, of the weights and of which experts; of tokens' rows a sum as forward's, onto what
 * shared experts have made where there are any; of experts' rows a copy each. A weight of shared experts has a kernel
 * of its own, which reads the gradient and what they returned. */
struct dtp_executor_traffic dtp_executor_expert_backward_traffic(const struct dtp_executor_block *b,
                                                                 const struct dtp_executor_operator *op)
{
    const struct dtp_layer_kind *k = &b->kind;
    double rows = (double)dtp_executor_expert_rows(b), by_experts = rows * (double)(k->hidden * b->element_bytes);
    double weighed = op->needs & DTP_EXECUTOR_BIT(DTP_TENSOR_SHARED_WEIGHT) ? 1 : 0;
    switch (op->kind) {
    case DTP_OP_ROUTER: return (struct dtp_executor_traffic){2 * rows_of(b, k->experts) + 8 * rows, 1};
    case DTP_OP_PERMUTE:
        return (struct dtp_executor_traffic){
            by_experts + (k->exchanged ? 12 : 4) * rows + (k->shared_ffn ? 2 : 1) * rows_of(b, k->hidden), 1};
    case DTP_OP_ALL_TO_ALL: return (struct dtp_executor_traffic){0, 0};
    default:
        return (struct dtp_executor_traffic){2 * by_experts + 4 * rows +
                                                 weighed * (3 * rows_of(b, k->hidden) + 2 * rows_of(b, 1)),
                                             1 + (weighed > 0 ? 1u : 0)};
    }
}
