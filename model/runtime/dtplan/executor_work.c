#include "runtime/dtplan/executor_work.h"

#include "base/bytes.h"
#include "plan/checkpointing.h"
#include "plan/comm_hook.h"
#include "plan/optimizer_state.h"
#include "plan/rules.h"
#include "plan/runtime_sizes.h"
#include "runtime/dtplan/executor_block.h"
#include "runtime/dtplan/executor_context_work.h"
#include "runtime/dtplan/executor_counted.h"
#include "runtime/dtplan/executor_factors.h"
#include "runtime/dtplan/executor_fp8_work.h"

uint32_t dtp_executor_operators_again(const struct dtp_executor_block *block, enum dtp_checkpoint_keeps keeps)
{
    /* the activation's backward makes the product; in fp8 whose weights' gradients are not, a replay does */
    uint64_t by_backward = block->fp8 ? 0 : DTP_EXECUTOR_BIT(DTP_TENSOR_PRODUCT);
    uint64_t missing = block->saved & ~dtp_executor_block_keeps(block, keeps) & ~by_backward;
    uint32_t again = 0;
    if (keeps == DTP_KEEPS_INPUT)
        return block->replayed;
    for (int i = 0; i < DTP_EXECUTOR_TENSORS; i++)
        if (missing & DTP_EXECUTOR_BIT(i))
            again |= dtp_executor_makers(block, i, dtp_executor_block_keeps(block, keeps));
    return again;
}

/* Of the operators whose bits are set: elements of the matrices that they multiply by; bytes and launches forward. */
static double matrix_elements(const struct dtp_executor_counted *s, uint32_t operators)
{
    double elements = 0;
    for (int i = 0; i < s->block.count; i++)
        if (operators & 1u << i)
            elements += dtp_executor_multiplied(&s->block, &s->block.op[i]);
    return elements;
}

/* The same of all products of a block's backward; an adapter's A that read gathered rows is multiplied by a rank's own.
 */
static double backward_elements(const struct dtp_executor_block *block)
{
    double elements = 0;
    for (int i = 0; i < block->count; i++) {
        const struct dtp_executor_operator *op = &block->op[i];
        const bool own = op->half == DTP_EXECUTOR_A && op[1].gathers;
        elements += (own ? (double)block->stream_tokens / (double)block->tokens : 1) *
                    dtp_executor_products(block, op) * dtp_executor_multiplied(block, op);
    }
    return elements;
}

/* Sums over blocks that run operators again: the model's first may run fewer. */
static double over_again(const struct dtp_executor_counted *s,
                         double (*of)(const struct dtp_executor_counted *, uint32_t))
{
    double first = s->first_checkpointed ? 1 : 0;
    return (s->checkpointed - first) * of(s, s->again) + first * of(s, s->first_again);
}

static struct dtp_executor_traffic forward_traffic(const struct dtp_executor_counted *s, uint32_t operators)
{
    struct dtp_executor_traffic sum = {0, 0};
    for (int i = 0; i < s->block.count; i++) {
        const struct dtp_executor_operator *op = &s->block.op[i];
        bool stored = s->block.narrow_input && op->kind == DTP_OP_ACTIVATION &&
                      !(operators & 1u << dtp_executor_maker(&s->block, op->input));
        struct dtp_executor_traffic one =
            stored ? dtp_executor_activation_again_traffic(&s->block, op) : dtp_executor_forward_traffic(&s->block, op);
        sum.bytes += operators & 1u << i ? one.bytes : 0;
        sum.kernels += operators & 1u << i ? one.kernels : 0;
    }
    if (operators & 1u << dtp_executor_maker(&s->block, DTP_TENSOR_CORE) &&
        !(operators & 1u << dtp_executor_maker(&s->block, DTP_TENSOR_QKV))) {
        struct dtp_executor_traffic inputs = dtp_executor_context_inputs_traffic(&s->block);
        sum.bytes -= inputs.bytes, sum.kernels -= inputs.kernels;
    }
    return sum;
}

/* Without the weights' own gradient, which is counted with the gradients. Selective checkpointing makes the activation
 * again in the pass that its backward takes, also where it was an epilogue. */
