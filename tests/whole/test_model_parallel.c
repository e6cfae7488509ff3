/* Tensor and pipeline parallelism: counted by hand, and scored on published runs. */
#include "cost/calibration.h"
#include "runs/backtest.h"
#include "job/estimate.h"
#include "runtime/runtimes.h"
#include "closed/model_parallel.h"
#include "sim/simulated.h"

#include <gsl/gsl_sort.h>
#include <gsl/gsl_statistics.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "lib/job_of_settings.h"
#include "lib/random_draws.h"
#include "lib/random_plans.h"

static struct dtp_faults faults;

/* Megatron on H100: settings are "key=value ..." */
static enum dtp_status predict(const char *settings, struct dtp_job *job, struct dtp_prediction *out)
{
    char text[600];
    snprintf(text, sizeof text, "model=llama-2-7b gpu=h100-sxm runtime=megatron strategy=zero1 %s", settings);
    enum dtp_status status = job_of_settings(text, job, &faults);
    return status ? status : dtp_estimate(&job->transformer, &job->cluster, &job->plan, out, &faults);
}

static struct dtp_prediction predicted(const char *settings)
{
    struct dtp_job job;
    struct dtp_prediction p;
    if (predict(settings, &job, &p) != DTP_OK)
        fail_msg("%s: %s", settings, faults.text[0]);
    return p;
}

/* 175B on 64 nodes, tp 8, pp 16 (vTrain's): 8 ranks that each send all of B keep the network busy 8 times as long. By
 * its step program a step is 1.9 % shorter with parts; 2 % was asked here while formulas took transfers for longer. */
static void test_scattered_sends_are_faster(void **state)
{
    static const char both[] = "layers=96 hidden=12288 heads=96 ffn=49152 activation=gelu gpus=512 tp=8 pp=16 "
                               "micro_batch=2 accumulate=48 seq=2048 sequence_parallel=false checkpointing=full";
    char settings[400];
    (void)state;
    struct dtp_prediction whole = predicted(both);
    snprintf(settings, sizeof settings, "%s megatron_scatter_gather=true", both);
    struct dtp_prediction parts = predicted(settings);
    assert_true(parts.time.step_s < 0.99 * whole.time.step_s);
    assert_true(parts.time.collective_s[DTP_SEND_RECV] < whole.time.collective_s[DTP_SEND_RECV] / 4);
    assert_int_equal(parts.memory.allocated_peak_bytes, whole.memory.allocated_peak_bytes);
}

/* 16 layers a stage, tp 2, B = 2048 * 4096 * 2 bytes. A layer all-reduces 4 times, which sends 2 B / 2 from each of 2
 * ranks; one more at an end. A boundary carries B there and B back, halved where the two ranks have a half each. */
static void test_bytes_by_hand(void **state)
{
    const double b = 2048.0 * 4096 * 2;
    (void)state;
    struct dtp_prediction p = predicted("gpus=4 tp=2 pp=2 micro_batch=1 accumulate=3 seq=2048 sequence_parallel=false");
    assert_close((double)p.communication.bytes[DTP_ALL_REDUCE], 3 * (4 * 16 + 1) * b, 1);
    assert_close((double)p.communication.bytes[DTP_SEND_RECV], 3 * 2 * b, 1);
    assert_int_equal(p.communication.bytes[DTP_ALL_GATHER], 0); /* one data-parallel rank: nothing to reduce */
    p = predicted("gpus=4 tp=2 pp=2 micro_batch=1 accumulate=3 seq=2048 sequence_parallel=false "
                  "megatron_scatter_gather=true"); /* half of B is sent, and gathered on the other side */
    assert_close((double)p.communication.bytes[DTP_SEND_RECV], 3 * 2 * b / 2, 1);
    assert_close((double)p.communication.bytes[DTP_ALL_GATHER], 3 * 2 * b / 2, 1);
    assert_int_equal(p.communication.count[DTP_ALL_GATHER], 3 * 2);
    p = predicted("gpus=4 tp=2 pp=2 micro_batch=1 accumulate=3 seq=2048");
    double both = (double)(p.communication.bytes[DTP_ALL_GATHER] + p.communication.bytes[DTP_REDUCE_SCATTER]);
    assert_close(both, 3 * (4 * 16 + 1) * b, 1);
    assert_close((double)p.communication.bytes[DTP_SEND_RECV], 3 * b, 1);
    p = predicted("gpus=4 tp=2 pp=2 micro_batch=1 accumulate=3 seq=2048 sequence_parallel=false checkpointing=full");
    assert_close((double)p.communication.bytes[DTP_ALL_REDUCE], 3 * (6 * 16 + 1) * b, 1);
    p = predicted("gpus=64 tp=2 pp=2 micro_batch=1 accumulate=3 seq=2048");
    assert_int_equal(p.communication.total_bytes, p.communication.link_bytes + p.communication.network_bytes);
}

