/* What happens to gradients and state once they are made: norm, AdamW, additions, copies, collectives. */
#include "bind/binder.h"

#include "plan/comm_hook.h"

#include <inttypes.h>

/* ---- optimizer --------------------------------------------------------------------------------------------------- */

void dtp_bind_zero(struct dtp_binder *b, struct dtp_bound_op *out)
{
    out->kernel = DTP_KERNEL_zero;
    out->arguments.zero = (struct dtp_zero_args){need(b, DTP_ROLE_RESULT), (uint64_t)b->op->demand->bytes};
}

/* Of what all tensor parallel ranks have whole, the first counts the squares: ranges among the `count` elements of the
 * module's gradient, or of this rank's shard of it, that the others leave out. The place of the partial sums says
 * which module it is, of those of adapters where these alone are trained; of experts that ranks divide none has any
 * whole. */
static void skip_ranges(struct dtp_binder *b, struct dtp_square_sum_args *out)
{
    struct dtp_tensor_place place = dtp_bind_tensor_place(&b->binding->job);
    const struct dtp_operand *partials = operand(b, DTP_ROLE_PARTIALS);
    const struct dtp_execution *execution = dtp_program_execution(b->binding->job.program);
    const uint64_t module = execution->adapter_modules +
                            (partials ? partials->offset_bytes / (4 * DTP_SQUARE_SUM_PARTIALS) : 0),
                   experts = execution->expert_modules;
    struct dtp_parameter_module layout;
    if (place.index == 0 || !partials || (experts && module >= experts))
        return;
    dtp_program_module(b->binding->job.program, module, &layout);
    uint64_t first = out->count < layout.elements ? group_index(b) * layout.shard_elements : 0;
    if (out->count != layout.elements && out->count != layout.shard_elements)
        b->missing |= 1u << DTP_ROLE_INPUT;
    for (int i = 0; i < DTP_PARAMETER_COUNT; i++) {
        const struct dtp_parameter_tensor *t = &layout.tensor[i];
        uint64_t begin = t->offset_elements, end = begin + t->extent_elements, last = first + out->count;
        if (!t->exists || t->cut.way != DTP_PARAMETER_CUT_WHOLE || end <= first || begin >= last)
            continue;
        begin = begin > first ? begin - first : 0;
        end = (end < last ? end : last) - first;
        if (out->skip_count && out->skip_end[out->skip_count - 1] == begin) {
            out->skip_end[out->skip_count - 1] = end;
        } else if (out->skip_count == DTP_SQUARE_SUM_RANGES) {
            b->missing |= 1u << DTP_ROLE_INPUT;
        } else {
            out->skip_begin[out->skip_count] = begin;
            out->skip_end[out->skip_count++] = end;
        }
    }
}

void dtp_bind_square_sum(struct dtp_binder *b, struct dtp_bound_op *out)
{
    const struct dtp_operand *input = operand(b, DTP_ROLE_INPUT);
    enum dtp_element element = element_of(b, DTP_ROLE_INPUT);
    out->kernel = DTP_KERNEL_square_sum;
    out->arguments.square_sum =
        (struct dtp_square_sum_args){.values = need(b, DTP_ROLE_INPUT),
                                     .partial = need(b, DTP_ROLE_PARTIALS),
                                     .count = input ? operand_bytes(b, input) / dtp_element_bytes(element) : 0,
                                     .element = element};
    skip_ranges(b, &out->arguments.square_sum);
}

void dtp_bind_clip_scale(struct dtp_binder *b, struct dtp_bound_op *out)
{
    const struct dtp_operand *partials = operand(b, DTP_ROLE_PARTIALS);
    out->kernel = DTP_KERNEL_clip_scale;
    out->arguments.clip_scale =
        (struct dtp_clip_scale_args){.partials = need(b, DTP_ROLE_PARTIALS),
                                     .count = partials ? operand_bytes(b, partials) / 4 : 0,
                                     .clip = (float)dtp_program_execution(b->binding->job.program)->clip_norm,
                                     .scalars = need(b, DTP_ROLE_SCALARS)};
}

/* Where weight decay applies among elements [first, first + count) of a module. Neighbours that both decay are one
 * range: the padding between them is zero and stays so. */
