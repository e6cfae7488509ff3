#include "runtime/dtplan/executor_block.h"
#include "runtime/dtplan/executor_context_work.h"

#include "base/bytes.h"
#include "plan/context.h"
#include "plan/layer_tensors.h"
#include "plan/rules.h"
#include "runtime/dtplan/executor_expert_traffic.h"
#include "runtime/dtplan/executor_in_place.h"
#include "runtime/dtplan/fp8_layout.h"
#include "runtime/dtplan/routes_layout.h"

#include <assert.h>
#include <string.h>

#define T(suffix) DTP_TENSOR_##suffix
#define STREAM DTP_LAYER_STREAM

/* What projections read of blocks whose norms stand before their branches; its casts by rows and by columns. */
static const enum dtp_layer_tensor cast_tensors[DTP_EXECUTOR_CASTS] = {T(NORM1), T(CORE), T(NORM2), T(PRODUCT)};
static const enum dtp_layer_tensor casts[2 * DTP_EXECUTOR_CASTS] = {
    T(NARROW1), T(CORE_COPY), T(NARROW2), T(SILU), T(WIDE1), T(WIDE_MIDDLE), T(WIDE2), T(WIDE_DOWN)};

int dtp_executor_cast(int tensor)
{
    for (int i = 0; i < 2 * DTP_EXECUTOR_CASTS; i++)
        if ((int)casts[i] == tensor)
            return i;
    return -1;
}

/* x A^T of adapters, in the order of DTP_PARAMETER_ADAPTERS. */
static const enum dtp_layer_tensor lows[DTP_PARAMETER_ADAPTERS] = {T(WIDE_Q_LATENT), T(WIDE_KV_LATENT), T(MASK1),
                                                                   T(MASK2)};

int dtp_executor_low(int tensor)
{
    for (int i = 0; i < DTP_PARAMETER_ADAPTERS; i++)
        if ((int)lows[i] == tensor)
            return i;
    return -1;
}

static int by_columns(int cast)
{
    return (int)casts[DTP_EXECUTOR_CASTS + cast];
}

const char *dtp_executor_tensor_name(int tensor)
{
    static const char *const names[2 * DTP_EXECUTOR_CASTS] = {
        "norm 1 in fp8",         "attention result in fp8",  "norm 2 in fp8",
        "activation in fp8",     "norm 1 in fp8 columns",    "attention result in fp8 columns",
        "norm 2 in fp8 columns", "activation in fp8 columns"};
    static const char *const low_names[DTP_PARAMETER_ADAPTERS] = {"qkv adapter's x A", "output adapter's x A",
                                                                  "up adapter's x A", "down adapter's x A"};
    if (dtp_executor_cast(tensor) >= 0)
        return names[dtp_executor_cast(tensor)];
    if (dtp_executor_low(tensor) >= 0)
        return low_names[dtp_executor_low(tensor)];
    switch (tensor) {
    case T(CORE_STATE): return "attention log-sum-exp";
    case DTP_EXECUTOR_SENT_WEIGHTS: return "weights of rows by ranks";
    case DTP_EXECUTOR_RECEIVED_WEIGHTS: return "weights of rows received";
    case T(PLACES): return "routes of rows received";
    case T(GATE): return "MLP input in fp8";
    case T(SHARED_GATE): return "shared MLP input in fp8";
    case T(Q_RAW): return "q and k before their norms";
    case T(QK_STATISTICS): return "q and k norm statistics";
    case DTP_EXECUTOR_OUT: return dtp_layer_tensor_text(T(INPUT));
    default: return dtp_layer_tensor_text((enum dtp_layer_tensor)tensor);
    }
}

static enum dtp_layer_tensor plain(int tensor)
{
    return tensor == DTP_EXECUTOR_OUT ? T(INPUT) : (enum dtp_layer_tensor)tensor;
}

/* What experts and their router have is of the rank's own rows; shared experts are an MLP that tensor parallel ranks
 * divide, and return a sum of theirs. */
