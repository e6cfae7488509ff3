/* Collectives between processes of one host through a segment of shared memory.
 *
 * Each rank has a slot; a collective copies what fits into the slots, meets its group at a barrier, reads what it needs
 * from the others' slots and meets again, until all is moved. Sums run over the members in their order and in double,
 * so every rank gets the same bits, and so does a run with the ranks started otherwise. */
#include "ranks/communicator.h"

#include "kernels/element.h"
#include "ranks/lane.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define SLOT_BYTES (1u << 20)
#define SPINS 2000 /* before a waiting rank sleeps, where each has a core to itself */
enum { CODE_ABORTED = 1, CODE_UNSUPPORTED, CODE_UNEVEN };

/* Sense-reversing barrier of one instance of a group, on a cache line of its own. */
struct meeting {
    _Alignas(64) atomic_uint come, turn;
};

/* Whom the bytes in a rank's slot are for while it sends: 1 + that rank; 0: nobody, they were taken. */
struct mailbox {
    _Alignas(64) atomic_uint full_for;
};

struct shared {
    atomic_bool aborted;
    _Alignas(
        4096) unsigned char rest[]; /* meetings [groups][world], mailboxes [groups][world], then slots: of
                                       collectives [world], of transfers [groups][world], mapped as they are used */
};

struct host_communicator {
    struct dtp_communicator base;
    struct dtp_ranks ranks;
    struct dtp_program_group *groups;
    struct shared *shared;
    size_t mapped_bytes, mailboxes_offset, slots_offset;
    uint32_t spins;
};

static struct host_communicator *own(struct dtp_communicator *communicator)
{
    return (struct host_communicator *)communicator;
}

static struct meeting *meeting_of(const struct host_communicator *c, uint32_t group, uint32_t instance)
{
    return (struct meeting *)c->shared->rest + (size_t)group * c->ranks.world + instance;
}

static unsigned char *slot_of(const struct host_communicator *c, uint32_t rank)
{
    return c->shared->rest + c->slots_offset + (size_t)rank * SLOT_BYTES;
}

/* A rank has a mailbox for each group, as it may be sending in several at once. */
static atomic_uint *mailbox_of(const struct host_communicator *c, uint32_t group, uint32_t rank)
{
    size_t index = (size_t)group * c->ranks.world + rank;
    return &((struct mailbox *)(c->shared->rest + c->mailboxes_offset) + index)->full_for;
}

static unsigned char *transfer_slot_of(const struct host_communicator *c, uint32_t group, uint32_t rank)
{
    return slot_of(c, c->ranks.world) + ((size_t)group * c->ranks.world + rank) * SLOT_BYTES;
}

/* ---- meeting ----------------------------------------------------------------------------------------------------- */

/* futex(2) of memory that processes share, for where more threads wait than there are cores: one that looked again and
 * again would keep from computing whoever it waits for. */
#define FUTEX_WAIT 0
#define FUTEX_WAKE 1
#define LOOK_AGAIN_NS 20000000 /* whether a rank gave up */

static void sleep_while(atomic_uint *word, unsigned value)
{
    const struct timespec pause = {.tv_nsec = LOOK_AGAIN_NS};
    syscall(SYS_futex, word, FUTEX_WAIT, value, &pause, NULL, 0);
}

