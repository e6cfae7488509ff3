#include "job/change.h"
#include "job/job_values.h"
#include "base/word_table.h"
#include "plan/plan_keys.h"
#include "plan/rules.h"
#include "runtime/runtimes.h"

#include "closed/activations.h"
#include "cost/op_cost.h"
#include "closed/sharding.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

DTP_WORDS_OF_TABLE(dtp_question_key, dtp_question, DTP_QUESTION_TABLE, DTP_ROW_WORD)
DTP_WORDS_OF_TABLE(dtp_question_words, dtp_question, DTP_QUESTION_TABLE, DTP_ROW_SECOND)
static const char *const question_none[] = {
#define QUESTION_NONE(suffix, key, words, none) none,
    DTP_QUESTION_TABLE(QUESTION_NONE)};

const char *dtp_question_none(enum dtp_question question, const struct dtp_plan *plan)
{
    bool fsdp = dtp_plan_is_fsdp(plan);
    if (question == DTP_QUESTION_LIMIT_ALL_GATHERS && fsdp && !plan->fsdp1)
        return "only FSDP1 limits all-gathers; FSDP2 frees gathered weights in the order of the host, so there is "
               "nothing to limit";
    if (question == DTP_QUESTION_BUCKET_SIZE && dtp_plan_shards_params(plan))
        return "gradients leave unit by unit, not in buckets: --wrap-layers is the size of a unit";
    return question_none[question];
}

/* ---- what is tried ----------------------------------------------------------------------------------------------- */

enum try_use { ADVISED = 1, LAST = 2, SHOWN = 4, ALTERS = 8 };
#define TRIES_OF_A_KEY 10
struct try_value {
    const char *value;
    unsigned use;
    const char *from;
};
struct tries {
    enum dtp_question question;
    struct try_value values[TRIES_OF_A_KEY]; /* NULL behind the last */
};

/* How many values all rows together have tried: callers hold that many rules, so that none is left out. */
#define TRIED(question, ...) +sizeof((struct try_value[]){__VA_ARGS__}) / sizeof(struct try_value)
#define NOT_TRIED +0
#define DTP_KEY(key, section, value, how, reader, tried, words) tried
_Static_assert(0u
#include "job/job_keys.def"
                   <= DTP_CHANGE_RULES_MAX,
               "rows of keys have more values tried than DTP_CHANGE_RULES_MAX: raise it in change.h");
#undef DTP_KEY
#undef NOT_TRIED
#undef TRIED

#define TRIED(question, ...)                                                                                           \
    {                                                                                                                  \
        DTP_QUESTION_##question,                                                                                       \
        {                                                                                                              \
            __VA_ARGS__                                                                                                \
        }                                                                                                              \
    }
#define NOT_TRIED                                                                                                      \
    {                                                                                                                  \
        DTP_QUESTION_COUNT,                                                                                            \
        {                                                                                                              \
            {                                                                                                          \
                NULL                                                                                                   \
            }                                                                                                          \
        }                                                                                                              \
    }
static const struct tries tries[DTP_KEY_COUNT] = {
#define DTP_KEY(key, section, value, how, reader, tried, words) tried,
#include "job/job_keys.def"
#undef DTP_KEY
};

static struct dtp_change_rule rule_of(enum dtp_key key, size_t index)
{
    const struct tries *t = &tries[key];
    const char *value = t->values[index].value;
    unsigned use = t->values[index].use;
    struct dtp_change_rule rule = {.key = key,
                                   .question = t->question,
                                   .use = use & LAST      ? DTP_CHANGE_ADVISED_LAST
                                          : use & ADVISED ? DTP_CHANGE_ADVISED
                                                          : DTP_CHANGE_SHOWN,
                                   .numerics = use & ALTERS,
                                   .from = t->values[index].from};
    /* Whether to replicate at all is a question of its own. */
    if (key == DTP_KEY_strategy && strcmp(value, dtp_strategy_text(DTP_HYBRID_SHARD)) == 0)
        rule.question = DTP_QUESTION_HYBRID_SHARD;
    dtp_change_add_flag(key, dtp_key_name(key), value, rule.flags, sizeof rule.flags);
    return rule;
}

size_t dtp_change_rules(struct dtp_change_rule out[DTP_CHANGE_RULES_MAX])
{
    size_t count = 0;
    for (int key = 0; key < DTP_KEY_COUNT; key++)
        for (size_t i = 0; i < TRIES_OF_A_KEY && tries[key].values[i].value; i++)
            out[count++] = rule_of((enum dtp_key)key, i);
    return count;
}

/* ---- making a change --------------------------------------------------------------------------------------------- */

static bool same_value(const struct dtp_job_value *a, const struct dtp_job_value *b)
{
    if (a->kind != b->kind)
        return false;
    if (a->kind == DTP_VALUE_WORD)
        return strcmp(a->word, b->word) == 0;
    return a->kind == DTP_VALUE_REAL ? !(a->real < b->real || a->real > b->real) : a->whole == b->whole;
}

bool dtp_change_is_none(const struct dtp_plan *one, const struct dtp_plan *other)
{
    const struct dtp_draft before = {.plan = *one}, after = {.plan = *other};
    struct dtp_job_value was, is;
    for (int key = 0; key < DTP_KEY_COUNT; key++) {
        if (strcmp(dtp_key_section((enum dtp_key)key), "plan") != 0)
            continue;
        dtp_key_value((enum dtp_key)key, &before, &was);
        dtp_key_value((enum dtp_key)key, &after, &is);
        if (!same_value(&was, &is))
            return false;
    }
    return true;
}

