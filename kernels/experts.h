/* Arguments of what experts compute, for kernels.h, which includes it.
 *
 * Of `experts` each of `tokens` rows goes to `chosen`. Where they go is one buffer of int32, `routes`, of R = tokens *
 * chosen rows by experts: which expert [tokens, chosen]; each one's place among the rows by experts [tokens, chosen];
 * of these rows which of [tokens, chosen] each is [R]; where each expert's rows begin [experts + 1]; DTP_ROUTES_TURNS
 * counters, 0 from when routes are made, of which weights' gradients take their tiles: 0 again when one has ended, so
 * that two of the same routes must not run at a time. Rows by experts are in the order of experts and then of tokens.
 */
#ifndef DTP_EXPERTS_H
#define DTP_EXPERTS_H

struct dtp_routes {
    int32_t *expert, *place, *order, *starts;
};
#define DTP_ROUTES_TURNS 2u
#define DTP_ROUTES_INTS(rows, experts) (3 * (uint64_t)(rows) + (experts) + 1 + DTP_ROUTES_TURNS)
DTP_ON_DEVICE static inline struct dtp_routes dtp_routes_at(void *routes, uint64_t rows)
{
    int32_t *at = (int32_t *)routes;
    struct dtp_routes parts = {at, at + rows, at + 2 * rows, at + 3 * rows};
    return parts;
}

/* Affinities of a token to experts are the softmax of its scores, or the sigmoid of each; it goes to the `chosen`
 * largest scores, of equal ones to those of lower number. Their affinities, `normalise`: divided by their sum, times
 * `scale` are the weights. The sum is DTP_ROUTER_LEAST_SUM more, too little for softmaxes' to notice: sigmoids of all
 * may be 0 (DeepSeek-V3's MoEGate adds as much, modeling_deepseek.py). A score that is no number counts as the least.
 * On CUDA at most DTP_ROUTER_EXPERTS experts, DTP_ROUTER_CHOSEN chosen.
 *
 * Where `groups_chosen` is not 0, experts stand in `groups` groups of neighbours, DTP_ROUTER_GROUPS at most, and a
 * token goes to experts of its `groups_chosen` best groups alone. A group is as good as its largest softmax
 * (DeepSeek-V2's group_limited_greedy), or as the sum of its two largest sigmoids (DeepSeek-V3's noaux_tc, whose
 * correction bias is no parameter and begins at 0; both modeling_deepseek.py); of equal groups the lower number is
 * better.
 *
 * `in_turns`: expert floor(experts / chosen) j + token, modulo experts, is the j-th of a token, whatever its scores are
 * and the groups they would be chosen in, so that all experts get as many rows; weights are their affinities all the
 * same.
 */
enum dtp_router_kind { DTP_ROUTER_KIND_SOFTMAX, DTP_ROUTER_KIND_SIGMOID };
#define DTP_ROUTER_EXPERTS 1024u
#define DTP_ROUTER_CHOSEN 32u
#define DTP_ROUTER_GROUPS 32u
#define DTP_ROUTER_LEAST_SUM 1e-20f
#define DTP_ROUTER_CHUNKS 128u /* workspace: DTP_ROUTER_CHUNKS * experts int32 */
struct dtp_router_args {
    const void *scores; /* [tokens, experts] */
    float *weights;     /* [tokens, chosen] */
    void *routes;
    int32_t *workspace;
    uint64_t tokens;
    uint32_t experts, chosen, groups, groups_chosen;
    float scale;
    enum dtp_router_kind kind;
    bool normalise, in_turns;
    enum dtp_element element;
};
struct dtp_router_backward_args {
    const void *scores;
    const float *gradient; /* of the weights */
    const void *routes;
    void *score_gradient; /* [tokens, experts] */
    uint64_t tokens;
    uint32_t experts, chosen;
    float scale;
    enum dtp_router_kind kind;
    bool normalise;
    enum dtp_element element;
};
/* Routes of rows that came from other ranks in the order of this rank's experts: of each of `ranks` ranks where its
 * rows of each of `experts` experts begin, which are cumulative; of these `own` from number `first` on are this rank's.
 * Rows are where they are: order[r] = r, for all that there is room for; starts [own + 1]. */
struct dtp_received_args {
    const int32_t *begins; /* [ranks, experts + 1] */
    void *routes;          /* of `rows` rows by `own` experts */
    uint64_t rows;
    uint32_t ranks, experts, own, first;
};
/* Runs of rows, each to where it belongs in the memory of one of several ranks, which peers may have mapped: rows
 * [from, from + n) of `rows` become rows [to, to + n) of result[target], n being what is until `before` of the next
 * piece (until `count` of the last). Where `more` is, a float of each row goes the same way. Done, and seen by all
 * GPUs, when the kernel has ended; that nobody still reads what is overwritten is the caller's to know. row_bytes is
 * even; where it is a multiple of 16 all pointers are aligned to as much.
 */
