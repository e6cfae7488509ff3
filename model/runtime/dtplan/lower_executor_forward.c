/* Forward of blocks, and what of it checkpointed blocks repeat. */
#include "runtime/dtplan/lower_executor_experts.h"
#include "runtime/dtplan/lower_executor_pass.h"

#include "base/bytes.h"
#include "runtime/dtplan/routes_layout.h"

uint64_t dtp_executor_kept(const struct dtp_executor *x, uint64_t layer)
{
    bool checkpointed = dtp_lower_checkpointed(x->l, layer);
    return dtp_executor_block_keeps(dtp_executor_shape_of(x, layer),
                                    checkpointed ? x->l->checkpointing.keeps : DTP_KEEPS_ALL);
}

/* ---- operators --------------------------------------------------------------------------------------------------- */

/* fp8: the amax of what is made, for who casts it. */
static void take_amax(const struct dtp_executor_pass *pass, struct dtp_draft *draft,
                      const struct dtp_executor_operator *op)
{
    const struct dtp_executor_block *block = pass->x->shape;
    int caster = dtp_executor_caster(block, op->result);
    if (caster >= 0)
        dtp_executor_fp8_amax(pass->x, draft,
                              dtp_executor_fp8_slot(pass->x, DTP_EXECUTOR_CAST_INPUT, pass->layer,
                                                    dtp_executor_cast_matrix(block, &block->op[caster])),
                              DTP_UPDATE);
}

/* A sum that nobody reads is not made. */
static void take_addend(const struct dtp_executor_pass *pass, struct dtp_draft *draft, int index)
{
    const struct dtp_executor_operator *op = &pass->x->shape->op[index];
    if (op->addend != DTP_EXECUTOR_NONE && is_wanted(pass, index, op->result))
        take(pass, draft, DTP_ROLE_ADDEND, index, op->addend);
}

static void norm(const struct dtp_executor_pass *pass, struct dtp_draft *draft, int index)
{
    const struct dtp_executor_operator *op = &pass->x->shape->op[index];
    dtp_executor_latent_norm(pass->x, draft, op);
    take(pass, draft, DTP_ROLE_INPUT, index, op->input);
    take_weight(pass, draft, op, DTP_NO_BUFFER);
    take_addend(pass, draft, index);
    make(pass, draft, DTP_ROLE_RESULT, index, op->result);
    make(pass, draft, DTP_ROLE_STATISTICS, index, op->statistics);
    take_amax(pass, draft, op);
}

static void fp8_projection(const struct dtp_executor_pass *pass, struct dtp_draft *draft, int index,
                           dtp_buffer_id weight)
{
    struct dtp_executor *x = pass->x;
    const struct dtp_executor_operator *op = &x->shape->op[index];
    const struct dtp_executor_operator *cast = &x->shape->op[dtp_executor_caster(x->shape, op->input)];
    struct dtp_executor_module *module = dtp_executor_block(x, pass->layer);
    take(pass, draft, DTP_ROLE_INPUT, index, op->operand);
    dtp_draft_role(draft, DTP_ROLE_WEIGHT, weight, DTP_READ | DTP_FREE, 0);
    if (dtp_executor_has(module, op->weight + 1))
        dtp_executor_weight(x, draft, DTP_ROLE_BIAS, module, op->weight + 1);
    dtp_executor_matmul(x, draft, x->rules.tokens, op->matrix->out, op->matrix->in);
    dtp_executor_fp8_product(
        x, draft,
        dtp_executor_fp8_slot(x, DTP_EXECUTOR_CAST_INPUT, pass->layer, dtp_executor_cast_matrix(x->shape, cast)),
        dtp_executor_fp8_slot(x, DTP_EXECUTOR_CAST_WEIGHT, pass->layer, (int)(op->matrix - x->shape->kind.matrix)));
    take_addend(pass, draft, index);
    make(pass, draft, DTP_ROLE_RESULT, index, op->result);
}

