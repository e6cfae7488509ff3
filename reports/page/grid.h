/* A grid: rows of cells printed as an aligned table, whatever the width of the page. Cells are copied; columns are as
 * wide as their widest cell where that fits. Where it does not, columns of words get narrower and their cells longer;
 * where that is not enough, the table goes on below itself, with the names of the rows again. */
#ifndef DTP_GRID_H
#define DTP_GRID_H

#include "page/page.h"

#define DTP_GRID_MAX_COLUMNS 24

struct dtp_grid {
    size_t columns;
    bool right[DTP_GRID_MAX_COLUMNS]; /* numbers stand right */
    size_t row_count, row_room;
    struct dtp_grid_row *rows;
    bool failed; /* out of memory: rows are missing; sticky */
};

/* `alignment` has one letter a column: 'l' or 'r'. Caller destroys. */
void dtp_grid_create(struct dtp_grid *grid, const char *alignment);
void dtp_grid_destroy(struct dtp_grid *grid);
/* Adds an empty row; the cells follow with dtp_grid_cell, left to right. */
void dtp_grid_row(struct dtp_grid *grid, enum dtp_ink ink);
void dtp_grid_cell(struct dtp_grid *grid, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* A row of texts, as headers are. */
void dtp_grid_texts(struct dtp_grid *grid, enum dtp_ink ink, const char *const *texts, size_t count);
/* The formatted cell, "-" where its figure is not known. */
void dtp_grid_cell_if(struct dtp_grid *grid, bool known, const char *format, ...) __attribute__((format(printf, 3, 4)));
/* Prints all rows within the columns of the page, each indented by `indent`, two spaces between columns, none at the
 * ends of lines. */
void dtp_grid_print(const struct dtp_grid *grid, const struct dtp_page *page, int indent);
/* Prints and destroys it. */
void dtp_grid_end(struct dtp_grid *grid, const struct dtp_page *page, int indent);

#endif
