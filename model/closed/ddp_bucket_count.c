/* How many buckets PyTorch's DDP makes of a model's gradients, from sizes alone (ddp_buckets.h of lowering lays them).
 */
#include "closed/closed_form_hooks.h"
#include "net/layer_kind.h"
#include "plan/runtime_sizes.h"
#include "plan/slice.h"

struct buckets {
    uint64_t cap, limit, filled, count; /* limit: of the bucket being filled */
    uint64_t element_bytes, rank;       /* rank: PowerSGD's, or 0 */
    struct dtp_ddp_bucket_count *out;
    struct dtp_factored last; /* of the bucket being filled */
};

static void close_bucket(struct buckets *buckets)
{
    struct dtp_ddp_bucket_count *out = buckets->out;
    uint64_t elements = buckets->filled / buckets->element_bytes;
    out->factored_buckets += buckets->last.matrices > 0;
    out->whole_buckets += buckets->last.whole > 0;
    buckets->last = (struct dtp_factored){0};
    if (buckets->count == 1)
        out->first_elements = elements;
    else if (buckets->count > 2 && out->last_elements > out->largest_elements)
        out->largest_elements = out->last_elements;
    out->last_elements = elements;
}

static void add_factored(struct dtp_factored *sum, const struct dtp_factored *one)
{
    sum->p += one->p, sum->q += one->q, sum->whole += one->whole, sum->matrices += one->matrices;
}

/* A bucket that has reached its limit is closed before the next tensor. `factored` is what PowerSGD makes of that, or
 * NULL. */
static void add_to_bucket(struct buckets *buckets, uint64_t elements, const struct dtp_factored *factored)
{
    uint64_t bytes = buckets->element_bytes * elements;
    if (!bytes)
        return;
    if (!buckets->count || buckets->filled >= buckets->limit) {
        buckets->limit =
            buckets->count || buckets->cap != DTP_DDP_BUCKET_BYTES ? buckets->cap : DTP_DDP_FIRST_BUCKET_BYTES;
        close_bucket(buckets);
        buckets->filled = 0;
        buckets->count++;
    }
    buckets->filled += bytes;
    if (!factored)
        return;
    add_factored(&buckets->last, factored);
    add_factored(&buckets->out->factored, factored);
}

/* columns 0: of vectors. */
static void add_gradient(struct buckets *buckets, uint64_t elements, uint64_t columns)
{
    struct dtp_factored factored = {0};
    if (buckets->rank)
        dtp_factored_add(&factored, elements, columns, 1, buckets->rank);
    add_to_bucket(buckets, elements, buckets->rank ? &factored : NULL);
}

/* A layer's gradients as backward makes them. */
struct gradients {
    int count;
    struct gradient {
        uint64_t elements;
        struct dtp_factored factored;
    } of[DTP_LAYER_MATRICES + 1];
};

static void list_gradient(struct gradients *list, uint64_t rank, uint64_t elements, uint64_t columns)
{
    list->of[list->count] = (struct gradient){.elements = elements};
    if (rank)
        dtp_factored_add(&list->of[list->count].factored, elements, columns, 1, rank);
    list->count++;
}

/* From its last operator on, matrix by matrix, of those that cast a norm for themselves from the last; its vectors are
 * small and taken as one. */
static void list_layer(struct gradients *list, uint64_t rank, const struct dtp_layer_kind *kind, bool casts_apart)
{
    struct dtp_layer_operator op[DTP_LAYER_OPERATORS];
    list->count = 0;
    for (int at = dtp_layer_operators(kind, op) - 1; at >= 0; at--)
        for (int turn = 0; turn < kind->matrices && op[at].kind == DTP_LAYER_OP_PROJECTION; turn++) {
            bool of_norm = op[at].reads & (DTP_TENSOR_BIT(NORM1) | DTP_TENSOR_BIT(NORM2));
            int i = casts_apart && of_norm ? kind->matrices - 1 - turn : turn;
            if (op[at].makes & UINT64_C(1) << kind->matrix[i].result)
                list_gradient(list, rank, kind->matrix[i].groups * kind->matrix[i].out * kind->matrix[i].in,
                              kind->matrix[i].in);
        }
    list_gradient(list, rank, dtp_layer_vector_elements(kind), 0);
}

/* Those of adapters, in the order of readiness: projections from the last, each one's matrices from the first.
 * Embedding and head may have buckets of another dtype. */