/* LLaMA-2 7B, tp 2, pp 2: 16 layers of (2 norms 4096 + matrices / 2) and one embedding or head of 16000 x 4096 with the
 * final norm; 2 bytes each, 4 of gradients, 12 of the optimizer over 2 data-parallel ranks. */
static void test_states_by_hand(void **state)
{
    const double slice = 16 * (2 * 4096 + (4 * 4096.0 * 4096 + 3 * 4096.0 * 11008) / 2) + 16000.0 * 4096 + 4096;
    struct dtp_prediction p = predicted("gpus=8 tp=2 pp=2 micro_batch=1 accumulate=2 seq=2048");
    (void)state;
    assert_close((double)p.memory.params_bytes, 2 * slice, 1);
    assert_close((double)p.memory.grads_bytes, 4 * slice, 1);
    assert_close((double)p.memory.optimizer_bytes, 12 * slice / 2, 16);
}

/* The first of 4 stages keeps up to 4 micro-steps; 2 chunks a stage keep 1 + 3/8 times as many. */
static void test_activations_in_flight(void **state)
{
    static const int cases[5][2] = {{1, 2}, {1, 3}, {1, 4}, {1, 8}, {2, 8}}; /* chunks, micro-steps */
    uint64_t bytes[5];
    (void)state;
    for (size_t i = 0; i < 5; i++) {
        char settings[128];
        snprintf(settings, sizeof settings, "gpus=4 pp=4 micro_batch=1 seq=8192 virtual_stages=%d accumulate=%d",
                 cases[i][0], cases[i][1]);
        bytes[i] = predicted(settings).memory.activations_bytes;
    }
    uint64_t one = bytes[1] - bytes[0]; /* micro-step of one stage */
    assert_true(one > 0);
    assert_int_equal(bytes[2], bytes[1] + one);
    assert_int_equal(bytes[3], bytes[2]);
    assert_close((double)bytes[4], (double)bytes[3] + 1.5 * (double)one, 1);
}

/* Equal stages: fill and drain are (p-1)/(v m) of the work. A vocabulary of 128 leaves the head next to nothing. */
static void test_bubble(void **state)
{
    (void)state;
    for (int v = 1; v <= 4; v *= 2) {
        char settings[160];
        snprintf(settings, sizeof settings,
                 "vocab=128 gpus=4 pp=4 micro_batch=1 seq=2048 accumulate=16 virtual_stages=%d", v);
        struct dtp_prediction p = predicted(settings);
        assert_close(p.time.bubble_s / p.time.compute_s, 3.0 / (16 * v), 0.03 * 3.0 / (16 * v) + 0.002);
    }
}

/* One micro-step through 4 stages: three quarters of the time nothing happens on a GPU. */
static void test_one_micro_step_through_a_pipeline(void **state)
{
    (void)state;
    struct dtp_prediction whole = predicted("gpus=1 micro_batch=1 seq=2048 vocab=128 checkpointing=full");
    struct dtp_prediction piped = predicted("gpus=4 pp=4 micro_batch=1 seq=2048 vocab=128 checkpointing=full");
    assert_close(piped.time.compute_s, whole.time.compute_s / 4, 0.01 * whole.time.compute_s);
    assert_close(piped.time.compute_s + piped.time.bubble_s, whole.time.compute_s, 0.02 * whole.time.compute_s);
}

