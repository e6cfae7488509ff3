#include "page/grid.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

struct dtp_grid_row {
    enum dtp_ink ink;
    size_t cell_count;
    char *cells[DTP_GRID_MAX_COLUMNS];
};

void dtp_grid_create(struct dtp_grid *grid, const char *alignment)
{
    memset(grid, 0, sizeof *grid);
    for (; *alignment && grid->columns < DTP_GRID_MAX_COLUMNS; alignment++)
        grid->right[grid->columns++] = *alignment == 'r';
}

void dtp_grid_destroy(struct dtp_grid *grid)
{
    for (size_t row = 0; row < grid->row_count; row++)
        for (size_t cell = 0; cell < grid->rows[row].cell_count; cell++)
            free(grid->rows[row].cells[cell]);
    free(grid->rows);
    memset(grid, 0, sizeof *grid);
}

void dtp_grid_row(struct dtp_grid *grid, enum dtp_ink ink)
{
    if (grid->failed)
        return;
    if (grid->row_count == grid->row_room) {
        size_t room = grid->row_room ? grid->row_room * 2 : 16;
        struct dtp_grid_row *rows = realloc(grid->rows, room * sizeof *rows);
        if (!rows) {
            grid->failed = true;
            return;
        }
        grid->rows = rows;
        grid->row_room = room;
    }
    memset(&grid->rows[grid->row_count], 0, sizeof grid->rows[0]);
    grid->rows[grid->row_count++].ink = ink;
}

void dtp_grid_cell(struct dtp_grid *grid, const char *format, ...)
{
    char text[512];
    va_list arguments;
    if (grid->failed || grid->row_count == 0)
        return;
    struct dtp_grid_row *row = &grid->rows[grid->row_count - 1];
    if (row->cell_count == grid->columns)
        return;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    char *copy = strdup(text);
    if (copy)
        row->cells[row->cell_count++] = copy;
    else
        grid->failed = true;
}

static void print_row(const struct dtp_grid *grid, const struct dtp_grid_row *row, const int *widths,
                      const struct dtp_page *page, int indent)
{
    size_t last = row->cell_count;
    while (last > 0 && row->cells[last - 1][0] == '\0')
        last--;
    if (row->ink != DTP_INK_PLAIN)
        dtp_page_ink(page, row->ink);
    fprintf(page->file, "%*s", last ? indent : 0, "");
    for (size_t i = 0; i < last; i++) {
        int pad = widths[i] - dtp_page_width(row->cells[i]);
        fprintf(page->file, "%*s%s", grid->right[i] ? pad : 0, "", row->cells[i]);
        if (i + 1 < last)
            fprintf(page->file, "%*s", (grid->right[i] ? 0 : pad) + 2, "");
    }
    if (row->ink != DTP_INK_PLAIN)
        dtp_page_ink(page, DTP_INK_PLAIN);
    fputc('\n', page->file);
}

void dtp_grid_print(const struct dtp_grid *grid, const struct dtp_page *page, int indent)
{
    int widths[DTP_GRID_MAX_COLUMNS] = {0};
    for (size_t row = 0; row < grid->row_count; row++)
        for (size_t cell = 0; cell < grid->rows[row].cell_count; cell++) {
            int width = dtp_page_width(grid->rows[row].cells[cell]);
            if (width > widths[cell])
                widths[cell] = width;
        }
    for (size_t row = 0; row < grid->row_count; row++)
        print_row(grid, &grid->rows[row], widths, page, indent);
}
