/* The catalogues: GPUs, machines, models, prices. CSV files with one fact a cell and its source beside it.
 *
 * gpus.csv, machines.csv and prices.csv are long tables (key,quantity,value,unit,kind,source) so that every figure can
 * carry its own source and kind (datasheet | measured | assumed); models.csv is wide (one row a model, a source
 * column). aliases.csv maps the short names people type to keys. User files given with `--catalog FILE` have the same
 * columns; later rows override earlier ones. */
#ifndef DTP_CATALOG_H
#define DTP_CATALOG_H

#include "machine.h"
#include "status.h"
#include "transformer.h"

struct dtp_price {
    char gpu_key[32];
    double low, typical, high; /* US dollars per GPU-hour */
    char date[16];             /* YYYY-MM */
    char source[160];
};

/* One figure of a GPU or machine with where it comes from; for `dtplan catalog` and `dtplan explain`. */
struct dtp_provenance {
    char key[32], quantity[40], unit[24], kind[12], source[200];
    double value;
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
    struct { char alias[48], key[48]; } *aliases;
    size_t alias_count;
};

/* Reads the four catalogues from `directory`. Caller destroys. On failure the catalog is empty. */
enum dtp_status dtp_catalog_load(const char *directory, struct dtp_catalog *out, struct dtp_faults *faults);
/* Adds the rows of one user file (kind of table recognised by its header). */
enum dtp_status dtp_catalog_add(const char *path, struct dtp_catalog *catalog, struct dtp_faults *faults);
void dtp_catalog_destroy(struct dtp_catalog *catalog);

/* Borrowed entry by key or alias (case and '_' '-' ' ' ignored), or NULL after a fault that lists the nearest names
 * (Levenshtein). `where`/`line` locate the message; pass NULL faults for a silent look-up. */
const struct dtp_gpu *dtp_catalog_gpu(const struct dtp_catalog *catalog, const char *name, const char *where,
                                      size_t line, struct dtp_faults *faults);
const struct dtp_machine *dtp_catalog_machine(const struct dtp_catalog *catalog, const char *name, const char *where,
                                              size_t line, struct dtp_faults *faults);
const struct dtp_transformer *dtp_catalog_model(const struct dtp_catalog *catalog, const char *name, const char *where,
                                                size_t line, struct dtp_faults *faults);
/* NULL when no price is known. */
const struct dtp_price *dtp_catalog_price(const struct dtp_catalog *catalog, const char *gpu_key);
/* The machine a GPU usually sits in (first row of machines.csv with that gpu_key), or the generic PCIe box. */
const struct dtp_machine *dtp_catalog_default_machine(const struct dtp_catalog *catalog, const struct dtp_gpu *gpu);

#endif
