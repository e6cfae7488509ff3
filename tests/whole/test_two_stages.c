/* A program set on the host device: scenarios/two-stages.set, the model that the words below make, cut into two stages
 * by hand. It is proved, simulated, and trained by two ranks, one role each, with the losses of one rank that has it
 * all.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "lib/free_port.h"
#include "lib/run_fixture.h"
#include "lower/lower.h"
#include "runtime/dtplan/batch_layout.h"
#include "sim/simulate.h"
#include "train/batches.h"
#include "train/run.h"

#include <sys/wait.h>
#include <unistd.h>

#define WORDS                                                                                                          \
    "layers=2 hidden=16 heads=2 head_dim=8 ffn=40 vocab=50 seq=8 micro_batch=2 precision=fp32 gradient_norm=false"
#define STEPS 5
#define ROWS 16u
#define PATIENCE_S 60

static struct dtp_faults faults;

static void must(enum dtp_status status)
{
    if (status != DTP_OK)
        fail_msg("%s", faults.text[0]);
}

static struct dtp_program_set two_stages(void)
{
    static char text[1 << 16];
    struct dtp_program_set set;
    FILE *file = fopen(TEST_SOURCE_DIR "/scenarios/two-stages.set", "r");
    assert_non_null(file);
    size_t bytes = fread(text, 1, sizeof text, file);
    assert_true(bytes > 0 && bytes < sizeof text);
    fclose(file);
    must(dtp_program_set_parse_text("two-stages.set", text, bytes, &set, &faults));
    return set;
}

/* One rank, with all that it runs on. */
struct stand {
    struct dtp_job job;
    struct dtp_program *program;
    struct dtp_executor_arena arena;
    struct dtp_device *device;
    void *device_base, *host_base;
    struct dtp_binding binding;
    struct dtp_run *run;
};

/* The host's part of a step, as train_steps.c does it, with other tokens in each; the loss, a mean over the tokens. */
static double train_step(struct stand *s, uint64_t index)
{
    struct dtp_batch_layout layout = dtp_batch_layout_of(ROWS);
    char *batch = dtp_run_host_batch(s->run, 0);
    int32_t tokens[ROWS], targets[ROWS], scratch[64];
    double seconds;
    for (uint64_t i = 0; i < ROWS; i++) {
        tokens[i] = (int32_t)((7 * i * i + 3 * i + 11 * index) % 50);
        targets[i] = (int32_t)((7 * (i + 1) * (i + 1) + 3 * (i + 1) + 11 * index) % 50);
    }
    memcpy(batch + layout.tokens_offset_bytes, tokens, sizeof tokens);
    memcpy(batch + layout.targets_offset_bytes, targets, sizeof targets);
    dtp_batch_index(tokens, ROWS, 50, (int32_t *)(batch + layout.order_offset_bytes),
                    (int32_t *)(batch + layout.starts_offset_bytes), (int32_t *)(batch + layout.distinct_offset_bytes),
                    scratch);
    *dtp_run_host_scalars(s->run) = (struct dtp_step_scalars){.learning_rate = 1e-2f,
                                                              .correction1 = (float)(1 - pow(0.9, (double)index + 1)),
                                                              .correction2 = (float)(1 - pow(0.95, (double)index + 1)),
                                                              .clip_scale = 1,
                                                              .step = (uint32_t)index};
    must(dtp_run_begin(s->run, DTP_RUN_PLAIN, &faults));
    must(dtp_run_finish(s->run, &seconds, &faults));
    return (double)dtp_run_host_results(s->run)->loss_sum / ROWS;
}

/* A program placed, bound and ready to run: a role's of `set`, or without one all of the job. */
static void set_up(struct stand *s, const struct dtp_program_set *set, struct dtp_world *world)
{
    memset(s, 0, sizeof *s);
    run_job(WORDS, &s->job);
    if (set)
        s->program = set->roles[dtp_program_set_role_of(set, world->ranks.rank)].program;
    else
        must(dtp_lower(&s->job.transformer, &s->job.cluster, &s->job.plan, 0, &s->program, &faults));
    must(dtp_executor_arena_make(s->program, &s->arena, &faults));
    must(dtp_device_host_create(&(struct dtp_device_options){.threads = 1}, &s->device, &faults));
    must(s->device->verbs->allocate(s->device, s->arena.device_bytes, &s->device_base, &faults));
    must(s->device->verbs->allocate_host(s->device, s->arena.host_bytes, &s->host_base, &faults));
    if (world)
        must(dtp_world_connect(world, false, &faults));
    struct dtp_bind_job job = {.program = s->program,
                               .arena = &s->arena,
                               .device = s->device,
                               .device_base = s->device_base,
                               .host_base = s->host_base,
                               .world = world,
                               .set = set,
                               .rank = world ? world->ranks.rank : 0,
                               .optimizer = {0.9f, 0.95f, 1e-8f, 0.1f}};
    must(dtp_bind(&job, &s->binding, &faults));
    must(dtp_run_create(&s->binding, true, &s->run, &faults));
    must(dtp_run_initialise(s->run, 1, &faults));
}

