#include "snapshot/store.h"

#include "base/crc64.h"
#include "base/grow.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char magic[8] = "dtpsnap1";
#define PIECE_BYTES (1u << 20) /* read at a time, for sums */

_Static_assert(sizeof(struct dtp_snapshot_head) < DTP_SNAPSHOT_HEAD_BYTES, "a head has its page");
_Static_assert(sizeof(struct dtp_snapshot_block) == 40, "every byte of a block is written");

/* ---- names ------------------------------------------------------------------------------------------------------- */

static bool path_of(const char *folder, const struct dtp_snapshot_name *name, char *out)
{
    int wrote = snprintf(out, DTP_SNAPSHOT_PATH_BYTES, "%s/%s-%04" PRIu32 ".%c", folder, name->copy ? "copy" : "own",
                         name->rank, name->turn ? 'b' : 'a');
    return wrote > 0 && wrote < DTP_SNAPSHOT_PATH_BYTES;
}

static bool parse_name(const char *text, struct dtp_snapshot_name *out)
{
    char kind[5], turn;
    int end = 0;
    if (sscanf(text, "%4[a-z]-%" SCNu32 ".%c%n", kind, &out->rank, &turn, &end) != 3 || text[end] != '\0')
        return false;
    out->copy = strcmp(kind, "copy") == 0;
    out->turn = turn == 'b';
    return (out->copy || strcmp(kind, "own") == 0) && (turn == 'a' || turn == 'b');
}

/* ---- writing ----------------------------------------------------------------------------------------------------- */

static enum dtp_status failed(const struct dtp_snapshot_file *file, struct dtp_faults *faults)
{
    return dtp_fault(faults, DTP_ENVIRONMENT, file->path, 0, "the snapshot could not be written: %s", strerror(errno));
}

static bool write_at(int descriptor, const void *data, uint64_t bytes, uint64_t offset)
{
    const char *from = data;
    while (bytes > 0) {
        ssize_t wrote = pwrite(descriptor, from, bytes, (off_t)offset);
        if (wrote < 0 && errno == EINTR)
            continue;
        if (wrote <= 0)
            return false;
        from += wrote;
        offset += (uint64_t)wrote;
        bytes -= (uint64_t)wrote;
    }
    return true;
}

