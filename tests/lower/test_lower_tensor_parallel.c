/* Tensor parallel programs: collectives counted by hand, what overlaps, saved activations against Korthikanti 2022. */
#include "lower/lower.h"
#include "program/verify.h"
#include "runtime/runtimes.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "lib/llama_7b.h"
#include "lib/lowered_job.h"
#include "lib/random_plans.h"

#define TP 4
#define MICRO_STEPS 3

static struct dtp_plan megatron(bool sequence_parallel)
{
    struct dtp_plan plan = dtp_plan_default();
    plan.runtime = &dtp_runtime_megatron;
    plan.strategy = DTP_ZERO1;
    plan.tp = TP;
    plan.sequence_parallel = sequence_parallel;
    plan.micro_batch = 1;
    plan.accumulate = MICRO_STEPS;
    plan.sequence = 2048;
    return plan;
}

/* On 16 GPUs of 2 nodes, proven. */
static struct dtp_program *lower(const struct dtp_transformer *t, struct dtp_plan *plan)
{
    struct dtp_cluster cluster = test_cluster(test_h200(), 16, 8);
    return lowered_plan(t, &cluster, plan);
}

/* Collectives of tensor parallel ranks: how many, and bytes that each rank sends. */
struct traffic {
    size_t gathers, scatters, sums;
    double gathered, scattered, summed;
};

static bool of_tensor_ranks(const struct dtp_program *program, const struct dtp_op *op)
{
    return op->stream == DTP_STREAM_TENSOR && dtp_program_groups(program)[op->group].ranks == TP &&
           dtp_program_groups(program)[op->group].stride == 1;
}

static struct traffic traffic_of(const struct dtp_program *program)
{
    struct traffic t = {0};
    for (size_t i = 0; i < dtp_program_op_count(program); i++) {
        const struct dtp_op *op = &dtp_program_ops(program)[i];
        if (!of_tensor_ranks(program, op))
            continue;
        t.gathers += op->kind == DTP_OP_ALL_GATHER;
        t.scatters += op->kind == DTP_OP_REDUCE_SCATTER;
        t.sums += op->kind == DTP_OP_ALL_REDUCE;
        t.gathered += op->kind == DTP_OP_ALL_GATHER ? op->demand->sent_bytes : 0;
        t.scattered += op->kind == DTP_OP_REDUCE_SCATTER ? op->demand->sent_bytes : 0;
        t.summed += op->kind == DTP_OP_ALL_REDUCE ? op->demand->sent_bytes : 0;
    }
    return t;
}

/* The stream is 2048 x 4096 x 2 bytes, of which a rank sends 3/4 in an all-gather or a reduce-scatter. A layer gathers
 * twice forward and 4 times backward (two of the rows that matmuls read, for their weight gradients), and scatters
 * twice each way (Megatron-Core; Korthikanti 2022, figure 5). The embedding scatters and gathers its gradient; the head
 * gathers its input twice and scatters its gradient; the loss sums 3 x 2048 fp32. Behind the step's reduction the
 * gradients of 65 norms, 4096 in fp32 each, are summed. Data parallel ranks are every fourth. */
static void test_sequence_parallel(void **state)
{
    (void)state;
    const double once = 0.75 * 2048 * 4096 * 2;
    struct dtp_transformer t = llama_7b();
    struct dtp_plan plan = megatron(true);
    struct dtp_program *program = lower(&t, &plan);
    struct traffic sent = traffic_of(program);
    assert_int_equal(sent.gathers, MICRO_STEPS * (6 * LAYERS + 3));
    assert_int_equal(sent.scatters, MICRO_STEPS * (4 * LAYERS + 2));
    assert_int_equal(sent.sums, MICRO_STEPS * 3 + 1);
    assert_near(sent.gathered, (double)sent.gathers * once, 0);
    assert_near(sent.scattered, (double)sent.scatters * once, 0);
    assert_near(sent.summed, 2 * 0.75 * (MICRO_STEPS * 3 * 2048 * 4.0 + 65 * 4096 * 4.0), 0);
    assert_int_equal(dtp_program_group_count(program), 2);
    for (size_t i = 0; i < dtp_program_op_count(program); i++) {
        const struct dtp_op *op = &dtp_program_ops(program)[i];
        if (op->stream == DTP_STREAM_REDUCE) {
            assert_int_equal(dtp_program_groups(program)[op->group].ranks, 4);
            assert_int_equal(dtp_program_groups(program)[op->group].stride, TP);
        }
    }
    dtp_program_destroy(program);
}

