/* Words as a POSIX shell takes them, for commands that are shown to be typed again. */
#ifndef DTP_SHELL_WORD_H
#define DTP_SHELL_WORD_H

#include <stdio.h>

/* Writes `word` as it is where no shell minds, else in single quotes. */
void dtp_shell_word(FILE *file, const char *word);

#endif
