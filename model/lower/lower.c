/* A step from its state at rest to its last operation, the draft of one operation, and what is not lowered yet. What a
 * runtime does at its points is behind its hooks. */
#include "lower/lower_context.h"

#include "base/bytes.h"
#include "lower/lower_fp8.h"
#include "lower/lower_graphs.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>

/* ---- a draft of one operation ------------------------------------------------------------------------------------ */

struct dtp_operand *dtp_draft_role(struct dtp_draft *draft, enum dtp_role role, dtp_buffer_id buffer, uint32_t access,
                                   uint64_t offset_bytes)
{
    /* a buffer that could not be made is the program's to refuse: after its first fault it hands out none and says why
     */
    dtp_draft_add(draft, buffer, access);
    struct dtp_operand *operand = &draft->operands[draft->operand_count - 1];
    operand->role = (uint8_t)role;
    operand->offset_bytes = offset_bytes;
    return operand;
}

void dtp_draft_after(struct dtp_draft *draft, dtp_op_id earlier)
{
    if (earlier.index == DTP_NO_INDEX)
        return;
    assert(draft->after_count < DTP_DRAFT_AFTER);
    draft->after[draft->after_count++] = earlier;
}

dtp_buffer_id dtp_lower_buffer(struct dtp_lowering *l, const char *name, enum dtp_owner owner, enum dtp_stream pool,
                               uint64_t bytes, bool persistent)
{
    if (!bytes)
        return DTP_NO_BUFFER;
    struct dtp_buffer buffer = {.name = name,
                                .bytes = bytes,
                                .owner = owner,
                                .pool = pool,
                                .layer = l->layer,
                                .micro_step = l->micro_step,
                                .persistent = persistent};
    return dtp_program_add_buffer(l->program, &buffer);
}

dtp_buffer_id dtp_lower_host_buffer(struct dtp_lowering *l, const char *name, enum dtp_owner owner, uint64_t bytes)
{
    if (!bytes)
        return DTP_NO_BUFFER;
    struct dtp_buffer buffer = {.name = name,
                                .bytes = bytes,
                                .owner = owner,
                                .space = DTP_SPACE_HOST,
                                .pool = DTP_STREAM_HOST,
                                .layer = l->layer,
                                .micro_step = l->micro_step,
                                .persistent = true};
    return dtp_program_add_buffer(l->program, &buffer);
}

dtp_buffer_id dtp_draft_new(struct dtp_lowering *l, struct dtp_draft *draft, const char *name, enum dtp_owner owner,
                            uint64_t bytes, uint32_t access)
{
    dtp_buffer_id buffer = dtp_lower_buffer(l, name, owner, draft->op.stream, bytes, false);
    if (buffer.index != DTP_NO_INDEX)
        dtp_draft_add(draft, buffer, access | DTP_ALLOC);
    return buffer;
}

void dtp_draft_memory(const struct dtp_lowering *l, struct dtp_draft *draft, double bytes, uint32_t kernels)
{
    draft->op.demand.bytes = bytes;
    draft->op.demand.kernels = kernels;
    draft->op.demand.memory_kernel = l->fused ? DTP_KERNEL_FUSED : DTP_KERNEL_EAGER;
}

/* Kernels that a compiler or a runtime fuses, and our own, stay what they are. */
void dtp_draft_pass(const struct dtp_lowering *l, struct dtp_draft *draft, double bytes, double elements,
                    uint32_t kernels)
{
    dtp_draft_memory(l, draft, bytes, kernels);
    if (l->fused)
        return;
    draft->op.demand.memory_kernel = DTP_KERNEL_PASS;
    draft->op.demand.elements = elements;
}

