/* What-if tables: each of the fourteen tuning questions of FSDP has a plan on which the sign of its answer is known
 * from the arithmetic of what is sent, kept and computed. */
#include "decide/whatif.h"
#include "job/estimate.h"

#include "base/table.h"
#include "record/search_report.h"

#include <jansson.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "lib/folded_text.h"
#include "lib/scenario_fixture.h"
#include "lib/typed_flags.h"

static struct dtp_whatif *whatif;
static struct dtp_catalog catalog;
static struct dtp_scenario *scenario;

static int create(void **state)
{
    (void)state;
    whatif = malloc(sizeof *whatif);
    return whatif ? 0 : -1;
}

static int destroy(void **state)
{
    (void)state;
    free(whatif);
    dtp_scenario_destroy(scenario);
    return 0;
}

/* The scenario of "key=value key=value ...", until the next one. */
static void make(const char *settings)
{
    static struct dtp_faults faults;
    char text[512], *rest = text, *word;
    memset(&faults, 0, sizeof faults);
    catalog = fixture_catalog();
    dtp_scenario_destroy(scenario);
    snprintf(text, sizeof text, "%s", settings);
    assert_int_equal(dtp_scenario_create(&scenario, &faults), DTP_OK);
    while ((word = strtok_r(rest, " ", &rest))) {
        char *value = strchr(word, '=');
        assert_non_null(value);
        *value++ = '\0';
        assert_int_equal(dtp_scenario_set(scenario, word, value, "test", 0, &faults), DTP_OK);
    }
}

static void ask(const char *settings)
{
    struct dtp_faults faults = {0};
    struct dtp_predictor closed = dtp_predictor_closed();
    make(settings);
    if (dtp_whatif(scenario, &catalog, &closed, NULL, whatif, &faults) != DTP_OK)
        fail_msg("%s: %s", settings, faults.text[0]);
}

static const struct dtp_whatif_row *row_of(enum dtp_question question, const char *flags)
{
    for (size_t i = 0; i < whatif->count; i++)
        if (strcmp(whatif->rows[i].flags, flags) == 0) {
            assert_int_equal(whatif->rows[i].question, question);
            return &whatif->rows[i];
        }
    fail_msg("no row %s", flags);
    return NULL;
}

/* The signs of the change of device memory, of the bytes sent and of the time a token takes; 9: any. */
static void expect(enum dtp_question question, const char *flags, int memory, int sent, int time)
{
    const struct dtp_whatif_row *row = row_of(question, flags);
    const struct dtp_communication *was = &whatif->base.prediction.communication;
    double sent_delta = (double)row->variant.prediction.communication.total_bytes - (double)was->total_bytes;
    const struct {
        const char *what;
        double delta;
        int sign;
    } checks[] = {{"memory", row->device_delta_bytes, memory}, {"sent", sent_delta, sent}, {"time", -row->gain, time}};
    for (size_t i = 0; i < sizeof checks / sizeof *checks; i++) {
        int sign = checks[i].delta > 0 ? 1 : checks[i].delta < 0 ? -1 : 0;
        if (checks[i].sign != 9 && sign != checks[i].sign)
            fail_msg("%s: %s changes by %g, expected the sign %d", flags, checks[i].what, checks[i].delta,
                     checks[i].sign);
    }
}

/* ---- the fourteen questions -------------------------------------------------------------------------------------- */

static void test_wrapping(void **state)
{
    (void)state;
    ask("model=llama-2-7b gpus=8");
    expect(DTP_QUESTION_WRAPPING, "--wrap-layers 4", 1, 9, 1);
    expect(DTP_QUESTION_WRAPPING, "--wrap-layers 0", 1, 9, 1); /* one unit: nothing to overlap with */
}

