/* Whether operands have room for what their operation reads and writes. Lowering makes them so; a program that somebody
 * wrote may say otherwise, and a kernel believes what it is given. Shapes are those of lower_executor.h. */
#include "bind/binder.h"

#include "runtime/dtplan/batch_layout.h"

/* The operand in that role, where there is one, has `rows` times `columns` elements of its format; of no format, bytes.
 */
static void room(struct dtp_binder *b, enum dtp_role role, uint64_t rows, uint64_t columns)
{
    const struct dtp_operand *o = operand(b, role);
    enum dtp_element element;
    if (!o)
        return;
    uint64_t bytes = dtp_bind_buffer_element(buffer_of(b, o), &element) ? dtp_element_bytes(element) : 1;
    if (columns && rows > operand_bytes(b, o) / bytes / columns)
        b->missing |= 1u << role;
}

/* The same of bytes, where kernels know the format: batches, statistics, workspaces, tables, scalars. */
static void room_bytes(struct dtp_binder *b, enum dtp_role role, uint64_t rows, uint64_t bytes)
{
    const struct dtp_operand *o = operand(b, role);
    if (o && bytes && rows > operand_bytes(b, o) / bytes)
        b->missing |= 1u << role;
}

/* Shapes that do not fit each other are said of the operand that they are of. */
static void demand(struct dtp_binder *b, enum dtp_role role, bool holds)
{
    if (!holds)
        b->missing |= 1u << role;
}

/* Kernels take one format for both; an operand of another would be read or written beyond its end. */
static void alike(struct dtp_binder *b, enum dtp_role role, enum dtp_role other)
{
    if (operand(b, role) && operand(b, other) && element_of(b, role) != element_of(b, other))
        b->missing |= 1u << other;
}

void dtp_bind_room_of(struct dtp_binder *b, enum dtp_role role, uint64_t rows, uint64_t columns)
{
    room(b, role, rows, columns);
}

void dtp_bind_demand(struct dtp_binder *b, enum dtp_role role, bool holds)
{
    demand(b, role, holds);
}

void dtp_bind_alike(struct dtp_binder *b, enum dtp_role role, enum dtp_role other)
{
    alike(b, role, other);
}

static bool whole_sequences(const struct dtp_binder *b)
{
    uint64_t tokens = heads(b)->queries;
    return tokens > 0 && tokens <= INT32_MAX && rows(b) <= INT32_MAX && rows(b) % tokens == 0;
}

/* Tokens that each of the ranks has at most that divide them. */
static uint64_t own_vocab(const struct dtp_binder *b, uint64_t vocab)
{
    uint64_t first;
    return dtp_parameter_vocab_slice(vocab, dtp_bind_tensor_place(&b->binding->job).ranks, 0, &first);
}

static void embedding(struct dtp_binder *b)
{
    uint64_t tokens = whole(b->op->demand->k), vocab = own_vocab(b, tokens);
    demand(b, DTP_ROLE_BATCH, whole_sequences(b) && tokens > 0 && tokens <= INT32_MAX);
    room_bytes(b, DTP_ROLE_BATCH, 1, dtp_batch_layout_of(rows(b)).bytes);
    room(b, DTP_ROLE_WEIGHT, vocab, width(b));
    room(b, DTP_ROLE_WEIGHT_GRADIENT, vocab, width(b));
    room(b, DTP_ROLE_POSITION, sequence(b), width(b));
    room(b, DTP_ROLE_POSITION_GRADIENT, sequence(b), width(b));
    room(b, DTP_ROLE_RESULT, rows(b), width(b));
    room(b, DTP_ROLE_GRADIENT, rows(b), width(b));
    alike(b, DTP_ROLE_WEIGHT, DTP_ROLE_POSITION);
    alike(b, DTP_ROLE_WEIGHT_GRADIENT, DTP_ROLE_POSITION_GRADIENT);
}

