/* Writing: a copy between two steps, a thread for the rest. */
#include "snapshot/snapshot.h"

#include "base/clock.h"
#include "base/crc64.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>

/* ---- meeting ----------------------------------------------------------------------------------------------------- */

/* What ranks tell each other before anything is asked for. */
struct introduction {
    struct dtp_peer peer;
    uint64_t secret; /* rank 0's counts */
};

static enum dtp_status meet(struct dtp_snapshots *s, struct dtp_faults *faults)
{
    struct dtp_world *world = s->options.world;
    uint32_t count = world->ranks.world;
    struct introduction mine = {.peer = dtp_peer_own(s->server)}, *all = calloc(count, sizeof *all);
    s->peers = calloc(count, sizeof *s->peers);
    if (!all || !s->peers || getrandom(&mine.secret, sizeof mine.secret, 0) != sizeof mine.secret) {
        free(all);
        return dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "no memory or random numbers to keep snapshots with");
    }
    enum dtp_status status = dtp_world_exchange(world, &mine, sizeof mine, all, faults);
    for (uint32_t i = 0; i < count && status == DTP_OK; i++)
        s->peers[i] = all[i].peer;
    s->secret = all[0].secret;
    free(all);
    if (status == DTP_OK)
        dtp_peer_trust(s->server, s->secret, s->options.identity);
    return status;
}

/* The folder with those above it. */
static bool make_folder(const char *folder)
{
    char path[DTP_SNAPSHOT_PATH_BYTES];
    size_t length = strlen(folder);
    if (length >= sizeof path)
        return false;
    memcpy(path, folder, length + 1);
    for (size_t i = 1; i < length; i++)
        if (path[i] == '/') {
            path[i] = '\0';
            mkdir(path, 0700);
            path[i] = '/';
        }
    return mkdir(path, 0700) == 0 || errno == EEXIST;
}

enum dtp_status dtp_snapshots_open(const struct dtp_snapshot_options *options, struct dtp_snapshots **out,
                                   struct dtp_faults *faults)
{
    char address[64] = "127.0.0.1";
    struct dtp_snapshots *s = *out = calloc(1, sizeof *s);
    if (!s)
        return dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "out of memory");
    s->options = *options;
    if (options->world->control)
        dtp_control_address(options->world->control, address, sizeof address);
    enum dtp_status status =
        make_folder(options->folder)
            ? DTP_OK
            : dtp_fault(faults, DTP_ENVIRONMENT, options->folder, 0,
                        "snapshots cannot be kept there: %s; name another folder of memory with --snapshots",
                        strerror(errno));
    if (status == DTP_OK)
        status = dtp_peer_serve(address, options->folder, &s->server, faults);
    /* A rank that failed says so here, before the others ask it for anything. */
    status = dtp_world_agree(options->world, status, faults);
    return status == DTP_OK ? meet(s, faults) : status;
}

void dtp_snapshots_close(struct dtp_snapshots *s, bool forget)
{
    if (!s)
        return;
    dtp_snapshots_wait(s);
    dtp_peer_stop(s->server);
    if (forget)
        dtp_snapshot_forget(s->options.folder, 0);
    dtp_host_copy_release(&s->copy);
    free(s->blocks);
    free(s->peers);
    free(s);
}

/* ---- the thread -------------------------------------------------------------------------------------------------- */

static enum dtp_status write_own(struct dtp_snapshots *s, struct dtp_snapshot_head *head, struct dtp_faults *faults)
{
    struct dtp_snapshot_file file;
    const char *folder = s->options.folder;
    const struct dtp_snapshot_name name = {head->rank, false,
                                           dtp_snapshot_turn(folder, head->rank, false, s->whole_step, s->whole_world)};
    uint64_t blocks_bytes = head->block_count * sizeof *s->blocks;
    enum dtp_status status = dtp_snapshot_create(folder, &name, &file, faults);
    if (status == DTP_OK)
        status = dtp_snapshot_append(&file, s->blocks, blocks_bytes, faults);
    if (status == DTP_OK)
        status = dtp_snapshot_append(&file, s->copy.memory, s->copy.bytes, faults);
    head->blocks_crc = dtp_crc64(0, s->blocks, blocks_bytes);
    head->data_crc = dtp_crc64(0, s->copy.memory, s->copy.bytes);
    dtp_snapshot_seal(head);
    if (status == DTP_OK)
        status = dtp_snapshot_finish(&file, head, faults);
    dtp_snapshot_close(&file);
    return status;
}

