/* A module of a program, put together from its tensors. */
#include "program/program.h"

void dtp_program_module(const struct dtp_program *program, uint64_t module, struct dtp_parameter_module *out)
{
    const struct dtp_program_tensor *tensors = dtp_program_tensors(program);
    *out = (struct dtp_parameter_module){.elements = 0};
    for (size_t i = 0; i < dtp_program_tensor_count(program); i++) {
        const struct dtp_parameter_tensor *at = &tensors[i].at;
        if (module < tensors[i].first_module || module - tensors[i].first_module >= tensors[i].modules)
            continue;
        out->tensor[tensors[i].parameter] = *at;
        out->used_elements += at->rows * at->columns;
        out->extent_elements += at->extent_elements;
        if (out->elements < at->offset_elements + at->extent_elements)
            out->elements = at->offset_elements + at->extent_elements;
    }
    dtp_parameter_shard(out, dtp_execution_shards(dtp_program_execution(program), module));
}