void dtp_draft_matmul(const struct dtp_lowering *l, struct dtp_draft *draft, uint64_t m, uint64_t n, uint64_t k,
                      bool head)
{
    struct dtp_demand *demand = &draft->op.demand;
    demand->m = (double)m;
    demand->n = (double)n;
    demand->k = (double)k;
    demand->flops = 2 * demand->m * demand->n * demand->k;
    demand->kernels = 1;
    demand->dtype = l->plan->precision.compute;
    if (head) { /* the model's FLOPs, without those of columns that pad its vocabulary */
        double vocab = (double)l->transformer->vocab;
        demand->flops *= vocab / (double)dtp_plan_head_columns(l->plan, l->transformer->vocab);
    }
    if (head && demand->dtype == DTP_FP8 && !dtp_plan_narrows_head(l->plan))
        demand->dtype = DTP_BF16;
}

/* Whose rows the matrix multiplies; of experts the ones whose rows the rank sends. */
static uint64_t tokens_of(const struct dtp_lowering *l, const struct dtp_layer_matrix *matrix)
{
    uint64_t parts = matrix->expert ? l->plan->expert_shards : matrix->own_rows ? dtp_lower_token_parts(l) : 1;
    return dtp_divide_up(l->tokens, parts);
}

uint64_t dtp_lower_matrix_rows(const struct dtp_lowering *l, const struct dtp_layer_matrix *matrix)
{
    uint64_t rows = tokens_of(l, matrix);
    if (!matrix->expert)
        return rows;
    return dtp_layer_received(&l->tensors, dtp_bytes_product(rows, l->tensors.kind.experts_per_token));
}

void dtp_draft_product(const struct dtp_lowering *l, struct dtp_draft *draft, const struct dtp_layer_matrix *matrix,
                       enum dtp_product product)
{
    struct dtp_demand *demand = &draft->op.demand;
    bool grouped = matrix->expert;
    uint64_t tokens = tokens_of(l, matrix);
    uint64_t out = matrix->out, in = matrix->in;
    switch (product) {
    case DTP_PRODUCT_FORWARD: dtp_draft_matmul(l, draft, tokens, out, in, false); break;
    case DTP_PRODUCT_INPUT_GRADIENT: dtp_draft_matmul(l, draft, tokens, in, out, false); break;
    case DTP_PRODUCT_WEIGHT_GRADIENT: dtp_draft_matmul(l, draft, out, in, tokens, false); break;
    }
    if (demand->dtype == DTP_FP8 && (matrix->wide || !dtp_plan_runs_narrow(l->plan, product)))
        demand->dtype = DTP_BF16;
    if (!grouped)
        return;
    double rows = (double)(tokens * l->tensors.kind.experts_per_token) * l->tensors.received;
    double *counted = product == DTP_PRODUCT_WEIGHT_GRADIENT ? &demand->k : &demand->m;
    *counted = rows / (double)matrix->groups; /* of one expert, where all have as many */
    demand->groups = (uint32_t)matrix->groups;
    if (l->tensors.kind.calls_experts) {
        demand->kernels = demand->groups;
    } else {
        draft->op.kind = DTP_OP_GROUPED_MATMUL;
        dtp_draft_loop(draft, 1, dtp_plan_expert_products(l->plan, matrix->groups));
    }
    demand->flops = 2 * rows * (double)out * (double)in;
}

/* What stands for the whole step is neither made nor let go. */
static void leave_standing(const struct dtp_lowering *l, struct dtp_draft *draft)
{
    const struct dtp_buffer *buffers = dtp_program_buffers(l->program);
    size_t count = dtp_program_buffer_count(l->program);
    uint32_t kept = 0;
    for (uint32_t i = 0; i < draft->operand_count; i++) {
        struct dtp_operand operand = draft->operands[i];
        if (operand.buffer.index < count && buffers[operand.buffer.index].persistent)
            operand.access &= (uint8_t) ~(DTP_ALLOC | DTP_FREE);
        if (operand.access)
            draft->operands[kept++] = operand;
    }
    draft->operand_count = kept;
}

