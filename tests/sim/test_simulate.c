/* Simulations whose result can be computed by hand: sums, maxima, launch times. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "cost/calibration.h"
#include "runtime/runtimes.h"
#include "lib/hardware.h"
#include "cost/op_cost.h"
#include "sim/simulate.h"
#include "lib/step_fixture.h"

/* A program on a cluster; A100s have no power headroom, so kernels take what op_cost says. */
struct bench {
    struct dtp_program *program;
    bool sealed;
    struct dtp_transformer transformer;
    struct dtp_cluster cluster;
    struct dtp_simulation_options options;
    struct dtp_timeline timeline;
};

static struct bench begin(struct dtp_gpu gpu, uint32_t gpus)
{
    struct bench b = {
        .program = step_begin(), .cluster = test_cluster(gpu, gpus, 8), .options = dtp_simulation_options_default()};
    b.transformer = (struct dtp_transformer){
        .layers = 2, .hidden = 128, .heads = 2, .kv_heads = 2, .head_dim = 64, .ffn = 512, .vocab = 1000};
    b.options.compute_factor = 1;
    return b;
}

static const struct dtp_timeline *simulate(struct bench *b)
{
    if (!b->sealed)
        step_seal(b->program);
    b->sealed = true;
    dtp_timeline_release(&b->timeline);
    assert_int_equal(dtp_simulate(b->program, &b->cluster, &b->options, &b->timeline, NULL), DTP_OK);
    const struct dtp_timeline *t = &b->timeline;
    assert_near(t->compute_s + t->exposed_communication_s + t->exposed_offload_s + t->host_bound_s + t->optimizer_s +
                    t->bubble_s,
                t->step_s, 1e-9);
    assert_true(t->exposed_communication_s <= t->communication_s);
    return t;
}

static double alone_s(const struct bench *b, dtp_op_id op)
{
    return dtp_op_isolated_s(b->program, &dtp_program_ops(b->program)[op.index], &b->cluster);
}

static void finish(struct bench *b)
{
    dtp_timeline_release(&b->timeline);
    dtp_program_destroy(b->program);
}

static void test_nothing(void **state)
{
    (void)state;
    struct bench b = begin(test_a100(), 1);
    const struct dtp_timeline *t = simulate(&b);
    assert_true(t->step_s == 0 && t->critical_count == 0);
    finish(&b);
}

/* One stream: the sum, to the last bit; each operation begins where the one before ended. */
static void test_one_stream_is_the_sum(void **state)
{
    (void)state;
    struct bench b = begin(test_a100(), 1);
    dtp_op_id op[4] = {step_kernel(b.program, DTP_STREAM_COMPUTE, 1e9, 0), step_matmul(b.program, 4096, 4096, 1024),
                       step_kernel(b.program, DTP_STREAM_COMPUTE, 3e8, 0), step_matmul(b.program, 512, 4096, 777)};
    const struct dtp_timeline *t = simulate(&b);
    double sum_s = 0;
    for (int i = 0; i < 4; i++) {
        assert_true(t->span[i].start_s == sum_s);
        sum_s += alone_s(&b, op[i]);
        assert_true(t->span[i].end_s == sum_s);
    }
    assert_true(t->step_s == sum_s);
    assert_near(t->compute_s, sum_s, 1e-12);
    assert_true(t->communication_s == 0 && t->host_bound_s == 0);
    assert_int_equal(t->critical_count, 4);
    for (uint32_t i = 0; i < 4; i++)
        assert_int_equal(t->critical[i], i);
    finish(&b);
}

/* compute -> gather -> compute -> reduce: nothing overlaps, everything is exposed. */
static void test_chain_is_the_sum(void **state)
{
    (void)state;
    struct bench b = begin(test_a100(), 8);
    uint32_t group = dtp_program_add_group(b.program, (struct dtp_program_group){8, 1});
    dtp_op_id first = step_matmul(b.program, 4096, 4096, 4096);
    dtp_op_id gather = step_collective(b.program, DTP_OP_ALL_GATHER, DTP_STREAM_GATHER, group, 1e8);
    dtp_program_depend(b.program, gather, first);
    dtp_op_id second = step_kernel(b.program, DTP_STREAM_COMPUTE, 1e9, 0);
    dtp_program_depend(b.program, second, gather);
    dtp_op_id reduce = step_collective(b.program, DTP_OP_REDUCE_SCATTER, DTP_STREAM_REDUCE, group, 2e8);
    dtp_program_depend(b.program, reduce, second);
    const struct dtp_timeline *t = simulate(&b);
    double gather_s = alone_s(&b, gather), reduce_s = alone_s(&b, reduce);
    double compute_s = alone_s(&b, first) + alone_s(&b, second);
    assert_near(t->step_s, compute_s + gather_s + reduce_s, 1e-12);
    assert_near(t->compute_s, compute_s, 1e-12);
    assert_near(t->exposed_by_collective_s[DTP_ALL_GATHER], gather_s, 1e-12);
    assert_near(t->exposed_by_collective_s[DTP_REDUCE_SCATTER], reduce_s, 1e-12);
    assert_near(t->communication_s, gather_s + reduce_s, 1e-12);
    assert_int_equal(t->critical_count, 4);

    b.options.infinite_bandwidth = true;
    t = simulate(&b);
    assert_near(t->step_s, compute_s, 1e-12);
    assert_true(t->communication_s == 0 && t->exposed_communication_s == 0);
    finish(&b);
}

