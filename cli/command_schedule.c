/* dtplan schedule --stages N --micro-batches N [--schedule LIST] [--times F,B,W[,SEND]] ... */
#include "cli/command.h"

#include "base/append.h"
#include "base/nearest.h"
#include "base/number.h"
#include "chart/chart.h"
#include "page/output_file.h"
#include "record/schedule_report.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define MIN_TIME 1e-6 /* of a pass that takes time, in whatever unit */
#define MAX_TIME 1e12
#define MOST_LAYERS 1e6 /* that embedding or head take as long as */

/* What the line asks for; the question borrows `kinds`. */
struct asked {
    struct dtp_schedule_question question;
    enum dtp_schedule_kind kinds[DTP_SCHEDULE_COUNT];
    const char *passes; /* a file, or NULL */
};

static enum dtp_status unknown_schedule(const char *word, struct dtp_faults *faults)
{
    struct dtp_nearest nearest;
    char hint[160], all[200] = "the schedules are";
    dtp_nearest_begin(&nearest, word);
    for (int i = 0; i < DTP_SCHEDULE_COUNT; i++) {
        const char *known = dtp_schedule_row((enum dtp_schedule_kind)i)->word;
        dtp_nearest_offer(&nearest, known);
        dtp_append(all, sizeof all, "%s %s", i ? "," : "", known);
    }
    dtp_nearest_text(&nearest, hint, sizeof hint);
    return dtp_fault(faults, DTP_BAD_INPUT, NULL, 0, "--schedule: there is no schedule '%.64s'; %s", word,
                     hint[0] ? hint : all);
}

/* "1f1b,zb-h1" or "all"; one that is named twice counts once. */
static void read_kinds(struct asked *asked, const char *value, struct dtp_faults *faults)
{
    bool all = strcmp(value, "all") == 0, wanted[DTP_SCHEDULE_COUNT] = {false};
    for (const char *at = value; !all && at; at = (at = strchr(at, ',')) ? at + 1 : NULL) {
        char word[80];
        enum dtp_schedule_kind kind;
        snprintf(word, sizeof word, "%.*s", (int)strcspn(at, ","), at);
        if (dtp_schedule_parse(word, &kind))
            wanted[kind] = true;
        else
            unknown_schedule(word, faults);
    }
    asked->question.kind_count = 0;
    for (int i = 0; i < DTP_SCHEDULE_COUNT; i++)
        if (all || wanted[i])
            asked->kinds[asked->question.kind_count++] = (enum dtp_schedule_kind)i;
}

/* "1,1.2,0.6" or "1,1.2,0.6,0.1". */
static void read_times(struct dtp_schedule_question *q, const char *value, struct dtp_faults *faults)
{
    double times[4] = {0};
    size_t count = 0;
    bool numbers = true;
    for (const char *at = value; at && numbers; at = (at = strchr(at, ',')) ? at + 1 : NULL) {
        char word[80];
        snprintf(word, sizeof word, "%.*s", (int)strcspn(at, ","), at);
        numbers = count < 4 && dtp_number_parse(word, &times[count]) &&
                  (times[count] == 0 || (times[count] >= MIN_TIME && times[count] <= MAX_TIME));
        count++;
    }
    if (!numbers || count < 3 || times[0] + times[1] + times[2] <= 0)
        dtp_fault(faults, DTP_BAD_INPUT, NULL, 0,
                  "--times: '%.64s' is not F,B,W or F,B,W,SEND: times of 0 or from %g to %g of forward, backward of "
                  "inputs and of weights, and a transfer, in one unit; write --times 1,1,1",
                  value, MIN_TIME, MAX_TIME);
    q->forward_s = times[0];
    q->backward_s = times[1];
    q->weight_s = times[2];
    q->send_s = times[3];
}

static void read_whole(uint32_t *out, const char *flag, const char *value, struct dtp_faults *faults)
{
    uint64_t whole;
    if (dtp_number_parse_integer(value, false, 1, UINT32_MAX, &whole))
        *out = (uint32_t)whole;
    else
        dtp_fault(faults, DTP_BAD_INPUT, NULL, 0, "%s: '%.64s' is not a whole number from 1", flag, value);
}

