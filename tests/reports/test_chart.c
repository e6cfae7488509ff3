/* What charts show of a table: rows that tell apart, what is left out, the front, the fit; and that no text of a table
 * comes out with what would break a script. */
#include "chart/chart_data.h"
#include "chart/chart_source.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static struct dtp_faults faults;

static struct dtp_table *table_of(const char *text)
{
    struct dtp_table *table;
    memset(&faults, 0, sizeof faults);
    assert_int_equal(dtp_table_parse("t.csv", text, strlen(text), &table, &faults), DTP_OK);
    return table;
}

static enum dtp_status read_chart(enum dtp_chart chart, const char *text, struct dtp_chart_data *out)
{
    struct dtp_table *table = table_of(text);
    enum dtp_status status = dtp_chart_data_read(chart, table, NULL, 0, out, &faults);
    dtp_table_destroy(table);
    return status;
}

static const char scaling[] =
    "model,strategy,gpu,gpus_count,shard_group_gpus_count,verdict,refused_because,tokens_per_s,"
    "scaling_efficiency_fraction\n"
    "m,zero1,h100,16,16,fits,,190,0.95\n"
    "m,zero1,h100,8,8,fits,,100,1\n"
    "m,ddp,h100,8,1,oom,,90,1\n"
    "m,ddp,h100,16,1,fits,,170,0.9\n"
    "m,zero2,h100,8,8,,no zero2 here,,\n";

/* Lines by strategy: the shard group follows from strategy and GPUs and is in no label. Refused rows and those out of
 * memory are no points. ideal = 100 / 8 * 16 = 200. */
static void test_scaling(void **state)
{
    (void)state;
    struct dtp_chart_data data;
    assert_int_equal(read_chart(DTP_CHART_SCALING, scaling, &data), DTP_OK);
    assert_int_equal(data.row_count, 3);
    assert_int_equal(data.series_count, 2);
    assert_string_equal(data.rows[0].label, "zero1");
    assert_true(data.rows[0].value[0] == 8 && data.rows[0].value[1] == 100 && data.rows[0].value[3] == 100);
    assert_true(data.rows[1].value[0] == 16 && data.rows[1].value[3] == 200);
    assert_string_equal(data.rows[2].label, "ddp");
    assert_string_equal(data.shared, "m \u00b7 h100");
    assert_true(data.refused == 1 && data.out_of_memory == 1);
    dtp_chart_data_destroy(&data);
}

/* A schedule is of pipelines: tables have its default in rows without one. */
static void test_schedule_is_of_stages(void **state)
{
    (void)state;
    struct dtp_chart_data data;
    for (int stages = 1; stages <= 2; stages++) {
        char text[300];
        snprintf(text, sizeof text,
                 "model,gpus_count,schedule,pp_count,verdict,tokens_per_s,scaling_efficiency_fraction\n"
                 "m,8,1f1b,1,fits,100,1\nm,16,1f1b,%d,fits,190,0.95\n",
                 stages);
        assert_int_equal(read_chart(DTP_CHART_SCALING, text, &data), DTP_OK);
        assert_string_equal(data.shared, stages > 1 ? "m \u00b7 1f1b" : "m");
        dtp_chart_data_destroy(&data);
    }
}

static void test_filter(void **state)
{
    (void)state;
    struct dtp_chart_data data;
    struct dtp_table *table = table_of(scaling);
    struct dtp_chart_filter filter = {"strategy", "ddp"};
    assert_int_equal(dtp_chart_data_read(DTP_CHART_SCALING, table, &filter, 1, &data, &faults), DTP_OK);
    assert_int_equal(data.row_count, 1);
    dtp_chart_data_destroy(&data);
    filter.value = "zero9";
    assert_int_equal(dtp_chart_data_read(DTP_CHART_SCALING, table, &filter, 1, &data, &faults), DTP_BAD_INPUT);
    filter.column = "colour";
    assert_int_equal(dtp_chart_data_read(DTP_CHART_SCALING, table, &filter, 1, &data, &faults), DTP_BAD_INPUT);
    assert_non_null(strstr(faults.text[1], "no column 'colour'"));
    dtp_table_destroy(table);
}

/* Days for 10^12 tokens = 10^12 / rate / 86400; dollars = 1000 x those of 10^9 tokens. Of (10 d, 5), (20 d, 3), (20 d,
 * 4) and (30 d, 3) the first two are beaten by none. */