static void test_overlap_and_sequence_parallel_help(void **state)
{
    (void)state;
    struct dtp_prediction plain = predicted("gpus=64 tp=8 micro_batch=4 accumulate=2 sequence_parallel=false");
    struct dtp_prediction spread = predicted("gpus=64 tp=8 micro_batch=4 accumulate=2");
    struct dtp_prediction beside =
        predicted("gpus=64 tp=8 micro_batch=4 accumulate=2 tp_overlap=true megatron_overlap=true");
    assert_true(spread.time.memory_bound_s < plain.time.memory_bound_s);
    assert_true(spread.memory.activations_bytes < plain.memory.activations_bytes);
    assert_true(beside.time.exposed_communication_s < spread.time.exposed_communication_s);
    assert_true(beside.time.step_s < spread.time.step_s);
}

static void test_refusals(void **state)
{
    static const struct {
        const char *settings, *says;
    } cases[] = {
        {"gpus=8 tp=3", "tp:"},
        {"gpus=24 tp=12 heads=36 hidden=4608 head_dim=128 ffn=12288 seq=3072", "12 neither divides a node of 8 GPUs"},
        {"gpus=8 tp=2 pp=3", "tp 2 x pp 3 do not divide 8 GPUs; the nearest that fit are 2 and 4"},
        {"gpus=64 pp=64", "64 stages of 32 layers; at most 34"},
        {"gpus=8 pp=4 accumulate=6 virtual_stages=2", "the nearest are 4 and 8"},
        {"gpus=8 pp=4 accumulate=8 virtual_stages=9", "virtual_stages: 36 stages of 32 layers"},
        {"gpus=8 virtual_stages=2", "pp above 1"},
        {"gpus=8 tp_overlap=true", "tp above 1"},
        {"gpus=8 tp=2 runtime=torch strategy=ddp", "goes with FSDP2"},
        {"gpus=8 tp=2 offload=optimizer", "offload"},
        {"gpus=8 cp=2 runtime=nanotron", "context parallelism (deepspeed, dtplan, megatron, torch)"},
        {"gpus=8 runtime=torch strategy=ddp megatron_overlap=true", "megatron only"},
        {"gpus=8 tp=2 micro_batch=1 global_batch=6", "4 data-parallel ranks"}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct dtp_job job;
        struct dtp_prediction p;
        bool said = false;
        assert_int_equal(predict(cases[i].settings, &job, &p), DTP_BAD_INPUT);
        for (size_t k = 0; k < faults.count; k++)
            said = said || strstr(faults.text[k], cases[i].says);
        if (!said)
            fail_msg("%s: %s", cases[i].settings, faults.text[0]);
    }
}

/* What two more micro-batches in flight keep lies in segments as all tensors do that come and go: 9 % more, unless a
 * pool grows by pages. */
static void test_segments_of_what_is_in_flight(void **state)
{
    (void)state;
    for (int pages = 0; pages < 2; pages++) {
        char settings[160];
        struct dtp_prediction p[2];
        for (int i = 0; i < 2; i++) {
            snprintf(settings, sizeof settings, "gpus=8 tp=2 pp=4 micro_batch=4 accumulate=%d expandable_segments=%s",
                     i ? 4 : 2, pages ? "true" : "false");
            p[i] = predicted(settings);
        }
        double kept = (double)(p[1].memory.allocated_peak_bytes - p[0].memory.allocated_peak_bytes);
        double more = (double)(p[1].memory.reserved_peak_bytes - p[0].memory.reserved_peak_bytes);
        assert_true(kept > 1e9);
        assert_true(fabs(more / kept - (pages ? 1 : 1 + dtp_calibration.torch_fragmentation)) < 1e-6);
    }
}

