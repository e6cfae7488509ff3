/* Input by name, or by "-", which is standard input. */
#ifndef DTP_INPUT_FILE_H
#define DTP_INPUT_FILE_H

#include <stdio.h>

/* NULL: it cannot be opened, with the reason in errno. */
FILE *dtp_input_open(const char *path);
void dtp_input_close(FILE *file);
/* What faults call it. */
const char *dtp_input_name(const char *path);

#endif
