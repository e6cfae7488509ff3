/* dtplan's own executor: what its programs can do, and what its choices mean. */
#include "runtime/dtplan/dtplan.h"

#include "cost/calibration.h"
#include "net/parameter_layout.h"
#include "plan/rules.h"
#include "plan/runtime.h"
#include "plan/slice.h"
#include "runtime/dtplan/lower_executor_state.h"
#include "runtime/dtplan/routes_layout.h"

#include <inttypes.h>

/* ---- what it refuses --------------------------------------------------------------------------------------------- */

/* Windows and copies reach what peers map into their address space: the GPUs of one node that NVLink joins. */
static void check_peer_memory(struct dtp_resolver *r, const char *key)
{
    const struct dtp_plan *p = r->plan;
    uint32_t ranks = p->shard_group > 1 ? p->shard_group : r->cluster->gpus;
    enum dtp_link link = dtp_cluster_link(r->cluster);
    if (r->cluster->gpus > 1 && (link == DTP_LINK_PCIE || link == DTP_LINK_XGMI))
        dtp_plan_refuse(r, key, "needs GPUs that NVLink joins; these have %s, leave it out", dtp_link_text(link));
    else if (ranks > r->cluster->gpus_per_node)
        dtp_plan_refuse(r, key,
                        "reaches the GPUs of one node, but %" PRIu32 " GPUs share a copy over nodes of %" PRIu32
                        "; take hybrid_shard with a shard_group inside a node, or leave it out",
                        ranks, r->cluster->gpus_per_node);
}

/* One GPU has nothing to scatter, as under every strategy. */
static bool scatters(const struct dtp_resolver *r)
{
    return r->plan->strategy != DTP_DDP && (r->cluster->gpus == 1 || dtp_plan_shard_ranks(r->cluster, r->plan) > 1);
}

static const char *not_scattered(const struct dtp_plan *plan)
{
    return plan->strategy == DTP_DDP ? "under ddp" : "in shard groups of one GPU";
}

/* When a block's gradients are first reduced, they must be final, and nothing but its update must be left to read them.
 */
static void check_update_in_backward(struct dtp_resolver *r)
{
    const char *key = "update_in_backward";
    const struct dtp_plan *p = r->plan;
    if (!p->executor.update_in_backward)
        return;
    if (p->offload != DTP_OFFLOAD_NONE)
        dtp_plan_refuse(
            r, key, "is of an optimizer on the GPU; with offload %s the host updates in backward anyway, leave it out",
            dtp_offload_text(p->offload));
    if (p->precision.compute == DTP_FP16)
        dtp_plan_refuse(r, key,
                        "updates blocks before it is known whether another's gradients overflowed in fp16, when none "
                        "may be; leave it out");
    if (r->cluster->gpus > 1 && !scatters(r))
        dtp_plan_refuse(r, key,
                        "saves the shards of reduced gradients, but gradients are not scattered %s; leave it out",
                        not_scattered(p));
    if (p->accumulate > 1 && dtp_plan_reductions(p) == p->accumulate)
        dtp_plan_refuse(r, key, "needs one reduction in a step, but each of %" PRIu32 " micro-steps reduces; %s",
                        p->accumulate,
                        p->strategy == DTP_ZERO2 ? "use zero1 or shard_grad_op" : "leave out accumulate_sync");
}

static void check_collective_choices(struct dtp_resolver *r)
{
    const struct dtp_plan *p = r->plan;
    if (p->executor.matmul_sms > r->cluster->gpu.sm_count)
        dtp_plan_refuse(r, "matmul_sms", "is %" PRIu32 ", but %s has %" PRIu32 " SMs", p->executor.matmul_sms,
                        r->cluster->gpu.key, r->cluster->gpu.sm_count);
    if (p->executor.symmetric_windows)
        check_peer_memory(r, "symmetric_windows");
    if (p->executor.gather_engine == DTP_ENGINE_COPY && p->strategy == DTP_DDP)
        dtp_plan_refuse(r, "gather_engine", "copy: nothing is gathered under ddp; leave it out");
    else if (p->executor.gather_engine == DTP_ENGINE_COPY)
        check_peer_memory(r, "gather_engine");
    if (p->executor.reduce_engine == DTP_ENGINE_COPY && !scatters(r))
        dtp_plan_refuse(r, "reduce_engine", "copy: gradients are not scattered %s; leave it out", not_scattered(p));
    else if (p->executor.reduce_engine == DTP_ENGINE_COPY)
        check_peer_memory(r, "reduce_engine");
}