/* Whatever divides: figures are finite, time and memory positive, no GPU faster than its peak. */
static void test_everything_that_resolves_is_finite(void **state)
{
    (void)state;
    int seen = 0;
    for (uint32_t gpus = 1; gpus <= 4096; gpus *= 2)
        for (uint32_t tp = 1; tp <= 8; tp *= 2)
            for (uint32_t pp = 1; pp <= 32; pp *= 2)
                for (uint32_t v = 1; v <= 2; v++) {
                    char settings[160];
                    struct dtp_job job;
                    struct dtp_prediction p;
                    snprintf(settings, sizeof settings,
                             "gpus=%u tp=%u pp=%u virtual_stages=%u accumulate=32 micro_batch=2", gpus, tp, pp, v);
                    if (predict(settings, &job, &p) != DTP_OK)
                        continue;
                    seen++;
                    assert_true(isfinite(p.time.step_s) && p.time.step_s > 0);
                    assert_true(p.throughput.mfu > 0 && p.throughput.mfu < 1 && p.throughput.hfu < 1);
                    assert_true(p.time.bubble_s >= 0 && p.time.exposed_communication_s >= 0);
                    assert_true(p.time.step_perfect_overlap_s <= p.time.step_s * (1 + 1e-9));
                    assert_true(p.time.step_no_overlap_s >= p.time.step_s * (1 - 1e-9));
                    assert_true(p.memory.allocated_peak_bytes >= p.memory.params_bytes);
                    assert_true(p.memory.device_peak_bytes >= p.memory.allocated_peak_bytes);
                }
    assert_true(seen > 150);
}

/* Odd models on odd clusters, huge batches. */
static void test_random_jobs(void **state)
{
    int seen = 0;
    (void)state;
    random_state = 77;
    for (int i = 0; i < RANDOM_DRAWS(60000); i++) {
        struct random_job job;
        struct dtp_prediction p;
        if (!random_job(&job))
            continue;
        struct dtp_plan plan = dtp_plan_default();
        plan.runtime = &dtp_runtime_megatron;
        plan.strategy = random_bool() ? DTP_DDP : DTP_ZERO1;
        plan.tp = 1u << random_below(4);
        plan.pp = (uint32_t)(1 + random_below(6));
        plan.virtual_stages = (uint32_t)(1 + random_below(2));
        plan.micro_batch = 1u << random_below(20);
        plan.accumulate = (uint32_t)(1 + random_below(random_bool() ? 12 : 1000000));
        plan.sequence = 1u << random_below(15);
        plan.sequence_parallel = random_bool();
        plan.megatron.overlap = random_bool();
        plan.megatron.scatter_gather = random_bool();
        plan.checkpointing = random_bool() ? DTP_CHECKPOINT_FULL : DTP_CHECKPOINT_NONE;
        if (!dtp_plan_model_parallel(&plan) || dtp_plan_resolve(&plan, &job.transformer, &job.cluster, NULL) != DTP_OK)
            continue;
        seen++;
        assert_int_equal(dtp_estimate(&job.transformer, &job.cluster, &plan, &p, NULL), DTP_OK);
        assert_true(isfinite(p.time.step_s) && p.time.step_s > 0 && isfinite(p.throughput.tokens_per_s));
        assert_true(p.throughput.mfu >= 0 && p.throughput.mfu <= 1);
        assert_true(p.time.exposed_communication_s >= 0);
        assert_true(p.time.exposed_communication_s <= p.time.communication_s * 1.000001);
        assert_true(p.time.step_perfect_overlap_s <= p.time.step_no_overlap_s);
        assert_true(p.memory.allocated_peak_bytes >= p.memory.params_bytes);
        assert_true(p.memory.reserved_peak_bytes >= p.memory.allocated_peak_bytes);
        assert_true(p.memory.device_peak_bytes >= p.memory.reserved_peak_bytes);
        assert_true(p.memory.device_peak_bytes < UINT64_MAX / 2 && p.communication.total_bytes < UINT64_MAX / 2);
        struct dtp_plan again = plan;
        assert_int_equal(dtp_plan_resolve(&again, &job.transformer, &job.cluster, NULL), DTP_OK);
        assert_memory_equal(&again, &plan, sizeof again);
    }
    printf("%d random jobs with tensor or pipeline parallelism\n", seen);
    assert_true(seen > RANDOM_DRAWS(1000));
}

