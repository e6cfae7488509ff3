#include "program/program_text.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "lib/same_program.h"
#include "lib/step_program.h"

/* Caller frees. */
static char *text_of(const struct dtp_program *program)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *file = open_memstream(&text, &bytes);
    assert_int_equal(dtp_program_write_text(program, file), DTP_OK);
    fclose(file);
    return text;
}

static struct dtp_program *parse(const char *text)
{
    static struct dtp_faults faults;
    faults = (struct dtp_faults){0};
    struct dtp_program *program;
    if (dtp_program_parse_text("step", text, strlen(text), &program, &faults) != DTP_OK)
        fail_msg("%s", faults.text[0]);
    return program;
}

/* Destroys it. */
static void expect_round_trip(struct dtp_program *program)
{
    char *text = text_of(program);
    struct dtp_program *again = parse(text);
    assert_true(same_program(program, again));
    char *second = text_of(again);
    assert_string_equal(text, second);
    free(second);
    free(text);
    dtp_program_destroy(again);
    dtp_program_destroy(program);
}

static const char golden[] =
    "program 1\n"
    "execution issuer native allocator arena compute bf16 reduce fp32 own_kernels graph stochastic_rounding "
    "matmul_sms 116 collective_ctas 2 shards 4 clip_norm 1 copies all_gather copies all_to_all\n"
    "group 0 ranks 8 stride 1\n"
    "tensor 0 \"qkv\" module 1 modules 80 rows 6144 columns 2048 offset 64 decays deviation 5764607523034235p-58\n"
    "tensor 1 \"head\" module 81 rows 50 columns 16 offset 16 extent 896 saved 8 mean 1\n"
    "buffer 0 \"params\" bytes 3500000000 owner params space device pool compute dtype bf16 content weights module 1 "
    "persistent\n"
    "buffer 1 \"x y\" bytes 64 owner activations space host pool gather layer 2 micro 1\n"
    "op 0 all_gather gather group 0 writes +1 sent_bytes 17 kernels 1\n"
    "op 1 matmul compute layer 2 micro 1 updates 0@0+512:workspace reads 1-:input 0%@4096:weight "
    "after 0 flops 206158430208 m 8192 n 6144 k 2048 dtype bf16 "
    "name \"qkv\"\n"
    "op 2 norm compute updates 0 bytes 1p-1 dtype bf16 kernel fused recompute\n"
    "op 3 free compute buffers 1~\n"
    "end ops 4 buffers 2 groups 1 tensors 2\n";

static void test_the_text_of_a_program(void **state)
{
    (void)state;
    struct dtp_program *p = parse(golden);
    char *text = text_of(p);
    assert_string_equal(text, golden);
    free(text);
    const struct dtp_op *ops = dtp_program_ops(p);
    assert_int_equal(ops[0].operand_count, 1);
    assert_int_equal(dtp_program_operands(p, &ops[0])->access, DTP_ALLOC | DTP_WRITE);
    assert_int_equal(ops[0].layer, DTP_NO_LAYER);
    assert_int_equal(dtp_program_operands(p, &ops[3])->access, DTP_FREE | DTP_DEFER);
    const struct dtp_operand *weight = &dtp_program_operands(p, &ops[1])[2];
    assert_true(weight->role == DTP_ROLE_WEIGHT && weight->offset_bytes == 4096 && weight->shard &&
                weight->access == DTP_READ);
    assert_true(ops[1].demand->flops == 206158430208 && ops[2].demand->bytes == 0.5);
    assert_int_equal(ops[2].demand->memory_kernel, 1);
    assert_int_equal(ops[2].demand->recompute, 1);
    assert_int_equal(dtp_program_dependencies(p, &ops[1])->index, 0);
    const struct dtp_buffer *buffers = dtp_program_buffers(p);
    assert_int_equal(buffers[0].element, DTP_BF16 + 1);
    assert_int_equal(buffers[0].content, DTP_CONTENT_WEIGHTS);
    assert_int_equal(buffers[0].module, 1);
    assert_int_equal(buffers[1].element, DTP_NO_ELEMENT);
    assert_int_equal(buffers[1].space, DTP_SPACE_HOST);
    dtp_program_destroy(p);
}

