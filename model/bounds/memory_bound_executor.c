/* Our executor: one arena. A block has 11 tensors, with norms of q and k 13: input, two norms' results with their
 * statistics, qkv, the core's result with its log-sum-exp, the sum behind attention, up (gate and up as one), the
 * product. Branches side by side have no such sum, and one norm or two; norms behind branches keep what these returned.
 * Gradients are whole modules. Where they move, the one being reduced stands beside the one being written, and shards
 * of those that have gone. Let m blocks have begun theirs, the head before them (and the table that is tied to it):
 *   going(m)     the head | the head and a block | two blocks
 *   shards(m)    nothing | the head's and m - 1 blocks'
 * Where adapters alone are trained, their modules have gradients and state, beside weights that rest.
 * At each m stand: all of them where they rest over micro-steps, or as many as were made where nothing is reduced; all
 * and those going where whole sums are added to; those going and shards where shards are scattered, beside whole ones
 * of the blocks to come where these hold the sum of micro-steps.
 * Experts: of k a token rows are sent, which come back; a rank has room for m k of each token's (m is 1 where each rank
 * has all experts), wherever experts read, make or return rows. What they return stands while it is sent back, and so
 * do the gradients of both. Ranks that divide experts shard these among as many ranks fewer.
 * Latent attention keeps its latents, and what their norms made of them, beside q, k and v as they are packed. */
#include "bounds/memory_bound.h"

#include "cost/attention_workspace.h"
#include "net/parameter_layout.h"
#include "plan/comm_hook.h"
#include "plan/runtime.h"
#include "plan/runtime_sizes.h"

#include <math.h>

enum { FIRST, BLOCK, LAST, KINDS }; /* modules: embeddings, a block, final norm and head */

struct executor {
    uint64_t elements[KINDS], largest, total, own; /* trained, padded to equal shards: of modules, of all; a rank's */
    uint64_t slot; /* of the ring: room for any block, and for any block's divided experts, which are another module */
    uint64_t frozen; /* bytes of the others, with the largest matrix unpacked */
    /* Bytes of gradients as they are made, and as the optimizer reads them: of modules, [BLOCK] of all blocks; of a
     * block of each kind, and of its divided experts, whose shard stands beside its attention. */
    uint64_t whole[KINDS], shard[KINDS], all_whole, all_shard;
    uint64_t block_whole[DTP_LAYER_MLPS], block_shard[DTP_LAYER_MLPS], early;
    int head;                           /* the module that has the head's matrix */
    bool several, always, shards, sums; /* sums: whole gradients of later micro-steps are added to the first ones' */
    bool sharded, streams; /* weights are gathered module by module; shards of blocks leave through two that stand */
    bool alone; /* one rank, whose blocks are updated behind their backward: the gradients of one at a time */
};

/* Of the last so many blocks, of which those of each kind have so much. */
static uint64_t blocks(const struct dtp_bound *b, const uint64_t *of_kind, uint64_t count)
{
    return dtp_bound_between(b, of_kind, b->layers - count, b->layers);
}

/* Of that block alone, the `count`th from the last. */
static uint64_t one(const struct dtp_bound *b, const uint64_t *of_kind, uint64_t count)
{
    return dtp_bound_between(b, of_kind, b->layers - count, b->layers - count + 1);
}

/* Of a token, scratch of attention's backward; where it runs in steps of a ring a step's terms of gradients of q, of k
 * and v, keys and values at hand and on their way, and sums of their gradients, which come and go. */
static uint64_t core_workspace(const struct dtp_bound *b, const struct dtp_layer_kind *k)
{
    const struct dtp_attention_asked asked = dtp_attention_asked_of(b->transformer, b->plan, true);
    const bool exchanges = b->plan->cp > 1 && b->plan->cp_comm == DTP_CP_A2A;
    const uint64_t c = b->bytes.compute, parts = c * (b->plan->cp > 2 ? 10 : 6) * k->d_kv,
                   ring = asked.in_steps ? c * k->d_q + parts : 0;
    return dtp_divide_up(dtp_attention_planned_bytes(&asked), b->tokens) +
           (exchanges ? c * (3 * k->d_core + k->d_q + 2 * k->d_kv) : ring);
}

