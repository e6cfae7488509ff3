/* Backward of a block and of the embedding, in the order in which allocation traces of PyTorch 2.11 show it.
 *
 *   down    weight gradient, input gradient [c f T]
 *   MLP     gradients of silu(gate) and up beside everything saved: the block's worst instant
 *   up      weight gradient, input gradient; norm 2; the residual gradient is added to in place
 *   output  weight gradient, input gradient; attention core; RoPE; the gradient of qkv as one
 *   qkv     weight gradient, input gradient; norm 1
 * Saved tensors go as soon as the last step that reads them has been issued. */
#include "lower/lowering.h"

#include "base/bytes.h"

struct backward {
    struct dtp_lowering *l;
    struct dtp_module_state *state;
    dtp_buffer_id narrow; /* residual gradient in the compute dtype, where autocast casts it */
};

static double per_token(const struct dtp_lowering *l, double bytes)
{
    return bytes * (double)l->tokens;
}

static uint64_t token_bytes(const struct dtp_lowering *l, uint64_t bytes)
{
    return dtp_bytes_product(l->tokens, bytes);
}

/* The last reader of a saved tensor frees it. */
static void consume(const struct backward *b, struct dtp_draft *draft, enum dtp_layer_tensor tensor, uint32_t access)
{
    if (!(b->state->alive & UINT64_C(1) << tensor))
        return;
    dtp_draft_use(draft, b->state->tensor[tensor], access);
    if (access & DTP_FREE) {
        b->state->alive &= ~(UINT64_C(1) << tensor);
        b->state->tensor[tensor] = DTP_NO_BUFFER;
    }
}

static dtp_buffer_id workspace(struct dtp_lowering *l, struct dtp_draft *draft, const char *name, uint64_t bytes,
                               uint32_t access)
{
    return dtp_draft_new(l, draft, name, DTP_OWNER_WORKSPACE, bytes, access);
}

/* ---- linears ----------------------------------------------------------------------------------------------------- */

static void weight_gradient(const struct backward *b, int index, dtp_buffer_id output_gradient, bool last_reader)
{
    struct dtp_lowering *l = b->l;
    const struct dtp_layer_matrix *matrix = &l->matrix[index];
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_MATMUL, matrix->gradient_name);
    dtp_draft_use(&draft, output_gradient, DTP_READ);
    /* a compiler drops the input here, eager autograd with the node, after the input gradient */
    consume(b, &draft, l->tensors.input[index], last_reader && l->compiled ? DTP_READ | DTP_FREE : DTP_READ);
    dtp_lower_gradient_result(l, &draft, index, l->compute);
    dtp_draft_matmul(l, &draft, matrix->out, matrix->in, l->tokens, false);
    dtp_draft_end(l, &draft);
}

static dtp_buffer_id input_gradient(const struct backward *b, int index, dtp_buffer_id output_gradient,
                                    bool last_reader, bool frees_output)
{
    struct dtp_lowering *l = b->l;
    const struct dtp_layer_matrix *matrix = &l->matrix[index];
    dtp_buffer_id weight = dtp_lower_weight(l, index);
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_MATMUL, "input gradient");
    draft.op.name = matrix->name;
    dtp_draft_use(&draft, weight, l->autocast ? DTP_READ | DTP_FREE : DTP_READ);
    dtp_buffer_id gradient = workspace(l, &draft, "input gradient", token_bytes(l, l->compute * matrix->in), DTP_WRITE);
    dtp_draft_use(&draft, output_gradient, frees_output ? DTP_READ | DTP_FREE : DTP_READ);
    bool shared = l->tensors.input[index] == DTP_TENSOR_CORE; /* the core's backward reads it too */
    if (last_reader && !shared && !l->compiled)
        consume(b, &draft, l->tensors.input[index], DTP_FREE);
    if (l->autocast)
        b->state->weight[index] = DTP_NO_BUFFER;
    dtp_draft_matmul(l, &draft, l->tokens, matrix->in, matrix->out, false);
    dtp_draft_end(l, &draft);
    return gradient;
}

/* fp8: output gradient, and input and weight again where their casts are not kept. */
static void quantize(struct dtp_lowering *l, const struct dtp_layer_matrix *matrix)
{
    if (l->plan->precision.compute != DTP_FP8)
        return;
    double tokens = (double)l->tokens, out = (double)matrix->out, in = (double)matrix->in;
    bool torchao = !l->keeps_fp8 && !l->plan->fsdp1;
    double inputs = l->keeps_fp8 ? 0 : (torchao ? 5 : 2) * (tokens * in + out * in);
    double bytes = inputs + (torchao ? 5 : 4) * tokens * out;
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_QUANTIZE, matrix->name);
    dtp_draft_memory(l, &draft, bytes, 6);
    dtp_draft_end(l, &draft);
}

