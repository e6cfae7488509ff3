/* Collectives between GPUs by NCCL. The world's communicator is made once, those of the groups are split from it.
 *
 * What a plan may choose is not what NCCL promises: it limits CTAs, takes symmetric kernels (2.27) and copy engines
 * (2.28) where its own conditions hold, and else does what it always did, without a word. So each choice is proved on a
 * collective of the step before the first one. */
#include "ranks/communicator.h"

#include "base/append.h"
#include "base/clock.h"
#include "kernels/element.h"
#include "base/execution.h"
#include "ranks/nccl_exchange.h"

#include <cuda_runtime_api.h>
#include <nccl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Predictions know how many that are. */
_Static_assert(DTP_PUSH_TARGETS == DTP_PEERS_MOST, "ranks that store into each other's memory");

/* Codes of NCCL's kind; those of ours are above. */
enum { CODE_UNSUPPORTED = 1000, CODE_ABORTED };

/* The first NCCL that has windows. */
#define VERSION_WITH_WINDOWS 22700

/* A group as this rank is in it. */
struct member {
    uint32_t ranks, first, stride, index;
    bool windowed, copies, exchanges, pushes; /* pushes: what it exchanges is stored into peers' arenas */
#if NCCL_VERSION_CODE >= VERSION_WITH_WINDOWS
    ncclWindow_t window;
#endif
};

struct nccl_communicator {
    struct dtp_communicator base;
    ncclComm_t world, *group; /* [group_count]; NULL for groups of one, the world's own where they are equal */
    struct member *member;    /* [group_count] */
    struct dtp_communicator_choice choice;
    struct dtp_peer_arenas peers;
    int32_t *token; /* [group_count], dtp_nccl_group's; NULL where no arena is mapped */
    struct dtp_control *control;
    uint32_t group_count, world_ranks;
    atomic_bool aborted, gone; /* an abort has begun; it has ended */
    atomic_int inside;         /* calls of NCCL that use its communicators */
};

static struct nccl_communicator *own(struct dtp_communicator *communicator)
{
    return (struct nccl_communicator *)communicator;
}

/* Nothing is reduced, and all ranks of the group take part. */
static bool exchanges(const struct dtp_collective_args *args)
{
    return args->collective == DTP_SEND_RECV    ? args->shifts
           : args->collective == DTP_ALL_GATHER ? args->into_peers
                                                : args->collective == DTP_ALL_TO_ALL;
}

/* Parts that are no whole 16 bytes, which only tiny plans have, NCCL sends. */
static bool pushes(const struct nccl_communicator *c, const struct dtp_collective_args *args)
{
    const struct member *member = &c->member[args->group];
    const bool parts = args->collective == DTP_ALL_TO_ALL && !args->exchange.begins;
    return member->pushes && !args->by_library && (!parts || args->bytes / member->ranks % 16 == 0);
}

static int exchange(struct nccl_communicator *c, const struct dtp_collective_args *args, void *stream)
{
    const struct member *member = &c->member[args->group];
    struct dtp_nccl_group group = {.comm = c->group[args->group],
                                   .ranks = member->ranks,
                                   .first = member->first,
                                   .stride = member->stride,
                                   .index = member->index,
                                   .peers = pushes(c, args) ? &c->peers : NULL,
                                   .token = c->token ? c->token + args->group : NULL,
                                   .most_blocks = c->choice.max_ctas};
    if (args->exchange.begins)
        dtp_communicator_count_rows(&c->base, &args->exchange, member->index);
    else
        dtp_communicator_count(&c->base, args, member->ranks);
    return dtp_nccl_exchange(&group, args, (cudaStream_t)stream);
}