/* Nothing was fitted to these rows. A constant MFU per GPU, fitted to them all, is some 20 % off. */
static void test_published_runs(void **state)
{
    static double errors[1024];
    struct dtp_backtest *backtest;
    struct dtp_predictor predictor = dtp_predictor_closed();
    size_t count = 0, within = 0, refused = 0;
    (void)state;
    memset(&faults, 0, sizeof faults);

    assert_int_equal(dtp_backtest_run_only(TEST_SOURCE_DIR "/scenarios/published_runs.csv", NULL, &predictor, &catalog,
                                           &backtest, &faults),
                     DTP_OK);
    for (size_t i = 0; i < backtest->row_count && count < 1024; i++) {
        const struct dtp_backtest_row *row = &backtest->rows[i];
        if (row->run.tp <= 1 && row->run.pp <= 1)
            continue;
        refused += row->verdict == DTP_BACKTEST_REFUSED;
        if (row->verdict == DTP_BACKTEST_REFUSED || isnan(row->error_pct))
            continue;
        errors[count] = fabs(row->error_pct);
        within += errors[count++] <= 20;
    }
    gsl_sort(errors, 1, count);
    double median = gsl_stats_median_from_sorted_data(errors, 1, count), mean = gsl_stats_mean(errors, 1, count);
    printf(
        "%zu runs with tensor or pipeline parallelism: median %.1f %%, mean %.1f %%, %zu within 20 %%; %zu refused\n",
        count, median, mean, within, refused);
    assert_true(count >= 140);
    assert_true(median < 11 && mean < 15);
    dtp_backtest_destroy(backtest);
}

/* Rows with tensor parallelism alone, by `predictor`: errors in % into `errors`. */
static size_t tensor_parallel_errors(const char *only, const struct dtp_predictor *predictor, double *errors)
{
    struct dtp_backtest *backtest;
    size_t count = 0;
    memset(&faults, 0, sizeof faults);
    assert_int_equal(dtp_backtest_run_only(TEST_SOURCE_DIR "/scenarios/published_runs.csv", only, predictor, &catalog,
                                           &backtest, &faults),
                     DTP_OK);
    for (size_t i = 0; i < backtest->row_count; i++)
        if (backtest->rows[i].run.tp > 1 && backtest->rows[i].run.pp <= 1 && !isnan(backtest->rows[i].error_pct))
            errors[count++] = backtest->rows[i].error_pct;
    dtp_backtest_destroy(backtest);
    return count;
}

/* Step programs say of the same runs what the formulas say, the median within 3 %: InternEvo, SimuMax, vTrain. */
static void test_programs_agree(void **state)
{
    static const char *const runs[] = {"ie-0", "sm-0", "vt-00", "vt-01", "vt-02", "vt-11", "vt-13", "vt-16"};
    static double formulas[256], programs[256];
    struct dtp_predictor closed = dtp_predictor_closed(), simulated = dtp_predictor_simulated();
    size_t count = 0, same = 0;
    (void)state;
    for (size_t i = 0; i < sizeof runs / sizeof *runs; i++) {
        same += tensor_parallel_errors(runs[i], &simulated, programs + same);
        count += tensor_parallel_errors(runs[i], &closed, formulas + count);
    }
    assert_int_equal(count, same);
    for (size_t i = 0; i < count; i++)
        formulas[i] = 100 * fabs((100 + programs[i]) / (100 + formulas[i]) - 1);
    gsl_sort(formulas, 1, count);
    double apart = gsl_stats_median_from_sorted_data(formulas, 1, count);
    printf("%zu runs with tensor parallelism alone: programs and formulas are %.1f %% apart, median\n", count, apart);
    assert_true(count >= 35);
    assert_true(apart < 3);
}

/* What the fullest rank allocates, by all schedules: micro-batches in flight, ends and copies that ranks hold. */
static void test_memory_of_schedules(void **state)
{
    static const char *const words[] = {"gpipe",
                                        "1f1b",
                                        "zb-h1",
                                        "zb-h2",
                                        "zb-1p",
                                        "zb-2p",
                                        "zb-v",
                                        "v-half",
                                        "v-min",
                                        "dualpipe",
                                        "dualpipev",
                                        "interleaved virtual_stages=2",
                                        "zb-interleaved virtual_stages=2"};
    (void)state;
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        char settings[200];
        struct dtp_job job;
        struct dtp_prediction p;
        struct dtp_simulated simulated;
        struct dtp_simulation_options options = dtp_simulation_options_default();
        snprintf(settings, sizeof settings, "gpus=8 pp=8 accumulate=24 seq=1024 micro_batch=2 schedule=%s", words[i]);
        assert_int_equal(predict(settings, &job, &p), DTP_OK);
        assert_int_equal(dtp_simulated_create(&job, &options, &simulated, &faults), DTP_OK);
        double program = (double)simulated.prediction.memory.allocated_peak_bytes;
        double off = (double)p.memory.allocated_peak_bytes / program - 1;
        printf("%-33s formula %+.1f %% off\n", words[i], 100 * off);
        assert_true(fabs(off) < 0.025); /* zb-2p 2.2 % */
        dtp_simulated_release(&simulated);
    }
}