static void bias_gradient(struct dtp_lowering *l, const struct dtp_layer_matrix *matrix, dtp_buffer_id output_gradient)
{
    if (!matrix->bias)
        return;
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_BIAS_BACKWARD, matrix->name);
    dtp_draft_use(&draft, output_gradient, DTP_READ);
    dtp_draft_memory(l, &draft, per_token(l, (double)(matrix->out * l->compute)), 1);
    dtp_draft_end(l, &draft);
}

/* One linear: gradients of its weight, bias and input. */
static dtp_buffer_id linear(const struct backward *b, int index, dtp_buffer_id output_gradient, bool last_reader,
                            bool frees_output)
{
    struct dtp_lowering *l = b->l;
    bool shared = l->tensors.input[index] == DTP_TENSOR_CORE;
    dtp_lower_fetch(l, index);
    quantize(l, &l->matrix[index]);
    bias_gradient(l, &l->matrix[index], output_gradient);
    weight_gradient(b, index, output_gradient, last_reader && !shared);
    dtp_buffer_id gradient = input_gradient(b, index, output_gradient, last_reader, frees_output);
    dtp_lower_unfetch(l);
    dtp_lower_gradient_made(l, index);
    return gradient;
}

/* Linears that read one tensor: the second and third gradients are added to the first (three passes of c h). */
static dtp_buffer_id add_gradients(const struct backward *b, dtp_buffer_id sum, dtp_buffer_id gradient)
{
    struct dtp_lowering *l = b->l;
    if (sum.index == DTP_NO_INDEX)
        return gradient;
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_RESIDUAL_BACKWARD, "sum of input gradients");
    dtp_draft_use(&draft, sum, DTP_UPDATE);
    dtp_draft_use(&draft, gradient, DTP_READ | DTP_FREE);
    dtp_draft_memory(l, &draft, l->fused ? 0 : per_token(l, (double)(3 * l->compute * l->transformer->hidden)), 1);
    dtp_draft_end(l, &draft);
    return sum;
}

/* ---- norms and the residual stream ------------------------------------------------------------------------------- */

/* Residual gradient for a matmul: cast where the stream is fp32. */
static void narrow(struct backward *b)
{
    struct dtp_lowering *l = b->l;
    b->narrow = l->gradient;
    if (l->residual == l->compute)
        return;
    double h = (double)l->transformer->hidden, c = (double)l->compute;
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_CAST, "residual gradient");
    dtp_draft_use(&draft, l->gradient, DTP_READ);
    b->narrow = workspace(l, &draft, "residual gradient in compute dtype",
                          token_bytes(l, l->compute * l->transformer->hidden), DTP_WRITE);
    dtp_draft_memory(l, &draft, l->fused ? 0 : per_token(l, (4 + c) * h), 1);
    dtp_draft_end(l, &draft);
}

static dtp_buffer_id widen(const struct backward *b, dtp_buffer_id gradient)
{
    struct dtp_lowering *l = b->l;
    if (l->residual == l->compute || l->fused)
        return gradient;
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_CAST, "norm gradient");
    dtp_buffer_id wide = workspace(l, &draft, "norm gradient in fp32", l->tensor_bytes[DTP_TENSOR_INPUT], DTP_WRITE);
    dtp_draft_use(&draft, gradient, DTP_READ | DTP_FREE);
    dtp_draft_memory(l, &draft, per_token(l, (double)((4 + l->compute) * l->transformer->hidden)), 1);
    dtp_draft_end(l, &draft);
    return wide;
}

