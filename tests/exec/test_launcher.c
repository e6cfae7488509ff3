/* Runs of small shell scripts in the place of ranks. */
#include "base/clock.h"
#include "ranks/launcher.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static char folder[] = "/tmp/dtplan-launcher-XXXXXX";

static enum dtp_status launch(const char *script, uint32_t ranks, struct dtp_faults *faults)
{
    char *argv[] = {"/bin/sh", "-c", (char *)script, NULL};
    setenv("FOLDER", folder, 1);
    return dtp_launch(argv, ranks, faults);
}

static void expect_file(const char *name, const char *text)
{
    char path[256], held[256] = "";
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "r");
    if (!file)
        fail_msg("no %s", path);
    if (!fgets(held, sizeof held, file))
        held[0] = '\0';
    fclose(file);
    remove(path);
    assert_string_equal(held, text);
}

static void test_each_rank_knows_its_place(void **state)
{
    (void)state;
    struct dtp_faults faults = {0};
    const char *script =
        "echo $RANK of $WORLD_SIZE here $LOCAL_RANK of $LOCAL_WORLD_SIZE at $MASTER_ADDR >$FOLDER/rank$RANK; "
        "[ \"$MASTER_PORT\" -gt 0 ]";
    assert_int_equal(launch(script, 3, &faults), DTP_OK);
    assert_int_equal(faults.count, 0);
    expect_file("rank0", "0 of 3 here 0 of 3 at 127.0.0.1\n");
    expect_file("rank2", "2 of 3 here 2 of 3 at 127.0.0.1\n");
    expect_file("rank1", "1 of 3 here 1 of 3 at 127.0.0.1\n");
}

static void test_the_worst_status_counts(void **state)
{
    (void)state;
    struct dtp_faults faults = {0};
    assert_int_equal(launch("exit $((RANK == 1))", 3, &faults), DTP_NO);
    assert_int_equal(launch("exit $((RANK == 1 ? 2 : 0))", 3, &faults), DTP_BAD_INPUT);
    assert_int_equal(launch("exit $((RANK == 2 ? 77 : 1))", 3, &faults), DTP_ENVIRONMENT);
    assert_int_equal(faults.count, 0); /* the ranks have said why */
    assert_int_equal(launch("[ $RANK = 1 ] && kill -9 $$; exit 0", 3, &faults), DTP_ENVIRONMENT);
    assert_int_equal(faults.count, 1);
    assert_non_null(strstr(faults.text[0], "rank 1 was ended by signal 9"));
    char *missing[] = {"/no/such/program", NULL};
    assert_int_equal(dtp_launch(missing, 2, &faults), DTP_ENVIRONMENT);
}

/* Nobody has met yet, so nobody hears of it: those that wait are ended before their own patience is (control.h). */
static void test_a_rank_killed_before_it_joined_is_named_soon(void **state)
{
    (void)state;
    struct dtp_faults faults = {0};
    double begin_s = dtp_now_s();
    assert_int_equal(launch("[ $RANK = 1 ] && kill -9 $$; exec sleep 60", 2, &faults), DTP_ENVIRONMENT);
    assert_true(dtp_now_s() - begin_s < DTP_LAUNCH_GRACE_S - 5);
    assert_non_null(strstr(faults.text[0], "rank 1 was ended by signal 9"));
}

/* A launcher in a process of its own, so that it can be interrupted or killed: interruptions mean to it what they mean
 * to a program that a terminal starts, where the test's own are ignored too (nohup, `&` of a script), for a shell traps
 * no signal that it was started to ignore. */
static pid_t launch_apart(const char *script)
{
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        struct dtp_faults faults = {0};
        signal(SIGINT, SIG_DFL);
        _exit(launch(script, 2, &faults));
    }
    return pid;
}

/* Ranks start when a busy machine lets them; `script` writes that file when it has come so far. */
static void wait_for_file(const char *name)
{
    char path[256];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    for (double end_s = dtp_now_s() + 60; access(path, F_OK) != 0;) {
        assert_true(dtp_now_s() < end_s);
        usleep(20000);
    }
}

static void test_interruption_reaches_all_ranks(void **state)
{
    (void)state;
    pid_t pid = launch_apart("trap 'echo told >$FOLDER/told$RANK; exit 0' INT; echo ready >$FOLDER/ready$RANK; i=0; "
                             "while [ $i -lt 60 ]; do sleep 1; i=$((i + 1)); done; exit 3");
    int status;
    wait_for_file("ready0");
    wait_for_file("ready1");
    kill(pid, SIGINT);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    expect_file("ready0", "ready\n");
    expect_file("ready1", "ready\n");
    expect_file("told0", "told\n");
    expect_file("told1", "told\n");
}

/* What has ended and waits for its new parent to notice does not run. */
static bool runs(int pid)
{
    char path[64], state = 'Z';
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    FILE *file = fopen(path, "r");
    if (!file)
        return false;
    bool read = fscanf(file, "%*d %*s %c", &state) == 1;
    fclose(file);
    return read && state != 'Z' && state != 'X';
}

static void test_ranks_end_with_the_launcher(void **state)
{
    (void)state;
    pid_t pid = launch_apart("echo $$ >$FOLDER/pid$RANK; echo ready >$FOLDER/ready$RANK; exec sleep 300");
    char path[256], text[32] = "";
    wait_for_file("ready0");
    wait_for_file("ready1");
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    expect_file("ready0", "ready\n");
    expect_file("ready1", "ready\n");
    for (int rank = 0; rank < 2; rank++) {
        snprintf(path, sizeof path, "%s/pid%d", folder, rank);
        FILE *file = fopen(path, "r");
        assert_non_null(file);
        assert_non_null(fgets(text, sizeof text, file));
        fclose(file);
        remove(path);
        for (double end_s = dtp_now_s() + 30; runs(atoi(text));) {
            assert_true(dtp_now_s() < end_s);
            usleep(20000);
        }
    }
}

static int make_folder(void **state)
{
    (void)state;
    return mkdtemp(folder) ? 0 : -1;
}

static int remove_folder(void **state)
{
    (void)state;
    return rmdir(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_each_rank_knows_its_place),
        cmocka_unit_test(test_the_worst_status_counts),
        cmocka_unit_test(test_a_rank_killed_before_it_joined_is_named_soon),
        cmocka_unit_test(test_interruption_reaches_all_ranks),
        cmocka_unit_test(test_ranks_end_with_the_launcher),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
