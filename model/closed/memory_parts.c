#include "closed/memory_parts.h"

#include <assert.h>

const struct dtp_memory_term_words dtp_memory_terms[DTP_TERM_COUNT] = {
#define DTP_MEMORY_TERM_WORDS(suffix, words, count, elements, bytes, source) {words, {count, elements, bytes}, source},
    DTP_MEMORY_TERM_TABLE(DTP_MEMORY_TERM_WORDS)
#undef DTP_MEMORY_TERM_WORDS
};

uint64_t dtp_memory_part(struct dtp_memory_list *list, enum dtp_memory_term term, uint64_t count, uint64_t elements,
                         uint64_t element_bytes)
{
    uint64_t bytes = count * elements * element_bytes;
    if (!list || !bytes)
        return bytes;
    assert(list->count < DTP_MEMORY_PARTS);
    list->part[list->count++] =
        (struct dtp_memory_part){.term = term, .factors = {count, elements, element_bytes}, .bytes = bytes};
    return bytes;
}
