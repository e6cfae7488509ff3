#include "machine/host_machine.h"

#include "base/append.h"
#include "base/number.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define NOMINAL 1e9 /* FLOP/s and bytes/s of what was not measured: any rate above 0 */

/* ---- this machine ------------------------------------------------------------------------------------------------ */

/* "model name : ..." of the first processor. */
void dtp_host_processor(char *out, size_t bytes)
{
    char line[512];
    FILE *file = fopen("/proc/cpuinfo", "r");
    snprintf(out, bytes, "unknown processor");
    while (file && fgets(line, sizeof line, file))
        if (strncmp(line, "model name", strlen("model name")) == 0) {
            const char *colon = strchr(line, ':'), *value = colon ? colon + 1 + strspn(colon + 1, " \t") : line;
            snprintf(out, bytes, "%.*s", (int)strcspn(value, "\n"), value);
            break;
        }
    if (file)
        fclose(file);
}

uint32_t dtp_host_cores(void)
{
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    return cores > 1 ? (uint32_t)cores : 1;
}

static uint64_t memory_bytes(void)
{
    long page = sysconf(_SC_PAGESIZE), pages = sysconf(_SC_PHYS_PAGES);
    return page > 0 && pages > 0 ? (uint64_t)page * (uint64_t)pages : UINT64_C(1) << 30;
}

/* ---- as a GPU and its machine ------------------------------------------------------------------------------------ */

static void describe(const char *processor, uint32_t cores, uint64_t bytes, struct dtp_gpu *gpu,
                     struct dtp_machine *machine)
{
    *gpu = (struct dtp_gpu){.key = DTP_HOST_KEY,
                            .name = "cores of this machine",
                            .architecture = DTP_GPU_HOST,
                            .matmul_fraction = 1,
                            .memory_bytes = bytes,
                            .memory_bytes_per_s = NOMINAL,
                            .link = DTP_LINK_PCIE,
                            .link_bytes_per_s = NOMINAL,
                            .pcie_bytes_per_s = NOMINAL,
                            .sm_count = 1};
    gpu->peak_flops_per_s[DTP_FP32] = gpu->peak_flops_per_s[DTP_BF16] = NOMINAL;
    gpu->peak_flops_per_s[DTP_FP16] = gpu->peak_flops_per_s[DTP_FP8] = NOMINAL;
    *machine = (struct dtp_machine){.key = DTP_HOST_KEY,
                                    .gpu_key = DTP_HOST_KEY,
                                    .gpus = DTP_HOST_MOST_RANKS,
                                    .network_bytes_per_s = NOMINAL,
                                    .nics = 1,
                                    .link = DTP_LINK_PCIE,
                                    .host_memory_bytes = bytes,
                                    .host_memory_bytes_per_s = NOMINAL,
                                    .host_cores = cores};
    snprintf(machine->name, sizeof machine->name, "%.44s, %" PRIu32 " core%s", processor, cores, dtp_plural(cores));
}

void dtp_host_describe(struct dtp_gpu *gpu, struct dtp_machine *machine)
{
    char processor[200];
    dtp_host_processor(processor, sizeof processor);
    describe(processor, dtp_host_cores(), memory_bytes(), gpu, machine);
}

/* ---- as it was measured ------------------------------------------------------------------------------------------ */

static uint64_t count_of(const struct dtp_measured_rows *rows, const char *what, uint64_t otherwise)
{
    const char *text = dtp_measured_rows_about(rows, what);
    uint64_t value = 0;
    return text && dtp_number_parse_integer(text, false, 1, UINT64_C(1) << 53, &value) ? value : otherwise;
}

static const char *text_of(const struct dtp_measured_rows *rows, const char *what)
{
    const char *text = dtp_measured_rows_about(rows, what);
    return text ? text : "unknown processor";
}

/* Whether the file was measured on a machine with this one's processor and as many cores. */
static bool is_here(const struct dtp_measured_rows *rows)
{
    char processor[200];
    dtp_host_processor(processor, sizeof processor);
    return strcmp(processor, text_of(rows, "host_cpu")) == 0 && count_of(rows, "host_cores", 0) == dtp_host_cores();
}

/* Of all rows of a measurement the most of `amount` a second; NOMINAL: there are none. */
static double best_rate(const struct dtp_measured_rows *rows, enum dtp_measurement measurement, enum dtp_dtype dtype)
{
    double best = 0;
    for (size_t i = 0; i < rows->count; i++) {
        const double *x = rows->row[i].number;
        if (rows->row[i].measurement != measurement || (dtype != DTP_DTYPE_COUNT && rows->row[i].dtype != dtype))
            continue;
        double amount = measurement == DTP_MEASUREMENT_MATMUL
                            ? 2 * x[DTP_MEASURED_m] * x[DTP_MEASURED_n] * x[DTP_MEASURED_k]
                            : x[DTP_MEASURED_bytes];
        best = fmax(best, amount / x[DTP_MEASURED_seconds]);
    }
    return best > 0 ? best : NOMINAL;
}

void dtp_host_of_rows(const struct dtp_measured_rows *rows, struct dtp_gpu *gpu, struct dtp_machine *machine)
{
    describe(text_of(rows, "host_cpu"), (uint32_t)fmin(1e6, (double)count_of(rows, "host_cores", 1)),
             count_of(rows, "gpu_memory_bytes", memory_bytes()), gpu, machine);
    if (!is_here(rows))
        snprintf(gpu->name, sizeof gpu->name, "cores of another machine");
    gpu->peak_flops_per_s[DTP_FP32] = best_rate(rows, DTP_MEASUREMENT_MATMUL, DTP_FP32);
    gpu->peak_flops_per_s[DTP_BF16] = best_rate(rows, DTP_MEASUREMENT_MATMUL, DTP_BF16);
    /* Widened to fp32 before they are multiplied, as bf16 is: the device emulates them. */
    gpu->peak_flops_per_s[DTP_FP16] = gpu->peak_flops_per_s[DTP_FP8] = gpu->peak_flops_per_s[DTP_BF16];
    gpu->memory_bytes_per_s = best_rate(rows, DTP_MEASUREMENT_KERNEL, DTP_DTYPE_COUNT);
    gpu->pcie_bytes_per_s = gpu->link_bytes_per_s = best_rate(rows, DTP_MEASUREMENT_COPY, DTP_DTYPE_COUNT);
    machine->host_memory_bytes_per_s = gpu->memory_bytes_per_s;
    machine->network_bytes_per_s = gpu->pcie_bytes_per_s; /* nodes that are pretended share memory too */
}
