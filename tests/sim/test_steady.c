/* Pipelines whose micro-batches repeat are simulated as those of which each micro-batch is: times to rounding, and most
 * of a long step is repeated. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "lib/job_of_settings.h"
#include "lower/lower_set.h"
#include "sim/simulate.h"

#define TOLERANCE 1e-12 /* of the step */

static struct dtp_faults faults;

struct pair {
    struct dtp_program_set set;
    struct dtp_timeline *each, *repeated; /* of each role */
    size_t ops, repeated_ops;
};

/* False: the job is refused. */
static bool simulate_pair(const char *settings, struct pair *out)
{
    struct dtp_job job;
    struct dtp_simulation_options options = dtp_simulation_options_default();
    options.replay_allocator = false;
    memset(out, 0, sizeof *out);
    if (job_of_settings(settings, &job, &faults) != DTP_OK ||
        dtp_lower_set(&job.transformer, &job.cluster, &job.plan, 0, &out->set, &faults) != DTP_OK)
        return false;
    out->each = calloc(out->set.role_count, sizeof *out->each);
    out->repeated = calloc(out->set.role_count, sizeof *out->repeated);
    assert_true(out->each && out->repeated);
    assert_int_equal(dtp_simulate_proved_set(&out->set, &job.cluster, &options, out->repeated, &faults), DTP_OK);
    options.each_micro_batch = true;
    assert_int_equal(dtp_simulate_proved_set(&out->set, &job.cluster, &options, out->each, &faults), DTP_OK);
    for (uint32_t r = 0; r < out->set.role_count; r++) {
        out->ops += out->repeated[r].op_count;
        out->repeated_ops += out->repeated[r].repeated_count;
        assert_int_equal(out->each[r].repeated_count, 0);
    }
    return true;
}

static void release(struct pair *p)
{
    for (uint32_t r = 0; r < p->set.role_count; r++) {
        dtp_timeline_release(&p->each[r]);
        dtp_timeline_release(&p->repeated[r]);
    }
    free(p->each);
    free(p->repeated);
    dtp_program_set_release(&p->set);
}

/* How far apart they are, of the step. */
static double apart(const struct pair *p)
{
    double largest_s = 0;
    size_t causes = 0;
    for (uint32_t r = 0; r < p->set.role_count; r++) {
        const struct dtp_timeline *a = &p->each[r], *b = &p->repeated[r];
        largest_s = fmax(largest_s, fabs(a->step_s - b->step_s));
        largest_s = fmax(largest_s, fabs(a->bubble_s - b->bubble_s));
        largest_s = fmax(largest_s, fabs(a->compute_s - b->compute_s));
        largest_s = fmax(largest_s, fabs(a->exposed_communication_s - b->exposed_communication_s));
        for (size_t i = 0; i < a->op_count; i++) {
            largest_s = fmax(largest_s, fabs(a->span[i].start_s - b->span[i].start_s));
            largest_s = fmax(largest_s, fabs(a->span[i].end_s - b->span[i].end_s));
            largest_s = fmax(largest_s, fabs(a->issue_s[i] - b->issue_s[i]));
            causes += a->cause[i] != b->cause[i];
        }
    }
    assert_true(causes <= p->ops / 10000); /* of what ends at the same time but for rounding either may be waited for */
    return largest_s / p->each[0].step_s;
}

static void test_repeated_as_each(void **state)
{
    static const char *const jobs[] = {
        "model=llama-2-7b seq=8192 runtime=megatron strategy=zero1 tp=2",
        "model=llama-2-7b seq=8192 runtime=megatron strategy=ddp cp=2",
        "model=llama-2-7b seq=2048 runtime=megatron strategy=ddp cp=2", /* the host is late */
        "model=llama-2-7b seq=8192 runtime=torch strategy=full_shard",
        "model=llama-2-7b seq=2048 runtime=nanotron strategy=zero1 tp=2",
        "model=llama-2-7b seq=8192 runtime=deepspeed strategy=zero1",
        "model=mixtral-8x7b seq=4096 runtime=megatron strategy=zero1 ep=4", /* it waits for the router */
    };
    static const char *const schedules[] = {"",
                                            "schedule=gpipe",
                                            "virtual_stages=2",
                                            "schedule=zb-h1",
                                            "schedule=zb-h2",
                                            "schedule=zb-v",
                                            "schedule=dualpipe",
                                            "schedule=zb-h1 post_validation=true"};
    static const uint32_t micro_batches[] = {8, 24, 64};
    size_t simulated = 0, repeat = 0;
    (void)state;
    for (size_t i = 0; i < sizeof jobs / sizeof *jobs; i++)
        for (size_t j = 0; j < sizeof schedules / sizeof *schedules; j++)
            for (size_t k = 0; k < sizeof micro_batches / sizeof *micro_batches; k++) {
                char settings[400];
                struct pair p;
                snprintf(settings, sizeof settings,
                         "gpus=16 gpu=h100-sxm precision=bf16-mixed pp=4 micro_batch=1 accumulate=%u %s %s",
                         micro_batches[k], jobs[i], schedules[j]);
                if (!simulate_pair(settings, &p))
                    continue;
                if (apart(&p) > TOLERANCE)
                    fail_msg("%s: %.3g of the step apart", settings, apart(&p));
                simulated++;
                repeat += p.repeated_ops > 0;
                release(&p);
            }
    print_message("%zu pipelines, of which %zu repeat\n", simulated, repeat);
    assert_true(simulated >= 105 && repeat >= 32);
}

/* Whose time is that of its ends, and as DeepSeek-V3's, whose host waits for each router. */
static void test_most_of_a_long_step(void **state)
{
    static const struct {
        const char *settings;
        double least; /* share that is repeated */
    } rows[] = {
        {"model=llama-3.1-405b gpus=16384 gpu=h100-sxm tp=8 seq=8192 accumulate=64", 0.65},
        {"model=llama-3.1-405b gpus=16384 gpu=h100-sxm tp=8 seq=8192 accumulate=128", 0.8},
        {"model=deepseek-v3 gpus=2048 gpu=h800-sxm ep=64 precision=fp8-blockwise seq=4096 accumulate=120", 0.75},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char settings[400];
        struct pair p;
        snprintf(settings, sizeof settings, "runtime=megatron strategy=zero1 pp=16 micro_batch=1 %s", rows[i].settings);
        assert_true(simulate_pair(settings, &p));
        double share = (double)p.repeated_ops / (double)p.ops;
        print_message("%.3f of %zu operations repeated, %.2g of the step apart: %s\n", share, p.ops, apart(&p),
                      settings);
        assert_true(apart(&p) <= TOLERANCE);
        assert_true(share >= rows[i].least);
        release(&p);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_repeated_as_each),
        cmocka_unit_test(test_most_of_a_long_step),
    };
    return cmocka_run_group_tests(tests, load_catalog, drop_catalog);
}
