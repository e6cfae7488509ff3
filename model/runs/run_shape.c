/* From a row's dimensions and model name to a full transformer.
 *
 * A run table has the dimensions but not the norms, biases, activation and tying. Those follow from the family, which
 * the notes ("architecture=llama") or the model's name tell; a name that belongs to no family is judged by its shape
 * (GPT's ffn is four times its hidden size, LLaMA's is not). Where the source counts the parameters, the variant of the
 * family (tied or untied head, ...) with the nearest count is taken, and a count more than 2 % off refuses the row:
 * then either the shape or the family is not what it seems. */
#include "base/bytes.h"
#include "runs/run_table.h"

#include <ctype.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define COUNT_TOLERANCE 0.02

enum style { GPT, LLAMA, QWEN2, QWEN3, INTERNLM, MPT, MPT_ALIBI, OPT, BLOOM, NEOX, FALCON, NEMOTRON };

/* How to vary what a name does not settle. The first variant that applies is also what holds without a count. */
enum tying { TIED, UNTIED, TIED_WHEN_SMALL };

struct family {
    const char *prefix; /* of the name in lower case without separators; the longest that fits wins */
    enum style style;
    enum tying tying;
    uint64_t tokens; /* of its only tokenizer; 0: it has several */
};

/* GPT-2's BPE, and BLOOM's (BigScience 2022, section 3.1.3). Megatron pads a vocabulary to a multiple of 128 tp. */
#define GPT2_TOKENS 50257
#define BLOOM_TOKENS 250680
#define VOCABULARY_MULTIPLE 128

static const struct family families[] = {
    {"gpt", GPT, TIED, GPT2_TOKENS},
    {"gptneox", NEOX, UNTIED},
    {"pythia", NEOX, UNTIED},
    {"opt", OPT, TIED},
    {"bloom", BLOOM, TIED, BLOOM_TOKENS},
    {"mpt", MPT, TIED},
    {"mtnlg", GPT, TIED, GPT2_TOKENS},
    {"turingnlg", GPT, TIED, GPT2_TOKENS},
    {"cerebrasgpt", GPT, TIED},
    {"starcoder", GPT, TIED},
    {"santacoder", GPT, TIED},
    {"falcon", FALCON, TIED},
    {"nemotron", NEMOTRON, UNTIED},
    {"internlm", INTERNLM, UNTIED},
    {"internlm2", LLAMA, UNTIED},
    {"llama", LLAMA, UNTIED},
    {"llama321b", LLAMA, TIED},
    {"llama323b", LLAMA, TIED},
    {"openllama", LLAMA, UNTIED},
    {"tinyllama", LLAMA, UNTIED},
    {"codellama", LLAMA, UNTIED},
    {"vicuna", LLAMA, UNTIED},
    {"alpaca", LLAMA, UNTIED},
    {"mistral", LLAMA, UNTIED},
    {"yi", LLAMA, UNTIED},
    {"baichuan", LLAMA, UNTIED},
    {"smollm", LLAMA, TIED},
    {"deepseek", LLAMA, UNTIED},
    {"granite", LLAMA, TIED},
    {"olmo", LLAMA, UNTIED},
    {"phi3", LLAMA, UNTIED},
    {"qwen", QWEN2, TIED_WHEN_SMALL},
    {"qwen3", QWEN3, TIED_WHEN_SMALL},
    {"gemma", LLAMA, TIED},
};

/* Families whose heads need not be hidden / heads wide; a run table has no column for it. */
static const struct {
    const char *prefix;
    uint64_t head_dim;
} wide_heads[] = {{"qwen3", 128}, {"gemma", 256}, {"mistralnemo", 128}};

/* Mixture-of-experts and encoder models: their dimensions do not say what a decoder's do. */
static const char *const foreign[] = {"mixtral",    "dbrx",        "grok",           "arctic",  "deepseekv2",
                                      "deepseekv3", "deepseekmoe", "gptoss",         "bert",    "t5",
                                      "vit",        "llama4scout", "llama4maverick", "switch",  "roberta",
                                      "mamba",      "rwkv",        "glam",           "qwen3moe"};

