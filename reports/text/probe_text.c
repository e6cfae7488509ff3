#include "record/measured_report.h"
#include "runtime/runtimes.h"

#include "cost/calibration.h"
#include "cost/cluster_cost.h"
#include "cost/collective_cost.h"
#include "page/grid.h"
#include "base/number.h"
#include "base/quantile.h"
#include "cost/grouped_matmul.h"
#include "page/shell_word.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- one row ----------------------------------------------------------------------------------------------------- */

static double at(const struct dtp_measured_row *row, enum dtp_measured_column column)
{
    return row->number[column];
}

/* Causal: half of the scores are computed. Backward makes five products of forward's two. */
static double attention_flops(const struct dtp_measured_row *row)
{
    double s = at(row, DTP_MEASURED_sequence), width = at(row, DTP_MEASURED_heads) * at(row, DTP_MEASURED_head_dim);
    return (dtp_measured_attention_is_backward(row) ? 2.5 : 1) * 2 * at(row, DTP_MEASURED_m) * s * s * width;
}

/* FLOPs or bytes of it, what rates are made of. 0: it has no rate. */
static double amount(const struct dtp_measured_row *row)
{
    switch (row->measurement) {
    case DTP_MEASUREMENT_MATMUL:
    case DTP_MEASUREMENT_GROUPED_MATMUL: return dtp_measured_matmul_flops(row);
    case DTP_MEASUREMENT_ATTENTION: return attention_flops(row);
    case DTP_MEASUREMENT_KERNEL:
    case DTP_MEASUREMENT_COLLECTIVE:
    case DTP_MEASUREMENT_COPY:
    case DTP_MEASUREMENT_HOST_ADAM: return at(row, DTP_MEASURED_bytes);
    default: return 0;
    }
}

static double attention_seconds(const struct dtp_measured_row *row, const struct dtp_cluster *cluster)
{
    const struct dtp_execution execution = {.compute = row->dtype};
    const struct dtp_attention_shape shape = {.heads = (uint32_t)at(row, DTP_MEASURED_heads),
                                              .kv_heads = (uint32_t)at(row, DTP_MEASURED_kv_heads),
                                              .head_dim = (uint32_t)at(row, DTP_MEASURED_head_dim),
                                              .queries = (uint64_t)at(row, DTP_MEASURED_sequence),
                                              .keys = (uint64_t)at(row, DTP_MEASURED_sequence),
                                              .causal = true};
    struct dtp_attention_time time =
        dtp_attention_time(&cluster->gpu, &shape, &execution, at(row, DTP_MEASURED_m) * at(row, DTP_MEASURED_sequence));
    return dtp_measured_attention_is_backward(row) ? time.backward_s : time.forward_s;
}

static double collective_seconds(const struct dtp_measured_row *row, const struct dtp_cluster *cluster)
{
    uint32_t ranks = (uint32_t)at(row, DTP_MEASURED_ranks), stride = (uint32_t)at(row, DTP_MEASURED_stride);
    struct dtp_group group = stride == 1 ? dtp_group_consecutive(cluster, ranks) : dtp_group_strided(cluster, stride);
    enum dtp_collective collective;
    enum dtp_carried carried;
    if (!dtp_measured_collective_parse(row->what, strlen(row->what), &collective, &carried))
        return (double)NAN;
    struct dtp_collective_cost cost = dtp_collective_cost_carried(cluster, &group, collective, carried);
    return dtp_collective_time(&cost, at(row, DTP_MEASURED_bytes));
}

static double grouped_seconds(const struct dtp_measured_row *row, const struct dtp_gpu *gpu)
{
    const enum dtp_measured_matmul pass = dtp_measured_matmul_of(row->what);
    const enum dtp_product product = dtp_measured_matmul_of_weights(pass)         ? DTP_PRODUCT_WEIGHT_GRADIENT
                                     : pass == DTP_MEASURED_MATMUL_INPUT_GRADIENT ? DTP_PRODUCT_INPUT_GRADIENT
                                                                                  : DTP_PRODUCT_FORWARD;
    if (!(gpu->peak_flops_per_s[row->dtype] > 0) || (row->dtype != DTP_BF16 && row->dtype != DTP_FP16))
        return (double)NAN;
    return dtp_native_grouped_matmul_s(gpu, row->dtype, product, at(row, DTP_MEASURED_groups), at(row, DTP_MEASURED_m),
                                       at(row, DTP_MEASURED_n), at(row, DTP_MEASURED_k));
}

