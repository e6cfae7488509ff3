#include "closed/sharding.h"

#include "base/bytes.h"
#include "base/pick.h"
#include "closed/closed_form_hooks.h"
#include "plan/optimizer_state.h"
#include "plan/slice.h"
#include "net/layer_kind.h"

/* ---- units ----------------------------------------------------------------------------------------------------- */

uint64_t dtp_pinned_bytes(uint64_t bytes)
{
    if (bytes <= 1)
        return bytes;
    unsigned shift = 64u - (unsigned)__builtin_clzll(bytes - 1);
    return shift > 62 ? bytes : UINT64_C(1) << shift;
}

/* Sums over the tensors of one group: elements, elements of a rank's shard, tensors, and the host bytes of the shards
 * when each is a pinned tensor of its own with `element_bytes` an element (0: not wanted). */
struct tensor_sum {
    enum dtp_shard_cut cut; /* of flat parameters nothing is counted here but elements: they are cut as one */
    uint64_t expert_ranks;  /* that share one copy of the rank's experts */
    uint64_t ranks, element_bytes, elements, shard, matrix_shard, tensors, pinned_bytes;
    uint64_t expert_elements, expert_shard; /* of these, where ranks divide the experts */
};

/* `count` equal parameters [rows, width]: sharded along their rows with torch.chunk, every rank stores ceil(rows/N) of
 * each. */
static void add_tensors(struct tensor_sum *sum, uint64_t count, uint64_t rows, uint64_t width)
{
    if (!count)
        return;
    sum->elements += count * rows * width;
    sum->tensors += count;
    if (sum->cut == DTP_CUT_FLAT)
        return;
    uint64_t shard = sum->cut == DTP_CUT_ELEMENTS ? dtp_divide_up(rows * width, sum->ranks)
                                                  : dtp_divide_up(rows, sum->ranks) * width;
    sum->shard += count * shard;
    sum->matrix_shard += width > 1 ? count * shard : 0;
    if (sum->element_bytes)
        sum->pinned_bytes += count * dtp_pinned_bytes(shard * sum->element_bytes);
}

/* Biases and norms, where the model has them. */
static void add_vectors(struct tensor_sum *sum, bool present, uint64_t count, uint64_t elements)
{
    add_tensors(sum, present ? count : 0, elements, 1);
}

/* One layer as its modules make parameters, weights [out, in]. */
static void sum_layer(const struct dtp_layer_kind *block, struct tensor_sum *sum)
{
    uint64_t vectors[DTP_LAYER_VECTORS];
    for (int i = 0; i < block->matrices; i++) {
        uint64_t ranks = sum->ranks, before = sum->shard;
        sum->ranks = block->matrix[i].expert ? sum->expert_ranks : ranks;
        struct dtp_layer_cut cut = dtp_layer_matrix_cut(&block->matrix[i], sum->ranks);
        add_tensors(sum, cut.count, cut.rows, cut.width);
        sum->tensors -= block->matrix[i].apart ? 0 : cut.count - 1;
        sum->ranks = ranks;
        if (block->matrix[i].expert && block->exchanged) {
            sum->expert_elements += cut.count * cut.rows * cut.width;
            sum->expert_shard += sum->shard - before;
        }
    }
    for (int i = dtp_layer_list_vectors(block, vectors); i > 0; i--)
        add_tensors(sum, 1, vectors[i - 1], 1);
    if (block->exchanged) /* biases lie with their experts, where ranks divide these in flat buffers */
        sum->expert_elements += block->own_experts * dtp_layer_expert_bias_elements(block);
}

static void sum_root(const struct dtp_transformer *t, struct tensor_sum *sum)
{
    uint64_t norm = dtp_transformer_norm_vectors(t);
    add_tensors(sum, t->tied_head ? 1 : 2, t->vocab, t->hidden);
    if (t->position == DTP_POSITION_LEARNED)
        add_tensors(sum, 1, t->positions, t->hidden);
    add_vectors(sum, t->embedding_norm, norm, t->hidden);
    add_vectors(sum, t->final_norm, norm, t->hidden);
    add_vectors(sum, t->head_bias, 1, t->vocab);
    add_tensors(sum, t->ahead_layers, dtp_transformer_ahead_rows(t), 2 * t->hidden);
    add_vectors(sum, t->ahead_layers, DTP_AHEAD_NORMS * norm * t->ahead_layers, t->hidden);
}

