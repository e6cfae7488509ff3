/* Charts of points: predicted against measured, time against money, bandwidth with its fit. */
#include "chart/chart_rows.h"
#include "machine/measured_row.h"

#include <gsl/gsl_fit.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- points ------------------------------------------------------------------------------------------------------ */

/* The publication, as backtests group by it: "github:mosaicml/llm-foundry scripts/...", "arXiv:2312.12391 table 4",
 * "measured on 4 H200, one node". */
static void publication(const char *source, char *out, size_t bytes)
{
    bool github = strncmp(source, "github:", 7) == 0;
    const char *name = github ? source + 7 : source;
    snprintf(out, bytes, "%.*s", (int)strcspn(name, github || strncmp(name, "arXiv:", 6) == 0 ? " " : ",["), name);
}

enum dtp_status dtp_chart_read_backtest(const struct dtp_chart_source *s, struct dtp_chart_data *data,
                                        struct dtp_faults *faults)
{
    static const char *const columns[] = {"measured_tokens_per_s_per_gpu", "predicted_tokens_per_s_per_gpu"};
    long source = dtp_table_column(s->table, "source"); /* a validation's runs are all its own */
    long told_by = source >= 0 ? source : dtp_table_column(s->table, "strategy");
    dtp_chart_set_columns(data, source >= 0 ? "source" : "strategy", columns, 2);
    enum dtp_status status = dtp_chart_needs_numbers(s, data->chart, columns, 2, faults);
    for (size_t i = 0; i < s->row_count && status == DTP_OK; i++) {
        double measured = dtp_chart_value(s, s->rows[i], columns[0]),
               predicted = dtp_chart_value(s, s->rows[i], columns[1]);
        char label[DTP_CHART_LABEL_BYTES];
        if (!(measured > 0) || !(predicted > 0))
            continue;
        publication(dtp_table_text(s->table, s->rows[i], told_by), label, sizeof label);
        struct dtp_chart_row *row = dtp_chart_add_row(data, label);
        row->value[0] = measured;
        row->value[1] = predicted;
    }
    if (status == DTP_OK && data->row_count == 0)
        status = dtp_chart_no_row(s, data, faults);
    if (status == DTP_OK)
        dtp_chart_number_or_merge(data);
    return status;
}

/* Runs of sweeps that are judged; what died has no rank. */
enum dtp_status dtp_chart_read_decisions(const struct dtp_chart_source *s, struct dtp_chart_data *data,
                                         struct dtp_faults *faults)
{
    static const char *const columns[] = {"measured_rank", "predicted_rank", "regret"};
    long sweep = dtp_table_column(s->table, "sweep");
    dtp_chart_set_columns(data, "sweep", columns, 3);
    enum dtp_status status = dtp_chart_needs_column(s, data->chart, "sweep", faults);
    if (status == DTP_OK)
        status = dtp_chart_needs_numbers(s, data->chart, columns, 3, faults);
    for (size_t i = 0; i < s->row_count && status == DTP_OK; i++) {
        double value[3];
        for (size_t k = 0; k < 3; k++)
            value[k] = dtp_chart_value(s, s->rows[i], columns[k]);
        if (!(value[0] > 0) || !(value[1] > 0) || !(value[2] >= 0))
            continue;
        struct dtp_chart_row *row = dtp_chart_add_row(data, dtp_table_text(s->table, s->rows[i], sweep));
        memcpy(row->value, value, sizeof value);
    }
    if (status == DTP_OK && data->row_count == 0)
        status = dtp_fault(faults, DTP_BAD_INPUT, dtp_table_name(s->table), 0,
                           "chart decisions: no row is of a sweep that was judged: three configurations at least of "
                           "one source, model, GPU, sequence length and number of nodes");
    if (status == DTP_OK)
        dtp_chart_number_or_merge(data);
    return status;
}

/* "forward" of "forward_gelu", "weight_gradient" of "weight_gradient_sum". */
static int pass_bytes(const char *what)
{
    static const char *const passes[] = {"forward", "input_gradient", "weight_gradient"};
    for (size_t i = 0; i < sizeof passes / sizeof passes[0]; i++)
        if (strncmp(what, passes[i], strlen(passes[i])) == 0)
            return (int)strlen(passes[i]);
    return (int)strlen(what);
}

