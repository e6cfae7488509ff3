#include "machine/catalog_quantity.h"

#include "base/number.h"

#include <stdio.h>
#include <string.h>

/* X(quantity, unit, mandatory, type, member, minimum, maximum, words). Bounds catch a slipped unit or exponent, not a
 * wrong figure: they lie a factor of ten or more outside anything built. */
#define NO_UNIT "dense peak; none: the GPU has no unit for it"
#define GPU_QUANTITY_TABLE(X)                                                                                          \
    X("name", "text", true, NAME, name, 0, 0, "as people write it")                                                    \
    X("architecture", "text", true, ARCHITECTURE, architecture, 0, 0,                                                  \
      "volta | turing | ampere | ada | hopper | blackwell | cdna2 | cdna3 | cdna4")                                    \
    X("fp32_flops_per_s", "flops_per_s", true, REAL, peak_flops_per_s[DTP_FP32], 1e10, 1e17,                           \
      "dense peak of the fp32 vector units")                                                                           \
    X("tf32_flops_per_s", "flops_per_s", false, REAL, peak_flops_per_s[DTP_TF32], 1e10, 1e18, NO_UNIT)                 \
    X("bf16_flops_per_s", "flops_per_s", false, REAL, peak_flops_per_s[DTP_BF16], 1e10, 1e18, NO_UNIT)                 \
    X("fp16_flops_per_s", "flops_per_s", true, REAL, peak_flops_per_s[DTP_FP16], 1e10, 1e18,                           \
      "dense peak, accumulating in fp32")                                                                              \
    X("fp8_flops_per_s", "flops_per_s", false, REAL, peak_flops_per_s[DTP_FP8], 1e10, 1e18, NO_UNIT)                   \
    X("fp4_flops_per_s", "flops_per_s", false, REAL, fp4_flops_per_s, 1e10, 1e18, NO_UNIT)                             \
    X("int8_flops_per_s", "flops_per_s", false, REAL, peak_flops_per_s[DTP_INT8], 1e10, 1e18, NO_UNIT)                 \
    X("matmul_fraction", "fraction", true, REAL, matmul_fraction, 0.01, 1,                                             \
      "sustained rate of large bf16 matmuls / dense peak at the power limit")                                          \
    X("memory_bytes", "bytes", true, BYTES, memory_bytes, 1e8, 1e14, "total as the driver reports it")                 \
    X("memory_bytes_per_s", "bytes_per_s", true, REAL, memory_bytes_per_s, 1e9, 1e15, "reads and writes together")     \
    X("link", "text", true, LINK, link, 0, 0, "between GPUs of a node: nvlink | xgmi | pcie | none")                   \
    X("link_bytes_per_s", "bytes_per_s", false, REAL, link_bytes_per_s, 1e8, 1e14,                                     \
      "that link, one direction, all lanes of one GPU")                                                                \
    X("pcie_bytes_per_s", "bytes_per_s", true, REAL, pcie_bytes_per_s, 1e8, 1e13, "to the host, one direction")        \
    X("sm_count", "count", true, COUNT, sm_count, 1, 100000, "multiprocessors, or compute units")                      \
    X("power_w", "w", true, REAL, power_w, 1, 1e5, "power limit of the board")                                         \
    X("memory_fraction", "fraction", false, REAL, memory_fraction, 0.01, 1,                                            \
      "rate of a long copy / memory_bytes_per_s; none: as H200")                                                       \
    X("sm_memory_fraction", "fraction", false, REAL, sm_memory_fraction, 0.01, 10,                                     \
      "bytes that a unit moves in kernels that pass over memory / an SM of H200; none: 1")                             \
    X("fp8_matmul_fraction", "fraction", false, REAL, fp8_matmul_fraction, 0.01, 1,                                    \
      "sustained rate of large fp8 matmuls / dense peak; none: matmul_fraction")                                       \
    X("flash_forward_fraction", "fraction", false, REAL, flash_forward_fraction, 0.01, 1.5,                            \
      "FlashAttention, head 128, long sequences / sustained rate of bf16 matmuls; none: the architecture's")           \
    X("flash_backward_fraction", "fraction", false, REAL, flash_backward_fraction, 0.01, 1.5,                          \
      "the same backward; none: the architecture's")                                                                   \
    X("link_fraction", "fraction", false, REAL, link_fraction, 0.01, 1,                                                \
      "bus rate of a long ring of a node's GPUs / link_bytes_per_s; none: NVLink's")

#define MACHINE_QUANTITY_TABLE(X)                                                                                      \
    X("name", "text", true, NAME, name, 0, 0, "as people write it")                                                    \
    X("gpu_key", "text", false, GPU_KEY, gpu_key, 0, 0, "the GPU it holds; none: any")                                 \
    X("gpus", "count", true, COUNT, gpus, 1, 100000, "GPUs joined by one link domain")                                 \
    X("link", "text", false, LINK, link, 0, 0, "between its GPUs; none: the GPU's own link")                           \
    X("gpu_peer_bytes_per_s", "bytes_per_s", false, REAL, gpu_peer_bytes_per_s, 1e8, 1e14,                             \
      "that link, one direction, per GPU; none: what the GPU has")                                                     \
    X("network_bytes_per_s", "bytes_per_s", false, REAL, network_bytes_per_s, 1e7, 1e15,                               \
      "the whole node, one direction; none: single nodes only")                                                        \
    X("nics", "count", false, COUNT, nics, 1, 100000, "network cards behind that rate")                                \
    X("host_memory_bytes", "bytes", true, BYTES, host_memory_bytes, 1e8, 1e16, "of the node")                          \
    X("host_memory_bytes_per_s", "bytes_per_s", true, REAL, host_memory_bytes_per_s, 1e8, 1e15, "all sockets")         \
    X("host_cores", "count", true, COUNT, host_cores, 1, 1000000, "physical cores (half the vCPUs of a cloud shape)")  \
    X("nvme_bytes", "bytes", false, BYTES, nvme_bytes, 1e8, 1e17, "local drives; none: no offload to NVMe")            \
    X("matmul_fraction", "fraction", false, REAL, matmul_fraction, 0.01, 1,                                            \
      "of its GPUs, where they were measured apart from others of their kind")                                         \
    X("nvme_read_bytes_per_s", "bytes_per_s", false, REAL, nvme_read_bytes_per_s, 1e6, 1e14, "all drives together")    \
    X("nvme_write_bytes_per_s", "bytes_per_s", false, REAL, nvme_write_bytes_per_s, 1e6, 1e14, "all drives together")

