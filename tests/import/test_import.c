/* What settings of frameworks become, and what comes before them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "import/format.h"
#include "import/reading.h"
#include "lib/import_fixture.h"
#include "plan/rules.h"
#include "plan/runtime.h"

#define TYPED "model=llama-2-7b gpu=a100-80-sxm gpus=8 seq=4096"

static struct imported_file file;

static void import(const char *text, const char *typed)
{
    drop_imported(&file);
    if (import_text(&file, text, typed) != DTP_OK)
        fail_msg("%s", file.faults.text[0]);
}

static void expect_refusal(const char *text, const char *typed, const char *words)
{
    drop_imported(&file);
    assert_int_equal(import_text(&file, text, typed), DTP_BAD_INPUT);
    for (size_t i = 0; i < file.faults.count; i++)
        if (strstr(file.faults.text[i], words))
            return;
    fail_msg("%s", file.faults.text[0]);
}

/* What became of a setting. */
static const struct dtp_entry *entry(const char *path)
{
    struct dtp_imported f = dtp_import_file(file.import, 0);
    for (size_t i = 0; i < f.entry_count; i++)
        if (strcmp(f.entries[i].path, path) == 0)
            return &f.entries[i];
    fail_msg("no %s", path);
    return NULL;
}

static void every_row_is_sound(void **state)
{
    (void)state;
    size_t count;
    const struct dtp_format *const *formats = dtp_formats(&count);
    for (size_t i = 0; i < count; i++)
        for (size_t k = 0; k < formats[i]->row_count; k++) {
            const struct dtp_row *row = &formats[i]->rows[k];
            if (!dtp_row_is_sound(row))
                fail_msg("%s: %s", formats[i]->name, row->path);
            if (dtp_format_row(formats[i], row->path) != row) /* behind one that takes it away */
                fail_msg("%s: %s is never reached", formats[i]->name, row->path);
        }
}

static void values_are_words_or_numbers(void **state)
{
    (void)state;
    const struct dtp_row row = {DTP_ROW_KEY, "a", "b", "one=1|TWO=2|5e8=x|=none", "", NULL};
    char text[32];
    assert_true(dtp_row_ours(&row, "two", text, sizeof text));
    assert_string_equal(text, "2");
    assert_true(dtp_row_ours(&row, "500000000", text, sizeof text));
    assert_string_equal(text, "x");
    assert_true(dtp_row_ours(&row, "", text, sizeof text));
    assert_string_equal(text, "none");
    assert_false(dtp_row_ours(&row, "three", text, sizeof text));
    assert_true(dtp_row_theirs(&row, "2", text, sizeof text));
    assert_string_equal(text, "TWO");
    assert_string_equal(dtp_row_choices(&row, text, sizeof text), "one, TWO, 5e8 or ");
}

static void deepspeed_zero3(void **state)
{
    (void)state;
    import("{\"zero_optimization\": {\"stage\": 3, \"reduce_bucket_size\": \"auto\", \"stage3_prefetch_bucket_size\": "
           "\"auto\", \"stage3_param_persistence_threshold\": \"auto\", \"sub_group_size\": 1e9},\n\"bf16\": "
           "{\"enabled\": true}, \"train_micro_batch_size_per_gpu\": 2, \"train_batch_size\": 64}",
           TYPED);
    assert_int_equal(file.job.plan.strategy, DTP_ZERO3);
    assert_string_equal(file.job.plan.runtime->name, "deepspeed");
    assert_int_equal(file.job.plan.accumulate, 64 / (2 * 8));
    assert_int_equal(file.job.plan.precision.params, DTP_BF16); /* with a master copy in fp32 */
    assert_int_equal(file.job.plan.precision.master, DTP_FP32);
    /* llama-2-7b is 4096 wide: 4096^2, 0.9 of it rounded down, 10 times 4096 */
    assert_int_equal(file.job.plan.deepspeed.reduce_bucket_size, 16777216);
    assert_int_equal(file.job.plan.deepspeed.stage3_prefetch_bucket_size, 15099494);
    assert_int_equal(file.job.plan.deepspeed.stage3_param_persistence_threshold, 40960);
}