static bool is_routed(const struct dtp_executor_block *block, int tensor)
{
    const uint64_t divided = DTP_EXECUTOR_BIT(T(SHARED_GATE)) | DTP_EXECUTOR_BIT(T(SHARED_UP)) |
                             DTP_EXECUTOR_BIT(T(SHARED_SILU)) | DTP_EXECUTOR_BIT(T(SHARED_PRODUCT));
    return block->kind.experts && dtp_layer_tensor_part(plain(tensor)) == DTP_PART_MLP &&
           !(divided & DTP_EXECUTOR_BIT(plain(tensor)));
}

uint64_t dtp_executor_tensor_rows(const struct dtp_executor_block *block, int tensor)
{
    if (block->kind.exchanged && dtp_executor_is_received(tensor))
        return block->expert_room;
    return dtp_layer_lies_between_matmuls(plain(tensor)) || is_routed(block, tensor) ? block->stream_tokens
                                                                                     : block->tokens;
}

uint64_t dtp_executor_tensor_bytes(const struct dtp_executor_block *block, int tensor)
{
    enum dtp_layer_tensor of = plain(tensor);
    if (dtp_executor_cast(tensor) >= 0) {
        bool columns = dtp_executor_cast(tensor) >= DTP_EXECUTOR_CASTS;
        uint64_t in =
            dtp_layer_tensor_width(&block->kind, cast_tensors[dtp_executor_cast(tensor) % DTP_EXECUTOR_CASTS]);
        return dtp_fp8_matrix_bytes(dtp_executor_cast_form(block, DTP_EXECUTOR_CAST_INPUT, columns),
                                    columns ? in : block->tokens, columns ? block->tokens : in);
    }
    if (dtp_executor_low(tensor) >= 0)
        return dtp_bytes_product(block->tokens * block->element_bytes,
                                 dtp_executor_low_width(&block->adapter[dtp_executor_low(tensor)]));
    if (block->kind.exchanged && dtp_executor_is_received(tensor))
        return dtp_executor_received_bytes(block, tensor);
    if (dtp_executor_is_stored(block, tensor))
        return dtp_bytes_product(block->tokens,
                                 dtp_layer_tensor_width(&block->kind, tensor == T(GATE) ? T(UP) : T(SHARED_UP)));
    if (tensor == T(ROUTES))
        return dtp_routes_bytes(dtp_executor_expert_rows(block), block->kind.experts);
    if (tensor == T(ROUTER_WEIGHTS) || tensor == DTP_EXECUTOR_SENT_WEIGHTS)
        return dtp_bytes_product(dtp_executor_expert_rows(block), 4);
    uint64_t width = dtp_layer_tensor_width(&block->kind, of);
    if (tensor == T(Q_RAW) && !block->kind.kv_latent)
        width += dtp_layer_tensor_width(&block->kind, T(K_RAW));
    bool wide = dtp_layer_tensor_element(of) == DTP_LAYER_ELEMENT_FP32;
    return dtp_bytes_product(dtp_executor_tensor_rows(block, tensor), width * (wide ? 4 : block->element_bytes));
}

/* ---- the list ---------------------------------------------------------------------------------------------------- */

/* The lowest tensor of a set; NONE of an empty one. */
static int first_of(uint64_t set)
{
    for (int i = 0; i < DTP_TENSOR_COUNT; i++)
        if (set & DTP_EXECUTOR_BIT(i))
            return i;
    return DTP_EXECUTOR_NONE;
}

static uint64_t bit_of(int tensor)
{
    return tensor == DTP_EXECUTOR_NONE ? 0 : DTP_EXECUTOR_BIT(tensor);
}

