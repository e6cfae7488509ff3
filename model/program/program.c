#include "program/program.h"

#include "cost/op_cost.h"
#include "program/kept_once.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A vector that grows by doubling; realloc moves the pages of large ones instead of copying them. */
struct list {
    void *items;
    uint32_t count, capacity;
};

struct dtp_program {
    struct list ops, operands, dependencies, buffers, groups, tensors;
    struct list last_ops;      /* per buffer: 1 + the operation that named it last, to find it twice in one */
    struct dtp_kept_once once; /* names and demands of operations and buffers */
    struct dtp_execution execution;
    struct dtp_program_reader reader; /* .read NULL: operations are kept */
    uint32_t op_limit;
    bool sealed;
    enum dtp_status status; /* of the first fault while building */
    char reason[DTP_FAULT_TEXT_BYTES];
};

/* Keeps the first fault: those after it are mostly its consequences. */
#define REFUSE(program, code, ...)                                                                                     \
    do {                                                                                                               \
        if ((program)->status == DTP_OK) {                                                                             \
            (program)->status = (code);                                                                                \
            snprintf((program)->reason, sizeof(program)->reason, __VA_ARGS__);                                         \
        }                                                                                                              \
    } while (0)

/* Gives a list room for `capacity` items. Indices stay below DTP_NO_INDEX. */
static bool grow_list(struct dtp_program *program, struct list *list, size_t capacity, size_t item_bytes)
{
    void *items = capacity < DTP_NO_INDEX ? realloc(list->items, capacity * item_bytes) : NULL;
    if (!items) {
        REFUSE(program, DTP_ENVIRONMENT, "no memory for a program of %u operations", program->ops.count);
        return false;
    }
    list->items = items;
    list->capacity = (uint32_t)capacity;
    return true;
}

static bool double_list(struct dtp_program *program, struct list *list, size_t more, size_t item_bytes)
{
    size_t least = list->count + more, doubled = list->capacity ? 2 * (size_t)list->capacity : 64;
    size_t most = DTP_NO_INDEX - 1;
    doubled = doubled < most ? doubled : most;
    return grow_list(program, list, least > doubled ? least : doubled, item_bytes);
}

/* Room for `more` items behind those of `list`, or NULL. */
static inline void *extend(struct dtp_program *program, struct list *list, size_t more, size_t item_bytes)
{
    if (more > list->capacity - list->count && !double_list(program, list, more, item_bytes))
        return NULL;
    return (char *)list->items + list->count * item_bytes;
}

/* The program's own name; "" where there is none. */
static const char *own_name(struct dtp_program *program, const char *name)
{
    const char *own = dtp_keep_name(&program->once, name);
    if (own)
        return own;
    if (dtp_name_is_plain(name))
        REFUSE(program, DTP_ENVIRONMENT, "no memory for the names of a program");
    else
        REFUSE(program, DTP_BAD_INPUT, "a name must be at most %d printable characters without quotes",
               DTP_PROGRAM_MAX_NAME_BYTES);
    return "";
}

enum dtp_status dtp_program_create(uint32_t op_limit, struct dtp_program **out, struct dtp_faults *faults)
{
    *out = calloc(1, sizeof **out);
    if (!*out)
        return dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "no memory for a program");
    (*out)->op_limit = op_limit && op_limit < DTP_PROGRAM_MAX_OPS ? op_limit : DTP_PROGRAM_MAX_OPS;
    return DTP_OK;
}

void dtp_program_destroy(struct dtp_program *program)
{
    if (!program)
        return;
    free(program->ops.items);
    free(program->operands.items);
    free(program->dependencies.items);
    free(program->buffers.items);
    free(program->groups.items);
    free(program->tensors.items);
    free(program->last_ops.items);
    dtp_kept_once_release(&program->once);
    free(program);
}

void dtp_program_read_only_once(struct dtp_program *program, const struct dtp_program_reader *reader)
{
    assert(!program->sealed && !program->buffers.count && !program->ops.count);
    program->reader = *reader;
}

