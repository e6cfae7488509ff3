#include "page/grid.h"

#include "base/grow.h"

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
    if (!dtp_grow(&grid->rows, grid->row_count, &grid->row_room, sizeof *grid->rows)) {
        grid->failed = true;
        return;
    }
    memset(&grid->rows[grid->row_count], 0, sizeof grid->rows[0]);
    grid->rows[grid->row_count++].ink = ink;
}

static void add_cell(struct dtp_grid *grid, const char *format, va_list arguments)
{
    char text[512];
    if (grid->failed || grid->row_count == 0)
        return;
    struct dtp_grid_row *row = &grid->rows[grid->row_count - 1];
    if (row->cell_count == grid->columns)
        return;
    vsnprintf(text, sizeof text, format, arguments);
    char *copy = strdup(text);
    if (copy)
        row->cells[row->cell_count++] = copy;
    else
        grid->failed = true;
}

void dtp_grid_cell(struct dtp_grid *grid, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    add_cell(grid, format, arguments);
    va_end(arguments);
}

void dtp_grid_cell_if(struct dtp_grid *grid, bool known, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    add_cell(grid, known ? format : "-", arguments);
    va_end(arguments);
}

void dtp_grid_texts(struct dtp_grid *grid, enum dtp_ink ink, const char *const *texts, size_t count)
{
    dtp_grid_row(grid, ink);
    for (size_t i = 0; i < count; i++)
        dtp_grid_cell(grid, "%s", texts[i]);
}

/* ---- widths ------------------------------------------------------------------------------------------------------ */

#define GAP 2              /* columns between two columns of the grid */
#define NARROWEST_TEXT 16  /* a column of words is not made narrower, unless its words are */
#define NARROWEST_NAME 20  /* nor one of names, which are typed as they stand */
#define CONTINUED_INDENT 2 /* of the second and further lines of a cell */

/* Some columns of a grid, printed side by side. */
struct block {
    size_t columns[DTP_GRID_MAX_COLUMNS], count;
    int gap;                          /* columns of the page between two of the grid */
    int widths[DTP_GRID_MAX_COLUMNS]; /* by column of the grid */
};

static int longest_word(const char *text)
{
    int longest = 0, width = 0;
    for (; *text; text++) {
        width = *text == ' ' ? 0 : width + (((unsigned char)*text & 0xC0) != 0x80);
        longest = width > longest ? width : longest;
    }
    return longest;
}

/* As wide as the widest cell; `narrowest`, of columns of words, as narrow as they may be made. */
static void measure(const struct dtp_grid *grid, int *widths, int *narrowest)
{
    memset(widths, 0, DTP_GRID_MAX_COLUMNS * sizeof *widths);
    memset(narrowest, 0, DTP_GRID_MAX_COLUMNS * sizeof *narrowest);
    for (size_t row = 0; row < grid->row_count; row++)
        for (size_t cell = 0; cell < grid->rows[row].cell_count; cell++) {
            int width = dtp_page_width(grid->rows[row].cells[cell]);
            int word = longest_word(grid->rows[row].cells[cell]) + (cell ? CONTINUED_INDENT : 0);
            if (word > (cell ? NARROWEST_TEXT : NARROWEST_NAME))
                word = cell ? NARROWEST_TEXT : NARROWEST_NAME;
            if (grid->right[cell] || word > width)
                word = width;
            widths[cell] = width > widths[cell] ? width : widths[cell];
            narrowest[cell] = word > narrowest[cell] ? word : narrowest[cell];
        }
}

static int sum_widths(const struct block *block, const int *widths)
{
    int sum = 0;
    for (size_t i = 0; i < block->count; i++)
        sum += widths[block->columns[i]] + (i ? block->gap : 0);
    return sum;
}

/* Takes from the widest column that may give until all of them fit or none can give more. */
static void shrink_to(struct block *block, const int *narrowest, int room)
{
    for (int over = sum_widths(block, block->widths) - room; over > 0; over--) {
        size_t widest = DTP_GRID_MAX_COLUMNS;
        for (size_t i = 0; i < block->count; i++) {
            size_t column = block->columns[i];
            if (block->widths[column] > narrowest[column] &&
                (widest == DTP_GRID_MAX_COLUMNS || block->widths[column] > block->widths[widest]))
                widest = column;
        }
        if (widest == DTP_GRID_MAX_COLUMNS)
            return;
        block->widths[widest]--;
    }
}

/* On the narrowest screens a name and one figure do not stand side by side unless both break. */
static void shrink(struct block *block, const int *narrowest, int room)
{
    int least[DTP_GRID_MAX_COLUMNS];
    for (size_t i = 0; i < DTP_GRID_MAX_COLUMNS; i++)
        least[i] = narrowest[i] < NARROWEST_TEXT ? narrowest[i] : NARROWEST_TEXT;
    shrink_to(block, narrowest, room);
    shrink_to(block, least, room);
}

/* ---- cells of several lines -------------------------------------------------------------------------------------- */