enum dtp_status dtp_bind_decay(const struct dtp_binder *b, uint64_t module, uint64_t first, struct dtp_adamw_args *out)
{
    struct dtp_parameter_module layout;
    dtp_program_module(b->binding->job.program, module, &layout);
    bool follows = false;
    for (int i = 0; i < DTP_PARAMETER_COUNT; i++) {
        const struct dtp_parameter_tensor *t = &layout.tensor[i];
        uint64_t begin = t->offset_elements, end = begin + t->rows * t->columns, last = first + out->count;
        if (!t->exists)
            continue;
        begin = begin > first ? begin : first;
        end = end < last ? end : last;
        bool decays = t->decays && begin < end;
        if (decays && follows) {
            out->range_end[out->range_count - 1] = end - first;
        } else if (decays) {
            if (out->range_count == DTP_DECAY_RANGES)
                return dtp_fault(b->faults, DTP_BAD_INPUT, NULL, 0,
                                 "module %" PRIu64 " has more than %u ranges of decay", module, DTP_DECAY_RANGES);
            out->range_begin[out->range_count] = begin - first;
            out->range_end[out->range_count++] = end - first;
        }
        follows = decays;
    }
    return DTP_OK;
}

/* Moments as the optimizer that these are of has them: none of SGD, or its momentum, of 8 bits with a scale a block. */
static enum dtp_kernel bind_moments(struct dtp_binder *b, struct dtp_adamw_args *g)
{
    g->moment1 = maybe(b, DTP_ROLE_MOMENT1);
    if (!g->moment1 && !operand(b, DTP_ROLE_MOMENT2))
        return DTP_KERNEL_sgd;
    g->moment_element = element_of_all(b, DTP_ROLE_MOMENT1, g->count);
    if (!operand(b, DTP_ROLE_MOMENT2)) {
        g->beta1 = b->binding->job.optimizer.momentum;
        if (g->moment_element == DTP_ELEMENT_INT8)
            b->missing |= 1u << DTP_ROLE_MOMENT1;
        return DTP_KERNEL_sgd;
    }
    g->moment2 = need(b, DTP_ROLE_MOMENT2);
    if (element_of_all(b, DTP_ROLE_MOMENT2, g->count) != g->moment_element)
        b->missing |= 1u << DTP_ROLE_MOMENT2;
    if (g->moment_element != DTP_ELEMENT_INT8)
        return DTP_KERNEL_adamw;
    g->scale1 = need(b, DTP_ROLE_SCALE);
    g->scale2 = need(b, DTP_ROLE_OTHER_SCALE);
    element_of_all(b, DTP_ROLE_SCALE, g->count / DTP_MOMENT_BLOCK);
    element_of_all(b, DTP_ROLE_OTHER_SCALE, g->count / DTP_MOMENT_BLOCK);
    return DTP_KERNEL_adamw8;
}

/* Which elements of the module these are: all of them, this rank's shard, or where each rank has the whole some of them
 * from the weight's offset on. */
static bool place_of(const struct dtp_binder *b, const struct dtp_parameter_module *layout, uint64_t count,
                     enum dtp_element element, uint64_t *first)
{
    const struct dtp_operand *weight = operand(b, DTP_ROLE_WEIGHT);
    uint64_t held = buffer_of(b, weight)->bytes / dtp_element_bytes(element);
    bool part = layout->elements == layout->shard_elements && held == layout->elements && !weight->shard;
    *first = part ? weight->offset_bytes / dtp_element_bytes(element)
                  : (count < layout->elements ? group_index(b) * layout->shard_elements : 0);
    return count == layout->elements || count == layout->shard_elements || (part && *first + count <= layout->elements);
}

