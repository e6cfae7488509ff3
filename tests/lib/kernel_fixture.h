/* Random tensors and finite differences for the tests of kernels. */
#ifndef DTP_TEST_KERNEL_FIXTURE_H
#define DTP_TEST_KERNEL_FIXTURE_H

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <cmocka.h>

#include "kernels/element.h"
#include "kernels/random.h"

#define COUNT(array) (sizeof(array) / sizeof *(array))

static inline void fill(float *values, size_t count, uint32_t tensor)
{
    for (size_t i = 0; i < count; i++)
        values[i] = (float)dtp_random_normal(1, tensor, i);
}

#define assert_close(a, b, tolerance) check_close((double)(a), (double)(b), tolerance, #a, __FILE__, __LINE__)
static inline void check_close(double a, double b, double tolerance, const char *what, const char *file, int line)
{
    if (fabs(a - b) <= tolerance * (1 + fabs(b)))
        return;
    print_error("%s: %.9g, expected %.9g\n", what, a, b);
    _fail(file, line);
}

/* sum of cotangent * output as a function of one input: its slope must be the gradient that a backward function gave
 * when handed `cotangent`. Values are float, about 1: a step of 2^-7 leaves 2^-24 * 2^7 of rounding and 2^-14 of
 * curvature. */
struct slope {
    int (*forward)(void *context);
    void *context;
    const float *output, *cotangent;
    size_t outputs;
};

static inline double weighted(const struct slope *s)
{
    double sum = 0;
    assert_int_equal(s->forward(s->context), 0);
    for (size_t i = 0; i < s->outputs; i++)
        sum += (double)s->output[i] * (double)s->cotangent[i];
    return sum;
}

static inline void check_slopes(const struct slope *s, float *input, const float *gradient, size_t inputs)
{
    const float step = 1.0f / 128;
    for (size_t i = 0; i < inputs; i++) {
        float kept = input[i];
        input[i] = kept + step;
        double above = weighted(s), upper = (double)input[i];
        input[i] = kept - step;
        double below = weighted(s), lower = (double)input[i];
        input[i] = kept;
        assert_close(gradient[i], (above - below) / (upper - lower), 2e-3);
    }
}

#endif
