/* Our executor's step: standing buffers, drafts and the skeleton. */
#include "runtime/dtplan/lower_executor_experts.h"
#include "runtime/dtplan/lower_executor_tensor.h"

#include "runtime/dtplan/batch_layout.h"
#include "base/bytes.h"

#include <math.h>
#include <stdlib.h>

/* ---- drafts ------------------------------------------------------------------------------------------------------ */

void dtp_executor_await(struct dtp_executor *x, enum dtp_stream stream, dtp_op_id earlier)
{
    dtp_op_id *awaited = &x->await[stream];
    if (earlier.index != DTP_NO_INDEX && (awaited->index == DTP_NO_INDEX || awaited->index < earlier.index))
        *awaited = earlier;
}

void dtp_executor_begin(struct dtp_executor *x, struct dtp_draft *draft, enum dtp_op_kind kind, const char *name)
{
    double epsilon = x->t->norm_epsilon;
    dtp_draft_begin(x->l, draft, kind, name);
    if ((kind == DTP_OP_NORM || kind == DTP_OP_QK_NORM) && (epsilon < DTP_NORM_EPSILON || epsilon > DTP_NORM_EPSILON))
        draft->op.demand.epsilon = epsilon;
    if ((kind == DTP_OP_EMBEDDING || kind == DTP_OP_EMBEDDING_BACKWARD) && x->t->embedding_scale)
        draft->op.demand.scale = sqrt((double)x->h);
}

dtp_op_id dtp_executor_end(struct dtp_executor *x, struct dtp_draft *draft)
{
    dtp_executor_shape(x, draft);
    for (int s = 0; s < DTP_STREAM_COUNT; s++) {
        if (x->await[s].index == DTP_NO_INDEX) /* most */
            continue;
        dtp_draft_after(draft, x->await[s]);
        x->await[s] = DTP_NO_OP;
    }
    return dtp_draft_end(x->l, draft);
}

dtp_buffer_id dtp_executor_new(struct dtp_executor *x, struct dtp_draft *draft, enum dtp_role role, const char *name,
                               enum dtp_owner owner, uint64_t bytes, uint32_t access)
{
    dtp_buffer_id buffer = dtp_lower_buffer(x->l, name, owner, DTP_STREAM_COMPUTE, bytes, false);
    bool wide = role == DTP_ROLE_STATISTICS || role == DTP_ROLE_STATISTICS_GRADIENT;
    if (role != DTP_ROLE_WORKSPACE && role != DTP_ROLE_ROUTES) /* which are whole numbers */
        dtp_program_set_element(x->l->program, buffer, wide ? DTP_FP32 : x->rules.compute);
    if (role == DTP_ROLE_ROUTES)
        dtp_program_set_content(x->l->program, buffer, DTP_CONTENT_ROUTES, 0);
    if (buffer.index != DTP_NO_INDEX)
        dtp_draft_role(draft, role, buffer, access | DTP_ALLOC, 0);
    return buffer;
}

void dtp_executor_memory(struct dtp_draft *draft, uint64_t rows, double bytes, uint32_t kernels)
{
    struct dtp_demand *demand = &draft->op.demand;
    demand->tokens = (double)rows;
    demand->bytes = bytes;
    demand->kernels = kernels;
    demand->memory_kernel = DTP_KERNEL_FUSED;
}

void dtp_executor_matmul(struct dtp_executor *x, struct dtp_draft *draft, uint64_t m, uint64_t n, uint64_t k)
{
    dtp_draft_matmul(x->l, draft, m, n, k, false);
    draft->op.demand.dtype = x->rules.compute; /* fp8 is of blocks' projections, which say so themselves */
    dtp_draft_role(draft, DTP_ROLE_WORKSPACE, x->workspace, DTP_UPDATE, 0);
}

void dtp_executor_free(struct dtp_executor *x, dtp_buffer_id buffer, const char *name)
{
    struct dtp_draft draft;
    if (buffer.index == DTP_NO_INDEX)
        return;
    dtp_executor_begin(x, &draft, DTP_OP_FREE, name);
    dtp_draft_use(&draft, buffer, DTP_FREE);
    dtp_executor_end(x, &draft);
}

/* ---- standing buffers -------------------------------------------------------------------------------------------- */