struct dtp_executor_operator *dtp_executor_add_operator(struct dtp_executor_block *b, enum dtp_op_kind kind,
                                                        const char *name, int input, int result)
{
    struct dtp_executor_operator *op = &b->op[b->count++];
    assert(b->count <= DTP_EXECUTOR_OPERATORS);
    *op = (struct dtp_executor_operator){.kind = kind,
                                         .name = name,
                                         .input = input,
                                         .operand = input,
                                         .kept = input,
                                         .result = result,
                                         .addend = DTP_EXECUTOR_NONE,
                                         .aux = DTP_EXECUTOR_NONE,
                                         .statistics = DTP_EXECUTOR_NONE,
                                         .saved = DTP_EXECUTOR_NONE};
    return op;
}

static enum dtp_parameter norm_weight(int result)
{
    switch (result) {
    case T(NORM1): return DTP_PARAMETER_NORM1;
    case T(NORM2): return DTP_PARAMETER_NORM2;
    case T(POST1): return DTP_PARAMETER_POST_NORM1;
    case T(Q_LATENT_NORM): return DTP_PARAMETER_Q_LATENT_NORM;
    case T(KV_LATENT_NORM): return DTP_PARAMETER_KV_LATENT_NORM;
    default: return DTP_PARAMETER_POST_NORM2;
    }
}

static void add_norm(struct dtp_executor_block *b, const struct dtp_layer_operator *from)
{
    struct dtp_executor_operator *op =
        dtp_executor_add_operator(b, DTP_OP_NORM, from->name, first_of(from->reads), first_of(from->makes));
    op->weight = norm_weight(op->result);
    op->statistics = first_of(from->statistics);
    op->needs = bit_of(op->input) | bit_of(op->statistics);
}

/* In front of the first projection that reads `input`. */
static int add_cast(struct dtp_executor_block *b, int input)
{
    int cast = 0;
    while (cast < DTP_EXECUTOR_CASTS && (int)cast_tensors[cast] != input)
        cast++;
    assert(cast < DTP_EXECUTOR_CASTS); /* other blocks are refused: dtp_executor_check */
    if (dtp_executor_caster(b, input) < 0) {
        struct dtp_executor_operator *op = dtp_executor_add_operator(
            b, DTP_OP_QUANTIZE, dtp_executor_tensor_name((int)casts[cast]), input, (int)casts[cast]);
        op->aux = dtp_executor_narrow_gradients(b) ? by_columns(cast) : DTP_EXECUTOR_NONE;
    }
    return cast;
}

static void add_projection(struct dtp_executor_block *b, const struct dtp_layer_operator *from)
{
    int cast = b->fp8 ? add_cast(b, first_of(from->reads)) : 0;
    for (int i = 0; i < b->kind.matrices; i++) {
        const struct dtp_layer_matrix *matrix = &b->kind.matrix[i];
        if (!(from->makes & DTP_EXECUTOR_BIT(matrix->result)))
            continue;
        struct dtp_executor_operator *op =
            dtp_executor_add_operator(b, matrix->expert ? DTP_OP_GROUPED_MATMUL : DTP_OP_MATMUL, matrix->name,
                                      first_of(from->reads), (int)matrix->result);
        op->matrix = matrix;
        op->weight = dtp_parameter_of_matrix(matrix->id);
        op->operand = b->fp8 ? (int)casts[cast] : op->input;
        op->kept = dtp_executor_narrow_gradients(b) ? by_columns(cast) : op->input;
        op->reads = matrix->expert ? bit_of(dtp_executor_routes_of(b)) : 0;
        op->to_stream = matrix->id == DTP_MATRIX_SHARED_DOWN && !b->kind.shared_gate;
        op->needs = bit_of(op->kept) | op->reads;
        const bool columns = dtp_parameter_cut_way_of(op->weight) == DTP_PARAMETER_CUT_COLUMNS,
                   divided = b->stream_tokens < b->tokens && !matrix->expert && !dtp_executor_is_whole(matrix);
        op->sums = divided && columns;
        op->gathers = divided && !columns;
        if (matrix->expert && matrix->bias)
            dtp_executor_add_expert_bias(b, matrix);
    }
}

