/* One operation while it is bound: its operands by role, what types and shapes they have. Shared by the files that fill
 * in arguments. */
#ifndef DTP_BINDER_H
#define DTP_BINDER_H

#include "bind/bind.h"
#include "kernels/element.h"
#include "runtime/dtplan/fp8_layout.h"

/* What is being bound; `missing` collects roles that the kind needs and the operation lacks. */
struct dtp_binder {
    const struct dtp_binding *binding;
    const struct dtp_op *op;
    struct dtp_faults *faults;
    uint32_t missing; /* a bit per role */
};

/* ---- operands ---------------------------------------------------------------------------------------------------- */

static inline const struct dtp_operand *operand(const struct dtp_binder *b, enum dtp_role role)
{
    const struct dtp_operand *operands = dtp_program_operands(b->binding->job.program, b->op);
    for (uint32_t i = 0; i < b->op->operand_count; i++)
        if (operands[i].role == role)
            return &operands[i];
    return NULL;
}

static inline const struct dtp_buffer *buffer_of(const struct dtp_binder *b, const struct dtp_operand *o)
{
    return &dtp_program_buffers(b->binding->job.program)[o->buffer.index];
}

/* Ranks among which `shard` cuts an operand: the operation's group, else those that share the state it works on. Below
 * it this rank's place among them. */
static inline struct dtp_program_group shard_group(const struct dtp_binder *b)
{
    const struct dtp_program *program = b->binding->job.program;
    const struct dtp_execution *e = dtp_program_execution(program);
    const struct dtp_operand *operands = dtp_program_operands(program, b->op);
    uint64_t module = 0;
    if (b->op->group != DTP_NO_INDEX)
        return dtp_program_groups(program)[b->op->group];
    for (uint32_t i = 0; i < b->op->operand_count; i++) /* of state: that of the ranks that have the module's */
        if (dtp_content_is_state((enum dtp_content)dtp_program_buffers(program)[operands[i].buffer.index].content))
            module = dtp_program_buffers(program)[operands[i].buffer.index].module;
    return (struct dtp_program_group){dtp_execution_shards(e, module), dtp_execution_shard_stride(e, module)};
}

static inline uint32_t group_index(const struct dtp_binder *b)
{
    struct dtp_program_group group = shard_group(b);
    return dtp_group_place(&group,
                           b->op->group == DTP_NO_INDEX ? dtp_bind_role_rank(&b->binding->job) : b->binding->job.rank)
        .index;
}

/* Bytes of the buffer that belong to the operand, from its offset on. */
static inline uint64_t operand_bytes(const struct dtp_binder *b, const struct dtp_operand *o)
{
    uint64_t bytes = buffer_of(b, o)->bytes;
    if (o->bytes)
        return o->bytes;
    return o->shard ? bytes / shard_group(b).ranks : bytes - o->offset_bytes;
}

/* NULL where the operation has no such operand. */
static inline void *maybe(const struct dtp_binder *b, enum dtp_role role)
{
    const struct dtp_operand *o = operand(b, role);
    char *base = o ? dtp_binding_address(b->binding, o->buffer) : NULL;
    if (!base)
        return NULL;
    uint64_t shard = o->shard ? group_index(b) * operand_bytes(b, o) : 0;
    return base + shard + o->offset_bytes;
}

static inline void *need(struct dtp_binder *b, enum dtp_role role)
{
    void *address = maybe(b, role);
    if (!address)
        b->missing |= 1u << role;
    return address;
}

static inline bool updates(const struct dtp_binder *b, enum dtp_role role)
{
    const struct dtp_operand *o = operand(b, role);
    return o && (o->access & DTP_UPDATE) == DTP_UPDATE;
}

/* ---- element types ----------------------------------------------------------------------------------------------- */

/* Of the operand in that role, as the program says; without a format that kernels know it counts as missing. */
static inline enum dtp_element element_of(struct dtp_binder *b, enum dtp_role role)
{
    const struct dtp_operand *o = operand(b, role);
    enum dtp_element element = DTP_ELEMENT_FP32;
    if (o && !dtp_bind_buffer_element(buffer_of(b, o), &element))
        b->missing |= 1u << role;
    return element;
}

/* The same of an operand that has to have `count` elements. */
static inline enum dtp_element element_of_all(struct dtp_binder *b, enum dtp_role role, uint64_t count)
{
    const struct dtp_operand *o = operand(b, role);
    enum dtp_element element = element_of(b, role);
    uint64_t bytes = dtp_element_bytes(element);
    if (!o || operand_bytes(b, o) % bytes || operand_bytes(b, o) / bytes != count) /* no product: it might wrap */
        b->missing |= 1u << role;
    return element;
}

