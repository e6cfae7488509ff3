/* Memory, owner by owner at the peak.
 *
 * The closed form gives one number of bytes per owner and instant. That number is a sum of a few known blocks (a
 * layer's saved activations, a gathered unit, a layer's gradients in the reduce dtype, ...), each a product of what
 * sharding.h and activations.h count. Explaining it means finding which blocks and how many of each add up to it, to
 * the byte; the blocks are large and unlike, so that no wrong sum matches by accident. Of several the shortest is
 * taken. */
#include "explain.h"

#include "activations.h"
#include "bytes.h"
#include "sharding.h"

#include <stdarg.h>
#include <string.h>

#define ULL(value) ((unsigned long long)(value))
#define MAX_BLOCKS 12
#define MAX_COUNT 2000                    /* of one block; more layers than any model has */
#define LARGEST_BLOCK (UINT64_C(1) << 50) /* times MAX_COUNT still fits int64_t; no GPU holds a millionth of it */

struct block {
    const char *name, *rule;
    char numbers[96]; /* of one such block */
    int64_t bytes;
    int64_t most; /* how often it can stand in the sum; negative: it is taken away */
};

struct sum {
    struct block blocks[MAX_BLOCKS];
    size_t count;
    int64_t taken[MAX_BLOCKS], best[MAX_BLOCKS];
    int64_t best_cost; /* blocks in the shortest sum found; 0 = none */
};

static void add_block(struct sum *sum, const char *name, const char *rule, uint64_t bytes, int64_t most,
                      const char *numbers, ...) __attribute__((format(printf, 6, 7)));

static void add_block(struct sum *sum, const char *name, const char *rule, uint64_t bytes, int64_t most,
                      const char *numbers, ...)
{
    if (sum->count == MAX_BLOCKS || bytes == 0 || bytes > LARGEST_BLOCK || most == 0)
        return;
    for (size_t i = 0; i < sum->count; i++) /* equal blocks (c = r) are one */
        if (sum->blocks[i].bytes == (int64_t)bytes && (sum->blocks[i].most > 0) == (most > 0)) {
            sum->blocks[i].most += most;
            return;
        }
    struct block *block = &sum->blocks[sum->count++];
    *block = (struct block){.name = name, .rule = rule, .bytes = (int64_t)bytes, .most = most};
    va_list arguments;
    va_start(arguments, numbers);
    vsnprintf(block->numbers, sizeof block->numbers, numbers, arguments);
    va_end(arguments);
}

static void accept(struct sum *sum, int64_t cost)
{
    if (sum->best_cost > 0 && sum->best_cost <= cost)
        return;
    sum->best_cost = cost;
    memcpy(sum->best, sum->taken, sizeof sum->best);
}

/* Depth-first over the blocks; the last one follows by division. */
static void search(struct sum *sum, size_t at, int64_t rest, int64_t cost)
{
    const struct block *block = &sum->blocks[at];
    int64_t most = block->most < -MAX_COUNT ? -MAX_COUNT : block->most > MAX_COUNT ? MAX_COUNT : block->most;
    if (sum->best_cost > 0 && cost >= sum->best_cost)
        return;
    if (at + 1 == sum->count) {
        int64_t times = rest / block->bytes;
        if (rest % block->bytes != 0 || (most > 0 ? times < 0 || times > most : times > 0 || times < most))
            return;
        sum->taken[at] = times;
        accept(sum, cost + (times > 0) + (times < 0));
        return;
    }
    for (int64_t times = 0; times <= (most > 0 ? most : -most); times++) {
        int64_t signed_times = most > 0 ? times : -times;
        sum->taken[at] = signed_times;
        search(sum, at + 1, rest - signed_times * block->bytes, cost + (times > 0));
    }
}