static void deepspeed_offload(void **state)
{
    (void)state;
    const char *both = "{\"zero_optimization\": {\"stage\": 3, \"offload_optimizer\": {\"device\": \"cpu\"}, "
                       "\"offload_param\": {\"device\": \"cpu\"}}, \"bf16\": {\"enabled\": true}, "
                       "\"train_micro_batch_size_per_gpu\": 1}";
    import(both, TYPED);
    assert_int_equal(file.job.plan.offload, DTP_OFFLOAD_PARAMS);
    import("{\"zero_optimization\": {\"stage\": 2, \"cpu_offload\": true}, \"bf16\": {\"enabled\": true}}", TYPED);
    assert_int_equal(file.job.plan.offload, DTP_OFFLOAD_OPTIMIZER);
    expect_refusal("{\"zero_optimization\": {\"stage\": 3,\n\"offload_param\": {\"device\": \"cpu\"}}}", TYPED,
                   "file:2: zero_optimization.offload_param.device = cpu: parameters alone");
}

static void auto_needs_who_fills_it_in(void **state)
{
    (void)state;
    const char *text = "{\"zero_optimization\": {\"stage\": 2},\n\"bf16\": {\"enabled\": \"auto\"},\n"
                       "\"train_micro_batch_size_per_gpu\": \"auto\"}";
    expect_refusal(text, TYPED,
                   "file:2: bf16.enabled = auto: the program that reads the file fills it in; give --precision");
    expect_refusal(text, TYPED, "file:3: train_micro_batch_size_per_gpu = auto");
    import(text, TYPED " precision=bf16-mixed micro_batch=3");
    assert_int_equal(file.job.plan.micro_batch, 3);
}

static void what_is_typed_comes_first(void **state)
{
    (void)state;
    const char *text =
        "{\"zero_optimization\": {\"stage\": 2}, \"bf16\": {\"enabled\": true}, \"train_batch_size\": 64, "
        "\"train_micro_batch_size_per_gpu\": 2, \"gradient_accumulation_steps\": 4}";
    import(text, TYPED " accumulate=16");
    assert_int_equal(file.job.plan.accumulate, 16);
    assert_int_equal(entry("gradient_accumulation_steps")->fate, DTP_ENTRY_REPLACED);
    assert_string_equal(entry("train_batch_size")->words, "global_batch: the line says --accumulate 16");
    import(text, TYPED " micro_batch=1 strategy=zero1");
    assert_int_equal(file.job.plan.micro_batch, 1);
    assert_int_equal(file.job.plan.accumulate, 4);
    assert_int_equal(file.job.plan.strategy, DTP_ZERO1);
    assert_string_equal(entry("zero_optimization.stage")->words, "strategy: the line says --strategy zero1");
    expect_refusal(text, "model=llama-2-7b gpu=a100-80-sxm gpus=16 seq=4096",
                   "file:1: global_batch: 64 sequences need");
    /* chunks beside a file's schedule of several, and in place of one that has a single chunk */
    import("[model]\nflavor = \"8B\"\n[training]\nlocal_batch_size = 8\n[parallelism]\npipeline_parallel_degree = 4\n"
           "pipeline_parallel_schedule = \"LoopedBFS\"\n[activation_checkpoint]\nmode = \"none\"\n",
           "gpu=h100-sxm gpus=8 virtual_stages=4");
    assert_int_equal(file.job.plan.schedule, DTP_SCHEDULE_LOOPED_BFS);
    assert_int_equal(file.job.plan.virtual_stages, 4);
    import("[model]\nflavor = \"8B\"\n[training]\nlocal_batch_size = 8\n[parallelism]\npipeline_parallel_degree = 4\n"
           "pipeline_parallel_schedule = \"1F1B\"\n[activation_checkpoint]\nmode = \"none\"\n",
           "gpu=h100-sxm gpus=8 virtual_stages=2");
    assert_int_equal(file.job.plan.schedule, DTP_SCHEDULE_INTERLEAVED);
}