/* What the catalogue's row makes of the same; NAN where it says nothing. */
static double catalogue_seconds(const struct dtp_measured_row *row, const struct dtp_cluster *cluster)
{
    const struct dtp_execution own = {.own_kernels = true};
    const struct dtp_gpu *gpu = &cluster->gpu;
    switch (row->measurement) {
    case DTP_MEASUREMENT_MATMUL:
        return gpu->peak_flops_per_s[row->dtype] > 0
                   ? dtp_matmul_s(gpu, row->dtype, dtp_measured_matmul_of_weights(dtp_measured_matmul_of(row->what)),
                                  at(row, DTP_MEASURED_m), at(row, DTP_MEASURED_n), at(row, DTP_MEASURED_k))
                   : (double)NAN;
    case DTP_MEASUREMENT_GROUPED_MATMUL: return grouped_seconds(row, gpu);
    case DTP_MEASUREMENT_ATTENTION: return attention_seconds(row, cluster);
    case DTP_MEASUREMENT_KERNEL: return amount(row) / dtp_memory_kernel_bytes_per_s(gpu, &own, DTP_KERNEL_FUSED);
    case DTP_MEASUREMENT_COLLECTIVE: return collective_seconds(row, cluster);
    case DTP_MEASUREMENT_COPY: return amount(row) / (gpu->pcie_bytes_per_s * dtp_calibration.pcie_fraction);
    case DTP_MEASUREMENT_HOST_ADAM:
        return amount(row) / dtp_host_adam_bytes_per_s(&cluster->machine, at(row, DTP_MEASURED_ranks));
    default: return (double)NAN;
    }
}

/* ---- the table --------------------------------------------------------------------------------------------------- */

/* Rows that differ in size alone: the largest of them is shown. */
static bool alike(const struct dtp_measured_row *a, const struct dtp_measured_row *b)
{
    bool same = a->measurement == b->measurement && a->dtype == b->dtype && strcmp(a->what, b->what) == 0;
    bool placed = a->measurement == DTP_MEASUREMENT_COLLECTIVE || a->measurement == DTP_MEASUREMENT_COPY ||
                  a->measurement == DTP_MEASUREMENT_HOST_ADAM;
    for (int i = DTP_MEASURED_ranks; i <= DTP_MEASURED_stride && same && placed; i++)
        same = a->number[i] == b->number[i] || (isnan(a->number[i]) && isnan(b->number[i]));
    if (same && a->measurement == DTP_MEASUREMENT_ATTENTION)
        same = at(a, DTP_MEASURED_head_dim) == at(b, DTP_MEASURED_head_dim);
    return same;
}

static bool is_shown(const struct dtp_probe_report *r, size_t i)
{
    double own = amount(&r->rows[i]);
    for (size_t k = 0; k < r->count; k++)
        if (k != i && alike(&r->rows[i], &r->rows[k]) &&
            (amount(&r->rows[k]) > own || (amount(&r->rows[k]) == own && k < i)))
            return false;
    return own > 0;
}

