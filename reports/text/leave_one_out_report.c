#include "record/leave_one_out_report.h"

#include <jansson.h>

/* ---- for people -------------------------------------------------------------------------------------------------- */

static void print_source(FILE *file, const struct dtp_left_out *source)
{
    fprintf(file, "  %-42.42s %5zu %8.1f %6.1f %6.1f %11.3f %8.1f %6.1f %6.1f\n", source->source, source->shipped.count,
            source->shipped.median_abs_pct, source->shipped.mean_abs_pct, source->shipped.max_abs_pct,
            source->deviation, source->refitted.median_abs_pct, source->refitted.mean_abs_pct,
            source->refitted.max_abs_pct);
}

void dtp_leave_one_out_write_text(FILE *file, const struct dtp_leave_one_out *result)
{
    fprintf(file, "LEAVE ONE SOURCE OUT, absolute error of tokens/s in %%, fidelity: %s\n", result->predictor.name);
    fprintf(file, "  %-42s %5s   %-20s   %-11s   %s\n", "", "", "as shipped", "fitted on", "this source left out");
    fprintf(file, "  %-42s %5s %8s %6s %6s %11s %8s %6s %6s\n", "source", "rows", "median", "mean", "max", "the others",
            "median", "mean", "max");
    for (size_t i = 0; i < result->source_count; i++)
        print_source(file, &result->sources[i]);
    fprintf(file, "  %-42s %5s %8.1f %25s %8.1f\n", "macro: mean of the medians", "", result->macro_shipped_pct, "",
            result->macro_refitted_pct);
    fprintf(file,
            "  Fitted: %s, %.3f as shipped, %.3f on all of these sources, each weighing the same. It is the only\n"
            "  constant fitted to tokens/s of several sources. Those of FlashAttention-1 on Hopper were fitted to\n"
            "  llm-foundry's rows, which alone use it, and stay as they are; the others come from profiles, "
            "microbenchmarks\n"
            "  and datasheets (model/cost/calibration.h).\n",
            result->predictor.constant, result->predictor.shipped, result->fitted);
}

/* ---- for programs ------------------------------------------------------------------------------------------------ */

static json_t *errors_object(const struct dtp_error_statistics *errors)
{
    return json_pack("{s:f, s:f, s:f, s:f}", "median_abs_error_pct", errors->median_abs_pct, "mean_abs_error_pct",
                     errors->mean_abs_pct, "max_abs_error_pct", errors->max_abs_pct, "median_error_pct",
                     errors->median_pct);
}

static json_t *sources_array(const struct dtp_leave_one_out *result)
{
    json_t *array = json_array();
    for (size_t i = 0; i < result->source_count; i++) {
        const struct dtp_left_out *source = &result->sources[i];
        json_array_append_new(array, json_pack("{s:s, s:I, s:f, s:o, s:o}", "source", source->source, "rows",
                                               (json_int_t)source->shipped.count, "fitted_on_others", source->deviation,
                                               "shipped", errors_object(&source->shipped), "left_out",
                                               errors_object(&source->refitted)));
    }
    return array;
}

enum dtp_status dtp_leave_one_out_write_json(FILE *file, const struct dtp_leave_one_out *result,
                                             struct dtp_faults *faults)
{
    json_t *root =
        json_pack("{s:s, s:s, s:s, s:f, s:f, s:f, s:f, s:o}", "schema", "dtplan.leave_one_out/1", "fidelity",
                  result->predictor.name, "constant", result->predictor.constant, "shipped", result->predictor.shipped,
                  "fitted_on_all", result->fitted, "macro_median_abs_error_pct", result->macro_shipped_pct,
                  "left_out_macro_median_abs_error_pct", result->macro_refitted_pct, "sources", sources_array(result));
    int failed = !root || json_dumpf(root, file, JSON_INDENT(2) | JSON_REAL_PRECISION(15)) || fputc('\n', file) == EOF;
    json_decref(root);
    if (failed)
        return dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "cannot write the table's JSON: out of memory or disk");
    return DTP_OK;
}
