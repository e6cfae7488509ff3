/* Ranks on machines as the plan has them, what NCCL hears of pretended ones, and two "machines" of the host device. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "ranks/nodes.h"
#include "lib/rank_fixture.h"

static struct dtp_cluster cluster = {.gpus = 4, .gpus_per_node = 2, .nodes = 2, .network = DTP_NETWORK_SOCKETS};
static const struct dtp_cluster one_node = {.gpus = 4, .gpus_per_node = 4, .nodes = 1};

static struct dtp_ranks rank_of(uint32_t rank, uint32_t local_rank, uint32_t local_world)
{
    return (struct dtp_ranks){
        .rank = rank, .world = 4, .local_rank = local_rank, .local_world = local_world, .launcher = "srun"};
}

static void expect(enum dtp_status got, const struct dtp_faults *faults, const char *words)
{
    assert_int_equal(got, words ? DTP_BAD_INPUT : DTP_OK);
    if (words && !strstr(faults->text[0], words))
        fail_msg("'%s' lacks '%s'", faults->text[0], words);
}

static void expect_launch(struct dtp_nodes nodes, const char *words)
{
    struct dtp_faults faults = {0};
    expect(dtp_nodes_check_launch(&nodes, &faults), &faults, words);
}

static void expect_rank(struct dtp_nodes nodes, struct dtp_ranks ranks, const char *words)
{
    struct dtp_faults faults = {0};
    expect(dtp_nodes_check_rank(&nodes, &ranks, &faults), &faults, words);
}

static void test_starting_here(void **state)
{
    struct dtp_cluster rdma = cluster;
    (void)state;
    rdma.network = DTP_NETWORK_RDMA;
    expect_launch((struct dtp_nodes){&one_node, false, true}, NULL);
    expect_launch((struct dtp_nodes){&cluster, false, false}, NULL);
    expect_launch((struct dtp_nodes){&cluster, true, true}, NULL);
    expect_launch((struct dtp_nodes){&cluster, false, true}, "2 nodes of 2 GPUs");
    expect_launch((struct dtp_nodes){&one_node, true, true}, "one node of 4 GPUs");
    expect_launch((struct dtp_nodes){&cluster, true, false}, NULL);
    expect_launch((struct dtp_nodes){&rdma, true, false}, NULL); /* in the memory of one host */
    expect_launch((struct dtp_nodes){&rdma, true, true}, "--network sockets");
}

static void test_numbers_of_ranks(void **state)
{
    struct dtp_nodes gpus = {&cluster, false, true}, host = {&cluster, false, false},
                     pretended = {&cluster, true, true};
    (void)state;
    expect_rank(gpus, rank_of(3, 1, 2), NULL);
    expect_rank(gpus, rank_of(3, 1, 0), NULL); /* srun does not always say how many */
    expect_rank(gpus, rank_of(2, 1, 2), "number 1 of 2 on its machine, by the plan it is number 0 of 2");
    expect_rank(gpus, rank_of(3, 3, 4), "number 3 of 4");
    expect_rank((struct dtp_nodes){&one_node, false, true}, rank_of(3, 3, 4), NULL);
    expect_rank((struct dtp_nodes){&one_node, false, true}, rank_of(3, 1, 2), "--gpus-per-node");
    expect_rank(host, rank_of(3, 1, 2), NULL);
    expect_rank(host, rank_of(3, 3, 4), NULL);
    expect_rank(host, rank_of(3, 0, 1), "number 0 of 1");
    expect_rank(pretended, rank_of(3, 3, 4), NULL);
    expect_rank(pretended, rank_of(3, 1, 2), "all 4 ranks should be on one");
}

/* ---- what NCCL hears --------------------------------------------------------------------------------------------- */

static char heard[1024];

static int hear(const char *name, const char *value, int overwrite)
{
    size_t used = strlen(heard);
    snprintf(heard + used, sizeof heard - used, "%s%s=%s ", overwrite ? "!" : "", name, value);
    return 0;
}

static const char *environment_of(struct dtp_nodes nodes, uint32_t rank)
{
    struct dtp_ranks ranks = rank_of(rank, rank, 4);
    heard[0] = '\0';
    dtp_nodes_environment(&nodes, &ranks, hear);
    return heard;
}

static void test_what_nccl_hears(void **state)
{
    struct dtp_cluster rdma = cluster;
    (void)state;
    rdma.network = DTP_NETWORK_RDMA;
    assert_string_equal(environment_of((struct dtp_nodes){&one_node, false, true}, 1), "");
    assert_string_equal(environment_of((struct dtp_nodes){&rdma, false, true}, 1), "");
    assert_string_equal(environment_of((struct dtp_nodes){&cluster, false, true}, 1),
                        "NCCL_SOCKET_NTHREADS=4 NCCL_NSOCKS_PERTHREAD=2 ");
    assert_non_null(strstr(environment_of((struct dtp_nodes){&cluster, true, true}, 1), "!NCCL_HOSTID=dtplan-node-0 "));
    assert_non_null(strstr(environment_of((struct dtp_nodes){&cluster, true, true}, 2), "!NCCL_HOSTID=dtplan-node-1 "));
    assert_non_null(strstr(heard, " NCCL_SOCKET_IFNAME=lo "));
}

