#include "kernels/element.h"
#include "kernels/nf4.h"

#include <math.h>

static const float numbers[16] = {DTP_NF4_NUMBERS};

/* The code of a number between -1 and 1: how many middles between neighbours of the table are below it. */
static uint8_t code_of(float number)
{
    uint8_t code = 0;
    while (code < 15 && number > 0.5f * (numbers[code] + numbers[code + 1]))
        code++;
    return code;
}

int dtp_reference_pack4(void *self, const struct dtp_pack4_args *a, void *stream)
{
    (void)self, (void)stream;
    for (uint64_t first = 0; first < a->count; first += DTP_NF4_BLOCK) {
        float largest = 0;
        dtp_raise_amax(&largest, a->values, a->element, first, DTP_NF4_BLOCK);
        a->largest[first / DTP_NF4_BLOCK] = largest;
        for (uint64_t i = first; i < first + DTP_NF4_BLOCK; i += 2) {
            float high = dtp_load_float(a->values, a->element, i), low = dtp_load_float(a->values, a->element, i + 1);
            a->codes[i / 2] =
                (uint8_t)(code_of(largest > 0 ? high / largest : 0) << 4 | code_of(largest > 0 ? low / largest : 0));
        }
    }
    return 0;
}

int dtp_reference_unpack4(void *self, const struct dtp_unpack4_args *a, void *stream)
{
    (void)self, (void)stream;
    for (uint64_t i = 0; i < a->count; i++) {
        uint8_t code = i % 2 ? a->codes[i / 2] & 15 : a->codes[i / 2] >> 4;
        dtp_store(a->result, a->element, i, (double)(numbers[code] * a->largest[i / DTP_NF4_BLOCK]));
    }
    return 0;
}