/* Rows that were gathered for an adapter, and stay for the projection behind it if that runs. */
static void take_rows(const struct dtp_executor_pass *pass, struct dtp_draft *draft, int index)
{
    struct dtp_executor *x = pass->x;
    dtp_buffer_id *own = tensor_of(pass, x->shape->op[index].input);
    const bool stay = pass->runs & UINT32_C(1) << (index + 1);
    dtp_draft_role(draft, DTP_ROLE_INPUT, x->rows, DTP_READ | (stay ? 0 : DTP_FREE), 0);
    x->rows = stay ? x->rows : DTP_NO_BUFFER;
    if (is_wanted(pass, index, x->shape->op[index].input))
        return;
    dtp_draft_use(draft, *own, DTP_FREE);
    *own = DTP_NO_BUFFER;
}

/* low = x A^T, of all adapters beside a packed matrix. */
static void adapter_a(const struct dtp_executor_pass *pass, struct dtp_draft *draft, int index)
{
    struct dtp_executor *x = pass->x;
    const struct dtp_executor_operator *op = &x->shape->op[index];
    if (op[1].gathers)
        take_rows(pass, draft, index);
    else
        take(pass, draft, DTP_ROLE_INPUT, index, op->input);
    dtp_executor_weight(x, draft, DTP_ROLE_WEIGHT, dtp_executor_adapters(x, pass->layer), op->weight);
    dtp_executor_matmul(x, draft, x->rules.tokens, dtp_executor_low_width(op->adapter), op->adapter->in);
    draft->op.demand.scale = dtp_executor_adapter_scale(x);
    make(pass, draft, DTP_ROLE_RESULT, index, op->result);
}

static void adapter_b(const struct dtp_executor_pass *pass, int index, bool leads)
{
    const struct dtp_executor_operator *op = &pass->x->shape->op[index];
    dtp_buffer_id *low = tensor_of(pass, op->input);
    bool goes = !is_wanted(pass, index, op->input);
    dtp_executor_adapter_forward(pass->x, pass->layer, op, *low, goes ? DTP_FREE : 0, tensor_of(pass, op->result),
                                 leads);
    if (goes)
        *low = DTP_NO_BUFFER;
}

/* Whether the adapter behind the projection has written its result before it. */
static bool leads(const struct dtp_executor_pass *pass, int projection)
{
    uint32_t both = 3u << projection;
    return dtp_executor_adapter_leads(pass->x, projection) && (pass->runs & both) == both;
}

static void projection(const struct dtp_executor_pass *pass, struct dtp_draft *draft, int index, dtp_buffer_id unpacked)
{
    struct dtp_executor *x = pass->x;
    const struct dtp_executor_operator *op = &x->shape->op[index];
    if (op->half == DTP_EXECUTOR_A) {
        adapter_a(pass, draft, index);
        return;
    }
    take(pass, draft, DTP_ROLE_INPUT, index, op->input);
    take_weight(pass, draft, op, unpacked);
    if (op->kind == DTP_OP_GROUPED_MATMUL) {
        take(pass, draft, DTP_ROLE_ROUTES, index, dtp_executor_routes_of(x->shape));
        dtp_executor_grouped(x, draft, op, DTP_PRODUCT_FORWARD);
    } else {
        dtp_executor_matmul(x, draft, dtp_executor_matrix_rows(x->shape, op->matrix), op->matrix->out, op->matrix->in);
    }
    take_addend(pass, draft, index);
    if (op->aux != DTP_EXECUTOR_NONE)
        make(pass, draft, DTP_ROLE_AUX, index, op->aux);
    if (leads(pass, index))
        dtp_draft_role(draft, DTP_ROLE_RESULT, *tensor_of(pass, op->result), DTP_UPDATE, 0);
    else
        make(pass, draft, DTP_ROLE_RESULT, index, op->result);
}