/* Two all-reduces a layer each way, one of the embedding's result and one of the head's input gradient; the norms see
 * all tokens on each rank. */
static void test_whole_stream(void **state)
{
    (void)state;
    struct dtp_transformer t = llama_7b();
    struct dtp_plan plan = megatron(false);
    struct dtp_program *program = lower(&t, &plan);
    struct traffic sent = traffic_of(program);
    assert_int_equal(sent.gathers + sent.scatters, 0);
    assert_int_equal(sent.sums, MICRO_STEPS * (4 * LAYERS + 2 + 3));
    assert_near(sent.summed, 2 * 0.75 * MICRO_STEPS * ((4.0 * LAYERS + 2) * 2048 * 4096 * 2 + 3 * 2048 * 4.0), 0);
    dtp_program_destroy(program);
}

/* A full replay repeats a layer's forward collectives, one of the attention core none. Norms of q and k, which see a
 * rank's heads, are summed without sequence parallelism too: 2 x 128 of each layer. */
static void test_replays_and_head_norms(void **state)
{
    (void)state;
    struct dtp_transformer t = llama_7b();
    struct dtp_plan plan = megatron(true);
    plan.checkpointing = DTP_CHECKPOINT_FULL;
    struct dtp_program *program = lower(&t, &plan);
    struct traffic sent = traffic_of(program);
    assert_int_equal(sent.gathers, MICRO_STEPS * (8 * LAYERS + 3));
    assert_int_equal(sent.scatters, MICRO_STEPS * (6 * LAYERS + 2));
    dtp_program_destroy(program);
    plan = megatron(true);
    plan.checkpointing = DTP_CHECKPOINT_SELECTIVE_ATTENTION;
    program = lower(&t, &plan);
    assert_int_equal(traffic_of(program).gathers, MICRO_STEPS * (6 * LAYERS + 3));
    dtp_program_destroy(program);
    t.qk_norm = true;
    plan = megatron(false);
    program = lower(&t, &plan);
    sent = traffic_of(program);
    assert_int_equal(sent.sums, MICRO_STEPS * (4 * LAYERS + 2 + 3) + 1);
    dtp_program_destroy(program);
}

static uint64_t bytes_of(const struct dtp_program *program, const char *name)
{
    uint64_t bytes = 0;
    for (size_t b = 0; b < dtp_program_buffer_count(program); b++)
        if (strcmp(dtp_program_buffers(program)[b].name, name) == 0)
            bytes += dtp_program_buffers(program)[b].bytes;
    return bytes;
}

/* Gradients that are let go right behind the issue of their reduce-scatter, which has read a copy of them. */
static size_t frees_behind_scatters(const struct dtp_program *program)
{
    const struct dtp_op *ops = dtp_program_ops(program);
    size_t count = 0;
    for (size_t i = 1; i < dtp_program_op_count(program); i++)
        count += ops[i - 1].kind == DTP_OP_REDUCE_SCATTER && strcmp(ops[i].name, "gradient of the last tensor") == 0;
    return count;
}

/* torchtitan: what matmuls read stays as it was gathered, so a layer gathers and scatters twice each way; the embedding
 * scatters and gathers its gradient, the head the other way round. The loss sums 3 x 2048 fp32, the gradients of 65
 * norms of 4096 are summed one by one in bf16. FSDP2's groups are every fourth rank. Each rank makes a gradient of the
 * whole table, of 32000 rows, and cuts its quarter out; the head's is of its columns. Both are the last tensor of their
 * unit and stand until the reduce-scatter has its output. */
