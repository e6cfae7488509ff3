/* Ranks that decide together whether to go on: each a process, whose exit status says what it heard. */
#include "ranks/world.h"

#include "ranks/control_parts.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "lib/free_port.h"

#define MOST_RANKS 3
#define PATIENCE_S 60 /* no test may hang */

typedef bool rank_main(struct dtp_world *world, struct dtp_faults *faults);

static void start_and_wait(uint32_t world_size, rank_main *as_rank)
{
    struct dtp_ranks ranks = {.world = world_size, .local_world = world_size, .host = "127.0.0.1", .port = free_port()};
    pid_t pid[MOST_RANKS];
    fflush(NULL);
    for (uint32_t rank = 0; rank < world_size; rank++)
        if ((pid[rank] = fork()) == 0) {
            struct dtp_world world;
            static struct dtp_faults faults;
            alarm(PATIENCE_S);
            ranks.rank = ranks.local_rank = rank;
            if (dtp_world_join(&ranks, NULL, &world, &faults) != DTP_OK)
                _exit(2);
            bool good = as_rank(&world, &faults);
            for (size_t i = 0; i < faults.count && !good; i++)
                fprintf(stderr, "rank %u: %s\n", rank, faults.text[i]);
            dtp_world_leave(&world);
            _exit(good ? 0 : 1);
        }
    int status, bad = 0;
    for (uint32_t rank = 0; rank < world_size; rank++)
        if (waitpid(pid[rank], &status, 0) != pid[rank] || !WIFEXITED(status) || WEXITSTATUS(status) != 0) {
            print_error("rank %u: status %x\n", rank, (unsigned)status);
            bad++;
        }
    assert_int_equal(bad, 0);
}

/* All were asked to give up as well, which must not reach ranks that are on their way out. */
static bool parts_with(struct dtp_world *world, struct dtp_faults *faults, enum dtp_status mine, enum dtp_status all)
{
    enum dtp_status status = dtp_world_begin_together(world, mine, faults);
    dtp_world_give_up(world, status, faults);
    return status == all;
}

static bool say_the_same(struct dtp_world *world, struct dtp_faults *faults)
{
    dtp_fault(faults, DTP_BAD_INPUT, NULL, 0, "too few layers");
    return parts_with(world, faults, DTP_BAD_INPUT, DTP_BAD_INPUT) && faults->count == (world->ranks.rank == 0);
}

static void test_what_all_say_is_said_once(void **state)
{
    (void)state;
    start_and_wait(3, say_the_same);
}

static bool say_something_else(struct dtp_world *world, struct dtp_faults *faults)
{
    dtp_fault(faults, DTP_BAD_INPUT, NULL, 0, "too few layers");
    if (world->ranks.rank == 2)
        dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "and no memory");
    size_t said = faults->count;
    return parts_with(world, faults, world->ranks.rank == 2 ? DTP_ENVIRONMENT : DTP_BAD_INPUT, DTP_ENVIRONMENT) &&
           faults->count == said;
}

static void test_what_differs_is_said_by_each(void **state)
{
    (void)state;
    start_and_wait(3, say_something_else);
}

static bool one_is_bad(struct dtp_world *world, struct dtp_faults *faults)
{
    bool bad = world->ranks.rank == 1;
    if (bad)
        dtp_fault(faults, DTP_BAD_INPUT, NULL, 0, "no such file");
    return parts_with(world, faults, bad ? DTP_BAD_INPUT : DTP_OK, DTP_BAD_INPUT) && faults->count == 1 &&
           (bad || strstr(faults->text[0], "could not go on with rank 1, which failed before the first step"));
}

static void test_one_ends_all(void **state)
{
    (void)state;
    start_and_wait(3, one_is_bad);
}

/* Rank 1 hears and says nothing in turn any more, but its heart beats: nothing but the turn itself can tell. */
static bool one_goes_deaf(struct dtp_world *world, struct dtp_faults *faults)
{
    if (world->ranks.rank == 1)
        shutdown(world->control->peer[0].socket[LINE_TURNS], SHUT_RDWR);
    enum dtp_status status = dtp_world_agree(world, DTP_OK, faults);
    return status == DTP_ENVIRONMENT && faults->count == 1 &&
           strstr(faults->text[0],
                  world->ranks.rank == 0 ? "rank 0: rank 1 does not answer" : "rank 1: rank 0 does not answer");
}

static void test_who_does_not_answer_is_named(void **state)
{
    (void)state;
    start_and_wait(2, one_goes_deaf);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_all_say_is_said_once),
        cmocka_unit_test(test_what_differs_is_said_by_each),
        cmocka_unit_test(test_one_ends_all),
        cmocka_unit_test(test_who_does_not_answer_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