/* Matmuls by pass; of the others what was measured is too many for a mark each. */
enum dtp_status dtp_chart_read_residuals(const struct dtp_chart_source *s, struct dtp_chart_data *data,
                                         struct dtp_faults *faults)
{
    static const char *const columns[] = {"seconds", "residual_pct"};
    long measurement = dtp_table_column(s->table, "measurement"), what = dtp_table_column(s->table, "what");
    dtp_chart_set_columns(data, "measurement", columns, 2);
    enum dtp_status status = dtp_chart_needs_numbers(s, data->chart, columns, 2, faults);
    for (size_t i = 0; i < s->row_count && status == DTP_OK; i++) {
        double seconds = dtp_chart_value(s, s->rows[i], columns[0]), off = dtp_chart_value(s, s->rows[i], columns[1]);
        const char *of = dtp_table_text(s->table, s->rows[i], measurement);
        const char *pass = strcmp(of, "matmul") == 0 ? dtp_table_text(s->table, s->rows[i], what) : "";
        char label[DTP_CHART_LABEL_BYTES];
        if (!(seconds > 0) || !isfinite(off))
            continue;
        snprintf(label, sizeof label, "%.20s%s%.*s", of, *pass ? " " : "", pass_bytes(pass), pass);
        struct dtp_chart_row *row = dtp_chart_add_row(data, label);
        row->value[0] = seconds;
        row->value[1] = off;
    }
    if (status == DTP_OK && data->row_count == 0)
        status = dtp_chart_no_row(s, data, faults);
    if (status == DTP_OK)
        dtp_chart_number_or_merge(data);
    return status;
}

#define TOKENS_SHOWN 1e12

/* A row is on the front when no other is at most as long and at most as dear, and one of them less. After sorting by
 * time (then money) that is: dearer than all before it is off. */
static int by_time_and_money(const void *left, const void *right)
{
    const struct dtp_chart_row *const *a = left, *const *b = right;
    for (int k = 0; k < 2; k++)
        if ((*a)->value[k] != (*b)->value[k])
            return (*a)->value[k] < (*b)->value[k] ? -1 : 1;
    return 0;
}

static int front_first(const void *left, const void *right)
{
    const struct dtp_chart_row *a = left, *b = right;
    if (a->value[2] != b->value[2])
        return a->value[2] > b->value[2] ? -1 : 1;
    return a->value[2] > 0 ? by_time_and_money(&a, &b) : (a->value[0] > b->value[0]) - (a->value[0] < b->value[0]);
}

/* Marks the rows of the front and puts them first, by time, so that a line may join them. */
static enum dtp_status mark_front(struct dtp_chart_data *data, struct dtp_faults *faults)
{
    const struct dtp_chart_row **order = calloc(data->row_count, sizeof *order);
    double cheapest = INFINITY;
    if (!order)
        return dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "out of memory");
    for (size_t i = 0; i < data->row_count; i++)
        order[i] = &data->rows[i];
    qsort(order, data->row_count, sizeof *order, by_time_and_money);
    for (size_t i = 0; i < data->row_count; i++) {
        bool on_front = order[i]->value[1] < cheapest;
        data->rows[order[i] - data->rows].value[2] = on_front;
        cheapest = fmin(cheapest, order[i]->value[1]);
    }
    free(order);
    qsort(data->rows, data->row_count, sizeof *data->rows, front_first);
    return DTP_OK;
}

/* Days and dollars of the training where the table has them, else of 10^12 tokens. */
static void read_point(const struct dtp_chart_source *s, size_t at, bool training, struct dtp_chart_row *row)
{
    double rate = dtp_chart_value(s, at, "tokens_per_s");
    row->value[0] = training ? dtp_chart_value(s, at, "training_s") / 86400 : TOKENS_SHOWN / rate / 86400;
    row->value[1] = training ? dtp_chart_value(s, at, "training_usd")
                             : dtp_chart_value(s, at, "usd_per_billion_tokens") * TOKENS_SHOWN / 1e9;
}

/* Whether any row says what a training takes. */
static bool has_training(const struct dtp_chart_source *s)
{
    for (size_t i = 0; i < s->row_count; i++)
        if (dtp_chart_value(s, s->rows[i], "training_usd") > 0)
            return true;
    return false;
}