/* What has been run. Rows of heads and of the MLP may begin at multiples of 8 bytes: kernels then read them in smaller
 * pieces, and matmuls are slower (dtp_matmul_s). Rows of the stream and of experts fill whole words of 16 bytes. */
static void check_widths(struct dtp_resolver *r)
{
    const struct dtp_transformer *t = r->transformer;
    const struct {
        const char *key;
        uint64_t width, multiple;
    } widths[] = {{"hidden", t->hidden, DTP_PARAMETER_ALIGNMENT},
                  {"ffn", dtp_transformer_has_mlp(t) ? t->ffn : 0, DTP_PARAMETER_ALIGNMENT / 2},
                  {"head_dim", t->head_dim, DTP_PARAMETER_ALIGNMENT / 2},
                  {"expert_ffn", t->expert_ffn, DTP_PARAMETER_ALIGNMENT},
                  {"shared_expert_ffn", t->shared_expert_ffn, DTP_PARAMETER_ALIGNMENT},
                  {"q_latent", t->q_latent, DTP_PARAMETER_ALIGNMENT},
                  {"kv_latent", t->kv_latent, DTP_PARAMETER_ALIGNMENT},
                  {"rope_head_dim", t->rope_head_dim, DTP_PARAMETER_ALIGNMENT},
                  {"value_head_dim", t->value_head_dim, DTP_PARAMETER_ALIGNMENT}};
    for (size_t i = 0; i < sizeof widths / sizeof *widths; i++)
        if (widths[i].width % widths[i].multiple)
            dtp_plan_refuse(r, widths[i].key,
                            "%" PRIu64 " is no multiple of %" PRIu64 ", as it must be for runtime dtplan",
                            widths[i].width, widths[i].multiple);
}

/* Choices that have not been run on ranks that divide the model. Those that share sequences and nothing else run one
 * program, whose buffers have the same places on all of them, and reduce blocks as ranks of other sequences do. */
static void check_beside(struct dtp_resolver *r, const char *axis)
{
    const struct dtp_plan *p = r->plan;
    const struct dtp_executor_plan *e = &p->executor;
    const bool one_program = p->tp < 2 && p->pp < 2 && p->ep < 2;
    const struct {
        const char *key;
        bool asked;
    } choices[] = {{"precision", p->precision.compute == DTP_FP8 || p->precision.compute == DTP_FP16},
                   {"optimizer", p->optimizer != DTP_ADAMW_FUSED},
                   {"gradient_stream", e->gradient_stream},
                   {"update_in_backward", e->update_in_backward && !one_program},
                   {"symmetric_windows", e->symmetric_windows},
                   {"gather_engine", e->gather_engine == DTP_ENGINE_COPY && !one_program},
                   {"reduce_engine", e->reduce_engine == DTP_ENGINE_COPY && !one_program},
                   {"cuda_graph", e->cuda_graph}};
    for (size_t i = 0; i < sizeof choices / sizeof *choices; i++)
        if (choices[i].asked)
            dtp_plan_refuse(r, choices[i].key, "is not run together with %s under runtime dtplan yet; leave it out",
                            axis);
}

/* Weights of a stage are used in the order of its schedule, by which nothing gathers them yet; what the ranks of a
 * stage reduce goes once, behind its last backward; memory that peers map has the same places on ranks of one program
 * alone. */