/* eager: input gradient 3 e h, weight gradient 2 e h, then the sum 3 e h; fused: c h and 3 e h. */
static void norm(const struct backward *b, bool second, dtp_buffer_id gradient)
{
    struct dtp_lowering *l = b->l;
    double h = (double)l->transformer->hidden, e = (double)l->residual, c = (double)l->compute;
    bool sum_lives = l->tensor_bytes[DTP_TENSOR_INPUT2];
    gradient = widen(b, gradient);
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_NORM_BACKWARD, second ? "norm 2" : "norm 1");
    workspace(l, &draft, "norm input gradient", l->tensor_bytes[DTP_TENSOR_INPUT], DTP_UPDATE | DTP_FREE);
    dtp_draft_use(&draft, gradient, DTP_READ | DTP_FREE);
    if (second) {
        consume(b, &draft, sum_lives ? DTP_TENSOR_INPUT2 : DTP_TENSOR_INPUT,
                sum_lives ? DTP_READ | DTP_FREE : DTP_READ);
        consume(b, &draft, DTP_TENSOR_MIDDLE, DTP_READ | DTP_FREE);
    } else {
        consume(b, &draft, DTP_TENSOR_INPUT, DTP_READ | DTP_FREE);
    }
    consume(b, &draft, second ? DTP_TENSOR_STATISTICS2 : DTP_TENSOR_STATISTICS1, DTP_READ | DTP_FREE);
    dtp_draft_use(&draft, l->gradient, DTP_UPDATE);
    dtp_draft_memory(l, &draft, per_token(l, l->fused ? (c + 3 * e) * h : 8 * e * h), l->fused ? 2 : 3);
    dtp_draft_end(l, &draft);
}

/* ---- MLP --------------------------------------------------------------------------------------------------------- */

/* Of the product, which itself may be kept in fp8. */
static uint64_t gradient_bytes(const struct dtp_lowering *l)
{
    return token_bytes(l, l->compute * l->transformer->ffn);
}

/* eager SwiGLU, first step: d silu and d up from the product's gradient (2 reads and 1 write each: 6 f). */
static dtp_buffer_id product(const struct backward *b, dtp_buffer_id gradient, dtp_buffer_id *silu_gradient)
{
    struct dtp_lowering *l = b->l;
    uint64_t f = gradient_bytes(l);
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_ACTIVATION_BACKWARD, "product");
    *silu_gradient = workspace(l, &draft, "silu gradient", f, DTP_WRITE);
    dtp_buffer_id up_gradient = workspace(l, &draft, "up gradient", f, DTP_WRITE);
    dtp_draft_use(&draft, gradient, DTP_READ | DTP_FREE);
    consume(b, &draft, DTP_TENSOR_SILU, DTP_READ | DTP_FREE);
    bool apart = l->tensor_bytes[DTP_TENSOR_GATE];
    consume(b, &draft, DTP_TENSOR_UP, apart ? DTP_READ | DTP_FREE : DTP_READ);
    dtp_draft_memory(l, &draft, 6 * (double)l->tensor_bytes[DTP_TENSOR_PRODUCT], 2);
    dtp_draft_end(l, &draft);
    return up_gradient;
}

/* Gradients of gate and up, of one matmul or two: apart[0] gate's, apart[1] up's; one buffer is apart[1] only. */
struct up_gradients {
    dtp_buffer_id gate, up;
};

/* Second step: silu's gradient (3 f) and, where gate and up are one buffer, the cat (4 f). */
static struct up_gradients gated_eager(const struct backward *b, dtp_buffer_id gradient)
{
    struct dtp_lowering *l = b->l;
    uint64_t f = gradient_bytes(l);
    bool apart = l->tensor_bytes[DTP_TENSOR_GATE];
    struct up_gradients result = {DTP_NO_BUFFER, DTP_NO_BUFFER};
    dtp_buffer_id silu_gradient, up_gradient = product(b, gradient, &silu_gradient);
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_ACTIVATION_BACKWARD, "silu");
    dtp_buffer_id made =
        workspace(l, &draft, apart ? "gate gradient" : "gate and up gradient", apart ? f : 2 * f, DTP_WRITE);
    dtp_draft_use(&draft, silu_gradient, DTP_READ | DTP_FREE);
    consume(b, &draft, apart ? DTP_TENSOR_GATE : DTP_TENSOR_UP, DTP_READ | DTP_FREE);
    if (!apart)
        dtp_draft_use(&draft, up_gradient, DTP_READ | DTP_FREE);
    dtp_draft_memory(l, &draft, (apart ? 3 : 7) * (double)l->tensor_bytes[DTP_TENSOR_PRODUCT], apart ? 1 : 2);
    dtp_draft_end(l, &draft);
    result.gate = apart ? made : DTP_NO_BUFFER;
    result.up = apart ? up_gradient : made;
    return result;
}

/* Everything else is one kernel: compiled SwiGLU (6 f), GELU and ReLU (eager 3 f, fused 4 f). A compiler writes GELU's
 * input gradient over its result's. */
