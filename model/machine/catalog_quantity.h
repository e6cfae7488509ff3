/* The quantities gpus.csv and machines.csv may give, and where each goes; private to catalog*.c. */
#ifndef DTP_CATALOG_QUANTITY_H
#define DTP_CATALOG_QUANTITY_H

#include "machine/catalog.h"

enum dtp_quantity_type {
    DTP_QUANTITY_NAME,         /* char[64] */
    DTP_QUANTITY_GPU_KEY,      /* char[32], a key of gpus.csv */
    DTP_QUANTITY_ARCHITECTURE, /* enum dtp_gpu_architecture */
    DTP_QUANTITY_LINK,         /* enum dtp_link */
    DTP_QUANTITY_COUNT,        /* uint32_t */
    DTP_QUANTITY_BYTES,        /* uint64_t */
    DTP_QUANTITY_REAL          /* double */
};

struct dtp_quantity_field {
    enum dtp_quantity_type type;
    size_t offset;
    double minimum, maximum;
};

/* A list of quantities and, in the same order, the fields they fill. At most 32, so that a bit set holds them. */
struct dtp_quantity_list {
    const struct dtp_quantity *quantities;
    const struct dtp_quantity_field *fields;
    size_t count;
};

extern const struct dtp_quantity_list dtp_gpu_quantity_list, dtp_machine_quantity_list;

/* Index in the list, or -1. */
int dtp_quantity_index(const struct dtp_quantity_list *list, const char *quantity);
/* Checks `text` against type and bounds and stores it in *entry (a dtp_gpu or dtp_machine). Returns NULL, or what is
 * meant ("a whole number from 1 to 1000"), perhaps in `expected`. */
const char *dtp_quantity_store(const struct dtp_quantity_field *field, const char *text, void *entry, double *value,
                               char *expected, size_t expected_bytes);

#endif
