#include "record/backtest_report.h"

#include "base/append.h"
#include "base/table.h"
#include "page/grid.h"
#include "page/json_value.h"

#include <jansson.h>
#include <math.h>
#include <string.h>

/* ---- for people -------------------------------------------------------------------------------------------------- */

/* Of "github:owner/repository" the last. */
static const char *short_name(const char *source)
{
    const char *slash = strrchr(source, '/');
    return strncmp(source, "github:", strlen("github:")) == 0 && slash ? slash + 1 : source;
}

static void percent_cell(struct dtp_grid *grid, double pct)
{
    dtp_grid_cell_if(grid, isfinite(pct), "%.1f", pct);
}

static void error_cells(struct dtp_grid *grid, const struct dtp_error_statistics *e)
{
    percent_cell(grid, e->median_abs_pct);
    percent_cell(grid, e->mean_abs_pct);
    percent_cell(grid, e->max_abs_pct);
}

/* `second`: what stands beside the source; NULL: nothing. */
static void head_rows(struct dtp_grid *grid, const char *second)
{
    static const char *const words[][7] = {{"", "shipped", "", "", "left out", "", ""},
                                           {"runs", "median", "mean", "max", "median", "mean", "max"}};
    for (int line = 0; line < 2; line++) {
        dtp_grid_row(grid, DTP_INK_BOLD);
        dtp_grid_cell(grid, "%s", line ? "source" : "");
        if (second)
            dtp_grid_cell(grid, "%s", line ? second : "");
        for (int i = 0; i < 7; i++)
            dtp_grid_cell(grid, "%s", words[line][i]);
    }
}

static void print_throughput(const struct dtp_page *page, const struct dtp_leave_one_out *result)
{
    struct dtp_grid grid;
    dtp_grid_create(&grid, "lrrrrrrr");
    head_rows(&grid, NULL);
    for (size_t i = 0; i < result->source_count; i++) {
        const struct dtp_left_out *s = &result->sources[i];
        dtp_grid_row(&grid, DTP_INK_PLAIN);
        dtp_grid_cell(&grid, "%s", short_name(s->source));
        dtp_grid_cell(&grid, "%zu", s->shipped.count);
        error_cells(&grid, &s->shipped);
        error_cells(&grid, &s->left_out);
    }
    dtp_grid_row(&grid, DTP_INK_BOLD);
    dtp_grid_cell(&grid, "mean of the medians");
    dtp_grid_cell(&grid, "%s", "");
    percent_cell(&grid, result->macro_shipped_pct);
    dtp_grid_cell(&grid, "%s", "");
    dtp_grid_cell(&grid, "%s", "");
    percent_cell(&grid, result->macro_left_out_pct);
    dtp_grid_end(&grid, page, 2);
}

static void print_memory(const struct dtp_page *page, const struct dtp_leave_one_out *result)
{
    struct dtp_grid grid;
    bool any = false;
    dtp_grid_create(&grid, "llrrrrrrr");
    head_rows(&grid, "memory");
    for (size_t i = 0; i < result->source_count; i++) {
        const struct dtp_left_out *s = &result->sources[i];
        const char *name = short_name(s->source);
        for (int k = 0; k < DTP_RUN_MEMORY_COUNT; k++) {
            if (s->memory_shipped[k].count == 0)
                continue;
            any = true;
            dtp_grid_row(&grid, DTP_INK_PLAIN);
            dtp_grid_cell(&grid, "%s", name);
            dtp_grid_cell(&grid, "%s", dtp_run_memory_word((enum dtp_run_memory)k));
            name = ""; /* once is enough */
            dtp_grid_cell(&grid, "%zu", s->memory_shipped[k].count);
            error_cells(&grid, &s->memory_shipped[k]);
            error_cells(&grid, &s->memory_left_out[k]);
        }
    }
    if (any) {
        dtp_page_heading(page, "MEMORY", "absolute error in %%");
        dtp_grid_print(&grid, page, 2);
    }
    dtp_grid_destroy(&grid);
}

