/* Ranks as processes: each test forks a run on a port of its own and looks at how every rank ended. */
#include "ranks/control_parts.h"

#include <setjmp.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "lib/free_port.h"

#define WORLD 4
#define PATIENCE_S 60 /* of ranks for each other on a machine that does much else */
enum { ENDED_WELL = 0, REFUSED = 40, HEARD_OF_RANK = 50, HUNG = 60, TOO_EARLY = 61, WRONG_STATUS = 62 };

struct run {
    struct dtp_ranks ranks;
    struct dtp_control_options options;
    int (*rank_main)(struct run *run, struct dtp_control *control);
};

/* Where a rank says it is. TOO_EARLY: it failed before the others heard of that. */
static struct dtp_control_place place_of(uint32_t rank)
{
    return (struct dtp_control_place){7, 100 + rank};
}

static void exit_with_failed_rank(void *context, const struct dtp_control_failure *failure)
{
    const struct run *run = context;
    struct dtp_control_place place = place_of(failure->rank);
    bool gave_up = strncmp(failure->words, "gave up", strlen("gave up")) == 0;
    if (failure->status != (gave_up ? DTP_BAD_INPUT : DTP_ENVIRONMENT))
        _exit(WRONG_STATUS);
    bool there = failure->place.step == place.step && failure->place.op == place.op;
    if (failure->words[0] && (there || failure->rank == run->ranks.rank))
        _exit(HEARD_OF_RANK + (int)failure->rank);
    _exit(failure->place.step == 0 ? TOO_EARLY : HUNG);
}

static pid_t start_rank(struct run run, uint32_t rank)
{
    fflush(NULL);
    pid_t pid = fork();
    if (pid != 0)
        return pid;
    struct dtp_control *control;
    struct dtp_faults faults = {0};
    alarm(2 * PATIENCE_S); /* no test may hang */
    run.ranks.rank = rank;
    run.options.on_failure = exit_with_failed_rank;
    run.options.context = &run;
    if (dtp_control_join(&run.ranks, &run.options, &control, &faults) != DTP_OK)
        _exit(faults.count > 0 ? REFUSED + (int)faults.status : 1);
    int code = run.rank_main(&run, control);
    dtp_control_leave(control);
    _exit(code);
}

static int end_of(pid_t pid)
{
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

static struct run new_run(int (*rank_main)(struct run *run, struct dtp_control *control))
{
    struct run run = {.ranks = {.world = WORLD, .local_world = WORLD, .host = "127.0.0.1", .port = free_port()},
                      .options = {.join_timeout_s = PATIENCE_S, .silence_s = PATIENCE_S, .hash = 42},
                      .rank_main = rank_main};
    return run;
}

/* ---- what goes well ---------------------------------------------------------------------------------------------- */

static int talk(struct run *run, struct dtp_control *control)
{
    uint32_t rank = run->ranks.rank, all[WORLD] = {0}, told = rank == 0 ? 1234 : 0;
    for (int turn = 0; turn < 100; turn++) {
        if (dtp_control_broadcast(control, &told, sizeof told, NULL) != DTP_OK || told != 1234)
            return 1;
        if (dtp_control_gather(control, &rank, sizeof rank, all, NULL) != DTP_OK)
            return 2;
        for (uint32_t i = 0; rank == 0 && i < WORLD; i++)
            if (all[i] != i)
                return 3;
    }
    usleep(rank * 300000); /* those that leave first are no failure */
    return dtp_control_barrier(control, NULL) == DTP_OK ? ENDED_WELL : 4;
}

static void test_ranks_meet_and_talk(void **state)
{
    (void)state;
    struct run run = new_run(talk);
    pid_t pid[WORLD];
    for (uint32_t left = WORLD; left > 0; left--) /* rank 0 last: the others wait for its port */
        pid[left - 1] = start_rank(run, left - 1);
    for (uint32_t i = 0; i < WORLD; i++)
        assert_int_equal(end_of(pid[i]), ENDED_WELL);
}

static int alone(struct run *run, struct dtp_control *control)
{
    uint32_t value = 5, all = 0;
    (void)run;
    bool fine = dtp_control_broadcast(control, &value, sizeof value, NULL) == DTP_OK &&
                dtp_control_gather(control, &value, sizeof value, &all, NULL) == DTP_OK &&
                dtp_control_barrier(control, NULL) == DTP_OK;
    dtp_control_give_up(control, DTP_ENVIRONMENT, "nobody hears it");
    return fine && all == 5 ? ENDED_WELL : 1;
}

static void test_a_world_of_one_opens_nothing(void **state)
{
    (void)state;
    struct run run = new_run(alone);
    run.ranks.world = 1;
    snprintf(run.ranks.host, sizeof run.ranks.host, "no.such.host.example");
    assert_int_equal(end_of(start_rank(run, 0)), ENDED_WELL);
}

/* ---- who does not belong ----------------------------------------------------------------------------------------- */

static void expect_all(const pid_t *pid, uint32_t count, int code)
{
    for (uint32_t i = 0; i < count; i++)
        assert_int_equal(end_of(pid[i]), code);
}

static void test_ranks_that_disagree_are_refused(void **state)
{
    (void)state;
    for (int what = 0; what < 3; what++) {
        struct run run = new_run(talk), odd = run;
        pid_t pid[WORLD];
        odd.options.hash += what == 0;
        odd.ranks.world += what == 1;
        for (uint32_t i = 0; i + 1 < WORLD; i++)
            pid[i] = start_rank(run, i);
        usleep(200000);
        pid[WORLD - 1] = start_rank(odd, what == 2 ? 1 : WORLD - 1); /* the third time: rank 1 once more */
        expect_all(pid, WORLD, REFUSED + DTP_BAD_INPUT);
    }
}

static void test_a_rank_that_does_not_come(void **state)
{
    (void)state;
    struct run run = new_run(talk);
    pid_t pid[WORLD];
    run.options.join_timeout_s = 1;
    for (uint32_t i = 0; i + 1 < WORLD; i++)
        pid[i] = start_rank(run, i);
    expect_all(pid, WORLD - 1, REFUSED + DTP_ENVIRONMENT);
    assert_int_equal(end_of(start_rank(run, 2)), REFUSED + DTP_ENVIRONMENT); /* nor does rank 0 */
}

/* Something else listens there, takes connections and says nothing. */
static void test_a_port_in_use(void **state)
{
    (void)state;
    struct run run = new_run(talk);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    address.sin_port = htons(run.ranks.port);
    int stranger = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(stranger, (struct sockaddr *)&address, sizeof address), 0);
    assert_int_equal(listen(stranger, 8), 0);
    run.options.join_timeout_s = 1;
    assert_int_equal(end_of(start_rank(run, 0)), REFUSED + DTP_ENVIRONMENT);
    assert_int_equal(end_of(start_rank(run, 1)), REFUSED + DTP_ENVIRONMENT);
    close(stranger);
}

