/* Roles of a set on one clock: what they wait for each other can be computed by hand. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "cost/calibration.h"
#include "lib/hardware.h"
#include "lib/program_sets.h"
#include "lib/step_fixture.h"
#include "runtime/runtimes.h"
#include "program/program_text.h"
#include "sim/simulate.h"

static struct dtp_faults faults;

/* A100s have no power headroom, so kernels take what op_cost says. */
struct bench {
    struct dtp_transformer transformer;
    struct dtp_cluster cluster;
    struct dtp_simulation_options options;
};

static struct bench bench(void)
{
    struct bench b = {.cluster = test_cluster(test_a100(), 2, 8), .options = dtp_simulation_options_default()};
    b.transformer = (struct dtp_transformer){
        .layers = 2, .hidden = 128, .heads = 2, .kv_heads = 2, .head_dim = 64, .ffn = 512, .vocab = 1000};
    b.options.compute_factor = 1;
    return b;
}

static double alone_s(const struct bench *b, const struct dtp_program *program, uint32_t op)
{
    return dtp_op_isolated_s(program, &dtp_program_ops(program)[op], &b->cluster);
}

static void adds_up(const struct dtp_timeline *t)
{
    assert_near(t->compute_s + t->exposed_communication_s + t->exposed_offload_s + t->host_bound_s + t->optimizer_s +
                    t->bubble_s,
                t->step_s, 1e-9);
}

static void test_two_roles_wait_for_each_other(void **state)
{
    struct dtp_program_set set;
    struct dtp_timeline t[2];
    struct bench b = bench();
    (void)state;
    b.options.contention = false;
    assert_int_equal(dtp_program_set_parse_text("set", SET_THERE_AND_BACK, strlen(SET_THERE_AND_BACK), &set, &faults),
                     DTP_OK);
    assert_int_equal(dtp_simulate_set(&set, &b.cluster, &b.options, t, &faults), DTP_OK);
    const struct dtp_program *first = set.roles[0].program, *last = set.roles[1].program;
    double made_s = alone_s(&b, first, 0), sent_s = alone_s(&b, first, 1), back_s = alone_s(&b, last, 2);
    double there_s = alone_s(&b, last, 1), again_s = alone_s(&b, first, 2), end_s = alone_s(&b, first, 4);
    /* Both ends are one span, which begins when the later one can. */
    assert_true(t[1].span[0].start_s == made_s && t[0].span[1].start_s == made_s);
    assert_near(t[0].span[1].end_s, made_s + sent_s, 1e-12);
    assert_true(t[1].span[0].end_s == t[0].span[1].end_s);
    assert_near(t[1].span[2].start_s, made_s + sent_s + there_s, 1e-12);
    assert_true(t[0].span[3].start_s == t[1].span[2].start_s);
    /* The first role computes meanwhile, and longer than the other. */
    assert_near(t[0].span[4].start_s, made_s + sent_s + fmax(again_s, there_s + back_s), 1e-12);
    assert_near(t[0].step_s, t[0].span[4].start_s + end_s, 1e-12);
    assert_true(t[1].step_s == t[0].step_s);
    adds_up(&t[0]);
    adds_up(&t[1]);
    assert_near(t[1].bubble_s, t[1].step_s - sent_s - there_s - back_s, 1e-9);
    assert_true(t[0].bubble_s == 0 && t[1].host_bound_s == 0);
    dtp_timeline_release(&t[0]);
    dtp_timeline_release(&t[1]);
    dtp_program_set_release(&set);
}

/* A set of one role is the program alone, to the last bit. */
static void test_one_role_is_the_program(void **state)
{
    static const char alone[] =
        "program 1\n" SET_BUFFERS "op 0 norm compute writes 0 bytes 1000000000 kernels 1\n"
        "op 1 norm compute reads 0 writes 1 bytes 3000000000 kernels 2\nend ops 2 buffers 2 groups 0\n";
    struct dtp_program_set set = {NULL, 0};
    struct dtp_program *program;
    struct dtp_timeline of_set, of_program;
    struct bench b = bench();
    (void)state;
    assert_int_equal(dtp_program_parse_text("alone", alone, strlen(alone), &program, &faults), DTP_OK);
    assert_int_equal(dtp_program_set_add(&set, "all", 2, program, &faults), DTP_OK);
    assert_int_equal(dtp_simulate_set(&set, &b.cluster, &b.options, &of_set, &faults), DTP_OK);
    assert_int_equal(dtp_simulate(program, &b.cluster, &b.options, &of_program, &faults), DTP_OK);
    assert_true(of_set.step_s == of_program.step_s && of_set.compute_s == of_program.compute_s);
    assert_true(of_set.step_s > 0 && of_set.bubble_s == 0);
    dtp_timeline_release(&of_set);
    dtp_timeline_release(&of_program);
    dtp_program_set_release(&set);
}

