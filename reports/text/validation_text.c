/* A validation for people: a line a run, what operations take, what is outside its bound. */
#include "record/validation.h"

#include "base/append.h"
#include "base/quantile.h"
#include "page/grid.h"
#include "record/simulation_report.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- a line a run ------------------------------------------------------------------------------------------------ */

#define LABEL_BYTES (sizeof((struct dtp_validation *)0)->name + sizeof((struct dtp_validation *)0)->run)

static const char *const titles[2][9] = {
    {"", "step, ms", "", "error", "of it, %", "", "", "", "device"},
    {"run", "predicted", "measured", "%", "costs", "contention", "host", "bytes", "%"}};

static void put_percent(struct dtp_grid *grid, double fraction)
{
    dtp_grid_cell_if(grid, isfinite(fraction), "%+.1f", 100 * fraction);
}

static void put_milliseconds(struct dtp_grid *grid, double seconds)
{
    dtp_grid_cell_if(grid, isfinite(seconds) && seconds > 0, "%.*f",
                     seconds < 0.01 ? 3
                     : seconds < 1  ? 2
                                    : 1,
                     1e3 * seconds);
}

/* Arena and all that was sent or copied. */
static bool bytes_equal(const struct dtp_validation *v)
{
    bool equal = v->arena_bytes[0] == v->arena_bytes[1] && v->host_to_device_bytes[0] == v->host_to_device_bytes[1] &&
                 v->device_to_host_bytes[0] == v->device_to_host_bytes[1];
    for (int i = 0; i < DTP_COLLECTIVE_COUNT; i++)
        equal = equal && (dtp_run_expects(v->ep, (enum dtp_collective)i) || v->sent_bytes[i][0] == v->sent_bytes[i][1]);
    return equal;
}

static double error_of(const uint64_t bytes[DTP_VALIDATION_SIDE_COUNT])
{
    return bytes[DTP_VALIDATION_MEASURED]
               ? (double)bytes[DTP_VALIDATION_PREDICTED] / (double)bytes[DTP_VALIDATION_MEASURED] - 1
               : (double)NAN;
}

static bool has_word(const char *text, const char *word, size_t length)
{
    for (; *text; text += strcspn(text, " "), text += *text == ' ')
        if (strcspn(text, " ") == length && strncmp(text, word, length) == 0)
            return true;
    return false;
}

/* Whether another run of the same name lacks this word of what was typed. */
static bool tells_apart(const struct dtp_validation *rows, size_t count, const struct dtp_validation *v,
                        const char *word, size_t length)
{
    for (size_t i = 0; i < count; i++)
        if (strcmp(rows[i].name, v->name) == 0 && !has_word(rows[i].run, word, length))
            return true;
    return false;
}

/* The run's name, and where others have the same, what was typed for it and not for all of them. */
static void write_label(const struct dtp_validation *rows, size_t count, const struct dtp_validation *v, char *out,
                        size_t bytes)
{
    snprintf(out, bytes, "%s", v->name[0] ? v->name : v->run);
    const char *join = "; ";
    for (const char *word = v->run; v->name[0] && *word; word += *word == ' ') {
        size_t length = strcspn(word, " ");
        if (length && tells_apart(rows, count, v, word, length)) {
            dtp_append(out, bytes, "%s%.*s", join, (int)length, word);
            join = " ";
        }
        word += length;
    }
}

static void put_run(struct dtp_grid *grid, const char *label, const struct dtp_validation *v)
{
    double measured_s = isfinite(v->undisturbed_step_s) ? v->undisturbed_step_s : v->step_s[DTP_VALIDATION_MEASURED];
    bool failed = v->status != DTP_OK;
    dtp_grid_row(grid, failed ? DTP_INK_YELLOW : v->outside[0] ? DTP_INK_RED : DTP_INK_PLAIN);
    dtp_grid_cell(grid, "%s", label);
    put_milliseconds(grid, v->compared || failed ? v->step_s[DTP_VALIDATION_PREDICTED] : (double)NAN);
    put_milliseconds(grid, measured_s);
    put_percent(grid, dtp_validation_step_error(v));
    put_percent(grid, v->compared ? (v->step_s[DTP_VALIDATION_PREDICTED] - v->alone_step_s) / measured_s : (double)NAN);
    put_percent(grid, v->compared ? (v->alone_step_s - v->in_place_step_s) / measured_s : (double)NAN);
    put_percent(grid, v->compared ? v->in_place_step_s / measured_s - 1 : (double)NAN);
    if (failed || dtp_validation_of_reference(v)) /* which says no such bytes */
        dtp_grid_cell(grid, "-");
    else
        dtp_grid_cell(grid, "%s", bytes_equal(v) ? "equal" : "DIFFER");
    put_percent(grid, failed ? (double)NAN : error_of(v->device_bytes));
}

