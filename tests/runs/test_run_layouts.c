/* From a row of a run table to a job of tensor and pipeline parallel ranks. */
#include "runs/run_table.h"
#include "runtime/runtimes.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "lib/plain_runs.h"

static void test_tensor_and_pipeline_parallel(void **state)
{
    (void)state;
    struct dtp_run run = sliced_run();
    struct dtp_job job = job_of(&run);
    assert_int_equal(job.plan.tp, 4);
    assert_int_equal(job.plan.pp, 4);
    assert_int_equal(job.plan.accumulate, 16); /* 64 sequences over 4 ranks */
    assert_int_equal(job.plan.virtual_stages, 1);
    assert_int_equal(job.plan.strategy, DTP_DDP);
    assert_true(job.plan.sequence_parallel);
    run.sequence_parallel = "0";
    assert_false(job_of(&run).plan.sequence_parallel);
    run.sequence_parallel = "";
    run.framework = "Megatron-DeepSpeed";
    assert_false(job_of(&run).plan.sequence_parallel);
    run.sequence_parallel = "1";
    assert_true(job_of(&run).plan.sequence_parallel);
    run.sequence_parallel = "";
    run.strategy_key = "zero1"; /* under DeepSpeed's engines */
    job = job_of(&run);
    assert_ptr_equal(job.plan.runtime, &dtp_runtime_deepspeed);
    assert_true(job.plan.deepspeed.megatron_layers && job.plan.deepspeed.bf16_optimizer);
    run.param_dtype = "fp16";
    assert_false(job_of(&run).plan.deepspeed.bf16_optimizer);
    run.param_dtype = "bf16";
    run.strategy_key = "ddp";
    run.sequence_parallel = "yes";
    assert_refused(&run, "sequence_parallel 'yes' is neither 0 nor 1");
    run = sliced_run();
    run.gpus = 72;
    assert_refused(&run, "tp x pp x cp is 16, which does not divide gpus 72");
    run.gpus = 128;
    assert_refused(&run, "dp 4 is not gpus 128 / (tp x pp x cp)");
    run = sliced_run();
    run.strategy_key = "single"; /* one data-parallel rank */
    assert_refused(&run, "strategy_key single contradicts gpus 64 of which tp x pp x cp are 16");
    run.gpus = run.global_batch = 16;
    run.dp = 1;
    assert_int_equal(job_of(&run).plan.strategy, DTP_DDP);
}

static void test_schedules(void **state)
{
    (void)state;
    struct dtp_run run = sliced_run();
    run.notes = "q=A; VP=6; FSDP=0";
    assert_int_equal(job_of(&run).plan.virtual_stages, 6);
    run.virtual_stages = 3;
    run.schedule = "interleaved_1f1b";
    struct dtp_job job = job_of(&run);
    assert_int_equal(job.plan.virtual_stages, 3);
    assert_int_equal(job.plan.schedule, DTP_SCHEDULE_INTERLEAVED);
    run.virtual_stages = 0;
    run.notes = "";
    run.schedule = "1F1B";
    assert_int_equal(job_of(&run).plan.schedule, DTP_SCHEDULE_1F1B);
    run.schedule = "zb4p";
    assert_refused(&run, "zb4p");
}

/* torchtitan counts embedding and head as a layer each, and gives a rank two stages where it may have several. */
static void test_stages_of_torchtitan(void **state)
{
    (void)state;
    struct dtp_run run = plain_run();
    run.pp = 4, run.global_batch = 32, run.accumulate = 8;
    run.schedule = "1F1B";
    struct dtp_job job = job_of(&run);
    assert_string_equal(dtp_stage_choice_text(&job.plan.stages), "counted");
    assert_int_equal(job.plan.virtual_stages, 1);
    run.schedule = "Interleaved1F1B";
    assert_int_equal(job_of(&run).plan.virtual_stages, 2);
    run.schedule = "InterleavedZeroBubble";
    assert_int_equal(job_of(&run).plan.virtual_stages, 2);
    run.framework = "PyTorch 2.11 FSDP2+PP"; /* another script of its own */
    run.schedule = "1F1B";
    job = job_of(&run);
    assert_string_equal(dtp_stage_choice_text(&job.plan.stages), "even");
}

