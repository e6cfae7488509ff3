#include "machine/catalog.h"

#include "machine/catalog_rows.h"
#include "machine/host_machine.h"
#include "machine/measured.h"
#include "base/nearest.h"

#include <assert.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

/* ---- life ------------------------------------------------------------------------------------------------------- */

void dtp_catalog_destroy(struct dtp_catalog *catalog)
{
    if (!catalog->borrows) {
        free(catalog->gpus);
        free(catalog->machines);
        free(catalog->models);
        free(catalog->prices);
        free(catalog->provenance);
        free(catalog->aliases);
    }
    for (size_t i = 0; i < catalog->measured_count; i++) {
        free(catalog->measured[i].path);
        dtp_measured_destroy(catalog->measured[i].times);
    }
    free(catalog->measured);
    for (size_t i = 0; i < catalog->config_count; i++)
        free(catalog->configs[i].path);
    free(catalog->configs);
    *catalog = (struct dtp_catalog){0};
}

void dtp_catalog_borrow(const struct dtp_catalog *from, struct dtp_catalog *out)
{
    assert(from->measured_count == 0 && from->config_count == 0);
    *out = *from;
    out->measured = NULL;
    out->configs = NULL;
    out->borrows = true;
}

/* Copies an array with the room that further items are added to (dtp_catalog_room); NULL only when memory is out. */
static void *copy_items(const void *items, size_t count, size_t item_bytes)
{
    void *copy = malloc(dtp_catalog_room(count) * item_bytes);
    if (copy && count)
        memcpy(copy, items, count * item_bytes);
    return copy;
}

static bool copy_catalog(const struct dtp_catalog *from, struct dtp_catalog *out)
{
    *out = *from;
    out->borrows = false;
    out->measured = NULL; /* the times have one owner */
    out->measured_count = 0;
    out->configs = NULL; /* likewise */
    out->config_count = 0;
    out->gpus = copy_items(from->gpus, from->gpu_count, sizeof *from->gpus);
    out->machines = copy_items(from->machines, from->machine_count, sizeof *from->machines);
    out->models = copy_items(from->models, from->model_count, sizeof *from->models);
    out->prices = copy_items(from->prices, from->price_count, sizeof *from->prices);
    out->provenance = copy_items(from->provenance, from->provenance_count, sizeof *from->provenance);
    out->aliases = copy_items(from->aliases, from->alias_count, sizeof *from->aliases);
    if (out->gpus && out->machines && out->models && out->prices && out->provenance && out->aliases)
        return true;
    dtp_catalog_destroy(out);
    return false;
}

static enum dtp_status add_file(const char *path, bool check_references, struct dtp_catalog *catalog,
                                struct dtp_faults *faults)
{
    struct dtp_table *table = NULL;
    enum dtp_status status = dtp_table_read(path, &table, faults);
    if (status == DTP_OK)
        status = dtp_catalog_add_table(table, check_references, catalog, faults);
    dtp_table_destroy(table);
    return status;
}

enum dtp_status dtp_catalog_load(const char *directory, struct dtp_catalog *out, struct dtp_faults *faults)
{
    /* In the order in which they refer to one another. */
    static const char *const files[] = {"gpus.csv",   "machines.csv",       "prices.csv",
                                        "models.csv", "models_experts.csv", "aliases.csv"};
    enum dtp_status worst = DTP_OK;
    *out = (struct dtp_catalog){0};
    dtp_host_describe(&out->host_gpu, &out->host_machine);
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        char path[PATH_MAX];
        if (snprintf(path, sizeof path, "%s/%s", directory, files[i]) >= (int)sizeof path)
            return dtp_fault(faults, DTP_BAD_INPUT, NULL, 0, "the name of the catalogue folder is too long");
        enum dtp_status status = add_file(path, worst == DTP_OK, out, faults);
        worst = status > worst ? status : worst;
    }
    if (worst != DTP_OK)
        dtp_catalog_destroy(out);
    return worst;
}

enum dtp_status dtp_catalog_add(const char *path, struct dtp_catalog *catalog, struct dtp_faults *faults)
{
    struct dtp_catalog changed;
    if (!copy_catalog(catalog, &changed))
        return dtp_fault(faults, DTP_ENVIRONMENT, path, 0, "out of memory");
    enum dtp_status status = add_file(path, true, &changed, faults);
    if (status != DTP_OK) {
        dtp_catalog_destroy(&changed);
        return status;
    }
    changed.measured = catalog->measured;
    changed.measured_count = catalog->measured_count;
    changed.configs = catalog->configs;
    changed.config_count = catalog->config_count;
    catalog->measured = NULL;
    catalog->measured_count = 0;
    catalog->configs = NULL;
    catalog->config_count = 0;
    dtp_catalog_destroy(catalog);
    *catalog = changed;
    return DTP_OK;
}

/* ---- look-ups --------------------------------------------------------------------------------------------------- */

/* Any of the arrays whose items begin with their key. */
struct keyed {
    const char *items;
    size_t count, item_bytes;
    const char *words, *page; /* for messages; of `dtplan catalog` */
    const char *others;       /* where those are that it does not have */
};

static const char *key_at(const struct keyed *keyed, size_t index)
{
    return keyed->items + index * keyed->item_bytes;
}

static const void *find_key(const struct keyed *keyed, const char *name)
{
    for (size_t i = 0; i < keyed->count; i++)
        if (dtp_names_equal(key_at(keyed, i), name))
            return key_at(keyed, i);
    return NULL;
}