enum dtp_status dtp_chart_read_pareto(const struct dtp_chart_source *s, struct dtp_chart_data *data,
                                      struct dtp_faults *faults)
{
    static const char *const columns[][3] = {{"days_per_1e12_tokens", "usd_per_1e12_tokens", "on_front"},
                                             {"training_days", "training_usd", "on_front"}};
    static const char *const needed[] = {"tokens_per_s", "usd_per_billion_tokens"};
    bool training = has_training(s);
    dtp_chart_set_columns(data, "gpu", columns[training], 3);
    enum dtp_status status = dtp_chart_needs_numbers(s, data->chart, needed, 2, faults);
    for (size_t i = 0; i < s->row_count && status == DTP_OK; i++) {
        if (dtp_chart_is_oom(s, s->rows[i])) {
            data->out_of_memory++;
            continue;
        }
        struct dtp_chart_row *row =
            dtp_chart_add_row(data, dtp_table_text(s->table, s->rows[i], dtp_table_column(s->table, "gpu")));
        read_point(s, s->rows[i], training, row);
        if (!(row->value[0] > 0) || !(row->value[1] > 0) || isinf(row->value[0]))
            data->row_count--;
    }
    if (status == DTP_OK && data->row_count == 0)
        status = dtp_chart_no_row_of(s, data->chart, needed, 2, faults);
    if (status == DTP_OK)
        status = mark_front(data, faults);
    if (status == DTP_OK)
        dtp_chart_number_or_merge(data);
    return status;
}

/* ---- bandwidth --------------------------------------------------------------------------------------------------- */

bool dtp_chart_fit_bandwidth(const double *sent_bytes, const double *time_s, size_t count, double *latency_s,
                             double *bytes_per_s)
{
    double c0, c1, cov00, cov01, cov11, chisq, *weights = calloc(count ? count : 1, sizeof *weights);
    if (!weights || count < 3) {
        free(weights);
        return false;
    }
    for (size_t i = 0; i < count; i++)
        weights[i] = 1 / (time_s[i] * time_s[i]);
    gsl_fit_wlinear(sent_bytes, 1, weights, 1, time_s, 1, count, &c0, &c1, &cov00, &cov01, &cov11, &chisq);
    free(weights);
    *latency_s = c0;
    *bytes_per_s = 1 / c1;
    return c1 > 0 && isfinite(c0) && isfinite(*bytes_per_s);
}

/* Fits the rows of one line: x bytes moved, measured and fitted bus bandwidth. Bus bandwidth is sent bytes over time.
 */
static void fit_series(struct dtp_chart_row *rows, size_t count)
{
    double *sent = calloc(2 * count, sizeof *sent), *time_s = sent + count, latency_s, bytes_per_s;
    for (size_t i = 0; sent && i < count; i++) {
        sent[i] = rows[i].value[1] * rows[i].value[2];
        time_s[i] = rows[i].value[2];
    }
    bool fitted = sent && dtp_chart_fit_bandwidth(sent, time_s, count, &latency_s, &bytes_per_s);
    for (size_t i = 0; i < count; i++) {
        rows[i].value[2] = fitted ? sent[i] / (latency_s + sent[i] / bytes_per_s) : NAN;
        rows[i].value[3] = fitted ? latency_s : NAN;
        rows[i].value[4] = fitted ? bytes_per_s : NAN;
    }
    free(sent);
}

/* One collective that was measured: of `bytes` in all, with `rate` what each rank sent over the time. */
struct collective_point {
    char label[2 * DTP_CHART_LABEL_BYTES];
    double ranks, bytes, rate, time_s;
};

static const char *text_at(const struct dtp_chart_source *s, size_t row, const char *column)
{
    return dtp_table_text(s->table, row, dtp_table_column(s->table, column));
}

/* "all_gather on 4 GPUs of 2 nodes". */
static void name_point(struct collective_point *p, const char *collective, const char *ranks, const char *apart,
                       const char *nodes)
{
    bool spaced = strtod(apart, NULL) > 1, several = strtod(nodes, NULL) > 1;
    snprintf(p->label, sizeof p->label, "%.50s on %.20s GPUs%s%.20s%s%s%.20s%s", collective, ranks, spaced ? " " : "",
             spaced ? apart : "", spaced ? " apart" : "", several ? " of " : "", several ? nodes : "",
             several ? " nodes" : "");
}

