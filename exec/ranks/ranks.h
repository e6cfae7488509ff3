/* Which rank of how many this process is, as its launcher says.
 *
 * Launchers speak by environment variables: torchrun (RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR,
 * MASTER_PORT; `dtplan run --gpus N` starts its ranks with the same), Slurm's srun (SLURM_PROCID, SLURM_NTASKS,
 * SLURM_LOCALID, SLURM_NTASKS_PER_NODE, SLURM_LAUNCH_NODE_IPADDR or the first of SLURM_NODELIST, SLURM_JOB_ID) and Open
 * MPI's mpirun (OMPI_COMM_WORLD_RANK, _SIZE, _LOCAL_RANK, _LOCAL_SIZE). MASTER_ADDR and MASTER_PORT count under all. */
#ifndef DTP_RANKS_H
#define DTP_RANKS_H

#include "base/status.h"

#include <stdint.h>

#define DTP_RANKS_MAX 65536u
#define DTP_RANKS_DEFAULT_PORT 29500u

struct dtp_ranks {
    uint32_t rank, world;             /* world 1: no launcher, or one that started a single process */
    uint32_t local_rank, local_world; /* on this machine; local_rank is the GPU's ordinal */
    char host[256];                   /* where rank 0 listens */
    uint16_t port;
    char launcher[32]; /* "torchrun", "srun", "mpirun"; "" without one */
};

/* Reads the environment through `get`, which is getenv but for tests. Refuses (DTP_BAD_INPUT, all faults at once) a
 * launcher that says half of it, numbers that are none, a rank not below the world, several machines without an address
 * of the first. The port is MASTER_PORT, but one more under torchrun's agent, which listens there itself; under srun
 * without MASTER_PORT it follows from the job's number, so that two jobs on a node do not meet. */
enum dtp_status dtp_ranks_read(char *(*get)(const char *name), struct dtp_ranks *out, struct dtp_faults *faults);

#endif
