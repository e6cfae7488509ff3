/* Random valid jobs that our executor can run. */
#ifndef TEST_RANDOM_EXECUTOR_PLANS_H
#define TEST_RANDOM_EXECUTOR_PLANS_H

#include "runtime/dtplan/lower_executor.h"
#include "runtime/runtimes.h"
#include "lib/random_plans.h"

static inline struct dtp_transformer random_executor_transformer(void)
{
    struct dtp_transformer t = random_transformer();
    t.final_norm = true, t.embedding_norm = !random_frozen && t.embedding_norm;
    uint64_t kept = random_state; /* what follows is drawn as before there were soft caps */
    t.attention_softcap = random_frozen || random_below(8) ? 0 : 50;
    t.final_softcap = random_frozen || random_below(8) ? 0 : 30;
    t.ffn += random_frozen || random_below(4) ? 0 : 4; /* rows that begin at no whole word */
    t.qk_norm_weight = random_frozen || random_below(4) ? DTP_QK_NORM_SHARED : DTP_QK_NORM_UNWEIGHTED;
    t.qk_norm_weight = t.qk_norm && !t.qk_norm_wide ? t.qk_norm_weight : DTP_QK_NORM_SHARED;
    random_state = kept;
    t.qk_layer_norm = t.qk_norm_bias = t.norm_without_weight = false;
    if (t.activation == DTP_RELU2)
        t.activation = DTP_GELU;
    if (random_frozen && t.position == DTP_POSITION_ALIBI)
        t.position = DTP_POSITION_NONE;
    random_key("executor activation");
    if (random_below(8) == 0)
        t.activation = DTP_RELU;
    t.positions = t.position == DTP_POSITION_LEARNED ? 1u << 15 : 0;
    random_key("executor qkv_bias");
    t.qkv_bias = t.qkv_bias || random_below(4) == 0;
    random_key("executor head_bias");
    t.head_bias = random_below(8) == 0;
    random_key("executor layers");
    t.layers = 1 + random_below(12);
    return t;
}

static inline struct dtp_plan random_executor_plan(const struct dtp_cluster *cluster, const struct dtp_transformer *t)
{
    static const char *const recipes[] = {"fp32", "bf16-mixed", "bf16", "bf16-pure"};
    struct dtp_plan plan = random_plan(cluster);
    plan.runtime = &dtp_runtime_dtplan;
    plan.compile = plan.fsdp1 = false;
    random_key("executor offload");
    plan.offload = random_below(3) ? DTP_OFFLOAD_NONE : (enum dtp_offload)random_below(3);
    plan.attention = DTP_ATTENTION_FLASH;
    plan.optimizer = DTP_ADAMW_FUSED;
    plan.wrap_layers = 1;
    random_key("executor micro_batch");
    plan.micro_batch = 1 + (uint32_t)random_below(4);
    random_key("executor seq");
    plan.sequence = 128u << random_below(6);
    random_key("executor accumulate");
    plan.accumulate = random_bool() ? 1 : 2 + (uint32_t)random_below(3);
    random_key("executor precision");
    dtp_precision_recipe(recipes[random_below(4)], &plan.precision);
    if (plan.precision.reduce != plan.precision.compute && random_bool())
        plan.precision.reduce = plan.precision.compute;
    random_key("executor clip_norm");
    plan.clip_norm = random_bool() ? 1 : 0;
    random_key("executor prefetch_depth");
    plan.prefetch_depth = 1 + (uint32_t)random_below(3);
    random_key("executor loss_chunk");
    plan.executor.loss_chunk = random_bool() ? 0 : 1 + random_below(2000);
    random_key("executor gelu_epilogue");
    plan.executor.gelu_epilogue = t->activation == DTP_GELU && random_bool();
    random_key("executor activation_fp8_input_store");
    plan.executor.activation_fp8_input_store = !plan.executor.gelu_epilogue && random_below(3) == 0;
    random_key("executor gradient_stream");
    plan.executor.gradient_stream = random_bool();
    random_key("executor update_in_backward");
    plan.executor.update_in_backward = plan.clip_norm == 0 && plan.offload == DTP_OFFLOAD_NONE && random_bool();
    random_key("executor gather_engine");
    plan.executor.gather_engine = random_below(3) ? DTP_ENGINE_SM : DTP_ENGINE_COPY;
    random_key("executor reduce_engine");
    plan.executor.reduce_engine = random_below(3) ? DTP_ENGINE_SM : DTP_ENGINE_COPY;
    uint64_t kept = random_state; /* what follows is drawn as before there were hooks */
    if (!random_frozen && plan.runtime->hooked >> plan.strategy & 1u && random_below(3) == 0)
        plan.comm_hook = (enum dtp_comm_hook)(1 + random_below(4)), plan.powersgd_rank = 1u << random_below(4);
    random_state = kept;
    return plan;
}