/* What came up beside the kernels is of the copies' pool (lower_carried.h): record_stream. */
static void record(const struct dtp_lowering *l, struct dtp_draft *draft)
{
    const struct dtp_buffer *buffers = dtp_program_buffers(l->program);
    for (uint32_t i = 0; i < draft->operand_count; i++) {
        struct dtp_operand *operand = &draft->operands[i];
        if (operand->access & DTP_FREE && buffers[operand->buffer.index].pool == DTP_STREAM_DOWNLOAD)
            operand->access |= DTP_DEFER;
    }
}

dtp_op_id dtp_draft_end(struct dtp_lowering *l, struct dtp_draft *draft)
{
    if (dtp_plan_carries_beside(l->plan))
        record(l, draft);
    if (dtp_lower_holds(l) || dtp_lower_copies(l))
        leave_standing(l, draft);
    if (draft->op.kind == DTP_OP_FREE && !draft->operand_count)
        return DTP_NO_OP;
    if (dtp_op_kind_class(draft->op.kind) == DTP_CLASS_ATTENTION && !draft->op.demand.attention.heads)
        draft->op.demand.attention = dtp_plan_attention(l->transformer, l->cluster, l->plan, dtp_lower_model_layer(l));
    for (uint32_t i = 0; l->hooks->narrow && i < draft->operand_count; i++)
        l->hooks->narrow(l, &draft->op, &draft->operands[i]);
    dtp_op_id id = dtp_program_add_op(l->program, &draft->op, draft->operands, draft->operand_count);
    const bool compute = draft->op.stream == DTP_STREAM_COMPUTE;
    if (!l->role.reader) { /* who reads each operation once is shown no dependencies */
        for (uint32_t i = 0; i < draft->after_count; i++)
            dtp_program_depend(l->program, id, draft->after[i]);
        if (compute)
            dtp_program_depend(l->program, id, l->awaited);
    }
    if (compute)
        l->awaited = DTP_NO_OP;
    l->last_op[draft->op.stream] = id;
    return id;
}

uint32_t dtp_lower_data_group(struct dtp_lowering *l, uint32_t ranks, uint32_t apart)
{
    return dtp_program_add_group(l->program, (struct dtp_program_group){ranks, apart * l->data_stride});
}

uint64_t dtp_lower_ring(uint64_t bytes, uint64_t ranks)
{
    return ranks < 2 ? 0 : dtp_bytes_product(dtp_divide_up(bytes, ranks), ranks - 1);
}

/* ---- the skeleton ------------------------------------------------------------------------------------------------ */

static void call(struct dtp_lowering *l, void (*hook)(struct dtp_lowering *l))
{
    if (hook)
        hook(l);
}

void dtp_lower_fetch(struct dtp_lowering *l, int part)
{
    if (l->hooks->fetch)
        l->hooks->fetch(l, part);
}

void dtp_lower_unfetch(struct dtp_lowering *l)
{
    call(l, l->hooks->unfetch);
}

uint64_t dtp_lower_narrow_elements(const struct dtp_lowering *l)
{
    uint64_t of[DTP_LAYER_MLPS], elements = 0;
    for (int mlp = 0; mlp < DTP_LAYER_MLPS; mlp++)
        of[mlp] = dtp_layer_narrow_elements(&l->kind[mlp].tensors.kind);
    for (uint64_t layer = 0; layer < l->transformer->layers; layer++)
        elements += dtp_lower_is_wide(l, layer) ? 0 : of[dtp_lower_mlp(l, layer)];
    const struct dtp_layer_matrix projection = dtp_lower_ahead_projection(l);
    return elements + l->transformer->ahead_layers * projection.in * projection.out;
}

/* cuBLAS workspaces (of forward's thread and, where it stays, of autograd's), RoPE's fp32 sines and cosines, logits
 * that the training loop holds from their loss to the next, and the micro-step's 64-bit tokens. */