/* In place; backward reads q and k as they were. */
static void qk_norm(const struct dtp_executor_pass *pass, struct dtp_draft *draft, int index)
{
    const struct dtp_executor_operator *op = &pass->x->shape->op[index];
    dtp_draft_role(draft, DTP_ROLE_RESULT, *tensor_of(pass, op->result), DTP_UPDATE, 0);
    if (dtp_executor_norm_elements(pass->x->shape, op))
        take_weight(pass, draft, op, DTP_NO_BUFFER);
    make(pass, draft, DTP_ROLE_SAVED, index, op->saved);
    make(pass, draft, DTP_ROLE_STATISTICS, index, op->statistics);
}

/* In place, on the core and its log-sum-exps. */
static void sinks(const struct dtp_executor_pass *pass, struct dtp_draft *draft, int index)
{
    const struct dtp_executor_operator *op = &pass->x->shape->op[index];
    struct dtp_executor_module *module = dtp_executor_module_of(pass->x, pass->layer, op);
    dtp_draft_role(draft, DTP_ROLE_RESULT, *tensor_of(pass, op->result), DTP_UPDATE, 0);
    bool goes = !is_wanted(pass, index, op->statistics);
    dtp_draft_role(draft, DTP_ROLE_STATISTICS, *tensor_of(pass, op->statistics), DTP_UPDATE | (goes ? DTP_FREE : 0), 0);
    if (goes)
        *tensor_of(pass, op->statistics) = DTP_NO_BUFFER;
    dtp_executor_weight(pass->x, draft, DTP_ROLE_WEIGHT, module, op->weight);
}

/* Onto rows by experts, in place. */
static void expert_bias(const struct dtp_executor_pass *pass, struct dtp_draft *draft, int index)
{
    const struct dtp_executor_operator *op = &pass->x->shape->op[index];
    struct dtp_executor_module *module = dtp_executor_module_of(pass->x, pass->layer, op);
    dtp_draft_role(draft, DTP_ROLE_RESULT, *tensor_of(pass, op->result), DTP_UPDATE, 0);
    take(pass, draft, DTP_ROLE_ROUTES, index, DTP_TENSOR_ROUTES);
    if (op->reads & DTP_EXECUTOR_BIT(DTP_TENSOR_ROUTER_WEIGHTS))
        take(pass, draft, DTP_ROLE_STATISTICS, index, DTP_TENSOR_ROUTER_WEIGHTS);
    dtp_executor_weight(pass->x, draft, DTP_ROLE_BIAS, module, op->weight);
    dtp_executor_routed(pass->x, draft, op->matrix->out);
}

/* Queries, keys and values of latent attention, packed. */
static void latent_heads(const struct dtp_executor_pass *pass, struct dtp_draft *draft, int index)
{
    const struct dtp_executor_operator *op = &pass->x->shape->op[index];
    take(pass, draft, DTP_ROLE_INPUT, index, op->input);
    take(pass, draft, DTP_ROLE_SAVED, index, DTP_TENSOR_KV_LATENT);
    take(pass, draft, DTP_ROLE_KEYS, index, DTP_TENSOR_KV_RAW);
    dtp_draft_role(draft, DTP_ROLE_TABLES, pass->x->tables, DTP_READ, 0);
    make(pass, draft, DTP_ROLE_RESULT, index, op->result);
    dtp_executor_latent_shape(pass->x, draft);
}

static void rotary(const struct dtp_executor_pass *pass, struct dtp_draft *draft, int index)
{
    if (pass->x->shape->kind.kv_latent) {
        latent_heads(pass, draft, index);
        return;
    }
    dtp_draft_role(draft, DTP_ROLE_RESULT, *tensor_of(pass, pass->x->shape->op[index].result), DTP_UPDATE, 0);
    dtp_draft_role(draft, DTP_ROLE_TABLES, pass->x->tables, DTP_READ, 0);
}