static void test_steps_go_there_and_back(void **state)
{
    (void)state;
    expect_round_trip(step_program(1, 1, 1));
    expect_round_trip(step_program(7, 3, 5));
    expect_round_trip(parse("program 1\nend ops 0 buffers 0 groups 0\n"));
}

static void test_shapes_of_attention_and_groups_of_matmuls(void **state)
{
    static const char text[] =
        "program 1\n"
        "execution issuer pytorch allocator segments compute fp32 reduce fp32\n"
        "op 0 attention compute flops 4096 tokens 16 heads 8 kv_heads 2 head_dim 64 window 4 queries 8 keys 16 softcap "
        "50 causal wide kernel math kernels 1\n"
        "op 1 attention_backward compute tokens 16 heads 8 kv_heads 8 head_dim 64 queries 8 keys 8 atomic dropout\n"
        "op 2 matmul compute m 4 n 5 k 6 groups 3 dtype bf16\n"
        "end ops 3 buffers 0 groups 0\n";
    (void)state;
    struct dtp_program *p = parse(text);
    char *again = text_of(p);
    assert_string_equal(again, text);
    free(again);
    const struct dtp_attention_shape *shape = &dtp_program_ops(p)[0].demand->attention;
    assert_true(shape->heads == 8 && shape->kv_heads == 2 && shape->head_dim == 64 && shape->window == 4);
    assert_true(shape->queries == 8 && shape->keys == 16 && shape->causal);
    assert_true(shape->kernel == DTP_ATTENTION_MATH && shape->wide && !shape->atomic && !shape->dropout);
    shape = &dtp_program_ops(p)[1].demand->attention;
    assert_true(!shape->causal && shape->kernel == DTP_ATTENTION_FLASH && !shape->wide && shape->atomic &&
                shape->dropout);
    assert_int_equal(dtp_program_ops(p)[2].demand->groups, 3);
    dtp_program_destroy(p);
}

static void test_execution(void **state)
{
    (void)state;
    struct dtp_program *p = parse(golden);
    const struct dtp_execution *e = dtp_program_execution(p);
    assert_true(e->issuer == DTP_ISSUER_NATIVE && e->allocator == DTP_ALLOCATOR_ARENA);
    assert_true(e->compute == DTP_BF16 && e->reduce == DTP_FP32 && e->own_kernels && e->graph);
    assert_true(!e->plain_host_adam && !e->windows && e->matmul_sms == 116 && e->collective_ctas == 2);
    assert_true(e->stochastic_rounding && e->shards == 4 && e->clip_norm == 1);
    assert_int_equal(e->copied, 1u << DTP_ALL_GATHER | 1u << DTP_ALL_TO_ALL);
    dtp_program_destroy(p);
    p = parse("program 1\nend ops 0 buffers 0 groups 0\n"); /* as PyTorch runs, where nothing is said */
    const struct dtp_execution none = {0};
    assert_memory_equal(dtp_program_execution(p), &none, sizeof none);
    dtp_program_destroy(p);
}

static void test_tensors(void **state)
{
    (void)state;
    struct dtp_parameter_module module;
    struct dtp_program *p = parse(golden);
    assert_int_equal(dtp_program_tensor_count(p), 2);
    for (uint64_t m = 1; m <= 80; m += 79) {
        dtp_program_module(p, m, &module);
        const struct dtp_parameter_tensor *qkv = &module.tensor[DTP_PARAMETER_QKV];
        assert_true(qkv->exists && qkv->rows == 6144 && qkv->columns == 2048 && qkv->offset_elements == 64);
        assert_true(qkv->saved_offset_elements == 64 && qkv->decays && qkv->mean == 0 && qkv->deviation == 0.02);
        assert_int_equal(module.shard_elements, (64 + 6144 * 2048 + 4 * 256 - 1) / (4 * 256) * 256);
        assert_int_equal(module.elements, 4 * module.shard_elements);
    }
    dtp_program_module(p, 81, &module);
    const struct dtp_parameter_tensor *head = &module.tensor[DTP_PARAMETER_HEAD];
    assert_true(head->extent_elements == 896 && head->saved_offset_elements == 8 && !head->decays && head->mean == 1);
    assert_int_equal(module.used_elements, 800);
    dtp_program_module(p, 0, &module);
    assert_int_equal(module.elements, 0);
    dtp_program_destroy(p);
}