/* With plan.executor.delay_wgrad: not below the program, and above by no more than without it (11.3 %). All 48 jobs, or
 * of these one in eight, by the seed: every seventh, which meets each. */
static void test_memory_of_delayed_weights(void **state)
{
    enum { JOBS = 4 * 2 * 2 * 3 };
    static const char *const schedules[] = {"1f1b", "gpipe", "interleaved virtual_stages=2"};
    int begin = (int)(random_seed() % JOBS);
    (void)state;
    for (int draw = 0; draw < RANDOM_DRAWS(JOBS); draw++) {
        int i = (begin + 7 * draw) % JOBS;
        char settings[300];
        struct dtp_job job;
        struct dtp_prediction p;
        struct dtp_simulated simulated;
        struct dtp_simulation_options options = dtp_simulation_options_default();
        snprintf(settings, sizeof settings,
                 "runtime=dtplan strategy=ddp precision=bf16-pure seq=2048 micro_batch=4 accumulate=8 gpus=4 pp=%d "
                 "delay_wgrad=%d checkpointing=%s schedule=%s",
                 i & 1 ? 4 : 2, (i / 4 % 4) * (i / 4 % 4), i & 2 ? "full" : "none", schedules[i / 16]);
        assert_int_equal(predict(settings, &job, &p), DTP_OK);
        assert_int_equal(dtp_simulated_create(&job, &options, &simulated, &faults), DTP_OK);
        double off =
            (double)p.memory.allocated_peak_bytes / (double)simulated.prediction.memory.allocated_peak_bytes - 1;
        if (off < 0 || off > 0.12)
            fail_msg("%s: formula %+.1f %% off", settings, 100 * off);
        dtp_simulated_release(&simulated);
    }
}

/* First layers without experts, eight times as wide as what a token meets in the others or as wide as these: a stage's
 * mean computing is the program's within 7 % (5.5), where all layers taken for alike are 24 and 39 % off. Of some
 * stages the host is behind and of others the GPU. */
static void test_dense_layers_of_stages(void **state)
{
    static const char *const models[] = {"dense_layers=0", "ffn=16384 dense_layers=3", "ffn=2048 dense_layers=6"};
    (void)state;
    for (size_t i = 0; i < sizeof models / sizeof *models; i++)
        for (int pp = 2; pp <= 4; pp += 2) {
            char settings[400];
            struct dtp_job job;
            struct dtp_prediction p;
            struct dtp_simulated simulated;
            struct dtp_simulation_options options = dtp_simulation_options_default();
            snprintf(settings, sizeof settings,
                     "hidden=2048 heads=16 kv_heads=16 head_dim=128 layers=16 experts=16 experts_per_token=2 "
                     "expert_ffn=1024 gpus=16 ep=4 micro_batch=2 accumulate=8 seq=4096 flex_dispatcher=true loss=fused "
                     "pp=%d %s",
                     pp, models[i]);
            assert_int_equal(predict(settings, &job, &p), DTP_OK);
            assert_int_equal(dtp_simulated_create(&job, &options, &simulated, &faults), DTP_OK);
            double off = p.time.compute_s / simulated.prediction.time.compute_s - 1;
            printf("%-24s pp %d: computing %+.1f %% off\n", models[i], pp, 100 * off);
            assert_true(fabs(off) < 0.07);
            dtp_simulated_release(&simulated);
        }
}

struct errors {
    double time[32], allocated[32], stages[32];
    size_t count;
};

enum divided { PIPELINES, TENSORS, CONTEXTS };

static enum divided divided_by(const struct dtp_run *run)
{
    return run->pp > 1 ? PIPELINES : run->tp > 1 ? TENSORS : CONTEXTS;
}