static void read_layout(struct dtp_schedule_question *q, const char *value)
{
    static const char *const cuts[] = {
#define CUT_WORD(suffix, word, words) word,
        DTP_CUT_TABLE(CUT_WORD)
#undef CUT_WORD
    };
    q->cut = DTP_CUT_LAYOUT;
    q->layout = value;
    for (int i = 0; i < DTP_CUT_LAYOUT; i++)
        if (strcmp(value, cuts[i]) == 0)
            q->cut = (enum dtp_cut)i;
}

static void read_layers(double *out, const char *flag, const char *value, struct dtp_faults *faults)
{
    if (!dtp_number_parse(value, out) || *out < 0 || *out > MOST_LAYERS)
        dtp_fault(faults, DTP_BAD_INPUT, NULL, 0, "%s: '%.64s' is no number of layers from 0 to %g", flag, value,
                  MOST_LAYERS);
}

/* Of a model that is cut. True: it is such a flag. */
static bool read_model_flag(struct dtp_schedule_question *q, const char *flag, const char *value,
                            struct dtp_faults *faults)
{
    if (strcmp(flag, "--layers") == 0)
        read_whole(&q->layers, flag, value, faults);
    else if (strcmp(flag, "--layout") == 0)
        read_layout(q, value);
    else if (strcmp(flag, "--embedding") == 0)
        read_layers(&q->embedding_layers, flag, value, faults);
    else if (strcmp(flag, "--head") == 0)
        read_layers(&q->head_layers, flag, value, faults);
    else
        return false;
    return true;
}

static void read_flag(struct asked *asked, const char *flag, const char *value, struct dtp_faults *faults)
{
    struct dtp_schedule_question *q = &asked->question;
    if (read_model_flag(q, flag, value, faults))
        return;
    if (strcmp(flag, "--schedule") == 0)
        read_kinds(asked, value, faults);
    else if (strcmp(flag, "--stages") == 0)
        read_whole(&q->ranks, flag, value, faults);
    else if (strcmp(flag, "--micro-batches") == 0)
        read_whole(&q->micro_batches, flag, value, faults);
    else if (strcmp(flag, "--virtual-stages") == 0)
        read_whole(&q->chunks, flag, value, faults);
    else if (strcmp(flag, "--group") == 0)
        read_whole(&q->group, flag, value, faults);
    else if (strcmp(flag, "--times") == 0)
        read_times(q, value, faults);
    else if (strcmp(flag, "--passes") == 0)
        asked->passes = value;
    else if (strcmp(flag, "--sends") == 0 && !dtp_send_parse(value, &q->send))
        dtp_fault(faults, DTP_BAD_INPUT, NULL, 0, "--sends: '%.64s' is neither buffered, rendezvous nor blocking",
                  value);
    else if (strcmp(flag, "--kept-for-weights") == 0 &&
             (!dtp_number_parse(value, &q->kept_for_weights) || q->kept_for_weights < 0 || q->kept_for_weights > 1))
        dtp_fault(faults, DTP_BAD_INPUT, NULL, 0, "--kept-for-weights: '%.64s' is no number from 0 to 1", value);
    else if (strcmp(flag, "--pair") == 0 &&
             (!dtp_number_parse(value, &q->pair_fraction) || q->pair_fraction < 0.5 || q->pair_fraction > 1))
        dtp_fault(faults, DTP_BAD_INPUT, NULL, 0, "--pair: '%.64s' is no number from 0.5 to 1", value);
}