static void test_pareto(void **state)
{
    (void)state;
    struct dtp_chart_data data;
    char text[600];
    double rate = 1e12 / 86400;
    snprintf(text, sizeof text,
             "gpu,verdict,tokens_per_s,usd_per_billion_tokens\na,fits,%.17g,4\na,fits,%.17g,3\nb,tight,%.17g,5\n"
             "b,fits,%.17g,3\nb,oom,1e9,1\nb,fits,,1\n",
             rate / 20, rate / 20, rate / 10, rate / 30);
    assert_int_equal(read_chart(DTP_CHART_PARETO, text, &data), DTP_OK);
    assert_int_equal(data.row_count, 4);
    assert_string_equal(data.rows[0].label, "b");
    assert_true(fabs(data.rows[0].value[0] - 10) < 1e-9 && data.rows[0].value[1] == 5000 && data.rows[0].value[2] == 1);
    assert_true(fabs(data.rows[1].value[0] - 20) < 1e-9 && data.rows[1].value[1] == 3000 && data.rows[1].value[2] == 1);
    assert_true(data.rows[2].value[2] == 0 && data.rows[3].value[2] == 0);
    dtp_chart_data_destroy(&data);
}

/* Parts of a bar add up to what it stands for: device memory = tensors + cache + context + NCCL; step = all its parts.
 */
static void test_bars_add_up(void **state)
{
    (void)state;
    struct dtp_chart_data data;
    const char text[] =
        "model,strategy,verdict,capacity_bytes,allocated_peak_bytes,reserved_peak_bytes,peak_params_bytes,peak_grads_"
        "bytes,"
        "peak_optimizer_bytes,peak_activations_bytes,peak_logits_bytes,peak_compute_weights_bytes,peak_gather_bytes,"
        "peak_reduce_bytes,peak_workspace_bytes,context_bytes,nccl_bytes,step_s,compute_s,matmul_s,attention_s,"
        "memory_bound_s,loss_s,optimizer_s,exposed_communication_s,exposed_offload_s,bubble_s\n"
        "m,ddp,fits,100,45,50,1,2,3,4,5,6,7,8,9,10,11,2,1,0.5,0.2,0.1,0.1,0.3,0.4,0,0.1\n"
        "m,zero1,fits,100,45,50,1,2,3,4,5,6,7,8,9,10,11,2,0.5,0.5,0.2,0.2,0.1,0.3,0.4,0,0.1\n";
    assert_int_equal(read_chart(DTP_CHART_STRATEGIES, text, &data), DTP_OK);
    double sum = 0;
    for (size_t i = 1; i < data.column_count; i++)
        sum += data.rows[0].value[i];
    assert_true(sum == 50 + 10 + 11);
    dtp_chart_data_destroy(&data);
    assert_int_equal(read_chart(DTP_CHART_STEP, text, &data), DTP_OK);
    for (size_t row = 0; row < 2; row++) {
        sum = 0;
        for (size_t i = 1; i < data.column_count; i++)
            sum += data.rows[row].value[i];
        assert_true(fabs(sum - 2) < 1e-12);
    }
    dtp_chart_data_destroy(&data);
}

/* time = 20 us + sent / 300 GB/s, exactly. */
static void test_fit(void **state)
{
    (void)state;
    double sent[] = {4e3, 1e6, 64e6, 1e9}, time_s[4], latency_s, bytes_per_s;
    for (int i = 0; i < 4; i++)
        time_s[i] = 20e-6 + sent[i] / 300e9;
    assert_true(dtp_chart_fit_bandwidth(sent, time_s, 4, &latency_s, &bytes_per_s));
    assert_true(fabs(latency_s - 20e-6) < 1e-12 && fabs(bytes_per_s / 300e9 - 1) < 1e-9);
    assert_false(dtp_chart_fit_bandwidth(sent, time_s, 2, &latency_s, &bytes_per_s));
    for (int i = 0; i < 4; i++)
        time_s[i] = 1e-3 / (i + 1); /* larger is faster: no rate */
    assert_false(dtp_chart_fit_bandwidth(sent, time_s, 4, &latency_s, &bytes_per_s));
}

static void test_labels(void **state)
{
    (void)state;
    char label[32];
    dtp_chart_label("a\"b'c,d\n\x1b[31m\xff", label, sizeof label);
    assert_string_equal(label, "a\u2019b\u2019c;d  [31m ");
    dtp_chart_label("\u00b7\u00b7\u00b7", label, 4); /* cut at a character */
    assert_string_equal(label, "\u00b7");
    dtp_chart_label("", label, sizeof label);
    assert_string_equal(label, "");
}

