#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "device/device.h"
#include "kernels/element.h"
#include "kernels/random.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { M = 7, N = 13, K = 9, PAD = 3 };
#define MATRIX 400 /* elements, more than any stored matrix has */

struct operands {
    float a[MATRIX], b[MATRIX], addend[MATRIX], bias[MATRIX], result[MATRIX], aux[MATRIX], bias_gradient[MATRIX];
};
static struct operands ours, theirs;
static struct dtp_faults faults;

static void fill(void *values, enum dtp_element element, uint32_t tensor)
{
    for (uint64_t i = 0; i < MATRIX; i++)
        dtp_store(values, element, i, dtp_random_normal(3, tensor, i));
}

static struct dtp_matmul_args arguments_of(struct operands *o, unsigned choice, struct dtp_matmul_args plain)
{
    struct dtp_matmul_args g = plain;
    fill(o->a, g.element, 1);
    fill(o->b, g.element, 2);
    fill(o->addend, g.result_element, 3);
    fill(o->bias, g.element, 4);
    fill(o->result, g.result_element, 5);
    fill(o->aux, g.element, 6);
    fill(o->bias_gradient, g.result_element, 7);
    g.a = o->a;
    g.b = o->b;
    g.result = o->result;
    g.addend = choice % 3 == 0 ? NULL : choice % 3 == 1 ? o->result : o->addend;
    g.bias = choice / 3 % 2 ? o->bias : NULL;
    g.aux = g.epilogue == DTP_EPILOGUE_NONE ? NULL : o->aux;
    g.bias_gradient = g.a_transposed && g.epilogue == DTP_EPILOGUE_NONE ? o->bias_gradient : NULL;
    return g;
}

static double worst(const void *a, const void *b, enum dtp_element element)
{
    double largest = 0;
    for (uint64_t i = 0; i < MATRIX; i++)
        largest = fmax(largest, fabs(dtp_load(a, element, i) - dtp_load(b, element, i)));
    return largest;
}

/* Sums of nine products of about one: 1e-6 is rounding in fp32; a bf16 result may fall on the other side of a tie, one
 * unit of 2^-8 of up to 16. */
static void compare(struct dtp_device *device, unsigned choice, struct dtp_matmul_args plain)
{
    struct dtp_matmul_args ours_args = arguments_of(&ours, choice, plain);
    struct dtp_matmul_args their_args = arguments_of(&theirs, choice, plain);
    assert_int_equal(device->verbs->prepare(device, DTP_KERNEL_matmul, &ours_args, &faults), DTP_OK);
    assert_int_equal(device->kernels.matmul(device->kernels.self, &ours_args, NULL), 0);
    assert_int_equal(dtp_reference_matmul(NULL, &their_args, NULL), 0);
    double error = worst(ours.result, theirs.result, plain.result_element);
    error = fmax(error, worst(ours.aux, theirs.aux, plain.element));
    error = fmax(error, worst(ours.bias_gradient, theirs.bias_gradient, plain.result_element));
    bool narrow = plain.element == DTP_ELEMENT_BF16 || plain.result_element == DTP_ELEMENT_BF16;
    if (!(error <= (narrow ? 0.0626 : 1e-5)))
        fail_msg("choice %u, types %d %d, epilogue %d, transposed %d %d: off by %g", choice, (int)plain.element,
                 (int)plain.result_element, (int)plain.epilogue, plain.a_transposed, plain.b_transposed, error);
}

static void test_every_form_against_the_reference(void **state)
{
    struct dtp_device *device;
    (void)state;
    assert_int_equal(dtp_device_host_create(&(struct dtp_device_options){.threads = 1}, &device, &faults), DTP_OK);
    for (unsigned form = 0; form < 3 * 2 * 2 * 2 * 2 * 3; form++) {
        unsigned rest = form / 6;
        struct dtp_matmul_args plain = {.m = M,
                                        .n = N,
                                        .k = K,
                                        .a_transposed = rest % 2,
                                        .b_transposed = rest / 2 % 2,
                                        .element = rest / 4 % 2 ? DTP_ELEMENT_BF16 : DTP_ELEMENT_FP32,
                                        .epilogue = (enum dtp_epilogue)(form / 48)};
        plain.lda = (plain.a_transposed ? M : K) + PAD;
        plain.ldb = (plain.b_transposed ? K : N) + PAD;
        plain.ldd = N + PAD;
        plain.result_element = plain.element;
        compare(device, form % 6, plain);
        plain.result_element = DTP_ELEMENT_FP32;
        compare(device, form % 6, plain);
    }
    device->verbs->destroy(device);
}

static void test_unprepared_is_refused(void **state)
{
    struct dtp_device *device;
    (void)state;
    assert_int_equal(dtp_device_host_create(&(struct dtp_device_options){.threads = 1}, &device, &faults), DTP_OK);
    struct dtp_matmul_args g = arguments_of(
        &ours, 0,
        (struct dtp_matmul_args){.m = M, .n = N, .k = K, .lda = K, .ldb = N, .ldd = N, .element = DTP_ELEMENT_BF16});
    int code = device->kernels.matmul(device->kernels.self, &g, NULL);
    assert_int_not_equal(code, 0);
    assert_non_null(strstr(device->verbs->error_text(device, code), "not prepared"));
    device->verbs->destroy(device);
}

static void test_memory(void **state)
{
    struct dtp_device *device;
    struct dtp_device_memory memory;
    void *arena;
    (void)state;
    assert_int_equal(dtp_device_host_create(&(struct dtp_device_options){0}, &device, &faults), DTP_OK);
    assert_int_equal(device->verbs->memory(device, &memory, &faults), DTP_OK);
    assert_true(memory.free_bytes > 0 && memory.free_bytes <= memory.total_bytes);
    assert_int_equal(device->verbs->allocate(device, memory.total_bytes * 2, &arena, &faults), DTP_NO);
    assert_null(arena);
    assert_int_equal(device->verbs->allocate(device, 5000, &arena, &faults), DTP_OK);
    assert_int_equal((uintptr_t)arena % 4096, 0);
    device->verbs->release(device, arena);
    device->verbs->destroy(device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_every_form_against_the_reference),
                                       cmocka_unit_test(test_unprepared_is_refused), cmocka_unit_test(test_memory)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
