#include "ranks/nccl_exchange.h"

#include "kernels/element.h"

/* What a rank pushes: pieces are launched as many at a time as a kernel's arguments hold. */
struct push {
    struct dtp_push_rows_args args;
    cudaStream_t stream;
    cudaError_t code;
};

static void launch(struct push *push)
{
    if (push->args.pieces && push->code == cudaSuccess)
        push->code = (cudaError_t)dtp_cuda_push_rows(NULL, &push->args, push->stream);
    push->args.pieces = push->args.count = 0;
}

static void add_piece(struct push *push, const struct dtp_exchange_piece *piece, uint32_t target)
{
    if (!piece->rows)
        return;
    if (push->args.pieces == DTP_PUSH_PIECES)
        launch(push);
    push->args.piece[push->args.pieces++] =
        (struct dtp_push_piece){(uint32_t)piece->from, (uint32_t)piece->to, push->args.count, target};
    push->args.count += (uint32_t)piece->rows;
}

/* Where memory of this rank's arena lies in a member's. */
static void *in_arena(const struct dtp_nccl_group *group, uint32_t member, void *of)
{
    if (member == group->index)
        return of;
    return group->peers->at[group->first + member * group->stride] + ((char *)of - group->peers->own);
}

/* This rank's rows to itself and, where arenas are mapped, to all others before: each begins with the one behind it,
 * so that no two store into the same rank at once. */
static ncclResult_t push_rows(const struct dtp_nccl_group *group, const struct dtp_collective_args *args,
                              cudaStream_t stream)
{
    const struct dtp_exchange *x = &args->exchange;
    struct push push = {.stream = stream};
    push.args.rows = args->input, push.args.more = x->more, push.args.row_bytes = x->row_bytes;
    push.args.most_blocks = group->most_blocks;
    for (uint32_t i = group->peers ? 1 : group->ranks; i <= group->ranks; i++) {
        const uint32_t member = (group->index + i) % group->ranks, target = i % DTP_PUSH_TARGETS;
        push.args.result[target] = in_arena(group, member, args->result);
        push.args.more_result[target] = x->more ? in_arena(group, member, x->more_result) : NULL;
        for (uint32_t e = 0; e < x->experts / x->ranks; e++) {
            const struct dtp_exchange_piece piece = dtp_exchange_piece(x, group->index, member, e);
            add_piece(&push, &piece, target);
        }
    }
    launch(&push);
    return push.code == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
}

#define PART_ROW_BYTES 4096u /* at most: the kernel's rows of a part, which are no rows of anything else */

/* Part j of the input to member j, where it is part `index`. */
static ncclResult_t push_parts(const struct dtp_nccl_group *group, const struct dtp_collective_args *args,
                               cudaStream_t stream)
{
    const uint64_t part = args->bytes / group->ranks;
    uint32_t row = PART_ROW_BYTES;
    while (part % row && row > 16)
        row /= 2;
    const uint64_t rows = part / row;
    struct push push = {.stream = stream};
    if (part % row || args->bytes / row > UINT32_MAX)
        return ncclInvalidArgument;
    push.args.rows = args->input, push.args.row_bytes = row, push.args.most_blocks = group->most_blocks;
    for (uint32_t i = 1; i <= group->ranks; i++) {
        const uint32_t member = (group->index + i) % group->ranks, target = i % DTP_PUSH_TARGETS;
        const struct dtp_exchange_piece piece = {member * rows, group->index * rows, rows};
        push.args.result[target] = in_arena(group, member, args->result);
        add_piece(&push, &piece, target);
    }
    launch(&push);
    return push.code == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
}

static ncclResult_t copy_to_next(const struct dtp_nccl_group *group, const struct dtp_collective_args *args,
                                 cudaStream_t stream)
{
    void *to = in_arena(group, (group->index + 1) % group->ranks, args->result);
    return cudaMemcpyAsync(to, args->input, args->bytes, cudaMemcpyDeviceToDevice, stream) == cudaSuccess
               ? ncclSuccess
               : ncclUnhandledCudaError;
}

/* This rank's part to its place in all of them. */
static ncclResult_t copy_to_all(const struct dtp_nccl_group *group, const struct dtp_collective_args *args,
                                cudaStream_t stream)
{
    const uint64_t part = args->bytes / group->ranks;
    cudaError_t error = cudaSuccess;
    for (uint32_t i = 1; i <= group->ranks && error == cudaSuccess; i++) {
        const uint32_t member = (group->index + i) % group->ranks;
        char *to = (char *)in_arena(group, member, args->result) + group->index * part;
        if (member != group->index || to != args->input)
            error = cudaMemcpyAsync(to, args->input, part, cudaMemcpyDeviceToDevice, stream);
    }
    return error == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
}

/* ---- by NCCL ----------------------------------------------------------------------------------------------------- */

ncclDataType_t dtp_nccl_type(enum dtp_element element)
{
    switch (element) {
    case DTP_ELEMENT_BF16: return ncclBfloat16;
    case DTP_ELEMENT_FP16: return ncclFloat16;
    case DTP_ELEMENT_INT8: return ncclUint8;
    default: return ncclFloat32;
    }
}