/* The script of h200_parallel_runs.csv: FSDP2 where the framework's text has it, stages as its column says. */
static void test_script_of_layouts(void **state)
{
    (void)state;
    struct dtp_run run = plain_run();
    run.framework = "PyTorch 2.11 FSDP2+TP", run.strategy_key = "single";
    run.notes = "architecture=llama, q k v gate up as separate matmuls";
    run.gpus = run.gpus_per_node = run.tp = 4, run.micro_batch = run.global_batch = run.accumulate = 1;
    assert_int_equal(job_of(&run).plan.strategy, DTP_FULL_SHARD);
    run.framework = "PyTorch 2.11 TP";
    run.sequence_parallel = "0";
    struct dtp_job job = job_of(&run);
    assert_int_equal(job.plan.strategy, DTP_DDP);
    assert_false(job.plan.sequence_parallel);
    run.tp = 1, run.pp = 4, run.global_batch = run.accumulate = 8, run.virtual_stages = 2,
    run.schedule = "ZBVZeroBubble";
    run.stages = "0:emb+0-2 7:28-31+head;1:3-7 6:23-27;2:8-12 5:18-22;3:13-15 4:16-17";
    job = job_of(&run);
    assert_string_equal(dtp_stage_choice_text(&job.plan.stages), "Et*3|t*5|t*5|t*3|t*2|t*5|t*5|t*4L");
    run.stages = "0:emb+0-2 7:28-31+head;1:3-7 6:23-27;2:8-12 5:18-22;3:13-15";
    assert_refused(&run, "stages_ranks");
    run.stages = "0:emb+0-2 6:23-27;1:3-7 7:28-31+head;2:8-12 5:18-22;3:13-15 4:16-17"; /* two ranks changed */
    assert_refused(&run, "otherwise than pp 4 and pp_schedule 'ZBVZeroBubble'");
    run.stages = "0:emb+0-2 7:28-31+head;1:3-7 6:22-27;2:8-12 5:18-22;3:13-15 4:16-17"; /* a layer twice */
    assert_refused(&run, "stages_ranks");
    run.stages = "0:emb+0-2+3-3 7:28-31+head;1:4-7 6:23-27;2:8-12 5:18-22;3:13-15 4:16-17";
    assert_refused(&run, "stages_ranks");
    run.stages = "0:emb+0-x;1:2-31+head";
    assert_refused(&run, "is no list of stages");
    run.stages = "0:emb+0-2 7:28-30+head;1:3-7 6:23-27;2:8-12 5:18-22;3:13-15 4:16-17"; /* a layer is missing */
    assert_refused(&run, "has 31 t");
    run.gpus = run.gpus_per_node = 8, run.global_batch = 16, run.dp = 2; /* data parallel ranks say the same */
    run.stages = "0:emb+0-2 7:28-31+head;0:emb+0-2 7:28-31+head;1:3-7 6:23-27;1:3-7 6:23-27;2:8-12 5:18-22;2:8-12 "
                 "5:18-22;3:13-15 4:16-17;3:13-15 4:16-17";
    run.strategy_key = "full_shard";
    job = job_of(&run);
    assert_string_equal(dtp_stage_choice_text(&job.plan.stages), "Et*3|t*5|t*5|t*3|t*2|t*5|t*5|t*4L");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_tensor_and_pipeline_parallel),
                                       cmocka_unit_test(test_schedules), cmocka_unit_test(test_stages_of_torchtitan),
                                       cmocka_unit_test(test_script_of_layouts)};
    return cmocka_run_group_tests(tests, load_catalog, drop_catalog);
}
