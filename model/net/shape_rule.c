/* The shape behind `--params N` alone: a well-known LLaMA-like shape, scaled. The rule stands in transformer.h.
 *
 * All patterns are LLaMA-like (RMSNorm, SwiGLU, RoPE, no biases) at every size, so that a sequence is never limited by
 * a position table nobody asked for. */
#include "net/transformer.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#define TOLERANCE 0.02  /* of N: the promise */
#define LIKENESS 0.6931 /* ln 2: a layers/hidden ratio within 2x of the pattern's is a like shape */
#define FFN_TRIM 0.1    /* ffn may leave the pattern's ratio by a tenth to come nearer to N */
#define LARGEST 9e14    /* 2 % more is still below what dtp_transformer_check allows */

/* Sources: llama2.c README (stories260K/15M/42M/110M; ffn from its model.py); the rest as in scenarios/models.csv,
 * whose rows of these keys a test compares. */
static const struct pattern {
    const char *key;
    uint64_t layers, hidden, heads, kv_heads, ffn, vocab;
    bool tied_head;
} patterns[] = {
    {"stories-260k", 5, 64, 8, 4, 172, 512, true},
    {"stories-15m", 6, 288, 6, 6, 768, 32000, true},
    {"stories-42m", 8, 512, 8, 8, 1376, 32000, true},
    {"stories-110m", 12, 768, 12, 12, 2048, 32000, true},
    {"tinyllama-1.1b", 22, 2048, 32, 4, 5632, 32000, false},
    {"llama-3.2-3b", 28, 3072, 24, 8, 8192, 128256, true},
    {"llama-2-7b", 32, 4096, 32, 32, 11008, 32000, false},
    {"llama-3-8b", 32, 4096, 32, 8, 14336, 128256, false},
    {"llama-2-13b", 40, 5120, 40, 40, 13824, 32000, false},
    {"llama-33b", 60, 6656, 52, 52, 17920, 32000, false},
    {"llama-3-70b", 80, 8192, 64, 8, 28672, 128256, false},
    {"llama-3.1-405b", 126, 16384, 128, 8, 53248, 128256, false},
};
#define PATTERN_COUNT (sizeof patterns / sizeof *patterns)

bool dtp_transformer_pattern(size_t index, struct dtp_transformer *out)
{
    if (index >= PATTERN_COUNT)
        return false;
    const struct pattern *pattern = &patterns[index];
    *out = dtp_transformer_default();
    snprintf(out->name, sizeof out->name, "%s", pattern->key);
    out->layers = pattern->layers;
    out->hidden = pattern->hidden;
    out->heads = pattern->heads;
    out->kv_heads = pattern->kv_heads;
    out->head_dim = pattern->hidden / pattern->heads;
    out->ffn = pattern->ffn;
    out->vocab = pattern->vocab;
    out->tied_head = pattern->tied_head;
    return true;
}

static double count(const struct dtp_transformer *t)
{
    return (double)dtp_transformer_count(t).total;
}

size_t dtp_transformer_nearest_pattern(double parameters)
{
    size_t nearest = 0;
    double best = INFINITY;
    struct dtp_transformer t;
    for (size_t i = 0; dtp_transformer_pattern(i, &t); i++) {
        double distance = fabs(log(count(&t) / parameters));
        if (distance < best) {
            best = distance;
            nearest = i;
        }
    }
    return nearest;
}

/* ---- scaling --------------------------------------------------------------------------------------------------- */

/* The search: every candidate goes through consider(). */
struct search {
    double parameters;
    struct dtp_transformer pattern;
    struct dtp_transformer best, nearest; /* most like the pattern within the tolerance | nearest count of all */
    double best_score, nearest_error;
};

/* Multiple of ffn: 64 keeps tensor cores and 8-way tensor parallelism full; where a layer is small that would be too
 * coarse a step for the count, and 16 (one tensor core tile), or the toy width's own 4, is kept. */
static uint64_t ffn_multiple(const struct dtp_transformer *pattern)
{
    if (pattern->hidden >= 2048 && pattern->ffn % 64 == 0)
        return 64;
    return pattern->ffn % 16 ? 4 : 16;
}

/* The pattern's ffn/hidden ratio at width `hidden`, to the nearest multiple. */
static uint64_t scaled_ffn(const struct dtp_transformer *pattern, uint64_t hidden)
{
    uint64_t multiple = ffn_multiple(pattern);
    double ideal = (double)hidden * (double)pattern->ffn / (double)pattern->hidden;
    uint64_t steps = (uint64_t)(ideal / (double)multiple + 0.5);
    return (steps ? steps : 1) * multiple;
}