static void derive(struct dtp_executor *x, struct dtp_lowering *l)
{
    const struct dtp_transformer *t = l->transformer;
    dtp_executor_rules(t, l->cluster, l->plan, &x->rules);
    x->l = l, x->t = t, x->plan = l->plan;
    x->element_bytes = dtp_dtype_bytes(x->rules.compute);
    x->h = t->hidden;
    dtp_executor_derive_blocks(x);
    x->module_count = dtp_parameter_module_count(t);
    x->adapter_count = x->shape->adapted ? t->layers : 0;
    x->packed_count = x->shape->packed ? t->layers : 0;
    dtp_executor_derive_layouts(x);
    for (int s = 0; s < DTP_STREAM_COUNT; s++)
        x->await[s] = l->last_op[s] = DTP_NO_OP;
    x->batch_read[0] = x->batch_read[1] = x->gradient_read = DTP_NO_OP;
    x->scattered = x->exchanged = x->narrow = x->packed_parts = x->factor_workspace = x->partials = x->tables =
        DTP_NO_BUFFER;
    x->expert_group = x->same_experts_group = x->expert_copies_group = DTP_NO_INDEX;
    x->starts_down = DTP_NO_OP, x->heard = x->rows = x->rows_gradient = DTP_NO_BUFFER;
    x->shard_group = x->gather_group = x->exchange_group = x->replica_group = DTP_NO_INDEX;
    l->layer = DTP_NO_LAYER;
    l->tensor_bytes[DTP_TENSOR_INPUT] = dtp_executor_tensor_bytes(x->shape, DTP_TENSOR_INPUT);
    l->before_next = DTP_NO_OP;
}

/* "weights" of a block, "embedding weights", "head weights", "adapter weights", "packed weights", "expert weights". */
static const char *state_name(const struct dtp_executor *x, uint64_t module, enum dtp_executor_state state)
{
    static const char *const names[6][DTP_EXECUTOR_STATE_COUNT] = {
#define NAME(suffix, text) text,
        {DTP_EXECUTOR_STATE_TABLE(NAME)},
#undef NAME
#define NAME(suffix, text) "embedding " text,
        {DTP_EXECUTOR_STATE_TABLE(NAME)},
#undef NAME
#define NAME(suffix, text) "head " text,
        {DTP_EXECUTOR_STATE_TABLE(NAME)},
#undef NAME
#define NAME(suffix, text) "adapter " text,
        {DTP_EXECUTOR_STATE_TABLE(NAME)},
#undef NAME
#define NAME(suffix, text) "packed " text,
        {DTP_EXECUTOR_STATE_TABLE(NAME)},
#undef NAME
#define NAME(suffix, text) "expert " text,
        {DTP_EXECUTOR_STATE_TABLE(NAME)},
#undef NAME
    };
    const uint64_t last = x->module_count - 1;
    if (x->expert_count && module > last)
        return names[5][state];
    int kind = module == 0 ? 1 : module < last ? 0 : module == last ? 2 : module <= last + x->adapter_count ? 3 : 4;
    return names[kind][state];
}

