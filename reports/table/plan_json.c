/* The plan as one JSON object, schema dtplan.plan/1, and several of them as dtplan.compare/1.
 *
 * Keys end in their unit. */
#include "record/report.h"

#include "job/scenario_keys.h"
#include "page/json_value.h"
#include "machine/measured.h"

#include <string.h>

/* ---- what is planned -------------------------------------------------------------------------------------------- */

static json_t *value_json(const struct dtp_job_value *value)
{
    if (value->missing)
        return json_null();
    switch (value->kind) {
    case DTP_VALUE_WHOLE: return dtp_json_whole(value->whole);
    case DTP_VALUE_REAL: return dtp_json_real(value->real);
    case DTP_VALUE_SWITCH: return json_boolean(value->whole != 0);
    case DTP_VALUE_WORD: return dtp_json_text(value->word);
    }
    return json_null();
}

/* What a job is, and the object that it is written to. */
struct fields {
    struct dtp_job_value values[DTP_JOB_VALUES_MAX];
    size_t count;
    json_t *object;
};

/* In place, for words may lie in the values themselves. */
static void begin(struct fields *f, const struct dtp_job *job)
{
    f->object = json_object();
    f->count = dtp_job_values(job, f->values);
}

static void add_key(struct fields *f, const struct dtp_job_value *value)
{
    char name[96];
    dtp_job_value_name(value->key, false, name, sizeof name);
    if (!json_object_get(f->object, name))
        json_object_set_new(f->object, name, value_json(value));
}

/* Keys that readers find first; the order of the others is the table's. */
static void add_keys(struct fields *f, const enum dtp_key *keys, size_t count)
{
    for (size_t i = 0; i < count; i++)
        add_key(f, &f->values[keys[i]]);
}
#define ADD_KEYS(fields, ...)                                                                                          \
    add_keys(fields, (const enum dtp_key[]){__VA_ARGS__},                                                              \
             sizeof((const enum dtp_key[]){__VA_ARGS__}) / sizeof(enum dtp_key))

/* Every key of a section that has no field yet, by its own name; the section's own name is its object's. */
static json_t *with_section(struct fields *f, const char *section)
{
    for (size_t i = 0; i < f->count; i++)
        if (strcmp(f->values[i].key->section, section) == 0 && strcmp(f->values[i].key->key, section) != 0)
            add_key(f, &f->values[i]);
    return f->object;
}

static json_t *model_object(const struct dtp_job *job)
{
    struct fields f;
    begin(&f, job);
    ADD_KEYS(&f, DTP_KEY_name, DTP_KEY_params, DTP_KEY_layers, DTP_KEY_hidden, DTP_KEY_heads, DTP_KEY_kv_heads,
             DTP_KEY_head_dim, DTP_KEY_ffn, DTP_KEY_vocab, DTP_KEY_seq, DTP_KEY_tied_head);
    json_object_set_new(f.object, "active_params",
                        json_integer((json_int_t)dtp_transformer_count(&job->transformer).active));
    json_object_set_new(f.object, "flops_per_token",
                        dtp_json_real(dtp_transformer_model_flops_per_token(&job->transformer, job->plan.sequence)));
    json_object_set_new(f.object, "shape_note", dtp_json_text(job->shape_note));
    json_object_set_new(f.object, "note", dtp_json_text(job->model_note));
    return with_section(&f, "model");
}

static json_t *cluster_object(const struct dtp_job *job)
{
    const struct dtp_cluster *c = &job->cluster;
    struct fields f;
    begin(&f, job);
    ADD_KEYS(&f, DTP_KEY_gpu);
    json_object_set_new(f.object, "gpu_name", dtp_json_text(c->gpu.name));
    json_object_set_new(f.object, "machine", dtp_json_text(c->machine.key));
    json_object_set_new(f.object, "measured_machine",
                        c->measured ? dtp_json_text(dtp_measured_name(c->measured)) : json_null());
    ADD_KEYS(&f, DTP_KEY_gpus, DTP_KEY_gpus_per_node, DTP_KEY_nodes);
    json_object_set_new(f.object, "network_bytes_per_s_per_node", dtp_json_real(c->machine.network_bytes_per_s));
    json_object_set_new(f.object, "note", dtp_json_text(job->cluster_note));
    return with_section(&f, "cluster");
}

