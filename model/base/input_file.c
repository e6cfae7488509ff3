#include "base/input_file.h"

#include <string.h>

FILE *dtp_input_open(const char *path)
{
    return strcmp(path, "-") == 0 ? stdin : fopen(path, "rb");
}

void dtp_input_close(FILE *file)
{
    if (file != stdin)
        fclose(file);
}

const char *dtp_input_name(const char *path)
{
    return strcmp(path, "-") == 0 ? "standard input" : path;
}