static void attention(const struct dtp_executor_pass *pass, struct dtp_draft *draft, int index)
{
    struct dtp_executor *x = pass->x;
    const struct dtp_executor_operator *op = &x->shape->op[index];
    take(pass, draft, DTP_ROLE_INPUT, index, op->input);
    make(pass, draft, DTP_ROLE_RESULT, index, op->result);
    make(pass, draft, DTP_ROLE_STATISTICS, index, op->statistics);
    dtp_executor_new(x, draft, DTP_ROLE_WORKSPACE, "attention workspace", DTP_OWNER_WORKSPACE,
                     x->rules.attention_workspace_bytes, DTP_UPDATE | DTP_FREE);
    draft->op.demand.tokens = (double)x->rules.tokens;
    draft->op.demand.flops = dtp_executor_attention_flops(x);
    draft->op.demand.kernels = 1;
}

/* Of all tokens with some of the heads. A pass that did not make the input finds it exchanged. */
static void exchanged_attention(const struct dtp_executor_pass *pass, int index)
{
    struct dtp_executor *x = pass->x;
    const struct dtp_executor_operator *op = &x->shape->op[index];
    struct dtp_draft draft;
    const struct dtp_executor_exchanged of = {.qkv = tensor_of(pass, op->input),
                                              .statistics = tensor_of(pass, op->statistics),
                                              .inputs_came =
                                                  !(pass->runs & 1u << dtp_executor_maker(x->shape, op->input)),
                                              .inputs_go = !is_wanted(pass, index, op->input),
                                              .statistics_go = !is_wanted(pass, index, op->statistics)};
    dtp_executor_exchange_forward(x, &draft, &of);
    make(pass, &draft, DTP_ROLE_RESULT, index, op->result);
    dtp_executor_end(x, &draft);
}

/* The same in steps, one for each rank that shares the sequence. */
static void shared_attention(const struct dtp_executor_pass *pass, int index)
{
    struct dtp_executor *x = pass->x;
    const struct dtp_executor_operator *op = &x->shape->op[index];
    dtp_buffer_id *qkv = tensor_of(pass, op->input);
    struct dtp_draft draft;
    if (dtp_executor_exchanges_heads(x)) {
        exchanged_attention(pass, index);
        return;
    }
    dtp_executor_context_forward(x, &draft, *qkv);
    if (!is_wanted(pass, index, op->input)) {
        dtp_draft_use(&draft, *qkv, DTP_FREE);
        *qkv = DTP_NO_BUFFER;
    }
    make(pass, &draft, DTP_ROLE_RESULT, index, op->result);
    make(pass, &draft, DTP_ROLE_STATISTICS, index, op->statistics);
    dtp_executor_end(x, &draft);
}

/* Whether its input is there in 8 bits alone: its result is made again of these. */
static bool reads_stored(const struct dtp_executor_pass *pass, const struct dtp_executor_operator *op)
{
    return op->kind == DTP_OP_ACTIVATION && op->saved != DTP_EXECUTOR_NONE &&
           tensor_of(pass, op->input)->index == DTP_NO_INDEX;
}

static void activation(const struct dtp_executor_pass *pass, struct dtp_draft *draft, int index)
{
    const struct dtp_executor_operator *op = &pass->x->shape->op[index];
    const bool stored = reads_stored(pass, op);
    take(pass, draft, DTP_ROLE_INPUT, index, stored ? op->saved : op->input);
    if (op->saved != DTP_EXECUTOR_NONE && !stored)
        make(pass, draft, DTP_ROLE_SAVED, index, op->saved);
    if (dtp_executor_weighs(pass->x->shape, op)) {
        take(pass, draft, DTP_ROLE_STATISTICS, index, dtp_executor_weights_of(pass->x->shape));
        take(pass, draft, DTP_ROLE_ROUTES, index, dtp_executor_routes_of(pass->x->shape));
        dtp_executor_worked(pass->x, draft, pass->x->shape->kind.mlp_width);
    } else if (op->result == DTP_TENSOR_SHARED_PRODUCT) {
        draft->op.demand.n = (double)pass->x->shape->kind.shared_ffn;
    }
    make(pass, draft, DTP_ROLE_RESULT, index, op->result);
    take_amax(pass, draft, op);
}