/* ---- shapes ------------------------------------------------------------------------------------------------------ */

/* An amount of a demand as a whole number. A text may say more than an integer holds: that becomes 2^53 elements, for
 * which no operand has room. */
static inline uint64_t whole(double amount)
{
    return amount < 0x1p53 ? (uint64_t)amount : UINT64_C(1) << 53;
}

static inline uint64_t rows(const struct dtp_binder *b)
{
    return whole(b->op->demand->tokens);
}

/* Elements of a row. */
static inline uint32_t width(const struct dtp_binder *b)
{
    return b->op->demand->n < UINT32_MAX ? (uint32_t)b->op->demand->n : UINT32_MAX;
}

static inline const struct dtp_attention_shape *heads(const struct dtp_binder *b)
{
    return &b->op->demand->attention;
}

/* Elements of the value of one head. */
static inline uint32_t value_dim(const struct dtp_binder *b)
{
    return heads(b)->value_dim ? heads(b)->value_dim : heads(b)->head_dim;
}
/* Columns of q, k and v side by side, of attention's result, and of q alone. */
static inline uint64_t packed_width(const struct dtp_binder *b)
{
    const uint64_t keys = (uint64_t)heads(b)->kv_heads * heads(b)->head_dim;
    return (uint64_t)heads(b)->heads * heads(b)->head_dim + keys + (uint64_t)heads(b)->kv_heads * value_dim(b);
}
static inline uint64_t core_width(const struct dtp_binder *b)
{
    return (uint64_t)heads(b)->heads * value_dim(b);
}
static inline uint64_t query_width(const struct dtp_binder *b)
{
    return (uint64_t)heads(b)->heads * heads(b)->head_dim;
}

/* Tokens of a sequence; of an operation that needs them, a divisor of its rows. */
static inline uint32_t sequence(const struct dtp_binder *b)
{
    return (uint32_t)heads(b)->queries;
}

/* Elements of a whole row, of a norm that takes only some of its columns; 0: it takes all. */
static inline uint32_t norm_row(const struct dtp_binder *b)
{
    return b->op->demand->k < UINT32_MAX ? (uint32_t)b->op->demand->k : UINT32_MAX;
}

/* What norms add to their weights. */
static inline float weight_offset(const struct dtp_binder *b)
{
    return b->op->demand->form == DTP_FORM_LAYER_NORM_PLUS_ONE || b->op->demand->form == DTP_FORM_RMS_NORM_PLUS_ONE ? 1
                                                                                                                    : 0;
}

static inline bool has_mean(const struct dtp_binder *b)
{
    return b->op->demand->form == DTP_FORM_LAYER_NORM || b->op->demand->form == DTP_FORM_LAYER_NORM_PLUS_ONE;
}

static inline enum dtp_activation_kind activation_kind(const struct dtp_binder *b)
{
    switch (b->op->demand->form) {
    case DTP_FORM_GELU: return DTP_ACTIVATION_GELU;
    case DTP_FORM_RELU: return DTP_ACTIVATION_RELU;
    case DTP_FORM_GEGLU: return DTP_ACTIVATION_GEGLU;
    case DTP_FORM_SWIGLU_CLAMPED: return DTP_ACTIVATION_SWIGLU_CLAMPED;
    default: break;
    }
    return DTP_ACTIVATION_SWIGLU;
}

static inline bool is_gated(const struct dtp_binder *b)
{
    return b->op->demand->form >= DTP_FORM_SWIGLU && b->op->demand->form <= DTP_FORM_SWIGLU_WEIGHED;
}

/* Columns of an activation's input: those of the gate beside those that it multiplies, where there is one. */
static inline uint64_t up_width(const struct dtp_binder *b)
{
    return (is_gated(b) ? 2 : 1) * (uint64_t)width(b);
}

/* bind_room.c: elements from one row to the next of an operand that is some of the columns of its buffer, whose rows
 * are a matmul's tokens (DTP_FORM_COLUMNS); 0: it is none. */
uint64_t dtp_bind_row_elements(const struct dtp_binder *b, enum dtp_role role);

/* bind_fp8.c: what fp8 operands change of a matmul's arguments; casts. Of a matmul whose form is that of its first
 * operand's scales, the form of the second's. */
void dtp_bind_matmul_fp8(struct dtp_binder *b, struct dtp_matmul_args *g);
void dtp_bind_quantize(struct dtp_binder *b, struct dtp_bound_op *out);
enum dtp_form dtp_bind_weight_form(const struct dtp_binder *b);

/* bind_room.c: the operation's operands have room for what its shapes say, and its shapes fit each other; what does not
 * is among b->missing. */
void dtp_bind_room(struct dtp_binder *b);

/* bind_experts.c: products with experts' matrices and what stands around them, activations of their rows with it; the
 * room of all these. */