/* Both ends of a rank as one group of calls, so that none waits for the other. */
static ncclResult_t shift_around(const struct dtp_nccl_group *group, const struct dtp_collective_args *args,
                                 cudaStream_t stream)
{
    const size_t count = args->bytes / dtp_element_bytes(args->element);
    const ncclDataType_t type = dtp_nccl_type(args->element);
    const int ranks = (int)group->ranks, index = (int)group->index;
    ncclResult_t code = ncclGroupStart();
    if (code == ncclSuccess)
        code = ncclSend(args->input, count, type, (index + 1) % ranks, group->comm, stream);
    if (code == ncclSuccess)
        code = ncclRecv(args->result, count, type, (index + ranks - 1) % ranks, group->comm, stream);
    ncclResult_t ended = ncclGroupEnd();
    return code == ncclSuccess ? ended : code;
}

/* Each expert's rows are a transfer of their own, in the same order at both ends. */
static ncclResult_t send_pieces(const struct dtp_nccl_group *group, const struct dtp_exchange *x, const char *input,
                                char *result, uint64_t row_bytes, cudaStream_t stream)
{
    ncclResult_t code = ncclSuccess;
    for (uint32_t peer = 0; peer < x->ranks; peer++)
        for (uint32_t e = 0; e < x->experts / x->ranks && peer != group->index && code == ncclSuccess; e++) {
            struct dtp_exchange_piece away = dtp_exchange_piece(x, group->index, peer, e);
            struct dtp_exchange_piece here = dtp_exchange_piece(x, peer, group->index, e);
            if (away.rows)
                code = ncclSend(input + away.from * row_bytes, away.rows * row_bytes, ncclInt8, (int)peer, group->comm,
                                stream);
            if (here.rows && code == ncclSuccess)
                code = ncclRecv(result + here.to * row_bytes, here.rows * row_bytes, ncclInt8, (int)peer, group->comm,
                                stream);
        }
    return code;
}

static ncclResult_t send_rows(const struct dtp_nccl_group *group, const struct dtp_collective_args *args,
                              cudaStream_t stream)
{
    const struct dtp_exchange *x = &args->exchange;
    ncclResult_t code = ncclGroupStart();
    if (code == ncclSuccess)
        code = send_pieces(group, x, args->input, args->result, x->row_bytes, stream);
    if (code == ncclSuccess && x->more)
        code = send_pieces(group, x, x->more, x->more_result, x->more_bytes, stream);
    ncclResult_t ended = ncclGroupEnd();
    return code == ncclSuccess ? ended : code;
}

static ncclResult_t send(const struct dtp_nccl_group *group, const struct dtp_collective_args *args,
                         cudaStream_t stream)
{
    if (args->collective == DTP_SEND_RECV)
        return shift_around(group, args, stream);
    if (args->collective == DTP_ALL_GATHER)
        return ncclAllGather(args->input, args->result, args->bytes / dtp_element_bytes(args->element) / group->ranks,
                             dtp_nccl_type(args->element), group->comm, stream);
    if (args->exchange.begins) {
        ncclResult_t code = send_rows(group, args, stream);
        return code == ncclSuccess ? push_rows(group, args, stream) : code;
    }
#if NCCL_VERSION_CODE >= DTP_NCCL_WITH_COPIES
    const size_t count = args->bytes / dtp_element_bytes(args->element) / group->ranks;
    return ncclAlltoAll(args->input, args->result, count, dtp_nccl_type(args->element), group->comm, stream);
#else
    return ncclInvalidUsage;
#endif
}

/* ---- both -------------------------------------------------------------------------------------------------------- */

/* On each rank's stream: nothing behind it begins before all have come to it. By NCCL, so that ranks that are lost end
 * the others as in any collective. */
static ncclResult_t wait_for_all(const struct dtp_nccl_group *group, cudaStream_t stream)
{
    return ncclAllReduce(group->token, group->token, 1, ncclInt32, ncclMax, group->comm, stream);
}

/* A peer's memory is stored into once it has come here itself, and read there once all have stored. */
int dtp_nccl_exchange(const struct dtp_nccl_group *group, const struct dtp_collective_args *args, cudaStream_t stream)
{
    if (args->exchange.more && args->exchange.more_bytes != sizeof(float))
        return (int)ncclInvalidArgument;
    if (!group->peers)
        return (int)send(group, args, stream);
    ncclResult_t code = wait_for_all(group, stream);
    if (code == ncclSuccess)
        code = args->collective == DTP_SEND_RECV    ? copy_to_next(group, args, stream)
               : args->collective == DTP_ALL_GATHER ? copy_to_all(group, args, stream)
               : args->exchange.begins              ? push_rows(group, args, stream)
                                                    : push_parts(group, args, stream);
    if (code == ncclSuccess)
        code = wait_for_all(group, stream);
    return (int)code;
}
