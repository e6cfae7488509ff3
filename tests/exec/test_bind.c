/* Programs bound to calls: addresses inside the arena, decay where the layout says, state cut among ranks without gap.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "bind/bind.h"
#include "kernels/element.h"
#include "lower/lower.h"
#include "train/run.h"
#include "lib/run_fixture.h"

static struct dtp_faults faults;

struct stand {
    struct dtp_job job;
    struct dtp_program *program;
    struct dtp_executor_arena arena;
    struct dtp_device *device;
    char *device_base, *host_base;
    struct dtp_world world; /* nobody is met: binding only wants to know that there is one */
};

static void must(enum dtp_status status)
{
    if (status != DTP_OK)
        fail_msg("%s", faults.text[0]);
}

static void set_up(struct stand *s, const char *words)
{
    memset(s, 0, sizeof *s);
    memset(&faults, 0, sizeof faults);
    run_job(words, &s->job);
    must(dtp_lower(&s->job.transformer, &s->job.cluster, &s->job.plan, 0, &s->program, &faults));
    must(dtp_executor_arena_make(s->program, &s->arena, &faults));
    must(dtp_device_host_create(&(struct dtp_device_options){.threads = 1}, &s->device, &faults));
    s->device_base = malloc(s->arena.device_bytes);
    s->host_base = malloc(s->arena.host_bytes);
    assert_true(s->device_base && s->host_base);
}

static void tear_down(struct stand *s)
{
    free(s->device_base);
    free(s->host_base);
    s->device->verbs->destroy(s->device);
    dtp_executor_arena_release(&s->arena);
    dtp_program_destroy(s->program);
}

static enum dtp_status bind_rank(struct stand *s, uint32_t rank, struct dtp_binding *out)
{
    struct dtp_bind_job job = {.program = s->program,
                               .arena = &s->arena,
                               .device = s->device,
                               .device_base = s->device_base,
                               .host_base = s->host_base,
                               .rank = rank,
                               .world = s->job.cluster.gpus > 1 ? &s->world : NULL,
                               .optimizer = {0.9f, 0.95f, 1e-8f, 0.1f}};
    return dtp_bind(&job, out, &faults);
}

/* ---- addresses --------------------------------------------------------------------------------------------------- */

static void inside(const struct stand *s, const void *address, uint64_t bytes)
{
    const char *at = address;
    assert_true(at >= s->device_base && at + bytes <= s->device_base + s->arena.device_bytes);
}

static void test_matmuls_stay_in_the_arena(void **state)
{
    static struct stand s;
    struct dtp_binding b;
    size_t matmuls = 0;
    (void)state;
    set_up(&s, RUN_LLAMA "precision=bf16-mixed micro_batch=2");
    must(bind_rank(&s, 0, &b));
    for (size_t i = 0; i < b.op_count; i++) {
        const struct dtp_matmul_args *g = &b.ops[i].arguments.matmul;
        if (b.ops[i].kind != DTP_BOUND_COMPUTE || b.ops[i].kernel != DTP_KERNEL_matmul)
            continue;
        uint64_t a_rows = g->a_transposed ? g->k : g->m, b_rows = g->b_transposed ? g->n : g->k;
        inside(&s, g->a, a_rows * g->lda * dtp_element_bytes(g->element));
        inside(&s, g->b, b_rows * g->ldb * dtp_element_bytes(g->element));
        inside(&s, g->result, g->m * g->ldd * dtp_element_bytes(g->result_element));
        assert_true(g->workspace_bytes == DTP_EXECUTOR_MATMUL_WORKSPACE_BYTES);
        assert_int_equal((uintptr_t)g->a % 16, 0);
        assert_int_equal((uintptr_t)g->b % 16, 0);
        matmuls++;
    }
    assert_int_equal(matmuls, 2 * 4 * 3 + 3); /* of two layers four each, forward and twice backward, and the head's */
    dtp_binding_release(&b);
    tear_down(&s);
}

/* Exchanged gradients: every rank's part is added up, into the shard in the first micro-step, onto it in the second.
 * What reads shards, and replicas' sum of them, takes them for what they are: fp32, whatever was exchanged. */
