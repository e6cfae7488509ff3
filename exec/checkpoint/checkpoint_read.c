#include "checkpoint/checkpoint.h"

#include "base/crc64.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_JSON_BYTES (64u << 20)
#define MAX_RANKS 65536u

/* One block of one file, as an index describes it. */
struct block {
    uint32_t module, rank;
    enum dtp_state_kind kind;
    enum dtp_element element;
    uint64_t begin, end, run, stride, offset_bytes, crc;
};

struct reader {
    struct dtp_device *device;
    struct dtp_faults *faults;
    char folder[DTP_CHECKPOINT_PATH_BYTES];
    struct block *blocks;
    size_t block_count;
    const struct dtp_state_part *parts;
    size_t part_count;
    char *staging;
};

static enum dtp_status damaged(const struct reader *r, const char *file, const char *what)
{
    return dtp_fault(r->faults, DTP_BAD_INPUT, r->folder, 0,
                     "%s: %s; the checkpoint is damaged: resume from the one before with --resume-previous", file,
                     what);
}

/* ---- JSON -------------------------------------------------------------------------------------------------------- */

static char *read_text(const char *path, size_t *bytes)
{
    FILE *file = fopen(path, "rb");
    if (!file)
        return NULL;
    char *text = NULL;
    long size = fseek(file, 0, SEEK_END) == 0 ? ftell(file) : -1;
    if (size >= 0 && (unsigned long)size <= MAX_JSON_BYTES && fseek(file, 0, SEEK_SET) == 0)
        text = malloc((size_t)size + 1);
    *bytes = text ? fread(text, 1, (size_t)size, file) : 0;
    if (text && *bytes != (size_t)size) {
        free(text);
        text = NULL;
    }
    fclose(file);
    return text;
}

/* NULL after a fault. *crc is that of the text. */
static json_t *read_json(const struct reader *r, const char *name, uint64_t *crc)
{
    char path[DTP_CHECKPOINT_PATH_BYTES + 40];
    size_t bytes;
    snprintf(path, sizeof path, "%s/%s", r->folder, name);
    char *text = read_text(path, &bytes);
    if (!text) {
        damaged(r, name, errno == ENOENT ? "is missing" : "cannot be read");
        return NULL;
    }
    *crc = dtp_crc64(0, text, bytes);
    json_t *json = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, NULL);
    free(text);
    const char *schema = json_string_value(json_object_get(json, "schema"));
    if (!json || !schema || strcmp(schema, DTP_CHECKPOINT_SCHEMA) != 0) {
        damaged(r, name, json ? "has another schema than " DTP_CHECKPOINT_SCHEMA : "is no JSON");
        json_decref(json);
        return NULL;
    }
    return json;
}

static bool amount(const json_t *object, const char *key, uint64_t limit, uint64_t *out)
{
    const json_t *value = json_object_get(object, key);
    json_int_t number = json_integer_value(value);
    if (!json_is_integer(value) || number < 0 || (uint64_t)number > limit)
        return false;
    *out = (uint64_t)number;
    return true;
}

static bool hexadecimal(const json_t *value, uint64_t *out)
{
    const char *text = json_string_value(value);
    return text && strlen(text) == 16 && strspn(text, "0123456789abcdef") == 16 && sscanf(text, "%" SCNx64, out) == 1;
}

/* ---- the index files --------------------------------------------------------------------------------------------- */

#define MOST_BYTES (UINT64_C(1) << 60)

/* A block that is some of a matrix' columns says its runs and how far apart they are. */
static bool parse_runs(const json_t *json, struct block *out)
{
    if (!amount(json, "run", MOST_BYTES, &out->run) || !amount(json, "stride", MOST_BYTES, &out->stride))
        return false;
    return out->run > 0 && out->run <= out->stride && out->run <= out->end - out->begin &&
           (out->end - out->begin - out->run) % out->stride == 0;
}

