/* What is said of a model_type that is no family here: what is missing, or which keys were not understood. */
#include "base/append.h"
#include "net/hf_family.h"

#include <stdio.h>
#include <string.h>

#define EXPERTS "mixture of experts"
#define STATE_SPACE "state space layers beside attention or in its place"
#define ENCODER "an encoder, not a decoder"
#define BOTH "an encoder beside the decoder"
#define TOWER                                                                                                          \
    "a vision tower beside the decoder; its text_config, where it has one, can be planned as a file of its own"

static const struct {
    const char *type, *reason;
} missing[] = {
    {"mamba", STATE_SPACE},
    {"mamba2", STATE_SPACE},
    {"falcon_mamba", STATE_SPACE},
    {"falcon_h1", STATE_SPACE},
    {"jamba", STATE_SPACE},
    {"zamba", STATE_SPACE},
    {"zamba2", STATE_SPACE},
    {"bamba", STATE_SPACE},
    {"nemotron_h", STATE_SPACE},
    {"granitemoehybrid", STATE_SPACE},
    {"recurrent_gemma", "a linear recurrence in two of three layers"},
    {"rwkv", "a linear recurrence in place of attention"},
    {"qwen3_next", "linear attention in three of four layers"},
    {"minimax", "linear attention in seven of eight layers"},
    {"minimax_text_01", "linear attention in seven of eight layers"},
    {"kimi_linear", "linear attention in three of four layers"},
    {"gpt_neo", "a window in the layers 1, 3, 5 ..., whose first layer sees all"},
    {"dbrx", EXPERTS " of packed matrices; a shape can be given with --experts"},
    {"jetmoe", EXPERTS " in attention too"},
    {"llava", TOWER},
    {"llava_next", TOWER},
    {"llava_onevision", TOWER},
    {"mllama", "a vision tower, and layers of the decoder that attend to what it sees"},
    {"paligemma", TOWER},
    {"idefics2", TOWER},
    {"idefics3", TOWER},
    {"qwen2_vl", TOWER},
    {"qwen2_5_vl", TOWER},
    {"qwen3_vl", TOWER},
    {"internvl", TOWER},
    {"pixtral", TOWER},
    {"mistral3", TOWER},
    {"gemma3n", "layers that share keys, and a table of embeddings for each"},
    {"gemma3n_text", "layers that share keys, and a table of embeddings for each"},
    {"t5", BOTH},
    {"mt5", BOTH},
    {"umt5", BOTH},
    {"bart", BOTH},
    {"mbart", BOTH},
    {"marian", BOTH},
    {"pegasus", BOTH},
    {"whisper", BOTH},
    {"bert", ENCODER},
    {"roberta", ENCODER},
    {"xlm-roberta", ENCODER},
    {"distilbert", ENCODER},
    {"deberta-v2", ENCODER},
    {"electra", ENCODER},
    {"modernbert", ENCODER},
    {"vit", ENCODER},
};

const char *dtp_hf_text_type(const char *type)
{
    return !strcmp(type, "gemma3") ? "gemma3_text" : !strcmp(type, "llama4") ? "llama4_text" : NULL;
}

/* ---- keys that no family has ------------------------------------------------------------------------------------ */

/* Of tokens, initial values, generation and files: a model of any type may have them. */
static const char *const said_by_all[] = {
    "architectures",    "model_type",     "auto_map",          "transformers_version",
    "torch_dtype",      "dtype",          "use_cache",         "bos_token_id",
    "eos_token_id",     "pad_token_id",   "initializer_range", "tie_word_embeddings",
    "rope_theta",       "rope_scaling",   "rope_parameters",   "attention_dropout",
    "rms_norm_eps",     "layer_norm_eps", "attention_bias",    "mlp_bias",
    "_name_or_path",    "sliding_window", "layer_types",       "use_sliding_window",
    "max_window_layers"};

static bool is_one_of(const char *key, const char *keys)
{
    size_t length = strlen(key);
    for (const char *at = keys; at; at = strchr(at, '|') ? strchr(at, '|') + 1 : NULL)
        if (strcspn(at, "|") == length && !strncmp(at, key, length))
            return true;
    return false;
}

static bool family_has(const struct dtp_hf_family *family, const char *key)
{
    const char *const keys[] = {family->layers.keys,    family->hidden.keys,   family->heads.keys,
                                family->kv_heads.keys,  family->head_dim.keys, family->ffn.keys,
                                family->vocab.keys,     family->epsilon_keys,  family->max_sequence.keys,
                                family->activation.keys};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (is_one_of(key, keys[i]))
            return true;
    return false;
}

static bool is_understood(const char *key, const struct dtp_hf_family *const *lists)
{
    for (size_t i = 0; i < sizeof said_by_all / sizeof *said_by_all; i++)
        if (!strcmp(key, said_by_all[i]))
            return true;
    for (size_t i = 0; lists[i]; i++)
        for (const struct dtp_hf_family *family = lists[i]; family->type; family++)
            if (family_has(family, key))
                return true;
    return false;
}

static void refuse_keys(struct dtp_hf_reader *reader, const char *type, const struct dtp_hf_family *const *lists)
{
    char keys[160] = "";
    for (void *at = json_object_iter((json_t *)reader->object); at;
         at = json_object_iter_next((json_t *)reader->object, at))
        if (!is_understood(json_object_iter_key(at), lists))
            dtp_append_part(keys, sizeof keys, ", ", "%.40s", json_object_iter_key(at));
    dtp_hf_keep_printable(keys);
    dtp_hf_refuse(reader, "model_type",
                  "\"%.60s\" is not modelled (unknown)%s%s; a shape can be given with --layers, --hidden, --heads ...",
                  type, *keys ? "; not understood: " : "", keys);
}

/* As many to a message as it holds. */
static void list_known(struct dtp_hf_reader *reader, const struct dtp_hf_family *const *lists)
{
    char known[DTP_FAULT_TEXT_BYTES - 160] = "";
    for (size_t i = 0; lists[i]; i++)
        for (const struct dtp_hf_family *family = lists[i]; family->type; family++) {
            if (strlen(known) + strlen(family->type) + 3 > sizeof known) {
                dtp_hf_refuse(reader, "model_type", "known are %s, ...", known);
                known[0] = '\0';
            }
            dtp_append_part(known, sizeof known, ", ", "%s", family->type);
        }
    dtp_hf_refuse(reader, "model_type", "known are %s", known);
}

void dtp_hf_refuse_type(struct dtp_hf_reader *reader, const char *type, const struct dtp_hf_family *const *lists)
{
    for (size_t i = 0; type && i < sizeof missing / sizeof *missing; i++)
        if (!strcmp(type, missing[i].type)) {
            dtp_hf_refuse(reader, "model_type", "\"%.60s\" is not modelled: it has %s", type, missing[i].reason);
            return;
        }
    if (type)
        refuse_keys(reader, type, lists);
    else
        dtp_hf_refuse(reader, "model_type", "is missing");
    list_known(reader, lists);
}
