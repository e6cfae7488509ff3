#include "record/measured_report.h"

#include "page/grid.h"
#include "page/json_value.h"
#include "machine/measured.h"
#include "base/number.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static enum dtp_status no_memory(struct dtp_faults *faults)
{
    return dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "out of memory");
}

/* ---- text -------------------------------------------------------------------------------------------------------- */

static void print_about(const struct dtp_measured *m, const struct dtp_page *page)
{
    const struct dtp_measured_rows *rows = dtp_measured_all(m);
    struct dtp_grid grid;
    dtp_grid_create(&grid, "ll");
    for (size_t i = 0; i < rows->count; i++)
        if (rows->row[i].measurement == DTP_MEASUREMENT_ABOUT) {
            dtp_grid_row(&grid, DTP_INK_PLAIN);
            dtp_grid_cell(&grid, "%s", rows->row[i].what);
            dtp_grid_cell(&grid, "%s", rows->row[i].text);
        }
    dtp_grid_end(&grid, page, 2);
}

static void percent_cell(struct dtp_grid *grid, double share)
{
    dtp_grid_cell_if(grid, isfinite(share), "%.1f", 100 * share);
}

static bool print_fits(const struct dtp_measured *m, const struct dtp_page *page)
{
    static const char *const words[] = {"fit of", "rows", "R2", "median", "largest", "left out"};
    struct dtp_measured_quality q;
    struct dtp_grid grid;
    bool memory = true;
    dtp_grid_create(&grid, "lrrrrr");
    dtp_grid_texts(&grid, DTP_INK_BOLD, words, 6);
    for (size_t i = 0; i < dtp_measured_quality_count(m) && memory; i++) {
        memory = dtp_measured_quality(m, i, &q);
        dtp_grid_row(&grid, DTP_INK_PLAIN);
        dtp_grid_cell(&grid, "%s", q.what);
        dtp_grid_cell(&grid, "%zu", q.rows);
        dtp_grid_cell(&grid, "%.4f", q.r2);
        percent_cell(&grid, q.median_residual);
        percent_cell(&grid, q.largest_residual);
        percent_cell(&grid, q.left_out_residual);
    }
    dtp_grid_end(&grid, page, 2);
    dtp_page_say(page, 2, 2,
                 "Percent of the measured time: median and largest distance of the fitted formula, and the median of "
                 "what is said of a row from the others alone. Rows that were measured are taken as they are.");
    return memory;
}

static bool print_parameters(const struct dtp_measured *m, const struct dtp_page *page)
{
    static const char *const words[] = {"fit of", "parameter", "value", "95 % from", "to", "unit"};
    struct dtp_measured_quality q;
    struct dtp_grid grid;
    bool memory = true;
    dtp_grid_create(&grid, "llrrrl");
    dtp_grid_texts(&grid, DTP_INK_BOLD, words, 6);
    for (size_t i = 0; i < dtp_measured_quality_count(m) && memory; i++) {
        memory = dtp_measured_quality(m, i, &q);
        for (int p = 0; p < q.parameter_count; p++) {
            dtp_grid_row(&grid, DTP_INK_PLAIN);
            dtp_grid_cell(&grid, "%s", p ? "" : q.what);
            dtp_grid_cell(&grid, "%s", q.parameter[p].words);
            dtp_grid_cell(&grid, "%.3g", q.parameter[p].value);
            dtp_grid_cell(&grid, "%.3g", q.parameter[p].low);
            dtp_grid_cell(&grid, "%.3g", q.parameter[p].high);
            dtp_grid_cell(&grid, "%s", q.parameter[p].unit);
        }
    }
    dtp_grid_end(&grid, page, 2);
    return memory;
}

/* Rows that are figures themselves. */
static void print_figures(const struct dtp_measured *m, const struct dtp_page *page)
{
    const struct dtp_measured_rows *rows = dtp_measured_all(m);
    struct dtp_grid grid;
    dtp_grid_create(&grid, "llr");
    for (size_t i = 0; i < rows->count; i++) {
        const struct dtp_measured_row *row = &rows->row[i];
        bool step = row->measurement == DTP_MEASUREMENT_STEP, beside = row->measurement == DTP_MEASUREMENT_CONTENTION;
        if (!step && !beside)
            continue;
        dtp_grid_row(&grid, DTP_INK_PLAIN);
        dtp_grid_cell(&grid, "%s", row->what);
        if (step) {
            dtp_grid_cell(&grid, "microseconds a kernel");
            dtp_grid_cell(&grid, "%.2f", 1e6 * row->number[DTP_MEASURED_seconds]);
            continue;
        }
        dtp_grid_cell(&grid, "%s, %g ranks, stride %g, nodes %g",
                      strstr(row->what, "_slowdown") ? "times as long beside kernels" : "kernels' extra s per s",
                      row->number[DTP_MEASURED_ranks], row->number[DTP_MEASURED_stride],
                      row->number[DTP_MEASURED_nodes]);
        dtp_grid_cell(&grid, "%.3f", row->number[DTP_MEASURED_value]);
    }
    dtp_grid_end(&grid, page, 2);
}