static void make_standing_buffers(struct dtp_lowering *l)
{
    uint64_t cublas = dtp_plan_cublas_workspace(&l->cluster->gpu);
    uint64_t tables = l->rope ? dtp_bytes_product(4 * l->transformer->head_dim, l->plan->sequence / l->plan->cp) : 0;
    const int standing = l->plan->runtime->passing_workspace ? 1 : 2;
    for (int thread = 0; thread < standing; thread++)
        dtp_lower_buffer(l, "cuBLAS workspace", DTP_OWNER_WORKSPACE, DTP_STREAM_COMPUTE, cublas, true);
    uint64_t grouped = l->transformer->experts ? dtp_plan_expert_workspaces(l->plan, &l->cluster->gpu) : 0;
    dtp_lower_buffer(l, "workspaces of experts' matmuls", DTP_OWNER_WORKSPACE, DTP_STREAM_COMPUTE, grouped, true);
    dtp_lower_buffer(l, "sines and cosines", DTP_OWNER_WORKSPACE, DTP_STREAM_COMPUTE, tables, true);
    if (l->casts.kept) { /* casts of weights, kept over the step; sharded: of two units */
        uint64_t layers = l->transformer->layers, two = 2 * (uint64_t)l->plan->wrap_layers;
        bool units = dtp_plan_shards_params(l->plan) && two && two < layers;
        uint64_t elements = units ? two * dtp_layer_narrow_elements(&l->tensors.kind) : dtp_lower_narrow_elements(l);
        if (l->plan->megatron.fp8_param_gather) /* these are the parameters */
            elements = 0;
        elements += dtp_plan_narrows_head(l->plan) ? l->root.elements[DTP_ROOT_HEAD] : 0;
        dtp_lower_buffer(l, "fp8 weights", DTP_OWNER_WEIGHTS, DTP_STREAM_COMPUTE,
                         dtp_fp8_standing_bytes(l->plan, &l->cluster->gpu, elements), true);
    }
    uint64_t logits = l->plan->hold_logits ? dtp_bytes_product(l->tokens, 4 * l->transformer->vocab) : 0;
    dtp_lower_buffer(l, "logits of the step before", DTP_OWNER_LOGITS, DTP_STREAM_COMPUTE, logits, true);
    l->rows_under_way = DTP_NO_BUFFER;
    if (l->plan->megatron.expert_overlap) {
        const struct dtp_layer_tensors *tensors = &l->kind[DTP_LAYER_EXPERTS].tensors;
        uint64_t sent = dtp_bytes_product(l->tokens, l->compute * tensors->kind.experts_per_token * l->between);
        l->rows_under_way = dtp_lower_buffer(l, "rows under way", DTP_OWNER_WORKSPACE, DTP_STREAM_COMPUTE,
                                             dtp_layer_received(tensors, sent), true);
    }
    l->tokens_in = dtp_lower_buffer(l, "tokens", DTP_OWNER_WORKSPACE, DTP_STREAM_COMPUTE, 8 * l->tokens, true);
}

static void clear_states(struct dtp_lowering *l)
{
    for (uint64_t i = 0; i <= l->transformer->layers; i++) {
        struct dtp_module_state *state = &l->state[i];
        for (int part = 0; part < DTP_MAX_PARTS; part++)
            state->weight[part] = state->gradient[part] = state->kept[part] = state->whole[part] = DTP_NO_BUFFER;
        state->params = state->gradient_buffer = DTP_NO_BUFFER;
        state->moments = (struct dtp_lower_moments){DTP_NO_BUFFER, 0};
    }
    for (int stream = 0; stream < DTP_STREAM_COUNT; stream++)
        l->last_op[stream] = DTP_NO_OP;
    l->gathered = DTP_NO_BUFFER;
}

