#include "runtime/dtplan/executor_work.h"

#include "closed/activations.h"

struct shape {
    const struct dtp_transformer *t;
    const struct dtp_plan *plan;
    struct dtp_executor_rules rules;
    struct dtp_parameter_module layout[3]; /* embedding, a block, head */
    double element[3], shard_element[3];   /* bytes of their gradients', whole and reduced */
    double tokens, h, f, q, kv, up, vocab, layers, modules, c, statistics, norm_width;
    double checkpointed;  /* blocks */
    double qk_norm_width; /* of q's and k's norm weights; 0: there are none */
    bool rope, epilogue, replays, selective;
};

static double checkpointed_blocks(const struct shape *s)
{
    struct dtp_checkpoint_rule rule = dtp_plan_checkpoint_rule(s->plan);
    return (double)dtp_checkpointed_layers(&rule, s->t->layers);
}

static struct shape shape_of(const struct dtp_transformer *t, const struct dtp_cluster *cluster,
                             const struct dtp_plan *plan)
{
    struct shape s = {.t = t, .plan = plan};
    enum dtp_checkpointing checkpointing = plan->checkpointing;
    dtp_executor_rules(t, cluster, plan, &s.rules);
    s.tokens = (double)s.rules.tokens, s.h = (double)t->hidden, s.f = (double)t->ffn, s.vocab = (double)t->vocab;
    s.q = (double)(t->heads * t->head_dim), s.kv = (double)(t->kv_heads * t->head_dim), s.up = (double)s.rules.up_width;
    s.layers = (double)t->layers, s.modules = (double)dtp_parameter_module_count(t);
    s.c = dtp_plan_compute_bytes(plan), s.statistics = (double)s.rules.statistics_bytes * s.tokens;
    s.norm_width = s.h * (t->norm_bias ? 2 : 1);
    s.qk_norm_width = t->qk_norm ? 2 * (double)t->head_dim : 0;
    s.rope = t->position == DTP_POSITION_ROPE;
    s.replays = checkpointing == DTP_CHECKPOINT_FULL || checkpointing == DTP_CHECKPOINT_EVERY_N;
    s.selective = checkpointing == DTP_CHECKPOINT_SELECTIVE_MATMUL;
    s.epilogue = plan->executor.gelu_epilogue;
    s.checkpointed = checkpointed_blocks(&s);
    for (int i = 0; i < 3; i++) {
        const uint64_t module = i == 0 ? 0 : i == 1 ? 1 : t->layers + 1;
        struct dtp_gradient_dtypes dtype = dtp_executor_gradient_dtypes(t, &s.rules, module);
        dtp_parameter_module(t, s.rules.shard_ranks, module, &s.layout[i]);
        s.element[i] = dtp_dtype_bytes(dtype.whole), s.shard_element[i] = dtp_dtype_bytes(dtype.shard);
    }
    return s;
}

/* Three products with each weight; QK^T and PV forward, five products backward. A replay stops before the last matmul.
 */
static void count_flops(const struct shape *s, struct dtp_step_work *out)
{
    double core = 2 * dtp_transformer_attention_length(s->t, s->plan->sequence) * s->q * s->tokens;
    double qkv = s->h * (s->q + 2 * s->kv), output = s->q * s->h, up = s->h * s->up, down = s->f * s->h;
    double logits = (double)s->rules.vocab_stride;
    struct dtp_checkpoint_rule rule = dtp_plan_checkpoint_rule(s->plan);
    double again = dtp_checkpointed_attention(&rule, s->t, s->plan->sequence);
    bool core_again = s->replays || s->plan->checkpointing == DTP_CHECKPOINT_SELECTIVE_ATTENTION;
    out->matmul_flops = 6 * s->tokens * (s->layers * (qkv + output + up + down) + logits * s->h);
    out->attention_flops = 3.5 * core * s->layers;
    out->recompute_matmul_flops = s->replays ? 2 * s->tokens * s->checkpointed * (qkv + output + up) : 0;
    out->recompute_attention_flops = core_again ? core * s->checkpointed * again : 0;
}

static double norm_bytes(const struct shape *s)
{
    return 2 * s->tokens * s->h * s->c + s->statistics + s->norm_width * s->c;
}

