/* Loss and every gradient of a whole model against PyTorch's autograd (golden/make_goldens.py), on whatever device the
 * test program makes. */
#ifndef TEST_GOLDEN_MODEL_H
#define TEST_GOLDEN_MODEL_H

#include "runtime/dtplan/batch_layout.h"
#include "train/batches.h"
#include "kernels/element.h"
#include "lower/lower.h"
#include "train/run.h"
#include "lib/golden_words.h"
#include "lib/run_fixture.h"

#define GOLDEN_MOST_TOKENS 256

struct golden_tensor {
    uint64_t module, count;
    enum dtp_parameter which;
    double bf16_apart; /* PyTorch's own gradient in bf16 from the one in double: norm of the error over the norm */
    const float *weights, *gradients; /* the latter NULL of one that is frozen */
};

struct golden {
    char *bytes;
    double loss, bf16_loss;
    int32_t tokens[GOLDEN_MOST_TOKENS], targets[GOLDEN_MOST_TOKENS];
    uint64_t rows;
    struct golden_tensor tensors[64];
    size_t count;
};

static struct dtp_faults golden_faults;
static const char *golden_folder = TEST_SOURCE_DIR "/tests/golden";
/* The device that a test program compares, made for each model. */
static enum dtp_status golden_device(struct dtp_device **out, struct dtp_faults *faults);

/* ---- reading ----------------------------------------------------------------------------------------------------- */

static char *read_row(char *at, const char *word, int32_t *out, uint64_t *rows)
{
    assert_int_equal(strncmp(at, word, strlen(word)), 0);
    at += strlen(word);
    for (*rows = 0; *at != '\n'; ++*rows) {
        assert_true(*rows < GOLDEN_MOST_TOKENS);
        out[*rows] = (int32_t)strtol(at, &at, 10);
    }
    return at + 1;
}

static enum dtp_parameter parameter_called(const char *name)
{
    for (int i = 0; i < DTP_PARAMETER_COUNT; i++)
        if (strcmp(dtp_parameter_text((enum dtp_parameter)i), name) == 0)
            return (enum dtp_parameter)i;
    fail_msg("no parameter is called \"%s\"", name);
    return DTP_PARAMETER_COUNT;
}

static char *read_tensor(struct golden *g, char *at)
{
    struct golden_tensor *t = &g->tensors[g->count++];
    uint64_t rows, columns;
    char name[64], *line_end = strchr(at, '\n');
    bool frozen = strncmp(at, "frozen", 6) == 0;
    uint64_t copies = frozen ? 1 : 2;
    assert_int_equal(sscanf(at, "%*s %lu %lu %lu %lf %63[^\n]", &t->module, &rows, &columns, &t->bf16_apart, name), 5);
    t->which = parameter_called(name);
    t->count = rows * columns;
    float *values = malloc(copies * t->count * sizeof *values); /* lines have any length: what follows is not aligned */
    assert_non_null(values);
    memcpy(values, line_end + 1, copies * t->count * sizeof *values);
    t->weights = values;
    t->gradients = frozen ? NULL : values + t->count;
    return line_end + 1 + copies * t->count * sizeof *values;
}

static void read_golden(const char *name, struct golden *g)
{
    char path[4096];
    memset(g, 0, sizeof *g);
    snprintf(path, sizeof path, "%s/%s.golden", golden_folder, name);
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    g->bytes = calloc(1, 1 << 20);
    assert_non_null(g->bytes);
    assert_true(fread(g->bytes, 1, (1 << 20) - 1, file) > 0);
    fclose(file);
    assert_int_equal(sscanf(g->bytes, "golden 2 loss %lf bf16 %lf", &g->loss, &g->bf16_loss), 2);
    char *at = strchr(g->bytes, '\n') + 1;
    at = read_row(at, "tokens", g->tokens, &g->rows);
    at = read_row(at, "targets", g->targets, &g->rows);
    while (strncmp(at, "tensor ", 7) == 0 || strncmp(at, "frozen ", 7) == 0)
        at = read_tensor(g, at);
    assert_int_equal(strncmp(at, "end\n", 4), 0);
}

static void release_golden(struct golden *g)
{
    for (size_t i = 0; i < g->count; i++)
        free((void *)(uintptr_t)g->tensors[i].weights);
    free(g->bytes);
}

/* ---- one step ---------------------------------------------------------------------------------------------------- */