static void check_stages(struct dtp_resolver *r)
{
    const struct dtp_plan *p = r->plan;
    struct dtp_executor_rules rules;
    if (p->executor.delay_wgrad && p->pp < 2)
        dtp_plan_refuse(r, "delay_wgrad", "is of stages, which send gradients; use pp above 1, or leave it out");
    if (p->executor.delay_wgrad && dtp_plan_splits_backward(p))
        dtp_plan_refuse(r, "delay_wgrad", "of %s changes nothing: the schedule splits backward itself; leave it out",
                        dtp_schedule_row(p->schedule)->word);
    if (p->pp < 2)
        return;
    dtp_executor_rules(r->transformer, r->cluster, p, &rules);
    if (rules.sharded)
        dtp_plan_refuse(r, "strategy",
                        "%s gathers weights, which no pipeline does yet; use zero1, shard_grad_op or ddp",
                        dtp_strategy_text(p->strategy));
    if (rules.reduces_always)
        dtp_plan_refuse(r, "accumulate", "with pp micro-batches are reduced together, and here each would be; %s",
                        p->strategy == DTP_ZERO2 ? "use zero1 or shard_grad_op" : "leave out accumulate_sync");
    check_beside(r, "pp");
}

/* The nearest number of ranks below that divides heads of both kinds, the MLP and the GPUs. */
static uint32_t lower_tp(const struct dtp_resolver *r)
{
    const struct dtp_transformer *t = r->transformer;
    uint32_t tp = r->plan->tp - 1;
    uint64_t ffn = dtp_transformer_has_mlp(t) ? t->ffn : 0;
    while (tp > 1 && (t->heads % tp || t->kv_heads % tp || ffn % ((uint64_t)tp * DTP_PARAMETER_ALIGNMENT) ||
                      r->cluster->gpus % tp))
        tp--;
    return tp;
}

/* Each rank has whole heads of both kinds, kernels take whole vectors of the MLP, and norms of heads see those of one
 * rank. */
static void check_tensor(struct dtp_resolver *r)
{
    const struct dtp_transformer *t = r->transformer;
    const struct dtp_plan *p = r->plan;
    uint64_t ffn = dtp_transformer_has_mlp(t) ? t->ffn : 0;
    if (p->executor.tp_chunks && (p->tp < 2 || !p->tp_overlap))
        dtp_plan_refuse(r, "tp_chunks",
                        "is of rows that come beside products; use tp above 1 with tp_overlap, or leave it out");
    if (p->tp < 2)
        return;
    if (t->kv_heads % p->tp)
        dtp_plan_refuse(r, "tp",
                        "%" PRIu32 " does not divide %" PRIu64
                        " key/value heads, of which runtime dtplan keeps no copies; the nearest that fits is %" PRIu32,
                        p->tp, t->kv_heads, lower_tp(r));
    else if (ffn % p->tp == 0 && ffn % (DTP_PARAMETER_ALIGNMENT / 2) == 0 && /* else it is refused already */
             ffn % ((uint64_t)p->tp * DTP_PARAMETER_ALIGNMENT))
        dtp_plan_refuse(r, "tp",
                        "%" PRIu32 " leaves a rank ffn %" PRIu64
                        " / tp, which is no multiple of %u, as it must be for runtime dtplan; the nearest that fits is "
                        "%" PRIu32 ", or set ffn to a multiple of %" PRIu64,
                        p->tp, ffn, DTP_PARAMETER_ALIGNMENT, lower_tp(r), (uint64_t)p->tp * DTP_PARAMETER_ALIGNMENT);
    uint64_t first;
    if (!dtp_parameter_vocab_slice(t->vocab, p->tp, p->tp - 1, &first))
        dtp_plan_refuse(r, "tp", "%" PRIu32 " leaves the last rank none of %" PRIu64 " tokens of the vocabulary", p->tp,
                        t->vocab);
    if (!p->sequence_parallel)
        dtp_plan_refuse(r, "sequence_parallel", "false has no step program under runtime dtplan with tp; leave it out");
    const uint64_t chunk_rows = (uint64_t)p->tp * dtp_executor_tensor_chunks(p);
    if (dtp_plan_tokens(p) % p->tp == 0 && dtp_plan_tokens(p) % chunk_rows)
        dtp_plan_refuse(r, "tp_chunks",
                        "%" PRIu32 " of tp %" PRIu32 " ranks do not divide the %" PRIu64 " tokens of a micro-step",
                        p->executor.tp_chunks, p->tp, dtp_plan_tokens(p));
    if (t->qk_norm && t->qk_norm_wide)
        dtp_plan_refuse(r, "tp",
                        "with qk_norm_wide, whose norms see all ranks' heads, is not run under runtime dtplan");
    if (t->kv_latent)
        dtp_plan_refuse(r, "tp", "with latent attention is not run under runtime dtplan yet; use 1, with ep or pp");
    check_beside(r, "tp");
}