/* Experts of each token, of its scores. */
static void router(const struct dtp_executor_pass *pass, struct dtp_draft *draft, int index)
{
    struct dtp_executor *x = pass->x;
    const struct dtp_executor_operator *op = &x->shape->op[index];
    take(pass, draft, DTP_ROLE_INPUT, index, op->input);
    make(pass, draft, DTP_ROLE_STATISTICS, index, op->result);
    make(pass, draft, DTP_ROLE_ROUTES, index, op->saved);
    dtp_executor_new(x, draft, DTP_ROLE_WORKSPACE, "counts of experts", DTP_OWNER_WORKSPACE,
                     4 * DTP_EXECUTOR_ROUTER_CHUNKS * x->shape->kind.experts, DTP_UPDATE | DTP_FREE);
    dtp_executor_routed(x, draft, x->shape->kind.experts);
    if (x->t->groups_per_token && x->t->groups_per_token < x->t->expert_groups) {
        draft->op.demand.m = (double)x->t->groups_per_token;
        draft->op.demand.groups = (uint32_t)x->t->expert_groups;
    }
}

/* Rows to experts, and back with what shared experts return and what came before. */
static void permute(const struct dtp_executor_pass *pass, struct dtp_draft *draft, int index)
{
    struct dtp_executor *x = pass->x;
    const struct dtp_executor_operator *op = &x->shape->op[index];
    take(pass, draft, DTP_ROLE_INPUT, index, op->input);
    take(pass, draft, DTP_ROLE_ROUTES, index, DTP_TENSOR_ROUTES);
    if (op->reads & DTP_EXECUTOR_BIT(DTP_TENSOR_SHARED_DOWN))
        take(pass, draft, DTP_ROLE_SAVED, index, DTP_TENSOR_SHARED_DOWN);
    if (op->reads & DTP_EXECUTOR_BIT(DTP_TENSOR_SHARED_WEIGHT))
        take(pass, draft, DTP_ROLE_AUX, index, DTP_TENSOR_SHARED_WEIGHT);
    if (op->aux != DTP_EXECUTOR_NONE) {
        take(pass, draft, DTP_ROLE_STATISTICS, index, DTP_TENSOR_ROUTER_WEIGHTS);
        make(pass, draft, DTP_ROLE_AUX, index, op->aux);
    }
    take_addend(pass, draft, index);
    make(pass, draft, DTP_ROLE_RESULT, index, op->result);
    dtp_executor_routed(x, draft, x->h);
}

/* What an operation of another stream has read goes when compute has waited for it, where nobody else wants it. */
static void let_go(const struct dtp_executor_pass *pass, int index, int tensor)
{
    if (is_wanted(pass, index, tensor))
        return;
    dtp_executor_free(pass->x, *tensor_of(pass, tensor), dtp_executor_tensor_name(tensor));
    *tensor_of(pass, tensor) = DTP_NO_BUFFER;
}

/* Rows to the ranks of their experts, with what they are multiplied by, or results back. */
static void exchange(const struct dtp_executor_pass *pass, int index)
{
    struct dtp_executor *x = pass->x;
    const struct dtp_executor_operator *op = &x->shape->op[index];
    const bool weighed = op->saved != DTP_EXECUTOR_NONE;
    struct dtp_draft draft;
    if (weighed)
        *tensor_of(pass, op->saved) = dtp_executor_place_received(x, pass->layer);
    dtp_executor_begin_exchange(x, &draft, pass->layer, op->name, !weighed);
    dtp_draft_role(&draft, DTP_ROLE_INPUT, *tensor_of(pass, op->input), DTP_READ, 0);
    if (weighed)
        dtp_draft_role(&draft, DTP_ROLE_SAVED, *tensor_of(pass, DTP_EXECUTOR_SENT_WEIGHTS), DTP_READ, 0);
    make(pass, &draft, DTP_ROLE_RESULT, index, op->result);
    if (weighed)
        make(pass, &draft, DTP_ROLE_STATISTICS, index, op->statistics);
    dtp_executor_end_exchange(x, &draft, weighed);
    let_go(pass, index, op->input);
    if (weighed)
        let_go(pass, index, DTP_EXECUTOR_SENT_WEIGHTS);
}