struct stand {
    struct dtp_job job;
    struct dtp_program *program;
    struct dtp_executor_arena arena;
    struct dtp_device *device;
    void *device_base, *host_base;
    struct dtp_binding binding;
    struct dtp_run *run;
};

static void must(enum dtp_status status)
{
    if (status != DTP_OK)
        fail_msg("%s", golden_faults.text[0]);
}

static void set_up(struct stand *s, const char *words)
{
    memset(s, 0, sizeof *s);
    run_job(words, &s->job);
    must(dtp_lower(&s->job.transformer, &s->job.cluster, &s->job.plan, 0, &s->program, &golden_faults));
    must(dtp_executor_arena_make(s->program, &s->arena, &golden_faults));
    must(golden_device(&s->device, &golden_faults));
    must(s->device->verbs->allocate(s->device, s->arena.device_bytes, &s->device_base, &golden_faults));
    must(s->device->verbs->allocate_host(s->device, s->arena.host_bytes, &s->host_base, &golden_faults));
    struct dtp_bind_job job = {.program = s->program,
                               .arena = &s->arena,
                               .device = s->device,
                               .device_base = s->device_base,
                               .host_base = s->host_base,
                               .optimizer = {0.9f, 0.95f, 1e-8f, 0.1f, 0.95f}};
    must(dtp_bind(&job, &s->binding, &golden_faults));
    must(dtp_run_create(&s->binding, false, &s->run, &golden_faults));
    must(dtp_run_initialise(s->run, 1, &golden_faults));
}

static void tear_down(struct stand *s)
{
    dtp_run_destroy(s->run);
    dtp_binding_release(&s->binding);
    s->device->verbs->release(s->device, s->device_base);
    s->device->verbs->release_host(s->device, s->host_base);
    s->device->verbs->destroy(s->device);
    dtp_executor_arena_release(&s->arena);
    dtp_program_destroy(s->program);
}

static struct dtp_parameter_tensor place_of(const struct stand *s, const struct golden_tensor *t)
{
    struct dtp_parameter_module layout;
    dtp_program_module(s->program, t->module, &layout);
    assert_true(layout.tensor[t->which].exists);
    assert_int_equal(layout.tensor[t->which].rows * layout.tensor[t->which].columns, t->count);
    return layout.tensor[t->which];
}

static void copy(struct stand *s, void *to, const void *from, uint64_t bytes)
{
    void *stream = s->device->verbs->stream(s->device, DTP_STREAM_COMPUTE);
    assert_int_equal(s->device->verbs->copy(s->device, to, from, bytes, stream), 0);
    assert_int_equal(s->device->verbs->synchronise(s->device), 0);
}

static const struct dtp_state_part *part_of(const struct stand *s, uint64_t module, enum dtp_state_kind kind)
{
    for (size_t i = 0; i < s->binding.part_count; i++)
        if (s->binding.parts[i].module == module && s->binding.parts[i].kind == kind)
            return &s->binding.parts[i];
    fail_msg("module %lu has no state of kind %d", module, (int)kind);
    return NULL;
}

/* A block's matrix that is packed lies in another module: the program's tensors say which. False: it is not packed. */
static bool write_packed(struct stand *s, const struct golden_tensor *t)
{
    const struct dtp_program_tensor *tensors = dtp_program_tensors(s->program);
    struct dtp_parameter_module layout;
    uint64_t module = 0;
    dtp_program_module(s->program, t->module, &layout);
    for (size_t i = 0; i < dtp_program_tensor_count(s->program); i++)
        if (tensors[i].parameter == t->which)
            module = tensors[i].first_module + t->module - 1;
    if (layout.tensor[t->which].exists)
        return false;
    dtp_program_module(s->program, module, &layout);
    uint64_t at = layout.tensor[t->which].offset_elements, blocks = t->count / DTP_NF4_BLOCK;
    uint8_t *codes = malloc(t->count / 2);
    float *largest = malloc(blocks * sizeof *largest);
    assert_true(codes && largest && layout.tensor[t->which].exists);
    struct dtp_pack4_args pack = {t->weights, codes, largest, t->count, DTP_ELEMENT_FP32};
    assert_int_equal(dtp_reference_pack4(NULL, &pack, NULL), 0);
    copy(s, (char *)part_of(s, module, DTP_STATE_WEIGHTS)->values + at, codes, t->count / 2);
    copy(s, (float *)part_of(s, module, DTP_STATE_SCALES1)->values + 2 * at / DTP_NF4_BLOCK, largest,
         blocks * sizeof *largest);
    free(codes);
    free(largest);
    return true;
}