static void print_beliefs(const struct dtp_page *page, const struct dtp_left_out *s)
{
    dtp_page_ink(page, DTP_INK_DIM);
    for (size_t i = 0; i < s->given_up_count; i++) {
        const char *source;
        dtp_constant_otherwise(s->given_up[i].constant, &source);
        if (s->given_up[i].how != DTP_WITHOUT_BELIEVED)
            continue;
        dtp_page_say(page, 4, 6, "%s: %s", dtp_calibration_rows[s->given_up[i].constant].name, source);
    }
    dtp_page_ink(page, DTP_INK_PLAIN);
}

static void print_constants(const struct dtp_page *page, const struct dtp_left_out *s)
{
    struct dtp_grid grid;
    fputc('\n', page->file);
    dtp_page_print(page, DTP_INK_BOLD, "  %s\n", short_name(s->source));
    dtp_grid_create(&grid, "lrrl");
    for (size_t i = 0; i < s->given_up_count; i++) {
        const struct dtp_given_up *g = &s->given_up[i];
        const struct dtp_calibration_row *row = &dtp_calibration_rows[g->constant];
        dtp_grid_row(&grid, DTP_INK_PLAIN);
        dtp_grid_cell(&grid, "%s", row->name);
        dtp_grid_cell(&grid, "%.4g", row->value);
        dtp_grid_cell(&grid, "%.4g", g->value);
        if (g->how == DTP_WITHOUT_FITTED)
            dtp_grid_cell(&grid, "fitted to %zu run%s", g->runs, dtp_plural(g->runs));
        else
            dtp_grid_cell(&grid, "%s", dtp_without_text(g->how));
    }
    dtp_grid_end(&grid, page, 4);
    print_beliefs(page, s);
}

void dtp_leave_one_out_write_text(const struct dtp_page *page, const struct dtp_leave_one_out *result)
{
    dtp_page_heading(page, "LEAVE ONE SOURCE OUT", "%s",
                     strcmp(result->fidelity, "closed") == 0 ? "absolute error of tokens/s in %, closed form"
                                                             : "absolute error of tokens/s in %, simulated");
    print_throughput(page, result);
    print_memory(page, result);
    dtp_page_heading(page, "CONSTANTS GIVEN UP", "as shipped, and without the source");
    for (size_t i = 0; i < result->source_count; i++)
        if (result->sources[i].given_up_count)
            print_constants(page, &result->sources[i]);
    fputc('\n', page->file);
    if (strcmp(result->fidelity, "simulated") == 0)
        dtp_page_wrap(page, 0, 0,
                      "Fits go by how the closed form answers to constants, scaled to what is simulated of each run; "
                      "the errors are those of simulations.");
    dtp_page_wrap(page, 0, 0,
                  "Constants that were made with a source's runs are fitted anew to the others' (each source weighing "
                  "the same), beginning with what would be believed without any; believed: no other run moves with it; "
                  "kept: nothing else is known, so of what it moves this is no forecast. All other constants rest on "
                  "data of their own: dtplan catalog constants.");
}

/* ---- for programs ------------------------------------------------------------------------------------------------ */

static void csv_errors(FILE *file, const struct dtp_error_statistics *e)
{
    const double pct[] = {e->median_abs_pct, e->mean_abs_pct, e->max_abs_pct};
    for (size_t i = 0; i < sizeof pct / sizeof *pct; i++)
        fprintf(file, isfinite(pct[i]) ? ",%.6g" : ",", pct[i]);
}

/* "rank_speed_deviation=0.0437 fitted; ..." */
static void csv_constants(FILE *file, const struct dtp_left_out *s)
{
    char text[4096] = "";
    for (size_t i = 0; i < s->given_up_count; i++)
        dtp_append_part(text, sizeof text, "; ", "%s=%.4g %s", dtp_calibration_rows[s->given_up[i].constant].name,
                        s->given_up[i].value, dtp_without_text(s->given_up[i].how));
    fputc(',', file);
    dtp_table_write_field(file, text);
    fputc('\n', file);
}