static void tear_down(struct stand *s)
{
    dtp_run_destroy(s->run);
    dtp_binding_release(&s->binding);
    s->device->verbs->release(s->device, s->device_base);
    s->device->verbs->release_host(s->device, s->host_base);
    s->device->verbs->destroy(s->device);
    dtp_executor_arena_release(&s->arena);
    dtp_program_destroy(s->program);
}

/* Ends with 0, or says why not; the rank of the last stage writes its losses to `out`. */
static void run_rank(const struct dtp_program_set *set, const struct dtp_ranks *ranks, int out)
{
    static struct stand s;
    struct dtp_world world;
    double losses[STEPS];
    alarm(2 * PATIENCE_S); /* no test may hang */
    must(dtp_world_join_set(ranks, set, &world, &faults));
    set_up(&s, set, &world);
    for (uint64_t i = 0; i < STEPS; i++)
        losses[i] = train_step(&s, i);
    uint64_t sent = world.communicator->sent_bytes[DTP_SEND_RECV], calls = world.communicator->calls[DTP_SEND_RECV];
    bool last = ranks->rank == 1, counted = sent == STEPS * 1024 && calls == 2 * STEPS;
    if (last && write(out, losses, sizeof losses) != (ssize_t)sizeof losses)
        counted = false;
    dtp_world_disconnect(&world, false);
    dtp_world_leave(&world);
    _exit(counted ? 0 : 1);
}

static void test_two_stages_learn_as_one(void **state)
{
    static struct stand one;
    struct dtp_program_set set = two_stages();
    struct dtp_ranks ranks = {.world = 2, .local_world = 2, .host = "127.0.0.1", .port = free_port()};
    double losses[STEPS] = {0};
    int ends[2], status;
    pid_t pid[2];
    (void)state;
    assert_int_equal(pipe(ends), 0);
    for (uint32_t rank = 0; rank < 2; rank++) {
        ranks.rank = ranks.local_rank = rank;
        pid[rank] = fork();
        assert_true(pid[rank] >= 0);
        if (pid[rank] == 0)
            run_rank(&set, &ranks, ends[1]);
    }
    close(ends[1]);
    ssize_t got = read(ends[0], losses, sizeof losses);
    close(ends[0]);
    for (uint32_t rank = 0; rank < 2; rank++) {
        assert_true(waitpid(pid[rank], &status, 0) == pid[rank]);
        assert_true(WIFEXITED(status));
        assert_int_equal(WEXITSTATUS(status), 0);
    }
    assert_int_equal(got, sizeof losses);
    set_up(&one, NULL, NULL);
    for (uint64_t i = 0; i < STEPS; i++) {
        double loss = train_step(&one, i);
        if (loss != losses[i])
            fail_msg("step %lu: loss %.9g of one rank, %.9g of two stages", i, loss, losses[i]);
    }
    assert_true(losses[STEPS - 1] < losses[0]);
    tear_down(&one);
    dtp_program_set_release(&set);
}

/* Proved for a device that does one operation after the other; on GPUs neither stage computes while the other does, so
 * the step is as long as of one GPU, transfers aside. */
static void test_two_stages_are_simulated(void **state)
{
    static struct dtp_job job;
    struct dtp_program_set set = two_stages();
    struct dtp_simulation_options options = dtp_simulation_options_default();
    struct dtp_timeline stage[2], whole;
    struct dtp_program *program;
    (void)state;
    must(dtp_program_set_verify(&set, DTP_ISSUE_IN_LINE, &faults));
    run_job(WORDS " gpus=2 gpu=h100-sxm", &job);
    options.compute_factor = 1;
    must(dtp_simulate_set(&set, &job.cluster, &options, stage, &faults));
    run_job(WORDS " gpus=1 gpu=h100-sxm", &job);
    must(dtp_lower(&job.transformer, &job.cluster, &job.plan, 0, &program, &faults));
    must(dtp_simulate(program, &job.cluster, &options, &whole, &faults));
    assert_true(stage[0].step_s == stage[1].step_s);
    for (int r = 0; r < 2; r++) {
        assert_true(stage[r].bubble_s > 0 && stage[r].compute_s < whole.compute_s);
        assert_true(stage[r].allocated_peak_bytes < whole.allocated_peak_bytes);
    }
    double transfers_s = stage[0].communication_s;
    assert_true(transfers_s > 0);
    /* The optimizer of one stage runs beside the other's backward, so it may be shorter than that. */
    assert_true(stage[0].step_s > 0.9 * (whole.step_s - whole.optimizer_s));
    assert_true(stage[0].step_s < 1.1 * (whole.step_s + transfers_s));
    for (int r = 0; r < 2; r++)
        dtp_timeline_release(&stage[r]);
    dtp_timeline_release(&whole);
    dtp_program_destroy(program);
    dtp_program_set_release(&set);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_two_stages_are_simulated),
                                       cmocka_unit_test(test_two_stages_learn_as_one)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
