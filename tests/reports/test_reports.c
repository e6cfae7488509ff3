/* Reports against golden files. The figures are made up and round, so that a better prediction changes no golden file
 * and every share, sum and unit can be checked by eye. */
#include "record/report.h"
#include "runtime/runtimes.h"

#include "record/catalog_report.h"

#include <jansson.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <cmocka.h>

#include "lib/folded_text.h"
#include "lib/golden.h"
#include "lib/scenario_fixture.h"

#define GIB (UINT64_C(1) << 30)

/* ---- a report made by hand -------------------------------------------------------------------------------------- */

static void made_up_memory(struct dtp_memory *m)
{
    m->peak_phase = DTP_PHASE_EARLY_BACKWARD;
    uint64_t *peak = m->phase_bytes[m->peak_phase];
    peak[DTP_OWNER_PARAMS] = 4 * GIB;
    peak[DTP_OWNER_GRADS] = GIB / 4;
    peak[DTP_OWNER_OPTIMIZER] = 8 * GIB;
    peak[DTP_OWNER_ACTIVATIONS] = 16 * GIB;
    peak[DTP_OWNER_WEIGHTS] = GIB;
    peak[DTP_OWNER_WORKSPACE] = 3 * GIB / 4;
    for (int phase = 0; phase < DTP_PHASE_COUNT; phase++)
        m->phase_total_bytes[phase] = (uint64_t)(10 + 2 * phase) * GIB;
    m->phase_total_bytes[m->peak_phase] = m->allocated_peak_bytes = 30 * GIB;
    m->params_bytes = 4 * GIB;
    m->grads_bytes = 4 * GIB;
    m->optimizer_bytes = 8 * GIB;
    m->activations_bytes = 16 * GIB;
    m->temporary_bytes = 7 * GIB / 4;
    m->reserved_peak_bytes = 32 * GIB;
    m->context_bytes = m->nccl_bytes = GIB / 2;
    m->device_peak_bytes = 33 * GIB;
    m->capacity_bytes = 80 * GIB;
    dtp_memory_judge(m);
}

static void made_up_rest(struct dtp_prediction *p)
{
    p->communication.bytes[DTP_ALL_GATHER] = 24000000000u;
    p->communication.count[DTP_ALL_GATHER] = 66;
    p->communication.bytes[DTP_REDUCE_SCATTER] = 24000000000u;
    p->communication.count[DTP_REDUCE_SCATTER] = 1033;
    p->communication.total_bytes = p->communication.link_bytes = 48000000000u;
    p->time = (struct dtp_time){.matmul_s = 0.2,
                                .attention_s = 0.02,
                                .memory_bound_s = 0.07,
                                .loss_s = 0.01,
                                .host_launch_s = 0.05,
                                .compute_s = 0.3,
                                .optimizer_s = 0.02,
                                .communication_s = 0.16,
                                .exposed_communication_s = 0.08,
                                .step_s = 0.4,
                                .step_perfect_overlap_s = 0.32,
                                .step_no_overlap_s = 0.48};
    p->time.collective_s[DTP_ALL_GATHER] = p->time.collective_s[DTP_REDUCE_SCATTER] = 0.08;
    p->throughput = (struct dtp_throughput){
        .tokens_per_s = 40960, .tokens_per_s_per_gpu = 5120, .flops_per_s_per_gpu = 225e12, .mfu = 0.25, .hfu = 0.26};
}

static struct dtp_report *made_up(void)
{
    struct dtp_report *r = calloc(1, sizeof *r);
    assert_non_null(r);
    struct dtp_catalog catalog = fixture_catalog();
    r->job.transformer = catalog.models[0];
    r->job.cluster = (struct dtp_cluster){.gpu = catalog.gpus[0],
                                          .machine = catalog.machines[0],
                                          .gpus = 8,
                                          .gpus_per_node = 8,
                                          .nodes = 1,
                                          .oversubscription = 1};
    snprintf(r->job.cluster.machine.name, sizeof r->job.cluster.machine.name, "DGX H100");
    r->job.node_gpus = 8;
    r->job.plan = r->job.asked = dtp_plan_default();
    r->job.plan.shard_group = 8;
    made_up_memory(&r->prediction.memory);
    made_up_rest(&r->prediction);
    r->scaling = (struct dtp_scaling){2, true, 5400, 0.948, 1, 1};
    struct dtp_price price = {"h100-sxm", 2, 3, 8, "2026-01", "assumed", "made up"};
    dtp_money_of(&r->job, &r->prediction.throughput, &price, &r->money);
    r->advice.kind = DTP_ADVICE_FASTER;
    r->advice.count = 1;
    struct dtp_change *change = &r->advice.changes[0];
    snprintf(change->flags, sizeof change->flags, "--micro-batch 4");
    snprintf(change->note, sizeof change->note, "tokens per step x 4");
    change->gain = 0.5;
    change->variant.prediction = r->prediction;
    return r;
}

