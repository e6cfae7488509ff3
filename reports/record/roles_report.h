/* A program set: what was predicted of each role beside what was measured. Schema of the JSON: dtplan.roles/1. */
#ifndef DTP_ROLES_REPORT_H
#define DTP_ROLES_REPORT_H

#include "page/page.h"
#include "program/program_set.h"
#include "record/run_report.h"

struct dtp_roles_report {
    const char *name; /* of the file */
    const struct dtp_program_set *set;
    const struct dtp_cluster *cluster;
    const struct dtp_timeline *timelines;   /* one a role; NULL: nobody measured these cores, so no time is predicted */
    const uint64_t *arena_bytes;            /* of each role: of its device's memory */
    const struct dtp_run_outcome *measured; /* NULL: it was only simulated */
};

void dtp_roles_text(const struct dtp_roles_report *report, const struct dtp_page *page);
/* A row an operation, role by role; there are timelines. */
void dtp_roles_write_timeline(const struct dtp_roles_report *report, FILE *file);
enum dtp_status dtp_roles_json(const struct dtp_roles_report *report, FILE *file, struct dtp_faults *faults);

#endif