static void print_runs(const struct dtp_validation *rows, size_t count, const struct dtp_page *page)
{
    struct dtp_grid grid;
    char label[LABEL_BYTES];
    dtp_page_heading(page, "RUNS",
                     "error: predicted / measured - 1, and its parts; bytes: of the arena, sent by collectives and "
                     "copied; steps of a host as its cores make them undisturbed, by a loop timed beside each");
    dtp_grid_create(&grid, "lrrrrrrlr");
    for (int line = 0; line < 2; line++)
        dtp_grid_texts(&grid, DTP_INK_BOLD, titles[line], sizeof titles[0] / sizeof titles[0][0]);
    for (size_t i = 0; i < count; i++) {
        write_label(rows, count, &rows[i], label, sizeof label);
        put_run(&grid, label, &rows[i]);
    }
    dtp_grid_end(&grid, page, 2);
}

/* ---- experts ------------------------------------------------------------------------------------------------------
 */

/* Runs whose ranks divided experts: how unevenly the router filled these, and the step predicted with that. */
static void print_experts(const struct dtp_validation *rows, size_t count, const struct dtp_page *page)
{
    static const char *const heads[2][6] = {{"", "rows", "step, ms", "", "", "error, %"},
                                            {"run", "fullest", "predicted", "so filled", "measured", "so filled"}};
    struct dtp_grid grid;
    char label[LABEL_BYTES];
    bool any = false;
    dtp_grid_create(&grid, "lrrrrr");
    for (int line = 0; line < 2; line++)
        dtp_grid_texts(&grid, DTP_INK_DIM, heads[line], 6);
    for (size_t i = 0; i < count; i++) {
        const struct dtp_validation *v = &rows[i];
        if (v->status != DTP_OK || !isfinite(v->expert_imbalance))
            continue;
        any = true;
        write_label(rows, count, v, label, sizeof label);
        dtp_grid_row(&grid, DTP_INK_PLAIN);
        dtp_grid_cell(&grid, "%s", label);
        dtp_grid_cell(&grid, "%.2f", v->expert_imbalance);
        put_milliseconds(&grid, v->compared ? v->step_s[DTP_VALIDATION_PREDICTED] : (double)NAN);
        put_milliseconds(&grid, v->compared ? v->imbalanced_step_s : (double)NAN);
        put_milliseconds(&grid, v->step_s[DTP_VALIDATION_MEASURED]);
        put_percent(&grid, v->compared ? dtp_validation_imbalanced_error(v) : (double)NAN);
    }
    if (any) {
        dtp_page_heading(page, "EXPERTS",
                         "rows of the fullest rank over the mean, of sums over all steps, the mean of layers; the step "
                         "predicted with as many rows on each, and with so many on the fullest");
        dtp_grid_print(&grid, page, 2);
    }
    dtp_grid_destroy(&grid);
}

/* ---- operations -------------------------------------------------------------------------------------------------- */

static const char *const class_titles[] = {"",         "predicted",         "alone",
                                           "in place", "predicted / alone", "in place / alone"};

/* Sums over the runs whose times are compared. */
static void print_classes(const struct dtp_validation *rows, size_t count, const struct dtp_page *page)
{
    struct dtp_grid grid;
    bool any = false;
    dtp_grid_create(&grid, "lrrrrr");
    dtp_grid_texts(&grid, DTP_INK_DIM, class_titles, 6);
    for (int class = DTP_CLASS_MATMUL; class <= DTP_CLASS_STORAGE; class ++) {
        double sum[3] = {0, 0, 0};
        for (size_t i = 0; i < count; i++)
            for (int k = 0; k < 3 && rows[i].compared && isfinite(rows[i].class_s[class][0]); k++)
                sum[k] += rows[i].class_s[class][k];
        if (!(sum[1] > 0))
            continue;
        any = true;
        dtp_grid_row(&grid, DTP_INK_PLAIN);
        dtp_grid_cell(&grid, "%s", dtp_op_class_text((enum dtp_op_class) class));
        for (int k = 0; k < 3; k++)
            dtp_grid_cell(&grid, "%.2f", 1e3 * sum[k]);
        dtp_grid_cell(&grid, "%.3f", sum[0] / sum[1]);
        dtp_grid_cell(&grid, "%.3f", sum[2] / sum[1]);
    }
    if (any) {
        dtp_page_heading(page, "OPERATIONS", "a step of each run, summed over the runs, in ms");
        dtp_grid_print(&grid, page, 2);
    }
    dtp_grid_destroy(&grid);
}

/* ---- in the end -------------------------------------------------------------------------------------------------- */