static struct dtp_executor_traffic backward_traffic(const struct dtp_executor_counted *s,
                                                    const struct dtp_executor_block *block)
{
    const struct dtp_executor_operator activation = {.kind = DTP_OP_ACTIVATION};
    struct dtp_executor_traffic sum = {0, 0}, one;
    for (int i = 0; i < block->count; i++) {
        if (!block->op[i].passes && !block->op[i].adapter)
            continue;
        one = dtp_executor_backward_traffic(block, &block->op[i], s->remakes);
        sum.bytes += one.bytes, sum.kernels += one.kernels;
    }
    one = dtp_executor_backward_traffic(&s->block, &activation, true);
    if (s->block.epilogue && s->remakes)
        sum.bytes += one.bytes, sum.kernels += one.kernels;
    return sum;
}

/* Three products with each weight; QK^T and PV forward, five products backward. A replay stops before the last matmul
 * unless a norm behind it is to be passed backward. */
static void count_flops(const struct dtp_executor_counted *s, struct dtp_step_work *out)
{
    const double all = (double)s->t->layers; /* attention is the same in all kinds: counted with the ends */
    double core =
        2 * dtp_transformer_attention_length(s->t, s->plan->sequence) * dtp_executor_core_width(&s->block) * s->tokens;
    double logits = (double)s->rules.vocab_stride;
    struct dtp_checkpoint_rule rule = dtp_plan_checkpoint_rule(s->plan);
    double again = dtp_checkpointed_attention(&rule, s->t, s->plan->sequence);
    int attention = dtp_executor_maker(&s->block, DTP_TENSOR_CORE);
    bool first = s->first.op[attention].passes; /* the first block's attention has a backward */
    double first_core = 2 * dtp_transformer_layer_attention_length(s->t, 0, s->plan->sequence) *
                        dtp_executor_core_width(&s->block) * s->tokens;
    double blocks = s->layers * matrix_elements(s, ~0u) + (s->layers - 1) * backward_elements(&s->block) +
                    backward_elements(&s->first);
    out->matmul_flops += 2 * s->tokens * (blocks + s->ends * (s->adapted ? 2 : 3) * logits * s->h);
    out->recompute_matmul_flops += 2 * s->tokens * over_again(s, matrix_elements);
    if (s->ends <= 0)
        return;
    const double backward = dtp_executor_core_backward(&s->block);
    out->attention_flops = (1 + backward) * core * all - (first ? 0 : backward * first_core);
    double checkpointed = (double)dtp_checkpointed_layers(&rule, s->t->layers);
    out->recompute_attention_flops = s->again & 1u << attention ? core * checkpointed * again : 0;
    if (s->first_checkpointed && s->again & ~s->first_again & 1u << attention)
        out->recompute_attention_flops -= first_core;
}

static double forward_bytes(const struct dtp_executor_counted *s, uint32_t operators)
{
    return forward_traffic(s, operators).bytes;
}

static double forward_kernels(const struct dtp_executor_counted *s, uint32_t operators)
{
    return forward_traffic(s, operators).kernels;
}

/* The final norm, and the embedding's where there is one. */
static double norms_of_ends(const struct dtp_executor_counted *s)
{
    return s->t->embedding_norm ? 2 : 1;
}

static void count_bytes(const struct dtp_executor_counted *s, struct dtp_step_work *out)
{
    bool learned = s->t->position == DTP_POSITION_LEARNED;
    double sequence = learned ? (double)s->rules.sequence : 0;
    double cut = (double)s->rules.tensor_ranks, norms = norms_of_ends(s);
    out->forward_bytes += s->ends * ((1 + 1 / cut) * s->tokens * s->h * s->c + sequence * s->h * s->c + 4 * s->tokens +
                                     norms * dtp_executor_final_norm_bytes(&s->block)) +
                          s->layers * forward_traffic(s, ~0u).bytes;
    const double passes = (cut > 1 ? 1 : 0) + dtp_executor_loss_passes(s->vocab * s->c, cut > 1);
    out->loss_bytes += s->ends * (passes * s->tokens * s->vocab * s->c + 12 * s->tokens);
    if (cut > 1) /* what ranks say of their parts of the vocabulary, by targets, and what each reads of all */
        out->loss_bytes += s->ends * (4 + DTP_EXECUTOR_LOSS_PART_BYTES * (1 + cut)) * s->tokens;
    out->backward_bytes += (s->layers - 1) * backward_traffic(s, &s->block).bytes +
                           backward_traffic(s, &s->first).bytes +
                           s->ends * (norms * dtp_executor_final_norm_backward_bytes(&s->block) +
                                      (s->adapted ? 0 : s->tokens * s->h * s->c + 12 * s->tokens));
    out->recompute_bytes += over_again(s, forward_bytes);
}

