#include "program/program_text.h"
#include "program/program_text_words.h"

#include <inttypes.h>
#include <math.h>

/* A double in few characters that give the same bits: whole numbers as such, others as mantissa and power of two. */
static void write_number(FILE *file, const char *key, double value)
{
    if (value == 0)
        return;
    if (value <= 0x1p53 && value == floor(value)) {
        fprintf(file, " %s %" PRIu64, key, (uint64_t)value);
        return;
    }
    int exponent;
    uint64_t mantissa = (uint64_t)(frexp(value, &exponent) * 0x1p53);
    exponent -= 53;
    while (mantissa % 2 == 0) {
        mantissa /= 2;
        exponent++;
    }
    fprintf(file, " %s %" PRIu64 "p%d", key, mantissa, exponent);
}

static void write_place(FILE *file, uint16_t layer, uint16_t micro_step)
{
    if (layer != DTP_NO_LAYER)
        fprintf(file, " layer %u", layer);
    if (micro_step)
        fprintf(file, " micro %u", micro_step);
}

static void write_buffer(FILE *file, const struct dtp_buffer *buffer, size_t index)
{
    static const char *const spaces[DTP_SPACE_COUNT] = DTP_SPACE_WORDS;
    fprintf(file, "buffer %zu \"%s\" bytes %" PRIu64 " owner %s space %s pool %s", index, buffer->name, buffer->bytes,
            dtp_owner_key(buffer->owner), spaces[buffer->space], dtp_stream_text(buffer->pool));
    write_place(file, buffer->layer, buffer->micro_step);
    if (buffer->element != DTP_NO_ELEMENT)
        fprintf(file, " dtype %s", dtp_dtype_text((enum dtp_dtype)(buffer->element - 1)));
    if (buffer->content != DTP_CONTENT_NONE)
        fprintf(file, " content %s", dtp_content_text((enum dtp_content)buffer->content));
    if (buffer->module)
        fprintf(file, " module %u", buffer->module);
    fputs(buffer->persistent ? " persistent\n" : "\n", file);
}

static void write_execution(FILE *file, const struct dtp_execution *execution)
{
    fprintf(file, "execution issuer %s allocator %s compute %s reduce %s", dtp_issuer_text(execution->issuer),
            dtp_allocator_text(execution->allocator), dtp_dtype_text(execution->compute),
            dtp_dtype_text(execution->reduce));
    if (execution->fp8_recipe)
        fprintf(file, " fp8_recipe %s", dtp_fp8_recipe_text(execution->fp8_recipe));
#define X(field) fputs(execution->field ? " " #field : "", file);
    DTP_EXECUTION_FLAGS(X)
#undef X
#define X(field) write_number(file, #field, execution->field);
    DTP_EXECUTION_NUMBERS(X)
#undef X
    write_number(file, "clip_norm", execution->clip_norm);
    for (int i = 0; i < DTP_COLLECTIVE_COUNT; i++)
        if (dtp_execution_copies(execution, (enum dtp_collective)i))
            fprintf(file, " copies %s", dtp_collective_text((enum dtp_collective)i));
    fputc('\n', file);
}

static void write_tensor(FILE *file, const struct dtp_program_tensor *tensor, size_t index)
{
    const struct dtp_parameter_tensor *at = &tensor->at;
    fprintf(file, "tensor %zu \"%s\" module %u", index, dtp_parameter_text(tensor->parameter), tensor->first_module);
    if (tensor->modules > 1)
        fprintf(file, " modules %u", tensor->modules);
    fprintf(file, " rows %" PRIu64 " columns %" PRIu64 " offset %" PRIu64, at->rows, at->columns, at->offset_elements);
    if (at->extent_elements != at->rows * at->columns)
        fprintf(file, " extent %" PRIu64, at->extent_elements);
    if (at->saved_offset_elements != at->offset_elements)
        fprintf(file, " saved %" PRIu64, at->saved_offset_elements);
    fputs(at->decays ? " decays" : "", file);
    if (at->cut.parts)
        fprintf(file,
                " cut %s parts %u first %" PRIu64 " whole_rows %" PRIu64 " whole_columns %" PRIu64
                " whole_saved %" PRIu64,
                dtp_parameter_way_text(at->cut.way), at->cut.parts, at->cut.first_part, at->cut.whole_rows,
                at->cut.whole_columns, at->cut.whole_saved_offset_elements);
    write_number(file, "mean", at->mean);
    write_number(file, "deviation", at->deviation);
    fputc('\n', file);
}