/* Adds the terms of one owner; one gap term where no sum of its blocks gives the bytes. */
static void explain_sum(struct sum *sum, uint64_t bytes, const char *owner, struct dtp_explanation *e)
{
    char name[128], rule[112];
    if (bytes == 0)
        return;
    if (sum->count > 0 && bytes <= DTP_BYTES_BOUND)
        search(sum, 0, (int64_t)bytes, 0);
    for (size_t i = 0; i < sum->count && sum->best_cost > 0; i++) {
        const struct block *block = &sum->blocks[i];
        int64_t times = sum->best[i];
        snprintf(name, sizeof name, "%s: %s", owner, block->name);
        if (times == 1)
            dtp_explain_term(e, name, block->rule, (double)block->bytes, "%s", block->numbers);
        else if (times != 0) {
            snprintf(rule, sizeof rule, "%s%s", block->most > MAX_BLOCKS ? "layers x " : "count x ", block->rule);
            dtp_explain_term(e, name, rule, (double)times * (double)block->bytes, "%lld x %s", (long long)times,
                             block->numbers);
        }
    }
    if (sum->best_cost == 0) {
        dtp_explain_term(e, owner, "", (double)bytes, "not itemised");
        e->terms[e->term_count - 1].gap = true;
    }
}

/* ---- the blocks ------------------------------------------------------------------------------------------------- */

struct memory_numbers {
    const struct dtp_job *job;
    const struct dtp_memory *memory;
    struct dtp_units u;
    struct dtp_element_bytes b;
    struct dtp_state_bytes state;
    struct dtp_activations a;
    uint64_t tokens, layer_gathered, root_gathered;
    int64_t layers;
};

static void explain_at_rest(const struct memory_numbers *n, const uint64_t *peak, struct dtp_explanation *e)
{
    struct sum params = {.count = 0}, optimizer = {.count = 0};
    bool sharded = dtp_plan_shards_params(&n->job->plan), states = dtp_plan_shards_optimizer(&n->job->plan);
    add_block(&params, "at rest", sharded ? "bytes x psi / N, rows padded" : "bytes x psi", n->state.params, 1,
              "%llu B x %llu", ULL(n->b.params), ULL(n->state.params / (n->b.params ? n->b.params : 1)));
    explain_sum(&params, peak[DTP_OWNER_PARAMS], "parameters", e);
    add_block(&optimizer, "at rest", states ? "(moments + master copy) x psi / N" : "(moments + master copy) x psi",
              n->state.optimizer, 1, "%llu B x %llu", ULL((n->b.moments + n->b.master)),
              ULL(n->state.optimizer / ((n->b.moments + n->b.master) ? (n->b.moments + n->b.master) : 1)));
    explain_sum(&optimizer, peak[DTP_OWNER_OPTIMIZER], "optimizer state", e);
}

static void explain_grads(const struct memory_numbers *n, uint64_t bytes, struct dtp_explanation *e)
{
    const struct dtp_units *u = &n->u;
    uint64_t g = n->b.grads, r = n->b.reduce, shard = g * u->layer_shard, whole = r * u->layer;
    struct sum sum = {.count = 0};
    bool sharded = dtp_plan_shards_grads(&n->job->plan);
    if (sharded)
        add_block(&sum, "all, sharded", "bytes x psi / N", n->state.grads, 1, "%llu B x %llu", ULL(g),
                  ULL(n->state.grads / (g ? g : 1)));
    if (sharded && n->job->plan.accumulate > 1)
        add_block(&sum, "accumulated whole, not reduced yet", "reduce bytes x psi", r * u->total, 1, "%llu B x %llu",
                  ULL(r), ULL(u->total));
    add_block(&sum, "all", "bytes x psi", g * u->total, 2, "%llu B x %llu", ULL(g), ULL(u->total));
    add_block(&sum, "embedding", "bytes x V h", g * u->embedding, 1, "%llu B x %llu", ULL(g), ULL(u->embedding));
    add_block(&sum, "down matrix", "bytes x f h", g * u->down, 1, "%llu B x %llu", ULL(g), ULL(u->down));
    if (n->job->plan.accumulate > 1 && whole > shard)
        add_block(&sum, "layers reduced since", "(reduce bytes x P - bytes x P / N)", whole - shard, -n->layers,
                  "(%llu B x %llu - %llu B x %llu)", ULL(r), ULL(u->layer), ULL(g), ULL(u->layer_shard));
    if (sharded)
        add_block(&sum, "layers already reduced", "bytes x P / N", shard, n->layers, "%llu B x %llu", ULL(g),
                  ULL(u->layer_shard));
    else
        add_block(&sum, "layers already made", "bytes x P", g * u->layer, n->layers, "%llu B x %llu", ULL(g),
                  ULL(u->layer));
    explain_sum(&sum, bytes, "gradients", e);
}