static void *write_snapshot(void *snapshots)
{
    struct dtp_snapshots *s = snapshots;
    const struct dtp_ranks *ranks = &s->options.world->ranks;
    struct dtp_snapshot_head head;
    memset(&head, 0, sizeof head); /* its sum is of every byte */
    head.identity = s->options.identity;
    head.position = s->position;
    head.world = ranks->world;
    head.rank = ranks->rank;
    head.block_count = s->copy.count;
    head.data_bytes = s->copy.bytes;
    uint32_t keeper = (head.rank + s->options.neighbour) % ranks->world;
    enum dtp_status status = write_own(s, &head, &s->fault);
    const struct dtp_peer_copy copy = {&head, s->blocks, s->copy.memory, s->whole_step, s->whole_world};
    if (status == DTP_OK && keeper != head.rank)
        status = dtp_peer_put(&s->peers[keeper], s->secret, &copy, &s->fault);
    atomic_store(&s->state, status == DTP_OK ? DTP_SNAPSHOT_WRITTEN : DTP_SNAPSHOT_FAILED);
    return NULL;
}

enum dtp_status dtp_snapshots_prepare(struct dtp_snapshots *s, const struct dtp_state_part *own, size_t count,
                                      struct dtp_faults *faults)
{
    enum dtp_status made = dtp_host_copy_make(s->options.device, own, count, &s->copy, faults);
    s->blocks = made == DTP_OK ? calloc(count + 1, sizeof *s->blocks) : NULL;
    if (!s->blocks)
        return made == DTP_OK ? dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "out of memory") : made;
    for (size_t i = 0; i < count; i++)
        s->blocks[i] =
            (struct dtp_snapshot_block){.module = own[i].module,
                                        .kind = (uint32_t)own[i].kind,
                                        .element = (uint32_t)own[i].element,
                                        .begin = own[i].begin,
                                        .end = own[i].end,
                                        .offset_bytes = (uint64_t)((char *)s->copy.parts[i].values - s->copy.memory)};
    return DTP_OK;
}

void dtp_snapshots_begin(struct dtp_snapshots *s, const struct dtp_checkpoint_position *position,
                         const struct dtp_state_part *own, double *stall_s)
{
    double begun_s = dtp_now_s();
    dtp_snapshots_wait(s);
    s->fault = (struct dtp_faults){.count = 0};
    s->position = *position;
    atomic_store(&s->state, DTP_SNAPSHOT_WRITING);
    enum dtp_status status = dtp_host_copy_take(&s->copy, own, &s->fault);
    s->joinable = status == DTP_OK && pthread_create(&s->thread, NULL, write_snapshot, s) == 0;
    if (status == DTP_OK && !s->joinable)
        dtp_fault(&s->fault, DTP_ENVIRONMENT, NULL, 0, "no thread to write the snapshot");
    if (!s->joinable)
        atomic_store(&s->state, DTP_SNAPSHOT_FAILED);
    *stall_s = dtp_now_s() - begun_s;
}

enum dtp_snapshot_state dtp_snapshots_state(const struct dtp_snapshots *s)
{
    return (enum dtp_snapshot_state)atomic_load(&s->state);
}

void dtp_snapshots_wait(struct dtp_snapshots *s)
{
    if (s->joinable)
        pthread_join(s->thread, NULL);
    s->joinable = false;
}

void dtp_snapshots_settle(struct dtp_snapshots *s, bool whole, struct dtp_faults *faults)
{
    uint32_t world = s->options.world->ranks.world;
    dtp_snapshots_wait(s);
    if (dtp_snapshots_state(s) == DTP_SNAPSHOT_FAILED && !s->said_failure && s->fault.count > 0) {
        dtp_fault(faults, DTP_OK, NULL, 0, "no snapshot of step %llu: %s", (unsigned long long)s->position.step,
                  s->fault.text[0]);
        s->said_failure = true;
    }
    /* Two of this world are whole: what ranks of another world left is no longer the second best. */
    if (whole && s->whole_world == world)
        dtp_snapshot_forget(s->options.folder, world);
    if (whole) {
        s->whole_step = s->position.step;
        s->whole_world = world;
    }
    atomic_store(&s->state, DTP_SNAPSHOT_NONE);
}
