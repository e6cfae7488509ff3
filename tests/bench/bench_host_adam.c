/* AdamW on cores of the host beside a memcpy of as many bytes: bench_host_adam [million elements] [threads ...].
 * Counted are the bytes that the formula moves (dtp_executor_optimizer_bytes): of each parameter the gradient read, the
 * weight written, master and moments both. Each figure is the best of ROUNDS; memory is touched by the threads that use
 * it, and arrays do not begin at multiples of large powers of two, where they would share the sets of every cache. */
#include "base/clock.h"
#include "device/host_adam.h"

#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define ROUNDS 7
#define APART_BYTES UINT64_C(4352)

struct share {
    char *to, *from;
    size_t bytes;
};

static void *copy_share(void *argument)
{
    const struct share *s = argument;
    memcpy(s->to, s->from, s->bytes);
    return NULL;
}

/* Half of the bytes are read and half written. */
static double copy_s(char *memory, size_t moved_bytes, uint32_t threads)
{
    double best = 1e9;
    pthread_t thread[256];
    struct share share[256];
    size_t each = moved_bytes / 2 / threads;
    for (int round = 0; round < ROUNDS; round++) {
        double begin = dtp_now_s();
        for (uint32_t i = 0; i < threads; i++) {
            share[i] = (struct share){memory + 2 * i * each, memory + (2 * i + 1) * each, each};
            if (pthread_create(&thread[i], NULL, copy_share, &share[i]) != 0)
                exit(3);
        }
        for (uint32_t i = 0; i < threads; i++)
            pthread_join(thread[i], NULL);
        double seconds = dtp_now_s() - begin;
        best = seconds < best ? seconds : best;
    }
    return best;
}

static double adam_s(struct dtp_host_adam *adam, const struct dtp_adamw_args *args)
{
    double best = 1e9;
    for (int round = 0; round < ROUNDS; round++) {
        double begin = dtp_now_s();
        dtp_host_adam_step(adam, args);
        double seconds = dtp_now_s() - begin;
        best = seconds < best ? seconds : best;
    }
    return best;
}

static void measure(char *memory, uint64_t count, uint32_t threads, enum dtp_element gradient)
{
    struct dtp_step_scalars scalars = {
        .learning_rate = 1e-3f, .correction1 = 0.1f, .correction2 = 0.05f, .clip_scale = 1};
    struct dtp_host_adam_options options = {.threads = threads};
    struct dtp_host_adam *adam;
    if (dtp_host_adam_create(&options, &adam, NULL) != DTP_OK)
        exit(3);
    dtp_host_adam_touch(adam, memory, 18 * count + 4 * APART_BYTES);
    uint64_t gradient_bytes = gradient == DTP_ELEMENT_BF16 ? 2 : 4;
    struct dtp_adamw_args args = {.master = (void *)memory,
                                  .moment1 = memory + 4 * count + APART_BYTES,
                                  .moment2 = memory + 8 * count + 2 * APART_BYTES,
                                  .gradient = memory + 12 * count + 3 * APART_BYTES,
                                  .weights = memory + 16 * count + 4 * APART_BYTES,
                                  .count = count,
                                  .beta1 = 0.9f,
                                  .beta2 = 0.95f,
                                  .epsilon = 1e-8f,
                                  .decay = 0.1f,
                                  .range_count = 1,
                                  .range_end = {count},
                                  .scalars = &scalars,
                                  .gradient_element = gradient,
                                  .weight_element = DTP_ELEMENT_BF16,
                                  .moment_element = DTP_ELEMENT_FP32};
    double bytes = (double)(26 + gradient_bytes) * (double)count, seconds = adam_s(adam, &args);
    dtp_host_adam_destroy(adam);
    double copied = copy_s(memory, (size_t)bytes / 2, threads);
    printf("%7u  %-8s  %10.1f  %10.1f  %12.1f\n", threads, gradient == DTP_ELEMENT_BF16 ? "bf16" : "fp32",
           bytes / seconds / 1e9, bytes / 2 / copied / 1e9, (double)count / seconds / 1e6);
}

int main(int argc, char **argv)
{
    uint64_t count = (argc > 1 ? strtoull(argv[1], NULL, 10) : 64) << 20;
    char *memory = mmap(NULL, 18 * count + 4 * APART_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED || count == 0)
        return 3;
    madvise(memory, 18 * count + 4 * APART_BYTES, MADV_HUGEPAGE);
    printf("threads  gradient  AdamW GB/s  memcpy GB/s  million elements/s\n");
    for (int i = 2; i < argc || i == 2; i++) {
        uint32_t threads = argc > 2 ? (uint32_t)strtoul(argv[i], NULL, 10) : 1;
        if (threads == 0 || threads > 256)
            return 2;
        measure(memory, count, threads, DTP_ELEMENT_FP32);
        measure(memory, count, threads, DTP_ELEMENT_BF16);
    }
    return 0;
}