/* ---- to the letter ---------------------------------------------------------------------------------------------- */

typedef void printer(const struct dtp_report *report, const struct dtp_page *page);

static void check_text(const char *golden, printer *print, const struct dtp_report *report, bool colour, bool utf8)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *file = open_memstream(&text, &bytes);
    assert_non_null(file);
    struct dtp_page page = {.file = file, .colour = colour, .utf8 = utf8};
    print(report, &page);
    assert_int_equal(fclose(file), 0);
    text = folded_text(text, DTP_PAGE_COLUMNS);
    golden_compare(golden, text);
    for (const char *line = text, *end; *line; line = *end ? end + 1 : end) {
        char copy[1024];
        end = line + strcspn(line, "\n"); /* the last line, a colour code, ends without one */
        snprintf(copy, sizeof copy, "%.*s", (int)(end - line), line);
        if (!colour && dtp_page_width(copy) > DTP_PAGE_COLUMNS)
            fail_msg("%s: wider than %d: %s", golden, DTP_PAGE_COLUMNS, copy);
        if (copy[0] && copy[strlen(copy) - 1] == ' ')
            fail_msg("%s: ends in a blank: '%s'", golden, copy);
    }
    free(text);
}

static void test_plan_text(void **state)
{
    (void)state;
    struct dtp_report *r = made_up();
    check_text("plan.txt", dtp_report_plan_text, r, false, true);
    check_text("plan_ascii.txt", dtp_report_plan_text, r, false, false);
    check_text("plan_colour.txt", dtp_report_plan_text, r, true, true);
    free(r);
}

static bool says(const struct dtp_report *report, const char *words)
{
    char text[8192] = "";
    FILE *file = fmemopen(text, sizeof text, "w");
    assert_non_null(file);
    struct dtp_page page = {.file = file, .columns = 4000};
    dtp_report_head(&report->job, DTP_HEAD_PLAN, &page);
    assert_int_equal(fclose(file), 0);
    for (char *c = text; *c; c++)
        *c = *c == '\n' ? ' ' : *c;
    char joined[sizeof text], *to = joined;
    for (const char *c = text; *c; c++) /* lines are folded */
        if (*c != ' ' || to == joined || to[-1] != ' ')
            *to++ = *c;
    *to = '\0';
    return strstr(joined, words) != NULL;
}

/* How frozen weights are kept, as prepare_kbit and fp32_ends change it. */
static void test_frozen_words(void **state)
{
    (void)state;
    struct dtp_report *r = made_up();
    struct dtp_adapter_choice *a = &r->job.plan.adapters;
    a->rank = 16, a->targets = DTP_TARGETS_ATTENTION, a->base = DTP_BASE_NF4;
    r->job.plan.precision.params = DTP_BF16;
    assert_true(says(r, "matrices in nf4, the rest in bf16"));
    a->prepare_kbit = true;
    assert_true(says(r, "matrices in nf4, norms and biases in fp32, the rest in bf16"));
    a->fp32_ends = true;
    assert_true(says(r, "matrices in nf4, the rest in fp32"));
    free(r);
}

/* Out of memory, offload, several nodes, launch bound, no price, a solver that found nothing. */
static void test_plan_text_of_trouble(void **state)
{
    (void)state;
    struct dtp_report *r = made_up();
    r->job.cluster.nodes = 2;
    r->job.cluster.gpus = 16;
    r->prediction.memory.capacity_bytes = 24 * GIB;
    r->prediction.memory.host_bytes = 512 * GIB;
    r->prediction.memory.nvme_bytes = 1024 * GIB;
    r->prediction.memory.host_capacity_bytes = 256 * GIB;
    r->prediction.memory.nvme_capacity_bytes = 2048 * GIB;
    dtp_memory_judge(&r->prediction.memory);
    r->prediction.throughput.tokens_per_s = r->prediction.throughput.tokens_per_s_per_gpu = 0.25; /* is not 0 */
    r->prediction.communication.host_to_device_bytes = 3000000000u;
    r->prediction.communication.device_to_host_bytes = 1000000000u;
    r->prediction.communication.network_bytes = 6000000000u;
    r->prediction.communication.link_bytes = 42000000000u;
    r->prediction.time.offload_s = 0.5;
    r->prediction.time.exposed_offload_s = 0.1;
    r->prediction.time.step_s = 0.51;
    r->prediction.time.host_launch_s = r->prediction.time.compute_s;
    r->prediction.time.launch_wait_s = 0.125 * r->prediction.time.compute_s;
    r->prediction.time.beside_s = 0.25 * r->prediction.time.compute_s;
    r->money.known = false;
    r->advice.kind = DTP_ADVICE_HOPELESS;
    r->advice.count = 0;
    r->solved = true;
    r->solution.goal = DTP_SOLVE_MAX_MICRO_BATCH;
    r->solution.value = 1;
    check_text("plan_trouble.txt", dtp_report_plan_text, r, false, true);
    /* The GPU has room, the node has not. */
    r->prediction.memory.capacity_bytes = 80 * GIB;
    dtp_memory_judge(&r->prediction.memory);
    check_text("plan_host.txt", dtp_report_plan_text, r, false, true);
    free(r);
}