static int issue(struct dtp_communicator *communicator, const struct dtp_collective_args *args, void *stream)
{
    struct nccl_communicator *c = own(communicator);
    ncclComm_t comm = c->group[args->group];
    uint32_t ranks = c->member[args->group].ranks;
    size_t count = args->bytes / dtp_element_bytes(args->element);
    if (ranks > 1 && exchanges(args))
        return exchange(c, args, stream);
    dtp_communicator_count(communicator, args, ranks);
    if (args->collective == DTP_SEND_RECV) {
        int peer = (int)((args->peer - c->member[args->group].first) / c->member[args->group].stride);
        return (int)(args->receives ? ncclRecv(args->result, count, dtp_nccl_type(args->element), peer, comm, stream)
                                    : ncclSend(args->input, count, dtp_nccl_type(args->element), peer, comm, stream));
    }
    if (ranks == 1)
        return args->input == args->result ? 0
                                           : (int)(cudaMemcpyAsync(args->result, args->input, args->bytes,
                                                                   cudaMemcpyDeviceToDevice, stream) == cudaSuccess
                                                       ? ncclSuccess
                                                       : ncclUnhandledCudaError);
    switch (args->collective) {
    case DTP_ALL_GATHER:
        return (int)ncclAllGather(args->input, args->result, count / ranks, dtp_nccl_type(args->element), comm, stream);
    case DTP_REDUCE_SCATTER:
        return (int)ncclReduceScatter(args->input, args->result, count / ranks, dtp_nccl_type(args->element), ncclSum,
                                      comm, stream);
    case DTP_ALL_REDUCE:
        return (int)ncclAllReduce(args->input, args->result, count, dtp_nccl_type(args->element), ncclSum, comm,
                                  stream);
    default: return CODE_UNSUPPORTED;
    }
}

/* An abort frees the communicators, and comes from another thread than that which issues steps ahead: each call is
 * either made before it, or not. */
static bool enter(struct nccl_communicator *c)
{
    atomic_fetch_add(&c->inside, 1);
    if (!atomic_load(&c->aborted))
        return true;
    atomic_fetch_sub(&c->inside, 1);
    return false;
}

static void leave(struct nccl_communicator *c)
{
    atomic_fetch_sub(&c->inside, 1);
}

static int collective(struct dtp_communicator *communicator, const struct dtp_collective_args *args, void *stream)
{
    struct nccl_communicator *c = own(communicator);
    if (!enter(c))
        return CODE_ABORTED;
    int code = issue(communicator, args, stream);
    leave(c);
    return code;
}

static int poll_errors(struct dtp_communicator *communicator)
{
    struct nccl_communicator *c = own(communicator);
    ncclResult_t worst = ncclSuccess, code;
    if (!enter(c))
        return CODE_ABORTED;
    for (uint32_t i = 0; i < c->group_count && worst == ncclSuccess; i++)
        if (c->group[i] && ncclCommGetAsyncError(c->group[i], &code) == ncclSuccess)
            worst = code;
    leave(c);
    return (int)worst;
}

#define CALL_S                                                                                                         \
    1.0 /* that a call may take before its communicator is taken from it: the first connects, and may hang             \
         */

static void await(const atomic_bool *done, const atomic_int *none, double seconds)
{
    const struct timespec tick = {.tv_nsec = 1000000};
    for (double until_s = dtp_now_s() + seconds; dtp_now_s() < until_s; nanosleep(&tick, NULL))
        if (done ? atomic_load(done) : atomic_load(none) == 0)
            return;
}

static void abort_all(struct dtp_communicator *communicator)
{
    struct nccl_communicator *c = own(communicator);
    if (atomic_exchange(&c->aborted, true)) {
        await(&c->gone, NULL, 10 * CALL_S);
        return;
    }
    await(NULL, &c->inside, CALL_S);
    for (uint32_t i = 0; i < c->group_count; i++)
        if (c->group[i] && c->group[i] != c->world)
            ncclCommAbort(c->group[i]);
    ncclCommAbort(c->world);
    atomic_store(&c->gone, true);
}

static const char *error_text(struct dtp_communicator *communicator, int code)
{
    if (code == CODE_UNSUPPORTED)
        return "no step program uses that collective";
    if (code == CODE_ABORTED)
        return "the run is being ended";
    const char *last = NULL;
    if (enter(own(communicator))) {
        last = ncclGetLastError(own(communicator)->world);
        leave(own(communicator));
    }
    return last && last[0] ? last : ncclGetErrorString((ncclResult_t)code);
}