static void test_batch(void **state)
{
    (void)state;
    ask("model=llama-2-7b gpus=8 micro_batch=2 accumulate=2");
    expect(DTP_QUESTION_BATCH, "--micro-batch 4", 1, 0, -1); /* the same gathers for twice the tokens */
    expect(DTP_QUESTION_BATCH, "--micro-batch 4 --accumulate 1", 9, -1, -1);
    expect(DTP_QUESTION_BATCH, "--micro-batch 1 --accumulate 4", -1, 1, 1);
}

static void test_shard_degree(void **state)
{
    (void)state;
    ask("model=llama-2-7b gpus=32 network_gbit_per_s=200");
    expect(DTP_QUESTION_SHARD_DEGREE, "--shard-group 8", 1, 9, -1); /* gathers stay inside the node */
    expect(DTP_QUESTION_SHARD_DEGREE, "--shard-group 16", 1, 9, 9);
}

static void test_offload(void **state)
{
    (void)state;
    ask("model=llama-2-7b gpus=8 strategy=zero2");
    expect(DTP_QUESTION_OPTIMIZER_OFFLOAD, "--offload optimizer", -1, 0, 1);
}

static void test_checkpointing(void **state)
{
    (void)state;
    ask("model=llama-2-7b gpus=8 micro_batch=4");
    expect(DTP_QUESTION_CHECKPOINTING, "--checkpointing full", -1, 0, 1);
    expect(DTP_QUESTION_CHECKPOINTING, "--checkpointing selective", -1, 0, 1);
    assert_non_null(strstr(row_of(DTP_QUESTION_CHECKPOINTING, "--checkpointing full")->why, "recompute 0 -> "));
    assert_non_null(strstr(row_of(DTP_QUESTION_CHECKPOINTING, "--checkpointing full")->why, "activations "));
}

static void test_reduce_dtype(void **state)
{
    (void)state;
    ask("model=llama-2-7b gpus=16 network_gbit_per_s=200");
    expect(DTP_QUESTION_REDUCE_DTYPE, "--reduce-dtype bf16", -1, -1, -1);
    assert_true(row_of(DTP_QUESTION_REDUCE_DTYPE, "--reduce-dtype bf16")->numerics);
}

static void test_hybrid_shard(void **state)
{
    (void)state;
    ask("model=llama-2-7b gpus=32 network_gbit_per_s=200");
    expect(DTP_QUESTION_HYBRID_SHARD, "--strategy hybrid_shard", 1, 9, -1);
    assert_non_null(
        strstr(row_of(DTP_QUESTION_HYBRID_SHARD, "--strategy hybrid_shard")->why, "exposed communication "));
}

static void test_reshard(void **state)
{
    (void)state;
    ask("model=llama-2-7b gpus=8");
    expect(DTP_QUESTION_RESHARD, "--strategy shard_grad_op", 1, -1, -1);
    assert_non_null(strstr(row_of(DTP_QUESTION_RESHARD, "--strategy shard_grad_op")->why, "all-gather "));
    ask("model=llama-2-7b gpus=8 strategy=shard_grad_op");
    expect(DTP_QUESTION_RESHARD, "--strategy full_shard", -1, 1, 1);
    ask("model=llama-2-7b gpus=32 strategy=hybrid_shard");
    expect(DTP_QUESTION_RESHARD, "--no-reshard-after-forward", 1, -1, -1);
    ask("model=llama-2-7b gpus=32 network_gbit_per_s=200"); /* the second gather stays in the node */
    expect(DTP_QUESTION_RESHARD, "--reshard-after-forward=8", 1, -1, -1);
    ask("model=llama-2-7b gpus=32 network_gbit_per_s=200 reshard_after_forward=8");
    expect(DTP_QUESTION_RESHARD, "--reshard-after-forward", -1, 1, 1);
}

