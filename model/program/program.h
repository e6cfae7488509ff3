/* The step program: one optimizer step of one rank as a flat list of operations on streams.
 *
 * Lowering writes it, the verifier and the simulator read it, the executor runs it. The list is in the order in which
 * the host issues operations. An operation starts when it has been issued, the operation before it on its stream is
 * done and its dependencies are done. Buffers have a size, an owner and a pool. Operands say when the host's allocator
 * hands them out and takes them back: those marked DTP_ALLOC, in their order, as the operation is issued and before it
 * uses them, those marked DTP_FREE right after it was issued. So most of a step needs no operations for memory alone,
 * which would be two of three; DTP_OP_ALLOC and DTP_OP_FREE stand where memory moves without other work (their operands
 * have no read or write). Data parallel ranks share one program.
 *
 * Build with dtp_program_create, dtp_program_add_*, dtp_program_seal; immutable after that. A program owns all its
 * memory, names included, until dtp_program_destroy; returned pointers are borrowed from it and valid once it is
 * sealed. */
#ifndef DTP_PROGRAM_H
#define DTP_PROGRAM_H

#include "base/bytes.h"
#include "base/execution.h"
#include "base/status.h"
#include "base/words.h"
#include "net/parameter_layout.h"

typedef struct {
    uint32_t index;
} dtp_op_id;
typedef struct {
    uint32_t index;
} dtp_buffer_id;
#define DTP_NO_INDEX UINT32_MAX

enum dtp_space { DTP_SPACE_DEVICE, DTP_SPACE_HOST, DTP_SPACE_STORAGE, DTP_SPACE_COUNT };

struct dtp_buffer {
    const char *name; /* "x", "qkv", "gathered", ...: for people; layer and micro-step stand in their fields */
    uint64_t bytes;
    enum dtp_owner owner;
    enum dtp_space space;
    enum dtp_stream pool;       /* stream whose allocator pool it comes from */
    uint16_t layer, micro_step; /* DTP_NO_LAYER / 0 */
    bool persistent;            /* alive before, during and after the step; never marked ALLOC or FREE */
    uint8_t element;            /* 1 + enum dtp_dtype of all that operands see in it; DTP_NO_ELEMENT: not one format,
                                   or a program that is only simulated */
    uint8_t content;            /* enum dtp_content */
    uint32_t module;            /* whose, of state */
};
#define DTP_NO_ELEMENT 0u
#define DTP_NO_LAYER UINT16_MAX

/* A communicator: operations of one group serialise in issue order, whatever their streams. */
struct dtp_program_group {
    uint32_t ranks, stride; /* ranks `stride` apart; stride 1 = consecutive */
    uint32_t ctas;          /* thread blocks, at most, that carry what is sent in it; 0: the library's choice */
};

/* A parameter of `modules` modules from first_module on, in each at the same place: what fills, saves and updates state
 * knows by it. */
struct dtp_program_tensor {
    uint32_t first_module, modules;
    enum dtp_parameter parameter;
    struct dtp_parameter_tensor at;
};
#define DTP_PROGRAM_MAX_TENSORS 4096u
#define DTP_PROGRAM_MAX_MODULES (1u << 17)

/* Bits. A result is DTP_ALLOC | DTP_WRITE, a last use DTP_READ | DTP_FREE, a workspace all four of ALLOC, UPDATE, FREE.
 *
 * What FREE gives back may be handed out again at once, to whoever allocates from that pool next; the streams that use
 * it then must have waited for those that used it before. With DTP_DEFER (record_stream of PyTorch) the allocator
 * itself waits: it hands the bytes out when it has seen the operations done that used them. */
enum dtp_access { DTP_READ = 1, DTP_WRITE = 2, DTP_UPDATE = 3, DTP_ALLOC = 4, DTP_FREE = 8, DTP_DEFER = 16 };

/* A buffer occurs at most once in a role of an operation, and has ALLOC, and FREE, at one of its occurrences. Reads
 * come before writes: an operation reads what stood in a buffer that it writes too. */
struct dtp_operand {
    dtp_buffer_id buffer;
    uint8_t access; /* enum dtp_access bits */
    uint8_t role;   /* enum dtp_role */
    uint8_t shard;  /* 1: this rank's equal part of the buffer: rank * bytes / ranks is added to the offset, of the
                       operation's group, without one of the plan's shard group */
    uint64_t offset_bytes; /* where in the buffer it begins; below the buffer's bytes */
    uint64_t bytes;        /* that it touches from there on, and no others: operations of other streams may use those
                              meanwhile; 0: it may touch all of the buffer */
};
/* A whole buffer, without a role. */
static inline struct dtp_operand dtp_operand_of(dtp_buffer_id buffer, uint32_t access)
{
    return (struct dtp_operand){.buffer = buffer, .access = (uint8_t)access};
}

