/* What the executor's hooks make of gradients is what PyTorch's make of them: the operations of one block's sum, as
 * they are lowered and bound for two ranks, on the gradients of make_hooks.py; collectives are made here, by hand. What
 * PowerSGD makes of shards, which PyTorch has no hook for, is what the same algorithm, written here once more, makes of
 * their sum. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <inttypes.h>

#include "bind/bind.h"
#include "kernels/element.h"
#include "lower/lower.h"
#include "lib/run_fixture.h"
#include "runtime/dtplan/executor_factors.h"

enum { RANKS = 2, STEPS = 3, EVERY = 5, TENSORS = 6, MOST = 4096, SHARD = 9728 };
#define MODEL "gpus=2 precision=fp32 layers=1 hidden=16 heads=2 kv_heads=2 ffn=32 vocab=64 seq=8 strategy=ddp "
static const enum dtp_parameter tensors[TENSORS] = {DTP_PARAMETER_NORM1, DTP_PARAMETER_QKV, DTP_PARAMETER_OUTPUT,
                                                    DTP_PARAMETER_NORM2, DTP_PARAMETER_UP,  DTP_PARAMETER_DOWN};
static struct dtp_faults faults;

struct stand {
    struct dtp_world world; /* nobody is met */
    struct dtp_binding binding;
    char *device_base, *host_base;
};
static struct dtp_job job;
static struct dtp_program *program;
static struct dtp_executor_arena arena;
static struct dtp_device *device;
static struct stand stands[RANKS];
static struct dtp_parameter_module block;
static uint32_t apart; /* ranks from one copy to the next: of hybrid_shard those of a copy */

static void must(enum dtp_status status)
{
    if (status != DTP_OK)
        fail_msg("%s", faults.text[0]);
}

/* As make_hooks.py draws them. */
static float drawn(uint64_t seed, uint64_t index)
{
    uint64_t number = (index * 2654435761u + seed * 40503 + 12345) & UINT32_MAX;
    number = ((number ^ (number >> 15)) * 2246822519u) & UINT32_MAX;
    number = (number ^ (number >> 13)) & 0xffffff;
    return (float)((double)number / 0x1p24 - 0.5);
}

static void set_up(const char *words)
{
    memset(&faults, 0, sizeof faults);
    run_job(words, &job);
    must(dtp_lower(&job.transformer, &job.cluster, &job.plan, 0, &program, &faults));
    must(dtp_executor_arena_make(program, &arena, &faults));
    must(dtp_device_host_create(&(struct dtp_device_options){.threads = 1}, &device, &faults));
    apart = job.plan.strategy == DTP_HYBRID_SHARD ? job.plan.shard_group : 1;
    dtp_program_module(program, 1, &block);
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        struct stand *s = &stands[rank];
        *s = (struct stand){.world.ranks = {.rank = apart * rank, .world = apart * RANKS}};
        s->device_base = calloc(1, arena.device_bytes);
        s->host_base = calloc(1, arena.host_bytes);
        assert_true(s->device_base && s->host_base);
        struct dtp_bind_job bind = {.program = program,
                                    .arena = &arena,
                                    .device = device,
                                    .device_base = s->device_base,
                                    .host_base = s->host_base,
                                    .rank = apart * rank,
                                    .world = &s->world};
        must(dtp_bind(&bind, &s->binding, &faults));
    }
}

static void tear_down(void)
{
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        dtp_binding_release(&stands[rank].binding);
        free(stands[rank].device_base);
        free(stands[rank].host_base);
    }
    device->verbs->destroy(device);
    dtp_executor_arena_release(&arena);
    dtp_program_destroy(program);
}

/* Of the block, on the stream of sums. */
static bool is_of_the_sum(size_t i)
{
    const struct dtp_op *op = &dtp_program_ops(program)[i];
    return op->stream == (apart > 1 ? DTP_STREAM_REPLICATE : DTP_STREAM_REDUCE) && op->layer == 0;
}

