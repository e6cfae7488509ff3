#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "lib/plan_fixture.h"

/* ---- defaults and words ------------------------------------------------------------------------------------------ */

static void test_the_default_is_what_users_run(void **state)
{
    (void)state;
    struct dtp_plan plan = dtp_plan_default();
    assert_int_equal(resolve(&plan, 8, 8), DTP_OK);
    assert_int_equal(plan.strategy, DTP_FULL_SHARD);
    assert_int_equal(plan.shard_group, 8);
    assert_true(plan.reshard_after_forward && plan.prefetch && !plan.ddp_bucket_view && !plan.accumulate_sync);
    assert_int_equal(plan.ddp_bucket_bytes, 26214400);
    assert_string_equal(dtp_precision_name(&plan.precision), "bf16-mixed");
    assert_int_equal(plan.sequence, 2048);
}

static void test_words_go_both_ways(void **state)
{
    (void)state;
    for (int i = 0; i < DTP_STRATEGY_COUNT; i++) {
        enum dtp_strategy strategy;
        assert_true(dtp_strategy_parse(dtp_strategy_text((enum dtp_strategy)i), &strategy));
        assert_int_equal(strategy, i);
    }
    enum dtp_strategy strategy;
    assert_true(dtp_strategy_parse("no_shard", &strategy) && strategy == DTP_DDP);
    assert_true(dtp_strategy_parse("FSDP", &strategy) && strategy == DTP_FULL_SHARD);
    assert_true(dtp_strategy_parse("ZeRO-2", &strategy) && strategy == DTP_ZERO2);
    assert_true(dtp_strategy_parse("hybrid-shard", &strategy) && strategy == DTP_HYBRID_SHARD);
    assert_false(dtp_strategy_parse("zero4", &strategy));
    assert_false(dtp_strategy_parse("", &strategy));
    enum dtp_optimizer optimizer;
    assert_true(dtp_optimizer_parse("adamw_foreach", &optimizer) && optimizer == DTP_ADAMW_FOREACH);
    assert_true(dtp_optimizer_parse("adam-8bit", &optimizer) && optimizer == DTP_ADAM8BIT);
    assert_string_equal(dtp_optimizer_text(DTP_ADAMW_FUSED), "adamw");
    assert_string_equal(dtp_attention_text(DTP_ATTENTION_FLASH1), "flash1");
}

static void test_checkpointing_words(void **state)
{
    (void)state;
    static const char *const words[] = {"none", "full", "every-4", "selective-attention", "selective"};
    struct dtp_plan plan = dtp_plan_default();
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        char text[32];
        assert_true(dtp_checkpointing_parse(words[i], &plan));
        dtp_checkpointing_text(&plan, text, sizeof text);
        assert_string_equal(text, words[i]);
    }
    assert_true(dtp_checkpointing_parse("every_2", &plan) && plan.checkpoint_every == 2);
    static const char *const refused[] = {"", "every", "every-", "every-0", "every--1", "every-x", "every-1.5", "some"};
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++)
        assert_false(dtp_checkpointing_parse(refused[i], &plan));
}

/* ---- strategies -------------------------------------------------------------------------------------------------- */

static void test_strategies_by_runtime(void **state)
{
    (void)state;
    static const struct {
        const char *strategy, *runtime, *fault;
    } cases[] = {{"ddp", "torch", NULL},
                 {"zero1", "torch", NULL},
                 {"zero2", "torch", "shard_grad_op"},
                 {"zero3", "torch", NULL},
                 {"full_shard", "torch", NULL},
                 {"shard_grad_op", "torch", NULL},
                 {"hybrid_shard", "torch", NULL},
                 {"ddp", "deepspeed", "zero1"},
                 {"zero1", "deepspeed", NULL},
                 {"zero2", "deepspeed", NULL},
                 {"zero3", "deepspeed", NULL},
                 {"full_shard", "deepspeed", "zero3"},
                 {"shard_grad_op", "deepspeed", "zero2"},
                 {"hybrid_shard", "deepspeed", "zero3"},
                 {"ddp", "megatron", NULL},
                 {"zero1", "megatron", NULL},
                 {"zero2", "megatron", NULL},
                 {"full_shard", "megatron", "distributed optimizer"},
                 {"ddp", "dtplan", NULL},
                 {"zero1", "dtplan", NULL},
                 {"zero2", "dtplan", NULL},
                 {"zero3", "dtplan", NULL}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct dtp_plan plan = with_strategy(cases[i].strategy, cases[i].runtime);
        if (cases[i].fault)
            assert_refused(plan, "strategy", cases[i].fault);
        else
            assert_accepted(plan);
    }
}

