/* Model files among the models of a catalogue: each is read once, however many combinations a search makes of it. */
#include "machine/catalog.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

bool dtp_model_is_file(const char *name)
{
    size_t length = strlen(name);
    return strchr(name, '/') || (length > 5 && !strcmp(name + length - 5, ".json"));
}

const char *dtp_model_hub_name(const char *name)
{
    const char *slash = strchr(name, '/'), *end = strrchr(name, '.');
    bool other = !slash || !slash[1] || strchr(slash + 1, '/') || *name == '.' || slash == name ||
                 (end && !strcmp(end, ".json")) || access(name, F_OK) == 0;
    return other ? NULL : slash + 1;
}

const struct dtp_hf_config *dtp_catalog_config(const struct dtp_catalog *catalog, const char *path)
{
    for (size_t i = 0; i < catalog->config_count; i++)
        if (strcmp(catalog->configs[i].path, path) == 0)
            return &catalog->configs[i].config;
    return NULL;
}

static enum dtp_status read_one(struct dtp_catalog *catalog, const char *path, struct dtp_faults *faults)
{
    struct dtp_faults *unsaid; /* a file that is refused is said by the resolution that wants it, with its key */
    struct dtp_config_file file, *grown;
    if (!dtp_model_is_file(path) || dtp_catalog_config(catalog, path))
        return DTP_OK;
    unsaid = calloc(1, sizeof *unsaid);
    grown = realloc(catalog->configs, (catalog->config_count + 1) * sizeof *grown);
    if (grown)
        catalog->configs = grown;
    file.path = strdup(path);
    if (!unsaid || !grown || !file.path) {
        free(unsaid);
        free(file.path);
        return dtp_fault(faults, DTP_ENVIRONMENT, path, 0, "out of memory");
    }
    if (dtp_hf_config_read(path, &file.config, unsaid) == DTP_OK)
        catalog->configs[catalog->config_count++] = file;
    else
        free(file.path);
    free(unsaid);
    return DTP_OK;
}

enum dtp_status dtp_catalog_read_models(struct dtp_catalog *catalog, const char *names, struct dtp_faults *faults)
{
    enum dtp_status worst = DTP_OK;
    char *copy = strdup(names), *rest = copy;
    if (!copy)
        return dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "out of memory");
    for (char *name; (name = strsep(&rest, ","));) {
        enum dtp_status status = read_one(catalog, name, faults);
        worst = status > worst ? status : worst;
    }
    free(copy);
    return worst;
}
