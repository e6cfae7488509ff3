/* A kernel under test gets the same random tensors on the host and on the device, runs on both, and what it wrote is
 * compared element by element. Device memory of each tensor is an allocation of its own, so that a sanitizer sees a
 * step beyond it; every kernel runs twice on the device and must repeat bit for bit. */
#ifndef DTP_TEST_GPU_TENSORS_H
#define DTP_TEST_GPU_TENSORS_H

#include "kernels/element.h"

#include <stdio.h>

enum side { HOST, DEVICE, SIDES };

struct tensor {
    const char *name;
    void *at[SIDES];
    void *start;       /* what both held before the kernel */
    void *of_round[2]; /* what the device held after it ran, first and again */
    uint64_t count, bytes;
    enum dtp_element element;
    bool result;           /* compared */
    double ulps, absolute; /* an element may be off by ulps units in its last place and `absolute` */
};

/* Begins a case: its name is printed with what it finds. The last case's tensors are freed. */
void case_begin(const char *format, ...);

/* Tensors live until the next case begins. Inputs are roughly normal with this deviation; results are filled with NaN,
 * so that an element nobody wrote shows, unless they begin as `random`: then the kernel adds to them. */
struct tensor *input(const char *name, enum dtp_element element, uint64_t count, double deviation);
struct tensor *integers(const char *name, const int32_t *values, uint64_t count);
struct tensor *bytes_of(const char *name, const void *values, uint64_t bytes);
struct tensor *result(const char *name, enum dtp_element element, uint64_t count, double ulps, double absolute);
struct tensor *updated(struct tensor *input, double ulps, double absolute);
void fill_random(void *values, enum dtp_element element, uint64_t count, double deviation);
uint32_t random_below(uint32_t limit);

/* Device memory as before the kernel ran; what it holds after round 0 and 1; both against each other and the host's. */
void restore_device(void);
void keep_round(int round);
void compare(int status);

extern uint64_t random_state; /* seeded by main */
extern int failures, compared;

/* Runs the kernel with arguments[HOST] by the reference, with arguments[DEVICE] on the device, and compares. */
#define VERIFY(kernel, arguments)                                                                                      \
    do {                                                                                                               \
        int status = dtp_reference_##kernel(NULL, &(arguments)[HOST], NULL);                                           \
        for (int round = 0; round < 2; round++) {                                                                      \
            restore_device();                                                                                          \
            status = status ? status : dtp_cuda_##kernel(NULL, &(arguments)[DEVICE], NULL);                            \
            keep_round(round);                                                                                         \
        }                                                                                                              \
        compare(status);                                                                                               \
    } while (0)

/* Times the kernels whose line contains this part. */
int bench(const char *part_of_name);

#endif
