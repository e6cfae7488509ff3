#include "machine/measured.h"

#include "machine/group.h"
#include "machine/measured_parts.h"
#include "base/number.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- making ------------------------------------------------------------------------------------------------------ */

static bool both_matmuls(const struct dtp_measured_row *a, const struct dtp_measured_row *b)
{
    return dtp_measurement_is_matmul(a->measurement) && a->measurement == b->measurement && a->dtype == b->dtype;
}

static bool is_shape(const struct dtp_measured_row *row)
{
    return dtp_measurement_is_matmul(row->measurement) || row->measurement == DTP_MEASUREMENT_ATTENTION;
}

static double ranks_of(const struct dtp_measured_row *row)
{
    return isnan(row->number[DTP_MEASURED_ranks]) ? 0 : row->number[DTP_MEASURED_ranks];
}

/* Order of the fits: of a matmul one for a dtype, an alignment and, on a host, the ranks that shared its cores; of
 * attention one for a direction too; a curve is of rows that differ in bytes alone. */
static int compare_fit(const struct dtp_measured_row *a, const struct dtp_measured_row *b)
{
    if (a->measurement != b->measurement || a->dtype != b->dtype || !is_shape(a))
        return dtp_measured_row_compare(a, b, false);
    if (ranks_of(a) != ranks_of(b))
        return ranks_of(a) > ranks_of(b) ? 1 : -1;
    if (!both_matmuls(a, b))
        return strcmp(a->what, b->what);
    unsigned of_a = dtp_measured_matmul_alignment(a), of_b = dtp_measured_matmul_alignment(b);
    return (of_a > of_b) - (of_a < of_b);
}

static int by_key(const void *a, const void *b)
{
    const struct dtp_measured_row *x = *(const struct dtp_measured_row *const *)a;
    const struct dtp_measured_row *y = *(const struct dtp_measured_row *const *)b;
    int order = compare_fit(x, y);
    return order ? order : dtp_measured_row_compare(x, y, true);
}

static bool same_fit(const struct dtp_measured_row *a, const struct dtp_measured_row *b)
{
    return compare_fit(a, b) == 0;
}

static bool is_curve(const struct dtp_measured_row *row)
{
    return row->measurement == DTP_MEASUREMENT_KERNEL || row->measurement == DTP_MEASUREMENT_COLLECTIVE ||
           row->measurement == DTP_MEASUREMENT_COPY || row->measurement == DTP_MEASUREMENT_HOST_ADAM;
}

static enum dtp_status make_curve(const struct dtp_measured_part *part, struct dtp_measured_curve *out,
                                  struct dtp_faults *faults)
{
    double *points = malloc(2 * part->count * sizeof *points), *seconds = points + part->count;
    if (!points)
        return dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "no memory for %zu measured sizes", part->count);
    for (size_t i = 0; i < part->count; i++) {
        points[i] = part->rows[i]->number[DTP_MEASURED_bytes];
        seconds[i] = part->rows[i]->number[DTP_MEASURED_seconds];
    }
    enum dtp_status status = dtp_measured_curve_make(points, seconds, part->count, out, faults);
    free(points);
    return status;
}

static enum dtp_status make_parts(struct dtp_measured *m, struct dtp_faults *faults)
{
    enum dtp_status status = DTP_OK;
    for (size_t i = 0, next; i < m->rows.count && status == DTP_OK; i = next) {
        for (next = i + 1; next < m->rows.count && same_fit(m->sorted[i], m->sorted[next]);)
            next++;
        struct dtp_measured_part *part = &m->part[m->part_count];
        *part = (struct dtp_measured_part){.rows = &m->sorted[i], .count = next - i};
        if (!is_shape(m->sorted[i]) && !is_curve(m->sorted[i]))
            continue;
        m->part_count++;
        status = is_shape(m->sorted[i])
                     ? dtp_measured_shape_fit_make(&m->gpu, part->rows, part->count, &part->shape, faults)
                     : make_curve(part, &part->curve, faults);
    }
    return status;
}

