/* Inside of the scenario: what the keys of job_keys.def are called (key_names.c), how their values are
 * read, and the draft that they fill (scenario_keys.c).
 *
 * A draft holds every value a key can set, at the same types as the structs it ends up in, so that a row of the table
 * needs only an offset. Values are read twice: when they are set, to refuse them where they stand, and again when the
 * scenario is resolved, in table order. Who resolves it again reads what was edited since, where that is all it takes
 * (dtp_key_stands_alone). */
#ifndef DTP_SCENARIO_KEYS_H
#define DTP_SCENARIO_KEYS_H

#include "job/job_values.h"
#include "job/scenario.h"
#include "plan/plan_keys.h"

struct dtp_draft {
    struct dtp_transformer transformer; /* only fields whose key was given mean something */
    struct dtp_plan plan;               /* starts as the default plan */
    double params, network_gbit_per_s, oversubscription;
    uint32_t leaf_nodes;
    enum dtp_network network;
    enum dtp_rails rails;
    uint64_t global_batch;        /* sequences per step over all GPUs; 0 = by accumulate */
    uint64_t global_batch_tokens; /* the same in tokens */
    struct dtp_training training;
    uint32_t nodes, gpus, gpus_per_node;
    bool bias;
};

/* X(key, word, value, words): what people type elsewhere for a key (value NULL) or for one of its values, each with one
 * meaning. A value of "" depends on other choices, and scenario_resolve.c says how; one that is the word itself is a
 * value of its own, whose meaning is said because elsewhere it has another. */
#define DTP_ALIAS_TABLE(X)                                                                                             \
    X(micro_batch, "batch_size", NULL, "sequences per GPU and micro-step, not of all GPUs")                            \
    X(accumulate, "gradient_accumulation_steps", NULL, "micro-steps per optimizer step")                               \
    X(seq, "sequence_length", NULL, "tokens per sequence")                                                             \
    X(tp, "tensor_model_parallel_size", NULL, "tensor parallel GPUs")                                                  \
    X(pp, "pipeline_model_parallel_size", NULL, "ranks of the pipeline")                                               \
    X(cp, "context_parallel_size", NULL, "context parallel GPUs")                                                      \
    X(stages, "pipeline_model_parallel_layout", NULL, "Megatron's layout text, quoted for the shell")                  \
    X(offload, "cpu", "", "params under FSDP, optimizer under ZeRO")                                                   \
    X(precision, "bf16", "bf16", "parameters and gradients in bf16, moments in fp32; autocast is bf16-mixed")          \
    X(precision, "fp16", "fp16-mixed", "fp16-mixed")                                                                   \
    X(precision, "fp8", "fp8-tensorwise", "fp8-tensorwise")

enum dtp_key {
#define DTP_KEY(key, section, value, how, reader, tried, words) DTP_KEY_##key,
#include "job/job_keys.def"
#undef DTP_KEY
    DTP_KEY_COUNT
};

/* Text of each key and where it was set; value NULL = not given. */
struct dtp_setting {
    char *value, *where;
    size_t line;
    const struct dtp_scenario_alias *alias; /* the other word it was set by; NULL: its own */
};

#define DTP_EDITS_KEPT 8

struct dtp_scenario {
    struct dtp_setting settings[DTP_KEY_COUNT];
    bool without_times;
    uint64_t base_edits; /* how often something was set or unset that is not of the plan alone (dtp_key_is_of_plan) */
    uint64_t plan_edits; /* and how often what is; the n-th of them was of edited[n % DTP_EDITS_KEPT] */
    enum dtp_key edited[DTP_EDITS_KEPT];
};

/* Index of a key by its name or another word for it, '-' and '_' alike, or DTP_KEY_COUNT. `alias` (may be NULL) gets
 * that word's row, or NULL. */
enum dtp_key dtp_key_find_word(const char *name, const struct dtp_scenario_alias **alias);
enum dtp_key dtp_key_find(const char *name);
/* What a value that the key does not have most likely means, as "write ..."; NULL: nobody's word for anything here. */
const char *dtp_key_value_meant(enum dtp_key key, const char *value);
/* The row of a word that people type for a value of this key, or NULL. */
const struct dtp_scenario_alias *dtp_key_value_alias(enum dtp_key key, const char *value);
const struct dtp_scenario_key *dtp_key_row(enum dtp_key key);
const char *dtp_key_name(enum dtp_key key);
const char *dtp_key_section(enum dtp_key key);
bool dtp_key_is_switch(enum dtp_key key);
/* Whether reading a value sets one number or switch of the draft and nothing else, and no other key sets that field
 * behind it: so that a value may be read over an older one, out of turn. */
bool dtp_key_stands_alone(enum dtp_key key);
/* Whether only the plan is resolved by it: neither model nor cluster nor training depend on it. */
bool dtp_key_is_of_plan(enum dtp_key key);
/* Who reads it; ANYONE of keys that are not of the plan. */
enum dtp_key_reader dtp_key_reader(enum dtp_key key);

/* Default plan, everything else zero, no oversubscription. */
struct dtp_draft dtp_draft_default(void);
/* Reads `value` into the draft. False when it is no value of this key; `why` then says what one is. */
bool dtp_key_apply(enum dtp_key key, const char *value, struct dtp_draft *draft, char *why, size_t why_bytes);
/* Reads a number as this key does ("8k" is 8192 where the key counts so), whatever its limits. False when it is no
 * number or the key takes none. */
bool dtp_key_parse_number(enum dtp_key key, const char *value, double *out);
/* The value that a key has in a draft; of TEXT keys, which no draft holds, an empty word. */
void dtp_key_value(enum dtp_key key, const struct dtp_draft *draft, struct dtp_job_value *out);
/* Whether both drafts have the same in the key's field. */
bool dtp_key_same(enum dtp_key key, const struct dtp_draft *one, const struct dtp_draft *other);
/* Copies a field that lies in draft->transformer to the same field of `out`; other keys change nothing. */
void dtp_key_copy_dimension(enum dtp_key key, const struct dtp_draft *draft, struct dtp_transformer *out);

#endif