static void test_torch(void **state)
{
    const double once = 0.75 * 2048 * 4096 * 2;
    struct dtp_transformer t = llama_7b();
    (void)state;
    for (int checkpointed = 0; checkpointed < 2; checkpointed++) {
        struct dtp_plan plan = dtp_plan_default();
        plan.strategy = DTP_FULL_SHARD;
        plan.tp = TP;
        plan.micro_batch = 1;
        plan.sequence = 2048;
        plan.checkpointing = checkpointed ? DTP_CHECKPOINT_FULL : DTP_CHECKPOINT_NONE;
        struct dtp_program *program = lower(&t, &plan);
        struct traffic sent = traffic_of(program);
        assert_int_equal(dtp_program_execution(program)->issuer, DTP_ISSUER_DTENSOR);
        assert_int_equal(sent.gathers, (checkpointed ? 6 : 4) * LAYERS + 2);
        assert_int_equal(sent.scatters, (checkpointed ? 5 : 4) * LAYERS + 2); /* a replay ends before the last */
        assert_int_equal(sent.sums, 3 + 65);
        assert_near(sent.gathered, (double)sent.gathers * once, 0);
        assert_near(sent.summed, 2 * 0.75 * (3 * 2048 * 4.0 + 65 * 4096 * 2.0), 0);
        assert_int_equal(bytes_of(program, "embedding gradient"), 2 * (32000 + 32000 / TP) * UINT64_C(4096));
        assert_int_equal(frees_behind_scatters(program), 2);
        for (size_t i = 0; i < dtp_program_group_count(program); i++)
            assert_true(dtp_program_groups(program)[i].stride ==
                        (dtp_program_groups(program)[i].ranks == TP && !i ? 1 : TP));
        dtp_program_destroy(program);
    }
}

static bool waits(const struct dtp_program *program, const struct dtp_op *op, size_t earlier)
{
    for (uint32_t i = 0; i < op->dependency_count; i++)
        if (dtp_program_dependencies(program, op)[i].index == earlier)
            return true;
    return false;
}

/* One rank of each part: nothing is sharded, gathered or reduced but by tensor parallel ranks. The stream is whole on
 * each without sequence parallelism: 4 sums a layer, the embedding's, the head's and the loss' three, none of norms'
 * gradients. Compiled, the loss keeps log-softmax in fp32 of the rank's columns, made beside logits as large. */
static void test_torch_alone(void **state)
{
    (void)state;
    static struct dtp_faults faults;
    struct dtp_transformer t = llama_7b();
    struct dtp_cluster cluster = test_cluster(test_h200(), TP, TP);
    for (int compiled = 0; compiled < 2; compiled++) {
        struct dtp_plan plan = megatron(false);
        struct dtp_program *program = NULL;
        plan.runtime = &dtp_runtime_torch, plan.strategy = DTP_DDP, plan.compile = compiled, plan.accumulate = 1;
        if (dtp_plan_resolve(&plan, &t, &cluster, &faults) != DTP_OK ||
            dtp_lower(&t, &cluster, &plan, 0, &program, &faults) != DTP_OK ||
            dtp_program_verify(program, &faults) != DTP_OK)
            fail_msg("%s", faults.text[0]);
        const uint64_t wide = 4 * (uint64_t)2048 * t.vocab / TP;
        struct traffic sent = traffic_of(program);
        assert_int_equal(sent.gathers + sent.scatters, 0);
        assert_int_equal(sent.sums, 4 * LAYERS + 2 + 3);
        assert_int_equal(bytes_of(program, "log-softmax"), wide);
        assert_int_equal(bytes_of(program, "nll gradient"), compiled ? 0 : wide);
        assert_int_equal(bytes_of(program, "logits in fp32"), wide);
        for (size_t i = 0; i < dtp_program_op_count(program); i++)
            assert_int_not_equal(dtp_program_ops(program)[i].stream, DTP_STREAM_REDUCE);
        dtp_program_destroy(program);
    }
}

/* Logits gathered by each rank: of 2 bytes, 2048 rows and all columns, of which it sends its own to the others, once;
 * the loss, of all columns on each, sums nothing, and 4 sums a layer, the embedding's and the head's remain. Put side
 * by side they are a tensor more; of their gradient a rank's columns are cut out. */