static void explain_activations(const struct memory_numbers *n, uint64_t bytes, struct dtp_explanation *e)
{
    const struct dtp_activations *a = &n->a;
    struct sum sum = {.count = 0};
    uint64_t t = n->tokens;
    if (t == 0)
        return;
    add_block(&sum, "final norm", "T x head bytes", dtp_bytes_product(t, a->head), 1, "%llu x %llu B", ULL(t),
              ULL(a->head));
    if (a->checkpoint_every && a->layer_all > a->layer_kept)
        add_block(&sum, "the layer recomputed", "T x (saved - kept)",
                  dtp_bytes_product(t, a->layer_all - a->layer_kept), 1, "%llu x %llu B", ULL(t),
                  ULL(a->layer_all - a->layer_kept));
    if (a->checkpoint_every)
        add_block(&sum, "checkpointed layers", "T x kept bytes", dtp_bytes_product(t, a->layer_kept), n->layers,
                  "%llu x %llu B", ULL(t), ULL(a->layer_kept));
    if (a->checkpoint_every != 1)
        add_block(&sum, "layers", "T x saved bytes", dtp_bytes_product(t, a->layer_all), n->layers, "%llu x %llu B",
                  ULL(t), ULL(a->layer_all));
    explain_sum(&sum, bytes, "activations", e);
}

static void explain_logits(const struct memory_numbers *n, uint64_t bytes, struct dtp_explanation *e)
{
    const struct dtp_activations *a = &n->a;
    struct sum sum = {.count = 0};
    uint64_t t = n->tokens, vocab = n->job->transformer.vocab;
    add_block(&sum, "cross entropy at its worst", "T x bytes per token", dtp_bytes_product(t, a->loss), 1,
              "%llu x %.4g B x %llu", ULL(t), (double)a->loss / (double)vocab, ULL(vocab));
    add_block(&sum, "logits", "T x bytes per token", dtp_bytes_product(t, a->logits), 1, "%llu x %.4g B x %llu", ULL(t),
              (double)a->logits / (double)vocab, ULL(vocab));
    add_block(&sum, "gradient of the logits", "T x bytes per token", dtp_bytes_product(t, a->logits_gradient), 1,
              "%llu x %.4g B x %llu", ULL(t), (double)a->logits_gradient / (double)vocab, ULL(vocab));
    explain_sum(&sum, bytes, "logits and loss", e);
}

#define ZERO3_LIVE UINT64_C(1000000000)   /* stage3_max_live_parameters */
#define ZERO3_PREFETCH UINT64_C(50000000) /* stage3_prefetch_bucket_size */
#define REDUCE_BUCKET UINT64_C(500000000) /* reduce_bucket_size */

static uint64_t at_most(uint64_t value, uint64_t limit)
{
    return value < limit ? value : limit;
}

