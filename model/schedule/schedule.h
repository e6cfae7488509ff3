/* Pipeline schedules as pure descriptions: for each rank of a pipeline the passes it makes of a step, in order.
 *
 * A model is cut into *stages*, which every micro-batch goes through: forward from the first to the last, backward from
 * the last to the first. A *rank* of the pipeline holds one or more stages, its *chunks*. A *pass* is one micro-batch
 * through one chunk: forward (F), or backward, either whole or in two: the gradient of the chunk's input (B), for which
 * the stage before waits, and those of its weights (W), for which nobody waits until the optimizer steps. A schedule
 * says nothing of time, bytes or GPUs: schedule_time.h times it, lowering may ask it for a role's list. */
#ifndef DTP_SCHEDULE_H
#define DTP_SCHEDULE_H

#include "base/status.h"

#include <stdint.h>

enum dtp_schedule_kind {
#define DTP_SCHEDULE(suffix, ...) DTP_SCHEDULE_##suffix,
#include "schedule/schedule.def"
    DTP_SCHEDULE_COUNT
};

/* Which stages the chunks of rank r of p ranks are. */
enum dtp_chunk_placement {
    DTP_CHUNKS_LOOP,   /* chunk c is stage c p + r: each chunk starts at rank 0 again */
    DTP_CHUNKS_VEE,    /* there and back: chunk 0 is stage r, chunk 1 stage 2p - 1 - r */
    DTP_CHUNKS_TWO_WAY /* two lines: chunk 0 is stage r of the first, chunk 1 stage p - 1 - r of the second */
};

enum dtp_schedule_backward { DTP_BACKWARD_WHOLE, DTP_BACKWARD_SPLIT, DTP_BACKWARD_MIXED };

/* A row of schedule.def. */
struct dtp_schedule_row {
    const char *word;
    uint32_t chunks; /* 0: as many as are asked for */
    enum dtp_chunk_placement placement;
    enum dtp_schedule_backward backward;
    uint32_t copies;
    bool blocking;             /* it runs also with blocking sends (schedule_order.h) */
    const char *rule, *bubble; /* "": none */
    const char *words, *source;
};
const struct dtp_schedule_row *dtp_schedule_row(enum dtp_schedule_kind kind);
/* True where backwards take the last micro-batch of a chunk first, and the first one last. */
bool dtp_schedule_turns_round(enum dtp_schedule_kind kind);
/* False: there is no such schedule. */
bool dtp_schedule_parse(const char *word, enum dtp_schedule_kind *out);

/* What a schedule that is searched is searched by: of one micro-batch on a rank, the same on all, in any unit. All 0:
 * 1, 1, 1 and no transfer. */
struct dtp_pass_times {
    double forward_s, backward_s, weight_s; /* F, B, W */
    double send_s;                          /* of a transfer between two ranks */
    double freed; /* of what F keeps, the share that goes with B, 0 to 1; the rest stays for W */
};

/* What is asked for. */
struct dtp_schedule_shape {
    enum dtp_schedule_kind kind;
    uint32_t ranks;         /* p */
    uint32_t micro_batches; /* m of a step, of a two-way schedule those of both directions together */
    uint32_t chunks;        /* v of a rank; 0: the kind's own, of interleaved 2 */
    uint32_t group;         /* interleaved: micro-batches that go through a chunk before the next chunk takes its turn
                               (Megatron's microbatch_group_size_per_vp_stage); 0: ranks, or by equal_rounds */
    bool whole_first_stage; /* of the first stage, for the gradient of whose input nobody waits, backward is not split:
                               it runs where its W stands (torch.distributed.pipelining) */
    bool equal_rounds;      /* groups are alike: of a step as many as ranks fit into it, of fewer micro-batches than
                               ranks one (torch.distributed.pipelining, number_of_rounds); another group is refused */
    struct dtp_pass_times times; /* of schedules that are searched; others do not read it */
};
/* In micro-batches between F and W, what a rank of a schedule that is searched may keep; 0: it is not searched. */
uint32_t dtp_schedule_limit(const struct dtp_schedule_shape *shape);

/* Micro-batches that come round together: of a group that is asked for, else as many as ranks; where equal_rounds goes
 * for the schedule, of a round. */
uint32_t dtp_schedule_group(const struct dtp_schedule_shape *shape);
/* Fills in chunks and group. DTP_BAD_INPUT: a combination that the schedule does not know, each fault with the rule and
 * the nearest valid choice. */
enum dtp_status dtp_schedule_resolve(struct dtp_schedule_shape *shape, struct dtp_faults *faults);

/* X(suffix, letter) */
#define DTP_PASS_TABLE(X)                                                                                              \
    X(FORWARD, "F")                                                                                                    \
    X(BACKWARD, "B") /* of the input alone */                                                                          \
    X(WEIGHT, "W")                                                                                                     \
    X(WHOLE_BACKWARD, "BW")
enum dtp_pass_kind {
#define DTP_PASS_ENUM(suffix, text) DTP_PASS_##suffix,
    DTP_PASS_TABLE(DTP_PASS_ENUM)
#undef DTP_PASS_ENUM
        DTP_PASS_COUNT
};
const char *dtp_pass_text(enum dtp_pass_kind kind);

struct dtp_pass {
    uint32_t micro_batch;
    uint16_t chunk;
    uint8_t kind; /* enum dtp_pass_kind */
    bool paired;  /* runs interleaved with the pass after it: both begin and end together, as DualPipe overlaps them */
};

struct dtp_schedule {
    struct dtp_schedule_shape shape; /* resolved */
    uint32_t stages;                 /* that each micro-batch goes through */
    uint32_t *first;                 /* of rank r: passes[first[r]] to passes[first[r + 1] - 1] */
    struct dtp_pass *passes;
};

/* Time and memory linear in the number of passes, 16 bytes each. Caller destroys; after a failure *out is empty.
 * DTP_BAD_INPUT as dtp_schedule_resolve, which need not have been called. */
enum dtp_status dtp_schedule_create(const struct dtp_schedule_shape *shape, struct dtp_schedule *out,
                                    struct dtp_faults *faults);
void dtp_schedule_destroy(struct dtp_schedule *schedule);

/* Passes of all ranks. */
size_t dtp_schedule_pass_count(const struct dtp_schedule *schedule);
/* The stage that a chunk of a rank is. */
uint32_t dtp_schedule_stage(const struct dtp_schedule *schedule, uint32_t rank, uint32_t chunk);
/* Lines of micro-batches: 1, or 2 that go in opposite directions, the first half of all micro-batches and the second.
 */
uint32_t dtp_schedule_lines(const struct dtp_schedule *schedule);
/* The line that a chunk or a micro-batch belongs to. */
uint32_t dtp_schedule_line_of_chunk(const struct dtp_schedule *schedule, uint32_t chunk);
uint32_t dtp_schedule_line(const struct dtp_schedule *schedule, uint32_t micro_batch);
/* The rank and chunk that a stage of a line is. */
struct dtp_stage_place {
    uint32_t rank, chunk;
};
struct dtp_stage_place dtp_schedule_place(const struct dtp_schedule *schedule, uint32_t line, uint32_t stage);

#endif
