#include "closed/memory.h"

#include "base/word_table.h"

#include <stdio.h>

static const char *const verdicts[] = {
    [DTP_VERDICT_FITS] = "fits", [DTP_VERDICT_TIGHT] = "tight", [DTP_VERDICT_OOM] = "oom"};
static const char *const shortages[] = {
    [DTP_SHORT_OF_NOTHING] = "",        [DTP_SHORT_OF_MARGIN] = "margin",    [DTP_SHORT_OF_CACHE] = "allocator_cache",
    [DTP_SHORT_OF_TENSORS] = "tensors", [DTP_SHORT_OF_HOST] = "host_memory", [DTP_SHORT_OF_NVME] = "nvme"};
DTP_WORDS_OF_ARRAY(dtp_verdict_text, dtp_verdict, verdicts)
DTP_WORDS_OF_ARRAY(dtp_shortage_text, dtp_shortage, shortages)

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