/* All faults of the line at once. */
static enum dtp_status read_line(const struct dtp_context *context, struct asked *asked)
{
    const struct dtp_arguments *a = context->arguments;
    struct dtp_faults *faults = context->faults;
    size_t before = faults->count;
    *asked = (struct asked){.question = {.forward_s = 1,
                                         .backward_s = 1,
                                         .weight_s = 1,
                                         .kept_for_weights = 1,
                                         .pair_fraction = 1,
                                         .kinds = asked->kinds}};
    read_kinds(asked, "all", faults);
    for (size_t i = 0; i < a->passed_count; i++)
        read_flag(asked, a->passed[i].flag, a->passed[i].value, faults);
    if (a->word_count)
        dtp_fault(faults, DTP_BAD_INPUT, NULL, 0, "schedule: takes flags only, not '%.64s'; see dtplan help schedule",
                  a->words[0]);
    if (faults->count == before && (!asked->question.ranks || !asked->question.micro_batches))
        dtp_fault(faults, DTP_BAD_INPUT, NULL, 0, "schedule: %s is missing; write --stages 8 --micro-batches 24",
                  asked->question.ranks ? "--micro-batches" : "--stages");
    const struct dtp_schedule_question *q = &asked->question;
    bool searched = false;
    for (size_t i = 0; i < q->kind_count; i++)
        searched |= q->kinds[i] == DTP_SCHEDULE_ZB_1P || q->kinds[i] == DTP_SCHEDULE_ZB_2P;
    if (faults->count == before && q->kept_for_weights < 1 && !searched)
        dtp_fault(faults, DTP_BAD_INPUT, NULL, 0,
                  "--kept-for-weights is read by searches alone; add --schedule zb-1p or zb-2p, or leave it out");
    if (faults->count == before && !q->layers && (q->layout || q->embedding_layers > 0 || q->head_layers > 0))
        dtp_fault(
            faults, DTP_BAD_INPUT, NULL, 0,
            "--layers is missing: --layout, --embedding and --head are of a model whose layers are cut into stages");
    if (faults->count == before && q->layers > DTP_STAGES_MAX_LAYERS)
        dtp_fault(faults, DTP_BAD_INPUT, NULL, 0, "--layers: %" PRIu32 " are more than %u", q->layers,
                  DTP_STAGES_MAX_LAYERS);
    if (faults->count == before && a->chart && asked->question.kind_count != 1)
        dtp_fault(faults, DTP_BAD_INPUT, NULL, 0, "--chart: draws one schedule; name it with --schedule");
    return faults->count > before ? faults->status : DTP_OK;
}

/* ---- files ------------------------------------------------------------------------------------------------------- */

static enum dtp_status write_passes(const struct dtp_schedule_report *report, const char *path,
                                    struct dtp_faults *faults)
{
    struct dtp_output_file output;
    if (!path)
        return DTP_OK;
    enum dtp_status status = dtp_output_open(path, &output, faults);
    if (status != DTP_OK)
        return status;
    dtp_schedule_report_passes(report, output.file);
    return dtp_output_close(&output, faults);
}

static void passes_of(const void *report, FILE *file)
{
    dtp_schedule_report_passes(report, file);
}

static enum dtp_status draw(const struct dtp_context *context, const struct dtp_schedule_report *report)
{
    const struct dtp_schedule_case *c = &report->cases[0];
    char title[160];
    if (!context->arguments->chart)
        return DTP_OK;
    snprintf(title, sizeof title,
             "%s: %" PRIu32 " rank%s, %" PRIu32 " micro-batch%s; of %.4g a step the busiest rank idles %.4g",
             dtp_schedule_row(c->kind)->word, c->schedule.shape.ranks, c->schedule.shape.ranks > 1 ? "s" : "",
             c->schedule.shape.micro_batches, c->schedule.shape.micro_batches > 1 ? "es" : "", c->timing.makespan_s,
             c->timing.bubble_s);
    return dtp_chart_draw_written(DTP_CHART_SCHEDULE, passes_of, report, context->arguments->chart, title,
                                  context->faults);
}

enum dtp_status dtp_command_schedule(const struct dtp_context *context)
{
    struct asked asked;
    struct dtp_schedule_report report = {0};
    enum dtp_status status = read_line(context, &asked);
    if (status == DTP_OK)
        status = dtp_schedule_report_make(&asked.question, &report, context->faults);
    if (status == DTP_OK)
        status = write_passes(&report, asked.passes, context->faults);
    if (status == DTP_OK)
        status = draw(context, &report);
    if (status == DTP_OK && context->arguments->csv)
        dtp_schedule_report_csv(&report, context->out);
    else if (status == DTP_OK)
        status = dtp_schedule_report_text(&report, &context->page, context->faults);
    dtp_schedule_report_destroy(&report);
    return status;
}