static void fill_with_adapters(const struct dtp_traffic *job, struct buckets *buckets, struct buckets *of_ends)
{
    const struct dtp_plan *plan = job->plan;
    const struct dtp_units *u = &job->units;
    struct dtp_layer_kind kind;
    struct dtp_layer_operator op[DTP_LAYER_OPERATORS];
    const struct dtp_transformer kept = dtp_plan_packed_experts(job->transformer, plan);
    dtp_layer_kind_of(&kept, dtp_layer_mlp_of(&kept), plan->fused_qkv, plan->fused_gate_up, &kind);
    dtp_plan_adapt_kind(plan, &kind);
    int operators = dtp_layer_operators(&kind, op);
    bool ends = plan->adapters.train_ends;
    add_gradient(of_ends, ends ? u->head : 0, 0);
    for (uint64_t layer = 0; layer < job->transformer->layers; layer++)
        for (int i = operators - 1; i >= 0; i--)
            for (int m = 0; m < kind.matrices; m++)
                if (op[i].kind == DTP_LAYER_OP_PROJECTION && op[i].makes & UINT64_C(1) << kind.matrix[m].result)
                    add_gradient(buckets, dtp_adapter_elements(&kind.matrix[m]), 0);
    add_gradient(of_ends, ends ? u->position : 0, 0);
    add_gradient(of_ends, ends ? u->embedding : 0, 0);
}

struct dtp_factored dtp_traffic_factored(const struct dtp_traffic *traffic)
{
    const struct dtp_transformer *t = traffic->transformer;
    const struct dtp_plan *plan = traffic->plan;
    const struct dtp_units *u = &traffic->units;
    struct dtp_factored out = {0};
    struct dtp_layer_kind kind;
    if (dtp_plan_adapts(plan)) { /* whose gradients are sent whole */
        out.whole = u->trained;
        return out;
    }
    dtp_layer_kind_of(t, dtp_layer_mlp_of(t), plan->fused_qkv, plan->fused_gate_up, &kind);
    for (int i = 0; i < kind.matrices; i++)
        dtp_factored_add(&out, t->layers * kind.matrix[i].out * kind.matrix[i].in, kind.matrix[i].in, t->layers,
                         plan->powersgd_rank);
    dtp_factored_add(&out, u->head, t->hidden, 1, plan->powersgd_rank);
    dtp_factored_add(&out, u->position, t->hidden, 1, plan->powersgd_rank);
    dtp_factored_add(&out, u->embedding, t->hidden, 1, plan->powersgd_rank);
    out.whole += u->total - t->layers * u->layer_matmul - u->head - u->embedding - u->position; /* vectors */
    return out;
}

/* Filled with gradients as backward makes them: head, layers from the last, embeddings. */
struct dtp_ddp_bucket_count dtp_traffic_ddp_buckets(const struct dtp_traffic *job, uint64_t g)
{
    const struct dtp_transformer *t = job->transformer;
    const struct dtp_units *u = &job->units;
    const struct dtp_parameter_count count = dtp_transformer_count(t);
    struct dtp_layer_kind kind;
    struct gradients layer[DTP_LAYER_MLPS];
    struct dtp_ddp_bucket_count out = {0};
    struct buckets buckets = {.cap = job->plan->ddp_bucket_bytes, .element_bytes = g, .out = &out};
    if (job->plan->comm_hook == DTP_COMM_HOOK_POWERSGD)
        buckets.rank = job->plan->powersgd_rank;
    if (dtp_plan_adapts(job->plan)) {
        struct dtp_ddp_bucket_count unused = {0};
        struct buckets ends = {
            .cap = buckets.cap, .element_bytes = dtp_plan_ends_gradient_bytes(job->plan), .out = &unused};
        bool mixed = dtp_plan_mixes_ends(job->plan);
        fill_with_adapters(job, &buckets, mixed ? &ends : &buckets);
        close_bucket(&buckets);
        out.count = buckets.count + ends.count;
        return out;
    }
    for (int mlp = 0; mlp < DTP_LAYER_MLPS; mlp++) {
        dtp_layer_kind_of(t, (enum dtp_layer_mlp)mlp, job->plan->fused_qkv, job->plan->fused_gate_up, &kind);
        list_layer(&layer[mlp], buckets.rank, &kind, dtp_plan_casts_apart(job->plan, &kind));
    }
    add_gradient(&buckets, u->head, t->hidden);
    add_gradient(&buckets, u->total - count.layers - u->head - u->embedding - u->position, 0);
    for (uint64_t left = t->layers; left > 0; left--) {
        bool experts = dtp_transformer_layer_has_experts(t, left - 1);
        const struct gradients *list = &layer[experts ? DTP_LAYER_EXPERTS : DTP_LAYER_DENSE];
        for (int i = 0; i < list->count; i++)
            add_to_bucket(&buckets, list->of[i].elements, buckets.rank ? &list->of[i].factored : NULL);
    }
    add_gradient(&buckets, u->position, t->hidden);
    add_gradient(&buckets, u->embedding, t->hidden);
    close_bucket(&buckets);
    out.count = buckets.count;
    return out;
}
