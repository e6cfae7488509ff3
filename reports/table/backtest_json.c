#include "record/backtest_report.h"

#include "page/json_value.h"

static void add_errors(json_t *object, const char *prefix, const struct dtp_error_statistics *errors)
{
    char key[64];
    const struct {
        const char *name;
        double value;
    } values[] = {{"median_abs_error_pct", errors->median_abs_pct},
                  {"mean_abs_error_pct", errors->mean_abs_pct},
                  {"max_abs_error_pct", errors->max_abs_pct},
                  {"median_error_pct", errors->median_pct}};
    for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
        snprintf(key, sizeof key, "%s%s", prefix, values[i].name);
        json_object_set_new(object, key, dtp_json_real(values[i].value));
    }
}

static json_t *memory_object(const struct dtp_error_statistics *memory)
{
    json_t *object = json_object();
    for (int kind = 0; kind < DTP_RUN_MEMORY_COUNT; kind++) {
        json_t *errors = json_object();
        json_object_set_new(errors, "n", json_integer((json_int_t)memory[kind].count));
        add_errors(errors, "", &memory[kind]);
        json_object_set_new(object, dtp_run_memory_word((enum dtp_run_memory)kind), errors);
    }
    return object;
}

static json_t *group_object(const struct dtp_backtest_group *group)
{
    json_t *object = json_object();
    json_object_set_new(object, "rows", json_integer((json_int_t)group->rows));
    json_object_set_new(object, "scored", json_integer((json_int_t)group->scored));
    json_object_set_new(object, "refused", json_integer((json_int_t)(group->rows - group->scored)));
    json_object_set_new(object, "n", json_integer((json_int_t)group->throughput.count));
    add_errors(object, "", &group->throughput);
    add_errors(object, "baseline_", &group->baseline);
    add_errors(object, "unseen_baseline_", &group->unseen_baseline);
    return object;
}

static json_t *groups_object(const struct dtp_backtest_group *groups, size_t count, bool with_memory)
{
    json_t *object = json_object();
    for (size_t i = 0; i < count; i++) {
        json_t *group = group_object(&groups[i]);
        if (with_memory)
            json_object_set_new(group, "memory", memory_object(groups[i].memory));
        json_object_set_new(object, groups[i].name, group);
    }
    return object;
}

static json_t *throughput_object(const struct dtp_backtest *backtest)
{
    json_t *object = json_object();
    json_object_set_new(object, "n", json_integer((json_int_t)backtest->throughput.count));
    add_errors(object, "", &backtest->throughput);
    json_object_set_new(object, "macro_median_abs_error_pct", dtp_json_real(backtest->macro_median_abs_pct));
    add_errors(object, "baseline_", &backtest->baseline);
    add_errors(object, "unseen_baseline_", &backtest->unseen_baseline);
    json_object_set_new(object, "baseline_macro_median_abs_error_pct",
                        dtp_json_real(backtest->baseline_macro_median_abs_pct));
    json_object_set_new(object, "by_source", groups_object(backtest->sources, backtest->source_count, true));
    json_object_set_new(object, "by_source_dtype", groups_object(backtest->dtypes, backtest->dtype_count, false));
    return object;
}

static json_t *fit_object(const size_t *count)
{
    json_t *object = json_object();
    for (int verdict = DTP_VERDICT_FITS; verdict <= DTP_VERDICT_OOM; verdict++)
        json_object_set_new(object, dtp_verdict_text((enum dtp_verdict)verdict),
                            json_integer((json_int_t)count[verdict]));
    return object;
}

/* "predicted_fit" is of runs that ran; those that did not stand beside it. */
static json_t *verdicts_object(const struct dtp_backtest *backtest)
{
    const size_t *ran = backtest->fit_count[DTP_RUN_RAN], *oom = backtest->fit_count[DTP_RUN_OOM];
    double ran_count = (double)(ran[DTP_VERDICT_FITS] + ran[DTP_VERDICT_TIGHT] + ran[DTP_VERDICT_OOM]);
    double missed = (double)(oom[DTP_VERDICT_FITS] + oom[DTP_VERDICT_TIGHT]);
    json_t *object = json_object();
    json_object_set_new(object, "ran", fit_object(ran));
    json_object_set_new(object, "out_of_memory", fit_object(oom));
    json_object_set_new(object, "failed", fit_object(backtest->fit_count[DTP_RUN_FAILED]));
    json_object_set_new(object, "false_alarm_pct", dtp_json_real(100 * (double)ran[DTP_VERDICT_OOM] / ran_count));
    json_object_set_new(object, "missed_pct", dtp_json_real(100 * missed / (missed + (double)oom[DTP_VERDICT_OOM])));
    return object;
}