/* What an operation asks of the machine; fields that its class does not use are 0. */
struct dtp_demand {
    double flops;       /* multiply-adds count 2; recompute included as it happens */
    double m, n, k;     /* matmul; of other kernels n is the width of a row. Embedding: k rows of its table.
                         * Loss backward: n columns that count of k; m tokens of the step on all ranks */
    double bytes;       /* through HBM, reads + writes (of a matmul: what adding its result to a sum in
                         * another format moves beyond operands and result); host: bytes of host
                         * memory; storage: bytes */
    double elements;    /* memory-bound: those of them that kernels take one at a time (op_cost.h) */
    double column_sums; /* memory-bound: sums over rows that are kernels of their own */
    double sent_bytes;  /* collective: bytes each rank sends (ring accounting); copies: bytes copied */
    double tokens;      /* attention: of queries */
    double epsilon;     /* norms that are run: what is added to the mean square; 0: DTP_NORM_EPSILON */
    double scale;       /* embedding that is run: what rows of the table are multiplied by; 0: 1 */
    struct dtp_attention_shape attention; /* and what of it kernels around attention need (program.c) */
    uint32_t groups;                      /* matmul: so many of that shape side by side; 0: one; of what stands
                                           * around experts: of those that there are */
    uint32_t kernels;      /* launches the operation stands for (eager pointwise chains are one operation) */
    enum dtp_dtype dtype;  /* matmul */
    uint8_t memory_kernel; /* enum dtp_memory_kernel, for class MEMORY */
    uint8_t recompute;     /* 1: repeated forward work */
    uint8_t form;          /* enum dtp_form, of a kernel that has several */
    uint8_t issue;         /* enum dtp_issue. No hole lies behind: equal demands are equal bytes */
};

/* As it is added. */
struct dtp_new_op {
    enum dtp_op_kind kind;
    enum dtp_stream stream;
    uint16_t layer, micro_step;
    uint32_t group;   /* collectives: index of the group; of no meaning for others */
    uint16_t peer;    /* transfers: the role of the other end (program_set.h) */
    uint32_t tag;     /* transfers: the same number at both ends */
    const char *name; /* "qkv", "down input gradient", ...; "" if the kind says it all */
    struct dtp_demand demand;
};

/* As it is kept. A step has hundreds of demands for hundreds of thousands of operations, which share them: mostly those
 * that ask for the same have the same pointer. */
struct dtp_op {
    enum dtp_op_kind kind;
    enum dtp_stream stream;
    const struct dtp_demand *demand;
    const char *name;
    uint32_t group; /* DTP_NO_INDEX of what is no collective */
    uint32_t tag;
    uint32_t first_operand, first_dependency;
    uint16_t layer, micro_step, peer;
    uint16_t operand_count, dependency_count; /* dependencies on operations of other streams */
};
#define DTP_PROGRAM_MAX_OPERANDS UINT16_MAX /* of an operation */

/* Rows that tensor parallel ranks gather. */
static inline bool dtp_op_gathers_rows(const struct dtp_op *op)
{
    return op->kind == DTP_OP_ALL_GATHER && op->stream == DTP_STREAM_TENSOR;
}

struct dtp_program; /* opaque */

/* `op_limit` 0 = DTP_PROGRAM_MAX_OPS. Adding beyond it fails with DTP_BAD_INPUT before memory is taken. */
#define DTP_PROGRAM_MAX_OPS 20000000u
enum dtp_status dtp_program_create(uint32_t op_limit, struct dtp_program **out, struct dtp_faults *faults);
void dtp_program_destroy(struct dtp_program *program);

/* Whoever needs each operation of a program once. `op` and `operands` are the adder's; false: no memory. */
struct dtp_program_reader {
    bool (*read)(void *context, const struct dtp_new_op *op, const struct dtp_operand *operands, size_t operand_count,
                 const struct dtp_buffer *buffers);
    void *context;
};
/* Operations added from now on go to `reader` and are not kept, nor are dependencies and names: the program that is
 * sealed has buffers alone. Amounts are checked as ever; how operands and shapes fit together is not, for that is told
 * by the same program where it is kept. Before anything is added. */
void dtp_program_read_only_once(struct dtp_program *program, const struct dtp_program_reader *reader);

/* For whoever knows what `ops` operations do that one such program was shown before, with `count` buffers of its own:
 * they count as if they were added, and the buffers are added. The first of these; DTP_NO_INDEX: refused. */
