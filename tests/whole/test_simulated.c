/* Simulated jobs and their reports: what they say must add up, whatever the program. */
#include "sim/simulated.h"
#include "runtime/runtimes.h"

#include "sim/critical_path.h"
#include "sim/memory_curve.h"
#include "sim/op_time.h"
#include "page/output_file.h"
#include "record/simulation_report.h"
#include "base/table.h"
#include "decide/whatif.h"

#include <jansson.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

#include "lib/folded_text.h"
#include "lib/hardware.h"
#include "lib/scenario_fixture.h"
#include "lib/step_fixture.h"

/* ---- jobs -------------------------------------------------------------------------------------------------------- */

static struct dtp_job small_job(enum dtp_strategy strategy, uint32_t accumulate)
{
    struct dtp_faults faults = {0};
    struct dtp_job job = {.node_gpus = 8};
    job.transformer = dtp_transformer_default();
    snprintf(job.transformer.name, sizeof job.transformer.name, "small \"\\\x01\xff model");
    job.transformer.layers = 6;
    job.transformer.hidden = 1024;
    job.transformer.heads = job.transformer.kv_heads = 8;
    job.transformer.head_dim = 128;
    job.transformer.ffn = 2816;
    job.transformer.vocab = 32000;
    job.cluster = test_cluster(test_h200(), 8, 8);
    job.asked = dtp_plan_default();
    job.asked.strategy = strategy;
    job.asked.accumulate = accumulate;
    job.asked.micro_batch = 2;
    job.plan = job.asked;
    if (dtp_plan_resolve(&job.plan, &job.transformer, &job.cluster, &faults) != DTP_OK)
        fail_msg("%s", faults.text[0]);
    return job;
}

static struct dtp_simulated simulate(enum dtp_strategy strategy, uint32_t accumulate)
{
    struct dtp_faults faults = {0};
    struct dtp_simulated simulated;
    struct dtp_job job = small_job(strategy, accumulate);
    struct dtp_simulation_options options = dtp_simulation_options_default();
    if (dtp_simulated_create(&job, &options, &simulated, &faults) != DTP_OK)
        fail_msg("%s", faults.text[0]);
    return simulated;
}

/* AdamW on the host begins with backward's first gradients, unless it needs the norm of all: the closed form and the
 * step program agree in that. Of 8 blocks at h 4096 it takes longer than the device, so that what hides it counts. */
static void test_host_update_beside_backward(void **state)
{
    (void)state;
    for (int i = 0; i < 4; i++) {
        struct dtp_faults faults = {0};
        struct dtp_simulated s;
        struct dtp_prediction closed;
        struct dtp_simulation_options options = dtp_simulation_options_default();
        struct dtp_job job = small_job(DTP_FULL_SHARD, 1);
        job.transformer.layers = 8, job.transformer.hidden = 4096, job.transformer.ffn = 11008;
        job.transformer.heads = job.transformer.kv_heads = 32;
        job.asked.runtime = &dtp_runtime_dtplan;
        job.asked.offload = i % 2 ? DTP_OFFLOAD_PARAMS : DTP_OFFLOAD_OPTIMIZER;
        job.asked.clip_norm = i / 2 ? 1 : 0;
        job.plan = job.asked;
        if (dtp_plan_resolve(&job.plan, &job.transformer, &job.cluster, &faults) != DTP_OK ||
            dtp_simulated_create(&job, &options, &s, &faults) != DTP_OK)
            fail_msg("%s", faults.text[0]);
        dtp_closed_form(&job.transformer, &job.cluster, &job.plan, &closed);
        assert_near(closed.time.step_s, s.prediction.time.step_s, 0.06);
        dtp_simulated_release(&s);
    }
}

/* Gradients that copy engines exchange take no SM from the kernels beside them, and what adds them up costs less than
 * that; the closed form agrees with both steps, and a buffer as large as a block's fp32 gradients is added. */