static json_t *precision_object(const struct dtp_precision *p)
{
    json_t *object = json_object();
    json_object_set_new(object, "params", json_string(dtp_dtype_text(p->params)));
    json_object_set_new(object, "compute", json_string(dtp_dtype_text(p->compute)));
    json_object_set_new(object, "reduce", json_string(dtp_dtype_text(p->reduce)));
    json_object_set_new(object, "master", json_string(dtp_dtype_text(p->master)));
    json_object_set_new(object, "moments", json_string(dtp_dtype_text(p->moments)));
    return object;
}

static json_t *plan_object(const struct dtp_job *job)
{
    struct fields f;
    begin(&f, job);
    ADD_KEYS(&f, DTP_KEY_strategy, DTP_KEY_runtime, DTP_KEY_compile, DTP_KEY_fsdp1, DTP_KEY_shard_group,
             DTP_KEY_micro_batch, DTP_KEY_accumulate, DTP_KEY_accumulate_sync, DTP_KEY_global_batch,
             DTP_KEY_checkpointing, DTP_KEY_offload, DTP_KEY_precision);
    json_object_set_new(f.object, "dtypes", precision_object(&job->plan.precision));
    struct dtp_trained_count count;
    dtp_plan_trained(&job->transformer, &job->plan, &count);
    json_object_set_new(f.object, "trained_params", json_integer((json_int_t)count.trained));
    json_object_set_new(f.object, "frozen_params", json_integer((json_int_t)count.frozen));
    json_object_set_new(f.object, "frozen_bytes", json_integer((json_int_t)count.frozen_bytes));
    ADD_KEYS(&f, DTP_KEY_attention, DTP_KEY_loss, DTP_KEY_optimizer, DTP_KEY_wrap_layers);
    json_object_set_new(f.object, "note", dtp_json_text(job->plan_note));
    ADD_KEYS(&f, DTP_KEY_reshard_after_forward);
    return with_section(&f, "plan");
}

/* What was asked of the whole training; null: nothing. */
static json_t *money_object(const struct dtp_job *job)
{
    struct fields f;
    begin(&f, job);
    return with_section(&f, "money");
}

/* ---- what is predicted ------------------------------------------------------------------------------------------ */

static json_t *phases_object(const struct dtp_memory *m)
{
    json_t *phases = json_object();
    for (int phase = 0; phase < DTP_PHASE_COUNT; phase++) {
        json_t *object = json_object();
        for (int owner = 0; owner < DTP_OWNER_COUNT; owner++) {
            char key[64];
            snprintf(key, sizeof key, "%s_bytes", dtp_owner_key((enum dtp_owner)owner));
            json_object_set_new(object, key, dtp_json_whole(m->phase_bytes[phase][owner]));
        }
        json_object_set_new(object, "total_bytes", dtp_json_whole(m->phase_total_bytes[phase]));
        json_object_set_new(phases, dtp_phase_key((enum dtp_phase)phase), object);
    }
    return phases;
}