static void expect_sums(const char *words, enum dtp_element exchanged, size_t replicas)
{
    static struct stand s;
    struct dtp_binding b;
    size_t sums = 0, onto = 0, norms = 0, updates = 0, replicated = 0;
    uint64_t bytes = dtp_element_bytes(exchanged);
    set_up(&s, words);
    must(bind_rank(&s, 2, &b));
    for (size_t i = 1; i < b.op_count; i++) {
        const struct dtp_bound_op *op = &b.ops[i];
        const struct dtp_sum_parts_args *g = &op->arguments.sum_parts;
        const struct dtp_collective_args *exchange = &b.ops[i - 1].arguments.collective;
        bool computes = op->kind == DTP_BOUND_COMPUTE;
        if (op->kind == DTP_BOUND_COLLECTIVE && op->arguments.collective.collective == DTP_ALL_REDUCE) {
            assert_int_equal(op->arguments.collective.element, DTP_ELEMENT_FP32);
            replicated++;
        }
        if (computes && op->kernel == DTP_KERNEL_square_sum) {
            assert_int_equal(op->arguments.square_sum.element, DTP_ELEMENT_FP32);
            inside(&s, op->arguments.square_sum.values, op->arguments.square_sum.count * 4);
            norms += op->arguments.square_sum.count;
        }
        if (computes && op->kernel == DTP_KERNEL_adamw) {
            assert_int_equal(op->arguments.adamw.gradient_element, DTP_ELEMENT_FP32);
            inside(&s, op->arguments.adamw.gradient, op->arguments.adamw.count * 4);
            updates += op->arguments.adamw.count;
        }
        if (!computes || op->kernel != DTP_KERNEL_sum_parts)
            continue;
        assert_int_equal(b.ops[i - 1].kind, DTP_BOUND_COLLECTIVE);
        assert_int_equal(exchange->collective, DTP_ALL_TO_ALL);
        assert_int_equal(exchange->element, exchanged);
        assert_true(exchange->result == g->parts && exchange->bytes == g->part_count * g->count * bytes);
        assert_true(g->part_count == 4 / replicas && g->element == exchanged && g->total_element == DTP_ELEMENT_FP32);
        inside(&s, g->parts, exchange->bytes);
        inside(&s, g->total, g->count * 4);
        sums++;
        onto += g->accumulate;
    }
    assert_int_equal(sums, 2 * 4); /* two layers, embedding, head */
    assert_int_equal(onto, 4);
    assert_true(norms > 0 && norms == updates);
    assert_int_equal(replicated, 1 + (replicas > 1 ? 4 : 0)); /* the norm's partial sums */
    dtp_binding_release(&b);
    tear_down(&s);
}

static void test_exchanged_gradients_are_added_up(void **state)
{
    (void)state;
#define EXCHANGES RUN_LLAMA "precision=bf16-mixed gpus=4 accumulate=2 clip_norm=1 reduce_engine=copy "
    expect_sums(EXCHANGES "strategy=zero2", DTP_ELEMENT_FP32, 1);
    expect_sums(EXCHANGES "strategy=zero2 reduce_dtype=bf16", DTP_ELEMENT_BF16, 1);
    expect_sums(EXCHANGES "strategy=hybrid_shard shard_group=2 accumulate_sync=true reduce_dtype=bf16",
                DTP_ELEMENT_BF16, 2);
#undef EXCHANGES
}

/* ---- alignment --------------------------------------------------------------------------------------------------- */

/* Rows that begin at multiples of 16 bytes, whole ones: what tensor cores read and write at full speed. */
static void aligned(const struct dtp_matmul_args *g)
{
    const uint64_t lines[] = {
        g->a_transposed ? g->m : g->k, g->b_transposed ? g->k : g->n, g->n, g->lda, g->ldb, g->ldd};
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++)
        if (lines[i] % DTP_PARAMETER_ALIGNMENT)
            fail_msg("matmul [%lu, %lu, %lu]: a row of %lu elements", g->m, g->n, g->k, lines[i]);
}

static void check_alignment(const char *words)
{
    static struct stand s;
    struct dtp_binding b;
    uint32_t of_logits = 0;
    set_up(&s, words);
    must(bind_rank(&s, 0, &b));
    for (size_t i = 0; i < b.op_count; i++) {
        if (b.ops[i].kind != DTP_BOUND_COMPUTE || b.ops[i].kernel != DTP_KERNEL_matmul)
            continue;
        const struct dtp_matmul_args *g = &b.ops[i].arguments.matmul;
        aligned(g);
        of_logits += g->m == 56 || g->n == 56 || g->k == 56;
    }
    assert_int_equal(of_logits, 3); /* 50 tokens in rows of 56 */
    dtp_binding_release(&b);
    tear_down(&s);
}