/* ---- proof ------------------------------------------------------------------------------------------------------- */

static enum dtp_status capture(struct dtp_communicator *communicator, const struct dtp_collective_args *args,
                               cudaStream_t stream, struct dtp_collective_launch *out, struct dtp_faults *faults)
{
    cudaGraph_t graph = NULL;
    int code = collective(communicator, args, stream); /* connects, which a capture must not */
    cudaError_t error = code ? cudaSuccess : cudaStreamSynchronize(stream);
    if (!code && error == cudaSuccess)
        error = cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal);
    if (!code && error == cudaSuccess) {
        code = collective(communicator, args, stream);
        error = cudaStreamEndCapture(stream, &graph);
    }
    bool read = !code && error == cudaSuccess && dtp_collective_launch_read(graph, out);
    if (graph)
        cudaGraphDestroy(graph);
    if (code || error != cudaSuccess)
        return dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "%s could not be tried: %s",
                         dtp_collective_text(args->collective),
                         code ? error_text(communicator, code) : cudaGetErrorString(error));
    return read ? DTP_OK
                : dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0,
                            "how NCCL carries %s cannot be read from this driver (%s); leave collective_ctas, "
                            "symmetric_windows, gather_engine and reduce_engine to NCCL",
                            dtp_collective_text(args->collective), out->failed);
}

/* The plan's choice that gave collectives to copy engines. */
static const char *engine_of(uint32_t copies)
{
    return copies & 1u << DTP_ALL_GATHER ? "gather_engine copy" : "reduce_engine copy";
}

static enum dtp_status judge(const struct nccl_communicator *c, const struct dtp_collective_args *args,
                             const struct dtp_collective_launch *launch, struct dtp_faults *faults)
{
    const struct member *member = &c->member[args->group];
    const char *what = dtp_collective_text(args->collective);
    if (member->copies && launch->kernels > 0)
        return dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0,
                         "%s: %s carries %s by kernel %s on %u SMs all the same; take sm",
                         engine_of(1u << args->collective), c->base.name, what, launch->kernel, launch->ctas);
    if (member->copies)
        return DTP_OK;
    if (member->windowed && !strstr(launch->kernel, "Sym"))
        return dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0,
                         "symmetric_windows: %s carries %s by kernel %s, which is no symmetric one; leave them out",
                         c->base.name, what, launch->kernel);
    if (c->choice.max_ctas && launch->ctas > c->choice.max_ctas)
        return dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0,
                         "collective_ctas: %s carries %s on %u thread blocks, not on at most %u; leave it to NCCL",
                         c->base.name, what, launch->ctas, c->choice.max_ctas);
    return DTP_OK;
}

static void remember(struct nccl_communicator *c, const struct dtp_collective_args *args,
                     const struct dtp_collective_launch *launch)
{
    char *ways = c->base.ways;
    const size_t room = sizeof c->base.ways;
    dtp_append_part(ways, room, ", ", "%s of %.1f MiB over %u GPUs by ", dtp_collective_text(args->collective),
                    (double)args->bytes / 0x1p20, c->member[args->group].ranks);
    if (launch->kernels)
        dtp_append(ways, room, "%s on %u SMs", launch->kernel, launch->ctas);
    else
        dtp_append(ways, room, "%u copies", launch->copies);
}

/* What was tried is no part of what the run sends. */
static enum dtp_status prove(struct dtp_communicator *communicator, const struct dtp_collective_args *args,
                             void *stream, struct dtp_faults *faults)
{
    struct nccl_communicator *c = own(communicator);
    const struct dtp_communicator_choice *choice = &c->choice;
    struct dtp_collective_launch launch;
    if (c->member[args->group].ranks == 1 || !(choice->max_ctas || choice->windows || choice->copies))
        return DTP_OK;
    if (exchanges(args) && pushes(c, args)) /* which are ours, not NCCL's, of as many thread blocks as they are told */
        return DTP_OK;
    const struct dtp_communicator counted = *communicator;
    enum dtp_status status = capture(communicator, args, stream, &launch, faults);
    *communicator = counted;
    if (status == DTP_OK)
        status = judge(c, args, &launch, faults);
    if (status == DTP_OK)
        remember(c, args, &launch);
    return status;
}

