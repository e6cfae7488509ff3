/* The names of the commands. */
#include "cli/arguments.h"

#include "base/append.h"
#include "base/nearest.h"
#include "base/word_table.h"

#include <stdio.h>
#include <string.h>

static const char *const command_names[DTP_COMMAND_COUNT] = {
    [DTP_COMMAND_PLAN] = "plan",         [DTP_COMMAND_EXPLAIN] = "explain",   [DTP_COMMAND_SIMULATE] = "simulate",
    [DTP_COMMAND_WHATIF] = "whatif",     [DTP_COMMAND_SWEEP] = "sweep",       [DTP_COMMAND_SEARCH] = "search",
    [DTP_COMMAND_BACKTEST] = "backtest", [DTP_COMMAND_CATALOG] = "catalog",   [DTP_COMMAND_CHART] = "chart",
    [DTP_COMMAND_REPORT] = "report",     [DTP_COMMAND_RUN] = "run",           [DTP_COMMAND_PROBE] = "probe",
    [DTP_COMMAND_VALIDATE] = "validate", [DTP_COMMAND_SCHEDULE] = "schedule", [DTP_COMMAND_HELP] = "help",
};

DTP_TEXT_AND_PARSE_OF_ARRAY(command, command_names, 0)

enum dtp_status dtp_command_unknown(const char *text, struct dtp_faults *faults)
{
    struct dtp_nearest nearest;
    char hint[128];
    dtp_nearest_begin(&nearest, text);
    for (int i = 0; i < DTP_COMMAND_COUNT; i++)
        dtp_nearest_offer(&nearest, command_names[i]);
    dtp_nearest_text(&nearest, hint, sizeof hint);
    if (hint[0])
        return dtp_fault(faults, DTP_BAD_INPUT, NULL, 0, "unknown command '%s'; %s", text, hint);
    char all[256] = "";
    for (int i = 0; i < DTP_COMMAND_COUNT; i++)
        dtp_append_part(all, sizeof all, ", ", "%s", command_names[i]);
    return dtp_fault(faults, DTP_BAD_INPUT, NULL, 0, "unknown command '%s'; commands are %s", text, all);
}
