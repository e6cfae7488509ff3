/* From settings to a job: which shape, which machine, and what the plan's defaults depend on. */
#include "net/models.h"
#include "plan/optimizer_state.h"
#include "plan/rules.h"
#include "runtime/runtimes.h"
#include "base/number.h"
#include "job/scenario_resolution.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SHAPE_TOLERANCE 0.02 /* of --params beside a shape: what "7B" may mean */

/* ---- model: the base shape --------------------------------------------------------------------------------------- */

/* Rows of the model's own dimensions and choices follow each other in job_keys.def. */
#define FIRST_DIMENSION DTP_KEY_layers
#define DIMENSION_END DTP_KEY_gpu

/* The first dimension that was given, or DTP_KEY_COUNT. */
static enum dtp_key first_dimension(const struct dtp_resolution *r)
{
    for (int key = FIRST_DIMENSION; key < DIMENSION_END; key++)
        if (given(r, (enum dtp_key)key))
            return (enum dtp_key)key;
    return DTP_KEY_COUNT;
}

static bool base_from_model(struct dtp_resolution *r, struct dtp_transformer *out)
{
    const char *model = text_of(r, DTP_KEY_model);
    if (dtp_model_is_file(model)) {
        struct dtp_hf_config now;
        const struct dtp_hf_config *config = dtp_catalog_config(r->catalog, model);
        const char *name = config ? NULL : dtp_model_hub_name(model);
        if (name &&
            dtp_catalog_model(r->catalog, name, where_of(r, DTP_KEY_model), line_of(r, DTP_KEY_model), r->faults)) {
            refuse(r, DTP_KEY_model, "'%s' without a folder is a preset; leave the folder out", name);
            return false;
        }
        enum dtp_status status = config ? DTP_OK : dtp_hf_config_read(model, &now, r->faults);
        worsen(r, status);
        config = config ? config : &now;
        *out = config->transformer;
        r->fused_qkv = config->fused_qkv, r->fused_gate_up = config->fused_gate_up;
        if (config->unused[0])
            dtp_note_model(r, "not used of the file: %s", config->unused);
        return status == DTP_OK;
    }
    const struct dtp_transformer *preset =
        dtp_catalog_model(r->catalog, model, where_of(r, DTP_KEY_model), line_of(r, DTP_KEY_model), r->faults);
    if (!preset) {
        worsen(r, DTP_BAD_INPUT);
        return false;
    }
    *out = *preset;
    return true;
}

/* A shape by dimensions alone needs these four; the others have defaults. */
static bool base_from_dimensions(struct dtp_resolution *r, struct dtp_transformer *out)
{
    static const enum dtp_key needed[] = {DTP_KEY_layers, DTP_KEY_hidden, DTP_KEY_heads, DTP_KEY_vocab};
    enum dtp_key first = first_dimension(r);
    bool whole = true;
    for (size_t i = 0; i < sizeof needed / sizeof *needed; i++)
        if (!given(r, needed[i])) {
            refuse(r, first, "%s is missing beside %s; give layers, hidden, heads and vocab, or a model or params",
                   dtp_key_name(needed[i]), dtp_key_name(first));
            whole = false;
        }
    *out = dtp_transformer_default();
    snprintf(out->name, sizeof out->name, "custom");
    return whole;
}

static bool has_all_dimensions(const struct dtp_resolution *r)
{
    return given(r, DTP_KEY_layers) && given(r, DTP_KEY_hidden) && given(r, DTP_KEY_heads) && given(r, DTP_KEY_vocab);
}

static bool base_from_params(struct dtp_resolution *r, struct dtp_transformer *out)
{
    struct dtp_faults faults = {0};
    enum dtp_status status = dtp_transformer_from_parameters(r->draft.params, out, &faults);
    relay(r, DTP_KEY_params, &faults);
    worsen(r, status);
    return status == DTP_OK;
}