/* The ranks of the job as this one sees them. */
static void derive_groups(struct dtp_lowering *l)
{
    struct dtp_stretch data = dtp_plan_group(l->plan, l->cluster, DTP_AXES_DENSE_DATA);
    struct dtp_stretch tensor = dtp_plan_group(l->plan, l->cluster, DTP_AXES(TP));
    l->tp = tensor.size;
    l->vocab_ranks = l->tp > 1 ? l->plan->vocab_ranks : 1;
    l->tp_stride = tensor.stride;
    l->tp_group = l->expert_group = l->expert_tensor_group = DTP_NO_INDEX;
    l->data_ranks = data.size;
    l->data_stride = data.stride;
}

static void derive(struct dtp_lowering *l)
{
    const struct dtp_transformer *t = l->transformer;
    const struct dtp_plan *plan = l->plan;
    dtp_element_bytes_count(plan, &l->bytes);
    dtp_plan_of_ends(plan, &l->ends);
    dtp_element_bytes_count(&l->ends, &l->ends_bytes);
    l->tokens = dtp_plan_tokens(plan);
    l->compute = dtp_plan_compute_bytes(plan);
    l->autocast = dtp_plan_autocast(plan);
    l->residual = dtp_plan_stream_bytes(plan);
    l->results = dtp_plan_result_bytes(plan);
    l->compiled = plan->compile;
    l->fused = dtp_plan_fuses(plan);
    l->gated = dtp_activation_is_gated(t->activation);
    l->rope = t->position == DTP_POSITION_ROPE;
    dtp_fp8_casts_of(plan, &l->cluster->gpu, &l->casts);
    l->narrow_casts = l->casts;
    l->adapts = dtp_plan_adapts(plan);
    l->whole_gradients = (plan->accumulate > 1 && !plan->accumulate_sync) || dtp_lower_holds(l);
    l->between = t->hidden / (plan->sequence_shards > 1 ? plan->sequence_shards : 1);
    l->d_q = t->heads * t->head_dim;
    l->d_kv = t->kv_heads * t->head_dim;
    l->d_v = !t->kv_latent                               ? l->d_kv
             : dtp_plan_pads_values(t, l->cluster, plan) ? l->d_q
                                                         : t->heads * t->value_head_dim;
    if (plan->attention == DTP_ATTENTION_MATH)
        l->scores_bytes =
            dtp_bytes_product(dtp_bytes_product(l->tokens, plan->sequence), t->heads * dtp_plan_score_bytes(plan));
    l->loss = dtp_plan_loss(plan);
    l->wraps_ends = dtp_plan_wraps_ends(plan, t);
    l->layer = DTP_NO_LAYER;
}

/* ---- what is not lowered yet ------------------------------------------------------------------------------------- */

enum dtp_status dtp_lower_check_counts(const struct dtp_transformer *transformer, const struct dtp_plan *plan,
                                       struct dtp_faults *faults)
{
    const char *hint = "; dtplan plan --fidelity bounds predicts it";
    if (transformer->layers >= DTP_NO_LAYER)
        return dtp_fault_about(faults, DTP_BAD_INPUT, NULL, 0, "layers",
                               "%" PRIu64 " are more than the %d that a step program can name%s", transformer->layers,
                               DTP_NO_LAYER - 1, hint);
    if (plan->accumulate > UINT16_MAX)
        return dtp_fault_about(faults, DTP_BAD_INPUT, NULL, 0, "accumulate",
                               "%" PRIu32 " micro-steps are more than the %d that a step program can name%s",
                               plan->accumulate, UINT16_MAX, hint);
    return DTP_OK;
}

static enum dtp_status check_lowered(const struct dtp_transformer *t, const struct dtp_cluster *cluster,
                                     const struct dtp_plan *plan, struct dtp_faults *faults)
{
    const struct dtp_lower_hooks *hooks = plan->runtime->lower(plan);
    if (hooks->check)
        return hooks->check(t, cluster, plan, faults);
    return dtp_lower_check_counts(t, plan, faults);
}