static void what_nobody_says_is_asked_for(void **state)
{
    (void)state;
    static const char *const needed[] = {"model", "seq", "gpus", "gpu", NULL};
    const char *text = "[model]\nflavor = \"8B\"\n[training]\nseq_len = 4096\n";
    drop_imported(&file);
    begin_import(&file);
    assert_int_equal(dtp_import_parse(file.import, "t.toml", text, strlen(text), &file.faults), DTP_OK);
    assert_int_equal(finish_import(&file, "", needed), DTP_BAD_INPUT);
    assert_string_equal(file.faults.text[0],
                        "t.toml: does not say the number of GPUs, the GPU; add --gpus N --gpu NAME");
}

static void later_files_come_before_earlier_ones(void **state)
{
    (void)state;
    const char *yaml = "distributed_type: DEEPSPEED\ndeepspeed_config:\n  deepspeed_config_file: ds.json\n"
                       "num_processes: 8\n",
               *json = "{\"zero_optimization\": {\"stage\": 3}, \"bf16\": {\"enabled\": true}, "
                       "\"train_micro_batch_size_per_gpu\": 2}";
    drop_imported(&file);
    begin_import(&file);
    assert_int_equal(dtp_import_parse(file.import, "a.yaml", yaml, strlen(yaml), &file.faults), DTP_OK);
    assert_int_equal(dtp_import_parse(file.import, "ds.json", json, strlen(json), &file.faults), DTP_OK);
    assert_int_equal(finish_import(&file, "model=llama-2-7b gpu=a100-80-sxm seq=4096", NULL), DTP_OK);
    assert_int_equal(file.job.plan.strategy, DTP_ZERO3);
    assert_int_equal(file.job.cluster.gpus, 8);
    assert_string_equal(entry("deepspeed_config.deepspeed_config_file")->words, "read as ds.json");
    expect_refusal(yaml, "model=llama-2-7b gpu=a100-80-sxm seq=4096",
                   "file:3: deepspeed_config.deepspeed_config_file = "
                   "ds.json: is a file of its own; give it too");
}

/* utils/dataclasses.py, set_mixed_precision: the reduction in bf16 too. */
static void accelerate_fsdp(void **state)
{
    (void)state;
    import("distributed_type: FSDP\nmixed_precision: bf16\nnum_processes: 16\nnum_machines: 2\nfsdp_config:\n"
           "  fsdp_sharding_strategy: SHARD_GRAD_OP\n  fsdp_activation_checkpointing: true\n",
           "model=llama-2-7b gpu=a100-80-sxm seq=4096");
    assert_int_equal(file.job.plan.strategy, DTP_SHARD_GRAD_OP);
    assert_true(file.job.plan.fsdp1);
    assert_int_equal(file.job.plan.precision.reduce, DTP_BF16);
    assert_int_equal(file.job.plan.precision.params, DTP_FP32);
    assert_int_equal(file.job.plan.checkpointing, DTP_CHECKPOINT_FULL);
    assert_int_equal(file.job.cluster.gpus_per_node, 8);
    import("distributed_type: FSDP\nnum_processes: 8\nfsdp_config:\n  fsdp_version: 2\n  fsdp_reshard_after_forward: "
           "false\n",
           "model=llama-2-7b gpu=a100-80-sxm seq=4096");
    assert_int_equal(file.job.plan.strategy, DTP_SHARD_GRAD_OP);
    assert_false(file.job.plan.fsdp1);
    assert_int_equal(file.job.plan.precision.compute, DTP_FP32); /* mixed_precision is missing: no */
}

/* job_config.py's defaults count: 8 sequences of 2048, every second layer checkpointed, fused AdamW, not compiled. */
static void torchtitan_defaults(void **state)
{
    (void)state;
    import("[model]\nflavor = \"8B\"\n", "gpu=h100-sxm gpus=8");
    assert_int_equal(file.job.plan.micro_batch, 8);
    assert_int_equal(file.job.plan.sequence, 2048);
    assert_int_equal(file.job.plan.checkpointing, DTP_CHECKPOINT_EVERY_N);
    assert_int_equal(file.job.plan.checkpoint_every, 2);
    assert_int_equal(file.job.plan.strategy, DTP_FULL_SHARD);
    assert_false(file.job.plan.compile);
    assert_int_equal(file.job.transformer.vocab, 128256);
}