/* "Meta-Llama/Llama-3.1_8B" -> "llama318b": what follows the last '/', letters and digits only, in lower case. */
static void fold_name(const char *name, char *out, size_t bytes)
{
    const char *slash = strrchr(name, '/');
    size_t used = 0;
    for (const char *c = slash ? slash + 1 : name; *c && used + 1 < bytes; c++)
        if (isalnum((unsigned char)*c))
            out[used++] = (char)tolower((unsigned char)*c);
    out[used] = 0;
}

static bool starts_with(const char *text, const char *prefix)
{
    return strncmp(text, prefix, strlen(prefix)) == 0;
}

static const struct family *family_of_name(const char *folded)
{
    const struct family *best = NULL;
    for (size_t i = 0; i < sizeof families / sizeof *families; i++)
        if (starts_with(folded, families[i].prefix) && (!best || strlen(families[i].prefix) > strlen(best->prefix)))
            best = &families[i];
    return best;
}

/* Width of its heads where its name tells, else 0. */
static uint64_t head_dim_of_name(const char *folded)
{
    for (size_t i = 0; i < sizeof wide_heads / sizeof *wide_heads; i++)
        if (starts_with(folded, wide_heads[i].prefix))
            return wide_heads[i].head_dim;
    return 0;
}

/* Width of its heads where its notes tell ("head_dim=128"), else where its name does, else 0. */
static uint64_t head_dim_of_run(const struct dtp_run *run, const char *folded)
{
    const char *note = strstr(run->notes, "head_dim=");
    uint64_t noted = note ? strtoull(note + strlen("head_dim="), NULL, 10) : 0;
    return noted ? noted : head_dim_of_name(folded);
}

/* The family of a row, or NULL for one that only the shape can tell. */
static const struct family *family_of_run(const struct dtp_run *run, const char *folded)
{
    static const struct family noted[] = {{"gpt2", GPT, TIED, GPT2_TOKENS}, {"llama", LLAMA, UNTIED}};
    for (size_t i = 0; i < sizeof noted / sizeof *noted; i++) {
        const char *note = strstr(run->notes, "architecture=");
        if (note && starts_with(note + strlen("architecture="), noted[i].prefix))
            return &noted[i];
    }
    return family_of_name(folded);
}

/* ---- styles ---------------------------------------------------------------------------------------------------- */

static void set_biases(struct dtp_transformer *shape, bool on)
{
    shape->qkv_bias = shape->attention_output_bias = shape->mlp_bias = on;
}

static void set_gpt(struct dtp_transformer *shape, enum dtp_position position, uint64_t sequence)
{
    shape->norm = DTP_LAYER_NORM;
    shape->norm_bias = true;
    shape->activation = DTP_GELU;
    shape->position = position;
    shape->positions = position == DTP_POSITION_LEARNED ? sequence : 0;
    set_biases(shape, true);
}

/* Sources: the models' own code (llm-foundry's MPT: biases and a learned table unless no_bias and alibi are set;
 * InternLM 7B: bias on all four attention matrices; Nemotron-4: LayerNorm, squared ReLU, no biases). */
static void apply_style(struct dtp_transformer *shape, enum style style, uint64_t sequence)
{
    switch (style) {
    case LLAMA: break;
    case QWEN2: shape->qkv_bias = true; break;
    case QWEN3: shape->qk_norm = true; break;
    case INTERNLM: shape->qkv_bias = shape->attention_output_bias = true; break;
    case GPT:
    case MPT: set_gpt(shape, DTP_POSITION_LEARNED, sequence); break;
    case OPT:
        set_gpt(shape, DTP_POSITION_LEARNED, sequence + 2); /* OPT's table starts at 2 */
        shape->activation = DTP_RELU;
        break;
    case BLOOM:
        set_gpt(shape, DTP_POSITION_ALIBI, sequence);
        shape->embedding_norm = true;
        break;
    case NEOX: set_gpt(shape, DTP_POSITION_ROPE, sequence); break;
    case MPT_ALIBI:
    case FALCON:
        set_gpt(shape, style == FALCON ? DTP_POSITION_ROPE : DTP_POSITION_ALIBI, sequence);
        set_biases(shape, false);
        shape->norm_bias = style == FALCON;
        break;
    case NEMOTRON:
        set_gpt(shape, DTP_POSITION_ROPE, sequence);
        set_biases(shape, false);
        shape->activation = DTP_RELU;
        break;
    }
}

