/* dtplan doctor [COMMAND ...] [--device cuda|host] [--json]: what this machine lacks for which command. */
#include "cli/command.h"

#include "base/append.h"
#include "cli/doctor.h"
#include "page/grid.h"
#include "page/json_value.h"

#include <stdlib.h>
#include <string.h>

struct question {
    unsigned commands; /* that were named; 0: none, and all are told of */
    bool on_host;      /* --device host */
};

static enum dtp_status read_question(const struct dtp_arguments *a, struct question *out, struct dtp_faults *faults)
{
    enum dtp_status worst = DTP_OK;
    for (size_t i = 0; i < a->word_count; i++) {
        enum dtp_command command;
        if (dtp_command_parse(a->words[i], &command))
            out->commands |= 1u << command;
        else
            worst = dtp_command_unknown(a->words[i], faults);
    }
    for (size_t i = 0; i < a->passed_count; i++) {
        const char *device = a->passed[i].value;
        if (strcmp(device, "host") != 0 && strcmp(device, "cuda") != 0)
            worst = dtp_fault(faults, DTP_BAD_INPUT, NULL, 0, "--device: '%.40s' is neither cuda nor host", device);
        out->on_host = strcmp(device, "host") == 0;
    }
    return worst;
}

static bool is_asked(const struct question *q, const struct dtp_need *need)
{
    return (!q->commands || q->commands & need->commands) && !(q->on_host && need->needed == DTP_NEEDED_ON_GPUS);
}

/* Of named commands what they cannot do without; of none what all of them cannot do without. */
static bool stops(const struct question *q, const struct dtp_need *need)
{
    bool counts = need->needed == DTP_NEEDED || (need->needed == DTP_NEEDED_ON_GPUS && q->commands);
    bool all = !q->commands && !(need->commands & 1u << DTP_COMMAND_PLAN);
    return !need->found && counts && !all && is_asked(q, need);
}

static const char *needed_text(enum dtp_needed needed)
{
    static const char *const words[] = {"always", "on_gpus", "for_a_part"};
    return words[needed];
}

/* Names of what a command lacks of one kind, with commas between. */
static const char *lacks(const struct question *q, const struct dtp_need *needs, size_t count, int command,
                         enum dtp_needed needed, char *out, size_t bytes)
{
    out[0] = '\0';
    for (size_t i = 0; i < count; i++)
        if (!needs[i].found && needs[i].needed == needed && needs[i].commands & 1u << command && is_asked(q, &needs[i]))
            dtp_append_part(out, bytes, ", ", "%.*s", (int)strcspn(needs[i].name, "|"), needs[i].name);
    return out;
}

static enum dtp_ink say_command(const struct question *q, const struct dtp_need *needs, size_t count, int command,
                                char *out, size_t bytes)
{
    char list[512];
    out[0] = '\0';
    if (lacks(q, needs, count, command, DTP_NEEDED, list, sizeof list)[0]) {
        snprintf(out, bytes, "not on this machine: %.400s", list);
        return DTP_INK_RED;
    }
    bool gpus = !lacks(q, needs, count, command, DTP_NEEDED_ON_GPUS, list, sizeof list)[0];
    if (gpus)
        snprintf(out, bytes, "ready");
    else
        snprintf(out, bytes, "ready on cores (--device host), not on GPUs: %.400s", list);
    if (lacks(q, needs, count, command, DTP_NEEDED_FOR_PART, list, sizeof list)[0])
        dtp_append(out, bytes, "; without %.300s", list);
    return gpus ? DTP_INK_GREEN : q->commands ? DTP_INK_RED : DTP_INK_YELLOW;
}

/* Commands of which the same is said stand together. */
static void print_commands(const struct question *q, const struct dtp_need *needs, size_t count,
                           const struct dtp_page *page)
{
    char said[DTP_COMMAND_COUNT][900], names[400];
    enum dtp_ink inks[DTP_COMMAND_COUNT];
    unsigned always = 1u << DTP_COMMAND_HELP | 1u << DTP_COMMAND_DOCTOR; /* told of where they are named */
    unsigned told = q->commands ? 0 : always, asked = q->commands ? q->commands : ~0u;
    struct dtp_grid grid;
    for (int c = 0; c < DTP_COMMAND_COUNT; c++)
        inks[c] = say_command(q, needs, count, c, said[c], sizeof said[c]);
    dtp_page_heading(page, "COMMANDS", "and whether they do their work on this machine");
    dtp_grid_create(&grid, "ll");
    for (int c = 0; c < DTP_COMMAND_COUNT; c++) {
        if (told & 1u << c || !(asked & 1u << c))
            continue;
        names[0] = '\0';
        for (int k = c; k < DTP_COMMAND_COUNT; k++)
            if (!(told & 1u << k) && asked & 1u << k && strcmp(said[c], said[k]) == 0) {
                told |= 1u << k;
                dtp_append_part(names, sizeof names, ", ", "%s", dtp_command_text((enum dtp_command)k));
            }
        dtp_grid_row(&grid, inks[c]);
        dtp_grid_cell(&grid, "%s", names);
        dtp_grid_cell(&grid, "%s", said[c]);
    }
    dtp_grid_end(&grid, page, 2);
}