/* Launches: the embedding, blocks, a head chunk's three matmuls and cross entropy, the sum of the losses, the final
 * norm's three and the embedding's backward, with learned positions one more. */
static void count_kernels(const struct dtp_executor_counted *s, struct dtp_step_work *out)
{
    double chunks = (double)s->rules.chunk_count, of_chunk = s->rules.tensor_ranks > 1 ? 5 : 4;
    double learned = s->t->position == DTP_POSITION_LEARNED ? 1 : 0, embedding_backward = s->adapted ? 0 : 1 + learned;
    double backward = (s->layers - 1) * backward_traffic(s, &s->block).kernels + backward_traffic(s, &s->first).kernels;
    double norms = norms_of_ends(s) * (1 + dtp_executor_norm_launches(&s->block));
    double ends = 1 + (of_chunk - (s->adapted ? 1 : 0)) * chunks + 1 + norms + embedding_backward;
    out->kernels +=
        s->ends * ends + s->layers * forward_traffic(s, ~0u).kernels + backward + over_again(s, forward_kernels);
}

/* Sums over modules: block modules count L times. */
static double over_modules(const struct dtp_executor_counted *s, double (*of)(const struct dtp_executor_counted *, int))
{
    return s->ends * (of(s, 0) + of(s, 2)) + s->layers * of(s, 1) + (s->layout[3].elements ? s->layers * of(s, 3) : 0);
}

/* Bytes that the module's first operations zero: padding; of the embedding all that the head's gradient does not write.
 */
static double zeroed(const struct dtp_executor_counted *s, int i)
{
    const struct dtp_parameter_module *layout = &s->layout[i];
    if (!layout->elements)
        return 0;
    const double opened = s->opened[i];
    uint64_t table = s->t->tied_head ? layout->tensor[DTP_PARAMETER_EMBEDDING].extent_elements : 0;
    return opened * (double)(layout->elements - (i == 0 ? table : layout->extent_elements)) * s->element[i];
}

static double zero_launches(const struct dtp_executor_counted *s, int i)
{
    const struct dtp_parameter_module *layout = &s->layout[i];
    uint64_t end = 0;
    double launches = 0;
    if (i == 0)
        return s->opened[i] * (zeroed(s, i) > 0);
    for (int p = 0; p < DTP_PARAMETER_COUNT; p++) {
        if (!layout->tensor[p].exists)
            continue;
        launches += layout->tensor[p].offset_elements > end;
        end = layout->tensor[p].offset_elements + layout->tensor[p].extent_elements;
    }
    return s->opened[i] * (launches + (layout->elements > end));
}

/* Norm weights' gradients (and biases', in fp8 those of projections too), of a micro-step that overwrites them; rows of
 * the embedding's table. */
static double written(const struct dtp_executor_counted *s, int i)
{
    double rows = s->tokens < s->vocab ? s->tokens : s->vocab;
    double vectors = (double)dtp_executor_fp8_bias_elements(&s->block);
    if (s->adapted || i == 3) /* experts have matrices alone */
        return 0;
    for (int k = 0; k < s->block.count; k++)
        vectors += (double)dtp_executor_norm_elements(&s->block, &s->block.op[k]);
    if (i)
        return (i == 1 ? vectors : s->h * (double)dtp_transformer_norm_vectors(s->t)) * s->element[i];
    rows += s->t->position == DTP_POSITION_LEARNED ? (double)s->rules.sequence : 0;
    rows += s->t->embedding_norm ? (double)dtp_transformer_norm_vectors(s->t) : 0; /* added to zeros */
    return 2 * rows * s->h * s->element[i];
}