static void test_exchanged_gradients(void **state)
{
    (void)state;
    double step_s[2], slowed_s[2];
    uint64_t bytes[2];
    for (int copy = 0; copy < 2; copy++) {
        struct dtp_faults faults = {0};
        struct dtp_simulated s;
        struct dtp_simulation_options options = dtp_simulation_options_default();
        struct dtp_job job = small_job(DTP_SHARD_GRAD_OP, 1);
        job.transformer.layers = 8, job.transformer.hidden = 4096, job.transformer.ffn = 11008;
        job.transformer.heads = job.transformer.kv_heads = 32;
        job.asked.runtime = &dtp_runtime_dtplan, job.asked.micro_batch = 8;
        job.asked.executor.reduce_engine = copy ? DTP_ENGINE_COPY : DTP_ENGINE_SM;
        job.plan = job.asked;
        if (dtp_plan_resolve(&job.plan, &job.transformer, &job.cluster, &faults) != DTP_OK ||
            dtp_simulated_create(&job, &options, &s, &faults) != DTP_OK)
            fail_msg("%s", faults.text[0]);
        assert_near(s.closed.time.step_s, s.prediction.time.step_s, 0.03);
        step_s[copy] = s.prediction.time.step_s;
        slowed_s[copy] = s.timeline.compute_s - s.kernels_alone_s;
        bytes[copy] = s.prediction.memory.allocated_peak_bytes;
        dtp_simulated_release(&s);
    }
    assert_true(step_s[1] < step_s[0] && slowed_s[1] < slowed_s[0]);
    uint64_t block = 4 * (4 * UINT64_C(4096) * 4096 + 3 * UINT64_C(4096) * 11008 + 2 * 4096);
    assert_true(bytes[1] - bytes[0] >= block && bytes[1] - bytes[0] < block + 8 * 4 * 256);
}

static const enum dtp_strategy strategies[] = {DTP_DDP, DTP_ZERO1, DTP_FULL_SHARD, DTP_SHARD_GRAD_OP};
#define STRATEGIES (sizeof strategies / sizeof *strategies)

/* A rank whose experts get half as many rows again: their products, activations and exchanges take so much longer,
 * where nothing shares the machine, and nothing else does. Of a layer, forward: two products, an activation, two
 * exchanges; backward four, one and two. */
static void test_rows_of_the_fullest_rank(void **state)
{
    (void)state;
    struct dtp_faults faults = {0};
    struct dtp_simulated even, filled;
    struct dtp_job job = small_job(DTP_DDP, 1);
    struct dtp_simulation_options options = dtp_simulation_options_default();
    job.transformer.experts = 8, job.transformer.experts_per_token = 2, job.transformer.expert_ffn = 512;
    job.plan = job.asked;
    job.plan.runtime = &dtp_runtime_dtplan, job.plan.ep = 4;
    if (dtp_plan_resolve(&job.plan, &job.transformer, &job.cluster, &faults) != DTP_OK)
        fail_msg("%s", faults.text[0]);
    options.contention = options.power_headroom = false;
    assert_int_equal(dtp_simulated_create(&job, &options, &even, &faults), DTP_OK);
    options.expert_load = 1.5;
    assert_int_equal(dtp_simulated_create(&job, &options, &filled, &faults), DTP_OK);
    uint32_t longer = 0;
    for (size_t i = 0; i < even.timeline.op_count; i++) {
        const struct dtp_op *op = &dtp_program_ops(even.program)[i];
        double was = even.timeline.span[i].end_s - even.timeline.span[i].start_s;
        double is = filled.timeline.span[i].end_s - filled.timeline.span[i].start_s;
        bool rows = dtp_op_has_expert_rows(op);
        longer += rows;
        if (op->kind != DTP_OP_HOST_WAIT && fabs(is - (rows ? 1.5 : 1) * was) > 1e-9)
            fail_msg("operation %zu, %s %s: %g s, was %g", i, dtp_op_kind_text(op->kind), op->name, is, was);
    }
    assert_int_equal(longer, job.transformer.layers * (2 + 1 + 2 + 4 + 1 + 2));
    assert_true(filled.prediction.time.step_s > even.prediction.time.step_s);
    assert_true(filled.prediction.time.step_s < 1.5 * even.prediction.time.step_s);
    dtp_simulated_release(&even);
    dtp_simulated_release(&filled);
}