static void make_state(struct dtp_executor *x, uint64_t index)
{
    struct dtp_executor_module *module = &x->modules[index];
    const struct dtp_parameter_module *layout = module->layout;
    const uint64_t own = dtp_executor_is_trained(x, module) ? layout->shard_elements : 0;
    uint64_t moments = x->rules.moment_count ? own : 0, second = x->rules.moment_count > 1 ? own : 0;
    uint64_t scales = x->rules.moments == DTP_INT8 ? moments / DTP_EXECUTOR_MOMENT_BLOCK : 0;
    if (x->rules.orthogonal && dtp_executor_is_block(x, module))
        second = dtp_parameter_vector_elements(layout);
    const bool packed = layout == &x->packed;
    struct dtp_executor_factors factors = {.count = 0};
    if (x->rules.hook == DTP_COMM_HOOK_POWERSGD)
        dtp_executor_factors_of(layout, x->plan->powersgd_rank, &factors);
    const struct {
        enum dtp_owner owner;
        uint64_t elements;
        enum dtp_dtype dtype;
    } state[DTP_EXECUTOR_STATE_COUNT] = {
        [DTP_EXECUTOR_WEIGHTS] = {DTP_OWNER_PARAMS,
                                  dtp_executor_is_sharded(x, module) ? layout->shard_elements : layout->elements,
                                  packed ? DTP_INT8 : x->rules.compute},
        [DTP_EXECUTOR_MASTER] = {DTP_OWNER_OPTIMIZER, x->rules.master ? own : 0, DTP_FP32},
        [DTP_EXECUTOR_MOMENT1] = {DTP_OWNER_OPTIMIZER, moments, x->rules.moments},
        [DTP_EXECUTOR_MOMENT2] = {DTP_OWNER_OPTIMIZER, second, x->rules.moments},
        [DTP_EXECUTOR_SCALES1] = {packed ? DTP_OWNER_PARAMS : DTP_OWNER_OPTIMIZER,
                                  packed ? layout->elements / DTP_PARAMETER_PACKED_BLOCK : scales, DTP_FP32},
        [DTP_EXECUTOR_SCALES2] = {DTP_OWNER_OPTIMIZER, scales, DTP_FP32},
        [DTP_EXECUTOR_LOST] = {DTP_OWNER_REDUCE, factors.lost_elements, DTP_FP32},
        [DTP_EXECUTOR_FACTOR_Q] = {DTP_OWNER_REDUCE, factors.q_elements, DTP_FP32},
        [DTP_EXECUTOR_AMAX] = {DTP_OWNER_WORKSPACE,
                               dtp_executor_is_block(x, module) ? dtp_executor_fp8_history(x->shape) : 0, DTP_FP32}};
    for (int s = 0; s < DTP_EXECUTOR_STATE_COUNT; s++) {
        const char *name = state_name(x, index, (enum dtp_executor_state)s);
        uint64_t bytes = dtp_bytes_product(state[s].elements, dtp_dtype_bytes(state[s].dtype));
        bool on_device = s == DTP_EXECUTOR_LOST || s == DTP_EXECUTOR_FACTOR_Q || s == DTP_EXECUTOR_AMAX;
        bool on_host = s == DTP_EXECUTOR_WEIGHTS ? x->rules.host_params : x->rules.host_optimizer && !on_device;
        module->state[s] = on_host ? dtp_lower_host_buffer(x->l, name, state[s].owner, bytes)
                                   : dtp_lower_buffer(x->l, name, state[s].owner, DTP_STREAM_COMPUTE, bytes, true);
        dtp_program_set_element(x->l->program, module->state[s], state[s].dtype);
        dtp_program_set_content(x->l->program, module->state[s], dtp_executor_content((enum dtp_executor_state)s),
                                (uint32_t)dtp_executor_model_module(x, index));
    }
    module->host_gradient = module->host_weights = DTP_NO_BUFFER;
    module->downloaded = DTP_NO_OP;
    if (x->rules.host_optimizer)
        dtp_executor_make_host(x, index);
    module->gathered = dtp_executor_is_sharded(x, module) ? DTP_NO_BUFFER : module->state[DTP_EXECUTOR_WEIGHTS];
}

static void make_modules(struct dtp_executor *x)
{
    for (uint64_t i = 0; i < dtp_executor_all_modules(x); i++) {
        struct dtp_executor_module *module = &x->modules[i];
        uint16_t layer = dtp_executor_layer_of(x, i);
        struct dtp_gradient_dtypes dtype = dtp_executor_gradient_dtypes(x->t, &x->rules, i);
        const bool experts = x->expert_count && i >= x->module_count;
        module->shard_ranks = experts ? dtp_executor_expert_shards(x->plan, &x->rules) : x->rules.shard_ranks;
        module->replicas = experts ? dtp_executor_expert_copies(x->plan, &x->rules) : x->rules.replicas;
        module->layout = experts ? (dtp_executor_mlp_of(x, layer) == DTP_LAYER_EXPERTS ? &x->experts : &x->no_experts)
                         : i >= x->module_count + x->adapter_count ? &x->packed
                         : i >= x->module_count                    ? &x->adapters
                         : i == 0                                  ? &x->embedding
                         : layer == DTP_NO_LAYER                   ? &x->head
                                                                   : &x->block[dtp_executor_mlp_of(x, layer)];
        module->gradient_element_bytes = dtp_dtype_bytes(dtype.whole);
        module->shard_element_bytes = dtp_dtype_bytes(dtype.shard);
        module->gradient = module->reduced = DTP_NO_BUFFER;
        module->gathered_by = module->reduced_by = DTP_NO_OP;
        x->l->layer = layer;
        make_state(x, i);
    }
    x->l->layer = DTP_NO_LAYER;
}

