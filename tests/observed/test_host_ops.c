/* Operators of a host in place of kernels, by traces of a few events. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "observed/observed.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static struct dtp_faults faults;
static struct dtp_observed observed;
static char text[8192];

static void near(double is, double meant)
{
    if (!(fabs(is - meant) < 1e-9))
        fail_msg("%.9f, not %.9f", is, meant);
}

/* An event of so many milliseconds. */
static void add(const char *category, const char *name, int thread, double start_ms, double ms)
{
    size_t used = strlen(text);
    snprintf(
        text + used, sizeof text - used,
        "%s{\"ph\": \"X\", \"cat\": \"%s\", \"name\": \"%s\", \"pid\": 7, \"tid\": %d, \"ts\": %.3f, \"dur\": %.3f}",
        used ? ",\n" : "{\"traceEvents\": [", category, name, thread, 1e3 * start_ms, 1e3 * ms);
}

static const struct dtp_observed_time *read_text(void)
{
    strcat(text, "]}");
    if (dtp_observed_parse("x.json", text, strlen(text), &observed, &faults) != DTP_OK)
        fail_msg("%s", faults.text[0]);
    text[0] = '\0';
    assert_int_equal(observed.what, DTP_OBSERVED_TIME);
    return &observed.time;
}

/* A step of 100 ms. linear 0..20 has a matmul of 4..18, which has a copy of its own; a product 20..30 makes room for
 * 1 ms; backward waits 30..60 in no operator of aten, and attention takes 60..80. */
static void test_within_each_other(void **state)
{
    (void)state;
    add("user_annotation", "ProfilerStep#1", 1, 0, 100);
    add("cpu_op", "aten::mul", 1, 20, 10);
    add("cpu_op", "aten::empty", 1, 21, 1);
    add("cpu_op", "aten::linear", 1, 0, 20);
    add("cpu_op", "aten::addmm", 1, 4, 14);
    add("cpu_op", "aten::copy_", 1, 5, 2);
    add("cpu_op", "autograd::engine::evaluate_function: AddBackward0", 1, 30, 50);
    add("cpu_op", "aten::_scaled_dot_product_flash_attention_for_cpu_backward", 1, 60, 20);
    add("cpu_op", "aten::fill_", 1, 60, 1);
    const struct dtp_observed_time *t = read_text();
    assert_true(t->on_host);
    near(t->step_s, 0.1);
    near(t->kind_s[DTP_OBSERVED_MATMUL], 0.014);
    near(t->kind_s[DTP_OBSERVED_ELEMENTWISE], 0.016); /* linear's own 6 and the product's 10 */
    near(t->kind_s[DTP_OBSERVED_ATTENTION], 0.02);
    near(t->attention_backwards, 1);
    near(t->attention_forwards, 0);
    near(t->idle_s, 0.05);  /* 30..60 and 80..100 */
    near(t->host_gap_s, 0); /* 80..100 may be somebody else's; in the others an operator waits */
}

/* Two threads of gloo: a gather 10..30 beside a matmul 0..20, a sum 40..50 for a scatter, another 45..60 for a sum of
 * one number; what gloo's threads do within is theirs. */
static void test_collectives(void **state)
{
    (void)state;
    add("user_annotation", "ProfilerStep#1", 1, 0, 100);
    add("cpu_op", "aten::mm", 1, 0, 20);
    add("user_annotation", "gloo:all_gather", 2, 10, 20);
    add("cpu_op", "aten::copy_", 2, 12, 3);
    add("cpu_op", "c10d::_reduce_scatter_base_", 1, 39, 1);
    add("cpu_op", "c10d::allreduce_", 1, 41, 1);
    add("user_annotation", "gloo:all_reduce", 3, 45, 15);
    add("user_annotation", "gloo:all_reduce", 2, 40, 10);
    add("user_annotation", "Optimizer.step#AdamW.step", 1, 70, 10);
    add("cpu_op", "aten::_fused_adamw_", 1, 71, 8);
    add("cpu_op", "aten::add_", 1, 79, 1);
    const struct dtp_observed_time *t = read_text();
    near(t->kind_s[DTP_OBSERVED_ALL_GATHER], 0.02);
    near(t->exposed_s[DTP_OBSERVED_ALL_GATHER], 0.01);
    near(t->kind_s[DTP_OBSERVED_REDUCE_SCATTER], 0.01);
    near(t->kind_s[DTP_OBSERVED_ALL_REDUCE], 0.015);
    near(t->kind_s[DTP_OBSERVED_ELEMENTWISE], 0);
    near(t->kind_s[DTP_OBSERVED_OPTIMIZER], 0.009);
    near(t->fused_optimizers, 1);
}

/* Cut between a call and its work, nothing tells which sum is whose. */
static void test_cut(void **state)
{
    (void)state;
    add("user_annotation", "ProfilerStep#1", 1, 0, 100);
    add("cpu_op", "aten::mm", 1, 0, 20);
    add("user_annotation", "gloo:all_reduce", 2, 5, 10);
    add("cpu_op", "c10d::_reduce_scatter_base_", 1, 39, 1);
    add("user_annotation", "gloo:all_reduce", 2, 40, 10);
    const struct dtp_observed_time *t = read_text();
    near(t->kind_s[DTP_OBSERVED_REDUCE_SCATTER], 0);
    near(t->kind_s[DTP_OBSERVED_ALL_REDUCE], 0.02);
}

/* 30 ms between two operators are no slice of the scheduler's. */
static void test_gaps(void **state)
{
    (void)state;
    add("user_annotation", "ProfilerStep#1", 1, 0, 100);
    add("cpu_op", "aten::mm", 1, 0, 20);
    add("cpu_op", "aten::mm", 1, 50, 40);
    near(read_text()->host_gap_s, 0.03);
}

/* One kernel of a GPU, and the host's operators are what launches. */
static void test_beside_a_gpu(void **state)
{
    (void)state;
    add("user_annotation", "ProfilerStep#1", 1, 0, 100);
    add("cpu_op", "aten::mm", 1, 0, 20);
    add("kernel", "nvjet_sm90_tst_256x128", 7, 5, 10);
    const struct dtp_observed_time *t = read_text();
    assert_false(t->on_host);
    near(t->kind_s[DTP_OBSERVED_MATMUL], 0.01);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_within_each_other),
        cmocka_unit_test(test_collectives),
        cmocka_unit_test(test_cut),
        cmocka_unit_test(test_gaps),
        cmocka_unit_test(test_beside_a_gpu),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