static void test_any_vocabulary_is_aligned(void **state)
{
    (void)state;
    check_alignment(RUN_LLAMA "precision=bf16-mixed");
    check_alignment(RUN_LLAMA "precision=fp32 strategy=full_shard gpus=3");
    check_alignment(RUN_GPT2 "precision=bf16-pure");
}

/* ---- weight decay ------------------------------------------------------------------------------------------------ */

/* Marks what decays: over all ranks of a group, each element of the tensors that decay once, no other but padding. */
static void mark(uint8_t *marks, const struct dtp_adamw_args *g, uint64_t module, uint64_t elements)
{
    uint64_t first = g->first_element - dtp_parameter_element_key(module, 0);
    assert_true(first + g->count <= elements);
    for (uint32_t r = 0; r < g->range_count; r++)
        for (uint64_t i = g->range_begin[r]; i < g->range_end[r]; i++) {
            assert_true(i < g->count);
            marks[first + i]++;
        }
}

static void check_decay(const char *words, uint32_t ranks)
{
    static struct stand s;
    set_up(&s, words);
    uint64_t modules = dtp_parameter_module_count(&s.job.transformer);
    for (uint64_t module = 0; module < modules; module++) {
        struct dtp_parameter_module layout;
        struct dtp_executor_rules rules;
        dtp_executor_rules(&s.job.transformer, &s.job.cluster, &s.job.plan, &rules);
        dtp_parameter_module(&s.job.transformer, rules.shard_ranks, module, &layout);
        uint8_t *marks = calloc(layout.elements + 1, 1);
        assert_non_null(marks);
        for (uint32_t rank = 0; rank < ranks; rank++) {
            struct dtp_binding b;
            must(bind_rank(&s, rank, &b));
            for (size_t i = 0; i < b.op_count; i++)
                if (b.ops[i].kind == DTP_BOUND_COMPUTE && b.ops[i].kernel == DTP_KERNEL_adamw &&
                    b.ops[i].arguments.adamw.first_element >> 46 == module)
                    mark(marks, &b.ops[i].arguments.adamw, module, layout.elements);
            dtp_binding_release(&b);
        }
        for (int p = 0; p < DTP_PARAMETER_COUNT; p++)
            for (uint64_t i = 0; layout.tensor[p].exists && i < layout.tensor[p].rows * layout.tensor[p].columns; i++)
                assert_int_equal(marks[layout.tensor[p].offset_elements + i], layout.tensor[p].decays);
        free(marks);
    }
    tear_down(&s);
}

static void test_decay_is_of_matrices(void **state)
{
    (void)state;
    check_decay(RUN_LLAMA "precision=fp32", 1);
    check_decay(RUN_GPT2 "precision=bf16-mixed", 1);
    check_decay(RUN_LLAMA "precision=bf16-mixed strategy=zero1 gpus=4", 4);
    check_decay(RUN_GPT2 "precision=fp32 strategy=full_shard gpus=3", 3);
}

/* ---- state ------------------------------------------------------------------------------------------------------- */

/* What ranks write to a checkpoint together: each element of each kind once, of every module. */
static void check_state(const char *words, uint32_t ranks)
{
    static struct stand s;
    uint64_t written[DTP_STATE_KIND_COUNT] = {0}, last[DTP_STATE_KIND_COUNT][8];
    memset(last, 0, sizeof last);
    set_up(&s, words);
    for (uint32_t rank = 0; rank < ranks; rank++) {
        struct dtp_binding b;
        must(bind_rank(&s, rank, &b));
        for (size_t i = 0; i < b.own_count; i++) { /* in what files hold: without the head's padding */
            const struct dtp_state_part *part = &b.own[i];
            assert_int_equal(part->begin, last[part->kind][part->module]); /* ranks hold shards in their order */
            last[part->kind][part->module] = part->end;
            written[part->kind] += part->end - part->begin;
            inside(&s, part->values, (part->end - part->begin) * dtp_element_bytes(part->element));
        }
        dtp_binding_release(&b);
    }
    bool narrow = strstr(words, "adam8bit") != NULL; /* whose blocks of 256 have the head's padding in them */
    for (int kind = 1; kind < DTP_STATE_SCALES1; kind++)
        assert_int_equal(written[kind], written[DTP_STATE_WEIGHTS]);
    for (int kind = DTP_STATE_SCALES1; kind <= DTP_STATE_SCALES2; kind++)
        assert_true(narrow ? 256 * written[kind] >= written[DTP_STATE_WEIGHTS] : written[kind] == 0);
    assert_true(written[DTP_STATE_WEIGHTS] >= dtp_transformer_count(&s.job.transformer).total);
    const struct dtp_transformer *t = &s.job.transformer;
    assert_int_equal(last[DTP_STATE_MASTER][0], (t->vocab + t->positions) * t->hidden);
    tear_down(&s);
}