static void test_zeropp(void **state)
{
    (void)state;
    ask("model=llama-2-7b gpus=32 network_gbit_per_s=200 strategy=zero3 runtime=deepspeed");
    expect(DTP_QUESTION_SHARD_DEGREE, "--zero-hpz-partition-size 8", 1, -1, -1);
    expect(DTP_QUESTION_PRECISION, "--zero-quantized-weights", 9, -1, -1);
    expect(DTP_QUESTION_REDUCE_DTYPE, "--zero-quantized-gradients", 9, -1, -1);
}

static void test_prefetch(void **state)
{
    (void)state;
    ask("model=llama-2-7b gpus=8");
    expect(DTP_QUESTION_PREFETCH, "--no-prefetch", 9, 0, 1);
    expect(DTP_QUESTION_PREFETCH, "--prefetch-depth 4", 1, 0, 0);
    ask("model=llama-2-7b gpus=8 prefetch=false");
    expect(DTP_QUESTION_PREFETCH, "--prefetch", 9, 0, -1);
}

static void test_limit_all_gathers(void **state)
{
    (void)state;
    char why[512];
    ask("model=llama-2-7b gpus=8");
    assert_false(dtp_whatif_answers(whatif, DTP_QUESTION_LIMIT_ALL_GATHERS, why, sizeof why));
    assert_non_null(strstr(why, "FSDP2"));
    ask("model=llama-2-7b gpus=8 fsdp1=true");
    assert_false(dtp_whatif_answers(whatif, DTP_QUESTION_LIMIT_ALL_GATHERS, why, sizeof why));
    assert_non_null(strstr(why, "no closed form")); /* the simulation knows: test_simulated.c */
    ask("model=gpt2-124m gpus=8 strategy=ddp");
    assert_false(dtp_whatif_answers(whatif, DTP_QUESTION_LIMIT_ALL_GATHERS, why, sizeof why));
    assert_non_null(strstr(why, "only FSDP1"));
}

static void test_accumulate_sync(void **state)
{
    (void)state;
    char why[512];
    ask("model=llama-2-7b gpus=8 accumulate=4");
    expect(DTP_QUESTION_ACCUMULATE_SYNC, "--accumulate-sync", -1, 1, 1); /* no whole gradients, but sent four times */
    ask("model=llama-2-7b gpus=8 accumulate=4 accumulate_sync=true");
    expect(DTP_QUESTION_ACCUMULATE_SYNC, "--no-accumulate-sync", 1, -1, -1);
    ask("model=llama-2-7b gpus=8");
    assert_false(dtp_whatif_answers(whatif, DTP_QUESTION_ACCUMULATE_SYNC, why, sizeof why));
}

static void test_compile(void **state)
{
    (void)state;
    ask("model=llama-2-7b gpus=8");
    expect(DTP_QUESTION_COMPILE, "--compile", -1, 0, -1);
    ask("model=llama-2-7b gpus=8 compile=true");
    expect(DTP_QUESTION_COMPILE, "--no-compile", 1, 0, 1);
}

static void test_bucket_size(void **state)
{
    (void)state;
    char why[512];
    ask("model=gpt2-124m gpus=8 strategy=ddp network_gbit_per_s=10 gpus_per_node=1");
    expect(DTP_QUESTION_BUCKET_SIZE, "--ddp-bucket-mib 500", 9, 0, 1); /* one bucket: nothing leaves before the end */
    ask("model=gpt2-124m gpus=8");
    assert_false(dtp_whatif_answers(whatif, DTP_QUESTION_BUCKET_SIZE, why, sizeof why));
    assert_non_null(strstr(why, "--wrap-layers"));
}

static void test_attention(void **state)
{
    (void)state;
    ask("model=llama-2-7b gpus=8");
    expect(DTP_QUESTION_ATTENTION, "--attention math", 1, 0, 1);
    ask("model=llama-2-7b gpus=8 attention=math");
    expect(DTP_QUESTION_ATTENTION, "--attention flash", -1, 0, -1);
}

/* ---- the table --------------------------------------------------------------------------------------------------- */