static void test_shard_groups(void **state)
{
    (void)state;
    struct dtp_plan plan = with_strategy("ddp", "torch");
    assert_int_equal(resolve(&plan, 16, 8), DTP_OK);
    assert_int_equal(plan.shard_group, 1);
    plan = with_strategy("hybrid_shard", "torch");
    assert_int_equal(resolve(&plan, 16, 8), DTP_OK);
    assert_int_equal(plan.shard_group, 8);
    plan = with_strategy("hybrid_shard", "torch");
    assert_int_equal(resolve(&plan, 8, 8), DTP_BAD_INPUT);
    assert_non_null(strstr(faults.text[0], "one node"));
    plan.shard_group = 4;
    assert_int_equal(resolve(&plan, 8, 8), DTP_OK);
    plan = dtp_plan_default();
    plan.shard_group = 5;
    assert_refused(plan, "shard_group", "multiple");
    plan = dtp_plan_default();
    plan.shard_group = 6;
    assert_int_equal(resolve(&plan, 24, 8), DTP_BAD_INPUT);
    assert_non_null(strstr(faults.text[0], "neither divides"));
    plan = with_strategy("hybrid_shard", "torch");
    plan.shard_group = 16;
    assert_refused(plan, "shard_group", "full_shard");
    plan.shard_group = 1;
    assert_refused(plan, "shard_group", "ddp");
    plan = with_strategy("zero1", "torch");
    plan.shard_group = 8;
    assert_refused(plan, "shard_group", "over all GPUs");
    plan = with_strategy("ddp", "torch");
    plan.shard_group = 8;
    assert_refused(plan, "shard_group", "ddp shards nothing");
}

static void test_what_follows_from_the_strategy(void **state)
{
    (void)state;
    struct dtp_plan plan = with_strategy("shard_grad_op", "torch");
    assert_int_equal(resolve(&plan, 16, 8), DTP_OK);
    assert_false(plan.reshard_after_forward);
    plan = dtp_plan_default();
    plan.reshard_after_forward = false;
    assert_refused(plan, "reshard_after_forward", "shard_grad_op");
    plan = dtp_plan_default();
    plan.reshard_group = 8;
    assert_int_equal(resolve(&plan, 16, 8), DTP_OK);
    assert_int_equal(plan.reshard_group, 8);
    assert_int_equal(resolve(&plan, 8, 8), DTP_BAD_INPUT); /* of the 16 GPUs it was resolved for */
    plan = dtp_plan_default();
    plan.reshard_group = 16;
    assert_int_equal(resolve(&plan, 16, 8), DTP_OK);
    assert_int_equal(plan.reshard_group, 0); /* as without it */
    plan.reshard_group = 1;
    assert_refused(plan, "reshard_after_forward", "shard_grad_op");
    plan = with_strategy("shard_grad_op", "torch");
    plan.reshard_group = 4;
    assert_refused(plan, "reshard_after_forward", "keeps what it gathered");
    plan = with_strategy("zero3", "deepspeed");
    plan.reshard_group = 4;
    assert_refused(plan, "reshard_after_forward", "FSDP2's");
    plan = with_strategy("zero3", "deepspeed");
    plan.deepspeed.zero_hpz_partition_size = 3;
    assert_refused(plan, "zero_hpz_partition_size", "does not divide a node");
    plan.deepspeed.zero_hpz_partition_size = 8, plan.offload = DTP_OFFLOAD_PARAMS;
    assert_refused(plan, "zero_hpz_partition_size", "offloaded parameters");
    plan = with_strategy("zero2", "deepspeed");
    plan.deepspeed.zero_quantized_weights = true;
    assert_refused(plan, "zero_quantized_weights", "for zero3 under runtime deepspeed only");
    plan = dtp_plan_default();
    plan.deepspeed.zero_quantized_gradients = true;
    assert_refused(plan, "zero_quantized_gradients", "for zero3 under runtime deepspeed only");
    plan = with_strategy("ddp", "torch");
    plan.prefetch_depth = 2;
    assert_refused(plan, "prefetch_depth", "for FSDP2 with prefetch");
    plan = dtp_plan_default();
    plan.prefetch_depth = 2, plan.prefetch = false;
    assert_refused(plan, "prefetch_depth", "for FSDP2 with prefetch");
    plan.prefetch_depth = 0;
    assert_refused(plan, "prefetch_depth", "is 0");
    plan = dtp_plan_default();
    plan.executor.collective_ctas = 8;
    assert_refused(plan, "collective_ctas", "for runtime dtplan only");
    plan.executor.collective_ctas = 0, plan.executor.matmul_sms = 8;
    assert_refused(plan, "matmul_sms", "for runtime dtplan only");
}

