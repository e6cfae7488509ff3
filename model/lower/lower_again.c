#include "lower/lower_again.h"

#include <stdlib.h>
#include <string.h>

#define MOST_KNOWN 8u     /* with and without a layer below, of first and other micro-steps, forward and backward */
#define MOST_BUFFERS 192u /* that one makes */
#define NOT_KNOWN UINT32_MAX

/* Of a buffer all that live bytes know. */
struct class
{
    uint64_t bytes;
    uint32_t what;
};
#define NO_CLASS UINT32_MAX

/* A slot's buffer afterwards: the `number`-th that the part made, or that the `number`-th slot had before. */
enum leaves { LEAVES_NONE, LEAVES_MADE, LEAVES_FOUND };
struct change {
    uint8_t set, index, leaves, number;
};

struct known {
    uint64_t kind, before[DTP_LOWER_MOST_WORDS], after[DTP_LOWER_MOST_WORDS];
    uint32_t slot_count, change_count, buffer_count, ops; /* slot_count NOT_KNOWN: nothing is remembered here */
    struct class found[DTP_LOWER_MOST_SLOTS];
    uint8_t same_as[DTP_LOWER_MOST_SLOTS]; /* of a slot the first that has the same buffer */
    struct change change[DTP_LOWER_MOST_SLOTS];
    struct dtp_live_run run;
    struct dtp_buffer buffer[MOST_BUFFERS];
};

struct dtp_lower_blocks {
    uint32_t next, repeated; /* next: that is written over */
    struct known known[MOST_KNOWN];
};

struct dtp_lower_blocks *dtp_lower_blocks_create(void)
{
    struct dtp_lower_blocks *blocks = malloc(sizeof *blocks);
    if (!blocks)
        return NULL;
    blocks->next = blocks->repeated = 0;
    for (uint32_t i = 0; i < MOST_KNOWN; i++)
        blocks->known[i].slot_count = NOT_KNOWN;
    return blocks;
}

uint32_t dtp_lower_blocks_repeated(const struct dtp_lower_blocks *blocks)
{
    return blocks->repeated;
}

/* ---- how it begins ----------------------------------------------------------------------------------------------- */

static struct class class_of(const struct dtp_buffer *buffers, dtp_buffer_id id)
{
    if (id.index == DTP_NO_INDEX)
        return (struct class){0, NO_CLASS};
    const struct dtp_buffer *b = &buffers[id.index];
    return (struct class){b->bytes, (uint32_t)b->owner << 24 | (uint32_t)b->pool << 16 | (uint32_t)b->space << 8 |
                                        (uint32_t)b->persistent};
}

/* What all slots have; of those that are not read nothing is asked. */
static uint32_t take_all(const struct dtp_lower_part *part, dtp_buffer_id out[DTP_LOWER_MOST_SLOTS])
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < part->set_count; i++) {
        const struct dtp_lower_slots *set = &part->set[i];
        assert(count + set->count <= DTP_LOWER_MOST_SLOTS);
        memcpy(&out[count], set->slot, set->count * sizeof *out);
        count += set->count;
    }
    return count;
}

static bool same_words(const struct known *known, const struct dtp_lower_part *part)
{
    for (uint32_t i = 0; i < part->word_count; i++)
        if (known->before[i] != *part->word[i])
            return false;
    return true;
}

#define SLOT_PLACES 512u /* a power of two, twice as many as there are slots */

/* Of each slot the first that has its buffer: by a table of the slots seen, at the buffer's number or behind it. */
static void list_firsts(const dtp_buffer_id *found, uint32_t count, uint8_t out[DTP_LOWER_MOST_SLOTS])
{
    uint16_t seen[SLOT_PLACES] = {0}; /* 1 + the slot */
    for (uint32_t at = 0; at < count; at++) {
        uint32_t place = found[at].index % SLOT_PLACES;
        while (seen[place] && found[seen[place] - 1u].index != found[at].index)
            place = (place + 1) % SLOT_PLACES;
        if (!seen[place])
            seen[place] = (uint16_t)(at + 1);
        out[at] = (uint8_t)(seen[place] - 1u);
    }
}

static bool begins_alike(const struct dtp_lowering *l, const struct known *known, const struct dtp_lower_part *part,
                         const dtp_buffer_id *found, uint32_t count)
{
    const struct dtp_buffer *buffers = dtp_program_buffers(l->program);
    uint8_t first[DTP_LOWER_MOST_SLOTS];
    uint32_t at = 0;
    if (known->slot_count != count || known->kind != part->kind || !same_words(known, part))
        return false;
    list_firsts(found, count, first);
    for (uint32_t i = 0; i < part->set_count; i++) {
        const uint32_t end = at + part->set[i].count;
        for (at = part->set[i].read ? at : end; at < end; at++) {
            struct class class = class_of(buffers, found[at]);
            if (class.what != known->found[at].what || class.bytes != known->found[at].bytes ||
                first[at] != known->same_as[at])
                return false;
        }
    }
    return true;
}

/* ---- remembered -------------------------------------------------------------------------------------------------- */