static json_t *row_id(const struct dtp_backtest *backtest, size_t row)
{
    return row == SIZE_MAX ? json_null() : json_string(backtest->rows[row].run.id);
}

static json_t *decisions_array(const struct dtp_backtest *backtest)
{
    json_t *array = json_array();
    for (size_t i = 0; i < backtest->decision_count; i++) {
        const struct dtp_backtest_decision *d = &backtest->decisions[i];
        json_t *object = json_object();
        json_object_set_new(object, "source", json_string(backtest->sources[d->source].name));
        json_object_set_new(object, "model", json_string(d->model));
        json_object_set_new(object, "gpu", json_string(d->gpu_key));
        json_object_set_new(object, "nodes", json_integer((json_int_t)d->nodes));
        json_object_set_new(object, "seq_tokens", json_integer((json_int_t)d->sequence));
        json_object_set_new(object, "configurations", json_integer((json_int_t)d->configurations));
        json_object_set_new(object, "rank_correlation", dtp_json_real(d->rank_correlation));
        json_object_set_new(object, "regret", dtp_json_real(d->of_best));
        json_object_set_new(object, "chosen", row_id(backtest, d->chosen));
        json_object_set_new(object, "best", row_id(backtest, d->best));
        json_array_append_new(array, object);
    }
    return array;
}

static json_t *choices_object(const struct dtp_backtest *backtest)
{
    const struct dtp_backtest_choices *choices = &backtest->choices;
    json_t *object = json_object();
    json_object_set_new(object, "n", json_integer((json_int_t)backtest->decision_count));
    json_object_set_new(object, "median_rank_correlation", dtp_json_real(choices->median_rank_correlation));
    json_object_set_new(object, "least_rank_correlation", dtp_json_real(choices->least_rank_correlation));
    json_object_set_new(object, "mean_regret", dtp_json_real(choices->mean_of_best));
    json_object_set_new(object, "worst_regret", dtp_json_real(choices->least_of_best));
    json_object_set_new(object, "pairs", json_integer((json_int_t)choices->pairs));
    json_object_set_new(object, "pairs_right", json_integer((json_int_t)choices->pairs_right));
    json_object_set_new(object, "pairs_alike", json_integer((json_int_t)choices->pairs_alike));
    return object;
}

static json_t *refusals_array(const struct dtp_backtest *backtest)
{
    json_t *array = json_array();
    for (size_t i = 0; i < backtest->refusal_count; i++)
        json_array_append_new(array,
                              json_pack("{s:s, s:I, s:s}", "reason", backtest->refusals[i].reason, "rows",
                                        (json_int_t)backtest->refusals[i].rows, "ids", backtest->refusals[i].ids));
    return array;
}

static json_t *files_array(const struct dtp_backtest *backtest)
{
    json_t *array = json_array();
    for (size_t i = 0; i < backtest->table_count; i++)
        json_array_append_new(array, json_string(dtp_table_name(backtest->tables[i])));
    return array;
}

enum dtp_status dtp_backtest_write_json(FILE *file, const struct dtp_backtest *backtest, struct dtp_faults *faults)
{
    json_t *root = json_object();
    json_object_set_new(root, "schema", json_string("dtplan.backtest/1"));
    json_object_set_new(root, "file", json_string(dtp_table_name(backtest->tables[0])));
    json_object_set_new(root, "files", files_array(backtest));
    json_object_set_new(root, "fidelity", json_string(backtest->fidelity));
    json_object_set_new(root, "machine_file", backtest->machine ? json_string(backtest->machine) : json_null());
    json_object_set_new(root, "by_machine_file", json_integer((json_int_t)backtest->by_machine));
    json_object_set_new(root, "rows", json_integer((json_int_t)backtest->row_count));
    json_object_set_new(root, "scored", json_integer((json_int_t)backtest->scored));
    json_object_set_new(root, "refused", json_integer((json_int_t)backtest->refused));
    json_object_set_new(root, "unstated", json_integer((json_int_t)backtest->unstated));
    json_object_set_new(root, "throughput", throughput_object(backtest));
    json_object_set_new(root, "memory", memory_object(backtest->memory));
    json_object_set_new(root, "predicted_fit", fit_object(backtest->fit_count[DTP_RUN_RAN]));
    json_object_set_new(root, "memory_verdicts", verdicts_object(backtest));
    json_object_set_new(root, "decisions", decisions_array(backtest));
    json_object_set_new(root, "choices", choices_object(backtest));
    json_object_set_new(root, "refusals", refusals_array(backtest));
    return dtp_json_dump_exact(root, file, faults);
}
