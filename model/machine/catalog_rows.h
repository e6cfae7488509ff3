/* From the rows of a catalogue file to entries of a struct dtp_catalog; private to catalog*.c.
 *
 * Names come from users' files and end up on terminals and in other files: every text is checked for length, valid
 * UTF-8 and control characters before it is kept. */
#ifndef DTP_CATALOG_ROWS_H
#define DTP_CATALOG_ROWS_H

#include "machine/catalog.h"
#include "base/table.h"

/* Bounds that keep a hostile file from costing more than a second (look-ups are linear). */
#define DTP_CATALOG_MAX_ENTRIES 1024
#define DTP_CATALOG_MAX_ROWS 65536

/* Adds a whole table. `check_references`: refuse rows about GPUs that the catalog does not know; false after the
 * catalogue of GPUs itself was refused, so that one mistake does not show as hundreds. On failure the catalog is left
 * with part of the rows. */
enum dtp_status dtp_catalog_add_table(const struct dtp_table *table, bool check_references, struct dtp_catalog *catalog,
                                      struct dtp_faults *faults);

/* Items an array of `count` has room for: the power of two at or above. */
size_t dtp_catalog_room(size_t count);

#endif
