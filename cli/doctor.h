/* What this machine has of what commands need: doctor.def, looked for. */
#ifndef DTP_DOCTOR_H
#define DTP_DOCTOR_H

#include "base/status.h"

#define DTP_DOCTOR_WHERE_BYTES 256

/* What a command is without it. */
enum dtp_needed { DTP_NEEDED, DTP_NEEDED_ON_GPUS, DTP_NEEDED_FOR_PART };

struct dtp_need {
    const char *name; /* as in doctor.def; "a|b": either */
    unsigned commands;
    enum dtp_needed needed;
    const char *part, *install;
    bool found;
    char where[DTP_DOCTOR_WHERE_BYTES]; /* a path, a version, or why it is not found; "" where nothing is known */
};

/* Looks for all of them: starts `dtplan-exec --built-with`, ldconfig and python3 where these are there, and nothing
 * else. `count` needs in the order of the table. Caller frees; NULL: no memory. */
struct dtp_need *dtp_doctor_look(size_t *count);
/* "run on GPUs", "chart, simulate": whom a need is of; "tests" where no command has it. */
const char *dtp_doctor_commands_text(unsigned commands, char *out, size_t bytes);

#endif