static bool choose_base(struct dtp_resolution *r, struct dtp_transformer *out)
{
    if (given(r, DTP_KEY_model))
        return base_from_model(r, out);
    if (given(r, DTP_KEY_params) && !has_all_dimensions(r))
        return base_from_params(r, out);
    if (first_dimension(r) != DTP_KEY_COUNT)
        return base_from_dimensions(r, out);
    refuse(r, DTP_KEY_model,
           "none given; give --params 7B, --model llama-7b (dtplan catalog models lists them), --model config.json, or "
           "layers, hidden, heads and vocab");
    return false;
}

/* ---- model: what follows from the given dimensions ------------------------------------------------------------- */

/* head_dim and kv_heads keep the base's proportions where the base had the common ones. */
static void derive_heads(struct dtp_resolution *r, const struct dtp_transformer *base, struct dtp_transformer *t)
{
    bool plain_width = base->heads * base->head_dim == base->hidden;
    if (given(r, DTP_KEY_heads) && !given(r, DTP_KEY_kv_heads) && base->kv_heads == base->heads)
        t->kv_heads = t->heads;
    bool moved = given(r, DTP_KEY_hidden) || given(r, DTP_KEY_heads);
    if (given(r, DTP_KEY_head_dim) || !moved || !plain_width || !t->heads)
        return;
    enum dtp_key key = given(r, DTP_KEY_heads) ? DTP_KEY_heads : DTP_KEY_hidden;
    if (t->hidden % t->heads)
        refuse(r, key, "%" PRIu64 " heads do not divide hidden %" PRIu64 "; change one or give head_dim", t->heads,
               t->hidden);
    else
        t->head_dim = t->hidden / t->heads;
}

/* LLaMA's rule for SwiGLU keeps the MLP as large as a plain one of 4h: three matrices of 8/3 h, rounded up to 256. */
static void derive_ffn(struct dtp_transformer *t)
{
    if (t->ffn == 0)
        t->ffn = dtp_activation_is_gated(t->activation) ? (8 * t->hidden / 3 + 255) / 256 * 256 : 4 * t->hidden;
}

static void derive_biases(struct dtp_resolution *r, const struct dtp_transformer *base, struct dtp_transformer *t)
{
    bool changed_norm = given(r, DTP_KEY_norm) && t->norm != base->norm;
    if (changed_norm && !given(r, DTP_KEY_norm_bias))
        t->norm_bias = t->norm == DTP_LAYER_NORM && !t->norm_without_weight;
    if (!given(r, DTP_KEY_bias))
        return;
    const struct {
        enum dtp_key key;
        bool *field;
    } biases[] = {{DTP_KEY_qkv_bias, &t->qkv_bias},
                  {DTP_KEY_attention_output_bias, &t->attention_output_bias},
                  {DTP_KEY_mlp_bias, &t->mlp_bias}};
    for (size_t i = 0; i < sizeof biases / sizeof *biases; i++)
        if (!given(r, biases[i].key))
            *biases[i].field = r->draft.bias;
    if (t->norm == DTP_LAYER_NORM && !t->norm_without_weight && !given(r, DTP_KEY_norm_bias))
        t->norm_bias = r->draft.bias;
}

static void derive_positions(struct dtp_resolution *r, struct dtp_transformer *t)
{
    if (t->position != DTP_POSITION_LEARNED) {
        if (!given(r, DTP_KEY_positions))
            t->positions = 0;
        return;
    }
    if (t->positions == 0)
        t->positions = r->draft.plan.sequence;
    if (t->max_sequence > t->positions)
        t->max_sequence = t->positions;
}

static void name_shape(struct dtp_resolution *r, struct dtp_transformer *t)
{
    if (given(r, DTP_KEY_name)) {
        snprintf(t->name, sizeof t->name, "%s", text_of(r, DTP_KEY_name));
        return;
    }
    bool changed = first_dimension(r) != DTP_KEY_COUNT && (given(r, DTP_KEY_model) || !has_all_dimensions(r));
    char name[DTP_NAME_BYTES];
    snprintf(name, sizeof name, "%s", t->name);
    if (changed)
        snprintf(t->name, sizeof t->name, "%.50s (changed)", name);
}