/* Rows that a rank's experts have room for, of each that its tokens send: as many times as the plan says, or for
 * whatever may come; no more than each token has experts, or the rank. */
static double room(const struct dtp_plan *plan, const struct dtp_layer_kind *k)
{
    double ranks = plan->ep > 1 ? plan->ep : 1, own = (double)k->experts / ranks;
    double asked = plan->executor.expert_room > 0 ? plan->executor.expert_room : ranks;
    return k->experts ? fmin(asked, ranks * fmin(1, own / (double)k->experts_per_token)) : 1;
}

/* Of a token, bytes around experts' matmuls. Kept: rows that came; scores; of shared experts; weights and routes of
 * rows that go, and where ranks divide experts of those that came. Results: what experts return and what is sent of it,
 * or both gradients; where shared experts are weighed theirs. */
struct routed {
    uint64_t kept, results;
};
static struct routed routed_of(const struct dtp_bound *b, const struct dtp_layer_kind *k, double times)
{
    const double rows = (double)k->experts_per_token, divided = b->plan->ep > 1 ? 1 : 0;
    const uint64_t c = b->bytes.compute, h = k->hidden, sent = k->experts_per_token,
                   came = (uint64_t)ceil(times * rows), shared = 3 * k->shared_ffn + (k->shared_gate ? h + 1 : 0),
                   routes = 12 * sent + (b->plan->ep > 1 ? 16 * came : 4 * sent),
                   back = (uint64_t)ceil((divided + times) * rows + (k->shared_ffn ? 1 : 0));
    if (!k->experts)
        return (struct routed){0, 0};
    return (struct routed){c * (came * h + k->experts + shared) + routes, c * h * back};
}

/* What a block's backward has beside the stream's gradient, in three stages. mlp: what was kept; a product or second
 * norm that was not is made again, beside its gradient. core: attention's tensors, its gradients and workspace. With a
 * stream of weight gradients, what these read stands until a norm's backward behind the branch's last one: up's
 * gradient to that of the first norm, or where branches side by side have norms of their own, to the second's behind
 * the core's gradient; of one norm the product too; qkv's to the block below's first, or where no norm stands in front
 * of branches, all of the block to there, beside what is replayed. */