/* The final norm and the head. */
static void sum_head_end(const struct dtp_transformer *t, struct tensor_sum *sum)
{
    add_vectors(sum, t->final_norm, dtp_transformer_norm_vectors(t), t->hidden);
    add_vectors(sum, t->head_bias, 1, t->vocab);
    add_tensors(sum, 1, t->vocab, t->hidden);
}

static void count_unit_layers(const struct dtp_transformer *t, const struct dtp_plan *plan, struct dtp_units *out)
{
    if (!plan->wrap_layers)
        return;
    out->layers_per_unit = plan->wrap_layers < t->layers ? plan->wrap_layers : t->layers;
    out->count = dtp_divide_up(t->layers, out->layers_per_unit);
    out->last_unit_layers = t->layers - (out->count - 1) * out->layers_per_unit;
}

/* Adapters beside a layer's matrices: A [rank, in], B [out, rank], in the dtype of their gradients. */
static void count_adapters(const struct dtp_plan *plan, const struct dtp_layer_kind *block, struct dtp_units *out,
                           struct tensor_sum *adapters)
{
    uint64_t params = dtp_dtype_bytes(plan->precision.params), vectors[DTP_LAYER_VECTORS];
    struct tensor_sum frozen = {.cut = adapters->cut, .ranks = adapters->ranks};
    out->layer_wire = 0;
    for (int i = 0; i < block->matrices; i++) {
        const struct dtp_layer_matrix *matrix = &block->matrix[i];
        const struct dtp_layer_cut cut = dtp_layer_matrix_cut(matrix, out->ranks);
        uint64_t rows = dtp_divide_up(cut.rows, out->ranks);
        out->layer_wire += frozen.cut == DTP_CUT_ELEMENTS
                               ? params * dtp_divide_up(matrix->out * matrix->in, out->ranks) /* of no packed ones */
                               : cut.count * dtp_plan_base_shard_bytes(plan, rows, cut.width, params);
        out->layer_scales += matrix->groups * dtp_plan_scale_bytes(plan, matrix->out, matrix->in);
        if (!matrix->rank)
            continue;
        add_tensors(adapters, matrix->groups, matrix->a_rows, matrix->in);
        add_tensors(adapters, matrix->groups, matrix->b_rows, matrix->rank);
        add_tensors(adapters, matrix->magnitudes ? 1 : 0, matrix->magnitudes, 1);
    }
    for (int i = dtp_layer_list_vectors(block, vectors); i > 0; i--)
        add_tensors(&frozen, 1, vectors[i - 1], 1);
    out->layer_wire += params * frozen.shard;
    out->layer_pinned = dtp_pinned_bytes(out->layer_wire) + adapters->pinned_bytes;
    out->layer_wire += dtp_dtype_bytes(plan->adapters.dtype) * adapters->shard;
}

static void count_adapted(const struct dtp_transformer *t, const struct dtp_plan *plan, struct dtp_layer_kind *block,
                          struct dtp_units *out)
{
    const bool by_elements = dtp_plan_shard_cut(plan) == DTP_CUT_ELEMENTS;
    struct tensor_sum adapters = {.cut = by_elements ? DTP_CUT_ELEMENTS : DTP_CUT_ROWS,
                                  .ranks = out->ranks,
                                  .element_bytes = dtp_dtype_bytes(plan->adapters.dtype)},
                      ends = adapters;
    dtp_plan_adapt_kind(plan, block);
    count_adapters(plan, block, out, &adapters);
    if (plan->adapters.train_ends) {
        add_tensors(&ends, t->tied_head ? 1 : 2, t->vocab, t->hidden);
        add_tensors(&ends, out->position ? 1 : 0, t->positions, t->hidden);
    }
    uint64_t params = dtp_dtype_bytes(plan->precision.params), blocks = out->count ? 0 : t->layers;
    uint64_t root_shard = out->total_shard - t->layers * out->layer_shard;
    out->layer_trained = adapters.elements;
    out->trained = t->layers * adapters.elements + ends.elements;
    out->trained_shard = t->layers * adapters.shard + ends.shard;
    out->trained_tensors = t->layers * adapters.tensors + ends.tensors;
    out->root_trained = ends.elements + blocks * adapters.elements;
    out->root_wire = params * root_shard + blocks * out->layer_wire;
}