/* Moves ffn by whole multiples towards N. One multiple m changes L * 3 h m parameters (gate, up [h, f], down [f, h]).
 */
static void trim_ffn(struct dtp_transformer *t, const struct search *search)
{
    double multiple = (double)ffn_multiple(&search->pattern);
    double per_step = 3.0 * (double)t->layers * (double)t->hidden * multiple;
    double most = floor(FFN_TRIM * (double)t->ffn / multiple);
    double steps = round((search->parameters - count(t)) / per_step);
    steps = fmin(fmax(steps, -most), most);
    t->ffn = (uint64_t)((double)t->ffn + steps * multiple);
}

/* How unlike the pattern: the logs of both ratios, 0 for the same proportions. */
static double unlikeness(const struct dtp_transformer *t, const struct dtp_transformer *pattern)
{
    double h = (double)t->hidden, h0 = (double)pattern->hidden;
    double depth = log((double)t->layers / h * (h0 / (double)pattern->layers));
    double width = log((double)t->ffn / h * (h0 / (double)pattern->ffn));
    return fabs(depth) + fabs(width);
}

static void consider(struct search *search, struct dtp_transformer candidate)
{
    trim_ffn(&candidate, search);
    double error = fabs(count(&candidate) / search->parameters - 1);
    if (error < search->nearest_error) {
        search->nearest_error = error;
        search->nearest = candidate;
    }
    double score = unlikeness(&candidate, &search->pattern);
    if (error <= TOLERANCE && score < search->best_score) {
        search->best_score = score;
        search->best = candidate;
    }
}

/* Widths h = heads * d_h for heads in multiples of `step`, until one layer alone is too many; at each width the two
 * depths around N: L = (N - what is not in layers) / layer. */
static void search_widths(struct search *search, uint64_t step)
{
    uint64_t group = search->pattern.heads / search->pattern.kv_heads;
    for (uint64_t heads = step;; heads += step) {
        struct dtp_transformer t = search->pattern;
        t.heads = heads;
        t.kv_heads = heads / group;
        t.hidden = heads * t.head_dim;
        t.ffn = scaled_ffn(&search->pattern, t.hidden);
        struct dtp_parameter_count parts = dtp_transformer_count(&t);
        double ends = (double)(parts.embedding + parts.final_norm + parts.head);
        double layers = floor((search->parameters - ends) / (double)parts.block);
        for (double depth = fmax(layers, 1); depth <= fmax(layers, 1) + 1; depth++) {
            t.layers = (uint64_t)depth;
            if (depth <= 100000)
                consider(search, t);
        }
        if (layers < 1)
            return;
    }
}

static uint64_t least_common_multiple(uint64_t a, uint64_t b)
{
    uint64_t multiple = a;
    while (multiple % b)
        multiple += a;
    return multiple;
}

/* "llama-like 7.0B" for N = 7e9: the number asked for, with two digits below ten and up to three above. */
static void name_scaled(struct dtp_transformer *t, double parameters)
{
    static const char units[] = " KMBT";
    size_t unit = 0;
    for (; parameters >= 999.5 && unit + 2 < sizeof units; unit++)
        parameters /= 1000;
    snprintf(t->name, sizeof t->name, "llama-like %.*f%c", parameters < 9.95 ? 1 : 0, parameters, units[unit]);
}

enum dtp_status dtp_transformer_from_parameters(double parameters, struct dtp_transformer *out,
                                                struct dtp_faults *faults)
{
    if (!(parameters >= 1 && parameters <= LARGEST))
        return dtp_fault(faults, DTP_BAD_INPUT, NULL, 0, "%g parameters; a number from 1e5 to 9e14 is needed",
                         parameters);
    struct search search = {.parameters = parameters, .best_score = INFINITY, .nearest_error = INFINITY};
    dtp_transformer_pattern(dtp_transformer_nearest_pattern(parameters), &search.pattern);
    *out = search.pattern;
    if (fabs(count(out) / parameters - 1) <= TOLERANCE)
        return DTP_OK;
    /* Heads in multiples of 4 split over 2 or 4 tensor-parallel ranks; groups of kv heads must stay whole. */
    uint64_t group = search.pattern.heads / search.pattern.kv_heads;
    search_widths(&search, least_common_multiple(group, 4));
    if (search.best_score > LIKENESS)
        search_widths(&search, group);
    if (!isfinite(search.best_score))
        return dtp_fault(faults, DTP_BAD_INPUT, NULL, 0,
                         "no shape comes within 2 %% of %g parameters, the nearest has %.0f; give the dimensions",
                         parameters, count(&search.nearest));
    *out = search.best;
    name_scaled(out, parameters);
    return dtp_transformer_check(out, NULL, 0, faults);
}