/* By rows where a projection of this pass reads it, by columns where it stays for backward. */
static void quantize(const struct dtp_executor_pass *pass, struct dtp_draft *draft, int index)
{
    struct dtp_executor *x = pass->x;
    const struct dtp_executor_operator *op = &x->shape->op[index];
    uint64_t slot =
        dtp_executor_fp8_slot(x, DTP_EXECUTOR_CAST_INPUT, pass->layer, dtp_executor_cast_matrix(x->shape, op));
    bool rows = is_wanted(pass, index, op->result), columns = pass->kept & DTP_EXECUTOR_BIT(op->aux);
    uint64_t width = dtp_layer_tensor_width(&x->shape->kind, (enum dtp_layer_tensor)op->input);
    take(pass, draft, DTP_ROLE_INPUT, index, op->input);
    if (rows)
        make(pass, draft, DTP_ROLE_RESULT, index, op->result);
    if (columns)
        make(pass, draft, DTP_ROLE_TRANSPOSED, index, op->aux);
    dtp_executor_fp8_scales(x, draft, slot, !dtp_executor_amax_found(x->shape, op) && !x->l->recompute);
    dtp_executor_fp8_demand(draft, dtp_executor_cast_form(x->shape, DTP_EXECUTOR_CAST_INPUT, !rows), x->rules.tokens,
                            width, rows, columns);
}

/* What an operator needs made before it: its weight unpacked; in fp8 the amax of its input that no kernel has found,
 * its weight's cast. */
static dtp_buffer_id before_operator(const struct dtp_executor_pass *pass, int index)
{
    struct dtp_executor *x = pass->x;
    const struct dtp_executor_operator *op = &x->shape->op[index];
    if (x->shape->packed && op->matrix && !op->adapter)
        return dtp_executor_unpack(x, pass->layer, op);
    if (!x->shape->fp8)
        return DTP_NO_BUFFER;
    bool seeks = op->kind == DTP_OP_QUANTIZE && dtp_executor_seeks_amax(x->shape);
    if (seeks && !dtp_executor_amax_found(x->shape, op) && !x->l->recompute)
        dtp_executor_fp8_measure(
            x, &(struct dtp_executor_cast){
                   .tensor = *tensor_of(pass, op->input),
                   .rows = x->rules.tokens,
                   .columns = dtp_layer_tensor_width(&x->shape->kind, (enum dtp_layer_tensor)op->input),
                   .slot = dtp_executor_fp8_slot(x, DTP_EXECUTOR_CAST_INPUT, pass->layer,
                                                 dtp_executor_cast_matrix(x->shape, op))});
    return op->kind == DTP_OP_MATMUL ? dtp_executor_fp8_weight(x, op, pass->layer, false) : DTP_NO_BUFFER;
}

