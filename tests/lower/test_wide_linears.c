/* Linears that stay in bf16 in every layer beside others in torchao's fp8 (torchtitan's filter_fqns): what they
 * multiply, cast and keep by hand; programs against formulas over random plans. */
#include "closed/closed_form.h"
#include "lower/lower.h"
#include "plan/rules.h"
#include "program/verify.h"
#include "runtime/runtimes.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "lib/lowered_job.h"
#include "lib/random_mixed.h"

#define K_AND_V (1u << DTP_TARGET_K | 1u << DTP_TARGET_V)
#define TOKENS 256u
#define LAYERS 4u

static struct dtp_faults faults;

static struct dtp_plan asked(uint32_t linears)
{
    struct dtp_plan plan = dtp_plan_default();
    plan.strategy = DTP_FULL_SHARD, plan.sequence = 128, plan.micro_batch = 2, plan.compile = true;
    assert_true(dtp_precision_recipe("fp8-rowwise", &plan.precision));
    plan.bf16_linears = linears;
    return plan;
}

/* h 64, f 256, 4 heads of 16, 2 of them for k and v. */
static struct dtp_transformer model(void)
{
    struct dtp_transformer t = dtp_transformer_default();
    t.layers = LAYERS, t.hidden = 64, t.heads = 4, t.kv_heads = 2, t.head_dim = 16, t.vocab = 1024, t.ffn = 256;
    return t;
}

static struct dtp_program *lowered(const struct dtp_cluster *cluster, struct dtp_plan *plan)
{
    const struct dtp_transformer t = model();
    resolve_plan(plan, &t, cluster);
    return lowered_job(&t, cluster, plan);
}

/* FLOPs of matmuls in 8 bits. */
static double narrow_flops(const struct dtp_program *program)
{
    double flops = 0;
    for (size_t i = 0; i < dtp_program_op_count(program); i++) {
        const struct dtp_op *op = &dtp_program_ops(program)[i];
        flops += op->kind == DTP_OP_MATMUL && op->demand->dtype == DTP_FP8 ? op->demand->flops : 0;
    }
    return flops;
}

static double cast_bytes(const struct dtp_program *program, const char *name)
{
    double bytes = 0;
    for (size_t i = 0; i < dtp_program_op_count(program); i++) {
        const struct dtp_op *op = &dtp_program_ops(program)[i];
        bytes += op->kind == DTP_OP_QUANTIZE && (!name || strcmp(op->name, name) == 0) ? op->demand->bytes : 0;
    }
    return bytes;
}

/* A layer's linears have 64 x (64 + 32 + 32 + 64) + 3 x 64 x 256 = 61,440 weights, k and v 4,096 of them: 6 FLOPs each
 * a token. Nothing is cast for these, and for the others as much as before. */
static void test_multiplied(void **state)
{
    (void)state;
    struct dtp_cluster cluster = test_cluster(test_h200(), 8, 8);
    struct dtp_plan all = asked(0), some = asked(K_AND_V);
    struct dtp_program *narrow = lowered(&cluster, &all), *mixed = lowered(&cluster, &some);
    assert_true(narrow_flops(narrow) == 6.0 * TOKENS * LAYERS * 61440);
    assert_true(narrow_flops(mixed) == 6.0 * TOKENS * LAYERS * (61440 - 4096));
    assert_true(cast_bytes(narrow, "k") > 0 && cast_bytes(narrow, "v") > 0);
    assert_true(cast_bytes(mixed, "k") <= 0 && cast_bytes(mixed, "v") <= 0);
    assert_true(cast_bytes(narrow, NULL) - cast_bytes(narrow, "k") - cast_bytes(narrow, "v") ==
                cast_bytes(mixed, NULL));
    dtp_program_destroy(narrow);
    dtp_program_destroy(mixed);
}

/* Compiled, casts make a norm again of what the norm keeps; a linear in bf16 keeps the norm: 2 x 64 bytes a token. What
 * is gathered is bf16 either way. */
static void test_kept(void **state)
{
    (void)state;
    struct dtp_cluster cluster = test_cluster(test_h200(), 8, 8);
    const struct dtp_transformer t = model();
    struct dtp_live_bytes live[2];
    struct dtp_communication sent[2];
    for (int i = 0; i < 2; i++) {
        struct dtp_plan plan = asked(i ? K_AND_V : 0);
        struct dtp_program *program = lowered(&cluster, &plan);
        live_bytes_of(program, t.layers, &live[i]);
        dtp_closed_form_communication(&t, &cluster, &plan, &sent[i]);
        dtp_program_destroy(program);
    }
    assert_int_equal(live[1].phase_bytes[DTP_PHASE_LOSS][DTP_OWNER_ACTIVATIONS] -
                         live[0].phase_bytes[DTP_PHASE_LOSS][DTP_OWNER_ACTIVATIONS],
                     LAYERS * TOKENS * 2 * 64);
    assert_int_equal(sent[0].total_bytes, sent[1].total_bytes);
}

