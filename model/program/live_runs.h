/* What a step program does to the device's memory, in runs: operations that follow each other in the list and belong to
 * one layer of one micro-step, between two marks.
 *
 * A run says how many bytes of each owner it leaves behind or takes away, and what it holds at its fullest, both
 * counted from where it begins. So the bytes that live in a step are a sum over its runs, and a step whose runs repeat
 * need not be walked operation by operation: whoever knows which runs repeat adds them up (lower/miniature.h).
 *
 * Bytes are those of the buffers in issue order, as the allocator hands them out and takes them back. */
#ifndef DTP_LIVE_RUNS_H
#define DTP_LIVE_RUNS_H

#include "program/program.h"

/* Bytes by owner, and of all together. Differences may be negative. */
struct dtp_live_sum {
    int64_t bytes[DTP_OWNER_COUNT], total_bytes;
};
/* Bytes in the pools of the allocator, one for each stream. */
struct dtp_live_pools {
    int64_t bytes[DTP_STREAM_COUNT];
};

/* A bucket that gradients are copied into as they are made, and that is reduced before one which would overflow it.
 * Where it is full is anywhere in a layer, and no layer's as another's. So a step of few layers reduces nothing, but
 * says when gradients come, and the sum over all layers where that is. A reduction makes a flattened copy of what is in
 * the bucket, unless that is all of one rank's part, and lets it go again; behind that the first of a step may make
 * what gradients rest in, which the step takes back, and the first of each flush after that the same again up to its
 * end. */
struct dtp_live_bucket {
    uint64_t elements;      /* that it holds; 0: there is none */
    uint64_t element_bytes; /* of the copy, owner DTP_OWNER_REDUCE */
    uint64_t all_elements;  /* that come between two flushes, of which each rank has a part of so many */
    uint64_t part_elements;
    bool from_first;      /* they come from the first on; else from the last */
    int64_t kept_bytes;   /* of what gradients rest in, owner DTP_OWNER_GRADS, made behind the first copy; or 0 */
    enum dtp_stream pool; /* of both */
};
/* Whether `filled` elements that come behind `before` others of the `all` are of one part. */
static inline bool dtp_live_bucket_in_one_part(uint64_t all, uint64_t part, uint64_t before, uint64_t filled,
                                               bool from_first)
{
    uint64_t first = from_first ? before : all - before - filled;
    return first / part == (first + filled - 1) / part;
}
#define DTP_LIVE_FLUSH UINT64_MAX

/* What comes and goes in a way of a runtime's own, which is no layer's as another's: parameters that are fetched as far
 * ahead as there is room. A step of few layers makes none of it, but tells when something happens that decides it, by a
 * byte of the runtime's own choice. The sum over all layers says the bytes again, in their order, to who moves them. */
struct dtp_live_walk; /* opaque: where the sum stands */
struct dtp_live_teller {
    /* `layer`: of the net, or DTP_NO_LAYER. Moves by the functions at the end of this header. */
    void (*said)(void *context, uint8_t what, uint64_t layer, uint32_t micro_step, struct dtp_live_walk *walk);
    void *context; /* one piece of malloc's, which dtp_live_runs_release frees where it was asked for; or NULL */
};
#define DTP_LIVE_TOLD 8u /* that a run begins with, at most: bytes of an uint64_t, the first the lowest */

struct dtp_live_run {
    uint64_t shape; /* hash of what its operations allocate and free in which order, sizes and how many of a kind follow
                       each other apart: of one layer and of all, an optimizer's lists of tensors have the same */
    uint64_t last_move; /* what it allocated or freed last, as `shape` has it */
    uint64_t fills;     /* elements that come into the bucket as it begins; 0: none do, DTP_LIVE_FLUSH: what is in it is
                           reduced */
    uint64_t told;      /* what the runtime tells as it begins; behind its mark, where it has one. 0: nothing */
    bool begins;        /* it begins with the mark of a phase */
    bool moves;         /* it allocates or frees; else all sums are 0 */
    uint32_t owners, pools; /* whose bytes it moves, as bits */
    enum dtp_phase phase;
    uint16_t layer, micro_step;
    uint32_t stretch; /* 0, or with this run begin so many that follow each other `again` times more, each time */
    uint32_t again;   /* `layers_on` further in the net; the latter two of each of them */
    int32_t layers_on;
    struct dtp_live_sum net;                     /* after it */
    struct dtp_live_sum full;                    /* when most bytes live, of the instants after bytes came or went */
    int64_t most[DTP_OWNER_COUNT];               /* of each owner by itself, whenever that is; at least 0 */
    struct dtp_live_pools pools_net, pools_most; /* after it | of each pool by itself */
};

