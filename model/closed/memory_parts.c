#include "closed/memory_parts.h"

#include <assert.h>

const struct dtp_memory_term_words dtp_memory_terms[DTP_TERM_COUNT] = {
#define DTP_TENSOR_TERM_WORDS(suffix, owner, words, count, elements, bytes, source)                                    \
    {DTP_OWNER_##owner, words, {count, elements, bytes}, source},
#define DTP_STORE_TERM_WORDS(suffix, words, count, elements, bytes, source)                                            \
    {DTP_OWNER_COUNT, words, {count, elements, bytes}, source},
    DTP_TENSOR_TERM_TABLE(DTP_TENSOR_TERM_WORDS) DTP_STORE_TERM_TABLE(DTP_STORE_TERM_WORDS)
#undef DTP_TENSOR_TERM_WORDS
#undef DTP_STORE_TERM_WORDS
};

void dtp_memory_part_keep(struct dtp_part_chain *chain, enum dtp_memory_term term, uint64_t count, uint64_t elements,
                          uint64_t element_bytes, uint64_t bytes)
{
    struct dtp_memory_parts *record = chain->record;
    if (bytes == 0)
        return;
    assert(record->count < DTP_MEMORY_PARTS);
    record->parts[++record->count] = (struct dtp_memory_part){
        .term = term, .factors = {count, elements, element_bytes}, .bytes = bytes, .previous = chain->newest};
    chain->newest = record->count;
}

size_t dtp_memory_parts_of(const struct dtp_memory_parts *parts, enum dtp_memory_account account,
                           const struct dtp_memory_part **out, size_t most)
{
    size_t count = 0;
    for (size_t i = parts->newest[account]; i != 0 && count < most; i = parts->parts[i].previous)
        out[count++] = &parts->parts[i];
    for (size_t i = 0; i < count / 2; i++) { /* the chain runs backwards */
        const struct dtp_memory_part *part = out[i];
        out[i] = out[count - 1 - i];
        out[count - 1 - i] = part;
    }
    return count;
}