static bool parse_block(const json_t *json, uint32_t rank, struct block *out)
{
    const char *kind = json_string_value(json_object_get(json, "kind"));
    const char *element = json_string_value(json_object_get(json, "element"));
    uint64_t module;
    out->rank = rank;
    if (!kind || !element || !dtp_state_kind_parse(kind, &out->kind) ||
        !dtp_state_element_parse(element, &out->element) || !amount(json, "module", UINT32_MAX, &module) ||
        !amount(json, "begin", MOST_BYTES, &out->begin) || !amount(json, "end", MOST_BYTES, &out->end) ||
        !amount(json, "offset_bytes", MOST_BYTES, &out->offset_bytes) ||
        !hexadecimal(json_object_get(json, "crc64"), &out->crc))
        return false;
    out->module = (uint32_t)module;
    out->run = out->stride = out->end - out->begin;
    return out->begin < out->end && (!json_object_get(json, "run") || parse_runs(json, out));
}

static enum dtp_status read_index(struct reader *r, uint32_t rank, uint64_t wanted_crc)
{
    char name[32];
    uint64_t crc;
    snprintf(name, sizeof name, "rank-%04" PRIu32 ".json", rank);
    json_t *index = read_json(r, name, &crc);
    if (!index)
        return DTP_BAD_INPUT;
    const json_t *list = json_object_get(index, "blocks");
    size_t count = json_array_size(list);
    enum dtp_status status = crc == wanted_crc ? DTP_OK : damaged(r, name, "is not the file that was written");
    struct block *grown = realloc(r->blocks, (r->block_count + count + 1) * sizeof *grown);
    if (!grown)
        status = dtp_fault(r->faults, DTP_ENVIRONMENT, NULL, 0, "out of memory");
    r->blocks = grown ? grown : r->blocks;
    for (size_t i = 0; i < count && status == DTP_OK; i++)
        if (!parse_block(json_array_get(list, i), rank, &r->blocks[r->block_count++]))
            status = damaged(r, name, "describes a block that is none");
    json_decref(index);
    return status;
}

static int by_place(const void *left, const void *right)
{
    const struct block *a = left, *b = right;
    if (a->module != b->module)
        return a->module < b->module ? -1 : 1;
    if (a->kind != b->kind)
        return a->kind < b->kind ? -1 : 1;
    return a->begin < b->begin ? -1 : a->begin > b->begin;
}

static enum dtp_status read_indices(struct reader *r, const json_t *sums)
{
    enum dtp_status status = DTP_OK;
    if (json_array_size(sums) == 0 || json_array_size(sums) > MAX_RANKS)
        return damaged(r, "manifest.json", "names no files");
    for (uint32_t rank = 0; rank < json_array_size(sums) && status == DTP_OK; rank++) {
        uint64_t crc;
        if (!hexadecimal(json_array_get(sums, rank), &crc))
            return damaged(r, "manifest.json", "holds a sum that is none");
        status = read_index(r, rank, crc);
    }
    if (status == DTP_OK && r->block_count > 0)
        qsort(r->blocks, r->block_count, sizeof *r->blocks, by_place);
    return status;
}

/* ---- elements ---------------------------------------------------------------------------------------------------- */

/* Which elements of a module's vector a block has, or a part wants: runs, equally far apart. */
struct runs {
    uint64_t begin, end, run, stride;
};

static struct runs runs_of_block(const struct block *block)
{
    return (struct runs){block->begin, block->end, block->run, block->stride};
}

static struct runs runs_of_part(const struct dtp_state_part *part)
{
    uint64_t all = part->end - part->begin;
    return (struct runs){part->begin, part->end, part->run ? part->run : all, part->run ? part->stride : all};
}

/* How many elements of the runs stand before that at `at`, which is one of theirs. */
static uint64_t place_in(const struct runs *runs, uint64_t at)
{
    return (at - runs->begin) / runs->stride * runs->run + (at - runs->begin) % runs->stride;
}