static bool reads_tokens(const struct dtp_executor *x)
{
    bool reads = false;
    for (uint32_t i = 0; i < x->l->role.chunk_count; i++)
        reads |= x->l->role.chunks[i].embedding || x->l->role.chunks[i].head;
    return reads;
}

/* Tokens of a micro-batch: one at a time is under way and the next on its way, but of a stage any number are. */
static void make_batches(struct dtp_executor *x)
{
    struct dtp_lowering *l = x->l;
    uint64_t batch = dtp_batch_layout_of(x->rules.tokens).bytes;
    for (uint32_t i = 0; i < x->batch_count; i++) {
        l->micro_step = (uint16_t)i;
        x->batch[i] = dtp_lower_buffer(l, "batch", DTP_OWNER_WORKSPACE, DTP_STREAM_COMPUTE, batch, true);
        dtp_program_set_content(l->program, x->batch[i], DTP_CONTENT_BATCH, 0);
    }
    for (uint32_t i = 0; i < l->plan->accumulate; i++) {
        l->micro_step = (uint16_t)i;
        dtp_buffer_id host = dtp_lower_host_buffer(l, "host batch", DTP_OWNER_WORKSPACE, batch);
        dtp_program_set_content(l->program, host, DTP_CONTENT_HOST_BATCH, 0);
        x->host_batch = i ? x->host_batch : host;
    }
    l->micro_step = 0;
}

static void make_standing_buffers(struct dtp_executor *x)
{
    struct dtp_lowering *l = x->l;
    if (reads_tokens(x))
        make_batches(x);
    x->scalars =
        dtp_lower_buffer(l, "scalars", DTP_OWNER_WORKSPACE, DTP_STREAM_COMPUTE, DTP_EXECUTOR_SCALARS_BYTES, true);
    x->host_scalars = dtp_lower_host_buffer(l, "host scalars", DTP_OWNER_WORKSPACE, DTP_EXECUTOR_SCALARS_BYTES);
    x->host_results = dtp_lower_host_buffer(l, "host results", DTP_OWNER_WORKSPACE, DTP_EXECUTOR_SCALARS_BYTES);
    if (x->t->position == DTP_POSITION_ROPE)
        x->tables = dtp_lower_buffer(
            l, "cosines and sines", DTP_OWNER_WORKSPACE, DTP_STREAM_COMPUTE,
            dtp_bytes_product(4 * (x->t->kv_latent ? x->t->rope_head_dim : x->t->head_dim), x->rules.sequence), true);
    if (x->rules.gradient_norm)
        x->partials = dtp_lower_buffer(l, "square sums", DTP_OWNER_WORKSPACE, DTP_STREAM_COMPUTE,
                                       dtp_executor_partials_bytes(x), true);
    dtp_executor_fp8_make(x);
    x->workspace = dtp_lower_buffer(l, "matmul workspace", DTP_OWNER_WORKSPACE, DTP_STREAM_COMPUTE,
                                    DTP_EXECUTOR_MATMUL_WORKSPACE_BYTES, true);
    if (x->plan->executor.gradient_stream)
        x->gradient_workspace = dtp_lower_buffer(l, "weight gradient workspace", DTP_OWNER_WORKSPACE,
                                                 DTP_STREAM_COMPUTE, DTP_EXECUTOR_MATMUL_WORKSPACE_BYTES, true);
    dtp_program_set_element(l->program, x->tables, DTP_FP32);
    dtp_program_set_element(l->program, x->partials, DTP_FP32);
    dtp_program_set_content(l->program, x->scalars, DTP_CONTENT_SCALARS, 0);
    dtp_program_set_content(l->program, x->host_scalars, DTP_CONTENT_HOST_SCALARS, 0);
    dtp_program_set_content(l->program, x->host_results, DTP_CONTENT_HOST_RESULTS, 0);
    dtp_program_set_content(l->program, x->tables, DTP_CONTENT_TABLES, 0);
    dtp_program_set_content(l->program, x->partials, DTP_CONTENT_PARTIALS, 0);
}

/* ---- the skeleton ------------------------------------------------------------------------------------------------
 *
 * Whole gradients whose reduction a micro-step leaves under way go when the next one's first block has hidden it, or
 * after the optimizer. */