/* At least so many operations: two norms, four matmuls, attention, activation and a sum forward, more in backward. */
#define LEAST_OPS_PER_LAYER 20u

static enum dtp_status check_limit(const struct dtp_transformer *t, const struct dtp_plan *plan, uint32_t op_limit,
                                   struct dtp_faults *faults)
{
    uint64_t limit = op_limit && op_limit < DTP_PROGRAM_MAX_OPS ? op_limit : DTP_PROGRAM_MAX_OPS;
    uint64_t least = dtp_bytes_product(dtp_bytes_product(t->layers, plan->accumulate), LEAST_OPS_PER_LAYER);
    if (least <= limit || (least <= DTP_LOWER_MOST_OPS && least / plan->pp <= limit)) /* each rank's program is one */
        return DTP_OK;
    return dtp_fault_about(faults, DTP_BAD_INPUT, NULL, 0, "accumulate",
                           "%" PRIu32 " micro-steps of %" PRIu64 " layers make more than %" PRIu64
                           " operations, the limit of a step program",
                           plan->accumulate, t->layers, limit);
}

enum dtp_status dtp_lower_check(const struct dtp_transformer *transformer, const struct dtp_cluster *cluster,
                                const struct dtp_plan *plan, uint32_t op_limit, struct dtp_faults *faults)
{
    enum dtp_status status = check_lowered(transformer, cluster, plan, faults);
    return status == DTP_OK ? check_limit(transformer, plan, op_limit, faults) : status;
}

static enum dtp_status lower(struct dtp_lowering *l)
{
    if (l->hooks->whole)
        return l->hooks->whole(l);
    derive(l);
    l->state = calloc(l->transformer->layers + 1, sizeof *l->state);
    if (!l->state)
        return dtp_fault(l->faults, DTP_ENVIRONMENT, NULL, 0, "no memory to lower the step");
    clear_states(l);
    dtp_lower_tensor_make(l);
    if (l->plan->ep > 1)
        l->expert_group = dtp_program_add_group(
            l->program,
            (struct dtp_program_group){l->plan->ep, dtp_plan_group(l->plan, l->cluster, DTP_AXES(EP)).stride});
    if (dtp_plan_row_gatherers(l->plan) > 1)
        l->expert_tensor_group =
            dtp_program_add_group(l->program, (struct dtp_program_group){l->plan->megatron.etp, 1});
    dtp_lower_context_make(l);
    dtp_lower_tensors(l);
    make_standing_buffers(l);
    enum dtp_status status = l->hooks->make(l);
    if (status != DTP_OK)
        return status;
    if (l->role.pipeline)
        status = dtp_lower_transfers_make(l);
    if (status == DTP_OK)
        status = dtp_lower_passes(l);
    return status == DTP_OK ? dtp_program_seal(l->program, l->faults) : status;
}

enum dtp_status dtp_lower_role_program(const struct dtp_transformer *transformer, const struct dtp_cluster *cluster,
                                       const struct dtp_plan *plan, const struct dtp_lower_role *role,
                                       uint32_t op_limit, struct dtp_program **out, struct dtp_faults *faults)
{
    *out = NULL;
    struct dtp_lowering l = {.slice = dtp_plan_slice(transformer, plan),
                             .model = transformer,
                             .cluster = cluster,
                             .plan = plan,
                             .narrow_plan = plan,
                             .wide_plan = dtp_plan_of_wide_layers(plan),
                             .role = *role,
                             .chunk = role->chunks,
                             .checkpointing = dtp_plan_checkpoint_rule(plan),
                             .faults = faults,
                             .hooks = plan->runtime->lower(plan),
                             .awaited = DTP_NO_OP};
    l.slice.layers = l.slice.ahead_layers = 0;
    for (uint32_t i = 0; i < role->chunk_count; i++) {
        l.slice.layers += role->chunks[i].layers;
        l.slice.ahead_layers += role->chunks[i].ahead_layers;
    }
    l.slice.mtp_layers = l.slice.ahead_layers;
    l.transformer = &l.slice;
    derive_groups(&l);
    enum dtp_status status = dtp_program_create(op_limit, &l.program, faults);
    if (status != DTP_OK)
        return status;
    if (role->reader)
        dtp_program_read_only_once(l.program, role->reader);
    struct dtp_execution execution = dtp_plan_execution(plan);
    dtp_program_set_execution(l.program, &execution);
    status = lower(&l);
    call(&l, l.hooks->release);
    free(l.state);
    dtp_host_arena_release(&l.arena);
    if (status == DTP_OK)
        *out = l.program;
    else
        dtp_program_destroy(l.program);
    return status;
}