static const char *const plans[] = {
    "model=llama-2-7b",
    "model=llama-2-7b gpus=8",
    "model=llama-2-7b gpus=32 strategy=hybrid_shard accumulate=4",
    "model=gpt2-124m gpus=8 strategy=ddp micro_batch=8",
    "model=llama-2-7b gpus=8 strategy=zero2 accumulate=8",
    "model=llama-2-7b gpus=8 strategy=zero3 runtime=deepspeed offload=params",
    "model=llama-2-7b gpus=8 precision=fp32",
    "model=llama-2-7b gpus=8 strategy=zero1 runtime=megatron",
    "model=llama-2-7b gpus=8 runtime=dtplan",
    "model=llama-2-7b gpus=8 seq=4096 micro_batch=64",
};

static void test_order_and_reasons(void **state)
{
    (void)state;
    for (size_t plan = 0; plan < sizeof plans / sizeof *plans; plan++) {
        ask(plans[plan]);
        assert_true(whatif->count > 5);
        assert_true(whatif->count + whatif->refused_count < DTP_WHATIF_MAX_ROWS); /* none was dropped */
        for (size_t i = 0; i < whatif->count + whatif->refused_count; i++) {
            const struct dtp_whatif_row *row = &whatif->rows[i], *before = i ? row - 1 : NULL;
            assert_int_equal(row->refused, i >= whatif->count);
            assert_true(row->why[0] && row->flags[0]);
            if (!before || row->refused)
                continue;
            enum dtp_verdict a = before->variant.prediction.memory.verdict, b = row->variant.prediction.memory.verdict;
            assert_true(a < b || (a == b && before->gain >= row->gain));
            assert_true(isfinite(row->gain) && isfinite(row->step_delta_s));
        }
    }
}

/* Every fsdp question is either answered by a row or said to have no choice. */
static void test_all_questions(void **state)
{
    (void)state;
    for (size_t plan = 0; plan < sizeof plans / sizeof *plans; plan++) {
        ask(plans[plan]);
        for (int i = 0; i < DTP_QUESTION_FSDP_COUNT; i++) {
            char why[512] = "";
            assert_true(dtp_whatif_answers(whatif, (enum dtp_question)i, why, sizeof why) || why[0]);
        }
    }
}

/* GPT-2's 50257 columns begin at odd addresses: the three matmuls of the head run several times slower than 50304
 * would. Megatron pads by itself, and fp32 does not mind. */
static void test_padded_vocabulary(void **state)
{
    (void)state;
    char why[512] = "";
    ask("model=gpt2-124m gpus=1 gpu=h100-sxm micro_batch=16 seq=1024");
    const struct dtp_whatif_row *row = row_of(DTP_QUESTION_VOCAB, "--vocab 50304");
    assert_true(row->gain > 0.2 && row->why[0]);
    double step_s = row->variant.prediction.time.step_s;
    ask("model=gpt2-124m gpus=1 gpu=h100-sxm micro_batch=16 seq=1024 vocab=50304");
    assert_true(whatif->base.prediction.time.step_s == step_s);
    assert_false(dtp_whatif_answers(whatif, DTP_QUESTION_VOCAB, why, sizeof why));
    assert_non_null(strstr(why, "16 bytes"));
    ask("model=gpt2-124m gpus=1 gpu=h100-sxm micro_batch=16 seq=1024 precision=fp32");
    assert_false(dtp_whatif_answers(whatif, DTP_QUESTION_VOCAB, why, sizeof why));
    ask("model=gpt2-124m gpus=1 gpu=h100-sxm micro_batch=16 seq=1024 runtime=megatron strategy=ddp");
    assert_false(dtp_whatif_answers(whatif, DTP_QUESTION_VOCAB, why, sizeof why));
}