/* The block's whole gradients, which the first of these operations reads. */
static float *gradients(const struct stand *s)
{
    for (size_t i = 0; i < s->binding.op_count; i++) {
        const struct dtp_op *op = &dtp_program_ops(program)[i];
        const struct dtp_operand *operands = dtp_program_operands(program, op);
        for (uint32_t k = 0; is_of_the_sum(i) && k < op->operand_count; k++)
            if (operands[k].role == DTP_ROLE_INPUT)
                return dtp_binding_address(&s->binding, operands[k].buffer);
    }
    fail_msg("nothing is summed");
    return NULL;
}

static void start_factors(struct stand *s)
{
    struct dtp_executor_factors f;
    float *q = dtp_binding_address(&s->binding, s->binding.map.module[1][DTP_EXECUTOR_FACTOR_Q]);
    dtp_executor_factors_of(&block, job.plan.powersgd_rank, &f);
    for (uint32_t i = 0; q && i < f.count; i++)
        for (uint32_t which = 0; which < TENSORS; which++)
            for (uint64_t e = 0; block.tensor[tensors[which]].offset_elements == f.factor[i].begin &&
                                 e < f.factor[i].rank * f.factor[i].columns;
                 e++)
                q[f.factor[i].q + e] = drawn(77 + which, e);
}

static void gather(const struct dtp_collective_args *const *g)
{
    for (uint32_t from = 0; from < RANKS; from++)
        for (uint32_t to = 0; to < RANKS; to++)
            memcpy((char *)g[to]->result + from * (g[from]->bytes / RANKS), g[from]->input, g[from]->bytes / RANKS);
}

static void add_up(size_t op)
{
    const struct dtp_collective_args *g[RANKS];
    for (uint32_t rank = 0; rank < RANKS; rank++)
        g[rank] = &stands[rank].binding.ops[op].arguments.collective;
    if (g[0]->collective == DTP_ALL_GATHER) {
        gather(g);
        return;
    }
    assert_int_equal(g[0]->collective, DTP_ALL_REDUCE);
    for (uint64_t i = 0; i < g[0]->bytes / dtp_element_bytes(g[0]->element); i++) {
        double sum = dtp_load(g[0]->input, g[0]->element, i) + dtp_load(g[1]->input, g[0]->element, i);
        for (uint32_t rank = 0; rank < RANKS; rank++)
            dtp_store(g[rank]->result, g[rank]->element, i, sum);
    }
}

static void compute(const struct dtp_bound_op *op)
{
    struct dtp_kernels *k = &device->kernels;
    int code = 1;
    switch (op->kernel) {
#define X(name, args)                                                                                                  \
    case DTP_KERNEL_##name: code = k->name(k->self, &op->arguments.name, op->stream); break;
        DTP_KERNEL_TABLE(X)
#undef X
    default: break;
    }
    assert_int_equal(code, 0);
}

static void run_sum(void)
{
    for (size_t i = 0; i < stands[0].binding.op_count; i++) {
        const struct dtp_bound_op *op = &stands[0].binding.ops[i];
        if (is_of_the_sum(i) && op->kind == DTP_BOUND_COLLECTIVE)
            add_up(i);
        for (uint32_t rank = 0; rank < RANKS && is_of_the_sum(i) && op->kind == DTP_BOUND_COMPUTE; rank++)
            compute(&stands[rank].binding.ops[i]);
    }
}

static void sum_once(uint32_t step)
{
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        float *values = gradients(&stands[rank]);
        for (uint32_t which = 0; which < TENSORS; which++) {
            const struct dtp_parameter_tensor *t = &block.tensor[tensors[which]];
            for (uint64_t e = 0; e < t->rows * t->columns; e++)
                values[t->offset_elements + e] = drawn(1000 * (which + 1) + 10 * step + rank, e) / RANKS;
        }
    }
    run_sum();
}

/* The next line of the file is of that hook, and every fifth element is as it says, to `most` of the largest; both
 * ranks have the same. */