/* q and k in place: the norms first, then the turn. */
static void add_rotary(struct dtp_executor_block *b)
{
    if (b->kind.qk_norm) {
        struct dtp_executor_operator *op =
            dtp_executor_add_operator(b, DTP_OP_QK_NORM, "q and k norms", T(QKV), T(QKV));
        op->weight = DTP_PARAMETER_QK_NORM;
        op->saved = T(Q_RAW);
        op->statistics = T(QK_STATISTICS);
        op->needs = bit_of(op->saved) | bit_of(op->statistics);
    }
    if (b->kind.rotary)
        dtp_executor_add_operator(b, DTP_OP_ROTARY, "rotary", T(QKV), T(QKV));
}

static void add_attention(struct dtp_executor_block *b)
{
    struct dtp_executor_operator *op = dtp_executor_add_operator(b, DTP_OP_ATTENTION, "attention", T(QKV), T(CORE));
    op->statistics = T(CORE_STATE);
    op->needs = bit_of(op->input) | bit_of(op->result) | bit_of(op->statistics);
    if (b->kind.sinks)
        dtp_executor_add_sinks(b);
}

/* Behind the up projection, which takes it into itself as an epilogue: that keeps what its derivative reads. */
static void add_activation(struct dtp_executor_block *b, const struct dtp_layer_operator *from)
{
    const struct dtp_layer_activation tensors = dtp_layer_activation(from->makes);
    struct dtp_executor_operator *op = &b->op[b->count - 1];
    if (b->epilogue) {
        op->aux = op->result;
        op->result = T(PRODUCT);
        op->needs |= bit_of(op->aux);
        return;
    }
    op = dtp_executor_add_operator(b, DTP_OP_ACTIVATION,
                                   tensors.product == T(PRODUCT) ? "activation" : "shared activation", (int)tensors.up,
                                   (int)tensors.product);
    op->reads = dtp_executor_weighs(b, op) ? bit_of(dtp_executor_weights_of(b)) | bit_of(dtp_executor_routes_of(b)) : 0;
    if (b->narrow_input)
        op->saved = (int)tensors.gate;
    op->needs = bit_of(b->narrow_input ? op->saved : op->input) | op->reads;
}

/* Whatever makes a term of the sum adds what came before. */
static void add_to_stream(struct dtp_executor_block *b, const struct dtp_layer_operator *from)
{
    uint64_t terms = from->reads & ~STREAM;
    int stream = first_of(from->reads & STREAM);
    for (int i = 0; i < b->count && terms; i++) {
        struct dtp_executor_operator *op = &b->op[i];
        if (!(terms & bit_of(op->result)))
            continue;
        terms &= ~bit_of(op->result);
        op->addend = stream;
        op->result = terms || from->makes ? T(INPUT2) : DTP_EXECUTOR_OUT;
        stream = op->result;
    }
}

static void add_operator(struct dtp_executor_block *b, const struct dtp_layer_operator *from)
{
    switch (from->kind) {
    case DTP_LAYER_OP_NORM: add_norm(b, from); break;
    case DTP_LAYER_OP_PROJECTION: add_projection(b, from); break;
    case DTP_LAYER_OP_ROTARY: add_rotary(b); break;
    case DTP_LAYER_OP_ATTENTION: add_attention(b); break;
    case DTP_LAYER_OP_ACTIVATION: add_activation(b, from); break;
    case DTP_LAYER_OP_RESIDUAL: add_to_stream(b, from); break;
    case DTP_LAYER_OP_CAST: break; /* the stream has the format that matmuls read */
    case DTP_LAYER_OP_LATENT_NORM: add_norm(b, from); break;
    case DTP_LAYER_OP_LATENT_HEADS: dtp_executor_add_heads(b); break;
    case DTP_LAYER_OP_ROUTER: dtp_executor_add_router(b); break;
    case DTP_LAYER_OP_PERMUTE: dtp_executor_add_permute(b, from); break;
    case DTP_LAYER_OP_UNPERMUTE: dtp_executor_add_unpermute(b, from); break;
    }
}

