/* Recipes of training with matmuls in 8 and 4 bits (fp8_recipe.def): which exist, and what each says. */
#ifndef DTP_FP8_RECIPE_H
#define DTP_FP8_RECIPE_H

#include <stdbool.h>
#include <stdint.h>

enum dtp_fp8_recipe {
    DTP_FP8_NONE, /* matmuls are in 16 or 32 bits */
#define DTP_FP8_RECIPE(suffix, word, precision, libraries, granularity, block, scale_bytes, bits, amax, narrow, fast,  \
                       gathers, parts, formats, words)                                                                 \
    DTP_FP8_##suffix,
#include "base/fp8_recipe.def"
    DTP_FP8_RECIPE_COUNT
};

/* Whose code casts, and so what is kept for backward. */
enum dtp_fp8_library { DTP_FP8_TORCHAO, DTP_FP8_TE, DTP_FP8_OWN };
enum dtp_fp8_granularity { DTP_FP8_BY_TENSOR, DTP_FP8_BY_ROW, DTP_FP8_BY_BLOCK };
enum dtp_fp8_amax { DTP_FP8_AMAX_THIS_STEP, DTP_FP8_AMAX_HISTORY, DTP_FP8_AMAX_IN_CAST };
enum dtp_fp8_parts { DTP_FP8_ON_ANY, DTP_FP8_ON_HOPPER, DTP_FP8_ON_BLACKWELL };
/* A linear's three products. */
enum dtp_product { DTP_PRODUCT_FORWARD, DTP_PRODUCT_INPUT_GRADIENT, DTP_PRODUCT_WEIGHT_GRADIENT };

struct dtp_fp8_recipe_row {
    const char *word, *precision, *formats, *words;
    uint32_t libraries; /* a bit for each enum dtp_fp8_library */
    enum dtp_fp8_granularity granularity;
    enum dtp_fp8_amax amax;
    enum dtp_fp8_parts parts;
    uint32_t block, scale_bytes, bits;
    uint32_t narrow, fast; /* a bit for each enum dtp_product */
    bool gathers;
};

/* Of DTP_FP8_NONE: NULL. */
const struct dtp_fp8_recipe_row *dtp_fp8_recipe_row(enum dtp_fp8_recipe recipe);
/* "none" for DTP_FP8_NONE. */
const char *dtp_fp8_recipe_text(enum dtp_fp8_recipe recipe);
/* Ignores case and what separates words; false when `text` names none. */
bool dtp_fp8_recipe_parse(const char *text, enum dtp_fp8_recipe *out);

/* Whether Transformer Engine's user buffers take rows of it, as they do rows in 16 bits: in 8 with a scale a tensor,
 * and MXFP8 (pytorch/module/base.py, fill_userbuffers_buffer_for_all_gather: "Unsupported quantizer for Userbuffers" of
 * any other). */
bool dtp_fp8_has_user_buffers(enum dtp_fp8_recipe recipe);

/* Bytes of the cast of so many elements, scales of blocks with them. Those of tensors and rows are left out: at most 4
 * a row. */
uint64_t dtp_fp8_bytes(enum dtp_fp8_recipe recipe, uint64_t elements);

#endif
