#include "record/validation.h"

#include "base/quantile.h"
#include "page/grid.h"
#include "page/json_value.h"

#include <math.h>
#include <stdlib.h>

enum side { SIDE_BEFORE, SIDE_LEFT_OUT, SIDE_ALL, SIDE_COUNT };

static double error_of(const struct dtp_refit_result *r, enum side side)
{
    double predicted_s = side == SIDE_BEFORE     ? r->run->step_s[DTP_VALIDATION_PREDICTED]
                         : side == SIDE_LEFT_OUT ? r->left_out_s
                                                 : r->all_s;
    return predicted_s / r->run->step_s[DTP_VALIDATION_MEASURED] - 1;
}

/* Of |error|; NAN: no memory. */
static void spread(const struct dtp_refit_report *report, enum side side, double *median, double *largest)
{
    double *errors = malloc((report->count + 1) * sizeof *errors);
    size_t count = report->count;
    *median = *largest = (double)NAN;
    for (size_t i = 0; i < count && errors; i++)
        errors[i] = fabs(error_of(&report->results[i], side));
    if (errors && count > 0) {
        *median = dtp_median(errors, 1, count); /* which sorts them */
        *largest = errors[count - 1];
    }
    free(errors);
}

static void print_factors(const struct dtp_refit_report *report, const struct dtp_page *page)
{
    struct dtp_grid grid;
    dtp_page_heading(page, "CORRECTIONS", "of seconds in the file; a kind's holds that of its class");
    dtp_grid_create(&grid, "lrr");
    dtp_grid_texts(&grid, DTP_INK_DIM, (const char *const[]){"", "shapes", "factor"}, 3);
    for (size_t i = 0; i < report->factors.count; i++) {
        const struct dtp_refit_factor *f = &report->factors.factor[i];
        dtp_grid_row(&grid, f->is_class ? DTP_INK_BOLD : DTP_INK_PLAIN);
        dtp_grid_cell(&grid, "%s%s", f->is_class ? "" : "  ", f->words);
        dtp_grid_cell(&grid, "%zu", f->shapes);
        dtp_grid_cell(&grid, "%.3f", f->factor);
    }
    dtp_grid_end(&grid, page, 2);
}

static void print_runs(const struct dtp_refit_report *report, const struct dtp_page *page)
{
    static const char *const header[] = {"", "measured, ms", "before", "left out", "fitted to all"};
    struct dtp_grid grid;
    dtp_page_heading(page, "REFIT",
                     "error of the step in %%: of the file, of what the other runs correct, of what all correct");
    dtp_grid_create(&grid, "lrrrr");
    dtp_grid_texts(&grid, DTP_INK_DIM, header, sizeof header / sizeof header[0]);
    for (size_t i = 0; i < report->count; i++) {
        const struct dtp_refit_result *r = &report->results[i];
        dtp_grid_row(&grid, DTP_INK_PLAIN);
        dtp_grid_cell(&grid, "%s", r->run->name);
        dtp_grid_cell(&grid, "%.2f", 1e3 * r->run->step_s[DTP_VALIDATION_MEASURED]);
        for (int side = 0; side < SIDE_COUNT; side++)
            dtp_grid_cell(&grid, "%+.1f", 100 * error_of(r, (enum side)side));
    }
    for (int line = 0; line < 2; line++) {
        dtp_grid_row(&grid, DTP_INK_BOLD);
        dtp_grid_cell(&grid, "%s", line == 0 ? "median |error|" : "largest |error|");
        dtp_grid_cell(&grid, "%s", "");
        for (int side = 0; side < SIDE_COUNT; side++) {
            double figure[2];
            spread(report, (enum side)side, &figure[0], &figure[1]);
            dtp_grid_cell(&grid, "%.1f", 100 * figure[line]);
        }
    }
    dtp_grid_end(&grid, page, 2);
}

void dtp_refit_text(const struct dtp_refit_report *report, const struct dtp_page *page)
{
    print_factors(report, page);
    print_runs(report, page);
    double before, left_out, largest;
    spread(report, SIDE_BEFORE, &before, &largest);
    spread(report, SIDE_LEFT_OUT, &left_out, &largest);
    fprintf(page->file, "\n  %s on runs that it was not fitted to: median |error| %.1f %% instead of %.1f %%%s\n",
            left_out < before ? "it helps" : "IT DOES NOT HELP", 100 * left_out, 100 * before,
            left_out < before ? "" : "; keep the file as it was");
    if (report->written)
        fprintf(page->file, "\n%s: what all %zu runs correct of %s; --machine takes it\n", report->written,
                report->count, report->machine);
}

json_t *dtp_refit_json(const struct dtp_refit_report *report)
{
    static const char *const sides[SIDE_COUNT] = {"before", "left_out", "fitted_to_all"};
    json_t *factors = json_array(), *runs = json_array(), *errors = json_object();
    for (size_t i = 0; i < report->factors.count; i++) {
        const struct dtp_refit_factor *f = &report->factors.factor[i];
        json_array_append_new(factors, json_pack("{s:o,s:o,s:o}", "of", dtp_json_text(f->words), "shapes_count",
                                                 dtp_json_whole(f->shapes), "factor", dtp_json_real(f->factor)));
    }
    for (size_t i = 0; i < report->count; i++) {
        const struct dtp_refit_result *r = &report->results[i];
        json_array_append_new(runs,
                              json_pack("{s:o,s:o,s:o,s:o}", "run", dtp_json_text(r->run->run), "measured_step_s",
                                        dtp_json_real(r->run->step_s[DTP_VALIDATION_MEASURED]), "left_out_step_s",
                                        dtp_json_real(r->left_out_s), "fitted_to_all_step_s", dtp_json_real(r->all_s)));
    }
    for (int side = 0; side < SIDE_COUNT; side++) {
        double median, largest;
        spread(report, (enum side)side, &median, &largest);
        json_object_set_new(errors, sides[side],
                            json_pack("{s:o,s:o}", "median_fraction", dtp_json_real(median), "largest_fraction",
                                      dtp_json_real(largest)));
    }
    return json_pack("{s:o,s:o,s:o,s:o,s:o}", "machine", dtp_json_text(report->machine), "written",
                     dtp_json_text(report->written), "factors", factors, "abs_step_error", errors, "runs", runs);
}
