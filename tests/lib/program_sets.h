/* Program sets to look at: two roles that hand an array there and back. */
#ifndef TEST_PROGRAM_SETS_H
#define TEST_PROGRAM_SETS_H

#include "program/program_set.h"

#include <stdlib.h>
#include <string.h>

#define SET_BUFFERS                                                                                                    \
    "buffer 0 \"x\" bytes 1048576 owner activations space device pool compute dtype bf16 persistent\n"                 \
    "buffer 1 \"y\" bytes 1048576 owner activations space device pool compute dtype bf16 persistent\n"
#define SET_FIRST                                                                                                      \
    "program 1\ngroup 0 ranks 2 stride 1\n" SET_BUFFERS "op 0 norm compute writes 0 bytes 1000000000\n"                \
    "op 1 send gather group 0 peer 1 tag 7 reads 0 after 0 sent_bytes 1048576\n"                                       \
    "op 2 norm compute updates 0 after 1 bytes 4000000000\n"                                                           \
    "op 3 recv gather group 0 peer 1 tag 8 writes 1\n"                                                                 \
    "op 4 norm compute reads 1 after 3 bytes 1000000000\n"                                                             \
    "end ops 5 buffers 2 groups 1\n"
#define SET_LAST                                                                                                       \
    "program 1\ngroup 0 ranks 2 stride 1\n" SET_BUFFERS "op 0 recv gather group 0 peer 0 tag 7 writes 0\n"             \
    "op 1 norm compute reads 0 writes 1 after 0 bytes 2000000000\n"                                                    \
    "op 2 send gather group 0 peer 0 tag 8 reads 1 after 1 sent_bytes 1048576\n"                                       \
    "end ops 3 buffers 2 groups 1\n"
#define SET_THERE_AND_BACK                                                                                             \
    "set 1\nrole 0 \"first\" ranks 1\n" SET_FIRST "role 1 \"last\" ranks 1\n" SET_LAST "end roles 2\n"

/* A copy of `text` in which the first `old` is `new`. Caller frees. */
static inline char *set_with(const char *text, const char *old, const char *new)
{
    const char *at = strstr(text, old);
    char *out = at ? malloc(strlen(text) + strlen(new) + 1) : NULL;
    if (out)
        sprintf(out, "%.*s%s%s", (int)(at - text), text, new, at + strlen(old));
    return out;
}

#endif