static void test_gathered_logits(void **state)
{
    (void)state;
    static struct dtp_faults faults;
    struct dtp_transformer t = llama_7b();
    struct dtp_cluster cluster = test_cluster(test_h200(), TP, TP);
    for (int compiled = 0; compiled < 2; compiled++) {
        struct dtp_plan plan = megatron(false);
        struct dtp_program *program = NULL;
        plan.runtime = &dtp_runtime_torch, plan.strategy = DTP_DDP, plan.compile = compiled, plan.accumulate = 1;
        plan.gathered_logits = true;
        if (dtp_plan_resolve(&plan, &t, &cluster, &faults) != DTP_OK ||
            dtp_lower(&t, &cluster, &plan, 0, &program, &faults) != DTP_OK ||
            dtp_program_verify(program, &faults) != DTP_OK)
            fail_msg("%s", faults.text[0]);
        const uint64_t narrow = 2 * (uint64_t)2048 * t.vocab;
        struct traffic sent = traffic_of(program);
        assert_int_equal(sent.gathers, 1);
        assert_near(sent.gathered, (double)(narrow / TP * (TP - 1)), 0);
        assert_int_equal(sent.scatters, 0);
        assert_int_equal(sent.sums, 4 * LAYERS + 2);
        assert_int_equal(bytes_of(program, "gathered logits"), narrow);
        assert_int_equal(bytes_of(program, "log-softmax"), compiled ? 0 : 2 * narrow);
        dtp_program_destroy(program);
    }
}

/* Of a matrix cut by columns: the input is gathered again and the next matmul, its input gradient's, does not wait; the
 * one behind, the weight gradient's, waits for that and not for the sum, which what comes next waits for. */
static void test_backward_overlaps(void **state)
{
    (void)state;
    struct dtp_transformer t = llama_7b();
    struct dtp_plan plan = megatron(true);
    struct dtp_program *program = lower(&t, &plan);
    const struct dtp_op *ops = dtp_program_ops(program);
    size_t seen = 0;
    for (size_t i = 0; i + 4 < dtp_program_op_count(program); i++) {
        if (!of_tensor_ranks(program, &ops[i]) || ops[i].kind != DTP_OP_ALL_GATHER || ops[i].layer != 5 ||
            ops[i + 2].kind != DTP_OP_REDUCE_SCATTER)
            continue;
        if (strcmp(ops[i + 3].name, "qkv weight gradient") != 0 && strcmp(ops[i + 3].name, "up weight gradient") != 0)
            continue; /* forward's */
        assert_int_equal(ops[i + 1].kind, DTP_OP_MATMUL);
        assert_false(waits(program, &ops[i + 1], i));
        assert_int_equal(ops[i + 3].kind, DTP_OP_MATMUL);
        assert_true(waits(program, &ops[i + 3], i));
        assert_false(waits(program, &ops[i + 3], i + 2));
        assert_true(waits(program, &ops[i + 4], i + 2));
        seen++;
    }
    assert_int_equal(seen, 2 * MICRO_STEPS);
    dtp_program_destroy(program);
}

/* In pieces, the same bytes go over the links: 0.3 of them before or behind the matmul, the rest beside it. */
static void test_overlap_sends_the_same(void **state)
{
    (void)state;
    struct dtp_transformer t = llama_7b();
    for (int spread = 0; spread < 2; spread++) {
        struct dtp_plan plan = megatron(spread);
        struct dtp_program *plain = lower(&t, &plan);
        plan.tp_overlap = true;
        struct dtp_program *pieces = lower(&t, &plan);
        struct traffic a = traffic_of(plain), b = traffic_of(pieces);
        assert_near(b.gathered, a.gathered, 1e-12);
        assert_near(b.scattered, a.scattered, 1e-12);
        assert_near(b.summed, a.summed, 1e-12);
        assert_true(b.gathers + b.sums > a.gathers + a.sums);
        dtp_program_destroy(plain);
        dtp_program_destroy(pieces);
    }
}

/* Bytes of layer 1's activations that stand when the loss begins. */
static uint64_t saved_bytes(const struct dtp_program *program)
{
    uint64_t saved = 0;
    for (size_t i = 0; i < dtp_program_op_count(program); i++) {
        const struct dtp_op *op = &dtp_program_ops(program)[i];
        if (op->kind == DTP_OP_MARK && strcmp(op->name, "loss") == 0)
            return saved;
        for (uint32_t k = 0; k < op->operand_count; k++) {
            const struct dtp_operand *operand = &dtp_program_operands(program, op)[k];
            const struct dtp_buffer *buffer = &dtp_program_buffers(program)[operand->buffer.index];
            if (buffer->owner != DTP_OWNER_ACTIVATIONS || buffer->layer != 1)
                continue;
            saved += operand->access & DTP_ALLOC ? buffer->bytes : 0;
            saved -= operand->access & DTP_FREE ? buffer->bytes : 0;
        }
    }
    return 0;
}