#define COUNT_OF(array) (sizeof(array) / sizeof *(array))
#define QUANTITY(quantity, unit, mandatory, type, member, minimum, maximum, words) {quantity, unit, mandatory, words},
#define GPU_FIELD(quantity, unit, mandatory, type, member, minimum, maximum, words)                                    \
    {DTP_QUANTITY_##type, offsetof(struct dtp_gpu, member), minimum, maximum},
#define MACHINE_FIELD(quantity, unit, mandatory, type, member, minimum, maximum, words)                                \
    {DTP_QUANTITY_##type, offsetof(struct dtp_machine, member), minimum, maximum},

static const struct dtp_quantity gpu_quantities[] = {GPU_QUANTITY_TABLE(QUANTITY)};
static const struct dtp_quantity machine_quantities[] = {MACHINE_QUANTITY_TABLE(QUANTITY)};
static const struct dtp_quantity_field gpu_fields[] = {GPU_QUANTITY_TABLE(GPU_FIELD)};
static const struct dtp_quantity_field machine_fields[] = {MACHINE_QUANTITY_TABLE(MACHINE_FIELD)};

const struct dtp_quantity_list dtp_gpu_quantity_list = {gpu_quantities, gpu_fields, COUNT_OF(gpu_fields)};
const struct dtp_quantity_list dtp_machine_quantity_list = {machine_quantities, machine_fields,
                                                            COUNT_OF(machine_fields)};

const struct dtp_quantity *dtp_catalog_gpu_quantities(size_t *count)
{
    *count = COUNT_OF(gpu_quantities);
    return gpu_quantities;
}

int dtp_quantity_index(const struct dtp_quantity_list *list, const char *quantity)
{
    for (size_t i = 0; i < list->count; i++)
        if (!strcmp(list->quantities[i].quantity, quantity))
            return (int)i;
    return -1;
}

/* Figures of a catalogue carry their unit in its own column: "80 GB" or "2k" would say it twice. */
static bool is_plain_number(const char *text)
{
    return *text && text[strspn(text, "0123456789+-.eE")] == 0;
}

static bool store_integer(const struct dtp_quantity_field *field, const char *text, void *target, double *value)
{
    uint64_t integer;
    if (!dtp_number_parse_integer(text, false, (uint64_t)field->minimum, (uint64_t)field->maximum, &integer))
        return false;
    *value = (double)integer;
    uint32_t narrow = (uint32_t)integer;
    if (field->type == DTP_QUANTITY_COUNT)
        memcpy(target, &narrow, sizeof narrow);
    else
        memcpy(target, &integer, sizeof integer);
    return true;
}

static bool store_real(const struct dtp_quantity_field *field, const char *text, void *target, double *value)
{
    if (!dtp_number_parse(text, value) || *value < field->minimum || *value > field->maximum)
        return false;
    memcpy(target, value, sizeof *value);
    return true;
}

static bool store_text(const char *text, char *target, size_t bytes)
{
    size_t used = strlen(text) + 1;
    if (used > bytes)
        return false;
    memcpy(target, text, used);
    return true;
}

const char *dtp_quantity_store(const struct dtp_quantity_field *field, const char *text, void *entry, double *value,
                               char *expected, size_t expected_bytes)
{
    char *target = (char *)entry + field->offset;
    bool whole = field->type != DTP_QUANTITY_REAL;
    *value = 0;
    switch (field->type) {
    case DTP_QUANTITY_NAME: return store_text(text, target, 64) ? NULL : "a name of at most 63 bytes";
    case DTP_QUANTITY_GPU_KEY: return store_text(text, target, 32) ? NULL : "a key of at most 31 bytes";
    case DTP_QUANTITY_ARCHITECTURE:
        return dtp_gpu_architecture_parse(text, (enum dtp_gpu_architecture *)(void *)target)
                   ? NULL
                   : "volta, turing, ampere, ada, hopper, blackwell, cdna2, cdna3 or cdna4";
    case DTP_QUANTITY_LINK:
        return dtp_link_parse(text, (enum dtp_link *)(void *)target) ? NULL : "nvlink, xgmi, pcie or none";
    case DTP_QUANTITY_COUNT:
    case DTP_QUANTITY_BYTES:
    case DTP_QUANTITY_REAL: break;
    }
    if (is_plain_number(text) && (whole ? store_integer : store_real)(field, text, target, value))
        return NULL;
    snprintf(expected, expected_bytes, "a %s from %g to %g", whole ? "whole number" : "number", field->minimum,
             field->maximum);
    return expected;
}
