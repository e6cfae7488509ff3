#include "plan/runtime.h"

#include "plan/runtime_sizes.h"
#include "base/nearest.h"
#include "base/number.h"
#include "schedule/stages.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* The recipe of most training: fp32 parameters, bf16 compute. */
#define BF16_MIXED                                                                                                     \
    {                                                                                                                  \
        DTP_FP32, DTP_BF16, DTP_FP32, DTP_FP32, DTP_FP32, DTP_FP8_NONE, false, true                                    \
    }

/* Matmuls in fp8 of parameters kept in `params`. */
#define FP8_MIXED(params, recipe, gathers)                                                                             \
    {                                                                                                                  \
        params, DTP_FP8, DTP_FP32, DTP_FP32, DTP_FP32, recipe, gathers, false                                          \
    }

static const struct dtp_plan unchosen = {
    .strategy = DTP_FULL_SHARD,
    .tp = 1,
    .pp = 1,
    .sequence_parallel = true,
    .schedule = DTP_SCHEDULE_1F1B,
    .virtual_stages = 1,
    .cp = 1,
    .ep = 1,
    .expert_imbalance = 1,
    .layout_order = DTP_LAYOUT_ORDER,
    .micro_batch = 1,
    .accumulate = 1,
    .sequence = 2048,
    .checkpointing = DTP_CHECKPOINT_NONE,
    .offload = DTP_OFFLOAD_NONE,
    .attention = DTP_ATTENTION_FLASH,
    .loss = DTP_LOSS_EAGER,
    .optimizer = DTP_ADAMW_FUSED,
    .wrap_layers = 1,
    .reshard_after_forward = true,
    .ddp_bucket_bytes = DTP_DDP_BUCKET_BYTES,
    .prefetch = true,
    .prefetch_depth = 1,
    .precision = BF16_MIXED,
    .adapters = {.targets = DTP_TARGETS_ALL, .dtype = DTP_BF16},
#define DTP_TORCH_FIELD(type, field, standard) .field = standard,
#define DTP_DEEPSPEED_FIELD(type, field, standard) .deepspeed.field = standard,
#define DTP_MEGATRON_FIELD(type, field, standard) .megatron.field = standard,
#define DTP_EXECUTOR_FIELD(type, field, standard) .executor.field = standard,
#include "plan/plan_keys.def"
};

struct dtp_plan dtp_plan_unchosen(void)
{
    return unchosen;
}

/* ---- words ----------------------------------------------------------------------------------------------------- */

struct word {
    const char *text;
    int value;
};

static bool find_word(const struct word *words, size_t count, const char *text, int *value)
{
    for (size_t i = 0; text && i < count; i++)
        if (dtp_names_equal(words[i].text, text)) {
            *value = words[i].value;
            return true;
        }
    return false;
}

static const char *word_text(const struct word *words, size_t count, int value)
{
    for (size_t i = 0; i < count; i++)
        if (words[i].value == value)
            return words[i].text;
    return "unknown";
}

/* The first word of a value is the one that is printed; later ones are synonyms. */
static const struct word strategy_words[] = {
#define STRATEGY_WORD(suffix, text) {text, DTP_##suffix},
    DTP_STRATEGY_TABLE(STRATEGY_WORD)
#undef STRATEGY_WORD
        {"no_shard", DTP_DDP},
    {"single", DTP_DDP},
    {"fsdp", DTP_FULL_SHARD},
    {"hsdp", DTP_HYBRID_SHARD}};
static const struct word offload_words[] = {{"none", DTP_OFFLOAD_NONE},
                                            {"optimizer", DTP_OFFLOAD_OPTIMIZER},
                                            {"params", DTP_OFFLOAD_PARAMS},
                                            {"nvme", DTP_OFFLOAD_NVME}};
static const struct word attention_words[] = {{"flash", DTP_ATTENTION_FLASH},
                                              {"math", DTP_ATTENTION_MATH},
                                              {"flash2", DTP_ATTENTION_FLASH2},
                                              {"flash1", DTP_ATTENTION_FLASH1}};