/* ---- who fails on the way ---------------------------------------------------------------------------------------- */

static int wait_long(struct run *run, struct dtp_control *control)
{
    dtp_control_at(control, place_of(run->ranks.rank));
    dtp_control_barrier(control, NULL);
    sleep(PATIENCE_S);
    return HUNG;
}

/* What the other ranks heard. They must have heard where the rank was first, which takes two beats, on a busy machine
 * more. */
static int failure_of(uint32_t failed, int signal, double silence_s, useconds_t told_us)
{
    struct run run = new_run(wait_long);
    pid_t pid[WORLD];
    int heard = -1;
    run.options.silence_s = silence_s;
    for (uint32_t i = 0; i < WORLD; i++)
        pid[i] = start_rank(run, i);
    usleep(told_us);
    kill(pid[failed], signal);
    for (uint32_t i = 0; i < WORLD; i++) {
        if (i == failed)
            continue;
        int code = end_of(pid[i]);
        heard = heard < 0 || code == TOO_EARLY ? code : heard;
        if (heard != TOO_EARLY)
            assert_int_equal(code, heard);
    }
    kill(pid[failed], SIGKILL);
    assert_int_equal(end_of(pid[failed]), -SIGKILL);
    return heard;
}

static void expect_failure_of(uint32_t failed, int signal, double silence_s)
{
    int heard = TOO_EARLY;
    for (useconds_t told_us = 1500000; heard == TOO_EARLY && told_us < 30000000; told_us *= 2)
        heard = failure_of(failed, signal, silence_s, told_us);
    assert_int_equal(heard, HEARD_OF_RANK + (int)failed);
}

static void test_a_rank_is_killed(void **state)
{
    (void)state;
    expect_failure_of(2, SIGKILL, PATIENCE_S);
    expect_failure_of(0, SIGKILL, PATIENCE_S);
}

static void test_a_rank_is_stopped(void **state)
{
    (void)state;
    expect_failure_of(1, SIGSTOP, 4);
    expect_failure_of(0, SIGSTOP, 4);
}

static double hang_deadline_s;

/* Rank 3 misses its deadline; rank 0 is furthest behind, so it is rank 0 that the others wait for. */
static int miss_deadline(struct run *run, struct dtp_control *control)
{
    dtp_control_at(control, place_of(run->ranks.rank));
    dtp_control_barrier(control, NULL);
    dtp_control_deadline(control, run->ranks.rank == 3 ? hang_deadline_s : PATIENCE_S);
    sleep(PATIENCE_S);
    return HUNG;
}

/* All places are refined to the same one, as it is in a collective that hangs: then it is the first who said so. */
static struct dtp_control_place in_the_same_collective(void *context, struct dtp_control_place told)
{
    (void)context, (void)told;
    return place_of(3);
}