static void set_and_wake(atomic_uint *word, unsigned value)
{
    atomic_store(word, value);
    syscall(SYS_futex, word, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
}

static int meet(struct host_communicator *c, uint32_t group, const struct dtp_group_place *place)
{
    struct meeting *m = meeting_of(c, group, place->instance);
    unsigned turn = atomic_load(&m->turn);
    if (atomic_fetch_add(&m->come, 1) + 1 == place->ranks) {
        atomic_store(&m->come, 0);
        set_and_wake(&m->turn, turn + 1);
        return 0;
    }
    for (uint32_t spins = 0; atomic_load(&m->turn) == turn; spins++) {
        if (atomic_load(&c->shared->aborted))
            return CODE_ABORTED;
        if (spins < c->spins)
            sched_yield();
        else
            sleep_while(&m->turn, turn);
    }
    return 0;
}

static int await_mailbox(struct host_communicator *c, uint32_t group, uint32_t rank, unsigned wanted)
{
    atomic_uint *mailbox = mailbox_of(c, group, rank);
    for (unsigned now = atomic_load(mailbox); now != wanted; now = atomic_load(mailbox)) {
        if (atomic_load(&c->shared->aborted))
            return CODE_ABORTED;
        sleep_while(mailbox, now);
    }
    return 0;
}

static void fill_mailbox(struct host_communicator *c, uint32_t group, uint32_t rank, unsigned value)
{
    set_and_wake(mailbox_of(c, group, rank), value);
}

/* ---- transfers --------------------------------------------------------------------------------------------------- */

/* Slot by slot, each of which the other end empties before it is filled again: a sender is through when all is taken.
 */
static int send_to(struct host_communicator *c, const struct dtp_collective_args *args)
{
    uint32_t rank = c->ranks.rank;
    int code = 0;
    for (uint64_t at = 0; code == 0 && at < args->bytes; at += SLOT_BYTES) {
        uint64_t bytes = args->bytes - at < SLOT_BYTES ? args->bytes - at : SLOT_BYTES;
        memcpy(transfer_slot_of(c, args->group, rank), (const unsigned char *)args->input + at, bytes);
        fill_mailbox(c, args->group, rank, 1 + args->peer);
        code = await_mailbox(c, args->group, rank, 0);
    }
    return code;
}

static int receive_from(struct host_communicator *c, const struct dtp_collective_args *args)
{
    int code = 0;
    for (uint64_t at = 0; code == 0 && at < args->bytes; at += SLOT_BYTES) {
        uint64_t bytes = args->bytes - at < SLOT_BYTES ? args->bytes - at : SLOT_BYTES;
        code = await_mailbox(c, args->group, args->peer, 1 + c->ranks.rank);
        if (code != 0)
            return code;
        memcpy((unsigned char *)args->result + at, transfer_slot_of(c, args->group, args->peer), bytes);
        fill_mailbox(c, args->group, args->peer, 0);
    }
    return code;
}

/* Each member sends to the next and receives from the one before, slot by slot: its neighbour takes what is in its slot
 * before that is filled again. A member takes first and waits then for its own to be taken, so that a ring of any
 * length goes on. */
static int shift_around(struct host_communicator *c, const struct dtp_collective_args *args)
{
    const struct dtp_group_place place = dtp_group_place(&c->groups[args->group], c->ranks.rank);
    uint32_t rank = c->ranks.rank, group = args->group, last = place.ranks - 1;
    uint32_t next = place.first + (place.index == last ? 0 : place.index + 1) * place.stride;
    uint32_t before = place.first + (place.index == 0 ? last : place.index - 1) * place.stride;
    int code = 0;
    for (uint64_t at = 0; code == 0 && at < args->bytes; at += SLOT_BYTES) {
        uint64_t bytes = args->bytes - at < SLOT_BYTES ? args->bytes - at : SLOT_BYTES;
        memcpy(transfer_slot_of(c, group, rank), (const unsigned char *)args->input + at, bytes);
        fill_mailbox(c, group, rank, 1 + next);
        code = await_mailbox(c, group, before, 1 + rank);
        if (code != 0)
            return code;
        memcpy((unsigned char *)args->result + at, transfer_slot_of(c, group, before), bytes);
        fill_mailbox(c, group, before, 0);
        code = await_mailbox(c, group, rank, 0);
    }
    return code;
}

struct transfer {
    struct host_communicator *c;
    struct dtp_collective_args args;
};

static int carry(void *argument)
{
    const struct transfer *transfer = argument;
    if (transfer->args.shifts)
        return shift_around(transfer->c, &transfer->args);
    return transfer->args.receives ? receive_from(transfer->c, &transfer->args) : send_to(transfer->c, &transfer->args);
}

/* Makes the transfer on its stream's lane, where it has one, or at once. */
static int transfer(struct host_communicator *c, const struct dtp_collective_args *args, struct dtp_lane *lane)
{
    struct transfer transfer = {c, *args};
    _Static_assert(sizeof transfer <= DTP_LANE_ARGUMENT_BYTES, "argument of a lane");
    return lane ? dtp_lane_call(lane, carry, &transfer, sizeof transfer) : carry(&transfer);
}

/* ---- the collectives --------------------------------------------------------------------------------------------- */

struct move {
    struct host_communicator *c;
    const struct dtp_collective_args *args;
    struct dtp_group_place place;
    uint64_t element_bytes, shard_bytes;
};

static const unsigned char *member_slot(const struct move *move, uint32_t member)
{
    return slot_of(move->c, move->place.first + member * move->place.stride);
}

static int gather(const struct move *move)
{
    unsigned char *mine = slot_of(move->c, move->c->ranks.rank), *result = move->args->result;
    int code = 0;
    for (uint64_t at = 0; code == 0 && at < move->shard_bytes; at += SLOT_BYTES) {
        uint64_t bytes = move->shard_bytes - at < SLOT_BYTES ? move->shard_bytes - at : SLOT_BYTES;
        memcpy(mine, (const unsigned char *)move->args->input + at, bytes);
        code = meet(move->c, move->args->group, &move->place);
        for (uint32_t i = 0; code == 0 && i < move->place.ranks; i++)
            memcpy(result + i * move->shard_bytes + at, member_slot(move, i), bytes);
        if (code == 0)
            code = meet(move->c, move->args->group, &move->place);
    }
    return code;
}

/* result[i] = sum over members of element `offset + i` of their slots */
static void add_up(const struct move *move, uint64_t offset, uint64_t count, void *result, uint64_t result_offset)
{
    for (uint64_t i = 0; i < count; i++) {
        double sum = 0;
        for (uint32_t member = 0; member < move->place.ranks; member++)
            sum += dtp_load(member_slot(move, member), move->args->element, offset + i);
        dtp_store(result, move->args->element, result_offset + i, sum);
    }
}

/* Piece `offset` of each member's slot, to the same place in its part of the result. */
static void take(const struct move *move, uint64_t offset, uint64_t count, uint64_t result_offset)
{
    const uint64_t element = move->element_bytes;
    for (uint32_t i = 0; i < move->place.ranks; i++)
        memcpy((unsigned char *)move->args->result + i * move->shard_bytes + result_offset * element,
               member_slot(move, i) + offset * element, count * element);
}

/* A slot holds a piece of every member's shard, which that one adds up or takes as it is. */
static int scatter(const struct move *move)
{
    unsigned char *mine = slot_of(move->c, move->c->ranks.rank);
    uint64_t shard = move->shard_bytes / move->element_bytes;
    uint64_t piece = SLOT_BYTES / move->place.ranks / move->element_bytes;
    int code = 0;
    for (uint64_t at = 0; code == 0 && at < shard; at += piece) {
        uint64_t count = shard - at < piece ? shard - at : piece;
        for (uint32_t i = 0; i < move->place.ranks; i++)
            memcpy(mine + i * count * move->element_bytes,
                   (const unsigned char *)move->args->input + i * move->shard_bytes + at * move->element_bytes,
                   count * move->element_bytes);
        code = meet(move->c, move->args->group, &move->place);
        if (code == 0 && move->args->collective == DTP_ALL_TO_ALL)
            take(move, move->place.index * count, count, at);
        else if (code == 0)
            add_up(move, move->place.index * count, count, move->args->result, at);
        if (code == 0)
            code = meet(move->c, move->args->group, &move->place);
    }
    return code;
}

static int reduce(const struct move *move)
{
    unsigned char *mine = slot_of(move->c, move->c->ranks.rank);
    uint64_t all = move->args->bytes / move->element_bytes, piece = SLOT_BYTES / move->element_bytes;
    int code = 0;
    for (uint64_t at = 0; code == 0 && at < all; at += piece) {
        uint64_t count = all - at < piece ? all - at : piece;
        memcpy(mine, (const unsigned char *)move->args->input + at * move->element_bytes, count * move->element_bytes);
        code = meet(move->c, move->args->group, &move->place);
        if (code == 0)
            add_up(move, 0, count, move->args->result, at);
        if (code == 0)
            code = meet(move->c, move->args->group, &move->place);
    }
    return code;
}

/* Rows that the member sends in all. */
static uint64_t sent_rows(const struct dtp_exchange *x, uint32_t member)
{
    return x->back ? dtp_exchange_received(x, member) : dtp_exchange_made(x, member);
}

/* Rows [at, at + count) of each member's are in its slot: those of them that are for this one. */
static void take_rows(const struct move *move, uint64_t at, uint64_t count, uint32_t row_bytes, unsigned char *result)
{
    const struct dtp_exchange *x = &move->args->exchange;
    for (uint32_t m = 0; m < move->place.ranks; m++)
        for (uint32_t e = 0; e < x->experts / x->ranks; e++) {
            struct dtp_exchange_piece piece = dtp_exchange_piece(x, m, move->place.index, e);
            uint64_t first = piece.from > at ? piece.from : at, last = piece.from + piece.rows;
            last = last < at + count ? last : at + count;
            if (first < last)
                memcpy(result + (piece.to + first - piece.from) * row_bytes,
                       member_slot(move, m) + (first - at) * row_bytes, (last - first) * row_bytes);
        }
}

static int exchange_rows(const struct move *move, const unsigned char *input, unsigned char *result, uint32_t row_bytes)
{
    const struct dtp_exchange *x = &move->args->exchange;
    uint64_t count = SLOT_BYTES / row_bytes, most = 0, mine = sent_rows(x, move->place.index);
    int code = count ? 0 : CODE_UNEVEN;
    for (uint32_t m = 0; m < x->ranks; m++)
        most = sent_rows(x, m) > most ? sent_rows(x, m) : most;
    for (uint64_t at = 0; code == 0 && at < most; at += count) {
        uint64_t left = at < mine ? mine - at : 0;
        memcpy(slot_of(move->c, move->c->ranks.rank), input + (left ? at * row_bytes : 0),
               (left < count ? left : count) * row_bytes);
        code = meet(move->c, move->args->group, &move->place);
        if (code == 0)
            take_rows(move, at, count, row_bytes, result);
        if (code == 0)
            code = meet(move->c, move->args->group, &move->place);
    }
    return code;
}

static int exchange(struct host_communicator *c, const struct dtp_collective_args *args)
{
    const struct dtp_exchange *x = &args->exchange;
    struct move move = {c, args, dtp_group_place(&c->groups[args->group], c->ranks.rank), 0, 0};
    dtp_communicator_count_rows(&c->base, x, move.place.index);
    int code = exchange_rows(&move, args->input, args->result, x->row_bytes);
    return code || !x->more ? code : exchange_rows(&move, x->more, x->more_result, x->more_bytes);
}

static int collective(struct dtp_communicator *communicator, const struct dtp_collective_args *args, void *stream)
{
    struct host_communicator *c = own(communicator);
    if (args->collective == DTP_SEND_RECV) {
        dtp_communicator_count(communicator, args, 0);
        return transfer(c, args, stream);
    }
    if (args->exchange.begins)
        return exchange(c, args);
    struct move move = {c, args, dtp_group_place(&c->groups[args->group], c->ranks.rank),
                        dtp_element_bytes(args->element), 0};
    move.shard_bytes = args->bytes / move.place.ranks;
    bool whole = args->collective == DTP_ALL_REDUCE ? args->bytes % move.element_bytes == 0
                                                    : args->bytes % (move.element_bytes * move.place.ranks) == 0;
    if (!whole)
        return CODE_UNEVEN;
    dtp_communicator_count(communicator, args, move.place.ranks);
    switch (args->collective) {
    case DTP_ALL_GATHER: return gather(&move);
    case DTP_REDUCE_SCATTER:
    case DTP_ALL_TO_ALL: return scatter(&move);
    case DTP_ALL_REDUCE: return reduce(&move);
    default: return CODE_UNSUPPORTED;
    }
}

static enum dtp_status prove(struct dtp_communicator *communicator, const struct dtp_collective_args *args,
                             void *stream, struct dtp_faults *faults)
{
    (void)communicator, (void)args, (void)stream, (void)faults; /* there is one way only */
    return DTP_OK;
}

static enum dtp_status connect_transfers(struct dtp_communicator *communicator, const struct dtp_collective_args *args,
                                         size_t count, void *stream, struct dtp_faults *faults)
{
    (void)communicator, (void)args, (void)count, (void)stream, (void)faults; /* shared memory is there */
    return DTP_OK;
}

static int poll_errors(struct dtp_communicator *communicator)
{
    return atomic_load(&own(communicator)->shared->aborted) ? CODE_ABORTED : 0;
}

static void abort_all(struct dtp_communicator *communicator)
{
    atomic_store(&own(communicator)->shared->aborted, true);
}

static const char *error_text(struct dtp_communicator *communicator, int code)
{
    (void)communicator;
    switch (code) {
    case 0: return "no error";
    case CODE_ABORTED: return "another rank gave up";
    case CODE_UNSUPPORTED: return "no such collective over shared memory";
    case CODE_UNEVEN: return "the bytes of a collective do not divide among its ranks";
    }
    return "unknown error";
}

/* ---- coming and going -------------------------------------------------------------------------------------------- */

static void destroy(struct dtp_communicator *communicator)
{
    struct host_communicator *c = own(communicator);
    if (c->shared)
        munmap(c->shared, c->mapped_bytes);
    free(c->groups);
    free(c);
}

static const struct dtp_communicator_verbs verbs = {destroy,     collective, prove,     connect_transfers,
                                                    poll_errors, abort_all,  error_text};

/* Rank 0 makes the segment, a file without a name, so that nothing stays where ranks are killed; the others open it as
 * an open file of rank 0, whose place below /proc it tells them. */
static enum dtp_status open_segment(struct host_communicator *c, struct dtp_control *control, struct dtp_faults *faults)
{
    char name[64] = "";
    int file = -1;
    if (c->ranks.rank == 0) {
        file = memfd_create("dtplan", MFD_CLOEXEC);
        if (file >= 0 && ftruncate(file, (off_t)c->mapped_bytes) != 0) {
            int error = errno;
            close(file);
            file = -1;
            errno = error;
        }
        if (file >= 0)
            snprintf(name, sizeof name, "/proc/%" PRIdMAX "/fd/%d", (intmax_t)getpid(), file);
    }
    enum dtp_status status = dtp_control_broadcast(control, name, sizeof name, faults);
    name[sizeof name - 1] = '\0';
    if (status == DTP_OK && c->ranks.rank != 0 && name[0])
        file = open(name, O_RDWR | O_CLOEXEC);
    void *mapped = file < 0 ? MAP_FAILED : mmap(NULL, c->mapped_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (mapped != MAP_FAILED)
        c->shared = mapped;
    else if (status == DTP_OK)
        status = dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0,
                           "rank %u: no shared memory of %.1f MiB for %u ranks (%s); ranks of the host device are "
                           "processes of one user on one machine, with one /proc",
                           c->ranks.rank, (double)c->mapped_bytes / 0x1p20, c->ranks.world, strerror(errno));
    uint8_t fine = status == DTP_OK, all[DTP_RANKS_MAX], every = 1;
    enum dtp_status said = dtp_control_gather(control, &fine, 1, all, faults);
    if (file >= 0) /* not earlier: the others open it through rank 0's */
        close(file);
    for (uint32_t i = 0; c->ranks.rank == 0 && said == DTP_OK && i < c->ranks.world; i++)
        every &= all[i];
    if (said == DTP_OK)
        said = dtp_control_broadcast(control, &every, 1, faults);
    if (said == DTP_OK && status == DTP_OK && !every)
        status = dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "another rank has no shared memory");
    return status == DTP_OK ? said : status;
}

