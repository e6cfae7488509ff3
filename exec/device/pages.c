#include "device/pages.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <string.h>
#include <sys/mman.h>

#define HUGE_PAGE_BYTES (UINT64_C(2) << 20)
#define MAX_THREADS 64

struct stretch {
    pthread_t thread;
    unsigned char *begin;
    uint64_t bytes;
};

static void *touch(void *argument)
{
    const struct stretch *s = argument;
    memset(s->begin, 0, s->bytes);
    return NULL;
}

static void touch_all(unsigned char *memory, uint64_t bytes)
{
    struct stretch part[MAX_THREADS];
    cpu_set_t allowed;
    uint32_t started = 0,
             count = sched_getaffinity(0, sizeof allowed, &allowed) == 0 ? (uint32_t)CPU_COUNT(&allowed) : 1;
    count = count < MAX_THREADS ? count : MAX_THREADS;
    uint64_t pages = bytes / HUGE_PAGE_BYTES;
    for (uint32_t i = 0; i < count; i++) {
        uint64_t begin = pages * i / count * HUGE_PAGE_BYTES, end = pages * (i + 1) / count * HUGE_PAGE_BYTES;
        part[i] = (struct stretch){.begin = memory + begin, .bytes = end - begin};
    }
    while (started + 1 < count && pthread_create(&part[started].thread, NULL, touch, &part[started]) == 0)
        started++;
    for (uint32_t i = started; i < count; i++) /* the last, and those no thread was left for */
        touch(&part[i]);
    for (uint32_t i = 0; i < started; i++)
        pthread_join(part[i].thread, NULL);
}

static uint64_t whole(uint64_t bytes)
{
    return (bytes + HUGE_PAGE_BYTES - 1) / HUGE_PAGE_BYTES * HUGE_PAGE_BYTES;
}

enum dtp_status dtp_pages_take(uint64_t bytes, void **out, struct dtp_faults *faults)
{
    uint64_t mapped = whole(bytes) + HUGE_PAGE_BYTES;
    *out = NULL;
    unsigned char *memory = mmap(NULL, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        return dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "the host has no %.2f GiB: %s", (double)bytes / 0x1p30,
                         strerror(errno));
    uint64_t before = (HUGE_PAGE_BYTES - (uintptr_t)memory % HUGE_PAGE_BYTES) % HUGE_PAGE_BYTES;
    if (before)
        munmap(memory, before);
    munmap(memory + before + whole(bytes), HUGE_PAGE_BYTES - before);
    *out = memory + before;
    madvise(*out, whole(bytes), MADV_HUGEPAGE); /* refused: small pages serve too */
    touch_all(*out, whole(bytes));
    return DTP_OK;
}

void dtp_pages_release(void *memory, uint64_t bytes)
{
    munmap(memory, whole(bytes));
}
