#include "kernels/element.h"
#include "kernels/random.h"

int dtp_reference_cast(void *self, const struct dtp_cast_args *a, void *stream)
{
    (void)self, (void)stream;
    for (uint64_t i = 0; i < a->count; i++)
        dtp_store(a->result, a->result_element, i, dtp_load(a->values, a->element, i));
    return 0;
}

int dtp_reference_add(void *self, const struct dtp_add_args *a, void *stream)
{
    (void)self, (void)stream;
    for (uint64_t i = 0; i < a->count; i++)
        dtp_accumulate(a->total, a->total_element, i, dtp_load(a->values, a->element, i), true);
    return 0;
}

int dtp_reference_sum_parts(void *self, const struct dtp_sum_parts_args *a, void *stream)
{
    (void)self, (void)stream;
    for (uint64_t i = 0; i < a->count; i++) {
        double sum = 0;
        for (uint32_t part = 0; part < a->part_count; part++)
            sum += dtp_load(a->parts, a->element, part * a->count + i);
        dtp_accumulate(a->total, a->total_element, i, sum, a->accumulate);
    }
    return 0;
}

int dtp_reference_zero(void *self, const struct dtp_zero_args *a, void *stream)
{
    (void)self, (void)stream;
    memset(a->values, 0, a->bytes);
    return 0;
}

int dtp_reference_initialise(void *self, const struct dtp_initialise_args *a, void *stream)
{
    (void)self, (void)stream;
    double mean = (double)a->mean, deviation = (double)a->deviation;
    double normals[4];
    for (uint64_t i = 0; i < a->count; i++) {
        uint64_t index = a->first_element + (a->run ? i / a->run * a->stride + i % a->run : i);
        bool begins = i == 0 || index % 4 == 0 || (a->run && i % a->run == 0);
        if (a->deviation > 0 && begins)
            dtp_random_normals(a->seed, a->tensor, index / 4, normals);
        dtp_store(a->values, a->element, i, a->deviation > 0 ? mean + deviation * normals[index % 4] : mean);
    }
    return 0;
}