static void test_numbers_keep_their_bits(void **state)
{
    (void)state;
    const double values[] = {0,    1,      0.1,      1.0 / 3,   0x1p53,      0x1p53 + 2, 1e17,
                             1e30, 5e-324, 2.5e-310, 0x1p-1022, 1 + 0x1p-52, M_PI,       9007199254740991.0};
    struct dtp_program *p;
    assert_int_equal(dtp_program_create(0, &p, NULL), DTP_OK);
    for (size_t i = 0; i < sizeof values / sizeof *values; i++)
        dtp_program_add_op(
            p, &(struct dtp_new_op){.kind = DTP_OP_MATMUL, .demand = {.flops = values[i], .tokens = values[i]}}, NULL,
            0);
    assert_int_equal(dtp_program_seal(p, NULL), DTP_OK);
    expect_round_trip(p);
}

static void test_comments_and_blank_lines(void **state)
{
    (void)state;
    struct dtp_program *p = parse("# a bug\n\nprogram 1\n   \nop 0 mark compute name \"forward\"\n # here\n"
                                  "end ops 1 buffers 0 groups 0");
    assert_int_equal(dtp_program_op_count(p), 1);
    dtp_program_destroy(p);
}

/* `count` faults, the first of which begins so. */
static void expect_refused_bytes(const char *text, size_t bytes, size_t count, const char *first)
{
    static struct dtp_faults faults;
    faults = (struct dtp_faults){0};
    struct dtp_program *program = (struct dtp_program *)8;
    assert_int_equal(dtp_program_parse_text("step", text, bytes, &program, &faults), DTP_BAD_INPUT);
    assert_null(program);
    if (faults.count != count || !strstr(faults.text[0], first))
        fail_msg("%zu faults, the first \"%s\", not \"%s\"", faults.count, faults.text[0], first);
    assert_int_equal(dtp_program_parse_text("step", text, bytes, &program, NULL), DTP_BAD_INPUT);
}

#define EXPECT_REFUSED(text, count, first) expect_refused_bytes(text, strlen(text), count, first)
#define HEAD "program 1\ngroup 0 ranks 2 stride 1\nbuffer 0 \"x\" bytes 1 owner grads space device pool compute\n"
#define BUFFER "buffer 0 \"x\" bytes 1 owner grads space device pool compute"

static const struct {
    const char *line, *reason; /* second line */
} faulty_executions[] = {
    {"execution issuer jax", "step:2: unknown issuer \"jax\""},
    {"execution allocator heap", "step:2: unknown allocator \"heap\""},
    {"execution compute bf17", "step:2: unknown dtype \"bf17\""},
    {"execution copies all", "step:2: unknown collective \"all\""},
    {"execution graph graph", "step:2: graph is given twice"},
    {"execution matmul_sms 0", "step:2: matmul_sms is \"0\""},
    {"execution fast", "step:2: unknown key \"fast\""},
    {"tensor 1 \"qkv\"", "step:2: tensor 1 stands where tensor 0"},
    {"tensor 0 \"qvk\" module 0 rows 1 columns 1 offset 0", "step:2: unknown parameter \"qvk\""},
    {"tensor 0 \"qkv\" module 0 columns 1 offset 0", "step:2: tensor 0: its rows, columns and places"},
    {"tensor 0 \"qkv\" module 0 rows 4611686018427387904 columns 4 offset 0", "step:2: rows is"},
    {"tensor 0 \"qkv\" module 0 rows 99999999 columns 99999999 offset 0", "step:2: tensor 0: its rows, columns"},
    {"tensor 0 \"qkv\" module 131072 rows 1 columns 1 offset 0", "step:2: tensor 0: no such parameter or modules"},
    {"tensor 0 \"qkv\" module 1 modules 0 rows 1 columns 1 offset 0", "step:2: tensor 0: no such parameter or modules"},
    {"tensor 0 \"qkv\" module 1 rows 2 columns 2 offset 0 extent 3", "step:2: tensor 0: its rows, columns"},
    {"tensor 0 \"qkv\" module 1 rows 2 columns 2 offset 0\ntensor 1 \"output\" module 0 modules 9 rows 1 columns 1 "
     "offset 3",
     "step:3: tensor 1: it is there twice, or parameters do not follow"},
    {"tensor 0 \"qkv\" module 1 rows 2 columns 2 offset 0\ntensor 1 \"qkv\" module 1 rows 1 columns 1 offset 9",
     "step:3: tensor 1: it is there twice"},
    {"execution\nexecution", "step:3: the line \"execution\" stands once"},
};