/* Results of reductions that are added to those before. */
static double added_bytes(const struct dtp_executor_counted *s, int i)
{
    return 3 * (s->opened[i] - 1) * (double)s->layout[i].shard_elements * s->shard_element[i];
}

static double shard_bytes(const struct dtp_executor_counted *s, int i)
{
    return (double)s->layout[i].shard_elements * s->shard_element[i];
}

static double whole_bytes(const struct dtp_executor_counted *s, int i)
{
    return (double)s->layout[i].elements * s->element[i];
}

/* Results of `reductions`: exchanged gradients are added up by a kernel, all but the first time onto what is there;
 * scattered ones are sums already, which later times are added. */
static void count_sums(const struct dtp_executor_counted *s, double reductions, struct dtp_step_work *out)
{
    double shards = over_modules(s, shard_bytes), sums = reductions - 1;
    out->gradient_bytes += s->rules.exchanges
                               ? reductions * over_modules(s, whole_bytes) + (2 * reductions - 1) * shards
                               : over_modules(s, added_bytes);
    double experts = s->layout[3].elements ? s->layers : 0;
    out->step_kernels +=
        (s->rules.exchanges ? reductions : sums) * (s->modules - experts) + (s->opened[3] - 1) * experts;
}

/* Muon's passes over matrices of a block: gradient and momentum into what is multiplied, which is divided by its norm;
 * that into the weights. */
static double matrices_updated(const struct dtp_executor_counted *s)
{
    const double momentum = 2 * (double)dtp_dtype_bytes(s->rules.moments),
                 partials = 4.0 * DTP_EXECUTOR_SQUARE_SUM_PARTIALS;
    const double weights = (s->rules.master ? 1 : 2) * s->c + (s->rules.master ? 8 : 0);
    double bytes = 0;
    for (int i = 0; i < s->block.kind.matrices; i++) {
        const struct dtp_layer_matrix *m = &s->block.kind.matrix[i];
        bytes += (double)(m->out * m->in) * (s->shard_element[1] + momentum + 2 + 4 + 2 + weights) + 2 * partials;
    }
    return bytes;
}

/* Launches of a block's Muon: its passes, its products, AdamW of the vectors between matrices. */
static double matrix_launches(const struct dtp_executor_counted *s)
{
    struct dtp_parameter_run run = {.elements = 0};
    double launches = (double)(3 + 3 * DTP_NEWTON_SCHULZ_STEPS) * s->block.kind.matrices;
    for (int next = 0; dtp_parameter_next_vectors(&s->layout[1], &next, &run);)
        launches++;
    return launches;
}

static double matrix_flops(const struct dtp_executor_counted *s)
{
    double flops = 0;
    for (int i = 0; i < s->block.kind.matrices; i++) {
        struct dtp_newton_schulz products;
        dtp_newton_schulz_of(s->plan, s->block.kind.matrix[i].out, s->block.kind.matrix[i].in, &products);
        flops += products.flops;
    }
    return flops;
}

/* Elements of a module whose update is one pass with all moments. */
static double alike(const struct dtp_executor_counted *s, int i)
{
    struct dtp_parameter_run run = {.elements = 0};
    double elements = 0;
    if (!s->rules.orthogonal || i != 1)
        return (double)s->layout[i].shard_elements;
    for (int next = 0; dtp_parameter_next_vectors(&s->layout[1], &next, &run);)
        elements += (double)run.elements;
    return elements;
}

static double cast_bytes(const struct dtp_executor_counted *s, int i)
{
    return (double)s->layout[i].shard_elements * (s->shard_element[i] + dtp_dtype_bytes(s->rules.wire));
}

/* Packed from whole elements and added up into them. */
static double packed_bytes(const struct dtp_executor_counted *s, int i)
{
    double part = (double)dtp_int8_part_bytes(s->layout[i].shard_elements);
    return 2 * (double)s->layout[i].shard_elements * s->shard_element[i] + part * (1 + (double)s->rules.replicas);
}

