#include "record/report.h"

#include "page/json_value.h"
#include "base/number.h"
#include "base/rank_loss.h"
#include "plan/runtime.h"

#include <math.h>
#include <stdarg.h>

#define LABEL_COLUMNS 22

struct texts {
    char a[DTP_NUMBER_TEXT_BYTES], b[DTP_NUMBER_TEXT_BYTES], c[DTP_NUMBER_TEXT_BYTES];
};

static void label(const struct dtp_page *page, const char *words)
{
    fprintf(page->file, "  %-*s ", LABEL_COLUMNS, words);
}

/* Behind a label, wrapped to its column. */
static void __attribute__((format(printf, 2, 3))) say_behind(const struct dtp_page *page, const char *format, ...)
{
    char words[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(words, sizeof words, format, arguments);
    va_end(arguments);
    dtp_page_wrap(page, LABEL_COLUMNS + 3, LABEL_COLUMNS + 3, words);
}

static const char *duration(double s, char *out)
{
    return dtp_number_format_duration(s, out, DTP_NUMBER_TEXT_BYTES);
}

static void print_time(const struct dtp_report *report, const struct dtp_page *page)
{
    const struct dtp_training_cost *t = &report->training;
    struct texts x;
    label(page, "wall time");
    if (t->goodput.hopeless) {
        fprintf(page->file, "never: with a failure every %s and %s to write a checkpoint it does not get ahead\n",
                duration(t->inputs.mtbf_s, x.a), duration(t->inputs.checkpoint_s, x.b));
        return;
    }
    fprintf(page->file, "%s expected, below %s in 95 of 100 runs\n", duration(t->goodput.expected_s, x.a),
            duration(t->trials.quantile_s, x.b));
    label(page, "of that computing");
    fprintf(page->file, "%s, goodput %.1f %%\n", duration(t->inputs.work_s, x.a), 100 * t->goodput.fraction);
    label(page, "failures");
    fprintf(page->file, "%.3g expected, one every %s; %s lost after each until it runs again\n",
            t->goodput.failures_count, duration(t->inputs.mtbf_s, x.a), duration(t->inputs.restart_s, x.b));
}

static void print_checkpoints(const struct dtp_report *report, const struct dtp_page *page)
{
    const struct dtp_training_cost *t = &report->training;
    struct texts x;
    label(page, "checkpoints");
    fprintf(page->file, "%s each, %s to write, best every %s\n",
            dtp_number_format_memory((uint64_t)t->checkpoint_bytes, x.a, sizeof x.a),
            duration(t->inputs.checkpoint_s, x.b), duration(t->goodput.interval_s, x.c));
    if (t->storage_bytes_per_s > 0 && t->inputs.checkpoint_s * t->storage_bytes_per_s > t->checkpoint_bytes) {
        label(page, "");
        fprintf(page->file, "storage of %s would write them in 1 %% of the time (--storage)\n",
                dtp_number_format_rate(t->storage_bytes_per_s, x.a, sizeof x.a));
    }
}

/* The rate of steps is the plan's, so a share of time is one of steps too. */
static void print_stall(const struct dtp_report *report, const struct dtp_page *page)
{
    const struct dtp_training_cost *t = &report->training;
    struct texts x;
    double step_s = t->steps_count > 0 ? t->inputs.work_s / t->steps_count : 0;
    if (!(t->checkpoint_stall_s > 0 && step_s > 0))
        return;
    label(page, "  beside training");
    struct dtp_unit unit = dtp_unit_time(t->checkpoint_stall_s);
    say_behind(page,
               "%.3g %s of copying instead, %.2g %% of the time at one every 200 steps (--async-checkpoints), to %s of "
               "the host's memory a GPU, pinned before training",
               t->checkpoint_stall_s / unit.divisor, unit.name,
               100 * t->checkpoint_stall_s / (t->checkpoint_stall_s + 200 * step_s),
               dtp_number_format_memory((uint64_t)t->checkpoint_copy_bytes, x.a, sizeof x.a));
}

/* Of runs that we execute: others have watchdogs of their own. */
static void print_noticing(const struct dtp_report *report, const struct dtp_page *page)
{
    double step_s = report->training.elastic.inputs.step_s;
    struct texts x;
    if (!report->job.plan.runtime->executed)
        return;
    label(page, "  a lost rank");
    fprintf(page->file,
            "is noticed at once where its connections end, after %s of silence, after %s without a step; a silent one "
            "is ended %s later\n",
            duration(DTP_SILENCE_S, x.a), duration(dtp_step_deadline_s(step_s), x.b), duration(DTP_LOST_GRACE_S, x.c));
}

static void print_elastic(const struct dtp_report *report, const struct dtp_page *page)
{
    const struct dtp_elastic_goodput *e = &report->training.elastic;
    struct texts x;
    if (!e->known)
        return;
    label(page, "elastic");
    if (e->hopeless) {
        fprintf(page->file, "never: more is out for repair than the rest can do\n");
        return;
    }
    struct texts y;
    say_behind(page,
               "goodput %.1f %%, %s expected: a snapshot in memory every %s, %s until ranks go on, %.2g %% of the GPUs "
               "out for %s after a failure",
               100 * e->fraction, duration(e->expected_s, x.a), duration(e->interval_s, x.b),
               duration(e->inputs.restart_s, x.c), 100 * e->inputs.unit_fraction, duration(e->inputs.repair_s, y.a));
    print_noticing(report, page);
}

static void print_usd(const struct dtp_report *report, const struct dtp_page *page)
{
    const struct dtp_training_cost *t = &report->training;
    char low[32], typical[32], high[32];
    if (!report->money.known || t->goodput.hopeless)
        return;
    label(page, "money");
    fprintf(page->file, "$%s", dtp_page_figure(t->usd[DTP_PRICE_TYPICAL], typical, sizeof typical));
    if (!report->money.given)
        fprintf(page->file, " typical ($%s to $%s)", dtp_page_figure(t->usd[DTP_PRICE_LOW], low, sizeof low),
                dtp_page_figure(t->usd[DTP_PRICE_HIGH], high, sizeof high));
    fputc('\n', page->file);
}

static void print_energy(const struct dtp_report *report, const struct dtp_page *page)
{
    const struct dtp_training_cost *t = &report->training;
    char gpu[32], site[32];
    if (t->goodput.hopeless)
        return;
    label(page, "energy");
    fprintf(page->file, "%s kWh of the GPUs at their board power, %s of the site\n",
            dtp_page_figure(t->gpu_energy_j / 3.6e6, gpu, sizeof gpu),
            dtp_page_figure(t->site_energy_j / 3.6e6, site, sizeof site));
}

/* Goyal et al. 2017: a rate that grows with the batch holds for SGD, up to a limit; Malladi et al. 2022: with Adam by
 * the square root. Beyond the critical batch neither helps. */
static void print_batch(const struct dtp_report *report, const struct dtp_page *page)
{
    const struct dtp_training_cost *t = &report->training;
    struct texts x;
    char steps[32];
    label(page, "batch");
    fprintf(page->file, "%s tokens a step, %s step%s; critical near %s\n",
            dtp_number_format_count(t->batch_tokens, x.a, sizeof x.a),
            dtp_page_grouped((uint64_t)t->steps_count, steps, sizeof steps), t->steps_count < 2 ? "" : "s",
            dtp_number_format_count(t->critical_batch_tokens, x.b, sizeof x.b));
    if (t->batch_tokens > 2 * t->critical_batch_tokens) {
        label(page, "");
        fputs("a larger batch than that saves few steps: the same loss may take more tokens than given\n", page->file);
    }
}

static void print_limits(const struct dtp_report *report, const struct dtp_page *page)
{
    const struct dtp_training_cost *t = &report->training;
    const struct dtp_training *asked = &report->job.training;
    struct texts x;
    char usd[32], budget[32];
    if (t->late) {
        dtp_page_ink(page, DTP_INK_RED);
        fprintf(page->file, "  misses the deadline of %s by %s\n", duration(asked->deadline_s, x.a),
                duration(t->goodput.expected_s - asked->deadline_s, x.b));
    }
    if (t->over_budget) {
        dtp_page_ink(page, DTP_INK_RED);
        fprintf(page->file, "  exceeds the budget of $%s by $%s\n",
                dtp_page_figure(asked->budget_usd, budget, sizeof budget),
                dtp_page_figure(t->usd[DTP_PRICE_TYPICAL] - asked->budget_usd, usd, sizeof usd));
    }
    dtp_page_ink(page, DTP_INK_PLAIN);
}

void dtp_training_text(const struct dtp_report *report, const struct dtp_page *page)
{
    char tokens[DTP_NUMBER_TEXT_BYTES];
    if (!report->training.known)
        return;
    dtp_page_heading(page, "TRAINING", "of %s tokens on GPUs that fail",
                     dtp_number_format_count(report->training.tokens, tokens, sizeof tokens));
    print_time(report, page);
    print_checkpoints(report, page);
    print_stall(report, page);
    print_elastic(report, page);
    print_usd(report, page);
    print_energy(report, page);
    print_batch(report, page);
    print_limits(report, page);
}

/* ---- JSON -------------------------------------------------------------------------------------------------------- */

json_t *dtp_training_json(const struct dtp_training_cost *t, const struct dtp_money *money)
{
    static const char *const levels[] = {"total_usd_low", "total_usd_typical", "total_usd_high"};
    if (!t->known)
        return json_null();
    const struct {
        const char *key;
        double value;
    } figures[] = {{"tokens", t->tokens},
                   {"steps", t->steps_count},
                   {"batch_tokens", t->batch_tokens},
                   {"critical_batch_tokens", t->critical_batch_tokens},
                   {"compute_s", t->inputs.work_s},
                   {"expected_s", t->goodput.hopeless ? NAN : t->goodput.expected_s},
                   {"p95_s", !t->goodput.hopeless && t->trials.quantile_s > 0 ? t->trials.quantile_s : NAN},
                   {"goodput", t->goodput.fraction},
                   {"failures", t->goodput.failures_count},
                   {"job_mtbf_s", t->inputs.mtbf_s},
                   {"restart_s", t->inputs.restart_s},
                   {"checkpoint_bytes", t->checkpoint_bytes},
                   {"checkpoint_write_s", t->inputs.checkpoint_s},
                   {"checkpoint_interval_s", t->goodput.interval_s},
                   {"checkpoint_stall_s", t->checkpoint_stall_s},
                   {"checkpoint_copy_bytes", t->checkpoint_copy_bytes},
                   {"elastic_goodput", t->elastic.known ? t->elastic.fraction : NAN},
                   {"elastic_expected_s", t->elastic.known && !t->elastic.hopeless ? t->elastic.expected_s : NAN},
                   {"snapshot_interval_s", t->elastic.known ? t->elastic.interval_s : NAN},
                   {"checkpoint_interval_young_s", t->goodput.young_s},
                   {"storage_for_one_percent_bytes_per_s", t->storage_bytes_per_s},
                   {"gpu_energy_j", t->gpu_energy_j},
                   {"site_energy_j", t->site_energy_j}};
    json_t *object = json_object();
    for (size_t i = 0; i < sizeof figures / sizeof *figures; i++)
        json_object_set_new(object, figures[i].key, dtp_json_real(figures[i].value));
    for (int level = 0; level < DTP_PRICE_LEVEL_COUNT; level++)
        json_object_set_new(object, levels[level], money->known ? dtp_json_real(t->usd[level]) : json_null());
    bool p95 = money->known && t->quantile_usd > 0;
    json_object_set_new(object, "total_usd_p95", p95 ? dtp_json_real(t->quantile_usd) : json_null());
    json_object_set_new(object, "late", json_boolean(t->late));
    json_object_set_new(object, "over_budget", json_boolean(t->over_budget));
    return object;
}