static json_t *memory_object(const struct dtp_memory *m)
{
    json_t *object = json_object();
    json_object_set_new(object, "params_bytes", dtp_json_whole(m->params_bytes));
    json_object_set_new(object, "grads_bytes", dtp_json_whole(m->grads_bytes));
    json_object_set_new(object, "optimizer_bytes", dtp_json_whole(m->optimizer_bytes));
    json_object_set_new(object, "activations_bytes", dtp_json_whole(m->activations_bytes));
    json_object_set_new(object, "temporary_bytes", dtp_json_whole(m->temporary_bytes));
    json_object_set_new(object, "after_init_bytes", dtp_json_whole(m->after_init_bytes));
    json_object_set_new(object, "allocated_peak_bytes", dtp_json_whole(m->allocated_peak_bytes));
    json_object_set_new(object, "reserved_peak_bytes", dtp_json_whole(m->reserved_peak_bytes));
    json_object_set_new(object, "device_peak_bytes", dtp_json_whole(m->device_peak_bytes));
    json_object_set_new(object, "context_bytes", dtp_json_whole(m->context_bytes));
    json_object_set_new(object, "nccl_bytes", dtp_json_whole(m->nccl_bytes));
    json_object_set_new(object, "capacity_bytes", dtp_json_whole(m->capacity_bytes));
    json_object_set_new(object, "host_bytes", dtp_json_whole(m->host_bytes));
    json_object_set_new(object, "nvme_bytes", dtp_json_whole(m->nvme_bytes));
    json_object_set_new(object, "host_capacity_bytes",
                        m->host_capacity_bytes ? dtp_json_whole(m->host_capacity_bytes) : json_null());
    json_object_set_new(object, "nvme_capacity_bytes",
                        m->nvme_capacity_bytes ? dtp_json_whole(m->nvme_capacity_bytes) : json_null());
    json_object_set_new(object, "verdict", json_string(dtp_verdict_text(m->verdict)));
    json_object_set_new(object, "shortage", m->shortage ? json_string(dtp_shortage_text(m->shortage)) : json_null());
    json_object_set_new(object, "is_bound", json_boolean(m->bound));
    json_object_set_new(object, "peak_phase", json_string(dtp_phase_key(m->peak_phase)));
    json_object_set_new(object, "phases", phases_object(m));
    return object;
}

static json_t *communication_object(const struct dtp_communication *c)
{
    json_t *object = json_object();
    char key[64];
    for (int i = 0; i < DTP_COLLECTIVE_COUNT; i++) {
        snprintf(key, sizeof key, "%s_bytes", dtp_collective_text((enum dtp_collective)i));
        json_object_set_new(object, key, dtp_json_whole(c->bytes[i]));
    }
    json_object_set_new(object, "host_to_device_bytes", dtp_json_whole(c->host_to_device_bytes));
    json_object_set_new(object, "device_to_host_bytes", dtp_json_whole(c->device_to_host_bytes));
    json_object_set_new(object, "total_bytes", dtp_json_whole(c->total_bytes));
    json_object_set_new(object, "link_bytes", dtp_json_whole(c->link_bytes));
    json_object_set_new(object, "network_bytes", dtp_json_whole(c->network_bytes));
    for (int i = 0; i < DTP_COLLECTIVE_COUNT; i++) {
        snprintf(key, sizeof key, "%s_count", dtp_collective_text((enum dtp_collective)i));
        json_object_set_new(object, key, dtp_json_whole(c->count[i]));
    }
    return object;
}

static json_t *time_object(const struct dtp_time *t)
{
    json_t *object = json_object();
    json_object_set_new(object, "step_s", dtp_json_real(t->step_s));
    json_object_set_new(object, "step_perfect_overlap_s", dtp_json_real(t->step_perfect_overlap_s));
    json_object_set_new(object, "step_no_overlap_s", dtp_json_real(t->step_no_overlap_s));
    json_object_set_new(object, "compute_s", dtp_json_real(t->compute_s));
    json_object_set_new(object, "exposed_communication_s", dtp_json_real(t->exposed_communication_s));
    json_object_set_new(object, "exposed_offload_s", dtp_json_real(t->exposed_offload_s));
    json_object_set_new(object, "bubble_s", dtp_json_real(t->bubble_s));
    json_object_set_new(object, "optimizer_s", dtp_json_real(t->optimizer_s));
    json_object_set_new(object, "communication_s", dtp_json_real(t->communication_s));
    json_object_set_new(object, "offload_s", dtp_json_real(t->offload_s));
    json_object_set_new(object, "host_launch_s", dtp_json_real(t->host_launch_s));
    json_object_set_new(object, "launch_wait_s", dtp_json_real(t->launch_wait_s));
    json_object_set_new(object, "beside_s", dtp_json_real(t->beside_s));
    json_object_set_new(object, "matmul_s", dtp_json_real(t->matmul_s));
    json_object_set_new(object, "attention_s", dtp_json_real(t->attention_s));
    json_object_set_new(object, "memory_bound_s", dtp_json_real(t->memory_bound_s));
    json_object_set_new(object, "loss_s", dtp_json_real(t->loss_s));
    json_object_set_new(object, "recompute_s", dtp_json_real(t->recompute_s));
    for (int i = 0; i < DTP_COLLECTIVE_COUNT; i++) {
        char key[64];
        snprintf(key, sizeof key, "%s_s", dtp_collective_text((enum dtp_collective)i));
        json_object_set_new(object, key, dtp_json_real(t->collective_s[i]));
    }
    return object;
}

