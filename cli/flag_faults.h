/* What is said of a flag that a command does not take. */
#ifndef DTP_FLAG_FAULTS_H
#define DTP_FLAG_FAULTS_H

#include "cli/arguments.h"

/* "--micro-batch" without its leading hyphens and any "=value", as a key: "micro_batch". */
void dtp_flag_key(const char *flag, char *key, size_t bytes);

/* No command takes it: names the flags of this one that resemble it. */
void dtp_flag_unknown(const char *flag, enum dtp_command command, struct dtp_faults *faults);
/* An option of other commands: names these. */
void dtp_flag_of_others(const struct dtp_option *option, enum dtp_command command, struct dtp_faults *faults);

#endif
