#include "base/fp8_recipe.h"

#include "base/nearest.h"

#include <stddef.h>

static const struct dtp_fp8_recipe_row rows[DTP_FP8_RECIPE_COUNT] = {
#define TORCHAO (1u << DTP_FP8_TORCHAO)
#define TE (1u << DTP_FP8_TE)
#define OWN (1u << DTP_FP8_OWN)
#define FORWARD (1u << DTP_PRODUCT_FORWARD)
#define INPUT (1u << DTP_PRODUCT_INPUT_GRADIENT)
#define WEIGHT (1u << DTP_PRODUCT_WEIGHT_GRADIENT)
#define DTP_FP8_RECIPE(suffix, its_word, its_precision, its_libraries, its_granularity, its_block, its_scale_bytes,    \
                       its_bits, its_amax, its_narrow, its_fast, its_gathers, its_parts, its_formats, its_words)       \
    [DTP_FP8_##suffix] = {.word = its_word,                                                                            \
                          .precision = its_precision,                                                                  \
                          .formats = its_formats,                                                                      \
                          .words = its_words,                                                                          \
                          .libraries = its_libraries,                                                                  \
                          .granularity = DTP_FP8_BY_##its_granularity,                                                 \
                          .amax = DTP_FP8_AMAX_##its_amax,                                                             \
                          .parts = DTP_FP8_ON_##its_parts,                                                             \
                          .block = its_block,                                                                          \
                          .scale_bytes = its_scale_bytes,                                                              \
                          .bits = its_bits,                                                                            \
                          .narrow = its_narrow,                                                                        \
                          .fast = its_fast,                                                                            \
                          .gathers = its_gathers},
#include "base/fp8_recipe.def"
};

const struct dtp_fp8_recipe_row *dtp_fp8_recipe_row(enum dtp_fp8_recipe recipe)
{
    return recipe > DTP_FP8_NONE && recipe < DTP_FP8_RECIPE_COUNT ? &rows[recipe] : NULL;
}

const char *dtp_fp8_recipe_text(enum dtp_fp8_recipe recipe)
{
    const struct dtp_fp8_recipe_row *row = dtp_fp8_recipe_row(recipe);
    return row ? row->word : "none";
}

bool dtp_fp8_recipe_parse(const char *text, enum dtp_fp8_recipe *out)
{
    for (int i = DTP_FP8_NONE; text && i < DTP_FP8_RECIPE_COUNT; i++)
        if (dtp_names_equal(dtp_fp8_recipe_text((enum dtp_fp8_recipe)i), text)) {
            *out = (enum dtp_fp8_recipe)i;
            return true;
        }
    return false;
}

bool dtp_fp8_has_user_buffers(enum dtp_fp8_recipe recipe)
{
    return recipe != DTP_FP8_BLOCKWISE && recipe != DTP_FP8_NVFP4;
}

uint64_t dtp_fp8_bytes(enum dtp_fp8_recipe recipe, uint64_t elements)
{
    const struct dtp_fp8_recipe_row *row = dtp_fp8_recipe_row(recipe);
    if (!row)
        return 0;
    uint64_t scales = row->block ? (elements + row->block - 1) / row->block * row->scale_bytes : 0;
    return (elements * row->bits + 7) / 8 + scales;
}
