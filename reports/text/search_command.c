#include "record/search_report.h"

#include "page/shell_word.h"

#include <stdio.h>
#include <stdlib.h>

static void write_flag(FILE *file, const struct dtp_scenario *scenario, const struct dtp_scenario_key *key)
{
    char value[16];
    const char *text = dtp_scenario_get(scenario, key->key);
    if (!text)
        return;
    bool off = !key->value && dtp_scenario_plain(scenario, key->key, value, sizeof value) && value[0] == '0';
    fputs(off ? " --no-" : " --", file);
    for (const char *c = key->key; *c; c++)
        fputc(*c == '_' ? '-' : *c, file);
    if (!key->value)
        return;
    fputc(text[0] == '-' ? '=' : ' ', file);
    dtp_shell_word(file, text);
}

char *dtp_search_command(const struct dtp_search_question *question, const struct dtp_candidate *candidate)
{
    struct dtp_faults *faults = calloc(1, sizeof *faults);
    struct dtp_scenario *scenario = NULL;
    char *text = NULL;
    size_t bytes = 0, count;
    const struct dtp_scenario_key *keys = dtp_scenario_keys(&count);
    bool made = faults && dtp_scenario_copy(question->base, &scenario, faults) == DTP_OK &&
                dtp_search_apply(question, candidate, scenario, faults) == DTP_OK;
    FILE *file = made ? open_memstream(&text, &bytes) : NULL;
    if (file) {
        fputs("dtplan plan", file);
        for (size_t i = 0; i < count; i++)
            write_flag(file, scenario, &keys[i]);
        if (fclose(file) != 0) {
            free(text);
            text = NULL;
        }
    }
    dtp_scenario_destroy(scenario);
    free(faults);
    return text;
}
