/* Collectives between GPUs by NCCL. The world's communicator is made once, those of the groups are split from it. */
#include "communicator.h"

#include <cuda_runtime_api.h>
#include <nccl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Codes of NCCL's kind; those of ours are above. */
enum { CODE_UNSUPPORTED = 1000 };

struct nccl_communicator {
    struct dtp_communicator base;
    ncclComm_t world, *group; /* [group_count]; NULL for groups of one, the world's own where they are equal */
    uint32_t *ranks;          /* [group_count] */
    uint32_t group_count;
    atomic_bool aborted;
};

static struct nccl_communicator *own(struct dtp_communicator *communicator)
{
    return (struct nccl_communicator *)communicator;
}

static ncclDataType_t type_of(enum dtp_element element)
{
    return element == DTP_ELEMENT_BF16 ? ncclBfloat16 : ncclFloat32;
}

static int collective(struct dtp_communicator *communicator, const struct dtp_collective_args *args, void *stream)
{
    struct nccl_communicator *c = own(communicator);
    ncclComm_t comm = c->group[args->group];
    uint32_t ranks = c->ranks[args->group];
    size_t count = args->bytes / (args->element == DTP_ELEMENT_BF16 ? 2 : 4);
    dtp_communicator_count(communicator, args, ranks);
    if (ranks == 1)
        return args->input == args->result ? 0
                                           : (int)(cudaMemcpyAsync(args->result, args->input, args->bytes,
                                                                   cudaMemcpyDeviceToDevice, stream) == cudaSuccess
                                                       ? ncclSuccess
                                                       : ncclUnhandledCudaError);
    switch (args->collective) {
    case DTP_ALL_GATHER:
        return (int)ncclAllGather(args->input, args->result, count / ranks, type_of(args->element), comm, stream);
    case DTP_REDUCE_SCATTER:
        return (int)ncclReduceScatter(args->input, args->result, count / ranks, type_of(args->element), ncclSum, comm,
                                      stream);
    case DTP_ALL_REDUCE:
        return (int)ncclAllReduce(args->input, args->result, count, type_of(args->element), ncclSum, comm, stream);
    default: return CODE_UNSUPPORTED;
    }
}

static int poll_errors(struct dtp_communicator *communicator)
{
    struct nccl_communicator *c = own(communicator);
    ncclResult_t worst = ncclSuccess, code;
    for (uint32_t i = 0; i < c->group_count && worst == ncclSuccess; i++)
        if (c->group[i] && ncclCommGetAsyncError(c->group[i], &code) == ncclSuccess)
            worst = code;
    return (int)worst;
}

static void abort_all(struct dtp_communicator *communicator)
{
    struct nccl_communicator *c = own(communicator);
    if (atomic_exchange(&c->aborted, true))
        return;
    for (uint32_t i = 0; i < c->group_count; i++)
        if (c->group[i] && c->group[i] != c->world)
            ncclCommAbort(c->group[i]);
    ncclCommAbort(c->world);
}

static const char *error_text(struct dtp_communicator *communicator, int code)
{
    if (code == CODE_UNSUPPORTED)
        return "no step program uses that collective";
    const char *last = ncclGetLastError(own(communicator)->world);
    return last && last[0] ? last : ncclGetErrorString((ncclResult_t)code);
}

static void destroy(struct dtp_communicator *communicator)
{
    struct nccl_communicator *c = own(communicator);
    if (!atomic_load(&c->aborted)) {
        for (uint32_t i = 0; i < c->group_count; i++)
            if (c->group[i] && c->group[i] != c->world)
                ncclCommDestroy(c->group[i]);
        if (c->world)
            ncclCommDestroy(c->world);
    }
    free(c->group);
    free(c->ranks);
    free(c);
}

static const struct dtp_communicator_verbs verbs = {destroy, collective, poll_errors, abort_all, error_text};

/* The world's identity travels from rank 0 over the control connections. */
static enum dtp_status join_world(struct nccl_communicator *c, const struct dtp_communicator_options *options,
                                  struct dtp_faults *faults)
{
    ncclUniqueId id;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    ncclResult_t code = ncclSuccess;
    memset(&id, 0, sizeof id);
    if (options->ranks->rank == 0)
        code = ncclGetUniqueId(&id);
    enum dtp_status status = dtp_control_broadcast(options->control, &id, sizeof id, faults);
    if (status != DTP_OK)
        return status;
    if (code == ncclSuccess)
        code = ncclCommInitRankConfig(&c->world, (int)options->ranks->world, id, (int)options->ranks->rank, &config);
    if (code != ncclSuccess)
        return dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "NCCL: rank %u of %u: %s; NCCL_DEBUG=INFO says more",
                         options->ranks->rank, options->ranks->world, ncclGetErrorString(code));
    return DTP_OK;
}

static enum dtp_status split_groups(struct nccl_communicator *c, const struct dtp_communicator_options *options,
                                    struct dtp_faults *faults)
{
    for (uint32_t i = 0; i < options->group_count; i++) {
        struct dtp_group_place place = dtp_group_place(&options->groups[i], options->ranks->rank);
        ncclResult_t code = ncclSuccess;
        c->ranks[i] = place.ranks;
        if (place.ranks == options->ranks->world)
            c->group[i] = c->world;
        else if (place.ranks > 1)
            code = ncclCommSplit(c->world, (int)place.instance, (int)place.index, &c->group[i], NULL);
        if (code != ncclSuccess)
            return dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "NCCL: the group of %u ranks %u apart: %s", place.ranks,
                             place.stride, ncclGetErrorString(code));
    }
    return DTP_OK;
}

enum dtp_status dtp_communicator_nccl_create(const struct dtp_communicator_options *options,
                                             struct dtp_communicator **out, struct dtp_faults *faults)
{
    int version = 0;
    *out = NULL;
    enum dtp_status status = dtp_groups_check(options, faults);
    if (status != DTP_OK)
        return status;
    struct nccl_communicator *c = calloc(1, sizeof *c);
    if (c) {
        c->base.verbs = &verbs;
        c->group_count = options->group_count;
        c->group = calloc(options->group_count + 1, sizeof *c->group);
        c->ranks = calloc(options->group_count + 1, sizeof *c->ranks);
    }
    if (!c || !c->group || !c->ranks) {
        if (c)
            destroy(&c->base);
        return dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "no memory for a communicator");
    }
    ncclGetVersion(&version);
    snprintf(c->base.name, sizeof c->base.name, "NCCL %d.%d.%d", version / 10000, version / 100 % 100, version % 100);
    status = join_world(c, options, faults);
    if (status == DTP_OK)
        status = split_groups(c, options, faults);
    if (status != DTP_OK) {
        destroy(&c->base);
        return status;
    }
    *out = &c->base;
    return DTP_OK;
}