static bool all_share(const struct dtp_validation *rows, size_t count)
{
    bool all = true;
    for (size_t i = 0; i < count; i++)
        all = all && (rows[i].status != DTP_OK || rows[i].ranks_a_gpu > 1);
    return all;
}

static void print_errors(const struct dtp_validation *rows, size_t count, const struct dtp_page *page)
{
    double *errors = calloc(count + 1, sizeof *errors);
    size_t compared = 0;
    for (size_t i = 0; errors && i < count; i++)
        if (rows[i].status == DTP_OK && rows[i].compared)
            errors[compared++] = fabs(dtp_validation_step_error(&rows[i]));
    if (compared > 0) {
        double median = dtp_median(errors, 1, compared); /* which sorts them */
        fprintf(page->file, "  step time of %zu: |error| median %.1f %%, largest %.1f %%\n", compared, 100 * median,
                100 * errors[compared - 1]);
    } else if (count > 0 && all_share(rows, count)) {
        dtp_page_say(page, 2, 2, "step times are not compared: ranks shared GPUs, and times mean nothing");
    } else {
        dtp_page_say(page, 2, 2,
                     "step times are not compared: the runs were on cores of this machine, of which no times are "
                     "known; dtplan probe --device host -o here.csv measures them, --machine here.csv takes them");
    }
    free(errors);
}

/* Of frameworks' own programs: the peak of tensors, the allocator's segments, what the driver says. */
static void print_reference_memory(const struct dtp_validation *rows, size_t count, const struct dtp_page *page)
{
    static const char *const names[] = {"tensors", "segments", "device"};
    double largest[3] = {0, 0, 0};
    size_t known = 0;
    for (size_t i = 0; i < count; i++) {
        const uint64_t *bytes[] = {rows[i].allocated_bytes, rows[i].reserved_bytes, rows[i].device_bytes};
        bool counts = rows[i].status == DTP_OK && dtp_validation_of_reference(&rows[i]) && isfinite(error_of(bytes[0]));
        known += counts;
        for (int k = 0; k < 3 && counts; k++)
            largest[k] = fmax(largest[k], fabs(error_of(bytes[k])));
    }
    if (known == 0)
        return;
    fprintf(page->file, "  memory of %zu: |error| at most", known);
    for (int k = 0; k < 3; k++)
        fprintf(page->file, "%s %s %.2f %%", k ? "," : "", names[k], 100 * largest[k]);
    fputc('\n', page->file);
}

static void print_verdict(const struct dtp_validation *rows, size_t count, const struct dtp_validation_bounds *bounds,
                          const struct dtp_page *page)
{
    size_t good = 0, failed = 0, compared = 0, references = 0;
    char step[48] = "";
    char label[LABEL_BYTES];
    for (size_t i = 0; i < count; i++) {
        failed += rows[i].status != DTP_OK;
        references += dtp_validation_of_reference(&rows[i]);
        good += rows[i].status == DTP_OK && !rows[i].outside[0];
        compared += rows[i].status == DTP_OK && rows[i].compared;
    }
    if (compared > 0)
        snprintf(step, sizeof step, "step within %g %%, ", 100 * bounds->step_fraction);
    if (references == count)
        dtp_page_heading(page, "VERDICT", "%stensors' and device memory within %g %%", step,
                         100 * bounds->reference_fraction);
    else
        dtp_page_heading(page, "VERDICT", "%sdevice memory within %g %%, bytes of arena, collectives, copies equal",
                         step, 100 * bounds->device_fraction);
    fprintf(page->file, "  %zu of %zu within all bounds, %zu outside, %zu failed\n", good, count, count - good - failed,
            failed);
    print_errors(rows, count, page);
    print_reference_memory(rows, count, page);
    for (size_t i = 0; i < count; i++) {
        const struct dtp_validation *v = &rows[i];
        if (v->status == DTP_OK && !v->outside[0])
            continue;
        write_label(rows, count, v, label, sizeof label);
        dtp_page_say(page, 2, 4, "%s: %s%s", label, v->status != DTP_OK ? "failed: " : "",
                     v->status != DTP_OK ? v->reason : v->outside);
    }
}

void dtp_validation_text(const struct dtp_validation *rows, size_t count, const struct dtp_validation_bounds *bounds,
                         const struct dtp_page *page)
{
    for (size_t i = 0; i < count; i++)
        if (rows[i].device[0]) {
            fprintf(page->file, "device   %s; %s\n", rows[i].device, rows[i].libraries);
            break;
        }
    print_runs(rows, count, page);
    print_experts(rows, count, page);
    print_classes(rows, count, page);
    print_verdict(rows, count, bounds, page);
}