static void test_solutions_text(void **state)
{
    (void)state;
    struct dtp_report *r = made_up();
    r->solved = true;
    r->solution = (struct dtp_solution){.goal = DTP_SOLVE_MAX_SEQUENCE,
                                        .found = true,
                                        .value = 8192,
                                        .tight_value = 9216,
                                        .next_value = 8320,
                                        .next_verdict = DTP_VERDICT_TIGHT,
                                        .next_device_bytes = 77 * GIB};
    check_text("plan_solved.txt", dtp_report_plan_text, r, false, true);
    free(r);
    /* No margin anywhere, and better than linear: both are said. */
    r = made_up();
    r->solved = true;
    r->solution = (struct dtp_solution){.goal = DTP_SOLVE_MIN_GPUS,
                                        .found = true,
                                        .tight = true,
                                        .value = 8,
                                        .next_value = 4,
                                        .next_verdict = DTP_VERDICT_OOM,
                                        .next_device_bytes = 99 * GIB};
    r->scaling.efficiency = 1.05;
    r->prediction.memory.capacity_bytes = 30 * GIB;
    dtp_memory_judge(&r->prediction.memory);
    r->advice.kind = DTP_ADVICE_MAKES_FIT;
    r->advice.changes[0].variant.prediction.memory.verdict = DTP_VERDICT_TIGHT;
    check_text("plan_tight.txt", dtp_report_plan_text, r, false, true);
    free(r);
}

static struct dtp_comparison_row *comparison(struct dtp_report *fast, struct dtp_report *slow)
{
    static struct dtp_comparison_row rows[4];
    memset(rows, 0, sizeof rows);
    snprintf(rows[0].strategy, sizeof rows[0].strategy, "ddp");
    rows[0].report = slow;
    slow->prediction.memory.verdict = DTP_VERDICT_OOM; /* faster, but out of memory: never the best */
    slow->prediction.throughput.tokens_per_s *= 2;
    snprintf(rows[1].strategy, sizeof rows[1].strategy, "zero2");
    rows[1].refused = true;
    snprintf(rows[1].reason, sizeof rows[1].reason, "zero2 needs something that is not there; use something else");
    snprintf(rows[2].strategy, sizeof rows[2].strategy, "full_shard");
    rows[2].report = fast;
    return rows;
}

static void print_comparison(const struct dtp_report *report, const struct dtp_page *page)
{
    struct dtp_report *slow = made_up(), *fast = made_up();
    (void)report;
    dtp_report_compare_text(comparison(fast, slow), 3, page);
    free(slow);
    free(fast);
}

static void test_comparison(void **state)
{
    (void)state;
    check_text("compare.txt", print_comparison, NULL, false, true);
    struct dtp_report *slow = made_up(), *fast = made_up();
    const struct dtp_comparison_row *rows = comparison(fast, slow);
    assert_int_equal(dtp_comparison_best(rows, 3), 2);
    assert_int_equal(dtp_comparison_best(rows, 2), -1);
    fast->prediction.memory.verdict = DTP_VERDICT_TIGHT;
    assert_int_equal(dtp_comparison_best(rows, 3), 2);
    free(slow);
    free(fast);
}

/* ---- JSON: the contract ----------------------------------------------------------------------------------------- */

static json_t *to_json(const struct dtp_report *report)
{
    struct dtp_faults faults = {0};
    char *text = NULL;
    size_t bytes = 0;
    FILE *file = open_memstream(&text, &bytes);
    assert_non_null(file);
    assert_int_equal(dtp_report_plan_json(report, file, &faults), DTP_OK);
    fclose(file);
    json_error_t error;
    json_t *object = json_loads(text, 0, &error);
    if (!object)
        fail_msg("line %d: %s", error.line, error.text);
    free(text);
    return object;
}

