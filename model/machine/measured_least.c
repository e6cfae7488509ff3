#include "machine/measured_least.h"

#include "machine/host_machine.h"

#include <math.h>
#include <stdio.h>

/* A launch's: kernels that do nothing take a GPU one to two microseconds between two events, of which the events are a
 * part. A core is through an indirect call and a loop of a few turns in some 20 cycles. */
#define GPU_LEAST_S 0.2e-6
#define CORE_LEAST_S 5e-9

/* No core's: two loads and a store of 64 bytes a cycle at 6 GHz, out of its first cache; 1024 products of bf16 that are
 * summed a cycle (Intel's AMX, "Intel 64 and IA-32 Architectures Optimization Reference Manual", chapter 20). */
#define CORE_BYTES_PER_S (3 * 64 * 6e9)
#define CORE_FLOPS_PER_S (2 * 1024 * 6e9)

/* Times a GPU's peaks. Datasheets have one clock, parts another; NVSwitch adds up what ranks send, so that an
 * all-reduce sends half of what a ring would. Kernels read out of a second cache that is up to five times as fast as
 * memory (GeForce RTX 4090). */
#define RATE_FACTOR 2
#define CACHE_FACTOR 8

static double amount_s(double amount, double per_s)
{
    return per_s > 0 && amount > 0 ? amount / per_s : 0;
}

static double of_cores_s(const struct dtp_measured_row *row)
{
    double cores = dtp_host_cores(), bytes = row->number[DTP_MEASURED_bytes];
    double flops = dtp_measurement_is_matmul(row->measurement) ? dtp_measured_matmul_flops(row) : 0;
    return fmax(CORE_LEAST_S,
                fmax(amount_s(bytes, cores * CORE_BYTES_PER_S), amount_s(flops, cores * CORE_FLOPS_PER_S)));
}

/* Queries, keys, values and the result, of a byte each: rows do not say of which keys a query sees how many. */
static double attention_bytes(const struct dtp_measured_row *row)
{
    const double *x = row->number;
    return 2 * x[DTP_MEASURED_m] * x[DTP_MEASURED_sequence] * x[DTP_MEASURED_head_dim] *
           (x[DTP_MEASURED_heads] + x[DTP_MEASURED_kv_heads]);
}

static double of_gpu_s(const struct dtp_measured_row *row, const struct dtp_gpu *gpu)
{
    double bytes = row->number[DTP_MEASURED_bytes], per_s = 0;
    switch (row->measurement) {
    case DTP_MEASUREMENT_MATMUL:
    case DTP_MEASUREMENT_GROUPED_MATMUL:
        if (row->dtype != DTP_DTYPE_COUNT) /* fp32 by tensor cores too */
            per_s = fmax(gpu->peak_flops_per_s[row->dtype], gpu->peak_flops_per_s[DTP_TF32]);
        return amount_s(dtp_measured_matmul_flops(row), RATE_FACTOR * per_s);
    case DTP_MEASUREMENT_ATTENTION: return amount_s(attention_bytes(row), CACHE_FACTOR * gpu->memory_bytes_per_s);
    case DTP_MEASUREMENT_KERNEL: return amount_s(bytes, CACHE_FACTOR * gpu->memory_bytes_per_s);
    case DTP_MEASUREMENT_COPY: return amount_s(bytes, RATE_FACTOR * gpu->pcie_bytes_per_s);
    case DTP_MEASUREMENT_COLLECTIVE:
        return amount_s(bytes, RATE_FACTOR * fmax(gpu->link_bytes_per_s, gpu->pcie_bytes_per_s));
    default: return 0;
    }
}

double dtp_measured_least_s(const struct dtp_measured_row *row, const struct dtp_gpu *gpu)
{
    switch (row->measurement) {
    case DTP_MEASUREMENT_ABOUT:
    case DTP_MEASUREMENT_CONTENTION:
    case DTP_MEASUREMENT_COUNT: return 0;
    case DTP_MEASUREMENT_STEP:
    case DTP_MEASUREMENT_HOST_ADAM: return of_cores_s(row);
    default: return gpu->architecture == DTP_GPU_HOST ? of_cores_s(row) : fmax(GPU_LEAST_S, of_gpu_s(row, gpu));
    }
}

void dtp_measured_too_fast(const struct dtp_measured_row *row, const struct dtp_gpu *gpu, char *out, size_t bytes)
{
    const double *x = row->number;
    char size[96] = "";
    if (dtp_measurement_is_matmul(row->measurement))
        snprintf(size, sizeof size, " of %g x %g x %g", x[DTP_MEASURED_m], x[DTP_MEASURED_n], x[DTP_MEASURED_k]);
    else if (isfinite(x[DTP_MEASURED_bytes]))
        snprintf(size, sizeof size, " of %g bytes", x[DTP_MEASURED_bytes]);
    snprintf(out, bytes, "%s %s%s in %.3g ns, the least is %.3g ns", dtp_measurement_text(row->measurement), row->what,
             size, x[DTP_MEASURED_seconds] * 1e9, dtp_measured_least_s(row, gpu) * 1e9);
}
