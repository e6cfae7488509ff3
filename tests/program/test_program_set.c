/* Sets of programs: their text, which send meets which receive, and who waits for ever. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "lib/program_sets.h"
#include "program/program_text.h"

static struct dtp_faults faults;

static struct dtp_program_set parse(const char *text)
{
    struct dtp_program_set set;
    faults = (struct dtp_faults){0};
    if (dtp_program_set_parse_text("set", text, strlen(text), &set, &faults) != DTP_OK)
        fail_msg("%s", faults.text[0]);
    return set;
}

static void test_text_goes_there_and_back(void **state)
{
    char *text = NULL;
    size_t bytes;
    (void)state;
    struct dtp_program_set set = parse(SET_THERE_AND_BACK);
    assert_int_equal(set.role_count, 2);
    assert_string_equal(set.roles[1].name, "last");
    assert_int_equal(dtp_program_set_ranks(&set), 2);
    FILE *file = open_memstream(&text, &bytes);
    assert_int_equal(dtp_program_set_write_text(&set, file), DTP_OK);
    fclose(file);
    struct dtp_program_set again = parse(text);
    for (uint32_t r = 0; r < 2; r++) {
        uint64_t one, other;
        assert_int_equal(dtp_program_digest(set.roles[r].program, &one, NULL), DTP_OK);
        assert_int_equal(dtp_program_digest(again.roles[r].program, &other, NULL), DTP_OK);
        assert_int_equal(one, other);
    }
    free(text);
    dtp_program_set_release(&set);
    dtp_program_set_release(&again);
}

/* Every cut is refused, and what is read of a changed byte can be written. */
static void test_cuts_and_changes(void **state)
{
    static const char whole[] = SET_THERE_AND_BACK;
    char copy[sizeof whole];
    struct dtp_program_set set;
    (void)state;
    for (size_t bytes = 0; bytes + 2 < sizeof whole; bytes++) {
        assert_int_equal(dtp_program_set_parse_text("set", whole, bytes, &set, NULL), DTP_BAD_INPUT);
        assert_int_equal(set.role_count, 0);
    }
    for (size_t i = 0; i + 1 < sizeof whole; i++) {
        memcpy(copy, whole, sizeof whole);
        copy[i] ^= 1 + (char)(i % 5);
        if (dtp_program_set_parse_text("set", copy, sizeof whole - 1, &set, NULL) == DTP_OK) {
            dtp_program_set_verify(&set, DTP_ISSUE_IN_LINE, NULL);
            dtp_program_set_release(&set);
        }
    }
}

