/* What carries collectives between ranks: NCCL between GPUs, shared memory between processes of one host.
 *
 * One communicator serves all groups of a step program; a group is the ranks `stride` apart that the program names
 * (struct dtp_program_group), of which every rank is in exactly one instance. Every rank makes the same calls in the
 * same order. Sums are plain sums: lowering folds 1/ranks into the loss's gradient, which spares NCCL its slower
 * average. Each call counts what this rank sends (ring accounting, as closed_form.h), from the sizes it was really
 * given. */
#ifndef DTP_COMMUNICATOR_H
#define DTP_COMMUNICATOR_H

#include "control.h"
#include "kernels.h"
#include "program.h"

/* `bytes` is the whole: what is gathered, scattered or reduced. Of all_gather the input is this rank's bytes/ranks (it
 * may lie at its place in the result), of reduce_scatter the result is (it may lie at its place in the input);
 * all_reduce may work in place. bytes must be a multiple of ranks elements. */
struct dtp_collective_args {
    enum dtp_collective collective;
    uint32_t group;
    const void *input;
    void *result;
    uint64_t bytes;
    enum dtp_element element;
};

struct dtp_communicator;
struct dtp_communicator_verbs {
    void (*destroy)(struct dtp_communicator *communicator);
    /* 0, or a code that error_text names. On `stream` with NCCL; done on return over shared memory. */
    int (*collective)(struct dtp_communicator *communicator, const struct dtp_collective_args *args, void *stream);
    int (*poll)(struct dtp_communicator *communicator); /* what failed since */
    /* From any thread: collectives in flight end with an error instead of never. */
    void (*abort)(struct dtp_communicator *communicator);
    const char *(*error_text)(struct dtp_communicator *communicator, int code);
};

struct dtp_communicator {
    const struct dtp_communicator_verbs *verbs;
    uint64_t calls[DTP_COLLECTIVE_COUNT], sent_bytes[DTP_COLLECTIVE_COUNT]; /* since it was made */
    char name[64];                                                          /* "NCCL 2.28.9", "shared memory" */
};

struct dtp_communicator_options {
    const struct dtp_ranks *ranks;
    struct dtp_control *control;
    const struct dtp_program_group *groups;
    uint32_t group_count;
};

/* Every rank calls it. DTP_BAD_INPUT: groups that do not divide the world. Destroy by communicator->verbs->destroy. */
enum dtp_status dtp_communicator_host_create(const struct dtp_communicator_options *options,
                                             struct dtp_communicator **out, struct dtp_faults *faults);
/* Only in builds with CUDA, after the device has been made current. */
enum dtp_status dtp_communicator_nccl_create(const struct dtp_communicator_options *options,
                                             struct dtp_communicator **out, struct dtp_faults *faults);

/* Where `rank` is in its instance of a group, and a number of that instance; for those who implement this. */
struct dtp_group_place {
    uint32_t instance, index, first, ranks, stride; /* member i is rank first + i * stride */
};
struct dtp_group_place dtp_group_place(const struct dtp_program_group *group, uint32_t rank);
enum dtp_status dtp_groups_check(const struct dtp_communicator_options *options, struct dtp_faults *faults);
void dtp_communicator_count(struct dtp_communicator *communicator, const struct dtp_collective_args *args,
                            uint32_t ranks);

#endif
