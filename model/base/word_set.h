/* Sets of words, a bit each in the order of a list: "none" for none of them, else joined by '+'. */
#ifndef DTP_WORD_SET_H
#define DTP_WORD_SET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct dtp_word_list {
    const char *const *words;
    int count; /* up to 32 */
};
/* What does not fit into `bytes` is cut off. */
void dtp_word_set_text(const struct dtp_word_list *list, uint32_t set, char *out, size_t bytes);
/* Takes '+', ',' and ' ' between words. False: NULL, empty, or a word that is not in the list; *out is as it was. */
bool dtp_word_set_parse(const struct dtp_word_list *list, const char *text, uint32_t *out);

#endif
