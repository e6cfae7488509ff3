/* torchtitan's experts beside tensor parallelism: who has which rows, what is sent, counted by hand. */
#include "closed/closed_form.h"
#include "program/verify.h"
#include "runtime/runtimes.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "lib/hardware.h"
#include "lib/lowered_job.h"

/* Three layers of 8 experts of which a token goes to 2, and a shared one: h 256, f 192, shared 320. Of 8 GPUs 2 have
 * parts of the same layers, with T = 2 x 128 tokens in bf16. */
#define LAYERS 3u
#define TP 2u
#define STREAM (256u * 256u * 2u) /* bytes of T rows of the model's width */
#define ROWS (2u * STREAM)        /* of the rows that all T send to experts */
#define EXPERT (3u * 256u * 192u) /* elements */

static struct dtp_transformer model(void)
{
    struct dtp_transformer t = dtp_transformer_default();
    t.layers = LAYERS, t.hidden = 256, t.heads = 4, t.kv_heads = 2, t.head_dim = 64, t.ffn = 192, t.vocab = 1000;
    t.experts = 8, t.experts_per_token = 2, t.expert_ffn = 192, t.shared_expert_ffn = 320;
    return t;
}

static struct dtp_plan asked(uint32_t ep, uint32_t etp)
{
    struct dtp_plan plan = dtp_plan_default();
    plan.strategy = DTP_FULL_SHARD, plan.sequence = 128, plan.micro_batch = 2;
    plan.tp = TP, plan.ep = ep, plan.megatron.etp = etp;
    return plan;
}

static uint64_t most_bytes(const struct dtp_program *program, const char *name)
{
    uint64_t most = 0;
    for (size_t i = 0; i < dtp_program_buffer_count(program); i++)
        if (strcmp(dtp_program_buffers(program)[i].name, name) == 0 && dtp_program_buffers(program)[i].bytes > most)
            most = dtp_program_buffers(program)[i].bytes;
    return most;
}

struct sent {
    size_t gathers, scatters, sums;
    double summed;
};

static struct sent of_tensor_ranks(const struct dtp_program *program)
{
    struct sent out = {0};
    for (size_t i = 0; i < dtp_program_op_count(program); i++) {
        const struct dtp_op *op = &dtp_program_ops(program)[i];
        if (op->stream != DTP_STREAM_TENSOR)
            continue;
        out.gathers += op->kind == DTP_OP_ALL_GATHER;
        out.scatters += op->kind == DTP_OP_REDUCE_SCATTER;
        out.sums += op->kind == DTP_OP_ALL_REDUCE;
        out.summed += op->kind == DTP_OP_ALL_REDUCE ? op->demand->sent_bytes : 0;
    }
    return out;
}

/* Attention gathers and scatters once each way; experts gather what all of the layer reads and, backward, the gradient
 * of the sum, which alone is scattered. Ends as of a dense model: embedding and head a pair each. Backward two parts of
 * shared experts are summed, and rows where experts have parts, beside 3 sums of the loss (T fp32) and 7 norms. A
 * replay gathers both again and scatters attention's. */
static void check_sent(const struct dtp_program *program, bool again, bool parts)
{
    struct sent sent = of_tensor_ranks(program);
    assert_int_equal(sent.gathers, LAYERS * (again ? 6 : 4) + 2);
    assert_int_equal(sent.scatters, LAYERS * (again ? 4 : 3) + 2);
    assert_int_equal(sent.sums, LAYERS * (parts ? 3 : 2) + 3 + 2 * LAYERS + 1);
    assert_true(sent.summed == LAYERS * (2.0 * STREAM + (parts ? ROWS : 0)) + 3 * 256 * 4 + (2 * LAYERS + 1) * 256 * 2);
}

/* Each rank has half the width of all experts, or of those of its part of the ranks, and rows of all tokens; or whole
 * experts, and rows of half the tokens. Scores, rows put back by tokens and their copies in fp32 are of all. */
