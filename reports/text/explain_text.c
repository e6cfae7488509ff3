/* The explanation for people and for programs. */
#include "record/explain.h"

#include "base/append.h"
#include "cost/calibration.h"
#include "closed/sharding.h"
#include "page/json_value.h"

#include <math.h>
#include <string.h>

#define NAME_COLUMNS 46
#define VALUE_COLUMNS 23 /* indentation, figure and unit beside a name */
#define RULE_INDENT 6

/* ---- text ------------------------------------------------------------------------------------------------------- */

struct scale {
    double divisor;
    const char *name;
    int digits;
};

static struct scale scale_of(const struct dtp_term_group *group)
{
    struct dtp_unit unit = {1, ""};
    switch (group->unit) {
    case DTP_EXPLAIN_COUNT: return (struct scale){1, "", 0};
    case DTP_EXPLAIN_FLOPS: return (struct scale){1e12, "TFLOP", group->total < 1e14 ? 3 : 1};
    case DTP_EXPLAIN_USD: return (struct scale){1, "USD", 2};
    case DTP_EXPLAIN_BYTES:
        unit = group->total < 1e7 ? (struct dtp_unit){1, "B"} : dtp_unit_memory((uint64_t)group->total);
        return (struct scale){unit.divisor, unit.name, unit.divisor > 1 ? 3 : 0};
    case DTP_EXPLAIN_TRAFFIC: unit = dtp_unit_traffic((uint64_t)group->total); break;
    case DTP_EXPLAIN_SECONDS: unit = dtp_unit_time(group->total); break;
    }
    return (struct scale){unit.divisor, unit.name, 3};
}

static int name_columns(const struct dtp_page *page)
{
    int room = dtp_page_columns(page) - VALUE_COLUMNS;
    return room < NAME_COLUMNS ? room : NAME_COLUMNS;
}

static void format_value(const struct scale *scale, double value, char *out, size_t bytes)
{
    if (scale->digits == 0 && value >= 0)
        dtp_page_grouped((uint64_t)llround(value), out, bytes);
    else if (value != 0 && fabs(value / scale->divisor) < 0.5 * pow(10, -scale->digits)) /* which 0.000 is not */
        snprintf(out, bytes, "%.2g", value / scale->divisor);
    else
        snprintf(out, bytes, "%.*f", scale->digits, value / scale->divisor);
}

/* name, value and unit on one line; below it, dim, the rule and its numbers (words that begin with ';' are no numbers).
 */
static void print_term(const struct dtp_page *page, const struct dtp_term *term, const struct scale *scale)
{
    char value[48];
    bool equals = term->rule[0] && term->numbers[0] && term->numbers[0] != ';';
    format_value(scale, term->value, value, sizeof value);
    if (term->gap)
        dtp_page_ink(page, DTP_INK_YELLOW);
    fprintf(page->file, "  %-*s %14s%s%s\n", name_columns(page), term->name, value, *scale->name ? " " : "",
            scale->name);
    dtp_page_ink(page, DTP_INK_DIM);
    if (term->rule[0] || term->numbers[0])
        dtp_page_say(page, RULE_INDENT, RULE_INDENT, "%s%s%s", term->rule, equals ? " = " : "", term->numbers);
    dtp_page_ink(page, DTP_INK_PLAIN);
}

static void print_group(const struct dtp_page *page, const struct dtp_explanation *e,
                        const struct dtp_term_group *group)
{
    struct scale scale = scale_of(group);
    char value[48];
    dtp_page_heading(page, group->title, "%s", group->words);
    if (group->source[0]) {
        dtp_page_ink(page, DTP_INK_DIM);
        fputs("  source: ", page->file);
        dtp_page_wrap(page, 10, 10, group->source);
        dtp_page_ink(page, DTP_INK_PLAIN);
    }
    for (size_t i = 0; i < group->count; i++)
        print_term(page, &e->terms[group->first + i], &scale);
    format_value(&scale, group->total, value, sizeof value);
    dtp_page_print(page, DTP_INK_BOLD, "  %-*s %14s%s%s\n", name_columns(page), "= total", value,
                   *scale.name ? " " : "", scale.name);
}