static void norm(struct dtp_binder *b)
{
    static const enum dtp_role vectors[] = {DTP_ROLE_WEIGHT, DTP_ROLE_BIAS, DTP_ROLE_WEIGHT_GRADIENT,
                                            DTP_ROLE_BIAS_GRADIENT};
    static const enum dtp_role matrices[] = {DTP_ROLE_INPUT, DTP_ROLE_RESULT, DTP_ROLE_GRADIENT,
                                             DTP_ROLE_RESIDUAL_GRADIENT, DTP_ROLE_ADDEND};
    uint32_t form = b->op->demand->form;
    demand(b, DTP_ROLE_INPUT, width(b) > 0 && form >= DTP_FORM_LAYER_NORM && form <= DTP_FORM_RMS_NORM_PLUS_ONE);
    for (size_t i = 0; i < sizeof vectors / sizeof *vectors; i++)
        room(b, vectors[i], 1, width(b));
    demand(b, DTP_ROLE_INPUT, !norm_row(b) || norm_row(b) >= width(b));
    for (size_t i = 0; i < sizeof matrices / sizeof *matrices; i++) {
        bool dense = matrices[i] == DTP_ROLE_RESULT || matrices[i] == DTP_ROLE_GRADIENT;
        room(b, matrices[i], rows(b), dense || !norm_row(b) ? width(b) : norm_row(b));
        alike(b, DTP_ROLE_INPUT, matrices[i]);
    }
    alike(b, DTP_ROLE_WEIGHT, DTP_ROLE_BIAS);
    alike(b, DTP_ROLE_WEIGHT_GRADIENT, DTP_ROLE_BIAS_GRADIENT);
    room_bytes(b, DTP_ROLE_STATISTICS, rows(b), has_mean(b) ? 8 : 4);
    room_bytes(b, DTP_ROLE_WORKSPACE, 2 * DTP_EXECUTOR_PARTIAL_ROWS * UINT64_C(4), width(b));
}

/* Rows of tokens of a matmul by columns: m of them, or k of a weight's gradient. */
static uint64_t column_rows(const struct dtp_binder *b)
{
    return whole(operand(b, DTP_ROLE_WEIGHT_GRADIENT) ? b->op->demand->k : b->op->demand->m);
}

uint64_t dtp_bind_row_elements(const struct dtp_binder *b, enum dtp_role role)
{
    const struct dtp_operand *o = operand(b, role);
    uint64_t rows = column_rows(b);
    enum dtp_element element;
    if (!o || !rows || !dtp_bind_buffer_element(buffer_of(b, o), &element))
        return 0;
    return buffer_of(b, o)->bytes / dtp_element_bytes(element) / rows;
}

/* The operand, `columns` wide from its offset in the buffer's first row on, stays in each row; the buffer is nothing
 * but these rows. */
static void room_in_rows(struct dtp_binder *b, enum dtp_role role, uint64_t columns)
{
    const struct dtp_operand *o = operand(b, role);
    uint64_t row = dtp_bind_row_elements(b, role), rows = column_rows(b);
    enum dtp_element element = element_of(b, role);
    uint64_t bytes = dtp_element_bytes(element);
    demand(b, role,
           o && row && !o->shard && !o->bytes && buffer_of(b, o)->bytes == row * rows * bytes &&
               o->offset_bytes % bytes == 0 && columns <= row && o->offset_bytes / bytes <= row - columns);
}