/* A norm that reads the block's input while a branch before it has been added already: in front of that. */
static void norms_before_sums(struct dtp_executor_block *b)
{
    for (int i = 1; i < b->count; i++) {
        struct dtp_executor_operator op = b->op[i];
        if (op.kind != DTP_OP_NORM || op.input != T(INPUT) || b->op[i - 1].result != T(INPUT2))
            continue;
        b->op[i] = b->op[i - 1];
        b->op[i - 1] = op;
    }
}

/* In front of each projection that has adapters x A^T of all of them, behind it what B makes of that, added in place.
 */
static void add_adapters(struct dtp_executor_block *b)
{
    struct dtp_executor_operator plain[DTP_EXECUTOR_OPERATORS];
    int count = b->count;
    memcpy(plain, b->op, sizeof plain);
    b->count = 0;
    for (int i = 0; i < count; i++) {
        const struct dtp_executor_adapter *adapter = NULL;
        struct dtp_executor_operator *op;
        int low = DTP_EXECUTOR_NONE;
        for (int k = 0; k < DTP_PARAMETER_ADAPTERS && plain[i].matrix; k++)
            if (b->adapter[k].parts && b->adapter[k].matrix == plain[i].matrix->id)
                adapter = &b->adapter[k], low = (int)lows[k];
        if (adapter) {
            op = dtp_executor_add_operator(b, DTP_OP_MATMUL, "adapter A", plain[i].input, low);
            op->matrix = plain[i].matrix, op->adapter = adapter, op->half = DTP_EXECUTOR_A, op->weight = adapter->a;
            op->needs = bit_of(op->input);
        }
        if (plain[i].matrix)
            plain[i].needs = 0; /* it is frozen */
        b->op[b->count++] = plain[i];
        if (adapter) {
            op = dtp_executor_add_operator(b, DTP_OP_MATMUL, "adapter B", low, plain[i].result);
            op->matrix = plain[i].matrix, op->adapter = adapter, op->half = DTP_EXECUTOR_B, op->weight = adapter->a + 1;
            op->needs = bit_of(op->input), op->to_stream = plain[i].addend != DTP_EXECUTOR_NONE;
        }
    }
}

/* Gradients are made of what something trained lies before: adapters, or all before this block. */
static void find_trained(struct dtp_executor_block *b, bool first)
{
    uint64_t after = b->adapted && first ? 0 : bit_of(T(INPUT));
    for (int i = 0; i < b->count; i++) {
        struct dtp_executor_operator *op = &b->op[i];
        op->to_stream = op->to_stream || op->addend != DTP_EXECUTOR_NONE;
        op->passes = after & bit_of(op->input);
        op->reaches = !b->adapted || op->passes || op->adapter || after & (bit_of(op->addend) | bit_of(op->result));
        after |= op->reaches ? bit_of(op->result) | bit_of(op->aux) : 0;
        if (!op->passes && !op->adapter)
            op->needs = 0;
    }
}

static uint64_t made_by(const struct dtp_executor_operator *op)
{
    return bit_of(op->result) | bit_of(op->aux) | bit_of(op->statistics) | bit_of(op->saved);
}

/* From the end: who makes what backward reads, or what these read. */
static void find_replayed(struct dtp_executor_block *b)
{
    uint64_t wanted = b->saved;
    for (int i = b->count - 1; i >= 0; i--) {
        const struct dtp_executor_operator *op = &b->op[i];
        if (!(wanted & made_by(op)))
            continue;
        b->replayed |= UINT32_C(1) << i;
        if (wanted & bit_of(op->result))
            wanted |= bit_of(op->addend);
        wanted |= bit_of(op->operand) | op->reads;
    }
}

