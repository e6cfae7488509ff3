#include "checkpoint/checkpoint.h"

#include "base/crc64.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct writer {
    const struct dtp_checkpoint_place *place;
    struct dtp_device *device; /* whose memory the values lie in; NULL: the host's */
    struct dtp_faults *faults;
    char partial[DTP_CHECKPOINT_PATH_BYTES], final[DTP_CHECKPOINT_PATH_BYTES];
    void *staging;
    uint64_t written_bytes;
};

static enum dtp_status failed(const struct writer *w, const char *path)
{
    return dtp_fault(w->faults, DTP_ENVIRONMENT, path, 0,
                     "the checkpoint could not be written: %s; earlier ones are as they were", strerror(errno));
}

/* ---- plain files ------------------------------------------------------------------------------------------------- */

static bool write_all(int file, const void *data, size_t bytes)
{
    const char *from = data;
    while (bytes > 0) {
        ssize_t wrote = write(file, from, bytes);
        if (wrote < 0 && errno == EINTR)
            continue;
        if (wrote <= 0)
            return false;
        from += wrote;
        bytes -= (size_t)wrote;
    }
    return true;
}

/* Closing may report what writing could not yet; so both must succeed. */
static bool sync_and_close(int file)
{
    bool synced = fsync(file) == 0;
    return close(file) == 0 && synced;
}

static bool sync_folder(const char *path)
{
    int folder = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    return folder >= 0 && sync_and_close(folder);
}

static bool remove_folder(const char *path)
{
    DIR *folder = opendir(path);
    if (!folder)
        return errno == ENOENT;
    for (const struct dirent *entry; (entry = readdir(folder));) {
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
            unlinkat(dirfd(folder), entry->d_name, 0);
    }
    closedir(folder);
    return rmdir(path) == 0;
}

#define GONE ".gone.partial" /* of what is being removed, so that it is found again where that is cut short */

/* It may be given its name this very moment, by a thread of this rank or by another rank: either that comes first and
 * nothing is there to be removed, or it finds no folder any more. What has its name is never emptied. */
static void remove_partial(const char *path)
{
    char gone[DTP_CHECKPOINT_PATH_BYTES + sizeof GONE];
    size_t length = strlen(path), name = length - strlen(".partial");
    if (length > strlen(GONE) && strcmp(path + length - strlen(GONE), GONE) == 0) {
        remove_folder(path);
        return;
    }
    snprintf(gone, sizeof gone, "%.*s" GONE, (int)name, path);
    remove_folder(gone);
    if (rename(path, gone) == 0)
        remove_folder(gone);
}

void dtp_checkpoint_clean(const char *directory)
{
    static const char ending[] = ".partial";
    DIR *folder = opendir(directory);
    for (const struct dirent *entry; folder && (entry = readdir(folder));) {
        char path[DTP_CHECKPOINT_PATH_BYTES];
        size_t length = strlen(entry->d_name);
        bool partial = strncmp(entry->d_name, "step-", 5) == 0 && length > sizeof ending &&
                       strcmp(entry->d_name + length - (sizeof ending - 1), ending) == 0;
        int wrote = snprintf(path, sizeof path, "%s/%s", directory, entry->d_name);
        if (partial && wrote > 0 && (size_t)wrote < sizeof path)
            remove_partial(path);
    }
    if (folder)
        closedir(folder);
}

static enum dtp_status unusable(const char *directory, struct dtp_faults *faults)
{
    return dtp_fault(faults, DTP_ENVIRONMENT, directory, 0,
                     "checkpoints cannot be written there: %s; name another folder", strerror(errno));
}