static void test_faults_of_the_text_have_their_line(void **state)
{
    static const struct {
        const char *old, *new, *reason;
    } rows[] = {
        {"set 1", "set 2", "set:1: \"2\", where \"1\" is expected"},
        {"set 1", "set 1 late", "set:1: \"late\", where \"run\" or \"apart\" is expected once"},
        {"set 1", "set 1 apart apart", "set:1: \"apart\", where \"run\" or \"apart\" is expected once"},
        {"role 1", "role 2", "set:13: role 2 stands where role 1 is expected"},
        {"\"last\" ranks 1", "\"last\" ranks 0", "set:13: ranks is \"0\""},
        {"peer 0 tag 7 writes", "peer 0 writes", "set:18: a recv needs a peer and a tag"},
        {"norm compute reads 0 writes 1", "norn compute reads 0 writes 1", "set:19: unknown kind"},
        {"norm compute reads 0 writes 1", "norm compute tag 3 reads 0 writes 1", "set:19: operation 1 (norm): only a"},
        {"end roles 2", "end roles 3", "set:22: there are 2 roles above"},
        {"end roles 2\n", "", "the set has no line \"end roles"},
        {"end roles 2\n", "end roles 2\nrole 2\n", "set:23: the set goes on behind its end"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct dtp_program_set set;
        char *text = set_with(SET_THERE_AND_BACK, rows[i].old, rows[i].new);
        assert_non_null(text);
        faults = (struct dtp_faults){0};
        assert_int_equal(dtp_program_set_parse_text("set", text, strlen(text), &set, &faults), DTP_BAD_INPUT);
        if (!strstr(faults.text[0], rows[i].reason))
            fail_msg("\"%s\", not \"%s\"", faults.text[0], rows[i].reason);
        free(text);
    }
}

/* Steps that begin apart are said by the text, and make another set of the same programs. */
static void test_steps_begin_apart(void **state)
{
    struct dtp_program_set set, apart, again;
    uint64_t digests[2];
    char *text = set_with(SET_THERE_AND_BACK, "set 1", "set 1 run 1 apart"), *written = NULL;
    size_t bytes;
    (void)state;
    assert_int_equal(dtp_program_set_parse_text("set", SET_THERE_AND_BACK, strlen(SET_THERE_AND_BACK), &set, &faults),
                     DTP_OK);
    assert_int_equal(dtp_program_set_parse_text("set", text, strlen(text), &apart, &faults), DTP_OK);
    assert_true(!set.apart && apart.apart && apart.run == 1);
    apart.run = 0;
    assert_int_equal(dtp_program_set_digest(&set, &digests[0], &faults), DTP_OK);
    assert_int_equal(dtp_program_set_digest(&apart, &digests[1], &faults), DTP_OK);
    assert_true(digests[0] != digests[1]);
    FILE *file = open_memstream(&written, &bytes);
    assert_int_equal(dtp_program_set_write_text(&apart, file), DTP_OK);
    fclose(file);
    assert_int_equal(strncmp(written, "set 1 apart\n", 12), 0);
    assert_int_equal(dtp_program_set_parse_text("set", written, bytes, &again, &faults), DTP_OK);
    assert_true(again.apart);
    dtp_program_set_release(&set);
    dtp_program_set_release(&apart);
    dtp_program_set_release(&again);
    free(text);
    free(written);
}

static void test_sends_meet_receives(void **state)
{
    struct dtp_host_arena arena = {0};
    uint32_t **partner;
    (void)state;
    struct dtp_program_set set = parse(SET_THERE_AND_BACK);
    assert_int_equal(dtp_program_set_match(&set, &arena, &partner, &faults), DTP_OK);
    assert_int_equal(partner[0][1], 0);
    assert_int_equal(partner[1][0], 1);
    assert_int_equal(partner[0][3], 2);
    assert_int_equal(partner[1][2], 3);
    assert_int_equal(partner[0][0], DTP_NO_INDEX);
    assert_int_equal(dtp_program_set_peer_rank(&set, 1, &dtp_program_ops(set.roles[1].program)[0]), 0);
    assert_int_equal(dtp_program_set_role_of(&set, 1), 1);
    assert_int_equal(dtp_program_set_verify(&set, DTP_ISSUE_STREAMS, &faults), DTP_OK);
    assert_int_equal(dtp_program_set_verify(&set, DTP_ISSUE_IN_LINE, &faults), DTP_OK);
    dtp_host_arena_release(&arena);
    dtp_program_set_release(&set);
}

static void expect_unsound(const char *old, const char *new, const char *reason)
{
    char *text = set_with(SET_THERE_AND_BACK, old, new);
    assert_non_null(text);
    struct dtp_program_set set = parse(text);
    free(text);
    faults = (struct dtp_faults){0};
    assert_int_equal(dtp_program_set_verify(&set, DTP_ISSUE_STREAMS, &faults), DTP_BAD_INPUT);
    if (!strstr(faults.text[0], reason))
        fail_msg("\"%s\", not \"%s\"", faults.text[0], reason);
    dtp_program_set_release(&set);
}

static void test_what_does_not_match_is_refused(void **state)
{
    (void)state;
    expect_unsound("peer 0 tag 7", "peer 0 tag 9", "role 0, operation 1 sends tag 7 to role 1, where operation 0");
    expect_unsound("peer 0 tag 7", "peer 1 tag 7", "role 1, operation 0: its peer 1 is no other role of 1 ranks");
    expect_unsound("peer 0 tag 7", "peer 2 tag 7", "role 1, operation 0: its peer 2 is no other role of 1 ranks");
    expect_unsound("send gather group 0 peer 1 tag 7 reads 0 after 0 sent_bytes 1048576",
                   "norm compute reads 0 bytes 1048576",
                   "role 1, operation 0 receives tag 7 from role 0, which has no send");
    expect_unsound("recv gather group 0 peer 0 tag 7 writes 0", "norm compute writes 0",
                   "role 0, operation 1 sends tag 7 to role 1, which has no receive");
    expect_unsound("sent_bytes 1048576", "sent_bytes 524288", "role 0, operation 1 sends 524288 bytes to role 1");
    expect_unsound("peer 0 tag 7 writes 0", "peer 0 tag 7 writes 0@0+512", "the one received 512");
    expect_unsound("group 0 ranks 2 stride 1", "group 0 ranks 1 stride 1", "role 1 has other groups than role 0");
    expect_unsound("group 0 ranks 2 stride 1", "group 0 ranks 4294967295 stride 1",
                   "role 0: group 0 of 4294967295 ranks 1 apart does not divide the set's 2 ranks");
    expect_unsound("dtype bf16", "dtype fp32", "and of one format");
}

/* Both receive before they send: on one stream each, and with the sends on streams that the host issues too late. */
static void test_a_deadlock_is_refused(void **state)
{
    static const char crossed[] =
        "set 1\nrole 0 \"a\" ranks 1\nprogram 1\ngroup 0 ranks 2 stride 1\ngroup 1 ranks 2 stride 1\n" SET_BUFFERS
        "op 0 recv gather group 0 peer 1 tag 1 writes 0\n"
        "op 1 send reduce group 1 peer 1 tag 2 reads 1 sent_bytes 1048576\nend ops 2 buffers 2 groups 2\n"
        "role 1 \"b\" ranks 1\nprogram 1\ngroup 0 ranks 2 stride 1\ngroup 1 ranks 2 stride 1\n" SET_BUFFERS
        "op 0 recv gather group 1 peer 0 tag 2 writes 0\n"
        "op 1 send reduce group 0 peer 0 tag 1 reads 1 sent_bytes 1048576\nend ops 2 buffers 2 groups 2\nend roles 2\n";
    (void)state;
    struct dtp_program_set set = parse(crossed);
    assert_int_equal(dtp_program_set_verify(&set, DTP_ISSUE_STREAMS, &faults), DTP_OK);
    faults = (struct dtp_faults){0};
    assert_int_equal(dtp_program_set_verify(&set, DTP_ISSUE_IN_LINE, &faults), DTP_BAD_INPUT);
    assert_int_equal(faults.count, 2);
    assert_non_null(
        strstr(faults.text[1], "deadlock: role 1 stands for ever at operation 0 (recv of tag 2 with role 0)"));
    dtp_program_set_release(&set);
    char *text = set_with(crossed, "send reduce group 1", "send gather group 1");
    char *both = set_with(text, "send reduce group 0", "send gather group 0");
    set = parse(both);
    faults = (struct dtp_faults){0};
    assert_int_equal(dtp_program_set_verify(&set, DTP_ISSUE_STREAMS, &faults), DTP_BAD_INPUT);
    assert_non_null(strstr(faults.text[0], "deadlock: role 0 stands for ever at operation 0"));
    dtp_program_set_release(&set);
    free(text);
    free(both);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_text_goes_there_and_back), cmocka_unit_test(test_cuts_and_changes),
        cmocka_unit_test(test_steps_begin_apart),        cmocka_unit_test(test_faults_of_the_text_have_their_line),
        cmocka_unit_test(test_sends_meet_receives),      cmocka_unit_test(test_what_does_not_match_is_refused),
        cmocka_unit_test(test_a_deadlock_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
