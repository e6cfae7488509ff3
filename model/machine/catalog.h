/* The catalogues: GPUs, machines, models, prices. CSV files with one fact a cell and its source beside it.
 *
 * gpus.csv      gpu_key,quantity,value,unit,kind,source        one figure a row, each with its own source and kind
 * machines.csv  machine_key,quantity,value,unit,kind,source    (datasheet | measured | assumed)
 * prices.csv    gpu_key,low_usd_per_gpu_hour,typical_usd_per_gpu_hour,high_usd_per_gpu_hour,date,kind,source
 * models.csv, models_experts.csv    see models.h
 * aliases.csv   alias,key: the short names people type
 *
 * User files given with `--catalog FILE` have the same columns in any order; which of the five a file is shows from its
 * header. A row about a known key overrides that figure; a new key needs every mandatory quantity. `dtplan catalog`
 * lists the quantities with their units. */
#ifndef DTP_CATALOG_H
#define DTP_CATALOG_H

#include "machine/machine.h"
#include "base/status.h"
#include "net/transformer.h"

struct dtp_price {
    char gpu_key[32];
    double low, typical, high; /* US dollars per GPU-hour */
    char date[16];             /* YYYY-MM */
    char kind[12];             /* datasheet: a published price list; assumed: our reading of several offers */
    char source[200];
};

/* One figure of a GPU or machine with where it comes from; for `dtplan catalog` and `dtplan explain`. A GPU and a
 * machine never share a key. */
struct dtp_provenance {
    char key[32], quantity[40], unit[24], kind[12], source[200];
    char text[64]; /* the value as written */
    double value;  /* the same as a number; 0 where `unit` is "text" (a name, a link, an architecture) */
};

/* What gpus.csv or machines.csv may say: one row of the table of known quantities. */
struct dtp_quantity {
    const char *quantity, *unit;
    bool mandatory;
    const char *words;
};

struct dtp_catalog {
    struct dtp_gpu *gpus;
    size_t gpu_count;
    struct dtp_machine *machines;
    size_t machine_count;
    struct dtp_transformer *models;
    size_t model_count;
    struct dtp_price *prices;
    size_t price_count;
    struct dtp_provenance *provenance;
    size_t provenance_count;
    struct {
        char alias[64], key[48];
    } * aliases;
    size_t alias_count;
    struct dtp_measured_machine *measured;
    size_t measured_count;
    struct dtp_gpu host_gpu; /* the cores of this machine: found by their key, and in no list of what can be had */
    struct dtp_machine host_machine;
    struct dtp_config_file *configs;
    size_t config_count;
    bool borrows; /* what stands above `measured` is another catalogue's, and only read */
};

/* A config.json that was read. */
struct dtp_config_file {
    char *path;
    struct dtp_hf_config config;
};

/* A measured machine file that was read: a name for its catalogue machine, with the times in it. */
struct dtp_measured_machine {
    char *path;
    char machine_key[32];
    struct dtp_measured *times; /* owned by the catalogue, never moved */
    struct dtp_gpu host_gpu;    /* of one that was measured on a host; else key "" */
    struct dtp_machine host_machine;
};

/* Reads the five catalogues from `directory`, all faults of all files at once. Caller destroys. On failure the catalog
 * is empty. */
enum dtp_status dtp_catalog_load(const char *directory, struct dtp_catalog *out, struct dtp_faults *faults);
/* A catalogue with the rows of `from`, which holds no measured machine and no config.json, and must outlive it: many
 * calls at once read one catalogue, and each reads the files of machines and models that it names for itself. */
void dtp_catalog_borrow(const struct dtp_catalog *from, struct dtp_catalog *out);
/* Adds the rows of one user file (kind of table recognised by its header). On failure the catalog is as it was; on
 * success pointers borrowed before are no longer valid. */
enum dtp_status dtp_catalog_add(const char *path, struct dtp_catalog *catalog, struct dtp_faults *faults);
void dtp_catalog_destroy(struct dtp_catalog *catalog);

/* Whether a machine is named by a file: it ends in .csv, or holds a '/'. */
bool dtp_machine_is_file(const char *name);
/* Reads each file among the machines in `names` (one, or several with commas between) that was not read before; from
 * then on the path is a name of a machine. The GPU is the catalogue's row of gpu_key; the machine that of machine_key,
 * else the one which the GPU usually sits in. Files that are refused leave the catalog as it was. */
enum dtp_status dtp_catalog_measure(struct dtp_catalog *catalog, const char *names, struct dtp_faults *faults);
/* The GPU that a machine file is of: the catalogue's, or the cores of a host as they were measured. */
const struct dtp_gpu *dtp_catalog_measured_gpu(const struct dtp_catalog *catalog,
                                               const struct dtp_measured_machine *machine);
/* What such a name stands for, or NULL; borrowed. */
const struct dtp_measured_machine *dtp_catalog_measured(const struct dtp_catalog *catalog, const char *name);

/* Whether a model is named by a file: it ends in .json, or holds a '/'. */
bool dtp_model_is_file(const char *name);
/* Of "meta-llama/Llama-3.1-8B", as a model is called on its hub, what stands behind the folder; borrowed. NULL of a
 * file that is there and of a path that begins with . or /, which are no such names. */
const char *dtp_model_hub_name(const char *name);
/* Reads each file among the models in `names` (one, or several with commas between) that was not read before, so that
 * whoever resolves many jobs reads it once. Files that are refused are left to the resolution, which says why. */
enum dtp_status dtp_catalog_read_models(struct dtp_catalog *catalog, const char *names, struct dtp_faults *faults);
/* What such a file holds where it was read, or NULL; borrowed. */
const struct dtp_hf_config *dtp_catalog_config(const struct dtp_catalog *catalog, const char *path);

/* Borrowed entry by key or alias (case and '_' '-' ' ' ignored), or NULL after a fault that lists the nearest names
 * (Levenshtein). `where`/`line` locate the message; pass NULL faults for a silent look-up. */
const struct dtp_gpu *dtp_catalog_gpu(const struct dtp_catalog *catalog, const char *name, const char *where,
                                      size_t line, struct dtp_faults *faults);
const struct dtp_machine *dtp_catalog_machine(const struct dtp_catalog *catalog, const char *name, const char *where,
                                              size_t line, struct dtp_faults *faults);
const struct dtp_transformer *dtp_catalog_model(const struct dtp_catalog *catalog, const char *name, const char *where,
                                                size_t line, struct dtp_faults *faults);
/* gpu_name.c: the row of a GPU by the name that its driver has for it and its memory; NULL: none of the catalogue. */
const struct dtp_gpu *dtp_catalog_gpu_named(const struct dtp_catalog *catalog, const char *name, uint64_t memory_bytes);
/* NULL when no price is known. */
const struct dtp_price *dtp_catalog_price(const struct dtp_catalog *catalog, const char *gpu_key);
/* The machine a GPU usually sits in (first of machines.csv with that gpu_key), or the first for any GPU (the generic
 * PCIe box), or NULL. */
const struct dtp_machine *dtp_catalog_default_machine(const struct dtp_catalog *catalog, const struct dtp_gpu *gpu);

/* The figure behind one field, or NULL; borrowed. */
const struct dtp_provenance *dtp_catalog_provenance(const struct dtp_catalog *catalog, const char *key,
                                                    const char *quantity);
/* The quantities known of GPUs, in the order of the catalogue's pages. */
const struct dtp_quantity *dtp_catalog_gpu_quantities(size_t *count);

#endif