static double rotary_bytes(const struct shape *s)
{
    double tables = 4 * (double)(s->t->head_dim * s->plan->sequence);
    return s->rope ? 2 * s->tokens * (s->q + s->kv) * s->c + tables : 0;
}

/* q and k read, kept and overwritten; backward their gradient in place and what was kept: the same. */
static double qk_norm_bytes(const struct shape *s)
{
    double statistics = 4 * (double)(s->t->heads + s->t->kv_heads) * s->tokens;
    return s->t->qk_norm ? 3 * s->tokens * (s->q + s->kv) * s->c + statistics + s->qk_norm_width * s->c : 0;
}

static double qk_norm_backward_bytes(const struct shape *s)
{
    return qk_norm_bytes(s) + 2 * 4.0 * DTP_EXECUTOR_PARTIAL_ROWS * s->qk_norm_width;
}

static double activation_bytes(const struct shape *s)
{
    return s->epilogue ? 0 : s->tokens * (s->up + s->f) * s->c;
}

/* Without the weight's own gradient, which is counted with the gradients. */
static double norm_backward_bytes(const struct shape *s, double passes)
{
    double partial = 2 * 4.0 * DTP_EXECUTOR_PARTIAL_ROWS * s->norm_width;
    return passes * s->tokens * s->h * s->c + s->statistics + s->h * s->c + partial;
}

/* In place over the up matmul's result; selective checkpointing makes the product again in the same pass. */
static double activation_backward_bytes(const struct shape *s)
{
    if (s->epilogue && !s->selective)
        return 0;
    return s->tokens * (2 * s->up + (s->selective ? 2 : 1) * s->f) * s->c;
}

static void count_bytes(const struct shape *s, struct dtp_step_work *out)
{
    bool learned = s->t->position == DTP_POSITION_LEARNED;
    double sequence = learned ? (double)s->plan->sequence : 0;
    out->forward_bytes = 2 * s->tokens * s->h * s->c + sequence * s->h * s->c + 4 * s->tokens +
                         s->layers * (2 * norm_bytes(s) + qk_norm_bytes(s) + rotary_bytes(s) + activation_bytes(s)) +
                         norm_bytes(s);
    out->loss_bytes = 3 * s->tokens * s->vocab * s->c + 12 * s->tokens;
    out->backward_bytes = s->layers * (2 * norm_backward_bytes(s, 4) + rotary_bytes(s) + qk_norm_backward_bytes(s) +
                                       activation_backward_bytes(s)) +
                          norm_backward_bytes(s, 3) + s->tokens * s->h * s->c + 12 * s->tokens;
    double replay = 2 * norm_bytes(s) + (s->selective ? 0 : qk_norm_bytes(s) + rotary_bytes(s) + activation_bytes(s));
    out->recompute_bytes = s->replays || s->selective ? s->checkpointed * replay : 0;
}

/* Launches: norms backward two, attention backward three, learned positions one more; a head chunk's three matmuls and
 * cross entropy. */
static void count_kernels(const struct shape *s, struct dtp_step_work *out)
{
    double activation = s->epilogue ? 0 : 1, backward = s->epilogue && !s->selective ? 0 : 1, rotary = s->rope ? 1 : 0;
    double qk_norm = s->t->qk_norm ? 1 : 0, forward = 2 + 4 + qk_norm + rotary + 1 + activation,
           chunks = (double)s->rules.chunk_count;
    double replay = s->replays ? forward - 1 : s->selective ? 2 : s->checkpointed > 0 ? 1 : 0;
    out->kernels = 1 + s->layers * (forward + 8 + 2 * 2 + 3 + 2 * qk_norm + rotary + backward) +
                   s->checkpointed * replay + 1 + 4 * chunks + 1 + 2 + 1 +
                   (s->t->position == DTP_POSITION_LEARNED ? 1 : 0);
}

/* Sums over modules: block modules count L times. */
static double over_modules(const struct shape *s, double (*of)(const struct shape *, int))
{
    return of(s, 0) + s->layers * of(s, 1) + of(s, 2);
}

/* Bytes that the module's first operations zero: padding; of the embedding all that the head's gradient does not write.
 */