/* The next element of [*at, end) that belongs to the runs, and how many do from it on; false: none does. */
static bool next_of(const struct runs *runs, uint64_t *at, uint64_t end, uint64_t *count)
{
    uint64_t from = *at > runs->begin ? *at : runs->begin;
    if (from >= runs->end)
        return false;
    uint64_t in_run = (from - runs->begin) % runs->stride;
    if (in_run >= runs->run) {
        from += runs->stride - in_run;
        in_run = 0;
    }
    if (from >= runs->end || from >= end)
        return false;
    *at = from;
    *count = runs->run - in_run < end - from ? runs->run - in_run : end - from;
    return true;
}

/* Copies to the part what is its of `count` neighbours in the module, from `at` on, which lie at `values`. */
static int deliver_run(const struct reader *r, const struct dtp_state_part *part, uint64_t at, uint64_t count,
                       const char *values)
{
    const uint64_t bytes = dtp_state_element_bytes(part->element), first = at, end = at + count;
    const struct runs runs = runs_of_part(part);
    int code = 0;
    for (uint64_t found; !code && next_of(&runs, &at, end, &found); at += found)
        code = r->device->verbs->copy(r->device, (char *)part->values + place_in(&runs, at) * bytes,
                                      values + (at - first) * bytes, found * bytes,
                                      r->device->verbs->stream(r->device, DTP_STREAM_UPLOAD));
    return code;
}

/* Copies what of elements [first, first + count) of a block, counted from its first, belongs to a part; the chunk lies
 * in the staging memory. */
static enum dtp_status deliver(const struct reader *r, const struct block *block, uint64_t first, uint64_t count)
{
    const uint64_t bytes = dtp_state_element_bytes(block->element);
    int code = 0;
    for (size_t i = 0; i < r->part_count; i++) {
        const struct dtp_state_part *part = &r->parts[i];
        if (part->module != block->module || part->kind != block->kind || part->element != block->element ||
            block->begin >= part->end || part->begin >= block->end)
            continue;
        for (uint64_t at = first, taken; at < first + count && !code; at += taken) {
            uint64_t in_run = at % block->run, left = first + count - at;
            taken = block->run - in_run < left ? block->run - in_run : left;
            code = deliver_run(r, part, block->begin + at / block->run * block->stride + in_run, taken,
                               r->staging + (at - first) * bytes);
        }
    }
    code = code ? code : r->device->verbs->synchronise(r->device);
    if (code)
        return dtp_fault(r->faults, DTP_ENVIRONMENT, NULL, 0, "the state could not be copied to the device: %s",
                         r->device->verbs->error_text(r->device, code));
    return DTP_OK;
}

static enum dtp_status read_block(const struct reader *r, FILE *file, const char *name, const struct block *block)
{
    uint64_t bytes = dtp_state_element_bytes(block->element), crc = 0;
    uint64_t chunk = DTP_CHECKPOINT_STAGING_BYTES / bytes;
    if (fseeko(file, (off_t)block->offset_bytes, SEEK_SET) != 0)
        return damaged(r, name, "is too short");
    const struct runs runs = runs_of_block(block);
    uint64_t elements = place_in(&runs, block->end - 1) + 1;
    for (uint64_t first = 0; first < elements; first += chunk) {
        uint64_t count = elements - first < chunk ? elements - first : chunk;
        if (fread(r->staging, bytes, count, file) != count)
            return damaged(r, name, "is too short");
        crc = dtp_crc64(crc, r->staging, count * bytes);
        enum dtp_status status = deliver(r, block, first, count);
        if (status != DTP_OK)
            return status;
    }
    char words[160];
    snprintf(words, sizeof words, "the %s of module %" PRIu32 ", elements %" PRIu64 " to %" PRIu64 ", have another sum",
             dtp_state_kind_text(block->kind), block->module, block->begin, block->end);
    return crc == block->crc ? DTP_OK : damaged(r, name, words);
}