static const struct word loss_words[] = {
    {"eager", DTP_LOSS_EAGER}, {"fused", DTP_LOSS_FUSED}, {"chunked", DTP_LOSS_CHUNKED}, {"native", DTP_LOSS_NATIVE}};
static const struct word optimizer_words[] = {
#define DTP_OPTIMIZER(suffix, word, library, shape, states, bits, block, scales, words, instead) {word, DTP_##suffix},
#include "plan/optimizer.def"
    {"adamw-fused", DTP_ADAMW_FUSED}};
static const struct dtp_optimizer_row optimizers[DTP_OPTIMIZER_COUNT] = {
#define DTP_OPTIMIZER(suffix, its_word, its_library, its_shape, its_states, its_bits, its_block, its_scales,           \
                      its_words, its_instead)                                                                          \
    [DTP_##suffix] = {.word = its_word,                                                                                \
                      .instead = its_instead,                                                                          \
                      .library = DTP_OF_##its_library,                                                                 \
                      .shape = DTP_STATE_##its_shape,                                                                  \
                      .states = its_states,                                                                            \
                      .bits = its_bits,                                                                                \
                      .block = its_block,                                                                              \
                      .scales = its_scales},
#include "plan/optimizer.def"
};

const struct dtp_optimizer_row *dtp_optimizer_row(enum dtp_optimizer optimizer)
{
    return &optimizers[optimizer];
}

static const struct word cp_comm_words[] = {
    {"p2p", DTP_CP_P2P}, {"all_gather", DTP_CP_ALL_GATHER}, {"a2a", DTP_CP_A2A}, {"a2a+p2p", DTP_CP_A2A_P2P}};
static const struct word comm_hook_words[] = {{"none", DTP_COMM_HOOK_NONE},
                                              {"fp16", DTP_COMM_HOOK_FP16},
                                              {"bf16", DTP_COMM_HOOK_BF16},
                                              {"powersgd", DTP_COMM_HOOK_POWERSGD},
                                              {"int8", DTP_COMM_HOOK_INT8}};
static const struct word engine_words[] = {{"sm", DTP_ENGINE_SM}, {"copy", DTP_ENGINE_COPY}};