static void test_refusals(void **state)
{
    (void)state;
    struct dtp_chart_data data;
    char text[2000] = "model,strategy,gpus_count,verdict,tokens_per_s,scaling_efficiency_fraction\n";
    assert_int_equal(read_chart(DTP_CHART_SCALING, text, &data), DTP_BAD_INPUT);
    assert_int_equal(read_chart(DTP_CHART_SCALING, "a,b\n1,2\n", &data), DTP_BAD_INPUT);
    assert_non_null(strstr(faults.text[0], "has no column 'gpus_count'"));
    for (int i = 0; i <= DTP_CHART_MAX_SERIES; i++)
        snprintf(text + strlen(text), sizeof text - strlen(text), "m,s%d,8,fits,1,1\n", i);
    assert_int_equal(read_chart(DTP_CHART_SCALING, text, &data), DTP_BAD_INPUT);
    assert_non_null(strstr(faults.text[0], "--where COLUMN=VALUE by strategy"));
    /* Figures that are none: no point, whatever they are. */
    assert_int_equal(
        read_chart(DTP_CHART_SCALING,
                   "model,strategy,gpus_count,verdict,tokens_per_s,scaling_efficiency_fraction\n"
                   "m,s,8,fits,nan,1\nm,s,8,fits,inf,1\nm,s,0,fits,1,1\nm,s,-8,fits,1,1\nm,s,8,fits,1e999,1\n",
                   &data),
        DTP_BAD_INPUT);
}

static void test_kinds(void **state)
{
    (void)state;
    enum dtp_chart chart;
    for (int i = 0; i < DTP_CHART_COUNT; i++) {
        assert_true(dtp_chart_parse(dtp_chart_name((enum dtp_chart)i), &chart) && (int)chart == i);
        assert_non_null(strstr(dtp_chart_scripts[i], "set output ARG2"));
    }
    assert_false(dtp_chart_parse("pie", &chart));
    static const char *const drawn[] = {"a.png", "d/a.svg"}, *const not_drawn[] = {"a.csv", ".png", "d/.png"};
    faults = (struct dtp_faults){0};
    for (size_t i = 0; i < sizeof drawn / sizeof *drawn; i++)
        assert_int_equal(dtp_chart_check_name(drawn[i], &faults), DTP_OK);
    for (size_t i = 0; i < sizeof not_drawn / sizeof *not_drawn; i++)
        assert_int_equal(dtp_chart_check_name(not_drawn[i], &faults), DTP_BAD_INPUT);
    char *path = dtp_chart_beside("|a.csv", ".gp");
    assert_string_equal(path, "./|a.gp");
    free(path);
}

/* A box a pass: chunks apart by odd and even, halves of a pair, and no row that is no pass. */
static void test_schedule(void **state)
{
    (void)state;
    static const char passes[] = "schedule,rank,stage,chunk,micro_batch,pass,begin_time,end_time,paired\n"
                                 "dualpipe,0,0,0,7,F,17,20,true\n"
                                 "dualpipe,0,7,1,13,BW,17,20,true\n"
                                 "dualpipe,0,0,0,0,B,21,22.5,false\n"
                                 "dualpipe,0,0,2,0,W,23,24,false\n"
                                 "dualpipe,0,0,0,0,X,23,24,false\n"
                                 "dualpipe,0,0,0,0,F,24,23,false\n"
                                 "dualpipe,-1,0,0,0,F,24,25,false\n"
                                 "dualpipe,0,0,0,0,F,24,,false\n";
    struct dtp_chart_data data;
    assert_int_equal(read_chart(DTP_CHART_SCHEDULE, passes, &data), DTP_OK);
    assert_int_equal(data.row_count, 4);
    assert_string_equal(data.rows[0].label, "forward");
    assert_string_equal(data.rows[1].label, "backward (odd)");
    assert_string_equal(data.rows[2].label, "input gradients");
    assert_string_equal(data.rows[3].label, "weight gradients");
    assert_true(data.rows[0].value[4] == 1 && data.rows[1].value[4] == 2 && data.rows[2].value[4] == 0);
    assert_true(data.rows[1].value[0] == 0 && data.rows[1].value[1] == 13 && data.rows[2].value[3] == 22.5);
    assert_string_equal(data.shared, "dualpipe");
    dtp_chart_data_destroy(&data);
    assert_int_equal(read_chart(DTP_CHART_SCHEDULE,
                                "schedule,rank,micro_batch,pass,begin_time,end_time\n"
                                "1f1b,0,0,F,0,1\ngpipe,0,0,F,0,1\n",
                                &data),
                     DTP_BAD_INPUT);
    assert_non_null(strstr(faults.text[0], "more than one schedule; choose with --where schedule=NAME"));
    assert_int_equal(read_chart(DTP_CHART_SCHEDULE, "schedule,rank,pass\n1f1b,0,F\n", &data), DTP_BAD_INPUT);
    assert_non_null(strstr(faults.text[0], "no column 'micro_batch'"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_scaling),     cmocka_unit_test(test_schedule_is_of_stages),
        cmocka_unit_test(test_filter),      cmocka_unit_test(test_pareto),
        cmocka_unit_test(test_bars_add_up), cmocka_unit_test(test_fit),
        cmocka_unit_test(test_labels),      cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_kinds),       cmocka_unit_test(test_schedule),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
