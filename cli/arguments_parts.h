/* Flags as words; private to cli/arguments*.c. */
#ifndef DTP_ARGUMENTS_PARTS_H
#define DTP_ARGUMENTS_PARTS_H

#include "cli/arguments.h"

/* "--micro-batch" without its leading hyphens and any "=value", as a key: "micro_batch". */
void dtp_key_of_flag(const char *flag, char *key, size_t bytes);
/* Names the flags of the command that resemble the typed one. */
void dtp_fault_unknown_flag(const char *flag, enum dtp_command command, struct dtp_faults *faults);

/* A value that is no such number is a fault. */
void dtp_argument_most(uint32_t *out, const char *flag, const char *value, struct dtp_faults *faults);
void dtp_argument_whole(uint64_t *out, const char *flag, const char *value, uint64_t minimum, uint64_t maximum,
                        struct dtp_faults *faults);
void dtp_argument_factor(double *out, const char *flag, const char *value, double minimum, double maximum,
                         struct dtp_faults *faults);
void dtp_argument_tolerance(struct dtp_arguments *a, const char *value, struct dtp_faults *faults);

#endif