enum dtp_status dtp_bind_optimizer(struct dtp_binder *b, struct dtp_bound_op *out)
{
    const struct dtp_bind_job *job = &b->binding->job;
    const struct dtp_operand *moment = operand(b, DTP_ROLE_MOMENT1), *weight = operand(b, DTP_ROLE_WEIGHT);
    const struct dtp_operand *state = moment ? moment : weight; /* whose buffer names the module */
    if (!state || !weight || buffer_of(b, state)->module >= b->binding->map.module_count) {
        b->missing |= 1u << (moment ? DTP_ROLE_MOMENT1 : DTP_ROLE_WEIGHT);
        return DTP_OK;
    }
    struct dtp_parameter_module layout;
    uint64_t module = buffer_of(b, state)->module;
    dtp_program_module(b->binding->job.program, module, &layout);
    struct dtp_adamw_args g = {.gradient = need(b, DTP_ROLE_WEIGHT_GRADIENT),
                               .weights = need(b, DTP_ROLE_WEIGHT),
                               .master = maybe(b, DTP_ROLE_MASTER),
                               .beta1 = job->optimizer.beta1,
                               .beta2 = job->optimizer.beta2,
                               .epsilon = job->optimizer.epsilon,
                               .decay = job->optimizer.decay,
                               .scalars = need(b, DTP_ROLE_SCALARS),
                               .weight_element = element_of(b, DTP_ROLE_WEIGHT),
                               .stochastic_rounding = dtp_program_execution(job->program)->stochastic_rounding};
    g.count = operand_bytes(b, weight) / dtp_element_bytes(g.weight_element);
    g.gradient_element = element_of_all(b, DTP_ROLE_WEIGHT_GRADIENT, g.count);
    element_of_all(b, DTP_ROLE_WEIGHT, g.count);
    out->kernel = bind_moments(b, &g);
    if (g.master && element_of_all(b, DTP_ROLE_MASTER, g.count) != DTP_ELEMENT_FP32)
        b->missing |= 1u << DTP_ROLE_MASTER;
    uint64_t first;
    if (!place_of(b, &layout, g.count, g.weight_element, &first))
        b->missing |= 1u << DTP_ROLE_WEIGHT;
    g.first_element = dtp_parameter_element_key(module, first);
    enum dtp_status status = dtp_bind_decay(b, module, first, &g);
    out->arguments.adamw = g;
    return status;
}

/* The same roles, all of them in host memory. */
enum dtp_status dtp_bind_host_optimizer(struct dtp_binder *b, struct dtp_bound_op *out)
{
    const struct dtp_operand *operands = dtp_program_operands(b->binding->job.program, b->op);
    for (uint32_t i = 0; i < b->op->operand_count; i++)
        if (buffer_of(b, &operands[i])->space != DTP_SPACE_HOST)
            b->missing |= 1u << operands[i].role;
    enum dtp_status status = dtp_bind_optimizer(b, out);
    struct dtp_adamw_args adamw = out->arguments.adamw;
    out->kind = DTP_BOUND_HOST;
    out->arguments.host = (struct dtp_host_update){b->binding->adam, adamw};
    return status;
}

/* ---- element by element, copies, collectives --------------------------------------------------------------------- */

/* Numbers out of 4 bits: a byte has two codes, DTP_NF4_BLOCK numbers share a scale. */
static void bind_unpack(struct dtp_binder *b, struct dtp_bound_op *out)
{
    uint64_t count = rows(b);
    element_of_all(b, DTP_ROLE_SCALE, count / DTP_NF4_BLOCK);
    if (count % DTP_NF4_BLOCK || element_of_all(b, DTP_ROLE_INPUT, count / 2) != DTP_ELEMENT_INT8)
        b->missing |= 1u << DTP_ROLE_INPUT;
    out->kernel = DTP_KERNEL_unpack4;
    out->arguments.unpack4 = (struct dtp_unpack4_args){.codes = need(b, DTP_ROLE_INPUT),
                                                       .largest = need(b, DTP_ROLE_SCALE),
                                                       .result = need(b, DTP_ROLE_RESULT),
                                                       .count = count,
                                                       .element = element_of_all(b, DTP_ROLE_RESULT, count)};
}

void dtp_bind_cast(struct dtp_binder *b, struct dtp_bound_op *out)
{
    uint64_t count = rows(b);
    if (operand(b, DTP_ROLE_SCALE)) {
        bind_unpack(b, out);
        return;
    }
    out->kernel = DTP_KERNEL_cast;
    out->arguments.cast = (struct dtp_cast_args){.values = need(b, DTP_ROLE_INPUT),
                                                 .result = need(b, DTP_ROLE_RESULT),
                                                 .count = count,
                                                 .element = element_of_all(b, DTP_ROLE_INPUT, count),
                                                 .result_element = element_of_all(b, DTP_ROLE_RESULT, count)};
}

