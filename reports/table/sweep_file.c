#include "table/sweep_file.h"

#include "base/table.h"

#include <stdlib.h>

void dtp_sweep_write_row(const struct dtp_row_file *sweep, uint64_t row, const char *swept,
                         const struct dtp_comparison_row *values, FILE *file)
{
    dtp_row_file_write_prefix(sweep, row, file);
    dtp_table_write_field(file, swept);
    fputc(',', file);
    dtp_report_csv_row(values, file);
}

char *dtp_sweep_header(void)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *file = open_memstream(&text, &bytes);
    if (!file)
        return NULL;
    fputs("schema,sweep,row,swept,", file);
    dtp_report_csv_header(file);
    if (fclose(file) != 0) {
        free(text);
        return NULL;
    }
    return text;
}