/* No dependency, no shared resource: the longer of the two, and the shorter is hidden. */
static void test_independent_streams_are_the_maximum(void **state)
{
    (void)state;
    struct bench b = begin(test_a100(), 8);
    uint32_t group = dtp_program_add_group(b.program, (struct dtp_program_group){8, 1});
    dtp_op_id kernel = step_kernel(b.program, DTP_STREAM_COMPUTE, 1e10, 0);
    dtp_op_id gather = step_collective(b.program, DTP_OP_ALL_GATHER, DTP_STREAM_GATHER, group, 1e8);
    dtp_op_id upload = step_copy(b.program, DTP_OP_UPLOAD, 1e7);
    b.options.contention = false;
    const struct dtp_timeline *t = simulate(&b);
    assert_true(alone_s(&b, kernel) > alone_s(&b, gather) && alone_s(&b, gather) > alone_s(&b, upload));
    assert_true(t->step_s == alone_s(&b, kernel));
    assert_true(t->exposed_communication_s == 0 && t->exposed_offload_s == 0);
    assert_true(t->communication_s == alone_s(&b, gather));
    finish(&b);
}

/* The same with contention: while it runs the collective takes its share of the SMs, so the kernel ends later by that
 * share of the collective's time. */
static void test_collective_slows_a_kernel(void **state)
{
    (void)state;
    struct bench b = begin(test_a100(), 8);
    uint32_t group = dtp_program_add_group(b.program, (struct dtp_program_group){8, 1});
    dtp_op_id kernel = step_matmul(b.program, 16384, 8192, 8192);
    dtp_op_id gather = step_collective(b.program, DTP_OP_ALL_GATHER, DTP_STREAM_GATHER, group, 1e8);
    const struct dtp_timeline *t = simulate(&b);
    double gather_s = alone_s(&b, gather);
    double share = dtp_calibration.contention_sm_share +
                   dtp_calibration.contention_memory_passes * 1e8 / gather_s / b.cluster.gpu.memory_bytes_per_s;
    assert_true(share < 0.9);
    assert_near(t->span[gather.index].end_s, gather_s, 1e-12);
    assert_near(t->step_s, alone_s(&b, kernel) + share * gather_s, 1e-9);
    finish(&b);
}

/* Two matmuls each want all SMs: they finish as late as one after the other. A memory-bound kernel spends bytes/HBM of
 * its time in HBM and only the rest on SMs, which is all that the matmul beside it loses. */
static void test_kernels_of_two_streams_share(void **state)
{
    (void)state;
    struct bench b = begin(test_a100(), 1);
    dtp_op_id a = step_matmul(b.program, 8192, 8192, 8192);
    struct dtp_new_op second = {.kind = DTP_OP_MATMUL,
                                .stream = DTP_STREAM_COPY,
                                .demand = {.m = 4096, .n = 4096, .k = 4096, .dtype = DTP_BF16}};
    dtp_op_id c = dtp_program_add_op(b.program, &second, NULL, 0);
    const struct dtp_timeline *t = simulate(&b);
    assert_near(t->span[c.index].end_s, 2 * alone_s(&b, c), 1e-9);
    assert_near(t->step_s, alone_s(&b, a) + alone_s(&b, c), 1e-9);
    assert_near(t->compute_s, t->step_s, 1e-9);
    finish(&b);

    b = begin(test_a100(), 1);
    a = step_matmul(b.program, 8192, 8192, 8192);
    c = step_kernel(b.program, DTP_STREAM_COPY, 1e9, 0);
    t = simulate(&b);
    double in_hbm_s = 1e9 / (b.cluster.gpu.memory_bytes_per_s * dtp_calibration.hbm_fraction);
    assert_near(t->span[c.index].end_s, alone_s(&b, c), 1e-9);
    assert_near(t->step_s, alone_s(&b, a) + alone_s(&b, c) - in_hbm_s, 1e-9);
    finish(&b);
}