void dtp_units_of(const struct dtp_transformer *transformer, const struct dtp_cluster *cluster,
                  const struct dtp_plan *plan, struct dtp_layer_kind *kind, struct dtp_units *out)
{
    const struct dtp_transformer *t = transformer;
    const struct dtp_layer_kind *block = kind;
    *out = (struct dtp_units){
        .ranks = dtp_plan_shard_ranks(cluster, plan), .embedding = t->vocab * t->hidden, .layers = t->layers};
    out->replicas = dtp_plan_gradient_ranks(plan, cluster) / out->ranks;
    enum dtp_shard_cut cut = dtp_plan_shard_cut(plan);
    out->expert_ranks = dtp_plan_expert_shard_ranks(cluster, plan);
    struct tensor_sum layer = {.cut = cut, .ranks = out->ranks, .expert_ranks = out->expert_ranks}, root = layer,
                      head = layer;
    sum_layer(block, &layer);
    sum_root(t, &root);
    count_unit_layers(t, plan, out);
    if (dtp_plan_wraps_ends(plan, t))
        sum_head_end(t, &head);
    out->head_end = head.elements;
    out->head_end_shard = head.shard;
    if (cut == DTP_CUT_FLAT) { /* flat parameters pad their end only */
        layer.expert_shard = dtp_divide_up(layer.expert_elements, out->expert_ranks);
        layer.shard = dtp_divide_up(layer.elements - layer.expert_elements, out->ranks) + layer.expert_shard;
        root.shard = dtp_divide_up(root.elements, out->ranks);
    }
    out->layer = out->largest_layer = layer.elements;
    out->layer_shard = out->largest_layer_shard = layer.shard;
    out->layer_matmul_shard = layer.matrix_shard;
    const struct dtp_layer_sums sums = dtp_layer_sums_of(block);
    out->layer_matmul = sums.matrices;
    out->layer_narrow = sums.narrow;
    out->narrow = t->layers * sums.narrow + t->ahead_layers * dtp_transformer_ahead_elements(t);
    out->layer_cast = sums.matrices + sums.biases;
    out->expert_elements = layer.expert_elements;
    out->expert_shard = layer.expert_shard;
    out->expert_layers = layer.expert_shard ? t->layers : 0;
    uint64_t width = (block->own_experts ? block->own_experts : 1) * block->mlp_width;
    out->largest = t->hidden * (block->packs_up ? 2 * width : width);
    out->down = t->hidden * width;
    out->qkv = sums.attention_inputs;
    out->output = block->d_core * t->hidden;
    out->position = t->position == DTP_POSITION_LEARNED ? t->positions * t->hidden : 0;
    out->head = t->tied_head ? 0 : out->embedding;
    out->total = t->layers * layer.elements + root.elements;
    out->total_shard = t->layers * layer.shard + root.shard;
    out->root = out->count ? root.elements : out->total;
    out->root_shard = out->count ? root.shard : out->total_shard;
    out->tensors_per_layer = layer.tensors;
    out->tensors = t->layers * layer.tensors + root.tensors;
    out->trained = out->total, out->trained_shard = out->total_shard;
    out->layer_trained = out->layer, out->root_trained = out->root, out->trained_tensors = out->tensors;
    if (dtp_plan_adapts(plan))
        count_adapted(t, plan, kind, out);
}

/* Of a model whose layers are all alike. */
static void count_alike(const struct dtp_transformer *t, const struct dtp_cluster *cluster, const struct dtp_plan *plan,
                        struct dtp_units *out)
{
    struct dtp_layer_kind kind;
    struct dtp_transformer own = dtp_plan_own_experts(t, plan);
    dtp_layer_kind_of(&own, dtp_layer_mlp_of(t), plan->fused_qkv, plan->fused_gate_up, &kind);
    dtp_plan_call_experts(plan, &kind);
    dtp_plan_widen_kind(plan, &kind);
    dtp_units_of(t, cluster, plan, &kind, out);
}

/* The mean of layers of two kinds, rounded down, so that all together never exceed the sum. */
struct mean {
    uint64_t dense, experts; /* layers */
};

static uint64_t mean_of(const struct mean *m, uint64_t dense, uint64_t experts)
{
    return (m->dense * dense + m->experts * experts) / (m->dense + m->experts);
}

/* What a model has whose layers are of two kinds: sums of all of them exactly, the largest of each, and of a layer the
 * mean. `out` is that of a model of experts alone. */