/* --params beside a shape is a check, not a wish. */
static void check_params(struct dtp_resolution *r, const struct dtp_transformer *t)
{
    double count = (double)dtp_transformer_count(t).total, asked = r->draft.params;
    char has[DTP_NUMBER_TEXT_BYTES], wanted[DTP_NUMBER_TEXT_BYTES];
    if (!given(r, DTP_KEY_params) || fabs(count - asked) <= SHAPE_TOLERANCE * asked)
        return;
    refuse(r, DTP_KEY_params,
           "the shape has %s parameters (%.0f), more than 2 %% off the %s asked; leave params out or change the shape",
           dtp_number_format_count(count, has, sizeof has), count,
           dtp_number_format_count(asked, wanted, sizeof wanted));
}

static void note_shape(struct dtp_resolution *r, const struct dtp_transformer *t)
{
    char asked[DTP_NUMBER_TEXT_BYTES];
    if (given(r, DTP_KEY_model) || !given(r, DTP_KEY_params) || has_all_dimensions(r))
        return;
    double off = (double)dtp_transformer_count(t).total / r->draft.params - 1;
    snprintf(r->job->shape_note, sizeof r->job->shape_note,
             "shape chosen for %s parameters: the nearest LLaMA-like pattern%s, %.2f %% %s; name another with --model",
             dtp_number_format_count(r->draft.params, asked, sizeof asked), strchr(t->name, ' ') ? ", scaled" : "",
             100 * fabs(off), off < 0 ? "fewer" : "more");
}

static bool resolve_model(struct dtp_resolution *r)
{
    struct dtp_transformer base, *t = &r->job->transformer;
    if (!choose_base(r, &base))
        return false;
    enum dtp_status before = r->status;
    r->status = DTP_OK;
    *t = base;
    for (int key = FIRST_DIMENSION; key < DIMENSION_END; key++)
        if (given(r, (enum dtp_key)key))
            dtp_key_copy_dimension((enum dtp_key)key, &r->draft, t);
    derive_heads(r, &base, t);
    if (t->kv_heads == 0)
        t->kv_heads = t->heads;
    derive_ffn(t);
    derive_biases(r, &base, t);
    derive_positions(r, t);
    name_shape(r, t);
    enum dtp_key key = given(r, DTP_KEY_model) ? DTP_KEY_model : first_dimension(r);
    if (key == DTP_KEY_COUNT)
        key = DTP_KEY_params;
    if (r->status == DTP_OK)
        worsen(r, dtp_transformer_check(t, where_of(r, key), line_of(r, key), r->faults));
    if (r->status == DTP_OK)
        check_params(r, t);
    bool good = r->status == DTP_OK;
    if (good)
        note_shape(r, t);
    *t = dtp_transformer_trained(t);
    worsen(r, before);
    return good;
}

/* ---- plan
 * ------------------------------------------------------------------------------------------------------------ */

static void refuse_several_strategies(struct dtp_resolution *r)
{
    enum dtp_strategy list[DTP_STRATEGY_COUNT];
    if (given(r, DTP_KEY_strategy) && dtp_scenario_strategies(text_of(r, DTP_KEY_strategy), list) > 1)
        refuse(r, DTP_KEY_strategy, "names several; only dtplan plan compares them, name one here");
}

static void choose_strategy(struct dtp_resolution *r, struct dtp_plan *plan)
{
    plan->picks_strategy = (plan->adapters.rank || dtp_optimizer_by_tensor(plan)) && !given(r, DTP_KEY_strategy);
    if (dtp_plan_picks_ddp(plan, &r->job->cluster))
        snprintf(r->job->plan_note, sizeof r->job->plan_note, "one GPU shards nothing: strategy ddp");
}