/* One communicator is a FIFO although the two collectives lie on two streams; two communicators are not, but share the
 * links: both end after the sum of their times. */
static void test_communicators(void **state)
{
    (void)state;
    for (int same = 0; same < 2; same++) {
        struct bench b = begin(test_a100(), 8);
        uint32_t group = dtp_program_add_group(b.program, (struct dtp_program_group){8, 1});
        uint32_t other = same ? group : dtp_program_add_group(b.program, (struct dtp_program_group){8, 1});
        dtp_op_id gather = step_collective(b.program, DTP_OP_ALL_GATHER, DTP_STREAM_GATHER, group, 4e9);
        dtp_op_id reduce = step_collective(b.program, DTP_OP_REDUCE_SCATTER, DTP_STREAM_REDUCE, other, 4e9);
        const struct dtp_timeline *t = simulate(&b);
        double each_s = alone_s(&b, gather);
        assert_true(each_s == alone_s(&b, reduce));
        assert_near(t->step_s, 2 * each_s, 1e-2); /* 1 %: sharing ignores that latency needs no bandwidth */
        if (same)
            assert_true(t->span[reduce.index].start_s == t->span[gather.index].end_s && t->step_s == 2 * each_s);
        else
            assert_true(t->span[reduce.index].start_s == 0);
        b.options.contention = false;
        t = simulate(&b);
        assert_true(t->step_s == (same ? 2 : 1) * each_s);
        finish(&b);
    }
}

/* Kernels shorter than their launches: the host sets the pace. n launches, then the last kernel. */
static void test_launch_bound(void **state)
{
    (void)state;
    struct bench b = begin(test_a100(), 1);
    dtp_op_id last = {0};
    for (int i = 0; i < 100; i++)
        last = step_kernel(b.program, DTP_STREAM_COMPUTE, 1e3, 1);
    const struct dtp_timeline *t = simulate(&b);
    double launch_s = dtp_calibration.torch_launch_s, kernel_s = alone_s(&b, last);
    assert_true(kernel_s < launch_s);
    assert_near(t->step_s, 100 * launch_s + kernel_s, 1e-12);
    assert_near(t->compute_s, 100 * kernel_s, 1e-9);
    assert_near(t->host_bound_s, 100 * launch_s - 99 * kernel_s, 1e-9);
    assert_int_equal(t->cause[last.index], DTP_CAUSE_HOST);
    assert_int_equal(t->critical_count, 1);
    finish(&b);

    /* The same hundred as ten operations of ten kernels: the same end. */
    b = begin(test_a100(), 1);
    for (int i = 0; i < 10; i++)
        last = step_kernel(b.program, DTP_STREAM_COMPUTE, 1e4, 10);
    t = simulate(&b);
    assert_near(t->step_s, 100 * launch_s + kernel_s, 1e-6);
    finish(&b);
}

/* Megatron's host takes its layers' Python for each kernel, for a collective a plain launch: ten kernels with a
 * collective between, each shorter than its launch. PyTorch's host takes all of them alike. */
static void test_launches_of_collectives(void **state)
{
    (void)state;
    static const enum dtp_issuer issuers[] = {DTP_ISSUER_PYTORCH, DTP_ISSUER_MEGATRON};
    for (int i = 0; i < 2; i++) {
        struct bench b = begin(test_a100(), 8);
        const struct dtp_execution execution = {.issuer = issuers[i]};
        dtp_program_set_execution(b.program, &execution);
        uint32_t group = dtp_program_add_group(b.program, (struct dtp_program_group){8, 1});
        dtp_op_id last = {0};
        for (int k = 0; k < 10; k++) {
            struct dtp_new_op collective = {.kind = DTP_OP_ALL_REDUCE,
                                            .stream = DTP_STREAM_REDUCE,
                                            .group = group,
                                            .demand = {.sent_bytes = 8, .kernels = 1}};
            dtp_program_add_op(b.program, &collective, NULL, 0);
            last = step_kernel(b.program, DTP_STREAM_COMPUTE, 1e3, 1);
        }
        double kernel_s = dtp_kernel_launch_s(&execution), plain_s = dtp_calibration.torch_launch_s;
        assert_near(simulate(&b)->step_s, 10 * (kernel_s + plain_s) + alone_s(&b, last), 1e-9);
        assert_true((kernel_s > plain_s) == (issuers[i] == DTP_ISSUER_MEGATRON));
        finish(&b);
    }
}