/* [m, k] by [k, n]: of which of its roles each is follows from that of the result. */
static void matmul(struct dtp_binder *b)
{
    uint64_t m = whole(b->op->demand->m), n = whole(b->op->demand->n), k = whole(b->op->demand->k);
    bool weight_gradient = operand(b, DTP_ROLE_WEIGHT_GRADIENT) != NULL;
    enum dtp_role result = weight_gradient                       ? DTP_ROLE_WEIGHT_GRADIENT
                           : operand(b, DTP_ROLE_INPUT_GRADIENT) ? DTP_ROLE_INPUT_GRADIENT
                                                                 : DTP_ROLE_RESULT;
    if (b->op->demand->form == DTP_FORM_SUBTRACTED) /* from what is there, which a plain product would overwrite */
        demand(b, result, b->op->demand->scale > 0 && updates(b, result) && !operand(b, DTP_ROLE_AUX));
    demand(b, result, m && n && k && m <= INT32_MAX && n <= INT32_MAX && k <= INT32_MAX && b->op->demand->groups <= 1);
    if (b->op->demand->form != DTP_FORM_COLUMNS || weight_gradient)
        room(b, result, m, n);
    enum dtp_role left = result == DTP_ROLE_RESULT ? DTP_ROLE_INPUT : DTP_ROLE_GRADIENT;
    enum dtp_role right = weight_gradient ? DTP_ROLE_INPUT : DTP_ROLE_WEIGHT;
    if (b->op->demand->form == DTP_FORM_COLUMNS) {
        room_in_rows(b, left, weight_gradient ? m : k);
        room_in_rows(b, weight_gradient ? right : result, n);
        demand(b, result,
               !operand(b, DTP_ROLE_ADDEND) && !operand(b, DTP_ROLE_BIAS) && !operand(b, DTP_ROLE_AUX) &&
                   !operand(b, DTP_ROLE_BIAS_GRADIENT));
    }
    if (b->op->demand->form != DTP_FORM_COLUMNS || !weight_gradient)
        room(b, right, k, n);
    if (b->op->demand->form != DTP_FORM_COLUMNS)
        room(b, left, m, k);
    alike(b, left, right);
    bool fp8 = operand(b, left) && element_of(b, left) == DTP_ELEMENT_E4M3;
    enum dtp_form form = (enum dtp_form)b->op->demand->form;
    if (fp8 && dtp_fp8_scales_behind(form)) {
        room_bytes(b, left, 1, dtp_fp8_matrix_bytes(form, m, k));
        room_bytes(b, right, 1, dtp_fp8_matrix_bytes(dtp_bind_weight_form(b), n, k));
    }
    alike(b, fp8 ? result : left, DTP_ROLE_BIAS);
    alike(b, left, DTP_ROLE_AUX);
    alike(b, result, DTP_ROLE_ADDEND);
    alike(b, result, DTP_ROLE_BIAS_GRADIENT);
    room(b, DTP_ROLE_BIAS, 1, n);
    room(b, DTP_ROLE_BIAS_GRADIENT, 1, m);
    room(b, DTP_ROLE_ADDEND, m, n);
    room(b, DTP_ROLE_AUX, m, n);
    if (!fp8)
        return;
    demand(b, DTP_ROLE_SCALE,
           dtp_fp8_scales_behind(form) || (operand(b, DTP_ROLE_SCALE) && operand(b, DTP_ROLE_OTHER_SCALE)));
    demand(b, left, m % DTP_FP8_MULTIPLE == 0 && n % DTP_FP8_MULTIPLE == 0 && k % DTP_FP8_MULTIPLE == 0);
    demand(b, DTP_ROLE_BIAS_GRADIENT, !operand(b, DTP_ROLE_BIAS_GRADIENT));
    demand(b, DTP_ROLE_AUX, !operand(b, DTP_ROLE_AUX));
}

static void quantize(struct dtp_binder *b)
{
    uint64_t columns = whole(b->op->demand->n);
    if (b->op->demand->form == DTP_FORM_FROM_HISTORY) {
        demand(b, DTP_ROLE_AMAX, whole(b->op->demand->k) <= columns && columns <= INT32_MAX);
        room_bytes(b, DTP_ROLE_AMAX, columns, DTP_AMAX_HISTORY * sizeof(float));
        room_bytes(b, DTP_ROLE_SCALE, columns, DTP_AMAX_SCALE * sizeof(float));
        return;
    }
    bool casts = operand(b, DTP_ROLE_RESULT) || operand(b, DTP_ROLE_TRANSPOSED);
    demand(b, DTP_ROLE_INPUT,
           columns > 0 && columns <= INT32_MAX && rows(b) <= INT32_MAX && rows(b) % DTP_FP8_MULTIPLE == 0 &&
               columns % DTP_FP8_MULTIPLE == 0);
    enum dtp_form form = (enum dtp_form)b->op->demand->form;
    bool behind = dtp_fp8_scales_behind(form);
    demand(b, DTP_ROLE_SCALE, !casts || behind || operand(b, DTP_ROLE_SCALE));
    demand(b, DTP_ROLE_RESULT, !behind || (casts && (form != DTP_FORM_E4M3_ALIKE || !operand(b, DTP_ROLE_RESULT))));
    if (behind) {
        room_bytes(b, DTP_ROLE_RESULT, 1, dtp_fp8_matrix_bytes(form, rows(b), columns));
        room_bytes(b, DTP_ROLE_TRANSPOSED, 1, dtp_fp8_matrix_bytes(form, columns, rows(b)));
    }
    room(b, DTP_ROLE_INPUT, rows(b), columns);
    room(b, DTP_ROLE_RESULT, rows(b), columns);
    room(b, DTP_ROLE_TRANSPOSED, rows(b), columns);
}