static const struct {
    const char *line, *reason; /* fourth line, behind HEAD */
} faulty_lines[] = {
    {"ops 0 norm compute", "unknown line \"ops\""},
    {"op 1 norm compute", "op 1 stands where op 0 is expected"},
    {"op x norm compute", "op is \"x\"; a whole number"},
    {"op 00000000000000000000000000000000000000000000000000000000000000000000000000000000000 norm", "a word beyond"},
    {"op 99999999999999999999 norm compute", "op is \"99999999999999999999\""},
    {"op -0 norm compute", "op is \"-0\""},
    {"op 0 normal compute", "unknown kind of operation \"normal\""},
    {"op 0 norm computer", "unknown stream \"computer\""},
    {"op 0 norm", "the line ends where stream is expected"},
    {"op 0 norm compute layer 65535", "layer is \"65535\""},
    {"op 0 norm compute layer 1 layer 1", "layer is given twice"},
    {"op 0 norm compute micro 70000", "micro is \"70000\""},
    {"op 0 norm compute reads", "the number of a buffer is expected"},
    {"op 0 norm compute reads 1", "\"1\" is no buffer of the lines above"},
    {"op 0 norm compute reads 0x", "\"0x\" is no buffer"},
    {"op 0 norm compute reads 0 0", "occurs twice"},
    {"op 0 norm compute reads 0:input 0:input", "occurs twice"},
    {"op 0 norm compute reads 0:inputs", "\"0:inputs\" is no buffer"},
    {"op 0 norm compute reads 0:", "\"0:\" is no buffer"},
    {"op 0 norm compute reads 0:input-", "\"0:input-\" is no buffer"},
    {"op 0 norm compute reads 0%%", "\"0%%\" is no buffer"},
    {"op 0 norm compute reads 0@", "\"0@\" is no buffer"},
    {"op 0 norm compute reads 0@0", "\"0@0\" is no buffer"},
    {"op 0 norm compute reads 0@1", "behind the end of its buffer"},
    {"op 0 norm compute reads 0@99999999999999999999", "is no buffer"},
    {"op 0 norm compute reads +0:input writes +0:result", "at two of its operands"},
    {"op 0 norm compute reads 4294967296", "is no buffer"},
    {"op 0 free compute reads 0-", "touch no bytes"},
    {"op 0 norm compute buffers 0", "operation 0 (norm): an operand has no access"},
    {"op 0 norm compute after 0", "would wait for operation 0, which does not stand before it"},
    {"op 0 norm compute after 7", "would wait for operation 7, which does not stand before it"},
    {"op 0 norm compute after", "the number of an operation is expected"},
    {"op 0 norm compute flops nan", "flops is \"nan\""},
    {"op 0 norm compute flops -1", "flops is \"-1\""},
    {"op 0 norm compute flops 1.5", "flops is \"1.5\"; a whole number up to 2^53 is needed, or MpE"},
    {"op 0 norm compute flops 1p", "flops is \"1p\""},
    {"op 0 norm compute flops 1p2000", "flops is \"1p2000\""},
    {"op 0 norm compute flops 1p1100", "a demand is negative, not finite or absurdly large"},
    {"op 0 norm compute flops 9007199254740993", "flops is \"9007199254740993\""},
    {"op 0 norm compute flop 1", "unknown key \"flop\""},
    {"op 0 norm compute kernel slow", "unknown kernel \"slow\""},
    {"op 0 norm compute kernel flash", "unknown kernel \"flash\""},
    {"op 0 attention compute kernel fused", "unknown kernel \"fused\""},
    {"op 0 norm compute atomic", "only attention and what stands around it"},
    {"op 0 norm compute kernels 4294967296", "kernels is \"4294967296\""},
    {"op 0 norm compute dtype bf17", "unknown dtype \"bf17\""},
    {"op 0 norm compute group 0", "only collectives have a group"},
    {"op 0 all_gather gather", "a collective needs a group of the lines above"},
    {"op 0 all_gather gather group 1", "a collective needs a group of the lines above"},
    {"op 0 norm compute name qkv", "a name in quotes is needed"},
    {"op 0 norm compute name \"qkv", "a name in quotes is needed"},
    {"op 0 norm compute name \"q\"x", "a name in quotes is needed"},
    {"op 0 norm compute name \"q\tv\"", "a name in quotes is needed"},
    {"op 0 norm compute\r", "byte 0x0d"},
    {"op 0 norm\tcompute", "byte 0x09, where a kind"},
    {"buffer 1 \"y\" bytes 2 owner grads space device pool compute dtype bf17", "unknown dtype \"bf17\""},
    {"buffer 1 \"y\" bytes 2 owner grads space device pool compute content all", "unknown content \"all\""},
    {"buffer 1 \"y\" bytes 2 owner grads space device pool compute dtype bf16 dtype bf16", "dtype is given twice"},
    {"buffer 1 \"y\" bytes 3 owner grads space device pool compute dtype bf16", "no whole number of elements"},
    {"buffer 1 \"y\" bytes 2 owner grads space device pool compute module 1", "only state is a module's"},
    {"op 0 attention compute tokens 16 heads 8 kv_heads 8 head_dim 64 queries 8", "attention needs heads, kv_heads"},
    {"op 0 attention compute tokens 16 heads 4294967296", "heads is \"4294967296\""},
    {"op 0 norm compute heads 8", "only attention and what stands around it"},
    {"op 0 norm compute groups 8", "only a matmul and what stands around experts have groups"},
    {"op 0 norm compute causal causal", "causal is given twice"},
    {"group 0 ranks 2 stride 1", "group 0 stands where group 1 is expected"},
    {"group 1 ranks 0 stride 1", "ranks is \"0\"; a whole number from 1"},
    {"group 1 ranks 2 stride 1 x", "the line goes on behind its end"},
    {"group 1 ranks 2 stride 1 ctas 0", "ctas is \"0\"; a whole number from 1"},
    {"group 1 ranks 2 stride 1 ctas 4 x", "the line goes on behind its end"},
    {"group 1 stride 1", "\"stride\", where \"ranks\" is expected"},
    {BUFFER, "buffer 0 stands where buffer 1 is expected"},
    {"buffer 1 x bytes 1", "a name in quotes"},
    {"buffer 1 \"x\" bytes 999999999999999999 owner grads space device pool compute", "bytes is \"999"},
    {"buffer 1 \"x\" bytes 1 owner you space device pool compute", "unknown owner \"you\""},
    {"buffer 1 \"x\" bytes 1 owner grads space outer pool compute", "unknown space \"outer\""},
    {"buffer 1 \"x\" bytes 1 owner grads space device pool whirl", "unknown pool \"whirl\""},
    {"buffer 1 \"x\" bytes 1 owner grads space device pool compute persistent persistent", "given twice"},
    {"program 1", "unknown line \"program\""},
};