static void test_rows(void **state)
{
    (void)state;
    static const uint32_t degrees[][2] = {{1, 1}, {4, 1}, {4, 2}, {2, 2}, {8, 1}};
    struct dtp_cluster cluster = test_cluster(test_h200(), 8, 8);
    const struct dtp_transformer t = model();
    for (size_t i = 0; i < 2 * sizeof degrees / sizeof *degrees; i++) {
        const uint32_t ep = degrees[i / 2][0], etp = degrees[i / 2][1];
        const bool parts = ep == 1 || etp > 1, again = i % 2;
        const uint64_t rows = parts ? ROWS : ROWS / TP;
        struct dtp_plan plan = asked(ep, etp);
        plan.checkpointing = again ? DTP_CHECKPOINT_FULL : DTP_CHECKPOINT_NONE;
        struct dtp_program *program = lowered_plan(&t, &cluster, &plan);
        struct dtp_program_totals totals;
        assert_int_equal(most_bytes(program, "tokens by experts"), rows);
        assert_int_equal(most_bytes(program, "tokens received"), ep > 1 ? rows : 0);
        assert_int_equal(most_bytes(program, "up"), rows / 256 * 192 / (parts ? TP : 1));
        assert_int_equal(most_bytes(program, "results returned"), rows); /* also of rows that were filled up alone */
        assert_int_equal(most_bytes(program, "results by tokens"), ROWS);
        assert_int_equal(most_bytes(program, "results by tokens in fp32"), 2 * ROWS);
        assert_int_equal(most_bytes(program, "router weights"), 4 * 256 * 8);
        assert_int_equal(most_bytes(program, "shared up"), 256 * 320 / TP * 2);
        assert_int_equal(most_bytes(program, "down projection"), STREAM / TP);
        assert_int_equal(most_bytes(program, "gradient of results in fp32"), 2 * ROWS);
        check_sent(program, again, parts);
        dtp_program_sum(program, &totals);
        assert_int_equal(
            totals.sent_bytes[DTP_ALL_TO_ALL],
            ep > 1 ? LAYERS * ((again ? 6 : 4) * (rows / ep * (ep - 1)) + (again ? 2 : 1) * (64 / ep * (ep - 1))) : 0);
        dtp_program_destroy(program);
    }
}

/* FLOPs are those of one rank with as many tokens, over both; but the router's, which each multiplies with all. */
static void test_work(void **state)
{
    (void)state;
    struct dtp_cluster cluster = test_cluster(test_h200(), 8, 8);
    const struct dtp_transformer t = model();
    struct dtp_program_totals whole, part;
    struct dtp_plan plan = asked(4, 1);
    plan.tp = 1;
    struct dtp_program *program = lowered_plan(&t, &cluster, &plan);
    dtp_program_sum(program, &whole);
    dtp_program_destroy(program);
    for (uint32_t etp = 1; etp <= TP; etp++) {
        plan = asked(4, etp);
        program = lowered_plan(&t, &cluster, &plan);
        dtp_program_sum(program, &part);
        const double router = LAYERS * 6.0 * 256 * 256 * 8;
        assert_true(part.matmul_flops == (whole.matmul_flops - router) / TP + router);
        dtp_program_destroy(program);
    }
}

/* Experts' weights are gathered by the ranks of a stage that have the same ones, whatever the rest's groups are. */
static void test_units(void **state)
{
    (void)state;
    struct dtp_cluster cluster = test_cluster(test_h200(), 8, 8);
    const struct dtp_transformer t = model();
    for (uint32_t etp = 1; etp <= TP; etp++) {
        struct dtp_plan plan = asked(2, etp);
        struct dtp_program *program = lowered_plan(&t, &cluster, &plan);
        struct dtp_communication sent;
        bool found = false;
        dtp_closed_form_communication(&t, &cluster, &plan, &sent);
        for (size_t i = 0; i < dtp_program_group_count(program); i++)
            found |=
                dtp_program_groups(program)[i].ranks == 8 / 2 / etp && dtp_program_groups(program)[i].stride == 2 * etp;
        assert_true(found);
        dtp_program_destroy(program);
    }
}

/* Latents of 64, of queries too or not; heads of 48 with 16 that rope turns, values of 32. */
static void add_latents(struct dtp_transformer *t, bool queries)
{
    t->kv_latent = 64, t->q_latent = queries ? 96 : 0;
    t->rope_head_dim = 16, t->head_dim = 48, t->value_head_dim = 32, t->kv_heads = t->heads;
}

