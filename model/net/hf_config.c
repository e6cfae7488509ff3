/* config.json of Hugging Face: the row of its model_type in the families (hf_families_NAME.c), read. */
#include "base/append.h"
#include "base/input_file.h"
#include "net/hf_family.h"
#include "net/transformer.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct dtp_hf_family *const lists[] = {dtp_hf_families_llama, dtp_hf_families_gpt, dtp_hf_families_experts,
                                                    NULL};

static const struct dtp_hf_family *find_family(struct dtp_hf_reader *reader, const char *absent)
{
    const char *type = dtp_hf_text(reader, "model_type", absent);
    for (size_t i = 0; type && lists[i]; i++)
        for (const struct dtp_hf_family *family = lists[i]; family->type; family++)
            if (!strcmp(type, family->type))
                return family;
    if (type || !reader->bad)
        dtp_hf_refuse_type(reader, type, lists);
    return NULL;
}

/* Makers publish weights in the format that they were trained or finished in (DeepSeek-V3 and Kimi-K2 fp8, gpt-oss
 * mxfp4): that is the file's, and the same model is trained from it. Other methods are somebody's quantised copy. */
static void refuse_quantised(struct dtp_hf_reader *reader)
{
    if (dtp_hf_value(reader, "quantization_config") && !dtp_hf_stored_as(reader))
        dtp_hf_refuse(reader, "quantization_config",
                      "makes this a quantised copy; take it out to plan the same shape: full training, or with --lora "
                      "16 --base nf4 (int8, int4, fp8) adapters beside frozen weights so kept");
}

/* ---- reading ---------------------------------------------------------------------------------------------------- */

static uint64_t read_dimension(struct dtp_hf_reader *reader, const struct dtp_hf_dimension *dimension, uint64_t maximum)
{
    return dimension->keys ? dtp_hf_integer(reader, dimension->keys, dimension->absent, 1, maximum) : dimension->absent;
}

static void read_dimensions(struct dtp_hf_reader *reader, const struct dtp_hf_family *family, struct dtp_transformer *t)
{
    t->layers = read_dimension(reader, &family->layers, DTP_HF_MAX_LAYERS);
    t->hidden = read_dimension(reader, &family->hidden, DTP_HF_MAX_WIDTH);
    t->heads = read_dimension(reader, &family->heads, DTP_HF_MAX_WIDTH);
    t->kv_heads = read_dimension(reader, &family->kv_heads, DTP_HF_MAX_WIDTH);
    t->head_dim = read_dimension(reader, &family->head_dim, DTP_HF_MAX_WIDTH);
    t->ffn = read_dimension(reader, &family->ffn, DTP_HF_MAX_WIDTH);
    t->vocab = read_dimension(reader, &family->vocab, DTP_HF_MAX_WIDTH);
    t->max_sequence = read_dimension(reader, &family->max_sequence, DTP_HF_MAX_SEQUENCE);
    if (!t->kv_heads)
        t->kv_heads = t->heads;
    if (!t->ffn)
        t->ffn = 4 * t->hidden;
    if (t->head_dim)
        return;
    if (t->hidden % t->heads)
        dtp_hf_refuse(reader, family->heads.keys, "%" PRIu64 " do not divide the hidden size %" PRIu64, t->heads,
                      t->hidden);
    t->head_dim = t->hidden / t->heads;
}

/* gelu, gelu_fast, gelu_pytorch_tanh, gelu_python: the same shape and nearly the same cost. gelu_new is a chain of
 * operators under Transformers (plan/gelu_chain.h); what gelu_fast and gelu_python are there, chains as well, is not
 * counted. */
static void read_activation(struct dtp_hf_reader *reader, const struct dtp_hf_family *family, struct dtp_transformer *t)
{
    const char *keys = family->activation.keys, *word = family->activation.absent;
    if (keys)
        word = dtp_hf_text(reader, keys, word);
    bool gelu = !strncmp(word, "gelu", 4), silu = !strcmp(word, "silu") || !strcmp(word, "swish");
    if (family->gated) {
        t->activation = gelu ? DTP_GEGLU : DTP_SWIGLU;
        if (!gelu && !silu)
            dtp_hf_refuse(reader, keys, "is \"%.40s\"; in a gated MLP silu and the gelu kinds are modelled", word);
        return;
    }
    t->activation = !strcmp(word, "relu")       ? DTP_RELU
                    : !strcmp(word, "relu2")    ? DTP_RELU2
                    : !strcmp(word, "gelu_new") ? DTP_GELU_NEW
                                                : DTP_GELU;
    if (t->activation == DTP_GELU && !gelu)
        dtp_hf_refuse(reader, keys, "is \"%.40s\"; the gelu kinds, relu and relu2 are modelled", word);
}

static void read_epsilon(struct dtp_hf_reader *reader, const struct dtp_hf_family *family, struct dtp_transformer *t)
{
    const char *keys = family->epsilon_keys ? family->epsilon_keys
                       : family->modern     ? "rms_norm_eps"
                                            : "layer_norm_epsilon|layer_norm_eps";
    double absent = family->epsilon > 0 ? family->epsilon : family->modern ? 1e-6 : 1e-5;
    t->norm_epsilon = dtp_hf_number(reader, keys, absent, 1);
}