/* Beyond the peak by more than clocks and rounding explain, a row is of another GPU or a slip. */
#define MOST_OF_PEAK 1.1

static enum dtp_status check_rates(const struct dtp_measured *m, struct dtp_faults *faults)
{
    enum dtp_status status = DTP_OK;
    for (size_t i = 0; i < m->rows.count; i++) {
        const struct dtp_measured_row *row = &m->rows.row[i];
        if (!dtp_measurement_is_matmul(row->measurement))
            continue;
        double rate = dtp_measured_matmul_flops(row) / row->number[DTP_MEASURED_seconds];
        double peak = m->gpu.peak_flops_per_s[row->dtype];
        if (row->dtype == DTP_FP32) /* libraries may use the tensor cores */
            peak = fmax(peak, m->gpu.peak_flops_per_s[DTP_TF32]);
        if (rate > MOST_OF_PEAK * peak)
            status = dtp_fault(faults, DTP_BAD_INPUT, m->name, m->rows.line[i],
                               "%.4g FLOP/s in %s, where the peak of %s is %.4g; gpu_key or the row is wrong", rate,
                               dtp_dtype_text(row->dtype), m->gpu.name, peak);
    }
    return status;
}

static void sum_rows(struct dtp_measured *m)
{
    for (size_t i = 0; i < m->rows.count; i++) {
        const struct dtp_measured_row *row = &m->rows.row[i];
        enum dtp_op_kind kind;
        if (row->measurement == DTP_MEASUREMENT_KERNEL && dtp_op_kind_parse(row->what, &kind)) {
            m->kernel_bytes[kind] += row->number[DTP_MEASURED_bytes];
            m->kernel_s[kind] += row->number[DTP_MEASURED_seconds];
        }
        for (int pass = 0; pass < DTP_MEASURED_PASS_COUNT && row->measurement == DTP_MEASUREMENT_KERNEL; pass++)
            if (strcmp(row->what, dtp_measured_pass_text((enum dtp_measured_pass)pass)) == 0) {
                m->pass_bytes[pass] += row->number[DTP_MEASURED_bytes];
                m->pass_s[pass] += row->number[DTP_MEASURED_seconds];
            }
        for (int pass = 0; pass < DTP_MEASURED_MATMUL_COUNT && row->measurement == DTP_MEASUREMENT_MATMUL; pass++)
            if (strcmp(row->what, dtp_measured_matmul_text((enum dtp_measured_matmul)pass)) == 0)
                m->knows[row->dtype][pass] = true;
    }
}

enum dtp_status dtp_measured_create(const char *name, struct dtp_measured_rows *rows, const struct dtp_gpu *gpu,
                                    struct dtp_measured **out, struct dtp_faults *faults)
{
    struct dtp_measured *m = calloc(1, sizeof *m);
    *out = NULL;
    if (!m) {
        dtp_measured_rows_release(rows);
        return dtp_fault(faults, DTP_ENVIRONMENT, name, 0, "out of memory");
    }
    m->rows = *rows;
    m->gpu = *gpu;
    *rows = (struct dtp_measured_rows){.count = 0};
    m->name = strdup(name);
    m->sorted = malloc((m->rows.count + 1) * sizeof *m->sorted);
    m->part = malloc((m->rows.count + 1) * sizeof *m->part);
    enum dtp_status status = m->name && m->sorted && m->part
                                 ? check_rates(m, faults)
                                 : dtp_fault(faults, DTP_ENVIRONMENT, name, 0, "no memory for %zu rows", m->rows.count);
    for (size_t i = 0; i < m->rows.count && m->sorted; i++)
        m->sorted[i] = &m->rows.row[i];
    if (status == DTP_OK) {
        qsort(m->sorted, m->rows.count, sizeof *m->sorted, by_key);
        sum_rows(m);
        const char *power = dtp_measured_about(m, "power");
        m->sustained = power && strcmp(power, DTP_MEASURED_SUSTAINED) == 0;
        const char *runtime = dtp_measured_about(m, "runtime");
        m->of_framework = runtime && strcmp(runtime, DTP_MEASURED_OWN_RUNTIME) != 0;
        status = make_parts(m, faults);
    }
    if (status != DTP_OK) {
        dtp_measured_destroy(m);
        return status;
    }
    *out = m;
    return DTP_OK;
}