static void name_row(const struct dtp_measured_row *row, char *out, size_t bytes)
{
    char size[DTP_NUMBER_TEXT_BYTES] = "";
    switch (row->measurement) {
    case DTP_MEASUREMENT_MATMUL:
        snprintf(out, bytes, "%s %s, %.0f x %.0f x %.0f", dtp_dtype_text(row->dtype), row->what,
                 at(row, DTP_MEASURED_m), at(row, DTP_MEASURED_n), at(row, DTP_MEASURED_k));
        return;
    case DTP_MEASUREMENT_GROUPED_MATMUL:
        snprintf(out, bytes, "%s %s, %.0f of %.0f x %.0f x %.0f", dtp_dtype_text(row->dtype), row->what,
                 at(row, DTP_MEASURED_groups), at(row, DTP_MEASURED_m), at(row, DTP_MEASURED_n),
                 at(row, DTP_MEASURED_k));
        return;
    case DTP_MEASUREMENT_ATTENTION:
        snprintf(out, bytes, "%s %s, %.0f x %.0f, %.0f heads of %.0f", dtp_dtype_text(row->dtype), row->what,
                 at(row, DTP_MEASURED_m), at(row, DTP_MEASURED_sequence), at(row, DTP_MEASURED_heads),
                 at(row, DTP_MEASURED_head_dim));
        return;
    default: break;
    }
    dtp_number_format_memory((uint64_t)amount(row), size, sizeof size);
    if (row->measurement == DTP_MEASUREMENT_COLLECTIVE && at(row, DTP_MEASURED_stride) > 1)
        snprintf(out, bytes, "%s, %s, %.0f GPUs %.0f apart", row->what, size, at(row, DTP_MEASURED_ranks),
                 at(row, DTP_MEASURED_stride));
    else if (row->measurement == DTP_MEASUREMENT_KERNEL)
        snprintf(out, bytes, "%s, %s", row->what, size);
    else
        snprintf(out, bytes, "%s, %s, %.0f GPU%s", row->what, size, at(row, DTP_MEASURED_ranks),
                 at(row, DTP_MEASURED_ranks) > 1 ? "s" : "");
}

static void put_row(struct dtp_grid *grid, const struct dtp_probe_report *r, const struct dtp_measured_row *row)
{
    bool flops = dtp_measurement_is_matmul(row->measurement) || row->measurement == DTP_MEASUREMENT_ATTENTION;
    double divisor = flops ? 1e12 : 1e9, rate = amount(row) / at(row, DTP_MEASURED_seconds) / divisor;
    double catalogue = r->gpu ? amount(row) / catalogue_seconds(row, r->cluster) / divisor : (double)NAN;
    char words[96], figure[32];
    name_row(row, words, sizeof words);
    dtp_grid_row(grid, DTP_INK_PLAIN);
    dtp_grid_cell(grid, "%s", words);
    dtp_grid_cell(grid, "%s", dtp_page_figure(rate, figure, sizeof figure));
    if (!isfinite(catalogue) || !(catalogue > 0))
        return;
    dtp_grid_cell(grid, "%s", dtp_page_figure(catalogue, figure, sizeof figure));
    dtp_grid_cell(grid, "%.2f", rate / catalogue);
}

/* Small ones as well: how far the catalogue is off over all shapes. */
static void put_all(struct dtp_grid *grid, const struct dtp_probe_report *r, enum dtp_measurement measurement)
{
    double *ratios = malloc((r->count + 1) * sizeof *ratios);
    size_t count = 0;
    for (size_t i = 0; ratios && r->gpu && i < r->count; i++) {
        double seconds =
            r->rows[i].measurement == measurement ? catalogue_seconds(&r->rows[i], r->cluster) : (double)NAN;
        if (isfinite(seconds) && seconds > 0)
            ratios[count++] = seconds / at(&r->rows[i], DTP_MEASURED_seconds);
    }
    if (count > 1) {
        dtp_grid_row(grid, DTP_INK_DIM);
        dtp_grid_cell(grid, "all %zu, median", count);
        dtp_grid_cell(grid, "%s", "");
        dtp_grid_cell(grid, "%s", "");
        dtp_grid_cell(grid, "%.2f", dtp_median(ratios, 1, count));
    }
    free(ratios);
}

static void print_rates(const struct dtp_probe_report *r, const struct dtp_page *page, enum dtp_measurement measurement,
                        const char *heading, const char *words)
{
    struct dtp_grid grid;
    size_t shown = 0;
    dtp_grid_create(&grid, "lrrr");
    dtp_grid_row(&grid, DTP_INK_DIM);
    dtp_grid_cell(&grid, "%s", "");
    dtp_grid_cell(&grid, "%s", "measured");
    if (r->gpu) {
        dtp_grid_cell(&grid, "%s", "catalogue");
        dtp_grid_cell(&grid, "%s", "ratio");
    }
    for (size_t i = 0; i < r->count; i++)
        if (r->rows[i].measurement == measurement && is_shown(r, i)) {
            put_row(&grid, r, &r->rows[i]);
            shown++;
        }
    put_all(&grid, r, measurement);
    if (shown > 0) {
        dtp_page_heading(page, heading, "%s", words);
        dtp_grid_print(&grid, page, 2);
    }
    dtp_grid_destroy(&grid);
}