static void test_prediction_adds_up(void **state)
{
    (void)state;
    for (size_t i = 0; i < 2 * STRATEGIES; i++) {
        struct dtp_simulated s = simulate(strategies[i / 2], i % 2 ? 3 : 1);
        const struct dtp_time *t = &s.prediction.time;
        assert_near(t->compute_s + t->optimizer_s + t->exposed_communication_s + t->exposed_offload_s + t->bubble_s,
                    t->step_s, 1e-9);
        /* Nothing is recomputed, so that forward and backward have no other parts. */
        assert_near(t->matmul_s + t->attention_s + t->memory_bound_s + t->loss_s + t->beside_s + t->launch_wait_s,
                    t->compute_s, 1e-9);
        double tokens = 2.0 * (double)s.job.plan.sequence * (i % 2 ? 3 : 1) * 8;
        assert_near(s.prediction.throughput.tokens_per_s * t->step_s, tokens, 1e-9);
        const struct dtp_memory *m = &s.prediction.memory;
        uint64_t owners = 0;
        for (int owner = 0; owner < DTP_OWNER_COUNT; owner++)
            owners += m->phase_bytes[m->peak_phase][owner];
        assert_int_equal(owners, s.placement.live_peak_bytes);
        assert_true(m->allocated_peak_bytes >= owners && m->reserved_peak_bytes >= m->allocated_peak_bytes);
        /* Kernels share the GPU with collectives, so that they cannot be faster than alone. */
        assert_true(s.kernels_alone_s <= s.timeline.compute_s * (1 + 1e-9) + s.timeline.host_bound_s);
        dtp_simulated_release(&s);
    }
}

static void test_refusal(void **state)
{
    (void)state;
    struct dtp_faults faults = {0};
    struct dtp_simulated simulated;
    struct dtp_job job = small_job(DTP_FULL_SHARD, 1);
    struct dtp_simulation_options options = dtp_simulation_options_default();
    job.plan.accumulate = 100000; /* some 30 million operations */
    assert_int_equal(dtp_simulated_create(&job, &options, &simulated, &faults), DTP_BAD_INPUT);
    assert_null(simulated.program);
    assert_true(faults.count > 0);
}

/* A pool that grows by pages needs no new segment for what does not fit the free ones; and chance comes from the seed
 * alone. */
static void test_expandable_segments_and_scatter(void **state)
{
    (void)state;
    struct dtp_simulation_options options = dtp_simulation_options_default();
    struct dtp_job job = small_job(DTP_FULL_SHARD, 2);
    uint64_t reserved[2], closed[2];
    for (int expandable = 0; expandable < 2; expandable++) {
        struct dtp_simulated s;
        job.plan.expandable_segments = expandable;
        assert_int_equal(dtp_simulated_create(&job, &options, &s, NULL), DTP_OK);
        reserved[expandable] = s.prediction.memory.reserved_peak_bytes;
        closed[expandable] = s.closed.memory.reserved_peak_bytes;
        assert_true(reserved[expandable] >= s.prediction.memory.allocated_peak_bytes);
        assert_int_equal(s.samples, 0);
        options.seed = 3;
        assert_int_equal(dtp_simulated_scatter(&s, &options, 0, 500, NULL), DTP_OK);
        struct dtp_step_quantiles first = s.quantiles;
        assert_true(first.p50_s > 0 && first.p50_s <= first.p95_s && first.p95_s <= first.p99_s);
        assert_int_equal(dtp_simulated_scatter(&s, &options, 0, 500, NULL), DTP_OK);
        assert_memory_equal(&first, &s.quantiles, sizeof first);
        assert_int_equal(dtp_simulated_scatter(&s, &options, 0.2, 500, NULL), DTP_OK);
        assert_true(s.quantiles.p99_s > first.p99_s);
        dtp_simulated_release(&s);
    }
    /* Holes in a range remain, and its end is a page of 20 MiB, so in a job this small a little more is possible. */
    assert_true((double)reserved[1] <= 1.05 * (double)reserved[0] && closed[1] <= closed[0]);
}

