/* --from: what configuration files of frameworks say, as if it had been typed, and what became of each setting. */
#ifndef DTP_FROM_H
#define DTP_FROM_H

#include "cli/command.h"

/* Reads the files of the line and sets what the scenario has not and the line does not say. */
enum dtp_status dtp_from_apply(const struct dtp_context *context, const struct dtp_catalog *catalog,
                               struct dtp_scenario *scenario);
/* Behind a command that answered: a table on its page; where it printed no page or object, a line on standard error. */
void dtp_from_say(const struct dtp_context *context);
/* Adds the list `from` to the object that `text` is, where --json printed one. False: no memory. */
bool dtp_from_add_json(const struct dtp_context *context, char **text, size_t *bytes);

#endif
