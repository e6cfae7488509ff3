/* The fields of a row as a table; private to validation_*.c. */
#ifndef DTP_VALIDATION_FIELDS_H
#define DTP_VALIDATION_FIELDS_H

#include "record/validation.h"

enum dtp_validation_kind { DTP_VALIDATION_TEXT, DTP_VALIDATION_WHOLE, DTP_VALIDATION_REAL };

struct dtp_validation_field {
    char name[64];
    enum dtp_validation_kind kind;
    size_t offset, bytes; /* in struct dtp_validation; bytes of a text */
};
#define DTP_VALIDATION_MAX_FIELDS 128

/* Writes them to `out`, in the order of columns; returns their number. */
size_t dtp_validation_fields(struct dtp_validation_field out[DTP_VALIDATION_MAX_FIELDS]);

#endif