/* The first transfer of a pair connects it, which holds up the host until both ends have come: all pairs of a
 * communicator as one group of calls, communicator by communicator, in which order all ranks go through them. */
static enum dtp_status connect_transfers(struct dtp_communicator *communicator, const struct dtp_collective_args *args,
                                         size_t count, void *stream, struct dtp_faults *faults)
{
    struct nccl_communicator *c = own(communicator);
    const struct dtp_communicator counted = *communicator;
    int code = 0;
    for (uint32_t group = 0; group < c->group_count && !code; group++) {
        code = (int)ncclGroupStart();
        for (size_t i = 0; i < count && !code; i++) {
            struct dtp_collective_args one = args[i];
            one.bytes = one.element == DTP_ELEMENT_BF16 ? 2 : 4;
            if (one.group == group)
                code = collective(communicator, &one, stream);
        }
        ncclResult_t ended = ncclGroupEnd();
        code = code ? code : (int)ended;
    }
    bool done = !code && cudaStreamSynchronize((cudaStream_t)stream) == cudaSuccess;
    memcpy(communicator->calls, counted.calls, sizeof counted.calls);
    memcpy(communicator->sent_bytes, counted.sent_bytes, sizeof counted.sent_bytes);
    if (done)
        return DTP_OK;
    return dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "NCCL: stages could not be connected: %s",
                     code ? error_text(communicator, code) : "a transfer failed on the GPU");
}

/* ---- coming and going -------------------------------------------------------------------------------------------- */

static void forget_windows(struct nccl_communicator *c)
{
#if NCCL_VERSION_CODE >= VERSION_WITH_WINDOWS
    for (uint32_t i = 0; c->member && i < c->group_count; i++)
        if (c->member[i].window)
            ncclCommWindowDeregister(c->group[i], c->member[i].window);
#else
    (void)c;
#endif
}

static void destroy(struct dtp_communicator *communicator)
{
    struct nccl_communicator *c = own(communicator);
    if (atomic_load(&c->aborted)) {
        await(&c->gone, NULL, 10 * CALL_S);
    } else {
        forget_windows(c);
        for (uint32_t i = 0; c->group && i < c->group_count; i++)
            if (c->group[i] && c->group[i] != c->world)
                ncclCommDestroy(c->group[i]);
        if (c->world)
            ncclCommDestroy(c->world);
        /* a rank frees its arena once no other has it mapped; whoever does not come is told of by its own connection */
        struct dtp_faults ignored = {.count = 0};
        const bool mapped = c->peers.at;
        dtp_peer_arenas_close(&c->peers, c->world_ranks);
        if (mapped)
            dtp_control_barrier(c->control, &ignored);
    }
    cudaFree(c->token);
    free(c->group);
    free(c->member);
    free(c);
}

static const struct dtp_communicator_verbs verbs = {destroy,     collective, prove,     connect_transfers,
                                                    poll_errors, abort_all,  error_text};

static ncclConfig_t configure(const struct dtp_communicator_choice *choice, uint32_t ctas, bool copies)
{
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    if (!ctas)
        ctas = choice->max_ctas;
    if (ctas) /* p2p channels are as many, a power of two (ncclTopoComputeP2pChannels) */
        config.maxCTAs = (int)ctas;
#if NCCL_VERSION_CODE >= DTP_NCCL_WITH_COPIES
    if (copies)
        config.CTAPolicy = NCCL_CTA_POLICY_ZERO;
#endif
    (void)copies;
    return config;
}