/* Time by formulas: matmuls of wider linears take longer, casts of fewer less, as the program's do. */
static void test_random_plans(void **state)
{
    (void)state;
    random_seed();
    int checked = 0, reduced = 0;
    while (checked < 60) {
        struct random_job job;
        assert_true(random_job(&job));
        job.plan = job.asked;
        job.plan.runtime = &dtp_runtime_torch, job.plan.strategy = DTP_FULL_SHARD, job.plan.fsdp1 = false;
        job.plan.offload = DTP_OFFLOAD_NONE, job.plan.shard_group = 0, job.plan.reshard_group = 0;
        job.plan.adapters.rank = 0, job.cluster.gpu = test_h200();
        job.transformer.vocab &= ~UINT64_C(127), job.transformer.ffn &= ~UINT64_C(15);
        assert_true(dtp_precision_recipe(random_bool() ? "fp8-rowwise" : "fp8-rowwise-gw-hp", &job.plan.precision));
        job.plan.fused_qkv = job.plan.fused_gate_up = false;
        struct dtp_plan narrow = job.plan;
        job.plan.bf16_linears = 1 + (uint32_t)random_below(DTP_TARGETS_ALL - 1);
        struct dtp_program *program;
        if (dtp_plan_resolve(&job.plan, &job.transformer, &job.cluster, NULL) != DTP_OK ||
            dtp_plan_resolve(&narrow, &job.transformer, &job.cluster, NULL) != DTP_OK ||
            dtp_lower(&job.transformer, &job.cluster, &job.plan, 0, &program, NULL) != DTP_OK)
            continue;
        struct dtp_program_totals totals;
        struct dtp_communication sent;
        dtp_program_sum(program, &totals);
        assert_int_equal(dtp_program_verify(program, NULL), DTP_OK);
        dtp_closed_form_communication(&job.transformer, &job.cluster, &job.plan, &sent);
        for (int i = 0; i < DTP_COLLECTIVE_COUNT; i++)
            assert_int_equal(totals.sent_bytes[i], sent.bytes[i]);
        double closed = dtp_closed_form_hardware_flops(&job.transformer, &job.cluster, &job.plan);
        assert_true(fabs((totals.matmul_flops + totals.attention_flops) / closed - 1) < 1e-12);
        reduced += narrow_flops(program) > 0;
        dtp_program_destroy(program);
        checked++;
    }
    assert_true(reduced > 30);
}

static void test_refused(void **state)
{
    (void)state;
    static const struct {
        const char *precision, *words;
        uint32_t linears;
        bool gathers, fused;
    } rows[] = {{"bf16-mixed", "is for fp8 under FSDP2", K_AND_V, false, false},
                {"fp8-current", "chooses among torchao's linears", K_AND_V, false, false},
                {"fp8-rowwise", "leaves none in fp8", DTP_TARGETS_ALL, false, false},
                {"fp8-tensorwise", "gathered in two formats", K_AND_V, true, false},
                {"fp8-rowwise", "names a part of a fused linear", K_AND_V, false, true}};
    struct dtp_cluster cluster = test_cluster(test_h200(), 8, 8);
    const struct dtp_transformer t = model();
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct dtp_plan plan = asked(rows[i].linears);
        assert_true(dtp_precision_recipe(rows[i].precision, &plan.precision));
        plan.precision.fp8_all_gather = rows[i].gathers, plan.fused_qkv = rows[i].fused;
        memset(&faults, 0, sizeof faults);
        assert_int_equal(dtp_plan_resolve(&plan, &t, &cluster, &faults), DTP_BAD_INPUT);
        bool said = false;
        for (size_t f = 0; f < faults.count && f < DTP_FAULTS_KEPT; f++)
            said |= strstr(faults.text[f], rows[i].words) != NULL;
        if (!said)
            fail_msg("%s: %s", rows[i].words, faults.text[0]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_multiplied), cmocka_unit_test(test_kept),
                                       cmocka_unit_test(test_random_plans), cmocka_unit_test(test_refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