/* Runs of PyTorch 2.11 on 4 H200 with pipelines, with tensor parallel ranks, with context parallel ones. */
static struct errors torch_errors(enum divided divided, struct dtp_predictor predictor)
{
    struct errors e = {.count = 0};
    struct dtp_backtest *backtest;
    assert_int_equal(dtp_backtest_run_only(TEST_SOURCE_DIR "/scenarios/h200_parallel_runs.csv", NULL, &predictor,
                                           &catalog, &backtest, &faults),
                     DTP_OK);
    for (size_t i = 0; i < backtest->row_count && e.count < 32; i++) {
        const struct dtp_backtest_row *row = &backtest->rows[i];
        if (isnan(row->error_pct) || divided_by(&row->run) != divided)
            continue;
        e.time[e.count] = fabs(row->error_pct);
        e.allocated[e.count] = fabs(row->memory_error_pct[DTP_RUN_ALLOCATED]);
        e.stages[e.count++] = fabs(row->memory_error_pct[DTP_RUN_STAGES]);
    }
    dtp_backtest_destroy(backtest);
    gsl_sort(e.time, 1, e.count);
    gsl_sort(e.allocated, 1, e.count);
    gsl_sort(e.stages, 1, e.count);
    return e;
}

static double median_of(const double *sorted, size_t count)
{
    return gsl_stats_median_from_sorted_data(sorted, 1, count);
}

/* Five eager runs, bound by the host, and a compiled one. Host time per kernel was fitted to these; memory was not. */
static void test_torch_runs(void **state)
{
    (void)state;
    struct errors e = torch_errors(TENSORS, dtp_predictor_simulated());
    double time = median_of(e.time, e.count), allocated = median_of(e.allocated, e.count);
    printf("%zu runs of FSDP2 with tensor parallelism: tokens/s median %.1f %%, most %.1f %%; allocated median %.2f "
           "%%, most %.2f %%\n",
           e.count, time, e.time[e.count - 1], allocated, e.allocated[e.count - 1]);
    assert_true(e.count >= 6 && time < 6 && e.time[e.count - 1] < 10);
    assert_true(allocated < 0.3 && e.allocated[e.count - 1] < 1);
    e = torch_errors(TENSORS, dtp_predictor_closed()); /* by formulas, which counted kernels alone: 46 to 522 % */
    time = median_of(e.time, e.count);
    printf("by formulas: median %.1f %%, most %.1f %%\n", time, e.time[e.count - 1]);
    assert_true(e.count >= 6 && time < 6 && e.time[e.count - 1] < 12);
}

/* Six runs, one compiled, one checkpointed. No constant was fitted to them; what a compiled block keeps was inferred
 * from the one that is. */
static void test_torch_context_parallel(void **state)
{
    (void)state;
    struct errors e = torch_errors(CONTEXTS, dtp_predictor_simulated());
    double time = median_of(e.time, e.count), allocated = median_of(e.allocated, e.count);
    printf("%zu runs of FSDP2 with context parallelism: tokens/s median %.1f %%, most %.1f %%; allocated median %.3f "
           "%%, most %.2f %%\n",
           e.count, time, e.time[e.count - 1], allocated, e.allocated[e.count - 1]);
    assert_true(e.count >= 6 && time < 6 && e.time[e.count - 1] < 8);
    assert_true(allocated < 0.01 && e.allocated[e.count - 1] < 0.6 && e.stages[e.count - 1] < 0.7);
}

/* Seven schedules, autocast, compiled, checkpointed, two shards a stage. Nothing was fitted to them but what the host
 * does in Python: around the first stage's forwards, and in the two runs of zero-bubble schedules whose W is a pass
 * throughout, which it holds up (their steps took up to 1.6 times as long as the shortest). Four are 7.6 to 11.5 % off
 * since eager kernels are priced by what bounds each, where the third farthest was within 6 before. */
static void test_torch_pipelines(void **state)
{
    (void)state;
    struct errors e = torch_errors(PIPELINES, dtp_predictor_simulated());
    double time = median_of(e.time, e.count), stages = median_of(e.stages, e.count);
    printf("%zu runs of torch.distributed.pipelining: tokens/s median %.1f %%, most %.1f %%; allocated of the "
           "stage furthest off median %.2f %%, most %.2f %%\n",
           e.count, time, e.time[e.count - 1], stages, e.stages[e.count - 1]);
    assert_true(e.count >= 15 && time < 3.5 && e.time[e.count - 3] < 8 && e.time[e.count - 1] < 15);
    assert_true(stages < 0.5 && e.stages[e.count - 1] < 2);
}