/* The job with this plan is one that our executor runs. */
static inline bool random_executor_takes(struct random_job *job, const struct dtp_plan *plan)
{
    job->plan = job->asked = *plan;
    return dtp_transformer_check(&job->transformer, NULL, 0, NULL) == DTP_OK &&
           dtp_cluster_check(&job->cluster, NULL) == DTP_OK &&
           dtp_plan_resolve(&job->plan, &job->transformer, &job->cluster, NULL) == DTP_OK &&
           dtp_executor_check(&job->transformer, &job->cluster, &job->plan, NULL) == DTP_OK;
}

static inline bool random_executor_job(struct random_job *job)
{
    for (int attempt = 0; attempt < 1000; attempt++) {
        job->transformer = random_executor_transformer();
        job->cluster = random_below(4) ? random_cluster() : test_cluster(test_h200(), 1, 8);
        const struct dtp_plan plan = random_executor_plan(&job->cluster, &job->transformer);
        if (random_executor_takes(job, &plan))
            return true;
    }
    return false;
}

/* Such a job with adapters alone trained, of any rank and targets that the executor takes. */
static inline void random_executor_adapted_job(struct random_job *job)
{
    for (;;) {
        if (!random_executor_job(job))
            fail_msg("no job of the executor is drawn");
        struct dtp_plan plan = job->asked;
        struct dtp_executor_plan *e = &plan.executor;
        plan.adapters.rank = 8 * (1 + (uint32_t)random_below(4));
        plan.adapters.targets = random_bool() ? DTP_TARGETS_ALL : 1 + (uint32_t)random_below(DTP_TARGETS_ALL);
        plan.adapters.dtype = random_bool() ? DTP_FP32 : DTP_BF16;
        plan.adapters.alpha = random_bool() ? 0 : 16;
        plan.adapters.base = random_bool() ? DTP_BASE_NONE : DTP_BASE_NF4;
        plan.strategy = DTP_DDP, plan.offload = DTP_OFFLOAD_NONE, plan.shard_group = 0;
        e->gelu_epilogue = e->gradient_stream = e->update_in_backward = e->symmetric_windows = false;
        e->gather_engine = e->reduce_engine = DTP_ENGINE_SM;
        plan.optimizer = random_below(3) ? DTP_ADAMW_FUSED : random_bool() ? DTP_SGD : DTP_ADAM8BIT;
        if (plan.checkpointing == DTP_CHECKPOINT_SELECTIVE_MATMUL)
            plan.checkpointing = DTP_CHECKPOINT_FULL;
        if (random_executor_takes(job, &plan))
            return;
    }
}

/* The same on ranks that share sequences. */
static inline void random_executor_shared_adapters(struct random_job *job, int turn)
{
    const uint32_t cp = turn % 3 ? 2 : 4;
    for (;;) {
        random_executor_adapted_job(job);
        struct dtp_transformer *t = &job->transformer;
        struct dtp_plan plan = job->asked;
        if (t->position == DTP_POSITION_LEARNED || t->position == DTP_POSITION_ALIBI)
            t->position = DTP_POSITION_ROPE, t->positions = 0;
        t->heads *= cp, t->kv_heads *= cp, t->sliding_window = t->sliding_window_pattern = 0;
        t->qk_norm_wide = false;
        job->cluster = test_cluster(test_h200(), cp << turn % 2, 8);
        plan.cp = cp, plan.cp_comm = turn % 2 ? DTP_CP_A2A : DTP_CP_P2P;
        plan.optimizer = DTP_ADAMW_FUSED, plan.executor.cuda_graph = false;
        if (random_executor_takes(job, &plan))
            return;
    }
}

/* The same on ranks that divide matrices. */
static inline void random_executor_cut_adapters(struct random_job *job, int turn)
{
    const uint32_t tp = turn % 3 ? 2 : 4;
    for (;;) {
        random_executor_adapted_job(job);
        struct dtp_transformer *t = &job->transformer;
        struct dtp_plan plan = job->asked;
        t->heads *= tp, t->kv_heads *= tp, t->ffn *= tp, t->qk_norm_wide = false;
        job->cluster = test_cluster(test_h200(), tp << turn % 2, 8);
        plan.tp = tp, plan.sequence_parallel = true;
        plan.adapters.base = DTP_BASE_NONE;
        plan.optimizer = DTP_ADAMW_FUSED, plan.executor.cuda_graph = false;
        if (random_executor_takes(job, &plan))
            return;
    }
}