void dtp_measured_destroy(struct dtp_measured *m)
{
    if (!m)
        return;
    for (size_t i = 0; i < m->part_count; i++) {
        dtp_measured_shape_fit_release(&m->part[i].shape);
        dtp_measured_curve_release(&m->part[i].curve);
    }
    dtp_measured_rows_release(&m->rows);
    free(m->part);
    free(m->sorted);
    free(m->name);
    free(m);
}

/* ---- about ------------------------------------------------------------------------------------------------------- */

const char *dtp_measured_name(const struct dtp_measured *measured)
{
    return measured->name;
}

const struct dtp_measured_rows *dtp_measured_all(const struct dtp_measured *measured)
{
    return &measured->rows;
}

const char *dtp_measured_about(const struct dtp_measured *measured, const char *what)
{
    return dtp_measured_rows_about(&measured->rows, what);
}

uint32_t dtp_measured_count(const struct dtp_measured *measured, const char *what)
{
    const char *text = dtp_measured_about(measured, what);
    uint64_t count;
    return text && dtp_number_parse_integer(text, false, 1, DTP_MEASURED_MOST_COUNT, &count) ? (uint32_t)count : 0;
}

/* ---- seconds ----------------------------------------------------------------------------------------------------- */

static const struct dtp_measured_row *find_row(const struct dtp_measured *m, const struct dtp_measured_row *question)
{
    struct dtp_measured_row *const *found = bsearch(&question, m->sorted, m->rows.count, sizeof *m->sorted, by_key);
    return found ? *found : NULL;
}

static double distance(double a, double b)
{
    return fabs(log(a / b));
}

static bool is_of_host(const struct dtp_measured *m)
{
    return m->gpu.architecture == DTP_GPU_HOST;
}

#define OTHER_DTYPE 10 /* further than any number of ranks */

/* How far a part is from what is asked; INFINITY: of something else. Ranks that do the same at once change what each
 * gets. */
static double part_distance(const struct dtp_measured *m, const struct dtp_measured_part *part,
                            const struct dtp_measured_row *question)
{
    const struct dtp_measured_row *of = part->rows[0];
    if (same_fit(of, question))
        return 0;
    bool cores = ranks_of(of) > 0 && ranks_of(question) > 0, alike = cores || ranks_of(of) == ranks_of(question);
    double far = cores ? distance(ranks_of(of), ranks_of(question)) : 0;
    if (both_matmuls(of, question) && alike) /* of no row's alignment: the next says more than a catalogue does */
        return far + 0.1 * distance(dtp_measured_matmul_alignment(of), dtp_measured_matmul_alignment(question));
    if (of->measurement != question->measurement || strcmp(of->what, question->what) != 0 || !cores)
        return INFINITY;
    if (question->measurement == DTP_MEASUREMENT_COLLECTIVE &&
        !is_of_host(m)) /* where neither nodes nor strides count */
        return INFINITY;
    return far + (of->dtype == question->dtype ? 0 : OTHER_DTYPE);
}

static const struct dtp_measured_part *find_part(const struct dtp_measured *m, const struct dtp_measured_row *question)
{
    const struct dtp_measured_part *best = NULL;
    double nearest = INFINITY;
    for (size_t i = 0; i < m->part_count; i++) {
        double far = part_distance(m, &m->part[i], question);
        if (far < nearest) {
            nearest = far;
            best = &m->part[i];
        }
    }
    return best;
}

static bool is_atomic(const struct dtp_measured_row *row)
{
    return row->measurement == DTP_MEASUREMENT_ATTENTION &&
           strcmp(row->what, dtp_measured_attention_text(DTP_MEASURED_ATTENTION_BACKWARD_ATOMIC)) == 0;
}