static void test_an_unsound_set_is_refused(void **state)
{
    struct dtp_program_set set;
    struct dtp_timeline t[2] = {{.op_count = 0}};
    struct bench b = bench();
    char *text = set_with(SET_THERE_AND_BACK, "peer 0 tag 7", "peer 0 tag 9");
    (void)state;
    assert_int_equal(dtp_program_set_parse_text("set", text, strlen(text), &set, &faults), DTP_OK);
    assert_int_equal(dtp_simulate_set(&set, &b.cluster, &b.options, t, &faults), DTP_BAD_INPUT);
    dtp_program_set_release(&set);
    free(text);
}

/* A matmul beside a receive that waits has the SMs that the receive's thread blocks leave it, from its start to its end
 * if the wait is longer: a wave of tiles more for what no SM is left for. */
static double beside_a_wait_s(const struct bench *b, const char *group)
{
    struct dtp_program_set set;
    struct dtp_timeline t[2];
    char *again = set_with(SET_THERE_AND_BACK, "op 2 norm compute updates 0 after 1 bytes 4000000000",
                           "op 2 matmul compute updates 0 after 1 m 8192 n 8192 k 8192 dtype bf16");
    char *longer = set_with(again, "after 0 bytes 2000000000", "after 0 bytes 200000000000");
    char *first = set_with(longer, "group 0 ranks 2 stride 1\n" SET_BUFFERS "op 0 norm", group);
    char *both = set_with(first, "group 0 ranks 2 stride 1\n" SET_BUFFERS "op 0 recv", strchr(group, 0) + 1);
    assert_int_equal(dtp_program_set_parse_text("set", both, strlen(both), &set, &faults), DTP_OK);
    assert_int_equal(dtp_simulate_set(&set, &b->cluster, &b->options, t, &faults), DTP_OK);
    double seconds = t[0].span[2].end_s - t[0].span[2].start_s;
    assert_true(t[0].span[2].end_s < t[0].span[3].start_s); /* the receive waited all the time */
    assert_near(t[0].step_s, t[1].step_s, 1e-12);
    dtp_timeline_release(&t[0]);
    dtp_timeline_release(&t[1]);
    dtp_program_set_release(&set);
    free(again), free(longer), free(first), free(both);
    return seconds;
}

static double alone_of(const struct bench *b, const char *group)
{
    struct bench alone = *b;
    alone.options.contention = false;
    return beside_a_wait_s(&alone, group);
}

static void test_a_waiting_receive_holds_its_sms(void **state)
{
    static const char as_it_is[] = "group 0 ranks 2 stride 1\n" SET_BUFFERS "op 0 norm\0"
                                   "group 0 ranks 2 stride 1\n" SET_BUFFERS "op 0 recv";
    static const char few[] = "group 0 ranks 2 stride 1 ctas 4\n" SET_BUFFERS "op 0 norm\0"
                              "group 0 ranks 2 stride 1 ctas 4\n" SET_BUFFERS "op 0 recv";
    struct bench b = bench();
    (void)state;
    b.cluster.gpu.architecture = DTP_GPU_HOPPER;
    double few_s = beside_a_wait_s(&b, few), many_s = beside_a_wait_s(&b, as_it_is);
    double alone = alone_of(&b, few);
    b.cluster.gpu.architecture = DTP_GPU_AMPERE;
    assert_near(beside_a_wait_s(&b, as_it_is), alone_of(&b, few), 1e-9);
    /* 8192 x 8192 is 2048 tiles of 128 x 256, 19 waves of 108 SMs: 19 * 108 / 104 is 19.7, 19 * 108 / 76 is 27. */
    assert_int_equal(b.cluster.gpu.sm_count, 108);
    assert_near(few_s, alone * 20 / 19, 1e-9);
    assert_near(many_s, alone * 27 / 19, 1e-9);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_two_roles_wait_for_each_other), cmocka_unit_test(test_one_role_is_the_program),
        cmocka_unit_test(test_a_waiting_receive_holds_its_sms), cmocka_unit_test(test_an_unsound_set_is_refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
