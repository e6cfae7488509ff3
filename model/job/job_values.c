#include "job/job_values.h"

#include "machine/measured.h"
#include "job/scenario_keys.h"

#include <stdio.h>
#include <string.h>

_Static_assert(DTP_KEY_COUNT <= DTP_JOB_VALUES_MAX, "one value a key");

/* The settings that would give this job, every key written out. */
static struct dtp_draft draft_of(const struct dtp_job *job)
{
    const struct dtp_transformer *t = &job->transformer;
    const struct dtp_cluster *c = &job->cluster;
    return (struct dtp_draft){.transformer = dtp_transformer_told(t),
                              .plan = job->plan,
                              .params = (double)dtp_transformer_count(t).total,
                              .network_gbit_per_s = c->machine.network_bytes_per_s * 8e-9,
                              .oversubscription = c->oversubscription,
                              .leaf_nodes = c->leaf_nodes,
                              .network = c->network,
                              .rails = c->rails,
                              .global_batch = dtp_job_batch_sequences(job),
                              .global_batch_tokens = dtp_job_batch_sequences(job) * job->plan.sequence,
                              .training = job->training,
                              .nodes = c->nodes,
                              .gpus = c->gpus,
                              .gpus_per_node = c->gpus_per_node,
                              .bias = t->qkv_bias && t->attention_output_bias && t->mlp_bias};
}

/* Names stand in no draft. */
static const char *name_of(const struct dtp_job *job, enum dtp_key key)
{
    const struct dtp_cluster *c = &job->cluster;
    if (key == DTP_KEY_gpu)
        return c->gpu.key;
    if (key == DTP_KEY_machine)
        return c->measured ? dtp_measured_name(c->measured) : c->machine.key;
    return job->transformer.name; /* model and name */
}

size_t dtp_job_values(const struct dtp_job *job, struct dtp_job_value out[DTP_JOB_VALUES_MAX])
{
    size_t count;
    const struct dtp_scenario_key *keys = dtp_scenario_keys(&count);
    struct dtp_draft draft = draft_of(job);
    for (size_t i = 0; i < count; i++) {
        struct dtp_job_value *v = &out[i];
        dtp_key_value((enum dtp_key)i, &draft, v);
        v->key = &keys[i];
        if (v->kind == DTP_VALUE_WORD && !*v->word)
            v->word = name_of(job, (enum dtp_key)i);
        if (i == DTP_KEY_params) /* asked for as a number, counted to the last one */
            *v = (struct dtp_job_value){.key = &keys[i], .kind = DTP_VALUE_WHOLE, .whole = (uint64_t)draft.params};
        v->missing = v->kind == DTP_VALUE_REAL && !(v->real > 0) && strcmp(keys[i].section, "money") == 0;
    }
    return count;
}

const char *dtp_job_value_name(const struct dtp_scenario_key *key, bool counts, char *out, size_t bytes)
{
    static const char *const units[][2] = {{"TIME", "_s"}, {"BYTES/S", "_bytes_per_s"}, {"USD", "_usd"}};
    const char *unit = counts && key->value && strcmp(key->value, "N") == 0 ? "_count" : "";
    for (size_t i = 0; i < sizeof units / sizeof *units && key->value; i++)
        if (strcmp(key->value, units[i][0]) == 0)
            unit = units[i][1];
    snprintf(out, bytes, "%s%s", key->key, unit);
    return out;
}