/* An alias beside the key it stands for would only fill the list; one of another kind of table is no answer. */
static bool is_offered(const struct dtp_nearest *nearest, const char *key)
{
    bool found = !key;
    for (size_t i = 0; i < nearest->count; i++)
        found = found || nearest->names[i] == key;
    return found;
}

static void refuse_name(const struct dtp_catalog *catalog, const struct keyed *keyed, const char *name,
                        const char *where, size_t line, struct dtp_faults *faults)
{
    char nearest_text[256];
    struct dtp_nearest nearest;
    if (strchr(name, ',')) {
        dtp_fault(faults, DTP_BAD_INPUT, where, line,
                  "'%.64s' are several, and this takes one %s; dtplan sweep and dtplan search compare lists of them",
                  name, keyed->words);
        return;
    }
    dtp_nearest_begin(&nearest, name);
    for (size_t i = 0; i < keyed->count; i++)
        dtp_nearest_offer(&nearest, key_at(keyed, i));
    for (size_t i = 0; i < catalog->alias_count; i++)
        if (!is_offered(&nearest, find_key(keyed, catalog->aliases[i].key)))
            dtp_nearest_offer(&nearest, catalog->aliases[i].alias);
    dtp_nearest_text(&nearest, nearest_text, sizeof nearest_text);
    dtp_fault(faults, DTP_BAD_INPUT, where, line, "unknown %s '%.64s'; %s%s`dtplan catalog %s` lists them%s",
              keyed->words, name, nearest_text, *nearest_text ? " " : "", keyed->page, keyed->others);
}

static const void *look_up(const struct dtp_catalog *catalog, const struct keyed *keyed, const char *name,
                           const char *where, size_t line, struct dtp_faults *faults)
{
    const void *found = find_key(keyed, name);
    for (size_t i = 0; i < catalog->alias_count && !found; i++)
        if (dtp_names_equal(catalog->aliases[i].alias, name))
            found = find_key(keyed, catalog->aliases[i].key);
    if (!found && faults)
        refuse_name(catalog, keyed, name, where, line, faults);
    return found;
}

const struct dtp_gpu *dtp_catalog_gpu(const struct dtp_catalog *catalog, const char *name, const char *where,
                                      size_t line, struct dtp_faults *faults)
{
    struct keyed keyed = {(const char *)catalog->gpus, catalog->gpu_count, sizeof *catalog->gpus, "GPU", "gpus", ""};
    if (dtp_names_equal(name, DTP_HOST_KEY) && *catalog->host_gpu.key)
        return &catalog->host_gpu;
    return look_up(catalog, &keyed, name, where, line, faults);
}

const struct dtp_machine *dtp_catalog_machine(const struct dtp_catalog *catalog, const char *name, const char *where,
                                              size_t line, struct dtp_faults *faults)
{
    const struct dtp_measured_machine *measured = dtp_catalog_measured(catalog, name);
    if (measured && *measured->host_machine.key)
        return &measured->host_machine;
    if (dtp_names_equal(name, DTP_HOST_KEY) && *catalog->host_machine.key)
        return &catalog->host_machine;
    if (measured)
        name = measured->machine_key;
    else if (faults && dtp_machine_is_file(name)) {
        dtp_fault(faults, DTP_BAD_INPUT, where, line, "the machine file '%.200s' was not read", name);
        return NULL;
    }
    struct keyed keyed = {
        (const char *)catalog->machines, catalog->machine_count, sizeof *catalog->machines, "machine", "machines", ""};
    return look_up(catalog, &keyed, name, where, line, faults);
}

const struct dtp_transformer *dtp_catalog_model(const struct dtp_catalog *catalog, const char *name, const char *where,
                                                size_t line, struct dtp_faults *faults)
{
    struct keyed keyed = {(const char *)catalog->models,
                          catalog->model_count,
                          sizeof *catalog->models,
                          "model",
                          "models",
                          ", --model FILE.json reads a config.json"};
    return look_up(catalog, &keyed, name, where, line, faults);
}

const struct dtp_price *dtp_catalog_price(const struct dtp_catalog *catalog, const char *gpu_key)
{
    for (size_t i = 0; i < catalog->price_count; i++)
        if (!strcmp(catalog->prices[i].gpu_key, gpu_key))
            return &catalog->prices[i];
    return NULL;
}

const struct dtp_machine *dtp_catalog_default_machine(const struct dtp_catalog *catalog, const struct dtp_gpu *gpu)
{
    const struct dtp_machine *generic = NULL;
    if (gpu->architecture == DTP_GPU_HOST)
        return &catalog->host_machine;
    for (size_t i = 0; i < catalog->machine_count; i++) {
        const struct dtp_machine *machine = &catalog->machines[i];
        if (!strcmp(machine->gpu_key, gpu->key))
            return machine;
        if (!*machine->gpu_key && !generic)
            generic = machine;
    }
    return generic;
}

const struct dtp_provenance *dtp_catalog_provenance(const struct dtp_catalog *catalog, const char *key,
                                                    const char *quantity)
{
    for (size_t i = 0; i < catalog->provenance_count; i++)
        if (!strcmp(catalog->provenance[i].key, key) && !strcmp(catalog->provenance[i].quantity, quantity))
            return &catalog->provenance[i];
    return NULL;
}