static void explain_weights(const struct memory_numbers *n, const uint64_t *peak, struct dtp_explanation *e)
{
    const struct dtp_units *u = &n->u;
    uint64_t c = n->b.compute, unit = n->layer_gathered * u->layers_per_unit, ranks = u->ranks ? u->ranks : 1;
    struct sum weights = {.count = 0}, gather = {.count = 0};
    bool deepspeed = n->job->plan.runtime == DTP_RUNTIME_DEEPSPEED;
    if (deepspeed) {
        add_block(&weights, "live", "bytes x max_live_parameters", c * at_most(u->total, ZERO3_LIVE), 1,
                  "%llu B x %llu", ULL(c), ULL(at_most(u->total, ZERO3_LIVE)));
        add_block(&gather, "newest fetch", "bytes x prefetch bucket", c * at_most(u->total, ZERO3_PREFETCH), 1,
                  "%llu B x %llu", ULL(c), ULL(at_most(u->total, ZERO3_PREFETCH)));
    }
    add_block(&weights, "embedding, norm and head", "bytes x root", n->root_gathered, 1, "%llu B",
              ULL(n->root_gathered));
    add_block(&weights, "head cast by autocast", "bytes x V h", c * u->embedding, 1, "%llu B x %llu", ULL(c),
              ULL(u->embedding));
    add_block(&weights, "down matrix, already freed", "bytes x f h", c * u->down, -1, "%llu B x %llu", ULL(c),
              ULL(u->down));
    if (dtp_plan_autocast(&n->job->plan))
        add_block(&weights, "layers cast by autocast", "bytes x weights of a layer", c * u->layer_cast, 2 * n->layers,
                  "%llu B x %llu", ULL(c), ULL(u->layer_cast));
    else
        add_block(&weights, "layers gathered", "bytes x P", n->layer_gathered, n->layers, "%llu B x %llu", ULL(c),
                  ULL(u->layer));
    if (dtp_plan_keeps_fp8(&n->job->plan))
        add_block(&weights, "fp8 casts by rows and columns", "2 x 1 B x matmul P", 2 * u->layer_matmul, n->layers,
                  "2 B x %llu", ULL(u->layer_matmul));
    explain_sum(&weights, peak[DTP_OWNER_WEIGHTS], "weights", e);
    add_block(&gather, "root", "bytes x root", n->root_gathered, 1, "%llu B", ULL(n->root_gathered));
    add_block(&gather, "root, own shard cast", "bytes x root / N", n->root_gathered / ranks, 1, "%llu B / %llu",
              ULL(n->root_gathered), ULL(ranks));
    add_block(&gather, "own shard of a unit, cast", "bytes x P / N", unit / ranks, 2, "%llu B / %llu", ULL(unit),
              ULL(ranks));
    add_block(&gather, "flat buffer of a unit", "bytes x P", unit, 2, "%llu B x %llu", ULL(c),
              ULL(u->layers_per_unit * u->layer));
    explain_sum(&gather, peak[DTP_OWNER_GATHER], "all-gather", e);
}

/* DDP's buckets are among the gradients; what autograd made is a second copy beside them. */
static void add_replicated_blocks(struct sum *sum, const struct memory_numbers *n)
{
    const struct dtp_units *u = &n->u;
    uint64_t g = n->b.grads, c = n->b.compute;
    if (n->job->plan.runtime == DTP_RUNTIME_DEEPSPEED)
        add_block(sum, "reduction buckets", "bytes x reduce_bucket_size", g * at_most(u->total, REDUCE_BUCKET), 3,
                  "%llu B x %llu", ULL(g), ULL(at_most(u->total, REDUCE_BUCKET)));
    add_block(sum, "gradients beside their buckets", "bytes x psi", g * u->total, 1, "%llu B x %llu", ULL(g),
              ULL(u->total));
    add_block(sum, "gradient of the head", "compute bytes x V h", c * u->embedding, 1, "%llu B x %llu", ULL(c),
              ULL(u->embedding));
    add_block(sum, "gradient of the embedding", "bytes x V h", g * u->embedding, 1, "%llu B x %llu", ULL(g),
              ULL(u->embedding));
    add_block(sum, "largest gradient before its bucket", "bytes x f h", g * u->down, 1, "%llu B x %llu", ULL(g),
              ULL(u->down));
    add_block(sum, "layers' gradients beside their buckets", "bytes x P", g * u->layer, n->layers, "%llu B x %llu",
              ULL(g), ULL(u->layer));
}

static void add_sharded_blocks(struct sum *sum, const struct memory_numbers *n)
{
    const struct dtp_units *u = &n->u;
    uint64_t c = n->b.compute, r = n->b.reduce, g = n->b.grads;
    int64_t unit_layers = u->layers_per_unit ? (int64_t)u->layers_per_unit : 1;
    if (n->job->plan.runtime == DTP_RUNTIME_DEEPSPEED)
        add_block(sum, "reduction buckets", "bytes x reduce_bucket_size", g * at_most(u->total, REDUCE_BUCKET), 2,
                  "%llu B x %llu", ULL(g), ULL(at_most(u->total, REDUCE_BUCKET)));
    add_block(sum, "gradients of embedding and head", "bytes x V h", c * u->embedding, 2, "%llu B x %llu", ULL(c),
              ULL(u->embedding));
    add_block(sum, "gradient of the down matrix", "bytes x f h", c * u->down, 1, "%llu B x %llu", ULL(c), ULL(u->down));
    add_block(sum, "root, reduce-scatter input", "reduce bytes x root", r * u->root, 1, "%llu B x %llu", ULL(r),
              ULL(u->root));
    add_block(sum, "root, gradients", "bytes x root", c * u->root, 1, "%llu B x %llu", ULL(c), ULL(u->root));
    add_block(sum, "layers' gradients", "bytes x P", c * u->layer, u->count ? 2 * unit_layers : n->layers,
              "%llu B x %llu", ULL(c), ULL(u->layer));
    add_block(sum, "reduce-scatter input", "reduce bytes x P", r * u->layer, 2 * unit_layers, "%llu B x %llu", ULL(r),
              ULL(u->layer));
}