/* A change equals what the plan with these flags says of itself: the table has no arithmetic of its own. */
static void test_agrees_with_plan(void **state)
{
    (void)state;
    ask("model=llama-2-7b gpus=8");
    const struct dtp_whatif_row *row = row_of(DTP_QUESTION_CHECKPOINTING, "--checkpointing full");
    double step_s = row->variant.prediction.time.step_s, was_s = whatif->base.prediction.time.step_s;
    assert_true(row->step_delta_s == step_s - was_s);
    ask("model=llama-2-7b gpus=8 checkpointing=full");
    assert_true(whatif->base.prediction.time.step_s == step_s);
    row = row_of(DTP_QUESTION_CHECKPOINTING, "--checkpointing none");
    assert_true(row->variant.prediction.time.step_s == was_s);
}

/* ---- predictors -------------------------------------------------------------------------------------------------- */

/* Predicts a step of one second, and refuses compiled plans. */
static enum dtp_status predict_second(const void *context, const struct dtp_job *job, struct dtp_prediction *out,
                                      struct dtp_faults *faults)
{
    (void)context;
    if (job->plan.compile)
        return dtp_fault(faults, DTP_BAD_INPUT, NULL, 0, "cannot simulate that");
    enum dtp_status status = dtp_estimate(&job->transformer, &job->cluster, &job->plan, out, faults);
    out->time.step_s = 1;
    return status;
}

static void test_another_predictor(void **state)
{
    (void)state;
    struct dtp_faults faults = {0};
    struct dtp_predictor predictor = {.name = "test", .context = NULL, .predict = predict_second};
    make("model=llama-2-7b gpus=8");
    assert_int_equal(dtp_whatif(scenario, &catalog, &predictor, NULL, whatif, &faults), DTP_OK);
    assert_string_equal(whatif->predictor, "test");
    bool refused = false;
    for (size_t i = 0; i < whatif->count + whatif->refused_count; i++) {
        const struct dtp_whatif_row *row = &whatif->rows[i];
        assert_true(row->refused || row->step_delta_s == 0);
        refused |= row->refused && strcmp(row->why, "cannot simulate that") == 0;
    }
    assert_true(refused);
    make("model=llama-2-7b gpus=8 compile=true");
    assert_int_equal(dtp_whatif(scenario, &catalog, &predictor, NULL, whatif, &faults), DTP_BAD_INPUT);
}

/* What one predictor refuses the other predicts, with the plan it is compared with: the step of one second never stands
 * beside a step of the closed form. */
static void test_like_beside_like(void **state)
{
    (void)state;
    struct dtp_faults faults = {0};
    struct dtp_predictor predictor = {.name = "test", .context = NULL, .predict = predict_second};
    struct dtp_predictor closed = dtp_predictor_closed();
    make("model=llama-2-7b gpus=8");
    assert_int_equal(dtp_whatif(scenario, &catalog, &predictor, &closed, whatif, &faults), DTP_OK);
    assert_string_equal(whatif->predictor, "test");
    size_t by_formulas = 0;
    for (size_t i = 0; i < whatif->count; i++) {
        const struct dtp_whatif_row *row = &whatif->rows[i];
        if (strcmp(row->predictor, "test") == 0) {
            assert_true(row->step_delta_s == 0);
            continue;
        }
        double step_s = row->variant.prediction.time.step_s;
        ++by_formulas;
        assert_string_equal(row->flags, "--compile");
        assert_true(fabs(row->step_delta_s) < step_s && row->step_delta_s != step_s - 1);
    }
    assert_int_equal(by_formulas, 1);
    make("model=llama-2-7b gpus=8 compile=true"); /* the plan itself: then all by the other */
    assert_int_equal(dtp_whatif(scenario, &catalog, &predictor, &closed, whatif, &faults), DTP_OK);
    assert_int_equal(faults.count, 0);
    assert_string_equal(whatif->predictor, "closed");
    for (size_t i = 0; i < whatif->count; i++)
        assert_string_equal(whatif->rows[i].predictor, "closed");
}

/* ---- what is offered can be typed -------------------------------------------------------------------------------- */

