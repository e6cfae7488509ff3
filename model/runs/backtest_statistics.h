/* What is computed over the scored rows of a backtest: the baseline, the statistics by source, the refusals,
 * the decisions.
 * Internal to the backtest. */
#ifndef DTP_BACKTEST_STATISTICS_H
#define DTP_BACKTEST_STATISTICS_H

#include "runs/backtest.h"

/* Text keys numbered in order of appearance. Keys are borrowed. */
struct dtp_name_index;
struct dtp_name_index *dtp_name_index_create(size_t most_keys); /* NULL: out of memory */
void dtp_name_index_destroy(struct dtp_name_index *index);
/* Number of `key`: that of its first appearance, else `number`, which it keeps. */
size_t dtp_name_index_add(struct dtp_name_index *index, const char *key, size_t number);

/* Fits the constant MFUs on the rows with a throughput error, of which source_group is known, and fills baseline_* and
 * unseen_baseline_* of them. False: no memory. */
bool dtp_backtest_fit_baseline(struct dtp_backtest *backtest);
/* Groups the rows, fits the baselines, and fills statistics and refusals. */
enum dtp_status dtp_backtest_summarise(struct dtp_backtest *backtest, struct dtp_faults *faults);
/* Fills decisions and choices from rows that have their source_group (backtest_decisions.c). */
enum dtp_status dtp_backtest_judge(struct dtp_backtest *backtest, struct dtp_faults *faults);
/* Adds the pairs of a sweep's rows (backtest_pairs.c). */
void dtp_backtest_judge_pairs(struct dtp_backtest_choices *choices, struct dtp_backtest_row *const *rows, size_t count);

#endif