/* What follows on the compute stream waits for `received`, and for what else the pass waits for. */
static void mark(struct dtp_executor *x, const char *name, dtp_op_id received)
{
    struct dtp_draft draft;
    dtp_draft_begin(x->l, &draft, DTP_OP_MARK, name);
    dtp_draft_after(&draft, received);
    dtp_draft_after(&draft, x->l->before_next);
    x->l->before_next = DTP_NO_OP;
    dtp_draft_end(x->l, &draft);
    if (x->l->role.pipeline && x->l->pass)
        dtp_lower_let_sent_go(x->l, (uint32_t)(x->l->pass - x->l->role.passes));
}

static dtp_op_id copy(struct dtp_executor *x, enum dtp_op_kind kind, const char *name, dtp_buffer_id from,
                      dtp_buffer_id to, uint64_t bytes, dtp_op_id after)
{
    struct dtp_draft draft;
    dtp_draft_begin(x->l, &draft, kind, name);
    draft.op.stream = kind == DTP_OP_UPLOAD ? DTP_STREAM_UPLOAD : DTP_STREAM_DOWNLOAD;
    draft.op.demand.sent_bytes = (double)bytes;
    dtp_draft_role(&draft, DTP_ROLE_INPUT, from, DTP_READ, 0);
    dtp_draft_role(&draft, DTP_ROLE_RESULT, to, DTP_WRITE, 0);
    dtp_draft_after(&draft, after);
    return dtp_draft_end(x->l, &draft);
}

/* Each micro-step's batch is brought while the one before it computes; a stage's all of them from the begin. */
static dtp_op_id upload_batch(struct dtp_executor *x, uint32_t micro_step)
{
    uint16_t here = x->l->micro_step;
    x->l->micro_step = (uint16_t)micro_step;
    dtp_buffer_id host = {x->host_batch.index + micro_step};
    dtp_op_id read = x->l->role.pipeline ? DTP_NO_OP : x->batch_read[micro_step % 2];
    dtp_op_id id = copy(x, DTP_OP_UPLOAD, "batch", host, x->batch[micro_step % x->batch_count],
                        dtp_batch_layout_of(x->rules.tokens).bytes, read);
    x->l->micro_step = here;
    return id;
}

/* Of one micro-batch through the chunk at hand. */
static void forward(struct dtp_executor *x, dtp_op_id *uploaded)
{
    struct dtp_lowering *l = x->l;
    const struct dtp_lower_chunk *chunk = l->chunk;
    struct dtp_handed input = dtp_lower_taken(l);
    mark(x, "forward", input.received);
    dtp_executor_await(x, DTP_STREAM_UPLOAD, *uploaded);
    if (!l->role.pipeline && l->micro_step + 1u < x->plan->accumulate)
        *uploaded = upload_batch(x, l->micro_step + 1u);
    else
        *uploaded = DTP_NO_OP;
    dtp_executor_fp8_begins(x, l->micro_step);
    if (chunk->embedding) {
        dtp_executor_before_embedding(x);
        dtp_executor_embedding(x);
        dtp_executor_after_embedding(x);
    } else {
        x->stream_input = input.rows;
    }
    for (uint64_t place = 0; place < chunk->layers; place++) {
        uint64_t layer = chunk->first + place;
        if (place == 1) /* first, so that the head's weights can take the place of what goes */
            dtp_executor_drain(x, 0);
        if (chunk->head && place + 1 == chunk->layers && x->plan->prefetch)
            dtp_executor_gather_head(x);
        dtp_executor_stand_at(x, layer);
        dtp_executor_before_block(x, layer);
        dtp_executor_block_forward(x, layer);
        dtp_executor_after_block(x, layer);
        l->layer = DTP_NO_LAYER;
    }
    x->flight->output = x->stream_input;
    if (!chunk->head)
        dtp_lower_give(l, x->stream_input);
    dtp_executor_drain(x, 0);
}

/* The same, back; head and loss go with it, of which nothing is kept so. `delayed`: layers whose weight gradients are
 * left, although the pass is not one of inputs alone. */
