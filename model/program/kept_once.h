/* What many operations of a program have in common and is kept once: names, hundreds for tens of thousands of
 * operations, and demands. Direct-mapped tables find them; what loses its place there is kept again, which costs memory
 * and nothing else. */
#ifndef DTP_KEPT_ONCE_H
#define DTP_KEPT_ONCE_H

#include "base/host_arena.h"
#include "program/program.h"

#define DTP_KEPT_SLOTS 512u

struct dtp_known_name {
    const char *source, *copy; /* the copy says what stood at `source` then */
};

struct dtp_kept_places {
    struct dtp_known_name by_pointer[DTP_KEPT_SLOTS]; /* the caller's, mostly literals */
    const char *by_spelling[DTP_KEPT_SLOTS];
    const struct dtp_demand *demands[DTP_KEPT_SLOTS];
};

/* Zero-initialise to start, release at the end. */
struct dtp_kept_once {
    struct dtp_host_arena memory;
    struct dtp_kept_places *places; /* NULL: nothing was kept, as of programs that are read only once */
};

void dtp_kept_once_release(struct dtp_kept_once *once);
bool dtp_name_is_plain(const char *name);
/* "" for "" and NULL; NULL: it is not plain, or no memory. */
const char *dtp_keep_name(struct dtp_kept_once *once, const char *name);
/* The one that is kept, byte for byte the same; NULL: none is, or no longer found. */
const struct dtp_demand *dtp_known_demand(const struct dtp_kept_once *once, const struct dtp_demand *demand);
/* Keeps one that is not known. NULL: no memory. */
const struct dtp_demand *dtp_keep_demand(struct dtp_kept_once *once, const struct dtp_demand *demand);

#endif