/* Of PowerSGD: what was lost is added (3 passes), P and Q are made orthonormal (2), what is not factored goes and comes
 * (2 each). Four products read or write the matrix: for P and for Q, as the sum, and twice as what is lost now. */
static void count_factors(const struct dtp_executor_counted *s, double sums, struct dtp_step_work *out)
{
    for (int i = 0; i < 3; i++) {
        struct dtp_executor_factors f;
        double modules = sums * (i == 1 ? s->layers : s->ends);
        dtp_executor_factors_of(&s->layout[i], s->plan->powersgd_rank, &f);
        for (uint32_t k = 0; k < f.count; k++) {
            const struct dtp_executor_factor *factor = &f.factor[k];
            double elements = (double)(factor->rows * factor->columns), r = (double)factor->rank;
            double sides = r * (double)(factor->rows + factor->columns);
            out->gradient_bytes += modules * 4 * (3 * elements + 2 * sides);
            out->product_flops += modules * 8 * elements * r;
            out->product_bytes += modules * 4 * (5 * elements + 4 * sides);
            out->step_kernels += 7 * modules;
        }
        for (uint32_t k = 0; k < f.run_count && f.count; k++) {
            out->gradient_bytes += modules * 4 * 4 * (double)f.run[k].elements;
            out->step_kernels += 2 * modules;
        }
    }
}

/* What replicas sum is cast to 16 or 8 bits and back, whole gradients at each reduction, shards in the last micro-step;
 * or is factored. */
static void count_hook(const struct dtp_executor_counted *s, double reductions, struct dtp_step_work *out)
{
    double sums = s->rules.shard_ranks > 1 ? 1 : reductions;
    if (s->rules.hook == DTP_COMM_HOOK_POWERSGD)
        count_factors(s, sums, out);
    if (!dtp_executor_casts_sums(&s->rules) && s->rules.hook != DTP_COMM_HOOK_INT8)
        return;
    out->gradient_bytes +=
        sums * (s->rules.hook == DTP_COMM_HOOK_INT8 ? over_modules(s, packed_bytes) : 2 * over_modules(s, cast_bytes));
    out->step_kernels += 2 * sums * s->modules;
}

/* AdamW reads gradients, writes weights (and reads them where there is no master), reads and writes the rest. */
static double updated(const struct dtp_executor_counted *s, int i)
{
    double weights = (s->rules.master ? 1 : 2) * s->c, master = s->rules.master ? 8 : 0;
    return alike(s, i) * (s->shard_element[i] + weights + master + dtp_executor_moment_bytes(&s->rules)) +
           (s->rules.orthogonal && i == 1 ? matrices_updated(s) : 0);
}

static void count_step(const struct dtp_executor_counted *s, struct dtp_step_work *out)
{
    double steps = s->plan->accumulate;
    double opened = s->opened[1];
    double vectors = over_modules(s, written), partials = 4.0 * DTP_EXECUTOR_SQUARE_SUM_PARTIALS * s->modules;
    /* a micro-step that adds reads norms' gradients too; the embedding's rows are read in any case */
    out->gradient_bytes +=
        over_modules(s, zeroed) + steps * vectors + (steps - opened) * (vectors - s->ends * written(s, 0));
    out->update_bytes += s->rules.host_optimizer ? 0 : over_modules(s, updated);
    out->host_update_bytes += s->rules.host_optimizer ? over_modules(s, updated) : 0;
    out->step_kernels += over_modules(s, zero_launches);
    count_sums(s, opened, out);
    count_hook(s, opened, out);
    out->step_kernels += s->rules.host_optimizer ? 0 : s->modules;
    if (s->rules.orthogonal) {
        out->step_kernels += s->layers * (matrix_launches(s) - 1);
        out->update_matmul_flops += s->layers * matrix_flops(s);
    }
    if (s->rules.gradient_norm) {
        out->update_bytes += over_modules(s, shard_bytes) + 2 * partials;
        out->step_kernels += s->modules + s->ends;
    }
}

/* Matrices that rest in 4 bits are unpacked for each product with them: of the operators whose bits are set, forward or
 * again; of those that a block's backward passes through. */
