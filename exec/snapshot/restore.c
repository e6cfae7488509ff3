/* Going on from snapshots: which one is whole, who holds what of it, and the ranges that this rank needs. */
#include "snapshot/snapshot.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum soundness { UNREAD, SOUND, DAMAGED };
/* A file as its holder tells of it. */
struct held {
    uint64_t step;
    uint32_t world, rank, copy, turn, soundness;
    uint32_t zero;
};
/* Where a rank of the old world's part is; holder UINT32_MAX: nowhere. */
struct source {
    uint32_t holder, index;
};

struct restoring {
    struct dtp_snapshots *s;
    struct dtp_faults *faults;
    struct dtp_snapshot_entry *entries; /* of this rank's memory, in the order of `mine` */
    struct held *mine, *all; /* `width` of each rank, the fullest memory's files; the others' rest are of world 0 */
    uint64_t width;
    struct source *sources; /* of the snapshot that was chosen */
    uint64_t step;
    uint32_t world; /* whose snapshot it is */
};

/* ---- choosing ---------------------------------------------------------------------------------------------------- */

/* Files of this rank's memory that count, to `entries`: however many ranks share it. */
static enum dtp_status look_around(struct restoring *r, uint64_t least, uint64_t *count)
{
    const struct dtp_snapshot_options *o = &r->s->options;
    size_t listed = 0;
    *count = 0;
    if (!dtp_snapshot_list(o->folder, o->identity, &r->entries, &listed))
        return dtp_fault(r->faults, DTP_ENVIRONMENT, NULL, 0, "out of memory");
    for (size_t i = 0; i < listed; i++)
        if (r->entries[i].head.position.step >= least)
            r->entries[(*count)++] = r->entries[i];
    return DTP_OK;
}

/* Room for what all ranks hold, as wide as the fullest memory needs. */
static enum dtp_status make_room(struct restoring *r, uint64_t count)
{
    const uint32_t world = r->s->options.world->ranks.world;
    uint64_t *counts = calloc(world, sizeof *counts);
    enum dtp_status status = counts ? DTP_OK : dtp_fault(r->faults, DTP_ENVIRONMENT, NULL, 0, "out of memory");
    status = dtp_world_agree(r->s->options.world, status, r->faults);
    if (status == DTP_OK)
        status = dtp_world_exchange(r->s->options.world, &count, sizeof count, counts, r->faults);
    for (uint32_t rank = 0; rank < world && status == DTP_OK; rank++)
        r->width = counts[rank] > r->width ? counts[rank] : r->width;
    free(counts);
    if (status != DTP_OK)
        return status;
    if (r->width > UINT32_MAX / sizeof *r->mine / world)
        return dtp_fault(r->faults, DTP_ENVIRONMENT, r->s->options.folder, 0, "holds too many snapshots");
    r->mine = calloc(r->width + 1, sizeof *r->mine);
    r->all = calloc(world * r->width + 1, sizeof *r->all);
    status = r->mine && r->all ? DTP_OK : dtp_fault(r->faults, DTP_ENVIRONMENT, NULL, 0, "out of memory");
    for (uint64_t i = 0; i < count && status == DTP_OK; i++) {
        const struct dtp_snapshot_entry *e = &r->entries[i];
        r->mine[i] = (struct held){.step = e->head.position.step,
                                   .world = e->head.world,
                                   .rank = e->head.rank,
                                   .copy = e->name.copy,
                                   .turn = e->name.turn,
                                   .soundness = UNREAD};
    }
    return status;
}

static enum dtp_status tell_all(struct restoring *r)
{
    return dtp_world_exchange(r->s->options.world, r->mine, (uint32_t)(r->width * sizeof *r->mine), r->all, r->faults);
}

static const struct held *held_by(const struct restoring *r, const struct source *source)
{
    return &r->all[source->holder * r->width + source->index];
}

/* Whether every rank's part of the snapshot is held by someone, and by whom first. */
static bool find_sources(const struct restoring *r, uint64_t step, uint32_t world)
{
    uint32_t found = 0;
    for (uint32_t rank = 0; rank < world; rank++)
        r->sources[rank].holder = UINT32_MAX;
    for (uint32_t holder = 0; holder < r->s->options.world->ranks.world; holder++)
        for (uint32_t i = 0; i < r->width; i++) {
            const struct held *h = &r->all[holder * r->width + i];
            if (h->step != step || h->world != world || h->rank >= world || h->soundness == DAMAGED ||
                r->sources[h->rank].holder != UINT32_MAX)
                continue;
            r->sources[h->rank] = (struct source){holder, i};
            found++;
        }
    return found == world;
}