enum dtp_status dtp_communicator_host_create(const struct dtp_communicator_options *options,
                                             struct dtp_communicator **out, struct dtp_faults *faults)
{
    const struct dtp_communicator_choice *choice = &options->choice;
    *out = NULL;
    enum dtp_status status = dtp_groups_check(options, faults);
    bool copied_gathers = choice->copies & 1u << DTP_ALL_GATHER; /* an exchange is the program's, whoever carries it */
    if (status == DTP_OK && (choice->max_ctas || choice->windows || copied_gathers))
        status = dtp_fault(faults, DTP_BAD_INPUT, NULL, 0,
                           "--%s is a choice of NCCL's collectives between GPUs; leave it out with --device host",
                           choice->max_ctas  ? "collective-ctas"
                           : choice->windows ? "symmetric-windows"
                                             : "gather-engine copy");
    if (status != DTP_OK)
        return status;
    struct host_communicator *c = calloc(1, sizeof *c);
    size_t group_bytes = (options->group_count + 1) * sizeof *c->groups;
    if (c)
        c->groups = calloc(1, group_bytes);
    if (!c || !c->groups) {
        free(c);
        return dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "no memory for a communicator");
    }
    if (options->group_count)
        memcpy(c->groups, options->groups, options->group_count * sizeof *c->groups);
    c->ranks = *options->ranks;
    c->spins = c->ranks.world <= sysconf(_SC_NPROCESSORS_ONLN) ? SPINS : 0;
    c->base.verbs = &verbs;
    snprintf(c->base.name, sizeof c->base.name, "shared memory");
    c->mailboxes_offset = (size_t)options->group_count * c->ranks.world * sizeof(struct meeting);
    c->slots_offset = c->mailboxes_offset + (size_t)options->group_count * c->ranks.world * sizeof(struct mailbox);
    c->mapped_bytes =
        sizeof *c->shared + c->slots_offset + (1 + (size_t)options->group_count) * c->ranks.world * SLOT_BYTES;
    status = open_segment(c, options->control, faults);
    if (status != DTP_OK) {
        destroy(&c->base);
        return status;
    }
    *out = &c->base;
    return DTP_OK;
}
