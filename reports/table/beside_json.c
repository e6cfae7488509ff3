#include "record/beside_report.h"

#include "page/json_value.h"

#include <math.h>

static json_t *lines_json(const struct dtp_beside_line *lines, size_t count, bool planned, const char *predicted,
                          const char *measured)
{
    json_t *list = json_object();
    for (size_t i = 0; i < count; i++)
        json_object_set_new(list, lines[i].words,
                            json_pack("{s:o,s:o}", predicted, planned ? dtp_json_real(lines[i].predicted) : json_null(),
                                      measured, dtp_json_real(lines[i].measured)));
    return list;
}

static json_t *log_json(const struct dtp_compared *b, const struct dtp_observed_log *l)
{
    bool planned = b->plan.known;
    return json_pack("{s:o,s:o,s:o,s:o,s:o,s:o}", "predicted_step_s",
                     dtp_json_real(planned ? b->plan.step_s : (double)NAN), "step_s",
                     dtp_json_real(l->step_s > 0 ? l->step_s : (double)NAN), "predicted_tokens_per_s_per_gpu",
                     dtp_json_real(planned ? b->plan.tokens_per_s_per_gpu : (double)NAN), "tokens_per_s_per_gpu",
                     dtp_json_real(l->tokens_per_s > 0 ? l->tokens_per_s : (double)NAN), "predicted_reserved_bytes",
                     planned ? dtp_json_whole(b->plan.reserved_bytes) : json_null(), "peak_bytes",
                     l->peak_bytes ? dtp_json_whole(l->peak_bytes) : json_null());
}

static json_t *file_json(const struct dtp_compared *b, const struct dtp_observed *o)
{
    struct dtp_beside_line lines[DTP_BESIDE_MOST_LINES];
    json_t *time = json_null(), *memory = json_null(), *log = json_null();
    if (o->what == DTP_OBSERVED_TIME)
        time = lines_json(lines, dtp_beside_time_lines(b, &o->time, lines), b->plan.known, "predicted_s", "recorded_s");
    else if (o->what == DTP_OBSERVED_MEMORY)
        memory = lines_json(lines, dtp_beside_memory_lines(b, &o->memory, lines), b->plan.known, "predicted_bytes",
                            "recorded_bytes");
    else
        log = log_json(b, &o->log);
    return json_pack("{s:o,s:o,s:o,s:o,s:o}", "file", dtp_json_text(o->path), "tool", dtp_json_text(o->tool), "time",
                     time, "memory", memory, "log", log);
}

static json_t *cause_json(const struct dtp_cause *c)
{
    return json_pack("{s:o,s:o,s:o,s:o,s:o}", "cause", dtp_json_text(dtp_cause_words(c->kind)), "step_s",
                     c->seconds > 0 ? dtp_json_real(c->seconds) : json_null(), "peak_bytes",
                     c->bytes > 0 ? dtp_json_real(c->bytes) : json_null(), "evidence", dtp_json_text(c->evidence),
                     "remedy", dtp_json_text(c->remedy));
}

enum dtp_status dtp_beside_json(const struct dtp_compared *b, FILE *file, struct dtp_faults *faults)
{
    json_t *files = json_array(), *causes = json_array();
    for (size_t i = 0; i < b->count; i++)
        json_array_append_new(files, file_json(b, &b->observed[i]));
    for (size_t i = 0; i < b->cause_count; i++)
        json_array_append_new(causes, cause_json(&b->causes[i]));
    json_t *all = json_pack("{s:s,s:o,s:o,s:o}", "schema", "dtplan.beside/1", "model",
                            b->plan.known ? dtp_json_text(b->plan.job->transformer.name) : json_null(), "files", files,
                            "causes", causes);
    return dtp_json_dump(all, file, faults);
}
