/* Our executor: one arena. A block has 11 tensors, with norms of q and k 13: input, two norms' results with their
 * statistics, qkv, the core's result with its log-sum-exp, the sum behind attention, up (gate and up as one), the
 * product. Branches side by side have no such sum, and one norm or two; norms behind branches keep what these returned,
 * whose gradient then stands beside the stream's. Its backward makes the product's gradient in place, so that the worst
 * stage is either the whole block with the stream's gradient and one of the MLP's [c f], or attention's tensors with
 * the gradients of the core and its workspace. */
#include "bounds/memory_bound.h"

#include "cost/attention_workspace.h"
#include "net/parameter_layout.h"
#include "plan/runtime.h"
#include "plan/runtime_sizes.h"

/* Elements of the three kinds of modules, each padded to equal shards, and of all. */
struct modules {
    uint64_t first, block, last, total;
    uint64_t head; /* of which has the head's matrix */
};

static uint64_t padded(const struct dtp_bound *b, uint64_t elements)
{
    uint64_t granule = b->units.ranks * DTP_PARAMETER_SHARD_ALIGNMENT;
    return dtp_divide_up(elements, granule) * granule;
}

static struct modules modules_of(const struct dtp_bound *b)
{
    const struct dtp_units *u = &b->units;
    uint64_t first = u->embedding + u->position, rest = u->total - b->layers * u->layer - first;
    struct modules m = {padded(b, first), padded(b, u->layer), padded(b, rest), 0, 0};
    m.total = m.first + b->layers * m.block + m.last;
    m.head = u->head ? m.last : m.first;
    return m;
}

/* Scratch of cuDNN's attention backward; our own takes none. */
static uint64_t core_workspace(const struct dtp_bound *b)
{
    const struct dtp_transformer *t = b->transformer;
    const struct dtp_plan *plan = b->plan;
    const struct dtp_attention_size size = {.batch = (uint32_t)plan->micro_batch,
                                            .sequence = (uint32_t)plan->sequence,
                                            .heads = (uint32_t)t->heads,
                                            .kv_heads = (uint32_t)t->kv_heads,
                                            .head_dim = (uint32_t)t->head_dim,
                                            .backward = true,
                                            .deterministic = !plan->executor.atomic_attention};
    bool fused = dtp_attention_is_fused(plan->precision.compute == DTP_BF16, size.sequence, size.head_dim,
                                        t->attention_softcap > 0);
    return fused ? dtp_divide_up(dtp_attention_workspace_bytes(&size), b->tokens) : 0;
}

static void size_block(struct dtp_bound *b)
{
    const struct dtp_transformer *t = b->transformer;
    struct dtp_activations *a = &b->activations;
    uint64_t c = b->bytes.compute, h = t->hidden, q = t->heads * t->head_dim, kv = t->kv_heads * t->head_dim,
             f = t->ffn;
    uint64_t up = dtp_activation_is_gated(t->activation) ? 2 * f : f, statistics = t->norm == DTP_RMS_NORM ? 4 : 8;
    uint64_t qkv = c * (q + 2 * kv), core = c * q + 4 * t->heads;
    enum dtp_checkpointing policy = b->plan->checkpointing;
    bool apart = b->plan->executor.gradient_stream;
    uint64_t raw = t->qk_norm ? c * (q + kv) + 4 * (t->qk_norm_wide ? 2 : t->heads + t->kv_heads) : 0; /* of q and k */
    bool front = t->norm_place != DTP_NORMS_AFTER, behind = t->norm_place != DTP_NORMS_BEFORE;
    uint64_t norms = front ? (t->parallel_block == DTP_PARALLEL_ONE_NORM ? 1 : 2) : 0; /* in front of branches */
    uint64_t norm = c * h + statistics, returned = behind ? norm : 0, sum = t->parallel_block ? 0 : c * h;
    uint64_t beside =
        behind || norms == 1 ? c * h : 0; /* a gradient that waits for the other branch, or for its norm */
    uint64_t attention = c * h + (front ? norm : 0) + qkv + raw + core + returned;
    a->layer_input = c * h;
    a->layer_all = attention + sum + (norms == 2 ? norm : 0) + returned + c * (up + f);
    a->layer_kept = policy == DTP_CHECKPOINT_NONE                  ? a->layer_all
                    : policy == DTP_CHECKPOINT_SELECTIVE_ATTENTION ? a->layer_all - core
                    : policy == DTP_CHECKPOINT_SELECTIVE_MATMUL    ? a->layer_all - norms * c * h - c * f
                                                                   : c * h;
    a->gradient = c * h;
    b->stage[0] = (struct dtp_bound_stage){a->layer_all + beside + (apart ? 2 * c * h + qkv : 0), 0, 0};
    b->stage[1] = (struct dtp_bound_stage){
        attention + beside + c * q + qkv + core_workspace(b) + (apart ? c * (up + f) + c * h : 0), 0, 0};
    b->stage[2] = b->stage[3] = b->stage[1];
}

/* A chunk of logits: the largest power of two of tokens, at least LOSS_CHUNK_LEAST, that takes at most
 * LOSS_CHUNK_BYTES. */