/* With a name as partial checkpoints have, so that what a killed process leaves of it is cleaned as theirs is. */
static bool can_make_files(const char *directory)
{
    char path[DTP_CHECKPOINT_PATH_BYTES], file[DTP_CHECKPOINT_PATH_BYTES + 16];
    int wrote = snprintf(path, sizeof path, "%s/step-try-%ld.partial", directory, (long)getpid());
    if (wrote < 0 || (size_t)wrote >= sizeof path) {
        errno = ENAMETOOLONG;
        return false;
    }
    if (mkdir(path, 0777) != 0)
        return false;
    snprintf(file, sizeof file, "%s/try", path);
    int descriptor = open(file, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    int reason = errno;
    if (descriptor >= 0)
        close(descriptor);
    remove_folder(path);
    errno = reason;
    return descriptor >= 0;
}

enum dtp_status dtp_checkpoint_prepare(const char *directory, bool resumes, bool first_rank, struct dtp_faults *faults)
{
    uint64_t newest;
    if (!resumes && dtp_checkpoint_list(directory, &newest, 1) > 0)
        return dtp_fault(faults, DTP_BAD_INPUT, directory, 0,
                         "holds checkpoints of an earlier run, up to step %" PRIu64
                         "; go on from them with --resume, or name another folder",
                         newest);
    if (!first_rank || (resumes && access(directory, F_OK) != 0)) /* reading says what is missing */
        return DTP_OK;
    if (!resumes && mkdir(directory, 0777) != 0 && errno != EEXIST)
        return unusable(directory, faults);
    return can_make_files(directory) ? DTP_OK : unusable(directory, faults);
}

/* Writes JSON below the partial folder; *crc becomes the sum of its text. */
static enum dtp_status write_json(const struct writer *w, const char *name, const json_t *json)
{
    char path[DTP_CHECKPOINT_PATH_BYTES + 32];
    char *text = json ? json_dumps(json, JSON_INDENT(1) | JSON_SORT_KEYS) : NULL;
    if (!text)
        return dtp_fault(w->faults, DTP_ENVIRONMENT, NULL, 0, "out of memory while describing the checkpoint");
    snprintf(path, sizeof path, "%s/%s", w->partial, name);
    int file = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    bool whole = file >= 0 && write_all(file, text, strlen(text));
    if (file >= 0)
        whole = sync_and_close(file) && whole;
    free(text);
    return whole ? DTP_OK : failed(w, path);
}

/* ---- a rank's file ----------------------------------------------------------------------------------------------- */

/* Bytes of the device to the staging buffer; of the host they are where they can be written from. */
static const void *bring(const struct writer *w, const void *from, uint64_t bytes, int *code)
{
    if (!w->device)
        return from;
    *code = w->device->verbs->copy(w->device, w->staging, from, bytes,
                                   w->device->verbs->stream(w->device, DTP_STREAM_DOWNLOAD));
    *code = *code ? *code : w->device->verbs->synchronise(w->device);
    return w->staging;
}

/* So many bytes are in the core's cache when they are written, for they have just been summed. */
#define PIECE_BYTES (UINT64_C(1) << 20)

/* The disk begins with what is there while the next piece is on its way: or all of it would begin with the sync at the
 * end. Only for speed, so a file system that cannot is no fault. */
static bool write_summed(const struct writer *w, int file, const char *from, uint64_t bytes, uint64_t *crc)
{
    for (uint64_t at = 0; at < bytes; at += PIECE_BYTES) {
        uint64_t piece = bytes - at < PIECE_BYTES ? bytes - at : PIECE_BYTES;
        *crc = dtp_crc64(*crc, from + at, piece);
        if (!write_all(file, from + at, piece))
            return false;
    }
    (void)!sync_file_range(file, (off_t)w->written_bytes, (off_t)bytes, SYNC_FILE_RANGE_WRITE);
    return true;
}

static enum dtp_status write_part(struct writer *w, int file, const char *path, const struct dtp_state_part *part,
                                  uint64_t *crc)
{
    uint64_t left = dtp_state_part_elements(part) * dtp_state_element_bytes(part->element);
    const char *from = part->values;
    *crc = 0;
    while (left > 0) {
        uint64_t bytes = left < DTP_CHECKPOINT_STAGING_BYTES ? left : DTP_CHECKPOINT_STAGING_BYTES;
        int code = 0;
        const void *here = bring(w, from, bytes, &code);
        if (code)
            return dtp_fault(w->faults, DTP_ENVIRONMENT, NULL, 0, "the state could not be copied to the host: %s",
                             w->device->verbs->error_text(w->device, code));
        if (!write_summed(w, file, here, bytes, crc))
            return failed(w, path);
        from += bytes;
        left -= bytes;
        w->written_bytes += bytes;
    }
    return DTP_OK;
}

static json_t *block_json(const struct dtp_state_part *part, uint64_t offset, uint64_t crc)
{
    char sum[17];
    snprintf(sum, sizeof sum, "%016" PRIx64, crc);
    json_t *block = json_pack("{s:I,s:s,s:s,s:I,s:I,s:I,s:s}", "module", (json_int_t)part->module, "kind",
                              dtp_state_kind_text(part->kind), "element", dtp_state_element_text(part->element),
                              "begin", (json_int_t)part->begin, "end", (json_int_t)part->end, "offset_bytes",
                              (json_int_t)offset, "crc64", sum);
    if (part->run && (json_object_set_new(block, "run", json_integer((json_int_t)part->run)) != 0 ||
                      json_object_set_new(block, "stride", json_integer((json_int_t)part->stride)) != 0)) {
        json_decref(block);
        return NULL;
    }
    return block;
}

static enum dtp_status write_parts(struct writer *w, int file, const char *path, const struct dtp_state_part *parts,
                                   size_t count, json_t *blocks)
{
    for (size_t i = 0; i < count; i++) {
        uint64_t offset = w->written_bytes, crc;
        enum dtp_status status = write_part(w, file, path, &parts[i], &crc);
        if (status != DTP_OK)
            return status;
        if (json_array_append_new(blocks, block_json(&parts[i], offset, crc)) != 0)
            return dtp_fault(w->faults, DTP_ENVIRONMENT, NULL, 0, "out of memory while describing the checkpoint");
    }
    return DTP_OK;
}

static enum dtp_status write_rank(struct writer *w, const struct dtp_state_part *parts, size_t count)
{
    char path[DTP_CHECKPOINT_PATH_BYTES + 32], name[32];
    json_t *blocks = json_array();
    snprintf(path, sizeof path, "%s/rank-%04" PRIu32 ".bin", w->partial, w->place->rank);
    int file = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    enum dtp_status status = file < 0 ? failed(w, path) : write_parts(w, file, path, parts, count, blocks);
    if (file >= 0 && !sync_and_close(file) && status == DTP_OK)
        status = failed(w, path);
    json_t *index = json_pack("{s:s,s:I,s:o}", "schema", DTP_CHECKPOINT_SCHEMA, "file_bytes",
                              (json_int_t)w->written_bytes, "blocks", blocks);
    snprintf(name, sizeof name, "rank-%04" PRIu32 ".json", w->place->rank);
    if (status == DTP_OK)
        status = write_json(w, name, index);
    json_decref(index);
    return status;
}

/* ---- the manifest ------------------------------------------------------------------------------------------------ */

/* Rank 0 sums up the index files it finds, which all ranks have written by now. */
static enum dtp_status index_sum(const struct writer *w, uint32_t rank, char sum[17])
{
    char path[DTP_CHECKPOINT_PATH_BYTES + 32], text[4096];
    uint64_t crc = 0;
    snprintf(path, sizeof path, "%s/rank-%04" PRIu32 ".json", w->partial, rank);
    FILE *file = fopen(path, "rb");
    if (!file)
        return failed(w, path);
    for (size_t bytes; (bytes = fread(text, 1, sizeof text, file)) > 0;)
        crc = dtp_crc64(crc, text, bytes);
    bool whole = !ferror(file);
    fclose(file);
    snprintf(sum, 17, "%016" PRIx64, crc);
    return whole ? DTP_OK : failed(w, path);
}

static enum dtp_status write_manifest(const struct writer *w, const struct dtp_checkpoint_identity *identity,
                                      const struct dtp_checkpoint_position *position)
{
    json_t *sums = json_array();
    enum dtp_status status = DTP_OK;
    for (uint32_t rank = 0; rank < w->place->ranks && status == DTP_OK; rank++) {
        char sum[17];
        status = index_sum(w, rank, sum);
        if (status == DTP_OK)
            json_array_append_new(sums, json_string(sum));
    }
    char seed[24];
    snprintf(seed, sizeof seed, "%" PRIu64, identity->seed);
    json_t *manifest = json_pack("{s:s,s:I,s:I,s:I,s:s,s:s,s:s,s:o}", "schema", DTP_CHECKPOINT_SCHEMA, "step",
                                 (json_int_t)position->step, "samples", (json_int_t)position->samples, "skipped",
                                 (json_int_t)position->skipped, "seed", seed, "model", identity->model, "data",
                                 identity->data, "index_crc64", sums);
    if (position->loss_scale > 0) {
        json_object_set_new(manifest, "loss_scale", json_real(position->loss_scale));
        json_object_set_new(manifest, "good_steps", json_integer((json_int_t)position->good_steps));
    }
    if (status == DTP_OK)
        status = write_json(w, "manifest.json", manifest);
    json_decref(manifest);
    return status;
}

/* A checkpoint of that step may be there from an earlier run: it makes room, and goes only when the new one stands. */
static enum dtp_status give_name(const struct writer *w)
{
    char aside[DTP_CHECKPOINT_PATH_BYTES + 8];
    snprintf(aside, sizeof aside, "%s.old", w->final);
    if (!sync_folder(w->partial))
        return failed(w, w->partial);
    if (rename(w->final, aside) != 0 && errno != ENOENT)
        return failed(w, w->final);
    if (rename(w->partial, w->final) != 0) {
        int reason = errno;
        (void)!rename(aside, w->final);
        errno = reason;
        return failed(w, w->final);
    }
    if (!sync_folder(w->place->directory))
        return failed(w, w->final);
    remove_folder(aside);
    return DTP_OK;
}

#define KEPT 2
static void forget_older(const struct writer *w)
{
    uint64_t steps[64];
    size_t count = dtp_checkpoint_list(w->place->directory, steps, 64);
    for (size_t i = KEPT; i < count && i < 64; i++) {
        char path[DTP_CHECKPOINT_PATH_BYTES + 32];
        snprintf(path, sizeof path, "%s/step-%08" PRIu64, w->place->directory, steps[i]);
        remove_folder(path);
    }
}

/* ---- all of it --------------------------------------------------------------------------------------------------- */

static enum dtp_status agree(const struct writer *w, enum dtp_status mine)
{
    return w->place->agree ? w->place->agree(w->place->context, mine) : mine;
}

static enum dtp_status make_folders(const struct writer *w)
{
    if (mkdir(w->place->directory, 0777) != 0 && errno != EEXIST)
        return failed(w, w->place->directory);
    dtp_checkpoint_clean(w->place->directory); /* what a run left that was killed whole */
    if (!remove_folder(w->partial) || mkdir(w->partial, 0777) != 0)
        return failed(w, w->partial);
    return DTP_OK;
}

static bool name_folders(struct writer *w, uint64_t step)
{
    int final = snprintf(w->final, sizeof w->final, "%s/step-%08" PRIu64, w->place->directory, step);
    int partial = snprintf(w->partial, sizeof w->partial, "%s/step-%08" PRIu64 ".partial", w->place->directory, step);
    return final > 0 && partial > 0 && (size_t)partial < sizeof w->partial - 16;
}

static enum dtp_status too_long(struct dtp_faults *faults)
{
    return dtp_fault(faults, DTP_BAD_INPUT, NULL, 0, "the name of the checkpoint's folder is too long");
}

static enum dtp_status give_or_take(const struct writer *w, const struct dtp_checkpoint_identity *identity,
                                    const struct dtp_checkpoint_position *position, enum dtp_status status)
{
    if (status == DTP_OK)
        status = write_manifest(w, identity, position);
    if (status == DTP_OK)
        status = give_name(w);
    if (status == DTP_OK)
        forget_older(w);
    else
        remove_folder(w->partial);
    return status;
}

enum dtp_status dtp_checkpoint_write(const struct dtp_checkpoint_place *place, struct dtp_device *device,
                                     const struct dtp_checkpoint_identity *identity,
                                     const struct dtp_checkpoint_position *position, const struct dtp_state_part *parts,
                                     size_t count, struct dtp_faults *faults)
{
    struct writer w = {.place = place, .device = device, .faults = faults};
    bool first = place->rank == 0;
    if (!name_folders(&w, position->step))
        return too_long(faults);
    enum dtp_status status = device->verbs->allocate_host(device, DTP_CHECKPOINT_STAGING_BYTES, &w.staging, faults);
    if (status == DTP_OK && first)
        status = make_folders(&w);
    status = agree(&w, status);
    if (status == DTP_OK)
        status = write_rank(&w, parts, count);
    status = agree(&w, status);
    if (first)
        status = give_or_take(&w, identity, position, status);
    if (w.staging)
        device->verbs->release_host(device, w.staging);
    return agree(&w, status);
}

/* ---- beside training --------------------------------------------------------------------------------------------- */

enum dtp_status dtp_checkpoint_begin(const struct dtp_checkpoint_place *place, uint64_t step, struct dtp_faults *faults)
{
    struct writer w = {.place = place, .faults = faults};
    if (!name_folders(&w, step))
        return too_long(faults);
    return agree(&w, place->rank == 0 ? make_folders(&w) : DTP_OK);
}

enum dtp_status dtp_checkpoint_write_own(const struct dtp_checkpoint_place *place, uint64_t step,
                                         const struct dtp_state_part *parts, size_t count, struct dtp_faults *faults)
{
    struct writer w = {.place = place, .faults = faults};
    return name_folders(&w, step) ? write_rank(&w, parts, count) : too_long(faults);
}

enum dtp_status dtp_checkpoint_end(const struct dtp_checkpoint_place *place,
                                   const struct dtp_checkpoint_identity *identity,
                                   const struct dtp_checkpoint_position *position, bool whole,
                                   struct dtp_faults *faults)
{
    struct writer w = {.place = place, .faults = faults};
    return name_folders(&w, position->step) ? give_or_take(&w, identity, position, whole ? DTP_OK : DTP_ENVIRONMENT)
                                            : too_long(faults);
}