/* The host stands at a wait until the download is done and launches what follows only then. */
static void test_host_wait(void **state)
{
    (void)state;
    struct bench b = begin(test_a100(), 1);
    dtp_op_id kernel = step_kernel(b.program, DTP_STREAM_COMPUTE, 1e9, 1);
    dtp_op_id download = step_copy(b.program, DTP_OP_DOWNLOAD, 1e9);
    dtp_program_depend(b.program, download, kernel);
    dtp_op_id wait = step_event(b.program, DTP_OP_HOST_WAIT, DTP_STREAM_HOST);
    dtp_program_depend(b.program, wait, download);
    dtp_op_id after = step_kernel(b.program, DTP_STREAM_COMPUTE, 1e9, 1);
    const struct dtp_timeline *t = simulate(&b);
    double launch_s = dtp_calibration.torch_launch_s, done_s = launch_s + alone_s(&b, kernel) + alone_s(&b, download);
    assert_near(t->span[wait.index].start_s, launch_s, 1e-12);
    assert_near(t->span[wait.index].end_s, done_s, 1e-12);
    assert_near(t->span[after.index].start_s, done_s + launch_s, 1e-12);
    assert_near(t->exposed_offload_s, alone_s(&b, download), 1e-9);
    assert_near(t->host_bound_s, 2 * launch_s, 1e-9);
    uint32_t path[] = {kernel.index, download.index, wait.index, after.index};
    assert_int_equal(t->critical_count, 4);
    assert_memory_equal(t->critical, path, sizeof path);
    finish(&b);
}

/* One rank: a communicator of one sends nothing and takes no time. */
static void test_one_rank(void **state)
{
    (void)state;
    struct bench b = begin(test_a100(), 1);
    uint32_t group = dtp_program_add_group(b.program, (struct dtp_program_group){1, 1});
    dtp_op_id kernel = step_kernel(b.program, DTP_STREAM_COMPUTE, 1e9, 0);
    step_collective(b.program, DTP_OP_ALL_REDUCE, DTP_STREAM_REDUCE, group, 0);
    b.options.compute_factor = 0; /* one rank is the slowest of one */
    const struct dtp_timeline *t = simulate(&b);
    assert_true(t->step_s == alone_s(&b, kernel) && t->compute_factor == 1 && t->communication_s == 0);
    finish(&b);
}

/* Host copies of all GPUs of a node pass through its memory: eight of 27.84 GB/s ask for 222.7 of the node's 100 GB/s.
 */
static void test_host_memory_is_shared(void **state)
{
    (void)state;
    struct bench b = begin(test_a100(), 8);
    b.cluster.machine.host_memory_bytes_per_s = 100e9;
    step_copy(b.program, DTP_OP_UPLOAD, 1e9);
    const struct dtp_timeline *t = simulate(&b);
    assert_near(t->step_s, 8e9 / 100e9, 1e-9);
    finish(&b);
}

/* Matmuls of a chip at its power limit: half of the time of this step belongs to other kernels, so they speed up by
 * half of the headroom, as in the closed form; where an exposed collective leaves the chip idle, by more. */
static void test_power_headroom(void **state)
{
    (void)state;
    struct bench b = begin(test_h200(), 8);
    uint32_t group = dtp_program_add_group(b.program, (struct dtp_program_group){8, 1});
    dtp_op_id matmul = step_matmul(b.program, 8192, 8192, 8192);
    dtp_op_id kernel = step_kernel(b.program, DTP_STREAM_COMPUTE, 3e9, 0);
    const struct dtp_timeline *t = simulate(&b);
    double speedup = dtp_matmul_speedup(&b.cluster.gpu, alone_s(&b, matmul), 0, alone_s(&b, kernel));
    assert_true(speedup > 1.05 && t->matmul_speedup == speedup);
    assert_near(t->step_s, alone_s(&b, matmul) / speedup + alone_s(&b, kernel), 1e-12);
    finish(&b);

    b = begin(test_h200(), 8);
    group = dtp_program_add_group(b.program, (struct dtp_program_group){8, 1});
    matmul = step_matmul(b.program, 8192, 8192, 8192);
    kernel = step_kernel(b.program, DTP_STREAM_COMPUTE, 3e9, 0);
    dtp_program_depend(b.program, step_collective(b.program, DTP_OP_ALL_REDUCE, DTP_STREAM_REDUCE, group, 1e9), kernel);
    t = simulate(&b);
    assert_true(t->matmul_speedup > speedup);
    b.options.power_headroom = false;
    assert_true(simulate(&b)->matmul_speedup == 1);
    finish(&b);

    b = begin(test_h200(), 8); /* a matmul of odd rows draws what attention does, at the same seconds */
    matmul = step_matmul(b.program, 8192, 8193, 8192);
    kernel = step_kernel(b.program, DTP_STREAM_COMPUTE, 3e9, 0);
    t = simulate(&b);
    assert_near(t->matmul_speedup, dtp_matmul_speedup(&b.cluster.gpu, 0, alone_s(&b, matmul), alone_s(&b, kernel)),
                1e-12);
    finish(&b);

    b = begin(test_h200(), 8); /* matmuls of another stream draw as much */
    struct dtp_new_op other = {.kind = DTP_OP_MATMUL,
                               .stream = DTP_STREAM_WEIGHT_GRADIENT,
                               .demand = {.m = 8192, .n = 8192, .k = 8192, .dtype = DTP_BF16}};
    kernel = step_kernel(b.program, DTP_STREAM_COMPUTE, 3e9, 0);
    dtp_program_depend(b.program, dtp_program_add_op(b.program, &other, NULL, 0), kernel);
    assert_near(simulate(&b)->matmul_speedup, speedup, 1e-12);
    finish(&b);
}