void dtp_bound_executor_kind(struct dtp_bound *b, const struct dtp_layer_kind *k, int index, struct dtp_activations *a)
{
    const struct dtp_plan *plan = b->plan;
    /* what projections read is kept as its cast, if that is what their weights' gradients are made of */
    const bool fp8 = plan->precision.compute == DTP_FP8 && dtp_plan_runs_narrow(plan, DTP_PRODUCT_WEIGHT_GRADIENT);
    const uint64_t c = b->bytes.compute, n = fp8 ? 1 : c, h = k->hidden, q = k->d_q, kv = k->d_kv;
    const double times = room(plan, k);
    const uint64_t f = (uint64_t)ceil(times * (double)k->ffn), up = k->gated ? 2 * f : f, read = 4 * k->norm_statistics;
    const struct routed routed = routed_of(b, k, times);
    const uint64_t whole_up = c * up, kept_up = plan->executor.activation_fp8_input_store ? up : whole_up;
    const uint64_t qkv = c * (q + kv + (k->kv_latent ? k->d_core : kv)), core = c * k->d_core + 4 * k->heads;
    const bool apart = plan->executor.gradient_stream, behind = k->norms_after,
               policy_input = plan->checkpointing != DTP_CHECKPOINT_NONE,
               core_lost = plan->checkpointing == DTP_CHECKPOINT_SELECTIVE_ATTENTION,
               lost = plan->checkpointing == DTP_CHECKPOINT_SELECTIVE_MATMUL;
    const uint64_t latents = k->kv_latent ? c * (2 * (k->q_latent + k->kv_latent) + k->rope_head_dim) : 0;
    const uint64_t raw = k->qk_norm ? c * (q + kv) + 4 * (k->qk_norm_wide ? 2 : k->heads + k->kv_heads) : 0;
    const uint64_t norms = !k->norms_before ? 0 : k->parallel == DTP_PARALLEL_ONE_NORM ? 1 : 2; /* before branches */
    const uint64_t returned = behind ? n * h + read : 0, sum = k->parallel ? 0 : c * h, second = norms == 2 ? c * h : 0;
    /* what the matrices read that are trained, or whose adapters are: results of norms, the activation's product */
    const uint32_t trained = k->adapted ? plan->adapters.targets : DTP_TARGETS_ALL,
                   of_first = DTP_TARGETS_QKV | (norms == 1 ? DTP_TARGETS_UP : 0);
    const uint64_t first = norms && trained & of_first ? n * h : 0,
                   second_read = norms == 2 && trained & DTP_TARGETS_UP ? n * h : 0,
                   product = trained & 1u << DTP_TARGET_DOWN ? n * f : 0;
    const uint64_t beside = behind || norms == 1 ? c * h : 0; /* a gradient waits for the other branch, or a norm */
    const uint64_t attention = c * h + first + (norms ? read : 0) + qkv + core + returned + b->low + raw + latents +
                               (latents ? 4 : 0) + (k->q_latent ? 4 : 0);
    a->layer_input = a->gradient = c * h;
    a->layer_all = attention + sum + second_read + (norms == 2 ? read : 0) + returned + kept_up + product + routed.kept;
    a->layer_kept = core_lost      ? a->layer_all - core
                    : lost         ? a->layer_all - first - second_read - product
                    : policy_input ? c * h
                                   : a->layer_all;
    const bool input = a->layer_kept == c * h;
    const uint64_t output = k->parallel && norms == 2 ? second + c * q : 0;
    uint64_t again = apart && lost ? c * f + 2 * second : apart || lost ? larger(c * f, larger(second, output)) : 0;
    uint64_t held = c * up + (k->parallel ? c * f : second);
    if (k->experts) /* rows that came; of shared experts */
        held += routed.results + c * 2 * k->shared_ffn;
    /* up's gradient beside its casts and its weight's, by rows and by columns, for which the activation has gone, where
     * it was kept; or that activation before it is cast, beside down's; what attention returned by columns in replays
     */
    uint64_t up_again = again;
    if (fp8)
        up_again = (lost ? 2 * up + second_read : 2 * up - f) + (input ? k->d_core : 0),
        again = (lost ? c * f + f : c * f) + (input ? k->d_core : 0);
    again = larger(again, c * k->shared_ffn); /* their backward comes before that of experts */
    const uint64_t mlp = (input ? a->layer_all : a->layer_kept) + (lost || product ? 0 : c * f); /* no tensor's room */
    const uint64_t made = c * k->d_core + qkv + core_workspace(b, k);
    /* with nothing trained below, backward of the first layer needs no q, k, v, nor an MLP beside attention */
    const bool inner = !k->adapted || trained & DTP_TARGETS_QKV || plan->adapters.train_ends,
               beside_mlp = k->parallel && !(trained & (DTP_TARGETS_UP | 1u << DTP_TARGET_DOWN));
    const uint64_t result = trained & 1u << DTP_TARGET_OUTPUT ? c * k->d_core : 0,
                   unread = inner ? 0 : (beside_mlp ? a->layer_all : attention) - returned - b->low - first - result;
    const uint64_t alone = policy_input && b->layers == 1 ? unread : 0, narrowed = kept_up < whole_up ? whole_up : 0,
                   in_core = attention - (second && lost && first ? c * h : 0) + made + (apart && !output ? held : 0);
    const uint64_t in_mlp = mlp - alone + beside + (apart ? 2 : 1) * routed.results + narrowed,
                   matrix = fp8 ? h * k->ffn : 0,
                   exchanged = plan->cp > 1 && plan->cp_comm == DTP_CP_A2A
                                   ? attention + 4 * c * k->d_core + c * up + (k->parallel ? 0 : second)
                                   : 0; /* results and gradients come and go beside up's weight gradient */
    struct dtp_bound_stage *stage = &b->stage[b->stages];
    stage[0] = (struct dtp_bound_stage){in_mlp + again, .bytes = matrix};
    stage[1] = (struct dtp_bound_stage){in_mlp + up_again, .bytes = k->gated ? 2 * matrix : matrix};
    stage[2] = (struct dtp_bound_stage){inner || b->layers > 1 ? larger(in_core, exchanged) + beside : 0};
    /* gradients as they are projected, of latents as well, and what they multiply */
    const uint64_t heads = k->heads * (2 * k->head_dim - k->rope_head_dim) + k->d_core,
                   projected = latents ? c * heads + latents : qkv;
    const uint64_t carried = apart && plan->offload == DTP_OFFLOAD_NONE ? c * h + projected : 0;
    const uint64_t opened =
        (input ? a->layer_all : a->layer_kept) + c * h + carried + (carried && !norms ? c * (q + 3 * h + up) : 0);
    /* of whole inputs of the MLP beside their casts; of latents as all come together */
    const uint64_t branch = k->parallel || (input && k->experts) ? c * h : 0, /* experts' results join the stream */
        passing = input ? larger(c * f + whole_up + (narrowed ? up : 0), latents ? projected + qkv : 0)
                        : larger(lost || fp8 ? c * f : 0, narrowed);
    b->passing[index] = c * h + branch + passing + (fp8 ? (input ? 2 : 1) * f : 0) + routed.results;
    b->cut = policy_input ? 0 : dtp_bound_tokens(b, unread);
    b->returned[index] = a->layer_all + c * h + routed.results, b->carried = larger(b->carried, carried);
    b->opened = larger(b->opened, opened);
    b->stages += DTP_BOUND_EXECUTOR_STAGES;
    b->replayed = larger(b->replayed, input ? opened + (behind ? c * h : 0) + narrowed : 0);
}