static void write_weights(struct stand *s, const struct golden_tensor *t)
{
    if (write_packed(s, t))
        return;
    uint64_t place = place_of(s, t).saved_offset_elements, written = 0;
    for (size_t i = 0; i < s->binding.part_count; i++) {
        const struct dtp_state_part *part = &s->binding.parts[i];
        if (part->module != t->module || (part->kind != DTP_STATE_WEIGHTS && part->kind != DTP_STATE_MASTER))
            continue;
        if (place < part->begin || place >= part->end)
            continue;
        const uint64_t bytes = dtp_element_bytes(part->element);
        char *converted = malloc(t->count * bytes);
        assert_non_null(converted);
        for (uint64_t k = 0; k < t->count; k++)
            dtp_store(converted, part->element, k, (double)t->weights[k]);
        copy(s, (char *)part->values + (place - part->begin) * bytes, converted, t->count * bytes);
        free(converted);
        written++;
    }
    assert_true(written > 0);
}

static void step_with(struct stand *s, const struct golden *g, struct dtp_step_scalars scalars)
{
    struct dtp_batch_layout layout = dtp_batch_layout_of(g->rows);
    char *batch = dtp_run_host_batch(s->run, 0);
    int32_t scratch[GOLDEN_MOST_TOKENS];
    const uint64_t vocab = s->job.transformer.vocab;
    double seconds;
    assert_true(vocab <= GOLDEN_MOST_TOKENS);
    memcpy(batch + layout.tokens_offset_bytes, g->tokens, g->rows * sizeof *g->tokens);
    memcpy(batch + layout.targets_offset_bytes, g->targets, g->rows * sizeof *g->targets);
    dtp_batch_index(g->tokens, g->rows, vocab, (int32_t *)(batch + layout.order_offset_bytes),
                    (int32_t *)(batch + layout.starts_offset_bytes), (int32_t *)(batch + layout.distinct_offset_bytes),
                    scratch);
    *dtp_run_host_scalars(s->run) = scalars;
    must(dtp_run_begin(s->run, DTP_RUN_PLAIN, &golden_faults));
    must(dtp_run_finish(s->run, &seconds, &golden_faults));
}

/* A learning rate of 0 leaves the weights as they are. */
static void step(struct stand *s, const struct golden *g)
{
    step_with(s, g, (struct dtp_step_scalars){.correction1 = 0.1f, .correction2 = 0.05f, .clip_scale = 1});
}

/* What the optimizer read, which is still there: nothing is written after it. */
static const struct dtp_adamw_args *optimizer_of(const struct stand *s, uint64_t module)
{
    for (size_t i = 0; i < s->binding.op_count; i++) {
        const struct dtp_bound_op *op = &s->binding.ops[i];
        uint64_t key = dtp_parameter_element_key(module, 0);
        if (op->kind == DTP_BOUND_COMPUTE && op->kernel == DTP_KERNEL_adamw && op->arguments.adamw.first_element == key)
            return &op->arguments.adamw;
    }
    fail_msg("no optimizer of module %lu", module);
    return NULL;
}

/* ---- comparing --------------------------------------------------------------------------------------------------- */

/* A copy on the host; caller frees. */
static char *elements(struct stand *s, const void *base, enum dtp_element element, uint64_t first, uint64_t count)
{
    const uint64_t bytes = dtp_element_bytes(element);
    char *values = malloc(count * bytes);
    assert_non_null(values);
    copy(s, values, (const char *)base + first * bytes, count * bytes);
    return values;
}

/* Norm of the difference over the norm of what is wanted. */
static double apart(struct stand *s, const struct golden_tensor *t)
{
    const struct dtp_adamw_args *optimizer = optimizer_of(s, t->module);
    char *values =
        elements(s, optimizer->gradient, optimizer->gradient_element, place_of(s, t).offset_elements, t->count);
    double difference = 0, wanted = 0;
    for (uint64_t i = 0; i < t->count; i++) {
        double value = dtp_load(values, optimizer->gradient_element, i), golden = (double)t->gradients[i];
        difference += (value - golden) * (value - golden);
        wanted += golden * golden;
    }
    free(values);
    return sqrt(difference / wanted);
}