/* Ranks that divide the experts, where what the plan asks for is run with them. */
static inline void random_divided_experts(struct random_job *job, struct dtp_plan *plan)
{
    uint32_t gpus = job->cluster.gpus, ep = 2 + (uint32_t)random_below(7);
    while (gpus % ep || job->cluster.gpus_per_node % ep)
        ep--;
    if (ep < 2)
        return;
    plan->ep = ep;
    plan->executor.expert_room = random_bool() ? 0 : 1 + (random_bool() ? (ep - 1) / 2.0 : 0);
    job->transformer.experts = ep * (1 + random_below(8));
    job->transformer.experts_per_token = 1 + random_below(job->transformer.experts < 8 ? job->transformer.experts : 8);
    if (plan->strategy != DTP_HYBRID_SHARD || plan->shard_group % ep) /* 0: a node's, which ep divides */
        plan->strategy = plan->strategy == DTP_HYBRID_SHARD ? DTP_FULL_SHARD : plan->strategy, plan->shard_group = 0;
    plan->comm_hook = DTP_COMM_HOOK_NONE;
    plan->executor.gradient_stream = plan->executor.update_in_backward = plan->executor.symmetric_windows = false;
    plan->executor.gather_engine = plan->executor.reduce_engine = DTP_ENGINE_SM;
    plan->executor.cuda_graph = false;
}

/* Such a job with experts in all layers or some, of any choices that the executor takes. */
static inline void random_executor_expert_job(struct random_job *job)
{
    for (;;) {
        if (!random_executor_job(job))
            fail_msg("no job of the executor is drawn");
        struct dtp_transformer *t = &job->transformer;
        struct dtp_plan plan = job->asked;
        t->parallel_block = DTP_PARALLEL_NONE, t->norm_place = DTP_NORMS_BEFORE;
        t->activation = random_bool() ? DTP_SWIGLU : random_bool() ? DTP_GEGLU : DTP_SWIGLU_CLAMPED;
        t->attention_sinks = random_below(4) == 0;
        t->experts = 1 + random_below(random_bool() ? 8 : 130);
        t->experts_per_token = 1 + random_below(t->experts < 8 ? t->experts : 8);
        t->expert_ffn = 8 * (1 + random_below(64));
        t->dense_layers = t->expert_layer_step = 0;
        t->shared_expert_ffn = random_bool() ? 0 : 8 * (1 + random_below(64));
        t->shared_expert_gate = t->shared_expert_ffn && random_bool();
        t->router = random_bool() ? DTP_ROUTER_SOFTMAX : DTP_ROUTER_SIGMOID;
        t->router_norm = random_bool(), t->router_bias = random_below(4) == 0;
        t->router_scale = random_bool() ? 0 : 2.5;
        t->expert_groups = t->groups_per_token = 0;
        plan.executor.gelu_epilogue = plan.executor.activation_fp8_input_store = false;
        plan.offload = DTP_OFFLOAD_NONE;
        if (random_bool())
            random_divided_experts(job, &plan);
        t->expert_bias = plan.ep < 2 && random_below(4) == 0;
        t->router_on_input = t->activation == DTP_SWIGLU && !t->expert_bias && random_bool();
        t->chunked_attention = random_below(4) == 0;
        if (t->chunked_attention) {
            t->sliding_window = plan.sequence / 4, t->sliding_window_pattern = 2 + random_below(3);
            t->qk_norm_wide = false, t->qk_norm_weight = t->qk_norm ? DTP_QK_NORM_UNWEIGHTED : DTP_QK_NORM_SHARED;
        }
        if (t->experts % 4 == 0 && t->experts >= 2 * t->experts_per_token)
            t->expert_groups = 4, t->groups_per_token = 2 + random_below(3);
        if (t->layers > 1 && random_bool()) /* layers of two kinds: the first, or every other */
            *(random_bool() ? &t->dense_layers : &t->expert_layer_step) = 1 + random_below(t->layers - 1);
        if (plan.checkpointing == DTP_CHECKPOINT_SELECTIVE_MATMUL)
            plan.checkpointing = DTP_CHECKPOINT_FULL;
        if (random_executor_takes(job, &plan))
            return;
    }
}

/* Such a job with latent attention, each second one with experts. */
static inline void random_executor_latent_job(struct random_job *job, int turn)
{
    for (;;) {
        if (turn % 2)
            random_executor_expert_job(job);
        else if (!random_executor_job(job))
            fail_msg("no job of the executor is drawn");
        struct dtp_transformer *t = &job->transformer;
        struct dtp_plan plan = job->asked;
        t->parallel_block = DTP_PARALLEL_NONE, t->norm_place = DTP_NORMS_BEFORE, t->position = DTP_POSITION_ROPE;
        t->positions = 0, t->kv_heads = t->heads;
        t->qk_norm = t->qk_norm_wide = t->qkv_bias = t->attention_output_bias = false;
        t->sliding_window = t->sliding_window_pattern = 0, t->attention_softcap = 0, t->attention_sinks = false;
        t->chunked_attention = false;
        t->qk_norm_weight = DTP_QK_NORM_SHARED;
        t->q_latent = random_bool() ? 0 : 8 * (1 + random_below(64));
        t->kv_latent = 8 * (1 + random_below(64)), t->rope_head_dim = 8 * (1 + random_below(8));
        t->head_dim = t->rope_head_dim + 8 * random_below(16);
        t->value_head_dim = 8 * (1 + random_below(t->head_dim / 8));
        plan.offload = DTP_OFFLOAD_NONE;
        if (plan.checkpointing == DTP_CHECKPOINT_SELECTIVE_MATMUL)
            plan.checkpointing = DTP_CHECKPOINT_FULL;
        if (random_executor_takes(job, &plan))
            return;
    }
}