static void explain_reduce(const struct memory_numbers *n, uint64_t bytes, struct dtp_explanation *e)
{
    struct sum sum = {.count = 0};
    if (dtp_plan_shards_params(&n->job->plan))
        add_sharded_blocks(&sum, n);
    else
        add_replicated_blocks(&sum, n);
    explain_sum(&sum, bytes, "reduction", e);
}

static void explain_workspace(const struct memory_numbers *n, uint64_t bytes, struct dtp_explanation *e)
{
    const struct dtp_activations *a = &n->a;
    const struct dtp_units *u = &n->u;
    uint64_t t = n->tokens, moment = dtp_dtype_bytes(n->job->plan.precision.moments);
    uint64_t shard = dtp_divide_up(u->total, u->ranks ? u->ranks : 1);
    struct sum sum = {.count = 0};
    /* At the end of forward nothing else is there: matmul workspaces, RoPE's tables, the tokens. */
    add_block(&sum, "libraries and tables", "cuBLAS workspaces, RoPE tables, token ids",
              n->memory->phase_bytes[DTP_PHASE_FORWARD_END][DTP_OWNER_WORKSPACE], 1, "%llu B",
              ULL(n->memory->phase_bytes[DTP_PHASE_FORWARD_END][DTP_OWNER_WORKSPACE]));
    add_block(&sum, "gradient of the residual stream", "T x bytes x h", dtp_bytes_product(t, a->gradient), 1,
              "%llu x %llu B", ULL(t), ULL(a->gradient));
    add_block(&sum, "gradients inside the layer", "T x bytes per token", dtp_bytes_product(t, a->layer_backward), 1,
              "%llu x %llu B", ULL(t), ULL(a->layer_backward));
    add_block(&sum, "partial sums of the embedding's gradient", "4 B x h x rows", a->embedding_backward, 1, "%llu B",
              ULL(a->embedding_backward));
    add_block(&sum, "foreach AdamW's sqrt(v)", "moment bytes x psi / N", moment * u->total_shard, 1, "%llu B x %llu",
              ULL(moment), ULL(u->total_shard));
    add_block(&sum, "foreach AdamW's sqrt(v)", "moment bytes x psi", moment * u->total, 1, "%llu B x %llu", ULL(moment),
              ULL(u->total));
    add_block(&sum, "fp32 gradients for the step", "4 B x psi / N", 4 * shard, 1, "4 B x %llu", ULL(shard));
    explain_sum(&sum, bytes, "workspace", e);
}

/* ---- groups ----------------------------------------------------------------------------------------------------- */

/* Where a runtime's rules of buffers and lifetimes were read. */
static const char *memory_source(const struct dtp_plan *plan)
{
    bool sharded = dtp_plan_shards_params(plan);
    switch (plan->runtime) {
    case DTP_RUNTIME_TORCH:
        return !sharded
                   ? "PyTorch: distributed.py and reducer.cpp of DDP, zero_redundancy_optimizer.py, autocast_mode.cpp"
               : plan->fsdp1
                   ? "PyTorch: fsdp/_runtime_utils.py, _flat_param.py"
                   : "PyTorch: fsdp/_fully_shard/_fsdp_param_group.py, _fsdp_collectives.py; allocation traces";
    case DTP_RUNTIME_DEEPSPEED:
        return sharded ? "DeepSpeed: runtime/zero/stage3.py, partitioned_param_coordinator.py"
                       : "DeepSpeed: runtime/zero/stage_1_and_2.py";
    case DTP_RUNTIME_MEGATRON: return "Megatron-Core: distributed/, optimizer/distrib_optimizer.py";
    case DTP_RUNTIME_DTPLAN: return "dtplan's own executor: buffers placed before the step starts";
    }
    return "";
}

