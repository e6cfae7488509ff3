#include "record/search_report.h"

#include "plan/runtime.h"
#include "page/json_value.h"
#include "record/report.h"
#include "base/table.h"

#include <math.h>
#include <stdlib.h>

static json_t *counts_object(const struct dtp_search_counts *n)
{
    json_t *object = json_object();
    const struct {
        const char *key;
        uint64_t value;
    } counts[] = {{"combinations", n->combinations},
                  {"refused", n->refused},
                  {"too_many_nodes", n->too_many_nodes},
                  {"pruned_by_time_or_money", n->pruned_time},
                  {"pruned_by_memory", n->pruned_memory},
                  {"predicted", n->predicted},
                  {"fits", n->fits},
                  {"tight", n->tight},
                  {"out_of_memory", n->out_of_memory},
                  {"memory_estimated", n->estimated},
                  {"simulated", n->simulated},
                  {"dropped_by_simulation", n->dropped}};
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
        json_object_set_new(object, counts[i].key, dtp_json_whole(counts[i].value));
    return object;
}

static void set_plan(json_t *object, const struct dtp_plan *p)
{
    char checkpointing[48];
    dtp_checkpointing_text(p, checkpointing, sizeof checkpointing);
    json_object_set_new(object, "strategy", json_string(dtp_strategy_text(p->strategy)));
    json_object_set_new(object, "runtime", json_string(p->runtime->name));
    json_object_set_new(object, "shard_group", dtp_json_whole(p->shard_group));
    json_object_set_new(object, "micro_batch", dtp_json_whole(p->micro_batch));
    json_object_set_new(object, "accumulate", dtp_json_whole(p->accumulate));
    json_object_set_new(object, "accumulate_sync", json_boolean(p->accumulate > 1 && p->accumulate_sync));
    json_object_set_new(object, "checkpointing", json_string(checkpointing));
    json_object_set_new(object, "offload", json_string(dtp_offload_text(p->offload)));
    json_object_set_new(object, "precision", json_string(dtp_precision_name(&p->precision)));
    json_object_set_new(object, "compile", json_boolean(p->compile));
}

static json_t *candidate_object(const struct dtp_search_question *question, const struct dtp_candidate *c)
{
    json_t *object = json_object();
    const struct dtp_prediction *p = &c->variant.prediction;
    char *command = dtp_search_command(question, c);
    json_object_set_new(object, "gpu", dtp_json_text(c->variant.job.cluster.gpu.key));
    json_object_set_new(object, "gpus", dtp_json_whole(c->variant.job.cluster.gpus));
    set_plan(object, &c->variant.job.plan);
    json_object_set_new(object, "model_note", dtp_json_text(c->variant.job.model_note));
    json_object_set_new(object, "fidelity",
                        json_string(c->simulated   ? "simulated"
                                    : c->estimated ? "estimated"
                                                   : "closed"));
    json_object_set_new(object, "not_simulated_because", dtp_json_text(c->reason));
    json_object_set_new(object, "step_s", dtp_json_real(p->time.step_s));
    json_object_set_new(object, "closed_step_s", dtp_json_real(c->closed_step_s));
    json_object_set_new(object, "tokens_per_s", dtp_json_real(p->throughput.tokens_per_s));
    json_object_set_new(object, "mfu", dtp_json_real(p->throughput.mfu));
    json_object_set_new(object, "verdict", json_string(dtp_verdict_text(p->memory.verdict)));
    json_object_set_new(object, "shortage",
                        p->memory.shortage ? json_string(dtp_shortage_text(p->memory.shortage)) : json_null());
    json_object_set_new(object, "device_peak_bytes", dtp_json_whole(p->memory.device_peak_bytes));
    json_object_set_new(object, "free_memory_fraction", dtp_json_real(c->headroom));
    json_object_set_new(object, "training", dtp_training_json(&c->cost, &c->money));
    json_object_set_new(object, "within_limits", json_boolean(c->valid));
    json_object_set_new(object, "command", dtp_json_text(command));
    free(command);
    return object;
}

static json_t *positive(double value)
{
    return value > 0 ? dtp_json_real(value) : json_null();
}

static json_t *relax_object(const struct dtp_search_relax *r)
{
    json_t *object = json_object();
    json_object_set_new(object, "any_fits", json_boolean(r->any_fits));
    json_object_set_new(object, "any_ends", json_boolean(r->any_ends));
    json_object_set_new(object, "missing_bytes", positive(r->missing_bytes));
    json_object_set_new(object, "deadline_s", positive(r->deadline_s));
    json_object_set_new(object, "budget_usd", positive(r->budget_usd));
    json_object_set_new(object, "earliest_s", positive(r->free_deadline_s));
    json_object_set_new(object, "cheapest_usd", positive(r->free_budget_usd));
    json_object_set_new(object, "refused_because", dtp_json_text(r->refusal));
    return object;
}

enum dtp_status dtp_search_json(const struct dtp_search_question *question, const struct dtp_search *search, FILE *file,
                                struct dtp_faults *faults)
{
    json_t *object = json_object(), *front = json_array();
    for (size_t i = 0; i < search->count; i++)
        if (search->candidates[i].front)
            json_array_append_new(front, candidate_object(question, &search->candidates[i]));
    json_object_set_new(object, "schema", json_string("dtplan.search/1"));
    json_object_set_new(object, "searched", counts_object(&search->counts));
    json_object_set_new(object, "gpu_counts_asked", dtp_json_whole(question->thinned.asked));
    json_object_set_new(object, "gpu_counts_tried", dtp_json_whole(question->thinned.tried));
    json_object_set_new(object, "recommended",
                        search->recommended >= 0 ? candidate_object(question, &search->candidates[search->recommended])
                                                 : json_null());
    json_object_set_new(object, "runner_up",
                        search->runner_up >= 0 ? candidate_object(question, &search->candidates[search->runner_up])
                                               : json_null());
    json_object_set_new(object, "other_format",
                        search->other_format >= 0
                            ? candidate_object(question, &search->candidates[search->other_format])
                            : json_null());
    json_object_set_new(object, "front", front);
    json_object_set_new(object, "relax", search->recommended >= 0 ? json_null() : relax_object(&search->relax));
    return dtp_json_dump(object, file, faults);
}

enum dtp_status dtp_search_csv(const struct dtp_search_question *question, const struct dtp_search *search, FILE *file,
                               struct dtp_faults *faults)
{
    struct dtp_report *report = calloc(1, sizeof *report);
    if (!report)
        return dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "out of memory");
    fputs("rank,recommended,front,within_limits,free_memory_fraction,command,", file);
    dtp_report_csv_header(file);
    for (size_t i = 0; i < search->count; i++) {
        const struct dtp_candidate *c = &search->candidates[i];
        struct dtp_comparison_row row = {.report = report};
        char *command = dtp_search_command(question, c);
        report->job = c->variant.job;
        report->prediction = c->variant.prediction;
        report->simulated = c->simulated;
        report->money = c->money;
        report->training = c->cost;
        snprintf(row.strategy, sizeof row.strategy, "%s", dtp_strategy_text(c->variant.job.plan.strategy));
        dtp_scaling_of(&c->variant.job, &c->variant.prediction, &report->scaling);
        fprintf(file, "%zu,%d,%d,%d,%.6g,", i + 1, (long)i == search->recommended, c->front, c->valid, c->headroom);
        dtp_table_write_field(file, command ? command : "");
        fputc(',', file);
        dtp_report_csv_row(&row, file);
        free(command);
    }
    free(report);
    return DTP_OK;
}
