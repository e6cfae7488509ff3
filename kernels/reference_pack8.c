#include "kernels/element.h"
#include "kernels/pack8.h"

#include <math.h>

/* The end of a run: what is not a number stays one. */
static float beyond(float end, float value, int sign)
{
    return (float)sign * value > (float)sign * end || isnan(value) ? value : end;
}

int dtp_reference_pack8(void *self, const struct dtp_pack8_args *a, void *stream)
{
    (void)self, (void)stream;
    const uint64_t runs = dtp_pack8_runs(a->count);
    float *ends = a->part;
    uint8_t *code = (uint8_t *)(ends + 2 * runs);
    for (uint64_t run = 0; run < runs; run++) {
        uint64_t begin = run * DTP_PACK8_RUN, end = begin + DTP_PACK8_RUN < a->count ? begin + DTP_PACK8_RUN : a->count;
        float least = 0, largest = 0;
        for (uint64_t i = begin; i < end; i++) {
            float value = dtp_load_float(a->values, a->element, i);
            least = beyond(least, value, -1), largest = beyond(largest, value, 1);
        }
        ends[2 * run] = least, ends[2 * run + 1] = largest;
        struct dtp_pack8_codes codes = dtp_pack8_codes(least, largest);
        for (uint64_t i = begin; i < end; i++)
            code[i] = dtp_pack8_code(codes, dtp_load_float(a->values, a->element, i));
    }
    return 0;
}

int dtp_reference_sum_packed8(void *self, const struct dtp_sum_packed8_args *a, void *stream)
{
    (void)self, (void)stream;
    const uint64_t runs = dtp_pack8_runs(a->count);
    for (uint64_t i = 0; i < a->count; i++) {
        float sum = 0;
        for (uint32_t p = 0; p < a->part_count; p++) {
            const float *ends = (const float *)((const char *)a->parts + p * a->part_bytes);
            const uint8_t *code = (const uint8_t *)(ends + 2 * runs);
            const uint64_t run = i / DTP_PACK8_RUN;
            sum += dtp_pack8_value(dtp_pack8_codes(ends[2 * run], ends[2 * run + 1]), code[i]);
        }
        dtp_store(a->total, a->element, i, (double)sum);
    }
    return 0;
}