/* Where sharded parameters are FSDP's zero3 is another word for full_shard, and never proposed. */
static bool same_strategy(const struct dtp_plan *from, enum dtp_strategy to)
{
    return from->strategy == to ||
           (from->runtime->fsdp && (to == DTP_ZERO3 || (from->strategy == DTP_ZERO3 && to == DTP_FULL_SHARD)));
}

/* What follows a change where people would not repeat what they said before. */
static void settle(const struct dtp_plan *before, struct dtp_plan *asked)
{
    if (asked->strategy != before->strategy)
        asked->reshard_after_forward = dtp_strategy_frees_weights(asked->strategy);
    /* Megatron's parts of a layer and whole layers are not recomputed both. */
    if (asked->megatron.recompute != before->megatron.recompute && asked->megatron.recompute)
        asked->checkpointing = DTP_CHECKPOINT_NONE;
    else if (asked->checkpointing != before->checkpointing)
        asked->megatron.recompute = 0;
    if (!dtp_key_reader_reads(DTP_READER_RESHARDING, asked))
        asked->reshard_group = 0;
    dtp_plan_drop_unread(asked);
}

bool dtp_change_set_key(enum dtp_key key, const char *value, struct dtp_plan *asked)
{
    struct dtp_draft before = {.plan = *asked}, after = before;
    struct dtp_job_value was, is;
    char why[256];
    if (strcmp(dtp_key_section(key), "plan") != 0 || !dtp_key_apply(key, value, &after, why, sizeof why))
        return false;
    dtp_key_value(key, &before, &was);
    dtp_key_value(key, &after, &is);
    if (same_value(&was, &is) || (key == DTP_KEY_strategy && same_strategy(&before.plan, after.plan.strategy)))
        return false;
    *asked = after.plan;
    settle(&before.plan, asked);
    enum dtp_key_reader reader = dtp_key_reader(key);
    return dtp_key_reader_reads(reader, &before.plan) || dtp_key_reader_reads(reader, asked);
}

/* Whether the word is one of those with bars between. */
static bool is_among(const char *word, const char *words)
{
    size_t bytes = strlen(word);
    for (;;) {
        size_t length = strcspn(words, "|");
        if (length == bytes && strncmp(words, word, bytes) == 0)
            return true;
        if (!words[length])
            return false;
        words += length + 1;
    }
}

bool dtp_change_try(const struct dtp_change_rule *rule, struct dtp_plan *asked)
{
    struct dtp_draft draft = {.plan = *asked};
    struct dtp_job_value value;
    if (rule->from) {
        dtp_key_value(rule->key, &draft, &value);
        char number[32];
        snprintf(number, sizeof number, "%" PRIu64, value.whole);
        if (!is_among(value.kind == DTP_VALUE_WORD ? value.word : number, rule->from))
            return false;
    }
    return dtp_change_apply(rule->flags, asked);
}

/* A multiple of 64 elements is one of 16 bytes in every format, and of the tiles that matmuls are cut into. */
#define VOCABULARY_MULTIPLE 64u
bool dtp_change_vocabulary(const struct dtp_job *job, struct dtp_job *out, char *flags, size_t bytes, char *note,
                           size_t note_bytes)
{
    uint64_t vocab = job->transformer.vocab, columns = dtp_plan_head_columns(&job->plan, vocab);
    enum dtp_dtype dtype = job->plan.precision.compute == DTP_FP8 ? DTP_BF16 : job->plan.precision.compute;
    if (dtp_dtype_bytes(dtype) > 2 || dtp_row_alignment_bytes(dtype, (double)columns) == DTP_ALIGNED_BYTES)
        return false;
    *out = *job;
    out->transformer.vocab = dtp_divide_up(vocab, VOCABULARY_MULTIPLE) * VOCABULARY_MULTIPLE;
    snprintf(flags, bytes, "--vocab %" PRIu64, out->transformer.vocab);
    snprintf(note, note_bytes, "%" PRIu64 " tokens that no text has", out->transformer.vocab - vocab);
    return true;
}

void dtp_change_flags(const struct dtp_job *job, const struct dtp_plan *asked, const char *flags, char *out,
                      size_t bytes)
{
    bool brings_runtime =
        asked->strategy != job->asked.strategy && asked->runtime != dtp_runtimes[0] && !strstr(flags, "--runtime ");
    snprintf(out, bytes, "%s%s%s", flags, brings_runtime ? " --runtime " : "",
             brings_runtime ? asked->runtime->name : "");
}

void dtp_change_gpus_flags(const struct dtp_job *job, uint32_t gpus, char *out, size_t bytes)
{
    char nodes[32] = "";
    if (job->by_nodes)
        snprintf(nodes, sizeof nodes, "--nodes %u ", gpus < job->node_gpus ? 1 : gpus / job->node_gpus);
    snprintf(out, bytes, "%s--gpus %u", nodes, gpus);
}

static double step_tokens(const struct dtp_job *job)
{
    const struct dtp_plan *plan = &job->plan;
    return (double)plan->sequence * plan->micro_batch * plan->accumulate * dtp_plan_data_ranks(plan, &job->cluster);
}

void dtp_change_batch_note(const struct dtp_job *from, const struct dtp_job *to, char *out, size_t bytes)
{
    double before = step_tokens(from), after = step_tokens(to);
    out[0] = '\0';
    if (after > before)
        snprintf(out, bytes, "tokens per step x %g", after / before);
    else if (after < before)
        snprintf(out, bytes, "tokens per step / %g", before / after);
}
