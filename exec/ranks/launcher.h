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

/* `argv` is NULL-ended, argv[0] the program's path; rank 0 inherits standard output, the others' goes nowhere; all
 * inherit standard error. Status: the worst of the ranks', DTP_ENVIRONMENT for one that a signal ended. Faults name
 * ranks that signals ended and those that had to be killed; ranks that ended by themselves have said why. */
enum dtp_status dtp_launch(char *const argv[], uint32_t ranks, struct dtp_faults *faults);

#endif