/* Gradients that are rounded once and read by the optimizer have the type of what they are made of; a head's, in chunks
 * or the embedding's too, are added up; a copy engine's sums are fp32 where there is a master copy. */
static struct executor executor_of(const struct dtp_bound *b, bool chunks)
{
    const struct dtp_plan *plan = b->plan;
    const struct dtp_units *u = b->units, *t = b->trained;
    const uint64_t c = b->bytes.compute, r = dtp_dtype_bytes(plan->precision.reduce),
                   first = t->embedding + t->position, even = DTP_PARAMETER_SHARD_ALIGNMENT, all = even * u->ranks;
    const bool on_host = plan->offload != DTP_OFFLOAD_NONE, alone = b->cluster->gpus == 1;
    struct executor x = {
        .elements = {dtp_round_up(first, all), 0, dtp_round_up(t->total - b->layers * t->layer - first, all)}};
    x.head = u->head ? LAST : FIRST, x.several = plan->accumulate > 1, x.shards = u->ranks > 1;
    x.alone = plan->executor.update_in_backward && alone;
    x.always = x.several && dtp_plan_reductions(plan) == plan->accumulate, x.sums = x.always && !x.shards && !alone;
    x.sharded = plan->offload == DTP_OFFLOAD_PARAMS ||
                (x.shards && dtp_plan_shards_params(plan) && plan->reshard_after_forward);
    x.streams = (on_host || plan->executor.update_in_backward) && x.shards && !x.always;
    const bool once = alone && !x.several,
               wide = plan->executor.reduce_engine == DTP_ENGINE_COPY && x.shards && b->bytes.master && !on_host;
    uint64_t block[DTP_LAYER_MLPS], own[DTP_LAYER_MLPS], of_blocks = once ? c : r, apart = 0;
    for (int i = 0; i < (b->uniform ? 1 : DTP_LAYER_MLPS); i++) { /* experts that ranks divide are their own module */
        const bool divided = (b->uniform || i == DTP_LAYER_EXPERTS) && !dtp_plan_adapts(plan);
        const uint64_t experts = divided ? dtp_round_up(u->expert_elements, even * u->expert_ranks) : 0,
                       rest = dtp_round_up(b->layer_trained[i] - (experts ? u->expert_elements : 0), all);
        block[i] = rest + experts, own[i] = rest / u->ranks + (experts ? experts / u->expert_ranks : 0);
        x.block_whole[i] = of_blocks * block[i], x.block_shard[i] = (wide ? 4 : of_blocks) * own[i];
        x.elements[BLOCK] = larger(x.elements[BLOCK], block[i]);
        x.slot = larger(x.slot, rest), apart = experts;
        x.early = experts ? (wide ? 4 : of_blocks) * experts / u->expert_ranks : 0;
    }
    x.slot += apart;
    for (int i = 0; i < KINDS; i++) {
        const uint64_t bytes = once && (i != x.head || (!chunks && u->head)) ? c : r,
                       elements = i == BLOCK ? blocks(b, block, b->layers) : x.elements[i],
                       part = i == BLOCK ? blocks(b, own, b->layers) : elements / u->ranks;
        x.largest = larger(x.largest, x.elements[i]), x.total += elements, x.own += part;
        x.whole[i] = bytes * elements, x.shard[i] = (wide ? 4 : bytes) * part;
        x.all_whole += x.whole[i], x.all_shard += x.shard[i];
    }
    if (dtp_plan_adapts(plan)) {
        struct dtp_trained_count count;
        dtp_plan_trained(b->transformer, plan, &count);
        /* beside what the down matrix reads it is unpacked alone */
        uint64_t up = (dtp_activation_is_gated(b->transformer->activation) ? 2 : 1) * u->down,
                 other = larger(up, u->qkv), product = b->tokens * (u->down / b->transformer->hidden);
        x.frozen = count.frozen_bytes + (b->unpacking ? c * larger(u->down, other - smaller(other, product)) : 0);
    }
    return x;
}