double dtp_measured_s(const struct dtp_measured *measured, const struct dtp_measured_row *question)
{
    const struct dtp_measured_row *row = find_row(measured, question);
    if (row)
        return row->number[DTP_MEASURED_seconds];
    const struct dtp_measured_part *part = find_part(measured, question);
    if (!part && is_atomic(question)) { /* summed in order: a tenth slower, nearer than a catalogue is */
        struct dtp_measured_row ordered = *question;
        snprintf(ordered.what, sizeof ordered.what, "%s", dtp_measured_attention_text(DTP_MEASURED_ATTENTION_BACKWARD));
        return dtp_measured_s(measured, &ordered);
    }
    if (!part)
        return (double)NAN;
    if (!is_shape(question))
        return dtp_measured_curve_s(&part->curve, question->number[DTP_MEASURED_bytes]);
    struct dtp_measured_shape shape = dtp_measured_shape_of(question);
    return dtp_measured_shape_s(&part->shape, &shape, SIZE_MAX);
}

double dtp_measured_matmul_s(const struct dtp_measured *measured, enum dtp_measured_matmul pass, enum dtp_dtype dtype,
                             double m, double n, double k)
{
    struct dtp_measured_row row = dtp_measured_row_of_matmul(pass, dtype, m, n, k);
    return dtp_measured_s(measured, &row);
}

bool dtp_measured_of_framework(const struct dtp_measured *measured)
{
    return measured->of_framework;
}

bool dtp_measured_sustained(const struct dtp_measured *measured)
{
    return measured->sustained;
}

bool dtp_measured_knows_pass(const struct dtp_measured *measured, enum dtp_measured_matmul pass, enum dtp_dtype dtype)
{
    return measured->knows[dtype][pass];
}

double dtp_measured_kernels_bytes_per_s(const struct dtp_measured *measured, bool (*is_one)(enum dtp_op_kind kind))
{
    double bytes = 0, seconds = 0;
    for (int kind = 0; kind < DTP_OP_KIND_COUNT; kind++)
        if (is_one((enum dtp_op_kind)kind)) {
            bytes += measured->kernel_bytes[kind];
            seconds += measured->kernel_s[kind];
        }
    return bytes / seconds; /* NAN: 0 / 0 */
}

double dtp_measured_pass_bytes_per_s(const struct dtp_measured *measured, enum dtp_measured_pass pass)
{
    return measured->pass_bytes[pass] / measured->pass_s[pass]; /* NAN: 0 / 0 */
}

double dtp_measured_step_s(const struct dtp_measured *measured, const char *what)
{
    struct dtp_measured_row question = dtp_measured_row_of(DTP_MEASUREMENT_STEP, what);
    const struct dtp_measured_row *row = find_row(measured, &question);
    return row ? row->number[DTP_MEASURED_seconds] : (double)NAN;
}

/* ---- collectives ------------------------------------------------------------------------------------------------- */

static struct dtp_measured_group group_of(const struct dtp_measured_row *row)
{
    return (struct dtp_measured_group){(uint32_t)row->number[DTP_MEASURED_ranks],
                                       (uint32_t)row->number[DTP_MEASURED_stride],
                                       (uint32_t)row->number[DTP_MEASURED_nodes]};
}

/* Inside a node and between nodes are different machines; twice the ranks matter more than the stride. */
static double group_distance(const struct dtp_measured_group *a, const struct dtp_measured_group *b)
{
    if ((a->nodes > 1) != (b->nodes > 1))
        return INFINITY;
    return distance(a->ranks, b->ranks) + 0.5 * distance(a->nodes, b->nodes) + 0.25 * distance(a->stride, b->stride);
}

/* Of the kind itself, or of one that moves as many bytes the same way around the ring. */
static double kind_distance(enum dtp_collective asked, enum dtp_collective measured)
{
    bool like =
        asked != DTP_ALL_REDUCE && measured != DTP_ALL_REDUCE && asked != DTP_SEND_RECV && measured != DTP_SEND_RECV;
    return asked == measured ? 0 : like ? 100 : INFINITY;
}