/* Each rank has latents of all tokens, and heads of its own: of keys and values 2 x (48 - 16 + 32) of a token. */
static void test_latents(void **state)
{
    (void)state;
    struct dtp_cluster cluster = test_cluster(test_h200(), 8, 8);
    for (unsigned queries = 0; queries < 2; queries++) {
        struct dtp_transformer t = model();
        struct dtp_plan plan = asked(4, 1);
        add_latents(&t, queries);
        struct dtp_program *program = lowered_plan(&t, &cluster, &plan);
        struct sent sent = of_tensor_ranks(program);
        assert_int_equal(most_bytes(program, "kv latent"), 256 * (64 + 16) * 2);
        assert_int_equal(most_bytes(program, "q latent"), queries ? 256 * 96 * 2 : 0);
        assert_int_equal(most_bytes(program, "keys and values"), 256 * 2 * (48 - 16 + 32) * 2);
        assert_int_equal(sent.gathers, LAYERS * 4 + 2);
        assert_int_equal(sent.scatters, LAYERS * (queries ? 2 : 3) + 2);
        assert_int_equal(sent.sums, LAYERS * (2 + 2 + queries) + 3 + 2 * LAYERS + 1);
        dtp_program_destroy(program);
    }
}

/* The closed form sends what the program does, of layers with experts beside layers without too. */
static void test_agrees(void **state)
{
    (void)state;
    struct dtp_cluster cluster = test_cluster(test_h200(), 16, 8);
    for (int i = 0; i < 72; i++) {
        static const uint32_t degrees[][2] = {{1, 1}, {4, 1}, {4, 2}};
        struct dtp_transformer t = model();
        struct dtp_plan plan = asked(degrees[i % 3][0], degrees[i % 3][1]);
        struct dtp_prediction closed;
        struct dtp_program_totals totals;
        plan.compile = i / 3 % 2;
        plan.checkpointing = i / 6 % 2 ? DTP_CHECKPOINT_FULL : DTP_CHECKPOINT_NONE;
        t.dense_layers = plan.checkpointing == DTP_CHECKPOINT_NONE && i / 12 % 2; /* replays of these are rounded up */
        if (i > 23)
            add_latents(&t, i > 47);
        struct dtp_program *program = lowered_plan(&t, &cluster, &plan);
        dtp_program_sum(program, &totals);
        dtp_closed_form(&t, &cluster, &plan, &closed);
        for (int k = 0; k < DTP_COLLECTIVE_COUNT; k++) {
            const bool sums = k == DTP_ALL_REDUCE; /* without the loss' and the norms', as of dense models */
            assert_int_equal(totals.sent_bytes[k],
                             closed.communication.bytes[k] + (sums ? 3 * 256 * 4 + (2 * LAYERS + 1) * 256 * 2 : 0));
            assert_int_equal(totals.count[k], closed.communication.count[k] + (sums ? 3 + 2 * LAYERS + 1 : 0));
        }
        dtp_program_destroy(program);
    }
}

/* What torchtitan asserts or has no mesh for, and what is not modelled. */
static void test_refused(void **state)
{
    (void)state;
    struct dtp_cluster cluster = test_cluster(test_h200(), 8, 8);
    const struct dtp_transformer t = model();
    for (int i = 0; i < 4; i++) {
        struct dtp_transformer other = t;
        struct dtp_plan plan = asked(2, i == 0 ? 4 : 1);
        struct dtp_faults faults = {0};
        plan.tp = i == 0 ? 8 : i == 1 ? 8 : TP;
        other.expert_bias = i == 2;
        plan.sequence_parallel = i != 3;
        assert_int_equal(dtp_plan_resolve(&plan, &other, &cluster, &faults), DTP_BAD_INPUT);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_rows),   cmocka_unit_test(test_work),
                                       cmocka_unit_test(test_units),  cmocka_unit_test(test_latents),
                                       cmocka_unit_test(test_agrees), cmocka_unit_test(test_refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