/* Blocks [*begin, end) of the part's module and kind. */
static size_t blocks_of(const struct reader *r, const struct dtp_state_part *part, size_t *begin)
{
    size_t end;
    for (*begin = 0; *begin < r->block_count; ++*begin)
        if (r->blocks[*begin].module == part->module && r->blocks[*begin].kind == part->kind)
            break;
    for (end = *begin; end < r->block_count; end++)
        if (r->blocks[end].module != part->module || r->blocks[end].kind != part->kind)
            break;
    return end;
}

/* How many elements from `at` on, neighbours, one of these blocks has; 0: none has that one. */
static uint64_t held_from(const struct reader *r, size_t begin, size_t end, uint64_t at, size_t *which)
{
    for (*which = begin; *which < end; ++*which) {
        struct runs runs = runs_of_block(&r->blocks[*which]);
        uint64_t place = at, count;
        if (next_of(&runs, &place, at + 1, &count))
            return runs.run - (at - runs.begin) % runs.stride;
    }
    return 0;
}

/* Whether blocks of the part's element type cover it without a gap; marks them wanted. */
static enum dtp_status check_cover(const struct reader *r, const struct dtp_state_part *part, bool *wanted)
{
    const struct runs runs = runs_of_part(part);
    size_t begin, end = blocks_of(r, part, &begin), which;
    if (begin == end && (part->kind == DTP_STATE_LOST || part->kind == DTP_STATE_FACTOR_Q))
        return DTP_OK; /* of a run without PowerSGD, which begins here with what it begins with */
    for (uint64_t at = part->begin, left; next_of(&runs, &at, part->end, &left);) {
        uint64_t held = held_from(r, begin, end, at, &which);
        if (!held && part->kind == DTP_STATE_AMAX)
            return dtp_fault(
                r->faults, DTP_BAD_INPUT, r->folder, 0,
                "holds the amaxes that fp8's scales are made of by rank, of another number of ranks; resume "
                "with as many as it was made with");
        if (!held && (part->kind == DTP_STATE_LOST || part->kind == DTP_STATE_FACTOR_Q))
            return dtp_fault(r->faults, DTP_BAD_INPUT, r->folder, 0,
                             "holds what PowerSGD lost on another number of ranks, or at another rank of its factors; "
                             "resume with those that it was made with");
        if (!held)
            return dtp_fault(r->faults, DTP_BAD_INPUT, r->folder, 0,
                             "does not hold the %s of module %" PRIu32 " from element %" PRIu64
                             " on, which this run needs",
                             dtp_state_kind_text(part->kind), part->module, at);
        if (r->blocks[which].element != part->element)
            return dtp_fault(
                r->faults, DTP_BAD_INPUT, r->folder, 0,
                "holds the %s as %s, this run keeps them as %s; resume with the --precision it was made with",
                dtp_state_kind_text(part->kind), dtp_state_element_text(r->blocks[which].element),
                dtp_state_element_text(part->element));
        wanted[which] = true;
        at += held < left ? held : left;
    }
    return DTP_OK;
}

static enum dtp_status read_wanted(const struct reader *r, const bool *wanted)
{
    enum dtp_status status = DTP_OK;
    for (size_t i = 0; i < r->block_count && status == DTP_OK; i++) {
        char name[32], path[DTP_CHECKPOINT_PATH_BYTES + 40];
        if (!wanted[i])
            continue;
        snprintf(name, sizeof name, "rank-%04" PRIu32 ".bin", r->blocks[i].rank);
        snprintf(path, sizeof path, "%s/%s", r->folder, name);
        FILE *file = fopen(path, "rb");
        status = file ? read_block(r, file, name, &r->blocks[i]) : damaged(r, name, strerror(errno));
        if (file)
            fclose(file);
    }
    return status;
}

/* ---- the manifest ------------------------------------------------------------------------------------------------ */