void dtp_executor_block_of(const struct dtp_transformer *transformer, const struct dtp_plan *plan,
                           enum dtp_layer_mlp mlp, bool first, struct dtp_executor_block *out)
{
    struct dtp_layer_operator from[DTP_LAYER_OPERATORS];
    *out = (struct dtp_executor_block){.tokens = dtp_plan_tokens(plan),
                                       .stream_tokens =
                                           dtp_plan_tokens(plan) / (plan->sequence_shards ? plan->sequence_shards : 1),
                                       .sequence = plan->sequence / (plan->cp ? plan->cp : 1),
                                       .ring = plan->cp && plan->cp_comm != DTP_CP_A2A ? plan->cp : 1,
                                       .exchanged = plan->cp && plan->cp_comm == DTP_CP_A2A ? plan->cp : 1,
                                       .chunks = dtp_context_chunks(plan, transformer->kv_heads),
                                       .element_bytes = dtp_plan_compute_bytes(plan),
                                       .epilogue = plan->executor.gelu_epilogue,
                                       .narrow_input = plan->executor.activation_fp8_input_store,
                                       .fp8 = plan->precision.compute == DTP_FP8,
                                       .recipe = dtp_fp8_recipe_row(plan->precision.fp8_recipe),
                                       .adapted = dtp_plan_adapts(plan),
                                       .packed = plan->adapters.base != DTP_BASE_NONE};
    dtp_parameter_block_kind(transformer, mlp == DTP_LAYER_EXPERTS, &out->kind);
    out->expert_room = dtp_executor_room_of(out, plan);
    int count = dtp_layer_operators(&out->kind, from);
    for (int i = 0; i < count; i++)
        add_operator(out, &from[i]);
    norms_before_sums(out);
    dtp_executor_adapters_of(transformer, plan, out->adapter);
    if (out->adapted)
        add_adapters(out);
    find_trained(out, first);
    for (int i = 0; i < out->count; i++)
        out->saved |= out->op[i].needs;
    find_replayed(out);
}

uint64_t dtp_executor_block_keeps(const struct dtp_executor_block *block, enum dtp_checkpoint_keeps keeps)
{
    /* The attention's result stays as it is for its own backward: its cast by columns is made of that again. */
    uint64_t kept = block->saved & ~DTP_EXECUTOR_BIT(by_columns(1));
    switch (keeps) {
    case DTP_KEEPS_ALL: return kept;
    case DTP_KEEPS_INPUT: return DTP_EXECUTOR_BIT(T(INPUT));
    case DTP_KEEPS_ALL_BUT_CORE: /* not where attention's own input goes, which makes it again */
        return kept & DTP_EXECUTOR_BIT(T(QKV)) ? kept & ~(DTP_EXECUTOR_BIT(T(CORE)) | DTP_EXECUTOR_BIT(T(CORE_STATE)))
                                               : kept;
    case DTP_KEEPS_PARTS:          /* Megatron-Core's alone */
    case DTP_KEEPS_PACKED_MATMULS: /* a compiler's */
    case DTP_KEEPS_SECOND_MATMULS: break;
    }
    /* all matmuls' and attention's results and the norms' statistics; norms and activations are cheap to make again */
    kept &= ~DTP_EXECUTOR_BIT(T(PRODUCT));
    for (int i = 0; i < DTP_EXECUTOR_CASTS; i++)
        kept &= ~DTP_EXECUTOR_BIT(by_columns(i));
    for (int i = 0; i < block->count; i++)
        if (block->op[i].kind == DTP_OP_NORM && block->op[i].addend == DTP_EXECUTOR_NONE)
            kept &= ~bit_of(block->op[i].result);
    return kept;
}

int dtp_executor_maker(const struct dtp_executor_block *block, int tensor)
{
    for (int i = 0; i < block->count; i++)
        if (made_by(&block->op[i]) & DTP_EXECUTOR_BIT(tensor))
            return i;
    return -1;
}