static void compare(FILE *file, const char *name, double most)
{
    const float *own = gradients(&stands[0]), *other = gradients(&stands[1]);
    static double theirs[MOST];
    char word[32];
    size_t place = 0, count = 0, end = 0;
    double largest = 0;
    assert_int_equal(fscanf(file, "%31s", word), 1);
    assert_string_equal(word, name);
    for (uint32_t which = 0; which < TENSORS; which++)
        end += (size_t)(block.tensor[tensors[which]].rows * block.tensor[tensors[which]].columns);
    count = (end + EVERY - 1) / EVERY;
    assert_true(count <= MOST);
    for (size_t i = 0; i < count; i++) {
        assert_int_equal(fscanf(file, "%lf", &theirs[i]), 1);
        largest = fmax(largest, fabs(theirs[i]));
    }
    for (uint32_t which = 0; which < TENSORS; which++) {
        const struct dtp_parameter_tensor *t = &block.tensor[tensors[which]];
        for (uint64_t e = 0; e < t->rows * t->columns; e++, place++) {
            double value = (double)own[t->offset_elements + e];
            assert_true(own[t->offset_elements + e] == other[t->offset_elements + e]);
            if (place % EVERY == 0 && !(fabs(value - theirs[place / EVERY]) <= most * largest))
                fail_msg("%s: element %zu is %.7g, not %.7g", name, place, value, theirs[place / EVERY]);
        }
    }
}

/* PyTorch divides behind its cast, we before: with two ranks the same numbers. Factors of rank 2 are made orthonormal
 * by Gram-Schmidt there, those of rank 4 by Householder, with other vectors of the same span: so products are the same
 * but for rounding. With rank 4 the output projection is not worth it, and is sent as it is. Codes of 8 bits are
 * the same where quotients are not halfway between two: all are. */
static void test_hooks(void **state)
{
    static const struct {
        const char *words, *name;
        double most;
    } hooks[] = {{MODEL "comm_hook=fp16", "fp16", 5e-7},
                 {MODEL "comm_hook=bf16", "bf16", 5e-7},
                 {MODEL "comm_hook=powersgd powersgd_rank=2", "powersgd_2", 2e-5},
                 {MODEL "comm_hook=powersgd powersgd_rank=4", "powersgd_4", 2e-5},
                 {MODEL "comm_hook=int8", "int8", 5e-7}};
    FILE *file = fopen(TEST_SOURCE_DIR "/tests/golden/hooks.golden", "r");
    (void)state;
    assert_non_null(file);
    for (size_t i = 0; i < sizeof hooks / sizeof hooks[0]; i++) {
        set_up(hooks[i].words);
        for (uint32_t rank = 0; rank < RANKS; rank++)
            start_factors(&stands[rank]);
        for (uint32_t step = 0; step < STEPS; step++) {
            sum_once(step);
            compare(file, hooks[i].name, hooks[i].most);
        }
        tear_down();
    }
    fclose(file);
}

/* ---- shards ------------------------------------------------------------------------------------------------------ */

/* One matrix of a shard, of which all copies' gradients and losses are summed: E, then P and Q of E, and E less what
 * they make. In doubles, of arrays as large as they may be. */
struct reference {
    double e[SHARD], p[SHARD], q[SHARD];
};

static void orthonormal(double *column, size_t rows, size_t rank, size_t row_stride, size_t column_stride)
{
    for (size_t k = 0; k < rank; k++) {
        double *own = column + k * column_stride, norm = 0;
        for (size_t before = 0; before < k; before++) {
            double *other = column + before * column_stride, product = 0;
            for (size_t i = 0; i < rows; i++)
                product += own[i * row_stride] * other[i * row_stride];
            for (size_t i = 0; i < rows; i++)
                own[i * row_stride] -= product * other[i * row_stride];
        }
        for (size_t i = 0; i < rows; i++)
            norm += own[i * row_stride] * own[i * row_stride];
        for (size_t i = 0; i < rows; i++)
            own[i * row_stride] /= sqrt(norm);
    }
}