/* Floats of 8 bits are cast and multiplied, and stored and read by activations; places in a table are moments, weights
 * that are unpacked, or gradients on their way; and nothing else. */
static void narrow(struct dtp_binder *b)
{
    const struct dtp_operand *operands = dtp_program_operands(b->binding->job.program, b->op);
    for (uint32_t i = 0; i < b->op->operand_count; i++) {
        enum dtp_role role = (enum dtp_role)operands[i].role;
        enum dtp_element element = DTP_ELEMENT_FP32;
        bool known = dtp_bind_buffer_element(buffer_of(b, &operands[i]), &element);
        bool is_narrow = known && element == DTP_ELEMENT_E4M3;
        bool moment = b->op->kind == DTP_OP_OPTIMIZER && (role == DTP_ROLE_MOMENT1 || role == DTP_ROLE_MOMENT2);
        bool packed = b->op->kind == DTP_OP_CAST && role == DTP_ROLE_INPUT && operand(b, DTP_ROLE_SCALE);
        bool sent =
            b->op->kind == DTP_OP_PACK8 || b->op->kind == DTP_OP_ALL_GATHER || b->op->kind == DTP_OP_SUM_PACKED8;
        if (known && element == DTP_ELEMENT_INT8 && !moment && !packed && !sent)
            b->missing |= 1u << role;
        bool made = b->op->kind == DTP_OP_QUANTIZE && (role == DTP_ROLE_RESULT || role == DTP_ROLE_TRANSPOSED);
        bool read = b->op->kind == DTP_OP_MATMUL &&
                    (role == DTP_ROLE_INPUT || role == DTP_ROLE_WEIGHT || role == DTP_ROLE_GRADIENT);
        bool stored = b->op->kind == DTP_OP_ACTIVATION && role == DTP_ROLE_SAVED;
        read = read || (role == DTP_ROLE_INPUT &&
                        (b->op->kind == DTP_OP_ACTIVATION || b->op->kind == DTP_OP_ACTIVATION_BACKWARD));
        made = made || stored;
        if (role != DTP_ROLE_NONE && (made != is_narrow && !(read && is_narrow)))
            b->missing |= 1u << role;
    }
}

/* Rotary and norms of q and k, which work on packed projections in place. */
static void heads_in_place(struct dtp_binder *b)
{
    uint64_t vectors = (uint64_t)heads(b)->heads + heads(b)->kv_heads, normed = vectors * heads(b)->head_dim;
    uint64_t weights = heads(b)->wide ? normed : 2 * (uint64_t)heads(b)->head_dim;
    demand(b, DTP_ROLE_RESULT,
           whole_sequences(b) && query_width(b) > 0 && heads(b)->head_dim % 2 == 0 && heads(b)->kv_heads > 0 &&
               heads(b)->heads % heads(b)->kv_heads == 0);
    room(b, DTP_ROLE_RESULT, rows(b), packed_width(b));
    room_bytes(b, DTP_ROLE_TABLES, sequence(b), 4 * (uint64_t)heads(b)->head_dim);
    room(b, DTP_ROLE_WEIGHT, 1, weights);
    room(b, DTP_ROLE_WEIGHT_GRADIENT, 1, weights);
    room(b, DTP_ROLE_SAVED, rows(b), normed);
    alike(b, DTP_ROLE_RESULT, DTP_ROLE_SAVED);
    room_bytes(b, DTP_ROLE_STATISTICS, rows(b), 4 * (heads(b)->wide ? 2 : vectors));
    room_bytes(b, DTP_ROLE_WORKSPACE, DTP_EXECUTOR_PARTIAL_ROWS * UINT64_C(4), weights);
}