/* ---- building -------------------------------------------------------------------------------------------------- */

static unsigned element_bytes(const struct dtp_buffer *buffer)
{
    return buffer->element == DTP_NO_ELEMENT ? 1 : dtp_dtype_bytes((enum dtp_dtype)(buffer->element - 1));
}

/* What is wrong with a buffer, or NULL. */
static inline const char *fault_of_buffer(const struct dtp_buffer *buffer)
{
    if (((unsigned)buffer->owner >= DTP_OWNER_COUNT) | ((unsigned)buffer->space >= DTP_SPACE_COUNT) |
        ((unsigned)buffer->pool >= DTP_STREAM_COUNT) | (buffer->bytes > DTP_BUFFER_MAX_BYTES))
        return "no such owner, space or pool, or more than 2^57 bytes";
    if ((buffer->element > DTP_DTYPE_COUNT) | (buffer->content >= DTP_CONTENT_COUNT))
        return "no such format or content";
    if (buffer->element != DTP_NO_ELEMENT && buffer->bytes % element_bytes(buffer))
        return "its bytes are no whole number of elements";
    if (buffer->module && !dtp_content_is_state((enum dtp_content)buffer->content))
        return "only state is a module's";
    return NULL;
}

dtp_buffer_id dtp_program_add_buffer(struct dtp_program *program, const struct dtp_buffer *buffer)
{
    assert(!program->sealed);
    dtp_buffer_id none = {DTP_NO_INDEX};
    if (program->status != DTP_OK)
        return none;
    const char *fault = fault_of_buffer(buffer);
    if (fault) {
        REFUSE(program, DTP_BAD_INPUT, "buffer %u: %s", program->buffers.count, fault);
        return none;
    }
    struct dtp_buffer *place = extend(program, &program->buffers, 1, sizeof *place);
    if (!place)
        return none;
    *place = *buffer;
    place->name = program->reader.read ? "" : own_name(program, buffer->name);
    if (!program->reader.read) {
        uint32_t *last_op = extend(program, &program->last_ops, 1, sizeof *last_op);
        if (!last_op)
            return none;
        *last_op = 0;
        program->last_ops.count++;
    }
    return (dtp_buffer_id){program->buffers.count++};
}

/* The buffer as `changed`, where that is one. */
static void change_buffer(struct dtp_program *program, dtp_buffer_id id, const struct dtp_buffer *changed)
{
    const char *fault = fault_of_buffer(changed);
    if (fault)
        REFUSE(program, DTP_BAD_INPUT, "buffer %u: %s", id.index, fault);
    else
        ((struct dtp_buffer *)program->buffers.items)[id.index] = *changed;
}

void dtp_program_set_element(struct dtp_program *program, dtp_buffer_id id, enum dtp_dtype dtype)
{
    assert(!program->sealed);
    if (program->status != DTP_OK || id.index >= program->buffers.count)
        return;
    struct dtp_buffer changed = dtp_program_buffers(program)[id.index];
    changed.element = (uint8_t)(dtype + 1);
    change_buffer(program, id, &changed);
}

void dtp_program_set_content(struct dtp_program *program, dtp_buffer_id id, enum dtp_content content, uint32_t module)
{
    assert(!program->sealed);
    if (program->status != DTP_OK || id.index >= program->buffers.count)
        return;
    struct dtp_buffer changed = dtp_program_buffers(program)[id.index];
    changed.content = (uint8_t)content;
    changed.module = module;
    change_buffer(program, id, &changed);
}

void dtp_program_set_execution(struct dtp_program *program, const struct dtp_execution *execution)
{
    assert(!program->sealed);
    program->execution = *execution;
    bool known = execution->issuer < DTP_ISSUER_COUNT && execution->allocator < DTP_ALLOCATOR_COUNT &&
                 execution->compute < DTP_DTYPE_COUNT && execution->reduce < DTP_DTYPE_COUNT &&
                 execution->copied < 1u << DTP_COLLECTIVE_COUNT && execution->clip_norm >= 0 &&
                 execution->clip_norm <= DTP_DEMAND_MAX;
    if (!known)
        REFUSE(program, DTP_BAD_INPUT,
               "its execution has an issuer, allocator, format, collective or limit that is none");
}