/* State; the matmuls' workspaces; batches; a ring of gathered blocks; what shards are made of and go through. */
static uint64_t rest_bytes(const struct dtp_bound *b, const struct executor *x)
{
    const struct dtp_plan *plan = b->plan;
    uint64_t c = b->bytes.compute, own = x->own, largest = x->largest / b->units->ranks;
    uint64_t ring = smaller(plan->prefetch ? plan->prefetch_depth + UINT64_C(1) : 1, b->layers);
    uint64_t reduced = dtp_dtype_bytes(plan->precision.reduce) * largest;
    bool host_params = plan->offload == DTP_OFFLOAD_PARAMS;
    uint64_t bytes = (plan->executor.gradient_stream ? UINT64_C(2) : 1) * DTP_EXECUTOR_MATMUL_WORKSPACE_BYTES +
                     (x->several ? UINT64_C(2) : 1) * 16 * b->tokens;
    bytes += b->transformer->position == DTP_POSITION_ROPE ? 4 * b->transformer->head_dim * plan->sequence : 0;
    bytes += plan->offload == DTP_OFFLOAD_NONE ? (b->bytes.moments + b->bytes.master) * own : 0;
    bytes += host_params ? 0 : c * (x->sharded ? own : x->total) + x->frozen;
    bytes += x->sharded ? c * ring * x->slot : 0;
    bytes += x->shards && host_params ? 2 * c * largest : 0;
    const uint64_t experts = b->uniform ? 0 : dtp_transformer_expert_layers(b->transformer, b->layers);
    bytes += x->streams ? smaller(2, b->layers - experts) * x->block_shard[DTP_LAYER_DENSE] +
                              smaller(2, experts) * x->block_shard[DTP_LAYER_EXPERTS]
                        : 0;
    if (x->shards && plan->executor.reduce_engine == DTP_ENGINE_COPY)
        bytes += b->units->ranks * reduced; /* what the others sent of a shard */
    else if (x->shards && x->always)
        bytes += reduced;
    bool replicas = b->cluster->gpus > b->units->ranks;
    if (replicas && (plan->comm_hook == DTP_COMM_HOOK_FP16 || plan->comm_hook == DTP_COMM_HOOK_BF16))
        bytes += 2 * largest;                                   /* what they sum, in 16 bits */
    else if (replicas && plan->comm_hook == DTP_COMM_HOOK_INT8) /* its part and all */
        bytes += (1 + b->cluster->gpus / b->units->ranks) * dtp_int8_part_bytes(largest);
    else if (replicas && plan->comm_hook == DTP_COMM_HOOK_POWERSGD) /* what was lost, factors of all; a workspace */
        bytes += 4 * (own + dtp_bound_factors(b)) + DTP_EXECUTOR_MATMUL_WORKSPACE_BYTES;
    return bytes;
}