static void backward(struct dtp_executor *x, uint64_t delayed)
{
    struct dtp_lowering *l = x->l;
    const struct dtp_lower_chunk *chunk = l->chunk;
    const bool splits = l->pass->kind == DTP_PASS_BACKWARD && !x->shape->adapted; /* lower_executor_split.c */
    struct dtp_handed gradient = dtp_lower_taken(l);
    x->inputs_alone = splits;
    if (chunk->head) {
        mark(x, "loss", DTP_NO_OP);
        x->stream_input = x->flight->output;
        dtp_executor_gather_head(x);
        dtp_executor_loss(x);
        dtp_executor_after_loss(x);
    } else {
        x->gradient = gradient.rows;
    }
    mark(x, "backward", gradient.received);
    for (uint64_t left = chunk->layers; left > 0; left--) {
        uint64_t layer = chunk->first + left - 1;
        x->inputs_alone = splits || left <= delayed;
        dtp_executor_stand_at(x, layer);
        dtp_executor_before_block(x, layer);
        dtp_executor_block_backward(x, layer);
        dtp_executor_after_block(x, layer);
        l->layer = DTP_NO_LAYER;
    }
    if (!chunk->embedding) {
        dtp_lower_give(l, x->gradient);
    } else if (!x->shape->adapted) {
        dtp_executor_embedding_backward(x);
    } else { /* there is one where the chunk has no block */
        dtp_executor_free(x, x->gradient, "below the first adapter");
        x->gradient = DTP_NO_BUFFER;
    }
    x->inputs_alone = false;
    if (l->role.pipeline)
        dtp_executor_close_table(x);
    x->batch_read[l->micro_step % 2] = l->last_op[DTP_STREAM_COMPUTE];
}

static void stand_in_flight(struct dtp_executor *x)
{
    const struct dtp_pass *pass = x->l->pass;
    uint32_t *of = &x->flight_of[(size_t)pass->chunk * x->plan->accumulate + pass->micro_batch];
    if (pass->kind == DTP_PASS_FORWARD)
        *of = x->unused[--x->unused_count];
    else if (dtp_lower_ends_flight(pass))
        x->unused[x->unused_count++] = *of;
    x->flight = &x->flights[*of];
    x->tensors = x->flight->tensors;
}

/* Pass `i`, and what goes to another rank behind it, or before the weight gradients that it leaves till then. */
static void run_pass(struct dtp_executor *x, uint32_t i, dtp_op_id *uploaded)
{
    const enum dtp_pass_kind kind = (enum dtp_pass_kind)x->l->pass->kind;
    const uint64_t delayed = dtp_executor_delayed_layers(x);
    if (kind == DTP_PASS_FORWARD)
        forward(x, uploaded);
    else if (kind == DTP_PASS_WEIGHT)
        mark(x, "backward", DTP_NO_OP);
    else
        backward(x, delayed);
    if (delayed)
        dtp_lower_after_pass(x->l, i);
    if (delayed || kind == DTP_PASS_WEIGHT)
        dtp_executor_weights_backward(x);
    if (!delayed)
        dtp_lower_after_pass(x->l, i);
}

static void passes(struct dtp_executor *x)
{
    struct dtp_lowering *l = x->l;
    bool reads = reads_tokens(x), expected = false;
    dtp_op_id uploaded = reads ? upload_batch(x, 0) : DTP_NO_OP;
    for (uint32_t i = 1; l->role.pipeline && reads && i < x->plan->accumulate; i++)
        uploaded = upload_batch(x, i);
    dtp_executor_step_begins(x);
    for (uint32_t i = 0; i < l->role.pass_count; i++) {
        dtp_lower_before_pass(l, i);
        dtp_lower_stand_at_pass(l, i);
        stand_in_flight(x);
        run_pass(x, i, &uploaded);
        if (!expected && dtp_lower_ends_flight(l->pass)) { /* whatever comes has been there once */
            if (i + 1 < l->role.pass_count)
                dtp_program_expect_again(l->program, (l->role.pass_count - 1) / (i + 1));
            expected = true;
        }
    }
    dtp_lower_let_sent_go(l, DTP_LOWER_STEP_END);
}

static dtp_op_id scalars_down(struct dtp_executor *x)
{
    return copy(x, DTP_OP_DOWNLOAD, "scalars", x->scalars, x->host_results, DTP_EXECUTOR_SCALARS_BYTES,
                x->l->last_op[DTP_STREAM_COMPUTE]);
}

static void step(struct dtp_executor *x)
{
    dtp_op_id scalars =
        copy(x, DTP_OP_UPLOAD, "scalars", x->host_scalars, x->scalars, DTP_EXECUTOR_SCALARS_BYTES, DTP_NO_OP);
    dtp_executor_await(x, DTP_STREAM_UPLOAD, scalars);
    passes(x);
    mark(x, "step", DTP_NO_OP);
    if (x->l->role.pipeline)
        dtp_executor_join_copies(x);
    dtp_executor_update(x);
    dtp_executor_drain(x, 0);
    if (x->rules.host_optimizer)
        dtp_executor_host_step(x, scalars_down(x));
    else
        scalars_down(x);
}