const struct dtp_execution *dtp_program_execution(const struct dtp_program *program)
{
    return &program->execution;
}

uint32_t dtp_program_add_group(struct dtp_program *program, struct dtp_program_group group)
{
    assert(!program->sealed);
    if (program->status != DTP_OK)
        return DTP_NO_INDEX;
    if (!group.ranks || !group.stride) {
        REFUSE(program, DTP_BAD_INPUT, "group %u: needs at least one rank and a stride of 1", program->groups.count);
        return DTP_NO_INDEX;
    }
    struct dtp_program_group *place = extend(program, &program->groups, 1, sizeof *place);
    if (!place)
        return DTP_NO_INDEX;
    *place = group;
    return program->groups.count++;
}

static int is_amount(double value, double maximum)
{
    return (value >= 0) & (value <= maximum); /* false for NaN */
}

static bool overlap(uint64_t a, uint64_t a_count, uint64_t b, uint64_t b_count)
{
    return a < b + b_count && b < a + a_count;
}

static const char *fault_of_tensor(const struct dtp_program *program, const struct dtp_program_tensor *tensor)
{
    const struct dtp_parameter_tensor *at = &tensor->at;
    const struct dtp_program_tensor *others = program->tensors.items;
    const uint64_t most = DTP_BUFFER_MAX_BYTES / 16; /* of elements: sums of two stay whole */
    if ((unsigned)tensor->parameter >= DTP_PARAMETER_COUNT || !tensor->modules ||
        tensor->first_module >= DTP_PROGRAM_MAX_MODULES ||
        tensor->modules > DTP_PROGRAM_MAX_MODULES - tensor->first_module)
        return "no such parameter or modules";
    if (!at->rows || !at->columns || at->rows > most / at->columns || at->extent_elements < at->rows * at->columns ||
        at->extent_elements > most || at->offset_elements > most || at->saved_offset_elements > at->offset_elements)
        return "its rows, columns and places are of no tensor";
    if (!dtp_parameter_cut_fits(at))
        return "it is no slice of the model's";
    if (!is_amount(at->deviation, DTP_DEMAND_MAX) || !is_amount(at->mean, DTP_DEMAND_MAX))
        return "its mean or deviation is negative, not finite or absurdly large";
    if (program->tensors.count >= DTP_PROGRAM_MAX_TENSORS)
        return "there are too many";
    for (uint32_t i = 0; i < program->tensors.count; i++) {
        const struct dtp_parameter_tensor *other = &others[i].at;
        bool first = tensor->parameter < others[i].parameter;
        const struct dtp_parameter_tensor *low = first ? at : other, *high = first ? other : at;
        if (overlap(tensor->first_module, tensor->modules, others[i].first_module, others[i].modules) &&
            (tensor->parameter == others[i].parameter ||
             low->offset_elements + low->extent_elements > high->offset_elements))
            return "it is there twice, or parameters do not follow each other in their order";
    }
    return NULL;
}

bool dtp_program_add_tensor(struct dtp_program *program, const struct dtp_program_tensor *tensor)
{
    assert(!program->sealed);
    if (program->status != DTP_OK)
        return false;
    const char *fault = fault_of_tensor(program, tensor);
    if (fault) {
        REFUSE(program, DTP_BAD_INPUT, "tensor %u: %s", program->tensors.count, fault);
        return false;
    }
    struct dtp_program_tensor *place = extend(program, &program->tensors, 1, sizeof *place);
    if (!place)
        return false;
    *place = *tensor;
    place->at.exists = true;
    program->tensors.count++;
    return true;
}

