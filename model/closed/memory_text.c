#include "closed/memory.h"

#include <stdio.h>

const char *dtp_verdict_text(enum dtp_verdict verdict)
{
    switch (verdict) {
    case DTP_VERDICT_FITS: return "fits";
    case DTP_VERDICT_TIGHT: return "tight";
    case DTP_VERDICT_OOM: return "oom";
    }
    return "?";
}

const char *dtp_shortage_text(enum dtp_shortage shortage)
{
    switch (shortage) {
    case DTP_SHORT_OF_NOTHING: return "";
    case DTP_SHORT_OF_MARGIN: return "margin";
    case DTP_SHORT_OF_CACHE: return "allocator_cache";
    case DTP_SHORT_OF_TENSORS: return "tensors";
    case DTP_SHORT_OF_HOST: return "host_memory";
    case DTP_SHORT_OF_NVME: return "nvme";
    }
    return "?";
}

static void beside_words(const char *what, uint64_t needed, uint64_t capacity, char *out, size_t bytes)
{
    if (needed > capacity)
        snprintf(out, bytes, "%.1f GiB too much for each node's %s", (double)(needed - capacity) / 0x1p30, what);
    else
        snprintf(out, bytes, "the GPU has room, the node's %s is nearly full", what);
}

void dtp_memory_words(const struct dtp_memory *m, char *out, size_t bytes)
{
    double free_gib = ((double)m->capacity_bytes - (double)m->device_peak_bytes) / 0x1p30;
    switch (m->shortage) {
    case DTP_SHORT_OF_NOTHING: snprintf(out, bytes, "%.2f GiB to spare", free_gib); break;
    case DTP_SHORT_OF_MARGIN: snprintf(out, bytes, "%.2f GiB to spare, fragmentation may tip it over", free_gib); break;
    case DTP_SHORT_OF_CACHE: snprintf(out, bytes, "the tensors fit once the allocator gives its cache back"); break;
    case DTP_SHORT_OF_TENSORS: snprintf(out, bytes, "%.2f GiB too much", -free_gib); break;
    case DTP_SHORT_OF_HOST: beside_words("host memory", m->host_bytes, m->host_capacity_bytes, out, bytes); break;
    case DTP_SHORT_OF_NVME: beside_words("NVMe", m->nvme_bytes, m->nvme_capacity_bytes, out, bytes); break;
    }
}
