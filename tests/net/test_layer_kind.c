/* The table of a block as a graph: what is read was made, each matrix belongs to one projection, and published models
 * count as their tables say. */
#include "net/layer_kind.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <cmocka.h>

/* Every combination of the choices that shape a block. */
static bool next_choice(struct dtp_transformer *t, unsigned number)
{
    *t = dtp_transformer_default();
    t->layers = 2, t->hidden = 64, t->heads = 4, t->kv_heads = 2, t->head_dim = 16, t->ffn = 256, t->vocab = 100;
    t->activation = number % 3, number /= 3;
    t->position = number % 2 ? DTP_POSITION_ROPE : DTP_POSITION_ALIBI, number /= 2;
    t->qk_norm = number % 2, number /= 2;
    t->parallel_block = number % 3, number /= 3;
    t->norm_place = t->parallel_block ? DTP_NORMS_BEFORE : number % 3, number /= 3;
    t->qkv_bias = t->mlp_bias = number % 2, number /= 2;
    return number == 0;
}

/* Forward can run in the table's order: each operator reads the block's input or what one before it made, and what is
 * made is read by one behind it. */
static void test_operators_are_a_graph(void **state)
{
    (void)state;
    struct dtp_transformer t;
    for (unsigned number = 0; next_choice(&t, number); number++)
        for (int packed = 0; packed < 2; packed++) {
            struct dtp_layer_kind kind;
            struct dtp_layer_operator op[DTP_LAYER_OPERATORS];
            dtp_layer_kind_of(&t, DTP_LAYER_DENSE, packed, packed, &kind);
            int count = dtp_layer_operators(&kind, op);
            uint64_t made = DTP_TENSOR_BIT(INPUT), read = 0;
            for (int i = 0; i < count; i++) {
                assert_true(op[i].reads && !(op[i].reads & ~made));
                assert_false(op[i].makes & made);
                made |= op[i].makes;
                read |= op[i].reads;
            }
            assert_true(read == made);
            assert_int_equal(op[count - 1].kind, DTP_LAYER_OP_RESIDUAL);
            assert_int_equal(op[count - 1].makes, 0);
        }
}

static void test_each_matrix_has_its_projection(void **state)
{
    (void)state;
    struct dtp_transformer t;
    for (unsigned number = 0; next_choice(&t, number); number++)
        for (int packed = 0; packed < 2; packed++) {
            struct dtp_layer_kind kind;
            struct dtp_layer_operator op[DTP_LAYER_OPERATORS];
            dtp_layer_kind_of(&t, DTP_LAYER_DENSE, packed, packed, &kind);
            int count = dtp_layer_operators(&kind, op), left = kind.matrices;
            for (int i = 0; i < count; i++)
                for (int m = 0; m < kind.matrices; m++)
                    if (op[i].kind == DTP_LAYER_OP_PROJECTION && op[i].makes & UINT64_C(1) << kind.matrix[m].result) {
                        assert_int_equal(dtp_layer_tensor_width(&kind, kind.matrix[m].result), kind.matrix[m].out);
                        assert_int_equal(
                            dtp_layer_tensor_width(&kind, (enum dtp_layer_tensor)__builtin_ctzll(op[i].reads)),
                            kind.matrix[m].in);
                        left--;
                    }
            assert_int_equal(left, 0);
        }
}

/* h 64, q 64, kv 32, f 256, SwiGLU: 64 (64 + 2 32 + 64 + 3 256) = 61440 however they are stored; norms 2 64. */
static void test_counts_by_hand(void **state)
{
    (void)state;
    struct dtp_transformer t;
    struct dtp_layer_kind kind;
    next_choice(&t, 2);
    for (int packed = 0; packed < 2; packed++) {
        dtp_layer_kind_of(&t, DTP_LAYER_DENSE, packed, packed, &kind);
        assert_int_equal(kind.matrices, packed ? 4 : 7);
        assert_int_equal(dtp_layer_matrix_elements(&kind), 61440);
        assert_int_equal(dtp_layer_vector_elements(&kind), 128);
    }
    t.parallel_block = DTP_PARALLEL_ONE_NORM, t.qk_norm = true; /* one norm less, two of 16 more */
    dtp_layer_kind_of(&t, DTP_LAYER_DENSE, true, true, &kind);
    assert_int_equal(dtp_layer_vector_elements(&kind), 64 + 32);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_operators_are_a_graph),
                                       cmocka_unit_test(test_each_matrix_has_its_projection),
                                       cmocka_unit_test(test_counts_by_hand)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