static double zeroed(const struct shape *s, int i)
{
    const struct dtp_parameter_module *layout = &s->layout[i];
    uint64_t table = s->t->tied_head ? layout->tensor[DTP_PARAMETER_EMBEDDING].extent_elements : 0;
    return (double)(layout->elements - (i == 0 ? table : layout->extent_elements)) * s->element[i];
}

static double zero_launches(const struct shape *s, int i)
{
    const struct dtp_parameter_module *layout = &s->layout[i];
    uint64_t end = 0;
    double launches = 0;
    if (i == 0)
        return zeroed(s, i) > 0;
    for (int p = 0; p < DTP_PARAMETER_COUNT; p++) {
        if (!layout->tensor[p].exists)
            continue;
        launches += layout->tensor[p].offset_elements > end;
        end = layout->tensor[p].offset_elements + layout->tensor[p].extent_elements;
    }
    return launches + (layout->elements > end);
}

/* Norm weights' gradients (and biases'), of a micro-step that overwrites them; rows of the embedding's table. */
static double written(const struct shape *s, int i)
{
    double rows = s->tokens < s->vocab ? s->tokens : s->vocab;
    if (i)
        return (i == 1 ? 2 * s->norm_width + s->qk_norm_width : s->norm_width) * s->element[i];
    rows += s->t->position == DTP_POSITION_LEARNED ? (double)s->plan->sequence : 0;
    return 2 * rows * s->h * s->element[i];
}

static double shard_bytes(const struct shape *s, int i)
{
    return (double)s->layout[i].shard_elements * s->shard_element[i];
}

static double whole_bytes(const struct shape *s, int i)
{
    return (double)s->layout[i].elements * s->element[i];
}

/* Results of `reductions`: exchanged gradients are added up by a kernel, all but the first time onto what is there;
 * scattered ones are sums already, which later times are added. */
static void count_sums(const struct shape *s, double reductions, struct dtp_step_work *out)
{
    double shards = over_modules(s, shard_bytes), sums = reductions - 1;
    out->gradient_bytes += s->rules.exchanges
                               ? reductions * over_modules(s, whole_bytes) + (2 * reductions - 1) * shards
                               : 3 * sums * shards;
    out->step_kernels += (s->rules.exchanges ? reductions : sums) * s->modules;
}

/* AdamW reads gradients, writes weights (and reads them where there is no master), reads and writes the rest. */
static double updated(const struct shape *s, int i)
{
    double weights = (s->rules.master ? 1 : 2) * s->c, master = s->rules.master ? 8 : 0;
    return (double)s->layout[i].shard_elements *
           (s->shard_element[i] + weights + master + 4.0 * dtp_dtype_bytes(s->rules.moments));
}

static void count_step(const struct shape *s, struct dtp_step_work *out)
{
    double steps = s->plan->accumulate;
    bool anew = s->rules.reduces_always && (s->rules.shard_ranks > 1 || s->rules.replicas > 1);
    double opened = anew ? steps : 1;
    double vectors = over_modules(s, written), partials = 4.0 * DTP_EXECUTOR_SQUARE_SUM_PARTIALS * s->modules;
    /* a micro-step that adds reads norms' gradients too; the embedding's rows are read in any case */
    out->gradient_bytes =
        opened * over_modules(s, zeroed) + steps * vectors + (steps - opened) * (vectors - written(s, 0));
    out->update_bytes = s->rules.host_optimizer ? 0 : over_modules(s, updated);
    out->host_update_bytes = s->rules.host_optimizer ? over_modules(s, updated) : 0;
    out->step_kernels = opened * over_modules(s, zero_launches);
    count_sums(s, opened, out);
    out->step_kernels += s->rules.host_optimizer ? 0 : s->modules;
    if (s->rules.gradient_norm) {
        out->update_bytes += over_modules(s, shard_bytes) + 2 * partials;
        out->step_kernels += s->modules + 1;
    }
}

void dtp_executor_work(const struct dtp_transformer *transformer, const struct dtp_cluster *cluster,
                       const struct dtp_plan *plan, struct dtp_step_work *out)
{
    struct shape s = shape_of(transformer, cluster, plan);
    count_flops(&s, out);
    count_bytes(&s, out);
    count_kernels(&s, out);
    count_step(&s, out);
    out->head_rows = (double)s.rules.chunk_tokens;
    out->head_columns = (double)s.rules.vocab_stride;
}