/* The words of a row, typed behind those of the scenario, give the very job that was predicted. */
static void type_back(const char *settings, const struct dtp_whatif_row *row)
{
    static struct dtp_faults faults;
    struct dtp_scenario *typed;
    struct dtp_job job;
    struct dtp_prediction prediction;
    struct dtp_predictor closed = dtp_predictor_closed();
    memset(&faults, 0, sizeof faults);
    assert_int_equal(dtp_scenario_copy(scenario, &typed, &faults), DTP_OK);
    type_flags(row->flags, typed, &faults);
    if (dtp_scenario_resolve(typed, &catalog, &job, &faults) != DTP_OK)
        fail_msg("%s: %s is offered, but: %s", settings, row->flags, faults.text[0]);
    assert_int_equal(closed.predict(NULL, &job, &prediction, &faults), DTP_OK);
    assert_true(prediction.time.step_s == row->variant.prediction.time.step_s);
    dtp_scenario_destroy(typed);
}

static void test_what_is_offered_can_be_typed(void **state)
{
    (void)state;
    static const char *const more[] = {
        "model=llama-2-7b gpus=16 runtime=megatron strategy=zero1 tp=4 pp=2 accumulate=4",
        "model=llama-2-7b gpus=16 strategy=full_shard prefetch_depth=2 reshard_after_forward=4",
        "model=llama-2-7b gpus=16 strategy=full_shard prefetch_depth=2 accumulate=4 accumulate_sync=true",
        "model=llama-2-7b nodes=4 batch_size=4 gradient_accumulation_steps=2 precision=bf16-mixed reduce_dtype=bf16",
        "model=llama-2-7b nodes=2 gpus=16 strategy=hybrid_shard shard_group=8 reshard_after_forward=false",
        "model=llama-2-7b gpus=16 strategy=zero3 runtime=deepspeed zero_hpz_partition_size=8 offload=cpu",
        "model=llama-2-7b gpus=16 strategy=ddp ddp_bucket_mib=100 ddp_bucket_view=true",
        "model=llama-2-7b gpus=8 fsdp1=true keep_root=true global_batch=64 micro_batch=2",
        "model=llama-2-7b gpus=8 runtime=dtplan strategy=zero1 update_in_backward=true reduce_engine=copy",
        "model=llama-2-7b gpus=16 strategy=zero2 offload=optimizer checkpointing=every-4",
        "params=1e9 precision=fp32 optimizer=adamw-foreach attention=math compile=true",
    };
    size_t count = sizeof plans / sizeof *plans, offered = 0;
    for (size_t plan = 0; plan < count + sizeof more / sizeof *more; plan++) {
        const char *settings = plan < count ? plans[plan] : more[plan - count];
        ask(settings);
        for (size_t i = 0; i < whatif->count; i++, offered++)
            type_back(settings, &whatif->rows[i]);
    }
    assert_true(offered > 300);
}

static void assert_not_offered(const char *settings, const char *flags)
{
    ask(settings);
    for (size_t i = 0; i < whatif->count; i++)
        if (strcmp(whatif->rows[i].flags, flags) == 0)
            fail_msg("%s: %s is offered", settings, flags);
}

