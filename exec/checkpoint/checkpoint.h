/* Checkpoints: the state of a run in files that say themselves whether they are whole.
 *
 *   DIR/step-00000100/manifest.json   step, data position, identity of the model, and the index files with their sums
 *                     rank-0000.json  index: which elements of which module stand where in the file, with sums
 *                     rank-0000.bin   the elements
 *
 * All is written below DIR/step-00000100.partial, synced, and renamed when every rank is done, so a checkpoint that has
 * its name is complete. The two last ones are kept. A file holds ranges of modules' flat vectors (parameter_layout.h)
 * without the padding at their end and of the head, so that a run with another number of ranks or another strategy
 * reads the ranges it needs from whichever files hold them. What is read is checked block by block, and nothing is used
 * but the newest checkpoint, unless the previous one is asked for. */
#ifndef DTP_CHECKPOINT_H
#define DTP_CHECKPOINT_H

#include "device/device.h"

/* X(suffix, spelling) */
#define DTP_STATE_TABLE(X)                                                                                             \
    X(WEIGHTS, "weights")                                                                                              \
    X(MASTER, "master")                                                                                                \
    X(MOMENT1, "moment1")                                                                                              \
    X(MOMENT2, "moment2")                                                                                              \
    X(SCALES1, "scales1")                                                                                              \
    X(SCALES2, "scales2")                                                                                              \
    X(LOST, "lost")                                                                                                    \
    X(FACTOR_Q, "factor_q")                                                                                            \
    X(AMAX, "amax")
enum dtp_state_kind {
#define X(suffix, text) DTP_STATE_##suffix,
    DTP_STATE_TABLE(X)
#undef X
        DTP_STATE_KIND_COUNT
};

/* Elements [begin, end) of one module's vector without the head's padding (saved_offset_elements of
 * parameter_layout.h), in device memory of this rank. Scales of moments count blocks of elements, with that padding. Of
 * a part of a matrix' columns runs of `run` elements, the first at `begin`, `stride` apart, the last of which ends at
 * `end`; one behind the other in `values`. */
struct dtp_state_part {
    uint32_t module;
    enum dtp_state_kind kind;
    enum dtp_element element;
    uint64_t begin, end;
    void *values;
    uint64_t run, stride; /* run 0: all elements from begin to end */
};
static inline uint64_t dtp_state_part_elements(const struct dtp_state_part *part)
{
    return part->run ? ((part->end - part->begin - part->run) / part->stride + 1) * part->run : part->end - part->begin;
}

/* What a checkpoint must have in common with the run that reads it. `model` is compared as text. */
struct dtp_checkpoint_identity {
    const char *model; /* "layers 2, hidden 64, ...": shape and number formats */
    const char *data;  /* words of the token source */
    uint64_t seed;
};

/* Where the run stands: everything else of it follows from step, seed and identity, for random numbers and samples are
 * functions of them. */
struct dtp_checkpoint_position {
    uint64_t step;       /* optimizer steps done */
    uint64_t samples;    /* read from the token source */
    uint64_t skipped;    /* of the steps, those whose update was left out */
    double loss_scale;   /* of fp16, which the next step takes; 0: none */
    uint64_t good_steps; /* since it changed last, none of them left out */
};

/* Where ranks write together: `agree` returns to all, when all have called it, the worst status of any; NULL for one
 * rank. So a rank that fails stops the others from taking the checkpoint for complete. */
struct dtp_checkpoint_place {
    const char *directory;
    uint32_t rank, ranks;
    enum dtp_status (*agree)(void *context, enum dtp_status mine);
    void *context;
};

/* Before any training, on every rank. The first one makes the folder where it is missing and tries that files can be
 * made in it. DTP_BAD_INPUT: `resumes` is not set and complete checkpoints are there, which the run's own would push
 * out; DTP_ENVIRONMENT: it cannot be written to. */
enum dtp_status dtp_checkpoint_prepare(const char *directory, bool resumes, bool first_rank, struct dtp_faults *faults);

/* Every rank calls it with the parts that are its to write; together they hold each element of each kind once.
 * DTP_ENVIRONMENT: what could not be written; earlier checkpoints are as they were. Device streams must be idle. */
enum dtp_status dtp_checkpoint_write(const struct dtp_checkpoint_place *place, struct dtp_device *device,
                                     const struct dtp_checkpoint_identity *identity,
                                     const struct dtp_checkpoint_position *position, const struct dtp_state_part *parts,
                                     size_t count, struct dtp_faults *faults);

/* The same in steps, for who writes beside training (saver.h). `begin`, on all ranks together, makes room for that
 * step's checkpoint; `write_own` writes this rank's parts, whose values lie in memory of the host, and waits for
 * nobody; `end`, on rank 0 when all have written, gives it its name, or takes away what there is of it where it is not
 * `whole`. DTP_ENVIRONMENT: what could not be made, written or named; earlier checkpoints stand. */
enum dtp_status dtp_checkpoint_begin(const struct dtp_checkpoint_place *place, uint64_t step,
                                     struct dtp_faults *faults);
enum dtp_status dtp_checkpoint_write_own(const struct dtp_checkpoint_place *place, uint64_t step,
                                         const struct dtp_state_part *parts, size_t count, struct dtp_faults *faults);
enum dtp_status dtp_checkpoint_end(const struct dtp_checkpoint_place *place,
                                   const struct dtp_checkpoint_identity *identity,
                                   const struct dtp_checkpoint_position *position, bool whole,
                                   struct dtp_faults *faults);

/* Fills all parts, each from as many files as it takes. `previous`: from the newest but one. DTP_BAD_INPUT: there is
 * none, it is of another model, it is damaged (the message says which block of which file), or does not hold all. A
 * difference in `data` is a remark in faults (DTP_OK), for data may be moved or exchanged on purpose. */
enum dtp_status dtp_checkpoint_read(const char *directory, bool previous, struct dtp_device *device,
                                    const struct dtp_checkpoint_identity *identity,
                                    struct dtp_checkpoint_position *position, const struct dtp_state_part *parts,
                                    size_t count, struct dtp_faults *faults);

/* ---- shared by the files of this module -------------------------------------------------------------------------- */

#define DTP_CHECKPOINT_SCHEMA "dtplan.checkpoint/1"
#define DTP_CHECKPOINT_STAGING_BYTES (8u << 20)
#define DTP_CHECKPOINT_PATH_BYTES 4096
/* Words of index files for kinds of state and formats of elements, and back: false where there is no such word. Bytes
 * are those of an element. */
const char *dtp_state_kind_text(enum dtp_state_kind kind);
bool dtp_state_kind_parse(const char *text, enum dtp_state_kind *out);
uint64_t dtp_state_element_bytes(enum dtp_element element);
const char *dtp_state_element_text(enum dtp_element element);
bool dtp_state_element_parse(const char *text, enum dtp_element *out);
/* Removes what of checkpoints is only partly written. Nobody may be writing one. */
void dtp_checkpoint_clean(const char *directory);
/* Steps of the complete checkpoints below `directory`, newest first, at most `limit`; returns how many there are. */
size_t dtp_checkpoint_list(const char *directory, uint64_t *steps, size_t limit);

#endif