static enum dtp_status print_text(const struct dtp_measured *m, const struct dtp_page *page, struct dtp_faults *faults)
{
    fprintf(page->file, "%s\n", dtp_measured_name(m));
    print_about(m, page);
    fputc('\n', page->file);
    bool memory = print_fits(m, page);
    fputc('\n', page->file);
    memory = memory && print_parameters(m, page);
    fputc('\n', page->file);
    print_figures(m, page);
    return memory ? DTP_OK : no_memory(faults);
}

/* ---- CSV --------------------------------------------------------------------------------------------------------- */

static void print_csv(const struct dtp_measured *m, FILE *file)
{
    const struct dtp_measured_rows *rows = dtp_measured_all(m);
    for (size_t i = 0; i < rows->count; i++) {
        const struct dtp_measured_row *row = &rows->row[i];
        double fitted_s = dtp_measured_fit_s(m, i), seconds = row->number[DTP_MEASURED_seconds];
        if (!isfinite(fitted_s))
            continue;
        fprintf(file, "%s,%s,%s", dtp_measurement_text(row->measurement), row->what,
                row->dtype == DTP_DTYPE_COUNT ? "" : dtp_dtype_text(row->dtype));
        for (int c = 0; c <= DTP_MEASURED_nodes; c++)
            if (isfinite(row->number[c]))
                fprintf(file, ",%.15g", row->number[c]);
            else
                fputc(',', file);
        fprintf(file, ",%.6g,%.6g,%.3f\n", seconds, fitted_s, 100 * (fitted_s / seconds - 1));
    }
}

static void print_csv_header(FILE *file)
{
    fputs("measurement,what,dtype", file);
#define AS_COLUMN(field, column) fputs("," column, file);
    DTP_MEASURED_SHAPE_TABLE(AS_COLUMN)
#undef AS_COLUMN
    fputs(",seconds,fitted_s,residual_pct\n", file);
}

/* ---- JSON -------------------------------------------------------------------------------------------------------- */

static json_t *fit_json(const struct dtp_measured_quality *q)
{
    json_t *object = json_object(), *parameters = json_array();
    json_object_set_new(object, "fit", json_string(q->what));
    json_object_set_new(object, "rows", json_integer((json_int_t)q->rows));
    json_object_set_new(object, "r2", dtp_json_real(q->r2));
    json_object_set_new(object, "median_residual_fraction", dtp_json_real(q->median_residual));
    json_object_set_new(object, "largest_residual_fraction", dtp_json_real(q->largest_residual));
    json_object_set_new(object, "left_out_residual_fraction", dtp_json_real(q->left_out_residual));
    for (int p = 0; p < q->parameter_count; p++) {
        json_t *parameter = json_object();
        json_object_set_new(parameter, "parameter", json_string(q->parameter[p].words));
        json_object_set_new(parameter, "unit", json_string(q->parameter[p].unit));
        json_object_set_new(parameter, "value", dtp_json_real(q->parameter[p].value));
        json_object_set_new(parameter, "low", dtp_json_real(q->parameter[p].low));
        json_object_set_new(parameter, "high", dtp_json_real(q->parameter[p].high));
        json_array_append_new(parameters, parameter);
    }
    json_object_set_new(object, "parameters", parameters);
    return object;
}

static enum dtp_status add_json(const struct dtp_measured *m, json_t *files, struct dtp_faults *faults)
{
    const struct dtp_measured_rows *rows = dtp_measured_all(m);
    json_t *object = json_object(), *about = json_object(), *fits = json_array();
    struct dtp_measured_quality q;
    bool memory = true;
    for (size_t i = 0; i < rows->count; i++)
        if (rows->row[i].measurement == DTP_MEASUREMENT_ABOUT)
            json_object_set_new(about, rows->row[i].what, json_string(rows->row[i].text));
    for (size_t i = 0; i < dtp_measured_quality_count(m) && memory; i++) {
        memory = dtp_measured_quality(m, i, &q);
        json_array_append_new(fits, fit_json(&q));
    }
    json_object_set_new(object, "file", json_string(dtp_measured_name(m)));
    json_object_set_new(object, "about", about);
    json_object_set_new(object, "fits", fits);
    json_array_append_new(files, object);
    return memory ? DTP_OK : no_memory(faults);
}

/* ---- all --------------------------------------------------------------------------------------------------------- */

enum dtp_status dtp_report_measured(const struct dtp_catalog *catalog, enum dtp_catalog_form form,
                                    const char *const *names, size_t count, const struct dtp_page *page,
                                    struct dtp_faults *faults)
{
    enum dtp_status status = DTP_OK;
    json_t *files = form == DTP_CATALOG_JSON ? json_array() : NULL;
    if (form == DTP_CATALOG_CSV)
        print_csv_header(page->file);
    for (size_t i = 0; i < count && status == DTP_OK; i++) {
        const struct dtp_measured_machine *machine = dtp_catalog_measured(catalog, names[i]);
        if (!machine)
            status = dtp_fault(faults, DTP_BAD_INPUT, NULL, 0,
                               "'%.200s' is no machine file; name one that ends in .csv, as dtplan probe writes it",
                               names[i]);
        else if (form == DTP_CATALOG_TEXT)
            status = print_text(machine->times, page, faults);
        else if (form == DTP_CATALOG_CSV)
            print_csv(machine->times, page->file);
        else
            status = add_json(machine->times, files, faults);
    }
    if (form == DTP_CATALOG_JSON && status == DTP_OK)
        return dtp_json_dump_exact(files, page->file, faults);
    json_decref(files);
    return status;
}
