/* Which row of the catalogue a GPU is: drivers and catalogues write names differently ("NVIDIA H100 80GB HBM3",
 * h100-sxm). */
#include "prober.h"

#include <ctype.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>

#define MEMORY_TOLERANCE 0.15 /* "80 GB" is 79.6 to 81.6 GiB or GB, as who counts */

/* Letters and digits alone, small. */
static void plain(const char *text, char *out, size_t bytes)
{
    size_t length = 0;
    for (; *text && length + 1 < bytes; text++)
        if (isalnum((unsigned char)*text))
            out[length++] = (char)tolower((unsigned char)*text);
    out[length] = '\0';
}

/* "h100" of h100-sxm, "rtx4090" of rtx-4090: parts up to the first with a digit. *rest: what follows. */
static void stem(const char *key, char *out, size_t bytes, const char **rest)
{
    char text[48];
    size_t length = 0;
    do {
        length += key[length] == '-';
        length += strcspn(key + length, "-");
    } while (key[length] && strcspn(key, "0123456789") >= length);
    snprintf(text, sizeof text, "%.*s", (int)length, key);
    plain(text, out, bytes);
    *rest = key + length + (key[length] == '-');
}

/* 0: another GPU; else the more the likelier. */
static double likeness(const struct dtp_gpu *gpu, const char *name, uint64_t memory_bytes)
{
    char model[48], variant[48];
    const char *rest;
    stem(gpu->key, model, sizeof model, &rest);
    plain(rest, variant, sizeof variant);
    double off = fabs((double)gpu->memory_bytes / (double)memory_bytes - 1);
    if (!strstr(name, model) || off > MEMORY_TOLERANCE)
        return 0;
    return (double)strlen(model) + (variant[0] && strstr(name, variant) ? 1 : 0) + (1 - off) / 2;
}

const struct dtp_gpu *dtp_probe_find_gpu(const struct dtp_catalog *catalog, const char *name, uint64_t memory_bytes)
{
    char written[128];
    const struct dtp_gpu *best = NULL;
    double most = 0;
    plain(name, written, sizeof written);
    for (size_t i = 0; i < catalog->gpu_count; i++) {
        double value = likeness(&catalog->gpus[i], written, memory_bytes);
        if (value > most) {
            most = value;
            best = &catalog->gpus[i];
        }
    }
    return best;
}