static void choose_runtime(struct dtp_resolution *r, struct dtp_plan *plan)
{
    char *note = r->job->plan_note;
    size_t bytes = sizeof r->job->plan_note;
    if (!given(r, DTP_KEY_runtime) && !(plan->runtime->strategies & 1u << plan->strategy)) {
        plan->runtime = dtp_runtime_of_strategy(plan->strategy);
        snprintf(note, bytes, "%s exists in %s only: runtime %s", dtp_strategy_text(plan->strategy),
                 plan->runtime->framework, plan->runtime->name);
    } else if (plan->runtime->fsdp && plan->strategy == DTP_ZERO3) {
        snprintf(note, bytes, "zero3 under runtime %s is full_shard (FSDP)", plan->runtime->name);
    }
}

/* "cpu", as people say who mean what their framework can offload: FSDP parameters, gradients and optimizer together,
 * ZeRO the optimizer's state with its gradients. */
/* PyTorch gathers keys and values unless it is told to rotate them (set_rotate_method); DeepSpeed knows no ring. */
static void choose_cp_comm(struct dtp_resolution *r, struct dtp_plan *plan)
{
    if (given(r, DTP_KEY_cp_comm) || plan->cp <= 1)
        return;
    if (plan->runtime->walks_gathered)
        plan->cp_comm = DTP_CP_ALL_GATHER;
    else if (plan->runtime->cp_comms == 1u << DTP_CP_A2A)
        plan->cp_comm = DTP_CP_A2A;
}

static void choose_stream(struct dtp_resolution *r, struct dtp_plan *plan)
{
    if (!given(r, DTP_KEY_sequence_parallel) && plan->tp > 1 && plan->runtime->whole_stream)
        plan->sequence_parallel = false;
}

/* Linears as the model's file has them, where Transformers' layers run; of adapters their targets say which. */
static void choose_linears(struct dtp_resolution *r, struct dtp_plan *plan)
{
    if (!dtp_plan_layers(plan)->inputs_require_grad || plan->adapters.rank)
        return;
    if (!given(r, DTP_KEY_fused_qkv))
        plan->fused_qkv = r->fused_qkv;
    if (!given(r, DTP_KEY_fused_gate_up))
        plan->fused_gate_up = r->fused_gate_up;
}

static void choose_offload(struct dtp_resolution *r, struct dtp_plan *plan)
{
    const char *word = text_of(r, DTP_KEY_offload);
    if (!word || !dtp_key_value_alias(DTP_KEY_offload, word))
        return;
    bool zero = plan->strategy == DTP_ZERO1 || plan->strategy == DTP_ZERO2 || plan->strategy == DTP_ZERO3;
    plan->offload = zero && !dtp_plan_is_fsdp(plan) ? DTP_OFFLOAD_OPTIMIZER : DTP_OFFLOAD_PARAMS;
}

/* Recipe, the runtime's form of it, then single dtypes on top. */
static void choose_precision(struct dtp_resolution *r, struct dtp_plan *plan)
{
    static const enum dtp_key keys[] = {DTP_KEY_param_dtype,   DTP_KEY_compute_dtype, DTP_KEY_reduce_dtype,
                                        DTP_KEY_master_dtype,  DTP_KEY_moment_dtype,  DTP_KEY_fp8_recipe,
                                        DTP_KEY_fp8_all_gather};
    struct dtp_precision *p = &plan->precision;
    *p = dtp_plan_default().precision;
    apply(r, DTP_KEY_precision);
    dtp_precision_for_runtime(p, plan->runtime);
    bool extra_copy = p->master != p->params;
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        apply(r, keys[i]);
    if (!given(r, DTP_KEY_fp8_all_gather) && p->fp8_recipe != DTP_FP8_TENSORWISE)
        p->fp8_all_gather = false;
    if (!given(r, DTP_KEY_param_dtype))
        return;
    if (!extra_copy && !given(r, DTP_KEY_master_dtype))
        p->master = p->params;
    bool ddp_reduces = plan->runtime->ddp && !dtp_plan_is_fsdp(plan);
    if (ddp_reduces && !given(r, DTP_KEY_reduce_dtype))
        p->reduce = p->params;
}

