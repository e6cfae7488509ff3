#include "ranks/cores.h"

#include "base/crc64.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A core's number, or CPU_SETSIZE where there is none. */
static unsigned long number_at(const char **text)
{
    char *end;
    if (!isdigit((unsigned char)**text))
        return CPU_SETSIZE;
    unsigned long value = strtoul(*text, &end, 10);
    *text = end;
    return value < CPU_SETSIZE ? value : CPU_SETSIZE;
}

bool dtp_cores_parse(const char *list, cpu_set_t *out)
{
    CPU_ZERO(out);
    for (;;) {
        unsigned long first = number_at(&list), last = first;
        if (*list == '-') {
            list++;
            last = number_at(&list);
        }
        if (first == CPU_SETSIZE || last == CPU_SETSIZE || first > last)
            return false;
        for (unsigned long i = first; i <= last; i++)
            CPU_SET(i, out);
        if (*list != ',')
            return *list == '\0' || *list == '\n';
        list++;
    }
}

static bool cores_of_node(int numa_node, cpu_set_t *out)
{
    char path[64], list[4096];
    snprintf(path, sizeof path, "/sys/devices/system/node/node%d/cpulist", numa_node);
    FILE *file = numa_node >= 0 ? fopen(path, "r") : NULL;
    bool read = file && fgets(list, sizeof list, file);
    if (file)
        fclose(file);
    return read && dtp_cores_parse(list, out);
}

/* Host names are not always different; what the kernel drew at its start is. */
static uint64_t machine(void)
{
    char words[512] = "";
    gethostname(words, 255);
    FILE *file = fopen("/proc/sys/kernel/random/boot_id", "r");
    size_t length = strlen(words);
    if (file && !fgets(words + length, (int)(sizeof words - length), file))
        words[length] = '\0';
    if (file)
        fclose(file);
    return dtp_crc64(0, words, strlen(words));
}

void dtp_cores_claim(int numa_node, struct dtp_cores_claim *out)
{
    cpu_set_t near, both;
    memset(out, 0, sizeof *out);
    out->machine = machine();
    if (sched_getaffinity(0, sizeof out->pool, &out->pool) != 0 || !cores_of_node(numa_node, &near))
        return;
    CPU_AND(&both, &out->pool, &near);
    if (CPU_COUNT(&both) > 0)
        out->pool = both;
}

void dtp_cores_share(const struct dtp_cores_claim *claims, uint32_t ranks, uint32_t rank, cpu_set_t *out)
{
    const struct dtp_cores_claim *mine = &claims[rank];
    uint32_t peers = 0, place = 0, count = (uint32_t)CPU_COUNT(&mine->pool);
    for (uint32_t i = 0; i < ranks; i++) {
        bool same = claims[i].machine == mine->machine && CPU_EQUAL(&claims[i].pool, &mine->pool);
        place += same && i < rank;
        peers += same;
    }
    *out = mine->pool;
    if (count < peers)
        return;
    uint32_t begin = (uint32_t)((uint64_t)count * place / peers),
             end = (uint32_t)((uint64_t)count * (place + 1) / peers);
    for (unsigned core = 0, at = 0; core < CPU_SETSIZE; core++)
        if (CPU_ISSET(core, &mine->pool)) {
            if (at < begin || at >= end)
                CPU_CLR(core, out);
            at++;
        }
}

enum dtp_status dtp_cores_take(struct dtp_world *world, int numa_node, struct dtp_faults *faults)
{
    struct dtp_cores_claim claim, *all = calloc(world->ranks.world, sizeof *all);
    cpu_set_t share;
    if (!all)
        return dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "out of memory");
    dtp_cores_claim(numa_node, &claim);
    enum dtp_status status = dtp_world_exchange(world, &claim, sizeof claim, all, faults);
    if (status == DTP_OK) {
        dtp_cores_share(all, world->ranks.world, world->ranks.rank, &share);
        if (CPU_COUNT(&share) > 0)
            sched_setaffinity(0, sizeof share, &share);
    }
    free(all);
    return status;
}
