#include "train/packed_weights.h"

#define PIECE_BYTES (UINT64_C(1) << 23) /* of codes, which are drawn as eight times as many bytes of fp32 */

struct packer {
    const struct dtp_binding *binding;
    uint64_t seed;
    void *drawn;
};

/* Matrices of a block are drawn as those of its own module are, which the model's block i has as i + 1. */
static uint32_t drawn_module(const struct dtp_program *program, uint32_t module)
{
    const uint32_t adapters = dtp_program_execution(program)->adapter_modules,
                   packed = adapters > 2 ? 2 * adapters - 2 : 0;
    return packed && module >= packed ? module - packed + 1 : module;
}

/* Bytes [begin, begin + bytes) of the tensor. */
static int pack_piece(const struct packer *p, const struct dtp_state_part *part, enum dtp_parameter which,
                      const struct dtp_parameter_tensor *tensor, uint64_t begin, uint64_t bytes)
{
    struct dtp_device *device = p->binding->job.device;
    struct dtp_kernels *kernels = &device->kernels;
    void *stream = device->verbs->stream(device, DTP_STREAM_COMPUTE);
    uint64_t place = tensor->offset_elements + begin;
    float *scales = dtp_binding_address(p->binding, p->binding->map.module[part->module][DTP_EXECUTOR_SCALES1]);
    struct dtp_initialise_args drawn = {
        .values = p->drawn,
        .count = 2 * bytes,
        .first_element = 2 * begin,
        .seed = p->seed,
        .tensor = dtp_parameter_key(drawn_module(p->binding->job.program, part->module), which),
        .mean = (float)tensor->mean,
        .deviation = (float)tensor->deviation,
        .element = DTP_ELEMENT_FP32};
    struct dtp_pack4_args packed = {.values = p->drawn,
                                    .codes = (uint8_t *)part->values + place,
                                    .largest = scales + place / (DTP_NF4_BLOCK / 2),
                                    .count = 2 * bytes,
                                    .element = DTP_ELEMENT_FP32};
    int code = kernels->initialise(kernels->self, &drawn, stream);
    return code ? code : kernels->pack4(kernels->self, &packed, stream);
}

static int pack_part(const struct packer *p, const struct dtp_state_part *part)
{
    struct dtp_parameter_module layout;
    int code = 0;
    dtp_program_module(p->binding->job.program, part->module, &layout);
    for (int i = 0; i < DTP_PARAMETER_COUNT; i++) {
        const struct dtp_parameter_tensor *tensor = &layout.tensor[i];
        uint64_t bytes = tensor->exists ? tensor->extent_elements : 0;
        for (uint64_t begin = 0; begin < bytes && !code; begin += PIECE_BYTES)
            code = pack_piece(p, part, (enum dtp_parameter)i, tensor, begin,
                              bytes - begin < PIECE_BYTES ? bytes - begin : PIECE_BYTES);
    }
    return code;
}

/* A program that somebody wrote may have bytes without scales, a part of a module alone, or tensors of no whole blocks.
 */
static bool can_pack(const struct dtp_binding *binding, const struct dtp_state_part *part)
{
    struct dtp_parameter_module layout;
    dtp_program_module(binding->job.program, part->module, &layout);
    bool whole = part->begin == 0 && part->end == layout.used_elements &&
                 layout.extent_elements == layout.used_elements &&
                 binding->map.module[part->module][DTP_EXECUTOR_SCALES1].index != DTP_NO_INDEX;
    for (int i = 0; i < DTP_PARAMETER_COUNT; i++)
        whole = whole && layout.tensor[i].offset_elements % (DTP_NF4_BLOCK / 2) == 0 &&
                layout.tensor[i].extent_elements % (DTP_NF4_BLOCK / 2) == 0;
    return whole;
}

enum dtp_status dtp_packed_weights_initialise(const struct dtp_binding *binding, uint64_t seed,
                                              struct dtp_faults *faults)
{
    struct dtp_device *device = binding->job.device;
    struct packer p = {.binding = binding, .seed = seed};
    enum dtp_status status = DTP_OK;
    int code = 0;
    for (size_t i = 0; i < binding->part_count && !code && status == DTP_OK; i++) {
        if (!dtp_packed_weights_are(&binding->parts[i]))
            continue;
        if (!can_pack(binding, &binding->parts[i]))
            return dtp_fault(faults, DTP_BAD_INPUT, NULL, 0,
                             "module %u of the program has packed weights without their scales, or not in whole blocks",
                             binding->parts[i].module);
        if (!p.drawn)
            status = device->verbs->allocate(device, 2 * PIECE_BYTES * sizeof(float), &p.drawn, faults);
        code = status == DTP_OK ? pack_part(&p, &binding->parts[i]) : 0;
    }
    code = code ? code : device->verbs->synchronise(device);
    if (p.drawn)
        device->verbs->release(device, p.drawn);
    if (code)
        return dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "weights could not be packed: %s",
                         device->verbs->error_text(device, code));
    return status;
}