/* When so many blocks have begun theirs. */
static uint64_t gradients(const struct dtp_bound *b, const struct executor *x, uint64_t begun)
{
    const uint64_t tied = b->units->head ? 0 : x->whole[FIRST], last = x->whole[LAST],
                   made = blocks(b, x->block_whole, begun), above = blocks(b, x->block_whole, begun ? begun - 1 : 0),
                   going = begun > 1 ? made - blocks(b, x->block_whole, begun - 2) : last + made;
    if (!x->shards && !x->sums)
        return x->several ? x->all_whole : last + tied + (x->alone ? made - above : made);
    if (x->sums)
        return x->all_whole + tied + going;
    if (x->always)
        return x->all_shard + tied + going;
    uint64_t shards = begun ? x->shard[LAST] + (x->streams ? 0 : blocks(b, x->block_shard, begun - 1)) : 0;
    return shards + going + (x->several ? x->whole[FIRST] + x->whole[BLOCK] - made : tied);
}

/* Forward: the table beside what a micro-step before is still reducing, until block 0 is done; the last block. Then
 * the loss, chunk by chunk; the shard of the head's gradient while weights still stand. */
static void forward(struct dtp_bound *b, const struct executor *x, uint64_t chunk_bytes)
{
    const struct dtp_activations *a = &b->activations;
    uint64_t c = x->sharded ? b->bytes.compute : 0;
    bool moves = x->shards || x->sums, ahead = b->layers == 1 && b->plan->prefetch && b->units->head;
    uint64_t kept = dtp_bound_saved(b, b->layers), stream = dtp_bound_tokens(b, a->gradient);
    uint64_t below = dtp_bound_saved(b, b->layers - 1),
             head = c * (x->elements[x->head] + (x->head == LAST ? 0 : x->elements[LAST]));
    uint64_t before = !x->several ? 0 : x->always && x->shards ? x->all_shard : x->all_whole;
    uint64_t drains = x->always && moves ? x->whole[FIRST] + one(b, x->block_whole, b->layers) : 0;
    uint64_t made = gradients(b, x, 0), scattered = x->shards && !x->always ? x->shard[LAST] : 0;
    dtp_bound_hold(b, before + kept + chunk_bytes);
    dtp_bound_hold(b, before + below +
                          dtp_bound_tokens(b, a->layer_kept == a->layer_input ? a->layer_all : a->layer_kept));
    dtp_bound_keep(b, before + drains + c * x->elements[FIRST] + stream);
    dtp_bound_keep(b, before + drains + (ahead || !b->units->head ? head : 0) + dtp_bound_saved(b, 1) +
                          dtp_bound_tokens(b, b->passing[dtp_bound_kind_of(b, 0)]));
    bool seen[DTP_LAYER_MLPS] = {false, b->uniform}; /* the last block of each kind */
    for (uint64_t i = b->layers; i-- > 0 && !(seen[0] && seen[1]);) {
        const int kind = dtp_bound_kind_of(b, i);
        const bool whole = a->checkpoint_every > 1 && i % a->checkpoint_every;
        if (!seen[kind])
            dtp_bound_keep(b,
                           before + dtp_bound_saved(b, i) + (i + 1 < b->layers ? 0 : head) +
                               dtp_bound_tokens(b, whole ? b->returned[kind] : b->layer_kept[kind] + b->passing[kind]));
        seen[kind] = true;
    }
    dtp_bound_keep(b, made + kept + 2 * stream + head + chunk_bytes + 4 * b->tokens);
    dtp_bound_keep(b, made + kept + stream + head + larger(2 * stream, scattered));
}

