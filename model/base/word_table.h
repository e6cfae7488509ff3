/* Words of enumerations: an enumeration's rows X(suffix, word, ...) say them, these make the functions.
 *
 * A value that is none has the word "?", so that whatever a file made of an enumeration can be printed. */
#ifndef DTP_WORD_TABLE_H
#define DTP_WORD_TABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <string.h>

/* What rows become: their first word, their second. */
#define DTP_ROW_WORD(suffix, word, ...) word,
#define DTP_ROW_SECOND(suffix, word, second, ...) second,
#define DTP_WORD_COUNT(words) (sizeof(words) / sizeof *(words))

/* Index of `word` in words[first ... count - 1], or count. */
static inline size_t dtp_word_index(const char *word, const char *const *words, size_t first, size_t count)
{
    while (first < count && strcmp(word, words[first]))
        first++;
    return first;
}

/* const char *FUNCTION(enum TAG value): of an array, of a table. */
#define DTP_WORDS_OF_ARRAY(function, tag, words)                                                                       \
    const char *function(enum tag value)                                                                               \
    {                                                                                                                  \
        return (size_t)value < DTP_WORD_COUNT(words) ? words[value] : "?";                                             \
    }
#define DTP_WORDS_OF_TABLE(function, tag, TABLE, ROW)                                                                  \
    static const char *const function##_words[] = {TABLE(ROW)};                                                        \
    DTP_WORDS_OF_ARRAY(function, tag, function##_words)

/* bool FUNCTION(const char *word, enum TAG *out): the value from `first` on that has the word. False: none has it. */
#define DTP_PARSE_OF_ARRAY(function, tag, words, first)                                                                \
    bool function(const char *word, enum tag *out)                                                                     \
    {                                                                                                                  \
        size_t index = dtp_word_index(word, words, first, DTP_WORD_COUNT(words));                                      \
        if (index < DTP_WORD_COUNT(words))                                                                             \
            *out = (enum tag)index;                                                                                    \
        return index < DTP_WORD_COUNT(words);                                                                          \
    }

/* dtp_NAME_text and dtp_NAME_parse of enum dtp_NAME. */
#define DTP_TEXT_AND_PARSE_OF_ARRAY(name, words, first)                                                                \
    DTP_WORDS_OF_ARRAY(dtp_##name##_text, dtp_##name, words)                                                           \
    DTP_PARSE_OF_ARRAY(dtp_##name##_parse, dtp_##name, words, first)
#define DTP_TEXT_AND_PARSE(name, TABLE, first)                                                                         \
    static const char *const name##_words[] = {TABLE(DTP_ROW_WORD)};                                                   \
    DTP_TEXT_AND_PARSE_OF_ARRAY(name, name##_words, first)

#endif