/* maybe_enable_amp: without FSDP autocast on one GPU and beside replicas, nothing beside tensor or pipeline
 * parallelism. */
static void torchtitan_without_fsdp(void **state)
{
    (void)state;
    import("[model]\nflavor = \"8B\"\n", "gpu=h200-sxm gpus=1");
    assert_int_equal(file.job.plan.strategy, DTP_DDP);
    assert_int_equal(file.job.plan.precision.compute, DTP_BF16);
    assert_true(dtp_plan_autocast(&file.job.plan));
    assert_true(file.job.plan.expandable_segments);
    import("[model]\nflavor = \"8B\"\n[parallelism]\ndata_parallel_replicate_degree = 2\n"
           "data_parallel_shard_degree = 1\n",
           "gpu=h200-sxm gpus=2");
    assert_true(dtp_plan_autocast(&file.job.plan));
    import("[model]\nflavor = \"8B\"\n[parallelism]\ntensor_parallel_degree = 2\n", "gpu=h200-sxm gpus=2");
    assert_int_equal(file.job.plan.precision.compute, DTP_FP32);
    assert_int_equal(file.job.plan.attention, DTP_ATTENTION_MATH);
    import("[model]\nflavor = \"8B\"\n[parallelism]\ntensor_parallel_degree = 2\n", "gpu=h200-sxm gpus=4");
    assert_int_equal(file.job.plan.precision.compute, DTP_BF16); /* two share */
    expect_refusal("[model]\nflavor = \"8B\"\n[parallelism]\ntensor_parallel_degree = 8\n", "gpu=h200-sxm nodes=1",
                   "needs the number of GPUs");
    expect_refusal("[model]\nflavor = \"8B\"\nconverters = [\"float8\"]\n[parallelism]\n"
                   "pipeline_parallel_degree = 2\n[float8]\nfilter_fqns = [\"output\"]\n",
                   "gpu=h200-sxm gpus=2", "without FSDP leaves all but matmuls in fp32");
}

/* apply_fsdp makes units of the two ends where there are two, and where nobody said otherwise. */
static void torchtitan_ends(void **state)
{
    (void)state;
    static const struct {
        const char *typed;
        bool wraps;
    } cases[] = {{"", true},
                 {"model=qwen3-8b", true},
                 {"model=llama-3.2-1b", false},
                 {"model=qwen3-4b", false},
                 {"model=gemma-2-9b", false},
                 {"loss=chunked", false},
                 {"wrap_layers=0", false},
                 {"lora=8 lora_dtype=fp32", false},
                 {"keep_root=true", false},
                 {"fsdp1=true", false},
                 {"strategy=ddp", false},
                 {"runtime=dtplan", false},
                 {"wrap_ends=false", false}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char typed[160];
        snprintf(typed, sizeof typed, "gpu=h100-sxm gpus=8%s%s", *cases[i].typed ? " " : "", cases[i].typed);
        import("[model]\nflavor = \"8B\"\n[activation_checkpoint]\nmode = \"none\"\n", typed);
        if (file.job.plan.wrap_ends != cases[i].wraps)
            fail_msg("%s: wrap_ends is %d", cases[i].typed, file.job.plan.wrap_ends);
    }
    import("[model]\nname = \"qwen3\"\nflavor = \"4B\"\n", "gpu=h100-sxm gpus=8");
    assert_false(file.job.plan.wrap_ends);
    import("[model]\nflavor = \"8B\"\n[training]\nbatch_size = 1\n", "gpu=h100-sxm gpus=8");
    assert_false(file.job.plan.wrap_ends);
    expect_refusal("[model]\nflavor = \"8B\"\n", "gpu=h100-sxm gpus=8 model=qwen3-4b wrap_ends=true",
                   "wrap_ends: makes units of what is one matrix");
}

