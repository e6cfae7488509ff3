#include "job/scenario_keys.h"
#include "runtime/runtimes.h"

#include "net/models.h"
#include "plan/runtime_sizes.h"
#include "plan/checkpointing.h"
#include "plan/graph_modules.h"
#include "base/nearest.h"
#include "base/number.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* ---- parsers of words ------------------------------------------------------------------------------------------ */

static void write_word(const char *word, struct dtp_job_value *out)
{
    out->kind = DTP_VALUE_WORD;
    out->word = word;
}

static void write_real(double value, struct dtp_job_value *out)
{
    out->kind = DTP_VALUE_REAL;
    out->real = value;
}

static void write_whole(uint64_t value, struct dtp_job_value *out)
{
    out->kind = DTP_VALUE_WHOLE;
    out->whole = value;
}

#define WRITE_WORD(name)                                                                                               \
    static void write_##name(const void *field, struct dtp_job_value *out)                                             \
    {                                                                                                                  \
        const enum dtp_##name *value = field;                                                                          \
        write_word(dtp_##name##_text(*value), out);                                                                    \
    }
#define PARSE_WORD(name)                                                                                               \
    static bool parse_##name(const char *text, void *field)                                                            \
    {                                                                                                                  \
        enum dtp_##name *out = field;                                                                                  \
        return dtp_##name##_parse(text, out);                                                                          \
    }                                                                                                                  \
    WRITE_WORD(name)
static bool parse_runtime(const char *text, void *field)
{
    const struct dtp_runtime **out = field, *found = dtp_runtime_find(text);
    if (found)
        *out = found;
    return found;
}
static void write_runtime(const void *field, struct dtp_job_value *out)
{
    const struct dtp_runtime *const *value = field;
    write_word((*value)->name, out);
}
PARSE_WORD(attention)
PARSE_WORD(base)
PARSE_WORD(loss)
PARSE_WORD(optimizer)
PARSE_WORD(engine)
PARSE_WORD(cp_comm)
PARSE_WORD(fp8_recipe)
PARSE_WORD(comm_hook)

static bool parse_schedule(const char *text, void *field)
{
    return dtp_schedule_parse(text, field);
}
static void write_schedule(const void *field, struct dtp_job_value *out)
{
    write_word(dtp_schedule_row(*(const enum dtp_schedule_kind *)field)->word, out);
}

static bool parse_stages(const char *text, void *field)
{
    return dtp_stage_choice_parse(text, field);
}
static void write_stages(const void *field, struct dtp_job_value *out)
{
    snprintf(out->buffer, sizeof out->buffer, "%s", dtp_stage_choice_text(field)); /* a layout lies in the field */
    write_word(out->buffer, out);
}

static bool parse_layout_order(const char *text, void *field)
{
    struct dtp_layout layout;
    if (!dtp_layout_parse_order(text, &layout))
        return false;
    memcpy(field, layout.order, sizeof layout.order);
    return true;
}
static void write_layout_order(const void *field, struct dtp_job_value *out)
{
    struct dtp_layout layout;
    memcpy(layout.order, field, sizeof layout.order);
    write_word(dtp_layout_order_text(&layout, out->buffer, sizeof out->buffer), out);
}

/* The next of several names that commas separate; false when it is no strategy or was named before. */
static bool take_strategy(const char *text, size_t bytes, enum dtp_strategy *list, size_t *count)
{
    char name[64];
    enum dtp_strategy strategy;
    if (bytes >= sizeof name)
        return false;
    memcpy(name, text, bytes);
    name[bytes] = '\0';
    if (!dtp_strategy_parse(name, &strategy))
        return false;
    for (size_t i = 0; i < *count; i++)
        if (list[i] == strategy)
            return false;
    list[(*count)++] = strategy;
    return true;
}

size_t dtp_scenario_strategies(const char *text, enum dtp_strategy list[DTP_STRATEGY_COUNT])
{
    size_t count = 0;
    if (dtp_names_equal(text, "all")) {
        for (; count < DTP_STRATEGY_COUNT; count++)
            list[count] = (enum dtp_strategy)count;
        return count;
    }
    for (;; text++) {
        size_t bytes = strcspn(text, ",");
        if (!take_strategy(text, bytes, list, &count))
            return 0;
        text += bytes;
        if (!*text)
            return count;
    }
}

static bool parse_strategy(const char *text, void *field)
{
    enum dtp_strategy *out = field, list[DTP_STRATEGY_COUNT];
    if (dtp_scenario_strategies(text, list) == 0)
        return false;
    *out = list[0];
    return true;
}
WRITE_WORD(strategy)

#define PARSE_CHOICE(name, last)                                                                                       \
    static bool parse_##name(const char *text, void *field)                                                            \
    {                                                                                                                  \
        enum dtp_##name *out = field;                                                                                  \
        for (int i = 0; i <= (int)(last); i++)                                                                         \
            if (dtp_names_equal(text, dtp_##name##_text((enum dtp_##name)i))) {                                        \
                *out = (enum dtp_##name)i;                                                                             \
                return true;                                                                                           \
            }                                                                                                          \
        return false;                                                                                                  \
    }                                                                                                                  \
    WRITE_WORD(name)
PARSE_CHOICE(network, DTP_NETWORK_OPA)
PARSE_CHOICE(rails, DTP_RAILS_PXN)
PARSE_CHOICE(norm, DTP_RMS_NORM)
PARSE_CHOICE(activation, DTP_GELU_NEW)
PARSE_CHOICE(qk_norm_weight, DTP_QK_NORM_UNWEIGHTED)
PARSE_CHOICE(parallel_block, DTP_PARALLEL_TWO_NORMS)
PARSE_CHOICE(norm_place, DTP_NORMS_BOTH)
PARSE_CHOICE(position, DTP_POSITION_NONE)
PARSE_CHOICE(router, DTP_ROUTER_SIGMOID)
PARSE_CHOICE(dtype, DTP_DTYPE_COUNT - 1)

static bool parse_targets(const char *text, void *field)
{
    return dtp_targets_parse(text, field);
}

static void write_targets(const void *field, struct dtp_job_value *out)
{
    dtp_targets_text(*(const uint32_t *)field, out->buffer);
    write_word(out->buffer, out);
}

static bool parse_parameters(const char *text, void *field)
{
    return dtp_parameters_parse(text, field);
}

static void write_parameters(const void *field, struct dtp_job_value *out)
{
    write_word(dtp_parameters_text(*(const uint32_t *)field), out);
}

/* Of linears that stay as they are: none, or targets of adapters. */
static bool parse_linears(const char *text, void *field)
{
    if (strcmp(text, "none") != 0)
        return dtp_targets_parse(text, field);
    *(uint32_t *)field = 0;
    return true;
}

static void write_linears(const void *field, struct dtp_job_value *out)
{
    if (*(const uint32_t *)field)
        write_targets(field, out);
    else
        write_word("none", out);
}

static bool parse_recompute(const char *text, void *field)
{
    return dtp_recompute_parse(text, field);
}

static void write_recompute(const void *field, struct dtp_job_value *out)
{
    dtp_recompute_text(*(const uint32_t *)field, out->buffer);
    write_word(out->buffer, out);
}

static bool parse_graphs(const char *text, void *field)
{
    return dtp_graphs_parse(text, field);
}

static void write_graphs(const void *field, struct dtp_job_value *out)
{
    dtp_graphs_text(*(const uint32_t *)field, out->buffer);
    write_word(out->buffer, out);
}

static bool parse_precision(const char *text, void *field)
{
    const struct dtp_scenario_alias *alias = dtp_key_value_alias(DTP_KEY_precision, text);
    return dtp_precision_recipe(alias ? alias->value : text, field);
}

static void write_precision(const void *field, struct dtp_job_value *out)
{
    write_word(dtp_precision_name(field), out);
}

/* What "cpu" means depends on the strategy: until that is known (scenario_resolve.c) nothing is offloaded. */
static bool parse_offload(const char *text, void *field)
{
    enum dtp_offload *out = field;
    return dtp_key_value_alias(DTP_KEY_offload, text) || dtp_offload_parse(text, out);
}
WRITE_WORD(offload)

static bool parse_checkpointing(const char *text, void *field)
{
    return dtp_checkpointing_parse(text, field);
}

static void write_checkpointing(const void *field, struct dtp_job_value *out)
{
    dtp_checkpointing_text(field, out->buffer, sizeof out->buffer);
    write_word(out->buffer, out);
}

static bool parse_mib(const char *text, void *field)
{
    uint64_t *out = field, value;
    double mib;
    if (!dtp_number_parse(text, &mib) || !(mib > 0 && mib <= 1048576))
        return false;
    value = (uint64_t)(mib * 1048576);
    if (value)
        *out = value;
    return value > 0;
}

static void write_mib(const void *field, struct dtp_job_value *out)
{
    const uint64_t *bytes = field;
    write_real((double)*bytes / 1048576, out);
}

static bool parse_duration(const char *text, void *field)
{
    return dtp_number_parse_duration(text, field);
}

static void write_duration(const void *field, struct dtp_job_value *out)
{
    write_real(*(const double *)field, out);
}

static bool parse_rate(const char *text, void *field)
{
    uint64_t bytes;
    double *out = field;
    if (!dtp_number_parse_bytes(text, &bytes) || bytes == 0)
        return false;
    *out = (double)bytes;
    return true;
}

static void write_rate(const void *field, struct dtp_job_value *out)
{
    write_real(*(const double *)field, out);
}

static bool parse_switch(const char *text, bool *out)
{
    static const char *const yes[] = {"true", "1", "yes", "on"}, *const no[] = {"false", "0", "no", "off"};
    for (size_t i = 0; *text != '-' && i < sizeof yes / sizeof *yes; i++) /* a sign, which words would not mind */
        if (dtp_names_equal(text, yes[i]) || dtp_names_equal(text, no[i])) {
            *out = dtp_names_equal(text, yes[i]);
            return true;
        }
    return false;
}

/* reshard_after_forward as a switch, or as a number of GPUs: true, and beside it the group. */
static bool parse_reshard_group(const char *text, void *field)
{
    struct dtp_plan *plan =
        (struct dtp_plan *)(void *)((char *)field - offsetof(struct dtp_plan, reshard_after_forward));
    uint64_t group = 0;
    if (!parse_switch(text, field)) {
        if (!dtp_number_parse_integer(text, false, 2, 1000000, &group))
            return false;
        plan->reshard_after_forward = true;
    }
    plan->reshard_group = (uint32_t)group;
    return true;
}

/* The switch as it is, or the number that stands for true. */
static void write_reshard_group(const void *field, struct dtp_job_value *out)
{
    const struct dtp_plan *plan =
        (const struct dtp_plan *)(const void *)((const char *)field - offsetof(struct dtp_plan, reshard_after_forward));
    if (plan->reshard_group)
        write_whole(plan->reshard_group, out);
}

/* wrap_ends as a switch, or left to the model: auto. */
static bool parse_wrap_ends(const char *text, void *field)
{
    struct dtp_plan *plan = (struct dtp_plan *)(void *)((char *)field - offsetof(struct dtp_plan, wrap_ends));
    plan->wrap_ends_auto = dtp_names_equal(text, "auto");
    plan->wrap_ends = false;
    return plan->wrap_ends_auto || parse_switch(text, &plan->wrap_ends);
}

static void write_wrap_ends(const void *field, struct dtp_job_value *out)
{
    const struct dtp_plan *plan =
        (const struct dtp_plan *)(const void *)((const char *)field - offsetof(struct dtp_plan, wrap_ends));
    if (plan->wrap_ends_auto)
        write_word("auto", out);
}

/* ---- the table --------------------------------------------------------------------------------------------------- */

enum kind { KIND_WHOLE32, KIND_WHOLE64, KIND_BINARY64, KIND_NUMBER, KIND_SWITCH, KIND_PARSED, KIND_TEXT };

struct rule {
    enum kind kind;
    size_t offset, size; /* of the field in the draft */
    double minimum, maximum;
    bool (*parse)(const char *text, void *field);
    void (*write)(const void *field, struct dtp_job_value *out);
};

#define FIELD(field) offsetof(struct dtp_draft, field), sizeof((struct dtp_draft *)0)->field
#define RULE(kind, minimum, maximum, parse, write, ...)                                                                \
    {                                                                                                                  \
        kind, __VA_ARGS__, minimum, maximum, parse, write                                                              \
    }
#define WHOLE32(field, minimum, maximum) RULE(KIND_WHOLE32, minimum, maximum, NULL, NULL, FIELD(field))
#define WHOLE64(field, minimum, maximum) RULE(KIND_WHOLE64, minimum, maximum, NULL, NULL, FIELD(field))
#define BINARY64(field, minimum, maximum) RULE(KIND_BINARY64, minimum, maximum, NULL, NULL, FIELD(field))
#define NUMBER(field, minimum, maximum) RULE(KIND_NUMBER, minimum, maximum, NULL, NULL, FIELD(field))
#define SWITCH(field) RULE(KIND_SWITCH, 0, 0, NULL, NULL, FIELD(field))
#define SWITCH_OR(field, name) RULE(KIND_SWITCH, 0, 0, parse_##name, write_##name, FIELD(field))
#define PARSED(field, name) RULE(KIND_PARSED, 0, 0, parse_##name, write_##name, FIELD(field))
#define TEXT(most) RULE(KIND_TEXT, 0, most, NULL, NULL, 0, 0)

static const struct rule rules[DTP_KEY_COUNT] = {
#define DTP_KEY(key, section, value, how, reader, tried, words) how,
#include "job/job_keys.def"
#undef DTP_KEY
};

bool dtp_key_is_switch(enum dtp_key key)
{
    return rules[key].kind == KIND_SWITCH;
}

bool dtp_key_stands_alone(enum dtp_key key)
{
    const struct rule *rule = &rules[key];
    return rule->kind != KIND_TEXT && !rule->parse;
}

/* ---- the draft --------------------------------------------------------------------------------------------------- */

struct dtp_draft dtp_draft_default(void)
{
    return (struct dtp_draft){.plan = dtp_plan_default(),
                              .oversubscription = 1,
                              .training = {.gpu_mtbf_s = 3600.0 * DTP_DEFAULT_GPU_MTBF_H,
                                           .detection_s = DTP_DEFAULT_DETECTION_S,
                                           .restart_s = DTP_DEFAULT_RESTART_S,
                                           .rejoin_s = DTP_DEFAULT_REJOIN_S,
                                           .repair_s = DTP_DEFAULT_REPAIR_S}};
}

static bool apply_whole(const struct rule *rule, const char *value, void *field)
{
    uint64_t number;
    if (!dtp_number_parse_integer(value, rule->kind == KIND_BINARY64, (uint64_t)rule->minimum, (uint64_t)rule->maximum,
                                  &number))
        return false;
    uint32_t narrow = (uint32_t)number;
    if (rule->kind == KIND_WHOLE32)
        memcpy(field, &narrow, sizeof narrow);
    else
        memcpy(field, &number, sizeof number);
    return true;
}

static bool apply_number(const struct rule *rule, const char *value, void *field)
{
    double number;
    if (!dtp_number_parse(value, &number) || !(number >= rule->minimum && number <= rule->maximum))
        return false;
    memcpy(field, &number, sizeof number);
    return true;
}

/* Names reach terminals, JSON and CSV: whole UTF-8 characters, no controls, not only blanks. */
static bool is_plain_text(const char *value, size_t most)
{
    return !value[dtp_printable_length(value)] && strlen(value) <= most && value[strspn(value, " ")];
}

/* Which name of a list is the wrong one. */
static void explain_strategies(const char *value, char *why, size_t why_bytes)
{
    enum dtp_strategy list[DTP_STRATEGY_COUNT], again;
    size_t count = 0, bytes = strcspn(value, ",");
    char name[32];
    while (take_strategy(value, bytes, list, &count) && value[bytes]) {
        value += bytes + 1;
        bytes = strcspn(value, ",");
    }
    snprintf(name, sizeof name, "%.*s", (int)(bytes < sizeof name ? bytes : sizeof name - 1), value);
    if (dtp_strategy_parse(name, &again))
        snprintf(why, why_bytes, "a list of different strategies: '%s' is there twice", name);
    else
        snprintf(why, why_bytes, "a list of strategies: '%s' is not one of %s", name,
                 dtp_key_row(DTP_KEY_strategy)->value);
}

static void explain(enum dtp_key key, const char *value, char *why, size_t why_bytes)
{
    static const char *const kinds[][2] = {
        {"DTYPE", "one of fp32|tf32|bf16|fp16|fp8|int8"},
        {"MIB", "a number of MiB above 0 and up to 1048576"},
        {"ORDER", "axes of ranks, each once, with - between: tp-cp-dp_shard-dp_replicate-pp; dp is both"},
        {"TIME", "a time above 0 with its unit: 90s, 15min, 12h, 30d, 2w"},
        {"BYTES/S", "a number of bytes per second above 0: 500MB, 20GB"}};
    const struct rule *rule = &rules[key];
    char choices[256];
    switch (rule->kind) {
    case KIND_WHOLE32:
    case KIND_WHOLE64:
    case KIND_BINARY64:
        snprintf(why, why_bytes, "a whole number from %.0f to %.0f", rule->minimum, rule->maximum);
        break;
    case KIND_NUMBER: snprintf(why, why_bytes, "a number from %.15g to %.15g", rule->minimum, rule->maximum); break;
    case KIND_SWITCH:
        snprintf(why, why_bytes,
                 !rule->parse               ? "true or false"
                 : key == DTP_KEY_wrap_ends ? "true, false or auto"
                                            : "true, false or a number of GPUs from 2");
        break;
    case KIND_TEXT: snprintf(why, why_bytes, "a text of at most %.0f printable bytes in UTF-8", rule->maximum); break;
    case KIND_PARSED:
        for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
            if (!strcmp(dtp_key_row(key)->value, kinds[i][0])) {
                snprintf(why, why_bytes, "%s", kinds[i][1]);
                return;
            }
        if (key == DTP_KEY_strategy && strchr(value, ','))
            explain_strategies(value, why, why_bytes);
        else
            snprintf(why, why_bytes, "one of %s", dtp_scenario_key_choices(dtp_key_row(key), choices, sizeof choices));
        break;
    }
}

bool dtp_key_apply(enum dtp_key key, const char *value, struct dtp_draft *draft, char *why, size_t why_bytes)
{
    const struct rule *rule = &rules[key];
    void *field = (char *)draft + rule->offset;
    bool applied = false;
    switch (rule->kind) {
    case KIND_WHOLE32:
    case KIND_WHOLE64:
    case KIND_BINARY64: applied = apply_whole(rule, value, field); break;
    case KIND_NUMBER: applied = apply_number(rule, value, field); break;
    case KIND_SWITCH: applied = rule->parse ? rule->parse(value, field) : parse_switch(value, field); break;
    case KIND_PARSED: applied = rule->parse(value, field); break;
    case KIND_TEXT: applied = is_plain_text(value, (size_t)rule->maximum); break;
    }
    if (!applied)
        explain(key, value, why, why_bytes);
    return applied;
}

bool dtp_key_parse_number(enum dtp_key key, const char *value, double *out)
{
    uint64_t whole;
    const char *words = dtp_key_row(key)->value;
    switch (rules[key].kind) {
    case KIND_BINARY64:
        if (!dtp_number_parse_integer(value, true, 0, (uint64_t)1 << 53, &whole))
            return false;
        *out = (double)whole;
        return true;
    case KIND_WHOLE32:
    case KIND_WHOLE64:
    case KIND_NUMBER: return dtp_number_parse(value, out);
    case KIND_PARSED: return words && !strcmp(words, "MIB") && dtp_number_parse(value, out);
    case KIND_SWITCH:
    case KIND_TEXT: break;
    }
    return false;
}

bool dtp_scenario_plain(const struct dtp_scenario *scenario, const char *key, char *out, size_t bytes)
{
    enum dtp_key index = dtp_key_find(key);
    const char *text = index == DTP_KEY_COUNT ? NULL : scenario->settings[index].value;
    double number;
    bool yes;
    if (!text)
        return false;
    if (rules[index].kind == KIND_SWITCH && parse_switch(text, &yes))
        snprintf(out, bytes, "%d", yes);
    else if (dtp_key_parse_number(index, text, &number))
        snprintf(out, bytes, "%.15g", number);
    else
        snprintf(out, bytes, "%s", text);
    return true;
}

bool dtp_scenario_reads(const struct dtp_scenario *scenario, const char *key)
{
    struct dtp_draft draft = dtp_draft_default();
    char why[256];
    for (int i = 0; i < DTP_KEY_COUNT; i++)
        if (scenario->settings[i].value)
            dtp_key_apply((enum dtp_key)i, scenario->settings[i].value, &draft, why, sizeof why);
    enum dtp_key index = dtp_key_find(key);
    return index != DTP_KEY_COUNT && dtp_key_reader_reads(dtp_key_reader(index), &draft.plan);
}

void dtp_key_value(enum dtp_key key, const struct dtp_draft *draft, struct dtp_job_value *out)
{
    const struct rule *rule = &rules[key];
    const void *field = (const char *)draft + rule->offset;
    *out = (struct dtp_job_value){.kind = DTP_VALUE_WORD, .word = ""};
    switch (rule->kind) {
    case KIND_WHOLE32: write_whole(*(const uint32_t *)field, out); break;
    case KIND_WHOLE64:
    case KIND_BINARY64: write_whole(*(const uint64_t *)field, out); break;
    case KIND_NUMBER: write_real(*(const double *)field, out); break;
    case KIND_SWITCH:
        out->kind = DTP_VALUE_SWITCH;
        out->whole = *(const bool *)field;
        break;
    case KIND_PARSED:
    case KIND_TEXT: break;
    }
    if (rule->write)
        rule->write(field, out);
}

bool dtp_key_same(enum dtp_key key, const struct dtp_draft *one, const struct dtp_draft *other)
{
    const struct rule *rule = &rules[key];
    return memcmp((const char *)one + rule->offset, (const char *)other + rule->offset, rule->size) == 0;
}

void dtp_key_copy_dimension(enum dtp_key key, const struct dtp_draft *draft, struct dtp_transformer *out)
{
    const struct rule *rule = &rules[key];
    size_t start = offsetof(struct dtp_draft, transformer), end = start + sizeof draft->transformer;
    if (rule->kind == KIND_TEXT || rule->offset < start || rule->offset >= end)
        return;
    memcpy((char *)out + (rule->offset - start), (const char *)draft + rule->offset, rule->size);
}