static json_t *at(json_t *object, const char *section, const char *key)
{
    json_t *value = json_object_get(json_object_get(object, section), key);
    if (!value)
        fail_msg("no key %s.%s", section, key);
    return value;
}

/* The keys that outside programs read (schema dtplan.plan/1). */
static const struct {
    const char *section, *keys;
} contract[] = {
    {"model", "name params layers hidden heads kv_heads ffn vocab seq"},
    {"cluster", "gpu gpus gpus_per_node nodes"},
    {"plan", "strategy runtime compile micro_batch accumulate checkpointing offload precision"},
    {"memory", "params_bytes grads_bytes optimizer_bytes activations_bytes temporary_bytes allocated_peak_bytes "
               "reserved_peak_bytes device_peak_bytes capacity_bytes host_bytes nvme_bytes verdict"},
    {"communication", "all_gather_bytes reduce_scatter_bytes all_reduce_bytes send_recv_bytes all_to_all_bytes "
                      "host_to_device_bytes device_to_host_bytes total_bytes"},
    {"time", "step_s compute_s exposed_communication_s exposed_offload_s bubble_s optimizer_s"},
    {"throughput", "tokens_per_s tokens_per_s_per_gpu flops_per_s_per_gpu mfu hfu scaling_efficiency"},
    {"cost", "job_usd_per_hour usd_per_billion_tokens"},
};

static void test_json_has_the_keys_of_the_contract(void **state)
{
    (void)state;
    struct dtp_report *r = made_up();
    json_t *object = to_json(r);
    assert_string_equal(json_string_value(json_object_get(object, "schema")), "dtplan.plan/1");
    for (size_t i = 0; i < sizeof contract / sizeof *contract; i++) {
        char keys[512];
        snprintf(keys, sizeof keys, "%s", contract[i].keys);
        for (char *key = strtok(keys, " "); key; key = strtok(NULL, " "))
            assert_false(json_is_null(at(object, contract[i].section, key)));
    }
    json_decref(object);
    free(r);
}

static void test_json_values(void **state)
{
    (void)state;
    struct dtp_report *r = made_up();
    json_t *object = to_json(r);
    assert_int_equal(json_integer_value(at(object, "model", "params")), 6738415616);
    assert_string_equal(json_string_value(at(object, "memory", "verdict")), "fits");
    assert_int_equal(json_integer_value(at(object, "memory", "allocated_peak_bytes")), 30 * GIB);
    assert_int_equal(json_integer_value(at(object, "communication", "total_bytes")), 48000000000);
    assert_true(json_real_value(at(object, "time", "step_s")) == 0.4);
    assert_true(json_real_value(at(object, "cost", "job_usd_per_hour")) == 24);
    /* 24 $/h over 40960 tokens/s x 3600 s/h = 0.147456e9 tokens/h */
    assert_true(fabs(json_real_value(at(object, "cost", "usd_per_billion_tokens")) - 24 / 0.147456) < 1e-9);
    assert_string_equal(json_string_value(at(object, "cost", "price_date")), "2026-01");
    json_t *phase = json_object_get(at(object, "memory", "phases"), "early_backward");
    assert_int_equal(json_integer_value(json_object_get(phase, "optimizer_bytes")), 8 * GIB);
    json_decref(object);
    free(r);
}

static void test_json_without_price_or_finite_numbers_is_null(void **state)
{
    (void)state;
    struct dtp_report *r = made_up();
    r->money.known = false;
    r->prediction.time.step_s = INFINITY;
    r->prediction.throughput.mfu = NAN;
    snprintf(r->job.transformer.name, sizeof r->job.transformer.name, "\xff\xfe");
    json_t *object = to_json(r);
    assert_true(json_is_null(at(object, "cost", "gpu_hour_usd_typical")));
    assert_true(json_is_null(at(object, "time", "step_s")));
    assert_true(json_is_null(at(object, "throughput", "mfu")));
    assert_true(json_is_null(at(object, "model", "name")));
    json_decref(object);
    free(r);
}

/* ---- CSV and catalogue ------------------------------------------------------------------------------------------ */

static void test_csv(void **state)
{
    (void)state;
    struct dtp_report *slow = made_up(), *fast = made_up();
    char *text = NULL;
    size_t bytes = 0, fields[4] = {0};
    FILE *file = open_memstream(&text, &bytes);
    dtp_report_csv(comparison(fast, slow), 3, file);
    fclose(file);
    golden_compare("compare.csv", text);
    size_t row = 0;
    for (const char *c = text; *c; c++) {
        fields[row] += *c == ',';
        row += *c == '\n';
    }
    assert_int_equal(row, 4);
    for (row = 1; row < 4; row++) /* no text of this table holds a comma */
        assert_int_equal(fields[row], fields[0]);
    free(text);
    free(slow);
    free(fast);
}