/* A factor on kernels, not on collectives; by default that of the slowest of the ranks. */
static void test_slowest_rank(void **state)
{
    (void)state;
    struct bench b = begin(test_a100(), 8);
    uint32_t group = dtp_program_add_group(b.program, (struct dtp_program_group){8, 1});
    dtp_op_id kernel = step_kernel(b.program, DTP_STREAM_COMPUTE, 3e9, 0);
    dtp_op_id gather = step_collective(b.program, DTP_OP_ALL_GATHER, DTP_STREAM_GATHER, group, 1e8);
    dtp_program_depend(b.program, gather, kernel);
    b.options.compute_factor = 0;
    const struct dtp_timeline *t = simulate(&b);
    assert_near(t->step_s,
                dtp_slowest_rank_factor(8, dtp_calibration.simulated_rank_deviation) * alone_s(&b, kernel) +
                    alone_s(&b, gather),
                1e-12);
    finish(&b);
}

/* CUDA_LAUNCH_BLOCKING=1: 3 + 1 kernels that wait for a launch each, and a gather between, on a stream of its own, that
 * no kernel runs beside: the sum of all. */
static void test_launch_blocking(void **state)
{
    (void)state;
    double step_s[2], apart_s[2];
    for (uint32_t blocking = 0; blocking < 2; blocking++) {
        struct bench b = begin(test_a100(), 8);
        struct dtp_execution execution = *dtp_program_execution(b.program);
        execution.launch_blocking = blocking;
        dtp_program_set_execution(b.program, &execution);
        uint32_t group = dtp_program_add_group(b.program, (struct dtp_program_group){8, 1});
        dtp_op_id first = step_kernel(b.program, DTP_STREAM_COMPUTE, 30e9, 3);
        dtp_op_id gather = step_collective(b.program, DTP_OP_ALL_GATHER, DTP_STREAM_GATHER, group, 20e9);
        dtp_op_id last = step_kernel(b.program, DTP_STREAM_COMPUTE, 10e9, 1);
        const struct dtp_timeline *t = simulate(&b);
        step_s[blocking] = t->step_s;
        apart_s[blocking] = alone_s(&b, first) + alone_s(&b, last);
        assert_true((t->span[gather.index].start_s >= t->span[first.index].end_s) == blocking);
        assert_true((t->span[last.index].start_s >= t->span[gather.index].end_s) == blocking);
        if (blocking)
            assert_true(t->step_s >= apart_s[1] + alone_s(&b, gather));
        finish(&b);
    }
    assert_near(apart_s[1], apart_s[0] + 4 * dtp_calibration.torch_launch_s, 1e-9);
    assert_true(step_s[1] > step_s[0] + 4 * dtp_calibration.torch_launch_s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_nothing),
        cmocka_unit_test(test_one_stream_is_the_sum),
        cmocka_unit_test(test_chain_is_the_sum),
        cmocka_unit_test(test_independent_streams_are_the_maximum),
        cmocka_unit_test(test_collective_slows_a_kernel),
        cmocka_unit_test(test_kernels_of_two_streams_share),
        cmocka_unit_test(test_communicators),
        cmocka_unit_test(test_launch_bound),
        cmocka_unit_test(test_launches_of_collectives),
        cmocka_unit_test(test_launch_blocking),
        cmocka_unit_test(test_host_wait),
        cmocka_unit_test(test_one_rank),
        cmocka_unit_test(test_host_memory_is_shared),
        cmocka_unit_test(test_power_headroom),
        cmocka_unit_test(test_slowest_rank),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