/* Causal over the rank's own tokens, or without a mask over half as many keys of another that shares its sequences. */
static void attention(struct dtp_binder *b)
{
    bool around = operand(b, DTP_ROLE_KEYS) != NULL, backward = operand(b, DTP_ROLE_INPUT_GRADIENT) != NULL;
    uint64_t keys_width = packed_width(b) - query_width(b);
    bool step = heads(b)->queries == 2 * heads(b)->keys && !heads(b)->causal && !heads(b)->window &&
                dtp_bind_context_place(&b->binding->job).pieces == 2;
    demand(b, DTP_ROLE_INPUT,
           whole_sequences(b) && query_width(b) > 0 && heads(b)->kv_heads > 0 &&
               heads(b)->heads % heads(b)->kv_heads == 0 &&
               (around ? step && !heads(b)->value_dim && !heads(b)->alibi
                       : heads(b)->keys == heads(b)->queries && heads(b)->causal));
    room(b, DTP_ROLE_INPUT, rows(b), packed_width(b));
    room(b, DTP_ROLE_KEYS, rows(b), keys_width);
    room(b, DTP_ROLE_INPUT_GRADIENT, rows(b), around ? query_width(b) : packed_width(b));
    room(b, DTP_ROLE_RESULT, rows(b), around && backward ? keys_width : core_width(b));
    alike(b, DTP_ROLE_INPUT, DTP_ROLE_KEYS);
    room(b, DTP_ROLE_SAVED, rows(b), core_width(b));
    room(b, DTP_ROLE_GRADIENT, rows(b), core_width(b));
    alike(b, DTP_ROLE_INPUT, DTP_ROLE_INPUT_GRADIENT);
    alike(b, DTP_ROLE_INPUT, DTP_ROLE_RESULT);
    alike(b, DTP_ROLE_INPUT, DTP_ROLE_SAVED);
    alike(b, DTP_ROLE_INPUT, DTP_ROLE_GRADIENT);
    room_bytes(b, DTP_ROLE_STATISTICS, rows(b), 4 * (uint64_t)heads(b)->heads);
}

static void sinks(struct dtp_binder *b)
{
    const bool backward = b->op->kind == DTP_OP_SINKS_BACKWARD;
    const enum dtp_role result = backward ? DTP_ROLE_SAVED : DTP_ROLE_RESULT;
    demand(b, result, whole_sequences(b) && query_width(b) > 0 && !heads(b)->value_dim);
    room(b, result, rows(b), query_width(b));
    room(b, DTP_ROLE_GRADIENT, rows(b), query_width(b));
    alike(b, result, DTP_ROLE_GRADIENT);
    room(b, DTP_ROLE_WEIGHT, 1, heads(b)->heads);
    room(b, DTP_ROLE_WEIGHT_GRADIENT, 1, heads(b)->heads);
    room_bytes(b, DTP_ROLE_STATISTICS, rows(b), 4 * (uint64_t)heads(b)->heads);
    room_bytes(b, DTP_ROLE_WORKSPACE, DTP_EXECUTOR_PARTIAL_ROWS * UINT64_C(4), heads(b)->heads);
}

static void activation(struct dtp_binder *b)
{
    uint32_t form = b->op->demand->form;
    demand(b, DTP_ROLE_INPUT, width(b) > 0 && form >= DTP_FORM_SWIGLU && form <= DTP_FORM_RELU);
    room(b, DTP_ROLE_INPUT, rows(b), up_width(b));
    room(b, DTP_ROLE_INPUT_GRADIENT, rows(b), up_width(b));
    room(b, DTP_ROLE_RESULT, rows(b), width(b));
    room(b, DTP_ROLE_GRADIENT, rows(b), width(b));
    room(b, DTP_ROLE_SAVED, rows(b), up_width(b));
    alike(b, DTP_ROLE_GRADIENT, DTP_ROLE_RESULT);
    if (element_of(b, DTP_ROLE_INPUT) == DTP_ELEMENT_E4M3) { /* what was stored, which no gradient takes the place of */
        demand(b, DTP_ROLE_INPUT, !operand(b, DTP_ROLE_GRADIENT) || operand(b, DTP_ROLE_INPUT_GRADIENT));
        alike(b, DTP_ROLE_GRADIENT, DTP_ROLE_INPUT_GRADIENT);
        return;
    }
    alike(b, DTP_ROLE_INPUT, DTP_ROLE_INPUT_GRADIENT);
    alike(b, DTP_ROLE_INPUT, DTP_ROLE_RESULT);
    alike(b, DTP_ROLE_INPUT, DTP_ROLE_GRADIENT);
}

