/* The table of single changes as JSON and CSV. */
#include "record/search_report.h"

#include "page/json_value.h"
#include "base/table.h"

#include <math.h>

/* ---- JSON -------------------------------------------------------------------------------------------------------- */

static json_t *figures_object(const struct dtp_prediction *p)
{
    json_t *object = json_object();
    json_object_set_new(object, "verdict", json_string(dtp_verdict_text(p->memory.verdict)));
    json_object_set_new(object, "allocated_peak_bytes", dtp_json_whole(p->memory.allocated_peak_bytes));
    json_object_set_new(object, "device_peak_bytes", dtp_json_whole(p->memory.device_peak_bytes));
    json_object_set_new(object, "sent_bytes", dtp_json_whole(p->communication.total_bytes));
    json_object_set_new(object, "step_s", dtp_json_real(p->time.step_s));
    json_object_set_new(object, "tokens_per_s", dtp_json_real(p->throughput.tokens_per_s));
    return object;
}

static json_t *change_object(const struct dtp_whatif_row *row)
{
    json_t *object = row->refused ? json_object() : figures_object(&row->variant.prediction);
    json_object_set_new(object, "flags", dtp_json_text(row->flags));
    json_object_set_new(object, "question", json_string(dtp_question_key(row->question)));
    json_object_set_new(object, row->refused ? "reason" : "why", dtp_json_text(row->why));
    if (row->refused)
        return object;
    json_object_set_new(object, "fidelity", json_string(row->predictor));
    json_object_set_new(object, "changes_numerics", json_boolean(row->numerics));
    json_object_set_new(object, "device_delta_bytes", dtp_json_real(row->device_delta_bytes));
    json_object_set_new(object, "step_delta_s", dtp_json_real(row->step_delta_s));
    json_object_set_new(object, "tokens_per_s_delta", dtp_json_real(row->tokens_per_s_delta));
    json_object_set_new(object, "gain_fraction", dtp_json_real(row->gain));
    return object;
}

static json_t *unanswered_array(const struct dtp_whatif *w)
{
    json_t *array = json_array();
    char why[DTP_FAULT_TEXT_BYTES + 160];
    for (int i = 0; i < DTP_QUESTION_FSDP_COUNT; i++) {
        if (dtp_whatif_answers(w, (enum dtp_question)i, why, sizeof why))
            continue;
        json_t *object = json_object();
        json_object_set_new(object, "question", json_string(dtp_question_key((enum dtp_question)i)));
        json_object_set_new(object, "reason", dtp_json_text(why));
        json_array_append_new(array, object);
    }
    return array;
}

enum dtp_status dtp_whatif_json(const struct dtp_whatif *w, FILE *file, struct dtp_faults *faults)
{
    json_t *object = json_object(), *changes = json_array(), *refused = json_array();
    for (size_t i = 0; i < w->count + w->refused_count; i++)
        json_array_append_new(w->rows[i].refused ? refused : changes, change_object(&w->rows[i]));
    json_object_set_new(object, "schema", json_string("dtplan.whatif/1"));
    json_object_set_new(object, "fidelity", json_string(w->predictor));
    json_object_set_new(object, "plan", figures_object(&w->base.prediction));
    json_object_set_new(object, "changes", changes);
    json_object_set_new(object, "refused", refused);
    json_object_set_new(object, "no_choice", unanswered_array(w));
    return dtp_json_dump(object, file, faults);
}

/* ---- CSV --------------------------------------------------------------------------------------------------------- */

static void write_figures(const struct dtp_prediction *p, FILE *file)
{
    fprintf(file, ",%s,%llu,%llu,%.9g,%.9g", dtp_verdict_text(p->memory.verdict),
            (unsigned long long)p->memory.device_peak_bytes, (unsigned long long)p->communication.total_bytes,
            p->time.step_s, p->throughput.tokens_per_s);
}

static void write_change(const struct dtp_whatif_row *row, FILE *file)
{
    dtp_table_write_field(file, row->flags);
    fprintf(file, ",%s", dtp_question_key(row->question));
    if (row->refused) {
        fputs(",,,,,,,,,,", file);
    } else {
        write_figures(&row->variant.prediction, file);
        fprintf(file, ",%.0f,%.9g,%.9g,%.9g,%s", row->device_delta_bytes, row->step_delta_s, row->tokens_per_s_delta,
                row->gain, row->predictor);
    }
    fputc(',', file);
    dtp_table_write_field(file, row->refused ? "" : row->why);
    fputc(',', file);
    dtp_table_write_field(file, row->refused ? row->why : "");
    fputc('\n', file);
}

void dtp_whatif_csv(const struct dtp_whatif *w, FILE *file)
{
    fputs("flags,question,verdict,device_peak_bytes,sent_bytes,step_s,tokens_per_s,device_delta_bytes,step_delta_s,"
          "tokens_per_s_delta,gain_fraction,fidelity,why,refused_because\n",
          file);
    fputs("none,plan", file);
    write_figures(&w->base.prediction, file);
    fprintf(file, ",0,0,0,0,%s,,\n", w->predictor);
    for (size_t i = 0; i < w->count + w->refused_count; i++)
        write_change(&w->rows[i], file);
}