/* The world's identity travels from rank 0 over the control connections. */
static enum dtp_status join_world(struct nccl_communicator *c, const struct dtp_communicator_options *options,
                                  struct dtp_faults *faults)
{
    ncclUniqueId id;
    ncclConfig_t config = configure(&options->choice, 0, false);
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

static bool inside_a_node(const struct dtp_group_place *place, uint32_t local_world)
{
    uint32_t last = place->first + (place->ranks - 1) * place->stride;
    return local_world > 0 && place->first / local_world == last / local_world;
}

static enum dtp_status split_groups(struct nccl_communicator *c, const struct dtp_communicator_options *options,
                                    struct dtp_faults *faults)
{
    bool world_taken = false;
    for (uint32_t i = 0; i < options->group_count; i++) {
        struct dtp_group_place place = dtp_group_place(&options->groups[i], options->ranks->rank);
        struct member *member = &c->member[i];
        ncclResult_t code = ncclSuccess;
        member->ranks = place.ranks, member->first = place.first, member->stride = place.stride;
        member->index = place.index;
        member->copies = i < 32 && options->copy_groups & 1u << i;
        member->windowed = member->copies || (options->choice.windows && place.ranks > 1 &&
                                              inside_a_node(&place, options->ranks->local_world));
        ncclConfig_t config = configure(&options->choice, options->groups[i].ctas, member->copies);
        if (place.ranks == options->ranks->world && !world_taken && !member->copies && !options->groups[i].ctas) {
            c->group[i] = c->world;
            world_taken = true;
        } else if (place.ranks > 1) {
            code = ncclCommSplit(c->world, (int)place.instance, (int)place.index, &c->group[i], &config);
        }
        if (code != ncclSuccess)
            return dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "NCCL: the group of %u ranks %u apart: %s", place.ranks,
                             place.stride, ncclGetErrorString(code));
    }
    return DTP_OK;
}

/* The whole arena, of which every rank has every buffer at the same place. */
static enum dtp_status register_arena(struct nccl_communicator *c, struct dtp_faults *faults)
{
#if NCCL_VERSION_CODE >= VERSION_WITH_WINDOWS
    uint64_t unit = NCCL_WIN_REQUIRED_ALIGNMENT, bytes = (c->choice.arena_bytes + unit - 1) / unit * unit;
    for (uint32_t i = 0; i < c->group_count; i++) {
        if (!c->member[i].windowed || c->member[i].ranks == 1)
            continue;
        ncclResult_t code =
            ncclCommWindowRegister(c->group[i], c->choice.arena, bytes, &c->member[i].window, NCCL_WIN_COLL_SYMMETRIC);
        if (code != ncclSuccess || !c->member[i].window)
            return dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0,
                             "%s: %s cannot map %.2f GiB of %u GPUs into each other (%s); NVLink or PCIe peer access "
                             "and cuMem are needed (NCCL_CUMEM_ENABLE, NCCL_WIN_ENABLE not 0)",
                             c->choice.windows ? "symmetric_windows" : engine_of(c->choice.copies), c->base.name,
                             (double)bytes / 0x1p30, c->member[i].ranks,
                             code == ncclSuccess ? "no window" : ncclGetErrorString(code));
    }
#else
    (void)c, (void)faults;
#endif
    return DTP_OK;
}

/* Windows and copies have arenas that CUDA IPC does not map. */
static bool maps_arenas(const struct dtp_communicator_choice *choice)
{
    return choice->arena && !choice->windows && !choice->copies && !choice->apart;
}

/* Why what is exchanged in a group cannot be stored into peers' arenas, as far as every rank can tell by itself; NULL:
 * it may. */
static const char *why_sent(const struct dtp_communicator_options *options, uint32_t group)
{
    const struct dtp_group_place place = dtp_group_place(&options->groups[group], options->ranks->rank);
    if (options->choice.apart)
        return "ranks pretend nodes or share GPUs";
    if (!maps_arenas(&options->choice))
        return "the arena is one of NCCL's windows, or none";
    if (place.ranks > DTP_PUSH_TARGETS)
        return "a group has too many ranks";
    return inside_a_node(&place, options->ranks->local_world) ? NULL : "a group has ranks of several machines";
}

