#include "import/entries.h"

#include "base/grow.h"
#include "base/number.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void dtp_entries_release(struct dtp_entries *entries)
{
    free(entries->items);
    dtp_host_arena_release(&entries->arena);
    memset(entries, 0, sizeof *entries);
}

static const char *keep(struct dtp_entries *entries, const char *text)
{
    size_t bytes = strlen(text) + 1;
    char *copy = dtp_host_arena_take(&entries->arena, bytes, 1);
    return copy ? memcpy(copy, text, bytes) : NULL;
}

const char *dtp_entries_text(struct dtp_entries *entries, const char *format, ...)
{
    char text[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    return keep(entries, text);
}

struct dtp_entry *dtp_entries_find(const struct dtp_entries *entries, const char *path)
{
    for (size_t i = 0; i < entries->count; i++)
        if (strcmp(entries->items[i].path, path) == 0)
            return &entries->items[i];
    return NULL;
}

enum dtp_status dtp_entries_add(struct dtp_entries *entries, const char *path, const char *value, size_t line,
                                struct dtp_faults *faults)
{
    /* Entries of a list's tables share one path: they are many settings of one kind, none of which is the plan's. */
    const struct dtp_entry *before = strstr(path, "[]") ? NULL : dtp_entries_find(entries, path);
    if (before)
        return dtp_fault(faults, DTP_BAD_INPUT, entries->name, line,
                         "%s stands here and in line %zu; leave one of them out", path, before->line);
    if (entries->count == DTP_ENTRIES_MOST) {
        if (!entries->too_many)
            (void)dtp_fault(faults, DTP_BAD_INPUT, entries->name, line,
                            "has more than %d settings: no configuration of a training", DTP_ENTRIES_MOST);
        entries->too_many = true;
        return DTP_BAD_INPUT;
    }
    struct dtp_entry entry = {.path = keep(entries, path), .value = keep(entries, value), .line = line};
    if (!entry.path || !entry.value ||
        !dtp_grow(&entries->items, entries->count, &entries->room, sizeof *entries->items))
        return dtp_fault(faults, DTP_ENVIRONMENT, entries->name, line, "out of memory");
    entries->items[entries->count++] = entry;
    return DTP_OK;
}

/* ".name" is beside the setting that says it: what OmegaConf calls relative. */
static const struct dtp_entry *find_from(const struct dtp_entries *entries, const struct dtp_entry *from,
                                         const char *path)
{
    char whole[512];
    const char *last = strrchr(from->path, '.');
    if (path[0] != '.')
        return dtp_entries_find(entries, path);
    snprintf(whole, sizeof whole, "%.*s%.200s", last ? (int)(last - from->path) : 0, from->path,
             last ? path : path + 1);
    return dtp_entries_find(entries, whole);
}

/* NeMo's resolver "${multiply:4, ${.hidden_size}}" of two whole numbers; what else it is stays as it stands. */
static void multiply(struct dtp_entries *entries, struct dtp_entry *entry)
{
    char factor[2][256], path[256];
    uint64_t product = 1;
    if (sscanf(entry->value, "${multiply:%255[^,], %255[^\n]", factor[0], factor[1]) != 2)
        return;
    factor[1][strlen(factor[1]) - 1] = '\0'; /* the brace that ends the whole */
    for (size_t i = 0; i < 2; i++) {
        uint64_t number;
        const struct dtp_entry *target =
            sscanf(factor[i], "${%255[^}]", path) == 1 ? find_from(entries, entry, path) : NULL;
        if (!dtp_number_parse_integer(target ? target->value : factor[i], false, 1, 1u << 30, &number))
            return;
        product *= number;
    }
    const char *text = dtp_entries_text(entries, "%" PRIu64, product);
    entry->value = text ? text : entry->value;
}

/* The path between "${" and "}", where the value is nothing else. */
static bool is_reference(const char *value, char *path, size_t bytes)
{
    size_t length = strlen(value);
    if (length < 4 || length - 3 >= bytes || strncmp(value, "${", 2) != 0 || value[length - 1] != '}')
        return false;
    snprintf(path, bytes, "%.*s", (int)(length - 3), value + 2);
    return strpbrk(path, "${}:") == NULL; /* "${oc.env:HOME}" calls something */
}

enum dtp_status dtp_entries_interpolate(struct dtp_entries *entries, struct dtp_faults *faults)
{
    enum dtp_status status = DTP_OK;
    char path[256];
    for (size_t i = 0; i < entries->count; i++) {
        struct dtp_entry *entry = &entries->items[i];
        multiply(entries, entry);
        for (int steps = 0; is_reference(entry->value, path, sizeof path); steps++) {
            const struct dtp_entry *target = find_from(entries, entry, path);
            if (!target)
                break; /* of a table, or of what is set elsewhere: whoever uses the value refuses it */
            if (steps == DTP_ENTRIES_MOST_DEPTH) {
                status = dtp_fault(faults, DTP_BAD_INPUT, entries->name, entry->line,
                                   "%s refers to itself by way of %s", entry->path, path);
                break;
            }
            entry->value = target->value;
            entry->null = target->null;
        }
    }
    return status;
}