/* Of a tied head the first and the last of four stages have a copy each of the table, and send each other its gradients
 * in pieces of 64 MiB: as many bytes by formulas as in their programs. The stages between have none, nor under our
 * executor the buffers of NCCL's that this takes. */
static void test_gradients_of_a_tied_table(void **state)
{
    static const char *const words[] = {"runtime=dtplan strategy=ddp",           "runtime=dtplan strategy=zero1",
                                        "runtime=dtplan strategy=shard_grad_op", "runtime=megatron strategy=zero1",
                                        "runtime=megatron strategy=ddp tp=2",    "runtime=deepspeed strategy=zero1"};
    (void)state;
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        struct dtp_communication closed[2];
        uint64_t nccl[2][4];
        double sent[2][4];
        for (int tied = 0; tied < 2; tied++) {
            char settings[200];
            struct dtp_job job;
            struct dtp_prediction p;
            struct dtp_simulated simulated;
            struct dtp_simulation_options options = dtp_simulation_options_default();
            snprintf(settings, sizeof settings, "gpus=8 pp=4 accumulate=8 seq=512 micro_batch=1 %s tied_head=%s",
                     words[i], tied ? "true" : "false");
            if (predict(settings, &job, &p) != DTP_OK ||
                dtp_simulated_create(&job, &options, &simulated, &faults) != DTP_OK)
                fail_msg("%s: %s", settings, faults.text[0]);
            closed[tied] = p.communication;
            for (int r = 0; r < 4; r++) {
                sent[tied][r] = (double)simulated.roles[r].totals.sent_bytes[DTP_SEND_RECV];
                nccl[tied][r] = simulated.roles[r].memory.nccl_bytes;
            }
            dtp_simulated_release(&simulated);
        }
        uint64_t more = closed[1].bytes[DTP_SEND_RECV] - closed[0].bytes[DTP_SEND_RECV];
        assert_true(more > 0);
        assert_int_equal(closed[1].count[DTP_SEND_RECV] - closed[0].count[DTP_SEND_RECV],
                         (more + (64 << 20) - 1) / (64 << 20));
        assert_int_equal(closed[1].total_bytes, closed[1].link_bytes + closed[1].network_bytes);
        for (int r = 0; r < 4; r++) {
            bool end = r % 3 == 0, ours = strstr(words[i], "dtplan") != NULL;
            printf("%s, stage %d: %.0f bytes in the program, %llu by formulas\n", words[i], r, sent[1][r] - sent[0][r],
                   (unsigned long long)(end ? more : 0));
            assert_true(sent[1][r] - sent[0][r] == (end ? (double)more : 0));
            assert_int_equal(nccl[1][r] - nccl[0][r], end && ours ? (uint64_t)dtp_calibration.nccl_transfer_bytes : 0);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_bytes_by_hand),
                                       cmocka_unit_test(test_scattered_sends_are_faster),
                                       cmocka_unit_test(test_states_by_hand),
                                       cmocka_unit_test(test_activations_in_flight),
                                       cmocka_unit_test(test_bubble),
                                       cmocka_unit_test(test_one_micro_step_through_a_pipeline),
                                       cmocka_unit_test(test_overlap_and_sequence_parallel_help),
                                       cmocka_unit_test(test_refusals),
                                       cmocka_unit_test(test_segments_of_what_is_in_flight),
                                       cmocka_unit_test(test_everything_that_resolves_is_finite),
                                       cmocka_unit_test(test_random_jobs),
                                       cmocka_unit_test(test_published_runs),
                                       cmocka_unit_test(test_programs_agree),
                                       cmocka_unit_test(test_memory_of_schedules),
                                       cmocka_unit_test(test_memory_of_delayed_weights),
                                       cmocka_unit_test(test_dense_layers_of_stages),
                                       cmocka_unit_test(test_gradients_of_a_tied_table),
                                       cmocka_unit_test(test_torch_runs),
                                       cmocka_unit_test(test_torch_context_parallel),
                                       cmocka_unit_test(test_torch_pipelines)};
    return cmocka_run_group_tests(tests, load_catalog, drop_catalog);
}