static void test_faults_of_lines(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof faulty_lines / sizeof *faulty_lines; i++) {
        char text[600], reason[200];
        bool op = !strncmp(faulty_lines[i].line, "op ", 3), group = !strncmp(faulty_lines[i].line, "group", 5);
        bool buffer = !strncmp(faulty_lines[i].line, "buffer", 6);
        snprintf(text, sizeof text, HEAD "%s\nend ops %d buffers %d groups %d\n", faulty_lines[i].line, op, 1 + buffer,
                 1 + group);
        snprintf(reason, sizeof reason, "%s", faulty_lines[i].reason);
        EXPECT_REFUSED(text, 1, reason);
        EXPECT_REFUSED(text, 1, "step:4: ");
    }
}

static void test_faults_of_the_whole(void **state)
{
    (void)state;
    EXPECT_REFUSED("", 1, "the program has no line \"end ...\": the text was cut off");
    EXPECT_REFUSED("program 2\nend ops 0 buffers 0 groups 0\n", 1, "step:1: \"2\", where \"1\" is expected");
    EXPECT_REFUSED("program 1 x\nend ops 0 buffers 0 groups 0\n", 1, "step:1: the line goes on");
    EXPECT_REFUSED("end ops 0 buffers 0 groups 0\n", 2, "step:1: \"end\", where \"program\" is expected");
    EXPECT_REFUSED("program 1\n", 1, "cut off");
    for (size_t i = 0; i < sizeof faulty_executions / sizeof *faulty_executions; i++) {
        char text[300];
        const char *line = faulty_executions[i].line, *end = strstr(line, "\ntensor")     ? " tensors 2"
                                                             : strncmp(line, "tensor", 6) ? ""
                                                                                          : " tensors 1";
        snprintf(text, sizeof text, "program 1\n%s\nend ops 0 buffers 0 groups 0%s\n", line, end);
        EXPECT_REFUSED(text, 1, faulty_executions[i].reason);
    }
    EXPECT_REFUSED(HEAD "execution\nend ops 0 buffers 1 groups 1\n", 1, "step:4: the line \"execution\" stands once");
    EXPECT_REFUSED(HEAD "end ops 0 buffers 1 groups 1\nop 0 norm compute\n", 1, "step:5: the program goes on behind");
    EXPECT_REFUSED(HEAD "end ops 1 buffers 1 groups 1\n", 1, "step:4: there are 0 ops, 1 buffers and 1 groups above");
    EXPECT_REFUSED(HEAD "end ops 0 buffers 1\n", 1, "step:4: the line ends");
    EXPECT_REFUSED(HEAD "end ops 0 buffers 1 groups 1 x\n", 1, "step:4: \"x\", where \"tensors\" is expected");
    expect_refused_bytes("program 1\0\nend ops 0 buffers 0 groups 0\n", 39, 1, "step:1: byte 0x00");
}

