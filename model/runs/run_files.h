/* How files begin that dtplan-exec writes, for those who must know them again. */
#ifndef DTP_RUN_FILES_H
#define DTP_RUN_FILES_H

/* A row a step, of --log. */
#define DTP_STEP_LOG_BEGINS "step,loss,gradient_norm,learning_rate,"
/* A row an operation, of --op-times. */
#define DTP_OP_TIMES_BEGINS "op,alone_s,start_s,end_s\n"
#define DTP_ROLE_TIMES_BEGINS "role,op,alone_s,start_s,end_s\n"

#endif
