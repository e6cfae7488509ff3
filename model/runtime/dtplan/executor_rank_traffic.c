/* What ranks that divide layers or experts send each other, by formulas: rows of the stream, rows of tokens by experts
 * (executor_work.h). */
#include "base/bytes.h"
#include "plan/rules.h"
#include "plan/runtime_sizes.h"
#include "runtime/dtplan/executor_counted.h"
#include "runtime/dtplan/executor_expert_traffic.h"
#include "runtime/dtplan/executor_work.h"

void dtp_executor_row_traffic(const struct dtp_transformer *t, const struct dtp_cluster *cluster,
                              const struct dtp_plan *plan, struct dtp_row_traffic *out)
{
    struct dtp_parameter_alike alike[DTP_PARAMETER_KINDS];
    struct dtp_executor_counted s;
    int kind = dtp_parameter_alike_modules(t, alike) - 2;
    while (kind > 1 && dtp_executor_mlp_of_module(t, alike[kind].module) != DTP_LAYER_EXPERTS)
        kind--;
    const uint64_t layers = alike[kind].count;
    dtp_executor_counted_of(t, cluster, plan, &alike[kind], &s);
    *out = (struct dtp_row_traffic){.starts_bytes = dtp_executor_starts_bytes(&s.block) * (plan->ep - 1),
                                    .heard_bytes = dtp_executor_heard_bytes(&s.block)};
    for (int i = 0; i < s.block.count; i++) {
        const struct dtp_executor_operator *op = &s.block.op[i];
        if (op->kind != DTP_OP_ALL_TO_ALL)
            continue;
        const bool weighed = op->saved != DTP_EXECUTOR_NONE;
        uint64_t again = s.again & 1u << i ? (uint64_t)s.checkpointed : 0, forwards = layers + again;
        out->heard += weighed ? forwards : 0;
        out->exchanges += forwards + layers;
        out->exchanged_bytes += dtp_bytes_product(forwards + layers, dtp_executor_sent_bytes(&s.block, weighed));
    }
}

/* Gathers and scattered sums of the operators whose bits are set, forward. */
static void count_rows(const struct dtp_executor_counted *s, uint32_t operators, uint64_t layers,
                       struct dtp_tensor_traffic *out)
{
    for (int i = 0; i < s->block.count; i++) {
        out->gathers += operators & 1u << i && s->block.op[i].gathers ? layers : 0;
        out->sums += operators & 1u << i && s->block.op[i].sums ? layers : 0;
    }
}

/* Sums of gradients of what all of them have, a module's so many. */
static void count_reductions(const struct dtp_executor_counted *s, int i, uint64_t modules,
                             struct dtp_tensor_traffic *out)
{
    const uint64_t count = (uint64_t)s->opened[1] * modules;
    uint64_t begin, elements;
    for (int next = 0; (elements = dtp_executor_summed_run(&s->layout[i], &next, &begin)) > 0;) {
        uint64_t bytes = elements * (uint64_t)s->element[i];
        out->reductions += count;
        out->reduced_bytes += dtp_bytes_product(2 * count, dtp_traffic_ring(bytes, s->rules.tensor_ranks));
    }
}

/* One layer's backward where adapters alone are trained: no rows are gathered for gradients of frozen weights. */
static void count_adapted(const struct dtp_executor_counted *s, const struct dtp_executor_block *block, uint64_t layers,
                          struct dtp_tensor_traffic *out)
{
    for (int i = 0; i < block->count; i++) {
        const struct dtp_executor_operator *op = &block->op[i];
        const bool adapter = i + 1 < block->count && op[1].half == DTP_EXECUTOR_B && op->half != DTP_EXECUTOR_A;
        out->sums += op->gathers && op->passes ? layers : 0;
        out->gathers += op->sums && (op->passes || adapter) ? layers : 0;
        if (!op->gathers || !adapter)
            continue;
        const uint64_t bytes =
            dtp_bytes_product((uint64_t)s->tokens, dtp_executor_low_width(op[1].adapter)) * block->element_bytes;
        out->small_sums += layers;
        out->small_sum_bytes += dtp_bytes_product(layers, dtp_traffic_ring(bytes, s->rules.tensor_ranks));
    }
}

/* Of a kind of layers; returns modules whose partial sums of squares are added up by these ranks. */
static uint64_t count_kind(const struct dtp_executor_counted *s, struct dtp_tensor_traffic *once,
                           struct dtp_tensor_traffic *out)
{
    const bool apart = s->layout[3].elements && s->rules.shard_ranks == 1; /* those who divide experts add these up */
    const uint64_t layers = (uint64_t)s->layers;
    const uint64_t first = s->adapted && s->first_checkpointed ? 1 : 0; /* which may run fewer operators again */
    count_rows(s, ~0u, layers, once);
    count_rows(s, s->again, (uint64_t)s->checkpointed - first, out);
    count_rows(s, s->first_again, first, out);
    if (s->adapted) {
        count_adapted(s, &s->block, layers - 1, out);
        count_adapted(s, &s->first, 1, out);
    }
    for (int i = 0; i < 3; i++)
        count_reductions(s, i, i == 1 ? layers : (uint64_t)s->ends, out);
    return (uint64_t)(s->modules - (apart ? s->layers : 0));
}

/* Backward gathers what forward gathered once more and scatters its gradient; what forward scattered it gathers the
 * gradient of. The same of the embedding, and of the head but for its rows, which stay. */
void dtp_executor_tensor_traffic(const struct dtp_slice *slice, struct dtp_tensor_traffic *out)
{
    const struct dtp_transformer *t = &slice->transformer;
    struct dtp_parameter_alike alike[DTP_PARAMETER_KINDS];
    struct dtp_executor_counted s[DTP_LAYER_MLPS];
    struct dtp_tensor_traffic once = {0};
    const int kinds = dtp_parameter_alike_modules(t, alike) - 2;
    uint64_t modules = 0;
    *out = (struct dtp_tensor_traffic){0};
    for (int kind = 0; kind < kinds; kind++) {
        dtp_executor_counted_of(t, &slice->cluster, &slice->plan, &alike[kind + 1], &s[kind]);
        modules += count_kind(&s[kind], &once, out);
    }
    const bool frozen = s->adapted; /* also the embedding, which has no backward */
    out->gathers += once.gathers + (frozen ? 1 : once.gathers + once.sums + 2);
    out->sums += once.sums + (frozen ? 0 : once.gathers) + 2;
    struct dtp_executor_kinds of = {.count = kinds};
    for (int kind = 0; kind < kinds; kind++)
        of.block[kind] = &s[kind].block, of.layers[kind] = alike[kind + 1].count;
    dtp_executor_tensor_overlap(&of, &slice->plan, out);
    out->small_gathers = s->rules.chunk_count;
    out->small_bytes = dtp_bytes_product(s->rules.tokens * DTP_EXECUTOR_LOSS_PART_BYTES, s->rules.tensor_ranks - 1);
    if (!s->rules.gradient_norm)
        return;
    out->reductions++;
    out->reduced_bytes += 2 * dtp_traffic_ring(4 * DTP_EXECUTOR_SQUARE_SUM_PARTIALS * modules, s->rules.tensor_ranks);
}
