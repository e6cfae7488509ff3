/* Collectives over shared memory, each rank a process: sums, gathers, groups, places, counts. */
#include "ranks/communicator.h"
#include "kernels/element.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "lib/free_port.h"

#define WORLD 4
static const struct dtp_program_group groups[] = {{4, 1}, {2, 1}, {2, 2}, {1, 1}};
#define GROUPS (sizeof groups / sizeof *groups)
#define PATIENCE_S 60 /* of ranks for each other on a machine that does much else */
#define SHARD 400000  /* elements: more than a slot of 1 MiB holds in fp32 */

/* Small whole numbers, so that bf16 sums are exact. */
static double value(uint32_t rank, uint64_t i)
{
    return (double)((i * 7 + rank * 13) % 31);
}

static void fill(void *values, enum dtp_element element, uint32_t rank, uint64_t count)
{
    for (uint64_t i = 0; i < count; i++)
        dtp_store(values, element, i, value(rank, i));
}

static double sum_of(const struct dtp_group_place *place, uint64_t i)
{
    double sum = 0;
    for (uint32_t member = 0; member < place->ranks; member++)
        sum += value(place->first + member * place->stride, i);
    return sum;
}

#define CHECK(condition)                                                                                               \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            fprintf(stderr, "rank %u group %u: %s\n", rank, group, #condition);                                        \
            return false;                                                                                              \
        }                                                                                                              \
    } while (0)

static bool try_group(struct dtp_communicator *c, uint32_t rank, uint32_t group, enum dtp_element element)
{
    struct dtp_group_place place = dtp_group_place(&groups[group], rank);
    uint64_t all = (uint64_t)SHARD * place.ranks, bytes = all * dtp_element_bytes(element);
    uint64_t mine = (uint64_t)SHARD * place.index;
    uint8_t *input = malloc(bytes), *result = malloc(bytes);
    struct dtp_collective_args args = {DTP_ALL_REDUCE, group, input, input, bytes, element};
    fill(input, element, rank, all);
    CHECK(c->verbs->collective(c, &args, NULL) == 0); /* in place */
    for (uint64_t i = 0; i < all; i++)
        CHECK(dtp_load(input, element, i) == sum_of(&place, i));
    fill(input, element, rank, all);
    args = (struct dtp_collective_args){DTP_REDUCE_SCATTER, group, input, result, bytes, element};
    CHECK(c->verbs->collective(c, &args, NULL) == 0);
    for (uint64_t i = 0; i < SHARD; i++)
        CHECK(dtp_load(result, element, i) == sum_of(&place, mine + i));
    fill(input, element, rank, all);
    args = (struct dtp_collective_args){DTP_ALL_TO_ALL, group, input, result, bytes, element};
    CHECK(c->verbs->collective(c, &args, NULL) == 0);
    for (uint64_t i = 0; i < all; i++) /* what member i / SHARD has at this rank's place */
        CHECK(dtp_load(result, element, i) ==
              value(place.first + (uint32_t)(i / SHARD) * place.stride, mine + i % SHARD));
    fill(result + mine * dtp_element_bytes(element), element, rank, SHARD);
    args = (struct dtp_collective_args){DTP_ALL_GATHER, group, result + mine * dtp_element_bytes(element),
                                        result,         bytes, element};
    CHECK(c->verbs->collective(c, &args, NULL) == 0);
    for (uint64_t i = 0; i < all; i++)
        CHECK(dtp_load(result, element, i) == value(place.first + (uint32_t)(i / SHARD) * place.stride, i % SHARD));
    free(input);
    free(result);
    return true;
}

/* Rank 0 to 3 and 1 to 2, there and, of other sizes, back: more than a slot, whole slots, less, nothing. */
static bool try_transfers(struct dtp_communicator *c, uint32_t rank)
{
    static const uint64_t counts[] = {SHARD, 3, (1u << 20) / 4, 0, 2 * (1u << 20) / 4};
    const uint32_t peer = WORLD - 1 - rank, group = 0;
    uint64_t sent = 0;
    float *values = malloc(sizeof *values * (SHARD + 1000000));
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
        for (int back = 0; back < 2; back++) {
            bool receives = (rank < peer) == (back == 1);
            uint64_t count = counts[i] + (uint64_t)back, bytes = count * sizeof *values;
            struct dtp_collective_args args = {.collective = DTP_SEND_RECV,
                                               .group = group,
                                               .input = receives ? NULL : values,
                                               .result = receives ? values : NULL,
                                               .bytes = bytes,
                                               .element = DTP_ELEMENT_FP32,
                                               .peer = peer,
                                               .receives = receives};
            fill(values, DTP_ELEMENT_FP32, receives ? 99 : rank, count);
            CHECK(c->verbs->collective(c, &args, NULL) == 0);
            for (uint64_t k = 0; k < count; k++)
                CHECK((double)values[k] == value(receives ? peer : rank, k));
            sent += receives ? 0 : bytes;
        }
    free(values);
    CHECK(c->sent_bytes[DTP_SEND_RECV] == sent && c->calls[DTP_SEND_RECV] == 10);
    return true;
}

