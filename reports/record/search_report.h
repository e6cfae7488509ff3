/* What a search and single changes of a plan found.
 *
 * A search: for people, for programs (schema dtplan.search/1) and as CSV (the candidates, best first, in the
 * columns of `dtplan plan --csv` after rank, recommended, front, within_limits and command). */
#ifndef DTP_SEARCH_REPORT_H
#define DTP_SEARCH_REPORT_H

#include "decide/whatif.h"
#include "page/page.h"
#include "sim/search.h"

void dtp_search_text(const struct dtp_search_question *question, const struct dtp_search *search,
                     const struct dtp_page *page);
enum dtp_status dtp_search_json(const struct dtp_search_question *question, const struct dtp_search *search, FILE *file,
                                struct dtp_faults *faults);
enum dtp_status dtp_search_csv(const struct dtp_search_question *question, const struct dtp_search *search, FILE *file,
                               struct dtp_faults *faults);

/* "dtplan plan --gpu h100-sxm ...": the line that predicts this candidate, quoted for a POSIX shell. Caller frees;
 * NULL: out of memory. */
char *dtp_search_command(const struct dtp_search_question *question, const struct dtp_candidate *candidate);

/* ---- single changes ---------------------------------------------------------------------------------------------- */

/* The table of single changes, for people (text), programs (JSON, schema dtplan.whatif/1) and spreadsheets (CSV). */
void dtp_whatif_text(const struct dtp_whatif *whatif, const struct dtp_page *page);
enum dtp_status dtp_whatif_json(const struct dtp_whatif *whatif, FILE *file, struct dtp_faults *faults);
/* A row a change, the plan itself first; refused changes have an empty prediction and the reason. */
void dtp_whatif_csv(const struct dtp_whatif *whatif, FILE *file);

#endif