static uint64_t bits_of(double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

/* None of numbers without a sign is above their sum, rounded as it may be, and a sum with one that is none compares
 * with nothing. So most are known to be amounts by few operations; what that does not know (a 0 with a sign) is looked
 * at. */
static bool are_amounts(const struct dtp_demand *d)
{
    const double most = DTP_DEMAND_MAX;
    const uint64_t signs = (bits_of(d->flops) | bits_of(d->m) | bits_of(d->n) | bits_of(d->k)) |
                           (bits_of(d->bytes) | bits_of(d->elements) | bits_of(d->column_sums) | bits_of(d->tokens)) |
                           (bits_of(d->epsilon) | bits_of(d->scale) | bits_of(d->sent_bytes));
    const double sum =
        ((d->flops + d->m) + (d->n + d->k)) + ((d->bytes + d->elements) + (d->column_sums + d->tokens)) + d->scale;
    if (!(signs >> 63) && sum <= most && d->epsilon <= 1 && d->sent_bytes <= DTP_DEMAND_MAX_SENT_BYTES)
        return true;
    return is_amount(d->flops, most) && is_amount(d->m, most) && is_amount(d->n, most) && is_amount(d->k, most) &&
           is_amount(d->bytes, most) && is_amount(d->elements, most) && is_amount(d->column_sums, most) &&
           is_amount(d->tokens, most) && is_amount(d->epsilon, 1) && is_amount(d->scale, most) &&
           is_amount(d->sent_bytes, DTP_DEMAND_MAX_SENT_BYTES);
}

static const char *fault_of_demand(const struct dtp_demand *demand)
{
    if (!are_amounts(demand))
        return "a demand is negative, not finite or absurdly large";
    if ((unsigned)demand->dtype >= DTP_DTYPE_COUNT)
        return "no such format";
    if (demand->memory_kernel >= DTP_MEMORY_KERNEL_COUNT || demand->issue >= DTP_ISSUE_COUNT || demand->recompute > 1)
        return "no such memory_kernel or issue, or recompute is neither 0 nor 1";
    return NULL;
}

/* What is wrong with two operands of one buffer, or NULL. */
static const char *fault_of_occurrences(struct dtp_operand one, struct dtp_operand other)
{
    if (one.role == other.role)
        return "a buffer occurs twice among its operands in one role";
    if (one.access & other.access & (DTP_ALLOC | DTP_FREE))
        return "a buffer is allocated or freed at two of its operands";
    return NULL;
}

/* What is wrong with operand `index` of the next operation, or NULL. */
static const char *fault_of_operand(struct dtp_program *program, bool memory_only, const struct dtp_operand *operands,
                                    size_t index)
{
    const struct dtp_buffer *buffers = program->buffers.items;
    const struct dtp_operand operand = operands[index];
    uint32_t *last_ops = program->last_ops.items, access = operand.access;
    if (operand.buffer.index >= program->buffers.count)
        return "an operand names no buffer";
    if (operand.role >= DTP_ROLE_COUNT || operand.shard > 1)
        return "no such role, or shard is neither 0 nor 1";
    if (operand.offset_bytes && operand.offset_bytes >= buffers[operand.buffer.index].bytes)
        return "an operand begins behind the end of its buffer";
    if (operand.bytes > buffers[operand.buffer.index].bytes - operand.offset_bytes || (operand.bytes && operand.shard))
        return "an operand ends behind the end of its buffer, or is a shard whose bytes are said";
    if ((operand.offset_bytes | operand.bytes) % element_bytes(&buffers[operand.buffer.index]))
        return "an operand cuts an element of its buffer";
    if (!access || access >= 2 * DTP_DEFER || (access & (DTP_FREE | DTP_DEFER)) == DTP_DEFER)
        return "an operand has no access, or DTP_DEFER without DTP_FREE";
    if (memory_only && (access & DTP_UPDATE))
        return "it may allocate and free, but touch no bytes";
    if ((access & (DTP_ALLOC | DTP_FREE)) && buffers[operand.buffer.index].persistent)
        return "a persistent buffer is neither allocated nor freed";
    const char *fault = NULL;
    if (last_ops[operand.buffer.index] == program->ops.count + 1)
        for (size_t i = 0; i < index && !fault; i++)
            if (operands[i].buffer.index == operand.buffer.index)
                fault = fault_of_occurrences(operands[i], operand);
    last_ops[operand.buffer.index] = program->ops.count + 1;
    return fault;
}

/* Heads of rotary, norms of q and k and what stands around attention in steps, tokens of a sequence of an embedding,
 * the soft cap of a loss. */
static bool takes_shape(enum dtp_op_kind kind)
{
    return dtp_op_kind_class(kind) == DTP_CLASS_ATTENTION || kind == DTP_OP_ROTARY || kind == DTP_OP_ROTARY_BACKWARD ||
           kind == DTP_OP_SINKS || kind == DTP_OP_SINKS_BACKWARD || kind == DTP_OP_QK_NORM ||
           kind == DTP_OP_QK_NORM_BACKWARD || kind == DTP_OP_EMBEDDING || kind == DTP_OP_EMBEDDING_BACKWARD ||
           kind == DTP_OP_COPY_IN || kind == DTP_OP_COPY_OUT || kind == DTP_OP_MERGE || kind == DTP_OP_LOSS_PARTS ||
           kind == DTP_OP_LOSS_BACKWARD;
}

static bool stands_around_experts(enum dtp_op_kind kind)
{
    return (kind >= DTP_OP_ROUTER && kind <= DTP_OP_UNPERMUTE_BACKWARD) || kind == DTP_OP_ACTIVATION ||
           kind == DTP_OP_ACTIVATION_BACKWARD || kind == DTP_OP_ALL_TO_ALL || kind == DTP_OP_HOST_WAIT;
}

/* What is wrong with the shapes of an operation, or NULL: without one attention has no price, and others have none. */
static const char *fault_of_shapes(const struct dtp_new_op *op)
{
    const struct dtp_attention_shape *a = &op->demand.attention;
    enum dtp_op_class class = dtp_op_kind_class(op->kind);
    bool none = !a->heads && !a->kv_heads && !a->head_dim && !a->value_dim && !a->window && !a->queries && !a->keys &&
                !a->causal && !a->kernel && !a->wide && !a->atomic && !a->dropout && !a->alibi && !a->narrow &&
                a->softcap == 0;
    if (!is_amount(a->softcap, DTP_DEMAND_MAX))
        return "a soft cap is negative, not finite or absurdly large";
    if (op->demand.form >= DTP_FORM_COUNT)
        return "no such form of a kernel";
    if (!takes_shape(op->kind) && !none)
        return "only attention and what stands around it have its shape";
    if (class == DTP_CLASS_ATTENTION && op->demand.tokens > 0 &&
        !(a->heads && a->kv_heads && a->head_dim && a->queries && a->keys))
        return "attention needs heads, kv_heads, head_dim, queries and keys";
    if (a->kernel >= DTP_ATTENTION_COUNT)
        return "no such kernel of attention";
    bool grouped = class == DTP_CLASS_MATMUL || stands_around_experts(op->kind);
    return !grouped && op->demand.groups ? "only a matmul and what stands around experts have groups" : NULL;
}

static const char *fault_of_op(struct dtp_program *program, const struct dtp_new_op *op,
                               const struct dtp_operand *operands, size_t operand_count)
{
    if ((unsigned)op->kind >= DTP_OP_KIND_COUNT || (unsigned)op->stream >= DTP_STREAM_COUNT)
        return "no such kind or stream";
    if (dtp_op_kind_class(op->kind) == DTP_CLASS_COLLECTIVE && op->group >= program->groups.count)
        return "a collective needs a group that was added before it";
    if (!dtp_op_kind_is_transfer(op->kind) && (op->peer || op->tag))
        return "only a send or a receive has a peer and a tag";
    const char *shapeless = fault_of_shapes(op);
    if (shapeless)
        return shapeless;
    bool memory_only = op->kind == DTP_OP_ALLOC || op->kind == DTP_OP_FREE;
    const char *fault = operand_count > DTP_PROGRAM_MAX_OPERANDS ? "it has more than 65535 operands" : NULL;
    for (size_t i = 0; i < operand_count && !fault; i++)
        fault = fault_of_operand(program, memory_only, operands, i);
    return fault;
}

static void refuse_op(struct dtp_program *program, const struct dtp_new_op *op, const char *fault)
{
    REFUSE(program, DTP_BAD_INPUT, "operation %u (%s): %s", program->ops.count,
           (unsigned)op->kind < DTP_OP_KIND_COUNT ? dtp_op_kind_text(op->kind) : "?", fault);
}

/* Shows it to who reads each operation once. */
static dtp_op_id pass_on(struct dtp_program *program, const struct dtp_new_op *op, const struct dtp_operand *operands,
                         size_t operand_count)
{
    if (!are_amounts(&op->demand)) {
        refuse_op(program, op, fault_of_demand(&op->demand));
        return (dtp_op_id){DTP_NO_INDEX};
    }
    if (program->reader.read(program->reader.context, op, operands, operand_count, program->buffers.items))
        return (dtp_op_id){program->ops.count++};
    REFUSE(program, DTP_ENVIRONMENT, "no memory to read a step of %u operations", program->ops.count);
    return (dtp_op_id){DTP_NO_INDEX};
}

dtp_buffer_id dtp_program_repeat(struct dtp_program *program, uint32_t ops, const struct dtp_buffer *buffers,
                                 uint32_t count)
{
    assert(!program->sealed && program->reader.read);
    bool fits = program->status == DTP_OK && ops <= program->op_limit - program->ops.count;
    struct dtp_buffer *place = fits ? extend(program, &program->buffers, count, sizeof *place) : NULL;
    if (!place)
        return (dtp_buffer_id){DTP_NO_INDEX};
    memcpy(place, buffers, count * sizeof *buffers);
    program->ops.count += ops;
    program->buffers.count += count;
    return (dtp_buffer_id){program->buffers.count - count};
}

/* Copies a checked operation and its operands behind the others. */
static bool append_op(struct dtp_program *program, const struct dtp_new_op *op, const struct dtp_demand *demand,
                      const struct dtp_operand *operands, size_t operand_count)
{
    struct dtp_op *place = extend(program, &program->ops, 1, sizeof *place);
    struct dtp_operand *operand_place =
        operand_count ? extend(program, &program->operands, operand_count, sizeof *operand_place) : NULL;
    if (!place || (operand_count && !operand_place))
        return false;
    *place = (struct dtp_op){.kind = op->kind,
                             .stream = op->stream,
                             .demand = demand,
                             .name = own_name(program, op->name),
                             .group = dtp_op_kind_class(op->kind) == DTP_CLASS_COLLECTIVE ? op->group : DTP_NO_INDEX,
                             .tag = op->tag,
                             .first_operand = program->operands.count,
                             .first_dependency = program->dependencies.count,
                             .layer = op->layer,
                             .micro_step = op->micro_step,
                             .peer = op->peer,
                             .operand_count = (uint16_t)operand_count};
    if (operand_count)
        memcpy(operand_place, operands, operand_count * sizeof *operands);
    program->operands.count += (uint32_t)operand_count;
    program->ops.count++;
    return true;
}

void dtp_program_expect_again(struct dtp_program *program, uint32_t times)
{
    assert(!program->sealed);
    struct {
        struct list *list;
        size_t item_bytes;
    } const all[] = {{&program->ops, sizeof(struct dtp_op)},
                     {&program->operands, sizeof(struct dtp_operand)},
                     {&program->dependencies, sizeof(dtp_op_id)},
                     {&program->buffers, sizeof(struct dtp_buffer)},
                     {&program->last_ops, sizeof(uint32_t)}};
    uint64_t parts = times + UINT64_C(2) + times / 8; /* the later ones are seldom quite as the first */
    uint64_t most = program->ops.count ? program->op_limit / program->ops.count + UINT64_C(1) : parts;
    parts = parts < most ? parts : most;
    for (size_t i = 0; i < sizeof all / sizeof *all && program->status == DTP_OK; i++) {
        uint64_t count = all[i].list->count * parts;
        if (count > all[i].list->capacity && count < DTP_NO_INDEX)
            (void)grow_list(program, all[i].list, (size_t)count, all[i].item_bytes);
    }
}

dtp_op_id dtp_program_add_op(struct dtp_program *program, const struct dtp_new_op *op,
                             const struct dtp_operand *operands, size_t operand_count)
{
    assert(!program->sealed);
    dtp_op_id none = {DTP_NO_INDEX};
    if (program->status != DTP_OK)
        return none;
    if (program->ops.count >= program->op_limit) {
        REFUSE(program, DTP_BAD_INPUT, "the step has more than %u operations, the limit", program->op_limit);
        return none;
    }
    if (program->reader.read)
        return pass_on(program, op, operands, operand_count);
    const struct dtp_demand *demand = dtp_known_demand(&program->once, &op->demand);
    const char *fault = demand ? NULL : fault_of_demand(&op->demand);
    if (!fault)
        fault = fault_of_op(program, op, operands, operand_count);
    if (fault) {
        refuse_op(program, op, fault);
        return none;
    }
    if (!demand)
        demand = dtp_keep_demand(&program->once, &op->demand);
    if (!demand)
        REFUSE(program, DTP_ENVIRONMENT, "no memory for a program of %u operations", program->ops.count);
    if (!demand || !append_op(program, op, demand, operands, operand_count))
        return none;
    return (dtp_op_id){program->ops.count - 1};
}

void dtp_program_depend(struct dtp_program *program, dtp_op_id later, dtp_op_id earlier)
{
    assert(!program->sealed);
    if (program->status != DTP_OK || earlier.index == DTP_NO_INDEX || program->reader.read)
        return;
    if (later.index + 1 != program->ops.count || earlier.index >= later.index) {
        REFUSE(program, DTP_BAD_INPUT, "operation %u cannot wait for %u: only the last one can, for those before it",
               later.index, earlier.index);
        return;
    }
    struct dtp_op *ops = program->ops.items, *op = &ops[later.index];
    if (ops[earlier.index].stream == op->stream)
        return;
    dtp_op_id *dependencies = program->dependencies.items;
    for (uint32_t i = op->first_dependency; i < program->dependencies.count; i++)
        if (ops[dependencies[i].index].stream == ops[earlier.index].stream) {
            dependencies[i].index = earlier.index > dependencies[i].index ? earlier.index : dependencies[i].index;
            return;
        }
    dtp_op_id *place = extend(program, &program->dependencies, 1, sizeof *place);
    if (!place)
        return;
    *place = earlier;
    program->dependencies.count++;
    op->dependency_count++;
}

enum dtp_status dtp_program_seal(struct dtp_program *program, struct dtp_faults *faults)
{
    if (program->status != DTP_OK)
        return dtp_fault(faults, program->status, NULL, 0, "%s", program->reason);
    program->sealed = true;
    return DTP_OK;
}

/* ---- reading --------------------------------------------------------------------------------------------------- */

/* dtp_program_ops and dtp_program_op_count, and so on. */
#define LIST(item, type)                                                                                               \
    size_t dtp_program_##item##_count(const struct dtp_program *program)                                               \
    {                                                                                                                  \
        return program->item##s.count;                                                                                 \
    }                                                                                                                  \
    const struct type *dtp_program_##item##s(const struct dtp_program *program)                                        \
    {                                                                                                                  \
        return program->item##s.items;                                                                                 \
    }
LIST(op, dtp_op)
LIST(buffer, dtp_buffer)
LIST(group, dtp_program_group)
LIST(tensor, dtp_program_tensor)
#undef LIST

const struct dtp_operand *dtp_program_operands(const struct dtp_program *program, const struct dtp_op *op)
{
    const struct dtp_operand *operands = program->operands.items;
    return op->operand_count ? operands + op->first_operand : NULL;
}

const dtp_op_id *dtp_program_dependencies(const struct dtp_program *program, const struct dtp_op *op)
{
    const dtp_op_id *dependencies = program->dependencies.items;
    return op->dependency_count ? dependencies + op->first_dependency : NULL;
}
