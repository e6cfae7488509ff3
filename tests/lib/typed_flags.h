/* Flags that the program prints for its user to type, read as a shell and the command line would. */
#ifndef TEST_TYPED_FLAGS_H
#define TEST_TYPED_FLAGS_H

#include "job/scenario.h"

#include <stdio.h>
#include <string.h>

/* Sets "--key value", "--key=value", "--key" and "--no-key" behind what the scenario says; what is no flag is a fault,
 * and so is what it does not take. */
static inline void type_flags(const char *flags, struct dtp_scenario *scenario, struct dtp_faults *faults)
{
    char text[256], *rest = text, *word;
    snprintf(text, sizeof text, "%s", flags);
    for (word = strtok_r(rest, " ", &rest); word;) {
        char *next = strtok_r(rest, " ", &rest), *value = strchr(word, '=');
        if (strncmp(word, "--", 2) != 0) {
            dtp_fault(faults, DTP_BAD_INPUT, NULL, 0, "%s is no flag", word);
            return;
        }
        if (value)
            *value++ = '\0';
        else if (next && strncmp(next, "--", 2) != 0) {
            value = next;
            next = strtok_r(rest, " ", &rest);
        } else if (strncmp(word, "--no-", 5) == 0) {
            word += 3;
            value = "false";
        }
        dtp_scenario_set(scenario, word + 2, value, "typed", 0, faults);
        word = next;
    }
}

#endif