static struct up_gradients in_one(const struct backward *b, dtp_buffer_id gradient)
{
    struct dtp_lowering *l = b->l;
    double f = (double)l->tensor_bytes[DTP_TENSOR_PRODUCT];
    uint64_t gate = l->tensor_bytes[DTP_TENSOR_GATE], up = l->tensor_bytes[DTP_TENSOR_UP];
    bool in_place = l->compiled && !l->gated;
    struct up_gradients result = {DTP_NO_BUFFER, gradient};
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_ACTIVATION_BACKWARD, "");
    if (in_place) {
        dtp_draft_use(&draft, gradient, DTP_UPDATE);
    } else {
        result.gate = workspace(l, &draft, "gate gradient", gate, DTP_WRITE);
        result.up = workspace(l, &draft, "up gradient", up, DTP_WRITE);
        dtp_draft_use(&draft, gradient, DTP_READ | DTP_FREE);
    }
    consume(b, &draft, DTP_TENSOR_GATE, DTP_READ | DTP_FREE);
    consume(b, &draft, DTP_TENSOR_UP, DTP_READ | DTP_FREE);
    consume(b, &draft, DTP_TENSOR_PRODUCT, DTP_READ | DTP_FREE); /* ReLU reads its result */
    dtp_draft_memory(l, &draft, (l->gated ? 6 : l->fused ? 4 : 3) * f, 1);
    dtp_draft_end(l, &draft);
    return result;
}

static void mlp(struct backward *b)
{
    struct dtp_lowering *l = b->l;
    int down = l->matrices - 1, up = down - 1;
    bool relu = l->transformer->activation == DTP_RELU;
    narrow(b);
    dtp_buffer_id gradient = linear(b, down, b->narrow, !relu, b->narrow.index != l->gradient.index);
    struct up_gradients made = l->gated && !l->compiled ? gated_eager(b, gradient) : in_one(b, gradient);
    dtp_buffer_id sum = DTP_NO_BUFFER;
    bool apart = l->tensor_bytes[DTP_TENSOR_GATE];
    if (apart)
        sum = linear(b, up - 1, made.gate, false, true);
    sum = add_gradients(b, sum, linear(b, up, made.up, true, true));
    norm(b, true, sum);
}

/* ---- attention --------------------------------------------------------------------------------------------------- */

struct core_gradients {
    dtp_buffer_id q, k, v;
};

/* Flash kernels form QK^T again (5 matmuls for 2: 2.5 times the forward) and sum dq in fp32 (4 d_q); math attention has
 * gradients of probabilities and scores. */
static struct core_gradients core(const struct backward *b, dtp_buffer_id gradient)
{
    struct dtp_lowering *l = b->l;
    bool math = l->plan->attention == DTP_ATTENTION_MATH;
    double s = dtp_transformer_attention_length(l->transformer, l->plan->sequence);
    uint64_t q = token_bytes(l, l->compute * l->d_q), kv = token_bytes(l, l->compute * l->d_kv);
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_ATTENTION_BACKWARD, "");
    struct core_gradients made;
    made.q = workspace(l, &draft, "q gradient", q, DTP_WRITE);
    made.k = workspace(l, &draft, "k gradient", kv, DTP_WRITE);
    made.v = workspace(l, &draft, "v gradient", kv, DTP_WRITE);
    workspace(l, &draft, "attention workspace", math ? 2 * l->scores_bytes : token_bytes(l, 4 * l->d_q),
              DTP_UPDATE | DTP_FREE);
    dtp_draft_use(&draft, gradient, DTP_READ | DTP_FREE);
    static const enum dtp_layer_tensor inputs[] = {DTP_TENSOR_Q,   DTP_TENSOR_K,          DTP_TENSOR_V,
                                                   DTP_TENSOR_QKV, DTP_TENSOR_CORE_STATE, DTP_TENSOR_CORE};
    for (size_t i = 0; i < sizeof inputs / sizeof *inputs; i++) {
        bool normed_later = inputs[i] == DTP_TENSOR_QKV && l->transformer->qk_norm;
        consume(b, &draft, inputs[i], normed_later ? DTP_READ : DTP_READ | DTP_FREE);
    }
    if (!l->transformer->qk_norm) {
        consume(b, &draft, DTP_TENSOR_Q_RAW, DTP_READ | DTP_FREE);
        consume(b, &draft, DTP_TENSOR_K_RAW, DTP_READ | DTP_FREE);
    }
    draft.op.demand.flops = per_token(l, (math ? 4 : 5) * s * (double)l->d_q);
    draft.op.demand.tokens = (double)l->tokens;
    draft.op.demand.kernels = 3;
    dtp_draft_end(l, &draft);
    return made;
}