static int who_hangs(bool together)
{
    struct run run = new_run(miss_deadline);
    pid_t pid[WORLD];
    int heard[WORLD];
    run.options.where = together ? in_the_same_collective : NULL;
    for (uint32_t i = 0; i < WORLD; i++)
        pid[i] = start_rank(run, i);
    for (uint32_t i = 0; i < WORLD; i++)
        heard[i] = end_of(pid[i]);
    for (uint32_t i = 1; i < WORLD; i++) {
        if (heard[i] == TOO_EARLY)
            return TOO_EARLY;
        assert_int_equal(heard[i], heard[0]);
    }
    return heard[0];
}

static void test_a_rank_hangs(void **state)
{
    (void)state;
    for (int together = 0; together < 2; together++) {
        int heard = TOO_EARLY;
        for (hang_deadline_s = 1.5; heard == TOO_EARLY && hang_deadline_s < 30; hang_deadline_s *= 2)
            heard = who_hangs(together);
        assert_int_equal(heard, HEARD_OF_RANK + (together ? 3 : 0));
    }
}

static int give_up(struct run *run, struct dtp_control *control)
{
    dtp_control_at(control, place_of(run->ranks.rank));
    dtp_control_barrier(control, NULL);
    if (run->ranks.rank != 1) {
        sleep(PATIENCE_S);
        return HUNG;
    }
    dtp_control_give_up(control, DTP_BAD_INPUT, "no such token"); /* with where it is */
    return REFUSED;
}

static void test_a_rank_gives_up(void **state)
{
    (void)state;
    struct run run = new_run(give_up);
    pid_t pid[WORLD];
    for (uint32_t i = 0; i < WORLD; i++)
        pid[i] = start_rank(run, i);
    for (uint32_t i = 0; i < WORLD; i++)
        assert_int_equal(end_of(pid[i]), i == 1 ? REFUSED : HEARD_OF_RANK + 1);
}

/* Rank 2 fails because rank 1 did, as in a collective that was cut off. Its heart is kept between its last look at what
 * others say and its look at whether this rank gives up, until both have something to say: rank 1 was first. */
static struct dtp_control *_Atomic follower;
static atomic_bool *first_gave_up; /* of all processes */
#define FOLLOWER_DEADLINE_S 0.2    /* ends between two beats, so that the first to ask after it looks for silence */

static struct dtp_control_place stall(void *context, struct dtp_control_place told)
{
    static double armed_s;
    struct dtp_control *control = follower;
    (void)context;
    if (control && armed_s == 0) {
        armed_s = dtp_now_s();
        dtp_control_deadline(control, FOLLOWER_DEADLINE_S);
    } else if (control && dtp_now_s() > armed_s + FOLLOWER_DEADLINE_S) {
        while (!*first_gave_up)
            usleep(10000);
        usleep(200000); /* the main thread gives up meanwhile */
    }
    return told;
}

static int give_up_one_after_the_other(struct run *run, struct dtp_control *control)
{
    dtp_control_at(control, place_of(run->ranks.rank));
    dtp_control_barrier(control, NULL);
    if (run->ranks.rank == 1) {
        sleep(2); /* until rank 2's heart is where it is to be */
        dtp_control_give_up(control, DTP_BAD_INPUT, "no such token");
        *first_gave_up = true;
        return REFUSED;
    }
    if (run->ranks.rank == 2) {
        follower = control;
        while (!*first_gave_up)
            usleep(10000);
        dtp_control_give_up(control, DTP_ENVIRONMENT, "another rank gave up");
        return HUNG;
    }
    sleep(PATIENCE_S);
    return HUNG;
}

static void test_the_first_to_give_up_is_blamed(void **state)
{
    (void)state;
    struct run run = new_run(give_up_one_after_the_other);
    pid_t pid[WORLD];
    first_gave_up = mmap(NULL, sizeof *first_gave_up, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(first_gave_up, MAP_FAILED);
    for (uint32_t i = 0; i < WORLD; i++) {
        run.options.where = i == 2 ? stall : NULL;
        pid[i] = start_rank(run, i);
    }
    for (uint32_t i = 0; i < WORLD; i++)
        assert_int_equal(end_of(pid[i]), i == 1 ? REFUSED : HEARD_OF_RANK + 1);
    munmap(first_gave_up, sizeof *first_gave_up);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ranks_meet_and_talk),
        cmocka_unit_test(test_a_world_of_one_opens_nothing),
        cmocka_unit_test(test_ranks_that_disagree_are_refused),
        cmocka_unit_test(test_a_rank_that_does_not_come),
        cmocka_unit_test(test_a_port_in_use),
        cmocka_unit_test(test_a_rank_is_killed),
        cmocka_unit_test(test_a_rank_is_stopped),
        cmocka_unit_test(test_a_rank_hangs),
        cmocka_unit_test(test_a_rank_gives_up),
        cmocka_unit_test(test_the_first_to_give_up_is_blamed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
