/* A program set: the step of a job whose ranks do not all do the same. Each role (a pipeline's stage) has a program,
 * and ranks that run it; rank i of one role sends to and receives from rank i of another.
 *
 * A transfer is a DTP_OP_SEND in one role and a DTP_OP_RECV in the other, each of which names the other's role (peer)
 * and the same tag. It is a rendezvous: neither ends before both have begun. The k-th send from one role to another in
 * a group meets the k-th receive there, as in NCCL, which has no tags; ours are there to prove that these belong
 * together. A data-parallel job is a set of one role. */
#ifndef DTP_PROGRAM_SET_H
#define DTP_PROGRAM_SET_H

#include "base/host_arena.h"
#include "program/program.h"

#include <stdio.h>

struct dtp_program_role {
    char name[DTP_PROGRAM_MAX_NAME_BYTES + 1]; /* "first stage", for people */
    uint32_t first_rank, ranks;                /* where its ranks begin, and how many they are */
    struct dtp_program *program;               /* sealed */
};
/* Owns its roles and their programs; roles are in the order of their first ranks. A role is run by ranks first_rank,
 * first_rank + 1, ... of the job; or, where roles take turns, by `run` ranks at a time: all roles have as many, and the
 * next run of a role begins behind a run of each other one, as where stages of a pipeline are nearer than its data
 * parallel ranks. */
struct dtp_program_set {
    struct dtp_program_role *roles;
    uint32_t role_count;
    uint32_t run; /* 0: all ranks of a role stand together */
    bool apart;   /* a rank begins its next step when it is through with this one; false: when all are */
};
#define DTP_PROGRAM_SET_MAX_ROLES 4096u

/* Adds a role of `ranks` ranks behind those that are there, and takes the program over, also where it fails: bad name
 * or number of ranks (DTP_BAD_INPUT), no memory. */
enum dtp_status dtp_program_set_add(struct dtp_program_set *set, const char *name, uint32_t ranks,
                                    struct dtp_program *program, struct dtp_faults *faults);
void dtp_program_set_release(struct dtp_program_set *set);
uint32_t dtp_program_set_ranks(const struct dtp_program_set *set);
/* The role that a rank of the job runs; `rank` is below dtp_program_set_ranks. */
uint32_t dtp_program_set_role_of(const struct dtp_program_set *set, uint32_t rank);
/* Which of its role's ranks a rank of the job is, and back. */
uint32_t dtp_program_set_place(const struct dtp_program_set *set, uint32_t rank);
uint32_t dtp_program_set_rank(const struct dtp_program_set *set, uint32_t role, uint32_t place);
/* Has roles take turns: of a set that is complete. DTP_BAD_INPUT: roles differ in ranks, or those are no multiple. */
enum dtp_status dtp_program_set_take_turns(struct dtp_program_set *set, uint32_t run, struct dtp_faults *faults);
/* The rank at the other end of a transfer of `rank`, whose role's program has `op`. */
uint32_t dtp_program_set_peer_rank(const struct dtp_program_set *set, uint32_t rank, const struct dtp_op *op);

/* partner[role][op]: the operation of the peer's program at the other end, DTP_NO_INDEX of what is no transfer; from
 * `arena`. Refuses with DTP_BAD_INPUT, all faults at once: roles whose groups differ (a communicator is made by all
 * ranks together); a peer that is no other role of as many ranks, or outside of the transfer's group; a send without
 * its receive, or the reverse; two that meet and differ in tag, bytes or element type. */
enum dtp_status dtp_program_set_match(const struct dtp_program_set *set, struct dtp_host_arena *arena,
                                      uint32_t ***partner, struct dtp_faults *faults);

/* How operations of one rank may overtake each other: streams do on a GPU; a host device does one after the other, in
 * the order of the program, but for the streams of transfers between stages, which threads of their own carry. */
enum dtp_issue_order { DTP_ISSUE_STREAMS, DTP_ISSUE_IN_LINE };
/* Proves the whole: every role by itself (dtp_program_verify), that transfers match, and that none waits for ever,
 * whoever is how fast. A deadlock is refused with the operations at which the roles would stand. */
enum dtp_status dtp_program_set_verify(const struct dtp_program_set *set, enum dtp_issue_order order,
                                       struct dtp_faults *faults);

/* The set as text, both ways: its roles' programs (program_text.h), each behind its line.
 *
 *   set 1                      (where roles take turns: set 1 run N; where steps begin apart: ... apart)
 *   role 0 "first stage" ranks 2
 *   program 1
 *   ...
 *   end ops 18 buffers 4 groups 1
 *   role 1 "last stage" ranks 2
 *   ...
 *   end roles 2
 *
 * Errors and ownership as of a program's; caller releases *out, which is empty after a failure. */
enum dtp_status dtp_program_set_write_text(const struct dtp_program_set *set, FILE *file);
enum dtp_status dtp_program_set_parse_text(const char *name, const char *text, size_t bytes,
                                           struct dtp_program_set *out, struct dtp_faults *faults);
/* Such a text from a file, or that of one program: a set of one role then, run by as many ranks as its groups hold. */
enum dtp_status dtp_program_set_read_file(const char *path, struct dtp_program_set *out, struct dtp_faults *faults);
/* Stands for the digests of all roles' programs and how many ranks run each. DTP_ENVIRONMENT: no memory. */
enum dtp_status dtp_program_set_digest(const struct dtp_program_set *set, uint64_t *out, struct dtp_faults *faults);

#endif