/* The newest of which all is there; false: there is none. All ranks find the same, for they were told the same. */
static bool choose(struct restoring *r)
{
    bool found = false;
    r->step = 0;
    for (uint32_t holder = 0; holder < r->s->options.world->ranks.world; holder++)
        for (uint32_t i = 0; i < r->width; i++) {
            const struct held *h = &r->all[holder * r->width + i];
            if (h->world == 0 || h->world > DTP_RANKS_MAX || (found && h->step <= r->step) ||
                !find_sources(r, h->step, h->world))
                continue;
            found = true;
            r->step = h->step;
            r->world = h->world;
        }
    return found && find_sources(r, r->step, r->world);
}

/* Reads those of the files chosen that this rank holds. *settled: all of them, on all ranks, have been read. */
static enum dtp_status check_chosen(struct restoring *r, bool *settled)
{
    uint32_t own = r->s->options.world->ranks.rank;
    for (uint32_t rank = 0; rank < r->world; rank++) {
        const struct source *source = &r->sources[rank];
        struct held *h = &r->mine[source->index];
        if (source->holder != own || h->soundness != UNREAD)
            continue;
        h->soundness = dtp_snapshot_verify(r->s->options.folder, &r->entries[source->index]) ? SOUND : DAMAGED;
        if (h->soundness == DAMAGED)
            dtp_fault(r->faults, DTP_OK, NULL, 0,
                      "rank %" PRIu32 ": its snapshot of step %" PRIu64 ", the part of rank %" PRIu32
                      ", is damaged; another is taken",
                      own, h->step, h->rank);
    }
    enum dtp_status status = tell_all(r);
    *settled = true;
    for (uint32_t rank = 0; rank < r->world && status == DTP_OK; rank++)
        *settled = *settled && held_by(r, &r->sources[rank])->soundness == SOUND;
    return status;
}

/* Each round reads what was chosen; what is damaged leaves another choice, until one stands or none is left. */
static enum dtp_status settle(struct restoring *r, bool *found)
{
    bool settled = false;
    enum dtp_status status = r->width ? tell_all(r) : DTP_OK;
    *found = status == DTP_OK && choose(r);
    while (status == DTP_OK && *found && !settled) {
        status = check_chosen(r, &settled);
        if (status == DTP_OK && !settled)
            *found = choose(r);
    }
    return status;
}

/* ---- reading ----------------------------------------------------------------------------------------------------- */

static enum dtp_status fetch(const struct restoring *r, uint32_t rank, uint64_t offset, void *out, uint64_t bytes)
{
    const struct dtp_snapshots *s = r->s;
    const struct source *source = &r->sources[rank];
    const struct held *h = held_by(r, source);
    const struct dtp_snapshot_name name = {h->rank, h->copy != 0, h->turn};
    if (source->holder != s->options.world->ranks.rank)
        return dtp_peer_get(&s->peers[source->holder], s->secret, &name, offset, out, bytes, r->faults);
    return dtp_snapshot_read(s->options.folder, &name, offset, out, bytes)
               ? DTP_OK
               : dtp_fault(r->faults, DTP_ENVIRONMENT, s->options.folder, 0,
                           "a snapshot that was there cannot be read");
}

/* The elements of a block that a part has, to the device. */
static enum dtp_status deliver(const struct restoring *r, uint32_t rank, const struct dtp_snapshot_head *head,
                               const struct dtp_snapshot_block *block, const struct dtp_state_part *part,
                               uint64_t *delivered)
{
    struct dtp_device *device = r->s->options.device;
    uint64_t begin = block->begin > part->begin ? block->begin : part->begin;
    uint64_t end = block->end < part->end ? block->end : part->end;
    if (block->module != part->module || block->kind != (uint32_t)part->kind || begin >= end)
        return DTP_OK;
    if (block->element != (uint32_t)part->element)
        return dtp_fault(r->faults, DTP_BAD_INPUT, NULL, 0, "the snapshot keeps the %s in another number format",
                         dtp_state_kind_text(part->kind));
    uint64_t element = dtp_state_element_bytes(part->element), bytes = (end - begin) * element;
    void *staging = NULL;
    enum dtp_status status = device->verbs->allocate_host(device, bytes, &staging, r->faults);
    uint64_t offset = dtp_snapshot_data_offset(head) + block->offset_bytes + (begin - block->begin) * element;
    if (status == DTP_OK)
        status = fetch(r, rank, offset, staging, bytes);
    if (status == DTP_OK) {
        int code = device->verbs->copy(device, (char *)part->values + (begin - part->begin) * element, staging, bytes,
                                       device->verbs->stream(device, DTP_STREAM_UPLOAD));
        code = code ? code : device->verbs->synchronise(device);
        if (code)
            status = dtp_fault(r->faults, DTP_ENVIRONMENT, NULL, 0, "the state could not be copied to the device: %s",
                               device->verbs->error_text(device, code));
    }
    if (staging)
        device->verbs->release_host(device, staging);
    *delivered += end - begin;
    return status;
}