/* Tables of learned positions have a row for each token of a sequence, of which a rank here has some alone. */
static void check_context(struct dtp_resolver *r)
{
    const struct dtp_plan *p = r->plan;
    if (p->executor.cp_chunks && (p->cp < 2 || p->cp_comm != DTP_CP_A2A))
        dtp_plan_refuse(r, "cp_chunks",
                        "is of ranks that exchange tokens for heads; use cp with cp_comm a2a, or leave "
                        "it out");
    if (p->cp < 2)
        return;
    if (r->transformer->position == DTP_POSITION_LEARNED)
        dtp_plan_refuse(r, "cp",
                        "with learned positions, of which a rank has some rows alone, is not run under runtime "
                        "dtplan yet; use a model with rope");
    if (p->cp_comm == DTP_CP_A2A && p->executor.cp_chunks &&
        r->transformer->kv_heads / p->tp / p->cp % p->executor.cp_chunks)
        dtp_plan_refuse(r, "cp_chunks", "%" PRIu32 " do not divide the %" PRIu64 " key/value heads of a rank",
                        p->executor.cp_chunks, r->transformer->kv_heads / p->tp / p->cp);
    check_beside(r, "cp");
}

/* A kernel packs whole blocks of neighbours. */
static void check_packed(struct dtp_resolver *r)
{
    struct dtp_layer_kind kind;
    if (r->plan->adapters.base != DTP_BASE_NF4)
        return;
    dtp_layer_kind_of(r->transformer, DTP_LAYER_DENSE, true, true, &kind);
    for (int i = 0; i < kind.matrices; i++)
        if (kind.matrix[i].out * kind.matrix[i].in % (2 * DTP_PARAMETER_PACKED_BLOCK))
            dtp_plan_refuse(r, "base", "nf4 packs whole blocks of %u weights, and matrix %s has %" PRIu64 "; use none",
                            2 * DTP_PARAMETER_PACKED_BLOCK, kind.matrix[i].name,
                            kind.matrix[i].out * kind.matrix[i].in);
}

/* Adapters are trained beside weights that rest whole and are kept as matmuls read them. */
static void check_adapters(struct dtp_resolver *r)
{
    const struct dtp_plan *p = r->plan;
    const struct dtp_executor_plan *e = &p->executor;
    if (!dtp_plan_adapts(p))
        return;
    const struct {
        const char *key;
        bool asked;
    } choices[] = {{"lora_dropout", p->adapters.dropout > 0},
                   {"train_ends", p->adapters.train_ends},
                   {"precision", p->precision.compute == DTP_FP16},
                   {"gelu_epilogue", e->gelu_epilogue},
                   {"gradient_stream", e->gradient_stream},
                   {"update_in_backward", e->update_in_backward},
                   {"gather_engine", e->gather_engine == DTP_ENGINE_COPY},
                   {"reduce_engine", e->reduce_engine == DTP_ENGINE_COPY},
                   {"symmetric_windows", e->symmetric_windows}};
    for (size_t i = 0; i < sizeof choices / sizeof *choices; i++)
        if (choices[i].asked)
            dtp_plan_refuse(r, choices[i].key,
                            "is not run together with adapters (lora) under runtime dtplan yet; leave it out");
    if (e->delay_wgrad)
        dtp_plan_refuse(r, "delay_wgrad",
                        "with adapters (lora) changes nothing: frozen matrices have no weight gradients; leave it out");
    if (p->adapters.base != DTP_BASE_NONE && p->adapters.base != DTP_BASE_NF4)
        dtp_plan_refuse(r, "base", "%s is not run under runtime dtplan yet; use nf4 or none",
                        dtp_base_text(p->adapters.base));
    check_packed(r);
    if (p->tp > 1 && p->adapters.base != DTP_BASE_NONE)
        dtp_plan_refuse(r, "base",
                        "%s of matrices that tensor parallel ranks divide is not run under runtime dtplan yet; "
                        "use pp, or base none",
                        dtp_base_text(p->adapters.base));
    if (p->tp > 1 && p->tp_overlap)
        dtp_plan_refuse(r, "tp_overlap", "with adapters (lora) is not run under runtime dtplan yet; leave it out");
    if (dtp_plan_shard_ranks(r->cluster, p) > 1)
        dtp_plan_refuse(r, "strategy",
                        "%s shards what is small beside frozen weights, which rest whole under runtime dtplan; use ddp",
                        dtp_strategy_text(p->strategy));
    if (p->adapters.rank % DTP_PARAMETER_ALIGNMENT)
        dtp_plan_refuse(r, "lora",
                        "rank %" PRIu32 " is no multiple of %u, as runtime dtplan's kernels read rows; use %" PRIu32,
                        p->adapters.rank, DTP_PARAMETER_ALIGNMENT,
                        (p->adapters.rank / DTP_PARAMETER_ALIGNMENT + 1) * DTP_PARAMETER_ALIGNMENT);
}