/* 16 = 2 replicas x 4 x tp 2; a copy is spread over 4. A pipeline cuts 8 sequences into 4 micro-batches of 2. */
static void torchtitan_degrees(void **state)
{
    (void)state;
    import(
        "[model]\nflavor = \"8B\"\n[parallelism]\ndata_parallel_replicate_degree = 2\ndata_parallel_shard_degree = 4\n"
        "tensor_parallel_degree = 2\n[training]\nlocal_batch_size = 2\nglobal_batch_size = 64\n",
        "gpu=h100-sxm");
    assert_int_equal(file.job.cluster.gpus, 16);
    assert_int_equal(file.job.plan.shard_group, 4);
    assert_int_equal(file.job.plan.strategy, DTP_HYBRID_SHARD);
    assert_int_equal(file.job.plan.accumulate, 64 / (2 * 8));
    assert_true(file.job.plan.accumulate_sync);
    import("[model]\nflavor = \"8B\"\n[parallelism]\npipeline_parallel_degree = 4\npipeline_parallel_microbatch_size = "
           "2\n",
           "gpu=h100-sxm gpus=8");
    assert_int_equal(file.job.plan.micro_batch, 2);
    assert_int_equal(file.job.plan.accumulate, 4);
    expect_refusal("[parallelism]\ndata_parallel_replicate_degree = 2\n", TYPED,
                   "file:2: "
                   "parallelism.data_parallel_replicate_degree");
}

/* What is typed comes before the file, where that is refused for what the line says, and where degrees that are written
 * out do not make the GPUs that are typed. */
static void torchtitan_gives_way(void **state)
{
    (void)state;
#define CUT                                                                                                            \
    "[model]\nflavor = \"8B\"\n[parallelism]\npipeline_parallel_degree = 4\npipeline_parallel_layers_per_stage = 4\n"
    expect_refusal(CUT, "gpu=h100-sxm gpus=8", "give --virtual-stages, which comes before the file");
    import(CUT, "gpu=h100-sxm gpus=8 virtual_stages=2");
    assert_int_equal(file.job.plan.virtual_stages, 2);
    assert_int_equal(entry("parallelism.pipeline_parallel_layers_per_stage")->fate, DTP_ENTRY_REPLACED);
#define DEGREES "[model]\nflavor = \"8B\"\n[parallelism]\ndata_parallel_shard_degree = 3\ntensor_parallel_degree = 2\n"
    import(DEGREES, "gpu=h100-sxm gpus=8");
    assert_int_equal(entry("parallelism.data_parallel_shard_degree")->fate, DTP_ENTRY_REPLACED);
    import(DEGREES, "gpu=h100-sxm gpus=6 gpus_per_node=6");
    assert_int_equal(entry("parallelism.data_parallel_shard_degree")->fate, DTP_ENTRY_USED);
#undef CUT
#undef DEGREES
}

/* fp8 beside parameters stored in bf16, and their moments with them. */
static void torchtitan_fp8_of_bf16(void **state)
{
    (void)state;
#define FP8                                                                                                            \
    "[model]\nflavor = \"8B\"\nconverters = [\"float8\"]\n[training]\ndtype = \"bfloat16\"\nmixed_precision_param = "  \
    "\"%s\"\n"
    char text[256];
    snprintf(text, sizeof text, FP8 "[quantize.linear.float8]\nfilter_fqns = [\"output\"]\n", "bfloat16");
    import(text, "gpu=h100-sxm gpus=8");
    assert_int_equal(file.job.plan.precision.compute, DTP_FP8);
    assert_int_equal(file.job.plan.precision.params, DTP_BF16);
    assert_int_equal(file.job.plan.precision.moments, DTP_BF16);
    assert_int_equal(file.job.plan.precision.reduce, DTP_FP32);
    snprintf(text, sizeof text, FP8, "float32");
    expect_refusal(text, "gpu=h100-sxm gpus=8", "file:6: training.mixed_precision_param = float32: fp8 is modelled");
#undef FP8
}

/* Of Transformers' Trainer: linears by name or pattern, the rank among other numbers, 128 without one; what projects
 * another set of linears, or otherwise, is refused. */