/* ---- variants -------------------------------------------------------------------------------------------------- */

struct variant {
    enum style style;
    bool tied;
    uint64_t head_dim;
};
#define MOST_VARIANTS 8

static size_t add_variants(struct variant *out, size_t used, enum style style, bool tied_first, uint64_t head_dim)
{
    out[used] = (struct variant){style, tied_first, head_dim};
    out[used + 1] = (struct variant){style, !tied_first, head_dim};
    return used + 2;
}

/* What the row's model may be, likeliest first. */
static size_t list_variants(const struct dtp_run *run, const struct family *family, uint64_t wide, struct variant *out)
{
    uint64_t even = run->hidden / run->heads;
    if (!family) {
        bool gpt_first = run->ffn == 4 * run->hidden;
        size_t used = add_variants(out, 0, gpt_first ? GPT : LLAMA, gpt_first, wide ? wide : even);
        return add_variants(out, used, gpt_first ? LLAMA : GPT, !gpt_first, wide ? wide : even);
    }
    /* Qwen2(.5) ties its head up to 3B (hidden 2048), Qwen3 up to 4B (hidden 2560). */
    bool small = run->hidden <= (family->style == QWEN3 ? 2560 : 2048);
    bool tied = family->tying == TIED || (family->tying == TIED_WHEN_SMALL && small);
    size_t used = add_variants(out, 0, family->style, tied, wide ? wide : even);
    if (wide)
        used = add_variants(out, used, family->style, tied, even);
    if (family->style == MPT)
        used = add_variants(out, used, MPT_ALIBI, true, even);
    return used;
}

/* Widths of latents as notes state them, of no column: "MLA q_lora=1536 kv_lora=512 nope=128 rope=64 v=128". Those of a
 * head are its part without and with rope; false: one of them, or the clause, is missing. */
static bool read_latents(const struct dtp_run *run, struct dtp_transformer *shape)
{
    const char *clause = strstr(run->notes, "MLA ");
    uint64_t nope = 0;
    const struct {
        const char *word;
        uint64_t *width;
        bool needed;
    } widths[] = {{" q_lora=", &shape->q_latent, false},
                  {" kv_lora=", &shape->kv_latent, true},
                  {" nope=", &nope, true},
                  {" rope=", &shape->rope_head_dim, true},
                  {" v=", &shape->value_head_dim, true}};
    if (!clause || strcasecmp(run->attention, "mla") != 0)
        return false;
    const char *end = clause + strcspn(clause, ";");
    for (size_t i = 0; i < sizeof widths / sizeof *widths; i++) {
        const char *at = strstr(clause, widths[i].word);
        *widths[i].width = at && at < end ? strtoull(at + strlen(widths[i].word), NULL, 10) : 0;
        if (widths[i].needed && !*widths[i].width)
            return false;
    }
    shape->head_dim = nope + shape->rope_head_dim;
    return true;
}

static struct dtp_transformer build_variant(const struct dtp_run *run, struct variant variant)
{
    struct dtp_transformer shape = dtp_transformer_default();
    snprintf(shape.name, sizeof shape.name, "%.60s", run->model_name);
    shape.layers = run->layers;
    shape.hidden = run->hidden;
    shape.heads = run->heads;
    shape.kv_heads = run->kv_heads ? run->kv_heads : run->heads;
    shape.head_dim = variant.head_dim;
    shape.ffn = run->ffn;
    shape.vocab = run->vocab;
    shape.tied_head = variant.tied;
    shape.experts = run->experts;
    shape.experts_per_token = run->top_k;
    shape.expert_ffn = run->expert_ffn;
    shape.shared_expert_ffn = dtp_bytes_product(run->shared_experts, run->expert_ffn);
    shape.dense_layers = run->first_dense_layers;
    if (run->experts && !shape.ffn)
        shape.ffn = run->expert_ffn; /* of layers without experts, of which there are none */
    apply_style(&shape, variant.style, run->sequence);
    if (strstr(run->notes, "disable-bias-linear")) /* Megatron-LM's flag, as a row's notes have it */
        set_biases(&shape, false);
    if (strstr(run->notes, "; qk_norm;")) /* of the script of h200_more_runs.csv */
        shape.qk_norm = true;
    struct dtp_transformer latent = shape;
    return read_latents(run, &latent) ? latent : shape;
}

