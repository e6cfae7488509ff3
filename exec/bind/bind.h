/* From a sealed program to calls: every operation becomes a function of the device with its arguments filled in, the
 * stream it is issued to, and the events it waits for and records.
 *
 * The program is one of lower_executor.h, whose roles say what each operand is; addresses are arena bases plus offsets.
 * What an operation computes follows from its kind, its form, the roles of its operands and its shapes, all of which
 * the program says; nothing is decided while a step runs. */
#ifndef DTP_BIND_H
#define DTP_BIND_H

#include "checkpoint/checkpoint.h"
#include "device/device.h"
#include "device/host_adam.h"
#include "base/host_arena.h"
#include "program/program_set.h"
#include "runtime/dtplan/lower_executor.h"
#include "ranks/world.h"

/* What optimizers take besides the learning rate, which changes from step to step; momentum: of SGD and Muon. */
struct dtp_optimizer_settings {
    float beta1, beta2, epsilon, decay, momentum;
};

struct dtp_bind_job {
    const struct dtp_program *program;
    const struct dtp_executor_arena *arena;
    struct dtp_device *device;
    char *device_base, *host_base;
    struct dtp_world *world;           /* NULL: one rank */
    const struct dtp_program_set *set; /* whose role `program` is; NULL: all ranks run it */
    struct dtp_optimizer_settings optimizer;
    uint32_t rank;
    bool balanced_experts; /* tokens go to experts in turns (kernels/experts.h) */
};

struct dtp_copy_args {
    void *to;
    const void *from;
    uint64_t bytes;
};

/* AdamW on cores of the host, for state that rests there. */
struct dtp_host_update {
    struct dtp_host_adam *adam;
    struct dtp_adamw_args adamw;
};

/* What ranks that divide experts have said of their rows, once the host has it: each has `made` of them, and room for
 * `room`. */
struct dtp_heard_args {
    struct dtp_exchange rows;
    uint64_t made, room;
};

enum dtp_bound_kind {
    DTP_BOUND_NOTHING,
    DTP_BOUND_COMPUTE,
    DTP_BOUND_COPY,
    DTP_BOUND_COLLECTIVE,
    DTP_BOUND_HOST,
    DTP_BOUND_HEARD /* the host waits, and looks whether all rows have room */
};

struct dtp_bound_op {
    enum dtp_bound_kind kind;
    enum dtp_kernel kernel; /* of COMPUTE */
    enum dtp_stream stream_index;
    void *stream;
    void *done;  /* event that other streams wait for, or NULL */
    void **wait; /* events */
    uint32_t wait_count;
    union {
#define X(name, args) struct args name;
        DTP_KERNEL_TABLE(X)
#undef X
        struct dtp_copy_args copy;
        struct dtp_collective_args collective;
        struct dtp_host_update host;
        struct dtp_heard_args heard;
    } arguments;
};

struct dtp_binding {
    struct dtp_host_arena memory; /* of the arrays */
    struct dtp_bind_job job;
    struct dtp_executor_map map;
    struct dtp_bound_op *ops;      /* one per operation of the program */
    struct dtp_bound_op *factored; /* what they are once PowerSGD begins; NULL: it has, or there is none */
    size_t op_count;
    struct dtp_host_adam *adam;     /* where operations update on the host */
    bool streams[DTP_STREAM_COUNT]; /* that have operations */
    struct dtp_state_part *parts;   /* all state this rank holds; checkpoints read these */
    struct dtp_state_part *own;     /* of those, what is this rank's to write: together each element once */
    size_t part_count, own_count;
};

/* This rank's place among those that run its program. */
uint32_t dtp_bind_role_rank(const struct dtp_bind_job *job);

/* Binds all operations and lets the device prepare them. `job` and what it points to stay borrowed. Caller releases.
 * DTP_BAD_INPUT: an operation that the device cannot run, or whose operands are not what its kind needs. */
enum dtp_status dtp_bind(const struct dtp_bind_job *job, struct dtp_binding *out, struct dtp_faults *faults);
void dtp_binding_release(struct dtp_binding *binding);

/* bind_start.c: until begin_factors, which says whether anything was held, steps sum whole gradients in place of
 * PowerSGD's factors. Nothing is on its way then. */
enum dtp_status dtp_binding_hold_factors(struct dtp_binding *binding, struct dtp_faults *faults);
bool dtp_binding_begin_factors(struct dtp_binding *binding);

/* Proves that collectives are carried as the plan chose (communicator.h), then connects what carries transfers between
 * stages. Every rank calls it once, before anything is initialised. */
enum dtp_status dtp_binding_prove(const struct dtp_binding *binding, struct dtp_faults *faults);

/* Device bytes by owner when most are alive, as the operations bring them to life and free them. */
void dtp_binding_peak(const struct dtp_binding *binding, uint64_t out[DTP_OWNER_COUNT]);

/* Ranks that share a copy of what the program shards. */
static inline uint32_t dtp_binding_shards(const struct dtp_binding *binding)
{
    uint32_t shards = dtp_program_execution(binding->job.program)->shards;
    return shards ? shards : 1;
}
/* Where this rank is among those that divide each layer's matrices, and how many these are. */
struct dtp_tensor_place {
    uint32_t index, ranks;
};
struct dtp_tensor_place dtp_bind_tensor_place(const struct dtp_bind_job *job);
/* Its place among the ranks that have the same slice, which share out batches and shards. */
uint32_t dtp_bind_data_rank(const struct dtp_bind_job *job);
/* Its place among those of them that share each sequence, which follow each other. */
struct dtp_context_place {
    uint32_t index, ranks, pieces; /* pieces of a sequence that each has */
};
struct dtp_context_place dtp_bind_context_place(const struct dtp_bind_job *job);
/* Where a token of this rank's part of a sequence of so many tokens stands in the whole. */
uint64_t dtp_context_position(const struct dtp_context_place *place, uint64_t tokens, uint64_t token);

/* Its place among those that divide the experts of each layer, which are neighbours. */
struct dtp_tensor_place dtp_bind_expert_place(const struct dtp_bind_job *job);

/* Address of a buffer of the program; NULL for DTP_NO_INDEX and for one that the step never uses. */
void *dtp_binding_address(const struct dtp_binding *binding, dtp_buffer_id buffer);

/* bind_arguments.c: fills kind, kernel and arguments of one operation. */
enum dtp_status dtp_bind_arguments(const struct dtp_binding *binding, const struct dtp_op *op, struct dtp_bound_op *out,
                                   struct dtp_faults *faults);
/* What kernels call a number format, which has to be one that they know: fp32, bf16, fp16, fp8 (E4M3) or int8. The
 * other asks of a buffer, as the program says it: false where it says none of these. */
enum dtp_element dtp_bind_element(enum dtp_dtype dtype);
bool dtp_bind_buffer_element(const struct dtp_buffer *buffer, enum dtp_element *out);

#endif