void dtp_bound_executor(struct dtp_bound *b)
{
    uint64_t row_bytes = dtp_bytes_product(dtp_parameter_head_rows(b->transformer), b->bytes.compute);
    uint64_t asked = b->plan->executor.loss_chunk, stream = dtp_bound_tokens(b, b->activations.gradient);
    uint64_t rows = smaller(dtp_executor_loss_chunk_rows(asked, row_bytes), b->tokens);
    const struct executor x = executor_of(b, rows < b->tokens);
    b->most_bytes = b->least_bytes = b->kept_weights = b->checkpointed_weights = b->again_weights = b->unpacking =
        b->unpacked_one = 0;
    b->rest_bytes = rest_bytes(b, &x);
    forward(b, &x, rows * row_bytes);
    const bool scatters = x.shards && !x.always && !x.streams, fp8 = b->plan->precision.compute == DTP_FP8;
    const uint64_t cast = fp8 ? b->units->down * (dtp_activation_is_gated(b->transformer->activation) ? 2 : 1) : 0;
    const uint64_t replayed = dtp_bound_tokens(b, b->replayed) + cast, behind = dtp_bound_tokens(b, b->carried),
                   next = b->uniform ? smaller(larger(b->activations.checkpoint_every, 2) + 1, 5) : b->layers;
    uint64_t works[DTP_LAYER_MLPS];
    for (int i = 0; i < (b->uniform ? 1 : DTP_LAYER_MLPS); i++)
        works[i] = dtp_bound_block(b, i, 0, 0) + (scatters && (b->uniform || i == DTP_LAYER_EXPERTS) ? x.early : 0);
    for (uint64_t i = 1; i <= b->layers; i = i < next || i == b->layers ? i + 1 : b->layers) {
        const uint64_t below = dtp_bound_saved(b, b->layers - i), going = gradients(b, &x, i) + below,
                       scattered = scatters ? one(b, x.block_shard, i) : 0,
                       work = works[dtp_bound_kind_of(b, b->layers - i)], carried = work + behind;
        dtp_bound_keep(
            b, going + larger(i > 1 ? larger(carried, dtp_bound_tokens(b, b->opened)) : work, stream + scattered));
        if (i > 1)
            dtp_bound_keep(b,
                           gradients(b, &x, i - 1) + (scatters ? one(b, x.block_shard, i - 1) : 0) + below + replayed);
        if (i > 1 && x.several && !x.always) /* a micro-step that reduces nothing, with all gradients of those before */
            dtp_bound_keep(b, (b->plan->accumulate > 2 ? x.all_whole : x.whole[LAST] + blocks(b, x.block_whole, i)) +
                                  below + larger(carried, replayed));
    }
    /* the embedding's, beside those of block 0 */
    bool moves = x.shards || x.sums;
    uint64_t shards = x.all_shard - (x.streams ? x.shard[BLOCK] : 0), first = x.shard[FIRST];
    uint64_t wholes = x.all_whole - (x.alone ? x.whole[BLOCK] : 0);
    uint64_t resting = x.shards ? shards - (x.always ? 0 : first) : wholes;
    dtp_bound_hold(b, x.shards ? shards : wholes);
    dtp_bound_keep(b, resting + (moves ? x.whole[FIRST] + one(b, x.block_whole, b->layers) : 0) +
                          larger(stream, x.shards && !x.always ? first : 0) +
                          (b->activations.embedding ? 2 * stream : 0));
    /* what a block keeps depends on which of its linears have one; of experts what backward makes is not counted */
    if (dtp_plan_adapts(b->plan) || b->transformer->experts)
        b->least_bytes = b->rest_bytes;
}
