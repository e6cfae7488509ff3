#include "page/shell_word.h"

#include <string.h>

void dtp_shell_word(FILE *file, const char *word)
{
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./=,:+@%";
    if (*word && word[strspn(word, plain)] == '\0') {
        fputs(word, file);
        return;
    }
    fputc('\'', file);
    for (; *word; word++)
        if (*word == '\'')
            fputs("'\\''", file);
        else
            fputc(*word, file);
    fputc('\'', file);
}
