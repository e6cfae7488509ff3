/* libdtplan: what training a transformer on GPUs needs and takes, for programs.
 *
 * Each function answers what the command of its name answers, in the very text that `dtplan COMMAND --json` prints (of
 * a sweep the CSV that it writes). What a job is, is said by settings, which are the flags of the command line without
 * their hyphens: "model=llama-7b", "gpus=8", "micro_batch=4", "compile" for a switch, "fidelity=bounds" for an option;
 * `dtplan help COMMAND` lists them all, and the schemas in share/dtplan/schemas describe the answers.
 *
 *     struct dtplan *d;
 *     char *answer, *messages;
 *     const char *const settings[] = {"model=llama-7b", "gpus=8", "strategy=full_shard", NULL};
 *     if (dtplan_create(NULL, NULL, &d, &messages) != DTPLAN_OK) ...
 *     if (dtplan_plan(d, NULL, settings, &answer, &messages) <= DTPLAN_NO)
 *         puts(answer);
 *     dtplan_free(answer);
 *     dtplan_free(messages);
 *     dtplan_destroy(d);
 *
 * Threads: a context is only read once it was made, so that any number of threads may ask of one at once. Nothing
 * global changes; no call exits, catches a signal, or writes to standard output or standard error. A call reads the
 * files that its settings name and writes none. Numbers have a decimal point whatever the locale is.
 *
 * Ownership: texts that are passed in are borrowed for the call. Texts that are handed out are the caller's, who frees
 * them with dtplan_free. Settings and tables are arrays that end with NULL; NULL stands for an empty one.
 *
 * The interface is stable: functions keep their meaning and new ones may come; symbols carry the version that they came
 * with (DTPLAN_0.2). */
#ifndef DTPLAN_H
#define DTPLAN_H

#ifdef __cplusplus
extern "C" {
#endif

#if defined __GNUC__
#define DTPLAN_API __attribute__((visibility("default")))
#else
#define DTPLAN_API
#endif

/* What the program's exit status would be. */
enum dtplan_status {
    DTPLAN_OK = 0,
    DTPLAN_NO = 1,         /* answered, and the answer is no: it does not fit, nothing that was asked for does */
    DTPLAN_BAD_INPUT = 2,  /* an unknown setting, a value out of range, a combination that is not modelled */
    DTPLAN_ENVIRONMENT = 3 /* catalogues or files that cannot be read, out of memory */
};

struct dtplan; /* the catalogues; opaque */

/* "0.2.0". Constant. */
DTPLAN_API const char *dtplan_version(void);

/* Reads the catalogues of `directory` (NULL: of $DTPLAN_DATA, else those that were installed with the library), then
 * the rows that the CSV files `catalogs` add. *out is NULL unless the status is DTPLAN_OK. */
DTPLAN_API enum dtplan_status dtplan_create(const char *directory, const char *const *catalogs, struct dtplan **out,
                                            char **messages);
/* NULL is nothing. No call may be under way. */
DTPLAN_API void dtplan_destroy(struct dtplan *dtplan);
/* NULL is nothing. */
DTPLAN_API void dtplan_free(char *text);

/* All of them: `scenario` is the text of a scenario file, or NULL; settings override it. *answer is NULL unless the
 * status is DTPLAN_OK or DTPLAN_NO. *messages has a line for each fault, or NULL where there is none; with an answer
 * these are notes. `answer` and `messages` may not be NULL. */

/* dtplan.plan/1; of several strategies ("strategy=all") dtplan.compare/1. */
DTPLAN_API enum dtplan_status dtplan_plan(const struct dtplan *dtplan, const char *scenario,
                                          const char *const *settings, char **answer, char **messages);
/* dtplan.simulation/1. */
DTPLAN_API enum dtplan_status dtplan_simulate(const struct dtplan *dtplan, const char *scenario,
                                              const char *const *settings, char **answer, char **messages);
/* dtplan.explain/1. */
DTPLAN_API enum dtplan_status dtplan_explain(const struct dtplan *dtplan, const char *scenario,
                                             const char *const *settings, char **answer, char **messages);
/* dtplan.whatif/1. */
DTPLAN_API enum dtplan_status dtplan_whatif(const struct dtplan *dtplan, const char *scenario,
                                            const char *const *settings, char **answer, char **messages);
/* CSV, dtplan.sweep/1: values are lists and ranges, "gpus=8..64x2", "strategy=all". On all cores. */
DTPLAN_API enum dtplan_status dtplan_sweep(const struct dtplan *dtplan, const char *scenario,
                                           const char *const *settings, char **answer, char **messages);
/* dtplan.search/1. On all cores. */
DTPLAN_API enum dtplan_status dtplan_search(const struct dtplan *dtplan, const char *scenario,
                                            const char *const *settings, char **answer, char **messages);
/* dtplan.backtest/1 of the run tables whose files are named; there is no scenario. On all cores. */
DTPLAN_API enum dtplan_status dtplan_backtest(const struct dtplan *dtplan, const char *const *tables,
                                              const char *const *settings, char **answer, char **messages);

#ifdef __cplusplus
}
#endif

#endif