/* Of tensor parallel ranks, who are among those that divide experts: these are neighbours among all ranks of a stage,
 * which therefore are evenly spaced, and shards of experts those of neighbouring slices. */
static void check_folded_experts(struct dtp_resolver *r, const struct dtp_executor_rules *rules)
{
    const struct dtp_transformer *t = r->transformer;
    const struct dtp_plan *p = r->plan;
    const bool divide = dtp_plan_degrees_divide(p, r->cluster->gpus) &&
                        (uint64_t)dtp_plan_gradient_ranks(p, r->cluster) * p->tp % p->ep == 0;
    if (p->tp < 2 || !divide) /* what does not is refused already */
        return;
    if (t->shared_expert_ffn % ((uint64_t)p->tp * DTP_PARAMETER_ALIGNMENT))
        dtp_plan_refuse(r, "tp",
                        "%" PRIu32 " leaves a rank shared_expert_ffn %" PRIu64
                        " / tp, which is no multiple of %u, as it must be for runtime dtplan; use ep alone, or set it "
                        "to a multiple of %" PRIu64,
                        p->tp, t->shared_expert_ffn, DTP_PARAMETER_ALIGNMENT,
                        (uint64_t)p->tp * DTP_PARAMETER_ALIGNMENT);
    if (p->layout_order[0] != DTP_AXIS_TP && rules->replicas > 1 && rules->shard_ranks > 1)
        dtp_plan_refuse(r, "layout_order",
                        "with ep and tp under hybrid_shard begins with tp; leave it out, or use full_shard");
    const struct dtp_layout layout = dtp_plan_layout(p, r->cluster);
    if (dtp_layout_group(&layout, DTP_AXES(TP) | DTP_AXES_DENSE_DATA).stretch_count > 1)
        dtp_plan_refuse(r, "layout_order",
                        "has pp between axes whose ranks divide experts with tp; put pp first or last, or leave it "
                        "out");
}

/* Ranks that divide experts are among those that share state, or all have all of it. */
static void check_divided_experts(struct dtp_resolver *r)
{
    const struct dtp_plan *p = r->plan;
    struct dtp_executor_rules rules;
    if (p->ep < 2)
        return;
    dtp_executor_rules(r->transformer, r->cluster, p, &rules);
    if (rules.shard_ranks > 1 && rules.shard_ranks * p->tp % p->ep)
        dtp_plan_refuse(r, "ep",
                        "%" PRIu32 " does not divide the %" PRIu64 " GPUs that share a copy (shard_group), all of "
                        "whose experts a step's norm needs; use full_shard or ddp",
                        p->ep, rules.shard_ranks * p->tp);
    check_folded_experts(r, &rules);
    if (p->executor.expert_room > p->ep)
        dtp_plan_refuse(r, "expert_room", "%g is more than %" PRIu32 ", where one rank receives all tokens",
                        p->executor.expert_room, p->ep);
    if (p->comm_hook != DTP_COMM_HOOK_NONE)
        dtp_plan_refuse(r, "comm_hook", "with ep is not run under runtime dtplan yet; use none");
    check_beside(r, "ep");
}