static void expect_zeros(struct stand *s, const void *base, enum dtp_element element, uint64_t first, uint64_t count,
                         const char *what)
{
    char *values = elements(s, base, element, first, count);
    for (uint64_t i = 0; i < count; i++)
        if (dtp_load(values, element, i) != 0)
            fail_msg("%s: element %lu of the padding is %g", what, i, dtp_load(values, element, i));
    free(values);
}

/* Rows beyond the vocabulary: gradients exactly zero, so that nothing moves them. */
static uint64_t check_padding(struct stand *s, const struct golden_tensor *t)
{
    const struct dtp_parameter_tensor place = place_of(s, t);
    const struct dtp_adamw_args *optimizer = optimizer_of(s, t->module);
    const uint64_t first = place.offset_elements + t->count, count = place.extent_elements - t->count;
    if (!count)
        return 0;
    expect_zeros(s, optimizer->gradient, optimizer->gradient_element, first, count, "gradient");
    expect_zeros(s, optimizer->weights, optimizer->weight_element, first, count, "weights");
    expect_zeros(s, optimizer->moment1, optimizer->moment_element, first, count, "moments");
    return count;
}

static void expect_frozen(const struct stand *s, uint64_t module)
{
    for (size_t i = 0; i < s->binding.part_count; i++)
        assert_false(s->binding.parts[i].module == module && s->binding.parts[i].kind != DTP_STATE_WEIGHTS);
}

/* Tolerances are relative; of a gradient `of_bf16` times the error of PyTorch's own in bf16 on top of `tolerance`. */
static void golden_compare_model(const char *name, const char *words, double loss_tolerance, double tolerance,
                                 double of_bf16)
{
    static struct golden g;
    static struct stand s;
    double worst = 0, loss;
    uint64_t padding = 0;
    memset(&golden_faults, 0, sizeof golden_faults);
    read_golden(name, &g);
    set_up(&s, words);
    for (size_t i = 0; i < g.count; i++)
        write_weights(&s, &g.tensors[i]);
    step(&s, &g);
    loss = (double)dtp_run_host_results(s.run)->loss_sum / (double)g.rows;
    for (size_t i = 0; i < g.count; i++) {
        const struct golden_tensor *t = &g.tensors[i];
        if (!t->gradients) { /* and no state, but for the weights */
            expect_frozen(&s, t->module);
            padding++;
            continue;
        }
        const double error = apart(&s, t), allowed = tolerance + of_bf16 * t->bf16_apart;
        worst = fmax(worst, error / allowed);
        if (!(error < allowed))
            fail_msg("%s, %s: gradient of %s of module %lu is off by %g, %g is allowed", name, words,
                     dtp_parameter_text(t->which), t->module, error, allowed);
        padding += check_padding(&s, t);
    }
    assert_true(padding > 0); /* the vocabularies are odd on purpose */
    if (!(fabs(loss / g.loss - 1) < loss_tolerance))
        fail_msg("%s, %s: loss %.9g, PyTorch %.9g", name, words, loss, g.loss);
    print_message("%s: %s: loss off by %.1e, gradients by at most %.2f of what is allowed\n", s.device->name, words,
                  fabs(loss / g.loss - 1), worst);
    tear_down(&s);
    release_golden(&g);
}

/* fp32: some fifty roundings of 2^-24, of sums of up to a hundred numbers. */
static void golden_fp32(void **state)
{
    (void)state;
    golden_compare_model("llama_gqa", GOLDEN_LLAMA_GQA "precision=fp32", 1e-6, 1e-5, 0);
    golden_compare_model("llama_tied", GOLDEN_LLAMA_TIED "precision=fp32", 1e-6, 1e-5, 0);
    golden_compare_model("qwen3", GOLDEN_QWEN3 "precision=fp32", 1e-6, 1e-5, 0);
    golden_compare_model("qk_norm_unweighted", GOLDEN_UNWEIGHTED "precision=fp32", 1e-6, 1e-5, 0);
    golden_compare_model("qk_norm_unweighted", GOLDEN_UNWEIGHTED "precision=fp32 checkpointing=full", 1e-6, 1e-5, 0);
    golden_compare_model("qwen3", GOLDEN_QWEN3 "precision=fp32 checkpointing=full gradient_stream=true", 1e-6, 1e-5, 0);
    golden_compare_model("qwen3", GOLDEN_QWEN3 "precision=fp32 checkpointing=selective-matmul", 1e-6, 1e-5, 0);
    golden_compare_model("windows", GOLDEN_WINDOWS "precision=fp32", 1e-6, 1e-5, 0);
    golden_compare_model("gemma", GOLDEN_GEMMA "precision=fp32", 1e-6, 1e-5, 0);
    golden_compare_model("gemma", GOLDEN_GEMMA "precision=fp32 checkpointing=selective-matmul loss_chunk=5", 1e-6, 1e-5,
                         0);
    golden_compare_model("gpt2", GOLDEN_GPT2 "precision=fp32", 1e-6, 1e-5, 0);
    golden_compare_model("gpt2", GOLDEN_GPT2 "precision=fp32 gelu_epilogue=true loss_chunk=5 checkpointing=full", 1e-6,
                         1e-5, 0);
    golden_compare_model("llama_wide", GOLDEN_LLAMA_WIDE "precision=fp32", 1e-6, 1e-5, 0);
}