static void test_state_is_written_once(void **state)
{
    (void)state;
    check_state(RUN_LLAMA "precision=bf16-mixed", 1);
    check_state(RUN_LLAMA "precision=bf16-mixed strategy=ddp gpus=2", 2);
    check_state(RUN_LLAMA "precision=bf16-mixed strategy=zero2 gpus=4", 4);
    check_state(RUN_GPT2 "precision=bf16-mixed strategy=full_shard gpus=3", 3);
    check_state(RUN_LLAMA "precision=bf16-mixed strategy=hybrid_shard shard_group=2 gpus=4", 4);
    check_state(RUN_LLAMA "precision=bf16-mixed optimizer=adam8bit", 1);
    check_state(RUN_LLAMA "precision=bf16-mixed optimizer=adam8bit strategy=full_shard gpus=3", 3);
}

/* ---- the optimizer on the host ----------------------------------------------------------------------------------- */

/* Of module 1; `dtype` DTP_DTYPE_COUNT: of none. */
static dtp_buffer_id host_buffer(struct dtp_program *program, enum dtp_content content, uint64_t bytes,
                                 enum dtp_dtype dtype)
{
    struct dtp_buffer buffer = {.name = dtp_content_text(content),
                                .bytes = bytes,
                                .owner = DTP_OWNER_OPTIMIZER,
                                .space = DTP_SPACE_HOST,
                                .layer = DTP_NO_LAYER,
                                .persistent = true,
                                .element = (uint8_t)(dtype == DTP_DTYPE_COUNT ? DTP_NO_ELEMENT : dtype + 1u),
                                .content = (uint8_t)content,
                                .module = dtp_content_is_state(content)};
    return dtp_program_add_buffer(program, &buffer);
}

static struct dtp_operand as(dtp_buffer_id buffer, uint32_t access, enum dtp_role role)
{
    struct dtp_operand operand = dtp_operand_of(buffer, access);
    operand.role = (uint8_t)role;
    return operand;
}

/* One update of block 0 whose state is all on the host. */
static struct dtp_program *host_update(const struct dtp_parameter_module *layout)
{
    struct dtp_program *program;
    uint64_t elements = layout->elements;
    assert_int_equal(dtp_program_create(0, &program, &faults), DTP_OK);
    for (int i = 0; i < DTP_PARAMETER_COUNT; i++)
        if (layout->tensor[i].exists)
            assert_true(dtp_program_add_tensor(
                program, &(struct dtp_program_tensor){1, 1, (enum dtp_parameter)i, layout->tensor[i]}));
    struct dtp_operand operands[] = {
        as(host_buffer(program, DTP_CONTENT_NONE, 4 * elements, DTP_FP32), DTP_READ, DTP_ROLE_WEIGHT_GRADIENT),
        as(host_buffer(program, DTP_CONTENT_WEIGHTS, 2 * elements, DTP_BF16), DTP_WRITE, DTP_ROLE_WEIGHT),
        as(host_buffer(program, DTP_CONTENT_MASTER, 4 * elements, DTP_FP32), DTP_UPDATE, DTP_ROLE_MASTER),
        as(host_buffer(program, DTP_CONTENT_MOMENT1, 4 * elements, DTP_FP32), DTP_UPDATE, DTP_ROLE_MOMENT1),
        as(host_buffer(program, DTP_CONTENT_MOMENT2, 4 * elements, DTP_FP32), DTP_UPDATE, DTP_ROLE_MOMENT2),
        as(host_buffer(program, DTP_CONTENT_HOST_SCALARS, 64, DTP_DTYPE_COUNT), DTP_READ, DTP_ROLE_SCALARS)};
    struct dtp_new_op op = {.kind = DTP_OP_HOST_OPTIMIZER, .stream = DTP_STREAM_HOST, .name = "block"};
    dtp_program_add_op(program, &op, operands, sizeof operands / sizeof operands[0]);
    must(dtp_program_seal(program, &faults));
    return program;
}