static void trainer_projections(void **state)
{
    (void)state;
#define TRAINER "output_dir: out\nnum_train_epochs: 1\nlr_scheduler_type: linear\nbf16: true\n"
#define PROJECTED "optim: galore_adamw\noptim_target_modules: [attn, mlp]\n"
#define ONE_GPU "model=llama-2-7b gpu=h200-sxm gpus=1 seq=2048"
    import(TRAINER "optim: galore_adamw\noptim_target_modules: ['.*attn.*', '.*mlp.*']\n"
                   "optim_args: 'update_proj_gap=100, rank=64, scale=0.10'\n",
           ONE_GPU);
    assert_int_equal(file.job.plan.optimizer, DTP_GALORE);
    assert_int_equal(file.job.plan.projection_rank, 64);
    import(TRAINER "optim: apollo_adamw\noptim_target_modules: [q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, "
                   "down_proj]\noptim_args: proj=random,scale_type=channel\n",
           ONE_GPU);
    assert_int_equal(file.job.plan.optimizer, DTP_APOLLO);
    assert_int_equal(file.job.plan.projection_rank, 128);
    import(TRAINER PROJECTED "optim_args: 'rank=4, rank = 32 '\n", ONE_GPU); /* the last, as in Trainer's dict */
    assert_int_equal(file.job.plan.projection_rank, 32);
    static const char *const no_lists[] = {"rank", "5", "'rank=4,'", "'rank==4'", "'=,=,,'"};
    for (size_t i = 0; i < sizeof no_lists / sizeof *no_lists; i++) {
        char text[256];
        snprintf(text, sizeof text, TRAINER PROJECTED "optim_args: %s\n", no_lists[i]);
        expect_refusal(text, ONE_GPU, "is no list of NAME=VALUE");
    }
    expect_refusal(TRAINER PROJECTED "optim_args: proj_type = right\n", ONE_GPU, "leave out proj_type");
    expect_refusal(TRAINER "optim: galore_adamw\n", ONE_GPU, "takes optim_target_modules");
    expect_refusal(TRAINER "optim: galore_adamw\noptim_target_modules: all-linear\n", ONE_GPU,
                   "other linears than all of a block's");
    expect_refusal(TRAINER "optim: galore_adamw\noptim_target_modules: [attn]\n", ONE_GPU,
                   "other linears than all of a block's");
    expect_refusal(TRAINER "optim: apollo_adamw\noptim_target_modules: [attn, mlp]\noptim_args: proj=svd\n", ONE_GPU,
                   "leave out proj");
    expect_refusal(TRAINER "optim: adamw_torch\noptim_target_modules: [attn, mlp]\n", ONE_GPU,
                   "is of optimizers that project");
    expect_refusal(TRAINER "optim: galore_adamw_8bit\noptim_target_modules: [attn, mlp]\n", ONE_GPU, "optim");
}

/* Several files, named in this order. */
static enum dtp_status import_files(const char *const *texts, const char *typed)
{
    drop_imported(&file);
    begin_import(&file);
    enum dtp_status status = DTP_OK;
    for (size_t i = 0; texts[i] && status == DTP_OK; i++)
        status = dtp_import_parse(file.import, "file", texts[i], strlen(texts[i]), &file.faults);
    return status == DTP_OK ? finish_import(&file, typed, NULL) : status;
}

static void expect_both_orders(const char *one, const char *other, const char *typed, const char *precision)
{
    for (int turn = 0; turn < 2; turn++) {
        const char *const texts[] = {turn ? other : one, turn ? one : other, NULL};
        if (import_files(texts, typed) != DTP_OK)
            fail_msg("%s", file.faults.text[0]);
        assert_string_equal(file.job.plan.runtime->name, "peft");
        assert_string_equal(dtp_scenario_get(file.scenario, "precision"), precision);
    }
}

#define EIGHT "model=llama-2-7b gpu=h200-sxm gpus=8 seq=2048"
#define SHAPE "model=llama-2-7b gpu=h200-sxm seq=2048"
#define QUIET "output_dir: out\nnum_train_epochs: 1\nlr_scheduler_type: linear\n"
#define BY_DDP "distributed_type: MULTI_GPU\nmixed_precision: bf16\nnum_processes: 8\n"
#define BY_FSDP2 "distributed_type: FSDP\nmixed_precision: bf16\nnum_processes: 8\nfsdp_config:\n  fsdp_version: 2\n"

/* Weights are in the format of `dtype`, or of the checkpoint, whoever launches and whichever file is named first; FSDP
 * makes trained ones fp32. */