static void run_operator(const struct dtp_executor_pass *pass, int index)
{
    struct dtp_executor *x = pass->x;
    const struct dtp_executor_operator *op = &x->shape->op[index];
    struct dtp_draft draft;
    if (dtp_executor_turns_only(op) && !dtp_transformer_layer_turns(x->t, dtp_lower_model_layer(x->l)))
        return;
    if (dtp_executor_turns_on_the_way(x->shape, op))
        return;
    if (op->half == DTP_EXECUTOR_B) {
        if (!leads(pass, index - 1) && !op[-1].sums) /* whose terms it has added to */
            adapter_b(pass, index, false);
        return;
    }
    if (leads(pass, index))
        adapter_b(pass, index + 1, true);
    if (op->half == DTP_EXECUTOR_A && op[1].gathers)
        x->rows = dtp_executor_gather_rows(x, op[1].name, *tensor_of(pass, op->input));
    dtp_buffer_id narrow = before_operator(pass, index);
    if (op->gathers || op->sums) {
        dtp_executor_cut_projection(pass, index);
        return;
    }
    if (op->kind == DTP_OP_ATTENTION && dtp_executor_shares_sequence(x)) {
        shared_attention(pass, index);
        return;
    }
    if (op->kind == DTP_OP_ALL_TO_ALL) {
        exchange(pass, index);
        return;
    }
    if (op->kind == DTP_OP_PERMUTE && x->expert_count)
        dtp_executor_hear_starts(x, pass->layer);
    struct dtp_executor_traffic traffic = reads_stored(pass, op) ? dtp_executor_activation_again_traffic(x->shape, op)
                                                                 : dtp_executor_forward_traffic(x->shape, op);
    dtp_executor_begin(x, &draft, op->kind, op->name);
    switch (op->kind) {
    case DTP_OP_NORM: norm(pass, &draft, index); break;
    case DTP_OP_MATMUL:
        if (x->shape->fp8)
            fp8_projection(pass, &draft, index, narrow);
        else
            projection(pass, &draft, index, narrow);
        break;
    case DTP_OP_QUANTIZE: quantize(pass, &draft, index); break;
    case DTP_OP_QK_NORM: qk_norm(pass, &draft, index); break;
    case DTP_OP_ROTARY: rotary(pass, &draft, index); break;
    case DTP_OP_ATTENTION: attention(pass, &draft, index); break;
    case DTP_OP_SINKS: sinks(pass, &draft, index); break;
    case DTP_OP_EXPERT_BIAS: expert_bias(pass, &draft, index); break;
    case DTP_OP_GROUPED_MATMUL: projection(pass, &draft, index, narrow); break;
    case DTP_OP_ROUTER: router(pass, &draft, index); break;
    case DTP_OP_PERMUTE:
    case DTP_OP_UNPERMUTE: permute(pass, &draft, index); break;
    default: activation(pass, &draft, index); break;
    }
    if (traffic.bytes > 0)
        dtp_executor_memory(&draft, dtp_executor_tensor_rows(x->shape, op->result), traffic.bytes, traffic.kernels);
    dtp_executor_end(x, &draft);
}

static void run(const struct dtp_executor_pass *pass)
{
    for (int i = 0; i < pass->x->shape->count; i++)
        if (pass->runs & 1u << i)
            run_operator(pass, i);
}

/* ---- the skeleton's -------------------------------------------------------------------------------------------- */

/* The block's result is the residual stream, which the next block keeps as its input or the final norm reads. */
static void run_all(struct dtp_executor *x, uint64_t layer)
{
    struct dtp_executor_pass pass = {x, layer, dtp_executor_kept(x, layer) | DTP_EXECUTOR_BIT(DTP_EXECUTOR_OUT), ~0u};
    run(&pass);
}

void dtp_executor_block_forward(struct dtp_executor *x, uint64_t layer)
{
    dtp_buffer_id *tensors = x->tensors[layer];
    for (int i = 0; i < DTP_EXECUTOR_TENSORS; i++)
        tensors[i] = DTP_NO_BUFFER;
    tensors[DTP_TENSOR_INPUT] = x->stream_input;
    dtp_executor_repeat(x, layer, DTP_EXECUTOR_FORWARD, run_all);
    x->stream_input = tensors[DTP_EXECUTOR_OUT];
    tensors[DTP_EXECUTOR_OUT] = DTP_NO_BUFFER;
}

void dtp_executor_block_again(struct dtp_executor *x, uint64_t layer, uint32_t operators)
{
    struct dtp_executor_pass pass = {x, layer, dtp_executor_shape_of(x, layer)->saved, operators};
    x->l->recompute = true;
    run(&pass);
    x->l->recompute = false;
}