static void choose_sequence(struct dtp_resolution *r, struct dtp_plan *plan)
{
    const struct dtp_transformer *t = &r->job->transformer;
    if (!given(r, DTP_KEY_seq) && t->position == DTP_POSITION_LEARNED && t->positions < plan->sequence)
        plan->sequence = t->positions;
}

/* The key that says how many sequences a step has, and how many; DTP_KEY_COUNT when none does. */
static enum dtp_key batch_key(struct dtp_resolution *r, const struct dtp_plan *plan, uint64_t *sequences)
{
    uint64_t tokens = r->draft.global_batch_tokens;
    *sequences = r->draft.global_batch;
    if (!given(r, DTP_KEY_global_batch_tokens))
        return given(r, DTP_KEY_global_batch) ? DTP_KEY_global_batch : DTP_KEY_COUNT;
    if (given(r, DTP_KEY_global_batch))
        refuse(r, DTP_KEY_global_batch_tokens, "and global_batch say the same; leave one of them out");
    if (tokens % plan->sequence)
        refuse(r, DTP_KEY_global_batch_tokens, "%" PRIu64 " tokens are no multiple of seq %" PRIu64, tokens,
               plan->sequence);
    *sequences = tokens / plan->sequence ? tokens / plan->sequence : 1;
    return DTP_KEY_global_batch_tokens;
}

/* global_batch = micro_batch * data-parallel ranks * accumulate. */
static bool choose_accumulation(struct dtp_resolution *r, struct dtp_plan *plan)
{
    uint64_t whole;
    enum dtp_key key = batch_key(r, plan, &whole);
    if (key == DTP_KEY_COUNT)
        return true;
    uint64_t part = (uint64_t)plan->micro_batch * dtp_plan_data_ranks(plan, &r->job->cluster);
    uint64_t steps = whole / part;
    if (whole % part) {
        char other[64] = "";
        if (steps)
            snprintf(other, sizeof other, "%" PRIu64 " or ", steps * part);
        refuse(r, key,
               "%" PRIu64 " sequences are no multiple of micro_batch %" PRIu32 " x %" PRIu32 " %s = %" PRIu64
               "; use %s%" PRIu64,
               whole, plan->micro_batch, dtp_plan_data_ranks(plan, &r->job->cluster),
               dtp_plan_model_parallel(plan) ? "data-parallel ranks" : "GPUs", part, other, (steps + 1) * part);
        return false;
    }
    if (given(r, DTP_KEY_accumulate) && plan->accumulate != steps) {
        refuse(r, key,
               "%" PRIu64 " sequences need accumulate %" PRIu64 ", but it is %" PRIu32 "; leave one of them out", whole,
               steps, plan->accumulate);
        return false;
    }
    plan->accumulate = steps > UINT32_MAX ? UINT32_MAX : (uint32_t)steps;
    return true;
}

static const char *find_place(const void *context, const char *key, size_t *line)
{
    const struct dtp_scenario *scenario = context;
    enum dtp_key index = dtp_key_find(key);
    if (index == DTP_KEY_COUNT)
        return NULL;
    if (index == DTP_KEY_gpus && !scenario->settings[index].value)
        index = DTP_KEY_nodes;
    if (index == DTP_KEY_accumulate && !scenario->settings[index].value)
        index = scenario->settings[DTP_KEY_global_batch].value ? DTP_KEY_global_batch : DTP_KEY_global_batch_tokens;
    *line = scenario->settings[index].line;
    return scenario->settings[index].where;
}

