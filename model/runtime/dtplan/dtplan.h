/* The runtime dtplan's own executor, of plan/runtime.h. */
#ifndef DTP_DTPLAN_RUNTIME_H
#define DTP_DTPLAN_RUNTIME_H

extern const struct dtp_runtime dtp_runtime_dtplan;

#endif
