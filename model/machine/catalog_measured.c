/* Measured machine files among the machines of a catalogue. */
#include "machine/catalog.h"
#include "machine/host_machine.h"
#include "machine/measured.h"

#include <stdlib.h>
#include <string.h>

bool dtp_machine_is_file(const char *name)
{
    size_t length = strlen(name);
    return strchr(name, '/') || (length > 4 && strcmp(name + length - 4, ".csv") == 0);
}

const struct dtp_measured_machine *dtp_catalog_measured(const struct dtp_catalog *catalog, const char *name)
{
    for (size_t i = 0; i < catalog->measured_count; i++)
        if (strcmp(catalog->measured[i].path, name) == 0)
            return &catalog->measured[i];
    return NULL;
}

const struct dtp_gpu *dtp_catalog_measured_gpu(const struct dtp_catalog *catalog,
                                               const struct dtp_measured_machine *machine)
{
    return *machine->host_gpu.key
               ? &machine->host_gpu
               : dtp_catalog_gpu(catalog, dtp_measured_about(machine->times, "gpu_key"), NULL, 0, NULL);
}

/* The machine that the rows name, of a GPU that it holds. */
static const struct dtp_machine *machine_of(const struct dtp_catalog *catalog, const struct dtp_gpu *gpu,
                                            const struct dtp_measured_rows *rows, const char *path,
                                            struct dtp_faults *faults)
{
    const char *key = dtp_measured_rows_about(rows, "machine_key");
    const struct dtp_machine *machine =
        key ? dtp_catalog_machine(catalog, key, path, 0, faults) : dtp_catalog_default_machine(catalog, gpu);
    if (!machine && !key)
        dtp_fault(faults, DTP_BAD_INPUT, path, 0, "the catalogue has no machine for %s; add a row about,machine_key",
                  gpu->key);
    if (machine && *machine->gpu_key && strcmp(machine->gpu_key, gpu->key) != 0) {
        dtp_fault(faults, DTP_BAD_INPUT, path, 0, "machine_key %s holds %s, but gpu_key is %s", machine->key,
                  machine->gpu_key, gpu->key);
        return NULL;
    }
    return machine;
}

/* Cores stood in for a GPU of the catalogue once, and their times for that GPU's. */
static enum dtp_status find_host(const struct dtp_measured_rows *rows, const char *path,
                                 struct dtp_measured_machine *out, struct dtp_faults *faults)
{
    const char *device = dtp_measured_rows_about(rows, "device"), *key = dtp_measured_rows_about(rows, "gpu_key");
    bool host = device && strcmp(device, "host") == 0, keyed = strcmp(key, DTP_HOST_KEY) == 0;
    if (host != keyed)
        return dtp_fault(faults, DTP_BAD_INPUT, path, 0,
                         "was measured on the %s, but its gpu_key is %s; probe again (dtplan probe --device host)",
                         host ? "cores of a host" : "GPUs of a machine", key);
    if (host)
        dtp_host_of_rows(rows, &out->host_gpu, &out->host_machine);
    return DTP_OK;
}

static enum dtp_status read_file(const struct dtp_catalog *catalog, const char *path, struct dtp_measured_machine *out,
                                 struct dtp_faults *faults)
{
    struct dtp_table *table = NULL;
    struct dtp_measured_rows rows = {.count = 0};
    enum dtp_status status = dtp_table_read(path, &table, faults);
    if (status == DTP_OK)
        status = dtp_measured_rows_of(table, &rows, faults);
    dtp_table_destroy(table);
    if (status != DTP_OK)
        return status;
    *out = (struct dtp_measured_machine){.path = NULL};
    status = find_host(&rows, path, out, faults);
    bool host = *out->host_gpu.key;
    const struct dtp_gpu *gpu =
        host               ? &out->host_gpu
        : status == DTP_OK ? dtp_catalog_gpu(catalog, dtp_measured_rows_about(&rows, "gpu_key"), path, 0, faults)
                           : NULL;
    const struct dtp_machine *machine = host  ? &out->host_machine
                                        : gpu ? machine_of(catalog, gpu, &rows, path, faults)
                                              : NULL;
    if (!machine) {
        dtp_measured_rows_release(&rows);
        return DTP_BAD_INPUT;
    }
    status = dtp_measured_create(path, &rows, gpu, &out->times, faults);
    if (status != DTP_OK)
        return status;
    memcpy(out->machine_key, machine->key, sizeof out->machine_key);
    out->path = strdup(path);
    if (out->path)
        return DTP_OK;
    dtp_measured_destroy(out->times);
    return dtp_fault(faults, DTP_ENVIRONMENT, path, 0, "out of memory");
}

static enum dtp_status measure_one(struct dtp_catalog *catalog, const char *path, struct dtp_faults *faults)
{
    struct dtp_measured_machine machine, *grown;
    if (!dtp_machine_is_file(path) || dtp_catalog_measured(catalog, path))
        return DTP_OK;
    grown = realloc(catalog->measured, (catalog->measured_count + 1) * sizeof *grown);
    if (!grown)
        return dtp_fault(faults, DTP_ENVIRONMENT, path, 0, "out of memory");
    catalog->measured = grown;
    enum dtp_status status = read_file(catalog, path, &machine, faults);
    if (status == DTP_OK)
        catalog->measured[catalog->measured_count++] = machine;
    return status;
}

enum dtp_status dtp_catalog_measure(struct dtp_catalog *catalog, const char *names, struct dtp_faults *faults)
{
    enum dtp_status worst = DTP_OK;
    char *copy = strdup(names), *rest = copy;
    if (!copy)
        return dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "out of memory");
    for (char *name; (name = strsep(&rest, ","));) {
        enum dtp_status status = measure_one(catalog, name, faults);
        worst = status > worst ? status : worst;
    }
    free(copy);
    return worst;
}