static bool rank_main(struct dtp_communicator *c, struct dtp_control *control, uint32_t rank)
{
    uint64_t sent = 0;
    uint32_t group = 0;
    for (; group < GROUPS; group++)
        for (int element = 0; element < 2; element++) {
            if (!try_group(c, rank, group, (enum dtp_element)element))
                return false;
            sent += (uint64_t)SHARD * (groups[group].ranks - 1) * dtp_element_bytes((enum dtp_element)element);
        }
    if (!try_transfers(c, rank))
        return false;
    group = 0;
    CHECK(c->sent_bytes[DTP_ALL_GATHER] == sent && c->sent_bytes[DTP_REDUCE_SCATTER] == sent);
    CHECK(c->sent_bytes[DTP_ALL_TO_ALL] == sent);
    CHECK(c->sent_bytes[DTP_ALL_REDUCE] == 2 * sent && c->calls[DTP_ALL_REDUCE] == 2 * GROUPS);
    float odd[3] = {0};
    struct dtp_collective_args uneven = {DTP_REDUCE_SCATTER, 0, odd, odd, sizeof odd, DTP_ELEMENT_FP32};
    CHECK(c->verbs->collective(c, &uneven, NULL) != 0);
    CHECK(dtp_control_barrier(control, NULL) == DTP_OK); /* what comes now ends all that are still at work */
    if (rank == 2) {                                     /* gives up instead of meeting the others */
        c->verbs->abort(c);
        return true;
    }
    struct dtp_collective_args never = {DTP_ALL_REDUCE, 0, odd, odd, sizeof odd, DTP_ELEMENT_FP32};
    int code = c->verbs->collective(c, &never, NULL);
    CHECK(code != 0 && c->verbs->poll(c) == code && strstr(c->verbs->error_text(c, code), "gave up"));
    return true;
}

static int run_rank(struct dtp_ranks ranks, const struct dtp_program_group *used, uint32_t used_count)
{
    struct dtp_faults faults = {0};
    struct dtp_control_options options = {.join_timeout_s = PATIENCE_S, .silence_s = PATIENCE_S};
    struct dtp_control *control;
    struct dtp_communicator *c;
    alarm(2 * PATIENCE_S); /* no test may hang */
    if (dtp_control_join(&ranks, &options, &control, &faults) != DTP_OK) {
        fprintf(stderr, "%s\n", faults.text[0]);
        return 10;
    }
    struct dtp_communicator_options all = {
        .ranks = &ranks, .control = control, .groups = used, .group_count = used_count};
    enum dtp_status status = dtp_communicator_host_create(&all, &c, &faults);
    if (status != DTP_OK) {
        dtp_control_leave(control);
        return 20 + (int)status;
    }
    bool fine = rank_main(c, control, ranks.rank);
    dtp_control_barrier(control, NULL);
    c->verbs->destroy(c);
    dtp_control_leave(control);
    return fine ? 0 : 1;
}

static void expect_of_all(const struct dtp_program_group *used, uint32_t used_count, int code)
{
    uint16_t port = free_port();
    pid_t pid[WORLD];
    fflush(NULL);
    for (uint32_t i = 0; i < WORLD; i++) {
        pid[i] = fork();
        if (pid[i] == 0)
            _exit(run_rank((struct dtp_ranks){.rank = i, .world = WORLD, .host = "127.0.0.1", .port = port}, used,
                           used_count));
    }
    for (uint32_t i = 0; i < WORLD; i++) {
        int status;
        assert_int_equal(waitpid(pid[i], &status, 0), pid[i]);
        assert_true(WIFEXITED(status));
        assert_int_equal(WEXITSTATUS(status), code);
    }
}

static void test_collectives(void **state)
{
    (void)state;
    expect_of_all(groups, GROUPS, 0);
}

static void test_groups_that_do_not_divide_the_world(void **state)
{
    (void)state;
    static const struct dtp_program_group three = {3, 1}, far = {2, 4};
    expect_of_all(&three, 1, 20 + DTP_BAD_INPUT);
    expect_of_all(&far, 1, 20 + DTP_BAD_INPUT);
}

static void test_places(void **state)
{
    (void)state;
    const struct dtp_program_group strided = {4, 8}, inside = {8, 1};
    struct dtp_group_place p = dtp_group_place(&strided, 8 * 5 + 3);
    assert_int_equal(p.first, 32 + 3);
    assert_int_equal(p.index, 1);
    assert_int_equal(p.instance, 8 + 3);
    p = dtp_group_place(&inside, 8 * 5 + 3);
    assert_int_equal(p.first, 40);
    assert_int_equal(p.index, 3);
    assert_int_equal(p.instance, 5);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_places),
        cmocka_unit_test(test_collectives),
        cmocka_unit_test(test_groups_that_do_not_divide_the_world),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
