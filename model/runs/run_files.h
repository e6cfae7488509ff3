/* How files begin that dtplan-exec writes, for those who must know them again. */
#ifndef DTP_RUN_FILES_H
#define DTP_RUN_FILES_H

#include <stdbool.h>
#include <string.h>

/* A row a step, of --log. */
#define DTP_STEP_LOG_BEGINS "step,loss,gradient_norm,learning_rate,"
/* A log of that name is an event file of TensorBoard, which knows them by "tfevents" in it. */
static inline bool dtp_step_log_is_events(const char *path)
{
    const char *name = strrchr(path, '/');
    return strstr(name ? name : path, "tfevents") != NULL;
}
/* A row an operation, of --op-times. */
#define DTP_OP_TIMES_BEGINS "op,alone_s,start_s,end_s\n"
#define DTP_ROLE_TIMES_BEGINS "role,op,alone_s,start_s,end_s\n"

#endif