/* RoPE's (and q and k norms') backward in place of dq and dk; eager chains hold up to 5 times one of them beside. */
static void rotary(const struct backward *b, const struct core_gradients *made)
{
    struct dtp_lowering *l = b->l;
    const struct dtp_transformer *t = l->transformer;
    if (!l->rope && !t->qk_norm)
        return;
    double width = (double)(l->d_q + l->d_kv), all = (double)(l->d_q + 2 * l->d_kv), c = (double)l->compute;
    double rope = !l->rope ? 0 : l->fused ? 2 * c * all : (l->plan->rope_fp32 ? 52 : 10 * c) * width;
    double norms = t->qk_norm ? 2.5 * 2 * c * width : 0;
    uint64_t q = token_bytes(l, l->compute * l->d_q);
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_ROTARY_BACKWARD, "");
    dtp_lower_rotary_tensors(l, &draft, l->fused || !l->rope ? 0 : l->compute == 4 ? 2 * q : 5 * q);
    dtp_draft_use(&draft, made->q, DTP_UPDATE);
    dtp_draft_use(&draft, made->k, DTP_UPDATE);
    consume(b, &draft, DTP_TENSOR_QK_STATISTICS, DTP_READ | DTP_FREE);
    consume(b, &draft, DTP_TENSOR_Q_RAW, DTP_READ | DTP_FREE);
    consume(b, &draft, DTP_TENSOR_K_RAW, DTP_READ | DTP_FREE);
    if (t->qk_norm)
        consume(b, &draft, DTP_TENSOR_QKV, DTP_READ | DTP_FREE);
    uint32_t kernels = l->fused || !l->rope ? 1 : l->plan->rope_fp32 ? 24 : 12;
    dtp_draft_memory(l, &draft, per_token(l, rope + norms), kernels);
    dtp_draft_end(l, &draft);
}

/* Gradient of the fused q, k, v as one tensor: read and written whole, except where a compiler's RoPE kernel writes it.
 */
static dtp_buffer_id join(const struct backward *b, const struct core_gradients *made)
{
    struct dtp_lowering *l = b->l;
    double bytes = (double)l->tensor_bytes[DTP_TENSOR_QKV];
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_COPY_IN, "qkv gradient");
    dtp_buffer_id joined = workspace(l, &draft, "qkv gradient", l->tensor_bytes[DTP_TENSOR_QKV], DTP_WRITE);
    dtp_draft_use(&draft, made->q, DTP_READ | DTP_FREE);
    dtp_draft_use(&draft, made->k, DTP_READ | DTP_FREE);
    dtp_draft_use(&draft, made->v, DTP_READ | DTP_FREE);
    dtp_draft_memory(l, &draft, l->fused ? 0 : 2 * bytes, 1);
    dtp_draft_end(l, &draft);
    return joined;
}

static void attention(struct backward *b)
{
    struct dtp_lowering *l = b->l;
    int output = l->plan->fused_qkv ? 1 : 3;
    narrow(b);
    dtp_buffer_id gradient = linear(b, output, b->narrow, true, b->narrow.index != l->gradient.index);
    /* a compiler reads the result's heads-side-by-side form and lays the gradient out by heads */
    struct core_gradients made = core(b, gradient);
    rotary(b, &made);
    dtp_buffer_id sum = DTP_NO_BUFFER;
    if (l->plan->fused_qkv) {
        sum = linear(b, 0, join(b, &made), true, true);
    } else {
        sum = linear(b, 0, made.q, false, true);
        sum = add_gradients(b, sum, linear(b, 1, made.k, false, true));
        sum = add_gradients(b, sum, linear(b, 2, made.v, true, true));
    }
    norm(b, false, sum);
}

/* ---- the block --------------------------------------------------------------------------------------------------- */

/* Gradients of norms and biases, which are small, appear as one buffer at the block's end. */
static void vectors(struct dtp_lowering *l)
{
    int part = l->matrices;
    if (!l->block.elements[part])
        return;
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_NORM_BACKWARD, "vector gradients");
    dtp_lower_gradient_result(l, &draft, part, l->compute);
    dtp_draft_memory(l, &draft, 0, 1);
    dtp_draft_end(l, &draft);
    dtp_lower_gradient_made(l, part);
}