/* A verb stands before the first operand of each run that shares it. */
static void write_operands(FILE *file, const struct dtp_operand *operands, uint32_t count)
{
    static const char *const verbs[] = {"buffers", "reads", "writes", "updates"};
    for (uint32_t i = 0; i < count; i++) {
        uint32_t access = operands[i].access;
        if (!i || (access & DTP_UPDATE) != (operands[i - 1].access & DTP_UPDATE))
            fprintf(file, " %s", verbs[access & DTP_UPDATE]);
        fprintf(file, " %s%u", access & DTP_ALLOC ? "+" : "", operands[i].buffer.index);
        if (operands[i].shard)
            fputc('%', file);
        if (operands[i].offset_bytes || operands[i].bytes)
            fprintf(file, "@%" PRIu64, operands[i].offset_bytes);
        if (operands[i].bytes)
            fprintf(file, "+%" PRIu64, operands[i].bytes);
        fputs(access & DTP_DEFER ? "~" : access & DTP_FREE ? "-" : "", file);
        if (operands[i].role)
            fprintf(file, ":%s", dtp_role_text(operands[i].role));
    }
}

static void write_attention(FILE *file, const struct dtp_attention_shape *attention)
{
    static const char *const kernels[DTP_ATTENTION_COUNT] = DTP_ATTENTION_KERNEL_WORDS;
#define X(field, most)                                                                                                 \
    if (attention->field)                                                                                              \
        fprintf(file, " " #field " %" PRIu64, (uint64_t)attention->field);
    DTP_ATTENTION_TABLE(X)
#undef X
    write_number(file, "softcap", attention->softcap);
    fputs(attention->causal ? " causal" : "", file);
    fputs(attention->wide ? " wide" : "", file);
    fputs(attention->atomic ? " atomic" : "", file);
    fputs(attention->dropout ? " dropout" : "", file);
    fputs(attention->alibi ? " alibi" : "", file);
    fputs(attention->narrow ? " narrow" : "", file);
    if (attention->kernel)
        fprintf(file, " kernel %s", kernels[attention->kernel]);
}

static void write_demand(FILE *file, const struct dtp_op *op)
{
    static const char *const memory_kernels[] = DTP_MEMORY_KERNEL_WORDS;
    const struct dtp_demand *demand = op->demand;
#define X(field) write_number(file, #field, demand->field);
    DTP_DEMAND_TABLE(X)
#undef X
    write_attention(file, &demand->attention);
    if (demand->form)
        fprintf(file, " form %s", dtp_form_text((enum dtp_form)demand->form));
    if (demand->groups)
        fprintf(file, " groups %u", demand->groups);
    if (demand->kernels)
        fprintf(file, " kernels %u", demand->kernels);
    if (demand->dtype || dtp_op_kind_class(op->kind) == DTP_CLASS_MATMUL)
        fprintf(file, " dtype %s", dtp_dtype_text(demand->dtype));
    if (demand->memory_kernel)
        fprintf(file, " kernel %s", memory_kernels[demand->memory_kernel]);
    if (demand->recompute)
        fputs(" recompute", file);
    if (demand->issue)
        fprintf(file, " issue %s", dtp_issue_text((enum dtp_issue)demand->issue));
}

static void write_op(FILE *file, const struct dtp_program *program, const struct dtp_op *op, size_t index)
{
    fprintf(file, "op %zu %s %s", index, dtp_op_kind_text(op->kind), dtp_stream_text(op->stream));
    write_place(file, op->layer, op->micro_step);
    if (op->group != DTP_NO_INDEX)
        fprintf(file, " group %u", op->group);
    if (dtp_op_kind_is_transfer(op->kind))
        fprintf(file, " peer %u tag %u", op->peer, op->tag);
    write_operands(file, dtp_program_operands(program, op), op->operand_count);
    const dtp_op_id *dependencies = dtp_program_dependencies(program, op);
    for (uint32_t i = 0; i < op->dependency_count; i++)
        fprintf(file, "%s %u", i ? "" : " after", dependencies[i].index);
    write_demand(file, op);
    if (*op->name)
        fprintf(file, " name \"%s\"", op->name);
    fputc('\n', file);
}

static void write_group(FILE *file, const struct dtp_program_group *group, size_t index)
{
    fprintf(file, "group %zu ranks %u stride %u", index, group->ranks, group->stride);
    if (group->ctas)
        fprintf(file, " ctas %u", group->ctas);
    fputc('\n', file);
}

enum dtp_status dtp_program_write_text(const struct dtp_program *program, FILE *file)
{
    size_t ops = dtp_program_op_count(program), buffers = dtp_program_buffer_count(program);
    size_t groups = dtp_program_group_count(program), tensors = dtp_program_tensor_count(program);
    fputs("program 1\n", file);
    write_execution(file, dtp_program_execution(program));
    for (size_t i = 0; i < groups; i++)
        write_group(file, &dtp_program_groups(program)[i], i);
    for (size_t i = 0; i < tensors; i++)
        write_tensor(file, &dtp_program_tensors(program)[i], i);
    for (size_t i = 0; i < buffers; i++)
        write_buffer(file, &dtp_program_buffers(program)[i], i);
    for (size_t i = 0; i < ops; i++)
        write_op(file, program, &dtp_program_ops(program)[i], i);
    fprintf(file, "end ops %zu buffers %zu groups %zu", ops, buffers, groups);
    if (tensors)
        fprintf(file, " tensors %zu", tensors);
    fputc('\n', file);
    return ferror(file) ? DTP_ENVIRONMENT : DTP_OK;
}