static uint64_t logits_bytes(const struct dtp_bound *b)
{
    uint64_t row = dtp_bytes_product(b->transformer->vocab, b->bytes.compute), most = DTP_EXECUTOR_LOSS_CHUNK_LEAST;
    while (2 * most * row <= DTP_EXECUTOR_LOSS_CHUNK_BYTES)
        most *= 2;
    most = b->plan->executor.loss_chunk ? b->plan->executor.loss_chunk : most;
    return dtp_bytes_product(most < b->tokens ? most : b->tokens, row);
}

/* Whole weights where they are gathered once a step or not at all; a ring of gathered blocks; the matmuls' workspace.
 */
static uint64_t rest_bytes(const struct dtp_bound *b, const struct modules *m, bool sharded)
{
    const struct dtp_plan *plan = b->plan;
    uint64_t c = b->bytes.compute, own = m->total / b->units.ranks;
    uint64_t ring = plan->prefetch ? plan->prefetch_depth + UINT64_C(1) : 1;
    uint64_t workspaces = (plan->executor.gradient_stream ? 2 : 1) * DTP_EXECUTOR_MATMUL_WORKSPACE_BYTES;
    uint64_t tables = b->transformer->position == DTP_POSITION_ROPE ? 4 * b->transformer->head_dim * plan->sequence : 0;
    uint64_t optimizer = plan->offload == DTP_OFFLOAD_NONE ? (b->bytes.moments + b->bytes.master) * own : 0;
    bool host_params = plan->offload == DTP_OFFLOAD_PARAMS;
    ring = ring < b->layers ? ring : b->layers;
    return workspaces + tables + optimizer + (host_params ? 0 : c * (sharded ? own : m->total)) +
           (sharded ? c * ring * m->block : 0) + 16 * b->tokens;
}

/* Gradients: whole ones rest on one GPU, and over several micro-steps that reduce once; else they move through two
 * buffers, the one being written and the one being reduced, into shards. */
void dtp_bound_executor(struct dtp_bound *b)
{
    const struct dtp_plan *plan = b->plan;
    const struct dtp_units *u = &b->units;
    bool shards = u->ranks > 1, several = plan->accumulate > 1;
    bool always = several && dtp_plan_reductions(plan) == plan->accumulate;
    bool host_params = plan->offload == DTP_OFFLOAD_PARAMS;
    bool sharded = host_params || (shards && dtp_plan_shards_params(plan) && plan->reshard_after_forward);
    bool moves = (shards && (!several || always)) || (!shards && always && b->cluster->gpus > 1);
    uint64_t r = b->cluster->gpus == 1 && !several ? b->bytes.compute : dtp_dtype_bytes(plan->precision.reduce);
    struct modules m = modules_of(b);
    uint64_t last = r * m.last, block = r * m.block, tied = u->head ? 0 : r * m.first;
    uint64_t whole = r * m.total, shard = whole / u->ranks;
    bool streams = !always && (plan->offload != DTP_OFFLOAD_NONE || plan->executor.update_in_backward);
    uint64_t all = moves && shards ? (streams ? 0 : shard) : whole, before = several ? all : 0;
    size_block(b);
    b->most_bytes = b->least_bytes = 0;
    uint64_t largest = m.first > m.block ? m.first : m.block;
    largest = m.last > largest ? m.last : largest;
    b->rest_bytes = rest_bytes(b, &m, sharded);
    if (shards && plan->executor.reduce_engine == DTP_ENGINE_COPY)
        b->rest_bytes += r * largest; /* what the others sent of a shard */
    else if (shards && always)
        b->rest_bytes += r * largest / u->ranks;
    if (shards && host_params)
        b->rest_bytes += 2 * b->bytes.compute * largest / u->ranks;
    uint64_t kept = dtp_bound_saved(b, b->layers), stream = dtp_bound_tokens(b, b->activations.gradient);
    uint64_t edges = sharded ? b->bytes.compute * m.head : 0, work = dtp_bound_block(b, 0, 0);
    uint64_t below = b->layers > 1 ? dtp_bound_saved(b, b->layers - 2) : 0;
    uint64_t end = (moves || !shards ? all : shard) + (moves || shards ? block : 0);
    dtp_bound_hold(b, before + kept + logits_bytes(b));
    dtp_bound_hold(b, before + dtp_bound_saved(b, b->layers - 1) + dtp_bound_tokens(b, b->activations.layer_all));
    dtp_bound_hold(b, all);
    dtp_bound_keep(b, before + kept + 2 * stream + edges + logits_bytes(b) + 4 * b->tokens +
                          (moves || !several ? r * m.head : 0));
    dtp_bound_keep(b,
                   before + dtp_bound_saved(b, b->layers - 1) + dtp_bound_tokens(b, b->activations.layer_all) + edges);
    dtp_bound_keep(b, before + dtp_bound_saved(b, b->layers - 1) + work +
                          (moves || !several ? block + last + tied : 0) + (moves && !several ? last / u->ranks : 0));
    dtp_bound_keep(b, before + below + work + (moves ? 2 * block + tied : several ? 0 : 2 * block + last + tied));
    dtp_bound_keep(b, end + dtp_bound_saved(b, 0) + work + (moves || shards ? block + tied : 0));
    dtp_bound_keep(b, end + (moves || shards ? r * m.first : 0) + stream);
}