/* A small job with its scenario: `key` is set on it, NULL none. */
static struct dtp_scenario *small_scenario(const char *key, const char *value)
{
    static const char *const settings[][2] = {{"layers", "6"},     {"hidden", "1024"}, {"heads", "8"},
                                              {"ffn", "2816"},     {"vocab", "32000"}, {"gpus", "8"},
                                              {"micro_batch", "2"}};
    struct dtp_faults faults = {0};
    struct dtp_scenario *scenario;
    assert_int_equal(dtp_scenario_create(&scenario, &faults), DTP_OK);
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++)
        dtp_scenario_set(scenario, settings[i][0], settings[i][1], "test", 0, &faults);
    if (key)
        dtp_scenario_set(scenario, key, value, "test", 0, &faults);
    assert_int_equal(faults.count, 0);
    return scenario;
}

/* whatif asks the simulation through the same door as the closed form; what has no program is a refused row. */
static void test_whatif_by_simulation(void **state)
{
    (void)state;
    struct dtp_faults faults = {0};
    struct dtp_catalog catalog = fixture_catalog();
    struct dtp_scenario *scenario = small_scenario(NULL, NULL);
    struct dtp_predictor predictor = dtp_predictor_simulated();
    struct dtp_whatif *whatif = malloc(sizeof *whatif);
    assert_non_null(whatif);
    assert_int_equal(dtp_whatif(scenario, &catalog, &predictor, NULL, whatif, &faults), DTP_OK);
    assert_true(whatif->count > 5);
    for (size_t i = 0; i < whatif->count; i++)
        if (strcmp(whatif->rows[i].flags, "--checkpointing full") == 0) {
            assert_true(whatif->rows[i].device_delta_bytes < 0);
            assert_true(whatif->rows[i].step_delta_s > 0);
        }
    free(whatif);
    dtp_scenario_destroy(scenario);
}

/* Without the limit FSDP1's host runs ahead and the allocator keeps what the device still uses. */
static void test_limit_all_gathers(void **state)
{
    (void)state;
    struct dtp_faults faults = {0};
    struct dtp_catalog catalog = fixture_catalog();
    struct dtp_scenario *scenario = small_scenario("fsdp1", "true");
    struct dtp_predictor predictor = dtp_predictor_simulated();
    struct dtp_whatif *whatif = malloc(sizeof *whatif);
    assert_non_null(whatif);
    assert_int_equal(dtp_whatif(scenario, &catalog, &predictor, NULL, whatif, &faults), DTP_OK);
    bool found = false;
    for (size_t i = 0; i < whatif->count; i++) {
        const struct dtp_whatif_row *row = &whatif->rows[i];
        if (strcmp(row->flags, "--no-limit-all-gathers") != 0)
            continue;
        found = true;
        assert_int_equal(row->question, DTP_QUESTION_LIMIT_ALL_GATHERS);
        assert_true(row->device_delta_bytes > 0);
        assert_non_null(strstr(row->why, "allocator's cache"));
    }
    assert_true(found);
    free(whatif);
    dtp_scenario_destroy(scenario);
}

/* ---- the critical path ------------------------------------------------------------------------------------------- */

