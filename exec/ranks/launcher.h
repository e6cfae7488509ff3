/* Starts the ranks of a run on this machine, as torchrun would: the same program once per rank, with RANK, WORLD_SIZE,
 * LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT (ranks.h reads them), and waits until the last has ended.
 *
 * No process outlives this one: the kernel kills the ranks with it. When one ends badly the others are left
 * DTP_LAUNCH_GRACE_S to notice (control.h) and to say where they were; who is still there then gets SIGTERM, and
 * SIGKILL two seconds later. SIGINT and SIGTERM sent to this process go on to all ranks. */
#ifndef DTP_LAUNCHER_H
#define DTP_LAUNCHER_H

#include "base/status.h"

#include <stdint.h>

#define DTP_LAUNCH_GRACE_S 20.0
/* The same where one was killed by a signal before any had come together: nobody will hear of it by others. */
#define DTP_LAUNCH_KILLED_S 8.0

/* How a rank ended. */
struct dtp_rank_end {
    enum dtp_status status;
    int signal;  /* that ended it, by somebody else; 0: none */
    bool killed; /* it had to be, by this launcher */
};

struct dtp_launch {
    char *const *argv;
    uint32_t ranks;
    double grace_s;                             /* 0: DTP_LAUNCH_GRACE_S, or DTP_LAUNCH_KILLED_S */
    void (*tell)(void *context, uint32_t rank); /* in the rank's process, before it is the program; NULL: nothing */
    int (*tick)(void *context);                 /* some times a second: a signal for all ranks, 0: none; NULL: none */
    void *context;
    struct dtp_rank_end *ends; /* of all ranks; NULL: nobody asks */
    bool *stopped;             /* set where a signal told this process to stop; NULL */
};
/* As dtp_launch, which is this with its first two fields. */
enum dtp_status dtp_launch_ranks(const struct dtp_launch *launch, struct dtp_faults *faults);

/* `argv` is NULL-ended, argv[0] the program's path; rank 0 inherits standard output, the others' goes nowhere; all
 * inherit standard error. Status: the worst of the ranks', DTP_ENVIRONMENT for one that a signal ended. Faults name
 * ranks that signals ended and those that had to be killed; ranks that ended by themselves have said why. */
enum dtp_status dtp_launch(char *const argv[], uint32_t ranks, struct dtp_faults *faults);

#endif
