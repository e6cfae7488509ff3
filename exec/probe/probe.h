/* Measures this machine, for a measured machine file (model/machine/measured_row.h).
 *
 * Compute is not measured by a zoo of benchmarks but by what it is for: step programs of two layers, lowered, placed,
 * bound and walked as `run` does, of many widths and micro-batches, every operation between two events. All ranks do so
 * at the same time, each for itself, so that GPUs that share power or air are measured as they will be used. Then,
 * where there are several: collectives over sizes and groups, alone; step programs that shard, whole, without their
 * collectives and with nothing else, for what the two do to each other; copies and AdamW of the host, one rank alone
 * and all at once.
 *
 * A figure is a median over repetitions, operations and ranks, of random data, after warm-up; results are checked
 * before a figure is accepted. Rank 0 says what happens as lines of JSON:
 *
 *   start     device, libraries, gpu (true: no host device), ranks, nodes, memory
 *   progress  done, count, words
 *   warning   words
 *   row       measurement, what, dtype, text, and the numbers of a row
 *   end       interrupted */
#ifndef DTP_PROBE_H
#define DTP_PROBE_H

#include "machine/catalog.h"
#include "ranks/ranks.h"
#include "device/settings.h"

#include <signal.h>
#include <stdio.h>

/* Cores of a host are shared: what a kernel takes depends on how many ranks compute beside it. So a host is probed in
 * passes, by one rank, by two, by four and at last by all, and each row says by how many. Of a pass before the last
 * only rows come, and of those what ranks do by themselves. */
struct dtp_probe_pass {
    uint32_t index, count; /* of GPUs: 0 of 1 */
};

struct dtp_probe_job {
    const struct dtp_catalog *catalog;
    const struct dtp_settings *settings;
    const char *const *keys; /* "KEY=VALUE": those of the section cluster are for all programs; others describe a job
                                whose shapes are measured as well */
    size_t key_count;
    struct dtp_ranks ranks;
    struct dtp_probe_pass pass;
    const struct dtp_measured_machine *known; /* the file that the keys name: only what GPUs do together is measured.
                                                 NULL: all is. Borrowed */
    FILE *events;                             /* NULL: silent */
    const volatile sig_atomic_t *stop;        /* set by a signal: ends after the measurement at hand */
};

/* Passes of a probe of so many ranks, and the ranks of one. */
uint32_t dtp_probe_pass_count(const struct dtp_settings *settings, uint32_t ranks);
uint32_t dtp_probe_pass_ranks(const struct dtp_settings *settings, uint32_t ranks, uint32_t pass);

/* Ranks that --gpus asks for, or where it does not GPUs of this machine; of a host a rank for each of up to four cores.
 * DTP_BAD_INPUT: more than there are. */
enum dtp_status dtp_probe_ranks(const struct dtp_probe_job *job, uint32_t *out, struct dtp_faults *faults);
/* `gpus` of one node; with --pretend-nodes in nodes of as many as --gpus-per-node says. Only counts and network are
 * known of it. DTP_BAD_INPUT: other nodes are asked for than there are. */
enum dtp_status dtp_probe_cluster(const struct dtp_probe_job *job, uint32_t gpus, struct dtp_cluster *out,
                                  struct dtp_faults *faults);

/* One rank's part of it. DTP_NO: a result was wrong. DTP_ENVIRONMENT: stopped by a signal too. */
enum dtp_status dtp_probe(const struct dtp_probe_job *job, struct dtp_faults *faults);

#endif
