/* How many combinations a second a search judges: one 8-GPU question as large as the largest published one (Calculon's,
 * 190,000 configurations), on all cores. build/bench_search */
#include "base/clock.h"
#include "machine/catalog.h"
#include "base/host_arena.h"
#include "base/parallel.h"
#include "sim/search.h"

#include <stdio.h>
#include <stdlib.h>

static struct dtp_faults faults;

static void check(enum dtp_status status)
{
    if (status == DTP_OK || status == DTP_NO)
        return;
    fprintf(stderr, "%s\n", faults.text[0]);
    exit(1);
}

int main(void)
{
    dtp_host_memory_keep();
    static const char *const question[][2] = {
        {"model", "llama-2-7b"},
        {"tokens", "100B"},
        {"seq", "4k"},
        {"loss", "eager,fused,chunked"},
        {"wrap_layers", "1,2,4"},
        {"prefetch", "true,false"},
        {"gpu", "h100-sxm"},
        {"gpus", "8"},
        {"precision", "bf16-mixed,bf16,fp8-tensorwise"},
        {"strategy", "ddp,zero1,zero2,full_shard,shard_grad_op,hybrid_shard"},
        {"offload", "none,optimizer,params"},
        {"checkpointing", "none,full,selective,selective-attention,every-2,every-4"},
        {"compile", "true,false"},
        {"accumulate", "1,2,4,8"},
        {"micro_batch", "1,2,3,4,6,8,12,16"}};
    struct dtp_catalog catalog;
    struct dtp_scenario *base;
    struct dtp_axes axes = {0};
    struct dtp_search search;
    check(dtp_catalog_load(TEST_SOURCE_DIR "/scenarios", &catalog, &faults));
    check(dtp_scenario_create(&base, &faults));
    for (size_t i = 0; i < sizeof question / sizeof *question; i++)
        check(dtp_axes_add(&axes, &catalog, question[i][0], question[i][1], "bench", &faults));
    struct dtp_search_question q = {.base = base, .axes = &axes, .catalog = &catalog, .simulate_count = 24};
    double start_s = dtp_now_s();
    check(dtp_search(&q, &search, &faults));
    double took_s = dtp_now_s() - start_s;
    printf("search: %llu combinations (%llu refused, %llu pruned, %llu predicted, %llu simulated; memory of %llu "
           "estimated, %llu groups scanned again) in %.2f s on %u "
           "cores\n",
           (unsigned long long)search.counts.combinations, (unsigned long long)search.counts.refused,
           (unsigned long long)(search.counts.pruned_time + search.counts.pruned_memory),
           (unsigned long long)search.counts.predicted, (unsigned long long)search.counts.simulated,
           (unsigned long long)search.counts.estimated, (unsigned long long)search.counts.scanned_again, took_s,
           dtp_parallel_threads());
    dtp_search_release(&search);
    dtp_axes_release(&axes);
    dtp_scenario_destroy(base);
    dtp_catalog_destroy(&catalog);
    return 0;
}