/* What was given and does not go with a change changes with it; what the runtime never does is no change. */
static void test_words_of_changes(void **state)
{
    (void)state;
    assert_not_offered("model=llama-2-7b gpus=16 runtime=megatron strategy=zero1 tp=4 pp=2 accumulate=4",
                       "--accumulate-sync");
    ask("model=llama-2-7b gpus=16 prefetch_depth=2 reshard_after_forward=4");
    row_of(DTP_QUESTION_STRATEGY, "--strategy ddp --no-reshard-after-forward --prefetch-depth 1");
    ask("model=llama-2-7b nodes=2 batch_size=2");
    row_of(DTP_QUESTION_BATCH, "--batch-size 4");
    row_of(DTP_QUESTION_GPUS, "--nodes 4 --gpus 32");
    /* What zero3 overlaps by itself; what nobody reads any more goes with the strategy, whoever's key it is. */
    assert_not_offered("model=llama-2-7b gpus=8 strategy=zero3 runtime=deepspeed", "--deepspeed-overlap");
    ask("model=llama-2-7b gpus=8 strategy=zero3 runtime=deepspeed stage3_prefetch_bucket_size=1000");
    row_of(DTP_QUESTION_STRATEGY, "--strategy zero2 --runtime deepspeed --stage3-prefetch-bucket-size 50000000");
    ask("model=llama-2-7b gpus=8 fsdp1=true");
    row_of(DTP_QUESTION_STRATEGY, "--strategy ddp --no-fsdp1");
    ask("model=llama-2-7b gpus=8 runtime=dtplan");
    row_of(DTP_QUESTION_PREFETCH, "--prefetch-depth 2");
}

/* Each value that a row has tried is one of its key's, and so is each that it is tried from; none is left out. */
static void test_tried_values(void **state)
{
    (void)state;
    struct dtp_change_rule rules[DTP_CHANGE_RULES_MAX];
    size_t count = dtp_change_rules(rules);
    assert_true(count > 40 && count <= DTP_CHANGE_RULES_MAX);
    for (size_t i = 0; i < count; i++) {
        struct dtp_faults faults = {0};
        make("model=llama-2-7b gpus=8");
        assert_int_equal(dtp_change_set(rules[i].flags, scenario, &faults), DTP_OK);
        char from[64], *rest = from, *word;
        snprintf(from, sizeof from, "%s", rules[i].from ? rules[i].from : "");
        while ((word = strtok_r(rest, "|", &rest)))
            assert_int_equal(dtp_scenario_set(scenario, dtp_key_name(rules[i].key), word, NULL, 0, &faults), DTP_OK);
    }
}

/* ---- reports ----------------------------------------------------------------------------------------------------- */

static void test_json_and_csv(void **state)
{
    (void)state;
    for (size_t plan = 0; plan < sizeof plans / sizeof *plans; plan++) {
        struct dtp_faults faults = {0};
        char *text = NULL;
        size_t bytes = 0;
        ask(plans[plan]);
        FILE *file = open_memstream(&text, &bytes);
        assert_non_null(file);
        assert_int_equal(dtp_whatif_json(whatif, file, &faults), DTP_OK);
        fclose(file);
        json_t *object = json_loads(text, JSON_REJECT_DUPLICATES, NULL);
        assert_non_null(object);
        assert_string_equal(json_string_value(json_object_get(object, "schema")), "dtplan.whatif/1");
        assert_int_equal(json_array_size(json_object_get(object, "changes")), whatif->count);
        json_decref(object);
        free(text);
        file = open_memstream(&text, &bytes);
        assert_non_null(file);
        dtp_whatif_csv(whatif, file);
        fclose(file);
        struct dtp_table *table;
        assert_int_equal(dtp_table_parse("whatif", text, bytes, &table, &faults), DTP_OK);
        assert_int_equal(dtp_table_row_count(table), 1 + whatif->count + whatif->refused_count);
        dtp_table_destroy(table);
        free(text);
    }
}

static void test_text(void **state)
{
    (void)state;
    for (size_t plan = 0; plan < sizeof plans / sizeof *plans; plan++) {
        char *text = NULL, *line, *rest;
        size_t bytes = 0;
        ask(plans[plan]);
        FILE *file = open_memstream(&text, &bytes);
        assert_non_null(file);
        dtp_whatif_text(whatif, &(struct dtp_page){.file = file});
        fclose(file);
        rest = text = folded_text(text, DTP_PAGE_COLUMNS);
        while ((line = strtok_r(rest, "\n", &rest)))
            if (strlen(line) > DTP_PAGE_COLUMNS)
                fail_msg("wider than the page: %s", line);
        free(text);
    }
}