static void test_the_host_updates_as_the_reference_does(void **state)
{
    static struct stand s;
    struct dtp_parameter_module layout;
    struct dtp_binding b;
    struct dtp_run *run;
    double seconds;
    (void)state;
    set_up(&s, RUN_LLAMA "precision=bf16-mixed accumulate=2"); /* gradients in fp32 */
    dtp_program_destroy(s.program);
    dtp_executor_arena_release(&s.arena);
    dtp_parameter_module(&s.job.transformer, 1, 1, &layout);
    s.program = host_update(&layout);
    must(dtp_executor_arena_make(s.program, &s.arena, &faults));
    free(s.host_base);
    s.host_base = calloc(1, s.arena.host_bytes);
    assert_non_null(s.host_base);
    must(bind_rank(&s, 0, &b));
    assert_int_equal(b.ops[0].kind, DTP_BOUND_HOST);
    struct dtp_adamw_args *g = &b.ops[0].arguments.host.adamw;
    assert_int_equal(g->count, layout.elements);
    assert_true(g->range_count > 0 && g->gradient_element == DTP_ELEMENT_FP32 && g->weight_element == DTP_ELEMENT_BF16);
    struct dtp_step_scalars *scalars = (struct dtp_step_scalars *)(uintptr_t)g->scalars;
    *scalars =
        (struct dtp_step_scalars){.learning_rate = 1e-2f, .correction1 = 0.1f, .correction2 = 0.05f, .clip_scale = 1};
    float *wanted = calloc(3 * layout.elements, sizeof *wanted);
    uint16_t *weights = calloc(layout.elements, sizeof *weights);
    assert_true(wanted && weights);
    for (uint64_t i = 0; i < layout.elements; i++) {
        ((float *)(uintptr_t)g->gradient)[i] = (float)(i % 7) - 3;
        g->master[i] = wanted[i] = (float)(i % 5) / 8;
    }
    struct dtp_adamw_args reference = *g;
    reference.master = wanted;
    reference.moment1 = wanted + layout.elements;
    reference.moment2 = wanted + 2 * layout.elements;
    reference.weights = weights;
    assert_int_equal(dtp_reference_adamw(NULL, &reference, NULL), 0);
    must(dtp_run_create(&b, false, &run, &faults));
    must(dtp_run_begin(run, DTP_RUN_PLAIN, &faults));
    must(dtp_run_finish(run, &seconds, &faults));
    for (uint64_t i = 0; i < layout.elements; i++)
        assert_true(fabs((double)(g->master[i] - wanted[i])) < 1e-6);
    free(wanted);
    free(weights);
    dtp_run_destroy(run);
    dtp_binding_release(&b);
    tear_down(&s);
}

/* ---- refusals ---------------------------------------------------------------------------------------------------- */

/* The first stage of scenarios/two-stages.set with the first `old` replaced; bound, it is refused with `said`. */
static void refused_stage(const char *old, const char *new, const char *said)
{
    static char text[1 << 16], changed[1 << 16];
    static struct stand s;
    struct dtp_program_set set;
    struct dtp_binding b;
    FILE *file = fopen(TEST_SOURCE_DIR "/scenarios/two-stages.set", "r");
    assert_non_null(file);
    text[fread(text, 1, sizeof text - 1, file)] = '\0';
    fclose(file);
    const char *at = strstr(text, old);
    assert_non_null(at);
    int bytes = snprintf(changed, sizeof changed, "%.*s%s%s", (int)(at - text), text, new, at + strlen(old));
    faults.count = 0;
    must(dtp_program_set_parse_text("stages", changed, (size_t)bytes, &set, &faults));
    set_up(&s, RUN_LLAMA "precision=fp32");
    dtp_program_destroy(s.program);
    dtp_executor_arena_release(&s.arena);
    s.program = set.roles[0].program;
    must(dtp_executor_arena_make(s.program, &s.arena, &faults));
    assert_int_equal(bind_rank(&s, 0, &b), DTP_BAD_INPUT);
    if (!strstr(faults.text[0], said))
        fail_msg("%s, without \"%s\"", faults.text[0], said);
    set.roles[0].program = NULL;
    dtp_program_set_release(&set);
    tear_down(&s);
}