/* Such a job in 16 or 8 bits, each recipe in turn: with what fp8 refuses taken out, and widths that it takes. */
static inline void random_executor_narrow_job(struct random_job *job, int turn)
{
    static const char *const recipes[] = {"fp16-mixed",        "fp8-tensorwise", "fp8-rowwise",
                                          "fp8-rowwise-gw-hp", "fp8-blockwise",  "fp8-delayed"};
    const char *recipe = recipes[(size_t)turn % (sizeof recipes / sizeof *recipes)];
    for (;;) {
        if (!random_executor_job(job))
            fail_msg("no job of the executor is drawn");
        struct dtp_transformer *t = &job->transformer;
        struct dtp_plan plan = job->asked;
        t->parallel_block = DTP_PARALLEL_NONE, t->norm_place = DTP_NORMS_BEFORE;
        t->hidden = (t->hidden + 15) / 16 * 16, t->ffn = (t->ffn + 15) / 16 * 16;
        t->head_dim = (t->head_dim + 15) / 16 * 16;
        dtp_precision_recipe(recipe, &plan.precision);
        plan.executor.gelu_epilogue = plan.executor.gradient_stream = false;
        if (plan.offload == DTP_OFFLOAD_NONE)
            plan.optimizer = t->layers % 3 == 0 ? DTP_SGD : t->layers % 3 == 1 ? DTP_ADAM8BIT : DTP_ADAMW_FUSED;
        job->cluster.gpu = test_h200();
        if (random_executor_takes(job, &plan))
            return;
    }
}

static inline void random_executor_describe(const struct random_job *job)
{
    const struct dtp_transformer *t = &job->transformer;
    const struct dtp_plan *p = &job->plan;
    char checkpointing[32];
    dtp_checkpointing_text(p, checkpointing, sizeof checkpointing);
    fprintf(
        stderr,
        "L%llu h%llu heads %llu/%llu d_h%llu f%llu V%llu tied %d norm %d activation %d position %d biases %d %d %d "
        "qk_norm %d window %llu of %llu; %u "
        "GPUs (%u a node) %s group %u reshard %d micro %u accumulate %u sync %d seq %llu checkpointing %s precision %s "
        "reduce %s clip %g prefetch %d depth %u chunk %llu epilogue %d input store %d engines %d %d gradient stream %d "
        "update in backward %d; %llu experts of %llu, %llu a token, shared %llu%s, ep %u, imbalance %g; tp %u, cp %u, "
        "lora %u of targets %x, "
        "parallel block %d\n",
        (unsigned long long)t->layers, (unsigned long long)t->hidden, (unsigned long long)t->heads,
        (unsigned long long)t->kv_heads, (unsigned long long)t->head_dim, (unsigned long long)t->ffn,
        (unsigned long long)t->vocab, t->tied_head, t->norm, t->activation, t->position, t->qkv_bias, t->norm_bias,
        t->head_bias, t->qk_norm, (unsigned long long)t->sliding_window, (unsigned long long)t->sliding_window_pattern,
        job->cluster.gpus, job->cluster.gpus_per_node, dtp_strategy_text(p->strategy), p->shard_group,
        p->reshard_after_forward, p->micro_batch, p->accumulate, p->accumulate_sync, (unsigned long long)p->sequence,
        checkpointing, dtp_precision_name(&p->precision), dtp_dtype_text(p->precision.reduce), p->clip_norm,
        p->prefetch, p->prefetch_depth, (unsigned long long)p->executor.loss_chunk, p->executor.gelu_epilogue,
        p->executor.activation_fp8_input_store, (int)p->executor.gather_engine, (int)p->executor.reduce_engine,
        p->executor.gradient_stream, p->executor.update_in_backward, (unsigned long long)t->experts,
        (unsigned long long)t->expert_ffn, (unsigned long long)t->experts_per_token,
        (unsigned long long)t->shared_expert_ffn, t->shared_expert_gate ? " with a gate" : "", p->ep,
        p->executor.expert_room, p->tp, p->cp, p->adapters.rank, p->adapters.targets, t->parallel_block);
}

#endif