static void read_collective(const struct dtp_chart_source *s, size_t row, struct collective_point *p)
{
    name_point(p, text_at(s, row, "collective"), text_at(s, row, "gpus"), "1", text_at(s, row, "nodes"));
    p->ranks = dtp_chart_value(s, row, "gpus");
    p->bytes = dtp_chart_value(s, row, "bytes");
    p->rate = dtp_chart_value(s, row, "bus_bytes_per_s");
    p->time_s = dtp_chart_value(s, row, "time_s");
}

/* A machine file holds the bytes that a rank sends in a ring (measured_row.h): of B in all B (n-1)/n, of an all-reduce
 * twice that. */
static void read_measured(const struct dtp_chart_source *s, size_t row, struct collective_point *p)
{
    const char *what = text_at(s, row, "what");
    double sent = dtp_chart_value(s, row, "bytes"), passes = strcmp(what, "all_reduce") == 0 ? 2 : 1;
    if (strcmp(text_at(s, row, "measurement"), dtp_measurement_text(DTP_MEASUREMENT_COLLECTIVE)) != 0)
        return;
    name_point(p, what, text_at(s, row, "ranks"), text_at(s, row, "stride"), text_at(s, row, "nodes"));
    p->ranks = dtp_chart_value(s, row, "ranks");
    p->time_s = dtp_chart_value(s, row, "seconds");
    p->bytes = p->ranks > 1 ? sent / passes * p->ranks / (p->ranks - 1) : NAN;
    p->rate = sent / p->time_s;
}

/* Adds the points of groups of at least `least_ranks` GPUs; returns how many GPUs the largest group has. */
static double add_points(const struct dtp_chart_source *s, bool measured, double least_ranks,
                         struct dtp_chart_data *data)
{
    double largest = 0;
    data->row_count = 0;
    for (size_t i = 0; i < s->row_count; i++) {
        struct collective_point p = {.ranks = NAN};
        measured ? read_measured(s, s->rows[i], &p) : read_collective(s, s->rows[i], &p);
        if (!(p.bytes > 0) || !(p.rate > 0) || !(p.time_s > 0) || isinf(p.rate) || p.ranks < least_ranks)
            continue;
        struct dtp_chart_row *row = dtp_chart_add_row(data, p.label);
        row->value[0] = p.bytes;
        row->value[1] = p.rate;
        row->value[2] = p.time_s; /* until it is fitted */
        largest = p.ranks > largest ? p.ranks : largest;
    }
    return largest;
}

enum dtp_status dtp_chart_read_bandwidth(const struct dtp_chart_source *s, struct dtp_chart_data *data,
                                         struct dtp_faults *faults)
{
    static const char *const sources[2][5] = {{"collective", "bytes", "bus_bytes_per_s", "time_s", "gpus"},
                                              {"what", "bytes", "seconds", "ranks", "stride"}};
    static const char *const columns[] = {"bytes", "measured_bytes_per_s", "fitted_bytes_per_s", "fitted_latency_s",
                                          "fitted_limit_bytes_per_s"};
    bool measured = dtp_table_column(s->table, "measurement") >= 0;
    dtp_chart_set_columns(data, "collective", columns, 5);
    enum dtp_status status = dtp_chart_needs_column(s, data->chart, sources[measured][0], faults);
    if (status == DTP_OK)
        status = dtp_chart_needs_numbers(s, data->chart, sources[measured] + 1, 4, faults);
    if (status != DTP_OK)
        return status;
    double largest = add_points(s, measured, 0, data);
    if (measured && !dtp_chart_number(data))
        add_points(s, measured, largest, data); /* a probe measures groups of every size: the largest tells most */
    status = dtp_chart_sort_series(s, data, "collectives", faults);
    for (size_t from = 0, to; status == DTP_OK && from < data->row_count; from = to) {
        for (to = from; to < data->row_count && data->rows[to].series == data->rows[from].series;)
            to++;
        fit_series(&data->rows[from], to - from);
    }
    return status;
}