static void test_ways_of_collectives(void **state)
{
    (void)state;
    struct dtp_plan plan = with_strategy("full_shard", "dtplan");
    plan.executor.matmul_sms = 100000;
    assert_refused(plan, "matmul_sms", "SMs");
    plan = with_strategy("full_shard", "dtplan"); /* over two nodes */
    plan.executor.symmetric_windows = true, plan.executor.gather_engine = DTP_ENGINE_COPY;
    assert_refused(plan, "symmetric_windows", "GPUs of one node");
    assert_refused(plan, "gather_engine", "GPUs of one node");
    plan = with_strategy("hybrid_shard", "dtplan");
    plan.executor.symmetric_windows = true, plan.executor.gather_engine = DTP_ENGINE_COPY;
    assert_int_equal(resolve(&plan, 16, 8), DTP_OK);
    plan = with_strategy("ddp", "dtplan");
    plan.executor.gather_engine = DTP_ENGINE_COPY;
    assert_refused(plan, "gather_engine", "nothing is gathered");
    plan = with_strategy("full_shard", "dtplan"); /* over two nodes */
    plan.executor.reduce_engine = DTP_ENGINE_COPY;
    assert_refused(plan, "reduce_engine", "GPUs of one node");
    plan = with_strategy("zero1", "torch");
    plan.executor.reduce_engine = DTP_ENGINE_COPY;
    assert_refused(plan, "reduce_engine", "for runtime dtplan only");
    plan = with_strategy("ddp", "dtplan");
    plan.executor.reduce_engine = DTP_ENGINE_COPY;
    assert_refused(plan, "reduce_engine", "not scattered under ddp");
    plan = with_strategy("zero2", "dtplan");
    plan.executor.reduce_engine = DTP_ENGINE_COPY;
    assert_int_equal(resolve(&plan, 8, 8), DTP_OK);
    plan = with_strategy("zero2", "dtplan");
    plan.executor.reduce_engine = DTP_ENGINE_COPY;
    assert_int_equal(resolve(&plan, 1, 8), DTP_OK); /* which has nothing to send, as under every strategy */
    plan = with_strategy("zero1", "dtplan");
    plan.shard_group = 1, plan.executor.reduce_engine = DTP_ENGINE_COPY;
    assert_refused(plan, "reduce_engine", "shard groups of one GPU");
}

static void test_updates_in_backward(void **state)
{
    (void)state;
    struct dtp_plan plan = with_strategy("hybrid_shard", "dtplan");
    plan.executor.update_in_backward = true, plan.accumulate = 2;
    assert_int_equal(resolve(&plan, 16, 8), DTP_OK);
    plan.accumulate_sync = true;
    assert_refused(plan, "update_in_backward", "leave out accumulate_sync");
    plan.accumulate = 1, plan.executor.gradient_norm = true;
    assert_refused(plan, "gradient_norm", "without update_in_backward");
    plan.clip_norm = 1;
    assert_refused(plan, "clip_norm", "without update_in_backward");
    plan.clip_norm = 0, plan.executor.gradient_norm = false, plan.offload = DTP_OFFLOAD_OPTIMIZER;
    assert_refused(plan, "update_in_backward", "offload optimizer");
    plan = with_strategy("zero2", "dtplan");
    plan.executor.update_in_backward = true, plan.accumulate = 2;
    assert_refused(plan, "update_in_backward", "use zero1 or shard_grad_op");
    plan = with_strategy("ddp", "dtplan");
    plan.executor.update_in_backward = true;
    assert_refused(plan, "update_in_backward", "not scattered under ddp");
    plan = with_strategy("zero1", "dtplan");
    plan.executor.update_in_backward = true, plan.shard_group = 1;
    assert_refused(plan, "update_in_backward", "shard groups of one GPU");
    plan = with_strategy("full_shard", "dtplan");
    plan.executor.update_in_backward = true;
    assert_int_equal(resolve(&plan, 1, 8), DTP_OK);
    plan = with_strategy("full_shard", "torch");
    plan.executor.update_in_backward = true;
    assert_refused(plan, "update_in_backward", "for runtime dtplan only");
}

