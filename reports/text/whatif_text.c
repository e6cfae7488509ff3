#include "record/search_report.h"

#include "page/grid.h"
#include "record/report.h"

#include <math.h>
#include <string.h>

#define WHY_INDENT 6
#define CHANGE_COLUMNS 38
#define FIGURE_COLUMNS 45 /* indentation, figures and verdict beside the flags */

static void print_columns(const struct dtp_page *page, enum dtp_ink ink, const char *const columns[5])
{
    int room = dtp_page_columns(page) - FIGURE_COLUMNS, change = room < CHANGE_COLUMNS ? room : CHANGE_COLUMNS;
    bool wide = (int)strlen(columns[0]) > change; /* then it has a line of its own */
    change = change > 0 ? change : 1;
    dtp_page_ink(page, ink);
    if (wide)
        fprintf(page->file, "  %s\n", columns[0]);
    fprintf(page->file, "  %-*s %11s %10s %10s  %s\n", change, wide ? "" : columns[0], columns[1], columns[2],
            columns[3], columns[4]);
    dtp_page_ink(page, DTP_INK_PLAIN);
}

static void print_base(const struct dtp_whatif *w, const struct dtp_page *page)
{
    const struct dtp_prediction *p = &w->base.prediction;
    struct dtp_unit unit = dtp_unit_time(p->time.step_s);
    char device[32], step[32], tokens[32], grouped[32];
    snprintf(device, sizeof device, "%.2f GiB", (double)p->memory.device_peak_bytes / 0x1p30);
    snprintf(step, sizeof step, "%.4g %s", p->time.step_s / unit.divisor, unit.name);
    dtp_page_grouped((uint64_t)llround(p->throughput.tokens_per_s), grouped, sizeof grouped);
    snprintf(tokens, sizeof tokens, "%s", grouped);
    print_columns(page, DTP_INK_BOLD, (const char *const[]){"change", "device", "step", "tokens/s", "verdict"});
    print_columns(page, DTP_INK_BOLD,
                  (const char *const[]){"none: the plan as it stands", device, step, tokens,
                                        dtp_verdict_text(p->memory.verdict)});
}

static void print_row(const struct dtp_whatif *w, const struct dtp_whatif_row *row, const struct dtp_page *page)
{
    struct dtp_unit unit = dtp_unit_time(w->base.prediction.time.step_s);
    enum dtp_verdict verdict = row->variant.prediction.memory.verdict;
    char device[32], step[32], tokens[32], note[64], why[DTP_FAULT_TEXT_BYTES + 128];
    snprintf(device, sizeof device, "%+.2f GiB", row->device_delta_bytes / 0x1p30);
    snprintf(step, sizeof step, "%+.4g %s", row->step_delta_s / unit.divisor, unit.name);
    snprintf(tokens, sizeof tokens, "%+.1f %%", 100 * row->gain);
    print_columns(page,
                  verdict == DTP_VERDICT_OOM ? DTP_INK_DIM
                  : row->gain > 0            ? DTP_INK_GREEN
                                             : DTP_INK_PLAIN,
                  (const char *const[]){row->flags, device, step, tokens, dtp_verdict_text(verdict)});
    dtp_change_batch_note(&w->base.job, &row->variant.job, note, sizeof note);
    bool otherwise = row->predictor != w->predictor; /* both are constants of the predictor */
    snprintf(why, sizeof why, "%s: %s%s%s%s%s%s", dtp_question_words(row->question), row->why, note[0] ? "; " : "",
             note, row->numerics ? "; other numerics" : "", otherwise ? "; this row beside the plan by fidelity " : "",
             otherwise ? row->predictor : "");
    dtp_page_ink(page, DTP_INK_DIM);
    dtp_page_say(page, WHY_INDENT, WHY_INDENT, "%s", why);
    dtp_page_ink(page, DTP_INK_PLAIN);
}

/* The tuning questions that this plan gives no choice in. */
static void print_unanswered(const struct dtp_whatif *w, const struct dtp_page *page)
{
    char why[DTP_FAULT_TEXT_BYTES + 160];
    bool first = true;
    for (int i = 0; i < DTP_QUESTION_FSDP_COUNT; i++) {
        enum dtp_question question = (enum dtp_question)i;
        if (dtp_whatif_answers(w, question, why, sizeof why))
            continue;
        if (first)
            dtp_page_heading(page, "NO CHOICE", "what cannot be changed in this plan");
        first = false;
        dtp_page_say(page, 2, 4, "%s: %s", dtp_question_words(question), why);
    }
}

void dtp_whatif_text(const struct dtp_whatif *w, const struct dtp_page *page)
{
    dtp_report_head(&w->base.job, DTP_HEAD_PLAN, page);
    dtp_page_heading(page, "WHAT IF", "one change at a time: those that fit first, by tokens/s; fidelity: %s",
                     dtp_predictor_flag(w->predictor));
    print_base(w, page);
    for (size_t i = 0; i < w->count; i++)
        print_row(w, &w->rows[i], page);
    print_unanswered(w, page);
    if (w->refused_count)
        fprintf(page->file, "\n  refused changes: %zu; --json and --csv say why\n", w->refused_count);
}
