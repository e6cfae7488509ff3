/* Parts of a step that do what one before them did: blocks, forward and backward. Who asks for live bytes alone reads
 * of a part how many bytes come and go in which order, and what is left of its buffers: the same for all layers of a
 * kind, and in each micro-step. So such a part is lowered once, what it does to memory is remembered, and those that
 * begin alike repeat it.
 *
 * They begin alike where the buffers that they find have the same bytes, owners and pools, and are as many and the same
 * ones among each other; all else that decides their operations is the plan's, or in `kind` and the words. */
#ifndef DTP_LOWER_AGAIN_H
#define DTP_LOWER_AGAIN_H

#include "lower/lowering.h"

#define DTP_LOWER_MOST_SETS 16u
#define DTP_LOWER_MOST_SLOTS 256u /* of all sets */
#define DTP_LOWER_MOST_WORDS 3u

/* Where a part finds buffers and leaves them; DTP_NO_BUFFER: none. `read`: what is there before decides what it does.
 */
struct dtp_lower_slots {
    dtp_buffer_id *slot;
    uint32_t count;
    bool read;
};
struct dtp_lower_part {
    uint64_t kind;
    struct dtp_lower_slots set[DTP_LOWER_MOST_SETS];
    uint32_t set_count, word_count;
    uint64_t *word[DTP_LOWER_MOST_WORDS];                 /* numbers that it reads and changes */
    void (*lower)(struct dtp_lowering *l, void *context); /* makes its operations, all of l->layer */
    void *context;
};
static inline void dtp_lower_part_set(struct dtp_lower_part *part, dtp_buffer_id *slot, uint32_t count, bool read)
{
    assert(part->set_count < DTP_LOWER_MOST_SETS);
    part->set[part->set_count++] = (struct dtp_lower_slots){slot, count, read};
}
static inline void dtp_lower_part_word(struct dtp_lower_part *part, uint64_t *word)
{
    assert(part->word_count < DTP_LOWER_MOST_WORDS);
    part->word[part->word_count++] = word;
}

/* Whether anything is remembered of this step. */
static inline bool dtp_lower_remembers(const struct dtp_lowering *l)
{
    return l->role.blocks && l->role.runs && !l->role.pipeline;
}
/* Lowers the part, or repeats it. Only where dtp_lower_remembers. */
void dtp_lower_part(struct dtp_lowering *l, const struct dtp_lower_part *part);

#endif