/* What follows from words alone. */
static void choose_words(struct dtp_resolution *r)
{
    struct dtp_plan *plan = &r->draft.plan;
    refuse_several_strategies(r);
    choose_strategy(r, plan);
    choose_runtime(r, plan);
    choose_cp_comm(r, plan);
    choose_stream(r, plan);
    choose_linears(r, plan);
    choose_offload(r, plan);
    choose_precision(r, plan);
}

static void resolve_plan(struct dtp_resolution *r)
{
    struct dtp_plan *plan = &r->draft.plan;
    choose_sequence(r, plan);
    if (!choose_accumulation(r, plan))
        plan->accumulate = 1; /* to find the other faults */
    r->job->asked = r->job->plan = *plan;
    if (!r->silent)
        dtp_note_attention(r, plan->sequence);
    struct dtp_plan_source source = {find_place, r->scenario};
    enum dtp_status status =
        dtp_plan_resolve_from(&r->job->plan, &r->job->transformer, &r->job->cluster, &source, r->faults);
    worsen(r, status);
    if (!r->silent)
        dtp_note_words(r);
    if (status != DTP_OK)
        return;
    dtp_check_given(r);
    if (r->silent)
        return;
    dtp_note_unread(r);
    dtp_note_unmeasured(r);
}

static void apply_all(struct dtp_resolution *r, bool of_plan)
{
    for (int i = 0; i < DTP_KEY_COUNT; i++)
        if (r->scenario->settings[i].value && dtp_key_is_of_plan((enum dtp_key)i) == of_plan)
            apply(r, (enum dtp_key)i);
}

/* What stays while only keys of the plan change: the draft without them, model, cluster and training. */
static bool resolve_base(struct dtp_resolution *r)
{
    memset(r->job, 0, sizeof *r->job);
    r->draft = dtp_draft_default();
    apply_all(r, false);
    r->job->training = r->draft.training;
    bool model = resolve_model(r), cluster = dtp_resolve_cluster(r);
    return model && cluster;
}

enum dtp_status dtp_scenario_resolve(const struct dtp_scenario *scenario, const struct dtp_catalog *catalog,
                                     struct dtp_job *job, struct dtp_faults *faults)
{
    struct dtp_resolution r = {.scenario = scenario, .catalog = catalog, .job = job, .faults = faults};
    bool made = resolve_base(&r);
    apply_all(&r, true);
    if (made) {
        choose_words(&r);
        resolve_plan(&r);
    }
    return r.status;
}

struct dtp_resolved_base {
    struct dtp_draft draft, chosen; /* without keys of the plan; with them, and what follows from their words */
    struct dtp_job job;
    char chosen_note[sizeof((struct dtp_job *)0)->plan_note];
    uint64_t edits, plan_edits; /* of the scenario, that `draft` and `chosen` have */
    bool made, has_chosen;
};

enum dtp_status dtp_resolved_base_create(struct dtp_resolved_base **out, struct dtp_faults *faults)
{
    *out = calloc(1, sizeof **out);
    return *out ? DTP_OK : dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "out of memory");
}

void dtp_resolved_base_destroy(struct dtp_resolved_base *base)
{
    free(base);
}

/* Brings base->chosen up to date. False where words have been edited since, or too many keys. */
static bool catch_up(struct dtp_resolution *r, struct dtp_resolved_base *base)
{
    const struct dtp_scenario *scenario = r->scenario;
    if (!base->has_chosen || scenario->plan_edits - base->plan_edits > DTP_EDITS_KEPT)
        return false;
    for (uint64_t i = base->plan_edits; i < scenario->plan_edits; i++) {
        enum dtp_key key = scenario->edited[i % DTP_EDITS_KEPT];
        if (!given(r, key) || !dtp_key_stands_alone(key))
            return false;
    }
    r->draft = base->chosen;
    for (uint64_t i = base->plan_edits; i < scenario->plan_edits; i++)
        apply(r, scenario->edited[i % DTP_EDITS_KEPT]);
    return true;
}