/* What has been run of experts. */
static void check_experts(struct dtp_resolver *r)
{
    const struct dtp_transformer *t = r->transformer;
    const struct dtp_plan *p = r->plan;
    if (!t->experts)
        return;
    const struct {
        const char *key;
        bool asked;
    } choices[] = {
        {"precision", p->precision.compute == DTP_FP8},    {"parallel_block", t->parallel_block != DTP_PARALLEL_NONE},
        {"norm_place", t->norm_place != DTP_NORMS_BEFORE}, {"ep", p->ep > 1 && t->expert_bias},
        {"lora", dtp_plan_adapts(p) && t->expert_bias},    {"activation", !dtp_activation_is_gated(t->activation)}};
    for (size_t i = 0; i < sizeof choices / sizeof *choices; i++)
        if (choices[i].asked)
            dtp_plan_refuse(r, choices[i].key,
                            "as it is here is not run together with experts under runtime dtplan yet");
    check_divided_experts(r);
    if (t->experts > DTP_EXECUTOR_ROUTER_EXPERTS)
        dtp_plan_refuse(r, "experts", "%" PRIu64 " are more than runtime dtplan's router takes, %u", t->experts,
                        DTP_EXECUTOR_ROUTER_EXPERTS);
    if (t->expert_groups > DTP_EXECUTOR_ROUTER_GROUPS)
        dtp_plan_refuse(r, "expert_groups", "%" PRIu64 " are more than runtime dtplan's router takes, %u",
                        t->expert_groups, DTP_EXECUTOR_ROUTER_GROUPS);
    if (t->experts_per_token > DTP_EXECUTOR_ROUTER_CHOSEN)
        dtp_plan_refuse(r, "experts_per_token", "%" PRIu64 " are more than runtime dtplan's router takes, %u",
                        t->experts_per_token, DTP_EXECUTOR_ROUTER_CHOSEN);
}

/* What has been run of attention sinks. */
static void check_sinks(struct dtp_resolver *r)
{
    const struct dtp_plan *p = r->plan;
    const struct {
        const char *key;
        bool asked;
    } choices[] = {{"lora", dtp_plan_adapts(p)}, {"precision", p->precision.compute == DTP_FP8}};
    for (size_t i = 0; i < sizeof choices / sizeof *choices && r->transformer->attention_sinks; i++)
        if (choices[i].asked)
            dtp_plan_refuse(r, choices[i].key,
                            "as it is here is not run together with attention sinks under runtime dtplan yet");
}

/* What has been run of latent attention. */
static void check_latent(struct dtp_resolver *r)
{
    const struct dtp_transformer *t = r->transformer;
    const struct dtp_plan *p = r->plan;
    if (!t->kv_latent)
        return;
    const struct {
        const char *key;
        bool asked;
    } choices[] = {{"precision", p->precision.compute == DTP_FP8},
                   {"optimizer", p->optimizer == DTP_MUON},
                   {"sliding_window", t->sliding_window > 0},
                   {"attention_softcap", t->attention_softcap > 0},
                   {"attention_output_bias", t->attention_output_bias}};
    for (size_t i = 0; i < sizeof choices / sizeof *choices; i++)
        if (choices[i].asked)
            dtp_plan_refuse(r, choices[i].key,
                            "as it is here is not run together with latent attention under runtime dtplan yet");
}

/* Hooks that have nothing to compress or no program. PowerSGD factors in fp32; what was lost of a step is of its loss
 * scale. */
static void check_hook(struct dtp_resolver *r)
{
    const struct dtp_plan *p = r->plan;
    struct dtp_executor_rules rules;
    if (p->comm_hook == DTP_COMM_HOOK_NONE)
        return;
    dtp_executor_rules(r->transformer, r->cluster, p, &rules);
    enum dtp_dtype sums = dtp_executor_gradient_dtypes(r->transformer, &rules, 0).shard;
    const char *hook = dtp_comm_hook_text(p->comm_hook);
    if (rules.replicas > 1 && dtp_executor_casts_sums(&rules) && dtp_dtype_bytes(sums) <= dtp_dtype_bytes(rules.wire))
        dtp_plan_refuse(r, "comm_hook",
                        "%s: gradients are summed in %s, which is no wider; use reduce_dtype fp32, or none", hook,
                        dtp_dtype_text(sums));
    if (p->comm_hook != DTP_COMM_HOOK_POWERSGD)
        return;
    if (p->precision.reduce != DTP_FP32)
        dtp_plan_refuse(r, "comm_hook", "powersgd is run on gradients in fp32, these are in %s; use reduce_dtype fp32",
                        dtp_dtype_text(p->precision.reduce));
    if (rules.scales_loss)
        dtp_plan_refuse(r, "comm_hook",
                        "powersgd keeps what it lost from step to step, and fp16's loss scale changes between them; "
                        "use bf16 compute, or comm_hook fp16");
}