dtp_buffer_id dtp_program_repeat(struct dtp_program *program, uint32_t ops, const struct dtp_buffer *buffers,
                                 uint32_t count);

/* Bounds of what a program may hold: products and sums of such amounts stay finite, and bytes in uint64_t. */
#define DTP_BUFFER_MAX_BYTES DTP_BYTES_BOUND
#define DTP_DEMAND_MAX 1e30
#define DTP_DEMAND_MAX_SENT_BYTES 0x1p57
#define DTP_PROGRAM_MAX_NAME_BYTES 63

/* Building. Errors (no memory, limit, bad index) are sticky: adders then return DTP_NO_INDEX ids and seal reports the
 * first. Names (printable ASCII without quotes; NULL is "") and operands are copied. Adding to a sealed program is a
 * broken invariant. */
dtp_buffer_id dtp_program_add_buffer(struct dtp_program *program, const struct dtp_buffer *buffer);
/* What is known of a buffer besides, said after it was added and before operations name it; nothing happens for
 * DTP_NO_INDEX. An operand's element type is its buffer's: no byte is read as two types. `module` 0 where the content
 * is no state. */
void dtp_program_set_element(struct dtp_program *program, dtp_buffer_id buffer, enum dtp_dtype dtype);
void dtp_program_set_content(struct dtp_program *program, dtp_buffer_id buffer, enum dtp_content content,
                             uint32_t module);
/* Whose kernels its operations are, and what else they have in common; all 0 where it is not said. Copied. */
void dtp_program_set_execution(struct dtp_program *program, const struct dtp_execution *execution);
uint32_t dtp_program_add_group(struct dtp_program *program, struct dtp_program_group group);
/* False: refused. Those of a module lie one behind the other, in the order of enum dtp_parameter. */
bool dtp_program_add_tensor(struct dtp_program *program, const struct dtp_program_tensor *tensor);
dtp_op_id dtp_program_add_op(struct dtp_program *program, const struct dtp_new_op *op,
                             const struct dtp_operand *operands, size_t operand_count);
/* `later` waits for `earlier`; only to the operation added last, so dependencies stay contiguous. What the order of the
 * streams implies is not kept: nothing for an operation of the same stream, and of two of one stream the later. So an
 * operation has at most DTP_STREAM_COUNT - 1. Nothing happens where `earlier` is DTP_NO_INDEX. */
void dtp_program_depend(struct dtp_program *program, dtp_op_id later, dtp_op_id earlier);
/* Takes memory at once for as much as was added so far `times` times more, and a little for what differs. Only saves
 * moving: adding goes on beyond it, and below. */
void dtp_program_expect_again(struct dtp_program *program, uint32_t times);
/* Ends building, or reports why the program is none: bad indices, a dependency that does not point backwards, a
 * collective without group, a demand that is no amount, too many operations, no memory. */
enum dtp_status dtp_program_seal(struct dtp_program *program, struct dtp_faults *faults);

const struct dtp_execution *dtp_program_execution(const struct dtp_program *program);
size_t dtp_program_tensor_count(const struct dtp_program *program);
const struct dtp_program_tensor *dtp_program_tensors(const struct dtp_program *program);
/* A module as its tensors make it, cut into the execution's shards; without tensors elements are 0. */
void dtp_program_module(const struct dtp_program *program, uint64_t module, struct dtp_parameter_module *out);
size_t dtp_program_op_count(const struct dtp_program *program);
size_t dtp_program_buffer_count(const struct dtp_program *program);
size_t dtp_program_group_count(const struct dtp_program *program);
const struct dtp_op *dtp_program_ops(const struct dtp_program *program);
const struct dtp_buffer *dtp_program_buffers(const struct dtp_program *program);
const struct dtp_program_group *dtp_program_groups(const struct dtp_program *program);
const struct dtp_operand *dtp_program_operands(const struct dtp_program *program, const struct dtp_op *op);
const dtp_op_id *dtp_program_dependencies(const struct dtp_program *program, const struct dtp_op *op);

/* Sums over the program, for the checks against the closed form: exact where the closed form is. */
struct dtp_program_totals {
    double matmul_flops, attention_flops, recompute_flops; /* recompute is part of the first two */
    double optimizer_flops;                                /* of its products, which are no part of those */
    uint64_t sent_bytes[DTP_COLLECTIVE_COUNT], count[DTP_COLLECTIVE_COUNT];
    uint64_t host_to_device_bytes, device_to_host_bytes;
    double memory_bytes; /* of class MEMORY */
    uint64_t kernels;
};
void dtp_program_sum(const struct dtp_program *program, struct dtp_program_totals *out);

#endif