/* Each of those that share a GPU is a host of its own, whatever nodes the plan has; nothing of one rank is mapped into
 * another. On the host device there is nothing to say, and of one rank nobody to tell. */
static void test_what_nccl_hears_of_ranks_that_share(void **state)
{
    struct dtp_nodes shared = {.cluster = &one_node, .cuda = true, .share = true};
    struct dtp_ranks alone = {.world = 1};
    (void)state;
    assert_string_equal(environment_of(shared, 3),
                        "!NCCL_HOSTID=dtplan-rank-3 NCCL_NET=Socket NCCL_SOCKET_IFNAME=lo NCCL_IB_DISABLE=1 "
                        "NCCL_MNNVL_ENABLE=0 NCCL_P2P_DISABLE=1 NCCL_SHM_DISABLE=1 NCCL_NVLS_ENABLE=0 "
                        "NCCL_MAX_NCHANNELS=2 ");
    shared.cluster = &cluster;
    shared.pretend = true;
    assert_non_null(strstr(environment_of(shared, 1), "!NCCL_HOSTID=dtplan-rank-1 "));
    shared.cuda = false;
    assert_string_equal(environment_of(shared, 1), "");
    shared = (struct dtp_nodes){.cluster = &one_node, .cuda = true, .share = true};
    heard[0] = '\0';
    dtp_nodes_environment(&shared, &alone, hear);
    assert_string_equal(heard, "");
}

static void test_ranks_that_share_are_on_one_machine(void **state)
{
    struct dtp_nodes shared = {.cluster = &cluster, .cuda = true, .share = true};
    (void)state;
    expect_rank(shared, rank_of(3, 1, 2),
                "--share-gpu: rank 3 is number 1 of its machine, where all 4 ranks should be");
    shared.cluster = &one_node;
    expect_rank(shared, rank_of(3, 3, 4), NULL);
}

/* ---- two machines of the host device ----------------------------------------------------------------------------- */

#define PLAN RUN_LLAMA "gpus=4 gpus_per_node=2 strategy=hybrid_shard shard_group=2 micro_batch=2"
#define RENDEZVOUS "export WORLD_SIZE=4 MASTER_ADDR=127.0.0.1 MASTER_PORT=%u; "

static unsigned port(void)
{
    return 20000 + (unsigned)getpid() % 20000;
}

/* As torchrun starts them: a process for each rank, two on each machine. */
static void test_as_torchrun_starts_two_nodes(void **state)
{
    static struct run_result alone, together;
    char one[4096], all[20000];
    (void)state;
    rank_run(RUN_LLAMA "gpus=1 strategy=ddp micro_batch=8", "--steps 10 --lr 1e-3", &alone);
    rank_command_line(PLAN, "--steps 10 --lr 1e-3", one, sizeof one);
    size_t used = (size_t)snprintf(all, sizeof all, RENDEZVOUS "export LOCAL_WORLD_SIZE=2; ", port());
    for (int rank = 3; rank >= 0; rank--)
        used += (size_t)snprintf(all + used, sizeof all - used, "RANK=%d LOCAL_RANK=%d %s %s", rank, rank % 2, one,
                                 rank ? "> /dev/null & " : "");
    rank_run_line(all, &together);
    assert_int_equal(together.status, DTP_OK);
    assert_true(run_apart(&together, &alone) < 1e-6);
}

/* Nodes that are pretended of ranks on one machine's cores: hybrid sharding learns what one rank alone does. */
static void test_nodes_pretended_on_a_host(void **state)
{
    static struct run_result alone, together;
    (void)state;
    rank_run(RUN_LLAMA "gpus=1 strategy=ddp micro_batch=8", "--steps 10 --lr 1e-3", &alone);
    rank_run(PLAN, "--steps 10 --lr 1e-3 --pretend-nodes", &together);
    assert_int_equal(together.status, DTP_OK);
    assert_true(run_apart(&together, &alone) < 1e-6);
}

/* As srun numbers them with --distribution=cyclic: every rank refuses, none waits for the others. */
static void test_ranks_dealt_to_nodes_in_turn(void **state)
{
    static struct run_result result;
    char one[4096], line[8192];
    (void)state;
    rank_command_line(PLAN, "--steps 10", one, sizeof one);
    snprintf(line, sizeof line,
             RENDEZVOUS "SLURM_PROCID=2 SLURM_NTASKS=4 SLURM_LOCALID=1 SLURM_NTASKS_PER_NODE=2 SLURM_STEP_ID=0 "
                        "SLURM_JOB_ID=7 %s 2>/dev/null",
             port(), one);
    unsetenv("RANK");
    rank_run_line(line, &result);
    assert_int_equal(result.status, DTP_BAD_INPUT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_starting_here),
                                       cmocka_unit_test(test_numbers_of_ranks),
                                       cmocka_unit_test(test_what_nccl_hears),
                                       cmocka_unit_test(test_what_nccl_hears_of_ranks_that_share),
                                       cmocka_unit_test(test_ranks_that_share_are_on_one_machine),
                                       cmocka_unit_test(test_as_torchrun_starts_two_nodes),
                                       cmocka_unit_test(test_nodes_pretended_on_a_host),
                                       cmocka_unit_test(test_ranks_dealt_to_nodes_in_turn)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