static json_t *throughput_object(const struct dtp_report *report)
{
    const struct dtp_throughput *t = &report->prediction.throughput;
    const struct dtp_scaling *s = &report->scaling;
    json_t *object = json_object();
    json_object_set_new(object, "tokens_per_s", dtp_json_real(t->tokens_per_s));
    json_object_set_new(object, "tokens_per_s_per_gpu", dtp_json_real(t->tokens_per_s_per_gpu));
    json_object_set_new(object, "flops_per_s_per_gpu", dtp_json_real(t->flops_per_s_per_gpu));
    json_object_set_new(object, "mfu", dtp_json_real(t->mfu));
    json_object_set_new(object, "hfu", dtp_json_real(t->hfu));
    json_object_set_new(object, "scaling_efficiency", dtp_json_real(s->efficiency));
    json_object_set_new(object, "scaling_reference_gpus", dtp_json_whole(s->reference_gpus));
    json_object_set_new(object, "scaling_reference_fits", json_boolean(s->reference_fits));
    return object;
}

static json_t *cost_object(const struct dtp_report *report)
{
    const struct dtp_money *m = &report->money;
    static const char *const levels[] = {"low", "typical", "high"};
    json_t *object = json_object();
    for (int level = 0; level < DTP_PRICE_LEVEL_COUNT; level++) {
        char key[64];
        snprintf(key, sizeof key, "gpu_hour_usd_%s", levels[level]);
        json_object_set_new(object, key, m->known ? dtp_json_real(m->gpu_hour_usd[level]) : json_null());
        snprintf(key, sizeof key, "job_usd_per_hour_%s", levels[level]);
        json_object_set_new(object, key, m->known ? dtp_json_real(m->job_hour_usd[level]) : json_null());
        snprintf(key, sizeof key, "usd_per_billion_tokens_%s", levels[level]);
        json_object_set_new(object, key, m->known ? dtp_json_real(m->billion_tokens_usd[level]) : json_null());
    }
    json_object_set_new(object, "job_usd_per_hour",
                        m->known ? dtp_json_real(m->job_hour_usd[DTP_PRICE_TYPICAL]) : json_null());
    json_object_set_new(object, "usd_per_billion_tokens",
                        m->known ? dtp_json_real(m->billion_tokens_usd[DTP_PRICE_TYPICAL]) : json_null());
    json_object_set_new(object, "price_date", dtp_json_text(m->date));
    json_object_set_new(object, "training", dtp_training_json(&report->training, m));
    return object;
}

/* ---- advice and solver ------------------------------------------------------------------------------------------ */

static json_t *advice_object(const struct dtp_advice *advice)
{
    static const char *const kinds[] = {
        [DTP_ADVICE_NONE] = "none",           [DTP_ADVICE_FASTER] = "faster",     [DTP_ADVICE_MAKES_FIT] = "makes_fit",
        [DTP_ADVICE_MORE_GPUS] = "more_gpus", [DTP_ADVICE_HOPELESS] = "hopeless",
    };
    json_t *object = json_object(), *changes = json_array();
    for (size_t i = 0; i < advice->count; i++) {
        const struct dtp_change *change = &advice->changes[i];
        json_t *entry = json_object();
        json_object_set_new(entry, "flags", json_string(change->flags));
        json_object_set_new(entry, "note", dtp_json_text(change->note));
        json_object_set_new(entry, "tokens_per_s_gain_fraction", dtp_json_real(change->gain));
        json_object_set_new(entry, "tokens_per_s", dtp_json_real(change->variant.prediction.throughput.tokens_per_s));
        json_object_set_new(entry, "device_peak_bytes",
                            dtp_json_whole(change->variant.prediction.memory.device_peak_bytes));
        json_array_append_new(changes, entry);
    }
    json_object_set_new(object, "kind", json_string(kinds[advice->kind]));
    json_object_set_new(object, "changes", changes);
    return object;
}

