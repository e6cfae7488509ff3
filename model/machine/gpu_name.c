/* Which row of the catalogue a GPU is: drivers and catalogues write names differently ("NVIDIA H100 80GB HBM3",
 * h100-sxm). */
#include "machine/catalog.h"

#include <ctype.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#define MEMORY_TOLERANCE 0.15 /* "80 GB" is 79.6 to 81.6 GiB or GB, as who counts */

/* Words of letters and digits, small, a blank before and after each. */
static void spell(const char *text, size_t length, char *out, size_t bytes)
{
    size_t at = 1;
    out[0] = ' ';
    for (size_t i = 0; i < length && at + 2 < bytes; i++)
        if (isalnum((unsigned char)text[i]))
            out[at++] = (char)tolower((unsigned char)text[i]);
        else if (out[at - 1] != ' ')
            out[at++] = ' ';
    if (out[at - 1] != ' ')
        out[at++] = ' ';
    out[at] = '\0';
}

/* "h100" of h100-sxm, "rtx-4090" of rtx-4090: parts up to the first with a digit. */
static size_t model_length(const char *key)
{
    size_t length = strcspn(key, "-");
    while (key[length] && strcspn(key, "0123456789") >= length)
        length += 1 + strcspn(key + length + 1, "-");
    return length;
}

/* Parts of a key after the model ("80", "sxm") that stand in the name, as words or at their beginning. */
static int parts_in(const char *key, const char *name)
{
    char part[32];
    int found = 0;
    while (*key == '-') {
        size_t length = strcspn(++key, "-");
        snprintf(part, sizeof part, " %.*s", (int)length, key);
        found += strstr(name, part) != NULL;
        key += length;
    }
    return found;
}

/* 0: another GPU; else the more the likelier. */
static double likeness(const struct dtp_gpu *gpu, const char *name, uint64_t memory_bytes)
{
    char model[48];
    size_t length = model_length(gpu->key);
    spell(gpu->key, length, model, sizeof model);
    double off = fabs((double)gpu->memory_bytes / (double)memory_bytes - 1);
    return strstr(name, model) && off <= MEMORY_TOLERANCE ? 1 + parts_in(gpu->key + length, name) + (1 - off) / 2 : 0;
}

const struct dtp_gpu *dtp_catalog_gpu_named(const struct dtp_catalog *catalog, const char *name, uint64_t memory_bytes)
{
    char written[128];
    const struct dtp_gpu *best = NULL;
    double most = 0;
    spell(name, strlen(name), written, sizeof written);
    for (size_t i = 0; i < catalog->gpu_count; i++) {
        double value = likeness(&catalog->gpus[i], written, memory_bytes);
        if (value > most) {
            most = value;
            best = &catalog->gpus[i];
        }
    }
    return best;
}
