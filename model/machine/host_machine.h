/* The cores of a machine in place of GPUs: what ranks of the host device run on.
 *
 * Not a row of the catalogue, for no two machines are alike. Of this machine the system tells the name, the cores and
 * the memory; how fast they are only a probe tells (`dtplan probe --device host`). Without its file there is memory
 * and there are bytes to predict, and no time: rates are then NOMINAL, which no report shows. */
#ifndef DTP_HOST_MACHINE_H
#define DTP_HOST_MACHINE_H

#include "machine/machine.h"
#include "machine/measured.h"

#define DTP_HOST_KEY "host" /* of the GPU and of the machine */
#define DTP_HOST_MOST_RANKS 1024

/* "AMD EPYC 7B13" of /proc/cpuinfo, "unknown processor" where it is not told. */
void dtp_host_processor(char *out, size_t bytes);
/* Cores that are online; at least 1. */
uint32_t dtp_host_cores(void);

/* This machine, without times. */
void dtp_host_describe(struct dtp_gpu *gpu, struct dtp_machine *machine);
/* The machine that a file was measured on: its rates are the best that any row reached, for bounds and shares; times
 * come of the rows themselves. */
void dtp_host_of_rows(const struct dtp_measured_rows *rows, struct dtp_gpu *gpu, struct dtp_machine *machine);

#endif
