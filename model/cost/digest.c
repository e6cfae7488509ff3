#include "cost/digest.h"

#include "cost/calibration.h"
#include "machine/measured.h"

static uint64_t add_byte(uint64_t digest, unsigned char byte)
{
    return (digest ^ byte) * UINT64_C(0x100000001b3);
}

uint64_t dtp_digest_text(uint64_t digest, const char *text)
{
    for (const char *c = text; c && *c; c++)
        digest = add_byte(digest, (unsigned char)*c);
    return add_byte(digest, text ? 0xff : 0xfe); /* neither occurs in UTF-8 */
}

uint64_t dtp_digest_bytes(uint64_t digest, const void *bytes, size_t count)
{
    const unsigned char *b = bytes;
    for (size_t i = 0; i < count; i++)
        digest = add_byte(digest, b[i]);
    return digest;
}

static uint64_t add_number(uint64_t digest, double number)
{
    return dtp_digest_bytes(digest, &number, sizeof number);
}

static uint64_t add_model(uint64_t digest, const struct dtp_transformer *t)
{
    const uint64_t figures[] = {t->layers,
                                t->hidden,
                                t->heads,
                                t->kv_heads,
                                t->head_dim,
                                t->ffn,
                                t->vocab,
                                t->positions,
                                t->max_sequence,
                                t->sliding_window,
                                t->sliding_window_pattern,
                                (uint64_t)t->norm,
                                (uint64_t)t->activation,
                                (uint64_t)t->position,
                                dtp_transformer_count(t).total};
    if (t->attention_softcap > 0 || t->final_softcap > 0 || t->norm_unit_offset)
        digest =
            add_number(add_number(add_number(digest, t->attention_softcap), t->final_softcap), t->norm_unit_offset);
    digest = dtp_digest_text(digest, t->name);
    for (size_t i = 0; i < sizeof figures / sizeof *figures; i++)
        digest = add_number(digest, (double)figures[i]);
    const struct {
        const char *name;
        double value;
    } details[] = {
        {"parallel_block", (double)t->parallel_block},
        {"norm_place", (double)t->norm_place},
        {"norm_eps", t->norm_epsilon < DTP_NORM_EPSILON || t->norm_epsilon > DTP_NORM_EPSILON ? t->norm_epsilon : 0},
        {"embedding_scale", t->embedding_scale},
        {"qk_layer_norm", t->qk_layer_norm},
        {"qk_norm_bias", t->qk_norm_bias},
        {"qk_norm_weight", (double)t->qk_norm_weight},
        {"norm_without_weight", t->norm_without_weight},
        {"experts", (double)t->experts},
        {"experts_per_token", (double)t->experts_per_token},
        {"expert_ffn", (double)t->expert_ffn},
        {"shared_expert_ffn", (double)t->shared_expert_ffn},
        {"dense_layers", (double)t->dense_layers},
        {"expert_layer_step", (double)t->expert_layer_step},
        {"router", (double)t->router},
        {"router_on_input", t->router_on_input},
        {"expert_groups", (double)t->expert_groups},
        {"groups_per_token", (double)t->groups_per_token},
        {"chunked_attention", t->chunked_attention},
        {"attention_sinks", t->attention_sinks},
        {"q_latent", (double)t->q_latent},
        {"kv_latent", (double)t->kv_latent},
        {"rope_head_dim", (double)t->rope_head_dim},
        {"value_head_dim", (double)t->value_head_dim},
        {"mtp_layers", (double)t->mtp_layers}};
    for (size_t i = 0; i < sizeof details / sizeof *details; i++)
        if (details[i].value > 0) /* blocks of the usual kind keep the digests they had */
            digest = add_number(dtp_digest_text(digest, details[i].name), details[i].value);
    return digest;
}

static uint64_t add_measured(uint64_t digest, const struct dtp_measured *measured)
{
    const struct dtp_measured_rows *rows = dtp_measured_all(measured);
    for (size_t i = 0; i < rows->count; i++) {
        digest = dtp_digest_text(dtp_digest_text(digest, rows->row[i].what), rows->row[i].text);
        for (int column = 0; column < DTP_MEASURED_COLUMN_COUNT; column++)
            digest = add_number(digest, rows->row[i].number[column]);
    }
    return digest;
}

uint64_t dtp_digest_catalog(uint64_t digest, const struct dtp_catalog *catalog)
{
    for (size_t i = 0; i < catalog->provenance_count; i++) { /* every figure of GPUs and machines */
        const struct dtp_provenance *p = &catalog->provenance[i];
        digest = dtp_digest_text(dtp_digest_text(dtp_digest_text(digest, p->key), p->quantity), p->text);
    }
    for (size_t i = 0; i < catalog->price_count; i++) {
        const struct dtp_price *p = &catalog->prices[i];
        digest = add_number(dtp_digest_text(digest, p->gpu_key), p->low);
        digest = add_number(add_number(digest, p->typical), p->high);
    }
    for (size_t i = 0; i < catalog->model_count; i++)
        digest = add_model(digest, &catalog->models[i]);
    for (size_t i = 0; i < catalog->alias_count; i++)
        digest = dtp_digest_text(dtp_digest_text(digest, catalog->aliases[i].alias), catalog->aliases[i].key);
    for (size_t i = 0; i < catalog->measured_count; i++)
        digest = add_measured(digest, catalog->measured[i].times);
    for (size_t i = 0; i < DTP_CONSTANT_COUNT; i++)
        digest = add_number(digest, dtp_calibration_rows[i].value);
    return digest;
}