static void loss_backward(struct dtp_binder *b)
{
    uint64_t tokens = whole(b->op->demand->k), ranks = dtp_bind_tensor_place(&b->binding->job).ranks;
    bool parts = b->op->kind == DTP_OP_LOSS_PARTS;
    enum dtp_role logits = parts ? DTP_ROLE_INPUT : DTP_ROLE_RESULT;
    demand(b, logits, tokens >= 1 && tokens <= INT32_MAX && own_vocab(b, tokens) <= width(b));
    demand(b, logits, b->op->demand->m >= 1);
    demand(b, DTP_ROLE_SAVED, parts || (ranks > 1) == (operand(b, DTP_ROLE_SAVED) != NULL));
    room(b, logits, rows(b), width(b));
    room_bytes(b, DTP_ROLE_BATCH, rows(b), 4);
    room_bytes(b, DTP_ROLE_SAVED, rows(b), ranks * DTP_EXECUTOR_LOSS_PART_BYTES);
    room_bytes(b, DTP_ROLE_STATISTICS, rows(b), parts ? DTP_EXECUTOR_LOSS_PART_BYTES : 4);
}

/* Operations that work element by element, and those that move bytes. */
static void others(struct dtp_binder *b)
{
    const struct dtp_demand *d = b->op->demand;
    switch (b->op->kind) {
    case DTP_OP_LOSS: room_bytes(b, DTP_ROLE_STATISTICS, rows(b), 4); break;
    case DTP_OP_ACCUMULATE:
        room(b, DTP_ROLE_INPUT, rows(b), 1);
        room(b, DTP_ROLE_RESULT, rows(b), 1);
        break;
    case DTP_OP_ORTHOGONALIZE: {
        bool by_columns = d->form == DTP_FORM_COLUMNS;
        uint64_t vectors = by_columns ? width(b) : rows(b), length = by_columns ? rows(b) : width(b);
        demand(b, DTP_ROLE_RESULT,
               vectors > 0 && vectors <= length && vectors <= DTP_ORTHOGONALIZE_VECTORS &&
                   operand(b, DTP_ROLE_RESULT) && element_of(b, DTP_ROLE_RESULT) == DTP_ELEMENT_FP32);
        room(b, DTP_ROLE_RESULT, rows(b), width(b));
        break;
    }
    case DTP_OP_SQUARE_SUM: room_bytes(b, DTP_ROLE_PARTIALS, DTP_EXECUTOR_SQUARE_SUM_PARTIALS, 4); break;
    case DTP_OP_BIAS_BACKWARD:
        room(b, DTP_ROLE_GRADIENT, rows(b), width(b));
        room(b, DTP_ROLE_BIAS_GRADIENT, 1, width(b));
        room_bytes(b, DTP_ROLE_WORKSPACE, DTP_EXECUTOR_PARTIAL_ROWS * UINT64_C(4), width(b));
        break;
    case DTP_OP_ZERO:
    case DTP_OP_UPLOAD:
    case DTP_OP_DOWNLOAD: {
        uint64_t bytes = whole(b->op->kind == DTP_OP_ZERO ? d->bytes : d->sent_bytes);
        const struct dtp_operand *input = operand(b, DTP_ROLE_INPUT), *result = operand(b, DTP_ROLE_RESULT);
        demand(b, DTP_ROLE_INPUT, !input || bytes <= operand_bytes(b, input));
        demand(b, DTP_ROLE_RESULT, result && bytes <= operand_bytes(b, result));
        break;
    }
    default: break;
    }
}

/* Tokens are row numbers, and those of embedding_backward as well: only what the host fills with them may stand there,
 * whole and where it belongs. */
static void batch(struct dtp_binder *b)
{
    const struct dtp_operand *operands = dtp_program_operands(b->binding->job.program, b->op);
    const struct dtp_operand *tokens = operand(b, DTP_ROLE_BATCH), *from = operand(b, DTP_ROLE_INPUT);
    demand(b, DTP_ROLE_BATCH, !tokens || buffer_of(b, tokens)->content == DTP_CONTENT_BATCH);
    for (uint32_t i = 0; i < b->op->operand_count; i++) {
        const struct dtp_operand *o = &operands[i];
        uint64_t bytes = buffer_of(b, o)->bytes;
        if (!(o->access & DTP_WRITE) || buffer_of(b, o)->content != DTP_CONTENT_BATCH)
            continue;
        demand(b, (enum dtp_role)o->role,
               b->op->kind == DTP_OP_UPLOAD && from && buffer_of(b, from)->content == DTP_CONTENT_HOST_BATCH &&
                   o->offset_bytes == 0 && from->offset_bytes == 0 && !o->shard && !from->shard &&
                   buffer_of(b, from)->bytes == bytes && whole(b->op->demand->sent_bytes) == bytes);
    }
}