enum dtp_status dtp_snapshot_create(const char *folder, const struct dtp_snapshot_name *name,
                                    struct dtp_snapshot_file *out, struct dtp_faults *faults)
{
    static const char nothing[DTP_SNAPSHOT_HEAD_BYTES];
    *out = (struct dtp_snapshot_file){.descriptor = -1, .at_bytes = DTP_SNAPSHOT_HEAD_BYTES};
    if (!path_of(folder, name, out->path))
        return dtp_fault(faults, DTP_BAD_INPUT, folder, 0, "the folder's name is too long for snapshots");
    out->descriptor = open(out->path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (out->descriptor >= 0 && write_at(out->descriptor, nothing, sizeof nothing, 0))
        return DTP_OK;
    enum dtp_status status = failed(out, faults);
    dtp_snapshot_close(out);
    return status;
}

enum dtp_status dtp_snapshot_append(struct dtp_snapshot_file *file, const void *data, uint64_t bytes,
                                    struct dtp_faults *faults)
{
    if (!write_at(file->descriptor, data, bytes, file->at_bytes))
        return failed(file, faults);
    file->at_bytes += bytes;
    return DTP_OK;
}

enum dtp_status dtp_snapshot_finish(struct dtp_snapshot_file *file, const struct dtp_snapshot_head *head,
                                    struct dtp_faults *faults)
{
    bool whole =
        ftruncate(file->descriptor, (off_t)file->at_bytes) == 0 && write_at(file->descriptor, head, sizeof *head, 0);
    return whole ? DTP_OK : failed(file, faults);
}

void dtp_snapshot_close(struct dtp_snapshot_file *file)
{
    if (file->descriptor >= 0)
        close(file->descriptor);
    file->descriptor = -1;
}

void dtp_snapshot_seal(struct dtp_snapshot_head *head)
{
    memcpy(head->magic, magic, sizeof magic);
    head->head_crc = dtp_crc64(0, head, offsetof(struct dtp_snapshot_head, head_crc));
}

bool dtp_snapshot_sealed(const struct dtp_snapshot_head *head)
{
    return memcmp(head->magic, magic, sizeof magic) == 0 &&
           head->head_crc == dtp_crc64(0, head, offsetof(struct dtp_snapshot_head, head_crc));
}

/* ---- reading ----------------------------------------------------------------------------------------------------- */

static bool read_at(int descriptor, void *out, uint64_t bytes, uint64_t offset)
{
    char *to = out;
    while (bytes > 0) {
        ssize_t got = pread(descriptor, to, bytes, (off_t)offset);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return false;
        to += got;
        offset += (uint64_t)got;
        bytes -= (uint64_t)got;
    }
    return true;
}

static int open_file(const char *folder, const struct dtp_snapshot_name *name)
{
    char path[DTP_SNAPSHOT_PATH_BYTES];
    return path_of(folder, name, path) ? open(path, O_RDONLY | O_CLOEXEC) : -1;
}

bool dtp_snapshot_read(const char *folder, const struct dtp_snapshot_name *name, uint64_t offset, void *out,
                       uint64_t bytes)
{
    int descriptor = open_file(folder, name);
    bool whole = descriptor >= 0 && read_at(descriptor, out, bytes, offset);
    if (descriptor >= 0)
        close(descriptor);
    return whole;
}

static bool sum_of(int descriptor, uint64_t offset, uint64_t bytes, uint64_t wanted)
{
    unsigned char *piece = malloc(PIECE_BYTES);
    uint64_t crc = 0;
    bool read = piece != NULL;
    while (read && bytes > 0) {
        uint64_t now = bytes < PIECE_BYTES ? bytes : PIECE_BYTES;
        read = read_at(descriptor, piece, now, offset);
        crc = read ? dtp_crc64(crc, piece, now) : crc;
        offset += now;
        bytes -= now;
    }
    free(piece);
    return read && crc == wanted;
}

bool dtp_snapshot_verify(const char *folder, const struct dtp_snapshot_entry *entry)
{
    const struct dtp_snapshot_head *head = &entry->head;
    uint64_t blocks_bytes = head->block_count * sizeof(struct dtp_snapshot_block);
    int descriptor = open_file(folder, &entry->name);
    bool whole = descriptor >= 0 && sum_of(descriptor, DTP_SNAPSHOT_HEAD_BYTES, blocks_bytes, head->blocks_crc) &&
                 sum_of(descriptor, dtp_snapshot_data_offset(head), head->data_bytes, head->data_crc);
    if (descriptor >= 0)
        close(descriptor);
    return whole;
}

/* Newest first; of one step own before copy, so that a file at hand is preferred. */
static int by_step(const void *a, const void *b)
{
    const struct dtp_snapshot_entry *x = a, *y = b;
    if (x->head.position.step != y->head.position.step)
        return x->head.position.step > y->head.position.step ? -1 : 1;
    if (x->name.copy != y->name.copy)
        return x->name.copy < y->name.copy ? -1 : 1;
    return (x->name.rank > y->name.rank) - (x->name.rank < y->name.rank);
}

bool dtp_snapshot_list(const char *folder, uint64_t identity, struct dtp_snapshot_entry **out, size_t *count)
{
    DIR *files = opendir(folder);
    size_t room = 0;
    bool whole = true;
    *out = NULL, *count = 0;
    for (const struct dirent *file; files && whole && (file = readdir(files));) {
        struct dtp_snapshot_entry entry;
        if (!parse_name(file->d_name, &entry.name) ||
            !dtp_snapshot_read(folder, &entry.name, 0, &entry.head, sizeof entry.head) ||
            !dtp_snapshot_sealed(&entry.head) || entry.head.identity != identity || entry.head.rank != entry.name.rank)
            continue;
        whole = dtp_grow(out, *count, &room, sizeof **out);
        if (whole)
            (*out)[(*count)++] = entry;
    }
    if (files)
        closedir(files);
    if (whole && *count)
        qsort(*out, *count, sizeof **out, by_step);
    if (whole)
        return true;
    free(*out);
    *out = NULL, *count = 0;
    return false;
}

uint32_t dtp_snapshot_turn(const char *folder, uint32_t rank, bool copy, uint64_t keep_step, uint32_t keep_world)
{
    struct dtp_snapshot_head head;
    const struct dtp_snapshot_name first = {rank, copy, 0};
    bool keeps = keep_world > 0 && dtp_snapshot_read(folder, &first, 0, &head, sizeof head) &&
                 dtp_snapshot_sealed(&head) && head.position.step == keep_step && head.world == keep_world;
    return keeps;
}

void dtp_snapshot_forget(const char *folder, uint32_t world)
{
    DIR *files = opendir(folder);
    for (const struct dirent *file; files && (file = readdir(files));) {
        struct dtp_snapshot_entry entry;
        if (!parse_name(file->d_name, &entry.name))
            continue;
        bool stays = world > 0 && dtp_snapshot_read(folder, &entry.name, 0, &entry.head, sizeof entry.head) &&
                     (!dtp_snapshot_sealed(&entry.head) || entry.head.world == world);
        if (!stays)
            unlinkat(dirfd(files), file->d_name, 0);
    }
    if (files)
        closedir(files);
    if (world == 0)
        rmdir(folder);
}