static void test_path_by_hand(void **state)
{
    (void)state;
    struct dtp_program *p = step_begin();
    struct dtp_cluster cluster = test_cluster(test_a100(), 8, 8);
    struct dtp_transformer transformer = dtp_transformer_default();
    struct dtp_simulation_options options = dtp_simulation_options_default();
    struct dtp_timeline timeline;
    struct dtp_path_row rows[DTP_PATH_MAX_ROWS];
    uint32_t group = dtp_program_add_group(p, (struct dtp_program_group){8, 1});
    transformer.layers = transformer.hidden = transformer.heads = transformer.kv_heads = transformer.head_dim = 64;
    options.compute_factor = 1;
    struct dtp_new_op mark = {
        .kind = DTP_OP_MARK, .stream = DTP_STREAM_COMPUTE, .layer = DTP_NO_LAYER, .name = "forward"};
    dtp_program_add_op(p, &mark, NULL, 0);
    dtp_op_id kernel = step_kernel(p, DTP_STREAM_COMPUTE, 1e9, 0); /* layer 0 */
    dtp_op_id gather = step_collective(p, DTP_OP_ALL_GATHER, DTP_STREAM_GATHER, group, 1e8);
    dtp_program_depend(p, gather, kernel);
    mark.name = "backward";
    dtp_program_add_op(p, &mark, NULL, 0);
    dtp_op_id last = step_kernel(p, DTP_STREAM_COMPUTE, 2e9, 0);
    dtp_program_depend(p, last, gather);
    step_seal(p);
    assert_int_equal(dtp_simulate(p, &cluster, &options, &timeline, NULL), DTP_OK);
    size_t count = dtp_critical_path(p, &timeline, rows);
    double alone_s[3];
    for (int i = 0; i < 3; i++)
        alone_s[i] = dtp_op_isolated_s(p, &dtp_program_ops(p)[(uint32_t[]){kernel.index, gather.index, last.index}[i]],
                                       &cluster);
    assert_int_equal(count, 2);
    assert_string_equal(rows[0].phase, "forward");
    assert_near(rows[0].kernels_s, alone_s[0], 1e-9);
    assert_near(rows[0].collectives_s, alone_s[1], 1e-9);
    assert_string_equal(rows[1].phase, "backward");
    assert_near(rows[1].kernels_s, alone_s[2], 1e-9);
    dtp_timeline_release(&timeline);
    dtp_program_destroy(p);
}

static void test_path_is_the_step(void **state)
{
    (void)state;
    for (size_t i = 0; i < 2 * STRATEGIES; i++) {
        struct dtp_simulated s = simulate(strategies[i / 2], i % 2 ? 3 : 1);
        struct dtp_path_row rows[DTP_PATH_MAX_ROWS];
        size_t count = dtp_critical_path(s.program, &s.timeline, rows), ops = 0;
        double sum_s = 0;
        for (size_t k = 0; k < count; k++) {
            sum_s += rows[k].seconds;
            ops += rows[k].op_count;
            assert_near(rows[k].kernels_s + rows[k].collectives_s + rows[k].copies_s + rows[k].host_s, rows[k].seconds,
                        1e-9);
            assert_true(rows[k].micro_steps <= s.job.plan.accumulate);
        }
        assert_near(sum_s, s.timeline.step_s, 1e-9);
        assert_true(ops > 0 && ops <= s.timeline.critical_count);
        dtp_simulated_release(&s);
    }
}

/* ---- memory over time
 * ------------------------------------------------------------------------------------------------ */

static void test_curve(void **state)
{
    (void)state;
    for (size_t i = 0; i < 2 * STRATEGIES; i++) {
        struct dtp_simulated s = simulate(strategies[i / 2], i % 2 ? 3 : 1);
        struct dtp_host_arena arena = {0};
        const struct dtp_memory_point *points;
        size_t count;
        uint64_t peak = 0;
        assert_true(dtp_memory_curve(s.program, &s.timeline, &arena, &points, &count));
        for (size_t k = 0; k < count; k++) {
            uint64_t sum = 0;
            for (int owner = 0; owner < DTP_OWNER_COUNT; owner++)
                sum += points[k].bytes[owner];
            assert_int_equal(sum, points[k].total_bytes);
            assert_true(k == 0 || points[k].time_s >= points[k - 1].time_s);
            peak = sum > peak ? sum : peak;
        }
        assert_int_equal(peak, s.placement.live_peak_bytes);
        assert_int_equal(points[0].total_bytes, points[count - 1].total_bytes); /* a step leaves what it found */
        dtp_host_arena_release(&arena);
        dtp_simulated_release(&s);
    }
}

/* ---- tables and traces
 * ----------------------------------------------------------------------------------------------- */

static const struct dtp_pipeline_stages no_stages;