static enum dtp_status check_identity(const struct reader *r, const json_t *manifest,
                                      const struct dtp_checkpoint_identity *identity)
{
    const char *model = json_string_value(json_object_get(manifest, "model"));
    const char *data = json_string_value(json_object_get(manifest, "data"));
    const char *seed = json_string_value(json_object_get(manifest, "seed"));
    char own[24];
    snprintf(own, sizeof own, "%" PRIu64, identity->seed);
    if (!model || !data || !seed)
        return damaged(r, "manifest.json", "does not say whose checkpoint it is");
    if (strcmp(model, identity->model) != 0)
        return dtp_fault(r->faults, DTP_BAD_INPUT, r->folder, 0, "is of another model (%s); this run's is %s", model,
                         identity->model);
    if (strcmp(seed, own) != 0)
        return dtp_fault(r->faults, DTP_BAD_INPUT, r->folder, 0, "is of a run with --seed %s, not %s", seed, own);
    if (strcmp(data, identity->data) != 0)
        dtp_fault(r->faults, DTP_OK, r->folder, 0, "was trained on other data (%s); this run goes on with %s", data,
                  identity->data);
    return DTP_OK;
}

/* Checkpoints of fp16 have a loss scale, others none. */
static bool loss_scale(const json_t *manifest, struct dtp_checkpoint_position *position)
{
    const json_t *scale = json_object_get(manifest, "loss_scale");
    position->loss_scale = json_number_value(scale);
    position->good_steps = 0;
    return !scale || (isfinite(position->loss_scale) && position->loss_scale > 0 &&
                      amount(manifest, "good_steps", MOST_BYTES, &position->good_steps));
}

static enum dtp_status read_manifest(struct reader *r, const struct dtp_checkpoint_identity *identity,
                                     struct dtp_checkpoint_position *position)
{
    uint64_t crc;
    json_t *manifest = read_json(r, "manifest.json", &crc);
    if (!manifest)
        return DTP_BAD_INPUT;
    enum dtp_status status = check_identity(r, manifest, identity);
    if (status == DTP_OK &&
        (!amount(manifest, "step", MOST_BYTES, &position->step) ||
         !amount(manifest, "samples", MOST_BYTES, &position->samples) ||
         !amount(manifest, "skipped", MOST_BYTES, &position->skipped) || !loss_scale(manifest, position)))
        status = damaged(r, "manifest.json", "does not say where the run stood");
    if (status == DTP_OK)
        status = read_indices(r, json_object_get(manifest, "index_crc64"));
    json_decref(manifest);
    return status;
}

static enum dtp_status find_folder(struct reader *r, const char *directory, bool previous)
{
    uint64_t steps[2];
    size_t count = dtp_checkpoint_list(directory, steps, 2);
    if (count <= (size_t)previous)
        return dtp_fault(r->faults, DTP_BAD_INPUT, directory, 0, "%s; --checkpoint-every N makes them",
                         count == 0 ? "there is no complete checkpoint to resume from"
                                    : "there is no previous checkpoint");
    snprintf(r->folder, sizeof r->folder, "%s/step-%08" PRIu64, directory, steps[previous]);
    return DTP_OK;
}

enum dtp_status dtp_checkpoint_read(const char *directory, bool previous, struct dtp_device *device,
                                    const struct dtp_checkpoint_identity *identity,
                                    struct dtp_checkpoint_position *position, const struct dtp_state_part *parts,
                                    size_t count, struct dtp_faults *faults)
{
    struct reader r = {.device = device, .faults = faults, .parts = parts, .part_count = count};
    void *staging = NULL;
    bool *wanted = NULL;
    enum dtp_status status = find_folder(&r, directory, previous);
    if (status == DTP_OK)
        status = read_manifest(&r, identity, position);
    if (status == DTP_OK && !(wanted = calloc(r.block_count + 1, sizeof *wanted)))
        status = dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "out of memory");
    for (size_t i = 0; i < count && status == DTP_OK; i++)
        status = check_cover(&r, &parts[i], wanted);
    if (status == DTP_OK)
        status = device->verbs->allocate_host(device, DTP_CHECKPOINT_STAGING_BYTES, &staging, faults);
    r.staging = staging;
    if (status == DTP_OK)
        status = read_wanted(&r, wanted);
    if (staging)
        device->verbs->release_host(device, staging);
    free(wanted);
    free(r.blocks);
    return status;
}
