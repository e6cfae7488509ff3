/* What carries collectives between ranks: NCCL between GPUs, shared memory between processes of one host.
 *
 * One communicator serves all groups of a step program; a group is the ranks `stride` apart that the program names
 * (struct dtp_program_group), of which every rank is in exactly one instance. Every rank makes the same calls in the
 * same order. Sums are plain sums: lowering folds 1/ranks into the loss's gradient, which spares NCCL its slower
 * average. Each call counts what this rank sends (ring accounting, as closed_form.h), from the sizes it was really
 * given. */
#ifndef DTP_COMMUNICATOR_H
#define DTP_COMMUNICATOR_H

#include "ranks/control.h"
#include "ranks/exchange.h"
#include "kernels/kernels.h"
#include "program/program.h"

/* `bytes` is the whole: what is gathered, scattered or reduced. Of all_gather the input is this rank's bytes/ranks (it
 * may lie at its place in the result), of reduce_scatter the result is (it may lie at its place in the input);
 * all_reduce may work in place. all_to_all gives member j part j of the input, and part j of the result is from member
 * j; the two are apart. bytes must be a multiple of ranks elements. send_recv is one end of a transfer of all bytes,
 * whose other end the peer calls: the k-th that it sends here is the k-th that is received here in that group. With
 * `shifts` it is both at once: all bytes of `input` to the next member of the group, `result` from the one before. An
 * all_to_all with an `exchange` has parts of other sizes, which that says; `bytes` says nothing then. */
struct dtp_collective_args {
    enum dtp_collective collective;
    uint32_t group;
    const void *input;
    void *result;
    uint64_t bytes;
    enum dtp_element element;
    uint32_t peer;   /* of send_recv: the rank at the other end, of the same group */
    bool receives;   /* of send_recv: `result` gets what the peer's call gives as `input`; else the reverse */
    bool shifts;     /* of send_recv: around the ring of the group, without a peer */
    bool into_peers; /* of all_gather: by copies into peers' arenas where they are mapped (nccl_exchange.h) */
    bool by_library; /* of all_to_all and shifts: NCCL's own transfers, even where peers' arenas are mapped */
    struct dtp_exchange exchange; /* of all_to_all; begins NULL: equal parts */
};

/* How the plan wants them carried; all zero: as the library chooses. Windows and copies need `arena`, memory of the
 * same size on every rank in which each buffer of a collective has the same place, allocated so that peers can map it
 * (dtp_device_options.peer_memory). */
struct dtp_communicator_choice {
    uint32_t max_ctas; /* thread blocks of a collective; 0: any number */
    bool windows;      /* symmetric kernels, in every group that lies inside a node */
    uint32_t copies;   /* by copy engines: a bit per enum dtp_collective. They are in groups with nothing else */
    void *arena;
    uint64_t arena_bytes;
    bool apart; /* ranks pretend nodes or share GPUs: nothing maps one's memory into another's */
};

struct dtp_communicator;
struct dtp_communicator_verbs {
    void (*destroy)(struct dtp_communicator *communicator);
    /* 0, or a code that error_text names. On `stream` with NCCL; done on return over shared memory,
     * but for a transfer on a stream of these, which the host device has as a lane (lane.h). */
    int (*collective)(struct dtp_communicator *communicator, const struct dtp_collective_args *args, void *stream);
    /* Does this one, on memory whose contents do not matter, and refuses (DTP_ENVIRONMENT) where it was not carried as
     * chosen: NCCL falls back to other ways without a word. Every rank asks the same, outside of a step. */
    enum dtp_status (*prove)(struct dtp_communicator *communicator, const struct dtp_collective_args *args,
                             void *stream, struct dtp_faults *faults);
    /* Makes ready what carries transfers of these kinds, one of each group, peer and direction, both ends at once: so
     * that none of a step holds up the host. On memory of one element, whose contents do not matter. */
    enum dtp_status (*connect)(struct dtp_communicator *communicator, const struct dtp_collective_args *args,
                               size_t count, void *stream, struct dtp_faults *faults);
    int (*poll)(struct dtp_communicator *communicator); /* what failed since */
    /* From any thread: collectives in flight end with an error instead of never. */
    void (*abort)(struct dtp_communicator *communicator);
    const char *(*error_text)(struct dtp_communicator *communicator, int code);
};

struct dtp_communicator {
    const struct dtp_communicator_verbs *verbs;
    uint64_t calls[DTP_COLLECTIVE_COUNT], sent_bytes[DTP_COLLECTIVE_COUNT]; /* since it was made */
    char name[64];                                                          /* "NCCL 2.28.9", "shared memory" */
    char ways[512]; /* how collectives that were proved are carried, for logs and reports */
};

struct dtp_communicator_options {
    const struct dtp_ranks *ranks;
    struct dtp_control *control;
    const struct dtp_program_group *groups;
    uint32_t group_count;
    struct dtp_communicator_choice choice;
    uint32_t copy_groups; /* a bit per group: those whose collectives copy engines carry */
    /* The same: those whose ranks exchange what nobody reduces (all_to_all, shifts) or gather rows. On GPUs of one
     * machine that goes straight into the peers' arenas (nccl_exchange.h) where choice.arena is the beginning of an
     * allocation of cudaMalloc's, as it is without windows and copies, in groups of up to DTP_PUSH_TARGETS ranks. */
    uint32_t exchange_groups;
};

/* Every rank calls it. DTP_BAD_INPUT: groups that do not divide the world, a choice that shared memory does not have;
 * DTP_ENVIRONMENT: one that this NCCL or this machine does not have. Destroy by communicator->verbs->destroy. */
enum dtp_status dtp_communicator_host_create(const struct dtp_communicator_options *options,
                                             struct dtp_communicator **out, struct dtp_faults *faults);
/* Only in builds with CUDA, after the device has been made current. Statuses as above; DTP_ENVIRONMENT with NCCL's
 * words. */
enum dtp_status dtp_communicator_nccl_create(const struct dtp_communicator_options *options,
                                             struct dtp_communicator **out, struct dtp_faults *faults);

/* Where `rank` is in its instance of a group, and a number of that instance; for those who implement this. */
struct dtp_group_place {
    uint32_t instance, index, first, ranks, stride; /* member i is rank first + i * stride */
};
struct dtp_group_place dtp_group_place(const struct dtp_program_group *group, uint32_t rank);
/* DTP_BAD_INPUT: a group that does not divide the world. */
enum dtp_status dtp_groups_check(const struct dtp_communicator_options *options, struct dtp_faults *faults);
void dtp_communicator_count(struct dtp_communicator *communicator, const struct dtp_collective_args *args,
                            uint32_t ranks);
void dtp_communicator_count_rows(struct dtp_communicator *communicator, const struct dtp_exchange *exchange,
                                 uint32_t member);

#if DTP_WITH_CUDA
/* communicator_proof.c: how NCCL launched a collective that was captured into `graph` (cudaGraph_t): the name of its
 * kernel and that kernel's thread blocks, or none where only copies and flags were. False: the call named by `failed`
 * (static) failed. */
struct dtp_collective_launch {
    const char *failed;
    char kernel[128];
    uint32_t ctas, kernels, copies;
};
bool dtp_collective_launch_read(void *graph, struct dtp_collective_launch *out);
#endif

#endif