static void check(struct dtp_resolver *r)
{
    const struct dtp_plan *p = r->plan;
    check_widths(r);
    check_experts(r);
    check_latent(r);
    check_sinks(r);
    check_hook(r);
    check_adapters(r);
    if (p->executor.gelu_epilogue && !dtp_activation_is_gelu(r->transformer->activation))
        dtp_plan_refuse(r, "gelu_epilogue", "needs a model with GELU");
    if (p->executor.activation_fp8_input_store && (p->executor.gelu_epilogue || r->transformer->experts))
        dtp_plan_refuse(r, "activation_fp8_input_store",
                        "%s is not run that way under runtime dtplan yet; leave it out",
                        p->executor.gelu_epilogue ? "GELU inside the matmuls" : "what experts' activations read");
    check_collective_choices(r);
    check_stages(r);
    check_tensor(r);
    check_context(r);
    check_update_in_backward(r);
}

static bool check_offload(struct dtp_resolver *r)
{
    const struct dtp_plan *p = r->plan;
    if (p->offload == DTP_OFFLOAD_OPTIMIZER || (p->strategy != DTP_ZERO1 && p->strategy != DTP_ZERO2))
        return false;
    dtp_plan_refuse(r, "offload", "%s needs sharded parameters; use zero3, or offload optimizer with %s",
                    dtp_offload_text(p->offload), dtp_strategy_text(p->strategy));
    return true;
}

/* ---- what it is -------------------------------------------------------------------------------------------------- */

static const struct dtp_lower_hooks *lower(const struct dtp_plan *plan)
{
    static const struct dtp_lower_hooks hooks = {.check = dtp_executor_check, .whole = dtp_lower_executor};
    (void)plan;
    return &hooks;
}

const struct dtp_runtime dtp_runtime_dtplan = {
    .name = "dtplan",
    .framework = "dtplan",
    .strategies = ~0u,
    .shards_all = DTP_FULL_SHARD,
    .issuer = DTP_ISSUER_NATIVE,
    .stores_compute_dtype = true,
    .keeps_fp8 = true,
    .gradients_in_matmul = true,
    .vocab_multiple = DTP_PARAMETER_ALIGNMENT,
    .splits = DTP_AXES(TP) | DTP_AXES(PP) | DTP_AXES(CP),
    .cp_comms = 1u << DTP_CP_P2P | 1u << DTP_CP_A2A,
    .sums_apart = true,
    .keeps_exchanged = true,
    .gathers_again = true,
    .schedules = ~(1u << DTP_SCHEDULE_LOOPED_BFS),
    .sends_beside = true,
    .partial_groups = true,
    .own_prefetch = true,
    .keeps_root = true,
    .hooked = 1u << DTP_DDP | 1u << DTP_HYBRID_SHARD,
    .adapters = true,
    .adapters_under = {.tp = true, .pp = true, .cp = true},
    .fused_kernels = true,
    .own_kernels = true,
    .optimizer_shapes = 1u << DTP_STATE_MATRICES,
    .packs_matrices = true,
    .experts = true,
    .latent_attention = true,
    .attention_sinks = true,
    .clamped_swiglu = true,
    .copies_values = true,
    .expert_parallel = true,
    .weighs_rows = true,
    .chunks_loss = true,
    .stops_replay = true,
    .arena = true,
    .executed = true,
    .check = check,
    .check_offload = check_offload,
    .closed = &dtp_executor_closed_form,
    .lower = lower,
};