/* What one rank of the old world had, to all parts of this one. */
static enum dtp_status take_rank(const struct restoring *r, uint32_t rank, const struct dtp_state_part *parts,
                                 size_t count, struct dtp_checkpoint_position *position, uint64_t *delivered)
{
    struct dtp_snapshot_head head;
    enum dtp_status status = fetch(r, rank, 0, &head, sizeof head);
    if (status != DTP_OK)
        return status;
    if (!dtp_snapshot_sealed(&head) || head.position.step != r->step || head.block_count > UINT32_MAX)
        return dtp_fault(r->faults, DTP_ENVIRONMENT, NULL, 0,
                         "the snapshot of rank %" PRIu32 " changed while it was read", rank);
    *position = head.position;
    struct dtp_snapshot_block *blocks = calloc(head.block_count + 1, sizeof *blocks);
    if (!blocks)
        return dtp_fault(r->faults, DTP_ENVIRONMENT, NULL, 0, "out of memory");
    status = fetch(r, rank, DTP_SNAPSHOT_HEAD_BYTES, blocks, head.block_count * sizeof *blocks);
    for (uint64_t b = 0; b < head.block_count && status == DTP_OK; b++)
        for (size_t i = 0; i < count && status == DTP_OK; i++)
            status = deliver(r, rank, &head, &blocks[b], &parts[i], delivered);
    free(blocks);
    return status;
}

static enum dtp_status take_all(const struct restoring *r, const struct dtp_state_part *parts, size_t count,
                                struct dtp_checkpoint_position *position)
{
    uint64_t delivered = 0, wanted = 0;
    enum dtp_status status = DTP_OK;
    for (size_t i = 0; i < count; i++)
        wanted += parts[i].end - parts[i].begin;
    for (uint32_t rank = 0; rank < r->world && status == DTP_OK; rank++)
        status = take_rank(r, rank, parts, count, position, &delivered);
    /* Ranges of the old ranks' files do not overlap, so the count says whether all is there. */
    if (status == DTP_OK && delivered != wanted)
        status = dtp_fault(r->faults, DTP_BAD_INPUT, NULL, 0,
                           "the snapshot of step %" PRIu64 " has %" PRIu64 " elements of the %" PRIu64
                           " that this rank needs",
                           r->step, delivered, wanted);
    return status;
}

enum dtp_status dtp_snapshots_restore(struct dtp_snapshots *s, const struct dtp_state_part *parts, size_t count,
                                      uint64_t least, struct dtp_checkpoint_position *position, bool *found,
                                      struct dtp_faults *faults)
{
    struct restoring r = {.s = s, .faults = faults};
    uint64_t held = 0;
    r.sources = calloc(DTP_RANKS_MAX, sizeof *r.sources);
    *found = false;
    enum dtp_status status =
        r.sources ? look_around(&r, least, &held) : dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "out of memory");
    status = dtp_world_agree(s->options.world, status, faults);
    if (status == DTP_OK)
        status = dtp_world_agree(s->options.world, make_room(&r, held), faults);
    if (status == DTP_OK)
        status = settle(&r, found);
    if (status == DTP_OK && *found)
        status = take_all(&r, parts, count, position);
    /* Nobody writes over a file that another still reads. */
    status = dtp_world_agree(s->options.world, status, faults);
    if (status == DTP_OK && *found) {
        s->whole_step = r.step;
        s->whole_world = r.world;
    }
    free(r.entries);
    free(r.mine);
    free(r.all);
    free(r.sources);
    return status;
}