/* A bf16 number is off by up to 2^-9 of itself. PyTorch's own gradients in bf16 say what that costs each tensor; ours
 * round in other places, so that on tensors of a few dozen numbers, where little averages out, they may be off by half
 * as much again, and where PyTorch is lucky by 2^-9 twice. */
#define BF16_SHARE 1.5
#define BF16_FLOOR 0x1p-8
static void golden_bf16(void **state)
{
    (void)state;
    golden_compare_model("llama_gqa", GOLDEN_LLAMA_GQA "precision=bf16-mixed", 2e-3, BF16_FLOOR, BF16_SHARE);
    golden_compare_model("llama_tied", GOLDEN_LLAMA_TIED "precision=bf16-pure", 2e-3, BF16_FLOOR, BF16_SHARE);
    golden_compare_model("qwen3", GOLDEN_QWEN3 "precision=bf16-mixed", 2e-3, BF16_FLOOR, BF16_SHARE);
    golden_compare_model("qk_norm_unweighted", GOLDEN_UNWEIGHTED "precision=bf16-mixed", 2e-3, BF16_FLOOR, BF16_SHARE);
    golden_compare_model("windows", GOLDEN_WINDOWS "precision=bf16-mixed", 2e-3, BF16_FLOOR, BF16_SHARE);
    golden_compare_model("gemma", GOLDEN_GEMMA "precision=bf16-mixed", 2e-3, BF16_FLOOR, BF16_SHARE);
    golden_compare_model("gpt2", GOLDEN_GPT2 "precision=bf16-mixed", 2e-3, BF16_FLOOR, BF16_SHARE);
    golden_compare_model("gpt2", GOLDEN_GPT2 "precision=bf16-mixed gelu_epilogue=true", 2e-3, BF16_FLOOR, BF16_SHARE);
    golden_compare_model("llama_wide", GOLDEN_LLAMA_WIDE "precision=bf16-mixed", 2e-3, BF16_FLOOR, BF16_SHARE);
    golden_compare_model("llama_wide", GOLDEN_LLAMA_WIDE "precision=bf16-pure loss_chunk=128", 2e-3, BF16_FLOOR,
                         BF16_SHARE);
}

/* Blocks in other orders: two branches side by side, norms behind them. However the plan keeps their tensors. */
static void golden_blocks(void **state)
{
    (void)state;
    static const struct {
        const char *name, *words;
        bool gelu;
    } models[] = {{"gpt_j", GOLDEN_GPT_J, true},
                  {"falcon", GOLDEN_FALCON, true},
                  {"gpt_neox", GOLDEN_GPT_NEOX, true},
                  {"bloom", GOLDEN_BLOOM, true},
                  {"alibi", GOLDEN_ALIBI, false},
                  {"olmo2", GOLDEN_OLMO2, false},
                  {"odd_widths", GOLDEN_ODD_WIDTHS, false},
                  {"gemma2", GOLDEN_GEMMA2, false}};
    static const char *const plans[] = {"",
                                        "checkpointing=full gradient_stream=true",
                                        "checkpointing=selective-matmul gradient_stream=true loss_chunk=5",
                                        "checkpointing=selective-matmul",
                                        "checkpointing=selective-attention",
                                        "gelu_epilogue=true",
                                        "gelu_epilogue=true checkpointing=selective-matmul gradient_stream=true"};
    char words[1024];
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        for (size_t k = 0; k < sizeof plans / sizeof *plans; k++) {
            if (strstr(plans[k], "gelu_epilogue") && !models[i].gelu)
                continue;
            snprintf(words, sizeof words, "%s precision=fp32 %s", models[i].words, plans[k]);
            golden_compare_model(models[i].name, words, 1e-6, 1e-5, 0);
        }
        snprintf(words, sizeof words, "%s precision=bf16-mixed", models[i].words);
        golden_compare_model(models[i].name, words, 2e-3, BF16_FLOOR, BF16_SHARE);
    }
}