static void print_rates(const struct dtp_report *report, const struct dtp_page *page)
{
    const struct dtp_plan *p = &report->job.plan;
    const struct dtp_throughput *t = &report->prediction.throughput;
    uint32_t parts = p->tp * p->cp * p->pp;
    double tokens = (double)p->micro_batch * (double)p->accumulate * (double)p->sequence;
    double peak = report->job.cluster.gpu.peak_flops_per_s[p->precision.compute],
           step_s = report->prediction.time.step_s;
    dtp_page_heading(page, "RATES", "");
    dtp_page_say(page, 2, RULE_INDENT,
                 "tokens/s = %s x micro batch x K x s / step = %u x %u x %u x %llu / %.5g s = %.5g",
                 parts > 1 ? "data parallel ranks" : "GPUs", report->job.cluster.gpus / parts, p->micro_batch,
                 p->accumulate, (unsigned long long)p->sequence, step_s, t->tokens_per_s);
    dtp_page_say(page, 2, RULE_INDENT,
                 "MFU = model FLOPs / step / dense %s peak = %.5g / %.5g s / %.4g TFLOP/s = %.2f %%",
                 dtp_dtype_text(p->precision.compute),
                 tokens * dtp_transformer_model_flops_per_token(&report->job.transformer, p->sequence) / parts, step_s,
                 peak / 1e12, 100 * t->mfu);
    if (report->money.known)
        dtp_page_say(page, 2, RULE_INDENT,
                     "10^9 tokens = GPUs x price / (tokens/s x 3600) x 10^9 = %u x %.2f / %.5g x 10^9 = %.2f USD",
                     report->job.cluster.gpus, report->money.gpu_hour_usd[DTP_PRICE_TYPICAL], t->tokens_per_s * 3600,
                     report->money.billion_tokens_usd[DTP_PRICE_TYPICAL]);
}

/* Everything that was measured instead of derived. Rates of the GPU itself are in `dtplan catalog`. */
static void print_constants(const struct dtp_job *job, const struct dtp_page *page)
{
    dtp_page_heading(page, "CONSTANTS", "measured, not derived; the same for every plan");
    for (size_t i = 0; i < DTP_CONSTANT_COUNT; i++) {
        const struct dtp_calibration_row *row = &dtp_calibration_rows[i];
        fprintf(page->file, "  %-*s %14.4g%s%s\n", name_columns(page), row->name, row->value,
                strcmp(row->unit, "1") == 0 ? "" : " ", strcmp(row->unit, "1") == 0 ? "" : row->unit);
        dtp_page_ink(page, DTP_INK_DIM);
        dtp_page_say(page, RULE_INDENT, RULE_INDENT, "%s", row->words);
        dtp_page_ink(page, DTP_INK_PLAIN);
    }
    fprintf(page->file,
            "\nRates of the GPU and its node, with their sources:\n  dtplan catalog gpus %s\n  dtplan catalog machines "
            "%s\n",
            job->cluster.gpu.key, job->cluster.machine.key);
}

