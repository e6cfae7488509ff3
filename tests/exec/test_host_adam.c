#include "device/host_adam.h"

#include "kernels/element.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define COUNT 300007 /* many tiles, several shares, an odd end */

struct state {
    float gradient[COUNT], master[COUNT], moment1[COUNT], moment2[COUNT];
    uint16_t narrow_gradient[COUNT], weights[COUNT];
    float wide_weights[COUNT];
};

static void fill(struct state *s)
{
    srand(7);
    for (int i = 0; i < COUNT; i++) {
        s->gradient[i] = (float)rand() / (float)RAND_MAX - 0.5f;
        s->narrow_gradient[i] = dtp_bf16_from_float(s->gradient[i]);
        s->master[i] = (float)rand() / (float)RAND_MAX - 0.5f;
        s->moment1[i] = 0.1f * ((float)rand() / (float)RAND_MAX - 0.5f);
        s->moment2[i] = 0.01f * (float)rand() / (float)RAND_MAX;
    }
}

static struct dtp_adamw_args args_of(struct state *s, const struct dtp_step_scalars *scalars, bool narrow)
{
    return (struct dtp_adamw_args){.gradient = narrow ? (void *)s->narrow_gradient : (void *)s->gradient,
                                   .weights = narrow ? (void *)s->weights : (void *)s->wide_weights,
                                   .master = s->master,
                                   .moment1 = s->moment1,
                                   .moment2 = s->moment2,
                                   .count = COUNT,
                                   .beta1 = 0.9f,
                                   .beta2 = 0.95f,
                                   .epsilon = 1e-8f,
                                   .decay = 0.1f,
                                   .range_count = 2,
                                   .range_begin = {1000, 200001},
                                   .range_end = {100003, COUNT},
                                   .scalars = scalars,
                                   .gradient_element = narrow ? DTP_ELEMENT_BF16 : DTP_ELEMENT_FP32,
                                   .weight_element = narrow ? DTP_ELEMENT_BF16 : DTP_ELEMENT_FP32,
                                   .moment_element = DTP_ELEMENT_FP32};
}

/* fp32 sums of a few terms of size 1: some 1e-7 apart from double. */
static void test_as_the_reference(void **state)
{
    (void)state;
    struct state *ours = calloc(1, sizeof *ours), *theirs = calloc(1, sizeof *theirs);
    struct dtp_step_scalars scalars = {
        .learning_rate = 1e-3f, .correction1 = 0.1f, .correction2 = 0.05f, .clip_scale = 0.7f};
    for (uint32_t threads = 1; threads <= 3; threads++)
        for (int narrow = 0; narrow < 2; narrow++) {
            struct dtp_host_adam *adam;
            struct dtp_host_adam_options options = {.threads = threads};
            assert_int_equal(dtp_host_adam_create(&options, &adam, NULL), DTP_OK);
            fill(ours);
            fill(theirs);
            struct dtp_adamw_args a = args_of(ours, &scalars, narrow), b = args_of(theirs, &scalars, narrow);
            for (int step = 0; step < 3; step++) {
                dtp_host_adam_step(adam, &a);
                assert_int_equal(dtp_reference_adamw(NULL, &b, NULL), 0);
            }
            for (int i = 0; i < COUNT; i++) {
                assert_true(fabsf(ours->master[i] - theirs->master[i]) < 2e-6f);
                assert_true(fabsf(ours->moment1[i] - theirs->moment1[i]) < 1e-6f);
                assert_true(fabsf(ours->moment2[i] - theirs->moment2[i]) < 1e-6f);
                if (narrow)
                    assert_int_equal(ours->weights[i], dtp_bf16_from_float(ours->master[i]));
                else
                    assert_true(ours->wide_weights[i] == ours->master[i]);
            }
            dtp_host_adam_destroy(adam);
        }
    free(ours);
    free(theirs);
}