static void trainer_weights(void **state)
{
    (void)state;
    import(TRAINER, EIGHT);
    assert_int_equal(file.job.plan.precision.params, DTP_BF16);
    assert_true(file.job.plan.autocast);
    import(TRAINER "dtype: float32\n", EIGHT);
    assert_int_equal(file.job.plan.precision.params, DTP_FP32);
    import(QUIET "dtype: float32\nfp16: true\n", EIGHT);
    assert_int_equal(file.job.plan.precision.compute, DTP_FP16);
    import(QUIET "fp16: true\nfsdp: full_shard auto_wrap\n", EIGHT);
    assert_int_equal(file.job.plan.precision.params, DTP_FP32);
    import(TRAINER, EIGHT " precision=fp32");
    assert_false(file.job.plan.autocast);
    expect_both_orders(TRAINER, BY_DDP, SHAPE, "bf16-pure");
    assert_true(file.job.plan.autocast);
    expect_both_orders(QUIET, BY_DDP, SHAPE, "bf16-pure");
    expect_both_orders(TRAINER, BY_FSDP2, SHAPE, "bf16-mixed");
    assert_true(file.job.plan.keep_root);
    expect_refusal(TRAINER "dtype: float32\n", EIGHT " lora=8", "dtype = float32: a base in another format");
    expect_refusal(TRAINER "dtype: float16\n", EIGHT, "dtype = float16: fp16 weights under bf16's autocast");
    expect_refusal(QUIET "dtype: float16\nfp16: true\n", EIGHT, "dtype = float16: fp16's GradScaler");
    expect_refusal(QUIET "fp16: true\n", EIGHT, "fp16 = true: fp16's GradScaler takes fp32 weights");
    expect_refusal(QUIET "dtype: float16\n", EIGHT, "dtype = float16: fp16 weights without autocast");
    expect_refusal(TRAINER "use_cpu: true\n", EIGHT, "use_cpu = true: not modelled");
    expect_refusal(TRAINER "optim: paged_adamw_8bit\n", EIGHT, "use adam8bit");
}

/* The root stays gathered where FSDP2 frees weights, by whichever file; nothing is made that the plan does not read. */
static void accelerate_keeps_the_root(void **state)
{
    (void)state;
    import(BY_FSDP2, SHAPE);
    assert_true(file.job.plan.keep_root);
    import(BY_FSDP2 "  fsdp_reshard_after_forward: false\n", SHAPE);
    assert_null(dtp_scenario_get(file.scenario, "keep_root"));
    import(TRAINER "fsdp: shard_grad_op auto_wrap\n", EIGHT);
    assert_null(dtp_scenario_get(file.scenario, "keep_root"));
    import(TRAINER "fsdp: full_shard auto_wrap\nuse_peft: true\n", EIGHT);
    assert_true(file.job.plan.keep_root);
    assert_null(dtp_scenario_get(file.scenario, "reduce_dtype"));
}

/* Adapters of experts' parameters, of all layers; a list of none is none. */
static void adapted_parameters(void **state)
{
    (void)state;
#define ADAPTED TRAINER "use_peft: true\nlora_r: 8\nlora_target_parameters: "
#define WITH_EXPERTS "model=qwen3-30b-a3b gpu=h200-sxm gpus=1 seq=2048"
    import(ADAPTED "[mlp.experts.gate_up_proj]\nlora_dropout: 0.0\n", WITH_EXPERTS);
    assert_true(file.job.plan.grouped_experts && file.job.plan.adapters.parameters == 1u << DTP_TARGET_UP);
    import(ADAPTED "[mlp.experts.down_proj, mlp.experts.gate_up_proj]\nlora_dropout: 0.0\n", WITH_EXPERTS);
    assert_int_equal(file.job.plan.adapters.parameters, 1u << DTP_TARGET_UP | 1u << DTP_TARGET_DOWN);
    expect_refusal(ADAPTED "[7.mlp.experts.down_proj]\n", WITH_EXPERTS, "names those of some layers");
    expect_refusal(ADAPTED "[mlp.gate.weight]\n", WITH_EXPERTS, "names others than");
    expect_refusal(ADAPTED "[mlp.experts.down_proj]\n", ONE_GPU, "grouped_experts");
    import(ADAPTED "null\n", ONE_GPU);
    assert_int_equal(file.job.plan.adapters.rank, 8);
}