static void list_found(const struct dtp_lowering *l, const struct dtp_lower_part *part, const dtp_buffer_id *found,
                       struct known *out)
{
    const struct dtp_buffer *buffers = dtp_program_buffers(l->program);
    uint32_t at = 0;
    for (uint32_t i = 0; i < part->set_count; i++)
        for (const uint32_t end = at + part->set[i].count; at < end; at++)
            out->found[at] = part->set[i].read ? class_of(buffers, found[at]) : (struct class){0, NO_CLASS};
    list_firsts(found, at, out->same_as);
}

/* False: the buffer that is left is none that the part could know. */
static bool find_left(dtp_buffer_id left, const dtp_buffer_id *found, uint32_t count, size_t first_buffer,
                      struct change *out)
{
    size_t number = 0;
    out->leaves = left.index == DTP_NO_INDEX ? LEAVES_NONE : left.index >= first_buffer ? LEAVES_MADE : LEAVES_FOUND;
    if (out->leaves == LEAVES_MADE)
        number = left.index - first_buffer;
    while (out->leaves == LEAVES_FOUND && number < count && found[number].index != left.index)
        number++;
    out->number = (uint8_t)number;
    return out->leaves != LEAVES_FOUND || number < count;
}

static bool list_changes(const struct dtp_lower_part *part, const dtp_buffer_id *found, uint32_t count,
                         size_t first_buffer, struct known *out)
{
    uint32_t at = 0;
    out->change_count = 0;
    for (uint32_t set = 0; set < part->set_count; set++)
        for (uint32_t i = 0; i < part->set[set].count; i++, at++) {
            const dtp_buffer_id left = part->set[set].slot[i];
            if (left.index == found[at].index)
                continue;
            struct change *change = &out->change[out->change_count++];
            change->set = (uint8_t)set, change->index = (uint8_t)i;
            if (!find_left(left, found, count, first_buffer, change))
                return false;
        }
    return true;
}

/* Lowers the part, and remembers it where it is one that can be repeated. */
static void lower_and_remember(struct dtp_lowering *l, const struct dtp_lower_part *part, const dtp_buffer_id *found,
                               uint32_t count)
{
    struct dtp_lower_blocks *blocks = l->role.blocks;
    struct known *known = &blocks->known[blocks->next];
    const size_t ops = dtp_program_op_count(l->program), first_buffer = dtp_program_buffer_count(l->program);
    for (uint32_t i = 0; i < part->word_count; i++)
        known->before[i] = *part->word[i];
    size_t first = dtp_live_runs_begin_part(l->role.runs);
    part->lower(l, part->context);
    size_t made = dtp_program_buffer_count(l->program) - first_buffer;
    known->slot_count = NOT_KNOWN; /* unless all of it is */
    if (!dtp_live_runs_end_part(l->role.runs, first, &known->run) || made > MOST_BUFFERS ||
        !list_changes(part, found, count, first_buffer, known))
        return;
    for (uint32_t i = 0; i < part->word_count; i++)
        known->after[i] = *part->word[i];
    list_found(l, part, found, known);
    known->kind = part->kind;
    known->ops = (uint32_t)(dtp_program_op_count(l->program) - ops);
    known->buffer_count = (uint32_t)made;
    if (made)
        memcpy(known->buffer, &dtp_program_buffers(l->program)[first_buffer], made * sizeof *known->buffer);
    known->slot_count = count;
    blocks->next = (blocks->next + 1) % MOST_KNOWN;
}

/* ---- repeated ---------------------------------------------------------------------------------------------------- */

/* False: the program is refused. */
static bool repeat(struct dtp_lowering *l, const struct known *known, const struct dtp_lower_part *part,
                   const dtp_buffer_id *found)
{
    uint32_t made = dtp_program_repeat(l->program, known->ops, known->buffer, known->buffer_count).index;
    if (made == DTP_NO_INDEX || !dtp_live_runs_repeat(l->role.runs, &known->run, l->layer, l->micro_step))
        return false;
    for (uint32_t i = 0; i < known->change_count; i++) {
        const struct change *change = &known->change[i];
        part->set[change->set].slot[change->index] = change->leaves == LEAVES_NONE ? DTP_NO_BUFFER
                                                     : change->leaves == LEAVES_FOUND
                                                         ? found[change->number]
                                                         : (dtp_buffer_id){made + change->number};
    }
    for (uint32_t i = 0; i < part->word_count; i++)
        *part->word[i] = known->after[i];
    l->last_op[DTP_STREAM_COMPUTE] = (dtp_op_id){(uint32_t)dtp_program_op_count(l->program) - 1};
    l->awaited = DTP_NO_OP;
    l->role.blocks->repeated++;
    return true;
}

void dtp_lower_part(struct dtp_lowering *l, const struct dtp_lower_part *part)
{
    const struct known *known = l->role.blocks->known;
    dtp_buffer_id found[DTP_LOWER_MOST_SLOTS];
    const uint32_t count = take_all(part, found);
    uint32_t at = 0;
    while (at < MOST_KNOWN && !begins_alike(l, &known[at], part, found, count))
        at++;
    if (at == MOST_KNOWN)
        lower_and_remember(l, part, found, count);
    else if (!repeat(l, &known[at], part, found))
        part->lower(l, part->context);
}