static void test_catalog_texts(void **state)
{
    (void)state;
    static const char *const goldens[] = {"catalog_gpus.txt", "catalog_machines.txt", "catalog_models.txt"};
    struct dtp_catalog catalog = fixture_catalog();
    struct dtp_faults faults = {0};
    for (int table = 0; table < 3; table++) {
        char *text = NULL;
        size_t bytes = 0;
        struct dtp_page page = {.file = open_memstream(&text, &bytes), .utf8 = true};
        assert_int_equal(dtp_report_catalog(&catalog, (enum dtp_catalog_table)table, DTP_CATALOG_TEXT, &page, &faults),
                         DTP_OK);
        fclose(page.file);
        text = folded_text(text, DTP_PAGE_COLUMNS);
        golden_compare(goldens[table], text);
        free(text);
    }
}

/* Lines that are too wide are broken at blanks, below the last field of their left half; colours take no column. */
static void test_fold(void **state)
{
    (void)state;
    static const struct {
        int columns;
        const char *text, *folded;
    } cases[] = {
        {20, "short\n", "short\n"},
        {20, "  label   one two three four\n", "  label   one two\n          three four\n"},
        {20, "  one two three four five\n", "  one two three four\n      five\n"},
        {20, "  label      \n\nend", "  label\n\nend"},
        {20, "a-word-that-is-wider-than-that and more\n", "a-word-that-is-wider-than-that\n    and more\n"},
        {10, "\033[0;1m12345\033[0m 7890 1\n", "\033[0;1m12345\033[0m 7890\n    1\n"},
        {8, "████ ███ ██\n", "████ ███\n    ██\n"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *text = folded_text(strdup(cases[i].text), cases[i].columns);
        assert_string_equal(text, cases[i].folded);
        free(text);
    }
}

/* A command that is broken is still one command for a shell, and nothing in quotes is broken. */
static void test_wrapped_command(void **state)
{
    (void)state;
    char *text = NULL;
    size_t bytes = 0;
    struct dtp_page page = {.file = open_memstream(&text, &bytes), .columns = 40};
    dtp_page_wrap_command(&page, 0, 4, "dtplan plan --name 'a name of many words, more than fit' --gpus 8");
    fclose(page.file);
    assert_string_equal(text, "dtplan plan --name \\\n    'a name of many words, more than fit' \\\n    --gpus 8\n");
    free(text);
}

static void test_figures(void **state)
{
    (void)state;
    static const struct {
        double value;
        const char *text;
    } cases[] = {{0, "0.00"},      {0.0421, "0.0421"}, {4.266, "4.27"},        {12.34, "12.3"}, {131.7, "132"},
                 {999.7, "1,000"}, {-3.21, "-3.21"},   {1234567, "1,234,567"}, {1e16, "1e+16"}, {2e-5, "2e-05"}};
    char text[32];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_string_equal(dtp_page_figure(cases[i].value, text, sizeof text), cases[i].text);
    assert_string_equal(dtp_page_grouped(0, text, sizeof text), "0");
    assert_string_equal(dtp_page_grouped(6738415616, text, sizeof text), "6,738,415,616");
    assert_string_equal(dtp_page_grouped(UINT64_MAX, text, sizeof text), "18,446,744,073,709,551,615");
    assert_string_equal(dtp_unit_memory(GIB).name, "GiB");
    assert_string_equal(dtp_unit_memory(1 << 20).name, "MiB");
    assert_string_equal(dtp_unit_time(0.4).name, "ms");
    assert_string_equal(dtp_unit_traffic(700000000).name, "GB");
    assert_int_equal(dtp_page_width("h × d"), 5);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plan_text),    cmocka_unit_test(test_plan_text_of_trouble),
        cmocka_unit_test(test_frozen_words), cmocka_unit_test(test_solutions_text),
        cmocka_unit_test(test_comparison),   cmocka_unit_test(test_json_has_the_keys_of_the_contract),
        cmocka_unit_test(test_json_values),  cmocka_unit_test(test_json_without_price_or_finite_numbers_is_null),
        cmocka_unit_test(test_csv),          cmocka_unit_test(test_catalog_texts),
        cmocka_unit_test(test_fold),         cmocka_unit_test(test_wrapped_command),
        cmocka_unit_test(test_figures),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