/* rsLoRA's scale 32 / sqrt(16) is that of alpha 128, 128 / 16; embedding and head are the ends. */
static void scaled_and_saved(void **state)
{
    (void)state;
#define SCALED TRAINER "use_peft: true\nlora_r: 16\nlora_alpha: 32\n"
    import(SCALED "use_rslora: true\nlora_modules_to_save: [lm_head, embed_tokens]\n", ONE_GPU);
    assert_true(file.job.plan.adapters.alpha == 128 && file.job.plan.adapters.train_ends);
    import(SCALED "use_rslora: false\nlora_modules_to_save: null\n", ONE_GPU);
    assert_true(file.job.plan.adapters.alpha == 32 && !file.job.plan.adapters.train_ends);
    import(SCALED "lora_modules_to_save: [lm_head, embed_tokens, lm_head]\n", ONE_GPU);
    assert_true(file.job.plan.adapters.train_ends);
    expect_refusal(SCALED "lora_modules_to_save: [lm_head]\n", ONE_GPU, "trains other modules whole than embed_tokens");
    expect_refusal(SCALED "lora_modules_to_save: [lm_head, embed_tokens, norm]\n", ONE_GPU,
                   "trains other modules whole");
    static const char *const bad[][2] = {{"nan", "'nan' is not a number"},
                                         {"-4", "'-4' is not a number"},
                                         {"1e308", "'1e308' is not a number"},
                                         {"900000", "times the root of the rank is above"},
                                         {"0", "so that they learn nothing"}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char text[400];
        snprintf(text, sizeof text, TRAINER "use_peft: true\nlora_alpha: %s\nuse_rslora: true\n", bad[i][0]);
        expect_refusal(text, ONE_GPU, bad[i][1]);
    }
}

/* 4 bits are as many bytes in each dtype that keeps them. */
static void storage_of_4_bits(void **state)
{
    (void)state;
    import(TRAINER "use_peft: true\nload_in_4bit: true\nbnb_4bit_quant_storage: bfloat16\n", ONE_GPU);
    assert_int_equal(file.job.plan.adapters.base, DTP_BASE_NF4);
}

static void other_files_are_refused(void **state)
{
    (void)state;
    expect_refusal("{\"hidden_size\": 4096}", TYPED, "holds JSON and is no configuration that dtplan knows");
    expect_refusal("[plan]\nstrategy = zero1\n", TYPED, "no TOML: 'zero1' is no value");
    expect_refusal("", TYPED, "is empty");
}

static int drop_all(void **state)
{
    drop_imported(&file);
    return drop_catalog(state);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_row_is_sound),
        cmocka_unit_test(values_are_words_or_numbers),
        cmocka_unit_test(deepspeed_zero3),
        cmocka_unit_test(deepspeed_offload),
        cmocka_unit_test(auto_needs_who_fills_it_in),
        cmocka_unit_test(what_is_typed_comes_first),
        cmocka_unit_test(what_nobody_says_is_asked_for),
        cmocka_unit_test(later_files_come_before_earlier_ones),
        cmocka_unit_test(accelerate_fsdp),
        cmocka_unit_test(torchtitan_defaults),
        cmocka_unit_test(torchtitan_without_fsdp),
        cmocka_unit_test(torchtitan_ends),
        cmocka_unit_test(torchtitan_degrees),
        cmocka_unit_test(torchtitan_gives_way),
        cmocka_unit_test(torchtitan_fp8_of_bf16),
        cmocka_unit_test(trainer_projections),
        cmocka_unit_test(trainer_weights),
        cmocka_unit_test(accelerate_keeps_the_root),
        cmocka_unit_test(adapted_parameters),
        cmocka_unit_test(scaled_and_saved),
        cmocka_unit_test(storage_of_4_bits),
        cmocka_unit_test(other_files_are_refused),
    };
    return cmocka_run_group_tests(tests, load_catalog, drop_all);
}
