#include "ranks/ranks.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

/* "NAME=VALUE" lines of the environment under test, ended by NULL. */
static const char *const *environment;

static char *get(const char *name)
{
    size_t length = strlen(name);
    for (const char *const *line = environment; *line; line++)
        if (strncmp(*line, name, length) == 0 && (*line)[length] == '=')
            return (char *)(*line + length + 1);
    return NULL;
}

#define ENVIRONMENT(...)                                                                                               \
    environment = (const char *const[])                                                                                \
    {                                                                                                                  \
        __VA_ARGS__, NULL                                                                                              \
    }

static struct dtp_ranks read_ranks(void)
{
    struct dtp_ranks ranks;
    struct dtp_faults faults = {0};
    if (dtp_ranks_read(get, &ranks, &faults) != DTP_OK)
        fail_msg("%s", faults.text[0]);
    return ranks;
}

static void expect_refused(const char *words)
{
    struct dtp_ranks ranks;
    struct dtp_faults faults = {0};
    assert_int_equal(dtp_ranks_read(get, &ranks, &faults), DTP_BAD_INPUT);
    if (!strstr(faults.text[0], words))
        fail_msg("'%s' lacks '%s'", faults.text[0], words);
}

static void test_no_launcher_is_one_rank(void **state)
{
    (void)state;
    ENVIRONMENT("HOME=/root", "MASTER_ADDR=elsewhere", "SLURM_PROCID=3", "SLURM_NTASKS=8", "WORLD_SIZE=1");
    struct dtp_ranks r = read_ranks();
    assert_int_equal(r.world, 1);
    assert_int_equal(r.rank, 0);
    assert_string_equal(r.launcher, "");
}

static void test_torchrun(void **state)
{
    (void)state;
    ENVIRONMENT("RANK=9", "WORLD_SIZE=16", "LOCAL_RANK=1", "LOCAL_WORLD_SIZE=8", "MASTER_ADDR=10.0.0.7",
                "MASTER_PORT=1234", "TORCHELASTIC_USE_AGENT_STORE=True", "SLURM_PROCID=0", "SLURM_STEP_ID=0");
    struct dtp_ranks r = read_ranks();
    assert_int_equal(r.rank, 9);
    assert_int_equal(r.world, 16);
    assert_int_equal(r.local_rank, 1);
    assert_int_equal(r.local_world, 8);
    assert_string_equal(r.host, "10.0.0.7");
    assert_int_equal(r.port, 1235);
    assert_string_equal(r.launcher, "torchrun");
}

static void test_srun(void **state)
{
    (void)state;
    ENVIRONMENT("SLURM_PROCID=5", "SLURM_NTASKS=8", "SLURM_LOCALID=1", "SLURM_STEP_ID=0", "SLURM_JOB_ID=4123456",
                "SLURM_STEP_NODELIST=gpu[007-008],other3", "SLURM_LAUNCH_NODE_IPADDR=10.1.1.1");
    struct dtp_ranks r = read_ranks();
    assert_int_equal(r.rank, 5);
    assert_string_equal(r.host, "gpu007");
    assert_int_equal(r.port, 20000 + 4123456 % 40000);
    ENVIRONMENT("SLURM_PROCID=0", "SLURM_NTASKS=2", "SLURM_LOCALID=0", "SLURM_STEP_ID=0", "SLURM_STEP_NODELIST=a,b");
    assert_string_equal(read_ranks().host, "a");
    /* Of one node all are here, whatever Slurm calls it: its name need be none that a resolver knows. */
    ENVIRONMENT("SLURM_PROCID=1", "SLURM_NTASKS=4", "SLURM_LOCALID=1", "SLURM_STEP_ID=0", "SLURM_STEP_NODELIST=node1",
                "SLURM_STEP_NUM_NODES=1");
    r = read_ranks();
    assert_string_equal(r.host, "127.0.0.1");
    assert_int_equal(r.local_world, 4);
}

static void test_mpirun(void **state)
{
    (void)state;
    ENVIRONMENT("OMPI_COMM_WORLD_RANK=3", "OMPI_COMM_WORLD_SIZE=4", "OMPI_COMM_WORLD_LOCAL_RANK=3",
                "OMPI_COMM_WORLD_LOCAL_SIZE=4");
    struct dtp_ranks r = read_ranks();
    assert_int_equal(r.rank, 3);
    assert_string_equal(r.host, "127.0.0.1");
    assert_int_equal(r.port, DTP_RANKS_DEFAULT_PORT);
    ENVIRONMENT("OMPI_COMM_WORLD_RANK=3", "OMPI_COMM_WORLD_SIZE=8", "OMPI_COMM_WORLD_LOCAL_RANK=3",
                "OMPI_COMM_WORLD_LOCAL_SIZE=4");
    expect_refused("MASTER_ADDR: not set, and 8 ranks are on several machines");
}

static void test_refusals(void **state)
{
    (void)state;
    ENVIRONMENT("RANK=0", "WORLD_SIZE=2", "LOCAL_RANK=zero");
    expect_refused("LOCAL_RANK: 'zero'");
    ENVIRONMENT("RANK=2", "WORLD_SIZE=2", "LOCAL_RANK=0");
    expect_refused("rank 2 of 2");
    ENVIRONMENT("RANK=0", "LOCAL_RANK=0");
    expect_refused("WORLD_SIZE: not set");
    ENVIRONMENT("WORLD_SIZE=4");
    expect_refused("RANK: not set");
    ENVIRONMENT("RANK=1", "WORLD_SIZE=2", "LOCAL_RANK=1", "LOCAL_WORLD_SIZE=1");
    expect_refused("LOCAL_RANK: 1 of 1");
    ENVIRONMENT("RANK=0", "WORLD_SIZE=2", "LOCAL_RANK=0", "MASTER_PORT=99999");
    expect_refused("MASTER_PORT: '99999'");
    ENVIRONMENT("RANK=0", "WORLD_SIZE=2", "LOCAL_RANK=0", "MASTER_PORT=0");
    expect_refused("0 is no port");
    ENVIRONMENT("RANK=-1", "WORLD_SIZE=2", "LOCAL_RANK=0");
    expect_refused("RANK: '-1'");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_no_launcher_is_one_rank),
        cmocka_unit_test(test_torchrun),
        cmocka_unit_test(test_srun),
        cmocka_unit_test(test_mpirun),
        cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