/* Texts of two stages in which one number is another: nothing of them may reach a kernel. */
static void test_shapes_without_room_are_refused(void **state)
{
    static const struct {
        const char *old, *new, *said;
    } edits[] = {{"n 16 k 50 bytes", "n 16 k 70 bytes", "differ in the tokens of a batch, a sequence or a vocabulary"},
                 {"n 16 k 50 bytes", "n 17 k 50 bytes", "has no operand"},
                 {"tokens 16 queries 8", "tokens 16 queries 5", "differ in the tokens of a batch"},
                 {"queries 8 kernels 1 kernel fused name \"rotary", "queries 9 kernels 1 kernel fused name \"rotary",
                  "differ in"},
                 {"form rms_norm", "form layer_norm", "norm \"norm 1\" (operation 4) has no operand \"statistics\""},
                 {"form rms_norm", "form swiglu", "norm \"norm 1\" (operation 4) has no operand \"input\""},
                 {"n 40 bytes", "n 41 bytes", "activation \"activation\" (operation 11) has no operand"},
                 {"m 16 n 48 k 16", "m 16 n 48 k 17", "matmul \"qkv\" (operation 5) has no operand"},
                 {"heads 2 kv_heads 2 head_dim 8 queries 8 keys 8", "heads 3 kv_heads 2 head_dim 8 queries 8 keys 8",
                  "attention \"attention\" (operation 7) has no operand"},
                 {"op 2 mark compute name \"forward\"",
                  "op 2 cast compute reads 0:input writes 0:result tokens 4503599627370497p10 name \"wraps\"",
                  "cast \"wraps\" (operation 2) has no operand"},
                 {"bytes 1024 owner activations space device pool compute layer 0 dtype fp32\nbuffer 15",
                  "bytes 512 owner activations space device pool compute layer 0 dtype bf16\nbuffer 15",
                  "norm \"norm 1\" (operation 4) has no operand \"result\""},
                 {"\"host results\" bytes 64 owner workspace space host",
                  "\"host results\" bytes 64 owner workspace space device", "must be in space host"},
                 {"heads 2 kv_heads 2 head_dim 8 queries 8 kernels 1 kernel fused name \"rotary\"",
                  "kv_heads 2 head_dim 8 queries 8 kernels 1 kernel fused name \"rotary\"",
                  "rotary \"rotary\" (operation 6) has no operand \"result\""},
                 {"rows 16 columns 40", "rows 99 columns 40", "not the size of its tensors"}};
    (void)state;
    for (size_t i = 0; i < sizeof edits / sizeof *edits; i++)
        refused_stage(edits[i].old, edits[i].new, edits[i].said);
}

static void test_a_program_without_roles_is_refused(void **state)
{
    static struct stand s;
    struct dtp_program *foreign;
    struct dtp_binding b;
    (void)state;
    set_up(&s, RUN_LLAMA "precision=fp32");
    assert_int_equal(dtp_program_create(0, &foreign, &faults), DTP_OK);
    struct dtp_buffer buffer = {
        .name = "x", .bytes = 4096, .owner = DTP_OWNER_ACTIVATIONS, .layer = DTP_NO_LAYER, .persistent = true};
    dtp_buffer_id x = dtp_program_add_buffer(foreign, &buffer);
    struct dtp_operand operand = dtp_operand_of(x, DTP_UPDATE);
    dtp_program_add_op(foreign, &(struct dtp_new_op){.kind = DTP_OP_NORM, .layer = DTP_NO_LAYER, .name = "norm 1"},
                       &operand, 1);
    must(dtp_program_seal(foreign, &faults));
    struct dtp_program *own = s.program;
    s.program = foreign;
    assert_int_equal(bind_rank(&s, 0, &b), DTP_BAD_INPUT);
    assert_non_null(strstr(faults.text[0], "norm \"norm 1\" (operation 0) has no operand"));
    s.program = own;
    dtp_program_destroy(foreign);
    tear_down(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_shapes_without_room_are_refused),
                                       cmocka_unit_test(test_matmuls_stay_in_the_arena),
                                       cmocka_unit_test(test_exchanged_gradients_are_added_up),
                                       cmocka_unit_test(test_any_vocabulary_is_aligned),
                                       cmocka_unit_test(test_decay_is_of_matrices),
                                       cmocka_unit_test(test_state_is_written_once),
                                       cmocka_unit_test(test_the_host_updates_as_the_reference_does),
                                       cmocka_unit_test(test_a_program_without_roles_is_refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