#define DTP_PUSH_TARGETS 16u
#define DTP_PUSH_PIECES 216u /* so that arguments fit in 4 KiB, the most that every GPU takes */
struct dtp_push_piece {
    uint32_t from, to, before, target; /* before: rows of all pieces ahead of it */
};
struct dtp_push_rows_args {
    const void *rows;
    const float *more; /* or NULL */
    void *result[DTP_PUSH_TARGETS];
    float *more_result[DTP_PUSH_TARGETS];
    struct dtp_push_piece piece[DTP_PUSH_PIECES];
    uint32_t pieces, count, row_bytes; /* count: rows of all pieces */
    uint32_t most_blocks;              /* thread blocks; 0: as many as are worth it */
};
/* rows[r] = values[order[r] / chosen]: of each token as many as it has experts. Where `weights` are, row_weights[r] =
 * weights[order[r]]. */
struct dtp_permute_args {
    const void *values; /* [tokens, width] */
    const void *routes;
    void *rows; /* [tokens * chosen, width] */
    uint64_t tokens;
    uint32_t width, chosen;
    enum dtp_element element;
    const float *weights; /* [tokens, chosen], or NULL */
    float *row_weights;   /* [tokens * chosen] */
};
/* result[t] = addend[t] + the sum of a token's rows + shared[t], times sigmoid(shared_score[t]) where that is not NULL;
 * the addend may be the result, and both it and `shared` may be NULL. Where `row_weights` are, weights[i] =
 * row_weights[place[i]]. */
struct dtp_unpermute_args {
    const void *rows, *addend, *shared, *shared_score; /* [tokens * chosen, width], [tokens, width] twice, [tokens] */
    const void *routes;
    void *result; /* [tokens, width] */
    uint64_t tokens;
    uint32_t width, chosen;
    enum dtp_element element;
    const float *row_weights; /* [tokens * chosen], or NULL */
    float *weights;           /* [tokens, chosen] */
};
/* Gradients of `shared` and `shared_score` of unpermute: shared_gradient = gradient * sigmoid(score), score_gradient =
 * its slope times the sum over the row of gradient * shared. */
struct dtp_shared_gate_backward_args {
    const void *gradient, *shared, *shared_score;
    void *shared_gradient, *score_gradient;
    uint64_t tokens;
    uint32_t width;
    enum dtp_element element;
};
/* As dtp_activation_args over rows by experts, of gated kinds, each row times the weight w of its token's choice; the
 * gradient of that weight is the sum over the row of gradient * unweighed result. `weighs_input`: the weight is of what
 * experts read, which is to weigh gate and up, products of that: act(w gate) w up. Of rows that there is room for those
 * that are there: up to the end of the last of `experts`, by the routes; 0: all. */
struct dtp_expert_activation_args {
    const void *up; /* [tokens * chosen, 2 width] */
    const float *weights;
    const void *routes;
    void *result; /* [tokens * chosen, width] */
    uint64_t tokens;
    uint32_t width, chosen;
    enum dtp_activation_kind kind;
    enum dtp_element element;
    uint32_t experts;
    bool weighs_input;
};
struct dtp_expert_activation_backward_args {
    const void *gradient, *up;
    const float *weights;
    const void *routes;
    void *up_gradient;      /* may be `up` itself */
    float *weight_gradient; /* [tokens, chosen] */
    uint64_t tokens;
    uint32_t width, chosen;
    enum dtp_activation_kind kind;
    enum dtp_element element;
    uint32_t experts;
    bool weighs_input;
    bool accumulate; /* onto weight_gradient, where what stands behind has put its part */
};
/* Biases of experts: rows[r] += bias of the row's expert, times weights[order[r]] where there are weights: rows that
 * were weighed before they were multiplied by a matrix have so their bias weighed too. */
struct dtp_expert_bias_args {
    void *rows;       /* [tokens * chosen, width] */
    const void *bias; /* [experts, width] */
    const void *routes;
    const float *weights; /* [tokens, chosen], or NULL */
    uint64_t tokens;
    uint32_t width, chosen, experts;
    enum dtp_element element, bias_element;
};
/* Gradients of the same: of an expert's bias the sum over its rows, in their order by eighths, times the weights where
 * there are; of a weight (weight_gradient NULL: of none) the row's sum of gradient * bias. */
struct dtp_expert_bias_backward_args {
    const void *gradient; /* of the rows */
    const void *bias, *routes;
    const float *weights;
    float *weight_gradient; /* [tokens, chosen] */
    void *bias_gradient;    /* [experts, width] */
    uint64_t tokens;
    uint32_t width, chosen, experts;
    enum dtp_element element, bias_element, gradient_element;
    bool accumulate; /* of bias_gradient */
};
/* Rows of each expert by its own matrix, of which `weight` has [experts, out, in] one behind the other. FORWARD: result
 * [rows, out] = a [rows, in] by weight^T; INPUT_GRADIENT: result [rows, in] = a [rows, out] by weight; WEIGHT_GRADIENT:
 * result [experts, out, in] = a [rows, out]^T by b [rows, in], of an expert without rows zeros, or where `accumulate`
 * what was there. Routes are of `rows` rows by experts. */
enum dtp_grouped_product { DTP_GROUPED_FORWARD, DTP_GROUPED_INPUT_GRADIENT, DTP_GROUPED_WEIGHT_GRADIENT };
struct dtp_grouped_matmul_args {
    const void *a, *b; /* b: the weights; of WEIGHT_GRADIENT the forward's input */
    const void *routes;
    void *result;
    uint64_t rows, out, in;
    uint32_t experts;
    enum dtp_grouped_product product;
    enum dtp_element element, result_element;
    bool accumulate;
};

#endif