static char *text_of(const struct dtp_simulated *s, int what, size_t *bytes)
{
    struct dtp_faults faults = {0};
    char *text = NULL;
    enum dtp_status status = DTP_OK;
    FILE *file = open_memstream(&text, bytes);
    assert_non_null(file);
    switch (what) {
    case 0: status = dtp_simulation_write_trace(s, file, &faults); break;
    case 1: dtp_simulation_write_timeline(s, file); break;
    case 2: status = dtp_simulation_write_memory(s, file, &faults); break;
    case 5: status = dtp_program_listing(s, &(struct dtp_page){.file = file}, &faults); break;
    case 6: status = dtp_program_json(s, file, &faults); break;
    case 3: status = dtp_simulation_json(s, &no_stages, file, &faults); break;
    default: dtp_simulation_text(s, &no_stages, &(struct dtp_page){.file = file});
    }
    assert_int_equal(status, DTP_OK);
    fclose(file);
    return text;
}

static void check_trace(const struct dtp_simulated *s, const char *text)
{
    json_t *trace = json_loads(text, JSON_REJECT_DUPLICATES, NULL), *event;
    size_t at, slices = 0, timed = 0, starts = 0, ends = 0, counters = 0;
    double step_us = s->timeline.step_s * 1e6;
    assert_non_null(trace);
    json_array_foreach(json_object_get(trace, "traceEvents"), at, event)
    {
        const char *phase = json_string_value(json_object_get(event, "ph"));
        double ts = json_number_value(json_object_get(event, "ts"));
        double duration = json_number_value(json_object_get(event, "dur"));
        assert_true(ts >= 0 && duration >= 0 && ts + duration <= step_us + 0.002);
        slices += strcmp(phase, "X") == 0;
        starts += strcmp(phase, "s") == 0;
        ends += strcmp(phase, "f") == 0;
        counters += strcmp(phase, "C") == 0;
    }
    for (size_t i = 0; i < s->timeline.op_count; i++)
        timed += s->timeline.span[i].end_s > s->timeline.span[i].start_s;
    assert_int_equal(slices, timed);
    assert_true(starts == ends && starts > 0 && counters > 2);
    json_decref(trace);
}

static void check_table(const char *text, size_t bytes, size_t rows)
{
    struct dtp_faults faults = {0};
    struct dtp_table *table;
    assert_int_equal(dtp_table_parse("table", text, bytes, &table, &faults), DTP_OK);
    if (rows)
        assert_int_equal(dtp_table_row_count(table), rows);
    dtp_table_destroy(table);
}

static void test_files(void **state)
{
    (void)state;
    for (size_t i = 0; i < STRATEGIES; i++) {
        struct dtp_simulated s = simulate(strategies[i], 2);
        size_t bytes;
        char *text = text_of(&s, 0, &bytes);
        check_trace(&s, text);
        free(text);
        text = text_of(&s, 1, &bytes);
        check_table(text, bytes, s.timeline.op_count);
        size_t critical = 0;
        for (const char *c = text; (c = strstr(c, ",1,")); c++)
            critical++;
        assert_true(critical > 0);
        free(text);
        text = text_of(&s, 2, &bytes);
        check_table(text, bytes, 0);
        free(text);
        dtp_simulated_release(&s);
    }
}

static void test_reports(void **state)
{
    (void)state;
    for (size_t i = 0; i < STRATEGIES; i++) {
        struct dtp_simulated s = simulate(strategies[i], 2);
        size_t bytes;
        char *text = text_of(&s, 3, &bytes);
        json_t *object = json_loads(text, JSON_REJECT_DUPLICATES, NULL);
        assert_non_null(object);
        assert_string_equal(json_string_value(json_object_get(object, "schema")), "dtplan.simulation/1");
        json_decref(object);
        free(text);
        text = folded_text(text_of(&s, 4, &bytes), DTP_PAGE_COLUMNS);
        char *rest = text, *line;
        while ((line = strtok_r(rest, "\n", &rest)))
            if (dtp_page_width(line) > DTP_PAGE_COLUMNS)
                fail_msg("wider than the page: %s", line);
        free(text);
        dtp_simulated_release(&s);
    }
}

/* Layers that repeat are one line; each operation that takes time is in the JSON, and what takes time alone is what the
 * sections sum up to. */
