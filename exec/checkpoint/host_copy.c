#include "checkpoint/host_copy.h"

#include <stdlib.h>
#include <string.h>

static uint64_t bytes_of(const struct dtp_state_part *part)
{
    return dtp_state_part_elements(part) * dtp_state_element_bytes(part->element);
}

enum dtp_status dtp_host_copy_make(struct dtp_device *device, const struct dtp_state_part *parts, size_t count,
                                   struct dtp_host_copy *out, struct dtp_faults *faults)
{
    void *memory = NULL;
    *out = (struct dtp_host_copy){.device = device, .parts = calloc(count + 1, sizeof *parts), .count = count};
    if (!out->parts)
        return dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "out of memory");
    for (size_t i = 0; i < count; i++)
        out->bytes += bytes_of(&parts[i]);
    enum dtp_status status = device->verbs->allocate_host(device, out->bytes + 1, &memory, faults);
    if (status == DTP_OK && !device->asynchronous) /* pinned pages are there already */
        memset(memory, 0, out->bytes + 1);
    char *at = out->memory = memory;
    for (size_t i = 0; i < count && status == DTP_OK; i++) {
        out->parts[i] = parts[i];
        out->parts[i].values = at;
        at += bytes_of(&parts[i]);
    }
    if (status != DTP_OK)
        dtp_host_copy_release(out);
    return status;
}

enum dtp_status dtp_host_copy_take(struct dtp_host_copy *copy, const struct dtp_state_part *parts,
                                   struct dtp_faults *faults)
{
    struct dtp_device *device = copy->device;
    void *stream = device->verbs->stream(device, DTP_STREAM_DOWNLOAD);
    int code = 0;
    for (size_t i = 0; i < copy->count && code == 0; i++)
        code = device->verbs->copy(device, copy->parts[i].values, parts[i].values, bytes_of(&parts[i]), stream);
    code = code ? code : device->verbs->synchronise(device);
    return code ? dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "the state could not be copied to the host: %s",
                            device->verbs->error_text(device, code))
                : DTP_OK;
}

void dtp_host_copy_release(struct dtp_host_copy *copy)
{
    if (copy->memory)
        copy->device->verbs->release_host(copy->device, copy->memory);
    free(copy->parts);
    *copy = (struct dtp_host_copy){0};
}
