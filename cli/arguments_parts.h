/* Flags as words; private to cli/arguments*.c. */
#ifndef DTP_ARGUMENTS_PARTS_H
#define DTP_ARGUMENTS_PARTS_H

#include "cli/arguments.h"

/* "--micro-batch" without its leading hyphens and any "=value", as a key: "micro_batch". */
void dtp_key_of_flag(const char *flag, char *key, size_t bytes);
/* Names the flags of the command that resemble the typed one. */
void dtp_fault_unknown_flag(const char *flag, enum dtp_command command, struct dtp_faults *faults);

#endif