void dtp_lower_block_backward(struct dtp_lowering *l)
{
    struct backward b = {l, dtp_lower_state(l), DTP_NO_BUFFER};
    if (dtp_lower_checkpointed(l, l->layer) && l->tensors.kept != l->tensors.saved)
        dtp_lower_block_recompute(l);
    mlp(&b);
    attention(&b);
    vectors(l);
}

/* ---- the embedding ----------------------------------------------------------------------------------------------- */

/* Dense gradient of the table. PyTorch sorts the tokens and first sums runs of at most 10 equal ones in fp32: (distinct
 * tokens + tokens / 10) rows of h (Embedding.cu, embedding_backward_cuda_kernel). */
static uint64_t partial_sums(const struct dtp_lowering *l)
{
    uint64_t vocab = l->transformer->vocab, segments = l->tokens < vocab ? l->tokens : vocab;
    return dtp_bytes_product(4 * l->transformer->hidden, segments + l->tokens / 10);
}

static void embedding_norm_backward(struct dtp_lowering *l, struct dtp_module_state *root)
{
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_NORM_BACKWARD, "embedding norm");
    dtp_draft_use(&draft, l->gradient, DTP_UPDATE);
    dtp_draft_use(&draft, l->embedded, DTP_READ | DTP_FREE);
    dtp_draft_use(&draft, root->tensor[DTP_TENSOR_STATISTICS1], DTP_READ | DTP_FREE);
    dtp_draft_memory(l, &draft, 0, 2);
    dtp_draft_end(l, &draft);
}

static void position_gradient(struct dtp_lowering *l)
{
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_EMBEDDING_BACKWARD, "position");
    dtp_draft_use(&draft, l->gradient, DTP_READ);
    dtp_lower_gradient_result(l, &draft, DTP_ROOT_POSITION, l->autocast ? l->bytes.grads : l->compute);
    dtp_draft_memory(l, &draft, 0, 1);
    dtp_draft_end(l, &draft);
    dtp_lower_gradient_made(l, DTP_ROOT_POSITION);
}

void dtp_lower_embedding_backward(struct dtp_lowering *l)
{
    struct dtp_module_state *root = dtp_lower_state(l);
    if (l->transformer->embedding_norm)
        embedding_norm_backward(l, root);
    if (l->transformer->position == DTP_POSITION_LEARNED)
        position_gradient(l);
    dtp_lower_fetch(l, DTP_ROOT_EMBEDDING); /* that its gradient does not read it, the hook does not know */
    dtp_lower_unfetch(l);
    dtp_buffer_id head = root->gradient[DTP_ROOT_EMBEDDING]; /* a tied head's gradient waits here */
    uint64_t element = l->autocast ? l->bytes.grads : l->compute;
    bool tied = l->transformer->tied_head, apart = head.index != DTP_NO_INDEX;
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_EMBEDDING_BACKWARD, "");
    dtp_lower_gradient_result(l, &draft, DTP_ROOT_EMBEDDING, element);
    if (tied && !apart)
        dtp_draft_use(&draft, root->gradient_buffer, DTP_UPDATE);
    workspace(l, &draft, "embedding partial sums", partial_sums(l), DTP_UPDATE | DTP_FREE);
    /* Megatron's embedding makes a gradient in the parameters' dtype, which is then added to the buffer */
    workspace(l, &draft, "embedding gradient",
              root->gradient_buffer.index != DTP_NO_INDEX ? element * l->root.elements[DTP_ROOT_EMBEDDING] : 0,
              DTP_UPDATE | DTP_FREE);
    dtp_draft_use(&draft, l->tokens_in, DTP_READ);
    dtp_draft_use(&draft, l->gradient, DTP_READ | DTP_FREE);
    dtp_draft_memory(l, &draft, 0, 3);
    dtp_draft_end(l, &draft);
    l->gradient = DTP_NO_BUFFER;
    if (tied && apart) {
        dtp_draft_begin(l, &draft, DTP_OP_ACCUMULATE, "head and embedding");
        dtp_draft_use(&draft, root->gradient[DTP_ROOT_EMBEDDING], DTP_UPDATE);
        dtp_draft_use(&draft, head, DTP_READ | DTP_FREE);
        dtp_draft_memory(l, &draft, 0, 1);
        dtp_draft_end(l, &draft);
    }
    dtp_lower_gradient_made(l, DTP_ROOT_EMBEDDING);
}
