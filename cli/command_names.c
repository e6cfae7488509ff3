/* The names of the commands. */
#include "cli/arguments.h"

#include "base/append.h"
#include "base/nearest.h"
#include "base/word_table.h"

#include <stdio.h>
#include <string.h>

DTP_TEXT_AND_PARSE(command, DTP_COMMAND_TABLE, 0)

enum dtp_status dtp_command_unknown(const char *text, struct dtp_faults *faults)
{
    struct dtp_nearest nearest;
    char hint[128];
    dtp_nearest_begin(&nearest, text);
    for (int i = 0; i < DTP_COMMAND_COUNT; i++)
        dtp_nearest_offer(&nearest, command_words[i]);
    dtp_nearest_text(&nearest, hint, sizeof hint);
    if (hint[0])
        return dtp_fault(faults, DTP_BAD_INPUT, NULL, 0, "unknown command '%s'; %s", text, hint);
    char all[256] = "";
    for (int i = 0; i < DTP_COMMAND_COUNT; i++)
        dtp_append_part(all, sizeof all, ", ", "%s", command_words[i]);
    return dtp_fault(faults, DTP_BAD_INPUT, NULL, 0, "unknown command '%s'; commands are %s", text, all);
}