static inline bool dtp_bind_has_routes(const struct dtp_binder *b)
{
    return operand(b, DTP_ROLE_ROUTES) != NULL;
}
void dtp_bind_expert(struct dtp_binder *b, struct dtp_bound_op *out);
void dtp_bind_expert_room(struct dtp_binder *b);
/* Rows of ranks that divide experts: on their way, and what the host is to know of them first. DTP_BAD_INPUT: an
 * exchange in a run of one rank. */
enum dtp_status dtp_bind_exchange(struct dtp_binder *b, struct dtp_bound_op *out);
static inline bool dtp_bind_receives(const struct dtp_binder *b) /* routes of rows that came */
{
    return b->op->kind == DTP_OP_ROUTER && !operand(b, DTP_ROLE_STATISTICS);
}
void dtp_bind_received(struct dtp_binder *b, struct dtp_bound_op *out);
void dtp_bind_received_room(struct dtp_binder *b);
void dtp_bind_heard(struct dtp_binder *b, struct dtp_bound_op *out);
/* bind_room.c, which it is made of. */
void dtp_bind_room_of(struct dtp_binder *b, enum dtp_role role, uint64_t rows, uint64_t columns);
void dtp_bind_demand(struct dtp_binder *b, enum dtp_role role, bool holds);
void dtp_bind_alike(struct dtp_binder *b, enum dtp_role role, enum dtp_role other);

/* bind_update.c: the optimizer, element by element work, copies and collectives. DTP_BAD_INPUT: more ranges of decay
 * than a kernel takes, a collective in a run of one rank, or one whose result has no room. */
void dtp_bind_zero(struct dtp_binder *b, struct dtp_bound_op *out);
void dtp_bind_square_sum(struct dtp_binder *b, struct dtp_bound_op *out);
void dtp_bind_clip_scale(struct dtp_binder *b, struct dtp_bound_op *out);
enum dtp_status dtp_bind_decay(const struct dtp_binder *b, uint64_t module, uint64_t first, struct dtp_adamw_args *out);
enum dtp_status dtp_bind_optimizer(struct dtp_binder *b, struct dtp_bound_op *out);
/* bind_muon.c: Muon's passes over a matrix, by the operation's form, and its products. */
bool dtp_bind_is_muon(const struct dtp_binder *b);
enum dtp_status dtp_bind_muon(struct dtp_binder *b, struct dtp_bound_op *out);
void dtp_bind_product(struct dtp_binder *b, struct dtp_bound_op *out);
void dtp_bind_product_room(struct dtp_binder *b);
enum dtp_status dtp_bind_host_optimizer(struct dtp_binder *b, struct dtp_bound_op *out);
void dtp_bind_cast(struct dtp_binder *b, struct dtp_bound_op *out);
void dtp_bind_add(struct dtp_binder *b, struct dtp_bound_op *out);
void dtp_bind_sum_parts(struct dtp_binder *b, struct dtp_bound_op *out);
void dtp_bind_pack8(struct dtp_binder *b, struct dtp_bound_op *out);
void dtp_bind_sum_packed8(struct dtp_binder *b, struct dtp_bound_op *out);
void dtp_bind_orthogonalize(struct dtp_binder *b, struct dtp_bound_op *out);
void dtp_bind_copy(struct dtp_binder *b, struct dtp_bound_op *out);
enum dtp_status dtp_bind_transfer(struct dtp_binder *b, struct dtp_bound_op *out);
enum dtp_status dtp_bind_collective(struct dtp_binder *b, struct dtp_bound_op *out);

/* bind_latent.c: heads of latent attention packed from what is projected, and back; the room of both. */
static inline bool dtp_bind_packs_heads(const struct dtp_binder *b)
{
    return operand(b, DTP_ROLE_KEYS) != NULL;
}
void dtp_bind_latent_heads(struct dtp_binder *b, struct dtp_bound_op *out);
void dtp_bind_latent_room(struct dtp_binder *b);

/* bind_context.c: steps of attention of context parallel ranks, and what stands around them. */
struct dtp_context_step_place {
    uint32_t first_query, key_count;
};
/* What of this rank's queries, and of the keys at hand, step `demand.n` has. */
struct dtp_context_step_place dtp_bind_context_step(const struct dtp_binder *b);
void dtp_bind_copied_columns(struct dtp_binder *b, struct dtp_bound_op *out);
void dtp_bind_merge(struct dtp_binder *b, struct dtp_bound_op *out);
enum dtp_status dtp_bind_shift(struct dtp_binder *b, struct dtp_bound_op *out);
/* Operands have room for what kernels do to them. */
void dtp_bind_room_of_context(struct dtp_binder *b);

#endif