/* What the letters of the rules stand for. */
static void print_symbols(const struct dtp_job *job, const struct dtp_page *page)
{
    const struct dtp_transformer *m = &job->transformer;
    const struct dtp_plan *p = &job->plan;
    struct dtp_units units;
    dtp_units_count(m, &job->cluster, p, &units);
    dtp_page_heading(page, "SYMBOLS", "");
    dtp_page_say(
        page, 2, 2,
        "psi = %llu parameters, P = %llu of a layer; N = %llu GPU%s that share%s one copy, R = %llu cop%s, K = %u "
        "micro-step%s; T = %llu token%s of one on a GPU, s = %llu token%s of a sequence; L = %llu layer%s, h = %llu "
        "hidden, f = %llu ffn, V = %llu vocabulary",
        (unsigned long long)units.total, (unsigned long long)units.layer, (unsigned long long)units.ranks,
        dtp_plural(units.ranks), units.ranks == 1 ? "s" : "", (unsigned long long)units.replicas,
        units.replicas == 1 ? "y" : "ies", p->accumulate, dtp_plural(p->accumulate),
        (unsigned long long)dtp_plan_tokens(p), dtp_plural(dtp_plan_tokens(p)), (unsigned long long)p->sequence,
        dtp_plural(p->sequence), (unsigned long long)m->layers, dtp_plural(m->layers), (unsigned long long)m->hidden,
        (unsigned long long)m->ffn, (unsigned long long)m->vocab);
}

void dtp_explain_text(const struct dtp_report *report, const struct dtp_explanation *explanation,
                      const struct dtp_page *page)
{
    dtp_report_head(&report->job, DTP_HEAD_PLAN, page);
    print_symbols(&report->job, page);
    for (size_t i = 0; i < explanation->group_count; i++)
        print_group(page, explanation, &explanation->groups[i]);
    dtp_pipeline_text(&report->stages, page);
    print_rates(report, page);
    print_constants(&report->job, page);
}

/* ---- JSON ------------------------------------------------------------------------------------------------------- */

static json_t *group_object(const struct dtp_explanation *e, const struct dtp_term_group *group)
{
    static const char *const units[] = {
        [DTP_EXPLAIN_COUNT] = "count",     [DTP_EXPLAIN_BYTES] = "bytes", [DTP_EXPLAIN_TRAFFIC] = "bytes",
        [DTP_EXPLAIN_SECONDS] = "seconds", [DTP_EXPLAIN_FLOPS] = "flops", [DTP_EXPLAIN_USD] = "usd",
    };
    json_t *object = json_object(), *terms = json_array();
    for (size_t i = 0; i < group->count; i++) {
        const struct dtp_term *term = &e->terms[group->first + i];
        json_t *entry = json_object();
        json_object_set_new(entry, "name", json_string(term->name));
        json_object_set_new(entry, "rule", json_string(term->rule));
        json_object_set_new(entry, "numbers", json_string(term->numbers));
        json_object_set_new(entry, "source", json_string(term->source));
        json_object_set_new(entry, "value", json_real(term->value));
        json_object_set_new(entry, "gap", json_boolean(term->gap));
        json_array_append_new(terms, entry);
    }
    json_object_set_new(object, "title", json_string(group->title));
    json_object_set_new(object, "words", json_string(group->words));
    json_object_set_new(object, "source", json_string(group->source));
    json_object_set_new(object, "unit", json_string(units[group->unit]));
    json_object_set_new(object, "total", json_real(group->total));
    json_object_set_new(object, "terms", terms);
    return object;
}

enum dtp_status dtp_explain_json(const struct dtp_explanation *explanation, FILE *file, struct dtp_faults *faults)
{
    json_t *object = json_object(), *groups = json_array(), *constants = json_array();
    for (size_t i = 0; i < explanation->group_count; i++)
        json_array_append_new(groups, group_object(explanation, &explanation->groups[i]));
    for (size_t i = 0; i < DTP_CONSTANT_COUNT; i++) {
        json_t *entry = json_object();
        json_object_set_new(entry, "name", json_string(dtp_calibration_rows[i].name));
        json_object_set_new(entry, "value", json_real(dtp_calibration_rows[i].value));
        json_object_set_new(entry, "unit", json_string(dtp_calibration_rows[i].unit));
        json_object_set_new(entry, "words", json_string(dtp_calibration_rows[i].words));
        json_array_append_new(constants, entry);
    }
    json_object_set_new(object, "schema", json_string("dtplan.explain/1"));
    json_object_set_new(object, "groups", groups);
    json_object_set_new(object, "constants", constants);
    return dtp_json_dump_exact(object, file, faults);
}