static void print_text(const struct question *q, const struct dtp_need *needs, size_t count,
                       const struct dtp_page *page)
{
    struct dtp_grid grid;
    char commands[200];
    bool needed = false;
    print_commands(q, needs, count, page);
    dtp_grid_create(&grid, "lll");
    for (size_t i = 0; i < count; i++) {
        if (!is_asked(q, &needs[i]))
            continue;
        if (!needed)
            dtp_page_heading(page, "NEEDS", "what they use, and where it is");
        needed = true;
        dtp_grid_row(&grid, needs[i].found ? DTP_INK_PLAIN : stops(q, &needs[i]) ? DTP_INK_RED : DTP_INK_YELLOW);
        dtp_grid_cell(&grid, "%.*s", (int)strcspn(needs[i].name, "|"), needs[i].name);
        dtp_grid_cell(&grid, "%s", needs[i].found ? "found" : "MISSING");
        dtp_grid_cell(&grid, "%s", needs[i].where);
    }
    dtp_grid_end(&grid, page, 2);
    bool headed = false;
    for (size_t i = 0; i < count; i++) {
        if (needs[i].found || !is_asked(q, &needs[i]))
            continue;
        if (!headed)
            dtp_page_heading(page, "TO HAVE IT", "");
        headed = true;
        dtp_page_say(page, 2, 6, "%.*s (%s%s: %s): %s", (int)strcspn(needs[i].name, "|"), needs[i].name,
                     dtp_doctor_commands_text(needs[i].commands, commands, sizeof commands),
                     needs[i].needed == DTP_NEEDED_ON_GPUS ? " on GPUs" : "", needs[i].part, needs[i].install);
    }
}

static json_t *commands_json(unsigned commands)
{
    json_t *list = json_array();
    for (int c = 0; c < DTP_COMMAND_COUNT; c++)
        if (commands & 1u << c)
            json_array_append_new(list, dtp_json_text(dtp_command_text((enum dtp_command)c)));
    return list;
}

static json_t *need_json(const struct dtp_need *n)
{
    json_t *need = json_object();
    json_object_set_new(need, "name", dtp_json_text(n->name));
    json_object_set_new(need, "commands", commands_json(n->commands));
    json_object_set_new(need, "needed", dtp_json_text(needed_text(n->needed)));
    json_object_set_new(need, "for", dtp_json_text(n->part));
    json_object_set_new(need, "found", json_boolean(n->found));
    json_object_set_new(need, "where", dtp_json_text(n->where));
    json_object_set_new(need, "install", dtp_json_text(n->found ? NULL : n->install));
    return need;
}

static enum dtp_status print_json(const struct question *q, const struct dtp_need *needs, size_t count, bool ready,
                                  FILE *file, struct dtp_faults *faults)
{
    json_t *root = json_object(), *list = json_array();
    for (size_t i = 0; i < count; i++)
        if (is_asked(q, &needs[i]))
            json_array_append_new(list, need_json(&needs[i]));
    json_object_set_new(root, "schema", dtp_json_text("dtplan.doctor/1"));
    json_object_set_new(root, "commands", commands_json(q->commands));
    json_object_set_new(root, "device", dtp_json_text(q->on_host ? "host" : "cuda"));
    json_object_set_new(root, "ready", json_boolean(ready));
    json_object_set_new(root, "needs", list);
    return dtp_json_dump(root, file, faults);
}

/* What is missing is the answer, so that it stands on the page; of named commands it is a fault as well. */
enum dtp_status dtp_command_doctor(const struct dtp_context *context)
{
    struct question question = {0};
    size_t count;
    enum dtp_status status = read_question(context->arguments, &question, context->faults);
    if (status != DTP_OK)
        return status;
    struct dtp_need *needs = dtp_doctor_look(&count);
    if (!needs)
        return dtp_fault(context->faults, DTP_ENVIRONMENT, NULL, 0, "out of memory");
    bool ready = true;
    for (size_t i = 0; i < count; i++)
        if (stops(&question, &needs[i])) {
            ready = false;
            dtp_fault(context->faults, DTP_ENVIRONMENT, NULL, 0, "%s is missing%s%s", needs[i].name,
                      needs[i].where[0] ? ": " : "", needs[i].where);
        }
    if (context->arguments->json)
        status = print_json(&question, needs, count, ready, context->out, context->faults);
    else
        print_text(&question, needs, count, &context->page);
    free(needs);
    return dtp_worse(status, ready ? DTP_OK : DTP_ENVIRONMENT);
}