void dtp_leave_one_out_write_csv(FILE *file, const struct dtp_leave_one_out *result)
{
    fputs("source,runs,shipped_median_abs_error_pct,shipped_mean_abs_error_pct,shipped_max_abs_error_pct,left_out_"
          "median_abs_error_pct,left_out_mean_abs_error_pct,left_out_max_abs_error_pct,constants_count,constants\n",
          file);
    for (size_t i = 0; i < result->source_count; i++) {
        const struct dtp_left_out *s = &result->sources[i];
        dtp_table_write_field(file, s->source);
        fprintf(file, ",%zu", s->shipped.count);
        csv_errors(file, &s->shipped);
        csv_errors(file, &s->left_out);
        fprintf(file, ",%zu", s->given_up_count);
        csv_constants(file, s);
    }
    fprintf(file, "mean of the medians,,%.6g,,,%.6g,,,,\n", result->macro_shipped_pct, result->macro_left_out_pct);
}

static json_t *errors_object(const struct dtp_error_statistics *errors)
{
    json_t *object = json_object();
    json_object_set_new(object, "median_abs_error_pct", dtp_json_real(errors->median_abs_pct));
    json_object_set_new(object, "mean_abs_error_pct", dtp_json_real(errors->mean_abs_pct));
    json_object_set_new(object, "max_abs_error_pct", dtp_json_real(errors->max_abs_pct));
    json_object_set_new(object, "median_error_pct", dtp_json_real(errors->median_pct));
    return object;
}

static json_t *memory_object(const struct dtp_left_out *source)
{
    json_t *object = json_object();
    for (int k = 0; k < DTP_RUN_MEMORY_COUNT; k++) {
        if (source->memory_shipped[k].count == 0)
            continue;
        json_t *kind = json_object();
        json_object_set_new(kind, "runs", dtp_json_whole(source->memory_shipped[k].count));
        json_object_set_new(kind, "shipped", errors_object(&source->memory_shipped[k]));
        json_object_set_new(kind, "left_out", errors_object(&source->memory_left_out[k]));
        json_object_set_new(object, dtp_run_memory_word((enum dtp_run_memory)k), kind);
    }
    return object;
}

static json_t *constants_array(const struct dtp_left_out *source)
{
    json_t *array = json_array();
    for (size_t i = 0; i < source->given_up_count; i++) {
        const struct dtp_given_up *g = &source->given_up[i];
        json_t *object = json_object();
        json_object_set_new(object, "name", json_string(dtp_calibration_rows[g->constant].name));
        json_object_set_new(object, "shipped", dtp_json_real(dtp_calibration_rows[g->constant].value));
        json_object_set_new(object, "left_out", dtp_json_real(g->value));
        json_object_set_new(object, "how", json_string(dtp_without_text(g->how)));
        json_object_set_new(object, "telling_runs", dtp_json_whole(g->runs));
        json_array_append_new(array, object);
    }
    return array;
}

enum dtp_status dtp_leave_one_out_write_json(FILE *file, const struct dtp_leave_one_out *result,
                                             struct dtp_faults *faults)
{
    json_t *root = json_object(), *sources = json_array();
    for (size_t i = 0; i < result->source_count; i++) {
        const struct dtp_left_out *source = &result->sources[i];
        json_t *object = json_object();
        json_object_set_new(object, "source", dtp_json_text(source->source));
        json_object_set_new(object, "rows", dtp_json_whole(source->shipped.count));
        json_object_set_new(object, "shipped", errors_object(&source->shipped));
        json_object_set_new(object, "left_out", errors_object(&source->left_out));
        json_object_set_new(object, "memory", memory_object(source));
        json_object_set_new(object, "constants", constants_array(source));
        json_array_append_new(sources, object);
    }
    json_object_set_new(root, "schema", json_string("dtplan.leave_one_out/2"));
    json_object_set_new(root, "fidelity", json_string(result->fidelity));
    json_object_set_new(root, "macro_median_abs_error_pct", dtp_json_real(result->macro_shipped_pct));
    json_object_set_new(root, "left_out_macro_median_abs_error_pct", dtp_json_real(result->macro_left_out_pct));
    json_object_set_new(root, "sources", sources);
    return dtp_json_dump(root, file, faults);
}