static void explain_layer(const struct memory_numbers *n, struct dtp_explanation *e)
{
    const struct dtp_transformer *m = &n->job->transformer;
    const struct dtp_activations *a = &n->a;
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

static void explain_device(const struct memory_numbers *n, struct dtp_explanation *e)
{
    const struct dtp_memory *m = n->memory;
    dtp_explain_group(e, "DEVICE MEMORY", "what the driver reports as used", DTP_EXPLAIN_BYTES,
                      (double)m->device_peak_bytes);
    dtp_explain_source(e, "PyTorch c10/cuda/CUDACachingAllocator.cpp; context and NCCL measured (see constants)");
    dtp_explain_term(e, "allocated", "tensors, as above", (double)m->allocated_peak_bytes, "%llu B",
                     ULL(m->allocated_peak_bytes));
    dtp_explain_term(e, "reserved beyond that", "the caching allocator's segments: other streams, rounding",
                     (double)(m->reserved_peak_bytes - m->allocated_peak_bytes), "%llu B - %llu B",
                     ULL(m->reserved_peak_bytes), ULL(m->allocated_peak_bytes));
    dtp_explain_term(e, "CUDA context", "constant context_bytes", (double)m->context_bytes, "%llu B",
                     ULL(m->context_bytes));
    dtp_explain_term(e, "NCCL", "library and one set of buffers per communicator", (double)m->nccl_bytes, "%llu B",
                     ULL(m->nccl_bytes));
    dtp_explain_close(e, "other", "");
    if (m->host_bytes == 0)
        return;
    dtp_explain_group(e, "HOST MEMORY", "of a node", DTP_EXPLAIN_BYTES, (double)m->host_bytes);
    dtp_explain_term(e, "offloaded state", "GPUs per node x pinned and pageable bytes of one",
                     (double)(n->state.host * n->job->cluster.gpus_per_node), "%u x %llu B",
                     n->job->cluster.gpus_per_node, ULL(n->state.host));
    dtp_explain_close(e, "other", "");
}

void dtp_explain_memory(const struct dtp_job *job, const struct dtp_prediction *prediction, struct dtp_explanation *e)
{
    const struct dtp_memory *m = &prediction->memory;
    struct memory_numbers n = {.job = job, .memory = m, .layers = (int64_t)job->transformer.layers};
    char words[112];
    dtp_units_count(&job->transformer, &job->cluster, &job->plan, &n.u);
    dtp_element_bytes_count(&job->plan, &n.b);
    dtp_state_bytes_count(&job->transformer, &n.u, &job->plan, &n.b, NULL, &n.state);
    dtp_activations_count(&job->transformer, &job->cluster, &job->plan, &n.a);
    n.tokens = dtp_bytes_product(job->plan.micro_batch, job->plan.sequence);
    n.layer_gathered = n.u.layer_matmul * n.b.gathered + (n.u.layer - n.u.layer_matmul) * n.b.compute;
    uint64_t layers = n.u.count ? 0 : job->transformer.layers; /* without units all layers are in the root */
    n.root_gathered = layers * n.layer_gathered + (n.u.root - layers * n.u.layer) * n.b.compute;
    const uint64_t *peak = m->phase_bytes[m->peak_phase];
    snprintf(words, sizeof words, "allocated on one GPU at the %s", dtp_phase_words(m->peak_phase));
    dtp_explain_group(e, "MEMORY AT THE PEAK", words, DTP_EXPLAIN_BYTES, (double)m->allocated_peak_bytes);
    dtp_explain_source(e, memory_source(&job->plan));
    explain_at_rest(&n, peak, e);
    explain_grads(&n, peak[DTP_OWNER_GRADS], e);
    explain_activations(&n, peak[DTP_OWNER_ACTIVATIONS], e);
    explain_logits(&n, peak[DTP_OWNER_LOGITS], e);
    explain_weights(&n, peak, e);
    explain_reduce(&n, peak[DTP_OWNER_REDUCE], e);
    explain_workspace(&n, peak[DTP_OWNER_WORKSPACE], e);
    dtp_explain_close(e, "other", "");
    explain_layer(&n, e);
    explain_device(&n, e);
}
