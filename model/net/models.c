#include "net/models.h"

#include "base/append.h"
#include "base/number.h"
#include "base/word_table.h"

#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

static const char *const parallel_texts[] = {
    [DTP_PARALLEL_NONE] = "none", [DTP_PARALLEL_ONE_NORM] = "one_norm", [DTP_PARALLEL_TWO_NORMS] = "two_norms"};
static const char *const place_texts[] = {
    [DTP_NORMS_BEFORE] = "before", [DTP_NORMS_AFTER] = "after", [DTP_NORMS_BOTH] = "both"};
static const char *const norm_texts[] = {[DTP_LAYER_NORM] = "layer_norm", [DTP_RMS_NORM] = "rms_norm"};
static const char *const activation_texts[] = {
    [DTP_GELU] = "gelu",        [DTP_RELU] = "relu",   [DTP_SWIGLU] = "swiglu",
    [DTP_GEGLU] = "geglu",      [DTP_RELU2] = "relu2", [DTP_SWIGLU_CLAMPED] = "swiglu_clamped",
    [DTP_GELU_NEW] = "gelu_new"};
static const char *const qk_weight_texts[] = {
    [DTP_QK_NORM_SHARED] = "shared", [DTP_QK_NORM_BY_HEAD] = "by_head", [DTP_QK_NORM_UNWEIGHTED] = "none"};
static const char *const position_texts[] = {[DTP_POSITION_LEARNED] = "learned",
                                             [DTP_POSITION_ROPE] = "rope",
                                             [DTP_POSITION_ALIBI] = "alibi",
                                             [DTP_POSITION_NONE] = "none"};
static const char *const router_texts[] = {[DTP_ROUTER_SOFTMAX] = "softmax", [DTP_ROUTER_SIGMOID] = "sigmoid"};

DTP_WORDS_OF_ARRAY(dtp_parallel_block_text, dtp_parallel_block, parallel_texts)
DTP_WORDS_OF_ARRAY(dtp_norm_place_text, dtp_norm_place, place_texts)
DTP_WORDS_OF_ARRAY(dtp_norm_text, dtp_norm, norm_texts)
DTP_WORDS_OF_ARRAY(dtp_activation_text, dtp_activation, activation_texts)
DTP_WORDS_OF_ARRAY(dtp_qk_norm_weight_text, dtp_qk_norm_weight, qk_weight_texts)
DTP_WORDS_OF_ARRAY(dtp_position_text, dtp_position, position_texts)
DTP_WORDS_OF_ARRAY(dtp_router_text, dtp_router, router_texts)

/* One row being read. */
struct row {
    const struct dtp_table *table;
    size_t index;
    struct dtp_faults *faults;
    bool bad;
};

static const char *field(const struct row *row, const char *column)
{
    return dtp_table_text(row->table, row->index, dtp_table_column(row->table, column));
}

#define FAULT(row, ...)                                                                                                \
    ((row)->bad = true, dtp_fault((row)->faults, DTP_BAD_INPUT, dtp_table_name((row)->table),                          \
                                  dtp_table_line((row)->table, (row)->index), __VA_ARGS__))

/* A whole number, `absent` where the field is empty. */
static uint64_t read_integer(struct row *row, const char *column, uint64_t absent)
{
    const char *text = field(row, column);
    uint64_t value = absent;
    if (*text && !dtp_number_parse_integer(text, false, 0, UINT64_MAX, &value))
        FAULT(row, "%s is '%.40s'; a whole number is needed", column, text);
    return value;
}

/* A cap on scores or logits; empty: none. */
static double read_cap(struct row *row, const char *column)
{
    const char *text = field(row, column);
    double value = 0;
    if (*text && (!dtp_number_parse(text, &value) || !(value >= 0 && value <= 1e6)))
        FAULT(row, "%s is '%.40s'; a number up to 1e6 is needed, 0 for none", column, text);
    return value;
}

static uint64_t read_dimension(struct row *row, const char *column)
{
    if (!*field(row, column))
        FAULT(row, "%s is missing", column);
    return read_integer(row, column, 0);
}

static bool read_switch(struct row *row, const char *column, bool absent)
{
    const char *text = field(row, column);
    if (!*text)
        return absent;
    if (strcmp(text, "0") && strcmp(text, "1"))
        FAULT(row, "%s is '%.40s'; 0 or 1 is needed", column, text);
    return *text == '1';
}

/* Index of the field's word in `words`. */
static unsigned read_word(struct row *row, const char *column, const char *const *words, size_t count)
{
    const char *text = field(row, column);
    char known[128] = "";
    for (unsigned i = 0; i < count; i++) {
        if (!strcmp(text, words[i]))
            return i;
        dtp_append_part(known, sizeof known, ", ", "%s", words[i]);
    }
    FAULT(row, "%s is '%.40s'; one of %s is needed", column, text, known);
    return 0;
}