struct dtp_live_runs {
    struct dtp_live_sum standing; /* persistent buffers: what every run adds to */
    struct dtp_live_pools pools_standing;
    struct dtp_live_run *run;
    size_t count, capacity;
    enum dtp_phase phase; /* of the run that is read last */
    /* Asked for before reading: a run is all layers of a phase, but for backward, which ends one where it first comes
     * below layer `half`. For sums alone, which are the same; what lines up layers needs them apart. */
    bool joined;
    uint64_t half;
    uint64_t fills; /* asked for: a runtime that has a bucket says when it is filled, in a step that stands for one of
                       so many layers; what ranks have equal parts of is the latter's, for parts are rounded. 0: no */
    struct dtp_live_bucket bucket; /* said by the runtime */
    struct dtp_live_teller teller; /* the same, of what is told */
    uint64_t coming;               /* what the next operation begins a run with */
    bool apart;                    /* it begins one, whatever stands before it */
    bool overfull;                 /* a gradient is larger than the bucket: nothing that the sum knows */
};
/* Before the operation that copies a gradient of so many elements into the bucket, or that lets the bucket go
 * (DTP_LIVE_FLUSH). */
static inline void dtp_live_runs_fill(struct dtp_live_runs *runs, uint64_t elements)
{
    runs->coming = elements;
    runs->overfull |= elements != DTP_LIVE_FLUSH && elements > runs->bucket.elements;
}
/* Behind the operations so far, of a layer or of DTP_NO_LAYER: `what` is not 0. False: no memory. */
bool dtp_live_runs_tell(struct dtp_live_runs *runs, uint8_t what, uint16_t layer, uint16_t micro_step);
/* A part of a step that is the same again: between the two the operations are of `layer` and `micro_step`. Behind it
 * they continue the run before, as they would have. False: no such part, for something else began a run in it; else
 * *out is what they do. `first`: what began it returned. */
size_t dtp_live_runs_begin_part(struct dtp_live_runs *runs);
bool dtp_live_runs_end_part(struct dtp_live_runs *runs, size_t first, struct dtp_live_run *out);
/* The same in place of the operations. False: no memory. */
bool dtp_live_runs_repeat(struct dtp_live_runs *runs, const struct dtp_live_run *part, uint16_t layer,
                          uint16_t micro_step);
/* Layers below which backward is late. */
static inline uint64_t dtp_live_runs_half(uint64_t layers)
{
    return layers / 2;
}

/* Of a sealed program, in time linear in its operations and operands. *out begins zeroed, or as an earlier call left it
 * and then keeps its memory; the caller releases it in any case. */
enum dtp_status dtp_live_runs_of(const struct dtp_program *program, struct dtp_live_runs *out,
                                 struct dtp_faults *faults);
/* The same of a program that keeps no operations: the reader to make it with (dtp_program_read_only_once), and what is
 * to be called once it is sealed. */
struct dtp_program_reader dtp_live_runs_reader(struct dtp_live_runs *out);
void dtp_live_runs_end(const struct dtp_program *program, struct dtp_live_runs *out);
/* Room for one more behind the others, or NULL: no memory. */
struct dtp_live_run *dtp_live_runs_add(struct dtp_live_runs *runs);
void dtp_live_runs_release(struct dtp_live_runs *runs);

/* Live bytes of a step: what lives at the fullest instant of each phase, its beginning among them, and the most that
 * each owner and each pool ever has. */
struct dtp_live_bytes {
    uint64_t phase_bytes[DTP_PHASE_COUNT][DTP_OWNER_COUNT], phase_total_bytes[DTP_PHASE_COUNT];
    enum dtp_phase peak_phase; /* the first of those with the largest total */
    uint64_t most_bytes[DTP_OWNER_COUNT], pool_bytes[DTP_STREAM_COUNT];
    uint64_t standing_bytes[DTP_OWNER_COUNT]; /* of persistent buffers: before, during and after the step */
    uint64_t standing_pool_bytes[DTP_STREAM_COUNT];
};

/* Adds the runs up. `layers` of the net: backward is late from its lower half on. */
void dtp_live_bytes_sum(const struct dtp_live_runs *runs, uint64_t layers, struct dtp_live_bytes *out);
/* For a teller: the operations that follow are of a layer, or of DTP_NO_LAYER; bytes come; bytes go. */
void dtp_live_stand(struct dtp_live_walk *walk, uint64_t layer);
void dtp_live_come(struct dtp_live_walk *walk, enum dtp_owner owner, enum dtp_stream pool, uint64_t bytes);
void dtp_live_go(struct dtp_live_walk *walk, enum dtp_owner owner, enum dtp_stream pool, uint64_t bytes);

#endif