/* Each line's own fault, the good ones between them counted. */
static void test_all_faults_at_once(void **state)
{
    (void)state;
    static struct dtp_faults faults;
    struct dtp_program *program;
    static const char text[] =
        HEAD "op 0 norm nowhere\nop 1 norm compute\nop 2 norm compute reads 9\n"
             "op 3 norm compute after 2\nop 4 norm compute after 9\nend ops 5 buffers 1 groups 1\n";
    assert_int_equal(dtp_program_parse_text("step", text, strlen(text), &program, &faults), DTP_BAD_INPUT);
    assert_int_equal(faults.count, 3);
    assert_int_equal(strncmp(faults.text[0], "step:4: unknown stream", 22), 0);
    assert_int_equal(strncmp(faults.text[1], "step:6: \"9\" is no buffer", 24), 0);
    assert_int_equal(strncmp(faults.text[2], "step:8: it would wait", 21), 0);
}

/* However a text is cut, or whichever byte of it is another, it is refused or is a program of its own. */
static void test_every_cut_and_every_changed_byte(void **state)
{
    (void)state;
    struct dtp_program *program = step_program(2, 1, 2), *read;
    char *text = text_of(program);
    size_t bytes = strlen(text);
    for (size_t cut = 0; cut + 1 < bytes; cut++) {
        assert_int_equal(dtp_program_parse_text("step", text, cut, &read, NULL), DTP_BAD_INPUT);
        assert_null(read);
    }
    for (size_t i = 0; i < bytes; i++) {
        char kept = text[i];
        text[i] = (char)(kept ^ 1 << i % 7);
        if (dtp_program_parse_text("step", text, bytes, &read, NULL) == DTP_OK)
            expect_round_trip(read);
        text[i] = kept;
    }
    free(text);
    dtp_program_destroy(program);
}

static void test_a_file_that_cannot_be_written(void **state)
{
    (void)state;
    FILE *full = fopen("/dev/full", "w");
    if (!full)
        skip();
    setvbuf(full, NULL, _IONBF, 0);
    struct dtp_program *program = step_program(1, 1, 1);
    assert_int_equal(dtp_program_write_text(program, full), DTP_ENVIRONMENT);
    fclose(full);
    dtp_program_destroy(program);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_the_text_of_a_program),
                                       cmocka_unit_test(test_steps_go_there_and_back),
                                       cmocka_unit_test(test_shapes_of_attention_and_groups_of_matmuls),
                                       cmocka_unit_test(test_execution),
                                       cmocka_unit_test(test_tensors),
                                       cmocka_unit_test(test_numbers_keep_their_bits),
                                       cmocka_unit_test(test_comments_and_blank_lines),
                                       cmocka_unit_test(test_faults_of_lines),
                                       cmocka_unit_test(test_faults_of_the_whole),
                                       cmocka_unit_test(test_all_faults_at_once),
                                       cmocka_unit_test(test_every_cut_and_every_changed_byte),
                                       cmocka_unit_test(test_a_file_that_cannot_be_written)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