static void mix(const struct mean *m, const struct dtp_units *dense, struct dtp_units *out)
{
    out->narrow -= m->dense * out->layer_narrow;
    out->narrow += m->dense * dense->layer_narrow;
    uint64_t layers = out->layers, root = out->total - layers * out->layer,
             root_shard = out->total_shard - layers * out->layer_shard,
             tensors = out->tensors - layers * out->tensors_per_layer;
    out->total = root + m->dense * dense->layer + m->experts * out->layer;
    out->total_shard = root_shard + m->dense * dense->layer_shard + m->experts * out->layer_shard;
    out->tensors = tensors + m->dense * dense->tensors_per_layer + m->experts * out->tensors_per_layer;
    out->layer = mean_of(m, dense->layer, out->layer);
    out->layer_shard = mean_of(m, dense->layer_shard, out->layer_shard);
    out->layer_matmul = mean_of(m, dense->layer_matmul, out->layer_matmul);
    out->layer_narrow = mean_of(m, dense->layer_narrow, out->layer_narrow);
    out->layer_matmul_shard = mean_of(m, dense->layer_matmul_shard, out->layer_matmul_shard);
    out->layer_cast = mean_of(m, dense->layer_cast, out->layer_cast);
    out->tensors_per_layer = mean_of(m, dense->tensors_per_layer, out->tensors_per_layer);
    out->largest = larger(dense->largest, out->largest);
    out->down = larger(dense->down, out->down);
    out->largest_layer = larger(dense->largest_layer, out->largest_layer);
    out->largest_layer_shard = larger(dense->largest_layer_shard, out->largest_layer_shard);
    out->root = out->count ? out->root : out->total;
    out->root_shard = out->count ? out->root_shard : out->total_shard;
    out->trained = out->total, out->trained_shard = out->total_shard;
    out->root_trained = out->root, out->trained_tensors = out->tensors;
}

void dtp_units_count(const struct dtp_transformer *transformer, const struct dtp_cluster *cluster,
                     const struct dtp_plan *plan, struct dtp_units *out)
{
    if (dtp_transformer_is_uniform(transformer)) {
        count_alike(transformer, cluster, plan, out);
        return;
    }
    struct dtp_transformer dense = dtp_transformer_all_alike(transformer, false),
                           experts = dtp_transformer_all_alike(transformer, true);
    struct mean m = {.experts = dtp_transformer_expert_layers(transformer, transformer->layers)};
    struct dtp_units of_dense;
    m.dense = transformer->layers - m.experts;
    count_alike(&dense, cluster, plan, &of_dense);
    count_alike(&experts, cluster, plan, out);
    out->expert_layers = out->expert_shard ? m.experts : 0;
    mix(&m, &of_dense, out);
}

/* ---- state at rest --------------------------------------------------------------------------------------------- */

void dtp_state_add_host(struct dtp_state_bytes *state, enum dtp_memory_term term, uint64_t count, uint64_t elements,
                        uint64_t element_bytes)
{
    state->host += dtp_memory_part(state->parts ? &state->parts->host : NULL, term, count, elements, element_bytes);
}

void dtp_state_add_nvme(struct dtp_state_bytes *state, enum dtp_memory_term term, uint64_t elements,
                        uint64_t element_bytes)
{
    state->nvme += dtp_memory_part(state->parts ? &state->parts->nvme : NULL, term, 1, elements, element_bytes);
}

void dtp_state_pinned_tensors(const struct dtp_transformer *transformer, const struct dtp_units *units,
                              const struct dtp_plan *plan, uint64_t element_bytes, uint64_t *layer_bytes,
                              uint64_t *root_bytes)
{
    struct tensor_sum layer = {.cut = DTP_CUT_ROWS,
                               .ranks = units->ranks,
                               .expert_ranks = units->expert_ranks,
                               .element_bytes = element_bytes},
                      root = layer;
    struct dtp_layer_kind block;
    dtp_layer_kind_of(transformer, dtp_layer_mlp_of(transformer), plan->fused_qkv, plan->fused_gate_up, &block);
    sum_layer(&block, &layer);
    sum_root(transformer, &root);
    *layer_bytes = layer.pinned_bytes;
    *root_bytes = root.pinned_bytes;
}

/* FSDP1's flat parameters on the host: of a layer the frozen one and one of each A and B, and the root's, each pinned
 * twice, for _cpu_grad is made of frozen ones, too, which have no gradient (init_flat_param_attributes of
 * fsdp/_flat_param.py); the moments are pageable. Scales alone stay on the GPU. */
static void offload_adapted(const struct dtp_units *units, const struct dtp_element_bytes *bytes,
                            struct dtp_state_bytes *out)
{
    out->params = units->layers * units->layer_scales;
    out->params_elements = out->grads_elements = out->optimizer_elements = out->grads = out->optimizer = 0;
    if (out->gpu_alone)
        return;
    dtp_state_add_host(out, DTP_TERM_HOST_LAYERS, 2 * units->layers, 1, units->layer_pinned);
    dtp_state_add_host(out, DTP_TERM_HOST_ROOT, 2, 1, dtp_pinned_bytes(units->root_wire));
    dtp_state_add_host(out, DTP_TERM_HOST_MOMENTS, 1, units->trained_shard, bytes->moments);
}