/* All ranks call it, those of stages that exchange nothing too. */
static enum dtp_status map_peers(struct nccl_communicator *c, const struct dtp_communicator_options *options,
                                 struct dtp_faults *faults)
{
    const struct dtp_communicator_choice *choice = &options->choice;
    const uint32_t world = options->ranks->world;
    bool *wanted = calloc(world, sizeof *wanted);
    if (!wanted)
        return dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "no memory for the arenas of other ranks");
    for (uint32_t i = 0; i < c->group_count; i++) {
        struct member *member = &c->member[i];
        member->exchanges = i < 32 && options->exchange_groups & 1u << i && member->ranks > 1;
        member->pushes = member->exchanges && !why_sent(options, i);
        for (uint32_t m = 0; m < member->ranks && member->pushes; m++)
            wanted[member->first + m * member->stride] = true;
    }
    const bool maps = maps_arenas(choice);
    enum dtp_status status =
        maps ? dtp_peer_arenas_map(options->ranks, options->control, choice->arena, wanted, &c->peers, faults) : DTP_OK;
    free(wanted);
    for (uint32_t i = 0; i < c->group_count; i++)
        c->member[i].pushes = c->member[i].pushes && !c->peers.why[0];
    const size_t token_bytes = c->group_count * sizeof *c->token;
    if (status == DTP_OK && maps && !c->peers.why[0] && token_bytes &&
        (cudaMalloc((void **)&c->token, token_bytes) != cudaSuccess ||
         cudaMemset(c->token, 0, token_bytes) != cudaSuccess))
        status = dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "no GPU memory for a communicator");
    return status;
}

/* How groups exchange, for logs: once where all do alike. */
static void remember_exchanges(struct nccl_communicator *c, const struct dtp_communicator_options *options)
{
    char *ways = c->base.ways;
    for (uint32_t i = 0; i < c->group_count; i++) {
        char text[160] = "exchanges by stores and copies into peers' memory";
        if (!c->member[i].exchanges)
            continue;
        if (!c->member[i].pushes)
            snprintf(text, sizeof text, "exchanges by NCCL's transfers: %s",
                     c->peers.why[0] ? c->peers.why : why_sent(options, i));
        if (!strstr(ways, text))
            dtp_append_part(ways, sizeof c->base.ways, ", ", "%s", text);
    }
}

/* Both the NCCL that this was built with and the one that runs must have it. */
static enum dtp_status check_version(const struct dtp_communicator_choice *choice, int running, const char *name,
                                     struct dtp_faults *faults)
{
    int least = running < NCCL_VERSION_CODE ? running : NCCL_VERSION_CODE;
    int wanted = choice->copies ? DTP_NCCL_WITH_COPIES : choice->windows ? VERSION_WITH_WINDOWS : 0;
    if (least >= wanted)
        return DTP_OK;
    return dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "%s needs NCCL 2.%d; this is %s, built with %d.%d.%d",
                     choice->copies ? engine_of(choice->copies) : "symmetric_windows", wanted / 100 % 100, name,
                     NCCL_MAJOR, NCCL_MINOR, NCCL_PATCH);
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
        c->world_ranks = options->ranks->world;
        c->control = options->control;
        c->group = calloc(options->group_count + 1, sizeof *c->group);
        c->member = calloc(options->group_count + 1, sizeof *c->member);
        c->choice = options->choice;
    }
    if (!c || !c->group || !c->member) {
        if (c)
            destroy(&c->base);
        return dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "no memory for a communicator");
    }
    ncclGetVersion(&version);
    snprintf(c->base.name, sizeof c->base.name, "NCCL %d.%d.%d", version / 10000, version / 100 % 100, version % 100);
    status = check_version(&options->choice, version, c->base.name, faults);
    if (status == DTP_OK)
        status = join_world(c, options, faults);
    if (status == DTP_OK)
        status = split_groups(c, options, faults);
    if (status == DTP_OK)
        status = register_arena(c, faults);
    if (status == DTP_OK)
        status = map_peers(c, options, faults);
    if (status == DTP_OK)
        remember_exchanges(c, options);
    if (status != DTP_OK) {
        destroy(&c->base);
        return status;
    }
    *out = &c->base;
    return DTP_OK;
}