/* Latent attention, as experts below. */
static void golden_latent(void **state)
{
    (void)state;
    static const struct {
        const char *name, *words;
    } models[] = {
        {"latent", GOLDEN_LATENT}, {"latent_direct", GOLDEN_LATENT_DIRECT}, {"latent_experts", GOLDEN_LATENT_EXPERTS}};
    static const char *const plans[] = {"", "checkpointing=full gradient_stream=true", "gradient_stream=true",
                                        "checkpointing=selective-attention loss_chunk=5"};
    char words[1024];
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        for (size_t k = 0; k < sizeof plans / sizeof *plans; k++) {
            snprintf(words, sizeof words, "%s precision=fp32 %s", models[i].words, plans[k]);
            golden_compare_model(models[i].name, words, 1e-6, 1e-5, 0);
        }
        snprintf(words, sizeof words, "%s precision=bf16-mixed", models[i].words);
        golden_compare_model(models[i].name, words, 2e-3, BF16_FLOOR, BF16_SHARE);
    }
}

/* Experts: whatever is kept or on another stream, and micro-steps' sums. */
static void golden_experts(void **state)
{
    (void)state;
    static const struct {
        const char *name, *words;
    } models[] = {{"experts", GOLDEN_EXPERTS},
                  {"experts_shared", GOLDEN_EXPERTS_SHARED},
                  {"experts_norm", GOLDEN_EXPERTS_NORM},
                  {"experts_late", GOLDEN_EXPERTS_LATE},
                  {"experts_sigmoid", GOLDEN_EXPERTS_SIGMOID},
                  {"gpt_oss", GOLDEN_GPT_OSS},
                  {"llama_4", GOLDEN_LLAMA_4},
                  {"experts_groups", GOLDEN_EXPERTS_GROUPS},
                  {"experts_groups_softmax", GOLDEN_EXPERTS_GROUPS_SOFTMAX}};
    static const char *const plans[] = {"", "checkpointing=full gradient_stream=true", "gradient_stream=true",
                                        "checkpointing=selective-attention loss_chunk=5"};
    char words[1024];
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        for (size_t k = 0; k < sizeof plans / sizeof *plans; k++) {
            snprintf(words, sizeof words, "%s precision=fp32 %s", models[i].words, plans[k]);
            golden_compare_model(models[i].name, words, 1e-6, 1e-5, 0);
        }
        snprintf(words, sizeof words, "%s precision=bf16-mixed", models[i].words);
        golden_compare_model(models[i].name, words, 2e-3, BF16_FLOOR, BF16_SHARE);
    }
}

/* Adapters on all linears, on some of them, on none of a first block before its last one, and of branches side by side;
 * however the plan keeps their tensors. */
static void golden_adapters(void **state)
{
    (void)state;
    static const struct {
        const char *name, *words;
    } models[] = {{"adapted", GOLDEN_TRAINED "lora=8 lora_alpha=16 "},
                  {"adapted_packed", GOLDEN_TRAINED "lora=8 lora_alpha=16 base=nf4 "},
                  {"adapted_some", GOLDEN_QWEN3 "lora=8 lora_targets=q+v+up "},
                  {"adapted_late", GOLDEN_GPT2 "lora=8 lora_targets=down "},
                  {"adapted_parallel", GOLDEN_GPT_J_PLAIN "lora=8 lora_alpha=4 lora_targets=k+o+up "}};
    static const char *const kept[] = {"checkpointing=none", "checkpointing=full", "checkpointing=selective-attention",
                                       "checkpointing=every-2 loss_chunk=5"};
    for (size_t i = 0; i < sizeof models / sizeof *models; i++)
        for (size_t k = 0; k < sizeof kept / sizeof *kept; k++) {
            char words[640];
            snprintf(words, sizeof words, "%sprecision=fp32 %s", models[i].words, kept[k]);
            golden_compare_model(models[i].name, words, 1e-6, 1e-5, 0);
            snprintf(words, sizeof words, "%sprecision=bf16-pure %s", models[i].words, kept[k]);
            golden_compare_model(models[i].name, words, 2e-3, BF16_FLOOR, BF16_SHARE);
        }
}

#endif