/* Parameters of the model alone: a row's count may have its adapters', which the script of h200_more_runs.csv says are
 * all that is trained. */
static uint64_t model_parameters(const struct dtp_run *run)
{
    const char *note = run->lora_rank ? strstr(run->notes, "; trainable ") : NULL;
    uint64_t adapters = note ? strtoull(note + strlen("; trainable "), NULL, 10) : 0;
    return adapters < run->params ? run->params - adapters : run->params;
}

static enum dtp_status choose_by_count(const struct dtp_run *run, const struct variant *variants, size_t count,
                                       struct dtp_transformer *out, struct dtp_faults *faults)
{
    const uint64_t stated = model_parameters(run);
    double best = INFINITY;
    for (size_t i = 0; i < count; i++) {
        struct dtp_transformer shape = build_variant(run, variants[i]);
        if (dtp_transformer_check(&shape, NULL, 0, NULL))
            continue; /* a count beyond its range would have wrapped */
        double off = fabs((double)dtp_transformer_count(&shape).total / (double)stated - 1);
        if (off < best) {
            best = off;
            *out = shape;
        }
    }
    if (best <= COUNT_TOLERANCE)
        return DTP_OK;
    return dtp_fault(faults, DTP_BAD_INPUT, NULL, 0,
                     "the row's dimensions give %" PRIu64 " parameters, its params column says %" PRIu64
                     " (%.1f %% off, 2 %% allowed)",
                     dtp_transformer_count(out).total, stated, 100 * best);
}

/* 0: not known. A tp that no vocabulary is spread over pads nothing; it is refused elsewhere. */
static uint64_t padded_vocabulary(uint64_t tokens, uint64_t tp)
{
    uint64_t multiple = VOCABULARY_MULTIPLE * (tp && tp <= tokens ? tp : 1);
    return dtp_divide_up(tokens, multiple) * multiple;
}

/* ---- the row --------------------------------------------------------------------------------------------------- */

static enum dtp_status check_dimensions(const struct dtp_run *run, const struct family *family, const char *folded,
                                        struct dtp_faults *faults)
{
    enum dtp_status status = DTP_OK;
    const struct {
        const char *name;
        uint64_t value;
    } needed[] = {{"n_layers", run->layers},
                  {"hidden", run->hidden},
                  {"n_heads", run->heads},
                  {"ffn_hidden", run->experts && !run->first_dense_layers ? run->expert_ffn : run->ffn},
                  {"vocab", run->vocab},
                  {"seq_len", run->sequence}};
    for (size_t i = 0; i < sizeof needed / sizeof *needed; i++)
        if (!needed[i].value && (dtp_run_lacks(run), i < sizeof needed / sizeof *needed - 1))
            status = dtp_fault(faults, DTP_BAD_INPUT, NULL, 0,
                               "%s is empty, and '%.40s' is no preset that states it (dtplan catalog models)",
                               needed[i].name, run->model_name);
        else if (!needed[i].value)
            status = dtp_fault(faults, DTP_BAD_INPUT, NULL, 0, "%s is empty", needed[i].name);
    bool grouped = !family || (family->style != GPT && family->style != MPT && family->style != OPT &&
                               family->style != BLOOM && family->style != NEOX);
    if (!run->kv_heads && !run->params && grouped)
        dtp_run_lacks(run), status = dtp_fault(faults, DTP_BAD_INPUT, NULL, 0,
                                               "n_kv_heads is empty, and no params column confirms a guess");
    if (run->heads && run->hidden % run->heads && !head_dim_of_run(run, folded))
        status = dtp_fault(faults, DTP_BAD_INPUT, NULL, 0, "n_heads %" PRIu64 " do not divide hidden %" PRIu64,
                           run->heads, run->hidden);
    for (size_t i = 0; i < sizeof foreign / sizeof *foreign; i++)
        if (starts_with(folded, foreign[i]) && !run->experts)
            status = dtp_fault(faults, DTP_BAD_INPUT, NULL, 0, "model '%.40s' is no dense decoder; not modelled",
                               run->model_name);
    return status;
}