/* GPT-3's layer of h 12288 and a 96 heads keeps s b h (10 + 24/t + 5as/(ht)) bytes, with sequence parallelism
 * s b h (34/t + 5as/(ht)) (Korthikanti 2022, table 2). 2 of the 10 are masks of dropout, which there is none of; flash
 * attention keeps 4 bytes a head and token in place of the last term; LayerNorm's mean and scale are 16 bytes. */
static void test_saved_activations(void **state)
{
    (void)state;
    const double h = 12288, a = 96, s = 2048;
    struct dtp_transformer t = dtp_transformer_default();
    t.layers = 3, t.hidden = 12288, t.heads = t.kv_heads = 96, t.head_dim = 128, t.ffn = 4 * 12288, t.vocab = 51200;
    t.norm = DTP_LAYER_NORM, t.norm_bias = t.qkv_bias = t.attention_output_bias = t.mlp_bias = true;
    t.activation = DTP_GELU, t.position = DTP_POSITION_LEARNED, t.positions = 2048, t.tied_head = true;
    for (uint32_t tp = 1; tp <= 8; tp *= 2)
        for (int spread = 0; spread < 2; spread++) {
            struct dtp_plan plan = megatron(spread);
            plan.tp = tp;
            plan.accumulate = 1;
            struct dtp_program *program = lower(&t, &plan);
            double stream = spread ? (8 * h + 16) / tp : 8 * h + 16;
            assert_near((double)saved_bytes(program), s * (stream + 24 * h / tp + 4 * a / tp), 0);
            dtp_program_destroy(program);
        }
}

/* t ranks together compute what one computes alone, but for the vocabulary's padding. */
static void test_work_is_divided(void **state)
{
    (void)state;
    struct dtp_transformer t = llama_7b();
    struct dtp_program_totals whole, part;
    struct dtp_plan plan = megatron(true);
    plan.tp = 1;
    struct dtp_program *program = lower(&t, &plan);
    dtp_program_sum(program, &whole);
    dtp_program_destroy(program);
    plan = megatron(true);
    program = lower(&t, &plan);
    dtp_program_sum(program, &part);
    dtp_program_destroy(program);
    assert_near(TP * part.matmul_flops, whole.matmul_flops, 1e-12);
    assert_near(TP * part.attention_flops, whole.attention_flops, 1e-12);
}

/* Whatever resolves is proven. */
static void test_random_jobs_are_proven(void **state)
{
    (void)state;
    random_state = random_seed();
    int seen = 0;
    for (int i = 0; i < 4000; i++) {
        struct random_job job;
        struct dtp_program *program = NULL;
        struct dtp_faults faults = {0};
        if (!random_job(&job))
            continue;
        struct dtp_plan plan = job.plan = dtp_plan_default();
        bool torch = random_bool();
        plan.runtime = torch ? &dtp_runtime_torch : &dtp_runtime_megatron;
        plan.strategy = torch           ? random_bool() ? DTP_FULL_SHARD : DTP_SHARD_GRAD_OP
                        : random_bool() ? DTP_DDP
                                        : DTP_ZERO1;
        plan.compile = torch && random_bool();
        plan.tp = 2u << random_below(3);
        plan.sequence_parallel = torch || random_bool();
        if (!torch && random_below(3) == 0) {
            plan.runtime = &dtp_runtime_deepspeed;
            plan.strategy = random_bool() ? DTP_ZERO1 : DTP_ZERO2;
            plan.deepspeed.megatron_layers = random_bool();
            plan.sequence_parallel = false;
        }
        plan.gathered_logits = plan.runtime == &dtp_runtime_torch && random_below(4) == 0;
        plan.tp_overlap = random_bool() && (!torch || plan.compile);
        plan.accumulate = (uint32_t)(1 + random_below(3));
        plan.sequence = 1u << (4 + random_below(8));
        plan.attention = random_bool() ? DTP_ATTENTION_MATH : DTP_ATTENTION_FLASH2;
        plan.loss = random_bool() ? DTP_LOSS_FUSED : DTP_LOSS_EAGER;
        if (plan.runtime == &dtp_runtime_megatron && plan.loss == DTP_LOSS_EAGER && random_bool())
            plan.loss = DTP_LOSS_NATIVE;
        plan.checkpointing = random_bool()            ? DTP_CHECKPOINT_FULL
                             : torch && random_bool() ? DTP_CHECKPOINT_SELECTIVE_MATMUL
                             : random_bool()          ? DTP_CHECKPOINT_SELECTIVE_ATTENTION
                                                      : DTP_CHECKPOINT_NONE;
        job.transformer.layers = 1 + job.transformer.layers % 5;
        if (dtp_plan_resolve(&plan, &job.transformer, &job.cluster, NULL) != DTP_OK)
            continue;
        if (dtp_lower(&job.transformer, &job.cluster, &plan, 0, &program, &faults) != DTP_OK ||
            dtp_program_verify(program, &faults) != DTP_OK)
            fail_msg("job %d: %s", i, faults.text[0]);
        dtp_program_destroy(program);
        seen++;
    }
    printf("%d random jobs with tensor parallelism\n", seen);
    assert_true(seen > 100);
}