static void test_threads_do_not_change_a_bit(void **state)
{
    (void)state;
    struct state *s = calloc(1, sizeof *s), *first = calloc(1, sizeof *first);
    struct dtp_step_scalars scalars = {
        .learning_rate = 1e-3f, .correction1 = 0.1f, .correction2 = 0.05f, .clip_scale = 1};
    for (uint32_t threads = 1; threads <= 5; threads += 2) {
        struct dtp_host_adam *adam;
        struct dtp_host_adam_options options = {.threads = threads, .index = 1, .parts = 2};
        assert_int_equal(dtp_host_adam_create(&options, &adam, NULL), DTP_OK);
        assert_int_equal(dtp_host_adam_threads(adam), threads);
        dtp_host_adam_touch(adam, s, sizeof *s);
        fill(s);
        struct dtp_adamw_args a = args_of(s, &scalars, true);
        dtp_host_adam_step(adam, &a);
        if (threads == 1)
            memcpy(first, s, sizeof *s);
        assert_memory_equal(first, s, sizeof *s);
        dtp_host_adam_destroy(adam);
    }
    free(s);
    free(first);
}

/* Without a master the weights are their own, and moments may be narrow; rounded weights agree but where a sum of fp32
 * and one of double lie on either side of a tie. */
static void test_pure_states(void **state)
{
    (void)state;
    struct state *ours = calloc(1, sizeof *ours), *theirs = calloc(1, sizeof *theirs);
    struct dtp_step_scalars scalars = {
        .learning_rate = 1e-2f, .correction1 = 0.1f, .correction2 = 0.05f, .clip_scale = 0.7f, .seed = 5, .step = 3};
    struct dtp_host_adam *adam;
    struct dtp_host_adam_options options = {.threads = 3};
    assert_int_equal(dtp_host_adam_create(&options, &adam, NULL), DTP_OK);
    for (int kind = 0; kind < 4; kind++) { /* fp32; bf16 weights; and bf16 moments; and rounded stochastically */
        fill(ours);
        for (int i = 0; i < COUNT; i++)
            ours->weights[i] = dtp_bf16_from_float(ours->master[i]);
        for (int i = 0; i < COUNT && kind >= 2; i++) {
            ((uint16_t *)ours->moment1)[i] = dtp_bf16_from_float(ours->gradient[i]);
            ((uint16_t *)ours->moment2)[i] = dtp_bf16_from_float(fabsf(ours->gradient[i]));
        }
        memcpy(ours->wide_weights, ours->master, sizeof ours->wide_weights);
        memcpy(theirs, ours, sizeof *theirs);
        struct dtp_adamw_args a = args_of(ours, &scalars, kind > 0), b = args_of(theirs, &scalars, kind > 0);
        a.master = b.master = NULL;
        a.moment_element = b.moment_element = kind >= 2 ? DTP_ELEMENT_BF16 : DTP_ELEMENT_FP32;
        a.stochastic_rounding = b.stochastic_rounding = kind == 3;
        dtp_host_adam_step(adam, &a);
        assert_int_equal(dtp_reference_adamw(NULL, &b, NULL), 0);
        int other = 0;
        for (int i = 0; i < COUNT; i++) {
            assert_true(fabsf(ours->wide_weights[i] - theirs->wide_weights[i]) < 2e-6f);
            other += ours->weights[i] != theirs->weights[i];
        }
        assert_true(kind == 3 ? other == 0 : other < COUNT / 1000);
        assert_memory_equal(ours->master, theirs->master, sizeof ours->master);
    }
    dtp_host_adam_destroy(adam);
    free(ours);
    free(theirs);
}

static void test_what_it_leaves_alone(void **state)
{
    (void)state;
    struct state *s = calloc(1, sizeof *s), *before = calloc(1, sizeof *before);
    struct dtp_step_scalars scalars = {
        .learning_rate = 1, .correction1 = 1, .correction2 = 1, .clip_scale = 1, .skip = 1};
    struct dtp_host_adam *adam;
    struct dtp_host_adam_options options = {.threads = 2};
    assert_int_equal(dtp_host_adam_create(&options, &adam, NULL), DTP_OK);
    fill(s);
    memcpy(before, s, sizeof *s);
    struct dtp_adamw_args a = args_of(s, &scalars, false);
    dtp_host_adam_step(adam, &a);
    assert_memory_equal(s, before, sizeof *s);
    dtp_host_adam_destroy(adam);
    free(s);
    free(before);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_as_the_reference),
        cmocka_unit_test(test_threads_do_not_change_a_bit),
        cmocka_unit_test(test_pure_states),
        cmocka_unit_test(test_what_it_leaves_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