static json_t *solution_object(const struct dtp_solution *s)
{
    static const char *const goals[] = {
        [DTP_SOLVE_MAX_MICRO_BATCH] = "max_micro_batch",
        [DTP_SOLVE_MAX_SEQUENCE] = "max_seq",
        [DTP_SOLVE_MIN_GPUS] = "min_gpus",
    };
    json_t *object = json_object();
    json_object_set_new(object, "goal", json_string(goals[s->goal]));
    json_object_set_new(object, "found", json_boolean(s->found));
    json_object_set_new(object, "value", s->found ? dtp_json_whole(s->value) : json_null());
    json_object_set_new(object, "tight", json_boolean(s->tight));
    json_object_set_new(object, "tight_value", s->tight_value ? dtp_json_whole(s->tight_value) : json_null());
    json_object_set_new(object, "next_value", s->next_value ? dtp_json_whole(s->next_value) : json_null());
    json_object_set_new(object, "next_device_bytes",
                        s->next_device_bytes ? dtp_json_whole(s->next_device_bytes) : json_null());
    json_object_set_new(object, "next_reason", dtp_json_text(s->next_reason));
    return object;
}

static json_t *report_object(const struct dtp_report *report)
{
    json_t *object = json_object();
    json_object_set_new(object, "schema", json_string("dtplan.plan/1"));
    json_object_set_new(object, "fidelity", json_string(report->simulated ? "simulated" : "closed"));
    if (*report->not_simulated_because)
        json_object_set_new(object, "not_simulated_because", dtp_json_text(report->not_simulated_because));
    json_object_set_new(object, "model", model_object(&report->job));
    json_object_set_new(object, "cluster", cluster_object(&report->job));
    json_object_set_new(object, "plan", plan_object(&report->job));
    json_object_set_new(object, "memory", memory_object(&report->prediction.memory));
    json_object_set_new(object, "communication", communication_object(&report->prediction.communication));
    json_object_set_new(object, "time", time_object(&report->prediction.time));
    json_object_set_new(object, "stages", dtp_pipeline_json(&report->stages));
    json_object_set_new(object, "throughput", throughput_object(report));
    json_object_set_new(object, "cost", cost_object(report));
    json_object_set_new(object, "money", money_object(&report->job));
    json_object_set_new(object, "advice", advice_object(&report->advice));
    json_object_set_new(object, "solution", report->solved ? solution_object(&report->solution) : json_null());
    return object;
}

/* Takes over `object`. Twelve digits: more than any prediction is worth, and 0.1 prints as 0.1. */
enum dtp_status dtp_report_plan_json(const struct dtp_report *report, FILE *file, struct dtp_faults *faults)
{
    return dtp_json_dump(report_object(report), file, faults);
}

enum dtp_status dtp_report_compare_json(const struct dtp_comparison_row *rows, size_t count, FILE *file,
                                        struct dtp_faults *faults)
{
    json_t *object = json_object(), *plans = json_array(), *refused = json_array();
    long best = dtp_comparison_best(rows, count);
    for (size_t i = 0; i < count; i++) {
        if (!rows[i].refused) {
            json_array_append_new(plans, report_object(rows[i].report));
            continue;
        }
        json_t *entry = json_object();
        json_object_set_new(entry, "strategy", dtp_json_text(rows[i].strategy));
        json_object_set_new(entry, "reason", dtp_json_text(rows[i].reason));
        json_array_append_new(refused, entry);
    }
    json_object_set_new(object, "schema", json_string("dtplan.compare/1"));
    json_object_set_new(object, "best", best >= 0 ? dtp_json_text(rows[best].strategy) : json_null());
    json_object_set_new(object, "plans", plans);
    json_object_set_new(object, "refused", refused);
    return dtp_json_dump(object, file, faults);
}
