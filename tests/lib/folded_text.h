/* A page as people see it: what a command prints is folded to the columns of their screen when it is whole. */
#ifndef FOLDED_TEXT_H
#define FOLDED_TEXT_H

#include "page/page.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* Takes over `text`; the caller frees what comes back. */
static inline char *folded_text(char *text, int columns)
{
    char *folded = NULL;
    size_t bytes = 0;
    FILE *file = open_memstream(&folded, &bytes);
    assert(file);
    dtp_page_fold(text, strlen(text), columns, file);
    int closed = fclose(file);
    assert(closed == 0);
    (void)closed;
    free(text);
    return folded;
}

#endif