static struct dtp_executor_traffic unpacked(const struct dtp_executor_block *block, uint32_t operators, bool backward)
{
    struct dtp_executor_traffic sum = {0, 0};
    for (int i = 0; i < block->count; i++) {
        const struct dtp_executor_operator *op = &block->op[i];
        if (!(operators & 1u << i) || !op->matrix || op->adapter || (backward && !op->passes))
            continue;
        sum.bytes += dtp_executor_unpacked_bytes(op->matrix->out * op->matrix->in, block->element_bytes);
        sum.kernels++;
    }
    return sum;
}

static double unpacked_bytes(const struct dtp_executor_counted *s, uint32_t operators)
{
    return unpacked(&s->block, operators, false).bytes;
}

static double unpacked_kernels(const struct dtp_executor_counted *s, uint32_t operators)
{
    return unpacked(&s->block, operators, false).kernels;
}

static void count_packed(const struct dtp_executor_counted *s, struct dtp_step_work *out)
{
    struct dtp_executor_traffic rest = unpacked(&s->block, ~0u, true), first = unpacked(&s->first, ~0u, true);
    if (!s->block.packed)
        return;
    out->forward_bytes += s->layers * unpacked_bytes(s, ~0u);
    out->backward_bytes += (s->layers - 1) * rest.bytes + first.bytes;
    out->recompute_bytes += over_again(s, unpacked_bytes);
    out->kernels += s->layers * unpacked_kernels(s, ~0u) + (s->layers - 1) * rest.kernels + first.kernels +
                    over_again(s, unpacked_kernels);
}

/* Amax of activations and gradients are zeroed in each micro-step, of weights in the first. */
static void count_fp8(const struct dtp_executor_counted *s, struct dtp_step_work *out)
{
    struct dtp_checkpoint_rule rule = dtp_plan_checkpoint_rule(s->plan);
    struct dtp_executor_fp8_work w = dtp_executor_fp8_work(&s->block, rule.keeps, s->again);
    double whole = s->layers - s->checkpointed, steps = s->plan->accumulate, slots = 0;
    if (!s->block.fp8)
        return;
    for (int i = 0; i < s->block.count; i++)
        slots += s->block.op[i].matrix ? s->layers : 0;
    out->forward_bytes += whole * w.forward.bytes + s->checkpointed * w.checkpointed_forward.bytes;
    out->backward_bytes += whole * w.backward.bytes + s->checkpointed * w.checkpointed_backward.bytes;
    out->recompute_bytes += s->checkpointed * w.again.bytes;
    out->kernels +=
        whole * (w.forward.kernels + w.backward.kernels) +
        s->checkpointed * (w.checkpointed_forward.kernels + w.checkpointed_backward.kernels + w.again.kernels);
    out->forward_bytes += s->layers * w.weights_amax.bytes / steps;
    if (dtp_executor_scales_parts(&s->block))
        return;
    if (dtp_executor_delays_scales(&s->block)) {
        out->gradient_bytes += dtp_executor_history_bytes(slots * (1 + 2 * steps));
        out->step_kernels += s->layers * steps;
        return;
    }
    out->gradient_bytes += 4 * slots * (1 + 2 * steps);
    out->step_kernels += s->layers * w.weights_amax.kernels + s->ends * steps;
}

void dtp_executor_work(const struct dtp_transformer *transformer, const struct dtp_cluster *cluster,
                       const struct dtp_plan *plan, struct dtp_step_work *out)
{
    struct dtp_parameter_alike alike[DTP_PARAMETER_KINDS];
    const int kinds = dtp_parameter_alike_modules(transformer, alike);
    *out = (struct dtp_step_work){.kernels = 0};
    for (int kind = 1; kind + 1 < kinds; kind++) {
        struct dtp_executor_counted s;
        dtp_executor_counted_of(transformer, cluster, plan, &alike[kind], &s);
        count_flops(&s, out);
        count_bytes(&s, out);
        count_kernels(&s, out);
        count_step(&s, out);
        count_fp8(&s, out);
        count_packed(&s, out);
        out->head_rows = (double)s.rules.chunk_tokens;
        out->head_columns = (double)s.rules.vocab_stride;
    }
    dtp_executor_leave_out_turns(transformer, plan, out);
}
