/* The runs of a validation: scenario files, lists of them, and the flags of the line, every flag a list of values.
 *
 * A word that ends in .scenarios is a list: each line that is not empty and does not begin with '#' holds what may
 * stand behind `dtplan validate`, scenario files and flags of keys and of runs, with spaces between and no quotes. Any
 * other word is a scenario file. Each file and each line makes a group: the combinations of its lists. Flags of the
 * command line go over those of all groups; without words they are the only group. */
#ifndef DTP_VALIDATE_LIST_H
#define DTP_VALIDATE_LIST_H

#include "job/axes.h"
#include "cli/command.h"

struct dtp_validate_group {
    const char *word;               /* scenario file or list; NULL: none */
    size_t line;                    /* in the list; 0: none */
    char *text;                     /* of the line, cut into words; owned */
    char *where;                    /* "LIST:LINE"; owned, for axes borrow it; NULL: of no list */
    struct dtp_arguments arguments; /* of the line */
    struct dtp_scenario *base;
    struct dtp_axes axes;
    struct dtp_passed_flag *passed; /* the line's, then the command line's */
    size_t passed_count;
    uint64_t first, count; /* runs */
};

struct dtp_validate_list {
    struct dtp_validate_group *groups;
    size_t group_count, room;
    uint64_t count;
};

#define DTP_VALIDATE_MAX_RUNS 10000u

/* All faults of all files and lines; machine files that they name are read into `catalog`, which is borrowed. Destroy
 * also after a failure. */
enum dtp_status dtp_validate_list_read(const struct dtp_context *context, struct dtp_catalog *catalog,
                                       struct dtp_validate_list *out);
void dtp_validate_list_destroy(struct dtp_validate_list *list);

/* The scenario of a run, with the executor's defaults, its group, and the words that make it. Caller destroys. */
enum dtp_status dtp_validate_list_scenario(const struct dtp_validate_list *list, uint64_t run,
                                           struct dtp_scenario **out, const struct dtp_validate_group **group,
                                           char *words, size_t bytes, struct dtp_faults *faults);
/* Stands for what is run, not for what is predicted of it: GPU, machine and prices of the catalogue are left out. The
 * order in which flags were typed counts only where it numbers the runs: of lists of values. */
uint64_t dtp_validate_list_digest(const struct dtp_validate_list *list);
/* As files bear it that were measured before: with flags of runs in the order in which they were typed, and whatever
 * the order in which lists vary. */
uint64_t dtp_validate_list_digest_as_typed(const struct dtp_validate_list *list);

#endif
