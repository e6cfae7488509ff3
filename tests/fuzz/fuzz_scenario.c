/* libFuzzer target: any bytes are a scenario file or are refused; what resolves is predicted in finite, positive
 * numbers.
 *
 *   cmake --preset fuzz && cmake --build --preset fuzz
 *   build-fuzz/tests/fuzz_scenario -max_total_time=600 -max_len=512 -dict=tests/corpus/scenario.dict CORPUS_FOLDER */
#include "closed/closed_form.h"
#include "job/estimate.h"
#include "runtime/runtimes.h"
#include "job/scenario.h"

#include "fuzz_fixture.h"
#include "lib/scenario_fixture.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MOST_BLOCKS 64u /* of a step */

/* Every number of the prediction means something, however odd the job. */
static void expect_prediction(const struct dtp_job *job)
{
    struct dtp_prediction p;
    /* a step of seconds finds nothing that one of a millisecond does not */
    if (job->transformer.layers > MOST_BLOCKS || job->transformer.layers * job->plan.accumulate > MOST_BLOCKS)
        return;
    if (dtp_estimate(&job->transformer, &job->cluster, &job->plan, &p, NULL) != DTP_OK)
        return; /* refused, as lowering says */
    expect(p.memory.allocated_peak_bytes >= p.memory.params_bytes);
    expect(p.memory.reserved_peak_bytes >= p.memory.allocated_peak_bytes);
    expect(p.memory.device_peak_bytes >= p.memory.reserved_peak_bytes);
    expect(p.memory.device_peak_bytes < UINT64_MAX / 2);
    expect(isfinite(p.time.step_s) && p.time.step_s > 0);
    expect(p.time.step_perfect_overlap_s <= p.time.step_no_overlap_s);
    expect(p.time.exposed_communication_s >= 0 && p.time.exposed_communication_s <= p.time.communication_s * 1.000001);
    expect(isfinite(p.throughput.tokens_per_s) && p.throughput.tokens_per_s > 0);
    expect(p.throughput.mfu >= 0 && p.throughput.mfu <= 1);
}

/* Resolving what was resolved changes nothing. */
static void expect_settled(const struct dtp_job *job)
{
    struct dtp_plan again = job->plan;
    expect(dtp_plan_resolve(&again, &job->transformer, &job->cluster, NULL) == DTP_OK);
    expect(!memcmp(&again, &job->plan, sizeof again));
}

static bool reads_a_file(const struct dtp_scenario *scenario)
{
    const char *model = dtp_scenario_get(scenario, "model");
    return model && (strchr(model, '/') || strstr(model, ".json"));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static struct dtp_faults faults;
    struct dtp_catalog catalog = fixture_catalog();
    struct dtp_scenario *scenario;
    static struct dtp_job job;
    forget_faults(&faults);
    expect(dtp_scenario_create(&scenario, &faults) == DTP_OK);
    expect_faults(dtp_scenario_parse(scenario, "fuzz.ini", (const char *)data, bytes, &faults), &faults);
    forget_faults(&faults);
    if (!reads_a_file(scenario)) {
        enum dtp_status status = dtp_scenario_resolve(scenario, &catalog, &job, &faults);
        expect_faults(status, &faults);
        if (status == DTP_OK) {
            expect_settled(&job);
            expect_prediction(&job);
        }
    }
    dtp_scenario_destroy(scenario);
    return 0;
}