/* Bytes of `text` that fit into `width` columns: whole words, or a part of one that is longer than the line. */
static size_t line_bytes(const char *text, int width)
{
    size_t bytes = 0, words = 0;
    for (int column = 0; text[bytes]; column++) {
        if (text[bytes] == ' ')
            words = bytes;
        if (column == width)
            return words ? words : bytes;
        do
            bytes++;
        while (((unsigned char)text[bytes] & 0xC0) == 0x80);
    }
    return bytes;
}

/* Prints the next line of a cell, padded unless it ends the row and has no gap behind it, and moves *text behind it. */
static void print_line(const char **text, bool first, bool right, int width, int gap, FILE *file)
{
    int indent = !first && !right && **text && width > CONTINUED_INDENT ? CONTINUED_INDENT : 0;
    size_t bytes = line_bytes(*text, width - indent);
    int pad = width - indent;
    for (size_t i = 0; i < bytes; i++)
        pad -= ((unsigned char)(*text)[i] & 0xC0) != 0x80;
    fprintf(file, "%*s%.*s", indent + (right ? pad : 0), "", (int)bytes, *text);
    fprintf(file, "%*s", gap ? (right ? 0 : pad) + gap : 0, "");
    *text += bytes;
    *text += strspn(*text, " ");
}

/* Of a table that goes on below itself: a row that has nothing there, as the second line of a header. */
static bool nothing_in(const struct dtp_grid_row *row, const struct block *block)
{
    for (size_t i = 0; i < block->count; i++)
        if (block->columns[i] < row->cell_count && row->cells[block->columns[i]][0])
            return false;
    return true;
}

/* The last column of the block in which something is left to print, and one more; 0: nothing is. */
static size_t filled(const struct block *block, const char *const *left)
{
    size_t last = block->count;
    while (last > 0 && !*left[last - 1])
        last--;
    return last;
}

static void print_row(const struct dtp_grid *grid, const struct dtp_grid_row *row, const struct block *block,
                      const struct dtp_page *page, int indent)
{
    const char *left[DTP_GRID_MAX_COLUMNS];
    bool first = true;
    for (size_t i = 0; i < block->count; i++)
        left[i] = block->columns[i] < row->cell_count ? row->cells[block->columns[i]] : "";
    if (row->ink != DTP_INK_PLAIN)
        dtp_page_ink(page, row->ink);
    for (size_t last = filled(block, left); last > 0 || first; last = filled(block, left)) {
        fprintf(page->file, "%s%*s", first ? "" : "\n", last ? indent : 0, "");
        for (size_t i = 0; i < last; i++) {
            size_t column = block->columns[i];
            print_line(&left[i], first, grid->right[column], block->widths[column], i + 1 == last ? 0 : block->gap,
                       page->file);
        }
        first = false;
    }
    if (row->ink != DTP_INK_PLAIN)
        dtp_page_ink(page, DTP_INK_PLAIN);
    fputc('\n', page->file);
}

/* ---- blocks ------------------------------------------------------------------------------------------------------ */

/* Columns that say what a row is: the marks before its name, and the name. */
static size_t count_key_columns(const struct dtp_grid *grid, const int *widths)
{
    size_t key = 0;
    while (key < grid->columns && widths[key] <= 1)
        key++;
    return key + 1 < grid->columns ? key + 1 : 0;
}

/* The columns of the key and the next from `from` on that fit beside them, at least one; returns the first that is
 * left. */
static size_t fill_block(const struct dtp_grid *grid, const int *narrowest, size_t key, size_t from, int room,
                         struct block *block)
{
    size_t next = from > key ? from : key, least = next + 1;
    block->count = 0;
    for (size_t column = 0; column < key; column++)
        block->columns[block->count++] = column;
    while (next < grid->columns) {
        if (narrowest[next] == 0) { /* nobody filled it */
            next++;
            continue;
        }
        block->columns[block->count++] = next++;
        if (sum_widths(block, narrowest) > room && next > least) {
            block->count--;
            return next - 1;
        }
    }
    return next;
}

void dtp_grid_print(const struct dtp_grid *grid, const struct dtp_page *page, int indent)
{
    struct block block;
    int widths[DTP_GRID_MAX_COLUMNS], narrowest[DTP_GRID_MAX_COLUMNS], room = dtp_page_columns(page) - indent;
    measure(grid, widths, narrowest);
    size_t key = count_key_columns(grid, widths), from = 0;
    block.gap = GAP; /* less, where that keeps a table in one piece */
    if (fill_block(grid, narrowest, key, 0, room, &block) < grid->columns) {
        block.gap = 1;
        block.gap = fill_block(grid, narrowest, key, 0, room, &block) < grid->columns ? GAP : 1;
    }
    while (from < grid->columns) {
        bool goes_on = from > 0;
        if (goes_on)
            fputc('\n', page->file);
        memcpy(block.widths, widths, sizeof widths);
        from = fill_block(grid, narrowest, key, from, room, &block);
        shrink(&block, narrowest, room);
        for (size_t row = 0; row < grid->row_count; row++)
            if (!goes_on || !nothing_in(&grid->rows[row], &block))
                print_row(grid, &grid->rows[row], &block, page, indent);
    }
}

void dtp_grid_end(struct dtp_grid *grid, const struct dtp_page *page, int indent)
{
    dtp_grid_print(grid, page, indent);
    dtp_grid_destroy(grid);
}
