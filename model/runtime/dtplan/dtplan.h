/* The runtime dtplan's own executor, of plan/runtime.h, and what its files fill it with. */
#ifndef DTP_DTPLAN_RUNTIME_H
#define DTP_DTPLAN_RUNTIME_H

extern const struct dtp_runtime dtp_runtime_dtplan;

extern const struct dtp_closed_form_hooks dtp_executor_closed_form; /* closed_form_executor.c */

#endif