#define DEFINE_WORDS(name)                                                                                             \
    const char *dtp_##name##_text(enum dtp_##name value)                                                               \
    {                                                                                                                  \
        return word_text(name##_words, sizeof name##_words / sizeof *name##_words, (int)value);                        \
    }                                                                                                                  \
    bool dtp_##name##_parse(const char *text, enum dtp_##name *out)                                                    \
    {                                                                                                                  \
        int value;                                                                                                     \
        if (!find_word(name##_words, sizeof name##_words / sizeof *name##_words, text, &value))                        \
            return false;                                                                                              \
        *out = (enum dtp_##name)value;                                                                                 \
        return true;                                                                                                   \
    }
DEFINE_WORDS(strategy)
DEFINE_WORDS(offload)
DEFINE_WORDS(attention)
DEFINE_WORDS(loss)
DEFINE_WORDS(optimizer)
DEFINE_WORDS(engine)
DEFINE_WORDS(cp_comm)
DEFINE_WORDS(comm_hook)

static const struct word stage_cut_words[] = {{"even", DTP_STAGE_CUT_EVEN},
                                              {"counted", DTP_STAGE_CUT_COUNTED},
                                              {"cost", DTP_STAGE_CUT_COST},
                                              {"best", DTP_STAGE_CUT_BEST},
                                              {"step", DTP_STAGE_CUT_STEP}};
#define STAGE_CUT_WORDS (sizeof stage_cut_words / sizeof *stage_cut_words)

const char *dtp_stage_choice_text(const struct dtp_stage_choice *choice)
{
    return choice->cut == DTP_STAGE_CUT_LAYOUT ? choice->layout
                                               : word_text(stage_cut_words, STAGE_CUT_WORDS, (int)choice->cut);
}

bool dtp_stage_choice_parse(const char *text, struct dtp_stage_choice *out)
{
    struct dtp_stage_choice choice = {.cut = DTP_STAGE_CUT_LAYOUT};
    int cut;
    if (find_word(stage_cut_words, STAGE_CUT_WORDS, text, &cut)) {
        choice.cut = (enum dtp_stage_cut)cut;
    } else {
        if (!*text || text[strspn(text, DTP_STAGES_LETTERS)] || strlen(text) >= sizeof choice.layout)
            return false;
        memcpy(choice.layout, text, strlen(text));
    }
    *out = choice;
    return true;
}

/* every-N carries a number and is handled beside the table. */
static const struct word checkpointing_words[] = {{"none", DTP_CHECKPOINT_NONE},
                                                  {"full", DTP_CHECKPOINT_FULL},
                                                  {"selective", DTP_CHECKPOINT_SELECTIVE_MATMUL},
                                                  {"selective-attention", DTP_CHECKPOINT_SELECTIVE_ATTENTION},
                                                  {"selective-matmul", DTP_CHECKPOINT_SELECTIVE_MATMUL}};

void dtp_checkpointing_text(const struct dtp_plan *plan, char *out, size_t bytes)
{
    if (plan->checkpointing == DTP_CHECKPOINT_EVERY_N)
        snprintf(out, bytes, "every-%" PRIu32, plan->checkpoint_every);
    else
        snprintf(out, bytes, "%s",
                 word_text(checkpointing_words, sizeof checkpointing_words / sizeof *checkpointing_words,
                           (int)plan->checkpointing));
}

bool dtp_checkpointing_parse(const char *text, struct dtp_plan *plan)
{
    int value;
    if (find_word(checkpointing_words, sizeof checkpointing_words / sizeof *checkpointing_words, text, &value)) {
        plan->checkpointing = (enum dtp_checkpointing)value;
        plan->checkpoint_every = 0;
        return true;
    }
    char head[7] = "";
    if (!text || strlen(text) < sizeof head)
        return false;
    memcpy(head, text, sizeof head - 1);
    uint64_t every;
    if (!dtp_names_equal(head, "every-") || !dtp_number_parse_integer(text + 6, false, 1, UINT32_MAX, &every))
        return false;
    plan->checkpointing = DTP_CHECKPOINT_EVERY_N;
    plan->checkpoint_every = (uint32_t)every;
    return true;
}

/* ---- precision ------------------------------------------------------------------------------------------------- */

static const struct recipe {
    const char *name;
    struct dtp_precision precision; /* params, compute, reduce, master, moments, fp8_recipe, fp8_all_gather, autocast */
} recipes[] = {
    {"fp32", {DTP_FP32, DTP_FP32, DTP_FP32, DTP_FP32, DTP_FP32, DTP_FP8_NONE, false, false}},
    {"bf16-mixed", BF16_MIXED},
    {"bf16", {DTP_BF16, DTP_BF16, DTP_BF16, DTP_BF16, DTP_FP32, DTP_FP8_NONE, false, false}},
    {"bf16-pure", {DTP_BF16, DTP_BF16, DTP_BF16, DTP_BF16, DTP_BF16, DTP_FP8_NONE, false, false}},
    {"fp16-mixed", {DTP_FP32, DTP_FP16, DTP_FP32, DTP_FP32, DTP_FP32, DTP_FP8_NONE, false, true}},
#define DTP_FP8_RECIPE(suffix, word, precision, libraries, granularity, block, scale_bytes, bits, amax, narrow, fast,  \
                       gathers, parts, formats, words)                                                                 \
    {precision, FP8_MIXED(DTP_FP32, DTP_FP8_##suffix, DTP_FP8_##suffix == DTP_FP8_TENSORWISE)},
#include "base/fp8_recipe.def"
};
#define RECIPE_COUNT (sizeof recipes / sizeof *recipes)

/* What the mixed recipes become where the optimizer owns an fp32 master (see dtp_precision_recipe). Of two forms of a
 * recipe a runtime has the one that reduces as it does. */
static const struct master_form {
    const char *name;
    bool only_form;
    struct dtp_precision precision;
} master_forms[] = {
    {"bf16-mixed", false, {DTP_BF16, DTP_BF16, DTP_BF16, DTP_FP32, DTP_FP32, DTP_FP8_NONE, false, false}},
    {"bf16-mixed", false, {DTP_BF16, DTP_BF16, DTP_FP32, DTP_FP32, DTP_FP32, DTP_FP8_NONE, false, false}},
    {"fp16-mixed", true, {DTP_FP16, DTP_FP16, DTP_FP16, DTP_FP32, DTP_FP32, DTP_FP8_NONE, false, false}},
#define DTP_FP8_RECIPE(suffix, word, precision, libraries, granularity, block, scale_bytes, bits, amax, narrow, fast,  \
                       gathers, parts, formats, words)                                                                 \
    {precision, true, FP8_MIXED(DTP_BF16, DTP_FP8_##suffix, false)},
#include "base/fp8_recipe.def"
};
#define MASTER_FORM_COUNT (sizeof master_forms / sizeof *master_forms)

/* What the mixed recipes become beside fp32 adapters, which are as wide without autocast, where that tells them from
 * others. */
static const struct recipe adapted_forms[] = {
    {"bf16-mixed", {DTP_BF16, DTP_BF16, DTP_FP32, DTP_BF16, DTP_FP32, DTP_FP8_NONE, false, true}},
    {"fp16-mixed", {DTP_FP16, DTP_FP16, DTP_FP32, DTP_FP16, DTP_FP32, DTP_FP8_NONE, false, true}},
};
#define ADAPTED_FORM_COUNT (sizeof adapted_forms / sizeof *adapted_forms)

bool dtp_precision_recipe(const char *name, struct dtp_precision *out)
{
    for (size_t i = 0; name && i < RECIPE_COUNT; i++)
        if (dtp_names_equal(recipes[i].name, name)) {
            *out = recipes[i].precision;
            return true;
        }
    return false;
}

static bool same_precision(const struct dtp_precision *a, const struct dtp_precision *b)
{
    return a->params == b->params && a->compute == b->compute && a->reduce == b->reduce && a->master == b->master &&
           a->moments == b->moments && a->fp8_recipe == b->fp8_recipe;
}

/* int8 moments are the optimizer's choice (adam8bit), and whether fp8 weights are gathered follows the strategy:
 * neither changes a recipe's name. */
const char *dtp_precision_name(const struct dtp_precision *precision)
{
    struct dtp_precision plain = *precision;
    if (plain.moments == DTP_INT8)
        plain.moments = DTP_FP32;
    for (size_t i = 0; i < RECIPE_COUNT; i++)
        if (same_precision(&plain, &recipes[i].precision))
            return recipes[i].name;
    for (size_t i = 0; i < MASTER_FORM_COUNT; i++)
        if (same_precision(&plain, &master_forms[i].precision))
            return master_forms[i].name;
    for (size_t i = 0; plain.autocast && i < ADAPTED_FORM_COUNT; i++)
        if (same_precision(&plain, &adapted_forms[i].precision))
            return adapted_forms[i].name;
    return "custom";
}

/* Whether these are the recipe of that name: formats first, for names are compared letter by letter. */
static bool is_recipe(const struct dtp_precision *precision, const char *name)
{
    for (size_t i = 0; i < RECIPE_COUNT; i++)
        if (same_precision(precision, &recipes[i].precision) && dtp_names_equal(recipes[i].name, name))
            return true;
    return false;
}

void dtp_precision_for_runtime(struct dtp_precision *precision, const struct dtp_runtime *runtime)
{
    if (!runtime->owns_master)
        return;
    for (size_t i = 0; i < MASTER_FORM_COUNT; i++) {
        const struct master_form *form = &master_forms[i];
        bool runs = form->precision.compute != DTP_FP8 || runtime->keeps_fp8;
        bool wide = form->precision.reduce == DTP_FP32;
        if (runs && (form->only_form || wide == runtime->reduces_fp32) && is_recipe(precision, form->name)) {
            *precision = form->precision;
            return;
        }
    }
}
