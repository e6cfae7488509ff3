#include "gpu/tensors.h"

#include <cuda_runtime.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>

#define TENSORS 24

uint64_t random_state;
int failures, compared;

static struct tensor tensors[TENSORS];
static int tensor_count;
static char case_name[160];

static void need(bool condition, const char *what)
{
    if (condition)
        return;
    fprintf(stderr, "%s: %s (%s)\n", case_name, what, cudaGetErrorString(cudaGetLastError()));
    exit(1);
}

static uint32_t next_random(void)
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(random_state >> 32);
}

uint32_t random_below(uint32_t limit)
{
    return (uint32_t)((uint64_t)next_random() * limit >> 32);
}

/* Four uniform numbers have a variance of 4 / 12. */
void fill_random(void *values, enum dtp_element element, uint64_t count, double deviation)
{
    for (uint64_t i = 0; i < count; i++) {
        double sum = -2;
        for (int k = 0; k < 4; k++)
            sum += next_random() / 4294967296.0;
        dtp_store(values, element, i, sum * sqrt(3) * deviation);
    }
}

void case_begin(const char *format, ...)
{
    for (int i = 0; i < tensor_count; i++) {
        free(tensors[i].at[HOST]);
        free(tensors[i].start);
        free(tensors[i].of_round[0]);
        free(tensors[i].of_round[1]);
        cudaFree(tensors[i].at[DEVICE]);
    }
    memset(tensors, 0, sizeof tensors);
    tensor_count = 0;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(case_name, sizeof case_name, format, arguments);
    va_end(arguments);
}

static struct tensor *make(const char *name, enum dtp_element element, uint64_t count, uint64_t bytes)
{
    need(tensor_count < TENSORS, "too many tensors in a case");
    struct tensor *t = &tensors[tensor_count++];
    *t = (struct tensor){.name = name, .count = count, .bytes = bytes, .element = element};
    void **buffers[] = {&t->at[HOST], &t->start, &t->of_round[0], &t->of_round[1]};
    for (int i = 0; i < 4; i++)
        need((*buffers[i] = malloc(bytes + 1)) != NULL, "no host memory");
    need(cudaMalloc(&t->at[DEVICE], bytes + 1) == cudaSuccess, "no device memory");
    return t;
}

struct tensor *bytes_of(const char *name, const void *values, uint64_t bytes)
{
    struct tensor *t = make(name, DTP_ELEMENT_FP32, bytes / 4, bytes);
    memcpy(t->start, values, bytes);
    memcpy(t->at[HOST], values, bytes);
    return t;
}

struct tensor *integers(const char *name, const int32_t *values, uint64_t count)
{
    return bytes_of(name, values, count * sizeof *values);
}

struct tensor *input(const char *name, enum dtp_element element, uint64_t count, double deviation)
{
    struct tensor *t = make(name, element, count, count * dtp_element_bytes(element));
    fill_random(t->start, element, count, deviation);
    memcpy(t->at[HOST], t->start, t->bytes);
    return t;
}

struct tensor *result(const char *name, enum dtp_element element, uint64_t count, double ulps, double absolute)
{
    struct tensor *t = make(name, element, count, count * dtp_element_bytes(element));
    memset(t->start, 0xFF, t->bytes);
    memcpy(t->at[HOST], t->start, t->bytes);
    return updated(t, ulps, absolute);
}

struct tensor *updated(struct tensor *t, double ulps, double absolute)
{
    t->result = true, t->ulps = ulps, t->absolute = absolute;
    return t;
}

void restore_device(void)
{
    for (int i = 0; i < tensor_count; i++)
        need(cudaMemcpy(tensors[i].at[DEVICE], tensors[i].start, tensors[i].bytes, cudaMemcpyHostToDevice) ==
                 cudaSuccess,
             "copy");
}

void keep_round(int round)
{
    need(cudaDeviceSynchronize() == cudaSuccess, "kernel failed");
    for (int i = 0; i < tensor_count; i++) {
        struct tensor *t = &tensors[i];
        need(cudaMemcpy(t->of_round[round], t->at[DEVICE], t->bytes, cudaMemcpyDeviceToHost) == cudaSuccess, "copy");
    }
}

static double unit_in_last_place(enum dtp_element element, double value)
{
    if (value == 0)
        return 0;
    int exponent;
    frexp(value, &exponent); /* value in [2^(exponent - 1), 2^exponent) */
    switch (element) {
    case DTP_ELEMENT_BF16: return ldexp(1, exponent - 8);
    case DTP_ELEMENT_FP16: return ldexp(1, exponent > -13 ? exponent - 11 : -24); /* below 2^-14 all steps are alike */
    case DTP_ELEMENT_FP32:
    case DTP_ELEMENT_E4M3:
    case DTP_ELEMENT_E5M2:
    case DTP_ELEMENT_INT8: break; /* those of 8 bits are compared bit for bit */
    }
    return ldexp(1, exponent - 24);
}

/* Prints a line for the tensor: largest error, and the largest as a part of what is allowed there. */
static void compare_tensor(const struct tensor *t)
{
    double largest = 0, worst = 0;
    uint64_t at = 0;
    for (uint64_t i = 0; i < t->count; i++) {
        double expected = dtp_load(t->at[HOST], t->element, i), found = dtp_load(t->of_round[0], t->element, i);
        double error = fabs(found - expected), part;
        if (error == 0 || (isinf(expected) && expected == found))
            continue;
        part = error / (t->ulps * unit_in_last_place(t->element, expected) + t->absolute);
        if (!(part <= worst))
            at = i, worst = isnan(part) ? INFINITY : part;
        largest = error > largest || isnan(error) ? error : largest;
    }
    bool repeats = memcmp(t->of_round[0], t->of_round[1], t->bytes) == 0, good = worst <= 1 && repeats;
    printf("%-4s %-58s %-20s max error %9.2e, %5.2f of allowed%s", good ? "ok" : "FAIL", case_name, t->name, largest,
           worst, repeats ? "" : ", DOES NOT REPEAT");
    if (!good)
        printf(" [%llu]: %.9g, reference %.9g", (unsigned long long)at, dtp_load(t->of_round[0], t->element, at),
               dtp_load(t->at[HOST], t->element, at));
    printf("\n");
    failures += !good;
    compared++;
}

void compare(int status)
{
    need(status == 0, "was refused");
    for (int i = 0; i < tensor_count; i++)
        if (tensors[i].result)
            compare_tensor(&tensors[i]);
        else if (memcmp(tensors[i].start, tensors[i].of_round[0], tensors[i].bytes) != 0) {
            printf("FAIL %-58s %-20s is an input and was written\n", case_name, tensors[i].name);
            failures++;
        }
    fflush(stdout);
}
