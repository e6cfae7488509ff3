/* A validation while it is made; what the files of the command share. */
#ifndef DTP_VALIDATE_PARTS_H
#define DTP_VALIDATE_PARTS_H

#include "record/validation.h"
#include "cli/run_job.h"
#include "cli/validate_list.h"

struct dtp_validate {
    const struct dtp_context *context;
    struct dtp_catalog catalog;
    struct dtp_validate_list list;
    struct dtp_validation_bounds bounds;
    struct dtp_validation *rows;
    uint64_t done, resumed;
    bool stopped, file_open;
    struct dtp_row_file file;
    char *folder; /* of times of operations, a file a run; NULL: they are not kept */
    double started_s;
};

/* Predicts a run that was made, and compares it with what the row and its file of times say. Caller releases *out, also
 * after a failure. */
enum dtp_status dtp_validate_load(const struct dtp_validate *v, uint64_t run, const struct dtp_validation *row,
                                  struct dtp_ran_job *out);

/* validate_refit.c: what the runs correct of the machine file of --refit, written beside it. Caller frees out->results
 * and out->written. */
enum dtp_status dtp_validate_refit(const struct dtp_validate *v, struct dtp_refit_report *out);

#endif