void dtp_bind_add(struct dtp_binder *b, struct dtp_bound_op *out)
{
    uint64_t count = rows(b);
    out->kernel = DTP_KERNEL_add;
    out->arguments.add = (struct dtp_add_args){.values = need(b, DTP_ROLE_INPUT),
                                               .total = need(b, DTP_ROLE_RESULT),
                                               .count = count,
                                               .element = element_of(b, DTP_ROLE_INPUT),
                                               .total_element = element_of(b, DTP_ROLE_RESULT)};
}

void dtp_bind_sum_parts(struct dtp_binder *b, struct dtp_bound_op *out)
{
    uint64_t count = rows(b), ranks = dtp_binding_shards(b->binding);
    out->kernel = DTP_KERNEL_sum_parts;
    out->arguments.sum_parts = (struct dtp_sum_parts_args){.parts = need(b, DTP_ROLE_INPUT),
                                                           .total = need(b, DTP_ROLE_RESULT),
                                                           .count = count,
                                                           .part_count = (uint32_t)ranks,
                                                           .element = element_of_all(b, DTP_ROLE_INPUT, ranks * count),
                                                           .total_element = element_of_all(b, DTP_ROLE_RESULT, count),
                                                           .accumulate = updates(b, DTP_ROLE_RESULT)};
}

/* Numbers into 8 bits: one part has all that this rank gives. Below, the sum of what all ranks gave. */
void dtp_bind_pack8(struct dtp_binder *b, struct dtp_bound_op *out)
{
    const uint64_t count = rows(b), part_bytes = dtp_int8_part_bytes(count);
    out->kernel = DTP_KERNEL_pack8;
    out->arguments.pack8 = (struct dtp_pack8_args){.values = need(b, DTP_ROLE_INPUT),
                                                   .part = need(b, DTP_ROLE_RESULT),
                                                   .count = count,
                                                   .element = element_of_all(b, DTP_ROLE_INPUT, count)};
    if (element_of_all(b, DTP_ROLE_RESULT, part_bytes) != DTP_ELEMENT_INT8)
        b->missing |= 1u << DTP_ROLE_RESULT;
}

void dtp_bind_sum_packed8(struct dtp_binder *b, struct dtp_bound_op *out)
{
    const struct dtp_operand *parts = operand(b, DTP_ROLE_INPUT);
    const uint64_t count = rows(b), part_bytes = dtp_int8_part_bytes(count);
    const uint64_t ranks = parts && part_bytes ? operand_bytes(b, parts) / part_bytes : 0;
    out->kernel = DTP_KERNEL_sum_packed8;
    out->arguments.sum_packed8 = (struct dtp_sum_packed8_args){.parts = need(b, DTP_ROLE_INPUT),
                                                               .total = need(b, DTP_ROLE_RESULT),
                                                               .count = count,
                                                               .part_bytes = part_bytes,
                                                               .part_count = (uint32_t)ranks,
                                                               .element = element_of_all(b, DTP_ROLE_RESULT, count)};
    if (ranks > DTP_RANKS_MAX || element_of_all(b, DTP_ROLE_INPUT, ranks * part_bytes) != DTP_ELEMENT_INT8)
        b->missing |= 1u << DTP_ROLE_INPUT;
}

void dtp_bind_orthogonalize(struct dtp_binder *b, struct dtp_bound_op *out)
{
    const bool by_columns = b->op->demand->form == DTP_FORM_COLUMNS;
    const uint64_t count = rows(b), columns = width(b);
    out->kernel = DTP_KERNEL_orthogonalize;
    out->arguments.orthogonalize = (struct dtp_orthogonalize_args){.values = need(b, DTP_ROLE_RESULT),
                                                                   .length = by_columns ? count : columns,
                                                                   .element_stride = by_columns ? columns : 1,
                                                                   .vector_stride = by_columns ? 1 : columns,
                                                                   .vectors = (uint32_t)(by_columns ? columns : count)};
}