/* Keys are typed on a command line: printable, no spaces. */
static void read_key(struct row *row, struct dtp_transformer *out)
{
    const char *key = field(row, "key");
    size_t length = strlen(key);
    if (!length || length >= sizeof out->name)
        FAULT(row, "key has %zu bytes; 1 to %zu are supported", length, sizeof out->name - 1);
    else if (strspn(key, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_") != length)
        FAULT(row, "key is '%.60s'; letters, digits, '.', '-' and '_' are allowed", key);
    else
        memcpy(out->name, key, length + 1);
}

static void read_shape(struct row *row, struct dtp_transformer *out)
{
    out->layers = read_dimension(row, "layers");
    out->hidden = read_dimension(row, "hidden");
    out->heads = read_dimension(row, "heads");
    out->kv_heads = read_integer(row, "kv_heads", out->heads);
    out->head_dim = read_integer(row, "head_dim", 0);
    out->ffn = read_dimension(row, "ffn");
    out->vocab = read_dimension(row, "vocab");
    out->positions = read_integer(row, "positions", 0);
    out->max_sequence = read_integer(row, "max_sequence", 0);
    out->sliding_window = read_integer(row, "sliding_window", 0);
    out->sliding_window_pattern = read_integer(row, "sliding_window_pattern", 0);
    if (*field(row, "head_dim") || !out->heads)
        return;
    if (out->hidden % out->heads)
        FAULT(row, "heads %" PRIu64 " do not divide hidden %" PRIu64 "; give head_dim", out->heads, out->hidden);
    out->head_dim = out->hidden / out->heads;
}

static void read_choices(struct row *row, struct dtp_transformer *out)
{
    out->norm = (enum dtp_norm)read_word(row, "norm", norm_texts, DTP_WORD_COUNT(norm_texts));
    out->activation =
        (enum dtp_activation)read_word(row, "activation", activation_texts, DTP_WORD_COUNT(activation_texts));
    out->position = (enum dtp_position)read_word(row, "position", position_texts, DTP_WORD_COUNT(position_texts));
    if (*field(row, "parallel_block"))
        out->parallel_block =
            (enum dtp_parallel_block)read_word(row, "parallel_block", parallel_texts, DTP_WORD_COUNT(parallel_texts));
    if (*field(row, "norm_place"))
        out->norm_place = (enum dtp_norm_place)read_word(row, "norm_place", place_texts, DTP_WORD_COUNT(place_texts));
    out->qk_norm_wide = read_switch(row, "qk_norm_wide", false);
    out->qk_layer_norm = read_switch(row, "qk_layer_norm", false);
    out->qk_norm_bias = read_switch(row, "qk_norm_bias", false);
    if (*field(row, "qk_norm_weight"))
        out->qk_norm_weight =
            (enum dtp_qk_norm_weight)read_word(row, "qk_norm_weight", qk_weight_texts, DTP_WORD_COUNT(qk_weight_texts));
    out->norm_without_weight = read_switch(row, "norm_without_weight", false);
    out->norm_unit_offset = read_switch(row, "norm_unit_offset", false);
    if (*field(row, "norm_eps"))
        out->norm_epsilon = read_cap(row, "norm_eps");
    out->embedding_scale = read_switch(row, "embedding_scale", false);
    out->attention_softcap = read_cap(row, "attention_softcap");
    out->final_softcap = read_cap(row, "final_softcap");
    out->norm_bias = read_switch(row, "norm_bias", false);
    out->qkv_bias = read_switch(row, "qkv_bias", false);
    out->attention_output_bias = read_switch(row, "attention_output_bias", false);
    out->mlp_bias = read_switch(row, "mlp_bias", false);
    out->tied_head = read_switch(row, "tied_head", false);
    out->head_bias = read_switch(row, "head_bias", false);
    out->embedding_norm = read_switch(row, "embedding_norm", false);
    out->qk_norm = read_switch(row, "qk_norm", false);
    out->final_norm = read_switch(row, "final_norm", true);
}

static void read_experts(struct row *row, struct dtp_transformer *out)
{
    out->experts = read_integer(row, "experts", 0);
    out->experts_per_token = read_integer(row, "experts_per_token", 0);
    out->expert_ffn = read_integer(row, "expert_ffn", 0);
    out->shared_expert_ffn = read_integer(row, "shared_expert_ffn", 0);
    out->shared_expert_gate = read_switch(row, "shared_expert_gate", false);
    out->dense_layers = read_integer(row, "dense_layers", 0);
    out->expert_layer_step = read_integer(row, "expert_layer_step", 0);
    if (*field(row, "router"))
        out->router = (enum dtp_router)read_word(row, "router", router_texts, DTP_WORD_COUNT(router_texts));
    out->router_on_input = read_switch(row, "router_on_input", false);
    out->router_norm = read_switch(row, "router_norm", false);
    out->router_scale = read_cap(row, "router_scale");
    out->expert_bias = read_switch(row, "expert_bias", false);
    out->router_bias = read_switch(row, "router_bias", false);
    out->expert_groups = read_integer(row, "expert_groups", 0);
    out->groups_per_token = read_integer(row, "groups_per_token", 0);
    out->chunked_attention = read_switch(row, "chunked_attention", false);
    out->attention_sinks = read_switch(row, "attention_sinks", false);
    out->q_latent = read_integer(row, "q_latent", 0);
    out->kv_latent = read_integer(row, "kv_latent", 0);
    out->rope_head_dim = read_integer(row, "rope_head_dim", 0);
    out->value_head_dim = read_integer(row, "value_head_dim", 0);
}

enum dtp_status dtp_transformer_from_row(const struct dtp_table *table, size_t row_index, struct dtp_transformer *out,
                                         struct dtp_faults *faults)
{
    struct row row = {table, row_index, faults, false};
    *out = dtp_transformer_default();
    read_key(&row, out);
    read_shape(&row, out);
    read_choices(&row, out);
    read_experts(&row, out);
    uint64_t published = read_integer(&row, "parameters", 0);
    if (row.bad)
        return DTP_BAD_INPUT;
    enum dtp_status status =
        dtp_transformer_check(out, dtp_table_name(table), dtp_table_line(table, row_index), faults);
    if (status != DTP_OK)
        return status;
    uint64_t counted = dtp_transformer_count(out).total;
    if (published && published != counted)
        FAULT(&row, "%s: the dimensions give %" PRIu64 " parameters, the row says %" PRIu64, out->name, counted,
              published);
    return row.bad ? DTP_BAD_INPUT : DTP_OK;
}
