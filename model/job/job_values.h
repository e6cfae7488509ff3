/* What a resolved job is, key by key of the scenario table: what tables and programs write, so that no key can be
 * forgotten where jobs that differ in it stand side by side. */
#ifndef DTP_JOB_VALUES_H
#define DTP_JOB_VALUES_H

#include "job/scenario.h"

enum dtp_job_value_kind { DTP_VALUE_WHOLE, DTP_VALUE_REAL, DTP_VALUE_SWITCH, DTP_VALUE_WORD };

struct dtp_job_value {
    const struct dtp_scenario_key *key;
    enum dtp_job_value_kind kind;
    bool missing;   /* not given, and no default stands for it: no budget, no deadline */
    uint64_t whole; /* also of a switch: 0 or 1 */
    double real;    /* in the unit that the key is given in */
    const char *word;
    char buffer[DTP_STAGE_LAYOUT_BYTES]; /* what a word that is put together lies in */
};

#define DTP_JOB_VALUES_MAX 224
/* One value a key, in the order of the table; returns how many. Rules have been applied: shard_group is never 0, a
 * runtime's dtypes are those it uses. Words are borrowed from the job, from `out` or constant. */
size_t dtp_job_values(const struct dtp_job *job, struct dtp_job_value out[DTP_JOB_VALUES_MAX]);
/* What a column or a field is called in which a key stands: its own name, and behind it the unit where it has one that
 * the name does not say ("deadline_s", "price_usd"); a count gets one only in tables ("layers_count"). Returns `out`.
 */
const char *dtp_job_value_name(const struct dtp_scenario_key *key, bool counts, char *out, size_t bytes);

#endif