void dtp_bind_copy(struct dtp_binder *b, struct dtp_bound_op *out)
{
    out->kind = DTP_BOUND_COPY;
    out->arguments.copy =
        (struct dtp_copy_args){need(b, DTP_ROLE_RESULT), need(b, DTP_ROLE_INPUT), (uint64_t)b->op->demand->sent_bytes};
}

/* The whole is what all_gather receives and the others are given; operands may lie in larger buffers. */
enum dtp_status dtp_bind_collective(struct dtp_binder *b, struct dtp_bound_op *out)
{
    enum dtp_collective collective = dtp_op_kind_collective(b->op->kind);
    const struct dtp_operand *input = operand(b, DTP_ROLE_INPUT), *result = operand(b, DTP_ROLE_RESULT);
    uint64_t ranks = dtp_program_groups(b->binding->job.program)[b->op->group].ranks;
    struct dtp_collective_args g = {.collective = collective,
                                    .group = b->op->group,
                                    .input = need(b, DTP_ROLE_INPUT),
                                    .result = need(b, DTP_ROLE_RESULT)};
    if (!b->binding->job.world)
        return dtp_fault(b->faults, DTP_BAD_INPUT, NULL, 0, "%s in a run of one rank", dtp_op_kind_text(b->op->kind));
    if (!input || !result)
        return DTP_OK;
    uint64_t given = operand_bytes(b, input), received = operand_bytes(b, result);
    bool words = buffer_of(b, input)->content == DTP_CONTENT_ROUTES; /* numbers of rows, 4 bytes each */
    g.element = words ? DTP_ELEMENT_FP32 : element_of(b, DTP_ROLE_INPUT);
    g.bytes = collective == DTP_ALL_GATHER ? given * ranks : given;
    if (collective == DTP_ALL_GATHER && g.bytes > received) /* in a buffer that all uploads share */
        g.bytes = received;
    uint64_t part = collective == DTP_REDUCE_SCATTER ? given / ranks : g.bytes;
    uint64_t unit = dtp_element_bytes(g.element) * (collective == DTP_ALL_REDUCE ? 1 : ranks);
    if (part > received || g.bytes % unit != 0)
        return dtp_fault(b->faults, DTP_BAD_INPUT, NULL, 0,
                         "%s \"%s\" gives %" PRIu64 " bytes and has room for %" PRIu64 " among %" PRIu64 " ranks",
                         dtp_op_kind_text(b->op->kind), b->op->name, given, received, ranks);
    g.into_peers = dtp_op_gathers_rows(b->op);
    out->kind = DTP_BOUND_COLLECTIVE;
    out->arguments.collective = g;
    return DTP_OK;
}

/* One end of a transfer: all that INPUT of a send has, and RESULT of a receive has room for. */
enum dtp_status dtp_bind_transfer(struct dtp_binder *b, struct dtp_bound_op *out)
{
    const struct dtp_bind_job *job = &b->binding->job;
    bool receives = b->op->kind == DTP_OP_RECV;
    enum dtp_role role = receives ? DTP_ROLE_RESULT : DTP_ROLE_INPUT;
    const struct dtp_operand *moved = operand(b, role);
    if (!job->set || !job->world || b->op->peer >= job->set->role_count)
        return dtp_fault(b->faults, DTP_BAD_INPUT, NULL, 0,
                         "%s \"%s\": there is no role %u; transfers are between the roles of a program set",
                         dtp_op_kind_text(b->op->kind), b->op->name, b->op->peer);
    struct dtp_collective_args g = {.collective = DTP_SEND_RECV,
                                    .group = b->op->group,
                                    .bytes = moved ? operand_bytes(b, moved) : 0,
                                    .element = element_of(b, role),
                                    .peer = dtp_program_set_peer_rank(job->set, job->rank, b->op),
                                    .receives = receives};
    void *address = need(b, role);
    g.input = receives ? NULL : address;
    g.result = receives ? address : NULL;
    out->kind = DTP_BOUND_COLLECTIVE;
    out->arguments.collective = g;
    return DTP_OK;
}
