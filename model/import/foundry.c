/* llm-foundry: MPT on Composer's FSDP. */
#include "import/formats.h"

#include "base/number.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static const struct dtp_row rows[] = {
#include "import/foundry.def"
};

static const char *const signs[] = {"device_train_microbatch_size", "global_train_batch_size", NULL};

static uint64_t count_of(const struct dtp_reading *r, const char *fact, uint64_t otherwise)
{
    uint64_t count;
    const char *text = dtp_fact(r, fact);
    return text && dtp_number_parse_integer(text, false, 1, 100000000, &count) ? count : otherwise;
}

static enum dtp_status make(struct dtp_reading *r, enum dtp_status worst, const char *key, const char *value,
                            const char *fact)
{
    return dtp_worse(worst, dtp_make_key(r, key, value, fact));
}

/* configuration_mpt.py: LayerNorms, GELU, learned positions unless ALiBi, biases unless no_bias, the head tied. */
static enum dtp_status read_model(struct dtp_reading *r)
{
    const char *alibi = dtp_fact(r, "alibi"), *bias = dtp_fact(r, "no_bias");
    char ffn[32];
    if (!dtp_fact(r, "hidden") || !dtp_fact(r, "vocab"))
        return dtp_refuse_fact(r, "model_name",
                               "d_model, n_heads, n_layers and vocab_size stand beside it, or --model");
    snprintf(ffn, sizeof ffn, "%" PRIu64, count_of(r, "expansion", 4) * count_of(r, "hidden", 0));
    enum dtp_status worst = make(r, DTP_OK, "ffn", ffn, dtp_fact(r, "expansion") ? "expansion" : NULL);
    worst = make(r, worst, "norm", "layer_norm", NULL);
    worst = make(r, worst, "activation", "gelu", NULL);
    worst = make(r, worst, "position", alibi ? alibi : "learned", alibi ? "alibi" : NULL);
    worst = make(r, worst, "tied_head", "true", NULL);
    return make(r, worst, "bias", bias ? bias : "true", bias ? "no_bias" : NULL);
}

/* Composer's FSDP1 gathers and reduces in bf16 in both of its modes and has no no_sync; MPT has one matmul for q, k and
 * v; DecoupledAdamW runs one operation after the other, nearest to foreach. */
static enum dtp_status read_settings(struct dtp_reading *r)
{
    const char *precision = dtp_fact(r, "precision"), *attention = dtp_fact(r, "attention"),
               *loss = dtp_fact(r, "loss");
    bool bf16 = !precision || strcmp(precision, "bf16-mixed") == 0, sharded = dtp_fact(r, "strategy") != NULL;
    enum dtp_status worst = make(r, DTP_OK, "runtime", "torch", NULL);
    if (!dtp_is_typed(r, "model"))
        worst = dtp_worse(worst, read_model(r));
    if (!dtp_is_said(r, "strategy"))
        worst = make(r, worst, "strategy", "ddp", NULL);
    if (sharded && strcmp(dtp_fact(r, "strategy"), "ddp") != 0) {
        worst = make(r, worst, "fsdp1", "true", "strategy");
        worst = make(r, worst, "accumulate_sync", "true", "strategy");
        if (bf16)
            worst = make(r, worst, "reduce_dtype", "bf16", "precision");
    }
    worst = make(r, worst, "precision", precision ? precision : "bf16-mixed", precision ? "precision" : NULL);
    worst = make(r, worst, "attention", attention ? attention : "flash2", attention ? "attention" : NULL);
    worst = make(r, worst, "loss", loss ? loss : "fused", loss ? "loss" : NULL);
    worst = make(r, worst, "fused_qkv", "true", NULL);
    worst = dtp_worse(worst, dtp_make_clipping(r, "max_norm", NULL));
    return make(r, worst, "optimizer", "adamw-foreach", NULL);
}

const struct dtp_format dtp_format_foundry = {
    .name = "llm-foundry",
    .title = "llm-foundry's configuration",
    .syntaxes = 1u << DTP_SYNTAX_YAML,
    .signs = signs,
    .rows = rows,
    .row_count = sizeof rows / sizeof *rows,
    .silent = "the GPUs",
    .read = read_settings,
};