/* Columns know nothing of latents, sinks or biases: a row that names a model with these means that model,
 * where what it states is the model's. */
static bool means_preset(const struct dtp_run *run, const struct dtp_transformer *t)
{
    const uint64_t pairs[][2] = {{run->layers, t->layers},        {run->hidden, t->hidden},
                                 {run->heads, t->heads},          {run->vocab, t->vocab},
                                 {run->experts, t->experts},      {run->top_k, t->experts_per_token},
                                 {run->expert_ffn, t->expert_ffn}};
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++)
        if (pairs[i][0] && pairs[i][0] != pairs[i][1])
            return false;
    return run->experts && (t->kv_latent || t->attention_sinks || t->expert_bias);
}

enum dtp_status dtp_run_fill_preset(struct dtp_run *run, const struct dtp_catalog *catalog,
                                    const struct dtp_transformer **preset, struct dtp_faults *faults)
{
    enum dtp_status status = DTP_OK;
    const struct dtp_transformer *t =
        *run->model_name ? dtp_catalog_model(catalog, run->model_name, NULL, 0, NULL) : NULL;
    bool whole = run->layers && run->hidden && run->heads && (run->ffn || run->experts) && run->vocab;
    *preset = NULL;
    if (t && means_preset(run, t)) {
        *preset = t;
        return DTP_OK;
    }
    if (whole || !t)
        return DTP_OK;
    const struct {
        const char *name;
        uint64_t *stated, is;
    } dimensions[] = {{"n_layers", &run->layers, t->layers},
                      {"hidden", &run->hidden, t->hidden},
                      {"n_heads", &run->heads, t->heads},
                      {"n_kv_heads", &run->kv_heads, t->kv_heads},
                      {"ffn_hidden", &run->ffn, t->ffn},
                      {"vocab", &run->vocab, t->vocab},
                      {"n_experts", &run->experts, t->experts},
                      {"top_k", &run->top_k, t->experts_per_token},
                      {"moe_ffn_hidden", &run->expert_ffn, t->expert_ffn}};
    for (size_t i = 0; i < sizeof dimensions / sizeof *dimensions; i++) {
        if (*dimensions[i].stated && *dimensions[i].stated != dimensions[i].is)
            status = dtp_fault(faults, DTP_BAD_INPUT, NULL, 0,
                               "%s is %" PRIu64 ", but the preset %s has %" PRIu64
                               "; state all of n_layers, hidden, n_heads, ffn_hidden and vocab, or none",
                               dimensions[i].name, *dimensions[i].stated, t->name, dimensions[i].is);
        *dimensions[i].stated = dimensions[i].is;
    }
    *preset = t;
    return status;
}

enum dtp_status dtp_run_shape(const struct dtp_run *row, struct dtp_transformer *out, struct dtp_faults *faults)
{
    char folded[DTP_NAME_BYTES];
    struct dtp_run filled = *row;
    const struct dtp_run *run = &filled;
    fold_name(run->model_name, folded, sizeof folded);
    const struct family *family = family_of_run(run, folded);
    if (!filled.vocab && family)
        filled.vocab = padded_vocabulary(family->tokens, filled.tp);
    enum dtp_status status = check_dimensions(run, family, folded, faults);
    if (status)
        return status;
    struct variant variants[MOST_VARIANTS];
    size_t count = list_variants(run, family, head_dim_of_run(run, folded), variants);
    *out = build_variant(run, variants[0]);
    status = dtp_transformer_check(out, NULL, 0, faults);
    if (status || !run->params)
        return status;
    return choose_by_count(run, variants, count, out, faults);
}