/* Megatron-Core's own fusion, of a logit: to fp32 2 + 4, its maximum among that but for what tensor parallel ranks take
 * apart (2), exponentials 8, quotients 8; backward a copy 8, the product read 4, written 4 and cast 2. Beside the
 * model's probabilities stand, at worst, the copy and the gradient: 4 + 4 + 2. */
static void test_native_loss(void **state)
{
    (void)state;
    struct dtp_transformer t = llama_7b();
    struct dtp_plan plan = megatron(true);
    plan.loss = DTP_LOSS_NATIVE;
    struct dtp_program *program = lower(&t, &plan);
    double moved = 0, logits = (double)plan.sequence * (double)t.vocab / TP;
    double standing = 0, most = 0;
    for (size_t i = 0; i < dtp_program_op_count(program); i++) {
        const struct dtp_op *op = &dtp_program_ops(program)[i];
        moved += op->kind == DTP_OP_LOSS || op->kind == DTP_OP_LOSS_BACKWARD ? op->demand->bytes : 0;
        for (uint32_t k = 0; k < op->operand_count; k++) {
            const struct dtp_operand *operand = &dtp_program_operands(program, op)[k];
            const struct dtp_buffer *buffer = &dtp_program_buffers(program)[operand->buffer.index];
            bool wide = buffer->owner == DTP_OWNER_LOGITS && (double)buffer->bytes >= 2 * logits;
            standing += wide && operand->access & DTP_ALLOC ? (double)buffer->bytes : 0;
        }
        most = standing > most ? standing : most;
        for (uint32_t k = 0; k < op->operand_count; k++) {
            const struct dtp_operand *operand = &dtp_program_operands(program, op)[k];
            const struct dtp_buffer *buffer = &dtp_program_buffers(program)[operand->buffer.index];
            bool wide = buffer->owner == DTP_OWNER_LOGITS && (double)buffer->bytes >= 2 * logits;
            standing -= wide && operand->access & DTP_FREE ? (double)buffer->bytes : 0;
        }
    }
    assert_true(moved == (2 + 4 + 16 + 8 + 10) * logits * MICRO_STEPS);
    assert_true(most == (4 + 4 + 2) * logits);
    dtp_program_destroy(program);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sequence_parallel),
        cmocka_unit_test(test_whole_stream),
        cmocka_unit_test(test_replays_and_head_norms),
        cmocka_unit_test(test_torch),
        cmocka_unit_test(test_torch_alone),
        cmocka_unit_test(test_backward_overlaps),
        cmocka_unit_test(test_overlap_sends_the_same),
        cmocka_unit_test(test_saved_activations),
        cmocka_unit_test(test_work_is_divided),
        cmocka_unit_test(test_random_jobs_are_proven),
        cmocka_unit_test(test_gathered_logits),
        cmocka_unit_test(test_native_loss),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
