#include "plan/checkpointing.h"

#include "base/bytes.h"
#include "base/word_set.h"
#include "plan/runtime.h"

static const char *const recompute_words[DTP_RECOMPUTE_COUNT] = {
#define DTP_RECOMPUTE_WORD(suffix, word) word,
    DTP_RECOMPUTE_TABLE(DTP_RECOMPUTE_WORD)
#undef DTP_RECOMPUTE_WORD
};
static const struct dtp_word_list recompute_list = {recompute_words, DTP_RECOMPUTE_COUNT};

void dtp_recompute_text(uint32_t set, char out[DTP_RECOMPUTE_BYTES])
{
    dtp_word_set_text(&recompute_list, set, out, DTP_RECOMPUTE_BYTES);
}

bool dtp_recompute_parse(const char *text, uint32_t *out)
{
    return dtp_word_set_parse(&recompute_list, text, out);
}

/* torchao's linear_nf4 is a function of autograd's, whose nodes a compiler does not tag as the checkpoint's: it decides
 * of them as of any, and keeps what its matmul makes and the unpacked weight that backward multiplies by. What is
 * around it runs again. Measured (reports/h200/README.md): tensors that compiled blocks save, LLaMA 3.7B on one
 * H200, 26.1 GB where the input alone would be 5.4. */
static bool keeps_packed_matmuls(const struct dtp_plan *plan)
{
    enum dtp_base base = plan->adapters.rank ? plan->adapters.base : DTP_BASE_NONE;
    return plan->compile && plan->runtime->unpacks_by_operators &&
           (base == DTP_BASE_NF4 || base == DTP_BASE_NF4_DOUBLE);
}

struct dtp_checkpoint_rule dtp_plan_checkpoint_rule(const struct dtp_plan *plan)
{
    static const struct dtp_checkpoint_rule rules[] = {
        [DTP_CHECKPOINT_NONE] = {DTP_KEEPS_ALL, 0, false},
        [DTP_CHECKPOINT_FULL] = {DTP_KEEPS_INPUT, 1, true},
        [DTP_CHECKPOINT_EVERY_N] = {DTP_KEEPS_INPUT, 0, true}, /* the plan's N */
        [DTP_CHECKPOINT_SELECTIVE_ATTENTION] = {DTP_KEEPS_ALL_BUT_CORE, 1, false},
        [DTP_CHECKPOINT_SELECTIVE_MATMUL] = {DTP_KEEPS_SECOND_MATMULS, 1, true}};
    if (plan->megatron.recompute)
        return (struct dtp_checkpoint_rule){DTP_KEEPS_PARTS, 1, true};
    struct dtp_checkpoint_rule rule = rules[plan->checkpointing];
    if (rule.keeps == DTP_KEEPS_INPUT && keeps_packed_matmuls(plan))
        rule.keeps = DTP_KEEPS_PACKED_MATMULS;
    rule.every += plan->checkpointing == DTP_CHECKPOINT_EVERY_N ? plan->checkpoint_every : 0;
    return rule;
}

uint64_t dtp_checkpointed_layers(const struct dtp_checkpoint_rule *rule, uint64_t layers)
{
    return rule->every ? dtp_divide_up(layers, rule->every) : 0;
}

uint64_t dtp_checkpointed_layers_with(const struct dtp_checkpoint_rule *rule, const struct dtp_transformer *transformer,
                                      bool experts)
{
    uint64_t layers = 0;
    if (dtp_transformer_is_uniform(transformer))
        return dtp_transformer_layer_has_experts(transformer, 0) == experts
                   ? dtp_checkpointed_layers(rule, transformer->layers)
                   : 0;
    for (uint64_t layer = 0; rule->every && layer < transformer->layers; layer += rule->every)
        layers += dtp_transformer_layer_has_experts(transformer, layer) == experts;
    return layers;
}

double dtp_checkpointed_attention(const struct dtp_checkpoint_rule *rule, const struct dtp_transformer *transformer,
                                  uint64_t sequence)
{
    double lengths = 0, layers = (double)dtp_checkpointed_layers(rule, transformer->layers);
    if (transformer->sliding_window_pattern < 2 || layers <= 0)
        return 1;
    for (uint64_t layer = 0; layer < transformer->layers; layer += rule->every)
        lengths += dtp_transformer_layer_attention_length(transformer, layer, sequence);
    return lengths / layers / dtp_transformer_attention_length(transformer, sequence);
}
