/* What a config.json says that neither a prediction nor our executor uses. */
#include "base/append.h"
#include "net/hf_reader.h"

#include <stdio.h>
#include <string.h>

#define SCORE_WIDTH "query_pre_attn_scalar"
#define NEXT_LAYERS "num_nextn_predict_layers"
#define STORED_AS "quantization_config"

/* Keys that change what training costs or learns, where they say something, but neither what is predicted of it nor
 * what our executor does. */
static const char *const unused_keys[] = {
    /* of each head so many elements turn, or such a part of it; here all do */
    "rotary_dim", "rotary_pct", "partial_rotary_factor",
    /* masks to keep for backward, and kernels of their own */
    "attention_dropout", "attn_pdrop", "resid_pdrop", "embd_pdrop", "hidden_dropout", "dropout", "activation_dropout",
    "layerdrop", "emb_pdrop",
    /* slices of each matmul one after the other (LLaMA's emulation of tensor parallelism, BLOOM's) */
    "pretraining_tp",
    /* --precision and --checkpointing decide */
    "torch_dtype|dtype", "gradient_checkpointing",
    /* scores are divided by its root; here by that of the head's width */
    SCORE_WIDTH,
    /* factors of embedding, scores, branches and logits; bounds of q, k and v: passes that kernels beside them hide */
    "embedding_multiplier", "residual_multiplier", "attention_multiplier", "logits_scaling", "logit_scale", "clip_qkv",
    /* another base of RoPE in layers that slide; layers that turn nothing, here all do */
    "rope_local_base_freq", "no_rope_layer_interval",
    /* modules that predict further ahead: --mtp-layers */
    NEXT_LAYERS};

/* 0, 1 slice, false and "" change nothing. */
static bool says_something(const json_t *value)
{
    if (json_is_number(value))
        return json_number_value(value) != 0 && json_number_value(value) != 1;
    return json_is_true(value) || (json_is_string(value) && *json_string_value(value));
}

const char *dtp_hf_stored_as(struct dtp_hf_reader *reader)
{
    static const char *const formats[] = {"fp8", "mxfp4"};
    const char *method = json_string_value(json_object_get(dtp_hf_value(reader, STORED_AS), "quant_method"));
    for (size_t i = 0; method && i < sizeof formats / sizeof *formats; i++)
        if (!strcmp(method, formats[i]))
            return formats[i];
    return NULL;
}

void dtp_hf_list_unused(struct dtp_hf_reader *reader, const struct dtp_transformer *transformer, char *out,
                        size_t bytes)
{
    size_t used = 0;
    for (size_t i = 0; i < sizeof unused_keys / sizeof *unused_keys; i++) {
        const json_t *value = dtp_hf_value(reader, unused_keys[i]);
        char text[32];
        bool one = value && !strcmp(unused_keys[i], NEXT_LAYERS) && json_integer_value(value) == 1;
        if (!value || (!one && !says_something(value)) || used >= bytes)
            continue;
        if (!strcmp(unused_keys[i], SCORE_WIDTH) && json_number_value(value) == (double)transformer->head_dim)
            continue;
        if (json_is_string(value))
            snprintf(text, sizeof text, "%.31s", json_string_value(value));
        else if (json_is_number(value))
            snprintf(text, sizeof text, "%.6g", json_number_value(value));
        else
            snprintf(text, sizeof text, "true");
        used += (size_t)snprintf(out + used, bytes - used, "%s%.*s %s%s", used ? ", " : "",
                                 (int)strcspn(unused_keys[i], "|"), unused_keys[i], text,
                                 !strcmp(unused_keys[i], NEXT_LAYERS) ? " (mtp_layers trains them)" : "");
    }
    if (dtp_hf_stored_as(reader))
        dtp_append_part(out, bytes, ", ", STORED_AS " %s (how weights are stored)", dtp_hf_stored_as(reader));
    dtp_hf_keep_printable(out);
}