/* Whether the operation carries what routers of ranks that divide experts wrote: gathers it, copies it to the host, or
 * reads what was gathered. */
static bool carries_routes(const struct dtp_binder *b)
{
    const struct dtp_operand *input = operand(b, DTP_ROLE_INPUT), *result = operand(b, DTP_ROLE_RESULT);
    bool carries = b->op->kind == DTP_OP_ALL_GATHER || b->op->kind == DTP_OP_DOWNLOAD;
    return (carries && input && result && buffer_of(b, input)->content == DTP_CONTENT_ROUTES &&
            buffer_of(b, result)->content == DTP_CONTENT_ROUTES) ||
           dtp_bind_receives(b);
}

/* Routes are row numbers too: only a router writes there, all of it. */
static void routes(struct dtp_binder *b)
{
    const struct dtp_operand *operands = dtp_program_operands(b->binding->job.program, b->op);
    for (uint32_t i = 0; i < b->op->operand_count; i++) {
        const struct dtp_operand *o = &operands[i];
        bool are = buffer_of(b, o)->content == DTP_CONTENT_ROUTES, writes = o->access & DTP_WRITE;
        demand(b, (enum dtp_role)o->role,
               are ? (o->role == DTP_ROLE_ROUTES && !o->offset_bytes && !o->shard &&
                      writes == (b->op->kind == DTP_OP_ROUTER)) ||
                         !(o->access & DTP_UPDATE) || carries_routes(b)
                   : o->role != DTP_ROLE_ROUTES);
    }
}

void dtp_bind_room(struct dtp_binder *b)
{
    batch(b);
    routes(b);
    switch (b->op->kind) {
    case DTP_OP_GROUPED_MATMUL:
    case DTP_OP_ROUTER:
    case DTP_OP_ROUTER_BACKWARD:
    case DTP_OP_PERMUTE:
    case DTP_OP_PERMUTE_BACKWARD:
    case DTP_OP_EXPERT_BIAS:
    case DTP_OP_EXPERT_BIAS_BACKWARD:
    case DTP_OP_UNPERMUTE:
    case DTP_OP_UNPERMUTE_BACKWARD: dtp_bind_expert_room(b); break;
    case DTP_OP_EMBEDDING:
    case DTP_OP_EMBEDDING_BACKWARD: embedding(b); break;
    case DTP_OP_NORM:
    case DTP_OP_NORM_BACKWARD: norm(b); break;
    case DTP_OP_MATMUL: matmul(b); break;
    case DTP_OP_NEWTON_SCHULZ: dtp_bind_product_room(b); break;
    case DTP_OP_QUANTIZE: quantize(b); break;
    case DTP_OP_ROTARY:
    case DTP_OP_ROTARY_BACKWARD: (dtp_bind_packs_heads(b) ? dtp_bind_latent_room : heads_in_place)(b); break;
    case DTP_OP_QK_NORM:
    case DTP_OP_QK_NORM_BACKWARD: heads_in_place(b); break;
    case DTP_OP_SINKS:
    case DTP_OP_SINKS_BACKWARD: sinks(b); break;
    case DTP_OP_ATTENTION:
    case DTP_OP_ATTENTION_BACKWARD: attention(b); break;
    case DTP_OP_ACTIVATION:
    case DTP_OP_ACTIVATION_BACKWARD: (dtp_bind_has_routes(b) ? dtp_bind_expert_room : activation)(b); break;
    case DTP_OP_COPY_IN:
    case DTP_OP_COPY_OUT:
    case DTP_OP_MERGE: dtp_bind_room_of_context(b); break;
    case DTP_OP_LOSS_PARTS:
    case DTP_OP_LOSS_BACKWARD: loss_backward(b); break;
    default: others(b);
    }
    room_bytes(b, DTP_ROLE_SCALARS, 1, DTP_EXECUTOR_SCALARS_BYTES);
    room_bytes(b, DTP_ROLE_AMAX, 1, sizeof(float));
    room_bytes(b, DTP_ROLE_SCALE, 1, sizeof(float));
    room_bytes(b, DTP_ROLE_OTHER_SCALE, 1, sizeof(float));
    narrow(b);
}