/* A step that is not cut into stages is that of a pipeline of one rank. */
static enum dtp_status lower_one_rank(const struct dtp_transformer *transformer, const struct dtp_cluster *cluster,
                                      const struct dtp_plan *plan, const struct dtp_program_reader *reader,
                                      struct dtp_live_runs *runs, struct dtp_lower_blocks *blocks, uint32_t op_limit,
                                      struct dtp_program **out, struct dtp_faults *faults)
{
    *out = NULL;
    enum dtp_status status = dtp_lower_check(transformer, cluster, plan, op_limit, faults);
    if (status == DTP_OK && plan->pp > 1)
        status = dtp_fault_about(faults, DTP_BAD_INPUT, NULL, 0, "pp",
                                 "above 1 has a step program for each stage, and no single one");
    if (status != DTP_OK)
        return status;
    struct dtp_schedule_shape shape = {.kind = DTP_SCHEDULE_1F1B, .ranks = 1, .micro_batches = plan->accumulate};
    struct dtp_schedule schedule;
    status = dtp_schedule_create(&shape, &schedule, faults);
    if (status != DTP_OK)
        return status;
    struct dtp_lower_chunk all = {
        .layers = transformer->layers, .ahead_layers = transformer->ahead_layers, .embedding = true, .head = true};
    struct dtp_lower_role role = {.chunks = &all,
                                  .chunk_count = 1,
                                  .passes = schedule.passes,
                                  .pass_count = schedule.first[1],
                                  .reader = reader,
                                  .runs = runs,
                                  .blocks = blocks,
                                  .fills = runs && runs->fills ? runs : NULL};
    status = dtp_lower_role_program(transformer, cluster, plan, &role, op_limit, out, faults);
    dtp_schedule_destroy(&schedule);
    return status;
}

enum dtp_status dtp_lower(const struct dtp_transformer *transformer, const struct dtp_cluster *cluster,
                          const struct dtp_plan *plan, uint32_t op_limit, struct dtp_program **out,
                          struct dtp_faults *faults)
{
    return lower_one_rank(transformer, cluster, plan, NULL, NULL, NULL, op_limit, out, faults);
}

enum dtp_status dtp_lower_live_runs(const struct dtp_transformer *transformer, const struct dtp_cluster *cluster,
                                    const struct dtp_plan *plan, uint32_t op_limit, struct dtp_lower_blocks *blocks,
                                    struct dtp_live_runs *out, struct dtp_faults *faults)
{
    struct dtp_program_reader reader = dtp_live_runs_reader(out);
    struct dtp_program *buffers;
    enum dtp_status status =
        lower_one_rank(transformer, cluster, plan, &reader, out, blocks, op_limit, &buffers, faults);
    if (status == DTP_OK)
        dtp_live_runs_end(buffers, out);
    dtp_program_destroy(buffers);
    return status;
}

void dtp_lower_call_host(struct dtp_lowering *l, enum dtp_op_kind kind, uint32_t calls)
{
    struct dtp_draft draft;
    if (!calls)
        return;
    dtp_draft_begin(l, &draft, kind, "");
    draft.op.demand.kernels = calls; /* of a host's operator, what it does so many times over */
    dtp_draft_end(l, &draft);
}