/* Frozen weights as they are kept, and adapters; gradients and optimizer state of what is trained. */
static void adapted_state(const struct dtp_transformer *transformer, const struct dtp_units *units,
                          const struct dtp_plan *plan, const struct dtp_element_bytes *bytes,
                          struct dtp_state_bytes *out)
{
    struct dtp_trained_count count;
    dtp_plan_trained(transformer, plan, &count);
    bool shards = dtp_plan_shards_params(plan);
    uint64_t shard = shards ? units->trained_shard : dtp_divide_up(units->trained, units->ranks);
    struct dtp_plan of_ends;
    struct dtp_element_bytes in;
    dtp_plan_of_ends(plan, &of_ends);
    dtp_element_bytes_count(&of_ends, &in);
    uint64_t ends = dtp_plan_mixes_ends(plan) ? dtp_plan_trained_ends(transformer, plan) : 0; /* on one rank, whole */
    out->grads_elements = dtp_plan_shards_grads(plan) ? shard : units->trained;
    out->optimizer_elements = dtp_plan_shards_optimizer(plan) ? shard : units->trained;
    out->params =
        shards ? (units->count ? units->layers * units->layer_wire : 0) + units->root_wire
               : count.frozen_bytes + in.grads * ends +
                     (plan->runtime->stores_compute_dtype ? bytes->compute : bytes->grads) * (count.trained - ends);
    out->params += units->layers * units->layer_scales;
    if (plan->offload != DTP_OFFLOAD_NONE) {
        offload_adapted(units, bytes, out);
        return;
    }
    out->grads = bytes->grads * (out->grads_elements - ends) + in.grads * ends;
    out->optimizer = bytes->optimizer * (out->optimizer_elements - ends) + in.optimizer * ends;
}

static void count_state(const struct dtp_transformer *transformer, const struct dtp_units *units,
                        const struct dtp_plan *plan, const struct dtp_element_bytes *bytes, struct dtp_state_bytes *out)
{
    /* FSDP2 and ZeRO-3 pad each parameter; the flat buffers of ZeRO-1, -2, Megatron and our arenas only their end. */
    bool padded = dtp_plan_shards_params(plan) && !plan->runtime->arena;
    uint64_t experts = units->expert_layers * units->expert_elements;
    uint64_t shard = padded ? units->total_shard
                            : dtp_divide_up(units->total - experts, units->ranks) +
                                  (experts ? dtp_divide_up(experts, units->expert_ranks) : 0);
    out->params_elements = dtp_plan_shards_params(plan) ? shard : units->total;
    out->grads_elements = dtp_plan_shards_grads(plan) ? shard : units->total;
    out->optimizer_elements = dtp_plan_shards_optimizer(plan) ? shard : units->total;
    if (dtp_plan_adapts(plan)) {
        adapted_state(transformer, units, plan, bytes, out);
        return;
    }
    if (plan->offload != DTP_OFFLOAD_NONE)
        plan->runtime->closed->offload_state(transformer, units, plan, bytes, shard, out);
    uint64_t narrow = plan->megatron.fp8_param_gather ? units->narrow : 0;
    out->params = bytes->params * (out->params_elements - narrow);
    if (narrow)
        out->params += dtp_fp8_standing_bytes(plan, &out->cluster->gpu, narrow);
    out->grads = bytes->grads * out->grads_elements;
    out->optimizer = dtp_optimizer_whole_bytes(transformer, plan, bytes, out->optimizer_elements);
}

void dtp_state_bytes_count(const struct dtp_transformer *transformer, const struct dtp_cluster *cluster,
                           const struct dtp_units *units, const struct dtp_plan *plan,
                           const struct dtp_element_bytes *bytes, struct dtp_memory_parts *parts,
                           struct dtp_state_bytes *out)
{
    *out = (struct dtp_state_bytes){.cluster = cluster, .parts = parts};
    count_state(transformer, units, plan, bytes, out);
}

void dtp_state_bytes_at_rest(const struct dtp_transformer *transformer, const struct dtp_cluster *cluster,
                             const struct dtp_units *units, const struct dtp_plan *plan,
                             const struct dtp_element_bytes *bytes, struct dtp_state_bytes *out)
{
    *out = (struct dtp_state_bytes){.cluster = cluster, .gpu_alone = true};
    count_state(transformer, units, plan, bytes, out);
}