/* Reads the keys of the plan into r->draft, or what of them is new since the last call. */
static void choose_again(struct dtp_resolution *r, struct dtp_resolved_base *base)
{
    if (catch_up(r, base)) {
        memcpy(r->job->plan_note, base->chosen_note, sizeof base->chosen_note);
    } else {
        r->draft = base->draft;
        apply_all(r, true);
        choose_words(r);
        memcpy(base->chosen_note, r->job->plan_note, sizeof base->chosen_note);
    }
    base->chosen = r->draft;
    base->plan_edits = r->scenario->plan_edits;
    base->has_chosen = r->status == DTP_OK;
}

enum dtp_status dtp_scenario_resolve_again(const struct dtp_scenario *scenario, const struct dtp_catalog *catalog,
                                           struct dtp_resolved_base *base, struct dtp_job *job,
                                           struct dtp_faults *faults)
{
    struct dtp_resolution r = {.scenario = scenario, .catalog = catalog, .job = job, .faults = faults, .silent = true};
    if (!base->made || base->edits != scenario->base_edits) {
        base->made = resolve_base(&r) && r.status == DTP_OK;
        base->edits = scenario->base_edits;
        base->draft = r.draft;
        base->job = *job;
        base->has_chosen = false;
        if (!base->made)
            return r.status;
    }
    *job = base->job;
    choose_again(&r, base);
    resolve_plan(&r);
    return r.status;
}

enum dtp_status dtp_scenario_resolve_cluster(const struct dtp_scenario *scenario, const struct dtp_catalog *catalog,
                                             struct dtp_cluster *out, struct dtp_faults *faults)
{
    struct dtp_job job = {0};
    struct dtp_resolution r = {.scenario = scenario, .catalog = catalog, .job = &job, .faults = faults};
    r.draft = dtp_draft_default();
    for (int i = 0; i < DTP_KEY_COUNT; i++)
        if (strcmp(dtp_key_section((enum dtp_key)i), "cluster") == 0)
            apply(&r, (enum dtp_key)i);
    bool made = dtp_resolve_cluster(&r);
    *out = job.cluster;
    return made || r.status != DTP_OK ? r.status : DTP_BAD_INPUT;
}

bool dtp_scenario_cluster(const struct dtp_scenario *scenario, const struct dtp_catalog *catalog,
                          struct dtp_cluster *out)
{
    struct dtp_faults faults = {0};
    return dtp_scenario_resolve_cluster(scenario, catalog, out, &faults) == DTP_OK;
}

uint64_t dtp_job_batch_sequences(const struct dtp_job *job)
{
    return (uint64_t)job->plan.micro_batch * job->plan.accumulate * dtp_plan_data_ranks(&job->plan, &job->cluster);
}

enum dtp_status dtp_scenario_check_names(const struct dtp_scenario *scenario, const struct dtp_catalog *catalog,
                                         struct dtp_faults *faults)
{
    struct dtp_resolution r = {.scenario = scenario, .catalog = catalog, .faults = faults};
    size_t before = faults->count;
    if (given(&r, DTP_KEY_machine))
        dtp_resolve_machine(&r);
    if (given(&r, DTP_KEY_gpu))
        dtp_catalog_gpu(catalog, text_of(&r, DTP_KEY_gpu), where_of(&r, DTP_KEY_gpu), line_of(&r, DTP_KEY_gpu), faults);
    if (given(&r, DTP_KEY_model) && !dtp_model_is_file(text_of(&r, DTP_KEY_model)))
        dtp_catalog_model(catalog, text_of(&r, DTP_KEY_model), where_of(&r, DTP_KEY_model), line_of(&r, DTP_KEY_model),
                          faults);
    return faults->count > before ? DTP_BAD_INPUT : DTP_OK;
}
