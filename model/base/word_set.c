#include "base/word_set.h"

#include "base/append.h"

#include <string.h>

void dtp_word_set_text(const struct dtp_word_list *list, uint32_t set, char *out, size_t bytes)
{
    out[0] = '\0';
    for (int i = 0; i < list->count; i++)
        if (set >> i & 1)
            dtp_append_part(out, bytes, "+", "%s", list->words[i]);
    if (!set)
        dtp_append_part(out, bytes, "+", "none");
}

static int find(const struct dtp_word_list *list, const char *word, size_t length)
{
    for (int i = 0; i < list->count; i++)
        if (strlen(list->words[i]) == length && memcmp(word, list->words[i], length) == 0)
            return i;
    return -1;
}

bool dtp_word_set_parse(const struct dtp_word_list *list, const char *text, uint32_t *out)
{
    static const char between[] = "+, ";
    uint32_t set = 0;
    if (!text)
        return false;
    bool none = strcmp(text, "none") == 0;
    for (text += strspn(text, between); *text && !none; text += strspn(text, between)) {
        size_t length = strcspn(text, between);
        int i = find(list, text, length);
        if (i < 0)
            return false;
        set |= UINT32_C(1) << i;
        text += length;
    }
    if (!none && !set)
        return false;
    *out = set;
    return true;
}