static void test_listing(void **state)
{
    (void)state;
    for (size_t i = 0; i < STRATEGIES; i++) {
        struct dtp_simulated s = simulate(strategies[i], 4);
        size_t bytes;
        char *text = folded_text(text_of(&s, 5, &bytes), DTP_PAGE_COLUMNS), *rest = text, *line;
        assert_non_null(strstr(text, "as layer "));
        assert_non_null(strstr(text, "as micro-step "));
        while ((line = strtok_r(rest, "\n", &rest)))
            if (dtp_page_width(line) > DTP_PAGE_COLUMNS)
                fail_msg("wider than the page: %s", line);
        free(text);
        text = text_of(&s, 6, &bytes);
        json_t *object = json_loads(text, JSON_REJECT_DUPLICATES, NULL);
        assert_int_equal(json_array_size(json_object_get(object, "ops")), s.timeline.op_count);
        json_decref(object);
        free(text);
        dtp_simulated_release(&s);
    }
}

/* ---- files that are whole or not there
 * ------------------------------------------------------------------------------- */

static void test_output_file(void **state)
{
    (void)state;
    struct dtp_faults faults = {0};
    struct dtp_output_file output;
    char path[] = "/tmp/dtplan-test-XXXXXX", text[32] = "";
    int descriptor = mkstemp(path);
    assert_true(descriptor >= 0);
    assert_int_equal(write(descriptor, "old", 3), 3);
    close(descriptor);
    assert_int_equal(dtp_output_open(path, &output, &faults), DTP_OK);
    fputs("new", output.file);
    assert_int_equal(dtp_output_end(&output, DTP_NO, &faults), DTP_NO);
    FILE *file = fopen(path, "r");
    assert_non_null(fgets(text, sizeof text, file));
    fclose(file);
    assert_string_equal(text, "old");
    assert_int_equal(dtp_output_open(path, &output, &faults), DTP_OK);
    fputs("new", output.file);
    assert_int_equal(dtp_output_close(&output, &faults), DTP_OK);
    file = fopen(path, "r");
    assert_non_null(fgets(text, sizeof text, file));
    fclose(file);
    assert_string_equal(text, "new");
    unlink(path);
    /* A link is written through: to rename over /dev/stdout would replace it for everyone. */
    char target[] = "/tmp/dtplan-test-XXXXXX";
    struct stat information;
    close(mkstemp(target));
    assert_int_equal(symlink(target, path), 0);
    assert_int_equal(dtp_output_open(path, &output, &faults), DTP_OK);
    fputs("new", output.file);
    assert_int_equal(dtp_output_close(&output, &faults), DTP_OK);
    assert_true(lstat(path, &information) == 0 && S_ISLNK(information.st_mode));
    assert_true(stat(target, &information) == 0 && information.st_size == 3);
    unlink(path);
    unlink(target);
    /* What a link leads to is tried, though it is not there yet. */
    assert_int_equal(symlink("/nonexistent/file", path), 0);
    assert_int_equal(dtp_output_try(path, &faults), DTP_ENVIRONMENT);
    unlink(path);
    assert_int_equal(symlink(path, path), 0);
    assert_int_equal(dtp_output_try(path, &faults), DTP_ENVIRONMENT);
    unlink(path);
    assert_int_equal(dtp_output_open("/nonexistent/file", &output, &faults), DTP_ENVIRONMENT);
    if (access("/dev/full", W_OK) == 0) {
        assert_int_equal(dtp_output_open("/dev/full", &output, &faults), DTP_OK);
        fputs("new", output.file);
        assert_int_equal(dtp_output_close(&output, &faults), DTP_ENVIRONMENT);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows_of_the_fullest_rank),
        cmocka_unit_test(test_prediction_adds_up),
        cmocka_unit_test(test_host_update_beside_backward),
        cmocka_unit_test(test_exchanged_gradients),
        cmocka_unit_test(test_refusal),
        cmocka_unit_test(test_whatif_by_simulation),
        cmocka_unit_test(test_path_by_hand),
        cmocka_unit_test(test_path_is_the_step),
        cmocka_unit_test(test_curve),
        cmocka_unit_test(test_files),
        cmocka_unit_test(test_reports),
        cmocka_unit_test(test_expandable_segments_and_scatter),
        cmocka_unit_test(test_limit_all_gathers),
        cmocka_unit_test(test_listing),
        cmocka_unit_test(test_output_file),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