/* Adds what was lost to `sum`, leaves there what is summed now. */
static void factor_by_hand(struct reference *r, const struct dtp_executor_factor *f, double *sum)
{
    orthonormal(r->q, f->columns, f->rank, 1, f->columns);
    for (size_t i = 0; i < f->rows; i++)
        for (size_t k = 0; k < f->rank; k++) {
            r->p[i * f->rank + k] = 0;
            for (size_t j = 0; j < f->columns; j++)
                r->p[i * f->rank + k] +=
                    (r->e[i * f->columns + j] + sum[i * f->columns + j]) * r->q[k * f->columns + j];
        }
    orthonormal(r->p, f->rows, f->rank, f->rank, 1);
    for (size_t k = 0; k < f->rank; k++)
        for (size_t j = 0; j < f->columns; j++) {
            r->q[k * f->columns + j] = 0;
            for (size_t i = 0; i < f->rows; i++)
                r->q[k * f->columns + j] +=
                    (r->e[i * f->columns + j] + sum[i * f->columns + j]) * r->p[i * f->rank + k];
        }
    for (size_t i = 0; i < f->rows; i++)
        for (size_t j = 0; j < f->columns; j++) {
            double product = 0;
            for (size_t k = 0; k < f->rank; k++)
                product += r->p[i * f->rank + k] * r->q[k * f->columns + j];
            r->e[i * f->columns + j] += sum[i * f->columns + j] - product;
            sum[i * f->columns + j] = product;
        }
}

/* Four ranks, of which two have the first shard: what both make of it is what is made of the sum by hand, and what is
 * not factored is the plain sum. Gradients are numbers of their own in each element of the shard, padding too. */
static void test_shards(void **state)
{
    static struct reference references[DTP_PARAMETER_COUNT];
    static double sum[SHARD];
    struct dtp_executor_factors f;
    (void)state;
    set_up("gpus=4 precision=fp32 layers=1 hidden=48 heads=2 kv_heads=2 ffn=64 vocab=64 seq=8 strategy=hybrid_shard "
           "shard_group=2 comm_hook=powersgd powersgd_rank=4");
    dtp_executor_factors_of(&block, 4, &f);
    assert_true(f.count == 2 && f.run_count == 1 && block.shard_elements <= SHARD);
    assert_int_equal(f.factor[1].begin, f.factor[0].rows * f.factor[0].columns);
    for (uint32_t rank = 0; rank < RANKS; rank++)
        for (uint32_t i = 0; i < f.count; i++)
            for (uint64_t e = 0; e < f.factor[i].rank * f.factor[i].columns; e++) {
                float *q = dtp_binding_address(&stands[rank].binding,
                                               stands[rank].binding.map.module[1][DTP_EXECUTOR_FACTOR_Q]);
                q[f.factor[i].q + e] = drawn(77 + i, e);
                references[i].q[e] = (double)drawn(77 + i, e);
            }
    for (uint32_t step = 0; step < STEPS; step++) {
        for (uint64_t e = 0; e < block.shard_elements; e++) {
            sum[e] = 0;
            for (uint32_t rank = 0; rank < RANKS; rank++) {
                float value = drawn(10 * step + rank, e);
                gradients(&stands[rank])[e] = value;
                sum[e] += (double)value;
            }
        }
        run_sum();
        for (uint32_t i = 0; i < f.count; i++)
            factor_by_hand(&references[i], &f.factor[i], sum + f.factor[i].begin);
        for (uint64_t e = 0; e < block.shard_elements; e++) {
            float own = gradients(&stands[0])[e], other = gradients(&stands[1])[e];
            if (own != other || !(fabs((double)own - sum[e]) <= 2e-5))
                fail_msg("step %u, element %" PRIu64 ": %.7g and %.7g, not %.7g", step, e, (double)own, (double)other,
                         sum[e]);
        }
    }
    tear_down();
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_hooks), cmocka_unit_test(test_shards)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