/* Layers in 16 bits hold more and take longer; without collectives beside matmuls these are waited for; a module that
 * predicts a token further ahead is one more layer with experts, a copy of the embedding and a head's logits, and the
 * change of a plan that has one takes it away. Nobody else is asked. */
static void test_keys_that_came_later(void **state)
{
    (void)state;
    ask("model=llama-2-7b gpus=8 runtime=megatron strategy=zero1 precision=fp8 fp8_recipe=tensorwise tp=2");
    expect(DTP_QUESTION_PRECISION, "--bf16-first-layers 1", 9, 0, 1);
    expect(DTP_QUESTION_PRECISION, "--bf16-last-layers 1", 9, 0, 1);
    assert_true(row_of(DTP_QUESTION_PRECISION, "--bf16-last-layers 1")->numerics);
    ask("model=llama-2-7b gpus=8 runtime=megatron strategy=zero1 precision=fp8 fp8_recipe=tensorwise tp=2 "
        "bf16_first_layers=1");
    expect(DTP_QUESTION_PRECISION, "--bf16-first-layers 0", 9, 0, -1);
    ask("model=llama-2-7b gpus=8 runtime=megatron strategy=zero1 tp=2 tp_overlap=true");
    expect(DTP_QUESTION_PARALLELISM, "--no-tp-overlap", -1, 0, 1);
    ask("model=llama-2-7b experts=8 experts_per_token=2 expert_ffn=1024 gpus=8 runtime=megatron strategy=zero1 ep=8");
    expect(DTP_QUESTION_LOSS, "--mtp-layers 1", 1, 1, 1);
    assert_true(row_of(DTP_QUESTION_LOSS, "--mtp-layers 1")->numerics);
    ask("model=llama-2-7b experts=8 experts_per_token=2 expert_ffn=1024 gpus=8 runtime=megatron strategy=zero1 ep=8 "
        "mtp_layers=1");
    expect(DTP_QUESTION_LOSS, "--mtp-layers 0", -1, -1, -1);
    ask("model=llama-2-7b experts=8 experts_per_token=2 expert_ffn=1024 gpus=8 runtime=deepspeed strategy=zero1 ep=8");
    expect(DTP_QUESTION_PARALLELISM, "--autoep", 9, 9, 9);
    for (size_t i = 0; i < whatif->count; i++)
        assert_null(strstr(whatif->rows[i].flags, "mtp"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_wrapping),
        cmocka_unit_test(test_batch),
        cmocka_unit_test(test_shard_degree),
        cmocka_unit_test(test_offload),
        cmocka_unit_test(test_checkpointing),
        cmocka_unit_test(test_reduce_dtype),
        cmocka_unit_test(test_hybrid_shard),
        cmocka_unit_test(test_reshard),
        cmocka_unit_test(test_zeropp),
        cmocka_unit_test(test_prefetch),
        cmocka_unit_test(test_limit_all_gathers),
        cmocka_unit_test(test_accumulate_sync),
        cmocka_unit_test(test_compile),
        cmocka_unit_test(test_bucket_size),
        cmocka_unit_test(test_attention),
        cmocka_unit_test(test_order_and_reasons),
        cmocka_unit_test(test_all_questions),
        cmocka_unit_test(test_keys_that_came_later),
        cmocka_unit_test(test_padded_vocabulary),
        cmocka_unit_test(test_agrees_with_plan),
        cmocka_unit_test(test_another_predictor),
        cmocka_unit_test(test_like_beside_like),
        cmocka_unit_test(test_what_is_offered_can_be_typed),
        cmocka_unit_test(test_words_of_changes),
        cmocka_unit_test(test_tried_values),
        cmocka_unit_test(test_json_and_csv),
        cmocka_unit_test(test_text),
    };
    return cmocka_run_group_tests(tests, create, destroy);
}