static void release(struct dtp_executor *x)
{
    for (uint32_t i = 0; x->flights && i < dtp_lower_most_under_way(&x->l->role); i++) {
        free(x->flights[i].tensors);
        free(x->flights[i].deferred);
        free(x->flights[i].kept);
        free(x->flights[i].host_starts);
    }
    free(x->flights);
    free(x->flight_of);
    free(x->unused);
    free(x->batch);
    free(x->modules);
    free(x->slot);
    free(x->expert_slot);
    free(x->slot_block);
    free(x->slot_read);
}

/* Operators that a backward of inputs alone leaves for later, of a layer; each keeps three buffers at most. */
static size_t deferred_room(const struct dtp_executor *x)
{
    return (size_t)x->t->layers * DTP_EXECUTOR_OPERATORS + 1;
}

static bool take_flights(struct dtp_executor *x)
{
    const struct dtp_lower_role *role = &x->l->role;
    uint32_t count = dtp_lower_most_under_way(role);
    bool taken = true,
         splits = x->plan->pp > 1 && (x->plan->executor.delay_wgrad ||
                                      dtp_schedule_row(x->plan->schedule)->backward != DTP_BACKWARD_WHOLE);
    x->flights = calloc(count + 1, sizeof *x->flights);
    x->unused = calloc(count + 1, sizeof *x->unused);
    x->flight_of = calloc((size_t)role->chunk_count * x->plan->accumulate + 1, sizeof *x->flight_of);
    if (!x->flights || !x->unused || !x->flight_of)
        return false;
    for (uint32_t i = 0; i < count; i++) {
        struct dtp_executor_flight *f = &x->flights[i];
        x->unused[x->unused_count++] = count - 1 - i;
        f->tensors = calloc(x->t->layers + 1, sizeof *f->tensors);
        f->host_starts = calloc(x->t->layers + 1, sizeof *f->host_starts);
        taken = taken && f->tensors && f->host_starts;
        if (!splits)
            continue;
        f->deferred = calloc(deferred_room(x), sizeof *f->deferred);
        f->kept = calloc(3 * deferred_room(x), sizeof *f->kept);
        taken = taken && f->deferred && f->kept;
    }
    return taken;
}

static bool take_memory(struct dtp_executor *x)
{
    x->batch_count = x->l->role.pipeline ? x->plan->accumulate : x->plan->accumulate > 1 ? 2 : 1;
    x->batch = calloc(x->batch_count, sizeof *x->batch);
    x->modules = calloc(dtp_executor_all_modules(x), sizeof *x->modules);
    x->slot = calloc(x->rules.ring, sizeof *x->slot);
    x->expert_slot = calloc(x->rules.ring, sizeof *x->expert_slot);
    x->slot_block = calloc(x->rules.ring, sizeof *x->slot_block);
    x->slot_read = calloc(x->rules.ring, sizeof *x->slot_read);
    return x->batch && x->modules && x->slot && x->expert_slot && x->slot_block && x->slot_read && take_flights(x);
}

enum dtp_status dtp_lower_executor(struct dtp_lowering *l)
{
    struct dtp_executor x = {.modules = NULL};
    struct dtp_flight none = {.received = DTP_NO_BUFFER,
                              .taken = DTP_NO_BUFFER}; /* what others hold of a micro-batch */
    derive(&x, l);
    l->flight = &none;
    enum dtp_status status =
        take_memory(&x) ? DTP_OK : dtp_fault(l->faults, DTP_ENVIRONMENT, NULL, 0, "no memory to lower the step");
    if (status == DTP_OK && l->role.pipeline)
        status = dtp_lower_transfers_make(l);
    if (status == DTP_OK) {
        dtp_executor_describe(&x);
        make_modules(&x);
        make_standing_buffers(&x);
        dtp_executor_experts_make(&x);
        dtp_executor_make_groups(&x);
        dtp_executor_tensor_make(&x);
        dtp_executor_context_make(&x);
        step(&x);
    }
    release(&x);
    l->flight = NULL;
    return status == DTP_OK ? dtp_program_seal(l->program, l->faults) : status;
}