/* Keys that make another model of a family without experts. */
static void refuse_experts(struct dtp_hf_reader *reader, const struct dtp_hf_family *family)
{
    static const char *const keys[] = {"num_local_experts", "num_experts", "n_routed_experts"};
    char known[512] = "";
    for (const struct dtp_hf_family *f = dtp_hf_families_experts; f->type; f++)
        if (f->experts)
            dtp_append_part(known, sizeof known, ", ", "%s", f->type);
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        uint64_t experts = dtp_hf_integer(reader, keys[i], 0, 0, DTP_HF_MAX_WIDTH);
        if (experts > 1)
            dtp_hf_refuse(reader, keys[i], "is %" PRIu64 ", and models of type \"%s\" have no experts; these have: %s",
                          experts, family->type, known);
    }
}

static void read_family(struct dtp_hf_reader *reader, const struct dtp_hf_family *family, struct dtp_transformer *t)
{
    *t = dtp_transformer_default();
    if (!family->modern) {
        t->norm = DTP_LAYER_NORM;
        t->position = DTP_POSITION_LEARNED;
        t->norm_bias = t->qkv_bias = t->attention_output_bias = t->mlp_bias = true;
    }
    read_dimensions(reader, family, t);
    read_activation(reader, family, t);
    read_epsilon(reader, family, t);
    t->tied_head = dtp_hf_switch(reader, "tie_word_embeddings", family->tied);
    if (!family->experts)
        refuse_experts(reader, family);
    refuse_quantised(reader);
    if (family->finish)
        family->finish(reader, t);
}

/* Where a vision tower stands beside a decoder that is known, the reader goes into its text_config; returns what type
 * that is of, should it not say, else NULL. */
static const char *enter_text(struct dtp_hf_reader *reader)
{
    const char *type = dtp_hf_text(reader, "model_type", NULL), *text_type = type ? dtp_hf_text_type(type) : NULL;
    if (!text_type)
        return NULL;
    const json_t *text = dtp_hf_value(reader, "text_config");
    if (!json_is_object(text)) {
        dtp_hf_refuse(reader, "text_config", "is no object; of %s that alone can be planned, without vision", type);
        return NULL;
    }
    if (dtp_hf_value(reader, "quantization_config"))
        refuse_quantised(reader);
    reader->object = text;
    reader->parent = "text_config";
    return text_type;
}

static enum dtp_status read_object(struct dtp_hf_reader *reader, struct dtp_hf_config *out)
{
    struct dtp_transformer *t = &out->transformer;
    if (!json_is_object(reader->object))
        return dtp_fault(reader->faults, DTP_BAD_INPUT, reader->name, 1,
                         "the file holds no JSON object; a Hugging Face config.json is one");
    const char *text_type = enter_text(reader);
    const struct dtp_hf_family *family = reader->bad ? NULL : find_family(reader, text_type);
    if (!family)
        return DTP_BAD_INPUT;
    read_family(reader, family, t);
    out->fused_qkv = family->fused_qkv, out->fused_gate_up = family->fused_gate_up;
    dtp_hf_list_unused(reader, &out->transformer, out->unused, sizeof out->unused);
    if (text_type)
        dtp_append_part(out->unused, sizeof out->unused, ", ", "all but text_config (the vision tower is left out)");
    if (reader->bad)
        return DTP_BAD_INPUT;
    dtp_hf_name_after(reader->name, family->type, t->name, sizeof t->name);
    return dtp_transformer_check(t, reader->name, 0, reader->faults);
}

enum dtp_status dtp_hf_config_parse(const char *name, const char *text, size_t bytes, struct dtp_hf_config *out,
                                    struct dtp_faults *faults)
{
    *out = (struct dtp_hf_config){0};
    if (bytes > DTP_HF_CONFIG_MAX_BYTES)
        return dtp_fault(faults, DTP_BAD_INPUT, name, 0, "more than %u bytes; no config.json is that large",
                         DTP_HF_CONFIG_MAX_BYTES);
    if (bytes >= 3 && !memcmp(text, "\xEF\xBB\xBF", 3)) { /* UTF-8 byte order mark, as in scenario files and tables */
        text += 3;
        bytes -= 3;
    }
    json_error_t error;
    json_t *root = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &error);
    if (!root && json_error_code(&error) == json_error_out_of_memory)
        return dtp_fault(faults, DTP_ENVIRONMENT, name, 0, "out of memory");
    if (!root)
        return dtp_fault(faults, DTP_BAD_INPUT, name, error.line > 0 ? (size_t)error.line : 1, "no JSON: %s",
                         error.text);
    struct dtp_hf_reader reader = {.name = name, .text = text, .bytes = bytes, .object = root, .faults = faults};
    enum dtp_status status = read_object(&reader, out);
    json_decref(root);
    return status;
}

enum dtp_status dtp_hf_config_read(const char *path, struct dtp_hf_config *out, struct dtp_faults *faults)
{
    char *text;
    size_t bytes;
    *out = (struct dtp_hf_config){0};
    enum dtp_status status =
        dtp_input_read(path, DTP_HF_CONFIG_MAX_BYTES, "; name the config.json in it", &text, &bytes, faults);
    if (status == DTP_OK)
        status = dtp_hf_config_parse(path, text, bytes, out, faults);
    free(text);
    return status;
}