bool dtp_measured_has_collective(const struct dtp_measured *measured, const char *what)
{
    for (size_t i = 0; i < measured->rows.count; i++)
        if (measured->rows.row[i].measurement == DTP_MEASUREMENT_COLLECTIVE &&
            strcmp(measured->rows.row[i].what, what) == 0)
            return true;
    return false;
}

const struct dtp_measured_curve *dtp_measured_collective(const struct dtp_measured *measured,
                                                         enum dtp_collective collective, enum dtp_carried carried,
                                                         const struct dtp_measured_group *group,
                                                         enum dtp_collective *as, struct dtp_measured_group *of)
{
    const struct dtp_measured_curve *best = NULL;
    double nearest = INFINITY;
    for (size_t i = 0; i < measured->part_count; i++) {
        const struct dtp_measured_row *row = measured->part[i].rows[0];
        enum dtp_collective kind;
        enum dtp_carried how;
        if (row->measurement != DTP_MEASUREMENT_COLLECTIVE ||
            !dtp_measured_collective_parse(row->what, strlen(row->what), &kind, &how))
            continue;
        struct dtp_measured_group its = group_of(row);
        double far = kind_distance(collective, kind) + group_distance(group, &its) + (how == carried ? 0 : 50);
        if (far < nearest) {
            nearest = far;
            best = &measured->part[i].curve;
            *as = kind;
            *of = its;
        }
    }
    return best;
}

/* ---- contention -------------------------------------------------------------------------------------------------- */

#define SLOWDOWN "_slowdown"

/* The value of the nearest row of this kind; NAN: none. */
static double nearest_contention(const struct dtp_measured *m, enum dtp_collective collective,
                                 const struct dtp_measured_group *group, bool slowdown)
{
    double nearest = INFINITY, value = (double)NAN;
    for (size_t i = 0; i < m->rows.count; i++) {
        const struct dtp_measured_row *row = &m->rows.row[i];
        const char *end = strstr(row->what, SLOWDOWN);
        enum dtp_collective kind;
        enum dtp_carried how;
        if (row->measurement != DTP_MEASUREMENT_CONTENTION || slowdown != (end != NULL) ||
            !dtp_measured_collective_parse(row->what, end ? (size_t)(end - row->what) : strlen(row->what), &kind, &how))
            continue;
        struct dtp_measured_group its = group_of(row);
        double far = kind_distance(collective, kind) + group_distance(group, &its);
        if (far < nearest) {
            nearest = far;
            value = row->number[DTP_MEASURED_value];
        }
    }
    return value;
}

struct dtp_measured_contention dtp_measured_contention(const struct dtp_measured *measured,
                                                       enum dtp_collective collective,
                                                       const struct dtp_measured_group *group)
{
    double slowdown = nearest_contention(measured, collective, group, true);
    return (struct dtp_measured_contention){nearest_contention(measured, collective, group, false),
                                            slowdown >= 1 ? slowdown : 1};
}

/* Of the largest size that was copied both ways and each way. */
double dtp_measured_duplex(const struct dtp_measured *measured, uint32_t ranks)
{
    struct dtp_measured_row both = dtp_measured_row_of(DTP_MEASUREMENT_COPY, "both");
    both.number[DTP_MEASURED_ranks] = ranks;
    const struct dtp_measured_part *part = find_part(measured, &both);
    if (!part)
        return 1;
    struct dtp_measured_row up = *part->rows[part->count - 1], down = up;
    snprintf(up.what, sizeof up.what, "upload");
    snprintf(down.what, sizeof down.what, "download");
    double alone_s = fmax(dtp_measured_s(measured, &up), dtp_measured_s(measured, &down));
    double factor = part->rows[part->count - 1]->number[DTP_MEASURED_seconds] / alone_s;
    return factor > 1 ? fmin(factor, 2) : 1;
}