static void test_defaults_of_runtimes(void **state)
{
    (void)state;
    struct dtp_plan plan = with_strategy("hybrid_shard", "torch");
    plan.reshard_after_forward = false;
    assert_int_equal(resolve(&plan, 16, 8), DTP_OK);
    assert_false(plan.reshard_after_forward);
    plan = with_strategy("zero2", "deepspeed");
    assert_int_equal(resolve(&plan, 16, 8), DTP_OK);
    assert_true(plan.accumulate_sync && !plan.deepspeed.overlap_comm);
    plan = with_strategy("zero3", "deepspeed");
    assert_int_equal(resolve(&plan, 16, 8), DTP_OK);
    assert_true(plan.accumulate_sync && plan.deepspeed.overlap_comm);
    plan = dtp_plan_default();
    plan.optimizer = DTP_ADAM8BIT;
    assert_int_equal(resolve(&plan, 16, 8), DTP_OK);
    assert_int_equal(plan.precision.moments, DTP_INT8);
    assert_string_equal(dtp_precision_name(&plan.precision), "bf16-mixed");
}

/* ---- combinations ------------------------------------------------------------------------------------------------ */

static void test_offload_rules(void **state)
{
    (void)state;
    static const struct {
        const char *strategy, *runtime, *offload, *fault;
    } cases[] = {{"full_shard", "torch", "params", NULL},
                 {"hybrid_shard", "torch", "params", NULL},
                 {"full_shard", "torch", "optimizer", "CPU offload is params"},
                 {"full_shard", "torch", "nvme", "deepspeed"},
                 {"ddp", "torch", "params", "full_shard"},
                 {"zero1", "torch", "params", "full_shard"},
                 {"zero1", "deepspeed", "optimizer", NULL},
                 {"zero2", "deepspeed", "optimizer", NULL},
                 {"zero2", "deepspeed", "params", "needs zero3"},
                 {"zero2", "deepspeed", "nvme", "needs zero3"},
                 {"zero3", "deepspeed", "params", NULL},
                 {"zero3", "deepspeed", "nvme", NULL},
                 {"zero1", "megatron", "optimizer", "not modelled"},
                 {"ddp", "dtplan", "optimizer", "own host copy"},
                 {"zero3", "dtplan", "nvme", NULL},
                 {"zero2", "dtplan", "params", "sharded parameters"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct dtp_plan plan = with_strategy(cases[i].strategy, cases[i].runtime);
        assert_true(dtp_offload_parse(cases[i].offload, &plan.offload));
        if (cases[i].fault)
            assert_refused(plan, "offload", cases[i].fault);
        else
            assert_accepted(plan);
    }
}

static void test_other_combinations(void **state)
{
    (void)state;
    struct dtp_plan plan = with_strategy("zero2", "deepspeed");
    plan.compile = true;
    assert_refused(plan, "compile", "deepspeed");
    plan = with_strategy("zero2", "deepspeed");
    plan.optimizer = DTP_ADAMW_FOREACH;
    assert_refused(plan, "optimizer", "PyTorch's");
    plan.optimizer = DTP_ADAM8BIT;
    plan.offload = DTP_OFFLOAD_OPTIMIZER;
    assert_refused(plan, "optimizer", "cannot be offloaded");
    plan = dtp_plan_default();
    plan.optimizer = DTP_ADAFACTOR;
    assert_refused(plan, "optimizer", "whole tensors");
    plan.optimizer = DTP_PAGED_ADAM8BIT; /* known by name, and refused with what is missing */
    assert_refused(plan, "optimizer", "pages");
    plan = with_strategy("zero1", "megatron");
    plan.optimizer = DTP_LION;
    assert_refused(plan, "optimizer", "runtime megatron");
    plan = with_strategy("zero3", "deepspeed");
    plan.optimizer = DTP_ADAM4BIT;
    assert_refused(plan, "optimizer", "torchao");
    plan = with_strategy("ddp", "torch");
    plan.fsdp1 = true;
    assert_refused(plan, "fsdp1", "full_shard");
    plan = dtp_plan_default();
    plan.fsdp1 = true;
    assert_accepted(plan);
    plan.offload = DTP_OFFLOAD_PARAMS;
    plan.accumulate = 4;
    plan.accumulate_sync = true;
    assert_refused(plan, "accumulate_sync", "FSDP1");
    plan = with_strategy("ddp", "megatron");
    plan.checkpointing = DTP_CHECKPOINT_SELECTIVE_MATMUL;
    assert_refused(plan, "checkpointing", "megatron");
    plan = dtp_plan_default();
    plan.checkpointing = DTP_CHECKPOINT_SELECTIVE_ATTENTION;
    assert_accepted(plan);
    plan.checkpointing = DTP_CHECKPOINT_EVERY_N;
    plan.checkpoint_every = 33;
    assert_refused(plan, "checkpointing", "32 layers");
    plan = dtp_plan_default();
    plan.wrap_layers = 33;
    assert_refused(plan, "wrap_layers", "32 layers");
    plan.wrap_layers = 0;
    assert_accepted(plan);
}

static void test_dropout(void **state)
{
    (void)state;
    struct dtp_plan plan = with_strategy("ddp", "megatron");
    plan.dropout = 0.1;
    assert_accepted(plan);
    plan = with_strategy("zero1", "deepspeed");
    plan.dropout = 0.1;
    assert_refused(plan, "dropout", "megatron_layers");
    plan.deepspeed.megatron_layers = true;
    assert_accepted(plan);
    plan = dtp_plan_default();
    plan.dropout = 0.1;
    assert_refused(plan, "dropout", "Megatron's layers");
}

static void test_ranges_and_products(void **state)
{
    (void)state;
    struct dtp_plan plan = dtp_plan_default();
    plan.cp = 0;
    plan.pp = 0;
    plan.micro_batch = 0;
    plan.accumulate = 1000001;
    plan.sequence = 0;
    assert_refused(plan, "cp", "use 1");
    assert_refused(plan, "pp", "use 1");
    assert_refused(plan, "micro_batch", "at least 1");
    assert_refused(plan, "accumulate", "at most");
    assert_refused(plan, "seq", "at least 1");
    assert_int_equal(faults.count, 5); /* all at once */
    plan = dtp_plan_default();
    plan.micro_batch = 1000000;
    plan.sequence = 100000000;
    assert_refused(plan, "seq", "2^62");
    plan = dtp_plan_default();
    plan.price_per_gpu_hour = -1;
    assert_refused(plan, "price", "between");
    plan = dtp_plan_default();
    plan.strategy = (enum dtp_strategy)77;
    assert_refused(plan, "plan", "does not exist");
}

static void test_learned_positions_bound_the_sequence(void **state)
{
    (void)state;
    struct dtp_transformer t = llama_7b();
    t.position = DTP_POSITION_LEARNED;
    t.positions = 1024;
    struct dtp_cluster c = cluster(8, 8);
    struct dtp_plan plan = dtp_plan_default();
    memset(&faults, 0, sizeof faults);
    assert_int_equal(dtp_plan_resolve(&plan, &t, &c, &faults), DTP_BAD_INPUT);
    assert_non_null(strstr(faults.text[0], "1024"));
    plan.sequence = 1024;
    assert_int_equal(dtp_plan_resolve(&plan, &t, &c, &faults), DTP_OK);
}

/* Kernels of PyTorch and of this project know them, Transformer Engine's do not. */
static void test_soft_caps(void **state)
{
    (void)state;
    const struct {
        const struct dtp_runtime *runtime;
        enum dtp_strategy strategy;
        enum dtp_attention attention;
        const char *fault;
    } cases[] = {{&dtp_runtime_torch, DTP_FULL_SHARD, DTP_ATTENTION_FLASH, NULL},
                 {&dtp_runtime_deepspeed, DTP_ZERO3, DTP_ATTENTION_FLASH, NULL},
                 {&dtp_runtime_dtplan, DTP_FULL_SHARD, DTP_ATTENTION_FLASH, NULL},
                 {&dtp_runtime_torch, DTP_FULL_SHARD, DTP_ATTENTION_MATH, "attention"},
                 {&dtp_runtime_megatron, DTP_DDP, DTP_ATTENTION_FLASH, "attention_softcap"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct dtp_transformer t = llama_7b();
        struct dtp_cluster c = cluster(8, 8);
        struct dtp_plan plan = dtp_plan_default();
        t.attention_softcap = 50, t.final_softcap = 30;
        plan.runtime = cases[i].runtime, plan.strategy = cases[i].strategy, plan.attention = cases[i].attention;
        memset(&faults, 0, sizeof faults);
        enum dtp_status status = dtp_plan_resolve(&plan, &t, &c, &faults);
        assert_int_equal(status, cases[i].fault ? DTP_BAD_INPUT : DTP_OK);
        assert_true(!cases[i].fault || strstr(faults.text[0], cases[i].fault));
    }
}

/* Megatron-Core's own loss makes its gradient in bf16, so it goes with logits in bf16, and with Megatron alone. */
static void test_native_loss(void **state)
{
    (void)state;
    const struct {
        const struct dtp_runtime *runtime;
        const char *precision, *fault;
    } cases[] = {{&dtp_runtime_megatron, "bf16-mixed", NULL},
                 {&dtp_runtime_megatron, "fp8-delayed", NULL},
                 {&dtp_runtime_megatron, "fp16-mixed", "gradient in bf16 of logits in fp16"},
                 {&dtp_runtime_megatron, "fp32", "gradient in bf16 of logits in fp32"},
                 {&dtp_runtime_torch, "bf16-mixed", "native is Megatron-Core's"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct dtp_transformer t = llama_7b();
        struct dtp_cluster c = cluster(8, 8);
        struct dtp_plan plan = dtp_plan_default();
        plan.runtime = cases[i].runtime, plan.strategy = DTP_DDP, plan.loss = DTP_LOSS_NATIVE;
        assert_true(dtp_precision_recipe(cases[i].precision, &plan.precision));
        memset(&faults, 0, sizeof faults);
        enum dtp_status status = dtp_plan_resolve(&plan, &t, &c, &faults);
        if (status != (cases[i].fault ? DTP_BAD_INPUT : DTP_OK))
            fail_msg("%s: %s", cases[i].precision, faults.text[0]);
        assert_true(!cases[i].fault || strstr(faults.text[0], cases[i].fault));
    }
}

static void test_nvme_needs_a_machine_with_it(void **state)
{
    (void)state;
    struct dtp_transformer t = llama_7b();
    struct dtp_cluster c = cluster(8, 8);
    c.machine.nvme_write_bytes_per_s = 0;
    struct dtp_plan plan = with_strategy("zero3", "deepspeed");
    plan.offload = DTP_OFFLOAD_NVME;
    memset(&faults, 0, sizeof faults);
    assert_int_equal(dtp_plan_resolve(&plan, &t, &c, &faults), DTP_BAD_INPUT);
    assert_non_null(strstr(faults.text[0], "no NVMe"));
}

static const char *find_place(const void *context, const char *key, size_t *line)
{
    *line = 7;
    return strcmp(key, "micro_batch") ? NULL : context;
}

static void test_messages_name_the_place(void **state)
{
    (void)state;
    struct dtp_transformer t = llama_7b();
    struct dtp_cluster c = cluster(8, 8);
    struct dtp_plan plan = dtp_plan_default();
    plan.micro_batch = 0;
    struct dtp_plan_source source = {find_place, "job.ini"};
    memset(&faults, 0, sizeof faults);
    assert_int_equal(dtp_plan_resolve_from(&plan, &t, &c, &source, &faults), DTP_BAD_INPUT);
    assert_string_equal(faults.text[0], "job.ini:7: micro_batch: is 0; it must be at least 1");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_the_default_is_what_users_run),
                                       cmocka_unit_test(test_words_go_both_ways),
                                       cmocka_unit_test(test_checkpointing_words),
                                       cmocka_unit_test(test_strategies_by_runtime),
                                       cmocka_unit_test(test_shard_groups),
                                       cmocka_unit_test(test_what_follows_from_the_strategy),
                                       cmocka_unit_test(test_ways_of_collectives),
                                       cmocka_unit_test(test_updates_in_backward),
                                       cmocka_unit_test(test_defaults_of_runtimes),
                                       cmocka_unit_test(test_offload_rules),
                                       cmocka_unit_test(test_other_combinations),
                                       cmocka_unit_test(test_dropout),
                                       cmocka_unit_test(test_ranges_and_products),
                                       cmocka_unit_test(test_learned_positions_bound_the_sequence),
                                       cmocka_unit_test(test_soft_caps),
                                       cmocka_unit_test(test_native_loss),
                                       cmocka_unit_test(test_nvme_needs_a_machine_with_it),
                                       cmocka_unit_test(test_messages_name_the_place)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
