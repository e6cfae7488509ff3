/* A memory of snapshots: files in a folder of memory (tmpfs), each a rank's part of the state after one step.
 *
 *   FOLDER/own-0002.a    of rank 2, which wrote it here; .a and .b are written in turn, so that one of them is whole
 *          copy-0001.b   of rank 1, which sent it here
 *
 *   a file: head (4096 bytes) | blocks: which elements stand where | the elements
 *
 * The head is wiped before anything is written and comes last, with sums of everything, itself included: a file that
 * was half written has none, and one that was damaged another sum. Files outlive the processes that wrote them, and
 * nothing is written to a disk. */
#ifndef DTP_SNAPSHOT_STORE_H
#define DTP_SNAPSHOT_STORE_H

#include "checkpoint/checkpoint.h"

#define DTP_SNAPSHOT_HEAD_BYTES 4096u
#define DTP_SNAPSHOT_PATH_BYTES 512

struct dtp_snapshot_block {
    uint32_t module, kind, element, zero;
    uint64_t begin, end;   /* as of dtp_state_part */
    uint64_t offset_bytes; /* in the elements */
};

struct dtp_snapshot_head {
    char magic[8];
    uint64_t identity; /* of model, data, seed and batch: another run's are no use */
    struct dtp_checkpoint_position position;
    uint32_t world, rank; /* of the ranks that wrote it */
    uint64_t block_count, data_bytes;
    uint64_t blocks_crc, data_crc;
    uint64_t head_crc; /* of all before it */
};

/* Which file of a folder. */
struct dtp_snapshot_name {
    uint32_t rank;
    bool copy;
    uint32_t turn; /* 0: .a, 1: .b */
};

struct dtp_snapshot_file {
    int descriptor; /* -1: closed */
    uint64_t at_bytes, crc;
    char path[DTP_SNAPSHOT_PATH_BYTES];
};

/* Opens it and wipes its head. All that follows is appended, blocks first; `finish` writes the head. DTP_ENVIRONMENT:
 * the memory is full, with the file's name. `close` without finish leaves a file that nobody takes for whole. */
enum dtp_status dtp_snapshot_create(const char *folder, const struct dtp_snapshot_name *name,
                                    struct dtp_snapshot_file *out, struct dtp_faults *faults);
enum dtp_status dtp_snapshot_append(struct dtp_snapshot_file *file, const void *data, uint64_t bytes,
                                    struct dtp_faults *faults);
enum dtp_status dtp_snapshot_finish(struct dtp_snapshot_file *file, const struct dtp_snapshot_head *head,
                                    struct dtp_faults *faults);
void dtp_snapshot_close(struct dtp_snapshot_file *file);
/* Fills magic and head_crc. */
void dtp_snapshot_seal(struct dtp_snapshot_head *head);
/* Whether it is a head as `seal` left it, whatever bytes it is made of. */
bool dtp_snapshot_sealed(const struct dtp_snapshot_head *head);

struct dtp_snapshot_entry {
    struct dtp_snapshot_name name;
    struct dtp_snapshot_head head;
};
/* Files of `identity` in the folder that have a head, newest step first, however many there are: *out is the caller's
 * to free. A folder that is not there holds none. False: out of memory, *out is NULL. */
bool dtp_snapshot_list(const char *folder, uint64_t identity, struct dtp_snapshot_entry **out, size_t *count);
/* Whether blocks and elements have the sums of the head; reads all of it. */
bool dtp_snapshot_verify(const char *folder, const struct dtp_snapshot_entry *entry);
/* Bytes [offset, offset + bytes) of a file, head included. */
bool dtp_snapshot_read(const char *folder, const struct dtp_snapshot_name *name, uint64_t offset, void *out,
                       uint64_t bytes);
/* The turn that is free: not the one that holds the snapshot of step `keep_step` by `keep_world` ranks. */
uint32_t dtp_snapshot_turn(const char *folder, uint32_t rank, bool copy, uint64_t keep_step, uint32_t keep_world);
/* Removes files of worlds other than `world` (0: all files), of the folder then itself where it is empty. */
void dtp_snapshot_forget(const char *folder, uint32_t world);

static inline uint64_t dtp_snapshot_data_offset(const struct dtp_snapshot_head *head)
{
    return DTP_SNAPSHOT_HEAD_BYTES + head->block_count * sizeof(struct dtp_snapshot_block);
}

#endif