/* ---- what has no rate -------------------------------------------------------------------------------------------- */

static void print_steps(const struct dtp_probe_report *r, const struct dtp_page *page)
{
    static const char *const words[][2] = {{"gap_live", "between two kernels, live"},
                                           {"gap_graph", "between two kernels, in a CUDA graph"},
                                           {"launch", "of the host to launch one"},
                                           {"launch_pytorch", "of the host where PyTorch launches"}};
    struct dtp_grid grid;
    size_t shown = 0;
    dtp_grid_create(&grid, "lr");
    for (size_t i = 0; i < r->count; i++)
        for (size_t k = 0; k < sizeof words / sizeof *words; k++)
            if (r->rows[i].measurement == DTP_MEASUREMENT_STEP && strcmp(r->rows[i].what, words[k][0]) == 0) {
                dtp_grid_row(&grid, DTP_INK_PLAIN);
                dtp_grid_cell(&grid, "%s", words[k][1]);
                dtp_grid_cell(&grid, "%.2f", 1e6 * at(&r->rows[i], DTP_MEASURED_seconds));
                shown++;
            }
    if (shown > 0) {
        dtp_page_heading(page, "GAPS", "us of each kernel");
        dtp_grid_print(&grid, page, 2);
    }
    dtp_grid_destroy(&grid);
}

static void print_contention(const struct dtp_probe_report *r, const struct dtp_page *page)
{
    struct dtp_grid grid;
    size_t shown = 0;
    dtp_grid_create(&grid, "lr");
    for (size_t i = 0; i < r->count; i++) {
        const struct dtp_measured_row *row = &r->rows[i];
        if (row->measurement != DTP_MEASUREMENT_CONTENTION)
            continue;
        dtp_grid_row(&grid, DTP_INK_PLAIN);
        dtp_grid_cell(&grid, "%s, %.0f GPUs %.0f apart", row->what, at(row, DTP_MEASURED_ranks),
                      at(row, DTP_MEASURED_stride));
        dtp_grid_cell(&grid, "%.3f", at(row, DTP_MEASURED_value));
        shown++;
    }
    if (shown > 0) {
        dtp_page_heading(page, "SIDE BY SIDE",
                         "seconds that kernels lose to each second of a collective; slowdown of the collective");
        dtp_grid_print(&grid, page, 2);
    }
    dtp_grid_destroy(&grid);
}

void dtp_probe_text(const struct dtp_probe_report *r, const struct dtp_page *page)
{
    char duration[DTP_NUMBER_TEXT_BYTES];
    print_rates(r, page, DTP_MEASUREMENT_MATMUL, "MATMUL", "TFLOP/s of the largest of each kind");
    print_rates(r, page, DTP_MEASUREMENT_GROUPED_MATMUL, "MATMULS OF EXPERTS", "TFLOP/s of the largest of each kind");
    print_rates(r, page, DTP_MEASUREMENT_ATTENTION, "ATTENTION", "TFLOP/s, the causal half");
    print_rates(r, page, DTP_MEASUREMENT_KERNEL, "MEMORY", "GB/s read and written");
    print_rates(r, page, DTP_MEASUREMENT_COLLECTIVE, "COLLECTIVES", "GB/s sent by each GPU");
    print_rates(r, page, DTP_MEASUREMENT_COPY, "COPIES", "GB/s of each GPU, so many at once; 'both' each way");
    print_rates(r, page, DTP_MEASUREMENT_HOST_ADAM, "ADAMW ON THE HOST", "GB/s of each rank, so many at once");
    print_steps(r, page);
    print_contention(r, page);
    fputc('\n', page->file);
    if (r->cluster->gpus == 1)
        dtp_page_wrap(page, 0, 0,
                      "One GPU: collectives and what they cost kernels were not measured, and stay the catalogue's.");
    dtp_number_format_duration(r->seconds, duration, sizeof duration);
    /* with the one that tells how many there are */
    fprintf(page->file, "%zu rows in %s, measured in %s.\n", r->count + 1, r->path, duration);
    fputs("Use it: dtplan --machine ", page->file);
    dtp_shell_word(page->file, r->path);
    fputs(" --KEY VALUE ...\n", page->file);
}
